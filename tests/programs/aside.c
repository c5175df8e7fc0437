/* Puts its standard error aside for three seconds, as a shell does that redirects it. Then locks more than its budget, by raw
   system calls, which the pager does not see before. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void) {
    enum { MIB = 1 << 20, LEN = 64 * MIB };
    int aside = fcntl(2, F_DUPFD_CLOEXEC, 10), null = open("/dev/null", O_WRONLY);
    if (aside < 0 || dup2(null, 2) != 2) return 1;
    sleep(3);
    if (dup2(aside, 2) != 2) return 1;
    unsigned char *p = mmap(0, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (long i = 0; i < LEN; i += MIB) {
        long r;
        __asm__ volatile("syscall" : "=a"(r) : "0"((long)SYS_mlock), "D"(p + i), "S"((long)MIB) : "rcx", "r11", "memory");
        memset(p + i, 5, MIB);
    }
    return 0;
}

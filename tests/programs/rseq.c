/* A thread registers a `struct rseq` of its own in paged memory, and sleeps while the program goes through more memory than its
 * budget. The page must stay: the kernel writes to it when the thread goes on, also inside a hook. */
#include <linux/futex.h>
#include <linux/rseq.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MIB = 1 << 20, PAGE = 4096 };
static struct rseq *area;
static int over, registered;

static void check(int is_right, const char *what)
{
    if (!is_right) {
        printf("WRONG: %s\n", what);
        exit(3);
    }
}

static void *sleeper(void *unused)
{
    check(syscall(SYS_rseq, area, sizeof *area, 0, 0x53053053) == 0, "rseq");
    __atomic_store_n(&registered, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&over, __ATOMIC_SEQ_CST)) syscall(SYS_futex, &over, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
    return unused;
}

int main(int argc, char **argv)
{
    if (argc == 1 && !getenv("GLIBC_TUNABLES")) { /* libc shall register none */
        setenv("GLIBC_TUNABLES", "glibc.pthread.rseq=0", 1);
        execv("/proc/self/exe", argv);
    }
    alarm(250);
    char *memory = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(memory != MAP_FAILED, "mmap");
    memset(memory, 1, 64 * MIB); /* it is managed from here on */
    area = (struct rseq *)(memory + 8 * PAGE);
    memset(area, 0, sizeof *area);
    pthread_t thread;
    check(pthread_create(&thread, NULL, sleeper, NULL) == 0, "a thread");
    while (!__atomic_load_n(&registered, __ATOMIC_SEQ_CST)) usleep(1000);
    usleep(10000);
    for (int round = 2; round < 5; round++) memset(memory + MIB, round, 63 * MIB);
    unsigned char there[2];
    check(mincore(memory + 8 * PAGE, PAGE, there) == 0 && mincore(memory + 64 * PAGE, PAGE, there + 1) == 0, "mincore");
    check(!(there[1] & 1), "a page that nobody uses stays");
    check(there[0] & 1, "the page of a thread's rseq has gone");
    __atomic_store_n(&over, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &over, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    check(pthread_join(thread, NULL) == 0, "join");
    puts("all bytes right");
    return 0;
}

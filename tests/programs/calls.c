/* Calls on an address space that is mostly paged out: each must behave as without a pager.
   Exit status 0, or 3 with the name of the first call that did not. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <spawn.h>
#include <unistd.h>
#include <fcntl.h>

#define MIB (1l << 20)
enum { PAGE = 4096 };
extern char **environ;

static void expect(int right, const char *what) {
    if (!right) {
        printf("WRONG %s (errno %d)\n", what, errno);
        fflush(stdout);
        _exit(3);
    }
}
static void fill(unsigned char *p, long len, int salt) {
    for (long i = 0; i < len; i += PAGE) memset(p + i, (int)(i / PAGE * 7 + salt), PAGE);
}
static int holds(const unsigned char *p, long len, int salt) {
    for (long i = 0; i < len; i += PAGE)
        if (p[i] != (unsigned char)(i / PAGE * 7 + salt) || p[i + 4095] != p[i]) {
            printf("page %ld at %p holds %d..%d, not %d\n", i / PAGE, (void *)(p + i), p[i], p[i + 4095], (unsigned char)(i / PAGE * 7 + salt));
            return 0;
        }
    return 1;
}
static unsigned char *map(long len) {
    unsigned char *p = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(p != MAP_FAILED, "mmap");
    return p;
}
static void pressure(void) { /* pushes everything else out */
    unsigned char *p = map(28 * MIB);
    fill(p, 28 * MIB, 99);
    expect(holds(p, 28 * MIB, 99), "pressure");
    expect(munmap(p, 28 * MIB) == 0, "munmap");
}

int main(void) {
    long len = 24 * MIB;
    unsigned char *p = map(len);
    fill(p, len, 1);
    pressure();
    expect(mprotect(p, len, PROT_READ) == 0, "mprotect");
    expect(holds(p, len, 1), "read-only pages come back");
    pressure();
    expect(mprotect(p, len, PROT_READ | PROT_WRITE) == 0 && holds(p, len, 1), "writable again");

    pressure(); /* system calls on absent pages */
    int fd[2];
    expect(pipe(fd) == 0, "pipe");
    for (long i = 0; i < len; i += 997 * PAGE) {
        char back[64];
        expect(write(fd[1], p + i, 64) == 64, "write from an absent page");
        expect(read(fd[0], back, 64) == 64 && memcmp(back, p + i, 64) == 0, "what was written");
        expect(write(fd[1], back, 64) == 64 && read(fd[0], p + i + 128, 64) == 64, "read into a page");
    }
    expect(holds(p, len, 1), "after system calls");

    unsigned char *over = mmap(p + 4 * MIB, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    expect(over == p + 4 * MIB, "MAP_FIXED");
    for (long i = 0; i < 4 * MIB; i += PAGE) expect(over[i] == 0, "a fresh mapping over paged memory is zero");
    expect(holds(p, 4 * MIB, 1), "beside MAP_FIXED");
    fill(over, 4 * MIB, 4 * MIB / PAGE * 7 + 1);
    expect(holds(p, len, 1), "filled again");

    pressure();
    expect(madvise(p, 2 * MIB, MADV_DONTNEED) == 0, "MADV_DONTNEED");
    for (long i = 0; i < 2 * MIB; i += PAGE) expect(p[i] == 0, "discarded pages are zero");
    fill(p, 2 * MIB, 1);
    expect(madvise(p, 2 * MIB, MADV_FREE) == 0, "MADV_FREE");
    for (long i = 0; i < 2 * MIB; i += PAGE) expect(p[i] == 0 || p[i] == (unsigned char)(i / PAGE * 7 + 1), "freed pages are zero or old");
    fill(p, 2 * MIB, 1);
    pressure();
    expect(holds(p, len, 1), "after discards");

    unsigned char *moved = mremap(p, len, len + 8 * MIB, MREMAP_MAYMOVE);
    expect(moved != MAP_FAILED, "mremap");
    expect(holds(moved, len, 1), "moved pages");
    for (long i = len; i < len + 8 * MIB; i += PAGE) expect(moved[i] == 0, "grown pages are zero");
    fill(moved + len, 8 * MIB, 5);
    pressure();
    expect(holds(moved, len, 1) && holds(moved + len, 8 * MIB, 5), "moved and grown pages come back");

    expect(mlock(moved, MIB) == 0 && holds(moved, MIB, 1) && munlock(moved, MIB) == 0, "mlock");

    unsigned char *heap = sbrk(16 * MIB);
    expect(heap != (void *)-1, "sbrk");
    fill(heap, 16 * MIB, 2);
    pressure();
    expect(holds(heap, 16 * MIB, 2), "heap pages come back");
    expect(sbrk(-16 * MIB) != (void *)-1 && sbrk(16 * MIB) == heap, "brk down and up");
    for (long i = 0; i < 16 * MIB; i += PAGE) expect(heap[i] == 0, "a heap that grew again is zero");

    /* MADV_WIPEONFORK, as libraries use it for the state of random number generators: absent, resident, moved, taken back, new */
    unsigned char *secret = map(4 * MIB), *kept = map(2 * MIB), *gone = map(MIB);
    expect(madvise(secret, 4 * MIB, MADV_WIPEONFORK) == 0 && madvise(gone, MIB, MADV_WIPEONFORK) == 0, "MADV_WIPEONFORK");
    expect(madvise(kept, 2 * MIB, MADV_WIPEONFORK) == 0 && madvise(kept, MIB, MADV_KEEPONFORK) == 0, "MADV_KEEPONFORK");
    fill(secret, 4 * MIB, 3);
    fill(kept, 2 * MIB, 9);
    pressure();
    secret = mremap(secret, 4 * MIB, 6 * MIB, MREMAP_MAYMOVE);
    expect(secret != MAP_FAILED, "mremap of what is to be wiped");
    fill(secret + 4 * MIB, 2 * MIB, 8);
    expect(mmap(gone, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == gone, "MAP_FIXED");
    fill(gone, MIB, 4);
    pressure();
    expect(holds(secret, MIB, 3), "what is to be wiped comes back");
    pid_t child = fork();
    if (child == 0) {
        for (long i = 0; i < 6 * MIB; i++)
            expect(secret[i] == 0, "a child finds what is to be wiped empty");
        for (long i = MIB; i < 2 * MIB; i++) expect(kept[i] == 0, "a child finds the rest empty");
        expect(holds(kept, MIB, 9), "a child finds what is to be kept");
        expect(holds(gone, MIB, 4), "a child finds what was mapped over it");
        fill(secret, 6 * MIB, 6);
        pressure();
        expect(holds(secret, 6 * MIB, 6), "a child may use what was wiped");
        _exit(7);
    }
    int status;
    expect(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7, "a child with wiped memory");
    expect(holds(secret, 4 * MIB, 3) && holds(secret + 4 * MIB, 2 * MIB, 8), "a parent keeps what its child found empty");

    char *args[] = {"sh", "-c", "exit 5", 0};
    expect(posix_spawnp(&child, "sh", 0, 0, args, environ) == 0 && waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 5, "posix_spawn");
    if ((child = vfork()) == 0) _exit(6);
    expect(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 6, "vfork");
    expect(open("/dev/null", O_RDONLY) == fd[1] + 1, "descriptor numbers are as without a pager");
    for (int i = 3; i < 1024; i++) close(i); /* as daemons do */
    pressure();
    expect(holds(moved, len, 1), "after closing every descriptor");
    puts("all calls right");
    return 0;
}

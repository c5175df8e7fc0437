// Locks memory by each of the calls, in a budget of 16 MiB. What fits is locked and stays resident, the rest is refused with
// ENOMEM, and the program goes on with the memory that is left. Prints "all as it should be".

#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1L << 20)
#define PAGE 4096L

static void expect(int holds, const char *what) {
    if (holds) return;
    printf("wrong: %s (errno %d: %s)\n", what, errno, strerror(errno));
    exit(1);
}

static unsigned char *some(long len) {
    unsigned char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(p != MAP_FAILED, "mmap");
    return p;
}

static void fill(unsigned char *p, long len, int seed) {
    for (long i = 0; i < len; i += PAGE) p[i] = (unsigned char)(i / PAGE * 7 + seed);
}

static int holds(unsigned char *p, long len, int seed) {
    for (long i = 0; i < len; i += PAGE)
        if (p[i] != (unsigned char)(i / PAGE * 7 + seed)) return 0;
    return 1;
}

static long resident(unsigned char *p, long len) {
    static unsigned char in[64 * MIB / PAGE];
    long n = 0;
    expect(mincore(p, len, in) == 0, "mincore");
    for (long i = 0; i < len / PAGE; i++) n += in[i] & 1;
    return n;
}

static long locked_kib(void) {
    char line[200];
    long kib = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, f)) sscanf(line, "VmLck: %ld", &kib);
    fclose(f);
    return kib;
}

// Locks and unlocks each mapping of the process.
static int lock_everything(void) {
    static unsigned long start[1000], end[1000];
    char line[400];
    int n = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    while (n < 1000 && fgets(line, sizeof line, f)) n += sscanf(line, "%lx-%lx", &start[n], &end[n]) == 2;
    fclose(f);
    for (int i = 0; i < n; i++) {
        mlock((void *)start[i], end[i] - start[i]);
        munlock((void *)start[i], end[i] - start[i]);
    }
    return n;
}

int main(void) {
    long before = locked_kib();
    unsigned char *a = some(10 * MIB), *b = some(24 * MIB);
    fill(a, 10 * MIB, 1);
    fill(b, 24 * MIB, 2); // a is out
    expect(mlock(a, 10 * MIB) == 0, "mlock of more than half of the budget");
    expect(resident(a, 10 * MIB) == 10 * MIB / PAGE, "what is locked is there");
    expect(mlock(b, 4 * MIB) == -1 && errno == ENOMEM, "mlock of what does not fit besides");
    expect(mlock2(b, 4 * MIB, MLOCK_ONFAULT) == -1 && errno == ENOMEM, "mlock2 of what does not fit besides");
    expect(syscall(325, b, 4 * MIB, 0) == -1 && errno == ENOMEM, "mlock2 by syscall()");
    expect(mlock2(b, MIB, MLOCK_ONFAULT) == 0, "mlock2 of what fits");
    expect(holds(b, 24 * MIB, 2) && holds(a, 10 * MIB, 1), "pages");
    expect(resident(a, 10 * MIB) == 10 * MIB / PAGE, "what is locked stays");
    expect(munlock(a, 10 * MIB) == 0 && mlock(b, 4 * MIB) == 0, "what was unlocked makes room");
    expect(lock_everything() > 0 && locked_kib() == before, "the pager's own memory is not the program's to lock, or to unlock");
    expect(munlockall() == 0 && locked_kib() == before, "munlockall, and what the pager locks is locked again");

    expect(mlockall(0) == -1 && errno == EINVAL && mlockall(64) == -1 && errno == EINVAL, "flags that there are not");
    expect(mlockall(MCL_ONFAULT) == -1 && errno == EINVAL, "when, but not what");
    expect(mlockall(MCL_CURRENT) == -1 && errno == ENOMEM && locked_kib() == before, "mlockall of more than the budget");
    expect(munmap(b, 24 * MIB) == 0 && munmap(a + 4 * MIB, 6 * MIB) == 0, "munmap");
    expect(mlockall(MCL_CURRENT) == 0 && locked_kib() >= 4 * 1024, "mlockall");
    expect(resident(a, 4 * MIB) == 4 * MIB / PAGE, "what mlockall locked is there");
    expect(mlockall(MCL_FUTURE) == 0, "mlockall of what comes");
    unsigned char *c = some(2 * MIB), *d = some(32 * MIB);
    expect(resident(c, 2 * MIB) == 2 * MIB / PAGE, "what came after mlockall(MCL_FUTURE) is there");
    fill(c, 2 * MIB, 3);
    fill(d, 32 * MIB, 4);
    expect(holds(d, 32 * MIB, 4) && holds(c, 2 * MIB, 3) && holds(a, 4 * MIB, 1), "pages, some locked");
    expect(resident(c, 2 * MIB) == 2 * MIB / PAGE, "it stays");

    pid_t child = fork();
    if (child == 0) {
        // a child inherits neither locks nor mlockall(MCL_FUTURE)
        unsigned char *e = some(MIB);
        int right = locked_kib() == before && resident(e, MIB) == 0 && holds(c, 2 * MIB, 3) && holds(d, 32 * MIB, 4);
        _exit(right ? 0 : 1);
    }
    int status;
    expect(child > 0 && waitpid(child, &status, 0) == child && status == 0, "the child");

    expect(munlockall() == 0 && locked_kib() == before, "munlockall at the end");
    unsigned char *e = some(MIB);
    expect(resident(e, MIB) == 0, "nothing is locked any more");
    puts("all as it should be");
    return 0;
}

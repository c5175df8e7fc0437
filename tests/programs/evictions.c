/* Which memory can be evicted, and which cannot: evictions CASE. Prints "right" if everything is as without a pager.
 *
 * executable         memory that is writable and executable is paged out and back in
 * protected          so is memory that is read-only, executable or PROT_NONE; code runs that has been paged out
 * flips S [fork]     for S seconds two threads make memory writable, write it, discard it and protect it again, under
 *                    pressure; with "fork" there are forks meanwhile
 * splits S   for S seconds pieces of read-only memory get other protections, which splits and joins the mapping, under pressure
 * direct S FILE      S seconds of direct reads into writable and executable memory, under pressure
 * too-much-locked    locks more than the budget by raw system calls, a MiB at a time
 * locked             forks with more than half of the budget locked are not slow
 * locked-late        fills memory that packs to a half, then locks most of the budget
 * pinned     registered I/O buffers stay resident; the rest is evicted
 * oldest     fills three mappings that fit, and a fourth that does not: of the three the oldest is evicted first
 * forks S    S seconds of forks, discards and writes at the same time: all of them make progress
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, MIB = 1 << 20 };

static void wrong(const char *format, ...) {
    va_list list;
    va_start(list, format);
    printf("wrong: ");
    vprintf(format, list);
    printf("\n");
    va_end(list);
    exit(1);
}

static unsigned char *map_as(long len, int prot) {
    unsigned char *p = mmap(0, len, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) wrong("mmap: %s", strerror(errno));
    return p;
}
static unsigned char *map(long len) { return map_as(len, PROT_READ | PROT_WRITE); }

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Each page has its number and a salt in every word. */
static void fill(unsigned char *p, long len, long salt) {
    for (long i = 0; i < len / (long)sizeof(long); i++) ((long *)p)[i] = i / (PAGE / sizeof(long)) * 8191 + salt;
}
static void check(const char *what, const unsigned char *p, long len, long salt) {
    for (long i = 0; i < len / (long)sizeof(long); i++)
        if (((const long *)p)[i] != i / (PAGE / (long)sizeof(long)) * 8191 + salt)
            wrong("%s: %#lx at byte %ld", what, ((const long *)p)[i], i * (long)sizeof(long));
}

/* Fills memory, so that everything else is evicted. */
static void press(long len) {
    unsigned char *p = map(len);
    for (int salt = 1; salt < 3; salt++) fill(p, len, salt);
    check("pressed", p, len, 2);
    munmap(p, len);
}

static void pinned(void) {
    long len = 4 * MIB;
    unsigned char *p = map(len);
    fill(p, len, 7);
    struct io_uring_params params = {0};
    int ring = syscall(SYS_io_uring_setup, 4, &params);
    struct iovec iov[4];
    for (int i = 0; i < 4; i++) iov[i] = (struct iovec){p + i * MIB, MIB};
    if (ring < 0 || syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, iov, 4) < 0) {
        printf("no registered buffers here: %s\n", strerror(errno));
        exit(0);
    }
    press(48 * MIB);
    check("pinned", p, len, 7);
}

/* How many pages are in memory. */
static long resident(const unsigned char *p, long len) {
    long pages = 0;
    unsigned char in[len / PAGE];
    if (mincore((void *)p, len, in)) wrong("mincore: %s", strerror(errno));
    for (long i = 0; i < len / PAGE; i++) pages += in[i] & 1;
    return pages;
}

static void oldest(void) {
    long len = 3 * MIB, in[3];
    unsigned char *p[3];
    for (int i = 0; i < 3; i++) fill(p[i] = map(len), len, i);
    unsigned char *more = map(9 * MIB);
    fill(more, 9 * MIB, 3);
    for (int i = 0; i < 3; i++) in[i] = resident(p[i], len);
    for (int i = 0; i < 3; i++) check("kept", p[i], len, i);
    if (in[0] > len / PAGE / 2 || in[1] < in[0] || in[2] < len / PAGE * 7 / 8) wrong("in memory: %ld, %ld, %ld pages", in[0], in[1], in[2]);
}

static unsigned char *shared;
static const long shared_len = 8 * MIB;
static atomic_long forks, discards, writes;
static atomic_int over;

static void *discarder(void *none) {
    unsigned seed = 1;
    for (; !over; discards++) {
        long at = rand_r(&seed) % (shared_len / PAGE) * PAGE, n = (1 + rand_r(&seed) % 64) * PAGE;
        if (at + n > shared_len) n = shared_len - at;
        madvise(shared + at, n, MADV_DONTNEED);
        for (long i = 0; i < n; i += PAGE)
            if (rand_r(&seed) % 4) shared[at + i] = 1;
    }
    return none;
}
static void *writer(void *none) {
    long len = 48 * MIB;
    unsigned char *p = map(len);
    for (int k = 1; !over; k++)
        for (long i = 0; i < len && !over; i += PAGE, writes++) memset(p + i, k + i / PAGE, PAGE);
    return none;
}
static void *forker(void *none) {
    for (; !over; forks++) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        if (child < 0) wrong("fork: %s", strerror(errno));
        waitpid(child, 0, 0);
    }
    return none;
}
static void fork_and_discard(int seconds) {
    shared = map(shared_len);
    memset(shared, 1, shared_len);
    pthread_t threads[3];
    pthread_create(&threads[0], 0, discarder, 0);
    pthread_create(&threads[1], 0, writer, 0);
    pthread_create(&threads[2], 0, forker, 0);
    sleep(seconds);
    over = 1;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
    if (!forks || !discards || !writes) wrong("%ld forks, %ld discards, %ld writes", forks, discards, writes);
}

static void protect(void *p, long len, int prot) {
    if (mprotect(p, len, prot)) wrong("mprotect: %s", strerror(errno));
}

static void executable(void) {
    long len = 32 * MIB;
    unsigned char *p = map_as(len, PROT_READ | PROT_WRITE | PROT_EXEC);
    for (int salt = 1; salt < 3; salt++) fill(p, len, salt);
    check("executable", p, len, 2);
}

static void protected(void) {
    long len = 6 * MIB;
    unsigned char *p = map(len), *none = map(len), *code = map(len);
    fill(p, len, 3);
    fill(none, len, 4);
    for (int i = 0; i < len / PAGE; i++) { /* mov eax, i; ret */
        code[(long)i * PAGE] = 0xb8;
        memcpy(code + (long)i * PAGE + 1, &i, sizeof i);
        code[(long)i * PAGE + 5] = 0xc3;
    }
    protect(p, len, PROT_READ);
    protect(none, len, PROT_NONE);
    protect(code, len, PROT_READ | PROT_EXEC);
    press(32 * MIB);
    check("read-only", p, len, 3);
    for (int i = 0; i < len / PAGE; i++) {
        int got = ((int (*)(void))(code + (long)i * PAGE))();
        if (got != i) wrong("code %d says %d", i, got);
    }
    protect(none, len, PROT_READ);
    check("not to be touched", none, len, 4);
}

struct half {
    unsigned char *memory;
    long pages;
    unsigned seed;
};

static void *flipper(void *of) {
    const struct half *half = of;
    const int prots[] = {PROT_READ, PROT_NONE, PROT_READ | PROT_EXEC, PROT_READ | PROT_WRITE | PROT_EXEC};
    unsigned seed = half->seed;
    long *model = calloc(half->pages, sizeof *model);
    for (long turn = 1; !over; turn++) {
        long first = rand_r(&seed) % half->pages, n = 1 + rand_r(&seed) % 32;
        if (first + n > half->pages) n = half->pages - first;
        unsigned char *at = half->memory + first * PAGE;
        if (rand_r(&seed) % 8 == 0) {
            if (madvise(at, n * PAGE, MADV_DONTNEED)) wrong("discard: %s", strerror(errno));
            for (long i = 0; i < n; i++) model[first + i] = 0;
        }
        protect(at, n * PAGE, PROT_READ | PROT_WRITE);
        for (long i = 0; i < n; i++) {
            if (*(long *)(at + i * PAGE) != model[first + i])
                wrong("page %ld: %ld instead of %ld", first + i, *(long *)(at + i * PAGE), model[first + i]);
        }
        if (rand_r(&seed) % 8 == 0) madvise(at, n * PAGE, MADV_FREE); /* the write after it must stay */
        for (long i = 0; i < n; i++) *(long *)(at + i * PAGE) = model[first + i] = turn * 1000 + i;
        protect(at, n * PAGE, prots[rand_r(&seed) % 4]);
    }
    free(model);
    return 0;
}
static void *presser(void *none) {
    while (!over) press(20 * MIB);
    return none;
}
static void flips(int seconds, int forks_too) {
    long len = 12 * MIB;
    struct half halves[2];
    pthread_t threads[4];
    for (int i = 0; i < 2; i++) {
        halves[i] = (struct half){map(len), len / PAGE, i + 1};
        pthread_create(&threads[i], 0, flipper, &halves[i]);
    }
    pthread_create(&threads[2], 0, presser, 0);
    if (forks_too) pthread_create(&threads[3], 0, forker, 0);
    sleep(seconds);
    over = 1;
    for (int i = 0; i < 3 + forks_too; i++) pthread_join(threads[i], 0);
}

/* Changes the protection of memory that is filled once, and never written or discarded afterwards. */
static void *splitter(void *of) {
    const struct half *half = of;
    unsigned seed = half->seed;
    while (!over) {
        protect(half->memory + rand_r(&seed) % half->pages * PAGE, PAGE, rand_r(&seed) % 16 ? PROT_READ : PROT_NONE);
    }
    return 0;
}
static void splits(int seconds) {
    long len = 12 * MIB;
    unsigned char *p = map(len);
    fill(p, len, 8);
    protect(p, len, PROT_READ);
    struct half all = {p, len / PAGE, 1};
    pthread_t threads[2];
    pthread_create(&threads[0], 0, splitter, &all);
    pthread_create(&threads[1], 0, presser, 0);
    for (double end = now() + seconds; now() < end;) {
        for (long i = 0; i < len; i += PAGE) {
            /* (the kernel reads it, and answers EFAULT if the other thread has protected the page) */
            long word;
            struct iovec to = {&word, sizeof word}, from = {p + i, sizeof word};
            if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) == sizeof word && word != i / PAGE * 8191 + 8)
                wrong("page %ld: %#lx", i / PAGE, word);
        }
    }
    over = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    protect(p, len, PROT_READ);
    check("split", p, len, 8);
}

static void direct(int seconds, const char *path) {
    enum { BLOCK = 16 * PAGE, BLOCKS = 64 };
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    unsigned char *content = map((long)BLOCK * BLOCKS);
    fill(content, (long)BLOCK * BLOCKS, 9);
    if (file < 0 || write(file, content, (long)BLOCK * BLOCKS) != (long)BLOCK * BLOCKS || fsync(file)) wrong("%s: %s", path, strerror(errno));
    close(file);
    file = open(path, O_RDONLY | O_DIRECT);
    if (file < 0) {
        printf("no direct reads here: %s\n", strerror(errno));
        exit(0);
    }
    long slots = 12 * MIB / BLOCK, held[12 * MIB / BLOCK] = {0};
    unsigned char *p = map_as(slots * BLOCK, PROT_READ | PROT_WRITE | PROT_EXEC);
    pthread_t thread;
    pthread_create(&thread, 0, presser, 0);
    unsigned seed = 1;
    for (double end = now() + seconds; now() < end;) {
        long slot = rand_r(&seed) % slots, block = rand_r(&seed) % BLOCKS;
        if (held[slot] && memcmp(p + slot * BLOCK, content + (held[slot] - 1) * BLOCK, BLOCK)) wrong("block %ld in slot %ld", held[slot] - 1, slot);
        memset(p + slot * BLOCK, 0, BLOCK);
        if (pread(file, p + slot * BLOCK, BLOCK, block * BLOCK) != BLOCK) wrong("read: %s", strerror(errno));
        if (memcmp(p + slot * BLOCK, content + block * BLOCK, BLOCK)) wrong("block %ld, just read", block);
        held[slot] = block + 1;
    }
    over = 1;
    pthread_join(thread, 0);
}

static void locked(void) {
    unsigned char *p = map(10 * MIB);
    fill(p, 10 * MIB, 5);
    for (int i = 0; i < 10; i++)
        if (mlock(p + i * MIB, MIB)) wrong("mlock: %s", strerror(errno));
    unsigned char *q = map(8 * MIB);
    fill(q, 8 * MIB, 6);
    for (int i = 0; i < 3; i++) {
        double start = now();
        pid_t child = fork();
        if (child == 0) _exit(0);
        if (child < 0) wrong("fork: %s", strerror(errno));
        double took = now() - start;
        waitpid(child, 0, 0);
        if (took > 20) wrong("fork %d took %.1f s", i, took); /* it once took 30 s, the longest time that a fork waits */
    }
    check("locked", p, 10 * MIB, 5);
    check("not locked", q, 8 * MIB, 6);
}

static unsigned packable(int i) { return i % 2 ? 0 : (i + 1) * 2654435761u >> 8; }

static void locked_late(void) {
    int words = 28 * MIB / 4;
    unsigned *q = (unsigned *)map(28 * MIB);
    for (int i = 0; i < words; i++) q[i] = packable(i);
    unsigned char *p = map(10 * MIB);
    if (mlock(p, 10 * MIB)) wrong("mlock: %s", strerror(errno));
    fill(p, 10 * MIB, 5);
    usleep(500000);
    check("locked", p, 10 * MIB, 5);
    for (int i = 0; i < words; i++)
        if (q[i] != packable(i)) wrong("word %d is %u", i, q[i]);
}

/* Locks by raw system calls: Overspill sees libc's mlock, and would refuse it. */
static void too_much_locked(void) {
    unsigned char *p = map(64 * MIB);
    for (int i = 0; i < 64; i++) {
        long r;
        __asm__ volatile("syscall" : "=a"(r) : "0"((long)SYS_mlock), "D"(p + i * MIB), "S"((long)MIB) : "rcx", "r11", "memory");
        if (r) wrong("mlock: %s", strerror(-r));
    }
    fill(p, 64 * MIB, 5);
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    if (!strcmp(name, "pinned")) pinned();
    else if (!strcmp(name, "executable")) executable();
    else if (!strcmp(name, "protected")) protected();
    else if (!strcmp(name, "flips") && argc > 2) flips(atoi(argv[2]), argc > 3);
    else if (!strcmp(name, "splits") && argc > 2) splits(atoi(argv[2]));
    else if (!strcmp(name, "direct") && argc > 3) direct(atoi(argv[2]), argv[3]);
    else if (!strcmp(name, "too-much-locked")) too_much_locked();
    else if (!strcmp(name, "locked")) locked();
    else if (!strcmp(name, "locked-late")) locked_late();
    else if (!strcmp(name, "oldest")) oldest();
    else if (!strcmp(name, "forks") && argc > 2) fork_and_discard(atoi(argv[2]));
    else return 2;
    printf("right\n");
    return 0;
}

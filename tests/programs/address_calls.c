/* Calls that change the address space; each case was once wrong under Overspill: `address_calls CASE`, in a budget of 16 MiB. A
   case prints what is wrong, and the last line is "all right" or "wrong". */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, MIB = 1 << 20, GUARD_INSTALL = 102, GUARD_REMOVE = 103, DROPPABLE = 8, RW = PROT_READ | PROT_WRITE };

static int bad;

static void check(int right, const char *what) {
    if (!right) {
        printf("not so: %s (errno %d)\n", what, errno);
        bad = 1;
    }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static unsigned char *map_at(void *at, long len, int prot, int flags) {
    unsigned char *p = mmap(at, len, prot, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (p == MAP_FAILED) {
        perror("mmap");
        exit(9);
    }
    return p;
}

static unsigned char *map(long len) {
    return map_at(NULL, len, RW, 0);
}

static void fill(unsigned char *p, long len, int salt) {
    for (long i = 0; i < len; i += PAGE)
        memset(p + i, (int)(i / PAGE * 7 + salt) | 1, PAGE);
}

static long wrong(const unsigned char *p, long len, int salt) {
    long n = 0;
    for (long i = 0; i < len; i += PAGE)
        n += p[i] != (unsigned char)((i / PAGE * 7 + salt) | 1);
    return n;
}

static long nonzero(const unsigned char *p, long len) {
    long n = 0;
    for (long i = 0; i < len; i += PAGE)
        n += p[i] != 0;
    return n;
}

/* Fills more than the budget, so that everything else is paged out. */
static void pressure(void) {
    unsigned char *p = map(40 * MIB);
    fill(p, 40 * MIB, 99);
    munmap(p, 40 * MIB);
}

/* The number of mappings in the range. */
static int mappings(const void *start, long len) {
    FILE *f = fopen("/proc/self/maps", "r");
    char line[512];
    int n = 0;
    while (f && fgets(line, sizeof line, f)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx", &from, &to) == 2 && from < (unsigned long)start + len && (unsigned long)start < to)
            n++;
    }
    if (f)
        fclose(f);
    return n;
}

static void refused(void) {
    unsigned char *a = map(32 * MIB); /* more than the budget: managed from the start */
    fill(a, 4 * MIB, 3);
    int fd = open("/proc/self/exe", O_RDONLY);
    check(mmap(a + 24 * MIB, 8192, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0) != MAP_FAILED, "a file in the middle");
    pressure();
    unsigned char *n = map_at(a + 16 * MIB, MIB, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_FIXED); /* fits: left to the kernel */
    fill(n, MIB, 5);
    unsigned char *alone = map_at(NULL, MIB, PROT_READ | PROT_WRITE | PROT_EXEC, 0);
    fill(alone, MIB, 7);
    double start = now();
    check(munmap(a, 1L << 47) == -1 && errno == EINVAL, "munmap of more than there is");
    check(munmap(alone, 1L << 47) == -1 && errno == EINVAL, "the same");
    check(mmap(a, 32 * MIB, PROT_READ, MAP_SHARED | MAP_FIXED, 777, 0) == MAP_FAILED && errno == EBADF, "mmap of no descriptor");
    check(mmap(alone, MIB, PROT_READ, MAP_SHARED | MAP_FIXED, 777, 0) == MAP_FAILED && errno == EBADF, "the same");
    check(mremap(a, 4 * MIB, 1L << 46, 0) == MAP_FAILED, "mremap to where there is no room");
    check(mremap(alone, MIB, 1L << 46, MREMAP_MAYMOVE) == MAP_FAILED, "mremap to more than there is");
    check(now() - start < 3, "at once");
    check(wrong(a, 4 * MIB, 3) == 0 && wrong(n, MIB, 5) == 0 && wrong(alone, MIB, 7) == 0, "all is as it was");
    pressure();
    check(wrong(a, 4 * MIB, 3) == 0 && wrong(n, MIB, 5) == 0 && wrong(alone, MIB, 7) == 0, "and stays so");
}

/* The kernel first reports the unmapping of the old memory, and then refuses, as the machine has too little memory for the call. */
static void refused_late(void) {
    long len = 4 * PAGE * sysconf(_SC_PHYS_PAGES);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    unsigned char *a = mmap(NULL, len, PROT_NONE, flags, -1, 0);
    check(a != MAP_FAILED, "a reservation");
    check(mprotect(a, 4 * MIB, RW) == 0, "some of it is used");
    fill(a, 4 * MIB, 3);
    pressure();
    void *all = mmap(a, len, RW, flags | MAP_FIXED, -1, 0);
    if (all != MAP_FAILED)
        return; /* vm.overcommit_memory is 1: nothing is refused */
    check(errno == ENOMEM, "more than the machine has");
    check(wrong(a, 4 * MIB, 3) == 0, "all is as it was");
}

/* Limits all of the address space, the pager's too: a call that is not followed. */
static void limit_address_space(const struct rlimit *limit) {
    register void *old asm("r10") = NULL;
    long result;
    asm volatile("syscall" : "=a"(result) : "0"(SYS_prlimit64), "D"(0), "S"(RLIMIT_AS), "d"(limit), "r"(old) : "rcx", "r11", "memory");
    check(!result, "prlimit");
}

/* The kernel reports the unmapping, and then refuses at the limit of the address space, or at a sealed mapping (Linux 6.10). */
static void refused_after_report(void) {
    enum { LEN = 4 * MIB, MORE = 64 * MIB };
    unsigned char *a = map(LEN + MORE), *b = map(LEN + PAGE), *from = map(LEN);
    munmap(a + LEN, MORE);
    fill(a, LEN, 3);
    fill(b, LEN, 5);
    fill(from, LEN, 7);
    int sealed = !syscall(462, b + LEN, PAGE, 0);
    pressure();
    struct rlimit before, less;
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    check(f && fscanf(f, "%ld", &pages) == 1, "the size of the address space");
    if (f) fclose(f);
    getrlimit(RLIMIT_AS, &before);
    less = before;
    less.rlim_cur = (rlim_t)pages * PAGE + MORE / 2;
    limit_address_space(&less);
    void *all = mmap(a, LEN + MORE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    int error = errno;
    limit_address_space(&before);
    check(all == MAP_FAILED && error == ENOMEM, "more than the limit");
    check(wrong(a, LEN, 3) == 0, "all is as it was");
    if (!sealed)
        return;
    check(munmap(b, LEN + PAGE) && errno == EPERM, "munmap of a sealed mapping");
    check(wrong(b, LEN, 5) == 0, "all is as it was after munmap");
    pressure();
    all = mmap(b, LEN + PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    check(all == MAP_FAILED && errno == EPERM, "mmap over a sealed mapping");
    check(wrong(b, LEN, 5) == 0, "all is as it was after mmap");
    pressure();
    all = mremap(from, LEN, LEN + PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, b);
    check(all == MAP_FAILED && errno == EPERM, "mremap onto a sealed mapping");
    check(wrong(b, LEN, 5) == 0 && wrong(from, LEN, 7) == 0, "all is as it was after mremap");
}

/* A second mapping of shared memory (an mremap of 0 bytes) right after memory that children do not get: the pager took it for
   growth of that memory. */
static void twice(void) {
    unsigned char *a = map(4 * MIB);
    unsigned char *shared = mmap(NULL, MIB, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fill(a, 3 * MIB, 3);
    pressure();
    check(!madvise(a + 2 * MIB, MIB, MADV_DONTFORK), "some is kept from children");
    check(mremap(shared, 0, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, a + 3 * MIB) == a + 3 * MIB, "it is there twice");
    fill(shared, MIB, 6);
    check(wrong(a + 3 * MIB, MIB, 6) == 0, "it is the same");
    int status = -1;
    pid_t child = fork();
    if (!child)
        _exit(wrong(a, 2 * MIB, 3) || wrong(a + 3 * MIB, MIB, 6));
    check(waitpid(child, &status, 0) == child && !status, "a child has it, too");
    check(mremap(a, 3 * MIB, 5 * MIB, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT, "what children have in part is two mappings");
    check(wrong(a, 3 * MIB, 3) == 0, "all is as it was");
}

static void onto(void) {
    unsigned char *a = map(32 * MIB), *b = map_at(NULL, 2 * MIB, PROT_READ | PROT_WRITE | PROT_EXEC, 0);
    fill(a, 4 * MIB, 3);
    fill(b, 2 * MIB, 5);
    check(mremap(a, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, b) == b, "moved onto what was left to the kernel");
    check(wrong(b, MIB, 3) == 0, "what came");
    for (long i = MIB; i < 2 * MIB; i += PAGE)
        check(b[i] == (unsigned char)((i / PAGE * 7 + 5) | 1), "what stayed beside it");
    unsigned char *c = map(MIB);
    fill(c, MIB, 9);
    check(mremap(c, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, a + 2 * MIB) == a + 2 * MIB, "moved onto what was managed");
    pressure();
    check(wrong(b, MIB, 3) == 0 && wrong(a + 2 * MIB, MIB, 9) == 0, "after pressure");
    /* the old range is empty, and can be used */
    unsigned char *d = mremap(a + 2 * MIB, MIB, MIB, MREMAP_MAYMOVE | MREMAP_DONTUNMAP);
    check(d != MAP_FAILED && wrong(d, MIB, 9) == 0 && nonzero(a + 2 * MIB, MIB) == 0, "moved, and the place kept");
    fill(a + 2 * MIB, MIB, 11);
    pressure();
    check(wrong(d, MIB, 9) == 0 && wrong(a + 2 * MIB, MIB, 11) == 0, "both after pressure");
}

/* Since Linux 6.17 one call moves several mappings with the gaps between them. */
static void several(void) {
    unsigned char *from = map(32 * MIB), *to = map(32 * MIB), before;
    fill(from, 4 * MIB, 3);
    fill(to, 4 * MIB, 5);
    check(mprotect(from + MIB, MIB, PROT_READ) == 0 && munmap(from + 2 * MIB, MIB) == 0, "three mappings and a gap");
    before = to[2 * MIB];
    unsigned char *r = mremap(from, 4 * MIB, 4 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    if (r == MAP_FAILED && errno == EFAULT && wrong(from, 2 * MIB, 3) == 0) {
        printf("one mapping at a time before Linux 6.17\n");
        return;
    }
    check(r == to && wrong(to, 2 * MIB, 3) == 0 && to[2 * MIB] == before, "they are there, and the gap was not filled");
    pressure();
    check(wrong(to, 2 * MIB, 3) == 0 && to[3 * MIB] == (unsigned char)((3 * MIB / PAGE * 7 + 3) | 1), "after pressure");
    unsigned char seen;
    check(mincore(from, PAGE, &seen) == -1 && errno == ENOMEM, "and they are gone from where they were");
}

static void joined(void) {
    unsigned char *p = map(32 * MIB);
    fill(p, 4 * MIB, 3);
    unsigned char *hole = map_at(p + 2 * MIB, 64 << 10, RW, MAP_FIXED);
    hole[0] = 1;
    check(mappings(p, 32 * MIB) == 1, "mapped anew in the middle, it is one mapping");
    p = mremap(p, 32 * MIB, 40 * MIB, MREMAP_MAYMOVE);
    check(p != MAP_FAILED, "and grows as one");
    unsigned char *a = map_at(NULL, 64 * MIB, PROT_NONE, 0);
    munmap(a, 64 * MIB);
    map_at(a, 32 * MIB, RW, MAP_FIXED_NOREPLACE);
    map_at(a + 32 * MIB, MIB, RW, MAP_FIXED_NOREPLACE);
    a[0] = a[32 * MIB] = 1;
    check(mappings(a, 33 * MIB) == 1, "two side by side are one mapping");
    check(mremap(a, 33 * MIB, 48 * MIB, MREMAP_MAYMOVE) != MAP_FAILED, "and grow as one");
    unsigned char *heap = sbrk(24 * MIB), *more = heap + 24 * MIB; /* managed */
    heap[0] = 1;
    check(sbrk(MIB) == more, "the break");
    more[0] = 1;
    check(mappings(heap, 25 * MIB) == 1, "the heap is one mapping");
    unsigned char *reader = map_at(NULL, 64 * MIB, PROT_NONE, 0);
    munmap(reader, 64 * MIB);
    map_at(reader, 32 * MIB, RW, MAP_FIXED_NOREPLACE);
    reader[0] = 1;
    map_at(reader + 32 * MIB, MIB, PROT_READ, MAP_FIXED_NOREPLACE);
    check(mprotect(reader + 32 * MIB, MIB, RW) == 0, "a neighbour that may be written to later");
    reader[32 * MIB] = 1;
    check(mappings(reader, 33 * MIB) == 1, "is one mapping then");
    unsigned char *q = map(20 * MIB);
    fill(q, 20 * MIB, 5);
    check(mprotect(q + MIB, MIB, PROT_READ) == 0 && mprotect(q + MIB, MIB, RW) == 0, "protected and back");
    check(mappings(q, 20 * MIB) == 1 && wrong(q, 20 * MIB, 5) == 0, "it is one mapping");
}

/* The number of resident pages in the range. */
static long resident(unsigned char *p, long len) {
    unsigned char seen[16 * MIB / PAGE];
    long n = 0;
    check(!mincore(p, len, seen), "it is mapped");
    for (long i = 0; i < len / PAGE; i++)
        n += seen[i] & 1;
    return n;
}

/* A mapping that was left to the kernel, next to one that is paged: the kernel refuses a call on a range with a part of each. */
static void in_part(void) {
    unsigned char *a = map_at(NULL, 40 * MIB, PROT_NONE, 0), *n = a + 32 * MIB, *r;
    munmap(a, 40 * MIB);
    map_at(a, 32 * MIB, RW, MAP_FIXED_NOREPLACE);
    fill(a, 4 * MIB, 3);
    pressure();
    map_at(n, 8 * PAGE, RW, MAP_FIXED_NOREPLACE | MAP_NORESERVE); /* so it does not join */
    fill(n, PAGE, 5);
    r = mremap(n - 4 * PAGE, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, n - 8 * PAGE);
    check(r == MAP_FAILED && errno == EINVAL, "moved onto itself");
    check(mappings(n, 8 * PAGE) == 1, "it is still one mapping");
    fill(n, 8 * PAGE, 5);
    r = mremap(n, 8 * PAGE, 16 * PAGE, MREMAP_MAYMOVE);
    check(r != MAP_FAILED && wrong(r, 8 * PAGE, 5) == 0, "and grows as one");
    n = a - 8 * PAGE;
    map_at(n, 8 * PAGE, RW, MAP_FIXED_NOREPLACE | MAP_NORESERVE);
    r = mremap(n, 5 * PAGE, 5 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, n + 4 * PAGE);
    check(r == MAP_FAILED && errno == EINVAL, "moved onto itself, and onto what is paged");
    check(mappings(n, 8 * PAGE) == 1, "it is still one mapping");
    check(wrong(a, 4 * MIB, 3) == 0, "what is paged is as it was");
}

/* Several mappings that move at once (Linux 6.17) onto memory that was left to the kernel: that memory stays where the gap comes to
   lie. MREMAP_DONTUNMAP leaves the old mappings empty. The kernel stopped such a move at a paged mapping, the call was repeated,
   and the first mappings, empty by then, were moved again. */
static void gaps(void) {
    unsigned char *from = map(4 * MIB), *to = map(4 * MIB) /* both fit */, *r;
    munmap(from + MIB, 2 * MIB);
    fill(from, MIB, 3);
    r = mremap(from, 4 * MIB, 4 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    if (r == MAP_FAILED && errno == EFAULT) {
        printf("one mapping at a time before Linux 6.17\n");
        return;
    }
    check(r == to && wrong(to, MIB, 3) == 0, "they are there");
    fill(to + MIB, 2 * MIB, 5);
    pressure();
    check(resident(to + MIB, 2 * MIB) < 2 * MIB / PAGE, "what stayed between them is paged");
    check(wrong(to, MIB, 3) == 0 && wrong(to + MIB, 2 * MIB, 5) == 0, "and all right");
    unsigned char *row = map(32 * MIB), *place = map(32 * MIB);
    int fd = open("/proc/self/exe", O_RDONLY);
    check(mmap(row, PAGE, RW, MAP_PRIVATE | MAP_FIXED, fd, 0) == row, "a file first");
    fill(row, 2 * MIB, 7);
    r = mremap(row, 2 * MIB, 2 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, place);
    check(r == place && wrong(place, 2 * MIB, 7) == 0, "the file has moved, and what follows");
    check(nonzero(row + PAGE, 2 * MIB - PAGE) == 0, "what was left behind is empty");
    r = mremap(row, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, row + PAGE);
    check(r == MAP_FAILED && errno == EINVAL, "onto itself nothing moves");
}

/* Read-only memory is read, and made writable. Without a pager the read makes no page, so the memory then becomes one mapping with
   its neighbour. The pager fills pages at the read, so there were two mappings, and mremap of both failed with EFAULT. */
static unsigned char *neighbours(long len, int locked) {
    unsigned char *p = map_at(NULL, 64 * MIB, PROT_NONE, 0);
    munmap(p, 64 * MIB);
    map_at(p + 24 * MIB, 24 * MIB, RW, MAP_FIXED_NOREPLACE); /* more than fits: paged */
    p += 24 * MIB - len;
    fill(p + len, 2 * len, 3);
    for (int i = 0; i < 2; i++) { /* the second one between the first and the paged memory */
        unsigned char *q = i ? p + len / 2 : p;
        map_at(q, len / 2, PROT_READ, MAP_FIXED_NOREPLACE);
        check(nonzero(q, len / 2) == 0, "it is empty");
        check(!mprotect(q, len / 2, RW), "it may be written to");
    }
    fill(p, 3 * len, 3);
    munmap(p + 3 * len, 24 * MIB - 2 * len);
    if (locked) check(!mlock(p, 3 * len), "it is locked");
    pressure();
    return p;
}

static void as_one(void) {
    enum { LEN = 64 * PAGE, ALL = 3 * LEN, MORE = ALL + LEN };
    unsigned char *p, *r, *to;
    for (int locked = 0; locked < 2; locked++) {
        p = neighbours(LEN, locked);
        check(mremap(p, ALL, MORE, 0) == p && wrong(p, ALL, 3) == 0 && nonzero(p + ALL, LEN) == 0, "it grows where it is");
        p = neighbours(LEN, locked);
        map_at(p + ALL, PAGE, PROT_NONE, MAP_FIXED_NOREPLACE);
        check(mremap(p, ALL, MORE, 0) == MAP_FAILED && errno == ENOMEM && wrong(p, ALL, 3) == 0, "there is no room");
        r = mremap(p, ALL, MORE, MREMAP_MAYMOVE);
        check(r != MAP_FAILED && r != p && wrong(r, ALL, 3) == 0 && nonzero(r + ALL, LEN) == 0, "it moves and grows");
        check(mappings(p, ALL) == 0, "it has gone from where it was");
        pressure();
        check(wrong(r, ALL, 3) == 0, "and is still right");
        to = map(MORE);
        check(mremap(r, ALL, MORE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to && wrong(to, ALL, 3) == 0, "it moves to a place, and grows");
        check(nonzero(to + ALL, LEN) == 0, "what is new is empty");
        p = neighbours(LEN, locked);
        check(mremap(p, ALL, 2 * LEN, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to && wrong(to, 2 * LEN, 3) == 0, "it moves, and becomes less");
        check(mappings(p, ALL) == 0, "nothing is left");
        munlock(to, MORE);
    }
    p = neighbours(LEN, 0);
    r = mremap(p, ALL, ALL, MREMAP_MAYMOVE | MREMAP_DONTUNMAP);
    check(r != MAP_FAILED && wrong(r, ALL, 3) == 0 && nonzero(p, ALL) == 0, "it moves, and the place is kept");
    p = neighbours(LEN, 0);
    if (madvise(p, LEN, GUARD_INSTALL) == 0) {
        check(madvise(p, LEN, GUARD_REMOVE) == 0, "a part has had guards, which sets it apart from nothing");
        r = mremap(p, ALL, MORE, MREMAP_MAYMOVE);
        check(r != MAP_FAILED && nonzero(r, LEN) == 0, "it moves as one, and is empty where the guards were");
        fill(r, LEN, 3);
        check(wrong(r, ALL, 3) == 0, "the rest is right");
    }
    p = map(2 * LEN); /* both halves become read-only, one after a read: without a pager neither has the flag VM_ACCOUNT then */
    check(!mprotect(p + LEN, LEN, PROT_READ) && nonzero(p, LEN) == 0 && !mprotect(p, LEN, PROT_READ), "it may only be read");
    to = mremap(p, 2 * LEN, ALL, MREMAP_MAYMOVE);
    check(to != MAP_FAILED && nonzero(to, ALL) == 0, "what has been read is no other mapping");
    p = neighbours(LEN, 0);
    check(!madvise(p + LEN, LEN, MADV_DONTDUMP), "a part is not like the others");
    check(mremap(p, ALL, MORE, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT && wrong(p, ALL, 3) == 0, "so they are several");
    pressure();
    check(wrong(r, ALL, 3) == 0 && wrong(p, ALL, 3) == 0, "all is right in the end");
}

static sigjmp_buf back;

static void on_segv(int signal) {
    (void)signal;
    siglongjmp(back, 1);
}

static int faults(volatile unsigned char *p, int pages) {
    volatile int n = 0;
    for (volatile int i = 0; i < pages; i++)
        if (sigsetjmp(back, 1))
            n++;
        else
            (void)p[(long)i * PAGE];
    return n;
}

static void guards(void) {
    signal(SIGSEGV, on_segv);
    unsigned char *a = map(32 * MIB);
    fill(a, 4 * MIB, 3);
    pressure();
    if (madvise(a, MIB, GUARD_INSTALL) != 0) {
        printf("no guard pages before Linux 6.13\n");
        return;
    }
    check(faults(a, 256) == 256, "what was out is guarded");
    check(madvise(a, MIB, GUARD_REMOVE) == 0 && nonzero(a, MIB) == 0, "it is empty afterwards");
    fill(a, MIB, 3);
    pressure();
    check(wrong(a, 4 * MIB, 3) == 0, "and like any other memory");
    pressure();
    check(madvise(a + 200 * PAGE, 4 * PAGE, GUARD_INSTALL) == 0, "guards in the middle");
    check(wrong(a, 200 * PAGE, 3) == 0 && faults(a + 200 * PAGE, 4) == 4, "readahead leaves guards alone");
    unsigned char *stack = map(32 * MIB), *small = map(64 * PAGE);
    check(madvise(stack, 8 * PAGE, GUARD_INSTALL) == 0 && madvise(small, 8 * PAGE, GUARD_INSTALL) == 0, "guards at the end");
    for (long i = 255; i >= 8; i--)
        stack[i * PAGE] = 1;
    check(faults(stack, 8) == 8, "a stack grows down to its guards");
    fill(small + 8 * PAGE, 56 * PAGE, 5);
    pressure(); /* adopted */
    check(faults(small, 8) == 8 && wrong(small + 8 * PAGE, 56 * PAGE, 5) == 0, "guards of what was left to the kernel");
    unsigned char *moved = mremap(stack, 16 * PAGE, 16 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, map(16 * PAGE));
    check(faults(moved, 16) == 8, "guards move along");
    int status = 1;
    pid_t child = fork();
    if (child == 0)
        _exit(faults(a + 200 * PAGE, 4) != 4 || faults(small, 9) != 8 || wrong(a, 200 * PAGE, 3) != 0);
    waitpid(child, &status, 0);
    check(status == 0, "a forked child has them too");
}

static void child_finds(unsigned char *p, long len, int zeroes, const char *what) {
    int status = 1;
    pid_t child = fork();
    if (child == 0)
        _exit(zeroes ? nonzero(p, len) != 0 : wrong(p, len, 3) != 0);
    waitpid(child, &status, 0);
    check(status == 0, what);
}

static void secrets(void) {
    unsigned char *a = map(MIB), *b = map(MIB), *c = map(MIB);
    check(madvise(a, MIB, MADV_WIPEONFORK) == 0 && madvise(b, MIB, MADV_WIPEONFORK) == 0, "wiped on fork");
    fill(a, MIB, 3);
    a = mremap(a, MIB, 2 * MIB, MREMAP_MAYMOVE);
    fill(a, 2 * MIB, 3);
    fill(b, MIB, 3);
    check(mremap(b, MIB, 1L << 46, 0) == MAP_FAILED, "a refused move");
    check(madvise(c, MIB, MADV_WIPEONFORK) == 0 && madvise(c, MIB / 2, MADV_KEEPONFORK) == 0, "half of it is kept");
    fill(c, MIB, 3);
    pressure();
    child_finds(a, 2 * MIB, 1, "moved and grown, it is wiped");
    child_finds(b, MIB, 1, "it is wiped after a refused call");
    child_finds(c + MIB / 2, MIB / 2, 1, "the other half is wiped");
    child_finds(c, MIB / 2, 0, "what is kept is there");
    /* madvise stops at the first mapping that cannot take the advice; the mappings before it have taken it */
    unsigned char *row = map(3 * MIB);
    check(mmap(row + MIB, MIB, RW, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == row + MIB, "shared in the middle");
    check(madvise(row, 3 * MIB, MADV_WIPEONFORK) == -1 && errno == EINVAL, "it cannot be wiped");
    fill(row, MIB, 3);
    fill(row + 2 * MIB, MIB, 3);
    pressure();
    child_finds(row, MIB, 1, "what lies before is wiped");
    child_finds(row + 2 * MIB, MIB, 0, "what lies behind is not");
    a = mremap(a, 2 * MIB, 2 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, map(2 * MIB)); /* managed by now */
    pressure();
    child_finds(a, 2 * MIB, 1, "moved once more, it is wiped");
    check(wrong(a, 2 * MIB, 3) == 0 && wrong(b, MIB, 3) == 0 && wrong(c, MIB, 3) == 0, "nothing is wiped here");
}

static int self;

static long advise(unsigned char *p, long len, int advice) {
    struct iovec half[2] = {{p, len / 2}, {p + len / 2, len / 2}};
    return syscall(SYS_process_madvise, self, half, 2, advice, 0);
}

/* process_madvise on the program's own memory does what madvise does. */
static void by_process(void) {
    self = syscall(SYS_pidfd_open, getpid(), 0);
    signal(SIGSEGV, on_segv);
    unsigned char *a = map(4 * MIB), *b = map(48 * MIB);
    fill(a, 4 * MIB, 3);
    pressure();
    if (advise(a, MIB, GUARD_INSTALL) < 0) {
        printf("no process_madvise of this kind before Linux 6.13\n");
        return;
    }
    check(faults(a, 256) == 256, "what was out is guarded");
    check(advise(a, MIB, GUARD_REMOVE) == MIB && nonzero(a, MIB) == 0, "it is empty afterwards");
    check(advise(a + MIB, MIB, MADV_WIPEONFORK) == MIB, "wiped on fork");
    check(wrong(a + MIB, 3 * MIB, 3 + MIB / PAGE * 7) == 0, "the rest is there");
    pressure();
    child_finds(a + MIB, MIB, 1, "it is wiped");
    for (int round = 0; round < 2; round++)
        for (long at = 0; at < 48 * MIB; at += 2 * MIB) {
            check(advise(b + at, 2 * MIB, MADV_DONTNEED) == 2 * MIB && nonzero(b + at, 2 * MIB) == 0, "discarded");
            fill(b + at, 2 * MIB, round);
        }
    check(wrong(b + 46 * MIB, 2 * MIB, 1) == 0, "what came after a discard");
    munmap(b + MIB, MIB);
    check(advise(b, 2 * MIB, MADV_DONTNEED) == MIB && nonzero(b, MIB) == 0, "it ends at a hole");
    check(advise(b + MIB, MIB, MADV_DONTNEED) == -1 && errno == ENOMEM, "a hole");
    check(advise(b, MIB + 2, MADV_FREE) == MIB / 2 + 1, "it ends at half a page");
    check(syscall(SYS_process_madvise, self, 8L, 1L, MADV_FREE, 0) == -1 && errno == EFAULT, "ranges that are nowhere");
    check(syscall(SYS_process_madvise, -1, 0L, 0L, MADV_FREE, 0) == -1 && errno == EBADF, "no process");
}

static char stack_of_child[65536];

static int churns(void *unused) {
    (void)unused;
    for (;;) {
        unsigned char *p = map(24 * MIB);
        for (long i = 0; i < 24 * MIB; i += PAGE)
            p[i] = 0xEE;
        munmap(p, 24 * MIB);
    }
    return 0;
}

/* A process that shares the memory is killed within munmap: its unmapping is never reported. */
static void killed(void) {
    for (int i = 0; i < 12; i++) {
        pid_t child = clone(churns, stack_of_child + sizeof stack_of_child - 64, CLONE_VM | SIGCHLD, NULL);
        struct timespec t = {0, 20000000 + i * 1000000};
        nanosleep(&t, NULL);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        double start = now();
        unsigned char *p = map(24 * MIB);
        check(now() - start < 3, "a new mapping is made at once");
        check(nonzero(p, 24 * MIB) == 0, "and is empty");
        munmap(p, 24 * MIB);
    }
}

static void droppable(void) {
    unsigned char *p = mmap(NULL, 4 * MIB, RW, MAP_ANONYMOUS | DROPPABLE, -1, 0), seen[1024];
    if (p == MAP_FAILED) {
        printf("no MAP_DROPPABLE before Linux 6.11\n");
        return;
    }
    fill(p, 4 * MIB, 3);
    pressure();
    long there = 0;
    for (int i = 0; i < 100 && (i == 0 || there == 1024); i++) {
        madvise(p, 4 * MIB, MADV_PAGEOUT);
        mincore(p, 4 * MIB, seen);
        there = 0;
        for (int k = 0; k < 1024; k++)
            there += seen[k] & 1;
    }
    check(there < 1024, "the kernel drops what is droppable");
}

/* Makes the kernel reclaim what it can, the pager's memory included. */
static void reclaim(void) {
    FILE *f = fopen("/proc/self/maps", "r");
    char line[512], access[5];
    unsigned long from, to;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "%lx-%lx %4s", &from, &to, access) == 3 && access[1] == 'w')
            madvise((void *)from, to - from, MADV_PAGEOUT);
    if (f)
        fclose(f);
}

/* Memory that was given up by MADV_FREE, which the kernel drops when it needs memory. */
static void freed(void) {
    enum { LEN = 24 * MIB, PIECE = 16 * PAGE };
    unsigned char *p = map(LEN + PIECE), *last = p + LEN - PIECE;
    munmap(p + LEN, PIECE);
    fill(p, LEN, 7);
    for (unsigned round = 0, seed = 1; round < 60; round++) {
        fill(last, PIECE, 7 + (last - p) / PAGE * 7);
        /* the call goes on over the hole, and says that there is one */
        check(madvise(last, 2 * PIECE, MADV_FREE) && errno == ENOMEM, "MADV_FREE over a hole");
        for (int k = 0; k < 40; k++) {
            long at = (seed = seed * 1664525u + 1013904223u) / 256 % (LEN / PIECE) * PIECE;
            fill(p + at, PIECE, 7 + at / PAGE * 7);
            if (k % 2 == 0) {
                check(madvise(p + at, PIECE, MADV_FREE) == 0, "MADV_FREE");
                p[at + PAGE] = 9;
                check(p[at + PAGE] == 9, "what is written after MADV_FREE stays");
            }
        }
        reclaim();
        for (long i = 0; i < LEN; i += PAGE) {
            int old = ((i / PAGE * 7 + 7) & 255) | 1;
            check(p[i] == 0 || p[i] == old || p[i] == 9, "freed pages are zeroes or what they were");
        }
    }
}

/* Locked memory that grows as it moves: Linux faults in the new pages before it reports the move. */
static void locked(void) {
    enum { OLD = 16 * PAGE, NEW = 60 * PAGE };
    unsigned char in[60], *moved[4];
    alarm(250);
    for (int way = 0; way < 4; way++) {
        /* 0: in place, 1: to an address that the kernel chooses, 2: onto a hole, 3: onto memory in use */
        unsigned char *area = map_at(NULL, MIB, PROT_NONE, 0), *to = map(NEW), *p = area + PAGE;
        mprotect(p, way ? OLD : NEW, RW);
        fill(p, OLD, way);
        fill(to, NEW, 77);
        check(!mlock(p, OLD), "it is locked");
        if (!way) munmap(p + OLD, NEW - OLD);
        if (way == 2) munmap(to, NEW);
        unsigned char *r = mremap(p, OLD, NEW, way ? way > 1 ? MREMAP_MAYMOVE | MREMAP_FIXED : MREMAP_MAYMOVE : 0, to);
        check(way ? r != MAP_FAILED && r != p : r == p, "it grows");
        check(way < 2 || r == to, "it moves there");
        check(!mincore(r, NEW, in) && !memchr(in, 0, sizeof in), "all of it is in memory");
        check(!wrong(r, OLD, way) && !nonzero(r + OLD, NEW - OLD), "what is new is empty, and nothing else");
        fill(r, NEW, 5);
        check(mappings(r, NEW) == 1, "it is one mapping");
        munlock(moved[way] = r, NEW);
    }
    pressure();
    for (int way = 0; way < 4; way++) check(!wrong(moved[way], NEW, 5), "it is as it was written");
}

static unsigned char *here, *there;
static volatile int moving = 1;
enum { MOVED = 64 * PAGE };

static void *moves(void *unused) {
    while (moving) {
        check(mremap(here, MOVED, MOVED, MREMAP_MAYMOVE | MREMAP_FIXED, there) == there, "there");
        check(mremap(there, MOVED, MOVED, MREMAP_MAYMOVE | MREMAP_FIXED, here) == here, "and back");
    }
    return unused;
}

/* A thread moves memory to and fro while another thread forks: in the child the memory is complete, in one of the two places. */
static void forks_alongside(void) {
    pthread_t thread;
    int lost = 0, nowhere = 0;
    here = map_at((void *)0x200000000000, MOVED, RW, MAP_FIXED_NOREPLACE); /* far from all other mappings */
    there = here + 64 * MIB;
    fill(here, MOVED, 3);
    pressure();
    pthread_create(&thread, NULL, moves, NULL);
    for (int i = 0; i < 100; i++) {
        int status = -1;
        pid_t child = fork();
        if (!child) {
            unsigned char seen[MOVED / PAGE];
            int h = !mincore(here, MOVED, seen), t = !mincore(there, MOVED, seen);
            _exit(h == t ? 2 : wrong(h ? here : there, MOVED, 3) != 0);
        }
        waitpid(child, &status, 0);
        lost += status == 1 << 8;
        nowhere += status == 2 << 8;
        check(status == 0 || status == 1 << 8 || status == 2 << 8, "a child ends");
    }
    moving = 0;
    pthread_join(thread, NULL);
    printf("%d children with other bytes, %d with none or two\n", lost, nowhere);
    check(!lost && !nowhere, "all children have what their parent had");
    check(wrong(here, MOVED, 3) == 0, "and their parent");
}

/* Each eight pages are two mappings or three. They are used in order, in bursts, and in groups in any order, so that the pager
   reads many pages for the touch of one. */
static void divided(void) {
    enum { GROUP = 8 * PAGE, COUNT = 1024 };
    unsigned char *p = map(COUNT * GROUP);
    fill(p, COUNT * GROUP, 5);
    for (long i = 0; i < COUNT; i++)
        check(mprotect(p + i * GROUP + 3 * PAGE, 2 * PAGE, PROT_READ) == 0, "a group is divided");
    check(wrong(p, COUNT * GROUP, 5) == 0, "in order");
    for (long round = 0; round < 3; round++)
        for (long i = 0; i < COUNT; i++)
            if (i % 8 < 2) check(wrong(p + i * GROUP, GROUP, 5 + i * 56) == 0, "in bursts");
    for (long round = 0; round < 3; round++)
        for (long i = 0, at = 0; i < COUNT; i++, at = (at + 389) % COUNT)
            check(wrong(p + at * GROUP, GROUP, 5 + at * 56) == 0, "in groups");
}

/* A discard of two mappings at once. The memory is used again, and must leave as readily as before. */
static void halves(void) {
    unsigned char *p = map(64 * MIB);
    check(madvise(p, 32 * MIB, MADV_DONTDUMP) == 0, "two mappings");
    for (int round = 0; round < 4; round++) {
        fill(p, 64 * MIB, round);
        check(wrong(p, 64 * MIB, round) == 0, "their content");
        check(madvise(p, 64 * MIB, round % 2 ? MADV_FREE : MADV_DONTNEED) == 0, "a discard");
    }
}

/* The process has as many mappings as the kernel allows when its memory outgrows the budget. */
static void crowded(void) {
    enum { MANY = 320 * MIB, OLD = 12 * MIB, NEW = 64 * MIB };
    unsigned char *many = mmap(NULL, MANY, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0), *old = map(OLD), there[OLD / PAGE];
    fill(old, OLD, 1);
    long at = 0, n = 0;
    while (at < MANY && mprotect(many + at, PAGE, PROT_READ) == 0) at += 2 * PAGE;
    check(at < MANY && errno == ENOMEM, "there is a limit (vm.max_map_count)");
    unsigned char *new = map_at(NULL, NEW, RW, MAP_NORESERVE); /* one more: a mapping of its own */
    for (int round = 1; round < 4; round++) {
        fill(new, NEW, round);
        check(wrong(new, NEW, round) == 0, "the new content");
    }
    check(mincore(old, OLD, there) == 0, "mincore");
    for (long i = 0; i < OLD / PAGE; i++) n += there[i] & 1;
    check(n < OLD / PAGE / 2, "the old pages have left");
    check(wrong(old, OLD, 1) == 0, "the old content");
}

static unsigned char *volatile about;
static volatile long looks;

static void look(int signal) {
    (void)signal;
    unsigned char *p = about;
    if (p) looks += 1 + 0 * (p[0] + p[MIB / 16 - PAGE]);
}

/* Signals come while memory is being discarded, and their handler reads it. */
static void interrupted(void) {
    enum { LEN = 48 * MIB, PART = MIB / 16 };
    static const int advices[] = {MADV_DONTNEED, MADV_FREE};
    unsigned char *p = map(LEN);
    struct sigaction action = {.sa_handler = look};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    timer_t timer;
    check(sigaction(SIGALRM, &action, NULL) == 0 && timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "a timer");
    for (int way = 0; way < 2; way++) {
        fill(p, LEN, way);
        for (long at = 0; at < LEN; at += PART) {
            struct itimerspec soon = {.it_value.tv_nsec = 500 + rand() % 12000}, never = {0};
            about = p + at;
            timer_settime(timer, 0, &soon, NULL);
            check(madvise(p + at, PART, advices[way]) == 0, "a discard");
            about = NULL;
            timer_settime(timer, 0, &never, NULL);
        }
        long n = 0;
        for (long at = 0; at < LEN; at += PAGE) n += p[at] != 0;
        check(n == 0, "what is discarded is zero");
    }
    check(looks > 100, "signals came");
}

int main(int argc, char **argv) {
    static const struct { const char *name; void (*run)(void); } cases[] = {
        {"refused", refused}, {"refused-late", refused_late}, {"refused-after-report", refused_after_report}, {"twice", twice},
        {"onto", onto}, {"several", several}, {"joined", joined}, {"guards", guards},
        {"secrets", secrets}, {"killed", killed}, {"in-part", in_part}, {"gaps", gaps}, {"as-one", as_one}, {"forks-alongside", forks_alongside}, {"droppable", droppable}, {"locked", locked},
        {"divided", divided}, {"freed", freed}, {"halves", halves}, {"crowded", crowded}, {"interrupted", interrupted},
        {"by-process", by_process},
    };
    setvbuf(stdout, NULL, _IONBF, 0);
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        if (argc == 2 && strcmp(argv[1], cases[i].name) == 0) {
            cases[i].run();
            printf(bad ? "wrong\n" : "all right\n");
            return bad;
        }
    return 2;
}

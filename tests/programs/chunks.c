// Memory in many small pieces, as in runtimes with a heap of their own.
//
//   chunks anywhere N    N pieces of 256 KiB, each at a random address of 46 bits (V8 does so); half of them are replaced,
//                        then all are read
//   chunks pages N       N single pages, the same way
//   chunks holes N       one mapping with N holes of a page each: 2 N pages and some more
//
// Prints "right", or what is wrong.
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096l

static uint64_t seed = 88172645463325252u;

static uint64_t next(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}

static unsigned char *map(void *hint, long len) {
    unsigned char *p = mmap(hint, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        printf("mmap: %s\n", strerror(errno));
        exit(1);
    }
    return p;
}

static unsigned char *map_anywhere(long len) { return map((void *)(next() & 0x3FFFFFFC0000u), len); }

// The content of the page at `p`: never zero, and different for each page.
static uint64_t content(const unsigned char *p) { return (uintptr_t)p * 0x9E3779B97F4A7C15u | 1; }

static void fill(unsigned char *p, long len) {
    for (long at = 0; at < len; at += PAGE)
        for (long i = 0; i < PAGE; i += 512) *(uint64_t *)(p + at + i) = content(p + at);
}

static long wrong(const unsigned char *p, long len) {
    long n = 0;
    for (long at = 0; at < len; at += PAGE)
        n += *(const uint64_t *)(p + at) != content(p + at) || *(const uint64_t *)(p + at + PAGE - 512) != content(p + at);
    return n;
}

static long anywhere(long n, long len) {
    unsigned char **at = malloc(n * sizeof *at);
    for (long i = 0; i < n; i++) fill(at[i] = map_anywhere(len), len);
    for (long i = 0; i < n; i += 2) {
        munmap(at[i], len);
        fill(at[i] = map_anywhere(len), len);
    }
    long bad = 0;
    for (long i = 0; i < n; i++) bad += wrong(at[i], len);
    return bad;
}

static long holes(long n) {
    long len = (2 * n + 1000) * PAGE, bad = 0;
    unsigned char *p = map(0, len);
    fill(p, len);
    unsigned char *other = map(0, 64l << 20);
    fill(other, 64l << 20); // the pages of `p` are paged out
    munmap(other, 64l << 20);
    for (long i = 0; i < n; i++)
        if (munmap(p + (2 * i + 1) * PAGE, PAGE)) {
            printf("hole %ld: %s\n", i, strerror(errno));
            exit(1);
        }
    for (long i = 0; i < len / PAGE; i++)
        if (i >= 2 * n || i % 2 == 0) bad += wrong(p + i * PAGE, PAGE);
    // the same range once more, without holes
    munmap(p, len);
    p = map(p, len);
    for (long i = 0; i < len / PAGE; i++) bad += p[i * PAGE] != 0;
    return bad;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    long n = atol(argv[2]);
    long bad = !strcmp(argv[1], "holes") ? holes(n) : anywhere(n, strcmp(argv[1], "pages") ? 256 << 10 : PAGE);
    if (bad) printf("%ld pages have lost their content\n", bad);
    else puts("right");
    return bad != 0;
}

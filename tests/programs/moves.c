/* Moves its memory from address to address while parts of it are being written to swap, for some seconds. Prints how many
   of its pages are resident, and "all bytes right"; a wrong byte is exit status 3.
   usage: moves MIB SECONDS */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGE = 4096 };

static void *map(long bytes) { return mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }

static int right(unsigned char *p, long i) {
    long mark;
    memcpy(&mark, p + i * PAGE + 1000, sizeof mark);
    if (mark == i && p[i * PAGE] == (unsigned char)(i * 31 + 1)) return 1;
    printf("WRONG page %ld\n", i);
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    long pages = atol(argv[1]) * 256, seconds = atol(argv[2]);
    unsigned char *p = map(pages * PAGE);
    if (p == MAP_FAILED) return 2;
    for (long i = 0; i < pages; i++) {
        memset(p + i * PAGE, i * 31 + 1, PAGE);
        memcpy(p + i * PAGE + 1000, &i, sizeof i);
    }
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    long at = 0;
    do {
        unsigned char *to = map(pages * PAGE);
        if (to == MAP_FAILED) return 2;
        if (mremap(p, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to) return 2;
        p = to;
        for (int n = 0; n < 16; n++) {
            at = (at + 7) % pages;
            if (!right(p, at)) return 3;
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - start.tv_sec < seconds);
    for (long i = 0; i < pages; i++) {
        if (!right(p, i)) return 3;
    }
    long resident = 0;
    static unsigned char seen[1 << 18];
    if (pages > (long)sizeof seen || mincore(p, pages * PAGE, seen)) return 2;
    for (long i = 0; i < pages; i++) resident += seen[i] & 1;
    printf("resident %ld\n", resident);
    puts("all bytes right");
    return 0;
}

// Moves memory by mremap(MREMAP_FIXED) onto memory that is about to be evicted, and checks that it has arrived complete. Argument:
// seconds. With "read-only" all memory is read-only during the moves.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
enum { PAGE = 4096, EACH = 32, LEN = EACH * PAGE, REGIONS = 140 };

static char *base;
static int read_only;
static uint64_t stamps[REGIONS], last;

static char *at(int r) { return base + (size_t)r * LEN; }

static void must(int good, const char *what) {
    if (good) return;
    perror(what);
    exit(2);
}

static void map(int r) {
    must(mmap(at(r), LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at(r), "mmap");
}

static void fill(int r) {
    must(!mprotect(at(r), LEN, PROT_READ | PROT_WRITE), "mprotect");
    stamps[r] = ++last;
    for (int i = 0; i < EACH; i++) *(uint64_t *)(at(r) + i * PAGE) = last * EACH + i;
    if (read_only) must(!mprotect(at(r), LEN, PROT_READ), "mprotect");
}

static int wrong(int r) {
    int n = 0;
    for (int i = 0; i < EACH; i++) n += *(volatile uint64_t *)(at(r) + i * PAGE) != stamps[r] * EACH + i;
    return n;
}

static int resident(int r) {
    unsigned char in[EACH];
    must(!mincore(at(r), LEN, in), "mincore");
    return in[EACH / 2] & 1;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    double end = now() + (argc > 1 ? atof(argv[1]) : 1);
    read_only = argc > 2 && !strcmp(argv[2], "read-only");
    base = mmap(0, (size_t)REGIONS * LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(base != MAP_FAILED, "mmap");
    // in the order in which they became resident
    int queue[REGIONS], moves = 0, lost = 0;
    for (int r = 0; r < REGIONS; r++) fill(queue[r] = r);
    for (int oldest = 0; now() < end; moves++) {
        int r = queue[0], left = moves & 1;
        memmove(queue, queue + 1, sizeof queue - sizeof *queue);
        map(r); // evicted long ago
        fill(r);
        for (oldest = oldest > 8 ? oldest - 8 : 0; oldest < REGIONS - 1 && !resident(queue[oldest]); oldest++) {}
        int to = queue[oldest];
        must(mremap(at(r), LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED | (left ? MREMAP_DONTUNMAP : 0), at(to)) == at(to), "mremap");
        stamps[to] = stamps[r];
        lost += wrong(to);
        if (!left) map(r);
        fill(r);
        memmove(queue + oldest, queue + oldest + 1, (REGIONS - 2 - oldest) * sizeof *queue);
        queue[REGIONS - 2] = to;
        queue[REGIONS - 1] = r;
    }
    fprintf(stderr, "%d moves\n", moves);
    printf("%d pages lost\n", lost);
    return lost != 0;
}

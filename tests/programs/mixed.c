/* Pages of several kinds, several times as many as the budget has: one word repeated, text, numbers, noise. Threads touch, change,
   move and discard them at random; children check and change them. Every byte read is checked.
   usage: mixed MiB KINDS [FILE]    KINDS: letters of "stnr", taken in turns. Prints one line and exits 0; wrong bytes are exit
   status 3.
   With FILE it goes on until a file of that name is there. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, THREADS = 2 };
static long pages;
static const char *kinds;

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

static void fill(unsigned char *p, long page, unsigned version) {
    static const char *words[8] = {"page ", "memory ", "swap ", "compressed ", "pool ", "the ", "coldest ", "device "};
    uint64_t x = mix(page * 1000003 + version);
    switch (kinds[page % strlen(kinds)]) {
    case 's':
        for (int i = 0; i < PAGE; i += 8) memcpy(p + i, &x, 8);
        break;
    case 't':
        for (int i = 0; i < PAGE;) {
            const char *w = words[(x = mix(x + 1)) % 8];
            for (; *w && i < PAGE; w++) p[i++] = *w;
        }
        memcpy(p, &page, 8);
        break;
    case 'n':
        for (int i = 0; i < PAGE; i += 8) {
            uint64_t n = page * 512 + i / 8 + (mix(x + i) & 0xfff) + version;
            memcpy(p + i, &n, 8);
        }
        break;
    default:
        for (int i = 0; i < PAGE; i += 8) x = mix(x + 0x9e3779b97f4a7c15), memcpy(p + i, &x, 8);
    }
}

static void check(unsigned char *p, long page, unsigned version, const char *where) {
    unsigned char want[PAGE];
    fill(want, page, version);
    if (memcmp(p, want, PAGE)) {
        printf("WRONG %s page %ld version %u\n", where, page, version);
        fflush(stdout);
        _exit(3);
    }
}

struct work { unsigned char *p; unsigned *version; long first, count, id; };

static void *touch(void *arg) {
    struct work *w = arg;
    uint64_t x = w->id + 1;
    for (int r = 0; r < w->count * 2; r++) {
        x = mix(x + 1);
        long i = x % w->count;
        unsigned char *p = w->p + i * PAGE;
        check(p, w->first + i, w->version[i], "random");
        if (x >> 62 == 0) fill(p, w->first + i, ++w->version[i]);
    }
    return 0;
}

static int child(unsigned char *p, unsigned *version, int deeper) {
    for (long i = 0; i < pages; i++) check(p + i * PAGE, i, version[i], "child");
    for (long i = 0; i < pages; i += 3) fill(p + i * PAGE, i, version[i] += 100);
    if (deeper) {
        pid_t k = fork();
        if (k == 0) _exit(child(p, version, 0));
        int status;
        waitpid(k, &status, 0);
        if (status) return 4;
    }
    for (long i = 0; i < pages; i++) check(p + i * PAGE, i, version[i], "child again");
    return 0;
}

static int round_of_work(int forks) {
    unsigned char *p = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned *version = calloc(pages, sizeof *version);
    for (long i = 0; i < pages; i++) fill(p + i * PAGE, i, 0);
    pthread_t t[THREADS];
    struct work w[THREADS];
    for (long id = 0; id < THREADS; id++) {
        long first = pages / THREADS * id;
        w[id] = (struct work){p + first * PAGE, version + first, first, pages / THREADS, id};
        pthread_create(&t[id], 0, touch, &w[id]);
    }
    for (int id = 0; id < THREADS; id++) pthread_join(t[id], 0);
    for (int g = 0; g < forks; g++) {
        pid_t k = fork();
        if (k == 0) _exit(child(p, version, g == 0));
        for (long i = 0; i < pages; i++) check(p + i * PAGE, i, version[i], "parent beside child");
        for (long i = 1; i < pages; i += 5) fill(p + i * PAGE, i, ++version[i]);
        int status;
        waitpid(k, &status, 0);
        if (status) return 4;
    }
    p = mremap(p, pages * PAGE, (pages + 16) * PAGE, MREMAP_MAYMOVE);
    unsigned char *to = mmap(0, (pages + 16) * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    p = mremap(p, (pages + 16) * PAGE, (pages + 16) * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    madvise(p, pages / 4 * PAGE, MADV_DONTNEED);
    for (long i = pages / 4; i < pages; i++) check(p + i * PAGE, i, version[i], "moved");
    for (long i = 0; i < pages / 4; i++)
        if (p[i * PAGE] || p[i * PAGE + 4095]) return 3;
    munmap(p, (pages + 16) * PAGE);
    free(version);
    return 0;
}

int main(int argc, char **argv) {
    pages = atol(argv[1]) << 8;
    kinds = argv[2];
    int status;
    do status = round_of_work(argc > 3 ? 0 : 2);
    while (!status && argc > 3 && access(argv[3], F_OK));
    if (!status) puts("all bytes right");
    return status;
}

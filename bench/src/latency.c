// How long a thread's faults take, alone and while another thread changes the address space: bench/latency.py runs it.
//
// latency CASE WORKING OTHER SECONDS: bytes of the working set, and of the memory that the other thread handles. Prints "alone" and
// "during" before each phase and waits for a line, then prints the results as JSON. Each touch of one page is timed. A touch of
// less than 2 us was no fault.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { NEITHER, ALONE, DURING, END, PARTS = 16, BUCKETS = 40 * PARTS, PAGE = 4096, LEAST_NS = 2000, PIECE = 64 * PAGE };

struct phase {
    unsigned long counts[BUCKETS], faults, longest, touches;
};

static struct phase phases[END];
static atomic_int phase;
static volatile char *working;
static size_t pages;

static unsigned long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ul + t.tv_nsec;
}

static void record(struct phase *p, unsigned long ns) {
    int log = 63 - __builtin_clzl(ns), at = (log - 4) * PARTS + (ns >> (log - 4)) % PARTS;
    p->counts[at < BUCKETS ? at : BUCKETS - 1]++;
    p->faults++;
    if (ns > p->longest) p->longest = ns;
}

// The upper end of the bucket that has this quantile, in nanoseconds.
static unsigned long quantile(const struct phase *p, unsigned long thousandths) {
    unsigned long seen = 0, wanted = (p->faults * thousandths + 999) / 1000;
    for (int at = 0; at < BUCKETS; at++)
        if ((seen += p->counts[at]) >= wanted && seen) {
            unsigned long end = (at % PARTS + PARTS + 1ul) << at / PARTS;
            return end < p->longest ? end : p->longest;
        }
    return 0;
}

static void *touch(void *unused) {
    for (unsigned long seed = 1;;) {
        int in = atomic_load(&phase);
        if (in == END) return unused;
        if (in == NEITHER) {
            usleep(1000);
            continue;
        }
        seed = seed * 6364136223846793005ul + 1442695040888963407ul;
        volatile char *at = working + (seed >> 33) % pages * PAGE;
        unsigned long began = now();
        *at += 1;
        unsigned long ns = now() - began;
        // a fault belongs to the phase in which it began
        phases[in].touches++;
        if (ns >= LEAST_NS) record(&phases[in], ns);
    }
}

static char *map(size_t bytes, int protection) {
    char *at = mmap(0, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) exit(2);
    madvise(at, bytes, MADV_NOHUGEPAGE);
    return at;
}

static char *filled(size_t bytes) {
    char *at = map(bytes, PROT_READ | PROT_WRITE);
    for (size_t i = 0; i < bytes; i += PAGE) at[i] = 1 + i / PAGE % 255;
    return at;
}

static void say(const char *what) {
    char line[16];
    puts(what);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) exit(3);
}

int main(int argc, char **argv) {
    if (argc != 5) return 1;
    const char *what = argv[1];
    size_t bytes = strtoul(argv[3], 0, 10);
    unsigned long seconds = strtoul(argv[4], 0, 10);
    pages = strtoul(argv[2], 0, 10) / PAGE;
    int fills = !strcmp(what, "fill"), forks = !strcmp(what, "fork"), moves = !strcmp(what, "mremap");
    char *other = fills || forks ? 0 : filled(bytes);
    char *place = moves ? map(bytes, PROT_NONE) : 0;
    working = filled(pages * PAGE);
    pthread_t thread;
    if (pthread_create(&thread, 0, touch, 0)) return 2;
    phase = ALONE;
    sleep(1); // (until then the pages that were filled last are paged in and out)
    memset(&phases[ALONE], 0, sizeof phases[ALONE]);
    say("alone");
    sleep(seconds);
    phase = NEITHER;
    say("during");
    phase = DURING;
    unsigned long began = now();
    if (!strcmp(what, "unmap")) {
        munmap(other, bytes);
    } else if (!strcmp(what, "discard")) {
        for (size_t i = 0; i < bytes; i += PIECE) madvise(other + i, PIECE, MADV_DONTNEED);
    } else if (moves) {
        for (int round = 0; round < 2; round++) {
            if (mremap(other, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, place) != place) return 4;
            char *old = other;
            other = place, place = old;
        }
        for (size_t i = 0; i < bytes; i += bytes / 64)
            if (other[i] != (char)(1 + i / PAGE % 255)) return 5;
    } else if (forks) {
        for (unsigned long n = 0; n < seconds; n++) {
            pid_t child = fork();
            if (!child) _exit(0);
            if (child < 0 || waitpid(child, 0, 0) != child) return 6;
            sleep(1);
        }
    } else if (fills) {
        other = filled(bytes);
    } else {
        say("now"); // the driver does it: swapoff
    }
    double took = (now() - began) / 1e9;
    phase = NEITHER;
    say("end");
    phase = END;
    pthread_join(thread, 0);
    printf("{\"seconds\": %.4f", took);
    for (int in = ALONE; in <= DURING; in++) {
        struct phase *p = &phases[in];
        printf(", \"%s\": {\"touches\": %lu, \"faults\": %lu, \"p50_ns\": %lu, \"p99_ns\": %lu, \"p999_ns\": %lu, \"longest_ns\": %lu}",
               in == ALONE ? "alone" : "during", p->touches, p->faults, quantile(p, 500), quantile(p, 990), quantile(p, 999),
               p->longest);
    }
    puts("}");
    return 0;
}

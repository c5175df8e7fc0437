/* Processes that share the memory (CLONE_VM) unmap 24 MiB of their parent's memory, and then map, touch and unmap until they are
   killed, at any moment. Afterwards a new mapping of the parent must be empty, and must not take long. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, LEN = 24 << 20, SMALL = 256 << 10 };
static char stack[64 << 10];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static unsigned char *map(long len) {
    unsigned char *p = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) perror("mmap"), exit(1);
    return p;
}

static int sharer(void *of_its_parent) {
    munmap(of_its_parent, LEN);
    for (;;) {
        unsigned char *p = map(SMALL);
        for (long at = 0; at < SMALL; at += PAGE) p[at] = 0xEE;
        munmap(p, SMALL);
    }
}

int main(void) {
    alarm(250);
    srand(1);
    for (int round = 0; round < 120; round++) {
        unsigned char *of_its_parent = map(LEN);
        for (long at = 0; at < LEN / 8; at += PAGE) of_its_parent[at] = 0xDD;
        pid_t child = clone(sharer, stack + sizeof stack - 64, CLONE_VM | SIGCHLD, of_its_parent);
        usleep(rand() % 3000);
        kill(child, SIGKILL);
        waitpid(child, 0, 0);
        double begin = now();
        unsigned char *p = map(LEN);
        if (now() - begin > 2) printf("round %d: mmap took %.1f s\n", round, now() - begin), exit(1);
        for (long at = 0; at < LEN; at += PAGE)
            if (p[at]) printf("round %d: old content in a new mapping\n", round), exit(1);
        munmap(p, LEN);
    }
    puts("all bytes right");
    return 0;
}

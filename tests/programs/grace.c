/* Fills memory until it does not get on. Then another thread says so, with the process id, stops the process, and gives memory up
   some time after it goes on. Prints "all bytes right"; a wrong byte is exit status 3.
   usage: grace MIB MIB_GIVEN_UP */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };

static volatile long filled;
static unsigned char *given_up;
static long given_up_pages;
static char stuck[40]; /* written before: there is no memory for it later */
static char stack[64 << 10] __attribute__((aligned(4096))); /* not paged: it is part of the program's file */

/* Page contents that cannot be compressed. */
static void fill(unsigned char *page, uint64_t seed) {
    for (int i = 0; i < PAGE; i += 8) {
        seed = seed * 6364136223846793005 + 1442695040888963407;
        uint64_t word = seed ^ seed >> 33;
        memcpy(page + i, &word, 8);
    }
}

static void pause_ms(int ms) { usleep(ms * 1000); }

static void *rescue(void *arg) {
    (void)arg;
    for (long last = -1, same = 0; same < 20; last = filled) {
        pause_ms(10);
        same = filled == last ? same + 1 : 0;
    }
    if (write(1, stuck, strlen(stuck)) < 0) _exit(2);
    kill(getpid(), SIGSTOP);
    for (int i = 0; i < 20; i++) pause_ms(10);
    munmap(given_up, given_up_pages * PAGE);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    long pages = atol(argv[1]) * 256;
    given_up_pages = atol(argv[2]) * 256;
    unsigned char *p = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    given_up = mmap(0, given_up_pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || given_up == MAP_FAILED) return 2;
    for (long i = 0; i < given_up_pages; i++) fill(given_up + i * PAGE, -i);
    snprintf(stuck, sizeof stuck, "%d\n", getpid());
    pthread_t thread;
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) || pthread_attr_setstack(&attributes, stack, sizeof stack)) return 2;
    if (pthread_create(&thread, &attributes, rescue, NULL)) return 2;
    for (long i = 0; i < pages; i++) {
        fill(p + i * PAGE, i);
        filled = i;
    }
    pthread_join(thread, NULL);
    for (long i = 0; i < pages; i++) {
        static unsigned char right[PAGE];
        fill(right, i);
        if (memcmp(p + i * PAGE, right, PAGE)) return 3;
    }
    puts("all bytes right");
    return 0;
}

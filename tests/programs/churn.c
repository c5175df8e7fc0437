/* Threads, realloc by mremap, discards and forks, with several times as much memory as the budget. Every byte read is checked.
   Prints one line and exits 0; a wrong byte is exit status 3. usage: churn [MiB per thread [FILE]]
   With FILE it goes on until a file of that name is there. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, THREADS = 3 };
static long pages;

static unsigned char value(long page, long id) { return (unsigned char)(page * 31 + id); }

static void wrong(const char *where, long id, long page) {
    printf("WRONG %s %ld page %ld\n", where, id, page);
    fflush(stdout);
    _exit(3);
}

static void check(const unsigned char *p, long n, long id, const char *where) {
    for (long i = 0; i < n; i++)
        if (p[i * PAGE] != value(i, id) || p[i * PAGE + 4095] != value(i, id)) wrong(where, id, i);
}

static void *work(void *arg) {
    long id = (long)arg;
    unsigned seed = id * 7919 + 1;
    unsigned char *p = malloc(pages * PAGE);
    for (long i = 0; i < pages; i++) memset(p + i * PAGE, value(i, id), PAGE);
    for (int r = 0; r < 5000; r++) {
        seed = seed * 1664525 + 1013904223;
        long i = (seed >> 8) % pages;
        if (p[i * PAGE + 17] != value(i, id)) wrong("random", id, i);
    }
    p = realloc(p, pages * 2 * PAGE); /* mremap: the pages move, paged out or not */
    check(p, pages, id, "after realloc");
    unsigned char *half = (unsigned char *)(((unsigned long)p + pages / 2 * PAGE + PAGE - 1) & ~(PAGE - 1ul));
    madvise(half, pages / 4 * PAGE, MADV_DONTNEED);
    for (long i = 0; i < pages / 4; i++)
        if (half[i * PAGE]) wrong("after discard", id, i);
    check(p, pages / 2 - 1, id, "beside discard");
    free(p);
    return 0;
}

static int child(unsigned char *p, int generation) {
    check(p, pages, 7, "child");
    for (long i = 0; i < pages; i++) memset(p + i * PAGE, value(i, 50 + generation), PAGE);
    if (generation == 1) { /* a grandchild sees what the child wrote */
        pid_t k = fork();
        if (k == 0) {
            check(p, pages, 50 + generation, "grandchild");
            _exit(0);
        }
        int status;
        waitpid(k, &status, 0);
        if (status) _exit(4);
    }
    check(p, pages, 50 + generation, "child again");
    _exit(0);
}

static int round_of_work(void) {
    pthread_t t[THREADS];
    for (long i = 0; i < THREADS; i++) pthread_create(&t[i], 0, work, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], 0);

    unsigned char *p = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (long i = 0; i < pages; i++) memset(p + i * PAGE, value(i, 7), PAGE);
    for (int g = 0; g < 3; g++) {
        pid_t k = fork();
        if (k == 0) child(p, g);
        check(p, pages, 7, "parent beside child");
        int status;
        waitpid(k, &status, 0);
        if (status) {
            printf("child %d: status %#x\n", g, status);
            return 4;
        }
        check(p, pages, 7, "parent");
    }
    munmap(p, pages * PAGE);
    return 0;
}

int main(int argc, char **argv) {
    pages = (argc > 1 ? atol(argv[1]) : 32) * 256;
    do {
        int status = round_of_work();
        if (status) return status;
    } while (argc > 2 && access(argv[2], F_OK));
    puts("all bytes right");
    return 0;
}

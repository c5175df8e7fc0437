/* Corner cases of the address-space calls, each by its name. Prints "right" and exits 0, or what is wrong, with exit status 3.
   usage: corners CASE MIB, the most that may be resident */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, MIB = 1 << 20 };

static void wrong(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    printf("\n");
    fflush(stdout);
    _exit(3);
}

static char *map(size_t len, int flags) {
    char *p = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (p == MAP_FAILED) wrong("mmap: %s", strerror(errno));
    return p;
}

static void all_are(const char *where, const char *p, size_t len, char byte) {
    for (size_t i = 0; i < len; i += PAGE)
        if (p[i] != byte) wrong("%s: page %zu is %d", where, i / PAGE, p[i]);
}

/* The peak of the resident memory, in MiB. */
static long peak(void) {
    char line[256];
    long kib = 0;
    FILE *status = fopen("/proc/thread-self/status", "r");
    while (fgets(line, sizeof line, status))
        if (sscanf(line, "VmHWM: %ld", &kib) == 1) break;
    fclose(status);
    return kib / 1024;
}

static long limit;

static void peak_is_right(void) {
    if (peak() > limit) wrong("%ld MiB were resident", peak());
}

/* MADV_DONTFORK: the child does not have the memory, and a new mapping in its place is empty. */
static void dontfork(void) {
    char *p = map(64 * MIB, 0);
    memset(p, 'A', 64 * MIB);
    madvise(p, 64 * MIB, MADV_DONTFORK);
    pid_t child = fork();
    if (child == 0) {
        all_are("the child's", map(64 * MIB, 0), 64 * MIB, 0);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    if (status) wrong("the child's status is %#x", status);
    all_are("the parent's", p, 64 * MIB, 'A');
}

/* Calls that the kernel refuses change nothing. */
static void refused(void) {
    char *p = map(4 * MIB, 0);
    memset(p, 'B', 4 * MIB);
    if (mremap(p + 1, PAGE, 2 * PAGE, MREMAP_MAYMOVE) != MAP_FAILED) wrong("moved from within a page");
    if (munmap(p + 1, PAGE) == 0) wrong("unmapped from within a page");
    if (mmap(p + 1, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED) wrong("mapped into a page");
    if (mmap(p, MIB, PROT_READ, MAP_PRIVATE | MAP_FIXED, 1000, 0) != MAP_FAILED) wrong("mapped no file");
    char *more = map(48 * MIB, 0);
    memset(more, 'C', 48 * MIB);
    all_are("first", p, 4 * MIB, 'B');
    all_are("second", more, 48 * MIB, 'C');
    peak_is_right();
}

/* MREMAP_DONTUNMAP: the old range is empty, and can be used. */
static void dontunmap(void) {
    char *p = map(48 * MIB, 0);
    memset(p, 'D', 48 * MIB);
    char *q = mremap(p, 48 * MIB, 48 * MIB, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0);
    if (q == MAP_FAILED) wrong("mremap: %s", strerror(errno));
    all_are("what was left", p, 48 * MIB, 0);
    memset(p, 'E', 48 * MIB);
    all_are("what was moved", q, 48 * MIB, 'D');
    all_are("what was left, filled", p, 48 * MIB, 'E');
    munmap(p, 48 * MIB);
    p = map(48 * MIB, 0);
    all_are("a new mapping", p, 48 * MIB, 0);
    all_are("what was moved, again", q, 48 * MIB, 'D');
    peak_is_right();
}

/* MAP_POPULATE of more than the budget: populating is optional. */
static void populate(void) {
    char *p = map(256 * MIB, MAP_POPULATE);
    memset(p, 'F', 128 * MIB);
    all_are("populated", p, 128 * MIB, 'F');
    all_are("rest", p + 128 * MIB, 128 * MIB, 0);
    peak_is_right();
}

static void *fill_and_leave(void *none) {
    (void)none;
    usleep(300 * 1000);
    for (int i = 0; i < 40; i++) memset(map(8 * MIB, 0), i + 1, 8 * MIB);
    peak_is_right();
    printf("right\n");
    fflush(stdout);
    _exit(0);
}

/* The first thread has ended, so most files of /proc/self are empty. */
static void headless(void) {
    pthread_t thread;
    pthread_create(&thread, 0, fill_and_leave, 0);
    pthread_exit(0);
}

static volatile int stop;

static void *nothing(void *none) { return none; }

static void *create_and_join(void *none) {
    pthread_t thread;
    while (!stop)
        if (pthread_create(&thread, 0, nothing, 0) == 0) pthread_join(thread, 0);
    return none;
}

/* Forks while another thread is starting threads: the child starts one too. */
static void starters(void) {
    pthread_t thread;
    pthread_create(&thread, 0, create_and_join, 0);
    for (int i = 0; i < 60; i++) {
        pid_t child = fork();
        if (child == 0) {
            pthread_t its;
            alarm(250);
            _exit(pthread_create(&its, 0, nothing, 0) || pthread_join(its, 0));
        }
        int status;
        waitpid(child, &status, 0);
        if (status) wrong("child %d: status %#x", i, status);
    }
    stop = 1;
    pthread_join(thread, 0);
}

int main(int argc, char **argv) {
    const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"dontfork", dontfork}, {"refused", refused},   {"dontunmap", dontunmap},
                 {"populate", populate}, {"headless", headless}, {"starters", starters}};
    limit = argc > 2 ? atol(argv[2]) : 0;
    for (size_t i = 0; argc > 2 && i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(argv[1], cases[i].name)) {
            cases[i].run();
            printf("right\n");
            return 0;
        }
    return 1;
}

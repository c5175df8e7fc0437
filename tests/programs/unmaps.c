/* Unmappings that the pager has not followed yet when other memory comes to their place. A thread is held right behind its munmap
 * by a signal, as a collector that stops the world does it. Argument:
 *
 *   halves   two threads unmap neighbours, and a third moves memory to both places
 *   start    memory is mapped from the same address on as what was unmapped, and other memory is moved onto that
 *   grown    locked memory grows to where memory was unmapped
 *   sealed   a shrinking mremap is refused because of a sealed page, after the kernel has reported what it would unmap
 *   fork     a signal handler forks in the middle of a call that replaces memory by a shared mapping
 *
 * Ends with "right", or says what was wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, MIB = 1 << 20, LEN = 4 * MIB, MSEAL = 462, FIXED = MREMAP_MAYMOVE | MREMAP_FIXED };

static void must(int good, const char *what) {
    if (good) return;
    perror(what);
    exit(2);
}

static unsigned char *map_at(void *at, size_t len, int flags) {
    void *p = mmap(at, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    must(p != MAP_FAILED && (!at || p == at), "mmap");
    return p;
}

static void fill(unsigned char *p, size_t len, int salt) {
    for (size_t i = 0; i < len / PAGE; i++) memset(p + i * PAGE, (int)(i * 7 + salt) | 1, PAGE);
}

/* How many pages are not as `fill` left them. */
static int wrong(const unsigned char *p, size_t len, int salt) {
    int n = 0;
    for (size_t i = 0; i < len / PAGE; i++) n += p[i * PAGE] != (unsigned char)((i * 7 + salt) | 1);
    return n;
}

/* What is in memory goes out. */
static void press(void) {
    unsigned char *p = map_at(NULL, 40 * MIB, 0);
    fill(p, 40 * MIB, 99);
    munmap(p, 40 * MIB);
}

struct unmapping {
    unsigned char *at;
    size_t len;
    pthread_t thread;
    volatile int held, returned;
};
static __thread struct unmapping *mine;
static volatile int go;

static int is_gone(const struct unmapping *u) {
    unsigned char there;
    return mincore(u->at, PAGE, &there) == -1 && errno == ENOMEM;
}

static void hold(int signal) {
    (void)signal;
    int error = errno;
    if (mine && !mine->returned && is_gone(mine)) {
        mine->held = 1;
        while (!go) usleep(200);
    }
    errno = error;
}

static void *unmap(void *argument) {
    mine = argument;
    must(!munmap(mine->at, mine->len), "munmap");
    mine->returned = 1;
    return NULL;
}

/* Has a thread unmap a range, and holds it before it returns. Returns 0 if it was too late for that. */
static int hold_behind(struct unmapping *u, unsigned char *at, size_t len) {
    *u = (struct unmapping){.at = at, .len = len};
    must(!pthread_create(&u->thread, NULL, unmap, u), "pthread_create");
    while (!is_gone(u)) {}
    must(!pthread_kill(u->thread, SIGUSR1), "pthread_kill");
    while (!u->held && !u->returned) {}
    return u->held;
}

static void let_go(struct unmapping *u, int n) {
    go = 1;
    for (int i = 0; i < n; i++) pthread_join(u[i].thread, NULL);
    go = 0;
}

/* Each case returns whether the threads were held, and adds the wrong pages. */
static int halves(int *bad) {
    unsigned char *to = map_at(NULL, LEN, 0), *from = map_at(NULL, LEN, 0);
    struct unmapping u[2];
    fill(to, LEN, 3);
    fill(from, LEN, 5);
    press();
    int held = hold_behind(&u[0], to, LEN / 2) & hold_behind(&u[1], to + LEN / 2, LEN / 2);
    must(mremap(from, LEN, LEN, FIXED, to) == to, "mremap");
    let_go(u, 2);
    *bad += wrong(to, LEN, 5);
    munmap(to, LEN);
    return held;
}

static int start(int *bad) {
    unsigned char *to = map_at(NULL, LEN, 0), *from = map_at(NULL, LEN, 0);
    struct unmapping u;
    fill(to, LEN, 3);
    fill(from, LEN, 5);
    press();
    munmap(to + LEN / 2, LEN / 2);
    int held = hold_behind(&u, to, LEN / 2);
    map_at(to, LEN, MAP_FIXED_NOREPLACE);
    to[0] = to[LEN - 1] = 1;
    must(mremap(from, LEN, LEN, FIXED, to) == to, "mremap");
    *bad += wrong(to, LEN, 5);
    let_go(&u, 1);
    *bad += wrong(to, LEN, 5);
    munmap(to, LEN);
    return held;
}

static int grown(int *bad) {
    static const unsigned char zeroes[PAGE];
    enum { HALF = LEN / 2 };
    unsigned char *at = map_at(NULL, LEN, 0);
    struct unmapping u;
    fill(at, LEN, 3);
    press();
    must(!mlock(at, HALF), "mlock");
    int held = hold_behind(&u, at + HALF, HALF);
    must(mremap(at, HALF, LEN, 0) == at, "mremap");
    for (size_t i = HALF; i < LEN; i += PAGE) *bad += memcmp(at + i, zeroes, PAGE) != 0;
    let_go(&u, 1);
    fill(at + HALF, HALF, 8);
    munlock(at, LEN);
    press();
    *bad += wrong(at, HALF, 3) + wrong(at + HALF, HALF, 8);
    munmap(at, LEN);
    return held;
}

static int sealed(int *bad) {
    for (int flags = 0; flags <= MREMAP_MAYMOVE; flags += MREMAP_MAYMOVE) {
        unsigned char *at = map_at(NULL, LEN + PAGE, 0);
        fill(at, LEN, 5);
        if (syscall(MSEAL, at + LEN, PAGE, 0) && errno == ENOSYS) return 1;
        press();
        must(mremap(at, LEN + PAGE, PAGE, flags) == MAP_FAILED, "a sealed page was unmapped");
        *bad += wrong(at, LEN, 5);
    }
    return 1;
}

static volatile pid_t forked_child;

static void fork_once(int signal) {
    (void)signal;
    if (!forked_child) forked_child = fork();
}

/* The child did not know of the call. It wrote old content to the mapping, where its parent found it. */
static int fork_inside(int *bad) {
    enum { ROUNDS = 40, SHARED = MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED };
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2};
    timer_t timer;
    must(!timer_create(CLOCK_MONOTONIC, &event, &timer), "timer_create");
    must(!sigaction(SIGUSR2, &(struct sigaction){.sa_handler = fork_once}, NULL), "sigaction");
    for (int round = 0; round < ROUNDS; round++) {
        unsigned char *at = map_at(NULL, LEN, 0);
        fill(at, LEN, 3);
        press();
        pid_t me = getpid();
        forked_child = 0;
        struct itimerspec soon = {.it_value.tv_nsec = 2000 + round * 3137 % 120000};
        must(!timer_settime(timer, 0, &soon, NULL), "timer_settime");
        must(mmap(at, LEN, PROT_READ | PROT_WRITE, SHARED, -1, 0) == at, "mmap");
        while (me == getpid() && !forked_child) {}
        int old = 0, status;
        for (size_t i = 0; i < LEN; i += PAGE) old += at[i] != 0;
        if (me != getpid()) _exit(old > 0);
        must(waitpid(forked_child, &status, 0) == forked_child, "waitpid");
        *bad += old + (status != 0);
        munmap(at, LEN);
    }
    return 1;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int (*run)(int *);
    } cases[] = {{"halves", halves}, {"start", start}, {"grown", grown}, {"sealed", sealed}, {"fork", fork_inside}};
    int (*run)(int *) = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (argc > 1 && !strcmp(argv[1], cases[i].name)) run = cases[i].run;
    must(run != NULL, "no such case");
    must(!sigaction(SIGUSR1, &(struct sigaction){.sa_handler = hold}, NULL), "sigaction");
    int bad = 0, held = 0;
    for (int round = 0; round < 50 && !held; round++) held = run(&bad);
    must(held, "no thread could be held");
    if (bad) return printf("%d pages are wrong\n", bad), 1;
    puts("right");
}

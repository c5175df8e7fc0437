/* Processes of one family (related by fork) share one budget: how much of its memory does each have resident at once?
 *
 *   turns N MIB W    N workers, all of which stay. Each in turn fills MIB MiB of its own memory and reads it, while the others
 *                    wait. Then all check their memory and end, and the parent does the same
 *   killed N MIB W   the same, but each worker is killed (SIGKILL) after its turn
 *   orphan MIB W     the same in a child that outlives its parent and its own child
 *   exec MIB W       the same in the parent, while a child lives that has execed
 *   nested N MIB W   each process forks the next and waits with its memory filled; the last one takes its turn first
 *   both MIB N       two processes fill MIB MiB each, at least N times
 *   crowd N W        the same in the parent, after N children that lived at the same time have been killed
 *   idle MIB         fills MIB MiB, closes the standard output, and checks them at the end of the standard input
 *   alike N MIB      the parent, and then N children at a time, read MIB MiB that compress well, in a random order of their own,
 *                    four times as often as there are pages
 *
 * W is how many MiB should be resident at once. Prints a line per worker: how many were.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, MIB = 1 << 20 };

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    _exit(1);
}

static unsigned word(unsigned salt, long page)
{
    return (page + salt * 7919u) * 2654435761u + 1;
}

static unsigned char *room(int mib)
{
    unsigned char *p = mmap(0, (size_t)mib * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        fail("mmap");
    return p;
}

static void fill(unsigned char *p, int mib, unsigned salt)
{
    for (long i = 0; i < (long)mib * (MIB / PAGE); i++) {
        unsigned x = word(salt, i), *words = (unsigned *)(p + i * PAGE);
        for (int k = 0; k < PAGE / 4; k++)
            words[k] = x = x * 1664525 + 1013904223;
    }
}

static int is_right(const unsigned char *p, long i, unsigned salt)
{
    return *(const unsigned *)(p + i * PAGE) == word(salt, i) * 1664525 + 1013904223;
}

static void look(const unsigned char *p, int mib, unsigned salt)
{
    for (long i = 0; i < (long)mib * (MIB / PAGE); i++)
        if (!is_right(p, i, salt)) {
            fprintf(stderr, "worker %u: page %ld is wrong\n", salt, i);
            _exit(1);
        }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static int resident(unsigned char *p, int mib)
{
    static unsigned char seen[1 << 20];
    long pages = (long)mib * (MIB / PAGE), n = 0;
    if (mincore(p, (size_t)mib * MIB, seen))
        fail("mincore");
    for (long i = 0; i < pages; i++)
        n += seen[i] & 1;
    return n * PAGE / MIB;
}

static int wanted;

/* Fills the memory, and reads it repeatedly, for a limited time, until the wanted amount is resident. Returns the amount. */
static int use(unsigned char *p, int mib, unsigned salt)
{
    int most = 0;
    double end = now() + 120;
    fill(p, mib, salt);
    while (most < wanted && now() < end) {
        look(p, mib, salt);
        int r = resident(p, mib);
        most = r > most ? r : most;
    }
    return most;
}

static void say(const char *who, int mib)
{
    printf("%s %d\n", who, mib);
    fflush(stdout);
}

static void join(pid_t pid, int expected)
{
    int status;
    if (waitpid(pid, &status, 0) != pid || status != expected) {
        fprintf(stderr, "a worker ended with %x\n", status);
        _exit(1);
    }
}

static void turns(int n, int mib, int killed)
{
    pid_t pids[64];
    int go[64][2], done[64][2];
    char byte = 'x';
    unsigned char *common = room(2);
    fill(common, 2, 99);
    for (int i = 0; i < n; i++) {
        if (pipe(go[i]) || pipe(done[i]) || (pids[i] = fork()) < 0)
            fail("fork");
        if (pids[i] == 0) {
            unsigned char *p = room(mib);
            if (read(go[i][0], &byte, 1) != 1)
                _exit(2);
            say("worker", use(p, mib, i));
            if (write(done[i][1], &byte, 1) != 1 || read(go[i][0], &byte, 1) != 1)
                _exit(2);
            look(p, mib, i);
            look(common, 2, 99);
            _exit(0);
        }
    }
    for (int i = 0; i < n; i++) {
        if (write(go[i][1], &byte, 1) != 1 || read(done[i][0], &byte, 1) != 1)
            fail("a worker has ended");
        if (killed) {
            kill(pids[i], SIGKILL);
            join(pids[i], SIGKILL);
        }
    }
    for (int i = 0; i < n && !killed; i++) {
        if (write(go[i][1], &byte, 1) != 1)
            fail("write");
        join(pids[i], 0);
    }
    unsigned char *p = room(mib);
    say("parent", use(p, mib, 77));
    look(common, 2, 99);
}

static void orphan(int mib)
{
    int pipes[2];
    char byte;
    if (pipe(pipes))
        fail("pipe");
    unsigned char *p = room(mib);
    fill(p, mib, 1);
    pid_t pid = fork();
    if (pid < 0)
        fail("fork");
    if (pid == 0) {
        pid_t grandchild = fork();
        if (grandchild == 0) {
            look(p, mib, 1);
            _exit(0);
        }
        join(grandchild, 0);
        close(pipes[1]);
        if (read(pipes[0], &byte, 1) != 0) /* until the parent has ended */
            _exit(1);
        say("orphan", use(p, mib, 2));
        return;
    }
    /* the test waits for the end of the standard output */
    _exit(0);
}

static void exec(int mib)
{
    int pipes[2];
    if (pipe(pipes))
        fail("pipe");
    unsigned char *p = room(mib);
    fill(p, mib, 1);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(pipes[0], 0);
        close(pipes[1]);
        execlp("cat", "cat", (char *)0);
        _exit(1);
    }
    say("parent", use(p, mib, 2));
    close(pipes[1]);
    join(pid, 0);
}

static void nested(int n, int mib)
{
    unsigned char *p = room(mib);
    fill(p, mib, n);
    if (n > 0) {
        pid_t pid = fork();
        if (pid == 0) {
            nested(n - 1, mib);
            _exit(0);
        }
        join(pid, 0);
    }
    look(p, mib, n);
    say("worker", use(p, mib, n + 100));
}

static void both(int mib, int rounds)
{
    /* the rounds of each process: neither ends before the other has made all of its rounds */
    volatile int *made = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid = fork();
    if (pid < 0)
        fail("fork");
    unsigned char *p = room(mib);
    int me = pid == 0, least = mib;
    for (unsigned salt = 0; made[0] < rounds || made[1] < rounds; salt++) {
        fill(p, mib, salt);
        look(p, mib, salt);
        if (made[0] > rounds / 2 && made[1] > rounds / 2) {
            int r = resident(p, mib);
            least = r < least ? r : least;
        }
        made[me]++;
    }
    say("one of two", least);
    if (pid == 0)
        _exit(0);
    join(pid, 0);
}

/* Reads pages at random. */
static void wander(const unsigned char *p, long pages, long reads, unsigned x)
{
    while (reads-- > 0) {
        x = x * 1664525 + 1013904223;
        long i = (x >> 8) % pages;
        if (!is_right(p, i, 5) || p[i * PAGE + PAGE - 1] != (unsigned char)i) {
            fprintf(stderr, "page %ld is wrong\n", i);
            _exit(1);
        }
    }
}

static void alike(int n, int mib)
{
    pid_t pids[64];
    long pages = (long)mib * (MIB / PAGE);
    unsigned char *p = room(mib);
    fill(p, mib, 5);
    for (long i = 0; i < pages; i++)
        memset(p + i * PAGE + PAGE / 4, (int)i, PAGE - PAGE / 4);
    wander(p, pages, 4 * pages, 77);
    for (int k = 0; k < n; k++) {
        pids[k] = fork();
        if (pids[k] < 0)
            fail("fork");
        if (pids[k] == 0) {
            wander(p, pages, 4 * pages, k);
            _exit(0);
        }
    }
    for (int k = 0; k < n; k++)
        join(pids[k], 0);
}

static void idle(int mib)
{
    char byte;
    unsigned char *p = room(mib);
    fill(p, mib, 3);
    close(1);
    if (read(0, &byte, 1) != 0)
        fail("read");
    look(p, mib, 3);
    _exit(0);
}

static void crowd(int n)
{
    pid_t pids[1000];
    for (int i = 0; i < n; i++) {
        pids[i] = fork();
        if (pids[i] < 0)
            fail("fork");
        if (pids[i] == 0) {
            pause();
            _exit(0);
        }
    }
    for (int i = 0; i < n; i++)
        kill(pids[i], SIGKILL);
    for (int i = 0; i < n; i++)
        join(pids[i], SIGKILL);
    unsigned char *p = room(64);
    say("parent", use(p, 64, 7));
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    int a = argc > 2 ? atoi(argv[2]) : 1, b = argc > 3 ? atoi(argv[3]) : 1;
    wanted = atoi(argv[argc - 1]);
    if (!strcmp(what, "turns"))
        turns(a, b, 0);
    else if (!strcmp(what, "killed"))
        turns(a, b, 1);
    else if (!strcmp(what, "orphan"))
        orphan(a);
    else if (!strcmp(what, "exec"))
        exec(a);
    else if (!strcmp(what, "nested"))
        nested(a, b);
    else if (!strcmp(what, "both"))
        both(a, b);
    else if (!strcmp(what, "alike"))
        alike(a, b);
    else if (!strcmp(what, "idle"))
        idle(a);
    else if (!strcmp(what, "crowd"))
        crowd(a);
    else
        return 2;
    puts("all bytes right");
    return 0;
}

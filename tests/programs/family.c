/* Forks in difficult situations. The parent's pages are paged out when it forks, and every child checks all of them.
 *
 *   full N        the descriptor table is full, and its hard limit is N
 *   user          after the process has given up root; the child forks, too
 *   rounds N      one child lives on while N others come and go; the parent rewrites all pages each time
 *   children N    N children live at the same time
 *   generations N each child forks the next
 *   namespace     the child is the first process of a PID namespace, but /proc is that of the old namespace; the child forks, too
 *   background F G  the parent ends; the child checks its pages when F can be read, and writes the result to G
 *   kinds         in a child of vfork, in a signal handler, in several threads at the same time, and by clone with flags
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 3 << 10 };

static unsigned char *memory;
static volatile int salt;

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    _exit(1);
}

static void fill(void)
{
    for (long i = 0; i < PAGES; i++) {
        unsigned x = i * 2654435761u + salt;
        unsigned *words = (unsigned *)(memory + i * PAGE);
        for (int k = 0; k < PAGE / 4; k++)
            words[k] = x = x * 1664525 + 1013904223;
    }
}

static void look(const char *who)
{
    for (long i = 0; i < PAGES; i++) {
        unsigned x = (i * 2654435761u + salt) * 1664525 + 1013904223;
        if (*(unsigned *)(memory + i * PAGE) != x) {
            fprintf(stderr, "%s: page %ld is wrong\n", who, i);
            _exit(1);
        }
    }
}

static void join(pid_t child, const char *who)
{
    int status;
    if (child < 0)
        fail(who);
    while (waitpid(child, &status, __WALL) != child)
        if (errno != EINTR)
            fail("waitpid");
    if (status) {
        fprintf(stderr, "%s: status %x\n", who, status);
        _exit(1);
    }
}

/* A child that checks all pages. */
static void child(const char *who)
{
    pid_t pid = fork();
    if (pid == 0) {
        look(who);
        _exit(0);
    }
    join(pid, who);
}

static void full(int hard)
{
    struct rlimit before = {40, hard}, after;
    if (setrlimit(RLIMIT_NOFILE, &before))
        fail("setrlimit");
    while (dup(1) >= 0)
        ;
    if (errno != EMFILE)
        fail("dup");
    child("with a full table");
    if (getrlimit(RLIMIT_NOFILE, &after) || after.rlim_cur != 40 || after.rlim_max != (rlim_t)hard || dup(1) >= 0 || errno != EMFILE)
        fail("the limit has changed");
    pid_t pid = fork();
    if (pid == 0) {
        if (getrlimit(RLIMIT_NOFILE, &after) || after.rlim_cur != 40 || dup(1) >= 0 || errno != EMFILE)
            fail("the child's limit has changed");
        child("a child of a child");
        _exit(0);
    }
    join(pid, "a child with a full table");
}

static void user(void)
{
    if (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))
        fail("setresuid");
    pid_t pid = fork();
    if (pid == 0) {
        look("after setresuid");
        salt++;
        fill();
        child("a child's child after setresuid");
        look("after its fork");
        _exit(0);
    }
    join(pid, "after setresuid");
    look("the parent");
}

static void rounds(int n)
{
    pid_t keep = fork();
    if (keep == 0) {
        pause();
        _exit(0);
    }
    for (; n > 0; n--) {
        salt++;
        fill();
        child("a child that does not stay");
    }
    if (keep < 0 || kill(keep, SIGKILL) || waitpid(keep, 0, 0) != keep)
        fail("the child that stays");
    look("the parent");
}

static void children(int n)
{
    pid_t pids[1000];
    int pipes[2];
    char byte;
    if (pipe(pipes))
        fail("pipe");
    for (int i = 0; i < n; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            close(pipes[1]);
            if (read(pipes[0], &byte, 1) != 0)
                _exit(2);
            for (long at = i % PAGES; at < PAGES; at += 997) {
                unsigned x = (at * 2654435761u + salt) * 1664525 + 1013904223;
                if (*(unsigned *)(memory + at * PAGE) != x)
                    _exit(1);
            }
            _exit(0);
        }
        if (pids[i] < 0)
            fail("fork");
    }
    close(pipes[0]), close(pipes[1]);
    for (int i = 0; i < n; i++)
        join(pids[i], "one of many");
}

static void generations(int n)
{
    for (int i = 0; i < n; i++) {
        pid_t pid = fork();
        if (pid != 0) {
            join(pid, "a generation");
            look("an ancestor");
            _exit(0);
        }
        /* a page of its own, which is paged out later */
        memory[(i % PAGES) * PAGE + 8] ^= 1;
    }
    look("the last generation");
    puts("all bytes right");
    fflush(stdout);
    _exit(0);
}

static void namespace(void)
{
    if (unshare(CLONE_NEWPID))
        fail("unshare");
    pid_t pid = fork();
    if (pid == 0) {
        if (getpid() != 1)
            fail("not the first process");
        look("in the namespace");
        child("a child in the namespace");
        _exit(0);
    }
    join(pid, "in the namespace");
}

static volatile int handled;

static void on_signal(int number)
{
    (void)number;
    child("forked by a handler");
    handled++;
}

static void *forks(void *unused)
{
    (void)unused;
    for (int i = 0; i < 3; i++)
        child("forked by a thread");
    return 0;
}

static pid_t by_clone(long flags)
{
    return syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
}

static int go[2];
static volatile int *ended;

static void *looks(void *unused)
{
    while (!*ended)
        usleep(1000); /* the child is there, and the parent waits */
    look("while a thread waits for a child");
    if (write(go[1], "x", 1) != 1)
        fail("write");
    return unused;
}

/* CLONE_VFORK without CLONE_VM: one thread waits until the child ends, and the others go on. */
static void suspended(void)
{
    pthread_t thread;
    char byte;
    ended = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (ended == MAP_FAILED || pipe(go) || pthread_create(&thread, 0, looks, 0))
        fail("suspended");
    pid_t pid = by_clone(CLONE_VFORK);
    if (pid == 0) {
        *ended = 1;
        if (read(go[0], &byte, 1) != 1)
            _exit(1);
        *ended = 2;
        _exit(0);
    }
    if (*ended != 2)
        fail("went on before the child's end");
    join(pid, "by clone with CLONE_VFORK");
    pthread_join(thread, 0);
}

static void kinds(void)
{
    pid_t pid = vfork();
    if (pid == 0) {
        child("forked by a vfork's child");
        _exit(0);
    }
    join(pid, "vfork");
    signal(SIGUSR1, on_signal);
    raise(SIGUSR1);
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        if (pthread_create(&threads[i], 0, forks, 0))
            fail("pthread_create");
    kill(getpid(), SIGUSR1);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], 0);
    if (handled != 2)
        fail("the handler has not forked");
    long flags[] = {CLONE_FILES, CLONE_FS, CLONE_FILES | CLONE_FS, CLONE_NEWUSER | CLONE_NEWPID, CLONE_NEWNS, CLONE_NEWNET | CLONE_NEWIPC};
    for (unsigned i = 0; i < sizeof flags / sizeof *flags; i++) {
        pid = by_clone(flags[i]);
        if (pid == 0) {
            look("by clone");
            child("a child of clone's");
            _exit(0);
        }
        join(pid, "by clone");
    }
    suspended();
    /* a sibling (CLONE_PARENT): the parent's child, for which this process cannot wait */
    int pipes[2];
    char byte;
    if (pipe(pipes))
        fail("pipe");
    pid = fork();
    if (pid == 0) {
        pid = by_clone(CLONE_PARENT);
        if (pid == 0) {
            look("a sibling");
            if (write(pipes[1], "x", 1) != 1)
                _exit(1);
        }
        _exit(0);
    }
    join(pid, "who made a sibling");
    if (read(pipes[0], &byte, 1) != 1 || wait(0) < 0)
        fail("the sibling");
}

static void background(const char *when, const char *where)
{
    char byte;
    pid_t pid = fork();
    if (pid < 0)
        fail("fork");
    if (pid > 0)
        _exit(0);
    int go = open(when, O_RDONLY);
    if (go < 0 || read(go, &byte, 1) < 0)
        fail(when);
    look("in the background");
    int out = open(where, O_WRONLY);
    if (out < 0 || write(out, "right", 5) != 5)
        fail(where);
    _exit(0);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    int n = argc > 2 ? atoi(argv[2]) : 1;
    memory = mmap(0, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        fail("mmap");
    fill();
    if (!strcmp(what, "full"))
        full(n);
    else if (!strcmp(what, "user"))
        user();
    else if (!strcmp(what, "rounds"))
        rounds(n);
    else if (!strcmp(what, "children"))
        children(n);
    else if (!strcmp(what, "generations"))
        generations(n);
    else if (!strcmp(what, "namespace"))
        namespace();
    else if (!strcmp(what, "background") && argc > 3)
        background(argv[2], argv[3]);
    else if (!strcmp(what, "kinds"))
        kinds();
    else
        return 2;
    look("at the end");
    puts("all bytes right");
    return 0;
}

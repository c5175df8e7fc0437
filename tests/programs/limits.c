/* A program that limits its own address space. usage: limits as|data
 * Prints "right" and exits 0; else it says what is wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20, PAGE = 4096, USED = 48 * MIB };
extern char **environ;
static char *self;

#define MUST(what) do { if (!(what)) { printf("line %d: %s (%s)\n", __LINE__, #what, strerror(errno)); exit(1); } } while (0)

static char *map(size_t len) {
    return mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* Whether this resource has these limits, by each way to ask. */
static void is(int resource, rlim_t soft, rlim_t hard) {
    struct rlimit a = {0, 0}, b = {0, 0}, c = {0, 0}, d = {0, 0};
    MUST(!getrlimit(resource, &a) && a.rlim_cur == soft && a.rlim_max == hard);
    MUST(!prlimit(0, resource, NULL, &b) && !memcmp(&a, &b, sizeof a));
    MUST(!prlimit(getpid(), resource, NULL, &c) && !memcmp(&a, &c, sizeof a));
    MUST(!syscall(SYS_getrlimit, resource, &d) && !memcmp(&a, &d, sizeof a));
}

/* More memory than the budget holds, but less than the limit; what does not fit into the limit is refused. */
static void allocates(void) {
    char *a = map(USED);
    MUST(a != MAP_FAILED);
    for (size_t i = 0; i < USED; i += PAGE)
        a[i] = i / PAGE % 127 + 1;
    for (size_t i = 0; i < USED; i += PAGE)
        MUST(a[i] == (char)(i / PAGE % 127 + 1));
    munmap(a, USED);
    MUST(map(400 * MIB) == MAP_FAILED && errno == ENOMEM);
}

static void ends_well(pid_t child) {
    int status;
    MUST(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

/* What a program sees that was started by exec: the soft limit. */
static void seen_by(int resource, rlim_t soft, char **arguments) {
    static char numbers[2][32];
    snprintf(numbers[0], 32, "%d", resource);
    snprintf(numbers[1], 32, "%ld", (long)soft);
    char *all[] = {self, "sees", numbers[0], numbers[1], NULL};
    memcpy(arguments, all, sizeof all);
}

static void children(int resource, rlim_t soft, rlim_t hard) {
    char *arguments[5];
    seen_by(resource, soft, arguments);
    pid_t child = fork();
    if (!child) {
        is(resource, soft, hard);
        allocates();
        execv("/nowhere", arguments);
        is(resource, soft, hard);
        allocates();
        execv(self, arguments);
        _exit(1);
    }
    ends_well(child);
    child = vfork();
    if (!child) {
        execv(self, arguments);
        _exit(1);
    }
    ends_well(child);
    MUST(!posix_spawn(&child, self, NULL, NULL, arguments, environ));
    ends_well(child);
    is(resource, soft, hard);
    allocates();
}

static void limits(int resource) {
    const rlim_t few = 250 * MIB, more = 280 * MIB;
    struct rlimit before, limit = {few, RLIM_INFINITY};
    MUST(!setrlimit(resource, &limit));
    is(resource, few, RLIM_INFINITY);
    allocates();
    limit = (struct rlimit){more, few};
    MUST(setrlimit(resource, &limit) && errno == EINVAL);
    MUST(prlimit(0, resource, (void *)8, NULL) && errno == EFAULT);
    limit = (struct rlimit){more, more};
    MUST(!prlimit(0, resource, &limit, &before) && before.rlim_cur == few && before.rlim_max == RLIM_INFINITY);
    MUST(prlimit(0, resource, NULL, (void *)8) && errno == EFAULT);
    is(resource, more, more);
    children(resource, more, more);
    limit.rlim_cur = few;
    MUST(!syscall(SYS_setrlimit, resource, &limit));
    is(resource, few, more);
    allocates();
    pid_t child = fork();
    if (!child) { /* without root the hard limit stays */
        MUST(!setresuid(65534, 65534, 65534));
        limit = (struct rlimit){few, more + MIB};
        MUST(setrlimit(resource, &limit) && errno == EPERM);
        is(resource, few, more);
        limit = (struct rlimit){more, more};
        MUST(!setrlimit(resource, &limit));
        is(resource, more, more);
        limit = (struct rlimit){few, few};
        MUST(!setrlimit(resource, &limit));
        is(resource, few, few);
        allocates();
        _exit(0);
    }
    ends_well(child);
    limit = (struct rlimit){RLIM_INFINITY, RLIM_INFINITY}; /* (a right that root may lack) */
    if (!setrlimit(resource, &limit)) {
        is(resource, RLIM_INFINITY, RLIM_INFINITY);
        MUST(map(400 * MIB) != MAP_FAILED);
    }
}

int main(int argc, char **argv) {
    self = argv[0];
    if (argc == 4) { /* sees RESOURCE LIMIT */
        struct rlimit limit;
        MUST(!getrlimit(atoi(argv[2]), &limit) && (long)limit.rlim_cur == atol(argv[3]));
        MUST(map(400 * MIB) == MAP_FAILED);
        return 0;
    }
    limits(argc == 2 && !strcmp(argv[1], "data") ? RLIMIT_DATA : RLIMIT_AS);
    puts("right");
    return 0;
}

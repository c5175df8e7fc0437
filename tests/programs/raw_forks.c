/* Children and memory that the program makes by its own system calls, without libc, and memory that children do not get. Cases:
   "unpaged", "dontfork", "viewed", "grown", "longer", "filtered". */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096 };
static const long MIB = 1 << 20;

#define expect(condition, ...) do { if (!(condition)) { printf(__VA_ARGS__); puts(""); exit(1); } } while (0)

static long raw(long nr, long a, long b, long c, long d, long e) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
    return result;
}

static pid_t raw_fork(void) { return raw(SYS_clone, SIGCHLD, 0, 0, 0, 0); }

static unsigned char *map(long len) {
    unsigned char *p = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(p != MAP_FAILED, "mmap: %s", strerror(errno));
    return p;
}

static unsigned char byte(long at) { return at / PAGE * 7 % 255 + 1; }

static void fill(unsigned char *p, long len) {
    for (long at = 0; at < len; at += PAGE) p[at] = byte(at);
}

static long wrong(const volatile unsigned char *p, long len) {
    long n = 0;
    for (long at = 0; at < len; at += PAGE) n += p[at] != byte(at);
    return n;
}

/* Fills more than 16 MiB, so that everything else is evicted. */
static void press(void) {
    unsigned char *p = map(40 * MIB);
    for (int round = 0; round < 2; round++) fill(p, 40 * MIB);
    munmap(p, 40 * MIB);
}

static int status_of(pid_t child) {
    int status;
    expect(child > 0 && waitpid(child, &status, 0) == child, "child %d: %s", child, strerror(errno));
    return status;
}

static void is_right(pid_t child, const char *what) {
    int status = status_of(child);
    expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: status %#x", what, status);
}

static int is_there(const void *p, long len) { return msync((void *)p, len, MS_ASYNC) == 0; }

/* Everything fits: the child of a raw fork has all memory, and maps, unmaps and forks as without a pager. */
static void unpaged(void) {
    unsigned char *p = map(MIB);
    fill(p, MIB);
    pid_t child = raw_fork();
    if (child == 0) {
        unsigned char *q = map(2 * MIB);
        fill(q, 2 * MIB);
        free(malloc(MIB));
        child = fork();
        if (child == 0) _exit(wrong(p, MIB) || wrong(q, 2 * MIB));
        is_right(child, "the child's child");
        munmap(q, 2 * MIB);
        _exit(wrong(p, MIB) != 0);
    }
    is_right(child, "the child");
}

/* MADV_DONTFORK by the program itself, and MADV_DOFORK, which takes it back. */
static void dontfork(void) {
    unsigned char *a = map(4 * MIB), *b = map(4 * MIB), *c = map(4 * MIB);
    expect(madvise(a, 4 * MIB, MADV_DONTFORK) == 0, "before it is paged");
    fill(a, 4 * MIB);
    fill(b, 4 * MIB);
    fill(c, 4 * MIB);
    press();
    expect(madvise(b, 4 * MIB, MADV_DONTFORK) == 0 && madvise(b + MIB, MIB, MADV_DOFORK) == 0, "while it is paged");
    expect(madvise(c, 4 * MIB, MADV_DOFORK) == 0, "that it may");
    unsigned char *moved = mremap(a, 2 * MIB, 2 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, map(2 * MIB));
    expect(moved != MAP_FAILED && mprotect(a + 3 * MIB, MIB, PROT_READ) == 0, "moved, and read only");
    for (int round = 0; round < 2; round++) {
        pid_t child = fork();
        if (child == 0) {
            expect(!is_there(moved, PAGE) && !is_there(a + 2 * MIB, PAGE) && !is_there(a + 3 * MIB, PAGE), "the first is there");
            expect(!is_there(b, PAGE) && !is_there(b + 2 * MIB, PAGE), "the second is there");
            expect(is_there(b + MIB, MIB), "half of the second is not there");
            expect(!wrong(c, 4 * MIB), "the third");
            for (long at = MIB; at < 2 * MIB; at += PAGE) expect(b[at] == byte(at), "half of the second");
            _exit(0);
        }
        is_right(child, "libc's child");
    }
    expect(!wrong(moved, 2 * MIB) && !wrong(b, 4 * MIB) && !wrong(c, 4 * MIB), "the parent's");
}

/* A second mapping of shared memory, right after paged memory, does not count as growth of the paged memory. */
static void viewed(void) {
    unsigned char *p = map(8 * MIB), *shared = mmap(0, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fill(p, 8 * MIB);
    press();
    expect(madvise(p, 4 * MIB, MADV_DONTFORK) == 0, "not its children's");
    expect(mremap(shared, 0, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, p + 4 * MIB) == p + 4 * MIB, "mremap: %s", strerror(errno));
    fill(shared, MIB);
    press();
    pid_t child = fork();
    if (child == 0) {
        expect(!wrong(p + 4 * MIB, MIB) && !is_there(p, PAGE), "the child's");
        p[4 * MIB] = 200;
        _exit(0);
    }
    is_right(child, "libc's child");
    expect(shared[0] == 200 && p[4 * MIB] == 200, "what the child wrote");
    expect(!wrong(p, 4 * MIB), "the parent's");
}

/* Memory that grew by a raw system call is paged, and children get it. */
static void grown(void) {
    unsigned char *p = map(32 * MIB);
    fill(p, MIB);
    press();
    munmap(p + MIB, 31 * MIB);
    expect(raw(SYS_mremap, (long)p, MIB, 24 * MIB, 0, 0) == (long)p, "grown where it is");
    fill(p, 20 * MIB);
    expect(!wrong(p, 20 * MIB), "the parent's");
    expect(raw(SYS_mremap, (long)p, 24 * MIB, 28 * MIB, 0, 0) == (long)p, "grown once more: it is one mapping");
    pid_t child = fork();
    if (child == 0) {
        for (long at = 20 * MIB; at < 24 * MIB; at += PAGE) expect(p[at] == 0, "something is in what is new");
        _exit(wrong(p, 20 * MIB) != 0);
    }
    is_right(child, "libc's child");
    expect(!wrong(p, 20 * MIB), "the parent's");
}

static pid_t clone3(long len, int full) {
    unsigned long words[16] = {0};
    words[4] = SIGCHLD;
    words[15] = full;
    return syscall(SYS_clone3, words, len);
}

/* The structure may be longer than the kernel knows, if the rest is zero, and of any length. */
static void longer(void) {
    unsigned char *p = map(24 * MIB);
    fill(p, 24 * MIB);
    static const int lengths[] = {64, 70, 88, 96, 101, 128};
    for (int i = 0; i < 6; i++) {
        pid_t child = clone3(lengths[i], 0);
        if (child == 0) _exit(wrong(p, 24 * MIB) != 0);
        is_right(child, "a child");
    }
    expect(clone3(128, 1) == -1 && errno == E2BIG, "what the kernel does not know: %s", strerror(errno));
    expect(clone3(63, 0) == -1 && errno == EINVAL, "too short: %s", strerror(errno));
    expect(!wrong(p, 24 * MIB), "the parent's");
}

static void *nothing(void *argument) { return argument; }

/* The program has refused itself process_vm_readv, by which the pager reads the arguments of calls. */
static void filtered(void) {
    struct sock_filter code[] = {
        {BPF_LD | BPF_W | BPF_ABS, 0, 0, 0}, {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_process_vm_readv},
        {BPF_RET | BPF_K, 0, 0, 0x00050000 | EPERM}, {BPF_RET | BPF_K, 0, 0, 0x7fff0000},
    };
    struct sock_fprog filter = {4, code};
    expect(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, 2, &filter), "a filter: %s", strerror(errno));
    unsigned char *p = map(24 * MIB);
    fill(p, 24 * MIB);
    for (int way = 0; way < 2; way++) {
        pid_t child = way ? clone3(88, 0) : fork();
        if (child == 0) {
            press();
            pthread_t thread; /* libc knows its own id only if the kernel has stored it */
            _exit(wrong(p, 24 * MIB) || !way && (pthread_create(&thread, 0, nothing, 0) || pthread_join(thread, 0)));
        }
        is_right(child, way ? "the child of clone3" : "libc's child");
    }
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) expect(!pthread_create(&threads[i], 0, nothing, 0), "a thread");
    press();
    for (int i = 0; i < 8; i++) expect(!pthread_join(threads[i], 0), "its end");
    expect(!wrong(p, 24 * MIB), "the parent's");
}

int main(int count, char **arguments) {
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    alarm(250);
    const char *which = count > 1 ? arguments[1] : "";
    if (!strcmp(which, "unpaged")) unpaged();
    if (!strcmp(which, "dontfork")) dontfork();
    if (!strcmp(which, "viewed")) viewed();
    if (!strcmp(which, "grown")) grown();
    if (!strcmp(which, "longer")) longer();
    if (!strcmp(which, "filtered")) filtered();
    puts("right");
}

/* threads many N: N threads that map, touch and unmap at the same time.
   threads ends: threads that sleep in the kernel while their memory is paged out, and then end. The end of each must be seen: by
   pthread_join, by thrd_join, and in the word that the kernel clears (CLONE_CHILD_CLEARTID of clone and clone3,
   set_tid_address). */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <threads.h>
#include <unistd.h>

enum { PAGE = 4096, ROUNDS = 40, EACH = 8 };
static const long some = 24 << 20;

static unsigned char *map(long len) {
    unsigned char *p = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) perror("mmap"), exit(1);
    return p;
}

/* ---- many ---- */

static pthread_barrier_t begin;
static atomic_long not_zero;

static void *maps(void *x) {
    pthread_barrier_wait(&begin);
    for (int i = 0; i < ROUNDS; i++) {
        unsigned char *p = map(16 * PAGE);
        not_zero += p[0] != 0;
        p[0] = 1;
        munmap(p, 16 * PAGE);
    }
    return x;
}

static void many(int n) {
    memset(map(some), 1, some); /* whatever comes now is paged from its start */
    pthread_t *threads = calloc(n, sizeof *threads);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    pthread_barrier_init(&begin, 0, n);
    for (int i = 0; i < n; i++)
        if (pthread_create(&threads[i], &small, maps, 0)) perror("pthread_create"), exit(1);
    for (int i = 0; i < n; i++) pthread_join(threads[i], 0);
}

/* ---- ends ---- */

static int pipe_ends[2];

/* Sleeps until the pipe is closed. Only system calls: a thread made by clone has no thread-local storage of its own. */
static int sleeps(void *x) {
    (void)x;
    char byte;
    long n;
    asm volatile("syscall" : "=a"(n) : "a"(SYS_read), "D"(pipe_ends[0]), "S"(&byte), "d"(1) : "rcx", "r11", "memory");
    return 0;
}

static void *sleeps_too(void *x) { return (void *)(intptr_t)sleeps(x); }

struct clone_args_0 { uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls; };
static const int sharing = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;

/* clone3 by syscall() returns on an empty stack: so the thread needs a few instructions of its own, after libc's function */
static void ends_now(void) {
    sleeps(0);
    asm volatile("syscall" : : "a"(SYS_exit), "D"(0));
}

static void ended(atomic_int *tid) {
    for (int seen; (seen = *tid) != 0;) syscall(SYS_futex, tid, FUTEX_WAIT, seen, 0, 0, 0);
}

static void ends(void) {
    if (pipe(pipe_ends)) perror("pipe"), exit(1);
    unsigned char *memory = map(some);
    memset(memory, 1, some); /* whatever comes now is paged from its start */
    pthread_t posix[EACH];
    thrd_t c11[EACH];
    atomic_int *tids[2 * EACH];
    for (int i = 0; i < EACH; i++) {
        if (pthread_create(&posix[i], 0, sleeps_too, 0) || thrd_create(&c11[i], sleeps, 0)) perror("a thread"), exit(1);
        for (int j = i; j < 2 * EACH; j += EACH) {
            tids[j] = (atomic_int *)map(PAGE);
            *tids[j] = -1;
        }
        if (clone(sleeps, map(16 * PAGE) + 16 * PAGE, sharing | CLONE_CHILD_CLEARTID, 0, 0, 0, tids[i]) < 0) perror("clone"), exit(1);
        uintptr_t *stack = (uintptr_t *)map(16 * PAGE);
        /* syscall() returns to the address on top of the stack: to ends_now */
        stack[16 * PAGE / 8 - 2] = (uintptr_t)ends_now;
        struct clone_args_0 args = { .flags = sharing | CLONE_CHILD_CLEARTID, .child_tid = (uintptr_t)tids[EACH + i],
                                     .stack = (uintptr_t)stack, .stack_size = 16 * PAGE - 16 };
        if (syscall(SYS_clone3, &args, sizeof args) < 0) perror("clone3"), exit(1);
    }
    for (int round = 2; round < 6; round++) memset(memory, round, some);
    close(pipe_ends[1]);
    for (int i = 0; i < EACH; i++) {
        pthread_join(posix[i], 0);
        thrd_join(c11[i], 0);
        ended(tids[i]);
        ended(tids[EACH + i]);
    }
}

static void *returns(void *argument) { return argument; }

/* a thread's stack, and right above it memory that went out and then became inaccessible */
static void above(void) {
    enum { STACK = 1 << 20, MORE = 16 * PAGE };
    unsigned char *stack = map(STACK + MORE);
    memset(stack + STACK, 7, MORE);
    mprotect(stack + STACK, MORE, PROT_NONE);
    unsigned char *memory = map(some);
    for (int round = 1; round < 4; round++) memset(memory, round, some);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, stack, STACK);
    pthread_t thread;
    if (pthread_create(&thread, &attributes, returns, 0) || pthread_join(thread, 0)) perror("a thread"), exit(1);
    mprotect(stack + STACK, MORE, PROT_READ);
    for (long i = 0; i < MORE; i++)
        if (stack[STACK + i] != 7) puts("other content"), exit(1);
}

enum { DISCARDERS = 160, PIECE = 64 * PAGE };
static unsigned char *pieces;
static pthread_barrier_t together;

static void *discards(void *argument) {
    unsigned char *piece = pieces + (long)argument * PIECE;
    for (int round = 1; round < 5; round++) {
        for (long i = 0; i < PIECE; i += PAGE) piece[i] = round;
        for (long i = 0; i < PIECE; i += PAGE) if (piece[i] != round) puts("other content"), exit(1);
        pthread_barrier_wait(&together);
        madvise(piece, PIECE, MADV_DONTNEED);
        for (long i = 0; i < PIECE; i += PAGE) if (piece[i]) not_zero = 1;
    }
    return 0;
}

/* many threads discard memory at the same time, and use it again at once */
static void at_once(void) {
    pthread_t threads[DISCARDERS];
    pieces = map((long)DISCARDERS * PIECE);
    pthread_barrier_init(&together, 0, DISCARDERS);
    for (long i = 0; i < DISCARDERS; i++) if (pthread_create(&threads[i], 0, discards, (void *)i)) perror("a thread"), exit(1);
    for (int i = 0; i < DISCARDERS; i++) pthread_join(threads[i], 0);
}

/* by an instruction of the program's own, as of a runtime that does not use libc */
static void discards_itself(unsigned char *page) {
    long r;
    asm volatile("syscall" : "=a"(r) : "a"(SYS_madvise), "D"(page), "S"(PAGE), "d"(MADV_DONTNEED) : "rcx", "r11", "memory");
    if (r || *page) not_zero = 1;
    *page = 1;
}

enum { READS = 20000, BEFORE = 600, AT_MOST = 30000 };
static atomic_int has_read;

static void *reads(void *memory) {
    unsigned long random = 1;
    for (int i = 0; i < READS; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        long page = (random >> 33) % (some / PAGE / 2) * 2;
        if (((unsigned char *)memory)[page * PAGE] != page % 251 + 1) puts("other content"), exit(1);
    }
    has_read = 1;
    return 0;
}

/* One thread discards the odd pages, here and there, while another reads the even ones: who reads is done before the other, who
   takes 15 s at least. */
static void scattered(void) {
    unsigned char *memory = map(some);
    for (long i = 0; i < some / PAGE; i++) memory[i * PAGE] = i % 251 + 1;
    pthread_t reader;
    for (long i = 0; i < AT_MOST && !has_read; i++) {
        if (i == BEFORE && pthread_create(&reader, 0, reads, memory)) perror("a thread"), exit(1);
        discards_itself(memory + (i * 2654435761 % (some / PAGE / 2) * 2 + 1) * PAGE);
        usleep(500);
    }
    if (!has_read) puts("the reader stands still"), exit(1);
    pthread_join(reader, 0);
}

int main(int argc, char **argv) {
    alarm(250);
    if (argc == 3 && strcmp(argv[1], "many") == 0) many(atoi(argv[2]));
    else if (argc == 2 && strcmp(argv[1], "above") == 0) above();
    else if (argc == 2 && strcmp(argv[1], "discards") == 0) at_once();
    else if (argc == 2 && strcmp(argv[1], "scattered") == 0) scattered();
    else ends();
    puts(not_zero ? "not zero" : "all right");
    return 0;
}

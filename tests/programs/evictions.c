/* What can leave memory, and what cannot: evictions CASE. Prints "right" if everything is as it would be alone.
 *
 * pinned     registered I/O buffers stay; the rest goes
 * forks S    S seconds of forks, discards and writes at a time: all of them get on
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, MIB = 1 << 20 };

static void wrong(const char *format, ...) {
    va_list list;
    va_start(list, format);
    printf("wrong: ");
    vprintf(format, list);
    printf("\n");
    va_end(list);
    exit(1);
}

static unsigned char *map(long len) {
    unsigned char *p = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) wrong("mmap: %s", strerror(errno));
    return p;
}

/* Each page has its number and a salt in every word. */
static void fill(unsigned char *p, long len, long salt) {
    for (long i = 0; i < len / (long)sizeof(long); i++) ((long *)p)[i] = i / (PAGE / sizeof(long)) * 8191 + salt;
}
static void check(const char *what, const unsigned char *p, long len, long salt) {
    for (long i = 0; i < len / (long)sizeof(long); i++)
        if (((const long *)p)[i] != i / (PAGE / (long)sizeof(long)) * 8191 + salt)
            wrong("%s: %#lx at byte %ld", what, ((const long *)p)[i], i * (long)sizeof(long));
}

/* Everything else goes out. */
static void press(long len) {
    unsigned char *p = map(len);
    for (int salt = 1; salt < 3; salt++) fill(p, len, salt);
    check("pressed", p, len, 2);
    munmap(p, len);
}

static void pinned(void) {
    long len = 4 * MIB;
    unsigned char *p = map(len);
    fill(p, len, 7);
    struct io_uring_params params = {0};
    int ring = syscall(SYS_io_uring_setup, 4, &params);
    struct iovec iov[4];
    for (int i = 0; i < 4; i++) iov[i] = (struct iovec){p + i * MIB, MIB};
    if (ring < 0 || syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, iov, 4) < 0) {
        printf("no registered buffers here: %s\n", strerror(errno));
        exit(0);
    }
    press(48 * MIB);
    check("pinned", p, len, 7);
}

static unsigned char *shared;
static const long shared_len = 8 * MIB;
static atomic_long forks, discards, writes;
static atomic_int over;

static void *discarder(void *none) {
    unsigned seed = 1;
    for (; !over; discards++) {
        long at = rand_r(&seed) % (shared_len / PAGE) * PAGE, n = (1 + rand_r(&seed) % 64) * PAGE;
        if (at + n > shared_len) n = shared_len - at;
        madvise(shared + at, n, MADV_DONTNEED);
        for (long i = 0; i < n; i += PAGE)
            if (rand_r(&seed) % 4) shared[at + i] = 1;
    }
    return none;
}
static void *writer(void *none) {
    long len = 48 * MIB;
    unsigned char *p = map(len);
    for (int k = 1; !over; k++)
        for (long i = 0; i < len && !over; i += PAGE, writes++) memset(p + i, k + i / PAGE, PAGE);
    return none;
}
static void *forker(void *none) {
    for (; !over; forks++) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        if (child < 0) wrong("fork: %s", strerror(errno));
        waitpid(child, 0, 0);
    }
    return none;
}
static void fork_and_discard(int seconds) {
    shared = map(shared_len);
    memset(shared, 1, shared_len);
    pthread_t threads[3];
    pthread_create(&threads[0], 0, discarder, 0);
    pthread_create(&threads[1], 0, writer, 0);
    pthread_create(&threads[2], 0, forker, 0);
    sleep(seconds);
    over = 1;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
    if (!forks || !discards || !writes) wrong("%ld forks, %ld discards, %ld writes", forks, discards, writes);
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    if (!strcmp(name, "pinned")) pinned();
    else if (!strcmp(name, "forks") && argc > 2) fork_and_discard(atoi(argv[2]));
    else return 2;
    printf("right\n");
    return 0;
}

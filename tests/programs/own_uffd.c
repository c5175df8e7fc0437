/* A program with a userfaultfd of its own. It registers memory that is already paged and filled, and then serves the faults of an
   empty part. Or it moves what it has filled to a registered range ("moves"), or registers far more than the budget ("large"), or
   what nobody has touched ("untouched"). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, MIB = 1 << 20 };
static int fd;

static void check(int right, const char *what) {
    if (!right) perror(what), exit(1);
}

static unsigned char *map(long len) {
    unsigned char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(p != MAP_FAILED, "mmap");
    return p;
}

static void fill(unsigned char *p, long len, int by) {
    for (long at = 0; at < len; at += PAGE) p[at] = 1 + (by + at / PAGE) % 255; /* the pager drops pages of zeroes */
}

static long wrong(unsigned char *p, long len, int by) {
    long n = 0;
    for (long at = 0; at < len; at += PAGE) n += p[at] != 1 + (by + at / PAGE) % 255;
    return n;
}

static void *serve(void *unused) {
    static unsigned char source[PAGE];
    struct uffd_msg message;
    memset(source, 9, PAGE);
    while (read(fd, &message, sizeof message) == sizeof message) {
        struct uffdio_copy copy = {.dst = message.arg.pagefault.address & -PAGE, .src = (unsigned long)source, .len = PAGE};
        ioctl(fd, UFFDIO_COPY, &copy);
    }
    return unused;
}

struct move {
    unsigned long to, from, len, mode;
    long moved;
};

/* Moves what is out. `mode`: 0, or 2 if holes may be moved, too. */
static void moves(unsigned long mode) {
    enum { LEN = 4 * MIB };
    unsigned char *other = map(48 * MIB), *from = map(LEN), *to = map(LEN);
    fill(from, LEN, 3);
    if (!mode) memset(from + MIB, 0, PAGE); /* which the pager drops */
    fill(other, 48 * MIB, 1); /* all of it is out */
    fd = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API, .features = 1 << 16 /* UFFD_FEATURE_MOVE */};
    check(fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0, "userfaultfd");
    struct uffdio_register range = {.range = {(unsigned long)to, LEN}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    check(ioctl(fd, UFFDIO_REGISTER, &range) == 0, "register");
    for (long done = 0; done < LEN;) {
        struct move move = {(unsigned long)to + done, (unsigned long)from + done, LEN - done, mode, 0};
        int r = ioctl(fd, _IOWR(0xAA, 5, struct move), &move);
        check(r == 0 || errno == EAGAIN, "move");
        done += move.moved > 0 ? move.moved : 0;
    }
    pthread_t thread;
    check(pthread_create(&thread, NULL, serve, NULL) == 0, "a thread");
    if (!mode) check(to[MIB] == 0, "a page of zeroes"), to[MIB] = 1 + (3 + MIB / PAGE) % 255;
    check(wrong(to, LEN, 3) == 0 && wrong(other, 48 * MIB, 1) == 0, "what was moved");
    puts("all bytes right");
}

/* Registers memory that nobody has touched, above memory that was filled in order. */
static void untouched(void) {
    fd = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    check(fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0, "userfaultfd");
    unsigned char *a = map(8 * MIB), *below = map(32 * MIB);
    fill(below, 32 * MIB, 1);
    struct uffdio_register range = {.range = {(unsigned long)a, 8 * MIB}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    check(ioctl(fd, UFFDIO_REGISTER, &range) == 0, "register");
    pthread_t thread;
    check(pthread_create(&thread, NULL, serve, NULL) == 0, "a thread");
    for (long at = 0; at < 8 * MIB; at += PAGE) check(a[at] == 9, "what the program serves itself");
    check(wrong(below, 32 * MIB, 1) == 0, "what lies below");
    puts("all bytes right");
}

/* Registers four times the budget and more. */
static void large(void) {
    unsigned char *a = map(80 * MIB);
    fill(a, 80 * MIB, 3);
    fd = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    check(fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0, "userfaultfd");
    struct uffdio_register range = {.range = {(unsigned long)a, 80 * MIB}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    check(ioctl(fd, UFFDIO_REGISTER, &range) == 0, "register");
    check(wrong(a, 80 * MIB, 3) == 0, "its content");
    puts("all bytes right");
}

int main(int argc, char **argv) {
    alarm(250);
    if (argc > 1) {
        if (!strcmp(argv[1], "large")) large();
        else if (!strcmp(argv[1], "untouched")) untouched();
        else moves(strcmp(argv[1], "moves") ? 2 : 0);
        return 0;
    }
    unsigned char *a = map(32 * MIB), *other = map(48 * MIB);
    fill(a, 4 * MIB, 3);
    fill(other, 48 * MIB, 1); /* a is paged out */
    fd = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_EVENT_FORK};
    check(fd >= 0 && ioctl(fd, UFFDIO_API, &api) != 0 && errno == EPERM, "reports of forks");
    api = (struct uffdio_api){.api = UFFD_API};
    check(fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0, "userfaultfd");
    struct uffdio_register range = {.range = {(unsigned long)a, 32 * MIB}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    check(ioctl(fd, UFFDIO_REGISTER, &range) == 0, "register");
    pthread_t thread;
    check(pthread_create(&thread, NULL, serve, NULL) == 0, "a thread");
    check(wrong(a, 4 * MIB, 3) == 0, "its content");
    for (long at = 4 * MIB; at < 5 * MIB; at += PAGE) check(a[at] == 9, "what the program serves itself");
    fill(other, 48 * MIB, 2);
    check(wrong(a, 4 * MIB, 3) == 0 && wrong(other, 48 * MIB, 2) == 0, "its content under pressure");
    puts("all bytes right");
    return 0;
}

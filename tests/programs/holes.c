/* Memory that a program has unmapped stays unmapped, in its children and grandchildren, too: a touch must end the process. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, SIZES = 12 };
static struct { char *at; long len; } holes[SIZES];

static char *map(long len) {
    char *p = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) _exit(9);
    return p;
}

/* The number of mapped pages in the holes. Maps nothing itself. */
static long filled(void) {
    long n = 0;
    for (int i = 0; i < SIZES; i++)
        for (long at = 0; at < holes[i].len; at += PAGE) {
            unsigned char seen;
            n += mincore(holes[i].at + at, PAGE, &seen) == 0 || errno != ENOMEM;
        }
    return n;
}

static void check(const char *who) {
    if (filled() == 0) return;
    dprintf(1, "%ld pages are there in %s\n", filled(), who);
    _exit(1);
}

int main(void) {
    alarm(250);
    long some = 24 << 20;
    memset(map(some), 1, some);
    for (int i = 0; i < SIZES; i++) {
        holes[i].len = (16l << 10) << i;
        holes[i].at = map(holes[i].len);
        map(PAGE); /* so that each is a hole of its own */
    }
    for (int i = 0; i < SIZES; i++) munmap(holes[i].at, holes[i].len);
    check("the parent");
    int status = 0;
    if (fork() == 0) {
        check("the child");
        if (fork() == 0) {
            check("the grandchild");
            _exit(0);
        }
        wait(&status);
        check("the child, later");
        _exit(status != 0);
    }
    wait(&status);
    check("the parent, later");
    if (status == 0) puts("nothing is there");
    return status != 0;
}

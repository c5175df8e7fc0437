/* Children without libc's fork: clone() with a stack, whose function returns or ends by a raw exit; syscall(SYS_clone) and
   syscall(SYS_fork). Each child must find 24 MiB of its parent's memory. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096 };
static const long len = 24 << 20;
static unsigned char *memory;

static int wrong(void *seven) {
    long n = seven != (void *)7;
    for (long at = 0; at < len; at += PAGE) n += memory[at] != (unsigned char)(at / PAGE);
    return n != 0;
}

static int wrong_and_gone(void *seven) {
    syscall(SYS_exit, wrong(seven) ? 1 : 5);
    return 1;
}

static void expect(pid_t child, int status, const char *what) {
    int got;
    if (child < 0 || waitpid(child, &got, 0) != child || !WIFEXITED(got) || WEXITSTATUS(got) != status) {
        printf("%s: child %d, status %x\n", what, child, got);
        exit(1);
    }
}

int main(void) {
    alarm(250);
    memory = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (long at = 0; at < len; at += PAGE) memory[at] = at / PAGE;
    char *stack = malloc(64 << 10);
    expect(clone(wrong, stack + (64 << 10), SIGCHLD, (void *)7), 0, "clone");
    expect(clone(wrong_and_gone, stack + (64 << 10), SIGCHLD, (void *)7), 5, "clone, raw exit");
    pid_t child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) _exit(wrong((void *)7));
    expect(child, 0, "syscall(SYS_clone)");
    child = syscall(SYS_fork);
    if (child == 0) _exit(wrong((void *)7));
    expect(child, 0, "syscall(SYS_fork)");
    /* The kernel stores ids in paged-out pages, in the parent and in the child. The rest of these pages must be right, too. */
    unsigned long ids[] = {0, 0, (unsigned long)(memory + 40 * PAGE + 8), (unsigned long)(memory + 20 * PAGE + 8), SIGCHLD, 0, 0, 0};
    ids[0] = 0x00100000 | 0x01000000; /* CLONE_PARENT_SETTID | CLONE_CHILD_SETTID */
    unsigned long *args = (unsigned long *)(memory + 60 * PAGE + 8); /* the arguments, too, are in a page that is paged out */
    for (int i = 0; i < 8; i++) args[i] = ids[i];
    for (long at = 100 * PAGE; at < len; at += PAGE) memory[at] = at / PAGE;
    child = syscall(SYS_clone3, args, sizeof ids);
    if (child == 0) _exit(wrong((void *)7) || *(int *)(memory + 40 * PAGE + 8) != getpid());
    if (*(int *)(memory + 20 * PAGE + 8) != child) puts("the parent was not told");
    expect(child, 0, "syscall(SYS_clone3)");
    child = syscall(SYS_clone, ids[0] | SIGCHLD, 0, memory + 30 * PAGE + 8, memory + 50 * PAGE + 8, 0);
    if (child == 0) _exit(wrong((void *)7) || *(int *)(memory + 50 * PAGE + 8) != getpid());
    if (*(int *)(memory + 30 * PAGE + 8) != child) puts("the parent was not told by clone");
    expect(child, 0, "syscall(SYS_clone) with ids");
    /* an id that cannot be stored is not stored */
    child = syscall(SYS_clone, SIGCHLD | CLONE_PARENT_SETTID | CLONE_CHILD_SETTID, 0, 8, 8, 0);
    if (child == 0) _exit(wrong((void *)7));
    expect(child, 0, "ids to nowhere");
    puts("all bytes right");
    return 0;
}

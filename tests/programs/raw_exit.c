/* A program may rely on two things about its threads. The link count of /proc/self/task counts the program's own threads. A thread
   that ends by syscall(SYS_exit) does not touch its stack any more: here the stack is unmapped soon after the thread has announced
   its end. There are many threads, so that counting them takes long. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { STACK = 64 << 10, IDLE = 200 };
static volatile int gone;

static long threads(const char *path) {
    struct stat stat_;
    return fstatat(AT_FDCWD, path, &stat_, 0) == 0 ? (long)stat_.st_nlink - 2 : -1;
}

static int goes(void *unused) {
    gone = 1;
    syscall(SYS_exit, 0);
    return 1;
}

static void *idle(void *unused) {
    pause();
    return 0;
}

int main(void) {
    alarm(250);
    struct stat proc;
    char own[64];
    snprintf(own, sizeof own, "/proc/%d/task/", getpid());
    if (threads("/proc/self/task") != 1 || threads(own) != 1) puts("more threads than one");
    if (stat("/proc/self", &proc) || proc.st_nlink < 3) puts("another directory's links are wrong");
    pthread_t thread;
    for (int i = 0; i < IDLE; i++)
        if (pthread_create(&thread, 0, idle, 0)) puts("no thread");
    if (threads("/proc/self/task") != IDLE + 1) puts("the program's own threads are not counted");
    char *stack = mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (clone(goes, stack + STACK, CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD, 0) < 0) puts("no thread by clone");
    while (!gone) usleep(10);
    usleep(50);
    munmap(stack, STACK);
    while (threads("/proc/self/task") != IDLE + 1) usleep(100);
    puts("all right");
    return 0;
}

/* Waits for what does not come, in calls that end early for a signal. There is none, so each lasts as long as it was asked to. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int waits(const char *who) {
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event;
    int got = epoll_wait(epoll, &event, 1, 300);
    if (got) return printf("%s: epoll_wait: %d (%s)\n", who, got, strerror(errno));
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 3);
    sigprocmask(SIG_BLOCK, &set, 0);
    struct timespec time = {0, 300000000};
    got = sigtimedwait(&set, 0, &time);
    if (got != -1 || errno != EAGAIN) return printf("%s: sigtimedwait: %d (%s)\n", who, got, strerror(errno));
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1) return waits("after an exec") ? 1 : puts("nothing has come") < 0;
    if (waits("at first")) return 1;
    pid_t child = fork();
    if (!child) _exit(waits("in a child") ? fflush(stdout), 1 : 0);
    int status;
    if (waits("after a fork") || waitpid(child, &status, 0) != child || status) return 1;
    execl(argv[0], argv[0], "again", (char *)0);
    return 1;
}

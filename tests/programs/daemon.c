/* Becomes a daemon, in the usual way: two forks, a session of its own, and no descriptor of its parent's. Prints its process id
   before. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    int child = fork();
    if (child) return waitpid(child, 0, 0) != child;
    setsid();
    if (fork()) _exit(0);
    alarm(60);
    printf("%d\n", getpid());
    fflush(stdout);
    for (int fd = 0; fd < 3; fd++) close(fd);
    for (;;) pause();
}

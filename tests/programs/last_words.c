// last_words FILE: opens a data file as descriptor 2, and forks a child that reads paged-out memory. The test lets the pager fail
// in the child.
// last_words FILE exec PROGRAM: the same, but the child becomes that program.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    long bytes = 24 << 20;
    volatile unsigned char *p = malloc(bytes);
    for (long i = 0; i < bytes; i += 4096) p[i] = i >> 12;
    fcntl(2, F_DUPFD_CLOEXEC, 10); // (a pager gives up its place for messages a second after its program has)
    close(2);
    if (open(argv[1], O_CREAT | O_TRUNC | O_RDWR, 0600) != 2 || write(2, "data", 4) != 4) return 2;
    pid_t child = fork();
    if (child == 0) {
        if (argc > 3) {
            if (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534)) _exit(3);
            execl(argv[3], argv[3], (char *)0);
            _exit(4);
        }
        for (long i = 0; i < bytes; i += 4096) if (p[i] != (unsigned char)(i >> 12)) _exit(5);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? 100 + WTERMSIG(status) : WEXITSTATUS(status);
}

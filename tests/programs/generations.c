/* Each child forks the next, for the given number of generations, and waits for it. Prints how many there were.
 *
 *   generations N              each process waits for its child
 *   generations N successors   each child ends when it has forked the next; the first process waits for the last */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int successors(int left)
{
    int ends[2], depth = 0;
    if (pipe(ends))
        return 1;
    pid_t child = fork();
    if (child != 0) {
        close(ends[1]);
        if (child < 0 || read(ends[0], &depth, sizeof depth) != sizeof depth)
            return 1;
        printf("%d generations\n", depth);
        return 0;
    }
    while (++depth < left)
        if ((child = fork()) != 0)
            _exit(child < 0);
    return write(ends[1], &depth, sizeof depth) != sizeof depth;
}

int main(int argc, char **argv)
{
    int left = argc > 1 ? atoi(argv[1]) : 1, depth = 0;
    if (argc > 2)
        return successors(left);
    while (left-- > 0) {
        pid_t child = fork();
        if (child < 0)
            return 1;
        if (child > 0) {
            int status;
            if (waitpid(child, &status, 0) != child)
                return 1;
            if (WIFEXITED(status) && WEXITSTATUS(status) == 125)
                printf("%d generations\n", depth), fflush(stdout), exit(3);
            exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
        }
        depth++;
    }
    printf("%d generations\n", depth);
    return 0;
}

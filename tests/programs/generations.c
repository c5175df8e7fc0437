/* Each child forks the next, for the given number of generations. Prints how many there were. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int left = argc > 1 ? atoi(argv[1]) : 1, depth = 0;
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

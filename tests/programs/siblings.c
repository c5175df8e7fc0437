/* Forks two children again and again. The first ends during the second fork or shortly after it. The second checks all pages after
   its parent has rewritten them. Prints one line and exits 0; a wrong byte is exit status 3, a child that died 4.
   usage: siblings MiB ROUNDS */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096 };
static unsigned char *memory;
static long pages;

static unsigned char value(long page, int round) { return (unsigned char)(page * 31 + round * 7 + 1); }

static void fill(int round) {
    for (long i = 0; i < pages; i++) memset(memory + i * PAGE, value(i, round), PAGE);
}

static int is_right(int round) {
    for (long i = 0; i < pages; i++)
        if (memory[i * PAGE] != value(i, round) || memory[i * PAGE + PAGE - 1] != value(i, round)) return 0;
    return 1;
}

static void ended(const char *who, pid_t child, int round) {
    int status;
    if (waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    printf("round %d: the %s child's status is %#x\n", round, who, status);
    fflush(stdout);
    _exit(WIFEXITED(status) && WEXITSTATUS(status) == 3 ? 3 : 4);
}

int main(int argc, char **argv) {
    pages = (argc > 1 ? atol(argv[1]) : 48) * 256;
    int rounds = argc > 2 ? atoi(argv[2]) : 10;
    memory = malloc(pages * PAGE);
    fill(0);
    for (int round = 0; round < rounds; round++) {
        pid_t first = fork();
        if (first == 0) {
            usleep(round * 37 % 150 * 1000);
            _exit(0);
        }
        pid_t second = fork();
        if (second == 0) {
            usleep(300 * 1000); /* most of its pages are read from the parent's slots */
            _exit(is_right(round) ? 0 : 3);
        }
        if (first < 0 || second < 0) return 1;
        fill(round + 1);
        if (!is_right(round + 1)) return 3;
        ended("first", first, round);
        ended("second", second, round);
    }
    printf("all bytes right\n");
    return 0;
}

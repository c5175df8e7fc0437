// Touches twice its budget (argv[1]: MiB, a power of two), forks, does so again in parent and child, prints both process ids, and
// waits for the test's questions. No read-ahead finds the next page of this order.
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static void go(volatile char *memory, size_t bytes) {
    size_t pages = bytes / 4096, page = 0;
    for (size_t i = 0; i < 3 * pages; i++) {
        page = (5 * page + 12345) % pages; // each page once in a round
        memory[4096 * page]++;
    }
}

int main(int argc, char **argv) {
    size_t bytes = (argc > 1 ? strtoul(argv[1], 0, 10) : 1) << 21;
    volatile char *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    go(memory, bytes);
    pid_t child = fork();
    if (child < 0) return 2;
    go(memory, bytes);
    printf("%d\n", getpid());
    fflush(stdout);
    char byte;
    if (read(0, &byte, 1)) return 3;
    for (size_t at = 0; at < bytes; at += 4096)
        if (memory[at] != 6) return 4;
    int status = 0;
    return child && (wait(&status) != child || status) ? 5 : 0;
}

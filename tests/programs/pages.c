/* Memory whose content anybody can compute: word j of page i is mix(i * 512 + j). Takes commands on standard input, a line each:
 *
 *   free    gives everything back but the first 4 MiB
 *   fill    takes it again, and fills it
 *   check   looks whether everything that is there is right
 *   fork    goes on in a child
 *
 * and answers each with a line: the command, or what is wrong. Begins with a fill. Argument: how many MiB. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 512, KEPT = 4 << 20 };

/* The finalizer of splitmix64: no two words of a page are alike. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

int main(int argc, char **argv)
{
    size_t size = (size_t)atoi(argc > 1 ? argv[1] : "64") << 20, have = 0;
    char line[64];
    uint64_t *memory = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return puts("no address space"), 1;
    strcpy(line, "fill\n");
    do {
        if (!strcmp(line, "fill\n") && have < size) {
            void *rest = (char *)memory + have;
            if (mmap(rest, size - have, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != rest)
                return puts("no memory"), 1;
            for (size_t i = have / 8; i < size / 8; i++)
                memory[i] = mix(i);
            have = size;
        } else if (!strcmp(line, "free\n")) {
            if (munmap((char *)memory + KEPT, size - KEPT))
                return puts("munmap"), 1;
            have = KEPT;
        }
        if (!strcmp(line, "fork\n")) {
            int status;
            pid_t child = fork();
            if (child)
                return child < 0 || waitpid(child, &status, 0) != child || status;
        }
        for (size_t i = 0; !strcmp(line, "check\n") && i < have / 8; i++)
            if (memory[i] != mix(i))
                return printf("wrong at %zu\n", i * 8), 1;
        fputs(line, stdout);
        fflush(stdout);
    } while (fgets(line, sizeof line, stdin));
    return 0;
}

/* Fills memory, makes it read-only and reads it all; then fills as much other memory and reads that. Argument: MiB. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static char *fill(size_t bytes)
{
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        exit(1);
    for (size_t i = 0; i < bytes; i += 4096)
        memcpy(at + i, &i, sizeof i);
    if (mprotect(at, bytes, PROT_READ) != 0)
        exit(1);
    return at;
}

int main(int argc, char **argv)
{
    size_t bytes = (argc > 1 ? strtoul(argv[1], NULL, 10) : 64) << 20;
    for (int round = 0; round < 2; round++) {
        char *at = fill(bytes);
        for (size_t i = 0; i < bytes; i += 4096)
            if (memcmp(at + i, &i, sizeof i) != 0) {
                puts("WRONG");
                return 1;
            }
    }
    puts("all bytes right");
    return 0;
}

/* becomes PROGRAM ARGUMENTS...: fills 32 MiB and becomes that program (exec). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    size_t len = 32 << 20;
    char *memory = malloc(len);
    if (argc < 2 || !memory) return 1;
    for (size_t at = 0; at < len; at += 4096) memset(memory + at, (int)(at >> 12) | 1, 4096);
    execv(argv[1], argv + 1);
    perror(argv[1]);
    return 1;
}

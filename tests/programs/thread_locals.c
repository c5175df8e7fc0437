// Has a megabyte of thread-locals, and reads more memory than its budget for a while: the pager's threads wait and time out.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static __thread char large[1 << 20];

int main(int argc, char **argv) {
    size_t pages = (argc > 1 ? strtoul(argv[1], 0, 10) : 32) << 8;
    unsigned *memory = malloc(pages << 12);
    memset(large, 7, sizeof large);
    for (size_t i = 0; i < pages << 10; i++) memory[i] = (unsigned)i;
    for (int round = 0; round < 3; round++) {
        usleep(100000);
        for (size_t i = 0; i < pages << 10; i++)
            if (memory[i] != (unsigned)i) return printf("word %zu is %#x\n", i, memory[i]), 1;
    }
    for (size_t i = 0; i < sizeof large; i++)
        if (large[i] != 7) return printf("thread-local byte %zu is %d\n", i, large[i]), 1;
    puts("all bytes right");
    return 0;
}

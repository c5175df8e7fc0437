/* Fills memory, unmaps the part that it filled last, waits for a line, and checks the rest. The rest is mostly in swap, although it
   would fit into memory. Prints "ready", then "all bytes right"; a wrong byte is exit status 3.
   usage: shrink MIB MIB_LEFT */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096 };

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    long pages = atol(argv[1]) * 256, left = atol(argv[2]) * 256;
    unsigned char *p = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return 2;
    for (long i = 0; i < pages; i++) {
        memset(p + i * PAGE, i * 31 + 1, PAGE);
        memcpy(p + i * PAGE + 1000, &i, sizeof i);
    }
    munmap(p + left * PAGE, (pages - left) * PAGE);
    puts("ready");
    fflush(stdout);
    getchar();
    for (long i = 0; i < left; i++) {
        long mark;
        memcpy(&mark, p + i * PAGE + 1000, sizeof mark);
        if (mark != i || p[i * PAGE] != (unsigned char)(i * 31 + 1) || p[i * PAGE + 4095] != (unsigned char)(i * 31 + 1)) {
            printf("WRONG page %ld\n", i);
            return 3;
        }
    }
    puts("all bytes right");
    return 0;
}

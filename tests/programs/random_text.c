// Fills memory with pages that compress well, each different, and then looks at pages at random. Run as `random_text MIB LOOKS`.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { WORDS = 4096 / sizeof(uint64_t) };

// Words of a page repeat after 32.
static uint64_t word(uint64_t page, uint64_t at) {
    return (page + 1) * 0x9e3779b97f4a7c15 + at % 32 * (page | 1);
}

int main(int argc, char **argv) {
    uint64_t pages = (argc > 1 ? strtoull(argv[1], NULL, 10) : 32) << 8, looks = argc > 2 ? strtoull(argv[2], NULL, 10) : 40000;
    uint64_t *memory = mmap(NULL, pages << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        return 2;
    }
    for (uint64_t i = 0; i < pages * WORDS; i++)
        memory[i] = word(i / WORDS, i % WORDS);
    uint64_t seed = 1;
    for (uint64_t look = 0; look < looks; look++) {
        seed = seed * 6364136223846793005 + 1442695040888963407;
        uint64_t page = (seed >> 33) % pages;
        for (uint64_t i = 0; i < WORDS; i++)
            if (memory[page * WORDS + i] != word(page, i)) {
                printf("page %lu is wrong at word %lu\n", (unsigned long)page, (unsigned long)i);
                return 1;
            }
    }
    puts("all bytes right");
    return 0;
}

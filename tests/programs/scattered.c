/* Pages that were paged out in pairs, in random order, are read in order: each window of readahead takes many reads, and there are
 * few buffers.
 * Argument: how many MiB. Exit status 0, or 3 if a page is wrong. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { WORDS = 512 };

int main(int argc, char **argv)
{
    size_t pages = (size_t)atoi(argc > 1 ? argv[1] : "160") << 8, touches = pages;
    uint64_t *memory = malloc(pages * WORDS * sizeof *memory), random = 1;
    if (!memory)
        return 1;
    for (size_t i = 0; i < pages; i++)
        memory[i * WORDS] = i;
    while (touches--) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint64_t *two = memory + (random >> 33) % (pages / 2) * 2 * WORDS;
        two[1]++, two[WORDS + 1]++;
    }
    uint64_t sum = 0;
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < pages; i++) {
            if (memory[i * WORDS] != i) {
                printf("WRONG page %zu\n", i);
                return 3;
            }
            sum += memory[i * WORDS + 1];
        }
    return sum == 4 * pages ? 0 : 3; /* each round finds all touches */
}

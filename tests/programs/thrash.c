/* Threads whose working sets push each other out: each touches random pages of its own memory, and computes for a while at each.
 * One working set should fit into the budget, but not all. usage: thrash [MiB per thread [thousands of touches [THREADS]]]
 * Prints one line and exits 0; a wrong page is exit status 3. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { WORDS = 512, THREADS_MAX = 64, STEPS = 5000 };
static size_t pages, touches;

static void *work(void *arg)
{
    uint64_t id = (uintptr_t)arg, random = id;
    uint64_t *memory = malloc(pages * WORDS * sizeof *memory);
    if (!memory)
        exit(1);
    for (size_t i = 0; i < pages; i++)
        memory[i * WORDS] = i * 31 + id;
    for (size_t n = 0; n < touches; n++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        size_t i = (random >> 33) % pages;
        if (memory[i * WORDS] != i * 31 + id) {
            printf("WRONG thread %d page %zu\n", (int)id, i);
            exit(3);
        }
        uint64_t work = random;
        for (int k = 0; k < STEPS; k++) /* some microseconds */
            work = work * 2862933555777941757u + 3037000493u;
        memory[i * WORDS + 1] += work | 1;
    }
    free(memory);
    return 0;
}

int main(int argc, char **argv)
{
    pages = (size_t)atol(argc > 1 ? argv[1] : "64") << 8;
    touches = (size_t)atol(argc > 2 ? argv[2] : "400") * 1000;
    int threads = atoi(argc > 3 ? argv[3] : "2");
    pthread_t t[THREADS_MAX];
    for (int i = 0; i < threads; i++)
        if (pthread_create(&t[i], 0, work, (void *)(uintptr_t)(i + 1)))
            return 1;
    for (int i = 0; i < threads; i++)
        pthread_join(t[i], 0);
    puts("all pages right");
    return 0;
}

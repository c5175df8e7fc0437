/* One thread touches pages of its memory in random order: first all of them once, then some again, then some again while other
 * threads occupy every CPU. usage: alone [MiB [pages touched again each time [user id]]]
 * Prints one line and exits 0; a wrong page is exit status 3. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { WORDS = 512, HOGS_MAX = 64 };
static volatile int stop;
static uint64_t *memory, seed = 1;
static size_t pages;

static size_t chance(size_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % below;
}

static void *hog(void *arg)
{
    uint64_t work = (uintptr_t)arg;
    while (!stop)
        work = work * 2862933555777941757u + 3037000493u;
    return (void *)(uintptr_t)work;
}

static void again(size_t touches)
{
    for (size_t n = 0; n < touches; n++) {
        size_t i = chance(pages);
        if (memory[i * WORDS] != i * 31 + 1) {
            printf("WRONG page %zu\n", i);
            exit(3);
        }
        memory[i * WORDS + 1] += n;
    }
}

int main(int argc, char **argv)
{
    pages = (size_t)atol(argc > 1 ? argv[1] : "64") << 8;
    size_t touches = (size_t)atol(argc > 2 ? argv[2] : "4000");
    memory = malloc(pages * WORDS * sizeof *memory);
    uint32_t *order = malloc(pages * sizeof *order);
    if (!memory || !order || (argc > 3 && setuid(atoi(argv[3]))))
        return 1;
    for (size_t i = 0; i < pages; i++)
        order[i] = i;
    for (size_t i = pages - 1; i > 0; i--) {
        size_t k = chance(i + 1);
        uint32_t swapped = order[i];
        order[i] = order[k];
        order[k] = swapped;
    }
    for (size_t i = 0; i < pages; i++)
        memory[order[i] * (size_t)WORDS] = order[i] * (size_t)31 + 1;
    again(touches);

    long hogs = sysconf(_SC_NPROCESSORS_ONLN);
    pthread_t t[HOGS_MAX];
    if (hogs > HOGS_MAX)
        hogs = HOGS_MAX;
    for (long i = 0; i < hogs; i++)
        if (pthread_create(&t[i], 0, hog, (void *)(uintptr_t)i))
            return 1;
    again(touches);
    stop = 1;
    for (long i = 0; i < hogs; i++)
        pthread_join(t[i], 0);
    puts("all pages right");
    return 0;
}

// Touches 4000 pages in order twice, first writing, then reading; forks a child that touches 4000 others. Exit status 7.
// With an argument it waits, while it reads, until at most that many pages are mapped.
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 4000, PAGE = 4096 };

static volatile char *map(void)
{
    void *at = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        exit(1);
    return at;
}

static int mapped(volatile char *pages)
{
    unsigned char seen[PAGES];
    int n = 0;
    if (mincore((void *)pages, (size_t)PAGES * PAGE, seen))
        exit(4);
    for (int i = 0; i < PAGES; i++)
        n += seen[i] & 1;
    return n;
}

int main(int argc, char **argv)
{
    int most = argc > 1 ? atoi(argv[1]) : PAGES;
    volatile char *pages = map();
    for (size_t i = 0; i < PAGES; i++)
        pages[i * PAGE] = (char)(i % 100 + 1);
    for (size_t i = 0; i < PAGES; i++) {
        while (i % 256 == 0 && mapped(pages) > most)
            usleep(1000);
        if (pages[i * PAGE] != (char)(i % 100 + 1))
            return 2;
    }
    pid_t child = fork();
    if (child == 0) {
        volatile char *others = map();
        for (size_t i = 0; i < PAGES; i++)
            others[i * PAGE] = 1;
        _exit(0);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        return 3;
    return 7;
}

// Touches 4000 pages in order twice, first writing, then reading; forks a child that touches 4000 others. Exit status 7.
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

int main(void)
{
    volatile char *pages = map();
    for (size_t i = 0; i < PAGES; i++)
        pages[i * PAGE] = (char)(i % 100 + 1);
    for (size_t i = 0; i < PAGES; i++)
        if (pages[i * PAGE] != (char)(i % 100 + 1))
            return 2;
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

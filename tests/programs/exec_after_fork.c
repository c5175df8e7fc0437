/* Forks a child that keeps 32 MiB of its parent's, and execs itself. The new image fills 32 MiB of its own. Each finds its bytes.
   The child lives as long as the new image: it waits for the end of a pipe. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WORDS = 32 << 20 >> 3 };

static unsigned long word(unsigned long i, unsigned long salt) {
    i = (i + salt) * 0x9E3779B97F4A7C15;
    return (i ^ i >> 29) * 0xBF58476D1CE4E5B9;
}

static void fill(unsigned long *words, unsigned long salt) {
    for (unsigned long i = 0; i < WORDS; i++) words[i] = word(i, salt);
}

static void look(const unsigned long *words, unsigned long salt, const char *who) {
    unsigned long i = 0;
    while (i < WORDS && words[i] == word(i, salt)) i++;
    printf("%s: %s\n", who, i == WORDS ? "right" : "WRONG");
    fflush(stdout);
}

int main(int argc, char **argv) {
    unsigned long *words = malloc(8l * WORDS);
    fill(words, argc);
    if (argc > 1) {
        look(words, argc, "the new image");
        return 0;
    }
    int ends[2];
    if (pipe(ends)) return 1;
    if (!fork()) {
        char byte;
        close(ends[1]);
        while (read(ends[0], &byte, 1) > 0) {}
        look(words, argc, "the child");
        return 0;
    }
    execl(argv[0], argv[0], "again", (char *)0);
    return 1;
}

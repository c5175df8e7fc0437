/* Two children that do not show how they were started. The one sets its title as setproctitle(3), nginx and PostgreSQL do: over its
   arguments and its environment. The first thread of the other has ended, and the kernel tells nothing of such a thread. Prints
   their process ids, once they are hidden. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

extern char **environ;
static int hidden[2];

static void say(void) {
    char c = 'x';
    if (write(hidden[1], &c, 1) != 1) _exit(1);
}

static void *stays(void *first) {
    pthread_join(*(pthread_t *)first, 0);
    say();
    for (;;) pause();
}

int main(int argc, char **argv) {
    static pthread_t first;
    pthread_t thread;
    char c;
    alarm(250);
    if (pipe(hidden)) return 1;
    int titled = fork();
    if (titled == 0) {
        alarm(250);
        char *end = argv[argc - 1];
        for (char **e = environ; *e; e++) end = *e;
        memset(argv[0], 0, end + strlen(end) - argv[0]);
        strcpy(argv[0], "worker process");
        say();
        for (;;) pause();
    }
    int headless = fork();
    if (headless == 0) {
        alarm(250);
        first = pthread_self();
        if (pthread_create(&thread, 0, stays, &first)) return 1;
        pthread_exit(0);
    }
    for (int i = 0; i < 2; i++)
        if (read(hidden[0], &c, 1) != 1) return 1;
    printf("%d\n%d\n", titled, headless);
    fflush(stdout);
    for (;;) pause();
}

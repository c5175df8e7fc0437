/* Forks while another thread looks whether the process gets huge pages. It must not while a child is born, and before and after a
 * fork, parent and child must be as the program wants. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static int over, seen;

static void check(int is_right, const char *what)
{
    if (!is_right) {
        printf("WRONG: %s\n", what);
        exit(3);
    }
}

static void *look(void *unused)
{
    while (!__atomic_load_n(&over, __ATOMIC_SEQ_CST)) seen += prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1;
    return unused;
}

static void forks(int disabled)
{
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) _exit(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) != disabled);
        int status;
        check(child > 0 && waitpid(child, &status, 0) == child && status == 0, "a child has other huge pages than its parent");
        check(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == disabled, "the parent has other huge pages than before");
    }
}

int main(void)
{
    alarm(250);
    pthread_t thread;
    check(pthread_create(&thread, NULL, look, NULL) == 0, "a thread");
    forks(0);
    __atomic_store_n(&over, 1, __ATOMIC_SEQ_CST);
    check(pthread_join(thread, NULL) == 0 && seen > 0, "huge pages may come while a child is born");
    check(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0, "prctl");
    forks(1);
    puts("all bytes right");
    return 0;
}

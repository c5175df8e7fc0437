// gives_up CASE DIR [MIB]: gives up privileges in one of several ways, checks that all threads of the process have done so (the
// pager's, too), and goes on with more memory than the budget. DIR: a directory that only root may enter.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long bytes = 28 << 20;
#define BYTES bytes
#define PAGE 4096

static int fail(const char *what) { printf("%s: %s\n", what, strerror(errno)); exit(1); }
#define MUST(x) do { if (x) fail(#x); } while (0)

// the lines of a thread's status about its privileges
static int rights(const char *task, char *out, int size) {
    static const char *keys[] = { "Uid:", "Gid:", "Groups:", "CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:", "NoNewPrivs:", "Seccomp:", 0 };
    char path[64], line[4096]; int n = 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", task);
    FILE *f = fopen(path, "r"); if (!f) return 0;
    while (fgets(line, sizeof line, f)) {
        // the kernel's worker: each request has its issuer's credentials
        if (!strncmp(line, "Name:\tiou-", 10)) { fclose(f); return 0; }
        for (int k = 0; keys[k]; k++) if (!strncmp(line, keys[k], strlen(keys[k]))) n += snprintf(out + n, size - n, "%s", line);
    }
    fclose(f); return n;
}

static void all_alike(const char *when) {
    char mine[8192] = "", theirs[8192]; int threads = 0;
    char me[16]; snprintf(me, sizeof me, "%ld", (long)syscall(SYS_gettid));
    rights(me, mine, sizeof mine);
    DIR *d = opendir("/proc/self/task"); if (!d) fail("tasks");
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.' || !rights(e->d_name, theirs, sizeof theirs)) continue;
        threads++;
        if (strcmp(mine, theirs)) { printf("%s: this thread has\n%sand thread %s\n%s", when, mine, e->d_name, theirs); exit(1); }
    }
    closedir(d);
    if (threads < 2) { printf("%s: there is one thread only\n", when); exit(1); }
}

static unsigned char *p;
static void touch(int round) {
    for (long i = 0; i < BYTES / PAGE; i++) {
        unsigned long *word = (unsigned long *)(p + i * PAGE);
        if (round && *word != (unsigned long)(i * 31 + round - 1)) { printf("page %ld is wrong\n", i); exit(1); }
        *word = i * 31 + round;
    }
}

static volatile int stop;
static void *busy(void *arg) { for (long i = 0; !stop; i = (i + 17) % (BYTES / PAGE)) { volatile unsigned char c = p[i * PAGE + 8]; (void)c; } return arg; }

static int caps(unsigned permitted) {
    struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
    struct __user_cap_data_struct data[2] = { { permitted, permitted, 0 } };
    return syscall(SYS_capset, &head, data);
}


extern int capset(cap_user_header_t, cap_user_data_t);

static void cases(const char *name, const char *dir) {
    gid_t groups[3] = { 5, 6, 65534 };
    if (!strcmp(name, "setresuid") || !strcmp(name, "threads")) {
        MUST(setgroups(3, groups)); all_alike("setgroups");
        MUST(setresgid(65534, 65534, 65534)); all_alike("setresgid");
        MUST(setresuid(65534, 65534, 65534)); all_alike("setresuid");
        int fd = open(dir, O_RDONLY); if (fd >= 0) { printf("still root\n"); exit(1); }
    } else if (!strcmp(name, "setuid")) {
        MUST(initgroups("nobody", 65534)); all_alike("initgroups");
        MUST(setgid(65534)); all_alike("setgid");
        MUST(setuid(65534)); all_alike("setuid");
    } else if (!strcmp(name, "seteuid")) { // to and fro
        for (int i = 0; i < 5; i++) {
            MUST(setegid(65534)); MUST(seteuid(65534)); all_alike("seteuid");
            MUST(seteuid(0)); MUST(setegid(0)); all_alike("seteuid back");
        }
        MUST(setregid(65534, 65534)); MUST(setreuid(65534, 65534)); all_alike("setreuid");
    } else if (!strcmp(name, "syscall")) {
        MUST(syscall(SYS_setgroups, 0, 0)); MUST(syscall(SYS_setresgid, 65534, 65534, 65534)); MUST(syscall(SYS_setresuid, 65534, 65534, 65534));
        all_alike("syscall()");
    } else if (!strcmp(name, "capabilities")) {
        for (int cap = 30; cap < 35; cap++) MUST(prctl(PR_CAPBSET_DROP, cap, 0, 0, 0));
        all_alike("PR_CAPBSET_DROP");
        MUST(prctl(PR_SET_SECUREBITS, 0x0f, 0, 0, 0)); all_alike("PR_SET_SECUREBITS");
        struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
        struct __user_cap_data_struct data[2] = { { 1 << CAP_NET_BIND_SERVICE, 0xFFFF, 0 } };
        MUST(capset(&head, data)); all_alike("capset");
        MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)); all_alike("PR_SET_NO_NEW_PRIVS");
        MUST(caps(0)); all_alike("capset of nothing");
    } else if (!strcmp(name, "keepcaps")) { // a daemon that keeps one capability
        MUST(prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)); MUST(setresuid(65534, 65534, 65534)); MUST(caps(1 << CAP_NET_BIND_SERVICE));
        // the pager's threads need no capability
        char mine[8192];
        DIR *d = opendir("/proc/self/task"); struct dirent *e;
        while ((e = readdir(d))) if (e->d_name[0] != '.' && rights(e->d_name, mine, sizeof mine)) {
            if (!strstr(mine, "Uid:\t65534\t65534\t65534\t65534")) { printf("thread %s: %s", e->d_name, mine); exit(1); }
            unsigned long permitted = strtoul(strstr(mine, "CapPrm:") + 7, 0, 16);
            if (permitted & ~(1ul << CAP_NET_BIND_SERVICE)) { printf("thread %s: %s", e->d_name, mine); exit(1); }
        }
        closedir(d);
    } else if (!strcmp(name, "landlock")) {
        struct { unsigned long fs, net; } attributes = { 0x1fff, 0 }; // all file-system rights of Landlock's first version
        int ruleset = syscall(444, &attributes, 8, 0);
        if (ruleset < 0) { if (errno == ENOSYS || errno == EOPNOTSUPP) { printf("no Landlock here\n"); exit(0); } fail("landlock_create_ruleset"); }
        MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        MUST(syscall(446, ruleset, 0)); close(ruleset);
        if (open(dir, O_RDONLY) >= 0) { printf("not confined\n"); exit(1); }
    } else if (!strcmp(name, "seccomp") || !strcmp(name, "tsync")) { // a filter that the pager can live under
        struct sock_filter filter[] = { { 0x20, 0, 0, 0 }, { 0x15, 0, 1, SYS_mount }, { 6, 0, 0, 0x00050001 }, { 6, 0, 0, 0x7FFF0000 } };
        struct sock_fprog program = { 4, filter };
        MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        if (!strcmp(name, "seccomp")) { MUST(prctl(PR_SET_SECCOMP, 2, &program, 0, 0)); all_alike("PR_SET_SECCOMP"); }
        MUST(syscall(SYS_seccomp, 1, 1, &program)); all_alike("seccomp, all threads");
        if (syscall(SYS_mount, 0, 0, 0, 0, 0) != -1 || errno != EPERM) fail("mount");
    } else if (!strcmp(name, "strict")) { // a filter that the pager cannot live under
        struct sock_filter filter[] = { { 0x20, 0, 0, 0 }, { 0x15, 1, 0, SYS_ioctl }, { 6, 0, 0, 0x7FFF0000 }, { 6, 0, 0, 0 } };
        struct sock_fprog program = { 4, filter };
        MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)); MUST(prctl(PR_SET_SECCOMP, 2, &program, 0, 0));
        int tasks = 0; DIR *d = opendir("/proc/self/task"); while (readdir(d)) tasks++; closedir(d);
        printf("%d threads\n", tasks - 2); fflush(0);
    } else if (!strcmp(name, "files")) { // no file may be opened any more
        struct rlimit none = { 0, 0 };
        MUST(setrlimit(RLIMIT_NOFILE, &none));
        sleep(2);
        struct timespec t; clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
        sleep(1); // only the pager's threads could use the processor
        long before = t.tv_sec * 1000 + t.tv_nsec / 1000000; clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
        long ms = t.tv_sec * 1000 + t.tv_nsec / 1000000 - before;
        if (ms > 300) { printf("the pager used %ld ms of a second\n", ms); exit(1); }
    } else if (!strcmp(name, "asks")) { // libseccomp: is there this system call?
        if (syscall(SYS_seccomp, 0, 1, 0) != -1 || errno != EINVAL) fail("strict mode with flags");
    } else if (!strcmp(name, "no-mode") || !strcmp(name, "no-filter")) { // flags that there are not, an instruction that there is not
        int valid = !strcmp(name, "no-mode");
        struct sock_filter filter[] = { { valid ? 0x20 : 0xFFFF, 0, 0, 0 }, { 6, 0, 0, 0 } };
        struct sock_fprog program = { 2, filter };
        MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        if (syscall(SYS_seccomp, 1, valid ? 0x8000 : 0, &program) != -1 || errno != EINVAL) fail("a filter that is refused");
    } else if (!strcmp(name, "unmapped")) { // bubblewrap: a child in a user namespace that maps no id, or one
        MUST(setgroups(3, groups));
        for (int maps = 0; maps < 2; maps++) {
            pid_t child = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0); int status;
            if (child == 0) {
                int fd = maps ? open("/proc/self/uid_map", O_WRONLY) : -1;
                if (maps && write(fd, "1000 0 1", 8) != 8) fail("uid_map");
                MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)); all_alike("PR_SET_NO_NEW_PRIVS");
                MUST(caps(0)); all_alike("capset of nothing");
                touch(1); fflush(0); _exit(0);
            }
            if (child < 0 || waitpid(child, &status, 0) != child || status) { printf("the child: %x\n", status); exit(1); }
        }
    } else if (!strcmp(name, "no-namespace")) {
        if (unshare(CLONE_NEWUSER | 0x10) != -1 || errno != EINVAL) fail("a namespace that there is not");
    } else if (!strcmp(name, "new-pids")) { // its next child is the first process of a namespace, and must be one of its own
        MUST(unshare(CLONE_NEWPID));
        if (unshare(CLONE_NEWUSER | 0x10) != -1 || errno != EINVAL) fail("a namespace that there is not");
        for (int i = 0; i < 2; i++) {
            pid_t child = fork(); int status;
            if (child == 0) { sleep(i == 0); _exit(0); }
            if (i == 0) continue;
            if (waitpid(child, &status, 0) != child || status) fail("a child");
        }
    } else if (!strcmp(name, "no-memfd")) { // firejail's --memory-deny-write-execute: what it starts may make no memory file
        struct sock_filter filter[] = { { 0x20, 0, 0, 0 }, { 0x15, 0, 1, SYS_memfd_create }, { 6, 0, 0, 0x00050001 }, { 6, 0, 0, 0x7FFF0000 } };
        struct sock_fprog program = { 4, filter };
        MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)); MUST(prctl(PR_SET_SECCOMP, 2, &program, 0, 0));
        pid_t child = vfork(); int status;
        if (child == 0) { execl("/bin/echo", "echo", "another program", (char *)0); _exit(1); }
        if (waitpid(child, &status, 0) != child || status) { printf("the other program: %x\n", status); exit(1); }
    } else if (!strcmp(name, "exec")) { // a daemon that gives up root and starts another program
        MUST(setresgid(65534, 65534, 65534)); MUST(setresuid(65534, 65534, 65534));
        pid_t child = vfork(); int status;
        if (child == 0) { execl("/bin/echo", "echo", "another program", (char *)0); _exit(1); }
        if (waitpid(child, &status, 0) != child || status) { printf("the other program: %x\n", status); exit(1); }
    } else { printf("which case is %s?\n", name); exit(1); }
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "", *dir = argc > 2 ? argv[2] : "/root";
    if (argc > 3) bytes = atol(argv[3]) << 20;
    pthread_t threads[3]; int busy_threads = !strcmp(name, "threads") || !strcmp(name, "tsync") ? 3 : 0;
    p = malloc(BYTES + PAGE); p = (unsigned char *)(((unsigned long)p + PAGE - 1) & -PAGE);
    if (!strcmp(dir, "first")) cases(name, dir); // before anything is paged
    touch(0);
    for (int i = 0; i < busy_threads; i++) MUST(pthread_create(&threads[i], 0, busy, 0));
    if (strcmp(dir, "first")) cases(name, dir);
    for (int round = 1; round < 2; round++) touch(round);
    stop = 1;
    for (int i = 0; i < busy_threads; i++) pthread_join(threads[i], 0);
    printf("right\n");
    return 0;
}

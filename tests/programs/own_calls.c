/* A library that stands in for some functions of libc, as tcmalloc, torsocks and fakeroot do. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

void *mmap(void *at, size_t len, int prot, int flags, int fd, off_t offset) { return REAL(mmap)(at, len, prot, flags, fd, offset); }
int munmap(void *at, size_t len) { return REAL(munmap)(at, len); }
int setuid(uid_t user) { return REAL(setuid)(user); }

long syscall(long number, ...) {
    long a[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

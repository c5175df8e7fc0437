// A random tester of the address-space calls, with a model. Each thread makes calls in arenas of its own. The model has for each
// page there its contents, its protection and what a child gets of it. In two more arenas all threads race, and the rules are
// weaker: in one of them every word is zero or was written by some thread; in the other nothing is ever discarded, and each
// thread's counters are exact. Without a pager the program must find no difference, which shows that the model is right. On a
// difference it prints the seed, the step, what was expected and the last calls of the thread, and ends with status 1.
//
//   address_space [--seed N] [--seeds N] [--steps N] [--threads N] [--pages N] [--without KIND,...] [--only KIND,...]
//                 [--raw PERCENT] [--verbose]
//
// With the same seed each thread makes the same sequence of calls. KIND is the name of an operation in `operations`, or of a
// variant (see `variant`). --seeds runs that many seeds one after the other, each in a process of its own.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define BLOCKS 4
#define BLOCK (PAGE / BLOCKS)
#define WORDS (BLOCK / 8)
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#ifndef MADV_COLD
#define MADV_COLD 20
#define MADV_PAGEOUT 21
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

typedef uint64_t u64;
typedef uint32_t u32;
typedef uint8_t u8;

// ---- the model ----

enum kind { NONE, ANON, PRIVATE_FILE, SHARED };
// Whether the kernel has a page in the same mapping as the page before it.
enum { NO, MAYBE, SURE };
enum { NORESERVE = 1, GROWSDOWN = 2, DONTFORK = 4, WIPE = 8, DONTDUMP = 16, HUGE_ON = 32, HUGE_OFF = 64, MERGE = 128 };

struct page {
    u8 kind, prot, flags;
    u8 locked;  // 1: mlock, 2: on fault
    u8 guard;
    u8 lazy;    // after MADV_FREE: holds what `tags` says, or zeroes
    u8 joined;  // SURE or MAYBE: in one mapping with the page before, if their flags are equal
    u8 pure;    // neither moved nor changed since mmap
    int object, index; // of a file or shared memory
    u64 tags[BLOCKS];  // what each block holds; 0: zeroes
};

enum { ARENA, FLOATING, HEAP };
struct space {
    char *base;
    int n, kind;
    struct page *p;
};

#define FLOATS 6
#define FLOAT_PAGES 768
#define HEAP_PAGES 1024
#define OBJECTS 12
#define OBJECT_PAGES 256
#define FILE_PAGES 512
#define CALLS 20
#define CHILDREN 2
#define RACE_PAGES 1024
#define COUNTER_PAGES 1024
#define THREADS 16

// Shared memory, or the memory file (object 0): all its mappings show the same pages.
struct object {
    int pages, refs;
    u64 tags[OBJECT_PAGES][BLOCKS];
};

struct thread {
    int id, steps, depth, raced;
    u64 seed, random, serial;
    volatile int step;
    pthread_t handle;
    struct space spaces[2 + FLOATS]; // arena, heap, floating ones
    struct object objects[OBJECTS];
    int memory_file, pipe[2], scratch;
    u64 scratch_tags[64][BLOCKS];
    pid_t children[CHILDREN];
    char calls[CALLS][256];
    int call;
    // signals
    volatile int probing, signals;
    volatile uintptr_t fault;
    sigjmp_buf out;
    long heap_bytes;
    u64 counts[COUNTER_PAGES];
};

static __thread struct thread *me;
static struct thread *threads[THREADS];
static volatile int ready[THREADS];
static int threads_n = 1, verbose, raw_percent, arena_pages, can_merge, strict_mremap;
static int file, write_only, direct = -1;
static char *race, *counters;
static char without[512], only[512];
static volatile int reporting;
static pthread_barrier_t begin;

static u64 rnd(void) {
    u64 z = me->random += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
}
static int below(int n) { return n <= 1 ? 0 : (int)(rnd() % (u64)n); }
static int percent(int p) { return below(100) < p; }
static int in_child(void) { return me->depth > 0; }

static int named(const char *list, const char *name) {
    size_t n = strlen(name);
    for (const char *at = list; (at = strstr(at, name)); at += n)
        if ((at == list || at[-1] == ',') && (!at[n] || at[n] == ',')) return 1;
    return 0;
}
// Whether a variant of an operation is wanted. The variants are those of `advices`, failN, and seams multi neighbours growsdown
// lock lock-grow dontunmap old-zero hint populate hugetlb grandchildren maps.
static int variant(const char *name) { return !named(without, name); }

// ---- telling ----

static const char *place(const struct space *s, int a) {
    static __thread char text[8][24];
    static __thread int at;
    char *t = text[at++ % 8];
    if (s->kind == ARENA) snprintf(t, 24, "A+%d", a);
    else if (s->kind == HEAP) snprintf(t, 24, "B+%d", a);
    else snprintf(t, 24, "F%d+%d", (int)(s - me->spaces) - 2, a);
    return t;
}

__attribute__((format(printf, 1, 2))) static void call(const char *format, ...) {
    char *line = me->calls[me->call++ % CALLS];
    int n = snprintf(line, 256, "%d: ", me->step);
    va_list list;
    va_start(list, format);
    vsnprintf(line + n, 256 - n, format, list);
    va_end(list);
}
static long result(long r) {
    int e = errno;
    char *line = me->calls[(me->call + CALLS - 1) % CALLS];
    size_t n = strlen(line);
    if (r == -1) snprintf(line + n, 256 - n, " = %s", strerrorname_np(e) ? strerrorname_np(e) : "?");
    else snprintf(line + n, 256 - n, r > -4096 && r < 1 << 30 ? " = %ld" : " = 0x%lx", r);
    if (verbose) fprintf(stderr, "[%d.%d] %s\n", me->id, me->depth, line);
    errno = e;
    return r;
}

__attribute__((format(printf, 1, 2), noreturn)) static void differ(const char *format, ...) {
    while (__atomic_exchange_n(&reporting, 1, __ATOMIC_ACQUIRE)) pause(); // one is enough
    char text[12000];
    size_t n = snprintf(text, sizeof text, "DIFFERENCE: seed %lu, thread %d, step %d", me->seed, me->id, me->step);
    if (me->depth) n += snprintf(text + n, sizeof text - n, " of a child (generation %d)", me->depth);
    n += snprintf(text + n, sizeof text - n, ": ");
    va_list list;
    va_start(list, format);
    n += vsnprintf(text + n, sizeof text - n, format, list);
    va_end(list);
    n += snprintf(text + n, sizeof text - n, "\nits last calls:\n");
    for (int i = me->call < CALLS ? 0 : me->call - CALLS; i < me->call; i++)
        n += snprintf(text + n, sizeof text - n, "  %s\n", me->calls[i % CALLS]);
    n += snprintf(text + n, sizeof text - n, "spaces:");
    for (int i = 0; i < 2 + FLOATS; i++)
        if (me->spaces[i].base) n += snprintf(text + n, sizeof text - n, " %s at %p", place(&me->spaces[i], 0), me->spaces[i].base);
    n += snprintf(text + n, sizeof text - n, "\n");
    ssize_t w = write(1, text, n);
    (void)w;
    _exit(1);
}

static void expect(long r, long want, int error) {
    int e = errno;
    if (r == -1 ? e != error || want != -1 : r != want) {
        if (want == -1) differ("expected %s", strerrorname_np(error));
        differ("expected %ld (0x%lx)", want, want);
    }
}

// ---- the calls: libc's, and a share of raw ones ----

// A system call without libc: a pager that follows libc's calls, syscall() included, does not see it.
static long past_libc(long number, long a, long b, long c, long d, long e, long f) {
#ifdef __x86_64__
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long r;
    __asm__ volatile("syscall" : "=a"(r) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    if (r < 0 && r >= -4095) {
        errno = (int)-r;
        return -1;
    }
    return r;
#else
    return syscall(number, a, b, c, d, e, f);
#endif
}

static int raw(void) { return raw_percent && percent(raw_percent); }
static void *my_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset) {
    return raw() ? (void *)past_libc(SYS_mmap, (long)at, (long)n, prot, flags, fd, offset) : mmap(at, n, prot, flags, fd, offset);
}
static int my_munmap(void *at, size_t n) { return raw() ? (int)past_libc(SYS_munmap, (long)at, (long)n, 0, 0, 0, 0) : munmap(at, n); }
static int my_mprotect(void *at, size_t n, int prot) {
    return raw() ? (int)past_libc(SYS_mprotect, (long)at, (long)n, prot, 0, 0, 0) : mprotect(at, n, prot);
}
// The kernel reports to a pager what is unmapped, moved and discarded, but not these.
static int untold(int advice) {
    return advice == MADV_WIPEONFORK || advice == MADV_KEEPONFORK || advice == MADV_GUARD_INSTALL || advice == MADV_GUARD_REMOVE;
}
static int my_madvise(void *at, size_t n, int advice) {
    return raw() && !untold(advice) ? (int)past_libc(SYS_madvise, (long)at, (long)n, advice, 0, 0, 0) : madvise(at, n, advice);
}
static void *my_mremap(void *at, size_t n, size_t to_n, int flags, void *to) {
    if (raw()) return (void *)past_libc(SYS_mremap, (long)at, (long)n, (long)to_n, flags, (long)to, 0);
    return mremap(at, n, to_n, flags, to);
}

// ---- pages ----

static struct space *arena(void) { return &me->spaces[0]; }
static struct space *heap(void) { return &me->spaces[1]; }
static char *at(const struct space *s, int a) { return s->base + (size_t)a * PAGE; }

static u64 new_tag(void) { return (u64)(me->depth * 16 + me->id + 1) << 56 | ++me->serial << 8 | 0xA5; }
static u64 file_tag(int index, int block) { return 0xF11E000000000000 | (u64)index << 8 | (u64)block; }
static u64 word_of(u64 tag, int i) { return tag ? tag ^ (u64)i * 0x9E3779B97F4A7C15 : 0; }

static void fill(void *to, u64 tag) {
    u64 *w = to;
    for (int i = 0; i < WORDS; i++) w[i] = word_of(tag, i);
}
// The first wrong word, or -1.
static int wrong_word(const void *from, u64 tag) {
    const volatile u64 *w = from;
    for (int i = 0; i < WORDS; i++)
        if (w[i] != word_of(tag, i)) return i;
    return -1;
}

static u64 *tags(struct page *p) { return p->kind == SHARED ? me->objects[p->object].tags[p->index] : p->tags; }
static int readable(const struct page *p) { return p->kind && (p->prot & (PROT_READ | PROT_WRITE)) && !p->guard; }
static int writable(const struct page *p) { return p->kind && (p->prot & PROT_WRITE) && !p->guard; }
// A child shares this memory with its parent, which may change it at any time.
static int foreign(const struct page *p) { return p->kind == SHARED && in_child(); }
static int changeable(const struct page *p) { return writable(p) && !foreign(p); }
static int certain(const struct page *p) { return readable(p) && !foreign(p) && !p->lazy; }

static int certain_read(const struct page *p) { return certain(p) && p->prot & PROT_READ; }

static void empty(struct page *p) {
    p->lazy = 0;
    for (int b = 0; b < BLOCKS; b++) p->tags[b] = p->kind == PRIVATE_FILE ? file_tag(p->index, b) : 0;
}

static int same_flags(const struct page *a, const struct page *b) {
    if (a->kind != b->kind || a->prot != b->prot || a->flags != b->flags || a->locked != b->locked) return 0;
    return a->kind == ANON || (a->object == b->object && b->index == a->index + 1);
}
static int joined(struct space *s, int a) {
    if (a <= 0 || a >= s->n || !s->p[a].kind || !s->p[a - 1].kind || !same_flags(&s->p[a - 1], &s->p[a])) return NO;
    return s->p[a].joined;
}
// Whether the kernel has the range in one mapping.
static int one_mapping(struct space *s, int a, int n) {
    int all = SURE;
    if (a < 0 || a + n > s->n || !s->p[a].kind) return NO;
    for (int i = a + 1; i < a + n; i++) {
        int j = joined(s, i);
        if (j < all) all = j;
    }
    return all;
}
// The flags of a..b were changed. Where they differ from a neighbour's there are two mappings now, and these may stay two.
static void seam(struct space *s, int a, int b) {
    for (int i = 0; i < 2; i++) {
        int x = i ? b : a;
        if (x > 0 && x < s->n && s->p[x].kind && !(s->p[x - 1].kind && same_flags(&s->p[x - 1], &s->p[x]))) s->p[x].joined = MAYBE;
    }
    for (int i = a; i < b; i++) s->p[i].pure = 0;
}

static void release(struct page *p) {
    if (p->kind == SHARED) me->objects[p->object].refs--;
    memset(p, 0, sizeof *p);
}
static void release_range(struct space *s, int a, int n) {
    for (int i = a; i < a + n; i++) release(&s->p[i]);
    if (a + n < s->n) s->p[a + n].joined = MAYBE;
    if (s->kind != FLOATING) return;
    for (int i = 0; i < s->n; i++)
        if (s->p[i].kind) return;
    s->base = 0; // nothing left
}
static int locked_pages(void) {
    int n = 0;
    for (int k = 0; k < 2 + FLOATS; k++)
        for (int i = 0; me->spaces[k].base && i < me->spaces[k].n; i++) n += me->spaces[k].p[i].locked != 0;
    return n;
}
static int mapped_in(struct space *s, int a, int n) {
    int m = 0;
    for (int i = a; i < a + n; i++) m += s->p[i].kind != NONE;
    return m;
}

// ---- looking at pages ----

static const char *told(const struct page *p) {
    static __thread char text[128];
    snprintf(text, sizeof text, "kind %d, prot %d, flags %d, locked %d, guard %d, lazy %d", p->kind, p->prot, p->flags, p->locked, p->guard, p->lazy);
    return text;
}

// Reads or writes one byte; returns whether that was possible.
static int touches(char *p, int write) {
    if (sigsetjmp(me->out, 0)) {
        if (me->fault != (uintptr_t)p) differ("a signal at %#lx instead of %p", me->fault, p);
        return 0;
    }
    me->probing = 1;
    volatile char *v = p;
    if (write) *v = 1;
    else (void)*v;
    me->probing = 0;
    return 1;
}

// A page after MADV_FREE and a write to a part of it: the rest holds what it held or zeroes, and cannot change any more.
static void settle(struct space *s, int a, int written) {
    struct page *p = &s->p[a];
    if (!p->lazy) return;
    int old = 0, zero = 0;
    for (int b = 0; b < BLOCKS; b++) {
        if (written & 1 << b || !p->tags[b]) continue;
        char *from = at(s, a) + b * BLOCK;
        if (wrong_word(from, p->tags[b]) < 0) old++;
        else if (wrong_word(from, 0) < 0) zero++, p->tags[b] = 0;
        else differ("%s, block %d after MADV_FREE and a partial write: neither what it was nor zeroes: %#lx", place(s, a), b, *(u64 *)from);
    }
    if (old && zero) differ("%s after MADV_FREE and a partial write: some blocks are zeroes, others not", place(s, a));
    p->lazy = 0;
}

static void check_page(struct space *s, int a) {
    struct page *p = &s->p[a];
    if (!p->kind || foreign(p)) return;
    if (!readable(p)) {
        if (p->prot == PROT_EXEC && !p->guard) return; // whether it can be read depends on the processor
        if (below(16) == 0 && touches(at(s, a), 0)) differ("%s can be read (%s)", place(s, a), told(p));
        return;
    }
    if (!writable(p) && below(32) == 0 && touches(at(s, a), 1)) differ("%s can be written (%s)", place(s, a), told(p));
    int gone = 0;
    for (int b = 0; b < BLOCKS; b++) {
        char *from = at(s, a) + b * BLOCK;
        u64 tag = tags(p)[b];
        if (gone && tag) tag = 0;
        int w = wrong_word(from, tag);
        if (w >= 0 && p->lazy && (b == 0 || !p->tags[0]) && !gone && tag && wrong_word(from, 0) < 0) gone = 1, w = -1;
        if (w >= 0) {
            u64 found = ((volatile u64 *)from)[w];
            differ("%s block %d word %d: expected %#lx (tag %#lx), found %#lx (tag %#lx); %s", place(s, a), b, w, word_of(tag, w), tag, found,
                   found ^ (u64)w * 0x9E3779B97F4A7C15, told(p));
        }
    }
    if (gone) empty(p);
}
static void check_range(struct space *s, int a, int n) {
    for (int i = a; i < a + n; i++) check_page(s, i);
}

static void write_page(struct space *s, int a) {
    struct page *p = &s->p[a];
    if (!changeable(p)) return;
    int blocks = percent(75) ? 15 : 1 + below(15);
    for (int b = 0; b < BLOCKS; b++) {
        if (!(blocks & 1 << b)) continue;
        u64 tag = tags(p)[b] = percent(92) ? new_tag() : 0;
        fill(at(s, a) + b * BLOCK, tag);
    }
    settle(s, a, blocks);
}

// What is mapped, as the kernel tells it.
static void check_mapped(struct space *s, int a, int n) {
    unsigned char there[1024];
    if (n > 1024) n = 1024;
    int hole = mapped_in(s, a, n) != n;
    call("mincore(%s, %d)", place(s, a), n);
    expect(result(mincore(at(s, a), (size_t)n * PAGE, there)), hole ? -1 : 0, ENOMEM);
}

// Compares the arena's mappings and their protections with /proc/self/maps.
static void check_maps(void) {
    static __thread char text[1 << 17];
    struct space *s = arena();
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    size_t have = 0;
    ssize_t got;
    int at_page = 0;
    uintptr_t lo = (uintptr_t)s->base, hi = lo + (size_t)s->n * PAGE;
    while (fd >= 0 && (got = read(fd, text + have, sizeof text - 1 - have)) > 0) {
        have += got;
        text[have] = 0;
        char *line = text, *end;
        for (; (end = strchr(line, '\n')); line = end + 1) {
            unsigned long from, to;
            char prot[8];
            if (sscanf(line, "%lx-%lx %7s", &from, &to, prot) != 3 || to <= lo || from >= hi) continue;
            int a = from <= lo ? 0 : (int)((from - lo) / PAGE), b = to >= hi ? s->n : (int)((to - lo) / PAGE);
            for (; at_page < a; at_page++)
                if (s->p[at_page].kind) differ("%s is not mapped, says /proc/self/maps (%s)", place(s, at_page), told(&s->p[at_page]));
            int bits = (prot[0] == 'r') * PROT_READ | (prot[1] == 'w') * PROT_WRITE | (prot[2] == 'x') * PROT_EXEC;
            for (; at_page < b; at_page++)
                if (!s->p[at_page].kind || s->p[at_page].prot != bits)
                    differ("%s is %s, says /proc/self/maps (%s)", place(s, at_page), prot, told(&s->p[at_page]));
        }
        have -= line - text;
        memmove(text, line, have);
    }
    close(fd);
    for (; at_page < s->n; at_page++)
        if (s->p[at_page].kind) differ("%s is not mapped, says /proc/self/maps (%s)", place(s, at_page), told(&s->p[at_page]));
}

static void check_all(void) {
    call("check all");
    for (int k = 0; k < 2 + FLOATS; k++)
        if (me->spaces[k].base) check_range(&me->spaces[k], 0, me->spaces[k].n);
    check_mapped(arena(), 0, 1024);
    if (!named(without, "maps")) check_maps();
}

// ---- choosing ----

static int some_length(void) {
    int k = below(100);
    return k < 50 ? 1 + below(8) : k < 85 ? 1 + below(64) : k < 97 ? 1 + below(300) : 1 + below(900);
}
static struct space *some_space(void) {
    int k = below(100);
    if (k < 70) return arena();
    if (k < 80) return heap()->base ? heap() : arena();
    struct space *s = &me->spaces[2 + below(FLOATS)];
    return s->base ? s : arena();
}
// A range of some space. In a floating space the range is mapped: the rest may be in use by others.
static int some_range(struct space *s, int *a, int *n) {
    int length = some_length();
    *a = below(s->n);
    if (s->kind == ARENA) {
        if (percent(25)) // the start of a mapping
            while (*a > 0 && s->p[*a].kind && s->p[*a - 1].kind && same_flags(&s->p[*a - 1], &s->p[*a])) --*a;
        *n = length < s->n - *a ? length : s->n - *a;
        return 1;
    }
    for (int tries = 0; tries < 8 && !s->p[*a].kind; tries++) *a = below(s->n);
    for (*n = 0; *n < length && *a + *n < s->n && s->p[*a + *n].kind; ++*n) {}
    return *n > 0;
}
// A range whose pages are all `good`.
static int good_range(struct space **s, int *a, int *n, int (*good)(const struct page *)) {
    for (int tries = 0; tries < 6; tries++) {
        *s = some_space();
        int length = some_length();
        if (length > 200) length = 200;
        *a = below((*s)->n);
        for (int i = 0; i < 40 && !good(&(*s)->p[*a]); i++) *a = (*a + 7) % (*s)->n;
        for (*n = 0; *n < length && *a + *n < (*s)->n && good(&(*s)->p[*a + *n]); ++*n) {}
        if (*n) return 1;
    }
    return 0;
}
// How many pages from `a` on, `n` at most, are different pages: shared memory may be mapped twice. A device writes the pages of one
// direct read in any order, so what a page holds that occurs twice cannot be told.
static int different(const struct space *s, int a, int n) {
    for (int i = 1; i < n; i++)
        for (int k = 0; k < i; k++) {
            const struct page *p = &s->p[a + i], *q = &s->p[a + k];
            if (p->kind == SHARED && q->kind == SHARED && p->object == q->object && p->index == q->index) return i;
        }
    return n;
}
static struct space *free_float(void) {
    for (int i = 2; i < 2 + FLOATS; i++)
        if (!me->spaces[i].base) return &me->spaces[i];
    return 0;
}
static int some_prot(void) {
    static const u8 all[] = {PROT_NONE, PROT_READ, PROT_READ, PROT_WRITE, PROT_EXEC, PROT_READ | PROT_EXEC, PROT_READ | PROT_WRITE | PROT_EXEC, PROT_READ | PROT_WRITE | PROT_EXEC};
    return percent(65) ? PROT_READ | PROT_WRITE : all[below(sizeof all)];
}
// A length in bytes that the kernel rounds up to `n` pages.
static size_t ragged(int n) { return (size_t)n * PAGE - (percent(30) ? below(PAGE) : 0); }

// ---- operations ----

static void op_write(void) {
    struct space *s = some_space();
    int a, n;
    if (!some_range(s, &a, &n)) return;
    call("write(%s, %d)", place(s, a), n);
    for (int i = a; i < a + n; i++) write_page(s, i);
}

static void op_check(void) {
    struct space *s = some_space();
    int a, n;
    if (!some_range(s, &a, &n)) return;
    call("check(%s, %d)", place(s, a), n);
    check_range(s, a, n);
    if (percent(20)) check_mapped(s, a, n);
}

static void op_maps(void) { check_maps(); }

static void mapped(struct space *s, int a, int n, struct page like) {
    for (int i = a; i < a + n; i++) {
        release(&s->p[i]);
        s->p[i] = like;
        s->p[i].index = like.index + (like.kind == ANON ? 0 : i - a);
        s->p[i].joined = SURE;
        if (like.kind == SHARED) me->objects[like.object].refs++;
        empty(&s->p[i]);
    }
    s->p[a].joined = MAYBE;
    if (a + n < s->n) s->p[a + n].joined = MAYBE;
    if (s->kind != ARENA || like.kind != ANON || in_child() || like.flags & GROWSDOWN || !variant("neighbours")) return;
    // Linux joins a new mapping to the one below, or, if that does not fit, to the one above.
    if (a > 0 && s->p[a - 1].kind && same_flags(&s->p[a - 1], &s->p[a])) {
        if (s->p[a - 1].pure) s->p[a].joined = SURE;
    } else if (a + n < s->n && s->p[a + n].pure && s->p[a + n].kind && same_flags(&s->p[a + n - 1], &s->p[a + n])) {
        s->p[a + n].joined = SURE;
    }
}

static void new_float(char *base, int n, struct page like) {
    struct space *s = free_float();
    if (!s) {
        call("munmap of that");
        expect(result(my_munmap(base, (size_t)n * PAGE)), 0, 0);
        return;
    }
    s->base = base, s->n = n;
    memset(s->p, 0, sizeof *s->p * (size_t)n);
    mapped(s, 0, n, like);
}

static void op_mmap(void) {
    struct space *s = arena();
    int a = below(s->n), n = some_length(), prot = some_prot(), flags = MAP_PRIVATE | MAP_ANONYMOUS, how = below(100);
    if (n > s->n - a) n = s->n - a;
    struct page like = {.kind = ANON, .prot = prot, .pure = 1};
    if (percent(30) && n > 1) { // right after the end of a mapping
        while (a < s->n - n && s->p[a].kind) a++;
    }
    if (percent(15) && variant("populate")) flags |= MAP_POPULATE;
    if (percent(20)) flags |= MAP_NORESERVE, like.flags |= NORESERVE;
    if (percent(5) && n <= 16 && variant("lock") && locked_pages() + n <= 64 / threads_n) flags |= MAP_LOCKED, like.locked = 1;
    else if (percent(6) && n <= 32 && variant("growsdown")) flags |= MAP_GROWSDOWN, like.flags |= GROWSDOWN;
    if (how < 60 || !variant("hint")) flags |= MAP_FIXED;
    else if (how < 75) flags |= MAP_FIXED_NOREPLACE;
    if (how >= 85 && variant("hint")) {
        if (n > FLOAT_PAGES) n = FLOAT_PAGES;
        if (flags & MAP_GROWSDOWN) return;
        call("mmap(0, %d, prot %d, %#x)", n, prot, flags);
        void *r = my_mmap(0, ragged(n), prot, flags, -1, 0);
        if (result((long)r) == -1) differ("expected an address");
        new_float(r, n, like);
        return;
    }
    int taken = mapped_in(s, a, n);
    call("mmap(%s, %d, prot %d, %#x)", place(s, a), n, prot, flags);
    long r = result((long)my_mmap(at(s, a), ragged(n), prot, flags, -1, 0));
    if (flags & MAP_FIXED) expect(r, (long)at(s, a), 0);
    else if (flags & MAP_FIXED_NOREPLACE) {
        expect(r, taken ? -1 : (long)at(s, a), EEXIST);
        if (taken) return;
    } else if (r != (long)at(s, a) || taken) {
        if (r == -1 || ((uintptr_t)r >= (uintptr_t)s->base && (uintptr_t)r < (uintptr_t)s->base + (size_t)s->n * PAGE))
            differ("expected another address");
        if (flags & MAP_GROWSDOWN || n > FLOAT_PAGES) expect(munmap((void *)r, (size_t)n * PAGE), 0, 0);
        else new_float((char *)r, n, like);
        return;
    }
    mapped(s, a, n, like);
    if (percent(50))
        for (int i = a; i < a + n; i++) write_page(s, i);
    else check_range(s, a, n);
}

// A MAP_GROWSDOWN mapping grows when the page below it is touched.
static void op_grow_down(void) {
    struct space *s = arena();
    if (!variant("growsdown")) return;
    int a = below(s->n);
    for (int i = 0; i < s->n; i++, a = (a + 1) % s->n)
        if (a > 300 && s->p[a].flags & GROWSDOWN && writable(&s->p[a]) && !s->p[a - 1].kind) break;
    if (!(a > 300 && s->p[a].flags & GROWSDOWN && writable(&s->p[a]) && !s->p[a - 1].kind) || mapped_in(s, a - 300, 300)) return;
    call("grow down below %s", place(s, a));
    struct page like = s->p[a];
    like.guard = like.pure = like.lazy = 0;
    result(touches(at(s, a - 1), 0));
    s->p[a - 1] = like;
    empty(&s->p[a - 1]);
    s->p[a].joined = MAYBE;
    if (wrong_word(at(s, a - 1), 0) >= 0) differ("a page that a stack grew by is not empty");
    write_page(s, a - 1);
}

static void op_mmap_file(void) {
    struct space *s = arena();
    int a = below(s->n), n = 1 + below(48);
    if (n > s->n - a) n = s->n - a;
    struct page like = {.kind = PRIVATE_FILE, .prot = some_prot() & ~PROT_EXEC};
    int flags = MAP_FIXED, fd = file, offset;
    if (percent(30)) {
        like.kind = SHARED;
        flags |= MAP_SHARED;
        fd = me->memory_file;
        offset = below(OBJECT_PAGES - n);
    } else {
        flags |= MAP_PRIVATE;
        offset = below(FILE_PAGES - n);
    }
    if (percent(20)) flags |= MAP_POPULATE;
    if (percent(20)) flags |= MAP_NORESERVE, like.flags |= NORESERVE;
    like.index = offset;
    call("mmap(%s, %d, prot %d, %#x, %s at %d)", place(s, a), n, like.prot, flags, like.kind == SHARED ? "memory file" : "file", offset);
    expect(result((long)my_mmap(at(s, a), ragged(n), like.prot, flags, fd, (off_t)offset * PAGE)), (long)at(s, a), 0);
    mapped(s, a, n, like);
    if (percent(30))
        for (int i = a; i < a + n; i++) write_page(s, i);
}

static void op_mmap_shared(void) {
    struct space *s = arena();
    int a = below(s->n), n = 1 + below(64), object = 1;
    if (n > s->n - a) n = s->n - a;
    while (object < OBJECTS && me->objects[object].refs) object++;
    if (object == OBJECTS || in_child()) return;
    struct page like = {.kind = SHARED, .prot = some_prot(), .object = object};
    memset(&me->objects[object], 0, sizeof me->objects[object]);
    me->objects[object].pages = n;
    call("mmap(%s, %d, prot %d, MAP_SHARED)", place(s, a), n, like.prot);
    expect(result((long)my_mmap(at(s, a), ragged(n), like.prot, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0)), (long)at(s, a), 0);
    mapped(s, a, n, like);
    for (int i = a; i < a + n; i++) write_page(s, i);
}

static void op_munmap(void) {
    struct space *s = percent(80) ? arena() : some_space();
    int a, n;
    if (s->kind == HEAP || !some_range(s, &a, &n)) return;
    call("munmap(%s, %d)", place(s, a), n);
    expect(result(my_munmap(at(s, a), ragged(n))), 0, 0);
    release_range(s, a, n);
}

// `n` pages move from s to t, where they become `to_n`; with `keep` the old range stays mapped.
static void moved(struct space *s, int a, int n, struct space *t, int b, int to_n, int keep) {
    static __thread struct page all[4096];
    memcpy(all, &s->p[a], sizeof *all * (size_t)n);
    for (int i = 0; i < n; i++)
        if (s->p[a + i].kind == SHARED) me->objects[s->p[a + i].object].refs++; // for the copy
    for (int i = n; i < to_n; i++) {
        all[i] = all[n - 1];
        all[i].guard = 0;
        all[i].index = all[i].kind == ANON ? 0 : all[0].index + i;
        if (all[i].kind == SHARED) me->objects[all[i].object].refs++;
        empty(&all[i]);
    }
    for (int i = 0; i < to_n; i++) {
        if (n != to_n || t->kind == FLOATING) all[i].joined = SURE; // else they may have been several mappings, and still be
        all[i].pure = 0;
    }
    all[0].joined = MAYBE;
    if (keep) {
        for (int i = a; i < a + n; i++) {
            s->p[i].guard = 0;
            if (s->p[i].kind != SHARED) empty(&s->p[i]);
        }
    } else release_range(s, a, n);
    for (int i = 0; i < to_n; i++) {
        release(&t->p[b + i]);
        t->p[b + i] = all[i];
    }
    if (b + to_n < t->n) t->p[b + to_n].joined = MAYBE;
}

static int fits_object(const struct page *p, int n) {
    return p->kind == ANON || p->index + n <= (p->kind == PRIVATE_FILE ? FILE_PAGES : me->objects[p->object].pages);
}

static void op_mremap(void) {
    struct space *s = some_space(), *t = arena(), *f = free_float();
    int a, n, b, to_n, flags = 0;
    if (s->kind == HEAP || !some_range(s, &a, &n)) return;
    for (int i = 0; i < 200 && !s->p[a].kind; i++) a = (a + 1) % s->n;
    if (a + n > s->n) n = s->n - a;
    if (!s->p[a].kind) return;
    int least = variant("seams") && percent(60) ? MAYBE : SURE;
    if (!percent(12) || !variant("multi")) { // one mapping, as far as the model knows
        int k = 1;
        while (k < n && joined(s, a + k) >= least) k++;
        n = k;
    }
    int one = one_mapping(s, a, n);
    int how = below(9);
    to_n = n;
    if (how == 0 || how == 4) to_n = 1 + below(n);                // shrink
    if (how == 1 || how == 2 || how == 5) to_n = n + some_length(); // grow
    if (how >= 3 && how <= 6) flags |= MREMAP_FIXED | MREMAP_MAYMOVE;
    if (how == 6 || how == 7) {
        flags |= MREMAP_DONTUNMAP | MREMAP_MAYMOVE;
        if (!variant("dontunmap")) return;
        for (int i = a; i < a + n; i++)
            if (s->p[i].locked) return; // the kernel unlocks more than the range
    }
    if (how == 2) flags |= MREMAP_MAYMOVE;
    if (to_n > FLOAT_PAGES && !(flags & MREMAP_FIXED)) return;
    if (to_n > n && (!fits_object(&s->p[a], to_n) || s->p[a].kind == SHARED || (s->p[a].locked && to_n > n + 16))) return;
    if (to_n > n && s->p[a].locked && !variant("lock-grow")) return;
    if (!f && (how == 2 || how == 7)) return;
    if (s->kind == ARENA && a + to_n > s->n) return;
    b = 0;
    if (flags & MREMAP_FIXED) {
        b = below(t->n);
        if (b + to_n > t->n) return;
        if (t == s && b < a + (n > to_n ? n : to_n) && a < b + (n > to_n ? n : to_n)) return;
        if (one == NO && to_n == n)
            for (int i = a; i < a + n; i++)
                if (s->p[i].kind == PRIVATE_FILE) return; // moves of several mappings leave files out
        if (!strict_mremap && (one != SURE)) return;      // older kernels unmap the target of a call that they refuse
    }
    char *to = flags & MREMAP_FIXED ? at(t, b) : 0;
    call("mremap(%s, %d, %d, %#x, %s)", place(s, a), n, to_n, flags, flags & MREMAP_FIXED ? place(t, b) : "-");
    // Locked memory grows by libc's call: Linux faults in the new pages before it reports the move, so the pager must know earlier.
    int told = s->p[a].locked && to_n > n;
    long r = result((long)(told ? mremap(at(s, a), ragged(n), ragged(to_n), flags, to) : my_mremap(at(s, a), ragged(n), ragged(to_n), flags, to)));
    int error = errno;
    if (!flags && to_n <= n) { // in place: this always works
        expect(r, (long)at(s, a), 0);
        if (to_n < n) release_range(s, a + to_n, n - to_n);
        return;
    }
    if (to_n < n && flags) one = one_mapping(s, a, to_n); // the part that is cut off need not be in the same mapping
    if (one == NO) {
        if (to_n == n && flags == (MREMAP_FIXED | MREMAP_MAYMOVE)) { // since Linux 6.17, but not with a userfaultfd
            if (r == -1 && error == EFAULT) goto refused;
            expect(r, (long)to, 0);
            for (int i = 0; i < n;) {
                int k = 1;
                while (i + k < n && joined(s, a + i + k) >= MAYBE) k++;
                if (s->p[a + i].kind) moved(s, a + i, k, t, b + i, k, 0);
                else k = 1;
                i += k;
                if (!s->base) break;
            }
            return;
        }
        if (how == 6 && r != -1) { // Linux 6.17 moves several mappings here, too
            for (int i = 0; i < n; i++)
                if (s->p[a + i].kind) moved(s, a + i, 1, t, b + i, 1, 1), t->p[b + i].joined = MAYBE;
            return;
        }
        expect(r, -1, EFAULT);
        goto refused;
    }
    // (a pager may have split the mapping: it hides that from libc's call, but not from a raw one)
    if ((one == MAYBE || raw_percent) && r == -1 && error == EFAULT) goto refused;
    if (r == -1 && (flags & MREMAP_MAYMOVE || error != ENOMEM)) differ("expected %s", flags & MREMAP_FIXED ? place(t, b) : "an address");
    if (flags & MREMAP_FIXED) {
        expect(r, (long)to, 0);
        if (to_n < n) {
            release_range(s, a + to_n, n - to_n);
            n = to_n;
        }
        moved(s, a, n, t, b, to_n, flags & MREMAP_DONTUNMAP);
        check_range(t, b, to_n < 20 ? to_n : 20);
        return;
    }
    if (flags & MREMAP_DONTUNMAP) {
        if (r == (long)at(s, a)) differ("expected another address");
        f->base = (char *)r, f->n = n;
        memset(f->p, 0, sizeof *f->p * (size_t)n);
        moved(s, a, n, f, 0, n, 1);
        check_range(s, a, n < 20 ? n : 20);
        return;
    }
    // the range grows, in place if there is room
    int room = s->kind == ARENA && !mapped_in(s, a + n, to_n - n);
    if (s->kind == ARENA) {
        if (room) expect(r, (long)at(s, a), 0);
        else if (!flags) {
            expect(r, -1, ENOMEM);
            goto refused;
        } else if (r == (long)at(s, a)) differ("expected another address");
    }
    if (r == -1) goto refused;
    if (r == (long)at(s, a)) {
        if (s->kind == FLOATING && a + to_n > FLOAT_PAGES) { // no room in the model
            call("munmap of what it grew by");
            expect(result(my_munmap(at(s, a + n), (size_t)(to_n - n) * PAGE)), 0, 0);
            return;
        }
        if (s->n < a + to_n) {
            memset(&s->p[s->n], 0, sizeof *s->p * (size_t)(a + to_n - s->n));
            s->n = a + to_n;
        }
        for (int i = a + n; i < a + to_n; i++) {
            release(&s->p[i]);
            s->p[i] = s->p[a + n - 1];
            s->p[i].guard = 0;
            s->p[i].joined = SURE;
            s->p[i].index = s->p[i].kind == ANON ? 0 : s->p[a].index + i - a;
            if (s->p[i].kind == SHARED) me->objects[s->p[i].object].refs++;
            empty(&s->p[i]);
        }
        for (int i = a + 1; i < a + n; i++) s->p[i].joined = SURE;
        if (a + to_n < s->n) s->p[a + to_n].joined = MAYBE;
        check_range(s, a, to_n < 20 ? to_n : 20);
        return;
    }
    if (!flags) differ("expected the same address");
    f->base = (char *)r, f->n = to_n;
    memset(f->p, 0, sizeof *f->p * (size_t)to_n);
    moved(s, a, n, f, 0, to_n, 0);
    check_range(f, 0, to_n < 20 ? to_n : 20);
    return;
refused:
    check_range(s, a, n < 20 ? n : 20);
    if (flags & MREMAP_FIXED) check_range(t, b, to_n < 20 ? to_n : 20);
}

// An mremap of 0 bytes maps shared memory once more; for private memory it fails.
static void op_mremap_zero(void) {
    struct space *s = arena();
    int a = below(s->n), shared = percent(60);
    if (!variant("old-zero")) return;
    for (int i = 0; i < s->n && !(s->p[a].kind && (s->p[a].kind == SHARED) == shared); i++) a = (a + 1) % s->n;
    if (!s->p[a].kind || (s->p[a].kind == SHARED) != shared) return;
    int n = 1 + below(8), b = below(s->n - n);
    if (shared && !fits_object(&s->p[a], n)) return;
    call("mremap(%s, 0, %d, MAYMOVE|FIXED, %s)", place(s, a), n, place(s, b));
    if (b <= a && a < b + n) return;
    long r = result((long)my_mremap(at(s, a), 0, (size_t)n * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at(s, b)));
    if (!shared) {
        if (!strict_mremap && r == -1) release_range(s, b, n);
        expect(r, -1, EINVAL);
        check_range(s, b, n);
        return;
    }
    expect(r, (long)at(s, b), 0);
    struct page like = s->p[a];
    like.guard = like.pure = 0;
    mapped(s, b, n, like);
    check_range(s, b, n);
}

static void op_mprotect(void) {
    struct space *s = some_space();
    int a, n, i, prot = some_prot();
    if (!some_range(s, &a, &n)) return;
    for (i = a; i < a + n && s->p[i].kind; i++)
        if (s->p[i].kind == PRIVATE_FILE) prot &= ~PROT_EXEC;
    call("mprotect(%s, %d, %d)", place(s, a), n, prot);
    expect(result(my_mprotect(at(s, a), ragged(n), prot)), i == a + n ? 0 : -1, ENOMEM);
    for (int k = a; k < i; k++) s->p[k].prot = prot;
    seam(s, a, i);
    check_range(s, a, n < 40 ? n : 40);
}

static void op_mlock(void) {
    struct space *s = some_space();
    int a, n, i, how = below(3), error = 0, only_run = 0;
    if (!some_range(s, &a, &n)) return;
    if (how < 2) {
        if (n > 12) n = 1 + below(12);
        if (locked_pages() + n > 64 / threads_n) how = 2;
    }
    for (i = a; i < a + n && s->p[i].kind; i++) {
        if (how == 0 && (s->p[i].prot == PROT_NONE || s->p[i].guard)) error = ENOMEM;
        only_run |= how == 0 && s->p[i].prot == PROT_EXEC;
        s->p[i].locked = how == 2 ? 0 : how + 1;
    }
    if (i < a + n) error = ENOMEM;
    call("%s(%s, %d)", how == 0 ? "mlock" : how == 1 ? "mlock2 on fault" : "munlock", place(s, a), n);
    size_t bytes = ragged(n);
    long r = result(how == 0 ? mlock(at(s, a), bytes) : how == 1 ? mlock2(at(s, a), bytes, MLOCK_ONFAULT) : munlock(at(s, a), bytes));
    // whether the kernel can bring in what can only be run depends on the processor, and on the keys that are free
    if (!only_run || r != -1 || errno != ENOMEM) expect(r, error ? -1 : 0, error);
    seam(s, a, i);
    check_range(s, a, n < 10 ? n : 10);
}

struct advice {
    int advice;
    const char *name, *variant;
    int weight;
};
static const struct advice advices[] = {
    {MADV_DONTNEED, "DONTNEED", "discard", 12},
    {MADV_DONTNEED_LOCKED, "DONTNEED_LOCKED", "discard", 4},
    {MADV_FREE, "FREE", "free", 8},
    {MADV_COLD, "COLD", "hints", 4},
    {MADV_PAGEOUT, "PAGEOUT", "hints", 4},
    {MADV_WILLNEED, "WILLNEED", "hints", 3},
    {MADV_SEQUENTIAL, "SEQUENTIAL", "reading", 1},
    {MADV_RANDOM, "RANDOM", "reading", 1},
    {MADV_NORMAL, "NORMAL", "reading", 2},
    {MADV_POPULATE_READ, "POPULATE_READ", "populate", 4},
    {MADV_POPULATE_WRITE, "POPULATE_WRITE", "populate", 4},
    {MADV_HUGEPAGE, "HUGEPAGE", "huge", 3},
    {MADV_NOHUGEPAGE, "NOHUGEPAGE", "huge", 3},
    {MADV_COLLAPSE, "COLLAPSE", "collapse", 2},
    {MADV_DONTFORK, "DONTFORK", "dontfork", 3},
    {MADV_DOFORK, "DOFORK", "dontfork", 3},
    {MADV_WIPEONFORK, "WIPEONFORK", "wipe", 4},
    {MADV_KEEPONFORK, "KEEPONFORK", "wipe", 3},
    {MADV_DONTDUMP, "DONTDUMP", "dump", 2},
    {MADV_DODUMP, "DODUMP", "dump", 2},
    {MADV_MERGEABLE, "MERGEABLE", "merge", 2},
    {MADV_UNMERGEABLE, "UNMERGEABLE", "merge", 2},
    {MADV_GUARD_INSTALL, "GUARD_INSTALL", "guard", 6},
    {MADV_GUARD_REMOVE, "GUARD_REMOVE", "guard", 6},
    {MADV_REMOVE, "REMOVE", "remove", 3},
};

// Applies the advice to a page of the model; returns the error with which the kernel stops there, or 0.
static int advise(struct page *p, int advice) {
    switch (advice) {
    case MADV_FREE:
        if (p->kind != ANON) return EINVAL; // fall through
    case MADV_DONTNEED:
        if (p->locked) return EINVAL; // fall through
    case MADV_DONTNEED_LOCKED:
        if (advice == MADV_FREE) p->lazy = 1;
        else if (p->kind != SHARED) empty(p);
        return 0;
    case MADV_COLD:
    case MADV_PAGEOUT: return p->locked ? EINVAL : 0;
    case MADV_POPULATE_READ: return !(p->prot & PROT_READ) ? EINVAL : p->guard ? EFAULT : 0;
    case MADV_POPULATE_WRITE: return !(p->prot & PROT_WRITE) ? EINVAL : p->guard ? EFAULT : 0;
    case MADV_HUGEPAGE: p->flags = (p->flags & ~HUGE_OFF) | HUGE_ON; return 0;
    case MADV_NOHUGEPAGE: p->flags = (p->flags & ~HUGE_ON) | HUGE_OFF; return 0;
    case MADV_DONTFORK: p->flags |= DONTFORK; return 0;
    case MADV_DOFORK: p->flags &= ~DONTFORK; return 0;
    case MADV_WIPEONFORK:
        if (p->kind != ANON) return EINVAL;
        p->flags |= WIPE;
        return 0;
    case MADV_KEEPONFORK: p->flags &= ~WIPE; return 0;
    case MADV_DONTDUMP: p->flags |= DONTDUMP; return 0;
    case MADV_DODUMP: p->flags &= ~DONTDUMP; return 0;
    case MADV_MERGEABLE:
        if (p->kind != SHARED) p->flags |= MERGE;
        return 0;
    case MADV_UNMERGEABLE: p->flags &= ~MERGE; return 0;
    case MADV_GUARD_INSTALL:
        if (p->locked) return EINVAL;
        p->guard = 1;
        if (p->kind != SHARED) empty(p);
        return 0;
    case MADV_GUARD_REMOVE: p->guard = 0; return 0;
    case MADV_REMOVE:
        if (p->locked || p->kind == ANON) return EINVAL;
        if (p->kind != SHARED) return EACCES;
        memset(tags(p), 0, sizeof p->tags);
        return 0;
    default: return 0;
    }
}

static void op_madvise(void) {
    struct space *s = some_space();
    int a, n, i, error = 0, hole = 0, total = 0;
    if (!some_range(s, &a, &n)) return;
    for (size_t k = 0; k < sizeof advices / sizeof *advices; k++) total += advices[k].weight;
    int pick = below(total);
    const struct advice *v = advices;
    while (pick >= v->weight) pick -= v++->weight;
    if (!variant(v->variant) || (v->advice == MADV_REMOVE && in_child())) return;
    if ((v->advice == MADV_MERGEABLE || v->advice == MADV_UNMERGEABLE) && !can_merge) return;
    // guards in files and shared memory: only since Linux 6.15, and children may or may not get them
    if (v->advice == MADV_GUARD_INSTALL)
        for (i = a; i < a + n; i++)
            if (s->p[i].kind == PRIVATE_FILE || s->p[i].kind == SHARED) return;
    call("madvise(%s, %d, %s)", place(s, a), n, v->name);
    long r = result(my_madvise(at(s, a), ragged(n), v->advice));
    if (v->advice == MADV_COLLAPSE) { // may be refused for many reasons
        check_range(s, a, n < 40 ? n : 40);
        return;
    }
    int populates = v->advice == MADV_POPULATE_READ || v->advice == MADV_POPULATE_WRITE;
    for (i = a; i < a + n && !error; i++) {
        if (s->p[i].kind) error = advise(&s->p[i], v->advice);
        else if (populates) error = ENOMEM;
        else hole = 1;
    }
    if (!error && hole) error = ENOMEM;
    expect(r, error ? -1 : 0, error);
    static const int flags[] = {MADV_SEQUENTIAL, MADV_RANDOM, MADV_NORMAL, MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_DONTFORK, MADV_DOFORK,
        MADV_WIPEONFORK, MADV_KEEPONFORK, MADV_DONTDUMP, MADV_DODUMP, MADV_MERGEABLE, MADV_UNMERGEABLE};
    for (size_t k = 0; k < sizeof flags / sizeof *flags; k++) {
        if (flags[k] != v->advice) continue;
        seam(s, a, i);
        if (k < 3) { // these may split mappings, and the model has no flag for them
            s->p[a].joined = MAYBE;
            if (a + n < s->n) s->p[a + n].joined = MAYBE;
        }
    }
    check_range(s, a, n < 40 ? n : 40);
}

static void op_msync(void) {
    struct space *s = some_space();
    int a, n;
    if (!some_range(s, &a, &n)) return;
    int hole = mapped_in(s, a, n) != n;
    call("msync(%s, %d)", place(s, a), n);
    expect(result(msync(at(s, a), (size_t)n * PAGE, percent(50) ? MS_ASYNC : MS_SYNC)), hole ? -1 : 0, ENOMEM);
}

static void op_brk(void) {
    struct space *s = heap();
    if (!s->base) return;
    long before = me->heap_bytes, pages = (before + PAGE - 1) / PAGE;
    long bytes = percent(50) ? before + below(200 * PAGE) - 100 * PAGE : (long)below(HEAP_PAGES * PAGE);
    if (bytes < 0 || bytes > HEAP_PAGES * PAGE) return;
    call("brk(B + %ld)", bytes);
    expect(result(brk(s->base + bytes)), 0, 0);
    long now = (bytes + PAGE - 1) / PAGE;
    // in a child with MADV_DONTFORK memory Linux refuses to unmap a heap that is not there, and libc hides the error
    if (now < pages && !mapped_in(s, (int)now, (int)(pages - now)) && (char *)sbrk(0) - (char *)s->base == before) return;
    me->heap_bytes = bytes;
    for (long i = now; i < pages; i++) release(&s->p[i]);
    for (long i = pages; i < now; i++) {
        s->p[i] = (struct page){.kind = ANON, .prot = PROT_READ | PROT_WRITE, .joined = MAYBE};
    }
    if (now > pages) check_range(s, (int)pages, (int)(now - pages));
    if (now) check_range(s, (int)(now < pages ? now : pages) - 1 < 0 ? 0 : (int)(now < pages ? now : pages) - 1, 1);
}

// ---- calls that must fail and change nothing ----

static void op_fail(void) {
    struct space *s = arena();
    int a, n, b = below(s->n);
    if (!some_range(s, &a, &n)) return;
    char *p = at(s, a), *q = at(s, b);
    size_t len = (size_t)n * PAGE;
    int rw = PROT_READ | PROT_WRITE, private = MAP_PRIVATE | MAP_ANONYMOUS, how = below(43), error = EINVAL;
    long r = 0;
    int first = s->p[a].kind != NONE;
    char name[16];
    snprintf(name, sizeof name, "fail%d", how);
    if (!variant(name)) return;
    call("%s on (%s, %d)", name, place(s, a), n);
    switch (how) {
    case 0: r = my_munmap(p + 1, len); break;
    case 1: r = my_munmap(p, 0); break;
    case 2: r = my_munmap(p, (size_t)1 << 63); break;
    case 3: r = my_munmap(p, (size_t)-PAGE); break;
    case 4: r = (long)my_mmap(p, len, rw, MAP_PRIVATE | MAP_FIXED, 777, 0), error = EBADF; break;
    case 5: r = (long)my_mmap(p, 0, rw, private | MAP_FIXED, -1, 0); break;
    case 6: r = (long)my_mmap(p + 8, len, rw, private | MAP_FIXED, -1, 0); break;
    case 7: r = (long)my_mmap(p, len, rw, MAP_ANONYMOUS | MAP_FIXED, -1, 0); break;
    case 8: r = (long)my_mmap(p, (size_t)1 << 48, rw, private | MAP_FIXED, -1, 0), error = ENOMEM; break;
    case 9: r = (long)my_mmap(p, len, rw, MAP_PRIVATE | MAP_FIXED, file, 100); break;
    case 10: r = (long)my_mmap(p, len, rw, MAP_PRIVATE | MAP_FIXED, write_only, 0), error = EACCES; break;
    case 11: r = (long)my_mmap(p, len, rw, MAP_PRIVATE | MAP_FIXED, me->pipe[0], 0), error = ENODEV; break;
    case 12: r = (long)my_mmap(p, len, rw, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED | MAP_GROWSDOWN, -1, 0); break;
    case 13: r = (long)my_mmap(p, (size_t)-PAGE, rw, private | MAP_FIXED, -1, 0), error = ENOMEM; break;
    case 14: r = (long)my_mmap((void *)0x7ffffffff000, len + 8 * PAGE, rw, private | MAP_FIXED, -1, 0), error = ENOMEM; break;
    case 15: // more than the machine has, if it limits that (by libc's call, as Linux reports an unmapping before it refuses)
        r = (long)mmap(p, (size_t)1 << 46, rw, private | MAP_FIXED, -1, 0), error = ENOMEM;
        s->p[a].joined = MAYBE; // Linux splits what lies across the start before it refuses
        break;
    case 16: r = (long)my_mremap(p + 5, len, len, 0, 0); break;
    case 17: r = (long)my_mremap(p, len, 0, MREMAP_MAYMOVE, 0); break;
    case 18: r = (long)my_mremap(p, len, len, 8, 0); break;
    case 19: r = (long)my_mremap(p, len, len, MREMAP_FIXED, q); break;
    case 20: // onto itself
        r = (long)my_mremap(p, len, len, MREMAP_FIXED | MREMAP_MAYMOVE, p + (size_t)below(n) * PAGE);
        if (!first) { // Linux may check the source or the overlap first
            if (r == -1 && errno == EFAULT) errno = EINVAL;
        }
        break;
    case 21: r = (long)my_mremap(p, len, len + PAGE, MREMAP_DONTUNMAP | MREMAP_MAYMOVE, 0); break;
    case 22: r = (long)my_mremap(p, len, len, MREMAP_FIXED | MREMAP_MAYMOVE, q + 77); break;
    case 23: r = (long)my_mremap(p, len, len, MREMAP_FIXED | MREMAP_MAYMOVE, (void *)0x7ffffffff000000); break;
    case 24: r = (long)my_mremap((void *)0x7ffffffff0000000, len, len * 2, MREMAP_MAYMOVE, 0), error = EFAULT; break;
    case 25: // from a hole
        if (first || !strict_mremap || (b < a + n && a < b + n) || b + n > s->n) return;
        r = (long)my_mremap(p, len, len, MREMAP_FIXED | MREMAP_MAYMOVE, q), error = EFAULT;
        break;
    case 26:
        if (first) return;
        r = (long)my_mremap(p, len, len * 2, MREMAP_MAYMOVE, 0), error = EFAULT;
        break;
    case 27: r = my_mprotect(p + 1, len, PROT_READ); break;
    case 28: r = my_mprotect(p, len, 0x800); break;
    case 29: r = my_mprotect(p, len, PROT_READ | PROT_GROWSDOWN | PROT_GROWSUP); break;
    case 30: r = my_mprotect(p, (size_t)-PAGE, PROT_NONE), error = ENOMEM; break;
    case 31: r = my_madvise(p + 16, len, MADV_DONTNEED); break;
    case 32: r = my_madvise(p, len, 9999); break;
    case 33: r = my_madvise(p, (size_t)-1, MADV_DONTNEED); break;
    case 34: r = my_madvise(p, (size_t)-(size_t)p + 10 * PAGE, MADV_DONTNEED); break;
    case 35: r = mlock(p, (size_t)-(size_t)p + 10 * PAGE); break;
    case 36: r = munlock(p, (size_t)-2 * PAGE); break;
    case 37: r = mlock2(p, PAGE, 64); break;
    case 38: r = brk((void *)0x7ffffffff000), error = ENOMEM; break;
    case 39: r = read(777, p, PAGE), error = EBADF; break;
    case 40: // to a page that is not writable
        if (writable(&s->p[a]) || s->p[a].prot == PROT_EXEC) return;
        for (int i = a; i < s->n && !s->p[a].kind; i++) // a stack above might grow
            if (s->p[i].flags & GROWSDOWN) return;
        r = pread(file, p, PAGE, 0), error = EFAULT;
        break;
    case 41: // from a page that is not readable
        if (readable(&s->p[a]) || s->p[a].prot == PROT_EXEC) return;
        for (int i = a; i < s->n && !s->p[a].kind; i++)
            if (s->p[i].flags & GROWSDOWN) return;
        r = write(me->pipe[1], p, 512), error = EFAULT;
        break;
    case 42: { // huge pages that the machine does not have: the old memory may be kept or not
        if (!variant("hugetlb")) return;
        int h = a & ~511;
        if (h + 512 > s->n) return;
        r = (long)mmap(at(s, h), 512 * PAGE, rw, private | MAP_FIXED | MAP_HUGETLB, -1, 0), error = ENOMEM;
        result(r);
        expect(r, -1, error);
        if (!mapped_in(s, h, 512)) return;
        unsigned char there[1];
        int left = 0;
        for (int i = h; i < h + 512; i++)
            if (s->p[i].kind) left += mincore(at(s, i), PAGE, there) == 0;
        if (left && left != mapped_in(s, h, 512)) differ("a refused mmap left a part of what was there");
        if (!left) release_range(s, h, 512);
        return;
    }
    }
    result(r);
    expect(r, -1, error);
    check_range(s, a, n < 30 ? n : 30);
    check_range(s, b, s->n - b < 8 ? s->n - b : 8);
}

// ---- I/O ----

// Copies `count` blocks in the model.
static void copied(struct space *s, int a, int from, struct space *t, int b, int to, int count) {
    u64 all[BLOCKS * 200];
    for (int i = 0; i < count; i++) all[i] = tags(&s->p[a + (from + i) / BLOCKS])[(from + i) % BLOCKS];
    for (int i = 0; i < count;) {
        int page = b + (to + i) / BLOCKS, written = 0;
        for (; i < count && b + (to + i) / BLOCKS == page; i++) {
            tags(&t->p[page])[(to + i) % BLOCKS] = all[i];
            written |= 1 << (to + i) % BLOCKS;
        }
        settle(t, page, written);
    }
}

static void op_copy(void) {
    struct space *s, *t;
    int a, n, b, m;
    if (!good_range(&s, &a, &n, certain) || !good_range(&t, &b, &m, changeable)) return;
    if (s == t && a < b + m && b < a + n) return;
    for (int i = a; i < a + n; i++) // the same shared memory could be in both ranges
        for (int k = b; k < b + m && s->p[i].kind == SHARED; k++)
            if (t->p[k].kind == SHARED) return;
    if (n > 64) n = 64;
    if (m > 64) m = 64;
    int from = below(BLOCKS), to = below(BLOCKS);
    int count = n * BLOCKS - from < m * BLOCKS - to ? n * BLOCKS - from : m * BLOCKS - to;
    if (percent(50)) count = 1 + below(count);
    size_t len = (size_t)count * BLOCK;
    char *p = at(s, a) + from * BLOCK, *q = at(t, b) + to * BLOCK;
    int how = below(4);
    if (how == 0) { // through a pipe, which holds 64 KiB
        if (count > 60) count = 60;
        len = (size_t)count * BLOCK;
        call("pipe from %s.%d to %s.%d, %d blocks", place(s, a), from, place(t, b), to, count);
        expect(result(write(me->pipe[1], p, len)), (long)len, 0);
        expect(result(read(me->pipe[0], q, len)), (long)len, 0);
    } else if (how == 1) { // in two pieces, by writev and readv
        int half = count / 2;
        struct iovec out[2] = {{p, (size_t)half * BLOCK}, {p + half * BLOCK, len - (size_t)half * BLOCK}};
        struct iovec in[2] = {{q, BLOCK}, {q + BLOCK, len - BLOCK}};
        if (count < 2) return;
        if (count > 60) return;
        call("writev from %s.%d, readv to %s.%d, %d blocks", place(s, a), from, place(t, b), to, count);
        expect(result(writev(me->pipe[1], out, 2)), (long)len, 0);
        expect(result(readv(me->pipe[0], in, 2)), (long)len, 0);
    } else {
        struct iovec here = {how == 2 ? q : p, len}, there = {how == 2 ? p : q, len};
        for (int i = a; i < a + n; i++)
            if (!(s->p[i].prot & PROT_READ)) return; // process_vm_* obeys the protection of the other process's memory
        for (int i = b; i < b + m; i++)
            if (!(t->p[i].prot & PROT_READ)) return;
        call("process_vm_%s from %s.%d to %s.%d, %d blocks", how == 2 ? "readv" : "writev", place(s, a), from, place(t, b), to, count);
        long r = how == 2 ? process_vm_readv(getpid(), &here, 1, &there, 1, 0) : process_vm_writev(getpid(), &here, 1, &there, 1, 0);
        expect(result(r), (long)len, 0);
    }
    copied(s, a, from, t, b, to, count);
    check_range(t, b, (to + count + BLOCKS - 1) / BLOCKS);
}

// Reads from the file, buffered or with O_DIRECT, or from /dev/zero.
static void op_read(void) {
    struct space *t;
    int b, m;
    if (!good_range(&t, &b, &m, changeable)) return;
    if (m > 64) m = 64;
    m = different(t, b, m);
    int offset = below(FILE_PAGES - m), how = below(3);
    call("%s(%s, %d) from page %d", how == 0 ? "pread" : how == 1 ? "pread O_DIRECT" : "read of zeroes", place(t, b), m, offset);
    if (how == 2) {
        int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
        long have = 0, got; // a signal ends it early
        while (have < (long)m * PAGE && (got = read(zero, at(t, b) + have, (size_t)(m * PAGE - have))) > 0) have += got;
        expect(result(have), (long)m * PAGE, 0);
        close(zero);
    } else expect(result(pread(how == 1 && direct >= 0 ? direct : file, at(t, b), (size_t)m * PAGE, (off_t)offset * PAGE)), (long)m * PAGE, 0);
    for (int i = 0; i < m; i++) {
        for (int k = 0; k < BLOCKS; k++) tags(&t->p[b + i])[k] = how == 2 ? 0 : file_tag(offset + i, k);
        t->p[b + i].lazy = 0;
    }
    check_range(t, b, m);
}

// Writes to the thread's own file or reads from it, with O_DIRECT if the file system can do that.
static void op_direct(void) {
    struct space *s, *t;
    int a, n, b, m;
    if (in_child()) return; // the child shares the file with its parent
    if (percent(50)) {
        if (!good_range(&s, &a, &n, certain_read)) return;
        if (n > 32) n = 32;
        int offset = below(64 - n);
        call("pwrite O_DIRECT(%s, %d) to page %d", place(s, a), n, offset);
        expect(result(pwrite(me->scratch, at(s, a), (size_t)n * PAGE, (off_t)offset * PAGE)), (long)n * PAGE, 0);
        for (int i = 0; i < n; i++) memcpy(me->scratch_tags[offset + i], tags(&s->p[a + i]), sizeof me->scratch_tags[0]);
    } else {
        if (!good_range(&t, &b, &m, changeable)) return;
        if (m > 32) m = 32;
        m = different(t, b, m);
        int offset = below(64 - m);
        call("pread O_DIRECT(%s, %d) from page %d of the scratch file", place(t, b), m, offset);
        expect(result(pread(me->scratch, at(t, b), (size_t)m * PAGE, (off_t)offset * PAGE)), (long)m * PAGE, 0);
        for (int i = 0; i < m; i++) {
            memcpy(tags(&t->p[b + i]), me->scratch_tags[offset + i], sizeof me->scratch_tags[0]);
            t->p[b + i].lazy = 0;
        }
        check_range(t, b, m);
    }
}

// ---- signals ----

__attribute__((noinline)) static int deep(int depth, int value) {
    volatile char page[2048];
    for (size_t i = 0; i < sizeof page; i += 64) page[i] = (char)(value + depth);
    int below_me = depth ? deep(depth - 1, value) : 0;
    for (size_t i = 0; i < sizeof page; i += 64)
        if (page[i] != (char)(value + depth)) return -1;
    return below_me;
}

static void on_signal(int signal, siginfo_t *info, void *context) {
    (void)context;
    int e = errno;
    if (signal == SIGUSR1) {
        int n = me->signals++;
        if (deep(n % 20, n)) differ("a signal's stack changed");
        errno = e;
        return;
    }
    if (me->probing) {
        me->probing = 0;
        me->fault = (uintptr_t)info->si_addr;
        if (signal != SIGSEGV) differ("signal %d at %p", signal, info->si_addr);
        siglongjmp(me->out, 1);
    }
    for (int k = 0; k < 2 + FLOATS; k++) {
        struct space *s = &me->spaces[k];
        if (s->base && (char *)info->si_addr >= s->base && (char *)info->si_addr < at(s, s->n)) {
            int a = (int)(((char *)info->si_addr - s->base) / PAGE);
            differ("signal %d at %s + %#lx (%s)", signal, place(s, a), (unsigned long)info->si_addr % PAGE, told(&s->p[a]));
        }
    }
    differ("signal %d at %p", signal, info->si_addr);
}

static void own_stack(void) {
    stack_t stack = {.ss_size = 128 << 10};
    stack.ss_sp = mmap(0, stack.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack.ss_sp == MAP_FAILED || sigaltstack(&stack, 0)) differ("no stack for signals");
}

static void op_signal(void) {
    int other = below(threads_n), before = me->signals;
    call("signal");
    if (in_child() || other == me->id) {
        raise(SIGUSR1);
        if (me->signals == before) differ("a signal was not handled");
    } else if (ready[other] == 1) {
        pthread_kill(threads[other]->handle, SIGUSR1);
    }
}

// ---- arenas where threads race ----

static u64 race_word(void) {
    u32 x = (u32)rnd() | 1;
    return (u64)x << 32 | (u32)((x * 2654435761u) ^ 0x5EED);
}
static int race_valid(u64 w) { return !w || (u32)w == (u32)(((u32)(w >> 32) * 2654435761u) ^ 0x5EED); }

static void race_look(int a, int n) {
    for (volatile int i = a; i < a + n; i++) {
        if (sigsetjmp(me->out, 0)) continue;
        me->probing = 1;
        volatile u64 *w = (u64 *)(race + (size_t)i * PAGE);
        for (int k = 0; k < PAGE / 8; k++) {
            u64 v = w[k];
            if (!race_valid(v)) {
                me->probing = 0;
                differ("page %d of the arena where threads race, word %d: %#lx was never written there", i, k, v);
            }
        }
        me->probing = 0;
    }
}

static void op_race(void) {
    static const int advice[] = {MADV_DONTNEED, MADV_DONTNEED, MADV_FREE, MADV_COLD, MADV_PAGEOUT, MADV_WILLNEED, MADV_POPULATE_READ,
        MADV_POPULATE_WRITE, MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_DONTDUMP, MADV_DODUMP, MADV_WIPEONFORK, MADV_KEEPONFORK};
    int n = 1 + below(percent(20) ? 200 : 24), a = below(RACE_PAGES - n), b = below(RACE_PAGES - n), how = below(20);
    char *p = race + (size_t)a * PAGE, *q = race + (size_t)b * PAGE;
    size_t len = (size_t)n * PAGE;
    int apart = a + n <= b || b + n <= a;
    int private = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    long r = 0;
    call("race %d (%d, %d, %d)", how, a, n, b);
    switch (how) {
    case 0: case 1: case 2: case 3: case 4:
        for (volatile int i = a; i < a + n; i++) {
            if (sigsetjmp(me->out, 0)) continue;
            me->probing = 1;
            volatile u64 *w = (u64 *)(race + (size_t)i * PAGE);
            for (int k = below(8); k < PAGE / 8; k += 1 + below(64)) w[k] = race_word();
            me->probing = 0;
        }
        break;
    case 5: case 6: case 7: race_look(a, n); break;
    case 8: case 9: r = (long)my_mmap(p, len, PROT_READ | PROT_WRITE, private | (percent(20) ? MAP_POPULATE : 0), -1, 0); break;
    case 10: r = my_munmap(p, len); break;
    case 11: r = my_mprotect(p, len, percent(60) ? PROT_READ | PROT_WRITE : some_prot()); break;
    case 12: case 13: r = my_madvise(p, len, advice[below(sizeof advice / sizeof *advice)]); break;
    case 14: case 15:
        if (apart) r = (long)my_mremap(p, len, len, MREMAP_FIXED | MREMAP_MAYMOVE | (percent(30) && variant("dontunmap") ? MREMAP_DONTUNMAP : 0), q);
        break;
    case 16: r = (long)my_mremap(p, len, (size_t)(1 + below(n)) * PAGE, 0, 0); break;
    case 17:
        if (variant("guard")) r = my_madvise(p, len, percent(50) ? MADV_GUARD_INSTALL : MADV_GUARD_REMOVE);
        break;
    case 18: { // the kernel reads or writes the memory
        u64 words[512];
        ssize_t got = 0;
        if (percent(50)) {
            struct iovec here = {words, sizeof words}, there = {p, sizeof words};
            got = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
        } else {
            for (int i = 0; i < 512; i++) words[i] = race_word();
            struct iovec here = {words, sizeof words}, there = {p, sizeof words};
            got = process_vm_writev(getpid(), &here, 1, &there, 1, 0);
        }
        for (ssize_t i = 0; i < got / 8; i++)
            if (!race_valid(words[i])) differ("process_vm_readv of page %d of the arena where threads race: word %d is %#lx", a, (int)i, words[i]);
        break;
    }
    case 19: // grows, in place or elsewhere, or fails
        r = (long)my_mremap(p, len, len + PAGE, MREMAP_MAYMOVE, 0);
        if (r != -1 && r != (long)p) expect(my_munmap((void *)r, len + PAGE), 0, 0);
        break;
    }
    result(r);
    if (r == -1 && errno != ENOMEM && errno != EFAULT && errno != EINVAL && errno != EAGAIN && errno != EBUSY) differ("not an error that this call has");
}

// The thread's own word in each page; no thread discards anything in this arena.
static u64 *counter(int page, int second) { return (u64 *)(counters + (size_t)page * PAGE + (second ? 2048 : 0)) + me->id; }

static void count_look(int a, int n) {
    for (volatile int i = a; i < a + n; i++) {
        u64 one, two;
        if (sigsetjmp(me->out, 0)) continue;
        me->probing = 1;
        one = *(volatile u64 *)counter(i, 0), two = *(volatile u64 *)counter(i, 1);
        me->probing = 0;
        if (one != me->counts[i] || two != me->counts[i])
            differ("page %d of the counters: expected %lu twice, found %lu and %lu", i, me->counts[i], one, two);
    }
}

static void op_count(void) {
    static const int advice[] = {MADV_COLD, MADV_PAGEOUT, MADV_WILLNEED, MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_HUGEPAGE,
        MADV_NOHUGEPAGE, MADV_COLLAPSE, MADV_DONTDUMP, MADV_DODUMP};
    int n = 1 + below(percent(20) ? 300 : 40), a = below(COUNTER_PAGES - n), how = below(10);
    char *p = counters + (size_t)a * PAGE;
    long r = 0;
    call("count %d (%d, %d)", how, a, n);
    if (how < 5) {
        for (volatile int i = a; i < a + n; i++) {
            if (sigsetjmp(me->out, 0)) continue; // the page is protected: count neither word
            me->probing = 1;
            __atomic_fetch_add(counter(i, 0), 1, __ATOMIC_RELAXED);
            me->probing = 0;
            me->counts[i]++;
            while (sigsetjmp(me->out, 0)) mprotect(counters + (size_t)i * PAGE, PAGE, PROT_READ | PROT_WRITE);
            me->probing = 1;
            __atomic_fetch_add(counter(i, 1), 1, __ATOMIC_RELAXED);
            me->probing = 0;
        }
    } else if (how < 7) count_look(a, n);
    else if (how < 8) r = my_mprotect(p, (size_t)n * PAGE, percent(65) ? PROT_READ | PROT_WRITE : percent(60) ? PROT_READ : PROT_NONE), r |= r;
    else r = my_madvise(p, (size_t)n * PAGE, advice[below(sizeof advice / sizeof *advice)]);
    result(r);
}

// ---- processes ----

static void steps(int n);

static void wait_for(int k) {
    int status;
    pid_t pid = me->children[k], r;
    if (!pid) return;
    me->children[k] = 0;
    call("wait for a child");
    while ((r = waitpid(pid, &status, 0)) == -1 && errno == EINTR) {}
    if (r != pid) differ("no child %d", pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status)) differ("a child ended with status %#x", status);
    result(0);
}

// Turns the parent's model into the child's.
static void inherited(void) {
    for (int k = 0; k < 2 + FLOATS; k++) {
        struct space *s = &me->spaces[k];
        for (int i = 0; s->base && i < s->n; i++) {
            struct page *p = &s->p[i];
            if (p->flags & DONTFORK && p->kind) {
                release_range(s, i, 1);
                continue;
            }
            p->locked = 0;
            if (p->flags & WIPE && p->kind == ANON) {
                p->guard = 0;
                empty(p);
            }
        }
    }
}

static void op_fork(void) {
    int k = below(CHILDREN), kind = below(10), depth = me->depth;
    if (depth >= (variant("grandchildren") ? 2 : 1)) return;
    for (int i = 0; i < CHILDREN; i++)
        if (i == k || percent(30)) wait_for(i);
    u64 random = rnd();
    int own = below(depth ? 12 : 30);
    call("fork");
    pid_t pid = fork();
    if (pid < 0) differ("no child: %s", strerrorname_np(errno));
    if (!pid) {
        me->depth++;
        me->random = random;
        memset(me->children, 0, sizeof me->children);
        // the child shares the pipe with its parent
        close(me->pipe[0]), close(me->pipe[1]);
        if (pipe(me->pipe)) differ("no pipe");
        inherited();
        if (kind < 7) check_all();
        if (kind < 5) count_look(0, COUNTER_PAGES);
        if (kind < 3) race_look(0, RACE_PAGES);
        steps(own);
        for (int i = 0; i < CHILDREN; i++) wait_for(i);
        check_all();
        _exit(0);
    }
    result(pid);
    me->children[k] = pid;
    if (kind % 3 == 0) wait_for(k);
}

// A child of vfork shares the memory: the parent must see its writes.
static void op_vfork(void) {
    struct space *s;
    int a, n, status;
    if (!good_range(&s, &a, &n, changeable)) return;
    call("vfork that writes (%s, %d)", place(s, a), n);
    pid_t pid = vfork();
    if (!pid) {
        for (int i = a; i < a + n; i++) write_page(s, i);
        _exit(0);
    }
    result(pid);
    if (pid < 0) differ("no child");
    while (waitpid(pid, &status, 0) == -1 && errno == EINTR) {}
    if (status) differ("a child of vfork ended with status %#x", status);
    check_range(s, a, n);
}

static void op_spawn(void) {
    pid_t pid;
    int status;
    char *arguments[] = {"true", 0}, *environment[] = {0}; // (without the pager)
    call("posix_spawn");
    int e = posix_spawn(&pid, "/bin/true", 0, 0, arguments, environment);
    if (e) differ("posix_spawn: %d", e);
    while (waitpid(pid, &status, 0) == -1 && errno == EINTR) {}
    result(status);
    if (status) differ("a spawned child ended with status %#x", status);
}

// ---- running ----

struct operation {
    void (*run)(void);
    const char *name;
    int weight;
};
static const struct operation operations[] = {
    {op_write, "write", 200},
    {op_check, "check", 150},
    {op_mmap, "mmap", 80},
    {op_mmap_file, "file", 25},
    {op_mmap_shared, "shared", 15},
    {op_munmap, "munmap", 35},
    {op_mremap, "mremap", 110},
    {op_mremap_zero, "mremap-zero", 8},
    {op_mprotect, "mprotect", 45},
    {op_madvise, "madvise", 170},
    {op_mlock, "mlock", 20},
    {op_msync, "msync", 4},
    {op_brk, "brk", 30},
    {op_fail, "fail", 60},
    {op_copy, "copy", 50},
    {op_read, "read", 25},
    {op_direct, "direct", 15},
    {op_signal, "signal", 25},
    {op_fork, "fork", 12},
    {op_vfork, "vfork", 4},
    {op_spawn, "spawn", 2},
    {op_race, "race", 90},
    {op_count, "count", 60},
    {op_grow_down, "grow-down", 10},
    {op_maps, "maps", 3},
};
#define OPERATIONS (sizeof operations / sizeof *operations)

static void steps(int n) {
    int total = 0;
    for (size_t i = 0; i < OPERATIONS; i++) total += operations[i].weight;
    for (me->step = 0; me->step < n; me->step++) {
        int pick = below(total);
        const struct operation *o = operations;
        while (pick >= o->weight) pick -= o++->weight;
        if (named(without, o->name) || (*only && !named(only, o->name))) continue;
        o->run();
        if (me->step % 250 == 249) check_all();
    }
}

static void *run(void *argument) {
    me = argument;
    me->handle = pthread_self();
    pthread_barrier_wait(&begin);
    own_stack();
    ready[me->id] = 1;
    steps(me->steps);
    for (int i = 0; i < CHILDREN; i++) wait_for(i);
    check_all();
    count_look(0, COUNTER_PAGES);
    ready[me->id] = 2;
    return 0;
}

static char *window(int which, int pages) {
    // far from the addresses that the kernel chooses itself, so that no other mapping comes into a hole
    char *base = (char *)0x100000000000 + ((size_t)which << 32);
    (void)pages;
    return base;
}

static void *model_memory(size_t n) {
    void *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) exit(2);
    return p;
}

static int scratch_file(int flags) {
    char path[] = "/tmp/address-space-XXXXXX";
    const char *dir = getenv("TMPDIR");
    char text[512];
    snprintf(text, sizeof text, "%s/address-space-XXXXXX", dir && *dir ? dir : "/tmp");
    (void)path;
    int fd = mkstemp(text);
    if (fd < 0) exit(2);
    if (flags == 1) {
        char page[PAGE];
        for (int i = 0; i < FILE_PAGES; i++) {
            for (int b = 0; b < BLOCKS; b++) fill(page + b * BLOCK, file_tag(i, b));
            if (write(fd, page, PAGE) != PAGE) exit(2);
        }
        fsync(fd);
        direct = open(text, O_RDONLY | O_DIRECT | O_CLOEXEC);
        write_only = open(text, O_WRONLY | O_CLOEXEC);
    } else {
        if (ftruncate(fd, 64 * PAGE)) exit(2);
        int d = open(text, O_RDWR | O_DIRECT | O_CLOEXEC);
        if (d >= 0) close(fd), fd = d;
    }
    unlink(text);
    return fd;
}

static int one_seed(u64 seed, int steps_n) {
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART};
    sigaction(SIGSEGV, &action, 0);
    sigaction(SIGBUS, &action, 0);
    sigaction(SIGUSR1, &action, 0);
    struct utsname name;
    uname(&name);
    int major = 0, minor = 0;
    sscanf(name.release, "%d.%d", &major, &minor);
    strict_mremap = major > 6 || (major == 6 && minor >= 17);
    file = scratch_file(1);
    char *probe = model_memory(PAGE);
    can_merge = madvise(probe, PAGE, MADV_MERGEABLE) == 0;
    race = window(200, RACE_PAGES), counters = window(201, COUNTER_PAGES);
    if (mmap(race, RACE_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != race) return 2;
    if (mmap(counters, COUNTER_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != counters) return 2;
    for (int i = 0; i < threads_n; i++) {
        struct thread *t = model_memory(sizeof *t);
        t->id = i, t->seed = seed, t->steps = steps_n;
        t->random = seed * 0x2545F4914F6CDD1D + (u64)i * 0x1234567;
        t->memory_file = memfd_create("address-space", MFD_CLOEXEC);
        t->objects[0].pages = OBJECT_PAGES, t->objects[0].refs = 1;
        if (ftruncate(t->memory_file, OBJECT_PAGES * PAGE) || pipe(t->pipe)) return 2;
        t->scratch = scratch_file(0);
        t->spaces[0] = (struct space){window(i, arena_pages), arena_pages, ARENA, model_memory(sizeof(struct page) * (size_t)arena_pages)};
        for (int k = 2; k < 2 + FLOATS; k++) t->spaces[k] = (struct space){0, 0, FLOATING, model_memory(sizeof(struct page) * (FLOAT_PAGES + 1))};
        threads[i] = t;
    }
    // the heap belongs to the first thread; malloc is not used any more once the threads run
    pthread_barrier_init(&begin, 0, (unsigned)threads_n);
    for (int i = 1; i < threads_n; i++)
        if (pthread_create(&threads[i]->handle, 0, run, threads[i])) return 2;
    char *base = (char *)(((uintptr_t)sbrk(0) + 2 * PAGE - 1) & ~(uintptr_t)(PAGE - 1));
    if (brk(base)) return 2;
    threads[0]->spaces[1] = (struct space){base, HEAP_PAGES, HEAP, model_memory(sizeof(struct page) * HEAP_PAGES)};
    run(threads[0]);
    for (int i = 1; i < threads_n; i++) pthread_join(threads[i]->handle, 0);
    return 0;
}

int main(int argc, char **argv) {
    u64 seed = 1, seeds = 1;
    int steps_n = 1000, pages = 6144;
    for (int i = 1; i < argc; i++) {
        const char *o = argv[i], *v = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(o, "--verbose")) {
            verbose = 1;
            continue;
        }
        i++;
        if (!strcmp(o, "--seed")) seed = strtoull(v, 0, 10);
        else if (!strcmp(o, "--seeds")) seeds = strtoull(v, 0, 10);
        else if (!strcmp(o, "--steps")) steps_n = atoi(v);
        else if (!strcmp(o, "--threads")) threads_n = atoi(v);
        else if (!strcmp(o, "--pages")) pages = atoi(v);
        else if (!strcmp(o, "--raw")) raw_percent = atoi(v);
        else if (!strcmp(o, "--without")) snprintf(without, sizeof without, "%s", v);
        else if (!strcmp(o, "--only")) snprintf(only, sizeof only, "%s", v);
        else {
            fprintf(stderr, "%s?\n", o);
            return 2;
        }
    }
    if (threads_n < 1 || threads_n > THREADS) return 2;
    arena_pages = pages / threads_n;
    if (arena_pages < 1024) arena_pages = 1024;
    if (arena_pages > 4096) arena_pages = 4096;
    if (seeds == 1) return one_seed(seed, steps_n);
    for (u64 s = seed; s < seed + seeds; s++) {
        int status;
        pid_t pid = fork();
        if (!pid) _exit(one_seed(s, steps_n));
        if (pid < 0 || waitpid(pid, &status, 0) != pid) return 2;
        if (status) {
            printf("seed %lu: status %#x\n", s, status);
            return 1;
        }
    }
    return 0;
}

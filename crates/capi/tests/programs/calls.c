/* Calls every function of overspill.h, and meets every error that can be had: `calls CASE DELIVERY DIRECTORY`. A case that is wrong
   prints the line and aborts. One that cannot be had on this machine prints "CANNOT" and why. */
#define _GNU_SOURCE
#include <overspill.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define BUDGET OVERSPILL_MEMORY_BYTES_MIN
#define PAGE OVERSPILL_PAGE_SIZE
#define WORDS (PAGE / 8)

#define CHECK(what) ((what) ? (void)0 : wrong(__LINE__, #what))
#define GIVES(code, call) gives(__LINE__, #call, code, call)
#define OK(call) GIVES(OVERSPILL_OK, call)

static int delivery;
static const char *directory;

static void wrong(int line, const char *what)
{
    printf("line %d: not so: %s (the last error: %s)\n", line, what, overspill_error_message());
    fflush(stdout);
    abort();
}

static void gives(int line, const char *call, int expected, int code)
{
    if (code != expected) {
        printf("line %d: %s gives %s, not %s (%s)\n", line, call, overspill_code_name(code), overspill_code_name(expected),
               overspill_error_message());
        fflush(stdout);
        abort();
    }
    if (code != OVERSPILL_OK && strlen(overspill_error_message()) < 10)
        wrong(line, "an error has a message");
}

static overspill_options *options(void)
{
    overspill_options *new = overspill_options_new();
    CHECK(new);
    OK(overspill_options_memory(new, BUDGET));
    OK(overspill_options_delivery(new, delivery));
    OK(overspill_options_swap(new, directory));
    return new;
}

/* A pager with these options, which are freed. */
static overspill_pager *pager_of(overspill_options *with)
{
    overspill_pager *pager = NULL;
    int code = overspill_pager_new(with, &pager);
    if (code == OVERSPILL_E_USERFAULTFD) {
        printf("CANNOT: %s\n", overspill_error_message());
        exit(0);
    }
    OK(code);
    overspill_options_free(with);
    return pager;
}

static overspill_region *region_of(const overspill_pager *pager, size_t bytes)
{
    overspill_region *region = NULL;
    OK(overspill_region_new(pager, bytes, &region));
    CHECK(region && overspill_region_size(region) == bytes && (uintptr_t)overspill_region_data(region) % PAGE == 0);
    return region;
}

static uint64_t counter(const overspill_pager *pager, const char *name)
{
    uint64_t value = UINT64_MAX;
    OK(overspill_pager_counter(pager, name, &value));
    return value;
}

/* What word `i` of a region holds. */
static uint64_t content(size_t i)
{
    return (i + 1) * 0x9e3779b97f4a7c15u;
}

static void fill(overspill_region *region)
{
    uint64_t *words = overspill_region_data(region);
    for (size_t i = 0; i < overspill_region_size(region) / 8; i++)
        words[i] = content(i);
}

static void compare(overspill_region *region, size_t first, size_t end)
{
    const uint64_t *words = overspill_region_data(region);
    for (size_t i = first; i < end; i++)
        if (words[i] != content(i)) {
            printf("word %zu is %#llx\n", i, (unsigned long long)words[i]);
            wrong(__LINE__, "a region keeps its content");
        }
}

static int open_file(const char *name, size_t bytes)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && unlink(path) == 0 && ftruncate(fd, (off_t)bytes) == 0);
    return fd;
}

/* ---- case "calls": what works ---- */

struct seen {
    int devices;
    int compressed;
    uint64_t out;
    char last[4096];
};

static void each(const overspill_swap *device, void *context)
{
    struct seen *seen = context;
    seen->devices++;
    seen->compressed += !strcmp(device->kind, "compressed") && !strcmp(device->name, "compressed");
    seen->out += device->pages_out;
    CHECK(strcmp(device->state, "on") == 0 && device->priority < 100 && device->used_bytes <= device->size_bytes);
    CHECK(device->read_errors == 0 && device->write_errors == 0);
    snprintf(seen->last, sizeof seen->last, "%s", device->name);
}

static void each_policy(const overspill_policy_use *use, void *context)
{
    struct seen *seen = context;
    seen->devices++;
    CHECK(use->rescued <= use->victims && use->share * PAGE <= BUDGET);
    seen->out += use->resident;
    CHECK((use->region[0] == 0) == (seen->devices == 1));
    snprintf(seen->last, sizeof seen->last, "%s %s", use->policy, use->region);
}

static void own_policies(const overspill_pager *pager)
{
    struct seen seen = {0};
    OK(overspill_pager_policies(pager, each_policy, &seen));
    CHECK(seen.devices == 1 && strcmp(seen.last, "use-once ") == 0);
    overspill_region *own = region_of(pager, MIB);
    OK(overspill_region_set_policy(own, "fifo"));
    OK(overspill_region_set_policy(own, "2q:kin=0.2"));
    GIVES(OVERSPILL_E_POLICY, overspill_region_set_policy(own, "best"));
    fill(own);
    char text[20];
    size_t length = 0;
    OK(overspill_region_policy(own, text, sizeof text, &length));
    CHECK(strcmp(text, "2q:kin=0.2") == 0 && length == strlen(text));
    seen = (struct seen){0};
    OK(overspill_pager_policies(pager, each_policy, &seen));
    CHECK(seen.devices == 2 && strncmp(seen.last, "2q:kin=0.2 1024 KiB at 0x", 25) == 0 && seen.out > 0);
    OK(overspill_region_set_policy(own, NULL));
    OK(overspill_region_policy(own, text, sizeof text, NULL));
    CHECK(strcmp(text, "use-once") == 0);
    OK(overspill_region_set_policy(own, "lru"));
    compare(own, 0, MIB / 8);
    overspill_region_free(own);
    seen = (struct seen){0};
    OK(overspill_pager_policies(pager, each_policy, &seen));
    CHECK(seen.devices == 1);
    overspill_file *file = NULL;
    OK(overspill_file_open(pager, "/proc/self/exe", OVERSPILL_READ_ONLY, &file));
    OK(overspill_file_policy(file, text, sizeof text, NULL));
    CHECK(strcmp(text, "use-once") == 0);
    OK(overspill_file_set_policy(file, "drop-behind"));
    OK(overspill_file_policy(file, text, sizeof text, NULL));
    CHECK(strcmp(text, "drop-behind") == 0 && memcmp(overspill_file_data(file), "\177ELF", 4) == 0);
    seen = (struct seen){0};
    OK(overspill_pager_policies(pager, each_policy, &seen));
    CHECK(strcmp(seen.last, "drop-behind /proc/self/exe") == 0);
    OK(overspill_file_set_policy(file, NULL));
    OK(overspill_file_policy(file, text, sizeof text, NULL));
    CHECK(strcmp(text, "use-once") == 0);
    overspill_file_free(file);
    overspill_arena *arena = NULL;
    OK(overspill_arena_new(pager, MIB, &arena));
    OK(overspill_arena_set_policy(arena, "sieve"));
    GIVES(OVERSPILL_E_POLICY, overspill_arena_set_policy(arena, "best"));
    OK(overspill_arena_policy(arena, text, sizeof text, NULL));
    CHECK(strcmp(text, "sieve") == 0);
    OK(overspill_arena_set_policy(arena, NULL));
    OK(overspill_arena_policy(arena, text, sizeof text, NULL));
    CHECK(strcmp(text, "use-once") == 0);
    overspill_arena_free(arena);
}

static bool count_calls(const overspill_progress *progress, void *context)
{
    CHECK(progress->lost_pages == 0);
    ++*(int *)context;
    return true;
}

static void swaps(const overspill_pager *pager, overspill_region *region)
{
    char more[4096], spec[4200];
    snprintf(more, sizeof more, "%s/more", directory);
    snprintf(spec, sizeof spec, "file:%s,size=256M,prio=7", more);
    CHECK(mkdir(more, 0700) == 0);
    struct seen seen = {0};
    OK(overspill_pager_swaps(pager, each, &seen));
    CHECK(seen.devices == 1 && seen.out > 0 && strcmp(seen.last, directory) == 0);
    OK(overspill_pager_swapon(pager, spec));
    GIVES(OVERSPILL_E_DEVICE, overspill_pager_swapon(pager, spec));
    OK(overspill_pager_swapon(pager, "compressed:size=1M,prio=9"));
    seen = (struct seen){0};
    OK(overspill_pager_swaps(pager, each, &seen));
    CHECK(seen.devices == 3 && seen.compressed == 1 && strcmp(seen.last, directory) == 0);
    int calls = 0;
    OK(overspill_pager_swapoff(pager, directory, count_calls, &calls));
    CHECK(calls >= 1);
    OK(overspill_pager_swapoff(pager, "compressed", NULL, NULL));
    seen = (struct seen){0};
    OK(overspill_pager_swaps(pager, each, &seen));
    CHECK(seen.devices == 1 && strcmp(seen.last, more) == 0);
    compare(region, 0, overspill_region_size(region) / 8);
    CHECK(rmdir(more) == 0); /* the swap file has no name */
}

static void wires(const overspill_pager *pager, overspill_region *region)
{
    overspill_wire one = 0, two = 0, three = 0;
    OK(overspill_region_wire(region, 10 * PAGE, 20 * PAGE, &one));
    OK(overspill_region_wire(region, 20 * PAGE + 1, 1, &two));
    CHECK(one && two && one != two);
    /* a system call on wired memory works with both deliveries */
    int fd = open_file("wired", 0);
    char *data = overspill_region_data(region);
    CHECK(pwrite(fd, data + 10 * PAGE, 20 * PAGE, 0) == 20 * PAGE && pread(fd, data + 10 * PAGE, 20 * PAGE, 0) == 20 * PAGE);
    close(fd);
    compare(region, 10 * WORDS, 30 * WORDS);
    GIVES(OVERSPILL_E_IS_WIRED, overspill_region_discard(region, 0, 11 * PAGE));
    OK(overspill_region_unwire(region, one));
    GIVES(OVERSPILL_E_NOT_WIRED, overspill_region_unwire(region, one));
    GIVES(OVERSPILL_E_IS_WIRED, overspill_region_discard(region, 20 * PAGE, PAGE)); /* the other wire holds it */
    OK(overspill_region_unwire(region, two));
    GIVES(OVERSPILL_E_NOT_WIRED, overspill_region_unwire(region, 0));
    OK(overspill_region_wire(region, 5, 0, &three)); /* of nothing */
    OK(overspill_region_unwire(region, three));
    GIVES(OVERSPILL_E_WIRED_TOO_MUCH, overspill_region_wire(region, 0, BUDGET, &one));
    (void)pager;
}

static void files(overspill_region *region)
{
    size_t done = 0, size = 3 * MIB + 5, from = MIB + 3;
    char *data = overspill_region_data(region);
    int fd = open_file("file", 0);
    OK(overspill_region_write_at(region, from, size, fd, 7, &done));
    CHECK(done == size && lseek(fd, 0, SEEK_END) == (off_t)size + 7);
    memset(data + from, 0, size);
    done = 0;
    OK(overspill_region_read_at(region, from, size + 100, fd, 7, &done)); /* the file ends before */
    CHECK(done == size);
    OK(overspill_region_read_at(region, from, 10, fd, 7, NULL));
    compare(region, 0, overspill_region_size(region) / 8);
    GIVES(OVERSPILL_E_IO, overspill_region_read_at(region, 0, 1, -1, 0, &done));
    CHECK(overspill_error_errno() == EBADF);
    int closed = fcntl(fd, F_DUPFD, 1000); /* the lowest free number might be taken by a thread of the pager at once */
    CHECK(closed >= 1000);
    close(closed);
    GIVES(OVERSPILL_E_IO, overspill_region_write_at(region, 0, 1, closed, 0, &done));
    CHECK(overspill_error_errno() == EBADF && done == size);
    GIVES(OVERSPILL_E_IO, overspill_region_write_at(region, 0, 1, fd, UINT64_MAX - 2, NULL));
    close(fd);
}

static void arenas(const overspill_pager *pager)
{
    overspill_arena *arena = NULL;
    void *block = NULL, *other = NULL, *none = (void *)1;
    size_t size = 0;
    OK(overspill_arena_new(pager, 64 * MIB, &arena));
    CHECK(overspill_arena_capacity(arena) == 64 * MIB && overspill_arena_used(arena) == 0);
    OK(overspill_arena_alloc(arena, 100, 0, &block));
    CHECK((uintptr_t)block % 16 == 0);
    OK(overspill_arena_block_size(arena, block, &size));
    CHECK(size >= 100 && overspill_arena_used(arena) == size);
    memset(block, 'x', size);
    OK(overspill_arena_realloc(arena, &block, 9 * MIB, 64));
    CHECK((uintptr_t)block % 64 == 0 && *(char *)block == 'x' && ((char *)block)[99] == 'x');
    OK(overspill_arena_zalloc(arena, 20 * MIB, PAGE, &other));
    CHECK((uintptr_t)other % PAGE == 0);
    for (size_t i = 0; i < 20 * MIB; i += 1001) /* several times the budget */
        CHECK(((char *)other)[i] == 0);
    GIVES(OVERSPILL_E_ARENA_FULL, overspill_arena_alloc(arena, 60 * MIB, 0, &none));
    GIVES(OVERSPILL_E_ARENA_FULL, overspill_arena_zalloc(arena, SIZE_MAX, 0, &none));
    GIVES(OVERSPILL_E_ARENA_FULL, overspill_arena_realloc(arena, &block, 60 * MIB, 0));
    CHECK(none == (void *)1 && *(char *)block == 'x');
    GIVES(OVERSPILL_E_ARGUMENT, overspill_arena_alloc(arena, 1, 3, &none));
    GIVES(OVERSPILL_E_NOT_A_BLOCK, overspill_arena_dealloc(arena, (char *)block + 16));
    GIVES(OVERSPILL_E_NOT_A_BLOCK, overspill_arena_dealloc(arena, &size));
    GIVES(OVERSPILL_E_NOT_A_BLOCK, overspill_arena_block_size(arena, &size, &size));
    GIVES(OVERSPILL_E_ARGUMENT, overspill_arena_block_size(arena, NULL, &size));
    OK(overspill_arena_dealloc(arena, block));
    GIVES(OVERSPILL_E_NOT_A_BLOCK, overspill_arena_dealloc(arena, block));
    OK(overspill_arena_dealloc(arena, other));
    OK(overspill_arena_dealloc(arena, NULL));
    block = NULL;
    OK(overspill_arena_realloc(arena, &block, 0, 0)); /* of NULL; of no size */
    CHECK(block && overspill_arena_used(arena) == 16);
    overspill_arena_free(arena);
}

static void calls(void)
{
    CHECK(strcmp(overspill_version(), OVERSPILL_VERSION) == 0 && strcmp(overspill_error_message(), "") == 0);
    overspill_options *with = options();
    OK(overspill_options_swap_limit(with, (uint64_t)1 << 30));
    OK(overspill_options_policy(with, "2q:kin=0.3"));
    OK(overspill_options_engine(with, OVERSPILL_ENGINE_AUTO));
    OK(overspill_options_encrypt(with, true));
    OK(overspill_options_load_control(with, false));
    OK(overspill_options_follow_pointers(with, false));
    OK(overspill_options_regions_max(with, 3));
    OK(overspill_options_managed_max(with, 200 * MIB));
    overspill_pager *pager = pager_of(with);
    CHECK(overspill_pager_is_here(pager) && !overspill_pager_is_here(NULL));
    int how = -1;
    OK(overspill_pager_delivery(pager, &how));
    CHECK(how == delivery);

    char text[100];
    size_t length = 0;
    OK(overspill_pager_policy(pager, text, sizeof text, &length));
    CHECK(strcmp(text, "2q:kin=0.3") == 0 && length == strlen(text));
    OK(overspill_pager_policy(pager, text, 3, NULL));
    CHECK(strcmp(text, "2q") == 0);
    OK(overspill_pager_policy(pager, NULL, 0, &length));
    OK(overspill_pager_set_policy(pager, "use-once"));
    OK(overspill_pager_policy(pager, text, sizeof text, &length));
    CHECK(strcmp(text, "use-once") == 0);
    bool has_default = false;
    size_t policies = 0;
    for (const char *name; (name = overspill_policy_name(policies)); policies++)
        has_default |= strcmp(name, "use-once") == 0;
    CHECK(has_default && policies > 10);

    overspill_region *region = region_of(pager, 4 * BUDGET);
    fill(region);
    compare(region, 0, 4 * BUDGET / 8);
    CHECK(counter(pager, "memory_limit_bytes") == BUDGET && counter(pager, "pages_out") > 3 * BUDGET / PAGE / 2);
    CHECK(counter(pager, "memory_peak_bytes") <= BUDGET + MIB && counter(pager, "pages_in") > 0);
    uint64_t values[1000], metadata = 0;
    size_t count = overspill_counters_count();
    CHECK(count > 40 && count < 1000 && !overspill_counter_name(count));
    OK(overspill_pager_counters(pager, values, count));
    for (size_t i = 0; i < count; i++) {
        CHECK(strlen(overspill_counter_name(i)) > 4 && strlen(overspill_counter_unit(i)) > 0);
        CHECK(strlen(overspill_counter_help(i)) > 10);
        if (strcmp(overspill_counter_name(i), "memory_limit_bytes") == 0)
            CHECK(values[i] == BUDGET);
    }
    OK(overspill_pager_metadata_bytes(pager, &metadata));
    CHECK(metadata > 1000);
    OK(overspill_pager_first_loss(pager, text, sizeof text, &length));
    CHECK(length == 0 && text[0] == 0);

    wires(pager, region);
    files(region);
    own_policies(pager);
    uint64_t before = counter(pager, "pages_in");
    OK(overspill_region_prefetch(region, 0, MIB));
    OK(overspill_region_advise(region, 0, MIB, OVERSPILL_WILLNEED));
    compare(region, 0, MIB / 8);
    CHECK(counter(pager, "pages_in") > before);
    swaps(pager, region);
    OK(overspill_region_discard(region, 0, 2 * PAGE));
    OK(overspill_region_advise(region, 2 * PAGE, PAGE + 8, OVERSPILL_DONTNEED));
    const uint64_t *words = overspill_region_data(region);
    for (size_t i = 0; i < 3 * WORDS + 1; i++)
        CHECK(words[i] == 0);
    compare(region, 3 * WORDS + 1, 4 * BUDGET / 8);
    arenas(pager);

    overspill_pager_free(pager); /* the region keeps it */
    compare(region, 3 * WORDS + 1, 4 * BUDGET / 8);
    overspill_region_free(region);
}

/* ---- case "file": regions of files ---- */

/* The name of a file in the directory. It stays until the next call. */
static const char *path_of(const char *name)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static overspill_file *file_of(const overspill_pager *pager, const char *name, int access)
{
    overspill_file *file = NULL;
    OK(overspill_file_open(pager, path_of(name), access, &file));
    return file;
}

/* What the file itself has, not through the pager. */
static void file_has(const char *name, off_t at, const void *bytes, size_t length)
{
    char *found = malloc(length);
    int fd = open(path_of(name), O_RDONLY);
    CHECK(found && fd >= 0 && pread(fd, found, length, at) == (ssize_t)length && memcmp(found, bytes, length) == 0);
    close(fd);
    free(found);
}

/* Another program writes to the file. */
static void others_write(const char *name, off_t at, const void *bytes, size_t length)
{
    int fd = open(path_of(name), O_WRONLY);
    CHECK(fd >= 0 && pwrite(fd, bytes, length, at) == (ssize_t)length && fsync(fd) == 0);
    close(fd);
}

static void read_write_file(const overspill_pager *pager)
{
    overspill_file *file = NULL, *other = (void *)1;
    size_t half = 2 * BUDGET, whole = 4 * BUDGET;
    OK(overspill_file_open_part(pager, path_of("rw"), OVERSPILL_READ_WRITE | OVERSPILL_CREATE, 0, half, whole, &file));
    CHECK(overspill_file_size(file) == half && overspill_file_capacity(file) == whole);
    void *start = overspill_file_data(file);
    OK(overspill_file_grow(file, whole));
    GIVES(OVERSPILL_E_REGION_SIZE, overspill_file_grow(file, whole + 1));
    GIVES(OVERSPILL_E_REGION_SIZE, overspill_file_grow(file, half));
    CHECK(overspill_file_size(file) == whole && overspill_file_data(file) == start && (uintptr_t)start % PAGE == 0);
    CHECK(overspill_file_is_direct(file) || counter(pager, "hard_faults") < UINT64_MAX); /* the file system decides */
    /* half of it as memory, half of it by copies of pieces that cross pages */
    uint64_t *words = start, piece[777];
    for (size_t i = 0; i < half / 8; i++)
        words[i] = content(i);
    for (size_t i = half / 8; i < whole / 8;) {
        size_t n = whole / 8 - i < 777 ? whole / 8 - i : 777;
        for (size_t k = 0; k < n; k++)
            piece[k] = content(i + k);
        OK(overspill_file_write_at(file, i * 8, piece, n * 8));
        i += n;
    }
    OK(overspill_file_flush(file, 0, OVERSPILL_REST));
    uint64_t *all = malloc(whole);
    CHECK(all);
    for (size_t i = 0; i < whole / 8; i++)
        all[i] = content(i);
    file_has("rw", 0, all, whole);
    for (size_t i = 0; i < whole / 8; i += 97)
        CHECK(words[i] == content(i));
    memset(all, 0, whole);
    OK(overspill_file_read_at(file, 0, all, whole));
    for (size_t i = 0; i < whole / 8; i++)
        CHECK(all[i] == content(i));
    free(all);
    CHECK(counter(pager, "memory_peak_bytes") <= BUDGET + MIB && counter(pager, "file_pages_in") > BUDGET / PAGE);
    CHECK(counter(pager, "file_pages_out") >= whole / PAGE && counter(pager, "pages_out") == 0); /* none went to swap */

    GIVES(OVERSPILL_E_FILE_SHARED, overspill_file_open(pager, path_of("rw"), OVERSPILL_READ_ONLY, &other));
    CHECK(other == (void *)1);
    /* of a range, only its pages are written */
    words[0] = 1;
    words[WORDS] = 2;
    OK(overspill_file_flush(file, 0, 8));
    file_has("rw", 0, &words[0], 8);
    /* what others write is seen after a reload; own changes go to the file before */
    uint64_t theirs = 0x7e57;
    others_write("rw", 5 * PAGE, &theirs, 8);
    OK(overspill_file_reload(file, PAGE, 5 * PAGE));
    CHECK(words[5 * WORDS] == theirs && words[WORDS] == 2);
    file_has("rw", PAGE, &words[WORDS], 8);
    /* zeroes, also in the parts of pages */
    char zeroes[3 * PAGE] = {0};
    OK(overspill_file_punch(file, 10 * PAGE + 8, 2 * PAGE + 8));
    OK(overspill_file_flush(file, 0, OVERSPILL_REST));
    file_has("rw", 10 * PAGE + 8, zeroes, 2 * PAGE + 8);
    CHECK(words[10 * WORDS] == content(10 * WORDS) && words[12 * WORDS + 2] == content(12 * WORDS + 2) && words[11 * WORDS] == 0);

    /* a system call on wired memory works with both deliveries */
    overspill_wire wire = 0, none = 0;
    OK(overspill_file_wire(file, 20 * PAGE + 1, 10 * PAGE, &wire));
    int fd = open_file("wired", 0);
    CHECK(pwrite(fd, words + 20 * WORDS, 11 * PAGE, 0) == 11 * PAGE);
    close(fd);
    GIVES(OVERSPILL_E_IS_WIRED, overspill_file_punch(file, 0, OVERSPILL_REST));
    GIVES(OVERSPILL_E_WIRED_TOO_MUCH, overspill_file_wire(file, 0, BUDGET, &none));
    OK(overspill_file_unwire(file, wire));
    GIVES(OVERSPILL_E_NOT_WIRED, overspill_file_unwire(file, wire));

    /* somebody makes the file shorter: changes beyond its end are an error, of a flush and of the close */
    words[whole / 8 - 1] = 3;
    CHECK(truncate(path_of("rw"), (off_t)half) == 0);
    GIVES(OVERSPILL_E_FILE_ENDS, overspill_file_flush(file, half, OVERSPILL_REST));
    words[whole / 8 - 1] = 4;
    words[3] = 5;
    GIVES(OVERSPILL_E_FILE_ENDS, overspill_file_close(file));
    uint64_t five = 5;
    file_has("rw", 24, &five, 8); /* the rest was written */

    /* closed without an error, and freed */
    file = file_of(pager, "rw", OVERSPILL_READ_WRITE);
    CHECK(overspill_file_size(file) == half);
    uint64_t six = 6, seven = 7;
    OK(overspill_file_write_at(file, 8, &six, 8));
    OK(overspill_file_close(file));
    file_has("rw", 8, &six, 8);
    file = file_of(pager, "rw", OVERSPILL_READ_WRITE);
    OK(overspill_file_write_at(file, 8, &seven, 8));
    overspill_file_free(file);
    file_has("rw", 8, &seven, 8);
}

/* Of the file that read_write_file made. */
static void other_files(const overspill_pager *pager)
{
    size_t size = 2 * BUDGET, offset = PAGE + 40;
    overspill_file *file = file_of(pager, "rw", OVERSPILL_READ_ONLY), *part = NULL, *private = NULL;
    uint64_t word = 0, changed = 0xc0ffee, before = counter(pager, "file_pages_in");
    OK(overspill_file_prefetch(file, size / 2, MIB));
    OK(overspill_file_read_at(file, size / 2, &word, 8));
    CHECK(word == content(size / 16) && counter(pager, "file_pages_in") > before);
    GIVES(OVERSPILL_E_ACCESS, overspill_file_write_at(file, 0, &word, 8));
    GIVES(OVERSPILL_E_ACCESS, overspill_file_flush(file, 0, OVERSPILL_REST));
    GIVES(OVERSPILL_E_ACCESS, overspill_file_punch(file, 0, 1));
    GIVES(OVERSPILL_E_FILE_ENDS, overspill_file_open_part(pager, path_of("rw"), 0, offset, size, 0, &part));
    /* a part of it that begins anywhere: bytes 40 and on of its second page */
    OK(overspill_file_open_part(pager, path_of("rw"), 0, offset, OVERSPILL_REST, 0, &part));
    CHECK(overspill_file_size(part) == size - offset && (uintptr_t)overspill_file_data(part) % PAGE == 40);
    CHECK(*(uint64_t *)overspill_file_data(part) == content(offset / 8));
    OK(overspill_file_reload(part, 0, OVERSPILL_REST));
    CHECK(*(uint64_t *)overspill_file_data(part) == content(offset / 8));
    OK(overspill_file_close(part));
    /* private changes: more than the budget has room for */
    OK(overspill_file_open(pager, path_of("rw"), OVERSPILL_COPY_ON_WRITE, &private));
    uint64_t *words = overspill_file_data(private), swapped = counter(pager, "pages_out");
    for (size_t i = 20 * WORDS; i < size / 8; i++)
        words[i] = ~content(i);
    OK(overspill_file_write_at(private, 20 * PAGE, &changed, 8));
    for (size_t i = 20 * WORDS + 1; i < size / 8; i++)
        CHECK(words[i] == ~content(i));
    CHECK(words[20 * WORDS] == changed && counter(pager, "pages_out") > swapped);
    GIVES(OVERSPILL_E_ACCESS, overspill_file_flush(private, 0, 1));
    OK(overspill_file_read_at(file, 20 * PAGE, &word, 8)); /* the other region has what the file has */
    CHECK(word == content(20 * WORDS));
    OK(overspill_file_reload(private, 0, OVERSPILL_REST));
    CHECK(words[20 * WORDS] == content(20 * WORDS));
    OK(overspill_file_close(private));
    /* others have made it longer: the region follows up to its capacity */
    OK(overspill_file_close(file));
    OK(overspill_file_open_part(pager, path_of("rw"), 0, 0, size, 2 * size, &file));
    GIVES(OVERSPILL_E_FILE_ENDS, overspill_file_grow(file, size + 8));
    others_write("rw", (off_t)size, &changed, 8);
    OK(overspill_file_grow(file, size + 8));
    OK(overspill_file_read_at(file, size, &word, 8));
    CHECK(word == changed);
    OK(overspill_file_close(file));
}

static void a_file(void)
{
    overspill_options *with = options();
    OK(overspill_options_write_back(with, 10000, BUDGET / 8));
    overspill_pager *pager = pager_of(with);
    read_write_file(pager);
    other_files(pager);

    overspill_file *file = (void *)1;
    uint64_t word;
    GIVES(OVERSPILL_E_FILE, overspill_file_open(pager, path_of("none"), OVERSPILL_READ_WRITE, &file));
    CHECK(overspill_error_errno() == ENOENT && strstr(overspill_error_message(), "none"));
    GIVES(OVERSPILL_E_FILE, overspill_file_open(pager, directory, OVERSPILL_READ_ONLY, &file));
    GIVES(OVERSPILL_E_ARGUMENT, overspill_file_open(pager, path_of("rw"), 3, &file));
    GIVES(OVERSPILL_E_ARGUMENT, overspill_file_open(pager, path_of("rw"), OVERSPILL_CREATE, &file));
    GIVES(OVERSPILL_E_ARGUMENT, overspill_file_open(pager, NULL, 0, &file));
    GIVES(OVERSPILL_E_ARGUMENT, overspill_file_open(pager, path_of("rw"), 0, NULL));
    GIVES(OVERSPILL_E_REGION_SIZE, overspill_file_open_part(pager, path_of("rw"), 0, 0, 0, 0, &file));
    GIVES(OVERSPILL_E_REGION_SIZE, overspill_file_open_part(pager, path_of("rw"), 0, UINT64_MAX, 1, 0, &file));
    CHECK(file == (void *)1);
    file = file_of(pager, "rw", OVERSPILL_READ_WRITE);
    size_t size = overspill_file_size(file);
    GIVES(OVERSPILL_E_ARGUMENT, overspill_file_read_at(file, size - 7, &word, 8));
    GIVES(OVERSPILL_E_ARGUMENT, overspill_file_read_at(file, 0, &word, OVERSPILL_REST));
    GIVES(OVERSPILL_E_ARGUMENT, overspill_file_read_at(file, 0, NULL, 1));
    GIVES(OVERSPILL_E_ARGUMENT, overspill_file_write_at(file, 0, NULL, 1));
    GIVES(OVERSPILL_E_ARGUMENT, overspill_file_write_at(file, SIZE_MAX, &word, 8));
    GIVES(OVERSPILL_E_ARGUMENT, overspill_file_flush(file, size + 1, OVERSPILL_REST));
    GIVES(OVERSPILL_E_ARGUMENT, overspill_file_reload(file, 0, size + 1));
    GIVES(OVERSPILL_E_ARGUMENT, overspill_file_punch(file, size, 1));
    GIVES(OVERSPILL_E_ARGUMENT, overspill_file_prefetch(file, 1, size));
    GIVES(OVERSPILL_E_ARGUMENT, overspill_file_wire(file, 0, 1, NULL));
    OK(overspill_file_read_at(file, size, NULL, 0));
    OK(overspill_file_flush(file, size, OVERSPILL_REST));
    /* a write that fails is told, and repeated: the process may not write beyond this byte for a while */
    struct rlimit before, limit;
    uint64_t eight = 8, nine = 9;
    CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR && getrlimit(RLIMIT_FSIZE, &before) == 0);
    limit = (struct rlimit){MIB, before.rlim_max};
    OK(overspill_file_write_at(file, 2 * MIB, &eight, 8));
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    GIVES(OVERSPILL_E_FILE, overspill_file_flush(file, 0, OVERSPILL_REST));
    CHECK(overspill_error_errno() == EFBIG);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    OK(overspill_file_flush(file, 0, OVERSPILL_REST));
    file_has("rw", 2 * MIB, &eight, 8);
    OK(overspill_file_write_at(file, 2 * MIB, &nine, 8));
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    GIVES(OVERSPILL_E_FILE, overspill_file_close(file)); /* and is lost */
    CHECK(overspill_error_errno() == EFBIG && setrlimit(RLIMIT_FSIZE, &before) == 0);
    file_has("rw", 2 * MIB, &eight, 8);
    overspill_pager_free(pager);
    CHECK(unlink(path_of("rw")) == 0);
}

/* ---- case "errors": what is refused ---- */

static bool no(const overspill_progress *progress, void *context)
{
    (void)progress;
    (void)context;
    return false;
}

static void refuses(int code, overspill_options *with)
{
    overspill_pager *pager = (void *)1;
    GIVES(code, overspill_pager_new(with, &pager));
    CHECK(pager == (void *)1);
    overspill_options_free(with);
}

static void errors(void)
{
    /* NULL and values that are none */
    overspill_pager *pager = NULL;
    overspill_region *region = NULL;
    overspill_arena *arena = NULL;
    overspill_file *file = NULL;
    uint64_t number;
    size_t size;
    int how;
    void *block;
    overspill_options *with = options();
    const int null[] = {
        overspill_options_memory(NULL, BUDGET), overspill_options_swap(NULL, "x"), overspill_options_swap(with, NULL),
        overspill_options_swap_limit(NULL, 0), overspill_options_swap_device(with, NULL), overspill_options_policy(with, NULL),
        overspill_options_delivery(NULL, 0), overspill_options_delivery(with, 2), overspill_options_engine(with, -1),
        overspill_options_encrypt(NULL, true), overspill_options_load_control(NULL, true),
        overspill_options_follow_pointers(NULL, true), overspill_options_regions_max(NULL, 1),
        overspill_options_managed_max(NULL, 1), overspill_pager_new(NULL, &pager), overspill_pager_new(with, NULL),
        overspill_pager_delivery(NULL, &how), overspill_pager_set_policy(NULL, "2q"), overspill_pager_policy(NULL, NULL, 0, NULL),
        overspill_pager_first_loss(NULL, NULL, 0, NULL), overspill_pager_metadata_bytes(NULL, &number),
        overspill_pager_counter(NULL, "hard_faults", &number), overspill_pager_counters(NULL, &number, 1),
        overspill_pager_swaps(NULL, each, NULL), overspill_pager_swapon(NULL, "x"), overspill_pager_swapoff(NULL, "x", NULL, NULL),
        overspill_region_new(NULL, 1, &region), overspill_region_prefetch(NULL, 0, 0), overspill_region_advise(NULL, 0, 0, 0),
        overspill_region_discard(NULL, 0, 0), overspill_region_wire(NULL, 0, 0, &number), overspill_region_unwire(NULL, 1),
        overspill_region_read_at(NULL, 0, 0, 0, 0, &size), overspill_region_write_at(NULL, 0, 0, 1, 0, &size),
        overspill_arena_new(NULL, 1, &arena), overspill_arena_alloc(NULL, 1, 0, &block), overspill_arena_zalloc(NULL, 1, 0, &block),
        overspill_arena_realloc(NULL, &block, 1, 0), overspill_arena_dealloc(NULL, NULL),
        overspill_arena_block_size(NULL, &size, &size), overspill_options_write_back(NULL, 1, 1),
        overspill_file_open(NULL, "x", 0, &file), overspill_file_open_part(NULL, "x", 0, 0, 1, 1, &file),
        overspill_file_close(NULL), overspill_file_read_at(NULL, 0, &size, 1), overspill_file_write_at(NULL, 0, &size, 1),
        overspill_file_flush(NULL, 0, 0), overspill_file_grow(NULL, 1), overspill_file_reload(NULL, 0, 0),
        overspill_file_punch(NULL, 0, 0), overspill_file_prefetch(NULL, 0, 0), overspill_file_wire(NULL, 0, 0, &number),
        overspill_file_unwire(NULL, 1), overspill_pager_policies(NULL, each_policy, NULL), overspill_region_set_policy(NULL, "2q"),
        overspill_region_policy(NULL, NULL, 0, NULL), overspill_file_set_policy(NULL, "2q"),
        overspill_file_policy(NULL, NULL, 0, NULL), overspill_arena_set_policy(NULL, "2q"),
        overspill_arena_policy(NULL, NULL, 0, NULL),
    };
    for (size_t i = 0; i < sizeof null / sizeof *null; i++)
        if (null[i] != OVERSPILL_E_ARGUMENT) {
            printf("call %zu of the list of NULLs gives %d\n", i, null[i]);
            wrong(__LINE__, "NULL is refused");
        }
    overspill_options_free(NULL);
    overspill_pager_free(NULL);
    overspill_region_free(NULL);
    overspill_arena_free(NULL);
    overspill_file_free(NULL);
    CHECK(!overspill_file_data(NULL) && !overspill_file_size(NULL) && !overspill_file_capacity(NULL) && !overspill_file_is_direct(NULL));
    CHECK(!overspill_region_data(NULL) && !overspill_region_size(NULL));
    CHECK(!overspill_arena_capacity(NULL) && !overspill_arena_used(NULL));
    CHECK(!overspill_code_name(99) && !overspill_code_name(-1) && !overspill_counter_unit(1000) && !overspill_counter_help(1000));
    CHECK(!overspill_policy_name(1000));

    /* pagers that cannot be */
    refuses(OVERSPILL_E_NO_BUDGET, overspill_options_new());
    OK(overspill_options_memory(with, BUDGET - 1));
    refuses(OVERSPILL_E_BUDGET_TOO_SMALL, with);
    with = options();
    OK(overspill_options_policy(with, "no-such-policy"));
    refuses(OVERSPILL_E_POLICY, with);
    CHECK(strstr(overspill_error_message(), "use-once")); /* it names those that there are */
    with = options();
    OK(overspill_options_swap(with, "/nowhere/at/all"));
    refuses(OVERSPILL_E_SWAP, with);
    CHECK(overspill_error_errno() == ENOENT);
    with = options();
    GIVES(OVERSPILL_E_DEVICE, overspill_options_swap_device(with, "floppy:/dev/fd0"));
    OK(overspill_options_swap_device(with, "block:/dev/null"));
    refuses(OVERSPILL_E_SWAP, with);

    /* calls of one pager */
    with = options();
    OK(overspill_options_regions_max(with, 2));
    OK(overspill_options_managed_max(with, 64 * MIB));
    pager = pager_of(with);
    GIVES(OVERSPILL_E_POLICY, overspill_pager_set_policy(pager, "2q:nonsense=1"));
    GIVES(OVERSPILL_E_ARGUMENT, overspill_pager_set_policy(pager, NULL));
    GIVES(OVERSPILL_E_ARGUMENT, overspill_pager_policy(pager, NULL, 10, &size));
    GIVES(OVERSPILL_E_ARGUMENT, overspill_pager_counter(pager, "no_such_counter", &number));
    GIVES(OVERSPILL_E_ARGUMENT, overspill_pager_counter(pager, "hard_faults", NULL));
    GIVES(OVERSPILL_E_ARGUMENT, overspill_pager_counters(pager, NULL, 1));
    GIVES(OVERSPILL_E_ARGUMENT, overspill_pager_counters(pager, &number, 100000));
    GIVES(OVERSPILL_E_ARGUMENT, overspill_pager_swaps(pager, NULL, NULL));
    GIVES(OVERSPILL_E_ARGUMENT, overspill_pager_policies(pager, NULL, NULL));
    GIVES(OVERSPILL_E_DEVICE, overspill_pager_swapon(pager, "compressed:size=nonsense"));
    GIVES(OVERSPILL_E_SWAP, overspill_pager_swapon(pager, "file:/nowhere/at/all/x"));
    CHECK(overspill_error_errno() == ENOENT);
    GIVES(OVERSPILL_E_DEVICE, overspill_pager_swapoff(pager, "/no/such/device", NULL, NULL));
    GIVES(OVERSPILL_E_REGION_SIZE, overspill_region_new(pager, 0, &region));
    GIVES(OVERSPILL_E_REGION_SIZE, overspill_region_new(pager, 65 * MIB, &region));
    GIVES(OVERSPILL_E_REGION_SIZE, overspill_arena_new(pager, SIZE_MAX, &arena));
    GIVES(OVERSPILL_E_ARGUMENT, overspill_region_new(pager, 1, NULL));
    CHECK(!region && !arena);
    region = region_of(pager, 32 * MIB);
    overspill_region *second = region_of(pager, 1);
    GIVES(OVERSPILL_E_TOO_MANY_REGIONS, overspill_region_new(pager, 1, &second));
    overspill_region_free(second);
    fill(region);
    GIVES(OVERSPILL_E_ARGUMENT, overspill_region_prefetch(region, 32 * MIB, 1));
    GIVES(OVERSPILL_E_ARGUMENT, overspill_region_discard(region, 1, 32 * MIB));
    GIVES(OVERSPILL_E_ARGUMENT, overspill_region_advise(region, SIZE_MAX, 2, OVERSPILL_WILLNEED));
    GIVES(OVERSPILL_E_ARGUMENT, overspill_region_advise(region, 0, 1, 2));
    GIVES(OVERSPILL_E_ARGUMENT, overspill_region_wire(region, 0, 1, NULL));
    GIVES(OVERSPILL_E_ARGUMENT, overspill_region_read_at(region, 2, SIZE_MAX, 0, 0, &size));
    GIVES(OVERSPILL_E_ARGUMENT, overspill_arena_new(pager, 1, NULL));
    compare(region, 0, 32 * MIB / 8);

    /* more than the budget that is nowhere else: the only device cannot go */
    GIVES(OVERSPILL_E_DEVICE, overspill_pager_swapoff(pager, directory, no, NULL));

    /* no wire can take what other wires have */
    overspill_wire wire;
    OK(overspill_region_wire(region, 0, BUDGET / 2, &wire));
    GIVES(OVERSPILL_E_WIRED_TOO_MUCH, overspill_region_wire(region, BUDGET, 1, &number));
    int fd = open_file("transfer", 0);
    OK(overspill_region_write_at(region, BUDGET, 1, fd, 0, &size)); /* transfers have room of their own */
    CHECK(size == 1);
    close(fd);
    OK(overspill_region_unwire(region, wire));
    overspill_region_free(region);
    overspill_pager_free(pager);
}

/* ---- case "limits": what the system refuses. Each in a child, before there is any pager ---- */

static void in_child(void (*run)(void))
{
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        run();
        fflush(stdout);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* From now on this system call fails with `error`. */
static void deny(int call, int error)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void no_io_uring(void)
{
    deny(SYS_io_uring_setup, EPERM);
    overspill_options *with = options();
    OK(overspill_options_engine(with, OVERSPILL_ENGINE_IO_URING));
    refuses(OVERSPILL_E_ENGINE, with);
    CHECK(overspill_error_errno() == EPERM);
    with = options();
    OK(overspill_options_engine(with, OVERSPILL_ENGINE_PSYNC));
    overspill_pager_free(pager_of(with));
}

static void no_userfaultfd(void)
{
    deny(SYS_userfaultfd, EPERM);
    deny(SYS_ioctl, EPERM); /* there is a device, too */
    overspill_options *with = options();
    OK(overspill_options_delivery(with, OVERSPILL_IN_THREAD));
    refuses(OVERSPILL_E_USERFAULTFD, with);
}

static void no_sigaction(void)
{
    deny(SYS_rt_sigaction, ENOMEM);
    overspill_options *with = options();
    OK(overspill_options_delivery(with, OVERSPILL_IN_THREAD));
    refuses(OVERSPILL_E_HANDLER, with);
    CHECK(overspill_error_errno() == ENOMEM);
}

static void no_mlock(void)
{
    deny(SYS_mlock, ENOMEM);
    refuses(OVERSPILL_E_KEY, options());
    overspill_options *with = options();
    OK(overspill_options_encrypt(with, false));
    overspill_pager_free(pager_of(with));
}

static void no_threads(void)
{
    deny(SYS_clone3, EAGAIN);
    refuses(OVERSPILL_E_RESOURCES, options());
    CHECK(overspill_error_errno() == EAGAIN);
}

static void no_address_space(void)
{
    overspill_pager *pager = pager_of(options());
    overspill_region *region = (void *)1;
    deny(SYS_mmap, ENOMEM);
    GIVES(OVERSPILL_E_MAP, overspill_region_new(pager, MIB, &region));
    CHECK(overspill_error_errno() == ENOMEM && region == (void *)1);
}

static void replaced_handler(void)
{
    overspill_pager *pager = NULL;
    overspill_options *with = options();
    OK(overspill_options_delivery(with, OVERSPILL_IN_THREAD));
    OK(overspill_pager_new(with, &pager));
    CHECK(signal(SIGBUS, SIG_DFL) != SIG_ERR);
    refuses(OVERSPILL_E_HANDLER_REPLACED, with);
    overspill_pager_free(pager);
}

static void too_many_pagers(void)
{
    overspill_pager *pagers[65] = {0};
    overspill_options *with = options();
    OK(overspill_options_managed_max(with, MIB));
    for (int i = 0; i < 64; i++)
        OK(overspill_pager_new(with, &pagers[i]));
    GIVES(OVERSPILL_E_TOO_MANY_PAGERS, overspill_pager_new(with, &pagers[64]));
    overspill_pager_free(pagers[63]);
    OK(overspill_pager_new(with, &pagers[63]));
    for (int i = 0; i < 64; i++)
        overspill_pager_free(pagers[i]);
    overspill_options_free(with);
}

static void limits(void)
{
    void (*const cases[])(void) = {no_io_uring,  no_userfaultfd,   no_sigaction,     no_mlock,
                                   no_threads,   no_address_space, replaced_handler, too_many_pagers};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        in_child(cases[i]);
}

/* ---- case "threads": several at once on one region ---- */

static overspill_region *shared;
static overspill_arena *blocks;
static int source;

static uint64_t next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Each thread has every fourth page, so neighbours are touched, wired, read and discarded by others at the same time. */
static void *worker(void *number)
{
    uint64_t me = (uint64_t)(uintptr_t)number, random = me;
    size_t pages = overspill_region_size(shared) / PAGE;
    uint64_t *words = overspill_region_data(shared);
    for (int i = 0; i < 3000; i++) {
        size_t page = next(&random) % (pages / 4) * 4 + me;
        uint64_t *mine = words + page * WORDS;
        overspill_wire wire;
        switch (next(&random) % 8) {
        case 0:
            OK(overspill_region_wire(shared, page * PAGE, PAGE, &wire));
            CHECK(write(source, mine, 0) == 0);
            CHECK(*mine == 0 || *mine == content(page * WORDS));
            OK(overspill_region_unwire(shared, wire));
            break;
        case 1:
            OK(overspill_region_discard(shared, page * PAGE, PAGE));
            CHECK(*mine == 0);
            break;
        case 2: {
            size_t done = 0;
            OK(overspill_region_read_at(shared, page * PAGE, PAGE, source, page * PAGE, &done));
            CHECK(done == PAGE && *mine == content(page * WORDS));
            break;
        }
        case 3: {
            void *block = NULL;
            OK(overspill_arena_alloc(blocks, 1 + next(&random) % 20000, 0, &block));
            memset(block, (int)me, 1);
            OK(overspill_arena_realloc(blocks, &block, 1 + next(&random) % 20000, 0));
            CHECK(*(char *)block == (char)me);
            OK(overspill_arena_dealloc(blocks, block));
            break;
        }
        default:
            if (mine[WORDS - 1] == 0)
                for (size_t w = 0; w < WORDS; w++)
                    mine[w] = content(page * WORDS + w);
            CHECK(mine[7] == content(page * WORDS + 7));
        }
    }
    /* an error is a thread's own */
    char message[200];
    GIVES(OVERSPILL_E_NOT_WIRED, overspill_region_unwire(shared, 1000000 + me));
    snprintf(message, sizeof message, "the region has no wire of the number %u", 1000000 + (unsigned)me);
    CHECK(strcmp(overspill_error_message(), message) == 0);
    return NULL;
}

static void threads(void)
{
    overspill_pager *pager = pager_of(options());
    shared = region_of(pager, 4 * BUDGET);
    OK(overspill_arena_new(pager, 16 * MIB, &blocks));
    fill(shared);
    source = open_file("source", 0);
    size_t done = 0;
    OK(overspill_region_write_at(shared, 0, 4 * BUDGET, source, 0, &done));
    CHECK(done == 4 * BUDGET);
    pthread_t all[4];
    for (uintptr_t i = 0; i < 4; i++)
        CHECK(pthread_create(&all[i], NULL, worker, (void *)i) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(all[i], NULL) == 0);
    CHECK(overspill_arena_used(blocks) == 0);
    overspill_arena_free(blocks);
    overspill_region_free(shared);
    overspill_pager_free(pager);
    close(source);
}

/* ---- case "file-threads": several at once on one file, which grows meanwhile ---- */

static overspill_file *shared_file;

/* Each thread has every fourth page. It writes and looks, as memory and by copies, while others flush, reload and grow. */
static void *file_worker(void *number)
{
    uint64_t me = (uint64_t)(uintptr_t)number, random = me;
    static uint64_t seen[4][4 * BUDGET / PAGE]; /* what a page's word 9 has */
    uint64_t *words = overspill_file_data(shared_file);
    for (int i = 0; i < 3000; i++) {
        size_t page = next(&random) % (overspill_file_size(shared_file) / PAGE / 4) * 4 + me, at = page * PAGE + 72;
        uint64_t *last = &seen[me][page], word = next(&random), found;
        overspill_wire wire;
        switch (next(&random) % 16) {
        case 0:
            OK(overspill_file_reload(shared_file, page * PAGE, PAGE));
            break;
        case 1:
            OK(overspill_file_wire(shared_file, page * PAGE, PAGE, &wire));
            CHECK(write(source, words + page * WORDS, 0) == 0);
            OK(overspill_file_unwire(shared_file, wire));
            break;
        case 2:
            if (i % 8 == 0) { /* some disks take milliseconds for each */
                OK(overspill_file_punch(shared_file, page * PAGE, PAGE));
                *last = 0;
            }
            break;
        case 3:
            if (overspill_file_size(shared_file) < 4 * BUDGET) {
                int code = overspill_file_grow(shared_file, overspill_file_size(shared_file) + 4 * PAGE);
                CHECK(code == OVERSPILL_OK || code == OVERSPILL_E_REGION_SIZE); /* another thread was faster */
            }
            break;
        case 4:
            if (i % 8 == 0) /* the same */
                OK(overspill_file_flush(shared_file, page * PAGE, OVERSPILL_REST));
            break;
        case 5: case 6: case 7: case 8:
            OK(overspill_file_write_at(shared_file, at, &word, 8));
            *last = word;
            break;
        case 9: case 10:
            words[page * WORDS + 9] = word;
            *last = word;
            break;
        default:
            OK(overspill_file_read_at(shared_file, at, &found, 8));
            CHECK(found == *last && words[page * WORDS + 9] == *last);
        }
    }
    for (size_t page = me; page < overspill_file_size(shared_file) / PAGE; page += 4)
        CHECK(words[page * WORDS + 9] == seen[me][page]);
    return NULL;
}

static void file_threads(void)
{
    overspill_pager *pager = pager_of(options());
    OK(overspill_file_open_part(pager, path_of("shared"), OVERSPILL_READ_WRITE | OVERSPILL_CREATE, 0, 3 * BUDGET, 4 * BUDGET,
                                &shared_file));
    source = open_file("source", 0);
    pthread_t all[4];
    for (uintptr_t i = 0; i < 4; i++)
        CHECK(pthread_create(&all[i], NULL, file_worker, (void *)i) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(all[i], NULL) == 0);
    OK(overspill_file_close(shared_file));
    overspill_pager_free(pager);
    close(source);
    CHECK(unlink(path_of("shared")) == 0);
}

/* ---- case "cancel": a thread that is cancelled within a call ends at its next point of cancellation, after the call ---- */

static overspill_pager *of_cancel;
static volatile int rounds;

static void *cancelled(void *unused)
{
    (void)unused;
    for (;;) {
        uint64_t value;
        CHECK(overspill_pager_swapoff(of_cancel, "/no/such/device", NULL, NULL) == OVERSPILL_E_DEVICE);
        OK(overspill_pager_metadata_bytes(of_cancel, &value));
        rounds++;
        pthread_testcancel();
    }
    return NULL;
}

static void cancel(void)
{
    of_cancel = pager_of(options());
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        void *ended;
        rounds = 0;
        CHECK(pthread_create(&thread, NULL, cancelled, NULL) == 0);
        while (rounds == 0)
            usleep(100);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &ended) == 0 && ended == PTHREAD_CANCELED);
    }
    overspill_pager_free(of_cancel);
}

/* ---- case "fork" ---- */

static sigjmp_buf back;

static void jump_back(int signal)
{
    siglongjmp(back, signal);
}

static void forks(void)
{
    overspill_pager *pager = pager_of(options());
    overspill_region *region = region_of(pager, 2 * BUDGET);
    overspill_arena *arena = NULL;
    void *block = NULL;
    OK(overspill_arena_new(pager, MIB, &arena));
    OK(overspill_arena_alloc(arena, 10, 0, &block));
    overspill_wire wire;
    OK(overspill_region_wire(region, 0, PAGE, &wire));
    fill(region);
    overspill_file *file = NULL, *of_child = NULL;
    OK(overspill_file_open_part(pager, path_of("forked"), OVERSPILL_READ_WRITE | OVERSPILL_CREATE, 0, MIB, 0, &file));
    OK(overspill_file_open_part(pager, path_of("of-child"), OVERSPILL_READ_WRITE | OVERSPILL_CREATE, 0, MIB, 0, &of_child));
    ((char *)overspill_file_data(file))[0] = 'p';
    ((char *)overspill_file_data(of_child))[0] = 'p';
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        uint64_t number;
        size_t size;
        int how;
        char text[10];
        void *other = block;
        overspill_region *new;
        overspill_arena *new_arena;
        overspill_file *new_file;
        const int forked[] = {
            overspill_pager_delivery(pager, &how), overspill_pager_set_policy(pager, "2q"),
            overspill_pager_policy(pager, text, sizeof text, &size), overspill_pager_first_loss(pager, text, sizeof text, &size),
            overspill_pager_metadata_bytes(pager, &number), overspill_pager_counter(pager, "hard_faults", &number),
            overspill_pager_counters(pager, &number, 1), overspill_pager_swaps(pager, each, NULL),
            overspill_pager_swapon(pager, "compressed:size=1M"), overspill_pager_swapoff(pager, directory, NULL, NULL),
            overspill_region_new(pager, 1, &new), overspill_region_prefetch(region, 0, 1), overspill_region_discard(region, 0, 1),
            overspill_region_advise(region, 0, 1, OVERSPILL_WILLNEED), overspill_region_wire(region, 0, 1, &number),
            overspill_region_unwire(region, wire), overspill_region_read_at(region, 0, 1, 0, 0, &size),
            overspill_region_write_at(region, 0, 1, 1, 0, &size), overspill_arena_new(pager, 1, &new_arena),
            overspill_arena_alloc(arena, 1, 0, &other), overspill_arena_zalloc(arena, 1, 0, &other),
            overspill_arena_realloc(arena, &other, 1, 0), overspill_arena_dealloc(arena, block),
            overspill_arena_block_size(arena, block, &size), overspill_file_open(pager, "x", 0, &new_file),
            overspill_file_read_at(file, 0, &number, 8), overspill_file_write_at(file, 0, &number, 8),
            overspill_file_flush(file, 0, OVERSPILL_REST), overspill_file_grow(file, MIB), overspill_file_reload(file, 0, 8),
            overspill_file_punch(file, 0, 8), overspill_file_prefetch(file, 0, 8), overspill_file_wire(file, 0, 8, &number),
            overspill_file_unwire(file, 1), overspill_pager_policies(pager, each_policy, NULL),
            overspill_region_set_policy(region, "2q"), overspill_region_policy(region, text, sizeof text, &size),
            overspill_file_set_policy(file, "2q"), overspill_file_policy(file, text, sizeof text, &size),
            overspill_arena_set_policy(arena, NULL), overspill_arena_policy(arena, text, sizeof text, &size),
            overspill_file_close(of_child), /* which frees it */
        };
        for (size_t i = 0; i < sizeof forked / sizeof *forked; i++)
            if (forked[i] != OVERSPILL_E_FORKED) {
                printf("call %zu of the list of a child gives %d\n", i, forked[i]);
                wrong(__LINE__, "a child is told");
            }
        CHECK(!overspill_pager_is_here(pager) && overspill_arena_used(arena) == 0 && overspill_arena_capacity(arena) == MIB);
        CHECK(overspill_region_data(region) && overspill_region_size(region) == 2 * BUDGET);
        CHECK(overspill_file_data(file) && overspill_file_size(file) == MIB && overspill_file_capacity(file) == MIB);
        signal(SIGSEGV, jump_back);
        if (sigsetjmp(back, 1) == 0) {
            *(volatile uint64_t *)overspill_region_data(region);
            wrong(__LINE__, "the child cannot read its parent's region");
        }
        overspill_file_free(file);
        overspill_arena_free(arena);
        overspill_region_free(region);
        overspill_pager_free(pager);
        /* a pager of its own */
        pager = pager_of(options());
        region = region_of(pager, 2 * BUDGET);
        fill(region);
        compare(region, 0, 2 * BUDGET / 8);
        overspill_region_free(region);
        overspill_pager_free(pager);
        fflush(stdout);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(overspill_file_close(file));
    file_has("forked", 0, "p", 1);
    overspill_file_free(of_child);
    CHECK(unlink(path_of("forked")) == 0 && unlink(path_of("of-child")) == 0);
    compare(region, 0, 2 * BUDGET / 8);
    overspill_region_free(region);
    OK(overspill_arena_dealloc(arena, block));
    overspill_arena_free(arena);
    overspill_pager_free(pager);
}

/* ---- case "lost": pages that come back from swap with another content ---- */

static volatile int bus_code;

static void on_bus(int signal, siginfo_t *info, void *context)
{
    (void)context;
    bus_code = info->si_code;
    siglongjmp(back, signal);
}

/* Writes over all of the swap file, which has no name. */
static void damage(void)
{
    DIR *all = opendir("/proc/self/fd");
    CHECK(all);
    int damaged = 0;
    for (struct dirent *entry; (entry = readdir(all));) {
        char link[300], target[4096] = {0};
        snprintf(link, sizeof link, "/proc/self/fd/%s", entry->d_name);
        if (readlink(link, target, sizeof target - 1) < 0 || strncmp(target, directory, strlen(directory)) != 0)
            continue;
        int fd = open(link, O_RDWR);
        struct stat stat;
        CHECK(fd >= 0 && fstat(fd, &stat) == 0);
        char junk[PAGE];
        memset(junk, 0x5a, sizeof junk);
        for (off_t at = 0; at < stat.st_size; at += PAGE)
            CHECK(pwrite(fd, junk, PAGE, at) == PAGE);
        close(fd);
        damaged++;
    }
    closedir(all);
    CHECK(damaged == 1);
}

static void lost(void)
{
    struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGBUS, &action, NULL) == 0); /* before the first pager */
    overspill_pager *pager = pager_of(options());
    overspill_region *region = region_of(pager, 4 * BUDGET);
    fill(region);
    damage();
    overspill_wire wire;
    GIVES(OVERSPILL_E_LOST, overspill_region_wire(region, 0, 64 * PAGE, &wire));
    int fd = open_file("out", 0);
    GIVES(OVERSPILL_E_IO, overspill_region_write_at(region, 0, PAGE, fd, 0, NULL));
    CHECK(overspill_error_errno() == EIO);
    close(fd);
    if (sigsetjmp(back, 1) == 0) {
        *(volatile char *)overspill_region_data(region);
        wrong(__LINE__, "a lost page is never read");
    }
    CHECK(bus_code == BUS_MCEERR_AR || delivery == OVERSPILL_THREADS); /* there, a kernel without MEMORY_FAILURE says BUS_ADRERR */
    char text[300];
    size_t length = 0;
    OK(overspill_pager_first_loss(pager, text, sizeof text, &length));
    CHECK(length > 10 && strstr(text, directory));
    CHECK(counter(pager, "corrupt_pages") > 0);
    OK(overspill_region_discard(region, 0, 64 * PAGE)); /* gives lost pages up */
    CHECK(*(char *)overspill_region_data(region) == 0);
    overspill_region_free(region);
    overspill_pager_free(pager);
}

int main(int count, char **arguments)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"calls", calls},     {"file", a_file},   {"errors", errors},
                 {"limits", limits},   {"threads", threads}, {"file-threads", file_threads},
                 {"cancel", cancel},   {"fork", forks},    {"lost", lost}};
    CHECK(count == 4);
    delivery = strcmp(arguments[2], "threads") == 0 ? OVERSPILL_THREADS : OVERSPILL_IN_THREAD;
    directory = arguments[3];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (strcmp(cases[i].name, arguments[1]) == 0) {
            cases[i].run();
            printf("all right\n");
            return 0;
        }
    printf("no case %s\n", arguments[1]);
    return 1;
}

/* An index in a file of eight times its memory: built, looked up, changed, and read again from the file.

       cc -O2 -o file_index file_index.c $(pkg-config --cflags --libs overspill)
       ./file_index /var/tmp/index 64 8      # MiB of index, MiB of memory

   The index is a sorted table of keys and values. It is built through the memory itself, in order. A look-up bisects: its first
   steps hit the same few pages each time, which stay in memory; only the last ones read the file. Nothing goes to swap: a page of
   the file that has not changed is dropped, and a changed one is written to the file. */

#include <overspill.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct entry {
    uint64_t key, value;
};

static void must(int code)
{
    if (code != OVERSPILL_OK) {
        fprintf(stderr, "file_index: %s: %s\n", overspill_code_name(code), overspill_error_message());
        exit(1);
    }
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* The number of the entry with this key, or `entries` if there is none. The copies work whoever else writes to the file, and a page
   that cannot be read is an error, not a signal. */
static size_t find(const overspill_file *index, size_t entries, uint64_t key)
{
    size_t from = 0, to = entries;
    while (from < to) {
        size_t middle = from + (to - from) / 2;
        struct entry entry;
        must(overspill_file_read_at(index, middle * sizeof entry, &entry, sizeof entry));
        if (entry.key == key)
            return middle;
        if (entry.key < key)
            from = middle + 1;
        else
            to = middle;
    }
    return entries;
}

int main(int count, char **arguments)
{
    const char *path = count > 1 ? arguments[1] : "index";
    size_t bytes = (count > 2 ? strtoul(arguments[2], NULL, 10) : 64) << 20;
    size_t memory = (count > 3 ? strtoul(arguments[3], NULL, 10) : 8) << 20;
    size_t entries = bytes / sizeof(struct entry);

    overspill_options *options = overspill_options_new();
    overspill_pager *pager;
    overspill_file *index;
    must(overspill_options_memory(options, memory));
    must(overspill_pager_new(options, &pager));
    overspill_options_free(options);
    must(overspill_file_open_part(pager, path, OVERSPILL_READ_WRITE | OVERSPILL_CREATE, 0, bytes, 0, &index));
    printf("an index of %zu entries, %zu MiB, in %zu MiB of memory\n", entries, bytes >> 20, memory >> 20);

    double start = now();
    struct entry *all = overspill_file_data(index);
    for (size_t i = 0; i < entries; i++)
        all[i] = (struct entry){3 * (uint64_t)i, 0}; /* every third key is there */
    must(overspill_file_flush(index, 0, OVERSPILL_REST));
    printf("built in %.2f s\n", now() - start);

    start = now();
    size_t looked = 0, found = 0;
    for (uint64_t key = 1; key < 3 * (uint64_t)entries; key += 10007) {
        size_t at = find(index, entries, key);
        looked++;
        if (at < entries) {
            must(overspill_file_write_at(index, at * sizeof(struct entry) + 8, &key, sizeof key));
            found++;
        }
    }
    printf("%zu of %zu keys found in %.2f s\n", found, looked, now() - start);
    must(overspill_file_close(index)); /* the device has all of it, or this says why not */

    must(overspill_file_open(pager, path, OVERSPILL_READ_ONLY, &index));
    const struct entry *read = overspill_file_data(index);
    size_t marked = 0, wrong = 0;
    for (size_t i = 0; i < entries; i++) {
        marked += read[i].value != 0;
        wrong += read[i].key != 3 * (uint64_t)i || (read[i].value != 0 && read[i].value != read[i].key);
    }
    must(overspill_file_close(index));

    uint64_t in, out, swapped, peak;
    must(overspill_pager_counter(pager, "file_pages_in", &in));
    must(overspill_pager_counter(pager, "file_pages_out", &out));
    must(overspill_pager_counter(pager, "pages_out", &swapped));
    must(overspill_pager_counter(pager, "memory_peak_bytes", &peak));
    printf("%" PRIu64 " pages read from the file, %" PRIu64 " written to it, %" PRIu64 " to swap; at most %.1f MiB in memory\n", in, out,
           swapped, (double)peak / (1 << 20));
    overspill_pager_free(pager);
    if (wrong != 0 || marked != found || 3 * found < looked - 3) {
        fprintf(stderr, "file_index: the file is wrong\n");
        return 1;
    }
    printf("the file is right\n");
    return 0;
}

/* Joins two tables that are together four times as large as their memory.

       cc -O2 -o hash_join hash_join.c $(pkg-config --cflags --libs overspill)
       ./hash_join 256 64      # MiB of tables, MiB of memory

   A hash table that does not fit into memory costs a page-in for almost every row. So this does what databases do (Kitsuregawa
   1983, "GRACE"): it first sorts both tables into partitions by the hash of their keys. Two partitions with the same hashes
   then fit. The rows of a partition are written and read in order, which is what paging is good at. */

#include <overspill.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define PARTITIONS 32

struct row {
    uint64_t key, value;
};

/* A table, sorted into partitions: those of number p go from first[p] to first[p + 1]. */
struct table {
    overspill_region *region;
    struct row *rows;
    size_t first[PARTITIONS + 1];
};

static void must(int code)
{
    if (code != OVERSPILL_OK) {
        fprintf(stderr, "hash_join: %s: %s\n", overspill_code_name(code), overspill_error_message());
        exit(1);
    }
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* splitmix64: different numbers give different ones. */
static uint64_t mix(uint64_t n)
{
    n = (n ^ n >> 30) * 0xbf58476d1ce4e5b9u;
    n = (n ^ n >> 27) * 0x94d049bb133111ebu;
    return n ^ n >> 31;
}

static unsigned partition(uint64_t key)
{
    return (unsigned)(mix(key) >> 59); /* one of 32 */
}

/* Row `i` of the customers: each key once, in no order. */
static struct row customer(size_t i, size_t rows)
{
    (void)rows;
    return (struct row){mix(i + 1), i};
}

/* Row `i` of the orders: of a customer at random. */
static struct row order(size_t i, size_t rows)
{
    return (struct row){mix(mix(i ^ 0x5555) % rows + 1), i & 0xff};
}

/* Sorts `rows` rows, which would come from a file, into partitions. */
static struct table sorted(const overspill_pager *pager, size_t rows, struct row (*row)(size_t, size_t))
{
    struct table table = {0};
    size_t next[PARTITIONS];
    must(overspill_region_new(pager, rows * sizeof(struct row), &table.region));
    table.rows = overspill_region_data(table.region);
    for (size_t i = 0; i < rows; i++)
        table.first[partition(row(i, rows).key) + 1]++;
    for (int p = 0; p < PARTITIONS; p++) {
        table.first[p + 1] += table.first[p];
        next[p] = table.first[p];
    }
    for (size_t i = 0; i < rows; i++) {
        struct row r = row(i, rows);
        table.rows[next[partition(r.key)]++] = r;
    }
    return table;
}

/* Says that the partition is not needed any more: it then takes neither memory nor swap space. */
static void forget(const struct table *table, int p)
{
    size_t from = table->first[p] * sizeof(struct row), to = table->first[p + 1] * sizeof(struct row);
    must(overspill_region_discard(table->region, from, to - from));
}

int main(int count, char **arguments)
{
    size_t tables = (count > 1 ? strtoul(arguments[1], NULL, 10) : 256) << 20;
    size_t memory = (count > 2 ? strtoul(arguments[2], NULL, 10) : 64) << 20;
    size_t rows = tables / 2 / sizeof(struct row);

    overspill_options *options = overspill_options_new();
    overspill_pager *pager;
    must(overspill_options_memory(options, memory));
    must(overspill_pager_new(options, &pager));
    overspill_options_free(options);
    printf("two tables of %zu rows, %zu MiB together, in %zu MiB of memory\n", rows, tables >> 20, memory >> 20);

    double start = now();
    struct table customers = sorted(pager, rows, customer), orders = sorted(pager, rows, order);
    printf("sorted into %d partitions in %.2f s\n", PARTITIONS, now() - start);

    /* The hash table of a partition: open addressing, half full at most. Its region is used again and again. */
    size_t cells = 1;
    for (int p = 0; p < PARTITIONS; p++)
        while (cells < 2 * (customers.first[p + 1] - customers.first[p]))
            cells *= 2;
    overspill_region *region;
    must(overspill_region_new(pager, cells * sizeof(struct row), &region));
    struct row *cell = overspill_region_data(region);

    start = now();
    size_t joined = 0;
    uint64_t sum = 0;
    for (int p = 0; p < PARTITIONS; p++) {
        must(overspill_region_discard(region, 0, cells * sizeof(struct row))); /* all zero again */
        for (size_t i = customers.first[p]; i < customers.first[p + 1]; i++) {
            size_t at = mix(customers.rows[i].key) & (cells - 1);
            while (cell[at].key != 0) /* no key is zero */
                at = (at + 1) & (cells - 1);
            cell[at] = customers.rows[i];
        }
        for (size_t i = orders.first[p]; i < orders.first[p + 1]; i++) {
            size_t at = mix(orders.rows[i].key) & (cells - 1);
            while (cell[at].key != 0 && cell[at].key != orders.rows[i].key)
                at = (at + 1) & (cells - 1);
            if (cell[at].key != 0) {
                joined++;
                sum += orders.rows[i].value * cell[at].value;
            }
        }
        forget(&customers, p);
        forget(&orders, p);
    }
    printf("joined %zu rows in %.2f s\n", joined, now() - start);

    uint64_t expected = 0, out, in, peak;
    for (size_t i = 0; i < rows; i++)
        expected += (i & 0xff) * (mix(i ^ 0x5555) % rows);
    must(overspill_pager_counter(pager, "pages_out", &out));
    must(overspill_pager_counter(pager, "pages_in", &in));
    must(overspill_pager_counter(pager, "memory_peak_bytes", &peak));
    printf("%" PRIu64 " pages written, %" PRIu64 " read, at most %.1f MiB in memory\n", out, in, (double)peak / (1 << 20));
    overspill_region_free(region);
    overspill_region_free(customers.region);
    overspill_region_free(orders.region);
    overspill_pager_free(pager);
    if (joined != rows || sum != expected) {
        fprintf(stderr, "hash_join: the result is wrong\n");
        return 1;
    }
    printf("the result is right\n");
    return 0;
}

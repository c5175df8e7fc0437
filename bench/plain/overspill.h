/* The part of overspill.h that crates/capi/examples/hash_join.c uses, on plain memory: for measurements of the same program with
   the kernel's swap, or with all the memory that it needs. Regions are anonymous mappings, and no counter counts. */
#ifndef OVERSPILL_H
#define OVERSPILL_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { OVERSPILL_OK, OVERSPILL_E_MAP = 15 };
typedef struct overspill_options overspill_options;
typedef struct overspill_pager overspill_pager;
typedef struct overspill_region {
    void *data;
    size_t bytes;
} overspill_region;

static inline const char *overspill_code_name(int code) { return code ? "OVERSPILL_E_MAP" : "OVERSPILL_OK"; }
static inline const char *overspill_error_message(void) { return "no memory"; }
static inline overspill_options *overspill_options_new(void) { return NULL; }
static inline void overspill_options_free(overspill_options *options) { (void)options; }
static inline int overspill_options_memory(overspill_options *options, uint64_t bytes) { return (void)options, (void)bytes, 0; }
static inline int overspill_pager_new(const overspill_options *options, overspill_pager **pager)
{
    (void)options;
    *pager = NULL;
    return 0;
}
static inline void overspill_pager_free(overspill_pager *pager) { (void)pager; }
static inline int overspill_pager_counter(const overspill_pager *pager, const char *name, uint64_t *value)
{
    (void)pager, (void)name;
    return *value = 0, 0;
}
static inline int overspill_region_new(const overspill_pager *pager, size_t bytes, overspill_region **region)
{
    (void)pager;
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *region = malloc(sizeof **region);
    if (data == MAP_FAILED || !*region)
        return OVERSPILL_E_MAP;
    **region = (overspill_region){data, bytes};
    return 0;
}
static inline void *overspill_region_data(const overspill_region *region) { return region->data; }
static inline int overspill_region_discard(const overspill_region *region, size_t offset, size_t length)
{
    size_t from = (offset + 4095) & ~(size_t)4095, end = (offset + length) & ~(size_t)4095;
    return from < end ? madvise((char *)region->data + from, end - from, MADV_DONTNEED) : 0;
}
static inline void overspill_region_free(overspill_region *region)
{
    munmap(region->data, region->bytes);
    free(region);
}

#endif

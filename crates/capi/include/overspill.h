/* Overspill: memory regions that may be larger than their memory budget. Pages that do not fit lie in a swap file.

   A pager has a budget, a swap file, a replacement policy, and threads that keep its regions within the budget. A region is a
   range of addresses that is used like any other memory. No privileges are needed.

       overspill_options *options = overspill_options_new();
       overspill_pager *pager = NULL;
       overspill_region *region = NULL;
       overspill_options_memory(options, 256 << 20);
       if (overspill_pager_new(options, &pager) || overspill_region_new(pager, (size_t)4 << 30, &region)) {
           fprintf(stderr, "%s\n", overspill_error_message());
           exit(1);
       }
       uint64_t *table = overspill_region_data(region);

   Link with what `pkg-config --libs overspill` says (with `--static` for the archive). docs/C.md in the project has more.

   RETURNS. A call returns OVERSPILL_OK, which is 0, or one of `enum overspill_code`. After an error nothing has changed, except
   where the call says otherwise, and the results it should have stored are not stored. overspill_error_message() says in words
   what went wrong. The value of errno is not kept. Every call that takes a handle or the address of a result also returns
   OVERSPILL_E_ARGUMENT (NULL, a value that is none of an enumeration's), OVERSPILL_E_FORKED and OVERSPILL_E_PANIC; the comments
   below do not repeat this.

   UNITS. Sizes and offsets are in bytes. Pages have OVERSPILL_PAGE_SIZE bytes.

   THREADS. All functions may be called by any thread, and by several at a time on the same handle, except: a handle must not be
   in use when it is freed, and options are for one thread at a time. Locks order the calls, not the program's own reads and
   writes: two threads that touch the same bytes need what they would need with malloc's memory. No function is a point of
   cancellation. Threads that touch regions must not block SIGBUS, and need 24 KiB of free stack.

   SIGNALS. A signal handler may touch regions, but must not call a function of this header. The first pager (unless it has the
   delivery OVERSPILL_THREADS) installs a handler for SIGBUS, for good. It passes signals that are none of its business on to
   the handler that was there. So install your own SIGBUS handler before the first pager. If a page cannot be read back, or
   comes back with another content, its touch is a SIGBUS with si_code BUS_MCEERR_AR (with OVERSPILL_THREADS, kernels that were
   built without MEMORY_FAILURE say BUS_ADRERR). The program never sees a wrong page.

   FORKS. A pager belongs to the process that made it. In a forked child its regions are inaccessible (a touch is a SIGSEGV),
   calls return OVERSPILL_E_FORKED, and handles may be freed. The child may make a pager of its own.

   SYSTEM CALLS. With the default delivery, a system call on memory that is out fails with EFAULT. Use overspill_region_read_at
   and overspill_region_write_at for files, and overspill_region_wire or overspill_file_wire before anything else.

   GROWTH. Later versions add functions, codes, counters, and fields at the end of the structures that the library hands out. So
   expect codes that you do not know, and never allocate or copy those structures by their size. */

#ifndef OVERSPILL_H
#define OVERSPILL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header. The library's own is overspill_version(). Before 1.0.0 another minor version may break things. */
#define OVERSPILL_VERSION "0.1.0"

/* Bytes in a page, the unit in which memory is moved, wired and discarded. */
#define OVERSPILL_PAGE_SIZE 4096

/* The smallest budget, in bytes. */
#define OVERSPILL_MEMORY_BYTES_MIN 8388608

/* ---- errors ---- */

/* Numbers and meanings stay as they are. */
enum overspill_code {
    OVERSPILL_OK = 0,
    OVERSPILL_E_NO_BUDGET = 1,          /* overspill_options_memory was not called */
    OVERSPILL_E_BUDGET_TOO_SMALL = 2,   /* it is under OVERSPILL_MEMORY_BYTES_MIN */
    OVERSPILL_E_POLICY = 3,             /* no such replacement policy, or not with those parameters */
    OVERSPILL_E_USERFAULTFD = 4,        /* no userfaultfd here; the message says why and what to do */
    OVERSPILL_E_SWAP = 5,               /* no swap file could be made; overspill_error_errno() has the reason */
    OVERSPILL_E_DEVICE = 6,             /* a swap device is not possible as asked for, or another swapoff runs */
    OVERSPILL_E_ENGINE = 7,             /* io_uring was asked for and is refused */
    OVERSPILL_E_KEY = 8,                /* no key for encryption could be made, or locked in memory */
    OVERSPILL_E_RESOURCES = 9,          /* no memory, threads or descriptors for the pager itself */
    OVERSPILL_E_HANDLER = 10,           /* the handler for SIGBUS could not be installed */
    OVERSPILL_E_HANDLER_REPLACED = 11,  /* it was replaced after the first pager had installed it */
    OVERSPILL_E_TOO_MANY_PAGERS = 12,   /* there are 64 in this process */
    OVERSPILL_E_TOO_MANY_REGIONS = 13,  /* as many as overspill_options_regions_max allows */
    OVERSPILL_E_REGION_SIZE = 14,       /* no bytes, or more than overspill_options_managed_max leaves */
    OVERSPILL_E_MAP = 15,               /* no address space */
    OVERSPILL_E_WIRED_TOO_MUCH = 16,    /* more than half of the budget would be wired */
    OVERSPILL_E_IS_WIRED = 17,          /* the range has wired pages */
    OVERSPILL_E_LOST = 18,              /* a page could not be read back from swap, or from its file */
    OVERSPILL_E_ARENA_FULL = 19,        /* no room for a block */
    OVERSPILL_E_NOT_A_BLOCK = 20,       /* no block that is in use begins there */
    OVERSPILL_E_FORKED = 21,            /* this process was forked from the one that made the pager */
    OVERSPILL_E_FILE = 22,              /* a file could not be opened, read or written; overspill_error_errno() has the reason */
    OVERSPILL_E_FILE_ENDS = 23,         /* the file ends before the range does */
    OVERSPILL_E_FILE_SHARED = 24,       /* another region has a part of these pages of the file, and one of the two may write */
    OVERSPILL_E_ACCESS = 25,            /* the file was opened without the right to do this */
    OVERSPILL_E_TOO_MANY_POLICIES = 26, /* 254 regions of the pager have a policy of their own */
    OVERSPILL_E_ARGUMENT = 100,         /* NULL, an unknown value, a range outside of the region, an alignment that is none */
    OVERSPILL_E_IO = 101,               /* a file transfer failed; overspill_error_errno() has the reason */
    OVERSPILL_E_NOT_WIRED = 102,        /* the region has no wire of that number */
    OVERSPILL_E_PANIC = 103             /* a mistake in Overspill; please report it. The pager should not be used any more.
                                           (A mistake under a lock of the pager's ends the process) */
};

/* What went wrong in this thread's last call that returned an error: one line, in English. "" if none has. It is valid until
   the thread's next call that returns an error, and until the thread ends. */
const char *overspill_error_message(void);

/* The errno of the system call that failed in that call, or 0 if none did. */
int overspill_error_errno(void);

/* The name of a code, such as "OVERSPILL_E_LOST"; NULL for a number that is none. The text stays valid. */
const char *overspill_code_name(int code);

/* The library's version, such as "0.1.0". The text stays valid. */
const char *overspill_version(void);

/* ---- options ---- */

/* What a pager is made with. Changes of options do not change pagers that were made with them. */
typedef struct overspill_options overspill_options;

/* How faults are delivered. */
enum overspill_delivery {
    OVERSPILL_IN_THREAD = 0, /* the thread that touches a missing page brings it in, in a handler for SIGBUS. No privileges */
    OVERSPILL_THREADS = 1    /* threads of the pager bring pages in. All system calls work on regions. Needs root, CAP_SYS_PTRACE,
                                the sysctl vm.unprivileged_userfaultfd=1, or access to /dev/userfaultfd */
};

/* How I/O is issued. */
enum overspill_engine {
    OVERSPILL_ENGINE_AUTO = 0,     /* io_uring if the kernel allows it, else pread and pwritev */
    OVERSPILL_ENGINE_IO_URING = 1, /* io_uring, or an error */
    OVERSPILL_ENGINE_PSYNC = 2     /* pread and pwritev */
};

/* Options with the defaults. NULL if there is no memory for them. */
overspill_options *overspill_options_new(void);

/* Frees options; NULL is ignored. */
void overspill_options_free(overspill_options *options);

/* The budget in bytes: the most that all regions of the pager together, with buffers, have in memory. It must be set. */
int overspill_options_memory(overspill_options *options, uint64_t bytes);

/* Where pages go that do not fit: a directory, for a file without a name, or the name of a new file, which is removed at once.
   The default is $TMPDIR, else /tmp. */
int overspill_options_swap(overspill_options *options, const char *place);

/* The most swap space, in bytes. The default, 0, is all that the file system has, up to 256 GiB. */
int overspill_options_swap_limit(overspill_options *options, uint64_t bytes);

/* Adds a swap device; may be called several times. Then overspill_options_swap and overspill_options_swap_limit have no effect.
   `device` is a text as the command `overspill run --swap` takes it, such as "file:/mnt/nvme,size=50G,prio=5", "block:/dev/sdb"
   or "compressed:size=1G". Errors: OVERSPILL_E_DEVICE, with a message that says what is wrong with the text. */
int overspill_options_swap_device(overspill_options *options, const char *device);

/* The replacement policy: a name (overspill_policy_name), with parameters if you like, such as "2q:kin=0.25". The default is
   "use-once". Whether there is such a policy is seen by overspill_pager_new. */
int overspill_options_policy(overspill_options *options, const char *policy);

/* One of `enum overspill_delivery`. The default is OVERSPILL_IN_THREAD. */
int overspill_options_delivery(overspill_options *options, int delivery);

/* One of `enum overspill_engine`. The default is OVERSPILL_ENGINE_AUTO. */
int overspill_options_engine(overspill_options *options, int engine);

/* Whether swap is encrypted, with a key that never leaves this process. The default is true. Without it, pages are still
   checked when they come back. */
int overspill_options_encrypt(overspill_options *options, bool on);

/* Whether threads take turns when they take each other's pages away so that none makes progress. Only with OVERSPILL_THREADS.
   The default is true. */
int overspill_options_load_control(overspill_options *options, bool on);

/* Whether the pager reads ahead the pages whose addresses it finds in pages that are read in order, such as an array of
   pointers. The default is true. */
int overspill_options_follow_pointers(overspill_options *options, bool on);

/* The most regions (and arenas) at a time. The default is 64. */
int overspill_options_regions_max(overspill_options *options, uint16_t regions);

/* The most bytes of all regions together. The default is 128 GiB, but at most eight times the machine's memory, and four times a limit
   on address space. */
int overspill_options_managed_max(overspill_options *options, uint64_t bytes);

/* When changes of files that are open for reading and writing go to the file: after so many milliseconds at the latest, and sooner
   if more than `changed_bytes` bytes have changed. The default is 30 s, and a quarter of the budget. overspill_file_write_at keeps
   that limit: it writes back itself. For memory that is written directly, the pager looks more often the faster pages change; if
   they change faster than the device takes them, only the budget limits them. */
int overspill_options_write_back(overspill_options *options, uint64_t milliseconds, uint64_t changed_bytes);

/* ---- pagers ---- */

/* A memory budget, swap devices, and the threads that keep regions within the budget. */
typedef struct overspill_pager overspill_pager;

/* Makes a pager and starts its threads. Errors: those of `enum overspill_code` from OVERSPILL_E_NO_BUDGET to
   OVERSPILL_E_TOO_MANY_PAGERS. */
int overspill_pager_new(const overspill_options *options, overspill_pager **pager);

/* Gives up the handle; NULL is ignored. Regions and arenas of the pager stay usable. The pager ends with the last of them: its
   threads end, and the swap file is gone. */
void overspill_pager_free(overspill_pager *pager);

/* Whether this process made the pager. False in a forked child, and for NULL. */
bool overspill_pager_is_here(const overspill_pager *pager);

/* Stores how faults are delivered: one of `enum overspill_delivery`. */
int overspill_pager_delivery(const overspill_pager *pager, int *delivery);

/* Changes the replacement policy while regions are in use, of all that have none of their own; as for overspill_options_policy.
   Pages stay where they are. Errors: OVERSPILL_E_POLICY, with the names of all policies in the message. */
int overspill_pager_set_policy(const overspill_pager *pager, const char *policy);

/* Stores the replacement policy as a text with its parameters: at most `size` bytes at `text`, a final 0 included (`text` may
   be NULL if `size` is 0), and at `length` (unless it is NULL) the length of the whole text without the 0. */
int overspill_pager_policy(const overspill_pager *pager, char *text, size_t size, size_t *length);

/* The same, a message about the first page that was lost: its device and byte, and the reason. An empty text if none was lost. */
int overspill_pager_first_loss(const overspill_pager *pager, char *text, size_t size, size_t *length);

/* Stores the bytes in use of the pager's own tables, which the budget does not cover. Walks some of the tables. */
int overspill_pager_metadata_bytes(const overspill_pager *pager, uint64_t *bytes);

/* A replacement policy in use, and what became of its pages. The texts are valid during the call that gets this. The first two
   figures are numbers of now, the others count from the beginning; all in pages of OVERSPILL_PAGE_SIZE bytes. */
typedef struct overspill_policy_use {
    const char *policy; /* as for overspill_options_policy */
    uint64_t resident;  /* in memory, except for wired pages */
    uint64_t share;     /* what they may be while others want more: the policy's share of the budget */
    uint64_t victims;   /* taken, to leave memory soon */
    uint64_t rescued;   /* touched after that, in time to stay */
    uint64_t evicted;
    uint64_t refaults;  /* read again after that, while a thread waited */
    const char *region; /* which region has it: the name of its file, or its size and place. "" for the pager's */
} overspill_policy_use;

/* Calls `each` for every policy in use: first the pager's, then those that regions and files have for themselves. `each` must
   return, as that of overspill_pager_swaps. */
int overspill_pager_policies(const overspill_pager *pager, void (*each)(const overspill_policy_use *use, void *context),
                             void *context);

/* The name of the replacement policy of that number, from 0 on; NULL when there are no more. The text stays valid. */
const char *overspill_policy_name(size_t index);

/* ---- counters ---- */

/* Counters have numbers, from 0 to below overspill_counters_count(). The numbers may be different in another version of the
   library, the names are not. */
size_t overspill_counters_count(void);

/* The name of a counter, such as "hard_faults", its unit, and what it counts, in one line. NULL if there is no such number. The
   texts stay valid. */
const char *overspill_counter_name(size_t counter);
const char *overspill_counter_unit(size_t counter);
const char *overspill_counter_help(size_t counter);

/* Stores the value of the counter of that name: of all regions of the pager, since it was made. Errors: OVERSPILL_E_ARGUMENT if
   there is no such counter. */
int overspill_pager_counter(const overspill_pager *pager, const char *name, uint64_t *value);

/* Stores the first `count` counters at `values`, by their numbers. They are read one after the other while they go on changing.
   Errors: OVERSPILL_E_ARGUMENT if `count` is more than overspill_counters_count(). */
int overspill_pager_counters(const overspill_pager *pager, uint64_t *values, size_t count);

/* ---- swap devices ---- */

/* A swap device of a pager. The texts are valid during the call that gets this. */
typedef struct overspill_swap {
    const char *name;  /* its path, as it was given, or "compressed" */
    const char *kind;  /* "file", "block" or "compressed" */
    const char *state; /* "on", "full", "leaving" or "failing" */
    int64_t priority;  /* higher ones are used first */
    uint64_t size_bytes;
    uint64_t used_bytes;
    uint64_t pages_in;  /* pages read from it */
    uint64_t pages_out; /* pages written to it */
    uint64_t bytes_in;  /* of compressed memory, those of the packed pages */
    uint64_t bytes_out;
    uint64_t reads;
    uint64_t writes;
    uint64_t read_errors;
    uint64_t write_errors;
    uint64_t read_p50_ns; /* half of the reads were faster, in nanoseconds */
    uint64_t read_p99_ns; /* 99 of 100 reads were faster */
    uint64_t write_p50_ns;
    uint64_t write_p99_ns;
} overspill_swap;

/* Calls `each` for every swap device, in the order in which they are used. `each` must return: it must not throw, jump, or end
   the thread. It may call functions of this header. */
int overspill_pager_swaps(const overspill_pager *pager, void (*each)(const overspill_swap *device, void *context), void *context);

/* Adds a swap device while regions are in use; `device` as for overspill_options_swap_device. Without a priority it comes after
   all existing devices; compressed memory comes before them. Errors: OVERSPILL_E_DEVICE, OVERSPILL_E_SWAP,
   OVERSPILL_E_RESOURCES. After an error nothing is left behind. */
int overspill_pager_swapon(const overspill_pager *pager, const char *device);

/* How far a swapoff is. */
typedef struct overspill_progress {
    uint64_t left_pages;   /* still on the device */
    uint64_t moved_pages;  /* went to other devices */
    uint64_t memory_pages; /* came into memory */
    uint64_t lost_pages;   /* could not be read or were damaged */
    uint64_t reads;
    uint64_t writes;
    uint64_t nanoseconds;  /* since it began */
} overspill_progress;

/* Removes a swap device and waits for the end. Its pages go to other devices, or into memory within the budget. Regions stay in
   use meanwhile. `name` is the path of its first file, as it was given, or "compressed". Unless it is NULL, `goes_on` is called
   ten times a second, and once more when the device is gone; if it returns false before that, the swapoff ends with an error.
   It must return, as `each` of overspill_pager_swaps. Errors: OVERSPILL_E_DEVICE: no such device, its pages fit nowhere,
   another swapoff is under way, this one failed or was given up. The device is in use as before then. */
int overspill_pager_swapoff(const overspill_pager *pager, const char *name,
                            bool (*goes_on)(const overspill_progress *progress, void *context), void *context);

/* ---- regions ---- */

/* A range of paged memory. */
typedef struct overspill_region overspill_region;

/* Makes a region of `bytes` bytes, all zero. It takes address space at once, and memory page by page as it is touched. Errors:
   OVERSPILL_E_REGION_SIZE, OVERSPILL_E_TOO_MANY_REGIONS, OVERSPILL_E_MAP. */
int overspill_region_new(const overspill_pager *pager, size_t bytes, overspill_region **region);

/* Gives the region a replacement policy of its own, or changes that, while it is in use; `policy` as for overspill_options_policy,
   or NULL for the pager's again. Two regions that ask for the same have one each. The pager's budget stays one for all: policies
   with the most pages for their share give them up, and shares follow use (docs/POLICIES.md). The policy ends with the region.
   Errors: OVERSPILL_E_POLICY, with the names of all policies in the message; OVERSPILL_E_TOO_MANY_POLICIES. */
int overspill_region_set_policy(const overspill_region *region, const char *policy);

/* The policy of the region, its own or else the pager's, as overspill_pager_policy hands it out. */
int overspill_region_policy(const overspill_region *region, char *text, size_t size, size_t *length);

/* Unmaps the region; NULL is ignored. No thread may touch it from now on. */
void overspill_region_free(overspill_region *region);

/* Where it begins: aligned to a page, writable. NULL for NULL. In a forked child it is the address that the parent had. */
void *overspill_region_data(const overspill_region *region);

/* Its size in bytes, as it was asked for. 0 for NULL. */
size_t overspill_region_size(const overspill_region *region);

/* In the next six, the range has `length` bytes from `offset` on, and must lie within the region: OVERSPILL_E_ARGUMENT else. An
   empty range is allowed. */

/* Reads pages of the range that are out in the background: at most half of the budget, and as many as can get frames soon.
   Waits for frames and for the reads to begin, but not for their end. */
int overspill_region_prefetch(const overspill_region *region, size_t offset, size_t length);

/* Advice, as for posix_madvise. */
enum overspill_advice {
    OVERSPILL_WILLNEED = 0, /* as overspill_region_prefetch */
    OVERSPILL_DONTNEED = 1  /* as overspill_region_discard */
};

/* overspill_region_prefetch or overspill_region_discard: `advice` is one of `enum overspill_advice`. Errors: as those. */
int overspill_region_advise(const overspill_region *region, size_t offset, size_t length, int advice);

/* Discards the content of the range: it reads as zero afterwards, and takes neither memory nor swap space. No other thread may
   use the range until this has returned. Errors: OVERSPILL_E_IS_WIRED. */
int overspill_region_discard(const overspill_region *region, size_t offset, size_t length);

/* The number of a wire. No wire of a region has the number 0. */
typedef uint64_t overspill_wire;

/* Brings the range's pages in and keeps them in memory, so that system calls can use them, until overspill_region_unwire gets
   the number, or the region is freed. Pages that are wired several times stay until the last of these wires is given up.
   Errors: OVERSPILL_E_WIRED_TOO_MUCH (all wires of a pager together get half of the budget at most), OVERSPILL_E_LOST,
   OVERSPILL_E_RESOURCES. */
int overspill_region_wire(const overspill_region *region, size_t offset, size_t length, overspill_wire *wire);

/* Gives up a wire. Errors: OVERSPILL_E_NOT_WIRED. */
int overspill_region_unwire(const overspill_region *region, overspill_wire wire);

/* Reads from the file `fd`, from `file_offset` on, into the range, until it is full or the file ends. Stores the number of
   bytes at `done` (unless it is NULL). No other thread may use the range until this has returned. Pages are wired a piece at a
   time. Errors: OVERSPILL_E_IO, with the reasons of pread(2), or EIO if a page of the range is lost. An error after some bytes
   were transferred ends the transfer; the next call returns it. */
int overspill_region_read_at(const overspill_region *region, size_t offset, size_t length, int fd, uint64_t file_offset,
                             size_t *done);

/* Writes the range to the file `fd`, from `file_offset` on. The rest is as for overspill_region_read_at, with pwrite(2); other
   threads may read the range meanwhile. */
int overspill_region_write_at(const overspill_region *region, size_t offset, size_t length, int fd, uint64_t file_offset,
                              size_t *done);

/* ---- files ---- */

/* A file, or a part of one, as a range of memory. Its pages are read from the file when they are touched, and share the pager's
   budget, policy and readahead with all regions. It counts as a region of its capacity.

                                    changes go to                           the file has them for certain
       OVERSPILL_READ_ONLY          nowhere                                 -
       OVERSPILL_READ_WRITE         the file, when their page is evicted,   when overspill_file_flush or
                                    after a while, and by a flush           overspill_file_close has returned 0
       OVERSPILL_COPY_ON_WRITE      swap; they are gone with the handle     -

   OTHERS. The pager reads a page, drops it, and reads it again. What others write to the file meanwhile is seen then, so bytes may
   change from one look to the next; if both change one page, the last to write it wins, for all its bytes. If somebody makes the
   file shorter, a touch beyond its end is a SIGBUS, and a copy returns OVERSPILL_E_LOST. Two handles of a process may have the same
   pages of a file only if neither is read-write.

   ENDS. A process that is killed or exits without closing the file leaves each page as it was last written. If the machine stops,
   that holds for all that was not flushed. A page is written as a whole, but not atomically.

   If a write fails, the page stays in memory, changed, and the next flush writes it again. If fdatasync(2) fails, all pages in
   memory count as changed; pages that were evicted since the last flush may be lost. docs/FILES.md has more. */
typedef struct overspill_file overspill_file;

/* What a file is opened for. */
enum overspill_access {
    OVERSPILL_READ_ONLY = 0,     /* memory that is changed all the same is not written, and the change is lost */
    OVERSPILL_READ_WRITE = 1,    /* with `| OVERSPILL_CREATE`, the file is made if there is none */
    OVERSPILL_COPY_ON_WRITE = 2,
    OVERSPILL_CREATE = 4         /* only with OVERSPILL_READ_WRITE. The new file has the mode 0666, less the umask */
};

/* As a length: all from the offset on. */
#define OVERSPILL_REST SIZE_MAX

/* Opens a whole file. Errors: OVERSPILL_E_FILE, OVERSPILL_E_FILE_SHARED; OVERSPILL_E_REGION_SIZE (also for an empty file),
   OVERSPILL_E_TOO_MANY_REGIONS, OVERSPILL_E_MAP, OVERSPILL_E_RESOURCES. */
int overspill_file_open(const overspill_pager *pager, const char *path, int access, overspill_file **file);

/* Opens `length` bytes of a file (OVERSPILL_REST: up to its end) from `offset` on, which may be any number. Later
   overspill_file_grow can make that `capacity` bytes, which takes address space at once and nothing else; a capacity below the
   length counts as the length. With OVERSPILL_READ_WRITE a file that is too short is made longer, with zeroes. Errors: as of
   overspill_file_open, and OVERSPILL_E_FILE_ENDS. */
int overspill_file_open_part(const overspill_pager *pager, const char *path, int access, uint64_t offset, size_t length,
                             size_t capacity, overspill_file **file);

/* The file's replacement policy, as overspill_region_set_policy and overspill_region_policy: "drop-behind" or "fifo" for a file
   that is read once next to others that are in use. */
int overspill_file_set_policy(const overspill_file *file, const char *policy);
int overspill_file_policy(const overspill_file *file, char *text, size_t size, size_t *length);

/* Writes all changes of a read-write file, waits until the device has them, and frees the handle, also after an error. No thread
   may touch the memory from now on. Errors: as of overspill_file_flush, for the last time: what was not written is lost. (To try
   again, flush before.) */
int overspill_file_close(overspill_file *file);

/* The same without waiting for the device and without an error; NULL is ignored. */
void overspill_file_free(overspill_file *file);

/* Where it begins. Aligned to a page if its offset in the file is. The address stays when the file grows. NULL for NULL. In a
   forked child it is the address that the parent had. */
void *overspill_file_data(const overspill_file *file);

/* Its size in bytes, and the most that overspill_file_grow can make of it. 0 for NULL. */
size_t overspill_file_size(const overspill_file *file);
size_t overspill_file_capacity(const overspill_file *file);

/* Whether it is read and written past the kernel's cache (O_DIRECT). If not, the kernel is told to drop what it caches. False for
   NULL. */
bool overspill_file_is_direct(const overspill_file *file);

/* In the next seven, the range has `length` bytes from `offset` on, and must lie within the size: OVERSPILL_E_ARGUMENT else. Except
   for the two copies, `length` may be OVERSPILL_REST. An empty range is allowed. */

/* Copies the range to `to`, which must not overlap it. No other thread may write to the range until this has returned. Works with
   buffers anywhere, also in a region. Errors: OVERSPILL_E_LOST if a page could not be read, or the file ends before it;
   OVERSPILL_E_RESOURCES. A part may have been copied then. */
int overspill_file_read_at(const overspill_file *file, size_t offset, void *to, size_t length);

/* Copies the bytes at `from` into the range, which must not overlap them. No other thread may use the range until this has
   returned. Errors: as of overspill_file_read_at, and OVERSPILL_E_ACCESS. */
int overspill_file_write_at(const overspill_file *file, size_t offset, const void *from, size_t length);

/* Writes the changed pages of the range to the file, and returns when the device has them (fdatasync). Looks at every page of the
   range that is in memory, some 0.5 us each. What other threads change meanwhile may be written or not. Errors: OVERSPILL_E_FILE
   (the pages that may not have arrived count as changed), OVERSPILL_E_FILE_ENDS if somebody has made the file shorter,
   OVERSPILL_E_ACCESS, OVERSPILL_E_RESOURCES. */
int overspill_file_flush(const overspill_file *file, size_t offset, size_t length);

/* Has the range read again from the file, so that what others have written is seen. A copy-on-write file forgets its changes there;
   a read-write file writes its own first. Pages that could not be read are tried again. Unless it is copy-on-write, whole pages are
   read again: no other thread may use a page that the range touches until this has returned. Other calls on the file wait. Errors:
   as of overspill_file_flush, and OVERSPILL_E_IS_WIRED. */
int overspill_file_reload(const overspill_file *file, size_t offset, size_t length);

/* Fills the range with zeroes, and gives the blocks back that lie wholly within it. Threads as for overspill_file_reload. Errors:
   OVERSPILL_E_ACCESS, OVERSPILL_E_FILE, OVERSPILL_E_IS_WIRED, OVERSPILL_E_LOST. */
int overspill_file_punch(const overspill_file *file, size_t offset, size_t length);

/* Reads pages of the range that are out in the background, as overspill_region_prefetch. */
int overspill_file_prefetch(const overspill_file *file, size_t offset, size_t length);

/* Brings the range's pages in and keeps them in memory, as overspill_region_wire, until overspill_file_unwire gets the number, or
   the file is closed or freed. */
int overspill_file_wire(const overspill_file *file, size_t offset, size_t length, overspill_wire *wire);

/* Gives up a wire. Errors: OVERSPILL_E_NOT_WIRED. */
int overspill_file_unwire(const overspill_file *file, overspill_wire wire);

/* Makes the size `bytes` bytes. A read-write file that is shorter is made longer, with zeroes; others must have become longer by
   themselves. Other calls on the file wait. No other thread may use the page of the old end until this has returned. Errors:
   OVERSPILL_E_REGION_SIZE if that is less than the size or more than the capacity, OVERSPILL_E_FILE_ENDS, OVERSPILL_E_FILE,
   OVERSPILL_E_IS_WIRED. */
int overspill_file_grow(const overspill_file *file, size_t bytes);

/* ---- arenas ---- */

/* An allocator over a region of its own: blocks of any size. What is allocated lies in ordinary memory, about 1 % of the arena
   if blocks are small, which the budget does not cover. */
typedef struct overspill_arena overspill_arena;

/* Makes an arena for blocks of `bytes` bytes together. It counts as a region of that size. Memory is taken as it is used.
   Errors: as of overspill_region_new. */
int overspill_arena_new(const overspill_pager *pager, size_t bytes, overspill_arena **arena);

/* The arena's replacement policy, as overspill_region_set_policy and overspill_region_policy. */
int overspill_arena_set_policy(const overspill_arena *arena, const char *policy);
int overspill_arena_policy(const overspill_arena *arena, char *text, size_t size, size_t *length);

/* Unmaps the arena with all its blocks; NULL is ignored. */
void overspill_arena_free(overspill_arena *arena);

/* The size of its region in bytes; 0 for NULL. */
size_t overspill_arena_capacity(const overspill_arena *arena);

/* The bytes of all blocks in use, as they were rounded. 0 for NULL and in a forked child. */
uint64_t overspill_arena_used(const overspill_arena *arena);

/* Stores the address of a new block of at least `size` bytes (of one, if `size` is 0) that is a multiple of `align`, a power of
   two; 0 stands for that of max_align_t. The content is not defined. Errors: OVERSPILL_E_ARENA_FULL. */
int overspill_arena_alloc(const overspill_arena *arena, size_t size, size_t align, void **block);

/* The same; the block reads as zero. Large blocks are mostly fresh pages, and take no memory until they are touched. */
int overspill_arena_zalloc(const overspill_arena *arena, size_t size, size_t align, void **block);

/* Makes `*block`, a block, one of at least `size` bytes, where it is or at another place, with the same content as far as both
   reach, and stores where it is. A `*block` of NULL is an empty one: this is overspill_arena_alloc then. Errors:
   OVERSPILL_E_ARENA_FULL, OVERSPILL_E_NOT_A_BLOCK. The old block stays then. */
int overspill_arena_realloc(const overspill_arena *arena, void **block, size_t size, size_t align);

/* Frees a block; NULL is ignored. Errors: OVERSPILL_E_NOT_A_BLOCK, for example if it was freed before. */
int overspill_arena_dealloc(const overspill_arena *arena, void *block);

/* Stores the bytes that can be used of a block. Errors: OVERSPILL_E_NOT_A_BLOCK. */
int overspill_arena_block_size(const overspill_arena *arena, const void *block, size_t *size);

#ifdef __cplusplus
}
#endif

#endif

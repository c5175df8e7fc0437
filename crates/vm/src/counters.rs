//! The table of counters: name, unit, help. The report, `overspill stat`, the JSON file and the documentation are made from this
//! table.
//!
//! Counters are plain relaxed atomics in one `repr(C)` block. So a machine can place the block in memory that another process maps
//! read-only, and `overspill stat PID` costs the program nothing. (Model: Firecracker's `metrics.rs`.)

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One counter or gauge.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }
    /// Sets a gauge.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }
    /// Raises a peak.
    #[inline]
    pub fn raise(&self, value: u64) {
        if value > self.0.load(Relaxed) {
            self.0.store(value, Relaxed);
        }
    }
    /// The value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Info {
    /// The name in JSON and in `overspill stat`; units come last.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// One sentence.
    pub help: &'static str,
}

macro_rules! counters {
    ($($name:ident, $unit:literal, $help:literal;)*) => {
        /// All counters of one pager.
        #[derive(Debug, Default)]
        #[repr(C)]
        pub struct Counters {
            $(#[doc = $help] #[doc = concat!(" Unit: ", $unit, ".")] pub $name: Counter,)*
        }

        /// The table, in the order of the fields of [`Counters`].
        pub const TABLE: &[Info] = &[$(Info { name: stringify!($name), unit: $unit, help: $help },)*];

        impl Counters {
            /// Calls `f` with each row and its value, in table order.
            pub fn for_each(&self, mut f: impl FnMut(&'static Info, u64)) {
                let mut rows = TABLE.iter();
                $(f(rows.next().expect("one row per field"), self.$name.get());)*
            }
        }
    };
}

counters! {
    memory_limit_bytes, "bytes", "The budget: mapped, parked and buffered pages together stay under it. After a fork, this process's part of it.";
    family_budget_bytes, "bytes", "The budget that this process shares with those that came from it by fork, and with those that it came from.";
    family_free_bytes, "bytes", "Of that, what none of them has; each takes of it when it runs short.";
    family_cache_bytes, "bytes", "Of that, what holds pages that several of them read: their common past, once for all, compressed.";
    family_cache_pages_in, "pages", "Pages that came in from there.";
    family_members, "processes", "How many of them there are, when the page daemon last looked.";
    memory_used_bytes, "bytes", "Memory charged to the budget now.";
    memory_peak_bytes, "bytes", "The most memory that was ever charged to the budget.";
    memory_native_bytes, "bytes", "Address space left to the kernel because it fits the budget as a whole, charged in full.";
    memory_locked_bytes, "bytes", "Memory that the program has locked (mlock), when that was last in the way: it cannot leave.";
    buffer_bytes, "bytes", "The pager's own buffers for reads and writes that are in memory, charged to the budget.";
    metadata_bytes, "bytes", "The pager's own tables.";
    zero_fills, "pages", "Pages given out empty at their first touch.";
    zero_ahead_pages, "pages", "Of these, pages filled beside the touched one.";
    soft_faults, "faults", "Touches of an inactive page: it was unmapped, still in memory, and came back without I/O.";
    hard_faults, "faults", "Touches of a page that had to be read.";
    busy_faults, "faults", "Touches of a page that was being moved, read or filled at that moment.";
    spurious_faults, "faults", "Touches of a page that had arrived in the meantime.";
    throttled_faults, "faults", "Faults that had to wait for the page daemon to free a frame.";
    held_faults, "faults", "Touches of a page that had to be read, held back for a while so that another thread's pages stay.";
    load_tokens, "times", "Times that a thread was given precedence over others that read pages.";
    same_cpu_begun, "times", "Times that a handler went to the CPU of the thread that faulted, to serve faults there and give way to the program.";
    same_cpu_starved, "times", "Of these, ended because others took that CPU.";
    halt_poll_begun, "times", "Times that a handler asked that no idle CPU halts, because it served many faults.";
    pages_in, "pages", "Pages read from swap.";
    page_in_ops, "operations", "Reads issued.";
    pages_out, "pages", "Pages written to swap.";
    page_out_ops, "operations", "Writes issued.";
    file_pages_in, "pages", "Pages read from files.";
    file_pages_out, "pages", "Changed pages written to files.";
    file_write_ops, "operations", "Writes to files issued.";
    pages_reclaimed, "pages", "Frames taken from pages.";
    pages_reclaimed_clean, "pages", "Of these, pages whose stored copy was still good, so nothing was written.";
    pages_reclaimed_zero, "pages", "Of these, pages that held only zeroes, dropped without a slot.";
    pages_watched, "pages", "Pages that the kernel began to watch, to tell whether they are used.";
    references_seen, "pages", "Of these, pages that were used while they were watched, and so were not unmapped.";
    pages_parked, "pages", "Pages unmapped and inactive.";
    pages_copied_out, "pages", "Of these, pages of memory that is not writable, which cannot be moved: they were copied and discarded.";
    pages_unmovable, "pages", "Times the kernel would not move a page (not writable, pinned, locked, shared or in use at that moment).";
    moves_denied, "pages", "Pages that the kernel had moved though it said that it had not (Linux 6.18).";
    pages_vanished, "pages", "Pages that were gone from the program's memory without a word to the pager; they read as zeroes.";
    pages_unshared, "pages", "Pages copied so that they are no longer shared with another process after a fork.";
    readahead_pages, "pages", "Pages read beside the touched one.";
    readahead_used, "pages", "Of these, pages the program then went on to use, as far as the pager can see.";
    readahead_rescued, "pages", "Of these, pages that were inactive by then, and would have been lost soon.";
    readahead_lost, "pages", "Pages read beside a touched one whose frames were taken before any use that the pager could see.";
    pointed_pages, "pages", "Pages read because one that was read in order points to them.";
    pointed_restored, "pages", "Inactive pages that were mapped again for that reason, before they were touched.";
    pointed_used, "pages", "Of the pages read for that reason, samples that the program then used.";
    pointed_lost, "pages", "The same, samples whose frames were taken before any use.";
    neighbour_pages, "pages", "Of the pages read ahead, those around a single fault: pages that lie together are used together here.";
    neighbours_used, "pages", "Of these, samples that the program then used.";
    neighbours_lost, "pages", "The same, samples whose frames were taken before any use.";
    refaults_within_half, "pages", "Pages read back after fewer evictions than half of the budget has pages.";
    refaults_within_one, "pages", "The same, half to one budget.";
    refaults_within_two, "pages", "The same, one to two budgets: more memory would have kept them.";
    refaults_beyond, "pages", "The same, two budgets and more.";
    policy_changes, "events", "Changes of the replacement policy.";
    swap_used_bytes, "bytes", "Swap space in use now.";
    swap_peak_bytes, "bytes", "The most swap space that was ever in use.";
    swap_capacity_bytes, "bytes", "Swap space there may be.";
    swap_given_back_bytes, "bytes", "Swap space that was given back to the file system, since nothing was stored there for a while.";
    pool_pages, "pages", "Pages in compressed memory now.";
    pool_size_bytes, "bytes", "The most memory that compressed pages may take now.";
    pool_grown, "times", "Times that compressed memory was allowed to take more memory, because page-ins would take less time.";
    pool_shrunk, "times", "Times that it was allowed less, for the same reason.";
    pool_read_ns, "ns", "The time that reading a page took from a device, lately, when that was last judged.";
    pool_unpack_ns, "ns", "The same, unpacking a page.";
    pool_memory_bytes, "bytes", "Memory that compressed pages take now, charged to the budget.";
    pool_packed_bytes, "bytes", "Of that, the compressed pages themselves; the rest is overhead.";
    pool_same_pages, "pages", "Pages in compressed memory that are one word repeated, and take none.";
    pool_pages_in, "pages", "Pages that came in from compressed memory.";
    pool_refused, "pages", "Pages that did not compress and went past compressed memory.";
    pool_written_back, "pages", "Pages that went on from compressed memory to the next device, to make room.";
    file_write_errors, "pages", "Changed pages whose write to their file failed; they stayed in memory, changed.";
    file_pages_lost, "pages", "Changed pages that were given up because somebody had made the file shorter.";
    read_errors, "errors", "Reads that failed; the page is lost and its touch raises SIGBUS.";
    write_errors, "errors", "Writes to swap that failed; the page stayed in memory.";
    corrupt_pages, "pages", "Pages that came back from swap other than they were written; never handed on.";
    released_pages, "pages", "Pages given back by the program (unmapped, discarded).";
    adopted_pages, "pages", "Pages taken over from the kernel when the budget first became tight.";
    forks, "events", "Forks of the program.";
    events, "events", "Unmaps, remaps and discards followed.";
    over_budget, "events", "Times a page was given out above the budget because nothing could be evicted.";
    daemon_scans, "scans", "Batches the page daemon looked at.";
}

impl Counters {
    /// Forgets what a pager holds, but not what has happened: for the next pager of the same process, which begins with nothing.
    pub fn clear_levels(&self) {
        let memory = [&self.memory_used_bytes, &self.memory_native_bytes, &self.memory_locked_bytes, &self.buffer_bytes];
        let tables = [&self.metadata_bytes, &self.swap_used_bytes, &self.pool_pages, &self.pool_size_bytes];
        let pool = [&self.pool_memory_bytes, &self.pool_packed_bytes, &self.pool_same_pages];
        memory.into_iter().chain(tables).chain(pool).for_each(|level| level.set(0));
    }
    /// The pages read back so far by the distance of their eviction: up to half of the budget, one budget, two, and more.
    pub fn refaults(&self) -> [u64; 4] {
        [&self.refaults_within_half, &self.refaults_within_one, &self.refaults_within_two, &self.refaults_beyond].map(Counter::get)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_is_as_long_as_the_table() {
        assert_eq!(size_of::<Counters>(), 8 * TABLE.len());
        let c = Counters::default();
        c.hard_faults.add(3);
        c.memory_peak_bytes.raise(10);
        c.memory_peak_bytes.raise(4);
        let mut seen = 0;
        c.for_each(|i, v| {
            if i.name == "hard_faults" {
                assert_eq!(v, 3);
            }
            if i.name == "memory_peak_bytes" {
                assert_eq!(v, 10);
            }
            seen += 1;
        });
        assert_eq!(seen, TABLE.len());
    }
}

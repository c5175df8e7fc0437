//! Discards that may be under way.

use core::sync::atomic::{AtomicU32, Ordering::*};

/// Ranges whose discard the kernel has announced and may not have done yet. A discard goes on once its announcement has been read,
/// and nothing reports its end. A page that was parked in between would later come back with content that the program has thrown
/// away. So pages of these ranges are not parked until the hooked call has returned. If no hook knows of the call, they are not
/// parked for a while.
///
/// (It would be wrong to take the mapped pages away while the announcement is read. After MADV_FREE they stay mapped, and the
/// program may have written to them by then. That lost a page once in twelve runs of `tests/programs/calls.c`.)
#[derive(Debug)]
pub struct Discards {
    ranges: [(usize, usize, u64); DISCARDS_MAX],
    /// How many there are. Read without the lock.
    pub count: AtomicU32,
}

/// Discards that may be under way at a time: one for each thread.
const DISCARDS_MAX: usize = 256;

/// How long a discard without a hooked call counts as under way, in nanoseconds.
const DISCARD_NS: u64 = 2_000_000_000;

impl Discards {
    /// None.
    pub fn new() -> Self {
        Discards { ranges: [(0, 0, 0); DISCARDS_MAX], count: AtomicU32::new(0) }
    }
    pub(crate) fn add(&mut self, start: usize, end: usize, now: u64) {
        // If all entries are in use, the nearest one is extended to cover both. That keeps a little more in memory for a while.
        let grows = |r: &(usize, usize, u64)| if r.2 <= now { 0 } else { r.1.max(end) - r.0.min(start) - (r.1 - r.0) + 1 };
        if let Some(r) = self.ranges.iter_mut().min_by_key(|r| grows(r)) {
            let (first, last) = if r.2 <= now { (start, end) } else { (r.0.min(start), r.1.max(end)) };
            *r = (first, last, now + DISCARD_NS);
        }
        self.recount(now);
    }
    pub(crate) fn done(&mut self, start: usize, end: usize, now: u64) {
        // the entry of this very range, rather than one of another thread's discard within it
        let own = self.ranges.iter().position(|r| r.2 != 0 && (r.0, r.1) == (start, end));
        let within = || self.ranges.iter().position(|r| r.2 != 0 && r.0 >= start && r.1 <= end);
        if let Some(at) = own.or_else(within) {
            self.ranges[at] = (0, 0, 0);
        }
        self.recount(now);
    }
    fn recount(&mut self, now: u64) {
        let mut n = 0;
        for r in &mut self.ranges {
            if r.2 <= now {
                *r = (0, 0, 0);
            }
            n += (r.2 != 0) as u32;
        }
        self.count.store(n, Relaxed);
    }
    /// Whether the page at `addr` may be about to be discarded.
    pub fn covers(&self, addr: usize, now: impl FnOnce() -> u64) -> bool {
        self.count.load(Relaxed) != 0 && {
            let now = now();
            self.ranges.iter().any(|r| r.2 > now && r.0 <= addr && addr < r.1)
        }
    }
}

impl Default for Discards {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_vm::types::PAGE_SIZE;

    /// More discards were under way than there was room for, and the oldest was forgotten. Pages of it that were parked before it
    /// was carried out would have come back with content that the program had thrown away.
    #[test]
    fn no_discard_is_forgotten() {
        let mut discards = Discards::new();
        let many = 3 * DISCARDS_MAX;
        let page = |i: usize| (i * 0x9E37 % many) * 2 * PAGE_SIZE;
        (0..many).for_each(|i| discards.add(page(i), page(i) + PAGE_SIZE, 0));
        assert!((0..many).all(|i| discards.covers(page(i), || 1)));
        let mut discards = Discards::new();
        discards.add(5 * PAGE_SIZE, 6 * PAGE_SIZE, 0);
        discards.add(0, 10 * PAGE_SIZE, 0);
        discards.done(0, 10 * PAGE_SIZE, 1);
        assert!(discards.covers(5 * PAGE_SIZE, || 1) && !discards.covers(PAGE_SIZE, || 1), "another thread's, within");
    }
}

//! Discards that may be under way.

use super::remaps::LEFT_NS;

/// Ranges whose discard the kernel has announced and may not have done yet. A discard goes on once its announcement has been read,
/// and nothing reports its end. A page that was parked in between would later come back with content that the program has thrown
/// away. So pages of these ranges are not parked until the hooked call has returned, however long that takes. (A thread may get no
/// CPU for seconds, and the kernel takes as long for tens of gigabytes.) If no hook knows of the call, they are not parked for a
/// while.
///
/// Nor are pages brought in there, but only for a while, and only once the kernel has announced the discard: the calling thread may
/// touch one before, in a signal handler, and would wait for itself.
///
/// (It would be wrong to take the mapped pages away while the announcement is read. After MADV_FREE they stay mapped, and the
/// program may have written to them by then. That lost a page once in twelve runs of `tests/programs/calls.c`.)
#[derive(Debug)]
pub struct Discards {
    calls: Vec<Call>,
    /// Announced by the kernel, and by no hooked call: start, end, and until when (CLOCK_MONOTONIC, in nanoseconds).
    others: [(usize, usize, u64); OTHERS_MAX],
    /// The last of these times, or 0.
    until: u64,
}

/// A hooked call.
#[derive(Clone, Copy, Debug)]
struct Call {
    thread: u32,
    start: usize,
    end: usize,
    /// When it began, in nanoseconds.
    since: u64,
    /// When the kernel first announced it; 0: not yet.
    reported: u64,
}

impl Call {
    fn covers(&self, addr: usize) -> bool {
        (self.start..self.end).contains(&addr)
    }
}

/// Hooked calls that may be under way at a time. Further ones count as not hooked.
const CALLS_MAX: usize = 1024;
const OTHERS_MAX: usize = 256;

/// How long a discard without a hooked call counts as under way, in nanoseconds. So long after the report of a hooked one no page
/// is brought in.
const DISCARD_NS: u64 = 2_000_000_000;

impl Discards {
    /// None.
    pub fn new() -> Self {
        Discards { calls: Vec::with_capacity(CALLS_MAX), others: [(0, 0, 0); OTHERS_MAX], until: 0 }
    }

    /// Whether there are none.
    pub fn is_empty(&self, now: impl FnOnce() -> u64) -> bool {
        self.calls.is_empty() && (self.until == 0 || self.until <= now())
    }

    /// Whether the kernel has announced a discard, not long ago, that belongs to no hooked call.
    pub(crate) fn has_others(&self, now: u64) -> bool {
        now < self.until
    }

    /// Forgets all of them: their threads do not exist here.
    pub(crate) fn clear(&mut self) {
        self.calls.clear();
        (self.others, self.until) = ([(0, 0, 0); OTHERS_MAX], 0);
    }

    /// A hooked call begins. The thread may be in others: this one is a signal handler's. But one that began long ago was left by a
    /// long jump, or its thread has ended; from now on it counts as one that is not hooked.
    pub(crate) fn begin(&mut self, thread: u32, start: usize, end: usize, now: u64, lives: impl Fn(u32) -> bool) {
        let is_left = |call: &Call| now.saturating_sub(call.since) > LEFT_NS && (call.thread == thread || !lives(call.thread));
        while let Some(at) = self.calls.iter().position(is_left) {
            let left = self.calls.remove(at);
            if left.reported != 0 {
                self.add(left.start, left.end, now);
            }
        }
        if self.calls.len() < CALLS_MAX {
            self.calls.push(Call { thread, start, end, since: now, reported: 0 });
        }
    }

    /// Whether a hooked call of this thread's is under way.
    pub(crate) fn has(&self, thread: u32) -> bool {
        self.calls.iter().any(|call| call.thread == thread)
    }

    /// The hooked call has returned. Returns whether the kernel has announced it; `None` if it is not known.
    fn end(&mut self, thread: u32, start: usize, end: usize) -> Option<bool> {
        let is_it = |call: &Call| (call.thread, call.start, call.end) == (thread, start, end);
        let at = self.calls.iter().rposition(is_it)?;
        Some(self.calls.remove(at).reported != 0)
    }

    /// A call has returned. Returns whether the kernel has announced it, or may have.
    pub(crate) fn ended(&mut self, thread: u32, start: usize, end: usize) -> bool {
        self.end(thread, start, end).unwrap_or_else(|| {
            self.end_other(start, end);
            true
        })
    }

    /// A call has returned that is not known as a hooked one.
    fn end_other(&mut self, start: usize, end: usize) {
        self.others.iter_mut().filter(|r| r.0 >= start && r.1 <= end).for_each(|r| *r = (0, 0, 0));
        self.until = self.others.iter().map(|r| r.2).max().unwrap_or(0);
    }

    /// The kernel has announced a discard. (It announces a call once for each mapping.)
    pub(crate) fn report(&mut self, start: usize, end: usize, now: u64) {
        let mut known = false;
        for call in self.calls.iter_mut().filter(|call| call.start <= start && end <= call.end) {
            call.reported = if call.reported == 0 { now } else { call.reported };
            known = true;
        }
        if !known {
            self.add(start, end, now);
        }
    }

    fn add(&mut self, start: usize, end: usize, now: u64) {
        // If all entries are in use, the nearest one is extended to cover both. That keeps a little more in memory for a while.
        let grows = |r: &(usize, usize, u64)| if r.2 <= now { 0 } else { r.1.max(end) - r.0.min(start) - (r.1 - r.0) + 1 };
        if let Some(r) = self.others.iter_mut().min_by_key(|r| grows(r)) {
            let (first, last) = if r.2 <= now { (start, end) } else { (r.0.min(start), r.1.max(end)) };
            *r = (first, last, now + DISCARD_NS);
        }
        self.until = now + DISCARD_NS;
    }

    /// Whether the page at `addr` may be about to be discarded, so that it must not be parked.
    pub fn covers(&self, addr: usize, now: impl FnOnce() -> u64) -> bool {
        self.calls.iter().any(|call| call.covers(addr)) || self.until != 0 && self.covers_other(addr, now())
    }

    /// Whether it must not be brought in.
    pub(crate) fn refuses(&self, addr: usize, now: impl FnOnce() -> u64) -> bool {
        if self.calls.is_empty() && self.until == 0 {
            return false;
        }
        let now = now();
        let is_announced = |call: &Call| call.reported != 0 && now < call.reported + DISCARD_NS;
        self.calls.iter().any(|call| is_announced(call) && call.covers(addr)) || self.covers_other(addr, now)
    }

    fn covers_other(&self, addr: usize, now: u64) -> bool {
        now < self.until && self.others.iter().any(|r| r.2 > now && r.0 <= addr && addr < r.1)
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

    const P: usize = PAGE_SIZE;
    const LATE: u64 = 1 << 60;

    /// More discards were under way than there was room for, and the oldest was forgotten. Pages of it that were parked before it
    /// was carried out would have come back with content that the program had thrown away.
    #[test]
    fn no_discard_is_forgotten() {
        let mut discards = Discards::new();
        let many = 3 * OTHERS_MAX;
        let page = |i: usize| (i * 0x9E37 % many) * 2 * P;
        (0..many).for_each(|i| discards.report(page(i), page(i) + P, 0));
        assert!((0..many).all(|i| discards.covers(page(i), || 1) && !discards.covers(page(i), || DISCARD_NS)));
        assert!(
            discards.has_others(1)
                && !discards.has_others(DISCARD_NS)
                && !discards.is_empty(|| 1)
                && discards.is_empty(|| DISCARD_NS)
        );
        discards.end_other(0, 2 * many * P);
        assert!(!discards.has_others(1));
    }

    /// A thread got no CPU for more than two seconds between the announcement and the discard. Its pages were parked meanwhile, and
    /// read as before. And a call over several mappings, announced once for each, left all but one of its announcements behind:
    /// for two seconds its pages could not be evicted.
    #[test]
    fn a_hooked_discard_lasts_until_its_call_returns() {
        let mut discards = Discards::new();
        let covers = |discards: &Discards, pages: [usize; 3]| pages.map(|i| discards.covers(i * P, || LATE));
        discards.begin(7, 0, 4 * P, 1, |_| true);
        discards.begin(8, 3 * P, 6 * P, 1, |_| true);
        for mapping in [0, 1, 2] {
            discards.report(mapping * P, (mapping + 1) * P, 1);
        }
        assert_eq!(covers(&discards, [0, 3, 5]), [true; 3]);
        assert_eq!(discards.end(7, 0, 4 * P), Some(true));
        assert_eq!(covers(&discards, [0, 3, 5]), [false, true, true]);
        assert_eq!(discards.end(8, 3 * P, 6 * P), Some(false), "it was of memory that is not managed");
        assert!(discards.is_empty(|| 1));
        // one more than there is room for
        (0..=CALLS_MAX).for_each(|i| discards.begin(i as u32, i * P, (i + 1) * P, 1, |_| true));
        (0..=CALLS_MAX).for_each(|i| discards.report(i * P, (i + 1) * P, 1));
        assert!((0..=CALLS_MAX).all(|i| discards.covers(i * P, || 2)));
        assert_eq!([0, CALLS_MAX].map(|i| discards.end(i as u32, i * P, (i + 1) * P)), [Some(true), None]);
    }

    /// A signal came when a thread was about to discard a range, and its handler read a page there that was out. The page was not
    /// brought in until the call had ended, which waited for the handler.
    #[test]
    fn a_thread_can_read_what_it_is_about_to_discard() {
        let mut discards = Discards::new();
        discards.begin(7, 0, 4 * P, 1, |_| true);
        assert!(discards.covers(P, || 2) && !discards.refuses(P, || 2));
        // the handler discards something elsewhere, too
        discards.begin(7, 8 * P, 9 * P, 2, |_| true);
        discards.report(8 * P, 9 * P, 2);
        assert!(discards.refuses(8 * P, || 3) && !discards.refuses(P, || 3) && discards.end(7, 8 * P, 9 * P) == Some(true));
        discards.report(0, 4 * P, 3);
        discards.report(0, P, 9); // another thread's, within: it does not make the whole wait for longer
        assert!(discards.refuses(P, || 4) && !discards.refuses(P, || 3 + DISCARD_NS) && discards.covers(P, || LATE));
        assert_eq!(discards.end(7, 0, 4 * P), Some(true));
        // the handler jumps out of it
        discards.begin(7, 0, 4 * P, 10, |_| true);
        discards.report(0, 4 * P, 10);
        discards.begin(6, 5 * P, 6 * P, 10, |_| true);
        let later = 11 + LEFT_NS;
        discards.begin(7, 8 * P, 9 * P, later, |thread| thread != 6);
        assert_eq!([0, 5, 8].map(|i| discards.covers(i * P, || later + DISCARD_NS)), [false, false, true]);
        assert!(discards.covers(0, || later) && discards.has_others(later), "as one that is not hooked");
        discards.clear();
        assert!(discards.is_empty(|| later));
    }
}

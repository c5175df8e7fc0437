//! Discards that may be under way.

use super::remaps::LEFT_NS;

/// Ranges whose discard the kernel has announced and may not have done yet. A discard goes on once its announcement has been read,
/// and nothing reports its end. A page that was parked in between would later come back with content that the program has thrown
/// away. So pages of these ranges are not parked until the hooked call has returned, however long that takes. (A thread may get no
/// CPU for seconds, and the kernel takes as long for tens of gigabytes.) If no hook knows of the call, they are not parked for a
/// while.
///
/// Nor are pages brought in where a hooked call is under way, but only for a while, and only once the kernel has announced it: the
/// calling thread may touch one before, in a signal handler, and would wait for itself. (A call for guard pages counts as announced
/// from its start: what is out there is given up when it has returned.) Where no hook knows of the call they are brought in. What
/// was out has been given up with the announcement, and nothing was parked since, so what is out now came later, by mremap, or lies
/// in a gap between two ranges.
///
/// (It would be wrong to take the mapped pages away while the announcement is read. After MADV_FREE they stay mapped, and the
/// program may have written to them by then. That lost a page once in twelve runs of `tests/programs/calls.c`.)
#[derive(Debug)]
pub struct Discards {
    calls: Vec<Call>,
    /// Announced by the kernel, and by no hooked call: start, end, and until when (CLOCK_MONOTONIC, in nanoseconds). In order, and
    /// none overlaps another.
    others: Vec<(usize, usize, u64)>,
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
/// Enough for 2,000 scattered discards a second. With 256, all memory of such a program stayed, 33 MiB above its budget.
const OTHERS_MAX: usize = 4096;

/// How long a discard without a hooked call counts as under way, in nanoseconds. So long after the report of a hooked one no page
/// is brought in.
const DISCARD_NS: u64 = 2_000_000_000;

impl Discards {
    /// None.
    pub fn new() -> Self {
        Discards { calls: Vec::with_capacity(CALLS_MAX), others: Vec::with_capacity(OTHERS_MAX), until: 0 }
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
        self.others.clear();
        self.until = 0;
    }

    /// A hooked call begins. The thread may be in others: this one is a signal handler's. But one that began long ago was left by a
    /// long jump, or its thread has ended; from now on it counts as one that is not hooked. Returns whether there was room for it.
    pub(crate) fn begin(&mut self, thread: u32, start: usize, end: usize, now: u64, lives: impl Fn(u32) -> bool) -> bool {
        let is_left = |call: &Call| now.saturating_sub(call.since) > LEFT_NS && (call.thread == thread || !lives(call.thread));
        while let Some(at) = self.calls.iter().position(is_left) {
            let left = self.calls.remove(at);
            if left.reported != 0 {
                self.add(left.start, left.end, now);
            }
        }
        let has_room = self.calls.len() < CALLS_MAX;
        if has_room {
            self.calls.push(Call { thread, start, end, since: now, reported: 0 });
        }
        has_room
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

    /// A call has returned. Returns whether the kernel has announced it, or may have. If it is not known as hooked, its ranges
    /// stay for their time: parts of them may be another call's, too.
    pub(crate) fn ended(&mut self, thread: u32, start: usize, end: usize) -> bool {
        self.end(thread, start, end).unwrap_or(true)
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

    fn add(&mut self, mut start: usize, mut end: usize, now: u64) {
        self.until = now + DISCARD_NS;
        if self.others.len() + 2 > OTHERS_MAX {
            self.others.retain(|r| r.2 > now);
        }
        let at = self.others.partition_point(|r| r.1 <= start);
        let after = self.others.partition_point(|r| r.0 < end);
        let mut replaced = at..after;
        if self.others.len() + 2 > OTHERS_MAX {
            // Ranges that it overlaps, or else the nearest one, become one with it. That keeps a little more in memory for a while.
            if replaced.is_empty() {
                let before = at.checked_sub(1).map_or(usize::MAX, |i| start - self.others[i].1);
                let behind = self.others.get(at).map_or(usize::MAX, |r| r.0 - end);
                replaced = if before < behind { at - 1..at } else { at..at + 1 };
            }
            (start, end) = (start.min(self.others[replaced.start].0), end.max(self.others[replaced.end - 1].1));
        }
        // what sticks out stays as it is
        let first = self.others[replaced.clone()].first().filter(|r| r.0 < start).map(|r| (r.0, start, r.2));
        let last = self.others[replaced.clone()].last().filter(|r| r.1 > end).map(|r| (end, r.1, r.2));
        self.others.splice(replaced, first.into_iter().chain([(start, end, self.until)]).chain(last));
    }

    /// Whether the page at `addr` may be about to be discarded, so that it must not be parked.
    pub fn covers(&self, addr: usize, now: impl FnOnce() -> u64) -> bool {
        self.calls.iter().any(|call| call.covers(addr)) || self.until != 0 && self.covers_other(addr, now())
    }

    /// Whether it must not be brought in.
    pub(crate) fn refuses(&self, addr: usize, now: impl FnOnce() -> u64) -> bool {
        let reported = self.calls.iter().filter(|call| call.covers(addr)).map(|call| call.reported).max().unwrap_or(0);
        reported != 0 && now() < reported + DISCARD_NS
    }

    fn covers_other(&self, addr: usize, now: u64) -> bool {
        let at = self.others.partition_point(|r| r.1 <= addr);
        now < self.until && self.others.get(at).is_some_and(|r| r.0 <= addr && now < r.2)
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
        assert!(discards.ended(7, 0, 2 * many * P) && discards.has_others(1));
    }

    /// Of more discards than there was room for, ranges became one with the live pages between them, which could not be brought in:
    /// a read of one came back from the device again and again, as long as the discards went on.
    #[test]
    fn live_pages_beside_discards_are_brought_in() {
        let mut discards = Discards::new();
        let many = 2 * OTHERS_MAX;
        let page = |i: usize| (i * 0x9E37 % many) * 2 * P;
        (0..OTHERS_MAX - 2).for_each(|i| discards.report(page(i), page(i) + P, 0));
        assert!((0..many).all(|i| !discards.covers(page(i) + P, || 1)), "what there is room for is remembered exactly");
        (OTHERS_MAX - 2..many).for_each(|i| discards.report(page(i), page(i) + P, 0));
        assert!((0..many).any(|i| discards.covers(page(i) + P, || 1)));
        assert!((0..many).all(|i| discards.covers(page(i), || 1) && !discards.refuses(page(i) + P, || 1)));
        // room again
        discards.report(P, 2 * P, DISCARD_NS);
        assert_eq!([0, 1, 2].map(|i| discards.covers(i * P, || DISCARD_NS)), [false, true, false]);
    }

    /// A small discard within a large one is under way for longer, and the rest of the large one is not.
    #[test]
    fn each_page_has_its_time() {
        let mut discards = Discards::new();
        let covered = |discards: &Discards, now| [0, 1, 2, 3, 4, 5, 6, 7].map(|i| discards.covers(i * P, || now) as u8);
        discards.report(0, 5 * P, 0);
        discards.report(P, 2 * P, 10);
        discards.report(4 * P, 7 * P, 20);
        assert_eq!(covered(&discards, 30), [1, 1, 1, 1, 1, 1, 1, 0]);
        assert_eq!(covered(&discards, DISCARD_NS + 5), [0, 1, 0, 0, 1, 1, 1, 0]);
        assert_eq!(covered(&discards, DISCARD_NS + 15), [0, 0, 0, 0, 1, 1, 1, 0]);
        discards.report(0, 8 * P, 30);
        assert_eq!((covered(&discards, DISCARD_NS + 25), discards.others.len()), ([1; 8], 1));
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
        let began = |i: &usize| discards.begin(*i as u32, i * P, (i + 1) * P, 1, |_| true);
        assert_eq!((0..=CALLS_MAX).filter(began).count(), CALLS_MAX);
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

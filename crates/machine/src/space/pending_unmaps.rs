//! Unmaps that are still to be reported.

/// Ranges that were given up and whose unmapping is still to be reported, or followed. When that happens, it does not concern the
/// new mapping that is there by then.
///
/// The kernel gives addresses out again before it reports that they came free. It reports a move first, and the unmapping of the
/// old place only when that report has been read. Meanwhile another thread's move to that very place may have been made and
/// reported. The pager then took the new pages for those that had gone, and they read as zeroes.
///
/// What an announced call unmaps is noted for that call, until it ends ([`Remaps`](super::remaps::Remaps)). (Where two calls had
/// unmapped neighbours and a third had moved memory to both, one list for all said of neither that it had been followed.) Other
/// unmappings are recognised by their range. The kernel counts them as under way from before it acts until their report has been
/// read ([`Uffd::is_changing`](crate::kernel::Uffd::is_changing)). When none is under way, no report is still to come, and
/// [`Machine::read_messages`](crate::Machine::read_messages) forgets all pending ranges.
#[derive(Clone, Debug)]
pub struct PendingUnmaps {
    ranges: Vec<Pending>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pending {
    start: usize,
    end: usize,
    /// The announced call, or 0.
    call: u64,
}

/// One for each thread that is unmapping or moving memory, and some from just before.
const PENDING_MAX: usize = 1 << 16;

impl PendingUnmaps {
    /// None.
    pub fn new() -> Self {
        PendingUnmaps { ranges: Vec::with_capacity(PENDING_MAX) }
    }
    fn push(&mut self, pending: Pending) {
        if self.ranges.len() == PENDING_MAX {
            self.ranges.swap_remove(0); // more than there are threads: so some reports will never come
        }
        self.ranges.push(pending);
    }
    /// The pager has followed the unmapping of this range already. The report to come may be of a larger range.
    pub(crate) fn add(&mut self, start: usize, end: usize) {
        self.push(Pending { start, end, call: 0 });
    }
    /// The same for a part of what an announced call unmaps.
    pub(crate) fn add_of(&mut self, call: u64, start: usize, end: usize) {
        if !self.ranges.iter().any(|r| r.call == call && r.start <= start && end <= r.end) {
            self.push(Pending { start, end, call });
        }
    }
    /// There will be no report of this range.
    pub fn cancel(&mut self, start: usize, end: usize) {
        self.ranges.retain(|r| *r != Pending { start, end, call: 0 });
    }
    /// There will be no more reports.
    pub fn clear(&mut self) {
        self.ranges.clear();
    }
    /// The announced call has been followed.
    pub(crate) fn end_of(&mut self, call: u64) {
        self.ranges.retain(|r| r.call != call);
    }
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
    /// An unmapping of `at..end` was reported. Removes the first pending range in there. Returns its start, up to which the report
    /// is news, and its end, from which on it is news again. => at < end
    pub(crate) fn settle(&mut self, at: usize, end: usize) -> (usize, usize) {
        let within = |r: &Pending| r.call == 0 && at <= r.start && r.start < r.end && r.end <= end;
        let first = (0..self.ranges.len()).filter(|i| within(&self.ranges[*i])).min_by_key(|i| self.ranges[*i].start);
        first.map_or((end, end), |i| {
            let settled = self.ranges.swap_remove(i);
            (settled.start, settled.end)
        })
    }
    /// As [`PendingUnmaps::settle`], for the unmapping of an announced call. Removes nothing.
    pub(crate) fn settled_of(&self, call: u64, at: usize, end: usize) -> (usize, usize) {
        let parts = self.ranges.iter().filter(|r| r.call == call).map(|r| (r.start.max(at), r.end.min(end)));
        parts.filter(|r| r.0 < r.1).min_by_key(|r| (r.0, core::cmp::Reverse(r.1))).unwrap_or((end, end))
    }
}

impl Default for PendingUnmaps {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_pending_is_not_news() {
        let mut pending = PendingUnmaps::new();
        let news = |pending: &mut PendingUnmaps, start, end| {
            let (mut at, mut found) = (start, Vec::new());
            while at < end {
                let (until, next) = pending.settle(at, end);
                found.extend((at < until).then_some((at, until)));
                at = next;
            }
            found
        };
        assert_eq!(news(&mut pending, 10, 20), [(10, 20)]);
        pending.add(30, 40);
        pending.add(10, 20);
        assert_eq!(news(&mut pending, 15, 20), [(15, 20)], "another one");
        assert_eq!(news(&mut pending, 5, 50), [(5, 10), (20, 30), (40, 50)]);
        assert_eq!(news(&mut pending, 5, 50), [(5, 50)], "once");
        pending.add(10, 20);
        assert_eq!(news(&mut pending, 10, 20), []);
        pending.add(10, 20);
        pending.cancel(10, 20);
        assert_eq!(news(&mut pending, 10, 20), [(10, 20)]);
    }

    /// One call's parts, which may overlap and have equal starts, are none of another's.
    #[test]
    fn each_call_has_its_own() {
        let mut pending = PendingUnmaps::new();
        for (call, start, end) in [(1, 10, 20), (2, 20, 30), (1, 10, 14), (1, 18, 25), (1, 12, 13), (2, 10, 30)] {
            pending.add_of(call, start, end);
        }
        let news = |pending: &PendingUnmaps, call, start, end| {
            let (mut at, mut news) = (start, Vec::new());
            while at < end {
                let (until, next) = pending.settled_of(call, at, end);
                news.extend((at < until).then_some((at, until)));
                at = next;
            }
            news
        };
        assert_eq!(news(&pending, 1, 5, 50), [(5, 10), (25, 50)]);
        assert_eq!((news(&pending, 2, 20, 30), news(&pending, 3, 0, 9)), (vec![], vec![(0, 9)]));
        assert_eq!(pending.settle(0, 50), (50, 50));
        pending.end_of(1);
        assert_eq!((news(&pending, 1, 5, 50), news(&pending, 2, 5, 50)), (vec![(5, 50)], vec![(5, 10), (30, 50)]));
    }
}

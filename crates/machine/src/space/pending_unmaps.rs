//! Unmaps that are still to be reported.

/// Ranges that were given up and whose unmapping is still to be reported. When the report comes, it does not concern the new
/// mapping that is there by then.
///
/// The kernel gives addresses out again before it reports that they came free. It reports a move first, and the unmapping of the
/// old place only when that report has been read. Meanwhile another thread's move to that very place may have been made and
/// reported. The pager then took the new pages for those that had gone, and they read as zeroes.
///
/// The kernel counts an unmapping as under way from before it acts until its report has been read
/// ([`Uffd::is_changing`](crate::kernel::Uffd::is_changing)). When none is under way, no report is still to come, and
/// [`Machine::read_messages`](crate::Machine::read_messages) forgets all pending ranges.
#[derive(Clone, Debug)]
pub struct PendingUnmaps {
    ranges: Vec<(usize, usize)>,
}

/// One for each thread that is unmapping or moving memory, and some from just before.
const PENDING_MAX: usize = 1 << 16;

impl PendingUnmaps {
    /// None.
    pub fn new() -> Self {
        PendingUnmaps { ranges: Vec::with_capacity(PENDING_MAX) }
    }
    /// The pager has followed the unmapping of this range already. The report to come may be of a larger range.
    pub(crate) fn add(&mut self, start: usize, end: usize) {
        if self.ranges.len() == PENDING_MAX {
            self.ranges.swap_remove(0); // more than there are threads: so some reports will never come
        }
        self.ranges.push((start, end));
    }
    /// There will be no report of this range.
    pub fn cancel(&mut self, start: usize, end: usize) {
        self.ranges.retain(|r| *r != (start, end));
    }
    /// There will be no more reports.
    pub fn clear(&mut self) {
        self.ranges.clear();
    }
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
    /// An unmapping of `at..end` was reported. Removes the first pending range in there. Returns its start, up to which the report
    /// is news, and its end, from which on it is news again. => at < end
    pub(crate) fn settle(&mut self, at: usize, end: usize) -> (usize, usize) {
        let within = |r: &(usize, usize)| at <= r.0 && r.0 < r.1 && r.1 <= end;
        let first = (0..self.ranges.len()).filter(|i| within(&self.ranges[*i])).min_by_key(|i| self.ranges[*i].0);
        first.map_or((end, end), |i| self.ranges.swap_remove(i))
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
}

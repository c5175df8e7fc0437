//! Unmaps that are still to be reported.

/// Addresses that were given up and whose unmapping is still to be reported: when it is, it is not of what lives there by then.
///
/// The kernel gives addresses out again before it reports that they came free. A move is reported first, and only when that has
/// been read the unmapping of where it came from; meanwhile another thread's move may have come to that very place, and its report
/// was read. What followed took the new pages for those that had gone: they read as zeroes.
///
/// The kernel counts an unmapping as under way from before its act until its report has been read
/// ([`Uffd::is_changing`](crate::kernel::Uffd::is_changing)): when none is under way, there is none that is still to be reported,
/// and [`Machine::read_messages`](crate::Machine::read_messages) forgets them all.
#[derive(Clone, Debug)]
pub struct PendingUnmaps {
    ranges: Vec<(usize, usize)>,
}

/// One for each thread that is just unmapping or moving, and those of the moment before.
const PENDING_MAX: usize = 1 << 16;

impl PendingUnmaps {
    /// None.
    pub fn new() -> Self {
        PendingUnmaps { ranges: Vec::with_capacity(PENDING_MAX) }
    }
    /// The unmapping of this range, or of more, has taken place as far as the pager is concerned.
    pub(crate) fn add(&mut self, start: usize, end: usize) {
        if self.ranges.len() == PENDING_MAX {
            self.ranges.swap_remove(0); // more than there are threads: its report is one of those that never come
        }
        self.ranges.push((start, end));
    }
    /// There will be no such report.
    pub fn cancel(&mut self, start: usize, end: usize) {
        self.ranges.retain(|r| *r != (start, end));
    }
    /// There will be none at all.
    pub fn clear(&mut self) {
        self.ranges.clear();
    }
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
    /// An unmapping of `at..end` was reported. Up to where it is news, and from where on again. => at < end
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

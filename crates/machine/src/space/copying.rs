//! Pages that the page daemon is copying out.

/// The most pages at a time.
pub const COPIES_MAX: usize = 128;

/// Pages that are being copied out, and the discards reported of them meanwhile. Changed under the exclusive map lock.
#[derive(Debug)]
pub struct Copying {
    /// Each page's address, and its count of reported discards: 1 for one of the daemon's, 2 for one of the program's. In the order
    /// of addresses.
    pages: [(usize, u8); COPIES_MAX],
    count: usize,
    /// The range that the page daemon is discarding now.
    window: (usize, usize),
}

impl Copying {
    /// None.
    pub const fn new() -> Self {
        Copying { pages: [(0, 0); COPIES_MAX], count: 0, window: (0, 0) }
    }
    /// Begins to take the pages at these addresses. => no others are being taken
    pub fn begin(&mut self, addresses: impl Iterator<Item = usize>) {
        self.count = 0;
        for (page, addr) in self.pages.iter_mut().zip(addresses) {
            *page = (addr, 0);
            self.count += 1;
        }
    }
    /// No page is being taken any more.
    pub fn end(&mut self) {
        (self.count, self.window) = (0, (0, 0));
    }
    /// Whether no page is being taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }
    /// Sets the range that the page daemon is discarding now.
    pub(crate) fn set_window(&mut self, window: (usize, usize)) {
        self.window = window;
    }
    /// Whether any of them is in the range.
    pub fn overlaps(&self, start: usize, end: usize) -> bool {
        self.pages[..self.count].iter().any(|(addr, _)| (start..end).contains(addr))
    }
    /// A discard was reported. Returns whether it counts as the page daemon's: the first report within its range does, for each
    /// page.
    pub fn discarded(&mut self, start: usize, end: usize) -> bool {
        let within = self.window.0 <= start && end <= self.window.1;
        let mut first = true;
        for (addr, count) in &mut self.pages[..self.count] {
            if (start..end).contains(addr) {
                first &= *count == 0;
                *count = count.saturating_add(if within { 1 } else { 2 });
            }
        }
        within && first
    }
    /// Whether a discard of page `i` was reported.
    pub(crate) fn is_touched(&self, i: usize) -> bool {
        self.pages[i].1 > 0
    }
    /// Whether the program has discarded page `i`, which the page daemon has discarded, too.
    pub(crate) fn is_given_up(&self, i: usize) -> bool {
        self.pages[i].1 > 1
    }
}

impl Default for Copying {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_vm::types::PAGE_SIZE;

    const P: usize = PAGE_SIZE;

    #[test]
    fn the_programs_discards_are_told_from_our_own() {
        let mut copying = Copying::new();
        copying.begin([10 * P, 11 * P, 12 * P, 20 * P].into_iter());
        assert!(copying.overlaps(12 * P, 20 * P) && !copying.overlaps(13 * P, 20 * P));
        assert!(!copying.discarded(11 * P, 12 * P), "nothing is discarded by us yet");
        copying.window = (10 * P, 13 * P);
        // the first range includes a page that was discarded already, the second does not
        assert!(!copying.discarded(10 * P, 12 * P) && copying.discarded(12 * P, 13 * P));
        assert!(!copying.discarded(12 * P, 13 * P), "the second is the program's, or the first was");
        let given_up: Vec<_> = (0..4).map(|i| copying.is_given_up(i)).collect();
        assert_eq!(given_up, [false, true, true, false]);
        copying.window = (20 * P, 21 * P);
        assert!(!copying.discarded(0, 100 * P), "more than ours");
        assert!(copying.is_given_up(0) && copying.is_given_up(3));
        copying.end();
        assert!(!copying.overlaps(0, usize::MAX) && !copying.discarded(10 * P, 11 * P));
    }
}

//! Pages that threads wait for and that could not be read. Each is read again for a while: perhaps the device recovers. Meanwhile
//! the page is as it was before the fault, so it keeps nobody else waiting.

use overspill_vm::types::PageId;

/// How long a page is read again before it is lost, in nanoseconds. A swapoff waits as long.
pub(crate) const PATIENCE_NS: u64 = 10_000_000_000;
/// The fewest attempts: one alone may take longer than that.
const TRIES_MIN: u32 = 3;
/// The pause before the third attempt, in nanoseconds. It doubles each time. (The second one is made at once.)
const PAUSE_NS: u64 = 10_000_000;
/// The longest pause.
const PAUSE_MAX_NS: u64 = 200_000_000;
/// The most pages.
const PAGES_MAX: usize = 1024;
/// After so long without an attempt a page leaves the list, in nanoseconds: its content may be gone. (A single attempt takes less.)
const LEFT_NS: u64 = 300_000_000_000;

#[derive(Clone, Copy)]
struct Attempts {
    page: PageId,
    /// When the first one failed.
    since: u64,
    /// When the next one is due.
    due: u64,
    /// Attempts that read the page alone.
    tries: u32,
}

/// Pages whose last read has failed.
pub struct Unread {
    pages: Vec<Attempts>,
}

impl Unread {
    /// Makes an empty list.
    pub(crate) fn new() -> Self {
        Unread { pages: Vec::with_capacity(PAGES_MAX) }
    }

    /// A read of `page` has failed. It was `alone`, or there were others, one of which may be to blame. Returns whether the page is
    /// to be read again; else it is lost. Does not allocate.
    pub(crate) fn failed(&mut self, page: PageId, alone: bool, now: u64) -> bool {
        let at = self.pages.iter().position(|it| it.page == page).unwrap_or_else(|| self.add(page, now));
        let it = &mut self.pages[at];
        it.tries += u32::from(alone);
        it.due = now + if it.tries < 2 { 0 } else { (PAUSE_NS << (it.tries - 2).min(10)).min(PAUSE_MAX_NS) };
        let again = !alone || it.tries < TRIES_MIN || now - it.since < PATIENCE_NS;
        if !again {
            self.pages.swap_remove(at);
        }
        again
    }

    /// Adds a page, if need be in place of the one that was due first. Returns where.
    fn add(&mut self, page: PageId, now: u64) -> usize {
        self.pages.retain(|it| now <= it.due + LEFT_NS);
        if self.pages.len() == PAGES_MAX {
            let first = (0..PAGES_MAX).min_by_key(|at| self.pages[*at].due).expect("there are some");
            self.pages.swap_remove(first);
        }
        self.pages.push(Attempts { page, since: now, due: now, tries: 0 });
        self.pages.len() - 1
    }

    /// A thread wants `page`, and nobody reads it now. Whether the next read is due; `None` if its last one has not failed. A
    /// failure does not count any more if nobody came for the page in time: its content may be another one.
    pub(crate) fn is_due(&mut self, page: PageId, now: u64) -> Option<bool> {
        let at = self.pages.iter().position(|it| it.page == page)?;
        if now > self.pages[at].due + PATIENCE_NS {
            self.pages.swap_remove(at);
            return None;
        }
        Some(self.pages[at].due <= now)
    }

    /// The page has been read.
    pub(crate) fn forget(&mut self, page: PageId, now: u64) {
        self.pages.retain(|it| it.page != page && now <= it.due + LEFT_NS);
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.pages.clear();
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: PageId = PageId::from_raw(7);

    #[test]
    fn a_page_is_read_again_for_ten_seconds() {
        let (mut unread, mut now) = (Unread::new(), 5);
        let mut tries = 0;
        while unread.failed(PAGE, true, now) {
            tries += 1;
            let due = (now..now + PAUSE_MAX_NS + 1).step_by(1_000_000).find(|now| unread.is_due(PAGE, *now) == Some(true));
            now = due.expect("it is due soon");
            assert!(tries > 1 || now == 5, "the second attempt is made at once");
        }
        assert!((PATIENCE_NS..PATIENCE_NS + 2 * PAUSE_MAX_NS).contains(&now) && (50..100).contains(&tries), "{now}, {tries}");
        assert!(unread.is_empty() && unread.is_due(PAGE, now).is_none());
    }

    /// An attempt that took longer than the patience made the next one the first: the page was read for ever.
    #[test]
    fn an_attempt_may_take_longer_than_that() {
        for slow in [PATIENCE_NS, 3 * PATIENCE_NS] {
            let mut unread = Unread::new();
            let attempts = (1..=4).map(|n| unread.failed(PAGE, true, n * slow));
            assert_eq!(attempts.collect::<Vec<_>>(), [true, true, false, true]);
        }
    }

    /// A page was lost that had never been read alone: a bad one near it had failed three long reads.
    #[test]
    fn only_attempts_alone_count() {
        let mut unread = Unread::new();
        assert!((0..100).all(|n| unread.failed(PAGE, false, n * PATIENCE_NS / 2)));
        assert!(unread.failed(PAGE, true, 50 * PATIENCE_NS));
    }

    #[test]
    fn what_nobody_came_for_begins_anew() {
        let (mut unread, later) = (Unread::new(), 2 * PATIENCE_NS + 1);
        assert!((0..2).all(|_| unread.failed(PAGE, true, 0)));
        assert_eq!(unread.is_due(PAGE, later), None);
        assert!((0..3).all(|_| unread.failed(PAGE, true, later)));
        unread.forget(PAGE, later);
        assert!(unread.is_empty());
    }

    #[test]
    fn the_list_is_as_long_as_it_may_be() {
        let mut unread = Unread::new();
        assert!((0..2 * PAGES_MAX as u64).all(|n| unread.failed(PageId::from_raw(n), true, n)));
        assert_eq!((unread.pages.len(), unread.is_due(PAGE, 1)), (PAGES_MAX, None), "the oldest went");
        unread.forget(PAGE, LEFT_NS * 2);
        assert!(unread.is_empty(), "nobody has come for the others either");
    }
}

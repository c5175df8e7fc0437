//! Pages that threads wait for and that could not be read. Each is read again for a while: perhaps the device recovers. Meanwhile
//! the page is as it was before the fault, so it keeps nobody else waiting.

use overspill_vm::types::PageId;

/// How long a page is read again before it is lost, in nanoseconds.
const PATIENCE_NS: u64 = 10_000_000_000;
/// The fewest attempts: one alone may take longer than that.
const TRIES_MIN: u32 = 3;
/// The pause before the third attempt, in nanoseconds. It doubles each time. (The second one is made at once.)
const PAUSE_NS: u64 = 10_000_000;
/// The longest pause.
const PAUSE_MAX_NS: u64 = 200_000_000;
/// The most pages. Those beyond are lost at once.
const PAGES_MAX: usize = 1024;

#[derive(Clone, Copy)]
struct Attempts {
    page: PageId,
    /// When the first one failed, and when the next one is due.
    since: u64,
    due: u64,
    tries: u32,
}

impl Attempts {
    /// Nobody has come for the page since it was due: it is not wanted any more, or was read by other means.
    fn is_old(&self, now: u64) -> bool {
        now > self.due + PATIENCE_NS
    }
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

    /// A read of `page` has failed, of it `alone` or of several pages: then perhaps it was another one's fault. Returns whether it
    /// is to be read again; else it is lost. Does not allocate.
    pub(crate) fn failed(&mut self, page: PageId, alone: bool, now: u64) -> bool {
        self.pages.retain(|it| it.page == page || !it.is_old(now));
        let Some(at) = self.pages.iter().position(|it| it.page == page) else {
            let has_room = self.pages.len() < PAGES_MAX;
            if has_room {
                self.pages.push(Attempts { page, since: now, due: now, tries: u32::from(alone) });
            }
            return has_room;
        };
        let it = &mut self.pages[at];
        if it.is_old(now) {
            *it = Attempts { page, since: now, due: now, tries: 0 };
        }
        it.tries += u32::from(alone);
        it.due = now + if it.tries < 2 { 0 } else { (PAUSE_NS << (it.tries - 2).min(10)).min(PAUSE_MAX_NS) };
        let again = !alone || it.tries < TRIES_MIN || now - it.since < PATIENCE_NS;
        if !again {
            self.pages.swap_remove(at);
        }
        again
    }

    /// Whether the next read of `page` is due; `None` if its last one has not failed.
    pub(crate) fn is_due(&mut self, page: PageId, now: u64) -> Option<bool> {
        self.pages.retain(|it| !it.is_old(now));
        let it = self.pages.iter().find(|it| it.page == page)?;
        Some(it.due <= now)
    }

    /// The page has been read, by whomever.
    pub(crate) fn forget(&mut self, page: PageId) {
        self.pages.retain(|it| it.page != page);
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

    #[test]
    fn an_attempt_may_take_longer_than_that() {
        let mut unread = Unread::new();
        let attempts = (1..=4).map(|n| unread.failed(PAGE, true, n * 3 * PATIENCE_NS / 4));
        assert_eq!(attempts.collect::<Vec<_>>(), [true, true, false, true]);
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
        assert!((0..PAGES_MAX as u64).all(|n| unread.failed(PageId::from_raw(n), true, n)));
        assert!(!unread.failed(PageId::from_raw(PAGES_MAX as u64), true, 0), "there is no room for more");
        assert!((0..3).all(|_| unread.failed(PAGE, true, later)));
        assert_eq!(unread.pages.len(), 1);
        unread.forget(PAGE);
        assert!(unread.is_empty());
    }
}

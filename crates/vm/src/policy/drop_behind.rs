//! Drop-behind: every page that was read can be evicted as soon as it has been used.
//!
//! Source: Linux 2.4.5 as the use-once thread describes it (Rik van Riel), which use-once replaced; the lists are in `ages.rs`. A
//! page that was touched goes to the new end of the inactive queue, even from the active ring. If it is touched there again before
//! it reaches the old end, it goes to the ring after all. Readahead pages stay on the ring until they are used. The thread says
//! where it is bad: it "deactivates even popular file pages" and loses what was known of them; readahead pages are busy work; and a
//! page that was read ahead and never used is not dropped. Live, touches of active pages are not seen, so it is milder there.
//!
//! The kernel dropped only pages that went through read and write: those behind a sequential reader, and those that were written
//! whole. It never dropped mapped pages. A policy here is told neither how a page was referenced nor where it lies. So every touch
//! counts, as in the thread's account ("every time a popular file page is touched"). That makes it worse than the original wherever
//! files are mapped.

use super::ages::{Aged, INACTIVE, Rule, Start};
use super::{Arrival, Param};

/// See the module.
pub type DropBehind = Aged<DropBehindRule>;

/// See the module.
#[derive(Clone, Debug)]
pub struct DropBehindRule;

impl Rule for DropBehindRule {
    const NAME: &'static str = "drop-behind";
    const ABOUT: &'static str = "a page is put up for eviction as soon as it has been used (Linux 2.4.5)";
    const PARAMS: &'static [Param] = &[INACTIVE];
    const RESCUED_AGE: u32 = 0;
    const TOUCH_DEACTIVATES: bool = true;

    fn start(arrival: Arrival) -> Start {
        if arrival.why.is_ahead() { Start::Active } else { Start::InactiveUsedOnce }
    }
}

//! Drop-behind: every page that was read is put up for eviction as soon as it has been used.
//!
//! Source: Linux 2.4.5 as the use-once thread tells of it (Rik van Riel), which use-once replaced; the lists are in `ages.rs`. A
//! page that was touched goes to the new end of the inactive queue, also if it was on the active ring; if it is touched there again
//! before it comes to the old end it goes to the ring after all. Readahead pages circulate on the ring until they are used. The
//! thread says where it is bad: it "deactivates even popular file pages", losing what was known of them; readahead pages are busy
//! work; and a page that was read ahead and never used is not dropped. Live touches of active pages are not seen, so it is milder
//! there.
//!
//! In the kernel only what passes through read and write was dropped, and of that what lay behind a sequential reader, or was
//! written whole; mapped pages never were. A policy here is told neither how a page was referenced nor where it lies, so every
//! touch counts, as the thread's account has it ("every time a popular file page is touched"). That makes it worse than it was
//! wherever files are mapped.

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

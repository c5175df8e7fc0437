//! Aging: Linux 2.4 before use-once. Every page starts on the active ring and is aged down before it can go.
//!
//! Source: the use-once thread's account of 2.4.5 (Rik van Riel's design of 2000); the lists are in `ages.rs`. A touch adds to a
//! page's age, a scan without one halves it; at zero the page goes to the inactive queue. Good at telling pages that are used often
//! from those used now and then. Bad alongside a scan: each page of the scan circulates on the ring for several rounds before it is
//! found useless, and ages the others meanwhile, which is what use-once was made against. Live a touch is seen only while the page
//! is inactive, so ages differ little and this is nearly `fifo` with a second chance.

use super::ages::{Aged, INACTIVE, Rule, Start};
use super::{Arrival, Param};

/// See the module.
pub type Aging = Aged<AgingRule>;

/// See the module.
#[derive(Clone, Debug)]
pub struct AgingRule;

impl Rule for AgingRule {
    const NAME: &'static str = "aging";
    const ABOUT: &'static str = "the page ages of Linux 2.4: an active ring, then an inactive queue";
    const PARAMS: &'static [Param] = &[INACTIVE];
    const RESCUED_AGE: u32 = 0;
    const AGES_LIVE: bool = true;

    fn start(_: Arrival) -> Start {
        Start::Active
    }
}

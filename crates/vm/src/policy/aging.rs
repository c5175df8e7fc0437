//! Aging: Linux 2.4 before use-once. Every page starts on the active ring, and can go only when its age is down to zero.
//!
//! Source: the use-once thread's account of 2.4.5 (Rik van Riel's design of 2000); the lists are in `ages.rs`. A touch adds to a
//! page's age, and a scan without one halves it; at zero the page goes to the inactive queue. It is good at telling pages that are
//! used often from pages that are used now and then. It is bad alongside a scan: each page of the scan goes round the ring several
//! times before it is found useless, and ages the others meanwhile. Use-once was made against that. Live, a touch is seen only
//! while the page is inactive, so ages differ little, and this is nearly `fifo` with a second chance.

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

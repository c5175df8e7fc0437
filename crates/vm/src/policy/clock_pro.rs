//! CLOCK-Pro: the idea of LIRS with a clock and three hands, so that a hit sets a bit and moves nothing.
//!
//! Source: Jiang, Chen and Zhang, "CLOCK-Pro: an effective improvement of the CLOCK replacement", USENIX 2005. Its counts are those
//! of the authors' own program.
//!
//! ```text
//!   one ring, by the time of arrival or of the last look: hot pages, cold pages in memory, ghosts of cold pages (at most as many
//!   as there are pages of memory). Hands go from old to new:
//!   cold   next victim: the oldest cold page in memory. Untouched, it goes; touched in its test period, it becomes hot
//!   hot    makes the oldest untouched hot page cold, for each cold page that becomes hot
//!   test   ends the test periods of cold pages; a ghost is forgotten then
//! ```
//!
//! `cold=adaptive` lets the share of cold pages move between 1 and 99 per cent: a ghost that is read again raises it, and a test
//! period that ends unused lowers it. `cold=0.05` is the paper's fixed share. Two touches in a row count as one, and a page keeps
//! its mark in one odd place (see `spare`), both as in that program. It is bad where `lirs` is, but less so where the working set
//! changes. A victim's cost is bounded by the marks and ghosts that the hands remove: O(1) amortised.

use super::{Args, Arrival, Ghosts, Node, Param, Policy, Setup, Values};
use crate::page_queue::{ListId, Lists};
use alloc::vec;
use alloc::vec::Vec;
use prefetch_index::prefetch_index;

/// See the module.
#[derive(Clone, Debug)]
pub struct ClockPro {
    /// The ring, from the oldest to the newest, and the ghosts to be forgotten.
    lists: Lists<2>,
    /// Flags.
    state: Vec<u8>,
    args: Args,
    memory: u32,
    ghosts_max: u32,
    /// The most ghosts, whatever the size of memory.
    ghosts_limit: u32,
    cold_least: i64,
    cold_most: i64,
    adaptive: bool,
    /// Memory has been full once.
    full: bool,
    resident: u32,
    hot: u32,
    ghosts: u32,
    /// The change that is due in the number of cold pages.
    credits: i64,
    hand_hot: Option<Node>,
    hand_cold: Option<Node>,
    hand_test: Option<Node>,
    last: Option<Node>,
    counts: [u64; 9],
}

const RING: ListId = 0;
const DEAD: ListId = 1;

const RESIDENT: u8 = 1;
const HOT: u8 = 2;
const IN_TEST: u8 = 4;
const USED: u8 = 8;
const TAKEN: u8 = 16;

const NEW_TO_HOT: usize = 0;
const NEW_TO_COLD: usize = 1;
const GHOST_TO_HOT: usize = 2;
const COLD_TO_HOT: usize = 3;
const COLD_TO_COLD: usize = 4;
const HOT_TO_COLD: usize = 5;
const COLD_TO_PARKED: usize = 6;
const PARKED_TO_GHOST: usize = 7;
const FORGOTTEN: usize = 8;

/// The result of moving the hot hand for a cold page.
#[derive(Clone, Copy, PartialEq, Eq)]
struct HotMove {
    /// The hand passed the cold page, so that page's test period is over.
    met: bool,
    /// A hot page became cold.
    demoted: bool,
}

impl ClockPro {
    #[inline]
    fn is(&self, node: Node, flag: u8) -> bool {
        self.state[node as usize] & flag != 0
    }
    fn on(&mut self, node: Node, flag: u8) {
        self.state[node as usize] |= flag;
    }
    fn off(&mut self, node: Node, flag: u8) {
        self.state[node as usize] &= !flag;
    }
    #[inline]
    fn newer(&self, node: Node) -> Node {
        self.lists.next(node).or_else(|| self.lists.front(RING)).unwrap_or(node)
    }
    #[inline]
    fn older(&self, node: Node) -> Node {
        self.lists.previous(node).or_else(|| self.lists.back(RING)).unwrap_or(node)
    }
    /// The page that a hand at `node` goes to if `node` leaves the ring.
    fn after(&self, node: Node) -> Option<Node> {
        Some(self.newer(node)).filter(|next| *next != node)
    }
    /// Takes a page out of the ring, and ends its test period and mark. Hands that point to it go on.
    fn leave(&mut self, node: Node) {
        let after = self.after(node);
        for hand in [&mut self.hand_hot, &mut self.hand_cold, &mut self.hand_test] {
            if *hand == Some(node) {
                *hand = after;
            }
        }
        self.lists.remove(RING, node);
        self.off(node, IN_TEST | USED);
    }
    fn enter(&mut self, node: Node, flags: u8) {
        self.on(node, flags);
        self.lists.push_back(RING, node);
        for hand in [&mut self.hand_hot, &mut self.hand_test] {
            hand.get_or_insert(node);
        }
    }
    fn forget_at_test(&mut self, node: Node) {
        self.leave(node);
        self.ghosts -= 1;
        self.lists.push_back(DEAD, node);
        if self.adaptive {
            self.credits -= 1;
        }
    }
    fn end_test(&mut self, node: Node) {
        if !self.is(node, HOT) {
            self.off(node, IN_TEST | USED);
        }
    }
    /// The hot hand pushes the test hand on.
    fn step_test(&mut self) {
        let Some(at) = self.hand_test else { return };
        if self.is(at, RESIDENT) {
            self.end_test(at);
            self.hand_test = Some(self.newer(at));
        } else {
            self.forget_at_test(at);
        }
    }
    /// Forgets ghosts until there are no more than allowed.
    fn trim(&mut self) {
        while self.ghosts > self.ghosts_max {
            let Some(at) = self.hand_test else { return };
            if self.is(at, RESIDENT) {
                self.end_test(at);
                self.hand_test = Some(self.newer(at));
            } else {
                self.forget_at_test(at);
            }
        }
    }
    fn bury<G: Ghosts>(&mut self, ghosts: &mut G) {
        while let Some(node) = self.lists.pop_front(DEAD) {
            self.counts[FORGOTTEN] += 1;
            self.state[node as usize] = 0;
            ghosts.forget(node);
        }
    }
    /// Makes a hot page cold, for the cold page `cold` that is to become hot.
    fn run_hot(&mut self, cold: Node) -> HotMove {
        let mut ended = HotMove { met: false, demoted: false };
        while self.hot > 0
            && let Some(at) = self.hand_hot
        {
            let is_hot = self.is(at, HOT);
            if (ended.met || ended.demoted) && is_hot {
                break;
            }
            if is_hot {
                if !self.is(at, USED) {
                    self.counts[HOT_TO_COLD] += 1;
                    self.off(at, HOT);
                    self.hot -= 1;
                    ended.demoted = true;
                }
                self.leave(at);
                self.enter(at, 0);
            } else {
                ended.met |= at == cold;
                self.hand_hot = Some(self.newer(at));
            }
            if let Some(hot) = self.hand_hot
                && Some(self.older(hot)) == self.hand_test
            {
                self.step_test();
                self.trim();
            }
        }
        ended
    }
    fn bound_credits(&mut self) {
        let cold = self.memory as i64 - self.hot as i64;
        if (self.credits > 0 && cold >= self.cold_most) || (self.credits < 0 && cold <= self.cold_least) {
            self.credits = 0;
        }
    }
    /// A cold page in memory and on the ring was touched in its test period. Returns whether it can go in spite of that, because
    /// its test period has ended meanwhile.
    fn spare(&mut self, node: Node) -> bool {
        self.bound_credits();
        if self.credits < 0 {
            self.make_hot(node, COLD_TO_HOT);
            self.credits += 1;
            return false;
        }
        let moved = self.run_hot(node);
        if self.credits > 0 {
            self.credits -= (!moved.met || moved.demoted) as i64;
            if moved.met {
                self.off(node, USED);
                return true;
            }
            self.counts[COLD_TO_COLD] += 1;
            self.leave(node);
            if let Some(next) = self.hand_cold {
                self.on(next, USED); // the authors' program does so
            }
            self.enter(node, IN_TEST);
            return false;
        }
        if moved.met && !moved.demoted {
            return true;
        }
        self.make_hot(node, COLD_TO_HOT);
        false
    }
    /// => cold, in memory, on the ring or not
    fn make_hot(&mut self, node: Node, count: usize) {
        self.counts[count] += 1;
        if self.lists.listed(node) {
            self.leave(node);
        }
        self.hot += 1;
        self.enter(node, HOT);
    }
    /// The oldest cold page in memory, from the cold hand on.
    fn seek_cold(&mut self) -> Option<Node> {
        let mut at = self.hand_cold.or_else(|| self.lists.front(RING))?;
        let mut turns = self.lists.len(RING);
        while self.state[at as usize] & (RESIDENT | HOT | TAKEN) != RESIDENT {
            turns = turns.checked_sub(1)?;
            at = self.newer(at);
        }
        self.hand_cold = Some(at);
        Some(at)
    }
}

impl Policy for ClockPro {
    const NAME: &'static str = "clock-pro";
    const ABOUT: &'static str = "lirs with a clock and three hands (USENIX 2005)";
    const PARAMS: &'static [Param] = &[Param {
        key: "cold",
        default: "adaptive",
        values: Values::WordOrNumber("adaptive", 0.001, 0.99),
        help: "share of the memory for cold pages (at least 2 pages), or adaptive: 0.01 to 0.99; the authors'",
    }];
    const GHOSTS_PERMILLE: u32 = 1000;
    const TRANSITIONS: &'static [&'static str] = &[
        "new_to_hot",
        "new_to_cold",
        "ghost_to_hot",
        "cold_to_hot",
        "cold_to_cold",
        "hot_to_cold",
        "cold_to_parked",
        "parked_to_ghost",
        "forgotten",
    ];
    const NODE_BYTES: usize = 9;

    fn new(args: &Args, setup: &Setup) -> Self {
        let nodes = setup.nodes as usize;
        let mut this = ClockPro {
            lists: Lists::new(nodes),
            state: vec![0; nodes],
            args: *args,
            memory: 0,
            ghosts_max: 0,
            ghosts_limit: setup.ghosts,
            cold_least: 0,
            cold_most: 0,
            adaptive: args.number("cold") < 0.0,
            full: false,
            resident: 0,
            hot: 0,
            ghosts: 0,
            credits: 0,
            hand_hot: None,
            hand_cold: None,
            hand_test: None,
            last: None,
            counts: [0; 9],
        };
        this.resize(setup.memory);
        this
    }
    fn resize(&mut self, memory: u32) {
        self.memory = memory;
        self.ghosts_max = self.ghosts_limit.min(memory);
        let (least, most) = if self.adaptive { (0.01, 0.99) } else { (self.args.number("cold"), self.args.number("cold")) };
        let pages = |share: f64| ((share * memory as f64) as i64).max(2);
        (self.cold_least, self.cold_most) = (pages(least), pages(most));
    }
    #[inline]
    fn reference(&mut self, node: Node) -> bool {
        let state = &mut self.state[node as usize];
        let listed = *state & RESIDENT != 0;
        if listed {
            if self.last != Some(node) {
                *state |= USED;
            }
            self.last = Some(node);
        }
        listed
    }
    #[inline]
    fn prefetch(&self, node: Node) {
        prefetch_index(&self.state, node as usize);
        self.lists.prefetch(node);
    }
    #[inline]
    fn admit<G: Ghosts>(&mut self, ghosts: &mut G, node: Node, _: Arrival) {
        self.last = Some(node);
        let free = self.memory as i64 - self.resident as i64;
        self.resident += 1;
        let is_ghost = self.lists.listed(node) && self.state[node as usize] & IN_TEST != 0;
        if is_ghost {
            let moved = self.run_hot(node);
            if self.lists.listed(node) && self.is(node, IN_TEST) {
                self.leave(node);
                self.ghosts -= 1;
            } else {
                self.lists.remove(DEAD, node); // its test period has just ended
            }
            self.on(node, RESIDENT);
            if moved.met && !moved.demoted {
                self.counts[NEW_TO_COLD] += 1;
                self.enter(node, IN_TEST);
            } else {
                self.credits += self.adaptive as i64;
                self.make_hot(node, GHOST_TO_HOT);
            }
        } else {
            if self.lists.listed(node) {
                self.lists.remove(DEAD, node);
            }
            self.state[node as usize] = RESIDENT;
            if !self.full && free > self.cold_least {
                self.make_hot(node, NEW_TO_HOT);
            } else {
                self.counts[NEW_TO_COLD] += 1;
                self.enter(node, IN_TEST);
            }
        }
        self.full |= free <= 1;
        self.bury(ghosts);
    }
    #[inline]
    fn victim(&mut self) -> Option<Node> {
        self.full = true;
        loop {
            let Some(node) = self.seek_cold() else {
                // every cold page is inactive, so the oldest hot one is taken
                let hot = self.lists.iter(RING).find(|node| self.state[*node as usize] & (HOT | TAKEN) == HOT)?;
                self.take(hot);
                return Some(hot);
            };
            let accessed = self.state[node as usize] & (USED | IN_TEST) == USED | IN_TEST;
            if !accessed || self.spare(node) {
                self.take(node);
                return Some(node);
            }
        }
    }
    #[inline]
    fn take(&mut self, node: Node) {
        self.counts[COLD_TO_PARKED] += 1;
        if self.is(node, HOT) {
            self.hot -= 1;
            self.off(node, HOT);
        }
        if self.is(node, IN_TEST) {
            if self.hand_cold == Some(node) {
                self.hand_cold = Some(self.newer(node));
            }
        } else {
            self.leave(node);
        }
        self.on(node, TAKEN);
    }
    fn rescued(&mut self, node: Node) {
        self.off(node, TAKEN);
        if !self.is(node, IN_TEST) || self.spare(node) {
            if self.lists.listed(node) {
                self.leave(node);
            }
            self.counts[COLD_TO_COLD] += 1;
            self.enter(node, IN_TEST);
        }
    }
    fn refused(&mut self, node: Node) {
        self.off(node, TAKEN);
        if self.lists.listed(node) {
            self.leave(node);
        }
        self.enter(node, IN_TEST);
    }
    #[inline]
    fn evicted<G: Ghosts>(&mut self, ghosts: &mut G, node: Node) {
        self.resident -= 1;
        if self.lists.listed(node) && self.is(node, IN_TEST) {
            self.counts[PARKED_TO_GHOST] += 1;
            self.state[node as usize] = IN_TEST;
            self.ghosts += 1;
            self.trim();
        } else {
            if self.lists.listed(node) {
                self.leave(node);
            }
            self.state[node as usize] = 0;
            ghosts.forget(node);
        }
    }
    fn arrived_taken(&mut self, node: Node) {
        self.resident += 1;
        self.state[node as usize] = RESIDENT | TAKEN;
    }
    #[inline]
    fn remove(&mut self, node: Node) {
        if self.is(node, HOT) {
            self.hot -= 1;
        }
        if self.lists.listed(node) {
            self.leave(node);
        }
        self.resident -= 1;
        self.state[node as usize] = 0;
    }
    fn forget_ghost(&mut self, node: Node) {
        if self.is(node, IN_TEST) {
            self.leave(node);
            self.ghosts -= 1;
        } else {
            self.lists.remove(DEAD, node);
        }
        self.state[node as usize] = 0;
    }
    fn worst_first(&self, each: &mut dyn FnMut(Node, bool)) {
        for (flags, hot) in [(RESIDENT, false), (RESIDENT | HOT, true)] {
            let listed = |node: &Node| self.state[*node as usize] & (RESIDENT | HOT | TAKEN) == flags;
            self.lists.iter(RING).filter(listed).for_each(|node| each(node, hot));
        }
    }
    fn inherit<G: Ghosts>(&mut self, _: &mut G, node: Node, hot: bool) {
        self.resident += 1;
        self.state[node as usize] = RESIDENT;
        if hot && (self.hot as i64) < self.memory as i64 - self.cold_least {
            self.hot += 1;
            self.enter(node, HOT);
        } else {
            self.enter(node, IN_TEST);
        }
    }
    fn transitions(&self) -> &[u64] {
        &self.counts
    }
}

//! ARC: recency and frequency share the memory, and refaults of evicted pages set the shares.
//!
//! Source: Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003, figure 4, with `p` and its steps as
//! real numbers.
//!
//! ```text
//!   T1: touched once    T2: touched again         in memory, together at most c pages
//!   B1: gone from T1    B2: gone from T2          ghosts; |T1| + |B1| <= c, all four together <= 2 c
//! ```
//!
//! A page found in B1 says that T1, whose share is `p`, should have been longer; a page found in B2 says the same of T2. The choice
//! of a victim takes the incoming page into account. No parameters. It is bad at loops a little larger than memory (as `lru` is),
//! and at references in quick succession, which make every page of a scan "touched again". IBM's patent on it has expired. Live,
//! victims are taken in batches, before the incoming pages are known. Live, it also keeps at most as many ghosts as there are pages
//! of memory.
//!
//! The lists are trimmed after a page has come in, not before the victim is chosen as in the figure. The order does not matter: the
//! ghost that is forgotten is the oldest of its list, the victim becomes the newest, and the choice of the victim does not look at
//! ghosts.
//! ghosts.

use super::{Args, Arrival, Ghosts, Node, Policy, Setup};
use crate::page_queue::{ListId, Lists};

/// See the module.
#[derive(Clone, Debug)]
pub struct Arc {
    /// The word: [`OUT`], or the list that the page is on, or was on before it was taken.
    lists: Lists<4, 3>,
    memory: u32,
    ghosts: u32,
    /// Share of T1, in pages.
    p: f64,
    /// The incoming page was found in B2.
    coming_from_b2: bool,
    counts: [u64; 10],
}

const T1: ListId = 0;
const T2: ListId = 1;
const B1: ListId = 2;
const B2: ListId = 3;

const OUT: u32 = 0;
const IN_T1: u32 = 1;
const IN_T2: u32 = 2;
const IN_B1: u32 = 3;
const IN_B2: u32 = 4;
/// The page was in B1 or B2, and is about to come in.
const COMING_BACK: u32 = 5;
const TAKEN_FROM_T1: u32 = 6;
const TAKEN_FROM_T2: u32 = 7;

const NEW_TO_T1: usize = 0;
const T1_TO_T2: usize = 1;
const B1_TO_T2: usize = 2;
const B2_TO_T2: usize = 3;
const T1_TO_PARKED: usize = 4;
const T2_TO_PARKED: usize = 5;
const PARKED_TO_B1: usize = 6;
const PARKED_TO_B2: usize = 7;
const PARKED_TO_T2: usize = 8;
const FORGOTTEN: usize = 9;

impl Arc {
    #[inline]
    fn set(&mut self, node: Node, state: u32) {
        *self.lists.word_mut(node, 0) = state;
    }
    #[inline(always)]
    fn put(&mut self, node: Node, state: u32) {
        self.set(node, state);
        self.lists.push_back(state as usize - 1, node);
    }
    /// => just taken out of `list`
    #[inline(always)]
    fn took(&mut self, list: ListId, node: Node) {
        let (state, count) = if list == T1 { (TAKEN_FROM_T1, T1_TO_PARKED) } else { (TAKEN_FROM_T2, T2_TO_PARKED) };
        self.counts[count] += 1;
        self.set(node, state);
    }
    #[inline(always)]
    fn forget_oldest<G: Ghosts>(&mut self, ghosts: &mut G, list: ListId) {
        if let Some(oldest) = self.lists.pop_front(list) {
            self.counts[FORGOTTEN] += 1;
            self.set(oldest, OUT);
            ghosts.forget(oldest);
        }
    }
    #[inline(always)]
    fn trim<G: Ghosts>(&mut self, ghosts: &mut G) {
        let len = |list| self.lists.len(list) as u64;
        if len(T1) + len(B1) > self.memory as u64 && len(B1) > 0 {
            self.forget_oldest(ghosts, B1);
        } else if len(T1) + len(T2) + len(B1) + len(B2) > 2 * self.memory as u64 && len(B2) > 0 {
            self.forget_oldest(ghosts, B2);
        }
    }
}

impl Policy for Arc {
    const NAME: &'static str = "arc";
    const ABOUT: &'static str = "recency and frequency share the memory, adapting to what was evicted wrongly (FAST 2003)";
    const GHOSTS_PERMILLE: u32 = 1000;
    const TRANSITIONS: &'static [&'static str] = &[
        "new_to_t1",
        "t1_to_t2",
        "b1_to_t2",
        "b2_to_t2",
        "t1_to_parked",
        "t2_to_parked",
        "parked_to_b1",
        "parked_to_b2",
        "parked_to_t2",
        "forgotten",
    ];
    const NODE_BYTES: usize = 12;

    fn new(_: &Args, setup: &Setup) -> Self {
        Arc {
            lists: Lists::new(setup.nodes as usize),
            memory: setup.memory,
            ghosts: setup.ghosts,
            p: 0.0,
            coming_from_b2: false,
            counts: [0; 10],
        }
    }
    fn resize(&mut self, memory: u32) {
        self.memory = memory;
        self.p = self.p.min(memory as f64);
    }
    #[inline(always)]
    fn reference(&mut self, node: Node) -> bool {
        match self.lists.word(node, 0) {
            IN_T2 => self.lists.move_to_back(T2, node),
            IN_T1 => {
                self.counts[T1_TO_T2] += 1;
                self.lists.remove(T1, node);
                self.put(node, IN_T2);
            }
            _ => return false,
        }
        true
    }
    #[inline]
    fn prefetch(&self, node: Node) {
        self.lists.prefetch(node);
    }
    #[inline]
    fn prefetch_beside(&self, node: Node) {
        self.lists.prefetch_beside(node);
    }
    #[inline(always)]
    fn expect(&mut self, node: Node) {
        let state = self.lists.word(node, 0);
        self.coming_from_b2 = state == IN_B2;
        let (b1, b2) = (self.lists.len(B1) as f64, self.lists.len(B2) as f64);
        match state {
            IN_B1 => {
                self.counts[B1_TO_T2] += 1;
                self.p = (self.p + if b1 >= b2 { 1.0 } else { b2 / b1 }).min(self.memory as f64);
                self.lists.remove(B1, node);
                self.set(node, COMING_BACK);
            }
            IN_B2 => {
                self.counts[B2_TO_T2] += 1;
                self.p = (self.p - if b2 >= b1 { 1.0 } else { b1 / b2 }).max(0.0);
                self.lists.remove(B2, node);
                self.set(node, COMING_BACK);
            }
            _ => {}
        }
    }
    #[inline(always)]
    fn admit<G: Ghosts>(&mut self, ghosts: &mut G, node: Node, _: Arrival) {
        self.coming_from_b2 = false;
        if self.lists.word(node, 0) == COMING_BACK {
            self.put(node, IN_T2);
        } else {
            self.counts[NEW_TO_T1] += 1;
            self.put(node, IN_T1);
            self.trim(ghosts);
        }
    }
    #[inline(always)]
    fn victim(&mut self) -> Option<Node> {
        let t1 = self.lists.len(T1) as f64;
        let from_t1 = t1 > 0.0 && (t1 > self.p || (self.coming_from_b2 && t1 == self.p));
        let from = if from_t1 || self.lists.is_empty(T2) { T1 } else { T2 };
        let node = self.lists.pop_front(from)?;
        self.took(from, node);
        Some(node)
    }
    fn take(&mut self, node: Node) {
        let list = if self.lists.word(node, 0) == IN_T1 { T1 } else { T2 };
        self.lists.remove(list, node);
        self.took(list, node);
    }
    fn rescued(&mut self, node: Node) {
        self.counts[PARKED_TO_T2] += 1;
        self.put(node, IN_T2);
    }
    #[inline(always)]
    fn evicted<G: Ghosts>(&mut self, ghosts: &mut G, node: Node) {
        let (state, count) = if self.lists.word(node, 0) == TAKEN_FROM_T1 { (IN_B1, PARKED_TO_B1) } else { (IN_B2, PARKED_TO_B2) };
        self.counts[count] += 1;
        self.put(node, state);
        let (b1, b2) = (self.lists.len(B1), self.lists.len(B2));
        if b1 as u64 + b2 as u64 > self.ghosts as u64 {
            self.forget_oldest(ghosts, if b1 > b2 { B1 } else { B2 });
        }
    }
    fn arrived_taken(&mut self, node: Node) {
        self.set(node, TAKEN_FROM_T1);
    }
    fn remove(&mut self, node: Node) {
        match self.lists.word(node, 0) {
            IN_T1 => self.lists.remove(T1, node),
            IN_T2 => self.lists.remove(T2, node),
            _ => {}
        }
        self.set(node, OUT);
    }
    fn forget_ghost(&mut self, node: Node) {
        let list = if self.lists.word(node, 0) == IN_B1 { B1 } else { B2 };
        self.lists.remove(list, node);
        self.set(node, OUT);
    }
    fn worst_first(&self, each: &mut dyn FnMut(Node, bool)) {
        self.lists.iter(T1).for_each(|node| each(node, false));
        self.lists.iter(T2).for_each(|node| each(node, true));
    }
    fn inherit<G: Ghosts>(&mut self, _: &mut G, node: Node, hot: bool) {
        self.put(node, if hot { IN_T2 } else { IN_T1 });
    }
    fn transitions(&self) -> &[u64] {
        &self.counts
    }
}

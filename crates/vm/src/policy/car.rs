//! CAR: ARC with clocks, so that a hit sets a bit and moves nothing.
//!
//! Source: Bansal and Modha, "CAR: clock with adaptive replacement", FAST 2004, figure 2, with `p` as a real number. T1 and T2 are
//! clocks. A page of T1 that the hand finds touched goes to T2; one of T2 goes round again. B1 and B2 hold ghosts of evicted pages
//! and set T1's share `p`, as in `arc`. No parameters. Bad where `arc` is. Live, it keeps as many ghosts as there are pages of
//! memory.

use super::{Args, Arrival, Ghosts, Node, Policy, Setup};
use crate::page_queue::{ListId, Lists};
use alloc::vec;
use alloc::vec::Vec;
use prefetch_index::prefetch_index;

/// See the module.
#[derive(Clone, Debug)]
pub struct Car {
    lists: Lists<4>,
    /// [`OUT`], or the list that the page is on, or was on before it was taken; and [`USED`].
    state: Vec<u8>,
    memory: u32,
    ghosts: u32,
    /// Target length of T1, in pages.
    p: f64,
    counts: [u64; 10],
}

const T1: ListId = 0;
const T2: ListId = 1;
const B1: ListId = 2;
const B2: ListId = 3;

const OUT: u8 = 0;
const IN_T1: u8 = 1;
const IN_T2: u8 = 2;
const IN_B1: u8 = 3;
const IN_B2: u8 = 4;
const TAKEN_FROM_T1: u8 = 5;
const TAKEN_FROM_T2: u8 = 6;
/// With [`IN_T1`] and [`IN_T2`].
const USED: u8 = 8;

const NEW_TO_T1: usize = 0;
const T1_TO_T2: usize = 1;
const T2_TO_T2: usize = 2;
const B1_TO_T2: usize = 3;
const B2_TO_T2: usize = 4;
const T1_TO_PARKED: usize = 5;
const T2_TO_PARKED: usize = 6;
const PARKED_TO_GHOSTS: usize = 7;
const PARKED_TO_T2: usize = 8;
const FORGOTTEN: usize = 9;

impl Car {
    #[inline(always)]
    fn put(&mut self, node: Node, state: u8) {
        self.state[node as usize] = state;
        self.lists.push_back(state as usize - 1, node);
    }
    /// => just taken out of `list`
    #[inline(always)]
    fn took(&mut self, list: ListId, node: Node) {
        let (state, count) = if list == T1 { (TAKEN_FROM_T1, T1_TO_PARKED) } else { (TAKEN_FROM_T2, T2_TO_PARKED) };
        self.counts[count] += 1;
        self.state[node as usize] = state;
    }
    #[inline(always)]
    fn forget_oldest<G: Ghosts>(&mut self, ghosts: &mut G, list: ListId) {
        if let Some(oldest) = self.lists.pop_front(list) {
            self.counts[FORGOTTEN] += 1;
            self.state[oldest as usize] = OUT;
            ghosts.forget(oldest);
        }
    }
}

impl Policy for Car {
    const NAME: &'static str = "car";
    const ABOUT: &'static str = "arc with clocks: a hit sets a bit and moves nothing (FAST 2004)";
    const GHOSTS_PERMILLE: u32 = 1000;
    const TRANSITIONS: &'static [&'static str] = &[
        "new_to_t1",
        "t1_to_t2",
        "t2_to_t2",
        "b1_to_t2",
        "b2_to_t2",
        "t1_to_parked",
        "t2_to_parked",
        "parked_to_ghosts",
        "parked_to_t2",
        "forgotten",
    ];
    const NODE_BYTES: usize = 9;

    fn new(_: &Args, setup: &Setup) -> Self {
        let nodes = setup.nodes as usize;
        Car {
            lists: Lists::new(nodes),
            state: vec![OUT; nodes],
            memory: setup.memory,
            ghosts: setup.ghosts,
            p: 0.0,
            counts: [0; 10],
        }
    }
    fn resize(&mut self, memory: u32) {
        self.memory = memory;
        self.p = self.p.min(memory as f64);
    }
    #[inline(always)]
    fn reference(&mut self, node: Node) -> bool {
        let state = &mut self.state[node as usize];
        let listed = matches!(*state & !USED, IN_T1 | IN_T2);
        *state |= USED * listed as u8;
        listed
    }
    #[inline]
    fn prefetch(&self, node: Node) {
        prefetch_index(&self.state, node as usize);
        self.lists.prefetch(node);
    }
    #[inline(always)]
    fn admit<G: Ghosts>(&mut self, ghosts: &mut G, node: Node, _: Arrival) {
        let (b1, b2) = (self.lists.len(B1) as f64, self.lists.len(B2) as f64);
        match self.state[node as usize] {
            IN_B1 => {
                self.counts[B1_TO_T2] += 1;
                self.p = (self.p + (b2 / b1).max(1.0)).min(self.memory as f64);
                self.lists.remove(B1, node);
                self.put(node, IN_T2);
            }
            IN_B2 => {
                self.counts[B2_TO_T2] += 1;
                self.p = (self.p - (b1 / b2).max(1.0)).max(0.0);
                self.lists.remove(B2, node);
                self.put(node, IN_T2);
            }
            _ => {
                self.counts[NEW_TO_T1] += 1;
                self.put(node, IN_T1);
                // after the page has come in instead of before, as in `arc`
                let len = |list| self.lists.len(list) as u64;
                if len(T1) + len(B1) > self.memory as u64 && len(B1) > 0 {
                    self.forget_oldest(ghosts, B1);
                } else if len(T1) + len(T2) + len(B1) + len(B2) > 2 * self.memory as u64 && len(B2) > 0 {
                    self.forget_oldest(ghosts, B2);
                }
            }
        }
    }
    #[inline(always)]
    fn victim(&mut self) -> Option<Node> {
        loop {
            let t1 = self.lists.len(T1);
            let from = if t1 > 0 && (t1 as f64 >= self.p || self.lists.is_empty(T2)) { T1 } else { T2 };
            let node = self.lists.pop_front(from)?;
            if self.state[node as usize] & USED == 0 {
                self.took(from, node);
                return Some(node);
            }
            self.counts[if from == T1 { T1_TO_T2 } else { T2_TO_T2 }] += 1;
            self.put(node, IN_T2);
        }
    }
    fn take(&mut self, node: Node) {
        let list = if self.state[node as usize] & !USED == IN_T1 { T1 } else { T2 };
        self.lists.remove(list, node);
        self.took(list, node);
    }
    fn rescued(&mut self, node: Node) {
        self.counts[PARKED_TO_T2] += 1;
        self.put(node, IN_T2);
    }
    #[inline(always)]
    fn evicted<G: Ghosts>(&mut self, ghosts: &mut G, node: Node) {
        self.counts[PARKED_TO_GHOSTS] += 1;
        let state = if self.state[node as usize] == TAKEN_FROM_T1 { IN_B1 } else { IN_B2 };
        self.put(node, state);
        let (b1, b2) = (self.lists.len(B1), self.lists.len(B2));
        if b1 as u64 + b2 as u64 > self.ghosts as u64 {
            self.forget_oldest(ghosts, if b1 > b2 { B1 } else { B2 });
        }
    }
    fn arrived_taken(&mut self, node: Node) {
        self.state[node as usize] = TAKEN_FROM_T1;
    }
    fn remove(&mut self, node: Node) {
        match self.state[node as usize] & !USED {
            IN_T1 => self.lists.remove(T1, node),
            IN_T2 => self.lists.remove(T2, node),
            _ => {}
        }
        self.state[node as usize] = OUT;
    }
    fn forget_ghost(&mut self, node: Node) {
        let list = if self.state[node as usize] == IN_B1 { B1 } else { B2 };
        self.lists.remove(list, node);
        self.state[node as usize] = OUT;
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

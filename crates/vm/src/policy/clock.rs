//! Clock: the oldest page goes, unless it was touched since the hand last passed (second chance).
//!
//! Source: Corbató 1968, "A paging experiment with the Multics system". Each page has one bit. The hand clears the bits that it
//! passes and takes the first page without one. The new page takes the victim's place, just behind the hand. That is a queue: the
//! hand is at its old end, and a page that is spared goes to its new end. A page enters without a bit (`enter=0`: its fault is no
//! second use), or with one (`enter=1`, as a processor sets the bit at the faulting access). Bad where `lru` is: scans and loops
//! larger than memory. Live, a touch of an inactive page sets the bit.

use super::{Args, Arrival, Ghosts, Node, Param, Policy, Setup, Values};
use crate::page_queue::Lists;
use alloc::vec;
use alloc::vec::Vec;
use prefetch_index::prefetch_index;

/// See the module.
#[derive(Clone, Debug)]
pub struct Clock {
    /// The ring, from the hand on.
    queue: Lists<1>,
    /// [`OUT`], [`IN`], or [`USED`].
    state: Vec<u8>,
    enter: u8,
    counts: [u64; 4],
}

const OUT: u8 = 0;
const IN: u8 = 1;
/// [`IN`] and a bit. Setting it takes no branch, which would be hard to predict.
const USED: u8 = 3;

const ADMITTED: usize = 0;
const SPARED: usize = 1;
const TAKEN: usize = 2;
const RESCUED: usize = 3;

impl Policy for Clock {
    const NAME: &'static str = "clock";
    const ABOUT: &'static str = "the oldest page without a touch since the hand last passed goes (Corbató 1968)";
    const PARAMS: &'static [Param] = &[Param {
        key: "enter",
        default: "0",
        values: Values::Words(&["0", "1"]),
        help: "the bit that a page enters with; 1 as a faulting access of a processor would set it",
    }];
    const TRANSITIONS: &'static [&'static str] = &["new_to_ring", "ring_to_ring", "ring_to_parked", "parked_to_ring"];
    const NODE_BYTES: usize = 9;

    fn new(args: &Args, setup: &Setup) -> Self {
        let nodes = setup.nodes as usize;
        let enter = if args.whole("enter") == 1 { USED } else { IN };
        Clock { queue: Lists::new(nodes), state: vec![OUT; nodes], enter, counts: [0; 4] }
    }
    #[inline(always)]
    fn reference(&mut self, node: Node) -> bool {
        let state = &mut self.state[node as usize];
        *state |= (*state & IN) << 1;
        *state != OUT
    }
    #[inline]
    fn prefetch(&self, node: Node) {
        prefetch_index(&self.state, node as usize);
        self.queue.prefetch(node);
    }
    #[inline(always)]
    fn admit<G: Ghosts>(&mut self, _: &mut G, node: Node, arrival: Arrival) {
        self.counts[ADMITTED] += 1;
        self.state[node as usize] = if arrival.why.is_ahead() { IN } else { self.enter };
        self.queue.push_back(0, node);
    }
    #[inline(always)]
    fn victim(&mut self) -> Option<Node> {
        loop {
            let node = self.queue.pop_front(0)?;
            let state = &mut self.state[node as usize];
            if *state != USED {
                *state = OUT;
                self.counts[TAKEN] += 1;
                return Some(node);
            }
            *state = IN;
            self.counts[SPARED] += 1;
            self.queue.push_back(0, node);
        }
    }
    #[inline(always)]
    fn take(&mut self, node: Node) {
        self.counts[TAKEN] += 1;
        self.state[node as usize] = OUT;
        self.queue.remove(0, node);
    }
    fn rescued(&mut self, node: Node) {
        self.counts[RESCUED] += 1;
        self.state[node as usize] = IN;
        self.queue.push_back(0, node);
    }
    fn remove(&mut self, node: Node) {
        if self.queue.listed(node) {
            self.queue.remove(0, node);
        }
        self.state[node as usize] = OUT;
    }
    fn worst_first(&self, each: &mut dyn FnMut(Node, bool)) {
        for (state, hot) in [(IN, false), (USED, true)] {
            self.queue.iter(0).filter(|node| self.state[*node as usize] == state).for_each(|node| each(node, hot));
        }
    }
    fn inherit<G: Ghosts>(&mut self, _: &mut G, node: Node, hot: bool) {
        self.state[node as usize] = if hot { USED } else { IN };
        self.queue.push_back(0, node);
    }
    fn transitions(&self) -> &[u64] {
        &self.counts
    }
}

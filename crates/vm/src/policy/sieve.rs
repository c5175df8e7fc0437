//! Sieve: a queue in which touched pages keep their places while a hand removes the others.
//!
//! Source: Zhang, Yang, Yue, Vigfusson and Rashmi, "SIEVE is simpler than LRU", NSDI 2024. New pages enter at the new end. The hand
//! goes from the old end to the new, clears the bits that it passes, takes the first page without one, and stays there. At the new
//! end it starts again from the old one. So new pages are judged soon, and old ones that are used stay. No parameters. Bad at pages
//! that are used for a while and then never again, because each costs a whole round of the hand, and at scans in which every page
//! is touched twice.

use super::{Args, Arrival, Ghosts, Node, Policy, Setup};
use crate::page_queue::Lists;
use alloc::vec;
use alloc::vec::Vec;
use prefetch_index::prefetch_index;

/// See the module.
#[derive(Clone, Debug)]
pub struct Sieve {
    queue: Lists<1>,
    /// [`OUT`], [`IN`] or [`USED`].
    state: Vec<u8>,
    /// The next page to look at; `None`: the oldest.
    hand: Option<Node>,
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

impl Policy for Sieve {
    const NAME: &'static str = "sieve";
    const ABOUT: &'static str = "a hand sifts untouched pages out of a queue that keeps its order (NSDI 2024)";
    const TRANSITIONS: &'static [&'static str] = &["new_to_queue", "passed_by_hand", "queue_to_parked", "parked_to_queue"];
    const NODE_BYTES: usize = 9;

    fn new(_: &Args, setup: &Setup) -> Self {
        let nodes = setup.nodes as usize;
        Sieve { queue: Lists::new(nodes), state: vec![OUT; nodes], hand: None, counts: [0; 4] }
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
    fn admit<G: Ghosts>(&mut self, _: &mut G, node: Node, _: Arrival) {
        self.counts[ADMITTED] += 1;
        self.state[node as usize] = IN;
        self.queue.push_back(0, node);
    }
    #[inline(always)]
    fn victim(&mut self) -> Option<Node> {
        let mut node = self.hand.or_else(|| self.queue.front(0))?;
        while self.state[node as usize] == USED {
            self.state[node as usize] = IN;
            self.counts[SPARED] += 1;
            node = self.queue.next(node).or_else(|| self.queue.front(0))?;
        }
        self.hand = Some(node);
        self.take(node);
        if let Some(next) = self.hand {
            // the search for the next victim begins here: its entry comes into the cache until then
            self.queue.prefetch(next);
        }
        Some(node)
    }
    #[inline(always)]
    fn take(&mut self, node: Node) {
        self.counts[TAKEN] += 1;
        self.remove(node);
    }
    /// Puts the page back where it was, or nearly: just behind the hand.
    fn rescued(&mut self, node: Node) {
        self.counts[RESCUED] += 1;
        self.state[node as usize] = IN;
        match self.hand {
            Some(hand) => self.queue.insert_before(0, node, hand),
            None => self.queue.push_back(0, node),
        }
    }
    #[inline]
    fn remove(&mut self, node: Node) {
        if self.queue.listed(node) {
            if self.hand == Some(node) {
                self.hand = self.queue.next(node);
            }
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

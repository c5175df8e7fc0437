//! Least recently used: evicts the page that was not touched for the longest time.
//!
//! The classic. Denning 1968 gives its reason. Mattson, Gecsei, Slutz and Traiger 1970 give its stack property: a larger memory
//! also holds all pages that a smaller one holds, so one pass counts the misses of all sizes; the lab does that. It is bad at a
//! scan, which pushes out everything, and at a loop a little larger than memory, where it misses every time. Live, only touches of
//! inactive pages are seen, so it is a second-chance queue: nearer to `clock` than to this.

use super::{Args, Arrival, Ghosts, Node, Policy, Setup};
use crate::page_queue::Lists;

/// See the module.
#[derive(Clone, Debug)]
pub struct Lru {
    /// Least recently used first.
    queue: Lists<1>,
    counts: [u64; 3],
}

const ADMITTED: usize = 0;
const TAKEN: usize = 1;
const RESCUED: usize = 2;

impl Policy for Lru {
    const NAME: &'static str = "lru";
    const ABOUT: &'static str = "the page that was not touched for the longest time goes (Mattson and others 1970)";
    const TRANSITIONS: &'static [&'static str] = &["new_to_queue", "queue_to_parked", "parked_to_queue"];
    const NODE_BYTES: usize = 8;

    fn new(_: &Args, setup: &Setup) -> Self {
        Lru { queue: Lists::new(setup.nodes as usize), counts: [0; 3] }
    }
    #[inline(always)]
    fn reference(&mut self, node: Node) -> bool {
        let listed = self.queue.listed(node);
        if listed {
            self.queue.move_to_back(0, node);
        }
        listed
    }
    #[inline]
    fn prefetch(&self, node: Node) {
        self.queue.prefetch(node);
    }
    #[inline]
    fn prefetch_beside(&self, node: Node) {
        self.queue.prefetch_beside(node);
    }
    #[inline(always)]
    fn admit<G: Ghosts>(&mut self, _: &mut G, node: Node, _: Arrival) {
        self.counts[ADMITTED] += 1;
        self.queue.push_back(0, node);
    }
    #[inline(always)]
    fn victim(&mut self) -> Option<Node> {
        let node = self.queue.pop_front(0)?;
        self.counts[TAKEN] += 1;
        Some(node)
    }
    #[inline]
    fn take(&mut self, node: Node) {
        self.counts[TAKEN] += 1;
        self.queue.remove(0, node);
    }
    fn rescued(&mut self, node: Node) {
        self.counts[RESCUED] += 1;
        self.queue.push_back(0, node);
    }
    fn remove(&mut self, node: Node) {
        if self.queue.listed(node) {
            self.queue.remove(0, node);
        }
    }
    fn worst_first(&self, each: &mut dyn FnMut(Node, bool)) {
        self.queue.iter(0).for_each(|node| each(node, false));
    }
    fn inherit<G: Ghosts>(&mut self, _: &mut G, node: Node, _: bool) {
        self.queue.push_back(0, node);
    }
    fn transitions(&self) -> &[u64] {
        &self.counts
    }
}

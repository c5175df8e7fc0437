//! First in, first out: the oldest page goes, used or not.
//!
//! The baseline: no page is ever spared (Belady 1966, "A study of replacement algorithms for a virtual-storage computer"). It is
//! bad at anything with a working set, and it is the only policy here that can get worse with more memory (Belady's anomaly). It is
//! good where nothing is used twice, because it costs nothing. A touch of an inactive page is served but changes nothing: the page
//! keeps its place at the old end.

use super::{Args, Arrival, Ghosts, Node, Policy, Setup};
use crate::page_queue::Lists;

/// See the module.
#[derive(Clone, Debug)]
pub struct Fifo {
    queue: Lists<1>,
    counts: [u64; 3],
}

const ADMITTED: usize = 0;
const TAKEN: usize = 1;
const RESCUED: usize = 2;

impl Policy for Fifo {
    const NAME: &'static str = "fifo";
    const ABOUT: &'static str = "the oldest page goes, used or not (Belady 1966)";
    const TRANSITIONS: &'static [&'static str] = &["new_to_queue", "queue_to_parked", "parked_to_queue"];
    const NODE_BYTES: usize = 8;

    fn new(_: &Args, setup: &Setup) -> Self {
        Fifo { queue: Lists::new(setup.nodes as usize), counts: [0; 3] }
    }
    #[inline(always)]
    fn reference(&mut self, node: Node) -> bool {
        self.queue.listed(node)
    }
    #[inline]
    fn prefetch(&self, node: Node) {
        self.queue.prefetch(node);
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
        self.queue.push_front(0, node);
    }
    fn refused(&mut self, node: Node) {
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
    /// It learns nothing from a touch of an inactive page.
    fn learns_inactive(&self) -> bool {
        false
    }
    fn transitions(&self) -> &[u64] {
        &self.counts
    }
}

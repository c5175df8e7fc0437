//! A policy as the live core uses it: by frames and page identities.
//!
//! A policy that keeps no ghosts uses frame numbers as its nodes. In a policy with ghosts, a node outlives the frame: it goes from
//! a page's frame to its ghost and back. Ghosts are found by page in an open-addressing table (linear probing, no tombstones: later
//! entries are moved back) that is at most half full. Everything is allocated when the policy is made.

use super::{Admit, Arrival, FrameId, Ghosts, Node, PageId, Policy, See, Setup, Spec, Visitor};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// A policy in the core. No allocation after construction; each call O(1) amortised.
pub trait LivePolicy: Send {
    /// The specification that it was made from.
    fn spec(&self) -> Spec;
    /// `page` is in memory in `frame` and mapped. `distance`: see [`Arrival`]. => frame unknown to the policy
    fn admit(&mut self, frame: FrameId, page: PageId, why: Admit, distance: Option<u32>);
    /// `page` is in memory in `frame`, and inactive from the start. => frame unknown to the policy
    fn arrived_parked(&mut self, frame: FrameId, page: PageId);
    /// An inactive page was touched and is mapped again.
    fn referenced(&mut self, frame: FrameId);
    /// `page` arrived parked and is touched for the first time: it is as if it were admitted now, evicted nobody knows when.
    fn reached(&mut self, frame: FrameId, page: PageId, why: Admit);
    /// Somebody has begun to read far in order. What was [`Admit::Passing`] before is so no more.
    fn run_begins(&mut self);
    /// So many of these pages, the latest, are not to be taken unless there are few others.
    fn keep_passing(&mut self, least: u32);
    /// How many pages need not be parked before they are evicted.
    fn passing(&self) -> u32;
    /// Takes of those, the oldest first, as many as `out` has room for. Returns how many.
    fn passing_victims(&mut self, out: &mut [FrameId]) -> usize;
    /// Takes the next victims, the worst first, to be parked. Returns how many; fewer than asked only if there are no more.
    fn victims(&mut self, out: &mut [FrameId]) -> usize;
    /// Takes this frame as if it had been a victim. => frame is on a list of the policy
    fn take(&mut self, frame: FrameId);
    /// A victim could not be parked (pinned, locked): the policy should look elsewhere for a while.
    fn refused(&mut self, frame: FrameId);
    /// The page was given up or wired. => frame is on a list of the policy, or inactive
    fn remove(&mut self, frame: FrameId);
    /// The inactive page in `frame` was not touched and has left memory. Ghosts are made here.
    fn evicted(&mut self, frame: FrameId, page: PageId);
    /// The page, which is not in memory, was given up: its ghost is not needed.
    fn forget(&mut self, page: PageId);
    /// The page in `frame` was found to have been written. => listed or inactive
    fn dirtied(&mut self, frame: FrameId);
    /// The budget is now `memory` pages.
    fn resize(&mut self, memory: u32);
    /// How much of the budget may be inactive at a time, in thousandths. 0: no more than a batch.
    fn learns_inactive(&self) -> bool;
    /// Calls `each` with each listed frame, the worst first, and whether the policy counts it as in frequent use.
    fn worst_first(&self, each: &mut dyn FnMut(FrameId, bool));
    /// As [`LivePolicy::admit`], from another policy.
    fn inherit(&mut self, frame: FrameId, hot: bool);
    /// Bytes of its tables for each frame, ghosts included.
    fn frame_bytes(&self) -> u64;
    /// Calls `each` with the name of each transition between queues, and its count.
    fn transitions(&self, each: &mut dyn FnMut(&'static str, u64));
    /// The same counts, in the order of the names in [`super::Info::transitions`].
    fn transition_counts(&self) -> &[u64];
    /// A copy of it, with its lists, as a fork makes one. Allocates.
    fn clone_box(&self) -> Box<dyn LivePolicy>;
}

/// The node of each frame, and the page of each ghost.
#[derive(Clone, Debug)]
struct Directory {
    /// Node of a frame, plus one; 0: the policy does not know the frame.
    node_of: Vec<u32>,
    /// Frame of a node; for a free node, the next free node plus one.
    frame_of: Vec<u32>,
    /// Page of a ghost.
    page_of: Vec<u64>,
    /// Ghosts by hash, as node plus one.
    table: Vec<u32>,
    free: u32,
    fresh: u32,
}

impl Directory {
    fn new(frames: usize, ghosts: usize) -> Self {
        let nodes = frames + ghosts;
        Directory {
            node_of: vec![0; frames],
            frame_of: vec![0; nodes],
            page_of: vec![0; nodes],
            table: vec![0; (2 * ghosts).next_power_of_two().max(2)],
            free: 0,
            fresh: 0,
        }
    }
    fn slot(&self, page: u64) -> usize {
        // the upper half of a product with 2^64 / golden ratio (Knuth, vol. 3, 6.4)
        (page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.table.len() - 1)
    }
    fn find(&self, page: PageId) -> Option<usize> {
        let mut at = self.slot(page.raw());
        while let Some(node) = self.table[at].checked_sub(1) {
            if self.page_of[node as usize] == page.raw() {
                return Some(at);
            }
            at = (at + 1) & (self.table.len() - 1);
        }
        None
    }
    /// Takes the entry at `hole` out of the table and closes the gap.
    fn unname(&mut self, mut hole: usize) -> Node {
        let mask = self.table.len() - 1;
        let node = self.table[hole] - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let Some(next) = self.table[at].checked_sub(1) else { break };
            let home = self.slot(self.page_of[next as usize]);
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.table[hole] = self.table[at];
                hole = at;
            }
        }
        self.table[hole] = 0;
        node
    }
    fn remember(&mut self, node: Node, page: PageId) {
        self.page_of[node as usize] = page.raw();
        let mut at = self.slot(page.raw());
        while self.table[at] != 0 {
            at = (at + 1) & (self.table.len() - 1);
        }
        self.table[at] = node + 1;
    }
    fn bind(&mut self, frame: FrameId, node: Node) -> Node {
        assert_eq!(self.node_of[frame.at()], 0, "the policy knows {frame:?} already");
        self.node_of[frame.at()] = node + 1;
        self.frame_of[node as usize] = frame.0;
        node
    }
    fn take(&mut self) -> Node {
        match self.free.checked_sub(1) {
            Some(node) => {
                self.free = self.frame_of[node as usize];
                node
            }
            None => {
                assert!((self.fresh as usize) < self.frame_of.len(), "the policy keeps more ghosts than it may");
                self.fresh += 1;
                self.fresh - 1
            }
        }
    }
    fn give(&mut self, node: Node) {
        self.frame_of[node as usize] = self.free;
        self.free = node + 1;
    }
    fn node(&self, frame: FrameId) -> Node {
        self.node_of[frame.at()].checked_sub(1).expect("a frame that the policy knows")
    }
    fn unbind(&mut self, frame: FrameId) -> Node {
        let node = self.node(frame);
        self.node_of[frame.at()] = 0;
        node
    }
}

impl Ghosts for Directory {
    fn forget(&mut self, node: Node) {
        let at = self.find(PageId::from_raw(self.page_of[node as usize])).expect("a ghost is in the table");
        self.unname(at);
        self.give(node);
    }
}

/// For a policy that keeps no ghosts.
struct NoGhosts;

impl Ghosts for NoGhosts {
    fn forget(&mut self, _: Node) {}
}

/// A policy with its nodes.
#[derive(Clone)]
pub struct Live<P> {
    policy: P,
    spec: Spec,
    /// None if frames are nodes.
    directory: Option<Directory>,
}

impl<P: Policy> Live<P> {
    #[inline]
    fn node(&self, frame: FrameId) -> Node {
        self.directory.as_ref().map_or(frame.0, |d| d.node(frame))
    }
    #[inline]
    fn frame(&self, node: Node) -> FrameId {
        FrameId(self.directory.as_ref().map_or(node, |d| d.frame_of[node as usize]))
    }
    #[inline]
    fn take_each(&mut self, out: &mut [FrameId], next: impl Fn(&mut P) -> Option<Node>) -> usize {
        let mut n = 0;
        while n < out.len() {
            let Some(node) = next(&mut self.policy) else { break };
            out[n] = self.frame(node);
            n += 1;
        }
        n
    }
}

impl<P: Policy> LivePolicy for Live<P> {
    fn spec(&self) -> Spec {
        self.spec
    }
    fn admit(&mut self, frame: FrameId, page: PageId, why: Admit, distance: Option<u32>) {
        let arrival = Arrival { why, distance };
        let Some(directory) = &mut self.directory else {
            self.policy.expect(frame.0);
            self.policy.admit(&mut NoGhosts, frame.0, arrival);
            return;
        };
        let node = match directory.find(page) {
            Some(at) => {
                let node = directory.unname(at);
                if !why.is_refault() {
                    self.policy.forget_ghost(node); // another page is at that address now
                }
                node
            }
            None => directory.take(),
        };
        directory.bind(frame, node);
        self.policy.expect(node);
        self.policy.admit(directory, node, arrival);
    }
    fn arrived_parked(&mut self, frame: FrameId, page: PageId) {
        self.forget(page);
        let node = match &mut self.directory {
            Some(directory) => {
                let node = directory.take();
                directory.bind(frame, node)
            }
            None => frame.0,
        };
        self.policy.arrived_taken(node);
    }
    fn referenced(&mut self, frame: FrameId) {
        self.policy.rescued(self.node(frame));
    }
    fn reached(&mut self, frame: FrameId, page: PageId, why: Admit) {
        self.remove(frame);
        self.admit(frame, page, why, None);
    }
    fn run_begins(&mut self) {
        self.policy.run_begins();
    }
    fn keep_passing(&mut self, least: u32) {
        self.policy.keep_passing(least);
    }
    fn passing(&self) -> u32 {
        self.policy.passing()
    }
    fn passing_victims(&mut self, out: &mut [FrameId]) -> usize {
        self.take_each(out, P::passing_victim)
    }
    fn victims(&mut self, out: &mut [FrameId]) -> usize {
        self.take_each(out, P::victim)
    }
    fn take(&mut self, frame: FrameId) {
        self.policy.take(self.node(frame));
    }
    fn refused(&mut self, frame: FrameId) {
        self.policy.refused(self.node(frame));
    }
    fn remove(&mut self, frame: FrameId) {
        self.policy.remove(self.node(frame));
        if let Some(directory) = &mut self.directory {
            let node = directory.unbind(frame);
            directory.give(node);
        }
    }
    fn evicted(&mut self, frame: FrameId, page: PageId) {
        match &mut self.directory {
            Some(directory) => {
                let node = directory.unbind(frame);
                if let Some(at) = directory.find(page) {
                    // the page was renamed to an address whose old page has a ghost
                    let old = directory.unname(at);
                    self.policy.forget_ghost(old);
                    directory.give(old);
                }
                directory.remember(node, page);
                self.policy.evicted(directory, node);
            }
            None => self.policy.evicted(&mut NoGhosts, frame.0),
        }
    }
    fn forget(&mut self, page: PageId) {
        let Some(directory) = &mut self.directory else { return };
        let Some(at) = directory.find(page) else { return };
        let node = directory.unname(at);
        self.policy.forget_ghost(node);
        directory.give(node);
    }
    fn dirtied(&mut self, frame: FrameId) {
        self.policy.dirtied(self.node(frame));
    }
    fn resize(&mut self, memory: u32) {
        self.policy.resize(memory);
    }
    fn learns_inactive(&self) -> bool {
        self.policy.learns_inactive()
    }
    fn worst_first(&self, each: &mut dyn FnMut(FrameId, bool)) {
        self.policy.worst_first(&mut |node, hot| each(self.frame(node), hot));
    }
    fn inherit(&mut self, frame: FrameId, hot: bool) {
        match &mut self.directory {
            Some(directory) => {
                let node = directory.take();
                directory.bind(frame, node);
                self.policy.inherit(directory, node, hot);
            }
            None => self.policy.inherit(&mut NoGhosts, frame.0, hot),
        }
    }
    fn frame_bytes(&self) -> u64 {
        let ghost = P::NODE_BYTES as u64 + 4 + 8 + 4 * 4;
        let directory = if self.directory.is_some() { 4 + 4 + 8 } else { 0 };
        P::NODE_BYTES as u64 + directory + ghost * P::GHOSTS_PERMILLE as u64 / 1000
    }
    fn transitions(&self, each: &mut dyn FnMut(&'static str, u64)) {
        P::TRANSITIONS.iter().zip(self.policy.transitions()).for_each(|(name, count)| each(name, *count));
    }
    fn transition_counts(&self) -> &[u64] {
        self.policy.transitions()
    }
    fn clone_box(&self) -> Box<dyn LivePolicy> {
        Box::new(self.clone())
    }
}

/// Makes the policy of `spec` for a budget of `memory` pages in at most `frames` frames. Allocates.
pub fn make(spec: &Spec, memory: u32, frames: usize) -> Box<dyn LivePolicy> {
    struct Boxing(Spec, usize, u32);
    impl Visitor for Boxing {
        type Out = Box<dyn LivePolicy>;
        fn visit<P: Policy>(self, policy: P) -> Box<dyn LivePolicy> {
            let Boxing(spec, frames, ghosts) = self;
            let directory = (P::GHOSTS_PERMILLE > 0).then(|| Directory::new(frames, ghosts as usize + 1));
            Box::new(Live { policy, spec, directory })
        }
    }
    let ghosts = spec.ghosts(memory);
    // one node more than the most ghosts: a new ghost is there before the oldest is forgotten for it
    let nodes = if ghosts > 0 { frames as u32 + ghosts + 1 } else { frames as u32 };
    spec.visit(&Setup { memory, nodes, ghosts, see: See::Trials }, Boxing(*spec, frames, ghosts))
}

//! LIRS: pages with a low inter-reference recency keep nearly all of the memory.
//!
//! Source: Jiang and Zhang, "LIRS: an efficient low inter-reference recency set replacement policy to improve buffer cache
//! performance", SIGMETRICS 2002. Its counts are those of the authors' own program, which decides two points that the paper leaves
//! open: the first pages are LIR until only the share of the HIR pages is free, and a page referenced twice in a row counts once.
//!
//! ```text
//!   stack S, by last reference:   LIR pages, and HIR pages (in memory or not) not older than the last LIR page
//!   queue Q, by arrival:          the HIR pages that are in memory; its old end is the victim
//! ```
//!
//! A HIR page that is referenced while it is in S has a lower recency than the last LIR page, and changes places with it. Good at
//! loops and scans, which `lru` cannot hold at all. Bad where the working set changes: new pages must prove themselves in the 1 %
//! of memory that HIR pages have. `hirs` 0.01 and `stack` 2500 (the limit of S, in times the memory) are the authors'. Live, there
//! are at most twice as many ghosts as pages of memory. At that limit the ghost that was evicted first is forgotten, not the lowest
//! in S, which would take a search.

use super::{Args, Arrival, Ghosts, Node, Param, Policy, Setup, Values};
use crate::page_queue::{ListId, Lists};

/// See the module.
#[derive(Clone, Debug)]
pub struct Lirs {
    /// S, the top at the back. The word: flags.
    stack: Lists<1, 3>,
    queues: Lists<3>,
    args: Args,
    memory: u32,
    hirs: u32,
    /// Limit of the stack, in pages.
    stack_most: f64,
    ghosts: u32,
    /// LIR pages.
    lirs: u32,
    /// Pages in memory, those that are taken included.
    resident: u32,
    /// Page of the last reference.
    last: Option<Node>,
    counts: [u64; 8],
}

const S: ListId = 0;
/// HIR pages in memory, the next victim in front.
const Q: ListId = 0;
/// Ghosts by the time of their eviction.
const GHOSTS: ListId = 1;
/// Ghosts that have left the stack and are to be forgotten.
const DEAD: ListId = 2;

const RESIDENT: u32 = 1;
const LIR: u32 = 2;
const TAKEN: u32 = 4;

const NEW_TO_LIR: usize = 0;
const NEW_TO_HIR: usize = 1;
const HIR_TO_LIR: usize = 2;
const GHOST_TO_LIR: usize = 3;
const LIR_TO_HIR: usize = 4;
const HIR_TO_PARKED: usize = 5;
const PARKED_TO_GHOST: usize = 6;
const FORGOTTEN: usize = 7;

impl Lirs {
    #[inline]
    fn word(&self, node: Node) -> u32 {
        self.stack.word(node, 0)
    }
    #[inline]
    fn set(&mut self, node: Node, word: u32) {
        *self.stack.word_mut(node, 0) = word;
    }
    /// Makes a LIR page the bottom of the stack: HIR pages below the last LIR page leave it. Ghosts among them are to be forgotten.
    fn prune(&mut self) {
        while let Some(node) = self.stack.front(S) {
            let word = self.word(node);
            if word & LIR != 0 {
                return;
            }
            self.stack.remove(S, node);
            if word & RESIDENT == 0 {
                self.queues.remove(GHOSTS, node);
                self.queues.push_back(DEAD, node);
            }
        }
    }
    fn bury<G: Ghosts>(&mut self, ghosts: &mut G) {
        while let Some(node) = self.queues.pop_front(DEAD) {
            self.counts[FORGOTTEN] += 1;
            ghosts.forget(node);
        }
    }
    /// => a ghost
    fn kill(&mut self, node: Node) {
        if self.stack.listed(node) {
            self.stack.remove(S, node);
        }
        self.queues.remove(GHOSTS, node);
        self.queues.push_back(DEAD, node);
    }
    /// Makes LIR pages beyond their share HIR pages, from the bottom of the stack.
    fn demote(&mut self, most: u32) {
        while self.lirs > most {
            self.prune();
            let Some(last) = self.stack.pop_front(S) else { return };
            self.counts[LIR_TO_HIR] += 1;
            self.lirs -= 1;
            self.set(last, RESIDENT);
            self.queues.push_back(Q, last);
            self.prune();
        }
    }
    /// The page is used: it goes to the top of the stack. If it was in the stack before, or there is `room`, it is a LIR page from
    /// now on. => in memory, not in Q
    #[inline]
    fn use_page(&mut self, node: Node, room: bool, promoted: usize) {
        let was_in_stack = self.stack.listed(node);
        let is_lir = self.word(node) & LIR != 0;
        if !is_lir && (was_in_stack || room) {
            self.counts[promoted] += 1;
            self.set(node, RESIDENT | LIR);
            self.lirs += 1;
        }
        if was_in_stack {
            let was_last = self.stack.front(S) == Some(node);
            self.stack.move_to_back(S, node);
            if was_last {
                self.prune();
            }
        } else {
            self.stack.push_back(S, node);
        }
        if !is_lir {
            if was_in_stack || room {
                self.demote(self.memory - self.hirs);
            } else {
                self.queues.push_back(Q, node);
            }
        }
    }
}

impl Policy for Lirs {
    const NAME: &'static str = "lirs";
    const ABOUT: &'static str = "pages that come back soon keep nearly all of the memory (SIGMETRICS 2002)";
    const PARAMS: &'static [Param] = &[
        Param {
            key: "hirs",
            default: "0.01",
            values: Values::Number(0.001, 0.5),
            help: "share of the memory for pages that have not come back yet (at least 2 pages); the authors'",
        },
        Param {
            key: "stack",
            default: "2500",
            values: Values::Number(1.0, 1e6),
            help: "limit of the stack, in times the memory; the authors'",
        },
    ];
    const GHOSTS_PERMILLE: u32 = 2000;
    const TRANSITIONS: &'static [&'static str] =
        &["new_to_lir", "new_to_hir", "hir_to_lir", "ghost_to_lir", "lir_to_hir", "hir_to_parked", "parked_to_ghost", "forgotten"];
    const NODE_BYTES: usize = 20;

    fn new(args: &Args, setup: &Setup) -> Self {
        let mut this = Lirs {
            stack: Lists::new(setup.nodes as usize),
            queues: Lists::new(setup.nodes as usize),
            args: *args,
            memory: 0,
            hirs: 0,
            stack_most: 0.0,
            ghosts: setup.ghosts,
            lirs: 0,
            resident: 0,
            last: None,
            counts: [0; 8],
        };
        this.resize(setup.memory);
        this
    }
    fn resize(&mut self, memory: u32) {
        self.memory = memory;
        self.hirs = self.args.share("hirs", memory).max(2).min(memory);
        self.stack_most = self.args.number("stack") * memory as f64;
    }
    #[inline]
    fn reference(&mut self, node: Node) -> bool {
        let word = self.word(node);
        if word & RESIDENT == 0 {
            return false;
        }
        if self.last != Some(node) {
            self.last = Some(node);
            if word & LIR == 0 {
                self.queues.remove(Q, node);
            }
            self.use_page(node, false, HIR_TO_LIR);
        }
        true
    }
    #[inline]
    fn prefetch(&self, node: Node) {
        self.stack.prefetch(node);
        self.queues.prefetch(node);
    }
    #[inline]
    fn prefetch_beside(&self, node: Node) {
        self.stack.prefetch_beside(node);
    }
    #[inline]
    fn admit<G: Ghosts>(&mut self, ghosts: &mut G, node: Node, _: Arrival) {
        if self.queues.listed(node) && !self.stack.listed(node) {
            self.queues.remove(DEAD, node); // its ghost has left the stack but was not forgotten yet: it counts as new
        }
        self.bury(ghosts);
        self.last = Some(node);
        let promoted = if self.queues.listed(node) {
            self.queues.remove(GHOSTS, node);
            GHOST_TO_LIR
        } else {
            NEW_TO_LIR
        };
        let room = self.resident + self.hirs < self.memory && self.lirs + self.hirs < self.memory;
        self.resident += 1;
        self.set(node, RESIDENT);
        self.use_page(node, room, promoted);
        self.counts[NEW_TO_HIR] += (self.word(node) & LIR == 0) as u64;
        if self.stack.len(S) as f64 > self.stack_most
            && let Some(oldest) = self.queues.front(GHOSTS)
        {
            self.kill(oldest);
        }
    }
    #[inline]
    fn victim(&mut self) -> Option<Node> {
        if self.queues.is_empty(Q) {
            self.demote(self.lirs.checked_sub(1)?);
        }
        let node = self.queues.front(Q)?;
        self.take(node);
        Some(node)
    }
    #[inline]
    fn take(&mut self, node: Node) {
        self.counts[HIR_TO_PARKED] += 1;
        if self.word(node) & LIR == 0 {
            self.queues.remove(Q, node);
        } else {
            self.lirs -= 1;
            self.stack.remove(S, node);
            self.prune();
        }
        self.set(node, RESIDENT | TAKEN);
    }
    fn rescued(&mut self, node: Node) {
        self.set(node, RESIDENT);
        self.use_page(node, false, HIR_TO_LIR);
    }
    fn refused(&mut self, node: Node) {
        self.set(node, RESIDENT);
        self.queues.push_back(Q, node);
    }
    #[inline]
    fn evicted<G: Ghosts>(&mut self, ghosts: &mut G, node: Node) {
        self.bury(ghosts);
        self.resident -= 1;
        self.set(node, 0);
        if !self.stack.listed(node) {
            ghosts.forget(node);
            return;
        }
        self.counts[PARKED_TO_GHOST] += 1;
        self.queues.push_back(GHOSTS, node);
        if self.queues.len(GHOSTS) > self.ghosts
            && let Some(oldest) = self.queues.front(GHOSTS)
        {
            self.kill(oldest);
            self.bury(ghosts);
        }
    }
    fn arrived_taken(&mut self, node: Node) {
        self.resident += 1;
        self.set(node, RESIDENT | TAKEN);
    }
    #[inline]
    fn remove(&mut self, node: Node) {
        let word = self.word(node);
        if word & TAKEN == 0 {
            self.take(node);
        }
        if self.stack.listed(node) {
            self.stack.remove(S, node);
            self.prune();
        }
        self.resident -= 1;
        self.set(node, 0);
    }
    fn forget_ghost(&mut self, node: Node) {
        if self.stack.listed(node) {
            self.stack.remove(S, node);
            self.queues.remove(GHOSTS, node);
        } else {
            self.queues.remove(DEAD, node);
        }
        self.set(node, 0);
    }
    fn worst_first(&self, each: &mut dyn FnMut(Node, bool)) {
        self.queues.iter(Q).for_each(|node| each(node, false));
        self.stack.iter(S).filter(|node| self.word(*node) & LIR != 0).for_each(|node| each(node, true));
    }
    fn inherit<G: Ghosts>(&mut self, _: &mut G, node: Node, hot: bool) {
        self.resident += 1;
        self.set(node, RESIDENT);
        if hot && self.lirs + self.hirs < self.memory {
            self.stack.push_back(S, node);
            self.set(node, RESIDENT | LIR);
            self.lirs += 1;
        } else {
            self.queues.push_back(Q, node);
        }
    }
    fn transitions(&self) -> &[u64] {
        &self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Admit, See, Spec, Visitor};
    use super::*;

    /// Records the ghosts that are forgotten.
    struct Forgotten(Vec<Node>);

    impl Ghosts for Forgotten {
        fn forget(&mut self, node: Node) {
            self.0.push(node);
        }
    }

    struct Story;

    impl Visitor for Story {
        type Out = Vec<Node>;

        fn visit<P: Policy>(self, mut policy: P) -> Vec<Node> {
            let mut ghosts = Forgotten(Vec::new());
            let new = Arrival { why: Admit::FirstTouch, distance: None };
            (0..3).for_each(|node| policy.admit(&mut ghosts, node, new));
            assert_eq!(policy.victim(), Some(2));
            policy.evicted(&mut ghosts, 2);
            // both LIR pages go above the ghost, which leaves the stack
            assert!(policy.reference(0) && policy.reference(1));
            policy.admit(&mut ghosts, 2, Arrival { why: Admit::HardFault, distance: Some(1) });
            ghosts.0
        }
    }

    /// A page came back whose ghost had left the stack but was not forgotten yet. The ghost was then forgotten while the page
    /// arrived. Live, its name had just been taken out of the directory, and that ended the program.
    #[test]
    fn a_page_is_not_forgotten_while_it_arrives() {
        let setup = Setup { memory: 4, nodes: 8, ghosts: 8, see: See::All };
        assert_eq!(Spec::named("lirs").expect("it is in the table").visit(&setup, Story), [] as [Node; 0]);
    }
}

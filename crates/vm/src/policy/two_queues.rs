//! 2Q: a page must come back after it has left a queue of new pages before it gets a lasting place.
//!
//! Source: Johnson and Shasha, "2Q: a low overhead high performance buffer management replacement algorithm", VLDB 1994, the full
//! version.
//!
//! ```text
//!   new ──> A1in (fifo) ──evicted──> A1out (identities only) ──read again──> Am (lru)
//! ```
//!
//! References to a page in A1in change nothing: many small reads of one page in quick succession are one use, which is what the
//! use-once thread asks for. A victim comes from A1in while that is longer than `kin`, else from Am. A page found in A1out leaves
//! it before its victim is chosen. `kin` 0.25 and `kout` 0.5 of the memory are the paper's own. Bad where a page's second use comes
//! after A1out has forgotten it (`kout` bounds the loop that it can learn), and where each page is used only for a short while:
//! each second use then costs a read. Live, a touch of an inactive page from A1in tells the same as a hit in A1out.

use super::{Args, Arrival, Ghosts, Node, Param, Policy, Setup, Values};
use crate::page_queue::{ListId, Lists};

/// See the module.
#[derive(Clone, Debug)]
pub struct TwoQueues {
    /// The word: [`OUT`], or the list that the page is on, or was on before it was taken.
    lists: Lists<3, 3>,
    args: Args,
    kin: u32,
    kout: u32,
    ghosts: u32,
    counts: [u64; 9],
}

const A1_IN: ListId = 0;
const A1_OUT: ListId = 1;
const AM: ListId = 2;

const OUT: u32 = 0;
const IN_A1_IN: u32 = 1;
const IN_A1_OUT: u32 = 2;
const IN_AM: u32 = 3;
/// The page was in A1out, and is about to come in.
const COMING_BACK: u32 = 4;
const TAKEN_FROM_A1_IN: u32 = 5;
const TAKEN_FROM_AM: u32 = 6;

const NEW_TO_A1_IN: usize = 0;
const A1_OUT_TO_AM: usize = 1;
const A1_IN_TO_PARKED: usize = 2;
const AM_TO_PARKED: usize = 3;
const PARKED_TO_A1_OUT: usize = 4;
const PARKED_TO_AM: usize = 5;
const A1_OUT_FORGOTTEN: usize = 6;
const PARKED_TO_A1_IN: usize = 7;
const AM_EVICTED: usize = 8;

impl TwoQueues {
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
        let (state, count) = if list == A1_IN { (TAKEN_FROM_A1_IN, A1_IN_TO_PARKED) } else { (TAKEN_FROM_AM, AM_TO_PARKED) };
        self.counts[count] += 1;
        self.set(node, state);
    }
}

impl Policy for TwoQueues {
    const NAME: &'static str = "2q";
    const ABOUT: &'static str = "a page must come back after passing a queue of new pages (VLDB 1994, full version)";
    const PARAMS: &'static [Param] = &[
        Param {
            key: "kin",
            default: "0.25",
            values: Values::Number(0.01, 0.99),
            help: "length of the queue of new pages, as a share of the memory; the paper's",
        },
        Param {
            key: "kout",
            default: "0.5",
            values: Values::Number(0.01, 1.0),
            help: "pages remembered after they have left it, as a share of the memory; the paper's",
        },
    ];
    const GHOSTS_PERMILLE: u32 = 1000;
    const TRANSITIONS: &'static [&'static str] = &[
        "new_to_a1in",
        "a1out_to_am",
        "a1in_to_parked",
        "am_to_parked",
        "parked_to_a1out",
        "parked_to_am",
        "a1out_forgotten",
        "parked_to_a1in",
        "am_evicted",
    ];
    const NODE_BYTES: usize = 12;

    fn new(args: &Args, setup: &Setup) -> Self {
        let lists = Lists::new(setup.nodes as usize);
        let mut this = TwoQueues { lists, args: *args, kin: 0, kout: 0, ghosts: setup.ghosts, counts: [0; 9] };
        this.resize(setup.memory);
        this
    }
    fn resize(&mut self, memory: u32) {
        self.kin = self.args.share("kin", memory);
        self.kout = self.args.share("kout", memory).min(self.ghosts);
    }
    #[inline(always)]
    fn reference(&mut self, node: Node) -> bool {
        match self.lists.word(node, 0) {
            IN_A1_IN => true,
            IN_AM => {
                self.lists.move_to_back(AM, node);
                true
            }
            _ => false,
        }
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
        if self.lists.word(node, 0) == IN_A1_OUT {
            self.lists.remove(A1_OUT, node);
            self.set(node, COMING_BACK);
        }
    }
    #[inline(always)]
    fn admit<G: Ghosts>(&mut self, _: &mut G, node: Node, _: Arrival) {
        if self.lists.word(node, 0) == COMING_BACK {
            self.counts[A1_OUT_TO_AM] += 1;
            self.put(node, IN_AM);
        } else {
            self.counts[NEW_TO_A1_IN] += 1;
            self.put(node, IN_A1_IN);
        }
    }
    #[inline(always)]
    fn victim(&mut self) -> Option<Node> {
        let from = if self.lists.len(A1_IN) > self.kin || self.lists.is_empty(AM) { A1_IN } else { AM };
        let node = self.lists.pop_front(from)?;
        self.took(from, node);
        Some(node)
    }
    fn take(&mut self, node: Node) {
        let list = if self.lists.word(node, 0) == IN_A1_IN { A1_IN } else { AM };
        self.lists.remove(list, node);
        self.took(list, node);
    }
    fn rescued(&mut self, node: Node) {
        self.counts[PARKED_TO_AM] += 1;
        self.put(node, IN_AM);
    }
    fn refused(&mut self, node: Node) {
        if self.lists.word(node, 0) == TAKEN_FROM_A1_IN {
            self.counts[PARKED_TO_A1_IN] += 1;
            self.put(node, IN_A1_IN);
        } else {
            self.rescued(node);
        }
    }
    #[inline(always)]
    fn evicted<G: Ghosts>(&mut self, ghosts: &mut G, node: Node) {
        if self.lists.word(node, 0) != TAKEN_FROM_A1_IN {
            self.counts[AM_EVICTED] += 1;
            self.set(node, OUT);
            ghosts.forget(node);
            return;
        }
        self.counts[PARKED_TO_A1_OUT] += 1;
        self.put(node, IN_A1_OUT);
        while self.lists.len(A1_OUT) > self.kout {
            let Some(oldest) = self.lists.pop_front(A1_OUT) else { break };
            self.counts[A1_OUT_FORGOTTEN] += 1;
            self.set(oldest, OUT);
            ghosts.forget(oldest);
        }
    }
    fn arrived_taken(&mut self, node: Node) {
        self.set(node, TAKEN_FROM_A1_IN);
    }
    fn remove(&mut self, node: Node) {
        match self.lists.word(node, 0) {
            IN_A1_IN => self.lists.remove(A1_IN, node),
            IN_AM => self.lists.remove(AM, node),
            _ => {}
        }
        self.set(node, OUT);
    }
    fn forget_ghost(&mut self, node: Node) {
        self.lists.remove(A1_OUT, node);
        self.set(node, OUT);
    }
    fn worst_first(&self, each: &mut dyn FnMut(Node, bool)) {
        self.lists.iter(A1_IN).for_each(|node| each(node, false));
        self.lists.iter(AM).for_each(|node| each(node, true));
    }
    fn inherit<G: Ghosts>(&mut self, _: &mut G, node: Node, hot: bool) {
        self.put(node, if hot { IN_AM } else { IN_A1_IN });
    }
    fn transitions(&self) -> &[u64] {
        &self.counts
    }
}

//! S3-FIFO: a small queue filters out pages that are used once, before they reach the main one.
//!
//! Source: Yang, Zhang, Qiu, Yue and Rashmi, "FIFO queues are all you need for cache eviction", SOSP 2023, algorithm 1.
//!
//! ```text
//!   new ──> S (fifo, a tenth) ──touched more than once──> M (fifo, second chance with a count up to 3)
//!                 └──else evicted──> G (identities, as many as M has pages) ──read again──> M
//! ```
//!
//! `small` 0.1 is the paper's. The paper's text leaves three points open. Here a count begins again at zero in M, a page that
//! overfills M makes M give up the victim at once, and G is looked up after the victim has been chosen. Bad at pages whose second
//! use comes after G has forgotten them, and at scans that touch each page several times (a count above one in S leads to M). Live,
//! a touch of an inactive page leads to M.

use super::{Args, Arrival, Ghosts, Node, Param, Policy, Setup, Values};
use crate::page_queue::{ListId, Lists};
use alloc::vec;
use alloc::vec::Vec;
use prefetch_index::prefetch_index;

/// See the module.
#[derive(Clone, Debug)]
pub struct S3Fifo {
    lists: Lists<3>,
    /// Bits 0 and 1: the count of touches. Above: [`OUT`], or the list that the page is on, or was on before it was taken.
    state: Vec<u8>,
    args: Args,
    small: u32,
    main: u32,
    ghosts: u32,
    counts: [u64; 10],
}

const S: ListId = 0;
const M: ListId = 1;
const G: ListId = 2;

const COUNT: u8 = 3;
const OUT: u8 = 0;
const IN_S: u8 = 4;
const IN_M: u8 = 8;
const IN_G: u8 = 12;
const TAKEN_FROM_S: u8 = 16;
const TAKEN_FROM_M: u8 = 20;

const NEW_TO_S: usize = 0;
const G_TO_M: usize = 1;
const S_TO_M: usize = 2;
const M_TO_M: usize = 3;
const S_TO_PARKED: usize = 4;
const M_TO_PARKED: usize = 5;
const PARKED_TO_G: usize = 6;
const PARKED_TO_M: usize = 7;
const M_EVICTED: usize = 8;
const FORGOTTEN: usize = 9;

impl S3Fifo {
    #[inline(always)]
    fn put(&mut self, node: Node, state: u8) {
        self.state[node as usize] = state;
        self.lists.push_back((state >> 2) as usize - 1, node);
    }
    /// => just taken out of `list`
    #[inline(always)]
    fn took(&mut self, list: ListId, node: Node) {
        let (state, count) = if list == S { (TAKEN_FROM_S, S_TO_PARKED) } else { (TAKEN_FROM_M, M_TO_PARKED) };
        self.counts[count] += 1;
        self.state[node as usize] = state;
    }
    #[inline(always)]
    fn victim_of_main(&mut self) -> Option<Node> {
        loop {
            let node = self.lists.pop_front(M)?;
            let state = self.state[node as usize];
            if state & COUNT == 0 {
                self.took(M, node);
                return Some(node);
            }
            self.counts[M_TO_M] += 1;
            self.put(node, state - 1);
        }
    }
    #[inline(always)]
    fn victim_of_small(&mut self) -> Option<Node> {
        while let Some(node) = self.lists.pop_front(S) {
            if self.state[node as usize] & COUNT <= 1 {
                self.took(S, node);
                return Some(node);
            }
            self.counts[S_TO_M] += 1;
            self.put(node, IN_M);
            if self.lists.len(M) >= self.main {
                return self.victim_of_main();
            }
        }
        None
    }
}

impl Policy for S3Fifo {
    const NAME: &'static str = "s3-fifo";
    const ABOUT: &'static str = "a small queue sifts out what is used once (SOSP 2023)";
    const PARAMS: &'static [Param] = &[Param {
        key: "small",
        default: "0.1",
        values: Values::Number(0.01, 0.9),
        help: "length of the small queue, as a share of the memory; the paper's",
    }];
    const GHOSTS_PERMILLE: u32 = 1000;
    const TRANSITIONS: &'static [&'static str] = &[
        "new_to_small",
        "ghost_to_main",
        "small_to_main",
        "main_to_main",
        "small_to_parked",
        "main_to_parked",
        "parked_to_ghost",
        "parked_to_main",
        "main_evicted",
        "forgotten",
    ];
    const NODE_BYTES: usize = 9;

    fn new(args: &Args, setup: &Setup) -> Self {
        let nodes = setup.nodes as usize;
        let mut this = S3Fifo {
            lists: Lists::new(nodes),
            state: vec![OUT; nodes],
            args: *args,
            small: 0,
            main: 0,
            ghosts: setup.ghosts,
            counts: [0; 10],
        };
        this.resize(setup.memory);
        this
    }
    fn resize(&mut self, memory: u32) {
        self.small = self.args.share("small", memory);
        self.main = memory - self.small.min(memory);
    }
    #[inline(always)]
    fn reference(&mut self, node: Node) -> bool {
        let state = &mut self.state[node as usize];
        let listed = matches!(*state & !COUNT, IN_S | IN_M);
        *state += (listed && *state & COUNT < COUNT) as u8;
        listed
    }
    #[inline]
    fn prefetch(&self, node: Node) {
        prefetch_index(&self.state, node as usize);
        self.lists.prefetch(node);
    }
    #[inline(always)]
    fn admit<H: Ghosts>(&mut self, _: &mut H, node: Node, _: Arrival) {
        if self.state[node as usize] == IN_G {
            self.counts[G_TO_M] += 1;
            self.lists.remove(G, node);
            self.put(node, IN_M);
        } else {
            self.counts[NEW_TO_S] += 1;
            self.put(node, IN_S);
        }
    }
    #[inline(always)]
    fn victim(&mut self) -> Option<Node> {
        let from_small = if self.lists.len(S) >= self.small { self.victim_of_small() } else { None };
        from_small.or_else(|| self.victim_of_main()).or_else(|| self.victim_of_small())
    }
    fn take(&mut self, node: Node) {
        let list = if self.state[node as usize] & !COUNT == IN_S { S } else { M };
        self.lists.remove(list, node);
        self.took(list, node);
    }
    fn rescued(&mut self, node: Node) {
        self.counts[PARKED_TO_M] += 1;
        self.put(node, IN_M);
    }
    #[inline(always)]
    fn evicted<H: Ghosts>(&mut self, ghosts: &mut H, node: Node) {
        if self.state[node as usize] != TAKEN_FROM_S {
            self.counts[M_EVICTED] += 1;
            self.state[node as usize] = OUT;
            ghosts.forget(node);
            return;
        }
        self.counts[PARKED_TO_G] += 1;
        self.put(node, IN_G);
        while self.lists.len(G) > self.main.min(self.ghosts) {
            let Some(oldest) = self.lists.pop_front(G) else { break };
            self.counts[FORGOTTEN] += 1;
            self.state[oldest as usize] = OUT;
            ghosts.forget(oldest);
        }
    }
    fn arrived_taken(&mut self, node: Node) {
        self.state[node as usize] = TAKEN_FROM_S;
    }
    fn remove(&mut self, node: Node) {
        match self.state[node as usize] & !COUNT {
            IN_S => self.lists.remove(S, node),
            IN_M => self.lists.remove(M, node),
            _ => {}
        }
        self.state[node as usize] = OUT;
    }
    fn forget_ghost(&mut self, node: Node) {
        self.lists.remove(G, node);
        self.state[node as usize] = OUT;
    }
    fn worst_first(&self, each: &mut dyn FnMut(Node, bool)) {
        self.lists.iter(S).for_each(|node| each(node, false));
        self.lists.iter(M).for_each(|node| each(node, true));
    }
    fn inherit<H: Ghosts>(&mut self, _: &mut H, node: Node, hot: bool) {
        self.put(node, if hot { IN_M } else { IN_S });
    }
    fn transitions(&self) -> &[u64] {
        &self.counts
    }
}

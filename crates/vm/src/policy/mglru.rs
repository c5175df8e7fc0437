//! Multi-generational LRU: pages are sorted by generations, not one by one.
//!
//! Source: Yu Zhao's lru_gen in Linux 6.1 (2022), `Documentation/mm/multigen_lru.rst`.
//!
//! ```text
//!   oldest generation ... youngest generation        2 to 4 of them, each a queue
//!     victims, untouched    touched, new pages
//! ```
//!
//! A victim comes from the oldest generation; a page there that was touched goes to the youngest instead. An empty oldest
//! generation is given up. A new youngest one begins when only two are left, or when the youngest holds more than half of the
//! pages. A page that comes in by a fault goes to the youngest generation, and a page read ahead to the oldest. A page that comes
//! back after more evictions than there are pages of memory goes to the oldest but one: it was away for longer than all generations
//! last. The numbers of generations are the kernel's (MIN_NR_GENS, MAX_NR_GENS). Two things differ from the kernel. No page tables
//! are walked, so a touched page is found when it comes up, not by aging. And there are no tiers with their feedback, because there
//! are no file reads past the page tables here. Bad where `clock` is: first touches count as much as second ones, so a scan passes
//! through the youngest generation.

use super::{Args, Arrival, Ghosts, Node, Policy, Setup};
use crate::page_queue::Lists;
use alloc::vec;
use alloc::vec::Vec;
use prefetch_index::prefetch_index;

/// See the module.
#[derive(Clone, Debug)]
pub struct MgLru {
    lists: Lists<GENERATIONS>,
    /// 0, or the number of the generation's list plus one; and [`USED`].
    state: Vec<u8>,
    oldest: u64,
    youngest: u64,
    memory: u32,
    counts: [u64; 7],
}

const GENERATIONS: usize = 4;
const GENERATIONS_LEAST: u64 = 2;
const USED: u8 = 8;

const NEW_TO_YOUNGEST: usize = 0;
const NEW_TO_OLDER: usize = 1;
const OLDEST_TO_YOUNGEST: usize = 2;
const OLDEST_TO_PARKED: usize = 3;
const PARKED_TO_YOUNGEST: usize = 4;
const GENERATIONS_BEGUN: usize = 5;
const GENERATIONS_ENDED: usize = 6;

impl MgLru {
    #[inline(always)]
    fn put(&mut self, node: Node, generation: u64) {
        let list = generation as usize % GENERATIONS;
        self.state[node as usize] = list as u8 + 1;
        self.lists.push_back(list, node);
    }
    #[inline]
    fn age(&mut self, listed: u32) {
        let generations = self.youngest - self.oldest + 1;
        let young = self.lists.len(self.youngest as usize % GENERATIONS);
        if generations <= GENERATIONS_LEAST || (generations < GENERATIONS as u64 && young > listed / 2) {
            self.counts[GENERATIONS_BEGUN] += 1;
            self.youngest += 1;
        }
    }
    #[inline]
    fn listed(&self) -> u32 {
        (0..GENERATIONS).map(|list| self.lists.len(list)).sum()
    }
}

impl Policy for MgLru {
    const NAME: &'static str = "mglru";
    const ABOUT: &'static str = "generations of pages, a touched one of the oldest goes to the youngest (Linux 6.1)";
    const TRANSITIONS: &'static [&'static str] = &[
        "new_to_youngest",
        "new_to_older",
        "oldest_to_youngest",
        "oldest_to_parked",
        "parked_to_youngest",
        "generations_begun",
        "generations_ended",
    ];
    const NODE_BYTES: usize = 9;
    const WANTS_DISTANCE: bool = true;

    fn new(_: &Args, setup: &Setup) -> Self {
        let nodes = setup.nodes as usize;
        MgLru { lists: Lists::new(nodes), state: vec![0; nodes], oldest: 0, youngest: 1, memory: setup.memory, counts: [0; 7] }
    }
    fn resize(&mut self, memory: u32) {
        self.memory = memory;
    }
    #[inline(always)]
    fn reference(&mut self, node: Node) -> bool {
        let state = &mut self.state[node as usize];
        let listed = *state != 0;
        *state |= USED * listed as u8;
        listed
    }
    #[inline]
    fn prefetch(&self, node: Node) {
        prefetch_index(&self.state, node as usize);
        self.lists.prefetch(node);
    }
    #[inline(always)]
    fn admit<G: Ghosts>(&mut self, _: &mut G, node: Node, arrival: Arrival) {
        let generation = if arrival.why.is_ahead() {
            self.oldest
        } else if arrival.distance.is_some_and(|evictions| evictions > self.memory) {
            self.oldest + 1
        } else {
            self.youngest
        };
        self.counts[if generation == self.youngest { NEW_TO_YOUNGEST } else { NEW_TO_OLDER }] += 1;
        self.put(node, generation);
    }
    #[inline(always)]
    fn victim(&mut self) -> Option<Node> {
        let listed = self.listed();
        if listed == 0 {
            return None;
        }
        loop {
            self.age(listed);
            let list = self.oldest as usize % GENERATIONS;
            let Some(node) = self.lists.front(list) else {
                self.counts[GENERATIONS_ENDED] += 1;
                self.oldest += 1; // there is a younger one: `age` has made sure of that
                continue;
            };
            if self.state[node as usize] & USED == 0 {
                self.take(node);
                return Some(node);
            }
            self.counts[OLDEST_TO_YOUNGEST] += 1;
            self.lists.remove(list, node);
            self.put(node, self.youngest);
        }
    }
    #[inline(always)]
    fn take(&mut self, node: Node) {
        self.counts[OLDEST_TO_PARKED] += 1;
        self.remove(node);
    }
    fn rescued(&mut self, node: Node) {
        self.counts[PARKED_TO_YOUNGEST] += 1;
        self.put(node, self.youngest);
    }
    fn remove(&mut self, node: Node) {
        let state = core::mem::take(&mut self.state[node as usize]) & !USED;
        if let Some(list) = state.checked_sub(1) {
            self.lists.remove(list as usize, node);
        }
    }
    fn worst_first(&self, each: &mut dyn FnMut(Node, bool)) {
        for generation in self.oldest..=self.youngest {
            let hot = generation == self.youngest;
            self.lists.iter(generation as usize % GENERATIONS).for_each(|node| each(node, hot));
        }
    }
    fn inherit<G: Ghosts>(&mut self, _: &mut G, node: Node, hot: bool) {
        self.put(node, if hot { self.youngest } else { self.oldest });
    }
    fn transitions(&self) -> &[u64] {
        &self.counts
    }
}

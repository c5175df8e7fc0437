//! LRU-2: evicts the page whose last reference but one is longest ago.
//!
//! Source: O'Neil, O'Neil and Weikum, "The LRU-K page replacement algorithm for database disk buffering", SIGMOD 1993, with K = 2.
//! A page that was referenced only once is infinitely far away; among those the least recently used one goes. References within
//! `crp` of the page's last one are correlated: they count as one with it, and a page is not evicted that soon after one (unless
//! all are).
//!
//! `history=all` remembers the times of pages that are not in memory for ever, as the paper's theory has it. (The paper's practice:
//! 200 s. Live: for as many of the last evicted pages as there are pages of memory.) `history=resident` forgets them. `crp` 0
//! references is the choice of most comparisons. Bad where the distant past misleads: a page that was used often long ago keeps its
//! place until younger ones have two references, too.
//!
//! It is not O(1): victims come from a heap, O(log n) each. A reference only records the time; the heap learns of it when the page
//! comes up as a victim. (Times only rise, so the key on top is never too high.) Time is counted in references; live, in rescues
//! and arrivals.

use super::{Args, Arrival, Ghosts, Node, Param, Policy, Setup, Values};
use crate::page_queue::{ListId, Lists};
use alloc::vec;
use alloc::vec::Vec;
use prefetch_index::prefetch_index;

/// See the module.
#[derive(Clone, Debug)]
pub struct LruTwo {
    pages: Vec<Page>,
    /// Listed pages, a binary heap by key: the page with the least key is the next victim.
    heap: Vec<(u64, Node)>,
    /// Ghosts by the time of their eviction.
    ghosts: Lists<1>,
    ghosts_max: u32,
    remembers: bool,
    crp: u64,
    now: u64,
    /// Pages that may not go yet, during the search for a victim.
    aside: Vec<(u64, Node)>,
    counts: [u64; 5],
}

/// Times of references; 0: none.
#[derive(Clone, Copy, Default, Debug)]
struct Page {
    /// The last uncorrelated reference, and the one before, which is moved on by the length of its correlated period.
    history: [u64; 2],
    /// The last reference.
    last: u64,
    /// Place in the heap plus one; 0: not listed.
    place: u32,
}

const GHOSTS: ListId = 0;
/// Set in the key of a page that was referenced twice.
const TWICE: u64 = 1 << 63;

const NEW_TO_HEAP: usize = 0;
const GHOST_TO_HEAP: usize = 1;
const HEAP_TO_PARKED: usize = 2;
const PARKED_TO_HEAP: usize = 3;
const FORGOTTEN: usize = 4;

impl LruTwo {
    fn key(&self, node: Node) -> u64 {
        match self.pages[node as usize].history {
            [one, 0] => one,
            [_, two] => TWICE | two,
        }
    }
    #[inline]
    fn use_page(&mut self, node: Node) {
        self.now += 1;
        let page = &mut self.pages[node as usize];
        if page.history[0] == 0 || self.now - page.last > self.crp {
            let [one, _] = page.history;
            let correlated = page.last - one;
            page.history = [self.now, if one == 0 { 0 } else { one + correlated }];
        }
        page.last = self.now;
    }
    fn set(&mut self, place: usize, entry: (u64, Node)) {
        self.heap[place] = entry;
        self.pages[entry.1 as usize].place = place as u32 + 1;
    }
    fn up(&mut self, mut place: usize) {
        let entry = self.heap[place];
        while place > 0 && self.heap[(place - 1) / 2].0 > entry.0 {
            let parent = self.heap[(place - 1) / 2];
            self.set(place, parent);
            place = (place - 1) / 2;
        }
        self.set(place, entry);
    }
    fn down(&mut self, mut place: usize) {
        let entry = self.heap[place];
        loop {
            let mut child = 2 * place + 1;
            if child + 1 < self.heap.len() && self.heap[child + 1].0 < self.heap[child].0 {
                child += 1;
            }
            if child >= self.heap.len() || self.heap[child].0 >= entry.0 {
                break;
            }
            let lesser = self.heap[child];
            self.set(place, lesser);
            place = child;
        }
        self.set(place, entry);
    }
    fn push(&mut self, entry: (u64, Node)) {
        self.heap.push(entry); // within the capacity, because each node is in it at most once
        self.up(self.heap.len() - 1);
    }
    /// Takes a listed page out of the heap.
    fn unlist(&mut self, node: Node) {
        let place = core::mem::take(&mut self.pages[node as usize].place) as usize - 1;
        let last = self.heap.pop().expect("it is in there");
        if last.1 != node {
            self.set(place, last);
            self.up(place);
            let place = self.pages[last.1 as usize].place as usize - 1;
            self.down(place);
        }
    }
    /// The listed page with the least key, after keys on top are brought up to date.
    fn least(&mut self) -> Option<(u64, Node)> {
        loop {
            let (known, node) = *self.heap.first()?;
            let key = self.key(node);
            if key == known {
                return Some((key, node));
            }
            self.heap[0].0 = key;
            self.down(0);
        }
    }
}

impl Policy for LruTwo {
    const NAME: &'static str = "lru-2";
    const ABOUT: &'static str = "the page whose last use but one is longest ago goes (SIGMOD 1993)";
    const PARAMS: &'static [Param] = &[
        Param {
            key: "history",
            default: "all",
            values: Values::Words(&["all", "resident"]),
            help: "whose times are remembered: of all pages, or of those in memory only; all: the paper's theory",
        },
        Param {
            key: "crp",
            default: "0",
            values: Values::Whole(0, 1 << 32),
            help: "correlated reference period, in references: what follows so closely is the same use; 0: as most comparisons",
        },
    ];
    const GHOSTS_PERMILLE: u32 = 1000;
    const TRANSITIONS: &'static [&'static str] = &["new_to_heap", "ghost_to_heap", "heap_to_parked", "parked_to_heap", "forgotten"];
    const NODE_BYTES: usize = size_of::<Page>() + size_of::<(u64, Node)>() + 8;

    fn new(args: &Args, setup: &Setup) -> Self {
        let nodes = setup.nodes as usize;
        let crp = args.whole("crp");
        LruTwo {
            pages: vec![Page::default(); nodes],
            heap: Vec::with_capacity(nodes),
            ghosts: Lists::new(nodes),
            ghosts_max: setup.ghosts,
            remembers: args.whole("history") == 0,
            crp,
            now: 0,
            aside: Vec::with_capacity((crp as usize).min(nodes)),
            counts: [0; 5],
        }
    }
    #[inline]
    fn reference(&mut self, node: Node) -> bool {
        let listed = self.pages[node as usize].place != 0;
        if listed {
            self.use_page(node);
        }
        listed
    }
    #[inline]
    fn prefetch(&self, node: Node) {
        prefetch_index(&self.pages, node as usize);
    }
    fn expect(&mut self, node: Node) {
        if self.ghosts.listed(node) {
            self.counts[GHOST_TO_HEAP] += 1;
            self.ghosts.remove(GHOSTS, node);
        } else {
            self.counts[NEW_TO_HEAP] += 1;
        }
    }
    fn admit<G: Ghosts>(&mut self, _: &mut G, node: Node, _: Arrival) {
        self.use_page(node);
        let key = self.key(node);
        self.push((key, node));
    }
    fn victim(&mut self) -> Option<Node> {
        let mut found = None;
        while let Some((key, node)) = self.least() {
            let page = &self.pages[node as usize];
            // the reference that needs the victim comes next
            let correlated = self.crp > 0 && self.now + 1 - page.last <= self.crp;
            if !correlated || self.aside.len() == self.aside.capacity() {
                found = Some(node);
                break;
            }
            self.unlist(node);
            self.aside.push((key, node));
        }
        found = found.or(self.aside.first().map(|(_, node)| *node));
        while let Some(entry) = self.aside.pop() {
            self.push(entry);
        }
        let node = found?;
        self.take(node);
        Some(node)
    }
    fn take(&mut self, node: Node) {
        self.counts[HEAP_TO_PARKED] += 1;
        self.unlist(node);
    }
    fn rescued(&mut self, node: Node) {
        self.counts[PARKED_TO_HEAP] += 1;
        self.use_page(node);
        let key = self.key(node);
        self.push((key, node));
    }
    fn evicted<G: Ghosts>(&mut self, ghosts: &mut G, node: Node) {
        if !self.remembers {
            self.pages[node as usize] = Page::default();
            ghosts.forget(node);
            return;
        }
        self.ghosts.push_back(GHOSTS, node);
        if self.ghosts.len(GHOSTS) > self.ghosts_max
            && let Some(oldest) = self.ghosts.pop_front(GHOSTS)
        {
            self.counts[FORGOTTEN] += 1;
            self.pages[oldest as usize] = Page::default();
            ghosts.forget(oldest);
        }
    }
    fn remove(&mut self, node: Node) {
        if self.pages[node as usize].place != 0 {
            self.unlist(node);
        }
        self.pages[node as usize] = Page::default();
    }
    fn forget_ghost(&mut self, node: Node) {
        self.ghosts.remove(GHOSTS, node);
        self.pages[node as usize] = Page::default();
    }
    /// In the order of the heap, which is roughly worst first.
    fn worst_first(&self, each: &mut dyn FnMut(Node, bool)) {
        self.heap.iter().for_each(|(_, node)| each(*node, self.key(*node) & TWICE != 0));
    }
    fn inherit<G: Ghosts>(&mut self, _: &mut G, node: Node, hot: bool) {
        self.use_page(node);
        if hot {
            self.pages[node as usize].history[1] = self.now;
        }
        let key = self.key(node);
        self.push((key, node));
    }
    fn transitions(&self) -> &[u64] {
        &self.counts
    }
}

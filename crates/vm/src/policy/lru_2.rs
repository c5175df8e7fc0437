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
//!
//! ```text
//!            comes up as a victim, but is correlated
//!   ready ------------------------------------------> waiting      two heaps by key; a listed page is in one of them
//!         <------------------------------------------
//!                    its period is over
//!
//!   recent: the listed pages that were referenced in the last period, by their last reference, whichever heap they are in
//! ```
//!
//! A page waits at most once for each reference to it, so a victim stays O(log n), amortised, however long the period is. If
//! nothing is ready, the least of those that wait goes. At most `crp` pages wait: each reference in the period is to one page.

use super::{Args, Arrival, Ghosts, Node, Param, Policy, Setup, Values};
use crate::page_queue::{ListId, Lists};
use alloc::vec;
use alloc::vec::Vec;
use prefetch_index::prefetch_index;

/// See the module.
#[derive(Clone, Debug)]
pub struct LruTwo {
    pages: Vec<Page>,
    /// Listed pages, two binary heaps by key: the page with the least key that is ready is the next victim.
    heaps: [Vec<(u64, Node)>; 2],
    /// Ghosts by the time of their eviction; with a period, also recent pages by their last reference.
    lists: Lists<2>,
    ghosts_max: u32,
    remembers: bool,
    crp: u64,
    now: u64,
    counts: [u64; 5],
    /// Pages that were put into a heap: how much work it was.
    #[cfg(test)]
    pushes: u64,
}

/// Times of references; 0: none.
#[derive(Clone, Copy, Default, Debug)]
struct Page {
    /// The last uncorrelated reference, and the one before, which is moved on by the length of its correlated period.
    history: [u64; 2],
    /// The last reference.
    last: u64,
    /// Place in its heap plus one; 0: not listed.
    place: u32,
    /// Which heap it is in.
    heap: u8,
}

const READY: u8 = 0;
const WAITING: u8 = 1;

const GHOSTS: ListId = 0;
const RECENT: ListId = 1;
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
    /// Makes a listed page the most recent. => just used
    #[inline]
    fn make_recent(&mut self, node: Node) {
        if self.crp == 0 {
            return;
        }
        if self.lists.listed(node) {
            self.lists.move_to_back(RECENT, node);
        } else {
            self.lists.push_back(RECENT, node);
        }
    }
    /// Lists a page that was just used.
    fn list(&mut self, node: Node) {
        self.push(READY, (self.key(node), node));
        self.make_recent(node);
    }
    fn set(&mut self, heap: u8, place: usize, entry: (u64, Node)) {
        self.heaps[heap as usize][place] = entry;
        self.pages[entry.1 as usize].place = place as u32 + 1;
    }
    fn up(&mut self, heap: u8, mut place: usize) {
        let entry = self.heaps[heap as usize][place];
        while place > 0 && self.heaps[heap as usize][(place - 1) / 2].0 > entry.0 {
            let parent = self.heaps[heap as usize][(place - 1) / 2];
            self.set(heap, place, parent);
            place = (place - 1) / 2;
        }
        self.set(heap, place, entry);
    }
    fn down(&mut self, heap: u8, mut place: usize) {
        let entries = &self.heaps[heap as usize];
        let (entry, len) = (entries[place], entries.len());
        loop {
            let entries = &self.heaps[heap as usize];
            let mut child = 2 * place + 1;
            if child + 1 < len && entries[child + 1].0 < entries[child].0 {
                child += 1;
            }
            if child >= len || entries[child].0 >= entry.0 {
                break;
            }
            let lesser = entries[child];
            self.set(heap, place, lesser);
            place = child;
        }
        self.set(heap, place, entry);
    }
    fn push(&mut self, heap: u8, entry: (u64, Node)) {
        #[cfg(test)]
        {
            self.pushes += 1;
        }
        // Within the capacity: each node is in one heap at most once, and at most `crp` pages wait.
        self.heaps[heap as usize].push(entry);
        self.pages[entry.1 as usize].heap = heap;
        self.up(heap, self.heaps[heap as usize].len() - 1);
    }
    /// Takes a listed page out of its heap.
    fn unheap(&mut self, node: Node) {
        let page = &mut self.pages[node as usize];
        let (heap, place) = (page.heap, core::mem::take(&mut page.place) as usize - 1);
        let last = self.heaps[heap as usize].pop().expect("it is in there");
        if last.1 != node {
            self.set(heap, place, last);
            self.up(heap, place);
            let place = self.pages[last.1 as usize].place as usize - 1;
            self.down(heap, place);
        }
    }
    fn unlist(&mut self, node: Node) {
        self.unheap(node);
        // a listed page is no ghost
        if self.lists.listed(node) {
            self.lists.remove(RECENT, node);
        }
    }
    /// Moves a listed page to the other heap.
    fn change(&mut self, node: Node, heap: u8) {
        self.unheap(node);
        self.push(heap, (self.key(node), node));
    }
    /// The page of a heap with the least key, after keys on top are brought up to date.
    fn least(&mut self, heap: u8) -> Option<Node> {
        loop {
            let (known, node) = *self.heaps[heap as usize].first()?;
            let key = self.key(node);
            if key == known {
                return Some(node);
            }
            self.heaps[heap as usize][0].0 = key;
            self.down(heap, 0);
        }
    }
    /// Pages whose correlated period is over are ready.
    fn end_periods(&mut self) {
        while let Some(node) = self.lists.front(RECENT) {
            // the reference that needs the victim comes next
            if self.now + 1 - self.pages[node as usize].last <= self.crp {
                break;
            }
            self.lists.pop_front(RECENT);
            if self.pages[node as usize].heap == WAITING {
                self.change(node, READY);
            }
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
            heaps: [Vec::with_capacity(nodes), Vec::with_capacity((crp as usize).min(nodes))],
            lists: Lists::new(nodes),
            ghosts_max: setup.ghosts,
            remembers: args.whole("history") == 0,
            crp,
            now: 0,
            counts: [0; 5],
            #[cfg(test)]
            pushes: 0,
        }
    }
    #[inline]
    fn reference(&mut self, node: Node) -> bool {
        let listed = self.pages[node as usize].place != 0;
        if listed {
            self.use_page(node);
            self.make_recent(node);
        }
        listed
    }
    #[inline]
    fn prefetch(&self, node: Node) {
        prefetch_index(&self.pages, node as usize);
        if self.crp > 0 {
            self.lists.prefetch(node);
        }
    }
    fn expect(&mut self, node: Node) {
        if self.lists.listed(node) {
            self.counts[GHOST_TO_HEAP] += 1;
            self.lists.remove(GHOSTS, node);
        } else {
            self.counts[NEW_TO_HEAP] += 1;
        }
    }
    fn admit<G: Ghosts>(&mut self, _: &mut G, node: Node, _: Arrival) {
        self.use_page(node);
        self.list(node);
    }
    fn victim(&mut self) -> Option<Node> {
        self.end_periods();
        let node = loop {
            match self.least(READY) {
                Some(node) if self.crp > 0 && self.lists.listed(node) => self.change(node, WAITING),
                Some(node) => break node,
                None => break self.least(WAITING)?,
            }
        };
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
        self.list(node);
    }
    fn evicted<G: Ghosts>(&mut self, ghosts: &mut G, node: Node) {
        if !self.remembers {
            self.pages[node as usize] = Page::default();
            ghosts.forget(node);
            return;
        }
        self.lists.push_back(GHOSTS, node);
        if self.lists.len(GHOSTS) > self.ghosts_max
            && let Some(oldest) = self.lists.pop_front(GHOSTS)
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
        self.lists.remove(GHOSTS, node);
        self.pages[node as usize] = Page::default();
    }
    /// In the order of the heaps, which is roughly worst first.
    fn worst_first(&self, each: &mut dyn FnMut(Node, bool)) {
        self.heaps.iter().flatten().for_each(|(_, node)| each(*node, self.key(*node) & TWICE != 0));
    }
    fn inherit<G: Ghosts>(&mut self, _: &mut G, node: Node, hot: bool) {
        self.use_page(node);
        if hot {
            self.pages[node as usize].history[1] = self.now;
        }
        self.list(node);
    }
    fn transitions(&self) -> &[u64] {
        &self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Admit, See, Spec};
    use super::*;
    use proptest::prelude::*;

    struct Dense;

    impl Ghosts for Dense {
        fn forget(&mut self, _: Node) {}
    }

    const NEW: Arrival = Arrival { why: Admit::FirstTouch, distance: None };

    fn make(spec: &str, nodes: u32) -> LruTwo {
        let spec: Spec = spec.parse().expect("a policy");
        LruTwo::new(&spec.args(), &Setup { memory: nodes, nodes, ghosts: u32::MAX, see: See::All })
    }

    /// The definition: all listed pages are looked at for each victim.
    #[derive(Default)]
    struct Dull {
        crp: u64,
        now: u64,
        /// History and last reference of each page that was ever used, and whether it is listed.
        pages: Vec<([u64; 2], u64, bool)>,
    }

    impl Dull {
        fn use_page(&mut self, node: Node) {
            self.now += 1;
            let (history, last, listed) = &mut self.pages[node as usize];
            if history[0] == 0 {
                *history = [self.now, 0];
            } else if self.now - *last > self.crp {
                *history = [self.now, *last];
            }
            (*last, *listed) = (self.now, true);
        }
        fn victim(&mut self) -> Option<Node> {
            let listed = || (0..).zip(&self.pages).filter(|(_, page)| page.2);
            let key = |(_, (history, ..)): &(Node, &([u64; 2], u64, bool))| match *history {
                [one, 0] => (false, one),
                [_, two] => (true, two),
            };
            let ready = listed().filter(|(_, page)| self.crp == 0 || self.now + 1 - page.1 > self.crp).min_by_key(key);
            let node = ready.or(listed().min_by_key(key))?.0;
            self.pages[node as usize].2 = false;
            Some(node)
        }
    }

    proptest! {
        #[test]
        fn as_the_definition(
            crp in prop_oneof![0..4u64, 0..40u64, Just(1u64 << 32)],
            resident in any::<bool>(),
            ops in proptest::collection::vec((0u8..10, 0u32..24), 0..600),
        ) {
            let mut policy = make(&format!("lru-2:crp={crp},history={}", if resident { "resident" } else { "all" }), 24);
            let mut dull = Dull { crp, now: 0, pages: vec![Default::default(); 24] };
            let mut taken = Vec::new();
            for (op, node) in ops {
                let listed = dull.pages[node as usize].2;
                match op {
                    0..=4 if taken.contains(&node) => {
                        policy.rescued(node);
                        dull.use_page(node);
                        taken.retain(|other| *other != node);
                    }
                    0..=4 => {
                        prop_assert_eq!(policy.reference(node), listed);
                        if !listed {
                            policy.expect(node);
                            policy.admit(&mut Dense, node, NEW);
                        }
                        dull.use_page(node);
                    }
                    5..=6 => {
                        let victim = policy.victim();
                        prop_assert_eq!(victim, dull.victim());
                        taken.extend(victim);
                    }
                    7 => if let Some(node) = taken.pop() {
                        policy.evicted(&mut Dense, node);
                        if resident {
                            dull.pages[node as usize] = Default::default();
                        }
                    }
                    8 if listed => {
                        policy.take(node);
                        dull.pages[node as usize].2 = false;
                        taken.push(node);
                    }
                    9 if listed || taken.contains(&node) => {
                        policy.remove(node);
                        dull.pages[node as usize] = Default::default();
                        taken.retain(|other| *other != node);
                    }
                    _ => {}
                }
                prop_assert!(policy.heaps[WAITING as usize].len() as u64 <= crp, "more wait than there is room for");
            }
        }
    }

    /// With a period as long as the memory, each search for a victim took all pages out of the heap and put them back. A program
    /// with 1 GiB of memory stood still, and the lab did not end.
    #[test]
    fn a_long_period_costs_a_victim_no_more() {
        const MEMORY: u32 = 1000;
        for crp in [1, 500, 999, 2000, 1u64 << 32] {
            let mut policy = make(&format!("lru-2:crp={crp}"), 5 * MEMORY);
            for n in 0..50 * MEMORY {
                let page = n % (5 * MEMORY);
                if policy.reference(page) {
                    continue;
                }
                policy.expect(page);
                if n >= MEMORY {
                    let victim = policy.victim().expect("memory is full");
                    policy.evicted(&mut Dense, victim);
                }
                policy.admit(&mut Dense, page, NEW);
            }
            let most = 3 * u64::from(50 * MEMORY);
            assert!(policy.pushes <= most, "crp={crp}: {} pushes for {} references", policy.pushes, 50 * MEMORY);
        }
    }
}

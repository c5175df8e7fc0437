//! Cost: evicts the page whose next reference and next write are expected furthest away.
//!
//! Source: Martin Devera in the use-once thread (linux-kernel, 25 July 2001): compute a cost for each page from the expected times
//! of its next reference and its next dirtying, by averages that forget exponentially (EWMA); keep the pages in buckets by cost,
//! and recompute it now and then; evict from the bucket at the end. His `c = (Tw - t)^2 + (Tr - t)^2` is the square of a distance
//! in time. Here the pages that are furthest away are evicted, and there are 32 buckets by the distance's logarithm.
//!
//! - The average interval between references says when the next one is expected (`alpha` of the newest interval, the rest of the
//!   old average). A page that is overdue gets further away again. A page that was referenced once is expected after as many
//!   references as there are pages of memory (a guess). The same goes for writes; a page that was never written counts as if each
//!   reference wrote it.
//! - A page's bucket is recomputed when the page comes up as a victim, and when enough time has passed to take it to the next
//!   bucket: a sweep looks at a few old entries for each victim. O(1) per reference, O(buckets) per victim.
//!
//! `alpha` 0.5 is a guess. It is bad at references without a rhythm: one long gap makes a page look cold. It is bad at pages used
//! in bursts, which look hot. Time is counted in references; live, in rescues and arrivals.

use super::{Args, Arrival, Ghosts, Node, Param, Policy, Setup, Values};
use crate::page_queue::Lists;
use alloc::vec;
use alloc::vec::Vec;
use prefetch_index::prefetch_index;

/// See the module.
#[derive(Clone, Debug)]
pub struct Cost {
    pages: Vec<Page>,
    lists: Lists<BUCKETS>,
    alpha: f32,
    memory: u32,
    now: u32,
    /// A bit for each bucket that holds pages.
    filled: u32,
    /// The bucket that the sweep looked at last.
    sweep: usize,
    counts: [u64; 5],
}

const BUCKETS: usize = 32;
/// Entries looked at for each victim, besides the victim's own.
const SWEPT: usize = 4;

/// Times are counted in references and wrap; only differences are used.
#[derive(Clone, Copy, Default, Debug)]
struct Page {
    /// Bucket plus one; 0: not listed.
    bucket: u8,
    written: bool,
    /// When it was put into the bucket.
    since: u32,
    referenced: u32,
    reference_interval: f32,
    dirtied: u32,
    dirty_interval: f32,
}

const NEW_TO_BUCKET: usize = 0;
const BUCKET_TO_FURTHER: usize = 1;
const BUCKET_TO_NEARER: usize = 2;
const BUCKET_TO_PARKED: usize = 3;
const PARKED_TO_BUCKET: usize = 4;

impl Cost {
    /// Distance in time, in references, to the expected next event.
    #[inline]
    fn distance(&self, last: u32, interval: f32) -> f32 {
        (interval - self.now.wrapping_sub(last) as f32).abs()
    }
    #[inline]
    fn bucket(&self, node: Node) -> usize {
        let page = &self.pages[node as usize];
        let r = self.distance(page.referenced, page.reference_interval);
        let w = if page.written { self.distance(page.dirtied, page.dirty_interval) } else { r };
        // the logarithm of the square root, rounded down: half of the exponent
        let squares = (r * r + w * w).max(1.0);
        let exponent = (squares.to_bits() >> (f32::MANTISSA_DIGITS - 1)) as usize - (f32::MAX_EXP as usize - 1);
        (exponent / 2).min(BUCKETS - 1)
    }
    #[inline]
    fn put(&mut self, node: Node, bucket: usize) {
        let page = &mut self.pages[node as usize];
        page.bucket = bucket as u8 + 1;
        page.since = self.now;
        self.lists.push_back(bucket, node);
        self.filled |= 1 << bucket;
    }
    #[inline]
    fn unlist(&mut self, node: Node, bucket: usize) {
        self.lists.remove(bucket, node);
        self.filled &= !((self.lists.is_empty(bucket) as u32) << bucket);
    }
    /// Moves a listed page to its present bucket. Returns whether it was there already.
    #[inline]
    fn look(&mut self, node: Node) -> bool {
        let was = self.pages[node as usize].bucket as usize - 1;
        let bucket = self.bucket(node);
        self.unlist(node, was);
        self.put(node, bucket);
        if bucket != was {
            self.counts[if bucket > was { BUCKET_TO_FURTHER } else { BUCKET_TO_NEARER }] += 1;
        }
        bucket == was
    }
    #[inline]
    fn average(alpha: f32, old: f32, new: u32) -> f32 {
        alpha * new as f32 + (1.0 - alpha) * old
    }
    #[inline]
    fn use_page(&mut self, node: Node) {
        self.now = self.now.wrapping_add(1);
        let (now, alpha) = (self.now, self.alpha);
        let page = &mut self.pages[node as usize];
        page.reference_interval = Self::average(alpha, page.reference_interval, now.wrapping_sub(page.referenced));
        page.referenced = now;
    }
    #[inline]
    fn begin(&mut self, node: Node) {
        self.now = self.now.wrapping_add(1);
        self.pages[node as usize] = Page { referenced: self.now, reference_interval: self.memory as f32, ..Page::default() };
        let bucket = self.bucket(node);
        self.put(node, bucket);
    }
}

impl Policy for Cost {
    const NAME: &'static str = "cost";
    const ABOUT: &'static str =
        "the page expected to be used and written furthest away goes, by averages (Linux thread, July 2001)";
    const PARAMS: &'static [Param] = &[Param {
        key: "alpha",
        default: "0.5",
        values: Values::Number(0.01, 1.0),
        help: "weight of the newest interval in the average; a guess",
    }];
    const TRANSITIONS: &'static [&'static str] =
        &["new_to_bucket", "bucket_to_further", "bucket_to_nearer", "bucket_to_parked", "parked_to_bucket"];
    const NODE_BYTES: usize = size_of::<Page>() + 8;

    fn new(args: &Args, setup: &Setup) -> Self {
        let nodes = setup.nodes as usize;
        Cost {
            pages: vec![Page::default(); nodes],
            lists: Lists::new(nodes),
            alpha: args.number("alpha") as f32,
            memory: setup.memory,
            now: 0,
            filled: 0,
            sweep: 0,
            counts: [0; 5],
        }
    }
    fn resize(&mut self, memory: u32) {
        self.memory = memory;
    }
    #[inline]
    fn reference(&mut self, node: Node) -> bool {
        let listed = self.pages[node as usize].bucket != 0;
        if listed {
            self.use_page(node);
        }
        listed
    }
    #[inline]
    fn prefetch(&self, node: Node) {
        prefetch_index(&self.pages, node as usize);
        self.lists.prefetch(node);
    }
    #[inline]
    fn admit<G: Ghosts>(&mut self, _: &mut G, node: Node, _: Arrival) {
        self.counts[NEW_TO_BUCKET] += 1;
        self.begin(node);
    }
    #[inline]
    fn victim(&mut self) -> Option<Node> {
        for _ in 0..SWEPT {
            self.sweep = (self.sweep + 1) % BUCKETS;
            if let Some(node) = self.lists.front(self.sweep)
                && self.now.wrapping_sub(self.pages[node as usize].since) >> self.sweep != 0
            {
                self.look(node);
            }
        }
        // a page that has come nearer meanwhile is moved, and the next one is tried; a bounded number of times, so that a victim
        // costs O(1)
        let mut turns = BUCKETS;
        loop {
            let furthest = self.filled.checked_ilog2()? as usize;
            let node = self.lists.front(furthest)?;
            turns -= 1;
            if self.bucket(node) >= furthest || turns == 0 {
                self.take(node);
                return Some(node);
            }
            self.look(node);
        }
    }
    #[inline]
    fn take(&mut self, node: Node) {
        self.counts[BUCKET_TO_PARKED] += 1;
        let page = &mut self.pages[node as usize];
        let bucket = core::mem::take(&mut page.bucket) as usize - 1;
        self.unlist(node, bucket);
    }
    fn rescued(&mut self, node: Node) {
        self.counts[PARKED_TO_BUCKET] += 1;
        self.use_page(node);
        let bucket = self.bucket(node);
        self.put(node, bucket);
    }
    fn arrived_taken(&mut self, node: Node) {
        self.pages[node as usize] = Page { referenced: self.now, reference_interval: self.memory as f32, ..Page::default() };
    }
    #[inline]
    fn remove(&mut self, node: Node) {
        if self.pages[node as usize].bucket != 0 {
            self.take(node);
        }
        self.pages[node as usize] = Page::default();
    }
    fn dirtied(&mut self, node: Node) {
        let (now, alpha) = (self.now, self.alpha);
        let page = &mut self.pages[node as usize];
        let interval = now.wrapping_sub(page.dirtied);
        page.dirty_interval =
            if page.written { Self::average(alpha, page.dirty_interval, interval) } else { page.reference_interval };
        page.written = true;
        page.dirtied = now;
    }
    fn worst_first(&self, each: &mut dyn FnMut(Node, bool)) {
        for bucket in (0..BUCKETS).rev() {
            let hot = (1u64 << bucket) < self.memory as u64 / 2;
            self.lists.iter(bucket).for_each(|node| each(node, hot));
        }
    }
    fn inherit<G: Ghosts>(&mut self, _: &mut G, node: Node, hot: bool) {
        self.begin(node);
        if hot {
            self.pages[node as usize].reference_interval /= 4.0;
            self.look(node);
        }
    }
    fn transitions(&self) -> &[u64] {
        &self.counts
    }
}

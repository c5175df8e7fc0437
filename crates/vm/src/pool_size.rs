//! How much of the budget compressed memory should take.
//!
//! A frame that compressed memory takes holds more than one page, but not mapped. So some faults come that would not have come, and
//! others are served from compressed memory that would have read a device. Both are counted at no cost, because each page-in tells
//! how many evictions ago its page went out, and so how much more memory would have kept it:
//!
//! ```text
//!   used just now                                                    used long ago
//!   | in memory: the budget less the pool | pool: its frames x ratio |  on devices
//!                                         ^ a page-in unpacks        ^ a page-in reads
//! ```
//!
//! From these counts, and from what an unpacking and a read take here, follows the time that page-ins would take with a larger
//! or smaller pool ([`PoolSize::judge`]). The pool starts at nothing and moves towards the best size, a quarter of the way at a
//! time. One that turned out to be a mistake is not tried again soon. Pages that came along with others (read in order, pointed to)
//! do not go through the pool, because a device brings many of them at a time. To them a larger pool is only less memory.
//!
//! Source: Wilson, Kaplan, Smaragdakis, "The case for compressed caching in virtual memory systems", USENIX 1999, section 4 (cost
//! and benefit by recency). There every reference is counted; here only page-ins are, so what lies just inside memory is taken to
//! be as dense as what lies just outside.

use alloc::vec;
use alloc::vec::Vec;

/// Counts and sizes are in parts of the budget, so many of which are all of it.
const PARTS: usize = 256;
/// Sizes are multiples of this.
const STEP: usize = 4;
/// The size changes by a part of what is missing to the best one: one in so many.
const APPROACH: usize = 4;
/// The largest size.
const MOST: usize = PARTS / 2;
/// How far back page-ins are counted.
const REACH: usize = 4 * PARTS;
/// The nearest counts, so many of which stand for what lies just inside memory.
const NEAREST: usize = 8;
/// A judgement after so many page-ins, as a part of the budget's pages. The counts are halved each time.
const JUDGED_PART: u32 = 16;
/// At least so many.
const JUDGED_MIN: u32 = 256;
/// The time that a page-in from the pool takes besides packing and unpacking, in nanoseconds: the fault, and another page's way
/// out, with its soft faults (bench/RESULTS-compressed.md, "Costs, measured anew").
const UNPACKED_NS: u64 = 14_000;
/// The time that a page-in from a device takes besides the read.
const READ_NS: u64 = 12_000;
/// The time that a page takes that comes along with others (docs/decisions/0021-pointers.md).
const ALONG_NS: u64 = 16_000;
/// The time that writing a page takes (the same).
const WRITE_NS: u64 = 9_000;
/// Packing and unpacking, until they have been measured, in nanoseconds.
const PACK_NS: u32 = 4_000;
const UNPACK_NS: u32 = 2_000;
/// A larger pool must save so many thousandths of the time, a smaller one so many.
const GROWS_PERMILLE: u64 = 100;
const SHRINKS_PERMILLE: u64 = 10;
/// A pool that was given up within so many judgements was a mistake. The next one waits for so many judgements, and after each
/// mistake in a row for twice as many.
const TRIED: u32 = 32;
const WAIT_MIN: u32 = 4;
const WAIT_MAX: u32 = 64;
/// The pool is so full on average, in thousandths: its coldest pages go on to the next device before it is full.
const FULL_PERMILLE: u64 = 880;

/// How well pages compress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compressibility {
    /// Pages per page of the pool, in thousandths, of pages that compress.
    pub ratio_permille: u32,
    /// Pages that do not compress, in thousandths.
    pub refused_permille: u32,
    /// Pages of the budget that a pool takes for its own use, however small it is.
    pub overhead: u32,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct PoolSize {
    /// Page-ins by evictions since the page's own: pages that a thread waited for and that came alone, and others.
    alone: Vec<u32>,
    along: Vec<u32>,
    sums: Sums,
    /// Page-ins of both kinds since the last judgement.
    counted: u32,
    /// The page-ins in `alone`, and how many of them were of pages that are known not to compress.
    tried: u32,
    refused: u32,
    /// Pages that went out, and those of them that would be packed.
    evicted: u32,
    packed: u32,
    /// Of the pages that went out and had come in, those that had changed, and all.
    changed: u32,
    compared: u32,
    /// The size now, and with what it takes besides.
    now: usize,
    taken: usize,
    /// It is to have no size, whatever page-ins tell.
    shut: bool,
    /// Judgements since it was opened or closed, and how long it stays closed.
    since: u32,
    wait: u32,
    read_ns: Mean,
    unpack_ns: Mean,
    pack_ns: Mean,
}

/// A mean of the last few hundred times, in nanoseconds. One that is longer than twice the mean counts as that: it waited for
/// something else.
#[derive(Clone, Copy, Default, Debug)]
struct Mean(u32);

impl Mean {
    fn note(&mut self, ns: u64) {
        let ns = u32::try_from(ns).unwrap_or(u32::MAX);
        self.0 = if self.0 == 0 { ns } else { self.0 - self.0 / 256 + ns.min(self.0.saturating_mul(2)) / 256 };
    }
    fn or(self, ns: u32) -> u64 {
        u64::from(if self.0 == 0 { ns } else { self.0 })
    }
}

/// Sums of the counts: at `i`, of all before `i`.
#[derive(Clone, Default, Debug)]
struct Sums {
    alone: Vec<u32>,
    along: Vec<u32>,
    /// Of the pages that went out so many evictions ago or fewer, those that are still out, in thousandths of a part.
    out: Vec<u32>,
}

impl Sums {
    fn new() -> Self {
        Sums { alone: vec![0; REACH + 1], along: vec![0; REACH + 1], out: vec![0; REACH + 1] }
    }

    fn update(&mut self, size: &PoolSize) {
        let evicted = size.evicted.max(1);
        for at in 0..REACH {
            let back = self.alone[at] + self.along[at];
            let out = evicted.saturating_sub(back).max(evicted / 16);
            self.out[at + 1] = self.out[at] + (1000 * u64::from(out) / u64::from(evicted)) as u32;
            self.alone[at + 1] = self.alone[at] + size.alone[at];
            self.along[at + 1] = self.along[at] + size.along[at];
        }
    }
}

impl PoolSize {
    pub(crate) fn new() -> Self {
        PoolSize {
            alone: vec![0; REACH],
            along: vec![0; REACH],
            sums: Sums::new(),
            counted: 0,
            tried: 0,
            refused: 0,
            evicted: 0,
            packed: 0,
            changed: 0,
            compared: 0,
            now: 0,
            taken: 0,
            shut: false,
            since: 0,
            wait: 0,
            read_ns: Mean::default(),
            unpack_ns: Mean::default(),
            pack_ns: Mean::default(),
        }
    }

    /// A page comes in that went out `distance` evictions ago, of a budget in pages. `refused`: it is known not to compress.
    pub(crate) fn page_in(&mut self, alone: bool, refused: bool, distance: u32, budget: u32) {
        self.counted += 1;
        let counts = if alone { &mut self.alone } else { &mut self.along };
        if let Some(count) = counts.get_mut(distance as usize * PARTS / budget.max(1) as usize) {
            *count += 1;
            self.tried += u32::from(alone);
            self.refused += u32::from(alone && refused);
        }
    }

    /// A page goes out. `along`: past the pool.
    pub(crate) fn page_out(&mut self, along: bool) {
        self.evicted = self.evicted.saturating_add(1); // nobody judges while nothing comes in
        self.packed = self.packed.saturating_add(u32::from(!along));
    }

    /// A page is on its way out that had come in. (One that was to stay in the pool has no stored copy to compare with, and is not
    /// counted.)
    pub(crate) fn compared(&mut self, changed: bool) {
        self.compared += 1;
        self.changed += u32::from(changed);
    }

    pub(crate) fn set_shut(&mut self, shut: bool) {
        self.shut = shut;
    }

    /// The pool is gone.
    pub(crate) fn close(&mut self) {
        (self.now, self.taken, self.since) = (0, 0, 0);
    }

    pub(crate) fn read_took(&mut self, ns: u64) {
        self.read_ns.note(ns);
    }

    pub(crate) fn unpacking_took(&mut self, ns: u64) {
        self.unpack_ns.note(ns);
    }

    pub(crate) fn packing_took(&mut self, ns: u64) {
        self.pack_ns.note(ns);
    }

    fn is_open(&self) -> bool {
        self.now > 0
    }

    /// Whether pages should go to the pool although a device has them, unchanged.
    pub(crate) fn takes(&self) -> bool {
        self.is_open() && !self.shut
    }

    /// What a read of one page and an unpacking take, in nanoseconds; 0: not measured yet.
    pub(crate) fn times(&self) -> (u64, u64) {
        (self.read_ns.or(0), self.unpack_ns.or(0))
    }

    /// Whether there is enough to judge by.
    pub(crate) fn is_due(&self, budget: u32) -> bool {
        self.counted >= (budget / JUDGED_PART).max(JUDGED_MIN)
    }

    /// Decides anew. Returns the size, in pages of the budget.
    pub(crate) fn judge(&mut self, pages: Compressibility, budget: u32) -> u32 {
        let overhead = (pages.overhead as usize * PARTS).div_ceil(budget.max(1) as usize);
        let mut sums = core::mem::take(&mut self.sums);
        sums.update(self);
        let cost = |size| self.cost(&sums, size, overhead, pages);
        let now = cost(self.now);
        let (least, best) = (0..=MOST).step_by(STEP).map(|size| (cost(size), size)).min().expect("there are some");
        let saves = |permille| least + now * permille / 1000 < now;
        let step = (best.abs_diff(self.now) / APPROACH).next_multiple_of(STEP).max(STEP);
        self.since += 1;
        if self.shut {
            // it did not turn out to be a mistake
            self.now -= (self.now / APPROACH).next_multiple_of(STEP).max(STEP).min(self.now);
        } else if best > self.now && saves(GROWS_PERMILLE) && self.read_ns.0 != 0 && (self.is_open() || self.since > self.wait) {
            self.resize(self.now + step);
        } else if best < self.now && saves(SHRINKS_PERMILLE) {
            self.resize(self.now - step);
        }
        self.sums = sums;
        self.taken = if self.now == 0 { 0 } else { self.now + overhead };
        self.counted = 0;
        let totals =
            [&mut self.evicted, &mut self.packed, &mut self.changed, &mut self.compared, &mut self.tried, &mut self.refused];
        totals.into_iter().chain(&mut self.alone).chain(&mut self.along).for_each(|count| *count /= 2);
        (budget as usize * self.now / PARTS) as u32
    }

    fn resize(&mut self, size: usize) {
        if size == 0 {
            self.wait = if self.since < TRIED { (2 * self.wait).clamp(WAIT_MIN, WAIT_MAX) } else { 0 };
        }
        if size == 0 || self.now == 0 {
            self.since = 0;
        }
        self.now = size;
    }

    /// The time that page-ins would have taken with a pool of that size, in nanoseconds.
    fn cost(&self, sums: &Sums, size: usize, overhead: usize, pages: Compressibility) -> u64 {
        let taken = if size == 0 { 0 } else { size + overhead };
        // page-ins that would come as well, or would not have come
        let more = taken.saturating_sub(self.taken);
        let fewer = self.taken.saturating_sub(taken);
        let change = |sums: &[u32]| u64::from(sums[NEAREST]) * more as u64 / NEAREST as u64;
        let (alone, along) = (change(&sums.alone), change(&sums.along));
        let kept = u64::from(1000 - pages.refused_permille.min(1000));
        // (a page that is known not to compress passes the pool by, but comes in alone)
        let hit = kept * u64::from(self.tried - self.refused) / u64::from(self.tried.max(1));
        // pages that pass the pool by, or do not compress, leave room for others
        let stored = (u64::from(self.packed) * kept / u64::from(self.evicted.max(1))).max(1);
        let holds = size as u64 * u64::from(pages.ratio_permille) * FULL_PERMILLE / stored;
        let hits = if size == 0 {
            0
        } else {
            let reach = (holds + 1000 * self.taken as u64).saturating_sub(1000 * taken as u64);
            let reach = sums.out.partition_point(|&out| u64::from(out) <= reach).saturating_sub(1).max(fewer);
            let near = alone.min(alone * holds / 1000 / taken as u64);
            (near + u64::from(sums.alone[reach] - sums.alone[fewer])) * hit / 1000
        };
        let reads = alone + u64::from(sums.alone[REACH] - sums.alone[fewer]) - hits;
        let along = along + u64::from(sums.along[REACH] - sums.along[fewer]);
        let packing_ns = self.pack_ns.or(PACK_NS) + self.unpack_ns.or(UNPACK_NS);
        let unpacked = UNPACKED_NS + packing_ns;
        let read = READ_NS + self.read_ns.or(0);
        // what is packed and not used in time is unpacked again, to be written
        let in_vain = if size == 0 { 0 } else { u64::from(self.packed).saturating_sub(hits) };
        // What falls out of a pool is written, changed or not: its old slot is gone. What passes it by is written if it changed.
        let past = if size == 0 { reads + along } else { along };
        let writes = in_vain + past * u64::from(self.changed) / u64::from(self.compared.max(1));
        hits * unpacked + reads * read + along * ALONG_NS + in_vain * packing_ns + writes * WRITE_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;

    const BUDGET: u32 = 10 * PARTS as u32;
    const PAGES: Compressibility = Compressibility { ratio_permille: 2500, refused_permille: 0, overhead: 0 };

    /// A program that uses pages as `next` says, in memory that is managed by LRU and shared with a pool.
    struct Program<F> {
        pool: PoolSize,
        next: F,
        alone: bool,
        /// Of a hundred pages, those that are known not to compress.
        refused: u32,
        changes: bool,
        used_at: BTreeMap<u64, u32>,
        pages: Vec<(u64, u32)>,
        now: u64,
        evictions: u32,
    }

    impl<F: FnMut(u64) -> u32> Program<F> {
        fn new(read_ns: u64, next: F) -> Self {
            let mut pool = PoolSize::new();
            if read_ns > 0 {
                pool.read_took(read_ns);
            }
            let pages = vec![(0, 0); 4 * BUDGET as usize];
            Program { pool, next, alone: true, refused: 0, changes: false, used_at: BTreeMap::new(), pages, now: 0, evictions: 0 }
        }

        fn reference(&mut self) {
            self.now += 1;
            let page = (self.next)(self.now);
            let (used_at, evicted_at) = core::mem::replace(&mut self.pages[page as usize], (self.now, 0));
            self.used_at.insert(self.now, page);
            if self.used_at.remove(&used_at).is_some() {
                return;
            }
            if evicted_at > 0 {
                self.pool.page_in(self.alone, page % 100 < self.refused, self.evictions - evicted_at, BUDGET);
            }
            if self.used_at.len() > BUDGET as usize * (PARTS - self.pool.taken) / PARTS {
                let (_, page) = self.used_at.pop_first().unwrap();
                self.evictions += 1;
                self.pages[page as usize].1 = self.evictions;
                self.pool.page_out(!self.alone || page % 100 < self.refused);
                self.pool.compared(self.changes);
            }
        }

        /// Runs until the size has been judged so many times. Returns it, in parts.
        fn run(&mut self, judgements: u32, pages: Compressibility) -> usize {
            for _ in 0..judgements {
                while !self.pool.is_due(BUDGET) {
                    self.reference();
                }
                self.pool.judge(pages, BUDGET);
            }
            self.pool.now
        }
    }

    /// Any of the first `pages` pages, with the same likelihood.
    fn evenly(pages: u32) -> impl FnMut(u64) -> u32 {
        let mut seed = 1u64;
        move |_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((seed >> 33) % u64::from(pages)) as u32
        }
    }

    /// References that are spread evenly over one and a half times the budget, memory that is managed by LRU: what a pool holds is
    /// known. Its pages and those in memory are the ones that were used last.
    #[test]
    fn what_a_pool_would_hold_is_known_from_evictions() {
        let mut program = Program::new(0, evenly(BUDGET * 3 / 2));
        program.run(30, PAGES);
        (0..20_000).for_each(|_| program.reference());
        let mut sums = Sums::new();
        sums.update(&program.pool);
        for pages in [PARTS / 16, PARTS / 8, PARTS / 4, PARTS * 3 / 8] {
            let reach = sums.out.partition_point(|&out| out as usize <= 1000 * pages) - 1;
            let held = f64::from(sums.alone[reach]) / f64::from(sums.alone[REACH]);
            let known = pages as f64 / (PARTS as f64 / 2.0);
            assert!((held - known).abs() < 0.06, "{pages} parts hold {held:.2} of what is used, not {known:.2}");
        }
    }

    /// A program that writes 32 GiB in order and reads nothing: a thousand times as many evictions overflowed.
    #[test]
    fn many_evictions_before_the_first_page_in() {
        let out = |evictions: u32| {
            let mut size = PoolSize::new();
            (0..evictions).for_each(|_| size.page_out(true));
            (0..100).for_each(|_| size.page_in(true, false, 0, BUDGET));
            let mut sums = Sums::new();
            sums.update(&size);
            sums.out
        };
        assert_eq!(out(100 << 10)[..8], out(8 << 20)[..8]);
    }

    #[test]
    fn a_slow_device_makes_it_grow_and_a_fast_one_does_not() {
        assert_eq!(Program::new(1_000, evenly(BUDGET * 3 / 2)).run(100, PAGES), 0);
        assert_eq!(Program::new(0, evenly(BUDGET * 3 / 2)).run(100, PAGES), 0, "nothing was read alone yet");
        let slow = Program::new(500_000, evenly(BUDGET * 3 / 2)).run(200, PAGES);
        // what is missing is half of the budget, and each part of the pool adds 1.2 parts
        assert!((PARTS / 4..=PARTS / 2).contains(&slow), "{slow} parts");
    }

    /// What is read in order comes with others, many at a time. The pool would only take its memory.
    #[test]
    fn pages_that_come_along_with_others_make_it_shrink() {
        let mut program = Program::new(500_000, evenly(BUDGET * 3 / 2));
        assert!(program.run(100, PAGES) > 0);
        program.alone = false;
        assert_eq!(program.run(100, PAGES), 0);
    }

    #[test]
    fn what_does_not_compress_is_no_reason() {
        let pages = Compressibility { ratio_permille: 1300, refused_permille: 950, ..PAGES };
        assert_eq!(Program::new(200_000, evenly(BUDGET * 3 / 2)).run(100, pages), 0);
        let nothing = Compressibility { ratio_permille: 0, refused_permille: 1000, ..PAGES };
        assert_eq!(Program::new(200_000, evenly(BUDGET * 3 / 2)).run(100, nothing), 0);
    }

    /// Nine pages of ten do not compress, and the pool knows these: of those that it is still asked to take, all compress.
    #[test]
    fn what_is_known_not_to_compress_is_no_reason() {
        let mut program = Program::new(60_000, evenly(BUDGET * 3 / 2));
        assert!(program.run(100, PAGES) > 0);
        program.refused = 90;
        assert_eq!(program.run(100, PAGES), 0);
    }

    /// A program that goes round and round through three times the budget: no pool that there may be holds that.
    #[test]
    fn a_loop_that_is_far_too_long_is_no_reason() {
        assert_eq!(Program::new(500_000, |now| (now % u64::from(BUDGET * 3)) as u32).run(100, PAGES), 0);
    }

    /// What a small pool takes besides its pages is counted.
    #[test]
    fn a_small_budget_is_not_spent_on_buffers() {
        let pages = Compressibility { overhead: BUDGET / 2, ..PAGES };
        assert_eq!(Program::new(60_000, evenly(BUDGET * 5 / 4)).run(100, pages), 0);
        assert!(Program::new(60_000, evenly(BUDGET * 5 / 4)).run(100, PAGES) > 0);
    }

    /// A tree and a hash in C++: all pages are used equally often, compress 1.85 to one, and take 8.5 us to pack and unpack.
    /// Whatever its size, a pool saves next to nothing there. It was opened and closed two hundred times, and took a tenth of the
    /// time.
    #[test]
    fn what_hardly_pays_is_no_reason() {
        let mut program = Program::new(45_000, evenly(BUDGET * 4 / 3));
        program.pool.packing_took(6_000);
        program.pool.unpacking_took(2_500);
        let pages = Compressibility { ratio_permille: 1850, overhead: BUDGET / 64, ..PAGES };
        for _ in 0..400 {
            assert_eq!(program.run(1, pages), 0);
        }
    }

    /// A hash in Perl changes all of its pages. Those that come back from a pool in time need not be written. Pages that do not
    /// change are written because of the pool only.
    #[test]
    fn what_changes_pays_sooner() {
        let size = |changes| {
            let mut program = Program { changes, ..Program::new(30_000, evenly(BUDGET * 3 / 2)) };
            program.run(100, Compressibility { ratio_permille: 2000, ..PAGES })
        };
        assert!(size(false) == 0 && size(true) > 0);
    }

    /// No size is left for another that costs more, and so it does not wander.
    #[test]
    fn it_stays_where_it_is_best() {
        let mut program = Program::new(200_000, evenly(BUDGET * 3 / 2));
        program.run(200, PAGES);
        let sizes: Vec<_> = (0..20).map(|_| program.run(1, PAGES)).collect();
        let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
        assert!(most - least <= 4 * STEP, "{sizes:?}");
    }

    /// Three processes of a family on two CPUs: each packed 285,000 pages in 30 s, and took the processors from the others.
    #[test]
    fn it_has_no_size_while_it_is_shut() {
        let mut program = Program::new(500_000, evenly(BUDGET * 3 / 2));
        let mut size = program.run(200, PAGES);
        assert!(size > 0);
        program.pool.set_shut(true);
        for _ in 0..20 {
            let before = core::mem::replace(&mut size, program.run(1, PAGES));
            assert!(size <= before, "{before} -> {size} parts");
        }
        assert_eq!(program.run(20, PAGES), 0);
        program.pool.set_shut(false);
        assert!(program.run(20, PAGES) > 0, "it was no mistake, so it comes back at once");
    }

    /// After a swapoff of compressed memory each page that was evicted counted as one that could go there, for good.
    #[test]
    fn a_pool_that_is_gone_is_closed() {
        let mut program = Program::new(500_000, evenly(BUDGET * 3 / 2));
        assert!(program.run(200, PAGES) > 0 && program.pool.is_open());
        program.pool.close();
        assert!(!program.pool.is_open());
        assert!(program.run(20, PAGES) > 0, "another one may be opened");
    }

    /// A hash in Ruby looked as if a pool paid, and once it was there, its pages did not compress. The pool was opened and closed
    /// again and again: two hundred times by a hash in Perl, which took a quarter longer for it.
    #[test]
    fn a_mistake_is_not_made_again_soon() {
        let mut program = Program::new(500_000, evenly(BUDGET * 3 / 2));
        let mut opened = 0;
        for _ in 0..400 {
            let was_open = program.pool.is_open();
            let pages = Compressibility { refused_permille: if was_open { 1000 } else { 0 }, ..PAGES };
            program.run(1, pages);
            opened += u32::from(program.pool.is_open() && !was_open);
        }
        assert!((3..=12).contains(&opened), "opened {opened} times");
    }
}

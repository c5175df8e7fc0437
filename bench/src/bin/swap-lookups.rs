//! Measures the swap metadata's lookups, compared with older methods: `cargo run --release -p overspill-bench --bin swap-lookups`.
//!
//! Two older methods are implemented here for comparison only: a lookup page by page (one trie walk per neighbour, as FreeBSD did
//! before review D22409), and the linear list of extents with a one-entry cache that all tasks share (as Linux had before the
//! red-black tree of 2019). Prints tables in Markdown. Every figure is the best of five rounds; the contenders of a table take
//! turns within each.

use overspill_swap::extent::{Extent, ExtentMap};
use overspill_swap::{Config, SwapPager};
use overspill_vm::pager::{HasPage, Pager};
use overspill_vm::types::{ObjectId, PageId, Slot, Tag};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

const ROUNDS: usize = 5;
/// Pages stored: 2 GiB.
const STORED: u64 = 1 << 19;
/// Where a program's heap may lie, in pages: the trie has its full height for an address space.
const BASE: u64 = 0x7f12_3456_7000 >> 12;
/// Extents of the device in the report that led to the kernel's tree, and their length: 80 GiB.
const EXTENTS: u32 = 84_656;
const EXTENT_SLOTS: u32 = 247;
/// The disk's time per page, from RESULTS.md: 2.8 us at 128 KiB in order.
const DISK_PAGE_NS: f64 = 2800.0;

/// xorshift64*: fast, and the same everywhere.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((u128::from(self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)) * u128::from(n)) >> 64) as u64
    }
}

/// Nanoseconds per operation of each contender, the best of the rounds.
fn compare<const N: usize>(operations: u64, mut contenders: [&mut dyn FnMut(); N]) -> [f64; N] {
    let mut best = [f64::INFINITY; N];
    for _ in 0..ROUNDS {
        for (best, run) in best.iter_mut().zip(&mut contenders) {
            let start = Instant::now();
            run();
            *best = best.min(start.elapsed().as_nanos() as f64 / operations as f64);
        }
    }
    best
}

/// For comparison: how far the neighbours are contiguous, with a lookup for each. Also returns the number of lookups.
fn page_by_page(pager: &SwapPager, page: PageId, before_max: u32, after_max: u32) -> (Option<HasPage>, u32) {
    let mut lookups = 1;
    let Some(HasPage { slot, .. }) = pager.has_page(page, 0, 0) else { return (None, 1) };
    let mut at = |index: u64, want: u32| {
        lookups += 1;
        pager.has_page(PageId::new(page.object(), index), 0, 0).is_some_and(|has| has.slot.0 == want)
    };
    let mut before = 0;
    while before < before_max && u64::from(before) < page.index() && before < slot.0 {
        if !at(page.index() - u64::from(before) - 1, slot.0 - before - 1) {
            break;
        }
        before += 1;
    }
    let mut after = 0;
    while after < after_max && at(page.index() + u64::from(after) + 1, slot.0 + after + 1) {
        after += 1;
    }
    (Some(HasPage { slot, before, after }), lookups)
}

/// A pager with `STORED` pages in runs of `run` pages.
fn pager(run: u64) -> SwapPager {
    let mut pager = SwapPager::new(Config { pages_max: 4 * STORED, slots_max: 2 * STORED as u32, devices_max: 2, extents_max: 0 });
    for first in (0..STORED).step_by(run as usize) {
        // an order in which no two runs follow each other on the device
        let first = PageId::new(ObjectId(0), BASE + (first / run * 7919 % (STORED / run)) * run);
        let slots = pager.alloc_run(run as u32, first).expect("there is room");
        for k in 0..u64::from(slots.count) {
            assert!(pager.assign(first.offset(k), Slot(slots.first.0 + k as u32), Tag::of(k)));
        }
    }
    pager
}

fn contiguous() {
    const LOOKUPS: u64 = 100_000;
    println!("## Contiguous lookup\n");
    println!("32 pages on both sides of a random page of 2 GiB; nanoseconds per question, and trie lookups per question.\n");
    println!("| pages lie in runs of | page by page | lookups | one lookup | ratio |\n| --- | --- | --- | --- | --- |");
    for run in [1, 8, 32, 128, 512] {
        let pager = pager(run);
        let page = |rng: &mut Rng| PageId::new(ObjectId(0), BASE + rng.below(STORED));
        let mut rng = Rng(1);
        let mut lookups = 0;
        for _ in 0..LOOKUPS {
            let page = page(&mut rng);
            let (has, n) = page_by_page(&pager, page, 32, 32);
            assert_eq!(has, pager.has_page(page, 32, 32));
            lookups += n;
        }
        let each = &mut || {
            let mut rng = Rng(1);
            (0..LOOKUPS).for_each(|_| _ = black_box(page_by_page(&pager, page(&mut rng), 32, 32)));
        };
        let one = &mut || {
            let mut rng = Rng(1);
            (0..LOOKUPS).for_each(|_| _ = black_box(pager.has_page(page(&mut rng), 32, 32)));
        };
        let [each, one] = compare(LOOKUPS, [each, one]);
        println!("| {run} | {each:.0} | {:.1} | {one:.0} | {:.1}x |", f64::from(lookups) / LOOKUPS as f64, each / one);
    }
    build_mix();
}

/// The mix of a build: many objects come and go; most pages are read back in order, cluster by cluster, some at random. "Page by
/// page" means, as in FreeBSD, that the reader asks for each page anew (65 lookups each); otherwise one lookup serves all pages of
/// a cluster.
fn build_mix() {
    const QUESTIONS: u64 = 20_000;
    let pager = pager(64);
    let clusters = || {
        let mut rng = Rng(7);
        let mut at = 0;
        std::iter::repeat_with(move || {
            at = if rng.below(10) == 0 { rng.below(STORED - 64) } else { (at + 33) % (STORED - 64) };
            PageId::new(ObjectId(0), BASE + at)
        })
        .take(QUESTIONS as usize)
    };
    let lookups: u32 = clusters().map(|page| page_by_page(&pager, page, 32, 32).1).sum();
    let each = &mut || {
        for page in clusters() {
            (0..33).for_each(|k| _ = black_box(page_by_page(&pager, page.offset(k), 32, 32)));
        }
    };
    let asked_once = &mut || clusters().for_each(|page| _ = black_box(page_by_page(&pager, page, 32, 32)));
    let one = &mut || clusters().for_each(|page| _ = black_box(pager.has_page(page, 32, 32)));
    let [each, asked_once, one] = compare(QUESTIONS, [each, asked_once, one]);
    println!(
        "\nA build-like mix (clusters of 33 pages, nine in ten in order, in runs of 64), nanoseconds of lookups per cluster:\n"
    );
    println!("| page by page, asked for each page | page by page, asked once per cluster | one lookup per cluster | ratios |");
    println!("| --- | --- | --- | --- |");
    println!("| {each:.0} | {asked_once:.0} | {one:.0} | {:.0}x, {:.1}x |", each / one, asked_once / one);
    println!("\nPage by page a question is {:.1} lookups there.", f64::from(lookups) / QUESTIONS as f64);
}

/// For comparison: a list that is walked from where the last lookup of any task ended.
struct List {
    extents: Vec<Extent>,
    /// `next[i]`: a linked list whose nodes lie in order of their making, as after a boot.
    next: Vec<u32>,
    last: AtomicUsize,
}

impl List {
    fn find(&self, slot: Slot) -> Extent {
        let mut at = self.last.load(Relaxed);
        loop {
            let extent = self.extents[at];
            if extent.first <= slot && slot <= extent.last() {
                self.last.store(at, Relaxed);
                return extent;
            }
            at = self.next[at] as usize;
        }
    }
}

/// `tasks` threads page out and in: each goes through clusters of 32 pages at random places, and asks where they are, for every
/// page as the kernel does, or once per `ask` pages.
fn page_all(tasks: usize, pages: u64, ask: u32, slots: u32, find: impl Fn(Slot) -> Extent + Sync) {
    std::thread::scope(|scope| {
        for task in 0..tasks {
            let find = &find;
            scope.spawn(move || {
                let mut rng = Rng(task as u64 + 1);
                for _ in 0..pages / tasks as u64 / 32 {
                    let first = rng.below(u64::from(slots) - 32) as u32;
                    for k in (0..32).step_by(ask as usize) {
                        black_box(find(Slot(first + k)).offset_of(Slot(first + k)));
                    }
                }
            });
        }
    });
}

fn extents() {
    println!("\n## Extents\n");
    println!(
        "Where the pages of clusters of 32 lie, at random places of 80 GiB; nanoseconds per page, all tasks together, without the"
    );
    println!(
        "device: a lookup for each page, as in the kernel, or one for each cluster, as in Overspill, where no cluster crosses an"
    );
    println!("extent. At the right the latter's share of a page's time on a disk that gives a page in {DISK_PAGE_NS} ns.\n");
    println!("| tasks | extents | list, each page | tree, each page | ratio | tree, each cluster | share |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    let slots = EXTENTS * EXTENT_SLOTS;
    for tasks in [1, 4, 8] {
        for count in [2, EXTENTS] {
            let mut map = ExtentMap::new(EXTENTS);
            let mut list = List { extents: Vec::new(), next: Vec::new(), last: AtomicUsize::new(0) };
            let len = slots / count;
            for k in 0..count {
                let extent = Extent { first: Slot(k * len), count: len, file: 0, offset: u64::from(k * 31 % count) << 32 };
                map.insert(extent).expect("there is room");
                list.extents.push(extent);
                list.next.push((k + 1) % count);
            }
            let pages = 1 << 22;
            // the list is so slow that fewer pages must be enough
            let few = if count > 2 { 1 << 14 } else { pages };
            let in_tree = |slot| map.find(slot).expect("it is there");
            let in_list = |slot| list.find(slot);
            let mut best = [f64::INFINITY; 3];
            for _ in 0..ROUNDS {
                let runs: [(u64, &dyn Fn()); 3] = [
                    (few, &|| page_all(tasks, few, 1, slots, in_list)),
                    (pages, &|| page_all(tasks, pages, 1, slots, in_tree)),
                    (pages, &|| page_all(tasks, pages, 32, slots, in_tree)),
                ];
                for (best, (pages, run)) in best.iter_mut().zip(runs) {
                    let start = Instant::now();
                    run();
                    *best = best.min(start.elapsed().as_nanos() as f64 / pages as f64);
                }
            }
            let [list, tree, cluster] = best;
            let share = cluster / (DISK_PAGE_NS + cluster) * 100.0;
            println!("| {tasks} | {count} | {list:.1} | {tree:.1} | {:.1}x | {cluster:.2} | {share:.2} % |", list / tree);
        }
    }
}

fn main() {
    contiguous();
    extents();
}

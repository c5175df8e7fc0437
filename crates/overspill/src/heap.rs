//! Which parts of an arena are free. Numbers in, numbers out: this knows neither memory nor pagers.
//!
//! ```text
//!   a block of       is                                    found by its address through
//!   up to 16 KiB     a slot in a span of slots of one size   the page map: each page of a span has its number
//!   more             a run of pages of its own               the page map: its first page has its number
//! ```
//!
//! All of this lies in ordinary memory, and pages of an arena hold nothing but content. So to allocate and to free touches no page
//! of the arena, and no page must be read because of a neighbour's header. The price is a bit for each slot of a span that is in
//! use, and 4 bytes for each page in use: 0.9 % of the arena if all blocks have 16 bytes, 0.2 % if they have 128.
//!
//! Freed slots are used again, those of the span first in which a slot was freed last: its pages are likely to be in memory. Freed
//! runs are *dirty* at first, and are used again as they are. When there are many dirty pages, or a long run is freed, the caller
//! gets these runs, discards their content, and gives them back as *clean*: they take neither memory nor swap space, and read as
//! zero.
//!
//! Invariant ([`Heap::check`]): each page is in a span, in a dirty or a clean run, or in a run that the caller is discarding. Runs
//! of one kind do not touch each other.

use overspill_vm::types::{PAGE_SHIFT, PAGE_SIZE};
use std::collections::{BTreeMap, BTreeSet};

/// The largest slot, in bytes.
const SLOT_MAX: usize = 16 << 10;

/// Sizes of slots: up to 128 bytes in steps of 16, from there on four to each doubling. So less than a fifth of a
/// slot of more than 128 bytes is unused.
const CLASSES: [u16; 36] = {
    let mut sizes = [0; 36];
    let mut i = 0;
    while i < sizes.len() {
        sizes[i] = if i < 8 { 16 * (i as u16 + 1) } else { (5 + (i as u16 - 8) % 4) << (5 + (i as u16 - 8) / 4) };
        i += 1;
    }
    sizes
};

/// Pages of a span. If there is no such run any more, a span is shorter. (A guess: 64 KiB, as in jemalloc's middle sizes.)
const SPAN_PAGES: [u32; 3] = [16, 4, 1];

/// More dirty pages than this are discarded, in pages. (A guess: 1 MiB is an eighth of the smallest budget.)
const DIRTY_MAX: u64 = 256;

/// A run of this many pages is discarded when it is freed.
const LONG: u32 = 64;

const NONE: u32 = u32::MAX;

/// Neighbouring pages: the first, and how many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    pub first: u32,
    pub pages: u32,
}

/// A block that was allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// Bytes from the start of the arena.
    pub at: usize,
    /// Bytes that can be used: at least as many as were asked for.
    pub size: usize,
    /// Whether it reads as zero.
    pub zeroed: bool,
}

/// Why an address is not that of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Misuse {
    /// It is in a block, but not at its start.
    Within,
    /// It is free. Perhaps it was freed before.
    Free,
}

/// Free runs of one kind.
#[derive(Default, Debug)]
struct Runs {
    by_first: BTreeMap<u32, u32>,
    by_len: BTreeSet<(u32, u32)>,
    pages: u64,
}

impl Runs {
    fn add(&mut self, run: Run) {
        let Run { mut first, mut pages } = run;
        if let Some((&before, &len)) = self.by_first.range(..first).next_back()
            && before + len == first
        {
            self.remove(before, len);
            (first, pages) = (before, pages + len);
        }
        if let Some(&len) = self.by_first.get(&(first + pages)) {
            self.remove(first + pages, len);
            pages += len;
        }
        self.insert(first, pages);
    }

    fn insert(&mut self, first: u32, pages: u32) {
        self.by_first.insert(first, pages);
        self.by_len.insert((pages, first));
        self.pages += pages as u64;
    }

    fn remove(&mut self, first: u32, pages: u32) {
        self.by_first.remove(&first);
        self.by_len.remove(&(pages, first));
        self.pages -= pages as u64;
    }

    /// Takes a part of a run. => it lies in the run
    fn cut(&mut self, run: Run, first: u32, pages: u32) {
        self.remove(run.first, run.pages);
        if first > run.first {
            self.insert(run.first, first - run.first);
        }
        let (end, run_end) = (first + pages, run.first + run.pages);
        if run_end > end {
            self.insert(end, run_end - end);
        }
    }

    /// Takes `pages` pages from the shortest run that has them, where `base` and the number of the first are together a multiple
    /// of `align`.
    fn take(&mut self, pages: u32, align: u64, base: u64) -> Option<u32> {
        let fit = |&(len, first): &(u32, u32)| {
            let start = (base + first as u64).next_multiple_of(align) - base;
            (start + pages as u64 <= first as u64 + len as u64).then_some((Run { first, pages: len }, start as u32))
        };
        let (run, start) = self.by_len.range((pages, 0)..).find_map(fit)?;
        self.cut(run, start, pages);
        Some(start)
    }

    /// Takes the pages that begin at `first`, if they are free.
    fn take_at(&mut self, first: u32, pages: u32) -> bool {
        match self.by_first.get(&first) {
            Some(&len) if len >= pages => {
                self.cut(Run { first, pages: len }, first, pages);
                true
            }
            _ => false,
        }
    }

    fn take_all(&mut self) -> Vec<Run> {
        self.by_len.clear();
        self.pages = 0;
        std::mem::take(&mut self.by_first).into_iter().map(|(first, pages)| Run { first, pages }).collect()
    }
}

/// Pages of slots of one size, or of one large block.
#[derive(Debug)]
struct Span {
    run: Run,
    /// The index of its size in [`CLASSES`]; `None`: one large block.
    class: Option<u8>,
    slots: u32,
    live: u32,
    /// A bit for each free slot.
    free: Box<[u64]>,
    /// No word before this one has a free slot.
    hint: u32,
    /// The spans of this size with a free slot form a list.
    before: u32,
    after: u32,
}

/// What is free.
#[derive(Debug)]
pub struct Heap {
    /// The arena's address, in pages: alignments above a page depend on it.
    base: u64,
    pages: u32,
    /// For each page the number of its span plus one.
    map: Vec<u32>,
    spans: Vec<Span>,
    /// Numbers of `spans` that are not in use.
    unused: Vec<u32>,
    /// For each size the first span that has a free slot.
    heads: [u32; CLASSES.len()],
    clean: Runs,
    dirty: Runs,
    /// Pages that the caller is discarding.
    leaving: u64,
    used: u64,
}

/// The size of slots for a block; `None` if it gets pages of its own. Slots of a size that is a multiple of `align` are aligned,
/// because spans begin at pages.
fn class_of(size: usize, align: usize) -> Option<usize> {
    if size > SLOT_MAX || align > PAGE_SIZE {
        return None;
    }
    let last = size.max(1) - 1;
    let class = if last < 128 {
        last / 16
    } else {
        let log = last.ilog2() as usize;
        8 + (log - 7) * 4 + (last >> (log - 2) & 3)
    };
    (class..CLASSES.len()).find(|&class| (CLASSES[class] as usize).is_multiple_of(align))
}

fn pages_of(bytes: usize) -> Option<u32> {
    u32::try_from(bytes.div_ceil(PAGE_SIZE)).ok()
}

impl Heap {
    /// All free. The arena begins at page number `base` of the address space.
    pub fn new(base: u64, pages: u32) -> Heap {
        let mut clean = Runs::default();
        clean.add(Run { first: 0, pages });
        Heap {
            base,
            pages,
            map: vec![0; pages as usize], // zeroed by the kernel as it is used
            spans: Vec::new(),
            unused: Vec::new(),
            heads: [NONE; CLASSES.len()],
            clean,
            dirty: Runs::default(),
            leaving: 0,
            used: 0,
        }
    }

    /// Bytes in blocks, as they were rounded.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Whether the caller still has runs that may help a request that failed.
    pub fn awaits(&self) -> bool {
        self.leaving > 0
    }

    /// A block, or `None` if nothing is large enough. => `align` is a power of two
    pub fn allocate(&mut self, size: usize, align: usize) -> Option<Block> {
        let block = match class_of(size, align) {
            Some(class) => self.allocate_slot(class)?,
            None => self.allocate_run(pages_of(size.max(1))?, align.div_ceil(PAGE_SIZE) as u64)?,
        };
        self.used += block.size as u64;
        Some(block)
    }

    fn allocate_run(&mut self, pages: u32, align: u64) -> Option<Block> {
        let (first, zeroed) = self.take(pages, align)?;
        let number = self.new_span(Run { first, pages }, None);
        self.map[first as usize] = number + 1;
        Some(Block { at: (first as usize) << PAGE_SHIFT, size: (pages as usize) << PAGE_SHIFT, zeroed })
    }

    /// Pages, and whether they read as zero.
    fn take(&mut self, pages: u32, align: u64) -> Option<(u32, bool)> {
        let dirty = self.dirty.take(pages, align, self.base).map(|first| (first, false));
        dirty.or_else(|| self.clean.take(pages, align, self.base).map(|first| (first, true)))
    }

    fn new_span(&mut self, run: Run, class: Option<u8>) -> u32 {
        let slots = class.map_or(1, |class| ((run.pages as usize) << PAGE_SHIFT) / CLASSES[class as usize] as usize) as u32;
        let mut free = Vec::new();
        if class.is_some() {
            free.resize(slots.div_ceil(64) as usize, u64::MAX);
            if let Some(last) = free.last_mut() {
                *last >>= (64 - slots % 64) % 64;
            }
        }
        let span = Span { run, class, slots, live: 0, free: free.into(), hint: 0, before: NONE, after: NONE };
        match self.unused.pop() {
            Some(number) => {
                self.spans[number as usize] = span;
                number
            }
            None => {
                self.spans.push(span);
                self.spans.len() as u32 - 1
            }
        }
    }

    fn allocate_slot(&mut self, class: usize) -> Option<Block> {
        let size = CLASSES[class] as usize;
        if self.heads[class] == NONE {
            let needed = pages_of(size)?;
            let (run, _) = SPAN_PAGES
                .into_iter()
                .map(|pages| pages.max(needed))
                .find_map(|pages| self.take(pages, 1).map(|(first, zeroed)| (Run { first, pages }, zeroed)))?;
            let number = self.new_span(run, Some(class as u8));
            self.map[run.first as usize..][..run.pages as usize].fill(number + 1);
            self.enlist(number);
        }
        let number = self.heads[class];
        let span = &mut self.spans[number as usize];
        let word = (span.hint as usize..span.free.len()).find(|&word| span.free[word] != 0);
        let word = word.expect("a span of the list has a free slot");
        let slot = word * 64 + span.free[word].trailing_zeros() as usize;
        span.free[word] &= span.free[word] - 1;
        span.hint = word as u32;
        span.live += 1;
        let at = ((span.run.first as usize) << PAGE_SHIFT) + slot * size;
        if span.live == span.slots {
            self.delist(number);
        }
        Some(Block { at, size, zeroed: false })
    }

    /// Puts a span of slots at the head of its list.
    fn enlist(&mut self, number: u32) {
        let class = self.spans[number as usize].class.expect("slots") as usize;
        let head = std::mem::replace(&mut self.heads[class], number);
        let span = &mut self.spans[number as usize];
        (span.before, span.after) = (NONE, head);
        if head != NONE {
            self.spans[head as usize].before = number;
        }
    }

    fn delist(&mut self, number: u32) {
        let span = &self.spans[number as usize];
        let (class, before, after) = (span.class.expect("slots") as usize, span.before, span.after);
        match before {
            NONE => self.heads[class] = after,
            _ => self.spans[before as usize].after = after,
        }
        if after != NONE {
            self.spans[after as usize].before = before;
        }
    }

    /// The span of the block at `at`, and its slot there.
    fn find(&self, at: usize) -> Result<(u32, usize), Misuse> {
        let page = at >> PAGE_SHIFT;
        let number = self.map.get(page).copied().unwrap_or(0);
        if number == 0 {
            return Err(Misuse::Free); // or within a large block, whose other pages have no entry
        }
        let span = &self.spans[number as usize - 1];
        let within = at - ((span.run.first as usize) << PAGE_SHIFT);
        let Some(class) = span.class else { return if within == 0 { Ok((number - 1, 0)) } else { Err(Misuse::Within) } };
        let size = CLASSES[class as usize] as usize;
        let slot = within / size;
        if !within.is_multiple_of(size) || slot >= span.slots as usize {
            return Err(Misuse::Within);
        }
        if span.free[slot / 64] >> (slot % 64) & 1 == 1 { Err(Misuse::Free) } else { Ok((number - 1, slot)) }
    }

    /// The bytes of the block at `at`.
    ///
    /// # Errors
    /// If there is none.
    pub fn size_of(&self, at: usize) -> Result<usize, Misuse> {
        let (number, _) = self.find(at)?;
        let span = &self.spans[number as usize];
        Ok(span.class.map_or((span.run.pages as usize) << PAGE_SHIFT, |class| CLASSES[class as usize] as usize))
    }

    /// Frees the block at `at`. Returns runs whose content the caller discards before [`Heap::give_back`].
    ///
    /// # Errors
    /// If there is none; nothing has changed then.
    pub fn free(&mut self, at: usize) -> Result<Vec<Run>, Misuse> {
        let (number, slot) = self.find(at)?;
        let span = &mut self.spans[number as usize];
        let Some(class) = span.class else {
            let run = span.run;
            self.used -= (run.pages as u64) << PAGE_SHIFT;
            self.map[run.first as usize] = 0;
            self.unused.push(number);
            return Ok(self.free_run(run));
        };
        let was_full = span.live == span.slots;
        span.free[slot / 64] |= 1 << (slot % 64);
        span.hint = span.hint.min(slot as u32 / 64);
        span.live -= 1;
        let is_empty = span.live == 0;
        self.used -= CLASSES[class as usize] as u64;
        if was_full {
            self.enlist(number);
        }
        // The last span of a size stays, or a program that frees and allocates one block in turns would make spans all the time.
        let span = &self.spans[number as usize];
        if !is_empty || (span.before, span.after) == (NONE, NONE) {
            return Ok(Vec::new());
        }
        let run = self.dissolve(number);
        Ok(self.free_run(run))
    }

    /// Ends a span of slots. Its pages belong to the caller. => no slot of it is in use
    fn dissolve(&mut self, number: u32) -> Run {
        self.delist(number);
        let span = &mut self.spans[number as usize];
        span.free = Box::default();
        let run = span.run;
        self.map[run.first as usize..][..run.pages as usize].fill(0);
        self.unused.push(number);
        run
    }

    fn free_run(&mut self, run: Run) -> Vec<Run> {
        if run.pages >= LONG {
            self.leaving += run.pages as u64;
            return vec![run];
        }
        self.dirty.add(run);
        if self.dirty.pages > DIRTY_MAX { self.clear_out() } else { Vec::new() }
    }

    /// All dirty runs. The caller discards their content before [`Heap::give_back`].
    pub fn clear_out(&mut self) -> Vec<Run> {
        // A span without a block in use is the last of its size, but somebody needs its pages more.
        for class in 0..CLASSES.len() {
            let number = self.heads[class];
            if number != NONE && self.spans[number as usize].live == 0 {
                let run = self.dissolve(number);
                self.dirty.add(run);
            }
        }
        self.leaving += self.dirty.pages;
        self.dirty.take_all()
    }

    /// A run that was discarded, or could not be.
    pub fn give_back(&mut self, run: Run, discarded: bool) {
        self.leaving -= run.pages as u64;
        match discarded {
            true => self.clean.add(run),
            false => self.dirty.add(run),
        }
    }

    /// Makes a large block larger where it is, if the pages behind it are free.
    ///
    /// # Errors
    /// If there is no block at `at`.
    pub fn grow(&mut self, at: usize, size: usize) -> Result<Option<Block>, Misuse> {
        let (number, _) = self.find(at)?;
        let Span { run, class, .. } = self.spans[number as usize];
        let Some(pages) = pages_of(size).filter(|_| class.is_none()) else { return Ok(None) };
        let more = pages.saturating_sub(run.pages);
        let end = run.first + run.pages;
        if more > 0 && !self.clean.take_at(end, more) && !self.dirty.take_at(end, more) {
            return Ok(None);
        }
        self.spans[number as usize].run.pages += more;
        self.used += (more as u64) << PAGE_SHIFT;
        Ok(Some(Block { at, size: ((run.pages + more) as usize) << PAGE_SHIFT, zeroed: false }))
    }

    /// Makes a large block smaller. Returns its new size, and runs as [`Heap::free`] does.
    ///
    /// # Errors
    /// If there is no block at `at`.
    pub fn shrink(&mut self, at: usize, size: usize) -> Result<(usize, Vec<Run>), Misuse> {
        let (number, _) = self.find(at)?;
        let Span { run, class, .. } = self.spans[number as usize];
        let pages = pages_of(size.max(1)).unwrap_or(u32::MAX);
        if class.is_some() || pages >= run.pages {
            return Ok((self.size_of(at)?, Vec::new()));
        }
        self.spans[number as usize].run.pages = pages;
        let rest = Run { first: run.first + pages, pages: run.pages - pages };
        self.used -= (rest.pages as u64) << PAGE_SHIFT;
        Ok(((pages as usize) << PAGE_SHIFT, self.free_run(rest)))
    }

    /// Panics if an invariant does not hold. Walks everything.
    pub fn check(&self) {
        let mut owners = vec![0u32; self.pages as usize];
        let mut own = |run: Run| owners[run.first as usize..][..run.pages as usize].iter_mut().for_each(|n| *n += 1);
        for runs in [&self.clean, &self.dirty] {
            assert_eq!(runs.by_first.len(), runs.by_len.len());
            let mut end = None;
            for (&first, &pages) in &runs.by_first {
                assert!(pages > 0 && end.is_none_or(|end| end < first), "runs of one kind do not touch");
                end = Some(first + pages);
                own(Run { first, pages });
            }
        }
        let mut used = 0;
        for (number, span) in (0u32..).zip(&self.spans).filter(|(number, _)| !self.unused.contains(number)) {
            own(span.run);
            assert_eq!(self.map[span.run.first as usize], number + 1);
            let Some(class) = span.class else {
                used += (span.run.pages as u64) << PAGE_SHIFT;
                continue;
            };
            let free: u32 = span.free.iter().map(|word| word.count_ones()).sum();
            assert_eq!(free + span.live, span.slots);
            used += span.live as u64 * CLASSES[class as usize] as u64;
            let mut at = self.heads[class as usize];
            while at != NONE && at != number {
                at = self.spans[at as usize].after;
            }
            assert_eq!(at == number, free > 0, "a span is in the list if it has a free slot");
        }
        assert_eq!(used, self.used);
        let (free, owned) = (owners.iter().filter(|n| **n == 0).count() as u64, owners.iter().all(|n| *n <= 1));
        assert!(owned, "a page has two owners");
        assert_eq!(free, self.leaving, "a page has no owner");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_rounded_to_the_next_class() {
        for size in 1..=SLOT_MAX {
            let class = class_of(size, 1).expect("a slot");
            assert!(CLASSES[class] as usize >= size, "{size}");
            assert!(class == 0 || (CLASSES[class - 1] as usize) < size, "{size} would fit a smaller slot");
            let slot = CLASSES[class] as usize;
            assert!(size <= 128 || (slot - size) * 5 < slot, "{size}: a fifth of the slot is unused");
        }
        assert_eq!(class_of(SLOT_MAX + 1, 1), None);
        for shift in 0..=12 {
            let class = class_of(24, 1 << shift).expect("a slot");
            assert!((CLASSES[class] as usize).is_multiple_of(1 << shift));
        }
        assert_eq!(class_of(24, 8192), None);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Allocate(usize, usize),
        Free(usize),
        Grow(usize, usize),
        Shrink(usize, usize),
        ClearOut,
        Discarded,
        Wrong(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let size = prop_oneof![0usize..300, 0usize..20_000, 0usize..700_000];
        let step = prop_oneof![
            6 => (size.clone(), 0u32..16).prop_map(|(size, shift)| Step::Allocate(size, 1 << shift)),
            5 => any::<usize>().prop_map(Step::Free),
            1 => (any::<usize>(), size.clone()).prop_map(|(i, size)| Step::Grow(i, size)),
            1 => (any::<usize>(), size).prop_map(|(i, size)| Step::Shrink(i, size)),
            1 => Just(Step::ClearOut),
            2 => Just(Step::Discarded),
            1 => any::<usize>().prop_map(Step::Wrong),
        ];
        prop::collection::vec(step, 1..400)
    }

    proptest! {
        /// Against a list of blocks: none overlap, all are aligned and within the arena, and what is freed can be used again.
        #[test]
        fn blocks_are_apart(base in 1u64..64, pages in prop_oneof![Just(8u32), Just(300), Just(5000)], steps in steps()) {
            let mut heap = Heap::new(base, pages);
            let mut blocks: Vec<Block> = Vec::new();
            let mut leaving: Vec<Run> = Vec::new();
            for step in steps {
                match step {
                    Step::Allocate(size, align) => {
                        if let Some(block) = heap.allocate(size, align) {
                            prop_assert!(block.size >= size && block.at + block.size <= (pages as usize) << PAGE_SHIFT);
                            prop_assert!((block.at + ((base as usize) << PAGE_SHIFT)).is_multiple_of(align));
                            prop_assert_eq!(heap.size_of(block.at), Ok(block.size));
                            let end = block.at + block.size;
                            prop_assert!(blocks.iter().all(|b| end <= b.at || b.at + b.size <= block.at), "an overlap");
                            blocks.push(block);
                        }
                    }
                    Step::Free(i) if !blocks.is_empty() => {
                        let block = blocks.swap_remove(i % blocks.len());
                        leaving.extend(heap.free(block.at).expect("a block"));
                        prop_assert!(heap.free(block.at).is_err(), "freed twice");
                    }
                    Step::Grow(i, size) if !blocks.is_empty() => {
                        let i = i % blocks.len();
                        if let Some(block) = heap.grow(blocks[i].at, size).expect("a block") {
                            prop_assert!(block.at == blocks[i].at && block.size >= size.max(blocks[i].size));
                            blocks[i] = block;
                        }
                    }
                    Step::Shrink(i, size) if !blocks.is_empty() => {
                        let i = i % blocks.len();
                        let (size, runs) = heap.shrink(blocks[i].at, size).expect("a block");
                        prop_assert!(size <= blocks[i].size);
                        leaving.extend(runs);
                        blocks[i].size = size;
                    }
                    Step::ClearOut => leaving.extend(heap.clear_out()),
                    Step::Discarded => leaving.drain(..).for_each(|run| heap.give_back(run, run.first % 7 != 0)),
                    Step::Wrong(at) => {
                        let at = at % (((pages as usize) + 1) << PAGE_SHIFT);
                        prop_assert_eq!(heap.size_of(at).is_ok(), blocks.iter().any(|b| b.at == at));
                    }
                    _ => {}
                }
                heap.check();
            }
            for block in blocks.drain(..) {
                leaving.extend(heap.free(block.at).expect("a block"));
            }
            leaving.extend(heap.clear_out());
            leaving.into_iter().for_each(|run| heap.give_back(run, true));
            heap.check();
            prop_assert_eq!(heap.used(), 0);
            prop_assert!(heap.allocate((pages as usize) << PAGE_SHIFT, 1).is_some(), "all of it is free again");
        }
    }
}

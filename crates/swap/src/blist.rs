//! The slot allocator: which slots of one device are free, as a radix tree over a bitmap.
//!
//! ```text
//!  level 2   [ pre max suf ]                                   one node over 8 of level 1: 4096 slots
//!                 |
//!  level 1   [ pre max suf ] [ pre max suf ] ...               one node over 8 words: 512 slots (one cache line of bits)
//!                 |
//!  level 0   0011101111110000 1111111111000011 ...             64-bit words, a set bit is a *free* slot
//!
//!            pre  free slots at the node's beginning           0 ... len ........ capacity
//!            max  its longest run of free slots                usable    not yet: bits are 0, that is, not free
//!            suf  free slots at its end                        each at most RUN_MAX = 512: ten bits, three in a u32
//! ```
//!
//! Clusters are written next-fit: a cursor walks through the device, so that pages that are paged out together lie together and can
//! be read together. A run may cross any border of words and nodes. If no run of the wanted length is left, the longest one is
//! given. So writes get shorter as space gets scarce, but never shorter than necessary.
//!
//! Invariants (the first three are asserted where they could break, also in release; [`Blist::check`] walks for all):
//!
//! - `used + free == len <= capacity`
//! - a slot is free or used, never both: taking needs its bit set, giving back needs its bit clear
//! - `slot >= len` => not free
//! - a node's `pre, max, suf` are exactly those of its bits, cut at [`RUN_MAX`]; on level 1 `pre == 512` iff all of it is free
//!
//! Cost: a search looks at no more than 8 nodes on each level on the way up and again on the way down, and never backs out of a
//! node that it has entered; with 2^26 slots that is 7 levels. Nearly full costs the same as nearly empty. Taking or giving back
//! recomputes the word's ancestors and stops at the first that did not change. That is where the cut at `RUN_MAX` pays: in the
//! middle of a large free space, exact lengths would change all the way up to the root. Measured on 2^26 slots (2-core virtual
//! machine, November 2026, `examples/cost.rs`): a run costs 105 to 231 ns, whether the list is empty, ragged or 99.9 % used, giving
//! back one slot 20 to 35 ns. With exact lengths up to the root it was 120 to 633 and 75 to 170 ns.
//!
//! Memory: 1 bit per slot, and 4 bytes per node: 32/512 * 8/7 = 0.07 bits; 1.07 bits per slot, 34 KiB per GiB of swap. All of it is
//! set up at creation, zeroed, and takes address space only until [`Blist::set_len`] reaches it.
//!
//! What it cannot do: give more than `RUN_MAX` slots (2 MiB) at once, shrink, or respect alignment. It has one cursor. A caller
//! that keeps several streams of writes apart has cursors of its own (see `swap_pager`).
//!
//! Rejected: Dillon's one-sided hint ("may be too high, never too low", one number per node). It needs less memory, but finds runs
//! across borders only with special care, and a stale hint costs a fruitless descent just when the device is nearly full. Three
//! exact numbers cost no more than a word and answer "what is the longest run" at the root.
//!
//! Source: Dillon 1998, FreeBSD `subr_blist.c`; read, not copied. Exact prefix, maximum and suffix per node are the textbook
//! segment tree.

use crate::bitmap::WORD_BITS;
use alloc::vec;
use alloc::vec::Vec;

/// log2 of the children per node.
const RADIX_SHIFT: u32 = 3;
/// log2 of the slots in a word.
const WORD_SHIFT: u32 = WORD_BITS.trailing_zeros();
/// The longest run that is distinguished from longer ones, and the longest that is given, in slots.
pub const RUN_MAX: u32 = 512;
const _: () = assert!(RUN_MAX as u64 == span(1), "joined() knows a node that is all free by its pre, up to level 1");
/// Bytes per node.
const NODE_BYTES: u64 = size_of::<u32>() as u64;
/// Most levels of nodes above the words: `64 * 8^9 >= 2^32`.
const LEVELS_MAX: usize = 9;

/// The free runs of a piece of the bitmap, in slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Runs {
    pre: u32,
    max: u32,
    suf: u32,
}

impl Runs {
    /// The runs of the lowest `width` bits of `bits`; the others must be 0.
    #[inline]
    fn of_word(bits: u64, width: u32) -> Self {
        if bits == 0 {
            return Runs { pre: 0, max: 0, suf: 0 };
        }
        Runs { pre: bits.trailing_ones(), max: longest_run(bits), suf: (bits << (WORD_BITS - width)).leading_ones() }
    }

    #[inline]
    fn from_node(node: u32) -> Self {
        Runs { pre: node & 0x3ff, max: node >> 10 & 0x3ff, suf: node >> 20 }
    }

    #[inline]
    fn to_node(self) -> u32 {
        self.pre.min(RUN_MAX) | self.max.min(RUN_MAX) << 10 | self.suf.min(RUN_MAX) << 20
    }
}

/// The length of the longest run of ones. Doubling up, then halving down: at most 11 steps.
#[inline]
fn longest_run(bits: u64) -> u32 {
    if bits == u64::MAX {
        return WORD_BITS;
    }
    if bits == 0 {
        return 0;
    }
    // starts[k]: where a run of 2^k ones starts.
    let mut starts = [bits, 0, 0, 0, 0, 0];
    let mut k = 0;
    while k < 5 {
        let next = starts[k] & (starts[k] >> (1 << k));
        if next == 0 {
            break;
        }
        k += 1;
        starts[k] = next;
    }
    let mut at = starts[k];
    let mut len = 1 << k;
    for j in (0..k).rev() {
        let longer = at & (starts[j] >> len);
        if longer != 0 {
            at = longer;
            len += 1 << j;
        }
    }
    len
}

/// Where the first run of at least `want` ones starts. => there is one; `1 <= want <= 64`
#[inline]
fn first_run(bits: u64, want: u32) -> u32 {
    let mut starts = bits;
    let mut have = 1;
    while have < want {
        let step = have.min(want - have);
        starts &= starts >> step;
        have += step;
    }
    assert!(starts != 0);
    starts.trailing_zeros()
}

/// The bits `from..to` of a word. => `from < to <= 64`
#[inline]
fn mask(from: u32, to: u32) -> u64 {
    (u64::MAX >> (WORD_BITS - (to - from))) << from
}

/// The slot allocator of one device. Slots are numbered from 0 within the device.
#[derive(Clone)]
pub struct Blist {
    /// Level 0. Bit set: free.
    words: Vec<u64>,
    /// Levels 1 and up, one after another: [`Runs`], packed.
    nodes: Vec<u32>,
    /// Where level `l` (from 1) starts in `nodes`; the difference to the next is its length.
    level_start: [usize; LEVELS_MAX + 2],
    /// Levels above the words; the topmost has one node.
    levels: u32,
    capacity: u32,
    len: u32,
    free: u32,
    /// Where the next search starts.
    cursor: u32,
}

impl Blist {
    /// A list that can grow to `capacity` slots; it starts with none ([`Blist::set_len`]). Allocates everything it will ever need.
    pub fn new(capacity: u32) -> Self {
        let words = capacity.div_ceil(WORD_BITS) as usize;
        let mut level_start = [0; LEVELS_MAX + 2];
        let mut levels = 0;
        let mut count = words;
        while count > 1 {
            count = count.div_ceil(1 << RADIX_SHIFT);
            levels += 1;
            level_start[levels + 1] = level_start[levels] + count;
        }
        assert!(levels <= LEVELS_MAX);
        Blist {
            words: vec![0; words],
            nodes: vec![0; level_start[levels + 1]],
            level_start,
            levels: levels as u32,
            capacity,
            len: 0,
            free: 0,
            cursor: 0,
        }
    }

    /// The most slots that it can have.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The usable slots are `0..len`.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether it has no slots at all, used or free.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Free slots.
    pub fn free_count(&self) -> u32 {
        self.free
    }

    /// Used slots.
    pub fn used(&self) -> u32 {
        self.len - self.free
    }

    /// Bytes of the tables that have been touched: proportional to [`Blist::len`].
    pub fn metadata_bytes(&self) -> u64 {
        let mut bytes = u64::from(self.len.div_ceil(WORD_BITS)) * u64::from(WORD_BITS / 8);
        for level in 1..=self.levels {
            bytes += u64::from(self.len).div_ceil(span(level)) * NODE_BYTES;
        }
        bytes
    }

    /// Whether `slot` is free. A slot beyond the end is not.
    pub fn is_free(&self, slot: u32) -> bool {
        slot < self.len && self.words[(slot >> WORD_SHIFT) as usize] >> (slot % WORD_BITS) & 1 != 0
    }

    /// Whether all slots of `first..first + count` are free. => within the length, `count` is not 0
    pub(crate) fn is_all_free(&self, first: u32, count: u32) -> bool {
        let (mut at, end) = (first, first + count);
        while at < end {
            let width = (WORD_BITS - at % WORD_BITS).min(end - at);
            if self.bits(u64::from(at), width) != mask(0, width) {
                return false;
            }
            at += width;
        }
        true
    }

    /// The used slots of `index * 64 ..`, as bits. => within the length
    pub(crate) fn used_word(&self, index: usize) -> u64 {
        let start = index as u32 * WORD_BITS;
        !self.words[index] & mask(0, WORD_BITS.min(self.len - start))
    }

    /// Moves the usable end to `len`; the new slots are free. Costs in proportion to the growth.
    ///
    /// # Panics
    /// If it would shrink, or go beyond the capacity.
    pub fn set_len(&mut self, len: u32) {
        assert!(self.len <= len && len <= self.capacity, "a blist only grows, up to its capacity");
        let first = self.len;
        let count = len - first;
        if count > 0 {
            self.len = len;
            self.give(first, count);
        }
    }

    /// Takes `want` contiguous slots below `end`, next-fit, or none. Does not allocate.
    ///
    /// # Panics
    /// If `want` is 0 or more than [`RUN_MAX`].
    pub fn alloc_exact(&mut self, want: u32, end: u32) -> Option<u32> {
        let first = self.find_from(self.cursor, want, end)?;
        self.take(first, want);
        self.cursor = first + want;
        Some(first)
    }

    /// Where `want` contiguous free slots below `end` are: the first such from `cursor` on, then from the beginning.
    ///
    /// # Panics
    /// If `want` is 0 or more than [`RUN_MAX`].
    pub(crate) fn find_from(&self, cursor: u32, want: u32, end: u32) -> Option<u32> {
        assert!(0 < want && want <= RUN_MAX);
        let end = end.min(self.len);
        if want > self.free || want > end {
            return None;
        }
        if end == self.len && self.longest_below(end) < want {
            return None; // the root alone tells
        }
        // The second search also finds a run across the cursor. It searches everything, which costs no more than a part.
        self.find(cursor, end, want).or_else(|| self.find(0, end, want))
    }

    /// Where `want` contiguous free slots within `start..end` are: the first such. => `want` is 1 to [`RUN_MAX`]
    pub(crate) fn find_within(&self, start: u32, end: u32, want: u32) -> Option<u32> {
        let end = end.min(self.len);
        if start >= end || want > end - start { None } else { self.find(start, end, want) }
    }

    /// Free slots in whole blocks of [`RUN_MAX`], that is, without fragmented ones, in slots. Looks at each block.
    pub fn free_in_blocks(&self) -> u32 {
        let blocks = u64::from(self.len) / span(1);
        (0..blocks as usize).map(|block| if self.runs(1, block).pre == RUN_MAX { RUN_MAX } else { 0 }).sum()
    }

    /// Makes the list empty, with no slots at all. Costs in proportion to the length.
    pub fn clear(&mut self) {
        let touched = |level: u32, len: u32| u64::from(len).div_ceil(span(level)) as usize;
        self.words[..touched(0, self.len)].fill(0);
        for level in 1..=self.levels {
            let start = self.level_start[level as usize];
            self.nodes[start..start + touched(level, self.len)].fill(0);
        }
        (self.len, self.free, self.cursor) = (0, 0, 0);
    }

    /// The longest run of free slots below `end`, in slots; [`RUN_MAX`] also if it is longer.
    pub fn longest_below(&self, end: u32) -> u32 {
        let end = self.search_end(end);
        let (mut at, mut run, mut best) = (0, 0, 0);
        while at < end {
            let (runs, span, _) = self.piece(at, end, self.levels);
            best = best.max(runs.max).max(run + runs.pre);
            run = if u64::from(runs.pre) == span { run + runs.pre } else { runs.suf };
            at += span;
        }
        best.min(RUN_MAX)
    }

    /// Takes `want` contiguous slots below `end`, next-fit; if there is no such run, the longest there is. Returns first and count.
    ///
    /// More than [`RUN_MAX`] is never given. `None` iff no slot below `end` is free. Does not allocate.
    ///
    /// # Panics
    /// If `want` is 0.
    pub fn alloc_run(&mut self, want: u32, end: u32) -> Option<(u32, u32)> {
        let want = want.min(RUN_MAX);
        if let Some(first) = self.alloc_exact(want, end) {
            return Some((first, want));
        }
        let count = self.longest_below(end);
        assert!(count < want);
        if count == 0 {
            return None;
        }
        let first = self.alloc_exact(count, end).expect("the longest run is there");
        Some((first, count))
    }

    /// Gives back one slot. Does not allocate.
    ///
    /// # Panics
    /// If it is free or out of range.
    pub fn free(&mut self, slot: u32) {
        self.free_run(slot, 1);
    }

    /// Gives back `count` slots from `first` on. Does not allocate.
    ///
    /// # Panics
    /// If one of them is free or out of range.
    pub fn free_run(&mut self, first: u32, count: u32) {
        assert!(count <= self.used() && first <= self.len - count, "slots {first} + {count} are out of range");
        if count > 0 {
            self.give(first, count);
        }
    }

    /// Where a run of `want` free slots within `start..end` begins: the first such.
    ///
    /// Walks from piece to piece, each the largest aligned node that fits. Once a node is known to hold the run, the walk goes down
    /// inside it and does not come out again.
    fn find(&self, start: u32, end: u32, want: u32) -> Option<u32> {
        let end = self.search_end(end);
        let mut at = u64::from(start);
        let mut run = 0; // free slots directly before `at`
        let mut level_max = self.levels;
        while at < end {
            let (runs, span, level) = self.piece(at, end, level_max);
            if run + runs.pre >= want {
                return Some(at as u32 - run);
            }
            if runs.max >= want {
                if level > 0 {
                    level_max = level - 1;
                    continue;
                }
                return Some(at as u32 + first_run(self.bits(at, span as u32), want));
            }
            run = if u64::from(runs.pre) == span { run + runs.pre } else { runs.suf };
            at += span;
        }
        None
    }

    /// The end of a search for slots below `end`. Beyond the length nothing is free, so the search may go to the end of the tree.
    /// Then the walk ends with few large pieces.
    fn search_end(&self, end: u32) -> u64 {
        if end >= self.len { span(self.levels) } else { u64::from(end) }
    }

    /// The largest piece that starts at `at`, ends by `end` and is a node of at most `level_max`, or part of a word (level 0).
    #[inline]
    fn piece(&self, at: u64, end: u64, level_max: u32) -> (Runs, u64, u32) {
        let word_end = (at | u64::from(WORD_BITS - 1)) + 1;
        if at & u64::from(WORD_BITS - 1) != 0 || word_end > end {
            let width = (word_end.min(end) - at) as u32;
            return (Runs::of_word(self.bits(at, width), width), u64::from(width), 0);
        }
        let mut level = 0;
        while level < level_max && at & (span(level + 1) - 1) == 0 && at + span(level + 1) <= end {
            level += 1;
        }
        (self.runs(level, (at >> shift(level)) as usize), span(level), level)
    }

    /// `width` bits from `at` on, all in one word, moved to the low end. Words beyond the capacity are zero.
    #[inline]
    fn bits(&self, at: u64, width: u32) -> u64 {
        let word = self.words.get((at >> WORD_SHIFT) as usize).copied().unwrap_or(0);
        (word >> (at % u64::from(WORD_BITS))) & mask(0, width)
    }

    /// The runs of node `index` of `level`; beyond the capacity there are none.
    #[inline]
    fn runs(&self, level: u32, index: usize) -> Runs {
        if level == 0 {
            return Runs::of_word(self.words.get(index).copied().unwrap_or(0), WORD_BITS);
        }
        let at = self.level_start[level as usize] + index;
        let node = if at < self.level_start[level as usize + 1] { self.nodes[at] } else { 0 };
        Runs::from_node(node)
    }

    /// Free slots become used.
    pub(crate) fn take(&mut self, first: u32, count: u32) {
        self.for_words(first, count, |word, bits| {
            assert!(*word & bits == bits, "taking a slot that is used");
            *word &= !bits;
        });
        self.free -= count;
        self.update(1, first, first + count - 1);
    }

    /// Used slots become free.
    fn give(&mut self, first: u32, count: u32) {
        self.for_words(first, count, |word, bits| {
            assert!(*word & bits == 0, "giving back a slot that is free");
            *word |= bits;
        });
        self.free += count;
        assert!(self.free <= self.len); // used + free == len
        let last = first + count - 1;
        if self.levels > 0 && first >> shift(1) == last >> shift(1) {
            if self.extend(first, last) {
                self.update(2, first, last);
            }
        } else {
            self.update(1, first, last);
        }
    }

    fn for_words(&mut self, first: u32, count: u32, mut change: impl FnMut(&mut u64, u64)) {
        let end = first + count;
        let mut at = first;
        while at < end {
            let from = at % WORD_BITS;
            let to = WORD_BITS.min(from + (end - at));
            change(&mut self.words[(at >> WORD_SHIFT) as usize], mask(from, to));
            at += to - from;
        }
    }

    /// Updates the node of level 1 over the slots `first..=last`, which have become free. Need not read all of its words, because
    /// runs only get longer. Returns whether the node changed.
    fn extend(&mut self, first: u32, last: u32) -> bool {
        let node_start = first & !(RUN_MAX - 1);
        let node_end = node_start + (RUN_MAX - 1);
        // The run that the slots are now in, `from..=to` within the node.
        let mut from = first;
        while from > node_start {
            let below = from - 1;
            let ones = (self.words[(below >> WORD_SHIFT) as usize] << (WORD_BITS - 1 - below % WORD_BITS)).leading_ones();
            from -= ones;
            if !from.is_multiple_of(WORD_BITS) || ones == 0 {
                break;
            }
        }
        let mut to = last;
        while to < node_end {
            let above = to + 1;
            let word = self.words.get((above >> WORD_SHIFT) as usize).copied().unwrap_or(0);
            let ones = (word >> (above % WORD_BITS)).trailing_ones();
            to += ones;
            if !(to + 1).is_multiple_of(WORD_BITS) || ones == 0 {
                break;
            }
        }
        let run = to - from + 1;
        let at = (first >> shift(1)) as usize; // level 1 starts at 0
        let mut runs = Runs::from_node(self.nodes[at]);
        runs.max = runs.max.max(run);
        if from == node_start {
            runs.pre = run;
        }
        if to == node_end {
            runs.suf = run;
        }
        let node = runs.to_node();
        core::mem::replace(&mut self.nodes[at], node) != node
    }

    /// Recomputes the ancestors, from level `from` up, of the slots `first..=last`, until a level does not change.
    fn update(&mut self, from: u32, first: u32, last: u32) {
        for level in from..=self.levels {
            let mut changed = false;
            let [first, last] = [first, last].map(|slot| (u64::from(slot) >> shift(level)) as usize);
            for index in first..=last {
                let node = self.joined(level, index);
                let at = self.level_start[level as usize] + index;
                if self.nodes[at] != node {
                    self.nodes[at] = node;
                    changed = true;
                }
            }
            if !changed {
                return;
            }
        }
    }

    /// The value of node `index` of `level`, from its children.
    fn joined(&self, level: u32, index: usize) -> u32 {
        let child_span = span(level - 1) as u32; // above level 1 no `pre` reaches it, because runs are cut at RUN_MAX
        let (mut pre, mut max, mut run) = (0, 0, 0);
        let mut whole = true; // all children so far are free
        for child in index << RADIX_SHIFT..(index + 1) << RADIX_SHIFT {
            let runs = self.runs(level - 1, child);
            max = max.max(runs.max).max(run + runs.pre);
            if whole {
                pre += runs.pre;
            }
            if runs.pre == child_span {
                run += child_span;
            } else {
                whole = false;
                run = runs.suf;
            }
        }
        Runs { pre, max, suf: run }.to_node()
    }

    /// Walks over everything and asserts the invariants in the head. For tests; costs in proportion to the capacity.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check(&self) {
        let ones: u32 = self.words.iter().map(|w| w.count_ones()).sum();
        assert_eq!(ones, self.free);
        assert!(self.free <= self.len && self.len <= self.capacity);
        for (index, &word) in self.words.iter().enumerate() {
            let start = index as u64 * u64::from(WORD_BITS);
            for bit in 0..WORD_BITS {
                assert!(word >> bit & 1 == 0 || start + u64::from(bit) < u64::from(self.len));
            }
        }
        for level in 1..=self.levels {
            let nodes = &self.nodes[self.level_start[level as usize]..self.level_start[level as usize + 1]];
            for (index, &node) in nodes.iter().enumerate() {
                assert_eq!(node, self.joined(level, index), "level {level}, node {index}");
            }
        }
    }
}

/// log2 of [`span`].
#[inline]
const fn shift(level: u32) -> u32 {
    WORD_SHIFT + RADIX_SHIFT * level
}

/// Slots below one node of `level`.
#[inline]
const fn span(level: u32) -> u64 {
    1 << shift(level)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn runs_of_all_16_bit_patterns() {
        for low in 0..=u64::from(u16::MAX) {
            for bits in [low, low << 48, low << 24, !low] {
                let (mut longest, mut run) = (0, 0);
                for bit in 0..64 {
                    run = if bits >> bit & 1 != 0 { run + 1 } else { 0 };
                    longest = longest.max(run);
                }
                assert_eq!(longest_run(bits), longest, "{bits:#x}");
                if longest > 0 {
                    let at = first_run(bits, longest);
                    let run = if longest == 64 { u64::MAX } else { ((1 << longest) - 1) << at };
                    assert_eq!(bits & run, run);
                }
            }
        }
    }

    fn take_all(list: &mut Blist) {
        while list.alloc_run(RUN_MAX, u32::MAX).is_some() {}
        assert_eq!(list.used(), list.len());
    }

    #[test]
    fn a_run_crosses_every_border() {
        let mut list = Blist::new(3 * 4096);
        list.set_len(3 * 4096);
        take_all(&mut list);
        for border in [64, 512, 4096, 8192] {
            list.free_run(border - 3, 7);
            list.check();
            assert_eq!(list.alloc_run(100, u32::MAX), Some((border - 3, 7)));
            list.check();
        }
        assert_eq!(list.alloc_run(1, u32::MAX), None);
    }

    #[test]
    fn clusters_follow_each_other_and_wrap() {
        let mut list = Blist::new(1000);
        list.set_len(1000);
        for cluster in 0..10 {
            assert_eq!(list.alloc_run(100, u32::MAX), Some((cluster * 100, 100)));
        }
        list.free_run(250, 60);
        list.free_run(850, 30);
        assert_eq!(list.alloc_run(30, u32::MAX), Some((250, 30))); // the cursor was at the end
        assert_eq!(list.alloc_run(30, u32::MAX), Some((280, 30)));
        assert_eq!(list.alloc_run(31, u32::MAX), Some((850, 30)));
        assert_eq!(list.alloc_run(31, u32::MAX), None);
    }

    #[test]
    fn sizes_at_the_edges() {
        for capacity in [0, 1, 63, 64, 65, 511, 512, 513, 4095, 4097] {
            let mut list = Blist::new(capacity);
            assert!(list.is_empty());
            assert_eq!(list.alloc_run(1, u32::MAX), None);
            list.set_len(capacity);
            list.check();
            assert_eq!(list.longest_below(u32::MAX), capacity.min(RUN_MAX));
            assert_eq!(list.alloc_run(u32::MAX, u32::MAX), (capacity > 0).then_some((0, capacity.min(RUN_MAX))));
            list.check();
            take_all(&mut list);
            list.check();
            list.free_run(0, capacity);
            list.check();
        }
    }

    #[test]
    fn the_largest_number_space() {
        let mut list = Blist::new(u32::MAX - 1); // 1.07 bits per slot of address space, hardly any memory
        list.set_len(100_000);
        take_all(&mut list);
        list.free_run(70_000, 10);
        assert_eq!(list.alloc_run(20, u32::MAX), Some((70_000, 10)));
        assert!(list.metadata_bytes() < 16_000);
    }

    #[test]
    #[cfg(panic = "unwind")]
    fn a_slot_cannot_be_freed_twice() {
        let mut list = Blist::new(100);
        list.set_len(100);
        let (first, _) = list.alloc_run(3, u32::MAX).unwrap();
        list.free(first);
        assert!(std::panic::catch_unwind(move || list.free(first)).is_err());
    }

    /// The dull model: the set of free slots.
    fn longest(free: &BTreeSet<u32>, end: u32) -> u32 {
        let (mut best, mut run, mut last) = (0, 0, None);
        for &slot in free.range(..end) {
            run = if last == slot.checked_sub(1) && last.is_some() { run + 1 } else { 1 };
            best = best.max(run);
            last = Some(slot);
        }
        best
    }

    proptest! {
        #[test]
        fn behaves_like_a_set(
            capacity in 1u32..6000,
            len in 0.0..1.0f64,
            ops in prop::collection::vec((0u8..8, any::<u32>(), 1u32..200), 1..150),
        ) {
            let mut list = Blist::new(capacity);
            let mut len = (f64::from(capacity) * len) as u32;
            list.set_len(len);
            let mut free: BTreeSet<u32> = (0..len).collect();
            let mut taken: Vec<(u32, u32)> = Vec::new();
            for (op, at, want) in ops {
                match op {
                    // Some operations are huge, so that few of them fill it.
                    0..=3 => {
                        let want = if op == 3 { want * 8 } else { want };
                        let end = if op == 2 { at % (capacity + 10) } else { u32::MAX };
                        let best = longest(&free, end);
                        match list.alloc_run(want, end) {
                            None => prop_assert_eq!(best, 0),
                            Some((first, count)) => {
                                prop_assert_eq!(count, want.min(best).min(RUN_MAX));
                                prop_assert!(first + count <= end);
                                for slot in first..first + count {
                                    prop_assert!(free.remove(&slot), "slot {} was given twice", slot);
                                }
                                taken.push((first, count));
                            }
                        }
                    }
                    4 if !taken.is_empty() => {
                        let (first, count) = taken.swap_remove(at as usize % taken.len());
                        list.free_run(first, count);
                        free.extend(first..first + count);
                    }
                    // Frees a part, so that the free runs get ragged.
                    5 | 6 if !taken.is_empty() => {
                        let (first, count) = taken.swap_remove(at as usize % taken.len());
                        let cut = (at >> 8) % count;
                        list.free(first + cut);
                        free.insert(first + cut);
                        if cut > 0 { taken.push((first, cut)) }
                        if cut + 1 < count { taken.push((first + cut + 1, count - cut - 1)) }
                    }
                    7 => {
                        let longer = len + at % (capacity - len + 1).min(want * 4);
                        list.set_len(longer);
                        free.extend(len..longer);
                        len = longer;
                    }
                    _ => {}
                }
                prop_assert_eq!(list.free_count() as usize, free.len());
                prop_assert_eq!(list.used() + list.free_count(), list.len());
            }
            list.check();
            for slot in 0..capacity + 1 {
                prop_assert_eq!(list.is_free(slot), free.contains(&slot));
            }
        }
    }
}

//! Extents say where the slots of a device lie if it has more than one piece: pieces of files, whole files, block devices.
//!
//! ```text
//!   root     [ 0 | 8192 | 20480 | ... ]                    the first slot of each leaf, in order
//!               \       \
//!   leaves       [ 0 256 512 ... ]  [ 8192 9000 ... ]      up to 64 extents each: first slot; elsewhere count, file, offset
//! ```
//!
//! This is a search tree of two levels. All leaves lie at the same depth, and two neighbours together have more extents than one
//! leaf can, so the tree is always balanced. A lookup is a binary search in the root and one in a leaf. For 84,656 extents that is
//! 12 and 6 comparisons, in six or seven cache lines. All lookups share the upper ones.
//!
//! Why not a deeper tree: a lookup would touch no fewer lines. The only cost of a wide root is that a split or a merge moves its
//! tail, 8 bytes per leaf. That is 20 KiB at 84,656 extents, a microsecond, once in 32 changes, and changes are as rare as growth
//! in chunks. At a million extents it is 0.25 MiB. Why not a red-black tree as in the kernel: 17 dependent cache misses instead of
//! seven.
//!
//! Invariants ([`ExtentMap::check`]):
//!
//! - extents do not overlap; each leaf is in order, and the root has the first slot of each leaf
//! - no leaf is empty; two neighbouring leaves together hold more than one can
//! - leaves in use + leaves free == leaves touched <= leaves there are
//!
//! Extents are never joined, even if they touch: the owner wants a border there (the end of a chunk or of a physical extent).
//!
//! Memory: 18 bytes per place of an extent, and leaves are at least half full: at most 36.3 bytes per extent. No allocation after
//! [`ExtentMap::new`]; untouched leaves are address space only.
//!
//! Source: the Linux patch of 2019 that put `swap_extent` into a red-black tree (Aaron Lu); B+ trees: Bayer, McCreight 1972. Read,
//! not copied. `bench/` has the list that the patch replaced.

use alloc::vec;
use alloc::vec::Vec;
use overspill_vm::types::Slot;

/// Extents per leaf.
const LEAF: usize = 64;

/// A piece of a device: neighbouring slots in neighbouring pages of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Its first slot.
    pub first: Slot,
    /// Its length in slots (pages), at least 1.
    pub count: u32,
    /// The number of its file, as the machine numbers the device's files.
    pub file: u16,
    /// Where it begins there, in bytes.
    pub offset: u64,
}

impl Extent {
    /// Its last slot.
    #[inline]
    pub fn last(&self) -> Slot {
        Slot(self.first.0 + (self.count - 1))
    }
    /// Where `slot` lies in the file, in bytes. => `slot` is in this extent
    #[inline]
    pub fn offset_of(&self, slot: Slot) -> u64 {
        self.offset + u64::from(slot.0 - self.first.0) * overspill_vm::types::PAGE_SIZE as u64
    }
}

/// There is no room for another extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoExtents;

/// All extents of all devices, by slot.
#[derive(Clone)]
pub struct ExtentMap {
    /// First slot of each leaf, in order.
    root: Vec<u32>,
    /// The number of each of these leaves.
    leaf: Vec<u32>,
    /// Per leaf: how many extents it has.
    lens: Vec<u8>,
    /// `LEAF` per leaf.
    firsts: Vec<u32>,
    counts: Vec<u32>,
    files: Vec<u16>,
    offsets: Vec<u64>,
    /// Leaves that were given back.
    free: Vec<u32>,
    /// Leaves that were ever used.
    touched: u32,
    len: u32,
    len_max: u32,
}

impl ExtentMap {
    /// A map for up to `extents_max` extents. Allocates everything it will ever need, zeroed.
    pub fn new(extents_max: u32) -> Self {
        // Two neighbours together have more than LEAF; one more leaf may be left over, and a split needs one.
        let leaves = if extents_max == 0 { 0 } else { 2 * (extents_max as usize / LEAF) + 3 };
        ExtentMap {
            root: Vec::with_capacity(leaves),
            leaf: Vec::with_capacity(leaves),
            lens: vec![0; leaves],
            firsts: vec![0; leaves * LEAF],
            counts: vec![0; leaves * LEAF],
            files: vec![0; leaves * LEAF],
            offsets: vec![0; leaves * LEAF],
            free: Vec::with_capacity(leaves),
            touched: 0,
            len: 0,
            len_max: extents_max,
        }
    }

    /// The number of extents.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many extents can still be added.
    pub fn room(&self) -> u32 {
        self.len_max - self.len
    }

    /// Bytes of the tables that have been touched.
    pub fn metadata_bytes(&self) -> u64 {
        u64::from(self.touched) * (LEAF as u64 * 18 + 1 + 12)
    }

    /// The place in the root of the leaf that may have `slot`. => not empty
    #[inline]
    fn root_of(&self, slot: u32) -> usize {
        self.root.partition_point(|&first| first <= slot).saturating_sub(1)
    }

    /// The first slots of the leaf at place `at` of the root.
    #[inline]
    fn leaf_firsts(&self, at: usize) -> &[u32] {
        let leaf = self.leaf[at] as usize;
        &self.firsts[leaf * LEAF..][..self.lens[leaf] as usize]
    }

    #[inline]
    fn extent(&self, at: usize) -> Extent {
        Extent { first: Slot(self.firsts[at]), count: self.counts[at], file: self.files[at], offset: self.offsets[at] }
    }

    /// Where the extent of `slot` is in the tables.
    #[inline]
    fn position(&self, slot: Slot) -> Option<usize> {
        if self.root.is_empty() {
            return None;
        }
        let at = self.root_of(slot.0);
        let within = self.leaf_firsts(at).partition_point(|&first| first <= slot.0).checked_sub(1)?;
        let at = self.leaf[at] as usize * LEAF + within;
        (slot.0 - self.firsts[at] < self.counts[at]).then_some(at)
    }

    /// The extent that `slot` is in. Does not allocate.
    #[inline]
    pub fn find(&self, slot: Slot) -> Option<Extent> {
        self.position(slot).map(|at| self.extent(at))
    }

    /// The first extent that begins at or after `slot`.
    pub fn next(&self, slot: Slot) -> Option<Extent> {
        if self.root.is_empty() {
            return None;
        }
        let mut at = self.root_of(slot.0);
        let mut within = self.leaf_firsts(at).partition_point(|&first| first < slot.0);
        if within == self.leaf_firsts(at).len() {
            (at, within) = (at + 1, 0);
        }
        (at < self.root.len()).then(|| self.extent(self.leaf[at] as usize * LEAF + within))
    }

    /// Adds an extent. Does not allocate.
    ///
    /// # Errors
    /// If there are as many as there can be; nothing is changed then.
    ///
    /// # Panics
    /// If it is empty, or overlaps another.
    pub fn insert(&mut self, extent: Extent) -> Result<(), NoExtents> {
        assert!(extent.count > 0 && extent.first.0.checked_add(extent.count).is_some());
        let after = self.next(extent.first).is_none_or(|next| next.first.0 > extent.last().0);
        assert!(after && self.find(extent.first).is_none(), "extents overlap");
        if self.len == self.len_max {
            return Err(NoExtents);
        }
        if self.root.is_empty() {
            let leaf = self.leaf_alloc();
            self.root.push(extent.first.0);
            self.leaf.push(leaf);
        }
        let mut at = self.root_of(extent.first.0);
        let full = self.leaf_firsts(at).len() == LEAF;
        if full {
            self.split(at);
            at = self.root_of(extent.first.0);
        }
        let leaf = self.leaf[at] as usize;
        let len = self.lens[leaf] as usize;
        let within = self.leaf_firsts(at).partition_point(|&first| first < extent.first.0);
        let (from, to) = (leaf * LEAF + within, leaf * LEAF + len);
        self.shift(from..to, from + 1);
        self.firsts[from] = extent.first.0;
        self.counts[from] = extent.count;
        self.files[from] = extent.file;
        self.offsets[from] = extent.offset;
        self.lens[leaf] += 1;
        self.len += 1;
        self.root[at] = self.firsts[leaf * LEAF];
        if full {
            // the halves may fit in with their neighbours
            (at.saturating_sub(2)..at + 2).rev().for_each(|at| self.merge(at));
        }
        Ok(())
    }

    /// Removes the extent that begins at `first`. Does not allocate.
    pub fn remove(&mut self, first: Slot) -> Option<Extent> {
        let position = self.position(first).filter(|&at| self.firsts[at] == first.0)?;
        let extent = self.extent(position);
        let at = self.root_of(first.0);
        let leaf = position / LEAF;
        let end = leaf * LEAF + self.lens[leaf] as usize;
        self.shift(position + 1..end, position);
        self.lens[leaf] -= 1;
        self.len -= 1;
        if self.lens[leaf] == 0 {
            self.leaf_free(at);
            // its neighbours have become neighbours of each other
            self.merge(at.saturating_sub(1));
            return Some(extent);
        }
        self.root[at] = self.firsts[leaf * LEAF];
        (at.saturating_sub(1)..at + 1).rev().for_each(|at| self.merge(at));
        Some(extent)
    }

    /// Cuts an extent in two, so that one begins at `slot`, if it lies within one. Does not allocate.
    ///
    /// # Errors
    /// As [`ExtentMap::insert`].
    pub fn cut(&mut self, slot: Slot) -> Result<(), NoExtents> {
        let Some(at) = self.position(slot).filter(|&at| self.firsts[at] != slot.0) else { return Ok(()) };
        if self.len == self.len_max {
            return Err(NoExtents);
        }
        let whole = self.extent(at);
        self.counts[at] = slot.0 - whole.first.0;
        self.insert(Extent { first: slot, count: whole.last().0 - slot.0 + 1, offset: whole.offset_of(slot), ..whole })
    }

    /// Moves entries within the tables.
    fn shift(&mut self, from: core::ops::Range<usize>, to: usize) {
        self.firsts.copy_within(from.clone(), to);
        self.counts.copy_within(from.clone(), to);
        self.files.copy_within(from.clone(), to);
        self.offsets.copy_within(from, to);
    }

    /// An empty leaf.
    fn leaf_alloc(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            assert!((self.touched as usize) < self.lens.len(), "leaves are at least half full in pairs");
            self.touched += 1;
            self.touched - 1
        })
    }

    /// Gives the emptied leaf at place `at` of the root back.
    fn leaf_free(&mut self, at: usize) {
        self.root.remove(at);
        let leaf = self.leaf.remove(at);
        assert!(self.lens[leaf as usize] == 0);
        self.free.push(leaf);
    }

    /// Cuts the full leaf at place `at` of the root in two.
    fn split(&mut self, at: usize) {
        let fresh = self.leaf_alloc();
        let (leaf, new) = (self.leaf[at] as usize, fresh as usize);
        // Extents are mostly added at the end. There only a short tail moves, so that leaves stay nearly full.
        let keep = if at + 1 == self.root.len() { LEAF - 1 } else { LEAF / 2 };
        self.shift(leaf * LEAF + keep..(leaf + 1) * LEAF, new * LEAF);
        self.lens[leaf] = keep as u8;
        self.lens[new] = (LEAF - keep) as u8;
        self.root.insert(at + 1, self.firsts[new * LEAF]);
        self.leaf.insert(at + 1, fresh);
    }

    /// Joins the leaf at place `at` of the root with the next one, if both exist and fit into one.
    fn merge(&mut self, at: usize) {
        if at + 1 >= self.leaf.len() {
            return;
        }
        let (leaf, next) = (self.leaf[at] as usize, self.leaf[at + 1] as usize);
        let [len, more] = [leaf, next].map(|l| self.lens[l] as usize);
        if len + more <= LEAF {
            self.shift(next * LEAF..next * LEAF + more, leaf * LEAF + len);
            self.lens[leaf] += more as u8;
            self.lens[next] = 0;
            self.leaf_free(at + 1);
        }
    }

    /// Walks over everything and asserts the invariants in the head. For tests.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check(&self) {
        let (mut end, mut count) = (0, 0);
        for (at, &first) in self.root.iter().enumerate() {
            let leaf = self.leaf[at] as usize;
            let len = self.lens[leaf] as usize;
            assert!(len > 0 && first == self.firsts[leaf * LEAF]);
            if let Some(&next) = self.leaf.get(at + 1) {
                assert!(len + self.lens[next as usize] as usize > LEAF);
            }
            for at in leaf * LEAF..leaf * LEAF + len {
                let extent = self.extent(at);
                assert!(extent.first.0 >= end && extent.count > 0);
                end = extent.first.0 + extent.count;
                count += 1;
            }
        }
        assert_eq!(count, self.len);
        assert_eq!(self.root.len() + self.free.len(), self.touched as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn extent(first: u32, count: u32) -> Extent {
        Extent { first: Slot(first), count, file: first as u16 % 7, offset: u64::from(first) << 20 }
    }

    #[test]
    fn as_many_as_promised_in_any_order() {
        for (n, step) in [(1u32, 1u32), (64, 1), (65, 1), (1000, 1), (1000, 999), (1000, 619), (84_656, 50_021)] {
            let mut map = ExtentMap::new(n);
            for k in 0..n {
                let k = (u64::from(k) * u64::from(step) % u64::from(n)) as u32;
                assert_eq!(map.insert(extent(k * 3, 2)), Ok(()));
            }
            map.check();
            assert_eq!(map.insert(extent(n * 3, 2)), Err(NoExtents));
            for k in 0..n {
                assert_eq!(map.find(Slot(k * 3 + 1)), Some(extent(k * 3, 2)));
                assert_eq!(map.find(Slot(k * 3 + 2)), None);
            }
            (0..n).for_each(|k| assert!(map.remove(Slot(k * 3)).is_some()));
            map.check();
            assert!(map.is_empty());
        }
    }

    #[test]
    fn an_extent_is_cut_where_one_is_to_begin() {
        let mut map = ExtentMap::new(3);
        map.insert(Extent { first: Slot(10), count: 20, file: 1, offset: 4096 }).unwrap();
        assert_eq!([10, 30, 15].map(|slot| map.cut(Slot(slot))), [Ok(()); 3]);
        assert_eq!(map.find(Slot(14)), Some(Extent { first: Slot(10), count: 5, file: 1, offset: 4096 }));
        assert_eq!(map.find(Slot(29)), Some(Extent { first: Slot(15), count: 15, file: 1, offset: 6 * 4096 }));
        assert_eq!((map.cut(Slot(20)), map.cut(Slot(21))), (Ok(()), Err(NoExtents)));
        map.check();
    }

    #[test]
    fn appended_extents_fill_their_leaves() {
        let mut map = ExtentMap::new(84_656);
        (0..84_656).for_each(|k| map.insert(extent(k * 256, 256)).unwrap());
        assert!(map.metadata_bytes() < 84_656 * 21, "{} bytes", map.metadata_bytes());
    }

    #[test]
    #[cfg(panic = "unwind")]
    fn extents_do_not_overlap() {
        for (first, count) in [(10, 5), (12, 1), (14, 100), (5, 6), (0, 1000)] {
            let mut map = ExtentMap::new(10);
            map.insert(extent(10, 5)).unwrap();
            assert!(std::panic::catch_unwind(move || map.insert(extent(first, count))).is_err());
        }
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(
            max in 1u32..500,
            ops in prop::collection::vec((0u8..5, 0u32..3000, 1u32..40), 1..1500),
        ) {
            let mut map = ExtentMap::new(max);
            let mut model: BTreeMap<u32, Extent> = BTreeMap::new();
            for (op, at, count) in ops {
                let before = model.range(..=at).next_back().map(|(_, e)| *e);
                let holds = before.filter(|e| at <= e.last().0);
                match op {
                    0..=2 => {
                        let next = model.range(at..).next().map_or(u32::MAX, |(&first, _)| first);
                        let count = count.min(next - at);
                        if holds.is_none() && count > 0 {
                            let full = model.len() as u32 == max;
                            prop_assert_eq!(map.insert(extent(at, count)).is_err(), full);
                            if !full { model.insert(at, extent(at, count)); }
                        }
                    }
                    3 => prop_assert_eq!(map.remove(Slot(at)), model.remove(&at)),
                    _ => if let Some(e) = before {
                        model.remove(&e.first.0);
                        prop_assert_eq!(map.remove(e.first), Some(e));
                    }
                }
                let before = model.range(..=at).next_back().map(|(_, e)| *e);
                prop_assert_eq!(map.find(Slot(at)), before.filter(|e| at <= e.last().0));
                prop_assert_eq!(map.next(Slot(at)), model.range(at..).next().map(|(_, e)| *e));
                prop_assert_eq!(map.len() as usize, model.len());
            }
            map.check();
        }
    }
}

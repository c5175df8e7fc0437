//! The page table: object and page index to state word. A radix tree per object over pools made at set-up.
//!
//! ```text
//!   object -> root (8192 entries, 16 Mi pages each) -> middle (8192 entries, 2 MiB of pages... ) -> leaf (512 words)
//! ```
//!
//! A flat table for a 47-bit address space would reserve 256 GiB and break under RLIMIT_AS; a program touches few corners of it,
//! so three levels cost one 32 KiB node per 16 GiB of used address space and one 4 KiB leaf per 2 MiB (0.2 % of what is managed).
//! Leaves whose last page was released go back to the pool.
//!
//! Invariants: `leaf_live[l]` is the number of non-zero words in leaf `l`; a leaf in the tree has `leaf_live > 0` after each
//! public call that may empty it.

use crate::page::PageWord;
use crate::types::{ObjectId, PageId, PageIndex};

const LEAF_BITS: u32 = 9;
const MIDDLE_BITS: u32 = 13;
const ROOT_BITS: u32 = 13;
const LEAF_PAGES: u64 = 1 << LEAF_BITS;
const MIDDLE_PAGES: u64 = 1 << (LEAF_BITS + MIDDLE_BITS);

/// Pages an object may have at most.
pub const OBJECT_PAGES_MAX: PageIndex = 1 << (LEAF_BITS + MIDDLE_BITS + ROOT_BITS);

/// A pool of fixed-size nodes in one zeroed vector: memory is touched only as far as nodes were ever used.
#[derive(Clone, Debug)]
struct Pool<T> {
    node_bits: u32,
    cells: Vec<T>,
    fresh: u32,
    limit: u32,
    free: Vec<u32>,
}

impl<T: Copy + Default> Pool<T> {
    fn new(node_bits: u32, limit: usize) -> Self {
        Pool {
            node_bits,
            cells: vec![T::default(); limit << node_bits],
            fresh: 0,
            limit: limit as u32,
            free: Vec::with_capacity(limit),
        }
    }
    fn take(&mut self) -> Option<u32> {
        if let Some(n) = self.free.pop() {
            return Some(n);
        }
        (self.fresh < self.limit).then(|| {
            self.fresh += 1;
            self.fresh - 1
        })
    }
    /// => all cells are zero again
    fn give(&mut self, node: u32) {
        self.free.push(node); // within the capacity: at most `limit` nodes exist
    }
    #[inline]
    fn at(&self, node: u32, cell: u64) -> usize {
        ((node as usize) << self.node_bits) + cell as usize
    }
    fn bytes(&self) -> u64 {
        (self.fresh as u64) << self.node_bits << size_of::<T>().trailing_zeros()
    }
}

/// The table. Middle and leaf numbers are stored plus one; zero means absent.
#[derive(Clone, Debug)]
pub struct PageTable {
    roots: Vec<u32>,
    objects: u16,
    middles: Pool<u32>,
    leaves: Pool<u64>,
    leaf_live: Vec<u16>,
}

impl PageTable {
    pub fn new(objects_max: u16, pages_max: u64) -> Self {
        let leaves = pages_max.div_ceil(LEAF_PAGES) as usize + objects_max as usize;
        let middles = pages_max.div_ceil(MIDDLE_PAGES) as usize + 64 + objects_max as usize;
        PageTable {
            roots: vec![0; (objects_max as usize) << ROOT_BITS],
            objects: objects_max,
            middles: Pool::new(MIDDLE_BITS, middles),
            leaves: Pool::new(LEAF_BITS, leaves),
            leaf_live: vec![0; leaves],
        }
    }

    #[inline]
    fn root_at(object: ObjectId, index: PageIndex) -> usize {
        ((object.0 as usize) << ROOT_BITS) + (index >> (LEAF_BITS + MIDDLE_BITS)) as usize
    }

    #[inline]
    fn leaf_of(&self, page: PageId) -> Option<u32> {
        debug_assert!(page.index() < OBJECT_PAGES_MAX && page.object().0 < self.objects);
        let middle = self.roots[Self::root_at(page.object(), page.index())].checked_sub(1)?;
        self.middles.cells[self.middles.at(middle, page.index() >> LEAF_BITS & ((1 << MIDDLE_BITS) - 1))].checked_sub(1)
    }

    #[inline]
    pub fn get(&self, page: PageId) -> PageWord {
        match self.leaf_of(page) {
            Some(leaf) => PageWord::from_raw(self.leaves.cells[self.leaves.at(leaf, page.index() & (LEAF_PAGES - 1))]),
            None => PageWord::UNTOUCHED,
        }
    }

    /// Makes room for a word at `page`. Returns whether there is any.
    #[must_use]
    pub fn reserve(&mut self, page: PageId) -> bool {
        if page.index() >= OBJECT_PAGES_MAX || page.object().0 >= self.objects {
            return false;
        }
        if self.leaf_of(page).is_some() {
            return true;
        }
        let root = Self::root_at(page.object(), page.index());
        if self.roots[root] == 0 {
            let Some(m) = self.middles.take() else { return false };
            self.roots[root] = m + 1;
        }
        let Some(leaf) = self.leaves.take() else { return false };
        let at = self.middles.at(self.roots[root] - 1, page.index() >> LEAF_BITS & ((1 << MIDDLE_BITS) - 1));
        self.middles.cells[at] = leaf + 1;
        true
    }

    /// Stores a word. => reserved, or the word is zero
    #[inline]
    pub fn set(&mut self, page: PageId, word: PageWord) {
        let Some(leaf) = self.leaf_of(page) else {
            assert!(word == PageWord::UNTOUCHED, "no leaf for {page:?}");
            return;
        };
        let at = self.leaves.at(leaf, page.index() & (LEAF_PAGES - 1));
        let old = core::mem::replace(&mut self.leaves.cells[at], word.raw());
        match (old != 0, word.raw() != 0) {
            (false, true) => self.leaf_live[leaf as usize] += 1,
            (true, false) => {
                self.leaf_live[leaf as usize] -= 1;
                if self.leaf_live[leaf as usize] == 0 {
                    let root = Self::root_at(page.object(), page.index());
                    let at = self.middles.at(self.roots[root] - 1, page.index() >> LEAF_BITS & ((1 << MIDDLE_BITS) - 1));
                    self.middles.cells[at] = 0;
                    self.leaves.give(leaf);
                }
            }
            _ => {}
        }
    }

    /// The first page at or after `page`, before `end`, whose word is not zero. Skips absent nodes whole.
    pub fn next_present(&self, page: PageId, end: PageIndex) -> Option<PageId> {
        let object = page.object();
        let mut index = page.index();
        let end = end.min(OBJECT_PAGES_MAX);
        while index < end {
            if self.roots[Self::root_at(object, index)] == 0 {
                index = (index | (MIDDLE_PAGES - 1)) + 1;
                continue;
            }
            let Some(leaf) = self.leaf_of(PageId::new(object, index)) else {
                index = (index | (LEAF_PAGES - 1)) + 1;
                continue;
            };
            let leaf_end = ((index | (LEAF_PAGES - 1)) + 1).min(end);
            while index < leaf_end {
                if self.leaves.cells[self.leaves.at(leaf, index & (LEAF_PAGES - 1))] != 0 {
                    return Some(PageId::new(object, index));
                }
                index += 1;
            }
        }
        None
    }

    /// Bytes of nodes that were ever used (and so are resident).
    pub fn bytes(&self) -> u64 {
        self.middles.bytes() + self.leaves.bytes() + 2 * self.leaves.fresh as u64 + 4096
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::FrameId;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn word(n: u32) -> PageWord {
        PageWord::UNTOUCHED.begin_fill(FrameId(n), false).mapped()
    }

    proptest! {
        #[test]
        fn as_a_map(ops in proptest::collection::vec((0u16..2, prop_oneof![0u64..1100, 34_000_000_000u64..34_000_000_600], any::<bool>()), 1..300)) {
            let mut t = PageTable::new(2, 64 * 512);
            let mut model = BTreeMap::new();
            for (n, (o, i, put)) in ops.into_iter().enumerate() {
                let p = PageId::new(ObjectId(o), i);
                if put {
                    prop_assert!(t.reserve(p));
                    t.set(p, word(n as u32));
                    model.insert(p, word(n as u32));
                } else {
                    t.set(p, PageWord::UNTOUCHED);
                    model.remove(&p);
                }
                prop_assert_eq!(t.get(p), model.get(&p).copied().unwrap_or(PageWord::UNTOUCHED));
            }
            for o in 0..2 {
                let mut seen = vec![];
                let mut at = 0;
                while let Some(p) = t.next_present(PageId::new(ObjectId(o), at), OBJECT_PAGES_MAX) {
                    seen.push(p);
                    at = p.index() + 1;
                }
                prop_assert_eq!(seen, model.keys().filter(|p| p.object().0 == o).copied().collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn emptied_leaves_are_used_again() {
        let mut t = PageTable::new(1, 512);
        for round in 0..100u64 {
            let p = PageId::new(ObjectId(0), round * 512);
            assert!(t.reserve(p), "round {round}");
            t.set(p, word(1));
            t.set(p, PageWord::UNTOUCHED);
        }
    }
}

//! The page table: object and page index to state word. A radix tree per object over pools made at set-up.
//!
//! ```text
//!   object -> root (131,072 entries of 1 GiB) -> middle (512 entries of 2 MiB) -> leaf (512 words)
//! ```
//!
//! A flat table for a 47-bit address space would reserve 256 GiB and break under RLIMIT_AS. A program touches few parts of that
//! space, but they may lie anywhere: V8 puts each 256 KiB of its heap at a random address of 46 bits, so each has a GiB of its own.
//! Such a piece costs a leaf of 4 KiB, a middle of 2 KiB, and a page of the root if it is the first within 1 TiB: 2.4 % for V8.
//! Where pages are dense, each costs 8 bytes and a hundredth (0.2 %). A wide root and narrow middles cost no more than equal levels
//! would, because an untouched page of the root is only address space. And they save a step on the way down.
//!
//! Only leaves can run out: see [`PageTable::new`]. A node whose last entry is cleared goes back to its pool.
//!
//! Invariants: `live[n]` is the number of non-zero cells of node `n`; a middle in the tree has `live > 0`, and so has a leaf after
//! each public call that may empty it.

use crate::page::PageWord;
use crate::types::{ObjectId, PageId, PageIndex};
use alloc::vec;
use alloc::vec::Vec;

const LEAF_BITS: u32 = 9;
const MIDDLE_BITS: u32 = 9;
const ROOT_BITS: u32 = 17;
const LEAF_PAGES: u64 = 1 << LEAF_BITS;
/// Pages below one entry of the root.
const MIDDLE_SHIFT: u32 = LEAF_BITS + MIDDLE_BITS;

/// The most pages of an object: 47 bits of addresses.
pub const OBJECT_PAGES_MAX: PageIndex = 1 << (LEAF_BITS + MIDDLE_BITS + ROOT_BITS);
/// There are leaves for pages that lie this thin: one of V8's pieces has 64 pages.
const LEAF_PAGES_USED_MIN: u64 = 64;

/// Fixed-size nodes in one zeroed vector: memory is touched only when a node is used.
#[derive(Clone, Debug)]
struct Nodes<T> {
    node_bits: u32,
    cells: Vec<T>,
    /// Per node: cells that are not zero.
    live: Vec<u16>,
    fresh: u32,
    free: Vec<u32>,
}

impl<T: Copy + Default> Nodes<T> {
    fn new(node_bits: u32, nodes: usize) -> Self {
        Nodes {
            node_bits,
            cells: vec![T::default(); nodes << node_bits],
            live: vec![0; nodes],
            fresh: 0,
            free: Vec::with_capacity(nodes),
        }
    }
    fn take(&mut self) -> Option<u32> {
        if let Some(n) = self.free.pop() {
            return Some(n);
        }
        ((self.fresh as usize) < self.live.len()).then(|| {
            self.fresh += 1;
            self.fresh - 1
        })
    }
    /// One cell of the node has become zero. Returns whether it was the last one; then the node is back in the pool.
    fn cleared(&mut self, node: u32) -> bool {
        self.live[node as usize] -= 1;
        let empty = self.live[node as usize] == 0;
        if empty {
            self.free.push(node); // within the capacity, because each node is in it once
        }
        empty
    }
    #[inline]
    fn at(&self, node: u32, cell: u64) -> usize {
        ((node as usize) << self.node_bits) + cell as usize
    }
    /// The cells of a node.
    fn node(&self, node: u32) -> &[T] {
        &self.cells[self.at(node, 0)..self.at(node + 1, 0)]
    }
    /// Bytes that were ever touched: the nodes, their counts, and the list of free ones.
    fn bytes(&self) -> u64 {
        u64::from(self.fresh) * (((size_of::<T>() as u64) << self.node_bits) + 6)
    }
}

/// The table. Middle and leaf numbers are stored plus one; zero means absent.
#[derive(Clone, Debug)]
pub struct PageTable {
    roots: Vec<u32>,
    /// Entries of each object's root.
    root_len: usize,
    objects: u16,
    middles: Nodes<u32>,
    leaves: Nodes<u64>,
}

/// The cell of a leaf, and the cell of a middle, on the way to a page.
#[inline]
fn leaf_cell(index: PageIndex) -> u64 {
    index & (LEAF_PAGES - 1)
}
#[inline]
fn middle_cell(index: PageIndex) -> u64 {
    index >> LEAF_BITS & ((1 << MIDDLE_BITS) - 1)
}

impl PageTable {
    /// A table for objects of up to `object_pages` pages each, at most [`OBJECT_PAGES_MAX`]. There is room for `pages_max` pages
    /// wherever they lie, if each aligned 2 MiB of which any page is touched has 64 touched pages on average. If they lie denser,
    /// there is room for up to eight times as many.
    ///
    /// Each middle in the tree has at least one leaf. So with as many middles as leaves (or as entries of roots, if those are
    /// fewer), there is a middle whenever there is a leaf.
    pub fn new(objects_max: u16, object_pages: PageIndex, pages_max: u64) -> Self {
        let leaves = pages_max.div_ceil(LEAF_PAGES_USED_MIN) as usize + objects_max as usize;
        let root_len = object_pages.min(OBJECT_PAGES_MAX).div_ceil(1 << MIDDLE_SHIFT) as usize;
        let roots = root_len * objects_max as usize;
        PageTable {
            roots: vec![0; roots],
            root_len,
            objects: objects_max,
            middles: Nodes::new(MIDDLE_BITS, leaves.min(roots)),
            leaves: Nodes::new(LEAF_BITS, leaves),
        }
    }

    /// The most pages of an object.
    #[inline]
    fn object_pages(&self) -> PageIndex {
        (self.root_len as u64) << MIDDLE_SHIFT
    }

    #[inline]
    fn root_at(&self, object: ObjectId, index: PageIndex) -> usize {
        object.0 as usize * self.root_len + (index >> MIDDLE_SHIFT) as usize
    }

    #[inline]
    fn leaf_of(&self, page: PageId) -> Option<u32> {
        debug_assert!(page.index() < self.object_pages() && page.object().0 < self.objects);
        let middle = self.roots[self.root_at(page.object(), page.index())].checked_sub(1)?;
        self.middles.cells[self.middles.at(middle, middle_cell(page.index()))].checked_sub(1)
    }

    #[inline]
    pub fn get(&self, page: PageId) -> PageWord {
        match self.leaf_of(page) {
            Some(leaf) => PageWord::from_raw(self.leaves.cells[self.leaves.at(leaf, leaf_cell(page.index()))]),
            None => PageWord::UNTOUCHED,
        }
    }

    /// Makes room for a word at `page`. Returns whether there is any.
    #[must_use]
    pub fn reserve(&mut self, page: PageId) -> bool {
        let (object, index) = (page.object(), page.index());
        if index >= self.object_pages() || object.0 >= self.objects {
            return false;
        }
        if self.leaf_of(page).is_some() {
            return true;
        }
        let Some(leaf) = self.leaves.take() else { return false };
        let root = self.root_at(object, index);
        if self.roots[root] == 0 {
            self.roots[root] = self.middles.take().expect("there is a middle for each leaf") + 1;
        }
        let middle = self.roots[root] - 1;
        let at = self.middles.at(middle, middle_cell(index));
        self.middles.cells[at] = leaf + 1;
        self.middles.live[middle as usize] += 1;
        true
    }

    /// Stores a word. => reserved, or the word is zero
    #[inline]
    pub fn set(&mut self, page: PageId, word: PageWord) {
        let Some(leaf) = self.leaf_of(page) else {
            assert!(word == PageWord::UNTOUCHED, "no leaf for {page:?}");
            return;
        };
        let at = self.leaves.at(leaf, leaf_cell(page.index()));
        let old = core::mem::replace(&mut self.leaves.cells[at], word.raw());
        if old == 0 && word.raw() != 0 {
            self.leaves.live[leaf as usize] += 1;
        } else if old != 0 && word.raw() == 0 && self.leaves.cleared(leaf) {
            self.unlink(page);
        }
    }

    /// Removes the leaf of `page` from its middle; the leaf is back in its pool.
    fn unlink(&mut self, page: PageId) {
        let root = self.root_at(page.object(), page.index());
        let middle = self.roots[root] - 1;
        let at = self.middles.at(middle, middle_cell(page.index()));
        self.middles.cells[at] = 0;
        if self.middles.cleared(middle) {
            self.roots[root] = 0;
        }
    }

    /// The first page at or after `page`, before `end`, whose word is not zero. Skips absent nodes as a whole.
    pub fn next_present(&self, page: PageId, end: PageIndex) -> Option<PageId> {
        let object = page.object();
        let mut index = page.index();
        let end = end.min(self.object_pages());
        while index < end {
            let root = self.root_at(object, index);
            let Some(middle) = self.roots[root].checked_sub(1) else {
                let rest = &self.roots[root..=self.root_at(object, end - 1)];
                let steps = rest.iter().position(|&middle| middle != 0)?;
                index = ((index >> MIDDLE_SHIFT) + steps as u64) << MIDDLE_SHIFT;
                continue;
            };
            let from = middle_cell(index);
            let Some(leaf) = self.middles.node(middle)[from as usize].checked_sub(1) else {
                let rest = &self.middles.node(middle)[from as usize..];
                let steps = rest.iter().position(|&leaf| leaf != 0).unwrap_or(rest.len());
                index = ((index >> LEAF_BITS) + steps as u64) << LEAF_BITS;
                continue;
            };
            let rest = &self.leaves.node(leaf)[leaf_cell(index) as usize..];
            let steps = rest.iter().position(|&word| word != 0);
            index += steps.unwrap_or(rest.len()) as u64;
            if steps.is_some() && index < end {
                return Some(PageId::new(object, index));
            }
        }
        None
    }

    /// Bytes of tables that were ever used, and so are resident. Counts the roots as if no two middles shared a page of them.
    pub fn bytes(&self) -> u64 {
        let root_pages = (self.roots.len() as u64 * 4).div_ceil(4096);
        self.middles.bytes() + self.leaves.bytes() + root_pages.min(self.middles.fresh.into()) * 4096
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

    fn page(object: u16, index: PageIndex) -> PageId {
        PageId::new(ObjectId(object), index)
    }

    proptest! {
        #[test]
        fn as_a_map(ops in proptest::collection::vec((0u16..2, prop_oneof![0u64..1100, (1u64 << 35) - 1100..1 << 35], any::<bool>()), 1..300)) {
            let mut t = PageTable::new(2, OBJECT_PAGES_MAX, 64 * 64);
            let mut model = BTreeMap::new();
            for (n, (o, i, put)) in ops.into_iter().enumerate() {
                let p = page(o, i);
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
                for limit in [1, 1000, 1099, (1 << 35) - 500, OBJECT_PAGES_MAX, OBJECT_PAGES_MAX + 1] {
                    let mut seen = vec![];
                    let mut at = 0;
                    while let Some(p) = t.next_present(page(o, at), limit) {
                        seen.push(p);
                        at = p.index() + 1;
                    }
                    let there = |p: &&PageId| p.object().0 == o && p.index() < limit;
                    prop_assert_eq!(seen, model.keys().filter(there).copied().collect::<Vec<_>>());
                }
            }
        }
    }

    /// Random addresses as V8 uses them: 256 KiB (64 pages) each, anywhere in 46 bits.
    fn chunks(seed: u64) -> impl Iterator<Item = PageIndex> {
        let mut s = seed;
        core::iter::from_fn(move || {
            s ^= s << 13;
            s ^= s >> 7;
            s ^= s << 17;
            Some((s & ((1 << 34) - 1)) & !63)
        })
    }

    /// Node.js was stopped when it was paged: each piece of V8's heap lies in 16 GiB of its own, and there were nodes for 73 of
    /// those. Now there is room for all pages wherever they lie, and nodes that are given back can be used again, for as long as a
    /// program runs.
    #[test]
    fn pieces_anywhere_have_room() {
        const PAGES: u64 = 64 * 5000;
        let mut t = PageTable::new(1, OBJECT_PAGES_MAX, PAGES);
        for round in 1..4 {
            let starts: Vec<_> = chunks(round).take(5000).collect();
            for &start in &starts {
                for i in 0..64 {
                    assert!(t.reserve(page(0, start + i)), "round {round}");
                    t.set(page(0, start + i), word(i as u32));
                }
            }
            for &start in &starts {
                assert!((0..64).all(|i| t.get(page(0, start + i)) == word(i as u32)));
            }
            let bytes = t.bytes();
            assert!(bytes < 5001 * (4102 + 2054) + 132 * 4096, "{bytes} bytes of tables");
            for &start in &starts {
                (0..64).for_each(|i| t.set(page(0, start + i), PageWord::UNTOUCHED));
            }
            assert_eq!(t.next_present(page(0, 0), OBJECT_PAGES_MAX), None);
            assert!(t.roots.iter().all(|root| *root == 0));
        }
    }

    /// When leaves run out, a page is refused and nothing else changes. There is a middle for every leaf.
    #[test]
    fn full() {
        let mut t = PageTable::new(1, OBJECT_PAGES_MAX, 64 * 99);
        let mut starts = chunks(1);
        let there: Vec<_> = starts.by_ref().take(100).map(|index| page(0, index)).collect();
        for &p in &there {
            assert!(t.reserve(p));
            t.set(p, word(7));
        }
        let more = page(0, starts.next().expect("endless"));
        assert!(!t.reserve(more) && t.get(more) == PageWord::UNTOUCHED);
        assert!(there.iter().all(|p| t.get(*p) == word(7) && t.reserve(*p)));
        t.set(there[50], PageWord::UNTOUCHED);
        assert!(t.reserve(more));
        assert!(!t.reserve(there[50]));
    }

    /// Where pages are dense, a page costs 8 bytes and a hundredth. Unused parts cost nothing.
    #[test]
    fn dense_pages_cost_a_word() {
        let mut t = PageTable::new(1, OBJECT_PAGES_MAX, 1 << 25);
        assert_eq!(t.bytes(), 0);
        for index in 0..1 << 18 {
            assert!(t.reserve(page(0, index)));
            t.set(page(0, index), word(1));
        }
        assert!(t.bytes() < (1 << 18) * 804 / 100, "{}", t.bytes());
    }

    #[test]
    fn an_object_ends_where_it_was_to() {
        let mut t = PageTable::new(3, 300_000, 64 * 20);
        assert!(t.reserve(page(1, 299_999)) && t.reserve(page(2, 0)));
        assert!(!t.reserve(page(1, 1 << 19)) && !t.reserve(page(3, 0)) && !t.reserve(page(0, OBJECT_PAGES_MAX)));
        t.set(page(2, 0), word(1));
        assert_eq!(t.next_present(page(1, 0), OBJECT_PAGES_MAX), None);
    }
}

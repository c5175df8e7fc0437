//! Swap blocks: for each object a map from page index to slot and tag, as a radix trie.
//!
//! ```text
//!   object 7: root, height 2                      page index, 40 bits
//!          |                                      ... | digit 2 | digit 1 | digit 0 |     7 bits each
//!     [ . . x . . . ]        node, level 2                 |         |         |
//!           |                                              +---------|---------|--> child of the root
//!     [ x . . . . x ]        node, level 1                           +---------|--> leaf
//!       |         |                                                            +--> entry of the leaf
//!     [ssss..ss] [s...]      leaves, level 0: 128 pages each; s = slot + 1, 0 = not stored
//!     [tttt..tt] [t...]      and, for leaves only, 128 tags in an array apart
//! ```
//!
//! The root is as high as the object's greatest index requires: an object of up to 128 pages is one leaf, one of 8 GiB has height
//! 2, and height 4 is exactly the 47 bits of an address space. All nodes come from one pool, because an inner node and the slots of
//! a leaf have the same shape. Node 0 is never given out and stays zero. A lookup that meets "no child" goes on through node 0 and
//! ends with "no slot", without a branch.
//!
//! Slots and tags lie apart because the most frequent question, "how far is this page contiguous on the device", needs slots only.
//! It walks down once, compares neighbouring entries, eight at a time and without a branch for each, and finds the next leaf in the
//! node above. Only where that node ends, each 16,384 pages, does it walk down again.
//!
//! Invariants:
//!
//! - `count[node]` = its entries that are not 0; a node in a trie has at least one, an emptied one goes back to the pool at once
//! - a node in the pool is all zero, except that entry 0 links it to the next (LIFO, so that touched memory is used again first)
//! - `in use + in pool == touched <= capacity`
//! - `stored` = sum of the counts of all leaves
//!
//! Memory: 512 bytes of entries, 2.5 KiB of tags and 1 byte of count per node, that is 24.01 bytes per page plus 24/127 for the
//! inner nodes: 24.2 bytes per page (0.59 %) where pages are dense. In the worst case, one stored page per leaf, it is 3 KiB for
//! that page; that is why a leaf has 128 pages and not 512. Untouched capacity is address space only. The tags of an inner node are
//! not used; sharing a pool is worth that 1 per cent.
//!
//! What it cannot do: find the page of a slot (that needs a walk, see [`SwapBlocks::next`]). The trie does not get lower when the
//! far end of an object goes, only when the whole object goes. Memory that was touched stays touched.
//!
//! Source: FreeBSD `swap_pager.c` (`struct swblk` in a trie per object) and its review D22409 (one lookup for the slot and its
//! contiguous neighbours); Linux `radix-tree.c` (height grows at the root). Read, not copied.

use alloc::vec;
use alloc::vec::Vec;
use overspill_vm::pager::{HasPage, Scan, StoredRun};
use overspill_vm::types::{ObjectId, PageId, PageIndex, Slot, Tag};

/// log2 of the entries of a node.
const NODE_SHIFT: u32 = 7;
/// Entries of a node: children, or pages of a leaf.
const NODE_ENTRIES: usize = 1 << NODE_SHIFT;
/// Pages that a leaf covers.
pub const LEAF_PAGES: u64 = NODE_ENTRIES as u64;
/// Inner levels that the greatest page index needs.
const HEIGHT_MAX: usize = 5;
const _: () = assert!(PageId::INDEX_LIMIT <= 1 << (NODE_SHIFT as usize * (HEIGHT_MAX + 1)));
/// The most nodes that one insertion can need: new levels above the old root, and a new path down from the top.
const INSERT_NODES_MAX: u32 = 2 * HEIGHT_MAX as u32 + 1;
/// Nodes in reserve for [`SwapBlocks::rename`], which follows an mremap and cannot be refused; see there. Guessed.
const RENAME_RESERVE: u32 = 128;
/// Objects: all that an [`ObjectId`] can name.
const OBJECTS: usize = 1 << 16;
/// Bytes per node: entries, tags, count.
const NODE_BYTES: u64 = (NODE_ENTRIES * (size_of::<u32>() + size_of::<Tag>()) + 1) as u64;

/// There is no node left for one more page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoMetadata;

impl core::fmt::Display for NoMetadata {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("no swap metadata left to remember another page; raise pages_max")
    }
}

impl core::error::Error for NoMetadata {}

/// The swap blocks of all objects.
#[derive(Clone)]
pub struct SwapBlocks {
    /// `NODE_ENTRIES` per node: child (inner) or slot + 1 (leaf); 0 is none.
    entries: Vec<u32>,
    /// `NODE_ENTRIES` per node, used by leaves.
    tags: Vec<[u32; 5]>,
    /// Per node: entries that are not 0.
    counts: Vec<u8>,
    /// Per object: the root node, 0 for none.
    roots: Vec<u32>,
    /// Per object: the root's level.
    heights: Vec<u8>,
    /// Objects from this number on were never used.
    objects_touched: usize,
    /// The first node of the pool, 0 for none.
    pool: u32,
    /// Nodes in the pool.
    pool_count: u32,
    /// Nodes that were ever given out; the numbers above were never touched.
    touched: u32,
    nodes_max: u32,
    stored: u64,
}

/// The digit of `index` that selects the entry in a node of `level`.
#[inline]
const fn digit(index: PageIndex, level: usize) -> usize {
    (index >> (NODE_SHIFT as usize * level)) as usize & (NODE_ENTRIES - 1)
}

/// Whether a root of `height` reaches `index`.
#[inline]
const fn covers(height: usize, index: PageIndex) -> bool {
    index >> (NODE_SHIFT as usize * (height + 1)) == 0
}

/// Entries that are compared at a time: two registers of the oldest x86-64.
const LANES: usize = 8;

/// Whether `lanes` is `first`, `first + 1`, ...
#[inline]
fn rises(lanes: &[u32; LANES], first: u32) -> bool {
    // without an early end, so that it is done in registers
    lanes.iter().zip(0..).fold(0, |differs, (&entry, k)| differs | (entry ^ first.wrapping_add(k))) == 0
}

/// How many entries at the head of `run` are `first`, `first + 1`, ...
#[inline]
fn rising_from(run: &[u32], first: u32) -> usize {
    let at = |k: usize| first.wrapping_add(k as u32);
    let lanes = run.as_chunks::<LANES>().0.iter().zip(0..);
    let whole = lanes.take_while(|&(lanes, k)| rises(lanes, at(k * LANES))).count() * LANES;
    whole + run[whole..].iter().zip(whole..).take_while(|&(&entry, k)| entry == at(k)).count()
}

/// How many entries at the tail of `run` are ..., `end - 2`, `end - 1`.
#[inline]
fn rising_to(run: &[u32], end: u32) -> usize {
    let at = |k: usize| end.wrapping_sub(k as u32);
    let lanes = run.as_rchunks::<LANES>().1.iter().rev().zip(1..);
    let whole = lanes.take_while(|&(lanes, k)| rises(lanes, at(k * LANES))).count() * LANES;
    whole + run[..run.len() - whole].iter().rev().zip(whole + 1..).take_while(|&(&entry, k)| entry == at(k)).count()
}

/// The nodes from the root (at the object's height) down to the leaf (at 0).
type Path = [u32; HEIGHT_MAX + 1];

impl SwapBlocks {
    /// Tables for as many pages as fit `nodes_max` nodes of [`LEAF_PAGES`] pages or children each, for all objects together.
    ///
    /// A few nodes more are made and kept in reserve for renaming. Allocates everything it will ever need, zeroed.
    ///
    /// # Panics
    /// If `nodes_max` is 2^31 or more.
    pub fn new(nodes_max: u32) -> Self {
        assert!(nodes_max < 1 << 31);
        let nodes_max = nodes_max + RENAME_RESERVE + INSERT_NODES_MAX;
        let nodes = nodes_max as usize + 1; // and node 0
        SwapBlocks {
            entries: vec![0; nodes * NODE_ENTRIES],
            tags: vec![[0; 5]; nodes * NODE_ENTRIES],
            counts: vec![0; nodes],
            roots: vec![0; OBJECTS],
            heights: vec![0; OBJECTS],
            objects_touched: 0,
            pool: 0,
            pool_count: 0,
            touched: 0,
            nodes_max,
            stored: 0,
        }
    }

    /// Pages stored, in all objects.
    pub fn stored(&self) -> u64 {
        self.stored
    }

    /// Nodes in use, of all objects.
    pub fn nodes(&self) -> u32 {
        self.touched - self.pool_count
    }

    /// Bytes of the tables that have been touched: a high-water mark, since touched memory stays.
    pub fn metadata_bytes(&self) -> u64 {
        u64::from(self.touched) * NODE_BYTES + self.objects_touched as u64 * (size_of::<u32>() as u64 + 1)
    }

    /// The leaf of `index`, or node 0.
    #[inline]
    fn leaf(&self, object: ObjectId, index: PageIndex) -> u32 {
        self.leaf_and_parent(object, index).0
    }

    /// The leaf of `index` and the node above it; node 0 where there is none.
    #[inline]
    fn leaf_and_parent(&self, object: ObjectId, index: PageIndex) -> (u32, u32) {
        let height = self.heights[object.0 as usize] as usize;
        if !covers(height, index) {
            return (0, 0);
        }
        let (mut node, mut parent) = (self.roots[object.0 as usize], 0);
        for level in (1..=height).rev() {
            parent = node;
            node = self.entry(node, digit(index, level));
        }
        (node, parent)
    }

    /// The leaf of `index`, next to the leaf of `from`, which has this `parent`; or node 0.
    #[inline]
    fn leaf_beside(&self, object: ObjectId, from: PageIndex, parent: u32, index: PageIndex) -> u32 {
        let same_parent = from >> (2 * NODE_SHIFT) == index >> (2 * NODE_SHIFT);
        if same_parent { self.entry(parent, digit(index, 1)) } else { self.leaf(object, index) }
    }

    /// The entries of a node.
    #[inline]
    fn node(&self, node: u32) -> &[u32] {
        &self.entries[node as usize * NODE_ENTRIES..][..NODE_ENTRIES]
    }

    #[inline]
    fn entry(&self, node: u32, digit: usize) -> u32 {
        self.entries[node as usize * NODE_ENTRIES + digit]
    }

    /// Where `page` is stored, and its tag. Does not allocate.
    #[inline]
    pub fn get(&self, page: PageId) -> Option<(Slot, Tag)> {
        let at = self.leaf(page.object(), page.index()) as usize * NODE_ENTRIES + digit(page.index(), 0);
        let slot = self.entries[at].checked_sub(1)?;
        Some((Slot(slot), Tag::from_words(self.tags[at])))
    }

    /// Where `page` is stored and how far its neighbours are contiguous with it: page `p + k` in slot `s + k`.
    ///
    /// `border` returns the first and last slot of the device (or extent) of a slot; nothing beyond them is counted. At most
    /// `before_max` and `after_max` pages are counted. Costs one lookup, and one more for each border of 16,384 pages that the
    /// answer crosses; does not allocate.
    pub fn has_page(
        &self,
        page: PageId,
        before_max: u32,
        after_max: u32,
        border: impl FnOnce(Slot) -> (Slot, Slot),
    ) -> Option<HasPage> {
        let (object, index) = (page.object(), page.index());
        let (leaf, parent) = self.leaf_and_parent(object, index);
        let entry = self.entry(leaf, digit(index, 0));
        let slot = entry.checked_sub(1)?;
        let (first, last) = border(Slot(slot));
        assert!(first.0 <= slot && slot <= last.0);

        // In each leaf the neighbours are compared as one slice. Only at the end of a leaf is another lookup needed.
        let before_max = u64::from(before_max.min(slot - first.0)).min(index) as u32;
        let (mut node, mut at, mut before) = (leaf, digit(index, 0), 0);
        loop {
            let count = at.min((before_max - before) as usize);
            let same = rising_to(&self.node(node)[at - count..at], entry - before);
            before += same as u32;
            if same < count || before == before_max {
                break;
            }
            node = self.leaf_beside(object, index, parent, index - u64::from(before) - 1);
            at = NODE_ENTRIES;
        }

        let after_max = u64::from(after_max.min(last.0 - slot)).min(PageId::INDEX_LIMIT - 1 - index) as u32;
        let (mut node, mut at, mut after) = (leaf, digit(index, 0) + 1, 0);
        loop {
            let count = (NODE_ENTRIES - at).min((after_max - after) as usize);
            let same = rising_from(&self.node(node)[at..at + count], entry.wrapping_add(after + 1));
            after += same as u32;
            if same < count || after == after_max {
                break;
            }
            node = self.leaf_beside(object, index, parent, index + u64::from(after) + 1);
            at = 0;
        }
        Some(HasPage { slot: Slot(slot), before, after })
    }

    /// Stores `slot` and `tag` for `page`; returns the slot that it had before. Does not allocate.
    ///
    /// # Errors
    /// If there is no metadata left for it; then nothing is changed. A page that is stored already is always accepted.
    pub fn insert(&mut self, page: PageId, slot: Slot, tag: Tag) -> Result<Option<Slot>, NoMetadata> {
        self.insert_keeping(RENAME_RESERVE, page, slot, tag)
    }

    fn insert_keeping(&mut self, reserve: u32, page: PageId, slot: Slot, tag: Tag) -> Result<Option<Slot>, NoMetadata> {
        assert!(slot.0 < u32::MAX, "slot + 1 must fit");
        let (object, index) = (page.object(), page.index());
        let mut leaf = self.leaf(object, index);
        if leaf == 0 {
            if self.nodes_max - self.nodes() < reserve + INSERT_NODES_MAX {
                return Err(NoMetadata);
            }
            leaf = self.leaf_insert(object, index);
        }
        let at = leaf as usize * NODE_ENTRIES + digit(index, 0);
        let old = self.entries[at].checked_sub(1).map(Slot);
        self.entries[at] = slot.0 + 1;
        self.tags[at] = tag.to_words();
        if old.is_none() {
            self.counts[leaf as usize] += 1;
            self.stored += 1;
        }
        Ok(old)
    }

    /// Makes the path to the leaf of `index`. => at least `INSERT_NODES_MAX` nodes are left
    fn leaf_insert(&mut self, object: ObjectId, index: PageIndex) -> u32 {
        let o = object.0 as usize;
        self.objects_touched = self.objects_touched.max(o + 1);
        if self.roots[o] == 0 {
            let height = (0..=HEIGHT_MAX).find(|&h| covers(h, index)).expect("an index has 40 bits");
            self.heights[o] = height as u8;
            self.roots[o] = self.node_alloc();
        }
        while !covers(self.heights[o] as usize, index) {
            let root = self.node_alloc();
            self.child_set(root, 0, self.roots[o]);
            self.roots[o] = root;
            self.heights[o] += 1;
        }
        let mut node = self.roots[o];
        for level in (1..=self.heights[o] as usize).rev() {
            let mut child = self.entry(node, digit(index, level));
            if child == 0 {
                child = self.node_alloc();
                self.child_set(node, digit(index, level), child);
            }
            node = child;
        }
        node
    }

    fn child_set(&mut self, node: u32, digit: usize, child: u32) {
        let entry = &mut self.entries[node as usize * NODE_ENTRIES + digit];
        assert!(*entry == 0 && child != 0);
        *entry = child;
        self.counts[node as usize] += 1;
    }

    /// An all-zero node. => one is left
    fn node_alloc(&mut self) -> u32 {
        let node = self.pool;
        if node == 0 {
            assert!(self.touched < self.nodes_max);
            self.touched += 1;
            return self.touched;
        }
        self.pool = core::mem::take(&mut self.entries[node as usize * NODE_ENTRIES]);
        self.pool_count -= 1;
        assert!(self.counts[node as usize] == 0);
        node
    }

    /// Gives back a node that has become all zero.
    fn node_free(&mut self, node: u32) {
        assert!(self.counts[node as usize] == 0 && node != 0);
        self.entries[node as usize * NODE_ENTRIES] = self.pool;
        self.pool = node;
        self.pool_count += 1;
    }

    /// Gives back the emptied leaf of `index`, and every node above it that becomes empty.
    fn prune(&mut self, object: ObjectId, index: PageIndex, path: &Path) {
        let o = object.0 as usize;
        let height = self.heights[o] as usize;
        for level in 0..=height {
            self.node_free(path[level]);
            if level == height {
                self.roots[o] = 0;
                self.heights[o] = 0;
                return;
            }
            let parent = path[level + 1] as usize;
            self.entries[parent * NODE_ENTRIES + digit(index, level + 1)] = 0;
            self.counts[parent] -= 1;
            if self.counts[parent] > 0 {
                return;
            }
        }
    }

    /// Forgets `page`; returns where it was. Does not allocate.
    pub fn remove(&mut self, page: PageId) -> Option<(Slot, Tag)> {
        let found = self.get(page)?;
        self.remove_range(page, 1, |_| ());
        Some(found)
    }

    /// Forgets the pages of `first..first + count` in the object of `first`. Calls `forget` with each slot, and returns how many
    /// there were.
    ///
    /// A range that goes beyond the last possible index ends there. Absent parts are skipped at the level where they are absent, so
    /// that empty terabytes cost a few nodes. Does not allocate.
    pub fn remove_range(&mut self, first: PageId, count: PageIndex, mut forget: impl FnMut(Slot)) -> u64 {
        let object = first.object();
        let end = first.index().saturating_add(count).min(PageId::INDEX_LIMIT);
        let mut removed = 0;
        let mut index = first.index();
        while index < end {
            let Some((at, path)) = self.leaf_at_or_after(object, index) else { break };
            index = at;
            if index >= end {
                break;
            }
            let leaf = path[0] as usize;
            let leaf_end = (index | (LEAF_PAGES - 1)) + 1;
            let pages = digit(index, 0)..digit(index, 0) + (leaf_end.min(end) - index) as usize;
            let mut gone = 0;
            for entry in &mut self.entries[leaf * NODE_ENTRIES..][pages] {
                if let Some(slot) = entry.checked_sub(1) {
                    *entry = 0;
                    gone += 1;
                    forget(Slot(slot));
                }
            }
            self.counts[leaf] -= gone;
            removed += u64::from(gone);
            if self.counts[leaf] == 0 {
                self.prune(object, index, &path);
            }
            index = leaf_end;
        }
        self.stored -= removed;
        removed
    }

    /// The first stored page at or after `page` in the same object. Absent parts are skipped as in [`SwapBlocks::remove_range`].
    ///
    /// To visit an object in order, call this again with the returned page + 1; between two steps no lock is needed.
    pub fn next(&self, page: PageId) -> Option<(PageId, Slot, Tag)> {
        let object = page.object();
        let mut index = page.index();
        loop {
            let (at, path) = self.leaf_at_or_after(object, index)?;
            let leaf = path[0] as usize * NODE_ENTRIES;
            let from = digit(at, 0);
            if let Some(k) = self.entries[leaf + from..leaf + NODE_ENTRIES].iter().position(|&e| e != 0) {
                let found = leaf + from + k;
                let slot = Slot(self.entries[found] - 1);
                return Some((PageId::new(object, at + k as u64), slot, Tag::from_words(self.tags[found])));
            }
            index = (at | (LEAF_PAGES - 1)) + 1;
        }
    }

    /// The next pages at or after `from`, in any object, whose slots are in `first..=last`: a run of neighbouring pages in
    /// neighbouring slots, within one leaf. Looks at `leaves_max` leaves (or objects) at most. [`Scan::next`] says where to go on.
    pub fn next_in(&self, from: PageId, first: Slot, last: Slot, leaves_max: u32) -> Scan {
        let (mut object, mut index) = (from.object(), from.index());
        for _ in 0..leaves_max {
            let Some((at, path)) = self.leaf_at_or_after(object, index) else {
                let used = |o: &usize| self.roots[*o] != 0;
                let Some(next) = (object.0 as usize + 1..self.objects_touched).find(used) else {
                    return Scan { run: None, next: None };
                };
                (object, index) = (ObjectId(next as u16), 0);
                continue;
            };
            let entries = &self.node(path[0])[digit(at, 0)..];
            let there = |&e: &u32| e > first.0 && e - 1 <= last.0;
            let after = |k: u64| PageId::from_raw(PageId::new(object, at).raw() + k);
            if let Some(k) = entries.iter().position(there) {
                let mut count = 1;
                while entries.get(k + count).is_some_and(|&e| there(&e) && e == entries[k] + count as u32) {
                    count += 1;
                }
                let run = StoredRun { first: after(k as u64), slot: Slot(entries[k] - 1), count: count as u32 };
                return Scan { run: Some(run), next: Some(after((k + count) as u64)) };
            }
            index = at + entries.len() as u64;
        }
        Scan { run: None, next: Some(PageId::from_raw(PageId::new(object, 0).raw() + index)) }
    }

    /// The leaf of `index`, or the next one that exists: the path to it and the first index in it that is not below `index`.
    fn leaf_at_or_after(&self, object: ObjectId, index: PageIndex) -> Option<(PageIndex, Path)> {
        let height = self.heights[object.0 as usize] as usize;
        let mut path: Path = [0; HEIGHT_MAX + 1];
        path[height] = self.roots[object.0 as usize];
        if path[height] == 0 || !covers(height, index) {
            return None;
        }
        let mut at = index;
        let mut level = height;
        while level > 0 {
            let shift = NODE_SHIFT as usize * level;
            let node = path[level] as usize * NODE_ENTRIES;
            let from = digit(at, level);
            match self.entries[node + from..node + NODE_ENTRIES].iter().position(|&child| child != 0) {
                Some(k) => {
                    if k > 0 {
                        at = ((at >> shift) + k as u64) << shift;
                    }
                    level -= 1;
                    path[level] = self.entries[node + from + k];
                }
                // Nothing more in this node: go on behind it, in the lowest node above that has more entries.
                None => {
                    at = ((at >> (shift + NODE_SHIFT as usize)) + 1) << (shift + NODE_SHIFT as usize);
                    loop {
                        if level == height {
                            return None;
                        }
                        level += 1;
                        if digit(at, level) != 0 {
                            break;
                        }
                    }
                }
            }
        }
        Some((at, path))
    }

    /// Gives the slot and tag of `from` to `to`. Returns whether `from` was stored. Does not allocate.
    ///
    /// # Errors
    /// If there is no metadata left for `to`; then nothing is changed. That is rare: pages move in ranges, whose old leaves become
    /// free as the new ones are filled, and there is a reserve.
    ///
    /// # Panics
    /// If `to` is stored.
    pub fn rename(&mut self, from: PageId, to: PageId) -> Result<bool, NoMetadata> {
        assert!(self.get(to).is_none(), "rename onto a page that is stored");
        let Some((slot, tag)) = self.get(from) else { return Ok(false) };
        self.insert_keeping(0, to, slot, tag.renamed(from, to))?;
        self.remove(from);
        Ok(true)
    }

    /// Walks over everything and asserts the invariants in the head. For tests; costs in proportion to what was touched.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check(&self) {
        let (mut nodes, mut stored) = (0, 0);
        assert!(self.roots[self.objects_touched..].iter().all(|&root| root == 0));
        for object in 0..self.objects_touched {
            if self.roots[object] != 0 {
                self.check_node(self.roots[object], self.heights[object] as usize, &mut nodes, &mut stored);
            }
        }
        assert_eq!(stored, self.stored);
        assert_eq!(nodes, self.nodes());
        let (mut node, mut pool) = (self.pool, 0);
        while node != 0 {
            let at = node as usize * NODE_ENTRIES;
            assert!(self.entries[at + 1..at + NODE_ENTRIES].iter().all(|&e| e == 0) && self.counts[node as usize] == 0);
            node = self.entries[at];
            pool += 1;
        }
        assert_eq!(pool, self.pool_count);
        assert!(self.touched <= self.nodes_max);
        let fresh = (self.touched as usize + 1) * NODE_ENTRIES;
        assert!(self.entries[..NODE_ENTRIES].iter().chain(&self.entries[fresh..]).all(|&e| e == 0));
    }

    fn check_node(&self, node: u32, level: usize, nodes: &mut u32, stored: &mut u64) {
        *nodes += 1;
        assert!(node != 0 && node <= self.touched);
        let mut count = 0;
        for at in 0..NODE_ENTRIES {
            let entry = self.entry(node, at);
            count += u8::from(entry != 0);
            if entry != 0 && level > 0 {
                self.check_node(entry, level - 1, nodes, stored);
            }
        }
        assert!(count > 0 && count == self.counts[node as usize]);
        if level == 0 {
            *stored += u64::from(count);
        }
    }
}

#[cfg(test)]
mod tests;

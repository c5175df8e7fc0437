//! Queues of frames (or of anything that is numbered from zero): doubly linked rings in one array, so that membership costs no
//! allocation.
//!
//! ```text
//!   entry:   0        1 .. K           K + 1 + node
//!            unused   heads of the     [previous, next, words of the user's own ...]
//!                     K lists
//! ```
//!
//! A node is on at most one list of a set at a time. A list is a ring through its head, so no operation has a special case for an
//! end. A node on no list has zero links, so a zeroed array is a set of nodes on no list, and memory is resident only once it is
//! used. An entry has `W` words of 32 bits: two links, then the user's words. They lie together so that a reference touches one
//! cache line.

use alloc::vec;
use alloc::vec::Vec;
use prefetch_index::prefetch_index;

/// A list of a set: 0 to `K - 1`.
pub type ListId = usize;

/// `K` lists over one set of nodes, with `W - 2` words of the user's next to the links of each node.
#[derive(Clone, Debug)]
pub struct Lists<const K: usize, const W: usize = 2> {
    entries: Vec<[u32; W]>,
    len: [u32; K],
}

const PREVIOUS: usize = 0;
const NEXT: usize = 1;

impl<const K: usize, const W: usize> Lists<K, W> {
    /// For the nodes `0..nodes`, all on no list, all words zero.
    pub fn new(nodes: usize) -> Self {
        let mut entries = vec![[0; W]; nodes + K + 1];
        for (head, entry) in entries.iter_mut().enumerate().take(K + 1).skip(1) {
            entry[PREVIOUS] = head as u32;
            entry[NEXT] = head as u32;
        }
        Lists { entries, len: [0; K] }
    }
    #[inline]
    const fn at(node: u32) -> usize {
        node as usize + K + 1
    }
    #[inline]
    fn node(at: u32) -> Option<u32> {
        at.checked_sub(K as u32 + 1)
    }
    /// How many nodes there are.
    pub fn nodes(&self) -> u32 {
        (self.entries.len() - K - 1) as u32
    }
    /// How many nodes are on `list`.
    #[inline]
    pub fn len(&self, list: ListId) -> u32 {
        self.len[list]
    }
    /// Whether none is.
    #[inline]
    pub fn is_empty(&self, list: ListId) -> bool {
        self.len[list] == 0
    }
    /// Whether the node is on a list.
    #[inline]
    pub fn listed(&self, node: u32) -> bool {
        self.entries[Self::at(node)][NEXT] != 0
    }
    /// The user's word `i` of a node, `0..W - 2`.
    #[inline]
    pub fn word(&self, node: u32, i: usize) -> u32 {
        self.entries[Self::at(node)][2 + i]
    }
    /// The same, to be changed.
    #[inline]
    pub fn word_mut(&mut self, node: u32, i: usize) -> &mut u32 {
        &mut self.entries[Self::at(node)][2 + i]
    }
    /// Two words that the user may use while the node is on no list. (On a list they are its links.) They must be zero before it
    /// goes on one.
    #[inline]
    pub fn idle_words(&mut self, node: u32) -> &mut [u32; 2] {
        self.entries[Self::at(node)].first_chunk_mut().expect("an entry has its two links")
    }
    /// Begins to bring the node's entry into the cache.
    #[inline]
    pub fn prefetch(&self, node: u32) {
        prefetch_index(&self.entries, Self::at(node));
    }
    /// The same for the entries that the node is linked with.
    #[inline]
    pub fn prefetch_beside(&self, node: u32) {
        let entry = &self.entries[Self::at(node)];
        prefetch_index(&self.entries, entry[PREVIOUS] as usize);
        prefetch_index(&self.entries, entry[NEXT] as usize);
    }

    /// The oldest of `list`.
    #[inline]
    pub fn front(&self, list: ListId) -> Option<u32> {
        Self::node(self.entries[list + 1][NEXT])
    }
    /// The newest of `list`.
    #[inline]
    pub fn back(&self, list: ListId) -> Option<u32> {
        Self::node(self.entries[list + 1][PREVIOUS])
    }
    /// The one after `node`, towards the newest. => on a list
    #[inline]
    pub fn next(&self, node: u32) -> Option<u32> {
        Self::node(self.entries[Self::at(node)][NEXT])
    }
    /// The one before `node`, towards the oldest. => on a list
    #[inline]
    pub fn previous(&self, node: u32) -> Option<u32> {
        Self::node(self.entries[Self::at(node)][PREVIOUS])
    }

    #[inline]
    fn link(&mut self, node: u32, previous: u32, next: u32) {
        let at = Self::at(node);
        debug_assert!(self.entries[at][NEXT] == 0, "the node is on a list already");
        self.entries[at][PREVIOUS] = previous;
        self.entries[at][NEXT] = next;
        self.entries[previous as usize][NEXT] = at as u32;
        self.entries[next as usize][PREVIOUS] = at as u32;
    }
    #[inline]
    fn unlink(&mut self, node: u32) {
        let entry = &mut self.entries[Self::at(node)];
        let (previous, next) = (entry[PREVIOUS], entry[NEXT]);
        debug_assert!(next != 0, "the node is on no list");
        entry[PREVIOUS] = 0;
        entry[NEXT] = 0;
        self.entries[previous as usize][NEXT] = next;
        self.entries[next as usize][PREVIOUS] = previous;
    }

    /// Adds the newest. => on no list of this set
    #[inline]
    pub fn push_back(&mut self, list: ListId, node: u32) {
        let last = self.entries[list + 1][PREVIOUS];
        self.link(node, last, list as u32 + 1);
        self.len[list] += 1;
    }
    /// Adds the oldest. => on no list of this set
    #[inline]
    pub fn push_front(&mut self, list: ListId, node: u32) {
        let first = self.entries[list + 1][NEXT];
        self.link(node, list as u32 + 1, first);
        self.len[list] += 1;
    }
    /// Adds `node` just before `other`, on its older side. => `node` on no list of this set, `other` on `list`
    #[inline]
    pub fn insert_before(&mut self, list: ListId, node: u32, other: u32) {
        let previous = self.entries[Self::at(other)][PREVIOUS];
        self.link(node, previous, Self::at(other) as u32);
        self.len[list] += 1;
    }
    /// Takes `node` out. => on this list
    #[inline]
    pub fn remove(&mut self, list: ListId, node: u32) {
        assert!(self.len[list] > 0, "the node is not on that list");
        self.unlink(node);
        self.len[list] -= 1;
    }
    /// Makes `node` the newest of its list. => on this list
    #[inline]
    pub fn move_to_back(&mut self, list: ListId, node: u32) {
        let (head, at) = (list + 1, Self::at(node));
        let (previous, next) = (self.entries[at][PREVIOUS], self.entries[at][NEXT]);
        debug_assert!(next != 0, "the node is on no list");
        if next as usize != head {
            self.entries[previous as usize][NEXT] = next;
            self.entries[next as usize][PREVIOUS] = previous;
            let last = self.entries[head][PREVIOUS];
            self.entries[at][PREVIOUS] = last;
            self.entries[at][NEXT] = head as u32;
            self.entries[last as usize][NEXT] = at as u32;
            self.entries[head][PREVIOUS] = at as u32;
        }
    }
    /// Takes the oldest out.
    #[inline]
    pub fn pop_front(&mut self, list: ListId) -> Option<u32> {
        let (head, node) = (list + 1, self.front(list)?);
        let entry = &mut self.entries[Self::at(node)];
        let next = entry[NEXT];
        entry[PREVIOUS] = 0;
        entry[NEXT] = 0;
        self.entries[head][NEXT] = next;
        self.entries[next as usize][PREVIOUS] = head as u32;
        self.len[list] -= 1;
        Some(node)
    }
    /// The nodes of `list`, the oldest first.
    pub fn iter(&self, list: ListId) -> impl Iterator<Item = u32> + '_ {
        core::iter::successors(self.front(list), |node| self.next(*node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn as_deques(ops in proptest::collection::vec((0u8..7, 0usize..2, 0u32..24, 0u32..24), 0..300)) {
            let mut lists: Lists<2, 3> = Lists::new(24);
            let mut model = [VecDeque::new(), VecDeque::new()];
            for (op, list, node, other) in ops {
                let on = model.iter().position(|q| q.contains(&node));
                match (op, on) {
                    (0, None) => { lists.push_back(list, node); model[list].push_back(node); }
                    (1, None) => { lists.push_front(list, node); model[list].push_front(node); }
                    (2, Some(on)) => { lists.remove(on, node); model[on].retain(|n| *n != node); }
                    (3, _) => prop_assert_eq!(lists.pop_front(list), model[list].pop_front()),
                    (4, Some(on)) => {
                        lists.move_to_back(on, node);
                        model[on].retain(|n| *n != node);
                        model[on].push_back(node);
                    }
                    (5, None) if model[list].contains(&other) => {
                        lists.insert_before(list, node, other);
                        let at = model[list].iter().position(|n| *n == other).expect("it is there");
                        model[list].insert(at, node);
                    }
                    (6, _) => *lists.word_mut(node, 0) = other,
                    _ => {}
                }
                for (list, model) in model.iter().enumerate() {
                    prop_assert_eq!(lists.len(list) as usize, model.len());
                    prop_assert!(lists.iter(list).eq(model.iter().copied()));
                    prop_assert_eq!(lists.front(list), model.front().copied());
                    prop_assert_eq!(lists.back(list), model.back().copied());
                }
                prop_assert_eq!(lists.listed(node), model.iter().any(|q| q.contains(&node)));
            }
        }
    }
}

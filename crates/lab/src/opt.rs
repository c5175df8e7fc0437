//! Belady's MIN evicts the page whose next reference is furthest away. Every page that is referenced comes into memory.
//!
//! Source: Belady 1966, "A study of replacement algorithms for a virtual-storage computer"; proved optimal by Mattson and others
//! 1970. Each reference has one next reference to the same page. So resident pages are identified by the place of their next
//! reference in the string, and the furthest is the last bit that is set in a bitmap over the string. The bitmap is a tree with 64
//! children per node: five levels for a thousand million references, with a few instructions each. Pages that never come again go
//! first, beginning with the one whose last reference is oldest. (Any order gives the same faults.)
//!
//! Memory: 4 bytes and a bit per reference, 4 per page.

use crate::replay::{Counts, STRETCH};
use crate::string::References;
use std::collections::VecDeque;

const NEVER: u32 = u32::MAX;

/// A set of numbers below a limit that knows its greatest member.
struct BitTree {
    /// Leaves first; bit `i` of a word of level `n + 1` says that word `i` of level `n` is not zero.
    levels: Vec<Vec<u64>>,
}

impl BitTree {
    fn new(limit: usize) -> Self {
        let mut levels = Vec::new();
        let mut len = limit.max(1);
        loop {
            len = len.div_ceil(64);
            levels.push(vec![0; len]);
            if len == 1 {
                return BitTree { levels };
            }
        }
    }
    fn insert(&mut self, mut n: usize) {
        for level in &mut self.levels {
            let word = &mut level[n / 64];
            let was = core::mem::replace(word, *word | 1 << (n % 64));
            if was != 0 {
                return;
            }
            n /= 64;
        }
    }
    fn remove(&mut self, mut n: usize) {
        for level in &mut self.levels {
            level[n / 64] &= !(1 << (n % 64));
            if level[n / 64] != 0 {
                return;
            }
            n /= 64;
        }
    }
    fn last(&self) -> Option<usize> {
        let mut n = 0;
        for level in self.levels.iter().rev() {
            n = n * 64 + level[n].checked_ilog2()? as usize;
        }
        Some(n)
    }
}

/// See [`crate::replay_with_progress`].
pub fn replay(string: &References<'_>, memory: u32, progress: &dyn Fn(u64)) -> Counts {
    let pages = string.pages();
    let mut next_of = vec![NEVER; pages.len()];
    let mut next = vec![NEVER; string.unique() as usize];
    for (i, page) in pages.iter().enumerate().rev() {
        next_of[i] = core::mem::replace(&mut next[*page as usize], i as u32);
    }
    let mut coming = BitTree::new(pages.len());
    let mut done: VecDeque<u32> = VecDeque::new();
    let mut resident = vec![false; next.len()];
    let mut dirty = vec![false; if string.has_writes() { next.len() } else { 0 }];
    let mut seen = vec![false; next.len()];
    let mut used = 0;
    let mut counts = Counts { references: pages.len() as u64, ..Counts::default() };
    for (begin, stretch) in (0..).step_by(STRETCH).zip(pages.chunks(STRETCH)) {
        for (i, &page) in (begin..).zip(stretch) {
            let p = page as usize;
            if resident[p] {
                coming.remove(i);
            } else {
                counts.faults += 1;
                counts.cold_faults += !core::mem::replace(&mut seen[p], true) as u64;
                if used == memory {
                    let victim = done.pop_front().unwrap_or_else(|| {
                        let at = coming.last().expect("a full memory has a victim");
                        coming.remove(at);
                        pages[at]
                    });
                    resident[victim as usize] = false;
                    if let Some(dirty) = dirty.get_mut(victim as usize) {
                        counts.pages_written += core::mem::take(dirty) as u64;
                    }
                } else {
                    used += 1;
                }
                resident[p] = true;
            }
            match next_of[i] {
                NEVER => done.push_back(page),
                next => coming.insert(next as usize),
            }
            if string.writes(i) {
                dirty[p] = true;
            }
        }
        progress(stretch.len() as u64);
    }
    counts.unique_pages = counts.cold_faults;
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn as_a_set(ops in proptest::collection::vec((any::<bool>(), 0usize..5000), 0..300)) {
            let mut tree = BitTree::new(5000);
            let mut model = BTreeSet::new();
            for (put, n) in ops {
                if put {
                    tree.insert(n);
                    model.insert(n);
                } else {
                    tree.remove(n);
                    model.remove(&n);
                }
                prop_assert_eq!(tree.last(), model.last().copied());
            }
        }
    }
}

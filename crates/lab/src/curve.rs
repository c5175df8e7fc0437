//! LRU at every size in one pass.
//!
//! Source: Mattson, Gecsei, Slutz and Traiger 1970, "Evaluation techniques for storage hierarchies". Under LRU a memory has all
//! pages that any smaller memory has. So a reference is a hit in exactly the memories that are at least as large as its *stack
//! distance*: the number of different pages referenced since the last reference to the same page, including that page. A Fenwick
//! tree over the times of last references counts distances (Bennett and Kruskal 1975). Times are renumbered whenever they run out,
//! so that the tree stays in the cache. It costs O(log n) per reference, 4 bytes per page, and two times 4 bytes per place in the
//! tree.
//!
//! Pages written are exact at every size, too. Let `m` be the greatest distance of the references to a page since its last write.
//! Then exactly the memories of at least `m` pages still have it dirty. If it is referenced again at distance `d`, the memories
//! smaller than `d` have evicted it; so those of `m` to `d - 1` pages wrote it.

use crate::replay::{Counts, STRETCH};
use crate::string::References;

/// The counts of LRU at every size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Curve {
    references: u64,
    cold_faults: u64,
    /// `faults[c]` for a memory of `c` pages; the last entry is for all larger memories.
    faults: Vec<u64>,
    written: Vec<u64>,
}

impl Curve {
    /// The counts for a memory of `memory` pages.
    pub fn counts(&self, memory: u32) -> Counts {
        let at = (memory as usize).min(self.faults.len() - 1);
        Counts {
            references: self.references,
            unique_pages: self.cold_faults,
            faults: self.faults[at],
            cold_faults: self.cold_faults,
            pages_written: self.written[at],
        }
    }
    /// The smallest memory that has no faults but the first references, in pages.
    pub fn footprint(&self) -> u32 {
        self.faults.partition_point(|faults| *faults > self.cold_faults) as u32
    }
}

/// Pages by the time of their last reference.
struct Stack {
    /// Fenwick tree: how many of the times up to here are last references of a page.
    tree: Vec<u32>,
    /// The page of a time, plus one.
    page_at: Vec<u32>,
    /// The time of the last reference to a page, plus one.
    last: Vec<u32>,
    now: usize,
    len: u32,
}

impl Stack {
    fn new(unique: usize) -> Self {
        let times = (2 * unique).max(1024);
        Stack { tree: vec![0; times + 1], page_at: vec![0; times], last: vec![0; unique], now: 0, len: 0 }
    }
    fn add(&mut self, time: usize, by: u32) {
        let mut at = time + 1;
        while at < self.tree.len() {
            self.tree[at] = self.tree[at].wrapping_add(by);
            at += at & at.wrapping_neg();
        }
    }
    /// How many pages were last referenced at `time` or before.
    fn up_to(&self, time: usize) -> u32 {
        let (mut at, mut sum) = (time + 1, 0u32);
        while at > 0 {
            sum = sum.wrapping_add(self.tree[at]);
            at &= at - 1;
        }
        sum
    }
    /// Renumbers the times without gaps.
    fn compact(&mut self) {
        let mut to = 0;
        for from in 0..self.now {
            let page = core::mem::take(&mut self.page_at[from]);
            if page != 0 {
                self.page_at[to] = page;
                self.last[page as usize - 1] = to as u32 + 1;
                to += 1;
            }
        }
        self.now = to;
        for at in 1..self.tree.len() {
            let low = at - (at & at.wrapping_neg());
            self.tree[at] = (at.min(to)).saturating_sub(low) as u32;
        }
    }
    /// The page's depth from the top, 1 if it was the last one referenced; `None` if it never was.
    fn depth(&self, page: u32) -> Option<u32> {
        let time = self.last[page as usize].checked_sub(1)?;
        Some(self.len - self.up_to(time as usize) + 1)
    }
    fn reference(&mut self, page: u32) -> Option<u32> {
        if self.now == self.page_at.len() {
            self.compact();
        }
        let depth = self.depth(page);
        match depth {
            // at the top already: nothing changes
            Some(1) => return depth,
            Some(_) => {
                let time = self.last[page as usize] as usize - 1;
                self.page_at[time] = 0;
                self.add(time, 1u32.wrapping_neg());
            }
            None => self.len += 1,
        }
        self.page_at[self.now] = page + 1;
        self.add(self.now, 1);
        self.now += 1;
        self.last[page as usize] = self.now as u32;
        depth
    }
}

/// LRU at every size. Exact; equal to [`crate::replay`] with `lru` at each.
pub fn lru_curve(string: &References<'_>) -> Curve {
    lru_curve_with_progress(string, &|_| {})
}

/// As [`lru_curve`], with `progress` as in [`crate::replay_with_progress`].
pub fn lru_curve_with_progress(string: &References<'_>, progress: &dyn Fn(u64)) -> Curve {
    let unique = string.unique() as usize;
    let mut stack = Stack::new(unique);
    let mut at_distance = vec![0u64; unique + 2];
    let mut change = vec![0i64; unique + 2];
    // Greatest distance since the last write; MAX: never written.
    let mut since_write = vec![u32::MAX; if string.has_writes() { unique } else { 0 }];
    let mut cold = 0;
    for (begin, stretch) in (0..).step_by(STRETCH).zip(string.pages().chunks(STRETCH)) {
        for (i, &page) in (begin..).zip(stretch) {
            let depth = stack.reference(page);
            match depth {
                Some(depth) => at_distance[depth as usize] += 1,
                None => cold += 1,
            }
            if let Some(m) = since_write.get_mut(page as usize) {
                if let Some(depth) = depth {
                    note_written(&mut change, *m, depth);
                    *m = (*m).max(depth);
                }
                if string.writes(i) {
                    *m = 0;
                }
            }
        }
        progress(stretch.len() as u64);
    }
    for (page, m) in since_write.iter().enumerate() {
        if let Some(depth) = stack.depth(page as u32) {
            note_written(&mut change, *m, depth); // memories that still have it at the end did not write it
        }
    }
    let mut faults = vec![string.pages().len() as u64; unique + 1];
    let mut written = vec![0; unique + 1];
    for c in 1..=unique {
        faults[c] = faults[c - 1] - at_distance[c];
    }
    let mut sum = 0;
    for c in 0..=unique {
        sum += change[c];
        written[c] = sum as u64;
    }
    Curve { references: string.pages().len() as u64, cold_faults: cold, faults, written }
}

/// Notes that the memories of `m` to `depth - 1` pages have written the page.
fn note_written(change: &mut [i64], m: u32, depth: u32) {
    if m < depth {
        change[m as usize] += 1;
        change[depth as usize] -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::{LabPolicy, replay};
    use crate::string::number_by_appearance;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// One pass gives the counts of a replay at each size.
        #[test]
        fn the_curve_is_lru(refs in proptest::collection::vec((0u32..40, proptest::bool::weighted(0.2)), 1..3000)) {
            let mut pages: Vec<u32> = refs.iter().map(|r| r.0).collect();
            let unique = number_by_appearance(&mut pages);
            let mut bits = vec![0u64; pages.len().div_ceil(64)];
            refs.iter().enumerate().for_each(|(i, r)| bits[i / 64] |= (r.1 as u64) << (i % 64));
            let string = References::new(&pages, unique, Some(&bits));
            let curve = lru_curve(&string);
            let lru: LabPolicy = "lru".parse().expect("known");
            for memory in 1..=42 {
                prop_assert_eq!(curve.counts(memory), replay(&lru, &string, memory), "{} pages", memory);
            }
            let least = curve.footprint();
            prop_assert_eq!(curve.counts(least).faults, curve.counts(least).cold_faults);
            // a string without repeated pages needs no memory at all
            prop_assert!(least == 0 || curve.counts(least - 1).faults > curve.counts(least).faults);
        }
    }
}

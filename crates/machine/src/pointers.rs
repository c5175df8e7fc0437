//! Pointers in pages that somebody reads in order, and reading what they point to alongside him.
//!
//! A word of such a page is taken for a pointer if it is an address that the pager answers for. If it is none, a page is read for
//! nothing, and the core notices when that is the rule ([`Vm::follow_pointer`](overspill_vm::Vm::follow_pointer)); nothing is ever
//! written through it.

use crate::kernel::Kernel;
use crate::machine::Machine;
use crate::space::Space;
use overspill_store::PageBytes;
use overspill_vm::types::{PAGE_SHIFT, PAGE_SIZE, PageId};
use std::collections::VecDeque;

/// Words of a page.
const WORDS: usize = PAGE_SIZE / size_of::<usize>();
/// Pages to be looked at, at most. (A window of 64 pages of `struct line` in GNU sort has 8192 pointers, and some tenth of what
/// they point to is out.)
const QUEUE: usize = 2048;
/// Of the budget, as a fraction: what is found further ahead would be gone before it is used.
const BUDGET_FRACTION: u32 = 16;
/// So many pages are looked up under one lock: a few microseconds.
const LOCKED: usize = 64;

/// Pages that something points to, first come, first served. When there is no room for more, those are forgotten. Allocates when it
/// is made.
pub struct Pointed(VecDeque<PageId>);

impl Default for Pointed {
    fn default() -> Self {
        Pointed(VecDeque::with_capacity(QUEUE))
    }
}

impl Pointed {
    /// The next one.
    pub fn front(&self) -> Option<PageId> {
        self.0.front().copied()
    }

    /// It has been dealt with.
    pub fn pop(&mut self) {
        self.0.pop_front();
    }

    /// Adds what the page `of` holds pointers to, as far as that is out or inactive.
    pub fn scan<K: Kernel>(&mut self, machine: &Machine<K>, of: PageId, content: &PageBytes) {
        let mut found = [PageId::from_raw(0); WORDS];
        let map = machine.map.read();
        let found = targets(&map, of, content, &mut found);
        for found in found.chunks(LOCKED) {
            let core = machine.core.lock();
            let most = QUEUE.min((core.vm.limit() / BUDGET_FRACTION) as usize);
            for &page in found {
                if self.0.len() < most && core.vm.is_away(page) {
                    self.0.push_back(page);
                }
            }
        }
    }
}

/// The managed pages that the words of `content`, that of `of`, are addresses in; of several one after the other in the same page
/// the first.
fn targets<'a, K: Kernel>(map: &Space<K>, of: PageId, content: &PageBytes, found: &'a mut [PageId; WORDS]) -> &'a [PageId] {
    let (mut n, mut last) = (0, of);
    let mut near = map.ranges.find(map.addr(of));
    for word in content.as_chunks().0 {
        let word = usize::from_ne_bytes(*word);
        // most words are small numbers, or point into the range that the one before did
        if word >> PAGE_SHIFT == 0 {
            continue;
        }
        if !near.is_some_and(|range| range.start <= word && word < range.end) {
            match map.ranges.find(word) {
                Some(range) => near = Some(range),
                None => continue,
            }
        }
        let page = near.expect("found above").page(word);
        if page != last {
            found[n] = page;
            n += 1;
            last = page;
        }
    }
    &found[..n]
}

//! Follows pointers: reads the pages that a page's words point to, while a thread reads such pages in order.
//!
//! A word of the page counts as a pointer if it is an address that the pager manages. If it is not one, a page is read for nothing,
//! and the core notices when that happens too often ([`Vm::follow_pointer`](overspill_vm::Vm::follow_pointer)). Nothing is ever
//! written through such a word.

use crate::kernel::Kernel;
use crate::machine::Machine;
use crate::space::Space;
use overspill_store::PageBytes;
use overspill_vm::types::{PAGE_SIZE, PageId};
use std::collections::VecDeque;

/// Words of a page.
const WORDS: usize = PAGE_SIZE / size_of::<usize>();
/// The most pages in the queue. (A window of 64 pages of `struct line` in GNU sort has 8192 pointers, and about a tenth of the
/// pages that they point to are not in memory.)
const QUEUE: usize = 2048;
/// The queue's limit as a fraction of the budget: pages read further ahead would be evicted before they are used.
const BUDGET_FRACTION: u32 = 16;
/// Pages that are looked up under one lock: a few microseconds.
const LOCKED: usize = 64;

/// A queue of pages that pointers lead to. Further pages are dropped when it is full. Allocates only when it is made.
pub struct Pointed(VecDeque<PageId>);

impl Default for Pointed {
    fn default() -> Self {
        Pointed(VecDeque::with_capacity(QUEUE))
    }
}

impl Pointed {
    /// The next page.
    pub fn front(&self) -> Option<PageId> {
        self.0.front().copied()
    }

    /// Removes the next page.
    pub fn pop(&mut self) {
        self.0.pop_front();
    }

    /// Adds the pages that `of` holds pointers to, if they are paged out or inactive.
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

/// The managed pages that words of `content`, the content of `of`, point into. Successive pointers into the same page count once.
fn targets<'a, K: Kernel>(map: &Space<K>, of: PageId, content: &PageBytes, found: &'a mut [PageId; WORDS]) -> &'a [PageId] {
    let (mut n, mut last) = (0, of);
    let mut near = map.ranges.find(map.addr(of));
    let all = map.ranges.bounds();
    for word in content.as_chunks().0 {
        let word = usize::from_ne_bytes(*word);
        // Most words are small numbers, or text or floating-point numbers, which are large ones as addresses, or point into the
        // same range as the word before.
        if !all.contains(&word) {
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

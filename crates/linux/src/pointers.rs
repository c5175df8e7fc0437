//! Pointers in pages that somebody reads in order, and reading what they point to beside him.
//!
//! A word of such a page is taken for a pointer if it is an address that the pager answers for. If it is none, a page is read for nothing, and
//! the core notices when that is the rule ([`Vm::follow_pointer`](overspill_vm::Vm::follow_pointer)); nothing is ever written through it.

use crate::machine::{Machine, Space};
use overspill_vm::PageIn;
use overspill_vm::types::{PAGE_SHIFT, PageId};

/// Words of a page.
pub const WORDS: usize = 512;
/// Pages to be looked at, at most. (A window of 64 pages of `struct line` in GNU sort has 8192 pointers, and some tenth of what they
/// point to is out.)
const QUEUE: usize = 2048;
/// Of the budget, as a fraction: what is found further ahead would be gone before it is used.
const BUDGET_FRACTION: u32 = 16;
/// So many pages are looked up under one lock: a few microseconds.
const LOCKED: usize = 64;

/// Pages that something points to, first come, first served. When there is no room for more, those are forgotten.
pub struct Pointed {
    pages: [PageId; QUEUE],
    first: usize,
    count: usize,
}

impl Default for Pointed {
    fn default() -> Self {
        Pointed { pages: [PageId::from_raw(0); QUEUE], first: 0, count: 0 }
    }
}

impl Pointed {
    /// The next one.
    pub fn front(&self) -> Option<PageId> {
        (self.count > 0).then(|| self.pages[self.first])
    }

    /// It has been dealt with.
    pub fn pop(&mut self) {
        self.first = (self.first + 1) % QUEUE;
        self.count -= 1;
    }

    fn push(&mut self, page: PageId) {
        self.pages[(self.first + self.count) % QUEUE] = page;
        self.count += 1;
    }

    /// Adds what the page `of` holds pointers to, as far as that is out or on trial.
    pub fn scan(&mut self, machine: &Machine, of: PageId, words: &[usize; WORDS]) {
        let mut found = [PageId::from_raw(0); WORDS];
        let map = machine.map.read();
        let found = targets(&map, of, words, &mut found);
        for found in found.chunks(LOCKED) {
            let core = machine.core.lock();
            let most = QUEUE.min((core.vm.limit() / BUDGET_FRACTION) as usize);
            for &page in found {
                if self.count < most && core.vm.is_away(page) {
                    self.push(page);
                }
            }
        }
    }
}

/// The managed pages that `words`, the content of `of`, are addresses in; of several one after the other in the same page the first.
fn targets<'a>(map: &Space, of: PageId, words: &[usize; WORDS], found: &'a mut [PageId; WORDS]) -> &'a [PageId] {
    let (mut n, mut last) = (0, of);
    let mut near = map.ranges.find(map.addr(of));
    for &word in words {
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

/// Whether what `op` brings is to be looked through.
pub fn worth_scanning(machine: &Machine, op: &PageIn) -> bool {
    machine.follows_pointers && op.is_read_in_order()
}

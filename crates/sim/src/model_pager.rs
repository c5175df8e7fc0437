//! The dull pager: ordered maps and nothing clever. It is the model that `overspill_swap::SwapPager` is compared with.
//!
//! All processes of a run share one store with a count per slot: a fork counts every inherited slot once more, a slot is free when
//! nobody counts it. (The real swap pager cannot do that without shared memory and freezes slots instead; a program must not
//! see the difference.)
//!
//! Invariant: `refs[slot]` = number of (process, page) pairs stored there + 1 if it is taken and not assigned.

use overspill_vm::pager::{HasPage, Pager, SlotRun};
use overspill_vm::types::{ContentHash, PageId, PageIndex, Slot};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

#[derive(Debug)]
struct Store {
    slots: u32,
    refs: BTreeMap<u32, u32>,
}

impl Store {
    fn unref(&mut self, slot: Slot) {
        let refs = self.refs.get_mut(&slot.0).expect("the slot is in use");
        *refs -= 1;
        if *refs == 0 {
            self.refs.remove(&slot.0);
        }
    }
}

/// See the module. `Clone` copies a process's view without counting; [`ModelPager::fork_child`] then counts.
#[derive(Clone, Debug)]
pub struct ModelPager {
    store: Rc<RefCell<Store>>,
    map: BTreeMap<PageId, (Slot, ContentHash)>,
    taken: u64,
}

impl ModelPager {
    /// A store of `slots` slots, used by one process so far.
    pub fn new(slots: u32) -> Self {
        ModelPager { store: Rc::new(RefCell::new(Store { slots, refs: BTreeMap::new() })), map: BTreeMap::new(), taken: 0 }
    }
    /// This is the copy that a child has: everything stored is counted once more.
    pub fn fork_child(&mut self) {
        assert_eq!(self.taken, 0, "forked while a write was under way");
        let mut store = self.store.borrow_mut();
        for (slot, _) in self.map.values() {
            *store.refs.get_mut(&slot.0).expect("the slot is in use") += 1;
        }
    }
    /// The process ends.
    pub fn exit(&mut self) {
        for (slot, _) in std::mem::take(&mut self.map).into_values() {
            self.store.borrow_mut().unref(slot);
        }
    }
}

impl Pager for ModelPager {
    type Devices = Self;

    fn devices(&self) -> &Self {
        self
    }
    fn devices_mut(&mut self) -> &mut Self {
        self
    }
    fn has_page(&self, page: PageId, before_max: u32, after_max: u32) -> Option<HasPage> {
        let (slot, _) = *self.map.get(&page)?;
        let stored_at = |index: Option<u64>, s: Option<u32>| match (index, s) {
            (Some(i), Some(s)) if i < PageId::INDEX_LIMIT => {
                self.map.get(&PageId::new(page.object(), i)).is_some_and(|(x, _)| x.0 == s)
            }
            _ => false,
        };
        let before =
            (1..=before_max).take_while(|k| stored_at(page.index().checked_sub(*k as u64), slot.0.checked_sub(*k))).count();
        let after = (1..=after_max).take_while(|k| stored_at(Some(page.index() + *k as u64), slot.0.checked_add(*k))).count();
        Some(HasPage { slot, before: before as u32, after: after as u32 })
    }
    fn stored(&self, page: PageId) -> Option<(Slot, ContentHash)> {
        self.map.get(&page).copied()
    }
    /// First fit; the longest run if there is no full one.
    fn alloc_run(&mut self, want: u32, _: PageId) -> Option<SlotRun> {
        let mut store = self.store.borrow_mut();
        let (mut best, mut at) = ((0, 0), 0);
        let ends: Vec<u32> = store.refs.keys().copied().chain([store.slots]).collect();
        for used in ends {
            let count = (used - at).min(want);
            if count > best.1 {
                best = (at, count);
            }
            at = used + 1;
        }
        let (first, count) = best;
        if count == 0 {
            return None;
        }
        store.refs.extend((first..first + count).map(|s| (s, 1)));
        self.taken += count as u64;
        Some(SlotRun { first: Slot(first), count })
    }
    fn assign(&mut self, page: PageId, slot: Slot, content: ContentHash) -> bool {
        self.taken -= 1;
        if let Some((old, _)) = self.map.insert(page, (slot, content)) {
            self.store.borrow_mut().unref(old);
        }
        true
    }
    fn free_slot(&mut self, slot: Slot) {
        self.taken -= 1;
        self.store.borrow_mut().unref(slot);
    }
    fn release(&mut self, page: PageId) -> bool {
        let Some((slot, _)) = self.map.remove(&page) else { return false };
        self.store.borrow_mut().unref(slot);
        true
    }
    fn release_range(&mut self, first: PageId, count: PageIndex) -> u64 {
        let end = PageId::from_raw(first.raw() + count);
        let pages: Vec<PageId> = self.map.range(first..end).map(|(p, _)| *p).collect();
        pages.iter().filter(|p| self.release(**p)).count() as u64
    }
    fn rename(&mut self, from: PageId, to: PageId) -> bool {
        assert!(!self.map.contains_key(&to), "{to:?} is stored");
        if let Some((slot, content)) = self.map.remove(&from) {
            self.map.insert(to, (slot, content.renamed(from, to)));
        }
        true
    }
    fn used(&self) -> u64 {
        self.map.len() as u64 + self.taken
    }
    fn metadata_bytes(&self) -> u64 {
        0
    }
}

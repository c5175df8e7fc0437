//! Property: a slot is handed out only while nobody needs it.
//!
//! An account of all slots of all processes, kept beside the pagers from the calls alone: who holds which place, and for which
//! page. It is independent of how a pager counts (reference counts, freezing at a fork), so it can tell when one counts wrongly. At
//! the end it says what has leaked.

use crate::store::Place;
use overspill_vm::types::PageId;
use std::collections::BTreeMap;

/// The account.
#[derive(Debug, Default)]
pub struct SlotBook {
    holders: BTreeMap<Place, Vec<(u32, Option<PageId>)>>,
    silent: bool,
}

impl SlotBook {
    /// An account of nothing. `silent`: do not complain, for tests that show that the other checkers notice too.
    pub fn new(silent: bool) -> Self {
        SlotBook { silent, ..Default::default() }
    }
    /// `process` is given `place`.
    pub fn take(&mut self, process: u32, place: Place) {
        let holders = self.holders.entry(place).or_default();
        assert!(self.silent || holders.is_empty(), "slots: {place:?} was given to process {process} while held by {holders:?}");
        holders.push((process, None));
    }
    /// `process` gives `place` back unassigned.
    pub fn free(&mut self, process: u32, place: Place) {
        self.drop(process, None, place);
    }
    /// `page` is now stored at `place`, and no longer at `old`.
    pub fn assign(&mut self, process: u32, page: PageId, place: Place, old: Option<Place>) {
        self.drop(process, None, place);
        if let Some(old) = old {
            self.drop(process, Some(page), old);
        }
        self.hold(process, page, place);
    }
    /// `page` is stored at `place`.
    pub fn hold(&mut self, process: u32, page: PageId, place: Place) {
        self.holders.entry(place).or_default().push((process, Some(page)));
    }
    /// `page` is no longer stored at `place`.
    pub fn release(&mut self, process: u32, page: PageId, place: Place) {
        self.drop(process, Some(page), place);
    }
    /// `child` inherits what `parent` holds; of `memory`, a file of its parent's and one of its own, it has a copy.
    pub fn fork(&mut self, parent: u32, child: u32, memory: Option<(u32, u32)>) {
        let mut copies = Vec::new();
        for (place, holders) in &mut self.holders {
            let inherited: Vec<_> = holders.iter().filter(|h| h.0 == parent && h.1.is_some()).map(|h| (child, h.1)).collect();
            match memory {
                Some((its, own)) if its == place.0 && !inherited.is_empty() => copies.push(((own, place.1), inherited)),
                _ => holders.extend(inherited),
            }
        }
        self.holders.extend(copies);
    }
    /// `process` ends.
    pub fn exit(&mut self, process: u32) {
        self.holders.retain(|_, holders| {
            holders.retain(|h| h.0 != process);
            !holders.is_empty()
        });
    }
    /// Places somebody holds.
    pub fn held(&self) -> usize {
        self.holders.len()
    }
    fn drop(&mut self, process: u32, page: Option<PageId>, place: Place) {
        let holders = self.holders.entry(place).or_default();
        match holders.iter().position(|h| *h == (process, page)) {
            Some(at) => {
                holders.swap_remove(at);
            }
            None => assert!(self.silent, "slots: process {process} gives back {place:?} as {page:?}, held by {holders:?}"),
        }
        if holders.is_empty() {
            self.holders.remove(&place);
        }
    }
}

//! An address space: mappings and a page table, and the calls that change them, without the messages that they send.
//!
//! Each call answers as Linux does, changes exactly what Linux changes, and lists the notices to send, in their order. The caller
//! sends them ([`crate::kernel`]).

use crate::errno::*;
use crate::pmap::{Message, PAGE};
use crate::table::{Entry, Table};
use crate::vma::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A message to be sent to a userfaultfd. The sender waits until it is read.
pub type Notice = (usize, Message);

/// A program's memory.
#[derive(Clone, Default, Debug)]
pub struct Space {
    /// Mappings by their first address.
    pub vmas: BTreeMap<usize, Vma>,
    /// The page table.
    pub table: Table,
    /// The number of the next [`AnonVma`].
    next_anon: u64,
}

impl Space {
    /// The mapping of an address.
    pub fn find(&self, at: usize) -> Option<&Vma> {
        self.vmas.range(..=at).next_back().map(|(_, vma)| vma).filter(|vma| at < vma.end)
    }

    /// The first mapping that ends after an address.
    pub fn find_from(&self, at: usize) -> Option<&Vma> {
        self.find(at).or_else(|| self.vmas.range(at..).next().map(|(_, vma)| vma))
    }

    /// The first mapping that overlaps a range.
    pub fn first_in(&self, start: usize, end: usize) -> Option<&Vma> {
        self.find_from(start).filter(|vma| start < end && vma.start < end)
    }

    /// Removes all entries of a range, marks too.
    pub(crate) fn clear(&mut self, start: usize, end: usize) {
        let gone: Vec<usize> = self.table.range(start..end).map(|(at, _)| *at).collect();
        gone.iter().for_each(|at| drop(self.table.remove(at)));
    }

    /// Splits the mapping around `at`, if there is one.
    pub(crate) fn split(&mut self, at: usize) {
        let Some(vma) = self.find(at).filter(|vma| vma.start < at) else { return };
        let mut after = vma.clone();
        (after.start, after.first_page) = (at, vma.page_number(at));
        let start = vma.start;
        self.vmas.get_mut(&start).expect("found").end = at;
        self.vmas.insert(at, after);
    }

    /// Joins the mapping that begins at `start` with its neighbours, if they allow it. If all three cannot be one, it is joined
    /// with the one before rather than with the one after. Returns where the mapping begins now.
    pub(crate) fn join(&mut self, start: usize) -> usize {
        let vma = self.vmas[&start].clone();
        let before = self.vmas.range(..start).next_back().map(|(_, b)| b.clone()).filter(|b| b.joins(&vma));
        let after = self.vmas.get(&vma.end).filter(|a| vma.joins(a)).cloned();
        let all = match (&before, &after) {
            (Some(b), Some(a)) => anon_joins(b.anon, a.anon),
            _ => true,
        };
        let after = after.filter(|_| all);
        let mut joined = vma;
        if let Some(after) = after {
            self.vmas.remove(&after.start);
            joined.end = after.end;
            joined.anon = joined.anon.or(after.anon);
        }
        self.vmas.remove(&start);
        if let Some(before) = before {
            joined.anon = before.anon.or(joined.anon);
            (joined.start, joined.first_page) = (before.start, before.first_page);
        }
        let start = joined.start;
        self.vmas.insert(start, joined);
        start
    }

    /// Changes a range of one mapping, and joins it with its neighbours. Returns where the changed mapping ends.
    fn modify(&mut self, start: usize, end: usize, change: impl FnOnce(&mut Vma)) -> usize {
        self.split(start);
        self.split(end);
        change(self.vmas.get_mut(&start).expect("split there"));
        let joined = self.join(start);
        self.vmas[&joined].end
    }

    /// Gives the mapping of `at` its [`AnonVma`]: a neighbour's if it may use that, preferably the later one's (Linux:
    /// `__anon_vma_prepare`).
    pub fn prepare(&mut self, at: usize) {
        let Some(vma) = self.find(at).filter(|vma| vma.anon.is_none()) else { return };
        let usable = |anon: Option<AnonVma>| anon.filter(|a| !a.inherited);
        let after = self.vmas.get(&vma.end).filter(|a| Vma::shares_anon(vma, a)).and_then(|a| usable(a.anon));
        let before = self.vmas.range(..vma.start).next_back().map(|(_, b)| b).filter(|b| Vma::shares_anon(b, vma));
        let anon = after.or(before.and_then(|b| usable(b.anon))).unwrap_or(AnonVma { id: self.next_anon, inherited: false });
        let start = vma.start;
        self.next_anon += 1;
        self.vmas.get_mut(&start).expect("found").anon = Some(anon);
    }

    /// mmap(2), MAP_FIXED or MAP_FIXED_NOREPLACE.
    pub fn map(&mut self, at: usize, len: usize, prot: u8, replace: bool, notices: &mut Vec<Notice>) -> Result<usize, Errno> {
        if len == 0 || !at.is_multiple_of(PAGE) {
            return Err(EINVAL);
        }
        let end = at + len.next_multiple_of(PAGE);
        if !replace && self.first_in(at, end).is_some() {
            return Err(EEXIST);
        }
        self.unmap_pages(at, end, notices)?;
        let flags = if prot & 2 != 0 { ACCOUNT } else { 0 };
        self.vmas.insert(at, Vma { start: at, end, prot, flags, uffd: None, first_page: at / PAGE, anon: None });
        self.join(at);
        Ok(at)
    }

    /// munmap(2).
    pub fn unmap(&mut self, at: usize, len: usize, notices: &mut Vec<Notice>) -> Result<usize, Errno> {
        if len == 0 || !at.is_multiple_of(PAGE) {
            return Err(EINVAL);
        }
        self.unmap_pages(at, at + len.next_multiple_of(PAGE), notices).map(|()| 0)
    }

    /// Unmaps a range. The report is of the whole range of the call, once to each userfaultfd. A sealed mapping stops the call
    /// before anything is unmapped. But the notices for the mappings before it are sent nevertheless, and a mapping that was to be
    /// split is split (Linux: `vms_gather_munmap_vmas`).
    fn unmap_pages(&mut self, start: usize, end: usize, notices: &mut Vec<Notice>) -> Result<(), Errno> {
        if self.find(start).is_some_and(|vma| vma.start < start && vma.is(SEALED)) {
            return Err(EPERM);
        }
        if self.first_in(start, end).is_some() {
            self.split(start);
        }
        let mut at = start;
        let mut list = Vec::new();
        while let Some(vma) = self.first_in(at, end).cloned() {
            if vma.is(SEALED) {
                return Err(EPERM);
            }
            self.split(end);
            let notice = vma.uffd.filter(|r| r.events).map(|r| (r.uffd, Message::Unmap { start, end }));
            notices.extend(notice.filter(|n| !notices.contains(n)));
            list.push(vma.start);
            at = vma.end.min(end);
        }
        self.vmas.retain(|at, _| !list.contains(at));
        self.clear(start, end);
        Ok(())
    }

    /// mprotect(2). Stops at the first hole; the part before it is changed. Locked memory that becomes writable is populated, as
    /// far as that does not wait: its ranges are listed in `populate`.
    pub fn protect(&mut self, at: usize, len: usize, prot: u8, populate: &mut Vec<(usize, usize)>) -> Result<usize, Errno> {
        if !at.is_multiple_of(PAGE) {
            return Err(EINVAL);
        }
        let end = at + len.next_multiple_of(PAGE);
        let mut at = at;
        while at < end {
            let Some(vma) = self.find(at).cloned() else { return Err(ENOMEM) };
            if vma.is(SEALED) {
                return Err(EPERM);
            }
            let until = vma.end.min(end);
            if vma.prot != prot {
                // memory that becomes writable is charged; it stays charged afterwards, unless it has never been written
                let account = if prot & 2 != 0 { true } else { vma.is(ACCOUNT) && vma.anon.is_some() };
                self.modify(at, until, |vma| {
                    vma.prot = prot;
                    vma.flags = if account { vma.flags | ACCOUNT } else { vma.flags & !ACCOUNT };
                });
                if vma.is(LOCKED) && !vma.writable() && prot & 2 != 0 {
                    populate.push((at, until));
                }
            }
            at = until;
        }
        Ok(0)
    }

    /// Sets and clears flags of the part of a mapping that begins at `at`. Returns the end of the part.
    pub fn set_flags(&mut self, at: usize, end: usize, set: u16, clear: u16) -> usize {
        let vma = self.find(at).expect("mapped");
        let until = vma.end.min(end);
        if (vma.flags | set) & !clear != vma.flags {
            self.modify(at, until, |vma| vma.flags = (vma.flags | set) & !clear);
        }
        until
    }

    /// mlock(2), munlock(2), mseal(2): changes a flag of the whole range. Stops at the first hole.
    ///
    /// # Errors
    /// ENOMEM: not all of it is mapped.
    pub fn flag_range(&mut self, at: usize, len: usize, set: u16, clear: u16) -> Result<usize, Errno> {
        if !at.is_multiple_of(PAGE) && set == SEALED {
            return Err(EINVAL);
        }
        let (mut at, end) = (at / PAGE * PAGE, (at + len).next_multiple_of(PAGE));
        if set == SEALED {
            let mut seen = at;
            while seen < end {
                seen = self.find(seen).ok_or(ENOMEM)?.end; // nothing is sealed unless all of it can be
            }
        }
        while at < end {
            if self.find(at).is_none() {
                return Err(ENOMEM);
            }
            at = self.set_flags(at, end, set, clear);
        }
        Ok(0)
    }

    /// UFFDIO_REGISTER. Holes are skipped.
    pub fn register(&mut self, at: usize, len: usize, with: Registration) -> Result<(), Errno> {
        let end = at + len;
        self.first_in(at, end).ok_or(EINVAL)?;
        if self.vmas.range(..end).any(|(_, vma)| vma.end > at && vma.uffd.is_some_and(|r| r.uffd != with.uffd)) {
            return Err(EBUSY);
        }
        let each = || self.vmas.range(..end).map(|(_, vma)| vma).filter(|vma| vma.end > at);
        if with.watches && each().any(|vma| vma.prot == 0) {
            return Err(EINVAL); // (a touch could not be let through)
        }
        // no mode is given up that marks pages (before there was a second one, this was ignored)
        if each().any(|vma| vma.uffd.is_some_and(|r| r.watches && !with.watches || r.protects && with.watches)) {
            return Err(EBUSY);
        }
        self.set_uffd(at, end, Some(with));
        Ok(())
    }

    /// UFFDIO_UNREGISTER. Skips holes and memory that is not registered. Returns the ranges that were registered, because the tasks
    /// that wait there must be woken.
    pub fn unregister(&mut self, at: usize, len: usize) -> Result<Vec<(usize, usize)>, Errno> {
        let end = at + len;
        self.first_in(at, end).ok_or(EINVAL)?;
        let within = |vma: &Vma| (vma.start.max(at), vma.end.min(end));
        let registered = self.vmas.values().filter(|vma| vma.uffd.is_some()).map(within);
        let registered: Vec<(usize, usize)> = registered.filter(|(start, end)| start < end).collect();
        // protected pages may be written again
        registered.iter().for_each(|(start, end)| self.let_write(*start, *end));
        self.set_uffd(at, end, None);
        Ok(registered)
    }

    fn set_uffd(&mut self, start: usize, end: usize, to: Option<Registration>) {
        let mut at = start;
        while let Some(vma) = self.first_in(at, end) {
            let (from, until) = (vma.start.max(at), vma.end.min(end));
            at = until;
            // a range that is registered here already keeps all that it has
            let has_all = |to: Registration| {
                vma.uffd.is_some_and(|r| r.uffd == to.uffd && r.protects >= to.protects && r.watches >= to.watches)
            };
            if vma.uffd != to && !to.is_some_and(has_all) {
                self.modify(from, until, |vma| vma.uffd = to);
            }
        }
    }

    /// PAGEMAP_SCAN for PAGE_IS_ACCESSED: the pages of a range that are there, can be watched, and were touched since they were, or
    /// never were.
    pub fn touched(&self, start: usize, end: usize) -> Vec<usize> {
        let touched = |(_, entry): &(&usize, &Entry)| {
            matches!(entry, Entry::Page { protected: false, .. } | Entry::Zero { protected: false })
        };
        let there = self.table.range(start..end).filter(touched).map(|(at, _)| *at);
        there.filter(|at| self.find(*at).is_some_and(|vma| vma.uffd.is_some_and(|r| r.watches))).collect()
    }

    /// The kernel is short of memory, and writes pages of a range to its own swap.
    pub fn swap_out(&mut self, start: usize, end: usize) {
        for (_, entry) in self.table.range_mut(start..end) {
            if let Entry::Page { frame, swapped, .. } = entry {
                *swapped = frame.pins == 0;
            }
        }
    }

    /// Lifts write protection from the entries of a range.
    pub fn let_write(&mut self, start: usize, end: usize) {
        let marks: Vec<usize> =
            self.table.range(start..end).filter(|(_, e)| matches!(e, Entry::Marker)).map(|(at, _)| *at).collect();
        marks.iter().for_each(|at| drop(self.table.remove(at)));
        for (_, entry) in self.table.range_mut(start..end) {
            if let Entry::Page { protected, .. } | Entry::Zero { protected } = entry {
                *protected = false;
            }
        }
    }

    /// Makes the memory of a fork's child. (The parent's pages are shared from now on, too.)
    pub fn fork(&mut self) -> Space {
        let mut child = Space { next_anon: self.next_anon, ..Space::default() };
        for vma in self.vmas.values().filter(|vma| !vma.is(DONT_FORK)) {
            let mut copy = Vma { uffd: None, flags: vma.flags & !LOCKED, ..vma.clone() };
            if vma.is(WIPE_ON_FORK) {
                copy.anon = None;
            } else if let Some(anon) = &mut copy.anon {
                *anon = AnonVma { id: child.next_anon, inherited: true };
                child.next_anon += 1;
                for (&at, entry) in self.table.range_mut(vma.start..vma.end) {
                    let shared = match entry {
                        // a device that has pinned the page goes on with the parent's; the child gets a copy at once
                        Entry::Page { frame, .. } if frame.pins > 0 => crate::table::Frame::entry(&frame.bytes),
                        Entry::Page { frame, exclusive, swapped, .. } => {
                            *exclusive = false;
                            Entry::Page { frame: Arc::clone(frame), exclusive: false, protected: false, swapped: *swapped }
                        }
                        Entry::Zero { .. } => Entry::Zero { protected: false },
                        Entry::Poison => Entry::Poison,
                        Entry::Guard => Entry::Guard,
                        Entry::Marker => continue,
                    };
                    child.table.insert(at, shared);
                }
            }
            child.vmas.insert(copy.start, copy);
        }
        child
    }
}

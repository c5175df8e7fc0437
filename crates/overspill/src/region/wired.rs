//! Ranges of a region that stay in memory.

use super::{Region, pages};
use crate::error::Error;
use crate::fault;
use crate::quiet::Quiet;
use overspill_linux::machine::Delivery;
use overspill_linux::sys;
use overspill_vm::page::State;
use overspill_vm::types::{PAGE_SHIFT, PAGE_SIZE};
use std::io;
use std::ops::{Deref, DerefMut, Range, RangeBounds};
use std::sync::{MutexGuard, PoisonError};

struct Wire {
    id: u64,
    pages: Range<usize>,
    /// Which pages it is counted with.
    of: Count,
    kept: bool,
}

/// What wired pages are counted with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Count {
    /// Those that the program wires: [`Regions::wired_left`](crate::pager::Regions::wired_left).
    Program,
    /// Those of a copy or transfer under way: [`Regions::moments_left`](crate::pager::Regions::moments_left).
    Moment,
}

/// The wires of a region.
#[derive(Default)]
pub struct Wires {
    live: Vec<Wire>,
    last: u64,
}

impl Wires {
    fn covers(&self, page: usize) -> bool {
        self.live.iter().any(|w| w.pages.contains(&page))
    }
}

impl Region {
    /// Whether pages of the range are wired.
    pub(crate) fn has_wired(&self, pages: &Range<usize>) -> bool {
        self.wires().live.iter().any(|w| w.pages.start < pages.end && pages.start < w.pages.end)
    }

    fn wires(&self) -> MutexGuard<'_, Wires> {
        self.wires.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings the range's pages in and keeps them in memory until the guard is dropped. Pages that are wired several times stay
    /// until the last guard is dropped.
    ///
    /// # Errors
    /// [`Error::WiredTooMuch`]: at most half of the budget can be wired. [`Error::Lost`], [`Error::Forked`].
    ///
    /// # Panics
    /// If the range is not within the region.
    pub fn wire(&self, range: impl RangeBounds<usize>) -> Result<Wired<'_>, Error> {
        let range = self.bounds(range);
        let id = self.wire_range(&range)?;
        Ok(Wired { region: self, range, id })
    }

    /// As [`Region::wire`], for writing.
    ///
    /// # Errors
    /// As [`Region::wire`].
    ///
    /// # Panics
    /// If the range is not within the region.
    pub fn wire_mut(&mut self, range: impl RangeBounds<usize>) -> Result<WiredMut<'_>, Error> {
        let range = self.bounds(range);
        let id = self.wire_range(&range)?;
        Ok(WiredMut { region: self, range, id })
    }

    pub(crate) fn wire_range(&self, range: &Range<usize>) -> Result<u64, Error> {
        self.pager.0.here()?;
        let pages = pages(range);
        {
            let mut regions = self.pager.0.regions();
            let left = regions.wired_left.checked_sub(pages.len() as u64);
            let available = regions.wired_left << PAGE_SHIFT;
            regions.wired_left = left.ok_or(Error::WiredTooMuch { bytes: (pages.len() << PAGE_SHIFT) as u64, available })?;
        }
        self.wire_counted(pages, Count::Program)
    }

    /// Wires the first pages of the range for a copy or transfer: as many as may be wired for that now, at least one. Waits while
    /// other threads have all of them. Returns what [`Region::unwire_id`] takes, and where the wired part of the range ends.
    ///
    /// (Earlier, such pages were counted with the program's own. So a program that had wired half of the budget, as it may, could
    /// read and write nothing.)
    pub(crate) fn wire_for_a_moment(&self, range: &Range<usize>) -> Result<(u64, usize), Error> {
        let owner = &self.pager.0;
        owner.here()?;
        let mut pages = pages(range);
        {
            let mut regions = owner.regions();
            while regions.moments_left == 0 {
                regions = owner.moment_over.wait(regions).unwrap_or_else(PoisonError::into_inner);
            }
            let count = (pages.len() as u64).min(regions.moments_left);
            regions.moments_left -= count;
            pages.end = pages.start + count as usize;
        }
        let end = range.end.min(pages.end * PAGE_SIZE);
        Ok((self.wire_counted(pages, Count::Moment)?, end))
    }

    /// => the pages have been counted
    fn wire_counted(&self, pages: Range<usize>, of: Count) -> Result<u64, Error> {
        let id = {
            // Before the first page is wired, so that from now on no other thread unwires a page of it.
            let mut wires = self.wires();
            wires.last += 1;
            let id = wires.last;
            wires.live.push(Wire { id, pages: pages.clone(), of, kept: false });
            id
        };
        if pages.len() > 1 {
            self.prefetch_pages(pages.clone());
        }
        for index in pages {
            if let Err(e) = self.wire_page(index) {
                self.unwire_id(id);
                return Err(e);
            }
        }
        Ok(id)
    }

    fn wire_page(&self, index: usize) -> Result<(), Error> {
        let shared = &self.pager.0.shared;
        let page = self.page(index);
        loop {
            {
                let _quiet = Quiet::new();
                let mut core = shared.machine.core.lock();
                let word = core.vm.page(page);
                if word.state() == State::Lost {
                    return Err(Error::Lost);
                }
                // Wherever the page is: once it arrives it stays, so one of the next looks finds it.
                if !core.vm.wire(page, true) {
                    return Err(Error::Resources(io::Error::from_raw_os_error(libc::ENOMEM)));
                }
                if word.state() == State::Active && !word.busy() {
                    return Ok(());
                }
            }
            let there = match shared.machine.config.delivery {
                Delivery::InThread => fault::bring_in(shared, self.addr(index)),
                Delivery::Threads => {
                    // SAFETY: a page of this region; populating changes no content. The call waits for a handler, which does not
                    // take the locks that this thread holds.
                    match unsafe { sys::madvise(self.addr(index), PAGE_SIZE, libc::MADV_POPULATE_READ) } {
                        Ok(()) | Err(libc::EAGAIN | libc::EINTR) => true,
                        Err(_) => false,
                    }
                }
            };
            if !there {
                return Err(Error::Lost);
            }
        }
    }

    pub(crate) fn unwire_id(&self, id: u64) {
        if !self.pager.0.is_alive() {
            return; // in a forked child
        }
        let mut wires = self.wires();
        let Some(at) = wires.live.iter().position(|w| w.id == id) else { return };
        let wire = wires.live.swap_remove(at);
        self.unwire_pages(&wires, wire.pages, wire.of);
    }

    /// Unwires all pages.
    pub(super) fn unwire_all(&self) {
        let live: Vec<u64> = self.wires().live.iter().map(|w| w.id).collect();
        live.into_iter().for_each(|id| self.unwire_id(id));
    }

    /// Unwires the pages that no other live wire covers. => this wire is already removed
    fn unwire_pages(&self, wires: &Wires, pages: Range<usize>, of: Count) {
        let owner = &self.pager.0;
        match of {
            Count::Program => owner.regions().wired_left += pages.len() as u64,
            Count::Moment => {
                owner.regions().moments_left += pages.len() as u64;
                owner.moment_over.notify_all();
            }
        }
        let _quiet = Quiet::new();
        for index in pages.filter(|p| !wires.covers(*p)) {
            let mut core = self.pager.0.shared.machine.core.lock();
            if core.vm.page(self.page(index)).wired() {
                core.vm.wire(self.page(index), false);
            }
        }
    }

    /// Unwires pages that [`Wired::keep`] left wired: all that lie wholly within the range.
    ///
    /// # Panics
    /// If the range is not within the region, or this is a forked child.
    pub fn unwire(&self, range: impl RangeBounds<usize>) {
        self.pager.0.must_be_here();
        let range = self.bounds(range);
        let end = if range.end == self.len { self.pages() } else { range.end / PAGE_SIZE };
        let out = range.start.div_ceil(PAGE_SIZE)..end;
        let mut wires = self.wires();
        let mut at = 0;
        while at < wires.live.len() {
            let Wire { id, of, kept, .. } = wires.live[at];
            let had = wires.live[at].pages.clone();
            let cut = had.start.max(out.start)..had.end.min(out.end);
            if !kept || cut.is_empty() {
                at += 1;
                continue;
            }
            let rests = [had.start..cut.start, cut.end..had.end];
            wires.live.swap_remove(at);
            for pages in rests.into_iter().filter(|r| !r.is_empty()) {
                wires.live.push(Wire { id, pages, of, kept });
            }
            self.unwire_pages(&wires, cut, of);
        }
    }

    /// Unwires the pages of one wire that [`Wired::keep_as`] left. Returns whether there was such a wire.
    ///
    /// # Panics
    /// In a forked child.
    pub fn unwire_kept(&self, number: u64) -> bool {
        self.pager.0.must_be_here();
        let mut wires = self.wires();
        let mut found = false;
        // several, if `unwire` has cut it
        while let Some(at) = wires.live.iter().position(|w| w.id == number && w.kept) {
            let wire = wires.live.swap_remove(at);
            self.unwire_pages(&wires, wire.pages, wire.of);
            found = true;
        }
        found
    }

    fn keep(&self, id: u64) {
        self.pager.0.must_be_here();
        if let Some(wire) = self.wires().live.iter_mut().find(|w| w.id == id) {
            wire.kept = true;
        }
    }
}

/// A range that stays in memory while this lives, so that system calls can use it. From [`Region::wire`].
#[derive(Debug)]
pub struct Wired<'a> {
    region: &'a Region,
    range: Range<usize>,
    id: u64,
}

impl Wired<'_> {
    /// Leaves the pages wired until [`Region::unwire`], or the end of the region.
    ///
    /// # Panics
    /// In a forked child.
    pub fn keep(self) {
        self.keep_as();
    }

    /// As [`Wired::keep`], and returns a number for [`Region::unwire_kept`]. Other wires of the same pages stay then.
    ///
    /// # Panics
    /// In a forked child.
    pub fn keep_as(self) -> u64 {
        let id = self.id;
        self.region.keep(id);
        std::mem::forget(self);
        id
    }
}

impl Deref for Wired<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.region[self.range.clone()]
    }
}

impl Drop for Wired<'_> {
    fn drop(&mut self) {
        self.region.unwire_id(self.id);
    }
}

/// A writable [`Wired`] range. From [`Region::wire_mut`].
#[derive(Debug)]
pub struct WiredMut<'a> {
    region: &'a mut Region,
    range: Range<usize>,
    id: u64,
}

impl WiredMut<'_> {
    /// Leaves the pages wired until [`Region::unwire`], or the end of the region.
    ///
    /// # Panics
    /// In a forked child.
    pub fn keep(self) {
        self.region.keep(self.id);
        std::mem::forget(self);
    }
}

impl Deref for WiredMut<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.region[self.range.clone()]
    }
}

impl DerefMut for WiredMut<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.region[self.range.clone()]
    }
}

impl Drop for WiredMut<'_> {
    fn drop(&mut self) {
        self.region.unwire_id(self.id);
    }
}

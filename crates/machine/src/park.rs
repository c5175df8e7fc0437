//! The parking area: where inactive pages wait, out of the program's sight.
//!
//! It is anonymous memory, registered on a userfaultfd of its own. That one reports no events, so the pager can discard parked
//! pages without waiting for itself. A page is moved in without copying. It comes back by a copy, and parked originals are dropped
//! in batches, because each move back would flush every CPU's TLB.
//!
//! The life of a parked copy, as [`Park`] records it:
//!
//! ```text
//!            take         own                    orphan: its frame holds something else, or is free; charged from here on
//!     free ------> taken -----> owned -----------------------------------> to be dropped --- drop_batch, dropped ---> free
//!       ^            |          |   ^ |                                          ^                     (uncharged)
//!       +--- give ---+     hold |   | | written (a write needs the content)      |
//!                               v   | |                                          |
//!                            owned and held ----- orphan -----> orphan ----------+ written
//! ```
//!
//! A reclaimed frame leaves no charge, because its content is dropped before the frame is free ([`Park::reclaim`]).

use crate::errno::Errno;
use crate::kernel::{Advice, Kernel, Marks, Uffd as _, prot};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicUsize, Ordering::*};
use overspill_swap::blist::Blist;
use overspill_vm::types::{FrameId, PAGE_SHIFT};

/// Kinds of memory whose pages can be moved: readable and writable, and the same with executable.
const AREAS: usize = 2;
/// The first bit of the area's number in a place.
const AREA_SHIFT: u32 = 31;
/// Instead of an area's address: the kernel or its policy (SELinux, PR_SET_MDWE) refused that area.
const REFUSED: usize = 1;

/// A place of one page in the parking area: its number, and in the highest bit the mapping that it is in. (A number is used in one
/// mapping at a time.)
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ParkPlace(u32);

impl ParkPlace {
    /// No place in particular.
    pub const NONE: ParkPlace = ParkPlace(0);

    fn number(self) -> usize {
        (self.0 & !(1 << AREA_SHIFT)) as usize
    }
    /// The place `n` further on. => of the same run
    pub fn plus(self, n: usize) -> ParkPlace {
        ParkPlace(self.0 + n as u32)
    }
    /// The same number in that area. => it holds nothing
    pub fn in_area(self, area: Area) -> ParkPlace {
        ParkPlace(self.number() as u32 | (area.0 as u32) << AREA_SHIFT)
    }
}

/// One of the mappings of the parking area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Area(usize);

impl Area {
    /// For memory that can be read and written.
    pub const USUAL: Area = Area(0);
}

/// The memory of the parking area: a mapping for each protection that pages can be moved from, because UFFDIO_MOVE wants both sides
/// to have the same. The second is made only when the program turns out to have such memory.
pub struct Parking<K: Kernel> {
    bases: [AtomicUsize; AREAS],
    pages: u32,
    kernel: PhantomData<K>,
}

impl<K: Kernel> Parking<K> {
    /// Maps the first one, of `pages` pages.
    ///
    /// # Errors
    /// As mmap(2), UFFDIO_REGISTER.
    pub fn new(pages: u32, uffd: &K::Uffd) -> Result<Self, Errno> {
        assert!(pages < 1 << AREA_SHIFT);
        let parking = Parking { bases: [const { AtomicUsize::new(0) }; AREAS], pages, kernel: PhantomData };
        parking.make(0, uffd)?;
        Ok(parking)
    }

    fn make(&self, area: usize, uffd: &K::Uffd) -> Result<(), Errno> {
        let len = self.bytes();
        let at = K::map_parking(len)?;
        let _ = K::advise(at as usize, len, Advice::NotDumped);
        let protected = if area == 1 { K::make_executable(at as usize, len) } else { Ok(()) };
        let made = protected.and_then(|()| uffd.register(at as usize, len, Marks::None));
        if made.is_err() {
            // SAFETY: nobody has seen it.
            unsafe { K::unmap(at, len) };
        }
        made.map(|()| self.bases[area].store(at as usize, Release))
    }

    /// The area for pages of mappings with this protection. => only the page daemon calls it
    pub fn area(&self, prot: i32, uffd: &K::Uffd) -> Option<Area> {
        let area = match prot {
            p if p == prot::READ | prot::WRITE => 0,
            p if p == prot::READ | prot::WRITE | prot::EXEC => 1,
            _ => return None,
        };
        if self.bases[area].load(Relaxed) == 0 && self.make(area, uffd).is_err() {
            self.bases[area].store(REFUSED, Relaxed);
        }
        (self.bases[area].load(Relaxed) != REFUSED).then_some(Area(area))
    }

    /// The address of a place.
    pub fn addr(&self, place: ParkPlace) -> usize {
        self.bases[(place.0 >> AREA_SHIFT) as usize].load(Acquire) + (place.number() << PAGE_SHIFT)
    }

    fn bytes(&self) -> usize {
        (self.pages as usize) << PAGE_SHIFT
    }

    fn made(&self) -> impl Iterator<Item = usize> {
        self.bases.iter().map(|base| base.load(Acquire)).filter(|base| *base > REFUSED)
    }

    /// Registers all of it, in a fork's child.
    ///
    /// # Errors
    /// As UFFDIO_REGISTER.
    pub fn register(&self, uffd: &K::Uffd) -> Result<(), Errno> {
        self.made().try_for_each(|base| uffd.register(base, self.bytes(), Marks::None))
    }
}

impl<K: Kernel> Drop for Parking<K> {
    fn drop(&mut self) {
        // SAFETY: mappings of its own; the machine that used them is gone.
        self.made().for_each(|base| unsafe { K::unmap(base as *mut u8, self.bytes()) });
    }
}

/// Which place belongs to which frame or write. The machine has the memory itself, and charges the budget by what these calls
/// return.
#[derive(Clone)]
pub struct Park {
    places: Blist,
    /// Frame to place plus one.
    of_frame: Vec<u32>,
    held: Vec<bool>,
    orphan: Vec<bool>,
    /// Places whose content nobody needs any more. They are charged until they are dropped. Has room for all.
    drops: Vec<ParkPlace>,
}

impl Park {
    /// For `places` places, and frames below `frames`.
    pub fn new(places: u32, frames: usize) -> Self {
        let mut list = Blist::new(places);
        list.set_len(places);
        let flags = || vec![false; places as usize];
        let drops = Vec::with_capacity(places as usize);
        Park { places: list, of_frame: vec![0; frames], held: flags(), orphan: flags(), drops }
    }

    /// A run of free places, at most `want`, in the usual area.
    pub fn take(&mut self, want: u32) -> Option<(ParkPlace, u32)> {
        self.places.alloc_run(want, self.places.len()).map(|(first, n)| (ParkPlace(first), n))
    }

    /// Frees a place that holds nothing.
    pub fn give(&mut self, place: ParkPlace) {
        self.places.free(place.number() as u32);
    }

    /// The place holds the frame's content from now on.
    pub fn own(&mut self, frame: FrameId, place: ParkPlace) {
        assert_eq!(self.of_frame[frame.at()], 0);
        self.of_frame[frame.at()] = place.0 + 1;
    }

    /// The place of the frame's content.
    ///
    /// # Panics
    /// If it is not parked.
    pub fn place(&self, frame: FrameId) -> ParkPlace {
        ParkPlace(self.of_frame[frame.at()].checked_sub(1).expect("a parked frame"))
    }

    /// Makes the frame's parked original a second copy (its page is mapped again, or was given up). The caller charges it until it
    /// is dropped, by [`Park::drop_batch`] or at the end of the write that holds it.
    pub fn orphan(&mut self, frame: FrameId) {
        let place = self.disown(frame);
        self.drops.extend(place);
    }

    /// Marks a copy to be dropped that never belonged to a frame. => it is charged
    pub fn abandon(&mut self, place: ParkPlace) {
        self.drops.push(place);
    }

    /// Takes the places of the frames, whose content the caller drops. Then the frames are free, and so are the places, by
    /// [`Park::give`]. Returns how many copies are to be charged because a write still needs them.
    pub fn reclaim(&mut self, frames: impl Iterator<Item = FrameId>, places: &mut Vec<ParkPlace>) -> u32 {
        places.clear();
        frames
            .map(|frame| self.disown(frame))
            .filter(|place| {
                places.extend(*place);
                place.is_none()
            })
            .count() as u32
    }

    /// Takes up to a batch of copies to drop, before [`Park::dropped`]. Returns how many: none unless there is a whole batch, or
    /// `all` are to go.
    pub fn drop_batch(&mut self, batch: &mut [ParkPlace], all: bool) -> usize {
        let n = self.drops.len().min(batch.len());
        if n < batch.len() && !all {
            return 0;
        }
        let rest = self.drops.len() - n;
        batch[..n].copy_from_slice(&self.drops[rest..]);
        self.drops.truncate(rest);
        n
    }

    /// The content of these places is gone. => the caller takes them off the charge
    pub fn dropped(&mut self, batch: &[ParkPlace]) {
        batch.iter().for_each(|&place| self.give(place));
    }

    /// Places that are not free.
    pub fn used(&self) -> u32 {
        self.places.used()
    }

    /// Copies that are to be dropped.
    pub fn drops(&self) -> usize {
        self.drops.len()
    }

    /// The frame no longer needs its place. Returns the place if nobody needs it; `None` if a write still does: then it is an
    /// orphan.
    fn disown(&mut self, frame: FrameId) -> Option<ParkPlace> {
        let place = self.place(frame);
        self.of_frame[frame.at()] = 0;
        if self.held[place.number()] {
            self.orphan[place.number()] = true;
            return None;
        }
        Some(place)
    }

    /// A write needs the content until [`Park::written`]. Returns whether it gets it: not while another write has it.
    pub fn hold(&mut self, place: ParkPlace) -> bool {
        !core::mem::replace(&mut self.held[place.number()], true)
    }

    /// The write has ended. If the place is an orphan, it is to be dropped.
    pub fn written(&mut self, place: ParkPlace) {
        assert!(core::mem::replace(&mut self.held[place.number()], false), "not held");
        if core::mem::replace(&mut self.orphan[place.number()], false) {
            self.drops.push(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_orphan_is_dropped_by_the_writer() {
        let mut p = Park::new(8, 8);
        let (place, n) = p.take(1).expect("free");
        assert_eq!(n, 1);
        p.own(FrameId(3), place);
        assert!(p.hold(place) && !p.hold(place), "one write at a time");
        p.orphan(FrameId(3));
        assert_eq!(p.drops(), 0, "the write needs it");
        p.written(place);
        let mut batch = [ParkPlace::NONE; 2];
        assert_eq!((p.drop_batch(&mut batch, false), p.drop_batch(&mut batch, true)), (0, 1), "no whole batch");
        p.dropped(&batch[..1]);
        assert_eq!(p.take(8), Some((ParkPlace(0), 8)));
    }
}

//! The parking area: where pages on trial wait, out of the program's sight.
//!
//! One anonymous mapping, registered on a userfaultfd of its own that reports no events (so that the pager may discard parked pages
//! without waiting for itself). A page is moved in without copying; it comes back by a copy, and its parked original is dropped in
//! batches, because a move back would flush every CPU's TLB.
//!
//! A place is: free; *owned* by a frame; *held* by a write in flight; or both. `places used == owned + held but not owned`.
//! What is held but no longer owned (the page was restored or released meanwhile) is an orphan: it is charged to the budget
//! separately and dropped when the write has ended.

use overspill_swap::blist::Blist;
use overspill_vm::types::{FrameId, PAGE_SHIFT};

/// A place in the area, one page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ParkPlace(pub u32);

/// Who needs what. The memory itself is the machine's.
pub struct Park {
    base: usize,
    places: Blist,
    /// Frame to place plus one.
    of_frame: Vec<u32>,
    held: Vec<bool>,
    orphan: Vec<bool>,
}

impl Park {
    /// For the mapping at `base` with `places` pages, and frames below `frames`.
    pub fn new(base: usize, places: u32, frames: usize) -> Self {
        let mut list = Blist::new(places);
        list.set_len(places);
        Park {
            base,
            places: list,
            of_frame: vec![0; frames],
            held: vec![false; places as usize],
            orphan: vec![false; places as usize],
        }
    }

    /// The address of a place.
    pub fn addr(&self, place: ParkPlace) -> usize {
        self.base + ((place.0 as usize) << PAGE_SHIFT)
    }

    /// A run of free places, at most `want`.
    pub fn take(&mut self, want: u32) -> Option<(ParkPlace, u32)> {
        self.places.alloc_run(want, self.places.len()).map(|(first, n)| (ParkPlace(first), n))
    }

    /// A place holds nothing (any more).
    pub fn give(&mut self, place: ParkPlace) {
        self.places.free(place.0);
    }

    /// The frame's content is there now.
    pub fn own(&mut self, frame: FrameId, place: ParkPlace) {
        assert_eq!(self.of_frame[frame.at()], 0);
        self.of_frame[frame.at()] = place.0 + 1;
    }

    /// Where the frame's content is.
    ///
    /// # Panics
    /// If it is not parked.
    pub fn place(&self, frame: FrameId) -> ParkPlace {
        ParkPlace(self.of_frame[frame.at()].checked_sub(1).expect("a parked frame"))
    }

    /// The frame no longer needs its place. `Some`: nobody does; drop the content, then [`Park::give`] it. `None`: a write still
    /// does; it is an orphan from now on.
    pub fn disown(&mut self, frame: FrameId) -> Option<ParkPlace> {
        let place = self.place(frame);
        self.of_frame[frame.at()] = 0;
        if self.held[place.0 as usize] {
            self.orphan[place.0 as usize] = true;
            return None;
        }
        Some(place)
    }

    /// A write needs the content until [`Park::release`]. Returns whether it may have it: not while another write has.
    pub fn hold(&mut self, place: ParkPlace) -> bool {
        !core::mem::replace(&mut self.held[place.0 as usize], true)
    }

    /// The write has ended. Returns whether the place was an orphan: then drop the content and [`Park::give`] it.
    pub fn release(&mut self, place: ParkPlace) -> bool {
        assert!(core::mem::replace(&mut self.held[place.0 as usize], false), "not held");
        core::mem::replace(&mut self.orphan[place.0 as usize], false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_orphan_is_dropped_by_the_writer() {
        let mut p = Park::new(0x10000, 8, 8);
        let (place, n) = p.take(1).expect("free");
        assert_eq!(n, 1);
        p.own(FrameId(3), place);
        assert!(p.hold(place) && !p.hold(place), "one write at a time");
        assert_eq!(p.disown(FrameId(3)), None);
        assert!(p.release(place));
        p.give(place);
        assert_eq!(p.take(8), Some((ParkPlace(0), 8)));
    }
}

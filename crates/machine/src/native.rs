//! Native ranges, and how they are adopted.
//!
//! **Native until it matters.** A new range that fits the budget as a whole is left to the kernel and charged in full. While
//! everything fits, the program runs at the kernel's speed, and stays within the budget. When frames get short, all native ranges
//! are adopted: they are registered, and the pages that they have are taken over one by one.

use crate::errno::{self, Errno};
use crate::kernel::{Host as _, Kernel, Mappings as _};
use crate::machine::{Core, Machine};
use crate::ranges::{Flags, Kind, Range};
use crate::space::Space;
use overspill_vm::types::{PAGE_SHIFT, PAGE_SIZE};

/// A part of a native range that is out of the map during a system call.
#[derive(Clone, Copy, Default, Debug)]
pub struct Piece {
    /// First address.
    pub start: usize,
    /// Address after the last.
    pub end: usize,
    /// The range's flags in the map.
    pub flags: Flags,
}

/// The native ranges that a system call replaces, unmaps or moves. No event reports that. So they are taken out of the map before
/// the call, because the kernel may give their addresses to another thread before the call returns. They are put back if the kernel
/// refuses the call.
#[derive(Clone, Copy, Default, Debug)]
pub struct Pieces {
    list: [Piece; PIECES_MAX],
    count: usize,
}

/// Neighbouring native ranges are joined, so there are rarely more. The list is on the program's stack.
const PIECES_MAX: usize = 12;

impl Pieces {
    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = &Piece> {
        self.list[..self.count].iter()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// The least limit with which so many pages more fit into the budget as a whole.
pub fn limit_with(core: &Core, pages: u64) -> u64 {
    core.vm.charge_total() + pages + 2 * u64::from(core.vm.free_high())
}

impl<K: Kernel> Machine<K> {
    /// The program has a new anonymous private range. If all of it fits the budget, it is left to the kernel, without a system
    /// call. Returns `false` if it does not fit; then [`Machine::add_range`] is due.
    pub fn try_native(&self, piece: Piece) -> bool {
        let mut map = self.map.write();
        // if the unmapping of an old range here is still to be reported, that event must be followed first
        !map.is_settling(piece.start, piece.end) && !Self::joins_managed(&map, piece) && self.insert_native(&mut map, piece)
    }

    /// Whether so many pages more fit into the budget as a whole.
    pub fn fits(&self, pages: u64) -> bool {
        let core = self.core.lock();
        limit_with(&core, pages) <= u64::from(core.vm.limit())
    }

    /// Whether all of the program's memory is left to the kernel.
    pub fn is_all_native(&self) -> bool {
        self.map.read().ranges.overlap(0, usize::MAX, Kind::Managed).is_none()
    }

    /// Whether the kernel would join the piece and a managed neighbour into one mapping. It does so only if the piece is registered
    /// before it is touched. It matters because mremap(2), for one, wants its range to be one mapping.
    fn joins_managed(map: &Space<K>, piece: Piece) -> bool {
        let alike = |r: Option<&Range>| {
            r.is_some_and(|r| r.kind == Kind::Managed && r.flags.without(Flags::GUARDED) == piece.flags.without(Flags::GUARDED))
        };
        alike(map.ranges.find(piece.start.wrapping_sub(1))) || alike(map.ranges.find(piece.end))
    }

    fn insert_native(&self, map: &mut Space<K>, piece: Piece) -> bool {
        self.drop_native(map, piece.start, piece.end);
        let range = Range { start: piece.start, end: piece.end, kind: Kind::Native, ..Range::of_program(piece.flags) };
        // a range that is left to the kernel cannot be recorded
        self.fits(range.pages()) && !self.host.records() && self.reserve_native(map, range)
    }

    /// Inserts a native range and charges it in full. Returns whether there was room for it in the map.
    pub fn reserve_native(&self, map: &mut Space<K>, range: Range) -> bool {
        let inserted = map.ranges.insert(range);
        if inserted {
            let mut core = self.core.lock();
            let total = core.vm.reserved() + range.pages();
            core.vm.set_reserved(total);
        }
        inserted
    }

    /// The program has a new anonymous private range.
    pub fn add_range(&self, piece: Piece) {
        let Piece { start, end, flags } = piece;
        self.await_unmaps(start, end);
        let mut map = self.map.write();
        if !Self::joins_managed(&map, piece) {
            if map.ranges.overlap(start, end, Kind::Managed).is_none() && self.insert_native(&mut map, piece) {
                return;
            }
            drop(map);
            self.adopt_native(0, usize::MAX);
            map = self.map.write();
        }
        self.drop_native(&mut map, start, end);
        self.manage(&mut map, Range { start, end, ..Range::of_program(flags) });
    }

    /// Registers a range and takes over the pages that are present. If the kernel refuses (a special mapping), it stays the
    /// kernel's.
    pub fn manage(&self, map: &mut Space<K>, range: Range) {
        let _ = self.try_manage(map, range);
    }

    /// As [`Machine::manage`].
    ///
    /// # Errors
    /// As [`Space::register`].
    fn try_manage(&self, map: &mut Space<K>, range: Range) -> Result<(), Errno> {
        let range = Range { kind: Kind::Managed, ..range };
        if map.backlog.overlaps(range.start, range.end) {
            self.finish(map); // rarely: those who make a range wait for that
        }
        map.register(range.start, range.end)?;
        map.ranges.remove(range.start, range.end, |_| {}); // parts that the map had already; their known pages stay as they are
        if !map.ranges.insert(range) {
            self.stop_ranges_full();
        }
        let mut start = range.start;
        while start < range.end {
            let at = map.mappings.first_populated(start, range.end);
            let end = range.end.min(at + Self::ADOPTED_BYTES);
            let mut core = self.core.lock();
            // Those in the kernel's swap, too: it brings them in without a report, and nobody would charge them or evict them.
            map.mappings.each_populated(at, end, |addr| {
                core.vm.adopt(range.page(addr));
            });
            start = end;
        }
        Ok(())
    }

    /// What is adopted at a time: 2 MiB on Linux, so that no huge page has to be split for it.
    const ADOPTED_BYTES: usize = 4 * K::STEP_PAGES as usize * PAGE_SIZE;

    /// Takes over the native ranges in `start..end`, with the map given up between pieces. The charge falls from the ranges' size
    /// to their present pages.
    pub fn adopt_native(&self, start: usize, end: usize) {
        while self.adopt_piece(&mut self.map.write(), start, end) {
            self.let_others();
        }
    }

    /// Takes over a piece of a native range in `start..end`. The rest stays native for now: the kernel sees two mappings, which it
    /// joins when the rest is registered too. Returns whether there was one.
    ///
    /// What is adopted first is evicted first, so the oldest memory should come first. The heap grows upwards: there it is the
    /// lowest. New mappings are placed from the top down: from [`Kernel::MAPPINGS_FROM`] on it is the highest.
    pub(crate) fn adopt_piece(&self, map: &mut Space<K>, start: usize, end: usize) -> bool {
        let (range, piece) = if let Some(range) = map.ranges.last_overlap(start.max(K::MAPPINGS_FROM), end, Kind::Native) {
            (range, range.within((range.end - 1) / Self::ADOPTED_BYTES * Self::ADOPTED_BYTES, range.end))
        } else if let Some(range) = map.ranges.overlap(start, end, Kind::Native) {
            (range, range.within(range.start, (range.start + 1).next_multiple_of(Self::ADOPTED_BYTES)))
        } else {
            if (start, end) == (0, usize::MAX) {
                self.core.lock().vm.set_reserved(0);
            }
            return false;
        };
        let remove = |map: &mut Space<K>, piece: Range| {
            map.ranges.remove(piece.start, piece.end, |_| {});
            Self::unreserve(&mut self.core.lock(), piece.pages());
        };
        remove(map, piece);
        // A piece divides its mapping, and the process may have as many as the kernel allows. Then all is tried at once.
        if self.try_manage(map, piece) == Err(errno::ENOMEM) && piece != range {
            let rest = if piece.start == range.start {
                range.within(piece.end, range.end)
            } else {
                range.within(range.start, piece.start)
            };
            remove(map, rest);
            if self.try_manage(map, range).is_err() && !self.reserve_native(map, rest) {
                self.stop_ranges_full();
            }
        }
        true
    }

    /// Takes over the native ranges in `start..end`, and all that adjoin them. From here on events report what becomes of them.
    ///
    /// (An earlier version took over only the part in `start..end`. The rest of a mapping that reached beyond, or that had guard
    /// pages in a part, was left to the kernel. So one mapping of the program's became two, and mremap(2) of both said EFAULT.)
    pub fn adopt_native_of(&self, mut start: usize, mut end: usize) {
        let map = self.map.read();
        let reaches = |addr: usize| map.ranges.find(addr).filter(|r| r.kind == Kind::Native);
        while start > 0
            && let Some(r) = reaches(start - 1)
        {
            start = r.start;
        }
        while let Some(r) = reaches(end) {
            end = r.end;
        }
        drop(map);
        self.adopt_native(start, end);
    }

    /// The native ranges in `start..end` are gone. (No event reports that.)
    pub fn drop_native(&self, map: &mut Space<K>, start: usize, end: usize) {
        let mut at = start;
        while let Some(r) = map.ranges.overlap(at, end, Kind::Native) {
            let piece = r.within(at, end);
            map.ranges.remove(piece.start, piece.end, |_| {});
            Self::native_gone(&mut self.core.lock(), piece);
            at = piece.end;
        }
    }

    /// A system call is about to unmap, replace or move the range. Takes its native parts, of which no event will tell, out of the
    /// map. `None` if they are too many, or if there are managed parts as well: then [`Machine::adopt_native_of`] is due before the
    /// call. (The event would cover the whole range, and by then another thread's new range could lie where a native part was.)
    pub fn take_native(&self, start: usize, end: usize) -> Option<Pieces> {
        let mut pieces = Pieces::default();
        if self.map.read().ranges.overlap(start, end, Kind::Native).is_none() {
            return Some(pieces);
        }
        let mut map = self.map.write();
        if map.ranges.overlap(start, end, Kind::Managed).is_some() {
            return None;
        }
        let mut at = start;
        while let Some(r) = map.ranges.overlap(at, end, Kind::Native) {
            let r = r.within(at, end);
            *pieces.list.get_mut(pieces.count)? = Piece { start: r.start, end: r.end, flags: r.flags };
            pieces.count += 1;
            at = r.end;
        }
        for piece in pieces.iter() {
            map.ranges.remove(piece.start, piece.end, |_| {});
            Self::unreserve(&mut self.core.lock(), ((piece.end - piece.start) >> PAGE_SHIFT) as u64);
        }
        Some(pieces)
    }

    /// The call has been made: pages that it replaced, unmapped or moved are no longer wired.
    pub fn gone(&self, pieces: &Pieces) {
        let map = self.map.write();
        for &Piece { start, end, .. } in pieces.iter() {
            let mut at = start;
            while at < end {
                let since = map.ranges.first(at, end); // another thread's range, made meanwhile
                let until = since.map_or(end, |r| r.start.max(at));
                if at < until {
                    let gone = Range { start: at, end: until, ..Range::of_program(Flags::NONE) };
                    self.core.lock().vm.unwire_range(gone.page(at), gone.pages());
                }
                at = since.map_or(end, |r| r.end);
            }
        }
    }

    /// The kernel has refused the call: puts the piece back, if it is still mapped and nothing has taken its place. Returns `false`
    /// if it must be managed now; then [`Machine::add_range`] is due.
    #[must_use]
    pub fn put_back(&self, piece: &Piece) -> bool {
        let &Piece { start, end, flags } = piece;
        if !K::is_mapped(start, end) {
            return true;
        }
        let mut map = self.map.write();
        if map.ranges.first(start, end).is_some() {
            return true;
        }
        // a neighbour that is one mapping with it may have been adopted during the call
        if Self::joins_managed(&map, *piece) {
            return false;
        }
        // Even if it no longer fits the budget. Then the page daemon adopts it.
        self.reserve_native(&mut map, Range { start, end, kind: Kind::Native, ..Range::of_program(flags) });
        let short = self.core.lock().vm.wants_daemon();
        drop(map);
        if short {
            self.ring_daemon();
        }
        true
    }

    pub(crate) fn native_gone(core: &mut Core, piece: Range) {
        Self::unreserve(core, piece.pages());
        core.vm.unwire_range(piece.page(piece.start), piece.pages());
    }

    pub(crate) fn unreserve(core: &mut Core, pages: u64) {
        let left = core.vm.reserved().saturating_sub(pages);
        core.vm.set_reserved(left);
    }
}

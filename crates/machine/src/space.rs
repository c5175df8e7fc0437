//! The program's address space as the pager knows it: ranges, descriptors, files; guards, what is wired, what children find empty.

use crate::compressed::Compressed;
use crate::copy_out::Copying;
use crate::discards::Discards;
use crate::errno::{self, Errno};
use crate::events::PendingUnmaps;
use crate::files::{DEVICES_MAX, DeviceName, Files as _};
use crate::kernel::{Kernel, Mistake, Uffd};
use crate::lock::Word as _;
use crate::machine::{Core, Machine};
use crate::ranges::{Flags, Kind, Range, RangeMap};
use crate::remaps::Remaps;
use crate::serve::Read;
use core::sync::atomic::Ordering::*;
use overspill_vm::PageIn;
use overspill_vm::page::State;
use overspill_vm::pager::Location;
use overspill_vm::types::{ObjectId, PAGE_SHIFT, PAGE_SIZE, PageId};
use std::sync::Arc;

/// What is changed only when address ranges, descriptors or files change.
pub struct Space<K: Kernel> {
    /// Who serves which address.
    pub ranges: RangeMap,
    /// Discards, and installations of guard pages, that may be under way.
    pub discards: Discards,
    /// What is about to be unmapped, replaced or moved.
    pub remaps: Remaps,
    /// Pages that the page daemon is taking by a copy.
    pub copying: Copying,
    /// Unmaps that are still to be reported.
    pub pending: PendingUnmaps,
    /// The address of page 0 of each object.
    pub origins: Vec<usize>,
    /// The program's ranges are registered here.
    pub program: K::Uffd,
    /// The parking area is registered here.
    pub parking: K::Uffd,
    /// The swap files by device.
    pub files: [Option<K::Files>; DEVICES_MAX],
    /// The compressed device, which has no file.
    pub pool: Option<Arc<Compressed<K>>>,
    /// Their names.
    pub names: Box<[DeviceName; DEVICES_MAX]>,
    /// Ourselves, for discards of scattered ranges.
    pub process: K::Process,
}

impl<K: Kernel> Space<K> {
    /// Whether there is a device of that number.
    pub fn has_device(&self, device: usize) -> bool {
        self.files[device].is_some() || self.pool.as_ref().is_some_and(|pool| pool.device().0 as usize == device)
    }
    /// Whether what was in the range is still to be given up, or is being taken out of it by its address: nothing new is to be
    /// there yet.
    pub fn is_settling(&self, start: usize, end: usize) -> bool {
        let managed = self.ranges.overlap(start, end, Kind::Managed).is_some();
        managed || self.copying.overlaps(start, end) || self.remaps.overlaps(start, end)
    }
    /// Whether an unmapping or a move is under way, or was and has not been followed.
    pub fn is_changing(&self) -> bool {
        self.program.is_changing() || self.remaps.has_reports()
    }
    /// The file of a place on a device; none if the device is memory.
    pub fn fd(&self, location: Location) -> i32 {
        if location.is_memory {
            return -1;
        }
        self.files[location.device.0 as usize].as_ref().expect("a device has files").fd(location.file)
    }
    /// All that it takes to read.
    pub fn read_of(&self, op: PageIn) -> Read {
        Read { op, fd: self.fd(op.location) }
    }
    /// The address of a page.
    pub fn addr(&self, page: PageId) -> usize {
        Self::addr_of(&self.origins, page)
    }
    /// The same, if these are the addresses of page 0 of each object.
    pub fn addr_of(origins: &[usize], page: PageId) -> usize {
        origins[page.object().0 as usize] + ((page.index() as usize) << PAGE_SHIFT)
    }
}

/// The most that [`Machine::keep_in`] brings in, in bytes.
const KEEP_IN_MAX: usize = 64 << 30;

impl<K: Kernel> Machine<K> {
    /// The program is about to put guard pages here (MADV_GUARD_INSTALL, for which there is no event), which drops what is there.
    /// Until [`Machine::guarded`] nothing is brought in here and nothing is taken. Returns whether there may be guard pages
    /// already, or `None` if there is no room to remember it.
    pub fn begin_guard(&self, start: usize, end: usize) -> Option<bool> {
        let mut map = self.map.write();
        let (mut at, mut before) = (start, false);
        while let Some(r) = map.ranges.first(at, end) {
            before |= r.flags.has(Flags::GUARDED);
            at = r.end;
        }
        if at > start {
            if !map.ranges.change(start, end, |flags| flags.with(Flags::GUARDED)) {
                return None;
            }
            map.discards.add(start, end, K::now_ns());
        }
        Some(before)
    }

    /// The call has returned: the guard pages are there. What was there before is forgotten.
    pub fn guarded(&self, start: usize, end: usize) {
        let mut map = self.map.write();
        let mut at = start;
        while let Some(r) = map.ranges.overlap(at, end, Kind::Managed) {
            let piece = r.within(at, end);
            self.give_up(piece, false);
            at = piece.end;
        }
        map.discards.done(start, end, K::now_ns());
        self.drop_places(&map, false);
    }

    /// The guard pages have been taken away again, or there are none: the call was refused.
    pub fn unguarded(&self, start: usize, end: usize) {
        let mut map = self.map.write();
        map.discards.done(start, end, K::now_ns());
        // without room for the pieces, they are taken for guarded, which is slower and otherwise the same
        let _ = map.ranges.change(start, end, |flags| flags.without(Flags::GUARDED));
    }

    /// The call was refused, where there may be guard pages since an earlier one.
    pub fn not_guarded(&self, start: usize, end: usize) {
        self.map.write().discards.done(start, end, K::now_ns());
    }

    /// In a fork's child: registers what it has of the managed ranges, and gives up what it has not: MADV_DONTFORK, or a range that
    /// another thread unmapped in the moment of the fork, of which nobody will hear here.
    ///
    /// # Errors
    /// Its mappings cannot be read or registered.
    pub fn inherit_ranges(&self, map: &mut Space<K>, core: &mut Core) -> Result<(), Errno> {
        map.remaps.calls.clear(); // of threads that are not here
        let (mut at, mut result) = (0, Ok(()));
        K::each_mapping(|start, end| {
            Self::unmapped(map, core, at, start);
            at = start;
            while let Some(r) = map.ranges.overlap(at, end, Kind::Managed) {
                let piece = Range { start: r.start.max(at), end: r.end.min(end), ..r };
                match map.program.register(piece.start, piece.end - piece.start) {
                    Ok(()) => {}
                    Err(errno::EINVAL) => Self::unmapped(map, core, piece.start, piece.end), // something else is there by now
                    Err(e) => result = Err(e),
                }
                at = piece.end;
            }
            at = end;
        })?;
        Self::unmapped(map, core, at, usize::MAX);
        map.pending.clear();
        result
    }

    /// In a fork's child: what is to be empty there is. The kernel has done it with what was mapped; the pager's share is what was
    /// not.
    pub fn wipe(&self, map: &Space<K>, core: &mut Core) {
        for r in map.ranges.iter().filter(|r| r.kind == Kind::Managed && r.flags.has(Flags::WIPE)) {
            Self::give_up_of(core, *r, false);
        }
    }

    /// Pages that must never leave memory (a thread's descriptor), by address. They need not be managed yet.
    pub fn wire_addresses(&self, object: ObjectId, origin: usize, start: usize, end: usize) {
        let touch = |addr: usize| {
            // SAFETY: the caller's memory, mapped readable; a read brings the page in through the ordinary fault path.
            unsafe { K::touch_directly(addr) };
            true
        };
        self.wire_each(object, origin, start, end, touch);
    }

    /// As [`Machine::wire_addresses`]: `touch` brings in the page at an address. Returns `false` if it could not.
    fn wire_each(&self, object: ObjectId, origin: usize, start: usize, end: usize, touch: impl Fn(usize) -> bool) -> bool {
        let first = (start - origin) >> PAGE_SHIFT;
        let last = (end - 1 - origin) >> PAGE_SHIFT;
        for index in first..=last {
            let page = PageId::new(object, index as u64);
            loop {
                let mut core = self.core.lock();
                let word = core.vm.page(page);
                if matches!(word.state(), State::Inactive | State::Clean | State::PagedOut) || word.busy() {
                    drop(core);
                    if !touch(origin + (index << PAGE_SHIFT)) {
                        return false;
                    }
                    continue;
                }
                if !core.vm.wire(page, !K::mistake(Mistake::KeepsNothing)) {
                    drop(core);
                    self.stop_table_full();
                }
                break;
            }
        }
        true
    }

    /// Brings in what is managed in a range, to stay. Returns `false` if that cannot be: it may not be read, or is too much.
    pub fn keep_in(&self, start: usize, end: usize) -> bool {
        let mut at = start;
        loop {
            let range = self.map.read().ranges.overlap(at, end, Kind::Managed);
            let Some(piece) = range.map(|range| range.within(at, end)) else { return true };
            let touch = |addr: usize| K::touch(addr);
            let fits = piece.end - piece.start <= KEEP_IN_MAX;
            if !fits || !self.wire_each(piece.object, piece.origin, piece.start, piece.end, touch) {
                return false;
            }
            at = piece.end;
        }
    }

    /// A registered address was touched that is in no range: memory that has grown by a call that was not followed. It is managed
    /// from now on, as far as its mapping goes. => nothing is known at the address
    pub fn find_grown(&self, map: &mut Space<K>, addr: usize) {
        let mut mapping = (addr, addr + PAGE_SIZE); // if it cannot be asked for
        let _ = K::each_mapping(|start, end| {
            if (start..end).contains(&addr) {
                mapping = (start, end);
            }
        });
        let mut grown = Range { start: mapping.0, end: mapping.1, ..Range::of_program(Flags::NONE) };
        for r in map.ranges.iter() {
            if r.end <= addr && r.end > mapping.0 {
                (grown.start, grown.flags) = (r.end, r.flags);
            } else if r.start > addr {
                grown.end = grown.end.min(r.start);
                break;
            }
        }
        self.manage(map, grown);
    }

    /// The program has said what its forked children are to find here, for which there are no events. Returns `false` if there is
    /// no room to remember it.
    #[must_use]
    pub fn wiped_on_fork(&self, start: usize, end: usize, wiped: bool) -> bool {
        let change = |flags: Flags| if wiped { flags.with(Flags::WIPE) } else { flags.without(Flags::WIPE) };
        self.map.write().ranges.change(start, end, change)
    }

    /// What is managed in a range is the kernel's from now on, and no longer known. => [`Machine::keep_in`] has brought it in
    pub fn hand_over(&self, start: usize, end: usize) {
        let mut map = self.map.write();
        let mut at = start;
        while let Some(range) = map.ranges.overlap(at, end, Kind::Managed) {
            let piece = range.within(at, end);
            at = piece.end;
            // SAFETY: all of it that has content is in memory, and stays there.
            if unsafe { map.program.unregister(piece.start, piece.end - piece.start) }.is_ok() {
                Self::unmapped(&mut map, &mut self.core.lock(), piece.start, piece.end);
            }
        }
        self.drop_places(&map, true);
    }

    /// Whether faults of the whole process have to wait for a fork that is being made.
    pub fn is_frozen(&self) -> bool {
        self.frozen.load(Acquire) != 0
    }
}

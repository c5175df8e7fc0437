//! The program's address space as the pager knows it: ranges, descriptors, files, and calls that are changing it.

pub mod backlog;
pub mod copying;
pub mod discards;
pub mod pending_unmaps;
pub mod remaps;

use crate::compressed::Compressed;
use crate::errno::{self, Errno};
use crate::files::{DEVICES_MAX, DeviceName, Files as _};
use crate::home::{HomeFile, HomeRead};
use crate::kernel::{Kernel, Marks, Mistake, Uffd};
use crate::ranges::{Kind, RangeMap};
use backlog::Backlog;
use copying::Copying;
use discards::Discards;
use overspill_vm::pager::Location;
use overspill_vm::types::{ObjectId, PAGE_SHIFT, PAGE_SIZE, PageId};
use overspill_vm::{Access, PageIn};
use pending_unmaps::PendingUnmaps;
use remaps::Remaps;
use std::sync::Arc;

/// State that changes only when address ranges, descriptors or files change. Lock key: all of it by the lock around it,
/// `Machine::map`: shared to read, exclusive to change.
pub struct Space<K: Kernel> {
    /// The ranges, and who serves each.
    pub ranges: RangeMap,
    /// Discards, and installations of guard pages, that may be under way.
    pub discards: Discards,
    /// Calls that are about to unmap, replace or move memory.
    pub remaps: Remaps,
    /// Pages that the page daemon is copying out.
    pub copying: Copying,
    /// Pages to be given up or renamed, in steps.
    pub backlog: Backlog,
    /// Unmaps that are still to be reported.
    pub pending: PendingUnmaps,
    /// The address of page 0 of each object.
    pub origins: Vec<usize>,
    /// For each object: the file that is its home, if it has one.
    pub homes: Vec<Option<HomeFile>>,
    /// The userfaultfd of the program's ranges.
    pub program: K::Uffd,
    /// The userfaultfd of the parking area.
    pub parking: K::Uffd,
    /// The swap files by device.
    pub files: [Option<K::Files>; DEVICES_MAX],
    /// The compressed device, which has no file.
    pub pool: Option<Arc<Compressed<K>>>,
    /// The names of the devices.
    pub names: Box<[DeviceName; DEVICES_MAX]>,
    /// This process, for discards of scattered ranges.
    pub process: K::Process,
    /// Its mappings. A thread of the pager's opens the descriptors.
    pub mappings: K::Mappings,
}

impl<K: Kernel> Space<K> {
    /// Registers a range of the program's. Where the kernel tells references, its pages can be watched. Exceptions are memory that
    /// is not accessible (PROT_NONE), and memory that comes after the first page was copied out. If one range has both, each
    /// mapping is registered as it can be.
    ///
    /// # Errors
    /// As [`Uffd::register`].
    pub fn register(&self, start: usize, end: usize) -> Result<(), Errno> {
        let (protects, tells) = (self.program.protects(), self.program.tells_references());
        let wanted = if protects {
            Marks::Protected
        } else if tells {
            Marks::Watched
        } else {
            Marks::None
        };
        let whole = self.program.register(start, end - start, wanted);
        if whole.is_ok() || !tells {
            return whole;
        }
        let mut result = Err(errno::EINVAL);
        K::each_mapping(|from, to| {
            let (from, to) = (from.max(start), to.min(end));
            if from < to {
                let with = |marks| self.program.register(from, to - from, marks);
                let watched = if protects { with(wanted).or_else(|_| with(Marks::Watched)) } else { with(wanted) };
                let each = match watched.or_else(|_| with(Marks::None)) {
                    // it was accessible when it was registered, and is watched
                    Err(errno::EBUSY) if watched == Err(errno::EINVAL) => Ok(()),
                    each => each,
                };
                result = if result == Err(errno::EINVAL) { each } else { result.and(each) };
            }
        })?;
        result
    }
    /// Whether there is a device of that number.
    pub fn has_device(&self, device: usize) -> bool {
        self.files[device].is_some() || self.pool.as_ref().is_some_and(|pool| pool.device().0 as usize == device)
    }
    /// Whether the old content of the range is still to be given up or renamed, or is being taken out by its address. Then nothing
    /// new may be put there yet.
    pub fn is_settling(&self, start: usize, end: usize) -> bool {
        let managed = self.ranges.overlap(start, end, Kind::Managed).is_some();
        managed || self.copying.overlaps(start, end) || self.remaps.overlaps(start, end) || self.backlog.overlaps(start, end)
    }
    /// The first address in the range where no page may be filled or taken, because the pages that were there, or are to be there,
    /// are still to be given up or renamed ([`Backlog`]).
    pub(crate) fn first_behind(&self, start: usize, end: usize) -> Option<usize> {
        if K::mistake(Mistake::FillsBeforeTheLastStep) { None } else { self.backlog.first_in(start, end) }
    }
    /// Whether the page at `addr` is such a page.
    pub(crate) fn is_behind(&self, addr: usize) -> bool {
        self.first_behind(addr, addr + PAGE_SIZE).is_some()
    }
    /// Whether the page at `addr` has been unmapped, as far as is known, by a call that has not ended. Memory next to it may have
    /// grown there. (Something else that came there is known.)
    pub(crate) fn is_aside(&self, addr: usize) -> bool {
        self.remaps.asides(addr).any(|call| self.pending.settled_of(call, addr, addr + PAGE_SIZE).0 > addr)
    }
    /// Whether an unmapping or a move is under way, or was and has not been followed yet.
    pub fn is_changing(&self) -> bool {
        self.program.is_changing() || self.remaps.has_reports()
    }
    /// The file of a place on a device; -1 if the device is memory.
    pub fn fd(&self, location: Location) -> i32 {
        if location.is_memory {
            return -1;
        }
        if location.is_home() {
            return self.homes[location.file as usize].as_ref().expect("it is being read or written").fd;
        }
        self.files[location.device.0 as usize].as_ref().expect("a device has files").fd(location.file)
    }
    /// The home of an object.
    pub fn home(&self, object: ObjectId) -> Option<&HomeFile> {
        self.homes[object.0 as usize].as_ref()
    }
    /// Everything that is needed to make the read.
    pub fn read_of(&self, op: PageIn) -> Read {
        let home = op.location.is_home().then(|| {
            let home = self.homes[op.location.file as usize].as_ref().expect("it is being read");
            HomeRead { rest: home.rest, direct: home.direct, tags: home.access != Access::ReadOnly }
        });
        Read { op, fd: self.fd(op.location), home }
    }
    /// The address of a page.
    pub fn addr(&self, page: PageId) -> usize {
        Self::addr_of(&self.origins, page)
    }
    /// The same, for given addresses of page 0 of each object.
    pub fn addr_of(origins: &[usize], page: PageId) -> usize {
        origins[page.object().0 as usize] + ((page.index() as usize) << PAGE_SHIFT)
    }
}

/// A read to be made, with everything that is needed, so that it can begin without a lock. Its device stays, and its file open,
/// until [`overspill_vm::Vm::page_in_arrived`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The pages, and their place.
    pub op: PageIn,
    /// The file; -1 for a device that is memory.
    pub fd: i32,
    /// It is a read from the pages' home.
    pub home: Option<HomeRead>,
}

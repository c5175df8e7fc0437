//! The program's address space as the pager knows it: ranges, descriptors, files, and what is under way there.

pub mod copying;
pub mod discards;
pub mod pending_unmaps;
pub mod remaps;

use crate::compressed::Compressed;
use crate::files::{DEVICES_MAX, DeviceName, Files as _};
use crate::kernel::{Kernel, Uffd as _};
use crate::ranges::{Kind, RangeMap};
use copying::Copying;
use discards::Discards;
use overspill_vm::PageIn;
use overspill_vm::pager::Location;
use overspill_vm::types::{PAGE_SHIFT, PageId};
use pending_unmaps::PendingUnmaps;
use remaps::Remaps;
use std::sync::Arc;

/// What is changed only when address ranges, descriptors or files change. Lock key: all of it by the lock around it,
/// `Machine::map`: shared to read, exclusive to change.
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

/// A read to be made: all that it takes, so that no lock is needed to begin it. Its device stays, and its file open, until
/// [`overspill_vm::Vm::page_in_arrived`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Which pages, and where they are.
    pub op: PageIn,
    /// The file; none for a device that is memory.
    pub fd: i32,
}

//! The pager's side of the kernel: its actions on a program's memory, and the messages that it reads.
//!
//! The name is that of BSD's machine-dependent layer. An implementation performs and reports; it never judges. An error is the
//! kernel's own number, and a transfer that ended early says how far it came.

use crate::errno::Errno;

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// The content of a page.
pub type PageBytes = [u8; PAGE];

/// A page of the parking area, where the pager keeps pages out of the program's sight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ParkPlace(pub usize);

/// How a transfer ended. Linux reports either bytes or an error. If a transfer stopped in the middle, only the next call says why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moved {
    /// Bytes done.
    pub bytes: usize,
    /// Why nothing was done.
    pub error: Option<Errno>,
}

impl Moved {
    /// All of it was done, or the first part.
    pub const fn done(bytes: usize) -> Self {
        Moved { bytes, error: None }
    }
    /// Nothing was done.
    pub const fn refused(error: Errno) -> Self {
        Moved { bytes: 0, error: Some(error) }
    }
}

/// A message of a userfaultfd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// A thread waits for a page.
    Fault {
        /// Address of the page.
        at: usize,
        /// The thread wants to write.
        write: bool,
    },
    /// A range has moved.
    Remap {
        /// Its first address.
        from: usize,
        /// Its new first address.
        to: usize,
        /// Bytes, as before the call.
        len: usize,
    },
    /// A range is about to be discarded.
    Remove {
        /// Its first address.
        start: usize,
        /// The address after its last.
        end: usize,
    },
    /// A range has been unmapped.
    Unmap {
        /// Its first address.
        start: usize,
        /// The address after its last.
        end: usize,
    },
}

/// One mapping, as `/proc/PID/maps` shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Its first address.
    pub start: usize,
    /// The address after its last.
    pub end: usize,
    /// Readable 1, writable 2, executable 4.
    pub prot: u8,
}

/// What is at a page's address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Present {
    /// Nothing: a touch is a fault.
    Absent,
    /// A page.
    Page {
        /// It is protected against writes.
        protected: bool,
    },
    /// A mark that makes a touch an error (a page that was lost).
    Poison,
    /// A mark that makes a touch an error (MADV_GUARD_INSTALL).
    Guard,
    /// A mark that an absent page was protected against writes.
    Marker,
}

/// One program's memory in the pager's hands. There is a userfaultfd with events for the program's ranges, and one without events
/// for the parking area.
///
/// All calls are made by the pager's own threads. None of them waits for a fault to be served, or for a message to be read.
pub trait Pmap {
    /// Fills missing pages with this content. (UFFDIO_COPY, waking nobody.)
    fn copy_in(&mut self, at: usize, from: &[PageBytes]) -> Moved;
    /// Fills missing pages with zeroes; leaves marks of every kind alone. (UFFDIO_ZEROPAGE, waking nobody.)
    fn zero_in(&mut self, at: usize, pages: usize) -> Moved;
    /// Fills missing pages with copies of parked ones. (UFFDIO_COPY, waking nobody.)
    fn restore(&mut self, at: usize, from: ParkPlace, pages: usize) -> Moved;
    /// Moves pages out of the program's sight. (UFFDIO_MOVE on the parking area's userfaultfd.)
    fn take(&mut self, at: usize, to: ParkPlace, pages: usize) -> Moved;
    /// Moves parked pages into the program. (UFFDIO_MOVE on the program's userfaultfd.)
    fn give_back(&mut self, at: usize, from: ParkPlace, pages: usize) -> Moved;
    /// Parks a copy. (UFFDIO_COPY on the parking area's userfaultfd.)
    fn park_copy(&mut self, to: ParkPlace, from: &PageBytes) -> Moved;
    /// The page that is parked there.
    ///
    /// # Panics
    /// If none is.
    fn parked(&mut self, place: ParkPlace) -> PageBytes;
    /// Drops the pages that are parked there.
    fn drop_parked(&mut self, places: &[ParkPlace]);
    /// Whether the page at an address is in memory, as mincore(2) reports.
    fn resident(&mut self, at: usize) -> bool;
    /// Whether an unmap, discard or move is under way: it has begun, and the calling thread has not gone on after its message was
    /// read.
    fn changing(&mut self) -> bool;
    /// Makes the program's page its own if it is shared. Does not wait for a missing page. Returns whether the page is there.
    fn unshare(&mut self, at: usize) -> bool;
    /// From now on, faults in the range are messages. `protects`: pages can be protected against writes, too.
    ///
    /// # Errors
    /// EINVAL: nothing is mapped there; EBUSY: it is registered on another userfaultfd.
    fn register(&mut self, at: usize, len: usize, protects: bool) -> Result<(), Errno>;
    /// Ends the registration. Threads that wait for pages of the range go on.
    ///
    /// # Errors
    /// EINVAL: nothing is mapped there.
    fn unregister(&mut self, at: usize, len: usize) -> Result<(), Errno>;
    /// Makes each touch of the missing pages an error, and wakes the threads that wait for them.
    ///
    /// # Errors
    /// EEXIST: something is there.
    fn poison(&mut self, at: usize, len: usize) -> Result<(), Errno>;
    /// Protects pages that are there against writes, or ends that and wakes the threads that wait.
    ///
    /// # Errors
    /// ENOENT: the range is not registered for it.
    fn protect(&mut self, at: usize, len: usize, on: bool) -> Result<(), Errno>;
    /// Wakes threads that wait for pages of the range, so that they look again.
    fn wake(&mut self, at: usize, len: usize);
    /// Reads at most `most` waiting messages.
    fn messages(&mut self, most: usize) -> Vec<Message>;
    /// Whether a message waits, as poll(2) reports.
    fn readable(&mut self) -> bool;
    /// What is at an address of the program.
    fn present(&mut self, at: usize) -> Present;
    /// The mappings within a range, cut to it.
    fn mappings(&mut self, start: usize, end: usize) -> Vec<Mapping>;
}

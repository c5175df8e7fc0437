//! The pager's side of the kernel: what it does to the memory of a program, and what it is told.
//!
//! The name is that of BSD's machine-dependent layer. An implementation performs and reports. It never judges: an error is the
//! kernel's own number, and a transfer that ended early says how far it came.

use crate::errno::Errno;

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// The content of a page.
pub type PageBytes = [u8; PAGE];

/// A page of the parking area, where the pager keeps pages out of the program's sight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ParkPlace(pub usize);

/// How a transfer ended. Linux reports either bytes or an error: what stopped a transfer that had begun is said by the next call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moved {
    /// Bytes done.
    pub bytes: usize,
    /// Why nothing was done.
    pub error: Option<Errno>,
}

impl Moved {
    /// All, or the first of it, was done.
    pub const fn done(bytes: usize) -> Self {
        Moved { bytes, error: None }
    }
    /// Nothing was done.
    pub const fn refused(error: Errno) -> Self {
        Moved { bytes: 0, error: Some(error) }
    }
}

/// What a userfaultfd says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// A thread waits for a page.
    Fault {
        /// Of the page.
        at: usize,
        /// It wants to write.
        write: bool,
    },
    /// A range has moved.
    Remap {
        /// Its first address.
        from: usize,
        /// Its new one.
        to: usize,
        /// Bytes, as they were before.
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

/// One program's memory, in the pager's hands: a userfaultfd with events for the program's ranges, another without for the parking
/// area.
///
/// All calls are the pager's own threads'. None of them waits for a fault to be served, or for a message to be read.
pub trait Pmap {
    /// Fills missing pages with what is given. (UFFDIO_COPY, waking nobody.)
    fn copy_in(&mut self, at: usize, from: &[PageBytes]) -> Moved;
    /// Fills missing pages with zeroes, and leaves every kind of mark alone. (UFFDIO_ZEROPAGE, waking nobody.)
    fn zero_in(&mut self, at: usize, pages: usize) -> Moved;
    /// Fills missing pages with copies of parked ones. (UFFDIO_COPY, waking nobody.)
    fn restore(&mut self, at: usize, from: ParkPlace, pages: usize) -> Moved;
    /// Moves pages out of the program's sight. (UFFDIO_MOVE on the parking area's userfaultfd.)
    fn take(&mut self, at: usize, to: ParkPlace, pages: usize) -> Moved;
    /// Moves parked pages into the program. (UFFDIO_MOVE on the program's userfaultfd.)
    fn give_back(&mut self, at: usize, from: ParkPlace, pages: usize) -> Moved;
    /// Parks a copy. (UFFDIO_COPY on the parking area's userfaultfd.)
    fn park_copy(&mut self, to: ParkPlace, from: &PageBytes) -> Moved;
    /// What is parked there.
    ///
    /// # Panics
    /// If nothing is.
    fn parked(&mut self, place: ParkPlace) -> PageBytes;
    /// Forgets what is parked there.
    fn drop_parked(&mut self, places: &[ParkPlace]);
    /// Whether the page at an address is in memory, as mincore(2) says it.
    fn resident(&mut self, at: usize) -> bool;
    /// Whether an unmap, discard or move is under way: it has begun, and its caller has not gone on since its message was read.
    fn changing(&mut self) -> bool;
    /// Makes the program's page its own if it shares it; does not wait for a page that is missing. Whether the page is there.
    fn unshare(&mut self, at: usize) -> bool;
    /// From now on, faults of the range are messages. `protects`: it can be protected against writes, too.
    ///
    /// # Errors
    /// EINVAL nothing is mapped there; EBUSY it is another's.
    fn register(&mut self, at: usize, len: usize, protects: bool) -> Result<(), Errno>;
    /// The inverse. Who waits for a page of it goes on.
    ///
    /// # Errors
    /// EINVAL nothing is mapped there.
    fn unregister(&mut self, at: usize, len: usize) -> Result<(), Errno>;
    /// Makes each touch of missing pages an error, and wakes who waits for them.
    ///
    /// # Errors
    /// EEXIST something is there.
    fn poison(&mut self, at: usize, len: usize) -> Result<(), Errno>;
    /// Protects pages that are there against writes, or lets them be written, and wakes who waits.
    ///
    /// # Errors
    /// ENOENT the range is not registered for it.
    fn protect(&mut self, at: usize, len: usize, on: bool) -> Result<(), Errno>;
    /// Has threads that wait for pages of the range look again.
    fn wake(&mut self, at: usize, len: usize);
    /// Reads messages that wait, at most so many.
    fn messages(&mut self, most: usize) -> Vec<Message>;
    /// Whether a message waits, as poll(2) says it.
    fn readable(&mut self) -> bool;
    /// What is at an address of the program's.
    fn present(&mut self, at: usize) -> Present;
    /// The mappings within a range, cut to it.
    fn mappings(&mut self, start: usize, end: usize) -> Vec<Mapping>;
}

//! Errors and their messages.

use overspill_linux::setup::SetupError;
use overspill_linux::sys::Errno;
use std::path::PathBuf;
use std::{fmt, io};

/// Why a call failed. Displays as one message.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// [`Builder::memory`](crate::Builder::memory) was not called.
    NoBudget,
    /// The budget is under [`MEMORY_BYTES_MIN`](crate::MEMORY_BYTES_MIN).
    BudgetTooSmall,
    /// There is no such replacement policy, or it does not take those parameters.
    Policy(overspill_vm::policy::SpecError),
    /// There is no userfaultfd here; the source says why and what to do.
    Userfaultfd(SetupError),
    /// The swap file could not be made.
    Swap {
        /// Where.
        place: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A swap device is not possible as it was asked for; the text says why and what to do.
    Device(String),
    /// io_uring was asked for by name and is refused.
    Engine(io::Error),
    /// No key for encryption could be made, or locked in memory.
    Key(io::Error),
    /// The pager could not get memory, threads or descriptors for itself.
    Resources(io::Error),
    /// The handler for SIGBUS could not be installed.
    Handler(io::Error),
    /// The handler for SIGBUS was replaced after the first pager installed it.
    HandlerReplaced,
    /// This process has the most pagers that are possible.
    TooManyPagers,
    /// There are as many regions as [`Builder::regions_max`](crate::Builder::regions_max) allows.
    TooManyRegions,
    /// A region of no bytes, or of more than the pager can still manage.
    RegionSize {
        /// What was asked for, in bytes.
        bytes: usize,
        /// What is available, in bytes.
        available: u64,
    },
    /// A region of a file cannot become shorter, nor longer than its capacity.
    CannotGrow {
        /// What was asked for, in bytes.
        bytes: usize,
        /// Its length, in bytes.
        len: usize,
        /// How long it may become, in bytes.
        capacity: usize,
    },
    /// There is no address space for a region.
    Map(io::Error),
    /// Wiring this much would leave too little of the budget for everything else.
    WiredTooMuch {
        /// What was asked for, in bytes.
        bytes: u64,
        /// What can still be wired, in bytes.
        available: u64,
    },
    /// The range has pages that stay wired.
    IsWired,
    /// A page of the range could not be read back from swap.
    Lost,
    /// An arena has no free room for a block.
    ArenaFull {
        /// What was asked for, in bytes.
        bytes: usize,
        /// The size of the arena, in bytes.
        capacity: usize,
    },
    /// No block of the arena that is in use begins at this address.
    NotABlock {
        /// The address.
        address: usize,
        /// What is there instead: "it is free, ..." and the like.
        why: &'static str,
    },
    /// A file could not be opened, read, written or synchronised.
    File {
        /// Which.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The file ends before the range does, or it was made shorter and changes beyond its end were lost.
    FileEnds {
        /// Which.
        path: PathBuf,
        /// Its length, in bytes.
        len: u64,
        /// The length that is needed, in bytes; `None`: changes were lost.
        needed: Option<u64>,
    },
    /// Another region has a part of these pages of the file, and one of the two may write.
    FileShared {
        /// Which.
        path: PathBuf,
    },
    /// The region was opened without the right to do this.
    Access {
        /// Which file.
        path: PathBuf,
        /// What it was opened for.
        access: overspill_vm::Access,
    },
    /// As many regions of the pager have a policy of their own as can have one.
    TooManyPolicies,
    /// This is a forked child of the process that built the pager.
    Forked,
}

impl Error {
    /// A number for this kind of error, which stays the same: the one that C programs see (`enum overspill_code` of overspill.h).
    pub fn code(&self) -> i32 {
        match self {
            Error::NoBudget => 1,
            Error::BudgetTooSmall => 2,
            Error::Policy(_) => 3,
            Error::Userfaultfd(_) => 4,
            Error::Swap { .. } => 5,
            Error::Device(_) => 6,
            Error::Engine(_) => 7,
            Error::Key(_) => 8,
            Error::Resources(_) => 9,
            Error::Handler(_) => 10,
            Error::HandlerReplaced => 11,
            Error::TooManyPagers => 12,
            Error::TooManyRegions => 13,
            Error::RegionSize { .. } | Error::CannotGrow { .. } => 14,
            Error::Map(_) => 15,
            Error::WiredTooMuch { .. } => 16,
            Error::IsWired => 17,
            Error::Lost => 18,
            Error::ArenaFull { .. } => 19,
            Error::NotABlock { .. } => 20,
            Error::Forked => 21,
            Error::File { .. } => 22,
            Error::FileEnds { .. } => 23,
            Error::FileShared { .. } => 24,
            Error::Access { .. } => 25,
            Error::TooManyPolicies => 26,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoBudget => write!(f, "the pager was given no memory budget"),
            Error::BudgetTooSmall => {
                write!(f, "the memory budget is below the minimum of {} MiB", crate::MEMORY_BYTES_MIN >> 20)
            }
            Error::Policy(e) => write!(f, "{e}"),
            Error::Userfaultfd(e) => write!(f, "{e}"),
            Error::Swap { place, source } => write!(f, "no swap file could be made at {}: {source}", place.display()),
            Error::Device(why) => f.write_str(why),
            Error::Engine(e) => write!(f, "io_uring is refused here: {e}"),
            Error::Key(e) => write!(
                f,
                "no key could be made and locked in memory to encrypt swap with: {e}: raise the limit on locked memory, or build the pager \
                 without encryption"
            ),
            Error::Resources(e) => write!(f, "the pager could not get memory, threads or descriptors for itself: {e}"),
            Error::Handler(e) => write!(f, "the handler for SIGBUS could not be installed: {e}"),
            Error::HandlerReplaced => {
                write!(f, "the pager's handler for SIGBUS was replaced: install the other one before the first pager is built")
            }
            Error::TooManyPagers => {
                write!(f, "there are {} pagers in this process, and there can be no more", crate::PAGERS_MAX)
            }
            Error::TooManyRegions => write!(f, "the pager has as many regions as its builder allowed"),
            Error::TooManyPolicies => write!(
                f,
                "{} regions of the pager have a policy of their own, and there can be no more: let this one have the pager's policy, or \
                 drop another",
                crate::REGION_POLICIES_MAX
            ),
            Error::RegionSize { bytes: 0, .. } => write!(f, "a region needs at least one byte"),
            Error::RegionSize { bytes, available } => {
                write!(f, "a region of {bytes} bytes is more than the {available} that the pager can still manage")
            }
            Error::CannotGrow { bytes, len, capacity } => {
                write!(f, "a region of {len} bytes with a capacity of {capacity} cannot get a length of {bytes}")
            }
            Error::Map(e) => write!(f, "the address space for a region could not be had: {e}"),
            Error::WiredTooMuch { bytes, available } => {
                write!(f, "{bytes} bytes cannot be wired: the budget allows {available} more")
            }
            Error::IsWired => write!(f, "the range has pages that are wired"),
            Error::ArenaFull { bytes, capacity } => {
                write!(f, "the arena of {capacity} bytes has no free room for a block of {bytes} bytes: make a larger arena")
            }
            Error::NotABlock { address, why } => write!(f, "no block of the arena begins at address {address:#x}: {why}"),
            Error::Lost => write!(f, "a page could not be read back from where it was stored"),
            Error::File { path, what, source } => write!(f, "the file {} could not be {what}: {source}", path.display()),
            Error::FileEnds { path, len, needed: None } => {
                write!(f, "the file {} was made shorter, to {len} bytes, and changes beyond its end were lost", path.display())
            }
            Error::FileEnds { path, len, needed: Some(needed) } => write!(
                f,
                "the file {} has {len} bytes, and {needed} are needed: ask for fewer, or open it for reading and writing and let it grow",
                path.display()
            ),
            Error::FileShared { path } => write!(
                f,
                "another region of this process has the same pages of the file {}, and one of the two may write: use that region, or drop it \
                 first",
                path.display()
            ),
            Error::Access { path, access } => write!(
                f,
                "the file {} was opened {}, which does not allow this",
                path.display(),
                match access {
                    overspill_vm::Access::ReadOnly => "for reading only",
                    overspill_vm::Access::ReadWrite => "for reading and writing",
                    overspill_vm::Access::CopyOnWrite => "for private changes (copy-on-write)",
                }
            ),
            Error::Forked => write!(
                f,
                "this process was forked from the one that built the pager, and has neither the pager nor its regions: build a pager of \
                 its own after the fork"
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Userfaultfd(e) => Some(e),
            Error::Swap { source: e, .. }
            | Error::File { source: e, .. }
            | Error::Engine(e)
            | Error::Key(e)
            | Error::Resources(e)
            | Error::Handler(e)
            | Error::Map(e) => Some(e),
            _ => None,
        }
    }
}

impl From<Error> for io::Error {
    fn from(e: Error) -> io::Error {
        match e {
            Error::Lost => io::Error::from_raw_os_error(libc::EIO),
            Error::File { ref source, .. } if source.raw_os_error().is_some() => io::Error::new(source.kind(), e),
            Error::WiredTooMuch { .. } => io::Error::new(io::ErrorKind::OutOfMemory, e),
            e => io::Error::other(e),
        }
    }
}

/// The error of that number.
pub(crate) fn os(e: Errno) -> io::Error {
    io::Error::from_raw_os_error(e)
}

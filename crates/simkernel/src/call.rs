//! A program's calls, as data: for its threads, for rules, and for random sequences.

use crate::errno::Errno;

/// Readable.
pub const READ: u8 = 1;
/// Readable and writable.
pub const READ_WRITE: u8 = 3;
/// All three.
pub const READ_WRITE_EXEC: u8 = 7;

/// A madvise(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// MADV_DONTNEED.
    DontNeed,
    /// MADV_FREE.
    Free,
    /// MADV_COLD.
    Cold,
    /// MADV_DONTFORK.
    DontFork,
    /// MADV_DOFORK.
    DoFork,
    /// MADV_WIPEONFORK.
    WipeOnFork,
    /// MADV_KEEPONFORK.
    KeepOnFork,
    /// MADV_POPULATE_READ.
    PopulateRead,
    /// MADV_POPULATE_WRITE.
    PopulateWrite,
    /// MADV_GUARD_INSTALL.
    GuardInstall,
    /// MADV_GUARD_REMOVE.
    GuardRemove,
}

/// One call, or one touch. Addresses and lengths are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// mmap(2) of private anonymous memory at a fixed address. `replace`: replaces any mapping there (MAP_FIXED); otherwise a
    /// mapping there means EEXIST.
    Map {
        /// Address.
        at: usize,
        /// Bytes.
        len: usize,
        /// Protection.
        prot: u8,
        /// MAP_FIXED.
        replace: bool,
    },
    /// munmap(2).
    Unmap {
        /// Address.
        at: usize,
        /// Bytes.
        len: usize,
    },
    /// mremap(2): in place, or with `to` to that address (MREMAP_FIXED).
    Remap {
        /// Address.
        from: usize,
        /// Bytes.
        len: usize,
        /// Bytes afterwards.
        new_len: usize,
        /// The new address.
        to: Option<usize>,
        /// MREMAP_DONTUNMAP.
        keep: bool,
    },
    /// mprotect(2).
    Protect {
        /// Address.
        at: usize,
        /// Bytes.
        len: usize,
        /// Protection.
        prot: u8,
    },
    /// madvise(2).
    Advise {
        /// Address.
        at: usize,
        /// Bytes.
        len: usize,
        /// The advice.
        advice: Advice,
    },
    /// mlock(2).
    Lock {
        /// Address.
        at: usize,
        /// Bytes.
        len: usize,
    },
    /// munlock(2).
    Unlock {
        /// Address.
        at: usize,
        /// Bytes.
        len: usize,
    },
    /// mseal(2).
    Seal {
        /// Address.
        at: usize,
        /// Bytes.
        len: usize,
    },
    /// Reads a byte. The outcome is its value.
    Read {
        /// Address.
        at: usize,
    },
    /// Writes a byte.
    Write {
        /// Address.
        at: usize,
        /// The byte.
        byte: u8,
    },
    /// Has the kernel read a byte (write(2) into a pipe). The outcome is its value.
    KernelRead {
        /// Address.
        at: usize,
    },
    /// Makes a process. The outcome is the number of its thread.
    Fork,
    /// UFFDIO_COPY of a page filled with `byte`, by the program itself on its userfaultfd (in a fork's child: on the inherited
    /// one).
    CopyIn {
        /// Address.
        at: usize,
        /// The byte.
        byte: u8,
    },
}

/// How a call ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Outcome {
    /// With success, and this value.
    Ok(usize),
    /// With an error.
    Err(Errno),
    /// A touch, with a signal: 7 (SIGBUS) or 11 (SIGSEGV).
    Signal(i32),
}

/// SIGBUS.
pub const SIGBUS: i32 = 7;
/// SIGSEGV.
pub const SIGSEGV: i32 = 11;

/// The state of a thread when nothing moves any more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Progress {
    /// Its call has returned.
    Done(Outcome),
    /// It waits for a page or for a message to be read.
    Waits,
    /// It was killed.
    Dead,
}

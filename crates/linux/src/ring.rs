//! The part of io_uring that [`crate::io`] needs.
//!
//! Numbers and structures are from the kernel's ABI (`include/uapi/linux/io_uring.h`). The queues lie in memory of our own
//! (IORING_SETUP_NO_MMAP). The kernel would choose the place of a ring that it maps itself, but the pager's mappings must lie in
//! its reservation ([`crate::area`]). Before Linux 6.10 the kernel needs that memory in one physical piece, so there it maps the
//! ring.

use crate::area;
use crate::sys::{self, Errno, Fd, sys};
use core::sync::atomic::{AtomicU32, Ordering::*};
use overspill_machine::kernel::IoVec;
use overspill_vm::types::PAGE_SIZE;

/// The owner gets completions when it enters the kernel, and is not interrupted for them.
pub const COOP_TASKRUN: u32 = 1 << 8;
/// Only one thread issues.
pub const SINGLE_ISSUER: u32 = 1 << 12;
/// The owner gets completions only when it waits for them. => SINGLE_ISSUER
pub const DEFER_TASKRUN: u32 = 1 << 13;
const NO_MMAP: u32 = 1 << 14;
const NO_SQARRAY: u32 = 1 << 16;

const FEATURE_SINGLE_MMAP: u32 = 1;
const ENTER_GETEVENTS: u32 = 1;
const ENTER_EXT_ARG: u32 = 1 << 3;
const OFFSET_SQES: usize = 0x1000_0000;

const OP_WRITEV: u8 = 2;
const OP_POLL_ADD: u8 = 6;
const OP_POLL_REMOVE: u8 = 7;
const OP_READ: u8 = 22;
/// Flag of a poll: completes each time, not once.
const POLL_MULTI: u32 = 1;
/// Flag of a completion: the same entry will have more.
const MORE: u32 = 1 << 1;

#[repr(C)]
#[derive(Default)]
struct SubmissionOffsets {
    head: u32,
    tail: u32,
    mask: u32,
    entries: u32,
    flags: u32,
    dropped: u32,
    array: u32,
    reserved: u32,
    user_addr: u64,
}

#[repr(C)]
#[derive(Default)]
struct CompletionOffsets {
    head: u32,
    tail: u32,
    mask: u32,
    entries: u32,
    overflow: u32,
    cqes: u32,
    flags: u32,
    reserved: u32,
    user_addr: u64,
}

#[repr(C)]
#[derive(Default)]
struct Params {
    submission_entries: u32,
    completion_entries: u32,
    flags: u32,
    thread_cpu: u32,
    thread_idle: u32,
    features: u32,
    wq_fd: u32,
    reserved: [u32; 3],
    submission: SubmissionOffsets,
    completion: CompletionOffsets,
}
const _: () = assert!(size_of::<Params>() == 120);

/// An entry of the submission queue.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Entry {
    opcode: u8,
    flags: u8,
    priority: u16,
    fd: i32,
    offset: u64,
    addr: u64,
    len: u32,
    op_flags: u32,
    token: u64,
    rest: [u64; 3],
}
const _: () = assert!(size_of::<Entry>() == 64);

impl Entry {
    /// Reads `len` bytes at `offset` to `buf`.
    pub fn read(fd: i32, buf: *mut u8, len: usize, offset: u64, token: u64) -> Self {
        Entry { opcode: OP_READ, fd, offset, addr: buf as u64, len: len as u32, token, ..Entry::default() }
    }
    /// Writes `count` vectors at `offset`.
    pub fn writev(fd: i32, iov: *const IoVec, count: usize, offset: u64, token: u64) -> Self {
        Entry { opcode: OP_WRITEV, fd, offset, addr: iov as u64, len: count as u32, token, ..Entry::default() }
    }
    /// Completes whenever `fd` is readable.
    pub fn poll(fd: i32, token: u64) -> Self {
        Entry { opcode: OP_POLL_ADD, fd, len: POLL_MULTI, op_flags: libc::POLLIN as u32, token, ..Entry::default() }
    }
    /// Ends the poll that has the token `polled`.
    pub fn poll_remove(polled: u64, token: u64) -> Self {
        Entry { opcode: OP_POLL_REMOVE, fd: -1, addr: polled, token, ..Entry::default() }
    }
}

/// A completion.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The entry's token.
    pub token: u64,
    /// Bytes, or minus an errno.
    pub result: i32,
    flags: u32,
}

impl Completion {
    /// Whether its entry will have more completions.
    pub fn more(&self) -> bool {
        self.flags & MORE != 0
    }
}

#[repr(C)]
struct EnterArgument {
    signals: u64,
    signals_len: u32,
    pad: u32,
    timeout: u64,
}

/// Memory that is unmapped when dropped.
struct Memory {
    at: *mut u8,
    len: usize,
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the memory of queues whose ring is closed (fields are dropped in order). The kernel keeps its own reference to
        // the pages.
        unsafe { area::unmap(self.at, self.len) };
    }
}

/// A ring. One thread at a time uses it.
pub struct Ring {
    fd: Fd,
    entries: Memory,
    queues: Memory,
    submission: SubmissionOffsets,
    completion: CompletionOffsets,
    tail: u32,
}

// SAFETY: it owns its memory and its descriptor; nothing in it belongs to a thread.
unsafe impl Send for Ring {}

impl Ring {
    /// With room for `entries` entries that are not yet submitted, a power of two. Leaves out flags that the kernel does not know.
    ///
    /// # Errors
    /// As io_uring_setup(2), mmap(2).
    pub fn new(entries: u32, flags: u32) -> Result<Ring, Errno> {
        Ring::in_our_memory(entries, flags)
            .or_else(|_| Ring::in_our_memory(entries, 0))
            .or_else(|_| Ring::in_the_kernels_memory(entries, flags))
            .or_else(|_| Ring::in_the_kernels_memory(entries, 0))
    }

    fn set_up(entries: u32, params: &mut Params) -> Result<Fd, Errno> {
        // SAFETY: the kernel reads and writes the structure; the memory that it names is ours (below), and stays mapped as long as
        // the ring.
        unsafe { sys!(libc::SYS_io_uring_setup, entries, core::ptr::from_mut(params)) }.map(Fd::new)
    }

    fn in_our_memory(entries: u32, flags: u32) -> Result<Ring, Errno> {
        let completions = 2 * entries as usize; // the kernel's default
        let map = |len: usize| -> Result<Memory, Errno> {
            let at = area::map_anonymous(len)?;
            // SAFETY: our own fresh mapping. A forked child does not use it.
            let _ = unsafe { sys::madvise(at as usize, len, libc::MADV_WIPEONFORK) };
            Ok(Memory { at, len })
        };
        let queues = map((PAGE_SIZE + completions * size_of::<Completion>()).next_multiple_of(PAGE_SIZE))?;
        let memory = map((entries as usize * size_of::<Entry>()).next_multiple_of(PAGE_SIZE))?;
        let mut params = Params { flags: flags | NO_MMAP | NO_SQARRAY, ..Params::default() };
        params.completion.user_addr = queues.at as u64;
        params.submission.user_addr = memory.at as u64;
        let fd = Ring::set_up(entries, &mut params)?;
        if params.completion.cqes as usize + params.completion_entries as usize * size_of::<Completion>() > queues.len {
            return Err(libc::EINVAL); // more than was asked for: no kernel does that
        }
        Ok(Ring { fd, entries: memory, queues, submission: params.submission, completion: params.completion, tail: 0 }.opened())
    }

    fn in_the_kernels_memory(entries: u32, flags: u32) -> Result<Ring, Errno> {
        let mut params = Params { flags, ..Params::default() };
        let fd = Ring::set_up(entries, &mut params)?;
        if params.features & FEATURE_SINGLE_MMAP == 0 {
            return Err(libc::ENOSYS);
        }
        let map = |len: usize, offset: usize| -> Result<Memory, Errno> {
            let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
            // SAFETY: a new mapping at a place of the kernel's choice overlaps nothing.
            let at = unsafe { sys!(libc::SYS_mmap, 0, len, prot, flags, fd.raw(), offset) }?;
            // SAFETY: a forked child does not use it.
            let _ = unsafe { sys::madvise(at, len, libc::MADV_DONTFORK) };
            Ok(Memory { at: at as *mut u8, len })
        };
        let array = params.submission.array as usize;
        let cqes = params.completion.cqes as usize + params.completion_entries as usize * size_of::<Completion>();
        let queues = map((array + params.submission_entries as usize * 4).max(cqes), 0)?;
        let memory = map(params.submission_entries as usize * size_of::<Entry>(), OFFSET_SQES)?;
        for i in 0..params.submission_entries {
            // SAFETY: the offsets are the kernel's own, within the mapping. With this array the tail alone says which entry is
            // next.
            unsafe { queues.at.add(array).cast::<u32>().add(i as usize).write(i) };
        }
        Ok(Ring { fd, entries: memory, queues, submission: params.submission, completion: params.completion, tail: 0 }.opened())
    }

    fn opened(mut self) -> Ring {
        self.tail = self.word(self.submission.tail).load(Relaxed);
        self
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: an aligned word of the queues, at an offset that the kernel gave, mapped as long as the ring.
        unsafe { &*self.queues.at.add(offset as usize).cast::<AtomicU32>() }
    }

    /// Entries that the kernel has not taken.
    fn unissued(&self) -> u32 {
        // Acquire, against the kernel's release: an entry that it has taken may be written over.
        self.tail.wrapping_sub(self.word(self.submission.head).load(Acquire))
    }

    /// Puts an entry into the queue. Returns whether there was room.
    ///
    /// # Safety
    /// The memory that the entry refers to must live until it has completed.
    #[must_use]
    pub unsafe fn push(&mut self, entry: Entry) -> bool {
        if self.unissued() == self.word(self.submission.entries).load(Relaxed) {
            return false;
        }
        let mask = self.word(self.submission.mask).load(Relaxed);
        // SAFETY: the place is free, and within the array by its mask.
        unsafe { self.entries.at.cast::<Entry>().add((self.tail & mask) as usize).write(entry) };
        self.tail = self.tail.wrapping_add(1);
        // Release: the kernel finds the entry whole.
        self.word(self.submission.tail).store(self.tail, Release);
        true
    }

    /// Submits the entries in the queue.
    ///
    /// # Errors
    /// As io_uring_enter(2), if it is refused for good. Other errors do not matter: entries that were not submitted are submitted
    /// at the next call, and a thread that waited in vain looks again.
    pub fn submit(&mut self) -> Result<(), Errno> {
        self.enter(0, 0, core::ptr::null(), 0)
    }

    /// Submits, and gets the completions that are ready, without waiting.
    ///
    /// # Errors
    /// As [`Ring::submit`].
    pub fn look(&mut self) -> Result<(), Errno> {
        self.enter(0, ENTER_GETEVENTS, core::ptr::null(), 0)
    }

    /// Submits, and waits until an entry has completed, or `timeout_ns` has passed.
    ///
    /// # Errors
    /// As [`Ring::submit`].
    pub fn wait(&mut self, timeout_ns: Option<u64>) -> Result<(), Errno> {
        let Some(ns) = timeout_ns else { return self.enter(1, ENTER_GETEVENTS, core::ptr::null(), 0) };
        let timeout = [(ns / 1_000_000_000) as i64, (ns % 1_000_000_000) as i64];
        let argument = EnterArgument { signals: 0, signals_len: 0, pad: 0, timeout: timeout.as_ptr() as u64 };
        let argument = core::ptr::from_ref(&argument);
        self.enter(1, ENTER_GETEVENTS | ENTER_EXT_ARG, argument, size_of::<EnterArgument>())
    }

    fn enter(&mut self, complete: u32, flags: u32, argument: *const EnterArgument, len: usize) -> Result<(), Errno> {
        // SAFETY: what was pushed lives, by the promise of `push`; the argument and what it points at live over the call.
        let entered = unsafe { sys!(libc::SYS_io_uring_enter, self.fd.raw(), self.unissued(), complete, flags, argument, len) };
        match entered {
            Err(e) if ![libc::EINTR, libc::EAGAIN, libc::EBUSY, libc::ETIME].contains(&e) => Err(e),
            _ => Ok(()),
        }
    }

    /// Does the transfers that the kernel has not taken by plain system calls, and calls `done` with their tokens and results. For
    /// a process that may not enter its ring any more.
    pub fn transfer_unissued(&mut self, mut done: impl FnMut(u64, Result<usize, Errno>)) {
        while self.unissued() > 0 {
            let last = self.tail.wrapping_sub(1);
            let mask = self.word(self.submission.mask).load(Relaxed);
            // SAFETY: within the array by its mask; `push` wrote it, and the kernel only takes entries when this thread enters it.
            let Entry { opcode, fd, offset, addr, len, token, .. } =
                unsafe { self.entries.at.cast::<Entry>().add((last & mask) as usize).read() };
            let result = match opcode {
                // SAFETY: the memory lives and is free to be written, by the promise of `push`.
                OP_READ => unsafe { sys::pread_full(fd, addr as *mut u8, len as usize, offset) },
                // SAFETY: the vectors and what they refer to live, by the promise of `push`.
                OP_WRITEV => unsafe { sys::pwritev(fd, core::slice::from_raw_parts(addr as *const IoVec, len as usize), offset) },
                _ => return, // polls have no other way
            };
            self.tail = last;
            self.word(self.submission.tail).store(last, Release);
            done(token, result);
        }
    }

    /// Whether the descriptor is still that of this ring: tries it with an entry that does nothing. => nothing is under way
    ///
    /// # Errors
    /// As [`Ring::submit`].
    pub fn is_here(&mut self) -> Result<bool, Errno> {
        let nothing = Entry::default();
        // SAFETY: refers to no memory.
        let _ = unsafe { self.push(nothing) };
        let entered = self.submit();
        if self.unissued() > 0 {
            self.tail = self.tail.wrapping_sub(1);
            self.word(self.submission.tail).store(self.tail, Release);
        }
        entered.map(|()| self.completion().is_some())
    }

    /// Whether there is a completion.
    pub fn has_completion(&self) -> bool {
        let head = self.word(self.completion.head).load(Relaxed);
        head != self.word(self.completion.tail).load(Acquire)
    }

    /// Takes the next completion.
    pub fn completion(&mut self) -> Option<Completion> {
        if !self.has_completion() {
            return None;
        }
        let head = self.word(self.completion.head);
        let (at, mask) = (head.load(Relaxed), self.word(self.completion.mask).load(Relaxed));
        // SAFETY: the kernel has written it before it moved the tail, which `has_completion` has read with Acquire; within the
        // array by its mask.
        let completion = unsafe {
            let cqes = self.queues.at.add(self.completion.cqes as usize).cast::<Completion>();
            cqes.add((at & mask) as usize).read()
        };
        head.store(at.wrapping_add(1), Release); // the kernel may write over it
        Some(completion)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With both kinds of memory: more entries than the queue holds, and a poll that reports twice.
    #[test]
    fn entries_complete() {
        for new in [Ring::in_our_memory, Ring::in_the_kernels_memory] {
            let mut ring = match new(4, SINGLE_ISSUER | DEFER_TASKRUN) {
                Ok(ring) => ring,
                Err(e) => {
                    println!("not run: io_uring is refused ({e})");
                    assert!(std::env::var_os("CI").is_none(), "CI must have io_uring");
                    continue;
                }
            };
            let zero = sys::open(b"/dev/zero\0", libc::O_RDONLY | libc::O_CLOEXEC, 0).expect("/dev/zero");
            for round in 0..5u64 {
                let mut buffers = [[1u8; 64]; 4];
                for (i, b) in buffers.iter_mut().enumerate() {
                    // SAFETY: the buffers outlive the waits below.
                    assert!(unsafe { ring.push(Entry::read(zero.raw(), b.as_mut_ptr(), 64, 0, round * 4 + i as u64)) });
                }
                // SAFETY: refers to no memory.
                assert!(!unsafe { ring.push(Entry::poll_remove(0, 0)) }, "the queue is full");
                let mut seen = [false; 4];
                while seen != [true; 4] {
                    ring.wait(None).expect("allowed");
                    while let Some(done) = ring.completion() {
                        assert_eq!((done.result, done.more()), (64, false));
                        seen[(done.token - round * 4) as usize] = true;
                    }
                }
                assert_eq!(buffers, [[0; 64]; 4]);
            }
            let mut pipe = [0; 2];
            // SAFETY: writes two numbers.
            assert_eq!(unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
            let (read, write) = (Fd::new(pipe[0] as usize), Fd::new(pipe[1] as usize));
            // SAFETY: refers to no memory.
            assert!(unsafe { ring.push(Entry::poll(read.raw(), 7)) });
            for _ in 0..2 {
                ring.wait(Some(1_000_000)).expect("allowed");
                assert!(ring.completion().is_none(), "the time has passed");
                sys::write(write.raw(), b"x").expect("a byte");
                ring.wait(None).expect("allowed");
                let done = ring.completion().expect("it can be read");
                assert!(done.token == 7 && done.more() && done.result & libc::POLLIN as i32 != 0, "{done:?}");
                sys::read(read.raw(), &mut [0; 8]).expect("a byte");
            }
            // SAFETY: refers to no memory.
            assert!(unsafe { ring.push(Entry::poll_remove(7, 8)) });
            let mut tokens = Vec::new();
            while tokens.len() < 2 {
                ring.wait(None).expect("allowed");
                tokens.extend(core::iter::from_fn(|| ring.completion()).map(|done| done.token));
            }
            tokens.sort_unstable();
            assert_eq!(tokens, [7, 8]);
        }
    }
}

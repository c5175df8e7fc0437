//! The reservation: one piece of address space, reserved at start, in which the pager's own mappings lie.
//!
//! Under `overspill run` the address space is the program's. If the kernel placed the pager's mappings, it could put them where the
//! program has just unmapped something. A stray touch there must end the program; it would read or write the pager's memory
//! instead. So the agent reserves a piece of the address space before the program runs ([`reserve`]). Everything that the pager
//! maps later is cut from there, also in a forked child. Memory that it unmaps goes back and is inaccessible again. The reservation
//! costs nothing: PROT_NONE, no swap, no page tables.
//!
//! Without a reservation (the library, the command), or when it is used up, mappings are placed by the kernel.

use crate::lock::{Mutex, MutexGuard};
use crate::sys::{self, Errno, sys};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use overspill_vm::types::PAGE_SIZE;

/// Pieces that may be free at a time. There are a handful: blocks come in a few sizes, and most stay for good.
const PIECES: usize = 128;
/// The least that is worth reserving.
const LEAST: usize = 64 << 20;

#[derive(Debug)]
struct Free {
    /// The whole reservation, as `start..end`; empty if there is none.
    bounds: (usize, usize),
    /// Free pieces of it, by address. No two touch.
    pieces: [(usize, usize); PIECES],
    count: usize,
}

static FREE: Mutex<Free> = Mutex::new(Free::none());

/// Whether there is a reservation. If not, nobody takes the lock: in a child that is forked without [`hold`] (the library's) it
/// might stay locked by a thread that is not there.
static RESERVED: AtomicBool = AtomicBool::new(false);

fn reservation() -> Option<MutexGuard<'static, Free>> {
    RESERVED.load(Relaxed).then(|| FREE.lock())
}

impl Free {
    const fn none() -> Self {
        Free { bounds: (0, 0), pieces: [(0, 0); PIECES], count: 0 }
    }

    /// Cuts `len` bytes off the end of the highest piece that is long enough. So the free rest is at the low end, where [`trim`]
    /// can give it up.
    fn take(&mut self, len: usize) -> Option<usize> {
        let found = self.pieces[..self.count].iter().rposition(|(start, end)| end - start >= len)?;
        let piece = &mut self.pieces[found];
        piece.1 -= len;
        let at = piece.1;
        if piece.0 == piece.1 {
            self.remove(found);
        }
        Some(at)
    }

    /// Gives a piece back. If there is no entry left for it, it stays reserved and unused.
    fn give(&mut self, start: usize, end: usize) {
        let next = self.pieces[..self.count].partition_point(|p| p.0 < start);
        let joins_before = next > 0 && self.pieces[next - 1].1 == start;
        let joins_after = next < self.count && self.pieces[next].0 == end;
        match (joins_before, joins_after) {
            (true, true) => {
                self.pieces[next - 1].1 = self.pieces[next].1;
                self.remove(next);
            }
            (true, false) => self.pieces[next - 1].1 = end,
            (false, true) => self.pieces[next].0 = start,
            (false, false) if self.count < PIECES => {
                self.pieces.copy_within(next..self.count, next + 1);
                self.pieces[next] = (start, end);
                self.count += 1;
            }
            (false, false) => {}
        }
    }

    fn remove(&mut self, at: usize) {
        self.pieces.copy_within(at + 1..self.count, at);
        self.count -= 1;
    }
}

/// Reserves `len` bytes; where address space is limited, half as many, and so on. To be called once, before there are threads.
pub fn reserve(len: usize) {
    let mut len = len.next_multiple_of(PAGE_SIZE);
    let at = loop {
        match blank(0, len, 0) {
            Ok(at) => break at,
            Err(_) if len / 2 >= LEAST => len = (len / 2).next_multiple_of(PAGE_SIZE),
            Err(_) => return,
        }
    };
    RESERVED.store(true, Relaxed);
    let mut free = FREE.lock();
    assert_eq!(free.bounds, (0, 0), "reserved once");
    free.bounds = (at, at + len);
    free.give(at, at + len);
}

/// Gives up the free low end except for `keep` bytes: the program needs address space that is limited.
pub fn trim(keep: usize) {
    let mut free = FREE.lock();
    let (start, _) = free.bounds;
    let Some(&(low, end)) = free.pieces[..free.count].first() else { return };
    if low != start || end - low <= keep {
        return;
    }
    let until = (end - keep) & !(PAGE_SIZE - 1);
    // SAFETY: nothing of the pager's lies in a free piece.
    if unsafe { sys!(libc::SYS_munmap, start, until - start) }.is_ok() {
        free.pieces[0].0 = until;
        free.bounds.0 = until;
    }
}

/// The bounds of the reservation: all memory in `start..end` is the pager's. `None` if there is no reservation.
pub fn bounds() -> Option<(usize, usize)> {
    let bounds = FREE.lock().bounds;
    (bounds.0 < bounds.1).then_some(bounds)
}

/// The sizes of the reservation and of all mappings in it, in bytes.
pub fn sizes() -> (usize, usize) {
    let free = FREE.lock();
    let reserved = free.bounds.1 - free.bounds.0;
    (reserved, reserved - free.pieces[..free.count].iter().map(|(start, end)| end - start).sum::<usize>())
}

/// Locks the reservation until the returned guard is dropped, for a fork.
pub fn hold() -> impl Drop {
    FREE.lock()
}

fn map(at: usize, len: usize, prot: i32, flags: i32) -> Result<usize, Errno> {
    let private = if flags & libc::MAP_SHARED != 0 { 0 } else { libc::MAP_PRIVATE };
    let flags = private | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | flags;
    // SAFETY: at a place of the kernel's choice it overlaps nothing; the callers below give a fixed one that is the pager's.
    unsafe { sys!(libc::SYS_mmap, at, len, prot, flags, -1isize, 0) }
}

/// Maps inaccessible memory. Core dumps leave it out: the kernel merges it with the guard page of a thread's stack, and a merged
/// mapping of which a part was once used is dumped whole, as gigabytes of zeroes.
fn blank(at: usize, len: usize, flags: i32) -> Result<usize, Errno> {
    let at = map(at, len, libc::PROT_NONE, flags)?;
    // SAFETY: just mapped, and empty.
    let _ = unsafe { sys::madvise(at, len, libc::MADV_DONTDUMP) };
    Ok(at)
}

/// Maps fresh private anonymous memory, `len` bytes, without reserving swap for it; in the reservation if there is one. It never
/// has huge pages: the pager touches its tables here and there, and charges its buffers page by page.
///
/// # Errors
/// ENOMEM.
pub fn map_anonymous(len: usize) -> Result<*mut u8, Errno> {
    let at = map_new(len, 0)?;
    // SAFETY: just mapped, and empty. (A kernel without huge pages refuses.)
    let _ = unsafe { sys::madvise(at, len, libc::MADV_NOHUGEPAGE) };
    Ok(at as *mut u8)
}

/// As [`map_anonymous`], but forked children share it.
pub(crate) fn map_shared(len: usize) -> Result<usize, Errno> {
    map_new(len, libc::MAP_SHARED)
}

/// Puts empty memory, of which only later children have a part, in the place of memory of [`map_shared`].
///
/// # Safety
/// Nobody relies on the content.
pub(crate) unsafe fn renew_shared(at: usize, len: usize) -> Result<(), Errno> {
    map(at, len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_FIXED | libc::MAP_SHARED).map(drop)
}

/// Puts empty memory of this process's own in the place of memory of [`map_shared`]. Accesses at that moment find the one or the
/// other.
///
/// # Safety
/// Nobody relies on the content.
pub(crate) unsafe fn leave_shared(at: usize, len: usize) -> Result<(), Errno> {
    map(at, len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_FIXED).map(drop)
}

fn map_new(len: usize, flags: i32) -> Result<usize, Errno> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let len = len.next_multiple_of(PAGE_SIZE);
    let found = reservation().and_then(|mut free| free.take(len));
    let Some(at) = found else { return map(0, len, prot, flags) };
    map(at, len, prot, libc::MAP_FIXED | flags).inspect_err(|_| FREE.lock().give(at, at + len))
}

/// Unmaps memory of [`map_anonymous`]. The kernel may refuse: if the range is a part of a mapping, and the process has as many as
/// it may have (vm.max_map_count), or if the program has sealed it (mseal). Then it stays, without its content.
///
/// # Safety
/// Nothing may use the range any more.
pub unsafe fn unmap(at: *mut u8, len: usize) {
    let (at, len) = (at as usize, len.next_multiple_of(PAGE_SIZE));
    let (start, end) = reservation().map_or((0, 0), |free| free.bounds);
    let done = if !(start..end).contains(&at) {
        // SAFETY: the caller's promise.
        unsafe { sys!(libc::SYS_munmap, at, len) }.map(drop)
    } else {
        blank(at, len, libc::MAP_FIXED).map(|_| FREE.lock().give(at, at + len))
    };
    if done.is_err() {
        // SAFETY: the caller's promise.
        let _ = unsafe { sys::madvise(at, len, libc::MADV_DONTNEED_LOCKED) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_cut_and_join_again() {
        let mut free = Free::none();
        free.give(1000, 2000);
        assert_eq!(free.take(1001), None);
        let blocks = [100, 200, 300].map(|len| (free.take(len).expect("room"), len));
        assert_eq!(blocks.map(|b| b.0), [1900, 1700, 1400]);
        assert_eq!(free.pieces[..free.count], [(1000, 1400)]);
        free.give(1700, 1900);
        assert_eq!(free.pieces[..free.count], [(1000, 1400), (1700, 1900)]);
        assert_eq!(free.take(200), Some(1700), "the highest that has room");
        assert_eq!(free.take(250), Some(1150));
        free.give(1900, 2000);
        free.give(1400, 1700);
        assert_eq!(free.pieces[..free.count], [(1000, 1150), (1400, 1700), (1900, 2000)]);
        free.give(1700, 1900);
        free.give(1150, 1400);
        assert_eq!(free.pieces[..free.count], [(1000, 2000)]);
        assert_eq!(free.take(1000), Some(1000));
        assert_eq!((free.count, free.take(1)), (0, None));
    }

    #[test]
    fn more_pieces_than_are_remembered_are_lost() {
        let mut free = Free::none();
        (0..PIECES + 10).for_each(|i| free.give(i * 10, i * 10 + 5));
        assert_eq!((free.count, free.pieces[PIECES - 1]), (PIECES, (PIECES * 10 - 10, PIECES * 10 - 5)));
        free.give(5, 10);
        assert_eq!((free.count, free.pieces[0]), (PIECES - 1, (0, 15)));
    }
}

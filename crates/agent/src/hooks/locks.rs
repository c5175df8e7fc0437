//! The program's system calls that lock memory.
//!
//! Locked pages cannot be evicted, so they take a part of the budget as long as they are locked, and some of it must be left for
//! the rest of the program. (Memory that is locked twice counts twice.) A lock that does not fit is refused with ENOMEM, as Linux
//! refuses locks above RLIMIT_MEMLOCK. If it were allowed, frames would be given out above the budget, page by page, until the
//! program is stopped.
//!
//! mlockall is replaced by an mlock of each of the program's anonymous ranges. The kernel's own would populate the pager's sparse
//! tables, lock memory that the pager maps later, and lock all or nothing. Mapped files are left to the page cache.

use super::raw;
use crate::agent::Agent;
use core::sync::atomic::{AtomicI32, Ordering::*};

const KNOWN: i32 = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;

/// The flags of an mlockall(MCL_FUTURE); 0 if new mappings should not be locked. A child begins with 0.
static FUTURE: AtomicI32 = AtomicI32::new(0);

/// Forgets the parent's locks, in a child.
pub fn forked() {
    FUTURE.store(0, Relaxed);
}

/// mlock(2) and mlock2(2).
pub fn mlock(agent: &'static Agent, nr: i32, a: [usize; 6]) -> isize {
    // (the kernel refuses a range that wraps around)
    if a[0].checked_add(a[1]).is_some_and(|end| agent.is_the_pagers(a[0], end) || !agent.may_lock(a[0], end)) {
        return -(libc::ENOMEM as isize);
    }
    // SAFETY: the program's own call.
    unsafe { raw(nr, &a) }
}

/// mlockall(2).
pub fn mlockall(agent: &'static Agent, nr: i32, a: [usize; 6]) -> isize {
    let flags = a[0] as i32;
    if flags & !KNOWN != 0 || flags & (libc::MCL_CURRENT | libc::MCL_FUTURE) == 0 {
        // SAFETY: the kernel refuses it.
        return unsafe { raw(nr, &a) };
    }
    if flags & libc::MCL_CURRENT != 0 {
        if !agent.may_lock(0, usize::MAX) {
            return -(libc::ENOMEM as isize);
        }
        let mut at = 0;
        while let Some((start, end)) = agent.next_range(at) {
            let r = lock(start, end, flags);
            if r != 0 {
                return r;
            }
            at = end;
        }
    }
    FUTURE.store(if flags & libc::MCL_FUTURE != 0 { flags } else { 0 }, Relaxed);
    0
}

/// munlock(2). A program may unlock any memory that it finds in /proc/self/maps.
pub fn munlock(agent: &'static Agent, nr: i32, a: [usize; 6]) -> isize {
    // SAFETY: the program's own call.
    let r = unsafe { raw(nr, &a) };
    if agent.is_the_pagers(a[0], a[0].saturating_add(a[1])) {
        agent.lock_keys();
    }
    r
}

/// munlockall(2).
pub fn munlockall(agent: &'static Agent, nr: i32, a: [usize; 6]) -> isize {
    FUTURE.store(0, Relaxed);
    // SAFETY: the program's own call.
    let r = unsafe { raw(nr, &a) };
    agent.lock_keys();
    r
}

/// Locks `start..end`, which the program has just mapped, if it has asked for that and it fits.
pub fn mapped(agent: &'static Agent, start: usize, end: usize) {
    let flags = FUTURE.load(Relaxed);
    if flags != 0 && agent.may_lock(start, end) {
        lock(start, end, flags);
    }
}

/// Locks `start..end` and, as mlockall does, brings it into memory as far as possible.
fn lock(start: usize, end: usize, flags: i32) -> isize {
    let len = end - start;
    // SAFETY: the program has asked for it; no content changes.
    let r = unsafe { raw(libc::SYS_mlock2 as i32, &[start, len, libc::MLOCK_ONFAULT as usize, 0, 0, 0]) };
    if r == 0 && flags & libc::MCL_ONFAULT == 0 {
        // SAFETY: as above.
        let _ = unsafe { raw(libc::SYS_madvise as i32, &[start, len, libc::MADV_POPULATE_READ as usize, 0, 0, 0]) };
    }
    r
}

//! The program's system calls for memory.

use super::raw;
use crate::agent::{Agent, Request};
use core::sync::atomic::Ordering::*;

const PAGE: usize = 4096;

fn up(n: usize) -> usize {
    n.wrapping_add(PAGE - 1) & !(PAGE - 1)
}

/// Whether the kernel will refuse the call for an address within a page: such a call is not followed.
pub fn is_refused(nr: i32, a: &[usize; 6]) -> bool {
    match nr as libc::c_long {
        libc::SYS_munmap | libc::SYS_mremap => !a[0].is_multiple_of(PAGE),
        libc::SYS_mmap => a[3] as i32 & libc::MAP_FIXED != 0 && !a[0].is_multiple_of(PAGE),
        _ => false,
    }
}

/// mmap(2).
pub fn mmap(agent: &'static Agent, nr: i32, mut a: [usize; 6]) -> isize {
    let flags = a[3] as i32;
    let anonymous = flags & libc::MAP_ANONYMOUS != 0 && flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
    let wanted = anonymous && flags & (libc::MAP_HUGETLB | libc::MAP_GROWSDOWN) == 0;
    if !wanted && flags & libc::MAP_FIXED == 0 {
        // SAFETY: the program's own call; it makes a mapping that the pager does not manage, over nothing.
        return unsafe { raw(nr, &a) };
    }
    let over = flags & libc::MAP_FIXED != 0 && agent.forget_native(a[0], a[0].wrapping_add(up(a[1])));
    if anonymous && a[1] > agent.lockable_bytes() {
        // As with mlock below, and what is populated could be more than the budget before the pager knows of it.
        a[3] &= !(libc::MAP_POPULATE | libc::MAP_LOCKED) as usize;
    }
    // SAFETY: the program's own call.
    let r = unsafe { raw(nr, &a) };
    if wanted && r > 0 {
        agent.new_range(r as usize, r as usize + up(a[1]));
    } else if over && r < 0 {
        agent.new_range(a[0], a[0] + up(a[1])); // still there
    }
    r
}

/// munmap(2).
pub fn munmap(agent: &'static Agent, nr: i32, a: [usize; 6]) -> isize {
    let native = agent.forget_native(a[0], a[0].wrapping_add(up(a[1])));
    // SAFETY: the program's own call.
    let r = unsafe { raw(nr, &a) };
    if native && r != 0 {
        agent.new_range(a[0], a[0] + up(a[1])); // still there
    }
    r
}

/// mremap(2).
pub fn mremap(agent: &'static Agent, nr: i32, a: [usize; 6]) -> isize {
    let native = agent.forget_native(a[0], a[0].wrapping_add(up(a[1])));
    // SAFETY: the program's own call.
    let r = unsafe { raw(nr, &a) };
    match (native, r > 0) {
        (true, true) => agent.new_range(r as usize, r as usize + up(a[2])),
        (true, false) => agent.new_range(a[0], a[0] + up(a[1])),
        (false, true) => agent.ask(Request::Resized { old_len: up(a[1]), new: r as usize, new_len: up(a[2]) }),
        (false, false) => {}
    }
    if r > 0 && a[3] as i32 & libc::MREMAP_DONTUNMAP != 0 {
        agent.left_empty(a[0], a[0] + up(a[1]));
    }
    r
}

/// brk(2).
pub fn brk(agent: &'static Agent, nr: i32, a: [usize; 6]) -> isize {
    let before = up(agent.heap_end.load(Relaxed));
    if a[0] != 0 && up(a[0]) < before {
        agent.forget_native(up(a[0]), before);
    }
    // SAFETY: the program's own call.
    let r = unsafe { raw(nr, &a) };
    let after = up(r as usize);
    agent.heap_end.store(r as usize, Relaxed);
    if after > before {
        agent.new_range(before, after);
    }
    r
}

/// madvise(2).
pub fn madvise(agent: &'static Agent, nr: i32, a: [usize; 6]) -> isize {
    // SAFETY: the program's own call.
    let r = unsafe { raw(nr, &a) };
    let end = a[0].wrapping_add(up(a[1]));
    match a[2] as i32 {
        libc::MADV_DONTNEED | libc::MADV_FREE => agent.discarded(a[0], end),
        libc::MADV_MERGEABLE => agent.may_merge(),
        advice @ (libc::MADV_WIPEONFORK | libc::MADV_KEEPONFORK) => {
            let heard = r != 0 || agent.wipe_on_fork(a[0], end, advice == libc::MADV_WIPEONFORK);
            // else the kernel wipes what is mapped, and the program is told that it cannot rely on it
            return if heard { r } else { -(libc::ENOMEM as isize) };
        }
        _ => {}
    }
    r
}

/// mlock(2). Locked pages cannot be evicted. More of them than the budget bears would be given out above it, page by page, for ever. A
/// program that is refused goes on unlocked.
pub fn mlock(agent: &'static Agent, nr: i32, a: [usize; 6]) -> isize {
    if a[1] > agent.lockable_bytes() {
        return -(libc::EPERM as isize);
    }
    // SAFETY: the program's own call.
    unsafe { raw(nr, &a) }
}

/// mlockall(2): it would populate the pager's own sparse tables.
pub fn mlockall() -> isize {
    -(libc::EPERM as isize)
}

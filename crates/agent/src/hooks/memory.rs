//! The program's system calls for memory.

use super::{locks, raw};
use crate::agent::{ADDRESSES_END, Agent, NOTHING, Request};
use core::sync::atomic::Ordering::*;
use overspill_linux::native::Piece;
use overspill_linux::ranges::Flags;
use overspill_linux::sys;

const PAGE: usize = 4096;

fn up(n: usize) -> usize {
    n.wrapping_add(PAGE - 1) & !(PAGE - 1)
}

/// Whether the kernel will refuse the call for an address within a page: such a call is not followed.
pub fn is_refused(nr: i32, a: &[usize; 6]) -> bool {
    match nr as libc::c_long {
        libc::SYS_munmap => !a[0].is_multiple_of(PAGE),
        libc::SYS_mremap => {
            let fixed = a[3] as i32 & libc::MREMAP_FIXED != 0;
            !a[0].is_multiple_of(PAGE) || fixed && !a[4].is_multiple_of(PAGE)
        }
        libc::SYS_mmap => a[3] as i32 & libc::MAP_FIXED != 0 && !a[0].is_multiple_of(PAGE),
        _ => false,
    }
}

const MADV_GUARD_INSTALL: i32 = 102;
const MADV_GUARD_REMOVE: i32 = 103;
const MAP_DROPPABLE: i32 = 0x08;

/// mmap(2). Left to the kernel, and not known to the pager, is what is not private and anonymous: files, shared memory, and
/// MAP_DROPPABLE, which the kernel may empty at any moment; huge pages, which it reserves apart; and MAP_GROWSDOWN, whose growth
/// nobody tells of. All else is known (MAP_STACK, MAP_NORESERVE, MAP_32BIT, PROT_NONE): a reservation of terabytes is one range,
/// and costs nothing until it is touched.
pub fn mmap(agent: &'static Agent, nr: i32, mut a: [usize; 6]) -> isize {
    let flags = a[3] as i32;
    let anonymous = flags & libc::MAP_ANONYMOUS != 0 && matches!(flags & libc::MAP_TYPE, libc::MAP_PRIVATE | MAP_DROPPABLE);
    let private = anonymous && flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
    let wanted = private && flags & (libc::MAP_HUGETLB | libc::MAP_GROWSDOWN) == 0;
    let fixed = flags & libc::MAP_FIXED != 0;
    if !anonymous && !fixed {
        // SAFETY: the program's own call; it makes a mapping that the pager does not manage, over nothing.
        return unsafe { raw(nr, &a) };
    }
    let over = fixed.then(|| agent.begin_remap([NOTHING, (a[0], a[0].wrapping_add(up(a[1])))], 0));
    if private && a[1] > agent.populatable_bytes() {
        // What is populated could be more than the budget before the pager knows of it.
        a[3] &= !(libc::MAP_POPULATE | libc::MAP_LOCKED) as usize;
    }
    // SAFETY: the program's own call.
    let r = unsafe { raw(nr, &a) };
    if let Some(over) = over {
        agent.end_remap(over, r >= 0);
    }
    if r < 0 {
        return r;
    }
    if wanted {
        agent.new_range(Piece { start: r as usize, end: r as usize + up(a[1]), flags: Flags::of_mapping(flags) });
        locks::mapped(agent, r as usize, r as usize + up(a[1]));
    } else if anonymous {
        agent.not_ours(r as usize, r as usize + up(a[1]));
    }
    r
}

/// munmap(2).
pub fn munmap(agent: &'static Agent, nr: i32, a: [usize; 6]) -> isize {
    let remap = agent.begin_remap([NOTHING, (a[0], a[0].wrapping_add(up(a[1])))], 0);
    // SAFETY: the program's own call.
    let r = unsafe { raw(nr, &a) };
    agent.end_remap(remap, r == 0);
    r
}

const REFUSED: isize = -(libc::EFAULT as isize);

/// mremap(2).
pub fn mremap(agent: &'static Agent, nr: i32, a: [usize; 6]) -> isize {
    let (old, old_len, new_len, flags) = (a[0], up(a[1]), up(a[2]), a[3] as i32);
    let fixed = flags & libc::MREMAP_FIXED != 0;
    let moves_all = fixed && old_len == new_len && old_len > 0 && sys::is_mapped(old, old + PAGE);
    let to = if fixed { (a[4], a[4].wrapping_add(new_len)) } else { NOTHING };
    let end = old.wrapping_add(old_len);
    if moves_all && !agent.is_known(old, end) && agent.kernel_moves_several() {
        let apart = to.0 < to.1 && to.1 <= ADDRESSES_END && (end <= to.0 || to.1 <= old);
        let leaves = flags == libc::MREMAP_FIXED | libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
        if apart && leaves && agent.mapping(old, end).is_some_and(|(_, until)| until < end) {
            // What the kernel has left behind, empty, before it refuses, cannot be told from what it has not moved.
            return mremap_each(agent, nr, a);
        }
        // Where the gaps come, what is there stays: only events tell which parts of it have gone.
        agent.adopt(to.0, to.1);
    }
    let remap = agent.begin_remap([(old, end), to], new_len.saturating_sub(old_len));
    // SAFETY: the program's own call.
    let r = unsafe { raw(nr, &a) };
    agent.end_remap(remap, r >= 0);
    if r == REFUSED {
        return if moves_all && agent.kernel_moves_several() { mremap_each(agent, nr, a) } else { mremap_alike(agent, nr, a) };
    }
    if r < 0 {
        return r;
    }
    if old_len == 0 {
        // another view of a shared mapping, however large: nothing has grown, not even what ends where it begins
        agent.not_ours(r as usize, r as usize + new_len);
        return r;
    }
    let native = remap.native[0];
    let (new, left_empty) = (r as usize, flags & libc::MREMAP_DONTUNMAP != 0);
    if native.is_empty() {
        agent.ask(Request::Resized { old_len, new, new_len });
        if left_empty {
            agent.ask(Request::LeftEmpty { old, new, len: old_len });
        }
        return r;
    }
    for &Piece { start, end, flags } in native.iter() {
        let at = new + (start - old);
        // what grows is as what it grows from
        let until = if end == old + old_len { new + new_len } else { new + (end - old) };
        agent.new_range(Piece { start: at, end: until.min(new + new_len), flags });
        if left_empty {
            agent.new_range(Piece { start, end, flags });
        }
    }
    r
}

/// Several mappings are moved by one call since Linux 6.17, gaps and all, but for those that are registered with a userfaultfd: at
/// the first such it says EFAULT, having moved what comes before. So the rest is moved one by one.
fn mremap_each(agent: &'static Agent, nr: i32, a: [usize; 6]) -> isize {
    let (old, end) = (a[0], a[0] + up(a[1]));
    let (mut at, mut moved, _parts) = (old, false, agent.in_parts());
    while at < end {
        let Some((start, until)) = agent.mapping(at, end) else { break };
        if start == old && until == end {
            return REFUSED; // it is one: refused for something else
        }
        let r = mremap(agent, nr, [start, until - start, until - start, a[3], a[4] + (start - old), 0]);
        if r < 0 {
            return r;
        }
        (at, moved) = (until, true);
    }
    if moved { a[4] as isize } else { REFUSED }
}

/// What is one mapping without a pager may be several with it. Linux makes one of two that lie side by side, and are alike, if at
/// least one of them has no pages yet, or if they had been alike when they got their first. But where the program only reads it has
/// none, and the pager fills pages all the same; and a mapping is registered only after it was made, when it may have pages.
///
/// mremap(2) wants one mapping, and says EFAULT. So what is alike is moved one by one, as if it were one. The last comes first,
/// with what it grows by: if it is refused nothing has changed.
fn mremap_alike(agent: &'static Agent, nr: i32, a: [usize; 6]) -> isize {
    let (old, old_len, new_len, flags) = (a[0], up(a[1]), up(a[2]), a[3] as i32);
    let end = old + old_len.min(new_len);
    let Some(alike) = agent.alike(old, end).filter(|alike| alike.starts().len() > 1) else { return REFUSED };
    let (fixed, left_empty) = (flags & libc::MREMAP_FIXED != 0, flags & libc::MREMAP_DONTUNMAP != 0);
    let _parts = agent.in_parts();
    if !fixed && !left_empty {
        let last = alike.starts()[alike.starts().len() - 1];
        let r = mremap(agent, nr, [last, end - last, old + new_len - last, 0, 0, 0]);
        if r >= 0 {
            return old as isize;
        }
        if r != -(libc::ENOMEM as isize) || flags & libc::MREMAP_MAYMOVE == 0 {
            return r;
        }
    }
    if end < old + old_len {
        let r = munmap(agent, libc::SYS_munmap as i32, [end, old + old_len - end, 0, 0, 0, 0]);
        if r < 0 {
            return r;
        }
    }
    let private = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    let new = if fixed {
        a[4]
    } else {
        // SAFETY: a mapping of our own, over nothing, for the others to take the place of.
        match unsafe { raw(libc::SYS_mmap as i32, &[0, new_len, libc::PROT_NONE as usize, private, usize::MAX, 0]) } {
            r @ ..0 => return r,
            r => r as usize,
        }
    };
    let flags = (flags | libc::MREMAP_FIXED | libc::MREMAP_MAYMOVE) as usize;
    let mut until = end;
    for &start in alike.starts().iter().rev() {
        let to_len = if until == end { old + new_len - start } else { until - start };
        let r = mremap(agent, nr, [start, until - start, to_len, flags, new + (start - old), 0]);
        if r < 0 && until < end {
            agent.stop("the program was stopped: the system had no memory to move the second part of what an mremap moves, of which the first had been moved");
        }
        if r < 0 {
            if !fixed {
                // SAFETY: ours, and still as it was made.
                unsafe { raw(libc::SYS_munmap as i32, &[new, new_len, 0, 0, 0, 0]) };
            }
            return r;
        }
        until = start;
    }
    new as isize
}

/// brk(2).
pub fn brk(agent: &'static Agent, nr: i32, a: [usize; 6]) -> isize {
    let before = up(agent.heap_end.load(Relaxed));
    let shrinks = a[0] != 0 && up(a[0]) < before;
    let shrunk = shrinks.then(|| agent.begin_remap([NOTHING, (up(a[0]), before)], 0));
    // SAFETY: the program's own call.
    let r = unsafe { raw(nr, &a) };
    let after = up(r as usize);
    agent.heap_end.store(r as usize, Relaxed);
    if let Some(shrunk) = shrunk {
        agent.end_remap(shrunk, after != before);
    }
    if after > before {
        agent.new_range(Piece { start: before, end: after, flags: Flags::NONE });
        locks::mapped(agent, before, after);
    }
    r
}

/// madvise(2).
pub fn madvise(agent: &'static Agent, nr: i32, a: [usize; 6]) -> isize {
    let (start, end, advice) = (a[0], a[0].wrapping_add(up(a[1])), a[2] as i32);
    // SAFETY: the program's own call.
    let call = || unsafe { raw(nr, &a) };
    if !start.is_multiple_of(PAGE) || start >= end {
        return call(); // refused, or nothing
    }
    match advice {
        libc::MADV_DONTNEED | libc::MADV_FREE => {
            let r = call();
            agent.discarded(start, end);
            r
        }
        libc::MADV_MERGEABLE => {
            agent.may_merge();
            call()
        }
        libc::MADV_WIPEONFORK | libc::MADV_KEEPONFORK => {
            let r = call();
            // without room to remember that something is wiped, the program is told that it cannot rely on it
            match agent.wiped_on_fork(start, advised(nr, &a, r), advice == libc::MADV_WIPEONFORK) {
                true => r,
                false => -(libc::ENOMEM as isize),
            }
        }
        MADV_GUARD_INSTALL => {
            let Some(before) = agent.begin_guard(start, end) else { return -(libc::ENOMEM as isize) };
            let r = call();
            let until = advised(nr, &a, r);
            if before {
                agent.not_guarded(until, end);
            } else {
                agent.unguarded(until, end);
            }
            agent.guarded(start, until);
            r
        }
        MADV_GUARD_REMOVE => {
            let r = call();
            if r == 0 {
                agent.unguarded(start, end);
            }
            r
        }
        _ => call(),
    }
}

/// Up to where advice was taken. The kernel goes on over holes (ENOMEM), and stops at the first mapping that it cannot advise
/// (EINVAL), when what lies before has been advised. Where that was is found by halves: the same advice once more changes nothing.
fn advised(nr: i32, a: &[usize; 6], r: isize) -> usize {
    let (start, end) = (a[0], a[0] + up(a[1]));
    match -r as i32 {
        0 | libc::ENOMEM => return end,
        libc::EINVAL => {}
        _ => return start,
    }
    let (mut done, mut refused) = (start, end);
    while refused - done > PAGE {
        let mid = done + ((refused - done) / 2).next_multiple_of(PAGE);
        // SAFETY: the program's own call, or the first part of it.
        match unsafe { raw(nr, &[start, mid - start, a[2], 0, 0, 0]) } == r {
            true => refused = mid,
            false => done = mid,
        }
        if mid == end {
            break;
        }
    }
    done
}

/// UFFDIO_REGISTER.
pub const REGISTER: usize = 0xC020_AA00;

/// ioctl(2) of a userfaultfd of the program's: it is about to register a range, which no other may have. What the pager has there
/// it brings in and leaves to the program, and to the kernel: it is not paged, and not counted, any more. (A page of zeroes that
/// has been dropped is a missing one.)
pub fn registers(agent: &'static Agent, a: &[usize; 6]) {
    let mut range = [0u8; 16];
    if sys::read_own(a[2], &mut range).is_err() {
        return; // refused
    }
    let word = |at: usize| usize::from_le_bytes(core::array::from_fn(|i| range[at + i]));
    let (start, len) = (word(0), word(8));
    if (start | len).is_multiple_of(PAGE) && start.checked_add(len).is_some() {
        agent.hand_over(start, start + len);
    }
}

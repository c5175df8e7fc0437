//! The program's system calls for memory.

use super::sites::Verdict;
use super::{locks, raw};
use crate::agent::{Agent, Request};
use core::sync::atomic::Ordering::*;
use overspill_linux::family::Family;
use overspill_linux::kernel::Linux;
use overspill_linux::machine::Machine;
use overspill_linux::mremap::{Change, Hook, Mremap, NOTHING, up};
use overspill_linux::native::Piece;
use overspill_linux::ranges::Flags;
use overspill_linux::sys::{self, Errno};

const PAGE: usize = 4096;

/// Whether the kernel will refuse the call because an address is not page-aligned. Such a call is not followed.
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

/// mmap(2). The pager leaves to the kernel all memory that is not private and anonymous: files, shared memory, and MAP_DROPPABLE,
/// which the kernel may empty at any moment. It also leaves huge pages, which the kernel reserves separately, and MAP_GROWSDOWN,
/// because the kernel does not report its growth. The pager follows everything else (MAP_STACK, MAP_NORESERVE, MAP_32BIT,
/// PROT_NONE). A reservation of terabytes is one range, and costs nothing until it is touched.
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
    const PRESENT: i32 = libc::MAP_POPULATE | libc::MAP_LOCKED;
    if private && flags & PRESENT != 0 && !agent.may_populate(up(a[1])) {
        // The populated memory could exceed the budget before the pager knows of it.
        a[3] &= !PRESENT as usize;
    }
    if wanted && a[3] as i32 & libc::MAP_LOCKED != 0 && !agent.may_lock_more(up(a[1])) {
        a[3] &= !libc::MAP_LOCKED as usize;
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
pub fn munmap(agent: &'static Agent, a: [usize; 6]) -> isize {
    agent.munmap(a[0], a[1])
}

/// mremap(2).
pub fn mremap(agent: &'static Agent, a: [usize; 6]) -> isize {
    agent.mremap(Mremap { old: a[0], old_len: a[1], new_len: a[2], flags: a[3], new: a[4] })
}

/// Room for the flags of a mapping. There are some forty flags of two letters; few of them are set.
const FLAGS_LEN: usize = 128;

/// The flags of a mapping (VmFlags) that keep it apart from its neighbours. Flags that the pager itself may change do not count:
/// registered with a userfaultfd (um, uw, ui), written to (sd), has had guards (gu), and accountable (ac). Memory that becomes
/// read-only loses `ac` unless it has pages; memory that was only read has pages with a pager, and none without.
fn what_sets_apart(flags: &[u8]) -> [u8; FLAGS_LEN] {
    let (mut kept, mut len) = ([0; FLAGS_LEN], 0);
    for flag in flags.split(|&byte| byte == b' ').filter(|flag| !matches!(*flag, [] | [b'u', ..] | b"sd" | b"gu" | b"ac")) {
        for &byte in flag.iter().chain(b" ") {
            if let Some(next) = kept.get_mut(len) {
                (*next, len) = (byte, len + 1);
            }
        }
    }
    kept
}

impl Hook for &'static Agent {
    type Kernel = Linux;
    type Kind = [u8; FLAGS_LEN];

    fn machine(&self) -> &Machine {
        Agent::machine(self)
    }
    fn run<R>(self, f: impl FnOnce(Self) -> R + 'static) -> R {
        self.stacks().run(move || f(self))
    }
    fn run_held<R>(self, f: impl FnOnce(Self) -> R + 'static) -> R {
        self.stacks().run_held(move || f(self))
    }
    fn hold_signals(self) -> u64 {
        sys::block_signals()
    }
    fn let_signals(self, mask: u64) {
        sys::restore_signals(mask);
    }
    fn perform(self, change: Change) {
        let _ = self.ask_here(Request::Perform(change)); // it cannot fail
    }
    fn obtain(self, pages: u64) -> bool {
        Family::obtain(self.machine(), pages)
    }
    fn call(self, call: Mremap) -> isize {
        let Mremap { old, old_len, new_len, flags, new } = call;
        // SAFETY: the program's own call.
        unsafe { raw(libc::SYS_mremap as i32, &[old, old_len, new_len, flags, new, 0]) }
    }
    fn call_munmap(self, at: usize, len: usize) -> isize {
        // SAFETY: the program's own call, or of what `reserve` has mapped.
        unsafe { raw(libc::SYS_munmap as i32, &[at, len, 0, 0, 0, 0]) }
    }
    fn reserve(self, len: usize) -> isize {
        let private = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
        // SAFETY: a mapping of our own, over nothing.
        unsafe { raw(libc::SYS_mmap as i32, &[0, len, libc::PROT_NONE as usize, private, usize::MAX, 0]) }
    }
    fn moves_several(self) -> bool {
        self.run(|_| sys::kernel_version() >= (6, 17))
    }
    fn each_mapping(self, mut f: impl FnMut(usize, usize, Self::Kind)) -> Result<(), Errno> {
        sys::each_mapping_flags(|start, end, flags| f(start, end, what_sets_apart(flags)))
    }
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
pub fn madvise(agent: &'static Agent, a: [usize; 6]) -> isize {
    let (nr, start, end, advice) = (libc::SYS_madvise as i32, a[0], a[0].wrapping_add(up(a[1])), a[2] as i32);
    // SAFETY: the program's own call.
    let call = || unsafe { raw(nr, &a) };
    if !start.is_multiple_of(PAGE) || start >= end {
        return call(); // refused, or nothing
    }
    match advice {
        libc::MADV_DONTNEED | libc::MADV_DONTNEED_LOCKED => {
            agent.begin_discard(start, end);
            let r = call();
            agent.discarded(start, end);
            r
        }
        libc::MADV_FREE => {
            // What the kernel may drop at any time it would also drop from the parking area, without a word. So it is dropped now.
            // (Other memory may be such that MADV_DONTNEED does more than MADV_FREE may.)
            let private = agent.is_in_a_range(start, end);
            agent.begin_discard(start, end);
            let r = if private { 0 } else { call() };
            let until = advised(nr, &a, r);
            // SAFETY: the program's own call has given up the content of that part.
            let dropped = unsafe { raw(nr, &[start, until - start, libc::MADV_DONTNEED as usize, 0, 0, 0]) };
            agent.discarded(start, end);
            if r == 0 { dropped } else { r }
        }
        libc::MADV_MERGEABLE => {
            agent.may_merge();
            call()
        }
        libc::MADV_WIPEONFORK | libc::MADV_KEEPONFORK => {
            let _whole = agent.whole_call();
            let r = call();
            // if there is no room to remember that the range is wiped, the call fails
            match agent.wiped_on_fork(start, advised(nr, &a, r), advice == libc::MADV_WIPEONFORK) {
                true => r,
                false => -(libc::ENOMEM as isize),
            }
        }
        MADV_GUARD_INSTALL => {
            let _whole = agent.whole_call();
            let Some(before) = agent.begin_guard(start, end) else { return -(libc::ENOMEM as isize) };
            let r = call();
            agent.guarded(start, advised(nr, &a, r), end, before);
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

/// The end of the part that was advised. The kernel goes on over holes (ENOMEM), and stops at the first mapping that it cannot
/// advise (EINVAL), after it has advised all that lies before. Bisection finds that place: to give the same advice again changes
/// nothing.
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

/// The most ranges that process_madvise(2) takes (UIO_MAXIOV), and the most bytes (MAX_RW_COUNT).
const RANGES_MAX: usize = 1024;
const ADVISED_MAX: usize = 0x7FFF_F000;

/// process_madvise(2). Since Linux 6.13 it takes any advice, but only on the caller's own memory. Advice of which the pager must
/// know is given range by range, by madvise(2).
pub fn process_madvise(agent: &'static Agent, nr: i32, a: [usize; 6]) -> Verdict {
    let [pidfd, ranges, count, advice, flags, _] = a;
    let is_followed = matches!(
        advice as i32,
        libc::MADV_DONTNEED
            | libc::MADV_DONTNEED_LOCKED
            | libc::MADV_FREE
            | libc::MADV_MERGEABLE
            | libc::MADV_WIPEONFORK
            | libc::MADV_KEEPONFORK
            | MADV_GUARD_INSTALL
            | MADV_GUARD_REMOVE
    );
    // On no ranges this tells whether it is the caller's memory: the kernel lets nobody give such advice on another's.
    // SAFETY: it changes nothing.
    if !is_followed || count > RANGES_MAX || unsafe { raw(nr, &[pidfd, 0, 0, advice, flags, 0]) } != 0 {
        return Verdict::pass();
    }
    // SAFETY: two words, of which any value is one.
    let range = |i: usize| unsafe { sys::read_own_value::<[usize; 2]>(ranges.wrapping_add(i * size_of::<[usize; 2]>())) };
    if (0..count).any(|i| !range(i).is_ok_and(|[_, len]| len <= isize::MAX as usize)) {
        return Verdict::pass(); // refused
    }
    let mut done = 0;
    for i in 0..count {
        let Ok([at, len]) = range(i) else { break };
        let len = len.min(ADVISED_MAX - done);
        let r = madvise(agent, [at, len, advice, 0, 0, 0]);
        if r < 0 {
            return Verdict::done(if done > 0 { done as isize } else { r });
        }
        done += len;
    }
    Verdict::done(done as isize)
}

/// UFFDIO_REGISTER, UFFDIO_API and UFFDIO_MOVE.
const REGISTER: u32 = 0xC020_AA00;
const API: u32 = 0xC018_AA3F;
const MOVE: u32 = 0xC028_AA05;
/// UFFD_FEATURE_EVENT_FORK.
const EVENT_FORK: u64 = 1 << 1;
/// UFFDIO_MOVE_MODE_ALLOW_SRC_HOLES.
const ALLOW_HOLES: usize = 1 << 1;

/// Whether this request of ioctl(2) is one of those below.
pub fn is_userfaultfds(request: usize) -> bool {
    matches!(request as u32, REGISTER | API | MOVE)
}

/// Whether a userfaultfd of the program's own is to report forks. A fork waits until such a report is read, and the pager stands
/// still meanwhile, so the thread that reads must not need a page. The kernel refuses it, too, without CAP_SYS_PTRACE.
pub fn awaits_forks(a: &[usize; 6]) -> bool {
    // SAFETY: two words, of which any value is one.
    a[1] as u32 == API && unsafe { sys::read_own_value::<[u64; 2]>(a[2]) }.is_ok_and(|[_, features]| features & EVENT_FORK != 0)
}

/// ioctl(2) of a userfaultfd of the program's own.
///
/// The program is about to register a range, which must not be registered with another. The pager brings its pages there in, and
/// leaves the range to the program and the kernel: it is not paged or counted any more. (A page of zeroes that has been dropped is
/// missing there.) Or it is about to move pages from a range, which must be in memory: the pager does the same.
pub fn userfaultfd(agent: &'static Agent, a: &[usize; 6]) {
    match a[1] as u32 {
        API => agent.fill_alone(),
        REGISTER => {
            // SAFETY: two words, of which any value is one.
            let Ok([start, len]) = (unsafe { sys::read_own_value::<[usize; 2]>(a[2]) }) else { return }; // refused
            hand_over(agent, start, len);
        }
        MOVE => {
            // SAFETY: four words, of which any value is one.
            let Ok([_, from, len, mode]) = (unsafe { sys::read_own_value::<[usize; 4]>(a[2]) }) else { return }; // refused
            if hand_over(agent, from, len) && mode & ALLOW_HOLES == 0 {
                // Pages of zeroes may have been dropped, and without this mode a missing page is an error.
                // SAFETY: what is missing reads as zeroes; no content changes.
                let _ = unsafe { raw(libc::SYS_madvise as i32, &[from, len, libc::MADV_POPULATE_READ as usize, 0, 0, 0]) };
            }
        }
        _ => {}
    }
}

fn hand_over(agent: &'static Agent, start: usize, len: usize) -> bool {
    (start | len).is_multiple_of(PAGE) && start.checked_add(len).is_some_and(|end| agent.hand_over(start, end))
}

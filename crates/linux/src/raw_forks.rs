//! Forks that nobody follows: made by a system call in the program's own code, past libc.
//!
//! Such a child has no pager. Where its parent's pages are out it would read zeroes. So what is managed carries MADV_DONTFORK, and
//! is not in such a child at all: a touch of it is the child's end, by SIGSEGV. What is left to the kernel is there as ever.
//!
//! ```text
//!   managed           DONTFORK from its first moment on (Machine::manage), until it is unmapped or handed over
//!   a followed fork   DOFORK, the fork, DONTFORK again in both; but for what the program itself keeps from its children
//!   moved, resized    the kernel has the mark move along
//! ```
//!
//! **What has gone in the meantime.** A range stays in the map until the report of its unmapping is read, and the kernel may have
//! given its addresses to another mapping by then, which must not be marked for good. Handlers are frozen during a fork. So if no
//! unmapping or move is under way when all is marked again, none can have been; else [`Space::remark`] has whoever reads the
//! reports put it right, until none is under way any more.

use crate::machine::{Machine, Space};
use crate::ranges::{Flags, Kind, Range};
use crate::sys::{self, Errno, IoVec};
use core::sync::atomic::Ordering::*;

/// Ranges are advised so many at a time.
const BATCH: usize = 64;

/// The advice for all managed ranges that the program does not keep from its children itself.
fn advise_all(map: &Space, advice: i32) -> Result<(), Errno> {
    let mut batch = [IoVec { base: 0, len: 0 }; BATCH];
    let (mut n, mut result) = (0, Ok(()));
    // SAFETY: neither DONTFORK nor DOFORK, which are all that is asked for here, touches any content.
    let advise = |ranges: &[IoVec]| unsafe { sys::advise_ranges(sys::PIDFD_SELF, ranges, advice) };
    for r in map.ranges.iter().filter(|r| r.kind == Kind::Managed && !r.flags.has(Flags::DONTFORK)) {
        if n == BATCH {
            result = result.and(advise(&batch));
            n = 0;
        }
        batch[n] = IoVec { base: r.start, len: r.end - r.start };
        n += 1;
    }
    result.and(advise(&batch[..n]))
}

/// What cannot be advised is gone, or the kernel is short of memory for a mapping more; then it is advised at the next fork.
fn advise(start: usize, end: usize, advice: i32) {
    // SAFETY: neither DONTFORK nor DOFORK touches any content.
    let _ = unsafe { sys::madvise(start, end - start, advice) };
}

impl Machine {
    /// From here on. => nothing is managed yet
    pub fn keep_from_raw_forks(&self) {
        self.keeps_from_forks.store(true, Relaxed);
    }

    /// No more: the program will not allow it (seccomp).
    pub fn let_raw_forks(&self) {
        let map = self.map.write();
        if self.keeps_from_forks.swap(false, Relaxed) {
            let _ = advise_all(&map, libc::MADV_DOFORK);
        }
    }

    /// The range is managed now, or was moved while marks were off.
    pub(crate) fn mark(&self, start: usize, end: usize) {
        if self.keeps_from_forks.load(Relaxed) {
            advise(start, end, libc::MADV_DONTFORK);
        }
    }

    /// What was managed here is so no more, and its mark may be on what is there by now.
    pub(crate) fn unmark(start: usize, end: usize) {
        advise(start, end, libc::MADV_DOFORK);
    }

    /// A followed fork is about to be made.
    ///
    /// # Errors
    /// The kernel is short of memory for mappings.
    pub fn begin_fork(&self, map: &Space) -> Result<(), Errno> {
        if self.keeps_from_forks.load(Relaxed) { advise_all(map, libc::MADV_DOFORK) } else { Ok(()) }
    }

    /// It was made, or refused: in the parent. No report has been read since it began.
    pub fn end_fork(&self, map: &mut Space) {
        if self.keeps_from_forks.load(Relaxed) {
            let _ = advise_all(map, libc::MADV_DONTFORK); // the next time, if not now
            map.remark |= map.is_changing();
        }
    }

    /// In the child, when it has registered what it has.
    pub(crate) fn mark_all(&self, map: &mut Space) {
        map.remark = false;
        if self.keeps_from_forks.load(Relaxed) {
            let _ = advise_all(map, libc::MADV_DONTFORK);
        }
    }

    /// The program has said what its forked children are to find here: `set` and `cleared` are of WIPE and DONTFORK, for which
    /// there are no events. Returns `false` if there is no room to remember it.
    #[must_use]
    pub fn advised_for_forks(&self, start: usize, end: usize, set: Flags, cleared: Flags) -> bool {
        let mut map = self.map.write();
        let room = map.ranges.change(start, end, |flags| flags.without(cleared).with(set));
        if cleared.has(Flags::DONTFORK) {
            let mut at = start;
            while let Some(r) = map.ranges.overlap(at, end, Kind::Managed).map(|r| r.within(at, end)) {
                self.mark(r.start, r.end); // it has taken the pager's, too
                at = r.end;
            }
        }
        room
    }

    /// Whether the program keeps a part of this from its children, and a part not: two mappings, that would not be one but for our
    /// marks.
    pub fn is_kept_apart(&self, start: usize, end: usize) -> bool {
        let map = self.map.read();
        let (mut at, mut kept) = (start, None);
        while let Some(r) = map.ranges.first(at, end) {
            let its = r.flags.has(Flags::DONTFORK);
            if kept.replace(its).is_some_and(|before| before != its) {
                return true;
            }
            at = r.end;
        }
        false
    }

    /// A registered address was touched that is in no range: memory that has grown by a call that was not followed. It is managed
    /// from now on, as far as its mapping goes. => nothing is known at the address
    pub(crate) fn find_grown(&self, map: &mut Space, addr: usize) {
        let mut mapping = (addr, addr + overspill_vm::types::PAGE_SIZE); // if it cannot be asked for
        let _ = sys::each_mapping(|start, end| {
            if (start..end).contains(&addr) {
                mapping = (start, end);
            }
        });
        let mut grown = Range { start: mapping.0, end: mapping.1, ..Range::of_program(Flags::NONE) };
        for r in map.ranges.iter() {
            if r.end <= addr && r.end > mapping.0 {
                (grown.start, grown.flags) = (r.end, r.flags);
            } else if r.start > addr {
                grown.end = grown.end.min(r.start);
                break;
            }
        }
        self.manage(map, grown);
        map.remark |= map.is_changing(); // it may have been replaced just now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::tests::{LEN, machine};
    use crate::uffd::Event;

    /// Whether a fork's child would not have what is mapped at `at`.
    fn is_marked(at: usize) -> bool {
        let text = std::fs::read_to_string("/proc/self/smaps").expect("readable");
        let mut here = false;
        for line in text.lines() {
            let bounds = line.split_once(' ').and_then(|(bounds, _)| bounds.split_once('-'));
            if let Some((start, end)) = bounds {
                let number = |text| usize::from_str_radix(text, 16).expect("an address");
                here = (number(start)..number(end)).contains(&at);
            } else if here && line.starts_with("VmFlags:") {
                return line.split(' ').any(|flag| flag == "dc");
            }
        }
        panic!("nothing is mapped at {at:#x}");
    }

    /// In a fork everything that is managed was unmarked and marked again. By then a range may have gone whose report nobody has
    /// read, and another mapping have come to its place: that would have stayed marked, and been in no child of any later fork.
    #[test]
    fn what_has_come_in_between_is_not_marked() {
        let Some((machine, base)) = machine("marks") else { return };
        let [a, b, c] = [0, 1, 2].map(|i| base + i * LEN);
        let marked = || [a, b, c].map(is_marked);
        machine.keep_from_raw_forks();
        let mut map = machine.map.write();
        let range = |start, flags| Range { start, end: start + LEN, ..Range { origin: base, ..Range::of_program(flags) } };
        map.origins[0] = base;
        machine.manage(&mut map, range(a, Flags::NONE));
        machine.manage(&mut map, range(c, Flags::DONTFORK));
        assert_eq!(marked(), [true, false, true]);
        machine.begin_fork(&map).expect("unmarked");
        assert_eq!(marked(), [false, false, true], "the program's own stays");
        machine.end_fork(&mut map);
        assert!(!map.remark, "nothing was under way");
        assert_eq!(marked(), [true, false, true]);
        // A has gone, another mapping is there, and is marked
        // SAFETY: our own mapping, which nobody uses.
        unsafe {
            sys::unmap(a as *mut u8, LEN);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            let there = sys::syscall6(libc::SYS_mmap, a, LEN, libc::PROT_READ as usize, flags as usize, usize::MAX, 0);
            assert_eq!(there, Ok(a));
        }
        machine.end_fork(&mut map);
        assert!(is_marked(a));
        map.remark = true;
        machine.follow(&mut map, Event::Unmap(a, a + LEN));
        assert_eq!(marked(), [false, false, true]);
        // C has moved to B while marks were off
        machine.manage(&mut map, range(c, Flags::NONE));
        machine.follow(&mut map, Event::Remap(c, b, LEN));
        assert_eq!(marked(), [false, true, false]);
        drop(map);
        machine.let_raw_forks();
        assert_eq!(marked(), [false; 3]);
        // SAFETY: nobody uses it any more.
        unsafe { sys::unmap(base as *mut u8, 3 * LEN) };
    }
}

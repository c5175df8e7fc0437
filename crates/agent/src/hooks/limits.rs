//! Limits of address space that the program sets for itself (RLIMIT_AS, RLIMIT_DATA).
//!
//! The kernel counts the pager's mappings as the program's, so at such a limit the program could allocate nothing more. Therefore
//! the kernel is given a limit that is larger by what the pager takes. The program sees what it has set, and so does a program that
//! it starts by exec, except for the hard limit.

use super::raw;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use overspill_linux::{area, sys};

/// A soft or a hard limit in bytes that the program has set.
struct Set {
    asked: AtomicU64,
    /// What the kernel was given for it. If the kernel has another value, somebody else has set that, and the program is to see it.
    given: AtomicU64,
}

impl Set {
    const fn new() -> Self {
        Set { asked: AtomicU64::new(libc::RLIM_INFINITY), given: AtomicU64::new(libc::RLIM_INFINITY) }
    }
    fn store(&self, asked: u64, given: u64) {
        self.asked.store(asked, Relaxed);
        self.given.store(given, Relaxed);
    }
    fn is_raised(&self) -> bool {
        self.given.load(Relaxed) != self.asked.load(Relaxed)
    }
    /// What the program is to see where the kernel has this value.
    fn seen(&self, value: u64) -> u64 {
        if value == self.given.load(Relaxed) { self.asked.load(Relaxed) } else { value }
    }
}

/// One of the two limits. A forked child inherits all of it.
struct Limit {
    resource: usize,
    /// What the pager takes of it, in bytes.
    own: AtomicU64,
    soft: Set,
    hard: Set,
}

impl Limit {
    const fn new(resource: libc::__rlimit_resource_t) -> Self {
        Limit { resource: resource as usize, own: AtomicU64::new(0), soft: Set::new(), hard: Set::new() }
    }

    fn seen(&self, kernel: &libc::rlimit) -> libc::rlimit {
        libc::rlimit { rlim_cur: self.soft.seen(kernel.rlim_cur), rlim_max: self.hard.seen(kernel.rlim_max) }
    }

    fn now(&self) -> Option<libc::rlimit> {
        let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the kernel writes the structure, which lives over the call.
        let result = unsafe { raw(libc::SYS_prlimit64 as i32, &[0, self.resource, 0, &raw mut now as usize, 0, 0]) };
        (result == 0).then_some(now)
    }

    fn give(&self, limit: &libc::rlimit) -> isize {
        // SAFETY: the kernel reads the structure, which lives over the call.
        unsafe { raw(libc::SYS_prlimit64 as i32, &[0, self.resource, &raw const *limit as usize, 0, 0, 0]) }
    }

    /// Sets it to what the program asks for, `now` being what the kernel has.
    fn set(&self, asked: &libc::rlimit, now: &libc::rlimit) -> isize {
        let own = self.own.load(Relaxed);
        let mut given = libc::rlimit { rlim_cur: asked.rlim_cur.saturating_add(own), rlim_max: asked.rlim_max.saturating_add(own) };
        let mut result = self.give(&given);
        if result == -libc::EPERM as isize && asked.rlim_max <= self.hard.seen(now.rlim_max) {
            // The program may ask for this. That the hard limit would rise is the pager's doing.
            given = libc::rlimit { rlim_cur: given.rlim_cur.min(now.rlim_max), rlim_max: now.rlim_max };
            result = self.give(&given);
        }
        if result == 0 {
            self.soft.store(asked.rlim_cur, given.rlim_cur);
            self.hard.store(asked.rlim_max, given.rlim_max);
        }
        result
    }
}

static LIMITS: [Limit; 2] = [Limit::new(libc::RLIMIT_AS), Limit::new(libc::RLIMIT_DATA)];

/// The process that the pager is for. (It may have ended before the program.)
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// A filter of the program's forbids to change limits.
static LEFT_ALONE: AtomicBool = AtomicBool::new(false);

/// To be called in a forked child that has a pager.
pub fn forked() {
    PROCESS.store(sys::getpid(), Relaxed);
}

/// From now on an exec does not lower limits.
pub fn leave_alone() {
    LEFT_ALONE.store(true, Relaxed);
}

/// To be called when the pager has mapped what it needs, except for these bytes.
pub fn count_own(more_bytes: usize) {
    forked();
    let (reserved, mapped) = area::sizes();
    LIMITS[0].own.store(reserved as u64, Relaxed);
    LIMITS[1].own.store(reserved.min(mapped + more_bytes) as u64, Relaxed);
}

/// The answer to a call that sets or asks for such a limit of this process, or that replaces its program. `None` if this is another
/// call. Takes no lock, so that a process that shares the memory (vfork) may come here.
///
/// # Safety
/// As the call.
pub unsafe fn follow(nr: i32, a: [usize; 6]) -> Option<isize> {
    // SAFETY: the caller's promise.
    unsafe {
        match nr as libc::c_long {
            libc::SYS_prlimit64 if a[0] == 0 || a[0] == sys::getpid() as usize => prlimit(a[1], a[2], a[3]),
            libc::SYS_setrlimit => prlimit(a[0], a[1], 0),
            libc::SYS_getrlimit => prlimit(a[0], 0, a[1]),
            libc::SYS_execve | libc::SYS_execveat => Some(exec(nr, a)),
            _ => None,
        }
    }
}

/// prlimit64(2) for this process. `None` if the kernel's answer is right.
unsafe fn prlimit(resource: usize, new: usize, old: usize) -> Option<isize> {
    let limit = LIMITS.iter().find(|limit| limit.resource == resource)?;
    let before = limit.now()?;
    let seen = limit.seen(&before);
    if new != 0 {
        if PROCESS.load(Relaxed) != sys::getpid() {
            return None;
        }
        // SAFETY: two words, of which any value is one.
        let asked = unsafe { sys::read_own_value(new) }.ok()?;
        match limit.set(&asked, &before) {
            0 => {}
            error => return Some(error),
        }
    }
    if old != 0 {
        // SAFETY: the caller's promise: the program wants it there.
        let result = unsafe { raw(libc::SYS_prlimit64 as i32, &[0, resource, 0, old, 0, 0]) };
        if result != 0 {
            return Some(result);
        }
        // SAFETY: the kernel has just written a whole one there.
        unsafe { (old as *mut libc::rlimit).write_unaligned(seen) };
    }
    Some(0)
}

/// execve(2), execveat(2): the new program gets the soft limits that this one has set.
unsafe fn exec(nr: i32, a: [usize; 6]) -> isize {
    let raised = LIMITS.each_ref().map(|limit| {
        let now = if limit.soft.is_raised() && !LEFT_ALONE.load(Relaxed) { limit.now() } else { None }?;
        let seen = libc::rlimit { rlim_cur: limit.soft.seen(now.rlim_cur), ..now };
        (seen.rlim_cur != now.rlim_cur && limit.give(&seen) == 0).then_some(now)
    });
    // SAFETY: the caller's promise.
    let result = unsafe { raw(nr, &a) };
    for (limit, raised) in LIMITS.iter().zip(raised) {
        if let Some(raised) = raised {
            limit.give(&raised);
        }
    }
    result
}

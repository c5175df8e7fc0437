//! Gives the pager's threads the rights of the program, and no more.
//!
//! Programs give up rights for good: a daemon gives up root, a parser confines itself. The kernel keeps rights per thread, and libc
//! changes those of its own threads only. If a pager thread kept its rights, an attacker who takes the program over could use them
//! by writing to that thread's stack. So the pager's threads follow each change before the program's call returns. They need none
//! of these rights: what needs a right was opened when they started.
//!
//! ```text
//!     program's thread   makes its call; reads the rights that it has now ([`Rights::read`]); asks the helper thread
//!   helper thread      begins a round ([`Following::all`]), wakes all threads, waits, and follows last
//!   pager's threads    look for a round in each turn of their loops ([`Follower::is_due`]), and take over the rights
//! ```
//!
//! The threads take over a state and do not repeat a call. So if no hook saw a change, they follow it at the next one that a hook
//! sees. If a program gets a right back (seteuid there and back), the pager's threads get it back as far as the kernel allows. It
//! does no harm if they have fewer rights than the program.
//!
//! Limits: a thread of the program may change its own rights alone, by raw system calls, as file servers do that act for several
//! users. The pager's threads follow that like any other change, so the last one counts. Labels of security modules are not
//! followed.

use crate::area;
use crate::sys::{self, Errno, futex_wait, futex_wake, sys};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering::*};

/// Threads of a pager.
const FOLLOWERS_MAX: usize = 32;
/// Linux's NGROUPS_MAX.
const GROUPS_MAX: usize = 65536;
/// Marks a place that no thread has.
const NOBODY: u32 = u32::MAX;
/// After this long a thread that has not followed is called again, in nanoseconds.
const CALL_AGAIN_NS: u64 = 1_000_000;

const CAP_SETGID: u64 = 1 << 6;
const CAP_SETUID: u64 = 1 << 7;
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
/// SECBIT_KEEP_CAPS: of no use to a thread that changes its user id only to follow.
const KEEP_CAPS: usize = 1 << 4;

/// A thread's sets of capabilities.
#[derive(Clone, Copy, Default)]
struct Capabilities {
    effective: u64,
    permitted: u64,
    inheritable: u64,
}

impl Capabilities {
    fn get() -> Result<Self, Errno> {
        let (head, mut data) = ([CAPABILITY_VERSION_3, 0], [[0u32; 3]; 2]);
        // SAFETY: reads the head and writes the data, which have the sizes of that version and live over the call.
        unsafe { sys!(libc::SYS_capget, head.as_ptr(), data.as_mut_ptr()) }?;
        let set = |i: usize| u64::from(data[0][i]) | u64::from(data[1][i]) << 32;
        Ok(Capabilities { effective: set(0), permitted: set(1), inheritable: set(2) })
    }

    fn set(&self) -> Result<(), Errno> {
        let head = [CAPABILITY_VERSION_3, 0];
        let half = |shift: u32| [self.effective, self.permitted, self.inheritable].map(|set| (set >> shift) as u32);
        let data = [half(0), half(32)];
        // SAFETY: reads both, which have the sizes of that version and live over the call.
        unsafe { sys!(libc::SYS_capset, head.as_ptr(), data.as_ptr()) }.map(drop)
    }
}

/// prctl(2) without pointers.
fn prctl(option: i32, value: usize) -> Result<usize, Errno> {
    // SAFETY: the options that are used here take numbers only.
    unsafe { sys!(libc::SYS_prctl, option, value, 0, 0, 0) }
}

/// Three ids: real, effective, saved.
fn ids(call: libc::c_long) -> Result<[u32; 3], Errno> {
    let mut ids = [0u32; 3];
    let [a, b, c] = &mut ids;
    // SAFETY: getresuid or getresgid, which write these numbers.
    unsafe { sys!(call, a as *mut u32, b as *mut u32, c as *mut u32) }?;
    Ok(ids)
}

/// What setresuid or setresgid needs to make these ids out of those of the thread: -1 keeps an id.
fn unlike(wanted: [u32; 3], has: [u32; 3]) -> [u32; 3] {
    core::array::from_fn(|i| if wanted[i] == has[i] { u32::MAX } else { wanted[i] })
}

/// The rights of a thread.
pub struct Rights {
    users: [u32; 3],
    groups: [u32; 3],
    capabilities: Capabilities,
    bounding: u64,
    secure_bits: usize,
    no_new_privileges: bool,
    /// The descriptor, in the pager's table, of the Landlock ruleset to be confined by; -1: none.
    landlock: i32,
    more_groups: *mut u32,
    more_groups_count: usize,
}

// SAFETY: the pointer is to memory of its own.
unsafe impl Send for Rights {}

impl Rights {
    /// Makes room for them.
    ///
    ///
    /// # Errors
    /// As mmap(2).
    fn new() -> Result<Self, Errno> {
        Ok(Rights {
            users: [0; 3],
            groups: [0; 3],
            capabilities: Capabilities::default(),
            bounding: u64::MAX,
            secure_bits: 0,
            no_new_privileges: false,
            landlock: -1,
            more_groups: area::map_anonymous(GROUPS_MAX * size_of::<u32>())?.cast(),
            more_groups_count: 0,
        })
    }

    /// Reads those of the calling thread.
    ///
    /// # Errors
    /// As from the kernel; no case is known in which it refuses.
    pub fn read(&mut self) -> Result<(), Errno> {
        self.users = ids(libc::SYS_getresuid)?;
        self.groups = ids(libc::SYS_getresgid)?;
        self.capabilities = Capabilities::get()?;
        // for a capability that it does not know, the kernel answers with an error; such a capability counts as present
        self.bounding = (0..64).filter(|cap| prctl(libc::PR_CAPBSET_READ, *cap) != Ok(0)).fold(0, |set, cap| set | 1 << cap);
        self.secure_bits = prctl(libc::PR_GET_SECUREBITS, 0)?;
        self.no_new_privileges = prctl(libc::PR_GET_NO_NEW_PRIVS, 0)? != 0;
        // SAFETY: the room is for as many groups as a thread can have.
        self.more_groups_count = unsafe { sys!(libc::SYS_getgroups, GROUPS_MAX, self.more_groups) }?;
        Ok(())
    }

    /// Reduces the rights of the calling thread to these.
    fn take(&self) -> Result<(), Errno> {
        let before = Capabilities::get()?;
        Capabilities { effective: before.permitted, ..before }.set()?; // for what follows
        if self.no_new_privileges {
            prctl(libc::PR_SET_NO_NEW_PRIVS, 1)?;
        }
        if self.landlock >= 0 {
            // SAFETY: takes numbers only.
            unsafe { sys!(libc::SYS_landlock_restrict_self, self.landlock, 0) }?;
        }
        for cap in (0..64).filter(|cap| self.bounding & 1 << cap == 0) {
            if prctl(libc::PR_CAPBSET_READ, cap) != Ok(0) {
                prctl(libc::PR_CAPBSET_DROP, cap)?;
            }
        }
        let secure_bits = prctl(libc::PR_GET_SECUREBITS, 0)?;
        if (secure_bits ^ self.secure_bits) & !KEEP_CAPS != 0 {
            prctl(libc::PR_SET_SECUREBITS, self.secure_bits & !KEEP_CAPS | secure_bits & KEEP_CAPS)?;
        }
        let allowed = |result: Result<usize, Errno>| match result {
            Ok(_) | Err(libc::EPERM) => Ok(()), // see below
            Err(e) => Err(e),
        };
        // An id that the user namespace does not map reads as one that cannot be set. It dates from before the namespace, so the
        // thread has it, too: an id that the thread has is not set, and a list of groups with such a group is left as it is.
        let [r, e, s] = unlike(self.users, ids(libc::SYS_getresuid)?);
        let [rg, eg, sg] = unlike(self.groups, ids(libc::SYS_getresgid)?);
        // SAFETY: reads as many groups as there are in its room; the others take numbers only.
        unsafe {
            let more_groups = sys!(libc::SYS_setgroups, self.more_groups_count, self.more_groups);
            if more_groups != Err(libc::EINVAL) {
                allowed(more_groups)?;
            }
            allowed(sys!(libc::SYS_setresgid, rg, eg, sg))?;
            allowed(sys!(libc::SYS_setresuid, r, e, s))?;
        }
        let now = Capabilities::get()?;
        let permitted = now.permitted & self.capabilities.permitted;
        Capabilities {
            permitted,
            effective: permitted & self.capabilities.effective,
            inheritable: now.inheritable & self.capabilities.inheritable,
        }
        .set()?;
        // A thread that was refused lacks the capability, so it already has fewer rights than the program. But it must not be root.
        let (users, groups) = (ids(libc::SYS_getresuid)?, ids(libc::SYS_getresgid)?);
        let is_behind = before.permitted & CAP_SETUID != 0 && users != self.users
            || before.permitted & CAP_SETGID != 0 && groups != self.groups
            || users.contains(&0) && !self.users.contains(&0);
        if is_behind { Err(libc::EPERM) } else { Ok(()) }
    }
}

impl Drop for Rights {
    fn drop(&mut self) {
        // SAFETY: its own mapping.
        unsafe { area::unmap(self.more_groups.cast(), GROUPS_MAX * size_of::<u32>()) };
    }
}

/// The rounds in which the pager's threads follow.
pub struct Following {
    round: AtomicU32,
    /// The round that each thread has followed last, or [`NOBODY`].
    threads: [AtomicU32; FOLLOWERS_MAX],
    /// Counts the threads that have followed. A futex.
    followed: AtomicU32,
    failed: AtomicI32,
    rights: UnsafeCell<Rights>,
}

// SAFETY: the rights are written between rounds by the one who begins the next, and only read within one.
unsafe impl Sync for Following {}

impl Following {
    /// Without threads.
    ///
    ///
    /// # Errors
    /// As mmap(2).
    pub fn new() -> Result<Self, Errno> {
        Ok(Following {
            round: AtomicU32::new(0),
            threads: [const { AtomicU32::new(NOBODY) }; FOLLOWERS_MAX],
            followed: AtomicU32::new(0),
            failed: AtomicI32::new(0),
            rights: UnsafeCell::new(Rights::new()?),
        })
    }

    /// Takes a place for a thread that is about to be started. => the calling thread has followed all rounds
    pub fn enlist(&self) -> Option<Follower> {
        let round = self.round.load(Acquire);
        let place = self.threads.iter().position(|t| t.compare_exchange(NOBODY, round, AcqRel, Relaxed).is_ok())?;
        Some(Follower { place, round })
    }

    /// Wakes the threads that wait for a round ([`Follower::wait`]).
    pub fn wake(&self) {
        futex_wake(&self.round, i32::MAX as u32);
    }

    /// Forgets all threads, in a forked child, where none of them is left.
    pub fn forked(&self) {
        self.threads.iter().for_each(|thread| thread.store(NOBODY, Relaxed));
    }

    /// The rights that the threads take over in the next round.
    ///
    /// # Safety
    /// No round is under way, and none begins while it is used.
    #[expect(clippy::mut_from_ref, reason = "the caller's promise")]
    pub unsafe fn rights(&self) -> &mut Rights {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.rights.get() }
    }

    /// Makes a round: all enlisted threads follow, and then the calling one, which has not enlisted. `call` wakes those that sleep.
    /// `landlock`: the program's thread of this id has confined itself by this ruleset of its descriptor table.
    ///
    /// # Errors
    /// Why one of them could not follow.
    ///
    /// # Safety
    /// Only one round may be under way, and nobody may write to the rights meanwhile.
    pub unsafe fn all(&self, landlock: Option<(u32, i32)>, mut call: impl FnMut()) -> Result<(), Errno> {
        // SAFETY: no round is under way: the caller's promise.
        let rights = unsafe { self.rights() };
        let ruleset = landlock.map(|(tid, fd)| sys::fd_of(tid, fd)).transpose()?;
        rights.landlock = ruleset.as_ref().map_or(-1, sys::Fd::raw);
        self.failed.store(0, Relaxed);
        let round = self.round.load(Relaxed).wrapping_add(1) & !(1 << 31); // never NOBODY
        self.round.store(round, Release);
        self.wake();
        loop {
            call();
            let seen = self.followed.load(Acquire);
            if self.threads.iter().all(|thread| [NOBODY, round].contains(&thread.load(Acquire))) {
                break;
            }
            futex_wait(&self.followed, seen, CALL_AGAIN_NS);
        }
        rights.take()?;
        match self.failed.load(Relaxed) {
            0 => Ok(()),
            error => Err(error),
        }
    }
}

/// A thread that follows.
#[derive(Clone, Copy, Debug)]
pub struct Follower {
    place: usize,
    round: u32,
}

impl Follower {
    /// For a thread of libc's, which libc makes follow.
    pub fn none() -> Self {
        Follower { place: usize::MAX, round: 0 }
    }

    /// Whether there is a round to follow. Each turn of a thread's loop asks this.
    pub fn is_due(&self, following: &Following) -> bool {
        following.round.load(Acquire) != self.round
    }

    /// Waits for a round, at most this long.
    pub fn wait(&self, following: &Following, timeout_ns: u64) {
        futex_wait(&following.round, self.round, timeout_ns);
    }

    /// Follows the round that is under way.
    pub fn follow(&mut self, following: &Following) {
        self.round = following.round.load(Acquire);
        // SAFETY: within a round nobody writes to the rights.
        if let Err(error) = unsafe { &*following.rights.get() }.take() {
            following.failed.store(error, Relaxed);
        }
        self.answer(following, self.round);
    }

    /// Follows if a round is due.
    pub fn look(&mut self, following: &Following) {
        if self.is_due(following) {
            self.follow(following);
        }
    }

    /// Gives the place up, before the thread ends.
    pub fn leave(self, following: &Following) {
        self.answer(following, NOBODY);
    }

    fn answer(&self, following: &Following, answer: u32) {
        if let Some(thread) = following.threads.get(self.place) {
            thread.store(answer, Release);
        }
        following.followed.fetch_add(1, Release);
        futex_wake(&following.followed, 1);
    }
}

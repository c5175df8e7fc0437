//! The agent: a machine, its threads, and what hooks ask of them.
//!
//! ```text
//!   start     from the environment to a pager, or to one message
//!   threads   one handler for each CPU, the page daemon, the control thread: bare threads with descriptors of their own
//!   helper    the helper thread: does for the program's threads what needs those descriptors
//!   fork      a child with a pager of its own
//! ```

use crate::hooks::HookStacks;
use core::cell::UnsafeCell;
use core::fmt::Write;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};
use overspill_linux::area;
use overspill_linux::control::Packet;
use overspill_linux::descriptors;
use overspill_linux::device_spec::DeviceSpec;
use overspill_linux::family::Family;
use overspill_linux::family::shares::MemberId;
use overspill_linux::io::Engine;
use overspill_linux::machine::Machine;
use overspill_linux::mremap::ADDRESSES_END;
use overspill_linux::ranges::{Kind, Range};
use overspill_linux::sys::{self, Errno, Fd, futex_wait};
use overspill_vm::status::Status;
use overspill_vm::types::{ObjectId, PAGE_SHIFT};

mod fork;
mod helper;
mod start;
mod threads;

pub use helper::Request;
pub use start::{no_memory, start};

use fork::ANCESTORS_MAX;
use start::variable;

static AGENT: AtomicPtr<Agent> = AtomicPtr::new(core::ptr::null_mut());

/// The agent, once it serves. A child that was forked past libc has a copy of it, and none of its threads: there it does not.
pub fn get() -> Option<&'static Agent> {
    // SAFETY: set once to a leaked agent. Acquire pairs with the Release in `start`.
    unsafe { AGENT.load(Acquire).as_ref() }.filter(|agent| agent.here.load(Relaxed) != 0)
}

/// A forked child that may still read what was paged out at its fork.
struct Child {
    /// The other end is the child's, and its descendants'.
    socket: Fd,
    fork: u64,
    member: MemberId,
}

/// How long the pager's threads may take to end, in nanoseconds.
const RETIRE_NS: u64 = 10_000_000_000;

/// Only the helper thread touches it (and a fork's child, alone).
struct HelperState {
    /// Never longer than [`CHILDREN_MAX`], for which it has room.
    children: Vec<Child>,
    /// Of a fork that is under way: our end of its socket, or where the child can be met.
    pending: Option<Fd>,
    listener: Option<Fd>,
}

/// See the module.
pub struct Agent {
    machine: &'static Machine,
    /// On a page that a fork's child finds empty (MADV_WIPEONFORK): 1 where the agent's threads are.
    here: &'static AtomicU32,
    engine: Engine,
    cluster_pages: usize,
    stacks: HookStacks,
    /// The program's break.
    pub heap_end: AtomicUsize,
    /// What a forked child's own device is made from; nothing if all is compressed memory, of which it has a copy.
    child_device: Option<DeviceSpec>,
    /// The directory of control sockets and the name of this process's; empty: it has none.
    control: ControlPlace,
    // the request slot: one request at a time, of the thread of this id; 0: of none
    slot: AtomicU32,
    request_state: AtomicU32,
    request: UnsafeCell<Request>,
    locked_bytes: AtomicUsize,
    helper: UnsafeCell<HelperState>,
    /// Where a child that has inherited no socket meets the helper thread.
    meeting: UnsafeCell<descriptors::Name>,
    /// Of a forked child: its pager is there, or cannot be.
    born: AtomicU32,
    /// How the last request ended: 0, or an errno.
    answer: AtomicI32,
    // the pager's threads
    daemon_tid: AtomicU32,
    threads_ready: AtomicU32,
    threads_failed: AtomicI32,
    /// How many there are.
    threads: AtomicU32,
    // descriptors in the pager's table that a forked child needs: our ends of the sockets to our ancestors
    ancestors: [AtomicI32; ANCESTORS_MAX],
    /// /dev/userfaultfd, in the pager's table: after a change of users a child can make a userfaultfd in no other way. -1: it
    /// cannot be opened.
    uffd_device: AtomicI32,
    status: &'static Status,
    /// The status block's descriptor, in the pager's table; -1 if `overspill run` holds it.
    status_fd: AtomicI32,
}

/// Where the control socket is to be.
struct ControlPlace {
    /// Empty: there is none.
    directory: Vec<u8>,
    /// Of the process that `overspill run` started, and of no other.
    name: String,
}

impl ControlPlace {
    fn new(supervised: bool) -> Self {
        let directory = std::env::var_os("OVERSPILL_CONTROL").unwrap_or_default().into_encoded_bytes();
        let name = if supervised { variable("OVERSPILL_NAME").unwrap_or_default() } else { String::new() };
        ControlPlace { directory, name }
    }
    fn is_some(&self) -> bool {
        !self.directory.is_empty()
    }
}

// SAFETY: `request` is written by the holder of `slot` before `request_state` says so and read by the helper thread after; `helper`
// is the helper thread's.
unsafe impl Sync for Agent {}

impl Agent {
    /// The program serves the faults of this range itself from now on.
    pub fn hand_over(&'static self, start: usize, end: usize) {
        if self.is_managed(start, end) && self.stacks.run(move || self.machine.keep_in(start, end)) {
            self.ask(Request::HandOver { start, end });
        }
    }

    /// The most that one mmap may populate, in bytes: a quarter of the budget.
    pub fn populatable_bytes(&self) -> usize {
        self.within_reach_bytes() / 4
    }

    /// What this process could have of the budget if it wanted.
    fn within_reach_bytes(&self) -> usize {
        (self.family().within_reach() as usize) << PAGE_SHIFT
    }

    /// Whether some of `start..end` is the pager's own memory.
    pub fn is_the_pagers(&'static self, start: usize, end: usize) -> bool {
        self.stacks.run(move || area::bounds().is_some_and(|(from, to)| start < to && from < end))
    }

    /// Whether the program's anonymous memory in `start..end` fits into the budget besides all that is locked, if it is locked too.
    /// A quarter of the budget is for what is not.
    pub fn may_lock(&'static self, start: usize, end: usize) -> bool {
        self.stacks.run(move || {
            let overlap = |r: &Range| r.end.min(end).saturating_sub(r.start.max(start));
            let more = self.machine.map.read().ranges.iter().map(overlap).sum::<usize>();
            if more == 0 {
                return true;
            }
            let _ = self.ask_here(Request::Locked); // it cannot fail
            let locked = self.locked_bytes.load(Relaxed);
            more.saturating_add(locked) <= self.within_reach_bytes() / 4 * 3
        })
    }

    /// The first of the program's anonymous ranges that ends behind `at`, from there on.
    pub fn next_range(&'static self, at: usize) -> Option<(usize, usize)> {
        self.stacks.run(move || self.machine.map.read().ranges.first(at, usize::MAX).map(|r| (r.start.max(at), r.end)))
    }

    /// The program has unlocked everything, and with it the page of the pager's that must not be swapped by the kernel.
    pub fn lock_keys(&self) {
        self.machine.content.lock_again();
    }

    /// A discard has returned: its pages may be parked again.
    pub fn discarded(&'static self, start: usize, end: usize) {
        self.stacks.run(move || {
            if self.machine.map.read().discards.count.load(Relaxed) != 0 {
                self.machine.discard_done(start, end);
            }
        });
    }

    /// [`Machine::wiped_on_fork`].
    pub fn wiped_on_fork(&'static self, start: usize, end: usize, wiped: bool) -> bool {
        self.stacks.run(move || self.machine.wiped_on_fork(start, end, wiped))
    }

    /// MADV_MERGEABLE: equal pages may become one.
    pub fn may_merge(&self) {
        self.machine.may_share_pages();
    }

    /// MADV_GUARD_INSTALL is about to be called: [`Machine::begin_guard`].
    pub fn begin_guard(&'static self, start: usize, end: usize) -> Option<bool> {
        self.stacks.run(move || self.machine.begin_guard(start, end))
    }

    /// It has put guard pages there.
    pub fn guarded(&'static self, start: usize, end: usize) {
        self.stacks.run(move || self.machine.guarded(start, end));
    }

    /// There are none.
    pub fn unguarded(&'static self, start: usize, end: usize) {
        self.stacks.run(move || self.machine.unguarded(start, end));
    }

    /// It has put none there, and others may be there.
    pub fn not_guarded(&'static self, start: usize, end: usize) {
        self.stacks.run(move || self.machine.not_guarded(start, end));
    }

    /// Pages that the kernel may need when it cannot wait for them. An address that no program can have is none of ours.
    pub fn wire(&'static self, at: usize, len: usize) {
        if at != 0 && at < ADDRESSES_END {
            self.stacks.run(move || self.machine.wire_addresses(ObjectId(0), 0, at, at + len));
        }
    }

    /// What the pager's threads may do follows what this thread of the program's may do: it has given something up.
    pub fn follow(&'static self, ruleset: Option<i32>) {
        if self.is_its_process() {
            self.stacks.run(move || {
                let _ = self.ask_here_with(|| {
                    // SAFETY: a round is part of a request, and no other begins while the slot is ours.
                    if let Err(e) = unsafe { self.machine.host.following.rights() }.read() {
                        self.cannot_follow(e);
                    }
                    Request::Follow { tid: sys::gettid(), ruleset }
                });
            });
        }
    }

    /// Whether some of `start..end` is managed.
    pub fn is_managed(&'static self, start: usize, end: usize) -> bool {
        self.stacks.run(move || self.machine.map.read().ranges.overlap(start, end, Kind::Managed).is_some())
    }

    /// Whether this is the pager's process, and not one that only shares its memory (vfork, CLONE_VM).
    pub fn is_its_process(&self) -> bool {
        self.status.pid.load(Relaxed) == sys::getpid()
    }

    /// Whether the program has this thread only.
    pub fn is_only_thread(&self) -> bool {
        sys::thread_count_without_workers() == Ok(self.own_threads() + 1)
    }

    /// How many threads of this process are the pager's.
    pub fn own_threads(&self) -> u32 {
        self.threads.load(Relaxed)
    }

    /// Its machine.
    pub fn machine(&self) -> &'static Machine {
        self.machine
    }

    /// Stacks for hooks.
    pub fn stacks(&self) -> &HookStacks {
        &self.stacks
    }

    /// How the pager's I/O is issued.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// The pager goes, and leaves the program to itself, if the kernel has all of its memory: nothing was paged yet. Returns
    /// whether it has gone. => the program has one thread
    pub fn leave(&'static self) -> bool {
        self.stacks.run(move || {
            if self.machine.map.read().ranges.overlap(0, usize::MAX, Kind::Managed).is_some() {
                return false;
            }
            AGENT.store(core::ptr::null_mut(), Release);
            let _ = self.ask_here(Request::Leave);
            let start = sys::now_ns();
            while sys::thread_count() != Ok(1) {
                if sys::now_ns() - start > RETIRE_NS {
                    self.stop("the program was stopped: its pager was to end, as the program confines itself, and did not");
                }
                futex_wait(&AtomicU32::new(0), 0, 100_000);
            }
            true
        })
    }

    /// Ends the program, with a message.
    pub fn stop(&self, why: &str) -> ! {
        self.machine.stop_program(why.as_bytes())
    }

    /// A thread of the pager's may do more than the program, and it cannot be helped.
    pub fn cannot_follow(&self, error: Errno) -> ! {
        let mut line = Packet::new();
        let _ = write!(
            line,
            "the program was stopped: it has given rights up, and a thread of its pager could not do the same (error {error}), so whoever takes the \
             program over would still have them"
        );
        self.machine.stop_program(line.bytes())
    }

    fn family(&self) -> &'static Family {
        self.machine.host.family.as_ref().expect("the agent's machine has one")
    }
}

//! The agent: a machine, its threads, and the requests of hooks.
//!
//! ```text
//!   start     reads the environment and starts the pager, or ends with one message
//!   threads   one handler for each CPU, the page daemon, the control thread: bare threads with descriptors of their own
//!   helper    the helper thread uses those descriptors for the program's threads
//!   fork      gives a child a pager of its own
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
use overspill_linux::spinner::Spinner;
use overspill_linux::sys::{self, Errno, Fd, futex_wait};
use overspill_machine::waited::Waited;
use overspill_vm::FRAMES_SLACK;
use overspill_vm::status::{Outcome, Status};
use overspill_vm::types::{ObjectId, PAGE_SHIFT, PAGE_SIZE};

mod fork;
mod helper;
mod start;
mod threads;

pub use helper::Request;
pub use start::{no_memory, start};

use fork::ANCESTORS_MAX;
use start::variable;

static AGENT: AtomicPtr<Agent> = AtomicPtr::new(core::ptr::null_mut());

/// The agent, once it serves. `None` in a child that was forked without libc: it has a copy of the agent, but none of its threads.
pub fn get() -> Option<&'static Agent> {
    // SAFETY: set once to a leaked agent. Acquire pairs with the Release in `start`.
    unsafe { AGENT.load(Acquire).as_ref() }.filter(|agent| agent.here.load(Relaxed) != 0)
}

/// A forked child that may still read pages that were out at its fork.
struct Child {
    /// The child and its descendants have the other end.
    socket: Fd,
    fork: u64,
    member: MemberId,
}

/// The longest range that is handed over, in bytes: its pages are looked at one by one.
const HAND_OVER_MAX: usize = 64 << 30;

/// How long the pager's threads may take to end, in nanoseconds.
const RETIRE_NS: u64 = 10_000_000_000;

/// Only the helper thread touches it (and a fork's child, alone).
struct HelperState {
    /// Never longer than [`CHILDREN_MAX`], for which it has room.
    children: Vec<Child>,
    /// Of a fork that is under way: our end of its socket, or the socket to which the child will connect.
    pending: Option<Fd>,
    listener: Option<Fd>,
}

/// See the module.
pub struct Agent {
    machine: &'static Machine,
    /// 1 in the process that has the agent's threads. The page is wiped in a fork's child (MADV_WIPEONFORK).
    here: &'static AtomicU32,
    engine: Engine,
    cluster_pages: usize,
    stacks: HookStacks,
    /// The program's break.
    pub heap_end: AtomicUsize,
    /// Describes the device that a forked child makes; `None` if all is compressed memory, of which the child has a copy.
    child_device: Option<DeviceSpec>,
    /// The directory of control sockets, and the name of this process; empty: there is no socket.
    control: ControlPlace,
    // the request slot: the id of the thread whose request it has; 0: free
    slot: AtomicU32,
    request_state: AtomicU32,
    request: UnsafeCell<Request>,
    /// Whether the holder of `slot` polls for the answer.
    spinner: UnsafeCell<Spinner>,
    locked_bytes: AtomicUsize,
    helper: UnsafeCell<HelperState>,
    /// The name of the socket at which a child that has inherited none finds the helper thread.
    meeting: UnsafeCell<descriptors::Name>,
    /// In a forked child, 1: its pager works, or could not be set up.
    born: AtomicU32,
    /// The result of the last request: 0, or an errno.
    answer: AtomicI32,
    /// What PR_GET_THP_DISABLE told before a fork; -1: it was left alone. => the helper thread, and the first one of a child
    huge_pages: AtomicI32,
    // the pager's threads
    daemon_tid: AtomicU32,
    threads_ready: AtomicU32,
    threads_failed: AtomicI32,
    /// The number of the pager's threads.
    threads: AtomicU32,
    // descriptors in the pager's table that a forked child needs: our ends of the sockets to our ancestors
    ancestors: [AtomicI32; ANCESTORS_MAX],
    /// /dev/userfaultfd, in the pager's table; -1 if it cannot be opened. After a change of users a child can make a userfaultfd in
    /// no other way.
    uffd_device: AtomicI32,
    status: &'static Status,
    /// The status block's descriptor, in the pager's table; -1 if `overspill run` holds it.
    status_fd: AtomicI32,
}

/// The place of the control socket.
struct ControlPlace {
    /// Empty: there is no socket.
    directory: Vec<u8>,
    /// The name from `--name`, in the process that `overspill run` started; empty in others.
    name: String,
}

impl ControlPlace {
    fn new(supervised: bool) -> Self {
        let directory = std::env::var_os("OVERSPILL_CONTROL").unwrap_or_default().into_encoded_bytes();
        let name = if supervised { variable("OVERSPILL_NAME").unwrap_or_default() } else { String::new() };
        ControlPlace { directory, name }
    }
}

// SAFETY: `request` is written by the holder of `slot` before `request_state` says so and read by the helper thread after; only
// that holder uses `spinner`; `helper` is the helper thread's.
unsafe impl Sync for Agent {}

impl Agent {
    /// Leaves this range to the program, which serves its faults itself from now on. Returns whether some of it was managed.
    ///
    /// In pieces: what is left to the program is not counted, but what has been brought in before is.
    pub fn hand_over(&'static self, start: usize, end: usize) -> bool {
        let mut at = start;
        while let Some(until) = self.stacks.run(move || self.keep_piece_in(at, end)) {
            self.ask(Request::HandOver { start: at, end: until });
            at = until;
        }
        at > start
    }

    /// To be called when the program has a userfaultfd: from now on no page is filled before it is touched. (It would be there when
    /// the program registers it.)
    pub fn fill_alone(&'static self) {
        self.stacks.run(move || self.machine.core.lock().vm.fill_alone());
    }

    /// Brings in the first managed pages in `start..end`, to stay: an eighth of the budget at most. Returns where they end; `None`
    /// if there are none, or if a page cannot be read or the range is too long.
    fn keep_piece_in(&self, start: usize, end: usize) -> Option<usize> {
        let range = self.machine.map.read().ranges.overlap(start, end, Kind::Managed)?.within(start, end);
        let most = (self.within_reach_bytes() / 8).max(1 << 20) & !(PAGE_SIZE - 1);
        let until = range.end.min(range.start.saturating_add(most));
        (range.end - range.start <= HAND_OVER_MAX && self.machine.keep_in(range.start, until)).then_some(until)
    }

    /// Whether one mmap may populate so many bytes: a quarter of the budget, if they fit without paging, or few. (Present pages for
    /// which the pager has no frames would not be counted.)
    pub fn may_populate(&'static self, bytes: usize) -> bool {
        self.stacks.run(move || {
            let pages = bytes >> PAGE_SHIFT;
            bytes <= self.within_reach_bytes() / 4 && (pages <= FRAMES_SLACK / 2 || self.machine.fits(pages as u64))
        })
    }

    /// The part of the budget that this process can have if it wants more.
    fn within_reach_bytes(&self) -> usize {
        (self.family().within_reach() as usize) << PAGE_SHIFT
    }

    /// Whether some of `start..end` is the pager's own memory.
    pub fn is_the_pagers(&'static self, start: usize, end: usize) -> bool {
        self.stacks.run(move || area::bounds().is_some_and(|(from, to)| start < to && from < end))
    }

    /// Whether the program's anonymous memory in `start..end` may be locked: all locked memory must fit into three quarters of the
    /// budget.
    pub fn may_lock(&'static self, start: usize, end: usize) -> bool {
        self.stacks.run(move || {
            let overlap = |r: &Range| r.end.min(end).saturating_sub(r.start.max(start));
            let more = self.machine.map.read().ranges.iter().map(overlap).sum::<usize>();
            more == 0 || self.may_lock_more_here(more)
        })
    }

    /// The same for memory that is not mapped yet, in bytes.
    pub fn may_lock_more(&'static self, bytes: usize) -> bool {
        self.stacks.run(move || self.may_lock_more_here(bytes))
    }

    fn may_lock_more_here(&'static self, bytes: usize) -> bool {
        let _ = self.ask_here(Request::Locked); // it cannot fail
        let locked = self.locked_bytes.load(Relaxed);
        bytes.saturating_add(locked) <= self.within_reach_bytes() / 4 * 3
    }

    /// The part from `at` on of the program's first anonymous range that ends behind `at`.
    pub fn next_range(&'static self, at: usize) -> Option<(usize, usize)> {
        self.stacks.run(move || self.machine.map.read().ranges.first(at, usize::MAX).map(|r| (r.start.max(at), r.end)))
    }

    /// Locks the page of keys again, which the kernel must not swap, after the program has unlocked all memory.
    pub fn lock_keys(&self) {
        self.machine.content.lock_again();
    }

    /// [`Machine::begin_discard`].
    pub fn begin_discard(&'static self, start: usize, end: usize) {
        self.stacks.run(move || self.machine.begin_discard(start, end));
    }

    /// [`Machine::discard_done`].
    pub fn discarded(&'static self, start: usize, end: usize) {
        self.stacks.run(move || self.machine.discard_done(start, end));
    }

    /// [`Machine::wiped_on_fork`].
    pub fn wiped_on_fork(&'static self, start: usize, end: usize, wiped: bool) -> bool {
        self.stacks.run(move || self.machine.wiped_on_fork(start, end, wiped))
    }

    /// To be called at MADV_MERGEABLE: from now on the kernel may merge equal pages.
    pub fn may_merge(&self) {
        self.machine.may_share_pages();
    }

    /// To be called before MADV_GUARD_INSTALL: [`Machine::begin_guard`].
    pub fn begin_guard(&'static self, start: usize, end: usize) -> Option<bool> {
        self.stacks.run(move || self.machine.begin_guard(start, end))
    }

    /// [`Machine::guarded`].
    pub fn guarded(&'static self, start: usize, until: usize, end: usize, before: bool) {
        self.stacks.run(move || self.machine.guarded(start, until, end, before));
    }

    /// There are no guard pages there.
    pub fn unguarded(&'static self, start: usize, end: usize) {
        self.stacks.run(move || self.machine.unguarded(start, end));
    }

    /// Wires pages that the kernel may need when it cannot wait for them. Ignores addresses that no program can have.
    pub fn wire(&'static self, at: usize, len: usize) {
        if at != 0 && at < ADDRESSES_END {
            self.stacks.run(move || self.machine.wire_addresses(ObjectId(0), 0, at, at + len));
        }
    }

    /// Gives the pager's threads the rights of the calling thread of the program, which has given some up.
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

    /// The program is about to confine itself: the process leaves what it shares with its kin. (Once: under a filter the pager's
    /// threads may not be able to follow.)
    pub fn leave_kin(&'static self) {
        if self.family().shares_cache() {
            self.follow(None);
        }
    }

    /// Whether `start..end` lies in one of the program's anonymous ranges.
    pub fn is_in_a_range(&'static self, start: usize, end: usize) -> bool {
        self.stacks.run(move || self.machine.map.read().ranges.find(start).is_some_and(|range| end <= range.end))
    }

    /// Whether this is the pager's process, and not one that only shares its memory (vfork, CLONE_VM).
    pub fn is_its_process(&self) -> bool {
        self.status.pid.load(Relaxed) == sys::getpid()
    }

    /// Whether the program has one thread (or none but its first, which has ended).
    pub fn is_only_thread(&self) -> bool {
        // a program that may open no more files has its threads counted all the same, io_uring's among them
        sys::thread_count_without_workers().or_else(|_| sys::thread_count()) == Ok(self.own_threads() + 1)
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

    /// Whether any memory of the program is managed.
    pub fn manages(&'static self) -> bool {
        self.stacks.run(|| self.has_managed())
    }

    /// => on a stack of the agent's
    fn has_managed(&self) -> bool {
        self.machine.map.read().ranges.overlap(0, usize::MAX, Kind::Managed).is_some()
    }

    /// Ends the pager, so that the program goes on without it, if no memory of the program is managed yet; `why` is for the user,
    /// if it is not likely that another program follows by exec. Returns whether it has ended. => the program has one thread
    pub fn leave(&'static self, why: Option<&'static str>) -> bool {
        self.stacks.run(move || {
            if self.has_managed() {
                return false;
            }
            if let Some(why) = why {
                self.status.message.set(why.as_bytes());
                self.status.outcome.store(Outcome::Left as u32, Release);
            }
            AGENT.store(core::ptr::null_mut(), Release);
            self.family().shun_cache();
            let _ = self.ask_here(Request::Leave);
            let mut waited = Waited::new(sys::now_ns());
            while sys::thread_count() != Ok(1) {
                if waited.look(sys::now_ns()) > RETIRE_NS {
                    self.stop("the program was stopped: its pager was to end, as the program confines itself, and did not");
                }
                futex_wait(&AtomicU32::new(0), 0, 100_000);
            }
            if let Err(e) = self.family().leave_cache() {
                self.cannot_follow(e);
            }
            true
        })
    }

    /// Ends the program, with a message.
    pub fn stop(&self, why: &str) -> ! {
        self.machine.stop_program(why.as_bytes())
    }

    /// Stops the program because a pager thread has more rights than the program and cannot give them up.
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

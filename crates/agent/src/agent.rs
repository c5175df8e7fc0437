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
use overspill_linux::family::shares::Tag;
use overspill_linux::io::Engine;
use overspill_linux::machine::Machine;
use overspill_linux::native::{Piece, Pieces};
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

/// A system call that unmaps, replaces or moves memory, and has not been made yet.
#[derive(Clone, Copy)]
pub struct Remap {
    /// What of it was left to the kernel.
    pub native: [Pieces; 2],
    managed: bool,
}

/// Mappings that lie side by side and are alike: where each begins.
#[derive(Clone, Copy)]
pub struct Alike {
    starts: [usize; ALIKE_MAX],
    count: usize,
}

impl Alike {
    /// In order.
    pub fn starts(&self) -> &[usize] {
        &self.starts[..self.count]
    }
}

/// More are rarely in one call. The list is on the program's stack.
const ALIKE_MAX: usize = 32;

/// There are some forty flags of two letters; few of them are set.
const FLAGS_LEN: usize = 128;

/// Of the flags of a mapping (VmFlags) those that set it apart: not whether it is registered with a userfaultfd (um, uw, ui), nor
/// whether it was written to (sd), or has had guards (gu).
fn what_sets_apart(flags: &[u8]) -> [u8; FLAGS_LEN] {
    let (mut kept, mut len) = ([0; FLAGS_LEN], 0);
    for flag in flags.split(|&byte| byte == b' ').filter(|flag| !matches!(*flag, [] | [b'u', ..] | b"sd" | b"gu")) {
        for &byte in flag.iter().chain(b" ") {
            if let Some(next) = kept.get_mut(len) {
                (*next, len) = (byte, len + 1);
            }
        }
    }
    kept
}

/// See [`Agent::in_parts`].
pub struct Parts(&'static Agent);

impl Drop for Parts {
    fn drop(&mut self) {
        let agent = self.0;
        agent.stacks.run(move || agent.machine.end_parts());
    }
}

/// No range.
pub const NOTHING: (usize, usize) = (0, 0);

/// A forked child that may still read what was paged out at its fork.
struct Child {
    /// The other end is the child's, and its descendants'.
    socket: Fd,
    fork: u64,
    member: Tag,
}

/// Where a program's addresses end, less a page: as TASK_SIZE.
pub const ADDRESSES_END: usize = (1 << 47) - 4096;

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
    /// A new anonymous private range of the program's.
    pub fn new_range(&'static self, piece: Piece) {
        if piece.start < piece.end && !self.stacks.run(move || self.machine.try_native(piece)) {
            self.ask(Request::Add(piece));
        }
    }

    /// The program has a new mapping that is not for the pager.
    pub fn not_ours(&'static self, start: usize, end: usize) {
        if self.stacks.run(move || self.machine.map.read().ranges.first(start, end).is_some()) {
            self.ask(Request::NotOurs { start, end });
        }
    }

    /// The program serves the faults of this range itself from now on.
    pub fn hand_over(&'static self, start: usize, end: usize) {
        if self.is_managed(start, end) && self.stacks.run(move || self.machine.keep_in(start, end)) {
            self.ask(Request::HandOver { start, end });
        }
    }

    /// The native ranges in `start..end` are managed from now on.
    pub fn adopt(&'static self, start: usize, end: usize) {
        if self.stacks.run(move || self.machine.map.read().ranges.overlap(start, end, Kind::Native).is_some()) {
            self.ask(Request::Adopt { start, end });
        }
    }

    /// Whether all of `start..end` is the program's anonymous memory, without a gap.
    pub fn is_known(&'static self, start: usize, end: usize) -> bool {
        self.stacks.run(move || self.machine.map.read().ranges.covers(start, end))
    }

    /// What is in the first range is about to be moved, and to grow by so many bytes, and what is in the second to be unmapped or
    /// replaced: [`Machine::take_native`], [`Machine::begin_remap`].
    pub fn begin_remap(&'static self, ranges: [(usize, usize); 2], grows: usize) -> Remap {
        loop {
            let (remap, may) = self.stacks.run(move || {
                let native = ranges.map(|(start, end)| {
                    self.machine.take_native(start, end).unwrap_or_else(|| {
                        let _ = self.ask_here(Request::Adopt { start, end }); // it cannot fail
                        Pieces::default()
                    })
                });
                let managed = self.machine.begin_remap(ranges, grows);
                (Remap { native, managed: managed == Some(true) }, managed.is_some())
            });
            if may {
                return remap;
            }
            self.end_remap(remap, false); // not yet
            self.machine.await_others();
        }
    }

    /// What follows until this is dropped is to be one call, also for a fork.
    pub fn in_parts(&'static self) -> Parts {
        while !self.stacks.run(move || self.machine.begin_parts()) {
            self.machine.await_others();
        }
        Parts(self)
    }

    /// It was, or the kernel has refused the call.
    pub fn end_remap(&'static self, remap: Remap, done: bool) {
        if remap.managed || remap.native.iter().any(|pieces| !pieces.is_empty()) {
            self.stacks.run(move || {
                if remap.managed {
                    self.machine.end_remap(done);
                }
                for pieces in remap.native.iter().filter(|pieces| !pieces.is_empty()) {
                    if done {
                        self.machine.gone(pieces);
                        continue;
                    }
                    for piece in pieces.iter().filter(|piece| !self.machine.put_back(piece)) {
                        let _ = self.ask_here(Request::Add(*piece)); // it cannot fail
                    }
                }
            });
        }
    }

    /// The part of the first mapping in `start..end` that lies there. None also if that cannot be asked (RLIMIT_NOFILE).
    pub fn mapping(&'static self, start: usize, end: usize) -> Option<(usize, usize)> {
        self.stacks.run(move || {
            let mut found = None;
            let asked = sys::each_mapping(|from, to| {
                if found.is_none() && from < end && start < to {
                    found = Some((from.max(start), to.min(end)));
                }
            });
            found.filter(|_| asked.is_ok())
        })
    }

    /// The mappings that `start..end` is made of, if all of it is managed and they are alike in all that Linux looks at before it
    /// makes two one, but for how their pages were brought in.
    pub fn alike(&'static self, start: usize, end: usize) -> Option<Alike> {
        self.stacks.run(move || {
            {
                let map = self.machine.map.read();
                if !map.ranges.covers(start, end) || map.ranges.overlap(start, end, Kind::Native).is_some() {
                    return None;
                }
            }
            let (mut alike, mut fits, mut flags) = (Alike { starts: [0; ALIKE_MAX], count: 0 }, true, [0; FLAGS_LEN]);
            let mut at = start; // (there may be a hole of which nobody has heard)
            let asked = sys::each_mapping_flags(|from, to, text| {
                if from >= end || to <= start {
                    return;
                }
                let these = what_sets_apart(text);
                fits &= from <= at && alike.count < ALIKE_MAX && (alike.count == 0 || these == flags);
                if fits {
                    alike.starts[alike.count] = at;
                    alike.count += 1;
                    (at, flags) = (to, these);
                }
            });
            (asked.is_ok() && fits && at >= end).then_some(alike)
        })
    }

    /// Whether one mremap(2) moves several mappings: Linux 6.17.
    pub fn kernel_moves_several(&'static self) -> bool {
        self.stacks.run(|| sys::kernel_version() >= (6, 17))
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
        self.machine.shares_pages.store(true, Relaxed);
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

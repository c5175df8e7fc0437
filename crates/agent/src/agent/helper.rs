//! The helper thread uses the pager's descriptors for the program's threads, one request at a time. It also watches for the end of
//! forked children.

use super::{Agent, Child, HelperState};
use core::sync::atomic::Ordering::*;
use overspill_linux::family::Family;
use overspill_linux::family::shares::MemberId;
use overspill_linux::io::Spun;
use overspill_linux::mappings;
use overspill_linux::mremap::Change;
use overspill_linux::sys::{self, Errno, futex_wait, futex_wake};

/// A request to the helper thread.
#[derive(Clone, Copy)]
pub enum Request {
    /// Make a change for a hook.
    Perform(Change),
    /// Leave the managed memory in this range to the kernel from now on: [`Machine::hand_over`].
    HandOver { start: usize, end: usize },
    /// Give the pager's threads the rights of the program's thread `tid`, which has given some up, perhaps by this Landlock
    /// ruleset.
    Follow { tid: u32, ruleset: Option<i32> },
    /// End all of the pager's threads.
    Leave,
    /// Before a fork: make room for a child, this member of the family, with as much memory as is charged to this process.
    Shrink { member: MemberId },
    /// Before a fork: make room for a device of the child's.
    MakeRoom,
    /// Before a fork: send the descriptors that the child needs through `socket`, a descriptor of thread `tid`.
    Send { socket: i32, tid: u32 },
    /// Before a fork, if sending fails: listen, so that the child can connect.
    Listen,
    /// After a fork: watch the child, which is this member of the family.
    Child { pid: u32, fork: u64, member: MemberId },
    /// After a fork that failed: forget the socket, and take the child's part back.
    NoChild { member: MemberId },
    /// Store in `locked_bytes` how much of the process's memory is locked.
    Locked,
}

/// The most children that are watched at a time. Their table is only address space until it is used.
pub(super) const CHILDREN_MAX: usize = 1 << 16;

/// The interval at which children are checked while there are few, in nanoseconds.
const WATCH_NS: u64 = 5_000_000;

/// How long a thread polls for the helper thread's answer before it sleeps, in nanoseconds: the helper thread wakes on another CPU
/// (some 25 us on a virtual machine) and mostly needs 10. A thread that slept would be woken on another CPU in turn, away from the
/// handler that serves its faults.
const ANSWER_POLL_NS: u64 = 60_000;

/// The interval at which a thread that waits for the slot checks whether the slot's owner still lives, in nanoseconds.
const SLOT_POLL_NS: u64 = 20_000_000;

pub(super) const IDLE: u32 = 0;

const ASKED: u32 = 1;

const ANSWERED: u32 = 2;

impl Agent {
    /// Sends a request to the helper thread and waits for its end.
    pub fn ask(&'static self, request: Request) {
        self.stacks.run(move || _ = self.ask_here(request));
    }

    /// As [`Agent::ask`]; returns the result.
    ///
    /// => on a hook stack
    pub fn ask_here(&self, request: Request) -> Result<(), Errno> {
        self.ask_here_with(|| request)
    }

    /// => on a hook stack
    pub(super) fn ask_here_with(&self, request: impl FnOnce() -> Request) -> Result<(), Errno> {
        self.take_slot();
        let request = request();
        // SAFETY: the slot is ours and the helper thread is idle.
        unsafe { *self.request.get() = request };
        self.request_state.store(ASKED, Release);
        futex_wake(&self.request_state, i32::MAX as u32);
        let answered = || self.request_state.load(Acquire) == ANSWERED;
        // SAFETY: the slot is ours.
        let spinner = unsafe { &mut *self.spinner.get() };
        if spinner.due() {
            let until = sys::now_ns() + ANSWER_POLL_NS;
            while !answered() && sys::now_ns() < until {
                core::hint::spin_loop();
            }
            spinner.note(if answered() { Spun::Found } else { Spun::InVain });
        }
        while !answered() {
            futex_wait(&self.request_state, ASKED, u64::MAX);
        }
        let answer = self.answer.load(Relaxed);
        self.request_state.store(IDLE, Relaxed);
        self.slot.store(0, Release);
        futex_wake(&self.slot, 1);
        if answer == 0 { Ok(()) } else { Err(answer) }
    }

    /// The slot holds a thread id in place of a lock: a process that shares the memory (CLONE_VM) may be killed while it asks, and
    /// would hold a lock for ever.
    fn take_slot(&self) {
        let me = sys::gettid();
        while let Err(owner) = self.slot.compare_exchange(0, me, Acquire, Relaxed) {
            futex_wait(&self.slot, owner, SLOT_POLL_NS);
            let dead = self.slot.load(Relaxed) == owner && !sys::shares_memory(owner);
            if dead && self.slot.compare_exchange(owner, me, Acquire, Relaxed).is_ok() {
                break;
            }
        }
        // wait for the end of a request that a dead thread has made
        while self.request_state.load(Acquire) == ASKED {
            futex_wait(&self.request_state, ASKED, u64::MAX);
        }
    }

    pub(super) fn help(&self) {
        while !self.machine.shutdown.has_begun() {
            // SAFETY: this thread is the helper thread.
            let state = unsafe { &mut *self.helper.get() };
            let asked = self.request_state.load(Acquire);
            if asked != ASKED {
                // checking takes a hundredth of a CPU at most, however many children there are
                let pause = WATCH_NS * (1 + state.children.len() as u64 / 64);
                futex_wait(&self.request_state, asked, if state.children.is_empty() { u64::MAX } else { pause });
            }
            self.watch(state);
            if self.request_state.load(Acquire) != ASKED {
                continue;
            }
            let mut result = Ok(());
            // SAFETY: the thread that asks has written it before it set ASKED, and waits.
            match unsafe { *self.request.get() } {
                Request::Perform(change) => self.machine.perform(change),
                Request::HandOver { start, end } => self.machine.hand_over(start, end),
                Request::Follow { tid, ruleset } => self.follow_all(ruleset.map(|fd| (tid, fd))),
                Request::Leave => {
                    self.machine.shutdown.begin();
                    self.machine.host.following.wake();
                    self.call();
                }
                Request::Shrink { member } => {
                    self.shrink(member);
                    self.forbid_collapse();
                }
                Request::MakeRoom => self.make_room(),
                Request::Send { socket, tid } => result = self.send_descriptors(state, socket, tid),
                Request::Listen => result = self.listen(state),
                Request::Child { pid, fork, member } => {
                    self.let_collapse();
                    let socket = state.pending.take().or_else(|| self.meet(state, pid));
                    match socket {
                        Some(socket) => state.children.push(Child { socket, fork, member }),
                        None => self.child_gone(fork, member),
                    }
                    self.machine.ring_daemon(); // others may have asked it for memory meanwhile
                }
                Request::NoChild { member } => {
                    self.let_collapse();
                    (state.pending, state.listener) = (None, None);
                    let (map, mut core) = (self.machine.map.read(), self.machine.core.lock());
                    self.family().take_back(member, &map, &mut core);
                    drop((map, core));
                    self.machine.ring_daemon();
                }
                Request::Locked => self.locked_bytes.store(mappings::fixed().map_or(0, |fixed| fixed.locked as usize), Relaxed),
            }
            self.answer.store(result.err().unwrap_or(0), Relaxed);
            self.request_state.store(ANSWERED, Release);
            futex_wake(&self.request_state, i32::MAX as u32);
        }
    }

    /// Wakes all of the pager's threads. => the helper thread
    pub(super) fn call(&self) {
        let machine = self.machine;
        machine.host.wake_policy.call_everyone();
        let _ = sys::write(machine.shutdown.event(), &1u64.to_ne_bytes());
        machine.ring_daemon();
    }

    /// => the helper thread
    fn follow_all(&self, landlock: Option<(u32, i32)>) {
        let machine = self.machine;
        // SAFETY: the helper thread does one request after the other, and the thread that asked waits.
        let result = unsafe { machine.host.follow(landlock, || self.call()) };
        let _ = sys::read(machine.shutdown.event(), &mut [0; 8]);
        if let Err(e) = result {
            self.cannot_follow(e);
        }
    }

    /// Checks for children that have ended, and frees the slots that they alone could read. (Their part of the budget is free
    /// already.)
    fn watch(&self, state: &mut HelperState) {
        let mut at = 0;
        while let Some(child) = state.children.get(at) {
            if !sys::is_readable(child.socket.raw()) {
                at += 1;
                continue;
            }
            let child = state.children.swap_remove(at);
            self.child_gone(child.fork, child.member);
        }
    }

    pub(super) fn child_gone(&self, fork: u64, member: MemberId) {
        self.family().bury(member);
        self.machine.child_gone(fork);
        Family::take_if_alone(self.machine);
    }
}

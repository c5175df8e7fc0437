//! The helper thread: does for the program's threads what needs the pager's descriptors, one request at a time, and watches for the
//! end of forked children.

use super::{Agent, Child, HelperState};
use core::sync::atomic::Ordering::*;
use overspill_linux::family::Family;
use overspill_linux::family::shares::MemberId;
use overspill_linux::mappings;
use overspill_linux::mremap::Change;
use overspill_linux::sys::{self, Errno, futex_wait, futex_wake};

/// What the helper thread is asked for.
#[derive(Clone, Copy)]
pub enum Request {
    /// What a hook needs.
    Perform(Change),
    /// What is managed here is the kernel's from now on: [`Machine::hand_over`].
    HandOver { start: usize, end: usize },
    /// The program's thread of this id may do less now, and perhaps has confined itself by this Landlock ruleset: so may the
    /// pager's threads.
    Follow { tid: u32, ruleset: Option<i32> },
    /// All of the pager's threads are to end.
    Leave,
    /// A fork is about to happen: there must be room for a child with all that is charged to this process.
    Shrink,
    /// The same: there must be an entry for a device of the child's.
    MakeRoom,
    /// The same: take `socket`, a descriptor of thread `tid`, and send what the child needs through it.
    Send { socket: i32, tid: u32 },
    /// The same, where that cannot be: be there to be met by the child.
    Listen,
    /// The child is there, by that fork of the pager's, as that member of the family.
    Child { pid: u32, fork: u64, member: MemberId },
    /// There is none.
    NoChild,
    /// How much of the process's memory is locked: to `locked_bytes`.
    Locked,
}

/// Children that are watched at a time: their table is address space until it is used.
pub(super) const CHILDREN_MAX: usize = 1 << 16;

/// How often they are looked at while there are few, in nanoseconds.
const WATCH_NS: u64 = 5_000_000;

/// How often a thread that waits for the slot looks whether its owner is still alive, in nanoseconds.
const SLOT_POLL_NS: u64 = 20_000_000;

pub(super) const IDLE: u32 = 0;

const ASKED: u32 = 1;

const ANSWERED: u32 = 2;

impl Agent {
    /// Has the helper thread do something and waits for it.
    pub fn ask(&'static self, request: Request) {
        self.stacks.run(move || _ = self.ask_here(request));
    }

    /// As [`Agent::ask`]; returns how it ended.
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
        while self.request_state.load(Acquire) != ANSWERED {
            futex_wait(&self.request_state, ASKED, u64::MAX);
        }
        let answer = self.answer.load(Relaxed);
        self.request_state.store(IDLE, Relaxed);
        self.slot.store(0, Release);
        futex_wake(&self.slot, 1);
        if answer == 0 { Ok(()) } else { Err(answer) }
    }

    /// No lock: a process that shares the memory (CLONE_VM) may be killed while it asks, and would hold it for ever.
    fn take_slot(&self) {
        let me = sys::gettid();
        while let Err(owner) = self.slot.compare_exchange(0, me, Acquire, Relaxed) {
            futex_wait(&self.slot, owner, SLOT_POLL_NS);
            let dead = self.slot.load(Relaxed) == owner && !sys::shares_memory(owner);
            if dead && self.slot.compare_exchange(owner, me, Acquire, Relaxed).is_ok() {
                break;
            }
        }
        // what a dead one has asked for
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
                // a hundredth of a CPU goes to that at most, however many there are
                let pause = WATCH_NS * (1 + state.children.len() as u64 / 64);
                futex_wait(&self.request_state, asked, if state.children.is_empty() { u64::MAX } else { pause });
            }
            self.watch(state);
            if self.request_state.load(Acquire) != ASKED {
                continue;
            }
            let mut result = Ok(());
            // SAFETY: the asker has written it before it said so, and waits.
            match unsafe { *self.request.get() } {
                Request::Perform(change) => self.machine.perform(change),
                Request::HandOver { start, end } => self.machine.hand_over(start, end),
                Request::Follow { tid, ruleset } => self.follow_all(ruleset.map(|fd| (tid, fd))),
                Request::Leave => {
                    self.machine.shutdown.begin();
                    self.machine.host.following.wake();
                    self.call();
                }
                Request::Shrink => self.shrink(),
                Request::MakeRoom => self.make_room(),
                Request::Send { socket, tid } => result = self.send_descriptors(state, socket, tid),
                Request::Listen => result = self.listen(state),
                Request::Child { pid, fork, member } => {
                    let socket = state.pending.take().or_else(|| self.meet(state, pid));
                    match socket {
                        Some(socket) => state.children.push(Child { socket, fork, member }),
                        None => self.child_gone(fork, member),
                    }
                }
                Request::NoChild => (state.pending, state.listener) = (None, None),
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
        machine.host.wake_policy.end_same_cpu();
        let _ = sys::write(machine.shutdown.event(), &1u64.to_ne_bytes());
        machine.host.wake_policy.call_everyone();
        machine.ring_daemon();
    }

    /// => the helper thread
    fn follow_all(&self, landlock: Option<(u32, i32)>) {
        let machine = self.machine;
        // SAFETY: the helper thread does one thing after the other, and who asked for it waits.
        let result = unsafe { machine.host.following.all(landlock, || self.call()) };
        let _ = sys::read(machine.shutdown.event(), &mut [0; 8]);
        if let Err(e) = result {
            self.cannot_follow(e);
        }
    }

    /// The end of children: the slots that they alone could read are free. (What they had of the budget is free already.)
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

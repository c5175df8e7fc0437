//! The wake policy says which handlers wait for messages: one, bound to no CPU, or all of them, each bound to its own.
//!
//! The kernel wakes every thread that polls a userfaultfd for every fault, and a wake across CPUs costs more than serving the fault
//! (10 to 60 us on a virtual machine). So as long as only one thread of the program faults, only one handler polls, and the others
//! sleep. The one that polls is bound to no CPU, so that the scheduler can put it on a CPU that is awake. (When it was bound to the
//! CPU on which the faulting thread had last run, random page-ins took a fifth longer. When the handler has answered, that CPU is
//! still busy with the handler, so the kernel wakes the program on another one.) Once two threads fault alternately, all handlers
//! poll. Then each is likely to get the faults of its own CPU. But if these threads do little else than fault, one same-CPU handler
//! serves them all ([`WakePolicy::threads_run`]).
//!
//! A handler that polls alone does not sleep at once when there is nothing to do. For [`SPIN_NS`](crate::spinner::SPIN_NS) it polls
//! without sleeping. If the program does little but fault, the next message comes soon, and a fast device answers within that time.
//! A wakeup costs 5 to 10 us each time (30 us on some virtual machines). The polling occupies a second CPU while the program faults
//! without pause. With one CPU, or two threads that fault, handlers do not spin. Where spinning finds nothing, or other threads
//! want the CPU, they spin less and less.
//!
//! It is fastest if the handler runs on the CPU of the faulting thread itself: [`crate::same_cpu`].
//!
//! Only speed depends on this policy. Any handler can serve any message, and at least one handler polls at any time.

use crate::same_cpu::SameCpu;
use crate::sys::futex_wake;
use core::sync::atomic::{AtomicU32, Ordering::*};

/// All handlers poll.
const EVERYONE: u32 = u32::MAX;
/// The word that says which handler polls has the CPU in these bits. Above them it counts how often a same-CPU handler has begun.
/// So a handler that is about to wait for a change of the word does not miss that there is a same-CPU handler to watch.
const CPU_BITS: u32 = 16;
const CPU: u32 = (1 << CPU_BITS) - 1;
/// In place of a CPU: the [standby](crate::same_cpu) handler.
pub const STANDBY: usize = CPU as usize - 1;
const COUNT: u32 = (1 << (31 - CPU_BITS)) - 1;
/// After this many faults in a row by one thread, that thread counts as the only one that faults. Guessed: a change of policy costs
/// about as much as one wake too many.
pub(crate) const ALONE: u32 = 64;
/// Two threads that take turns after fewer faults than this count as faulting at the same time.
const ALTERNATE: u32 = 32;

/// See the module.
#[derive(Debug)]
pub struct WakePolicy {
    /// The CPU whose handler polls alone, and the count; or [`EVERYONE`]. A futex.
    pub(crate) poller: AtomicU32,
    /// The thread that faulted last, and how many times in a row.
    last: AtomicU32,
    streak: AtomicU32,
    /// Counts faults while all handlers poll.
    faults: AtomicU32,
    pub(crate) same_cpu: SameCpu,
}

impl Default for WakePolicy {
    fn default() -> Self {
        let (last, streak, faults) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(1));
        WakePolicy { poller: AtomicU32::new(EVERYONE), last, streak, faults, same_cpu: SameCpu::default() }
    }
}

impl WakePolicy {
    /// Sets everything as at the start, when all handlers poll. For a fork's child.
    pub fn reset(&self) {
        self.streak.store(0, Relaxed);
        self.poller.store(EVERYONE, Relaxed);
        self.same_cpu.reset();
    }

    /// The word that says which handlers poll, for [`WakePolicy::polls`] and [`WakePolicy::wait`].
    pub fn poller(&self) -> u32 {
        self.poller.load(Acquire)
    }

    /// Whether each handler is to be bound to its CPU.
    pub fn binds(poller: u32) -> bool {
        poller == EVERYONE
    }

    /// Whether the handler of `cpu` polls. A handler without a CPU always does, the standby handler only by itself.
    pub fn polls(poller: u32, cpu: Option<usize>) -> bool {
        cpu.is_none_or(|cpu| if poller == EVERYONE { cpu != STANDBY } else { cpu as u32 == poller & CPU })
    }

    /// Makes all handlers poll (and look whether the machine quits).
    pub fn call_everyone(&self) {
        self.call_all();
        self.end(false); // nobody watches a same-CPU handler any more
    }

    /// Notes that the handler of `cpu` has read a fault of the thread `tid` (0: not known).
    pub fn note(&self, tid: u32, cpu: Option<usize>) {
        let Some(cpu) = cpu else { return };
        let everyone = self.poller() == EVERYONE;
        let streak = if tid == self.last.load(Relaxed) {
            let streak = self.streak.load(Relaxed).saturating_add(1);
            self.streak.store(streak, Relaxed);
            streak
        } else {
            self.last.store(tid, Relaxed);
            if self.streak.swap(0, Relaxed) < ALTERNATE && !everyone && !self.same_cpu.serves_several() {
                self.call_everyone();
            }
            0
        };
        if !everyone || tid == 0 || cpu == STANDBY {
            return;
        }
        // only a handler that polls reads messages, so this is set once
        let several = self.faults.fetch_add(1, Relaxed).is_multiple_of(ALONE) && self.same_cpu.serves_several();
        if several || streak > 0 && streak.is_multiple_of(ALONE) {
            self.set(cpu as u32);
        }
    }

    /// Wakes the handlers that wait for a change, so that one of them watches a same-CPU handler that begins: the one that polls,
    /// or the standby handler in its place. Returns whether it may begin: only if still just one handler polls.
    pub(crate) fn call_watcher(&self, standby: bool) -> bool {
        let poller = self.poller();
        let (cpu, count) = (if standby { STANDBY as u32 } else { poller & CPU }, ((poller >> CPU_BITS) + 1) & COUNT);
        let next = cpu | count << CPU_BITS;
        let called = poller != EVERYONE && self.poller.compare_exchange(poller, next, AcqRel, Relaxed).is_ok();
        if called {
            futex_wake(&self.poller, i32::MAX as u32);
        }
        called
    }

    /// Makes all handlers poll but the standby handler.
    pub(crate) fn call_all(&self) {
        self.set(EVERYONE);
    }

    /// The thread that faulted last; 0: not known.
    pub(crate) fn last_thread(&self) -> u32 {
        self.last.load(Relaxed)
    }

    fn set(&self, poller: u32) {
        self.poller.store(poller, Release);
        futex_wake(&self.poller, i32::MAX as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_has_one_handler_and_two_have_all() {
        let policy = WakePolicy::default();
        assert!(WakePolicy::polls(policy.poller(), Some(3)) && WakePolicy::polls(policy.poller(), Some(5)));
        let fault = |tid, times| (0..times).for_each(|_| policy.note(tid, Some(3)));
        fault(u32::MAX, ALONE + 1);
        assert!(
            WakePolicy::polls(policy.poller(), Some(3))
                && !WakePolicy::polls(policy.poller(), Some(5))
                && WakePolicy::polls(policy.poller(), None)
        );
        fault(u32::MAX - 1, 1); // a change of thread
        assert!(!WakePolicy::polls(policy.poller(), Some(5)));
        fault(u32::MAX, 1); // alternately
        assert!(WakePolicy::polls(policy.poller(), Some(5)));
        fault(0, 10 * ALONE); // a kernel that does not report the thread
        assert!(WakePolicy::polls(policy.poller(), Some(5)));
    }

    /// With a handler on each CPU, two to eight threads that read at random had 0.5 to 0.7 of the speed that they have with
    /// one for all: each fault woke every handler, and each page that was parked interrupted the other CPU. Threads that compute
    /// need the CPU on which one handler would wait.
    #[test]
    fn threads_that_do_little_but_fault_share_a_handler() {
        let policy = WakePolicy::default();
        let alternate = |times| (0..times).for_each(|i| policy.note(7 + i % 2, Some(3)));
        let one_polls = || !WakePolicy::polls(policy.poller(), Some(5));
        policy.threads_run(100);
        alternate(2 * ALONE);
        assert!(!one_polls(), "no handler may be a same-CPU handler");
        policy.same_cpu.allow();
        for run in [1000, u64::MAX] {
            policy.threads_run(run);
            alternate(2 * ALONE);
            assert!(!one_polls(), "they compute, or it is not known yet");
        }
        policy.threads_run(100);
        alternate(2 * ALONE);
        assert!(one_polls());
        policy.threads_run(1000);
        alternate(2);
        assert!(!one_polls(), "they compute now");
    }
}

//! Wake policy: which handlers wait for messages. It is one, bound to no CPU, or all, each bound to its own.
//!
//! The kernel wakes every thread that polls a userfaultfd for every fault, and a wake across CPUs costs more than serving the fault
//! (10 to 60 us on a virtual machine). So as long as only one thread of the program faults, only one handler polls, and the others
//! sleep. It is bound to no CPU then: the scheduler puts it where a CPU is awake. (Bound to the CPU that the faulting thread was
//! last on, random page-ins took a fifth longer: when the handler has answered, its own CPU is busy with it, so the program is
//! woken on another one.) Once two threads fault alternately, all handlers poll, and each is likely to get what happened on its own
//! CPU.
//!
//! A handler that polls alone does not sleep at once when there is nothing to do. For [`SPIN_NS`](crate::spinner::SPIN_NS) it
//! polls without sleeping: a message comes soon if the program lives on its faults, and a fast device answers within that time,
//! while to be woken costs 5 to 10 us each time (30 us on some virtual machines). It takes a second CPU for as long as the program
//! faults without pause. With one CPU, or two threads that fault, there is no spinning; and where it finds nothing, or others want
//! the CPU, it is done less and less.
//!
//! Best of all, it runs on the very CPU of the thread that faults: [`crate::same_cpu`].
//!
//! Nothing but speed depends on this: whoever reads a message serves it, and at any time at least one handler polls.

use crate::same_cpu::SameCpu;
use crate::sys::futex_wake;
use core::sync::atomic::{AtomicU32, Ordering::*};

/// All handlers poll.
const EVERYONE: u32 = u32::MAX;
/// In the word that says who polls: the CPU's bits, and above them how often a same-CPU handler has begun, so that whoever is about
/// to wait for a change does not miss that there is one to be watched.
const CPU_BITS: u32 = 16;
const CPU: u32 = (1 << CPU_BITS) - 1;
const COUNT: u32 = (1 << (31 - CPU_BITS)) - 1;
/// So many faults in a row by one thread: it is alone. Guessed: a change of policy costs about as much as one wake too many.
pub(crate) const ALONE: u32 = 64;
/// Threads that alternate after fewer faults than this fault at the same time.
const ALTERNATE: u32 = 32;

/// See the module.
#[derive(Debug)]
pub struct WakePolicy {
    /// The CPU whose handler polls alone, bound to none, and the count; or [`EVERYONE`]. A futex.
    pub(crate) poller: AtomicU32,
    /// The thread that faulted last, and how many times in a row.
    last: AtomicU32,
    streak: AtomicU32,
    pub(crate) same_cpu: SameCpu,
}

impl Default for WakePolicy {
    fn default() -> Self {
        let (last, streak) = (AtomicU32::new(0), AtomicU32::new(0));
        WakePolicy { poller: AtomicU32::new(EVERYONE), last, streak, same_cpu: SameCpu::default() }
    }
}

impl WakePolicy {
    /// As at the start: everyone polls. For a fork's child.
    pub fn reset(&self) {
        self.streak.store(0, Relaxed);
        self.poller.store(EVERYONE, Relaxed);
        self.same_cpu.reset();
    }

    /// Who polls, to be given to [`WakePolicy::polls`] and [`WakePolicy::wait`].
    pub fn poller(&self) -> u32 {
        self.poller.load(Acquire)
    }

    /// Whether each handler is to be bound to its CPU.
    pub fn binds(poller: u32) -> bool {
        poller == EVERYONE
    }

    /// Whether the handler of `cpu` is one of them. A handler that has no CPU always is.
    pub fn polls(poller: u32, cpu: Option<usize>) -> bool {
        poller == EVERYONE || cpu.is_none_or(|cpu| cpu as u32 == poller & CPU)
    }

    /// All handlers are to poll (and to look whether the machine quits).
    pub fn call_everyone(&self) {
        self.set(EVERYONE);
    }

    /// The handler of `cpu` has read a fault of the thread `tid` (0: not known).
    pub fn note(&self, tid: u32, cpu: Option<usize>) {
        let Some(cpu) = cpu else { return };
        let streak = if tid == self.last.load(Relaxed) {
            let streak = self.streak.load(Relaxed).saturating_add(1);
            self.streak.store(streak, Relaxed);
            streak
        } else {
            self.last.store(tid, Relaxed);
            if self.streak.swap(0, Relaxed) < ALTERNATE && self.poller() != EVERYONE {
                self.set(EVERYONE);
            }
            0
        };
        if tid != 0 && streak > 0 && streak.is_multiple_of(ALONE) && self.poller() == EVERYONE {
            // only who polls reads, so this is set once
            self.set(cpu as u32);
        }
    }

    /// A same-CPU handler begins, if still only one handler polls: who waits for a change is woken, to watch it. Returns whether it
    /// does.
    pub(crate) fn call_watcher(&self) -> bool {
        let poller = self.poller();
        let (cpu, count) = (poller & CPU, ((poller >> CPU_BITS) + 1) & COUNT);
        let next = cpu | count << CPU_BITS;
        let called = poller != EVERYONE && self.poller.compare_exchange(poller, next, AcqRel, Relaxed).is_ok();
        if called {
            futex_wake(&self.poller, i32::MAX as u32);
        }
        called
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
        fault(0, 10 * ALONE); // a kernel that does not tell
        assert!(WakePolicy::polls(policy.poller(), Some(5)));
    }
}

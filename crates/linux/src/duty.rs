//! Which handlers read messages: one, bound to no CPU, or all, each bound to its own.
//!
//! The kernel wakes every thread that polls a userfaultfd for every fault, and a wake across CPUs costs more than serving the fault
//! (10 to 60 us on a virtual machine). So as long as only one thread of the program faults, only one handler polls, and the others
//! sleep. It is bound to no CPU then: the scheduler puts it where a CPU is awake. (Bound to the CPU that the faulting thread was last
//! on, random page-ins took a fifth longer: when the handler has answered, its own CPU is busy with it, so the program is woken on
//! another one.) Once two threads fault by turns, all handlers poll, and each is likely to get what happened on its own CPU.
//!
//! A handler that is alone does not sleep at once when there is nothing to do. For [`SPIN_NS`] it looks again and again: a message comes soon
//! if the program lives on its faults, and a fast device answers within that time, while to be woken costs 5 to 10 us each time. It takes a
//! second CPU for as long as the program faults without pause; with one CPU, or two threads that fault, there is no spinning, and where it
//! finds nothing it is done less and less.
//!
//! Nothing but speed depends on it: whoever reads a message serves it, and at any time at least one handler polls.

use crate::sys::{futex_wait, futex_wake};
use core::sync::atomic::{AtomicU32, Ordering::*};

/// All handlers poll.
const EVERYONE: u32 = u32::MAX;
/// So many faults in a row by one thread: it is alone. Guessed: a change of duty costs about as much as one wake too many.
const ALONE: u32 = 64;
/// Threads that take turns after fewer faults than this fault at the same time.
const TURNS: u32 = 32;

/// See the module.
#[derive(Debug)]
pub struct Duty {
    /// The CPU whose handler polls alone, bound to none, or [`EVERYONE`]. A futex.
    poller: AtomicU32,
    /// The thread that faulted last, and how many times in a row.
    last: AtomicU32,
    streak: AtomicU32,
}

impl Default for Duty {
    fn default() -> Self {
        Duty { poller: AtomicU32::new(EVERYONE), last: AtomicU32::new(0), streak: AtomicU32::new(0) }
    }
}

impl Duty {
    /// As at the start: everyone polls. For a fork's child.
    pub fn reset(&self) {
        self.streak.store(0, Relaxed);
        self.poller.store(EVERYONE, Relaxed);
    }

    /// Who polls, to be given to [`Duty::polls`] and [`Duty::wait`].
    pub fn poller(&self) -> u32 {
        self.poller.load(Acquire)
    }

    /// Whether each handler is to be bound to its CPU.
    pub fn binds(poller: u32) -> bool {
        poller == EVERYONE
    }

    /// Whether the handler of `cpu` is one of them. A handler that has no CPU always is.
    pub fn polls(poller: u32, cpu: Option<usize>) -> bool {
        poller == EVERYONE || cpu.is_none_or(|cpu| cpu as u32 == poller)
    }

    /// Waits until it is no longer as `seen`, at most a second.
    pub fn wait(&self, seen: u32) {
        futex_wait(&self.poller, seen, 1_000_000_000);
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
            if self.streak.swap(0, Relaxed) < TURNS && self.poller() != EVERYONE {
                self.set(EVERYONE);
            }
            0
        };
        if tid != 0 && streak > 0 && streak.is_multiple_of(ALONE) && self.poller() == EVERYONE {
            // only who polls reads, so this is set once
            self.set(cpu as u32);
        }
    }

    fn set(&self, poller: u32) {
        self.poller.store(poller, Release);
        futex_wake(&self.poller, i32::MAX as u32);
    }
}

/// How long a handler looks before it sleeps, in nanoseconds: what a fast device takes for a page, and the rest of a fault.
pub const SPIN_NS: u64 = 60_000;
/// After so many times in vain, and from then on, it sleeps at once 2^MISSES - 1 times before it tries again.
const MISSES: u32 = 6;

/// Whether a handler should look before it sleeps.
#[derive(Debug, Default)]
pub struct Spinner {
    skip: u32,
    missed: u32,
}

impl Spinner {
    /// Whether it should this time. If so, [`Spinner::found`] is due.
    pub fn due(&mut self) -> bool {
        let due = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        due
    }
    /// It has looked; returns its argument.
    pub fn found(&mut self, something: bool) -> bool {
        self.missed = if something { 0 } else { (self.missed + 1).min(MISSES) };
        self.skip = (1 << self.missed) - 1;
        something
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_has_one_handler_and_two_have_all() {
        let duty = Duty::default();
        assert!(Duty::polls(duty.poller(), Some(3)) && Duty::polls(duty.poller(), Some(5)));
        let fault = |tid, times| (0..times).for_each(|_| duty.note(tid, Some(3)));
        fault(u32::MAX, ALONE + 1);
        assert!(Duty::polls(duty.poller(), Some(3)) && !Duty::polls(duty.poller(), Some(5)) && Duty::polls(duty.poller(), None));
        fault(u32::MAX - 1, 1); // a change of thread
        assert!(!Duty::polls(duty.poller(), Some(5)));
        fault(u32::MAX, 1); // by turns
        assert!(Duty::polls(duty.poller(), Some(5)));
        fault(0, 10 * ALONE); // a kernel that does not tell
        assert!(Duty::polls(duty.poller(), Some(5)));
    }

    #[test]
    fn who_finds_nothing_looks_less_and_less() {
        let mut spinner = Spinner::default();
        let mut looks = |found, waits| {
            let look = |_: &u32| {
                let due = spinner.due();
                due && (spinner.found(found) == found)
            };
            (0..waits).filter(look).count()
        };
        assert_eq!(looks(true, 100), 100);
        assert!(looks(false, 1000) < 25);
        assert!(looks(true, 100) > 100 - 64, "it tries again, and finds something");
        assert_eq!(looks(true, 100), 100);
    }
}

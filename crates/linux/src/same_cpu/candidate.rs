//! A handler's own side of it: it becomes the same-CPU handler, follows the program to other CPUs, and stops.

use crate::io::Spun;
use crate::sys;
use crate::wake_policy::WakePolicy;
use core::sync::atomic::Ordering::*;

/// After this many messages a handler decides anew whether it becomes, or stays, the same-CPU handler.
pub(super) const MESSAGES: u32 = 64;

/// When [`SPIN_NS`] was too short this many times in a row, the handler sleeps until the read completes.
const VAIN: u32 = 64;

/// If this many times in a row no message had come when all work was done, the program may run on another CPU. Then the handler
/// asks for that CPU, which takes some 30 us. The number doubles each time that the program is on this one: then it sleeps between
/// its faults, as a server does.
const APART: core::ops::RangeInclusive<u32> = 2..=64;

/// A handler that may be the same-CPU handler.
#[derive(Debug)]
pub struct Candidate {
    /// It is allowed to be one.
    pub(super) may: bool,
    /// It is the standby handler.
    standby: bool,
    /// Its thread id.
    pub(super) handler: u32,
    /// It is the same-CPU handler.
    on: bool,
    /// Messages since the last decision.
    messages: u32,
    /// How many times in a row it polled in vain for the completion of a read.
    vain: u32,
    /// The thread that faulted last.
    thread: u32,
    /// How many times in a row no message had come when all work was done, and when that means another CPU ([`APART`]).
    apart: u32,
    apart_max: u32,
}

impl Candidate {
    /// The calling thread. `standby`: it is the standby handler.
    pub fn here(policy: &WakePolicy, standby: bool) -> Self {
        let handler = sys::gettid();
        let may = !standby && sys::may_be_ordinary_again();
        if may || standby {
            sys::keep_io_priority(); // it would fall with the scheduling policy
        }
        if may {
            policy.same_cpu.allow();
        }
        // not before Linux 6.12, nor if the user chose another policy
        if standby && sys::has_short_slices() {
            let anywhere = sys::allowed_cpus();
            policy.same_cpu.anywhere.iter().zip(anywhere).for_each(|(at, cpus)| at.store(cpus, Relaxed));
            policy.same_cpu.standby.store(handler, Release);
        }
        Candidate { may, standby, handler, on: false, messages: 0, vain: 0, thread: 0, apart: 0, apart_max: *APART.start() }
    }

    /// Stops being the same-CPU handler before the thread gives up rights: it may need one of them to become an ordinary thread
    /// again. The caller must call [`Candidate::has_given_up`] afterwards.
    pub fn leave(&mut self, policy: &WakePolicy, anywhere: &[u64; 16]) {
        if core::mem::take(&mut self.on) {
            policy.end(false);
            sys::give_way(0, false);
            sys::take_short_slices();
            sys::set_affinity(anywhere);
        }
    }

    /// Notes that the thread has given up rights.
    pub fn has_given_up(&mut self, policy: &WakePolicy) {
        if self.standby {
            return;
        }
        self.may = self.may && sys::may_be_ordinary_again();
        policy.same_cpu.possible.store(self.may, Relaxed);
    }

    /// Whether it is the same-CPU handler.
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Notes a fault of `thread`.
    pub fn note(&mut self, thread: u32) {
        self.thread = thread;
        self.messages += 1;
    }

    /// Notes the outcome of polling for a read's completion. Returns whether the handler goes on without sleeping. (It is as it
    /// should be if the program had the CPU meanwhile.)
    pub fn note_spun(&mut self, spun: Spun) -> bool {
        match spun {
            Spun::Found | Spun::Preempted => self.vain = 0,
            Spun::InVain => self.vain += 1,
        }
        self.vain < VAIN
    }

    /// Decides whether the calling thread is the same-CPU handler. To be called before each wait. `alone`: no other handler polls,
    /// and the calling thread is bound to no CPU for another reason. Returns whether it has just become the same-CPU handler, even
    /// if its watcher has ended that already.
    pub fn decide(&mut self, policy: &WakePolicy, alone: bool, anywhere: &[u64; 16]) -> bool {
        let named = policy.same_cpu.handler.load(Acquire) == self.handler;
        let mut on = self.on && alone && named;
        let mut begun = false;
        if self.standby {
            begun = alone && named && !self.on;
            if begun {
                self.thread = policy.last_thread();
            } else if named && !alone {
                policy.end(false); // others have begun to poll before it did
            }
        } else if self.messages >= MESSAGES {
            self.messages = 0;
            if !on && alone && self.thread != 0 {
                match self.may {
                    true => begun = policy.begin(self.handler),
                    false => policy.begin_standby(),
                }
            }
        }
        on |= begun;
        if on {
            policy.same_cpu.beat.fetch_add(1, Release);
            policy.goes_on();
        }
        if on && policy.same_cpu.ordinary.load(Acquire) && !policy.same_cpu.daemon_works.load(Acquire) {
            policy.same_cpu.ordinary.store(false, Release);
            on = self.gives_way(policy);
        }
        // one that was ended and begins anew has to give way anew
        if on == self.on && !begun {
            return false;
        }
        self.on = on && self.gives_way(policy);
        if self.on {
            self.follow(policy);
        } else {
            policy.end(false);
            sys::give_way(0, false);
            sys::take_short_slices();
            if alone || self.standby {
                sys::set_affinity(anywhere);
            }
        }
        begun
    }

    /// Gives way to other threads, unless it was ended meanwhile: then nobody watches. Nor does it if the page daemon has just made
    /// it an ordinary thread. Returns whether it is still the same-CPU handler.
    pub(super) fn gives_way(&self, policy: &WakePolicy) -> bool {
        if self.standby {
            sys::give_way_for_good();
            return true;
        }
        sys::give_way(0, true);
        let is_it = policy.same_cpu.handler.load(Acquire) == self.handler;
        if !is_it || policy.same_cpu.ordinary.load(SeqCst) {
            sys::give_way(0, false);
        }
        is_it
    }

    /// Notes that all work was done, and whether the next message had come already.
    pub fn note_guess(&mut self, policy: &WakePolicy, right: bool) {
        if right {
            self.apart = 0;
            return;
        }
        policy.served();
        self.apart += 1;
        if self.apart >= self.apart_max {
            let moved = self.follow(policy);
            self.apart_max = if moved { *APART.start() } else { (2 * self.apart_max).min(*APART.end()) };
        }
    }

    /// Goes to the program's CPU. Returns whether that is another one.
    fn follow(&mut self, policy: &WakePolicy) -> bool {
        self.apart = 0;
        let Some(cpu) = sys::cpu_of(self.thread) else { return false };
        let moved = policy.same_cpu.cpu.swap(cpu as u32 + 1, Relaxed) != cpu as u32 + 1;
        if moved {
            sys::set_affinity(&sys::only_cpu(cpu));
        }
        moved
    }
}

//! The same-CPU handler: it runs on the very CPU of the thread that faults, and gives way to it (SCHED_IDLE).
//!
//! To the scheduler a CPU that runs only such a thread is idle. So the kernel wakes the program there, in the handler's place, and
//! the handler goes on there when the program sleeps at its next fault: two switches between threads in place of two wakes across
//! CPUs. It may poll for a completion as long as it likes, since any other thread is preferred.
//!
//! For that very reason it may not get the CPU when others want it, and whoever waits for it then waits long. So another handler
//! watches it, every 1 to 16 ms: if it has something to do, does not sleep and did not get on, it is made an ordinary thread again,
//! and there is no same-CPU handler for a while. That takes CAP_SYS_NICE ([`sys::may_be_ordinary_again`]); without it there is
//! none. The watcher and the page daemon stay off that CPU ([`StaysOff`]).
//!
//! It is for faults that come one by one: what is read ahead is to be copied while the program runs, not in its place.

use crate::io::Spun;
use crate::sys::{self, futex_wait};
use crate::wake_policy::WakePolicy;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

/// What the same-CPU handler and the handler that watches it share.
#[derive(Debug, Default)]
pub struct SameCpu {
    /// Its thread id, or 0.
    handler: AtomicU32,
    /// Its CPU and one, or 0.
    cpu: AtomicU32,
    /// Counts up as it gets on.
    beat: AtomicU32,
    /// It has nothing to do, or nothing that anybody waits for.
    done: AtomicBool,
    watched: AtomicBool,
    /// Since when (CLOCK_MONOTONIC, in nanoseconds).
    since: AtomicU64,
    /// When it may be tried again (CLOCK_MONOTONIC, in nanoseconds), and after what pause, in nanoseconds.
    again: AtomicU64,
    pause: AtomicU64,
}

impl SameCpu {
    /// In a fork's child: there is none.
    pub(crate) fn reset(&self) {
        self.handler.store(0, Relaxed);
        self.cpu.store(0, Relaxed);
        self.watched.store(false, Relaxed);
    }
}

impl WakePolicy {
    /// Waits until who polls is no longer as `seen`, at most a second. The same-CPU handler is watched meanwhile; `readable`:
    /// whether a message waits. Returns whether it has been found not to get on.
    pub fn wait(&self, seen: u32, readable: impl Fn() -> bool) -> bool {
        let same_cpu = &self.same_cpu;
        if same_cpu.handler.load(Acquire) != 0 && !same_cpu.watched.swap(true, AcqRel) {
            let starved = self.watch(seen, readable);
            same_cpu.watched.store(false, Release);
            return starved;
        }
        futex_wait(&self.poller, seen, 1_000_000_000);
        false
    }

    fn watch(&self, seen: u32, readable: impl Fn() -> bool) -> bool {
        let same_cpu = &self.same_cpu;
        let mut stays_off = StaysOff::here();
        let (mut beat, mut quiet, mut starved) = (same_cpu.beat.load(Acquire), 0, 0);
        let mut tick = *TICK_NS.start();
        loop {
            stays_off.update(self);
            futex_wait(&self.poller, seen, tick);
            if self.poller() != seen || same_cpu.handler.load(Acquire) == 0 {
                return false;
            }
            let now = same_cpu.beat.load(Acquire);
            if now != beat {
                (beat, quiet, starved) = (now, 0, 0);
                tick = (2 * tick).min(*TICK_NS.end());
                continue;
            }
            // a long tick tells no more than a short one, but now it is worth looking again soon
            if core::mem::replace(&mut tick, *TICK_NS.start()) > *TICK_NS.start() {
                continue;
            }
            match readable() || !same_cpu.done.load(Acquire) {
                true => starved += 1,
                false => quiet += 1,
            }
            // it may also sleep: for a device, or for a frame
            if starved == STARVED && !sys::wants_cpu(same_cpu.handler.load(Acquire)) {
                starved = 0;
            }
            if starved == STARVED || quiet == QUIET {
                self.end(starved == STARVED);
                return starved == STARVED;
            }
        }
    }

    /// Whether the calling handler, `handler` by its thread id, may be the same-CPU handler from now on.
    fn begin(&self, handler: u32) -> bool {
        let same_cpu = &self.same_cpu;
        let now = sys::now_ns();
        if now < same_cpu.again.load(Relaxed) {
            return false;
        }
        same_cpu.since.store(now, Relaxed);
        same_cpu.done.store(false, Relaxed);
        same_cpu.handler.store(handler, Release);
        // one of the others is to watch: if they are called to poll just now, it is to be none
        let watched = self.call_watcher();
        if !watched {
            same_cpu.handler.store(0, Release);
        }
        watched
    }

    /// There is no same-CPU handler any more. `starved`: it did not get the CPU, so for a while there is none.
    fn end(&self, starved: bool) {
        let same_cpu = &self.same_cpu;
        // also if somebody else has ended it: the handler may have written its CPU after that
        same_cpu.cpu.store(0, Relaxed);
        let handler = same_cpu.handler.swap(0, AcqRel);
        if handler == 0 {
            return;
        }
        sys::give_way(handler, false);
        if starved {
            let now = sys::now_ns();
            let pause = same_cpu.pause.load(Relaxed);
            // what lasted longer than the pause before it was worth it
            let good = now.saturating_sub(same_cpu.since.load(Relaxed)) > pause;
            let pause = if good { *PAUSE_NS.start() } else { (2 * pause).min(*PAUSE_NS.end()) };
            same_cpu.pause.store(pause, Relaxed);
            same_cpu.again.store(now + pause, Relaxed);
        }
    }

    /// There is no same-CPU handler any more, for now.
    pub fn end_same_cpu(&self) {
        self.end(false);
    }

    /// All is done for those who are about to be woken.
    pub fn served(&self) {
        self.same_cpu.done.store(true, Release);
    }
}

/// How often the watcher checks, in nanoseconds: at first and when the handler did not get on, and while it does. In between half
/// as often each time. (The watcher disturbs: for a moment the scheduler takes the handler's CPU for a busy one, and may wake the
/// program on another one. Of 23 such wakes in 0.1 s 16 were by the watcher when it always checked after a millisecond.)
const TICK_NS: core::ops::RangeInclusive<u64> = 1_000_000..=16_000_000;

/// After so many checks without getting on it is made an ordinary thread again.
const STARVED: u32 = 2;

/// Without a fault for so many ticks it ends.
const QUIET: u32 = 50;

/// How long there is none after one that did not get on, in nanoseconds: at first, and at most. In between twice as long each time.
const PAUSE_NS: core::ops::RangeInclusive<u64> = 100_000_000..=10_000_000_000;

/// After so many messages it is decided anew whether a handler is to be one.
const MESSAGES: u32 = 64;

/// At most one of so many may have led to readahead, or to a page that took longer than [`SPIN_NS`].
const FIT: u32 = 8;

/// After so many times that [`SPIN_NS`] was too short it sleeps.
const VAIN: u32 = 64;

/// If so often in a row no message had come when all was done, the program is thought to run on another CPU. While asking for its
/// CPU is of no use, twice as often each time.
const APART: core::ops::RangeInclusive<u32> = 2..=256;

/// A handler that may be the same-CPU handler.
#[derive(Debug)]
pub struct Candidate {
    /// It is allowed to.
    may: bool,
    /// Its thread id.
    handler: u32,
    /// It is.
    on: bool,
    /// Since the last decision.
    messages: u32,
    unfit: u32,
    /// Polled in vain for the end of a read, so often in a row.
    vain: u32,
    /// Whose fault was the last.
    thread: u32,
    apart: u32,
    apart_max: u32,
}

impl Candidate {
    /// The calling thread.
    pub fn here() -> Self {
        let may = sys::may_be_ordinary_again();
        if may {
            sys::keep_io_priority(); // which would go down with its policy
        }
        let apart_max = *APART.start();
        Candidate { may, handler: sys::gettid(), on: false, messages: 0, unfit: 0, vain: 0, thread: 0, apart: 0, apart_max }
    }

    /// Before the thread gives rights up, one of which it may need to be an ordinary one again. [`Candidate::has_given_up`] comes
    /// after it.
    pub fn leave(&mut self, policy: &WakePolicy, anywhere: &[u64; 16]) {
        if core::mem::take(&mut self.on) {
            policy.end(false);
            sys::give_way(0, false);
            sys::take_short_slices();
            sys::set_affinity(anywhere);
        }
    }

    /// It has given rights up.
    pub fn has_given_up(&mut self) {
        self.may = self.may && sys::may_be_ordinary_again();
    }

    /// Whether it is the same-CPU handler.
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// A fault of `thread`.
    pub fn note(&mut self, thread: u32) {
        self.thread = thread;
        self.messages += 1;
    }

    /// It led to readahead, or its page takes long.
    pub fn note_unfit(&mut self) {
        self.unfit += 1;
    }

    /// What came of polling for the end of a read. Returns whether it is not to wait for it. (That the program had the CPU
    /// meanwhile is as it should be.)
    pub fn note_spun(&mut self, spun: Spun) -> bool {
        match spun {
            Spun::Found | Spun::Preempted => self.vain = 0,
            Spun::InVain if self.vain == 0 => {
                self.vain = 1;
                self.note_unfit();
            }
            Spun::InVain => self.vain += 1,
        }
        self.vain < VAIN
    }

    /// To be called before each wait. `alone`: no other handler polls, and the calling thread is bound to no CPU but for this.
    /// Returns whether it becomes the same-CPU handler.
    pub fn decide(&mut self, policy: &WakePolicy, alone: bool, anywhere: &[u64; 16]) -> bool {
        let mut on = self.on && alone && policy.same_cpu.handler.load(Acquire) == self.handler;
        if self.messages >= MESSAGES {
            let fit = self.unfit * FIT <= self.messages;
            (self.messages, self.unfit) = (0, 0);
            on = fit && (on || self.may && alone && self.thread != 0 && policy.begin(self.handler));
        }
        if on {
            policy.same_cpu.beat.fetch_add(1, Release);
            policy.same_cpu.done.store(false, Release);
        }
        if on == self.on {
            return false;
        }
        self.on = on;
        if on {
            sys::give_way(0, true);
            self.follow(policy);
        } else {
            policy.end(false);
            sys::give_way(0, false);
            sys::take_short_slices();
            if alone {
                sys::set_affinity(anywhere);
            }
        }
        on
    }

    /// All is done; `readable`: the next message is there already.
    pub fn note_done(&mut self, policy: &WakePolicy, readable: bool) {
        policy.served();
        if readable {
            (self.apart, self.apart_max) = (0, *APART.start());
            return;
        }
        self.apart += 1;
        if self.apart >= self.apart_max {
            self.apart_max = (2 * self.apart_max).min(*APART.end());
            self.follow(policy);
        }
    }

    /// Goes to the program's CPU.
    fn follow(&mut self, policy: &WakePolicy) {
        self.apart = 0;
        if let Some(cpu) = sys::cpu_of(self.thread) {
            sys::set_affinity(&sys::only_cpu(cpu));
            policy.same_cpu.cpu.store(cpu as u32 + 1, Relaxed);
        }
    }
}

/// A thread of the pager's that stays off the same-CPU handler's CPU, until this is dropped: to the scheduler that CPU is idle, so
/// it would put the thread there of all places, and the handler would wait for it.
#[derive(Debug)]
pub struct StaysOff {
    anywhere: [u64; 16],
    off: u32,
}

impl StaysOff {
    /// The calling thread.
    pub fn here() -> Self {
        StaysOff { anywhere: sys::allowed_cpus(), off: 0 }
    }

    /// Leaves that CPU if it is there. To be called by the same thread, now and then.
    pub fn update(&mut self, policy: &WakePolicy) {
        let off = policy.same_cpu.cpu.load(Relaxed);
        if off != self.off {
            self.off = off;
            let mut cpus = self.anywhere;
            if off != 0 {
                let only = sys::only_cpu(off as usize - 1);
                cpus.iter_mut().zip(only).for_each(|(cpus, only)| *cpus &= !only);
            }
            // if that was its only one, the kernel refuses, and it stays
            sys::set_affinity(&cpus);
        }
    }
}

impl Drop for StaysOff {
    /// The thread may be anywhere again.
    fn drop(&mut self) {
        if self.off != 0 {
            sys::set_affinity(&self.anywhere);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::futex_wake;
    use crate::wake_policy::ALONE;

    /// The scheduling policy of a thread, as the kernel has it.
    fn scheduling_of(tid: u32) -> i32 {
        // SAFETY: touches no memory.
        unsafe { libc::sched_getscheduler(tid as i32) }
    }

    /// Runs `with` with the id of a thread that does `first` and then is busy, or sleeps.
    fn with_a_thread(awake: bool, first: impl FnOnce() + Send, with: impl FnOnce(u32)) {
        let (tid, ended) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                first();
                tid.store(sys::gettid(), Release);
                while ended.load(Acquire) == 0 {
                    if !awake {
                        futex_wait(&ended, 0, 1_000_000_000);
                    }
                }
            });
            while tid.load(Acquire) == 0 {
                std::thread::yield_now();
            }
            // it ends even if an assertion does not hold, which the scope would wait for
            let held = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| with(tid.load(Acquire))));
            ended.store(1, Release);
            futex_wake(&ended, 1);
            held.unwrap_or_else(|what| std::panic::resume_unwind(what));
        });
    }

    /// A thread that gives way to others may get no CPU for a second, and whoever waits for it waits as long: it is found and made
    /// an ordinary one. (Here it runs and does not get on: a CPU that is taken away for so long cannot be had in a test.)
    #[test]
    fn a_handler_that_does_not_get_on_is_made_ordinary() {
        if !sys::may_be_ordinary_again() {
            println!("NOT RUN: a_handler_that_does_not_get_on_is_made_ordinary: needs CAP_SYS_NICE");
            assert!(std::env::var_os("CI").is_none());
            return;
        }
        let (policy, anywhere) = (WakePolicy::default(), sys::allowed_cpus());
        (0..=ALONE).for_each(|_| policy.note(7, Some(0)));
        with_a_thread(
            true,
            || sys::give_way(0, true),
            |tid| {
                // all is done, and a message waits that it does not read
                let starve = |policy: &WakePolicy, done: bool, readable: bool| {
                    let before = policy.poller();
                    assert!(policy.begin(tid));
                    let seen = policy.poller();
                    assert!(seen != before && WakePolicy::polls(seen, Some(0)) && !WakePolicy::polls(seen, Some(1)));
                    assert!(!policy.wait(before, || true), "whoever was about to wait looks again");
                    sys::give_way(tid, true);
                    assert_eq!(scheduling_of(tid), libc::SCHED_IDLE);
                    if done {
                        policy.served();
                    }
                    policy.same_cpu.cpu.store(1, Relaxed);
                    assert_eq!(policy.wait(seen, || readable), readable || !done);
                    assert_eq!((scheduling_of(tid), policy.same_cpu.handler.load(Acquire)), (libc::SCHED_OTHER, 0));
                    assert_eq!(sys::allowed_cpus(), anywhere, "who watched stays off that CPU no longer");
                };
                starve(&policy, true, true);
                assert!(!policy.begin(tid), "not at once again");
                // nothing waits, but it is in the middle of something, and perhaps holds a lock
                policy.same_cpu.again.store(0, Relaxed);
                starve(&policy, false, false);
                let pause = policy.same_cpu.pause.load(Relaxed);
                assert!(PAUSE_NS.contains(&pause));
                // nothing to do at all: over, but nobody is to blame
                policy.same_cpu.again.store(0, Relaxed);
                starve(&policy, true, false);
                assert_eq!((policy.same_cpu.again.load(Relaxed), policy.same_cpu.pause.load(Relaxed)), (0, pause));
            },
        );
        // a device that took more than two milliseconds for a page, or a frame that was waited for, passed for others that want the
        // CPU
        with_a_thread(
            false,
            || sys::give_way(0, true),
            |tid| {
                assert!(policy.begin(tid));
                let looks = core::cell::Cell::new(0);
                let waits = || looks.replace(looks.get() + 1) < 10;
                policy.served();
                assert!(!policy.wait(policy.poller(), waits), "it sleeps while a message waits, and then there is none any more");
                assert_eq!((policy.same_cpu.again.load(Relaxed), looks.get() > 10), (0, true));
            },
        );
    }

    /// It goes to the CPU of the thread whose faults it serves, and what is read ahead for that thread ends it.
    #[test]
    fn it_is_on_the_programs_cpu_and_for_single_pages() {
        let anywhere = sys::allowed_cpus();
        let cpus: Vec<usize> = (0..1024).filter(|cpu| anywhere[cpu / 64] >> (cpu % 64) & 1 == 1).collect();
        for cpu in [cpus[0], cpus[cpus.len() - 1]] {
            let (policy, mut candidate) = (WakePolicy::default(), Candidate::here());
            let messages = |candidate: &mut Candidate, of: u32, unfit: u32| {
                (0..MESSAGES).for_each(|i| {
                    policy.note(of, Some(0));
                    candidate.note(of);
                    (i < unfit).then(|| candidate.note_unfit());
                });
                candidate.decide(&policy, !WakePolicy::binds(policy.poller()), &anywhere);
                candidate.is_on()
            };
            with_a_thread(
                false,
                || sys::set_affinity(&sys::only_cpu(cpu)),
                |tid| {
                    assert_eq!(sys::cpu_of(tid), Some(cpu));
                    assert!(!messages(&mut candidate, tid, 0), "not alone yet");
                    messages(&mut candidate, tid, 0);
                    if candidate.may {
                        assert!(messages(&mut candidate, tid, MESSAGES / FIT));
                        assert_eq!(sys::allowed_cpus(), sys::only_cpu(cpu));
                        assert_eq!(scheduling_of(0), libc::SCHED_IDLE);
                    }
                    assert!(!messages(&mut candidate, tid, MESSAGES / FIT + 1));
                    assert_eq!(sys::allowed_cpus(), anywhere);
                    assert_eq!(scheduling_of(0), libc::SCHED_OTHER);
                },
            );
        }
    }

    /// The scheduler takes the same-CPU handler's CPU for an idle one. The page daemon went there and worked for milliseconds, with
    /// the handler and the program waiting, until the watcher ended it. (With the daemon bound to that CPU, to see what it does, 23
    /// of 23 ended so.)
    #[test]
    fn the_page_daemon_stays_off_that_cpu() {
        let anywhere = sys::allowed_cpus();
        let cpu = (0..1024).find(|cpu| anywhere[cpu / 64] >> (cpu % 64) & 1 == 1).expect("this thread runs somewhere");
        let (policy, mut daemon) = (WakePolicy::default(), StaysOff::here());
        daemon.update(&policy);
        assert_eq!(sys::allowed_cpus(), anywhere);
        policy.same_cpu.cpu.store(cpu as u32 + 1, Relaxed);
        daemon.update(&policy);
        let mut others = anywhere;
        others[cpu / 64] &= !(1 << (cpu % 64));
        assert_eq!(sys::allowed_cpus(), if sys::count_cpus(&anywhere) > 1 { others } else { anywhere });
        policy.end(false);
        daemon.update(&policy);
        assert_eq!(sys::allowed_cpus(), anywhere);
        policy.same_cpu.cpu.store(cpu as u32 + 1, Relaxed);
        daemon.update(&policy);
        drop(daemon);
        assert_eq!(sys::allowed_cpus(), anywhere);
    }
}

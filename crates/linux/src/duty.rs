//! Which handlers read messages: one, bound to no CPU, or all, each bound to its own.
//!
//! The kernel wakes every thread that polls a userfaultfd for every fault, and a wake across CPUs costs more than serving the fault
//! (10 to 60 us on a virtual machine). So as long as only one thread of the program faults, only one handler polls, and the others
//! sleep. It is bound to no CPU then: the scheduler puts it where a CPU is awake. (Bound to the CPU that the faulting thread was
//! last on, random page-ins took a fifth longer: when the handler has answered, its own CPU is busy with it, so the program is
//! woken on another one.) Once two threads fault by turns, all handlers poll, and each is likely to get what happened on its own
//! CPU.
//!
//! A handler that is alone does not sleep at once when there is nothing to do. For [`SPIN_NS`] it looks again and again: a message
//! comes soon if the program lives on its faults, and a fast device answers within that time, while to be woken costs 5 to 10 us
//! each time (30 us on some virtual machines). It takes a second CPU for as long as the program faults without pause; with one CPU,
//! or two threads that fault, there is no spinning, and where it finds nothing, or others want the CPU, it is done less and less.
//!
//! Best of all it **keeps company**: it runs on the very CPU of the thread that faults, and gives way to it (SCHED_IDLE). A CPU
//! that is busy with such a thread only counts as idle, so the kernel wakes the program there, in the handler's place, and the
//! handler goes on there when the program sleeps at its next fault: two switches between threads in place of two wakes across CPUs.
//! It may look for a completion as long as it likes, since any other thread is preferred. But for that very reason it may not get
//! the CPU when others want it, and whoever waits for it then waits long. So another handler watches, every 1 to 16 ms: who has
//! something to do, does not sleep and did not get on is made an ordinary thread again, and keeps company no more for a while. That
//! takes CAP_SYS_NICE ([`sys::may_be_ordinary_again`]); without it nobody keeps company. Who watches and the page daemon stay off
//! that CPU ([`Elsewhere`]). It is for faults that come one by one: what is read ahead is to be copied beside the program, not in
//! its place.
//!
//! Nothing but speed depends on it: whoever reads a message serves it, and at any time at least one handler polls.

use crate::io::Spun;
use crate::sys::{self, futex_wait, futex_wake};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

/// All handlers poll.
const EVERYONE: u32 = u32::MAX;
/// In the word that says who polls: the CPU's bits, and above them the count of companies, so that whoever is about to wait for a
/// change of duty does not miss that there is somebody to be watched.
const CPU_BITS: u32 = 16;
const CPU: u32 = (1 << CPU_BITS) - 1;
const COMPANIES: u32 = (1 << (31 - CPU_BITS)) - 1;
/// So many faults in a row by one thread: it is alone. Guessed: a change of duty costs about as much as one wake too many.
const ALONE: u32 = 64;
/// Threads that take turns after fewer faults than this fault at the same time.
const TURNS: u32 = 32;

/// See the module.
#[derive(Debug)]
pub struct Duty {
    /// The CPU whose handler polls alone, bound to none, and [`COMPANIES`]; or [`EVERYONE`]. A futex.
    poller: AtomicU32,
    /// The thread that faulted last, and how many times in a row.
    last: AtomicU32,
    streak: AtomicU32,
    company: Company,
}

/// What the handler that keeps company and the one that watches share.
#[derive(Debug, Default)]
struct Company {
    /// The handler's thread id, or 0.
    handler: AtomicU32,
    /// Where it is kept: the CPU and one, or 0.
    cpu: AtomicU32,
    /// It has got on.
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

impl Default for Duty {
    fn default() -> Self {
        let (last, streak) = (AtomicU32::new(0), AtomicU32::new(0));
        Duty { poller: AtomicU32::new(EVERYONE), last, streak, company: Company::default() }
    }
}

impl Duty {
    /// As at the start: everyone polls. For a fork's child.
    pub fn reset(&self) {
        self.streak.store(0, Relaxed);
        self.poller.store(EVERYONE, Relaxed);
        self.company.handler.store(0, Relaxed);
        self.company.cpu.store(0, Relaxed);
        self.company.watched.store(false, Relaxed);
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
        poller == EVERYONE || cpu.is_none_or(|cpu| cpu as u32 == poller & CPU)
    }

    /// Waits until it is no longer as `seen`, at most a second. Who keeps company is watched meanwhile; `readable`: whether a
    /// message waits. Returns whether he has been found not to get on.
    pub fn wait(&self, seen: u32, readable: impl Fn() -> bool) -> bool {
        let company = &self.company;
        if company.handler.load(Acquire) != 0 && !company.watched.swap(true, AcqRel) {
            let starved = self.watch(seen, readable);
            company.watched.store(false, Release);
            return starved;
        }
        futex_wait(&self.poller, seen, 1_000_000_000);
        false
    }

    fn watch(&self, seen: u32, readable: impl Fn() -> bool) -> bool {
        let company = &self.company;
        let mut elsewhere = Elsewhere::here();
        let (mut beat, mut quiet, mut starved) = (company.beat.load(Acquire), 0, 0);
        let mut tick = *TICK_NS.start();
        loop {
            elsewhere.go(self);
            futex_wait(&self.poller, seen, tick);
            if self.poller() != seen || company.handler.load(Acquire) == 0 {
                return false;
            }
            let now = company.beat.load(Acquire);
            if now != beat {
                (beat, quiet, starved) = (now, 0, 0);
                tick = (2 * tick).min(*TICK_NS.end());
                continue;
            }
            // a long tick tells no more than a short one, but now it is worth looking again soon
            if core::mem::replace(&mut tick, *TICK_NS.start()) > *TICK_NS.start() {
                continue;
            }
            match readable() || !company.done.load(Acquire) {
                true => starved += 1,
                false => quiet += 1,
            }
            // it may also sleep: for a device, or for a frame
            if starved == STARVED && !sys::wants_cpu(company.handler.load(Acquire)) {
                starved = 0;
            }
            if starved == STARVED || quiet == QUIET {
                self.part(starved == STARVED);
                return starved == STARVED;
            }
        }
    }

    /// Whether the calling handler, `handler` by its thread id, may keep company from now on.
    fn meet(&self, handler: u32) -> bool {
        let company = &self.company;
        let now = sys::now_ns();
        if now < company.again.load(Relaxed) {
            return false;
        }
        company.since.store(now, Relaxed);
        company.done.store(false, Relaxed);
        company.handler.store(handler, Release);
        let poller = self.poller();
        let (cpu, companies) = (poller & CPU, ((poller >> CPU_BITS) + 1) & COMPANIES);
        let next = cpu | companies << CPU_BITS;
        // one of the others is to watch; if they are called to poll just now, there is no company
        let watched = poller != EVERYONE && self.poller.compare_exchange(poller, next, AcqRel, Relaxed).is_ok();
        match watched {
            true => futex_wake(&self.poller, i32::MAX as u32),
            false => company.handler.store(0, Release),
        }
        watched
    }

    /// Nobody keeps company any more. `starved`: the handler did not get the CPU, so for a while nobody does.
    fn part(&self, starved: bool) {
        let company = &self.company;
        // also if somebody else has parted them: who went there may have said so after that
        company.cpu.store(0, Relaxed);
        let handler = company.handler.swap(0, AcqRel);
        if handler == 0 {
            return;
        }
        sys::give_way(handler, false);
        if starved {
            let now = sys::now_ns();
            let pause = company.pause.load(Relaxed);
            // what lasted longer than the pause before it was worth it
            let good = now.saturating_sub(company.since.load(Relaxed)) > pause;
            let pause = if good { *PAUSE_NS.start() } else { (2 * pause).min(*PAUSE_NS.end()) };
            company.pause.store(pause, Relaxed);
            company.again.store(now + pause, Relaxed);
        }
    }

    /// Nobody keeps company any more, for now.
    pub fn end_company(&self) {
        self.part(false);
    }

    /// All is done for those who are about to be woken.
    pub fn served(&self) {
        self.company.done.store(true, Release);
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

/// How often who keeps company is looked after, in nanoseconds: at first and when it did not get on, and while it does. In between
/// half as often each time. (Whoever looks disturbs: for a moment the scheduler takes the CPU of company for a busy one, and may
/// wake the program on the other. Of 23 such wakes in 0.1 s 16 were within a tick's fault when it was always a millisecond.)
const TICK_NS: core::ops::RangeInclusive<u64> = 1_000_000..=16_000_000;
/// After so many looks without getting on it is made an ordinary thread again.
const STARVED: u32 = 2;
/// Without a fault for so many ticks there is no company to be kept.
const QUIET: u32 = 50;
/// How long nobody keeps company after one who did not get on, in nanoseconds: at first, and at most. In between twice as long each
/// time.
const PAUSE_NS: core::ops::RangeInclusive<u64> = 100_000_000..=10_000_000_000;
/// After so many messages it is decided anew whether to keep company.
const MESSAGES: u32 = 64;
/// At most one of so many may have led to readahead, or to a page that took longer than [`SPIN_NS`].
const FIT: u32 = 8;
/// After so many times that [`SPIN_NS`] was too short it sleeps.
const VAIN: u32 = 64;
/// If so often in a row no message had come when all was done, the program is thought to run on another CPU; while it is of no use
/// to look, twice as often each time.
const APART: core::ops::RangeInclusive<u32> = 2..=256;

/// A handler that may keep company.
#[derive(Debug)]
pub struct Companion {
    /// It is allowed to.
    may: bool,
    handler: u32,
    /// It does.
    on: bool,
    /// Since the last decision.
    messages: u32,
    unfit: u32,
    /// Looked in vain for the end of a read, so often in a row.
    vain: u32,
    /// Whose fault was the last.
    thread: u32,
    apart: u32,
    apart_max: u32,
}

impl Companion {
    /// The calling thread.
    pub fn here() -> Self {
        let may = sys::may_be_ordinary_again();
        if may {
            sys::keep_io_priority(); // which would go down with its policy
        }
        let apart_max = *APART.start();
        Companion { may, handler: sys::gettid(), on: false, messages: 0, unfit: 0, vain: 0, thread: 0, apart: 0, apart_max }
    }

    /// Before the thread gives rights up, one of which it may need to be an ordinary one again. [`Companion::is_less`] comes after
    /// it.
    pub fn leave(&mut self, duty: &Duty, anywhere: &[u64; 16]) {
        if core::mem::take(&mut self.on) {
            duty.part(false);
            sys::give_way(0, false);
            sys::take_short_slices();
            sys::set_affinity(anywhere);
        }
    }

    /// It has given rights up.
    pub fn is_less(&mut self) {
        self.may = self.may && sys::may_be_ordinary_again();
    }

    /// Whether it keeps company.
    pub fn keeps(&self) -> bool {
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

    /// What came of looking for the end of a read. Returns whether it is not to wait for it. (That the program had the CPU
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
    /// Returns whether it keeps company from now on.
    pub fn decide(&mut self, duty: &Duty, alone: bool, anywhere: &[u64; 16]) -> bool {
        let mut on = self.on && alone && duty.company.handler.load(Acquire) == self.handler;
        if self.messages >= MESSAGES {
            let fit = self.unfit * FIT <= self.messages;
            (self.messages, self.unfit) = (0, 0);
            on = fit && (on || self.may && alone && self.thread != 0 && duty.meet(self.handler));
        }
        if on {
            duty.company.beat.fetch_add(1, Release);
            duty.company.done.store(false, Release);
        }
        if on == self.on {
            return false;
        }
        self.on = on;
        if on {
            sys::give_way(0, true);
            self.join(duty);
        } else {
            duty.part(false);
            sys::give_way(0, false);
            sys::take_short_slices();
            if alone {
                sys::set_affinity(anywhere);
            }
        }
        on
    }

    /// All is done; `readable`: the next message is there already.
    pub fn note_done(&mut self, duty: &Duty, readable: bool) {
        duty.served();
        if readable {
            (self.apart, self.apart_max) = (0, *APART.start());
            return;
        }
        self.apart += 1;
        if self.apart >= self.apart_max {
            self.apart_max = (2 * self.apart_max).min(*APART.end());
            self.join(duty);
        }
    }

    /// Goes to where the program is.
    fn join(&mut self, duty: &Duty) {
        self.apart = 0;
        if let Some(cpu) = sys::cpu_of(self.thread) {
            sys::set_affinity(&sys::only_cpu(cpu));
            duty.company.cpu.store(cpu as u32 + 1, Relaxed);
        }
    }
}

/// A thread of the pager's that stays off the CPU where company is kept, until this is dropped: to the scheduler that CPU is idle,
/// so it would go there of all places, and whoever keeps company would wait for it.
#[derive(Debug)]
pub struct Elsewhere {
    anywhere: [u64; 16],
    off: u32,
}

impl Elsewhere {
    /// The calling thread.
    pub fn here() -> Self {
        Elsewhere { anywhere: sys::allowed_cpus(), off: 0 }
    }

    /// Goes elsewhere if need be. To be called by the same thread, now and then.
    pub fn go(&mut self, duty: &Duty) {
        let off = duty.company.cpu.load(Relaxed);
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

impl Drop for Elsewhere {
    /// The thread may be anywhere again.
    fn drop(&mut self) {
        if self.off != 0 {
            sys::set_affinity(&self.anywhere);
        }
    }
}

/// How long a handler looks before it sleeps, in nanoseconds: what a fast device takes for a page, and the rest of a fault.
pub const SPIN_NS: u64 = 150_000;
/// After so many times in vain, and from then on, it sleeps at once 2^MISSES - 1 times before it tries again.
const MISSES: u32 = 6;
/// The same if others wanted the CPU each time again. Who lets them have it waits for it for milliseconds, while a sleeper that is
/// woken gets it at once: two busy programs beside, and random reads took half as long again with 2^6.
const PREEMPTED: u32 = 13;
/// After so many times in a row that it was of use, that begins anew.
const UNDISTURBED: u32 = 256;

/// Whether a thread should look before it sleeps.
#[derive(Debug, Default)]
pub struct Spinner {
    skip: u32,
    missed: u32,
    preempted: u32,
    found: u32,
}

impl Spinner {
    /// Whether it should this time. If so, [`Spinner::note`] is due.
    pub fn due(&mut self) -> bool {
        let due = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        due
    }
    /// What came of it. Returns whether something was found.
    pub fn note(&mut self, spun: Spun) -> bool {
        match spun {
            Spun::Found => {
                (self.missed, self.found) = (0, self.found + 1);
                if self.found == UNDISTURBED {
                    (self.preempted, self.found) = (0, 0);
                }
            }
            Spun::InVain => self.missed = (self.missed + 1).min(MISSES),
            Spun::Preempted => {
                self.preempted = (self.preempted + 1).clamp(MISSES, PREEMPTED);
                (self.missed, self.found) = (self.preempted, 0);
            }
        }
        self.skip = (1 << self.missed) - 1;
        spun == Spun::Found
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

    /// The policy of a thread, as the kernel has it.
    fn policy(tid: u32) -> i32 {
        // SAFETY: touches no memory.
        unsafe { libc::sched_getscheduler(tid as i32) }
    }

    /// Runs `with` with the id of a thread that does `first` and then is busy, or sleeps.
    fn beside_a_thread(awake: bool, first: impl FnOnce() + Send, with: impl FnOnce(u32)) {
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
    fn who_keeps_company_and_does_not_get_on_is_made_ordinary() {
        if !sys::may_be_ordinary_again() {
            println!("NOT RUN: who_keeps_company_and_does_not_get_on_is_made_ordinary: needs CAP_SYS_NICE");
            assert!(std::env::var_os("CI").is_none());
            return;
        }
        let (duty, anywhere) = (Duty::default(), sys::allowed_cpus());
        (0..=ALONE).for_each(|_| duty.note(7, Some(0)));
        beside_a_thread(
            true,
            || sys::give_way(0, true),
            |tid| {
                // all is done, and a message waits that it does not read
                let starve = |duty: &Duty, done: bool, readable: bool| {
                    let before = duty.poller();
                    assert!(duty.meet(tid));
                    let seen = duty.poller();
                    assert!(seen != before && Duty::polls(seen, Some(0)) && !Duty::polls(seen, Some(1)));
                    assert!(!duty.wait(before, || true), "whoever was about to wait looks again");
                    sys::give_way(tid, true);
                    assert_eq!(policy(tid), libc::SCHED_IDLE);
                    if done {
                        duty.served();
                    }
                    duty.company.cpu.store(1, Relaxed);
                    assert_eq!(duty.wait(seen, || readable), readable || !done);
                    assert_eq!((policy(tid), duty.company.handler.load(Acquire)), (libc::SCHED_OTHER, 0));
                    assert_eq!(sys::allowed_cpus(), anywhere, "who watched stays off that CPU no longer");
                };
                starve(&duty, true, true);
                assert!(!duty.meet(tid), "not at once again");
                // nothing waits, but it is in the middle of something, and perhaps holds a lock
                duty.company.again.store(0, Relaxed);
                starve(&duty, false, false);
                let pause = duty.company.pause.load(Relaxed);
                assert!(PAUSE_NS.contains(&pause));
                // nothing to do at all: over, but nobody is to blame
                duty.company.again.store(0, Relaxed);
                starve(&duty, true, false);
                assert_eq!((duty.company.again.load(Relaxed), duty.company.pause.load(Relaxed)), (0, pause));
            },
        );
        // a device that took more than two milliseconds for a page, or a frame that was waited for, passed for others that want the
        // CPU
        beside_a_thread(
            false,
            || sys::give_way(0, true),
            |tid| {
                assert!(duty.meet(tid));
                let looks = core::cell::Cell::new(0);
                let waits = || looks.replace(looks.get() + 1) < 10;
                duty.served();
                assert!(!duty.wait(duty.poller(), waits), "it sleeps while a message waits, and then there is none any more");
                assert_eq!((duty.company.again.load(Relaxed), looks.get() > 10), (0, true));
            },
        );
    }

    /// It goes to the thread whose faults it serves, and what is read ahead for that thread parts them.
    #[test]
    fn company_is_kept_on_the_same_cpu_and_for_single_pages() {
        let anywhere = sys::allowed_cpus();
        let cpus: Vec<usize> = (0..1024).filter(|cpu| anywhere[cpu / 64] >> (cpu % 64) & 1 == 1).collect();
        for cpu in [cpus[0], cpus[cpus.len() - 1]] {
            let (duty, mut companion) = (Duty::default(), Companion::here());
            let messages = |companion: &mut Companion, of: u32, unfit: u32| {
                (0..MESSAGES).for_each(|i| {
                    duty.note(of, Some(0));
                    companion.note(of);
                    (i < unfit).then(|| companion.note_unfit());
                });
                companion.decide(&duty, !Duty::binds(duty.poller()), &anywhere);
                companion.keeps()
            };
            beside_a_thread(
                false,
                || sys::set_affinity(&sys::only_cpu(cpu)),
                |tid| {
                    assert_eq!(sys::cpu_of(tid), Some(cpu));
                    assert!(!messages(&mut companion, tid, 0), "not alone yet");
                    messages(&mut companion, tid, 0);
                    if companion.may {
                        assert!(messages(&mut companion, tid, MESSAGES / FIT));
                        assert_eq!(sys::allowed_cpus(), sys::only_cpu(cpu));
                        assert_eq!(policy(0), libc::SCHED_IDLE);
                    }
                    assert!(!messages(&mut companion, tid, MESSAGES / FIT + 1));
                    assert_eq!(sys::allowed_cpus(), anywhere);
                    assert_eq!(policy(0), libc::SCHED_OTHER);
                },
            );
        }
    }

    /// The scheduler takes the CPU where company is kept for an idle one. The page daemon went there and worked for milliseconds,
    /// with the handler and the program waiting, until the company was parted. (Bound to that CPU, to see what it does: 23 of 23
    /// companies ended so.)
    #[test]
    fn the_page_daemon_stays_off_the_cpu_of_company() {
        let anywhere = sys::allowed_cpus();
        let cpu = (0..1024).find(|cpu| anywhere[cpu / 64] >> (cpu % 64) & 1 == 1).expect("this thread runs somewhere");
        let (duty, mut daemon) = (Duty::default(), Elsewhere::here());
        daemon.go(&duty);
        assert_eq!(sys::allowed_cpus(), anywhere);
        duty.company.cpu.store(cpu as u32 + 1, Relaxed);
        daemon.go(&duty);
        let mut others = anywhere;
        others[cpu / 64] &= !(1 << (cpu % 64));
        assert_eq!(sys::allowed_cpus(), if sys::count_cpus(&anywhere) > 1 { others } else { anywhere });
        duty.part(false);
        daemon.go(&duty);
        assert_eq!(sys::allowed_cpus(), anywhere);
        duty.company.cpu.store(cpu as u32 + 1, Relaxed);
        daemon.go(&duty);
        drop(daemon);
        assert_eq!(sys::allowed_cpus(), anywhere);
    }

    #[test]
    fn who_finds_nothing_looks_less_and_less() {
        let mut spinner = Spinner::default();
        let mut looks = |spun, waits| {
            let look = |_: &u32| {
                let due = spinner.due();
                due && spinner.note(spun) == (spun == Spun::Found)
            };
            (0..waits).filter(look).count()
        };
        assert_eq!(looks(Spun::Found, 100), 100);
        assert!(looks(Spun::InVain, 1000) < 25);
        assert!(looks(Spun::Found, 100) > 100 - 64, "it tries again, and finds something");
        assert_eq!(looks(Spun::Found, 100), 100);
        assert_eq!(looks(Spun::Preempted, 64), 1, "others want the CPU");
        assert!(looks(Spun::Preempted, 1 << 14) < 10, "they still do");
        assert!(looks(Spun::Found, 1 << 14) > 1 << 12, "no longer");
        assert_eq!(looks(Spun::Preempted, 64), 1, "and that they did is forgotten");
    }
}

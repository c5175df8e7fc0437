//! The same-CPU handler runs on the CPU of the thread that faults, and gives way to it (SCHED_IDLE).
//!
//! The scheduler takes a CPU that runs only such a thread for idle. So the kernel wakes the program there, and the program takes
//! the handler's place. When the program sleeps at its next fault, the handler goes on there. Two switches between threads replace
//! two wakes across CPUs. The handler may poll for a completion as long as it likes, because the scheduler prefers any other
//! thread.
//!
//! For the same reason the handler may not get the CPU while other threads want it, and a thread that waits for the handler then
//! waits long. So another handler watches it, every 1 to 16 ms. If it has something to do, does not sleep and makes no progress,
//! the watcher makes it an ordinary thread again, and there is no same-CPU handler for a while. That takes CAP_SYS_NICE
//! ([`sys::may_be_ordinary_again`]). The watcher stays off that CPU, and the page daemon stays on it ([`Stays`]).
//!
//! Without that right, another handler is in its place: the *standby handler*, which does nothing else, and gives way for good. If
//! it makes no progress, it goes on giving way, and the others take over. What it has in hand is done when it gets the CPU again,
//! for a tenth of a millisecond in every 34 that another thread has. So it is tried less often.
//!
//! A same-CPU handler is for the faults of one thread, or of several that do little else. Pages that are read ahead are copied in
//! the program's place then, 2 us each. That costs less than the wakes across CPUs of the faults between.

use crate::io::Spun;
use crate::sys::{self, futex_wait};
use crate::wake_policy::WakePolicy;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*};

/// What the same-CPU handler and the handler that watches it share.
#[derive(Debug, Default)]
pub struct SameCpu {
    /// The handler's thread id, or 0.
    handler: AtomicU32,
    /// Its CPU plus one, or 0.
    cpu: AtomicU32,
    /// Counts the handler's progress.
    beat: AtomicU32,
    /// The handler has nothing to do, or nothing that another thread waits for.
    done: AtomicBool,
    /// Faults that wait for a read, or to be tried again, whoever serves them.
    waiting: AtomicI32,
    /// Another handler watches it.
    watched: AtomicBool,
    /// When it began (CLOCK_MONOTONIC, in nanoseconds).
    since: AtomicU64,
    /// When a handler may try again (CLOCK_MONOTONIC, in nanoseconds), and the pause before that, in nanoseconds.
    again: AtomicU64,
    pause: AtomicU64,
    /// A handler has the right to be one.
    possible: AtomicBool,
    /// The standby handler's thread id, or 0, and the CPUs on which it may run.
    standby: AtomicU32,
    anywhere: [AtomicU64; 16],
    /// It serves several threads.
    several: AtomicBool,
    /// The threads that read pages do little else.
    idle: AtomicBool,
    /// As `again` and `pause`, for a handler that serves several threads.
    several_again: AtomicU64,
    several_pause: AtomicU64,
    /// The page daemon has worked for long, and has made the handler an ordinary thread.
    daemon_works: AtomicBool,
    ordinary: AtomicBool,
}

impl SameCpu {
    /// Two threads fault by turns. Returns whether one handler is to serve both.
    pub(crate) fn serves_several(&self) -> bool {
        let again = self.again.load(Relaxed).max(self.several_again.load(Relaxed));
        let possible = self.possible.load(Relaxed) || self.standby.load(Relaxed) != 0;
        let serves = possible && self.idle.load(Relaxed) && sys::now_ns() >= again;
        self.several.store(serves, Relaxed);
        serves
    }

    /// A handler has the right to be one.
    pub(crate) fn allow(&self) {
        self.possible.store(true, Relaxed);
    }

    /// Forgets the handler, in a fork's child.
    pub(crate) fn reset(&self) {
        self.handler.store(0, Relaxed);
        self.standby.store(0, Relaxed);
        self.cpu.store(0, Relaxed);
        self.waiting.store(0, Relaxed);
        self.watched.store(false, Relaxed);
        self.daemon_works.store(false, Relaxed);
    }
}

impl WakePolicy {
    /// Waits until the word that says which handlers poll is no longer `seen`, at most a second. Meanwhile it watches the same-CPU
    /// handler; `readable` says whether a message waits. Returns whether the handler was found to make no progress.
    pub fn wait(&self, seen: u32, readable: impl Fn() -> bool) -> bool {
        let same_cpu = &self.same_cpu;
        if same_cpu.handler.load(Acquire) != 0 && !same_cpu.watched.swap(true, AcqRel) {
            let starved = self.watch(seen, readable);
            same_cpu.watched.store(false, Release);
            return starved;
        }
        self.sleep(seen);
        false
    }

    /// As [`WakePolicy::wait`], for the standby handler, which must not watch: it may get no CPU.
    pub fn sleep(&self, seen: u32) {
        futex_wait(&self.poller, seen, 1_000_000_000);
    }

    fn watch(&self, seen: u32, readable: impl Fn() -> bool) -> bool {
        let same_cpu = &self.same_cpu;
        let mut stays = Stays::off();
        let (mut beat, mut quiet, mut starved) = (same_cpu.beat.load(Acquire), 0, 0);
        let mut tick = *TICK_NS.start();
        loop {
            stays.update(self);
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
            // one long tick without progress does not count; look again after a short one
            if core::mem::replace(&mut tick, *TICK_NS.start()) > *TICK_NS.start() {
                continue;
            }
            match readable() || !same_cpu.done.load(Acquire) {
                true => starved += 1,
                false => quiet += 1,
            }
            // it may also sleep, because it waits for a device or a frame
            if starved == STARVED && !sys::wants_cpu(same_cpu.handler.load(Acquire)) {
                starved = 0;
            }
            if starved == STARVED || quiet == QUIET {
                return self.end(starved == STARVED) && starved == STARVED;
            }
        }
    }

    /// The standby handler becomes the same-CPU handler, if it may, and polls in place of the calling one. Not while it would serve
    /// several threads and the page daemon works, which would end it at once.
    fn begin_standby(&self) {
        let same_cpu = &self.same_cpu;
        let standby = same_cpu.standby.load(Relaxed);
        if standby != 0 && !(same_cpu.daemon_works.load(Acquire) && same_cpu.several.load(Relaxed)) {
            self.begin(standby);
        }
    }

    /// Whether the handler with this thread id may be the same-CPU handler from now on. The calling one polls alone.
    fn begin(&self, handler: u32) -> bool {
        let same_cpu = &self.same_cpu;
        let now = sys::now_ns();
        if now < same_cpu.again.load(Relaxed) {
            return false;
        }
        same_cpu.since.store(now, Relaxed);
        same_cpu.several.store(false, Relaxed);
        same_cpu.done.store(false, Relaxed);
        same_cpu.ordinary.store(false, Relaxed);
        same_cpu.handler.store(handler, Release);
        // one of the others must watch; if all of them were just called to poll, there is no same-CPU handler
        let watched = self.call_watcher(self.is_standby(handler));
        if !watched {
            same_cpu.handler.store(0, Release);
        }
        watched
    }

    /// Ends the same-CPU handler. `starved`: it did not get the CPU, so there is none for a while. Returns whether it had begun: it
    /// may not even have got the CPU for that.
    pub(crate) fn end(&self, starved: bool) -> bool {
        let same_cpu = &self.same_cpu;
        // also if another thread has ended it already: the handler may have written its CPU after that
        let cpu = same_cpu.cpu.swap(0, Relaxed);
        let handler = same_cpu.handler.swap(0, AcqRel);
        if handler == 0 {
            return false;
        }
        let standby = self.is_standby(handler);
        if standby {
            self.call_all();
            // what it has in hand it may finish where it is not in the program's way
            let anywhere = same_cpu.anywhere.each_ref().map(|cpus| cpus.load(Relaxed));
            let cpus = cpu.checked_sub(1).map_or(anywhere, |cpu| sys::without_cpu(anywhere, cpu as usize));
            sys::set_affinity_of(handler, &cpus); // (refused if no CPU is left)
        } else {
            sys::give_way(handler, false);
        }
        if starved {
            let now = sys::now_ns();
            let several = same_cpu.several.load(Relaxed);
            let (again, pause, lasts) = match several {
                true => (&same_cpu.several_again, &same_cpu.several_pause, SEVERAL_LAST),
                false => (&same_cpu.again, &same_cpu.pause, 1),
            };
            let paused = pause.load(Relaxed);
            // a handler that lasted much longer than the pause before it was worth it
            let good = now.saturating_sub(same_cpu.since.load(Relaxed)) > lasts * paused;
            let next = if good { *PAUSE_NS.start() } else { (2 * paused).min(*PAUSE_NS.end()) };
            pause.store(next, Relaxed);
            again.store(now + if standby { STANDBY_PAUSES * next } else { next }, Relaxed);
        }
        cpu != 0
    }

    /// The page daemon has worked for long and goes on (it says so at each of its turns), or it is about to sleep. It stays on the
    /// CPU of the handler, which would get a 341st part of it. So a handler of several threads is an ordinary thread meanwhile. It
    /// gives way again by itself.
    pub fn daemon_works(&self, works: bool) {
        let same_cpu = &self.same_cpu;
        let handler = same_cpu.handler.load(Acquire);
        same_cpu.daemon_works.store(works, Release);
        if !works || handler == 0 || !same_cpu.several.load(Relaxed) {
            return;
        }
        if self.is_standby(handler) {
            self.end(false);
        } else if !same_cpu.ordinary.swap(true, SeqCst) {
            sys::give_way(handler, false);
        }
    }

    fn is_standby(&self, handler: u32) -> bool {
        handler != 0 && handler == self.same_cpu.standby.load(Relaxed)
    }

    /// A fork waits until all that is in hand is done. A standby handler would be in no hurry, and the handlers that would watch it
    /// wait for the fork.
    pub fn freezes(&self) {
        if self.is_standby(self.same_cpu.handler.load(Acquire)) {
            self.end(false);
        }
    }

    /// Whether the calling thread runs on the same-CPU handler's CPU.
    pub fn is_here(&self) -> bool {
        let cpu = self.same_cpu.cpu.load(Relaxed);
        cpu != 0 && sys::current_cpu() == Some(cpu as usize - 1)
    }

    /// Notes how much the threads that read pages run, in thousandths of a processor.
    pub fn threads_run(&self, thousandths: u64) {
        self.same_cpu.idle.store(thousandths < SEVERAL_RUN, Relaxed);
    }

    /// Notes that the work for the threads that are about to be woken is done. While others wait, there is more.
    pub fn served(&self) {
        self.same_cpu.done.store(self.same_cpu.waiting.load(Relaxed) <= 0, Release);
    }

    /// Notes that so many more faults wait, or fewer.
    pub fn waits(&self, more: i32) {
        self.same_cpu.waiting.fetch_add(more, Relaxed);
    }

    /// Notes that the handler goes on.
    pub fn goes_on(&self) {
        self.same_cpu.done.store(false, Release);
    }
}

/// The watcher's interval, in nanoseconds: the first value at first and after a check without progress; it doubles up to the second
/// while the handler makes progress. (The watcher disturbs: for a moment the scheduler takes the handler's CPU for a busy one, and
/// may wake the program on another one. When the watcher checked every millisecond, it caused 16 of 23 such wakes in 0.1 s.)
const TICK_NS: core::ops::RangeInclusive<u64> = 1_000_000..=16_000_000;

/// After this many checks without progress the handler is made an ordinary thread again.
const STARVED: u32 = 2;

/// After this many ticks without a fault there is no same-CPU handler any more.
const QUIET: u32 = 50;

/// How long there is no same-CPU handler after one that made no progress, in nanoseconds: at first, and at most. It doubles each
/// time.
const PAUSE_NS: core::ops::RangeInclusive<u64> = 100_000_000..=10_000_000_000;

/// So many times as long after a standby handler that made no progress.
const STANDBY_PAUSES: u64 = 8;

/// Several threads have one handler as long as they do little but fault: while together they get less than this of one processor,
/// in thousandths. (Threads that read at random get 130, those of `xz -T2` 400 to 650. With one handler xz took 39 s instead of 26:
/// the threads of a CPU without the handler got more of the processors than the other, and load control came too late.)
const SEVERAL_RUN: u64 = 400;

/// A handler that served several threads and made no progress in the end was worth it if it lasted this many times as long as the
/// pause before it. While threads compute on its CPU, others wait two ticks for it: that must be a small part of the time.
const SEVERAL_LAST: u64 = 16;

/// After this many messages a handler decides anew whether it becomes, or stays, the same-CPU handler.
const MESSAGES: u32 = 64;

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
    may: bool,
    /// It is the standby handler.
    standby: bool,
    /// Its thread id.
    handler: u32,
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
    fn gives_way(&self, policy: &WakePolicy) -> bool {
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

/// Keeps a pager thread on the same-CPU handler's CPU, or off it, until this is dropped.
#[derive(Debug)]
pub struct Stays {
    on: bool,
    anywhere: [u64; 16],
    /// As in [`SameCpu`].
    cpu: u32,
}

impl Stays {
    /// The calling thread stays on that CPU. For the page daemon: a move flushes the TLB of each CPU on which the program runs, and
    /// an interrupt for another CPU takes six times as long as the rest of the move.
    pub fn on() -> Self {
        Stays { on: true, anywhere: sys::allowed_cpus(), cpu: 0 }
    }

    /// The calling thread stays off it. The scheduler takes that CPU for idle, so it would prefer it for the thread, and the
    /// handler would wait.
    pub fn off() -> Self {
        Stays { on: false, ..Stays::on() }
    }

    /// Follows a change of the same-CPU handler's CPU. To be called by the same thread, now and then.
    pub fn update(&mut self, policy: &WakePolicy) {
        let cpu = policy.same_cpu.cpu.load(Relaxed);
        if cpu != self.cpu {
            self.cpu = cpu;
            let cpus = match cpu.checked_sub(1).map(|cpu| cpu as usize) {
                None => self.anywhere,
                Some(cpu) if self.on => {
                    let only = sys::only_cpu(cpu);
                    core::array::from_fn(|i| self.anywhere[i] & only[i])
                }
                Some(cpu) => sys::without_cpu(self.anywhere, cpu),
            };
            // if no CPU is left, the kernel refuses, and the thread stays where it may run now
            sys::set_affinity(&cpus);
        }
    }
}

impl Drop for Stays {
    /// Lets the thread run on all its CPUs again.
    fn drop(&mut self) {
        if self.cpu != 0 {
            sys::set_affinity(&self.anywhere);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::futex_wake;
    use crate::wake_policy::{ALONE, STANDBY};

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
            while tid.load(Acquire) == 0 || !awake && sys::wants_cpu(tid.load(Acquire)) {
                std::thread::yield_now();
            }
            // the thread must end even if an assertion fails, because the scope waits for it
            let held = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| with(tid.load(Acquire))));
            ended.store(1, Release);
            futex_wake(&ended, 1);
            held.unwrap_or_else(|what| std::panic::resume_unwind(what));
        });
    }

    /// Whether a handler may be the same-CPU handler here.
    fn able(test: &str) -> bool {
        let able = sys::may_be_ordinary_again();
        if !able {
            println!("NOT RUN: {test}: needs CAP_SYS_NICE");
            assert!(std::env::var_os("CI").is_none());
        }
        able
    }

    /// A thread that gives way to others may get no CPU for a second, and threads that wait for it wait as long. So it must be
    /// found and made an ordinary thread. (Here the thread runs and makes no progress: a test cannot take the CPU away for so
    /// long.)
    #[test]
    fn a_handler_that_does_not_get_on_is_made_ordinary() {
        if !able("a_handler_that_does_not_get_on_is_made_ordinary") {
            return;
        }
        let (policy, anywhere) = (WakePolicy::default(), sys::allowed_cpus());
        (0..=ALONE).for_each(|_| policy.note(7, Some(0)));
        with_a_thread(
            true,
            || sys::give_way(0, true),
            |tid| {
                // `done` as far as faults go that have been read, and perhaps a message that it does not read
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
                    let has_work = !done || policy.same_cpu.waiting.load(Relaxed) > 0;
                    assert_eq!(policy.wait(seen, || readable), readable || has_work);
                    assert_eq!((scheduling_of(tid), policy.same_cpu.handler.load(Acquire)), (libc::SCHED_OTHER, 0));
                    assert_eq!(sys::allowed_cpus(), anywhere, "who watched stays off that CPU no longer");
                };
                starve(&policy, true, true);
                assert!(!policy.begin(tid), "not at once again");
                // no message waits, but it is in the middle of something, and perhaps holds a lock
                policy.same_cpu.again.store(0, Relaxed);
                starve(&policy, false, false);
                let pause = policy.same_cpu.pause.load(Relaxed);
                assert!(PAUSE_NS.contains(&pause));
                // it did not even get the CPU to begin: it ends, and does not count as one that had to
                policy.same_cpu.again.store(0, Relaxed);
                assert!(policy.begin(tid) && !policy.wait(policy.poller(), || true));
                assert_eq!(policy.same_cpu.handler.load(Acquire), 0);
                // it has served one thread, which computes, and another waits for a read
                policy.same_cpu.again.store(0, Relaxed);
                policy.waits(1);
                starve(&policy, true, false);
                policy.waits(-1);
                let pause = policy.same_cpu.pause.load(Relaxed);
                // nothing to do at all: it ends, and there is no pause
                policy.same_cpu.again.store(0, Relaxed);
                starve(&policy, true, false);
                assert_eq!((policy.same_cpu.again.load(Relaxed), policy.same_cpu.pause.load(Relaxed)), (0, pause));
                // all handlers poll from now on, so none watches
                for everyone in
                    [|policy: &WakePolicy| [8, 9].iter().for_each(|tid| policy.note(*tid, Some(0))), WakePolicy::call_everyone]
                {
                    assert!(policy.begin(tid));
                    sys::give_way(tid, true);
                    everyone(&policy);
                    assert!(WakePolicy::binds(policy.poller()));
                    assert_eq!((scheduling_of(tid), policy.same_cpu.handler.load(Acquire)), (libc::SCHED_OTHER, 0));
                    (0..=ALONE).for_each(|_| policy.note(7, Some(0)));
                }
            },
        );
        // a handler that waited more than two milliseconds for a device or a frame was mistaken for one that did not get the CPU
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

    /// Handlers that may not return from SCHED_IDLE could not be same-CPU handlers: without root, and in servers that give it up,
    /// each fault woke threads across CPUs. The standby handler is in their place. If it gets no CPU, the others take over.
    #[test]
    fn the_standby_handler_is_in_the_place_of_those_that_have_no_right() {
        let (policy, anywhere) = (WakePolicy::default(), sys::allowed_cpus());
        let polls = |cpu| WakePolicy::polls(policy.poller(), Some(cpu));
        let thread = sys::gettid();
        let mut ordinary = Candidate { may: false, ..Candidate::here(&policy, false) };
        let messages = |ordinary: &mut Candidate| {
            for _ in 0..MESSAGES {
                policy.note(thread, Some(0));
                ordinary.note(thread);
            }
            let alone = polls(0) && !WakePolicy::binds(policy.poller());
            assert!(!ordinary.decide(&policy, alone, &anywhere) && !ordinary.is_on());
        };
        messages(&mut ordinary);
        messages(&mut ordinary);
        assert!(polls(0) && !polls(STANDBY), "there is none");
        std::thread::scope(|scope| {
            let standby = scope.spawn(|| {
                let mut standby = Candidate::here(&policy, true);
                messages(&mut ordinary);
                assert!(polls(STANDBY) && !polls(0) && !polls(1));
                assert!(standby.decide(&policy, true, &anywhere) && standby.is_on());
                assert_eq!(scheduling_of(0), libc::SCHED_IDLE);
                let cpu = sys::cpu_of(thread).expect("its CPU");
                assert_eq!(sys::allowed_cpus(), sys::only_cpu(cpu));
                (0..2 * ALONE).for_each(|_| policy.note(thread, Some(STANDBY)));
                assert!(polls(STANDBY), "one thread faults");
                policy.end(true);
                assert!(!polls(STANDBY) && polls(0) && polls(1));
                let others = sys::without_cpu(anywhere, cpu);
                let one = sys::count_cpus(&anywhere) == 1;
                assert!(one || sys::allowed_cpus() == others, "what it has in hand it finishes elsewhere");
                (0..2 * ALONE).for_each(|_| policy.note(thread, Some(STANDBY)));
                assert!(!polls(STANDBY), "by faults that it has read before");
                assert!(!standby.decide(&policy, false, &anywhere) && !standby.is_on());
                assert_eq!(sys::allowed_cpus(), anywhere);
                messages(&mut ordinary);
                messages(&mut ordinary);
                assert!(polls(0) && !polls(STANDBY), "not at once again");
                let again = policy.same_cpu.again.load(Relaxed) - sys::now_ns();
                assert!((1..=STANDBY_PAUSES).contains(&again.div_ceil(*PAUSE_NS.start())), "{again} ns");
                policy.same_cpu.again.store(0, Relaxed);
                policy.same_cpu.several.store(true, Relaxed);
                policy.daemon_works(true);
                messages(&mut ordinary);
                assert!(polls(0), "the page daemon would end it at once");
                policy.daemon_works(false);
                for end in [WakePolicy::call_everyone, WakePolicy::freezes, |policy: &WakePolicy| {
                    policy.same_cpu.several.store(true, Relaxed);
                    policy.daemon_works(true);
                    policy.daemon_works(false);
                }] {
                    messages(&mut ordinary);
                    messages(&mut ordinary);
                    assert!(polls(STANDBY));
                    end(&policy);
                    assert!(!polls(STANDBY) && polls(0) && policy.same_cpu.handler.load(Acquire) == 0);
                }
                // others have begun to poll before it did
                policy.same_cpu.handler.store(standby.handler, Release);
                assert!(!standby.decide(&policy, false, &anywhere) && policy.same_cpu.handler.load(Acquire) == 0);
            });
            standby.join().expect("it is right");
        });
    }

    /// A handler of several threads that began while the page daemon worked was not told, got no CPU, and was ended with a pause.
    #[test]
    fn the_page_daemon_gets_by_with_a_handler_of_several_threads() {
        if !able("the_page_daemon_gets_by_with_a_handler_of_several_threads") {
            return;
        }
        let policy = WakePolicy::default();
        let candidate = Candidate::here(&policy, false);
        (0..=ALONE).for_each(|_| policy.note(7, Some(0)));
        for several in [false, true] {
            policy.daemon_works(true);
            assert!(policy.begin(candidate.handler) && candidate.gives_way(&policy));
            policy.same_cpu.several.store(several, Relaxed);
            assert_eq!(scheduling_of(0), libc::SCHED_IDLE);
            let expected = if several { libc::SCHED_OTHER } else { libc::SCHED_IDLE };
            policy.daemon_works(true);
            assert_eq!(scheduling_of(0), expected);
            assert!(candidate.gives_way(&policy));
            assert_eq!(scheduling_of(0), expected, "not before the page daemon sleeps");
            policy.end(false);
            assert_eq!(scheduling_of(0), libc::SCHED_OTHER);
        }
    }

    /// The handler goes to the CPU of the thread whose faults it serves, and stays there until somebody ends it.
    #[test]
    fn it_is_on_the_programs_cpu_until_it_is_ended() {
        let anywhere = sys::allowed_cpus();
        let cpus: Vec<usize> = sys::cpus_of(&anywhere).collect();
        for cpu in [cpus[0], cpus[cpus.len() - 1]] {
            let policy = WakePolicy::default();
            let mut candidate = Candidate::here(&policy, false);
            let messages = |candidate: &mut Candidate, of: u32| {
                (0..MESSAGES).for_each(|_| {
                    policy.note(of, Some(0));
                    candidate.note(of);
                });
                candidate.decide(&policy, !WakePolicy::binds(policy.poller()), &anywhere) && candidate.is_on()
            };
            with_a_thread(
                false,
                || sys::set_affinity(&sys::only_cpu(cpu)),
                |tid| {
                    assert_eq!(sys::cpu_of(tid), Some(cpu));
                    messages(&mut candidate, tid);
                    if candidate.may {
                        assert!(messages(&mut candidate, tid));
                        assert_eq!(sys::allowed_cpus(), sys::only_cpu(cpu));
                        assert_eq!(scheduling_of(0), libc::SCHED_IDLE);
                        policy.end(false);
                        sys::give_way(0, false); // as its watcher does
                        assert!(messages(&mut candidate, tid), "it begins anew before it has noticed its end");
                        assert_eq!(scheduling_of(0), libc::SCHED_IDLE);
                    }
                    policy.end(false);
                    assert!(!candidate.decide(&policy, true, &anywhere) && !candidate.is_on());
                    assert_eq!(sys::allowed_cpus(), anywhere);
                    assert_eq!(scheduling_of(0), libc::SCHED_OTHER);
                },
            );
        }
    }

    #[test]
    fn a_thread_is_there_if_it_runs_on_that_cpu() {
        let policy = WakePolicy::default();
        assert!(!policy.is_here(), "there is none");
        let anywhere = sys::allowed_cpus();
        let cpu = sys::cpus_of(&anywhere).next().expect("this thread runs somewhere");
        sys::set_affinity(&sys::only_cpu(cpu));
        for (of, here) in [(cpu, true), (cpu + 1, false)] {
            policy.same_cpu.cpu.store(of as u32 + 1, Relaxed);
            assert_eq!(policy.is_here(), here);
        }
        sys::set_affinity(&anywhere);
    }

    /// On another CPU, the page daemon spent 60 % of its time on interrupts for the program's CPU: a hash of strings in three
    /// quarters of its memory took 13.6 s instead of 10.3. The watcher must not be where the handler may not get on.
    #[test]
    fn the_page_daemon_stays_on_that_cpu_and_the_watcher_off_it() {
        let anywhere = sys::allowed_cpus();
        let cpu = sys::cpus_of(&anywhere).next().expect("this thread runs somewhere");
        let others = sys::without_cpu(anywhere, cpu);
        let others = if sys::count_cpus(&anywhere) > 1 { others } else { anywhere };
        for (make, there) in [(Stays::on as fn() -> Stays, sys::only_cpu(cpu)), (Stays::off, others)] {
            let (policy, mut stays) = (WakePolicy::default(), make());
            stays.update(&policy);
            assert_eq!(sys::allowed_cpus(), anywhere);
            policy.same_cpu.cpu.store(cpu as u32 + 1, Relaxed);
            stays.update(&policy);
            assert_eq!(sys::allowed_cpus(), there);
            policy.end(false);
            stays.update(&policy);
            assert_eq!(sys::allowed_cpus(), anywhere);
            policy.same_cpu.cpu.store(cpu as u32 + 1, Relaxed);
            stays.update(&policy);
            drop(stays);
            assert_eq!(sys::allowed_cpus(), anywhere);
        }
    }
}

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

mod candidate;
mod stays;
#[cfg(test)]
mod tests;

pub use candidate::Candidate;
pub use stays::Stays;

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

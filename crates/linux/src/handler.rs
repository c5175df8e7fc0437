//! The thread of a handler. It serves messages until the machine quits. There is one per CPU.
//!
//! The [wake policy](crate::wake_policy) decides which handlers wait for messages, and on which CPU. The machine
//! ([`overspill_machine::handler`]) serves them.

use crate::credentials::Follower;
use crate::halt_poll::{self, HaltPoll};
use crate::io::{Engine, PENDING_MAX};
use crate::kernel::Linux;
use crate::machine::{Machine, Served};
use crate::reader::TOKEN_OTHER;
use crate::same_cpu::Candidate;
use crate::spinner::{SPIN_NS, Spinner};
use crate::sys::{self, Errno};
use crate::wake_policy::{STANDBY, WakePolicy};
use overspill_machine::events::MESSAGES;
use overspill_machine::kernel::{Io as _, Kernel as _, Uffd as _};

const TOKEN_MESSAGES: u64 = TOKEN_OTHER;
const TOKEN_QUIT: u64 = TOKEN_OTHER + 1;
/// After so many reads a handler has the kernel work off its poll's wakes.
const LOOKS_AFTER: u32 = PENDING_MAX / MESSAGES as u32 - 1;

/// What a handler knows from one round to the next.
struct Handler<'a> {
    machine: &'a Machine,
    policy: &'a WakePolicy,
    inner: overspill_machine::handler::Handler<Linux>,
    /// The descriptor that messages are read from.
    messages: i32,
    /// The CPU that it is bound to when all handlers poll, or [`STANDBY`].
    cpu: Option<usize>,
    /// The CPUs on which it may run otherwise, and their number.
    anywhere: [u64; 16],
    cpus: u32,
    bound: bool,
    /// It waits for messages.
    polls: bool,
    /// No other handler waits for messages, and there is more than one CPU.
    alone: bool,
    /// There may be a message.
    readable: bool,
    /// Nothing says that there is one: it is guessed, because all work is done.
    guessed: bool,
    /// The last guess was wrong, and no message has come since.
    missed: bool,
    /// How often it has read messages since the kernel last worked off its poll's wakes, one for each message.
    reads: u32,
    spinner: Spinner,
    candidate: Candidate,
    halt_poll: HaltPoll,
}

/// Serves messages until the machine quits. Calls `ready` as soon as it can serve them.
///
/// # Errors
/// If its I/O cannot be set up.
pub fn run(
    machine: &Machine,
    engine: Engine,
    cluster_pages: usize,
    cpu: Option<usize>,
    follower: &mut Follower,
    ready: impl FnOnce(),
) -> Result<(), Errno> {
    let mut handler = Handler::new(machine, engine, cluster_pages, cpu)?;
    ready();
    sys::take_short_slices();
    while !machine.shutdown.has_begun() {
        handler.follow_rights(follower);
        if handler.waits_for_fork() {
            continue;
        }
        let poller = handler.policy.poller();
        handler.take_part(poller);
        if handler.sleeps(poller) {
            continue;
        }
        handler.wait();
        handler.inner.reap(machine, |done| handler.readable |= done.token == TOKEN_MESSAGES);
        if machine.freeze.is_on() {
            handler.inner.pause();
            continue; // no new reads; what is in flight is finished above
        }
        handler.inner.retry(machine);
        handler.serve();
        handler.inner.finish(machine);
    }
    Ok(())
}

impl<'a> Handler<'a> {
    fn new(machine: &'a Machine, engine: Engine, cluster_pages: usize, cpu: Option<usize>) -> Result<Self, Errno> {
        let mut inner = overspill_machine::handler::Handler::<Linux>::new(engine, cluster_pages)?;
        match machine.shutdown.event() {
            -1 => {}
            event => inner.reader.io.watch(event, TOKEN_QUIT),
        }
        let anywhere = sys::allowed_cpus();
        Ok(Handler {
            machine,
            policy: &machine.host.wake_policy,
            inner,
            messages: machine.map.read().program.raw(),
            cpu,
            anywhere,
            cpus: sys::count_cpus(&anywhere),
            bound: false,
            polls: false,
            alone: false,
            readable: true,
            guessed: false,
            missed: false,
            reads: 0,
            spinner: Spinner::default(),
            candidate: Candidate::here(&machine.host.wake_policy, cpu == Some(STANDBY)),
            halt_poll: HaltPoll::new(machine.host.halt_polls),
        })
    }

    /// Gives up rights if the program has given them up.
    fn follow_rights(&mut self, follower: &mut Follower) {
        if follower.is_due(&self.machine.host.following) {
            self.candidate.leave(self.policy, &self.anywhere);
            self.halt_poll.stop();
            follower.follow(&self.machine.host.following);
            self.candidate.has_given_up(self.policy);
        }
    }

    /// Waits for a while if a fork is being made and nothing is in flight. Returns whether it did.
    fn waits_for_fork(&mut self) -> bool {
        let waits = self.machine.freeze.is_on() && self.inner.reader.in_flight() == 0;
        if waits {
            self.machine.follow_own_discards();
            self.machine.freeze.wait(1_000_000);
            self.readable = true;
        }
        waits
    }

    /// Follows the wake policy: waits for messages or not, and is bound to its CPU or not.
    fn take_part(&mut self, poller: u32) {
        if self.polls != WakePolicy::polls(poller, self.cpu) {
            self.polls = !self.polls;
            match self.polls {
                true => self.inner.reader.io.watch(self.messages, TOKEN_MESSAGES),
                false => self.inner.reader.io.unwatch(TOKEN_MESSAGES),
            }
        }
        self.alone = self.polls && !WakePolicy::binds(poller) && self.cpus > 1;
        if self.candidate.decide(self.policy, self.alone, &self.anywhere) {
            self.machine.status.counters.same_cpu_begun.add(1);
        }
        let alone = self.machine.host.family.as_ref().is_none_or(|family| !family.has_kin());
        if self.halt_poll.decide(alone, sys::now_ns) {
            self.machine.status.counters.halt_poll_begun.add(1);
        }
        if let Some(cpu) = self.cpu
            && cpu != STANDBY
            && self.bound != WakePolicy::binds(poller)
        {
            self.bound = !self.bound;
            sys::set_affinity(&if self.bound { sys::only_cpu(cpu) } else { self.anywhere });
        }
    }

    /// Whether no read is under way and no fault waits to be tried again.
    fn is_done(&self) -> bool {
        self.inner.reader.in_flight() == 0 && self.inner.waiting() == 0
    }

    /// Sleeps until the wake policy changes, if there is nothing for this handler to do. Returns whether it did.
    fn sleeps(&mut self, poller: u32) -> bool {
        let sleeps = !self.polls && self.is_done() && !self.inner.follows() && !self.inner.reader.io.has_poll(TOKEN_MESSAGES);
        if sleeps {
            self.halt_poll.stop();
            self.inner.reader.give_back(self.machine, true);
            if self.cpu == Some(STANDBY) {
                self.policy.sleep(poller);
            } else if self.policy.wait(poller, || sys::is_readable(self.messages)) {
                self.machine.status.counters.same_cpu_starved.add(1);
            }
        }
        sleeps
    }

    /// Waits for a message or a completion, polling first where that pays.
    ///
    /// A same-CPU handler that gets the CPU again after its last answer mostly finds the program at its next fault. So it does not
    /// wait, nor ask whether there is a message, but reads.
    fn wait(&mut self) {
        let looks = self.reads >= LOOKS_AFTER;
        if looks {
            self.reads = 0;
            self.inner.reader.io.spin(0, false);
        }
        if self.inner.is_refused() {
            self.inner.reader.io.spin(0, true); // the thread in whose way the fault is may want the CPU
            self.readable = true;
            return;
        }
        let may_read = self.readable && self.inner.has_room();
        if may_read && (looks || self.inner.reader.in_flight() == 0) {
            return;
        }
        if self.inner.follows() {
            self.inner.reader.io.spin(0, false);
            return;
        }
        self.guessed = !self.missed && self.candidate.is_on() && self.is_done();
        if self.guessed {
            self.readable = true;
            return;
        }
        let reader = &mut self.inner.reader;
        let spins = self.alone && if self.candidate.is_on() { reader.in_flight() > 0 } else { self.spinner.due() };
        let found = spins
            && match reader.io.spin(SPIN_NS, self.candidate.is_on()) {
                spun if self.candidate.is_on() => self.candidate.note_spun(spun),
                spun => self.spinner.note(spun),
            };
        if !found {
            let halt_poll = if self.halt_poll.asks() { halt_poll::SLEEP_NS } else { 1_000_000_000 };
            let buffers = if self.inner.reader.has_buffers() { Linux::UNUSED_NS } else { 1_000_000_000 };
            let patience = self.inner.patience().unwrap_or(halt_poll.min(buffers));
            if self.candidate.is_on() && self.is_done() {
                self.policy.served(); // so that nobody watches a handler whose program sleeps
                self.inner.reader.io.wait(Some(patience));
                self.policy.goes_on();
            } else {
                self.inner.reader.io.wait(Some(patience));
            }
            self.reads = 0;
            self.inner.reader.io.check_watches();
        }
    }

    /// Reads and serves messages while there are any. A message wakes every handler that polls, and only one of them gets it. So if
    /// there are several, it looks before it reads, which takes the exclusive map lock.
    fn serve(&mut self) {
        let (machine, policy, cpu) = (self.machine, self.policy, self.cpu);
        while self.readable && self.inner.has_room() && self.reads < LOOKS_AFTER {
            let (candidate, halt_poll, mut any) = (&mut self.candidate, &mut self.halt_poll, false);
            self.reads += 1;
            self.readable = (self.alone || sys::is_readable(self.messages))
                && self.inner.read_messages(machine, |thread, served| match served {
                    None => {
                        any = true;
                        policy.note(thread, cpu);
                        candidate.note(thread);
                        halt_poll.note();
                    }
                    Some(Served::Held) => machine.status.counters.held_faults.add(1),
                    Some(_) => {}
                });
            if core::mem::take(&mut self.guessed) {
                candidate.note_guess(policy, any);
            }
            self.missed = !any;
        }
    }
}

//! Actors take turns by a seed. Program threads, handlers and daemons run their own loops, and at each operation on a [`Word`]
//! another actor may go on instead. Time is virtual, and passes when all wait.
//!
//! Actors are coroutines of one thread. (Threads that pass a baton would need no crate, but passing it takes 5 us or more, and a
//! hundred times that from processor to processor. A coroutine takes 0.1 us, and a run has some thousand turns.) All actors share
//! one thread, so anything between two operations on words is atomic here. Weak memory is loom's business.
//!
//! In half of the runs each turn goes to any actor. In the other half actors have ranks, and the first that can go on does; at
//! random moments the running one becomes the last. So an actor may stay behind for long, between any two of its steps (Burckhardt,
//! Kothari, Musuvathi, Nagarakatte 2010).
//!
//! A run fails, whatever the actors themselves assert, if:
//! - a wait that a wake should end is ended by its time-out although its word has changed: a wake was lost. So a time-out is a
//!   [`Timeout::Tick`] (a clock: it is meant to fire) or a [`Timeout::Rescue`];
//! - no actor can go on except by a rescue, and a program has not ended;
//! - no program has made progress ([`progress`]) for ten seconds of virtual time.

pub mod shared;
mod word;

use crate::rng::Rng;
use generator::{Generator, Gn};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use word::Wait;
pub use word::{Timeout, Woken, Word};

/// Nanoseconds that a turn takes.
const TURN_NS: u64 = 100;
/// With ranks, the running actor becomes the last in one turn of this many.
const DEMOTION: usize = 24;
/// Without progress for this long, everything counts as stuck.
const PATIENCE_NS: u64 = 10_000_000_000;
/// Words of an actor's stack.
const STACK_WORDS: usize = 0x8000;

/// The role of an actor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The run is over when all programs have ended.
    Program,
    /// It never ends.
    Service,
}

/// One actor.
pub struct Actor {
    /// Its name in reports.
    pub name: &'static str,
    /// Its role.
    pub role: Role,
    /// Its code.
    pub act: Box<dyn FnOnce() + Send>,
}

/// The figures of a successful run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    /// Turns taken.
    pub turns: u64,
    /// Virtual nanoseconds.
    pub ns: u64,
    /// Waits that a [`Timeout::Rescue`] ended without a visible reason.
    pub rescues: u64,
}

/// Why a run failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// This actor was not woken although its word has changed.
    LostWake(&'static str),
    /// These actors wait, and no actor is left who could wake them; only rescues would.
    Stuck(Vec<&'static str>),
    /// No program made progress for too long.
    NoProgress,
    /// An actor panicked.
    Panicked(String),
}

enum State {
    Runs,
    Waits(Wait),
    Ended,
}

struct Run {
    rng: Rng,
    now: u64,
    turns: u64,
    rescues: u64,
    progress_at: u64,
    running: usize,
    states: Vec<State>,
    /// The order of ranks: the first that can go on does. Empty: any actor may.
    ranks: Vec<usize>,
    /// How each actor's last wait ended.
    woken: Vec<Woken>,
    /// The number of waits begun. It gives the order in which the waiters of a word are woken.
    waits: u64,
    /// The run ends here.
    stopped: bool,
}

thread_local! {
    /// The run that this thread is in.
    static RUN: RefCell<Option<Run>> = const { RefCell::new(None) };
}

fn with<T>(f: impl FnOnce(&mut Run) -> T) -> T {
    RUN.with_borrow_mut(|run| f(run.as_mut().expect("within a run")))
}

/// Whether the caller is an actor of a run, rather than code that prepares a run or cleans up after it.
pub fn is_running() -> bool {
    generator::is_generator() && !std::thread::panicking() && RUN.with_borrow(Option::is_some)
}

/// The number of the running actor. => in a run
pub fn running() -> usize {
    with(|run| run.running)
}

/// Another actor may go on here.
pub fn turn() {
    if !is_running() {
        return;
    }
    // (the scoped variant passes the scope to a closure; this is called from far below it)
    #[allow(deprecated)]
    generator::yield_with(());
}

/// Virtual nanoseconds since the run began.
pub fn now() -> u64 {
    RUN.with_borrow(|run| run.as_ref().map_or(0, |run| run.now))
}

/// Notes that a program has made progress.
pub fn progress() {
    with(|run| run.progress_at = run.now);
}

/// All actors stop here, as when the power fails. The run ends without a failure.
pub fn stop() {
    with(|run| run.stopped = true);
    turn();
}

/// Runs actors until all programs have ended, or one of them stops all.
///
/// # Errors
/// The [`Failure`] that ended the run before that.
pub fn run(seed: u64, actors: Vec<Actor>) -> Result<Report, Failure> {
    let count = actors.len();
    let states = (0..count).map(|_| State::Runs).collect();
    let mut rng = Rng::new(seed);
    let mut ranks = Vec::new();
    if rng.below(2) == 0 {
        (0..count).for_each(|actor| ranks.insert(rng.below(actor + 1), actor));
    }
    let start = Run {
        ranks,
        rng,
        now: 0,
        turns: 0,
        rescues: 0,
        progress_at: 0,
        running: 0,
        states,
        woken: vec![Woken::Woken; count],
        waits: 0,
        stopped: false,
    };
    RUN.with_borrow_mut(|run| assert!(run.replace(start).is_none(), "one run in a thread at a time"));
    let who: Vec<(&'static str, Role)> = actors.iter().map(|actor| (actor.name, actor.role)).collect();
    let mut bodies: Vec<Generator<'_, (), ()>> =
        actors.into_iter().map(|actor| Gn::new_opt(STACK_WORDS, move || (actor.act)())).collect();
    let result = loop {
        match with(|run| run.next(&who)) {
            Next::Ended(result) => break result,
            Next::Goes(actor) => match catch_unwind(AssertUnwindSafe(|| bodies[actor].resume())) {
                Ok(_) if !bodies[actor].is_done() => {}
                Ok(_) => with(|run| run.states[actor] = State::Ended),
                Err(panic) => {
                    let text = panic.downcast_ref::<String>().cloned();
                    let text = text.or(panic.downcast_ref::<&str>().map(|text| text.to_string()));
                    break Err(Failure::Panicked(format!("{}: {}", who[actor].0, text.unwrap_or_default())));
                }
            },
        }
    };
    RUN.take();
    // Dropping an unfinished actor would unwind it, and drop its values in a world that has come to its end.
    bodies.into_iter().filter(|body| !body.is_done()).for_each(std::mem::forget);
    result
}

/// The next turn, or the end.
enum Next {
    Goes(usize),
    Ended(Result<Report, Failure>),
}

impl Run {
    fn next(&mut self, who: &[(&'static str, Role)]) -> Next {
        let over = |(state, (_, role)): (&State, &(_, Role))| *role == Role::Service || matches!(state, State::Ended);
        if self.stopped || self.states.iter().zip(who).all(over) {
            return Next::Ended(Ok(Report { turns: self.turns, ns: self.now, rescues: self.rescues }));
        }
        if self.now > self.progress_at + PATIENCE_NS {
            return Next::Ended(Err(Failure::NoProgress));
        }
        (self.turns, self.now) = (self.turns + 1, self.now + TURN_NS);
        self.fire(|wait| matches!(wait.timeout, Timeout::Tick(_)));
        let able = |run: &Run| (0..run.states.len()).filter(|i| matches!(run.states[*i], State::Runs)).collect::<Vec<_>>();
        let mut list = able(self);
        if list.is_empty() {
            // all wait: time passes until the first wait's time-out
            let waits = || self.states.iter().filter_map(|s| if let State::Waits(wait) = s { Some(wait) } else { None });
            let until = waits().filter_map(|wait| wait.until).min();
            if let Some(until) = until {
                self.now = self.now.max(until);
            }
            let lost = |s: &State| matches!(s, State::Waits(wait) if wait.is_lost(self.now));
            if let Some(lost) = self.states.iter().position(lost) {
                return Next::Ended(Err(Failure::LostWake(who[lost].0)));
            }
            if !waits().any(|wait| matches!(wait.timeout, Timeout::Tick(_))) {
                let stuck = self.states.iter().zip(who).filter(|(s, _)| matches!(s, State::Waits(_))).map(|(_, (name, _))| *name);
                return Next::Ended(Err(Failure::Stuck(stuck.collect())));
            }
            self.fire(|_| true);
            list = able(self);
        }
        self.running = self.choose(&list);
        Next::Goes(self.running)
    }

    /// Chooses which of them goes on.
    fn choose(&mut self, able: &[usize]) -> usize {
        if self.ranks.is_empty() {
            return self.rng.pick(able);
        }
        if self.rng.below(DEMOTION) == 0 {
            self.ranks.retain(|actor| *actor != self.running);
            self.ranks.push(self.running);
        }
        *self.ranks.iter().find(|actor| able.contains(actor)).expect("all have one")
    }

    /// Ends the waits that have reached their time-outs, among those that `of` selects.
    fn fire(&mut self, of: impl Fn(&Wait) -> bool) {
        for (state, woken) in self.states.iter_mut().zip(&mut self.woken) {
            if matches!(state, State::Waits(wait) if of(wait) && wait.until.is_some_and(|until| until <= self.now)) {
                self.rescues += u64::from(matches!(state, State::Waits(Wait { timeout: Timeout::Rescue(_), .. })));
                (*state, *woken) = (State::Runs, Woken::TimedOut);
            }
        }
    }
}

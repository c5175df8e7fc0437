//! A word that threads share and wait on: an atomic, with futex(2)'s wait and wake.

use super::{State, is_running, turn, with};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// How long a wait lasts at most, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Timeout {
    /// Until it is woken.
    Never,
    /// A clock: the wait is meant to end by it.
    Tick(u64),
    /// A safeguard in case a wake is lost. It must never end a wait whose word has changed.
    Rescue(u64),
}

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// By a wake.
    Woken,
    /// The word already had another value.
    Changed,
    /// By its time-out.
    TimedOut,
}

/// A wait.
pub(super) struct Wait {
    word: Arc<AtomicU32>,
    expected: u32,
    pub(super) timeout: Timeout,
    pub(super) until: Option<u64>,
    order: u64,
}

impl Wait {
    /// Whether the wait ends now by its time-out although its word has changed.
    pub(super) fn is_lost(&self, now: u64) -> bool {
        let over = self.until.is_some_and(|until| until <= now);
        over && matches!(self.timeout, Timeout::Rescue(_)) && self.word.load(SeqCst) != self.expected
    }
}

/// The word. Another actor may go on before each operation.
#[derive(Debug, Default)]
pub struct Word(Arc<AtomicU32>);

impl Word {
    /// With this value.
    pub fn new(value: u32) -> Self {
        Word(Arc::new(AtomicU32::new(value)))
    }
    /// Its value.
    pub fn load(&self) -> u32 {
        turn();
        self.0.load(SeqCst)
    }
    /// Sets it.
    pub fn store(&self, value: u32) {
        turn();
        self.0.store(value, SeqCst);
    }
    /// Sets it, and returns the old value.
    pub fn swap(&self, value: u32) -> u32 {
        turn();
        self.0.swap(value, SeqCst)
    }
    /// Adds, and returns the old value.
    pub fn add(&self, value: u32) -> u32 {
        turn();
        self.0.fetch_add(value, SeqCst)
    }
    /// Sets it if it is `from`. Returns whether it was.
    pub fn replace(&self, from: u32, to: u32) -> bool {
        turn();
        self.0.compare_exchange(from, to, SeqCst, SeqCst).is_ok()
    }
    /// Waits while it is `expected`.
    pub fn wait(&self, expected: u32, timeout: Timeout) -> Woken {
        turn();
        if self.0.load(SeqCst) != expected {
            return Woken::Changed;
        }
        with(|run| {
            let until = match timeout {
                Timeout::Never => None,
                Timeout::Tick(ns) | Timeout::Rescue(ns) => Some(run.now + ns),
            };
            run.waits += 1;
            let wait = Wait { word: Arc::clone(&self.0), expected, timeout, until, order: run.waits };
            run.states[run.running] = State::Waits(wait);
        });
        turn();
        with(|run| run.woken[run.running])
    }
    /// Wakes at most `most` waiters, in the order in which they came. Returns how many there were.
    pub fn wake(&self, most: usize) -> usize {
        if !is_running() {
            return 0;
        }
        turn();
        with(|run| {
            let waits = |state: &State| match state {
                State::Waits(wait) if Arc::ptr_eq(&wait.word, &self.0) => Some(wait.order),
                _ => None,
            };
            let mut list: Vec<(u64, usize)> =
                run.states.iter().enumerate().filter_map(|(i, state)| Some((waits(state)?, i))).collect();
            list.sort_unstable();
            list.truncate(most);
            for (_, actor) in &list {
                (run.states[*actor], run.woken[*actor]) = (State::Runs, Woken::Woken);
            }
            list.len()
        })
    }
}

//! Words on which threads sleep. Locks are made of them, and the machine's threads wait on them.

use core::fmt::Debug;
use core::sync::atomic::Ordering;

/// An atomic word on which threads can sleep.
pub trait Word {
    /// The calling thread, as a number that is unique to it, for the check of ranks; 0: it is not checked.
    #[inline(always)]
    fn thread() -> usize {
        0
    }
    /// A steady clock that is cheap to read, for the times that locks are held.
    #[inline(always)]
    fn ticks() -> u64 {
        0
    }
    /// Checks `ready` again and again before a sleep, for as long as that may be shorter than sleeping. Returns whether it became
    /// true.
    fn spin(ready: impl FnMut() -> bool) -> bool;
    /// Its value.
    fn load(&self, order: Ordering) -> u32;
    /// Sets it.
    fn store(&self, value: u32, order: Ordering);
    /// Sets it, and returns the old value.
    fn swap(&self, value: u32, order: Ordering) -> u32;
    /// Adds, and returns the old value.
    fn fetch_add(&self, n: u32, order: Ordering) -> u32;
    /// Subtracts, and returns the old value.
    fn fetch_sub(&self, n: u32, order: Ordering) -> u32;
    /// Sets it to `to` if it is `from`. Returns whether it was. The ordering of a failure is Relaxed.
    fn compare_exchange(&self, from: u32, to: u32, order: Ordering) -> bool;
    /// Sleeps if the word is still `expected`, until a wake. May also end without one.
    fn wait(&self, expected: u32);
    /// Wakes up to `count` sleepers.
    fn wake(&self, count: u32);
    /// A sequentially consistent fence.
    fn fence();
}

/// A word that threads wait on, also threads of other processes if it is in shared memory.
pub trait Futex: Word + Debug + Send + Sync + 'static {
    /// Zero.
    #[allow(clippy::declare_interior_mutable_const)] // each use makes a new word
    const ZERO: Self;
    /// Sets bits, and returns the old value.
    fn fetch_or(&self, bits: u32, order: Ordering) -> u32;
    /// Keeps only these bits, and returns the old value.
    fn fetch_and(&self, bits: u32, order: Ordering) -> u32;
    /// As [`Word::wait`], but not beyond the limit.
    fn wait_for(&self, expected: u32, limit: Limit);
    /// As [`Futex::wait_for`], for a word that processes may share.
    fn wait_shared(&self, expected: u32, limit: Limit);
    /// Wakes up to `count` threads that wait by [`Futex::wait_shared`].
    fn wake_shared(&self, count: u32);
}

/// How long a wait lasts at most, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// A clock: the wait is meant to end by its limit.
    Tick(u64),
    /// A safeguard in case a wake is forgotten: normally a wake or the word's new value ends the wait.
    Rescue(u64),
}

impl Limit {
    /// Nanoseconds.
    pub fn ns(self) -> u64 {
        let (Limit::Tick(ns) | Limit::Rescue(ns)) = self;
        ns
    }
}

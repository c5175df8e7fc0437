//! Words on which threads sleep: what locks are made of, and what the machine's threads wait on.

use core::fmt::Debug;
use core::sync::atomic::Ordering;

/// An atomic word on which threads can sleep.
pub trait Word {
    /// The calling thread, as a number of its own, for the check of ranks; 0: it is not checked.
    #[inline(always)]
    fn thread() -> usize {
        0
    }
    /// A steady clock that is cheap to read, for the times that locks are held.
    #[inline(always)]
    fn ticks() -> u64 {
        0
    }
    /// Looks at `ready` again and again before it sleeps, for as long as that may be the shorter way. Returns whether it became
    /// true.
    fn spin(ready: impl FnMut() -> bool) -> bool;
    /// Its value.
    fn load(&self, order: Ordering) -> u32;
    /// Sets it.
    fn store(&self, value: u32, order: Ordering);
    /// Sets it, and says what it was.
    fn swap(&self, value: u32, order: Ordering) -> u32;
    /// Adds, and says what it was.
    fn fetch_add(&self, n: u32, order: Ordering) -> u32;
    /// Subtracts, and says what it was.
    fn fetch_sub(&self, n: u32, order: Ordering) -> u32;
    /// Relaxed if it fails.
    fn compare_exchange(&self, from: u32, to: u32, order: Ordering) -> bool;
    /// Sleeps if the word is still `expected`, until it is woken or for no reason at all.
    fn wait(&self, expected: u32);
    /// Wakes so many sleepers.
    fn wake(&self, count: u32);
    /// A fence that all threads see in one order.
    fn fence();
}

/// A word that threads wait on, and processes that share it.
pub trait Futex: Word + Debug + Send + Sync + 'static {
    /// Zero.
    #[allow(clippy::declare_interior_mutable_const)] // it begins as many words
    const ZERO: Self;
    /// Sets bits, and says what it was.
    fn fetch_or(&self, bits: u32, order: Ordering) -> u32;
    /// Keeps these bits only, and says what it was.
    fn fetch_and(&self, bits: u32, order: Ordering) -> u32;
    /// As [`Word::wait`], and no longer than this.
    fn wait_for(&self, expected: u32, limit: Limit);
    /// The same, of a word that processes may share.
    fn wait_shared(&self, expected: u32, limit: Limit);
    /// Wakes so many who wait so.
    fn wake_shared(&self, count: u32);
}

/// How long a wait lasts at most, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// As a clock: that it ends so is what is meant.
    Tick(u64),
    /// In case that something is forgotten: a wake ends it, or the word's new value.
    Rescue(u64),
}

impl Limit {
    /// Nanoseconds.
    pub fn ns(self) -> u64 {
        let (Limit::Tick(ns) | Limit::Rescue(ns)) = self;
        ns
    }
}

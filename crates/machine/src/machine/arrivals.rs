//! Arrivals: free frames and pages that have come in. Faulting threads that serve themselves wait for them.

use crate::futex::{Futex, Limit};
use core::sync::atomic::Ordering::*;

/// How long a thread waits before it looks without being woken, in nanoseconds.
const WAIT_NS: u64 = 2_000_000;

/// Arrivals, and the threads that wait for them. Lock key: (F) a word that threads sleep on, atomic; (A) an atomic word.
#[derive(Debug)]
pub struct Arrivals<W> {
    /// (F) How many there were.
    count: W,
    /// (A) How many threads wait. At 0 nobody needs to be woken.
    waiters: W,
}

impl<W: Futex> Arrivals<W> {
    pub(super) const fn new() -> Self {
        Arrivals { count: W::ZERO, waiters: W::ZERO }
    }
    /// How many arrivals there were. A thread reads this before it looks for its frame or page. An arrival after that ends its
    /// wait.
    pub fn count(&self) -> u32 {
        self.count.load(Acquire)
    }
    /// Something has arrived.
    pub fn announce(&self) {
        self.count.fetch_add(1, Release);
        if self.waiters.load(SeqCst) != 0 {
            self.count.wake(i32::MAX as u32);
        }
    }
    /// Waits until there were more than `seen` arrivals, or a while has passed.
    pub fn wait(&self, seen: u32) {
        self.waiters.fetch_add(1, SeqCst);
        self.count.wait_for(seen, Limit::Rescue(WAIT_NS));
        self.waiters.fetch_sub(1, SeqCst);
    }
    /// In a copy of the machine: as many threads wait as in the original.
    pub(crate) fn copy(&self, from: &Self) {
        self.waiters.store(from.waiters.load(Relaxed), Relaxed);
    }
    /// In a fork's child: the parent's waiting threads do not exist here.
    pub(crate) fn forked(&self) {
        self.waiters.store(0, Relaxed);
    }
}

//! The page daemon's doorbell: how the daemon sleeps, and how it is woken.

use crate::kernel::{Futex as _, Host as _, Kernel, Limit, Mistake};
use crate::lock::Word as _;
use core::sync::atomic::Ordering::*;

/// The doorbell. Lock key: (F) a word that threads sleep on, atomic; (A) an atomic word.
pub(crate) struct Doorbell<K: Kernel> {
    /// (F) How often it was rung, by this process. In a family each member has another word instead, which the other members ring
    /// as well.
    own: K::Word,
    /// (A) 1: the daemon sleeps, or is about to.
    sleeps: K::Word,
}

impl<K: Kernel> Doorbell<K> {
    pub(super) const fn new() -> Self {
        Doorbell { own: K::Word::ZERO, sleeps: K::Word::ZERO }
    }
    fn word<'a>(&'a self, host: &'a K::Host) -> &'a K::Word {
        host.bell().unwrap_or(&self.own)
    }
    /// Wakes the daemon if it sleeps.
    pub(super) fn ring(&self, host: &K::Host) {
        if self.sleeps.swap(0, SeqCst) != 0 {
            self.ring_anyway(host);
        }
    }
    /// Wakes the daemon, also if it does not sleep yet but is about to.
    pub(super) fn ring_anyway(&self, host: &K::Host) {
        self.word(host).fetch_add(1, SeqCst);
        if !K::mistake(Mistake::RingsNobody) {
            self.word(host).wake_shared(1);
        }
    }
    /// How often it was rung.
    pub(crate) fn count(&self, host: &K::Host) -> u32 {
        self.word(host).load(SeqCst)
    }
    /// The daemon sleeps until it was rung more often than `seen`, or `ns` nanoseconds have passed. It does not sleep if `may` says
    /// that there is something to do by now. A ring after `seen` was read has changed the count, or it finds `sleeps` set.
    pub(crate) fn sleep(&self, host: &K::Host, seen: u32, ns: u64, may: impl FnOnce() -> bool) {
        self.sleeps.store(1, SeqCst);
        if may() {
            self.word(host).wait_shared(seen, Limit::Rescue(ns)); // a clock, too, but a ring ends the wait
        }
        self.sleeps.store(0, SeqCst);
    }
    /// The daemon waits for `ns` nanoseconds, unless a ring wakes it.
    pub(crate) fn pause(&self, host: &K::Host, ns: u64) {
        self.word(host).wait_shared(self.count(host), Limit::Tick(ns));
    }
    /// In a copy of the machine: the daemon sleeps if it does in the original.
    pub(crate) fn copy(&self, from: &Self) {
        self.sleeps.store(from.sleeps.load(Relaxed), Relaxed);
    }
    /// In a fork's child: the parent's daemon does not exist here.
    pub(crate) fn forked(&self) {
        self.sleeps.store(0, Relaxed);
    }
}

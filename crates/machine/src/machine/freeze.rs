//! The freeze of a fork: nobody starts I/O, and in the end no page is busy.
//!
//! Who waits for whom during a fork (no thread may wait for one above it, or for itself):
//!
//! | thread | waits for | which |
//! | --- | --- | --- |
//! | forks | page daemon, handlers, swapoff: their I/O and busy pages | need devices, and the two locks for moments |
//! | page daemon | the device, for writes under way | touches no page of the program's (see `Kernel::own_page`) |
//! | page daemon, while `Machine::discards_own` | a handler, that reads its event | they do, even during a freeze |
//! | handlers | the device, for reads under way; then the end of the freeze | |
//! | swapoff | the device; then the end of the freeze | does not wait for `swapping`, which the fork holds |
//! | helper thread | an unmapping thread, to read its event itself | that thread waits for nothing but its event |
//! | program's threads | handlers, for a page or an event | hold no lock of the pager's over it |
//! | program's threads, before they unmap or move memory | page daemon, that copies pages out there | hold no lock over it |
//! | forks, before the freeze | program's threads, that unmap or move memory | hold no lock over it; for a second at most |
//! | program's threads, before they unmap or move memory | the end of a fork | hold no lock over it |
//! | program's threads, before they move memory | others that move some | hold no lock over it |
//!
//! The last two wait at the gate of `remap_gate.rs`.

use crate::futex::{Futex, Limit};
use core::sync::atomic::{AtomicBool, Ordering::*};

/// How far a fork is. Lock key: (F) a word that threads sleep on, atomic, changed by the forking thread only; (K) atomic, changed
/// by the forking thread only.
#[derive(Debug)]
pub struct Freeze<W> {
    /// (K) The fork makes the process smaller first.
    shrinks: AtomicBool,
    /// (F) 1: a fork is about to happen.
    frozen: W,
}

impl<W: Futex> Freeze<W> {
    pub(super) const fn new() -> Self {
        Freeze { shrinks: AtomicBool::new(false), frozen: W::ZERO }
    }
    /// Whether nobody may start I/O. Faults of the whole process wait.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.frozen.load(Acquire) != 0
    }
    /// Waits until it ends, or so many nanoseconds have passed. => nothing of the calling thread's is in flight
    pub fn wait(&self, ns: u64) {
        self.frozen.wait_for(1, Limit::Tick(ns));
    }
    /// From now on nobody starts I/O.
    pub(crate) fn begin(&self) {
        self.frozen.store(1, SeqCst);
    }
    /// All go on.
    pub(crate) fn end(&self) {
        self.frozen.store(0, SeqCst);
        self.frozen.wake(i32::MAX as u32);
    }
    /// Whether a fork makes the process smaller: that nothing more can go is no reason to stop it.
    pub fn is_shrinking(&self) -> bool {
        self.shrinks.load(Relaxed)
    }
    /// Whether it does, from now on.
    pub(crate) fn set_shrinking(&self, shrinks: bool) {
        self.shrinks.store(shrinks, Relaxed);
    }
    /// In a copy of the machine: as it is there.
    pub(crate) fn copy(&self, from: &Self) {
        self.frozen.store(from.frozen.load(Relaxed), Relaxed);
        self.set_shrinking(from.is_shrinking());
    }
    /// In a fork's child: it has happened. (Another thread may have been making the process smaller for a fork of its own.)
    pub(crate) fn forked(&self) {
        self.frozen.store(0, Relaxed);
        self.set_shrinking(false);
    }
}

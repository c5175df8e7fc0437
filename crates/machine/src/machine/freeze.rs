//! The freeze of a fork: no thread starts I/O, and in the end no page is busy.
//!
//! Which thread waits for which during a fork (no thread may wait for one above it, or for itself):
//!
//! | thread | waits for | remarks |
//! | --- | --- | --- |
//! | forking thread | page daemon, handlers, swapoff: their I/O and busy pages | need devices, and both locks for moments |
//! | page daemon | the device, for writes under way | touches no page of the program's (see `Kernel::own_page`) |
//! | page daemon, while `Machine::discards_own` | a handler that reads its event | handlers do so even during a freeze |
//! | handlers | the device, for reads under way; then the end of the freeze | |
//! | swapoff | the device; then the end of the freeze | does not wait for `swapping`, which the fork holds |
//! | helper thread | an unmapping thread, whose event it reads itself | that thread waits only for its event to be read |
//! | program's threads | handlers, for a page or an event | hold no lock of the pager's meanwhile |
//! | program's threads, before they unmap or move memory | page daemon while it copies pages out there | hold no lock meanwhile |
//! | forking thread, before the freeze | program's threads that unmap or move memory | no lock held; for a second at most |
//! | program's threads, before they unmap or move memory | the end of a fork | hold no lock meanwhile |
//! | program's threads, before they move memory | others that move some | hold no lock meanwhile |
//!
//! The threads of the last two rows wait at the gate of `remap_gate.rs`.

use crate::futex::{Futex, Limit};
use core::sync::atomic::{AtomicBool, Ordering::*};

/// The state of a fork. Lock key: (F) a word that threads sleep on, atomic, changed by the forking thread only; (K) atomic, changed
/// by the forking thread only.
#[derive(Debug)]
pub struct Freeze<W> {
    /// (K) The fork first makes the process smaller.
    shrinks: AtomicBool,
    /// (F) 1: a fork is about to happen.
    frozen: W,
}

impl<W: Futex> Freeze<W> {
    pub(super) const fn new() -> Self {
        Freeze { shrinks: AtomicBool::new(false), frozen: W::ZERO }
    }
    /// Whether a freeze is on: no thread may start I/O, and faults of the whole process wait.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.frozen.load(Acquire) != 0
    }
    /// Waits until the freeze ends, or `ns` nanoseconds have passed. => the calling thread has no I/O in flight
    pub fn wait(&self, ns: u64) {
        self.frozen.wait_for(1, Limit::Tick(ns));
    }
    /// Begins the freeze: from now on no thread starts I/O.
    pub(crate) fn begin(&self) {
        self.frozen.store(1, SeqCst);
    }
    /// Ends the freeze: all threads go on.
    pub(crate) fn end(&self) {
        self.frozen.store(0, SeqCst);
        self.frozen.wake(i32::MAX as u32);
    }
    /// Whether a fork is making the process smaller. Then a lack of evictable pages is no reason to stop the program.
    pub fn is_shrinking(&self) -> bool {
        self.shrinks.load(Relaxed)
    }
    /// Sets whether a fork is making the process smaller.
    pub(crate) fn set_shrinking(&self, shrinks: bool) {
        self.shrinks.store(shrinks, Relaxed);
    }
    /// In a copy of the machine: as in the original.
    pub(crate) fn copy(&self, from: &Self) {
        self.frozen.store(from.frozen.load(Relaxed), Relaxed);
        self.set_shrinking(from.is_shrinking());
    }
    /// In a fork's child: the fork is over. (Another thread of the parent may have been making the process smaller for a fork of
    /// its own.)
    pub(crate) fn forked(&self) {
        self.frozen.store(0, Relaxed);
        self.set_shrinking(false);
    }
}

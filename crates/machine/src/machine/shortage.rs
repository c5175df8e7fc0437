//! A shortage of memory that the page daemon cannot end.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// The shortage. Lock key: (A) atomic, and by itself; (D) atomic, changed by the page daemon only.
#[derive(Debug)]
pub struct Shortage {
    /// (A) No frame is free and no page in memory can be written.
    starved: AtomicBool,
    /// (D) Since when the daemon has been able to do nothing, in nanoseconds; 0: it can do something, or has nothing to do.
    stuck_since: AtomicU64,
}

impl Shortage {
    pub(super) const fn new() -> Self {
        Shortage { starved: AtomicBool::new(false), stuck_since: AtomicU64::new(0) }
    }
    /// Whether frames are given out above the budget, because none is free and no page in memory can be written.
    #[inline]
    pub fn is_starved(&self) -> bool {
        self.starved.load(Relaxed)
    }
    /// Sets whether they are.
    pub fn set_starved(&self, starved: bool) {
        self.starved.store(starved, Relaxed);
    }
    /// Notes that the page daemon can do nothing now.
    pub(crate) fn note_stuck(&self, now: impl FnOnce() -> u64) {
        if self.stuck_since.load(Relaxed) == 0 {
            self.stuck_since.store(now(), Relaxed);
        }
    }
    /// Since when the page daemon has been able to do nothing, in nanoseconds.
    pub fn stuck_since(&self) -> Option<u64> {
        Some(self.stuck_since.load(Relaxed)).filter(|since| *since != 0)
    }
    /// The page daemon can do something, or has nothing to do.
    pub(crate) fn end(&self) {
        self.stuck_since.store(0, Relaxed);
        self.starved.store(false, Relaxed);
    }
    /// In a copy of the machine: as in the original.
    pub(crate) fn copy(&self, from: &Self) {
        self.starved.store(from.is_starved(), Relaxed);
        self.stuck_since.store(from.stuck_since.load(Relaxed), Relaxed);
    }
}

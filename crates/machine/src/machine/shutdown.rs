//! The end of a machine's threads.

use core::sync::atomic::{AtomicBool, AtomicI32, Ordering::*};

/// Whether the threads are to end. Lock key: (A) atomic, and by itself.
#[derive(Debug)]
pub struct Shutdown {
    /// (A) They are.
    begun: AtomicBool,
    /// (A) A descriptor; -1: there is none.
    event: AtomicI32,
}

impl Shutdown {
    pub(super) const fn new() -> Self {
        Shutdown { begun: AtomicBool::new(false), event: AtomicI32::new(-1) }
    }
    /// Whether they are.
    #[inline]
    pub fn has_begun(&self) -> bool {
        self.begun.load(Acquire)
    }
    /// They are. Whoever sleeps is to be woken after this.
    pub fn begin(&self) {
        self.begun.store(true, SeqCst);
    }
    /// The descriptor that is readable when they are, or while there is a round to be followed, for threads that wait for I/O; -1:
    /// there is none.
    pub fn event(&self) -> i32 {
        self.event.load(Acquire)
    }
    /// It is this one from now on.
    pub fn set_event(&self, fd: i32) {
        self.event.store(fd, Release);
    }
}

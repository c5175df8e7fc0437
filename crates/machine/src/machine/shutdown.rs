//! The end of a machine's threads.

use core::sync::atomic::{AtomicBool, AtomicI32, Ordering::*};

/// Whether the threads must end. Lock key: (A) atomic, and by itself.
#[derive(Debug)]
pub struct Shutdown {
    /// (A) They must.
    begun: AtomicBool,
    /// (A) A descriptor; -1: there is none.
    event: AtomicI32,
}

impl Shutdown {
    pub(super) const fn new() -> Self {
        Shutdown { begun: AtomicBool::new(false), event: AtomicI32::new(-1) }
    }
    /// Whether the threads must end.
    #[inline]
    pub fn has_begun(&self) -> bool {
        self.begun.load(Acquire)
    }
    /// Tells the threads to end. Sleeping threads must be woken after this.
    pub fn begin(&self) {
        self.begun.store(true, SeqCst);
    }
    /// A descriptor for threads that wait for I/O. It is readable when the threads must end, and while they all must look at a
    /// request of the helper thread's. -1: there is none.
    pub fn event(&self) -> i32 {
        self.event.load(Acquire)
    }
    /// Sets the descriptor.
    pub fn set_event(&self, fd: i32) {
        self.event.store(fd, Release);
    }
}

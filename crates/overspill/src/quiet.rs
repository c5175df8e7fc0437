//! Blocks signals while a thread of the program holds a lock of the pager's.
//!
//! Otherwise a signal handler of the program could interrupt the holder, touch a region, and wait in the pager's own handler for
//! the lock that its own thread holds. => no region memory is touched meanwhile: SIGBUS is blocked, too

use overspill_linux::sys;
use std::marker::PhantomData;

/// Blocks all signals of the calling thread until it is dropped.
pub struct Quiet(u64, PhantomData<*const ()>);

impl Quiet {
    /// Blocks them.
    pub fn new() -> Quiet {
        Quiet(sys::block_signals(), PhantomData)
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        sys::restore_signals(self.0);
    }
}

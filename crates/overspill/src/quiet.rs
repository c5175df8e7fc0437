//! Signals are blocked while a thread of the program's holds a lock of the pager's.
//!
//! Else a handler of the program's could interrupt the holder, touch a region, and wait in the pager's own handler for the lock
//! that its own thread holds. => no region memory is touched meanwhile: SIGBUS is blocked too

use overspill_linux::sys;
use std::marker::PhantomData;

/// While it lives, the calling thread takes no signals.
pub struct Quiet(u64, PhantomData<*const ()>);

impl Quiet {
    /// From now on.
    pub fn new() -> Quiet {
        Quiet(sys::block_signals(), PhantomData)
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        sys::restore_signals(self.0);
    }
}

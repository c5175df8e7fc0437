//! Blocks signals while a thread of the program holds a lock of the pager's.
//!
//! Otherwise a signal handler of the program could interrupt the holder, touch a region, and wait in the pager's own handler for
//! the lock that its own thread holds. => no region memory is touched meanwhile: SIGBUS is blocked, too
//!
//! A panic meanwhile ends the process. It is a failed assertion of ours. The pager's locks are not poisoned, so without this a
//! program that catches the panic would go on with tables of which nobody knows whether they are true, and could get another
//! page's memory.

use overspill_linux::sys;
use std::marker::PhantomData;
use std::thread;

/// Blocks all signals of the calling thread until it is dropped.
pub struct Quiet {
    mask: u64,
    /// Whether the thread was unwinding before: regions are dropped then, too.
    unwinding: bool,
    of: PhantomData<*const ()>,
}

impl Quiet {
    /// Blocks them.
    pub fn new() -> Quiet {
        Quiet { mask: sys::block_signals(), unwinding: thread::panicking(), of: PhantomData }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if thread::panicking() && !self.unwinding {
            std::process::abort();
        }
        sys::restore_signals(self.mask);
    }
}

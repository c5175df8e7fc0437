//! Whether the pager's handler for SIGBUS ([`crate::fault`]) is installed.
//!
//! What is here changes only while no thread forks ([`crate::forks::keep_off`]): a child must not wait for a thread that it does
//! not have.

use overspill_linux::sys;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// It is installed, or was, before it was put away.
pub static INSTALLED: AtomicBool = AtomicBool::new(false);

/// The thread that has put it away for a while ([`crate::with_handler_below`]), or 0.
pub static PUT_AWAY_BY: AtomicU32 = AtomicU32::new(0);

/// That thread is the one that forks.
static FORKS: AtomicBool = AtomicBool::new(false);

/// The calling thread is about to fork.
pub fn before_fork() {
    FORKS.store(PUT_AWAY_BY.load(Relaxed) == sys::gettid(), Relaxed);
}

/// In the child. If another thread had put the handler away, it stays away, and the next pager installs it.
pub fn forked() {
    if FORKS.load(Relaxed) {
        PUT_AWAY_BY.store(sys::gettid(), Relaxed);
    } else if PUT_AWAY_BY.swap(0, Relaxed) != 0 {
        INSTALLED.store(false, Relaxed);
    }
}

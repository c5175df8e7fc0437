//! Whose turn it is to remove a swap device. One swapoff at a time; those that are asked for come before those of devices that
//! have failed.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

/// How long to wait before it is looked again whose turn it is.
pub const LOOK: Duration = Duration::from_millis(1);

/// Nobody's turn.
const FREE: u32 = 0;
/// That of a swapoff that was asked for.
const ASKED: u32 = 1;
/// That of one of a device that has failed.
const OWN: u32 = 2;

/// The turns of a pager.
#[derive(Default)]
pub struct Turns {
    /// [`FREE`], [`ASKED`] or [`OWN`].
    turn: AtomicU32,
    /// Threads that ask for one.
    waiters: AtomicU32,
}

/// A turn, until it is dropped.
pub struct Turn<'a>(&'a Turns);

impl Turns {
    fn begin(&self, turn: u32) -> Result<Turn<'_>, u32> {
        self.turn.compare_exchange(FREE, turn, SeqCst, SeqCst).map(|_| Turn(self))
    }

    /// Begins that of a swapoff that is asked for. One of a device that has failed makes way. `None` if another one is under way.
    pub fn begin_asked(&self) -> Option<Turn<'_>> {
        self.waiters.fetch_add(1, SeqCst);
        let turn = loop {
            match self.begin(ASKED) {
                Err(OWN) => thread::sleep(LOOK),
                begun => break begun.ok(),
            }
        };
        self.waiters.fetch_sub(1, SeqCst);
        turn
    }

    /// Begins that of a device that has failed. `None` if another one is under way or asked for.
    pub fn begin_own(&self) -> Option<Turn<'_>> {
        if self.is_asked() { None } else { self.begin(OWN).ok() }
    }

    /// Whether one of a device that has failed is to make way.
    pub fn is_asked(&self) -> bool {
        self.waiters.load(SeqCst) > 0
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.turn.store(FREE, SeqCst);
    }
}

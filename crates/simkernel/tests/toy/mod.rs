//! The parts that both toys share.

use overspill_simkernel::sched::{Timeout, Word};

/// The lock in futex(2)'s own example: 0 free, 1 held, 2 held and waited for.
#[derive(Default)]
pub struct Lock(pub Word);

impl Lock {
    /// Takes it.
    pub fn lock(&self) {
        if !self.0.replace(0, 1) {
            while self.0.swap(2) != 0 {
                self.0.wait(2, Timeout::Rescue(50_000_000));
            }
        }
    }
    /// Gives it back. `wakes`: wakes a waiter, as it should.
    pub fn unlock(&self, wakes: bool) {
        if self.0.swap(0) == 2 && wakes {
            self.0.wake(1);
        }
    }
}

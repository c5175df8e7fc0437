//! How long a thread has waited, as far as it could look.
//!
//! A process that was stopped (SIGSTOP, a frozen control group) goes on when more time has passed than any wait is meant to last.
//! But none of the threads that it waits for has run meanwhile. So one look counts for little, however much later than the last
//! one it is.

/// The most time that one look counts for, in nanoseconds. The looks themselves are some milliseconds apart at most. Guessed: a
/// busy machine delays them by less.
const LOOK_NS: u64 = 100_000_000;

/// A wait. Times are CLOCK_MONOTONIC, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Waited {
    looked: u64,
    ns: u64,
}

impl Waited {
    /// It begins now.
    pub fn new(now: u64) -> Self {
        Waited { looked: now, ns: 0 }
    }
    /// How long it has lasted. To be called now and then.
    pub fn look(&mut self, now: u64) -> u64 {
        self.ns += now.saturating_sub(core::mem::replace(&mut self.looked, now)).min(LOOK_NS);
        self.ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_stop_does_not_count() {
        let mut waited = Waited::new(5);
        assert_eq!([5, 7, 7, 9].map(|now| waited.look(now)), [0, 2, 2, 4]);
        let stopped = 9 + 60_000_000_000;
        assert_eq!([stopped, stopped + 1].map(|now| waited.look(now)), [4 + LOOK_NS, 5 + LOOK_NS]);
    }
}

//! Decides whether a thread polls for a while before it sleeps.

use crate::io::Spun;

/// How long a handler polls before it sleeps, in nanoseconds: the time that a fast device takes for a page, and the rest of a
/// fault.
pub const SPIN_NS: u64 = 150_000;

/// The most that misses count. After n misses a thread sleeps at once 2^n - 1 times before it polls again.
const MISSES: u32 = 6;

/// The same if other threads wanted the CPU each time. A thread that yields the CPU gets it back only after milliseconds, while a
/// sleeper that is woken gets it at once. Next to two busy programs, random reads took half as long again with 2^6.
const PREEMPTED: u32 = 13;

/// After this many successes in a row, `preempted` begins anew.
const UNDISTURBED: u32 = 256;

/// Whether a thread should poll before it sleeps.
#[derive(Debug, Default)]
pub struct Spinner {
    skip: u32,
    missed: u32,
    preempted: u32,
    found: u32,
}

impl Spinner {
    /// Whether the thread should poll this time. If so, it must call [`Spinner::note`] afterwards.
    pub fn due(&mut self) -> bool {
        let due = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        due
    }
    /// Notes the outcome of polling. Returns whether something was found.
    pub fn note(&mut self, spun: Spun) -> bool {
        match spun {
            Spun::Found => {
                (self.missed, self.found) = (0, self.found + 1);
                if self.found == UNDISTURBED {
                    (self.preempted, self.found) = (0, 0);
                }
            }
            Spun::InVain => self.missed = (self.missed + 1).min(MISSES),
            Spun::Preempted => {
                self.preempted = (self.preempted + 1).clamp(MISSES, PREEMPTED);
                (self.missed, self.found) = (self.preempted, 0);
            }
        }
        self.skip = (1 << self.missed) - 1;
        spun == Spun::Found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_finds_nothing_looks_less_and_less() {
        let mut spinner = Spinner::default();
        let mut looks = |spun, waits| {
            let look = |_: &u32| {
                let due = spinner.due();
                due && spinner.note(spun) == (spun == Spun::Found)
            };
            (0..waits).filter(look).count()
        };
        assert_eq!(looks(Spun::Found, 100), 100);
        assert!(looks(Spun::InVain, 1000) < 25);
        assert!(looks(Spun::Found, 100) > 100 - 64, "it tries again, and finds something");
        assert_eq!(looks(Spun::Found, 100), 100);
        assert_eq!(looks(Spun::Preempted, 64), 1, "others want the CPU");
        assert!(looks(Spun::Preempted, 1 << 14) < 10, "they still do");
        assert!(looks(Spun::Found, 1 << 14) > 1 << 12, "no longer");
        assert_eq!(looks(Spun::Preempted, 64), 1, "and that they did is forgotten");
    }
}

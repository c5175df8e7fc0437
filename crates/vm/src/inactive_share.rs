//! How much of the budget may be inactive at a time.
//!
//! A reference is seen only on an inactive page, so the inactive pages tell a policy what is used. But each page of the working set
//! that is made inactive costs a move and a soft fault. Together they take a fifth of a hard fault's time, or half of it where all
//! CPUs are busy. So the share grows while there are fewer soft faults than early returns (hard faults soon after the page was
//! evicted), and shrinks while there are more than twice as many.
//!
//! A page that comes back from compressed memory takes only two or three times as long as a soft fault. Such a return counts less,
//! and where most returns are of that kind the share may become smaller.
//!
//! So it may where several threads fault, and nearly all inactive pages come back by soft faults. Then a soft fault takes half of a
//! hard fault's time: each move interrupts the other threads, and each message wakes several handlers.

use crate::policy::PARKED_PERMILLE;

/// The largest share, in thousandths. With more, a recorded hash of strings has more soft faults and no fewer hard ones.
const PERMILLE_MAX: u32 = 200;
/// The least share while most early returns are from compressed memory, or nearly all inactive pages of several threads are in use.
const PERMILLE_MIN: u32 = 15;
/// With so many times as many soft faults as early returns, nearly all inactive pages are in use. Guessed.
const NEARLY_ALL: u32 = 8;
/// A soft fault or a return from a device counts as so many returns from compressed memory.
const WEIGHT: u32 = 4;
/// The share is judged after this many soft faults and early returns, as a part of the budget's pages.
const JUDGED_PART: u32 = 16;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InactiveShare {
    permille: u32,
    soft: u32,
    early: u32,
    early_in_memory: u32,
    several: bool,
}

impl InactiveShare {
    pub(crate) fn new() -> Self {
        InactiveShare { permille: PARKED_PERMILLE, soft: 0, early: 0, early_in_memory: 0, several: false }
    }

    /// In pages, of a budget in pages.
    pub(crate) fn of(&self, budget: u32) -> u32 {
        (budget as u64 * self.permille as u64 / 1000) as u32
    }

    /// Whether several threads fault, as far as is known.
    pub(crate) fn set_several(&mut self, several: bool) {
        self.several = several;
    }

    /// An inactive page was touched.
    pub(crate) fn soft_fault(&mut self, budget: u32) {
        self.soft += 1;
        self.judge(budget);
    }

    /// A page was read back soon after its eviction, from compressed memory or from a device: it would not have been evicted if its
    /// last references had been seen.
    pub(crate) fn early_return(&mut self, in_memory: bool, budget: u32) {
        *if in_memory { &mut self.early_in_memory } else { &mut self.early } += 1;
        self.judge(budget);
    }

    fn judge(&mut self, budget: u32) {
        let early = self.early + self.early_in_memory / WEIGHT;
        if self.soft + early < budget / JUDGED_PART {
            return;
        }
        let cheap = self.early_in_memory > self.early || self.several && self.soft > NEARLY_ALL * early;
        let least = if cheap { PERMILLE_MIN } else { PARKED_PERMILLE };
        let step = (self.permille / 8).max(1);
        if self.soft < early {
            self.permille = (self.permille + step).min(PERMILLE_MAX);
        } else if self.soft > 2 * early {
            self.permille -= step;
        }
        self.permille = self.permille.max(least);
        (self.soft, self.early, self.early_in_memory) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: u32 = 16_000;

    /// So many times, this many soft faults and early returns.
    fn after(mut share: InactiveShare, times: u32, soft: u32, early: u32) -> InactiveShare {
        for _ in 0..times {
            (0..soft).for_each(|_| share.soft_fault(BUDGET));
            (0..early).for_each(|_| share.early_return(false, BUDGET));
        }
        share
    }

    /// A hash of 500,000 strings in 73 MiB of 98 had 161,000 hard and 132,000 soft faults with a share of 6 %. With 10 % it had
    /// 112,000 and 198,000.
    #[test]
    fn early_returns_make_it_grow_and_soft_faults_make_it_shrink() {
        let least = InactiveShare::new();
        assert_eq!(least.of(BUDGET), BUDGET * 6 / 100);
        assert_eq!(after(least, 10_000, 3, 1).permille, PARKED_PERMILLE);
        let grown = after(least, 1000, 2, 3);
        assert!((PARKED_PERMILLE + 1..PERMILLE_MAX).contains(&grown.permille), "{grown:?}");
        assert_eq!(after(grown, 10_000, 3, 2).permille, grown.permille, "between the two it stays");
        let largest = after(grown, 10_000, 2, 3);
        assert_eq!(largest.of(BUDGET), BUDGET / 5);
        assert_eq!(after(largest, 10_000, 3, 1).permille, PARKED_PERMILLE);
    }

    /// `xz -T2` in half of its memory: 27,000 soft faults a second, for 2,000 frames, left its two threads a third of their time.
    #[test]
    fn several_threads_whose_inactive_pages_are_all_in_use_have_fewer() {
        let mut share = InactiveShare::new();
        share.set_several(true);
        assert_eq!(after(share, 10_000, 7, 1).permille, PARKED_PERMILLE);
        share = after(share, 10_000, 9, 1);
        assert_eq!(share.permille, PERMILLE_MIN);
        assert_eq!(after(share, 1000, 7, 1).permille, PARKED_PERMILLE, "at once");
        share.set_several(false);
        assert_eq!(after(share, 1000, 9, 1).permille, PARKED_PERMILLE);
    }

    /// A dict in half of its memory, with the rest in compressed memory, took 22.4 s with 385,000 soft faults, and 19.9 s with a
    /// share of 1.5 % and 45,000.
    #[test]
    fn a_return_from_compressed_memory_costs_hardly_more_than_a_soft_fault() {
        let mut share = InactiveShare::new();
        let mut run = |soft, in_memory, early| {
            for _ in 0..1000 {
                (0..soft).for_each(|_| share.soft_fault(BUDGET));
                (0..in_memory).for_each(|_| share.early_return(true, BUDGET));
                (0..early).for_each(|_| share.early_return(false, BUDGET));
            }
            share.permille
        };
        assert_eq!(run(40, 50, 1), PERMILLE_MIN);
        assert!(run(5, 50, 1) > PERMILLE_MIN, "when hardly any soft fault is left, it grows again");
        assert_eq!(run(40, 0, 1), PARKED_PERMILLE, "what comes back from a device needs a larger share at once");
    }
}

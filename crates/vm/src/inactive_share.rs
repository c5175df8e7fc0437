//! How much of the budget may be inactive at a time.
//!
//! A reference is seen only on an inactive page, so the inactive pages tell a policy what is used. But each page of the working set
//! that is made inactive costs a move and a soft fault. Together they take a fifth of a hard fault's time, or half of it where all
//! CPUs are busy. So the share grows while the hard faults that it saves ([`Returns::saved`]) are worth more than the soft faults
//! that it costs, and shrinks while they are worth less.
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
/// A hard fault that a larger share would save, by [`Returns::saved`], is worth so many soft faults: four for its time; the rest
/// for others that it saves, because the page stays active for several rounds.
const WORTH: f64 = 16.0;
/// The share grows if it is worth so many times what it costs.
const GROWS: f64 = 1.25;
/// The share is judged after this many soft faults and early returns, as a part of the budget's pages.
const JUDGED_PART: u32 = 16;
/// What was counted before the last judgement counts for so much.
const FADES: f64 = 0.75;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InactiveShare {
    permille: u32,
    soft: u32,
    /// Returns after fewer evictions than half of the budget has pages, from devices and from compressed memory.
    early: u32,
    early_in_memory: u32,
    several: bool,
    /// What a larger share costs and what it is worth, in soft faults.
    cost: f64,
    worth: f64,
    returns: Returns,
    /// The number of evictions at the last judgement.
    judged_at: u32,
}

/// How soon pages come back after their eviction. Times are in evictions, as a part of the budget's pages.
///
/// Take pages that are used at random, each at a rate of its own. Those with rate r come back after an exponentially distributed
/// time t, and the mean of exp(-t / T) over them is m = rT / (1 + rT). So m / (1 - m) / T is r, whatever T is. Where rates differ,
/// a short T finds more of the pages that are used often, and so a higher rate than a long one.
///
/// With a larger share, pages that come back soon would not have gone: as many as the rate over the time that pages are inactive
/// tells. But as many frames fewer would hold active pages, of which some would be used, too: as many as the rate over the time
/// that pages are active tells. So only the difference is saved. Where all pages are used equally often that is nothing.
#[derive(Clone, Copy, Debug)]
struct Returns {
    count: f64,
    /// How long a page is inactive if it is not touched, and the sum of exp(-t / T) for this T.
    inactive: (f64, f64),
    /// The same, how long it is active before.
    active: (f64, f64),
}

impl Returns {
    /// So many pages are evicted for each that is made inactive.
    fn new(permille: u32, evicted: f64) -> Self {
        let inactive = f64::from(permille) / 1000.0;
        Returns { count: 0.0, inactive: (evicted * inactive, 0.0), active: (evicted * (1.0 - inactive), 0.0) }
    }

    fn note(&mut self, time: f64, weight: f64) {
        self.count += weight;
        for (long, sum) in [&mut self.inactive, &mut self.active] {
            // exp(-x) is nearly (1 + x / 256) ^ -256
            let mut factor = 1.0 / (1.0 + time / *long / 256.0);
            (0..8).for_each(|_| factor *= factor);
            *sum += weight * factor;
        }
    }

    /// Hard faults that a share larger by a small part would have saved, divided by that part.
    fn saved(&self) -> f64 {
        let rate = |(time, sum): (f64, f64)| sum / (self.count - sum + 1.0) / time; // (not by zero)
        self.count * self.inactive.0 * (rate(self.inactive) - rate(self.active))
    }
}

impl InactiveShare {
    pub(crate) fn new() -> Self {
        InactiveShare {
            permille: PARKED_PERMILLE,
            soft: 0,
            early: 0,
            early_in_memory: 0,
            several: false,
            cost: 0.0,
            worth: 0.0,
            returns: Returns::new(PARKED_PERMILLE, 1.0),
            judged_at: 0,
        }
    }

    /// In pages, of a budget in pages.
    pub(crate) fn of(&self, budget: u32) -> u32 {
        (budget as u64 * self.permille as u64 / 1000) as u32
    }

    /// Whether several threads fault, as far as is known.
    pub(crate) fn set_several(&mut self, several: bool) {
        self.several = several;
    }

    /// An inactive page was touched. `evictions`: so many pages have been evicted by now.
    pub(crate) fn soft_fault(&mut self, evictions: u32, budget: u32) {
        self.soft += 1;
        self.judge(evictions, budget);
    }

    /// A thread needs a page that was evicted so many evictions ago, to compressed memory or to a device.
    pub(crate) fn hard_fault(&mut self, distance: u32, in_memory: bool, evictions: u32, budget: u32) {
        let weight = if in_memory { 1.0 / f64::from(WEIGHT) } else { 1.0 };
        self.returns.note(f64::from(distance) / f64::from(budget.max(1)), weight);
        if distance < budget / 2 {
            *if in_memory { &mut self.early_in_memory } else { &mut self.early } += 1;
            self.judge(evictions, budget);
        }
    }

    fn judge(&mut self, evictions: u32, budget: u32) {
        let early = self.early + self.early_in_memory / WEIGHT;
        if self.soft + early < budget / JUDGED_PART {
            return;
        }
        let cheap = self.early_in_memory > self.early || self.several && self.soft > NEARLY_ALL * early;
        let least = if cheap { PERMILLE_MIN } else { PARKED_PERMILLE };
        let step = (self.permille / 8).max(1);
        self.cost = FADES * self.cost + f64::from(self.soft);
        self.worth = FADES * self.worth + WORTH * self.returns.saved();
        if self.worth > GROWS * self.cost {
            self.permille = (self.permille + step).min(PERMILLE_MAX);
        } else if self.worth < self.cost {
            self.permille -= step;
        }
        self.permille = self.permille.max(least);
        let evicted = evictions.wrapping_sub(self.judged_at).max(1);
        self.returns = Returns::new(self.permille, f64::from(evicted) / f64::from(evicted + self.soft));
        self.judged_at = evictions;
        (self.soft, self.early, self.early_in_memory) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: u32 = 16_000;
    /// Distances of pages that are all used equally often, so that one comes back after half of the budget on average.
    const ALIKE: &[f64] = &[0.5];
    /// The same, some of them fifty times as often.
    const DIFFERENT: &[f64] = &[0.5, 0.01];

    /// Judged so many times, with that many soft faults for as many returns from memory and from devices. `times`: their means.
    fn after(mut share: InactiveShare, judged: u32, (soft, in_memory, device): (u32, u32, u32), times: &[f64]) -> InactiveShare {
        let mut evictions = share.judged_at;
        let mut returned = 0_u32;
        let mut come_back = |share: &mut InactiveShare, in_memory| {
            returned += 1;
            evictions += 1;
            // a quantile of the exponential distribution, each of a hundred in turn
            let quantile = (f64::from(returned * 37 % 100) + 0.5) / 100.0;
            let mean = times[(returned / 100) as usize % times.len()];
            let distance = -quantile.ln() * mean * f64::from(BUDGET);
            share.hard_fault(distance as u32, in_memory, evictions, BUDGET);
            evictions
        };
        for _ in 0..judged * BUDGET / JUDGED_PART / (soft + in_memory + device) {
            (0..in_memory).for_each(|_| _ = come_back(&mut share, true));
            let evictions = (0..device).map(|_| come_back(&mut share, false)).last().unwrap_or(share.judged_at);
            (0..soft).for_each(|_| share.soft_fault(evictions, BUDGET));
        }
        share
    }

    /// A hash of 500,000 strings in 73 MiB of 98 had 161,000 hard and 132,000 soft faults with a share of 6 %. With 10 % it had
    /// 112,000 and 198,000.
    #[test]
    fn it_grows_where_pages_are_used_differently_often_and_shrinks_where_that_costs_more_than_it_saves() {
        let least = InactiveShare::new();
        assert_eq!(least.of(BUDGET), BUDGET * 6 / 100);
        let largest = after(least, 200, (2, 0, 3), DIFFERENT);
        assert_eq!(largest.of(BUDGET), BUDGET / 5);
        assert_eq!(after(largest, 200, (30, 0, 1), DIFFERENT).permille, PARKED_PERMILLE);
    }

    /// A tree and a hash of C++, of which an access needs any page: 48 MiB of 64 had 355,000 hard and 406,000 soft faults with a
    /// share of 20 %, and 367,000 and 146,000 with 6 %. It took 26 s instead of 23.
    #[test]
    fn it_does_not_grow_where_all_pages_are_used_equally_often() {
        let least = InactiveShare::new();
        assert_eq!(after(least, 200, (1, 0, 10), ALIKE).permille, PARKED_PERMILLE);
        let grown = after(least, 200, (2, 0, 3), DIFFERENT);
        assert_eq!(after(grown, 200, (1, 0, 10), ALIKE).permille, PARKED_PERMILLE);
    }

    /// `xz -T2` in half of its memory: 27,000 soft faults a second, for 2,000 frames, left its two threads a third of their time.
    #[test]
    fn several_threads_whose_inactive_pages_are_all_in_use_have_fewer() {
        let mut share = InactiveShare::new();
        share.set_several(true);
        assert_eq!(after(share, 200, (4, 0, 1), ALIKE).permille, PARKED_PERMILLE);
        share = after(share, 200, (9, 0, 1), ALIKE);
        assert_eq!(share.permille, PERMILLE_MIN);
        assert_eq!(after(share, 2, (4, 0, 1), ALIKE).permille, PARKED_PERMILLE, "at once");
        share.set_several(false);
        assert_eq!(after(share, 2, (9, 0, 1), ALIKE).permille, PARKED_PERMILLE);
    }

    /// A dict in half of its memory, with the rest in compressed memory, took 22.4 s with 385,000 soft faults, and 19.9 s with a
    /// share of 1.5 % and 45,000.
    #[test]
    fn a_return_from_compressed_memory_costs_hardly_more_than_a_soft_fault() {
        let share = after(InactiveShare::new(), 200, (40, 50, 1), ALIKE);
        assert_eq!(share.permille, PERMILLE_MIN);
        let grown = after(share, 200, (5, 50, 1), DIFFERENT);
        assert!(grown.permille > PERMILLE_MIN, "when hardly any soft fault is left, it grows again");
        assert_eq!(after(share, 2, (40, 0, 1), DIFFERENT).permille, PARKED_PERMILLE, "what a device returns needs more at once");
    }
}

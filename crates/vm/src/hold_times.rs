//! Hold times of locks: histograms in the status block, which `overspill stat --all` shows.
//!
//! Times are in ticks of the writer's clock, and the reader converts them to nanoseconds: reading ticks is cheaper.

use crate::counters::Counter;
use crate::status::Text;
use core::array;
use core::panic::Location;
use core::sync::atomic::{AtomicBool, Ordering::*};

/// Buckets per power of two. So a bucket's end is at most a quarter above its beginning.
const PARTS: u64 = 4;
/// Enough for 2^40 ticks, some minutes. Longer times count as that.
const BUCKETS: usize = 39 * PARTS as usize;

fn bucket(ticks: u64) -> usize {
    if ticks < PARTS {
        return ticks as usize;
    }
    let shift = ticks.ilog2() - PARTS.ilog2();
    let bucket = u64::from(shift) * PARTS + (ticks >> shift);
    (bucket as usize).min(BUCKETS - 1)
}

/// The longest time in this bucket.
fn last_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket / PARTS).saturating_sub(1);
    ((bucket - shift * PARTS + 1) << shift) - 1
}

/// The hold times of one lock.
#[derive(Debug)]
#[repr(C)]
pub struct HoldTimes {
    counts: [Counter; BUCKETS],
    longest: Counter,
    /// Where the longest hold began.
    longest_line: Counter,
    longest_file: Text<64>,
    /// A thread is writing the three fields above.
    writing: AtomicBool,
}

impl Default for HoldTimes {
    fn default() -> Self {
        HoldTimes {
            counts: array::from_fn(|_| Counter::default()),
            longest: Counter::default(),
            longest_line: Counter::default(),
            longest_file: Text::default(),
            writing: AtomicBool::new(false),
        }
    }
}

impl HoldTimes {
    /// Adds a hold of `ticks` ticks that began at this place in the source.
    #[inline]
    pub fn add(&self, ticks: u64, at: &Location<'_>) {
        self.counts[bucket(ticks)].add(1);
        if ticks > self.longest.get() {
            self.add_longest(ticks, at);
        }
    }

    /// (If two threads get here at the same moment, one hold may be left out.)
    #[cold]
    fn add_longest(&self, ticks: u64, at: &Location<'_>) {
        if self.writing.swap(true, Acquire) {
            return;
        }
        if ticks > self.longest.get() {
            let file = at.file().as_bytes();
            self.longest_file.set(&file[file.len().saturating_sub(64)..]);
            self.longest_line.set(at.line().into());
            self.longest.set(ticks);
        }
        self.writing.store(false, Release);
    }

    /// Calls `each` with the longest time of each bucket that is not empty, in ticks, and the number of holds in it.
    pub fn for_each(&self, mut each: impl FnMut(u64, u64)) {
        let filled = self.counts.iter().enumerate().filter(|(_, count)| count.get() > 0);
        filled.for_each(|(at, count)| each(last_of(at), count.get()));
    }

    /// How often the lock was held.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(Counter::get).sum()
    }

    /// The time within which `thousandths` of a thousand holds ended, in ticks: the end of the bucket.
    pub fn quantile(&self, thousandths: u64) -> u64 {
        let wanted = (u128::from(self.count()) * u128::from(thousandths)).div_ceil(1000).max(1);
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += u128::from(count.get());
            seen >= wanted
        });
        found.map_or(0, last_of).min(self.longest.get())
    }

    /// The longest hold, in ticks.
    pub fn longest(&self) -> u64 {
        self.longest.get()
    }

    /// Where the longest hold began: the file's name (only the end of a long one), and the line.
    pub fn longest_at(&self) -> (&Text<64>, u64) {
        (&self.longest_file, self.longest_line.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other() {
        let mut first = 0;
        for at in 0..BUCKETS {
            let last = last_of(at);
            assert_eq!((bucket(first), bucket(last)), (at, at), "{first} to {last}");
            assert!(last - first <= first / PARTS, "{first} to {last}");
            first = last + 1;
        }
        assert_eq!((first, bucket(first), bucket(u64::MAX)), (1 << 40, BUCKETS - 1, BUCKETS - 1));
    }

    /// Compares with a sorted list of all holds, for times of all lengths and several numbers of holds.
    #[test]
    fn quantiles_are_at_most_a_bucket_too_long() {
        let (times, mut sorted) = (HoldTimes::default(), Vec::new());
        assert_eq!((times.quantile(500), times.longest(), times.count()), (0, 0, 0));
        let mut seed = 1_u64;
        for round in 1..=3000_usize {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let ticks = (seed >> 24) >> (seed % 40);
            times.add(ticks, Location::caller());
            sorted.push(ticks);
            if !round.is_power_of_two() && round % 1000 != 0 {
                continue;
            }
            sorted.sort_unstable();
            for thousandths in [1, 500, 990, 999, 1000] {
                let exact = sorted[(round * thousandths).div_ceil(1000) - 1];
                let found = times.quantile(thousandths as u64);
                assert!((exact..=exact + exact / PARTS).contains(&found), "{thousandths} of {round}: {found}, not {exact}");
            }
            assert_eq!((times.count(), times.longest()), (round as u64, sorted[round - 1]));
        }
    }

    #[test]
    fn the_longest_has_its_place() {
        let times = HoldTimes::default();
        let here = Location::caller();
        times.add(7, here);
        times.add(6, Location::caller());
        let mut file = [0; 64];
        let (text, line) = times.longest_at();
        let length = text.copy_to(&mut file);
        assert_eq!((&file[..length], line), (here.file().as_bytes(), here.line().into()));
    }
}

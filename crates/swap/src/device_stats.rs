//! Counters of a device, and histograms of how long its operations took. The machine fills them, because this crate has no clock.

/// Each octave is divided into this many equal parts, so a figure is right to within an eighth.
const PARTS: usize = 8;
/// log2 of the shortest time that is distinguished from shorter ones: 256 ns.
const SHIFT_MIN: u32 = 8;
/// Octaves: up to 2^36 ns, 69 s.
const OCTAVES: usize = 28;

/// A histogram of times, in nanoseconds. Its size is constant; longer times count as 69 s.
#[derive(Clone, Debug)]
pub struct Latency {
    buckets: [u32; OCTAVES * PARTS],
    count: u64,
    max_ns: u64,
}

impl Default for Latency {
    fn default() -> Self {
        Latency { buckets: [0; OCTAVES * PARTS], count: 0, max_ns: 0 }
    }
}

impl Latency {
    /// Adds a time.
    pub fn record(&mut self, ns: u64) {
        let bucket = &mut self.buckets[Self::bucket(ns)];
        *bucket = bucket.saturating_add(1);
        self.count += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    /// How many times were added.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The longest, in nanoseconds.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The time that `permille` thousandths of the operations did not exceed, in nanoseconds. It is never below the true time, and
    /// at most an eighth (or 256 ns) above it. 0 if there were no operations.
    pub fn percentile_ns(&self, permille: u32) -> u64 {
        let rank = (self.count * u64::from(permille.min(1000))).div_ceil(1000).max(1);
        let mut seen = 0;
        for (at, &bucket) in self.buckets.iter().enumerate() {
            seen += u64::from(bucket);
            if seen >= rank {
                return Self::bucket_end(at).min(self.max_ns);
            }
        }
        self.max_ns
    }

    fn bucket(ns: u64) -> usize {
        let ns = ns.max(1 << SHIFT_MIN);
        let octave = ns.ilog2();
        let part = (ns >> (octave - PARTS.ilog2())) as usize % PARTS;
        ((octave - SHIFT_MIN) as usize * PARTS + part).min(OCTAVES * PARTS - 1)
    }

    /// The longest time of a bucket.
    fn bucket_end(at: usize) -> u64 {
        let width = 1 << (SHIFT_MIN as usize + at / PARTS - PARTS.ilog2() as usize);
        ((PARTS + at % PARTS) as u64 + 1) * width - 1
    }
}

/// Reads or writes of a device.
#[derive(Clone, Default, Debug)]
pub struct Transfers {
    /// Operations that ended, failed ones included.
    pub ops: u64,
    /// Pages of those that succeeded.
    pub pages: u64,
    /// Bytes transferred in those; on a device that compresses, less than the pages have.
    pub bytes: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Failures since the last success. (Counted apart for reads and writes: a device that takes no more writes may be readable for
    /// long.)
    pub errors_in_a_row: u32,
    /// How long the operations took.
    pub latency: Latency,
}

/// One operation, for [`crate::Devices::io_ended`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Io {
    /// A write; otherwise a read.
    pub write: bool,
    /// In pages.
    pub pages: u32,
    /// In bytes, as the device moved them.
    pub bytes: u64,
    /// From issue to completion, in nanoseconds.
    pub ns: u64,
    /// Whether the operation succeeded. (ENOSPC is not a failure of the device: `true`, with no pages and bytes.)
    pub ok: bool,
}

/// The counters of one device.
#[derive(Clone, Default, Debug)]
pub struct DeviceStats {
    /// Reads.
    pub reads: Transfers,
    /// Writes.
    pub writes: Transfers,
}

impl DeviceStats {
    /// Counts an operation. Returns how many of its direction have failed in a row.
    pub(crate) fn count(&mut self, io: Io) -> u32 {
        let transfers = if io.write { &mut self.writes } else { &mut self.reads };
        transfers.ops += 1;
        transfers.latency.record(io.ns);
        if io.ok {
            transfers.pages += u64::from(io.pages);
            transfers.bytes += io.bytes;
            transfers.errors_in_a_row = 0;
        } else {
            transfers.errors += 1;
            transfers.errors_in_a_row += 1;
        }
        transfers.errors_in_a_row
    }
    /// Errors so far are not in a row with later ones.
    pub(crate) fn begin_row(&mut self) {
        (self.reads.errors_in_a_row, self.writes.errors_in_a_row) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_edges() {
        let mut latency = Latency::default();
        assert_eq!((latency.count(), latency.percentile_ns(500), latency.max_ns()), (0, 0, 0));
        latency.record(0);
        assert_eq!(latency.percentile_ns(1000), 0);
        latency.record(u64::MAX);
        assert_eq!(latency.max_ns(), u64::MAX);
        assert!(latency.percentile_ns(1000) >= 1 << 35);
    }

    proptest! {
        #[test]
        fn percentiles_are_near_the_true_ones(mut times in prop::collection::vec(0u64..1 << 34, 1..200), permille in 1u32..=1000) {
            let mut latency = Latency::default();
            times.iter().for_each(|&ns| latency.record(ns));
            times.sort_unstable();
            let rank = (times.len() * permille as usize).div_ceil(1000);
            let (true_ns, ns) = (times[rank - 1], latency.percentile_ns(permille));
            prop_assert!(ns >= true_ns && ns <= (true_ns + true_ns / 8).max(288), "{} for {}", ns, true_ns);
        }
    }
}

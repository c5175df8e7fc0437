//! From counts to a predicted run time.
//!
//! ```text
//! seconds = run + ( read * (fault + page) + read / cluster * latency        pages read from the device
//!                 + zeroed * fault                                          first touches of fresh memory
//!                 + soft_faults * soft
//!                 + written * page ) / 1e6
//! ```
//!
//! `read` is the number of faults, each of one page, without the cold ones if they are `zeroed` instead. The device does one thing
//! at a time, and nothing overlaps with the program. So the estimate is the time for which a single thread waits; for several
//! threads it is pessimistic.
//!
//! With the live core (`--see faults`), soft faults, pages and reads are counted and not guessed, and first touches are filled with
//! zeroes. `cluster`, `inactive` and `cold` are not used then:
//!
//! ```text
//! seconds = run + ( faults * fault + soft_faults * soft + page_in_ops * latency + (pages_in + written) * page ) / 1e6
//! ```
//!
//! The number of soft faults of a live run depends on which pages are inactive. Take pages in the order of their last reference,
//! with a share `inactive` of the memory inactive. Then a soft fault is a reference that hits in the whole of an LRU memory, but
//! not in its first `1 - inactive`. Their number is the difference of LRU's faults at the two sizes, and is used for every policy.

use overspill_lab::{Counts, Curve, LiveCounts};
use overspill_vm::policy::PARKED_PERMILLE;
use std::str::FromStr;

/// Costs in microseconds, unless something else is said.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CostModel {
    /// A hard fault or first touch, without reading: delivery by a handler thread (8 to 10) and UFFDIO_COPY (1.3). Measured:
    /// ARCHITECTURE.md, "A fault's way".
    fault: f64,
    /// A soft fault, measured in the same way.
    soft: f64,
    /// A read, without the transfer.
    latency: f64,
    /// Transfer of a page.
    page: f64,
    /// Pages per read.
    cluster: f64,
    /// Share of the memory that is inactive.
    inactive: f64,
    /// First references are to fresh memory, which is not read.
    cold_is_zero: bool,
    /// Seconds with everything in memory.
    run: f64,
}

/// The disk of a virtual machine in November 2026: 25 us for a random page of 4 KiB at depth 1, 2.8 us per page in order. The
/// inactive share is that of the core.
const SSD: CostModel = CostModel {
    fault: 10.0,
    soft: 10.0,
    latency: 22.0,
    page: 2.8,
    cluster: 1.0,
    inactive: PARKED_PERMILLE as f64 / 1000.0,
    cold_is_zero: false,
    run: 0.0,
};
/// A disk of 7200 revolutions a minute: half a revolution (4.2 ms) and a short seek, 150 MB/s. Guessed.
const DISK: CostModel = CostModel { latency: 8000.0, page: 27.0, ..SSD };

const KEYS: &str = "fault, soft, latency, page, cluster, inactive, cold, run";

impl FromStr for CostModel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, settings) = text.split_once(':').map_or((text, None), |(name, settings)| (name, Some(settings)));
        let mut model = match name {
            "ssd" => SSD,
            "disk" => DISK,
            _ => return Err(format!("there is no cost model {name:?}, only ssd and disk, as in ssd:cluster=8")),
        };
        for setting in settings.iter().flat_map(|settings| settings.split(',')) {
            let (key, value) = setting.split_once('=').ok_or_else(|| format!("{setting:?} is not KEY=VALUE; keys are {KEYS}"))?;
            model.set(key.trim(), value.trim())?;
        }
        Ok(model)
    }
}

impl CostModel {
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let (field, range) = match key {
            "fault" => (&mut self.fault, 0.0..=1e9),
            "soft" => (&mut self.soft, 0.0..=1e9),
            "latency" => (&mut self.latency, 0.0..=1e9),
            "page" => (&mut self.page, 0.0..=1e9),
            "cluster" => (&mut self.cluster, 1.0..=65536.0),
            "inactive" => (&mut self.inactive, 0.0..=0.9),
            "run" => (&mut self.run, 0.0..=1e9),
            "cold" => {
                self.cold_is_zero = match value {
                    "zero" => true,
                    "read" => false,
                    _ => return Err(format!("cold cannot be {value:?}: it is read or zero")),
                };
                return Ok(());
            }
            _ => return Err(format!("there is no {key:?} in a cost model; keys are {KEYS}")),
        };
        match value.parse() {
            Ok(number) if range.contains(&number) => *field = number,
            _ => return Err(format!("{key} cannot be {value:?}: it is a number from {} to {}", range.start(), range.end())),
        }
        Ok(())
    }

    /// Soft faults of a run with `memory` pages, estimated from LRU's faults at every size.
    pub fn soft_faults(&self, lru: &Curve, memory: u32) -> u64 {
        let seen = (f64::from(memory) * (1.0 - self.inactive)).round().max(1.0) as u32;
        lru.counts(seen).faults - lru.counts(memory).faults
    }

    /// Seconds that a run takes.
    pub fn seconds(&self, counts: &Counts, soft_faults: u64) -> f64 {
        let zeroed = if self.cold_is_zero { counts.cold_faults } else { 0 };
        let read = (counts.faults - zeroed) as f64;
        let device = read * self.page + read / self.cluster * self.latency + counts.pages_written as f64 * self.page;
        let faults = (read + zeroed as f64) * self.fault + soft_faults as f64 * self.soft;
        self.run + (device + faults) / 1e6
    }

    /// Seconds that a run takes, from the reads and soft faults that the live core has counted.
    pub fn seconds_live(&self, live: &LiveCounts) -> f64 {
        let device = (live.pages_in + live.counts.pages_written) as f64 * self.page + live.page_in_ops as f64 * self.latency;
        let faults = live.counts.faults as f64 * self.fault + live.soft_faults as f64 * self.soft;
        self.run + (device + faults) / 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formula_by_hand() {
        let counts = Counts { references: 5000, unique_pages: 1000, faults: 3000, cold_faults: 1000, pages_written: 500 };
        let model: CostModel = "ssd:fault=10,soft=5,latency=100,page=2,cluster=4,run=1,cold=zero".parse().unwrap();
        // 2000 pages read: 500 reads of 100 us, 2000 transfers of 2 us; 500 written; 3000 faults of 10 us; 40 soft ones of 5 us.
        let micros = 500.0 * 100.0 + 2000.0 * 2.0 + 500.0 * 2.0 + 3000.0 * 10.0 + 40.0 * 5.0;
        assert!((model.seconds(&counts, 40) - (1.0 + micros / 1e6)).abs() < 1e-12);
        let read: CostModel = "ssd:fault=10,soft=5,latency=100,page=2,cluster=4,run=1".parse().unwrap();
        assert!((read.seconds(&counts, 40) - model.seconds(&counts, 40) - (250.0 * 100.0 + 1000.0 * 2.0) / 1e6).abs() < 1e-12);
    }

    #[test]
    fn live_counts_by_hand() {
        let counts = Counts { references: 5000, unique_pages: 1000, faults: 1200, cold_faults: 900, pages_written: 500 };
        let live = LiveCounts {
            counts,
            soft_faults: 40,
            pages_parked: 90,
            pages_watched: 0,
            references_seen: 0,
            pages_in: 2000,
            page_in_ops: 320,
        };
        // 900 first touches are not read: 320 reads of 100 us, 2000 transfers of 2 us; 500 written; 1200 faults of 10 us; 40 of 5
        // us.
        let micros = 320.0 * 100.0 + 2000.0 * 2.0 + 500.0 * 2.0 + 1200.0 * 10.0 + 40.0 * 5.0;
        for keys in ["", ",cold=zero", ",cold=read,cluster=8,inactive=0.5"] {
            let model: CostModel = format!("ssd:fault=10,soft=5,latency=100,page=2,run=1{keys}").parse().unwrap();
            assert!((model.seconds_live(&live) - (1.0 + micros / 1e6)).abs() < 1e-12, "{keys}");
        }
    }

    /// The core's share went from 12 % to 6 %, and this one stayed at 12 %.
    #[test]
    fn what_is_inactive_is_the_cores_share() {
        let inactive = "ssd".parse::<CostModel>().unwrap().inactive;
        assert_eq!(inactive, f64::from(overspill_vm::policy::PARKED_PERMILLE) / 1000.0);
        let documented = format!(
            "    inactive share of the memory that is inactive, where a reference is soft        {inactive}     {inactive}"
        );
        assert!(crate::args::lab::SIM_HELP.lines().any(|line| line == documented), "{documented}");
    }

    #[test]
    fn mistakes_are_told() {
        for (text, words) in [
            ("tape", "only ssd and disk"),
            ("ssd:speed=3", "no \"speed\""),
            ("ssd:cluster", "KEY=VALUE"),
            ("ssd:cluster=0", "from 1 to"),
            ("ssd:page=NaN", "from 0 to"),
            ("ssd:cold=warm", "read or zero"),
        ] {
            let error = text.parse::<CostModel>().unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}

//! The settings of a pager.

use crate::page_table::OBJECT_PAGES_MAX;
use crate::policy::Spec;
use crate::types::PageIndex;

/// The longest cluster, in pages.
pub const CLUSTER_PAGES_MAX: usize = 128;

/// A read goes on over so many pages that are in memory already, in pages. (At a quarter in memory, at random, a scan would
/// otherwise read four pages at a time.)
pub(crate) const HOLE_PAGES_MAX: u32 = 8;

/// The least budget: below it the clusters of two faulting threads and the daemon's batch would be most of the memory.
pub const MEMORY_BYTES_MIN: u64 = 8 << 20;

/// The settings of a pager.
#[derive(Clone, Debug)]
pub struct Config {
    /// The budget in pages.
    pub memory_pages: u32,
    /// How many pages may be managed, in pages. It holds if each aligned 2 MiB of which any page is touched has 64 touched pages on
    /// average. With fewer there is room for fewer pages, with more for more.
    pub pages_max: u64,
    /// How many objects there may be.
    pub objects_max: u16,
    /// How far an object may reach, in pages: [`OBJECT_PAGES_MAX`] at most. Costs address space: 2 bytes for each MiB.
    pub object_pages: PageIndex,
    /// Replacement policy.
    pub policy: Spec,
    /// The most pages read by one fault, in pages; 1 turns readahead off.
    pub readahead_pages_max: u32,
    /// The most pages filled by one first touch, in pages; 1 turns it off.
    pub zero_ahead_pages_max: u32,
    /// How many decisions to keep for a comparison of machines; 0 in production.
    pub decisions_max: usize,
}

impl Config {
    /// The defaults for a budget of `memory_pages` pages over at most `pages_max` pages.
    ///
    /// Windows shrink with the budget, as [`Config::cluster_pages`] says.
    pub fn new(memory_pages: u32, pages_max: u64) -> Self {
        let ahead = Config::cluster_pages(memory_pages);
        Config {
            memory_pages,
            pages_max,
            objects_max: 1,
            object_pages: OBJECT_PAGES_MAX,
            policy: Spec::default(),
            readahead_pages_max: ahead,
            zero_ahead_pages_max: ahead.min(32),
            decisions_max: 0,
        }
    }

    /// The longest cluster for a budget of `memory_pages` pages, in pages. It is 64, or a 512th of a budget under 128 MiB. It is at
    /// least 8, but never more than a 64th of the budget.
    ///
    /// Every buffer takes memory from the program, and a program whose working set nearly fits pays for each page of it. With a
    /// 64th for clusters (and as much for free frames) GNU sort had twice the hard faults at 58 of 115 MiB, and four times at 20 of
    /// 38 MiB.
    pub fn cluster_pages(memory_pages: u32) -> u32 {
        (memory_pages / 512).clamp(8, 64).min(memory_pages / 64).max(1)
    }
}

/// Why a [`Vm`](crate::Vm) could not be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConfigError {
    /// The budget is under [`MEMORY_BYTES_MIN`].
    BudgetTooSmall,
}

impl core::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ConfigError::BudgetTooSmall => write!(f, "the memory budget is below the minimum of {} MiB", MEMORY_BYTES_MIN >> 20),
        }
    }
}

impl core::error::Error for ConfigError {}

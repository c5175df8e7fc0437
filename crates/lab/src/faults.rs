//! Replays a string on the live machine, which sees faults only.
//!
//! A live policy does not hear of every reference, only of faults: first touches, touches of inactive pages (soft faults), and
//! touches of pages that are out (hard faults). Which references fault depends on the page daemon's targets as much as on the
//! policy. So the string goes through [`overspill_vm::Vm`] itself, on the machine with a kernel for replays
//! ([`overspill_sim::replay`]), with one thread. How long reads take, and how much the page daemon does meanwhile, is guessed.

use crate::replay::{Counts, STRETCH};
use crate::string::References;
use overspill_sim::{ReplayConfig, replay_counts};
use overspill_vm::policy::Spec;

/// The least memory that the core manages, in pages.
pub const FAULTS_MEMORY_MIN: u32 = (overspill_vm::MEMORY_BYTES_MIN / overspill_vm::types::PAGE_SIZE as u64) as u32;

/// Longer gaps between pages are shortened to this: the longest zero-ahead window, so that no fill and no read crosses them.
const GAP_PAGES_MAX: u64 = 32;

/// Where the pages of a string lie in the address space. Readahead and zero-ahead depend on which pages are neighbours.
#[derive(Clone, Debug)]
pub struct Layout {
    at: Vec<u64>,
    pages: u64,
}

impl Layout {
    /// `numbers[id]` is the page number of the dense id `id`. Neighbours stay neighbours; wide gaps become narrower.
    pub fn new(numbers: &[u64]) -> Self {
        let mut order: Vec<u32> = (0..numbers.len() as u32).collect();
        order.sort_unstable_by_key(|id| numbers[*id as usize]);
        let mut at = vec![0; numbers.len()];
        let (mut place, mut previous) = (0, None);
        for id in order {
            let number = numbers[id as usize];
            place += previous.map_or(0, |previous: u64| (number - previous).min(GAP_PAGES_MAX + 1));
            previous = Some(number);
            at[id as usize] = place;
        }
        Layout { at, pages: place + 1 }
    }
}

/// How the live machine is set up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Live {
    /// The budget, in pages.
    pub memory: u32,
    /// Pages of it that the machine keeps for its own buffers.
    pub charged: u32,
    /// Whether there is readahead and zero-ahead, by the budget, as live.
    pub readahead: bool,
    /// Whether the kernel tells references, so that pages are watched before they are parked.
    pub references: bool,
}

/// The counts of the live machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveCounts {
    /// The usual counts; see [`replay_faults`] for their meaning here.
    pub counts: Counts,
    /// Touches of inactive pages.
    pub soft_faults: u64,
    /// Pages made inactive.
    pub pages_parked: u64,
    /// Pages that the kernel watched before.
    pub pages_watched: u64,
    /// Those that it told to have been used.
    pub references_seen: u64,
    /// Pages read from swap, including readahead.
    pub pages_in: u64,
    /// Reads that brought them.
    pub page_in_ops: u64,
}

/// Replays a string on the live machine.
///
/// `faults` are first touches and hard faults. `cold_faults` are the first touches: with readahead fewer than there are pages,
/// because a page that was filled next to a touched one does not fault. `pages_written` counts writes to swap of pages that changed
/// since they were last stored. The first reference to a page counts as a write, because memory that was never written is zero and
/// is not stored.
///
/// # Panics
/// If `live.memory` is below [`FAULTS_MEMORY_MIN`], or `layout` is of another string.
///
/// ```
/// use overspill_lab::{FAULTS_MEMORY_MIN, Layout, Live, References, replay_faults};
///
/// let pages: Vec<u32> = (0..3000).chain(2900..3000).collect();
/// let string = References::new(&pages, 3000, None);
/// let layout = Layout::new(&(0..3000).collect::<Vec<u64>>());
/// let live = Live { memory: FAULTS_MEMORY_MIN, charged: 0, readahead: false, references: false };
/// let counts = replay_faults(&"use-once".parse()?, &string, &layout, &live).counts;
/// assert_eq!(counts.faults, 3000, "the last hundred are still mapped: references to them are not seen");
/// # Ok::<(), overspill_vm::policy::SpecError>(())
/// ```
pub fn replay_faults(policy: &Spec, string: &References<'_>, layout: &Layout, live: &Live) -> LiveCounts {
    replay_faults_with_progress(policy, string, layout, live, &|_| {})
}

/// As [`replay_faults`], with `progress` as in [`crate::replay_with_progress`].
///
/// # Panics
/// As [`replay_faults`].
pub fn replay_faults_with_progress(
    policy: &Spec,
    string: &References<'_>,
    layout: &Layout,
    live: &Live,
    progress: &dyn Fn(u64),
) -> LiveCounts {
    assert!(live.memory >= FAULTS_MEMORY_MIN, "a memory of {} pages is too small for the core", live.memory);
    assert_eq!(layout.at.len(), string.unique() as usize, "the layout of another string");
    let ahead = if live.readahead { None } else { Some(1) };
    let config = ReplayConfig {
        policy: *policy,
        charged_pages: live.charged,
        readahead_pages_max: ahead,
        zero_ahead_pages_max: ahead,
        alongside: true,
        references: live.references,
        ..ReplayConfig::new(live.memory, layout.pages)
    };
    let mut seen = vec![false; layout.at.len()];
    let references = string.pages().iter().enumerate().map(|(i, &page)| {
        if i > 0 && i.is_multiple_of(STRETCH) {
            progress(STRETCH as u64);
        }
        let first = !core::mem::replace(&mut seen[page as usize], true);
        (layout.at[page as usize], first || string.writes(i))
    });
    let counts = replay_counts(references, &config);
    // the rest: the last stretch, which may be a whole one
    let length = string.pages().len();
    progress((length - length.saturating_sub(1) / STRETCH * STRETCH) as u64);
    let counted = Counts {
        references: string.pages().len() as u64,
        unique_pages: seen.iter().filter(|seen| **seen).count() as u64,
        faults: counts.first_touches + counts.hard_faults,
        cold_faults: counts.first_touches,
        pages_written: counts.pages_out,
    };
    LiveCounts {
        counts: counted,
        soft_faults: counts.soft_faults,
        pages_parked: counts.parked,
        pages_watched: counts.watched,
        references_seen: counts.references,
        pages_in: counts.pages_in,
        page_in_ops: counts.page_in_ops,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::string::number_by_appearance;
    use overspill_sim::replay;
    use overspill_vm::Decision;

    #[test]
    fn neighbours_stay_neighbours() {
        let layout = Layout::new(&[1 << 40, 7, 8, (1 << 40) + 1, 12]);
        assert_eq!(layout.at, [5 + 33, 0, 1, 5 + 34, 5]);
        assert_eq!(layout.pages, 5 + 35);
    }

    /// The counts equal the decisions of the replay. Tests of the library show that Linux leads to the same decisions.
    #[test]
    fn counts_are_those_of_the_decisions() {
        // a hot set, a scan, and now and then a page that lies far away
        let numbers: Vec<u64> = (0..4000).chain((0..100).map(|n| 1_000_000 + 1000 * n)).collect();
        let mut pages = Vec::new();
        for n in 0u32..6_000 {
            pages.extend([n.wrapping_mul(2_654_435_761) >> 8 & 1023, 1024 + n % 2976]);
            if n % 60 == 0 {
                pages.push(4000 + n / 60 % 100);
            }
        }
        let places: Vec<u64> = pages.iter().map(|page| numbers[*page as usize]).collect();
        let mut numbers = vec![0; number_by_appearance(&mut pages) as usize];
        pages.iter().zip(&places).for_each(|(page, place)| numbers[*page as usize] = *place);
        let words = vec![0x1111_1111_1111_1111u64; pages.len() / 64 + 1];
        let string = References::new(&pages, numbers.len() as u32, Some(&words));
        let layout = Layout::new(&numbers);
        for policy in ["fifo", "use-once", "2q"] {
            let policy = Spec::named(policy).expect("it is in the table");
            for readahead in [false, true] {
                let live = Live { memory: FAULTS_MEMORY_MIN, charged: 30, readahead, references: false };
                let LiveCounts { counts, soft_faults, pages_in, page_in_ops, .. } = replay_faults(&policy, &string, &layout, &live);
                let mut seen = vec![false; numbers.len()];
                let references: Vec<(u64, bool)> = (0..pages.len())
                    .map(|i| {
                        let page = pages[i] as usize;
                        (layout.at[page], !core::mem::replace(&mut seen[page], true) || i % 4 == 0)
                    })
                    .collect();
                let ahead = (!readahead).then_some(1);
                let decisions = replay(
                    &references,
                    &ReplayConfig {
                        policy,
                        charged_pages: 30,
                        readahead_pages_max: ahead,
                        zero_ahead_pages_max: ahead,
                        alongside: true,
                        ..ReplayConfig::new(FAULTS_MEMORY_MIN, layout.pages)
                    },
                );
                let count = |of: fn(&Decision) -> bool| decisions.iter().filter(|d| of(d)).count() as u64;
                let reads = count(|d| matches!(d, Decision::PageIn(..)));
                assert_eq!(soft_faults, count(|d| matches!(d, Decision::Restore(_))), "{policy}");
                assert_eq!(counts.cold_faults, count(|d| matches!(d, Decision::ZeroFill(..))), "{policy}");
                assert_eq!(counts.pages_written, count(|d| matches!(d, Decision::Write(_))), "{policy}");
                if readahead {
                    // the touch of a readahead trigger reads, too, and is a soft fault
                    assert!(counts.cold_faults < 4100 && counts.faults - counts.cold_faults <= reads, "{policy}");
                } else {
                    assert_eq!(counts.faults, counts.cold_faults + reads, "{policy}");
                    assert_eq!(counts.cold_faults, 4100, "{policy}");
                }
                assert_eq!(page_in_ops, reads, "{policy}");
                // pages of a cluster that are in memory already are not counted
                let most = decisions.iter().map(|d| if let Decision::PageIn(_, count) = d { u64::from(*count) } else { 0 });
                assert!((reads..=most.sum::<u64>()).contains(&pages_in), "{policy}");
                assert!(readahead || pages_in == reads, "{policy}");
                assert!(reads > 100, "{policy}: nothing was evicted");
            }
        }
    }
}

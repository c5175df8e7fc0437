//! Pages read ahead and reclaimed before their first use: the loss that the thread on page replacement suspects ("swapin
//! readahead"). A live pager sees a use only where it is a fault; here every reference is known.
//!
//! Each window leaves its first page parked: its touch says that the window is used, and asks for the next one beside the program.
//! That marker was put with the clean pages, which are the first to be reclaimed, so a page daemon that was short of frames took it
//! at once: every second to fourth window began with a read of one page that the program waited for, under every policy. Now it
//! becomes inactive, as any other page would. Under `fifo`, which has no more than a batch inactive, the loss is still to be seen.

use overspill_sim::{ReplayConfig, ReplayCounts, replay_counts};
use overspill_vm::policy::{NAMES, Spec};

const PAGES: u64 = 65_536;
const MEMORY: u32 = 16_384;

fn config(policy: &str) -> ReplayConfig {
    ReplayConfig { policy: Spec::named(policy).expect("known"), ..ReplayConfig::new(MEMORY, PAGES) }
}

/// `count` readers in order, by turns, twice over memory that was written before.
fn readers(count: u64, policy: &str) -> ReplayCounts {
    let each = PAGES / count;
    let fill = (0..PAGES).map(|page| (page, true));
    let pass = || (0..each).flat_map(move |at| (0..count).map(move |reader| (reader * each + at, false)));
    let config = config(policy);
    replay_counts(fill.chain(pass()).chain(pass()), &config)
}

#[test]
fn nothing_that_one_reader_reads_ahead_is_lost() {
    for policy in NAMES.iter().filter(|name| **name != "fifo") {
        let counts = readers(1, policy);
        assert_eq!(counts.readahead_lost, 0, "{policy}: {counts:?}");
        assert!(counts.readahead > PAGES, "{policy}: {counts:?}");
    }
}

/// All is read ahead but for each run's first pages; it was 12,000 hard faults.
#[test]
fn readers_beside_each_other_wait_for_nothing() {
    for count in [1, 8] {
        let counts = readers(count, "use-once");
        assert!(counts.hard_faults <= 4 * count + 4 && counts.readahead_lost == 0, "{count}: {counts:?}");
    }
}

#[test]
fn without_a_trial_it_is_lost() {
    let counts = readers(1, "fifo");
    let windows = 2 * PAGES / 128;
    assert!(counts.readahead_lost > windows && counts.hard_faults > windows, "{counts:?}");
}

/// GNU sort merges its lines from the end on: going down, every page was a fault of its own, filling and reading (131,072 hard
/// faults here). Then every other window was one in both directions, at a page that had stayed in memory as a trigger of the round
/// before, or after a window of several reads whose reader was waiting.
#[test]
fn who_goes_down_is_read_ahead_of_as_well() {
    let config = ReplayConfig { alongside: true, ..config("use-once") };
    let up = || (0..PAGES).map(|page| (page, true));
    let down = || up().rev();
    let up = replay_counts(up().chain(up()).chain(up()), &config);
    let down = replay_counts(down().chain(down()).chain(down()), &config);
    for counts in [&up, &down] {
        assert!(counts.hard_faults <= 16 && counts.readahead_lost == 0, "{counts:?}");
        assert!(counts.first_touches <= PAGES / 8, "{counts:?}");
    }
    assert!(down.hard_faults <= up.hard_faults * 3 / 2, "{down:?}, up {up:?}");
}

/// Sixteen pages in order, 48 passed over, three times: each burst was read as a run, two or three windows past its end. That was
/// 8,192 hard faults and 134,000 pages for 49,000 touches. A matrix by columns was one hard fault for each page.
#[test]
fn bursts_and_strides_are_read_ahead() {
    let config = ReplayConfig { alongside: true, ..config("use-once") };
    let fill = || (0..PAGES).map(|page| (page, true));
    let burst = || (0..PAGES).filter(|page| page % 64 < 16).map(|page| (page, false));
    let stride = || (0..16).flat_map(|from| (from..PAGES).step_by(16).map(|page| (page, false)));
    let read = replay_counts(fill().chain(burst()).chain(burst()).chain(burst()), &config);
    let read_down = replay_counts(fill().chain(burst().collect::<Vec<_>>().into_iter().rev()), &config);
    for (counts, touched) in [(&read, 3 * PAGES / 4), (&read_down, PAGES / 4)] {
        assert!(counts.hard_faults < 200 && counts.pages_in < touched + touched / 50, "{counts:?}");
    }
    let columns = replay_counts(fill().chain(stride()), &config);
    assert!(columns.hard_faults < 500 && columns.pages_in < PAGES + PAGES / 50, "{columns:?}");
}

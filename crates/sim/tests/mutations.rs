//! The tests of the tests: each deliberate mistake must be found, by a checker that is meant to find it.
//!
//! A simulation that cannot fail proves nothing. Each test switches one [`Bug`] on, runs seeds until one fails, and looks at what
//! was said.

use overspill_sim::{Bug, Faults, PagerKind, Scenario, run_with};

/// More than any of them needs.
const SEEDS_MAX: u64 = 40;

/// Runs seeds with the mistake until one fails with one of the words in `found_by`; and the same seeds pass without it.
fn is_found(bug: Bug, pager: PagerKind, found_by: &[&str], base: impl Fn(u64) -> Scenario) {
    for seed in 1..=SEEDS_MAX {
        let scenario = Scenario { bug, ..base(seed) };
        let Err(failure) = run_with(&scenario, pager) else { continue };
        assert!(
            found_by.iter().any(|w| failure.what.contains(w)),
            "{bug:?} was found by another checker than was thought: {failure}"
        );
        println!("{bug:?}: seed {seed}, step {}: {}", failure.step, failure.what);
        let sound = Scenario { bug: Bug::None, slot_book_silent: false, ..scenario };
        assert!(run_with(&sound, pager).is_ok(), "seed {seed} fails without the mistake, too");
        return;
    }
    panic!("{bug:?} was not found in {SEEDS_MAX} seeds");
}

fn stormy(seed: u64) -> Scenario {
    Scenario { events: 40, refuse: 50, ..Scenario::new(seed) }
}

#[test]
fn a_copy_dropped_before_the_refill() {
    is_found(Bug::DropBeforeRefill, PagerKind::Swap, &["contents:", "reads:", "frames:"], stormy);
}

#[test]
fn content_that_is_not_compared() {
    let faults = Faults { corrupt: 50, ..Faults::NONE };
    is_found(Bug::NoHashCheck, PagerKind::Swap, &["reads:", "contents:"], |seed| Scenario { faults, ..Scenario::new(seed) });
}

#[test]
fn a_write_of_what_came_later() {
    is_found(Bug::WriteLate, PagerKind::Swap, &["contents:", "slots:", "reads:"], Scenario::new);
}

#[test]
fn a_released_page_that_is_mapped() {
    is_found(Bug::MapDoomed, PagerKind::Swap, &["frames:", "contents:", "reads:"], stormy);
}

#[test]
fn a_lost_wake() {
    is_found(Bug::LoseWake, PagerKind::Swap, &["progress:"], |seed| Scenario { steps: 80_000, ..stormy(seed) });
}

#[test]
fn a_discard_that_leaves_resident_pages() {
    is_found(Bug::KeepResident, PagerKind::Swap, &["frames:", "contents:", "reads:"], stormy);
}

#[test]
fn frames_free_before_their_content_is_gone() {
    is_found(Bug::FreeBeforeDrop, PagerKind::Swap, &["frames:"], Scenario::new);
}

#[test]
fn frames_above_the_budget_without_need() {
    // The budget's account says what was asked for; that it was not needed is what `fair_weather` asserts.
    let over: u64 = (1..=SEEDS_MAX)
        .map(|seed| {
            run_with(&Scenario { bug: Bug::Overcommit, threads: 12, ..Scenario::new(seed) }, PagerKind::Swap)
                .map_or(1, |r| r.over_budget)
        })
        .sum();
    assert!(over > 0);
}

#[test]
fn a_slot_given_twice() {
    for pager in [PagerKind::Swap, PagerKind::Model] {
        is_found(Bug::SlotTwice, pager, &["slots:"], Scenario::new);
    }
}

/// ... and with the slot account switched off the contents tell.
#[test]
fn a_slot_given_twice_shows_in_the_contents() {
    is_found(Bug::SlotTwice, PagerKind::Swap, &["contents:", "slots:", "comes back", "taken"], |seed| Scenario {
        slot_book_silent: true,
        ..Scenario::new(seed)
    });
}

#[test]
fn a_slot_that_leaks() {
    let faults = Faults { write_error: 50, ..Faults::NONE };
    for pager in [PagerKind::Swap, PagerKind::Model] {
        is_found(Bug::LeakSlot, pager, &["leaks:"], |seed| Scenario { faults, ..Scenario::new(seed) });
    }
}

#[test]
fn a_fork_that_does_not_freeze() {
    is_found(Bug::ForkNotFrozen, PagerKind::Swap, &["slots:", "contents:"], |seed| Scenario {
        processes_max: 4,
        events: 20,
        steps: 16_000,
        slots: 120,
        writes: 900,
        ..Scenario::new(seed)
    });
}

#[test]
fn a_failed_write_taken_for_good() {
    let faults = Faults { write_error: 50, ..Faults::NONE };
    is_found(Bug::IgnoreWriteError, PagerKind::Swap, &["contents:", "slots:"], |seed| Scenario { faults, ..Scenario::new(seed) });
}

fn swapping(seed: u64) -> Scenario {
    Scenario { swaps: 400, slots: 300, latency_steps: 200, events: 20, writes: 700, ..Scenario::new(seed) }
}

#[test]
fn a_device_that_goes_too_early() {
    is_found(Bug::CloseEarly, PagerKind::Swap, &["removed while something needs it"], swapping);
}

#[test]
fn a_move_that_is_not_compared() {
    let faults = Faults { corrupt: 50, ..Faults::NONE };
    is_found(Bug::MoveUnchecked, PagerKind::Swap, &["contents:", "reads:"], |seed| Scenario { faults, ..swapping(seed) });
}

#[test]
fn a_failed_move_taken_for_good() {
    let faults = Faults { write_error: 50, ..Faults::NONE };
    is_found(Bug::MoveWriteError, PagerKind::Swap, &["contents:", "slots:"], |seed| Scenario { faults, ..swapping(seed) });
}

#[test]
fn a_move_reported_for_another_page() {
    is_found(Bug::MoveShifted, PagerKind::Swap, &["contents:", "slots:"], |seed| Scenario { latency_steps: 20, ..swapping(seed) });
}

fn packing(seed: u64) -> Scenario {
    Scenario { pool_pages: 25, latency_steps: 200, events: 30, writes: 700, ..Scenario::new(seed) }
}

#[test]
fn a_failed_write_back_taken_for_good() {
    let faults = Faults { write_error: 100, ..Faults::NONE };
    is_found(Bug::WriteBackError, PagerKind::Swap, &["contents:", "slots:"], |seed| Scenario { faults, ..packing(seed) });
}

#[test]
fn a_write_back_of_what_has_changed() {
    is_found(Bug::WriteBackBlind, PagerKind::Swap, &["contents:", "slots:", "reads:"], packing);
}

#[test]
fn compressed_memory_that_keeps_what_was_given_up() {
    is_found(Bug::SlotNotFreed, PagerKind::Swap, &["pool:"], packing);
}

/// A failure is a seed: the same seed fails at the same step in the same way.
#[test]
fn a_failure_happens_again() {
    let scenario = Scenario { bug: Bug::WriteLate, ..Scenario::new(1) };
    let fail = || run_with(&scenario, PagerKind::Swap).expect_err("the mistake shows");
    let (a, b) = (fail(), fail());
    assert_eq!((a.step, &a.what, &a.log), (b.step, &b.what, &b.log));
    assert!(a.to_string().contains("OVERSPILL_SEED=1 cargo test"));
}

//! Scenarios of the machine under simulation, each with a few seeds (`SEEDS=N`, `FIRST=N`; `SEED=N` repeats one run), and the
//! mistakes that they find.

use overspill_sim::{FileHabits, FileTrouble, Habits, Mistake, Scenario, Swaps, Trouble, USUAL, run};

fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = number("FIRST").unwrap_or(0);
            first..first + number("SEEDS").unwrap_or(default)
        }
    }
}

fn all_pass(scenario: &Scenario, default: u64) {
    let start = std::time::Instant::now();
    let (mut turns, seeds) = (0, seeds(default));
    let count = seeds.end - seeds.start;
    for seed in seeds {
        turns += run(scenario, seed, None).unwrap_or_else(|failure| panic!("seed {seed}: {failure:?}")).turns;
    }
    println!("{:.0} runs a second, {} turns a run", count as f64 / start.elapsed().as_secs_f64(), turns / count);
}

#[test]
fn programs_find_what_they_wrote() {
    all_pass(&USUAL, 20);
}

/// All memory is writable, so nothing is copied out, and the charge must match the resident pages exactly.
const WRITABLE: Scenario = Scenario { habits: Habits { weights: [20, 12, 4, 3, 0, 4, 2, 2, 1, 0], ..USUAL.habits }, ..USUAL };

#[test]
fn what_is_resident_is_charged() {
    all_pass(&WRITABLE, 10);
}

/// The machine has swap of the kernel's as well. What was there when native memory was adopted was not charged, and never evicted:
/// the kernel brought it back, without a report. mincore(2), which was asked, does not tell of it.
const KERNEL_SWAP: Scenario =
    Scenario { memory: 224, habits: Habits { kernel_swap: 300, pages: 200, ..WRITABLE.habits }, ..WRITABLE };

#[test]
fn what_the_kernel_has_swapped_out_is_charged() {
    all_pass(&KERNEL_SWAP, 20);
}

/// Memory is made writable, written, discarded and protected again, under pressure.
const FLIPS: Scenario = Scenario {
    threads: 3,
    habits: Habits { steps: 30, pages: 80, weights: [0, 1, 0, 0, 0, 1, 0, 0, 0, 8], ..USUAL.habits },
    ..USUAL
};

#[test]
fn memory_that_is_protected_and_discarded_holds_what_it_must() {
    all_pass(&FLIPS, 20);
}

/// Two handlers serve four threads, each of which often touches new memory next to another's, while a third gives some up.
const SIDE_BY_SIDE: Scenario = Scenario {
    threads: 4,
    handlers: 2,
    habits: Habits { steps: 60, arena: 128, pages: 60, weights: [4, 20, 12, 0, 0, 12, 10, 0, 0, 0], ..USUAL.habits },
    ..USUAL
};

#[test]
fn two_handlers_forget_no_thread() {
    all_pass(&SIDE_BY_SIDE, 40);
}

/// Threads map, unmap and move memory at few addresses: addresses that one gives up are another's at once.
const CROWDED: Scenario = Scenario {
    threads: 3,
    habits: Habits { steps: 60, arena: 160, pages: 60, weights: [12, 12, 3, 2, 2, 8, 8, 10, 1, 0], ..USUAL.habits },
    ..USUAL
};

#[test]
fn what_comes_to_a_place_is_not_what_went() {
    all_pass(&CROWDED, 30);
}

/// Memory is moved over other memory.
const REPLACED: Scenario =
    Scenario { habits: Habits { steps: 60, pages: 120, weights: [4, 20, 0, 0, 0, 4, 1, 30, 0, 0], ..USUAL.habits }, ..USUAL };

#[test]
fn what_is_replaced_is_not_taken() {
    all_pass(&REPLACED, 30);
}

/// Many threads move memory to addresses where other memory has just been.
const MOVED: Scenario = Scenario {
    threads: 4,
    habits: Habits { steps: 70, arena: 320, pages: 48, weights: [10, 24, 0, 0, 0, 8, 2, 40, 0, 0], ..USUAL.habits },
    ..USUAL
};

#[test]
fn what_is_moved_arrives() {
    all_pass(&MOVED, 20);
}

/// Some pages are sealed. An unmapping that includes them is refused, but the kernel reports it nevertheless.
const SEALS: Scenario = Scenario { habits: Habits { steps: 90, seals: 50, ..USUAL.habits }, ..USUAL };

#[test]
fn what_cannot_be_unmapped_stays() {
    all_pass(&SEALS, 10);
}

/// Devices that come and go, including small ones.
const COME_AND_GO: Swaps =
    Swaps { program: 320, lengths: (64, 512), compressed: false, space: 0, sparse: false, bold: 300, cancelled: 250 };

/// Devices are added and swapped off.
const SWAPS: Scenario = Scenario {
    habits: Habits { steps: 240, weights: [20, 30, 4, 3, 4, 4, 2, 2, 1, 2], ..USUAL.habits },
    swaps: Some(COME_AND_GO),
    ..USUAL
};

#[test]
fn what_is_on_a_device_survives_it() {
    all_pass(&SWAPS, 8);
}

/// The same with more memory, so that a swapoff moves runs of pages.
const RUNS: Scenario = Scenario {
    memory: 448,
    habits: Habits { steps: 120, arena: 2048, pages: 480, weights: [10, 60, 4, 2, 2, 20, 2, 2, 1, 2], ..USUAL.habits },
    swaps: Some(SWAPS_OF_RUNS),
    ..USUAL
};

const SWAPS_OF_RUNS: Swaps = Swaps { program: 1100, lengths: (256, 1500), ..COME_AND_GO };

#[test]
fn runs_of_pages_survive_their_device() {
    all_pass(&RUNS, 4);
}

/// Threads move memory, and mostly move it back soon. A swapoff looked a page up when its read had ended, and did not find it. It
/// looked once more after a wait, found the page in the very slot, and lost it, because its content had not been checked.
const THERE_AND_BACK: Scenario = Scenario {
    habits: Habits { steps: 240, returns: 900, weights: [10, 60, 0, 0, 0, 20, 1, 60, 0, 0], ..RUNS.habits },
    check_ns: 60_000,
    ..RUNS
};

#[test]
fn what_has_moved_back_is_not_lost() {
    all_pass(&THERE_AND_BACK, 6);
}

/// Devices so short that many pages must go into memory, and often do not fit there.
const TIGHT: Scenario = Scenario { swaps: Some(Swaps { lengths: (16, 128), bold: 1000, ..COME_AND_GO }), ..SWAPS };

#[test]
fn what_fits_nowhere_stays_where_it_is() {
    all_pass(&TIGHT, 8);
}

/// Runs of pages, and short devices.
const TIGHT_RUNS: Scenario = Scenario { swaps: Some(Swaps { lengths: (16, 400), bold: 1000, ..SWAPS_OF_RUNS }), ..RUNS };

#[test]
fn runs_that_fit_nowhere_stay_where_they_are() {
    all_pass(&TIGHT_RUNS, 4);
}

/// Compressed memory among the devices. It refuses pages that do not compress.
const COMPRESSED: Scenario =
    Scenario { noisy: true, swaps: Some(Swaps { lengths: (16, 200), compressed: true, bold: 1000, ..COME_AND_GO }), ..SWAPS };

#[test]
fn compressed_memory_comes_and_goes() {
    all_pass(&COMPRESSED, 8);
}

/// The same, while the budget changes and forks are prepared. A fork left pages in compressed memory, of which each child wrote a
/// copy of its own to swap.
const COMPRESSED_BEFORE_FORKS: Scenario = Scenario { habits: Habits { whims: 60, ..SWAPS.habits }, ..COMPRESSED };

#[test]
fn nothing_stays_compressed_for_a_fork() {
    all_pass(&COMPRESSED_BEFORE_FORKS, 8);
}

/// The other devices take nothing from a swapoff: its pages must come into memory.
const REFUSED: Scenario = Scenario {
    habits: Habits { pages: 70, ..SWAPS.habits },
    trouble: Trouble { refused: 1000, ..Trouble::NONE },
    swaps: Some(Swaps { program: 160, lengths: (200, 400), bold: 1000, cancelled: 50, ..COME_AND_GO }),
    ..COMPRESSED
};

#[test]
fn what_is_refused_comes_into_memory() {
    all_pass(&REFUSED, 4);
}

/// The file system is full: sparse files are long enough, but have no room except where they have been written.
const FULL: Scenario = Scenario {
    noisy: true,
    habits: Habits { pages: 64, ..SWAPS.habits },
    swaps: Some(Swaps { program: 160, lengths: (16, 200), compressed: true, space: 30, sparse: true, bold: 1000, ..COME_AND_GO }),
    ..SWAPS
};

#[test]
fn a_full_file_system_ends_a_swapoff() {
    all_pass(&FULL, 4);
}

/// Files that grow as they are needed, in a file system that may be full.
const GROWING: Scenario = Scenario {
    habits: Habits { rest_ns: 2_500_000_000, ..SWAPS.habits },
    swaps: Some(Swaps { space: 400, ..COME_AND_GO }),
    ..SWAPS
};

#[test]
fn files_grow_and_give_back() {
    all_pass(&GROWING, 8);
}

/// Growing devices are removed before they have grown, and processes fork meanwhile.
const GROWING_AND_FORKS: Scenario =
    Scenario { swaps: Some(Swaps { space: 3000, lengths: (16, 200), bold: 1000, ..COME_AND_GO }), ..FORKS_AND_SWAPS };

#[test]
fn devices_go_while_they_grow() {
    all_pass(&GROWING_AND_FORKS, 8);
}

/// Pages on devices are sealed.
const SEALED: Scenario =
    Scenario { sealed: true, noisy: true, swaps: Some(Swaps { compressed: true, space: 400, ..COME_AND_GO }), ..SWAPS };

#[test]
fn what_is_sealed_is_opened_again() {
    all_pass(&SEALED, 8);
}

/// Now and then a device, the source or the target of a swapoff, takes longer than ten seconds. A swapoff that had moved nothing
/// for that long gave up, though nothing had failed. (No swapoff takes the last room: its worker may wait for a read that it no
/// longer needs, and no device can be added meanwhile. Seed 49713: the program was stopped before.)
const SLOW: Scenario =
    Scenario { trouble: Trouble { stall: 2, ..Trouble::NONE }, swaps: Some(Swaps { bold: 0, ..COME_AND_GO }), ..SWAPS };

#[test]
fn a_slow_device_is_waited_for() {
    all_pass(&SLOW, 8);
}

/// Transfers fail, are short, find no space. Pages that cannot be read may be lost, and that is reported.
const TROUBLED: Scenario =
    Scenario { trouble: Trouble { read_error: 5, write_error: 20, no_space: 5, short: 50, ..Trouble::NONE }, ..SWAPS };

#[test]
fn transfers_fail() {
    all_pass(&TROUBLED, 8);
}

/// The same, but nothing may be lost.
const WRITES_FAIL: Scenario = Scenario { trouble: Trouble { write_error: 60, no_space: 10, short: 50, ..Trouble::NONE }, ..SWAPS };

#[test]
fn writes_fail_and_nothing_is_lost() {
    all_pass(&WRITES_FAIL, 8);
}

/// Devices give back other content than was written, or write it to another place. That is reported page by page, and nothing else
/// is lost.
const CORRUPT: Scenario = Scenario { trouble: Trouble { corrupt: 10, short: 50, ..Trouble::NONE }, ..SWAPS };

#[test]
fn what_comes_back_wrong_is_told() {
    all_pass(&CORRUPT, 8);
}

/// Devices die: they can be read, but every write fails. They are swapped off.
const DEATHS: Scenario = Scenario { trouble: Trouble { deaths: 30, short: 50, ..Trouble::NONE }, ..SWAPS };

#[test]
fn devices_die() {
    all_pass(&DEATHS, 8);
}

/// Devices are away when they are to be emptied, and come back. Nothing is lost.
const OUTAGES: Scenario = Scenario { trouble: Trouble { outages: 500, short: 50, ..Trouble::NONE }, ..SWAPS };

#[test]
fn devices_are_away_for_a_while() {
    all_pass(&OUTAGES, 8);
}

/// The budget and the policy change, and some pages must stay in memory.
const WHIMS: Scenario = Scenario { habits: Habits { whims: 80, ..USUAL.habits }, ..USUAL };

#[test]
fn the_budget_and_the_policy_change() {
    all_pass(&WHIMS, 20);
}

/// Memory and swap add up: together they have room for all of the program's pages, except for the page daemon's reserve.
const ADD_UP: Scenario = Scenario {
    memory: 256,
    habits: Habits { steps: 80, arena: 1024, pages: 300, weights: [4, 60, 2, 1, 0, 30, 2, 2, 1, 0], ..USUAL.habits },
    slots: 600 - 256 + 64,
    ..USUAL
};

#[test]
fn memory_and_swap_add_up() {
    all_pass(&ADD_UP, 15);
}

/// Memory and swap do not suffice, and the program may be stopped.
const TOO_LITTLE: Scenario = Scenario { slots: 160, may_stop: Some("memory and swap are both full"), ..ADD_UP };

#[test]
fn a_program_that_has_no_room_is_stopped() {
    all_pass(&TOO_LITTLE, 15);
}

/// The pager has no room to remember where more pages are.
const FORGETFUL: Scenario =
    Scenario { remembered: 100, may_stop: Some("the pager has no room to remember where more pages are"), ..USUAL };

#[test]
fn a_pager_that_cannot_remember_more_stops_the_program() {
    all_pass(&FORGETFUL, 15);
}

/// A file system is full now and then, and has space again. The program was once stopped as soon as each device had answered ENOSPC
/// once since the page daemon last slept, however much space there was by then (STORM 40686).
const SPACE_COMES_BACK: Scenario =
    Scenario { threads: 3, memory: 72, noisy: true, trouble: Trouble { no_space: 40, ..Trouble::NONE }, ..USUAL };

#[test]
fn a_full_device_is_asked_again() {
    all_pass(&SPACE_COMES_BACK, 10);
}

/// Everything at once.
const STORM: Scenario = Scenario {
    threads: 3,
    habits: Habits { whims: 30, rest_ns: 1_000_000_000, pages: 100, ..SWAPS.habits },
    trouble: Trouble {
        read_error: 2,
        write_error: 10,
        no_space: 5,
        short: 50,
        corrupt: 3,
        deaths: 10,
        outages: 200,
        ..Trouble::NONE
    },
    noisy: true,
    swaps: SEALED.swaps,
    ..SWAPS
};

#[test]
fn everything_at_once() {
    all_pass(&STORM, 8);
}

/// Compressed memory whose coldest pages go on to devices, where some writes fail.
const WRITE_BACK: Scenario = Scenario {
    noisy: true,
    trouble: Trouble { write_error: 60, ..Trouble::NONE },
    swaps: Some(Swaps { compressed: true, bold: 0, ..SWAPS_OF_RUNS }),
    ..RUNS
};

#[test]
fn what_is_cold_goes_on() {
    all_pass(&WRITE_BACK, 8);
}

/// Threads fork alongside others, on a device that is nearly full of pages that children can still read. Each child, and each of
/// its own children, runs a machine of its own on what it has inherited.
const FORKS: Scenario = Scenario {
    memory: 72,
    habits: Habits { steps: 90, pages: 72, weights: [8, 24, 4, 2, 3, 4, 2, 2, 1, 1], forks: 50, ..USUAL.habits },
    children: 3,
    slots: 176,
    ..USUAL
};

#[test]
fn children_find_what_was_there_at_the_fork() {
    all_pass(&FORKS, 15);
}

/// The same, while devices come and go and the budget changes.
const FORKS_AND_SWAPS: Scenario =
    Scenario { habits: Habits { whims: 20, ..FORKS.habits }, swaps: Some(COME_AND_GO), slots: SWAPS.slots, ..FORKS };

#[test]
fn forks_and_swapoffs_get_on() {
    all_pass(&FORKS_AND_SWAPS, 10);
}

/// Memory that forks share is discarded and written, and made the process's own again so that it can be paged out.
const UNSHARED: Scenario = Scenario {
    threads: 3,
    memory: 72,
    habits: Habits { steps: 60, pages: 64, weights: [6, 12, 24, 0, 0, 2, 0, 0, 0, 0], forks: 250, ..USUAL.habits },
    children: 3,
    ..USUAL
};

#[test]
fn forks_discards_and_sharing_get_on() {
    all_pass(&UNSHARED, 15);
}

/// Memory is moved, grows and shrinks (mremap): as a whole, with gaps, over other memory, with an empty mapping left behind. A call
/// that succeeds without a pager must succeed with one: each thread makes its calls in both worlds.
///
/// Neighbours that are alike are one mapping if at least one of them has no pages of its own. Where a program only reads, its
/// memory has none, but with a pager it has, because the pager fills pages. So an mremap of what had been one mapping was told
/// EFAULT.
const ONE: Scenario = Scenario {
    habits: Habits { steps: 90, arena: 192, pages: 110, weights: [16, 16, 3, 1, 6, 14, 4, 20, 6, 2], twins: true, ..USUAL.habits },
    ..USUAL
};

#[test]
fn what_is_one_mapping_moves_as_one() {
    all_pass(&ONE, 20);
}

/// Long ranges are discarded, unmapped and moved. That takes many steps. Meanwhile other threads' faults are served, reads arrive,
/// the page daemon works, devices come and go, and processes fork.
const LARGE: Scenario = Scenario {
    threads: 3,
    memory: 96,
    habits: Habits {
        steps: 60,
        arena: 1024,
        pages: 160,
        weights: [10, 30, 14, 4, 3, 12, 4, 14, 4, 2],
        forks: 15,
        large: 6,
        ..USUAL.habits
    },
    children: 2,
    swaps: Some(Swaps { program: 700, lengths: (128, 800), ..COME_AND_GO }),
    ..USUAL
};

#[test]
fn what_takes_many_steps_is_done_as_if_at_once() {
    all_pass(&LARGE, 10);
}

/// Two threads have regions of files next to a thread with anonymous memory. A thread of the library's writes changed pages back,
/// another one flushes, and others write to the files that no region writes to.
const FILES: Scenario =
    Scenario { threads: 1, habits: Habits { steps: 60, pages: 60, ..USUAL.habits }, files: Some(FILE_HABITS), ..USUAL };

#[test]
fn a_file_has_what_was_flushed() {
    all_pass(&FILES, 15);
}

const FILE_HABITS: FileHabits = FileHabits {
    threads: 2,
    steps: 60,
    regions: 2,
    pages: 60,
    weights: [20, 30, 12, 6, 2, 4, 0],
    sweep: 48,
    stranger: false,
    lengths: 0,
    policies: false,
    grows: 0,
    crashes: 0,
    trouble: FileTrouble::NONE,
};

/// Writes to files and fdatasync fail.
const FILES_FAIL: Scenario = Scenario {
    files: Some(FileHabits {
        trouble: FileTrouble { write_error: 60, no_space: 30, short: 50, sync_error: 200, ..FileTrouble::NONE },
        ..FILE_HABITS
    }),
    ..FILES
};

#[test]
fn what_a_file_has_not_taken_stays() {
    all_pass(&FILES_FAIL, 15);
}

/// Others make files shorter and longer, and reads fail.
const CUT_FILES: Scenario = Scenario {
    files: Some(FileHabits {
        lengths: 100,
        trouble: FileTrouble { read_error: 10, write_error: 10, short: 50, sync_error: 30, ..FileTrouble::NONE },
        ..FILE_HABITS
    }),
    ..FILES
};

#[test]
fn a_file_that_becomes_shorter_loses_only_what_lies_beyond() {
    all_pass(&CUT_FILES, 15);
}

/// Little memory and many touches, so that pages leave memory and come back while they are flushed.
const BUSY_FILES: Scenario = Scenario {
    memory: 72,
    files: Some(FileHabits { threads: 3, steps: 120, regions: 1, pages: 40, weights: [90, 10, 2, 2, 0, 1, 0], ..FILE_HABITS }),
    ..FILES
};

#[test]
fn pages_come_back_while_they_are_flushed() {
    all_pass(&BUSY_FILES, 10);
}

/// Regions are closed while the page daemon takes their pages, and other memory comes to their places.
const STRANGER: Scenario = Scenario {
    memory: 72,
    files: Some(FileHabits { steps: 120, weights: [20, 40, 1, 0, 0, 20, 0], stranger: true, ..FILE_HABITS }),
    ..FILES
};

#[test]
fn what_comes_to_a_closed_regions_place_is_left_alone() {
    all_pass(&STRANGER, 15);
}

/// Regions have policies of their own, next to memory with the pager's. All of them change, and so does the budget.
const POLICIES: Scenario = Scenario {
    memory: 96,
    files: Some(FileHabits { regions: 3, steps: 120, policies: true, weights: [60, 20, 4, 4, 2, 6, 20], ..FILE_HABITS }),
    ..FILES
};

#[test]
fn regions_have_policies_of_their_own() {
    all_pass(&POLICIES, 15);
}

/// Regions become longer, and their files with them. Processes end in the middle of it, and machines stop; others go on with what
/// is left of the files.
const CRASH_HABITS: FileHabits = FileHabits { grows: 60, crashes: 15, weights: [20, 30, 20, 6, 2, 4, 0], ..FILE_HABITS };

const CRASHES: Scenario = Scenario { files: Some(CRASH_HABITS), ..FILES };

#[test]
fn what_was_flushed_is_there_after_a_crash() {
    all_pass(&CRASHES, 15);
}

/// The same in-thread, with a device that fails.
const CRASHES_IN_THREAD: Scenario = Scenario {
    files: Some(FileHabits {
        pages: 100,
        trouble: FileTrouble { write_error: 30, no_space: 10, short: 50, sync_error: 100, ..FileTrouble::NONE },
        ..CRASH_HABITS
    }),
    ..IN_THREAD
};

#[test]
fn what_was_flushed_is_there_after_a_crash_of_who_serves_himself() {
    all_pass(&CRASHES_IN_THREAD, 10);
}

/// Everything at once: devices come and go, swap fails, contents are noise, budget and policy change.
const FILE_STORM: Scenario = Scenario {
    noisy: true,
    sealed: true,
    habits: Habits { whims: 30, pages: 60, ..SWAPS.habits },
    trouble: Trouble { write_error: 10, no_space: 5, short: 50, ..Trouble::NONE },
    swaps: Some(Swaps { program: 560, compressed: true, ..COME_AND_GO }),
    files: Some(FileHabits {
        steps: 120,
        weights: [20, 30, 12, 6, 2, 4, 4],
        lengths: 30,
        trouble: FileTrouble { read_error: 2, write_error: 20, no_space: 10, short: 50, sync_error: 60 },
        ..FILE_HABITS
    }),
    ..FILES
};

#[test]
fn everything_at_once_with_files() {
    all_pass(&FILE_STORM, 8);
}

/// Threads serve their own faults. Files are so long that readers are read far ahead for, and that pages which they have passed are
/// dropped where they are.
const IN_THREAD: Scenario = Scenario {
    threads: 0,
    in_thread: true,
    memory: 144,
    files: Some(FileHabits { threads: 3, regions: 1, pages: 160, weights: [20, 60, 4, 2, 1, 3, 0], sweep: 160, ..FILE_HABITS }),
    ..FILES
};

#[test]
fn those_who_read_in_order_find_what_is_there() {
    all_pass(&IN_THREAD, 10);
}

/// The same, when everything fails, others make files shorter and longer, and budget and policy change.
const IN_THREAD_STORM: Scenario = Scenario {
    sealed: true,
    files: Some(FileHabits {
        threads: 3,
        regions: 2,
        steps: 80,
        pages: 120,
        weights: [20, 40, 12, 6, 2, 4, 4],
        sweep: 120,
        stranger: true,
        lengths: 30,
        policies: false,
        grows: 30,
        crashes: 0,
        trouble: FileTrouble { read_error: 4, write_error: 20, no_space: 10, short: 50, sync_error: 60 },
    }),
    ..IN_THREAD
};

#[test]
fn those_who_read_in_order_get_on_with_everything_at_once() {
    all_pass(&IN_THREAD_STORM, 8);
}

/// Each mend of a defect is taken back, and a seed must find the defect again.
#[test]
fn each_mistake_is_found() {
    use Mistake::*;
    // with the seed that found it when this was written; a thousand others follow
    let mistakes = [
        (BelievesDenials, USUAL, 3),
        (ForgetsDenialsWithin, FLIPS, 1276),
        (RemembersOneDenial, FLIPS, 125),
        (DiscardsRunsAtOnce, FLIPS, 523),
        (TakesWhatIsDiscarded, USUAL, 2199),
        (TakesWhatIsReplaced, REPLACED, 3421),
        (UnmapsUnannounced, STRANGER, 102),
        (FollowsLateUnmaps, CROWDED, 953),
        (MovesAtOnce, MOVED, 2418),
        (BelievesUnmaps, SEALS, 6),
        (MovesOnlyOne, ONE, 1),
        (FillsBeforeTheLastStep, LARGE, 1389),
        (DropsBeforeTheCopy, CROWDED, 156),
        (RingsNobody, USUAL, 0),
        (UnchargesBeforeTheDrop, WRITABLE, 52),
        (OffersWhatIsRefused, REFUSED, 9),
        (GivesUpAsItWaits, SLOW, 35),
        (LosesWhatIsAway, OUTAGES, 10),
        (LosesWhatIsNeeded, OUTAGES, 0),
        (TakesUnseenForDamaged, THERE_AND_BACK, 147),
        (ClosesBeforeReadsEnd, SWAPS, 129),
        (GrowsWhatMayGo, GROWING_AND_FORKS, 86),
        (ParksInOnePlace, TIGHT_RUNS, 216),
        (ThawsEarly, FORKS, 18),
        (NeverThaws, FORKS, 0),
        (WaitsForItsParent, FORKS, 6),
        (WaitsToUnshare, UNSHARED, 2022),
        (TrustsDevices, CORRUPT, 3),
        (TrustsItsFamily, FORKS, 2),
        (LeavesShortReads, WRITES_FAIL, 3),
        (BelievesFailedWrites, WRITES_FAIL, 0),
        (BelievesFailedMoves, WRITES_FAIL, 1),
        (BelievesFailedWriteBacks, WRITE_BACK, 120),
        (KeepsWhatIsFreed, COMPRESSED, 1),
        (KeepsNothing, WHIMS, 2),
        (LosesPlaces, USUAL, 409),
        (OverlooksKernelSwap, KERNEL_SWAP, 0),
        (GoesOverBudget, USUAL, 8),
        (AsksOnce, SPACE_COMES_BACK, 11),
        (ForgetsWhoWaits, CROWDED, 113),
        (ParksWhatIsUsed, USUAL, 1),
        (ReportsBeforeTheWrite, FILES, 17),
        (BelievesFailedFlushes, FILES_FAIL, 0),
        (SkipsWhatWasTaken, BUSY_FILES, 1784),
        (WaitsInAFlush, FILES, 57),
        (DropsWhatChanged, FILES, 1),
        (WritesCopiesHome, FILES, 2),
        (ForgetsFailedSyncs, FILES_FAIL, 13),
        (SyncsSideBySide, FILES_FAIL, 246),
        (DropsWhatMayChange, IN_THREAD, 586),
    ];
    let wanted = std::env::var("MISTAKE").ok();
    let mut missed = Vec::new();
    for (mistake, scenario, first) in mistakes.iter().filter(|(m, ..)| wanted.as_ref().is_none_or(|name| *name == format!("{m:?}")))
    {
        let order = (*first..first + 1000).chain(0..*first);
        let found = order.into_iter().find_map(|seed| Some((seed, run(scenario, seed, Some(*mistake)).err()?)));
        match found {
            Some((seed, failure)) => println!("{mistake:?}: seed {seed}, {failure:?}"),
            None => missed.push(*mistake),
        }
    }
    assert!(missed.is_empty(), "{missed:?}: not found");
}

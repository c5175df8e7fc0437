//! Calls that change the address space, under `overspill run`: what the kernel refuses changes nothing, what it does is followed,
//! and nothing that has no event is missed. Each test runs one case of `tests/programs/address_calls.c`, which says what is wrong.

use crate::common::{able, build, place};
use crate::runs::{no_swap_file_left, run, swap_option};

/// Runs one case in a budget of 16 MiB.
fn case(name: &str) {
    if !able() {
        return;
    }
    let dir = place(&format!("address-calls-{name}"));
    let program = build(&dir, "address_calls.c");
    let swap = swap_option(&dir, "");
    let r = run(&dir, &["--memory", "16M", "--swap", &swap], None, &program, &[name]);
    let text = String::from_utf8_lossy(&r.output.stdout);
    assert!(r.output.status.success() && text.ends_with("all right\n"), "{:?}\n{text}", r.output);
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// Ranges were taken out of the map before the call was known to succeed. When the kernel refused it, the whole range of its
/// arguments was taken for new: what was paged out in it was lost, after 19 s of waiting for unmaps that nobody had made.
#[test]
fn a_refused_call_changes_nothing() {
    case("refused");
}

/// An mmap at a fixed place that is refused for want of memory is reported as an unmapping all the same: what was paged out there
/// was forgotten, and read as zeroes.
#[test]
fn what_is_refused_late_changes_nothing_either() {
    case("refused-late");
}

/// So is what is refused because of a limit of address space, and an munmap, mmap or mremap that stops at a sealed mapping.
#[test]
fn what_is_refused_after_it_was_reported_changes_nothing() {
    case("refused-after-report");
}

/// An mremap of no bytes shows shared memory a second time. It was taken for growth of what lies below, and was not in forked
/// children. And what the program keeps from its children in part is two mappings, although the pager's own mark makes it one.
#[test]
fn shared_memory_is_there_twice() {
    case("twice");
}

/// A range moved onto another one (MREMAP_FIXED) that was left to the kernel, which sends no event for that: the map found two
/// ranges at the same place, and the program was stopped. And what MREMAP_DONTUNMAP leaves behind is registered still, and was
/// taken for the kernel's.
#[test]
fn a_range_moves_onto_another() {
    case("onto");
}

/// Linux 6.17 moves several mappings at once, but stops at one that is registered: EFAULT, and what came before had been moved.
#[test]
fn several_mappings_move_at_once() {
    case("several");
}

/// What was mapped into the middle of a managed range, or next to it, was left to the kernel where it fit the budget: two mappings
/// instead of one, for good once both had been touched. A resize of both (mremap) was EFAULT.
#[test]
fn what_is_one_mapping_to_the_kernel_is_one() {
    case("joined");
}

/// A call was about a part of a mapping that was left to the kernel, and of paged memory: that part was taken over, or it was not
/// when the rest was, and the kernel refused the call. One mapping was two then, and mremap of both said EFAULT.
#[test]
fn a_refused_call_does_not_divide_a_mapping() {
    case("in-part");
}

/// Several mappings moved at once. What stays where their gaps come was forgotten, and never paged; and what MREMAP_DONTUNMAP had
/// moved before the kernel came to paged memory, and refused, was moved a second time, when it was empty.
#[test]
fn gaps_between_mappings_that_move() {
    case("gaps");
}

/// What was only read has no page of its own without the pager, which fills it all the same; and two mappings that have pages are
/// not made one when they become alike. An mremap of both was EFAULT.
#[test]
fn neighbours_that_are_alike_move_as_one() {
    case("as-one");
}

/// A thread forked while memory that another one had moved (mremap) was known by its old addresses, as the report of that was still
/// to be read. One child in three found zeroes there.
#[test]
fn a_fork_alongside_mremap() {
    case("forks-alongside");
}

/// Guard pages have no event: readahead and zero-ahead were copied over them, and behind them stood what had been there before.
#[test]
fn guard_pages_stay() {
    case("guards");
}

/// What a forked child is to find empty was kept apart from the ranges, and forgotten when they moved, even by a call that was
/// refused: the child read its parent's secrets.
#[test]
fn what_is_wiped_on_fork_stays_so() {
    case("secrets");
}

/// A process that shares the program's memory was killed while it unmapped. The kernel withdraws the event then, which was waited
/// for for ten seconds, before the old pages passed for those of the new mapping.
#[test]
fn an_event_that_never_comes() {
    case("killed");
}

/// Memory that the kernel may empty at any moment (MAP_DROPPABLE) is the kernel's.
#[test]
fn droppable_memory_is_dropped() {
    case("droppable");
}

/// A locked range that grows as it moves: Linux brings in what is new before it reports the move, and until the report is read
/// nobody can fill a page. It hung for good.
#[test]
fn what_is_locked_moves_and_grows() {
    case("locked");
}

/// Memory can be registered with one userfaultfd only, and the pager had it: a program that uses one itself was told EBUSY.
#[test]
fn a_program_has_a_userfaultfd_of_its_own() {
    if !able() {
        return;
    }
    let dir = place("own-uffd");
    let program = build(&dir, "own_uffd.c");
    let r = run(&dir, &["--memory", "16M", "--swap", &swap_option(&dir, "")], None, &program, &[]);
    assert_eq!(String::from_utf8_lossy(&r.output.stdout), "all bytes right\n", "{:?}", r.output);
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

//! Calls that change the address space, under `overspill run`. A call that the kernel refuses changes nothing, a call that it makes
//! is followed, and calls without an event are not missed. Each test runs one case of `tests/programs/address_calls.c`, which
//! reports what is wrong.

use crate::common::{able, build, place};
use crate::runs::{Run, finds_all_bytes_right, no_swap_file_left, run, swap_option};

/// Runs one case in a budget of 16 MiB, if the machine can.
fn case(name: &str) -> Option<Run> {
    if !able() {
        return None;
    }
    let dir = place(&format!("address-calls-{name}"));
    let program = build(&dir, "address_calls.c");
    let swap = swap_option(&dir, "");
    let r = run(&dir, &["--memory", "16M", "--swap", &swap], None, &program, &[name]);
    let text = String::from_utf8_lossy(&r.output.stdout);
    assert!(r.output.status.success() && text.ends_with("all right\n"), "{:?}\n{text}", r.output);
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
    Some(r)
}

/// Ranges were taken out of the map before the call was known to succeed. When the kernel refused it, the whole range of its
/// arguments counted as new. Pages that were out in it were lost, after 19 s of waiting for unmaps that no call had made.
#[test]
fn a_refused_call_changes_nothing() {
    case("refused");
}

/// The kernel reports an unmapping even if it refuses an mmap at a fixed place for lack of memory. Pages that were out there were
/// forgotten, and read as zeroes.
#[test]
fn what_is_refused_late_changes_nothing_either() {
    case("refused-late");
}

/// It also does so if a limit of address space is the reason, or if an munmap, mmap or mremap stops at a sealed mapping.
#[test]
fn what_is_refused_after_it_was_reported_changes_nothing() {
    case("refused-after-report");
}

/// An mremap of no bytes maps shared memory a second time. It was taken for growth of the range below, and was missing in forked
/// children. And memory that the program keeps from its children in part is two mappings, although the pager's own mark makes it
/// one.
#[test]
fn shared_memory_is_there_twice() {
    case("twice");
}

/// A range moved onto a native one (MREMAP_FIXED), for which the kernel sends no event. The map found two ranges at the same place,
/// and the program was stopped. And the range that MREMAP_DONTUNMAP leaves behind is still registered, but was taken for native.
#[test]
fn a_range_moves_onto_another() {
    case("onto");
}

/// Linux 6.17 moves several mappings at once, but stops at a registered one with EFAULT, after it has moved those before.
#[test]
fn several_mappings_move_at_once() {
    case("several");
}

/// Memory that was mapped into the middle of a managed range, or next to it, became native if it fit the budget. So there were two
/// mappings instead of one, for good once both had been touched, and a resize of both (mremap) failed with EFAULT.
#[test]
fn what_is_one_mapping_to_the_kernel_is_one() {
    case("joined");
}

/// A call covered a part of a native mapping and paged memory. The native part was adopted, or was not when the rest was, and the
/// kernel refused the call. Then one mapping had become two, and an mremap of both failed with EFAULT.
#[test]
fn a_refused_call_does_not_divide_a_mapping() {
    case("in-part");
}

/// Several mappings moved at once. Memory that stays where their gaps come was forgotten, and never paged. And a mapping that
/// MREMAP_DONTUNMAP had moved before the kernel came to paged memory, and refused, was moved a second time, when it was empty.
#[test]
fn gaps_between_mappings_that_move() {
    case("gaps");
}

/// Memory that was only read has no pages without the pager, but has some with it. And two mappings that have pages are not merged
/// when they become alike. So an mremap of both failed with EFAULT.
#[test]
fn neighbours_that_are_alike_move_as_one() {
    case("as-one");
}

/// A thread forked after another one had moved memory (mremap) and before the report of that was read. The pager knew the memory by
/// its old addresses, and one child in three found zeroes there.
#[test]
fn a_fork_alongside_mremap() {
    case("forks-alongside");
}

/// The kernel sends no event for guard pages. Readahead and zero-ahead were copied over them, and when they were removed, the old
/// content was there again.
#[test]
fn guard_pages_stay() {
    case("guards");
}

/// The marks of memory that a forked child must find empty were kept apart from the ranges. They were forgotten when a range moved,
/// even by a call that was refused, and the child read its parent's secrets.
#[test]
fn what_is_wiped_on_fork_stays_so() {
    case("secrets");
}

/// process_madvise(2) takes any advice for the caller's own memory since Linux 6.13, and the pager did not know of it. Where guard
/// pages had been, the old content was there again. A forked child read what was to be wiped. And what was discarded could not
/// leave for two seconds: a program that discards all the time went 32 MiB above its budget.
#[test]
fn advice_by_process_madvise_is_followed() {
    let Some(r) = case("by-process") else { return };
    assert_eq!(r.stat("over_budget"), 0, "{}", r.stats);
}

/// A process that shares the program's memory was killed while it unmapped. Then the kernel withdraws the event. The pager waited
/// ten seconds for it, and then took the old pages for those of the new mapping.
#[test]
fn an_event_that_never_comes() {
    case("killed");
}

/// Memory that the kernel may empty at any moment (MAP_DROPPABLE) is left to the kernel.
#[test]
fn droppable_memory_is_dropped() {
    case("droppable");
}

/// A locked range grows as it moves. Linux populates the new part before it reports the move, and until the report is read the
/// pager cannot fill a page. The program hung for ever.
#[test]
fn what_is_locked_moves_and_grows() {
    case("locked");
}

/// One call fills pages of one mapping only. When mprotect(2) had divided the mapping of pages that were read together, none of
/// them was filled. The page was touched and all of them read again, until by chance it was read alone. That was 130,000 pages
/// here, for 39,000 touches. Two threads that did so at the same time hung.
#[test]
fn pages_of_two_mappings_come_back_together() {
    let Some(r) = case("divided") else { return };
    assert!((20_000..60_000).contains(&r.stat("pages_in")), "{}", r.stats);
}

/// After MADV_FREE the kernel may drop a page at any time, also from the parking area, where nobody noticed: the page daemon waited
/// for ever for a page that was gone, and in the end so did the program.
#[test]
fn freed_memory_that_the_kernel_drops_is_zero() {
    case("freed");
}

/// Memory can be registered with one userfaultfd only, and the pager had registered it: a program that uses one itself got EBUSY.
/// Had that reported forks, a fork would have waited for the thread that reads the report, and that thread for its page.
#[test]
fn a_program_has_a_userfaultfd_of_its_own() {
    finds_all_bytes_right("own_uffd.c");
}

/// The program moved pages by UFFDIO_MOVE from memory that was out. The kernel found no pages there: all of it read as zeroes if
/// holes may be moved, else the call failed with ENOENT.
#[test]
fn what_is_out_moves_by_a_userfaultfd_of_the_programs() {
    own_uffd("moves");
    own_uffd("moves-holes");
}

/// Pages are filled ahead of a thread that touches memory in order, also behind its end, where the program then registered memory.
/// They were there, as zeroes, and the program got no faults for them.
#[test]
fn what_a_program_registers_untouched_is_missing() {
    own_uffd("untouched");
}

/// All that a program registered was brought in before any of it was left to the program. If that was 32 MiB above the budget, the
/// program was stopped.
#[test]
fn a_program_registers_more_than_the_budget() {
    let Some(r) = own_uffd("large") else { return };
    assert_eq!(r.stat("over_budget"), 0, "{}", r.stats);
}

fn own_uffd(case: &str) -> Option<Run> {
    if !able() {
        return None;
    }
    let dir = place(&format!("own-uffd-{case}"));
    let program = build(&dir, "own_uffd.c");
    let r = run(&dir, &["--memory", "16M", "--swap", &swap_option(&dir, "")], None, &program, &[case]);
    assert_eq!(String::from_utf8_lossy(&r.output.stdout), "all bytes right\n", "{:?}", r.output);
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
    Some(r)
}

/// The pager asked the dynamic loader for symbols that nobody had, and the loader's messages were freed by the program's allocator
/// before `main`. Maxima's does not work so early: it was ended by SIGSEGV. The test's allocator has its memory in a static array,
/// which was not paged.
#[test]
fn an_allocator_may_work_from_main_on_and_in_a_static_array() {
    let Some(r) = finds_all_bytes_right("own_malloc.c") else { return };
    assert!(r.stat("pages_out") > 8_000, "{}", r.stats);
}

/// The kernel announces a discard once for each mapping, and all announcements but one were kept for two seconds. Meanwhile the
/// pages could not leave: the program went 32 MiB above its budget, and then its touches waited.
#[test]
fn a_discard_of_several_mappings_ends() {
    let Some(r) = case("halves") else { return };
    assert_eq!(r.stat("over_budget"), 0, "{}", r.stats);
    assert!(r.stat("pages_out") > 10_000, "{}", r.stats);
}

/// Memory is taken over piece by piece, and each piece divides its mapping. In a process with as many mappings as the kernel allows
/// the pieces were refused. Their memory was not counted any more, and stayed as it grew.
#[test]
fn a_process_of_too_many_mappings_is_paged() {
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").expect("a number");
    if most.trim().parse::<u64>().expect("a number") > 80_000 {
        eprintln!("NOT RUN: a_process_of_too_many_mappings_is_paged: vm.max_map_count is {}, above 80,000", most.trim());
        return;
    }
    let Some(r) = case("crowded") else { return };
    assert!(r.stat("pages_out") > 10_000, "{}", r.stats);
}

/// A signal that came when a thread was about to discard memory, and whose handler read it, never came back: what is about to be
/// discarded was not brought in. The handlers touch memory that is out.
#[test]
fn a_signal_handler_reads_what_is_being_discarded() {
    let Some(r) = case("interrupted") else { return };
    assert!(r.stat("pages_out") > 1000, "{}", r.stats);
}

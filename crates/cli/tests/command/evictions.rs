//! Which pages can leave memory under `overspill run`, and what happens to the rest. The program is `tests/programs/evictions.c`.

use crate::common::{able, build, place};
use crate::runs::{Run, no_swap_file_left, run, swap_option};

/// Runs a case of the program with 16 MiB. `None`: this machine cannot show it, and the program says why.
fn evict(test: &str, args: &[&str]) -> Option<Run> {
    evict_some(test, &[], args).map(right)
}

fn right(r: Run) -> Run {
    assert_eq!(String::from_utf8_lossy(&r.output.stdout), "right\n", "{:?}", r.output);
    assert_eq!(r.output.status.code(), Some(0), "{:?}", r.output);
    r
}

/// `more`: options of `run`.
fn evict_some(test: &str, more: &[&str], args: &[&str]) -> Option<Run> {
    if !able() {
        return None;
    }
    let dir = place(test);
    let program = build(&dir, "evictions.c");
    let file = dir.join("file");
    let args: Vec<_> = args.iter().map(|arg| if *arg == "FILE" { file.to_str().expect("a name") } else { arg }).collect();
    let swap = swap_option(&dir, "");
    let options = [&["--memory", "16M", "--swap", &swap], more].concat();
    let r = run(&dir, &options, None, &program, &args);
    let said = String::from_utf8_lossy(&r.output.stdout).into_owned();
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
    if said.starts_with("no ") {
        assert!(std::env::var_os("CI").is_none(), "cannot be tested here: {said}");
        println!("not run: {said}");
        return None;
    }
    Some(r)
}

fn within_budget(r: &Run) {
    assert!(r.stat("memory_peak_bytes") <= (16 << 20) + (1 << 20) && r.stat("over_budget") == 0, "{}", r.stats);
}

/// The kernel refuses to move a page with the same error if a fork's other side shares it, if direct I/O has it, or if advice by
/// another thread has it for a moment. The page daemon took each case for a fork, and populated the page in vain.
#[test]
fn a_page_in_somebodys_hands_is_not_taken_for_a_forks() {
    let Some(r) = evict("pinned", &["pinned"]) else { return };
    assert!(r.stat("pages_unmovable") >= 1024, "the buffers were tried: {}", r.stats);
    assert_eq!(r.stat("pages_unshared"), 0, "nobody has forked: {}", r.stats);
}

/// The page daemon populated a page that a fork had shared, and that the program had discarded meanwhile. So it waited for a
/// handler, the handlers waited for the next fork, and the fork waited for the daemon. It happened within seconds.
#[test]
fn forks_discards_and_sharing_get_on() {
    let Some(r) = evict("forks", &["forks", "2"]) else { return };
    assert!(r.stat("pages_unshared") > 0, "{}", r.stats);
}

/// The kernel moves pages only between mappings of the same protection. So writable and executable memory (of a compiler at run
/// time) could not go to the parking area, and stayed in memory. The program was stopped when it had more of it than the budget.
#[test]
fn executable_memory_goes_like_any_other() {
    let Some(r) = evict("executable", &["executable"]) else { return };
    assert_eq!(r.stat("pages_copied_out"), 0, "it is moved: {}", r.stats);
    within_budget(&r);
}

/// The same for memory that is not writable, which cannot be moved at all.
#[test]
fn protected_memory_goes_like_any_other() {
    let Some(r) = evict("protected", &["protected"]) else { return };
    assert!(r.stat("pages_copied_out") > 3000, "{}", r.stats);
    within_budget(&r);
}

/// Between the copy of a read-only page and its discard the program may make it writable and write, or discard it itself.
#[test]
fn nothing_is_lost_when_protection_changes_under_pressure() {
    for args in [&["flips", "1"][..], &["flips", "1", "fork"]] {
        let Some(r) = evict("flips", args) else { return };
        assert!(r.stat("pages_copied_out") > 0, "{}", r.stats);
    }
}

/// A page that is copied out is discarded, and the kernel reports that. If the program splits the mapping (mprotect) before the
/// report is read, the kernel reports the part behind the split a second time. The pager took that for a discard by the program,
/// and the page read as zeroes: some pages in each second of this program.
#[test]
fn nothing_is_lost_when_mappings_are_split_under_pressure() {
    let Some(r) = evict("splits", &["splits", "2"]) else { return };
    assert!(r.stat("pages_copied_out") > 0, "{}", r.stats);
}

/// A page that is taken while a device writes to it would lose the data. The kernel refuses to move such a page, to any area.
#[test]
fn direct_reads_into_executable_memory_lose_nothing() {
    let Some(r) = evict("direct", &["direct", "2", "FILE"]) else { return };
    assert!(r.stat("pages_out") > 1000, "{}", r.stats);
}

/// A fork first brings the process below half of its budget. With more than half of it locked, each fork waited thirty seconds for
/// that.
#[test]
fn locked_memory_does_not_hold_up_a_fork() {
    let Some(r) = evict("locked", &["locked"]) else { return };
    assert!((10 << 20..11 << 20).contains(&r.stat("memory_locked_bytes")), "{}", r.stats);
}

/// Memory that a program locks stays. If it locks more than its budget, a message says how much it has locked.
#[test]
fn too_much_locked_memory_is_one_sentence() {
    let Some(r) = evict_some("too-much", &[], &["too-much-locked"]) else { return };
    assert_eq!(r.output.status.code(), Some(125), "{:?}", r.output);
    assert!(r.stderr().contains("MiB locked by the program, 0 MiB pinned"), "{}", r.stderr());
}

/// What is locked and what is compressed together were larger than the budget, for as long as the program ran: compressed memory
/// made way only when it was nearly full itself.
#[test]
fn compressed_memory_makes_way_for_what_is_locked() {
    let Some(r) = evict_some("locked-late", &["--swap", "compressed:size=12M"], &["locked-late"]).map(right) else { return };
    assert!(r.stat("pages_unmovable") > 1000 && r.stat("pool_written_back") > 2000, "{}", r.stats);
    assert!(r.stat("memory_peak_bytes") <= 18 << 20, "{}", r.stats);
}

/// The mappings of a program that outgrew its budget were taken over in the order of their addresses. The kernel places new ones
/// below the others, so the newest was evicted first.
#[test]
fn the_oldest_mapping_is_evicted_first() {
    let Some(r) = evict("oldest", &["oldest"]) else { return };
    within_budget(&r);
}

//! Memory in many pieces: the pager's tables have room for all memory that a program can have, wherever it lies, or the pager says
//! that they do not.

use crate::common::{able, build, place};
use crate::runs::{no_swap_file_left, run, swap_option};
use std::path::Path;

/// Node.js was stopped as soon as it was paged: V8 puts each 256 KiB of its heap at a random address, and the page table had room
/// for 73 places that lie 16 GiB apart. Under a limit of address space the tables are small, and must still be enough for memory
/// within the limit.
#[test]
fn pieces_anywhere_in_the_address_space() {
    if !able() {
        return;
    }
    let dir = place("pieces");
    let program = build(&dir, "chunks.c");
    let swap = swap_option(&dir, "");
    let options = ["--memory", "32M", "--swap", &swap];
    let r = run(&dir, &options, None, &program, &["anywhere", "560"]);
    assert_eq!(String::from_utf8_lossy(&r.output.stdout), "right\n", "{:?}", r.output);
    assert!(r.stat("pages_in") > 10_000, "{}", r.stats);
    assert!(r.stat("metadata_bytes") < (100 << 20) / 10, "a tenth of what is scattered so: {}", r.stats);
    let limited = format!("ulimit -v 1000000; exec {} anywhere 300", program.display());
    let r = run(&dir, &options, None, Path::new("/bin/sh"), &["-c", &limited]);
    assert_eq!(String::from_utf8_lossy(&r.output.stdout), "right\n", "{:?}", r.output);
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// When there is no room for one page more, a message says so; the program does not read zeroes, and nothing panics.
#[test]
fn tables_that_are_full_are_one_sentence() {
    if !able() {
        return;
    }
    let dir = place("full-tables");
    let program = build(&dir, "chunks.c");
    let swap = swap_option(&dir, "");
    let limited = format!("ulimit -v 1000000; exec {} pages 9000", program.display());
    let r = run(&dir, &["--memory", "8M", "--swap", &swap], None, Path::new("/bin/sh"), &["-c", &limited]);
    assert!(r.stderr().contains("more pages than Overspill's tables have room for"), "{:?}", r.output);
    assert!(r.output.stdout.is_empty() && !r.stderr().contains("internal error"), "{:?}", r.output);
    // the first process of a pid namespace does not get a SIGKILL from itself: it hung
    if rustix::process::geteuid().is_root() {
        let r = run(&dir, &["--memory", "8M", "--swap", &swap], None, Path::new("unshare"), &["-pf", "/bin/sh", "-c", &limited]);
        assert!(r.stderr().contains("more pages than Overspill's tables have room for"), "{:?}", r.output);
        assert_eq!(r.output.status.code(), Some(137), "{:?}", r.output);
    }
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// A mapping that is cut into thousands of pieces keeps their content, and leaves nothing behind in its old place. (The tests of
/// `overspill_linux::ranges` check that nothing is dropped if there are more pieces than room: that takes a larger
/// vm.max_map_count.)
#[test]
fn a_mapping_full_of_holes() {
    if !able() {
        return;
    }
    let dir = place("holes");
    let program = build(&dir, "chunks.c");
    let swap = swap_option(&dir, "");
    let r = run(&dir, &["--memory", "16M", "--swap", &swap], None, &program, &["holes", "2000"]);
    assert_eq!(String::from_utf8_lossy(&r.output.stdout), "right\n", "{:?}", r.output);
    assert!(r.stat("events") > 1000 && r.stat("hard_faults") > 100, "{}", r.stats);
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

//! Forks of all kinds under `overspill run`.

mod common;
#[path = "common/runs.rs"]
mod runs;

use common::{able, build, place};
use runs::{no_swap_file_left, run, swap_option};

/// A child that was made by `clone()` or `syscall()`, and not by libc's fork, found zeroes where its parent's pages were out. And when the
/// function given to `clone()` returned, the pager's threads kept the child alive for ever.
#[test]
fn children_of_clone_find_everything() {
    if !able() {
        return;
    }
    let dir = place("clones");
    let program = build(&dir, "clones.c");
    let r = run(&dir, &["--memory", "16M", "--swap", &swap_option(&dir, "")], None, &program, &[]);
    assert_eq!(String::from_utf8_lossy(&r.output.stdout), "all bytes right\n", "{:?}", r.output);
    assert!(r.stat("forks") == 4 && r.stat("pages_out") > 1000, "{}", r.stats);
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

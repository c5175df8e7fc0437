//! Programs that limit their own address space.

use crate::common::{able, build, place};
use crate::runs::{no_swap_file_left, run, swap_option};
use std::process::Command;

/// A program set RLIMIT_AS or RLIMIT_DATA for itself, and could allocate nothing more: the pager's gigabytes of addresses counted.
#[test]
fn a_programs_own_limit_is_for_its_own_memory() {
    if !able() {
        return;
    }
    let dir = place("limits");
    let program = build(&dir, "limits.c");
    for resource in ["as", "data"] {
        let alone = Command::new(&program).arg(resource).output().expect("runs alone");
        assert_eq!(String::from_utf8_lossy(&alone.stdout), "right\n", "{resource}: {alone:?}");
        let r = run(&dir, &["--memory", "16M", "--swap", &swap_option(&dir, "")], None, &program, &[resource]);
        assert_eq!(String::from_utf8_lossy(&r.output.stdout), "right\n", "{resource}: {:?}", r.output);
        assert!(r.stat("pages_in") > 1000, "{resource}: {}", r.stats);
        no_swap_file_left(&dir);
    }
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

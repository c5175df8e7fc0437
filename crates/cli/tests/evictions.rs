//! What can leave memory under `overspill run`, and what becomes of the rest. The program is `tests/programs/evictions.c`.

mod common;

use common::{able, build, overspill, place};
use std::path::Path;
use std::process::{Command, Output};

/// Runs a case of the program with 16 MiB; it is killed after a minute. What it left behind, and its counters.
fn run(dir: &Path, memory: &str, args: &[&str]) -> (Output, serde_json::Value) {
    let program = dir.join("evictions");
    if !program.exists() {
        build(dir, "evictions.c");
    }
    let (stats, swap) = (dir.join("stats.json"), dir.join("swap"));
    std::fs::create_dir_all(&swap).expect("swap dir");
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "60"]).arg(overspill()).args(["run", "--memory", memory, "--swap"]).arg(&swap);
    command.arg("--stats-file").arg(&stats).arg("--").arg(&program).args(args).env_remove("OVERSPILL_INJECT");
    let output = command.output().expect("timeout runs");
    let text = std::fs::read_to_string(&stats).unwrap_or_default();
    let counters = serde_json::from_str(&text).unwrap_or_else(|e| panic!("stats {e}: {text:?}; {output:?}"));
    assert_eq!(std::fs::read_dir(&swap).expect("swap dir").count(), 0, "a swap file is left");
    (output, counters)
}

fn stat(counters: &serde_json::Value, name: &str) -> u64 {
    counters[name].as_u64().unwrap_or_else(|| panic!("no {name} in {counters}"))
}

/// The kernel refuses to move a page with the same error whether a fork's other side has it, or direct I/O, or advice by another thread for
/// a moment. The page daemon took each for a fork, and populated the page for nothing.
#[test]
fn a_page_in_somebodys_hands_is_not_taken_for_a_forks() {
    if !able() {
        return;
    }
    let dir = place("pinned");
    let (output, counters) = run(&dir, "16M", &["pinned"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if said.starts_with("no registered buffers") {
        assert!(std::env::var_os("CI").is_none(), "cannot be tested here: {said}");
        return;
    }
    assert_eq!((said.as_str(), output.status.code()), ("right\n", Some(0)), "{output:?}");
    assert!(stat(&counters, "pages_unmovable") >= 1024, "the buffers were tried: {counters}");
    assert_eq!(stat(&counters, "pages_unshared"), 0, "nobody has forked: {counters}");
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// The page daemon populated a page that a fork had shared, and that the program had discarded meanwhile; so it waited for a handler, the
/// handlers for the next fork, and that for the daemon. It took seconds to happen.
#[test]
fn forks_discards_and_sharing_get_on() {
    if !able() {
        return;
    }
    let dir = place("forks");
    let (output, counters) = run(&dir, "16M", &["forks", "2"]);
    assert_eq!((String::from_utf8_lossy(&output.stdout).as_ref(), output.status.code()), ("right\n", Some(0)), "{output:?}");
    assert!(stat(&counters, "pages_unshared") > 0, "{counters}");
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

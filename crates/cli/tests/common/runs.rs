//! C programs under `overspill run`, with their counters.

#![allow(dead_code)] // each file of tests uses some of it

use crate::common::{able, build, overspill, patiently, place};
use std::path::Path;
use std::process::Output;

/// The result of a run.
pub struct Run {
    pub output: Output,
    pub stats: serde_json::Value,
}

impl Run {
    /// Its standard error.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }
    /// A counter.
    ///
    /// # Panics
    /// If there is none of that name.
    pub fn stat(&self, name: &str) -> u64 {
        self.stats[name].as_u64().unwrap_or_else(|| panic!("no {name} in {}", self.stats))
    }
}

/// Runs the program of this source in `tests/programs` in a budget of 16 MiB, if the machine can. It says that all bytes are right.
pub fn finds_all_bytes_right(source: &str) -> Option<Run> {
    if !able() {
        return None;
    }
    let dir = place(source.trim_end_matches(".c"));
    let program = build(&dir, source);
    let r = run(&dir, &["--memory", "16M", "--swap", &swap_option(&dir, "")], None, &program, &[]);
    assert_eq!(String::from_utf8_lossy(&r.output.stdout), "all bytes right\n", "{:?}", r.output);
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
    Some(r)
}

/// Runs `program args` under Overspill; kills it when it hangs.
pub fn run(dir: &Path, options: &[&str], inject: Option<&str>, program: &Path, args: &[&str]) -> Run {
    let stats = dir.join("stats.json");
    let mut command = patiently(overspill());
    command.arg("run").args(options).arg("--stats-file").arg(&stats);
    command.arg("--").arg(program).args(args);
    match inject {
        Some(text) => command.env("OVERSPILL_INJECT", text),
        None => command.env_remove("OVERSPILL_INJECT"),
    };
    let output = command.output().expect("timeout runs");
    let text = std::fs::read_to_string(&stats).unwrap_or_default();
    let stats = serde_json::from_str(&text).unwrap_or_else(|e| panic!("stats {e}: {text:?}; {output:?}"));
    Run { output, stats }
}

/// The `--swap` of a run: a folder of the test's, and `suffix`.
pub fn swap_option(dir: &Path, suffix: &str) -> String {
    let swap = dir.join("swap");
    std::fs::create_dir_all(&swap).expect("swap dir");
    format!("{}{suffix}", swap.display())
}

/// Asserts that the run has left no swap file in `dir`.
pub fn no_swap_file_left(dir: &Path) {
    assert_eq!(std::fs::read_dir(dir.join("swap")).expect("swap dir").count(), 0, "a swap file is left");
}

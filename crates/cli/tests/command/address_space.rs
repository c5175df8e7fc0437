//! The random tester of the address-space calls (`tests/programs/address_space.c`) under Overspill, with less memory than it uses.
//! Some of its findings have a test of their own here.
//!
//! `OVERSPILL_SEEDS` is the number of seeds (CI: a few); `OVERSPILL_SEED` is the first. A difference prints its seed, and
//! `overspill run -m 16M -- address_space --seed N` shows it again.

use crate::common::{able, build, overspill, patiently, place};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Instant;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |v| v.parse().unwrap_or_else(|_| panic!("{name} is not a number")))
}

/// Runs `program arguments` in a budget of 16M; kills it when it hangs.
fn run(dir: &Path, program: &Path, arguments: &[&str]) -> Output {
    let mut command = patiently(overspill());
    command.args(["run", "--memory", "16M", "--swap"]).arg(dir);
    command.arg("--").arg(program).args(arguments).env_remove("OVERSPILL_INJECT").env("TMPDIR", dir);
    command.output().expect("timeout runs")
}

/// Any call at any time, from one thread and from several. Each thread has a model of the content of its memory.
#[test]
fn any_calls_in_any_order() {
    if !able() {
        return;
    }
    let dir = place("address-space");
    let program = build(&dir, "address_space.c");
    let (first, seeds) = (number("OVERSPILL_SEED", 1), number("OVERSPILL_SEEDS", 6));
    let start = Instant::now();
    for (i, seed) in (first..first + seeds).enumerate() {
        let (seed, threads) = (seed.to_string(), ["1", "3"][i % 2]);
        let arguments = ["--seed", &seed, "--threads", threads, "--steps", "700"];
        if i == 0 {
            let alone = Command::new(&program).args(arguments).env("TMPDIR", &dir).output().expect("runs alone");
            assert!(alone.status.success(), "the model is wrong: {}", String::from_utf8_lossy(&alone.stdout));
        }
        let output = run(&dir, &program, &arguments);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{} {}: {}\n{out}{err}", program.display(), arguments.join(" "), output.status);
        if (i + 1) % 50 == 0 {
            println!("{} of {seeds} seeds after {} s", i + 1, start.elapsed().as_secs());
        }
    }
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// The page daemon takes a page by its address. It had chosen a page of memory that an mremap(MREMAP_FIXED) was about to replace,
/// which the kernel reports only afterwards. So it took a page of the new memory under the name of the old, and gave it up with the
/// old. Read-only memory is copied out: it was moved before that was finished, and the copy was thrown away. Either way the program
/// found zeroes.
#[test]
fn what_moves_onto_memory_that_is_evicted_stays() {
    if !able() {
        return;
    }
    let dir = place("remaps");
    let program = build(&dir, "remaps.c");
    for kind in ["writable", "read-only"] {
        let output = run(&dir, &program, &["1", kind]);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "0 pages lost\n", "{kind}: {output:?}");
    }
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// The pager's threads had 48 KiB below their thread pointer. In a program with more thread-locals than that, libc's errno lies
/// further down. When a call of a pager thread failed, errno was written over the program's memory, or another thread's stack: it
/// hung.
#[test]
fn many_thread_locals() {
    if !able() {
        return;
    }
    let dir = place("thread-locals");
    let program = build(&dir, "thread_locals.c");
    let output = run(&dir, &program, &["48"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "all bytes right\n", "{output:?}");
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

//! Compressed memory as a swap device, under real programs with the agent: in front of a file and alone, full, forked, added and
//! removed.

use crate::common::{able, build, overspill, patiently, place};
use crate::running::Running;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

const MIB: u64 = 1 << 20;

struct Test {
    dir: PathBuf,
    program: PathBuf,
    swap: String,
}

impl Test {
    fn new(name: &str) -> Option<Test> {
        if !able() {
            return None;
        }
        let dir = place(&format!("compressed-{name}"));
        let program = build(&dir, "mixed.c");
        fs::create_dir_all(dir.join("swap")).expect("swap dir");
        let swap = format!("file:{}", dir.join("swap").display());
        Some(Test { dir, program, swap })
    }

    /// Runs the program to its end; kills it when it hangs. Returns its output and its counters.
    fn run(&self, options: &[&str], arguments: &[&str]) -> (Output, Value) {
        let stats = self.dir.join("stats.json");
        let mut command = patiently(overspill());
        command.arg("run").args(options).arg("--stats-file").arg(&stats);
        let output = command.arg("--").arg(&self.program).args(arguments).env_remove("OVERSPILL_INJECT").output();
        let output = output.expect("timeout runs");
        let stats = fs::read_to_string(&stats).unwrap_or_default();
        let stats = serde_json::from_str(&stats).unwrap_or_else(|e| panic!("stats {e}; {output:?}"));
        (output, stats)
    }

    fn end(self) {
        assert_eq!(fs::read_dir(self.dir.join("swap")).expect("swap dir").count(), 0, "a swap file is left");
        fs::remove_dir_all(&self.dir).expect("cleanup");
    }
}

#[track_caller]
fn right(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "all bytes right\n");
}

fn stat(stats: &Value, name: &str) -> u64 {
    stats[name].as_u64().unwrap_or_else(|| panic!("no {name} in {stats}"))
}

/// Asserts that the budget was kept, within a cluster for each of two faulting threads and the handlers' reads, as in the other
/// tests.
#[track_caller]
fn within(stats: &Value, memory: u64) {
    // (not `over_budget`: while a fork makes the process smaller, that counts frames above half of the budget)
    assert!(stat(stats, "memory_peak_bytes") <= memory + 2 * MIB, "the budget: {stats}");
}

#[test]
fn all_kinds_of_pages_in_front_of_a_file() {
    let Some(test) = Test::new("front") else { return };
    for options in [&["--engine", "io_uring"][..], &["--engine", "psync", "--no-encrypt"]] {
        let options = [&["--memory", "20M", "--swap", "compressed:size=10M", "--swap", &test.swap], options].concat();
        let (output, stats) = test.run(&options, &["32", "stnr"]);
        right(&output);
        within(&stats, 20 * MIB);
        assert!(stat(&stats, "pool_refused") > 1000, "noise does not compress: {stats}");
        assert!(stat(&stats, "forks") == 2 && stat(&stats, "hard_faults") > 1000, "{stats}");
        assert_eq!((stat(&stats, "corrupt_pages"), stat(&stats, "read_errors"), stat(&stats, "write_errors")), (0, 0, 0));
    }
    test.end();
}

/// A fork finds more in the pool than its two sides can have. The rest goes to the file, and the fork does not wait for half a
/// minute. (Without a priority compressed memory comes first, even if it is named last. It used to come last, and no page ever got
/// there.)
#[test]
fn a_fork_makes_a_large_pool_smaller() {
    let Some(test) = Test::new("large") else { return };
    let (output, stats) = test.run(&["--memory", "20M", "--swap", &test.swap, "--swap", "compressed:size=15M"], &["35", "nt"]);
    right(&output);
    within(&stats, 20 * MIB);
    assert!(stat(&stats, "forks") == 2 && stat(&stats, "pool_written_back") > 500, "{stats}");
    test.end();
}

/// All stored pages fit into the pool: not a byte goes to the file. (Without forks, by the third argument: a process that waits for
/// a child gives its memory to it, and then its pages in the pool go on to the file. They also do if one of its threads loses the
/// CPU in the middle of a call that moves or discards nearly all memory, because nothing there can leave. So a run in which that
/// happened does not count.)
#[test]
fn what_fits_the_pool_goes_nowhere_else() {
    let Some(test) = Test::new("fits") else { return };
    let run = || {
        let options = ["--memory", "32M", "--swap", "compressed:size=24M", "--swap", &test.swap];
        let (output, stats) = test.run(&options, &["40", "st", "/"]);
        right(&output);
        within(&stats, 32 * MIB);
        stats
    };
    let undisturbed = |stats: &_| stat(stats, "pages_unmovable") == 0;
    let stats = (0..10).map(|_| run()).find(undisturbed).expect("one of ten is undisturbed");
    assert_eq!((stat(&stats, "pool_refused"), stat(&stats, "pool_written_back")), (0, 0), "{stats}");
    assert!(stat(&stats, "pages_out") > 2000, "{stats}");
    test.end();
}

#[test]
fn a_full_pool_writes_its_coldest_pages_back() {
    let Some(test) = Test::new("full") else { return };
    for encrypt in [&[][..], &["--no-encrypt"]] {
        let options = [&["--memory", "20M", "--swap", "compressed:size=3M", "--swap", &test.swap], encrypt].concat();
        let (output, stats) = test.run(&options, &["32", "nt"]);
        right(&output);
        within(&stats, 20 * MIB);
        assert!(stat(&stats, "pool_written_back") > 1000, "{stats}");
    }
    test.end();
}

/// A program that looks at pages at random, all of which compress well: by default compressed memory grows, and serves page-ins.
/// With `--no-compress` there is none.
#[test]
fn it_finds_its_size_by_itself() {
    let Some(mut test) = Test::new("automatic") else { return };
    test.program = build(&test.dir, "random_text.c");
    let options = ["--memory", "16M", "--swap", &test.swap];
    let (output, stats) = test.run(&options, &["32", "60000"]);
    right(&output);
    within(&stats, 16 * MIB);
    assert!(stat(&stats, "pool_grown") > 3 && stat(&stats, "pool_pages_in") > 1000, "{stats}");
    let (output, stats) = test.run(&[&options[..], &["--no-compress"]].concat(), &["32", "20000"]);
    right(&output);
    assert_eq!((stat(&stats, "pool_grown"), stat(&stats, "pool_pages_in")), (0, 0), "{stats}");
    test.end();
}

/// The program and its forks fit into compressed memory.
#[test]
fn alone_it_holds_more_than_the_budget() {
    let Some(test) = Test::new("alone") else { return };
    let (output, stats) = test.run(&["--memory", "64M", "--swap", "compressed:size=48M"], &["80", "sst"]);
    right(&output);
    within(&stats, 64 * MIB);
    assert_eq!(fs::read_dir(test.dir.join("swap")).expect("dir").count(), 0);
    test.end();
}

#[test]
fn alone_and_full_is_one_sentence() {
    let Some(test) = Test::new("sentence") else { return };
    for kinds in ["r", "n"] {
        let (output, _) = test.run(&["--memory", "16M", "--swap", "compressed:size=8M"], &["96", kinds]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        assert!(text.lines().count() == 1 && text.contains("memory and swap are both full"), "{text}");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("WRONG"));
    }
    test.end();
}

#[test]
fn what_cannot_be_is_refused() {
    let Some(test) = Test::new("refused") else { return };
    for (devices, words) in [
        (&["compressed:size=64M,algo=zstd:20"][..], "levels 1 to 19"),
        (&["compressed:size=64M", "compressed:size=32M,prio=3"], "named twice"),
        (&["compressed:size=1K"], "too little"),
    ] {
        let mut command = Command::new(overspill());
        command.args(["run", "--memory", "32M"]);
        devices.iter().for_each(|device| _ = command.args(["--swap", device]));
        let output = command.args(["--", "true"]).output().expect("overspill runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(125) && text.lines().count() == 1 && text.contains(words), "{output:?}");
    }
    test.end();
}

impl Test {
    /// The program, until it is told to end.
    fn start(&self, name: &str, options: &[&str], arguments: &[&str]) -> Running {
        Running::start(&self.dir, name, options, &self.program, arguments, &[])
    }
}

/// Waits until `is` holds for the devices, and returns them.
fn wait_for(running: &Running, what: &str, is: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let mut devices = Vec::new();
    running.wait_until(what, |running| {
        devices = running.swaps();
        is(&devices)
    });
    devices
}

fn number(device: &Value, name: &str) -> u64 {
    device[name].as_u64().unwrap_or_else(|| panic!("no {name} in {device}"))
}

fn pool(devices: &[Value]) -> Option<&Value> {
    devices.iter().find(|d| d["kind"] == "compressed")
}

fn holds(device: Option<&Value>, pages: u64) -> bool {
    device.is_some_and(|d| number(d, "stored_pages") > pages)
}

#[test]
fn it_is_shown_and_comes_and_goes() {
    let Some(test) = Test::new("comes") else { return };
    for encrypt in [&[][..], &["--no-encrypt"]] {
        let options = [&["--memory", "24M", "--swap", "compressed:size=12M", "--swap", &test.swap], encrypt].concat();
        let running = test.start(&format!("comes{}", encrypt.len()), &options, &["48", "stnr"]);
        let devices = wait_for(&running, "pages of all kinds", |d| {
            holds(pool(d), 1000)
                && pool(d).is_some_and(|p| number(p, "same_filled_pages") > 100 && number(p, "refused_pages") > 100)
        });
        assert_eq!((&devices[0]["device"], &devices[0]["priority"]), (&"compressed".into(), &0.into()));
        let p = &devices[0];
        assert!(number(p, "ratio_permille") > 1500 && number(p, "packed_bytes") < number(p, "stored_pages") * 4096, "{p}");
        let packed = number(p, "bytes_out");
        assert!(packed > 0 && packed < number(p, "pages_out") * 4096, "{p}");
        assert!(number(p, "used_bytes") <= 13 * MIB && number(p, "size_bytes") == 12 * MIB, "{p}");
        assert!(number(p, "pages_in") > 0 || wait_for(&running, "page-in", |d| number(&d[0], "pages_in") > 0).len() == 2);
        let table = running.ask("swaps", &[]);
        let table = String::from_utf8_lossy(&table.stdout).into_owned();
        assert!(table.contains("same-filled") && table.contains("written back"), "{table}");

        // swapoff of the pool, to the file; the budget has no charge left for it
        for round in 0..3 {
            let output = running.ask("swapoff", &["compressed"]);
            assert!(output.status.success(), "round {round}: {output:?} {:?}", running.swaps());
            assert!(pool(&running.swaps()).is_none());
            let output = running.ask("swapon", &[["compressed:size=8M,prio=5", "compressed:size=8M,prio=5,algo=zstd"][round % 2]]);
            assert!(output.status.success(), "round {round}: {output:?}");
            wait_for(&running, "pages in it again", |d| holds(pool(d), 500));
        }
        let output = running.ask("swapon", &["compressed:size=8M"]);
        assert!(output.status.code() == Some(1), "{output:?}");
        let output = running.ask("swapon", &["compressed:size=8M,algo=zstd:0"]);
        assert!(output.status.code() == Some(125), "{output:?}");

        // swapoff of the file: its pages go into memory or the pool, or it is refused
        let file = test.dir.join("swap");
        let output = running.ask("swapoff", &[file.to_str().unwrap()]);
        assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
        running.end();
    }
    test.end();
}

/// From a file into the pool, when nothing else has room.
#[test]
fn a_file_is_swapped_off_into_it() {
    let Some(test) = Test::new("into") else { return };
    for encrypt in [&[][..], &["--no-encrypt"]] {
        let options = [&["--memory", "48M", "--swap", &test.swap], encrypt].concat();
        let running = test.start(&format!("into{}", encrypt.len()), &options, &["56", "st"]);
        wait_for(&running, "pages in the file", |d| number(&d[0], "used_bytes") > 4 * MIB);
        let output = running.ask("swapon", &["compressed:size=32M"]);
        assert!(output.status.success(), "{output:?}");
        let file = test.dir.join("swap");
        let output = running.ask("swapoff", &[file.to_str().unwrap()]);
        assert!(output.status.success(), "{output:?} {:?}", running.swaps());
        wait_for(&running, "the pool alone", |d| d.len() == 1 && holds(pool(d), 500));
        running.end();
    }
    test.end();
}

#[test]
fn a_configuration_file_may_have_one() {
    let Some(test) = Test::new("toml") else { return };
    let config = test.dir.join("config.toml");
    let swap = test.dir.join("swap");
    let text = format!(
        "memory = \"16M\"\n[[swap]]\nkind = \"compressed\"\nsize = \"8M\"\nalgo = \"zstd:3\"\n[[swap]]\nkind = \"file\"\npath = {swap:?}\n"
    );
    fs::write(&config, text).expect("write");
    let (output, stats) = test.run(&["--config", config.to_str().unwrap()], &["24", "tn"]);
    right(&output);
    assert!(stat(&stats, "pages_out") > 1000, "{stats}");
    test.end();
}

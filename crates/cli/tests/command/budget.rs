//! One budget for all processes of a run.

use crate::common::{able, build, overspill, patiently, place};
use crate::runs::{no_swap_file_left, run, swap_option};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Runs `budget` with these arguments at `memory`. Returns how many MiB each worker had in memory at once; `None` where it cannot
/// run.
fn workers(name: &str, memory: &str, args: &[&str]) -> Option<Vec<u32>> {
    workers_of(name, memory, args, None)
}

/// As [`workers`], and started by this line of a shell's, where `"$@"` stands for the program and its arguments, and `$0` for a
/// directory.
fn workers_of(name: &str, memory: &str, args: &[&str], shell: Option<&str>) -> Option<Vec<u32>> {
    if !able() {
        return None;
    }
    let dir = place(name);
    let program = build(&dir, "budget.c");
    let mut command = vec![program.to_str().expect("a name in UTF-8")];
    command.extend(args);
    if let Some(line) = shell {
        command.splice(0..0, ["sh", "-c", line, dir.to_str().expect("a name in UTF-8")]);
    }
    let r = run(&dir, &["--memory", memory, "--swap", &swap_option(&dir, "")], None, Path::new(command[0]), &command[1..]);
    let said = String::from_utf8_lossy(&r.output.stdout).into_owned();
    assert!(r.output.status.success() && r.stderr().is_empty() && said.ends_with("all bytes right\n"), "{:?}", r.output);
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
    Some(said.lines().filter_map(|line| line.rsplit_once(' ')?.1.parse().ok()).collect())
}

/// Each fork halved the budget. Of eight workers the last had 8 MiB of 128, and so had the parent, whether it worked or waited.
#[test]
fn each_worker_gets_nearly_all_when_it_alone_works() {
    let Some(had) = workers("budget-turns", "48M", &["turns", "3", "48", "36"]) else { return };
    assert!(had.len() == 4 && had.iter().all(|mib| *mib >= 36), "{had:?}");
}

/// The part of a process comes back however the process ends.
#[test]
fn the_budget_of_killed_workers_comes_back() {
    let Some(had) = workers("budget-killed", "48M", &["killed", "3", "48", "36"]) else { return };
    assert!(had.len() == 4 && had.iter().all(|mib| *mib >= 36), "{had:?}");
    let Some(had) = workers("budget-crowd", "32M", &["crowd", "40", "24"]) else { return };
    assert!(had.len() == 1 && had[0] >= 24, "{had:?}");
}

/// A child's part went back to its parent only. A child that outlived its parent kept its part for good, and no process got the
/// parent's.
#[test]
fn the_budget_of_a_dead_parent_is_its_childs() {
    let Some(had) = workers("budget-orphan", "32M", &["orphan", "32", "24"]) else { return };
    assert!(had.len() == 1 && had[0] >= 24, "{had:?}");
}

/// A child that execs gives back what it does not use.
#[test]
fn the_budget_of_a_child_that_execs_comes_back() {
    let Some(had) = workers("budget-exec", "32M", &["exec", "32", "24"]) else { return };
    assert!(had.len() == 1 && had[0] >= 24, "{had:?}");
}

#[test]
fn nested_forks_share_the_budget() {
    let Some(had) = workers("budget-nested", "24M", &["nested", "2", "24", "16"]) else { return };
    assert!(had.len() == 3 && had.iter().all(|mib| *mib >= 16), "{had:?}");
}

/// Two processes both want the whole budget, and neither starves. (Half of it would be 16 MiB less the pager's own; one may not
/// have run for a while when this is measured.)
#[test]
fn two_that_work_have_a_part_each() {
    let Some(had) = workers("budget-both", "32M", &["both", "32", "10"]) else { return };
    assert!(had.len() == 2 && had.iter().all(|mib| *mib >= 6) && had.iter().sum::<u32>() < 32, "{had:?}");
}

/// A program that a shell has started gets nearly all, because the shell does not use its part.
#[test]
fn a_shells_program_gets_nearly_all() {
    let Some(had) = workers_of("budget-shell", "32M", &["turns", "0", "32", "24"], Some(r#""$@"; exit $?"#)) else { return };
    assert!(had.len() == 1 && had[0] >= 24, "{had:?}");
}

/// A program whose memory was left to the kernel, because it fits, gave nothing of it to others, however little it did. A client
/// that waits for its server kept the server short.
#[test]
fn a_program_that_waits_gives_what_was_left_to_the_kernel() {
    let line = r#"
        mkfifo "$0/go" "$0/filled"
        "$1" idle 12 <"$0/go" >"$0/filled" & exec 9>"$0/go" && cat "$0/filled"
        "$@" && exec 9>&- && wait $!"#;
    let Some(had) = workers_of("budget-idle", "40M", &["turns", "0", "48", "30"], Some(line)) else { return };
    assert!(had.len() == 1 && had[0] >= 30, "{had:?}");
}

/// Two programs, each started by exec, had the whole budget each.
#[test]
fn two_programs_that_work_have_a_part_each() {
    let line = r#""$@" >"$0"/first & "$@" && wait $! && cat "$0"/first && rm "$0"/first"#;
    let Some(had) = workers_of("budget-programs", "32M", &["turns", "0", "32", "10"], Some(line)) else { return };
    assert!(had.len() == 2 && had.iter().all(|mib| *mib >= 10), "{had:?}");
}

/// At every moment all of them together have no more than the budget: they are stopped, and their charges are added up.
#[test]
fn the_family_never_has_more_than_the_budget() {
    sum_stays_within("budget-sum", &["turns", "3", "32", "22"], None);
}

/// The same for programs that a shell starts at the same time.
#[test]
fn programs_together_never_have_more_than_the_budget() {
    let line = r#""$@" >"$0"/first & "$@" >"$0"/second & "$@" && wait && cat "$0"/first "$0"/second"#;
    sum_stays_within("budget-sum-exec", &["turns", "0", "32", "18"], Some(line));
}

fn sum_stays_within(name: &str, args: &[&str], shell: Option<&str>) {
    let Some(family) = Family::start(name, "32M", args, shell) else { return };
    let (mut looks, mut together) = (0, 0);
    loop {
        let pids = family.members();
        let Some(first) = pids.first() else { break };
        signal("-STOP", &pids);
        let stats: Vec<_> = pids.iter().filter_map(|pid| stat(pid)).collect();
        signal("-CONT", &pids);
        let used = |stat: &serde_json::Value| stat["memory_used_bytes"].as_u64().expect("a number");
        let sum: u64 = stats.iter().map(used).sum();
        assert!(sum <= 32 << 20, "{sum} bytes, {first}: {stats:?}");
        looks += 1;
        together += u32::from(stats.len() > 2 && sum > 24 << 20);
    }
    family.end();
    assert!(looks > 10 && together > 3, "{looks} looks, {together} of them while memory was full");
}

/// What three children read of their common past comes once from the device, and from then on from what they share, compressed.
/// Uncompressed, a third of it had room there.
#[test]
fn what_children_read_alike_is_kept_for_all_of_them() {
    let Some(family) = Family::start("budget-alike", "24M", &["alike", "3", "48"], None) else { return };
    let mut last = std::collections::BTreeMap::new();
    loop {
        let pids = family.members();
        if pids.is_empty() {
            break;
        }
        last.extend(pids.into_iter().filter_map(|pid| stat(&pid).map(|stat| (pid, stat))));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    family.end();
    let sum = |what: &str| last.values().map(|stat| stat[what].as_u64().expect("a number")).sum::<u64>();
    let (faults, shared) = (sum("hard_faults"), sum("family_cache_pages_in"));
    assert!(last.len() == 4 && faults > 40_000 && shared > faults * 3 / 5, "{shared} of {faults}");
}

/// `budget` at work, with all its forks.
struct Family {
    dir: PathBuf,
    program: PathBuf,
    child: Child,
}

impl Family {
    /// Starts it with these arguments at `memory`, and waits until it runs; `shell` as for [`workers_of`]. `None` where it cannot
    /// run.
    fn start(name: &str, memory: &str, args: &[&str], shell: Option<&str>) -> Option<Family> {
        if !able() {
            return None;
        }
        let dir = place(name);
        let program = build(&dir, "budget.c");
        let mut command = patiently(overspill());
        command.args(["run", "--memory", memory, "--swap", &swap_option(&dir, ""), "--"]);
        if let Some(line) = shell {
            command.args(["sh", "-c", line]).arg(&dir);
        }
        command.arg(&program).args(args);
        let child = command.stdout(Stdio::piped()).spawn().expect("timeout runs");
        let mut family = Family { dir, program, child };
        while family.members().is_empty() && family.child.try_wait().expect("a child of ours").is_none() {
            std::thread::yield_now();
        }
        Some(family)
    }

    /// Its processes.
    fn members(&self) -> Vec<String> {
        let runs = |pid: &str| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == self.program);
        let entries = std::fs::read_dir("/proc").expect("proc").flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| name.bytes().all(|b| b.is_ascii_digit()) && runs(name)).collect()
    }

    /// It has ended well, and left nothing.
    fn end(self) {
        let output = self.child.wait_with_output().expect("it has ended");
        assert!(output.status.success() && output.stdout.ends_with(b"all bytes right\n"), "{output:?}");
        no_swap_file_left(&self.dir);
        std::fs::remove_dir_all(&self.dir).expect("cleanup");
    }
}

/// What a process's pager counts, if it still runs.
fn stat(pid: &str) -> Option<serde_json::Value> {
    let output = Command::new(overspill()).args(["stat", "--json", pid]).output().expect("overspill runs");
    serde_json::from_slice(&output.stdout).ok()
}

fn signal(what: &str, pids: &[String]) {
    let _ = Command::new("kill").arg(what).args(pids).output().expect("kill runs"); // one may have ended
}

//! What a program that hangs is waiting for, told before it is killed. A hang that is seen once, on a machine that nobody can look
//! at, would tell nothing otherwise.

use super::{PATIENCE, overspill};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{read_dir, read_to_string};
use std::io::Write as _;
use std::process::Command;
use std::sync::Once;
use std::time::{Duration, Instant};

/// So long before its end a program is looked at.
const BEFORE: Duration = Duration::from_secs(20);

/// From now on tells, on standard error, where a program hangs that is about to be killed.
pub fn watch() {
    static WATCHES: Once = Once::new();
    WATCHES.call_once(|| {
        std::thread::spawn(|| {
            let mut since = BTreeMap::new();
            loop {
                std::thread::sleep(Duration::from_secs(2));
                let parents = parents();
                let patient = |pid: &u32| parents.get(pid) == Some(&std::process::id()) && of(*pid, "comm") == "timeout";
                since.retain(|pid, _| patient(pid));
                for &pid in parents.keys().filter(|pid| patient(pid)) {
                    let (begun, told) = since.entry(pid).or_insert((Instant::now(), false));
                    if begun.elapsed() > PATIENCE - BEFORE && !*told {
                        *told = true;
                        // (the test's own output may never be shown)
                        let _ = std::io::stderr().write_all(tell(pid, &parents).as_bytes());
                    }
                }
            }
        });
    });
}

fn of(pid: u32, file: &str) -> String {
    read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default().trim_end().replace('\0', " ")
}

/// The names in a folder that are numbers.
fn numbers(dir: &str) -> BTreeSet<u32> {
    read_dir(dir).into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The parent of each process.
fn parents() -> BTreeMap<u32, u32> {
    let all = numbers("/proc").into_iter();
    // the name, which may hold anything, ends with the last bracket
    all.filter_map(|pid| Some((pid, of(pid, "stat").rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?))).collect()
}

/// What each thread of the process, and of those that it started, waits for.
fn tell(pid: u32, parents: &BTreeMap<u32, u32>) -> String {
    let mut text = format!("about to be killed: {pid} {}\n", of(pid, "cmdline"));
    for task in numbers(&format!("/proc/{pid}/task")) {
        let [name, wait, call, stack] = ["comm", "wchan", "syscall", "stack"].map(|file| of(pid, &format!("task/{task}/{file}")));
        let _ = writeln!(text, "  {task} {name}, in {wait}, system call {call}\n    {}", stack.replace('\n', "\n    "));
    }
    if of(pid, "comm") != "overspill"
        && let Ok(stat) = Command::new("timeout").arg("5").arg(overspill()).args(["stat", "--all", &pid.to_string()]).output()
    {
        let stat = String::from_utf8_lossy(&stat.stdout);
        let counters =
            stat.lines().filter_map(|line| line.split_once(' ')).filter(|(_, rest)| !rest.trim_start().starts_with("0 "));
        for (name, rest) in counters {
            let told =
                rest.split_once("Lock:").map_or_else(|| rest.split_whitespace().next().unwrap_or_default(), |(_, held)| held);
            let _ = write!(text, "  {name} {told}");
        }
        text += "\n";
    }
    for (&child, _) in parents.iter().filter(|(_, parent)| **parent == pid) {
        text += &tell(child, parents);
    }
    text
}

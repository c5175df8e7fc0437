//! `overspill stat`: reads the status block of a running program. The program does not notice.

use crate::Failure;
use crate::args::StatArgs;
use crate::{report, swaps};
use overspill_linux::control_client::Process;
use overspill_linux::size::human;
use overspill_linux::status_file::{Snapshot, StatusView, find};
use serde_json::Value;
use std::io::{self, ErrorKind, Write};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Exit status when there is nothing to show.
pub const NOTHING: u8 = 1;

/// Prints once, or at intervals until the program ends.
pub fn stat(args: &StatArgs) -> Result<u8, Failure> {
    let pid = swaps::process(&args.program)?;
    // before the block is looked for, so that its number is not another's by then
    let process = Process::of(pid);
    let view = find(pid).map_err(|error| Failure::with_status(NOTHING, error.to_string()))?;
    match print(args, &process, &view) {
        // `overspill stat ... | head`: the reader has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(0),
        Err(error) => Err(Failure::with_status(NOTHING, format!("standard output: {error}"))),
        Ok(()) => Ok(0),
    }
}

fn print(args: &StatArgs, process: &Process, view: &StatusView) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let Some(interval) = args.interval.map(Duration::from_secs_f64) else {
        let seen = view.snapshot();
        return if args.json {
            writeln!(out, "{:#}", Value::Object(report::json(&seen)))
        } else if args.all {
            out.write_all(report::all(&seen).as_bytes())
        } else {
            out.write_all(report::of_process(&seen, age(&seen)).as_bytes())
        };
    };
    let mut before: Option<Snapshot> = None;
    let mut due = Instant::now();
    for line in 0..args.count.unwrap_or(u64::MAX) {
        if line > 0 {
            due += interval;
            if process.has_ended(due.saturating_duration_since(Instant::now())) {
                break;
            }
            sleep(due.saturating_duration_since(Instant::now())); // (if the wait ended early)
            due = due.max(Instant::now() - interval); // After a long stop: no burst of lines.
        }
        let seen = view.snapshot();
        if args.json {
            writeln!(out, "{}", Value::Object(report::json(&seen)))?;
        } else {
            if line % 20 == 0 {
                writeln!(out, "{}", heading())?;
            }
            writeln!(out, "{}", columns(&seen, before.as_ref()))?;
            if args.all {
                write!(out, "{}", transitions(&seen, before.as_ref()))?;
            }
        }
        out.flush()?;
        before = Some(seen);
    }
    Ok(())
}

/// The columns and the counters in each: two levels, then sums of counters.
const COLUMNS: &[(&str, &[&str])] = &[
    ("memory", &["memory_used_bytes"]),
    ("swap", &["swap_used_bytes"]),
    ("first", &["zero_fills"]),
    ("soft", &["soft_faults"]),
    ("hard", &["hard_faults"]),
    ("refault", &["refaults_within_half", "refaults_within_one"]),
    ("in", &["pages_in"]),
    ("out", &["pages_out"]),
    ("ahead", &["readahead_pages"]),
    ("used", &["readahead_used"]),
    ("lost", &["readahead_lost"]),
    ("reclaimed", &["pages_reclaimed"]),
    ("throttled", &["throttled_faults"]),
];
/// The number of columns that show levels.
const LEVELS: usize = 2;

fn heading() -> String {
    COLUMNS.iter().map(|(name, _)| format!("{name:>10}")).collect()
}

/// A line: levels as they are, and everything else since `before`.
fn columns(seen: &Snapshot, before: Option<&Snapshot>) -> String {
    let since = |name: &&str| seen.counter(name).saturating_sub(before.map_or(0, |b| b.counter(name)));
    let column = |(i, (_, counters)): (usize, &(&str, &[&str]))| match i < LEVELS {
        true => format!("{:>10}", human(seen.counter(counters[0]))),
        false => format!("{:>10}", counters.iter().map(since).sum::<u64>()),
    };
    COLUMNS.iter().enumerate().map(column).collect()
}

/// The moves between the policy's queues since `before`; empty if there were none. If the policy has changed, all moves of the new
/// one.
fn transitions(seen: &Snapshot, before: Option<&Snapshot>) -> String {
    let before = before.filter(|b| b.policy == seen.policy);
    let was = |name: &str| before.and_then(|b| b.transitions.iter().find(|t| t.0 == name)).map_or(0, |t| t.1);
    let since = seen.transitions.iter().map(|&(name, count)| (name, count.saturating_sub(was(name))));
    let moved: Vec<_> = since.filter(|t| t.1 > 0).map(|(name, count)| format!("{name} {count}")).collect();
    if moved.is_empty() { String::new() } else { format!("    {}: {}\n", seen.policy, moved.join(", ")) }
}

/// How long the pager has been up.
fn age(seen: &Snapshot) -> Option<Duration> {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now = Duration::new(now.tv_sec.try_into().ok()?, now.tv_nsec.try_into().ok()?);
    (seen.start_ns != 0).then(|| now.saturating_sub(Duration::from_nanos(seen.start_ns)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_vm::status::Status;

    #[test]
    fn lines_fit_their_heading() {
        let status = Status::default();
        status.counters.memory_used_bytes.set(1023 << 20);
        status.counters.hard_faults.set(10);
        let first = Snapshot::of(&status);
        status.counters.hard_faults.add(5);
        let second = Snapshot::of(&status);
        assert_eq!(columns(&first, None).len(), heading().len());
        let hard = columns(&second, Some(&first));
        assert_eq!(hard.split_whitespace().nth(6), Some("5"), "{hard}");
        status.counters.refaults_within_half.add(3);
        status.counters.refaults_within_one.add(4);
        let refaults = columns(&Snapshot::of(&status), Some(&second));
        assert_eq!(refaults.split_whitespace().nth(7), Some("7"), "{refaults}");
    }

    #[test]
    fn transitions_are_those_since_the_line_before() {
        let status = Status::default();
        let fifo = "fifo".parse().expect("a policy");
        status.policy.set(b"fifo");
        status.transitions.show(&fifo, [2, 3, 0].into_iter());
        let first = Snapshot::of(&status);
        assert_eq!(transitions(&first, None).matches(", ").count(), 1, "two of three happened");
        assert_eq!(transitions(&first, Some(&first)), "");
        status.transitions.show(&fifo, [2, 9, 0].into_iter());
        let second = transitions(&Snapshot::of(&status), Some(&first));
        assert!(second.starts_with("    fifo: queue_to_parked 6"), "{second}");
    }
}

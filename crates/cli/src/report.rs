//! Counters for people and as JSON.

use crate::printable;
use crate::supervise::End;
use overspill_linux::size::human;
use overspill_linux::status_file::{LockHolds, PolicySeen, Snapshot};
use overspill_vm::status::Outcome;
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::fmt::Write;
use std::time::Duration;

/// A run that has ended, as its supervisor knows it.
pub struct Run<'a> {
    /// Program and arguments.
    pub command: &'a [OsString],
    /// How it ended.
    pub end: End,
    /// What `overspill run` exits with.
    pub exit_status: u8,
    /// How long it ran.
    pub wall: Duration,
    /// Whether it had a pager.
    pub paged: bool,
    /// The budget that was asked for, in bytes.
    pub memory: u64,
    /// The policy that was asked for.
    pub policy: &'a str,
    /// The engine that was asked for.
    pub engine: &'a str,
    /// The swap place that was asked for.
    pub swap: &'a str,
}

/// The report of `overspill run --stats`.
pub fn of_run(run: &Run, seen: &Snapshot) -> String {
    let words: Vec<_> = run.command.iter().map(|word| word.to_string_lossy()).collect();
    let end = match run.end {
        End::Exit(status) => format!("exit status {status}"),
        End::Signal(signal) => format!("ended by signal {signal}"),
    };
    let mut text = format!("overspill: {} ({end}, {})\n", shorten(&words.join(" "), 60), duration(run.wall));
    if run.paged {
        text += &rows(seen);
    } else {
        text += "  it ran without paging\n";
    }
    text
}

/// What `overspill stat` prints.
pub fn of_process(seen: &Snapshot, age: Option<Duration>) -> String {
    let state = match seen.outcome {
        Some(Outcome::Running) if seen.supervisor_done => "has ended",
        Some(Outcome::Running) => "running",
        Some(Outcome::NotStarted) => "no pager has come up in it",
        Some(Outcome::StartFailed) => "its pager could not start",
        Some(Outcome::Stopped) => "stopped by its pager",
        Some(Outcome::Left) => "no longer paged",
        None => "in a state this version does not know",
    };
    let mut text = format!("process {}: {state}", seen.pid);
    if let Some(age) = age {
        let _ = write!(text, ", paged for {}", duration(age));
    }
    text.push('\n');
    if !seen.message.is_empty() {
        let _ = writeln!(text, "  {:<10} {}", "message", printable(&seen.message));
    }
    if !seen.loss.is_empty() {
        let _ = writeln!(text, "  {:<10} {}", "lost", seen.loss);
    }
    text + &rows(seen)
}

/// The rows that both reports have.
fn rows(seen: &Snapshot) -> String {
    let n = |name: &str| seen.counter(name);
    let pages = |count: u64, what: &str| format!("{} {what}", grouped(count));
    let mut text = String::new();
    let mut row = |name: &str, parts: &[String]| {
        let _ = writeln!(text, "  {name:<10} {}", parts.join(", "));
    };

    row("policy", std::slice::from_ref(&seen.policy));
    for used in &seen.policies {
        let whose = if used.region.is_empty() { "the pager's" } else { &used.region };
        let counts = used.counts.iter().map(|(name, count)| format!("{} {name}", grouped(*count)));
        row("", &[format!("{} ({}): {}", used.policy, printable(whose), counts.collect::<Vec<_>>().join(", "))]);
    }
    row(
        "memory",
        &[
            format!("{} used", human(n("memory_used_bytes"))),
            format!("peak {}", human(n("memory_peak_bytes"))),
            format!("limit {}", human(n("memory_limit_bytes"))),
            format!("pager's tables {}", human(n("metadata_bytes"))),
        ],
    );
    // a process without others has the whole budget
    if n("family_members") > 1 || n("memory_limit_bytes") < n("family_budget_bytes") {
        row(
            "family",
            &[
                format!("{} processes", grouped(n("family_members"))),
                format!("limit {} together", human(n("family_budget_bytes"))),
                format!("{} unassigned", human(n("family_free_bytes"))),
                format!("{} cached for all", human(n("family_cache_bytes"))),
                format!("{} pages from there", grouped(n("family_cache_pages_in"))),
            ],
        );
    }
    let capacity = match n("swap_capacity_bytes") {
        0 => String::from("no limit"),
        bytes => format!("limit {}", human(bytes)),
    };
    row(
        "swap",
        &[
            format!("{} used", human(n("swap_used_bytes"))),
            format!("peak {}", human(n("swap_peak_bytes"))),
            capacity,
            format!("{} ({})", printable(&seen.swap), seen.engine),
        ],
    );
    row(
        "faults",
        &[
            pages(n("zero_fills"), "first touches"),
            pages(n("soft_faults"), "soft"),
            pages(n("hard_faults"), "hard"),
            pages(n("throttled_faults"), "throttled"),
        ],
    );
    if n("load_tokens") != 0 {
        row("thrashing", &[pages(n("load_tokens"), "tokens given"), pages(n("held_faults"), "hard faults held back")]);
    }
    if n("same_cpu_begun") != 0 {
        let ended = pages(n("same_cpu_starved"), "times ended because others took it");
        row("same CPU", &[pages(n("same_cpu_begun"), "times on the CPU of the thread that faults"), ended]);
    }
    if n("halt_poll_begun") != 0 {
        row("halt poll", &[pages(n("halt_poll_begun"), "times asked that no idle CPU halts")]);
    }
    row(
        "page in",
        &[
            pages(n("pages_in"), "pages"),
            pages(n("page_in_ops"), "reads"),
            ratio(n("pages_in"), n("page_in_ops"), "pages per read"),
        ],
    );
    if n("readahead_pages") != 0 {
        row(
            "readahead",
            &[
                pages(n("readahead_pages"), "pages"),
                format!("{} seen used", share(n("readahead_used"), n("readahead_pages"))),
                pages(n("readahead_rescued"), "rescued while inactive"),
                pages(n("readahead_lost"), "lost before any use seen"),
            ],
        );
    }
    if n("pointed_pages") + n("pointed_restored") != 0 {
        row(
            "pointers",
            &[
                pages(n("pointed_pages"), "pages read beside"),
                pages(n("pointed_restored"), "mapped again"),
                format!("of a sample {} used, {} not", n("pointed_used"), n("pointed_lost")),
            ],
        );
    }
    if n("neighbour_pages") != 0 {
        row(
            "neighbours",
            &[
                pages(n("neighbour_pages"), "pages read around single faults"),
                format!("of a sample {} used, {} not", n("neighbours_used"), n("neighbours_lost")),
            ],
        );
    }
    let distances = [
        ("refaults_within_half", "within half of the budget"),
        ("refaults_within_one", "within one"),
        ("refaults_within_two", "within two"),
        ("refaults_beyond", "beyond"),
    ];
    if distances.iter().any(|(name, _)| n(name) != 0) {
        row("refaults", &distances.map(|(name, what)| pages(n(name), what)));
    }
    let moved: Vec<_> = seen.transitions.iter().filter(|(_, count)| *count != 0).map(|(name, count)| pages(*count, name)).collect();
    if !moved.is_empty() {
        row("queues", &moved);
    }
    row(
        "page out",
        &[
            pages(n("pages_out"), "pages"),
            pages(n("page_out_ops"), "writes"),
            ratio(n("pages_out"), n("page_out_ops"), "pages per write"),
        ],
    );
    if n("pool_memory_bytes") + n("pool_refused") + n("pool_written_back") + n("pool_grown") != 0 {
        let (grown, shrunk) = (n("pool_grown"), n("pool_shrunk"));
        row(
            "compressed",
            &[
                pages(n("pool_pages"), "pages"),
                format!("{} of memory", human(n("pool_memory_bytes"))),
                format!("at most {}", human(n("pool_size_bytes"))),
                if grown > 0 { format!("grew {grown} times and shrank {shrunk}") } else { "of fixed size".into() },
                ratio(n("pool_pages") << 12, n("pool_memory_bytes"), "to one"),
                pages(n("pool_same_pages"), "same-filled"),
                pages(n("pool_refused"), "did not compress"),
                pages(n("pool_written_back"), "written back"),
            ],
        );
    }
    let reclaimed = n("pages_reclaimed");
    row(
        "reclaimed",
        &[
            pages(reclaimed, "pages"),
            format!("{} clean", share(n("pages_reclaimed_clean"), reclaimed)),
            format!("{} zero", share(n("pages_reclaimed_zero"), reclaimed)),
        ],
    );
    let trouble: Vec<_> = [
        ("over_budget", "times over budget"),
        ("read_errors", "read errors"),
        ("write_errors", "write errors"),
        ("corrupt_pages", "corrupt pages"),
    ]
    .into_iter()
    .filter(|(name, _)| n(name) != 0)
    .map(|(name, what)| pages(n(name), what))
    .collect();
    if !trouble.is_empty() {
        row("trouble", &trouble);
    }
    text
}

/// Every counter with its unit and meaning.
pub fn all(seen: &Snapshot) -> String {
    let mut text = String::new();
    for (info, value) in &seen.counters {
        let _ = writeln!(text, "{:<24}{:>18} {:<11}{}", info.name, grouped(*value), info.unit, info.help);
    }
    for (name, count) in &seen.transitions {
        let _ =
            writeln!(text, "{name:<24}{:>18} {:<11}Between queues of the policy, since it took over.", grouped(*count), "pages");
    }
    for lock in seen.locks.iter().filter(|lock| lock.count > 0) {
        let [p50, p99, p999, longest] = holds_ns(lock).map(|ns| format!("{:.1}", ns as f64 / 1000.0));
        let _ = writeln!(
            text,
            "{:<24}{:>18} {:<11}Lock: {p50} us at the median, {p99} at p99, {p999} at p99.9, {longest} at most (from {}).",
            lock.name,
            grouped(lock.count),
            "holds",
            lock.longest_at
        );
    }
    text
}

fn holds_ns(lock: &LockHolds) -> [u64; 4] {
    let [p50, p99, p999] = lock.quantiles_ns;
    [p50, p99, p999, lock.longest_ns]
}

/// A snapshot as JSON.
pub fn json(seen: &Snapshot) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("pid".into(), seen.pid.into());
    let outcome = match seen.outcome {
        Some(Outcome::NotStarted) => "not-started",
        Some(Outcome::Running) => "running",
        Some(Outcome::StartFailed) => "start-failed",
        Some(Outcome::Stopped) => "stopped",
        Some(Outcome::Left) => "left",
        None => "unknown",
    };
    map.insert("outcome".into(), outcome.into());
    map.insert("policy".into(), seen.policy.as_str().into());
    map.insert("engine".into(), seen.engine.as_str().into());
    map.insert("swap".into(), seen.swap.as_str().into());
    map.insert("message".into(), seen.message.as_str().into());
    map.insert("first_loss".into(), seen.loss.as_str().into());
    for (info, value) in &seen.counters {
        map.insert(info.name.into(), (*value).into());
    }
    let transitions: Map<_, _> = seen.transitions.iter().map(|(name, count)| ((*name).to_owned(), (*count).into())).collect();
    map.insert("policy_transitions".into(), transitions.into());
    let policies: Vec<_> = seen.policies.iter().map(policy).collect();
    map.insert("policies".into(), policies.into());
    let locks: Map<_, _> = seen.locks.iter().map(|lock| (lock.name.to_owned(), holds(lock))).collect();
    map.insert("lock_holds".into(), locks.into());
    map
}

fn policy(used: &PolicySeen) -> Value {
    let mut map = Map::from_iter([("policy", &used.policy), ("region", &used.region)].map(|(key, text)| (key.into(), json!(text))));
    map.extend(used.counts.iter().map(|(name, count)| ((*name).into(), json!(count))));
    map.into()
}

fn holds(lock: &LockHolds) -> Value {
    let [p50, p99, p999] = lock.quantiles_ns;
    json!({
        "count": lock.count,
        "p50_ns": p50,
        "p99_ns": p99,
        "p999_ns": p999,
        "longest_ns": lock.longest_ns,
        "longest_at": lock.longest_at,
        "histogram_ns": lock.histogram,
    })
}

/// What `overspill run --stats-file` writes. A program that ran without a pager has `paged: false` and zero counters, and names
/// the policy, engine and swap place that were asked for.
pub fn json_of_run(run: &Run, seen: &Snapshot) -> Value {
    let mut map = json(seen);
    for (key, asked) in [("policy", run.policy.to_owned()), ("engine", run.engine.to_owned()), ("swap", run.swap.to_owned())] {
        let value = map.get_mut(key).expect("json() has set it");
        if *value == "" {
            *value = asked.into();
        }
    }
    let command: Vec<_> = run.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    map.insert("command".into(), command.into());
    map.insert("paged".into(), run.paged.into());
    map.insert("memory_asked_bytes".into(), run.memory.into());
    map.insert("wall_seconds".into(), run.wall.as_secs_f64().into());
    map.insert("exit_status".into(), run.exit_status.into());
    let signal = match run.end {
        End::Exit(_) => Value::Null,
        End::Signal(signal) => signal.into(),
    };
    map.insert("signal".into(), signal);
    Value::Object(map)
}

/// Digits in groups of three: `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `a / b` with a unit; a dash if there is nothing to divide by.
fn ratio(a: u64, b: u64, unit: &str) -> String {
    if b == 0 { format!("- {unit}") } else { format!("{:.1} {unit}", a as f64 / b as f64) }
}

/// `part` of `whole` in per cent.
fn share(part: u64, whole: u64) -> String {
    if whole == 0 { "-%".into() } else { format!("{:.0}%", part as f64 * 100.0 / whole as f64) }
}

/// `0.123 s`, `12.3 s`, `4 min 05 s`, `3 h 04 min`.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..10 => format!("{:.3} s", time.as_secs_f64()),
        10..120 => format!("{:.1} s", time.as_secs_f64()),
        120..7200 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// At most `length` characters, the end cut off visibly, no control characters.
fn shorten(text: &str, length: usize) -> String {
    let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut short: String = clean.take(length + 1).collect();
    if short.chars().count() > length {
        short.pop();
        short.push_str("...");
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_vm::counters::TABLE;
    use overspill_vm::status::Status;

    fn seen() -> Snapshot {
        let status = Status::default();
        status.init(7);
        status.policy.set(b"fifo");
        status.counters.pages_in.set(320);
        status.counters.page_in_ops.set(10);
        status.counters.pages_reclaimed.set(200);
        status.counters.pages_reclaimed_clean.set(50);
        status.counters.memory_limit_bytes.set(64 << 20);
        status.counters.readahead_pages.set(300);
        status.counters.readahead_used.set(120);
        status.counters.refaults_within_one.set(7);
        status.locks.core.add(7, std::panic::Location::caller());
        status.transitions.show(&"fifo".parse().expect("a policy"), [0, 3, 0].into_iter());
        Snapshot::of(&status)
    }

    fn run(command: &[OsString]) -> Run<'_> {
        Run {
            command,
            end: End::Signal(9),
            exit_status: 137,
            wall: Duration::from_millis(1500),
            paged: true,
            memory: 64 << 20,
            policy: "use-once",
            engine: "auto",
            swap: "/tmp",
        }
    }

    #[test]
    fn the_report_has_derived_figures() {
        let command = ["job".into(), "x\ny".into()];
        let text = of_run(&run(&command), &seen());
        assert!(text.starts_with("overspill: job x y (ended by signal 9, 1.500 s)\n"), "{text}");
        for words in [
            "32.0 pages per read",
            "- pages per write",
            "25% clean",
            "limit 64.0 MiB",
            "300 pages, 40% seen used",
            "7 within one",
            "3 queue_to_parked",
        ] {
            assert!(text.contains(words), "{words} in {text}");
        }
        assert!(!text.contains("trouble") && !text.contains("new_to_queue"), "{text}");
    }

    #[test]
    fn policies_of_regions_are_shown() {
        assert!(seen().policies.is_empty(), "the pager's alone");
        let status = Status::default();
        status.policy.set(b"use-once");
        status.policies[2].policy.set(b"fifo");
        status.policies[2].region.set(b"log\x1b.bin");
        let mut counts = overspill_vm::PolicyCounts::default();
        counts.resident = 1234;
        status.policies[2].show(&counts);
        let seen = Snapshot::of(&status);
        let text = rows(&seen);
        assert!(text.contains("use-once (the pager's): 0 resident, "), "{text}");
        assert!(text.contains("fifo (log\u{fffd}.bin): 1,234 resident, 0 share, "), "{text}");
        let json = &json(&seen)["policies"];
        assert_eq!((&json[1]["policy"], &json[1]["resident"], &json[0]["region"]), (&json!("fifo"), &json!(1234), &json!("")));
    }

    #[test]
    fn json_has_every_counter_and_the_run() {
        let command = ["job".into()];
        let json = json_of_run(&run(&command), &seen());
        for info in TABLE {
            assert!(json[info.name].is_u64(), "{}", info.name);
        }
        assert_eq!(json["policy_transitions"]["queue_to_parked"], 3);
        assert_eq!(json["lock_holds"]["core"]["count"], 1);
        assert_eq!(json["policy"], "fifo", "what the pager says goes before what was asked for");
        assert_eq!(json["swap"], "/tmp");
        assert_eq!(json["exit_status"], 137);
        assert_eq!(json["signal"], 9);
        assert_eq!(json["wall_seconds"], 1.5);
        assert_eq!(json["paged"], true);
    }

    #[test]
    fn texts() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(123), "123");
        assert_eq!(grouped(1234567), "1,234,567");
        assert_eq!(duration(Duration::from_millis(1234)), "1.234 s");
        assert_eq!(duration(Duration::from_secs(245)), "4 min 05 s");
        assert_eq!(duration(Duration::from_secs(3 * 3600 + 240)), "3 h 04 min");
        assert_eq!(shorten("abcdef", 3), "abc...");
        assert_eq!(shorten("abc", 3), "abc");
    }
}

//! Finds the reference traces and their tables of counts.

use overspill_trace::{Options, Trace};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The directory of the large traces: `OVERSPILL_TRACES`, or next to the repository. If the variable is set and there are none, the
/// test fails. If it is not set and there are none next to the repository, a message says so.
pub fn directory() -> Option<PathBuf> {
    let there = |place: &Path| place.join("reference_misses.csv").is_file();
    if let Some(place) = std::env::var_os("OVERSPILL_TRACES").map(PathBuf::from) {
        assert!(there(&place), "OVERSPILL_TRACES: there is no {}/reference_misses.csv", place.display());
        return Some(place);
    }
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    if there(&beside) {
        return Some(beside);
    }
    // not by eprintln!, because the test runner would hide it
    let _ = writeln!(
        std::io::stderr(),
        "NOT RUN: the large traces are not beside the repository; set OVERSPILL_TRACES to their directory"
    );
    None
}

/// The traces that are committed.
pub fn committed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces")
}

/// Reads a trace; its name or content shows the format.
pub fn load(path: &Path) -> Trace {
    overspill_trace::read(path, &Options::default(), &mut |_| {}).unwrap_or_else(|e| panic!("{e}"))
}

pub fn references(trace: &Trace) -> overspill_lab::References<'_> {
    overspill_lab::References::new(&trace.pages, trace.unique(), Some(trace.writes.words())).of_files(trace.is_of_files())
}

/// A row of a table of expected counts.
pub struct Row {
    pub trace: String,
    pub policy: String,
    pub memory: u32,
    pub references: u64,
    pub faults: u64,
    pub exact: bool,
    pub origin: String,
}

pub fn rows(csv: &str) -> Vec<Row> {
    csv.lines()
        .skip(1)
        .map(|line| {
            let cells: Vec<&str> = line.split(',').collect();
            let [trace, policy, memory, references, faults, kind, origin] = cells[..] else { panic!("{line}") };
            Row {
                trace: trace.to_owned(),
                policy: policy.to_owned(),
                memory: memory.parse().expect("pages"),
                references: references.parse().expect("references"),
                faults: faults.parse().expect("faults"),
                exact: kind == "exact",
                origin: origin.to_owned(),
            }
        })
        .collect()
}

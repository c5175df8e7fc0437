//! Fault counts of the policies on real traces, integer for integer.
//!
//! Three small traces are committed next to this test, with their counts. The large ones are found through `OVERSPILL_TRACES`, or
//! next to the repository. Where there are none, the tests say so and count as not run.

mod common;

use common::*;
use overspill_lab::{Job, LabPolicy, lru_curve, matrix};
use std::collections::BTreeMap;
use std::path::Path;

/// Counts every row of `csv` and compares. Returns how many were equal, and how many there are, of exact and of other rows.
fn compare(csv: &str, directory: &Path, only: impl Fn(&Row) -> bool) -> BTreeMap<(bool, String), (usize, usize)> {
    let rows: Vec<Row> = rows(csv).into_iter().filter(|row| row.policy.parse::<LabPolicy>().is_ok() && only(row)).collect();
    let mut traces: Vec<&str> = rows.iter().map(|row| row.trace.as_str()).collect();
    traces.dedup();
    let (mut sums, mut wrong) = (BTreeMap::new(), Vec::new());
    for name in traces {
        let trace = load(&directory.join(name));
        let string = references(&trace);
        let rows: Vec<&Row> = rows.iter().filter(|row| row.trace == name).collect();
        let jobs: Vec<Job> =
            rows.iter().map(|row| Job { policy: row.policy.parse().expect("it was parsed before"), memory: row.memory }).collect();
        let outcomes = matrix(&string, &jobs, 2, |_| {});
        let curve = lru_curve(&string);
        for (row, outcome) in rows.iter().zip(outcomes) {
            assert_eq!(outcome.counts.references, row.references, "{name}");
            if row.policy == "lru" {
                assert_eq!(curve.counts(row.memory).faults, row.faults, "{name}, lru for all sizes, {} pages", row.memory);
            }
            let same = outcome.counts.faults == row.faults;
            let sum: &mut (usize, usize) = sums.entry((row.exact, format!("{} {}", row.policy, row.origin))).or_default();
            sum.0 += same as usize;
            sum.1 += 1;
            if !same && std::env::var_os("OVERSPILL_TRACES_TELL").is_some() {
                println!(
                    "{name}, {}, {} pages: {} faults; {} in the table ({})",
                    row.policy, row.memory, outcome.counts.faults, row.faults, row.origin
                );
            }
            if row.exact && !same {
                wrong.push(format!(
                    "{name}, {}, {} pages: {} faults, should be {}",
                    row.policy, row.memory, outcome.counts.faults, row.faults
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} counts are wrong:\n{}", wrong.len(), wrong.join("\n"));
    sums
}

#[test]
fn the_large_traces() {
    let Some(directory) = directory() else { return };
    let csv = std::fs::read_to_string(directory.join("reference_misses.csv")).expect("the table");
    let sums = compare(&csv, &directory, |_| true);
    for ((exact, what), (same, of)) in sums {
        println!("{what:34} {same:4} of {of:4} equal{}", if exact { "" } else { " (published version, not determined)" });
    }
}

#[test]
fn the_committed_traces() {
    let directory = committed();
    let csv = std::fs::read_to_string(directory.join("reference_misses.csv")).expect("the table");
    let sums = compare(&csv, &directory, |_| true);
    let exact: usize = sums.iter().filter(|((exact, _), _)| *exact).map(|(_, (_, of))| of).sum();
    assert!(exact >= 3 * 6 * 8, "only {exact} rows of the table were compared");
}

/// The ARC paper's Table IV (Megiddo and Modha, FAST 2003): hit ratios on OLTP in per cent, cold start. The columns of 2Q, LRU-2
/// and LIRS come from parameters that the paper tuned for each size, or from another version. So they are printed, not asserted.
#[test]
fn the_arc_papers_table_iv() {
    let Some(directory) = directory() else { return };
    let columns =
        [("lru", Some(0.02)), ("arc", Some(0.02)), ("opt", Some(0.02)), ("2q", Some(0.1)), ("lru-2", None), ("lirs", None)];
    let table: [(u32, [f64; 6]); 5] = [
        (1000, [32.83, 38.93, 53.61, 40.48, 39.30, 34.80]),
        (2000, [42.47, 46.08, 60.40, 46.53, 45.82, 42.51]),
        (5000, [53.65, 55.25, 68.27, 55.70, 54.78, 47.14]),
        (10000, [60.70, 61.87, 73.02, 62.58, 62.42, 60.35]),
        (15000, [64.63, 65.40, 75.13, 65.82, 65.22, 63.99]),
    ];
    let trace = load(&directory.join("arc_OLTP.lis.zst"));
    for (column, (policy, most)) in columns.iter().enumerate() {
        let Ok(policy) = policy.parse::<LabPolicy>() else { continue };
        let jobs: Vec<Job> = table.iter().map(|(memory, _)| Job { policy, memory: *memory }).collect();
        for ((memory, paper), outcome) in table.iter().zip(matrix(&references(&trace), &jobs, 2, |_| {})) {
            let counts = outcome.counts;
            let ratio = 100.0 * (1.0 - counts.faults as f64 / counts.references as f64);
            let off = ratio - paper[column];
            println!("{policy:6} {memory:6} pages: {ratio:.2} %, paper {:.2} ({off:+.2})", paper[column]);
            assert!(most.is_none_or(|most| off.abs() <= most + 0.005), "{policy} at {memory} pages");
        }
    }
}

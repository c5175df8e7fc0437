//! How fast the lab replays: references per second of each policy, one thread, trace decoded beforehand; and the whole matrix.
//!
//! `lab-speed DIRECTORY` takes `arc_OLTP.lis.zst` and `arc_P6.lis.zst` from there; without an argument it makes a string of its own
//! (a hot set beside scans; Zipf is left to the real traces). Best of `RUNS` runs: on a machine that others use, too, that is nearest
//! to the truth. Prints a table in Markdown.

use overspill_lab::{Job, LabPolicy, References, lru_curve, matrix, replay};
use overspill_vm::policy::TABLE;
use std::collections::HashMap;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

const RUNS: usize = 3;

fn main() {
    let only = std::env::var("OVERSPILL_POLICY").ok();
    match std::env::args_os().nth(1) {
        Some(directory) => {
            let directory = Path::new(&directory);
            let oltp = load(&directory.join("arc_OLTP.lis.zst"));
            let p6 = load(&directory.join("arc_P6.lis.zst"));
            speeds(&[("OLTP, 10000 pages", &oltp, 10_000), ("P6, 65536 pages", &p6, 65_536)], only.as_deref());
            if only.is_none() {
                whole_matrix(&p6, &[1024, 8192, 32768, 65536, 131072, 262144]);
            }
        }
        None => {
            let made = made();
            speeds(&[("made, 20000 pages", &made, 20_000)], only.as_deref());
        }
    }
}

struct Trace {
    pages: Vec<u32>,
    unique: u32,
}

/// The `.lis` files of the ARC paper: each of the `n` blocks of a line `start n ...`.
fn load(path: &Path) -> Trace {
    let file = std::fs::File::open(path).unwrap_or_else(|e| panic!("{} cannot be read: {e}", path.display()));
    let text = std::io::read_to_string(zstd::Decoder::new(file).expect("zstd")).expect("text");
    let mut ids: HashMap<u64, u32> = HashMap::new();
    let mut pages = Vec::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace().map(|word| word.parse::<u64>().expect("a number"));
        let (Some(start), Some(count)) = (words.next(), words.next()) else { continue };
        for page in start..start + count {
            let next = ids.len() as u32;
            pages.push(*ids.entry(page).or_insert(next));
        }
    }
    Trace { pages, unique: ids.len() as u32 }
}

/// Two million references: four of five to 10,000 hot pages, the rest a scan over 200,000.
fn made() -> Trace {
    let mut seed = 1u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 11) as u32
    };
    let mut scan = 0;
    let pages = (0..2_000_000)
        .map(|_| {
            if random() % 5 > 0 {
                random() % 10_000
            } else {
                scan = (scan + 1) % 200_000;
                10_000 + scan
            }
        })
        .collect();
    Trace { pages, unique: 210_000 }
}

fn best(runs: usize, mut what: impl FnMut()) -> Duration {
    let times = (0..runs).map(|_| {
        let start = Instant::now();
        what();
        start.elapsed()
    });
    times.min().expect("at least one run")
}

fn speeds(cases: &[(&str, &Trace, u32)], only: Option<&str>) {
    let names: Vec<String> = cases.iter().map(|(name, ..)| format!("{name}, millions/s")).collect();
    println!("| policy | {} | bytes per page |", names.join(" | "));
    println!("| --- |{} ---: |", " ---: |".repeat(names.len()));
    for policy in LabPolicy::all().filter(|policy| only.is_none_or(|only| only == policy.name())) {
        let cells = cases.iter().map(|(_, trace, memory)| {
            let string = References::new(&trace.pages, trace.unique, None);
            let time = best(RUNS, || {
                black_box(replay(&policy, &string, *memory));
            });
            format!("{:.1}", trace.pages.len() as f64 / time.as_secs_f64() / 1e6)
        });
        // the lab itself keeps a byte for each page, and four more for a policy that wants distances
        let bytes = TABLE.iter().find(|info| info.name == policy.name()).map(|info| (info.node_bytes + 1).to_string());
        println!("| {policy} | {} | {} |", cells.collect::<Vec<_>>().join(" | "), bytes.as_deref().unwrap_or("-"));
    }
    if only.is_none() {
        let cells = cases.iter().map(|(_, trace, _)| {
            let string = References::new(&trace.pages, trace.unique, None);
            let time = best(RUNS, || {
                black_box(lru_curve(&string));
            });
            format!("{:.1}", trace.pages.len() as f64 / time.as_secs_f64() / 1e6)
        });
        println!("| lru, all sizes in one pass | {} | 20 |", cells.collect::<Vec<_>>().join(" | "));
    }
}

fn whole_matrix(trace: &Trace, sizes: &[u32]) {
    let string = References::new(&trace.pages, trace.unique, None);
    let jobs: Vec<Job> =
        LabPolicy::all().flat_map(|policy| sizes.iter().map(move |memory| Job { policy, memory: *memory })).collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let start = Instant::now();
    let outcomes = matrix(&string, &jobs, threads, |_| {});
    let references = trace.pages.len() as u64 * jobs.len() as u64;
    println!(
        "\n{} policies at {} sizes, {references} references in all, on {threads} threads: {:.1} s ({:.1} s of replaying)",
        jobs.len() / sizes.len(),
        sizes.len(),
        start.elapsed().as_secs_f64(),
        outcomes.iter().map(|outcome| outcome.time).sum::<Duration>().as_secs_f64(),
    );
}

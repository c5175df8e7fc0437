//! Measures how fast the lab replays: references per second of each policy, on one thread with a decoded trace; and the whole
//! matrix.
//!
//! `lab-speed DIRECTORY` takes `arc_OLTP.lis.zst` and `arc_P6.lis.zst` from there, and also measures the decoding of these files
//! (from the system's cache: reading, unpacking, parsing, numbering). Without an argument it makes a string of its own (a hot set
//! and scans). `OVERSPILL_POLICY=NAME` measures that policy only, and with `decoding` only the decoding. Time is the thread's time
//! on a processor, the best of `RUNS` runs. On a busy machine that is nearest to the truth, although other programs still use the
//! caches. Prints a table in Markdown.

use overspill_lab::{Job, LabPolicy, References, lru_curve, matrix, number_by_appearance, replay};
use overspill_trace::Options;
use overspill_vm::policy::TABLE;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const RUNS: usize = 9;

/// The name of the decoding, in place of a policy.
const DECODING: &str = "decoding";

fn main() {
    let only = std::env::var("OVERSPILL_POLICY").ok();
    match std::env::args_os().nth(1) {
        Some(directory) => {
            let directory = Path::new(&directory);
            let files = ["arc_OLTP.lis.zst", "arc_P6.lis.zst"].map(|name| directory.join(name));
            let [oltp, p6] = files.each_ref().map(|file| load(file));
            if only.as_deref().is_none_or(|only| only == DECODING) {
                decoding(&files);
            }
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

/// Reads a trace; its name or content shows the format. Ignores write bits, because the target figures are for replays without
/// them.
fn load(path: &Path) -> Trace {
    let trace = overspill_trace::read(path, &Options::default(), &mut |_| {}).unwrap_or_else(|e| panic!("{e}"));
    Trace { unique: trace.unique(), pages: trace.pages }
}

/// Reads each file several times, as it is: packed, in lines.
fn decoding(files: &[PathBuf]) {
    println!("| file, packed as it is | references | decoding, millions/s | seconds |");
    println!("| --- | ---: | ---: | ---: |");
    for file in files {
        let mut references = 0;
        let time = best(RUNS, || references = black_box(load(file)).pages.len());
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        println!("| {name} | {references} | {:.1} | {:.3} |", references as f64 / time.as_secs_f64() / 1e6, time.as_secs_f64());
    }
    println!();
}

struct Trace {
    pages: Vec<u32>,
    unique: u32,
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
    let mut pages: Vec<u32> = (0..2_000_000)
        .map(|_| {
            if random() % 5 > 0 {
                random() % 10_000
            } else {
                scan = (scan + 1) % 200_000;
                10_000 + scan
            }
        })
        .collect();
    let unique = number_by_appearance(&mut pages);
    Trace { pages, unique }
}

/// The time that this thread has been on a processor. (Wall time would count other programs; the scheduler's statistics are updated
/// every 4 ms only, half of what a replay of OLTP takes.)
fn on_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn best(runs: usize, mut what: impl FnMut()) -> Duration {
    let times = (0..runs).map(|_| {
        let start = on_cpu();
        what();
        on_cpu() - start
    });
    times.min().expect("at least one run")
}

fn speeds(cases: &[(&str, &Trace, u32)], only: Option<&str>) {
    if only == Some(DECODING) {
        return;
    }
    let names: Vec<String> = cases.iter().map(|(name, ..)| format!("{name}, millions/s")).collect();
    println!("| policy | {} | bytes per page |", names.join(" | "));
    println!("| --- |{} ---: |", " ---: |".repeat(names.len()));
    if only.is_none() {
        let cells = cases.iter().map(|(_, trace, memory)| {
            let time = best(RUNS, || {
                black_box(plain_fifo(trace, *memory));
            });
            format!("{:.1}", trace.pages.len() as f64 / time.as_secs_f64() / 1e6)
        });
        println!("| (a plain fifo, nothing else) | {} | 1 |", cells.collect::<Vec<_>>().join(" | "));
    }
    for policy in LabPolicy::all().filter(|policy| only.is_none_or(|only| only == policy.name())) {
        let cells = cases.iter().map(|(_, trace, memory)| {
            let string = References::new(&trace.pages, trace.unique, None);
            let time = best(RUNS, || {
                black_box(replay(&policy, &string, *memory));
            });
            format!("{:.1}", trace.pages.len() as f64 / time.as_secs_f64() / 1e6)
        });
        // the lab itself keeps nothing for a page, except four bytes for a policy that needs distances (`mglru`)
        let bytes = TABLE.iter().find(|info| info.name == policy.name()).map(|info| info.node_bytes.to_string());
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

/// The most that the machine can do today: fifo as a ring of page numbers and a byte per page, with a single count.
fn plain_fifo(trace: &Trace, memory: u32) -> u64 {
    let mut resident = vec![false; trace.unique as usize];
    let mut ring = vec![u32::MAX; memory as usize];
    let (mut at, mut faults) = (0, 0);
    for &page in &trace.pages {
        if !resident[page as usize] {
            faults += 1;
            if let Some(old) = resident.get_mut(ring[at] as usize) {
                *old = false;
            }
            resident[page as usize] = true;
            ring[at] = page;
            at = if at + 1 == ring.len() { 0 } else { at + 1 };
        }
    }
    faults
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

//! Correlated references: the examples of the use-once thread (linux-kernel, 24 July 2001). A file is read once, from front to
//! back, in records of 80 bytes, of 249 bytes through a mapping, or 4 bytes at a time, while a program uses a hot set of pages.
//! Each page of the file is used once, but touched 51, 17 or 1024 times. Which policies keep the hot set?
//!
//! `cargo run --release -p overspill-lab --example correlated` prints the table that is in `docs/POLICIES.md`.

use overspill_lab::{LabPolicy, References, replay};

/// Pages of memory.
const MEMORY: u32 = 1000;
/// Pages of the hot set. For each new page of the scan, one of them is touched at random.
const HOT: u32 = 600;
/// Pages of the file.
const FILE: u32 = 10_000;
const PAGE_BYTES: u64 = 4096;

/// The references of the scan in records of `record` bytes, with one to the hot set after each page's worth of bytes.
fn string(record: u64) -> Vec<u32> {
    let mut seed = 88_172_645_463_325_252u64;
    let mut random = |below: u32| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 33) as u32 % below
    };
    let mut pages: Vec<u32> = (0..HOT).chain(0..HOT).collect(); // so that the hot set counts as hot before the scan begins
    let mut next_hot = 0;
    for at in (0..FILE as u64 * PAGE_BYTES).step_by(record as usize) {
        let (first, last) = (at / PAGE_BYTES, (at + record - 1) / PAGE_BYTES);
        pages.extend((first..=last).filter(|page| *page < FILE as u64).map(|page| HOT + page as u32));
        if at >= next_hot {
            next_hot += PAGE_BYTES;
            pages.push(random(HOT));
        }
    }
    pages
}

fn main() {
    let policies = [
        "fifo",
        "lru",
        "clock",
        "aging",
        "use-once",
        "use-once-window:window=0.01",
        "use-once-window",
        "use-once-window:window=0.1",
        "2q",
        "arc",
        "lru-2",
        "lru-2:crp=2000",
        "s3-fifo",
        "lirs",
        "opt",
    ];
    let records = [4096, 249, 80, 4];
    let strings: Vec<Vec<u32>> = records.iter().map(|record| string(*record)).collect();
    println!("| policy | whole pages | 249 bytes | 80 bytes | 4 bytes |");
    println!("| --- | ---: | ---: | ---: | ---: |");
    for policy in policies {
        let spec: LabPolicy = policy.parse().expect("a policy");
        let cells = strings.iter().map(|pages| {
            let counts = replay(&spec, &References::new(pages, HOT + FILE, None), MEMORY);
            format!("{}", counts.faults - counts.cold_faults)
        });
        println!("| {policy} | {} |", cells.collect::<Vec<_>>().join(" | "));
    }
}

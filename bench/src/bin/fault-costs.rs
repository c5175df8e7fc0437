//! Measures the cost of a fault, by kind and delivery, compared with the kernel's own first touch. Prints a Markdown table.
//!
//! Each touch is timed by itself, in one thread, in an order that neither readahead nor zero-ahead follows. The pager's counters
//! tell its kind. All pages have been written once before hard faults are measured. If the host has memory to spare, it has the
//! file in its cache, so the figures show the cost of the pager with a fast device.

use overspill::{Delivery, Pager};
use std::time::Instant;

const PAGE: usize = 4096;
const MEMORY: u64 = 64 << 20;
const PAGES: usize = 3 * MEMORY as usize / PAGE;
/// Coprime with all lengths of windows.
const STRIDE: usize = 1009;

/// The n-th page touched: each once, none next to the one before.
fn order(n: usize) -> usize {
    n * STRIDE % PAGES
}

#[derive(Default)]
struct Samples(Vec<u64>);

impl Samples {
    fn show(&mut self) -> String {
        self.0.sort_unstable();
        match self.0.len() {
            0..100 => format!("(only {})", self.0.len()),
            n => format!("{} | {}", self.0[n / 2], self.0[n * 99 / 100]),
        }
    }
}

fn timed(word: *mut u64, value: u64) -> u64 {
    let start = Instant::now();
    // SAFETY: the callers' memory.
    unsafe { word.write_volatile(value) };
    start.elapsed().as_nanos() as u64
}

/// Zero fill, soft and hard faults.
fn pager(delivery: Delivery) -> Result<[Samples; 3], overspill::Error> {
    let pager = Pager::builder().memory(MEMORY).delivery(delivery).build()?;
    let mut region = pager.region(PAGES * PAGE)?;
    let words = region.as_mut_slice_of::<u64>().as_mut_ptr();
    let c = pager.counters();
    let mut samples = [Samples::default(), Samples::default(), Samples::default()];
    // The first pass is zero fills. From the second on pages are out or inactive; the third is measured.
    for pass in 0..3 {
        for n in 0..PAGES {
            let before = [c.zero_fills.get(), c.soft_faults.get(), c.hard_faults.get()];
            // Every other touch goes to a page that was touched some time ago, not quite as long ago as pages stay in memory, so
            // that some of these pages are inactive.
            let resident = MEMORY as usize / PAGE;
            let back = if n % 2 == 1 && pass > 0 { (resident + n * 7919 % resident) | 1 } else { 0 };
            // SAFETY: within the region.
            let ns = timed(unsafe { words.add(order((n + PAGES - back) % PAGES) * PAGE / 8) }, n as u64 + 1);
            let after = [c.zero_fills.get(), c.soft_faults.get(), c.hard_faults.get()];
            let changed: Vec<usize> = (0..3).filter(|k| after[*k] == before[*k] + 1).collect();
            if let ([kind], true) = (changed.as_slice(), pass != 1) {
                samples[*kind].0.push(ns);
            }
        }
    }
    Ok(samples)
}

fn kernel() -> Samples {
    // SAFETY: a new private mapping of the kernel's choice.
    let at = unsafe {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        libc::mmap(std::ptr::null_mut(), PAGES * PAGE, prot, flags, -1, 0)
    };
    assert_ne!(at, libc::MAP_FAILED, "no memory");
    // SAFETY: the mapping just made; the advice changes no contents.
    unsafe { libc::madvise(at, PAGES * PAGE, libc::MADV_NOHUGEPAGE) };
    // SAFETY: within the mapping.
    let samples = (0..PAGES).map(|n| timed(unsafe { at.cast::<u64>().add(order(n) * PAGE / 8) }, 1)).collect();
    // SAFETY: it is not used any more.
    unsafe { libc::munmap(at, PAGES * PAGE) };
    Samples(samples)
}

fn main() {
    println!("| Fault | Delivery | median ns | p99 ns |\n|---|---|---|---|");
    println!("| first touch | the kernel's own | {} |", kernel().show());
    for delivery in [Delivery::InThread, Delivery::Threads] {
        match pager(delivery) {
            Ok(mut samples) => {
                for (kind, samples) in ["zero fill", "soft (inactive)", "hard (read from swap)"].into_iter().zip(&mut samples) {
                    println!("| {kind} | {delivery:?} | {} |", samples.show());
                }
            }
            Err(error) => println!("| all | {delivery:?} | not to be had: {error} | |"),
        }
    }
}

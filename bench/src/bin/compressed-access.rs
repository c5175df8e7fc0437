//! Random touches of pages that compress, for `compressed.py`: on plain memory (for the kernel's swap, or `overspill run`) or on a
//! Region.
//!
//! `compressed-access plain|region --size MIB --memory MIB --pool DEVICE --swap DIR --touches N`. Each page holds objects of a
//! heap: pointers, small numbers, and words of noise, which LZ4 makes two to three times as small. Prints a line of JSON for the
//! fill, the random reads, and the random updates: nanoseconds per touch. Wrong content is exit status 3.

use overspill::{DeviceSpec, Pager, Region, device_spec};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

const WORDS: usize = 512;

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        self.0 >> 16
    }
}

fn tag(page: usize) -> u64 {
    (page as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) << 16
}

fn fill(page: &[AtomicU64], number: usize) {
    let mut rng = Rng(number as u64);
    for object in page.chunks_exact(4) {
        let noise = if rng.next() & 3 == 0 { rng.next() } else { 0 };
        let words = [0x7f3a_5000_0000 + (rng.next() & 0xffff) * 16, rng.next() & 63, 1 << 32 | rng.next() & 7, noise];
        object.iter().zip(words).for_each(|(to, word)| to.store(word, Relaxed));
    }
    page[number * 8 % WORDS].store(tag(number), Relaxed);
}

fn argument(name: &str) -> Option<String> {
    let mut arguments = std::env::args().skip_while(|a| a != name);
    arguments.next()?;
    arguments.next()
}

fn number(name: &str) -> Option<usize> {
    argument(name)?.parse().ok()
}

fn plain(bytes: usize) -> Option<&'static [AtomicU64]> {
    // SAFETY: a new private mapping at an address of the kernel's choice, never unmapped, page-aligned and zeroed, which only this
    // slice refers to; the advice changes no content.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let at = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        if at == libc::MAP_FAILED {
            return None;
        }
        libc::madvise(at, bytes, libc::MADV_NOHUGEPAGE);
        Some(std::slice::from_raw_parts(at.cast(), bytes / 8))
    }
}

fn region(bytes: usize) -> Result<Region, Box<dyn std::error::Error>> {
    let mib = |name| number(name).ok_or(format!("{name} is missing"));
    let pool = device_spec::parse(argument("--pool").ok_or("--pool is missing")?.as_ref())?;
    let swap = DeviceSpec::file(argument("--swap").ok_or("--swap is missing")?);
    let pager = Pager::builder().memory((mib("--memory")? as u64) << 20).swap_device(pool).swap_device(swap).build()?;
    Ok(pager.region(bytes)?)
}

fn touches(memory: &[AtomicU64]) -> Result<(), usize> {
    let pages = memory.len() / WORDS;
    let count = number("--touches").unwrap_or(100_000);
    let start = Instant::now();
    memory.chunks_exact(WORDS).enumerate().for_each(|(n, page)| fill(page, n));
    let tell = |what: &str, n: usize, start: Instant| {
        println!("{{\"pattern\":\"{what}\",\"ns_per_access\":{:.1}}}", start.elapsed().as_nanos() as f64 / n as f64);
    };
    tell("fill", pages, start);
    let mut rng = Rng(1);
    for (what, update) in [("random", 0), ("update", 1)] {
        let start = Instant::now();
        for _ in 0..count {
            let n = rng.next() as usize % pages;
            let word = &memory[n * WORDS + n * 8 % WORDS];
            let seen = word.load(Relaxed);
            if seen & !0xffff != tag(n) {
                return Err(n);
            }
            if update == 1 {
                word.store(tag(n) | (seen + 1) & 0xffff, Relaxed);
            }
        }
        tell(what, count, start);
    }
    Ok(())
}

fn main() -> ExitCode {
    let bytes = number("--size").unwrap_or(256) << 20;
    let done = if std::env::args().nth(1).as_deref() == Some("region") {
        match region(bytes) {
            Ok(mut region) => touches(region.as_atomics()),
            Err(error) => {
                eprintln!("compressed-access: {error}");
                return ExitCode::from(2);
            }
        }
    } else {
        match plain(bytes) {
            Some(memory) => touches(memory),
            None => return ExitCode::from(2),
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(page) => {
            eprintln!("compressed-access: page {page} is wrong");
            ExitCode::from(3)
        }
    }
}

//! The access patterns, and the check that every value read is the one last written.
//!
//! ```text
//! fill              each page in order, first touch
//! sequential        each page in order, read
//! random            pages drawn evenly, read
//! update            pages drawn evenly, read and written
//! hot-scan          half of the accesses go over all pages in order; of the other half nine in ten are to a hot tenth of the
//!                   pages, in one piece: an index alongside a scan
//! hot-scan-spread   the same with the hot pages spread evenly over the whole memory: objects in a heap
//! burst             16 pages in order, 48 passed over, and so on to the end, four times: tiles of an image, columns of records
//! stride            every 16th page, and when that is done every 16th page from the next one on, until each has been read: a
//!                   matrix by columns
//! ```
//!
//! One access touches eight bytes of a page. They hold a tag made of the page's number and a count of its updates:
//!
//! ```text
//! bits 63..24  tag(page)         set by fill, checked at every access
//! bits 23..0   updates so far    summed up after the last pattern: the sum must be the number of updates made
//! ```
//!
//! So a page of another address, a page of zeroes and a stale page are all found. The word is in another cache line in each page:
//! with one offset everywhere, all pages would compete for a few cache sets, which would distort the measurement.
//!
//! The same seed makes the same accesses on every memory and with every pager. Threads share them: thread t of n touches the t-th
//! part of an ordered pattern, and draws its part of a random pattern with a seed of its own.

use crate::options::Options;
use serde_json::{Value, json};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Bytes of a page.
pub const PAGE: usize = 4096;

const WORDS: usize = PAGE / size_of::<u64>();

const LINE_WORDS: usize = 64 / size_of::<u64>();

const COUNT_BITS: u32 = 24;

/// The hot set is one page in this many.
const HOT_DIVISOR: usize = 10;

/// Hot-scan makes this many times the accesses of the other random patterns. If those have as many accesses as there are pages, the
/// scan passes over all memory twice, so that it can push out the hot set, and the hot set can come back.
const HOT_SCAN_LENGTH: usize = 4;

/// Burst reads the first pages of each group, in order: this many pages of this many.
const BURST: usize = 16;
const BURST_GROUP: usize = 64;

/// Stride reads one page of this many in one pass.
const STRIDE: usize = 16;

/// Accesses of one kind between two readings of the clock in hot-scan: few enough that the two streams alternate, and enough that
/// the clock costs nothing.
const TURN: usize = 16;

/// A way to go over memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Each page in order, first touch.
    Fill,
    /// Each page in order, read.
    Sequential,
    /// Pages drawn evenly, read.
    Random,
    /// Pages drawn evenly, read and written.
    Update,
    /// A hot set, in one piece, with a scan alongside it.
    HotScan,
    /// A hot set, spread over the whole memory, with a scan alongside it.
    HotScanSpread,
    /// Short runs at regular distances, the same ones several times.
    Burst,
    /// Single pages at regular distances, read.
    Stride,
}

impl Pattern {
    /// All of them, in the order in which they are run.
    pub const ALL: [Pattern; 8] = [
        Pattern::Fill,
        Pattern::Sequential,
        Pattern::Random,
        Pattern::Update,
        Pattern::HotScan,
        Pattern::HotScanSpread,
        Pattern::Burst,
        Pattern::Stride,
    ];

    /// As on the command line and in the output.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Fill => "fill",
            Pattern::Sequential => "sequential",
            Pattern::Random => "random",
            Pattern::Update => "update",
            Pattern::HotScan => "hot-scan",
            Pattern::HotScanSpread => "hot-scan-spread",
            Pattern::Burst => "burst",
            Pattern::Stride => "stride",
        }
    }
}

/// A value that is not the one last written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// An access found this instead of the page's tag.
    Value {
        /// The page's number.
        page: usize,
        /// All eight bytes.
        found: u64,
    },
    /// The pages' counts do not add up to the updates made.
    Sum {
        /// Updates made.
        made: u64,
        /// Updates found.
        found: u64,
    },
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Wrong::Value { page, found } => {
                write!(f, "wrong value in page {page}: {found:#018x} does not begin with tag {:#012x}", tag(page))
            }
            Wrong::Sum { made, found } => {
                write!(f, "{made} updates were made, the pages count {found}")
            }
        }
    }
}

/// Time of one part of a pattern, and how many accesses it is for.
#[derive(Clone, Copy, Default)]
struct Part {
    accesses: usize,
    time: Duration,
}

impl Part {
    fn ns_per_access(&self) -> f64 {
        self.time.as_nanos() as f64 / self.accesses.max(1) as f64
    }
}

/// The times of one thread: all of it, and for hot-scan its two streams.
#[derive(Clone, Copy, Default)]
struct Done {
    accesses: usize,
    updates: u64,
    hot: Part,
    scan: Part,
}

/// Runs the patterns of `options` on `memory`. Calls `report` with a JSON object for each.
///
/// `memory` is read and written only through atomics, so threads may share it.
///
/// # Errors
/// [`Wrong`]: a value was not the one last written.
///
/// # Panics
/// If `memory` is not as long as `options.size` says.
pub fn run(options: &Options, memory: &[AtomicU64], mut report: impl FnMut(&Value)) -> Result<(), Wrong> {
    let pages = options.size / PAGE;
    assert_eq!(memory.len(), pages * WORDS, "memory and options disagree");
    let mut updates = 0;
    for &pattern in &options.patterns {
        let faults = Faults::now();
        let start = Instant::now();
        let done = all_threads(pattern, options, memory)?;
        let time = start.elapsed();
        let faults = Faults::now().since(faults);
        updates += done.iter().map(|part| part.updates).sum::<u64>();
        report(&object(pattern, options, pages, &done, time, faults));
    }
    let found = (0..pages).map(|page| count(word(memory, page).load(Relaxed))).sum();
    if found == updates { Ok(()) } else { Err(Wrong::Sum { made: updates, found }) }
}

/// Runs one pattern, on the calling thread if one is enough: a second thread, even an idle one, makes paging slower.
fn all_threads(pattern: Pattern, options: &Options, memory: &[AtomicU64]) -> Result<Vec<Done>, Wrong> {
    if options.threads == 1 {
        return touch(pattern, options, memory, 0).map(|done| vec![done]);
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..options.threads).map(|thread| scope.spawn(move || touch(pattern, options, memory, thread))).collect();
        threads.into_iter().map(|thread| thread.join().expect("touching memory does not panic")).collect()
    })
}

fn object(pattern: Pattern, options: &Options, pages: usize, done: &[Done], time: Duration, faults: Faults) -> Value {
    let accesses: usize = done.iter().map(|part| part.accesses).sum();
    let mut object = json!({
        "pattern": pattern.name(),
        "pages": pages,
        "threads": options.threads,
        "accesses": accesses,
        "seconds": time.as_secs_f64(),
        "ns_per_access": time.as_nanos() as f64 / accesses as f64,
        "ns_per_page": time.as_nanos() as f64 / pages as f64,
        "major_faults": faults.major,
        "minor_faults": faults.minor,
    });
    if matches!(pattern, Pattern::HotScan | Pattern::HotScanSpread) {
        let sum = |part: fn(&Done) -> Part| {
            done.iter().map(part).fold(Part::default(), |a, b| Part { accesses: a.accesses + b.accesses, time: a.time + b.time })
        };
        // With several threads these are the times of one thread, not wall time.
        object["ns_per_hot_access"] = json!(sum(|d| d.hot).ns_per_access());
        object["ns_per_scan_access"] = json!(sum(|d| d.scan).ns_per_access());
    }
    object
}

/// One thread's part of a pattern.
fn touch(pattern: Pattern, options: &Options, memory: &[AtomicU64], thread: usize) -> Result<Done, Wrong> {
    let pages = options.size / PAGE;
    let share = |whole: usize| whole * (thread + 1) / options.threads - whole * thread / options.threads;
    let own = pages * thread / options.threads..pages * (thread + 1) / options.threads;
    let mut rng = Rng::new(options.seed, pattern, thread);
    let mut done = Done::default();
    match pattern {
        Pattern::Fill => {
            for page in own.clone() {
                word(memory, page).store(tag(page) << COUNT_BITS, Relaxed);
            }
            done.accesses = own.len();
        }
        Pattern::Sequential => {
            for page in own.clone() {
                check(page, word(memory, page).load(Relaxed))?;
            }
            done.accesses = own.len();
        }
        Pattern::Random => {
            done.accesses = share(options.accesses);
            for _ in 0..done.accesses {
                let page = rng.below(pages);
                check(page, word(memory, page).load(Relaxed))?;
            }
        }
        Pattern::Update => {
            done.accesses = share(options.accesses);
            done.updates = done.accesses as u64;
            for _ in 0..done.accesses {
                let page = rng.below(pages);
                check(page, word(memory, page).fetch_add(1, Relaxed))?;
            }
        }
        Pattern::HotScan | Pattern::HotScanSpread => {
            let stride = if pattern == Pattern::HotScan { 1 } else { HOT_DIVISOR };
            let hot_pages = pages.div_ceil(HOT_DIVISOR);
            let mut scan = own.clone().cycle();
            while done.accesses < share(options.accesses * HOT_SCAN_LENGTH) {
                let start = Instant::now();
                for _ in 0..TURN {
                    let page = if rng.below(10) == 0 { rng.below(pages) } else { rng.below(hot_pages) * stride };
                    check(page, word(memory, page).load(Relaxed))?;
                }
                let between = Instant::now();
                for page in scan.by_ref().take(TURN) {
                    check(page, word(memory, page).load(Relaxed))?;
                }
                let end = Instant::now();
                done.hot.accesses += TURN;
                done.hot.time += between - start;
                done.scan.accesses += TURN;
                done.scan.time += end - between;
                done.accesses += 2 * TURN;
            }
        }
        Pattern::Burst => {
            for _ in 0..BURST_GROUP / BURST {
                for page in own.clone().filter(|page| page % BURST_GROUP < BURST) {
                    check(page, word(memory, page).load(Relaxed))?;
                    done.accesses += 1;
                }
            }
        }
        Pattern::Stride => {
            for from in 0..STRIDE {
                for page in own.clone().skip(from).step_by(STRIDE) {
                    check(page, word(memory, page).load(Relaxed))?;
                    done.accesses += 1;
                }
            }
        }
    }
    Ok(done)
}

/// The word of a page that is touched.
fn word(memory: &[AtomicU64], page: usize) -> &AtomicU64 {
    &memory[page * WORDS + page * LINE_WORDS % WORDS]
}

/// Forty bits that no other page has and that are not zero: the bits of the number, mixed one to one.
fn tag(page: usize) -> u64 {
    let mask = (1 << (u64::BITS - COUNT_BITS)) - 1;
    (page as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) & mask
}

fn count(value: u64) -> u64 {
    value & ((1 << COUNT_BITS) - 1)
}

fn check(page: usize, found: u64) -> Result<(), Wrong> {
    if found >> COUNT_BITS == tag(page) { Ok(()) } else { Err(Wrong::Value { page, found }) }
}

/// SplitMix64 (Steele, Lea, Flood 2014): a few instructions per number, which is negligible next to a page fault.
struct Rng(u64);

impl Rng {
    fn new(seed: u64, pattern: Pattern, thread: usize) -> Self {
        Rng(seed << 32 | (pattern as u64) << 16 | thread as u64)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        ((u128::from(z) * bound as u128) >> 64) as usize
    }
}

/// The kernel's own count of this process's page faults.
#[derive(Clone, Copy)]
struct Faults {
    major: i64,
    minor: i64,
}

impl Faults {
    fn now() -> Self {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the pointer is to room for one rusage, which the call fills; zeroed bytes are a valid rusage even if it
        // failed, which it cannot for RUSAGE_SELF.
        let usage = unsafe {
            libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
            usage.assume_init()
        };
        Faults { major: usage.ru_majflt, minor: usage.ru_minflt }
    }

    fn since(self, before: Faults) -> Faults {
        Faults { major: self.major - before.major, minor: self.minor - before.minor }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> Options {
        Options::parse(line.split_whitespace().map(String::from)).unwrap()
    }

    fn memory(options: &Options) -> Vec<AtomicU64> {
        (0..options.size / size_of::<u64>()).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn all_patterns_hold_on_sound_memory() {
        for threads in [1, 3] {
            let options = options(&format!("--size 1M --accesses 5000 --threads {threads}"));
            let mut seen = Vec::new();
            let result = run(&options, &memory(&options), |line| {
                seen.push(line["pattern"].as_str().unwrap().to_owned());
                assert!(line["accesses"].as_u64().unwrap() >= 256, "{line}");
            });
            assert_eq!(result, Ok(()));
            assert_eq!(seen, Pattern::ALL.map(Pattern::name));
        }
    }

    #[test]
    fn tags_are_unique_and_not_zero() {
        let mut tags: Vec<_> = (0..100_000).map(tag).collect();
        tags.sort_unstable();
        tags.dedup();
        assert_eq!(tags.len(), 100_000);
        assert_ne!(tags[0], 0);
    }

    #[test]
    fn a_page_of_zeroes_and_anothers_page_are_found() {
        let options = options("--size 1M");
        for wrong in [0, tag(8) << COUNT_BITS] {
            let memory = memory(&options);
            let result = run(&options, &memory, |line| {
                if line["pattern"] == "fill" {
                    word(&memory, 7).store(wrong, Relaxed);
                }
            });
            assert_eq!(result, Err(Wrong::Value { page: 7, found: wrong }));
        }
    }

    #[test]
    fn a_lost_update_is_found() {
        let options = options("--size 1M --patterns update --accesses 5000");
        let memory = memory(&options);
        let result = run(&options, &memory, |line| {
            if line["pattern"] == "update" {
                let touched = (0..256).find(|&page| count(word(&memory, page).load(Relaxed)) > 0);
                word(&memory, touched.unwrap()).fetch_sub(1, Relaxed);
            }
        });
        assert_eq!(result, Err(Wrong::Sum { made: 5000, found: 4999 }));
    }

    #[test]
    fn the_same_seed_makes_the_same_accesses() {
        let draw = |seed, thread| {
            let mut rng = Rng::new(seed, Pattern::Random, thread);
            (0..100).map(|_| rng.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1, 0), draw(1, 0));
        assert_ne!(draw(1, 0), draw(1, 1));
        assert_ne!(draw(1, 0), draw(2, 0));
    }
}

//! One policy, one size, one pass over the string.

use crate::opt;
use crate::string::References;
use core::fmt;
use core::str::FromStr;
use overspill_vm::policy::{Admit, Arrival, Ghosts, Node, Policy, See, Setup, Spec, SpecError, Visitor};

/// The counts of a replay. All are exact.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// References in the string.
    pub references: u64,
    /// Different pages that were referenced.
    pub unique_pages: u64,
    /// References to pages that were not in memory, including first references.
    pub faults: u64,
    /// Of these, first references.
    pub cold_faults: u64,
    /// Evictions of pages that were written since they came in. Nothing is written at the end of the string: pages that are dirty
    /// then stay in memory.
    pub pages_written: u64,
}

/// A policy as the lab takes it: one of the live ones, or `opt`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum LabPolicy {
    /// Belady's MIN: the page whose next reference is furthest away goes. Knows the future, so it is for comparison only.
    Opt,
    /// A policy that can also run live.
    Live(Spec),
}

impl LabPolicy {
    /// The name of the policy that is for the lab only.
    pub const OPT: &'static str = "opt";
    /// What it is, in one line.
    pub const OPT_ABOUT: &'static str = "Belady's MIN: knows the future; the fewest faults there can be (lab only)";

    /// All policies with their defaults, `opt` last.
    pub fn all() -> impl Iterator<Item = LabPolicy> {
        let live = overspill_vm::policy::NAMES.iter().map(|name| LabPolicy::Live(Spec::named(name).expect("it is in the table")));
        live.chain([LabPolicy::Opt])
    }
    /// Its name, without parameters.
    pub fn name(&self) -> &'static str {
        match self {
            LabPolicy::Opt => Self::OPT,
            LabPolicy::Live(spec) => spec.name(),
        }
    }
}

impl fmt::Display for LabPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LabPolicy::Opt => f.write_str(Self::OPT),
            LabPolicy::Live(spec) => write!(f, "{spec}"),
        }
    }
}

impl FromStr for LabPolicy {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text.split_once(':') {
            None if text == Self::OPT => Ok(LabPolicy::Opt),
            Some((Self::OPT, rest)) => {
                let key = rest.split(['=', ',']).next().unwrap_or_default();
                Err(SpecError::Key(Self::OPT, key.to_owned()))
            }
            _ => text.parse().map(LabPolicy::Live),
        }
    }
}

/// Replays the string under `policy` with `memory` pages: cold start, demand paging, one eviction at a time. The policy hears of
/// every reference.
///
/// # Panics
/// If `memory` is zero.
///
/// ```
/// use overspill_lab::{References, replay};
///
/// let pages = [0, 1, 2, 0, 1, 2, 0, 1, 2];
/// let string = References::new(&pages, 3, None);
/// assert_eq!(replay(&"lru".parse()?, &string, 2).faults, 9, "a loop that is a little too large");
/// assert_eq!(replay(&"opt".parse()?, &string, 2).faults, 6);
/// # Ok::<(), overspill_vm::policy::SpecError>(())
/// ```
pub fn replay(policy: &LabPolicy, string: &References<'_>, memory: u32) -> Counts {
    replay_with_progress(policy, string, memory, &|_| {})
}

/// As [`replay`]. `progress` is called after each [`STRETCH`] and at the end, with the number of references since the last call.
///
/// # Panics
/// As [`replay`].
pub fn replay_with_progress(policy: &LabPolicy, string: &References<'_>, memory: u32, progress: &dyn Fn(u64)) -> Counts {
    assert!(memory > 0, "a memory of no pages");
    match policy {
        LabPolicy::Opt => opt::replay(string, memory, progress),
        LabPolicy::Live(spec) => {
            let setup = Setup { memory, nodes: string.unique(), ghosts: u32::MAX, see: See::All };
            spec.visit(&setup, Run { string, memory, progress })
        }
    }
}

/// Every page has a node of its own, so nothing is given back.
struct Dense;

impl Ghosts for Dense {
    #[inline]
    fn forget(&mut self, _: Node) {}
}

struct Run<'a> {
    string: &'a References<'a>,
    memory: u32,
    progress: &'a dyn Fn(u64),
}

impl Visitor for Run<'_> {
    type Out = Counts;

    fn visit<P: Policy>(self, policy: P) -> Counts {
        let machine = Machine { policy, memory: self.memory, faults: 0 };
        let (faults, cold, written) = if self.string.has_writes() {
            machine.run(self.string, self.progress, Dirty(vec![false; self.string.unique() as usize], 0))
        } else {
            machine.run(self.string, self.progress, NeverWritten)
        };
        Counts {
            references: self.string.pages().len() as u64,
            unique_pages: cold,
            faults,
            cold_faults: cold,
            pages_written: written,
        }
    }
}

/// Keeps account of which pages are dirty.
trait Writes {
    fn referenced<P: Policy>(&mut self, string: &References<'_>, i: usize, page: u32, policy: &mut P);
    fn evicted(&mut self, page: u32);
    fn written(&self) -> u64;
}

struct NeverWritten;

impl Writes for NeverWritten {
    #[inline]
    fn referenced<P: Policy>(&mut self, _: &References<'_>, _: usize, _: u32, _: &mut P) {}
    #[inline]
    fn evicted(&mut self, _: u32) {}
    fn written(&self) -> u64 {
        0
    }
}

struct Dirty(Vec<bool>, u64);

impl Writes for Dirty {
    #[inline]
    fn referenced<P: Policy>(&mut self, string: &References<'_>, i: usize, page: u32, policy: &mut P) {
        if string.writes(i) {
            self.0[page as usize] = true;
            policy.dirtied(page);
        }
    }
    #[inline]
    fn evicted(&mut self, page: u32) {
        self.1 += core::mem::take(&mut self.0[page as usize]) as u64;
    }
    fn written(&self) -> u64 {
        self.1
    }
}

/// References whose records are prefetched together, two batches ahead; the records of their neighbours are prefetched one batch
/// ahead. Without prefetches most references would wait for memory. A read in place of a prefetch would make the processor wait,
/// too.
const BATCH: usize = 16;

/// References between two calls of `progress`. They take a millisecond with the fastest policies, so that the calls cost nothing
/// measurable, and a fraction of a second with the slowest.
pub const STRETCH: usize = 1 << 18;
const _: () = assert!(STRETCH.is_multiple_of(BATCH));

struct Machine<P> {
    policy: P,
    memory: u32,
    faults: u32,
}

impl<P: Policy> Machine<P> {
    /// Returns faults, cold faults, pages written.
    fn run<W: Writes>(mut self, string: &References<'_>, progress: &dyn Fn(u64), mut writes: W) -> (u64, u64, u64) {
        let pages = string.pages();
        // When a page was evicted, by the count of evictions; 0: it never was.
        let mut evicted_at = vec![0u32; if P::WANTS_DISTANCE { string.unique() as usize } else { 0 }];
        // The number of different pages so far, which is also the number of the next new one.
        let mut cold = 0;
        for (begin, stretch) in (0..).step_by(STRETCH).zip(pages.chunks(STRETCH)) {
            for (n, batch) in stretch.chunks(BATCH).enumerate() {
                let first = begin + n * BATCH;
                let ahead = |by: usize| &pages[(first + by * BATCH).min(pages.len())..(first + (by + 1) * BATCH).min(pages.len())];
                ahead(2).iter().for_each(|page| self.policy.prefetch(*page));
                ahead(1).iter().for_each(|page| self.policy.prefetch_beside(*page));
                for (i, &page) in batch.iter().enumerate() {
                    if !self.policy.reference(page) {
                        let again = page < cold;
                        cold += !again as u32;
                        let why = match (string.is_of_files(), again) {
                            (true, _) => Admit::FileRead,
                            (false, true) => Admit::HardFault,
                            (false, false) => Admit::FirstTouch,
                        };
                        self.fault(page, why, again, &mut evicted_at, &mut writes);
                    }
                    writes.referenced(string, first + i, page, &mut self.policy);
                }
            }
            progress(stretch.len() as u64);
        }
        (self.faults as u64, cold as u64, writes.written())
    }

    #[inline]
    fn fault<W: Writes>(&mut self, page: u32, why: Admit, again: bool, evicted_at: &mut [u32], writes: &mut W) {
        self.faults += 1;
        self.policy.expect(page);
        // each fault fills a page until memory is full, and evicts one from then on
        let evictions = self.faults.saturating_sub(self.memory);
        if evictions > 0 {
            let victim = self.policy.victim().expect("a full memory has a victim");
            self.policy.evicted(&mut Dense, victim);
            writes.evicted(victim);
            if P::WANTS_DISTANCE {
                evicted_at[victim as usize] = evictions;
            }
        }
        let distance = (P::WANTS_DISTANCE && again).then(|| evictions - evicted_at[page as usize]);
        self.policy.admit(&mut Dense, page, Arrival { why, distance });
    }
}

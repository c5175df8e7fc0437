//! The status block: the state of a running pager, for `overspill run` and `overspill stat`.
//!
//! One `repr(C)` block that the agent (or the library) places in a shared memory file named [`STATUS_NAME`]. The reader is
//! another process, so every field is an atomic or an array of atomic bytes, and a reader must check [`Status::is_valid`].

use crate::counters::{Counter, Counters};
use crate::hold_times::HoldTimes;
use crate::policy::{Spec, TABLE};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Name of the memory file; `/proc/PID/task/TID/fd` shows it as `/memfd:overspill-status`.
pub const STATUS_NAME: &str = "overspill-status";
/// Marks a valid block and its layout version.
pub const STATUS_MAGIC: u64 = u64::from_le_bytes(*b"ovspst10");

/// A text of at most `N` bytes. While it is replaced, a reader sees some of both.
#[derive(Debug)]
#[repr(transparent)]
pub struct Text<const N: usize>([AtomicU8; N]);

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Text([const { AtomicU8::new(0) }; N])
    }
}

impl<const N: usize> Text<N> {
    /// Stores as much of `text` as fits.
    pub fn set(&self, text: &[u8]) {
        for (i, cell) in self.0.iter().enumerate() {
            cell.store(text.get(i).copied().unwrap_or(0), Relaxed);
        }
    }
    /// Whether nothing was stored.
    pub fn is_empty(&self) -> bool {
        self.0.first().is_none_or(|cell| cell.load(Relaxed) == 0)
    }
    /// Copies the text into `out` and returns its length in bytes.
    pub fn copy_to(&self, out: &mut [u8]) -> usize {
        let mut n = 0;
        while n < N && n < out.len() {
            let b = self.0[n].load(Relaxed);
            if b == 0 {
                break;
            }
            out[n] = b;
            n += 1;
        }
        n
    }
}

/// The most kinds of transitions of a policy.
pub const TRANSITIONS_MAX: usize = 16;

/// The counts of transitions between the policy's queues, since the policy was set. The page daemon updates them, once per batch.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Transitions {
    /// The policy, by its place in the table of policies plus one; 0: none yet.
    of: AtomicU64,
    counts: [Counter; TRANSITIONS_MAX],
}

impl Transitions {
    /// Stores the counts of `policy`, in the order of its names. While the policy changes, a reader may see counts of both.
    pub fn show(&self, policy: &Spec, counts: impl Iterator<Item = u64>) {
        self.of.store(policy.row() as u64 + 1, Relaxed);
        self.counts.iter().zip(counts).for_each(|(cell, count)| cell.set(count));
    }
    /// Calls `each` with the name of each transition and its count.
    pub fn for_each(&self, mut each: impl FnMut(&'static str, u64)) {
        let row = (self.of.load(Relaxed) as usize).checked_sub(1).and_then(|row| TABLE.get(row));
        let names = row.map_or(&[][..], |info| info.transitions);
        names.iter().zip(&self.counts).for_each(|(name, count)| each(name, count.get()));
    }
}

/// What became of the pages of a policy. All in pages; the first two are numbers of now, the others count from the beginning, also
/// when the policy is changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PolicyCounts {
    /// In memory, except for wired pages.
    pub resident: u64,
    /// What the policy may have while others want more: its share of the budget.
    pub share: u64,
    /// Taken, to be made inactive or watched.
    pub victims: u64,
    /// Touched after that, in time to stay.
    pub rescued: u64,
    /// Evicted.
    pub evicted: u64,
    /// Read again while a thread waited, after their eviction.
    pub refaults: u64,
}

impl PolicyCounts {
    /// Each figure and its name.
    pub fn each(&self) -> [(&'static str, u64); 6] {
        let PolicyCounts { resident, share, victims, rescued, evicted, refaults } = *self;
        [
            ("resident", resident),
            ("share", share),
            ("victims", victims),
            ("rescued", rescued),
            ("evicted", evicted),
            ("refaults", refaults),
        ]
    }
}

/// How many policies the block has room for: the pager's, and those of regions that have one of their own.
pub const POLICIES_SHOWN: usize = 32;

/// A policy at work. The page daemon updates the counts, once per batch.
#[derive(Debug, Default)]
#[repr(C)]
pub struct PolicyRow {
    /// As it is set. Empty: there is none. (The pager's own is [`Status::policy`].)
    pub policy: Text<64>,
    /// Which region has it: the name of its file, or its size and place.
    pub region: Text<128>,
    counts: [Counter; 6],
}

impl PolicyRow {
    /// Stores what became of its pages.
    pub fn show(&self, counts: &PolicyCounts) {
        self.counts.iter().zip(counts.each()).for_each(|(cell, (_, count))| cell.set(count));
    }
    /// Each figure and its name.
    pub fn counts(&self) -> [(&'static str, u64); 6] {
        let mut counts = PolicyCounts::default().each();
        counts.iter_mut().zip(&self.counts).for_each(|((_, count), cell)| *count = cell.get());
        counts
    }
}

/// How a pager's program fared. Stored in [`Status::outcome`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Outcome {
    /// No pager has started in the program yet, or none could.
    NotStarted = 0,
    /// The pager serves.
    Running = 1,
    /// The pager could not start; `message` says why. The program did not run.
    StartFailed = 2,
    /// The pager had to stop the program; `message` says why.
    Stopped = 3,
    /// The pager has ended, because the program has confined itself; `message` says how. The program goes on without paging.
    Left = 4,
}

impl Outcome {
    /// The inverse of `as u32`.
    pub fn from_u32(n: u32) -> Option<Self> {
        Some(match n {
            0 => Outcome::NotStarted,
            1 => Outcome::Running,
            2 => Outcome::StartFailed,
            3 => Outcome::Stopped,
            4 => Outcome::Left,
            _ => return None,
        })
    }
}

/// The block.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Status {
    /// [`STATUS_MAGIC`].
    pub magic: AtomicU64,
    /// `size_of::<Status>()` of the writer, in bytes.
    pub size: AtomicU64,
    /// Process id of the program the block is meant for. `overspill run` sets it before the program starts; an agent with
    /// another id makes a block of its own.
    pub pid: AtomicU32,
    /// An [`Outcome`].
    pub outcome: AtomicU32,
    /// Set by `overspill run` when the program has ended and the supervisor is about to exit of its own accord.
    pub supervisor_done: AtomicU32,
    /// Keeps the next field aligned.
    pub reserved: AtomicU32,
    /// CLOCK_MONOTONIC at the pager's start, in nanoseconds.
    pub start_ns: AtomicU64,
    /// The clock of [`Status::locks`] at the same moment, in ticks.
    pub start_ticks: AtomicU64,
    /// Replacement policy.
    pub policy: Text<64>,
    /// `io_uring` or `psync`.
    pub engine: Text<32>,
    /// Names of the swap devices, for users.
    pub swap: Text<256>,
    /// One message, for [`Outcome::StartFailed`] and [`Outcome::Stopped`].
    pub message: Text<512>,
    /// A message about the first page that was lost: where it was, and why.
    pub loss: Text<512>,
    /// The counters.
    pub counters: Counters,
    /// The policy's transitions.
    pub transitions: Transitions,
    /// The policies, by number. The first is the pager's.
    pub policies: [PolicyRow; POLICIES_SHOWN],
    /// Hold times of locks.
    pub locks: Locks,
}

/// The locks whose hold times are measured.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Locks {
    /// The lock of the address space, held shared: the time of each reader.
    pub map_shared: HoldTimes,
    /// The same lock, held exclusively.
    pub map_exclusive: HoldTimes,
    /// The core's lock.
    pub core: HoldTimes,
}

impl Locks {
    /// Each lock with its name.
    pub fn each(&self) -> [(&'static str, &HoldTimes); 3] {
        [("map_shared", &self.map_shared), ("map_exclusive", &self.map_exclusive), ("core", &self.core)]
    }
}

impl Status {
    /// Whether this is a block of this layout.
    pub fn is_valid(&self) -> bool {
        self.magic.load(Relaxed) == STATUS_MAGIC && self.size.load(Relaxed) == size_of::<Status>() as u64
    }
    /// Marks a zeroed block as valid and addressed to process `pid`.
    pub fn init(&self, pid: u32) {
        self.size.store(size_of::<Status>() as u64, Relaxed);
        self.pid.store(pid, Relaxed);
        self.magic.store(STATUS_MAGIC, Relaxed);
    }
    /// Records the pager's start by both clocks.
    pub fn start(&self, ns: u64, ticks: u64) {
        self.start_ticks.store(ticks, Relaxed);
        self.start_ns.store(ns, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_not_overrun() {
        let t = Text::<4>::default();
        t.set(b"abcdef");
        let mut out = [0; 8];
        assert_eq!(t.copy_to(&mut out), 4);
        assert_eq!(&out[..4], b"abcd");
        t.set(b"x");
        assert_eq!(t.copy_to(&mut out), 1);
    }

    #[test]
    fn transitions_have_the_names_of_their_policy() {
        let shown = Transitions::default();
        shown.for_each(|name, _| panic!("{name}, and there is no policy yet"));
        for info in TABLE {
            let mut seen = Vec::new();
            shown.show(&Spec::named(info.name).expect("it is in the table"), 7..);
            shown.for_each(|name, count| seen.push((name, count)));
            assert!(seen.iter().copied().eq(info.transitions.iter().copied().zip(7..)), "{}: {seen:?}", info.name);
        }
    }

    #[test]
    fn a_zeroed_block_is_not_valid() {
        let s = Status::default();
        assert!(!s.is_valid());
        s.init(7);
        assert!(s.is_valid());
        assert_eq!(Outcome::from_u32(s.outcome.load(Relaxed)), Some(Outcome::NotStarted));
    }
}

//! What a run is made of, and what comes out of it.

use overspill_vm::policy::Spec;
use std::fmt;

/// Which pager stands below the core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PagerKind {
    /// [`crate::ModelPager`]: ordered maps.
    Model,
    /// `overspill_swap::SwapPager`, the real one.
    Swap,
}

/// Which device faults are injected, in thousandths of the operations (or pages). See the head of `device.rs`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// Reads that fail with EIO.
    pub read_error: u32,
    /// Writes that fail with EIO.
    pub write_error: u32,
    /// Reads and writes that do only a part; the machine does the rest.
    pub short: u32,
    /// Pages that come back other than they were written: flipped on the way, or on the device, or never written at all.
    pub corrupt: u32,
    /// Writes answered with ENOSPC.
    pub no_space: u32,
    /// Assignments refused because the pager has no metadata left.
    pub no_metadata: u32,
}

impl Faults {
    /// A device without fault.
    pub const NONE: Faults = Faults { read_error: 0, write_error: 0, short: 0, corrupt: 0, no_space: 0, no_metadata: 0 };
    /// Every fault there is, each now and then.
    pub const ALL: Faults = Faults { read_error: 10, write_error: 50, short: 100, corrupt: 5, no_space: 30, no_metadata: 10 };
}

/// A deliberate mistake, to show that the checkers notice. `None` in earnest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Bug {
    /// No mistake.
    #[default]
    None,
    /// The machine drops the parked copy before the refill has succeeded.
    DropBeforeRefill,
    /// The machine does not compare what it read with what was written.
    NoHashCheck,
    /// The machine writes what the frame holds when the write ends, not what it held when the page was looked at.
    WriteLate,
    /// The machine maps a page that was released while it was being read.
    MapDoomed,
    /// The machine forgets now and then to wake the threads that wait for a page.
    LoseWake,
    /// On a discard the machine drops parked copies but leaves resident pages.
    KeepResident,
    /// The machine gives frames back before their parked content is gone, and so holds more than it has accounted for.
    FreeBeforeDrop,
    /// The machine takes frames above the budget as soon as there is none.
    Overcommit,
    /// The pager hands out a slot that is in use.
    SlotTwice,
    /// The pager forgets to take slots back.
    LeakSlot,
    /// The parent's pager does not freeze its slots at a fork.
    ForkNotFrozen,
    /// The machine answers "done" for a write that failed.
    IgnoreWriteError,
    /// The pager lets a device go while reads from it or writes to it are under way.
    CloseEarly,
    /// The machine does not compare what it has read for a swapoff with what was written.
    MoveUnchecked,
    /// The machine answers "done" for a failed write of a swapoff.
    MoveWriteError,
    /// The machine leaves out the pages that need not be moved when it reports which slot a page went to.
    MoveShifted,
    /// The machine answers "done" for a failed write of a page that was to go on from compressed memory.
    WriteBackError,
    /// The machine stores a page that was to go on from compressed memory where it was written to, whatever has become of it
    /// meanwhile.
    WriteBackBlind,
    /// Compressed memory is not told now and then that a slot was given up.
    SlotNotFreed,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Everything that is chosen is chosen from this.
    pub seed: u64,
    /// How many steps of actors.
    pub steps: u64,
    /// The budget in pages; may be below the core's minimum (it is set afterwards, as after a fork).
    pub memory_pages: u32,
    /// Pages of the program, over two objects (an odd one is left out).
    pub pages: usize,
    /// Slots of each device.
    pub slots: u32,
    /// Memory that a compressed device may take, in pages; 0: there is none.
    pub pool_pages: u32,
    /// Replacement policy.
    pub policy: Spec,
    /// Program threads per process.
    pub threads: usize,
    /// Page daemons per process.
    pub daemons: usize,
    /// The most pages read or filled by one fault.
    pub ahead_pages_max: u32,
    /// Steps that an operation may take, at most; 0: the seed chooses.
    pub latency_steps: u64,
    /// Device faults.
    pub faults: Faults,
    /// Thousandths of fills, restores and parks that the kernel refuses for now (EAGAIN, pinned).
    pub refuse: u32,
    /// Thousandths of thread operations that change the address space (discard, unmap, remap, adopt).
    pub events: u32,
    /// Thousandths of thread operations that wire or unwire.
    pub wires: u32,
    /// The most processes that live at a time; 1: no fork.
    pub processes_max: usize,
    /// Thousandths of accesses that write.
    pub writes: u32,
    /// Swapons and swapoffs, in thousandths of the steps of control; those under way go on by themselves.
    pub swaps: u32,
    /// Devices die now and then: from then on no write to them succeeds.
    pub deaths: bool,
    /// Change the budget now and then.
    pub limits: bool,
    /// Change the replacement policy now and then, to any there is.
    pub switches: bool,
    /// A deliberate mistake.
    pub bug: Bug,
    /// Switch the slot account off (see [`Bug`]).
    pub slot_book_silent: bool,
}

impl Scenario {
    /// A fault-free run of middling size: the base that the others vary.
    pub fn new(seed: u64) -> Self {
        Scenario {
            seed,
            steps: 12_000,
            memory_pages: 160,
            pages: 500,
            slots: 2_000,
            pool_pages: 0,
            policy: Spec::default(),
            threads: 4,
            daemons: 1,
            ahead_pages_max: 32,
            latency_steps: 0,
            faults: Faults::NONE,
            refuse: 0,
            events: 0,
            wires: 0,
            processes_max: 1,
            writes: 400,
            swaps: 0,
            deaths: false,
            limits: false,
            switches: false,
            bug: Bug::None,
            slot_book_silent: false,
        }
    }
}

/// What a run did, so that a test can see that it did anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub struct Report {
    pub steps: u64,
    pub accesses: u64,
    pub soft_faults: u64,
    pub hard_faults: u64,
    pub busy_faults: u64,
    pub page_outs: u64,
    pub reclaimed_clean: u64,
    pub reclaimed_zero: u64,
    pub readahead: u64,
    pub over_budget: u64,
    pub lost_pages: u64,
    pub write_errors: u64,
    pub refused: u64,
    pub out_of_batch: u64,
    pub discards: u64,
    pub unmaps: u64,
    pub remaps: u64,
    pub adopted: u64,
    pub doomed_reads: u64,
    pub forks: u64,
    pub switches: u64,
    pub checks: u64,
    pub swapons: u64,
    pub swapoffs: u64,
    pub swapoffs_refused: u64,
    pub swapoffs_cancelled: u64,
    pub moved: u64,
    pub moves_void: u64,
    pub brought_in: u64,
    pub failed_devices: u64,
    pub packed: u64,
    pub pool_refused: u64,
    pub pool_full: u64,
    pub pools_off: u64,
    pub moved_into_pool: u64,
    pub written_back: u64,
    pub write_backs_void: u64,
}

impl Report {
    /// Adds another run's numbers.
    pub fn add(&mut self, other: &Report) {
        macro_rules! sum { ($($f:ident)*) => { $(self.$f += other.$f;)* } }
        sum!(steps accesses soft_faults hard_faults busy_faults page_outs reclaimed_clean reclaimed_zero readahead over_budget
            lost_pages write_errors refused out_of_batch discards unmaps remaps adopted doomed_reads forks switches checks
            swapons swapoffs swapoffs_refused swapoffs_cancelled moved moves_void brought_in failed_devices
            packed pool_refused pool_full pools_off moved_into_pool written_back write_backs_void);
    }
}

/// A property that did not hold.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed that shows it again.
    pub seed: u64,
    /// At which step.
    pub step: u64,
    /// Which property, and how.
    pub what: String,
    /// The last events.
    pub log: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.log)?;
        writeln!(f, "seed {} failed at step {}: {}", self.seed, self.step, self.what)?;
        write!(f, "replay: OVERSPILL_SEED={} cargo test -p overspill-sim --test seeds -- --nocapture", self.seed)
    }
}

impl std::error::Error for Failure {}

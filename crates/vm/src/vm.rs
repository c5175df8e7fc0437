//! The core: fault decisions, the page daemon's scan, and what becomes of each page.
//!
//! ```text
//!  fault(page)            page is                  answer                       then the machine calls
//!  ------------------------------------------------------------------------------------------------------
//!                         Active                   Mapped                       -
//!                         busy                     Busy (a wake will come)      -
//!                         Inactive, Clean          Restore                      restore_done
//!                         Untouched                ZeroFill run                 fill_done, each page
//!                         PagedOut                 PageIn cluster               page_in_arrived, page_in_done
//!                         Lost                     Lost                         -
//!                         no frame is free         NoMemory                     reclaim, then fault again
//!                         no table for the page    TableFull                    -
//!
//!  the page daemon, while frames are short (see `demand`)
//!     park_batch      Active  -> busy       machine unmaps      park_done      -> Inactive, on the trial queue
//!     launder_batch   Inactive + laundering machine hashes      launder_look   -> dropped | Clean | to be written
//!                                           machine writes      launder_done   -> Clean, on the clean queue
//!     reclaim_batch   Clean -> PagedOut     machine drops       frames_dropped -> free
//! ```
//!
//! Invariants: `used` = frames of pages that have one + frames on their way to being dropped; a frame is on one queue at most;
//! `laundering` = pages whose word has the flag; a page is on the policy's lists exactly if it is Active, not busy and not wired.
//!
//! Locks: none in here. The machine holds one lock around each call; no call waits, allocates, or costs more than its batch.

use crate::counters::Counters;
use crate::page::{PageWord, State};
use crate::page_queue::{ListId, Lists};
use crate::page_table::PageTable;
use crate::pager::{IoResult, Location, Pager, SlotRun};
use crate::pointers::{Follow, Pointers};
use crate::policy::{self, Admit, LivePolicy, Spec};
use crate::status::{TRANSITIONS_MAX, Transitions};
use crate::stream::{Direction, StreamRef, Streams};
use crate::types::{ContentHash, FrameId, ObjectId, PAGE_SIZE, PageId, PageIndex, Slot};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

mod swapoff;
mod write_back;

pub use crate::page_table::OBJECT_PAGES_MAX;
pub use swapoff::{MoveRun, Swapoff, SwapoffRefusal, SwapoffStep};

/// The longest cluster, in pages.
pub const CLUSTER_PAGES_MAX: usize = 128;
/// A read goes on over so many pages that are in memory already, in pages. (At a quarter in memory, at random, a scan would
/// otherwise read four pages at a time.)
const HOLE_PAGES_MAX: u32 = 8;
/// The least budget: below it the clusters of two faulting threads and the daemon's batch would be most of the memory.
pub const MEMORY_BYTES_MIN: u64 = 8 << 20;
/// Frames above the budget that there are entries for: one cluster per faulting thread, and pages adopted all at once.
const FRAMES_SLACK: usize = 8192;

/// Frames looked at for a stored copy to be given up when swap is full, in frames: a few microseconds.
const COPIES_SCAN_MAX: u32 = 1024;

/// How a pager is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// The budget in pages.
    pub memory_pages: u32,
    /// How many pages may be managed, in pages, as long as 2 MiB (aligned) of which any page is touched have 64 touched on average.
    /// If they lie thinner it is fewer, if thicker more.
    pub pages_max: u64,
    /// How many objects there may be.
    pub objects_max: u16,
    /// How far an object may reach, in pages: [`OBJECT_PAGES_MAX`] at most. Costs address space: 2 bytes for each MiB.
    pub object_pages: PageIndex,
    /// Replacement policy.
    pub policy: Spec,
    /// The most pages read by one fault, in pages; 1 turns readahead off.
    pub readahead_pages_max: u32,
    /// The most pages filled by one first touch, in pages; 1 turns it off.
    pub zero_ahead_pages_max: u32,
    /// Decisions to be remembered for a comparison of machines; 0 in production.
    pub decisions_max: usize,
}

impl Config {
    /// The defaults for a budget of `memory_pages` pages over at most `pages_max` pages.
    ///
    /// Windows shrink with the budget, as [`Config::cluster_pages`] says.
    pub fn new(memory_pages: u32, pages_max: u64) -> Self {
        let ahead = Config::cluster_pages(memory_pages);
        Config {
            memory_pages,
            pages_max,
            objects_max: 1,
            object_pages: OBJECT_PAGES_MAX,
            policy: Spec::default(),
            readahead_pages_max: ahead,
            zero_ahead_pages_max: ahead.min(32),
            decisions_max: 0,
        }
    }

    /// The longest cluster for a budget of `memory_pages` pages, in pages: 64, of a budget under 128 MiB a 512th, but 8 pages where
    /// that is at most a 64th of it.
    ///
    /// Every buffer is memory that the program does not get, and a program whose working set nearly fits pays for each page of it:
    /// with a sixty-fourth (and as much of free frames) GNU sort at 58 of 115 MiB had twice the hard faults, at 20 of 38 MiB four
    /// times.
    pub fn cluster_pages(memory_pages: u32) -> u32 {
        (memory_pages / 512).clamp(8, 64).min(memory_pages / 64).max(1)
    }
}

/// Why a [`Vm`] could not be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConfigError {
    /// The budget is under [`MEMORY_BYTES_MIN`].
    BudgetTooSmall,
}

impl core::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ConfigError::BudgetTooSmall => write!(f, "the memory budget is below the minimum of {} MiB", MEMORY_BYTES_MIN >> 20),
        }
    }
}

impl core::error::Error for ConfigError {}

/// The answer to a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The core believes it is mapped. The machine must try to fill it with zeroes and take "it exists" for good: if the kernel
    /// has dropped the page behind the pager's back (it may, after a discard), this is what brings it back.
    Mapped,
    /// Something is under way; the page is woken when it ends.
    Busy,
    /// Map the parked page back. `ahead`: it was a marker, so read on.
    Restore {
        /// Its frame.
        frame: FrameId,
        /// The next window of the reader's stream.
        ahead: Option<PageIn>,
    },
    /// Map empty pages, `count` of them from `first` on, the faulted page among them. All are busy now.
    ZeroFill {
        /// The first of them.
        first: PageId,
        /// In pages, at least 1.
        count: u32,
    },
    /// Read these pages. All are busy now.
    PageIn(PageIn),
    /// No frame is free. Help the page daemon or wait for it, then fault again.
    NoMemory,
    /// The page could not be read back earlier.
    Lost,
    /// The page table has no room for it, and will have none before much is released.
    TableFull,
}

/// A cluster to be read: pages contiguous in the object and on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageIn {
    /// The first page.
    pub first: PageId,
    /// Its slot; page `first + i` is in slot `slot + i`.
    pub slot: Slot,
    /// Where the bytes of that slot are. The others follow them in one piece.
    pub location: Location,
    /// What a read of one page must bring. (A longer one asks when it has arrived: [`Vm::expected`].)
    pub expected: ContentHash,
    /// In pages, 1 to [`CLUSTER_PAGES_MAX`].
    pub count: u32,
    /// Bit `i`: page `i` is wanted. The others lie between, are in memory already, and are read only because one read over them is
    /// cheaper than two around them. Bit 0 and bit `count - 1` are set.
    pub wanted: u128,
    /// The page nearest to the reader was touched (else the whole cluster is readahead).
    touched: bool,
    /// Which way the reader goes.
    direction: Direction,
    /// The touch that asked for it was a write, as far as is known.
    written: bool,
    /// A page of it may be left parked as the marker of its window.
    marks: bool,
    /// Nobody asked for its pages (their device leaves, or one of them is a sample): they are left parked.
    parks: bool,
    /// It ended before its window did, so there may be [`Vm::read_more`].
    has_rest: bool,
    /// Tells it from all others in flight.
    read: u32,
    stream: Option<StreamRef>,
}

impl PageIn {
    /// Whether [`Vm::read_more`] may have an answer.
    pub fn has_rest(&self) -> bool {
        self.has_rest
    }
    /// Page `i` of the cluster.
    #[inline]
    pub fn page(&self, i: u32) -> PageId {
        self.first.offset(i as u64)
    }
    /// Where the bytes of page `i` are.
    #[inline]
    pub fn location_of(&self, i: u32) -> Location {
        self.location.plus(i)
    }
    /// The same, asked for by a write (or a read).
    pub fn asked_for_by(self, write: bool) -> Self {
        PageIn { written: write, ..self }
    }
    /// Whether it is part of what somebody reads in order: what its pages point to may be wanted next. (Somebody who writes in
    /// order writes over whatever they point to.)
    pub fn is_read_in_order(&self) -> bool {
        self.stream.is_some() && !self.written
    }
    /// The `n`th page on the reader's way.
    #[inline]
    fn nth(&self, n: u32) -> u32 {
        match self.direction {
            Direction::Up => n,
            Direction::Down => self.count - 1 - n,
        }
    }
    /// Which page was touched, if any was.
    #[inline]
    pub fn touched(&self) -> Option<u32> {
        self.touched.then(|| self.nth(0))
    }
    /// Whether page `i` is wanted.
    #[inline]
    pub fn wants(&self, i: u32) -> bool {
        self.wanted >> i & 1 == 1
    }
}

/// What a pointer to a page leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Followed {
    /// Nothing: the page is where it should be, or pointers are not worth following.
    Nothing,
    /// No frame is free: to be tried again later, if ever.
    NoMemory,
    /// Read the page.
    Read(PageIn),
    /// Map the parked page again, then [`Vm::restore_done`].
    Restore(FrameId),
}

/// Where a page that has been read goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Map it.
    Map,
    /// Leave it parked in this frame: its touch asks for the next readahead.
    Park(FrameId),
    /// It was released meanwhile, or is not wanted: throw it away. (Already accounted for; no `page_in_done`.)
    Discard,
    /// It could not be read: poison it. (Already accounted for; no `page_in_done`.)
    Lost,
}

/// What became of a page on its way into memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filled {
    /// It is mapped (or was found mapped).
    Mapped,
    /// It is parked, as asked.
    Parked,
    /// It was not possible now; the page is as before and will be faulted again.
    No,
}

/// What became of a page that was to be unmapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parked {
    /// It is parked.
    Yes,
    /// The kernel holds it (pinned, locked, not writable): it stays mapped.
    Refused,
    /// There was no page: the program had discarded it.
    Absent,
}

/// What to do with a page whose parked content was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// All zeroes: the page is untouched again; drop the parked copy, then [`Vm::frames_dropped`].
    Drop(FrameId),
    /// Nothing to do: unchanged since it was stored, or no longer parked.
    Settled,
    /// Write it, then [`Vm::launder_done`].
    Write,
}

/// A page and the frame it has.
pub type Member = (PageId, FrameId);

/// A parked page to be looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Laundry {
    /// The page.
    pub page: PageId,
    /// The frame that it has.
    pub frame: FrameId,
    /// What is stored of it, if anything is.
    pub stored: Option<ContentHash>,
    /// That is on a device which is memory.
    pub in_memory: bool,
}

/// Neighbouring slots for pages that are to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageOut {
    /// The first slot.
    pub first: Slot,
    /// Where its bytes are. The others follow them in one piece.
    pub location: Location,
    /// In slots, at least 1.
    pub count: u32,
}

impl PageOut {
    /// Slot `i` of them.
    pub fn slot(&self, i: u32) -> Slot {
        Slot(self.first.0 + i)
    }
}

/// What the page daemon should do now, in pages. All zero: nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Demand {
    /// Clean pages to be reclaimed.
    pub reclaim: u32,
    /// Parked pages to be looked at and written.
    pub launder: u32,
    /// Mapped pages to be put on trial.
    pub park: u32,
}

impl Demand {
    /// Whether there is nothing to do.
    pub fn is_none(&self) -> bool {
        *self == Demand::default()
    }
}

/// One remembered decision, for tests that run two machines side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Decision {
    Mapped(PageId),
    Restore(PageId),
    ZeroFill(PageId, u32),
    PageIn(PageId, u32),
    Park(PageId),
    Clean(PageId),
    DropZero(PageId),
    Write(PageId),
    Reclaim(PageId),
    Release(PageId),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum On {
    Nothing = 0,
    Trial,
    Laundry,
    Clean,
}

const TRIAL: ListId = 0;
const LAUNDRY: ListId = 1;
const CLEAN: ListId = 2;

impl On {
    const fn queue(self) -> Option<ListId> {
        match self {
            On::Nothing => None,
            On::Trial => Some(TRIAL),
            On::Laundry => Some(LAUNDRY),
            On::Clean => Some(CLEAN),
        }
    }
}

#[derive(Clone)]
struct Frames {
    page: Vec<PageId>,
    on: Vec<On>,
    /// The queues that they are on. The idle words of a frame that is on none:
    /// - free: the next free frame plus one, 0
    /// - being read into: `READ`, `EVICTED`
    /// - else: 0, 0
    queues: Lists<3>,
    free: u32,
    fresh: u32,
}

/// Which read the frame was taken for: tells a page that is being read from one that was released, and perhaps reused, since.
const READ: usize = 0;
/// When its page was evicted, by the count of evictions; 0: not known.
const EVICTED: usize = 1;

impl Frames {
    fn take(&mut self, page: PageId) -> Option<FrameId> {
        let n = match self.free.checked_sub(1) {
            Some(n) => {
                self.free = core::mem::take(self.queues.idle_words(n))[0];
                n
            }
            None if (self.fresh as usize) < self.page.len() => {
                self.fresh += 1;
                self.fresh - 1
            }
            None => return None,
        };
        self.page[n as usize] = page;
        Some(FrameId(n))
    }
    /// What was read has arrived. => when its page was evicted
    fn end_read(&mut self, frame: FrameId) -> u32 {
        core::mem::take(self.queues.idle_words(frame.0))[EVICTED]
    }
    fn give(&mut self, frame: FrameId) {
        assert_eq!(self.on[frame.at()], On::Nothing);
        *self.queues.idle_words(frame.0) = [self.free, 0];
        self.free = frame.0 + 1;
    }
}

/// The core. See the module.
pub struct Vm<P: Pager> {
    config: Config,
    counters: &'static Counters,
    table: PageTable,
    frames: Frames,
    policy: Box<dyn LivePolicy>,
    pager: P,
    reads: Streams,
    zeroes: Streams,
    pointers: Pointers,
    limit: u32,
    /// What the process has been given: the limit, but while it aims at less.
    promised: u32,
    /// More listed pages than this are parked even if frames are free.
    mapped_max: u32,
    used: u32,
    charged: u32,
    reserved: u64,
    laundering: u32,
    reading: u32,
    /// Runs that are on their way from one device to another.
    moving: u32,
    /// Pages of batches that are to be unmapped.
    parking: u32,
    /// Number of the last read.
    read: u32,
    /// Pages on the policy's lists.
    listed: u32,
    /// Evictions so far, wrapping; never 0 after the first, which stands for "not known" in a page's word.
    evictions: u32,
    space_short: bool,
    /// Where the search for copies to be given up goes on.
    copies_at: u32,
    /// What the policy had counted when this process began, if that was by a fork.
    inherited: [u64; TRANSITIONS_MAX],
    decisions: Vec<Decision>,
}

impl<P: Pager> Vm<P> {
    /// Sets up. All allocation happens here; tables are zeroed, so what is not used is not resident.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn new(config: Config, pager: P, counters: &'static Counters) -> Result<Self, ConfigError> {
        if (config.memory_pages as u64) * (PAGE_SIZE as u64) < MEMORY_BYTES_MIN {
            return Err(ConfigError::BudgetTooSmall);
        }
        let frames = config.memory_pages as usize + FRAMES_SLACK;
        let policy = policy::live::make(&config.policy, config.memory_pages, frames);
        let vm = Vm {
            counters,
            table: PageTable::new(config.objects_max, config.object_pages, config.pages_max),
            frames: Frames {
                page: vec![PageId::from_raw(0); frames],
                on: vec![On::Nothing; frames],
                queues: Lists::new(frames),
                free: 0,
                fresh: 0,
            },
            policy,
            pager,
            reads: Streams::new(8, config.readahead_pages_max.min(CLUSTER_PAGES_MAX as u32)),
            zeroes: Streams::new(4, config.zero_ahead_pages_max),
            pointers: Pointers::default(),
            limit: config.memory_pages,
            promised: config.memory_pages,
            mapped_max: u32::MAX,
            used: 0,
            charged: 0,
            reserved: 0,
            laundering: 0,
            reading: 0,
            moving: 0,
            parking: 0,
            read: 0,
            listed: 0,
            evictions: 0,
            space_short: false,
            copies_at: 0,
            inherited: [0; TRANSITIONS_MAX],
            decisions: Vec::with_capacity(config.decisions_max),
            config,
        };
        vm.counters.memory_limit_bytes.set(vm.limit as u64 * PAGE_SIZE as u64);
        vm.note_usage();
        Ok(vm)
    }

    /// A copy of everything, as a fork makes one of a process's memory; it counts in `counters` from now on. Allocates: for
    /// simulated machines and tests. => no page is busy, none is being laundered
    pub fn fork(&self, counters: &'static Counters) -> Self
    where
        P: Clone,
    {
        assert_eq!(self.laundering, 0, "forked while pages are being laundered");
        let mut child = Vm {
            config: self.config.clone(),
            counters,
            table: self.table.clone(),
            frames: self.frames.clone(),
            policy: self.policy.clone_box(),
            pager: self.pager.clone(),
            reads: self.reads.clone(),
            zeroes: self.zeroes.clone(),
            pointers: self.pointers.clone(),
            limit: self.limit,
            promised: self.promised,
            mapped_max: self.mapped_max,
            used: self.used,
            charged: self.charged,
            reserved: self.reserved,
            laundering: self.laundering,
            reading: self.reading,
            moving: self.moving,
            parking: self.parking,
            read: self.read,
            listed: self.listed,
            evictions: self.evictions,
            space_short: self.space_short,
            copies_at: self.copies_at,
            inherited: self.inherited,
            decisions: Vec::new(),
        };
        child.count_afresh();
        child
    }

    // ---- budget ----

    /// The budget, in pages.
    pub fn limit(&self) -> u32 {
        self.limit
    }
    /// What the process has been given: [`Vm::limit`], but while it works towards less. In pages.
    pub fn promised(&self) -> u32 {
        self.promised
    }
    /// Changes the budget (processes that came from each other by fork share one). In pages.
    pub fn set_limit(&mut self, pages: u32) {
        self.promised = pages.min(self.config.memory_pages);
        self.counters.memory_limit_bytes.set(self.promised as u64 * PAGE_SIZE as u64);
        self.set_aim(pages);
    }
    /// Works towards `pages` until the next [`Vm::set_limit`], without promising it: before a fork shares the budget out the
    /// process has all of it, and what faults take above the aim is not over budget.
    pub fn set_aim(&mut self, pages: u32) {
        self.limit = pages.min(self.promised);
        self.policy.resize(self.limit);
    }
    /// At most so many pages stay mapped, but for the moment that the page daemon needs (`u32::MAX`: as many as there are): what is
    /// mapped is not seen, so this says how fine a recording is. In pages.
    pub fn set_mapped_max(&mut self, pages: u32) {
        self.mapped_max = pages;
    }
    /// Pages charged to the budget: frames, copies held by I/O, address space left to the kernel.
    pub fn charge_total(&self) -> u64 {
        self.used as u64 + self.charged as u64 + self.reserved
    }
    /// Frames in use, in pages.
    pub fn used(&self) -> u32 {
        self.used
    }
    /// How many pages may still be charged.
    pub fn available(&self) -> u32 {
        (self.limit as u64).saturating_sub(self.charge_total()) as u32
    }
    /// Whether there is an entry for one frame more, within the budget or above it.
    pub fn has_frame(&self) -> bool {
        self.frames.free != 0 || (self.frames.fresh as usize) < self.frames.page.len()
    }
    /// Charges `pages` of the machine's own (buffers, parked copies that outlive their page).
    pub fn charge(&mut self, pages: u32) {
        self.charged += pages;
        self.note_usage();
    }
    /// The inverse of [`Vm::charge`].
    pub fn uncharge(&mut self, pages: u32) {
        self.charged = self.charged.checked_sub(pages).expect("uncharged more than was charged");
        self.note_usage();
    }
    /// Pages of address space that are left to the kernel and charged in full.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }
    /// Sets [`Vm::reserved`].
    pub fn set_reserved(&mut self, pages: u64) {
        self.reserved = pages;
        self.counters.memory_native_bytes.set(pages * PAGE_SIZE as u64);
        self.note_usage();
    }
    /// Below this many available pages the daemon starts.
    pub fn free_low(&self) -> u32 {
        (self.limit / 256).clamp(32, 2048)
    }
    /// Up to this many it works.
    pub fn free_high(&self) -> u32 {
        self.free_low() * 2
    }
    fn note_usage(&self) {
        let bytes = self.charge_total() * PAGE_SIZE as u64;
        self.counters.memory_used_bytes.set(bytes);
        self.counters.memory_peak_bytes.raise(bytes);
    }
    /// Bytes of the core's and the pager's tables; also sets the counter.
    pub fn metadata_bytes(&self) -> u64 {
        let per_frame = 8 + 1 + 8 + self.policy.frame_bytes();
        let bytes = self.table.bytes() + self.frames.fresh as u64 * per_frame + self.pager.metadata_bytes();
        self.counters.metadata_bytes.set(bytes);
        bytes
    }

    // ---- looking ----

    /// The state word of a page.
    pub fn page(&self, page: PageId) -> PageWord {
        self.table.get(page)
    }
    /// The first page at or after `page` and before `end` that is not untouched.
    pub fn next_present(&self, page: PageId, end: PageIndex) -> Option<PageId> {
        self.table.next_present(page, end)
    }
    /// The pager, to look at.
    pub fn pager(&self) -> &P {
        &self.pager
    }
    /// Its devices.
    pub fn devices(&self) -> &P::Devices {
        self.pager.devices()
    }
    /// Its devices, for what the machine does with them by itself.
    pub fn devices_mut(&mut self) -> &mut P::Devices {
        self.pager.devices_mut()
    }
    /// The counters.
    pub fn counters(&self) -> &'static Counters {
        self.counters
    }
    /// The policy and its parameters.
    pub fn policy(&self) -> Spec {
        self.policy.spec()
    }
    /// Copies how often pages went from queue to queue of the policy to where others see it. Costs a dozen stores.
    pub fn show_transitions(&self, to: &Transitions) {
        let counts = self.policy.transition_counts().iter().zip(&self.inherited);
        to.show(&self.policy.spec(), counts.map(|(count, before)| count - before));
    }
    /// In a fork's child: what the parent's policy has counted is not its own.
    pub fn count_afresh(&mut self) {
        self.inherited = [0; TRANSITIONS_MAX];
        self.inherited.iter_mut().zip(self.policy.transition_counts()).for_each(|(before, count)| *before = *count);
    }
    /// The remembered decisions.
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }
    /// Pages on trial, being laundered, and clean.
    pub fn queue_lengths(&self) -> (u32, u32, u32) {
        (self.frames.queues.len(TRIAL), self.frames.queues.len(LAUNDRY), self.frames.queues.len(CLEAN))
    }
    #[inline]
    fn decide(&mut self, d: Decision) {
        if self.decisions.len() < self.decisions.capacity() {
            self.decisions.push(d);
        }
    }

    // ---- frames and queues ----

    fn take_frame(&mut self, page: PageId) -> Option<FrameId> {
        let frame = self.frames.take(page)?;
        self.used += 1;
        Some(frame)
    }
    /// A frame that `page`, evicted at `evicted_at` (0: that does not count), is read into by the read number `self.read`.
    fn take_frame_to_read(&mut self, page: PageId, evicted_at: u32) -> Option<FrameId> {
        let frame = self.take_frame(page)?;
        *self.frames.queues.idle_words(frame.0) = [self.read, evicted_at];
        Some(frame)
    }
    fn give_frame(&mut self, frame: FrameId) {
        self.frames.give(frame);
        self.used -= 1;
    }
    fn enqueue(&mut self, frame: FrameId, on: On) {
        assert_eq!(self.frames.on[frame.at()], On::Nothing);
        self.frames.on[frame.at()] = on;
        if let Some(queue) = on.queue() {
            self.frames.queues.push_back(queue, frame.0);
        }
    }
    fn dequeue(&mut self, frame: FrameId) {
        if let Some(queue) = core::mem::replace(&mut self.frames.on[frame.at()], On::Nothing).queue() {
            self.frames.queues.remove(queue, frame.0);
        }
    }

    // ---- the policy ----

    /// Makes another policy for this pager, empty, to be given to [`Vm::set_policy`]. Allocates.
    pub fn make_policy(&self, spec: &Spec) -> Box<dyn LivePolicy> {
        let mut policy = policy::live::make(spec, self.config.memory_pages, self.frames.page.len());
        policy.resize(self.limit);
        policy
    }

    /// Changes the policy; returns the old one, to be dropped where that does no harm. Every page stays where it is: mapped pages
    /// are handed over in the old policy's order, the worst first, those in frequent use as such; pages on trial go on with theirs.
    /// What the old policy remembers of evicted pages is lost. Costs two passes over the frames. => made by [`Vm::make_policy`]
    pub fn set_policy(&mut self, mut new: Box<dyn LivePolicy>) -> Box<dyn LivePolicy> {
        let mut handed_over = 0;
        self.policy.worst_first(&mut |frame, hot| {
            new.inherit(frame, hot);
            handed_over += 1;
        });
        assert_eq!(handed_over, self.listed, "the policy {} has lost pages, or found some", self.policy.spec());
        for n in 0..self.frames.fresh {
            let frame = FrameId(n);
            let page = self.frames.page[frame.at()];
            let word = self.table.get(page);
            let on_trial = match word.state() {
                State::Active => word.busy(),
                State::Inactive | State::Clean => true,
                State::Untouched | State::PagedOut | State::Lost => false,
            };
            if on_trial && word.frame() == frame {
                new.arrived_parked(frame, page);
            }
        }
        self.counters.policy_changes.add(1);
        self.inherited = [0; TRANSITIONS_MAX];
        core::mem::replace(&mut self.policy, new)
    }

    // ---- the policy's lists ----

    /// Ends the reading into `frame`: how many evictions ago its page was evicted. Counts it.
    fn refault_distance(&mut self, frame: FrameId) -> Option<u32> {
        let evicted = self.frames.end_read(frame);
        if evicted == 0 {
            return None;
        }
        let distance = self.evictions.wrapping_sub(evicted);
        let counter = match distance as u64 * 2 / self.limit.max(1) as u64 {
            0 => &self.counters.refaults_within_half,
            1 => &self.counters.refaults_within_one,
            2 | 3 => &self.counters.refaults_within_two,
            _ => &self.counters.refaults_beyond,
        };
        counter.add(1);
        Some(distance)
    }
    fn note_used_sample(&mut self, word: PageWord) {
        if word.sample() {
            self.counters.pointed_used.add(1);
            self.pointers.used();
        }
    }
    /// A page goes out: was it brought in for nothing?
    fn note_unused(&mut self, word: PageWord) {
        if word.readahead() {
            self.counters.readahead_lost.add(1);
        }
        if word.sample() {
            self.counters.pointed_lost.add(1);
            self.pointers.lost();
        }
    }

    fn list(&mut self, frame: FrameId, page: PageId, why: Admit) {
        self.list_after(frame, page, why, None);
    }
    fn list_after(&mut self, frame: FrameId, page: PageId, why: Admit, distance: Option<u32>) {
        self.policy.admit(frame, page, why, distance);
        self.listed += 1;
    }
    fn unlist(&mut self, frame: FrameId) {
        self.policy.remove(frame);
        self.listed -= 1;
    }

    // ---- faults ----

    /// A touch of `page`, which lies in the managed range `bounds` (page indices of its object).
    ///
    /// `over_budget`: take a frame although none is free (nothing could be evicted; counted).
    pub fn fault(&mut self, page: PageId, bounds: Range<PageIndex>, over_budget: bool) -> Fault {
        debug_assert!(bounds.contains(&page.index()));
        let word = self.table.get(page);
        if word.busy() {
            self.table.set(page, word.want());
            self.counters.busy_faults.add(1);
            return Fault::Busy;
        }
        match word.state() {
            State::Active => {
                self.counters.spurious_faults.add(1);
                self.decide(Decision::Mapped(page));
                Fault::Mapped
            }
            // a write holds what is parked, so for a while there would be two copies
            State::Inactive if word.laundering() && self.available() == 0 && !over_budget => Fault::NoMemory,
            State::Inactive | State::Clean => self.fault_soft(page, word, bounds),
            State::Untouched => self.fault_first(page, bounds, over_budget),
            State::PagedOut => self.fault_hard(page, bounds, over_budget),
            State::Lost => Fault::Lost,
        }
    }

    fn fault_soft(&mut self, page: PageId, word: PageWord, bounds: Range<PageIndex>) -> Fault {
        let frame = word.frame();
        self.dequeue(frame);
        self.table.set(page, word.begin_restore());
        self.counters.soft_faults.add(1);
        self.decide(Decision::Restore(page));
        if word.readahead() {
            self.counters.readahead_used.add(1);
            self.counters.readahead_rescued.add(!word.marker() as u64);
        }
        self.note_used_sample(word);
        let ahead = if word.marker() { self.reads.find(page).and_then(|s| self.read_on(s, bounds)) } else { None };
        Fault::Restore { frame, ahead }
    }

    /// How many frames may be taken for pages that nobody waits for: what leaves the daemon its reserve.
    fn spare_frames(&self) -> u32 {
        self.available().saturating_sub(self.free_low() / 2)
    }

    /// How many frames a decision may take: `want`, but beyond the first only spare ones.
    fn frames_for(&self, want: u32, over_budget: bool) -> u32 {
        if self.available() == 0 {
            return if over_budget { 1 } else { 0 };
        }
        want.min(self.spare_frames()).max(1)
    }

    /// A frame is about to be taken.
    fn count_over_budget(&self) {
        if self.charge_total() >= self.promised as u64 {
            self.counters.over_budget.add(1);
        }
    }

    fn fault_first(&mut self, page: PageId, bounds: Range<PageIndex>, over_budget: bool) -> Fault {
        if self.available() == 0 && !over_budget {
            return Fault::NoMemory;
        }
        let (stream, window) = self.zeroes.fault(page);
        let direction = stream.map_or(Direction::Up, |at| self.zeroes.direction(at));
        let most = self.frames_for(direction.clip(page, window, &bounds), over_budget);
        self.count_over_budget();
        let mut count = 0;
        while count < most {
            let p = direction.step(page, count);
            let word = self.table.get(p);
            if count > 0 && (word.busy() || word.state() != State::Untouched) {
                break;
            }
            if !self.has_frame() {
                break;
            }
            if !self.table.reserve(p) {
                if count == 0 {
                    return Fault::TableFull;
                }
                break;
            }
            let frame = self.take_frame(p).expect("there is one");
            self.table.set(p, word.begin_fill(frame, count > 0));
            count += 1;
        }
        if count == 0 {
            return Fault::NoMemory;
        }
        stream.map(|at| self.zeroes.advance(at, direction.step(page, count)));
        self.counters.zero_fills.add(count as u64);
        self.counters.zero_ahead_pages.add(count as u64 - 1);
        self.decide(Decision::ZeroFill(page, count));
        self.note_usage();
        Fault::ZeroFill { first: direction.lowest(page, count), count }
    }

    fn fault_hard(&mut self, page: PageId, bounds: Range<PageIndex>, over_budget: bool) -> Fault {
        if self.available() == 0 && !over_budget {
            return Fault::NoMemory;
        }
        let (stream, window) = self.reads.fault(page);
        self.count_over_budget();
        self.counters.hard_faults.add(1);
        match self.read_cluster(stream, page, window, bounds, true, over_budget) {
            Some(cluster) => Fault::PageIn(cluster),
            None => Fault::NoMemory,
        }
    }

    /// Marks a cluster from `page` on as being read. `None` if the first page cannot be read (now).
    fn read_cluster(
        &mut self,
        stream: Option<usize>,
        page: PageId,
        window: u32,
        bounds: Range<PageIndex>,
        touched: bool,
        over_budget: bool,
    ) -> Option<PageIn> {
        let direction = stream.map_or(Direction::Up, |at| self.reads.direction(at));
        let want = direction.clip(page, window, &bounds).min(CLUSTER_PAGES_MAX as u32);
        let want = if touched { self.frames_for(want, over_budget) } else { want.min(self.spare_frames()) };
        let beside = want.max(1) - 1;
        let stored = match direction {
            Direction::Up => self.pager.has_page(page, 0, beside),
            Direction::Down => self.pager.has_page(page, beside, 0),
        }?;
        let most = want.min(stored.before.max(stored.after) + 1);
        let (mut count, mut taken, mut wanted) = (0, 0u32, 0u128);
        self.read = self.read.wrapping_add(1);
        for i in 0..most {
            let p = direction.step(page, i);
            let word = self.table.get(p);
            if word.busy() || word.state() != State::PagedOut {
                if i == 0 || i - count >= HOLE_PAGES_MAX {
                    break;
                }
                continue;
            }
            let Some(frame) = self.take_frame_to_read(p, word.evicted_at()) else { break };
            self.table.set(p, word.begin_fill(frame, !(touched && i == 0)));
            wanted |= 1 << i;
            taken += 1;
            count = i + 1;
        }
        if taken == 0 {
            return None;
        }
        let rest = window.saturating_sub(count);
        let stream = stream.map(|at| {
            self.reads.set_rest(at, rest);
            self.reads.advance(at, direction.step(page, count))
        });
        self.counters.readahead_pages.add((taken - touched as u32) as u64);
        self.decide(Decision::PageIn(page, count));
        let (slot, wanted) = match direction {
            Direction::Up => (stored.slot, wanted),
            Direction::Down => (Slot(stored.slot.0 - (count - 1)), wanted.reverse_bits() >> (u128::BITS - count)),
        };
        let op = self.begin_read(direction.lowest(page, count), slot, count, wanted);
        let stream = stream.filter(|_| window > 1);
        Some(PageIn { touched, direction, marks: true, has_rest: stream.is_some() && rest > 0, stream, ..op })
    }

    /// The read of `wanted` of `count` pages, which have been given frames and the number `self.read`.
    fn begin_read(&mut self, first: PageId, slot: Slot, count: u32, wanted: u128) -> PageIn {
        self.reading += 1;
        self.pager.read_begun(slot);
        self.counters.page_in_ops.add(1);
        self.counters.pages_in.add(wanted.count_ones() as u64);
        self.note_usage();
        let expected = if count == 1 { self.pager.content(first) } else { None };
        PageIn {
            first,
            slot,
            location: self.pager.locate(slot),
            expected: expected.unwrap_or(ContentHash::UNKNOWN),
            count,
            wanted,
            touched: false,
            direction: Direction::Up,
            written: false,
            marks: false,
            parks: false,
            has_rest: false,
            read: self.read,
            stream: None,
        }
    }

    /// The reader of this stream has come as far as was read for it: the next window, if its pages are out and frames are free.
    fn read_on(&mut self, stream: StreamRef, bounds: Range<PageIndex>) -> Option<PageIn> {
        let (at, next, window) = self.reads.follow(stream)?;
        if !bounds.contains(&next.index()) {
            return None;
        }
        self.read_cluster(Some(at), next, window, bounds, false, false)
    }

    /// More of the window that `op` was part of: it ended where the device's contiguous run did. To be issued beside `op`, so that
    /// a reader of pages that lie scattered on the device has many reads in flight.
    pub fn read_more(&mut self, op: &PageIn, bounds: Range<PageIndex>) -> Option<PageIn> {
        let (at, mut next, mut left) = self.reads.rest(op.stream?)?;
        while left > 0 && bounds.contains(&next.index()) {
            let word = self.table.get(next);
            if word.state() == State::PagedOut && !word.busy() {
                let more = self.read_cluster(Some(at), next, left, bounds, false, false);
                if let Some(more) = &more {
                    self.reads.set_rest(at, left.saturating_sub(more.count));
                }
                // one marker a window is enough
                return more.map(|m| PageIn { marks: op.touched && op.count == 1, written: op.written, ..m });
            }
            next = self.reads.direction(at).step(next, 1);
            left -= 1;
        }
        None
    }

    /// The program says that it will want `page`: what to read now, if it is out.
    pub fn prefetch(&mut self, page: PageId, count: u32, bounds: Range<PageIndex>) -> Option<PageIn> {
        let word = self.table.get(page);
        if word.busy() || word.state() != State::PagedOut {
            return None;
        }
        let stream = match self.reads.fault(page) {
            (Some(at), _) if self.reads.direction(at) == Direction::Up => at,
            _ => self.reads.begin(page, Direction::Up),
        };
        self.read_cluster(Some(stream), page, count.max(2), bounds, false, false)
    }

    /// Whether `page` is one to follow a pointer to: it is out, or on trial. Costs a look at the table.
    pub fn is_away(&self, page: PageId) -> bool {
        let word = self.table.get(page);
        !word.busy() && matches!(word.state(), State::PagedOut | State::Inactive | State::Clean)
    }

    /// A page that was read in order points to `page`, so it may be touched soon. What is in memory anyhow (compressed) is not
    /// brought in.
    pub fn follow_pointer(&mut self, page: PageId) -> Followed {
        let word = self.table.get(page);
        match word.state() {
            State::PagedOut if !word.busy() && self.spare_frames() == 0 => Followed::NoMemory,
            State::PagedOut if !word.busy() => self.read_pointed(page, word).map_or(Followed::Nothing, Followed::Read),
            // a sample is to show whether it is touched, a marker when
            State::Inactive | State::Clean
                if !(word.busy() || word.sample() || word.marker() || word.laundering()) && self.pointers.pay() =>
            {
                self.dequeue(word.frame());
                self.table.set(page, word.begin_restore());
                self.counters.pointed_restored.add(1);
                self.decide(Decision::Restore(page));
                Followed::Restore(word.frame())
            }
            _ => Followed::Nothing,
        }
    }

    /// It is no readahead to the policy: what it did not see used is not a hint here, but a pointer that is about to be followed.
    fn read_pointed(&mut self, page: PageId, word: PageWord) -> Option<PageIn> {
        let (slot, _) = self.pager.stored(page).filter(|(slot, _)| !self.pager.locate(*slot).is_memory)?;
        let parks = match self.pointers.next() {
            Follow::No => return None,
            Follow::Yes => false,
            Follow::Sample => true,
        };
        self.read = self.read.wrapping_add(1);
        let frame = self.take_frame_to_read(page, word.evicted_at())?;
        let word = word.begin_fill(frame, false);
        self.table.set(page, if parks { word.as_sample() } else { word });
        self.counters.pointed_pages.add(1);
        self.decide(Decision::PageIn(page, 1));
        Some(PageIn { parks, ..self.begin_read(page, slot, 1, 1) })
    }

    /// A parked page is mapped again (`No`: it could not be, it stays parked). Returns whether waiting faults must be woken.
    pub fn restore_done(&mut self, page: PageId, filled: Filled) -> bool {
        let word = self.table.get(page);
        let frame = word.frame();
        match filled {
            Filled::Mapped => {
                self.table.set(page, word.mapped());
                if word.wired() {
                    self.policy.remove(frame);
                } else {
                    self.policy.referenced(frame);
                    self.listed += 1;
                }
            }
            Filled::Parked | Filled::No => {
                // Not back on the laundry: the write under way may be of what it held before it was last mapped.
                let on = if word.state() == State::Clean { On::Clean } else { On::Trial };
                self.table.set(page, word.not_restored());
                self.enqueue(frame, on);
            }
        }
        word.wanted() || filled != Filled::Mapped
    }

    /// One page of a zero fill. Returns whether waiting faults must be woken.
    pub fn fill_done(&mut self, page: PageId, filled: Filled) -> bool {
        let word = self.table.get(page);
        let frame = word.frame();
        if filled == Filled::Mapped {
            self.table.set(page, word.mapped().used());
            if !word.wired() {
                self.list(frame, page, if word.readahead() { Admit::ZeroAhead } else { Admit::FirstTouch });
            }
        } else {
            self.table.set(page, word.not_filled());
            self.give_frame(frame);
            self.note_usage();
        }
        word.wanted() || filled != Filled::Mapped
    }

    /// What page `i` of a cluster must be, as things are. [`ContentHash::UNKNOWN`] if it is not stored any more; then it is not
    /// wanted any more either.
    pub fn expected(&self, op: &PageIn, i: u32) -> ContentHash {
        self.pager.content(op.page(i)).unwrap_or(ContentHash::UNKNOWN)
    }

    /// A cluster has been read; `result(i, expected)` gives each page's outcome, having compared its content with `expected`.
    /// `places[..count]` says where each goes. Returns the next window, if the reader already waits for this one.
    pub fn page_in_arrived(
        &mut self,
        op: &PageIn,
        bounds: Range<PageIndex>,
        mut result: impl FnMut(u32, ContentHash) -> IoResult,
        places: &mut [Place; CLUSTER_PAGES_MAX],
    ) -> Option<PageIn> {
        self.reading -= 1;
        self.pager.read_ended(op.slot);
        let mut wanted = false;
        let mut marker = None;
        for i in 0..op.count {
            let page = op.page(i);
            let word = self.table.get(page);
            let still_wanted =
                word.busy() && word.state() == State::PagedOut && self.frames.queues.idle_words(word.frame().0)[READ] == op.read;
            if !still_wanted {
                places[i as usize] = Place::Discard;
                continue;
            }
            let outcome = match self.pager.content(page) {
                Some(expected) => result(i, expected),
                None => IoResult::Corrupt,
            };
            places[i as usize] = match outcome {
                IoResult::Ok if op.parks && !word.wanted() && !word.wired() => Place::Park(word.frame()),
                IoResult::Ok => Place::Map,
                IoResult::Io(_) | IoResult::Corrupt | IoResult::NoSpace => {
                    if outcome == IoResult::Corrupt {
                        self.counters.corrupt_pages.add(1);
                    }
                    self.counters.read_errors.add(1);
                    let frame = word.frame();
                    self.table.set(page, word.lost());
                    self.give_frame(frame);
                    Place::Lost
                }
            };
            wanted |= word.wanted();
        }
        let stream = op.stream?;
        if wanted || (op.touched && op.count == 1) {
            // the reader is already here: everything it waits for is mapped, and the next window is due at once
            return if wanted { self.read_on(stream, bounds).map(|m| PageIn { written: op.written, ..m }) } else { None };
        }
        let after = op.touched as u32;
        if op.marks && after < op.count {
            let at = op.nth(after);
            if places[at as usize] == Place::Map && !self.table.get(op.page(at)).wired() {
                marker = Some(at);
            }
        }
        if let Some(at) = marker {
            places[at as usize] = Place::Park(self.table.get(op.page(at)).frame());
        }
        None
    }

    /// One page that was to be mapped or parked. Returns whether waiting faults must be woken.
    pub fn page_in_done(&mut self, page: PageId, filled: Filled) -> bool {
        let word = self.table.get(page);
        let frame = word.frame();
        match filled {
            Filled::Mapped => {
                if word.wanted() {
                    self.note_used_sample(word);
                }
                let used = if word.wanted() && word.readahead() {
                    self.counters.readahead_used.add(1);
                    true
                } else {
                    false
                };
                let why = if word.readahead() { Admit::Readahead } else { Admit::HardFault };
                self.table.set(page, if used { word.mapped().used() } else { word.mapped() });
                if self.pager.is_unwelcome(page) {
                    self.pager.release(page);
                }
                let distance = self.refault_distance(frame);
                if !word.wired() {
                    self.list_after(frame, page, why, distance);
                }
            }
            Filled::Parked if self.pager.is_unwelcome(page) => {
                self.pager.release(page);
                self.table.set(page, word.arrived_unstored());
                self.frames.end_read(frame);
                self.policy.arrived_parked(frame, page);
                self.enqueue(frame, On::Trial);
            }
            Filled::Parked => {
                self.table.set(page, if word.sample() { word.arrived_sample() } else { word.arrived_marker() });
                self.frames.end_read(frame);
                self.policy.arrived_parked(frame, page);
                self.enqueue(frame, On::Trial);
            }
            Filled::No => {
                self.table.set(page, word.not_filled());
                self.give_frame(frame);
                self.note_usage();
            }
        }
        word.wanted() || filled == Filled::No
    }

    /// A page that is there already comes under management. Returns `false` if there is no room to remember it.
    pub fn adopt(&mut self, page: PageId) -> bool {
        let word = self.table.get(page);
        if word.busy() || word.state() != State::Untouched {
            return true;
        }
        if !self.has_frame() || !self.table.reserve(page) {
            return false;
        }
        let frame = self.take_frame(page).expect("there is one");
        self.table.set(page, word.begin_fill(frame, false).mapped());
        if !word.wired() {
            self.list(frame, page, Admit::Adopted);
        }
        self.counters.adopted_pages.add(1);
        true
    }

    /// The page never leaves memory once it is there (`wired`), or may again. Returns `false` if there is no room to remember it.
    pub fn wire(&mut self, page: PageId, wired: bool) -> bool {
        let word = self.table.get(page);
        if word.wired() != wired {
            if !self.table.reserve(page) {
                return false;
            }
            self.table.set(page, word.wire(wired));
            if word.state() == State::Active && !word.busy() {
                if wired {
                    self.unlist(word.frame());
                } else {
                    self.list(word.frame(), page, Admit::FirstTouch);
                }
            }
        }
        true
    }

    /// A range that was not managed is gone, and nothing that comes to its addresses is wired.
    pub fn unwire_range(&mut self, first: PageId, count: u64) {
        let (mut at, end) = (first, first.index() + count);
        while let Some(page) = self.table.next_present(at, end) {
            self.wire(page, false);
            at = page.offset(1);
        }
    }

    // ---- the page daemon ----

    /// What to do now. Looks at levels only; costs nothing.
    pub fn demand(&self) -> Demand {
        let available = self.available();
        let trial_target = (self.limit as u64 * self.policy.trial_permille() as u64 / 1000) as u32;
        let short = if available < self.free_high() { self.free_high() - available } else { 0 };
        let over = (self.charge_total().saturating_sub(self.limit as u64)) as u32;
        let short = short + over;
        // by a quarter at a time, so that the daemon is not woken for each page
        let beyond = if self.listed > self.mapped_max { self.listed - (self.mapped_max - self.mapped_max / 4) } else { 0 };
        if short == 0 {
            return Demand { park: beyond, ..Demand::default() };
        }
        let reclaim = short.min(self.frames.queues.len(CLEAN));
        let mut launder = (short - reclaim).saturating_sub(self.laundering).min(self.frames.queues.len(TRIAL));
        if self.space_short && self.laundering > 0 {
            launder = 0;
        }
        if self.frames.queues.len(TRIAL) + self.laundering < trial_target && self.spare_frames() > 0 && self.listed > 0 {
            launder = 0; // first let the trial have its length, or it would be none
        }
        let after = self.frames.queues.len(TRIAL) - launder;
        let park = (trial_target.max(short - reclaim)).saturating_sub(after + self.laundering).max(beyond).min(self.listed);
        Demand { reclaim, launder, park }
    }

    /// Whether the daemon should be woken.
    pub fn wants_daemon(&self) -> bool {
        self.available() < self.free_low() || self.listed > self.mapped_max
    }

    /// Pages to be unmapped, by the policy's order, as many as `out` has room for. They are busy until [`Vm::park_done`], or until
    /// they are released or moved ([`Vm::is_parking`]).
    pub fn park_batch(&mut self, most: u32, out: &mut Vec<Member>) {
        out.clear();
        self.counters.daemon_scans.add(1);
        let mut victims = [FrameId(0); 256];
        let most = (most as usize).min(out.capacity()).min(victims.len());
        let n = self.policy.victims(&mut victims[..most]);
        self.listed -= n as u32;
        for &frame in &victims[..n] {
            let page = self.frames.page[frame.at()];
            let word = self.table.get(page);
            assert!(word.frame() == frame && word.state() == State::Active && !word.busy(), "victim {page:?}: {word:?}");
            self.table.set(page, word.begin_park());
            self.parking += 1;
            self.decide(Decision::Park(page));
            out.push((page, frame));
        }
    }

    /// As [`Vm::park_batch`], but for these pages, as far as they are mapped and listed.
    pub fn park_these(&mut self, pages: &[PageId], out: &mut Vec<Member>) {
        out.clear();
        for &page in pages.iter().take(out.capacity()) {
            let word = self.table.get(page);
            if word.state() == State::Active && !word.busy() && !word.wired() {
                self.policy.take(word.frame());
                self.listed -= 1;
                self.table.set(page, word.begin_park());
                self.parking += 1;
                self.decide(Decision::Park(page));
                out.push((page, word.frame()));
            }
        }
    }

    /// Whether a page of a batch is still to be unmapped. One that was released or moved since is not any more: it gets no
    /// [`Vm::park_done`], and whoever waits for it must be woken.
    pub fn is_parking(&self, page: PageId, frame: FrameId) -> bool {
        let word = self.table.get(page);
        word.parking() && word.frame() == frame
    }

    /// Returns whether waiting faults must be woken. => [`Vm::is_parking`]
    pub fn park_done(&mut self, page: PageId, parked: Parked) -> bool {
        let word = self.table.get(page);
        let frame = word.frame();
        self.parking -= 1;
        match parked {
            Parked::Yes => {
                self.table.set(page, word.parked());
                self.counters.pages_parked.add(1);
                self.enqueue(frame, On::Trial);
            }
            Parked::Refused => {
                self.table.set(page, word.not_parked());
                self.counters.pages_unmovable.add(1);
                self.list_again(word);
            }
            Parked::Absent => {
                // dropped behind the pager's back: it reads as zeroes from now on
                self.counters.pages_vanished.add(1);
                self.policy.remove(frame);
                self.table.set(page, word.released().wire(word.wired()));
                self.pager.release(page);
                self.give_frame(frame);
                self.note_usage();
            }
        }
        word.wanted()
    }

    /// The page of a batch stays mapped.
    fn list_again(&mut self, word: PageWord) {
        if word.wired() {
            // it was wired while it was being unmapped: wired pages are on no list
            self.policy.remove(word.frame());
        } else {
            self.policy.refused(word.frame());
            self.listed += 1;
        }
    }

    /// Parked pages to be looked at, oldest first. Each must be answered with [`Vm::launder_look`].
    pub fn launder_batch(&mut self, most: u32, out: &mut Vec<Laundry>) {
        out.clear();
        let most = (most as usize).min(out.capacity());
        let mut turns = self.frames.queues.len(TRIAL);
        while out.len() < most && turns > 0 {
            turns -= 1;
            let Some(frame) = self.frames.queues.front(TRIAL).map(FrameId) else { break };
            self.dequeue(frame);
            let page = self.frames.page[frame.at()];
            let word = self.table.get(page);
            if word.laundering() {
                self.enqueue(frame, On::Trial); // rescued and parked again before its write has ended
                continue;
            }
            self.table.set(page, word.begin_launder());
            self.laundering += 1;
            self.enqueue(frame, On::Laundry);
            let stored = self.pager.stored(page);
            let in_memory = stored.is_some_and(|(slot, _)| self.pager.locate(slot).is_memory);
            out.push(Laundry { page, frame, stored: stored.map(|(_, content)| content), in_memory });
        }
    }

    /// The content of a page of the batch: all zeroes, or with this hash.
    pub fn launder_look(&mut self, page: PageId, zero: bool, hash: ContentHash) -> Look {
        let word = self.table.get(page);
        let Some(frame) = self.in_laundry(word) else {
            self.launder_end(page, word, false);
            return Look::Settled;
        };
        if zero {
            self.dequeue(frame);
            self.launder_end(page, word, false);
            let word = self.table.get(page);
            let wired = word.wired();
            self.table.set(page, word.released().wire(wired));
            self.pager.release(page);
            self.policy.remove(frame); // not remembered: its next touch will be a first one
            self.note_unused(word);
            self.counters.pages_reclaimed.add(1);
            self.counters.pages_reclaimed_zero.add(1);
            self.decide(Decision::DropZero(page));
            return Look::Drop(frame);
        }
        if self.pager.content(page) == Some(hash) {
            self.dequeue(frame);
            self.launder_end(page, word, true);
            self.enqueue(frame, On::Clean);
            self.counters.pages_reclaimed_clean.add(1);
            self.decide(Decision::Clean(page));
            return Look::Settled;
        }
        self.policy.dirtied(frame);
        // A stored copy is of older content. Its slot goes back at once, so that full swap can take the new one.
        self.pager.release(page);
        self.decide(Decision::Write(page));
        Look::Write
    }

    /// The frame, if the page is still parked with the content that its laundering began with. (A page that was restored, changed
    /// and parked again before its write has ended is on the trial queue, not on the laundry.)
    fn in_laundry(&self, word: PageWord) -> Option<FrameId> {
        let parked = !word.laundering_doomed() && !word.busy() && word.state() == State::Inactive;
        (parked && self.frames.on[word.frame().at()] == On::Laundry).then(|| word.frame())
    }

    fn launder_end(&mut self, page: PageId, word: PageWord, stored: bool) {
        self.laundering -= 1;
        self.table.set(page, word.laundered(stored));
    }

    /// Slots for a cluster of up to `want` pages, the first of which is `near`.
    pub fn launder_slots(&mut self, want: u32, near: PageId) -> Option<PageOut> {
        self.slots_or_copies(want, |pager| pager.alloc_run(want, near))
    }

    /// As [`Vm::launder_slots`], on devices that are not memory: for pages that those have refused.
    pub fn launder_slots_past_memory(&mut self, want: u32, near: PageId) -> Option<PageOut> {
        self.slots_or_copies(want, |pager| pager.alloc_run_past_memory(want, near))
    }

    fn slots_or_copies(&mut self, want: u32, alloc: impl Fn(&mut P) -> Option<SlotRun>) -> Option<PageOut> {
        let mut run = alloc(&mut self.pager);
        if run.is_none() && self.free_copies(want) {
            run = alloc(&mut self.pager);
        }
        self.space_short = run.is_none();
        run.map(|run| self.page_out(run))
    }

    fn page_out(&self, run: SlotRun) -> PageOut {
        PageOut { first: run.first, location: self.pager.locate(run.first), count: run.count }
    }

    /// Gives back the slots of `run` from the one at `from` on: there was nothing to be written there.
    pub fn free_slots(&mut self, run: &PageOut, from: u32) {
        (from..run.count).for_each(|i| self.pager.free_slot(run.slot(i)));
    }

    /// Swap is full: gives up to `want` slots back whose pages are mapped, so that memory and swap add up. (Such a copy only saves
    /// writing the page again if it has not changed by then.) Looks at [`COPIES_SCAN_MAX`] frames, and goes on there next time.
    fn free_copies(&mut self, want: u32) -> bool {
        let mut freed = 0;
        for _ in 0..COPIES_SCAN_MAX.min(self.frames.fresh) {
            self.copies_at = if self.copies_at + 1 < self.frames.fresh { self.copies_at + 1 } else { 0 };
            let frame = FrameId(self.copies_at);
            let page = self.frames.page[frame.at()];
            let word = self.table.get(page);
            if word.state() != State::Active || word.busy() || word.frame() != frame {
                continue;
            }
            let before = self.pager.used();
            if self.pager.release(page) {
                if self.pager.used() == before {
                    break; // a fork's other side still needs the slot: giving up our view of it gains nothing
                }
                freed += 1;
                if freed == want {
                    break;
                }
            }
        }
        freed > 0
    }

    /// A write was issued (for the counters).
    pub fn launder_issued(&mut self, pages: u32) {
        self.counters.page_out_ops.add(1);
        self.counters.pages_out.add(pages as u64);
    }

    /// A page's write has ended, or (`slot` is `None`) there was no slot for it. Returns `false` if it was written and the pager
    /// has no room to remember where: then it stays in memory.
    pub fn launder_done(&mut self, page: PageId, slot: Option<Slot>, hash: ContentHash, result: IoResult) -> bool {
        let word = self.table.get(page);
        let (mut stored, mut remembered) = (false, true);
        match (slot, result) {
            (Some(slot), IoResult::Ok) if !word.laundering_doomed() => {
                stored = self.pager.assign(page, slot, hash);
                remembered = stored;
                let bytes = self.pager.used() * PAGE_SIZE as u64;
                self.counters.swap_used_bytes.set(bytes);
                self.counters.swap_peak_bytes.raise(bytes);
            }
            (Some(slot), result) => {
                self.pager.free_slot(slot);
                self.counters.swap_used_bytes.set(self.pager.used() * PAGE_SIZE as u64);
                if !matches!(result, IoResult::Ok) {
                    self.counters.write_errors.add(1);
                }
            }
            (None, _) => {}
        }
        let parked = self.in_laundry(word);
        self.launder_end(page, word, stored && parked.is_some());
        // If it was rescued meanwhile, the slot holds an older, perhaps still equal copy: the hash will tell.
        if let Some(frame) = parked {
            self.dequeue(frame);
            self.enqueue(frame, if stored { On::Clean } else { On::Trial });
        }
        remembered
    }

    /// Clean pages whose frames are taken, oldest first. The machine drops their content, then calls [`Vm::frames_dropped`].
    pub fn reclaim_batch(&mut self, most: u32, out: &mut Vec<Member>) {
        out.clear();
        let most = (most as usize).min(out.capacity());
        while out.len() < most {
            let Some(frame) = self.frames.queues.front(CLEAN).map(FrameId) else { break };
            self.dequeue(frame);
            let page = self.frames.page[frame.at()];
            let word = self.table.get(page);
            self.evictions = self.evictions.wrapping_add(1).max(1);
            self.table.set(page, word.reclaimed(self.evictions));
            self.policy.evicted(frame, page);
            self.note_unused(word);
            self.counters.pages_reclaimed.add(1);
            self.decide(Decision::Reclaim(page));
            out.push((page, frame));
        }
    }

    /// The parked content of these frames is gone.
    pub fn frames_dropped(&mut self, frames: impl Iterator<Item = FrameId>) {
        for frame in frames {
            self.give_frame(frame);
        }
        self.note_usage();
    }

    /// Whether nothing can be evicted however long one waits: no page listed, on trial, clean or being written.
    pub fn nothing_to_evict(&self) -> bool {
        self.listed == 0
            && self.frames.queues.is_empty(TRIAL)
            && self.frames.queues.is_empty(LAUNDRY)
            && self.frames.queues.is_empty(CLEAN)
            && self.laundering == 0
    }
    /// Whether no read, no write and no batch to be unmapped is under way: what a fork waits for. (The machine's locks see to the
    /// rest.)
    pub fn is_quiescent(&self) -> bool {
        self.reading == 0 && self.laundering == 0 && self.moving == 0 && self.parking == 0
    }
    /// Pages that may be unmapped: mapped, and neither busy nor wired.
    pub fn listed(&self) -> u32 {
        self.listed
    }
    /// Pages being laundered now.
    pub fn laundering(&self) -> u32 {
        self.laundering
    }

    // ---- the program gives memory up or moves it ----

    /// The pages of `first..first + count` are given up: their content is forgotten, here and on the device.
    ///
    /// `parked(frame)` is called for each frame with parked content before the frame is free again; mapped pages need no call.
    /// => no restore of these pages is under way (the machine excludes them). Page-ins may be: what arrives is thrown away
    /// ([`Place::Discard`]). So may they be in a batch to be parked: they are out of it then ([`Vm::is_parking`]).
    pub fn release_range(&mut self, first: PageId, count: u64, parked: impl FnMut(FrameId)) -> u64 {
        self.give_up(first, count, false, parked)
    }

    /// As [`Vm::release_range`], but mapped pages stay as they are: the program is about to discard them itself, or (MADV_FREE) may
    /// go on using them. One that it does discard is found absent at its next fault or when it is to be parked.
    pub fn discard_range(&mut self, first: PageId, count: u64, parked: impl FnMut(FrameId)) -> u64 {
        self.give_up(first, count, true, parked)
    }

    fn give_up(&mut self, first: PageId, count: u64, keep_mapped: bool, mut parked: impl FnMut(FrameId)) -> u64 {
        let end = first.index() + count;
        let mut at = first;
        let mut released = 0;
        while let Some(page) = self.table.next_present(at, end) {
            let word = self.table.get(page);
            if keep_mapped && word.state() == State::Active {
                // nothing: not even a write under way of what it held once matters, since contents are compared
            } else if self.release_one(page, word, &mut parked) {
                released += 1;
            }
            if page.index() + 1 >= end {
                break;
            }
            at = page.offset(1);
        }
        self.pager.release_range(first, count);
        self.counters.released_pages.add(released);
        self.counters.swap_used_bytes.set(self.pager.used() * PAGE_SIZE as u64);
        self.note_usage();
        released
    }

    fn release_one(&mut self, page: PageId, word: PageWord, parked: &mut impl FnMut(FrameId)) -> bool {
        if word.has_frame() {
            let frame = word.frame();
            if word.parking() {
                self.parking -= 1; // the daemon has it in a batch, and will see that it is gone
                self.policy.remove(frame);
            } else if word.busy() {
                assert!(matches!(word.state(), State::Untouched | State::PagedOut), "released under way: {page:?} {word:?}");
            } else if word.state() == State::Active {
                if !word.wired() {
                    self.unlist(frame);
                }
            } else {
                self.dequeue(frame);
                self.policy.remove(frame);
                parked(frame);
            }
            self.give_frame(frame);
        } else if word.state() == State::PagedOut {
            self.policy.forget(page);
        }
        self.table.set(page, word.released());
        self.decide(Decision::Release(page));
        word.state() != State::Untouched || word.busy()
    }

    /// The pages of `from..from + count` are now found at `to` (mremap). `to` must be untouched. Returns `false` if there is no
    /// room to remember where one of them has gone: what it held cannot be found any more, so the program may not go on.
    #[must_use]
    pub fn rename_range(&mut self, from: PageId, to: PageId, count: u64) -> bool {
        let end = from.index() + count;
        let mut at = from;
        while let Some(page) = self.table.next_present(at, end) {
            if !self.rename_one(page, to.offset(page.index() - from.index())) {
                return false;
            }
            if page.index() + 1 >= end {
                break;
            }
            at = page.offset(1);
        }
        true
    }

    fn rename_one(&mut self, page: PageId, new: PageId) -> bool {
        let mut word = self.table.get(page);
        let there = self.table.get(new);
        assert!(there.state() == State::Untouched && !there.busy(), "moved onto a page: {new:?} {there:?}");
        if !self.table.reserve(new) || word.state() != State::Untouched && !self.pager.rename(page, new) {
            return false;
        }
        if word.parking() {
            self.parking -= 1; // the daemon has it in a batch by its old address: it stays mapped
            self.list_again(word);
            word = word.not_parked();
        }
        let mut moved = word;
        if word.busy() {
            // a read is under way; its content is still in the slot, and what arrives will be thrown away
            assert!(word.state() == State::PagedOut, "moved under way: {page:?} {word:?}");
            self.give_frame(word.frame());
            moved = word.not_filled();
        }
        if moved.state() == State::PagedOut {
            self.policy.forget(page); // a policy knows an evicted page by its address
        }
        if moved.has_frame() {
            let frame = moved.frame();
            if self.frames.on[frame.at()] == On::Laundry {
                self.dequeue(frame);
                self.enqueue(frame, On::Trial);
            }
            self.frames.page[frame.at()] = new;
        }
        // What is being written of either address stays there, doomed. Wiring moves along, even of an untouched page.
        self.table.set(new, PageWord::from_raw(there.released().raw() | moved.renamed().raw()));
        self.table.set(page, word.released());
        true
    }

    /// Every frame, page and queue adds up. For tests; walks everything.
    ///
    /// # Panics
    /// If something does not.
    pub fn check(&self, objects: u16) {
        let (mut with_frame, mut laundering, mut listed) = (0, 0, 0);
        for o in 0..objects {
            let mut at = PageId::new(ObjectId(o), 0);
            while let Some(page) = self.table.next_present(at, OBJECT_PAGES_MAX) {
                let word = self.table.get(page);
                laundering += word.laundering() as u32;
                if word.has_frame() {
                    with_frame += 1;
                    listed += (word.state() == State::Active && !word.busy() && !word.wired()) as u32;
                    let frame = word.frame();
                    assert_eq!(self.frames.page[frame.at()], page, "{word:?}");
                    let on = self.frames.on[frame.at()];
                    match word.state() {
                        _ if word.busy() => assert_eq!(on, On::Nothing),
                        State::Active => assert_eq!(on, On::Nothing),
                        State::Inactive if on == On::Laundry => {
                            assert!(word.laundering() && !word.laundering_doomed(), "{page:?} {word:?}")
                        }
                        State::Inactive => assert_eq!(on, On::Trial, "{page:?} {word:?}"),
                        State::Clean => assert_eq!(on, On::Clean),
                        _ => unreachable!("{word:?} has a frame"),
                    }
                }
                if word.state() == State::PagedOut || word.state() == State::Clean {
                    assert!(self.pager.content(page).is_some(), "{page:?} {word:?} is not stored");
                }
                at = page.offset(1);
            }
        }
        assert!(self.used >= with_frame, "used {} < {with_frame}", self.used);
        assert_eq!(self.laundering, laundering);
        assert_eq!(self.listed, listed);
    }
}

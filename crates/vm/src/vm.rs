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
//!     watch_batch     Active                machine watches     park_these if that is not possible
//!     park_batch      Active  -> busy       machine unmaps      park_done      -> Inactive, on the inactive queue
//!                                           or it was used      park_done      -> Active, again on the policy's lists
//!     pass_batch      as park_batch, pages that a reader has passed; if their file has them, they may be dropped -> PagedOut
//!     launder_batch   Inactive + laundering machine compares    launder_compared -> dropped | Clean | to be written
//!                                           machine writes      launder_done   -> Clean, on the clean queue
//!     reclaim_batch   Clean -> PagedOut     machine drops       frames_dropped -> free
//! ```
//!
//! Invariants: `used` = frames of pages that have one + frames on their way to being dropped; a frame is on one queue at most;
//! `laundering` = pages whose word has the flag; a page is on its policy's lists exactly if it is Active, not
//! busy, not wired and not watched.
//!
//! Locks: none in here. The machine holds one lock around each call; no call waits, allocates, or costs more than its batch.

use crate::config::{CLUSTER_PAGES_MAX, Config, ConfigError, MEMORY_BYTES_MIN};
use crate::counters::Counters;
use crate::frames::{FRAMES_SLACK, Frames, On};
use crate::home::Homes;
use crate::inactive_share::InactiveShare;
use crate::neighbours::Neighbours;
use crate::page::{PageWord, State};
use crate::page_table::{OBJECT_PAGES_MAX, PageTable};
use crate::pager::Pager;
use crate::pointers::Pointers;
use crate::policies::{AtWork, POLICIES_MAX, Place, Policies};
use crate::policy;
use crate::pool_size::PoolSize;
use crate::stream::Streams;
use crate::types::{ObjectId, PAGE_SIZE, PageId, PageIndex, Tag};
use alloc::vec;
use alloc::vec::Vec;

/// One remembered decision, for tests that run two machines side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Decision {
    Mapped(PageId),
    Restore(PageId),
    ZeroFill(PageId, u32),
    PageIn(PageId, u32),
    Watch(PageId),
    Park(PageId),
    Clean(PageId),
    DropZero(PageId),
    Write(PageId),
    Reclaim(PageId),
    Release(PageId),
}

/// The core. See the module.
pub struct Vm<P: Pager> {
    pub(crate) config: Config,
    pub(crate) counters: &'static Counters,
    pub(crate) table: PageTable,
    pub(crate) frames: Frames,
    pub(crate) policies: Policies,
    pub(crate) pager: P,
    pub(crate) reads: Streams,
    pub(crate) zeroes: Streams,
    /// A first touch fills one page only.
    pub(crate) fills_alone: bool,
    pub(crate) pointers: Pointers,
    pub(crate) neighbours: Neighbours,
    pub(crate) inactive_share: InactiveShare,
    pub(crate) pool_size: PoolSize,
    pub(crate) limit: u32,
    /// The kernel tells references: the policy's victims are watched before they are parked.
    pub(crate) watches: bool,
    /// Pages of read-only files that a reader has passed are dropped, not parked.
    pub(crate) drops: bool,
    /// What the process has been given: the limit, but while its reclaim target is less.
    pub(crate) promised: u32,
    /// More listed pages than this are parked even if frames are free.
    pub(crate) mapped_max: u32,
    /// What is in memory is being saved: so many pages are still to be parked. See [`Vm::save`].
    pub(crate) to_save: Option<u32>,
    pub(crate) used: u32,
    pub(crate) charged: u32,
    pub(crate) reserved: u64,
    pub(crate) laundering: u32,
    /// Those of them that are being flushed. No frame comes free when that has ended.
    pub(crate) flushing: u32,
    pub(crate) reading: u32,
    /// Runs that a swapoff moves to another device.
    pub(crate) moving: u32,
    /// Runs that are written back from a device that is memory.
    pub(crate) writing_back: u32,
    /// Pages of batches that are to be unmapped.
    pub(crate) parking: u32,
    /// Number of the last read.
    pub(crate) read: u32,
    /// Pages on the policy's lists.
    pub(crate) listed: u32,
    /// Evictions so far, wrapping; never 0 after the first, which stands for "not known" in a page's word.
    pub(crate) evictions: u32,
    pub(crate) space_short: bool,
    /// Where the search for copies to be given up goes on.
    pub(crate) copies_at: u32,
    pub(crate) decisions: Vec<Decision>,
    /// For each object: the file that is its home, if it has one.
    pub(crate) homes: Vec<Option<Homes>>,
    /// For each frame: the tag of what the file has for its page. Empty until there is a file that is written or copied.
    pub(crate) base: Vec<Tag>,
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
        let policy = AtWork::new(policy::live::make(&config.policy, config.memory_pages, frames));
        let vm = Vm {
            counters,
            table: PageTable::new(config.objects_max, config.object_pages, config.pages_max),
            frames: Frames::new(frames),
            policies: Policies::new(policy, config.objects_max),
            pager,
            reads: Streams::new(8, config.readahead_pages_max.min(CLUSTER_PAGES_MAX as u32)),
            zeroes: Streams::new(4, config.zero_ahead_pages_max).without_bursts(),
            fills_alone: false,
            pointers: Pointers::default(),
            neighbours: Neighbours::default(),
            inactive_share: InactiveShare::new(),
            pool_size: PoolSize::new(),
            limit: config.memory_pages,
            watches: false,
            drops: false,
            promised: config.memory_pages,
            mapped_max: u32::MAX,
            to_save: None,
            used: 0,
            charged: 0,
            reserved: 0,
            laundering: 0,
            flushing: 0,
            reading: 0,
            moving: 0,
            writing_back: 0,
            parking: 0,
            read: 0,
            listed: 0,
            evictions: 0,
            space_short: false,
            copies_at: 0,
            decisions: Vec::with_capacity(config.decisions_max),
            homes: vec![None; config.objects_max as usize],
            base: Vec::new(),
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
            policies: self.policies.copy(),
            pager: self.pager.clone(),
            reads: self.reads.clone(),
            zeroes: self.zeroes.clone(),
            fills_alone: self.fills_alone,
            pointers: self.pointers.clone(),
            neighbours: self.neighbours.clone(),
            inactive_share: self.inactive_share,
            pool_size: self.pool_size.clone(),
            limit: self.limit,
            watches: self.watches,
            drops: self.drops,
            promised: self.promised,
            mapped_max: self.mapped_max,
            to_save: self.to_save,
            used: self.used,
            charged: self.charged,
            reserved: self.reserved,
            laundering: self.laundering,
            flushing: self.flushing,
            reading: self.reading,
            moving: self.moving,
            writing_back: self.writing_back,
            parking: self.parking,
            read: self.read,
            listed: self.listed,
            evictions: self.evictions,
            space_short: self.space_short,
            copies_at: self.copies_at,
            decisions: Vec::new(),
            homes: self.homes.clone(),
            base: self.base.clone(),
        };
        child.count_afresh();
        child
    }

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

    /// The remembered decisions.
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    #[inline]
    pub(crate) fn decide(&mut self, d: Decision) {
        if self.decisions.len() < self.decisions.capacity() {
            self.decisions.push(d);
        }
    }

    /// Whether no read, no write and no batch to be unmapped is under way: what a fork waits for. (The machine's locks see to the
    /// rest.)
    pub fn is_quiescent(&self) -> bool {
        self.reading == 0 && self.laundering == 0 && self.moving == 0 && self.writing_back == 0 && self.parking == 0
    }

    /// Every frame, page and queue adds up. For tests; walks everything.
    ///
    /// # Panics
    /// If something does not.
    pub fn check(&self, objects: u16) {
        let (mut with_frame, mut laundering) = (0, 0);
        let mut known = [[0; 2]; POLICIES_MAX];
        for o in 0..objects {
            let mut at = PageId::new(ObjectId(o), 0);
            while let Some(page) = self.table.next_present(at, OBJECT_PAGES_MAX) {
                let word = self.table.get(page);
                laundering += word.laundering() as u32;
                if word.has_frame() {
                    with_frame += 1;
                    let frame = word.frame();
                    assert_eq!(self.frames.page[frame.at()], page, "{word:?}");
                    let on = self.frames.on[frame.at()];
                    if let Some(place) = self.place(frame, page) {
                        known[self.policies.number(page.object())][usize::from(place == Place::Taken)] += 1;
                    }
                    match word.state() {
                        _ if word.busy() => assert_eq!(on, On::Nothing),
                        State::Active if on == On::Watched => assert!(!word.wired(), "{page:?} {word:?}"),
                        State::Active => assert_eq!(on, On::Nothing),
                        State::Inactive if on == On::Laundry => {
                            assert!(word.laundering() && !word.laundering_orphaned(), "{page:?} {word:?}")
                        }
                        State::Inactive => assert_eq!(on, On::Inactive, "{page:?} {word:?}"),
                        State::Clean => assert_eq!(on, On::Clean),
                        _ => unreachable!("{word:?} has a frame"),
                    }
                }
                if word.state() == State::PagedOut || word.state() == State::Clean {
                    assert!(self.pager.tag(page).is_some() || self.at_home(page).is_some(), "{page:?} {word:?} is not stored");
                }
                at = page.offset(1);
            }
        }
        assert!(self.used >= with_frame, "used {} < {with_frame}", self.used);
        assert_eq!(self.laundering, laundering);
        assert_eq!(self.listed, known.iter().map(|[listed, _]| listed).sum::<u32>());
        self.policies.check(&known);
    }
}

//! A simulated process: its memory as the kernel has it, its program threads, its page daemons, and what the program must see.
//!
//! Pages are numbered `0..pages` over two objects; the numbers start off a border of the page table's leaves, so that ranges cross
//! one. Memory is two maps: `mapped` (what the program sees without a fault) and `parked` (what a frame holds out of its sight).

use crate::compressed::WriteBack;
use crate::device::{Device, Item, Read, Write};
use crate::store::{Place, Store, Watched};
use overspill_vm::types::{FrameId, ObjectId, PageId, PageIndex};
use overspill_vm::{CLUSTER_PAGES_MAX, Laundry, Member, MoveRun, PageIn, Place as Goes, Swapoff, Vm};
use std::ops::Range;

/// Where page numbers start in an object.
const BASE: u64 = 512 - 37;
/// Pages per mapping (VMA): readahead and zero fill end at its border.
const VMA_PAGES: u64 = 300;

/// An access that a thread is at.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The page.
    pub at: usize,
    /// What is written; `None`: a read.
    pub write: Option<u64>,
    /// Step at which it began.
    pub since: u64,
    /// Faults it has taken.
    pub faults: u32,
    /// Nothing could be evicted: ask for a frame above the budget.
    pub over: bool,
}

/// What a program thread does.
#[derive(Clone, Copy, Debug)]
pub enum Thread {
    /// Between operations.
    Idle,
    /// About to touch its page (again).
    Touch(Access),
    /// Its page is busy, or being read: it is to be woken.
    Waiting(Access),
    /// In the section of a soft fault.
    Restoring(Access, FrameId, Option<PageIn>),
    /// In the section of a zero fill: how many pages, how many are done.
    Filling(Access, PageId, u32, u32),
    /// In a system call that changes the address space.
    Event,
}

/// What a page daemon does.
#[derive(Clone, Debug)]
pub enum Daemon {
    /// Between batches.
    Idle,
    /// Dropping the parked content of frames; how many are done.
    Dropping(Vec<FrameId>, usize),
    /// Looking at a batch: members, how many are done, what is to be written.
    Looking(Vec<Laundry>, usize, Vec<Item>),
    /// Finding slots for these; past memory, if the compressed device has refused them.
    Issuing(Vec<Item>, bool),
    /// In the section that unmaps a batch; how many are done.
    Parking(Vec<Member>, usize),
}

/// A cluster that has been read and goes to its places.
#[derive(Clone, Debug)]
pub struct Arriving {
    /// The read.
    pub read: Read,
    /// From the core.
    pub places: Box<[Goes; CLUSTER_PAGES_MAX]>,
    /// How many pages are done.
    pub done: u32,
    /// The next window.
    pub next: Option<PageIn>,
}

/// A run of a swapoff.
#[derive(Clone, Debug)]
pub enum Move {
    /// Being read.
    Reading(Read<MoveRun>),
    /// Read; these have no slot yet.
    Placing(MoveRun, Vec<Item>),
    /// These have no slot yet, the others are being written.
    Writing(MoveRun, Vec<Item>, Write),
}

/// A swapoff under way.
#[derive(Clone, Copy, Debug)]
pub struct Leaving {
    /// Where the core is.
    pub off: Swapoff,
    /// Pages left when there last were fewer than before.
    pub left: u64,
    /// Answers since then that there is no room.
    pub no_room: u32,
}

/// How a system call changes the address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// MADV_DONTNEED.
    Discard,
    /// munmap, and mmap of the same range at once.
    Unmap,
    /// mremap onto a range that is unmapped first.
    Remap {
        /// Its first page.
        to: usize,
    },
}

/// A system call under way.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// What.
    pub change: Change,
    /// First page.
    pub from: usize,
    /// Pages.
    pub count: usize,
    /// How far it is.
    pub stage: u32,
    /// Whose it is.
    pub thread: usize,
    /// The kernel answers fills and moves with EAGAIN until its message has been read.
    pub changing: bool,
}

impl Event {
    /// Whether the content of page `at` is in between.
    pub fn covers(&self, at: usize) -> bool {
        (self.from..self.from + self.count).contains(&at)
            || matches!(self.change, Change::Remap { to } if (to..to + self.count).contains(&at))
    }
}

/// A process. See the module.
pub struct Process<S: Store> {
    /// Its number.
    pub id: u32,
    /// Who it was forked from, and by which of its forks.
    pub parent: Option<(usize, u64)>,
    /// Not ended.
    pub alive: bool,
    /// The core.
    pub vm: Vm<Watched<S>>,
    /// Pages per object.
    pub per_object: usize,
    /// What the program sees.
    pub mapped: Vec<Option<u64>>,
    /// What frames hold out of its sight.
    pub parked: Vec<Option<u64>>,
    /// What the program must see.
    pub expected: Vec<u64>,
    /// Pages whose loss was injected.
    pub may_be_lost: Vec<bool>,
    /// Pages the program has wired.
    pub wired: Vec<bool>,
    /// Program threads.
    pub threads: Vec<Thread>,
    /// Page daemons.
    pub daemons: Vec<Daemon>,
    /// A system call under way.
    pub event: Option<Event>,
    /// Restores, zero fills, parks and arrivals between their two calls: no event is followed meanwhile.
    pub sections: u32,
    /// Reads in flight.
    pub reads: Vec<Read>,
    /// Reads that have arrived.
    pub arriving: Vec<Arriving>,
    /// Writes in flight.
    pub writes: Vec<Write>,
    /// Swapoffs under way.
    pub swapoffs: Vec<Leaving>,
    /// Runs of theirs.
    pub moves: Vec<Move>,
    /// Pages of the compressed device on their way to the next one.
    pub write_backs: Vec<WriteBack>,
    /// About to fork or end: nothing new is begun.
    pub freezing: bool,
    /// Ends when frozen, rather than forks.
    pub ending: bool,
    /// Pages looked at or refused, and batches that were empty, since the daemon last freed a frame or stored a page.
    pub fruitless: u32,
    /// The most that may be charged, not counting the next two: the limit, or what was charged when it was lowered.
    pub ceiling: u64,
    /// Frames the machine asked for above the budget, since the charge was last within it.
    pub asked_over: u64,
    /// Second copies that writes hold.
    pub held_copies: u64,
}

impl<S: Store> Process<S> {
    /// The core's name for page `at`.
    pub fn page(&self, at: usize) -> PageId {
        PageId::new(ObjectId((at / self.per_object) as u16), BASE + (at % self.per_object) as u64)
    }
    /// The simulation's number for `page`.
    pub fn at(&self, page: PageId) -> usize {
        page.object().0 as usize * self.per_object + (page.index() - BASE) as usize
    }
    /// The mapping around page `at`, as page indices.
    pub fn bounds(&self, at: usize) -> Range<PageIndex> {
        let within = (at % self.per_object) as u64;
        let first = within / VMA_PAGES * VMA_PAGES;
        BASE + first..BASE + (first + VMA_PAGES).min(self.per_object as u64)
    }
    /// Whether the content of page `at` is in between.
    pub fn in_event(&self, at: usize) -> bool {
        self.event.is_some_and(|e| e.covers(at))
    }
    /// Whether the kernel answers EAGAIN now.
    pub fn changing(&self) -> bool {
        self.event.is_some_and(|e| e.changing)
    }
    /// Threads that wait for page `at` try again.
    pub fn wake(&mut self, at: usize) {
        for thread in &mut self.threads {
            if let Thread::Waiting(access) = *thread
                && access.at == at
            {
                *thread = Thread::Touch(access);
            }
        }
    }
    /// Takes the parked content of `frame` away, leaving none.
    pub fn unpark(&mut self, frame: FrameId) -> Option<u64> {
        self.parked[frame.at()].take()
    }
    /// Parks `value` in `frame`.
    pub fn park(&mut self, frame: FrameId, value: u64) {
        assert!(self.parked[frame.at()].is_none(), "frames: {frame:?} holds parked content already");
        self.parked[frame.at()] = Some(value);
    }
    /// The stored place of page `at`.
    pub fn stored(&self, at: usize) -> Option<Place> {
        self.vm.pager().inner.stored(self.page(at)).map(|(slot, _)| self.vm.pager().place(slot))
    }
    /// What `place` holds: in the process's compressed memory, or on the device.
    pub fn held(&self, place: Place, device: &Device) -> Option<u64> {
        match &self.vm.pager().pool {
            Some(pool) if pool.file == place.0 => pool.peek(place.1),
            _ => device.peek(place),
        }
    }
    /// No I/O, no section, no batch, no system call is under way.
    pub fn quiet(&self) -> bool {
        self.sections == 0
            && self.event.is_none()
            && self.reads.is_empty()
            && self.arriving.is_empty()
            && self.writes.is_empty()
            && self.moves.is_empty()
            && self.write_backs.is_empty()
            && self.daemons.iter().all(|d| matches!(d, Daemon::Idle))
    }
    /// Frames whose content is still to be dropped, and are counted as used until then.
    pub fn frames_to_drop(&self) -> usize {
        self.daemons
            .iter()
            .map(|d| match d {
                Daemon::Dropping(frames, _) => frames.len(),
                _ => 0,
            })
            .sum()
    }
}

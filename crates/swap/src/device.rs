//! One swap device: the state of its slots.

use crate::bitmap::{Bitmap, WORD_BITS};
use crate::blist::{Blist, RUN_MAX};
use crate::device_stats::DeviceStats;
use crate::fork_epochs::Epochs;
use alloc::vec;
use alloc::vec::Vec;
use overspill_vm::pager::DeviceUse;

/// A device's usable length grows by this many slots: 64 MiB. Guessed: long next to any cluster, short next to any disk.
pub const GROW_SLOTS: u32 = 16 * 1024;

const _: () = assert!(GROW_SLOTS >= RUN_MAX, "one step of growth must do for any run");

/// Slots whose bytes are given back to the file system, and got back, together: 2 MiB, as long as a writer's window. Shorter blocks
/// would scatter the file over the disk; longer ones are seldom free as a whole.
pub const BLOCK_SLOTS: u32 = RUN_MAX;

/// The longest run that is asked for: the longest cluster.
pub(crate) const WANT_MAX: u32 = 128;

/// As long as a lower priority has a run of this many slots, no shorter run is taken on a higher priority.
pub(crate) const SHORT_RUN: u32 = 16;

/// A device of more than two steps of growth is sparse if it is at least so many times as long as what it holds. If pages are
/// changed at random, runs that become free are 50 slots long on average then, longer than most clusters.
const SPARSE: u32 = 4;

/// The number of streams of writes that are kept apart on a device.
pub(crate) const WRITERS: usize = 8;

/// What a device is used for at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceState {
    /// Pages are written there.
    On,
    /// Out of space: pages are written only where the file has blocks already.
    Full,
    /// A parent's device: only read.
    Inherited,
    /// A swapoff is under way.
    Leaving,
    /// It failed too often: nothing is written there any more. The machine should begin a swapoff.
    Failed,
}

/// The status of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceStatus {
    /// What it is used for.
    pub state: DeviceState,
    /// Higher ones are written first.
    pub priority: i16,
    /// Its greatest length, in slots (pages).
    pub slots: u32,
    /// Its length so far, in slots.
    pub len: u32,
    /// Slots in use, including those that wait for children (0 on an inherited device), in slots.
    pub used: u32,
    /// Of these, slots that wait for [`child_gone`](crate::Devices::child_gone), in slots.
    pub deferred: u32,
    /// Pages of this process that are stored there, in pages.
    pub stored: u32,
    /// Of the free slots below `len`, how many lie in holes shorter than a whole block of [`RUN_MAX`] slots, in thousandths.
    pub fragmented_permille: u32,
    /// Extents that it is made of; 0 if it has none.
    pub extents: u32,
    /// Slots whose bytes were given back to the file system and not got back, in slots.
    pub absent: u32,
    /// Slots whose bytes were ever given back, in slots.
    pub given_back: u64,
}

/// State of a block of [`BLOCK_SLOTS`] slots: nothing is known. (The states are numbers, because zeroed tables cost no memory.)
pub(crate) const OTHER: u8 = 0;

/// State of a block: it was all free at the last look.
pub(crate) const SEEN_FREE: u8 = 1;

/// State of a block: its bytes were given back.
pub(crate) const ABSENT: u8 = 2;

/// The place where a writer goes on: the window `at..end` was all free when it was chosen.
#[derive(Clone, Copy, Default)]
pub(crate) struct Window {
    pub(crate) at: u32,
    pub(crate) end: u32,
}

/// One device: the state of its slots.
#[derive(Clone)]
pub(crate) struct Device {
    /// Its greatest length; 0: there is no device in this entry.
    pub(crate) slots: u32,
    /// This process writes it. Otherwise it is inherited, and of the fields below only the counts and `reading` are kept.
    pub(crate) own: bool,
    /// The machine saw ENOSPC.
    pub(crate) full: bool,
    /// It failed too often.
    pub(crate) failed: bool,
    /// The machine knows that, and has not given up since.
    pub(crate) told: bool,
    /// The number of the swapoff that is under way.
    pub(crate) leaving: Option<u32>,
    pub(crate) priority: i16,
    /// It is made of extents, and is as long as they are.
    pub(crate) mapped: bool,
    /// It is memory of this process: the page of each slot, as [`PageId::raw`]. Slots that are not needed any more are `deferred`
    /// until the machine has emptied them. Meanwhile nobody reads their entries, and these link them: each has the slot that was
    /// deferred before.
    pub(crate) memory: Option<Vec<u64>>,
    /// A page that comes into a frame should give up its copy here.
    pub(crate) drops_copies: bool,
    /// An estimate of how many more slots it has room for.
    pub(crate) room_max: u32,
    /// Bytes of the memory's tables per slot.
    pub(crate) slot_bytes: u32,
    /// The head of that list, which is `deferred_count` slots long: the next slot to be emptied.
    pub(crate) freed_next: u32,
    /// The machine cannot make it longer at the moment.
    pub(crate) refused: bool,
    /// The machine gets space for it: it stays until that has ended.
    pub(crate) growing: bool,
    /// Its bytes cannot be given back.
    pub(crate) unpunchable: bool,
    /// The states of its blocks: [`OTHER`], [`SEEN_FREE`], [`ABSENT`].
    pub(crate) blocks: Vec<u8>,
    /// The block to look at next.
    pub(crate) punch_next: u32,
    /// Slots in absent blocks.
    pub(crate) absent_count: u32,
    pub(crate) given_back: u64,
    /// The number of its extents.
    pub(crate) extents: u32,
    /// Slots that their page has left and that a child may still read.
    pub(crate) deferred: Bitmap,
    /// By slot: the epoch in which its page came and, if the slot is deferred, the one in which it left.
    pub(crate) births: Vec<u8>,
    pub(crate) deaths: Vec<u8>,
    /// Slots that a page has.
    pub(crate) owned: Bitmap,
    pub(crate) blist: Blist,
    pub(crate) taken_count: u32,
    pub(crate) owned_count: u32,
    pub(crate) deferred_count: u32,
    /// Reads under way.
    pub(crate) reading: u32,
    /// There was a fork since it was added.
    pub(crate) forked: bool,
    /// One more than the highest slot that was ever written.
    pub(crate) written_end: u32,
    pub(crate) windows: [Window; WRITERS],
    /// Where to look for the next window.
    pub(crate) window_next: u32,
    pub(crate) stats: DeviceStats,
}

/// Writes new values only: a table that was never touched has no memory.
#[inline]
pub(crate) fn set(epoch: &mut u8, to: u8) {
    if *epoch != to {
        *epoch = to;
    }
}

impl Device {
    /// An empty entry with tables.
    pub(crate) fn new(slots_max: u32) -> Self {
        Device {
            slots: 0,
            own: false,
            full: false,
            failed: false,
            told: false,
            leaving: None,
            priority: 0,
            mapped: false,
            refused: false,
            growing: false,
            unpunchable: false,
            blocks: vec![OTHER; slots_max.div_ceil(BLOCK_SLOTS) as usize],
            memory: None,
            drops_copies: false,
            room_max: u32::MAX,
            slot_bytes: 0,
            freed_next: 0,
            punch_next: 0,
            absent_count: 0,
            given_back: 0,
            extents: 0,
            deferred: Bitmap::new(slots_max),
            births: vec![0; slots_max as usize],
            deaths: vec![0; slots_max as usize],
            owned: Bitmap::new(slots_max),
            blist: Blist::new(slots_max),
            taken_count: 0,
            owned_count: 0,
            deferred_count: 0,
            reading: 0,
            forked: false,
            written_end: 0,
            windows: [Window::default(); WRITERS],
            window_next: 0,
            stats: DeviceStats::default(),
        }
    }

    /// Makes the entry free again. => nothing is stored, taken or read there, and it does not grow
    pub(crate) fn clear(&mut self) {
        assert!(self.use_of() == DeviceUse::default(), "a device is removed while something needs it");
        for index in 0..self.words() {
            // slots that children may still read are theirs; the owned bits of an inherited device are the parent's
            for set in [&mut self.deferred, &mut self.owned] {
                set.set_word(index, 0);
            }
        }
        self.blocks[..self.blist.len().div_ceil(BLOCK_SLOTS) as usize].fill(OTHER);
        self.blist.clear();
        self.slots = 0;
        (self.own, self.full, self.failed, self.told, self.leaving) = (false, false, false, false, None);
        (self.deferred_count, self.forked, self.written_end) = (0, false, 0);
        (self.windows, self.window_next, self.mapped, self.punch_next) = ([Window::default(); WRITERS], 0, false, 0);
        (self.refused, self.unpunchable, self.absent_count, self.given_back, self.extents) = (false, false, 0, 0, 0);
        self.stats = DeviceStats::default();
        (self.memory, self.drops_copies, self.room_max, self.slot_bytes, self.freed_next) = (None, false, u32::MAX, 0, 0);
    }

    #[inline]
    pub(crate) fn assert_counts(&self) {
        let counts = [self.taken_count, self.owned_count, self.deferred_count, self.absent_count];
        let sum: u64 = counts.into_iter().map(u64::from).sum();
        assert!(sum == u64::from(self.blist.used()), "taken + owned + deferred + absent == used");
    }

    pub(crate) fn use_of(&self) -> DeviceUse {
        let (stored, taken, reading) = (self.owned_count.into(), self.taken_count.into(), self.reading.into());
        DeviceUse { stored, taken, reading, growing: self.growing }
    }

    /// Ends its swapoff, if there is one, without success. Returns whether there was one.
    pub(crate) fn stay(&mut self) -> bool {
        self.told = false;
        self.stats.begin_row();
        self.leaving.take().is_some()
    }

    /// Whether new pages may go there.
    pub(crate) fn gives(&self) -> bool {
        // a full memory device cannot reuse blocks as a full file can
        self.own && !self.failed && self.leaving.is_none() && !(self.full && self.memory.is_some())
    }

    /// The end of the slots that may be given out.
    pub(crate) fn end(&self) -> u32 {
        match self {
            _ if self.full => self.written_end,
            _ if self.mapped => self.blist.len(),
            _ => self.slots,
        }
    }

    /// Gives back taken slots that will not be written.
    pub(crate) fn untake(&mut self, first: u32, count: u32) {
        self.blist.free_run(first, count);
        self.taken_count -= count;
        self.assert_counts();
    }

    /// Whether it is a device of extents that can get more, or get slots back that were given back.
    pub(crate) fn can_grow(&self) -> bool {
        self.mapped && !self.full && !self.refused && (self.blist.len() < self.slots || self.absent_count > 0)
    }

    /// Whether it should not grow for the sake of longer runs: it has much more space than it needs.
    pub(crate) fn is_sparse(&self) -> bool {
        let len = self.blist.len() - self.absent_count;
        len > 2 * GROW_SLOTS && self.in_use() <= len / SPARSE
    }

    /// Slots that it can still give; a few less if it is full.
    pub(crate) fn room(&self) -> u32 {
        match self.gives() {
            true if self.can_grow() => self.slots - self.in_use(),
            true => self.end().saturating_sub(self.blist.used()).min(self.room_max),
            false => 0,
        }
    }

    /// Whether it has room for pages of any content, and is not full before long.
    pub(crate) fn takes_all(&self) -> bool {
        self.memory.is_none() && self.room() > 0
    }

    /// Slots in use, without absent ones and those that the machine must still empty.
    pub(crate) fn in_use(&self) -> u32 {
        self.blist.used() - self.absent_count - (self.deferred_count - self.waiting_count())
    }

    /// Whether the slots of block `block` are all free. => it is whole
    pub(crate) fn is_block_free(&self, block: u32) -> bool {
        self.blist.is_all_free(block * BLOCK_SLOTS, BLOCK_SLOTS)
    }

    /// Sets the state of the blocks of a run. => they are whole
    pub(crate) fn set_blocks(&mut self, first: u32, count: u32, block: u8) {
        self.blocks[(first / BLOCK_SLOTS) as usize..][..(count / BLOCK_SLOTS) as usize].fill(block);
    }

    /// Takes exactly `want` slots. Grows if necessary.
    pub(crate) fn alloc_exact(&mut self, want: u32, writer: usize) -> Option<u32> {
        let mut first = self.find(want, writer);
        let len = self.blist.len();
        if first.is_none() && !self.full && len < self.end() {
            self.blist.set_len(len.saturating_add(GROW_SLOTS).min(self.slots));
            first = self.find(want, writer);
        }
        let first = first?;
        self.blist.take(first, want);
        let window = &mut self.windows[writer];
        window.at = first + want;
        window.end = window.end.max(window.at);
        self.taken_count += want;
        self.assert_counts();
        Some(first)
    }

    /// Finds `want` free slots: in the writer's window, in a new window, or anywhere.
    pub(crate) fn find(&mut self, want: u32, writer: usize) -> Option<u32> {
        let end = self.end();
        let window = self.windows[writer];
        if let Some(first) = self.blist.find_within(window.at, window.end.min(end), want) {
            return Some(first);
        }
        if let Some(fresh) = self.blist.find_from(self.window_next, RUN_MAX, end) {
            self.window_next = fresh + RUN_MAX;
            // a single writer goes on where it was, across the border of its window
            let at = if fresh == window.end { window.at } else { fresh };
            self.windows[writer] = Window { at, end: fresh + RUN_MAX };
            return self.blist.find_within(at, fresh + RUN_MAX, want);
        }
        let first = self.blist.find_from(window.at, want, end)?;
        self.windows[writer].end = first + want;
        Some(first)
    }

    /// Gives a taken slot a page.
    pub(crate) fn assign(&mut self, at: u32, epochs: &mut Epochs) {
        assert!(self.own, "a slot of a read-only device cannot be assigned");
        self.assert_taken(at);
        if self.memory.is_none() {
            set(&mut self.births[at as usize], epochs.birth());
        }
        self.owned.insert(at);
        self.taken_count -= 1;
        self.owned_count += 1;
        self.written_end = self.written_end.max(at + 1);
    }

    /// Frees a taken slot that gets no page.
    pub(crate) fn free_taken(&mut self, at: u32) {
        if self.own {
            self.assert_taken(at);
            match self.memory {
                Some(_) => {
                    self.taken_count -= 1;
                    self.defer(at);
                    self.assert_counts();
                }
                None => self.untake(at, 1),
            }
        }
    }

    /// Takes the page off an owned slot.
    pub(crate) fn release(&mut self, at: u32, epochs: &mut Epochs) {
        self.owned_count -= 1;
        if self.own {
            self.owned.remove(at);
            if self.memory.is_some() {
                self.defer(at); // until the machine has emptied it; a child has a copy of its own
            } else if let Some(death) = epochs.death(self.births[at as usize]) {
                self.defer(at);
                set(&mut self.deaths[at as usize], death);
            } else {
                self.blist.free(at);
            }
            self.assert_counts();
        }
    }

    fn assert_taken(&self, at: u32) {
        let used = at < self.blist.len() && !self.blist.is_free(at);
        assert!(used && !self.owned.get(at) && !self.deferred.get(at), "slot {at} has not been taken");
    }

    pub(crate) fn words(&self) -> usize {
        self.blist.len().div_ceil(WORD_BITS) as usize
    }

    pub(crate) fn status(&self) -> DeviceStatus {
        let free = u64::from(self.blist.free_count());
        let broken = free - u64::from(self.blist.free_in_blocks());
        DeviceStatus {
            state: match self {
                _ if self.leaving.is_some() => DeviceState::Leaving,
                _ if self.failed => DeviceState::Failed,
                _ if !self.own => DeviceState::Inherited,
                _ if self.full || self.refused => DeviceState::Full,
                _ => DeviceState::On,
            },
            priority: self.priority,
            slots: self.slots,
            len: self.blist.len(),
            used: if self.own { self.in_use() } else { 0 },
            deferred: if self.own { self.waiting_count() } else { 0 },
            stored: self.owned_count,
            fragmented_permille: (broken * 1000).checked_div(free).unwrap_or(0) as u32,
            extents: self.extents,
            absent: if self.own { self.absent_count } else { 0 },
            given_back: self.given_back,
        }
    }

    pub(crate) fn metadata_bytes(&self) -> u64 {
        // bits per slot: owned; after a fork also deferred, birth and death
        let bits = if self.forked { 18 } else { 1 };
        let blocks = if self.mapped { u64::from(self.blist.len() / BLOCK_SLOTS) } else { 0 };
        let memory = u64::from(self.blist.len()) * u64::from(self.slot_bytes);
        self.blist.metadata_bytes() + self.words() as u64 * u64::from(WORD_BITS / 8) * bits + blocks + memory
    }
}

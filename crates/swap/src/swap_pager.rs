//! The swap pager: swap blocks over the slots of several devices, that come and go while pages are stored on them, and what a fork
//! does to all that.
//!
//! ```text
//!   slot number space   entry 0           | entry 1           | entry 2          | ...
//!                       inherited         | own               | (gone)           |      `slots_max`, rounded up to 2^k, slots each
//!                       (read only:       | this process writes here
//!                        a parent's file)
//!
//!   a slot of an own device:
//!
//!            alloc_run            assign            release
//!     free ------------> taken ------------> owned ------------> free
//!                          |                   |
//!                          +--- free_slot      +--- release, and a child may read it ---> deferred --- child_gone ---> free
//!
//!   a device:
//!
//!            add_device        leave (swapoff)                remove: nothing stored, no write, no read
//!     gone -------------> on <-----------------> leaving ----------------------------------------> gone
//!                        ^  |       stay              ^
//!          set_full ---- |  | io_ended: repeated      | leave
//!                       full| errors                  |
//!                           +----------------> retired+
//! ```
//!
//! # For the machine: how devices are used
//!
//! - **swapon**: [`Devices::add_device`]`(slots, priority)` answers an entry ([`DeviceId`], below `devices_max`); keep the file
//!   (or whatever) under that number. Entries of devices that are gone are used again, so a machine may swap on and off for ever. A
//!   device of several pieces (a file that grows in chunks, several files, physical extents): [`Devices::add_mapped_device`],
//!   then whenever [`Devices::wants_extent`] names one, [`Devices::refill_begin`] or [`Devices::add_extent`];
//!   [`Devices::locate`] says where a slot's bytes are; [`Devices::punch_begin`] names slots whose bytes can be given back to
//!   the file system.
//! - **Reads and writes**: unchanged; [`Devices::device_of`] / [`Devices::locate`] name the device of a slot. After each
//!   operation call [`Devices::io_ended`] (counters, percentiles); if it answers `true` the device has just been retired after
//!   repeated errors, and the machine should begin a swapoff of it as if someone had asked for one. ENOSPC:
//!   [`Devices::set_full`], as before.
//! - **swapoff**: `Vm::swapoff_begin`, then `Vm::swapoff_next` until `Done`; see there (`overspill_vm`, `swapoff.rs`). A device
//!   whose entry is gone has no read or write under way, so its file can be closed. `Vm::swapoff_cancel` at any moment.
//! - **swaps**: [`Devices::iter`] and [`Devices::status`]; [`Devices::stats`] for counters and percentiles.
//! - **Compressed memory**: [`Devices::add_memory_device`]; what could not be kept goes to slots of
//!   [`Pager::alloc_run_past_memory`].
//! - **Fork**: as before ([`Devices::fork_parent`], [`Devices::fork_child`], [`Devices::child_gone`]). `Vm::is_quiescent`
//!   also waits for runs of a swapoff. The child does not go on with a swapoff of its parent's.
//!
//! # How it works
//!
//! **Choice.** Devices of the highest priority first; among equals a run each in turn. A run that is much shorter than wanted
//! is taken only when no lower priority has a longer one either. Within a device, each of eight *writers* (an address range of a
//! GiB hashes to one) has a window of [`RUN_MAX`] free slots to itself as long as there are such, so that pages that lie near each
//! other in memory lie near each other on the device even if they are written in turns; then next-fit from where the writer was.
//!
//! **Fork.** A child reads its parent's files by the slots that it has inherited. In the parent, a slot whose page leaves, and had
//! it at the fork of a child that has not ended, is deferred: remembered, not handed out, so nobody writes over what that child may
//! still read. [`Devices::child_gone`] frees what waited for that child alone (`fork_epochs`). In the child,
//! [`Devices::fork_child`] makes all devices there are read-only and adds one of its own; what it forgets on an inherited device
//! it just forgets. A grandchild inherits both.
//!
//! **swapoff and forks.** Deferred slots do not keep a device: once no page of *this* process is stored there it is gone for this
//! process, and its file is closed here. A child that may still read it has it open itself, and the file lives as long as anyone
//! has. (A block device must not be given to others before the children are gone; the machine counts them anyway.) In the child the
//! device is inherited; it leaves by the same steps, when it is asked to.
//!
//! **Growth.** A device of extents gets them from the machine, before it has no window left for a writer. Blocks of 2 MiB
//! ([`BLOCK_SLOTS`]) that stay free are given back to the file system, all but one for each writer. From then on such a block is
//! *absent*: used, as far as the free list knows, and nobody's. It is got back before the file grows further, so whatever is free
//! has room on the disk. Another device's usable length grows in steps of [`GROW_SLOTS`] when no free run of the wanted length is
//! left, so a file, and the tables, get no longer than they must; only at the greatest length do writes get shorter. A device that
//! is out of space ([`Devices::set_full`]) gives slots only below the highest that was ever written, where the file has its
//! blocks already.
//!
//! **Integrity.** The hash of what was written is kept here, in memory, per page, not on the device; and a page's slot is found by
//! its object and index. So whatever is read from a slot is accepted only if it is, byte for byte (but for a chance of 2^-128),
//! what was last written *for that page*: content of another page's slot, of an older version of the same page, or of a write that
//! was lost has another hash, or is the same content. Object, page and generation need not be written beside the content.
//!
//! Invariants, per device, asserted at each change:
//!
//! - `taken + owned + deferred + absent == used`, `used + free == len <= slots` (own devices)
//! - no slot has two pages: `assign` needs a slot that is taken, and taken it is no longer then
//! - a slot is deferred only as long as a child that may read it lives
//! - all slots in use are below `len`; all written ones below `written_end <= len`
//! - `owned` = pages stored there, on inherited devices too; a device that is gone has none
//!
//! Memory, per slot below `len`: 1.07 bits free list, 1 bit owned, after a fork 1 bit deferred and two bytes for epochs: at most
//! 19.1 bits, which is 0.06 per cent. Per page: see `swap_block`. All devices' tables are made at set-up for the largest device, as
//! address space.
//!
//! Locks: none; `&mut` is the lock. No I/O, no waiting, no allocation after [`SwapPager::new`].
//!
//! What it cannot do: free a slot of the parent's before the child has ended, when both have forgotten it.
//!
//! Source: FreeBSD `swap_pager.c` (devices as ranges of one `daddr` space, next device when one is full); Linux `swapfile.c`
//! (priorities, clusters per CPU); read, not copied. The fork scheme is our own, since the kernel has a reference count per slot,
//! which two processes cannot share without shared memory.

use crate::bitmap::{Bitmap, WORD_BITS};
use crate::blist::{Blist, RUN_MAX};
use crate::device_stats::{DeviceStats, Io};
use crate::extent::{Extent, ExtentMap, NoExtents};
use crate::fork_epochs::{Epochs, Renumbered};
use crate::swap_block::{LEAF_PAGES, NoMetadata, SwapBlocks};
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;
use overspill_vm::pager::{DeviceUse, HasPage, Location, Pager, Scan, SlotRun};
use overspill_vm::types::{ContentHash, DeviceId, PageId, PageIndex, Slot};

/// A device's usable length grows by this many slots: 64 MiB. Guessed: long next to any cluster, short next to any disk.
pub const GROW_SLOTS: u32 = 16 * 1024;
const _: () = assert!(GROW_SLOTS >= RUN_MAX, "one step of growth must do for any run");
/// Slots whose bytes are given back to the file system together, and got back: 2 MiB, what a writer's window is. Less would scatter
/// the file over the disk; more is seldom free as a whole.
pub const BLOCK_SLOTS: u32 = RUN_MAX;
/// A run that is asked for is no longer: the longest cluster.
const WANT_MAX: u32 = 128;
/// A device is retired after so many failed reads, or writes, in a row, if there is another.
pub const ERRORS_MAX: u32 = 8;
/// As long as a lower priority has a run of so many slots, no shorter ones are taken on a higher.
const SHORT_RUN: u32 = 16;
/// Streams of writes that are kept apart on a device.
const WRITERS: usize = 8;
/// log2 of the pages that surely belong to one writer: 1 GiB.
const WRITER_SHIFT: u32 = 18;
/// Swap blocks that one step of a walk looks at, at most: a few microseconds.
const SCAN_LEAVES_MAX: u32 = 32;

/// Nodes are made for pages that lie so thin. See [`Config::pages_max`].
const LEAF_PAGES_STORED_MIN: u64 = LEAF_PAGES / 8;

/// What a [`SwapPager`] is made for. All of it is limits; unused capacity costs address space only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// How many stored pages can be remembered, in pages, as long as blocks of 128 pages (512 KiB) of which any page is stored have
    /// 16 stored on average. If they lie thinner it is fewer (`pages_max / 16` such blocks), if thicker more.
    pub pages_max: u64,
    /// The length of the first device, and the most that a later one can have, in slots (pages).
    pub slots_max: u32,
    /// How many devices there can be at a time, inherited ones included. One fork deeper takes one more. `devices_max` times
    /// `slots_max` (rounded up to a power of two) is at most 2^32.
    pub devices_max: u16,
    /// How many extents there can be, of all devices together ([`Devices::add_mapped_device`]); 0 if none will be used.
    pub extents_max: u32,
}

/// Why a device could not be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AddDeviceError {
    /// There are as many as there can be.
    TooMany {
        /// How many that is.
        devices_max: u16,
    },
    /// It has no slots.
    Empty,
    /// It has more slots than a device can have.
    TooLong {
        /// How many that is, in slots (pages).
        slots_max: u32,
    },
}

impl core::fmt::Display for AddDeviceError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            AddDeviceError::TooMany { devices_max } => {
                write!(f, "there are {devices_max} swap devices, and no more are possible: swap one off first")
            }
            AddDeviceError::Empty => write!(f, "the swap device has no room for a single page"),
            AddDeviceError::TooLong { slots_max } => {
                write!(f, "the swap device is longer than the {} MiB that were allowed for at the start", slots_max >> 8)
            }
        }
    }
}

impl core::error::Error for AddDeviceError {}

/// Why an extent could not be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AddExtentError {
    /// There is no such device, or it has no extents.
    NotMapped,
    /// There are as many extents as there can be.
    TooMany {
        /// How many that is.
        extents_max: u32,
    },
    /// The device would be longer than a device can be.
    TooLong {
        /// How many slots it can still get, in slots (pages).
        slots_left: u32,
    },
}

impl core::fmt::Display for AddExtentError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            AddExtentError::NotMapped => write!(f, "the swap device is not one that is made of extents"),
            AddExtentError::TooMany { extents_max } => {
                write!(f, "the swap devices have {extents_max} extents, and no more are possible: use files in fewer pieces")
            }
            AddExtentError::TooLong { slots_left } => {
                write!(f, "the swap device can grow by {} MiB only: add another device", slots_left >> 8)
            }
        }
    }
}

impl core::error::Error for AddExtentError {}

/// What a device is there for at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceState {
    /// Pages are written there.
    On,
    /// Out of space: pages are written only where the file has blocks already.
    Full,
    /// A parent's: only read.
    Inherited,
    /// A swapoff is under way.
    Leaving,
    /// It failed too often: nothing is written there any more. A swapoff should take it off.
    Retired,
}

/// How a device stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceStatus {
    /// What it is there for.
    pub state: DeviceState,
    /// Higher ones are written first.
    pub priority: i16,
    /// Its greatest length, in slots (pages).
    pub slots: u32,
    /// Its length so far, in slots.
    pub len: u32,
    /// Slots in use, those that wait for children included (0 on an inherited device), in slots.
    pub used: u32,
    /// Of these, slots that wait for [`Devices::child_gone`], in slots.
    pub deferred: u32,
    /// Pages of this process that are stored there, in pages.
    pub stored: u32,
    /// Of the free slots below `len`, how many lie in holes shorter than a whole block of [`RUN_MAX`] slots, in thousandths.
    pub fragmented_permille: u32,
    /// Pieces that it is made of; 0 if it is one whole.
    pub extents: u32,
    /// Slots whose bytes the file system has, and may give to others, in slots.
    pub absent: u32,
    /// Slots whose bytes were ever given back, in slots.
    pub given_back: u64,
}

/// What [`Devices::punch_begin`] came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Punch {
    /// These slots have stayed free; they are held until [`Devices::punched`].
    Run(SlotRun),
    /// Nothing so far; there is more of the device to look at.
    More,
    /// The end of the device, or there is nothing to be had on it.
    End,
}

/// How a block of [`BLOCK_SLOTS`] slots stands: nothing is known. Numbers, because zeroed tables cost no memory.
const OTHER: u8 = 0;
/// It was all free the last time.
const SEEN_FREE: u8 = 1;
/// Its bytes were given back.
const ABSENT: u8 = 2;

/// Where a writer goes on: the window `at..end` was all free when it was chosen.
#[derive(Clone, Copy, Default)]
struct Window {
    at: u32,
    end: u32,
}

/// One device: the state of its slots.
#[derive(Clone)]
struct Device {
    /// Its greatest length; 0: there is no device in this entry.
    slots: u32,
    /// This process writes it. Otherwise it is inherited: of what is below, only the counts and `reading` are kept.
    own: bool,
    /// The machine saw ENOSPC.
    full: bool,
    /// It failed too often.
    retired: bool,
    /// The number of the swapoff that is under way.
    leaving: Option<u32>,
    priority: i16,
    /// It is made of extents, and is as long as they are.
    mapped: bool,
    /// It is memory of this process: by slot, the page that has it, as [`PageId::raw`]. Slots that nobody needs any more are
    /// `deferred` until the machine has emptied them.
    memory: Option<Vec<u64>>,
    /// A copy there of a page that is in a frame is worth less than the memory that it takes.
    drops_copies: bool,
    /// It is thought to have room for so many slots more.
    room_max: u32,
    /// Bytes of the memory's tables per slot.
    slot_bytes: u32,
    /// Where the next slot to be emptied is looked for, in words of `deferred`.
    freed_next: usize,
    /// There is no more to be had for it at the moment.
    refused: bool,
    /// Its bytes cannot be given back.
    unpunchable: bool,
    /// How its blocks stand: [`OTHER`], [`SEEN_FREE`], [`ABSENT`].
    blocks: Vec<u8>,
    /// The block that is looked at next.
    punch_next: u32,
    /// Slots in absent blocks.
    absent_count: u32,
    given_back: u64,
    /// The extents that it has.
    extents: u32,
    /// Slots that their page has left and that a child may still read.
    deferred: Bitmap,
    /// By slot, of those that a page has or had: the epochs in which that came and, if the slot is deferred, left.
    births: Vec<u8>,
    deaths: Vec<u8>,
    /// Slots that a page has.
    owned: Bitmap,
    blist: Blist,
    taken_count: u32,
    owned_count: u32,
    deferred_count: u32,
    /// Reads under way.
    reading: u32,
    /// There was a fork since it is there.
    forked: bool,
    /// One more than the highest slot that was ever written.
    written_end: u32,
    windows: [Window; WRITERS],
    /// Where the next window is looked for.
    window_next: u32,
    stats: DeviceStats,
}

impl Device {
    /// An empty entry with tables.
    fn new(slots_max: u32) -> Self {
        Device {
            slots: 0,
            own: false,
            full: false,
            retired: false,
            leaving: None,
            priority: 0,
            mapped: false,
            refused: false,
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

    /// The entry is free again. => nothing is stored, taken or read there
    fn clear(&mut self) {
        assert!(self.use_of() == DeviceUse::default(), "a device is removed while something needs it");
        for index in 0..self.words() {
            // what children wait for is theirs; the owned bits of an inherited device are the parent's
            for set in [&mut self.deferred, &mut self.owned] {
                set.set_word(index, 0);
            }
        }
        self.blocks[..self.blist.len().div_ceil(BLOCK_SLOTS) as usize].fill(OTHER);
        self.blist.clear();
        self.slots = 0;
        (self.own, self.full, self.retired, self.leaving) = (false, false, false, None);
        (self.deferred_count, self.forked, self.written_end) = (0, false, 0);
        (self.windows, self.window_next, self.mapped, self.punch_next) = ([Window::default(); WRITERS], 0, false, 0);
        (self.refused, self.unpunchable, self.absent_count, self.given_back, self.extents) = (false, false, 0, 0, 0);
        self.stats = DeviceStats::default();
        (self.memory, self.drops_copies, self.room_max, self.slot_bytes, self.freed_next) = (None, false, u32::MAX, 0, 0);
    }

    #[inline]
    fn assert_counts(&self) {
        let counts = [self.taken_count, self.owned_count, self.deferred_count, self.absent_count];
        let sum: u64 = counts.into_iter().map(u64::from).sum();
        assert!(sum == u64::from(self.blist.used()), "taken + owned + deferred + absent == used");
    }

    fn use_of(&self) -> DeviceUse {
        DeviceUse { stored: self.owned_count.into(), taken: self.taken_count.into(), reading: self.reading.into() }
    }

    /// New pages may go there.
    fn gives(&self) -> bool {
        // memory that is full has no blocks that it could write again
        self.own && !self.retired && self.leaving.is_none() && !(self.full && self.memory.is_some())
    }

    /// Slots from here on must not be handed out.
    fn end(&self) -> u32 {
        match self {
            _ if self.full => self.written_end,
            _ if self.mapped => self.blist.len(),
            _ => self.slots,
        }
    }

    /// Gives a taken slot range back that will not be written.
    fn untake(&mut self, first: u32, count: u32) {
        self.blist.free_run(first, count);
        self.taken_count -= count;
        self.assert_counts();
    }

    /// A device of extents that may get more, or back what was given back.
    fn can_grow(&self) -> bool {
        self.mapped && !self.full && !self.refused && (self.blist.len() < self.slots || self.absent_count > 0)
    }

    /// Slots that it could still give; a few less if it is full.
    fn room(&self) -> u32 {
        match self.gives() {
            true if self.can_grow() => self.slots - self.in_use(),
            true => self.end().saturating_sub(self.blist.used()).min(self.room_max),
            false => 0,
        }
    }

    /// Slots in use, which absent ones are not, nor those that are to be emptied.
    fn in_use(&self) -> u32 {
        self.blist.used() - self.absent_count - (self.deferred_count - self.waiting_count())
    }

    /// Whether the slots of block `block` are all free. => it is whole
    fn is_block_free(&self, block: u32) -> bool {
        self.blist.is_all_free(block * BLOCK_SLOTS, BLOCK_SLOTS)
    }

    /// Sets how the blocks of a run stand. => they are whole
    fn set_blocks(&mut self, first: u32, count: u32, block: u8) {
        self.blocks[(first / BLOCK_SLOTS) as usize..][..(count / BLOCK_SLOTS) as usize].fill(block);
    }

    /// Takes exactly `want` slots, growing if need be.
    fn alloc_exact(&mut self, want: u32, writer: usize) -> Option<u32> {
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

    /// `want` free slots: in the writer's window, in a new one, or anywhere.
    fn find(&mut self, want: u32, writer: usize) -> Option<u32> {
        let end = self.end();
        let window = self.windows[writer];
        if let Some(first) = self.blist.find_within(window.at, window.end.min(end), want) {
            return Some(first);
        }
        if let Some(fresh) = self.blist.find_from(self.window_next, RUN_MAX, end) {
            self.window_next = fresh + RUN_MAX;
            // a lone writer goes on where it was, across the border
            let at = if fresh == window.end { window.at } else { fresh };
            self.windows[writer] = Window { at, end: fresh + RUN_MAX };
            return self.blist.find_within(at, fresh + RUN_MAX, want);
        }
        let first = self.blist.find_from(window.at, want, end)?;
        self.windows[writer].end = first + want;
        Some(first)
    }

    /// A taken slot gets a page.
    fn assign(&mut self, at: u32, epochs: &mut Epochs) {
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

    /// A taken slot gets none after all.
    fn free_taken(&mut self, at: u32) {
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

    fn defer(&mut self, at: u32) {
        self.deferred.insert(at);
        self.deferred_count += 1;
    }

    /// An owned slot loses its page.
    fn release(&mut self, at: u32, epochs: &mut Epochs) {
        self.owned_count -= 1;
        if self.own {
            self.owned.remove(at);
            if self.memory.is_some() {
                self.defer(at); // not for a child, which has a copy of it
            } else if let Some(death) = epochs.death(self.births[at as usize]) {
                self.defer(at);
                set(&mut self.deaths[at as usize], death);
            } else {
                self.blist.free(at);
            }
            self.assert_counts();
        }
    }

    /// `page` has slot `at`: remembered for memory.
    fn name(&mut self, at: u32, page: PageId) {
        if let Some(pages) = &mut self.memory {
            pages[at as usize] = page.raw();
        }
    }

    /// Slots that wait for a child. (Those of memory wait for the machine.)
    fn waiting_count(&self) -> u32 {
        if self.memory.is_some() { 0 } else { self.deferred_count }
    }

    fn assert_taken(&self, at: u32) {
        let used = at < self.blist.len() && !self.blist.is_free(at);
        assert!(used && !self.owned.get(at) && !self.deferred.get(at), "slot {at} has not been taken");
    }

    fn words(&self) -> usize {
        self.blist.len().div_ceil(WORD_BITS) as usize
    }

    /// Frees what waits for nobody any more.
    fn thaw(&mut self, epochs: &Epochs) {
        if self.waiting_count() == 0 {
            return;
        }
        for index in 0..self.words() {
            let (first, mut bits) = (index as u32 * WORD_BITS, self.deferred.word(index));
            let mut left = bits;
            while bits != 0 {
                let at = first + bits.trailing_zeros();
                if !epochs.waits(self.births[at as usize], self.deaths[at as usize]) {
                    left &= !(1 << (at - first));
                }
                bits &= bits - 1;
            }
            let mut free = self.deferred.word(index) & !left;
            while free != 0 {
                let at = free.trailing_zeros();
                let count = (free >> at).trailing_ones();
                self.blist.free_run(first + at, count);
                self.deferred_count -= count;
                free &= !((u64::MAX >> (WORD_BITS - count)) << at);
            }
            self.deferred.set_word(index, left);
        }
        self.assert_counts();
    }

    /// The epochs have other numbers.
    fn renumber(&mut self, to: &Renumbered) {
        let len = self.blist.len() as usize;
        self.births[..len].iter_mut().for_each(|epoch| set(epoch, to.births[*epoch as usize]));
        self.deaths[..len].iter_mut().for_each(|epoch| set(epoch, to.deaths[*epoch as usize]));
    }

    /// This process is a child: it may only read what is there. Memory it has a copy of.
    fn inherit(&mut self) {
        self.own = self.memory.is_some() && self.own;
        self.leaving = None;
        (self.taken_count, self.reading) = (0, 0);
    }

    fn status(&self) -> DeviceStatus {
        let free = u64::from(self.blist.free_count());
        let broken = free - u64::from(self.blist.free_in_blocks());
        DeviceStatus {
            state: match self {
                _ if self.leaving.is_some() => DeviceState::Leaving,
                _ if self.retired => DeviceState::Retired,
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

    fn metadata_bytes(&self) -> u64 {
        // owned; after a fork deferred, births and deaths as well
        let bits = if self.forked { 18 } else { 1 };
        let blocks = if self.mapped { u64::from(self.blist.len() / BLOCK_SLOTS) } else { 0 };
        let memory = u64::from(self.blist.len()) * u64::from(self.slot_bytes);
        self.blist.metadata_bytes() + self.words() as u64 * u64::from(WORD_BITS / 8) * bits + blocks + memory
    }
}

/// Writes what is new only: a table that was never touched has no memory.
#[inline]
fn set(epoch: &mut u8, to: u8) {
    if *epoch != to {
        *epoch = to;
    }
}

/// All devices, and which has which slots: what a machine may do with a [`SwapPager`] without the core. It knows of no page.
#[derive(Clone)]
pub struct Devices {
    /// The table. Entry `i` has the slots from `i << shift` on.
    all: Vec<Device>,
    /// The extents of all of them.
    extents: ExtentMap,
    shift: u32,
    /// The entries that are in use, by priority, then by number; those last that answered ENOSPC. Has room for all.
    order: Vec<u16>,
    /// Whose turn it is among equals.
    turn: usize,
    /// Number of the last swapoff.
    leaves: u32,
    /// Devices on which copies of pages in memory are not worth keeping: nothing new goes there though it could, or they are
    /// memory.
    unwelcome: u32,
    /// No slots of devices that are memory are given at the moment.
    past_memory: bool,
    /// Which children may read what.
    epochs: Epochs,
}

impl Devices {
    /// The entry of `slot`, and where on it.
    #[inline]
    fn split(&self, slot: Slot) -> (usize, u32) {
        ((slot.0 >> self.shift) as usize, slot.0 & ((1 << self.shift) - 1))
    }

    #[inline]
    fn join(&self, index: usize, at: u32) -> Slot {
        Slot((index as u32) << self.shift | at)
    }

    /// The device of `slot`, and where on it.
    #[inline]
    fn of(&mut self, slot: Slot) -> (&mut Device, u32) {
        let (index, at) = self.split(slot);
        let device = &mut self.all[index];
        assert!(at < device.slots, "the slot is on no device");
        (device, at)
    }

    fn get(&self, device: DeviceId) -> Option<&Device> {
        self.all.get(device.0 as usize).filter(|d| d.slots > 0)
    }

    fn get_mut(&mut self, device: DeviceId) -> Option<&mut Device> {
        self.all.get_mut(device.0 as usize).filter(|d| d.slots > 0)
    }

    fn in_use(&self) -> impl Iterator<Item = &Device> {
        self.all.iter().filter(|d| d.slots > 0)
    }

    fn own(&self) -> impl Iterator<Item = &Device> {
        self.in_use().filter(|d| d.own)
    }

    fn own_mut(&mut self) -> impl Iterator<Item = &mut Device> {
        self.all.iter_mut().filter(|d| d.slots > 0 && d.own)
    }

    fn release(&mut self, slot: Slot) {
        let (index, at) = self.split(slot);
        let device = &mut self.all[index];
        assert!(at < device.slots, "the slot is on no device");
        device.release(at, &mut self.epochs);
    }

    /// To be called when a device comes, goes, or changes what it is there for. Does not allocate.
    fn changed(&mut self) {
        self.order.clear();
        self.order.extend((0..self.all.len() as u16).filter(|&i| self.all[i as usize].slots > 0));
        let key = |i: u16| {
            let device = &self.all[i as usize];
            (device.full && device.memory.is_none(), Reverse(device.priority), i)
        };
        self.order.sort_unstable_by_key(|&i| key(i));
        self.unwelcome = self.in_use().filter(|d| d.leaving.is_some() || d.retired || d.memory.is_some()).count() as u32;
    }

    /// The slots that lie together with `slot`: first and last.
    #[inline]
    fn border(&self, slot: Slot) -> (Slot, Slot) {
        let (index, _) = self.split(slot);
        let device = &self.all[index];
        if device.mapped {
            let extent = self.extents.find(slot).expect("a slot of a mapped device is in an extent");
            return (extent.first, extent.last());
        }
        (self.join(index, 0), self.join(index, device.slots - 1))
    }

    /// Cuts a run that was just taken to what lies in one extent: its longest piece, the first of such. The rest goes back.
    fn cut(&mut self, (index, first, count): (usize, u32, u32), writer: usize) -> (usize, u32, u32) {
        let (mut best, mut at) = ((first, 0), first);
        while at < first + count {
            let last = self.border(self.join(index, at)).1;
            let end = (self.split(last).1 + 1).min(first + count);
            if end - at > best.1 {
                best = (at, end - at);
            }
            at = end;
        }
        let (from, to) = (best.0, best.0 + best.1);
        let device = &mut self.all[index];
        if from > first {
            device.untake(first, from - first);
        }
        if to < first + count {
            device.untake(to, first + count - to);
            device.windows[writer].at = to;
        }
        (index, from, best.1)
    }

    /// New pages may go to device `index` now.
    fn gives(&self, index: u16) -> bool {
        let device = &self.all[index as usize];
        device.gives() && !(self.past_memory && device.memory.is_some())
    }

    /// The longest run up to `want` among the devices `order[from..to]`, if it is at least `least` long.
    fn alloc_longest(&mut self, from: usize, to: usize, want: u32, least: u32, writer: usize) -> Option<(usize, u32, u32)> {
        let longest = |&i: &u16| {
            let device = &self.all[i as usize];
            if self.gives(i) { device.blist.longest_below(device.end()).min(want) } else { 0 }
        };
        let best = self.order[from..to].iter().max_by_key(|i| longest(i))?;
        let (index, count) = (*best as usize, longest(best));
        if count < least {
            return None;
        }
        let first = self.all[index].alloc_exact(count, writer)?;
        Some((index, first, count))
    }

    /// See [`SwapPager::alloc_run`].
    fn alloc(&mut self, want: u32, writer: usize) -> Option<(usize, u32, u32)> {
        let run = self.alloc_uncut(want, writer)?;
        Some(if self.all[run.0].mapped { self.cut(run, writer) } else { run })
    }

    fn alloc_uncut(&mut self, want: u32, writer: usize) -> Option<(usize, u32, u32)> {
        let mut from = 0;
        while from < self.order.len() {
            let priority = self.all[self.order[from] as usize].priority;
            let equals = self.order[from..].iter().take_while(|&&i| self.all[i as usize].priority == priority).count();
            for k in 0..equals {
                let index = self.order[from + (self.turn + k) % equals] as usize;
                if self.gives(index as u16)
                    && let Some(first) = self.all[index].alloc_exact(want, writer)
                {
                    self.turn = self.turn.wrapping_add(k + 1);
                    return Some((index, first, want));
                }
            }
            let short = self.alloc_longest(from, from + equals, want, want.min(SHORT_RUN), writer);
            if short.is_some() {
                return short;
            }
            from += equals;
        }
        self.alloc_longest(0, self.order.len(), want, 1, writer)
    }
}

/// Where pages lie on swap devices. Implements [`Pager`].
///
/// `Clone` is what a fork does to memory. It is meant for tests and simulation: a copy has physical memory behind all of its
/// tables.
///
/// ```
/// use overspill_swap::{Config, SwapPager};
/// use overspill_vm::pager::Pager;
/// use overspill_vm::types::{ContentHash, ObjectId, PageId, Slot};
///
/// let mut swap = SwapPager::new(Config { pages_max: 1000, slots_max: 1000, devices_max: 2, extents_max: 0 });
/// let first = PageId::new(ObjectId(0), 100);
/// let run = swap.alloc_run(8, first).unwrap();
/// for k in 0..run.count {
///     // ... the machine writes the page ...
///     assert!(swap.assign(first.offset(k.into()), Slot(run.first.0 + k), ContentHash::of(7)));
/// }
/// let has = swap.has_page(first.offset(2), 64, 64).unwrap();
/// assert_eq!((has.before, has.after), (2, 5));
/// ```
#[derive(Clone)]
pub struct SwapPager {
    blocks: SwapBlocks,
    devices: Devices,
}

impl SwapPager {
    /// A swap pager with one device of its own, of `slots_max` slots and priority 0. Allocates everything it will ever need.
    ///
    /// # Panics
    /// If a limit is 0, or all devices together do not fit the slot number space, or `pages_max` is beyond 2^34.
    pub fn new(config: Config) -> Self {
        let mut pager = Self::without_device(config);
        pager.devices.add_device(config.slots_max, 0).expect("the first device fits");
        pager
    }

    /// A swap pager without any device.
    ///
    /// # Panics
    /// As [`SwapPager::new`].
    pub fn without_device(config: Config) -> Self {
        assert!(config.pages_max > 0 && config.slots_max > 0 && config.devices_max > 0);
        assert!(config.slots_max <= 1 << 31, "a device has at most 2^31 slots");
        let shift = config.slots_max.next_power_of_two().trailing_zeros();
        assert!(u64::from(config.devices_max) << shift <= 1 << 32, "all devices must fit the slot number space");
        let nodes_max = config.pages_max.div_ceil(LEAF_PAGES_STORED_MIN);
        let device = || Device::new(config.slots_max);
        SwapPager {
            blocks: SwapBlocks::new(u32::try_from(nodes_max).expect("pages_max <= 2^34")),
            devices: Devices {
                all: core::iter::repeat_with(device).take(config.devices_max.into()).collect(),
                extents: ExtentMap::new(config.extents_max),
                shift,
                order: Vec::with_capacity(config.devices_max.into()),
                turn: 0,
                leaves: 0,
                unwelcome: 0,
                past_memory: false,
                epochs: Epochs::new(),
            },
        }
    }

    /// The first stored page at or after `page` in the same object, and its slot. Skips absent parts, however large, quickly.
    pub fn next_stored(&self, page: PageId) -> Option<(PageId, Slot)> {
        self.blocks.next(page).map(|(page, slot, _)| (page, slot))
    }

    /// Walks over everything and asserts the invariants in the head. For tests; costs in proportion to the capacity.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check(&self) {
        self.blocks.check();
        assert_eq!(self.devices.stored(), self.blocks.stored(), "pages stored, by device and in all");
        for device in &self.devices.all {
            device.blist.check();
            if device.slots == 0 {
                assert!(device.use_of() == DeviceUse::default() && device.blist.is_empty());
                assert!(!device.own && device.leaving.is_none());
                continue;
            }
            let absent = device.blocks.iter().filter(|b| **b == ABSENT).count() as u32;
            assert_eq!(absent * BLOCK_SLOTS, device.absent_count);
            assert!(device.written_end <= device.blist.len() && device.blist.len() <= device.slots);
            if device.own {
                device.assert_counts();
                let (mut owned, mut deferred) = (0, 0);
                for index in 0..device.words() {
                    let used = device.blist.used_word(index);
                    let [o, d] = [&device.owned, &device.deferred].map(|set| set.word(index));
                    assert!(o & d == 0 && (o | d) & !used == 0);
                    let waits = if device.memory.is_some() { 0 } else { d };
                    for at in
                        (0..WORD_BITS).filter(|bit| waits >> bit & 1 != 0).map(|bit| index * WORD_BITS as usize + bit as usize)
                    {
                        assert!(self.devices.epochs.waits(device.births[at], device.deaths[at]), "slot {at} waits for nobody");
                    }
                    owned += o.count_ones();
                    deferred += d.count_ones();
                }
                assert!(owned == device.owned_count && deferred == device.deferred_count);
            }
        }
    }
}

impl Devices {
    /// Adds a device of `slots` slots, which this process writes. Devices of higher priority are written first, those of equal
    /// priority in turns. Does not allocate.
    ///
    /// # Errors
    /// [`AddDeviceError`]; nothing is changed then.
    pub fn add_device(&mut self, slots: u32, priority: i16) -> Result<DeviceId, AddDeviceError> {
        let slots_max = self.slots_max();
        if slots == 0 {
            return Err(AddDeviceError::Empty);
        }
        if slots > slots_max {
            return Err(AddDeviceError::TooLong { slots_max });
        }
        let index = self.free_entry()?;
        let device = &mut self.all[index];
        (device.slots, device.own, device.priority) = (slots, true, priority);
        if ((index as u64) << self.shift) + u64::from(slots) == 1 << 32 {
            device.slots = slots - 1; // the swap blocks cannot remember slot u32::MAX
        }
        self.changed();
        Ok(DeviceId(index as u16))
    }

    /// Adds a device that is memory of this process, with a slot for each of `pages`, which are all 0, and `slot_bytes` bytes of
    /// the machine's own tables per slot. What differs from others: it is known which page has a slot ([`Devices::page_of`]); a slot
    /// that nobody needs is given again only when the machine has emptied it ([`Devices::take_freed`]); full
    /// ([`Devices::set_full`]) it gives none; a page that comes in may have to leave its slot at once
    /// ([`Devices::set_drops_copies`]); and a forked child goes on writing its own copy of it, so nothing of it is ever frozen. Does
    /// not allocate.
    ///
    /// # Errors
    /// [`AddDeviceError`]; nothing is changed then.
    pub fn add_memory_device(&mut self, pages: Vec<u64>, priority: i16, slot_bytes: u32) -> Result<DeviceId, AddDeviceError> {
        let device = self.add_device(pages.len().try_into().unwrap_or(u32::MAX), priority)?;
        let it = &mut self.all[device.0 as usize];
        (it.memory, it.slot_bytes) = (Some(pages), slot_bytes + size_of::<u64>() as u32);
        self.changed();
        Ok(device)
    }

    /// The page that has slot `at` of a device that is memory; `None` if none has.
    pub fn page_of(&self, device: DeviceId, at: u32) -> Option<PageId> {
        let it = self.get(device).filter(|d| d.owned.get(at))?;
        it.memory.as_ref().map(|pages| PageId::from_raw(pages[at as usize]))
    }

    /// Slots of a device that is memory whose content nobody needs any more (there may be none): as many as `out` has room for.
    /// Returns how many. => the machine empties them before anybody else uses the pager
    pub fn take_freed(&mut self, device: DeviceId, out: &mut [u32]) -> usize {
        let Some(it) = self.get_mut(device).filter(|d| d.memory.is_some()) else { return 0 };
        let (mut taken, words) = (0, it.words());
        while taken < out.len() && it.deferred_count > 0 {
            let bits = it.deferred.word(it.freed_next);
            if bits == 0 {
                it.freed_next = (it.freed_next + 1) % words;
                continue;
            }
            out[taken] = it.freed_next as u32 * WORD_BITS + bits.trailing_zeros();
            it.deferred.remove(out[taken]);
            it.deferred_count -= 1;
            it.blist.free(out[taken]);
            taken += 1;
        }
        it.assert_counts();
        taken
    }

    /// Slot `at` of `device`.
    #[inline]
    pub fn slot(&self, device: DeviceId, at: u32) -> Slot {
        self.join(device.0.into(), at)
    }

    /// Slots that devices which are not memory could still give, in slots.
    pub fn room_past_memory(&self) -> u64 {
        self.in_use().filter(|d| d.memory.is_none()).map(|d| u64::from(d.room())).sum()
    }

    /// Ends all swapoffs, as [`Pager::stay`]. Returns whether there was one.
    pub fn stay_all(&mut self) -> bool {
        let mut any = false;
        for device in &mut self.all {
            any |= device.leaving.take().is_some();
        }
        self.changed();
        any
    }

    /// Whether pages that come in leave the slots that they have on this device: it is memory, and short of it.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn set_drops_copies(&mut self, device: DeviceId, drops: bool) {
        self.get_mut(device).expect("there is such a device").drops_copies = drops;
    }

    /// The device's memory is thought to have room for so many pages more, in slots: for [`Devices::room`] only.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn set_room(&mut self, device: DeviceId, slots: u32) {
        self.get_mut(device).expect("there is such a device").room_max = slots;
    }

    fn free_entry(&self) -> Result<usize, AddDeviceError> {
        let devices_max = self.all.len() as u16;
        let free = self.all.iter().position(|d| d.slots == 0);
        free.ok_or(AddDeviceError::TooMany { devices_max })
    }

    /// Adds a device that is made of extents, of up to `slots` slots; at first it has none. Does not allocate.
    ///
    /// Its runs end where an extent does, so an operation is on one piece of one file. To have its clusters aligned with the
    /// physical extents of a file, add those (FIEMAP) as extents.
    ///
    /// # Errors
    /// [`AddDeviceError`]; nothing is changed then.
    pub fn add_mapped_device(&mut self, slots: u32, priority: i16) -> Result<DeviceId, AddDeviceError> {
        let device = self.add_device(slots, priority)?;
        self.all[device.0 as usize].mapped = true;
        Ok(device)
    }

    /// A mapped device gets longer by `count` slots, which lie in its file number `file` from byte `offset` on. Does not allocate.
    ///
    /// # Errors
    /// [`AddExtentError`]; nothing is changed then.
    ///
    /// # Panics
    /// If `count` is 0.
    pub fn add_extent(&mut self, device: DeviceId, file: u16, offset: u64, count: u32) -> Result<(), AddExtentError> {
        let extents_max = self.extents.len(); // if that is what is wrong
        let index = device.0 as usize;
        let base = self.join(index, 0).0;
        let it = self.get_mut(device).filter(|d| d.mapped && d.own).ok_or(AddExtentError::NotMapped)?;
        let len = it.blist.len();
        if count > it.slots - len {
            return Err(AddExtentError::TooLong { slots_left: it.slots - len });
        }
        let extent = Extent { first: Slot(base + len), count, file, offset };
        self.extents.insert(extent).map_err(|NoExtents| AddExtentError::TooMany { extents_max })?;
        let it = &mut self.all[index];
        it.blist.set_len(len + count);
        it.extents += 1;
        Ok(())
    }

    /// The device of extents that should get more, or back what it gave back, before the next run is asked for: one that would be
    /// written, and has no free window any more. `None` also if nothing can be done about it ([`Devices::refuse_growth`]).
    /// Devices that are memory do not count: what they refuse must find room behind them.
    pub fn wants_extent(&self) -> Option<DeviceId> {
        let Devices { all, order, .. } = self;
        let mut from = 0;
        while from < order.len() {
            let priority = all[order[from] as usize].priority;
            let equals = order[from..].iter().take_while(|&&i| all[i as usize].priority == priority).count();
            let mut room = false;
            for &index in &order[from..from + equals] {
                let device = &all[index as usize];
                if device.memory.is_some() {
                    continue;
                }
                let longest = if device.gives() { device.blist.longest_below(device.end()) } else { 0 };
                if longest < RUN_MAX && device.gives() && device.can_grow() {
                    return Some(DeviceId(index));
                }
                room |= longest >= WANT_MAX || device.gives() && !device.mapped && device.blist.len() < device.end();
            }
            if room {
                return None;
            }
            from += equals;
        }
        None
    }

    /// How many slots the device may still get by [`Devices::add_extent`], in slots (pages).
    pub fn slots_left(&self, device: DeviceId) -> u32 {
        self.get(device).filter(|d| d.mapped && d.own).map_or(0, |d| d.slots - d.blist.len())
    }

    /// The machine found no more room for the device: it is not asked for any until some was given back.
    pub fn refuse_growth(&mut self, device: DeviceId) {
        if let Some(it) = self.get_mut(device).filter(|d| d.mapped) {
            it.refused = true;
        }
    }

    /// Slots that have stayed free since the last pass over the device, in whole blocks of [`BLOCK_SLOTS`] and at most `most` of
    /// them: their bytes can be given back to the file system. They are held, so that nothing is written there meanwhile, until
    /// [`Devices::punched`]. A window for each writer stays.
    ///
    /// Looks at `look_max` blocks at most and goes on there next time; [`Punch::End`] ends a pass. Does not allocate.
    pub fn punch_begin(&mut self, device: DeviceId, look_max: u32, most: u32) -> Punch {
        let base = self.join(device.0.into(), 0).0;
        let usable = |d: &&mut Device| d.mapped && d.own && d.leaving.is_none() && !d.unpunchable;
        let Some(it) = self.get_mut(device).filter(usable) else { return Punch::End };
        let whole = it.blist.len() / BLOCK_SLOTS;
        let mut spare = None;
        for _ in 0..look_max {
            let block = it.punch_next;
            if block >= whole {
                it.punch_next = 0;
                return Punch::End;
            }
            it.punch_next += 1;
            let free = it.blocks[block as usize] != ABSENT && it.is_block_free(block);
            match it.blocks[block as usize] {
                ABSENT => {}
                _ if !free => it.blocks[block as usize] = OTHER,
                OTHER => it.blocks[block as usize] = SEEN_FREE,
                _ => {
                    // costs a look at each block, so once
                    let spare = *spare.get_or_insert_with(|| {
                        it.blist.free_in_blocks().saturating_sub(WRITERS as u32 * BLOCK_SLOTS).min(most) / BLOCK_SLOTS
                    });
                    let next = |b: &u32| *b < whole && it.blocks[*b as usize] == SEEN_FREE && it.is_block_free(*b);
                    let count = (block..block + spare).take_while(next).count() as u32;
                    if count > 0 {
                        it.punch_next = block + count;
                        let (first, count) = (block * BLOCK_SLOTS, count * BLOCK_SLOTS);
                        it.set_blocks(first, count, OTHER);
                        it.blist.take(first, count);
                        it.taken_count += count;
                        it.assert_counts();
                        return Punch::Run(SlotRun { first: Slot(base + first), count });
                    }
                }
            }
        }
        Punch::More
    }

    /// The bytes of the run have been given back; or they could not be, and no more of its device's are asked for.
    ///
    /// # Panics
    /// If it is no run of [`Devices::punch_begin`].
    pub fn punched(&mut self, run: SlotRun, given: bool) {
        let (device, at) = self.of(run.first);
        if given {
            device.set_blocks(at, run.count, ABSENT);
            device.taken_count -= run.count;
            device.absent_count += run.count;
            device.given_back += u64::from(run.count);
            device.refused = false;
            device.assert_counts();
        } else {
            device.unpunchable = true;
            device.untake(at, run.count);
        }
    }

    /// Slots, at most `most` of them, whose bytes were given back and are wanted again: to be got from the file system. They are
    /// held until [`Devices::refilled`]. Does not allocate.
    pub fn refill_begin(&mut self, device: DeviceId, most: u32) -> Option<SlotRun> {
        let base = self.join(device.0.into(), 0).0;
        let it = self.get_mut(device).filter(|d| d.own && d.absent_count > 0)?;
        let absent = |block: &u8| *block == ABSENT;
        let block = it.blocks.iter().position(absent).expect("as many as are counted");
        let count = it.blocks[block..].iter().take((most / BLOCK_SLOTS).max(1) as usize).take_while(|b| absent(b)).count() as u32;
        let (first, count) = (block as u32 * BLOCK_SLOTS, count * BLOCK_SLOTS);
        it.set_blocks(first, count, OTHER);
        it.absent_count -= count;
        it.taken_count += count;
        it.assert_counts();
        Some(SlotRun { first: Slot(base + first), count })
    }

    /// The bytes of the run are the device's again; or they could not be had.
    ///
    /// # Panics
    /// If it is no run of [`Devices::refill_begin`].
    pub fn refilled(&mut self, run: SlotRun, got: bool) {
        let (device, at) = self.of(run.first);
        if got {
            device.untake(at, run.count);
        } else {
            device.set_blocks(at, run.count, ABSENT);
            device.taken_count -= run.count;
            device.absent_count += run.count;
            device.assert_counts();
        }
    }

    /// The bytes of a run that is held lie in pieces of these lengths, in slots (pages), from now on. They are where they were in
    /// the file: only where its physical extents end is new. Does not allocate.
    ///
    /// # Errors
    /// If there is no room for so many extents; nothing is changed then.
    ///
    /// # Panics
    /// If the run crosses an extent, or the pieces are not as long as it together.
    pub fn set_extents(&mut self, run: SlotRun, pieces: &[u32]) -> Result<(), NoExtents> {
        assert!(pieces.iter().sum::<u32>() == run.count, "the pieces are the run");
        let Devices { all, extents, shift, .. } = self;
        let (first, end) = (run.first, Slot(run.first.0 + run.count));
        let old = extents.find(first).filter(|e| e.last().0 >= end.0 - 1).expect("the run lies in one extent");
        if extents.room() < pieces.len() as u32 + 1 {
            return Err(NoExtents);
        }
        let before = extents.len();
        extents.cut(first).and_then(|()| extents.cut(end)).expect("there is room");
        extents.remove(first).expect("it begins here");
        let mut at = first;
        for &count in pieces {
            extents.insert(Extent { first: at, count, offset: old.offset_of(at), ..old }).expect("there is room");
            at.0 += count;
        }
        let it = &mut all[(first.0 >> *shift) as usize];
        it.extents = it.extents + extents.len() - before;
        Ok(())
    }

    /// How many more extents there can be, of all devices together.
    pub fn extents_left(&self) -> u32 {
        self.extents.room()
    }

    /// The extent that `slot` is in; `None` if its device has none.
    pub fn extent(&self, slot: Slot) -> Option<Extent> {
        self.extents.find(slot)
    }

    /// The most slots that a device can have.
    pub fn slots_max(&self) -> u32 {
        self.all[0].blist.capacity()
    }

    /// Where the bytes of `slot` are. Those of a run of slots from [`Pager::alloc_run`] or [`Pager::has_page`] follow it, in one
    /// piece.
    ///
    /// # Panics
    /// If it is on no device.
    #[inline]
    pub fn locate(&self, slot: Slot) -> Location {
        let (device, at) = self.device_of(slot);
        let it = &self.all[device.0 as usize];
        if it.mapped {
            let extent = self.extents.find(slot).expect("a slot of a mapped device is in an extent");
            return Location { device, file: extent.file, is_memory: false, offset: extent.offset_of(slot) };
        }
        Location::plain(device, at, it.memory.is_some())
    }

    /// Pages stored, on inherited devices too, in pages.
    pub fn stored(&self) -> u64 {
        self.in_use().map(|d| u64::from(d.owned_count)).sum()
    }

    /// Slots in use, in pages.
    pub fn used(&self) -> u64 {
        self.own().map(|d| u64::from(d.in_use())).sum()
    }

    /// Slots that could still be given, in slots.
    pub fn room(&self) -> u64 {
        self.in_use().map(|d| u64::from(d.room())).sum()
    }

    /// What is on `device`, or `None` if there is no such device.
    pub fn device_use(&self, device: DeviceId) -> Option<DeviceUse> {
        self.get(device).map(Device::use_of)
    }

    /// `device` is gone, and its entry may be used for another.
    ///
    /// # Panics
    /// If something is stored there, or a read or write is under way.
    pub fn remove(&mut self, device: DeviceId) {
        let base = self.join(device.0.into(), 0);
        let Some(it) = self.get_mut(device) else { return };
        let len = if it.mapped { it.blist.len() } else { 0 };
        it.clear();
        while let Some(extent) = self.extents.next(base).filter(|e| e.first.0 - base.0 < len) {
            self.extents.remove(extent.first);
        }
        self.changed();
    }

    /// The devices that there are, those to be written first first.
    pub fn iter(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.order.iter().map(|&i| DeviceId(i))
    }

    /// How a device stands; `None` if there is none of that number. Costs a pass over a bit per 64 slots.
    pub fn status(&self, device: DeviceId) -> Option<DeviceStatus> {
        self.get(device).map(Device::status)
    }

    /// What it has done, by [`Devices::io_ended`].
    pub fn stats(&self, device: DeviceId) -> Option<&DeviceStats> {
        self.get(device).map(|d| &d.stats)
    }

    /// Counts an operation. Returns `true` if its failure was one too many ([`ERRORS_MAX`] reads or writes in a row): the device is
    /// retired and should be swapped off. The last device that is written is never retired, since nothing would be better.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn io_ended(&mut self, device: DeviceId, io: Io) -> bool {
        let others = self.in_use().filter(|d| d.gives()).count();
        let it = self.get_mut(device).expect("there is such a device");
        let retire = it.stats.count(io) >= ERRORS_MAX && !it.retired && others > u32::from(it.gives()) as usize;
        if retire {
            it.retired = true;
            self.changed();
        }
        retire
    }

    /// The device that `slot` is on, and its offset there, in slots (pages).
    ///
    /// # Panics
    /// If it is on none.
    #[inline]
    pub fn device_of(&self, slot: Slot) -> (DeviceId, u32) {
        let (index, at) = self.split(slot);
        assert!(at < self.all[index].slots, "the slot is on no device");
        (DeviceId(index as u16), at)
    }

    /// Whether this process may not write `device`, because it is a parent's.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn is_inherited(&self, device: DeviceId) -> bool {
        !self.get(device).expect("there is such a device").own
    }

    /// The machine saw ENOSPC on `device` (or sees room again). While full, only slots below the highest one ever written are
    /// given, since the file has their blocks, and only when no other device has room. (A hole below, from a write that failed, may
    /// still answer ENOSPC; then its slot comes back by [`Pager::free_slot`], and the cursor goes on.)
    ///
    /// # Panics
    /// If there is no such device.
    pub fn set_full(&mut self, device: DeviceId, full: bool) {
        let it = self.get_mut(device).expect("there is such a device");
        if it.full != full {
            it.full = full;
            self.changed();
        }
    }

    /// Devices that could not grow may ask again. With `write_too` those that answered ENOSPC to a write as well: the machine
    /// should not do that while it depends on the answer.
    pub fn retry(&mut self, write_too: bool) {
        let mut changed = false;
        for device in self.own_mut() {
            device.refused = false;
            if write_too && device.memory.is_none() {
                changed |= core::mem::take(&mut device.full);
            }
        }
        if changed {
            self.changed();
        }
    }

    /// The length of all own devices, in slots (pages): the most that [`Devices::used`] can become.
    pub fn capacity(&self) -> u64 {
        self.own().map(|d| u64::from(if d.refused { d.blist.len() } else { d.slots })).sum()
    }

    /// Slots that were given back but wait for [`Devices::child_gone`]; they are part of [`Devices::used`].
    pub fn deferred(&self) -> u64 {
        self.own().map(|d| u64::from(d.waiting_count())).sum()
    }

    /// This process forks, parent's side: no slot that has a page now is overwritten until [`Devices::child_gone`] for the number
    /// that this returns.
    ///
    /// To be called before the fork. After many forks in a row it costs a pass over two bytes per slot; does not allocate.
    pub fn fork_parent(&mut self) -> u64 {
        let Devices { all, epochs, .. } = self;
        let own = |d: &&mut Device| d.slots > 0 && d.own && d.memory.is_none();
        if epochs.is_full() {
            let to = epochs.renumber();
            all.iter_mut().filter(own).for_each(|device| device.renumber(&to));
        }
        all.iter_mut().filter(own).for_each(|device| device.forked = true);
        epochs.fork()
    }

    /// Neither the child of this fork nor any child of its own can read slots of this process any more: they have ended or exec'd,
    /// or the fork failed. Once for each fork. Frees what waited for them alone; does not allocate.
    ///
    /// # Panics
    /// If there was no such fork, or it has been told before.
    pub fn child_gone(&mut self, fork: u64) {
        let Devices { all, epochs, .. } = self;
        if epochs.child_gone(fork) {
            all.iter_mut().filter(|d| d.slots > 0 && d.own).for_each(|device| device.thaw(epochs));
        }
    }

    /// This process is the child of a fork: all devices become read-only, and a swapoff of the parent's is none here. A device of
    /// its own is to be added. Until then the child can read back what is stored, but store nothing. Does not allocate.
    pub fn inherit(&mut self) {
        self.all.iter_mut().for_each(Device::inherit);
        self.epochs.forked();
        self.changed();
    }

    /// [`Devices::inherit`], and a device of its own, of `slots` slots. `None` if it could not be added
    /// ([`Devices::add_device`]).
    pub fn fork_child(&mut self, slots: u32) -> Option<DeviceId> {
        self.inherit();
        self.add_device(slots, 0).ok()
    }
}

/// Which of a device's streams of writes the pages around `near` belong to.
fn writer_of(near: PageId) -> usize {
    let area = near.raw() >> WRITER_SHIFT;
    (area.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - WRITERS.ilog2())) as usize
}

/// Nothing here waits or allocates.
impl Pager for SwapPager {
    type Devices = Devices;

    #[inline]
    fn has_page(&self, page: PageId, before_max: u32, after_max: u32) -> Option<HasPage> {
        self.blocks.has_page(page, before_max, after_max, |slot| self.devices.border(slot))
    }

    #[inline]
    fn stored(&self, page: PageId) -> Option<(Slot, ContentHash)> {
        self.blocks.get(page)
    }

    fn devices(&self) -> &Devices {
        &self.devices
    }
    fn devices_mut(&mut self) -> &mut Devices {
        &mut self.devices
    }

    #[inline]
    fn locate(&self, slot: Slot) -> Location {
        self.devices.locate(slot)
    }

    /// A full run from the devices of the highest priority, in turns; a shorter one there if it is not too short; then the same
    /// with the next priority; at last the longest that there is on any. Never more than [`RUN_MAX`].
    ///
    /// # Panics
    /// If `want` is 0.
    fn alloc_run(&mut self, want: u32, near: PageId) -> Option<SlotRun> {
        let (index, first, count) = self.devices.alloc(want.min(RUN_MAX), writer_of(near))?;
        Some(SlotRun { first: self.devices.join(index, first), count })
    }

    fn alloc_run_past_memory(&mut self, want: u32, near: PageId) -> Option<SlotRun> {
        self.devices.past_memory = true;
        let run = self.alloc_run(want, near);
        self.devices.past_memory = false;
        run
    }

    /// # Panics
    /// If `slot` is not taken, or not on an own device.
    fn assign(&mut self, page: PageId, slot: Slot, content: ContentHash) -> bool {
        let (index, at) = self.devices.split(slot);
        let Devices { all, epochs, .. } = &mut self.devices;
        let device = &mut all[index];
        assert!(at < device.slots, "the slot is on no device");
        match self.blocks.insert(page, slot, content) {
            Ok(old) => {
                device.assign(at, epochs);
                device.name(at, page);
                if let Some(old) = old {
                    self.devices.release(old);
                }
                true
            }
            Err(NoMetadata) => {
                device.free_taken(at);
                false
            }
        }
    }

    /// # Panics
    /// If `slot` is on an own device and not taken. On an inherited one nothing happens.
    fn free_slot(&mut self, slot: Slot) {
        let (device, at) = self.devices.of(slot);
        device.free_taken(at);
    }

    fn release(&mut self, page: PageId) -> bool {
        self.release_range(page, 1) > 0
    }

    fn release_range(&mut self, first: PageId, count: PageIndex) -> u64 {
        let devices = &mut self.devices;
        self.blocks.remove_range(first, count, |slot| devices.release(slot))
    }

    /// # Panics
    /// If `to` is stored.
    fn rename(&mut self, from: PageId, to: PageId) -> bool {
        let Ok(moved) = self.blocks.rename(from, to) else { return false };
        if moved && let Some((slot, _)) = self.blocks.get(to) {
            let (device, at) = self.devices.of(slot);
            device.name(at, to);
        }
        true
    }

    fn used(&self) -> u64 {
        self.devices.used()
    }

    fn metadata_bytes(&self) -> u64 {
        let tables = self.blocks.metadata_bytes() + self.devices.extents.metadata_bytes();
        tables + self.devices.in_use().map(Device::metadata_bytes).sum::<u64>()
    }

    fn read_begun(&mut self, slot: Slot) {
        self.devices.of(slot).0.reading += 1;
    }

    fn read_ended(&mut self, slot: Slot) {
        self.devices.of(slot).0.reading -= 1;
    }

    fn room(&self) -> u64 {
        self.devices.room()
    }

    fn device_use(&self, device: DeviceId) -> Option<DeviceUse> {
        self.devices.device_use(device)
    }

    fn leave(&mut self, device: DeviceId) -> Option<u32> {
        let leaves = self.devices.leaves.wrapping_add(1);
        let it = self.devices.get_mut(device).filter(|d| d.leaving.is_none())?;
        it.leaving = Some(leaves);
        self.devices.leaves = leaves;
        self.devices.changed();
        Some(leaves)
    }

    fn stay(&mut self, device: DeviceId) {
        if let Some(it) = self.devices.get_mut(device) {
            it.leaving = None;
            self.devices.changed();
        }
    }

    fn leaving(&self, device: DeviceId) -> Option<u32> {
        self.devices.get(device)?.leaving
    }

    fn is_unwelcome(&self, page: PageId) -> bool {
        if self.devices.unwelcome == 0 {
            return false;
        }
        let Some((slot, _)) = self.blocks.get(page) else { return false };
        let device = &self.devices.all[self.devices.split(slot).0];
        device.leaving.is_some() || device.retired || device.drops_copies
    }

    fn next_on(&self, device: DeviceId, from: PageId) -> Scan {
        let (first, last) =
            (self.devices.join(device.0.into(), 0), self.devices.join(device.0.into(), (1 << self.devices.shift) - 1));
        let mut scan = self.blocks.next_in(from, first, last, SCAN_LEAVES_MAX);
        if let Some(run) = &mut scan.run {
            let together = self.devices.border(run.slot).1.0 - run.slot.0 + 1;
            if together < run.count {
                run.count = together;
                scan.next = Some(run.first.offset(together.into()));
            }
        }
        scan
    }

    fn remove(&mut self, device: DeviceId) {
        self.devices.remove(device);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_vm::types::ObjectId;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn page(object: u16, index: PageIndex) -> PageId {
        PageId::new(ObjectId(object), index)
    }

    fn small(slots_max: u32) -> SwapPager {
        SwapPager::new(Config { pages_max: 4000, slots_max, devices_max: 4, extents_max: 200 })
    }

    /// Takes slots for nobody in particular.
    fn alloc(pager: &mut SwapPager, want: u32) -> Option<SlotRun> {
        pager.alloc_run(want, page(0, 0))
    }

    fn store(pager: &mut SwapPager, first: PageId, count: u32) -> Slot {
        let run = pager.alloc_run(count, first).unwrap();
        assert_eq!(run.count, count);
        for k in 0..count {
            assert!(pager.assign(first.offset(k.into()), Slot(run.first.0 + k), ContentHash::of(k.into())));
        }
        run.first
    }

    fn memory(pager: &SwapPager, slot: Slot) -> bool {
        pager.devices.locate(slot).is_memory
    }

    /// Device and offset of a slot.
    fn at(pager: &SwapPager, slot: Slot) -> (u16, u32) {
        let (device, at) = pager.devices.device_of(slot);
        (device.0, at)
    }

    #[test]
    fn a_lower_priority_takes_over_and_runs_end_at_the_border() {
        let mut pager = small(128);
        let second = pager.devices.add_device(50, -1).unwrap();
        assert_eq!(pager.devices.capacity(), 178);
        store(&mut pager, page(0, 0), 90);
        store(&mut pager, page(0, 90), 38);
        let slot = store(&mut pager, page(0, 128), 50);
        assert_eq!(slot, Slot(128)); // contiguous as a number, but on another device
        assert_eq!(pager.devices.device_of(slot), (second, 0));
        assert_eq!(at(&pager, Slot(127)), (0, 127));
        assert_eq!(pager.has_page(page(0, 127), u32::MAX, u32::MAX).unwrap(), HasPage { slot: Slot(127), before: 127, after: 0 });
        assert_eq!(pager.has_page(page(0, 128), 200, 200).unwrap(), HasPage { slot, before: 0, after: 49 });
        assert_eq!(alloc(&mut pager, 1), None);
        pager.check();
    }

    #[test]
    fn equal_priorities_take_turns() {
        let mut pager = small(1000);
        let fast = [pager.devices.add_device(1000, 5).unwrap(), pager.devices.add_device(300, 5).unwrap()];
        let mut order = Vec::new();
        for k in 0..40 {
            let slot = store(&mut pager, page(0, k * 50), 50);
            order.push(pager.devices.device_of(slot).0);
        }
        assert_eq!(order[..4], [fast[0], fast[1], fast[0], fast[1]]);
        assert_eq!(order.iter().filter(|&&d| d == fast[0]).count(), 20);
        assert_eq!(order.iter().filter(|&&d| d == fast[1]).count(), 6, "until the short one is full");
        assert_eq!(order[26..], [DeviceId(0); 14], "then the lower priority");
        pager.release_range(page(0, 0), 200);
        assert_eq!(pager.devices.iter().map(|d| d.0).collect::<Vec<_>>(), [1, 2, 0]);
        pager.check();
    }

    /// A device that is nearly full gives no crumbs while a lower priority has room, but in the end all of it is used.
    #[test]
    fn crumbs_are_taken_last() {
        let mut pager = small(256);
        pager.devices.add_device(256, -1).unwrap();
        store(&mut pager, page(0, 0), 256);
        (0..256).step_by(2).for_each(|k| assert!(pager.release(page(0, k))));
        let slot = store(&mut pager, page(1, 0), 32);
        assert_eq!(at(&pager, slot), (1, 0));
        let mut given = 32 + 128;
        while let Some(run) = alloc(&mut pager, 32) {
            given += run.count;
        }
        assert_eq!((given, pager.used()), (512, 512));
        assert_eq!(pager.room(), 0);
    }

    /// Two writers that take turns: the pages of each lie in one run, not in stripes.
    #[test]
    fn writers_are_kept_apart() {
        let mut pager = small(1 << 16);
        let far = (0..64).map(|k| k << WRITER_SHIFT).find(|&k| writer_of(page(0, k)) != writer_of(page(0, 0))).unwrap();
        for k in 0..16 {
            store(&mut pager, page(0, k * 32), 32);
            store(&mut pager, page(0, far + k * 32), 32);
        }
        for first in [0, far] {
            assert_eq!(pager.has_page(page(0, first), 0, u32::MAX).unwrap().after, 511);
        }
    }

    #[test]
    fn slots_of_memory_have_names_and_are_the_childs_own() {
        let mut pager = small(1000);
        let device = pager.devices.add_memory_device(vec![0; 100], 9, 18).unwrap();
        let there = |pager: &SwapPager| (0..100).filter_map(|at| pager.devices.page_of(device, at)).collect::<Vec<_>>();
        let freed = |pager: &mut SwapPager| {
            let mut out = [0; 3];
            let n = pager.devices.take_freed(device, &mut out);
            out[..n].to_vec()
        };
        let first = store(&mut pager, page(0, 0), 4);
        assert!(memory(&pager, first) && pager.devices.slot(device, 0) == first);
        assert_eq!(there(&pager), (0..4).map(|k| page(0, k)).collect::<Vec<_>>());
        assert!(pager.rename(page(0, 1), page(0, 70)));
        pager.release(page(0, 0));
        assert_eq!(there(&pager), [page(0, 70), page(0, 2), page(0, 3)]);
        assert_eq!((pager.used(), freed(&mut pager), freed(&mut pager)), (3, vec![0], vec![]));

        // past it, and when it is full
        let past = pager.alloc_run_past_memory(2, page(0, 9)).unwrap();
        let within = alloc(&mut pager, 1).unwrap();
        assert!(!memory(&pager, past.first) && memory(&pager, within.first));
        assert!(pager.assign(page(0, 2), past.first, ContentHash::of(2)));
        assert_eq!((there(&pager), freed(&mut pager)), (vec![page(0, 70), page(0, 3)], vec![2]), "it has moved on");
        pager.devices.set_full(device, true);
        let past = alloc(&mut pager, 1).unwrap();
        assert!(!memory(&pager, past.first));
        pager.devices.set_full(device, false);
        pager.devices.set_room(device, 7);
        assert_eq!(pager.room() - pager.devices.room_past_memory(), 7);
        assert!(!pager.is_unwelcome(page(0, 3)));
        pager.devices.set_drops_copies(device, true);
        assert!(pager.is_unwelcome(page(0, 3)) && !pager.is_unwelcome(page(0, 2)));

        // after a fork both sides write it, and what the parent gives up is free at once
        let mut pager = small(1000);
        pager.devices.add_memory_device(vec![0; 100], 9, 18).unwrap();
        store(&mut pager, page(0, 0), 4);
        let mut child = pager.clone();
        pager.devices.fork_parent();
        child.devices.inherit();
        assert!(pager.release(page(0, 1)) && pager.devices.deferred() == 0 && pager.used() == 3);
        assert!(!child.devices.is_inherited(device) && child.devices.is_inherited(DeviceId(0)));
        let slot = store(&mut child, page(0, 10), 2);
        assert_eq!((child.devices.device_of(slot).0, child.devices.stored()), (device, 6));
        assert_eq!((freed(&mut pager), freed(&mut child)), (vec![1], vec![]));
        let many = store(&mut child, page(0, 20), 70);
        child.release_range(page(0, 20), 70);
        let unused = alloc(&mut child, 1).unwrap().first;
        child.free_slot(unused);
        let mut again: Vec<u32> = core::iter::from_fn(|| Some(freed(&mut child)).filter(|f| !f.is_empty())).flatten().collect();
        again.sort_unstable();
        assert!(again.starts_with(&[6, 7, 8]) && again.len() == 71 && many == child.devices.slot(device, 6), "{again:?}");
        pager.check();
        child.check();
        child.release_range(page(0, 0), 100);
        child.remove(device);
        assert_eq!(child.devices.add_device(10, 0), Ok(device));
        assert!(!memory(&child, child.devices.slot(device, 0)));
    }

    /// All pages on `device`, by the walk.
    fn walk(pager: &SwapPager, device: DeviceId) -> Vec<(PageId, Slot)> {
        let (mut found, mut from) = (Vec::new(), Some(page(0, 0)));
        while let Some(at) = from {
            let scan = pager.next_on(device, at);
            if let Some(run) = scan.run {
                found.extend((0..run.count).map(|k| (run.first.offset(k.into()), Slot(run.slot.0 + k))));
            }
            assert!(scan.next.is_none_or(|next| next > at));
            from = scan.next;
        }
        found
    }

    #[test]
    fn a_leaving_device_gives_nothing_and_is_found_in_runs() {
        let mut pager = small(1000);
        let other = pager.devices.add_device(1000, 5).unwrap();
        for k in 0..10 {
            store(&mut pager, page(k % 3, u64::from(k) * 1000), 50);
        }
        pager.stay(other);
        let leave = pager.leave(other).unwrap();
        assert_eq!((pager.leave(other), pager.leaving(other)), (None, Some(leave)));
        let slot = store(&mut pager, page(9, 0), 100);
        assert_eq!(at(&pager, slot), (0, 0));
        assert_eq!(walk(&pager, other).len(), 500);
        assert_eq!(walk(&pager, DeviceId(0)), (0..100).map(|k| (page(9, k.into()), Slot(k))).collect::<Vec<_>>());
        assert!(pager.is_unwelcome(page(1, 1000)) && !pager.is_unwelcome(page(9, 0)));
        for (p, _) in walk(&pager, other) {
            let run = pager.alloc_run(1, p).unwrap();
            assert!(pager.assign(p, run.first, ContentHash::of(0)));
        }
        assert_eq!(pager.device_use(other), Some(DeviceUse::default()));
        pager.remove(other);
        assert_eq!(pager.device_use(other), None);
        pager.check();
    }

    #[test]
    fn slot_numbers_do_not_run_out() {
        let mut pager = small(64);
        for k in 0..10_000 {
            let device = pager.devices.add_device(1 + k % 64, 1).unwrap();
            let slot = store(&mut pager, page(0, 7), 1);
            assert_eq!(pager.devices.device_of(slot), (device, 0));
            _ = pager.devices.fork_parent(); // a child that lives on, with the file open
            pager.leave(device).unwrap();
            assert!(pager.release(page(0, 7)));
            assert_eq!(pager.devices.deferred(), 1);
            pager.remove(device);
        }
        assert_eq!(pager.devices.add_device(0, 0), Err(AddDeviceError::Empty));
        assert_eq!(pager.devices.add_device(65, 0), Err(AddDeviceError::TooLong { slots_max: 64 }));
        (1..4).for_each(|_| assert!(pager.devices.add_device(1, 0).is_ok()));
        assert_eq!(pager.devices.add_device(1, 0), Err(AddDeviceError::TooMany { devices_max: 4 }));
        pager.check();
    }

    #[test]
    fn errors_in_a_row_retire_a_device_but_not_the_last() {
        let mut pager = small(100);
        let second = pager.devices.add_device(100, 3).unwrap();
        let io = |ok| Io { write: true, pages: 1, bytes: 4096, ns: 1000, ok };
        for _ in 0..5 {
            (0..ERRORS_MAX - 1).for_each(|_| assert!(!pager.devices.io_ended(second, io(false))));
            assert!(!pager.devices.io_ended(second, io(true)));
        }
        let read = |ok| Io { write: false, ..io(ok) };
        (0..ERRORS_MAX - 1).for_each(|_| assert!(!pager.devices.io_ended(second, read(false))));
        (0..ERRORS_MAX - 1).for_each(|_| assert!(!pager.devices.io_ended(second, io(false))));
        assert!(!pager.devices.io_ended(second, read(true)), "it can still be read");
        assert!(pager.devices.io_ended(second, io(false)));
        assert_eq!(pager.devices.status(second).unwrap().state, DeviceState::Retired);
        let slot = store(&mut pager, page(0, 0), 1);
        assert_eq!(at(&pager, slot), (0, 0));
        (0..100).for_each(|_| assert!(!pager.devices.io_ended(DeviceId(0), io(false))));
        assert_eq!(pager.devices.status(DeviceId(0)).unwrap().state, DeviceState::On);
        assert_eq!(pager.devices.stats(DeviceId(0)).unwrap().writes.errors, 100);
    }

    #[test]
    fn a_child_takes_an_inherited_device_off() {
        let mut pager = small(100);
        store(&mut pager, page(0, 0), 60);
        let leave = pager.leave(DeviceId(0));
        assert!(leave.is_some());
        let mut child = pager.clone();
        let own = child.devices.fork_child(100).unwrap();
        assert_eq!(child.leaving(DeviceId(0)), None, "a swapoff is not inherited");
        assert_eq!(child.device_use(DeviceId(0)).unwrap().stored, 60);
        child.leave(DeviceId(0)).unwrap();
        for k in 0..60 {
            let run = alloc(&mut child, 1).unwrap();
            assert_eq!(child.devices.device_of(run.first).0, own);
            assert!(child.assign(page(0, k), run.first, ContentHash::of(0)));
        }
        child.remove(DeviceId(0));
        child.check();
        assert_eq!(child.devices.add_device(100, 0), Ok(DeviceId(0)));
        child.check();
    }

    #[test]
    fn a_device_grows_before_it_hands_out_less() {
        let mut pager = small(GROW_SLOTS * 2 + 5);
        for k in 0..GROW_SLOTS / 32 - 1 {
            assert_eq!(alloc(&mut pager, 32).unwrap(), SlotRun { first: Slot(k * 32), count: 32 });
        }
        assert!(pager.metadata_bytes() < 10_000);
        assert_eq!(alloc(&mut pager, 33).unwrap(), SlotRun { first: Slot(GROW_SLOTS - 32), count: 33 });
        assert_eq!(alloc(&mut pager, u32::MAX).unwrap(), SlotRun { first: Slot(GROW_SLOTS + 1), count: RUN_MAX });
        while pager.used() + u64::from(RUN_MAX) <= pager.devices.capacity() {
            assert_eq!(alloc(&mut pager, RUN_MAX).unwrap().count, RUN_MAX);
        }
        assert!(alloc(&mut pager, RUN_MAX).unwrap().count < RUN_MAX);
        assert_eq!(alloc(&mut pager, 1), None);
        assert_eq!(pager.used(), pager.devices.capacity());
    }

    /// A device whose writes end in ENOSPC was asked again and again while another one stood empty, until the program was stopped.
    #[test]
    fn a_device_without_space_is_asked_last() {
        let mut pager = SwapPager::without_device(Config { pages_max: 1000, slots_max: 100, devices_max: 2, extents_max: 0 });
        let (fast, slow) = (pager.devices.add_device(50, 1).expect("room"), pager.devices.add_device(50, 0).expect("room"));
        let device_of = |pager: &SwapPager, run: SlotRun| pager.devices.device_of(run.first).0;
        let run = alloc(&mut pager, 20).expect("room");
        assert_eq!(device_of(&pager, run), fast);
        pager.devices.set_full(fast, true);
        let run = alloc(&mut pager, 20).expect("room");
        assert_eq!(device_of(&pager, run), slow);
        pager.devices.retry(false);
        assert_eq!(alloc(&mut pager, 20).map(|run| device_of(&pager, run)), Some(slow));
        pager.devices.retry(true);
        assert_eq!(alloc(&mut pager, 20).map(|run| device_of(&pager, run)), Some(fast));
    }

    /// The last entry of the table may end at the last number that a slot can have, which is one too many for the swap blocks.
    #[test]
    fn the_last_slot_number_is_not_used() {
        let mut pager = SwapPager::without_device(Config { pages_max: 100, slots_max: 1 << 28, devices_max: 16, extents_max: 0 });
        let last = (0..16).map(|_| pager.devices.add_device(1 << 28, 0).expect("an entry")).last().expect("sixteen");
        assert_eq!(pager.devices.get(last).map(|d| d.slots), Some((1 << 28) - 1));
        assert_eq!(pager.devices.get(DeviceId(14)).map(|d| d.slots), Some(1 << 28));
    }

    #[test]
    fn a_full_device_reuses_what_its_file_has() {
        let mut pager = small(10_000);
        store(&mut pager, page(0, 0), 64);
        let run = alloc(&mut pager, 32).unwrap(); // this write fails: ENOSPC
        for k in 0..32 {
            pager.free_slot(Slot(run.first.0 + k));
        }
        pager.devices.set_full(DeviceId(0), true);
        assert_eq!(alloc(&mut pager, 32), None);
        pager.release_range(page(0, 10), 20);
        pager.release_range(page(0, 60), 4);
        assert_eq!(alloc(&mut pager, 32), Some(SlotRun { first: Slot(10), count: 20 }));
        assert_eq!(alloc(&mut pager, 32), Some(SlotRun { first: Slot(60), count: 4 }));
        assert_eq!(alloc(&mut pager, 32), None);
        pager.devices.set_full(DeviceId(0), false);
        assert_eq!(alloc(&mut pager, 32).unwrap().count, 32);
        pager.check();
    }

    #[test]
    fn a_slot_waits_for_a_child_that_may_read_it() {
        let mut pager = small(100);
        store(&mut pager, page(0, 0), 60);
        let child = pager.devices.fork_parent();
        store(&mut pager, page(0, 60), 40);
        assert_eq!(pager.release_range(page(0, 0), 100), 100);
        assert_eq!((pager.used(), pager.devices.deferred(), pager.devices.stored()), (60, 60, 0));
        assert_eq!(alloc(&mut pager, 100).unwrap(), SlotRun { first: Slot(60), count: 40 }); // got its pages after the fork
        assert_eq!(alloc(&mut pager, 1), None);
        pager.check();
        pager.devices.child_gone(child);
        assert_eq!((pager.used(), pager.devices.deferred()), (40, 0));
        assert_eq!(alloc(&mut pager, 100).unwrap().count, 60);
        pager.check();
    }

    /// A server with one child that lives long and many that do not grew its swap file without bound: all that was in use at any
    /// fork was put aside until no child at all was left.
    #[test]
    fn swap_is_bounded_beside_a_child_that_lives_on() {
        let mut pager = small(300);
        store(&mut pager, page(0, 0), 100);
        let _lives_on = pager.devices.fork_parent();
        for round in 0..1000 {
            for at in (0..100).step_by(10) {
                store(&mut pager, page(0, at), 10); // written anew
            }
            assert!(pager.used() <= 200, "round {round}");
            let child = pager.devices.fork_parent();
            pager.release_range(page(0, round % 100), 1);
            pager.devices.child_gone(child);
            assert_eq!(pager.devices.deferred(), 100, "round {round}: what the first child may read");
        }
        pager.check();
    }

    #[test]
    fn a_child_without_a_device_can_only_read() {
        let mut pager = SwapPager::new(Config { pages_max: 100, slots_max: 100, devices_max: 2, extents_max: 200 });
        store(&mut pager, page(0, 0), 10);
        assert_eq!(pager.devices.fork_child(100), Some(DeviceId(1)));
        let slot = store(&mut pager, page(0, 10), 10);
        assert_eq!(at(&pager, slot), (1, 0));
        assert!(pager.devices.is_inherited(DeviceId(0)) && !pager.devices.is_inherited(DeviceId(1)));
        assert_eq!(pager.devices.fork_child(100), None);
        assert_eq!(alloc(&mut pager, 1), None);
        assert_eq!((pager.used(), pager.devices.capacity(), pager.devices.stored()), (0, 0, 20));
        assert_eq!(pager.has_page(page(0, 5), 9, 9).unwrap(), HasPage { slot: Slot(5), before: 5, after: 4 });
        assert_eq!(pager.release_range(page(0, 0), 100), 20);
        pager.check();
    }

    #[test]
    #[cfg(panic = "unwind")]
    fn a_slot_never_gets_a_second_page() {
        let panics = |f: fn(&mut SwapPager)| {
            let mut pager = small(100);
            store(&mut pager, page(0, 0), 3);
            alloc(&mut pager, 1).unwrap(); // slot 3 is taken, 4 is free
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f(&mut pager))).is_err()
        };
        assert!(panics(|pager| _ = pager.assign(page(0, 9), Slot(2), ContentHash::of(0)))); // owned
        assert!(panics(|pager| _ = pager.assign(page(0, 9), Slot(4), ContentHash::of(0)))); // free
        assert!(panics(|pager| _ = pager.assign(page(0, 9), Slot(100), ContentHash::of(0)))); // on no device
        assert!(panics(|pager| pager.free_slot(Slot(2))));
        assert!(panics(|pager| pager.free_slot(Slot(4))));
        assert!(panics(|pager| {
            pager.devices.fork_child(10);
            _ = pager.assign(page(0, 9), Slot(3), ContentHash::of(0)); // taken, but the parent's
        }));
        assert!(!panics(|pager| assert!(pager.assign(page(0, 9), Slot(3), ContentHash::of(0)))));
    }

    /// A device of many small pieces: no run crosses a border, all of it is used, and each slot is where its piece says.
    #[test]
    fn runs_end_where_extents_do() {
        let mut pager = SwapPager::without_device(Config { pages_max: 9000, slots_max: 5000, devices_max: 2, extents_max: 200 });
        let device = pager.devices.add_mapped_device(5000, 0).unwrap();
        assert_eq!(pager.devices.add_extent(DeviceId(1), 0, 0, 1), Err(AddExtentError::NotMapped));
        assert_eq!((alloc(&mut pager, 1), pager.devices.capacity(), pager.devices.wants_extent()), (None, 5000, Some(device)));
        let lens: Vec<u32> = (0..200).map(|k| 1 + k * 7 % 41).collect();
        for (k, &len) in lens.iter().enumerate() {
            pager.devices.add_extent(device, k as u16, 1 << 20, len).unwrap();
        }
        assert_eq!(pager.devices.add_extent(device, 0, 0, 1), Err(AddExtentError::TooMany { extents_max: 200 }));
        pager.devices.refuse_growth(device);
        assert_eq!(pager.devices.capacity(), u64::from(lens.iter().sum::<u32>()));
        assert_eq!(
            pager.devices.add_extent(device, 0, 0, 1000),
            Err(AddExtentError::TooLong { slots_left: 5000 - pager.devices.capacity() as u32 })
        );
        let mut at = 0;
        while let Some(run) = pager.alloc_run(24, page(0, at)) {
            let [first, last] = [run.first, Slot(run.first.0 + run.count - 1)].map(|slot| pager.devices.locate(slot));
            assert!(first.file == last.file && last.offset - first.offset == u64::from(run.count - 1) * 4096);
            assert!(last.offset < (1 << 20) + u64::from(lens[last.file as usize]) * 4096);
            for k in 0..run.count {
                assert!(pager.assign(page(0, at), Slot(run.first.0 + k), ContentHash::of(0)));
                at += 1;
            }
        }
        assert_eq!(at, pager.devices.capacity());
        for index in 0..at {
            let has = pager.has_page(page(0, index), u32::MAX, u32::MAX).unwrap();
            let piece = |slot: u32| pager.devices.locate(Slot(slot)).file;
            assert_eq!(piece(has.slot.0 - has.before), piece(has.slot.0 + has.after));
        }
        // A swapoff's did: it read over the end of one file what was in the next one, and a program lost its pages.
        let (mut found, mut from) = (0, page(0, 0));
        while let scan = pager.next_on(device, from)
            && let Some(run) = scan.run
        {
            assert_eq!(pager.devices.locate(run.slot).file, pager.devices.locate(Slot(run.slot.0 + run.count - 1)).file, "{run:?}");
            assert_eq!(run.first.index(), found, "none is left out");
            (found, from) = (found + u64::from(run.count), scan.next.unwrap());
        }
        assert_eq!(found, at);
        pager.check();
    }

    /// A device that grows by 16 blocks in pieces of 8.
    fn growing(slots: u32) -> (SwapPager, DeviceId) {
        let mut pager = SwapPager::without_device(Config { pages_max: 99_000, slots_max: slots, devices_max: 2, extents_max: 200 });
        let device = pager.devices.add_mapped_device(slots, 0).unwrap();
        (0..16).for_each(|k| pager.devices.add_extent(device, 0, k << 21, BLOCK_SLOTS).unwrap());
        (pager, device)
    }

    /// One pass: what can be given back, in slots from the beginning, each run with its length.
    fn pass(pager: &mut SwapPager, device: DeviceId, given: bool) -> Vec<(u32, u32)> {
        let mut runs = Vec::new();
        loop {
            match pager.devices.punch_begin(device, 3, 4 * BLOCK_SLOTS) {
                Punch::Run(run) => {
                    assert_eq!(pager.device_use(device).unwrap().taken, u64::from(run.count));
                    runs.push((pager.devices.device_of(run.first).1, run.count));
                    pager.devices.punched(run, given);
                }
                Punch::More => {}
                Punch::End => return runs,
            }
        }
    }

    #[test]
    fn what_stays_free_is_given_back_and_got_back_before_the_device_grows() {
        let (mut pager, device) = growing(1 << 15);
        let blocks = |n: u32| n * BLOCK_SLOTS;
        (0..16).for_each(|k| _ = store(&mut pager, page(0, k * 512), 512));
        assert_eq!(pager.devices.wants_extent(), Some(device));
        assert_eq!(pass(&mut pager, device, true), []);
        pager.release_range(page(0, 0), 9000);
        // only what is still free at the next look, and a window for each writer stays
        assert_eq!((pass(&mut pager, device, true), pager.devices.wants_extent()), (vec![], None));
        let kept = store(&mut pager, page(1, 0), 1);
        assert_eq!(kept.0, 0);
        assert_eq!(pass(&mut pager, device, true), [(blocks(1), blocks(4)), (blocks(5), blocks(3))]);
        let status = pager.devices.status(device).unwrap();
        assert_eq!((status.absent, status.given_back, status.used, status.extents), (blocks(7), u64::from(blocks(7)), 1, 16));
        assert_eq!((pager.used(), pager.room(), pager.devices.capacity()), (1, (1 << 15) - 1, 1 << 15));
        pager.check();

        // absent slots are not handed out
        let mut at = 512;
        while pager.devices.wants_extent().is_none() {
            let run = pager.alloc_run(128, page(1, at)).unwrap();
            assert!((run.first.0 + run.count <= blocks(1)) || run.first.0 >= blocks(8), "{run:?}");
            (0..run.count)
                .for_each(|k| assert!(pager.assign(page(1, at + u64::from(k)), Slot(run.first.0 + k), ContentHash::of(0))));
            at += u64::from(run.count);
        }
        // what is absent can be read by nobody's child
        let child = pager.devices.fork_parent();
        let run = pager.devices.refill_begin(device, blocks(2)).unwrap();
        assert_eq!((run.first, run.count), (Slot(blocks(1)), blocks(2)));
        pager.devices.refilled(run, false);
        pager.check();
        let run = pager.devices.refill_begin(device, blocks(99)).unwrap();
        assert_eq!(run.count, blocks(7));
        pager.devices.refilled(run, true);
        assert_eq!((pager.devices.refill_begin(device, 1), pager.devices.wants_extent()), (None, None));
        for at in (0..3000).step_by(100) {
            let run = pager.alloc_run(100, page(3, at)).unwrap();
            (0..run.count)
                .for_each(|k| assert!(pager.assign(page(3, at + u64::from(k)), Slot(run.first.0 + k), ContentHash::of(0))));
        }
        pager.release_range(page(3, 0), 3000);
        assert_eq!(pager.devices.deferred(), 0);
        pager.devices.child_gone(child);
        pager.check();
    }

    #[test]
    fn a_file_system_that_takes_nothing_back_is_asked_once() {
        let (mut pager, device) = growing(1 << 15);
        assert_eq!(pass(&mut pager, device, false), []);
        assert_eq!(pass(&mut pager, device, false), [(0, 4 * BLOCK_SLOTS)]);
        assert_eq!(pass(&mut pager, device, false), []);
        pager.check();
    }

    #[test]
    fn physical_extents_are_borders_after_a_refill_too() {
        let (mut pager, device) = growing(1 << 15);
        pass(&mut pager, device, true);
        assert_eq!(pass(&mut pager, device, true).len(), 2);
        let run = pager.devices.refill_begin(device, BLOCK_SLOTS).unwrap();
        assert_eq!(pager.devices.set_extents(run, &[2; 256]), Err(NoExtents));
        pager.devices.set_extents(run, &[12, 300, 200]).unwrap();
        pager.devices.refilled(run, true);
        let piece = |at: u32| pager.devices.extent(Slot(at)).map(|e| (e.first.0, e.count, e.offset));
        assert_eq!([11, 12, 511].map(piece), [Some((0, 12, 0)), Some((12, 300, 12 << 12)), Some((312, 200, 312 << 12))]);
        assert_eq!(piece(512), Some((512, 512, 1 << 21)));
        assert_eq!(pager.devices.status(device).unwrap().extents, 18);
        pager.check();
    }

    #[test]
    fn a_device_of_extents_goes_and_its_extents_can_be_had_again() {
        let mut pager = SwapPager::new(Config { pages_max: 900, slots_max: 1000, devices_max: 3, extents_max: 200 });
        for round in 0..3 {
            let device = pager.devices.add_mapped_device(1000, 1).unwrap();
            (0..200).for_each(|k| pager.devices.add_extent(device, 0, k << 16, 1 + round).unwrap());
            let slot = store(&mut pager, page(0, 0), 1);
            assert_eq!(pager.devices.device_of(slot).0, device);
            pager.leave(device).unwrap();
            pager.release(page(0, 0));
            pager.remove(device);
            pager.check();
        }
    }

    /// A process of the model: what each page must contain, and which file each device is.
    #[derive(Clone)]
    struct Process {
        pager: SwapPager,
        pages: BTreeMap<PageId, (Slot, u64)>,
        files: Vec<usize>,
        parent: Option<usize>,
        alive: bool,
        /// The fork of its parent's that it comes from.
        fork: u64,
        /// The model's account of the newest file: slots in use, deferred ones, and what each child of its own can read, as
        /// offsets.
        used: BTreeSet<u32>,
        deferred: BTreeSet<u32>,
        readable: BTreeMap<u64, BTreeSet<u32>>,
        written_end: u32,
        full: bool,
    }

    impl Process {
        fn forget(&mut self, slot: Slot) {
            let (device, at) = self.pager.devices.device_of(slot);
            if device.0 as usize + 1 < self.files.len() {
                return; // inherited
            }
            if self.readable.values().any(|slots| slots.contains(&at)) {
                assert!(self.deferred.insert(at));
            } else {
                assert!(self.used.remove(&at));
            }
        }
    }

    /// Processes and the files that they share. A read finds what the page's owner wrote, or a slot was overwritten.
    struct World {
        processes: Vec<Process>,
        /// (file, offset) -> content
        disk: BTreeMap<(usize, u32), u64>,
        files: usize,
        contents: u64,
    }

    const SLOTS: u32 = 300;

    impl World {
        fn new() -> Self {
            let pager = SwapPager::new(Config { pages_max: 1600, slots_max: SLOTS, devices_max: 4, extents_max: 200 });
            let process = Process {
                pager,
                pages: BTreeMap::new(),
                files: vec![0],
                parent: None,
                alive: true,
                fork: 0,
                used: BTreeSet::new(),
                deferred: BTreeSet::new(),
                readable: BTreeMap::new(),
                written_end: 0,
                full: false,
            };
            World { processes: vec![process], disk: BTreeMap::new(), files: 1, contents: 0 }
        }

        /// Does what the core does: takes a run, writes it, assigns, and takes the next until all are stored.
        fn store(&mut self, who: usize, first: PageId, count: u32, fails: bool) {
            let process = &mut self.processes[who];
            let file = *process.files.last().unwrap();
            let mut done = 0;
            while done < count {
                let Some(run) = alloc(&mut process.pager, count - done) else {
                    let end = if process.full { process.written_end } else { SLOTS };
                    assert_eq!(process.used.range(..end).count() as u32, end, "there was room");
                    return;
                };
                assert!(run.count >= 1 && run.count <= count - done);
                for k in 0..run.count {
                    let slot = Slot(run.first.0 + k);
                    let (device, at) = process.pager.devices.device_of(slot);
                    assert_eq!(device.0 as usize + 1, process.files.len(), "only the newest device is written");
                    assert!(process.used.insert(at), "slot given twice");
                    assert!(!process.full || at < process.written_end);
                    let page = first.offset((done + k).into());
                    if fails && k % 3 == 1 {
                        process.pager.free_slot(slot);
                        process.forget(slot);
                        continue;
                    }
                    self.contents += 1;
                    self.disk.insert((file, at), self.contents);
                    process.written_end = process.written_end.max(at + 1);
                    assert!(process.pager.assign(page, slot, ContentHash::new(page, self.contents.into(), 0)));
                    if let Some((old, _)) = process.pages.insert(page, (slot, self.contents)) {
                        process.forget(old);
                    }
                }
                done += run.count;
            }
        }

        fn fork(&mut self, who: usize) {
            let fork = self.processes[who].pager.devices.fork_parent();
            let mut child = self.processes[who].clone();
            let process = &mut self.processes[who];
            process.readable.insert(fork, process.used.difference(&process.deferred).copied().collect());
            match child.pager.devices.fork_child(SLOTS) {
                Some(device) => assert_eq!(device.0 as usize, child.files.len()),
                None => {
                    assert_eq!(child.files.len(), 4);
                    self.child_gone(who, fork); // as the machine does when a fork fails
                    return;
                }
            }
            child.files.push(self.files);
            self.files += 1;
            (child.parent, child.fork) = (Some(who), fork);
            child.readable.clear();
            for set in [&mut child.used, &mut child.deferred] {
                set.clear();
            }
            child.written_end = 0;
            child.full = false;
            self.processes.push(child);
        }

        /// Whether `who` or a descendant of it lives.
        fn is_any_alive(&self, who: usize) -> bool {
            let parent = |p: usize| self.processes[p].parent;
            (0..self.processes.len())
                .filter(|&p| self.processes[p].alive)
                .any(|p| std::iter::successors(Some(p), |&p| parent(p)).any(|p| p == who))
        }

        fn child_gone(&mut self, who: usize, fork: u64) {
            let process = &mut self.processes[who];
            process.pager.devices.child_gone(fork);
            process.readable.remove(&fork).expect("it was forked");
            let Process { used, deferred, readable, .. } = process;
            deferred.retain(|at| {
                let waits = readable.values().any(|slots| slots.contains(at));
                assert!(waits || used.remove(at));
                waits
            });
        }

        fn exit(&mut self, who: usize) {
            if who == 0 {
                return;
            }
            self.processes[who].alive = false;
            let mut child = who;
            while let Some(parent) = self.processes[child].parent.filter(|_| !self.is_any_alive(child)) {
                if self.processes[parent].alive {
                    self.child_gone(parent, self.processes[child].fork);
                }
                child = parent;
            }
        }

        /// Every page of every process; the neighbours of one in seven.
        fn check(&self, step: usize) {
            for process in self.processes.iter().filter(|p| p.alive) {
                assert_eq!(process.pager.used() as usize, process.used.len());
                assert_eq!(process.pager.devices.deferred() as usize, process.deferred.len());
                assert_eq!(process.pager.devices.stored() as usize, process.pages.len());
                for (k, (&page, &(slot, content))) in process.pages.iter().enumerate() {
                    let (device, at) = process.pager.devices.device_of(slot);
                    let file = process.files[device.0 as usize];
                    assert_eq!(self.disk[&(file, at)], content, "{page:?} of a process was overwritten");
                    assert_eq!(process.pager.content(page), Some(ContentHash::new(page, content.into(), 0)));
                    if k % 7 != step % 7 {
                        continue;
                    }
                    let follows = |k: u32| {
                        let next = process.pages.get(&page.offset(k.into()));
                        let next = next.filter(|n| n.0.0 == slot.0 + k);
                        next.is_some_and(|n| process.pager.devices.device_of(n.0).0 == device)
                    };
                    let after = (1..=40).take_while(|&k| follows(k)).count() as u32;
                    let has = process.pager.has_page(page, 3, 40).unwrap();
                    assert_eq!((has.slot, has.after), (slot, after));
                }
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Op {
        Store { object: u16, index: u64, count: u32, fails: bool },
        Release { object: u16, index: u64 },
        ReleaseRange { object: u16, index: u64, count: u64 },
        Rename { from: u64, to: u64, count: u64 },
        Fork,
        Exit,
        Full(bool),
    }

    fn op() -> impl Strategy<Value = Op> {
        let object = || 0..2u16;
        prop_oneof![
            8 => (object(), 0..400u64, 1..64u32, prop::bool::weighted(0.2))
                .prop_map(|(object, index, count, fails)| Op::Store { object, index, count, fails }),
            3 => (object(), 0..400u64).prop_map(|(object, index)| Op::Release { object, index }),
            4 => (object(), 0..400u64, 0..200u64)
                .prop_map(|(object, index, count)| Op::ReleaseRange { object, index, count }),
            1 => (0..400u64, 0..400u64, 1..50u64).prop_map(|(from, to, count)| Op::Rename { from, to, count }),
            2 => Just(Op::Fork),
            1 => Just(Op::Exit),
            1 => any::<bool>().prop_map(Op::Full),
        ]
    }

    proptest! {
        #[test]
        fn processes_read_what_they_wrote(ops in prop::collection::vec((any::<prop::sample::Index>(), op()), 1..80)) {
            let mut world = World::new();
            for (step, (who, op)) in ops.into_iter().enumerate() {
                let alive: Vec<usize> = (0..world.processes.len()).filter(|&p| world.processes[p].alive).collect();
                let who = *who.get(&alive);
                let process = &mut world.processes[who];
                match op {
                    Op::Store { object, index, count, fails } => world.store(who, page(object, index), count, fails),
                    Op::Release { object, index } => {
                        let value = process.pages.remove(&page(object, index));
                        prop_assert_eq!(process.pager.release(page(object, index)), value.is_some());
                        if let Some((slot, _)) = value { process.forget(slot) }
                    }
                    Op::ReleaseRange { object, index, count } => {
                        let gone: Vec<_> =
                            process.pages.range(page(object, index)..page(object, index + count)).map(|(&p, v)| (p, v.0)).collect();
                        prop_assert_eq!(process.pager.release_range(page(object, index), count) as usize, gone.len());
                        for (p, slot) in gone {
                            process.pages.remove(&p);
                            process.forget(slot);
                        }
                    }
                    Op::Rename { from, to, count } => {
                        for k in 0..count {
                            let (from, to) = (page(0, from + k), page(1, to + k));
                            if process.pages.contains_key(&to) { continue }
                            let value = process.pages.remove(&from);
                            prop_assert!(process.pager.rename(from, to));
                            if let Some(value) = value { process.pages.insert(to, value); }
                        }
                    }
                    Op::Fork => world.fork(who),
                    Op::Exit => world.exit(who),
                    Op::Full(full) => {
                        process.full = full;
                        process.pager.devices.set_full(DeviceId(process.files.len() as u16 - 1), full);
                    }
                }
                world.check(step);
            }
            for process in world.processes {
                process.pager.check();
            }
        }
    }
}

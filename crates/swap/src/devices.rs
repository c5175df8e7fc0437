//! All swap devices in one slot number space: which device comes next, and where a slot is.

use crate::device::{Device, DeviceStatus, SHORT_RUN, WRITERS};
use crate::device_stats::{DeviceStats, Io};
use crate::extent::ExtentMap;
use crate::fork_epochs::Epochs;
use alloc::vec::Vec;
use core::cmp::Reverse;
use overspill_vm::pager::{DeviceUse, Location};
use overspill_vm::types::{DeviceId, PageId, Slot};

/// A device has failed after this many failed reads, or writes, in a row, if there is another device.
pub const ERRORS_MAX: u32 = 8;

/// log2 of the pages of one address range whose writes form one stream: 1 GiB.
pub(crate) const WRITER_SHIFT: u32 = 18;

/// Why a device could not be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AddDeviceError {
    /// There is no entry left.
    TooMany {
        /// The most devices.
        devices_max: u16,
    },
    /// It has no slots.
    Empty,
    /// It has more slots than a device can have.
    TooLong {
        /// The most slots (pages).
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

/// All devices and their slots. A machine may use this part of a [`SwapPager`](crate::SwapPager) without the core. It does not know
/// where pages are.
#[derive(Clone)]
pub struct Devices {
    /// The table. Entry `i` has the slots from `i << shift` on.
    pub(crate) all: Vec<Device>,
    /// The extents of all of them.
    pub(crate) extents: ExtentMap,
    pub(crate) shift: u32,
    /// The entries in use, by priority, then by number; those that answered ENOSPC come last. Has room for all.
    pub(crate) order: Vec<u16>,
    /// The next of several devices with equal priority.
    pub(crate) turn: usize,
    /// Number of the last swapoff.
    pub(crate) leaves: u32,
    /// A bit for each device on which a page in memory should not keep a copy: new pages do not go there, or it is memory that is
    /// short.
    pub(crate) unwelcome: u32,
    /// Slots of memory devices are not given out at the moment.
    pub(crate) past_memory: bool,
    /// Says which children may read which slots.
    pub(crate) epochs: Epochs,
}

/// The stream of writes that the pages around `near` belong to.
pub(crate) fn writer_of(near: PageId) -> usize {
    let area = near.raw() >> WRITER_SHIFT;
    (area.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - WRITERS.ilog2())) as usize
}

impl Devices {
    /// The entry of `slot`, and the slot's number on it.
    #[inline]
    pub(crate) fn split(&self, slot: Slot) -> (usize, u32) {
        ((slot.0 >> self.shift) as usize, slot.0 & ((1 << self.shift) - 1))
    }

    #[inline]
    pub(crate) fn join(&self, index: usize, at: u32) -> Slot {
        Slot((index as u32) << self.shift | at)
    }

    /// The device of `slot`, and the slot's number on it.
    #[inline]
    pub(crate) fn of(&mut self, slot: Slot) -> (&mut Device, u32) {
        let (index, at) = self.split(slot);
        let device = &mut self.all[index];
        assert!(at < device.slots, "the slot is on no device");
        (device, at)
    }

    pub(crate) fn get(&self, device: DeviceId) -> Option<&Device> {
        self.all.get(device.0 as usize).filter(|d| d.slots > 0)
    }

    pub(crate) fn get_mut(&mut self, device: DeviceId) -> Option<&mut Device> {
        self.all.get_mut(device.0 as usize).filter(|d| d.slots > 0)
    }

    pub(crate) fn in_use(&self) -> impl Iterator<Item = &Device> {
        self.all.iter().filter(|d| d.slots > 0)
    }

    pub(crate) fn own(&self) -> impl Iterator<Item = &Device> {
        self.in_use().filter(|d| d.own)
    }

    pub(crate) fn own_mut(&mut self) -> impl Iterator<Item = &mut Device> {
        self.all.iter_mut().filter(|d| d.slots > 0 && d.own)
    }

    pub(crate) fn release(&mut self, slot: Slot) {
        let (index, at) = self.split(slot);
        let device = &mut self.all[index];
        assert!(at < device.slots, "the slot is on no device");
        device.release(at, &mut self.epochs);
    }

    /// To be called when a device comes, goes, or changes its state. Does not allocate.
    pub(crate) fn changed(&mut self) {
        self.order.clear();
        self.order.extend((0..self.all.len() as u16).filter(|&i| self.all[i as usize].slots > 0));
        let key = |i: u16| {
            let device = &self.all[i as usize];
            (device.full && device.memory.is_none(), Reverse(device.priority), i)
        };
        self.order.sort_unstable_by_key(|&i| key(i));
        self.unwelcome = self.in_use().filter(|d| d.leaving.is_some() || d.failed || d.memory.is_some()).count() as u32;
    }

    /// The first and last slot of the piece (device or extent) that `slot` is in.
    #[inline]
    pub(crate) fn border(&self, slot: Slot) -> (Slot, Slot) {
        let (index, _) = self.split(slot);
        let device = &self.all[index];
        if device.mapped {
            let extent = self.extents.find(slot).expect("a slot of a mapped device is in an extent");
            return (extent.first, extent.last());
        }
        (self.join(index, 0), self.join(index, device.slots - 1))
    }

    /// Cuts a run that was just taken to its longest piece in one extent. The rest goes back.
    pub(crate) fn cut(&mut self, (index, first, count): (usize, u32, u32), writer: usize) -> (usize, u32, u32) {
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

    /// Whether new pages may go to device `index` now.
    pub(crate) fn gives(&self, index: u16) -> bool {
        let device = &self.all[index as usize];
        device.gives() && !(self.past_memory && device.memory.is_some())
    }

    /// Takes the longest run, up to `want`, on the devices `order[from..to]`, if it has at least `least` slots.
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
    pub(crate) fn alloc(&mut self, want: u32, writer: usize) -> Option<(usize, u32, u32)> {
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

    /// Adds a device of `slots` slots, which this process writes. Devices of higher priority are written first, those of equal
    /// priority in turns. Does not allocate.
    ///
    /// # Errors
    /// [`AddDeviceError`]; then nothing is changed.
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
            device.slots = slots - 1; // the swap blocks cannot store slot u32::MAX
        }
        self.changed();
        Ok(DeviceId(index as u16))
    }

    /// Slot `at` of `device`.
    #[inline]
    pub fn slot(&self, device: DeviceId, at: u32) -> Slot {
        self.join(device.0.into(), at)
    }

    /// Ends all swapoffs, as `Pager::stay`. Returns whether there was one.
    pub fn stay_all(&mut self) -> bool {
        let mut any = false;
        for device in &mut self.all {
            any |= device.stay();
        }
        self.changed();
        any
    }

    fn free_entry(&self) -> Result<usize, AddDeviceError> {
        let devices_max = self.all.len() as u16;
        let free = self.all.iter().position(|d| d.slots == 0);
        free.ok_or(AddDeviceError::TooMany { devices_max })
    }

    /// The most slots that a device can have.
    pub fn slots_max(&self) -> u32 {
        self.all[0].blist.capacity()
    }

    /// Where the bytes of `slot` are. The bytes of a run of slots from `Pager::alloc_run` or `Pager::has_page` lie in one piece.
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

    /// Pages stored, including those on inherited devices.
    pub fn stored(&self) -> u64 {
        self.in_use().map(|d| u64::from(d.owned_count)).sum()
    }

    /// Slots in use, in pages.
    pub fn used(&self) -> u64 {
        self.own().map(|d| u64::from(d.in_use())).sum()
    }

    /// Slots that can still be given.
    pub fn room(&self) -> u64 {
        self.in_use().map(|d| u64::from(d.room())).sum()
    }

    /// The use of `device`, or `None` if there is no such device.
    pub fn device_use(&self, device: DeviceId) -> Option<DeviceUse> {
        self.get(device).map(Device::use_of)
    }

    /// Removes `device`. Its entry may be used for another.
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

    /// All devices, in the order in which they are written.
    pub fn iter(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.order.iter().map(|&i| DeviceId(i))
    }

    /// The status of a device; `None` if there is none of that number. Costs a pass over a bit per 64 slots.
    pub fn status(&self, device: DeviceId) -> Option<DeviceStatus> {
        self.get(device).map(Device::status)
    }

    /// Its counters, which [`Devices::io_ended`] fills.
    pub fn stats(&self, device: DeviceId) -> Option<&DeviceStats> {
        self.get(device).map(|d| &d.stats)
    }

    /// Counts an operation. Returns `true` if the device has just failed, after [`ERRORS_MAX`] failed reads or writes in a row:
    /// it should be swapped off. If that has ended without success, it is told again when so many more have failed. The last
    /// device that can be written never counts as failed, because there is no better one. (Memory in front of it is none: it is
    /// full before long. Nor is a device that is full now.)
    ///
    /// # Panics
    /// If there is no such device.
    pub fn io_ended(&mut self, device: DeviceId, io: Io) -> bool {
        let better = (0..).zip(&self.all).any(|(i, other)| DeviceId(i) != device && other.takes_all());
        let it = self.get_mut(device).expect("there is such a device");
        let fails = it.stats.count(io) >= ERRORS_MAX && !it.told && better;
        if fails {
            (it.failed, it.told) = (true, true);
            self.changed();
        }
        fails
    }

    /// The device that `slot` is on, and its offset there, in slots (pages).
    ///
    /// # Panics
    /// If it is on no device.
    #[inline]
    pub fn device_of(&self, slot: Slot) -> (DeviceId, u32) {
        let (index, at) = self.split(slot);
        assert!(at < self.all[index].slots, "the slot is on no device");
        (DeviceId(index as u16), at)
    }

    /// Whether `device` belongs to a parent, so that this process must not write it.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn is_inherited(&self, device: DeviceId) -> bool {
        !self.get(device).expect("there is such a device").own
    }

    /// To be called when the machine saw ENOSPC on `device`, or sees room again. A full device gives only slots below the highest
    /// one that was ever written, because the file has their blocks, and only when no other device has room. (A failed write may
    /// have left a hole below. A write there answers ENOSPC again; then its slot comes back by `Pager::free_slot`, and the cursor
    /// goes on.)
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

    /// The length of all own devices, in slots (pages): the upper limit of [`Devices::used`]. Of memory, what it has room for now.
    pub fn capacity(&self) -> u64 {
        let length = |d: &Device| match d.refused {
            true => d.blist.len(),
            false if d.memory.is_some() => d.slots.min(d.in_use().saturating_add(d.room_max)),
            false => d.slots,
        };
        self.own().map(|d| u64::from(length(d))).sum()
    }
}

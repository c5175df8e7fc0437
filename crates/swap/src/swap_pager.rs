//! The swap pager: swap blocks over the slots of several devices, and what a fork does to them.
//!
//! ```text
//!   slot number space   0 .............. | ................... | ............. u32::MAX
//!                       device 0         | device 1            | device 2
//!                       inherited        | inherited           | own
//!                       (read only: grandparent's file, parent's file)   this process writes here, and only here
//!
//!   a slot of an own device:
//!
//!            alloc_run            assign            release
//!     free ------------> taken ------------> owned ------------> free
//!                          |                   |
//!                          +--- free_slot      +--- release of a frozen slot ---> deferred --- children_gone ---> free
//! ```
//!
//! **Fork.** A child reads its parent's files by the slots that it has inherited. In the parent, [`SwapPager::fork_parent`] freezes
//! all slots that are in use: a frozen slot that is given back is remembered, not handed out, so nobody writes over what a child
//! may still read. [`SwapPager::children_gone`] ends that for all at once. In the child, [`SwapPager::fork_child`] makes all
//! devices there are read-only and adds one of its own; what it forgets on an inherited device it just forgets. A grandchild
//! inherits both.
//!
//! **Growth.** A device's usable length grows in steps of [`GROW_SLOTS`] when no free run of the wanted length is left, so a file, and
//! the tables, get no longer than they must; only at the greatest length do writes get shorter. A device that is out of space
//! ([`SwapPager::set_full`]) gives slots only below the highest that was ever written, where the file has its blocks already.
//!
//! Invariants, per device, asserted at each change:
//!
//! - `taken + owned + deferred == used`, `used + free == len <= slots`
//! - no slot has two pages: `assign` needs a slot that is taken, and taken it is no longer then
//! - `deferred <= frozen`: (as sets) only frozen slots wait, and a frozen slot is never free
//! - all slots in use are below `len`; all written ones below `written_end <= len`
//!
//! Memory, per slot below `len`: 1.07 bits free list, 1 bit owned, after a fork 2 bits frozen and deferred: at most 4.1 bits, which is
//! 0.013 per cent. Per page: see `swap_block`. All devices' tables are made at set-up for the largest device, as address
//! space.
//!
//! Locks: none; `&mut` is the lock. No I/O, no waiting, no allocation after [`SwapPager::new`].
//!
//! What it cannot do yet: shrink or remove a device, choose among devices other than in the order of their making, free the parent's
//! slots child by child (the last one out frees all), or share an inherited slot's space once both have forgotten it before
//! that. The first two are made here: a device's whole state is one `Device`, and `alloc_run` is the one place that chooses.
//!
//! Source: FreeBSD `swap_pager.c` (devices as ranges of one `daddr` space, next device when one is full); read, not copied. The fork
//! scheme is our own, since the kernel has a reference count per slot, which two processes cannot share without shared memory.

use crate::bitmap::{Bitmap, WORD_BITS};
use crate::blist::{Blist, RUN_MAX};
use crate::swap_block::{LEAF_PAGES, NoMetadata, SwapBlocks};
use overspill_vm::pager::{HasPage, Pager, SlotRun};
use overspill_vm::types::{ContentHash, PageId, PageIndex, Slot};

/// A device's usable length grows by this many slots: 64 MiB. Guessed: long next to any cluster, short next to any disk.
pub const GROW_SLOTS: u32 = 16 * 1024;
const _: () = assert!(GROW_SLOTS >= RUN_MAX, "one step of growth must do for any run");

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
    /// How many devices there can be, inherited ones included. One fork deeper takes one more.
    pub devices_max: u16,
}

/// A swap device, by the order in which they were added.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeviceId(pub u16);

/// One device: its place in the slot number space and the state of its slots.
#[derive(Clone)]
struct Device {
    /// Its slots are `base..base + slots`. Both constant once it is added; `slots` is 0 before.
    base: u32,
    slots: u32,
    /// This process writes it. Otherwise it is inherited: nothing below is used any more.
    own: bool,
    /// The machine saw ENOSPC.
    full: bool,
    /// Slots that were in use at a fork whose child may still read them.
    frozen: Bitmap,
    /// Frozen slots that have been given back.
    deferred: Bitmap,
    /// Slots that a page has.
    owned: Bitmap,
    blist: Blist,
    taken_count: u32,
    owned_count: u32,
    deferred_count: u32,
    /// `frozen` was ever touched.
    forked: bool,
    /// `frozen` is not empty, maybe.
    frozen_any: bool,
    /// One more than the highest slot that was ever written.
    written_end: u32,
}

impl Device {
    fn new(slots_max: u32) -> Self {
        Device {
            base: 0,
            slots: 0,
            own: false,
            full: false,
            frozen: Bitmap::new(slots_max),
            deferred: Bitmap::new(slots_max),
            owned: Bitmap::new(slots_max),
            blist: Blist::new(slots_max),
            taken_count: 0,
            owned_count: 0,
            deferred_count: 0,
            forked: false,
            frozen_any: false,
            written_end: 0,
        }
    }

    #[inline]
    fn assert_counts(&self) {
        let counts = u64::from(self.taken_count) + u64::from(self.owned_count) + u64::from(self.deferred_count);
        assert!(counts == u64::from(self.blist.used()), "taken + owned + deferred == used");
    }

    /// Slots from here on must not be handed out.
    fn end(&self) -> u32 {
        if self.full { self.written_end } else { self.slots }
    }

    /// Takes exactly `want` slots, growing if need be.
    fn alloc_exact(&mut self, want: u32) -> Option<u32> {
        let mut first = self.blist.alloc_exact(want, self.end());
        let len = self.blist.len();
        if first.is_none() && !self.full && len < self.slots {
            self.blist.set_len(len.saturating_add(GROW_SLOTS).min(self.slots));
            first = self.blist.alloc_exact(want, self.end());
        }
        self.taken_count += if first.is_some() { want } else { 0 };
        self.assert_counts();
        first
    }

    /// A taken slot gets a page.
    fn assign(&mut self, at: u32) {
        assert!(self.own, "a slot of a read-only device cannot be assigned");
        self.assert_taken(at);
        self.owned.insert(at);
        self.taken_count -= 1;
        self.owned_count += 1;
        self.written_end = self.written_end.max(at + 1);
    }

    /// A taken slot gets none after all.
    fn free_taken(&mut self, at: u32) {
        if self.own {
            self.assert_taken(at);
            self.taken_count -= 1;
            self.give_back(at);
        }
    }

    /// An owned slot loses its page.
    fn release(&mut self, at: u32) {
        if self.own {
            self.owned.remove(at);
            self.owned_count -= 1;
            self.give_back(at);
        }
    }

    fn assert_taken(&self, at: u32) {
        let used = at < self.blist.len() && !self.blist.is_free(at);
        assert!(used && !self.owned.get(at) && !self.deferred.get(at), "slot {at} has not been taken");
    }

    fn give_back(&mut self, at: u32) {
        if self.frozen_any && self.frozen.get(at) {
            self.deferred.insert(at);
            self.deferred_count += 1;
        } else {
            self.blist.free(at);
        }
        self.assert_counts();
    }

    fn words(&self) -> usize {
        self.blist.len().div_ceil(WORD_BITS) as usize
    }

    /// Freezes what is in use.
    fn freeze(&mut self) {
        for index in 0..self.words() {
            // Deferred slots stay frozen; that they are of no use to the new child does not matter.
            self.frozen.set_word(index, self.blist.used_word(index));
        }
        self.forked = true;
        self.frozen_any = self.blist.used() > 0;
    }

    /// Frees what was deferred; nothing is frozen any more.
    fn thaw(&mut self) {
        if !self.frozen_any {
            return;
        }
        for index in 0..self.words() {
            let mut bits = self.deferred.word(index);
            assert!(bits & !self.frozen.word(index) == 0, "only frozen slots are deferred");
            while bits != 0 {
                let first = bits.trailing_zeros();
                let count = (bits >> first).trailing_ones();
                self.blist.free_run(index as u32 * WORD_BITS + first, count);
                self.deferred_count -= count;
                bits &= !((u64::MAX >> (WORD_BITS - count)) << first);
            }
            self.deferred.set_word(index, 0);
            self.frozen.set_word(index, 0);
        }
        self.frozen_any = false;
        assert!(self.deferred_count == 0);
        self.assert_counts();
    }

    fn metadata_bytes(&self) -> u64 {
        let bitmaps = if self.forked { 3 } else { 1 };
        self.blist.metadata_bytes() + self.words() as u64 * u64::from(WORD_BITS / 8) * bitmaps
    }
}

/// All devices, and which has which slots.
#[derive(Clone)]
struct Devices {
    /// `devices_max` of them, with tables; the first `count` are in use, in the order of their slots.
    all: Vec<Device>,
    count: usize,
}

impl Devices {
    /// The device of `slot`. Few devices: a walk from the newest, which is the one that is written.
    #[inline]
    fn index_of(&self, slot: Slot) -> usize {
        self.all[..self.count]
            .iter()
            .rposition(|d| d.base <= slot.0)
            .filter(|&i| slot.0 - self.all[i].base < self.all[i].slots)
            .expect("the slot is on a device")
    }

    /// The device of `slot`, and where on it.
    #[inline]
    fn of(&mut self, slot: Slot) -> (&mut Device, u32) {
        let index = self.index_of(slot);
        let device = &mut self.all[index];
        let at = slot.0 - device.base;
        (device, at)
    }

    fn in_use(&self) -> &[Device] {
        &self.all[..self.count]
    }

    fn own(&self) -> impl Iterator<Item = &Device> {
        self.in_use().iter().filter(|d| d.own)
    }

    fn own_mut(&mut self) -> impl Iterator<Item = &mut Device> {
        self.all[..self.count].iter_mut().filter(|d| d.own)
    }

    fn release(&mut self, slot: Slot) {
        let (device, at) = self.of(slot);
        device.release(at);
    }
}

/// Where pages lie on swap devices. Implements [`Pager`].
///
/// `Clone` is what a fork does to memory. It is meant for tests and simulation: a copy has physical memory behind all of its tables.
///
/// ```
/// use overspill_swap::{Config, SwapPager};
/// use overspill_vm::pager::Pager;
/// use overspill_vm::types::{ContentHash, ObjectId, PageId, Slot};
///
/// let mut swap = SwapPager::new(Config { pages_max: 1000, slots_max: 1000, devices_max: 2 });
/// let run = swap.alloc_run(8).unwrap();
/// for k in 0..run.count {
///     let page = PageId::new(ObjectId(0), 100 + u64::from(k));
///     // ... the machine writes the page ...
///     assert!(swap.assign(page, Slot(run.first.0 + k), ContentHash::of(7)));
/// }
/// let has = swap.has_page(PageId::new(ObjectId(0), 102), 64, 64).unwrap();
/// assert_eq!((has.before, has.after), (2, 5));
/// ```
#[derive(Clone)]
pub struct SwapPager {
    blocks: SwapBlocks,
    devices: Devices,
}

impl SwapPager {
    /// A swap pager with one device of its own, of `slots_max` slots. Allocates everything it will ever need.
    ///
    /// # Panics
    /// If a limit is 0, or the first device does not fit the slot number space, or `pages_max` is beyond 2^34.
    pub fn new(config: Config) -> Self {
        assert!(config.pages_max > 0 && config.slots_max > 0 && config.devices_max > 0);
        let nodes_max = config.pages_max.div_ceil(LEAF_PAGES_STORED_MIN);
        let device = || Device::new(config.slots_max);
        let mut pager = SwapPager {
            blocks: SwapBlocks::new(u32::try_from(nodes_max).expect("pages_max <= 2^34")),
            devices: Devices { all: std::iter::repeat_with(device).take(config.devices_max.into()).collect(), count: 0 },
        };
        pager.add_device(config.slots_max).expect("the first device fits");
        pager
    }

    /// Adds a device of `slots` slots, which this process writes. `None` if there are `devices_max` already, if `slots` is 0 or beyond
    /// `slots_max`, or if the slot number space is used up. Does not allocate.
    pub fn add_device(&mut self, slots: u32) -> Option<DeviceId> {
        let Devices { all, count } = &mut self.devices;
        let base = all[..*count].last().map_or(0, |d| d.base + d.slots);
        let device = all.get_mut(*count)?;
        if slots == 0 || slots > device.blist.capacity() || base.checked_add(slots).is_none() {
            return None;
        }
        device.base = base;
        device.slots = slots;
        device.own = true;
        *count += 1;
        Some(DeviceId(*count as u16 - 1))
    }

    /// The most slots that a device can have.
    pub fn slots_max(&self) -> u32 {
        self.devices.all[0].blist.capacity()
    }

    /// How many devices there are, inherited ones included.
    pub fn devices(&self) -> u16 {
        self.devices.count as u16
    }

    /// The device that `slot` is on, and its offset there, in slots (pages).
    ///
    /// # Panics
    /// If it is on none.
    #[inline]
    pub fn device_of(&self, slot: Slot) -> (DeviceId, u32) {
        let index = self.devices.index_of(slot);
        (DeviceId(index as u16), slot.0 - self.devices.all[index].base)
    }

    /// Whether this process may not write `device`, because it is a parent's.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn is_inherited(&self, device: DeviceId) -> bool {
        !self.devices.in_use()[device.0 as usize].own
    }

    /// The machine saw ENOSPC on `device` (or sees room again). While full, only slots below the highest one ever written are given,
    /// since the file has their blocks. (A hole below, from a write that failed, may still answer ENOSPC; then its slot comes back
    /// by [`Pager::free_slot`], and the cursor goes on.)
    ///
    /// # Panics
    /// If there is no such device.
    pub fn set_full(&mut self, device: DeviceId, full: bool) {
        let count = self.devices.count;
        self.devices.all[..count][device.0 as usize].full = full;
    }

    /// The length of all own devices, in slots (pages): the most that [`Pager::used`] can become.
    pub fn capacity(&self) -> u64 {
        self.devices.own().map(|d| u64::from(d.slots)).sum()
    }

    /// Slots that were given back but wait for [`SwapPager::children_gone`]; they are part of [`Pager::used`].
    pub fn deferred(&self) -> u64 {
        self.devices.own().map(|d| u64::from(d.deferred_count)).sum()
    }

    /// Pages stored, on inherited devices too, in pages.
    pub fn stored(&self) -> u64 {
        self.blocks.stored()
    }

    /// The first stored page at or after `page` in the same object, and its slot. Skips absent parts, however large, quickly.
    pub fn next_stored(&self, page: PageId) -> Option<(PageId, Slot)> {
        self.blocks.next(page).map(|(page, slot, _)| (page, slot))
    }

    /// This process forks, parent's side: no slot that is in use now is overwritten until [`SwapPager::children_gone`].
    ///
    /// To be called before the fork, and again at each further one. Costs a pass over 2 bits per slot; does not allocate.
    pub fn fork_parent(&mut self) {
        self.devices.own_mut().for_each(Device::freeze);
    }

    /// No process that has inherited slots from this one can read them any more, nor can its children: all have ended or exec'd, or the
    /// fork failed. The machine counts. Frees what was deferred; does not allocate.
    pub fn children_gone(&mut self) {
        self.devices.own_mut().for_each(Device::thaw);
    }

    /// This process is the child of a fork: all devices become read-only, and one of its own is added, of `slots` slots.
    ///
    /// `None` if it could not be added ([`SwapPager::add_device`]). The others are read-only even so; the child can read back what is
    /// stored, but store nothing. Does not allocate.
    pub fn fork_child(&mut self, slots: u32) -> Option<DeviceId> {
        self.devices.own_mut().for_each(|d| d.own = false);
        self.add_device(slots)
    }

    /// [`Pager::rename`] for a caller that can go on when there is no metadata for `to`.
    ///
    /// # Errors
    /// If so; nothing is changed then.
    ///
    /// # Panics
    /// If `to` is stored.
    pub fn try_rename(&mut self, from: PageId, to: PageId) -> Result<bool, NoMetadata> {
        self.blocks.rename(from, to)
    }

    /// Walks over everything and asserts the invariants in the head. For tests; costs in proportion to the capacity.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check(&self) {
        self.blocks.check();
        let mut end = 0;
        for device in self.devices.in_use() {
            assert!(device.base == end && device.slots > 0);
            end += device.slots;
            device.blist.check();
            device.assert_counts();
            assert!(device.written_end <= device.blist.len() && device.blist.len() <= device.slots);
            if device.own {
                let (mut owned, mut deferred) = (0, 0);
                for index in 0..device.words() {
                    let used = device.blist.used_word(index);
                    let [o, d, f] = [&device.owned, &device.deferred, &device.frozen].map(|set| set.word(index));
                    assert!(o & d == 0 && (o | d) & !used == 0 && f & !used == 0 && d & !f == 0);
                    owned += o.count_ones();
                    deferred += d.count_ones();
                }
                assert!(owned == device.owned_count && deferred == device.deferred_count);
            }
        }
    }
}

/// Nothing here waits or allocates.
impl Pager for SwapPager {
    #[inline]
    fn has_page(&self, page: PageId, before_max: u32, after_max: u32) -> Option<HasPage> {
        self.blocks.has_page(page, before_max, after_max, |slot| {
            let device = &self.devices.all[self.devices.index_of(slot)];
            (Slot(device.base), Slot(device.base + (device.slots - 1)))
        })
    }

    #[inline]
    fn content(&self, page: PageId) -> Option<ContentHash> {
        self.blocks.get(page).map(|(_, content)| content)
    }

    /// A full run from the first own device that has (or can grow) one; else the longest that there is on any. Never more than
    /// [`RUN_MAX`].
    ///
    /// # Panics
    /// If `want` is 0.
    fn alloc_run(&mut self, want: u32) -> Option<SlotRun> {
        let want = want.min(RUN_MAX);
        for device in self.devices.own_mut() {
            if let Some(first) = device.alloc_exact(want) {
                return Some(SlotRun { first: Slot(device.base + first), count: want });
            }
        }
        let device = self.devices.own_mut().max_by_key(|d| d.blist.longest_below(d.end()))?;
        let count = device.blist.longest_below(device.end());
        let first = if count > 0 { device.alloc_exact(count)? } else { return None };
        Some(SlotRun { first: Slot(device.base + first), count })
    }

    /// # Panics
    /// If `slot` is not taken, or not on an own device.
    fn assign(&mut self, page: PageId, slot: Slot, content: ContentHash) -> bool {
        let (device, at) = self.devices.of(slot);
        match self.blocks.insert(page, slot, content) {
            Ok(old) => {
                device.assign(at);
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
    /// If `to` is stored, or if there is no metadata for it: the contract has no answer for that, and losing the page would be worse.
    /// [`SwapPager::try_rename`] has one.
    fn rename(&mut self, from: PageId, to: PageId) -> bool {
        self.try_rename(from, to).expect("metadata for a renamed page")
    }

    fn used(&self) -> u64 {
        self.devices.own().map(|d| u64::from(d.blist.used())).sum()
    }

    fn metadata_bytes(&self) -> u64 {
        self.blocks.metadata_bytes() + self.devices.in_use().iter().map(Device::metadata_bytes).sum::<u64>()
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
        SwapPager::new(Config { pages_max: 4000, slots_max, devices_max: 4 })
    }

    fn store(pager: &mut SwapPager, first: PageId, count: u32) -> Slot {
        let run = pager.alloc_run(count).unwrap();
        assert_eq!(run.count, count);
        for k in 0..count {
            assert!(pager.assign(first.offset(k.into()), Slot(run.first.0 + k), ContentHash::of(k.into())));
        }
        run.first
    }

    #[test]
    fn a_second_device_takes_over_and_runs_end_at_the_border() {
        let mut pager = small(100);
        let second = pager.add_device(50).unwrap();
        assert_eq!(pager.capacity(), 150);
        store(&mut pager, page(0, 0), 90);
        store(&mut pager, page(0, 90), 10);
        let slot = store(&mut pager, page(0, 100), 50);
        assert_eq!(slot, Slot(100)); // contiguous as a number, but on another device
        assert_eq!(pager.device_of(slot), (second, 0));
        assert_eq!(pager.device_of(Slot(99)), (DeviceId(0), 99));
        assert_eq!(pager.has_page(page(0, 99), 200, 200).unwrap(), HasPage { slot: Slot(99), before: 99, after: 0 });
        assert_eq!(pager.has_page(page(0, 100), 200, 200).unwrap(), HasPage { slot, before: 0, after: 49 });
        assert_eq!(pager.alloc_run(1), None);
        pager.check();
    }

    #[test]
    fn a_device_grows_before_it_hands_out_less() {
        let mut pager = small(GROW_SLOTS * 2 + 5);
        for k in 0..GROW_SLOTS / 32 - 1 {
            assert_eq!(pager.alloc_run(32).unwrap(), SlotRun { first: Slot(k * 32), count: 32 });
        }
        assert!(pager.metadata_bytes() < 10_000);
        assert_eq!(pager.alloc_run(33).unwrap(), SlotRun { first: Slot(GROW_SLOTS - 32), count: 33 });
        assert_eq!(pager.alloc_run(u32::MAX).unwrap(), SlotRun { first: Slot(GROW_SLOTS + 1), count: RUN_MAX });
        while pager.used() + u64::from(RUN_MAX) <= pager.capacity() {
            assert_eq!(pager.alloc_run(RUN_MAX).unwrap().count, RUN_MAX);
        }
        assert!(pager.alloc_run(RUN_MAX).unwrap().count < RUN_MAX);
        assert_eq!(pager.alloc_run(1), None);
        assert_eq!(pager.used(), pager.capacity());
    }

    #[test]
    fn a_full_device_reuses_what_its_file_has() {
        let mut pager = small(10_000);
        store(&mut pager, page(0, 0), 64);
        let run = pager.alloc_run(32).unwrap(); // this write fails: ENOSPC
        for k in 0..32 {
            pager.free_slot(Slot(run.first.0 + k));
        }
        pager.set_full(DeviceId(0), true);
        assert_eq!(pager.alloc_run(32), None);
        pager.release_range(page(0, 10), 20);
        pager.release_range(page(0, 60), 4);
        assert_eq!(pager.alloc_run(32), Some(SlotRun { first: Slot(10), count: 20 }));
        assert_eq!(pager.alloc_run(32), Some(SlotRun { first: Slot(60), count: 4 }));
        assert_eq!(pager.alloc_run(32), None);
        pager.set_full(DeviceId(0), false);
        assert_eq!(pager.alloc_run(32).unwrap().count, 32);
        pager.check();
    }

    #[test]
    fn a_frozen_slot_waits_for_the_children() {
        let mut pager = small(100);
        store(&mut pager, page(0, 0), 60);
        pager.fork_parent();
        store(&mut pager, page(0, 60), 40);
        assert_eq!(pager.release_range(page(0, 0), 100), 100);
        assert_eq!((pager.used(), pager.deferred(), pager.stored()), (60, 60, 0));
        assert_eq!(pager.alloc_run(100).unwrap(), SlotRun { first: Slot(60), count: 40 }); // not frozen: taken after the fork
        assert_eq!(pager.alloc_run(1), None);
        pager.check();
        pager.children_gone();
        assert_eq!((pager.used(), pager.deferred()), (40, 0));
        assert_eq!(pager.alloc_run(100).unwrap().count, 60);
        pager.check();
    }

    #[test]
    fn a_child_without_a_device_can_only_read() {
        let mut pager = SwapPager::new(Config { pages_max: 100, slots_max: 100, devices_max: 2 });
        store(&mut pager, page(0, 0), 10);
        assert_eq!(pager.fork_child(100), Some(DeviceId(1)));
        assert_eq!(store(&mut pager, page(0, 10), 10), Slot(100));
        assert!(pager.is_inherited(DeviceId(0)) && !pager.is_inherited(DeviceId(1)));
        assert_eq!(pager.fork_child(100), None);
        assert_eq!(pager.alloc_run(1), None);
        assert_eq!((pager.used(), pager.capacity(), pager.stored()), (0, 0, 20));
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
            pager.alloc_run(1).unwrap(); // slot 3 is taken, 4 is free
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f(&mut pager))).is_err()
        };
        assert!(panics(|pager| _ = pager.assign(page(0, 9), Slot(2), ContentHash::of(0)))); // owned
        assert!(panics(|pager| _ = pager.assign(page(0, 9), Slot(4), ContentHash::of(0)))); // free
        assert!(panics(|pager| _ = pager.assign(page(0, 9), Slot(100), ContentHash::of(0)))); // on no device
        assert!(panics(|pager| pager.free_slot(Slot(2))));
        assert!(panics(|pager| pager.free_slot(Slot(4))));
        assert!(panics(|pager| {
            pager.fork_child(10);
            _ = pager.assign(page(0, 9), Slot(3), ContentHash::of(0)); // taken, but the parent's
        }));
        assert!(!panics(|pager| assert!(pager.assign(page(0, 9), Slot(3), ContentHash::of(0)))));
    }

    /// A process of the model: what each page must contain, and which file each device is.
    #[derive(Clone)]
    struct Process {
        pager: SwapPager,
        pages: BTreeMap<PageId, (Slot, u64)>,
        files: Vec<usize>,
        parent: Option<usize>,
        alive: bool,
        /// The model's account of the newest file: slots in use, frozen ones, deferred ones, as offsets.
        used: BTreeSet<u32>,
        frozen: BTreeSet<u32>,
        deferred: BTreeSet<u32>,
        written_end: u32,
        full: bool,
    }

    impl Process {
        fn forget(&mut self, slot: Slot) {
            let (device, at) = self.pager.device_of(slot);
            if device.0 as usize + 1 < self.files.len() {
                return; // inherited
            }
            if self.frozen.contains(&at) {
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
            let pager = SwapPager::new(Config { pages_max: 1600, slots_max: SLOTS, devices_max: 4 });
            let process = Process {
                pager,
                pages: BTreeMap::new(),
                files: vec![0],
                parent: None,
                alive: true,
                used: BTreeSet::new(),
                frozen: BTreeSet::new(),
                deferred: BTreeSet::new(),
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
                let Some(run) = process.pager.alloc_run(count - done) else {
                    let end = if process.full { process.written_end } else { SLOTS };
                    assert_eq!(process.used.range(..end).count() as u32, end, "there was room");
                    return;
                };
                assert!(run.count >= 1 && run.count <= count - done);
                for k in 0..run.count {
                    let slot = Slot(run.first.0 + k);
                    let (device, at) = process.pager.device_of(slot);
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
            self.processes[who].pager.fork_parent();
            let mut child = self.processes[who].clone();
            let process = &mut self.processes[who];
            process.frozen = process.used.clone();
            match child.pager.fork_child(SLOTS) {
                Some(device) => assert_eq!(device.0 as usize, child.files.len()),
                None => {
                    assert_eq!(child.files.len(), 4);
                    if !self.has_children(who) {
                        self.children_gone(who); // as the machine does when a fork fails
                    }
                    return;
                }
            }
            child.files.push(self.files);
            self.files += 1;
            child.parent = Some(who);
            for set in [&mut child.used, &mut child.frozen, &mut child.deferred] {
                set.clear();
            }
            child.written_end = 0;
            child.full = false;
            self.processes.push(child);
        }

        /// Whether someone may read files of `who`.
        fn has_children(&self, who: usize) -> bool {
            let parent = |p: usize| self.processes[p].parent;
            (0..self.processes.len())
                .filter(|&p| self.processes[p].alive)
                .any(|p| std::iter::successors(parent(p), |&p| parent(p)).any(|p| p == who))
        }

        fn children_gone(&mut self, who: usize) {
            let process = &mut self.processes[who];
            process.pager.children_gone();
            process.frozen.clear();
            for at in std::mem::take(&mut process.deferred) {
                assert!(process.used.remove(&at));
            }
        }

        fn exit(&mut self, who: usize) {
            if who == 0 {
                return;
            }
            self.processes[who].alive = false;
            for other in 0..who {
                if self.processes[other].alive && !self.has_children(other) {
                    self.children_gone(other);
                }
            }
        }

        /// Every page of every process; the neighbours of one in seven.
        fn check(&self, step: usize) {
            for process in self.processes.iter().filter(|p| p.alive) {
                assert_eq!(process.pager.used() as usize, process.used.len());
                assert_eq!(process.pager.deferred() as usize, process.deferred.len());
                assert_eq!(process.pager.stored() as usize, process.pages.len());
                for (k, (&page, &(slot, content))) in process.pages.iter().enumerate() {
                    let (device, at) = process.pager.device_of(slot);
                    let file = process.files[device.0 as usize];
                    assert_eq!(self.disk[&(file, at)], content, "{page:?} of a process was overwritten");
                    assert_eq!(process.pager.content(page), Some(ContentHash::new(page, content.into(), 0)));
                    if k % 7 != step % 7 {
                        continue;
                    }
                    let follows = |k: u32| {
                        let next = process.pages.get(&page.offset(k.into()));
                        let next = next.filter(|n| n.0.0 == slot.0 + k);
                        next.is_some_and(|n| process.pager.device_of(n.0).0 == device)
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
                            prop_assert_eq!(process.pager.rename(from, to), value.is_some());
                            if let Some(value) = value { process.pages.insert(to, value); }
                        }
                    }
                    Op::Fork => world.fork(who),
                    Op::Exit => world.exit(who),
                    Op::Full(full) => {
                        process.full = full;
                        process.pager.set_full(DeviceId(process.files.len() as u16 - 1), full);
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

//! The swap pager: swap blocks over the slots of several devices. Devices come and go while pages are stored on them, and forks
//! share them.
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
//!                           +----------------> failed -+
//! ```
//!
//! # For the machine: how devices are used
//!
//! - **swapon**: [`Devices::add_device`]`(slots, priority)` returns an entry ([`DeviceId`], below `devices_max`). The machine keeps
//!   the file under that number. Entries of removed devices are used again, so a machine may swap on and off for ever. A device of
//!   several pieces (a file that grows in chunks, several files, physical extents) is added by [`Devices::add_mapped_device`].
//!   Then, whenever [`Devices::wants_extent`] names a device, the machine calls [`Devices::refill_begin`], or
//!   [`Devices::grow_begin`] and [`Devices::add_extent`]. [`Devices::locate`] says where a slot's bytes are.
//!   [`Devices::punch_begin`] names slots whose bytes can be given back to the file system.
//! - **Reads and writes**: [`Devices::device_of`] and [`Devices::locate`] name the device of a slot. After each operation call
//!   [`Devices::io_ended`] (counters, percentiles). If it returns `true`, the device has just failed after repeated errors, and the
//!   machine should begin a swapoff of it. After ENOSPC call [`Devices::set_full`].
//! - **swapoff**: `Vm::swapoff_begin`, then `Vm::swapoff_next` until `Done`; see `swapoff.rs` of `overspill_vm`. A device whose
//!   entry is gone has no read or write under way, so its file can be closed. `Vm::swapoff_cancel` may be called at any moment.
//! - **swaps**: [`Devices::iter`] and [`Devices::status`]; [`Devices::stats`] for counters and percentiles.
//! - **Compressed memory**: [`Devices::add_memory_device`]. Pages that it refuses go to slots of [`Pager::alloc_run_past_memory`].
//! - **Fork**: [`Devices::fork_parent`], [`Devices::fork_child`], [`Devices::child_gone`]. `Vm::is_quiescent` also waits for runs
//!   of a swapoff. The child does not go on with a swapoff of its parent's.
//!
//! # How it works
//!
//! **Choice.** Devices of the highest priority come first; among equals each gets a run in turn. A run that is much shorter than
//! wanted is taken only if no lower priority has a longer one either. Each device has eight *writers*; an address range of a GiB
//! hashes to one. As long as there are windows of [`RUN_MAX`] free slots, each writer has one to itself. So pages that lie near
//! each other in memory lie near each other on the device, even if they are written in turns. Without such windows a writer goes on
//! next-fit from where it was.
//!
//! **Fork.** A child reads its parent's files by the slots that it has inherited. In the parent, a slot that loses a page which it
//! had at the fork of a living child is deferred: it is not given out, so that nothing overwrites data that the child may still
//! read. [`Devices::child_gone`] frees the slots that waited for that child alone (`fork_epochs`). In the child,
//! [`Devices::fork_child`] makes all devices read-only and adds one of its own. When the child forgets a page on an inherited
//! device, the slot is left alone. A grandchild inherits both kinds.
//!
//! **swapoff and forks.** Deferred slots do not keep a device. Once no page of *this* process is stored there, the device is gone
//! for this process, and its file is closed here. A child that may still read it has it open itself, and the file lives as long as
//! any process has it open. (A block device must not be given to others before the children are gone; the machine counts them
//! anyway.) In the child the device is inherited, and leaves by the same steps when a swapoff is asked for.
//!
//! **Growth.** A device of extents gets more from the machine before it runs out of windows for writers. Blocks of 2 MiB
//! ([`BLOCK_SLOTS`]) that stay free are given back to the file system, all but one for each writer. From then on such a block is
//! *absent*: the free list counts it as used, but no page has it. Absent blocks are got back before the file grows further, so
//! every free slot has room on the disk. The usable length of other devices grows in steps of [`GROW_SLOTS`] when no free run of
//! the wanted length is left, so the file and the tables get no longer than necessary. Writes get shorter only at the greatest
//! length. A device that is out of space ([`Devices::set_full`]) gives only slots below the highest that was ever written, where
//! the file has blocks already.
//!
//! **Integrity.** The tag of each stored page is kept in memory here, not on the device, and the slot of a page is found by object
//! and index. So data that is read from a slot is accepted only if it is, byte for byte (except for a chance of 2^-128), what was
//! last written *for that page*. Data of another page, of an older version of the page, or from before a lost write has another
//! tag, or is the same data. So object, page and generation need not be written next to the content.
//!
//! Invariants, per device, asserted at each change:
//!
//! - `taken + owned + deferred + absent == used`, `used + free == len <= slots` (own devices)
//! - no slot has two pages: `assign` needs a taken slot, and then the slot is no longer taken
//! - a slot is deferred only as long as a child that may read it lives
//! - all slots in use are below `len`; all written ones below `written_end <= len`
//! - `owned` = pages stored there, on inherited devices too; a device that is gone has none
//!
//! Memory, per slot below `len`: 1.07 bits free list, 1 bit owned, after a fork 1 bit deferred and two bytes for epochs: at most
//! 19.1 bits, which is 0.06 per cent. Per page: see `swap_block`. The tables of all devices are made at set-up, for the largest
//! device, as address space.
//!
//! Locks: none; `&mut` is the lock. No I/O, no waiting, no allocation after [`SwapPager::new`].
//!
//! It cannot free a slot of the parent's before the child has ended, even if both have forgotten the slot.
//!
//! Source: FreeBSD `swap_pager.c` (devices as ranges of one `daddr` space, next device when one is full); Linux `swapfile.c`
//! (priorities, clusters per CPU); read, not copied. The fork scheme is our own. The kernel has a reference count per slot, which
//! two processes cannot share without shared memory.

use crate::bitmap::WORD_BITS;
use crate::blist::RUN_MAX;
use crate::device::{ABSENT, BLOCK_SLOTS, Device};
use crate::devices::{Devices, writer_of};
use crate::extent::ExtentMap;
use crate::fork_epochs::Epochs;
use crate::swap_block::{LEAF_PAGES, NoMetadata, SwapBlocks};
use alloc::vec::Vec;
use overspill_vm::pager::{DeviceUse, HasPage, Location, Pager, Scan, SlotRun};
use overspill_vm::types::{DeviceId, PageId, PageIndex, Slot, Tag};

/// The most swap blocks that one step of a walk looks at: a few microseconds.
const SCAN_LEAVES_MAX: u32 = 32;

/// The tables are sized for at least this many stored pages per leaf on average. See [`Config::pages_max`].
const LEAF_PAGES_STORED_MIN: u64 = LEAF_PAGES / 8;

/// The limits of a [`SwapPager`]. Unused capacity costs address space only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The most stored pages, if a block of 128 pages (512 KiB) that has any stored page has 16 on average. If stored pages are
    /// more scattered, fewer fit (`pages_max / 16` such blocks); if they are denser, more.
    pub pages_max: u64,
    /// The length of the first device, and the most that a later one can have, in slots (pages).
    pub slots_max: u32,
    /// The most devices at a time, including inherited ones. Each generation of forks takes one more. `devices_max` times
    /// `slots_max` (rounded up to a power of two) is at most 2^32.
    pub devices_max: u16,
    /// The most extents of all devices together ([`Devices::add_mapped_device`]); 0 if none will be used.
    pub extents_max: u32,
}

/// Knows where pages lie on swap devices. Implements [`Pager`].
///
/// `Clone` does what a fork does to memory. It is meant for tests and simulation: a copy has physical memory behind all of its
/// tables.
///
/// ```
/// use overspill_swap::{Config, SwapPager};
/// use overspill_vm::pager::Pager;
/// use overspill_vm::types::{ObjectId, PageId, Slot, Tag};
///
/// let mut swap = SwapPager::new(Config { pages_max: 1000, slots_max: 1000, devices_max: 2, extents_max: 0 });
/// let first = PageId::new(ObjectId(0), 100);
/// let run = swap.alloc_run(8, first).unwrap();
/// for k in 0..run.count {
///     // ... the machine writes the page ...
///     assert!(swap.assign(first.offset(k.into()), Slot(run.first.0 + k), Tag::of(7)));
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

    /// The first stored page at or after `page` in the same object, and its slot. Quickly skips absent parts of any size.
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

/// No method waits or allocates.
impl Pager for SwapPager {
    type Devices = Devices;

    #[inline]
    fn has_page(&self, page: PageId, before_max: u32, after_max: u32) -> Option<HasPage> {
        self.blocks.has_page(page, before_max, after_max, |slot| self.devices.border(slot))
    }

    #[inline]
    fn stored(&self, page: PageId) -> Option<(Slot, Tag)> {
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

    #[inline]
    fn is_common(&self, slot: Slot) -> bool {
        self.devices.is_common(slot)
    }

    /// Takes a full run from the devices of the highest priority, in turns, or a shorter one there if it is not too short. Then
    /// tries the same with the next priority, and at last the longest run on any device. Never gives more than [`RUN_MAX`].
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
    fn assign(&mut self, page: PageId, slot: Slot, tag: Tag) -> bool {
        let (index, at) = self.devices.split(slot);
        let Devices { all, epochs, .. } = &mut self.devices;
        let device = &mut all[index];
        assert!(at < device.slots, "the slot is on no device");
        match self.blocks.insert(page, slot, tag) {
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
            it.stay();
            self.devices.changed();
        }
    }

    fn leaving(&self, device: DeviceId) -> Option<u32> {
        self.devices.get(device)?.leaving
    }

    fn memory_has_room(&self) -> bool {
        self.devices.in_use().any(|d| d.gives() && d.memory.is_some())
    }

    fn is_unwelcome(&self, page: PageId) -> bool {
        if self.devices.unwelcome == 0 {
            return false;
        }
        let Some((slot, _)) = self.blocks.get(page) else { return false };
        let device = &self.devices.all[self.devices.split(slot).0];
        device.leaving.is_some() || device.failed || device.drops_copies
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
mod tests;

//! What the simulated machine needs of a pager beside the core's trait, for both pagers, and the wrapper that watches them.
//!
//! [`Watched`] stands between core and pager, passes every call on and keeps the [`SlotBook`] (a checker) beside it. It is also the
//! place where a pager's own failures are injected (no metadata left) and where deliberate bugs sit (see [`Bug`]).

use crate::check::slots::SlotBook;
use crate::model_pager::ModelPager;
use crate::pool::SimPool;
use crate::rng::Rng;
use crate::scenario::Bug;
use overspill_store::budgeted_pool::Balance;
use overspill_store::pool::SLOT_BYTES;
use overspill_swap::{Io, SwapPager};
use overspill_vm::pager::{DeviceUse, HasPage, Location, Pager, Scan, SlotRun};
use overspill_vm::types::{ContentHash, DeviceId, PageId, PageIndex, Slot};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A pager that the simulated machine can run: it can fork and it can say where a slot lies.
pub trait Store: Pager + Clone {
    /// Device number of `slot`, and the offset there, in slots.
    fn place(&self, slot: Slot) -> (usize, u32);
    /// This process forks; before its memory is copied. Returns the fork's number.
    fn fork_parent(&mut self) -> u64;
    /// This is the child's copy. Returns the device of its own that it has got.
    fn fork_child(&mut self, slots: u32) -> Option<DeviceId>;
    /// The child of that fork, and its descendants, cannot read this process's slots any more.
    fn child_gone(&mut self, fork: u64);
    /// This process ends.
    fn exit(&mut self);
    /// The machine saw ENOSPC on the device of `slot`, or (`None`) sees room again everywhere.
    fn set_full(&mut self, slot: Option<Slot>);
    /// Another device; `None` if there cannot be more.
    fn add_device(&mut self, slots: u32, priority: i16) -> Option<DeviceId> {
        _ = (slots, priority);
        None
    }
    /// A device that is memory of the process; `None` if there cannot be one.
    fn add_memory_device(&mut self, slots: u32) -> Option<DeviceId> {
        _ = slots;
        None
    }
    /// The page that has slot `at` of it.
    fn page_of(&self, device: DeviceId, at: u32) -> Option<PageId> {
        _ = (device, at);
        None
    }
    /// A slot of it to be emptied.
    fn take_freed(&mut self, device: DeviceId) -> Option<u32> {
        _ = device;
        None
    }
    /// Slot `at` of `device`.
    fn slot(&self, device: DeviceId, at: u32) -> Slot {
        _ = device;
        Slot(at)
    }
    /// What is to be done with such a device.
    fn steer(&mut self, device: DeviceId, balance: &Balance) {
        _ = (device, balance);
    }
    /// Whether these neighbouring slots lie in one piece of one file.
    fn is_one_piece(&self, first: Slot, count: u32) -> bool {
        _ = (first, count);
        true
    }
    /// An operation on the device of `slot` has ended. Returns the device if it should be swapped off for its errors.
    fn io_ended(&mut self, slot: Slot, write: bool, ok: bool) -> Option<DeviceId> {
        _ = (slot, write, ok);
        None
    }
    /// Walks over everything, if the pager can.
    fn check(&self);
}

impl Store for ModelPager {
    fn place(&self, slot: Slot) -> (usize, u32) {
        (0, slot.0)
    }
    fn fork_parent(&mut self) -> u64 {
        0
    }
    fn fork_child(&mut self, _: u32) -> Option<DeviceId> {
        ModelPager::fork_child(self);
        None
    }
    fn child_gone(&mut self, _: u64) {}
    fn exit(&mut self) {
        ModelPager::exit(self);
    }
    fn set_full(&mut self, _: Option<Slot>) {}
    fn check(&self) {}
}

impl Store for SwapPager {
    fn place(&self, slot: Slot) -> (usize, u32) {
        let (device, at) = self.devices().device_of(slot);
        (device.0 as usize, at)
    }
    fn fork_parent(&mut self) -> u64 {
        self.devices_mut().fork_parent()
    }
    fn fork_child(&mut self, slots: u32) -> Option<DeviceId> {
        self.devices_mut().fork_child(slots)
    }
    fn child_gone(&mut self, fork: u64) {
        self.devices_mut().child_gone(fork);
    }
    fn exit(&mut self) {}
    fn set_full(&mut self, slot: Option<Slot>) {
        match slot {
            Some(slot) => {
                let device = self.devices().device_of(slot).0;
                self.devices_mut().set_full(device, true);
            }
            None => {
                for device in self.devices().iter().collect::<Vec<_>>() {
                    self.devices_mut().set_full(device, false);
                }
            }
        }
    }
    fn add_device(&mut self, slots: u32, priority: i16) -> Option<DeviceId> {
        if slots.is_multiple_of(2) {
            return self.devices_mut().add_device(slots, priority).ok();
        }
        // one of many small pieces
        let device = self.devices_mut().add_mapped_device(slots, priority).ok()?;
        let mut left = slots;
        while left > 0 {
            let count = left.min(1 + left % 29);
            left -= count;
            if self.devices_mut().add_extent(device, left as u16, u64::from(left) << 20, count).is_err() {
                break;
            }
        }
        self.devices_mut().refuse_growth(device);
        Some(device)
    }
    fn add_memory_device(&mut self, slots: u32) -> Option<DeviceId> {
        self.devices_mut().add_memory_device(vec![0; slots as usize], 9, SLOT_BYTES as u32).ok()
    }
    fn page_of(&self, device: DeviceId, at: u32) -> Option<PageId> {
        self.devices().page_of(device, at)
    }
    fn take_freed(&mut self, device: DeviceId) -> Option<u32> {
        let mut slot = [0];
        (self.devices_mut().take_freed(device, &mut slot) == 1).then_some(slot[0])
    }
    fn slot(&self, device: DeviceId, at: u32) -> Slot {
        self.devices().slot(device, at)
    }
    fn steer(&mut self, device: DeviceId, balance: &Balance) {
        if balance.has_room {
            self.devices_mut().set_full(device, false);
        }
        self.devices_mut().set_drops_copies(device, balance.drops_copies);
        self.devices_mut().set_room(device, balance.room);
    }
    fn is_one_piece(&self, first: Slot, count: u32) -> bool {
        let [a, b] = [first, Slot(first.0 + count - 1)].map(|slot| self.locate(slot));
        (a.device, a.file, a.offset + (u64::from(count) - 1) * 4096) == (b.device, b.file, b.offset)
    }
    fn io_ended(&mut self, slot: Slot, write: bool, ok: bool) -> Option<DeviceId> {
        let device = self.devices().device_of(slot).0;
        self.devices_mut().io_ended(device, Io { write, pages: 1, bytes: 4096, ns: 1000, ok }).then_some(device)
    }
    fn check(&self) {
        SwapPager::check(self);
    }
}

/// A place on the simulated store: file, offset in slots.
pub type Place = (u32, u32);

/// The wrapper. See the module.
#[derive(Clone, Debug)]
pub struct Watched<S> {
    /// The pager.
    pub inner: S,
    /// The open files behind its devices, by device.
    pub files: BTreeMap<usize, u32>,
    /// The compressed device, if there is one.
    pub pool: Option<SimPool>,
    process: u32,
    book: Rc<RefCell<SlotBook>>,
    bug: Bug,
    rng: Rng,
    no_metadata_permille: u32,
    last: Option<Slot>,
}

impl<S: Store> Watched<S> {
    /// Watches `inner`, the pager of the first process, whose device is file 0.
    pub fn new(inner: S, book: Rc<RefCell<SlotBook>>, bug: Bug, seed: u64, no_metadata_permille: u32) -> Self {
        Watched {
            inner,
            files: BTreeMap::from([(0, 0)]),
            pool: None,
            process: 0,
            book,
            bug,
            rng: Rng::new(seed),
            no_metadata_permille,
            last: None,
        }
    }
    /// Where `slot` lies.
    pub fn place(&self, slot: Slot) -> Place {
        let (device, at) = self.inner.place(slot);
        (*self.files.get(&device).expect("slots: the device's file is closed"), at)
    }
    /// Before the memory is copied. Returns the fork's number.
    pub fn fork_parent(&mut self) -> u64 {
        let fork = self.inner.fork_parent();
        if self.bug == Bug::ForkNotFrozen {
            self.inner.child_gone(fork);
        }
        fork
    }
    /// The child of that fork, and its descendants, have ended.
    pub fn child_gone(&mut self, fork: u64) {
        if self.bug != Bug::ForkNotFrozen {
            self.inner.child_gone(fork);
        }
    }
    /// On the copy; `process` is the child, `file` and `memory` are fresh files for its own device and its copy of compressed
    /// memory.
    pub fn fork_child(&mut self, process: u32, [file, memory]: [u32; 2], slots: u32) {
        if let Some(device) = self.inner.fork_child(slots) {
            self.files.insert(device.0.into(), file);
        }
        let mut copied = None;
        if let Some(pool) = &mut self.pool {
            copied = Some((pool.file, memory));
            pool.file = memory;
            self.files.insert(pool.device.0.into(), memory);
        }
        self.book.borrow_mut().fork(self.process, process, copied);
        self.process = process;
        self.rng = Rng::new(self.rng.bits() ^ process as u64);
        self.last = None;
    }
    /// Another device, with a fresh file.
    pub fn swapon(&mut self, file: u32, slots: u32, priority: i16) -> Option<DeviceId> {
        let device = self.inner.add_device(slots, priority)?;
        assert_eq!(self.files.insert(device.0.into(), file), None, "slots: {device:?} was given twice");
        Some(device)
    }
    /// A compressed device of `size_pages` pages of memory. Returns whether there is one now.
    pub fn swapon_pool(&mut self, file: u32, size_pages: u32, slots_max: u32, budget: u32) -> bool {
        let slots = SimPool::slots(size_pages, slots_max);
        let Some(device) = self.inner.add_memory_device(slots) else { return false };
        assert_eq!(self.files.insert(device.0.into(), file), None, "slots: {device:?} was given twice");
        self.pool = Some(SimPool::new(device, file, size_pages, slots, budget));
        true
    }
    /// Slots of the pool that nobody needs any more are emptied.
    fn empty_freed(&mut self) {
        let Some(pool) = &mut self.pool else { return };
        while let Some(at) = self.inner.take_freed(pool.device) {
            if self.bug != Bug::SlotNotFreed || !self.rng.chance(50) {
                pool.kept.pool.remove(at);
            }
        }
    }
    /// The process ends.
    pub fn exit(&mut self) {
        self.files.clear();
        self.pool = None;
        self.inner.exit();
        self.book.borrow_mut().exit(self.process);
    }
    /// Slots that were given.
    fn taken(&mut self, run: SlotRun, want: u32) {
        assert!(run.count >= 1 && run.count <= want, "{run:?} for {want}");
        assert!(self.inner.is_one_piece(run.first, run.count), "slots: {run:?} crosses an extent");
        for k in 0..run.count {
            let place = self.place(Slot(run.first.0 + k));
            self.book.borrow_mut().take(self.process, place);
        }
    }
    fn stored_place(&self, page: PageId) -> Option<Place> {
        self.inner.stored(page).map(|(slot, _)| self.place(slot))
    }
}

impl<S: Store> Pager for Watched<S> {
    type Devices = Self;

    fn devices(&self) -> &Self {
        self
    }
    fn devices_mut(&mut self) -> &mut Self {
        self
    }
    fn has_page(&self, page: PageId, before_max: u32, after_max: u32) -> Option<HasPage> {
        let has = self.inner.has_page(page, before_max, after_max)?;
        assert!(has.before <= before_max && has.after <= after_max, "{page:?}: {has:?} is more than was asked for");
        let (file, at) = self.place(has.slot);
        for k in 1..=has.after {
            let next = self.stored_place(page.offset(k as u64));
            assert_eq!(next, Some((file, at + k)), "{page:?}: {has:?}: page {k} after it lies elsewhere");
        }
        let first = Slot(has.slot.0 - has.before);
        assert!(self.inner.is_one_piece(first, has.before + 1 + has.after), "slots: {page:?}: {has:?} crosses an extent");
        Some(has)
    }
    fn stored(&self, page: PageId) -> Option<(Slot, ContentHash)> {
        self.inner.stored(page)
    }
    fn locate(&self, slot: Slot) -> Location {
        self.inner.locate(slot)
    }
    fn alloc_run(&mut self, want: u32, near: PageId) -> Option<SlotRun> {
        if self.bug == Bug::SlotTwice
            && let Some(slot) = self.last
            && self.rng.chance(100)
        {
            let place = self.place(slot);
            self.book.borrow_mut().take(self.process, place);
            return Some(SlotRun { first: slot, count: 1 });
        }
        let run = self.inner.alloc_run(want, near)?;
        self.taken(run, want);
        Some(run)
    }
    fn alloc_run_past_memory(&mut self, want: u32, near: PageId) -> Option<SlotRun> {
        let run = self.inner.alloc_run_past_memory(want, near)?;
        let memory = self.pool.as_ref().map(|pool| pool.file);
        assert!(memory != Some(self.place(run.first).0), "slots: {run:?} past memory is memory");
        self.taken(run, want);
        Some(run)
    }
    fn assign(&mut self, page: PageId, slot: Slot, content: ContentHash) -> bool {
        let (place, old) = (self.place(slot), self.stored_place(page));
        if self.bug == Bug::SlotTwice && self.last == Some(slot) && old != Some(place) {
            self.book.borrow_mut().free(self.process, place);
            return false;
        }
        if self.rng.chance(self.no_metadata_permille) {
            self.free_slot(slot);
            return false;
        }
        let assigned = self.inner.assign(page, slot, content);
        self.empty_freed();
        if !assigned {
            self.book.borrow_mut().free(self.process, place);
            return false;
        }
        self.last = Some(slot);
        self.book.borrow_mut().assign(self.process, page, place, old);
        true
    }
    fn free_slot(&mut self, slot: Slot) {
        if self.bug == Bug::LeakSlot {
            return;
        }
        let place = self.place(slot);
        self.book.borrow_mut().free(self.process, place);
        self.inner.free_slot(slot);
        self.empty_freed();
    }
    fn release(&mut self, page: PageId) -> bool {
        self.release_range(page, 1) > 0
    }
    fn release_range(&mut self, first: PageId, count: PageIndex) -> u64 {
        let mut stored = 0;
        for k in 0..count {
            let page = first.offset(k);
            if let Some(place) = self.stored_place(page) {
                self.book.borrow_mut().release(self.process, page, place);
                stored += 1;
            }
        }
        let released = self.inner.release_range(first, count);
        self.empty_freed();
        assert_eq!(released, stored, "release_range({first:?}, {count})");
        released
    }
    fn rename(&mut self, from: PageId, to: PageId) -> bool {
        let place = self.stored_place(from);
        let renamed = self.inner.rename(from, to);
        self.empty_freed();
        if !renamed {
            return false;
        }
        if let Some(place) = place {
            assert_eq!(self.stored_place(to), Some(place), "rename({from:?}, {to:?}) moved the slot");
            self.book.borrow_mut().release(self.process, from, place);
            self.book.borrow_mut().hold(self.process, to, place);
        }
        renamed
    }
    fn used(&self) -> u64 {
        self.inner.used()
    }
    fn metadata_bytes(&self) -> u64 {
        self.inner.metadata_bytes()
    }
    fn read_begun(&mut self, slot: Slot) {
        self.inner.read_begun(slot);
    }
    fn read_ended(&mut self, slot: Slot) {
        self.inner.read_ended(slot);
    }
    fn room(&self) -> u64 {
        self.inner.room()
    }
    fn device_use(&self, device: DeviceId) -> Option<DeviceUse> {
        let mut used = self.inner.device_use(device)?;
        if self.bug == Bug::CloseEarly {
            (used.taken, used.reading) = (0, 0);
        }
        Some(used)
    }
    fn leave(&mut self, device: DeviceId) -> Option<u32> {
        self.inner.leave(device)
    }
    fn stay(&mut self, device: DeviceId) {
        self.inner.stay(device);
    }
    fn leaving(&self, device: DeviceId) -> Option<u32> {
        self.inner.leaving(device)
    }
    fn is_unwelcome(&self, page: PageId) -> bool {
        self.inner.is_unwelcome(page)
    }
    fn next_on(&self, device: DeviceId, from: PageId) -> Scan {
        self.inner.next_on(device, from)
    }
    fn remove(&mut self, device: DeviceId) {
        self.inner.remove(device);
        self.empty_freed();
        self.files.remove(&device.0.into());
        self.last = None;
    }
}

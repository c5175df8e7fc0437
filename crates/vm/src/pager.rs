//! The pager: the layer below the core, which knows where the content of a page without a frame lies.
//!
//! The contract is FreeBSD's (`vm_pager.h`: haspage, getpages, putpages; read, not copied), with one difference: the core does no
//! I/O, so a pager here is *metadata only*. It hands out slots and answers where a page is. The machine moves the bytes and reports
//! one result per page from the closed list [`IoResult`].

use crate::types::{DeviceId, PAGE_SHIFT, PageId, PageIndex, Slot, Tag};

/// The answer to [`Pager::has_page`]: where the page is and how far it is contiguous on its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HasPage {
    /// The page's slot.
    pub slot: Slot,
    /// How many pages directly before it lie directly before it on the device, in pages.
    pub before: u32,
    /// How many pages directly after it lie directly after it on the device, in pages.
    pub after: u32,
}

/// A run of contiguous free slots, given by [`Pager::alloc_run`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotRun {
    /// The first slot.
    pub first: Slot,
    /// Length in slots, at least 1.
    pub count: u32,
}

/// Where the bytes of a slot are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Location {
    /// The device.
    pub device: DeviceId,
    /// The file of the device, by the machine's numbers; 0 if the device has no extents. For [`DeviceId::HOME`]: the object.
    pub file: u16,
    /// The device is memory of this process (compressed), and has no file.
    pub is_memory: bool,
    /// The place in the file, in bytes. In memory it is counted as if each slot had a page.
    pub offset: u64,
}

impl Location {
    /// Slot `at` of a device that is not made of extents.
    pub const fn plain(device: DeviceId, at: u32, is_memory: bool) -> Self {
        Location { device, file: 0, is_memory, offset: (at as u64) << PAGE_SHIFT }
    }
    /// The location of the slot `n` further on, in the same piece.
    pub const fn plus(self, n: u32) -> Self {
        Location { offset: self.offset + ((n as u64) << PAGE_SHIFT), ..self }
    }
    /// Whether it is in the file that is the page's home.
    pub const fn is_home(&self) -> bool {
        self.device.0 == DeviceId::HOME.0
    }
    /// The slot's number on its device. => the device is not made of extents
    pub const fn slot_at(&self) -> u32 {
        (self.offset >> PAGE_SHIFT) as u32
    }
}

/// The outcome for one page of an I/O. The list is closed; each outcome has another consequence for the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoResult {
    /// Done; the content is in its place.
    Ok,
    /// The device has no room (ENOSPC). The page stays in memory.
    NoSpace,
    /// The device failed (errno). On write the page stays in memory; on read it is lost if a thread waits for it.
    Io(i32),
    /// It could not be read, and is to be read again.
    Again,
    /// The content that was read is not the content that was written. The page is lost, never handed on.
    Corrupt,
    /// The file that is its home ends before the page. On read it is lost if it was touched.
    Beyond,
}

/// Neighbouring pages of one object in neighbouring slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredRun {
    /// The first page.
    pub first: PageId,
    /// Its slot.
    pub slot: Slot,
    /// Length in pages, at least 1. One read brings them all: they lie in one extent.
    pub count: u32,
}

/// The answer to [`Pager::next_on`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scan {
    /// The next pages that are stored on the device; `None` if none were found in the part that was searched.
    pub run: Option<StoredRun>,
    /// Where to go on; `None` at the end of the last object.
    pub next: Option<PageId>,
}

/// Everything that keeps a device from being removed. It can be removed when all are zero.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DeviceUse {
    /// Pages stored there, in pages; copies of resident pages included.
    pub stored: u64,
    /// Slots that were given and not yet assigned or freed: writes under way, in slots.
    pub taken: u64,
    /// Reads under way, in operations.
    pub reading: u64,
    /// The device is getting space.
    pub growing: bool,
}

/// Remembers where pages lie when they have no frame. Metadata only: no I/O, no waiting, no allocation after set-up.
///
/// The functions from [`Pager::read_begun`] on concern devices that come and go. The defaults suit a pager that always has the same
/// single device.
pub trait Pager {
    /// Its devices, as far as a machine may handle them by itself (add one, grow it, count its I/O, prepare a fork). They know of
    /// no page, so no page can be changed without the core.
    type Devices;

    /// The devices.
    fn devices(&self) -> &Self::Devices;

    /// The devices, to be changed.
    fn devices_mut(&mut self) -> &mut Self::Devices;

    /// Is `page` stored, and how far around it are pages contiguous *on the device*, at most `before_max` and `after_max` pages
    /// (`u32::MAX`: no limit).
    ///
    /// One lookup, no under- or overflow at an object's ends, never across a device (or an extent).
    fn has_page(&self, page: PageId, before_max: u32, after_max: u32) -> Option<HasPage>;

    /// The slot and the tag of `page`, if it is stored.
    fn stored(&self, page: PageId) -> Option<(Slot, Tag)>;

    /// The tag of `page`, if it is stored.
    fn tag(&self, page: PageId) -> Option<Tag> {
        self.stored(page).map(|(_, tag)| tag)
    }

    /// The location of the bytes of `slot`. In a run of slots from [`Pager::alloc_run`] or [`Pager::has_page`], the bytes follow
    /// each other without a gap.
    fn locate(&self, slot: Slot) -> Location {
        Location::plain(DeviceId(0), slot.0, false)
    }

    /// Whether other processes may read the same slot: it was in use at a fork.
    fn is_common(&self, slot: Slot) -> bool {
        _ = slot;
        false
    }

    /// Takes up to `want` contiguous free slots. Runs get shorter as space gets scarce; `None` when there is no free slot.
    ///
    /// `near` is the first page that they are for. Runs for neighbouring pages are placed near each other, and apart from other
    /// runs. The caller must give each slot to [`Pager::assign`] or to [`Pager::free_slot`].
    fn alloc_run(&mut self, want: u32, near: PageId) -> Option<SlotRun>;

    /// As [`Pager::alloc_run`], on devices that are not memory: for pages that memory refused or gives up.
    fn alloc_run_past_memory(&mut self, want: u32, near: PageId) -> Option<SlotRun> {
        self.alloc_run(want, near)
    }

    /// Records that `page` is stored in `slot` with that tag. The slot that it had before is freed.
    ///
    /// Returns `false` if there is no metadata left to remember it (the slot is freed).
    #[must_use]
    fn assign(&mut self, page: PageId, slot: Slot, tag: Tag) -> bool;

    /// Gives back a slot that was taken but not assigned.
    fn free_slot(&mut self, slot: Slot);

    /// Forgets where `page` is stored and frees its slot. Returns whether it was stored.
    fn release(&mut self, page: PageId) -> bool;

    /// Forgets every stored page of `first..first + count` in the object of `first`. Returns how many there were.
    fn release_range(&mut self, first: PageId, count: PageIndex) -> u64;

    /// The content stored for `from`, if any, now belongs to `to` (mremap). `to` must not be stored. Returns `false` if there is no
    /// room to remember it; then nothing is changed.
    #[must_use]
    fn rename(&mut self, from: PageId, to: PageId) -> bool;

    /// Slots in use, in pages.
    fn used(&self) -> u64;

    /// Bytes of metadata in use.
    fn metadata_bytes(&self) -> u64;

    // ---- devices that come and go ----

    /// A read from the device of `slot` begins. The device must not be removed before the read has ended.
    fn read_begun(&mut self, slot: Slot) {
        _ = slot;
    }

    /// That read has ended.
    fn read_ended(&mut self, slot: Slot) {
        _ = slot;
    }

    /// Slots that [`Pager::alloc_run`] could still give, in slots.
    fn room(&self) -> u64 {
        0
    }

    /// What keeps `device` from being removed; `None` if there is no such device.
    fn device_use(&self, device: DeviceId) -> Option<DeviceUse> {
        _ = device;
        None
    }

    /// From now on no new content goes to `device`. Returns the number of this leave, or `None` if there is no such device or it is
    /// leaving already.
    fn leave(&mut self, device: DeviceId) -> Option<u32> {
        _ = device;
        None
    }

    /// The inverse of [`Pager::leave`].
    fn stay(&mut self, device: DeviceId) {
        _ = device;
    }

    /// The number of the leave of `device` that is under way, if any.
    fn leaving(&self, device: DeviceId) -> Option<u32> {
        _ = device;
        None
    }

    /// Whether a device that is memory has room for new pages.
    fn memory_has_room(&self) -> bool {
        false
    }

    /// Whether `page` is stored on a device that is leaving, or that is memory. Its copy there should be forgotten once the page is
    /// in memory.
    fn is_unwelcome(&self, page: PageId) -> bool {
        _ = page;
        false
    }

    /// The next run of pages stored on `device`, from `from` on through all later pages and objects. Searches a bounded number of
    /// swap blocks. A search that goes on from [`Scan::next`] looks at no page twice.
    fn next_on(&self, device: DeviceId, from: PageId) -> Scan {
        _ = (device, from);
        Scan { run: None, next: None }
    }

    /// Removes `device`; its entry may be used for another. => [`Pager::device_use`] is all zero
    fn remove(&mut self, device: DeviceId) {
        _ = device;
    }
}

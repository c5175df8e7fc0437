//! A device that is memory of this process: compressed memory.

use crate::device::Device;
use crate::devices::{AddDeviceError, Devices};
use alloc::vec::Vec;
use overspill_vm::types::{DeviceId, PageId};

impl Device {
    pub(crate) fn defer(&mut self, at: u32) {
        self.deferred.insert(at);
        self.deferred_count += 1;
        if let Some(pages) = &mut self.memory {
            // as a link: an entry is read as a page only if a page has the slot, and `name` writes it before
            pages[at as usize] = self.freed_next.into();
            self.freed_next = at;
        }
    }

    /// Notes that `page` has slot `at`, if the device is memory.
    pub(crate) fn name(&mut self, at: u32, page: PageId) {
        if let Some(pages) = &mut self.memory {
            pages[at as usize] = page.raw();
        }
    }

    /// Slots that wait for a child. (Deferred slots of a memory device wait for the machine instead.)
    pub(crate) fn waiting_count(&self) -> u32 {
        if self.memory.is_some() { 0 } else { self.deferred_count }
    }
}

impl Devices {
    /// Adds a device that is memory of this process, with a slot for each entry of `pages`, which are all 0. The machine's own
    /// tables have `slot_bytes` bytes per slot. Does not allocate. It differs from other devices:
    ///
    /// - It knows the page of each slot ([`Devices::page_of`]).
    /// - A slot that is not needed any more is given again only when the machine has emptied it ([`Devices::take_freed`]).
    /// - When it is full ([`Devices::set_full`]) it gives no slots.
    /// - A page that comes in may have to give up its slot at once ([`Devices::set_drops_copies`]).
    /// - A forked child goes on writing its own copy of the device, so no slot waits for a child.
    ///
    /// # Errors
    /// [`AddDeviceError`]; then nothing is changed.
    pub fn add_memory_device(&mut self, pages: Vec<u64>, priority: i16, slot_bytes: u32) -> Result<DeviceId, AddDeviceError> {
        let device = self.add_device(pages.len().try_into().unwrap_or(u32::MAX), priority)?;
        let it = &mut self.all[device.0 as usize];
        (it.memory, it.slot_bytes) = (Some(pages), slot_bytes + size_of::<u64>() as u32);
        self.changed();
        Ok(device)
    }

    /// The page in slot `at` of a memory device; `None` if the slot has none.
    pub fn page_of(&self, device: DeviceId, at: u32) -> Option<PageId> {
        let it = self.get(device).filter(|d| d.owned.get(at))?;
        it.memory.as_ref().map(|pages| PageId::from_raw(pages[at as usize]))
    }

    /// Takes slots of a memory device whose content is not needed any more, in no particular order, as many as there are and `out`
    /// has room for. Returns how many. O(1) for each. => the machine empties them before the pager is used again
    pub fn take_freed(&mut self, device: DeviceId, out: &mut [u32]) -> usize {
        let Some(it) = self.get_mut(device) else { return 0 };
        let Some(pages) = &it.memory else { return 0 };
        let mut taken = 0;
        while taken < out.len() && it.deferred_count > 0 {
            let at = it.freed_next;
            it.freed_next = pages[at as usize] as u32;
            it.deferred.remove(at); // panics if the link is wrong
            it.deferred_count -= 1;
            it.blist.free(at);
            out[taken] = at;
            taken += 1;
        }
        it.assert_counts();
        taken
    }

    /// Slots that can still be given by devices that are not memory.
    pub fn room_past_memory(&self) -> u64 {
        self.in_use().filter(|d| d.memory.is_none()).map(|d| u64::from(d.room())).sum()
    }

    /// Sets whether pages that come in give up their slots on this device, because it is memory and short of it.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn set_drops_copies(&mut self, device: DeviceId, drops: bool) {
        self.get_mut(device).expect("there is such a device").drops_copies = drops;
    }

    /// Sets an estimate of how many more slots the device's memory has room for. Only [`Devices::room`] uses it.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn set_room(&mut self, device: DeviceId, slots: u32) {
        self.get_mut(device).expect("there is such a device").room_max = slots;
    }
}

//! Devices of extents get longer, and give space back to the file system.

use crate::blist::RUN_MAX;
use crate::device::{ABSENT, BLOCK_SLOTS, Device, OTHER, SEEN_FREE, SHORT_RUN, WANT_MAX, WRITERS};
use crate::devices::{AddDeviceError, Devices};
use crate::extent::{Extent, NoExtents};
use overspill_vm::pager::SlotRun;
use overspill_vm::types::{DeviceId, Slot};

/// Why an extent could not be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AddExtentError {
    /// There is no such device, or it has no extents.
    NotMapped,
    /// There is no room for another extent.
    TooMany {
        /// The most extents.
        extents_max: u32,
    },
    /// The device would become too long.
    TooLong {
        /// How many slots (pages) it can still get.
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

/// The result of [`Devices::punch_begin`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Punch {
    /// These slots have stayed free. They are taken until [`Devices::punched`].
    Run(SlotRun),
    /// Nothing so far; more of the device is left to look at.
    More,
    /// The end of the device, or the device has nothing to give back.
    End,
}

impl Devices {
    /// Adds a device that is made of extents, of up to `slots` slots; at first it has none. Does not allocate.
    ///
    /// Its runs end where an extent ends, so an operation is on one piece of one file. To align its clusters with the physical
    /// extents of a file, add those (FIEMAP) as extents.
    ///
    /// # Errors
    /// [`AddDeviceError`]; then nothing is changed.
    pub fn add_mapped_device(&mut self, slots: u32, priority: i16) -> Result<DeviceId, AddDeviceError> {
        let device = self.add_device(slots, priority)?;
        self.all[device.0 as usize].mapped = true;
        Ok(device)
    }

    /// Makes a mapped device longer by `count` slots, which lie in its file number `file` from byte `offset` on. Does not allocate.
    ///
    /// # Errors
    /// [`AddExtentError`]; then nothing is changed.
    ///
    /// # Panics
    /// If `count` is 0.
    pub fn add_extent(&mut self, device: DeviceId, file: u16, offset: u64, count: u32) -> Result<(), AddExtentError> {
        let extents_max = self.extents.len(); // the maximum, if TooMany is the error
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

    /// The device of extents that should get longer, or get slots back that it gave back, before the next run is asked for. It is
    /// the device that would be written, if it has no free window any more. A sparse one grows only if it has no more than very
    /// short runs. `None` also if it cannot grow ([`Devices::refuse_growth`]). Memory devices do not count: pages that they refuse
    /// must find room behind them.
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
                let sparse = longest >= SHORT_RUN && device.is_sparse();
                if longest < RUN_MAX && !sparse && device.gives() && device.can_grow() {
                    return Some(DeviceId(index));
                }
                room |= sparse || longest >= WANT_MAX || device.gives() && !device.mapped && device.blist.len() < device.end();
            }
            if room {
                return None;
            }
            from += equals;
        }
        None
    }

    /// The machine is about to get space for the device, without a lock. The device stays until [`Devices::grow_end`]. Returns how
    /// many slots it may still get, in slots (pages); `None` if it is not there or leaves.
    ///
    /// # Panics
    /// If it grows already.
    pub fn grow_begin(&mut self, device: DeviceId) -> Option<u32> {
        let it = self.get_mut(device).filter(|d| d.mapped && d.own && d.leaving.is_none())?;
        assert!(!core::mem::replace(&mut it.growing, true), "a device grows twice at a time");
        Some(it.slots - it.blist.len())
    }

    /// What was to be had has been added ([`Devices::add_extent`]); or nothing was.
    pub fn grow_end(&mut self, device: DeviceId) {
        if let Some(it) = self.get_mut(device) {
            it.growing = false;
        }
    }

    /// To be called if the machine found no more room for the device. It does not ask for more until some was given back.
    pub fn refuse_growth(&mut self, device: DeviceId) {
        if let Some(it) = self.get_mut(device).filter(|d| d.mapped) {
            it.refused = true;
        }
    }

    /// Finds slots that have stayed free since the last pass over the device, in whole blocks of [`BLOCK_SLOTS`] and at most `most`
    /// slots: their bytes can be given back to the file system. They are taken until [`Devices::punched`], so that nothing is
    /// written there meanwhile. A window for each writer stays.
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
                    // this looks at each block, so do it once
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

    /// To be called when the bytes of the run have been given back. If they could not be, the device is not punched any more.
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

    /// Finds slots, at most `most` of them, whose bytes were given back and are needed again. The machine must get blocks for them
    /// from the file system. They are taken until [`Devices::refilled`]. Does not allocate.
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

    /// To be called when the file system has given blocks for the run, or has refused.
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

    /// Divides a run from [`Devices::refill_begin`] into pieces of these lengths, in slots (pages). Its place in the file stays;
    /// only the ends of its physical extents are new. Does not allocate.
    ///
    /// # Errors
    /// If there is no room for the new extents; then nothing is changed.
    ///
    /// # Panics
    /// If the run crosses an extent, or the pieces together do not have its length.
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

    /// Lets devices that could not grow ask again. With `write_too`, also those that answered ENOSPC to a write and, if no other
    /// device has room, those that have failed. The machine should not do that often while it depends on the answer.
    pub fn retry(&mut self, write_too: bool) {
        let mut changed = false;
        let failed_too = write_too && !self.all.iter().any(Device::takes_all);
        for device in self.own_mut() {
            device.refused = false;
            if write_too && device.memory.is_none() {
                changed |= core::mem::take(&mut device.full);
                changed |= failed_too && core::mem::take(&mut device.failed);
                device.told &= device.failed;
            }
        }
        if changed {
            self.changed();
        }
    }
}

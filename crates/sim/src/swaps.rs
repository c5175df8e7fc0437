//! swapon and swapoff at any moment: whoever swaps devices on and off, the steps of the swapoffs, and the runs that they move.

use crate::device::{Item, hash};
use crate::process::{Leaving, Move};
use crate::scenario::Bug;
use crate::store::Store;
use crate::world::World;
use overspill_vm::pager::{IoResult, Pager};
use overspill_vm::types::{DeviceId, FrameId, Slot};
use overspill_vm::{MoveRun, SwapoffStep};
use std::collections::BTreeSet;

/// Answers "no room" without progress after which a swapoff is given up.
const NO_ROOM_MAX: u32 = 30;

impl<S: Store> World<S> {
    /// A device is swapped on, or a swapoff begins, or is cancelled; now and then a device dies.
    pub fn change_swap(&mut self, p: usize) {
        let process = &mut self.procs[p];
        let devices: Vec<usize> = process.vm.pager().files.keys().copied().collect();
        match self.rng.below(10) {
            0 if self.sc.pool_pages > 0 && process.vm.pager().pool.is_none() => self.add_pool(p),
            0..4 if devices.len() < 5 => {
                let (file, slots) = (self.files, 20 + self.rng.below(self.sc.slots as u64 - 19) as u32);
                let priority = self.rng.below(3) as i16 - 1;
                if process.vm.devices_mut().swapon(file, slots, priority).is_some() {
                    self.files += 1;
                    self.report.swapons += 1;
                    self.note(p, "swapon", slots as usize, file as u64);
                }
            }
            0..8 if !devices.is_empty() => {
                let device = DeviceId(devices[self.rng.index(devices.len())] as u16);
                self.swapoff(p, device);
            }
            8 if !process.swapoffs.is_empty() => {
                let nth = self.rng.index(process.swapoffs.len());
                self.cancel(p, nth);
            }
            _ if self.sc.deaths && !devices.is_empty() => {
                let file = process.vm.pager().files[&devices[self.rng.index(devices.len())]];
                self.device.kill(file);
                self.note(p, "device dies", 0, file as u64);
            }
            _ => {}
        }
    }

    fn swapoff(&mut self, p: usize, device: DeviceId) {
        match self.procs[p].vm.swapoff_begin(device) {
            Ok(off) => {
                self.procs[p].swapoffs.push(Leaving { off, left: u64::MAX, no_room: 0 });
                self.note(p, "swapoff", device.0.into(), off.pages());
            }
            Err(_) => self.report.swapoffs_refused += 1,
        }
    }

    fn cancel(&mut self, p: usize, nth: usize) {
        let leaving = self.procs[p].swapoffs.swap_remove(nth);
        self.procs[p].vm.swapoff_cancel(leaving.off.device());
        self.report.swapoffs_cancelled += 1;
        self.note(p, "swapoff cancelled", leaving.off.device().0.into(), 0);
    }

    /// A step of a write has ended with these results: the device counts it, and may have failed too often.
    pub fn count_write(&mut self, p: usize, ended: &[(Item, IoResult)]) {
        let Some((item, result)) = ended.first() else { return };
        let ok = !matches!(result, IoResult::Io(_));
        let failed = self.procs[p].vm.devices_mut().inner.io_ended(item.slot, true, ok);
        self.device_failed(p, failed);
    }

    /// A device has failed too often.
    pub fn device_failed(&mut self, p: usize, device: Option<DeviceId>) {
        let Some(device) = device else { return };
        self.report.failed_devices += 1;
        self.note(p, "device failed", device.0.into(), 0);
        if !self.procs[p].swapoffs.iter().any(|l| l.off.device() == device) {
            self.swapoff(p, device);
        }
    }

    /// Files that no process has open any more are gone.
    pub fn close_files(&mut self) {
        let open: BTreeSet<u32> =
            self.procs.iter().filter(|p| p.alive).flat_map(|p| p.vm.pager().files.values().copied()).collect();
        self.device.keep_files(&open);
    }

    /// One step of whoever swaps off, unless the process stands still for a fork.
    pub fn swap_step(&mut self, p: usize) {
        if !self.procs[p].freezing {
            (0..4).for_each(|_| self.swapoff_step(p));
        }
    }

    /// One step of a swapoff of process `p`, if there is one.
    pub fn swapoff_step(&mut self, p: usize) {
        let process = &mut self.procs[p];
        // The kernel answers EAGAIN until its message has been read: to go on meanwhile would keep the reader of messages from it.
        if process.swapoffs.is_empty() || process.changing() {
            return;
        }
        let nth = self.rng.index(process.swapoffs.len());
        let most = 1 + self.rng.below(128) as u32;
        let leaving = &mut process.swapoffs[nth];
        let device = leaving.off.device();
        let step = process.vm.swapoff_next(&mut leaving.off, most);
        let left = process.vm.pager().device_use(device).map_or(0, |used| used.stored);
        if left < leaving.left {
            (leaving.left, leaving.no_room) = (left, 0);
        }
        match step {
            SwapoffStep::Move(run) => {
                let place = process.vm.pager().place(run.slot);
                assert_eq!(process.vm.pager().place(run.slot_of(run.count - 1)), (place.0, place.1 + run.count - 1));
                let read = self.device.read(self.now, run, run.count, place, &mut self.rng);
                process.moves.push(Move::Reading(read));
                let at = process.at(run.first);
                self.note(p, "move begins", at, run.count as u64);
            }
            SwapoffStep::PageIn(op) => {
                self.report.brought_in += op.count as u64;
                self.start_read(p, op);
            }
            SwapoffStep::Again | SwapoffStep::Wait => {}
            SwapoffStep::NoRoom => {
                leaving.no_room += 1;
                if leaving.no_room > NO_ROOM_MAX {
                    self.cancel(p, nth);
                }
            }
            SwapoffStep::Done => {
                process.swapoffs.swap_remove(nth);
                self.report.swapoffs += 1;
                if process.vm.pager().pool.as_ref().is_some_and(|pool| pool.device == device) {
                    self.report.pools_off += 1;
                    self.drop_pool(p);
                }
                self.close_files();
                self.note(p, "swapoff ended", device.0.into(), 0);
            }
            SwapoffStep::Cancelled => unreachable!("only `cancel` does, and takes it off the list"),
        }
    }

    /// A run goes on.
    pub fn move_step(&mut self, p: usize, nth: usize) {
        let step = self.procs[p].moves.swap_remove(nth);
        let next = match step {
            Move::Reading(mut read) => {
                let memory = self.procs[p].vm.pager().pool.as_ref();
                if self.device.read_step(self.now, &mut read, &mut self.rng, memory) {
                    let items = self.moved_in(p, &read);
                    Some(Move::Placing(read.op, items))
                } else {
                    Some(Move::Reading(read))
                }
            }
            Move::Placing(run, items) if items.is_empty() => {
                self.procs[p].vm.swapoff_moved(run);
                None
            }
            Move::Placing(run, items) => Some(self.place_some(p, run, items)),
            Move::Writing(run, rest, mut write) => {
                let ended = self.device.write_step(self.now, &mut write, &mut self.rng);
                self.count_write(p, &ended);
                for (item, result) in ended {
                    self.moved_out(p, &run, &item, result);
                }
                Some(if write.items.is_empty() { Move::Placing(run, rest) } else { Move::Writing(run, rest, write) })
            }
        };
        self.procs[p].moves.extend(next);
    }

    /// A run has been read. What is to be written elsewhere.
    fn moved_in(&mut self, p: usize, read: &crate::device::Read<MoveRun>) -> Vec<Item> {
        let process = &mut self.procs[p];
        let run = read.op;
        let first = process.at(run.first);
        let trusting = self.sc.bug == Bug::MoveUnchecked;
        let ok = read.got.iter().all(|got| got.value.is_ok());
        let failed = process.vm.devices_mut().inner.io_ended(run.slot, false, ok);
        let may_be_lost = &mut process.may_be_lost;
        let good = process.vm.swapoff_arrived(&run, |i, expected| {
            let (got, at) = (read.got[i as usize], first + i as usize);
            let result = match got.value {
                Err(e) => IoResult::Io(e),
                Ok(value) if hash(run.page(i), value) != expected && !trusting => IoResult::Corrupt,
                Ok(_) => return IoResult::Ok,
            };
            assert!(got.damaged, "slots: page {at} comes back as {:x?} for a move, which is not what was written", got.value);
            may_be_lost[at] = true;
            result
        });
        let items = (0..run.count).filter(|i| good >> i & 1 == 1).map(|i| {
            let value = read.got[i as usize].value.unwrap_or(0);
            let none = Slot(u32::MAX);
            Item {
                page: run.page(i),
                frame: FrameId(u32::MAX),
                value,
                seen: value,
                slot: none,
                place: (0, 0),
                charged: false,
                packed: false,
            }
        });
        let items: Vec<Item> = items.collect();
        self.report.moves_void += (run.wanted.count_ones() as usize - items.len()) as u64;
        self.note(p, "move read", first, items.len() as u64);
        self.device_failed(p, failed);
        items
    }

    /// Slots for some of the pages of a run, if there are any.
    fn place_some(&mut self, p: usize, run: MoveRun, mut items: Vec<Item>) -> Move {
        let process = &mut self.procs[p];
        // pages that are out are cold: memory takes them only if nothing else does
        let (want, near) = (items.len() as u32, items[0].page);
        let slots = process.vm.launder_slots_past_memory(want, near).or_else(|| process.vm.launder_slots(want, near));
        let Some(slots) = slots else {
            return Move::Placing(run, Vec::new()); // the walk will come by again
        };
        let rest = items.split_off(slots.count as usize);
        for (i, item) in items.iter_mut().enumerate() {
            item.slot = Slot(slots.first.0 + i as u32);
            item.place = process.vm.pager().place(item.slot);
        }
        let memory = process.vm.pager().pool.as_ref().map(|pool| pool.file);
        if memory == Some(items[0].place.0) {
            for item in items {
                let pool = self.procs[p].vm.devices_mut().pool.as_mut().expect("slots of it were given");
                let stored = pool.store(item.place.1, item.value).is_ok();
                self.report.moved_into_pool += stored as u64;
                self.moved_out(p, &run, &item, if stored { IoResult::Ok } else { IoResult::NoSpace });
                self.refill(p);
            }
            return Move::Placing(run, rest); // those that it has refused have had their chance
        }
        let write = self.device.write(self.now, items, &mut self.rng);
        Move::Writing(run, rest, write)
    }

    fn moved_out(&mut self, p: usize, run: &MoveRun, item: &Item, result: IoResult) {
        let process = &mut self.procs[p];
        let mut i = (item.page.index() - run.first.index()) as u32;
        if self.sc.bug == Bug::MoveShifted {
            i = (run.wanted & ((1 << i) - 1)).count_ones();
        }
        let memory = process.vm.pager().pool.as_ref().map(|pool| pool.file);
        if result == IoResult::NoSpace && memory != Some(item.place.0) && self.rng.chance(500) {
            process.vm.devices_mut().inner.set_full(Some(item.slot));
        }
        let answer = if self.sc.bug == Bug::MoveWriteError { IoResult::Ok } else { result };
        let content = if matches!(self.sc.bug, Bug::MoveShifted | Bug::MoveUnchecked) {
            process.vm.pager().content(run.page(i)).unwrap_or(hash(item.page, item.value))
        } else {
            hash(item.page, item.value)
        };
        let stored = process.vm.swapoff_written(run, i, item.slot, (content, content), answer);
        self.report.moved += stored as u64;
        self.report.moves_void += !stored as u64;
        let at = self.procs[p].at(item.page);
        self.note(p, if stored { "moved" } else { "not moved" }, at, item.slot.0 as u64);
    }
}

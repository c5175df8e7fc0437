//! Page daemons: batches of reclaim, launder and park, cut into steps.

use crate::device::{Item, hash};
use crate::process::{Daemon, Process};
use crate::scenario::Bug;
use crate::store::Store;
use crate::world::World;
use overspill_vm::pager::IoResult;
use overspill_vm::types::{FrameId, PageId, Slot};
use overspill_vm::{Laundry, Look, Parked};

/// The most pages of a batch.
const BATCH_MAX: usize = 64;

impl<S: Store> World<S> {
    /// One step of daemon `d` of process `p`.
    pub fn daemon_step(&mut self, p: usize, d: usize) {
        let daemon = std::mem::replace(&mut self.procs[p].daemons[d], Daemon::Idle);
        let next = match daemon {
            Daemon::Idle => {
                if !self.procs[p].freezing {
                    self.tend_pool(p);
                }
                self.begin_batch(p)
            }
            Daemon::Dropping(frames, done) => self.drop_some(p, frames, done),
            Daemon::Looking(batch, done, writes) if done < batch.len() => {
                let (write, dropped) = self.look(p, batch[done]);
                let mut writes = writes;
                writes.extend(write);
                if let Some(frame) = dropped {
                    self.drop_now(p, frame);
                }
                Daemon::Looking(batch, done + 1, writes)
            }
            Daemon::Looking(_, _, mut writes) => {
                writes.sort_by_key(|w| w.page);
                if writes.is_empty() { Daemon::Idle } else { Daemon::Issuing(writes, false) }
            }
            Daemon::Issuing(items, past_memory) => self.issue(p, items, past_memory),
            Daemon::Parking(batch, done) => {
                let n = if self.rng.chance(300) { 1 } else { batch.len() - done };
                for (page, frame) in &batch[done..done + n] {
                    self.park_one(p, *page, *frame);
                }
                if done + n == batch.len() { Daemon::Idle } else { Daemon::Parking(batch, done + n) }
            }
        };
        self.procs[p].daemons[d] = next;
    }

    fn begin_batch(&mut self, p: usize) -> Daemon {
        let process = &mut self.procs[p];
        let demand = process.vm.demand();
        if process.freezing || demand.is_none() || !(process.vm.wants_daemon() || self.rng.chance(200)) {
            return Daemon::Idle;
        }
        let mut batch = Vec::with_capacity(1 + self.rng.index(BATCH_MAX));
        let first = self.rng.index(3);
        for kind in (first..first + 3).map(|k| k % 3) {
            match kind {
                0 if demand.reclaim > 0 => {
                    process.vm.reclaim_batch(demand.reclaim, &mut batch);
                    assert!(!batch.is_empty(), "progress: {demand:?}, but nothing to reclaim");
                    process.achieved();
                    let frames: Vec<FrameId> = batch.iter().map(|m| m.1).collect();
                    if self.sc.bug == Bug::FreeBeforeDrop {
                        process.vm.frames_dropped(frames.iter().copied());
                    }
                    self.note(p, "reclaim", 0, batch.len() as u64);
                    return Daemon::Dropping(frames, 0);
                }
                1 if demand.launder > 0 => {
                    let mut batch = Vec::with_capacity(batch.capacity());
                    process.vm.launder_batch(demand.launder, &mut batch);
                    if !batch.is_empty() {
                        self.note(p, "launder", 0, batch.len() as u64);
                        return Daemon::Looking(batch, 0, Vec::new());
                    }
                    assert!(process.vm.laundering() > 0, "progress: {demand:?}, but nothing to launder");
                }
                2 if demand.park > 0 => {
                    process.vm.park_batch(demand.park, &mut batch);
                    assert!(!batch.is_empty(), "progress: {demand:?}, but nothing to park");
                    self.note(p, "park", 0, batch.len() as u64);
                    return Daemon::Parking(batch, 0);
                }
                _ => {}
            }
        }
        process.fruitless += process.writes.is_empty() as u32;
        Daemon::Idle
    }

    fn drop_some(&mut self, p: usize, frames: Vec<FrameId>, done: usize) -> Daemon {
        let n = if self.rng.chance(300) { 1 } else { frames.len() - done };
        for frame in &frames[done..done + n] {
            self.procs[p].unpark(*frame).expect("frames: a reclaimed frame holds nothing");
        }
        if done + n < frames.len() {
            return Daemon::Dropping(frames, done + n);
        }
        if self.sc.bug != Bug::FreeBeforeDrop {
            self.procs[p].vm.frames_dropped(frames.into_iter());
        }
        Daemon::Idle
    }

    fn drop_now(&mut self, p: usize, frame: FrameId) {
        self.procs[p].unpark(frame).expect("frames: a dropped page's frame holds nothing");
        self.procs[p].vm.frames_dropped(std::iter::once(frame));
    }

    /// Looks at a page of a batch. It may have left its frame meanwhile; then the core must not care what was seen.
    fn look(&mut self, p: usize, laundry: Laundry) -> (Option<Item>, Option<FrameId>) {
        let Laundry { page, frame, .. } = laundry;
        let process = &mut self.procs[p];
        let garbage = self.rng.bits() | 1;
        let seen = process.parked[frame.at()];
        let value = seen.unwrap_or(garbage);
        let at = process.at(page);
        let look = process.vm.launder_look(page, value == 0, hash(page, value));
        let name = match look {
            Look::Drop(_) => "look: zero",
            Look::Settled => "look: settled",
            Look::Write => "look: write",
        };
        let result = match look {
            Look::Drop(dropped) => {
                assert!(
                    dropped == frame && seen == Some(0),
                    "frames: {page:?} in {dropped:?} is dropped, {seen:?} was seen in {frame:?}"
                );
                process.achieved();
                (None, Some(frame))
            }
            Look::Settled => {
                process.achieved();
                (None, None)
            }
            Look::Write => {
                let value = seen.expect("frames: a page to be written has no parked content");
                let none = Slot(u32::MAX);
                (Some(Item { page, frame, value, seen: value, slot: none, place: (0, 0), charged: false, packed: false }), None)
            }
        };
        self.note(p, name, at, value);
        result
    }

    fn issue(&mut self, p: usize, mut items: Vec<Item>, past_memory: bool) -> Daemon {
        let past_memory = past_memory || items[0].packed;
        let want = items.len().min(1 + self.rng.index(32));
        let process = &mut self.procs[p];
        let run = match past_memory {
            false => process.vm.launder_slots(want as u32, items[0].page),
            true => process.vm.launder_slots_past_memory(want as u32, items[0].page),
        };
        let Some(run) = run else { return self.no_slot(p, items) };
        let memory = process.vm.pager().pool.as_ref().map(|pool| pool.file);
        if memory == Some(process.vm.pager().place(run.first).0) {
            return self.pack(p, items, run);
        }
        let rest = items.split_off(run.count as usize);
        for (i, item) in items.iter_mut().enumerate() {
            item.slot = Slot(run.first.0 + i as u32);
            item.place = process.vm.pager().place(item.slot);
        }
        process.vm.launder_issued(run.count);
        for item in &items {
            let at = self.procs[p].at(item.page);
            self.note(p, "write begins", at, item.slot.0 as u64);
        }
        let write = self.device.write(self.now, items, &mut self.rng);
        self.procs[p].writes.push(write);
        if rest.is_empty() { Daemon::Idle } else { Daemon::Issuing(rest, past_memory) }
    }

    /// There are no slots for these: they stay in memory.
    pub fn no_slot(&mut self, p: usize, items: Vec<Item>) -> Daemon {
        let process = &mut self.procs[p];
        process.fruitless += items.len() as u32;
        let count = items.len() as u64;
        for item in items {
            process.vm.launder_done(item.page, None, hash(item.page, item.seen), IoResult::NoSpace);
            if item.charged {
                process.vm.uncharge(1);
                process.held_copies -= 1;
            }
        }
        self.note(p, "no slot", 0, count);
        Daemon::Idle
    }

    /// Moves a page of a batch out of sight, unless the program has given it up or moved it since.
    fn park_one(&mut self, p: usize, page: PageId, frame: FrameId) {
        let process = &mut self.procs[p];
        let at = process.at(page);
        if !process.vm.is_parking(page, frame) {
            self.report.out_of_batch += 1;
            process.achieved();
            self.note(p, "not to be parked any more", at, frame.0 as u64);
            self.wake(p, at);
            return;
        }
        let parked = if process.changing() || self.rng.chance(self.sc.refuse) {
            self.report.refused += 1;
            process.fruitless += !process.changing() as u32;
            Parked::Refused
        } else if let Some(value) = process.mapped[at].take() {
            process.park(frame, value);
            Parked::Yes
        } else {
            process.achieved();
            Parked::Absent
        };
        self.note(p, "parked", at, parked as u64);
        if self.procs[p].vm.park_done(page, parked) {
            self.wake(p, at);
        }
    }
}

impl<S: Store> Process<S> {
    /// The daemon has freed a frame or stored a page. It counts if a fault could profit: above the budget, one frame less helps
    /// nobody.
    pub fn achieved(&mut self) {
        if self.vm.available() > 0 {
            self.fruitless = 0;
        }
    }

    /// The daemon has tried everything for a while, in vain: all is wired or refused, or swap is full or broken. (That pages can
    /// still be parked is no progress: other threads' soft faults undo it for ever.)
    pub fn stuck(&self) -> bool {
        let (inactive, laundry, clean) = self.vm.queue_lengths();
        let tried = self.fruitless > 20 + 2 * (inactive + laundry);
        clean == 0 && (tried || (self.vm.nothing_to_evict() && self.daemons.iter().all(|d| matches!(d, Daemon::Idle))))
    }

    /// `page` has left `frame`; a write under way still holds what was in it, which is now charged by itself.
    pub fn charge_held_copy(&mut self, page: PageId, frame: FrameId) {
        let writes = self.writes.iter_mut().flat_map(|w| &mut w.items);
        let daemons = self.daemons.iter_mut().flat_map(|d| match d {
            Daemon::Looking(_, _, items) | Daemon::Issuing(items, _) => items.as_mut_slice(),
            _ => &mut [],
        });
        for item in writes.chain(daemons) {
            if item.page == page && item.frame == frame && !item.charged {
                item.charged = true;
                self.vm.charge(1);
                self.held_copies += 1;
            }
        }
    }
}

//! Reads and writes in flight, and what becomes of their pages.

use crate::device::{Got, Item, hash};
use crate::process::Arriving;
use crate::scenario::Bug;
use crate::store::Store;
use crate::world::World;
use overspill_vm::pager::IoResult;
use overspill_vm::types::ContentHash;
use overspill_vm::{CLUSTER_PAGES_MAX, Filled, PageIn, Place};

impl<S: Store> World<S> {
    /// Issues a read that the core has asked for.
    pub fn start_read(&mut self, p: usize, op: PageIn) {
        let process = &mut self.procs[p];
        let place = process.vm.pager().place(op.slot);
        let last = process.vm.pager().place(overspill_vm::types::Slot(op.slot.0 + op.count - 1));
        assert_eq!(last, (place.0, place.1 + op.count - 1), "a cluster goes across devices");
        let read = self.device.read(self.now, op, op.count, place, &mut self.rng);
        self.procs[p].reads.push(read);
        let at = self.procs[p].at(op.first);
        self.note(p, "read begins", at, op.count as u64);
        let process = &mut self.procs[p];
        if self.rng.chance(700)
            && !process.freezing
            && let Some(more) = process.vm.read_more(&op, process.bounds(at))
        {
            self.start_read(p, more); // the rest of its window
        }
    }

    /// One operation of process `p` goes on, or one that has arrived does.
    pub fn transfer_step(&mut self, p: usize) {
        let process = &mut self.procs[p];
        let (arriving, reads, writes) = (process.arriving.len(), process.reads.len(), process.writes.len());
        let (moves, backs) = (process.moves.len(), process.write_backs.len());
        if arriving + reads + writes + moves + backs == 0 {
            return;
        }
        let nth = self.rng.index(arriving + reads + writes + moves + backs);
        if nth < arriving {
            self.settle(p, nth);
        } else if nth < arriving + reads {
            let nth = nth - arriving;
            let memory = process.vm.pager().pool.as_ref();
            if self.device.read_step(self.now, &mut process.reads[nth], &mut self.rng, memory) {
                self.arrive(p, nth);
            }
        } else if nth < arriving + reads + writes {
            self.write_step(p, nth - arriving - reads);
        } else if nth < arriving + reads + writes + moves {
            self.move_step(p, nth - arriving - reads - writes);
        } else {
            self.write_back_step(p, nth - arriving - reads - writes - moves);
        }
    }

    fn arrive(&mut self, p: usize, nth: usize) {
        let process = &mut self.procs[p];
        let read = process.reads.swap_remove(nth);
        let op = read.op;
        let first = process.at(op.first);
        let bounds = process.bounds(first);
        let mut places = Box::new([Place::Discard; CLUSTER_PAGES_MAX]);
        let trusting = self.sc.bug == Bug::NoHashCheck;
        let may_be_lost = &mut process.may_be_lost;
        let result = |i: u32, expected| {
            let Got { value, damaged } = read.got[i as usize];
            let at = first + i as usize;
            match value {
                Err(e) => {
                    assert!(damaged, "slots: page {at} was never written where the pager says it is");
                    may_be_lost[at] = true;
                    IoResult::Io(e)
                }
                Ok(value) if hash(op.page(i), value) != expected && !trusting => {
                    assert!(damaged, "slots: page {at} comes back as {value:#x}, which is not what was written");
                    may_be_lost[at] = true;
                    IoResult::Corrupt
                }
                Ok(_) => IoResult::Ok,
            }
        };
        let ok = read.got.iter().all(|got| got.value.is_ok());
        let failed = process.vm.devices_mut().inner.io_ended(op.slot, false, ok);
        let next = process.vm.page_in_arrived(&op, bounds, result, &mut places);
        process.sections += 1;
        process.arriving.push(Arriving { read, places, done: 0, next });
        self.note(p, "read arrived", first, op.count as u64);
        self.device_failed(p, failed);
    }

    /// Some pages of an arrived cluster go to their places.
    fn settle(&mut self, p: usize, nth: usize) {
        let (op, done) = (self.procs[p].arriving[nth].read.op, self.procs[p].arriving[nth].done);
        let n = if self.rng.chance(300) { 1 } else { op.count - done };
        for i in done..done + n {
            self.settle_page(p, nth, &op, i);
        }
        let process = &mut self.procs[p];
        process.arriving[nth].done += n;
        if process.arriving[nth].done == op.count {
            process.sections -= 1;
            let next = process.arriving.swap_remove(nth).next;
            if let Some(op) = next {
                self.start_read(p, op);
            }
        }
    }

    fn settle_page(&mut self, p: usize, nth: usize, op: &PageIn, i: u32) {
        let process = &mut self.procs[p];
        let page = op.page(i);
        let at = process.at(page);
        let Arriving { read, places, .. } = &process.arriving[nth];
        let (place, got) = (places[i as usize], read.got[i as usize]);
        let refused = process.changing() || self.rng.chance(self.sc.refuse);
        let filled = match place {
            Place::Discard | Place::Lost => {
                if place == Place::Discard {
                    self.report.doomed_reads += 1;
                    if self.sc.bug == Bug::MapDoomed && process.mapped[at].is_none() {
                        process.mapped[at] = got.value.ok();
                    }
                }
                self.note(p, if place == Place::Lost { "lost" } else { "discarded" }, at, 0);
                self.wake(p, at);
                return;
            }
            Place::Map | Place::Park(_) if refused => Filled::No,
            Place::Park(frame) if self.rng.chance(900) => {
                process.park(frame, got.value.expect("it was read"));
                Filled::Parked
            }
            Place::Map | Place::Park(_) => {
                process.map(at, got.value.expect("it was read"));
                Filled::Mapped
            }
        };
        let wake = process.vm.page_in_done(page, filled);
        self.note(p, "paged in", at, filled as u64);
        if wake || op.touched() == Some(i) {
            self.wake(p, at);
        }
    }

    fn write_step(&mut self, p: usize, nth: usize) {
        let process = &mut self.procs[p];
        if self.sc.bug == Bug::WriteLate {
            for item in &mut process.writes[nth].items {
                item.value = process.parked[item.frame.at()].unwrap_or(0);
            }
        }
        let hashes: Vec<_> = process.writes[nth].items.iter().map(|i| (i.page, hash(i.page, i.seen))).collect();
        let ended = self.device.write_step(self.now, &mut process.writes[nth], &mut self.rng);
        self.count_write(p, &ended);
        for (item, result) in ended {
            let process = &mut self.procs[p];
            let hash = hashes.iter().find(|h| h.0 == item.page).expect("it was in the write").1;
            if result == IoResult::NoSpace && self.rng.chance(500) {
                process.vm.devices_mut().inner.set_full(Some(item.slot));
            }
            self.write_ended(p, &item, hash, result);
        }
        if self.procs[p].writes[nth].items.is_empty() {
            self.procs[p].writes.swap_remove(nth);
        }
    }

    /// A page has been written, or packed and stored.
    pub fn write_ended(&mut self, p: usize, item: &Item, hash: ContentHash, result: IoResult) {
        let process = &mut self.procs[p];
        let answer = if self.sc.bug == Bug::IgnoreWriteError { IoResult::Ok } else { result };
        process.vm.launder_done(item.page, Some(item.slot), hash, answer);
        if item.charged {
            process.vm.uncharge(1);
            process.held_copies -= 1;
        }
        if result == IoResult::Ok {
            process.achieved()
        } else {
            process.fruitless += 1
        }
        let at = process.at(item.page);
        self.note(p, if result == IoResult::Ok { "write ended" } else { "write failed" }, at, item.slot.0 as u64);
    }
}

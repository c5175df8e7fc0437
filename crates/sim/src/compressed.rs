//! What the machine does for a compressed device: its share of the budget, packing what would be written, and its coldest pages'
//! way to the next device.
//!
//! As on Linux: pages are packed and stored in one step, and those that are refused belong past memory; a write-back looks at
//! pages, takes their content a while later, and writes it a while after that, with nothing held in between.

use crate::device::{Item, Write, hash};
use crate::process::Daemon;
use crate::scenario::Bug;
use crate::store::Store;
use crate::world::World;
use overspill_store::pool::Refused;
use overspill_vm::PageOut;
use overspill_vm::pager::{IoResult, Pager};
use overspill_vm::types::{ContentHash, FrameId, PageId, Slot};

/// Pages of a write-back, at most.
const PAGES_MAX: usize = 24;
/// Write-backs at a time.
const WRITE_BACKS: usize = 2;

/// A page on its way.
#[derive(Clone, Copy, Debug)]
pub struct Moving {
    page: PageId,
    from: Slot,
    old: ContentHash,
}

/// A write-back under way.
#[derive(Clone, Debug)]
pub enum WriteBack {
    /// The pages were looked at; slots they have, their content nobody has yet.
    Looked(PageOut, Vec<Moving>),
    /// They are being written.
    Writing(Vec<Moving>, Write),
}

impl<S: Store> World<S> {
    /// A compressed device of its own for process `p`, above the others.
    pub fn add_pool(&mut self, p: usize) {
        let (file, process) = (self.files, &mut self.procs[p]);
        let budget = process.vm.limit();
        if process.vm.devices_mut().swapon_pool(file, self.sc.pool_pages, self.sc.slots, budget) {
            self.files += 1;
            self.refill(p);
            self.note(p, "pool on", self.sc.pool_pages as usize, file as u64);
        }
    }

    /// The device has been taken off: what was charged for it comes back.
    pub fn drop_pool(&mut self, p: usize) {
        let process = &mut self.procs[p];
        if let Some(mut pool) = process.vm.devices_mut().pool.take() {
            let pages = pool.kept.give_up();
            process.vm.uncharge(pages);
        }
    }

    /// Its share of the budget, when frames may have come free.
    pub fn refill(&mut self, p: usize) {
        let vm = &mut self.procs[p].vm;
        let available = vm.available();
        let pager = vm.devices_mut();
        let Some(pool) = &mut pager.pool else { return };
        let balance = pool.kept.balance(available);
        pager.inner.steer(pool.device, &balance);
        vm.charge(balance.charge);
        vm.uncharge(balance.uncharge);
    }

    /// What the page daemon does for it before each of its batches.
    pub fn tend_pool(&mut self, p: usize) {
        self.refill(p);
        while let Some(pool) = &mut self.procs[p].vm.devices_mut().pool
            && pool.kept.wants_trim()
            && let Some((block, _)) = pool.kept.pool.trim_begin()
        {
            let pages = pool.kept.pool.trim_end(block);
            self.procs[p].vm.uncharge(pages);
            self.refill(p);
        }
        while self.begin_write_back(p) {}
    }

    fn begin_write_back(&mut self, p: usize) -> bool {
        let process = &mut self.procs[p];
        let wanted = process.vm.devices_mut().pool.as_mut().is_some_and(|pool| pool.kept.wants_write_back());
        if !wanted || process.write_backs.len() == WRITE_BACKS {
            return false;
        }
        let want = 1 + self.rng.index(PAGES_MAX);
        let run = process.vm.write_back_slots(want as u32, process.page(0));
        let most = run.map_or(want, |run| run.count as usize);
        let (mut found, mut moving) = (Vec::new(), Vec::new());
        let pool = process.vm.devices_mut().pool.as_mut().expect("it was asked just now");
        let device = pool.device;
        pool.kept.coldest(most, |at| found.push(at));
        let inner = &process.vm.pager().inner;
        let mut found: Vec<_> = found.into_iter().filter_map(|at| Some((inner.page_of(device, at)?, at))).collect();
        found.sort_unstable();
        for (page, at) in found {
            let from = process.vm.pager().inner.slot(device, at);
            // without slots: those that are in a frame too give their slot up
            moving.extend(process.vm.write_back_look(page, from).map(|old| Moving { page, from, old }));
        }
        let Some(run) = run else { return false };
        self.note(p, "write-back", 0, moving.len() as u64);
        self.procs[p].write_backs.push(WriteBack::Looked(run, moving));
        true
    }

    /// A write-back goes on.
    pub fn write_back_step(&mut self, p: usize, nth: usize) {
        let step = self.procs[p].write_backs.swap_remove(nth);
        let next = match step {
            WriteBack::Looked(run, moving) => self.issue_write_back(p, run, moving),
            WriteBack::Writing(moving, mut write) => {
                let ended = self.device.write_step(self.now, &mut write, &mut self.rng);
                self.count_write(p, &ended);
                for (item, result) in ended {
                    self.written_back(p, &moving, &item, result);
                }
                if write.items.is_empty() {
                    self.procs[p].vm.write_back_end();
                    self.refill(p);
                    None
                } else {
                    Some(WriteBack::Writing(moving, write))
                }
            }
        };
        self.procs[p].write_backs.extend(next);
    }

    fn issue_write_back(&mut self, p: usize, run: PageOut, moving: Vec<Moving>) -> Option<WriteBack> {
        let process = &mut self.procs[p];
        let mut items = Vec::new();
        for m in &moving {
            let pager = process.vm.pager();
            let value = pager.pool.as_ref().and_then(|pool| pool.peek(pager.inner.place(m.from).1)).unwrap_or(0);
            if hash(m.page, value) != m.old {
                continue; // it has changed
            }
            let slot = Slot(run.first.0 + items.len() as u32);
            let (frame, place) = (FrameId(u32::MAX), pager.place(slot));
            items.push(Item { page: m.page, frame, value, seen: value, slot, place, charged: false, packed: false });
        }
        process.vm.free_slots(&run, items.len() as u32);
        if items.is_empty() {
            process.vm.write_back_end();
            return None;
        }
        process.vm.launder_issued(items.len() as u32);
        let write = self.device.write(self.now, items, &mut self.rng);
        Some(WriteBack::Writing(moving, write))
    }

    fn written_back(&mut self, p: usize, moving: &[Moving], item: &Item, result: IoResult) {
        let process = &mut self.procs[p];
        let m = moving.iter().find(|m| m.page == item.page).expect("it was in the write");
        if result == IoResult::NoSpace && self.rng.chance(500) {
            process.vm.devices_mut().inner.set_full(Some(item.slot));
        }
        let answer = if self.sc.bug == Bug::WriteBackError { IoResult::Ok } else { result };
        let new = hash(item.page, item.value);
        let moved = match self.sc.bug {
            Bug::WriteBackBlind => process.vm.devices_mut().assign(item.page, item.slot, new),
            _ => process.vm.write_back_written(item.page, (m.from, m.old), (item.slot, new), answer),
        };
        self.report.written_back += moved as u64;
        self.report.write_backs_void += !moved as u64;
        let at = process.at(item.page);
        self.note(p, if moved { "written back" } else { "not written back" }, at, item.slot.0 as u64);
    }

    /// Stores pages in slots of the compressed device; what it refuses is to go past memory.
    pub fn pack(&mut self, p: usize, items: Vec<Item>, run: PageOut) -> Daemon {
        let (mut stored, mut refused, mut rest) = (Vec::new(), Vec::new(), items.into_iter().peekable());
        let mut end = None;
        let process = &mut self.procs[p];
        let first = process.vm.pager().inner.place(run.first).1;
        let pool = process.vm.devices_mut().pool.as_mut().expect("slots of it were given");
        while end.is_none()
            && stored.len() + refused.len() < run.count as usize
            && let Some(mut item) = rest.next_if(|item| !item.packed)
        {
            let n = stored.len() as u32;
            match pool.store(first + n, item.value) {
                Ok(()) => {
                    (item.slot, item.place) = (Slot(run.first.0 + n), (pool.file, first + n));
                    stored.push(item);
                }
                Err(why) => {
                    (item.packed, end) = (true, (why != Refused::Incompressible).then_some(why));
                    refused.push(item);
                }
            }
        }
        let (n, file) = (stored.len() as u32, pool.file);
        self.report.packed += u64::from(n);
        self.report.pool_refused += refused.len() as u64;
        if n > 0 {
            process.vm.launder_issued(n);
        }
        process.vm.free_slots(&run, n);
        if end == Some(Refused::Full) {
            self.report.pool_full += 1;
            process.vm.devices_mut().inner.set_full(Some(run.first));
        }
        self.note(p, "packed", file as usize, n.into());
        for item in stored {
            let seen = hash(item.page, item.seen);
            self.write_ended(p, &item, seen, IoResult::Ok);
        }
        self.refill(p);
        let left: Vec<Item> = rest.chain(refused).collect();
        match end {
            _ if left.is_empty() => Daemon::Idle,
            // what has been stored makes room for it
            Some(Refused::NoCredit) if n > 0 => self.no_slot(p, left),
            Some(_) => Daemon::Issuing(left, true),
            None => Daemon::Issuing(left, false),
        }
    }
}

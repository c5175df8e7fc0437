//! Write-back: before the compressed device is full, its coldest pages go on to the next device, a cluster at a time.
//!
//! ```text
//!   slots past memory --> coldest pages, unpacked into a buffer, checked --> sealed, if swap is --> write
//!                                                                                       |
//!                         still stored in the old slot with the same tag?  <------------+
//!                         then the new slot is the page's place (core, write_back.rs)
//! ```
//!
//! The page daemon does it: [`WriteBack::issue`] before each of its steps, [`WriteBack::written`] for each completion. No lock is
//! held during I/O, and no page is busy. A page that is touched meanwhile comes in from the pool, and its write was for nothing.

use crate::buffers::{Buffers, bits};
use crate::compressed::Compressed;
use crate::errno::{self, Errno};
use crate::growth;
use crate::home::RETRY_NS;
use crate::kernel::{Content as _, Done, Io as _, IoVec, Kernel, Mistake};
use crate::machine::Machine;
use crate::reader;
use overspill_store::{PageBytes, checksum};
use overspill_vm::PageOut;
use overspill_vm::pager::IoResult;
use overspill_vm::types::{PAGE_SHIFT, PageId, Slot, Tag};

/// Writes that take pages to the next device, at a time.
const WRITE_BACKS: usize = 2;
/// The most pages of a write.
const PAGES_MAX: usize = 64;

#[derive(Clone, Copy)]
struct Moving {
    page: PageId,
    from: Slot,
    old: Tag,
    new: Tag,
}

struct Flight {
    pages: [Moving; PAGES_MAX],
    count: usize,
    run: Option<PageOut>,
    since: u64,
    iov: IoVec,
    busy: bool,
}

/// The page daemon's write-back.
pub struct WriteBack<K: Kernel> {
    flights: Vec<Flight>,
    found: Vec<(PageId, u32)>,
    pages: usize,
    /// A cluster for each flight. The last is not charged: one page to seal from.
    buffers: Buffers<K>,
    tokens: u64,
    /// A write has failed: nothing is issued before then.
    rests_until: u64,
}

impl<K: Kernel> WriteBack<K> {
    /// Its completions have tokens from `tokens` on.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn new(machine: &Machine<K>, tokens: u64) -> Result<Self, Errno> {
        let budget = machine.core.lock().vm.limit() as usize;
        let pages = (budget / 128).clamp(8, PAGES_MAX);
        let none = Moving { page: PageId::from_raw(0), from: Slot(0), old: Tag::UNKNOWN, new: Tag::UNKNOWN };
        let iov = IoVec { base: 0, len: 0 };
        let flight = || Flight { pages: [none; PAGES_MAX], count: 0, run: None, since: 0, iov, busy: false };
        Ok(WriteBack {
            flights: (0..WRITE_BACKS).map(|_| flight()).collect(),
            found: Vec::with_capacity(PAGES_MAX),
            pages,
            buffers: Buffers::new([pages; WRITE_BACKS].into_iter().chain([1]))?,
            tokens,
            rests_until: 0,
        })
    }

    /// Whether it has buffers in memory.
    pub fn has_buffers(&self) -> bool {
        self.buffers.any(0)
    }

    /// As [`reader::Reader::give_back`].
    pub fn give_back(&mut self, machine: &Machine<K>, all: bool) {
        self.buffers.give_back(machine, bits(self.flights.iter().map(|flight| flight.busy)), all);
    }

    /// Whether a completion with this token is for [`WriteBack::written`].
    pub fn is_its(&self, token: u64) -> bool {
        (self.tokens..self.tokens + WRITE_BACKS as u64).contains(&token)
    }

    /// Issues writes if the compressed device is getting full, or if nothing else is left that could go (`urgent`), and another
    /// device takes pages. Returns how many.
    ///
    /// A write needs a buffer. If the process is above its budget, or at its end, the first write gets one nevertheless: otherwise
    /// what is too large would stay for want of room.
    pub fn issue(&mut self, machine: &Machine<K>, io: &mut K::Io, urgent: bool) -> usize {
        let mut issued = 0;
        while let Some(free) = self.flights.iter().position(|f| !f.busy) {
            let is_wanted = {
                let map = machine.map.read();
                let can = |pool: &Compressed<K>| pool.can_write_back(machine.core.lock().vm.devices());
                map.pool.as_ref().is_some_and(|pool| pool.wants_write_back() || urgent && can(pool))
            };
            // (without a buffer, pages that would go to the compressed device go past it)
            let has_room = || {
                let vm = &machine.core.lock().vm;
                let needed = self.pages as u32 - self.buffers.held(free);
                let is_first = self.flights.iter().all(|flight| !flight.busy);
                needed <= vm.available() || is_first && (urgent || vm.charge_total() > u64::from(vm.limit()))
            };
            if !is_wanted || K::now_ns() < self.rests_until || !has_room() || !self.fill(machine, free, io) {
                break;
            }
            issued += 1;
        }
        issued
    }

    fn fill(&mut self, machine: &Machine<K>, free: usize, io: &mut K::Io) -> bool {
        let _ = growth::make_room(machine); // without more room there are no slots, or fewer
        let Some(run) = machine.core.lock().vm.write_back_slots(self.pages as u32, PageId::from_raw(0)) else {
            self.drop_copies(machine);
            return false;
        };
        let (buffer, scratch) = (self.buffers.at(free) as usize, self.buffers.at(WRITE_BACKS));
        let flight = &mut self.flights[free];
        flight.count = 0;
        let map = machine.map.read();
        if let Some(pool) = &map.pool {
            self.found.clear();
            let mut core = machine.core.lock();
            pool.coldest(run.count as usize, core.vm.devices(), |page, at| self.found.push((page, at)));
            self.found.sort_unstable(); // neighbouring pages are written side by side
            let base = core.vm.devices().slot(pool.device(), 0);
            for &(page, at) in &self.found {
                let from = Slot(base.0 + at);
                if let Some(old) = core.vm.write_back_look(page, from) {
                    flight.pages[flight.count] = Moving { page, from, old, new: old };
                    flight.count += 1;
                }
            }
            self.buffers.hold(&mut core, free, flight.count as u32);
            drop(core);
            drop(map);
            let mut good = 0;
            for i in 0..flight.count {
                let moving = flight.pages[i];
                // SAFETY: the first page is within this flight's buffer, which is not in flight. Nothing else uses the second.
                let (page, scratch) =
                    unsafe { (&mut *((buffer + (good << PAGE_SHIFT)) as *mut PageBytes), &mut *(scratch as *mut PageBytes)) };
                let at = moving.from.0 - base.0;
                let map = machine.map.read(); // for each page anew: to unpack all takes long
                let Some(pool) = map.pool.as_ref().filter(|pool| at < pool.slots) else { break }; // the device is gone
                pool.load(at, scratch);
                drop(map);
                if checksum::of(moving.page, scratch) != moving.old {
                    continue; // it has changed, or it is damaged; the next touch will find that
                }
                flight.pages[good] = moving;
                if machine.content.is_sealed() {
                    flight.pages[good].new = machine.content.seal(moving.page, scratch, page);
                } else {
                    page.copy_from_slice(scratch);
                }
                good += 1;
            }
            flight.count = good;
        }
        let mut core = machine.core.lock();
        core.vm.free_slots(&run, flight.count as u32);
        if flight.count == 0 {
            core.vm.write_back_end();
            return false;
        }
        core.vm.launder_issued(flight.count as u32);
        drop(core);
        let fd = machine.fd_to_write(&machine.map.read(), run.location);
        (flight.run, flight.since, flight.busy) = (Some(run), K::now_ns(), true);
        flight.iov = IoVec { base: buffer, len: flight.count << PAGE_SHIFT };
        // SAFETY: the vector lies in `self.flights`, which never moves its elements; the buffer is this flight's until the
        // completion.
        unsafe { io.write(fd, core::slice::from_ref(&flight.iov), run.location.offset, self.tokens + free as u64) };
        io.submit();
        true
    }

    /// There is no other device to go to: the coldest pages that are in a frame too give up their slots.
    fn drop_copies(&mut self, machine: &Machine<K>) {
        let map = machine.map.read();
        let Some(pool) = &map.pool else { return };
        let mut core = machine.core.lock();
        self.found.clear();
        pool.coldest(self.pages, core.vm.devices(), |page, at| self.found.push((page, at)));
        for &(page, at) in &self.found {
            let slot = core.vm.devices().slot(pool.device(), at);
            let _ = core.vm.write_back_look(page, slot);
        }
    }

    /// A write has ended.
    pub fn written(&mut self, machine: &Machine<K>, done: Done) {
        let flight = &mut self.flights[(done.token - self.tokens) as usize];
        let whole = done.result.map_or(0, |n| n >> PAGE_SHIFT);
        let failed = match done.result {
            Err(errno::ENOSPC) => IoResult::NoSpace,
            Err(e) => IoResult::Io(e),
            Ok(_) => IoResult::Io(errno::EIO),
        };
        let run = flight.run.expect("a write in flight");
        let map = machine.map.read();
        let mut core = machine.core.lock();
        reader::count_io(machine, &mut core, run.location.device, true, flight.count as u32, flight.since, done.result);
        let mut moved = 0;
        for (i, m) in flight.pages[..flight.count].iter().enumerate() {
            let result = if i < whole || K::mistake(Mistake::BelievesFailedWriteBacks) { IoResult::Ok } else { failed };
            moved += core.vm.write_back_written(m.page, (m.from, m.old), (run.slot(i as u32), m.new), result) as u64;
        }
        core.vm.write_back_end();
        if whole < flight.count {
            self.rests_until = K::now_ns() + RETRY_NS;
        }
        if let Some(pool) = &map.pool {
            pool.note_written_back(moved, &core.vm);
            pool.refill(&mut core.vm);
        }
        drop(core);
        flight.busy = false;
    }
}

//! Serves a fault: asks the core, fills the page or begins a read, and wakes the waiting threads.

use crate::errno::{self, Errno};
use crate::kernel::{Host as _, Kernel, Mistake, Moved, Touch, Uffd as _, take_pages};
use crate::lock::MutexGuard;
use crate::machine::{Core, DROPS_BATCH, Delivery, Machine, ZEROES_PAGES};
use crate::ranges::{Flags, Kind, Range};
use crate::space::{Read, Space};
use core::sync::atomic::Ordering::Relaxed;
use overspill_vm::page::State;
use overspill_vm::types::{FrameId, ObjectId, PAGE_SHIFT, PAGE_SIZE, PageId};
use overspill_vm::{Fault, Filled};

/// The result of serving a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// The page is there, or its thread was told to look again.
    Done,
    /// The page is there. This read should be made as well, because the reader will want its pages. The waiting threads are still
    /// to be woken ([`Machine::wake_last`]).
    DoneReadAhead(Read, Waiters),
    /// Another action on the page is under way. Its end wakes the waiting threads.
    Busy,
    /// This read must be made. Its end wakes the waiting threads.
    Read(Read),
    /// The kernel fills no page until a call of the program's has gone on, and its report has been read. To be tried again at once;
    /// nobody has been woken.
    Refused,
    /// No frame is free.
    NoMemory,
    /// It must wait: another thread has the load-control token (see [`crate::load_control`]), or the page's last read has failed.
    Held,
    /// The page is lost: the access is an error.
    Lost,
    /// Not an address of the pager's.
    NotOurs,
}

/// Threads that wait for pages, to be woken when the map is no longer held. (The raw descriptor stays valid: only a fork's child
/// gets another one, and no pager thread goes there.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiters {
    program: i32,
    addr: usize,
    len: usize,
}

impl<K: Kernel> Machine<K> {
    /// Maps the parked `page`, which the core has made busy, again. Returns whether waiting faults must be woken, and whether the
    /// kernel has refused to fill the page.
    pub(crate) fn restore(
        &self,
        map: &Space<K>,
        core: MutexGuard<'_, Core, K::Word>,
        addr: usize,
        page: PageId,
        frame: FrameId,
    ) -> (bool, bool) {
        let from = self.parking.addr(core.park.place(frame));
        drop(core);
        // SAFETY: the page is busy, so its parked content stays in place. It is what the program must find.
        let (filled, error) = unsafe { self.fill_back(map, addr, from as *const u8, 1) };
        if error == Some(errno::EFAULT) && !K::is_resident(from) {
            // Each touch would come here again.
            self.stop_program(
                b"the program was stopped: the kernel lost one of its pages (MADV_FREE by an instruction of its own?)",
            );
        }
        let mut core = self.core.lock();
        let filled = filled == 1 || K::mistake(Mistake::DropsBeforeTheCopy);
        let wake = core.vm.restore_done(page, if filled { Filled::Mapped } else { Filled::No });
        if filled {
            core.orphan(frame);
        }
        let tight = core.vm.copies_are_tight();
        let batch = core.park.drops() >= DROPS_BATCH;
        drop(core);
        if batch || tight {
            self.drop_places(map, tight);
        }
        (wake, error == Some(errno::EAGAIN))
    }

    /// Serves a touch of `addr`, except for I/O and waiting. For a recording, the lowest bit of `addr` says that the touch is a
    /// write.
    ///
    /// `tid`: the faulting thread, if load control may hold it ([`Served::Held`]); else 0. `may_wait`: it may be held until a
    /// page whose last read has failed is to be read again.
    pub fn serve(&self, addr: usize, tid: u32, may_wait: bool) -> Served {
        let write = addr & 1 == 1;
        let addr = addr & !(PAGE_SIZE - 1);
        let map = self.map.read();
        if map.is_behind(addr) {
            return Served::NotOurs; // not yet: what is there is still to be given up or renamed
        }
        if !map.remaps.is_empty() && self.leave_growth(&map, addr, tid) {
            return Served::Done; // its thread has been woken
        }
        let Some(range) = map.ranges.find(addr).copied() else { return Served::NotOurs };
        if range.kind == Kind::Native {
            return Served::NotOurs;
        }
        let page = range.page(addr);
        let mut core = self.core.lock();
        if self.host.record_is_full() {
            return Served::NoMemory; // to be tried again in a moment
        }
        let word = core.vm.page(page);
        if map.copying.overlaps(addr, addr + PAGE_SIZE) && !word.parking() {
            // The page was given up while the page daemon copied it. The daemon will discard it by its address, so a page that were
            // filled in now would be discarded, too.
            return Served::Busy;
        }
        let is_out = word.state() == State::PagedOut && !word.busy();
        let due = if is_out && !core.unread.is_empty() { core.unread.is_due(page, K::now_ns()) } else { None };
        if due == Some(false) && may_wait {
            return Served::Held;
        }
        // (a fault that gets no frame is tried again, and counts then)
        if is_out && core.vm.room() > 0 {
            let budget = core.vm.limit();
            let held = core.load.hard_fault(tid, budget, K::now_ns, K::thread_cpu_ns, || self.status.counters.refaults());
            self.status.counters.load_tokens.set(core.load.tokens());
            self.host.threads_run(core.load.rate());
            let several = core.load.are_several();
            core.vm.set_several_read(several);
            if held {
                return Served::Held;
            }
        }
        let guarded = range.flags.has(Flags::GUARDED);
        let bounds =
            if guarded || map.copying.overlaps(range.start, range.end) { page.index()..page.index() + 1 } else { range.bounds() };
        let is_parked = !word.busy() && matches!(word.state(), State::Inactive | State::Clean);
        // what is parked takes a frame for a moment only, and does not wait for one that will not come
        let over_budget =
            self.shortage.is_starved() || is_parked && self.shortage.stuck_since().is_some() || K::mistake(Mistake::GoesOverBudget);
        let mut fault = match due {
            Some(_) => core.vm.fault_again(page, over_budget),
            None => core.vm.fault(page, bounds.clone(), over_budget),
        };
        if is_parked && fault == Fault::NoMemory && core.park.drops() > 0 {
            drop(core);
            self.drop_places(&map, true);
            core = self.core.lock();
            fault = core.vm.fault(page, bounds, over_budget);
        }
        if self.host.records() {
            let record = |touch| self.host.record((addr >> PAGE_SHIFT) as u64, write, touch);
            match fault {
                Fault::ZeroFill { .. } => record(Touch::First),
                Fault::Restore { .. } => record(Touch::Soft),
                Fault::PageIn(_) => record(Touch::Hard),
                Fault::Mapped | Fault::Busy | Fault::NoMemory | Fault::Lost | Fault::TableFull => {}
            }
        }
        let wants_daemon = core.vm.wants_daemon();
        let waiters = self.waiters(&map, addr, PAGE_SIZE);
        let (served, waiters) = match fault {
            Fault::Busy => (Served::Busy, None),
            Fault::NoMemory => (Served::NoMemory, None),
            Fault::TableFull => {
                drop(core);
                self.stop_table_full()
            }
            Fault::PageIn(op) => (Served::Read(map.read_of(op.asked_for_by(write))), None),
            Fault::Lost => {
                drop(core);
                let _ = map.program.poison(addr, PAGE_SIZE);
                (Served::Lost, Some(waiters))
            }
            Fault::Mapped => {
                // The program may have discarded the page; then it is filled. Or another thread was faster. This happens under the
                // core lock. Otherwise the page daemon could park the page between the look and the filling, and the program would
                // find zeroes in its place.
                let filled = if guarded {
                    map.program.zero(addr, PAGE_SIZE)
                } else {
                    // SAFETY: a page of zeroes, never written; a page that is there already is left alone.
                    unsafe { map.program.copy(addr, self.zeroes.pages(), PAGE_SIZE) }
                };
                self.status.counters.pages_vanished.add(u64::from(filled.error.is_none()));
                if filled.error.is_none() && core.vm.home(page.object()).is_some() {
                    self.take_zeroes(&map, &mut core, page);
                }
                drop(core);
                map.program.let_write(addr, PAGE_SIZE); // if the page daemon wanted to copy it out, and did not
                (Served::Done, Some(waiters))
            }
            Fault::ZeroFill { first, count } => {
                drop(core);
                let start = map.addr(first);
                let (done, error) =
                    if guarded { (self.fill_unguarded(&map, start), None) } else { self.fill_zero(&map, start, count) };
                let mut core = self.core.lock();
                for i in 0..count {
                    let filled = if i < done { Filled::Mapped } else { Filled::No };
                    core.vm.fill_done(first.offset(i as u64), filled);
                }
                drop(core);
                let len = (count as usize) << PAGE_SHIFT;
                match error == Some(errno::EAGAIN) && addr >= start + ((done as usize) << PAGE_SHIFT) {
                    true => {
                        // this page is tried again; threads that another handler told to wait for the others must look again
                        for (from, to) in [(start, addr), (addr + PAGE_SIZE, start + len)] {
                            if from < to {
                                self.wake(&map, from, to - from);
                            }
                        }
                        (Served::Refused, None)
                    }
                    false => (Served::Done, Some(self.waiters(&map, start, len))),
                }
            }
            Fault::Restore { frame, ahead } => match (self.restore(&map, core, addr, page, frame).1, ahead) {
                (_, Some(op)) => (Served::DoneReadAhead(map.read_of(op.asked_for_by(write)), waiters), None),
                (true, None) => (Served::Refused, None),
                (false, None) => (Served::Done, Some(waiters)),
            },
        };
        drop(map);
        if wants_daemon {
            self.ring_daemon();
        }
        if let Some(waiters) = waiters {
            self.wake_last(waiters);
        }
        served
    }

    /// A page of a file was gone from the program's memory, and zeroes were put in its place. Takes them away again, so that the
    /// next touch reads the file.
    #[cold]
    fn take_zeroes(&self, map: &Space<K>, core: &mut Core, page: PageId) {
        let Some((place, _)) = core.park.take(1) else { return };
        // SAFETY: the place is empty, and nobody needs the zeroes.
        let (moved, _) = unsafe { take_pages::<K>(&map.parking, self.parking.addr(place), map.addr(page), PAGE_SIZE) };
        if moved.bytes < PAGE_SIZE {
            return core.park.give(place);
        }
        core.vm.charge(1);
        core.park.abandon(place);
        core.vm.vanished(page);
    }

    /// Fills a missing page with zeroes, but not a guard page: a copy would replace that. Returns how many pages are there now: one
    /// or none.
    fn fill_unguarded(&self, map: &Space<K>, addr: usize) -> u32 {
        let error = map.program.zero(addr, PAGE_SIZE).error;
        (error.is_none() || error == Some(errno::EEXIST) && K::is_resident(addr)) as u32
    }

    /// Serves a touch of a registered address that is in no managed range. There are two lasting cases: memory that has grown by a
    /// call that was not followed, and a mapping that such a call has left behind (MREMAP_DONTUNMAP). And there are two passing
    /// ones: memory that is about to be managed, and memory that has just been moved or unmapped while the report is unread (then
    /// the touch comes again). Memory that the pager knows nothing of is empty.
    ///
    /// Also for a page that is still to be given up or renamed: a step of that is done, and the thread looks again.
    pub fn serve_unmanaged(&self, addr: usize) {
        let addr = addr & !(PAGE_SIZE - 1);
        if self.step_behind(addr) || !self.config.finds_grown {
            return self.wake_any(addr);
        }
        let mut map = self.map.write();
        // if it is managed by now, its thread looks again
        if map.ranges.overlap(addr, addr + PAGE_SIZE, Kind::Managed).is_none() {
            if self.is_known(&map, addr) {
                self.stop_program(b"the program was stopped: internal error of the pager, please report it: a page that has content is in no range");
            }
            let filled = self.fill_zero(&map, addr, 1).0 == 1;
            map.program.let_write(addr, PAGE_SIZE);
            // Only registered memory can be filled: the message may be old, and something else be there by now. Memory that grows
            // by a followed call is managed when the call has returned.
            if filled && map.remaps.is_empty() && map.ranges.first(addr, addr + PAGE_SIZE).is_none() {
                self.find_grown(&mut map, addr);
            }
        }
        let waiters = self.waiters(&map, addr, PAGE_SIZE);
        drop(map);
        self.wake_last(waiters);
    }

    /// A touch of `addr` may have found that what is there is still to be given up or renamed: then this does a step of that, and
    /// returns `true`.
    pub fn step_behind(&self, addr: usize) -> bool {
        if !self.map.read().is_behind(addr) {
            return false;
        }
        self.step(&mut self.map.write());
        self.drop_in_turns(false);
        true
    }

    /// Whether the page at `addr` has content, in a range or not. Then zeroes may not take its place.
    pub fn is_known(&self, map: &Space<K>, addr: usize) -> bool {
        let core = self.core.lock();
        map.origins.iter().enumerate().filter(|(_, origin)| **origin <= addr).any(|(object, origin)| {
            let index = ((addr - origin) >> PAGE_SHIFT) as u64;
            let found = core.vm.next_present(PageId::new(ObjectId(object as u16), index), index + 1);
            found.map(|page| core.vm.page(page)).is_some_and(|word| word.busy() || word.state() != State::Untouched)
        })
    }

    /// Manages memory that has grown by a call that was not followed, found by a touch of a registered address in no range. The new
    /// range reaches as far as the mapping. => nothing is known at the address
    fn find_grown(&self, map: &mut Space<K>, addr: usize) {
        let mut mapping = (addr, addr + PAGE_SIZE); // if the mapping cannot be looked up
        let _ = K::each_mapping(|start, end| {
            if (start..end).contains(&addr) {
                mapping = (start, end);
            }
        });
        let mut grown = Range { start: mapping.0, end: mapping.1, ..Range::of_program(Flags::NONE) };
        for r in map.ranges.iter() {
            if r.end <= addr && r.end > mapping.0 {
                (grown.start, grown.flags) = (r.end, r.flags);
            } else if r.start > addr {
                grown.end = grown.end.min(r.start);
                break;
            }
        }
        self.manage(map, grown);
    }

    /// Copies zeroes into `count` missing pages. As [`Machine::fill_from`].
    pub fn fill_zero(&self, map: &Space<K>, addr: usize, count: u32) -> (u32, Option<Errno>) {
        let (mut done, mut error) = (0, None);
        while done < count {
            let n = (count - done).min(ZEROES_PAGES);
            let m;
            // SAFETY: the source is `ZEROES_PAGES` pages of zeroes, never written; these pages are untouched, so zeroes are right.
            (m, error) = unsafe { self.fill_from(map, addr + ((done as usize) << PAGE_SHIFT), self.zeroes.pages(), n) };
            done += m;
            if m < n {
                break;
            }
        }
        (done, error)
    }

    /// As [`Machine::fill_from`], with content that the program is to have back. If it is discarding any of these pages, none is
    /// filled.
    ///
    /// # Safety
    /// As [`Machine::fill_from`].
    pub(crate) unsafe fn fill_back(&self, map: &Space<K>, addr: usize, src: *const u8, count: u32) -> (u32, Option<Errno>) {
        if (0..count as usize).any(|i| map.discards.refuses(addr + (i << PAGE_SHIFT), K::now_ns)) {
            return (0, None);
        }
        if (0..count as usize).any(|i| map.is_aside(addr + (i << PAGE_SHIFT))) {
            return (0, Some(errno::EAGAIN));
        }
        // SAFETY: the caller's promise.
        unsafe { self.fill_from(map, addr, src, count) }
    }

    /// Copies `count` pages from `src` into missing pages; a page that is there already is left alone. Returns how many are there
    /// now, counted from the first, and why the kernel refused the next one, if it did. EAGAIN: a call is to be followed first.
    ///
    /// # Safety
    /// `src` is readable for `count` pages and holds the content that the program must find.
    pub unsafe fn fill_from(&self, map: &Space<K>, addr: usize, src: *const u8, count: u32) -> (u32, Option<Errno>) {
        let len = (count as usize) << PAGE_SHIFT;
        let behind = map.first_behind(addr, addr + len);
        let len = behind.map_or(len, |behind| behind - addr);
        let (mut done, mut most, mut failed) = (0, len, None);
        while done < len {
            // SAFETY: within the caller's source.
            let Moved { bytes, error, .. } = unsafe { map.program.copy(addr + done, src.add(done), most.min(len - done)) };
            done += bytes;
            match error {
                None => {}
                Some(errno::EEXIST) => done += PAGE_SIZE,
                // The pages may lie in two mappings, which no call fills together: mprotect(2) and others divide a range's mapping.
                Some(errno::ENOENT) if most > PAGE_SIZE => most = PAGE_SIZE,
                // EAGAIN: an event waits to be read; the page is faulted again after it. ENOENT, ESRCH: the mapping is gone.
                // EFAULT: that, or the source has no page.
                Some(_) => {
                    failed = error;
                    break;
                }
            }
        }
        let refused = failed == Some(errno::EAGAIN);
        if self.refused_fill.load(Relaxed) != refused {
            self.refused_fill.store(refused, Relaxed);
        }
        ((done >> PAGE_SHIFT) as u32, failed)
    }

    /// Tells threads that wait for pages of the range to look again.
    pub fn wake(&self, map: &Space<K>, addr: usize, len: usize) {
        self.wake_waiters(self.waiters(map, addr, len));
    }

    /// Threads that wait for pages of the range.
    pub fn waiters(&self, map: &Space<K>, addr: usize, len: usize) -> Waiters {
        Waiters { program: map.program.raw(), addr, len }
    }

    /// Tells the waiting threads to look again. This must be the last step for them: a handler on the CPU of the thread that it
    /// wakes may not run again before that thread sleeps. => the caller holds no lock of the pager's
    pub fn wake_last(&self, waiters: Waiters) {
        self.host.served();
        self.wake_waiters(waiters);
    }

    /// The same, not as the last step. => the caller holds no lock of the pager's
    pub(crate) fn wake_waiters(&self, waiters: Waiters) {
        match self.config.delivery {
            Delivery::Threads => K::wake(waiters.program, waiters.addr, waiters.len),
            Delivery::InThread => self.arrivals.announce(),
        }
    }
}

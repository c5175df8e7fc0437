//! Laundering: the content of parked pages is compared with the stored content, and written if it changed.

use super::out_of_memory::note;
use super::{BATCH, Daemon, Trouble};
use crate::errno::{self, Errno};
use crate::growth;
use crate::home::{Extent, RETRY_NS, extent, failure, reaches_beyond};
use crate::kernel::{Content as _, Done, Io as _, IoVec, Kernel, Mistake};
use crate::machine::Machine;
use crate::park::ParkPlace;
use crate::reader::{self, TOKEN_OTHER};
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use overspill_store::pool::Refused;
use overspill_store::{PageBytes, checksum};
use overspill_swap::device_stats;
use overspill_swap::{ERRORS_MAX, SwapPager};
use overspill_vm::pager::IoResult;
use overspill_vm::types::{ObjectId, PAGE_SHIFT, PAGE_SIZE, PageId, Slot, Tag};
use overspill_vm::{Compared, Config, Laundry, PageOut, Vm};

/// Pages per write.
const WRITE_PAGES: usize = 64;

/// Writes in flight.
pub(super) const WRITES_MAX: usize = 12;

/// How long to wait for one of them at a time, in nanoseconds, when a file's pages lie scattered.
const WAIT_NS: u64 = 500_000;

/// The fewest. A batch is laundered only while two are free.
const WRITES_MIN: usize = 4;

#[derive(Clone, Copy)]
pub(super) struct Dirty {
    page: PageId,
    place: ParkPlace,
    tag: Tag,
    write: bool,
    /// Its home is a file, and it is not in swap.
    at_home: bool,
    /// Its object has a file.
    of_file: bool,
    /// A device that is not memory is the better place for it.
    passes_memory: bool,
    /// The compressed device has it, has refused it, or is not to be asked.
    packed: bool,
}

pub(super) struct Write {
    pages: [Dirty; WRITE_PAGES],
    iov: [IoVec; WRITE_PAGES],
    count: usize,
    run: Option<PageOut>,
    /// Bytes to be written.
    bytes: usize,
    /// When it was issued.
    since: u64,
    pub(super) busy: bool,
}

impl Write {
    /// A write that is not under way.
    pub(super) fn new() -> Write {
        let (page, place) = (PageId::from_raw(0), ParkPlace::NONE);
        let (tag, write, at_home, of_file, passes_memory, packed) = (Tag::UNKNOWN, false, false, false, false, false);
        let none = Dirty { page, place, tag, write, at_home, of_file, passes_memory, packed };
        Write {
            pages: [none; WRITE_PAGES],
            iov: [IoVec { base: 0, len: 0 }; WRITE_PAGES],
            count: 0,
            run: None,
            bytes: 0,
            since: 0,
            busy: false,
        }
    }
}

/// The most writes in flight and the pages of each, for a budget of `memory_pages` pages. Encrypted writes need buffers, which are
/// charged to the budget: a 128th of it or four clusters, at most 3 MiB.
pub fn writes(memory_pages: u32, sealed: bool) -> (usize, usize) {
    if !sealed {
        return (WRITES_MAX, WRITE_PAGES);
    }
    let pages = (Config::cluster_pages(memory_pages) as usize).min(WRITE_PAGES);
    ((memory_pages as usize / 128 / pages).clamp(WRITES_MIN, WRITES_MAX), pages)
}

/// Pages of buffers for such writes.
pub fn buffer_pages((count, pages): (usize, usize), sealed: bool) -> usize {
    if sealed { count * pages } else { 0 }
}

/// How storing pages in a compressed device ended, and how many pages it took.
enum Packing {
    /// All pages that there were slots for were stored or refused.
    Done { stored: usize },
    /// The device has no room.
    Full { stored: usize },
    /// The budget has no frame for the device at the moment.
    NoCredit { stored: usize },
}

impl<K: Kernel, S> Daemon<K, S> {
    /// A page of the buffers, for computing tags.
    pub(super) fn scratch(&self) -> usize {
        self.buffers.at(self.buffers.len() - 1) as usize
    }

    /// How many pages may be laundered at once: none while fewer than two writes to swap may begin, else as many as two writes, or
    /// one if there is no memory for a second buffer.
    pub(super) fn can_launder(&self, machine: &Machine<K>, available: u32) -> u32 {
        let pages = self.write_pages as u32;
        let free = || (0..self.swap_writes).filter(|slot| !self.writes[*slot].busy);
        let with_buffer = free().filter(|slot| self.buffers_needed(machine, *slot, pages) <= available).count();
        if free().count() >= 2 { pages * with_buffer.min(2) as u32 } else { 0 }
    }

    /// Pages that must be charged before this write's buffer has so many.
    fn buffers_needed(&self, machine: &Machine<K>, slot: usize, pages: u32) -> u32 {
        if machine.content.is_sealed() { pages.saturating_sub(self.buffers.held(slot)) } else { 0 }
    }

    /// Launders a batch. Returns whether anything was settled or issued.
    pub(super) fn launder(&mut self, machine: &Machine<K>, most: u32) -> bool {
        let mut core = machine.core.lock();
        let read_only = core.vm.launder_batch(most, &mut self.laundry);
        self.dirty.clear();
        for &Laundry { page, frame, stored, at_home, of_file, in_memory, passes_memory } in &self.laundry {
            let place = core.park.place(frame);
            if !core.park.hold(place) {
                // the page moved to another address while it was being written, and that write has not ended: the page is inactive
                // again
                core.vm.launder_done(page, None, Tag::UNKNOWN, IoResult::NoSpace);
                continue;
            }
            let tag = stored.unwrap_or(Tag::UNKNOWN);
            self.dirty.push(Dirty { page, place, tag, write: false, at_home, of_file, passes_memory, packed: in_memory });
        }
        drop(core);
        if self.dirty.is_empty() {
            return read_only > 0;
        }
        self.dirty.sort_unstable_by_key(|d| d.page); // neighbours are written side by side
        let mut zero = [false; BATCH];
        // SAFETY: the page of our buffers that no write uses.
        let scratch = unsafe { &mut *(self.scratch() as *mut PageBytes) };
        for (d, zero) in self.dirty.iter_mut().zip(&mut zero) {
            // SAFETY: the place is held: its content stays, and nobody writes parked pages.
            let bytes = &*unsafe { K::parked(machine.parking.addr(d.place)) };
            *zero = !d.of_file && checksum::is_zero(bytes);
            if !*zero {
                let stored = (d.tag != Tag::UNKNOWN).then_some(d.tag);
                d.tag = match d.packed {
                    _ if d.at_home && stored.is_some() && K::mistake(Mistake::DropsWhatChanged) => d.tag,
                    _ if d.at_home => machine.content.fingerprint(d.page, bytes),
                    true => checksum::of(d.page, bytes), // it is stored in a compressed device, not encrypted
                    false => machine.content.tag(d.page, stored, bytes, scratch),
                };
            }
        }
        let (looked_at, mut writes) = (self.dirty.len(), 0);
        let map = machine.map.read();
        let mut core = machine.core.lock();
        let past_memory = map.pool.is_some() && core.vm.devices().room_past_memory() > 0;
        self.home_dirty.clear();
        for (d, zero) in self.dirty.iter_mut().zip(&zero) {
            match core.vm.launder_compared(d.page, *zero, d.tag) {
                Compared::Write if d.at_home && K::mistake(Mistake::WritesCopiesHome) => {
                    self.home_dirty.push(*d);
                    writes += 1;
                    continue;
                }
                Compared::Write => {
                    d.write = true;
                    d.packed = d.passes_memory && past_memory;
                    writes += 1;
                    continue;
                }
                Compared::WriteHome => {
                    self.home_dirty.push(*d);
                    writes += 1;
                    continue;
                }
                Compared::Drop(frame) => {
                    core.orphan(frame); // it is held until below
                    core.vm.frames_dropped(core::iter::once(frame));
                }
                Compared::Settled => {}
            }
            core.park.written(d.place);
        }
        self.dirty.retain(|d| d.write);
        if past_memory {
            self.dirty.sort_unstable_by_key(|d| (d.packed, d.page)); // they come last, see `write_dirty`
        }
        if let Some(pool) = &map.pool {
            pool.empty_freed(&mut core.vm); // the slots that these pages had there make room for their new ones
        }
        drop(core);
        machine.drop_places(&map, true);
        drop(map);
        let settled = looked_at - writes; // dropped ones too
        let home = if self.home_dirty.is_empty() { 0 } else { self.write_home(machine) };
        let issued = self.write_dirty(machine);
        read_only as usize + settled + home + issued > 0
    }

    /// Writes `dirty` in clusters of neighbouring slots; returns how many pages were issued. The rest goes inactive again.
    fn write_dirty(&mut self, machine: &Machine<K>) -> usize {
        let mut at = 0;
        let mut past_memory = false;
        while at < self.dirty.len() {
            if self.dirty[at].packed && !past_memory {
                past_memory = true; // only such pages are left, see `pack`
            }
            let mut free = self.writes[..self.swap_writes].iter().position(|w| !w.busy);
            if free.is_none() {
                self.reap(machine); // with plain I/O all have ended already
                free = self.writes[..self.swap_writes].iter().position(|w| !w.busy);
            }
            let Some(slot) = free else { break };
            let want = (self.dirty.len() - at).min(self.write_pages) as u32;
            let room = growth::make_room(machine);
            let near = self.dirty[at].page;
            let run = {
                let mut core = machine.core.lock();
                let run = match past_memory {
                    false => core.vm.launder_slots(want, near),
                    true => core.vm.launder_slots_past_memory(want, near),
                };
                if let Some(run) = run.filter(|run| !run.location.is_memory) {
                    let stats = core.vm.devices().stats(run.location.device).expect("it has slots");
                    // while some frames are free, nothing else puts off the next attempt
                    let rests = stats.writes.errors_in_a_row >= ERRORS_MAX && K::now_ns() < self.rests_until;
                    // (or a write is under way whose buffer is charged already)
                    if rests || self.buffers_needed(machine, slot, run.count) > core.vm.available() {
                        core.vm.free_slots(&run, 0);
                        break;
                    }
                    if machine.content.is_sealed() {
                        self.buffers.hold(&mut core, slot, run.count);
                    }
                    core.vm.launder_issued(run.count);
                }
                run
            };
            let Some(run) = run else {
                note(&mut self.trouble, room.err().unwrap_or(errno::ENOSPC));
                break;
            };
            if run.location.is_memory {
                match self.pack(machine, run, at) {
                    Packing::Done { stored } => at += stored,
                    Packing::Full { stored } => {
                        at += stored;
                        past_memory = true;
                    }
                    // the pages stored so far free frames for it
                    Packing::NoCredit { stored } if at + stored > 0 => {
                        at += stored;
                        break;
                    }
                    Packing::NoCredit { .. } => past_memory = true,
                }
                continue;
            }
            let n = run.count as usize;
            if !past_memory
                && let Some(pool) = &machine.map.read().pool
                && let Some(d) = self.dirty[at..at + n].iter().find(|d| !d.passes_memory)
            {
                // SAFETY: the place is held: its content stays, and nobody writes parked pages.
                pool.sample(unsafe { &*(machine.parking.addr(d.place) as *const PageBytes) });
            }
            let w = &mut self.writes[slot];
            w.pages[..n].copy_from_slice(&self.dirty[at..at + n]);
            w.count = n;
            w.run = Some(run);
            w.bytes = n << PAGE_SHIFT;
            w.since = K::now_ns();
            w.busy = true;
            let parked = |place: ParkPlace| machine.parking.addr(place);
            let mut vectors = 0;
            if machine.content.is_sealed() {
                let buffer = self.buffers.at(slot) as usize;
                for (i, d) in w.pages[..n].iter_mut().enumerate() {
                    // SAFETY: the place is held: its content stays, and nobody writes parked pages. The buffer belongs to this
                    // write, which is not in flight.
                    let (plain, sealed) = unsafe {
                        (&*(parked(d.place) as *const PageBytes), &mut *((buffer + (i << PAGE_SHIFT)) as *mut PageBytes))
                    };
                    d.tag = machine.content.seal(d.page, plain, sealed);
                }
                w.iov[0] = IoVec { base: buffer, len: n << PAGE_SHIFT };
                vectors = 1;
            } else {
                for d in &w.pages[..n] {
                    let base = parked(d.place);
                    if vectors > 0 && w.iov[vectors - 1].base + w.iov[vectors - 1].len == base {
                        w.iov[vectors - 1].len += PAGE_SIZE;
                    } else {
                        w.iov[vectors] = IoVec { base, len: PAGE_SIZE };
                        vectors += 1;
                    }
                }
            }
            let fd = machine.fd_to_write(&machine.map.read(), run.location);
            self.in_flight += 1;
            // SAFETY: the vectors lie in `self.writes`, which never moves its elements; the places are held until the completion.
            unsafe { self.io.write(fd, &w.iov[..vectors], run.location.offset, TOKEN_OTHER + slot as u64) };
            at += n;
        }
        self.io.submit();
        let rest = self.dirty.len() - at;
        if rest > 0 {
            let mut core = machine.core.lock();
            for d in &self.dirty[at..] {
                core.vm.launder_done(d.page, None, d.tag, IoResult::NoSpace);
                core.park.written(d.place);
            }
        }
        at
    }

    /// Writes `home_dirty` to the files, neighbours together. Returns how many pages were issued or given up. The rest goes
    /// inactive again.
    fn write_home(&mut self, machine: &Machine<K>) -> usize {
        let (mut at, mut back, mut patience) = (0, 0, BATCH);
        let mut known = None; // a file and its length, as long as nothing was waited for
        while at < self.home_dirty.len() {
            let mut free = self.writes.iter().rposition(|w| !w.busy);
            while free.is_none() && patience > 0 {
                // Pages that lie scattered take a write each. To put them back would mean to compare them again.
                patience -= 1;
                known = None;
                self.io.submit();
                self.io.wait(Some(WAIT_NS));
                self.reap(machine);
                free = self.writes.iter().rposition(|w| !w.busy);
            }
            let Some(slot) = free else { break };
            let first = self.home_dirty[at].page;
            let follows = |i: &usize| self.home_dirty[*i].page.raw() == first.raw() + (*i - at) as u64;
            let n = (at..self.home_dirty.len()).take(WRITE_PAGES).take_while(follows).count();
            let (fd, rest, retry_at) = {
                let map = machine.map.read();
                let file = map.home(first.object()).expect("a file is there as long as one of its pages is written");
                (file.fd, file.rest, file.retry_at.load(Relaxed))
            };
            let location = {
                let core = machine.core.lock();
                let home = core.vm.home(first.object()).expect("as above");
                Vm::<SwapPager>::home_location(&home, first)
            };
            let len = match retry_at > K::now_ns() {
                true => None,
                false => match known.filter(|(of, _)| *of == fd).map_or_else(|| K::file_len(fd), |(_, len)| Ok(len)) {
                    Ok(len) => {
                        known = Some((fd, len));
                        Some(len)
                    }
                    Err(e) => {
                        self.home_failed(machine, first.object(), e);
                        None
                    }
                },
            };
            let (n, bytes, fd) = match len.map(|len| extent(len, location.offset, n as u32)) {
                Some(Extent::Pages(n)) => (n as usize, (n as usize) << PAGE_SHIFT, fd),
                Some(Extent::Rest(bytes)) => {
                    // SAFETY: the place is held: its content stays, and nobody writes parked pages.
                    let content = unsafe { K::parked(machine.parking.addr(self.home_dirty[at].place)) };
                    if reaches_beyond(&content, bytes) {
                        machine.core.lock().vm.home_is_cut(first.object());
                        self.home_dirty[at].tag = Tag::UNKNOWN; // the file will not have what the page has
                    }
                    (1, bytes, rest)
                }
                Some(Extent::Nothing) => {
                    let mut core = machine.core.lock();
                    for d in &self.home_dirty[at..at + n] {
                        if let Some(frame) = core.vm.home_is_shorter(d.page) {
                            core.orphan(frame); // it is held until below
                            core.vm.frames_dropped(core::iter::once(frame));
                        }
                        core.park.written(d.place);
                    }
                    at += n;
                    continue;
                }
                None => {
                    self.put_back(machine, at..at + n);
                    (at, back) = (at + n, back + n);
                    continue;
                }
            };
            machine.core.lock().vm.home_write_begins(first.object(), n as u32);
            let fd = if machine.inject.write_home() { -1 } else { fd };
            let w = &mut self.writes[slot];
            w.pages[..n].copy_from_slice(&self.home_dirty[at..at + n]);
            w.count = n;
            w.run = Some(PageOut { first: Slot(0), location, count: n as u32 });
            (w.bytes, w.since, w.busy) = (bytes, K::now_ns(), true);
            let mut vectors = 0;
            for d in &w.pages[..n] {
                let base = machine.parking.addr(d.place);
                if vectors > 0 && w.iov[vectors - 1].base + w.iov[vectors - 1].len == base {
                    w.iov[vectors - 1].len += PAGE_SIZE;
                } else {
                    w.iov[vectors] = IoVec { base, len: PAGE_SIZE };
                    vectors += 1;
                }
            }
            if bytes < PAGE_SIZE {
                w.iov[0].len = bytes;
            }
            self.in_flight += 1;
            // SAFETY: the vectors lie in `self.writes`, which never moves its elements; the places are held until the completion.
            unsafe { self.io.write(fd, &w.iov[..vectors], location.offset, TOKEN_OTHER + slot as u64) };
            at += n;
        }
        self.io.submit();
        self.put_back(machine, at..self.home_dirty.len());
        at - back
    }

    /// Changed pages are not written now: they go inactive again.
    fn put_back(&mut self, machine: &Machine<K>, pages: Range<usize>) {
        let mut core = machine.core.lock();
        for d in &self.home_dirty[pages] {
            core.vm.home_put_back(d.page);
            core.park.written(d.place);
        }
    }

    /// A file cannot be written at present. It is left alone for a moment.
    fn home_failed(&mut self, machine: &Machine<K>, object: ObjectId, error: Errno) {
        self.trouble = Some(Trouble::File(error, object));
        if let Some(file) = machine.map.read().home(object) {
            file.retry_at.store(K::now_ns() + RETRY_NS, Relaxed);
        }
    }

    /// A write to a file has ended.
    fn written_home(&mut self, machine: &Machine<K>, slot: usize, done: Done) {
        let w = &self.writes[slot];
        let run = w.run.expect("a write in flight");
        let object = w.pages[0].page.object();
        let whole = if done.result == Ok(w.bytes) { w.count } else { done.result.unwrap_or(0) >> PAGE_SHIFT };
        let error = done.result.err().unwrap_or(errno::EIO);
        if whole < w.count {
            self.home_failed(machine, object, error);
        }
        let w = &self.writes[slot];
        let cached = machine.map.read().home(object).filter(|home| !home.direct).map(|home| home.fd);
        if let Some(fd) = cached {
            K::drop_cached(fd, run.location.offset, w.bytes);
        }
        let mut core = machine.core.lock();
        for (i, d) in w.pages[..w.count].iter().enumerate() {
            let result = if i < whole || K::mistake(Mistake::BelievesFailedWrites) { IoResult::Ok } else { failure(error) };
            core.vm.home_written(d.page, d.tag, result);
            core.park.written(d.place);
        }
        core.vm.home_write_ended(object);
        drop(core);
        self.writes[slot].busy = false;
        self.in_flight -= 1;
        machine.arrivals.announce();
    }

    /// Stores pages of `dirty`, from `at` on, in slots of the compressed device. The stored pages are moved to the front. Pages
    /// that do not compress are marked and moved to the end of `dirty`, for a device past memory.
    fn pack(&mut self, machine: &Machine<K>, run: PageOut, at: usize) -> Packing {
        let since = K::now_ns();
        let first = run.location.slot_at();
        // Order of `dirty[at..]`: stored pages, then refused pages, then pages not yet looked at.
        let (mut stored, mut refused, mut bytes) = (0, 0, 0);
        let mut end = None;
        while stored + refused < run.count as usize && !self.dirty[at + stored + refused].packed {
            let map = machine.map.read(); // for each page anew: to pack all takes half a millisecond
            let pool = map.pool.as_ref().expect("slots of it were given");
            let d = &mut self.dirty[at + stored + refused];
            // SAFETY: the place is held: its content stays, and nobody writes parked pages.
            let plain = unsafe { &*(machine.parking.addr(d.place) as *const PageBytes) };
            d.tag = checksum::of(d.page, plain);
            let mut packer = pool.packer();
            let packed = packer.pack(plain);
            let result = pool.store(first + stored as u32, packed);
            match result {
                Ok(()) => {
                    bytes += packed.bytes();
                    self.dirty.swap(at + stored, at + stored + refused);
                    stored += 1;
                }
                Err(Refused::Incompressible) => {
                    d.packed = true;
                    refused += 1;
                }
                Err(why) => {
                    end = Some(why);
                    break;
                }
            }
        }
        let map = machine.map.read();
        let pool = map.pool.as_ref().expect("slots of it were given");
        let mut core = machine.core.lock();
        core.vm.counters().pool_refused.add(refused as u64);
        self.dirty[at + stored..at + stored + refused].iter().for_each(|d| core.vm.launder_refused(d.page));
        if stored > 0 {
            core.vm.launder_issued(stored as u32);
            let ns = K::now_ns().saturating_sub(since);
            core.vm.packing_took(ns / (stored + refused) as u64);
            let io = device_stats::Io { write: true, pages: stored as u32, bytes, ns, ok: true };
            core.vm.devices_mut().io_ended(pool.device(), io);
        }
        for (i, d) in self.dirty[at..at + stored].iter().enumerate() {
            if !core.vm.launder_done(d.page, Some(run.slot(i as u32)), d.tag, IoResult::Ok) {
                note(&mut self.trouble, errno::ENOMEM);
            }
            core.park.written(d.place);
        }
        core.vm.free_slots(&run, stored as u32);
        if end == Some(Refused::Full) {
            core.vm.devices_mut().set_full(pool.device(), true);
        }
        pool.refill(&mut core.vm);
        drop(core);
        self.dirty[at + stored..].rotate_left(refused);
        match end {
            Some(Refused::Full) => Packing::Full { stored },
            Some(Refused::NoCredit) => Packing::NoCredit { stored },
            Some(Refused::Incompressible) | None => Packing::Done { stored },
        }
    }

    /// Takes completions.
    pub(super) fn reap(&mut self, machine: &Machine<K>) {
        if machine.inject.stalled(K::now_ns) {
            return;
        }
        while let Some(done) = self.io.completion() {
            if self.write_back.is_its(done.token) {
                self.write_back.written(machine, done);
                self.in_flight -= 1;
            } else {
                self.written(machine, done);
            }
        }
    }

    fn written(&mut self, machine: &Machine<K>, done: Done) {
        let slot = (done.token - TOKEN_OTHER) as usize;
        if self.writes[slot].run.is_some_and(|run| run.location.is_home()) {
            return self.written_home(machine, slot, done);
        }
        let w = &mut self.writes[slot];
        let whole = done.result.map_or(0, |n| n >> PAGE_SHIFT);
        let failed = match done.result {
            Err(errno::ENOSPC) => IoResult::NoSpace,
            Err(e) => IoResult::Io(e),
            Ok(_) => IoResult::Io(errno::EIO), // cut short: the pages after the cut were not written
        };
        if let Err(e) = done.result {
            note(&mut self.trouble, e);
        }
        let run = w.run.expect("a write in flight");
        if whole == 0 && failed != IoResult::NoSpace {
            // (a full file is asked on: each failed write passes over a hole)
            self.rests_until = K::now_ns() + RETRY_NS;
        }
        let mut core = machine.core.lock();
        reader::count_io(machine, &mut core, run.location.device, true, w.count as u32, w.since, done.result);
        for (i, d) in w.pages[..w.count].iter().enumerate() {
            let result = if i < whole || K::mistake(Mistake::BelievesFailedWrites) { IoResult::Ok } else { failed };
            if !core.vm.launder_done(d.page, Some(run.slot(i as u32)), d.tag, result) {
                note(&mut self.trouble, errno::ENOMEM);
            }
            core.park.written(d.place);
        }
        drop(core);
        w.busy = false;
        self.in_flight -= 1;
    }
}

//! Flushing: changed pages go to their file, and stay in memory.
//!
//! ```text
//!   core: the next pages in memory (they are laundering now) -> copy each, compare -> write neighbours together
//!   -> core: each page -> ... -> fdatasync; if that fails, all pages in memory count as changed again
//! ```
//!
//! A mapped page is copied while the program may be writing to it. What was copied is what is compared, written and remembered, so
//! a change that comes later is seen the next time. No lock is held over any of it.
//!
//! While a flush has pages, it must not wait for one that is missing: a page that was given up meanwhile is not read again before
//! this flush is done with it.

use crate::errno::{self, Errno};
use crate::home::{Extent, extent, failure, reaches_beyond};
use crate::kernel::{Content as _, Done, Io as _, IoVec, Kernel, Mappings as _, Mistake};
use crate::machine::{Delivery, Machine};
use core::marker::PhantomData;
use core::ops::Range;
use core::slice::from_mut;
use overspill_store::PageBytes;
use overspill_vm::Flush;
use overspill_vm::page::State;
use overspill_vm::pager::IoResult;
use overspill_vm::types::{ObjectId, PAGE_SHIFT, PAGE_SIZE, PageId, PageIndex, Tag};

/// Why a flush failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushError {
    /// A write failed.
    Io(Errno),
    /// fdatasync failed.
    Sync(Errno),
    /// Changed pages lie beyond the end of the file.
    Beyond,
}

/// What a flush has done so far.
#[derive(Debug, Default)]
pub struct Flushed {
    /// How many pages were written.
    pub pages: u64,
    /// The first failure. The flush goes on with the other pages.
    pub error: Option<FlushError>,
}

impl Flushed {
    /// Notes what [`Machine::sync_home`] has returned. Its failures come first, because the next flush does not know of them. A
    /// page whose write has failed is still there.
    pub fn synced(&mut self, synced: Result<u32, Errno>) {
        match synced {
            Err(e) => self.error = Some(FlushError::Sync(e)),
            Ok(0) => {}
            Ok(_) => self.error = Some(FlushError::Beyond),
        }
    }
}

/// The means of a thread to flush.
pub struct Flusher<K: Kernel> {
    io: K::Io,
    mappings: K::Mappings,
    batch: Vec<Flush>,
    tags: Vec<Tag>,
    runs: Vec<Run>,
    copies: Copies<K>,
}

/// Room for the copies of a batch.
struct Copies<K: Kernel>(*mut u8, PhantomData<K>);

impl<K: Kernel> Drop for Copies<K> {
    fn drop(&mut self) {
        // SAFETY: the mapping that `Flusher::new` made; every write from it has completed.
        unsafe { K::unmap(self.0, K::FLUSH_PAGES << PAGE_SHIFT) };
    }
}

/// Pages of an object that are looked at with the core locked.
const FORGET_PAGES: u64 = 1024;

/// Why a page was not copied.
enum NotCopied {
    /// The program has discarded it, so it has no change.
    IsDiscarded,
    /// The page daemon takes it away, or it is being brought back.
    Moves,
    /// It is there and cannot be read.
    Fails,
}

/// Neighbouring pages of a batch that are written together.
struct Run {
    first: usize,
    pages: usize,
    iov: IoVec,
    result: Option<Result<usize, Errno>>,
}

impl<K: Kernel> Flusher<K> {
    /// Makes one. => `io` is for [`Kernel::FLUSH_PAGES`] transfers at a time, and has none under way
    ///
    /// # Errors
    /// ENOMEM.
    pub fn new(io: K::Io) -> Result<Self, Errno> {
        let buffer = K::map_anonymous(K::FLUSH_PAGES << PAGE_SHIFT)?;
        // SAFETY: our own fresh mapping. Present from the start, so that no read into it has to wait.
        unsafe { buffer.write_bytes(0, K::FLUSH_PAGES << PAGE_SHIFT) };
        let (batch, tags, runs) =
            (Vec::with_capacity(K::FLUSH_PAGES), Vec::with_capacity(K::FLUSH_PAGES), Vec::with_capacity(K::FLUSH_PAGES));
        Ok(Flusher { io, mappings: K::Mappings::default(), batch, tags, runs, copies: Copies(buffer, PhantomData) })
    }

    fn page(&self, i: usize) -> usize {
        self.copies.0 as usize + (i << PAGE_SHIFT)
    }

    /// Writes the changed pages of a range to their file. `wait` is called with the number of arrivals so far, when a page is
    /// being moved or written and this has to look again. => the object is read-write; no lock is held
    pub fn flush(
        &mut self,
        machine: &Machine<K>,
        object: ObjectId,
        pages: Range<PageIndex>,
        flushed: &mut Flushed,
        mut wait: impl FnMut(u32),
    ) {
        machine.core.lock().charge_buffers(K::FLUSH_PAGES as u32);
        let mut at = pages.start;
        while at < pages.end {
            let seen = machine.arrivals.count();
            let scan = machine.core.lock().vm.flush_batch(object, at, pages.end, &mut self.batch);
            let missing = self.compare(machine, flushed).filter(|_| !K::mistake(Mistake::SkipsWhatWasTaken));
            self.write(machine, object, flushed);
            at = missing.unwrap_or(scan.next);
            if missing.is_none() && scan.waits {
                wait(seen);
            }
        }
        machine.core.lock().uncharge_buffers(K::FLUSH_PAGES as u32);
    }

    /// Copies the batch, and keeps what differs from the file. Returns the first page that could not be copied, because the page
    /// daemon took it away meanwhile.
    fn compare(&mut self, machine: &Machine<K>, flushed: &mut Flushed) -> Option<PageIndex> {
        self.tags.clear();
        let mut missing = None;
        while self.tags.len() < self.batch.len() {
            let at = self.tags.len();
            let flush = self.batch[at];
            let follows = |(n, next): (usize, &Flush)| next.parked.is_none() && next.page.raw() == flush.page.raw() + n as u64;
            let mapped = self.batch[at..].iter().enumerate().take_while(|next| follows(*next)).count();
            // SAFETY: pages of this flush's own buffer.
            let pages = unsafe { core::slice::from_raw_parts_mut(self.page(at) as *mut PageBytes, mapped.max(1)) };
            let copied = match flush.parked {
                Some(_) if self.copy_parked(machine, &flush, &mut pages[0]) => Ok(1),
                Some(_) => Err(NotCopied::Moves),
                None => self.copy_mapped(machine, flush.page, pages),
            };
            match copied {
                Ok(n) => {
                    for (flush, bytes) in self.batch[at..].iter().zip(&pages[..n]) {
                        let tag = machine.content.fingerprint(flush.page, bytes);
                        self.tags.push(if tag == flush.base { Tag::UNKNOWN } else { tag });
                    }
                }
                Err(why) => {
                    self.tags.push(Tag::UNKNOWN);
                    match why {
                        NotCopied::IsDiscarded => {}
                        NotCopied::Moves => missing = missing.or(Some(flush.page.index())),
                        NotCopied::Fails => _ = flushed.error.get_or_insert(FlushError::Io(errno::EFAULT)),
                    }
                }
            }
        }
        let mut core = machine.core.lock();
        for (flush, tag) in self.batch.iter().zip(&self.tags) {
            if *tag == Tag::UNKNOWN {
                core.vm.flush_settled(flush.page);
            }
        }
        missing
    }

    /// Copies mapped pages, neighbours from this one on. Returns how many: up to the first that is missing.
    fn copy_mapped(&mut self, machine: &Machine<K>, first: PageId, to: &mut [PageBytes]) -> Result<usize, NotCopied> {
        let addr = machine.map.read().addr(first);
        let copied = if machine.config.delivery == Delivery::InThread || K::mistake(Mistake::WaitsInAFlush) {
            K::copy_of_program(addr, to) // for a thread in the kernel nobody brings a page in
        } else {
            match self.mappings.read(addr, to.as_flattened_mut()) {
                Ok(bytes) => bytes >> PAGE_SHIFT,
                Err(errno::EIO) => 0,
                Err(_) => K::copy_of_program(addr, to), // without /proc it may wait all the same
            }
        };
        if copied > 0 { Ok(copied) } else { self.copy_again(machine, first, addr, &mut to[0]) }
    }

    /// Looks again at a mapped page that was not there to be copied, while nobody can take it away or bring it back.
    ///
    /// (Earlier, a page that was there, and could not be read for another reason, was tried again for ever: where the program had
    /// protected it, or a sandbox forbids process_vm_readv.)
    fn copy_again(&mut self, machine: &Machine<K>, page: PageId, addr: usize, to: &mut PageBytes) -> Result<usize, NotCopied> {
        let core = machine.core.lock();
        let word = core.vm.page(page);
        // With handler threads it might wait for one, if the program discards the page just now.
        let mut copy_in_thread = || machine.config.delivery == Delivery::InThread && K::copy_of_program(addr, from_mut(to)) == 1;
        if word.state() != State::Active || word.busy() {
            Err(NotCopied::Moves)
        } else if !K::is_resident(addr) {
            Err(NotCopied::IsDiscarded)
        } else if copy_in_thread() || self.mappings.read(addr, to).is_ok() {
            Ok(1)
        } else {
            Err(NotCopied::Fails)
        }
    }

    fn copy_parked(&self, machine: &Machine<K>, flush: &Flush, to: &mut PageBytes) -> bool {
        let place = {
            let mut core = machine.core.lock();
            let word = core.vm.page(flush.page);
            let parked = word.state() == State::Inactive && !word.busy() && !word.laundering_orphaned();
            if !parked || Some(word.frame()) != flush.parked {
                return false;
            }
            let place = core.park.place(word.frame());
            if !core.park.hold(place) {
                return false;
            }
            place
        };
        // SAFETY: the place is held: its content stays, and nobody writes parked pages.
        to.copy_from_slice(&*unsafe { K::parked(machine.parking.addr(place)) });
        machine.core.lock().park.written(place);
        true
    }

    /// Writes the pages of the batch that have a tag.
    fn write(&mut self, machine: &Machine<K>, object: ObjectId, flushed: &mut Flushed) {
        self.runs.clear();
        if self.tags.iter().all(|tag| *tag == Tag::UNKNOWN) {
            return;
        }
        let (fd, rest, direct) = {
            let map = machine.map.read();
            let home = map.home(object).expect("its pages are flushed");
            (home.fd, home.rest, home.direct)
        };
        let home = machine.core.lock().vm.home(object).expect("its pages are flushed");
        let offset = |page: PageId| home.offset + (page.index() << PAGE_SHIFT);
        let len = match K::file_len(fd) {
            Ok(len) => len,
            Err(e) => return self.give_up(machine, 0..self.batch.len(), IoResult::Io(e), flushed),
        };
        let mut at = 0;
        while at < self.batch.len() {
            let neighbour = |i: &usize| self.batch[*i].page.raw() == self.batch[at].page.raw() + (*i - at) as u64;
            let n = (at..self.batch.len()).take_while(|i| self.tags[*i] != Tag::UNKNOWN && neighbour(i)).count();
            if n == 0 {
                at += 1;
                continue;
            }
            let from = offset(self.batch[at].page);
            let (n, bytes) = match extent(len, from, n as u32) {
                Extent::Pages(n) => (n as usize, (n as usize) << PAGE_SHIFT),
                Extent::Rest(bytes) => (1, bytes),
                Extent::Nothing => {
                    self.give_up(machine, at..at + n, IoResult::Beyond, flushed);
                    at += n;
                    continue;
                }
            };
            self.runs.push(Run { first: at, pages: n, iov: IoVec { base: self.page(at), len: bytes }, result: None });
            at += n;
        }
        {
            let mut core = machine.core.lock();
            for run in &self.runs {
                core.vm.home_write_begins(object, run.pages as u32);
                if K::mistake(Mistake::ReportsBeforeTheWrite) {
                    let pages = run.first..run.first + run.pages;
                    pages.for_each(|i| core.vm.flush_written(self.batch[i].page, self.tags[i], IoResult::Ok));
                }
            }
        }
        for (token, run) in self.runs.iter().enumerate() {
            let fd = if run.iov.len < PAGE_SIZE { rest } else { fd };
            let fd = if machine.inject.write_home() { -1 } else { fd };
            let at = offset(self.batch[run.first].page);
            // SAFETY: the vector lies in `self.runs`, which is not changed until all have completed; the buffer is ours.
            unsafe { self.io.write(fd, core::slice::from_ref(&run.iov), at, token as u64) };
        }
        let mut left = self.runs.len();
        while left > 0 {
            self.io.wait(None);
            while let Some(Done { token, result }) = self.io.completion() {
                self.runs[token as usize].result = Some(result);
                left -= 1;
            }
        }
        let mut core = machine.core.lock();
        for run in &self.runs {
            let result = run.result.expect("it has completed");
            let whole = if result == Ok(run.iov.len) { run.pages } else { result.unwrap_or(0) >> PAGE_SHIFT };
            let unreported = if K::mistake(Mistake::ReportsBeforeTheWrite) { 0 } else { run.pages };
            for i in 0..unreported {
                let page = self.batch[run.first + i].page;
                // SAFETY: the buffer is ours, and nothing writes to it meanwhile.
                let content = unsafe { &*(self.page(run.first + i) as *const PageBytes) };
                if i < whole && reaches_beyond(content, run.iov.len - (i << PAGE_SHIFT)) {
                    core.vm.flush_written(page, Tag::UNKNOWN, IoResult::Beyond);
                    flushed.error.get_or_insert(FlushError::Beyond);
                } else if i < whole || K::mistake(Mistake::BelievesFailedFlushes) {
                    core.vm.flush_written(page, self.tags[run.first + i], IoResult::Ok);
                    flushed.pages += 1;
                } else {
                    let error = result.err().unwrap_or(errno::EIO);
                    core.vm.flush_written(page, Tag::UNKNOWN, failure(error));
                    flushed.error.get_or_insert(FlushError::Io(error));
                }
            }
            core.vm.home_write_ended(object);
        }
        drop(core);
        if !direct {
            for run in &self.runs {
                K::drop_cached(fd, offset(self.batch[run.first].page), run.pages << PAGE_SHIFT);
            }
        }
        machine.arrivals.announce();
    }

    /// These pages are not written.
    fn give_up(&self, machine: &Machine<K>, range: Range<usize>, result: IoResult, flushed: &mut Flushed) {
        let mut core = machine.core.lock();
        for i in range.filter(|i| self.tags[*i] != Tag::UNKNOWN) {
            core.vm.flush_written(self.batch[i].page, Tag::UNKNOWN, result);
            flushed.error.get_or_insert(match result {
                IoResult::Io(e) => FlushError::Io(e),
                _ => FlushError::Beyond,
            });
        }
    }
}

impl<K: Kernel> Machine<K> {
    /// To be called before a flush at whose end [`Machine::sync_home`] is called. Waits (as [`Flusher::flush`] does) while another
    /// such flush of the object is under way.
    ///
    /// The kernel tells of a failure once. If two flushes were under way at a time, the one that is told would have all pages
    /// written again, but the other might have looked at them before, and would report success. (Found by a seed.)
    pub fn begin_sync(&self, object: ObjectId, mut wait: impl FnMut(u32)) {
        loop {
            let seen = self.arrivals.count();
            if self.core.lock().vm.sync_begins(object) || K::mistake(Mistake::SyncsSideBySide) {
                return;
            }
            wait(seen);
        }
    }

    /// Waits until the device has what was written to an object's file. If it fails, its pages in memory (of the first `pages`)
    /// count as changed: nobody knows which of the writes since the last success are lost. Else returns how many changed pages the
    /// file has had no room for, since somebody was told.
    ///
    /// => [`Machine::begin_sync`]
    ///
    /// # Errors
    /// As fdatasync(2).
    pub fn sync_home(&self, object: ObjectId, pages: PageIndex) -> Result<u32, Errno> {
        let fd = self.map.read().home(object).expect("its pages are flushed").fd;
        let synced = if self.inject.sync() { Err(errno::EIO) } else { K::sync(fd) };
        if synced.is_err() && !K::mistake(Mistake::ForgetsFailedSyncs) {
            self.forget_bases(object, 0..pages);
        }
        let mut core = self.core.lock();
        let lost = synced.map(|()| core.vm.take_home_lost(object));
        core.vm.sync_ends(object);
        drop(core);
        self.arrivals.announce();
        lost
    }

    /// As [`overspill_vm::Vm::forget_bases`], in steps.
    pub fn forget_bases(&self, object: ObjectId, pages: Range<PageIndex>) {
        for at in pages.clone().step_by(FORGET_PAGES as usize) {
            self.core.lock().vm.forget_bases(object, at..pages.end.min(at + FORGET_PAGES));
        }
    }

    /// Whether nothing is known of the pages of an object, and no transfer of its file is under way: then it can be closed.
    pub fn is_home_gone(&self, object: ObjectId, pages: PageIndex) -> bool {
        let core = self.core.lock();
        core.vm.is_home_idle(object) && core.vm.next_present(PageId::new(object, 0), pages).is_none()
    }
}

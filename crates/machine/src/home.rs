//! Files as the home of pages: how they are read to their end, written, and flushed.
//!
//! Reads and the page daemon's writes use one descriptor, with O_DIRECT where the file system has it, so that nothing is cached
//! twice. Where it has not, the kernel's cached pages are dropped behind. The piece of a page with which a file ends is read and
//! written by a second descriptor without O_DIRECT. Both write through to the device (O_DSYNC) where the kernel caches, so that an
//! error comes back from the write itself, while the page is still in memory.
//!
//! ```text
//!   flush     core: the next pages in memory (they are laundering now) -> copy each, compare -> write neighbours together
//!             -> core: each page -> ... -> fdatasync; if that fails, all these pages count as changed again
//! ```
//!
//! The flush copies a mapped page while the program may be writing to it. What it has copied is what it compares, writes and
//! remembers, so a change that comes later is seen the next time. No lock is held over any of it.

use crate::errno::{self, Errno};
use crate::files::DeviceName;
use crate::kernel::{Done, Io as _, IoVec, Kernel};
use crate::machine::Machine;
use crate::reader::Arrived;
use crate::space::Space;
use core::ops::Range;
use overspill_store::{PageBytes, checksum};
use overspill_vm::pager::IoResult;
use overspill_vm::types::{ObjectId, PAGE_SHIFT, PAGE_SIZE, PageId, PageIndex, Tag};
use overspill_vm::{Access, Flush};

/// Pages that a flush copies at a time.
const FLUSH_PAGES: usize = 64;

/// A file that is the home of an object's pages. The descriptors belong to whoever has set it.
#[derive(Debug)]
pub struct HomeFile {
    /// What may be done with it.
    pub access: Access,
    /// To read and write whole pages.
    pub fd: i32,
    /// To read and write the rest of the last page.
    pub rest: i32,
    /// Whether `fd` goes past the kernel's cache.
    pub direct: bool,
    /// For messages.
    pub name: Box<DeviceName>,
}

/// What a read of a file needs beside its descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HomeRead {
    /// [`HomeFile::rest`].
    pub rest: i32,
    /// [`HomeFile::direct`].
    pub direct: bool,
    /// The pages may be changed, so their tags are needed.
    pub tags: bool,
}

/// The part of some pages that a file has room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Extent {
    /// So many whole pages.
    Pages(u32),
    /// So many bytes of the first page.
    Rest(usize),
    /// Nothing: the file ends before the first page.
    Nothing,
}

/// What a file of `len` bytes has of `pages` pages from `offset` on.
pub(crate) fn extent(len: u64, offset: u64, pages: u32) -> Extent {
    match len.saturating_sub(offset) {
        0 => Extent::Nothing,
        rest if rest < PAGE_SIZE as u64 => Extent::Rest(rest as usize),
        bytes => Extent::Pages((bytes >> PAGE_SHIFT).min(pages as u64) as u32),
    }
}

impl<K: Kernel> Space<K> {
    /// The home of an object.
    pub fn home(&self, object: ObjectId) -> Option<&HomeFile> {
        self.homes[object.0 as usize].as_ref()
    }
}

/// Completes a read of a file (from its descriptor and offset) that ended early. What is missing is read page by page. The piece
/// of a page with which the file ends is filled up with zeroes.
///
/// # Safety
/// `buffer` has room for `count` pages; the read into it has ended and nobody else uses it.
pub unsafe fn complete<K: Kernel>(
    machine: &Machine<K>,
    (fd, offset, home): (i32, u64, HomeRead),
    count: u32,
    buffer: *mut u8,
    result: Result<usize, Errno>,
) -> Arrived {
    let pages = count as usize;
    let first = |pages: usize| if pages == 0 { 0 } else { u128::MAX >> (u128::BITS - pages as u32) };
    let done = result.unwrap_or(0) >> PAGE_SHIFT;
    let (mut good, mut beyond, mut failed) = (first(done), 0, None);
    for page in done..pages {
        let at = offset + (page << PAGE_SHIFT) as u64;
        let again = machine.inject.read_again(home.rest, at, PAGE_SIZE);
        // SAFETY: a page of the caller's buffer.
        let read = unsafe {
            let content = buffer.add(page << PAGE_SHIFT);
            let read = K::read_now(again, content, PAGE_SIZE, at);
            if let Ok(bytes) = read {
                content.add(bytes).write_bytes(0, PAGE_SIZE - bytes);
            }
            read
        };
        match read {
            Ok(0) => {
                beyond = first(pages) & !first(page);
                break;
            }
            Ok(_) => good |= 1 << page,
            Err(e) => failed = Some(e),
        }
    }
    if !home.direct {
        K::drop_cached(fd, offset, pages << PAGE_SHIFT);
    }
    Arrived { good, beyond, result: failed.map_or(Ok(pages << PAGE_SHIFT), Err) }
}

/// Why a flush failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushError {
    /// A write, or fdatasync, failed.
    Io(Errno),
    /// Changed pages lie beyond the end of the file.
    Beyond,
}

/// What a flush has done so far.
#[derive(Debug, Default)]
pub struct Flushed {
    /// The pages that were written.
    pub pages: Vec<PageId>,
    /// The first failure. The flush goes on with the other pages.
    pub error: Option<FlushError>,
}

/// The means of a thread to flush.
pub struct Flusher<K: Kernel> {
    io: K::Io,
    batch: Vec<Flush>,
    tags: Vec<Tag>,
    runs: Vec<Run>,
    buffer: *mut u8,
}

/// Neighbouring pages of a batch that are written together.
struct Run {
    first: usize,
    pages: usize,
    iov: IoVec,
    result: Option<Result<usize, Errno>>,
}

impl<K: Kernel> Flusher<K> {
    /// Makes one, with I/O of its own.
    ///
    /// # Errors
    /// As [`Kernel::io`]; ENOMEM.
    pub fn new(engine: K::Engine) -> Result<Self, Errno> {
        let io = K::io(engine, FLUSH_PAGES as u32)?;
        let buffer = K::map_anonymous(FLUSH_PAGES << PAGE_SHIFT)?;
        // SAFETY: our own fresh mapping. Present from the start, so that no read into it has to wait.
        unsafe { buffer.write_bytes(0, FLUSH_PAGES << PAGE_SHIFT) };
        let (batch, tags, runs) =
            (Vec::with_capacity(FLUSH_PAGES), Vec::with_capacity(FLUSH_PAGES), Vec::with_capacity(FLUSH_PAGES));
        Ok(Flusher { io, batch, tags, runs, buffer })
    }

    fn page(&self, i: usize) -> usize {
        self.buffer as usize + (i << PAGE_SHIFT)
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
        let mut at = pages.start;
        while at < pages.end {
            let seen = machine.arrivals.count();
            let scan = machine.core.lock().vm.flush_batch(object, at, pages.end, &mut self.batch);
            let missing = self.compare(machine);
            self.write(machine, object, flushed);
            at = missing.unwrap_or(scan.next);
            if missing.is_none() && scan.waits {
                wait(seen);
            }
        }
    }

    /// Copies the batch, and keeps what differs from the file. Returns the first page that could not be copied, because it was
    /// taken away meanwhile.
    fn compare(&mut self, machine: &Machine<K>) -> Option<PageIndex> {
        self.tags.clear();
        let mut missing = None;
        for i in 0..self.batch.len() {
            let flush = self.batch[i];
            let buffer = self.page(i);
            // SAFETY: a page of this flush's own buffer.
            let bytes = unsafe { &mut *(buffer as *mut PageBytes) };
            let copied = match flush.parked {
                Some(_) => self.copy_parked(machine, &flush, bytes),
                None => {
                    let addr = machine.map.read().addr(flush.page);
                    K::copy_of_program(addr, bytes)
                }
            };
            let tag = if copied { checksum::of(flush.page, bytes) } else { Tag::UNKNOWN };
            if !copied && missing.is_none() {
                missing = Some(flush.page.index());
            }
            self.tags.push(if tag == flush.base { Tag::UNKNOWN } else { tag });
        }
        let mut core = machine.core.lock();
        for (flush, tag) in self.batch.iter().zip(&self.tags) {
            if *tag == Tag::UNKNOWN {
                core.vm.flush_settled(flush.page);
            }
        }
        missing
    }

    fn copy_parked(&self, machine: &Machine<K>, flush: &Flush, to: &mut PageBytes) -> bool {
        let place = {
            let mut core = machine.core.lock();
            let word = core.vm.page(flush.page);
            let parked = word.state() == overspill_vm::page::State::Inactive && !word.busy() && !word.laundering_orphaned();
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
            self.runs.iter().for_each(|run| core.vm.home_write_begins(object, run.pages as u32));
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
            for i in 0..run.pages {
                let page = self.batch[run.first + i].page;
                if i < whole {
                    core.vm.home_written(page, self.tags[run.first + i], IoResult::Ok);
                    flushed.pages.push(page);
                } else {
                    let error = result.err().unwrap_or(errno::EIO);
                    core.vm.home_written(page, Tag::UNKNOWN, failure(error));
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
            core.vm.home_written(self.batch[i].page, Tag::UNKNOWN, result);
            flushed.error.get_or_insert(match result {
                IoResult::Io(e) => FlushError::Io(e),
                _ => FlushError::Beyond,
            });
        }
    }
}

impl<K: Kernel> Drop for Flusher<K> {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made; every write from it has completed.
        unsafe { K::unmap(self.buffer, FLUSH_PAGES << PAGE_SHIFT) };
    }
}

/// The outcome of a write that failed.
pub(crate) fn failure(e: Errno) -> IoResult {
    match e {
        errno::ENOSPC | errno::EDQUOT => IoResult::NoSpace,
        e => IoResult::Io(e),
    }
}

impl<K: Kernel> Machine<K> {
    /// Waits until the device has what was written to an object's file. If it fails, `flushed` pages count as changed.
    ///
    /// # Errors
    /// As fdatasync(2).
    pub fn sync_home(&self, object: ObjectId, flushed: &Flushed) -> Result<(), Errno> {
        let fd = self.map.read().home(object).expect("its pages are flushed").fd;
        let synced = if self.inject.sync() { Err(errno::EIO) } else { K::sync(fd) };
        if synced.is_err() {
            let mut core = self.core.lock();
            flushed.pages.iter().for_each(|page| core.vm.forget_base(*page));
        }
        synced
    }

    /// Whether nothing is known of the pages of an object, and no transfer of its file is under way: then it can be closed.
    pub fn is_home_gone(&self, object: ObjectId, pages: PageIndex) -> bool {
        let core = self.core.lock();
        core.vm.is_home_idle(object) && core.vm.next_present(PageId::new(object, 0), pages).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_room_for_what_lies_before_its_end() {
        let page = PAGE_SIZE as u64;
        for (len, offset, pages, expected) in [
            (0, 0, 1, Extent::Nothing),
            (1, 0, 4, Extent::Rest(1)),
            (page, 0, 4, Extent::Pages(1)),
            (page + 1, 0, 4, Extent::Pages(1)),
            (page + 1, page, 4, Extent::Rest(1)),
            (page + 1, 2 * page, 4, Extent::Nothing),
            (9 * page, page, 4, Extent::Pages(4)),
        ] {
            assert_eq!(extent(len, offset, pages), expected, "{len} {offset} {pages}");
        }
    }
}

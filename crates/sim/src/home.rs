//! Files that are homes of objects: what everybody reads there, and what their device has for certain.
//!
//! ```text
//!   write --> pages (read by everybody) --+--> unsynced: any of it may reach the device, in any order
//!                                         |
//!                          fdatasync ends |--> device, all of it; if it fails: some of it, and the rest is forgotten
//! ```
//!
//! **A crash** ([`Homes::crash`]). If the process ends, what everybody reads stays. If the machine stops, what the device has
//! stays: of each page what it had for certain, or any of what was written since, and of its two halves different ones. The file
//! is as long as at the last fdatasync, or as at any time since.
//!
//! A file has two descriptors: one past the kernel's cache, for whole pages, and one for the piece of a page with which it ends.
//! What the checks need is the first byte of each page, and if there are crashes the last one, too. Nothing here is drawn from the
//! generators of other parts, so that the runs of scenarios without files stay as they are.

use crate::world::world;
use overspill_machine::errno::{self, Errno};
use overspill_simkernel::pmap::{PAGE, PageBytes};
use overspill_simkernel::rng::Rng;
use overspill_simkernel::sched::{self, Timeout};
use overspill_vm::Access;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

/// The first descriptor of such a file.
const FIRST_FD: i32 = 1 << 20;

/// The failures of the files' device, in thousandths of the operations.
#[derive(Clone, Copy, Default, Debug)]
pub struct FileTrouble {
    /// Reads that fail.
    pub read_error: usize,
    /// Writes that fail.
    pub write_error: usize,
    /// Writes that find the file system full.
    pub no_space: usize,
    /// Transfers that do only a part of the pages.
    pub short: usize,
    /// Calls of fdatasync that fail.
    pub sync_error: usize,
}

impl FileTrouble {
    /// A device that never fails.
    pub const NONE: FileTrouble = FileTrouble { read_error: 0, write_error: 0, no_space: 0, short: 0, sync_error: 0 };
}

/// The first and the last byte of a page.
type Ends = [u8; 2];

/// A file.
#[derive(Default)]
pub struct File {
    len: u64,
    pages: BTreeMap<u64, Box<PageBytes>>,
    /// What the device has of each page.
    device: BTreeMap<u64, Ends>,
    /// Pages written since, oldest first.
    unsynced: Vec<(u64, Ends)>,
    /// How long it is on the device.
    device_len: u64,
    /// How long it was made since.
    lens: Vec<u64>,
    /// The last bytes of pages are looked at as well.
    has_ends: bool,
    /// But not of pages in which the file has ended.
    ragged: BTreeSet<u64>,
    /// The contents that each page has had, oldest first. All have been zeroes at first.
    versions: BTreeMap<u64, Vec<u8>>,
    /// Each time that it was made shorter: the first page that lay wholly beyond the end.
    cuts: Vec<u64>,
    /// How often each page was read.
    reads: BTreeMap<u64, u32>,
    /// The region that has it.
    holder: Option<Access>,
}

impl File {
    fn put(&mut self, page: u64, bytes: &[u8]) {
        let content = self.pages.entry(page).or_insert_with(|| Box::new([0; PAGE]));
        content[..bytes.len()].copy_from_slice(bytes);
        self.note(page);
    }
    /// Notes the content of a page that was changed.
    fn note(&mut self, page: u64) {
        let ends = self.ends(page);
        self.versions.entry(page).or_insert_with(|| vec![0]).push(ends[0]);
        self.unsynced.push((page, ends));
    }
    fn ends(&self, page: u64) -> Ends {
        let content = self.pages.get(&page).map_or([0; 2], |page| [page[0], page[PAGE - 1]]);
        if self.has_ends && !self.ragged.contains(&page) { content } else { [content[0]; 2] }
    }
    fn set_len(&mut self, len: u64) {
        self.len = len;
        self.lens.push(len);
        if !len.is_multiple_of(PAGE as u64) {
            self.ragged.insert(len / PAGE as u64);
        }
    }
    /// What the device may have of a page if power fails now, oldest first.
    fn may_hold(&self, page: u64) -> impl Iterator<Item = Ends> {
        let written = self.unsynced.iter().filter(move |(at, _)| *at == page).map(|(_, ends)| *ends);
        std::iter::once(self.device.get(&page).copied().unwrap_or([0; 2])).chain(written)
    }
}

/// The files.
#[derive(Default)]
pub struct Homes {
    files: RefCell<Vec<File>>,
    rng: RefCell<Option<Rng>>,
    trouble: RefCell<FileTrouble>,
    /// A file was written that no read-write region has.
    spoilt: Cell<bool>,
}

fn pages_of(len: u64) -> u64 {
    len.div_ceil(PAGE as u64)
}

impl Homes {
    /// Makes `count` files, or takes those that are left of a process. `has_ends`: what is written has the same first and last byte
    /// in each page.
    pub fn begin(&self, count: usize, left: Vec<File>, has_ends: bool, seed: u64, trouble: FileTrouble) {
        self.files.replace(left);
        self.files.borrow_mut().resize_with(count, || File { has_ends, ..File::default() });
        self.rng.replace(Some(Rng::new(seed)));
        self.trouble.replace(trouble);
    }
    /// Whether a descriptor is of such a file.
    pub fn has(fd: i32) -> bool {
        fd >= FIRST_FD
    }
    /// The two descriptors of a file.
    pub fn fds(file: usize) -> (i32, i32) {
        (FIRST_FD + 2 * file as i32, FIRST_FD + 2 * file as i32 + 1)
    }
    /// Asserts that no transfer begins when no region has the file.
    pub fn check_open(&self, fd: i32) {
        assert!(self.file(fd, |file| file.holder.is_some()), "a transfer of a file that is closed");
    }
    /// Whether a read may fail for good.
    pub fn is_lossy(&self) -> bool {
        self.trouble.borrow().read_error > 0
    }

    fn file<T>(&self, fd: i32, f: impl FnOnce(&mut File) -> T) -> T {
        f(&mut self.files.borrow_mut()[((fd - FIRST_FD) / 2) as usize])
    }
    fn draw(&self, limit: usize) -> usize {
        self.rng.borrow_mut().as_mut().expect("there are files").below(limit)
    }
    fn happens(&self, thousandths: impl Fn(&FileTrouble) -> usize) -> bool {
        let thousandths = thousandths(&self.trouble.borrow());
        thousandths > 0 && self.draw(1000) < thousandths
    }
    /// How much of a transfer of `len` bytes is done.
    fn part(&self, len: usize) -> usize {
        if len > PAGE && self.happens(|t| t.short) { PAGE * (1 + self.draw(len / PAGE - 1)) } else { len }
    }

    /// How much of a write that fails is on the device all the same, in bytes.
    fn landed(&self, len: usize) -> usize {
        if self.draw(2) == 0 { len } else { PAGE * self.draw(1 + len / PAGE) }
    }

    // ---- as the machine sees them ----

    /// Reads.
    ///
    /// # Errors
    /// As pread(2).
    pub fn read(&self, fd: i32, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
        if self.happens(|t| t.read_error) {
            world().harm(bytes.len().div_ceil(PAGE));
            return Err(errno::EIO);
        }
        let most = self.part(bytes.len());
        self.file(fd, |file| {
            let there = file.len.saturating_sub(offset).min(most as u64) as usize;
            if there < bytes.len() {
                world().harm((bytes.len() - there).div_ceil(PAGE));
            }
            for (i, to) in bytes[..there].chunks_mut(PAGE).enumerate() {
                let page = offset / PAGE as u64 + i as u64;
                let content = file.pages.get(&page).map_or([0; PAGE], |page| **page);
                to.copy_from_slice(&content[..to.len()]);
                *file.reads.entry(page).or_default() += 1;
            }
            Ok(there)
        })
    }

    /// Writes. As on Linux, a write beyond the end makes the file longer.
    ///
    /// # Errors
    /// As pwrite(2).
    pub fn write(&self, fd: i32, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        let whole = (fd - FIRST_FD) % 2 == 0;
        assert!(offset.is_multiple_of(PAGE as u64) && whole == (bytes.len() >= PAGE), "{} bytes at {offset} of {fd}", bytes.len());
        assert!(bytes.len() < PAGE || bytes.len().is_multiple_of(PAGE), "{} bytes past the cache", bytes.len());
        // (not a panic here: the page daemon, when it is unwound, waits for this write to end)
        self.spoilt.update(|spoilt| spoilt || self.file(fd, |file| file.holder) != Some(Access::ReadWrite));
        if self.happens(|t| t.no_space) {
            return Err(errno::ENOSPC);
        }
        let fails = self.happens(|t| t.write_error);
        let bytes = &bytes[..if fails { self.landed(bytes.len()) } else { self.part(bytes.len()) }];
        self.file(fd, |file| {
            for (i, bytes) in bytes.chunks(PAGE).enumerate() {
                file.put(offset / PAGE as u64 + i as u64, bytes);
            }
            if !bytes.is_empty() && offset + bytes.len() as u64 > file.len {
                file.set_len(offset + bytes.len() as u64);
            }
        });
        if fails { Err(errno::EIO) } else { Ok(bytes.len()) }
    }

    /// Its length, in bytes.
    pub fn len(&self, fd: i32) -> u64 {
        self.file(fd, |file| file.len)
    }

    /// fdatasync(2). If it fails, some of what was written since the last one is on the device. The rest will never be, but nobody
    /// is told which, nor that it is missing.
    ///
    /// # Errors
    /// EIO.
    pub fn sync(&self, fd: i32) -> Result<(), Errno> {
        let (before, lens) = self.file(fd, |file| (file.unsynced.len(), file.lens.len()));
        sched::Word::new(0).wait(0, Timeout::Tick(1_000 + self.draw(300_000) as u64));
        let fails = self.happens(|t| t.sync_error);
        self.file(fd, |file| {
            // (another call may have ended meanwhile)
            let before = if fails { file.unsynced.len() } else { before.min(file.unsynced.len()) };
            for (page, ends) in file.unsynced.drain(..before) {
                if !fails || self.draw(2) == 0 {
                    file.device.insert(page, ends);
                }
            }
            if !fails && let Some(len) = file.lens.drain(..lens.min(file.lens.len())).next_back() {
                file.device_len = len;
            }
        });
        if fails { Err(errno::EIO) } else { Ok(()) }
    }

    // ---- as others see them ----

    /// A region has the file from now on, or (`None`) no more.
    ///
    /// # Panics
    /// If a file was written that is not to be changed.
    pub fn hold(&self, fd: i32, access: Option<Access>) {
        assert!(!self.spoilt.get(), "a file that is not to be changed was written");
        self.file(fd, |file| {
            assert!(file.holder.is_none() || access.is_none(), "one region at a time");
            file.holder = access;
        });
    }
    /// The region that has the file.
    pub fn holder(&self, fd: i32) -> Option<Access> {
        self.file(fd, |file| file.holder)
    }
    /// Makes it so long.
    pub fn set_len(&self, fd: i32, len: u64) {
        self.file(fd, |file| {
            let (first, old) = (pages_of(len), pages_of(file.len));
            if len < file.len {
                file.cuts.push(first);
            }
            file.set_len(len);
            for page in first..old {
                file.pages.remove(&page);
                file.note(page);
            }
            if let Some(last) = file.pages.get_mut(&(len / PAGE as u64)) {
                last[len as usize % PAGE..].fill(0);
            }
        });
    }
    /// Somebody writes a page.
    pub fn others_write(&self, fd: i32, page: u64, byte: u8) {
        self.file(fd, |file| file.put(page, &[byte; PAGE]));
    }
    /// Somebody empties pages.
    pub fn punch(&self, fd: i32, pages: std::ops::Range<u64>) {
        self.file(fd, |file| pages.for_each(|page| file.put(page, &[0; PAGE])));
    }
    /// What the page holds for everybody.
    pub fn byte(&self, fd: i32, page: u64) -> u8 {
        self.file(fd, |file| file.pages.get(&page).map_or(0, |page| page[0]))
    }
    /// What the device may have of a page if power fails now, oldest first.
    pub fn may_hold(&self, fd: i32, page: u64) -> Vec<u8> {
        let bytes = |[first, last]: Ends| [last, first].into_iter().skip(usize::from(first == last));
        self.file(fd, |file| file.may_hold(page).flat_map(bytes).collect())
    }
    /// The process ends, or the machine stops, at this moment.
    pub fn crash(&self, seed: u64, machine_stops: bool) {
        let mut rng = Rng::new(seed);
        for file in self.files.borrow_mut().iter_mut() {
            file.holder = None;
            if !machine_stops {
                continue;
            }
            let lens: Vec<u64> = std::iter::once(file.device_len).chain(file.lens.drain(..)).collect();
            let len = rng.pick(&lens);
            let known: BTreeSet<u64> = file.device.keys().copied().chain(file.unsynced.iter().map(|(page, _)| *page)).collect();
            let left = known.into_iter().filter(|page| *page < pages_of(len)).map(|page| {
                let may: Vec<Ends> = file.may_hold(page).collect();
                let torn = [rng.pick(&may)[0], rng.pick(&may)[1]];
                (page, if file.ragged.contains(&page) { [torn[0]; 2] } else { torn })
            });
            let device: BTreeMap<u64, Ends> = left.collect();
            let content = |ends: &Ends| {
                let mut content = Box::new([0; PAGE]);
                (content[0], content[PAGE - 1]) = (ends[0], ends[1]);
                content
            };
            let (pages, ragged) = (device.iter().map(|(page, ends)| (*page, content(ends))).collect(), file.ragged.clone());
            let versions = device.iter().map(|(page, ends)| (*page, vec![ends[0]])).collect();
            *file = File { len, device_len: len, pages, device, versions, ragged, has_ends: true, ..File::default() };
        }
    }
    /// What is left, for another run.
    pub fn take(&self) -> Vec<File> {
        self.files.take()
    }
    /// Whether the device may not get what everybody reads of a page, unless it is written again: an fdatasync has failed, or the
    /// machine had stopped, and the halves of the page are of different times.
    pub fn is_unsure(&self, fd: i32, page: u64) -> bool {
        self.file(fd, |file| {
            let ends = file.ends(page);
            ends[0] != ends[1] || file.may_hold(page).last() != Some(ends)
        })
    }
    /// The first and the last byte of a page, for everybody.
    pub fn ends(&self, fd: i32, page: u64) -> [u8; 2] {
        self.file(fd, |file| file.ends(page))
    }
    /// The number of the page's present version, from 0 on.
    pub fn version(&self, fd: i32, page: u64) -> usize {
        self.file(fd, |file| file.versions.get(&page).map_or(0, |versions| versions.len() - 1))
    }
    /// The first version from `from` on that holds this byte.
    pub fn version_of(&self, fd: i32, page: u64, byte: u8, from: usize) -> Option<usize> {
        self.file(fd, |file| {
            let zero = [0].to_vec();
            let versions = file.versions.get(&page).unwrap_or(&zero);
            (from..versions.len()).find(|i| versions[*i] == byte)
        })
    }
    /// How often the page has come to lie wholly beyond the end; `None` if it does now.
    pub fn cuts(&self, fd: i32, page: u64) -> Option<usize> {
        self.file(fd, |file| (page < pages_of(file.len)).then(|| file.cuts.iter().filter(|first| **first <= page).count()))
    }
    /// How often the page was read.
    pub fn reads(&self, fd: i32, page: u64) -> u32 {
        self.file(fd, |file| file.reads.get(&page).copied().unwrap_or(0))
    }
}

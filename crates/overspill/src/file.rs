//! An open file whose pages a region has.

use crate::error::{Error, os};
use crate::fault;
use crate::forks;
use crate::quiet::Quiet;
use crate::shared::Shared;
use crate::write_back::{FLUSH_STEP, FlushPart};
use overspill_linux::home::{FlushError, Flushed, Flusher, HomeFile};
use overspill_linux::swap_file::DeviceName;
use overspill_linux::sys::{self, Errno};
use overspill_machine::files::Files as _;
use overspill_vm::types::{ObjectId, PAGE_SHIFT, PAGE_SIZE};
use overspill_vm::{Access, Home};
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

/// The pages that regions of this process have: the file, its pages, and whether the region writes to it.
static IN_USE: Mutex<Vec<Use>> = Mutex::new(Vec::new());

/// Calls `f` with [`IN_USE`] while no thread forks: a child finds it unlocked.
fn in_use<R>(f: impl FnOnce(&mut Vec<Use>) -> R) -> R {
    forks::keep_off(|| f(&mut IN_USE.lock().unwrap_or_else(PoisonError::into_inner)))
}

#[derive(Clone, PartialEq, Eq)]
struct Use {
    /// A forked child has none of its parent's regions.
    process: u32,
    file: (u64, u64),
    pages: Range<u64>,
    writes: bool,
}

impl Use {
    fn is_in_the_way_of(&self, other: &Use) -> bool {
        let overlap = self.pages.start < other.pages.end && other.pages.start < self.pages.end;
        self.process == other.process && self.file == other.file && overlap && (self.writes || other.writes)
    }
}

/// The file.
pub struct OpenFile {
    /// Without O_DIRECT.
    rest: File,
    /// The one that was handed over, if `rest` is another: it may hold a lock (flock).
    _given: Option<File>,
    /// With O_DIRECT, if the file system has it.
    direct: Option<File>,
    access: Access,
    path: PathBuf,
    /// Where the first page lies in the file, in bytes: a multiple of the page size.
    start: u64,
    uses: Use,
}

impl OpenFile {
    /// Opens it. `capacity` bytes from `offset` on belong to the region. If it will be emptied, no other region may have any page.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::FileShared`].
    pub fn new(rest: File, path: &Path, access: Access, offset: u64, capacity: usize, empties: bool) -> Result<Self, Error> {
        let fail = |what, source| Error::File { path: path.into(), what, source };
        let meta = rest.metadata().map_err(|e| fail("looked at", e))?;
        let pages = offset >> PAGE_SHIFT..(offset + capacity as u64).div_ceil(PAGE_SIZE as u64);
        let uses = Use { process: std::process::id(), file: (meta.dev(), meta.ino()), pages, writes: access == Access::ReadWrite };
        let changes = if empties { Use { pages: 0..u64::MAX, ..uses.clone() } } else { uses.clone() };
        let free = in_use(|all| {
            let free = !all.iter().any(|other| other.is_in_the_way_of(&changes));
            if free {
                all.push(uses.clone());
            }
            free
        });
        if !free {
            return Err(Error::FileShared { path: path.into() });
        }
        let direct = reopen(&rest, access, libc::O_DIRECT).ok().filter(is_direct);
        let start = offset & !(PAGE_SIZE as u64 - 1);
        let mut file = OpenFile { rest, _given: None, direct, access, path: path.into(), start, uses };
        if access == Access::ReadWrite {
            // Where the kernel caches, an error must come back from the write itself, while the page is still in memory.
            let through = reopen(&file.rest, access, libc::O_DSYNC).map_err(|e| fail("opened again to write through", e))?;
            file._given = Some(std::mem::replace(&mut file.rest, through));
        }
        Ok(file)
    }

    /// Whether its pages may be changed in memory.
    pub fn may_change(&self) -> bool {
        self.access != Access::ReadOnly
    }
    pub fn access(&self) -> Access {
        self.access
    }
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// Whether it is read and written past the kernel's cache.
    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }
    /// Where the first page lies in the file, in bytes.
    pub fn start(&self) -> u64 {
        self.start
    }
    pub fn fail(&self, what: &'static str, e: Errno) -> Error {
        Error::File { path: self.path.clone(), what, source: os(e) }
    }
    /// Its length, in bytes.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn len(&self) -> Result<u64, Error> {
        let stat = sys::file_stat(self.rest.as_raw_fd()).map_err(|e| self.fail("looked at", e))?;
        Ok(stat.st_size as u64)
    }
    /// Makes it so long, in bytes.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn set_len(&self, len: u64) -> Result<(), Error> {
        self.rest.set_len(len).map_err(|source| Error::File { path: self.path.clone(), what: "made longer", source })
    }
    /// Reads bytes at `offset`, not through the region.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn read_exact(&self, bytes: &mut [u8], offset: u64) -> Result<(), Error> {
        let read = self.rest.read_exact_at(bytes, offset);
        read.map_err(|source| Error::File { path: self.path.clone(), what: "read", source })
    }
    /// Gives the file's blocks of a range back; it reads as zeroes. Returns `false` if the file system cannot do that.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn punch(&self, offset: u64, bytes: u64) -> Result<bool, Error> {
        match overspill_linux::swap_file::SwapFiles::punch(self.rest.as_raw_fd(), offset, bytes) {
            Ok(()) => Ok(true),
            Err(libc::EOPNOTSUPP) => Ok(false),
            Err(e) => Err(self.fail("emptied", e)),
        }
    }

    /// As the core sees it.
    pub fn home(&self) -> Home {
        let len = self.len().unwrap_or(0);
        Home { access: self.access, offset: self.start, pages: len.saturating_sub(self.start).div_ceil(PAGE_SIZE as u64) }
    }
    /// As the machine sees it.
    pub fn as_home(&self) -> HomeFile {
        let mut name = Box::new(DeviceName::new());
        name.set(self.path.as_os_str().as_bytes());
        let fd = self.direct.as_ref().unwrap_or(&self.rest).as_raw_fd();
        let (rest, direct) = (self.rest.as_raw_fd(), self.is_direct());
        HomeFile { access: self.access, fd, rest, direct, name, retry_at: AtomicU64::new(0) }
    }

    /// For write-back: writes changed pages, as far as that succeeds. A page that was not written stays changed.
    pub fn flush_part(self: &Arc<Self>, shared: &Arc<Shared>, object: ObjectId) -> FlushPart {
        let (file, shared) = (self.clone(), shared.clone());
        Arc::new(move |pages| {
            let mut flushed = Flushed::default();
            if let Ok(mut with) = shared.flusher() {
                file.flush_step(&shared, &mut with, object, pages, &mut flushed);
            }
            flushed.pages
        })
    }

    /// Writes the changed pages of a range, at most [`FLUSH_STEP`].
    fn flush_step(&self, shared: &Shared, with: &mut Flusher, object: ObjectId, pages: Range<u64>, flushed: &mut Flushed) {
        let _quiet = Quiet::new();
        with.flush(&shared.machine, object, pages, flushed, |seen| wait(shared, seen));
    }

    /// Writes the changed pages of a range of the object, which has `all` pages. `sync`: and waits until the device has them.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::FileEnds`]; [`Error::Resources`].
    pub fn flush(&self, shared: &Shared, object: ObjectId, pages: Range<u64>, all: u64, sync: bool) -> Result<(), Error> {
        let mut with = shared.flusher().map_err(|e| Error::Resources(os(e)))?;
        self.flush_with(shared, &mut with, object, pages, all, sync)
    }

    fn flush_with(
        &self,
        shared: &Shared,
        with: &mut Flusher,
        object: ObjectId,
        pages: Range<u64>,
        all: u64,
        sync: bool,
    ) -> Result<(), Error> {
        let machine = &shared.machine;
        let mut flushed = Flushed::default();
        if sync {
            let _quiet = Quiet::new();
            machine.begin_sync(object, |seen| wait(shared, seen));
        }
        let mut at = pages.start;
        while at < pages.end {
            let end = pages.end.min(at + FLUSH_STEP);
            self.flush_step(shared, with, object, at..end, &mut flushed);
            at = end;
        }
        if sync {
            let _quiet = Quiet::new();
            flushed.synced(machine.sync_home(object, all));
        }
        match flushed.error {
            Some(FlushError::Io(e)) => Err(self.fail("written", e)),
            Some(FlushError::Sync(e)) => Err(self.fail("written to its device", e)),
            Some(FlushError::Beyond) => Err(Error::FileEnds { path: self.path.clone(), len: self.len()?, needed: None }),
            None => Ok(()),
        }
    }

    /// At the end of a region: what was changed goes to the file. An error is lost; whoever wants it flushes before.
    pub fn flush_at_the_end(&self, shared: &Shared, object: ObjectId, pages: u64) {
        if self.access == Access::ReadWrite {
            let _ = self.flush(shared, object, 0..pages, pages, false);
        }
    }

    /// Waits until no page of the range is being written. => all were given up
    pub fn settle_pages(&self, shared: &Shared, object: ObjectId, pages: Range<u64>) {
        wait_until(shared, || !shared.machine.core.lock().vm.is_writing(object, pages.clone()));
    }

    /// Waits until no page of the object is known and no transfer of the file is under way. => all pages were given up
    pub fn settle(&self, shared: &Shared, object: ObjectId, pages: u64) {
        wait_until(shared, || shared.machine.is_home_gone(object, pages));
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        in_use(|all| {
            if let Some(at) = all.iter().position(|other| *other == self.uses) {
                all.swap_remove(at);
            }
        });
    }
}

/// Waits for transfers to end, until it `is_so`.
fn wait_until(shared: &Shared, mut is_so: impl FnMut() -> bool) {
    loop {
        let _quiet = Quiet::new();
        let seen = shared.machine.arrivals.count();
        if is_so() {
            return;
        }
        wait(shared, seen);
    }
}

/// Waits a moment for a page that is being moved or written.
fn wait(shared: &Shared, seen: u32) {
    match shared.manual {
        Some(_) => fault::settle_daemon(shared),
        None => {
            shared.machine.ring_daemon();
            shared.machine.arrivals.wait(seen);
        }
    }
}

/// Whether it is open for reading and writing.
pub fn is_writable(file: &File) -> bool {
    sys::open_flags(file.as_raw_fd()).is_ok_and(|flags| flags & libc::O_ACCMODE == libc::O_RDWR)
}

/// Opens the same file again with these flags, by way of /proc.
fn reopen(file: &File, access: Access, flags: i32) -> io::Result<File> {
    let same = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().read(true).write(access == Access::ReadWrite).custom_flags(flags).open(same)
}

/// Whether pages can be read with O_DIRECT. (Some file systems accept the flag and refuse the reads.)
fn is_direct(file: &File) -> bool {
    #[repr(align(4096))]
    struct Page([u8; PAGE_SIZE]);
    let mut page = Box::new(Page([0; PAGE_SIZE]));
    file.read_at(&mut page.0, 0).is_ok()
}

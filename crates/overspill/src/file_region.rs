//! Regions of files.

use crate::error::Error;
use crate::file::{self, OpenFile};
use crate::pager::Pager;
use crate::region::{self, Region, Wired};
use overspill_vm::Access;
use overspill_vm::counters::Counters;
use overspill_vm::types::PAGE_SIZE;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::{Range, RangeBounds};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Pages that are copied at a time.
const COPY_PAGES: usize = 64;

/// A copy of a piece of a page.
struct Page([u8; PAGE_SIZE]);

/// How a file is opened as a region; see [`FileRegion`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileOptions {
    access: Access,
    offset: u64,
    len: Option<usize>,
    capacity: usize,
    create: bool,
    truncate: bool,
    policy: Option<String>,
}

impl FileOptions {
    /// The whole file, with this access.
    pub fn new(access: Access) -> Self {
        FileOptions { access, offset: 0, len: None, capacity: 0, create: false, truncate: false, policy: None }
    }
    /// Where the region begins in the file, in bytes. Any number; the default is 0.
    #[must_use]
    pub fn offset(self, bytes: u64) -> Self {
        FileOptions { offset: bytes, ..self }
    }
    /// How long the region is, in bytes. The default is up to the end of the file. A read-write region makes a file that is
    /// shorter longer, with zeroes; for others that is an error.
    #[must_use]
    pub fn len(self, bytes: usize) -> Self {
        FileOptions { len: Some(bytes), ..self }
    }
    /// How long the region may become by [`FileRegion::grow`], in bytes. It takes address space at once, and nothing else. The
    /// default is the length at the beginning.
    #[must_use]
    pub fn capacity(self, bytes: usize) -> Self {
        FileOptions { capacity: bytes, ..self }
    }
    /// Makes the file if there is none. Needs a length, and [`Access::ReadWrite`].
    #[must_use]
    pub fn create(self, create: bool) -> Self {
        FileOptions { create, ..self }
    }
    /// Makes the file empty first, if the region can be made. Needs a length, and [`Access::ReadWrite`].
    #[must_use]
    pub fn truncate(self, truncate: bool) -> Self {
        FileOptions { truncate, ..self }
    }

    /// A replacement policy for this region alone; see [`Region::set_policy`]. The default is the pager's, which all regions share.
    ///
    /// ```
    /// # use overspill::{Access, FileOptions, Pager};
    /// # fn main() -> Result<(), overspill::Error> {
    /// # let pager = Pager::builder().memory(8 << 20).build()?;
    /// let log = FileOptions::new(Access::ReadOnly).policy("drop-behind").open(&pager, "/proc/self/exe")?; // it is read once
    /// assert_eq!((log.policy(), pager.policy()), ("drop-behind".into(), "use-once".into()));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn policy(self, policy: impl Into<String>) -> Self {
        FileOptions { policy: Some(policy.into()), ..self }
    }

    /// Opens `path` as a region of `pager`.
    ///
    /// # Errors
    /// As [`Pager::open_file`].
    pub fn open(self, pager: &Pager, path: impl AsRef<Path>) -> Result<FileRegion, Error> {
        let path = path.as_ref();
        let writes = self.access == Access::ReadWrite;
        let mut how = OpenOptions::new();
        how.read(true).write(writes);
        let mut made = false;
        let opened = how.open(path).or_else(|error| {
            made = writes && self.create && error.kind() == io::ErrorKind::NotFound;
            if made { how.create_new(true).open(path) } else { Err(error) }
        });
        let file = opened.map_err(|source| Error::File { path: path.into(), what: "opened", source })?;
        let region = self.open_as(pager, file, path);
        if made && region.is_err() {
            let _ = std::fs::remove_file(path); // nothing has changed
        }
        region
    }

    /// As [`FileOptions::open`], of a file that is open for this access already. `path` is for messages.
    ///
    /// # Errors
    /// As [`Pager::open_file`].
    pub fn open_as(self, pager: &Pager, file: File, path: impl AsRef<Path>) -> Result<FileRegion, Error> {
        let shared = pager.0.here()?;
        let policy = self.policy.as_deref().map(str::parse).transpose().map_err(Error::Policy)?;
        let path = path.as_ref();
        let meta = file.metadata().map_err(|source| Error::File { path: path.into(), what: "looked at", source })?;
        if !meta.is_file() {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file");
            return Err(Error::File { path: path.into(), what: "paged", source });
        }
        if self.access == Access::ReadWrite && !file::is_writable(&file) {
            return Err(Error::Access { path: path.into(), access: Access::ReadOnly });
        }
        let old = if self.truncate { 0 } else { meta.len() };
        let len = self.len.unwrap_or(usize::try_from(old.saturating_sub(self.offset)).unwrap_or(usize::MAX));
        let skip = (self.offset % PAGE_SIZE as u64) as usize;
        let capacity = self.capacity.max(len);
        let too_long = || Error::RegionSize { bytes: capacity, available: pager.pages_left() << 12 };
        let bytes = capacity.checked_add(skip).ok_or_else(too_long)?;
        let needed = self.offset.checked_add(len as u64).ok_or_else(too_long)?;
        if len == 0 && self.len.is_none() && self.offset > 0 {
            return Err(Error::FileEnds { path: path.into(), len: old, needed: Some(self.offset.saturating_add(1)) });
        }
        if len == 0 || self.offset.checked_add(capacity as u64).is_none_or(|end| end > i64::MAX as u64) {
            return Err(if len == 0 { Error::RegionSize { bytes: 0, available: 0 } } else { too_long() });
        }
        let open = OpenFile::new(file, path, self.access, self.offset, capacity, self.truncate)?;
        if self.truncate && self.access != Access::ReadWrite {
            return Err(Error::Access { path: path.into(), access: self.access });
        }
        if open.len()? < needed && self.access != Access::ReadWrite {
            return Err(Error::FileEnds { path: path.into(), len: meta.len(), needed: Some(needed) });
        }
        let region = Region::new(pager.clone(), bytes, Some(Arc::new(open)))?;
        shared.note_file();
        if let Some(spec) = &policy {
            region.set_spec(spec)?;
        }
        // The file last: what is refused leaves it as it was.
        let region = FileRegion { region, skip, len, capacity, written: AtomicU64::new(0) };
        if region.file().len()? < needed {
            region.file().set_len(needed)?; // what cannot be so long is not emptied
        }
        if self.truncate {
            region.file().set_len(0)?;
            region.file().set_len(needed)?;
        }
        region.look_at_length();
        Ok(region)
    }
}

/// A file, or a part of one, as a range of memory. Its pages are read from the file when they are touched, and share the pager's
/// budget, policy and readahead with all other regions. From [`Pager::open_file`].
///
/// ```
/// use overspill::{Access, Pager};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = std::env::temp_dir().join(format!("overspill-doc-{}", std::process::id()));
/// # std::fs::write(&path, [0; 100_000])?;
/// let pager = Pager::builder().memory(8 << 20).build()?;
/// let mut table = pager.open_file(&path, Access::ReadWrite)?;
/// table.write_at(b"some bytes", 50_000)?;
/// table.flush(..)?; // the device has them now
/// let mut bytes = [0; 4];
/// table.read_at(&mut bytes, 50_005)?;
/// assert_eq!(&bytes, b"byte");
/// # drop(table);
/// # assert_eq!(&std::fs::read(&path)?[50_000..50_010], b"some bytes");
/// # std::fs::remove_file(&path)?;
/// # Ok(())
/// # }
/// ```
///
/// # Bytes that others may change
///
/// The pager keeps a page in memory until it evicts it, and then reads it again from the file. So if somebody else writes to the
/// file, or makes it shorter, a byte of the region may change from one look to the next. [`FileRegion::read_at`] and
/// [`FileRegion::write_at`] copy, and are always safe. To use the memory itself as a slice is `unsafe`:
/// see [`FileRegion::as_slice`].
///
/// # What reaches the file, and when
///
/// ```text
///                        changes are written                              the file has them for certain
///   read-only            there are none: memory that was changed all      -
///                        the same is not written, and its change is lost
///   read-write           when their page is evicted, after a while,       when flush has returned
///                        by flush, and when the region is dropped
///   copy-on-write        never; they go to swap                           -
/// ```
///
/// If the process ends without dropping the region (it is killed, or calls `exit`), changes since the last flush or write-back are
/// lost; the file has some pages of before and some of after. If the machine stops, that holds for everything since the last flush.
/// A page is written as a whole, but is not written atomically.
///
/// If a write fails, the page stays in memory and counts as changed, and [`FileRegion::flush`] returns the error.
///
/// # Others who have the file
///
/// - Another region of this process may not have the same pages if one of the two is read-write ([`Error::FileShared`]).
/// - Others see what has been written. What others write is seen when its page is read the next time
///   ([`FileRegion::reload`] has it read again). If both change bytes of the same page, the last who writes the page wins, for all
///   of its bytes. A copy-on-write page that was changed, and changed back to what the file had, counts as unchanged.
/// - If somebody makes the file shorter, pages in memory stay until they are evicted; a touch of a page beyond the end raises
///   SIGBUS, as with mmap(2), and copies return [`Error::Lost`]. Changes there are lost ([`Error::FileEnds`] from a flush).
///   The page with which the file ends is filled up with zeroes.
pub struct FileRegion {
    region: Region,
    /// Bytes of the first page before the region.
    skip: usize,
    len: usize,
    capacity: usize,
    /// Bytes that [`FileRegion::write_at`] has written since it last flushed.
    written: AtomicU64,
}

impl FileRegion {
    fn file(&self) -> &OpenFile {
        self.region.home().expect("a region of a file")
    }

    /// Gives the region a replacement policy of its own, or changes that; see [`Region::set_policy`].
    ///
    /// # Errors
    /// As [`Region::set_policy`].
    pub fn set_policy(&self, policy: &str) -> Result<(), Error> {
        self.region.set_policy(policy)
    }

    /// The region has the pager's policy from now on; see [`Region::reset_policy`].
    ///
    /// # Errors
    /// As [`Region::reset_policy`].
    pub fn reset_policy(&self) -> Result<(), Error> {
        self.region.reset_policy()
    }

    /// The replacement policy of the region: its own, or else the pager's.
    ///
    /// # Panics
    /// In a forked child.
    pub fn policy(&self) -> String {
        self.region.policy()
    }

    /// Its length, in bytes.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Never: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }
    /// How long it may become, in bytes.
    pub fn capacity(&self) -> usize {
        self.capacity
    }
    /// What it was opened for.
    pub fn access(&self) -> Access {
        self.file().access()
    }
    /// The name that it was opened by.
    pub fn path(&self) -> &Path {
        self.file().path()
    }
    /// Whether the file is read and written past the kernel's cache (O_DIRECT). If not, the kernel is told to drop what it caches.
    pub fn is_direct(&self) -> bool {
        self.file().is_direct()
    }
    /// The pager it belongs to.
    pub fn pager(&self) -> &Pager {
        self.region.pager()
    }
    /// The counters of its pager, for all of the pager's regions.
    pub fn counters(&self) -> &Counters {
        self.region.counters()
    }

    /// Where it begins. Aligned to a page if its offset in the file is.
    pub fn as_ptr(&self) -> *const u8 {
        self.region.as_ptr().wrapping_add(self.skip)
    }
    /// Where it begins, to write to.
    ///
    /// # Errors
    /// [`Error::Access`] if it is read-only.
    pub fn as_mut_ptr(&mut self) -> Result<*mut u8, Error> {
        self.may_write()?;
        Ok(self.region.as_mut_ptr().wrapping_add(self.skip))
    }
    /// The region as a slice.
    ///
    /// # Safety
    /// As long as the slice is used, nobody writes to that part of the file or makes the file shorter: no other process, no other
    /// region, no write(2). (Rust may assume that bytes behind `&[u8]` do not change.)
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: readable memory of this region, which is borrowed; that its content stays is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }
    /// The region as a mutable slice.
    ///
    /// # Safety
    /// As [`FileRegion::as_slice`].
    ///
    /// # Errors
    /// [`Error::Access`] if it is read-only.
    pub unsafe fn as_mut_slice(&mut self) -> Result<&mut [u8], Error> {
        let start = self.as_mut_ptr()?;
        // SAFETY: writable memory of this region, which is borrowed exclusively; the rest is the caller's promise.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, self.len) })
    }

    fn may_write(&self) -> Result<(), Error> {
        match self.access() {
            Access::ReadOnly => Err(Error::Access { path: self.path().into(), access: Access::ReadOnly }),
            Access::ReadWrite | Access::CopyOnWrite => Ok(()),
        }
    }

    fn bounds(&self, range: impl RangeBounds<usize>) -> Range<usize> {
        let range = region::bounds(range, self.len);
        range.start + self.skip..range.end + self.skip
    }

    // ---- bytes ----

    /// Copies bytes of the region, from `at` on.
    ///
    /// # Errors
    /// [`Error::Lost`] if a page could not be read, or the file ends before it; [`Error::Forked`].
    ///
    /// # Panics
    /// If the range is not within the region.
    pub fn read_at(&self, bytes: &mut [u8], at: usize) -> Result<(), Error> {
        // SAFETY: the bytes are borrowed exclusively. No safe code writes to the region meanwhile: that takes `&mut self`.
        unsafe { self.read_at_shared(bytes.as_mut_ptr(), bytes.len(), at) }
    }

    /// As [`FileRegion::read_at`], to `len` bytes at `to`, for those who use the memory through pointers.
    ///
    /// # Errors
    /// As [`FileRegion::read_at`].
    ///
    /// # Panics
    /// If the range is not within the region.
    ///
    /// # Safety
    /// `to` is valid for writes of `len` bytes, which do not overlap the range. No other thread writes to the range until this has
    /// returned.
    pub unsafe fn read_at_shared(&self, to: *mut u8, len: usize, at: usize) -> Result<(), Error> {
        let range = self.bounds(at..at.saturating_add(len));
        self.region.pager().0.here()?;
        let start = self.region.as_ptr();
        let here = |page: &mut Page, from, len, done| {
            let whole = self.region.if_mapped(from / PAGE_SIZE, || {
                // SAFETY: the piece lies in one page of the region, which is mapped, and `page` is as long.
                unsafe { std::ptr::copy_nonoverlapping(start.add(from), page.0.as_mut_ptr(), len) }
            });
            if whole {
                // SAFETY: the caller's promise: `done + len` is at most the length at `to`.
                unsafe { std::ptr::copy_nonoverlapping(page.0.as_ptr(), to.add(done), len) };
            }
            whole
        };
        self.copy(range, here, |from, len, done| {
            // SAFETY: the piece lies in the region and is wired: the copy causes no fault of it. `done + len` is at most the length
            // at `to`. Nobody writes to the piece, as the caller promises.
            unsafe { std::ptr::copy_nonoverlapping(start.add(from), to.add(done), len) };
        })
    }

    /// Copies bytes into the region, from `at` on.
    ///
    /// # Errors
    /// As [`FileRegion::read_at`], and [`Error::Access`] if it is read-only.
    ///
    /// # Panics
    /// If the range is not within the region.
    pub fn write_at(&mut self, bytes: &[u8], at: usize) -> Result<(), Error> {
        // SAFETY: the region is borrowed exclusively, and the bytes are borrowed.
        unsafe { self.write_at_shared(bytes.as_ptr(), bytes.len(), at) }
    }

    /// As [`FileRegion::write_at`], of `len` bytes at `from`, for those who use the memory through pointers: other threads may use
    /// the rest of the region meanwhile.
    ///
    /// # Errors
    /// As [`FileRegion::write_at`].
    ///
    /// # Panics
    /// If the range is not within the region.
    ///
    /// # Safety
    /// `from` is valid for reads of `len` bytes, which do not overlap the range and which nobody changes meanwhile. There is no
    /// reference to bytes of the range, and no other thread uses the range until this has returned.
    pub unsafe fn write_at_shared(&self, from: *const u8, len: usize, at: usize) -> Result<(), Error> {
        self.may_write()?;
        let range = self.bounds(at..at.saturating_add(len));
        self.region.pager().0.here()?;
        // SAFETY: the caller's promise.
        unsafe { self.write(from, range) }
    }

    /// The same for a range of the region's pages, which may reach beyond its bytes.
    ///
    /// # Safety
    /// As [`FileRegion::write_at_shared`].
    unsafe fn write(&self, from: *const u8, range: Range<usize>) -> Result<(), Error> {
        let start = self.region.as_ptr().cast_mut();
        let here = |page: &mut Page, to, len, done| {
            // SAFETY: the caller's promise: `done + len` is at most the length at `from`; `page` is as long as the piece.
            unsafe { std::ptr::copy_nonoverlapping(from.add(done), page.0.as_mut_ptr(), len) };
            self.region.if_mapped(to / PAGE_SIZE, || {
                // SAFETY: the piece lies in one page of the region, which is mapped; nobody else uses it, as the caller promises;
                // `page` is as long.
                unsafe { std::ptr::copy_nonoverlapping(page.0.as_ptr(), start.add(to), len) }
            })
        };
        self.copy(range.clone(), here, |to, len, done| {
            // SAFETY: the piece lies in the region and is wired; nobody else uses it, and `from` has it, as the caller promises.
            unsafe { std::ptr::copy_nonoverlapping(from.add(done), start.add(to), len) };
        })?;
        let written = self.written.fetch_add(range.len() as u64, Relaxed) + range.len() as u64;
        let most = self.region.pager().0.shared.write_back.pages_max * PAGE_SIZE as u64;
        if written >= most && self.access() == Access::ReadWrite {
            self.written.store(0, Relaxed);
            let _ = self.flush_pages(&(0..self.region.len()), false); // what is not written stays changed, and the next flush tells
        }
        Ok(())
    }

    /// Copies the range in pieces, each given as (position, bytes, bytes done before). `here` copies a piece of one page, if that
    /// is mapped. If not, some pages are wired and `copy` copies from there.
    ///
    /// (The way through `Page` is for buffers that lie in paged memory themselves, and would fault with the core locked.)
    fn copy(
        &self,
        range: Range<usize>,
        mut here: impl FnMut(&mut Page, usize, usize, usize) -> bool,
        mut copy: impl FnMut(usize, usize, usize),
    ) -> Result<(), Error> {
        let mut page = Page([0; PAGE_SIZE]);
        let mut at = range.start;
        while at < range.end {
            let end = ((at / PAGE_SIZE + 1) * PAGE_SIZE).min(range.end);
            if here(&mut page, at, end - at, at - range.start) {
                at = end;
                continue;
            }
            let end = ((at / PAGE_SIZE + COPY_PAGES) * PAGE_SIZE).min(range.end);
            let (id, end) = self.region.wire_for_a_moment(&(at..end))?;
            copy(at, end - at, at - range.start);
            self.region.unwire_id(id);
            at = end;
        }
        Ok(())
    }

    // ---- the file ----

    /// Writes the changed pages of a range to the file, and returns when the device has them (fdatasync).
    ///
    /// Looks at every page of the range that is in memory, which takes some 0.5 us per page. Pages that the program changes
    /// meanwhile may be written with or without that change.
    ///
    /// # Errors
    /// [`Error::File`] if a write failed, or the device did: then all pages in memory that may not have arrived count as changed,
    /// and the next flush writes them again. (What was evicted since the last flush may be lost.) [`Error::FileEnds`] if changed
    /// pages lie beyond the end of the file. [`Error::Access`], [`Error::Resources`], [`Error::Forked`].
    ///
    /// # Panics
    /// If the range is not within the region.
    pub fn flush(&self, range: impl RangeBounds<usize>) -> Result<(), Error> {
        let range = self.bounds(range);
        self.flush_pages(&range, true)
    }

    fn flush_pages(&self, range: &Range<usize>, sync: bool) -> Result<(), Error> {
        let shared = self.region.pager().0.here()?;
        if self.access() != Access::ReadWrite {
            return Err(Error::Access { path: self.path().into(), access: self.access() });
        }
        let pages = region::pages(range);
        let all = self.region.pages() as u64;
        self.file().flush(shared, self.region.object(), pages.start as u64..pages.end as u64, all, sync)
    }

    /// Makes the region `len` bytes long, at most [`FileRegion::capacity`]. A read-write region makes the file longer if it is
    /// shorter, with zeroes; for others the file must have become longer by itself.
    ///
    /// # Errors
    /// [`Error::CannotGrow`] if that is shorter than it is, or longer than the capacity; [`Error::FileEnds`], [`Error::File`],
    /// [`Error::IsWired`], [`Error::Forked`].
    pub fn grow(&mut self, len: usize) -> Result<(), Error> {
        self.region.pager().0.here()?;
        if len < self.len || len > self.capacity {
            return Err(Error::CannotGrow { bytes: len, len: self.len, capacity: self.capacity });
        }
        let start = self.file().start();
        let needed = start + (self.skip + len) as u64;
        let had = self.file().len()?;
        // The page with the old end was filled up with zeroes: if others have made the file longer, it has something else there.
        // One that may go to the file is put right as a whole: it is written as far as the file reaches.
        let end = self.skip + self.len;
        let page_end = end.next_multiple_of(PAGE_SIZE);
        let until = if self.access() == Access::ReadWrite { page_end } else { page_end.min(self.skip + len) };
        let theirs = end..until.min(had.saturating_sub(start) as usize);
        let mut bytes = vec![0; if self.access() == Access::ReadOnly { 0 } else { theirs.len() }];
        self.file().read_exact(&mut bytes, start + end as u64)?;
        if had < needed {
            if self.access() != Access::ReadWrite {
                return Err(Error::FileEnds { path: self.path().into(), len: had, needed: Some(needed) });
            }
            self.file().set_len(needed)?;
            if had < start + end as u64 {
                // others had cut it: it has zeroes there now, whatever it had
                let cut = had.saturating_sub(start) / PAGE_SIZE as u64..end.div_ceil(PAGE_SIZE) as u64;
                let _quiet = crate::quiet::Quiet::new();
                self.region.pager().0.shared.machine.forget_bases(self.region.object(), cut);
            }
        }
        // pages that were found to lie beyond the end
        let first = if self.access() == Access::ReadOnly { end / PAGE_SIZE } else { end.div_ceil(PAGE_SIZE) };
        let last = (self.skip + len).div_ceil(PAGE_SIZE);
        if first < last {
            self.give_up(first..last)?;
        }
        let old = core::mem::replace(&mut self.len, len);
        self.look_at_length();
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the region is borrowed exclusively, and the bytes are as long as the range, which lies in one of its pages.
        unsafe { self.write(bytes.as_ptr(), theirs) }.inspect_err(|_| self.len = old)
    }

    /// Ends the region, and returns the error that its drop would lose: a read-write region is flushed first. After an error what
    /// was not written is lost; to try again, call [`FileRegion::flush`] before.
    ///
    /// # Errors
    /// As [`FileRegion::flush`].
    pub fn close(self) -> Result<(), Error> {
        match self.access() {
            Access::ReadWrite => self.flush(..),
            Access::ReadOnly | Access::CopyOnWrite => self.region.pager().0.here().map(|_| ()),
        }
    }

    /// Has the range read again from the file. What others have written there is seen. A copy-on-write region forgets its changes
    /// in the range; a read-write region writes its own first. Pages that could not be read are tried again.
    ///
    /// # Errors
    /// As [`FileRegion::flush`]; [`Error::IsWired`], [`Error::Forked`].
    ///
    /// # Panics
    /// If the range is not within the region.
    pub fn reload(&mut self, range: impl RangeBounds<usize>) -> Result<(), Error> {
        self.region.pager().0.here()?;
        let range = self.bounds(range);
        if range.is_empty() {
            return Ok(());
        }
        let mut pages = region::pages(&range);
        match self.access() {
            Access::ReadOnly => {}
            Access::ReadWrite => self.flush_pages(&range, false)?,
            Access::CopyOnWrite => {
                // other bytes of the first and the last page may be changed and stay so
                let whole = range.start.div_ceil(PAGE_SIZE)..range.end / PAGE_SIZE;
                let ends = if range.end == self.skip + self.len { pages.end } else { whole.end };
                let starts = if range.start == self.skip { 0 } else { whole.start };
                pages = starts..ends.max(starts);
                let first = range.start..(pages.start * PAGE_SIZE).clamp(range.start, range.end);
                let last = (pages.end * PAGE_SIZE).max(first.end)..range.end;
                for piece in [first, last].into_iter().filter(|piece| !piece.is_empty()) {
                    let mut bytes = vec![0; piece.len()];
                    self.file().read_exact(&mut bytes, self.file().start() + piece.start as u64)?;
                    self.write_at(&bytes, piece.start - self.skip)?;
                }
            }
        }
        if !pages.is_empty() {
            self.give_up(pages)?;
        }
        self.look_at_length();
        Ok(())
    }

    /// Empties a range of a read-write region and gives its space in the file back: it reads as zeroes, here and in the file. If
    /// the space cannot be given back, it reads as zeroes here, and in the file after the next flush.
    ///
    /// # Errors
    /// [`Error::Access`], [`Error::File`], [`Error::IsWired`], [`Error::Lost`], [`Error::Forked`].
    ///
    /// # Panics
    /// If the range is not within the region.
    pub fn punch(&mut self, range: impl RangeBounds<usize>) -> Result<(), Error> {
        self.region.pager().0.here()?;
        if self.access() != Access::ReadWrite {
            return Err(Error::Access { path: self.path().into(), access: self.access() });
        }
        let range = self.bounds(range);
        let whole = range.start.div_ceil(PAGE_SIZE)..range.end / PAGE_SIZE;
        if whole.start >= whole.end {
            return self.clear(range);
        }
        if self.region.has_wired(&whole) {
            return Err(Error::IsWired);
        }
        self.clear(range.start..whole.start * PAGE_SIZE)?;
        self.clear(whole.end * PAGE_SIZE..range.end)?;
        self.give_up(whole.clone())?;
        let (object, pages) = (self.region.object(), whole.start as u64..whole.end as u64);
        self.file().settle_pages(&self.region.pager().0.shared, object, pages); // writes under way would bring their content back
        let bytes = (whole.len() * PAGE_SIZE) as u64;
        let punched = self.file().punch(self.file().start() + (whole.start * PAGE_SIZE) as u64, bytes);
        if let Ok(true) = punched {
            return self.give_up(whole); // what was read ahead meanwhile
        }
        // The changes are gone by now, so it must not read as what the file had before them.
        self.clear(whole.start * PAGE_SIZE..whole.end * PAGE_SIZE)?;
        punched.map(drop)
    }

    /// Writes zeroes.
    fn clear(&mut self, range: Range<usize>) -> Result<(), Error> {
        let zeroes = [0; PAGE_SIZE];
        let mut at = range.start;
        while at < range.end {
            let n = (range.end - at).min(PAGE_SIZE);
            self.write_at(&zeroes[..n], at - self.skip)?;
            at += n;
        }
        Ok(())
    }

    fn give_up(&mut self, pages: Range<usize>) -> Result<(), Error> {
        if self.region.has_wired(&pages) {
            return Err(Error::IsWired);
        }
        // SAFETY: the region is borrowed exclusively: nobody else uses it.
        unsafe { self.region.give_up_pages(pages) }
    }

    /// Takes note of the file's length, up to which is read ahead.
    fn look_at_length(&self) {
        let home = self.file().home();
        let machine = &self.region.pager().0.shared.machine;
        let _quiet = crate::quiet::Quiet::new();
        machine.core.lock().vm.set_home_pages(self.region.object(), home.pages);
    }

    /// Reads pages of the range in the background; see [`Region::prefetch`].
    ///
    /// # Panics
    /// If the range is not within the region, or this is a forked child.
    pub fn prefetch(&self, range: impl RangeBounds<usize>) {
        let range = self.bounds(range);
        self.region.prefetch(range);
    }

    /// Brings the range's pages in and keeps them in memory until [`FileRegion::unwire`], for system calls on the memory itself.
    ///
    /// # Errors
    /// As [`Region::wire`].
    ///
    /// # Panics
    /// If the range is not within the region.
    pub fn wire(&self, range: impl RangeBounds<usize>) -> Result<(), Error> {
        let range = self.bounds(range);
        self.region.wire(range).map(|wired| wired.keep())
    }

    /// As [`FileRegion::wire`], until the guard is dropped. Pages that are held several times stay until the last guard is dropped.
    ///
    /// # Errors
    /// As [`Region::wire`].
    ///
    /// # Panics
    /// If the range is not within the region.
    pub fn hold(&self, range: impl RangeBounds<usize>) -> Result<Held<'_>, Error> {
        let range = self.bounds(range);
        self.region.wire(range).map(Held)
    }

    /// Ends what [`FileRegion::wire`] began, for pages that lie wholly within the range.
    ///
    /// # Panics
    /// If the range is not within the region, or this is a forked child.
    pub fn unwire(&self, range: impl RangeBounds<usize>) {
        let range = self.bounds(range);
        // the parts of the first and last page that lie outside of the region belong to it
        let start = if range.start == self.skip { 0 } else { range.start };
        let end = if range.end == self.skip + self.len { self.region.len() } else { range.end };
        self.region.unwire(start..end);
    }

    /// Ends what [`Held::keep_as`] began; see [`Region::unwire_kept`].
    ///
    /// # Panics
    /// In a forked child.
    pub fn unwire_kept(&self, id: u64) -> bool {
        self.region.unwire_kept(id)
    }
}

/// Pages of a file that stay in memory until this is dropped. From [`FileRegion::hold`].
#[derive(Debug)]
pub struct Held<'a>(Wired<'a>); // private: it must not be used as bytes

impl Held<'_> {
    /// As [`Wired::keep_as`], with a number for [`FileRegion::unwire_kept`].
    ///
    /// # Panics
    /// In a forked child.
    pub fn keep_as(self) -> u64 {
        self.0.keep_as()
    }
}

impl fmt::Debug for FileRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileRegion({}, {:?}, {} bytes)", self.path().display(), self.access(), self.len)
    }
}

impl Pager {
    /// A whole file as a region. [`FileOptions`] has more to choose.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::FileShared`], [`Error::RegionSize`], [`Error::TooManyRegions`], [`Error::Map`],
    /// [`Error::Resources`], [`Error::Forked`]; with [`FileOptions::policy`] [`Error::Policy`], [`Error::TooManyPolicies`].
    pub fn open_file(&self, path: impl AsRef<Path>, access: Access) -> Result<FileRegion, Error> {
        FileOptions::new(access).open(self, path)
    }
}

//! Regions: ranges of addresses whose pages come and go.

mod numbers;
mod wired;

pub use numbers::{Pod, RegionOf};
use wired::Wires;
pub use wired::{Wired, WiredMut};

use crate::error::Error;
use crate::file::OpenFile;
use crate::forks;
use crate::pager::Pager;
use crate::quiet::Quiet;
use overspill_linux::area;
use overspill_linux::machine::{Delivery, Machine};
use overspill_linux::ranges::{Flags, Kind, Range as AddressRange};
use overspill_linux::sys;
use overspill_vm::Access;
use overspill_vm::counters::Counters;
use overspill_vm::page::State;
use overspill_vm::policy::Spec;
use overspill_vm::types::{ObjectId, PAGE_SHIFT, PAGE_SIZE, PageId, Tag};
use std::fmt;
use std::io;
use std::ops::{Bound, Deref, DerefMut, Range, RangeBounds};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

/// Advice about a range; see [`Region::advise`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Advice {
    /// It will be needed soon: as [`Region::prefetch`].
    WillNeed,
    /// Its content is not needed any more: as [`Region::discard`].
    DontNeed,
}

/// File transfers wire this many pages at a time.
const TRANSFER_PAGES: usize = 64;

/// How many times a prefetch waits for free frames, 2 ms each at most.
const PATIENCE: u32 = 8;

/// A range of paged memory. It is zero at first, and plain memory except for system calls (see the crate's documentation).
///
/// In a forked child the range is inaccessible: a touch is a SIGSEGV. It stays reserved, so that no other memory can lie there. (A
/// child that was made by a raw system call, without libc's fork handlers, finds zeroes.)
pub struct Region {
    pager: Pager,
    start: *mut u8,
    len: usize,
    object: ObjectId,
    /// Where its pages come from, if not from zeroes.
    home: Option<Arc<OpenFile>>,
    wires: Mutex<Wires>,
}

// SAFETY: the range belongs to this value alone and is not tied to a thread: any thread's touch is served.
unsafe impl Send for Region {}
// SAFETY: shared references give shared access to bytes only, and the pager does not change the content of pages. The rest is
// behind locks.
unsafe impl Sync for Region {}

impl Region {
    pub(crate) fn new(pager: Pager, bytes: usize, home: Option<Arc<OpenFile>>) -> Result<Region, Error> {
        let owner = &pager.0;
        owner.here()?;
        let pages = bytes.div_ceil(PAGE_SIZE);
        let object = {
            let mut regions = owner.regions();
            if pages == 0 || pages as u64 > regions.pages_left {
                return Err(Error::RegionSize { bytes, available: regions.pages_left << PAGE_SHIFT });
            }
            let object = regions.free.pop().ok_or(Error::TooManyRegions)?;
            regions.pages_left -= pages as u64;
            ObjectId(object)
        };
        let give_back = |e: i32| {
            let mut regions = owner.regions();
            regions.free.push(object.0);
            regions.pages_left += pages as u64;
            Error::Map(io::Error::from_raw_os_error(e))
        };
        let len = pages << PAGE_SHIFT;
        let start = area::map_anonymous(len).map_err(give_back)?;
        let base = start as usize;
        let machine = &owner.shared.machine;
        // SAFETY: our own fresh mapping, whose content does not change. It is wiped in a forked child (see `forks`).
        let advised = unsafe { sys::madvise(base, len, libc::MADV_WIPEONFORK) };
        // After mlockall(MCL_FUTURE) it is locked, so that this is refused, and full of zeroes, which would hide what a file has
        // there.
        // SAFETY: as above; nobody has used it.
        let discard = || unsafe { sys::madvise(base, len, libc::MADV_DONTNEED) };
        let empty = discard().or_else(|_| sys::munlock(base, len).and_then(|()| discard()));
        let managed = advised.is_ok() && empty.is_ok() && {
            let _quiet = Quiet::new();
            if machine.config.delivery == Delivery::Threads {
                machine.await_unmaps(base, base + len);
            }
            let tags = match home.as_ref().is_some_and(|file| file.may_change()) {
                true => {
                    let wanted = machine.core.lock().vm.tags_wanted();
                    (wanted > 0).then(|| vec![Tag::UNKNOWN; wanted])
                }
                false => None,
            };
            let mut map = machine.map.write();
            map.origins[object.0 as usize] = base;
            if let Some(file) = &home {
                map.homes[object.0 as usize] = Some(file.as_home());
                machine.core.lock().vm.set_home(object, file.home(), tags);
            }
            let range =
                AddressRange { start: base, end: base + len, kind: Kind::Managed, object, origin: base, flags: Flags::NONE };
            machine.manage(&mut map, range);
            map.ranges.find(base).is_some()
        };
        if !managed {
            // SAFETY: our own mapping, which is not used yet.
            unsafe { area::unmap(start, len) };
            if home.is_some() {
                let _quiet = Quiet::new();
                forget_home(machine, object);
            }
            return Err(give_back(libc::ENOMEM));
        }
        forks::keep_out(base, len);
        if let Some(file) = home.as_ref().filter(|file| file.access() == Access::ReadWrite) {
            owner.shared.write_back.enter(object, pages as u64, file.flush_part(&owner.shared, object));
        }
        Ok(Region { pager, start, len: bytes, object, home, wires: Mutex::default() })
    }

    /// Its length in bytes, as it was asked for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Where it begins. Aligned to a page.
    pub fn as_ptr(&self) -> *const u8 {
        self.start
    }

    /// Where it begins, to write to.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start
    }

    /// The pager it belongs to.
    pub fn pager(&self) -> &Pager {
        &self.pager
    }

    /// The counters of its pager, for all of the pager's regions.
    pub fn counters(&self) -> &Counters {
        self.pager.counters()
    }

    /// Gives the region a replacement policy of its own, or changes that, while it is in use: a name, or `NAME:KEY=VALUE,...`
    /// ([`Builder::policy`](crate::Builder::policy)). Its pages stay where they are, and their order of eviction is kept. When the
    /// region is dropped, the policy ends.
    ///
    /// The pager's budget stays one for all. Victims come from the policies that have most pages for their share, and shares follow
    /// use: they move from regions whose pages are not missed to those whose pages are read again. So a policy of its own also
    /// protects the other regions from what happens in this one, and this one from them. Two regions that ask for the same policy
    /// have one each. `docs/POLICIES.md` has more.
    ///
    /// ```
    /// # fn main() -> Result<(), overspill::Error> {
    /// let pager = overspill::Pager::builder().memory(8 << 20).build()?;
    /// let index = pager.region(4 << 20)?;
    /// let log = pager.region(32 << 20)?;
    /// log.set_policy("fifo")?; // it is read once; the index is not to suffer from it
    /// assert_eq!((log.policy(), index.policy()), ("fifo".into(), "use-once".into()));
    /// for used in pager.policies() {
    ///     println!("{} {}: {} pages in memory", used.policy, used.region, used.counts.resident);
    /// }
    /// log.reset_policy()?;
    /// assert_eq!(log.policy(), "use-once");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Policy`], with the names of all policies; [`Error::TooManyPolicies`] if
    /// [`REGION_POLICIES_MAX`](crate::REGION_POLICIES_MAX) regions of the pager have one of their own; [`Error::Forked`]. After an
    /// error nothing is changed.
    pub fn set_policy(&self, policy: &str) -> Result<(), Error> {
        self.set_spec(&policy.parse().map_err(Error::Policy)?)
    }

    pub(crate) fn set_spec(&self, spec: &Spec) -> Result<(), Error> {
        let machine = &self.pager.0.here()?.machine;
        let _quiet = Quiet::new();
        if machine.set_policy_of(self.object, spec) { Ok(()) } else { Err(Error::TooManyPolicies) }
    }

    /// The region has the pager's policy from now on, as before [`Region::set_policy`]. Its pages stay where they are.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn reset_policy(&self) -> Result<(), Error> {
        let machine = &self.pager.0.here()?.machine;
        let _quiet = Quiet::new();
        machine.end_policy_of(self.object);
        Ok(())
    }

    /// The replacement policy of the region: its own, or else the pager's.
    ///
    /// # Panics
    /// In a forked child.
    pub fn policy(&self) -> String {
        let machine = &self.pager.0.must_be_here().machine;
        let spec = {
            let _quiet = Quiet::new();
            machine.core.lock().vm.policy_of(self.object)
        };
        spec.to_string()
    }

    /// The region as a slice of `T`; a rest that is too short for one is left out.
    ///
    ///
    /// # Panics
    /// If `T` has no size.
    pub fn as_slice_of<T: Pod>(&self) -> &[T] {
        assert!(size_of::<T>() > 0);
        // SAFETY: readable, initialised memory of `len` bytes at the start of a page. Any bits are a `T`, and nothing can be
        // changed through the references that `&self` allows.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.len / size_of::<T>()) }
    }

    /// The region as a mutable slice of `T`; a rest that is too short for one is left out.
    ///
    /// # Panics
    /// If `T` has no size.
    pub fn as_mut_slice_of<T: Pod>(&mut self) -> &mut [T] {
        assert!(size_of::<T>() > 0);
        // SAFETY: as above, and the region is borrowed exclusively; any `T` leaves bytes that are plain data again.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.len / size_of::<T>()) }
    }

    /// The region as numbers that several threads may change. Takes `&mut self`, because there must be no byte slices at the same
    /// time.
    pub fn as_atomics(&mut self) -> &[AtomicU64] {
        // SAFETY: as above; an `AtomicU64` has the size and the bits of a `u64`, and there is no other reference to the memory.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.len / size_of::<AtomicU64>()) }
    }

    /// The file, if it is a region of one.
    pub(crate) fn home(&self) -> Option<&OpenFile> {
        self.home.as_deref()
    }

    pub(crate) fn object(&self) -> ObjectId {
        self.object
    }

    pub(crate) fn bounds(&self, range: impl RangeBounds<usize>) -> Range<usize> {
        bounds(range, self.len)
    }

    fn page(&self, index: usize) -> PageId {
        PageId::new(self.object, index as u64)
    }

    pub(crate) fn pages(&self) -> usize {
        self.len.div_ceil(PAGE_SIZE)
    }

    pub(crate) fn addr(&self, index: usize) -> usize {
        self.start as usize + (index << PAGE_SHIFT)
    }

    /// Calls `copy` if the page is in memory and mapped: it touches the page, and that causes no fault.
    ///
    /// => `copy` touches no other paged memory, because the core is locked
    pub(crate) fn if_mapped(&self, index: usize, copy: impl FnOnce()) -> bool {
        let _quiet = Quiet::new();
        let core = self.pager.0.shared.machine.core.lock();
        // Whoever takes a page out of the program's sight makes it busy first, with the core locked.
        let word = core.vm.page(self.page(index));
        let mapped = word.state() == State::Active && !word.busy();
        if mapped {
            copy();
        }
        mapped
    }

    // ---- advice ----

    /// [`Region::prefetch`] or [`Region::discard`].
    ///
    /// # Errors
    /// As those.
    ///
    /// # Panics
    /// If the range is not within the region.
    pub fn advise(&mut self, range: impl RangeBounds<usize>, advice: Advice) -> Result<(), Error> {
        self.pager.0.here()?;
        match advice {
            Advice::WillNeed => self.prefetch(range),
            Advice::DontNeed => return self.discard(range),
        }
        Ok(())
    }

    /// Reads pages of the range that are out in the background: at most half of the budget, and as many as can get frames soon.
    /// Waits for frames and for the reads to begin, but not for their end.
    ///
    /// # Panics
    /// If the range is not within the region, or this is a forked child.
    pub fn prefetch(&self, range: impl RangeBounds<usize>) {
        self.pager.0.must_be_here();
        let pages = pages(&self.bounds(range));
        let most = (self.pager.counters().memory_limit_bytes.get() / 2) as usize >> PAGE_SHIFT;
        self.prefetch_pages(pages.start..pages.end.min(pages.start + most));
    }

    fn prefetch_pages(&self, pages: Range<usize>) {
        let shared = &self.pager.0.shared;
        if shared.manual.is_some() {
            return;
        }
        let mut at = pages.start;
        let mut patience = PATIENCE;
        while at < pages.end {
            let _quiet = Quiet::new();
            let seen = shared.machine.arrivals.count();
            let map = shared.machine.map.read();
            let mut core = shared.machine.core.lock();
            let page = match self.home {
                Some(_) => self.page(at),
                None => match core.vm.next_present(self.page(at), pages.end as u64) {
                    Some(page) => page,
                    None => return,
                },
            };
            at = page.index() as usize;
            if !core.vm.is_out(page) {
                at += 1;
                continue;
            }
            let most = (pages.end - at).min(shared.cluster_pages) as u32; // as much as fits a buffer of the reader
            let read = core.vm.prefetch(page, most, 0..pages.end as u64).map(|op| map.read_of(op));
            let short = core.vm.wants_daemon() || read.is_none();
            drop(core);
            drop(map);
            let Some(read) = read else {
                // All frames but the reserve are in use. Wake the daemon to free some, but only a few times, since this is advice.
                if patience == 0 || !short {
                    return;
                }
                patience -= 1;
                shared.machine.ring_daemon();
                shared.machine.arrivals.wait(seen);
                continue;
            };
            patience = PATIENCE;
            if short {
                shared.machine.ring_daemon();
            }
            at += read.op.count as usize;
            shared.queue.push_patiently(read);
        }
    }

    /// Discards the content of the range: it reads as zero afterwards, and takes neither memory nor swap space.
    ///
    /// # Errors
    /// [`Error::IsWired`] if [`Wired::keep`] left pages of it wired, or the program has sealed them (mseal); [`Error::Forked`].
    ///
    /// # Panics
    /// If the range is not within the region.
    pub fn discard(&mut self, range: impl RangeBounds<usize>) -> Result<(), Error> {
        // SAFETY: the region is borrowed exclusively: nobody else uses it.
        unsafe { self.discard_shared(range) }
    }

    /// As [`Region::discard`], for those who use the memory through pointers: other threads may use the rest of the region
    /// meanwhile.
    /// (With [`Delivery::Threads`], a touch of a neighbouring page may fill a page of the range with zeroes at the same moment. The
    /// budget then does not cover that page until it is discarded again.)
    ///
    /// # Errors
    /// As [`Region::discard`].
    ///
    /// # Panics
    /// If the range is not within the region.
    ///
    /// # Safety
    /// There must be no reference to bytes of the range. No other thread may use the range until this has returned.
    pub unsafe fn discard_shared(&self, range: impl RangeBounds<usize>) -> Result<(), Error> {
        self.pager.0.here()?;
        let range = self.bounds(range);
        debug_assert!(self.home.is_none());
        let (first, end) = (range.start.div_ceil(PAGE_SIZE), range.end / PAGE_SIZE);
        // the last page of the region may be discarded whole although the region ends within it
        let end = if range.end == self.len { self.pages() } else { end };
        // SAFETY: bytes of the range, which the caller leaves to this call.
        let clear = |part: Range<usize>| unsafe { self.start.add(part.start).write_bytes(0, part.len()) };
        if first >= end {
            clear(range);
            return Ok(());
        }
        if self.has_wired(&(first..end)) {
            return Err(Error::IsWired);
        }
        clear(range.start..first * PAGE_SIZE);
        if range.end > end * PAGE_SIZE {
            clear(end * PAGE_SIZE..range.end);
        }
        // SAFETY: as above.
        unsafe { self.give_up_pages(first..end) }
    }

    /// Forgets the content of whole pages. => none is wired
    ///
    /// # Errors
    /// [`Error::IsWired`]: the kernel refuses, because the program has sealed the memory (mseal).
    ///
    /// # Safety
    /// There must be no reference to bytes of the pages. No other thread may use them until this has returned.
    pub(crate) unsafe fn give_up_pages(&self, pages: Range<usize>) -> Result<(), Error> {
        let (start, len) = (self.addr(pages.start), pages.len() << PAGE_SHIFT);
        let machine = &self.pager.0.shared.machine;
        // SAFETY: whole pages of this region, which the caller gives up. (The program may have locked them.)
        let discard = || unsafe { sys::madvise(start, len, libc::MADV_DONTNEED_LOCKED) };
        let discarded;
        match machine.config.delivery {
            Delivery::Threads => {
                let _quiet = Quiet::new();
                machine.begin_discard(start, start + len);
                discarded = discard(); // without a lock, because the call waits until a handler has followed
                // (not all of the range: a page may have been read ahead for somebody who uses pages next to it)
                machine.discard_done(start, start + len);
                machine.forgotten();
            }
            Delivery::InThread => {
                let _quiet = Quiet::new();
                let mut map = machine.map.write();
                discarded = discard(); // under the lock no page of the range is being moved or filled
                if discarded.is_ok() {
                    machine.forget_range(&mut map, start, start + len);
                }
                drop(map);
                machine.forgotten();
            }
        }
        discarded.map_err(|_| Error::IsWired)
    }

    // ---- files ----

    /// Reads from a file at `offset` into the range, until it is full or the file ends. Returns the number of bytes. Works with
    /// both deliveries: the pages are wired, a piece at a time.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let pager = overspill::Pager::builder().memory(8 << 20).build()?;
    /// let mut region = pager.region(1 << 20)?;
    /// let file = std::fs::File::open("/proc/self/exe")?;
    /// let n = region.read_at(&file, 0..4096, 0)?;
    /// assert_eq!(&region[1..4], b"ELF");
    /// # assert_eq!(n, 4096);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As pread(2); EIO if a page is lost.
    ///
    /// # Panics
    /// If the range is not within the region.
    pub fn read_at(&mut self, file: impl AsFd, range: impl RangeBounds<usize>, offset: u64) -> io::Result<usize> {
        // SAFETY: the region is borrowed exclusively: nobody else uses it.
        unsafe { self.read_at_shared(file, range, offset) }
    }

    /// As [`Region::read_at`], for those who use the memory through pointers: other threads may use the rest of the region
    /// meanwhile.
    ///
    /// # Errors
    /// As [`Region::read_at`].
    ///
    /// # Panics
    /// If the range is not within the region.
    ///
    /// # Safety
    /// There must be no reference to bytes of the range. No other thread may use the range until this has returned.
    pub unsafe fn read_at_shared(&self, file: impl AsFd, range: impl RangeBounds<usize>, offset: u64) -> io::Result<usize> {
        let range = self.bounds(range);
        let fd = file.as_fd().as_raw_fd();
        self.transfer(range, |piece, done| {
            // SAFETY: the piece lies in the range, which the caller leaves to this call.
            unsafe { sys::pread_full(fd, self.start.add(piece.start), piece.len(), offset + done) }
        })
    }

    /// Writes the range to a file at `offset`. Returns the number of bytes.
    ///
    /// # Errors
    /// As pwrite(2); EIO if a page is lost.
    ///
    /// # Panics
    /// If the range is not within the region.
    pub fn write_at(&self, file: impl AsFd, range: impl RangeBounds<usize>, offset: u64) -> io::Result<usize> {
        let range = self.bounds(range);
        let fd = file.as_fd().as_raw_fd();
        self.transfer(range, |piece, done| {
            let iov = [sys::IoVec { base: self.start as usize + piece.start, len: piece.len() }];
            // SAFETY: the piece lies in the region, which cannot change while `&self` is borrowed.
            unsafe { sys::pwritev(fd, &iov, offset + done) }
        })
    }

    /// Wires one piece of the range after the other and calls `go` for it, until all is done or `go` transfers nothing.
    fn transfer(&self, range: Range<usize>, mut go: impl FnMut(Range<usize>, u64) -> Result<usize, i32>) -> io::Result<usize> {
        self.pager.0.here()?;
        let mut at = range.start;
        while at < range.end {
            let end = ((at / PAGE_SIZE + TRANSFER_PAGES) * PAGE_SIZE).min(range.end);
            let (id, end) = match self.wire_for_a_moment(&(at..end)) {
                Ok(wired) => wired,
                Err(e) if at == range.start => return Err(e.into()),
                Err(_) => break, // the next call tells
            };
            let n = go(at..end, (at - range.start) as u64);
            self.unwire_id(id);
            match n {
                Ok(0) => break,
                Ok(n) => at += n,
                Err(e) if at == range.start => return Err(io::Error::from_raw_os_error(e)),
                Err(_) => break,
            }
        }
        Ok(at - range.start)
    }
}

impl Deref for Region {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.as_slice_of()
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice_of()
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({:p}, {} bytes)", self.start, self.len)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let owner = &self.pager.0;
        if !owner.is_alive() {
            return; // in a forked child the range stays, inaccessible
        }
        if let Some(file) = &self.home {
            owner.shared.write_back.leave(self.object);
            file.flush_at_the_end(&owner.shared, self.object, self.pages() as u64);
        }
        self.unwire_all();
        let (start, len) = (self.start as usize, self.pages() << PAGE_SHIFT);
        forks::forget(start);
        let machine = &owner.shared.machine;
        {
            let _quiet = Quiet::new();
            // SAFETY: the region's own mapping, and nothing borrows it any more.
            machine.unmap_region(start, start + len, || unsafe { area::unmap(self.start, len) });
            machine.end_policy_of(self.object);
        }
        if let Some(file) = &self.home {
            file.settle(&owner.shared, self.object, self.pages() as u64);
            let _quiet = Quiet::new();
            forget_home(machine, self.object);
        }
        let mut regions = owner.regions();
        regions.free.push(self.object.0);
        regions.pages_left += self.pages() as u64;
    }
}

/// The pages that a range of bytes touches.
pub(crate) fn pages(range: &Range<usize>) -> Range<usize> {
    if range.is_empty() { 0..0 } else { range.start / PAGE_SIZE..range.end.div_ceil(PAGE_SIZE) }
}

/// A range of a region of `len` bytes.
///
/// # Panics
/// If it is not within the region.
pub(crate) fn bounds(range: impl RangeBounds<usize>, len: usize) -> Range<usize> {
    // A range may say something else each time, so each end is asked for once. What overflows lies outside, too.
    let start = match range.start_bound() {
        Bound::Included(&n) => n,
        Bound::Excluded(&n) => n.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&n) => n.saturating_add(1),
        Bound::Excluded(&n) => n,
        Bound::Unbounded => len,
    };
    assert!(start <= end && end <= len, "range {start}..{end} of a region of {len} bytes");
    start..end
}

/// The object's pages come from zeroes again. => nothing is known of them
fn forget_home(machine: &Machine, object: ObjectId) {
    let mut map = machine.map.write();
    machine.core.lock().vm.clear_home(object);
    map.homes[object.0 as usize] = None;
}

impl Pager {
    /// A region of `bytes` bytes, all zero. It takes address space at once, and memory page by page as it is touched.
    ///
    /// # Errors
    /// [`Error::RegionSize`], [`Error::TooManyRegions`], [`Error::Map`], [`Error::Forked`].
    pub fn region(&self, bytes: usize) -> Result<Region, Error> {
        Region::new(self.clone(), bytes, None)
    }
}

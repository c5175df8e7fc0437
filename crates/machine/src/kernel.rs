//! The interface to the kernel below the machine.
//!
//! An implementation performs and reports; it does not judge. An error is the kernel's own number, and this crate decides what the
//! number means. All calls are static, because there is one kernel below a machine. So the interface costs nothing.

use crate::errno::{self, Errno};
use crate::files::Files;
pub use crate::futex::{Futex, Limit};
use core::ops::Deref;
use overspill_store::{PageBytes, checksum};
use overspill_vm::types::{PAGE_SHIFT, PAGE_SIZE, PageId, Tag};

/// Protection of memory: readable, writable, executable.
pub mod prot {
    /// It can be read.
    pub const READ: i32 = 1;
    /// It can be written.
    pub const WRITE: i32 = 2;
    /// It can be executed.
    pub const EXEC: i32 = 4;
}

/// The kernel below a machine.
pub trait Kernel: Sized + Send + Sync + 'static {
    /// A word that threads wait on.
    type Word: Futex;
    /// A userfaultfd.
    type Uffd: Uffd;
    /// One thread's I/O.
    type Io: Io;
    /// How I/O is issued.
    type Engine: Copy;
    /// The files of a swap device.
    type Files: Files;
    /// How pages are stored.
    type Content: Content;
    /// Looks up mappings, for one thread.
    type Mappings: Mappings;
    /// A handle of the process itself, for discards of scattered ranges.
    type Process: Send + Sync;
    /// What else belongs to a machine on this kernel: see [`Host`].
    type Host: Host<Self>;

    /// The monotonic clock, in nanoseconds.
    fn now_ns() -> u64;
    /// The calling thread.
    fn thread_id() -> u32;
    /// The processor time that a thread has used, in nanoseconds; `None` if it has ended.
    fn thread_cpu_ns(thread: u32) -> Option<u64>;
    /// Sleeps for `ns` nanoseconds.
    fn sleep_ns(ns: u64);
    /// Processors that the process may use.
    fn cpus() -> usize;
    /// Ends the process, at once. `tell`: prints the message, because no supervisor will.
    fn stop(message: &[u8], tell: bool) -> !;

    /// Maps fresh zeroed memory for the pager, aligned to pages. There are no huge pages in it: moves would have to split them, and
    /// more would come into memory than is charged.
    ///
    /// # Errors
    /// ENOMEM.
    fn map_anonymous(len: usize) -> Result<*mut u8, Errno>;
    /// The same for a parking area. Only the kernel reads and writes it, unless there is compressed memory.
    ///
    /// # Errors
    /// ENOMEM.
    fn map_parking(len: usize) -> Result<*mut u8, Errno> {
        Self::map_anonymous(len)
    }
    /// The page that is parked at an address.
    ///
    /// # Safety
    /// A page is parked there, and stays as long as the result is used.
    unsafe fn parked(at: usize) -> impl Deref<Target = PageBytes> {
        // SAFETY: the caller's promise.
        unsafe { &*(at as *const PageBytes) }
    }
    /// Unmaps the pager's own memory.
    ///
    /// # Safety
    /// [`Kernel::map_anonymous`] or [`Kernel::map_parking`] made it; nothing uses it any more.
    unsafe fn unmap(at: *mut u8, len: usize);
    /// Advice on the pager's own memory.
    ///
    /// # Errors
    /// The kernel does not know this advice.
    fn advise(at: usize, len: usize, advice: Advice) -> Result<(), Errno>;
    /// Makes fresh memory of the pager's executable as well.
    ///
    /// # Errors
    /// The kernel, or its policy, refuses.
    fn make_executable(at: usize, len: usize) -> Result<(), Errno>;
    /// Discards the content of scattered ranges of the pager's own memory.
    ///
    /// # Safety
    /// Nobody needs the content.
    unsafe fn discard_ranges(process: &Self::Process, ranges: &[IoVec]);

    /// Discards pages of the program's, as its own MADV_DONTNEED would: waits until the event has been read.
    ///
    /// # Safety
    /// The pager has the content.
    ///
    /// # Errors
    /// As madvise(2).
    unsafe fn discard_of_program(at: usize, len: usize) -> Result<(), Errno>;
    /// Calls `f` with the address of each page of a range that is mapped and in memory.
    fn each_resident(start: usize, end: usize, f: impl FnMut(usize));
    /// Whether the page at an address is mapped and in memory.
    fn is_resident(at: usize) -> bool {
        let mut there = false;
        Self::each_resident(at, at + PAGE_SIZE, |_| there = true);
        there
    }
    /// Whether all of a range is mapped.
    fn is_mapped(start: usize, end: usize) -> bool;
    /// Calls `f(start, end)` for each mapping, in the order of addresses.
    ///
    /// # Errors
    /// The mappings cannot be listed.
    fn each_mapping(f: impl FnMut(usize, usize)) -> Result<(), Errno>;
    /// Brings in the program's page at an address by a read in the kernel. Returns whether it could be read.
    fn touch(at: usize) -> bool;
    /// Makes the program's page its own if it shares it with another process, without waiting for a fault to be served.
    fn own_page(at: usize) -> bool;
    /// Whether the kernel may merge equal pages of this process.
    fn merges_memory() -> bool;
    /// How much memory cannot leave, as far as the kernel tells.
    fn fixed() -> Option<Fixed>;

    /// I/O for one thread, of at most `depth` transfers at a time.
    ///
    /// # Errors
    /// The kernel refuses.
    fn io(engine: Self::Engine, depth: u32) -> Result<Self::Io, Errno>;
    /// Reads and waits for it, until `len` bytes or the end of the file.
    ///
    /// # Safety
    /// `buf..buf + len` is writable, and nobody else uses it meanwhile.
    ///
    /// # Errors
    /// As pread(2).
    unsafe fn read_now(fd: i32, buf: *mut u8, len: usize, offset: u64) -> Result<usize, Errno>;
    /// The length of a file, in bytes.
    ///
    /// # Errors
    /// As fstat(2).
    fn file_len(_: i32) -> Result<u64, Errno> {
        Err(crate::errno::EOPNOTSUPP)
    }
    /// Waits until the device has what was written to a file.
    ///
    /// # Errors
    /// As fdatasync(2).
    fn sync(_: i32) -> Result<(), Errno> {
        Err(crate::errno::EOPNOTSUPP)
    }
    /// Drops what the kernel has cached of a part of a file, if it can.
    fn drop_cached(_: i32, _: u64, _: usize) {}
    /// Copies neighbouring pages of the program's. Returns how many: up to the first that is not there. With handler threads it
    /// waits until a page is.
    fn copy_of_program(_: usize, _: &mut [PageBytes]) -> usize {
        0
    }
    /// Wakes threads that wait for pages of the range, so that they look again. `uffd`: its [`Uffd::raw`].
    fn wake(uffd: i32, at: usize, len: usize);

    /// Lets other threads have the CPU if they want it.
    fn yield_now() {}

    /// How many pages are given up, renamed or adopted before the locks are given up for a moment. (A page takes 0.05 to 0.2 us.)
    const STEP_PAGES: u64 = 128;

    /// The program's image and its heap, which grows upwards, lie below this address. New mappings lie above it, where the kernel
    /// places them from the top down. It need not be exact: only the order of eviction depends on it.
    const MAPPINGS_FROM: usize = 3 << 45;

    /// A buffer that was not used for as long as this is given back, in nanoseconds. (To use it again takes 0.5 us for each page.)
    const UNUSED_NS: u64 = 20_000_000;

    /// How many pages a flush copies at a time.
    const FLUSH_PAGES: usize = 64;

    /// Whether to make a mistake on purpose, to see whether tests notice.
    #[inline(always)]
    fn mistake(_: Mistake) -> bool {
        false
    }
}

/// Mistakes that were once made. Under a simulated kernel each can be made again, by taking its mend back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Mistake {
    /// A move that the kernel denies is believed to have failed: a page read as zeroes.
    BelievesDenials,
    /// The same for a page after others in one move, if its mapping has changed by the time that the kernel is asked again.
    ForgetsDenialsWithin,
    /// Of several pages of a move that the kernel denies, only the first is taken for moved.
    RemembersOneDenial,
    /// Copied pages of memory that is not writable are discarded by one call for a whole run. If the mapping splits, the kernel
    /// reports two discards: the second was taken for the program's, and the page read as zeroes.
    DiscardsRunsAtOnce,
    /// Pages are taken while the program's discard of them may still be under way: discarded content came back.
    TakesWhatIsDiscarded,
    /// Pages are taken by their address while a call may put others there: they read as zeroes.
    TakesWhatIsReplaced,
    /// A region is unmapped without an announcement: memory that came to its place before the report was read lost its content.
    UnmapsUnannounced,
    /// An unmapping that is reported late is applied to the new mapping that is there by then.
    FollowsLateUnmaps,
    /// Memory that is reported to have been unmapped is given up, though the call was refused for a sealed mapping behind it:
    /// content that was paged out there was lost.
    BelievesUnmaps,
    /// Two threads move memory at a time, and the kernel reports the second move first: content that both had moved was lost.
    MovesAtOnce,
    /// Pages are filled and taken by their address while a report of it is followed in steps: content that the program had thrown
    /// away came back, and content that it had moved was not there.
    FillsBeforeTheLastStep,
    /// An mremap of memory that is one mapping without a pager, but several with it, is refused as the kernel refuses it.
    MovesOnlyOne,
    /// A parked original is dropped although its copy was refused (EAGAIN).
    DropsBeforeTheCopy,
    /// Parked copies are taken off the budget while they are still in memory.
    UnchargesBeforeTheDrop,
    /// The page daemon's bell is rung, but the sleeping daemon is not woken.
    RingsNobody,
    /// A swapoff offers pages that the other devices refuse to them again and again, and does not bring them into memory: it never
    /// ended. (Compressed memory refused them, which was not counted as a failed write.)
    OffersWhatIsRefused,
    /// A swapoff gives up when nothing has moved for ten seconds, though nothing failed.
    GivesUpAsItWaits,
    /// A swapoff gives up what it cannot read at once: a disk that was away for a moment lost all its pages.
    LosesWhatIsAway,
    /// A page that a thread waits for is lost when its first read fails.
    LosesWhatIsNeeded,
    /// A device's files are closed when nothing is stored there any more, although reads from there are still under way.
    ClosesBeforeReadsEnd,
    /// A device may be removed while space is being got for it: its descriptors are closed, and another device is given the space.
    GrowsWhatMayGo,
    /// All pages that one read leaves parked are given the place of the last of them.
    ParksInOnePlace,
    /// Slots that a child can read are given out again while it lives.
    ThawsEarly,
    /// Slots that a child could read are never given out again: swap grows without bound.
    NeverThaws,
    /// A forked child counts the threads of its parent that waited for the map as its own: no thread gets the lock.
    WaitsForItsParent,
    /// The page daemon waits for the fault by which it makes a page its own. A handler would serve it, but waits for a fork, which
    /// waits for the daemon.
    WaitsToUnshare,
    /// Content read from a device is not compared with the tag of what was written.
    TrustsDevices,
    /// The same with what other processes have left of a page.
    TrustsItsFamily,
    /// A read that was cut short is not completed: the pages after the cut are lost.
    LeavesShortReads,
    /// A failed write of the page daemon's counts as done.
    BelievesFailedWrites,
    /// A failed write of a swapoff's counts as done.
    BelievesFailedMoves,
    /// A page that had moved elsewhere when a swapoff's read ended, and has moved back since, counts as damaged: it was lost.
    TakesUnseenForDamaged,
    /// A failed write-back of a page from compressed memory counts as done.
    BelievesFailedWriteBacks,
    /// Compressed memory is not told which slots were given up.
    KeepsWhatIsFreed,
    /// Pages that must stay in memory may leave it.
    KeepsNothing,
    /// A parking place that was not used is not given back.
    LosesPlaces,
    /// Native pages that are in the kernel's swap are not adopted: when they come back, nobody charges them.
    OverlooksKernelSwap,
    /// Faults go above the budget although frames could be had.
    GoesOverBudget,
    /// A device that has answered ENOSPC once is not asked again before the program is stopped.
    AsksOnce,
    /// Threads that wait for pages of a read are not woken when it has ended.
    ForgetsWhoWaits,
    /// Pages are parked although the kernel tells that they were used: each time a soft fault.
    ParksWhatIsUsed,
    /// A flush reports its pages as written when it begins to write them: an older content overtakes a newer one.
    ReportsBeforeTheWrite,
    /// A failed write of a flush counts as done.
    BelievesFailedFlushes,
    /// A flush does not look again at pages that were taken away before it had copied them.
    SkipsWhatWasTaken,
    /// A flush waits for a page that was given up before it had copied it.
    WaitsInAFlush,
    /// A changed page of a file is dropped as unchanged.
    DropsWhatChanged,
    /// A changed copy-on-write page is written to its file.
    WritesCopiesHome,
    /// After a failed fdatasync nothing is written again.
    ForgetsFailedSyncs,
    /// Two flushes of a file wait for its device side by side: the one that is told of a failure has all pages written again, and
    /// the other one reports success.
    SyncsSideBySide,
    /// The page daemon drops pages that a reader has passed where they are, though the program may have changed them.
    DropsWhatMayChange,
}

/// A piece of advice to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// A core dump need not hold it.
    NotDumped,
    /// Forked children find it empty.
    WipeOnFork,
}

/// The content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A thread touched a missing page, or wrote to a protected one: its address, with the lowest bit set for a write; the thread
    /// id (0 if it was not asked for).
    Fault(usize, u32),
    /// The range moved: from, to, bytes.
    Remap(usize, usize, usize),
    /// The range is about to be discarded: start, end.
    Remove(usize, usize),
    /// The range has been unmapped: start, end.
    Unmap(usize, usize),
    /// Something this pager did not ask for.
    Other,
}

/// How a transfer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Bytes done.
    pub bytes: usize,
    /// Why it stopped early, if it did.
    pub error: Option<Errno>,
}

/// Moves pages out of the range at `src` to `dst` without copying. Stops at the first page that it cannot move: ENOENT absent;
/// EBUSY pinned, shared, or isolated for a moment (by advice, reclaim, migration); EINVAL the mapping does not allow it; EEXIST
/// `dst` was not empty. The second result says whether the kernel wrongly denied a move.
///
/// Linux 6.18 denies some moves that it has made. If a page's table entry changes during the move, it tries again. (The accessed
/// bit is enough, which the processor sets and DAMON clears.) It forgets that it moved the page, and perhaps some behind it, then
/// finds `dst` taken by its own move: EEXIST. (Mended by "userfaultfd: reset err to be 0 when move_pages_ptes succeeded", August
/// 2026.) To believe that answer is to lose the pages. If `src` has nothing in memory any more, the page is at `dst`
/// (`forgotten`).
///
/// # Safety
/// As [`Uffd::move_pages`].
pub unsafe fn take_pages<K: Kernel>(parking: &K::Uffd, dst: usize, src: usize, len: usize) -> (Moved, bool) {
    // SAFETY: the caller's promise.
    let moved = unsafe { parking.move_pages(dst, src, len) };
    if moved.error == Some(errno::EEXIST) && !K::mistake(Mistake::BelievesDenials) && !K::is_resident(src) {
        return (Moved { bytes: forgotten::<K>(dst, src, len).max(PAGE_SIZE), error: None }, true);
    }
    (moved, false)
}

/// How many bytes a denied move has moved, from its first page on: they are at `dst`, which was empty, and no longer at `src`. (To
/// ask for them again would not tell: if their mapping has changed meanwhile, the kernel answers EINVAL.)
pub(crate) fn forgotten<K: Kernel>(dst: usize, src: usize, len: usize) -> usize {
    let is_moved = |at: &usize| K::is_resident(dst + at) && !K::is_resident(src + at);
    let most = if K::mistake(Mistake::RemembersOneDenial) { PAGE_SIZE } else { len };
    (0..most).step_by(PAGE_SIZE).take_while(is_moved).count() << PAGE_SHIFT
}

/// How the pages of a registered range can be marked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Marks {
    /// Not at all.
    None,
    /// They can be protected: [`Uffd::protect`].
    Protected,
    /// They can be watched: [`Uffd::watch`].
    Watched,
}

/// A userfaultfd.
pub trait Uffd: Send + Sync {
    /// A message that is read from it.
    type Message: Copy + Default + Into<Event>;

    /// Its number, for [`Kernel::wake`].
    fn raw(&self) -> i32;
    /// Has the kernel report missing pages of the range. Pages that are there stay.
    ///
    /// # Errors
    /// EINVAL: nothing is mapped there, or memory of another kind, or memory that is to be watched and is not accessible; EBUSY: it
    /// is registered on another, or its pages can be watched and could not any more.
    fn register(&self, at: usize, len: usize, marks: Marks) -> Result<(), Errno>;
    /// Ends the registration. Missing pages read as zeroes afterwards.
    ///
    /// # Safety
    /// The pager holds no page of the range.
    ///
    /// # Errors
    /// EINVAL: nothing is mapped there.
    unsafe fn unregister(&self, at: usize, len: usize) -> Result<(), Errno>;
    /// Whether ranges are to be registered for [`Marks::Protected`].
    fn protects(&self) -> bool;
    /// From now on they are. Ranges that are registered already must be registered again.
    fn set_protects(&self);
    /// Whether the kernel tells references.
    fn tells_references(&self) -> bool;
    /// From now on notes whether the pages of the range that are present are touched: see [`Mappings::references`]. A touch waits
    /// for nobody.
    ///
    /// # Errors
    /// EAGAIN: an event must be read first; ENOENT: a part of the range cannot be watched. Then nothing is.
    fn watch(&self, at: usize, len: usize) -> Result<(), Errno>;
    /// Protects pages that are present: a thread that writes there waits.
    ///
    /// # Errors
    /// EAGAIN: an event must be read first; ENOENT: not registered for that.
    fn protect(&self, at: usize, len: usize) -> Result<(), Errno>;
    /// Ends the protection, if anything can be protected. Wakes the threads that wait to write.
    fn let_write(&self, at: usize, len: usize);
    /// Fills missing pages with a copy of `src`. Wakes nobody. Stops at the first page that it cannot fill.
    ///
    /// # Safety
    /// `src..src + len` is readable, and is what the program must find at `dst`.
    unsafe fn copy(&self, dst: usize, src: *const u8, len: usize) -> Moved;
    /// Fills missing pages with zeroes. Leaves guard pages and other marks alone. Wakes nobody.
    fn zero(&self, at: usize, len: usize) -> Moved;
    /// Moves pages to `dst`, which is registered here, without copying. Stops at the first page that it cannot move.
    ///
    /// # Safety
    /// The pager takes the pages over: it must give them back at a touch. `dst` is empty.
    unsafe fn move_pages(&self, dst: usize, src: usize, len: usize) -> Moved;
    /// Whether an unmap, discard or move of a range that is registered here is under way: it has begun, and the calling thread has
    /// not gone on after its event was read.
    fn is_changing(&self) -> bool;
    /// Makes every touch of a missing page an error, and wakes the threads that wait for it.
    ///
    /// # Errors
    /// A page is there; the kernel cannot do it.
    fn poison(&self, at: usize, len: usize) -> Result<(), Errno>;
    /// Reads waiting messages. Returns how many; zero if there are none.
    fn read(&self, out: &mut [Self::Message]) -> usize;
}

/// A range of bytes to be transferred, as writev(2) takes it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IoVec {
    /// Address.
    pub base: usize,
    /// Bytes.
    pub len: usize,
}

/// The completion of a transfer.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// The token that was given when the transfer was issued.
    pub token: u64,
    /// Bytes, or the error.
    pub result: Result<usize, Errno>,
}

/// One thread's I/O. No call allocates.
pub trait Io {
    /// Whether transfers go on after the call that issued them.
    fn is_asynchronous(&self) -> bool;
    /// Reads `len` bytes at `offset`.
    ///
    /// # Safety
    /// `buf..buf + len` is writable and left alone until the completion.
    unsafe fn read(&mut self, fd: i32, buf: *mut u8, len: usize, offset: u64, token: u64);
    /// Writes the vectors at `offset`.
    ///
    /// # Safety
    /// The vectors and what they point at live until the completion.
    unsafe fn write(&mut self, fd: i32, iov: &[IoVec], offset: u64, token: u64);
    /// Submits the issued transfers without waiting.
    fn submit(&mut self);
    /// Submits, then waits until something has completed, or `timeout_ns` has passed.
    fn wait(&mut self, timeout_ns: Option<u64>);
    /// The next completion, if there is one.
    fn completion(&mut self) -> Option<Done>;
}

/// How pages are stored: unchanged, or encrypted.
pub trait Content: Send + Sync {
    /// Whether the written bytes differ from those in memory, so that a write needs a buffer.
    fn is_sealed(&self) -> bool;
    /// The tag of `bytes`, the content of `page`, to be compared with the core's tag, `stored`. `scratch` holds rubbish afterwards.
    fn tag(&self, page: PageId, stored: Option<Tag>, bytes: &PageBytes, scratch: &mut PageBytes) -> Tag;
    /// Checks `bytes`, read from where `page` is stored, against the tag `stored`. Returns whether they are what was written there.
    /// If so, `bytes` becomes the page's plain content.
    #[must_use]
    fn open(&self, page: PageId, stored: Tag, bytes: &mut PageBytes) -> bool;
    /// The tag of content that lies in a file as it is, to find out later whether it was changed. The same each time.
    fn fingerprint(&self, page: PageId, bytes: &PageBytes) -> Tag {
        checksum::of(page, bytes)
    }
    /// Makes the bytes to be written for a page, and returns their tag for the core.
    fn seal(&self, page: PageId, plain: &PageBytes, sealed: &mut PageBytes) -> Tag;
}

/// One mapping of the program's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// First address.
    pub start: usize,
    /// Address after the last.
    pub end: usize,
    /// Bits of [`prot`].
    pub prot: i32,
}

/// Looks up mappings.
pub trait Mappings: Default {
    /// Opens the descriptors that it will need, as far as possible: later that may fail.
    fn opened() -> Self;
    /// The mapping at an address, `None` if there is none.
    ///
    /// # Errors
    /// The mapping cannot be looked up.
    fn at(&mut self, addr: usize) -> Result<Option<Mapping>, Errno>;
    /// Reads pages of the program's memory, even where the program may not. Never waits for a page. Returns how many bytes lie
    /// before the first missing page.
    ///
    /// # Errors
    /// EIO: the first page is missing. Others: the kernel does not allow it.
    fn read(&mut self, addr: usize, out: &mut [u8]) -> Result<usize, Errno>;
    /// Calls `f(start, end)` for each run of pages of the range that were touched since [`Uffd::watch`], in bytes. Pages that are
    /// present and were not watched since count as touched; pages that are absent do not.
    ///
    /// # Errors
    /// The kernel cannot be asked.
    fn references(&mut self, start: usize, end: usize, f: impl FnMut(usize, usize)) -> Result<(), Errno>;
    /// An address before which the range is not populated: see [`Mappings::each_populated`]. It is `start` while the descriptors
    /// are not open.
    fn first_populated(&self, start: usize, end: usize) -> usize;
    /// Calls `f` with the address of each page of the range that the kernel has, in memory or in its own swap: a touch of it is not
    /// reported. Without the descriptors, as [`Kernel::each_resident`].
    fn each_populated(&self, start: usize, end: usize, f: impl FnMut(usize));
}

/// Memory of this process that stays where it is, in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Fixed {
    /// Locked by the program (mlock).
    pub locked: u64,
    /// Pinned for good: registered buffers of io_uring, memory that devices have been given.
    pub pinned: u64,
}

/// How the pager served a reference, for a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Touch {
    /// The first touch of an untouched page.
    First = 1,
    /// A soft fault: the page was inactive.
    Soft = 2,
    /// A hard fault: the page was read back.
    Hard = 3,
}

/// The surroundings of a machine on a kernel: other processes that ring its page daemon, handlers that poll, a recording.
pub trait Host<K: Kernel>: Send + Sync {
    /// The word that the page daemon waits on, if other processes ring it as well.
    fn bell(&self) -> Option<&K::Word> {
        None
    }
    /// A fault has been served, except that its thread is not woken yet.
    fn served(&self) {}
    /// So many more faults wait for a read, or to be tried again. Negative: so many fewer.
    fn waits(&self, _more: i32) {}
    /// A fork has begun to wait until the handlers have nothing in hand.
    fn freezes(&self) {}
    /// The threads that read pages lately got this much processor time, in thousandths of one processor; `u64::MAX`: not known.
    fn threads_run(&self, _: u64) {}
    /// The page daemon has worked for long and goes on (told at each of its turns), or it is about to sleep.
    fn daemon_works(&self, _: bool) {}
    /// Whether the thread runs on the CPU of a handler that gives way to it.
    fn shares_cpu(&self) -> bool {
        false
    }
    /// A page is to be read by itself from its device. If other processes may read the same page, it has a key. Returns whether
    /// they have left it here, as it is in memory. Nothing is known of it: it may be wrong.
    fn load_common(&self, _key: Option<u128>, _page: &mut PageBytes) -> bool {
        false
    }
    /// A page that was read from a device and checked, for other processes that read the same page.
    fn store_common(&self, _key: u128, _page: &PageBytes) {}
    /// Whether references are recorded.
    fn records(&self) -> bool {
        false
    }
    /// Whether the recording has no room for one more: then faults wait.
    fn record_is_full(&self) -> bool {
        false
    }
    /// Records a reference. => there is room
    fn record(&self, _page: u64, _write: bool, _touch: Touch) {}
}

//! What the machine asks of the world below it.
//!
//! An implementation performs and reports. It does not judge: an error is the kernel's own number, and what it means is decided in
//! this crate. All is called statically: there is one kernel below a machine, and nothing on the way to it costs anything.

use crate::errno::Errno;
use crate::files::Files;
pub use crate::futex::{Futex, Limit};
use core::ops::Deref;
use overspill_store::PageBytes;
use overspill_vm::types::{PageId, Tag};

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
    /// What threads wait on.
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
    /// Asks what is mapped, for one thread.
    type Mappings: Mappings;
    /// A handle of the process itself, for discards of scattered ranges.
    type Process: Send + Sync;
    /// What else belongs to a machine on this kernel.
    type Host: Host<Self>;

    /// The monotonic clock, in nanoseconds.
    fn now_ns() -> u64;
    /// The calling thread.
    fn thread_id() -> u32;
    /// The processor time that a thread has had, in nanoseconds; `None` if it has ended.
    fn thread_cpu_ns(thread: u32) -> Option<u64>;
    /// Lets time pass.
    fn sleep_ns(ns: u64);
    /// Processors that the process may use.
    fn cpus() -> usize;
    /// Ends the process, at once. `tell`: nobody stands by who will print the message.
    fn stop(message: &[u8], tell: bool) -> !;

    /// Maps fresh zeroed memory for the pager, aligned to pages.
    ///
    /// # Errors
    /// ENOMEM.
    fn map_anonymous(len: usize) -> Result<*mut u8, Errno>;
    /// The same for a parking area, into which nobody but the kernel looks unless there is compressed memory.
    ///
    /// # Errors
    /// ENOMEM.
    fn map_parking(len: usize) -> Result<*mut u8, Errno> {
        Self::map_anonymous(len)
    }
    /// What is parked at an address.
    ///
    /// # Safety
    /// Something is, and stays there for as long as this is used.
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
    /// The kernel does not know it.
    fn advise(at: usize, len: usize, advice: Advice) -> Result<(), Errno>;
    /// Makes fresh memory of the pager's executable, too.
    ///
    /// # Errors
    /// The kernel, or its policy, will not have it.
    fn make_executable(at: usize, len: usize) -> Result<(), Errno>;
    /// Discards the content of scattered ranges of the pager's own memory.
    ///
    /// # Safety
    /// Nobody needs it.
    unsafe fn discard_ranges(process: &Self::Process, ranges: &[IoVec]);

    /// Discards pages of the program's, as its own MADV_DONTNEED would: it waits until somebody has read the event of that.
    ///
    /// # Safety
    /// The pager has what was there.
    ///
    /// # Errors
    /// As madvise(2).
    unsafe fn discard_of_program(at: usize, len: usize) -> Result<(), Errno>;
    /// Whether the page at an address is mapped and in memory.
    fn is_resident(at: usize) -> bool;
    /// Whether all of a range is mapped.
    fn is_mapped(start: usize, end: usize) -> bool;
    /// Calls `f(start, end)` for each run of present pages in the range, in bytes; some of them twice if that is not to be had at
    /// once.
    fn each_present(start: usize, end: usize, f: impl FnMut(usize, usize));
    /// Calls `f(start, end)` for each mapping, in the order of addresses.
    ///
    /// # Errors
    /// That cannot be told.
    fn each_mapping(f: impl FnMut(usize, usize)) -> Result<(), Errno>;
    /// Brings in the program's page at an address, as a read of the kernel's does. Whether it could be read.
    fn touch(at: usize) -> bool;
    /// The same as a read of the thread's own.
    ///
    /// # Safety
    /// It is mapped readable.
    unsafe fn touch_directly(at: usize);
    /// Makes the program's page its own if it shares it with another process, without waiting for anybody.
    fn own_page(at: usize) -> bool;
    /// Whether the kernel may merge equal pages of this process.
    fn merges_memory() -> bool;
    /// How much memory cannot leave, as far as that can be told.
    fn fixed() -> Option<Fixed>;

    /// I/O for one thread, of so many transfers at a time.
    ///
    /// # Errors
    /// The kernel will not have it.
    fn io(engine: Self::Engine, depth: u32) -> Result<Self::Io, Errno>;
    /// Reads here and now, until `len` bytes or the end of the file.
    ///
    /// # Safety
    /// `buf..buf + len` is writable, and nobody else's meanwhile.
    ///
    /// # Errors
    /// As pread(2).
    unsafe fn read_now(fd: i32, buf: *mut u8, len: usize, offset: u64) -> Result<usize, Errno>;
    /// Has threads that wait for pages of the range look again. `uffd`: its [`Uffd::raw`].
    fn wake(uffd: i32, at: usize, len: usize);

    /// Whether a mistake is to be made, to see whether tests notice.
    #[inline(always)]
    fn mistake(_: Mistake) -> bool {
        false
    }
}

/// Mistakes that have been made: what mended each can be taken back under a simulated kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Mistake {
    /// A move that the kernel denies is believed to have failed: a page read as zeroes.
    BelievesDenials,
    /// The same of a page behind others, if its mapping is another by the time that the kernel is asked again.
    ForgetsDenialsWithin,
    /// What is copied out of memory that is not writable is discarded by one call, which a split mapping makes two of: the second
    /// was taken for the program's, and the page read as zeroes.
    DiscardsRunsAtOnce,
    /// Pages are taken while the program's discard of them may still be under way: what was thrown away came back.
    TakesWhatIsDiscarded,
    /// Pages are taken by their address while a call may put others there: they read as zeroes.
    TakesWhatIsReplaced,
    /// What is reported to have been unmapped is taken for what lives there by then.
    FollowsLateUnmaps,
    /// What is reported to have been unmapped is gone, though the call was refused for a sealed mapping behind it: what was paged
    /// out there was lost.
    BelievesUnmaps,
    /// Two threads move memory at a time, and the kernel reports the second move first: what both had moved was lost.
    MovesAtOnce,
    /// An mremap that the kernel refuses, of what is one mapping without a pager and several with it, is refused.
    MovesOnlyOne,
    /// A parked original is dropped although its copy was refused (EAGAIN).
    DropsBeforeTheCopy,
    /// Parked copies are taken off the budget while they are still in memory.
    UnchargesBeforeTheDrop,
    /// The page daemon's bell is rung, and who sleeps there is not woken.
    RingsNobody,
    /// Pages that the other devices refuse are offered to them again and again, and not brought into memory: the swapoff never
    /// ended. (It was compressed memory that refused them, which was not counted as a failed write.)
    OffersWhatIsRefused,
    /// A swapoff gives up when nothing has moved for ten seconds, though nothing failed.
    GivesUpAsItWaits,
    /// A device's files are closed when nothing is stored there any more, and not only when nothing is read from there.
    ClosesBeforeReadsEnd,
    /// A device may go while space is being got for it: its descriptors are closed, and what was got is given to another device.
    GrowsWhatMayGo,
    /// Pages that one read leaves parked all have the place of the last of them.
    ParksInOnePlace,
    /// What a child can read is given to others while it lives.
    ThawsEarly,
    /// What a child could read is never given to others: swap grows without bound.
    NeverThaws,
    /// A forked child takes those of its parent who waited for the map for its own: nobody gets in.
    WaitsForItsParent,
    /// The page daemon waits for a page that it makes its own: for a handler that waits for a fork that waits for the daemon.
    WaitsToUnshare,
    /// What a device gives back is not compared with what was written.
    TrustsDevices,
    /// A read that was cut short is not completed: what is behind the cut is lost.
    LeavesShortReads,
    /// A write of the page daemon's that failed is taken for good.
    BelievesFailedWrites,
    /// The same of a swapoff's.
    BelievesFailedMoves,
    /// The same of a page that was to go on from compressed memory.
    BelievesFailedWriteBacks,
    /// Compressed memory is not told which slots were given up.
    KeepsWhatIsFreed,
    /// Pages that are to stay in memory may leave it.
    KeepsNothing,
    /// A parking place that was not needed is not given back.
    LosesPlaces,
    /// Faults go above the budget although frames could be had.
    GoesOverBudget,
    /// A device that has answered ENOSPC once is not asked again before the program is stopped.
    AsksOnce,
    /// Threads that wait for pages of a read are not woken when it has ended.
    ForgetsWhoWaits,
}

/// What is advised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// No huge pages.
    NoHugePages,
    /// A core dump need not hold it.
    NotDumped,
    /// Forked children find it empty.
    WipeOnFork,
}

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A thread touched a missing page, or wrote to a protected one: its address, with the lowest bit set if it was a write; thread
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

/// How a transfer ended: bytes done, and why it stopped there if it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Bytes done.
    pub bytes: usize,
    /// What stopped it.
    pub error: Option<Errno>,
}

/// A userfaultfd.
pub trait Uffd: Send + Sync {
    /// What is read from it.
    type Message: Copy + Default + Into<Event>;

    /// Its number, for [`Kernel::wake`].
    fn raw(&self) -> i32;
    /// Has missing pages of the range reported. Pages that are there stay.
    ///
    /// # Errors
    /// EINVAL nothing is mapped there, or not such memory; EBUSY it is registered on another.
    fn register(&self, at: usize, len: usize) -> Result<(), Errno>;
    /// The inverse. Missing pages read as zeroes afterwards.
    ///
    /// # Safety
    /// No page of the range is held by the pager.
    ///
    /// # Errors
    /// EINVAL nothing is mapped there.
    unsafe fn unregister(&self, at: usize, len: usize) -> Result<(), Errno>;
    /// Whether ranges are registered so that they can be protected.
    fn protects(&self) -> bool;
    /// From now on. What is registered already is to be registered again.
    fn set_protects(&self);
    /// Protects pages that are there: who writes waits.
    ///
    /// # Errors
    /// EAGAIN: an event is to be read before; ENOENT: not registered for that.
    fn protect(&self, at: usize, len: usize) -> Result<(), Errno>;
    /// The inverse, if anything can be protected. Wakes who waits.
    fn let_write(&self, at: usize, len: usize);
    /// Fills missing pages with a copy of `src`. Wakes nobody. Stops at the first page that it cannot fill.
    ///
    /// # Safety
    /// `src..src + len` is readable, and is what the program must find at `dst`.
    unsafe fn copy(&self, dst: usize, src: *const u8, len: usize) -> Moved;
    /// Fills missing pages with zeroes, and leaves every kind of mark alone. Wakes nobody.
    fn zero(&self, at: usize, len: usize) -> Moved;
    /// Moves pages to `dst`, which is registered here, without copying. Stops at the first page that it cannot move.
    ///
    /// # Safety
    /// The pager takes the pages over: it must give them back at a touch. `dst` is empty.
    unsafe fn move_pages(&self, dst: usize, src: usize, len: usize) -> Moved;
    /// Whether an unmap, discard or move of a range that is registered here is under way: it has begun, and its caller has not gone
    /// on since its event was read.
    fn is_changing(&self) -> bool;
    /// Makes every touch of a missing page an error, and wakes who waits for it.
    ///
    /// # Errors
    /// Something is there; the kernel cannot do it.
    fn poison(&self, at: usize, len: usize) -> Result<(), Errno>;
    /// Reads waiting messages; zero if there are none.
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

/// A transfer has ended.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// As given when it was issued.
    pub token: u64,
    /// Bytes, or what went wrong.
    pub result: Result<usize, Errno>,
}

/// One thread's I/O. Nothing allocates after it was made.
pub trait Io {
    /// Whether transfers go on after they were issued.
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
    /// Hands over what was issued without waiting.
    fn submit(&mut self);
    /// Issues, then waits until something has completed, or `timeout_ns` has passed.
    fn wait(&mut self, timeout_ns: Option<u64>);
    /// The next completion, if there is one.
    fn completion(&mut self) -> Option<Done>;
    /// A completion that its taker could not use now.
    fn put_back(&mut self, done: Done);
}

/// How pages are stored: as they are, or encrypted.
pub trait Content: Send + Sync {
    /// Whether what is written differs from what is in memory, so that a write needs a buffer.
    fn is_sealed(&self) -> bool;
    /// The tag of `bytes`, for the core to compare with `stored`, which it has of `page`. `scratch` holds rubbish afterwards.
    fn tag(&self, page: PageId, stored: Option<Tag>, bytes: &PageBytes, scratch: &mut PageBytes) -> Tag;
    /// Whether `bytes`, which were read from where `page` is stored, are what was written there: `stored`. If so they are what the
    /// program must find.
    #[must_use]
    fn open(&self, page: PageId, stored: Tag, bytes: &mut PageBytes) -> bool;
    /// What is to be written of a page, and what the core is to remember of it.
    fn seal(&self, page: PageId, plain: &PageBytes, sealed: &mut PageBytes) -> Tag;
}

/// One mapping of the program's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// First address.
    pub start: usize,
    /// Address after the last.
    pub end: usize,
    /// Of [`prot`].
    pub prot: i32,
}

/// Looks at mappings.
pub trait Mappings: Default {
    /// Opens what it will need, as far as that is to be had: later it may not be.
    fn opened() -> Self;
    /// The mapping at an address, `None` if there is none.
    ///
    /// # Errors
    /// That cannot be told.
    fn at(&mut self, addr: usize) -> Result<Option<Mapping>, Errno>;
    /// Reads pages of the program's memory, even where the program may not. Never waits for a page. Returns how many bytes there
    /// are before the first missing page.
    ///
    /// # Errors
    /// EIO: the first page is missing. Others: the machine does not allow it.
    fn read(&mut self, addr: usize, out: &mut [u8]) -> Result<usize, Errno>;
}

/// Memory of this process that stays where it is, in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Fixed {
    /// Locked by the program (mlock).
    pub locked: u64,
    /// Pinned for good: registered buffers of io_uring, memory that devices have been given.
    pub pinned: u64,
}

/// What a reference was to the pager, for a recording.
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

/// What else belongs to a machine on a kernel: who else rings its page daemon, who polls for faults, a recording.
pub trait Host<K: Kernel>: Send + Sync {
    /// The page daemon waits on this, if other processes ring it as well.
    fn bell(&self) -> Option<&K::Word>;
    /// A fault has been served, all but waking its thread.
    fn served(&self);
    /// Whether references are recorded.
    fn records(&self) -> bool;
    /// Whether there is no room for one more: faults wait.
    fn record_is_full(&self) -> bool;
    /// Records one. => there is room
    fn record(&self, page: u64, write: bool, touch: Touch);
}

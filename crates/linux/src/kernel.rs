//! Linux below the machine: implements [`overspill_machine::Kernel`] by system calls.

use crate::area;
use crate::content::Content;
use crate::credentials::Following;
use crate::family::Family;
use crate::io::{Engine, Io, LENT_MAX};
use crate::lock::Futex;
use crate::mappings::{self, Mappings};
use crate::record::Recorder;
use crate::swap_file::SwapFiles;
use crate::sys::{self, Errno, Fd, sys};
use crate::uffd::{self, Uffd};
use crate::wake_policy::WakePolicy;
use overspill_machine::errno;
use overspill_machine::kernel::{Advice, Fixed, IoVec, Kernel, Touch, prot};
use overspill_machine::swapoff::TRANSFERS_MAX;
use overspill_store::PageBytes;
use overspill_vm::types::PAGE_SHIFT;

const _: () = {
    assert!(errno::ENOENT == libc::ENOENT && errno::EIO == libc::EIO && errno::EAGAIN == libc::EAGAIN);
    assert!(errno::ENOMEM == libc::ENOMEM && errno::EBUSY == libc::EBUSY && errno::EEXIST == libc::EEXIST);
    assert!(errno::EINVAL == libc::EINVAL && errno::EFBIG == libc::EFBIG && errno::ENOSPC == libc::ENOSPC);
    assert!(errno::EBADMSG == libc::EBADMSG && errno::EOPNOTSUPP == libc::EOPNOTSUPP && errno::EDQUOT == libc::EDQUOT);
    assert!(prot::READ == libc::PROT_READ && prot::WRITE == libc::PROT_WRITE && prot::EXEC == libc::PROT_EXEC);
};

/// Linux.
pub enum Linux {}

/// The further parts of a machine on Linux.
pub struct Host {
    /// The processes that share the budget, if a fork's children have pagers of their own.
    pub family: Option<Family>,
    /// Which handler reads messages.
    pub wake_policy: WakePolicy,
    /// Handlers may keep idle CPUs from halting ([`crate::halt_poll`]).
    pub halt_polls: bool,
    /// The recording of page references, if there is one.
    pub record: Option<Recorder>,
    /// How the pager's threads follow the program when it gives up rights.
    pub following: Following,
}

impl Host {
    /// For a process without a family and without a recording, that lets idle CPUs halt.
    ///
    /// # Errors
    /// As [`Following::new`].
    pub fn new() -> Result<Host, Errno> {
        let (wake_policy, following) = (WakePolicy::default(), Following::new()?);
        Ok(Host { family: None, wake_policy, halt_polls: false, record: None, following })
    }

    /// All threads of the pager follow the program, which has given up rights, and the process leaves the family's cache, where it
    /// could write what others read. Each thread that follows is outside of the cache, and does not enter it again. `call` and
    /// `landlock`: as for [`Following::all`].
    ///
    /// # Errors
    /// As [`Following::all`]; ENOMEM.
    ///
    /// # Safety
    /// As [`Following::all`].
    pub unsafe fn follow(&self, landlock: Option<(u32, i32)>, call: impl FnMut()) -> Result<(), Errno> {
        self.family.iter().for_each(Family::shun_cache);
        // SAFETY: the caller's promise.
        unsafe { self.following.all(landlock, call) }?;
        self.family.as_ref().map_or(Ok(()), Family::leave_cache)
    }
}

impl overspill_machine::kernel::Host<Linux> for Host {
    fn bell(&self) -> Option<&Futex> {
        self.family.as_ref().map(|family| Futex::of(family.bell()))
    }
    fn served(&self) {
        self.wake_policy.served();
    }
    fn waits(&self, more: i32) {
        self.wake_policy.waits(more);
    }
    fn threads_run(&self, thousandths: u64) {
        self.wake_policy.threads_run(thousandths);
    }
    fn freezes(&self) {
        self.wake_policy.freezes();
    }
    fn daemon_works(&self, works: bool) {
        self.wake_policy.daemon_works(works);
    }
    fn shares_cpu(&self) -> bool {
        self.wake_policy.is_here()
    }
    fn load_common(&self, key: Option<u128>, page: &mut PageBytes) -> bool {
        self.family.as_ref().is_some_and(|family| family.load_common(key, page))
    }
    fn store_common(&self, key: u128, page: &PageBytes) {
        if let Some(family) = &self.family {
            family.store_common(key, page);
        }
    }
    fn records(&self) -> bool {
        self.record.is_some()
    }
    fn record_is_full(&self) -> bool {
        self.record.as_ref().is_some_and(Recorder::is_full)
    }
    fn record(&self, page: u64, write: bool, touch: Touch) {
        if let Some(record) = &self.record {
            record.push(page, write, touch);
        }
    }
}

// a flush and a swapoff may have a lent one
const _: () = assert!(LENT_MAX as usize >= <Linux as Kernel>::FLUSH_PAGES && LENT_MAX >= TRANSFERS_MAX);

impl Kernel for Linux {
    type Word = Futex;
    type Uffd = Uffd;
    type Io = Io;
    type Engine = Engine;
    type Files = SwapFiles;
    type Content = Content;
    type Mappings = Mappings;
    type Process = Option<Fd>;
    type Host = Host;

    fn now_ns() -> u64 {
        sys::now_ns()
    }
    fn thread_id() -> u32 {
        sys::gettid()
    }
    fn thread_cpu_ns(thread: u32) -> Option<u64> {
        sys::thread_cpu_ns(thread)
    }
    fn sleep_ns(ns: u64) {
        sys::futex_wait(&core::sync::atomic::AtomicU32::new(0), 0, ns);
    }
    fn cpus() -> usize {
        sys::count_cpus(&sys::allowed_cpus()) as usize
    }
    fn stop(message: &[u8], tell: bool) -> ! {
        if tell {
            sys::complain(message);
        }
        sys::kill_self()
    }

    fn map_anonymous(len: usize) -> Result<*mut u8, Errno> {
        area::map_anonymous(len)
    }
    unsafe fn unmap(at: *mut u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { area::unmap(at, len) };
    }
    fn advise(at: usize, len: usize, advice: Advice) -> Result<(), Errno> {
        let advice = match advice {
            Advice::NotDumped => libc::MADV_DONTDUMP,
            Advice::WipeOnFork => libc::MADV_WIPEONFORK,
        };
        // SAFETY: none of these changes what this process reads.
        unsafe { sys::madvise(at, len, advice) }
    }
    fn make_executable(at: usize, len: usize) -> Result<(), Errno> {
        // SAFETY: the pager's own memory, which is as readable and writable as before.
        unsafe { sys!(libc::SYS_mprotect, at, len, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) }.map(drop)
    }
    unsafe fn discard_ranges(process: &Option<Fd>, ranges: &[IoVec]) {
        // SAFETY: the caller's promise.
        unsafe { sys::discard_ranges(process.as_ref().map_or(-1, Fd::raw), ranges) };
    }

    unsafe fn discard_of_program(at: usize, len: usize) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        unsafe { sys::madvise(at, len, libc::MADV_DONTNEED) }
    }
    fn each_resident(start: usize, end: usize, f: impl FnMut(usize)) {
        sys::each_resident(start, end, f);
    }
    fn is_mapped(start: usize, end: usize) -> bool {
        sys::is_mapped(start, end)
    }
    fn yield_now() {
        sys::yield_now();
    }
    fn each_mapping(f: impl FnMut(usize, usize)) -> Result<(), Errno> {
        sys::each_mapping(f)
    }
    fn touch(at: usize) -> bool {
        sys::read_own(at, &mut [0]).is_ok()
    }
    fn own_page(at: usize) -> bool {
        sys::own_page(at)
    }
    fn merges_memory() -> bool {
        sys::merges_memory()
    }
    fn fixed() -> Option<Fixed> {
        mappings::fixed()
    }

    fn io(engine: Engine, depth: u32) -> Result<Io, Errno> {
        Io::new(engine, depth)
    }
    unsafe fn read_now(fd: i32, buf: *mut u8, len: usize, offset: u64) -> Result<usize, Errno> {
        // SAFETY: the caller's promise.
        unsafe { sys::pread_full(fd, buf, len, offset) }
    }
    fn file_len(fd: i32) -> Result<u64, Errno> {
        sys::file_stat(fd).map(|stat| stat.st_size as u64)
    }
    fn sync(fd: i32) -> Result<(), Errno> {
        sys::fdatasync(fd)
    }
    fn drop_cached(fd: i32, offset: u64, len: usize) {
        sys::drop_cached(fd, offset, len);
    }
    fn copy_of_program(at: usize, to: &mut [PageBytes]) -> usize {
        sys::copy_own(at, to.as_flattened_mut()).unwrap_or(0) >> PAGE_SHIFT
    }
    fn wake(uffd: i32, at: usize, len: usize) {
        uffd::wake(uffd, at, len);
    }
}

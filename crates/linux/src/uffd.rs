//! userfaultfd: the ioctls that Overspill needs, with the kernel's own errors.
//!
//! Numbers and structures are from the kernel's ABI (`include/uapi/linux/userfaultfd.h`, Linux 6.18). The existing crates have no
//! MOVE and POISON.

use crate::area;
use crate::mappings::Mappings;
use crate::sys::{self, Errno, Fd, sys};
use core::mem::size_of;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
pub use overspill_machine::kernel::{Event, Marks, Moved};
use overspill_machine::kernel::{Mappings as _, Uffd as _};
use overspill_vm::types::PAGE_SIZE;

/// UFFD_FEATURE_EVENT_FORK. It needs CAP_SYS_PTRACE, and is not used.
pub const FEATURE_EVENT_FORK: u64 = 1 << 1;
/// UFFD_FEATURE_EVENT_REMAP, _REMOVE, _UNMAP.
pub const FEATURES_EVENTS: u64 = 1 << 2 | 1 << 3 | 1 << 6;
/// UFFD_FEATURE_THREAD_ID.
pub const FEATURE_THREAD_ID: u64 = 1 << 8;
/// UFFD_FEATURE_SIGBUS.
pub const FEATURE_SIGBUS: u64 = 1 << 7;
/// UFFD_FEATURE_POISON.
pub const FEATURE_POISON: u64 = 1 << 14;
/// UFFD_FEATURE_MOVE: pages can be taken out of the program's sight without a copy. Linux 6.8.
pub const FEATURE_MOVE: u64 = 1 << 16;
/// UFFD_FEATURE_RWP, _RWP_ASYNC: the kernel tells which pages are used. These and the other numbers with RWP are from version 10 of
/// the series "userfaultfd: working set tracking for VM guest memory" (Kiryl Shutsemau, linux-mm, July 2026).
pub const FEATURES_REFERENCES: u64 = 1 << 17 | 1 << 18;

pub(crate) const API: u64 = 0xAA;
pub(crate) const USER_MODE_ONLY: i32 = 1;
/// UFFDIO_API, as a number for ioctl(2).
pub(crate) const IOC_API: u64 = ioc(RW, 0x3F, size_of::<ApiArg>());
/// USERFAULTFD_IOC_NEW, of the device.
pub(crate) const IOC_NEW: u64 = 0xAA00;
const PAGEFAULT_FLAG_WRITE: usize = 1;
const REGISTER_MODE_MISSING: u64 = 1;
const REGISTER_MODE_WP: u64 = 2;
const REGISTER_MODE_RWP: u64 = 8;
const WRITEPROTECT_MODE_WP: u64 = 1;
const RWPROTECT_MODE_RWP: u64 = 1;
const COPY_DONT_WAKE: u64 = 1;
const ZERO_DONT_WAKE: u64 = 1;

const fn ioc(dir: u64, nr: u64, size: usize) -> u64 {
    dir << 30 | (size as u64) << 16 | 0xAA << 8 | nr
}
const RW: u64 = 3;
const R: u64 = 2;

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ApiArg {
    pub(crate) api: u64,
    pub(crate) features: u64,
    pub(crate) ioctls: u64,
}
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Range {
    start: u64,
    len: u64,
}
#[repr(C)]
#[derive(Default)]
struct RegisterArg {
    range: Range,
    mode: u64,
    ioctls: u64,
}
#[repr(C)]
#[derive(Default)]
struct CopyArg {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    done: i64,
}
/// Of UFFDIO_WRITEPROTECT, and of UFFDIO_RWPROTECT.
#[repr(C)]
#[derive(Default)]
struct WriteProtectArg {
    range: Range,
    mode: u64,
}
#[repr(C)]
#[derive(Default)]
struct PoisonArg {
    range: Range,
    mode: u64,
    updated: i64,
}

#[repr(C)]
#[derive(Default)]
struct ZeroArg {
    range: Range,
    mode: u64,
    done: i64,
}

/// One message, 32 bytes.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Message {
    event: u8,
    reserved: [u8; 7],
    args: [u64; 3],
}

impl From<Message> for Event {
    fn from(message: Message) -> Event {
        let [a, b, c] = message.args.map(|x| x as usize);
        match message.event {
            0x12 => Event::Fault(b & !(PAGE_SIZE - 1) | a & PAGEFAULT_FLAG_WRITE, c as u32),
            0x14 => Event::Remap(a, b, c),
            0x15 => Event::Remove(a, b),
            0x16 => Event::Unmap(a, b),
            _ => Event::Other,
        }
    }
}

/// Opens the device that makes userfaultfds.
///
/// # Errors
/// As open(2).
pub fn open_device() -> Result<Fd, Errno> {
    sys::open(b"/dev/userfaultfd\0", libc::O_RDWR | libc::O_CLOEXEC, 0)
}

/// An open userfaultfd.
#[derive(Debug)]
pub struct Uffd {
    fd: Fd,
    features: u64,
    /// Whether registered memory can be protected against writes.
    protects: AtomicBool,
}

impl Uffd {
    /// Opens one. `full`: it must also serve faults that the kernel takes on the program's behalf (system calls). That needs
    /// CAP_SYS_PTRACE, `vm.unprivileged_userfaultfd=1`, or access to `/dev/userfaultfd`. The device is tried second, also without
    /// `full`, because a seccomp filter may forbid the system call alone, with EPERM or ENOSYS. `device` is that device if it is
    /// open already: the process may have lost the right to open it again.
    ///
    /// # Errors
    /// EPERM, ENOSYS as from the system call; EINVAL if a feature is missing.
    pub fn open(full: bool, features: u64, device: Option<&Fd>) -> Result<Self, Errno> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | if full { 0 } else { USER_MODE_ONLY };
        // SAFETY: touches no memory.
        let fd = match unsafe { sys!(libc::SYS_userfaultfd, flags) } {
            Ok(fd) => Fd::new(fd),
            Err(e @ (libc::EPERM | libc::EACCES | libc::ENOSYS)) => {
                let opened = if device.is_none() { Some(open_device().map_err(|_| e)?) } else { None };
                let dev = device.or(opened.as_ref()).ok_or(e)?;
                // SAFETY: USERFAULTFD_IOC_NEW takes flags by value.
                Fd::new(unsafe { sys!(libc::SYS_ioctl, dev.raw(), IOC_NEW, libc::O_CLOEXEC | libc::O_NONBLOCK) }?)
            }
            Err(e) => return Err(e),
        };
        let mut api = ApiArg { api: API, features, ioctls: 0 };
        // SAFETY: UFFDIO_API reads and writes the structure, which lives over the call.
        unsafe { sys!(libc::SYS_ioctl, fd.raw(), IOC_API, &mut api as *mut _) }?;
        // (a kernel may leave out features instead of refusing)
        Ok(Uffd { fd, features: features & api.features, protects: AtomicBool::new(false) })
    }

    /// Whether the kernel tells references as it should, tried on a page of our own. (A kernel with another version of the series
    /// may mean something else by its numbers.)
    pub(crate) fn has_told_references(&self) -> Result<bool, Errno> {
        let at = area::map_anonymous(PAGE_SIZE)? as usize;
        let mut mappings = Mappings::default();
        let mut touched = || {
            let mut any = false;
            mappings.references(at, at + PAGE_SIZE, |_, _| any = true).map(|()| any)
        };
        let told = self.register(at, PAGE_SIZE, Marks::Watched).and_then(|()| {
            // SAFETY: our own empty page, and a page of zeroes.
            let filled = unsafe { self.copy(at, [0; PAGE_SIZE].as_ptr(), PAGE_SIZE) };
            filled.error.map_or(Ok(()), Err)?;
            let before = touched()?;
            self.watch(at, PAGE_SIZE)?;
            Ok(before && !touched()?)
        });
        // SAFETY: nobody uses the page. (While it is registered, unmapping it would wait for a reader of the event.)
        let _ = unsafe { self.unregister(at, PAGE_SIZE) };
        // SAFETY: the same.
        unsafe { area::unmap(at as *mut u8, PAGE_SIZE) };
        told
    }

    /// Protects pages against writes, or lets writes through again.
    ///
    /// # Errors
    /// As [`Uffd::protect`].
    pub fn write_protect(&self, at: usize, len: usize, on: bool) -> Result<(), Errno> {
        let mode = if on { WRITEPROTECT_MODE_WP } else { 0 };
        let mut p = WriteProtectArg { range: Range { start: at as u64, len: len as u64 }, mode };
        // SAFETY: the structure lives over the call; no content changes, and the thread that serves faults lets writers go on.
        unsafe { sys!(libc::SYS_ioctl, self.raw(), ioc(RW, 0x06, size_of::<WriteProtectArg>()), &mut p as *mut _) }.map(drop)
    }
}

impl overspill_machine::kernel::Uffd for Uffd {
    type Message = Message;

    fn raw(&self) -> i32 {
        self.fd.raw()
    }

    fn register(&self, at: usize, len: usize, marks: Marks) -> Result<(), Errno> {
        let mode = match marks {
            Marks::None => REGISTER_MODE_MISSING,
            Marks::Protected => REGISTER_MODE_MISSING | REGISTER_MODE_WP,
            Marks::Watched => REGISTER_MODE_MISSING | REGISTER_MODE_RWP,
        };
        let mut r = RegisterArg { range: Range { start: at as u64, len: len as u64 }, mode, ioctls: 0 };
        // SAFETY: the structure lives over the call. Registering changes no content; the caller serves the faults.
        unsafe { sys!(libc::SYS_ioctl, self.raw(), ioc(RW, 0x00, size_of::<RegisterArg>()), &mut r as *mut _) }.map(drop)
    }

    fn protects(&self) -> bool {
        self.protects.load(Relaxed)
    }

    fn set_protects(&self) {
        self.protects.store(true, Relaxed);
    }

    fn tells_references(&self) -> bool {
        self.features & FEATURES_REFERENCES == FEATURES_REFERENCES
    }

    fn watch(&self, at: usize, len: usize) -> Result<(), Errno> {
        let mut p = WriteProtectArg { range: Range { start: at as u64, len: len as u64 }, mode: RWPROTECT_MODE_RWP };
        // SAFETY: the structure lives over the call; no content changes, and the kernel itself lets the next touch through.
        unsafe { sys!(libc::SYS_ioctl, self.raw(), ioc(RW, 0x09, size_of::<WriteProtectArg>()), &mut p as *mut _) }.map(drop)
    }

    fn protect(&self, at: usize, len: usize) -> Result<(), Errno> {
        self.write_protect(at, len, true)
    }

    fn let_write(&self, at: usize, len: usize) {
        if self.protects() {
            let _ = self.write_protect(at, len, false);
        }
    }

    unsafe fn unregister(&self, at: usize, len: usize) -> Result<(), Errno> {
        let mut r = Range { start: at as u64, len: len as u64 };
        // SAFETY: the structure lives over the call; content is the caller's promise.
        unsafe { sys!(libc::SYS_ioctl, self.raw(), ioc(R, 0x01, size_of::<Range>()), &mut r as *mut _) }.map(drop)
    }

    unsafe fn copy(&self, dst: usize, src: *const u8, len: usize) -> Moved {
        let mut c = CopyArg { dst: dst as u64, src: src as u64, len: len as u64, mode: COPY_DONT_WAKE, done: 0 };
        // SAFETY: the structure lives over the call; content is the caller's promise.
        let r = unsafe { sys!(libc::SYS_ioctl, self.raw(), ioc(RW, 0x03, size_of::<CopyArg>()), &mut c as *mut _) };
        transferred(r, c.done, len)
    }

    fn zero(&self, at: usize, len: usize) -> Moved {
        let mut z = ZeroArg { range: Range { start: at as u64, len: len as u64 }, mode: ZERO_DONT_WAKE, done: 0 };
        // SAFETY: the structure lives over the call; a page that is there is left alone.
        let r = unsafe { sys!(libc::SYS_ioctl, self.raw(), ioc(RW, 0x04, size_of::<ZeroArg>()), &mut z as *mut _) };
        transferred(r, z.done, len)
    }

    fn is_changing(&self) -> bool {
        // SAFETY: nothing is copied; the kernel answers EAGAIN before it checks anything else.
        unsafe { self.copy(0, core::ptr::null(), 0) }.error == Some(libc::EAGAIN)
    }

    unsafe fn move_pages(&self, dst: usize, src: usize, len: usize) -> Moved {
        let mut c = CopyArg { dst: dst as u64, src: src as u64, len: len as u64, mode: 0, done: 0 };
        // SAFETY: the structure lives over the call; keeping the pages is the caller's promise.
        let r = unsafe { sys!(libc::SYS_ioctl, self.raw(), ioc(RW, 0x05, size_of::<CopyArg>()), &mut c as *mut _) };
        transferred(r, c.done, len)
    }

    fn poison(&self, at: usize, len: usize) -> Result<(), Errno> {
        if self.features & FEATURE_POISON == 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let mut p = PoisonArg { range: Range { start: at as u64, len: len as u64 }, mode: 0, updated: 0 };
        // SAFETY: the structure lives over the call; a poisoned page holds no content that could be lost.
        unsafe { sys!(libc::SYS_ioctl, self.raw(), ioc(RW, 0x08, size_of::<PoisonArg>()), &mut p as *mut _) }.map(drop)
    }

    fn read(&self, out: &mut [Message]) -> usize {
        // SAFETY: the kernel writes whole messages within the slice; every bit pattern is a Message.
        let n = unsafe { sys!(libc::SYS_read, self.raw(), out.as_mut_ptr(), size_of_val(out)) };
        n.unwrap_or(0) / size_of::<Message>()
    }
}

/// Makes threads that wait for pages of the range look again. `fd` is [`Uffd::raw`].
pub fn wake(fd: i32, at: usize, len: usize) {
    let mut r = Range { start: at as u64, len: len as u64 };
    // SAFETY: the structure lives over the call; waking changes no content.
    let _ = unsafe { sys!(libc::SYS_ioctl, fd, ioc(R, 0x02, size_of::<Range>()), &mut r as *mut _) };
}

fn transferred(r: Result<usize, Errno>, done: i64, len: usize) -> Moved {
    let (bytes, error) = match r {
        Ok(_) => (len, None),
        // a partial transfer fails with EAGAIN, and `done` is the bytes done; else `done` is the negative errno, or untouched
        Err(_) if done > 0 => (done as usize, None),
        Err(e) => (0, Some(if done < 0 { -done as Errno } else { e })),
    };
    Moved { bytes, error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Linux;
    use overspill_machine::kernel::take_pages;
    use std::time::{Duration, Instant};

    const PAGES: usize = 16;
    const LEN: usize = PAGES * PAGE_SIZE;

    /// A Python program crashed, once in some hundred runs: the kernel had moved a page out of its memory and answered that it had
    /// not. The pager believed that the page was still there and its parking place free, and later filled the missing page with
    /// zeroes. In this test another thread clears the pages' "accessed" bits all the time, as DAMON does. Then Linux 6.18 denies
    /// one move in some hundred.
    #[test]
    fn a_move_that_the_kernel_denies_is_known() {
        let uffd = Uffd::open(false, FEATURE_MOVE, None);
        let Ok(uffd) = uffd.inspect_err(|e| eprintln!("SKIPPED: no userfaultfd (error {e})")) else {
            assert!(std::env::var_os("CI").is_none(), "cannot be tested here");
            return;
        };
        let areas = [0; 2].map(|_: u8| area::map_anonymous(LEN).expect("64 KiB") as usize);
        areas.iter().for_each(|&at| uffd.register(at, LEN, Marks::None).expect("registered"));
        // a fork of another test would share the pages, and then they could not be moved SAFETY: this changes no content.
        areas.iter().for_each(|&at| unsafe { sys::madvise(at, LEN, libc::MADV_DONTFORK) }.expect("advised"));
        let source = [7u8; PAGE_SIZE];
        for page in 0..PAGES {
            // SAFETY: our own mapping, and our own page.
            let filled = unsafe { uffd.copy(areas[0] + page * PAGE_SIZE, source.as_ptr(), PAGE_SIZE) };
            assert_eq!(filled.error, None);
        }
        let stop = AtomicBool::new(false);
        let (mut moves, mut denied) = (0, 0);
        let last = std::thread::scope(|s| {
            s.spawn(|| {
                while !stop.load(Relaxed) {
                    // SAFETY: advice changes no content.
                    areas.iter().for_each(|&at| assert!(unsafe { sys::madvise(at, LEN, libc::MADV_COLD) }.is_ok()));
                }
            });
            let until = Instant::now() + Duration::from_secs(2);
            let [mut from, mut to] = areas;
            let mut wrong = None;
            while wrong.is_none() && Instant::now() < until {
                let (mut done, denied_before) = (0, denied);
                while done < LEN && wrong.is_none() {
                    if Instant::now() > until + Duration::from_secs(20) {
                        wrong = Some(libc::EBUSY); // for good
                    }
                    // SAFETY: both are our own mappings; one of them is empty.
                    let (moved, was_denied) = unsafe { take_pages::<Linux>(&uffd, to + done, from + done, LEN - done) };
                    done += moved.bytes;
                    moves += 1;
                    denied += usize::from(was_denied);
                    // the page is isolated at that moment, for example by the other thread's advice: it is still there, and can be
                    // tried again
                    wrong = wrong.or(moved.error.filter(|&e| e != libc::EAGAIN && e != libc::EBUSY));
                }
                let there = |at: usize| (0..PAGES).filter(|page| sys::is_resident(at + page * PAGE_SIZE)).count();
                if denied > denied_before && (there(from), there(to)) != (0, PAGES) {
                    wrong = Some(0);
                }
                (from, to) = (to, from);
            }
            stop.store(true, Relaxed);
            assert_eq!(wrong, None, "after {moves} moves, {denied} of them denied");
            from
        });
        eprintln!("{moves} moves, {denied} of them denied");
        // SAFETY: the pages of our own mapping, all of which are there.
        assert!(unsafe { core::slice::from_raw_parts(last as *const u8, LEN) }.iter().all(|&byte| byte == 7));
        // SAFETY: nobody uses them any more.
        areas.iter().for_each(|&at| unsafe { area::unmap(at as *mut u8, LEN) });
    }

    /// A page is told to have been touched once it was touched, and not before. (Linux 6.18 does not tell. There the features are
    /// refused, and so is the call.)
    #[test]
    fn a_touch_of_a_watched_page_is_told() {
        let Ok(uffd) = Uffd::open(false, FEATURE_MOVE | FEATURES_REFERENCES, None) else {
            let uffd = Uffd::open(false, FEATURE_MOVE, None);
            let Ok(uffd) = uffd.inspect_err(|e| eprintln!("SKIPPED: no userfaultfd (error {e})")) else {
                assert!(std::env::var_os("CI").is_none(), "cannot be tested here");
                return;
            };
            assert!(!uffd.tells_references());
            assert!(uffd.has_told_references().is_err(), "it is refused, and nothing is left mapped");
            return;
        };
        assert_eq!(uffd.has_told_references(), Ok(true));
        let at = area::map_anonymous(LEN).expect("64 KiB") as usize;
        uffd.register(at, LEN, Marks::Watched).expect("registered");
        for page in 0..4 {
            // SAFETY: our own mapping, and our own page.
            let filled = unsafe { uffd.copy(at + page * PAGE_SIZE, [7; PAGE_SIZE].as_ptr(), PAGE_SIZE) };
            assert_eq!(filled.error, None);
        }
        uffd.watch(at, LEN).expect("watched");
        // SAFETY: the page is there.
        assert_eq!(unsafe { ((at + PAGE_SIZE) as *const u8).read_volatile() }, 7);
        // SAFETY: the same.
        unsafe { ((at + 2 * PAGE_SIZE) as *mut u8).write_volatile(8) };
        let mut told = Vec::new();
        Mappings::default().references(at, at + LEN, |start, end| told.push((start - at, end - at))).expect("it can be asked");
        assert_eq!(told, [(PAGE_SIZE, 3 * PAGE_SIZE)]);
        // SAFETY: nobody uses it any more.
        unsafe { area::unmap(at as *mut u8, LEN) };
    }

    /// The page daemon used MADV_POPULATE_WRITE to unshare pages after a fork. If the program had discarded the page meanwhile,
    /// that call waits for a handler. The handlers waited for a fork, and the fork waited for the daemon's writes: for ever. In
    /// this test no thread serves faults, so anything that waits for one hangs.
    #[test]
    fn what_a_fork_shares_becomes_our_own_without_waiting_for_a_fault() {
        let Ok(uffd) = Uffd::open(true, FEATURE_MOVE, None).inspect_err(|e| eprintln!("SKIPPED: no full userfaultfd (error {e})"))
        else {
            assert!(std::env::var_os("CI").is_none(), "cannot be tested here");
            return;
        };
        let [from, to] = [0; 2].map(|_: u8| area::map_anonymous(LEN).expect("64 KiB") as usize);
        [from, to].iter().for_each(|&at| uffd.register(at, LEN, Marks::None).expect("registered"));
        let source = [7u8; PAGE_SIZE];
        // SAFETY: our own mapping, and our own page.
        assert_eq!(unsafe { uffd.copy(from, source.as_ptr(), PAGE_SIZE) }.error, None);
        // SAFETY: the child does nothing but wait for its end, by a raw call.
        let child = unsafe { libc::fork() };
        if child == 0 {
            loop {
                // SAFETY: touches no memory.
                let _ = unsafe { sys!(libc::SYS_pause) };
            }
        }
        // SAFETY: both are our own mappings; `to` is empty.
        let take = || unsafe { take_pages::<Linux>(&uffd, to, from, PAGE_SIZE) }.0;
        assert_eq!(take().error, Some(libc::EBUSY), "the child has it too");
        while take().error.is_some() {
            assert!(sys::own_page(from)); // (again, if another test forks at this moment)
        }
        // SAFETY: the page was moved there.
        assert!(unsafe { core::slice::from_raw_parts(to as *const u8, PAGE_SIZE) }.iter().all(|&byte| byte == 7));
        assert!(!sys::own_page(from), "it is missing");
        // SAFETY: our own child; the status is a live word; nobody uses the mappings any more.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, &mut 0, 0);
            [from, to].iter().for_each(|&at| area::unmap(at as *mut u8, LEN));
        }
    }
}

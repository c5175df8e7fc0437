//! Raw system calls: no errno, no libc, no thread-local storage.
//!
//! Pager threads of the agent are not libc threads, and hooks run inside libc itself. So nothing here may touch libc's state,
//! except [`find_clock`], which runs at set-up. Every call returns `Result<usize, i32>` with a positive errno.
//!
//! Here are the call itself, files, futexes and messages; in `memory.rs`, `threads.rs` and `clock.rs` what their names say.

mod clock;
mod memory;
mod threads;

pub use clock::*;
use core::arch::asm;
use core::ffi::CStr;
use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering::Relaxed};
pub use memory::*;
pub use overspill_machine::kernel::IoVec;
use std::os::fd::{AsFd, BorrowedFd};
pub use threads::*;

/// A positive errno.
pub type Errno = i32;

/// The raw call with six arguments.
///
/// # Safety
/// As for the system call itself: the kernel reads and writes the memory that the arguments point at.
#[inline]
pub unsafe fn syscall6(nr: libc::c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> Result<usize, Errno> {
    let ret: isize;
    // SAFETY: the x86-64 system call convention; the kernel clobbers rcx and r11 only. What the call does is the caller's promise.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") nr as isize => ret,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    if (-4095..0).contains(&ret) { Err(-ret as Errno) } else { Ok(ret as usize) }
}

macro_rules! sys {
    ($nr:expr $(,$a:expr)*) => { sys!(@ $nr; $($a as usize,)* ; 0usize, 0usize, 0usize, 0usize, 0usize, 0usize) };
    (@ $nr:expr; $a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr, ; $($z:expr),*) => { $crate::sys::syscall6($nr, $a, $b, $c, $d, $e, $f) };
    (@ $nr:expr; $a:expr, $b:expr, $c:expr, $d:expr, $e:expr, ; $($z:expr),*) => { $crate::sys::syscall6($nr, $a, $b, $c, $d, $e, 0) };
    (@ $nr:expr; $a:expr, $b:expr, $c:expr, $d:expr, ; $($z:expr),*) => { $crate::sys::syscall6($nr, $a, $b, $c, $d, 0, 0) };
    (@ $nr:expr; $a:expr, $b:expr, $c:expr, ; $($z:expr),*) => { $crate::sys::syscall6($nr, $a, $b, $c, 0, 0, 0) };
    (@ $nr:expr; $a:expr, $b:expr, ; $($z:expr),*) => { $crate::sys::syscall6($nr, $a, $b, 0, 0, 0, 0) };
    (@ $nr:expr; $a:expr, ; $($z:expr),*) => { $crate::sys::syscall6($nr, $a, 0, 0, 0, 0, 0) };
    (@ $nr:expr; ; $($z:expr),*) => { $crate::sys::syscall6($nr, 0, 0, 0, 0, 0, 0) };
}
pub(crate) use sys;

/// A file descriptor owned by the pager; closed when dropped.
#[derive(Debug)]
pub struct Fd(i32);

impl Fd {
    /// Takes ownership of an open descriptor.
    pub fn new(fd: usize) -> Self {
        Fd(fd as i32)
    }
    /// The number.
    pub fn raw(&self) -> i32 {
        self.0
    }
    /// Gives the number away without closing it.
    pub fn into_raw(self) -> i32 {
        let fd = self.0;
        core::mem::forget(self);
        fd
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as its owner, which is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        let _ = close(self.0);
    }
}

/// close(2). To close a descriptor that other code relies on is a logic error, not a memory error.
pub fn close(fd: i32) -> Result<(), Errno> {
    // SAFETY: close touches no memory of ours.
    unsafe { sys!(libc::SYS_close, fd) }.map(drop)
}

/// The kernel's version: 6.18.3 is (6, 18). Zeroes if it is unknown.
pub fn kernel_version() -> (u32, u32) {
    // SAFETY: all-zero bytes are a valid structure of texts, which the kernel fills.
    let name = unsafe {
        let mut name: libc::utsname = core::mem::zeroed();
        let _ = sys!(libc::SYS_uname, &raw mut name);
        name
    };
    let mut numbers = name.release.split(|c| !(*c as u8).is_ascii_digit());
    let mut next =
        || numbers.next().unwrap_or_default().iter().fold(0, |n: u32, c| n.wrapping_mul(10).wrapping_add((*c as u8 - b'0') as u32));
    (next(), next())
}

/// pread(2) until `len` bytes or the end of the file.
///
/// # Safety
/// `buf..buf + len` must be writable, and no other thread may read it meanwhile.
pub unsafe fn pread_full(fd: i32, buf: *mut u8, len: usize, offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < len {
        // SAFETY: within the caller's buffer.
        match unsafe { sys!(libc::SYS_pread64, fd, buf.add(done), len - done, offset + done as u64) } {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(libc::EINTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// pwritev(2), once.
///
/// # Safety
/// The vectors point at readable memory.
pub unsafe fn pwritev(fd: i32, iov: &[IoVec], offset: u64) -> Result<usize, Errno> {
    loop {
        // SAFETY: the caller's promise.
        match unsafe { sys!(libc::SYS_pwritev, fd, iov.as_ptr(), iov.len(), offset, 0) } {
            Err(libc::EINTR) => {}
            r => return r,
        }
    }
}

/// fstat(2).
///
/// # Errors
/// As fstat(2).
pub fn file_stat(fd: i32) -> Result<libc::stat, Errno> {
    // SAFETY: all-zero bytes are a valid stat, which the kernel writes.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the structure lives over the call.
    unsafe { sys!(libc::SYS_fstat, fd, &raw mut stat) }?;
    Ok(stat)
}

/// The flags that a file was opened with.
///
/// # Errors
/// As fcntl(2).
pub fn open_flags(fd: i32) -> Result<i32, Errno> {
    // SAFETY: touches no memory.
    unsafe { sys!(libc::SYS_fcntl, fd, libc::F_GETFL) }.map(|flags| flags as i32)
}

/// fdatasync(2).
///
/// # Errors
/// As fdatasync(2).
pub fn fdatasync(fd: i32) -> Result<(), Errno> {
    loop {
        // SAFETY: touches no memory.
        match unsafe { sys!(libc::SYS_fdatasync, fd) } {
            Err(libc::EINTR) => {}
            done => return done.map(drop),
        }
    }
}

/// Drops what the kernel has cached of a part of a file and need not write.
pub fn drop_cached(fd: i32, offset: u64, len: usize) {
    // SAFETY: touches no memory.
    let _ = unsafe { sys!(libc::SYS_fadvise64, fd, offset, len, libc::POSIX_FADV_DONTNEED) };
}

/// read(2), once.
pub fn read(fd: i32, buf: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the kernel writes within the slice only.
    unsafe { sys!(libc::SYS_read, fd, buf.as_mut_ptr(), buf.len()) }
}

/// What one read of a file gives, which is all of a small one of the kernel's. The path ends in a zero byte.
///
/// # Errors
/// As open(2), read(2).
///
/// # Panics
/// As [`open`].
pub fn read_file<'a>(path: &[u8], buf: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let file = open(path, libc::O_RDONLY | libc::O_CLOEXEC, 0)?;
    let len = read(file.raw(), buf)?;
    Ok(&buf[..len])
}

/// stat(2).
///
/// # Errors
/// As the call.
pub fn stat(path: &CStr) -> Result<libc::stat, Errno> {
    stat_with(path, 0)
}

/// lstat(2).
///
/// # Errors
/// As the call.
pub fn lstat(path: &CStr) -> Result<libc::stat, Errno> {
    stat_with(path, libc::AT_SYMLINK_NOFOLLOW)
}

fn stat_with(path: &CStr, flags: i32) -> Result<libc::stat, Errno> {
    // SAFETY: all-zero bytes are a valid stat, which the kernel writes.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: a C string; the structure lives over the call.
    unsafe { sys!(libc::SYS_newfstatat, libc::AT_FDCWD, path.as_ptr(), &raw mut stat, flags) }?;
    Ok(stat)
}

/// The process at the other end of a connected Unix socket, as it was when it connected or began to listen (SO_PEERCRED). The
/// process id is 0 if that process is not in our process id namespace.
///
/// # Errors
/// As getsockopt(2).
pub fn peer(socket: i32) -> Result<libc::ucred, Errno> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: writes the structure and its length, which live over the call.
    unsafe { sys!(libc::SYS_getsockopt, socket, libc::SOL_SOCKET, libc::SO_PEERCRED, &raw mut peer, &raw mut len) }?;
    Ok(peer)
}

/// A descriptor that becomes readable by a [`write`](fn@write) of a 64-bit number, until it is read.
///
/// # Errors
/// As eventfd(2).
pub fn event() -> Result<Fd, Errno> {
    // SAFETY: touches no memory.
    unsafe { sys!(libc::SYS_eventfd2, 0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }.map(Fd::new)
}

/// Whether something can be read now, or the other side is gone.
pub fn is_readable(fd: i32) -> bool {
    let mut p = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    poll(&mut p, Some(0));
    p[0].revents != 0
}

/// Waits until one of them can be read, at most so long. Those have `revents` then. Descriptors below zero are ignored.
pub fn poll(fds: &mut [libc::pollfd], timeout_ns: Option<u64>) {
    let timeout = timeout_ns.map(timespec);
    let timeout = timeout.as_ref().map_or(core::ptr::null(), |timeout| timeout as *const libc::timespec);
    // SAFETY: the array and the timeout live over the call.
    if unsafe { sys!(libc::SYS_ppoll, fds.as_mut_ptr(), fds.len(), timeout, 0, 8) } != Err(libc::EINVAL) {
        return;
    }
    // The program allows itself fewer open files than these are (RLIMIT_NOFILE), which is no limit for select(2).
    const BITS: usize = u64::BITS as usize;
    let mut set = [0u64; SELECT_MAX / BITS];
    let bit = |fd: i32| usize::try_from(fd).ok().filter(|fd| *fd < SELECT_MAX).map(|fd| (fd / BITS, 1 << (fd % BITS)));
    fds.iter().filter_map(|p| bit(p.fd)).for_each(|(word, mask)| set[word] |= mask);
    // SAFETY: as above; the kernel reads and writes `SELECT_MAX` bits.
    let found = unsafe { sys!(libc::SYS_pselect6, SELECT_MAX, set.as_mut_ptr(), 0, 0, timeout, 0) };
    for p in fds {
        let is_set = found.is_ok() && bit(p.fd).is_some_and(|(word, mask)| set[word] & mask != 0);
        p.revents = if is_set { libc::POLLIN } else { 0 };
    }
}

/// Descriptors of the pager's are lower than this: it has few, and its own table of them.
const SELECT_MAX: usize = 4096;

/// write(2), once.
pub fn write(fd: i32, buf: &[u8]) -> Result<usize, Errno> {
    // SAFETY: the kernel reads within the slice only.
    unsafe { sys!(libc::SYS_write, fd, buf.as_ptr(), buf.len()) }
}

/// openat(AT_FDCWD), with a path that ends in a zero byte.
///
/// # Panics
/// If the path does not end in a zero byte.
pub fn open(path: &[u8], flags: i32, mode: u32) -> Result<Fd, Errno> {
    assert_eq!(path.last(), Some(&0));
    // SAFETY: the path is a terminated string in a live slice.
    unsafe { sys!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, mode) }.map(Fd::new)
}

/// unlink(2), likewise.
///
/// # Panics
/// If the path does not end in a zero byte.
pub fn unlink(path: &[u8]) -> Result<(), Errno> {
    assert_eq!(path.last(), Some(&0));
    // SAFETY: the path is a terminated string in a live slice.
    unsafe { sys!(libc::SYS_unlink, path.as_ptr()) }.map(drop)
}

/// pidfd_open(2).
pub fn pidfd_open(pid: u32) -> Result<Fd, Errno> {
    // SAFETY: touches no memory.
    unsafe { sys!(libc::SYS_pidfd_open, pid, 0) }.map(Fd::new)
}

/// Sleeps while `*word == expected`, until woken or `timeout_ns` has passed (`u64::MAX`: for ever).
pub fn futex_wait(word: &core::sync::atomic::AtomicU32, expected: u32, timeout_ns: u64) {
    futex_wait_with(word, expected, timeout_ns, libc::FUTEX_PRIVATE_FLAG);
}

/// The same, on a word in memory that other processes may share. They wake by [`futex_wake_shared`].
pub fn futex_wait_shared(word: &core::sync::atomic::AtomicU32, expected: u32, timeout_ns: u64) {
    futex_wait_with(word, expected, timeout_ns, 0);
}

fn futex_wait_with(word: &core::sync::atomic::AtomicU32, expected: u32, timeout_ns: u64, flags: i32) {
    let t = timespec(timeout_ns);
    let tp = if timeout_ns == u64::MAX { ptr::null() } else { &t as *const _ };
    // SAFETY: the word and the timeout live over the call.
    let _ = unsafe { sys!(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT | flags, expected, tp, 0, 0) };
}

/// Wakes up to `count` sleepers on `word`.
pub fn futex_wake(word: &core::sync::atomic::AtomicU32, count: u32) {
    // SAFETY: only the address is used.
    let _ = unsafe { sys!(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, count) };
}

/// Wakes up to `count` sleepers of [`futex_wait_shared`].
pub fn futex_wake_shared(word: &core::sync::atomic::AtomicU32, count: u32) {
    // SAFETY: only the address is used.
    let _ = unsafe { sys!(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, count) };
}

/// Ends the process at once, all threads.
pub fn exit_group(status: i32) -> ! {
    loop {
        // SAFETY: does not return.
        let _ = unsafe { sys!(libc::SYS_exit_group, status) };
    }
}

/// The descriptor to which [`complain`] writes, or -1 for none, and the thread in whose table it is, or 0 for the caller's.
static VOICE: AtomicI32 = AtomicI32::new(libc::STDERR_FILENO);
static VOICE_TID: AtomicU32 = AtomicU32::new(0);

/// Makes [`complain`] write to `fd` of the table of thread `tid` (0: of the thread that calls it), or nowhere (-1).
pub fn set_voice(fd: i32, tid: u32) {
    VOICE_TID.store(tid, Relaxed);
    VOICE.store(fd, Relaxed);
}

/// The descriptor that [`set_voice`] was given.
pub fn voice() -> i32 {
    VOICE.load(Relaxed)
}

/// A descriptor of the table of another thread of this process, from Linux 6.9 on; before that, of the first thread's.
///
/// # Errors
/// As pidfd_open(2), pidfd_getfd(2).
pub fn fd_of(tid: u32, fd: i32) -> Result<Fd, Errno> {
    const PIDFD_THREAD: i32 = libc::O_EXCL;
    // SAFETY: these take numbers only.
    unsafe {
        let thread = sys!(libc::SYS_pidfd_open, tid, PIDFD_THREAD).or_else(|_| sys!(libc::SYS_pidfd_open, getpid(), 0))?;
        let thread = Fd::new(thread);
        sys!(libc::SYS_pidfd_getfd, thread.raw(), fd, 0).map(Fd::new)
    }
}

/// Below this number a program has what it puts aside: the usual limit of open files.
const ASIDE_MAX: i32 = 1024;

/// If the program has closed the pipe, terminal or socket that the caller's table has as the voice, closes it there, too: who reads
/// at its other end waits until everybody has. Looks at the first thread's descriptors. Does not allocate.
///
/// The number stays taken, because a fork that is under way may be about to pass it on: now it is a file that nobody can write to.
pub fn close_voice_with_program() {
    let voice = voice();
    let Ok(kept) = file_stat(voice) else { return };
    let is_it = |stat: libc::stat| (stat.st_dev, stat.st_ino) == (kept.st_dev, kept.st_ino);
    let is_open_as = |file: Fd| file_stat(file.raw()).is_ok_and(is_it);
    let is_open = |fd| fd_of(getpid(), fd).map_or_else(|error| error != libc::EBADF, is_open_as); // other errors say nothing of it
    // A shell puts its standard error aside while it redirects it, and so do others.
    let is_aside = |fd| {
        let path = task_path(getpid(), format_args!("fd/{fd}"));
        CStr::from_bytes_until_nul(&path).is_ok_and(|path| stat(path).is_ok_and(is_it))
    };
    let may_wait = matches!(kept.st_mode & libc::S_IFMT, libc::S_IFIFO | libc::S_IFCHR | libc::S_IFSOCK);
    if may_wait
        && !(libc::STDIN_FILENO..=libc::STDERR_FILENO).any(is_open)
        && !(libc::STDERR_FILENO + 1..ASIDE_MAX).any(is_aside)
        && let Ok(process) = pidfd_open(getpid())
    {
        // SAFETY: takes numbers only, and the voice is a descriptor that only [`complain`] and forks use.
        let _ = unsafe { sys!(libc::SYS_dup3, process.raw(), voice, libc::O_CLOEXEC) };
    }
}

/// Writes a message about Overspill to standard error, in a line of its own. After [`set_voice`] it uses the standard error of the
/// start, because the program's descriptor 2 may be anything by now. Does not allocate.
pub fn complain(message: &[u8]) {
    let (fd, tid) = (voice(), VOICE_TID.load(Relaxed));
    let kept = if tid != 0 { fd_of(tid, fd).ok() } else { None };
    let fd = kept.as_ref().map_or(if tid == 0 { fd } else { -1 }, Fd::raw);
    let mut line = crate::control::Packet::new();
    line.put(b"overspill: ").put(message).put(b"\n");
    let _ = write(fd, line.bytes());
}

/// Kills the own process with a signal that cannot be caught. The first process of a pid namespace does not get it from itself, so
/// it exits, with the status that a shell would tell.
pub fn kill_self() -> ! {
    loop {
        // SAFETY: touch no memory.
        let _ = unsafe { sys!(libc::SYS_kill, getpid(), libc::SIGKILL) };
        // SAFETY: as above.
        let _ = unsafe { sys!(libc::SYS_exit_group, 128 + libc::SIGKILL) };
    }
}

//! Raw system calls: no errno, no libc, no thread-local storage.
//!
//! Pager threads of the agent are not libc threads, and hooks run inside libc itself. So nothing here may touch libc's state,
//! except [`find_clock`], which runs at set-up. Every call returns `Result<usize, i32>` with a positive errno.

use core::arch::asm;
use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering::Relaxed};
pub use overspill_machine::kernel::IoVec;
use overspill_vm::types::PAGE_SIZE;
use std::os::fd::{AsFd, BorrowedFd};

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

/// Copies from memory of this process, which need not be mapped.
///
/// # Errors
/// EFAULT if some of it is not mapped.
pub fn read_own(from: usize, to: &mut [u8]) -> Result<(), Errno> {
    let len = to.len();
    match copy_own(from, to) {
        Ok(copied) if copied == len => Ok(()),
        Ok(_) | Err(libc::EFAULT) => Err(libc::EFAULT),
        Err(_) => read_directly(from, to), // a filter refuses the call
    }
}

/// As [`read_own`], with a call that looks whether each word can be read, and refuses to do anything else.
fn read_directly(from: usize, to: &mut [u8]) -> Result<(), Errno> {
    const WORD: usize = 8;
    for word in (from & !(WORD - 1)..from.checked_add(to.len()).ok_or(libc::EFAULT)?).step_by(WORD) {
        // SAFETY: the kernel reads a set of signals, if that can be read, and does nothing with it: there is no such operation.
        match unsafe { sys!(libc::SYS_rt_sigprocmask, usize::MAX, word, 0, WORD) } {
            Err(libc::EINVAL) => {}
            _ => return Err(libc::EFAULT),
        }
    }
    // SAFETY: it was readable a moment ago. If another thread of the program unmaps it just now, the program passes arguments that
    // it takes away, and ends here as it would a moment later. `to` is exclusively borrowed; words that others write meanwhile are
    // read as bytes of one value or the other.
    unsafe { core::ptr::copy(from as *const u8, to.as_mut_ptr(), to.len()) };
    Ok(())
}

/// The same as far as it is mapped, page by page. Returns how many bytes that is.
///
/// # Errors
/// EFAULT if the first of it is not mapped.
pub fn copy_own(from: usize, to: &mut [u8]) -> Result<usize, Errno> {
    let len = to.len();
    let (local, remote) = (IoVec { base: to.as_mut_ptr() as usize, len }, IoVec { base: from, len });
    // SAFETY: the kernel writes within the slice, and itself checks whether there is anything to read.
    unsafe { sys!(libc::SYS_process_vm_readv, getpid(), &raw const local, 1, &raw const remote, 1, 0) }
}

/// madvise(2) with an advice that does not change what the program reads, or on memory that is the pager's own.
///
/// # Safety
/// If the advice discards: nothing may need the content of the range.
pub unsafe fn madvise(at: usize, len: usize, advice: i32) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { sys!(libc::SYS_madvise, at, len, advice) }.map(drop)
}

/// Discards scattered ranges with one TLB flush (process_madvise on oneself, Linux 6.13 and later), else one by one.
///
/// # Safety
/// Nothing may need the content of the ranges.
pub unsafe fn discard_ranges(pidfd: i32, ranges: &[IoVec]) {
    if ranges.len() > 1 && pidfd >= 0 {
        let total: usize = ranges.iter().map(|r| r.len).sum();
        // SAFETY: the vector lives over the call; discarding is the caller's promise.
        let done = unsafe { sys!(libc::SYS_process_madvise, pidfd, ranges.as_ptr(), ranges.len(), libc::MADV_DONTNEED, 0) };
        if done == Ok(total) {
            return;
        }
    }
    for r in ranges {
        // SAFETY: the caller's promise.
        let _ = unsafe { madvise(r.base, r.len, libc::MADV_DONTNEED) };
    }
}

/// Unshares the page at `at` if this process shares it with another one (a fork's other side, KSM). It does so as a write would,
/// but without writing and without waiting. Returns whether the page is this process's own now; not if it is missing or read-only.
///
/// futex(2) offers an atomic `or` with zero on the page's first word (FUTEX_WAKE_OP). The kernel resolves the fault if the page is
/// there, and answers EFAULT if it is missing and a userfaultfd would report it. MADV_POPULATE_WRITE would wait there for a
/// handler, which may be waiting for the caller.
pub fn own_page(at: usize) -> bool {
    const OR: u32 = 2; // FUTEX_OP_OR with the argument 0
    const IS_EQUAL: u32 = 0; // FUTEX_OP_CMP_EQ
    const RARELY: u32 = 0x800; // -2048 in the comparison's 12 bits. If it is equal, one waiter looks again, which does no harm.
    let nobody = AtomicU32::new(0);
    let op = OR << 28 | IS_EQUAL << 24 | RARELY;
    // SAFETY: the word at `at` keeps its value, atomically; no thread waits on the other one, which lives over the call.
    unsafe { sys!(libc::SYS_futex, nobody.as_ptr(), libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG, 1, 0, at, op) }.is_ok()
}

/// Whether the kernel may merge any page of this process with equal ones (KSM, PR_SET_MEMORY_MERGE).
pub fn merges_memory() -> bool {
    const PR_GET_MEMORY_MERGE: i32 = 68;
    // SAFETY: touches no memory.
    let merges = unsafe { sys!(libc::SYS_prctl, PR_GET_MEMORY_MERGE, 0, 0, 0, 0) };
    merges == Ok(1)
}

/// Whether a thread of this id is alive and shares this process's memory. `true` if that cannot be found out.
pub fn shares_memory(tid: u32) -> bool {
    let (from, mut to) = (0u8, 0u8);
    let there = IoVec { base: &raw const from as usize, len: 1 };
    let here = IoVec { base: &raw mut to as usize, len: 1 };
    // SAFETY: copies one live byte to another if it is this memory; else any byte, or nothing.
    let copied = unsafe { sys!(libc::SYS_process_vm_readv, tid, &raw const here, 1, &raw const there, 1, 0) };
    copied != Err(libc::ESRCH)
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

/// Whether all of the range is mapped.
pub fn is_mapped(start: usize, end: usize) -> bool {
    // SAFETY: with MS_ASYNC the kernel looks at mappings only, and changes nothing.
    unsafe { sys!(libc::SYS_msync, start, end - start, libc::MS_ASYNC) }.is_ok()
}

/// Whether the page at `at` is mapped and in memory.
pub fn is_resident(at: usize) -> bool {
    let mut seen = 0u8;
    // SAFETY: the kernel writes one byte for one page.
    let done = unsafe { sys!(libc::SYS_mincore, at, PAGE_SIZE, &raw mut seen) };
    done.is_ok() && seen & 1 == 1
}

/// Calls `f` with the address of each page of the range that is mapped and in memory.
pub fn each_resident(start: usize, end: usize, mut f: impl FnMut(usize)) {
    let mut seen = [0u8; 512];
    for at in (start..end).step_by(seen.len() * PAGE_SIZE) {
        let pages = ((end - at) / PAGE_SIZE).min(seen.len());
        // SAFETY: the kernel writes one byte for each page.
        if unsafe { sys!(libc::SYS_mincore, at, pages * PAGE_SIZE, seen.as_mut_ptr()) }.is_ok() {
            (0..pages).filter(|i| seen[*i] & 1 == 1).for_each(|i| f(at + i * PAGE_SIZE));
        } else {
            // a part of it is not mapped
            (0..pages).map(|i| at + i * PAGE_SIZE).filter(|at| is_resident(*at)).for_each(&mut f);
        }
    }
}

/// Calls `f(start, end)` for each mapping of the process, in the order of addresses. Does not allocate.
///
/// # Errors
/// Those of opening and reading `/proc/self/maps`.
pub fn each_mapping(mut f: impl FnMut(usize, usize)) -> Result<(), Errno> {
    each_mapping_with(|start, end, _| f(start, end))
}

/// The same with `f(start, end, protection)`.
///
/// # Errors
/// Those of opening and reading `/proc/self/maps`.
pub fn each_mapping_with(mut f: impl FnMut(usize, usize, i32)) -> Result<(), Errno> {
    each_line(b"/proc/thread-self/maps\0", |line| {
        if let Some((start, end, rest)) = mapping(line) {
            let has = |letter: u8, prot| if rest[..4].contains(&letter) { prot } else { 0 };
            f(start, end, has(b'r', libc::PROT_READ) | has(b'w', libc::PROT_WRITE) | has(b'x', libc::PROT_EXEC));
        }
    })
}

/// Calls `f(start, end, flags)` for each mapping of the process, in the order of addresses; `flags` is what follows "VmFlags:" in
/// `/proc/self/smaps`. Slow: the kernel looks at every page. Does not allocate.
///
/// # Errors
/// Those of opening and reading that file.
pub fn each_mapping_flags(mut f: impl FnMut(usize, usize, &[u8])) -> Result<(), Errno> {
    let mut of = (0, 0);
    each_line(b"/proc/thread-self/smaps\0", |line| match line.strip_prefix(b"VmFlags:") {
        Some(flags) => f(of.0, of.1, flags),
        // "START-END ..." in hexadecimal; all other lines begin with a capital letter
        None if line.first().is_some_and(u8::is_ascii_uppercase) => {}
        None => of = mapping(line).map_or(of, |(start, end, _)| (start, end)),
    })
}

/// Calls `f` for each line of a file, or for the beginning of a long one. Does not allocate.
fn each_line(path: &[u8], mut f: impl FnMut(&[u8])) -> Result<(), Errno> {
    let file = open(path, libc::O_RDONLY | libc::O_CLOEXEC, 0)?;
    let (mut buffer, mut line, mut len) = ([0u8; 4096], [0u8; 256], 0);
    loop {
        // SAFETY: the kernel writes within the buffer.
        let n = unsafe { sys!(libc::SYS_read, file.raw(), buffer.as_mut_ptr(), buffer.len()) }?;
        if n == 0 {
            return Ok(());
        }
        for &byte in &buffer[..n] {
            if byte == b'\n' {
                f(&line[..core::mem::take(&mut len)]);
            } else if let Some(next) = line.get_mut(len) {
                (*next, len) = (byte, len + 1);
            }
        }
    }
}

/// A line of `/proc/self/maps`: "START-END rwxp REST", the numbers in hexadecimal. The last part begins with the letters.
fn mapping(line: &[u8]) -> Option<(usize, usize, &[u8])> {
    let number = |digits: &[u8]| usize::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok();
    let (start, rest) = line.split_at(line.iter().position(|&byte| byte == b'-')?);
    let (end, rest) = rest.split_at(rest.iter().position(|&byte| byte == b' ')?);
    Some((number(start)?, number(&end[1..])?, rest.get(1..).filter(|rest| rest.len() >= 4)?))
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

/// The processor time that a thread of this process has had, in nanoseconds; `None` if it has ended.
pub fn thread_cpu_ns(tid: u32) -> Option<u64> {
    const OF_A_THREAD: i32 = 6; // its own clock, as the scheduler counts (clock_getcpuclockid(3) makes the like for a process)
    clock_ns(!(tid as i32) << 3 | OF_A_THREAD)
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

/// How many threads this process has.
pub fn thread_count() -> Result<u32, Errno> {
    Ok((task_directory()?.st_nlink as u32).saturating_sub(2)) // a directory for each thread, "." and ".."
}

/// The directory of this process's threads.
pub fn task_directory() -> Result<libc::stat, Errno> {
    // SAFETY: all-zero bytes are a valid stat, which the kernel writes.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    let (path, out) = (c"/proc/self/task".as_ptr(), &raw mut stat);
    // SAFETY: a C string; the structure lives over the call.
    unsafe { sys!(libc::SYS_newfstatat, libc::AT_FDCWD, path, out, 0) }?;
    Ok(stat)
}

/// How many threads this process has, without io_uring's workers, which belong to the kernel and come and go.
pub fn thread_count_without_workers() -> Result<u32, Errno> {
    let tasks = open(b"/proc/self/task\0", libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC, 0)?;
    let mut count = 0;
    let mut entries = [0u8; 4096];
    loop {
        // SAFETY: the kernel writes within the buffer.
        let n = unsafe { sys!(libc::SYS_getdents64, tasks.raw(), entries.as_mut_ptr(), entries.len()) }?;
        if n == 0 {
            return Ok(count);
        }
        let mut at = 0;
        while at < n {
            // struct linux_dirent64: inode, offset, this entry's length, type, name
            let len = usize::from(u16::from_le_bytes([entries[at + 16], entries[at + 17]]));
            let name = entries[at + 19..at + len].split(|byte| *byte == 0).next().unwrap_or_default();
            at += len;
            let Some(tid) = core::str::from_utf8(name).ok().and_then(|name| name.parse().ok()) else { continue };
            let mut comm = [0; 16];
            count += u32::from(match read_file(&task_path(tid, format_args!("comm")), &mut comm) {
                Ok(comm) => !comm.starts_with(b"iou-"),
                Err(e) => !matches!(e, libc::ENOENT | libc::ESRCH), // it has ended since it was listed
            });
        }
    }
}

/// Process id.
pub fn getpid() -> u32 {
    // SAFETY: no arguments.
    unsafe { sys!(libc::SYS_getpid) }.unwrap_or(0) as u32
}

/// Thread id.
pub fn gettid() -> u32 {
    // SAFETY: no arguments.
    unsafe { sys!(libc::SYS_gettid) }.unwrap_or(0) as u32
}

/// The calling thread's pointer to its thread-local storage: a number that differs for each thread. Without a system call.
#[inline]
pub fn thread_pointer() -> usize {
    let pointer;
    // SAFETY: the word at the thread pointer is its own address, in libc's threads and in ours.
    unsafe { core::arch::asm!("mov {}, fs:[0]", out(reg) pointer, options(nostack, readonly, preserves_flags)) };
    pointer
}

/// pidfd_open(2).
pub fn pidfd_open(pid: u32) -> Result<Fd, Errno> {
    // SAFETY: touches no memory.
    unsafe { sys!(libc::SYS_pidfd_open, pid, 0) }.map(Fd::new)
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn now_ns() -> u64 {
    let read: Option<VdsoClock> = {
        let found = VDSO_CLOCK.load(Relaxed);
        // SAFETY: null, which is `None`, or a function of this type that `find_clock` has found, and that stays where it is.
        unsafe { core::mem::transmute(found) }
    };
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is writable.
    match read.map(|read| unsafe { read(libc::CLOCK_MONOTONIC, &raw mut t) }) {
        Some(0) => ns(t),
        _ => clock_ns(libc::CLOCK_MONOTONIC).unwrap_or(0),
    }
}

/// The kernel's own code for reading clocks, which it maps into every process (vdso(7)). It does not touch libc's state.
type VdsoClock = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> libc::c_int;
static VDSO_CLOCK: AtomicPtr<libc::c_void> = AtomicPtr::new(ptr::null_mut());

/// Looks for a way to read the clock without a system call, for [`now_ns`]: 20 to 25 ns instead of 420 (a virtual machine, November
/// 2026), some five times a fault. To be called in set-up, before anything is paged, because it asks libc. If there is no such way
/// (in a static program), nothing changes.
pub fn find_clock() {
    // SAFETY: names end with a zero. The library is loaded already, so no code is run, and it is never unloaded.
    let found = unsafe {
        let vdso = libc::dlopen(c"linux-vdso.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if vdso.is_null() { vdso } else { libc::dlsym(vdso, c"__vdso_clock_gettime".as_ptr()) }
    };
    VDSO_CLOCK.store(found, Relaxed);
}

fn timespec(ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

fn ns(t: libc::timespec) -> u64 {
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// A clock in nanoseconds; `None` if there is none of that number.
fn clock_ns(clock: i32) -> Option<u64> {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is writable.
    unsafe { sys!(libc::SYS_clock_gettime, clock, &raw mut t) }.ok()?;
    Some(ns(t))
}

/// The processor's clock, in ticks of a steady rate (about 2 to 4 per nanosecond). CPUs may differ. Without a system call.
#[inline]
pub fn cycles() -> u64 {
    // SAFETY: every x86-64 has the instruction, and it changes nothing.
    unsafe { core::arch::x86_64::_rdtsc() }
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

/// Blocks every signal for the calling thread; returns the mask to restore.
pub fn block_signals() -> u64 {
    let (all, mut old) = (u64::MAX, 0u64);
    // SAFETY: both masks are live 8-byte words, the kernel's sigset size.
    let _ = unsafe { sys!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &all as *const u64, &mut old as *mut u64, 8) };
    old
}

/// Restores a mask from [`block_signals`].
pub fn restore_signals(old: u64) {
    // SAFETY: as above.
    let _ = unsafe { sys!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &old as *const u64, 0, 8) };
}

/// Asks the scheduler for the shortest slices for the calling thread (Linux 6.12: sched_runtime of SCHED_OTHER). The thread gets no
/// more CPU time, but gets it sooner when it wakes on a busy machine. Needs no privilege. A refusal costs speed only; older kernels
/// ignore it.
pub fn take_short_slices() {
    /// linux/sched/types.h, its first version.
    #[repr(C)]
    #[derive(Default)]
    struct SchedAttr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    let mut attr = SchedAttr::default();
    let size = size_of::<SchedAttr>();
    // SAFETY: the kernel writes at most `size` bytes to the structure, which has as many.
    let got = unsafe { sys!(libc::SYS_sched_getattr, 0, &mut attr as *mut _, size, 0) };
    if got.is_ok() && matches!(attr.policy as i32, libc::SCHED_OTHER | libc::SCHED_BATCH) {
        (attr.size, attr.runtime) = (size as u32, 100_000); // the least that it accepts, in nanoseconds
        // SAFETY: the kernel reads the structure; all but the slice stays as it was.
        let _ = unsafe { sys!(libc::SYS_sched_setattr, 0, &attr as *const _, 0) };
    }
}

/// Binds the calling thread to these CPUs, a bit set of 1024. A refusal costs speed only.
pub fn set_affinity(set: &[u64; 16]) {
    // SAFETY: the set is live, 128 bytes.
    let _ = unsafe { sys!(libc::SYS_sched_setaffinity, 0, 128, set.as_ptr()) };
}

/// Makes a thread of this process (0: the calling one) give way to every ordinary thread (SCHED_IDLE), or makes it an ordinary one
/// again, which takes what [`may_be_ordinary_again`] checks. A refusal is ignored.
pub fn give_way(tid: u32, on: bool) {
    let priority = 0i32;
    let policy = if on { libc::SCHED_IDLE } else { libc::SCHED_OTHER };
    // SAFETY: the kernel reads the parameter, which lives over the call.
    let _ = unsafe { sys!(libc::SYS_sched_setscheduler, tid, policy, &priority as *const _) };
}

/// Whether the calling thread has ordinary scheduling, and could return to it after SCHED_IDLE: by CAP_SYS_NICE, or by a limit of
/// niceness that allows it. (The kernel asks for the same right as for a lower nice value, so this tries one and takes it back.)
pub fn may_be_ordinary_again() -> bool {
    // SAFETY: these calls touch no memory.
    unsafe {
        if sys!(libc::SYS_sched_getscheduler, 0) != Ok(libc::SCHED_OTHER as usize) {
            return false; // the user chose another policy, which must not be lost
        }
        let Ok(twenty_minus_nice) = sys!(libc::SYS_getpriority, libc::PRIO_PROCESS, 0) else { return false };
        let nice = 20 - twenty_minus_nice as i32;
        let may = nice > -20 && sys!(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, nice - 1).is_ok();
        may && sys!(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, nice).is_ok()
    }
}

/// Keeps the calling thread's I/O at ordinary priority, whatever its scheduling policy. A refusal costs speed only.
pub fn keep_io_priority() {
    const WHO_PROCESS: i32 = 1;
    const BEST_EFFORT_4: i32 = 2 << 13 | 4;
    // SAFETY: touches no memory.
    let _ = unsafe { sys!(libc::SYS_ioprio_set, WHO_PROCESS, 0, BEST_EFFORT_4) };
}

/// The path `/proc/self/task/TID/` followed by `what`, with zeroes behind it, for [`open`]. Does not allocate.
///
/// # Panics
/// If the path is longer than 63 bytes.
pub fn task_path(tid: u32, what: core::fmt::Arguments<'_>) -> [u8; 64] {
    let mut path = [0; 64];
    std::io::Write::write_fmt(&mut &mut path[..63], format_args!("/proc/self/task/{tid}/{what}")).expect("a short path");
    path
}

/// The CPU on which the calling thread runs.
pub fn current_cpu() -> Option<usize> {
    let mut cpu = 0u32;
    // SAFETY: the kernel writes one word, which lives over the call.
    unsafe { sys!(libc::SYS_getcpu, &mut cpu as *mut u32, 0, 0) }.ok().map(|_| cpu as usize)
}

/// The CPU that a thread of this process runs on, or ran on last, if [`only_cpu`] has a bit for it. Takes some 30 us.
pub fn cpu_of(tid: u32) -> Option<usize> {
    let parse = |cpu: &[u8]| core::str::from_utf8(cpu).ok()?.parse().ok();
    stat_field(tid, 39, parse).filter(|cpu| *cpu < 1024)
}

/// Whether a thread of this process runs, or waits for nothing but a CPU. `true` if that cannot be found out. Takes some 30 us.
pub fn wants_cpu(tid: u32) -> bool {
    stat_field(tid, 3, |state| Some(state == b"R")).unwrap_or(true)
}

/// Reads a field of a thread's stat by `read_field`. Fields are numbered as in proc_pid_stat(5), from the third on.
fn stat_field<T>(tid: u32, field: usize, read_field: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
    let mut text = [0; 1024];
    let stat = read_file(&task_path(tid, format_args!("stat")), &mut text).ok()?;
    // the second field, the name, may have any characters, but ends with the last parenthesis
    let name_ends = stat.iter().rposition(|byte| *byte == b')')?;
    read_field(stat[name_ends..].split(|byte| *byte == b' ').nth(field - 2)?)
}

/// A bit set of one CPU. => `cpu` is below 1024
pub fn only_cpu(cpu: usize) -> [u64; 16] {
    let mut set = [0u64; 16];
    set[cpu / 64] = 1 << (cpu % 64);
    set
}

/// The CPUs that the calling thread may run on, as a bit set of 1024.
pub fn allowed_cpus() -> [u64; 16] {
    let mut set = [0u64; 16];
    // SAFETY: the set is writable, 128 bytes.
    let _ = unsafe { sys!(libc::SYS_sched_getaffinity, 0, 128, set.as_mut_ptr()) };
    set
}

/// Lets another thread that waits for this CPU have it.
pub fn yield_now() {
    // SAFETY: no arguments.
    let _ = unsafe { sys!(libc::SYS_sched_yield) };
}

/// The CPUs of a bit set.
pub fn cpus_of(set: &[u64; 16]) -> impl Iterator<Item = usize> {
    (0..1024).filter(|cpu| set[cpu / 64] >> (cpu % 64) & 1 == 1)
}

/// How many CPUs a bit set has.
pub fn count_cpus(set: &[u64; 16]) -> u32 {
    set.iter().map(|word| word.count_ones()).sum()
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

/// Kills the own process with a signal that cannot be caught.
pub fn kill_self() -> ! {
    loop {
        // SAFETY: touches no memory.
        let _ = unsafe { sys!(libc::SYS_kill, getpid(), libc::SIGKILL) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_without_a_system_call_is_the_same() {
        find_clock();
        assert!(!VDSO_CLOCK.load(Relaxed).is_null());
        let call = || clock_ns(libc::CLOCK_MONOTONIC).expect("every kernel has it");
        for _ in 0..1000 {
            let (before, now, after) = (call(), now_ns(), call());
            assert!(before <= now && now <= after, "{before} {now} {after}");
        }
    }
}

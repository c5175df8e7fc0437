//! Memory of this process, and what the kernel tells about it.

use super::{Errno, IoVec, getpid, open, sys};
use core::mem::MaybeUninit;
use core::sync::atomic::AtomicU32;
use overspill_vm::types::PAGE_SIZE;

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

/// As [`read_own`], a value.
///
/// # Errors
/// As there.
///
/// # Safety
/// Any bytes are a value of this type.
pub unsafe fn read_own_value<T: Copy>(from: usize) -> Result<T, Errno> {
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: as many bytes as the value has, all of them zero.
    let bytes = unsafe { core::slice::from_raw_parts_mut(value.as_mut_ptr().cast::<u8>(), size_of::<T>()) };
    read_own(from, bytes)?;
    // SAFETY: the caller's promise.
    Ok(unsafe { value.assume_init() })
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

/// munlock(2). Pages stay where they are.
///
/// # Errors
/// As munlock(2).
pub fn munlock(at: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: changes no content.
    unsafe { sys!(libc::SYS_munlock, at, len) }.map(drop)
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

/// For [`disable_huge_pages`]: all of them.
pub const NO_HUGE_PAGES: i32 = 1;

/// Which transparent huge pages this process does not get (PR_GET_THP_DISABLE): 0 if none are disabled, negative if that cannot be
/// found out.
pub fn disabled_huge_pages() -> i32 {
    // SAFETY: touches no memory.
    unsafe { sys!(libc::SYS_prctl, libc::PR_GET_THP_DISABLE, 0, 0, 0, 0) }.map_or(-1, |disabled| disabled as i32)
}

/// Disables what [`disabled_huge_pages`] has told, from now on, and in a fork's child. Returns whether the kernel did it.
pub fn disable_huge_pages(disabled: i32) -> bool {
    let (disables, flags) = (disabled & 1, disabled & !1);
    // SAFETY: touches no memory.
    unsafe { sys!(libc::SYS_prctl, libc::PR_SET_THP_DISABLE, disables, flags, 0, 0) }.is_ok()
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

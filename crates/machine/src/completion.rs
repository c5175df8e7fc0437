//! Reads that ended early or failed: further attempts.

use crate::errno::{self, Errno};
use crate::home::HomeRead;
use crate::kernel::{Kernel, Mistake};
use crate::machine::Machine;
use core::ops::Range;
use overspill_vm::pager::IoResult;
use overspill_vm::types::{PAGE_SHIFT, PAGE_SIZE};

/// How long pages that nobody waits for are read one by one, in nanoseconds: meanwhile the thread serves nobody else.
const RETRIES_NS: u64 = 500_000_000;

/// The result of a read after all attempts.
#[derive(Clone, Copy)]
pub struct Arrived {
    /// A bit for each page that was read.
    pub good: u128,
    /// A bit for each page that the file ends before.
    pub beyond: u128,
    /// A bit for each page that was not tried by itself, because others took too long.
    pub untried: u128,
    /// For the read as a whole: all of its bytes, or the error of the last page that failed.
    pub result: Result<usize, Errno>,
}

impl Default for Arrived {
    fn default() -> Self {
        Arrived { good: 0, beyond: 0, untried: 0, result: Ok(0) }
    }
}

impl Arrived {
    /// As [`Arrived::result`], except that damaged content counts as a failure of the device, like a page that was not read.
    pub fn worth(&self, damaged: bool) -> Result<usize, Errno> {
        if damaged { self.result.and(Err(errno::EBADMSG)) } else { self.result }
    }
    /// The outcome of page `i`.
    pub fn of(&self, i: u32) -> IoResult {
        match self.result {
            _ if self.good >> i & 1 == 1 => IoResult::Ok,
            _ if self.beyond >> i & 1 == 1 => IoResult::Beyond,
            _ if self.untried >> i & 1 == 1 => IoResult::Again,
            Err(e) => IoResult::Io(e),
            Ok(_) => IoResult::Io(errno::EIO),
        }
    }
}

/// A bit for each of the first `pages` pages.
fn first(pages: usize) -> u128 {
    if pages == 0 { 0 } else { u128::MAX >> (u128::BITS - pages as u32) }
}

/// Goes on with a read (from that descriptor and offset) that was cut short, once. What has failed is not tried again here.
///
/// # Safety
/// `buffer` has room for `count` pages; the read into it has ended and nobody else uses it.
pub unsafe fn go_on<K: Kernel>(
    machine: &Machine<K>,
    at: (i32, u64),
    count: u32,
    buffer: *mut u8,
    result: Result<usize, Errno>,
) -> Arrived {
    let pages = count as usize;
    let mut done = result.unwrap_or(0) >> PAGE_SHIFT;
    if done == pages || done > 0 && K::mistake(Mistake::LeavesShortReads) {
        return Arrived { good: first(pages), result, ..Arrived::default() };
    }
    if result.is_ok() {
        // SAFETY: the caller's promise.
        done += unsafe { again(machine, at, buffer, done..pages) }.unwrap_or(0) >> PAGE_SHIFT;
    }
    let result = if done == pages { Ok(pages << PAGE_SHIFT) } else { Err(result.err().unwrap_or(errno::EIO)) };
    Arrived { good: first(done), result, ..Arrived::default() }
}

/// Reads some of the pages of a read once more, and waits for the end.
///
/// # Safety
/// As [`go_on`].
unsafe fn again<K: Kernel>(
    machine: &Machine<K>,
    (fd, offset): (i32, u64),
    buffer: *mut u8,
    pages: Range<usize>,
) -> Result<usize, Errno> {
    let (from, len) = (pages.start << PAGE_SHIFT, pages.len() << PAGE_SHIFT);
    let fd = machine.inject.read_again(fd, offset + from as u64, len);
    // SAFETY: a part of the caller's buffer.
    unsafe { K::read_now(fd, buffer.add(from), len, offset + from as u64) }
}

/// Completes a read that was cut short or failed. It goes on after the cut, or tries the whole read once more. If that fails too,
/// it reads page by page, for a while: one page that cannot be read is no harm to its neighbours.
///
/// # Safety
/// As [`go_on`].
pub unsafe fn complete<K: Kernel>(
    machine: &Machine<K>,
    at: (i32, u64),
    count: u32,
    buffer: *mut u8,
    result: Result<usize, Errno>,
) -> Arrived {
    let pages = count as usize;
    // SAFETY: the caller's promise.
    let mut arrived = unsafe { go_on(machine, at, count, buffer, result.or(Ok(0))) };
    if arrived.result.is_ok() {
        return arrived;
    }
    let (begin, whole) = (K::now_ns(), arrived.result);
    arrived.result = Ok(pages << PAGE_SHIFT);
    let left = arrived.good.trailing_ones() as usize..pages;
    let from = left.start + begin as usize % left.len(); // elsewhere each time: what comes first may take all the time
    for page in (from..pages).chain(left.start..from) {
        if K::now_ns() - begin > RETRIES_NS {
            arrived.untried |= 1 << page;
            arrived.result = whole;
            continue;
        }
        // SAFETY: the caller's promise.
        match unsafe { again(machine, at, buffer, page..page + 1) } {
            Ok(PAGE_SIZE) => arrived.good |= 1 << page,
            Ok(_) => arrived.result = Err(errno::EIO),
            Err(e) => arrived.result = Err(e),
        }
    }
    arrived
}

/// Completes a read of a file (from its descriptor and offset) that ended early. What is missing is read page by page, first the
/// page that was `touched`. The piece of a page with which the file ends is filled up with zeroes.
///
/// # Safety
/// As [`go_on`].
pub unsafe fn complete_at_home<K: Kernel>(
    machine: &Machine<K>,
    (fd, offset, home): (i32, u64, HomeRead),
    (count, touched): (u32, Option<u32>),
    buffer: *mut u8,
    result: Result<usize, Errno>,
) -> Arrived {
    let pages = count as usize;
    let done = result.unwrap_or(0) >> PAGE_SHIFT;
    let mut arrived = Arrived { good: first(done), result: Ok(pages << PAGE_SHIFT), ..Arrived::default() };
    let (mut end, begin) = (pages, if done < pages { K::now_ns() } else { 0 });
    let touched = touched.map(|page| page as usize).filter(|page| *page >= done);
    let others = (done..pages).filter(|page| Some(*page) != touched);
    for page in touched.into_iter().chain(others) {
        if page >= end {
            continue;
        }
        if Some(page) != touched && K::now_ns() - begin > RETRIES_NS {
            arrived.untried |= 1 << page;
            continue;
        }
        let at = offset + (page << PAGE_SHIFT) as u64;
        let again = machine.inject.read_again(home.rest, at, PAGE_SIZE);
        // SAFETY: a page of the caller's buffer.
        let read = unsafe {
            let content = buffer.add(page << PAGE_SHIFT);
            let read = K::read_now(again, content, PAGE_SIZE, at);
            if let Ok(bytes) = read {
                content.add(bytes).write_bytes(0, PAGE_SIZE - bytes);
            }
            read
        };
        match read {
            Ok(0) => end = end.min(page),
            Ok(_) => arrived.good |= 1 << page,
            Err(e) => arrived.result = Err(e),
        }
    }
    arrived.beyond = first(pages) & !first(end);
    if !home.direct {
        K::drop_cached(fd, offset, pages << PAGE_SHIFT);
    }
    arrived
}

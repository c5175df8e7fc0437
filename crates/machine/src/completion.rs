//! Reads that ended early or failed: further attempts, page by page.

use crate::errno::{self, Errno};
use crate::home::HomeRead;
use crate::kernel::{Kernel, Mistake};
use crate::machine::Machine;
use overspill_vm::pager::IoResult;
use overspill_vm::types::{PAGE_SHIFT, PAGE_SIZE};

/// The result of a read after all attempts.
pub struct Arrived {
    /// A bit for each page that was read.
    pub good: u128,
    /// A bit for each page that the file ends before.
    pub beyond: u128,
    /// For the read as a whole: all of its bytes, or the error of the last page that failed.
    pub result: Result<usize, Errno>,
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
            Err(e) => IoResult::Io(e),
            Ok(_) => IoResult::Io(errno::EIO),
        }
    }
}

/// A bit for each of the first `pages` pages.
fn first(pages: usize) -> u128 {
    if pages == 0 { 0 } else { u128::MAX >> (u128::BITS - pages as u32) }
}

/// Completes a read (from that descriptor and offset) that was cut short or failed. It goes on after the cut, or tries the whole
/// read once more. If that fails too, it reads page by page: a page that cannot be read is lost for good, but its neighbours need
/// not be.
///
/// # Safety
/// `buffer` has room for `count` pages; the read into it has ended and nobody else uses it.
pub unsafe fn complete<K: Kernel>(
    machine: &Machine<K>,
    (fd, offset): (i32, u64),
    count: u32,
    buffer: *mut u8,
    result: Result<usize, Errno>,
) -> Arrived {
    let pages = count as usize;
    let mut done = result.unwrap_or(0) >> PAGE_SHIFT;
    if done == pages || done > 0 && K::mistake(Mistake::LeavesShortReads) {
        return Arrived { good: first(pages), beyond: 0, result };
    }
    let again = |from: usize, pages: usize| {
        let (from, len) = (from << PAGE_SHIFT, pages << PAGE_SHIFT);
        let fd = machine.inject.read_again(fd, offset + from as u64, len);
        // SAFETY: a part of the caller's buffer.
        unsafe { K::read_now(fd, buffer.add(from), len, offset + from as u64) }
    };
    done += again(done, pages - done).unwrap_or(0) >> PAGE_SHIFT;
    let (mut good, mut failed) = (first(done), None);
    for page in done..pages {
        match again(page, 1) {
            Ok(PAGE_SIZE) => good |= 1 << page,
            Ok(_) => failed = Some(errno::EIO),
            Err(e) => failed = Some(e),
        }
    }
    Arrived { good, beyond: 0, result: failed.map_or(Ok(pages << PAGE_SHIFT), Err) }
}

/// Completes a read of a file (from its descriptor and offset) that ended early. What is missing is read page by page. The piece
/// of a page with which the file ends is filled up with zeroes.
///
/// # Safety
/// `buffer` has room for `count` pages; the read into it has ended and nobody else uses it.
pub unsafe fn complete_at_home<K: Kernel>(
    machine: &Machine<K>,
    (fd, offset, home): (i32, u64, HomeRead),
    count: u32,
    buffer: *mut u8,
    result: Result<usize, Errno>,
) -> Arrived {
    let pages = count as usize;
    let done = result.unwrap_or(0) >> PAGE_SHIFT;
    let (mut good, mut beyond, mut failed) = (first(done), 0, None);
    for page in done..pages {
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
            Ok(0) => {
                beyond = first(pages) & !first(page);
                break;
            }
            Ok(_) => good |= 1 << page,
            Err(e) => failed = Some(e),
        }
    }
    if !home.direct {
        K::drop_cached(fd, offset, pages << PAGE_SHIFT);
    }
    Arrived { good, beyond, result: failed.map_or(Ok(pages << PAGE_SHIFT), Err) }
}

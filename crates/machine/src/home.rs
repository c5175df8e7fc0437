//! A file as the home of an object's pages.
//!
//! Reads and the page daemon's writes use one descriptor, with O_DIRECT where the file system has it, so that nothing is cached
//! twice. Where it has not, the kernel's cached pages are dropped behind. The piece of a page with which a file ends is read and
//! written by a second descriptor without O_DIRECT. Both write through to the device (O_DSYNC) where the kernel caches, so that an
//! error comes back from the write itself, while the page is still in memory.

use crate::errno::{self, Errno};
use crate::files::DeviceName;
use core::sync::atomic::AtomicU64;
use overspill_store::PageBytes;
use overspill_vm::Access;
use overspill_vm::pager::IoResult;
use overspill_vm::types::{PAGE_SHIFT, PAGE_SIZE};

/// A file that is the home of an object's pages. The descriptors belong to whoever has set it.
#[derive(Debug)]
pub struct HomeFile {
    /// What may be done with it.
    pub access: Access,
    /// To read and write whole pages.
    pub fd: i32,
    /// To read and write the rest of the last page.
    pub rest: i32,
    /// Whether `fd` goes past the kernel's cache.
    pub direct: bool,
    /// For messages.
    pub name: Box<DeviceName>,
    /// After a write of the page daemon's has failed: when it tries again (CLOCK_MONOTONIC, in nanoseconds).
    pub retry_at: AtomicU64,
}

/// How long the page daemon leaves a file alone after a write there has failed, or the devices behind compressed memory, in
/// nanoseconds. Guessed: a file system that is full or a device that fails is not asked at every step, and the wait is short next
/// to [`crate::daemon`]'s patience.
pub(crate) const RETRY_NS: u64 = 200_000_000;

/// What a read of a file needs beside its descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HomeRead {
    /// [`HomeFile::rest`].
    pub rest: i32,
    /// [`HomeFile::direct`].
    pub direct: bool,
    /// The pages may be changed, so their tags are needed.
    pub tags: bool,
}

/// The part of some pages that a file has room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Extent {
    /// So many whole pages.
    Pages(u32),
    /// So many bytes of the first page.
    Rest(usize),
    /// Nothing: the file ends before the first page.
    Nothing,
}

/// What a file of `len` bytes has of `pages` pages from `offset` on.
pub(crate) fn extent(len: u64, offset: u64, pages: u32) -> Extent {
    match len.saturating_sub(offset) {
        0 => Extent::Nothing,
        rest if rest < PAGE_SIZE as u64 => Extent::Rest(rest as usize),
        bytes => Extent::Pages((bytes >> PAGE_SHIFT).min(pages as u64) as u32),
    }
}

/// Whether a page has something behind the `bytes` bytes that its file has room for.
pub(crate) fn reaches_beyond(page: &PageBytes, bytes: usize) -> bool {
    page.get(bytes..).is_some_and(|rest| rest.iter().any(|byte| *byte != 0))
}

/// The outcome of a write that failed.
pub(crate) fn failure(e: Errno) -> IoResult {
    match e {
        errno::ENOSPC | errno::EDQUOT => IoResult::NoSpace,
        e => IoResult::Io(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_room_for_what_lies_before_its_end() {
        let page = PAGE_SIZE as u64;
        for (len, offset, pages, expected) in [
            (0, 0, 1, Extent::Nothing),
            (1, 0, 4, Extent::Rest(1)),
            (page, 0, 4, Extent::Pages(1)),
            (page + 1, 0, 4, Extent::Pages(1)),
            (page + 1, page, 4, Extent::Rest(1)),
            (page + 1, 2 * page, 4, Extent::Nothing),
            (9 * page, page, 4, Extent::Pages(4)),
        ] {
            assert_eq!(extent(len, offset, pages), expected, "{len} {offset} {pages}");
        }
    }
}

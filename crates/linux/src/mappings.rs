//! Asks the kernel about the process's own mappings: their bounds and protection, their bytes even where they are not readable, how
//! much of them is locked or pinned, and which pages were touched. The files of /proc are opened once and kept, so that a later
//! chroot does not matter.

use crate::sys::{self, Errno, Fd, sys};
use overspill_machine::kernel::{Fixed, Mapping};
use overspill_vm::types::PAGE_SIZE;

/// The mappings of this process.
#[derive(Debug, Default)]
pub struct Mappings {
    maps: Option<Fd>,
    mem: Option<Fd>,
    pagemap: Option<Fd>,
}

/// `struct procmap_query` (linux/fs.h, Linux 6.11).
#[repr(C)]
#[derive(Default)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name_addr: u64,
    build_id_addr: u64,
}

/// The ioctl that tells of one mapping.
pub const PROCMAP_QUERY: u64 = 3 << 30 | (size_of::<ProcmapQuery>() as u64) << 16 | (b'f' as u64) << 8 | 17;
const _: () = assert!(libc::PROT_READ == 1 && libc::PROT_WRITE == 2 && libc::PROT_EXEC == 4, "as the flags of PROCMAP_QUERY");

// (the thread's file: once the first thread has ended, that of the process is empty)
const MAPS: &[u8] = b"/proc/thread-self/maps\0";
const MEM: &[u8] = b"/proc/thread-self/mem\0";
const PAGEMAP: &[u8] = b"/proc/thread-self/pagemap\0";

fn open(kept: &mut Option<Fd>, path: &[u8]) -> Result<i32, Errno> {
    if kept.is_none() {
        *kept = Some(sys::open(path, libc::O_RDONLY | libc::O_CLOEXEC, 0)?);
    }
    Ok(kept.as_ref().map_or(-1, Fd::raw))
}

impl Mappings {
    fn look_through(addr: usize) -> Result<Option<Mapping>, Errno> {
        let mut found = None;
        sys::each_mapping_with(|start, end, prot| {
            if (start..end).contains(&addr) {
                found = Some(Mapping { start, end, prot });
            }
        })?;
        Ok(found)
    }

    /// Calls `f(start, end)` for each run of pages that the kernel has, of `most` pages at most. A page that it is moving counts as
    /// swapped, and so does a mark at an address that has no page: a guard page, which Linux tells apart since 6.15, or a page that
    /// its swap has lost. A mark that is taken for a page is charged, and cannot be evicted; that is all.
    fn populated(&self, start: usize, end: usize, most: u64, mut f: impl FnMut(usize, usize)) -> Result<(), Errno> {
        let pagemap = self.pagemap.as_ref().ok_or(libc::EBADF)?.raw();
        let wanted = Wanted { any: PAGE_IS_PRESENT | PAGE_IS_SWAPPED, ..Wanted::default() };
        scan(pagemap, (start, end), Wanted { none: PAGE_IS_GUARD, ..wanted }, most, &mut f)
            .or_else(|_| scan(pagemap, (start, end), wanted, most, f))
    }
}

impl overspill_machine::kernel::Mappings for Mappings {
    fn opened() -> Self {
        let mut mappings = Mappings::default();
        let _ = open(&mut mappings.maps, MAPS).and(open(&mut mappings.mem, MEM)).and(open(&mut mappings.pagemap, PAGEMAP));
        mappings
    }

    fn at(&mut self, addr: usize) -> Result<Option<Mapping>, Errno> {
        let maps = open(&mut self.maps, MAPS)?;
        let mut query = ProcmapQuery { size: size_of::<ProcmapQuery>() as u64, query_addr: addr as u64, ..ProcmapQuery::default() };
        // SAFETY: the kernel reads and writes the structure, which lives over the call.
        match unsafe { sys!(libc::SYS_ioctl, maps, PROCMAP_QUERY, &mut query as *mut _) } {
            Ok(_) => {
                let prot = query.vma_flags as i32 & (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC);
                Ok(Some(Mapping { start: query.vma_start as usize, end: query.vma_end as usize, prot }))
            }
            Err(libc::ENOENT) => Ok(None),
            Err(_) => Self::look_through(addr), // before Linux 6.11
        }
    }

    fn read(&mut self, addr: usize, out: &mut [u8]) -> Result<usize, Errno> {
        let mem = open(&mut self.mem, MEM)?;
        // SAFETY: the kernel writes within the slice.
        let n = unsafe { sys!(libc::SYS_pread64, mem, out.as_mut_ptr(), out.len(), addr) }?;
        if n < PAGE_SIZE { Err(libc::EIO) } else { Ok(n & !(PAGE_SIZE - 1)) }
    }

    fn references(&mut self, start: usize, end: usize, f: impl FnMut(usize, usize)) -> Result<(), Errno> {
        let wanted = Wanted { all: PAGE_IS_PRESENT | PAGE_IS_ACCESSED, ..Wanted::default() };
        scan(open(&mut self.pagemap, PAGEMAP)?, (start, end), wanted, u64::MAX, f)
    }

    fn first_populated(&self, start: usize, end: usize) -> usize {
        let mut first = end;
        match self.populated(start, end, 1, |start, _| first = first.min(start)) {
            Ok(()) => first,
            Err(_) => start,
        }
    }

    fn each_populated(&self, start: usize, end: usize, mut f: impl FnMut(usize)) {
        if self.populated(start, end, u64::MAX, |start, end| (start..end).step_by(PAGE_SIZE).for_each(&mut f)).is_err() {
            sys::each_resident(start, end, f);
        }
    }
}

/// How much memory is locked or pinned; `None` if that is unknown.
pub fn fixed() -> Option<Fixed> {
    let mut text = [0; 4096];
    let status = sys::read_file(b"/proc/thread-self/status\0", &mut text).ok()?;
    let field = |name: &[u8]| {
        let line = status.split(|byte| *byte == b'\n').find(|line| line.starts_with(name))?;
        let digits = line.iter().filter(|byte| byte.is_ascii_digit());
        Some(digits.fold(0, |kib: u64, digit| kib * 10 + u64::from(digit - b'0')) << 10)
    };
    Some(Fixed { locked: field(b"VmLck:")?, pinned: field(b"VmPin:")? })
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// The ioctl that tells of pages.
pub const PAGEMAP_SCAN: u64 = 3 << 30 | (size_of::<ScanArg>() as u64) << 16 | (b'f' as u64) << 8 | 16;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
const PAGE_IS_GUARD: u64 = 1 << 8;
/// It was touched since UFFDIO_RWPROTECT. From the same series as `FEATURES_REFERENCES` of `uffd.rs`.
const PAGE_IS_ACCESSED: u64 = 1 << 9;

/// The categories of pages that are looked for.
#[derive(Clone, Copy, Default)]
struct Wanted {
    /// A page has all of these.
    all: u64,
    /// It has one of these, if there are any.
    any: u64,
    /// It has none of these.
    none: u64,
}

/// Calls `f(start, end)` for each run of pages of the range that are wanted. In bytes, of `most` pages. `pagemap` is that file of
/// /proc.
///
/// # Errors
/// EINVAL: the kernel does not tell.
fn scan(pagemap: i32, (start, end): (usize, usize), wanted: Wanted, most: u64, mut f: impl FnMut(usize, usize)) -> Result<(), i32> {
    let mut regions = [PageRegion::default(); 64];
    let (mut at, mut left) = (start, most);
    while at < end && left > 0 {
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            start: at as u64,
            end: end as u64,
            vec: regions.as_mut_ptr() as u64,
            vec_len: regions.len() as u64,
            max_pages: left,
            category_inverted: wanted.none,
            category_mask: wanted.all | wanted.none,
            category_anyof_mask: wanted.any,
            return_mask: wanted.all,
            ..ScanArg::default()
        };
        // SAFETY: the kernel reads and writes the structure and at most `vec_len` regions, both live.
        let n = unsafe { sys!(libc::SYS_ioctl, pagemap, PAGEMAP_SCAN, &mut arg as *mut _) }?;
        for r in &regions[..n] {
            f(r.start as usize, r.end as usize);
            left -= (r.end - r.start) / PAGE_SIZE as u64;
        }
        if arg.walk_end as usize <= at {
            break;
        }
        at = arg.walk_end as usize;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::area;
    use overspill_machine::kernel::Mappings as _;

    #[test]
    fn both_ways_tell_the_same() {
        let base = area::map_anonymous(4 * PAGE_SIZE).expect("16 KiB") as usize;
        let mut mappings = Mappings::default();
        for (page, prot) in [(1, libc::PROT_READ), (2, libc::PROT_NONE)] {
            let at = base + page * PAGE_SIZE;
            // SAFETY: our own mapping, which nobody uses.
            unsafe { sys!(libc::SYS_mprotect, at, PAGE_SIZE, prot) }.expect("protected");
            let mapping = Some(Mapping { start: at, end: at + PAGE_SIZE, prot });
            assert_eq!(mappings.at(at + 5), Ok(mapping));
            assert_eq!(Mappings::look_through(at + 5), Ok(mapping));
        }
        let mut page = [1; 2 * PAGE_SIZE];
        assert_eq!(mappings.read(base + 2 * PAGE_SIZE, &mut page), Ok(2 * PAGE_SIZE), "whatever the protection");
        assert_eq!(page, [0; 2 * PAGE_SIZE]);
        // SAFETY: nobody uses it any more.
        unsafe { area::unmap(base as *mut u8, 4 * PAGE_SIZE) };
        assert!(mappings.read(0, &mut page).is_err());
        assert!(fixed().is_some());
    }

    /// GHC's run-time system reserves a terabyte. To take it over, the pager asked about each page, for half a second, while every
    /// fault waited.
    #[test]
    fn the_first_page_of_a_large_reservation_is_found_at_once() {
        const LEN: usize = 1 << 40;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping.
        let base = unsafe { sys!(libc::SYS_mmap, 0usize, LEN, libc::PROT_NONE, flags, usize::MAX, 0usize) }.expect("address space");
        let mappings = Mappings::opened();
        let end = base + LEN;
        assert_eq!(mappings.first_populated(base, end), end);
        assert_eq!(Mappings::default().first_populated(base, end), base, "nothing is known");
        for at in [end - PAGE_SIZE, base + LEN / 2 + 3 * PAGE_SIZE] {
            // SAFETY: our own mapping, which nobody else uses.
            unsafe {
                sys!(libc::SYS_mprotect, at, PAGE_SIZE, libc::PROT_READ | libc::PROT_WRITE).expect("protected");
                (at as *mut u8).write(1);
            }
            assert_eq!((mappings.first_populated(base, end), mappings.first_populated(at, end)), (at, at));
        }
        assert_eq!(mappings.first_populated(base + LEN / 2 + 4 * PAGE_SIZE, end), end - PAGE_SIZE);
        // SAFETY: nobody uses it any more.
        unsafe { area::unmap(base as *mut u8, LEN) };
    }

    #[test]
    fn pages_in_memory_are_found_and_a_hole_hides_none() {
        let base = area::map_anonymous(1000 * PAGE_SIZE).expect("4 MiB") as usize;
        let at = |page: usize| base + page * PAGE_SIZE;
        let touched = [0, 1, 511, 513, 999];
        // SAFETY: our own mapping.
        unsafe { touched.iter().for_each(|page| (at(*page) as *mut u8).write(1)) };
        let found = || {
            let mut found = Vec::new();
            sys::each_resident(base, at(1000), |at| found.push((at - base) / PAGE_SIZE));
            for mappings in [Mappings::opened(), Mappings::default()] {
                let mut populated = Vec::new();
                mappings.each_populated(base, at(1000), |at| populated.push((at - base) / PAGE_SIZE));
                assert_eq!(populated, found, "there is nothing in the kernel's swap");
            }
            found
        };
        assert_eq!(found(), touched);
        const MADV_GUARD_INSTALL: usize = 102; // since Linux 6.13
        let wanted = Wanted { none: PAGE_IS_GUARD, ..Wanted::default() };
        let pagemap = Mappings::opened().pagemap.expect("it is there");
        if scan(pagemap.raw(), (base, at(1)), wanted, 1, |_, _| {}).is_ok() {
            // SAFETY: our own mapping, whose page nobody has touched.
            unsafe { sys!(libc::SYS_madvise, at(600), PAGE_SIZE, MADV_GUARD_INSTALL) }.expect("a guard page");
            assert_eq!(found(), touched, "a guard page is no page");
        }
        // SAFETY: nobody uses it any more.
        unsafe { area::unmap(at(700) as *mut u8, PAGE_SIZE) };
        assert_eq!(found(), touched);
        // SAFETY: nor the rest.
        unsafe { area::unmap(base as *mut u8, 700 * PAGE_SIZE) };
        // SAFETY: as above.
        unsafe { area::unmap(at(701) as *mut u8, 299 * PAGE_SIZE) };
    }
}

//! The files of a swap device, one or several.
//!
//! A file has no name, or loses it at once. Its mode is 0600. It grows in chunks, and parts of it can be given back. A block device
//! is claimed with O_EXCL. Both use O_DIRECT where it works.

use crate::control::Kind;
use crate::device_spec::{DeviceSpec, FILES_MAX, Medium, NAME_MAX};
use crate::sys::{self, Errno, Fd, sys};
use core::ffi::CStr;
use core::sync::atomic::AtomicU32;
pub use overspill_machine::files::DeviceName;
use overspill_machine::files::{CHUNK, Chunk, Files, Pieces};
use overspill_vm::types::{PAGE_SHIFT, PAGE_SIZE};
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

/// The sizes that a file tries to grow by, the largest first. If the file system has less room than the smallest, it is not used.
const CHUNKS: [u64; 3] = [CHUNK, CHUNK / 16, CHUNK / 256];
/// How often a name is tried that others use for a moment, and the time between, in nanoseconds: a second in all, a guess.
const NAME_TRIES: u32 = 1000;
const NAME_WAIT_NS: u64 = 1_000_000;

/// Whether there is an empty file at this path, which ends with a zero byte, or nothing.
fn is_empty_or_gone(path: &[u8]) -> bool {
    match sys::lstat(CStr::from_bytes_with_nul(path).expect("a path with its end")) {
        Ok(stat) => stat.st_mode & libc::S_IFMT == libc::S_IFREG && stat.st_size == 0,
        Err(errno) => errno == libc::ENOENT,
    }
}

/// An open swap file.
#[derive(Debug)]
pub struct SwapFile {
    fd: Fd,
    /// The length that it has grown to, in bytes.
    len: u64,
    limit: u64,
    direct: bool,
    kind: Kind,
    align: Align,
}

/// Whether clusters end where the file's physical extents do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Align {
    /// Not asked for.
    No,
    /// They do.
    Extents,
    /// They do not, because the file system does not say where its extents lie.
    Refused,
}

/// The files, or block devices, that a device is made of: at least one, in the order in which the device's extents number them.
#[derive(Debug)]
pub struct SwapFiles {
    all: [Option<SwapFile>; FILES_MAX],
    /// The limit of all together, in bytes; 0: none.
    limit: u64,
    /// The file that grows next.
    turn: usize,
}

impl SwapFiles {
    /// Opens what `device` describes.
    ///
    /// # Errors
    /// The error and the place that caused it. For a file as [`SwapFile::create`]. For a block device: EBUSY if it is in use,
    /// ENOTBLK if it is none, and as from open(2). ENOTSUP for devices without files. After an error nothing is left behind.
    pub fn open(device: &DeviceSpec) -> Result<SwapFiles, (Errno, &OsStr)> {
        let several = !device.more.is_empty();
        let each = device.names().map(|name| {
            // each of several block devices counts with its whole length; the limit is for all together
            let limit = if several { 0 } else { device.size.unwrap_or(0) };
            SwapFile::open(&device.medium, name, limit, device.align).map_err(|e| (e, name))
        });
        let mut files = SwapFiles { all: [const { None }; FILES_MAX], limit: device.size.unwrap_or(0), turn: 0 };
        for (i, file) in each.enumerate() {
            *files.all.get_mut(i).ok_or((libc::E2BIG, device.name()))? = Some(file?);
        }
        files.limit = files.length_limit();
        Ok(files)
    }

    /// Takes over files, or block devices, that are open (and claimed). `limit`: the most bytes of all together; 0: no limit.
    ///
    /// # Errors
    /// As [`SwapFile::from_block`]; EINVAL if one is not of the kind, or there are none or too many.
    pub fn from_fds(fds: impl IntoIterator<Item = Fd>, limit: u64, kind: Kind, align: bool) -> Result<SwapFiles, Errno> {
        let mut files = SwapFiles { all: [const { None }; FILES_MAX], limit, turn: 0 };
        for (i, fd) in fds.into_iter().enumerate() {
            *files.all.get_mut(i).ok_or(libc::EINVAL)? = Some(match kind {
                _ if kind_of(&fd) != Some(kind) => return Err(libc::EINVAL),
                Kind::Block => SwapFile::from_block(fd, 0)?,
                Kind::File | Kind::Compressed => SwapFile::from_fd(fd, 0, kind).aligned(align),
            });
        }
        if files.all[0].is_none() {
            return Err(libc::EINVAL);
        }
        files.limit = files.length_limit();
        Ok(files)
    }

    /// Of one file.
    pub fn one(file: SwapFile) -> SwapFiles {
        let limit = file.limit;
        let mut all = [const { None }; FILES_MAX];
        all[0] = Some(file);
        SwapFiles { all, limit, turn: 0 }
    }

    /// The same files through other descriptors, in a forked process. The old numbers belong to another table, and stay open.
    ///
    /// # Errors
    /// EBADF if one is missing.
    pub fn reopened(self, mut fds: [Option<Fd>; FILES_MAX]) -> Result<SwapFiles, Errno> {
        let SwapFiles { all, limit, turn } = self;
        let mut new = SwapFiles { all: [const { None }; FILES_MAX], limit, turn };
        // take all old numbers first: none of them may be closed here
        let shapes = all.map(|old| {
            let shape = old.as_ref().map(|old| (old.len, old.limit, old.kind, old.align));
            core::mem::forget(old);
            shape
        });
        for ((new, shape), fd) in new.all.iter_mut().zip(shapes).zip(&mut fds) {
            let Some((len, limit, kind, align)) = shape else { continue };
            let fd = fd.take().ok_or(libc::EBADF)?;
            *new = Some(SwapFile { len, align, ..SwapFile::from_fd(fd, limit, kind) });
        }
        Ok(new)
    }

    /// As [`SwapFiles::reopened`], but for a process that does not need them.
    pub fn forget(self) {
        self.all.into_iter().for_each(core::mem::forget);
    }

    /// The most that they may hold together, in bytes; 0: no limit.
    fn length_limit(&self) -> u64 {
        let lengths = || self.iter().map(|file| file.limit);
        let sum = if lengths().any(|limit| limit == 0) { 0 } else { lengths().sum() };
        if sum == 0 || self.limit == 0 { sum.max(self.limit) } else { sum.min(self.limit) }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &SwapFile> {
        self.all.iter().flatten()
    }

    /// The file of this number, as the device's extents have it.
    ///
    /// # Panics
    /// If there is none.
    pub fn get(&self, file: u16) -> &SwapFile {
        self.all[file as usize].as_ref().expect("an extent is of a file of its device")
    }

    /// As [`SwapFiles::get`].
    ///
    /// # Panics
    /// If there is none.
    pub fn get_mut(&mut self, file: u16) -> &mut SwapFile {
        self.all[file as usize].as_mut().expect("an extent is of a file of its device")
    }

    /// Their kind; all have the same.
    pub fn kind(&self) -> Kind {
        self.get(0).kind
    }

    /// Whether clusters end where physical extents do, in all of them.
    pub fn align(&self) -> Align {
        let refused = self.iter().find(|file| file.align == Align::Refused);
        refused.unwrap_or(self.get(0)).align
    }
}

impl Files for SwapFiles {
    fn count(&self) -> usize {
        self.iter().count()
    }
    fn limit(&self) -> u64 {
        self.limit
    }
    fn grows(&self) -> bool {
        self.kind() == Kind::File || self.count() > 1
    }
    fn chunk(&self, bytes_max: u64, nth: usize) -> Option<Chunk> {
        let (count, grown) = (self.count(), self.iter().map(|file| file.len).sum());
        let left = if self.limit == 0 { bytes_max } else { bytes_max.min(self.limit.saturating_sub(grown)) };
        let by_turns = (0..count).map(|i| ((self.turn + i) % count) as u16);
        by_turns.flat_map(|file| CHUNKS.into_iter().filter_map(move |len| self.get(file).chunk(file, left, len))).nth(nth)
    }
    fn grown(&mut self, chunk: &Chunk) {
        self.turn = (chunk.file as usize + 1) % self.count();
        self.get_mut(chunk.file).len = chunk.offset + chunk.bytes;
    }
    fn fd(&self, file: u16) -> i32 {
        self.get(file).raw()
    }
    fn are_files(&self) -> bool {
        self.kind() == Kind::File
    }
    fn pieces(&mut self, file: u16, offset: u64, pages: u32) -> Pieces {
        self.get_mut(file).pieces(offset, pages)
    }
    fn allocate(fd: i32, offset: u64, bytes: u64) -> Result<(), Errno> {
        allocate(fd, offset, bytes)
    }
    fn punch(fd: i32, offset: u64, bytes: u64) -> Result<(), Errno> {
        punch(fd, offset, bytes)
    }
}

impl SwapFile {
    fn open(medium: &Medium, name: &OsStr, limit: u64, align: bool) -> Result<SwapFile, Errno> {
        let name = name.as_bytes();
        match medium {
            Medium::File(_) => Ok(Self::create(name, limit)?.aligned(align)),
            Medium::Block { .. } => {
                let mut path = [0u8; NAME_MAX + 1];
                path.get_mut(..name.len()).ok_or(libc::ENAMETOOLONG)?.copy_from_slice(name);
                // O_EXCL without O_CREAT claims a block device: the kernel refuses it if a file system, another claim or its swap
                // has it.
                let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_EXCL | libc::O_NONBLOCK;
                Self::from_block(sys::open(&path[..name.len() + 1], flags, 0)?, limit)
            }
            Medium::Compressed(_) => Err(libc::ENOTSUP),
        }
    }

    /// Takes over a block device that is open and claimed. Uses `limit` bytes at most; 0: all of it.
    ///
    /// # Errors
    /// ENOTBLK if it is none, ENOMEDIUM if it is empty, ENOSPC if it is shorter than a page.
    pub fn from_block(fd: Fd, limit: u64) -> Result<SwapFile, Errno> {
        if kind_of(&fd) != Some(Kind::Block) {
            return Err(libc::ENOTBLK);
        }
        // SAFETY: touches no memory.
        let end = unsafe { sys!(libc::SYS_lseek, fd.raw(), 0, libc::SEEK_END) }? as u64;
        let bytes = if limit == 0 { end } else { end.min(limit) } / PAGE_SIZE as u64 * PAGE_SIZE as u64;
        match (bytes, end) {
            (0, 0) => Err(libc::ENOMEDIUM),
            (0, _) => Err(libc::ENOSPC),
            _ => Ok(Self::from_fd(fd, bytes, Kind::Block)),
        }
    }

    /// Makes a file in the directory `place`, or the new file `place`. `limit`: its most bytes; 0: no limit.
    ///
    /// # Errors
    /// ENOENT, EACCES, EROFS, EEXIST, ... as from open(2).
    pub fn create(place: &[u8], limit: u64) -> Result<SwapFile, Errno> {
        let mut path = [0u8; 4200];
        if place.len() > 4096 {
            return Err(libc::ENAMETOOLONG);
        }
        path[..place.len()].copy_from_slice(place);
        let dir = &path[..place.len() + 1];
        let base = libc::O_RDWR | libc::O_CLOEXEC;
        let fd = match sys::open(dir, base | libc::O_TMPFILE | libc::O_EXCL, 0o600) {
            Ok(fd) => fd,
            // a new file; or the file system has no O_TMPFILE, and the file has a unique name until it is unlinked
            Err(libc::ENOENT | libc::ENOTDIR) => Self::named(dir)?,
            Err(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL) => {
                let mut n = place.len();
                for b in b"/.overspill-" {
                    path[n] = *b;
                    n += 1;
                }
                let mut id = (sys::getpid() as u64) << 32 ^ sys::now_ns();
                while id > 0 {
                    path[n] = b'a' + (id % 26) as u8;
                    n += 1;
                    id /= 26;
                }
                Self::named(&path[..n + 1])?
            }
            Err(e) => return Err(e),
        };
        Ok(Self::from_fd(fd, limit, Kind::File))
    }

    /// A process that makes a file of the same name at the same time has an empty one there for a moment.
    fn named(path: &[u8]) -> Result<Fd, Errno> {
        let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let mut tries = 0;
        let fd = loop {
            match sys::open(path, flags, 0o600) {
                Err(libc::EEXIST) if tries < NAME_TRIES && is_empty_or_gone(path) => {
                    tries += 1;
                    sys::futex_wait(&AtomicU32::new(0), 0, NAME_WAIT_NS);
                }
                opened => break opened?,
            }
        };
        sys::unlink(path)?;
        Ok(fd)
    }

    /// Takes over a file that is open already.
    pub fn from_fd(fd: Fd, limit: u64, kind: Kind) -> SwapFile {
        // SAFETY: sets a flag of our own descriptor; refused where the file system has no direct I/O.
        let direct = unsafe { sys!(libc::SYS_fcntl, fd.raw(), libc::F_SETFL, libc::O_DIRECT) }.is_ok();
        SwapFile { fd, len: 0, limit, direct, kind, align: Align::No }
    }

    /// The same file. With `align` its clusters should end where its physical extents do.
    pub fn aligned(self, align: bool) -> SwapFile {
        SwapFile { align: if align { Align::Extents } else { Align::No }, ..self }
    }

    /// Whether its clusters end where its physical extents do.
    pub fn align(&self) -> Align {
        self.align
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The most it may hold, in bytes; 0: no limit.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The descriptor's number.
    pub fn raw(&self) -> i32 {
        self.fd.raw()
    }

    /// Whether reads and writes bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// What comes next in the file, at most `bytes_max` bytes of it and up to a multiple of `len`. `None` if the limit is reached.
    fn chunk(&self, file: u16, bytes_max: u64, len: u64) -> Option<Chunk> {
        let limit = if self.limit == 0 { u64::MAX } else { self.limit };
        let max = self.len.saturating_add(bytes_max).min(limit) & !(PAGE_SIZE as u64 - 1);
        let bytes = (self.len + 1).next_multiple_of(len).min(max).checked_sub(self.len).filter(|bytes| *bytes > 0)?;
        Some(Chunk { file, fd: self.fd.raw(), offset: self.len, bytes, is_there: self.kind == Kind::Block })
    }

    /// The pieces in which `pages` pages from byte `offset` on should be used. In an aligned file these are its physical extents,
    /// if the file system says where they lie; else it is one piece. The last of [`overspill_machine::files::PIECES_MAX`] pieces
    /// takes the rest.
    pub fn pieces(&mut self, offset: u64, pages: u32) -> Pieces {
        let mut pieces = Pieces::one(pages);
        if self.align != Align::Extents {
            return pieces;
        }
        let end = offset + (u64::from(pages) << PAGE_SHIFT);
        // the end of the physical extent before this place, in the file and on the disk
        let (mut at, mut disk) = (offset, None);
        while at < end {
            let mut ask = FiemapAsk { start: at, length: end - at, count: ASKED as u32, ..FiemapAsk::default() };
            // SAFETY: FS_IOC_FIEMAP reads the head, and writes it and at most `count` extents behind it, for which there is room.
            if unsafe { sys!(libc::SYS_ioctl, self.fd.raw(), FS_IOC_FIEMAP, &raw mut ask) }.is_err() {
                self.align = Align::Refused;
                return Pieces::one(pages);
            }
            let got = (ask.mapped as usize).min(ASKED);
            for extent in &ask.extents[..got] {
                if extent.flags & FIEMAP_NOWHERE != 0 {
                    self.align = Align::Refused;
                    return Pieces::one(pages);
                }
                if disk != Some(extent.physical.wrapping_sub(extent.logical)) && extent.logical > offset && extent.logical < end {
                    // a page that two extents share belongs to the earlier one
                    pieces.cut_at((extent.logical - offset).div_ceil(PAGE_SIZE as u64) as u32);
                }
                disk = Some(extent.physical.wrapping_sub(extent.logical));
                at = extent.logical + extent.length;
            }
            if got < ASKED || ask.extents[got - 1].flags & FIEMAP_LAST != 0 {
                break;
            }
        }
        pieces
    }
}

/// Gets blocks for a part of a file. => signals are blocked
///
/// # Errors
/// As fallocate(2), but not for file systems that cannot allocate in advance.
pub fn allocate(fd: i32, offset: u64, bytes: u64) -> Result<(), Errno> {
    // SAFETY: touches no memory.
    match unsafe { sys!(libc::SYS_fallocate, fd, 0, offset, bytes) } {
        Ok(_) | Err(libc::EOPNOTSUPP | libc::ENOSYS) => Ok(()),
        Err(e) => {
            if e == libc::EFBIG {
                sys::take_signal(libc::SIGXFSZ); // as soon as signals are let through, it would end the process
            }
            Err(e)
        }
    }
}

/// Gives the blocks of a part of a file back to the file system; the file's length stays.
///
/// # Errors
/// As fallocate(2): EOPNOTSUPP where it cannot be done.
pub fn punch(fd: i32, offset: u64, bytes: u64) -> Result<(), Errno> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    loop {
        // SAFETY: touches no memory. The caller wants the content to be lost.
        match unsafe { sys!(libc::SYS_fallocate, fd, mode, offset, bytes) } {
            Err(libc::EINTR) => {}
            done => return done.map(drop),
        }
    }
}

/// `_IOWR('f', 11, struct fiemap)` of linux/fs.h.
const FS_IOC_FIEMAP: usize = 0xc020_660b;
/// FIEMAP_EXTENT_LAST.
const FIEMAP_LAST: u32 = 0x1;
/// FIEMAP_EXTENT_UNKNOWN, _DELALLOC, _ENCODED, _NOT_ALIGNED, _DATA_INLINE, _DATA_TAIL: the extent has no place on the disk.
const FIEMAP_NOWHERE: u32 = 0x2 | 0x4 | 0x8 | 0x100 | 0x200 | 0x400;
/// The number of extents to ask for at a time: 2 KiB on a bare thread's stack.
const ASKED: usize = 32;

/// `struct fiemap_extent` of linux/fiemap.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FiemapExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    more: [u32; 3],
}

/// `struct fiemap`, with room for extents behind it.
#[repr(C)]
#[derive(Default)]
struct FiemapAsk {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [FiemapExtent; ASKED],
}

impl AsFd for SwapFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The kind of device that a descriptor can be; `None` if it can be none.
pub fn kind_of(fd: &Fd) -> Option<Kind> {
    let mut stat = core::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the structure has room for what fstat writes, and all-zero bytes are a valid one.
    let stat = unsafe {
        sys!(libc::SYS_fstat, fd.raw(), stat.as_mut_ptr()).ok()?;
        stat.assume_init()
    };
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFREG => Some(Kind::File),
        libc::S_IFBLK => Some(Kind::Block),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{Engine, Io};
    use overspill_machine::kernel::{Io as _, IoVec};

    /// A limit on the size of files ended a program that used the library, by SIGXFSZ, when a swapoff made another file grow, or
    /// wrote behind a limit that was set when the file had grown.
    #[test]
    fn a_limit_on_the_size_of_files_is_an_error() {
        let file = SwapFile::create(std::env::temp_dir().as_os_str().as_encoded_bytes(), 0).expect("swap file");
        let (mut io, page) = (Io::lent(Engine::Psync), [0u8; PAGE_SIZE]);
        // SAFETY: the child makes only system calls, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
            // SAFETY: reads one structure, which lives over the call.
            unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) };
            let mask = sys::block_signals();
            let mut refused = allocate(file.raw(), 0, 2 << 20) == Err(libc::EFBIG);
            let iov = [IoVec { base: page.as_ptr() as usize, len: PAGE_SIZE }];
            // SAFETY: page and vector live until the completion.
            unsafe { io.write(file.raw(), &iov, 1 << 20, 7) };
            refused &= io.completion().is_some_and(|done| done.result == Err(libc::EFBIG));
            sys::restore_signals(mask);
            sys::exit_group(i32::from(!refused));
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "how the child has ended");
    }

    /// A file whose extents lie apart on the disk, because it grew in turns with another file, is cut where they end.
    #[test]
    fn pieces_are_the_physical_extents() {
        let dir = std::env::temp_dir().join(format!("overspill-pieces-{}", std::process::id()));
        std::fs::create_dir(&dir).expect("temp dir");
        let place = dir.as_os_str().as_encoded_bytes();
        let mut file = SwapFile::create(place, 0).expect("swap file").aligned(true);
        let other = SwapFile::create(place, 0).expect("swap file");
        for k in 0..20 {
            for f in [&file, &other] {
                allocate(f.raw(), k << 18, 1 << 18).expect("room");
            }
        }
        let pieces = file.pieces(0, 20 << 6);
        assert_eq!(pieces.lens().iter().sum::<u32>(), 20 << 6);
        assert!(pieces.lens().iter().all(|n| *n > 0));
        match file.align() {
            Align::Refused => println!("not run: this file system does not say where its extents lie"),
            // the file system placed them all in one piece
            _ => println!("{:?}", pieces.lens()),
        }
        let part = file.pieces(1 << 18, 64);
        assert_eq!(part.lens().iter().sum::<u32>(), 64);
        let st_blocks = |f: &SwapFile| std::fs::File::from(f.as_fd().try_clone_to_owned().expect("dup")).metadata().expect("stat");
        use std::os::unix::fs::MetadataExt;
        let before = st_blocks(&file).blocks();
        match punch(file.raw(), 1 << 20, 1 << 20) {
            // within what the file system needs to remember the hole: a test failed by one such block
            Ok(()) => assert!((before - st_blocks(&file).blocks()).abs_diff(2048) <= 64),
            Err(e) => println!("not run: this file system takes nothing back ({e})"),
        }
        assert_eq!(st_blocks(&file).len(), 20 << 18);
        std::fs::remove_dir_all(&dir).expect("cleanup");
    }

    /// Other users cannot read swapped pages: the file has no name, and its mode lets no other user in.
    #[test]
    fn nobody_else_may_open_a_swap_file() {
        use std::os::unix::fs::MetadataExt;
        let dir = std::env::temp_dir().join(format!("overspill-mode-{}", std::process::id()));
        std::fs::create_dir(&dir).expect("temp dir");
        let file = SwapFile::create(dir.as_os_str().as_encoded_bytes(), 0).expect("swap file");
        let data = std::fs::File::from(file.as_fd().try_clone_to_owned().expect("dup")).metadata().expect("stat");
        assert_eq!((data.mode() & 0o777, data.nlink()), (0o600, 0));
        std::fs::remove_dir(&dir).expect("nothing in it");
    }

    /// The next chunk that can be got.
    fn grow(files: &mut SwapFiles, bytes_max: u64) -> Option<(u16, u64, u64)> {
        let chunk = (0..).map_while(|nth| files.chunk(bytes_max, nth)).find(|chunk| SwapFiles::allocate_chunk(chunk).is_ok())?;
        files.grown(&chunk);
        Some((chunk.file, chunk.offset, chunk.bytes))
    }

    #[test]
    fn pieces_are_cut_in_order() {
        let mut pieces = Pieces::one(100);
        [0, 10, 10, 5, 40, 100, 200].into_iter().for_each(|at| pieces.cut_at(at));
        assert_eq!(pieces.lens(), [10, 30, 60]);
        (41..100).for_each(|at| pieces.cut_at(at));
        assert_eq!((pieces.lens().len(), pieces.lens().iter().sum::<u32>()), (62, 100));
    }

    #[test]
    fn several_files_grow_by_turns_up_to_the_limit_of_all() {
        let dir = std::env::temp_dir().join(format!("overspill-swapfiles-{}", std::process::id()));
        std::fs::create_dir(&dir).expect("temp dir");
        let device = DeviceSpec { size: Some(2 * CHUNK + 8192), ..DeviceSpec::file(&dir) }.and(dir.join("a")).and(dir.join("b"));
        let mut files = SwapFiles::open(&device).expect("three files");
        assert_eq!((files.count(), files.limit(), files.grows(), files.align()), (3, 2 * CHUNK + 8192, true, Align::No));
        assert_eq!(grow(&mut files, CHUNK), Some((0, 0, CHUNK)));
        assert_eq!(grow(&mut files, 4096), Some((1, 0, 4096)));
        assert_eq!(grow(&mut files, u64::MAX), Some((2, 0, CHUNK)));
        assert_eq!(grow(&mut files, u64::MAX), Some((0, CHUNK, 4096)));
        assert_eq!(grow(&mut files, u64::MAX), None);
        // a file that cannot grow any more does not keep the others from growing
        files.limit = 0;
        files.get_mut(1).limit = 4096;
        assert_eq!(grow(&mut files, 4096), Some((2, CHUNK, 4096)));
        assert_eq!(grow(&mut files, 4096), Some((0, CHUNK + 4096, 4096)));
        drop(files);
        // one of three cannot be opened: nothing is left of the others, and the error says which it was
        let device = DeviceSpec::file(dir.join("a")).and(dir.join("no/such")).and(dir.join("b"));
        assert_eq!(SwapFiles::open(&device).err(), Some((libc::ENOENT, dir.join("no/such").as_os_str())));
        assert_eq!(std::fs::read_dir(&dir).expect("dir").count(), 0);
        std::fs::remove_dir_all(&dir).expect("cleanup");
    }

    #[test]
    fn has_no_name_and_honours_its_limit() {
        let dir = std::env::temp_dir().join(format!("overspill-swapfile-{}", std::process::id()));
        std::fs::create_dir(&dir).expect("temp dir");
        let mut f = SwapFiles::one(SwapFile::create(dir.as_os_str().as_encoded_bytes(), 1 << 20).expect("swap file"));
        let named = SwapFile::create(dir.join("swap").as_os_str().as_encoded_bytes(), 0).expect("named swap file");
        let mut named = SwapFiles::one(named);
        assert_eq!(std::fs::read_dir(&dir).expect("dir").count(), 0);
        assert_eq!(grow(&mut f, u64::MAX), Some((0, 0, 1 << 20)));
        assert_eq!(grow(&mut f, u64::MAX), None);
        assert_eq!(grow(&mut named, 257 << 12), Some((0, 0, 257 << 12)));
        assert_eq!(grow(&mut named, u64::MAX), Some((0, 257 << 12, CHUNK - (257 << 12))));
        std::fs::write(dir.join("taken"), b"x").expect("write");
        assert_eq!(SwapFile::create(dir.join("taken").as_os_str().as_encoded_bytes(), 0).err(), Some(libc::EEXIST));
        assert_eq!(SwapFile::create(dir.join("no/such").as_os_str().as_encoded_bytes(), 0).err(), Some(libc::ENOENT));
        let no_device = crate::device_spec::parse("block:/dev/null".as_ref()).expect("a device");
        assert_eq!(SwapFiles::open(&no_device).err(), Some((libc::ENOTBLK, "/dev/null".as_ref())));
        std::fs::remove_dir_all(&dir).expect("cleanup");
    }
}

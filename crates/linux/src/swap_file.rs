//! A swap device's file: anonymous (never has a name, or loses it at once), mode 0600, grown in chunks; or a block device, claimed with
//! O_EXCL. O_DIRECT where it can be had.

use crate::control::Kind;
use crate::device_spec::{DeviceSpec, NAME_MAX, Place};
use crate::sys::{self, Errno, Fd, sys};
use overspill_vm::types::PAGE_SIZE;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

/// The file grows by this many bytes at a time. A power of two that makes one extent on most file systems.
const CHUNK: u64 = 64 << 20;

/// What a device is called. Any bytes, in place: a device that comes later must not allocate. Too long for a hook's stack: it is
/// written where it is to be.
pub struct DeviceName {
    bytes: [u8; NAME_MAX],
    len: usize,
}

impl DeviceName {
    /// Empty.
    pub const fn new() -> Self {
        DeviceName { bytes: [0; NAME_MAX], len: 0 }
    }
    /// Becomes as much of `name` as there is room for.
    pub fn set(&mut self, name: &[u8]) {
        self.len = name.len().min(NAME_MAX);
        self.bytes[..self.len].copy_from_slice(&name[..self.len]);
    }
    /// The name.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Default for DeviceName {
    fn default() -> Self {
        DeviceName::new()
    }
}

impl core::fmt::Debug for DeviceName {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.bytes().escape_ascii())
    }
}

/// An open swap file.
#[derive(Debug)]
pub struct SwapFile {
    fd: Fd,
    /// So many bytes from the start on have blocks.
    allocated: u64,
    limit: u64,
    direct: bool,
    kind: Kind,
}

impl SwapFile {
    /// Opens what `device` describes.
    ///
    /// # Errors
    /// For a file as [`SwapFile::create`]. For a block device: EBUSY if it is mounted or somebody else's, ENOTBLK if it is none,
    /// and as from open(2). ENOTSUP for devices that are no files.
    pub fn open(device: &DeviceSpec) -> Result<SwapFile, Errno> {
        let (name, limit) = (device.name().as_bytes(), device.size.unwrap_or(0));
        match &device.place {
            Place::File(_) => Self::create(name, limit),
            Place::Block { .. } => {
                let mut path = [0u8; NAME_MAX + 1];
                path.get_mut(..name.len()).ok_or(libc::ENAMETOOLONG)?.copy_from_slice(name);
                // O_EXCL without O_CREAT claims a block device: the kernel refuses it if a file system, another claim or its swap has it.
                let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_EXCL | libc::O_NONBLOCK;
                Self::from_block(sys::open(&path[..name.len() + 1], flags, 0)?, limit)
            }
            Place::Compressed(_) => Err(libc::ENOTSUP),
        }
    }

    /// Over a block device that is open and claimed. `limit` bytes at most; 0: all of it.
    ///
    /// # Errors
    /// ENOTBLK if it is none, ENOSPC if it is shorter than a page.
    pub fn from_block(fd: Fd, limit: u64) -> Result<SwapFile, Errno> {
        if kind_of(&fd) != Some(Kind::Block) {
            return Err(libc::ENOTBLK);
        }
        // SAFETY: touches no memory.
        let end = unsafe { sys!(libc::SYS_lseek, fd.raw(), 0, libc::SEEK_END) }? as u64;
        let bytes = if limit == 0 { end } else { end.min(limit) } / PAGE_SIZE as u64 * PAGE_SIZE as u64;
        if bytes == 0 {
            return Err(libc::ENOSPC);
        }
        let mut file = Self::from_fd(fd, bytes, Kind::Block);
        file.allocated = bytes;
        Ok(file)
    }

    /// Makes a file in the directory `place`, or as the new file `place`. `limit` bytes at most; 0: no limit.
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
            // a new file; or a file system without O_TMPFILE: a name that nobody else has, for as long as it takes to unlink it
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

    fn named(path: &[u8]) -> Result<Fd, Errno> {
        let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let fd = sys::open(path, flags, 0o600)?;
        sys::unlink(path)?;
        Ok(fd)
    }

    /// Over a file that is open already.
    pub fn from_fd(fd: Fd, limit: u64, kind: Kind) -> SwapFile {
        // SAFETY: sets a flag of our own descriptor; refused where the file system has no direct I/O.
        let direct = unsafe { sys!(libc::SYS_fcntl, fd.raw(), libc::F_SETFL, libc::O_DIRECT) }.is_ok();
        SwapFile { fd, allocated: 0, limit, direct, kind }
    }

    /// What it is.
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

    /// Whether reads and writes go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Whether the first `slots` pages of the file have blocks.
    pub fn has(&self, slots: u64) -> bool {
        slots * PAGE_SIZE as u64 <= self.allocated
    }

    /// Makes sure that the first `slots` pages of the file have blocks.
    ///
    /// # Errors
    /// ENOSPC if the limit or the file system's room is reached; EIO and the like.
    pub fn ensure(&mut self, slots: u64) -> Result<(), Errno> {
        if self.has(slots) {
            return Ok(());
        }
        let need = slots * PAGE_SIZE as u64;
        let limit = if self.limit == 0 { u64::MAX } else { self.limit };
        if need > limit {
            return Err(libc::ENOSPC);
        }
        let mut result = Err(libc::ENOSPC);
        for chunk in [CHUNK, CHUNK / 16, PAGE_SIZE as u64] {
            let end = need.next_multiple_of(chunk).min(limit);
            // SAFETY: touches no memory.
            let r = unsafe { sys!(libc::SYS_fallocate, self.fd.raw(), 0, self.allocated, end - self.allocated) };
            result = match r {
                Ok(_) => Ok(()),
                // no preallocation here: the file grows as it is written
                Err(libc::EOPNOTSUPP | libc::ENOSYS) => Ok(()),
                Err(e) => Err(e),
            };
            if result.is_ok() {
                self.allocated = end;
                break;
            }
        }
        result
    }
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

    #[test]
    fn has_no_name_and_honours_its_limit() {
        let dir = std::env::temp_dir().join(format!("overspill-swapfile-{}", std::process::id()));
        std::fs::create_dir(&dir).expect("temp dir");
        let mut f = SwapFile::create(dir.as_os_str().as_encoded_bytes(), 1 << 20).expect("swap file");
        let mut named = SwapFile::create(dir.join("swap").as_os_str().as_encoded_bytes(), 0).expect("named swap file");
        assert_eq!(std::fs::read_dir(&dir).expect("dir").count(), 0);
        assert_eq!(f.ensure(256), Ok(()));
        assert_eq!(f.ensure(257), Err(libc::ENOSPC));
        assert_eq!(named.ensure(257), Ok(()));
        std::fs::write(dir.join("taken"), b"x").expect("write");
        assert_eq!(SwapFile::create(dir.join("taken").as_os_str().as_encoded_bytes(), 0).err(), Some(libc::EEXIST));
        assert_eq!(SwapFile::create(dir.join("no/such").as_os_str().as_encoded_bytes(), 0).err(), Some(libc::ENOENT));
        let no_device = crate::device_spec::parse("block:/dev/null".as_ref()).expect("a device");
        assert_eq!(SwapFile::open(&no_device).err(), Some(libc::ENOTBLK));
        std::fs::remove_dir_all(&dir).expect("cleanup");
    }
}

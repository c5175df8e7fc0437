//! The swap file: anonymous (never has a name, or loses it at once), mode 0600, O_DIRECT where the file system can, grown in chunks.

use crate::sys::{self, Errno, Fd, sys};
use overspill_vm::types::PAGE_SIZE;

/// The file grows by this many bytes at a time. A power of two that makes one extent on most file systems.
const CHUNK: u64 = 64 << 20;

/// An open swap file.
#[derive(Debug)]
pub struct SwapFile {
    fd: Fd,
    allocated: u64,
    limit: u64,
    direct: bool,
}

impl SwapFile {
    /// Makes one in the directory `place`, or as the new file `place`. `limit` bytes at most.
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
        Ok(Self::from_fd(fd, limit))
    }

    fn named(path: &[u8]) -> Result<Fd, Errno> {
        let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let fd = sys::open(path, flags, 0o600)?;
        sys::unlink(path)?;
        Ok(fd)
    }

    /// Over a file that is open already.
    pub fn from_fd(fd: Fd, limit: u64) -> SwapFile {
        // SAFETY: sets a flag of our own descriptor; refused where the file system has no direct I/O.
        let direct = unsafe { sys!(libc::SYS_fcntl, fd.raw(), libc::F_SETFL, libc::O_DIRECT) }.is_ok();
        SwapFile { fd, allocated: 0, limit, direct }
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
        std::fs::remove_dir_all(&dir).expect("cleanup");
    }
}

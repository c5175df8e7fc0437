//! A page's bytes between memory and device, on Linux. They are checked only, or sealed with keys. The keys lie in a page of memory
//! that is locked, left out of core dumps, and wiped at the end. [`overspill_store::seal`] explains the scheme.

use crate::area;
use crate::sys::{self, Errno, sys};
use core::ops::Deref;
use core::ptr::NonNull;
pub use overspill_store::seal::KEYS_MAX;
use overspill_store::seal::{KEY_BYTES, Keys};
use overspill_store::{PageBytes, checksum};
use overspill_vm::types::{PAGE_SIZE, PageId, Tag};

/// How pages are stored.
#[derive(Debug)]
pub enum Content {
    /// As they are.
    Checked,
    /// Encrypted.
    Sealed(LockedKeys),
}

impl Content {
    /// Encrypted, with a fresh key.
    ///
    /// # Errors
    /// ENOMEM, EPERM or EAGAIN if no page may be locked in memory (RLIMIT_MEMLOCK); as getrandom(2).
    pub fn sealed() -> Result<Content, Errno> {
        let keys = LockedKeys::new()?;
        keys.add(&random_key()?).expect("room for the first key");
        Ok(Content::Sealed(keys))
    }

    /// In a forked child that goes on paging: makes a key of its own for the pages that it writes. It keeps the inherited keys for
    /// the pages that it reads, unless nothing is `stored`. => no other thread uses `self` meanwhile; does not allocate
    ///
    /// # Errors
    /// As [`Content::sealed`]; EOVERFLOW if the child has too many ancestors ([`KEYS_MAX`]).
    pub fn forked(&self, stored: bool) -> Result<(), Errno> {
        let Content::Sealed(keys) = self else { return Ok(()) };
        keys.lock()?; // locks are not inherited
        if !stored {
            keys.wipe();
        }
        keys.add(&random_key()?).map_err(|_| libc::EOVERFLOW)
    }

    /// Locks the keys again after the program has unlocked all memory of the process. If that fails, they could go to the kernel's
    /// swap from now on.
    pub fn lock_again(&self) {
        if let Content::Sealed(keys) = self {
            let _ = keys.lock();
        }
    }

    /// Wipes the keys in forked children. For a pager that does not go on in them.
    pub fn keep_from_children(&self) {
        if let Content::Sealed(keys) = self {
            // SAFETY: our own mapping; a child that has it wiped has no pager that would use it. (No keys are a valid value.)
            let _ = unsafe { sys::madvise(keys.0.as_ptr() as usize, PAGE_SIZE, libc::MADV_WIPEONFORK) };
        }
    }
}

impl overspill_machine::kernel::Content for Content {
    fn is_sealed(&self) -> bool {
        matches!(self, Content::Sealed(_))
    }

    fn tag(&self, page: PageId, stored: Option<Tag>, bytes: &PageBytes, scratch: &mut PageBytes) -> Tag {
        match (self, stored) {
            (Content::Checked, _) => checksum::of(page, bytes),
            (Content::Sealed(keys), Some(stored)) if keys.is_unchanged(page, stored, bytes, scratch) => stored,
            (Content::Sealed(_), _) => Tag::UNKNOWN,
        }
    }

    fn open(&self, page: PageId, stored: Tag, bytes: &mut PageBytes) -> bool {
        match self {
            Content::Checked => checksum::of(page, bytes) == stored,
            Content::Sealed(keys) => keys.open(page, stored, bytes),
        }
    }
    fn fingerprint(&self, page: PageId, bytes: &PageBytes) -> Tag {
        match self {
            Content::Checked => checksum::of(page, bytes),
            Content::Sealed(keys) => keys.fingerprint(page, bytes),
        }
    }
    fn seal(&self, page: PageId, plain: &PageBytes, sealed: &mut PageBytes) -> Tag {
        match self {
            Content::Checked => {
                *sealed = *plain;
                checksum::of(page, plain)
            }
            Content::Sealed(keys) => keys.seal(page, plain, sealed),
        }
    }
}

fn random_key() -> Result<[u8; KEY_BYTES], Errno> {
    let mut key = [0u8; KEY_BYTES];
    // SAFETY: the kernel writes within the array. (It waits until it has randomness, and then returns so few bytes whole.)
    match unsafe { sys!(libc::SYS_getrandom, key.as_mut_ptr(), KEY_BYTES, 0) } {
        Ok(KEY_BYTES) => Ok(key),
        Ok(_) => Err(libc::EIO),
        Err(e) => Err(e),
    }
}

/// [`Keys`] in a page of their own.
#[derive(Debug)]
pub struct LockedKeys(NonNull<Keys>);

// SAFETY: it owns the mapping, and `Keys` is all atomics.
unsafe impl Send for LockedKeys {}
// SAFETY: as above.
unsafe impl Sync for LockedKeys {}

impl LockedKeys {
    fn new() -> Result<LockedKeys, Errno> {
        let at = area::map_anonymous(PAGE_SIZE)?;
        // SAFETY: a fresh mapping, aligned, a page long, and `Keys` is no longer. From here on it is unmapped by the drop.
        let keys = unsafe {
            at.cast::<Keys>().write(Keys::new());
            LockedKeys(NonNull::new_unchecked(at.cast()))
        };
        // SAFETY: our own mapping; the advice does not change what it holds.
        unsafe { sys::madvise(at as usize, PAGE_SIZE, libc::MADV_DONTDUMP) }?;
        keys.lock()?;
        Ok(keys)
    }

    fn lock(&self) -> Result<(), Errno> {
        // SAFETY: changes no content.
        unsafe { sys!(libc::SYS_mlock, self.0.as_ptr(), PAGE_SIZE) }.map(drop)
    }
}

impl Deref for LockedKeys {
    type Target = Keys;
    fn deref(&self) -> &Keys {
        // SAFETY: valid from `new` to the drop.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for LockedKeys {
    fn drop(&mut self) {
        self.wipe();
        // SAFETY: the mapping of `new`, which nobody borrows any more. (`Keys` has nothing to drop but what was wiped.)
        unsafe { area::unmap(self.0.as_ptr().cast(), PAGE_SIZE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_machine::kernel::Content as _;

    #[test]
    fn keys_are_locked_and_left_out_of_dumps() {
        let Content::Sealed(keys) = Content::sealed().expect("a page may be locked") else { unreachable!() };
        let at = format!("{:x}-", keys.0.as_ptr() as usize);
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
        let flags = maps.split_once(&at).expect("a mapping of its own").1.split_once("VmFlags:").expect("flags").1;
        let flags: Vec<&str> = flags.lines().next().expect("a line").split_whitespace().collect();
        assert!(flags.contains(&"lo") && flags.contains(&"dd"), "{flags:?}");
    }

    #[test]
    fn both_kinds_know_their_pages() {
        let page = PageId::new(Default::default(), 5);
        for content in [Content::Checked, Content::sealed().expect("keys")] {
            let plain = [7u8; PAGE_SIZE];
            let mut bytes = plain;
            let stored = match &content {
                Content::Checked => content.tag(page, None, &plain, &mut [0; PAGE_SIZE]),
                Content::Sealed(keys) => keys.seal(page, &plain, &mut bytes),
            };
            assert_eq!(content.tag(page, Some(stored), &plain, &mut [0; PAGE_SIZE]), stored);
            assert_ne!(content.tag(page, Some(stored), &[8; PAGE_SIZE], &mut [0; PAGE_SIZE]), stored);
            content.forked(true).expect("another key");
            assert_eq!(content.is_sealed(), bytes != plain);
            let mut damaged = bytes;
            damaged[4000] ^= 1;
            assert!(!content.open(page, stored, &mut damaged));
            assert!(content.open(page, stored, &mut bytes) && bytes == plain);
        }
    }
}

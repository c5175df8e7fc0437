//! Pages of zeroes to fill from.

use crate::errno::Errno;
use crate::kernel::Kernel;
use core::marker::PhantomData;
use overspill_vm::types::PAGE_SHIFT;

/// The number of pages.
pub const ZEROES_PAGES: u32 = 64;

const BYTES: usize = (ZEROES_PAGES as usize) << PAGE_SHIFT;

/// A mapping of its own, to which nobody writes. (C)
pub(crate) struct Zeroes<K: Kernel>(usize, PhantomData<K>);

impl<K: Kernel> Zeroes<K> {
    /// Maps it.
    ///
    /// # Errors
    /// ENOMEM.
    pub(super) fn new() -> Result<Self, Errno> {
        let at = K::map_anonymous(BYTES)?;
        for i in 0..ZEROES_PAGES as usize {
            // SAFETY: within the mapping; reading maps the kernel's zero page, so the source costs no memory.
            unsafe { core::ptr::read_volatile(at.add(i << PAGE_SHIFT)) };
        }
        Ok(Zeroes(at as usize, PhantomData))
    }
    /// The first of [`ZEROES_PAGES`] pages.
    #[inline]
    pub(crate) fn pages(&self) -> *const u8 {
        self.0 as *const u8
    }
}

impl<K: Kernel> Drop for Zeroes<K> {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made. The machine that used it is gone, so nobody uses it.
        unsafe { K::unmap(self.0 as *mut u8, BYTES) };
    }
}

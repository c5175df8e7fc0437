//! Ranges of a region that stay in memory.

use super::Region;
use std::ops::{Deref, DerefMut, Range};

/// A range that stays in memory while this lives, so that system calls can use it. From [`Region::wire`].
#[derive(Debug)]
pub struct Wired<'a> {
    pub(super) region: &'a Region,
    pub(super) range: Range<usize>,
    pub(super) id: u64,
}

impl Wired<'_> {
    /// Leaves the pages wired until [`Region::unwire`], or the end of the region.
    ///
    /// # Panics
    /// In a forked child.
    pub fn keep(self) {
        self.keep_as();
    }

    /// As [`Wired::keep`], and returns a number for [`Region::unwire_kept`]. Other wires of the same pages stay then.
    ///
    /// # Panics
    /// In a forked child.
    pub fn keep_as(self) -> u64 {
        let id = self.id;
        self.region.keep(id);
        std::mem::forget(self);
        id
    }
}

impl Deref for Wired<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.region[self.range.clone()]
    }
}

impl Drop for Wired<'_> {
    fn drop(&mut self) {
        self.region.unwire_id(self.id);
    }
}

/// A writable [`Wired`] range. From [`Region::wire_mut`].
#[derive(Debug)]
pub struct WiredMut<'a> {
    pub(super) region: &'a mut Region,
    pub(super) range: Range<usize>,
    pub(super) id: u64,
}

impl WiredMut<'_> {
    /// Leaves the pages wired until [`Region::unwire`], or the end of the region.
    ///
    /// # Panics
    /// In a forked child.
    pub fn keep(self) {
        self.region.keep(self.id);
        std::mem::forget(self);
    }
}

impl Deref for WiredMut<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.region[self.range.clone()]
    }
}

impl DerefMut for WiredMut<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.region[self.range.clone()]
    }
}

impl Drop for WiredMut<'_> {
    fn drop(&mut self) {
        self.region.unwire_id(self.id);
    }
}

//! Regions of numbers.

use super::Region;
use crate::error::Error;
use crate::pager::Pager;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// Plain old data: every pattern of bits is a value, there is no padding, and nothing can be changed through a shared reference.
///
/// # Safety
/// All of that must hold, and the alignment must be at most [`PAGE_SIZE`](crate::PAGE_SIZE).
pub unsafe trait Pod: Copy + 'static {}

macro_rules! pod {
    ($($t:ty)*) => { $(
        // SAFETY: a number without padding, for which every pattern of bits is a value.
        unsafe impl Pod for $t {}
    )* };
}
pod!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64);
// SAFETY: an array is its elements, one after another, with nothing between.
unsafe impl<T: Pod, const N: usize> Pod for [T; N] {}

impl Pager {
    /// A region of `count` numbers, all zero.
    ///
    /// # Errors
    /// As [`Pager::region`].
    pub fn region_of<T: Pod>(&self, count: usize) -> Result<RegionOf<T>, Error> {
        let bytes = count.saturating_mul(size_of::<T>());
        self.region(bytes).map(|region| RegionOf { region, of: PhantomData })
    }
}

/// A region of numbers; dereferences to a slice of them. From [`Pager::region_of`].
#[derive(Debug)]
pub struct RegionOf<T: Pod> {
    region: Region,
    of: PhantomData<T>,
}

impl<T: Pod> RegionOf<T> {
    /// The region itself, to wire or advise.
    pub fn region(&self) -> &Region {
        &self.region
    }
    /// The region itself, mutable.
    pub fn region_mut(&mut self) -> &mut Region {
        &mut self.region
    }
}

impl<T: Pod> Deref for RegionOf<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.region.as_slice_of()
    }
}

impl<T: Pod> DerefMut for RegionOf<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.region.as_mut_slice_of()
    }
}

//! A set of slots of fixed size: one bit each, without a summary. The blist finds room; this only tells whether a slot is in it.

use alloc::vec;
use alloc::vec::Vec;

/// Bits in a word.
pub(crate) const WORD_BITS: u32 = u64::BITS;

#[cfg(test)]
std::thread_local! {
    /// Words of any bitmap that this thread has looked at. Tests bound the work of an operation by it.
    pub(crate) static LOOKS: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
}

/// Counts a look at a word, in tests.
#[inline]
fn looked() {
    #[cfg(test)]
    LOOKS.set(LOOKS.get() + 1);
}

/// A fixed set of numbers below its capacity. Starts empty and, until touched, without physical memory.
#[derive(Clone)]
pub(crate) struct Bitmap(Vec<u64>);

impl Bitmap {
    /// The empty set over `0..capacity`.
    pub(crate) fn new(capacity: u32) -> Self {
        Bitmap(vec![0; capacity.div_ceil(WORD_BITS) as usize])
    }

    /// Whether `at` is in it.
    #[inline]
    pub(crate) fn get(&self, at: u32) -> bool {
        looked();
        self.0[(at / WORD_BITS) as usize] >> (at % WORD_BITS) & 1 != 0
    }

    /// Adds `at`.
    ///
    /// # Panics
    /// If it is in the set.
    #[inline]
    pub(crate) fn insert(&mut self, at: u32) {
        looked();
        let word = &mut self.0[(at / WORD_BITS) as usize];
        let bit = 1 << (at % WORD_BITS);
        assert!(*word & bit == 0, "slot {at} is in the set already");
        *word |= bit;
    }

    /// Takes `at` out.
    ///
    /// # Panics
    /// If it is not in the set.
    #[inline]
    pub(crate) fn remove(&mut self, at: u32) {
        looked();
        let word = &mut self.0[(at / WORD_BITS) as usize];
        let bit = 1 << (at % WORD_BITS);
        assert!(*word & bit != 0, "slot {at} is not in the set");
        *word &= !bit;
    }

    /// Word `index`, which holds the numbers from `index * 64` on.
    #[inline]
    pub(crate) fn word(&self, index: usize) -> u64 {
        looked();
        self.0[index]
    }

    /// Replaces word `index`. Does not write a zero over a zero, which would only touch memory.
    #[inline]
    pub(crate) fn set_word(&mut self, index: usize, bits: u64) {
        looked();
        if self.0[index] != bits {
            self.0[index] = bits;
        }
    }
}

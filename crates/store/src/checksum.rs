//! What a page that is stored as it is must look like when it comes back: 128-bit XXH3.
//!
//! It is not cryptographic: it guards against accident (a changed page, a damaged device, a write that went astray or was lost),
//! not against somebody who can write to the device and chooses the bytes; [`crate::seal`] does. It covers the page's identity by
//! the mask of [`Tag`]. An older generation of the same page differs in content, or not at all. Source: Collet, XXH3.

use crate::PageBytes;
use overspill_vm::types::{PageId, Tag};

/// What is to be remembered of `page` with these bytes.
#[inline]
pub fn of(page: PageId, bytes: &PageBytes) -> Tag {
    Tag::new(page, xxhash_rust::xxh3::xxh3_128(bytes), 0)
}

/// Whether every byte is zero. Leaves at the first block that is not.
#[inline]
pub fn is_zero(bytes: &PageBytes) -> bool {
    bytes.as_chunks::<64>().0.iter().all(|block| block.iter().fold(0, |a, b| a | b) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_vm::types::{ObjectId, PAGE_SIZE};

    fn page(index: u64) -> PageId {
        PageId::new(ObjectId(3), index)
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let mut bytes = [0u8; PAGE_SIZE];
        assert!(is_zero(&bytes));
        let stored = of(page(7), &bytes);
        assert_ne!(stored, Tag::UNKNOWN);
        for bit in 0..PAGE_SIZE * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(of(page(7), &bytes) != stored && !is_zero(&bytes));
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(of(page(7), &bytes), stored);
    }

    #[test]
    fn another_pages_bytes_are_not_taken_for_ours() {
        let bytes = [9u8; PAGE_SIZE];
        assert_ne!(of(page(7), &bytes), of(page(8), &bytes));
        assert_eq!(of(page(7), &bytes).renamed(page(7), page(8)), of(page(8), &bytes));
    }
}

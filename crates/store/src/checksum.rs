//! The checksum of a page that is stored unencrypted: 128-bit XXH3.
//!
//! It is not cryptographic. It guards against accidents (a changed page, a damaged device, a lost or misplaced write). It does not
//! guard against somebody who can write chosen bytes to the device; [`crate::seal`] does. The mask of [`Tag`] covers the page's
//! identity. An older generation of the same page has another content, or the same and does no harm. Source: Collet, XXH3.

use crate::PageBytes;
use overspill_vm::types::{PageId, Tag};

/// The tag of `page` with these bytes.
#[inline]
pub fn of(page: PageId, bytes: &PageBytes) -> Tag {
    Tag::new(page, xxhash_rust::xxh3::xxh3_128(bytes), 0)
}

/// Whether every byte is zero. Stops at the first block that is not.
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

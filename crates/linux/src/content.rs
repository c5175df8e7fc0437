//! What a page holds, in one number: tells "unchanged since it was stored", "came back right", and "all zeroes".

use overspill_vm::types::{ContentHash, PAGE_SIZE};

/// A page's bytes.
pub type PageBytes = [u8; PAGE_SIZE];

/// 64-bit XXH3. Not cryptographic: it guards against accident (a changed page, a damaged device), not against an attacker.
#[inline]
pub fn hash(page: &PageBytes) -> ContentHash {
    ContentHash(xxhash_rust::xxh3::xxh3_64(page))
}

/// Whether every byte is zero. Leaves at the first block that is not.
#[inline]
pub fn is_zero(page: &PageBytes) -> bool {
    page.as_chunks::<64>().0.iter().all(|block| block.iter().fold(0, |a, b| a | b) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_anywhere_is_seen() {
        let mut page = [0u8; PAGE_SIZE];
        assert!(is_zero(&page));
        let h = hash(&page);
        for at in [0, 1, 63, 64, 2048, 4095] {
            page[at] = 0x80;
            assert!(!is_zero(&page));
            assert_ne!(hash(&page), h);
            page[at] = 0;
        }
    }
}

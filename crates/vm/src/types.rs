//! The units of the system as types, so that an index is never mistaken for a count or a byte.

use core::fmt;

/// Bytes in a page. Overspill manages base pages only; huge pages are split when they are adopted.
pub const PAGE_SIZE: usize = 4096;
/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;

/// A page's position within its memory object, in pages.
pub type PageIndex = u64;

/// Names a memory object. Small: an agent has one object (the address space), a library one per region.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ObjectId(pub u16);

/// A page's whole identity: object and index in one word.
///
/// `object << 40 | index`; an index has 40 bits, which is 4 PiB per object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(u64);

impl PageId {
    const INDEX_BITS: u32 = 40;
    /// The greatest page index an object may have, plus one.
    pub const INDEX_LIMIT: PageIndex = 1 << Self::INDEX_BITS;

    /// Joins object and index.
    ///
    /// # Panics
    /// If the index does not fit 40 bits.
    #[inline]
    pub const fn new(object: ObjectId, index: PageIndex) -> Self {
        assert!(index < Self::INDEX_LIMIT);
        PageId((object.0 as u64) << Self::INDEX_BITS | index)
    }
    /// The object.
    #[inline]
    pub const fn object(self) -> ObjectId {
        ObjectId((self.0 >> Self::INDEX_BITS) as u16)
    }
    /// The page index within the object, in pages.
    #[inline]
    pub const fn index(self) -> PageIndex {
        self.0 & (Self::INDEX_LIMIT - 1)
    }
    /// The page `pages` further on in the same object.
    #[inline]
    pub const fn offset(self, pages: u64) -> Self {
        Self::new(self.object(), self.index() + pages)
    }
    /// The packed word (for tables and logs).
    #[inline]
    pub const fn raw(self) -> u64 {
        self.0
    }
    /// The inverse of [`PageId::raw`].
    #[inline]
    pub const fn from_raw(raw: u64) -> Self {
        PageId(raw)
    }
}

impl fmt::Debug for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:#x}", self.object().0, self.index())
    }
}

/// A frame: one page-sized unit of the memory budget, and the list node of the page that holds it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FrameId(pub u32);

impl FrameId {
    /// As an array index.
    #[inline]
    pub const fn at(self) -> usize {
        self.0 as usize
    }
}

/// A page of swap space. Slots of all devices share one number space; the swap pager knows which device a slot is on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot(pub u32);

/// A swap device: its entry in the pager's table. The entry is reused when the device is gone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeviceId(pub u16);

impl DeviceId {
    /// No swap device: the file that is a page's home ([`crate::Home`]).
    pub const HOME: DeviceId = DeviceId(u16::MAX);
}

/// The tag of a page's stored content. It tells whether a page changed since it was written, and whether it came back right.
///
/// It holds a 128-bit check of the content, and the number of the write (for a check that depends on it: the seal of an encrypted
/// page). It stays in memory and never goes to a device.
///
/// **Identity.** The check is kept masked with its page's name: `masked = check ^ mask(page)`. So the tag can follow a change of
/// name without the content. A comparison unmasks the tag with the name of the page that is wanted, so content of another page
/// never compares equal, and [`Tag::renamed`] is all that mremap needs. The mask is no secret; it guards against mistakes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Tag {
    masked: [u32; 4],
    number: u32,
}

impl Tag {
    /// The tag of a page that was not looked at. It equals no other page's tag (except by chance, 1 in 2^128).
    pub const UNKNOWN: Tag = Tag { masked: [0; 4], number: 0 };

    /// The tag of `page`, whose content has this check, as of write `number`.
    #[inline]
    pub const fn new(page: PageId, check: u128, number: u32) -> Self {
        let bits = check ^ mask(page);
        Tag { masked: [bits as u32, (bits >> 32) as u32, (bits >> 64) as u32, (bits >> 96) as u32], number }
    }
    /// The check, if this is the tag of `page`; otherwise a meaningless number.
    #[inline]
    pub const fn unmasked(self, page: PageId) -> u128 {
        let [a, b, c, d] = self.masked;
        (a as u128 | (b as u128) << 32 | (c as u128) << 64 | (d as u128) << 96) ^ mask(page)
    }
    /// The low 32 bits of the write's number.
    #[inline]
    pub const fn number(self) -> u32 {
        self.number
    }
    /// The tag of the same content after it moved from page `from` to page `to`.
    #[inline]
    pub const fn renamed(self, from: PageId, to: PageId) -> Self {
        Self::new(to, self.unmasked(from), self.number)
    }
    /// As words, for a table. The words of [`Tag::UNKNOWN`] are zero, so such a table can be made of untouched memory.
    #[inline]
    pub const fn to_words(self) -> [u32; 5] {
        let [a, b, c, d] = self.masked;
        [a, b, c, d, self.number]
    }
    /// The inverse of [`Tag::to_words`].
    #[inline]
    pub const fn from_words([a, b, c, d, number]: [u32; 5]) -> Self {
        Tag { masked: [a, b, c, d], number }
    }
    /// A tag with this value, for a table or a test that only stores and compares.
    #[inline]
    pub const fn of(value: u64) -> Self {
        Tag { masked: [value as u32, (value >> 32) as u32, 0, 0], number: 0 }
    }
}

/// A bijection of the page's word in each half, so that two pages' masks always differ. (Steele, Lea, Flood 2014: splitmix64's
/// finalizer.)
#[inline]
const fn mask(page: PageId) -> u128 {
    let mut z = page.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    z as u128 | (z.rotate_left(32) as u128) << 64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_tag_belongs_to_its_page(check: u128, number: u32, from in 0..1u64 << 56, to in 0..1u64 << 56) {
            let (from, to) = (PageId::from_raw(from), PageId::from_raw(to));
            let tag = Tag::new(from, check, number);
            prop_assert_eq!((tag.unmasked(from), tag.number()), (check, number));
            prop_assert_eq!(tag.unmasked(to) == check, from == to);
            let renamed = tag.renamed(from, to);
            prop_assert_eq!((renamed.unmasked(to), renamed.number()), (check, number));
            prop_assert_eq!(renamed.renamed(to, from), tag);
        }
    }
}

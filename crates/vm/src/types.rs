//! The units of the system as types, so that an index is never taken for a count or a byte.

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

/// A swap device: its entry in the pager's table. The entry of a device that is gone is used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeviceId(pub u16);

/// 64-bit hash of a page's content: says whether a page changed since it was written, and whether it came back right.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ContentHash(pub u64);

//! One mapping of an address space (Linux: `struct vm_area_struct`), and the rules for joining two neighbours.
//!
//! Neighbours are joined when a call changes one of them, not when they become alike. They must be alike in all fields except their
//! place. Two of the calls stop at a border between mappings (mremap, UFFDIO_MOVE), so it matters where borders are.

use crate::pmap::PAGE;

/// Never leaves memory (mlock).
pub const LOCKED: u16 = 1;
/// A fork's child does not have it.
pub const DONT_FORK: u16 = 1 << 1;
/// A fork's child has it empty.
pub const WIPE_ON_FORK: u16 = 1 << 2;
/// It is charged to the overcommit account: it was writable when it was made, or has become so.
pub const ACCOUNT: u16 = 1 << 3;
/// It cannot be unmapped, moved, or protected otherwise.
pub const SEALED: u16 = 1 << 4;

/// The userfaultfd that a mapping is registered on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registration {
    /// Its number.
    pub uffd: usize,
    /// It reports moves, discards and unmaps.
    pub events: bool,
    /// Pages can be protected against writes, too.
    pub protects: bool,
    /// Pages can be watched: a bit tells whether they are touched. It is the bit of the protection, so no range can have both.
    pub watches: bool,
}

/// The kernel's way from a page to its mappings (Linux: `struct anon_vma`). A mapping gets one when its first page is written or
/// filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AnonVma {
    /// Its number.
    pub id: u64,
    /// It came by a fork: then the mapping is never joined with a mapping that has none.
    pub inherited: bool,
}

/// A mapping.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vma {
    /// First address.
    pub start: usize,
    /// Address after the last.
    pub end: usize,
    /// Readable 1, writable 2, executable 4.
    pub prot: u8,
    /// [`LOCKED`] and so on.
    pub flags: u16,
    /// Whether faults are messages.
    pub uffd: Option<Registration>,
    /// The number of its first page. At first it is that of its address. A mapping that moves with pages in it keeps its number.
    pub first_page: usize,
    /// `None` while nothing was written to it.
    pub anon: Option<AnonVma>,
}

impl Vma {
    /// Whether it has this flag.
    pub fn is(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
    /// Whether it is writable.
    pub fn writable(&self) -> bool {
        self.prot & 2 != 0
    }
    /// The number of the page at an address.
    pub fn page_number(&self, at: usize) -> usize {
        self.first_page + (at - self.start) / PAGE
    }
    /// Whether `next` continues this one in every respect except their [`AnonVma`]s (Linux: `can_vma_merge_after`).
    fn continues(&self, next: &Vma) -> bool {
        self.end == next.start
            && (self.prot, self.flags, self.uffd) == (next.prot, next.flags, next.uffd)
            && self.page_number(self.end) == next.first_page
    }
    /// Whether the kernel joins the two (Linux: `is_mergeable_anon_vma`).
    pub fn joins(&self, next: &Vma) -> bool {
        self.continues(next) && anon_joins(self.anon, next.anon)
    }
    /// Whether either of two neighbours may use the other's [`AnonVma`] when its first page is written (Linux:
    /// `reusable_anon_vma`). Protections do not matter.
    pub fn shares_anon(before: &Vma, after: &Vma) -> bool {
        let unprotected = |v: &Vma| Vma { prot: 0, ..v.clone() };
        let modes = |v: &Vma| v.uffd.map(|r| (r.protects, r.watches));
        before.end == after.start
            && before.flags == after.flags
            && modes(before) == modes(after)
            && unprotected(before).page_number(before.end) == after.first_page
    }
}

/// Whether mappings with these can be joined.
pub fn anon_joins(one: Option<AnonVma>, other: Option<AnonVma>) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(a), None) | (None, Some(a)) => !a.inherited,
        (Some(a), Some(b)) => a == b,
    }
}

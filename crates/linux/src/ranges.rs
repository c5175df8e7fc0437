//! The map of address ranges: which addresses the pager answers for, to which object they belong, and which it has left to the kernel.
//!
//! A sorted vector of fixed capacity: a process has tens to thousands of ranges (the kernel's own limit is 65,530 mappings), looks one
//! up per fault and changes them rarely.
//!
//! Invariants: ranges are page-aligned, not empty, sorted, and do not overlap.

use overspill_vm::types::{ObjectId, PAGE_SHIFT, PAGE_SIZE, PageId};

/// The most ranges. The kernel allows a process 65,530 mappings by default; ranges are merged like mappings.
pub const RANGES_MAX: usize = 65_536;

/// Who serves a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The kernel: it fits the budget as a whole, so it is charged in full and costs nothing until the budget gets tight.
    Native,
    /// The pager: registered with userfaultfd.
    Managed,
}

/// What else is known of a range. Neighbours that differ in it are not joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(u8);

impl Flags {
    /// None of them.
    pub const NONE: Flags = Flags(0);
    /// Forked children find it empty (MADV_WIPEONFORK).
    pub const WIPE: Flags = Flags(1 << 4);
    /// It may have guard pages (MADV_GUARD_INSTALL): a page is filled because it was touched, and for no other reason.
    pub const GUARDED: Flags = Flags(1 << 5);
    const NORESERVE: u8 = 1 << 3;

    /// Of a new mapping: protection and flags as for mmap(2). The kernel joins mappings that are alike, and so what is known of them must
    /// tell them apart.
    pub fn of_mapping(prot: i32, flags: i32) -> Flags {
        Flags(prot as u8 & 7 | if flags & libc::MAP_NORESERVE != 0 { Self::NORESERVE } else { 0 })
    }
    /// Whether all of `other` are set.
    pub fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
    /// With `other`.
    #[must_use]
    pub fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
    /// Without `other`.
    #[must_use]
    pub fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }
}

/// One range of addresses, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// First address.
    pub start: usize,
    /// Address after the last.
    pub end: usize,
    /// Who serves it.
    pub kind: Kind,
    /// The memory object, and
    pub object: ObjectId,
    /// the address of its page 0.
    pub origin: usize,
    /// What else is known of it.
    pub flags: Flags,
}

impl Range {
    /// Of the program's memory, which is one object: managed and, so far, empty.
    pub fn of_program(flags: Flags) -> Range {
        Range { start: 0, end: 0, kind: Kind::Managed, object: ObjectId(0), origin: 0, flags }
    }
    /// Its length in pages.
    pub fn pages(&self) -> u64 {
        ((self.end - self.start) >> PAGE_SHIFT) as u64
    }
    /// The page at an address of the range.
    pub fn page(&self, addr: usize) -> PageId {
        PageId::new(self.object, ((addr - self.origin) >> PAGE_SHIFT) as u64)
    }
    /// The range's page indices in its object.
    pub fn bounds(&self) -> core::ops::Range<u64> {
        self.page(self.start).index()..self.page(self.start).index() + self.pages()
    }
    /// The address of a page of its object.
    pub fn addr(&self, page: PageId) -> usize {
        self.origin + ((page.index() as usize) << PAGE_SHIFT)
    }
    /// What of it lies in `start..end`, which it overlaps.
    pub fn within(&self, start: usize, end: usize) -> Range {
        Range { start: self.start.max(start), end: self.end.min(end), ..*self }
    }
    fn joins(&self, next: &Range) -> bool {
        let same = self.object == next.object && self.origin == next.origin;
        self.end == next.start && self.kind == next.kind && self.flags == next.flags && same
    }
}

/// The map.
#[derive(Debug)]
pub struct RangeMap {
    ranges: Vec<Range>,
}

impl RangeMap {
    /// Empty, with room for so many ranges.
    pub fn new(ranges_max: usize) -> Self {
        RangeMap { ranges: Vec::with_capacity(ranges_max) }
    }

    /// The range that holds `addr`.
    pub fn find(&self, addr: usize) -> Option<&Range> {
        let at = self.ranges.partition_point(|r| r.end <= addr);
        self.ranges.get(at).filter(|r| r.start <= addr)
    }

    /// All, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Range> {
        self.ranges.iter()
    }

    /// The first range that overlaps `start..end` and is of this kind.
    pub fn overlap(&self, start: usize, end: usize, kind: Kind) -> Option<Range> {
        if start >= end {
            return None; // nothing overlaps nothing, not even from within a range
        }
        let at = self.ranges.partition_point(|r| r.end <= start);
        self.ranges[at..].iter().take_while(|r| r.start < end).find(|r| r.kind == kind).copied()
    }

    /// The first range that overlaps `start..end`.
    pub fn first(&self, start: usize, end: usize) -> Option<Range> {
        let at = self.ranges.partition_point(|r| r.end <= start);
        self.ranges.get(at).filter(|r| start < end && r.start < end).copied()
    }

    /// Changes the flags of all that lies in `start..end`. Returns `false` if there is no room for the pieces; then some may be as before.
    #[must_use]
    pub fn change(&mut self, start: usize, end: usize, flags: impl Fn(Flags) -> Flags) -> bool {
        let mut at = start;
        while let Some(r) = self.first(at, end) {
            let piece = Range { flags: flags(r.flags), ..r.within(at, end) };
            if piece.flags != r.flags {
                if self.ranges.len() + 2 > self.ranges.capacity() {
                    return false;
                }
                self.remove(piece.start, piece.end, |_| {});
                let inserted = self.insert(piece);
                assert!(inserted, "there was room for two more");
            }
            at = piece.end;
        }
        true
    }

    /// Adds a range. What it overlaps must have been removed. Returns `false` if there is no room.
    #[must_use]
    pub fn insert(&mut self, range: Range) -> bool {
        assert!(range.start < range.end && (range.start | range.end).is_multiple_of(PAGE_SIZE), "{range:?}");
        let at = self.ranges.partition_point(|r| r.end <= range.start);
        assert!(self.ranges.get(at).is_none_or(|r| r.start >= range.end), "overlap: {range:?}");
        let joins_before = at > 0 && self.ranges[at - 1].joins(&range);
        let joins_after = self.ranges.get(at).is_some_and(|r| range.joins(r));
        match (joins_before, joins_after) {
            (true, true) => {
                self.ranges[at - 1].end = self.ranges[at].end;
                self.ranges.remove(at);
            }
            (true, false) => self.ranges[at - 1].end = range.end,
            (false, true) => self.ranges[at].start = range.start,
            (false, false) => {
                if self.ranges.len() == self.ranges.capacity() {
                    return false;
                }
                self.ranges.insert(at, range);
            }
        }
        true
    }

    /// Removes `start..end` from whatever overlaps it; `removed` is called with each piece. A split that finds no room drops the
    /// upper rest as well (and reports it).
    pub fn remove(&mut self, start: usize, end: usize, mut removed: impl FnMut(Range)) {
        let mut at = self.ranges.partition_point(|r| r.end <= start);
        while let Some(r) = self.ranges.get(at).copied() {
            if r.start >= end {
                break;
            }
            let piece = Range { start: r.start.max(start), end: r.end.min(end), ..r };
            match (r.start < piece.start, piece.end < r.end) {
                (false, false) => {
                    self.ranges.remove(at);
                }
                (true, false) => {
                    self.ranges[at].end = piece.start;
                    at += 1;
                }
                (false, true) => {
                    self.ranges[at].start = piece.end;
                    at += 1;
                }
                (true, true) => {
                    self.ranges[at].end = piece.start;
                    if self.ranges.len() == self.ranges.capacity() {
                        removed(Range { end: r.end, ..piece });
                        return;
                    }
                    self.ranges.insert(at + 1, Range { start: piece.end, ..r });
                    at += 2;
                }
            }
            removed(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// A discard of the middle of a range was followed piece by piece "until nothing overlaps the rest", and the empty rest
    /// overlapped the range it lay in: the handler went round for ever with the map locked.
    #[test]
    fn an_empty_stretch_overlaps_nothing() {
        let mut map = RangeMap::new(RANGES_MAX);
        assert!(map.insert(Range {
            start: 0,
            end: 100 * PAGE_SIZE,
            kind: Kind::Managed,
            object: ObjectId(0),
            origin: 0,
            flags: Flags::NONE
        }));
        assert_eq!(map.overlap(20 * PAGE_SIZE, 20 * PAGE_SIZE, Kind::Managed), None);
    }

    proptest! {
        #[test]
        fn as_a_map_of_pages(ops in proptest::collection::vec((any::<bool>(), 0usize..64, 1usize..10, any::<bool>()), 1..100)) {
            let mut map = RangeMap::new(RANGES_MAX);
            let mut model = BTreeMap::new();
            for (add, first, len, managed) in ops {
                let (start, end) = (first * PAGE_SIZE, (first + len) * PAGE_SIZE);
                let kind = if managed { Kind::Managed } else { Kind::Native };
                let mut pages = 0;
                map.remove(start, end, |r| pages += r.pages());
                let gone = (first..first + len).filter(|p| model.remove(p).is_some()).count();
                prop_assert_eq!(pages, gone as u64);
                if add {
                    let inserted = map.insert(Range { start, end, kind, object: ObjectId(0), origin: 0, flags: Flags::NONE });
                    prop_assert!(inserted);
                    model.extend((first..first + len).map(|p| (p, kind)));
                }
                for p in 0..80 {
                    prop_assert_eq!(map.find(p * PAGE_SIZE + 5).map(|r| r.kind), model.get(&p).copied());
                }
                let all: Vec<_> = map.iter().collect();
                prop_assert!(all.windows(2).all(|w| w[0].end <= w[1].start && !w[0].joins(w[1])));
            }
        }

        #[test]
        fn flags_are_of_pages(ops in proptest::collection::vec((0usize..64, 1usize..10, 0u8..3), 1..50)) {
            let mut map = RangeMap::new(RANGES_MAX);
            let (holes, mut model) = ([7, 8, 30], BTreeMap::new());
            for p in (0..80).filter(|p| !holes.contains(p)) {
                let at = p * PAGE_SIZE;
                let range = Range { start: at, end: at + PAGE_SIZE, kind: Kind::Native, object: ObjectId(0), origin: 0, flags: Flags::NONE };
                prop_assert!(map.insert(range));
                model.insert(p, Flags::NONE);
            }
            for (first, len, what) in ops {
                let change = |f: Flags| match what { 0 => f.with(Flags::WIPE), 1 => f.without(Flags::WIPE), _ => f.with(Flags::GUARDED) };
                prop_assert!(map.change(first * PAGE_SIZE, (first + len) * PAGE_SIZE, change));
                model.range_mut(first..first + len).for_each(|(_, f)| *f = change(*f));
                for p in 0..90 {
                    prop_assert_eq!(map.find(p * PAGE_SIZE).map(|r| r.flags), model.get(&p).copied());
                }
                let all: Vec<_> = map.iter().collect();
                prop_assert!(all.windows(2).all(|w| !w[0].joins(w[1])));
            }
        }
    }
}

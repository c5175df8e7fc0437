//! The map of address ranges: the addresses that the pager answers for, the object that each belongs to, and the ranges left to the
//! kernel.
//!
//! ```text
//!   order     [ 3 | 0 | 7 | ... ]       which chunk comes next, how many ranges it has, and where they end
//!               |   |   +--------> pool, chunk 7: ranges, sorted
//!               |   +------------> pool, chunk 0
//!               +----------------> pool, chunk 3
//! ```
//!
//! A process has tens to thousands of ranges, but may have as many as it may have mappings: 65,530, or a million where an
//! administrator has raised vm.max_map_count. A fault looks up one range by two binary searches. Adding or removing a range moves
//! the ranges of its chunk, at most 8 KiB. All memory is got at set-up, and touched only as it is used.
//!
//! **How many there can be.** Two ranges that do not join never share a mapping. Unmapped addresses lie between them, or only one
//! of them is registered with userfaultfd, or they were made in ways that set mappings apart. So the kernel, whose limit is on
//! mappings, would refuse first, but for three exceptions. A range stays here from the unmapping until the report of it is read,
//! and there may be new ranges in its place meanwhile. Guard pages divide one mapping into several ranges. Mappings that were made
//! in different ways may become alike. So [`ranges_max`] is twice the kernel's limit, and some more for calls that are under way.
//! Beyond that, or if the limit was raised after the start, [`RangeMap::insert`] refuses. Then the caller must refuse too, or stop
//! the program: nobody serves the pages of a range that is not in the map.
//!
//! Invariants: ranges are page-aligned, not empty, sorted, and do not overlap or join; no chunk is empty; two neighbouring chunks
//! have more than `FEW` ranges together, so that there are enough chunks for all.

use overspill_vm::types::{ObjectId, PAGE_SHIFT, PAGE_SIZE, PageId};

/// The most ranges of a chunk.
const CHUNK: usize = 256;
/// Two neighbouring chunks that have no more ranges than this together become one. (Fewer than a chunk holds, so that the next
/// range does not divide them again.)
const FEW: usize = 192;
/// Ranges between two states, and pieces that a range is about to be cut into: one for each thread, and more.
const SLACK: usize = 4096;

/// The most ranges of a process that may have `mappings_max` mappings and has tables for `pages_max` pages, which is twice as many
/// pages as a limit of its address space allows.
pub fn ranges_max(mappings_max: u64, pages_max: u64) -> usize {
    2 * mappings_max.min(pages_max / 2) as usize + SLACK
}

/// Serves the faults of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The kernel. The range fits the budget as a whole. It is charged in full, and costs nothing until the budget gets tight.
    Native,
    /// The pager: registered with userfaultfd.
    Managed,
}

/// MAP_NORESERVE.
const MAP_NORESERVE: i32 = 0x4000;

/// Further properties of a range. Neighbours that differ in them are not joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(u8);

impl Flags {
    /// None of them.
    pub const NONE: Flags = Flags(0);
    /// Forked children find it empty (MADV_WIPEONFORK).
    pub const WIPE: Flags = Flags(1 << 4);
    /// It may have guard pages (MADV_GUARD_INSTALL): a page is filled only because it was touched, and for no other reason.
    pub const GUARDED: Flags = Flags(1 << 5);
    const NORESERVE: u8 = 1 << 3;

    /// The flags of a new mapping, from the flags of mmap(2). The kernel joins neighbours that differ at most in their protection,
    /// at once or when their protection becomes the same. These flags tell mappings apart that it does not join.
    pub fn of_mapping(flags: i32) -> Flags {
        Flags(if flags & MAP_NORESERVE != 0 { Self::NORESERVE } else { 0 })
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
    /// Serves its faults.
    pub kind: Kind,
    /// The memory object.
    pub object: ObjectId,
    /// The address of the object's page 0.
    pub origin: usize,
    /// Its further properties.
    pub flags: Flags,
}

impl Range {
    /// A range of the program's memory, which is one object. It is managed and still empty.
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
    /// The part of it in `start..end`, which it overlaps.
    pub fn within(&self, start: usize, end: usize) -> Range {
        Range { start: self.start.max(start), end: self.end.min(end), ..*self }
    }
    fn joins(&self, next: &Range) -> bool {
        let same = self.object == next.object && self.origin == next.origin;
        self.end == next.start && self.kind == next.kind && self.flags == next.flags && same
    }
}

/// A chunk in use.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    /// Its number in the pool.
    number: u32,
    /// How many ranges it has.
    len: u32,
    /// The end of its last range.
    end: usize,
}

/// The map.
#[derive(Debug)]
pub struct RangeMap {
    /// The chunks that are not empty, in the order of addresses.
    order: Vec<Chunk>,
    /// [`CHUNK`] ranges each, as far as ever used.
    pool: Vec<Range>,
    /// The empty chunks of the pool.
    free: Vec<u32>,
    len: usize,
    ranges_max: usize,
}

/// The position of a range: the index of its chunk in the order, and its index in the chunk.
type At = (usize, usize);

impl RangeMap {
    /// An empty map, with room for `ranges_max` ranges.
    pub fn new(ranges_max: usize) -> Self {
        let chunks = 2 * (ranges_max / FEW + 1) + 1;
        RangeMap {
            order: Vec::with_capacity(chunks),
            pool: Vec::with_capacity(chunks * CHUNK),
            free: Vec::with_capacity(chunks),
            len: 0,
            ranges_max,
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether there is room for `more` ranges.
    pub fn has_room(&self, more: usize) -> bool {
        more <= self.ranges_max - self.len
    }

    #[inline]
    fn ranges(&self, chunk: Chunk) -> &[Range] {
        &self.pool[chunk.number as usize * CHUNK..][..chunk.len as usize]
    }

    /// The position of the first range that ends after `addr`.
    #[inline]
    fn seek(&self, addr: usize) -> At {
        let at = self.order.partition_point(|chunk| chunk.end <= addr);
        (at, self.order.get(at).map_or(0, |&chunk| self.ranges(chunk).partition_point(|r| r.end <= addr)))
    }

    #[inline]
    fn get(&self, (at, i): At) -> Option<&Range> {
        self.order.get(at).map(|&chunk| &self.ranges(chunk)[i])
    }

    /// Replaces the range at a position by one that has the same place in the order.
    fn set(&mut self, (at, i): At, range: Range) {
        self.pool[self.order[at].number as usize * CHUNK + i] = range;
        self.note_end(at);
    }

    /// Updates the end of a chunk after its last range has changed.
    fn note_end(&mut self, at: usize) {
        self.order[at].end = self.ranges(self.order[at]).last().map_or(0, |r| r.end);
    }

    /// The position before that one.
    fn before(&self, (at, i): At) -> Option<At> {
        match i.checked_sub(1) {
            Some(i) => Some((at, i)),
            None => at.checked_sub(1).map(|at| (at, self.order[at].len as usize - 1)),
        }
    }

    /// The range that holds `addr`.
    pub fn find(&self, addr: usize) -> Option<&Range> {
        self.get(self.seek(addr)).filter(|r| r.start <= addr)
    }

    /// All, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Range> {
        self.order.iter().flat_map(|&chunk| self.ranges(chunk))
    }

    /// From the first range's start to the last one's end.
    pub fn bounds(&self) -> core::ops::Range<usize> {
        let start = self.get((0, 0)).map_or(0, |r| r.start);
        start..self.order.last().map_or(start, |chunk| chunk.end)
    }

    /// The first range that overlaps `start..end`.
    pub fn first(&self, start: usize, end: usize) -> Option<Range> {
        self.get(self.seek(start)).filter(|r| start < end && r.start < end).copied()
    }

    /// Whether all of `start..end` lies in ranges.
    pub fn covers(&self, start: usize, end: usize) -> bool {
        let mut at = start;
        while at < end {
            let Some(r) = self.find(at) else { return false };
            at = r.end;
        }
        true
    }

    /// Changes the flags of all ranges in `start..end`. Returns `false` if there is no room for the pieces; then some flags may be
    /// unchanged.
    #[must_use]
    pub fn change(&mut self, start: usize, end: usize, flags: impl Fn(Flags) -> Flags) -> bool {
        let mut at = start;
        while let Some(r) = self.first(at, end) {
            let piece = Range { flags: flags(r.flags), ..r.within(at, end) };
            if piece.flags != r.flags {
                if !self.has_room(2) {
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

    /// The first range that overlaps `start..end` and is of this kind.
    pub fn overlap(&self, start: usize, end: usize, kind: Kind) -> Option<Range> {
        if start >= end {
            return None; // an empty stretch overlaps nothing, not even a range around it
        }
        let (at, i) = self.seek(start);
        let chunks = self.order.get(at..).unwrap_or_default();
        let ranges = chunks.iter().flat_map(|&chunk| self.ranges(chunk)).skip(i);
        ranges.take_while(|r| r.start < end).find(|r| r.kind == kind).copied()
    }

    /// The last range that overlaps `start..end` and is of this kind.
    pub fn last_overlap(&self, start: usize, end: usize, kind: Kind) -> Option<Range> {
        let (at, i) = self.seek(end);
        let in_chunk = |chunk: usize, count: usize| self.order.get(chunk).map_or(&[][..], |&chunk| &self.ranges(chunk)[..count]);
        let begun = self.get((at, i)).filter(|r| r.start < end);
        let all = begun.into_iter().chain(in_chunk(at, i).iter().rev());
        let all = all.chain(self.order[..at].iter().rev().flat_map(|&chunk| self.ranges(chunk).iter().rev()));
        all.take_while(|r| r.end > start && start < end).find(|r| r.kind == kind).copied()
    }

    /// Adds a range. Ranges that it overlaps must have been removed. Returns `false` if there is no room; then nothing is changed.
    #[must_use]
    pub fn insert(&mut self, range: Range) -> bool {
        assert!(range.start < range.end && (range.start | range.end).is_multiple_of(PAGE_SIZE), "{range:?}");
        let at = self.seek(range.start);
        let next = self.get(at).copied();
        assert!(next.is_none_or(|r| r.start >= range.end), "overlap: {range:?}");
        let after = next.filter(|r| range.joins(r));
        let before = self.before(at).and_then(|place| Some((place, *self.get(place)?))).filter(|(_, r)| r.joins(&range));
        match (before, after) {
            (Some((place, r)), Some(after)) => {
                self.set(place, Range { end: after.end, ..r }); // first, because taking out may unite chunks
                self.take_out(at);
            }
            (Some((place, r)), None) => self.set(place, Range { end: range.end, ..r }),
            (None, Some(after)) => self.set(at, Range { start: range.start, ..after }),
            (None, None) if !self.has_room(1) => return false,
            (None, None) => self.put_in(at, range),
        }
        true
    }

    /// Removes `start..end` from the ranges that overlap it; calls `removed` with each piece.
    ///
    /// # Panics
    /// If a range would be cut in two and there is no room for the second part: it would be lost.
    pub fn remove(&mut self, start: usize, end: usize, mut removed: impl FnMut(Range)) {
        let mut from = start;
        while let Some(r) = self.first(from, end) {
            let at = self.seek(from);
            let piece = r.within(start, end);
            match (r.start < piece.start, piece.end < r.end) {
                (false, false) => self.take_out(at),
                (true, false) => self.set(at, Range { end: piece.start, ..r }),
                (false, true) => self.set(at, Range { start: piece.end, ..r }),
                (true, true) => {
                    assert!(
                        self.has_room(1),
                        "the program has more mappings than it could have when it began; was vm.max_map_count raised? Start it again"
                    );
                    self.set(at, Range { start: piece.end, ..r });
                    self.put_in(at, Range { end: piece.start, ..r });
                }
            }
            removed(piece);
            from = piece.end;
        }
    }

    /// => there is room for one range more
    fn put_in(&mut self, (mut at, mut i): At, range: Range) {
        if at == self.order.len() {
            // after all others: in the last chunk, if there is one
            match at.checked_sub(1) {
                Some(last) => (at, i) = (last, self.order[last].len as usize),
                None => self.add_chunk(0),
            }
        }
        if self.order[at].len as usize == CHUNK {
            self.divide(at);
            if i > CHUNK / 2 {
                (at, i) = (at + 1, i - CHUNK / 2);
            }
        }
        let Chunk { number, len, .. } = self.order[at];
        let first = number as usize * CHUNK;
        self.pool.copy_within(first + i..first + len as usize, first + i + 1);
        self.pool[first + i] = range;
        self.order[at].len += 1;
        self.len += 1;
        self.note_end(at);
    }

    fn take_out(&mut self, (at, i): At) {
        let Chunk { number, len, .. } = self.order[at];
        let first = number as usize * CHUNK;
        self.pool.copy_within(first + i + 1..first + len as usize, first + i);
        self.order[at].len -= 1;
        self.len -= 1;
        if len == 1 {
            self.free.push(number); // within the capacity, because each chunk is in it once
            self.order.remove(at);
            if at > 0 {
                self.unite(at - 1); // the chunks that are neighbours now
            }
            return;
        }
        self.note_end(at);
        if !self.unite(at) && at > 0 {
            self.unite(at - 1);
        }
    }

    /// Adds an empty chunk at that place in the order. The caller fills it at once.
    fn add_chunk(&mut self, at: usize) {
        let number = self.free.pop().unwrap_or_else(|| {
            let number = self.pool.len() / CHUNK;
            assert!(self.order.len() < self.order.capacity(), "there are chunks for all ranges");
            self.pool.resize(self.pool.len() + CHUNK, NOWHERE);
            number as u32
        });
        self.order.insert(at, Chunk { number, len: 0, end: 0 });
    }

    /// Moves the upper half of a full chunk to a chunk of its own.
    fn divide(&mut self, at: usize) {
        self.add_chunk(at + 1);
        let (from, to) = (self.order[at].number as usize * CHUNK, self.order[at + 1].number as usize * CHUNK);
        self.pool.copy_within(from + CHUNK / 2..from + CHUNK, to);
        self.order[at].len = (CHUNK / 2) as u32;
        self.order[at + 1].len = (CHUNK - CHUNK / 2) as u32;
        self.note_end(at);
        self.note_end(at + 1);
    }

    /// Unites the chunk and the next one if they have few ranges. Returns whether it did.
    fn unite(&mut self, at: usize) -> bool {
        let (Some(&one), Some(&other)) = (self.order.get(at), self.order.get(at + 1)) else { return false };
        if one.len as usize + other.len as usize > FEW {
            return false;
        }
        let from = other.number as usize * CHUNK;
        self.pool.copy_within(from..from + other.len as usize, one.number as usize * CHUNK + one.len as usize);
        (self.order[at].len, self.order[at].end) = (one.len + other.len, other.end);
        self.free.push(other.number);
        self.order.remove(at + 1);
        true
    }
}

/// The filling of pool entries that were never used.
const NOWHERE: Range = Range { start: 0, end: 0, kind: Kind::Native, object: ObjectId(0), origin: 0, flags: Flags::NONE };

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    impl RangeMap {
        /// The invariants in the head.
        fn check(&self) {
            let all: Vec<_> = self.iter().collect();
            assert!(all.windows(2).all(|w| w[0].end <= w[1].start && !w[0].joins(w[1])));
            assert!(all.iter().all(|r| r.start < r.end) && all.len() == self.len);
            assert!(self.order.iter().all(|chunk| chunk.len > 0 && self.ranges(*chunk).last().map(|r| r.end) == Some(chunk.end)));
            assert!(self.order.windows(2).all(|w| (w[0].len + w[1].len) as usize > FEW));
            let mut numbers: Vec<_> = self.order.iter().map(|chunk| chunk.number).chain(self.free.iter().copied()).collect();
            numbers.sort_unstable();
            assert!(numbers.iter().copied().eq(0..(self.pool.len() / CHUNK) as u32));
        }
    }

    fn pages(first: usize, count: usize, kind: Kind) -> Range {
        Range { start: first * PAGE_SIZE, end: (first + count) * PAGE_SIZE, kind, ..Range::of_program(Flags::NONE) }
    }

    /// A discard of the middle of a range was followed piece by piece, "until nothing overlaps the rest". The empty rest overlapped
    /// the range that it lay in, and the handler looped for ever with the map locked.
    #[test]
    fn an_empty_stretch_overlaps_nothing() {
        let mut map = RangeMap::new(100);
        assert!(map.insert(pages(0, 100, Kind::Managed)));
        assert_eq!(map.overlap(20 * PAGE_SIZE, 20 * PAGE_SIZE, Kind::Managed), None);
        assert_eq!(map.last_overlap(20 * PAGE_SIZE, 20 * PAGE_SIZE, Kind::Managed), None);
    }

    /// A program that unmapped every second page of a mapping had more ranges than there was room for. A cut that found no room
    /// silently dropped the upper part, whose pages then read as zeroes.
    #[test]
    fn nothing_is_dropped_where_there_is_no_room() {
        let mut map = RangeMap::new(1000);
        assert!(map.insert(pages(0, 5000, Kind::Managed)));
        (1..1000).for_each(|i| map.remove(2 * i * PAGE_SIZE, (2 * i + 1) * PAGE_SIZE, |_| ()));
        map.check();
        assert_eq!((map.len(), map.iter().map(Range::pages).sum::<u64>()), (1000, 5000 - 999));
        assert!(!map.insert(pages(6000, 1, Kind::Managed)), "full");
        assert!(map.insert(pages(5000, 1, Kind::Managed)), "but this joins");
        let cut =
            std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| map.remove(4000 * PAGE_SIZE, 4001 * PAGE_SIZE, |_| ())));
        assert!(cut.is_err());
        assert_eq!((map.len(), map.iter().map(Range::pages).sum::<u64>()), (1000, 5001 - 999), "and nothing is changed");
        map.remove(0, 5000 * PAGE_SIZE, |_| ());
        assert!(map.insert(pages(6000, 1, Kind::Managed)));
        map.check();
    }

    /// The greatest number of ranges, in an order that leaves chunks as empty as possible: there are enough chunks, and nothing is
    /// allocated. The cost of each range does not grow with their number.
    #[test]
    fn a_million_ranges() {
        const MANY: usize = 1 << 20;
        let mut map = RangeMap::new(MANY);
        let capacities = |map: &RangeMap| (map.order.capacity(), map.pool.capacity(), map.free.capacity());
        let before = capacities(&map);
        let mut seed = 1usize;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed >> 33
        };
        // up and down again, so that some chunks divide when they are full and others lose most of their ranges
        for first in [0, 1] {
            for i in 0..MANY {
                assert!(map.insert(pages(2 * (i ^ 0x5555), 1, Kind::Managed)), "{i}");
            }
            assert!(!map.insert(pages(2 * MANY, 1, Kind::Managed)));
            for i in (first..MANY).filter(|i| i % 100 != 0) {
                map.remove(2 * i * PAGE_SIZE, (2 * i + 1) * PAGE_SIZE, |_| ());
            }
            map.check();
            map.remove(0, usize::MAX & !(PAGE_SIZE - 1), |_| ());
            assert!(map.is_empty() && map.order.is_empty());
        }
        while map.len() < MANY / 4 {
            let at = random() % (4 * MANY);
            map.remove(at * PAGE_SIZE, (at + 1) * PAGE_SIZE, |_| ());
            assert!(map.insert(pages(at, 1, if at.is_multiple_of(2) { Kind::Managed } else { Kind::Native })));
        }
        map.check();
        assert_eq!(capacities(&map), before);
    }

    /// A range that joins both of its neighbours leaves one range less, and so may unite two chunks.
    #[test]
    fn a_gap_is_filled_anywhere() {
        for gap in 0..FEW {
            let mut map = RangeMap::new(1000);
            (0..=CHUNK).for_each(|i| assert!(map.insert(pages(2 * i, 1, Kind::Managed))));
            map.remove(2 * (FEW + 1) * PAGE_SIZE, 2 * (CHUNK + 1) * PAGE_SIZE, |_| ());
            assert_eq!((map.order.len(), map.len()), (2, FEW + 1));
            assert!(map.insert(pages(2 * gap + 1, 1, Kind::Managed)));
            assert_eq!((map.order.len(), map.len()), (1, FEW));
            assert_eq!(map.find((2 * gap + 1) * PAGE_SIZE).map(Range::pages), Some(3));
            map.check();
        }
    }

    fn as_pages(ops: Vec<(bool, usize, usize, bool)>) -> Result<(), TestCaseError> {
        let mut map = RangeMap::new(4000);
        let mut model = BTreeMap::new();
        for (add, first, len, managed) in ops {
            let range = pages(first, len, if managed { Kind::Managed } else { Kind::Native });
            let (mut removed, mut at) = (0, 0);
            map.remove(range.start, range.end, |r| {
                assert!(at <= r.start && range.start <= r.start && r.end <= range.end);
                (removed, at) = (removed + r.pages(), r.end);
            });
            let gone = (first..first + len).filter(|p| model.remove(p).is_some()).count();
            prop_assert_eq!(removed, gone as u64);
            if add {
                prop_assert!(map.insert(range));
                model.extend((first..first + len).map(|p| (p, range.kind)));
            }
            let near = first.saturating_sub(20)..first + len + 20;
            for p in near.clone() {
                prop_assert_eq!(map.find(p * PAGE_SIZE + 5).map(|r| r.kind), model.get(&p).copied());
            }
            for kind in [Kind::Native, Kind::Managed] {
                let found = map.overlap(near.start * PAGE_SIZE, near.end * PAGE_SIZE, kind);
                let page = model.range(near.clone()).find(|(_, k)| **k == kind).map(|(p, _)| *p);
                prop_assert_eq!(found.map(|r| (r.start / PAGE_SIZE).max(near.start)), page);
                let found = map.last_overlap(near.start * PAGE_SIZE, near.end * PAGE_SIZE, kind);
                let page = model.range(near.clone()).rfind(|(_, k)| **k == kind).map(|(p, _)| *p);
                prop_assert_eq!(found.map(|r| (r.end / PAGE_SIZE).min(near.end) - 1), page);
            }
        }
        let bounds = model.first_key_value().zip(model.last_key_value()).map(|((first, _), (last, _))| *first..*last + 1);
        prop_assert_eq!(map.bounds(), bounds.map_or(0..0, |pages| pages.start * PAGE_SIZE..pages.end * PAGE_SIZE));
        let all = map.iter().flat_map(|r| (r.start / PAGE_SIZE..r.end / PAGE_SIZE).map(|p| (p, r.kind)));
        prop_assert!(all.eq(model));
        map.check();
        Ok(())
    }

    proptest! {
        #[test]
        fn as_a_map_of_pages(ops in proptest::collection::vec((any::<bool>(), 0usize..64, 1usize..10, any::<bool>()), 1..100)) {
            as_pages(ops)?;
        }

        #[test]
        fn flags_are_of_pages(ops in proptest::collection::vec((0usize..64, 1usize..10, 0u8..3), 1..50)) {
            let mut map = RangeMap::new(1000);
            let (holes, mut model) = ([7, 8, 30], BTreeMap::new());
            for p in (0..80).filter(|p| !holes.contains(p)) {
                prop_assert!(map.insert(pages(p, 1, Kind::Native)));
                model.insert(p, Flags::NONE);
            }
            for (first, len, what) in ops {
                let change = |f: Flags| match what { 0 => f.with(Flags::WIPE), 1 => f.without(Flags::WIPE), _ => f.with(Flags::GUARDED) };
                prop_assert!(map.change(first * PAGE_SIZE, (first + len) * PAGE_SIZE, change));
                model.range_mut(first..first + len).for_each(|(_, f)| *f = change(*f));
                for p in 0..90 {
                    prop_assert_eq!(map.find(p * PAGE_SIZE).map(|r| r.flags), model.get(&p).copied());
                }
                map.check();
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        /// Enough pages for many chunks.
        #[test]
        fn as_a_map_of_many_pages(
            few in proptest::collection::vec((any::<bool>(), 0usize..6000, 1usize..2000, any::<bool>()), 1..5),
            many in proptest::collection::vec((any::<bool>(), 0usize..6000, 1usize..4, any::<bool>()), 1..3000),
        ) {
            let (one, other) = many.split_at(many.len() / 2);
            as_pages([one, &few, other].concat())?;
        }
    }
}

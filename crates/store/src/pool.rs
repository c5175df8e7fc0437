//! The pool of a compressed memory device: pages by slot, packed, in one arena of fixed size.
//!
//! ```text
//!   page --> Packer::pack --+--> Same(word)     eight bytes, repeated: kept in the slot's entry, no arena
//!                           +--> Bytes          up to 3272 bytes: an object of the smallest class that it fits
//!                           +--> Incompressible the caller sends it straight to the next device
//!
//!   arena    [ block | block | block | ... ]    32 KiB each
//!   class    a stack of blocks, each cut into n objects of one size; all full but the top one
//!              objects   [o o o o o o o] [o o o o o o o] [o o o . . . .]   <- top: 3 filled
//!   object   [ slot, 4 bytes | compressed bytes | rounding ]
//!   entries  by slot: where its object is (or its word), and the order of storing
//! ```
//!
//! **Always compact.** When an object is freed, the last object of its class (the last of the top block) moves into the hole, and
//! the entry of its slot follows. So no compaction is needed, and no block is kept for a single object. Unused space is at most one
//! partly filled block per class (32 of them: 1 MiB, whatever the pool's size), the rounding up to a class, and the rest of a block
//! behind its objects: 5 % on average, 10 % at worst for pages that compress to more than 1 KiB. The price is to copy one object
//! per free.
//!
//! **Memory.** A block is filled from its start. So its *resident* pages are its first ones, as many as its objects have ever
//! reached. (The caller's arena may be a mapping whose pages come into memory as they are touched.) [`Pool::store`] makes pages
//! resident only within the limit and the *credit*, which the owner has charged to its budget in advance. A block that has become
//! free stays resident and is used again first. The owner gives it back to the kernel between [`Pool::trim_begin`] and
//! [`Pool::trim_end`].
//!
//! Invariants: `blocks_used + blocks free == blocks touched <= blocks`; each class has `filled <= objects per block` in its top
//! block; an object's slot number leads to the entry that leads to the object; the order list has each stored slot once.
//!
//! Packing is apart from the pool (`packing.rs`), so that it needs no lock on it. Nothing allocates after set-up.
//!
//! What it cannot do: give back single pages of partly filled blocks (one such block per class, so 31 times 28 KiB at most).
//!
//! Source: the kernel's zsmalloc (size classes over chains of pages) and zram (same-filled pages, refusing pages that do not
//! compress). Read, not copied.

use crate::PageBytes;
use crate::packing::{Damaged, Packed, Unpacker};
use core::ops::Range;
use overspill_vm::types::PAGE_SIZE;

/// Bytes of a block.
const BLOCK: usize = 32 << 10;
/// Bytes of the tables for each slot that was ever used.
pub const SLOT_BYTES: usize = size_of::<Entry>() + size_of::<u16>();
/// Bytes before an object's content: its slot.
const HEAD: usize = 4;
/// Objects per block, by class: in the finest steps that blocks of this size allow down to 1 KiB, below that in steps of an eighth
/// and more.
const CLASS_OBJECTS: [usize; CLASSES] = [
    256, 128, 96, 80, 64, 56, 48, 40, 36, 32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11,
    10,
];
/// Classes.
const CLASSES: usize = 32;

/// The longest content of an object, in bytes: a page that needs more than four fifths of its size is not worth keeping.
pub const PACKED_BYTES_MAX: usize = class_size(CLASSES - 1) - HEAD;

/// Bytes of an object, head included.
const fn class_size(class: usize) -> usize {
    (BLOCK / CLASS_OBJECTS[class]) & !3
}

/// Bytes that packed content of `len` bytes takes in a pool, in a block that is full.
pub fn packed_size(len: usize) -> usize {
    BLOCK / CLASS_OBJECTS[class_of(len)]
}

/// The length of the arena for a pool whose limit is `bytes`. The pool then becomes full by its limit, and never because it has no
/// blocks: each class may have one block that is hardly filled.
pub const fn arena_bytes(bytes: usize) -> usize {
    bytes.next_multiple_of(BLOCK) + CLASSES * BLOCK
}

const CLASS_SIZES: [u16; CLASSES] = {
    let mut sizes = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        sizes[class] = class_size(class) as u16;
        class += 1;
    }
    sizes
};

/// Why a page was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// It does not compress: send it straight to the next device.
    Incompressible,
    /// The end of the arena or the limit is reached: write the coldest pages back first, or send this page to the next device.
    Full,
    /// More memory would have to become resident than the credit allows.
    NoCredit,
}

/// Counters of what the pool has stored and refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolCounters {
    /// Pages stored now, same-filled ones too.
    pub stored_pages: u64,
    /// How many of them are one word, repeated.
    pub same_filled_pages: u64,
    /// Compressed content of the others, in bytes.
    pub packed_bytes: u64,
    /// Blocks in use, in bytes of arena.
    pub arena_used_bytes: u64,
    /// Pages taken since the start.
    pub taken: u64,
    /// Pages refused since the start because they do not compress.
    pub incompressible: u64,
    /// Pages refused since the start because the arena was full.
    pub full: u64,
    /// Resident pages of the arena: of blocks in use, and of free blocks that were not given back.
    pub resident_pages: u64,
    /// How many of them belong to free blocks.
    pub spare_pages: u64,
}

impl PoolCounters {
    /// Pages stored now that take room.
    pub fn packed_pages(&self) -> u64 {
        self.stored_pages - self.same_filled_pages
    }

    /// Bytes of pages stored per byte of arena; 0 if there is none.
    pub fn ratio(&self) -> f64 {
        let arena = self.arena_used_bytes;
        if arena == 0 { 0.0 } else { (self.stored_pages * PAGE_SIZE as u64) as f64 / arena as f64 }
    }
    /// Bytes of the used arena that are not content: heads, rounding, holes.
    pub fn arena_overhead_bytes(&self) -> u64 {
        self.arena_used_bytes - self.packed_bytes
    }
}

/// A slot's entry is four words, so that a table of them costs memory only where it is touched.
///
/// 0, 1: the word of a same-filled page, or the object's offset in the arena in bytes. 2, 3: the slots stored just before and
/// after, plus one.
type Entry = [u32; 4];
const AT: usize = 0;
const AT_HIGH: usize = 1;
const OLDER: usize = 2;
const NEWER: usize = 3;

/// In `lens`: nothing is stored.
const ABSENT: u16 = 0;
/// In `lens`: a same-filled page.
const SAME: u16 = u16::MAX;

#[derive(Clone, Copy, Default)]
struct Class {
    /// The top block plus one.
    top: u32,
    /// Objects in it.
    filled: u32,
}

/// The content of a slot, from [`Pool::copy_out`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stored {
    /// A page of this word.
    Same(u64),
    /// So many bytes of packed content were copied.
    Bytes(usize),
}

/// The pool, with its arena.
#[derive(Clone)]
pub struct Pool<A = Vec<u8>> {
    arena: A,
    /// By block: the one below it in its class, or the next free one, plus one.
    below: Vec<u32>,
    /// By block: how many of its pages, from its start, are resident.
    resident: Vec<u8>,
    classes: [Class; CLASSES],
    /// Lists of free blocks: those that are resident, and those that are not.
    free: u32,
    empty: u32,
    touched: u32,
    /// How many more pages may become resident, and the most resident pages.
    credit: u64,
    limit: u64,
    entries: Vec<Entry>,
    /// Bytes of content by slot, or [`ABSENT`] or [`SAME`].
    lens: Vec<u16>,
    /// Ends of the order list, plus one.
    oldest: u32,
    newest: u32,
    counters: PoolCounters,
}

impl Pool {
    /// For `slots` slots and `arena_bytes` of compressed pages, in whole blocks of 32 KiB, all of which it may use. Allocates all
    /// memory that it will ever need, zeroed, so that it is used only as it is touched.
    ///
    /// # Panics
    /// If `slots` is 2^32 - 1.
    pub fn new(slots: u32, arena_bytes: usize) -> Pool {
        let mut pool = Pool::over(slots, vec![0; arena_bytes / BLOCK * BLOCK]);
        (pool.credit, pool.limit) = (u64::MAX / 2, u64::MAX);
        pool
    }
}

impl<A: AsRef<[u8]> + AsMut<[u8]>> Pool<A> {
    /// For `slots` slots, over an arena, of which it uses whole blocks of 32 KiB. Credit and limit are 0 at first. Allocates its
    /// tables, zeroed, so that they take memory only as they are touched.
    ///
    /// # Panics
    /// If `slots` is 2^32 - 1.
    pub fn over(slots: u32, arena: A) -> Pool<A> {
        assert!(slots < u32::MAX, "slot + 1 must fit");
        let blocks = arena.as_ref().len() / BLOCK;
        Pool {
            arena,
            below: vec![0; blocks],
            resident: vec![0; blocks],
            classes: [Class::default(); CLASSES],
            free: 0,
            empty: 0,
            touched: 0,
            credit: 0,
            limit: 0,
            entries: vec![[0; 4]; slots as usize],
            lens: vec![ABSENT; slots as usize],
            oldest: 0,
            newest: 0,
            counters: PoolCounters::default(),
        }
    }

    /// How many more pages may become resident.
    pub fn credit(&self) -> u64 {
        self.credit
    }

    /// Adds to [`Pool::credit`], in pages.
    pub fn add_credit(&mut self, pages: u64) {
        self.credit += pages;
    }

    /// Takes up to `pages` pages off the credit. Returns how many.
    pub fn take_credit(&mut self, pages: u64) -> u64 {
        let taken = pages.min(self.credit);
        self.credit -= taken;
        taken
    }

    /// Sets the most resident pages. Pages that are resident already stay.
    pub fn set_limit(&mut self, pages: u64) {
        self.limit = pages;
    }

    /// The limit, in pages.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Its counters.
    pub fn counters(&self) -> PoolCounters {
        self.counters
    }

    /// Bytes of the tables alongside the arena, if every slot is touched: [`SLOT_BYTES`] per slot, 5 per block.
    pub fn metadata_bytes(&self) -> u64 {
        (self.entries.len() * SLOT_BYTES + self.below.len() * (size_of::<u32>() + size_of::<u8>())) as u64
    }

    /// Slots.
    pub fn slots(&self) -> u32 {
        self.lens.len() as u32
    }

    /// Whether `slot` is stored.
    pub fn contains(&self, slot: u32) -> bool {
        self.lens[slot as usize] != ABSENT
    }

    /// Stores a page in `slot`, as the newest. The old content of the slot is dropped in any case. Does not allocate.
    ///
    /// # Errors
    /// [`Refused`]; then the slot is empty.
    ///
    /// # Panics
    /// If there is no such slot, or the bytes are none or more than [`PACKED_BYTES_MAX`].
    pub fn store(&mut self, slot: u32, packed: Packed<'_>) -> Result<(), Refused> {
        self.remove(slot);
        let len = match packed {
            Packed::Same(word) => {
                self.entries[slot as usize] = [word as u32, (word >> 32) as u32, 0, 0];
                self.counters.same_filled_pages += 1;
                SAME
            }
            Packed::Bytes(bytes) => {
                assert!(!bytes.is_empty() && bytes.len() <= PACKED_BYTES_MAX);
                let at = match self.take(class_of(bytes.len())) {
                    Ok(at) => at,
                    Err(why) => {
                        self.counters.full += u64::from(why == Refused::Full);
                        return Err(why);
                    }
                };
                let arena = self.arena.as_mut();
                arena[at..at + HEAD].copy_from_slice(&slot.to_ne_bytes());
                arena[at + HEAD..at + HEAD + bytes.len()].copy_from_slice(bytes);
                self.entries[slot as usize] = place(at);
                self.counters.packed_bytes += bytes.len() as u64;
                bytes.len() as u16
            }
            Packed::Incompressible => {
                self.counters.incompressible += 1;
                return Err(Refused::Incompressible);
            }
        };
        self.lens[slot as usize] = len;
        self.counters.stored_pages += 1;
        self.counters.taken += 1;
        self.link(slot);
        Ok(())
    }

    /// Copies the content of `slot`, still packed, so that it can be unpacked ([`Unpacker`], [`fill`]) without the pool. `None` if
    /// the slot is empty. Does not allocate.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn copy_out(&self, slot: u32, out: &mut [u8; PACKED_BYTES_MAX]) -> Option<Stored> {
        let entry = &self.entries[slot as usize];
        match self.lens[slot as usize] {
            ABSENT => None,
            SAME => Some(Stored::Same(word(entry))),
            len => {
                let at = offset(entry) + HEAD;
                out[..len as usize].copy_from_slice(&self.arena.as_ref()[at..at + len as usize]);
                Some(Stored::Bytes(len as usize))
            }
        }
    }

    /// Unpacks the page in `slot` into `page`. Returns whether there is one. Does not allocate.
    ///
    /// # Errors
    /// [`Damaged`] if its bytes are not those of a packed page any more.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn load(&self, slot: u32, unpacker: &mut Unpacker, page: &mut PageBytes) -> Result<bool, Damaged> {
        let entry = &self.entries[slot as usize];
        match self.lens[slot as usize] {
            ABSENT => return Ok(false),
            SAME => fill(word(entry), page),
            len => {
                let at = offset(entry) + HEAD;
                unpacker.unpack(&self.arena.as_ref()[at..at + len as usize], page)?;
            }
        }
        Ok(true)
    }

    /// Empties `slot`. Returns whether a page was stored there. Copies at most one object; does not allocate.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn remove(&mut self, slot: u32) -> bool {
        let len = self.lens[slot as usize];
        match len {
            ABSENT => return false,
            SAME => self.counters.same_filled_pages -= 1,
            len => {
                self.counters.packed_bytes -= u64::from(len);
                self.give(class_of(len as usize), offset(&self.entries[slot as usize]));
            }
        }
        self.unlink(slot);
        self.lens[slot as usize] = ABSENT;
        self.counters.stored_pages -= 1;
        true
    }

    /// The slot that was stored longest ago, which should be written back to the next device first.
    pub fn coldest(&self) -> Option<u32> {
        self.oldest.checked_sub(1)
    }

    /// The slot that was stored just after `slot`. => `slot` is stored
    pub fn next_coldest(&self, slot: u32) -> Option<u32> {
        debug_assert!(self.contains(slot));
        self.entries[slot as usize][NEWER].checked_sub(1)
    }

    /// Whether the page in `slot` is one word, which takes no room.
    pub fn is_same(&self, slot: u32) -> bool {
        self.lens[slot as usize] == SAME
    }

    /// Makes `slot` count as just stored. => `slot` is stored
    pub fn touch(&mut self, slot: u32) {
        debug_assert!(self.contains(slot));
        self.unlink(slot);
        self.link(slot);
    }

    // ---- the arena ----

    /// Takes a free block that is resident. Returns its number and its resident part of the arena, which the caller should give
    /// back to the kernel. Until [`Pool::trim_end`] the block is neither free nor in use.
    pub fn trim_begin(&mut self) -> Option<(u32, Range<usize>)> {
        let block = self.free.checked_sub(1)?;
        self.free = self.below[block as usize];
        let at = block as usize * BLOCK;
        self.counters.spare_pages -= u64::from(self.resident[block as usize]);
        Some((block, at..at + self.resident[block as usize] as usize * PAGE_SIZE))
    }

    /// To be called when the block from [`Pool::trim_begin`] has no memory any more. Returns how many pages it had.
    pub fn trim_end(&mut self, block: u32) -> u32 {
        let pages = core::mem::take(&mut self.resident[block as usize]);
        self.below[block as usize] = self.empty;
        self.empty = block + 1;
        self.counters.resident_pages -= u64::from(pages);
        pages.into()
    }

    /// Takes room for an object. Returns its offset in the arena, in bytes.
    fn take(&mut self, class: usize) -> Result<usize, Refused> {
        let Class { top, filled } = self.classes[class];
        let fresh = top == 0 || filled as usize == CLASS_OBJECTS[class];
        let (block, filled) = match fresh {
            false => (top, filled + 1),
            true if self.free != 0 => (self.free, 1),
            true if self.empty != 0 => (self.empty, 1),
            true if (self.touched as usize) < self.below.len() => (self.touched + 1, 1),
            true => return Err(Refused::Full),
        };
        let need = (filled as usize * class_size(class)).div_ceil(PAGE_SIZE) as u8;
        let resident = &mut self.resident[block as usize - 1];
        let more = u64::from(need.saturating_sub(*resident));
        if more > 0 {
            if self.counters.resident_pages + more > self.limit {
                return Err(Refused::Full);
            }
            self.credit = self.credit.checked_sub(more).ok_or(Refused::NoCredit)?;
            self.counters.resident_pages += more;
            *resident = need;
        }
        if fresh {
            match block {
                block if block == self.free => {
                    self.free = self.below[block as usize - 1];
                    // the pages that it had before (all of them, also if it had more than `need`)
                    self.counters.spare_pages -= u64::from(self.resident[block as usize - 1]) - more;
                }
                block if block == self.empty => self.empty = self.below[block as usize - 1],
                _ => self.touched += 1,
            }
            self.below[block as usize - 1] = top;
            self.counters.arena_used_bytes += BLOCK as u64;
        }
        self.classes[class] = Class { top: block, filled };
        Ok((block as usize - 1) * BLOCK + (filled as usize - 1) * class_size(class))
    }

    /// Gives an object back: the last one of its class takes its place.
    fn give(&mut self, class: usize, hole: usize) {
        let size = class_size(class);
        let Class { top, filled } = self.classes[class];
        let last = (top as usize - 1) * BLOCK + (filled as usize - 1) * size;
        if last != hole {
            let arena = self.arena.as_mut();
            let slot = u32::from_ne_bytes(arena[last..last + HEAD].try_into().expect("four bytes"));
            let len = HEAD + self.lens[slot as usize] as usize;
            arena.copy_within(last..last + len, hole);
            let [.., older, newer] = self.entries[slot as usize];
            let [low, high, ..] = place(hole);
            self.entries[slot as usize] = [low, high, older, newer];
        }
        if filled > 1 {
            self.classes[class].filled -= 1;
            return;
        }
        let below = self.below[top as usize - 1];
        self.classes[class] = Class { top: below, filled: if below == 0 { 0 } else { CLASS_OBJECTS[class] as u32 } };
        self.below[top as usize - 1] = self.free;
        self.free = top;
        self.counters.spare_pages += u64::from(self.resident[top as usize - 1]);
        self.counters.arena_used_bytes -= BLOCK as u64;
    }

    // ---- the order of storing ----

    fn link(&mut self, slot: u32) {
        self.entries[slot as usize][OLDER] = self.newest;
        self.entries[slot as usize][NEWER] = 0;
        match self.newest {
            0 => self.oldest = slot + 1,
            newest => self.entries[newest as usize - 1][NEWER] = slot + 1,
        }
        self.newest = slot + 1;
    }

    fn unlink(&mut self, slot: u32) {
        let [.., older, newer] = self.entries[slot as usize];
        match older {
            0 => self.oldest = newer,
            older => self.entries[older as usize - 1][NEWER] = newer,
        }
        match newer {
            0 => self.newest = older,
            newer => self.entries[newer as usize - 1][OLDER] = older,
        }
    }

    /// Walks over everything and asserts the invariants in the head. For tests.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check(&self) {
        let PoolCounters { taken, incompressible, full, .. } = self.counters;
        let mut counters = PoolCounters { taken, incompressible, full, ..Default::default() };
        let (mut objects, mut blocks) = (0, 0);
        for (class, &Class { top, filled }) in self.classes.iter().enumerate() {
            assert!(filled as usize <= CLASS_OBJECTS[class] && (filled == 0) == (top == 0));
            let (mut block, mut filled) = (top, filled);
            while block != 0 {
                blocks += 1;
                for k in 0..filled as usize {
                    let at = (block as usize - 1) * BLOCK + k * class_size(class);
                    let slot = u32::from_ne_bytes(self.arena.as_ref()[at..at + HEAD].try_into().unwrap()) as usize;
                    assert!(offset(&self.entries[slot]) == at, "slot {slot} does not lead back to its object");
                    assert!(![ABSENT, SAME].contains(&self.lens[slot]) && class_of(self.lens[slot] as usize) == class);
                    objects += 1;
                }
                block = self.below[block as usize - 1];
                filled = CLASS_OBJECTS[class] as u32;
            }
        }
        counters.arena_used_bytes = (blocks * BLOCK) as u64;
        for (list, is_empty) in [(self.free, false), (self.empty, true)] {
            let mut free = list;
            while free != 0 {
                blocks += 1;
                counters.spare_pages += u64::from(self.resident[free as usize - 1]);
                assert!(self.resident[free as usize - 1] == 0 || !is_empty);
                free = self.below[free as usize - 1];
            }
        }
        assert_eq!(blocks, self.touched as usize);
        counters.resident_pages = self.resident.iter().map(|&pages| u64::from(pages)).sum();
        assert!(counters.resident_pages * PAGE_SIZE as u64 <= (blocks * BLOCK) as u64);
        for &len in &self.lens {
            counters.stored_pages += u64::from(len != ABSENT);
            counters.same_filled_pages += u64::from(len == SAME);
            counters.packed_bytes += if len == SAME { 0 } else { u64::from(len) };
        }
        assert_eq!(counters, self.counters);
        assert_eq!(objects, counters.stored_pages - counters.same_filled_pages);
        let (mut at, mut before, mut listed) = (self.oldest, 0, 0);
        while at != 0 {
            assert!(self.entries[at as usize - 1][OLDER] == before && self.lens[at as usize - 1] != ABSENT);
            listed += 1;
            (before, at) = (at, self.entries[at as usize - 1][NEWER]);
        }
        assert!(before == self.newest && listed == counters.stored_pages);
    }
}

/// A page of one word.
pub fn fill(word: u64, page: &mut PageBytes) {
    page.as_chunks_mut::<8>().0.fill(word.to_ne_bytes());
}

fn word(entry: &Entry) -> u64 {
    u64::from(entry[AT]) | u64::from(entry[AT_HIGH]) << 32
}

fn offset(entry: &Entry) -> usize {
    word(entry) as usize
}

fn place(at: usize) -> Entry {
    [at as u32, (at as u64 >> 32) as u32, 0, 0]
}

/// The smallest class for `len` bytes of content.
fn class_of(len: usize) -> usize {
    CLASS_SIZES.partition_point(|&size| usize::from(size) < len + HEAD)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packing::tests::page;
    use crate::packing::{Algorithm, Packer};
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn classes_rise_and_waste_little() {
        assert!(CLASS_SIZES.is_sorted() && PACKED_BYTES_MAX == 3272);
        for len in 1..=PACKED_BYTES_MAX {
            let class = class_of(len);
            assert!(class_size(class) >= len + HEAD && (class == 0 || class_size(class - 1) < len + HEAD));
            let each = BLOCK / CLASS_OBJECTS[class];
            assert!(len <= 1020 || each * 100 <= (len + HEAD) * 111, "{len} bytes take {each}");
        }
    }

    /// Pages of all sizes come and go at random for a long time. The remaining pages take as much room as in a new pool.
    #[test]
    fn it_does_not_fragment() {
        let (slots, rounds) = if cfg!(miri) { (20, 50) } else { (4000, 40_000) };
        let (mut packer, mut pool) = (Packer::new(Algorithm::Lz4), Pool::new(slots, slots as usize * PAGE_SIZE));
        let mut x = 1u64;
        for _ in 0..rounds {
            x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let slot = (x >> 33) as u32 % slots;
            if x >> 63 == 0 {
                let _ = pool.store(slot, packer.pack(&page(x, (x >> 40) as usize % 3000)));
            } else {
                pool.remove(slot);
            }
        }
        pool.check();
        let c = pool.counters();
        let content = c.packed_bytes + (c.stored_pages - c.same_filled_pages) * HEAD as u64;
        assert!(c.arena_used_bytes <= content * 111 / 100 + (CLASSES * BLOCK) as u64, "{c:?}");
        for slot in 0..slots {
            pool.remove(slot);
        }
        assert_eq!(pool.counters().arena_used_bytes, 0);
    }

    #[test]
    fn a_full_pool_refuses_and_keeps_what_it_has() {
        let (mut packer, mut pool) = (Packer::new(Algorithm::Lz4), Pool::new(1000, 4 * BLOCK));
        let stored = (0..1000).take_while(|&s| pool.store(s, packer.pack(&page(s.into(), 3000))).is_ok()).count() as u32;
        assert_eq!(stored as usize, 4 * (BLOCK / class_size(class_of(3020))));
        assert_eq!(pool.store(999, packer.pack(&page(7, 100))), Err(Refused::Full), "no block for another class");
        assert_eq!(pool.store(998, packer.pack(&[1; PAGE_SIZE])), Ok(()), "a word takes no room");
        assert_eq!(pool.coldest(), Some(0));
        assert!(pool.remove(0));
        assert_eq!(pool.store(999, packer.pack(&page(7, 3000))), Ok(()));
        assert_eq!((pool.coldest(), pool.next_coldest(998), pool.counters().full), (Some(1), Some(999), 2));
        pool.check();
        let mut back = [0; PAGE_SIZE];
        for slot in 1..stored {
            assert_eq!(pool.load(slot, &mut Unpacker::Lz4, &mut back), Ok(true));
            assert_eq!(back, page(slot.into(), 3000));
        }
    }

    /// No page becomes resident without credit or above the limit, and pages that are given back can be charged elsewhere.
    #[test]
    fn memory_is_taken_by_credit_and_up_to_the_limit() {
        let (mut packer, mut pool) = (Packer::new(Algorithm::Lz4), Pool::over(200, vec![0; 8 * BLOCK]));
        pool.set_limit(20);
        assert_eq!(pool.store(0, packer.pack(&page(1, 3000))), Err(Refused::NoCredit));
        assert_eq!(pool.store(0, packer.pack(&[5; PAGE_SIZE])), Ok(()), "a word takes nothing");
        pool.add_credit(10);
        let stored = (1..200).take_while(|&s| pool.store(s, packer.pack(&page(s.into(), 3000))).is_ok()).count();
        assert!((11..=13).contains(&stored), "{stored} pages of 3 KiB in 10 of 4");
        assert_eq!((pool.credit(), pool.counters().resident_pages), (0, 10));
        pool.add_credit(100);
        assert_eq!((20..200).find_map(|s| pool.store(s, packer.pack(&page(s.into(), 3000))).err()), Some(Refused::Full));
        assert_eq!(pool.counters().resident_pages, 20);
        pool.check();
        (0..200).for_each(|s| _ = pool.remove(s));
        assert_eq!(pool.counters().resident_pages, 20, "it keeps what it has");
        let mut back = 0;
        while let Some((block, _)) = pool.trim_begin() {
            back += pool.trim_end(block);
        }
        assert_eq!((back, pool.counters().resident_pages, pool.credit()), (20, 0, 90));
        assert_eq!(pool.take_credit(1000), 90);
        pool.check();
    }

    #[derive(Clone, Debug)]
    enum Op {
        Store { slot: u32, seed: u64, noise: usize },
        Remove(u32),
        WriteBack,
        Trim,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (0..60u32, any::<u64>(), prop_oneof![Just(0), 1..4096usize]).prop_map(|(slot, seed, noise)| Op::Store { slot, seed, noise }),
            2 => (0..60u32).prop_map(Op::Remove),
            1 => Just(Op::WriteBack),
            1 => Just(Op::Trim),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 256 }))]
        #[test]
        fn behaves_like_a_map(ops in prop::collection::vec(op(), 1..if cfg!(miri) { 20 } else { 200 }), blocks in 1..12usize) {
            let (mut packer, mut pool) = (Packer::new(Algorithm::Lz4), Pool::new(60, blocks * BLOCK));
            let mut model: HashMap<u32, PageBytes> = HashMap::new();
            let mut order: Vec<u32> = vec![];
            for op in ops {
                match op {
                    Op::Store { slot, seed, noise } => {
                        let bytes = page(seed, noise);
                        let packed = packer.pack(&bytes);
                        model.remove(&slot);
                        order.retain(|s| *s != slot);
                        match pool.store(slot, packed) {
                            Ok(()) => {
                                model.insert(slot, bytes);
                                order.push(slot);
                            }
                            Err(Refused::Incompressible) => prop_assert_eq!(packed, Packed::Incompressible),
                            Err(Refused::Full) => prop_assert!(matches!(packed, Packed::Bytes(_)) && blocks < 12),
                            Err(Refused::NoCredit) => prop_assert!(false, "it has credit without end"),
                        }
                    }
                    Op::Remove(slot) => {
                        prop_assert_eq!(pool.remove(slot), model.remove(&slot).is_some());
                        order.retain(|s| *s != slot);
                    }
                    Op::Trim => {
                        if let Some((block, range)) = pool.trim_begin() {
                            pool.arena[range.clone()].fill(0xee);
                            prop_assert_eq!(pool.trim_end(block) as usize * PAGE_SIZE, range.len());
                        }
                    }
                    Op::WriteBack => {
                        prop_assert_eq!(pool.coldest(), order.first().copied());
                        if let Some(slot) = pool.coldest() {
                            pool.remove(slot);
                            model.remove(&slot);
                            order.remove(0);
                        }
                    }
                }
                pool.check();
            }
            let walk: Vec<u32> = core::iter::successors(pool.coldest(), |&slot| pool.next_coldest(slot)).collect();
            prop_assert_eq!(walk, order);
            for slot in 0..60 {
                let mut back = [0; PAGE_SIZE];
                prop_assert_eq!(pool.load(slot, &mut Unpacker::Lz4, &mut back), Ok(model.contains_key(&slot)));
                prop_assert_eq!(pool.contains(slot), model.contains_key(&slot));
                if let Some(bytes) = model.get(&slot) { prop_assert_eq!(&back, bytes); }
            }
        }
    }
}

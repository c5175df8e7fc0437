//! Pages that a family's processes have in common, compressed, in memory that they share.
//!
//! After a fork, parent and children have the same pages in the same slots. Each maps a copy of its own, and without this cache
//! each reads it from the device. The cache keeps the pages of such slots, compressed, once for all of them.
//!
//! ```text
//!   a set     for each 64 pages of the budget: the pages whose keys fall into it
//!   places    | page | page | page | ...      PLACES words: a page's name, its last reader, and where its entry is, if it has one
//!   ring      | entry | entry | ... | entry |       `ways` frames, in granules of 64 bytes
//!                             ^ head: the next entry goes here
//!   entry     | length | compressed bytes |   or the page as it is
//! ```
//!
//! A place without an entry remembers a page, which tells what a larger cache would be good for.
//!
//! **There is no lock.** Several processes may write to one entry at the same time, and any of them may be killed or hostile. But
//! the reader of a page copies the entry, unpacks it, and checks the page against the tag that it has in its own memory, as it does
//! with one from a device. If it is not what was stored, the device is read. So a wrong entry costs time and nothing else.
//!
//! That check is made against mistakes, and a tag does not bind somebody who has the key. So a process that gives up rights leaves
//! the cache ([`Cache::leave`]): those that keep theirs read nothing that it writes, and it reads nothing of theirs. Pages here are
//! not encrypted.
//!
//! **Its size.** A frame here serves all processes, one in a process's part serves that process alone. But a page that is here and
//! mapped as well takes memory twice, and what comes from here costs a fault. So the cache pays for pages that *several* processes
//! read again and again. It gets as much of the budget as such reads are of all reads of single pages, unless fewer frames hold
//! what there is ([`Cache::judge`]). A read counts if the cache has the page, or remembers it, and another process was the last to
//! read it.
//!
//! **Which page stays.** When a ring is full, a page that is not remembered is only remembered; the second read brings it in (as
//! the ghosts of 2Q, Johnson and Shasha 1994). The head goes round as the hand of a clock: an entry that was read since it came by
//! is spared once.

use super::shares::MemberId;
use crate::area;
use crate::sys::{self, Errno};
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use overspill_store::PageBytes;
use overspill_store::packing::{Packed, Packer, Unpacker};
use overspill_store::pool;
use overspill_vm::types::{PAGE_SHIFT, PAGE_SIZE};

/// Pages of the budget for each set.
const SET_PAGES: u32 = 64;
/// The most frames of a set. With all of its pages the cache would be as large as the budget.
const WAYS_MAX: u32 = 40;
/// Places of a set.
const PLACES: usize = 192;
/// Entries begin at multiples of this, in bytes.
const GRANULE: usize = 64;
/// Granules of a frame, and of a page that is kept as it is.
const FRAME_GRANULES: u32 = (PAGE_SIZE / GRANULE) as u32;
/// The bytes before an entry's compressed ones: their number.
const HEAD_BYTES: usize = 2;
/// The size is judged after so many reads, as a part of the budget's pages, and so many at least.
const JUDGED_PART: u32 = 16;
const JUDGED_LEAST: u32 = 256;
/// If no more than [`JUDGED_LEAST`] are read in this time, others may have its memory, in milliseconds.
const IDLE_MS: u32 = 5000;
/// The tables begin after the head, in bytes.
const TABLES: usize = size_of::<Head>().next_multiple_of(64);
/// Smaller differences from the best size are left alone, in ways.
const SLACK: u32 = 2;

/// Shared by the family. All zero at first.
#[repr(C)]
struct Head {
    /// How many frames each set has.
    ways: AtomicU32,
    /// How many frames of each set may have memory. More than `ways` only while it shrinks, or if who shrank it was killed.
    held: AtomicU32,
    /// Who changes the size.
    changer: AtomicU32,
    /// Since the size was last judged: reads of single pages, and those of pages that another process was the last to read.
    reads: AtomicU32,
    common: AtomicU32,
    /// When that was, in milliseconds.
    judged: AtomicU32,
}

/// All zero at first. Positions are in granules.
#[repr(C)]
struct Set {
    places: [AtomicU64; PLACES],
    /// A bit for each place: read since the head came by.
    used: [AtomicU64; PLACES / 64],
    /// Where the next entry goes when the ring is full.
    head: AtomicU32,
    /// From here on the ring was never written.
    end: AtomicU32,
    /// The next place without an entry to be overwritten.
    oldest: AtomicU32,
}

/// A page of a set. Zero: none.
///
/// ```text
///   name, 38 bits | granules less one, 6 | first granule plus one, 12; 0: no entry | reader, 8
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place(u64);

const _: () = assert!(WAYS_MAX * FRAME_GRANULES < 1 << 12 && FRAME_GRANULES <= 1 << 6);

impl Place {
    /// A page without an entry.
    fn remembered(name: u64, reader: MemberId) -> Place {
        Place(name << 26 | u64::from(reader.0 as u8))
    }
    fn with_entry(self, granules: &Range<u32>) -> Place {
        let len = u64::from(granules.end - granules.start - 1);
        Place(self.without_entry().0 | len << 20 | u64::from(granules.start + 1) << 8)
    }
    fn without_entry(self) -> Place {
        Place(self.0 & !(0x3_FFFF << 8))
    }
    fn read_by(self, reader: MemberId) -> Place {
        Place(self.0 & !0xFF | u64::from(reader.0 as u8))
    }
    fn name(self) -> u64 {
        self.0 >> 26
    }
    /// Its entry, if that lies within a ring of so many granules.
    fn entry(self, ring: u32) -> Option<Range<u32>> {
        let first = (self.0 >> 8 & 0xFFF) as u32;
        let granules = first.wrapping_sub(1)..first + (self.0 >> 20 & 0x3F) as u32;
        (first > 0 && granules.end <= ring).then_some(granules)
    }
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Cache {
    head: NonNull<Head>,
    sets: u32,
    frames: usize,
    len: usize,
}

// SAFETY: it is the address of a mapping that stays for good, and everything there is atomic.
unsafe impl Send for Cache {}
// SAFETY: as above.
unsafe impl Sync for Cache {}

impl Cache {
    /// For a budget of so many pages. Forked children share it. It takes address space, and no memory at first.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn new(budget: u32) -> Result<Cache, Errno> {
        let sets = (budget / SET_PAGES).max(1);
        let tables = (TABLES + sets as usize * size_of::<Set>()).next_multiple_of(PAGE_SIZE);
        let len = tables + ((sets * WAYS_MAX) as usize) * PAGE_SIZE;
        let at = area::map_shared(len)?;
        let head = NonNull::new(at as *mut Head).ok_or(libc::ENOMEM)?;
        // SAFETY: our own mapping; the advice does not change what it holds.
        let _ = unsafe { sys::madvise(at, len, libc::MADV_DONTDUMP) };
        Ok(Cache { head, sets, frames: at + tables, len })
    }

    /// From now on this process and its children have no part in it.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn leave(&self) -> Result<(), Errno> {
        // SAFETY: the mapping of `new`; what is read there is checked, and may be anything.
        unsafe { area::leave_shared(self.head.as_ptr() as usize, self.len) }
    }

    fn head(&self) -> &Head {
        // SAFETY: mapped for good, zeroed, aligned; read and written through atomics only.
        unsafe { self.head.as_ref() }
    }

    fn table(&self) -> &[Set] {
        let at = self.head.as_ptr() as usize + TABLES;
        // SAFETY: within the mapping of `new`, as above.
        unsafe { core::slice::from_raw_parts(at as *const Set, self.sets as usize) }
    }

    /// The set of a page, and the page's name in it.
    fn find(&self, key: u128) -> (u32, &Set, u64) {
        let name = key as u64 >> 26 | 1;
        let number = (((key >> 64) as u32 as u64 * self.sets as u64) >> 32) as u32;
        (number, &self.table()[number as usize], name)
    }

    /// The words of an entry. => it is within [`WAYS_MAX`] frames
    fn words(&self, set: u32, entry: Range<u32>) -> impl Iterator<Item = &AtomicU64> {
        entry.flat_map(move |granule| {
            let frame = (granule / FRAME_GRANULES * self.sets + set) as usize;
            let at = self.frames + (frame << PAGE_SHIFT) + (granule % FRAME_GRANULES) as usize * GRANULE;
            // SAFETY: within the mapping of `new`, as above.
            unsafe { &*(at as *const [AtomicU64; GRANULE / 8]) }
        })
    }

    /// Counts a read of one page that is of no interest to others.
    pub fn note_read(&self) {
        self.head().reads.fetch_add(1, Relaxed);
    }

    /// A process reads the page of this key. Fills it in if it is here; it may be wrong.
    #[inline(never)] // its stack frame of 8 KiB must not be part of a fault's
    pub fn load(&self, key: u128, reader: MemberId, page: &mut PageBytes) -> bool {
        self.note_read();
        let (number, set, name) = self.find(key);
        let Some((at, place)) = set.place_of(name) else { return false };
        if place != place.read_by(reader) {
            self.head().common.fetch_add(1, Relaxed);
            let _ = set.places[at].compare_exchange(place.0, place.read_by(reader).0, Relaxed, Relaxed);
        }
        let Some(granules) = place.entry(self.granules()) else { return false };
        set.note_used(at);
        let mut entry = [0; PAGE_SIZE];
        let as_it_is = granules.len() as u32 == FRAME_GRANULES;
        let to = if as_it_is { &mut *page } else { &mut entry };
        for (to, from) in to.as_chunks_mut::<8>().0.iter_mut().zip(self.words(number, granules)) {
            *to = from.load(Relaxed).to_ne_bytes();
        }
        as_it_is || unpack(&entry, page)
    }

    /// A process has read the page of this key from its device: keeps it, or remembers it.
    #[inline(never)] // as above
    pub fn store(&self, key: u128, reader: MemberId, page: &PageBytes, packer: &mut Packer) {
        let (number, set, name) = self.find(key);
        let (ring, found) = (self.granules(), set.place_of(name));
        let place = Place::remembered(name, reader);
        let end = set.end(ring);
        let is_full = is_full(end, ring);
        if ring == 0 || is_full && found.is_none() {
            set.remember(ring, place);
            return;
        }
        let mut entry = [0; PAGE_SIZE];
        let (entry, need) = pack(packer, page, &mut entry);
        let first = if is_full {
            set.sweep(ring, need)
        } else if set.end.compare_exchange(end, end + need, Relaxed, Relaxed).is_ok() {
            end
        } else {
            return; // another process takes this room; the page comes in at its next read
        };
        let granules = first..first + need;
        for (to, from) in self.words(number, granules.clone()).zip(entry.as_chunks::<8>().0) {
            to.store(u64::from_ne_bytes(*from), Relaxed);
        }
        let at = found.map_or_else(|| set.next_place(ring), |(at, _)| at);
        set.take_used(at);
        set.places[at].store(place.with_entry(&granules).0, Release);
        let frames = granules.start / FRAME_GRANULES..granules.end.div_ceil(FRAME_GRANULES);
        for frame in frames.filter(|frame| *frame >= self.ways()) {
            self.discard(frame * self.sets + number, 1); // it became smaller meanwhile
        }
    }

    // ---- its size ----

    fn ways(&self) -> u32 {
        self.head().ways.load(Relaxed).min(WAYS_MAX)
    }

    /// The size of each ring.
    fn granules(&self) -> u32 {
        self.ways() * FRAME_GRANULES
    }

    /// The frames that it has, in pages.
    pub fn pages(&self) -> u32 {
        self.ways() * self.sets
    }

    /// From now on the caller alone changes its size, if nobody else does who lives.
    pub fn begin_change(&self, id: MemberId, lives: impl Fn(MemberId) -> bool) -> bool {
        let changer = &self.head().changer;
        let now = changer.load(Relaxed);
        (now == 0 || !lives(MemberId(now))) && changer.compare_exchange(now, id.0, Acquire, Relaxed).is_ok()
    }

    /// Others may change it again.
    pub fn end_change(&self) {
        self.head().changer.store(0, Release);
    }

    /// The best size by what was read lately, of at most `most` pages. `None`: the present one, `now`, as far as can be told. If
    /// hardly anything is read for a while, and memory is `wanted`, that is nothing. The time is in milliseconds.
    pub fn judge(&self, now: u32, most: u32, wanted: bool, time: u32) -> Option<u32> {
        let head = self.head();
        let reads = head.reads.load(Relaxed);
        let due = reads >= (self.sets * SET_PAGES / JUDGED_PART).max(JUDGED_LEAST);
        let since = time.wrapping_sub(head.judged.load(Relaxed));
        let is_rarely_read = u64::from(reads) * u64::from(IDLE_MS) <= u64::from(JUDGED_LEAST) * u64::from(since);
        let goes = wanted && now > 0 && since >= IDLE_MS && is_rarely_read;
        if !due && !goes {
            return None;
        }
        head.reads.store(0, Relaxed);
        head.judged.store(time, Relaxed);
        let common = head.common.swap(0, Relaxed);
        // of three processes that read the same pages, each finds another's trace at two reads of three
        let share = (u64::from(common) * 5 / 2).min(reads.into());
        let best = if due {
            ((u64::from(WAYS_MAX) * share / u64::from(reads)) as u32).min(self.enough()).min(most / self.sets)
        } else {
            0
        };
        let ways = now / self.sets;
        let ways = match best.abs_diff(ways) {
            difference if best >= ways => ways + if difference > SLACK { difference.div_ceil(2) } else { 0 },
            difference => ways - if difference > SLACK || best == 0 { difference.div_ceil(2) } else { 0 },
        };
        Some(ways * self.sets)
    }

    /// How many ways would hold everything that was stored, as far as can be told.
    fn enough(&self) -> u32 {
        let (ways, ring) = (self.ways(), self.granules());
        let (mut full, mut filled) = (0, 0);
        for set in self.table() {
            let end = set.end(ring);
            full += u32::from(is_full(end, ring));
            filled += u64::from(end);
        }
        let filled = (filled / u64::from(self.sets * FRAME_GRANULES)) as u32;
        // rings are not equally full: some lack room when others still have a tenth
        if full * 8 >= self.sets {
            filled * 5 / 4 + 4
        } else if filled * 5 < ways * 3 {
            (filled * 4).div_ceil(3) + SLACK // far from the size at which it would grow again
        } else {
            ways
        }
    }

    /// Makes it as large as fits into so many pages. => [`Cache::begin_change`]
    pub fn resize(&self, pages: u32) {
        let to = (pages / self.sets).min(WAYS_MAX);
        let held = self.head().held.fetch_max(to, Relaxed);
        self.head().ways.store(to, Relaxed);
        if to < held {
            for set in self.table() {
                set.shrink(to * FRAME_GRANULES);
            }
            self.discard(to * self.sets, (WAYS_MAX - to) * self.sets);
            self.head().held.store(to, Relaxed);
        }
    }

    fn discard(&self, first: u32, count: u32) {
        let at = self.frames + ((first as usize) << PAGE_SHIFT);
        // SAFETY: frames of the cache, whose content nobody relies on.
        let _ = unsafe { sys::madvise(at, (count as usize) << PAGE_SHIFT, libc::MADV_REMOVE) };
    }
}

/// Whether a ring that was written up to `end` may have no room for one more entry.
fn is_full(end: u32, ring: u32) -> bool {
    end + FRAME_GRANULES > ring
}

/// The entry of a page, and how many granules it takes.
fn pack<'a>(packer: &mut Packer, page: &'a PageBytes, entry: &'a mut PageBytes) -> (&'a PageBytes, u32) {
    let word;
    let bytes = match packer.pack(page) {
        Packed::Same(same) => {
            word = same.to_ne_bytes();
            &word[..]
        }
        Packed::Bytes(bytes) => bytes,
        Packed::Incompressible => return (page, FRAME_GRANULES),
    };
    let (head, rest) = entry.split_at_mut(HEAD_BYTES);
    head.copy_from_slice(&(bytes.len() as u16).to_ne_bytes());
    rest[..bytes.len()].copy_from_slice(bytes);
    let granules = (HEAD_BYTES + bytes.len()).div_ceil(GRANULE) as u32;
    (entry, granules)
}

/// The page of a compressed entry. Returns whether it is one.
fn unpack(entry: &PageBytes, page: &mut PageBytes) -> bool {
    let (head, rest) = entry.split_at(HEAD_BYTES);
    let len = u16::from_ne_bytes([head[0], head[1]]);
    match rest.get(..len.into()) {
        None => false,
        Some(bytes) => match <[u8; 8]>::try_from(bytes) {
            Ok(word) => {
                pool::fill(u64::from_ne_bytes(word), page);
                true
            }
            Err(_) => Unpacker::Words.unpack(bytes, page).is_ok(),
        },
    }
}

impl Set {
    fn places(&self) -> impl Iterator<Item = (usize, Place)> {
        self.places.iter().map(|place| Place(place.load(Relaxed))).enumerate()
    }

    fn place_of(&self, name: u64) -> Option<(usize, Place)> {
        self.places().find(|(_, place)| place.name() == name)
    }

    /// The page is remembered without its entry from now on, unless the place has changed.
    fn drop_entry(&self, at: usize, place: Place) {
        let _ = self.places[at].compare_exchange(place.0, place.without_entry().0, Relaxed, Relaxed);
    }

    fn note_used(&self, at: usize) {
        self.used[at / 64].fetch_or(1 << (at % 64), Relaxed);
    }

    /// Whether the page was read since the head came by. From now on it was not.
    fn take_used(&self, at: usize) -> bool {
        let bit = 1 << (at % 64);
        self.used[at / 64].fetch_and(!bit, Relaxed) & bit != 0
    }

    /// From here on a ring of so many granules was never written.
    fn end(&self, ring: u32) -> u32 {
        self.end.load(Relaxed).min(ring)
    }

    /// Room for an entry of so many granules in a full ring: the entries that are there go. => `need` is no more than a frame has,
    /// and the ring has a frame
    fn sweep(&self, ring: u32, need: u32) -> u32 {
        let in_the_way = |first| {
            let entries = self.places().filter_map(move |(at, place)| Some((at, place, place.entry(ring)?)));
            entries.filter(move |(_, _, entry)| entry.start < first + need && entry.end > first)
        };
        let mut first = self.head.load(Relaxed).min(ring);
        for _ in 0..PLACES {
            if first + need > ring {
                first = 0;
            }
            let spared = in_the_way(first).filter(|(at, ..)| self.take_used(*at)).map(|(.., entry)| entry.end);
            match spared.max() {
                Some(end) => first = end,
                None => break,
            }
        }
        if first + need > ring {
            first = 0; // whatever is there
        }
        in_the_way(first).for_each(|(at, place, _)| self.drop_entry(at, place));
        self.head.store(first + need, Relaxed);
        self.end.fetch_max(first + need, Relaxed);
        first
    }

    /// The place to be overwritten next.
    fn next_place(&self, ring: u32) -> usize {
        let first = self.oldest.load(Relaxed) as usize;
        let mut places = (first..first + PLACES).map(|at| at % PLACES);
        let at = places.find(|at| Place(self.places[*at].load(Relaxed)).entry(ring).is_none()).unwrap_or(first % PLACES);
        self.oldest.store(at as u32 + 1, Relaxed);
        at
    }

    /// Remembers a page without an entry.
    fn remember(&self, ring: u32, place: Place) {
        let at = self.place_of(place.name()).map_or_else(|| self.next_place(ring), |(at, _)| at);
        self.places[at].store(place.0, Relaxed);
    }

    /// The ring has no more than so many granules from now on.
    fn shrink(&self, ring: u32) {
        self.places().filter(|(_, place)| place.entry(ring).is_none()).for_each(|(at, place)| self.drop_entry(at, place));
        self.end.fetch_min(ring, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::Family;
    use crate::family::shares::MEMBERS_MAX;
    use crate::kernel::Host;
    use overspill_store::packing::Algorithm;
    use proptest::prelude::*;

    const BUDGET: u32 = 1024;
    const ME: MemberId = MemberId(1 << 16);
    const OTHER: MemberId = MemberId(1 << 16 | 1);

    fn key(n: u64) -> u128 {
        let mixed = |k: u64| (n * 4 + k).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        u128::from(mixed(1)) << 64 | u128::from(mixed(2))
    }
    /// A page that compresses to a quarter or so. Some are of one word, some do not compress.
    fn page(n: u64) -> PageBytes {
        let random = |i: usize| ((n * 4096 + i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8;
        match n % 50 {
            48 => [n as u8; PAGE_SIZE],
            49 => core::array::from_fn(random),
            _ => core::array::from_fn(|i| if i % 1024 < 200 { random(i) } else { n as u8 }),
        }
    }
    fn store(cache: &Cache, who: MemberId, n: u64, page: &PageBytes) {
        cache.store(key(n), who, page, &mut Packer::new(Algorithm::default()));
    }
    /// A process reads the page, from here or from its device. Returns whether it was here.
    fn read(cache: &Cache, who: MemberId, n: u64) -> bool {
        let mut found = [7; PAGE_SIZE];
        let here = cache.load(key(n), who, &mut found);
        if here {
            assert!(found == page(n), "page {n}");
        } else {
            store(cache, who, n, &page(n));
        }
        here
    }
    fn sized(ways: u32) -> Cache {
        let cache = Cache::new(BUDGET).expect("memory");
        cache.resize(ways * cache.sets);
        cache
    }

    #[test]
    fn what_one_has_read_another_finds() {
        let cache = sized(8);
        assert_eq!((read(&cache, ME, 1), read(&cache, OTHER, 1), read(&cache, OTHER, 2)), (false, true, false));
    }

    /// Wrong bytes stayed where they were, and each read found them again.
    #[test]
    fn who_reads_the_device_after_all_puts_the_entry_right() {
        let cache = sized(8);
        store(&cache, ME, 1, &page(7));
        let mut found = [0; PAGE_SIZE];
        assert!(cache.load(key(1), OTHER, &mut found));
        assert_eq!(found, page(7));
        store(&cache, OTHER, 1, &page(1));
        assert!(read(&cache, ME, 1));
    }

    #[test]
    fn it_holds_three_times_as_many_pages_as_it_has_frames() {
        let cache = sized(8);
        let pages = u64::from(cache.pages()) * 3;
        (0..pages).for_each(|n| _ = read(&cache, ME, n));
        let here = (0..pages).filter(|n| read(&cache, OTHER, *n)).count() as u64;
        assert!(here > pages * 9 / 10, "{here} of {pages}");
    }

    /// An entry that was written beyond the end of what was filled in order was overwritten after the ring had grown, and still
    /// found.
    #[test]
    fn whatever_is_read_and_however_its_size_changes_what_is_found_is_right() {
        proptest!(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 64 }), |(
            steps in prop::collection::vec((0..12u32, 0..800u64), 1..1500),
        )| {
            let cache = sized(2);
            for (what, n) in steps {
                match what {
                    0 if n < 80 => cache.resize(n as u32 % (WAYS_MAX + 1) * cache.sets),
                    what => _ = read(&cache, if what < 6 { ME } else { OTHER }, n),
                }
            }
        });
    }

    #[test]
    fn an_entry_that_was_read_is_spared_once() {
        let cache = Cache::new(SET_PAGES).expect("memory"); // one set
        cache.resize(4);
        let here = |n: u64| cache.load(key(n), ME, &mut [0; PAGE_SIZE]);
        let compressible = |n: u64| n % 50 < 48;
        let fill = |pages: Range<u64>| {
            for n in pages.filter(|n| compressible(*n)) {
                (0..2).for_each(|_| store(&cache, ME, n, &page(n)));
            }
        };
        fill(0..60);
        let kept = (0..60).rev().filter(|n| compressible(*n)).find(|n| here(*n)).expect("some are here");
        fill(60..72);
        assert!(here(kept));
        let (_, set, name) = cache.find(key(kept));
        set.take_used(set.place_of(name).expect("it is here").0); // as if it had not just been read
        fill(72..100);
        assert!(!here(kept));
    }

    /// Any process of the family can write anything there.
    #[test]
    fn whatever_others_write_there_nothing_breaks() {
        let cache = sized(20);
        (0..2000).for_each(|n| _ = read(&cache, ME, n));
        let mut random = 1u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // now and then the values at the border
            if random >> 60 == 0 { u64::MAX } else { random ^ random >> 29 }
        };
        for round in 0..20 {
            for set in cache.table() {
                set.places.iter().chain(&set.used).for_each(|word| word.store(next(), Relaxed));
                [&set.head, &set.end, &set.oldest].into_iter().for_each(|word| word.store(next() as u32, Relaxed));
                (0..FRAME_GRANULES).for_each(|at| cache.words(0, at..at + 1).for_each(|word| word.store(next(), Relaxed)));
            }
            let head = cache.head();
            [&head.reads, &head.common].into_iter().for_each(|word| word.store(next() as u32, Relaxed));
            head.ways.store(if round % 2 == 0 { next() as u32 } else { 20 }, Relaxed);
            for n in 0..2000 {
                cache.load(key(n), OTHER, &mut [0; PAGE_SIZE]);
                store(&cache, ME, n, &page(n));
            }
            if let Some(pages) = cache.judge(next() as u32 % BUDGET, BUDGET, next() % 2 == 0, next() as u32) {
                cache.resize(pages);
            }
        }
    }

    #[test]
    fn once_it_is_full_a_page_comes_in_at_its_second_read() {
        let cache = sized(8);
        (1000..2000).for_each(|n| _ = read(&cache, ME, n));
        assert_eq!((read(&cache, ME, 1), read(&cache, ME, 1), read(&cache, ME, 1)), (false, false, true));
    }

    #[test]
    fn it_grows_for_pages_that_several_read_and_only_for_these() {
        for (readers, grows) in [(&[ME][..], false), (&[ME, OTHER], true)] {
            let cache = sized(0);
            for round in 0..20 {
                readers.iter().for_each(|who| (0..200).for_each(|n| _ = read(&cache, *who, n)));
                if let Some(best) = cache.judge(cache.pages(), BUDGET, true, 0) {
                    cache.resize(best);
                }
                assert!(round < 10 || (cache.pages() > 0) == grows, "{} pages, {readers:?}", cache.pages());
            }
            assert!(cache.pages() <= 8 * cache.sets, "200 pages fit into fewer than {} frames", cache.pages());
            // when nobody else reads them any more, it goes
            for n in 0..20_000 {
                read(&cache, ME, n % 200);
                cache.judge(cache.pages(), BUDGET, true, 0).inspect(|best| cache.resize(*best));
            }
            assert_eq!(cache.pages(), 0);
        }
    }

    /// Three processes that had read much in common slept, and their cache had five eighths of the budget for ever.
    #[test]
    fn what_nobody_reads_goes_when_memory_is_wanted() {
        let cache = sized(8);
        (0..2000).for_each(|n| _ = read(&cache, [ME, OTHER][n as usize % 2], n % 100));
        assert!(cache.judge(cache.pages(), BUDGET, true, 10_000).is_some());
        for (wanted, time) in [(true, 10_000 + IDLE_MS - 1), (false, 10_000 + 2 * IDLE_MS)] {
            assert_eq!(cache.judge(cache.pages(), BUDGET, wanted, time), None);
        }
        // a slow disk gives a cache few reads to judge by, and a cache that does not exist yet counts on
        (0..200).for_each(|n| _ = read(&cache, ME, n % 100));
        assert_eq!(cache.judge(0, BUDGET, true, 10_000 + 2 * IDLE_MS), None);
        assert_eq!(cache.head().reads.swap(0, Relaxed), 200);
        for n in 1..10 {
            cache.judge(cache.pages(), BUDGET, true, 10_000 + n * IDLE_MS).inspect(|best| cache.resize(*best));
        }
        assert_eq!(cache.pages(), 0);
    }

    #[test]
    fn frames_that_it_gives_up_are_empty() {
        let cache = sized(8);
        (0..2000).for_each(|n| _ = read(&cache, ME, n));
        cache.resize(4 * cache.sets);
        assert_eq!(cache.pages(), 4 * cache.sets);
        assert!(cache.words(0, 4 * FRAME_GRANULES..8 * FRAME_GRANULES).all(|word| word.load(Relaxed) == 0));
        cache.resize(8 * cache.sets);
        let mut found = [0; PAGE_SIZE];
        let wrong = (0..2000).filter(|n| cache.load(key(*n), OTHER, &mut found) && found != page(*n)).count();
        assert_eq!(wrong, 0);
    }

    /// Who made the cache smaller was killed before the frames were given up, and they stayed for ever, charged to nobody.
    #[test]
    fn frames_of_one_that_was_killed_are_given_up_later() {
        let cache = sized(8);
        (0..2000).for_each(|n| _ = read(&cache, ME, n));
        cache.head().ways.store(4, Relaxed); // killed here
        cache.resize(4 * cache.sets);
        assert!(cache.words(0, 4 * FRAME_GRANULES..8 * FRAME_GRANULES).all(|word| word.load(Relaxed) == 0));
    }

    #[test]
    fn who_has_left_neither_finds_anything_nor_leaves_anything() {
        let cache = sized(8);
        read(&cache, ME, 1);
        cache.leave().expect("memory");
        assert_eq!((cache.pages(), read(&cache, OTHER, 1)), (0, false));
    }

    /// A process left the cache while its page daemon was about to change the size, and nobody could change it from then on.
    #[test]
    fn nobody_of_those_who_leave_is_inside() {
        let mut host = Host::new().expect("an event");
        let family = host.family.insert(Family::new(BUDGET, 100, MEMBERS_MAX).expect("memory"));
        family.shared.store(true, Relaxed);
        let cache = family.cache.expect("address space");
        // SAFETY: a second mapping of the same memory, as another process has it.
        let other = unsafe { libc::mremap(cache.head.as_ptr().cast(), 0, cache.len, libc::MREMAP_MAYMOVE) };
        assert!(other != libc::MAP_FAILED);
        let other = Cache { head: NonNull::new(other.cast()).expect("a mapping"), frames: 0, ..cache };
        // SAFETY: there is no round.
        unsafe { host.following.rights() }.read().expect("our own rights");
        // SAFETY: one round, and nobody writes to the rights.
        let left = unsafe {
            host.follow(None, || _ = host.family.as_ref().and_then(Family::cache).map(|cache| cache.begin_change(ME, |_| true)))
        };
        assert_eq!(left, Ok(()));
        assert!(other.begin_change(OTHER, |_| true));
    }

    #[test]
    fn who_dies_while_changing_its_size_keeps_nobody_from_it() {
        let cache = sized(0);
        assert!(cache.begin_change(ME, |_| true));
        assert!(!cache.begin_change(OTHER, |_| true));
        assert!(cache.begin_change(OTHER, |id| id != ME));
        cache.end_change();
        assert!(cache.begin_change(ME, |_| true));
    }
}

//! Pages that a family's processes have in common, in memory that they share.
//!
//! After a fork, parent and children have the same pages in the same slots. Each maps a copy of its own, and without this cache
//! each reads it from the device. The cache keeps the bytes of such slots, as they lie on the device, once for all of them.
//!
//! ```text
//!             place 0    1          ways         63           a set: the pages whose keys fall into it
//!           +--------+--------+---+--------+---+--------+
//!     set 0 |  key   |  key   |...|  key   |...|  key   |     the first `ways` places have a frame each; the others remember
//!     set 1 |  key   |  key   |...|  key   |...|  key   |     pages without their bytes, which tells what a larger cache
//!       ... |        |        |   |        |   |        |     would be good for
//! ```
//!
//! **There is no lock.** Several processes may write to one frame at the same time, and any of them may be killed or hostile. But
//! the reader of a page checks its bytes against the tag that it has in its own memory, as it does with bytes from a device. If
//! they are not what was stored, the device is read. So a wrong entry costs time and nothing else.
//!
//! That check is made against mistakes, and a tag does not bind somebody who has the key. So a process that gives up rights leaves
//! the cache ([`Cache::leave`]): those that keep theirs read nothing that it writes.
//!
//! **Its size.** A frame here serves all processes, one in a process's part serves that process alone. But a page that is here and
//! mapped as well takes two frames, and what comes from here costs a fault. So the cache pays for pages that *several* processes
//! read again and again. It gets as much of the budget as such reads are of all reads of single pages ([`Cache::judge`]). A read
//! counts if the cache has the page, or remembers it, and another process was the last to read it.
//!
//! **Which page stays.** When all frames are taken, a page that is not remembered is only remembered; the second read brings it in
//! (as the ghosts of 2Q, Johnson and Shasha 1994). Each set is a clock: a page that was read since the hand came by is spared once.

use super::shares::MemberId;
use crate::area;
use crate::sys::{self, Errno};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use overspill_store::PageBytes;
use overspill_vm::types::{PAGE_SHIFT, PAGE_SIZE};

/// Places of a set. With frames in all of them the cache would be as large as the budget.
const PLACES: u32 = 64;
/// The most of them that have frames.
const WAYS_MAX: u32 = 40;
/// A place's bits that say who was the last to read the page.
const READER: u64 = 0xFF;
/// The size is judged after so many reads, as a part of the budget's pages, and so many at least.
const JUDGED_PART: u32 = 16;
const JUDGED_LEAST: u32 = 256;
/// The tables begin after the head, in bytes.
const TABLES: usize = size_of::<Head>().next_multiple_of(64);
/// Smaller differences from the best size are left alone, in ways.
const SLACK: u32 = 2;

/// Shared by the family. All zero at first.
#[repr(C)]
struct Head {
    /// How many places of each set have frames.
    ways: AtomicU32,
    /// Who changes the size.
    changer: AtomicU32,
    /// Since the size was last judged: reads of single pages, and those of pages that another process was the last to read.
    reads: AtomicU32,
    common: AtomicU32,
}

#[repr(C)]
struct Set {
    places: [AtomicU64; PLACES as usize],
    /// A bit for each place: read since the hand came by.
    used: AtomicU64,
    hand: AtomicU32,
    /// The next place without a frame to be overwritten.
    oldest: AtomicU32,
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
        let sets = (budget / PLACES).max(1);
        let tables = (TABLES + sets as usize * size_of::<Set>()).next_multiple_of(PAGE_SIZE);
        let len = tables + ((sets * WAYS_MAX) as usize) * PAGE_SIZE;
        let at = area::map_shared(len)?;
        let head = NonNull::new(at as *mut Head).ok_or(libc::ENOMEM)?;
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
        let name = (key as u64 | 1 << 8) & !READER;
        let number = (((key >> 64) as u32 as u64 * self.sets as u64) >> 32) as u32;
        (number, &self.table()[number as usize], name)
    }

    /// The words of a frame. => `place < WAYS_MAX`
    fn frame(&self, set: u32, place: u32) -> &[AtomicU64; PAGE_SIZE / 8] {
        let at = self.frames + (((place * self.sets + set) as usize) << PAGE_SHIFT);
        // SAFETY: within the mapping of `new`, as above.
        unsafe { &*(at as *const [AtomicU64; PAGE_SIZE / 8]) }
    }

    /// Counts a read of one page that is of no interest to others.
    pub fn note_read(&self) {
        self.head().reads.fetch_add(1, Relaxed);
    }

    /// A process reads the page of this key. Fills in its bytes if they are here; they may be wrong.
    pub fn load(&self, key: u128, reader: MemberId, page: &mut PageBytes) -> bool {
        self.note_read();
        let (number, set, name) = self.find(key);
        let Some(at) = set.place_of(name) else { return false };
        let (place, reader) = (&set.places[at as usize], u64::from(reader.0) & READER);
        let last = place.load(Relaxed);
        if last != name | reader {
            self.head().common.fetch_add(1, Relaxed);
            let _ = place.compare_exchange(last, name | reader, Relaxed, Relaxed);
        }
        if at >= self.ways() {
            return false;
        }
        set.used.fetch_or(1 << at, Relaxed);
        let (words, _) = page.as_chunks_mut::<8>();
        for (to, from) in words.iter_mut().zip(self.frame(number, at)) {
            *to = from.load(Relaxed).to_ne_bytes();
        }
        true
    }

    /// A process has read the page of this key from its device: keeps the bytes, or remembers the page.
    pub fn store(&self, key: u128, reader: MemberId, page: &PageBytes) {
        let (number, set, name) = self.find(key);
        let (ways, found) = (self.ways(), set.place_of(name));
        let name = name | u64::from(reader.0) & READER;
        let at = match found {
            Some(at) if at < ways => Some(at), // its bytes were wrong
            Some(at) => {
                let place = set.sweep(ways);
                set.places[at as usize].store(if place.is_some() { 0 } else { name }, Relaxed);
                place
            }
            None => {
                let empty = set.place_of(0).filter(|at| *at < ways);
                if empty.is_none() {
                    set.remember(ways, name);
                }
                empty
            }
        };
        let Some(at) = at else { return };
        let old = set.places[at as usize].swap(0, Relaxed);
        if old & !READER != name & !READER && old != 0 {
            set.remember(ways, old);
        }
        for (to, from) in self.frame(number, at).iter().zip(page.as_chunks::<8>().0) {
            to.store(u64::from_ne_bytes(*from), Relaxed);
        }
        set.places[at as usize].store(name, Release);
        if self.ways() <= at {
            self.discard(at * self.sets + number, 1); // it became smaller meanwhile
        }
    }

    // ---- its size ----

    fn ways(&self) -> u32 {
        self.head().ways.load(Relaxed).min(WAYS_MAX)
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

    /// The best size by what was read lately, of at most `most` pages. `None`: the present one, `now`, as far as can be told.
    pub fn judge(&self, now: u32, most: u32) -> Option<u32> {
        let head = self.head();
        let reads = head.reads.load(Relaxed);
        if reads < (self.sets * PLACES / JUDGED_PART).max(JUDGED_LEAST) {
            return None;
        }
        head.reads.store(0, Relaxed);
        let common = head.common.swap(0, Relaxed);
        // of three processes that read the same pages, each finds another's trace at two reads of three
        let share = (u64::from(common) * 5 / 2).min(reads.into());
        let best = ((u64::from(WAYS_MAX) * share / u64::from(reads)) as u32).min(most / self.sets);
        let ways = now / self.sets;
        let ways = match best.abs_diff(ways) {
            difference if best >= ways => ways + if difference > SLACK { difference.div_ceil(2) } else { 0 },
            difference => ways - if difference > SLACK || best == 0 { difference.div_ceil(2) } else { 0 },
        };
        Some(ways * self.sets)
    }

    /// Makes it as large as fits into so many pages. => [`Cache::begin_change`]
    pub fn resize(&self, pages: u32) {
        let (from, to) = (self.ways(), (pages / self.sets).min(WAYS_MAX));
        if to > from {
            // what had no frame until now is not there
            self.table().iter().flat_map(|set| &set.places[from as usize..to as usize]).for_each(|place| place.store(0, Relaxed));
        }
        self.head().ways.store(to, Relaxed);
        if to < from {
            self.discard(to * self.sets, (from - to) * self.sets);
        }
    }

    fn discard(&self, first: u32, count: u32) {
        let at = self.frames + ((first as usize) << PAGE_SHIFT);
        // SAFETY: frames of the cache, whose content nobody relies on.
        let _ = unsafe { sys::madvise(at, (count as usize) << PAGE_SHIFT, libc::MADV_REMOVE) };
    }
}

impl Set {
    fn place_of(&self, name: u64) -> Option<u32> {
        self.places.iter().position(|place| place.load(Relaxed) & !READER == name).map(|at| at as u32)
    }

    /// The place with a frame whose page is to go next. `None` if none has a frame.
    fn sweep(&self, ways: u32) -> Option<u32> {
        let first = self.hand.fetch_add(1, Relaxed).checked_rem(ways)?;
        let mut at = first;
        while self.used.fetch_and(!(1 << at), Relaxed) >> at & 1 == 1 {
            at = (at + 1) % ways;
            if at == first {
                break;
            }
        }
        self.hand.store(at + 1, Relaxed);
        Some(at)
    }

    /// Remembers a page without its bytes.
    fn remember(&self, ways: u32, name: u64) {
        let at = ways + self.oldest.fetch_add(1, Relaxed) % (PLACES - ways);
        self.places[at as usize].store(name, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: u32 = 1024;
    const ME: MemberId = MemberId(1 << 16);
    const OTHER: MemberId = MemberId(1 << 16 | 1);

    fn key(n: u64) -> u128 {
        let mixed = |k: u64| (n * 4 + k).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        u128::from(mixed(1)) << 64 | u128::from(mixed(2))
    }
    fn page(n: u64) -> PageBytes {
        [n as u8; PAGE_SIZE]
    }
    /// A process reads the page, from here or from its device. Returns whether it was here.
    fn read(cache: &Cache, who: MemberId, n: u64) -> bool {
        let mut found = page(0);
        let here = cache.load(key(n), who, &mut found);
        if here {
            assert_eq!(found, page(n));
        } else {
            cache.store(key(n), who, &page(n));
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
        cache.store(key(1), ME, &page(7));
        let mut found = page(0);
        assert!(cache.load(key(1), OTHER, &mut found));
        assert_eq!(found, page(7));
        cache.store(key(1), OTHER, &page(1));
        assert!(read(&cache, ME, 1));
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
                if let Some(best) = cache.judge(cache.pages(), BUDGET) {
                    cache.resize(best);
                }
                assert!(round < 10 || (cache.pages() > 0) == grows, "{} pages, {readers:?}", cache.pages());
            }
            assert!(cache.pages() <= WAYS_MAX * cache.sets);
            // when nobody else reads them any more, it goes
            for n in 0..20_000 {
                read(&cache, ME, n % 200);
                cache.judge(cache.pages(), BUDGET).inspect(|best| cache.resize(*best));
            }
            assert_eq!(cache.pages(), 0);
        }
    }

    #[test]
    fn frames_that_it_gives_up_are_empty() {
        let cache = sized(8);
        (0..2000).for_each(|n| _ = read(&cache, ME, n));
        cache.resize(4 * cache.sets);
        assert_eq!(cache.pages(), 4 * cache.sets);
        let words = cache.frame(0, 7);
        assert!(words.iter().all(|word| word.load(Relaxed) == 0));
        cache.resize(8 * cache.sets);
        let mut found = page(0);
        let wrong = (0..2000).filter(|n| cache.load(key(*n), OTHER, &mut found) && found != page(*n)).count();
        assert_eq!(wrong, 0);
    }

    #[test]
    fn who_has_left_neither_finds_anything_nor_leaves_anything() {
        let cache = sized(8);
        read(&cache, ME, 1);
        cache.leave().expect("memory");
        assert_eq!((cache.pages(), read(&cache, OTHER, 1)), (0, false));
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

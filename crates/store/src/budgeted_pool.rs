//! A pool, and its part of the memory budget of its process.
//!
//! The arena's resident pages are charged to the budget. So is a *credit*: pages that the pool may make resident next. Without it
//! the pool could grow only when frames are free, and it is needed just when none are. As frames come free, the credit is filled up
//! before anything else gets them ([`BudgetedPool::balance`]). The pool takes at most three quarters of the budget, whatever its
//! size.
//!
//! | resident, of the most that it may take, or slots in use | what happens |
//! | --- | --- |
//! | from 3/4 on | a page that comes in gives up its slot |
//! | from 15/16 on, down to 7/8 | the coldest pages go on to the next device |
//! | resident above 31/32 | a pool that was full still counts as full |
//!
//! The slots run out first if pages pack to less than an eighth, or are one word repeated.
//!
//! This module only decides. The machine charges, tells the pager, and writes.

use crate::packing::Packed;
use crate::pool::{Pool, PoolCounters, packed_size};
use overspill_vm::Compressibility;
use overspill_vm::types::PAGE_SIZE;

/// Slots per page of the pool's size: a better ratio of compression does not make more pages fit.
pub const SLOTS_PER_PAGE: u64 = 8;
/// Free blocks stay resident up to this many pages, so that they can be used again without a page fault.
const SPARE_PAGES: u64 = 64;

/// The pool and its part of the budget.
#[derive(Clone)]
pub struct BudgetedPool<A = Vec<u8>> {
    /// The pool. Its credit and limit are for [`BudgetedPool::balance`] to set.
    pub pool: Pool<A>,
    size_pages: u64,
    budget: u32,
    /// Pages are being written back, until enough room is made.
    draining: bool,
    sample: Sample,
}

/// How pages have compressed lately.
#[derive(Clone, Copy, Default)]
struct Sample {
    pages: u32,
    refused: u32,
    /// Of the others, in the pool.
    bytes: u32,
}

/// At so many pages, the counts of a sample are halved.
const SAMPLE_PAGES: u32 = 256;

/// What the machine must do after [`BudgetedPool::balance`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Balance {
    /// Pages to charge to the budget.
    pub charge: u32,
    /// Pages to take off the charge.
    pub uncharge: u32,
    /// The device is not full, or not any more.
    pub has_room: bool,
    /// A page that comes into a frame should give up its copy here.
    pub drops_copies: bool,
    /// An estimate of how many more pages there is room for, in slots.
    pub room: u32,
}

impl<A: AsRef<[u8]> + AsMut<[u8]>> BudgetedPool<A> {
    /// `pool`, over an arena of [`arena_bytes`](crate::pool::arena_bytes), which may take up to `size_pages` pages of a budget of
    /// `budget` pages.
    pub fn new(pool: Pool<A>, size_pages: u64, budget: u32) -> Self {
        BudgetedPool { pool, size_pages, budget, draining: false, sample: Sample::default() }
    }

    /// Sets the budget of the process, in pages.
    pub fn set_budget(&mut self, pages: u32) {
        self.budget = pages;
    }

    /// Sets the most pages that it may take, whatever the budget. The arena has room for them.
    pub fn set_size(&mut self, pages: u64) {
        self.size_pages = pages;
    }

    /// The most pages that it may take, whatever the budget.
    pub fn size_pages(&self) -> u64 {
        self.size_pages
    }

    /// A page was packed, be it to be stored or to see how it compresses.
    pub fn note_packed(&mut self, packed: Packed<'_>) {
        let sample = &mut self.sample;
        sample.pages += 1;
        match packed {
            Packed::Incompressible => sample.refused += 1,
            Packed::Same(_) => {}
            Packed::Bytes(bytes) => sample.bytes += packed_size(bytes.len()) as u32,
        }
        if sample.pages >= SAMPLE_PAGES {
            *sample = Sample { pages: sample.pages / 2, refused: sample.refused / 2, bytes: sample.bytes / 2 };
        }
    }

    /// How pages have compressed lately.
    pub fn compressibility(&self) -> Compressibility {
        let Sample { pages, refused, bytes } = self.sample;
        let unpacked = u64::from(pages - refused) * PAGE_SIZE as u64;
        Compressibility {
            ratio_permille: (unpacked * 1000 / u64::from(bytes).max(1)).min(1000 * SLOTS_PER_PAGE) as u32,
            refused_permille: (refused * 1000).checked_div(pages).unwrap_or(1000),
            overhead: reserve_pages(self.budget) as u32,
        }
    }

    /// Takes the frames that the next pages may need from the `available` free frames, or gives back frames that they will not
    /// need. Then checks whether there is room. To be called when frames have come free, before anything else gets them.
    pub fn balance(&mut self, available: u32) -> Balance {
        let most = self.size_pages.min(self.budget as u64 * 3 / 4);
        self.pool.set_limit(most);
        let counters = self.pool.counters();
        let want = reserve_pages(self.budget).min(most.saturating_sub(counters.resident_pages) + counters.spare_pages);
        let credit = self.pool.credit();
        let more = want.saturating_sub(credit).min(available as u64);
        self.pool.add_credit(more);
        let less = self.pool.take_credit(credit.saturating_sub(want));
        let in_use = in_use(&counters);
        // pages on other devices may be there because they do not compress: then there is no room for them here
        let each = match counters.incompressible * 16 > counters.taken {
            true => 0,
            false => counters.stored_pages.max(1).checked_div(in_use).unwrap_or(2).clamp(1, SLOTS_PER_PAGE),
        };
        Balance {
            charge: more as u32,
            uncharge: less as u32,
            has_room: in_use + most / 32 < most,
            drops_copies: self.is_short_of_room(4, &counters),
            room: (most.saturating_sub(in_use) * each).min(self.pool.slots() as u64) as u32,
        }
    }

    /// Gives the pool up. Returns how many pages are charged for it.
    pub fn give_up(&mut self) -> u32 {
        let credit = self.pool.take_credit(u64::MAX);
        self.pool.set_limit(0);
        (credit + self.pool.counters().resident_pages) as u32
    }

    /// Whether free blocks should go back to the kernel: there are many, or nothing else can become resident because of them.
    pub fn wants_trim(&self) -> bool {
        self.pool.counters().spare_pages > SPARE_PAGES.min(self.pool.limit() / 32)
    }

    /// Whether less than so many sixteenths of its memory or of its slots are left.
    fn is_short_of_room(&self, sixteenths: u64, counters: &PoolCounters) -> bool {
        is_short(sixteenths, in_use(counters), self.pool.limit()) || self.is_short_of_slots(sixteenths, counters)
    }

    fn is_short_of_slots(&self, sixteenths: u64, counters: &PoolCounters) -> bool {
        is_short(sixteenths, counters.stored_pages, self.pool.slots().into())
    }

    /// Whether pages should go on to the next device.
    pub fn wants_write_back(&mut self) -> bool {
        let counters = self.pool.counters();
        self.draining = self.is_short_of_room(1, &counters) || (self.draining && self.is_short_of_room(2, &counters));
        self.draining && (counters.packed_pages() > 0 || self.is_short_of_slots(2, &counters))
    }

    /// Calls `each` with the slots of the coldest pages that take room, up to `most`; of any pages if slots are short. They count
    /// as the newest from now on, so that they are not found again while they are being written.
    pub fn coldest(&mut self, most: usize, mut each: impl FnMut(u32)) {
        let any = self.is_short_of_slots(2, &self.pool.counters());
        let mut found = 0;
        for _ in 0..most * 4 {
            let Some(at) = self.pool.coldest() else { break };
            self.pool.touch(at);
            if any || !self.pool.is_same(at) {
                each(at);
                found += 1;
                if found == most {
                    break;
                }
            }
        }
    }
}

fn in_use(counters: &PoolCounters) -> u64 {
    counters.resident_pages - counters.spare_pages
}

/// Whether less than so many sixteenths of `most` are left.
fn is_short(sixteenths: u64, used: u64, most: u64) -> bool {
    used > most - most * sixteenths / 16
}

/// The pages that the pool may make resident before frames come free again, for a budget of `budget` pages. The worst batch of the
/// page daemon takes 102; each class of sizes may begin a block.
fn reserve_pages(budget: u32) -> u64 {
    (budget as u64 / 64).clamp(48, 160)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packing::Packed;
    use crate::pool::{PACKED_BYTES_MAX, Refused, arena_bytes};

    const SIZE_PAGES: u64 = 256;

    fn small() -> BudgetedPool {
        let arena = vec![0; arena_bytes(SIZE_PAGES as usize * 4096)];
        BudgetedPool::new(Pool::over(2048, arena), SIZE_PAGES, 4096)
    }

    /// A pool of a megabyte had no block left for a class that had none, although a third of its memory was free. It refused pages,
    /// and no page went on to the next device, because that begins at fifteen sixteenths. (Found by the simulator, which noticed a
    /// device that nothing was ever written to.)
    #[test]
    fn a_small_pool_is_full_by_its_limit() {
        let mut pool = small();
        let bytes = [7; PACKED_BYTES_MAX];
        let full = (0..2048).find(|at| {
            pool.balance(1000);
            let len = 1 + *at as usize * 1201 % PACKED_BYTES_MAX;
            pool.pool.store(*at, Packed::Bytes(&bytes[..len])) == Err(Refused::Full)
        });
        assert!(full.is_some() && in_use(&pool.pool.counters()) > SIZE_PAGES * 15 / 16, "{full:?} {:?}", pool.pool.counters());
        assert!(pool.wants_write_back() && !pool.balance(1000).has_room);
        let mut coldest = Vec::new();
        pool.coldest(3, |at| coldest.push(at));
        assert_eq!(coldest, [0, 1, 2]);
    }

    /// Pages that are one word, or pack to little, took all slots of a pool whose memory was not full. They stayed for ever, and
    /// all others went past it.
    #[test]
    fn a_pool_without_slots_is_full() {
        for bytes in [None, Some([7; 100])] {
            let mut pool = small();
            let packed = bytes.as_ref().map_or(Packed::Same(1), |bytes| Packed::Bytes(bytes));
            let store = |pool: &mut BudgetedPool, at| {
                pool.balance(1000);
                pool.pool.store(at, packed).expect("room");
            };
            (0..1536).for_each(|at| store(&mut pool, at));
            assert!(!pool.wants_write_back() && !pool.balance(1000).drops_copies);
            (1536..1921).for_each(|at| store(&mut pool, at));
            assert!(in_use(&pool.pool.counters()) < SIZE_PAGES / 4 && pool.balance(1000).drops_copies);
            while pool.wants_write_back() {
                let mut coldest = Vec::new();
                pool.coldest(8, |at| coldest.push(at));
                assert_eq!(coldest.len(), 8);
                coldest.iter().for_each(|at| assert!(pool.pool.remove(*at)));
            }
            assert!((1784..=1792).contains(&pool.pool.counters().stored_pages));
        }
    }

    /// ... and once pages had gone, their free blocks, up to 64 pages, kept other blocks from becoming resident.
    #[test]
    fn free_blocks_of_a_small_pool_go_back() {
        let mut pool = small();
        let bytes = [7; PACKED_BYTES_MAX];
        for at in 0..60 {
            pool.balance(1000);
            pool.pool.store(at, Packed::Bytes(&bytes)).expect("room");
        }
        (0..20).for_each(|at| _ = pool.pool.remove(at));
        assert!(pool.wants_trim() && pool.pool.counters().spare_pages < SPARE_PAGES);
        while pool.wants_trim()
            && let Some((block, _)) = pool.pool.trim_begin()
        {
            pool.pool.trim_end(block);
        }
        assert!(pool.pool.counters().spare_pages <= SIZE_PAGES / 32);
    }

    /// At any time the charge is the resident pages plus the credit.
    #[test]
    fn what_is_charged_is_what_it_takes() {
        let mut pool = small();
        let (mut charged, bytes) = (0u64, [7; PACKED_BYTES_MAX]);
        for round in 0..400u32 {
            let balance = pool.balance(round * 7 % 30);
            charged = charged + u64::from(balance.charge) - u64::from(balance.uncharge);
            assert_eq!(charged, pool.pool.credit() + pool.pool.counters().resident_pages);
            match round % 3 {
                0 => _ = pool.pool.remove(round * 31 % 200),
                _ => _ = pool.pool.store(round * 17 % 200, Packed::Bytes(&bytes[..1 + round as usize * 97 % PACKED_BYTES_MAX])),
            }
            if round == 300 {
                pool.set_budget(100);
            }
        }
        assert_eq!(u64::from(pool.give_up()), charged);
    }
}

//! A pool, and what it may take of the memory budget of the process whose memory it is.
//!
//! What is resident of the arena is charged, and alongside it a *credit* that the next pages may make resident: without it the pool
//! could grow only when frames are free, and it is needed exactly when none are. The credit is filled up whenever frames come free,
//! before anybody else gets them ([`BudgetedPool::balance`]). The pool takes three quarters of the budget at the most, whatever its
//! size.
//!
//! | of the most that it may take | |
//! | --- | --- |
//! | from 3/4 on | a page that comes in leaves its slot |
//! | from 15/16 on, down to 7/8 | the coldest pages go on to the next device |
//! | above 31/32 | once full it stays so |
//!
//! It decides and does nothing: the machine charges, tells the pager, and writes.

use crate::pool::{Pool, PoolCounters};

/// Slots per page of the pool's size: pages that compress better than that do not gain more.
pub const SLOTS_PER_PAGE: u64 = 8;
/// Free blocks stay resident while they have no more pages than that: the next ones come without a page fault.
const SPARE_PAGES: u64 = 64;

/// The pool and its share.
#[derive(Clone)]
pub struct BudgetedPool<A = Vec<u8>> {
    /// The pool. Its credit and limit are for [`BudgetedPool::balance`] to set.
    pub pool: Pool<A>,
    size_pages: u64,
    budget: u32,
    /// Pages are being written back, until enough room is made.
    draining: bool,
}

/// What is to be done after [`BudgetedPool::balance`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Balance {
    /// To be charged to the budget, in pages.
    pub charge: u32,
    /// To be taken off what is charged, in pages.
    pub uncharge: u32,
    /// The device is not full (any more).
    pub has_room: bool,
    /// A copy of a page that is in a frame too is worth less than the memory that it takes.
    pub drops_copies: bool,
    /// There is thought to be room for so many pages more, in slots.
    pub room: u32,
}

impl<A: AsRef<[u8]> + AsMut<[u8]>> BudgetedPool<A> {
    /// `pool`, over an arena of [`arena_bytes`](crate::pool::arena_bytes), may take up to `size_pages` pages, of a budget of
    /// `budget` pages.
    pub fn new(pool: Pool<A>, size_pages: u64, budget: u32) -> Self {
        BudgetedPool { pool, size_pages, budget, draining: false }
    }

    /// The process's share of the budget is `pages` from now on.
    pub fn set_budget(&mut self, pages: u32) {
        self.budget = pages;
    }

    /// The most it may take, in pages, whatever the budget.
    pub fn size_pages(&self) -> u64 {
        self.size_pages
    }

    /// Takes of the `available` free frames what the next pages may need, or gives back what they will not, and looks whether there
    /// is room (again). To be called when frames have come free, before anybody else gets them.
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
        // what is on other devices may be there because it does not compress: then there is no room for it here
        let each = match counters.incompressible * 16 > counters.taken {
            true => 0,
            false => counters.stored_pages.max(1).checked_div(in_use).unwrap_or(2).clamp(1, SLOTS_PER_PAGE),
        };
        Balance {
            charge: more as u32,
            uncharge: less as u32,
            has_room: in_use + most / 32 < most,
            drops_copies: in_use > most - most / 4,
            room: (most.saturating_sub(in_use) * each).min(self.pool.slots() as u64) as u32,
        }
    }

    /// It is given up: how many pages are charged for it.
    pub fn give_up(&mut self) -> u32 {
        let credit = self.pool.take_credit(u64::MAX);
        self.pool.set_limit(0);
        (credit + self.pool.counters().resident_pages) as u32
    }

    /// Whether free blocks should go back to the kernel: there are many, or nothing else may become resident for their sake.
    pub fn wants_trim(&self) -> bool {
        self.pool.counters().spare_pages > SPARE_PAGES.min(self.pool.limit() / 32)
    }

    /// Whether pages should go on to the next device.
    pub fn wants_write_back(&mut self) -> bool {
        let (counters, most) = (self.pool.counters(), self.pool.limit());
        let in_use = in_use(&counters);
        self.draining = in_use > most - most / 16 || (self.draining && in_use > most - most / 8);
        self.draining && counters.stored_pages > counters.same_filled_pages
    }

    /// The slots of the coldest pages that take room, up to `most`. They count as the newest from now on, so that they are not
    /// found again while they are being written.
    pub fn coldest(&mut self, most: usize, mut each: impl FnMut(u32)) {
        let mut found = 0;
        for _ in 0..most * 4 {
            let Some(at) = self.pool.coldest() else { break };
            self.pool.touch(at);
            if !self.pool.is_same(at) {
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

/// What the pool may make resident before frames have come free again, in pages, for a budget of `budget`. A batch of the page
/// daemon's at its worst takes 102; each class of sizes may begin a block.
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

    /// A pool of a megabyte had no block left for a class that had none, with a third of its memory free: it refused pages, and
    /// nothing went on to the next device, since that begins at fifteen sixteenths. The simulator found it, by its device that
    /// nothing was ever written to.
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

    /// ... and once pages had gone, their free blocks kept others from becoming resident, as long as they were fewer than 64 pages.
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

    /// What is charged is what is resident and the credit, at any time.
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

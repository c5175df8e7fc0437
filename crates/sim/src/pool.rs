//! Compressed memory as a device of a simulated process: the real pool with the real share of the budget, and the pager that tells
//! it of its slots.
//!
//! A page's content is one word, so how small it gets is decided by the word: one in eight is kept as a word, one in eight does not
//! compress, the others take from 8 to all of the bytes that the pool takes, the first of which are the word.
//!
//! The pool is part of the process ([`crate::store::Watched`] owns it), so a fork copies it.

use crate::rng::mix;
use overspill_store::budgeted_pool::{BudgetedPool, SLOTS_PER_PAGE};
use overspill_store::packing::Packed;
use overspill_store::pool::{PACKED_BYTES_MAX, Pool, Refused, Stored, arena_bytes};
use overspill_vm::types::{DeviceId, PAGE_SIZE};
use std::fmt;

/// The device.
#[derive(Clone)]
pub struct SimPool {
    /// Its number in the pager.
    pub device: DeviceId,
    /// Its number among the files.
    pub file: u32,
    /// The pool itself.
    pub kept: BudgetedPool,
}

impl fmt::Debug for SimPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimPool({:?}, file {}, {:?})", self.device, self.file, self.kept.pool.counters())
    }
}

impl SimPool {
    /// Of `size_pages` pages of memory, of a budget of `budget`; with at most `slots_max` slots.
    pub fn new(device: DeviceId, file: u32, size_pages: u32, slots: u32, budget: u32) -> Self {
        let arena = vec![0; arena_bytes(size_pages as usize * PAGE_SIZE)];
        SimPool { device, file, kept: BudgetedPool::new(Pool::over(slots, arena), size_pages.into(), budget) }
    }

    /// How many slots a pool of `size_pages` pages has.
    pub fn slots(size_pages: u32, slots_max: u32) -> u32 {
        (size_pages * SLOTS_PER_PAGE as u32).min(slots_max)
    }

    /// Packs and stores.
    pub fn store(&mut self, at: u32, value: u64) -> Result<(), Refused> {
        let mut bytes = [0; PACKED_BYTES_MAX];
        let packed = match mix(value ^ 0x9001) {
            r if r % 8 == 0 => Packed::Same(value),
            r if r % 8 == 1 => Packed::Incompressible,
            r => {
                bytes[..8].copy_from_slice(&value.to_ne_bytes());
                Packed::Bytes(&bytes[..8 + (r >> 8) as usize % (PACKED_BYTES_MAX - 7)])
            }
        };
        self.kept.pool.store(at, packed)
    }

    /// What slot `at` holds.
    pub fn peek(&self, at: u32) -> Option<u64> {
        let mut bytes = [0; PACKED_BYTES_MAX];
        match self.kept.pool.copy_out(at, &mut bytes)? {
            Stored::Same(word) => Some(word),
            Stored::Bytes(_) => Some(u64::from_ne_bytes(bytes[..8].try_into().expect("eight bytes"))),
        }
    }

    /// Pages charged for it.
    pub fn charged(&self) -> u64 {
        self.kept.pool.credit() + self.kept.pool.counters().resident_pages
    }
}

//! Arenas: blocks keep their content over paging, and collections several times the budget work.

mod common;

use common::*;
use hashbrown::{DefaultHashBuilder, HashMap};
use overspill::{Arena, Error};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::thread;

/// A block whose bytes follow from its tag.
struct Block {
    at: NonNull<u8>,
    len: usize,
    tag: u64,
}

// SAFETY: the block belongs to whoever has this.
unsafe impl Send for Block {}

impl Block {
    fn new(arena: &Arena, len: usize, tag: u64, zeroed: bool) -> Option<Block> {
        let got = if zeroed { arena.alloc_zeroed(len, 16) } else { arena.alloc(len, 16) };
        let at = match got {
            Ok(block) => block.cast(),
            Err(Error::ArenaFull { .. }) => return None,
            Err(e) => panic!("{e}"),
        };
        let block = Block { at, len, tag };
        if zeroed {
            assert!((0..len).step_by(64).all(|i| block.byte(i) == 0), "{len} bytes are not zero");
        }
        block.fill(0);
        Some(block)
    }
    fn byte(&self, i: usize) -> u8 {
        assert!(i < self.len);
        // SAFETY: a byte of the block.
        unsafe { self.at.add(i).read() }
    }
    fn expected(&self, i: usize) -> u8 {
        (self.tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8 ^ (i / 64) as u8
    }
    /// Writes every 64th byte from `from` on, which must be one of them.
    fn fill(&self, from: usize) {
        // SAFETY: bytes of the block.
        (from..self.len).step_by(64).for_each(|i| unsafe { self.at.add(i).write(self.expected(i)) });
    }
    fn check(&self, len: usize) {
        (0..len).step_by(64).for_each(|i| assert_eq!(self.byte(i), self.expected(i), "byte {i} of {}", self.len));
    }
    fn resize(&mut self, arena: &Arena, len: usize) {
        let (kept, arena_is_full) = (self.len.min(len), |e: &Error| matches!(e, Error::ArenaFull { .. }));
        // SAFETY: the block is ours, and nobody uses it.
        match unsafe { arena.realloc(self.at, len, 16) } {
            Ok(block) => (self.at, self.len) = (block.cast(), len),
            Err(e) => return assert!(arena_is_full(&e), "{e}"),
        }
        self.check(kept);
        self.fill(kept.next_multiple_of(64));
    }
    fn free(self, arena: &Arena) {
        self.check(self.len);
        // SAFETY: the block is ours, and nobody uses it any more.
        unsafe { arena.free(self.at) }.expect("a block");
    }
}

/// Threads allocate, resize and free blocks of all sizes, 32 MiB in 8, also each other's. Each block keeps what was written to it.
#[test]
fn blocks_keep_their_content() {
    for pager in both() {
        let arena = pager.arena(32 * MIB).expect("32 MiB");
        let shared = Mutex::new(Vec::new());
        thread::scope(|s| {
            for seed in 1..=3 {
                let (arena, shared) = (arena.clone(), &shared);
                s.spawn(move || {
                    let mut rng = Rng(seed);
                    let mut blocks: Vec<Block> = Vec::new();
                    for step in 0..4_000 {
                        let len = 1 + match rng.below(8) {
                            0 => rng.below(600_000),
                            1 | 2 => rng.below(30_000),
                            _ => rng.below(2_000),
                        };
                        match rng.below(6) {
                            0 if !blocks.is_empty() => blocks.swap_remove(rng.below(blocks.len())).free(&arena),
                            1 if !blocks.is_empty() => {
                                let i = rng.below(blocks.len());
                                blocks[i].resize(&arena, len);
                            }
                            2 if !blocks.is_empty() => {
                                // another thread's block for one of ours
                                let ours = blocks.swap_remove(rng.below(blocks.len()));
                                let mut shared = shared.lock().expect("no panic");
                                shared.push(ours);
                                let i = rng.below(shared.len());
                                blocks.push(shared.swap_remove(i));
                            }
                            _ => match Block::new(&arena, len, seed << 32 | step, step % 3 == 0) {
                                Some(block) => blocks.push(block),
                                None => blocks.drain(..blocks.len() / 2).for_each(|block| block.free(&arena)), // full
                            },
                        }
                    }
                    blocks.into_iter().for_each(|block| block.free(&arena));
                });
            }
        });
        shared.into_inner().expect("no panic").into_iter().for_each(|block: Block| block.free(&arena));
        arena.check();
        assert_eq!(arena.used(), 0);
        assert!(pager.counters().hard_faults.get() > 100, "{pager:?}: nothing was paged");
        // the whole arena is free again, and reads as zero
        Block::new(&arena, 32 * MIB, 1, true).expect("all of it").free(&arena);
    }
}

/// A hash map several times its budget. It grows by moving to tables of twice the size, and the old ones' memory is used again.
#[test]
fn a_hash_map_several_times_its_budget() {
    const KEYS: u64 = 240_000; // more than seven eighths of 2^18, so that the table has 2^19 places: 34 MB
    for pager in both() {
        let arena = pager.arena(128 * MIB).expect("128 MiB");
        let mut map = HashMap::with_hasher_in(DefaultHashBuilder::default(), arena.clone());
        (0..KEYS).for_each(|key| assert!(map.insert(key, [key * 3; 7]).is_none()));
        assert!(arena.used() > 4 * BUDGET, "{arena:?}");
        let mut rng = Rng(7);
        for _ in 0..5_000 {
            let key = rng.below(2 * KEYS as usize) as u64;
            assert_eq!(map.get(&key).copied(), (key < KEYS).then_some([key * 3; 7]));
        }
        map.retain(|key, _| key % 2 == 0);
        assert_eq!(
            (map.len() as u64, map.values().map(|value| value[6]).sum::<u64>()),
            (KEYS / 2, (0..KEYS).step_by(2).sum::<u64>() * 3)
        );
        assert!(pager.counters().hard_faults.get() > 1000, "{pager:?}");
        assert_budget(&pager, 1);
        drop(map);
        assert_eq!(arena.used(), 0);
    }
}

/// A block that fills the arena could not become much smaller: there was no room for the copy.
#[test]
fn a_block_that_fills_its_arena_becomes_smaller() {
    for pager in both() {
        let arena = pager.arena(4 * MIB).expect("4 MiB");
        let block = arena.alloc(3 * MIB + MIB / 2, 8).expect("most of it").cast::<u8>();
        // SAFETY: nobody else uses the block, and both places lie in it.
        unsafe {
            block.write(7);
            let smaller = arena.realloc(block, MIB, 8).expect("in place").cast::<u8>();
            assert_eq!((smaller, smaller.read()), (block, 7));
            assert!(arena.used() < 2 * MIB as u64);
            arena.free(smaller).expect("a block");
        }
    }
}

/// What C code and other users of raw blocks may do wrong, as far as it can be seen.
#[test]
fn what_is_no_block_is_refused() {
    for pager in both() {
        let arena = pager.arena(MIB).expect("1 MiB");
        let block = arena.alloc(100, 8).expect("100 bytes").cast::<u8>();
        let large = arena.alloc(100_000, 8).expect("100,000 bytes").cast::<u8>();
        let refused = |at: NonNull<u8>| {
            // SAFETY: no block begins there.
            let error = unsafe { arena.free(at) }.expect_err("it is no block");
            assert!(matches!(error, Error::NotABlock { .. }), "{error}");
        };
        // SAFETY: within the block.
        refused(unsafe { block.add(8) });
        // SAFETY: within the block.
        refused(unsafe { large.add(8192) });
        refused(NonNull::dangling());
        for at in [block, large] {
            // SAFETY: nobody uses it.
            unsafe { arena.free(at) }.expect("a block");
            refused(at);
        }
        let full = arena.alloc(2 * MIB, 8).expect_err("larger than the arena");
        assert!(full.to_string().contains("make a larger arena"), "{full}");
        assert!(matches!(pager.arena(usize::MAX / 2), Err(Error::RegionSize { .. })));
    }
}

/// A forked child has no arena: no block can be had, freeing one does nothing, and the parent's blocks stay.
#[test]
fn a_child_has_no_arena() {
    for pager in both() {
        let arena = pager.arena(MIB).expect("1 MiB");
        let block = Block::new(&arena, 10_000, 1, false).expect("10,000 bytes");
        // SAFETY: the child asks, which neither locks nor allocates, and ends.
        let child = unsafe { fork() };
        if child == 0 {
            // SAFETY: the child does not use the block.
            let freed = unsafe { arena.free(block.at) };
            let answers = [freed, arena.alloc(8, 8).map(drop), arena.block_size(block.at).map(drop)];
            let right = answers.iter().all(|answer| matches!(answer, Err(Error::Forked))) && arena.used() == 0;
            // SAFETY: ends the child.
            unsafe { libc::_exit(if right { 0 } else { 1 }) };
        }
        assert_eq!(status_of(child), 0);
        block.free(&arena);
    }
}

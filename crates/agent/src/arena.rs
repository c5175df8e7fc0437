//! The agent's allocator. It uses mappings of its own, and never the program's heap, which is paged.
//!
//! Large blocks are mappings of their own, zeroed and untouched, so that tables cost memory only as they are used. Small blocks are
//! cut from chunks. The agent allocates hardly anything after its set-up, so chunks are never given back. But an operator may
//! change the policy every second, or add and remove devices, for months. So a freed block is used again, by one whose size is
//! rounded up to the same power of two. If there is no memory, the agent says so and ends the program.

use core::alloc::{GlobalAlloc, Layout};
use overspill_linux::area;
use overspill_linux::lock::{Mutex, Rank};
use overspill_linux::sys;
use overspill_vm::types::PAGE_SIZE;

const CHUNK: usize = 256 << 10;
/// The sizes of small blocks. The least one has room for the address of the next free block.
const LEAST: usize = 16;
const MOST: usize = 32 << 10;
const CLASSES: usize = (MOST / LEAST).ilog2() as usize + 1;

struct Small {
    /// What is left of the newest chunk: its start and end.
    at: usize,
    end: usize,
    /// The newest free block of each class, or 0. Its first word holds the address of the next one.
    free: [usize; CLASSES],
}

/// See the module.
pub struct Arena {
    small: Mutex<Small>,
}

impl Arena {
    /// Empty.
    pub const fn new() -> Self {
        Arena { small: Mutex::ranked(Rank::Heap, Small { at: 0, end: 0, free: [0; CLASSES] }) }
    }

    /// Locks the arena until the returned guard is dropped, for a fork.
    pub fn hold(&self) -> impl Drop + '_ {
        let small = self.small.lock();
        Held { _area: area::hold(), _small: small }
    }
}

/// The guards are released in this order, the opposite of the order in which they are taken.
struct Held<A, S> {
    _area: A,
    _small: S,
}

impl<A, S> Drop for Held<A, S> {
    fn drop(&mut self) {}
}

/// The class of small blocks for a layout; `None` if it takes a mapping of its own. Blocks of class `n` have `LEAST << n` bytes.
fn class(layout: Layout) -> Option<usize> {
    let size = layout.size().max(layout.align()).max(LEAST);
    (size <= MOST).then(|| (size.next_power_of_two() / LEAST).ilog2() as usize)
}

fn map(len: usize) -> usize {
    let Ok(at) = area::map_anonymous(len) else {
        crate::agent::no_memory(len);
        return 0;
    };
    // SAFETY: our own fresh mapping; the advice changes no content. It also keeps the kernel from merging the mapping with the
    // program's.
    let _ = unsafe { sys::madvise(at as usize, len, libc::MADV_DONTDUMP) };
    at as usize
}

impl Small {
    /// A block of a class, or 0 if there is no memory; and whether it is fresh, and so zero.
    fn take(&mut self, class: usize) -> (usize, bool) {
        let block = self.free[class];
        if block != 0 {
            // SAFETY: the block is free, so it is ours, and `give` has put this word there. It is aligned to 16 bytes and more.
            self.free[class] = unsafe { (block as *const usize).read() };
            return (block, false);
        }
        let size = LEAST << class;
        let mut at = self.at.next_multiple_of(size.min(PAGE_SIZE));
        if self.at == 0 || at + size > self.end {
            at = map(CHUNK);
            if at == 0 {
                return (0, true);
            }
            self.end = at + CHUNK;
        }
        self.at = at + size;
        (at, true)
    }

    /// # Safety
    /// The block is of this class, and nobody uses it any more.
    unsafe fn give(&mut self, class: usize, block: usize) {
        // SAFETY: the caller's promise; the smallest block holds a word.
        unsafe { (block as *mut usize).write(self.free[class]) };
        self.free[class] = block;
    }
}

// SAFETY: every block comes from a private mapping. While it is in use, it lies neither in what is left of a chunk nor in a list of
// free blocks, so it is handed out to one user only. A block has the size of its class, which is no less than the layout's size and
// alignment, and is aligned to that size or to a page. A large block is a mapping.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > PAGE_SIZE {
            return core::ptr::null_mut();
        }
        let block = match class(layout) {
            Some(class) => self.small.lock().take(class).0,
            None => map(layout.size().next_multiple_of(PAGE_SIZE)),
        };
        block as *mut u8
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class(layout) else {
            // SAFETY: the caller's promise; a large block is fresh, and so zero.
            return unsafe { self.alloc(layout) };
        };
        let (block, fresh) = self.small.lock().take(class);
        let block = block as *mut u8;
        if !fresh {
            // SAFETY: the block is as large as its class, and nobody else's.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class(layout) {
            // SAFETY: `alloc` has given out the block for this layout, so it is of this class; and nobody uses it any more.
            Some(class) => unsafe { self.small.lock().give(class, block as usize) },
            // SAFETY: as above; it is one mapping.
            None => unsafe { area::unmap(block, layout.size().next_multiple_of(PAGE_SIZE)) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::alloc::Layout;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    /// An operator who changed the policy every second took memory for good each time.
    #[test]
    fn freed_blocks_are_used_again() {
        let arena = Arena::new();
        let layouts = [layout(1, 1), layout(24, 8), layout(3000, 16), layout(20, 4096), layout(32 << 10, 8)];
        // SAFETY: each block is freed once, with its layout, and not used afterwards.
        let round = || unsafe {
            let blocks = layouts.map(|layout| (arena.alloc(layout), layout));
            blocks.iter().for_each(|(block, layout)| {
                assert!(block.addr().is_multiple_of(layout.align()));
                block.write_bytes(0xff, layout.size());
            });
            blocks.iter().rev().for_each(|(block, layout)| arena.dealloc(*block, *layout));
            blocks.map(|(block, _)| block)
        };
        let first = round();
        let at = arena.small.lock().at;
        (0..1000).for_each(|_| assert_eq!(round(), first));
        assert_eq!(arena.small.lock().at, at);
    }

    #[test]
    fn a_block_that_is_used_again_can_be_had_zeroed() {
        let arena = Arena::new();
        for size in [1, 16, 100, 5000, 32 << 10, 64 << 10] {
            let layout = layout(size, 8);
            // SAFETY: each block is as large as its layout, freed once, and not used afterwards.
            unsafe {
                let dirty = arena.alloc(layout);
                dirty.write_bytes(0xff, size);
                arena.dealloc(dirty, layout);
                let block = arena.alloc_zeroed(layout);
                assert!(core::slice::from_raw_parts(block, size).iter().all(|byte| *byte == 0), "{size}");
                arena.dealloc(block, layout);
            }
        }
    }

    /// Blocks in use never overlap, whatever is freed in between.
    #[test]
    fn blocks_in_use_do_not_overlap() {
        let arena = Arena::new();
        let mut used: Vec<(usize, Layout, u8)> = Vec::new();
        let mut seed = 7u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for turn in 0..20_000u32 {
            if used.len() < 100 || random(2) == 0 && used.len() < 300 {
                let most = 1 << (3 + random(13));
                let bytes = random(most);
                let layout = layout(bytes as usize + 1, 1 << random(8));
                // SAFETY: the block is as large as its layout.
                let block = unsafe {
                    let block = arena.alloc(layout);
                    block.write_bytes(turn as u8, layout.size());
                    block
                };
                assert!(block.addr().is_multiple_of(layout.align()));
                used.push((block as usize, layout, turn as u8));
            } else {
                let (block, layout, byte) = used.swap_remove(random(used.len() as u64) as usize);
                // SAFETY: it is in use, and freed once.
                unsafe {
                    let content = core::slice::from_raw_parts(block as *const u8, layout.size());
                    assert!(content.iter().all(|found| *found == byte), "somebody else wrote into a block");
                    arena.dealloc(block as *mut u8, layout);
                }
            }
        }
    }
}

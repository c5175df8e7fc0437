//! The agent's allocator. It uses mappings of its own, and never the program's heap, which is paged.
//!
//! Large blocks are mappings of their own, zeroed and untouched, so that tables cost memory only as they are used. Small blocks are
//! cut from chunks and never given back: the agent allocates at set-up only. If there is no memory then, the agent says so and ends
//! the program.

use core::alloc::{GlobalAlloc, Layout};
use overspill_linux::area;
use overspill_linux::lock::{Mutex, Rank};
use overspill_linux::sys;

const CHUNK: usize = 256 << 10;
const LARGE: usize = 64 << 10;

struct Chunk {
    at: usize,
    end: usize,
}

/// See the module.
pub struct Arena {
    chunk: Mutex<Chunk>,
}

impl Arena {
    /// Empty.
    pub const fn new() -> Self {
        Arena { chunk: Mutex::ranked(Rank::Heap, Chunk { at: 0, end: 0 }) }
    }

    /// Locks the arena until the returned guard is dropped, for a fork.
    pub fn hold(&self) -> impl Drop + '_ {
        let chunk = self.chunk.lock();
        Held { _area: area::hold(), _chunk: chunk }
    }
}

/// The guards are released in this order, the opposite of the order in which they are taken.
struct Held<A, C> {
    _area: A,
    _chunk: C,
}

impl<A, C> Drop for Held<A, C> {
    fn drop(&mut self) {}
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

// SAFETY: every block comes from a fresh private mapping and is handed out once; large blocks are unmapped whole by their owner.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > 4096 {
            return core::ptr::null_mut();
        }
        if layout.size() >= LARGE {
            return map(layout.size().next_multiple_of(4096)) as *mut u8;
        }
        let mut chunk = self.chunk.lock();
        let mut at = chunk.at.next_multiple_of(layout.align().max(16));
        if chunk.at == 0 || at + layout.size() > chunk.end {
            at = map(CHUNK);
            if at == 0 {
                return core::ptr::null_mut();
            }
            chunk.end = at + CHUNK;
        }
        chunk.at = at + layout.size();
        at as *mut u8
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the same contract; memory of the arena is handed out once and so still zero.
        unsafe { self.alloc(layout) }
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if layout.size() >= LARGE {
            // SAFETY: a large block is exactly one mapping.
            unsafe { area::unmap(block, layout.size().next_multiple_of(4096)) };
        }
    }
}

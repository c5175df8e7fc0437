//! Arenas: blocks of any size in a region, for collections that take an allocator.
//!
//! `heap.rs` decides where blocks lie. This file makes addresses of its numbers and discards what it gives up. One lock guards the
//! heap; nothing touches the region or discards a page while it is held.

use crate::error::Error;
use crate::heap::{Block, Heap, Misuse, Run};
use crate::pager::Pager;
use crate::region::Region;
use allocator_api2::alloc::{AllocError, Allocator, Layout};
use overspill_vm::types::{PAGE_SHIFT, PAGE_SIZE};
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};

/// An allocator over a region of its own. From [`Pager::arena`].
///
/// ```
/// use hashbrown::HashMap;
/// use hashbrown::DefaultHashBuilder as Hasher;
///
/// # fn main() -> Result<(), overspill::Error> {
/// let pager = overspill::Pager::builder().memory(8 << 20).build()?;
/// let arena = pager.arena(1 << 30)?; // address space; memory is taken as it is used
/// let mut squares = HashMap::with_hasher_in(Hasher::default(), arena.clone());
/// for n in 0..100_000u64 {
///     squares.insert(n, n * n);
/// }
/// assert_eq!(squares[&99_999], 99_999 * 99_999);
/// assert!(arena.used() > 100_000 * 16);
/// # Ok(())
/// # }
/// ```
///
/// This is a handle: clones are the same arena. It lives until the last clone is dropped, and collections hold one. All threads may
/// allocate, and free each other's blocks. They take turns. What is allocated and freed lies in ordinary memory, about 1 % of the
/// arena if blocks are small, which the budget does not cover.
///
/// The memory of freed blocks is used again. Pages without a block are discarded: they take neither memory nor swap space.
///
/// Sizes up to 128 bytes are rounded up to a multiple of 16, sizes up to 16 KiB by a quarter at most, others to whole pages. A
/// collection that is touched at random (a hash map) costs a page-in for each touch of a page that is out, whatever its allocator.
///
/// Do not allocate in a signal handler. In a forked child no block can be had, freeing one does nothing, and a touch is a SIGSEGV.
/// So do not drop collections there whose values have destructors.
#[derive(Clone)]
pub struct Arena(Arc<Inner>);

struct Inner {
    region: Region,
    heap: Mutex<Heap>,
}

impl Pager {
    /// An arena for blocks of `bytes` bytes together. That takes address space, and counts as a region of that size; memory is
    /// taken page by page as it is used.
    ///
    /// # Errors
    /// As [`Pager::region`].
    pub fn arena(&self, bytes: usize) -> Result<Arena, Error> {
        let most = (u32::MAX as usize - 1) << PAGE_SHIFT;
        let region = self.region(bytes)?;
        if bytes > most {
            return Err(Error::RegionSize { bytes, available: most as u64 });
        }
        let pages = bytes.div_ceil(PAGE_SIZE) as u32;
        let heap = Heap::new(region.as_ptr() as u64 >> PAGE_SHIFT, pages);
        Ok(Arena(Arc::new(Inner { region, heap: Mutex::new(heap) })))
    }
}

impl Arena {
    /// The pager it belongs to.
    pub fn pager(&self) -> &Pager {
        self.0.region.pager()
    }

    /// Gives the arena a replacement policy of its own, or changes that; see [`Region::set_policy`].
    ///
    /// # Errors
    /// As [`Region::set_policy`].
    pub fn set_policy(&self, policy: &str) -> Result<(), Error> {
        self.0.region.set_policy(policy)
    }

    /// The arena has the pager's policy from now on; see [`Region::reset_policy`].
    ///
    /// # Errors
    /// As [`Region::reset_policy`].
    pub fn reset_policy(&self) -> Result<(), Error> {
        self.0.region.reset_policy()
    }

    /// The replacement policy of the arena: its own, or else the pager's.
    ///
    /// # Panics
    /// In a forked child.
    pub fn policy(&self) -> String {
        self.0.region.policy()
    }

    /// The size of its region, in bytes.
    pub fn capacity(&self) -> usize {
        self.0.region.len().next_multiple_of(PAGE_SIZE)
    }

    /// The bytes of all blocks that are in use, as they were rounded. Zero in a forked child.
    pub fn used(&self) -> u64 {
        if self.pager().is_here() { self.heap().used() } else { 0 }
    }

    /// The region that the blocks lie in.
    ///
    /// # Safety
    /// No slice of it may be made: blocks of it belong to others. To wire, advise and prefetch ranges is fine. A range may be
    /// discarded if it is part of the caller's own block.
    pub unsafe fn region(&self) -> &Region {
        &self.0.region
    }

    /// The heap. A panic within it (a mistake of ours) would leave tables that may give the same memory out twice, so nothing is
    /// done with them any more.
    fn heap(&self) -> MutexGuard<'_, Heap> {
        self.0.heap.lock().expect("the tables of the arena are whole")
    }

    fn slice(&self, block: &Block) -> NonNull<[u8]> {
        // SAFETY: the heap knows only pages of the region.
        let start = unsafe { NonNull::new_unchecked(self.0.region.as_ptr().cast_mut().add(block.at)) };
        NonNull::slice_from_raw_parts(start, block.size)
    }

    /// A new block of at least `size` bytes, whose address is a multiple of `align`.
    ///
    /// # Errors
    /// [`Error::ArenaFull`], [`Error::Forked`].
    ///
    /// # Panics
    /// If `align` is not a power of two.
    pub fn alloc(&self, size: usize, align: usize) -> Result<NonNull<[u8]>, Error> {
        self.take(size, align).map(|block| self.slice(&block))
    }

    /// As [`Arena::alloc`]; the block reads as zero. Large blocks are mostly fresh pages, and take no memory until they are
    /// touched.
    ///
    /// # Errors
    /// As [`Arena::alloc`].
    ///
    /// # Panics
    /// As [`Arena::alloc`].
    pub fn alloc_zeroed(&self, size: usize, align: usize) -> Result<NonNull<[u8]>, Error> {
        let block = self.take(size, align)?;
        let slice = self.slice(&block);
        if !block.zeroed {
            // SAFETY: a block of that size, which nobody else has.
            unsafe { slice.cast::<u8>().write_bytes(0, block.size) };
        }
        Ok(slice)
    }

    fn take(&self, size: usize, align: usize) -> Result<Block, Error> {
        assert!(align.is_power_of_two(), "an alignment of {align}, which is not a power of two");
        self.pager().0.here()?; // before the lock: in a child, a thread that is not there may hold it
        loop {
            let mut heap = self.heap();
            if let Some(block) = heap.allocate(size, align) {
                return Ok(block);
            }
            let runs = heap.clear_out();
            let others = heap.awaits();
            drop(heap);
            if runs.is_empty() && !others {
                return Err(Error::ArenaFull { bytes: size, capacity: self.capacity() });
            }
            if runs.is_empty() {
                std::thread::yield_now(); // another thread is about to give back what it discards
            }
            self.discard(runs);
        }
    }

    /// Discards the content of runs that have no block, and gives them back to the heap.
    fn discard(&self, runs: Vec<Run>) {
        for run in runs {
            let start = (run.first as usize) << PAGE_SHIFT;
            let end = (start + ((run.pages as usize) << PAGE_SHIFT)).min(self.0.region.len());
            // SAFETY: these pages are in no block, and the heap gives them to nobody before `give_back`. (Pages that somebody keeps
            // wired cannot be discarded; they are used again as they are.)
            let discarded = unsafe { self.0.region.discard_shared(start..end) }.is_ok();
            self.heap().give_back(run, discarded);
        }
    }

    /// The place of an address in the arena, which must be that of this process.
    fn place(&self, address: NonNull<u8>) -> Result<usize, Error> {
        self.pager().0.here()?;
        let at = (address.as_ptr() as usize).wrapping_sub(self.0.region.as_ptr() as usize);
        let why = "it lies outside of the arena";
        if at < self.capacity() { Ok(at) } else { Err(Error::NotABlock { address: address.as_ptr() as usize, why }) }
    }

    fn explain(address: NonNull<u8>) -> impl Fn(Misuse) -> Error {
        move |misuse| {
            let why = match misuse {
                Misuse::Within => "it lies within a block or between two",
                Misuse::Free => "nothing is allocated there; perhaps it was freed before",
            };
            Error::NotABlock { address: address.as_ptr() as usize, why }
        }
    }

    /// The bytes that can be used of a block.
    ///
    /// # Errors
    /// [`Error::NotABlock`], [`Error::Forked`].
    pub fn block_size(&self, address: NonNull<u8>) -> Result<usize, Error> {
        let at = self.place(address)?;
        self.heap().size_of(at).map_err(Self::explain(address))
    }

    /// Frees a block.
    ///
    /// # Errors
    /// [`Error::NotABlock`], [`Error::Forked`]. Nothing has changed then.
    ///
    /// # Safety
    /// Nobody may use the block from now on. If `address` is the start of a block, it must be the caller's to free.
    pub unsafe fn free(&self, address: NonNull<u8>) -> Result<(), Error> {
        let at = self.place(address)?;
        let runs = self.heap().free(at).map_err(Self::explain(address))?;
        self.discard(runs);
        Ok(())
    }

    /// Makes a block of at least `size` bytes of a block, where it is or at another place, with the same content as far as both
    /// reach.
    ///
    /// # Errors
    /// As [`Arena::alloc`], and [`Error::NotABlock`]. The old block stays then.
    ///
    /// # Panics
    /// If `align` is not a power of two.
    ///
    /// # Safety
    /// As [`Arena::free`]. Nobody else may use the block meanwhile.
    pub unsafe fn realloc(&self, address: NonNull<u8>, size: usize, align: usize) -> Result<NonNull<[u8]>, Error> {
        assert!(align.is_power_of_two(), "an alignment of {align}, which is not a power of two");
        let at = self.place(address)?;
        let aligned = (address.as_ptr() as usize).is_multiple_of(align);
        let shrink = |mut heap: MutexGuard<'_, Heap>| {
            let (size, runs) = heap.shrink(at, size).map_err(Self::explain(address))?;
            drop(heap);
            self.discard(runs);
            Ok(NonNull::slice_from_raw_parts(address, size))
        };
        let old = {
            let mut heap = self.heap();
            let old = heap.size_of(at).map_err(Self::explain(address))?;
            if aligned && size >= old / 2 && size <= old {
                return shrink(heap);
            }
            if aligned
                && size > old
                && let Some(block) = heap.grow(at, size).map_err(Self::explain(address))?
            {
                return Ok(self.slice(&block));
            }
            old
        };
        let new = match self.alloc(size, align) {
            Err(Error::ArenaFull { .. }) if aligned && size <= old => return shrink(self.heap()),
            new => new?,
        };
        // SAFETY: two blocks, so they do not overlap, of at least that many bytes; the caller has the old one.
        unsafe { new.cast::<u8>().copy_from_nonoverlapping(address, old.min(size)) };
        // SAFETY: as the caller says.
        unsafe { self.free(address)? };
        Ok(new)
    }

    /// For tests: panics if an invariant of the heap does not hold.
    #[doc(hidden)]
    pub fn check(&self) {
        self.heap().check();
    }
}

fn of_no_size(layout: Layout) -> NonNull<[u8]> {
    // SAFETY: an alignment is not zero.
    let dangling = unsafe { NonNull::new_unchecked(std::ptr::without_provenance_mut(layout.align())) };
    NonNull::slice_from_raw_parts(dangling, 0)
}

// SAFETY: blocks are memory of the region, which lives until the last clone is dropped, and the heap gives none out twice (a
// property test compares it with a list of blocks). Clones share one heap, so any of them can free a block.
unsafe impl Allocator for Arena {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        match layout.size() {
            0 => Ok(of_no_size(layout)),
            size => self.alloc(size, layout.align()).map_err(|_| AllocError),
        }
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        match layout.size() {
            0 => Ok(of_no_size(layout)),
            size => self.alloc_zeroed(size, layout.align()).map_err(|_| AllocError),
        }
    }

    unsafe fn deallocate(&self, address: NonNull<u8>, layout: Layout) {
        if layout.size() != 0 {
            // SAFETY: the caller gives up a block of this arena. (In a forked child there is nothing to free.)
            let _ = unsafe { self.free(address) };
        }
    }

    unsafe fn grow(&self, address: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        match old.size() {
            0 => self.allocate(new),
            // SAFETY: the caller gives up a block of this arena.
            _ => unsafe { self.realloc(address, new.size(), new.align()) }.map_err(|_| AllocError),
        }
    }

    unsafe fn grow_zeroed(&self, address: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's promise.
        let block = unsafe { self.grow(address, old, new)? };
        // SAFETY: bytes of the new block beyond the old content.
        unsafe { block.cast::<u8>().add(old.size()).write_bytes(0, block.len() - old.size()) };
        Ok(block)
    }

    unsafe fn shrink(&self, address: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        match (old.size(), new.size()) {
            (0, _) => Ok(of_no_size(new)),
            (_, 0) => {
                // SAFETY: the caller gives up a block of this arena.
                unsafe { self.deallocate(address, old) };
                Ok(of_no_size(new))
            }
            // SAFETY: as above.
            _ => unsafe { self.realloc(address, new.size(), new.align()) }.map_err(|_| AllocError),
        }
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arena({} of {} bytes used)", self.used(), self.capacity())
    }
}

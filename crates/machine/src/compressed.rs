//! Compressed memory as a swap device: a pool of packed pages ([`overspill_store::pool`]) in memory of our own, charged to the
//! budget.
//!
//! ```text
//!   page daemon, swapoff    pack (no lock) --> store (the pool's lock) --> the page is stored; its frame comes free
//!                                 |  incompressible, full, or no budget
//!                                 +--> slots of the next device, as if this one had no space
//!   serving a fault         copy the packed bytes out (the pool's lock) --> unpack into a read's buffer --> as any page
//!   core                    a slot that is given up waits for `empty_freed`, which frees its bytes; then it can be given again
//!   page daemon             credit for pages to come; free blocks to the kernel; the coldest pages to the next device
//! ```
//!
//! **The budget.** [`overspill_store::budgeted_pool`] decides how much of the budget the pool may take, and when its pages go on to
//! the next device. The simulator runs that code too.
//!
//! **Locks.** The pool's lock is innermost. It is taken under `map` and `core`, or with neither. Nothing is packed or unpacked
//! under it; at most 3.3 KiB are copied. Each thread that takes it holds `map` or `core`, or has a read or a write under way for
//! which a fork waits. A fork holds both locks and waits for those reads and writes. So at a fork nobody holds the pool's lock, and
//! the child's copy is whole. The same goes for the contexts of zstd. Each has a lock of its own, held while a page is unpacked, or
//! while a page or a batch is packed. The pool's lock is taken under that of the packer.
//!
//! **Fork.** The pool is ordinary memory, and the child gets a copy of it as of all tables. From then on each side has its own:
//! neither sees what the other frees or stores, and nothing needs to be frozen. Each side is charged for all of its pool, so that
//! the budget holds when the copies come apart. So a fork first makes the process smaller than half of its budget, and writes pages
//! of the pool back for that. If they have nowhere to go, the two sides share out the part of the budget that the pool leaves. The
//! pool's pages are shared until either side changes them. As far as they have come apart, they are above the budget
//! ([`Compressed::fixed_pages`]).
//!
//! **Content.** Pages here are not encrypted: whoever could read them could read the program's memory as well. With and without
//! encryption, a checksum over content and identity proves that a page came back right. On the way to a device a page is sealed
//! like any other.

use crate::errno::{self, Errno};
use crate::kernel::{Advice, Kernel, Mistake};
use crate::lock::{Mutex, MutexGuard, Rank};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};
use overspill_store::PageBytes;
use overspill_store::budgeted_pool::{BudgetedPool, SLOTS_PER_PAGE};
use overspill_store::packing::{Algorithm, Damaged, Packed, Packer, Unpacker};
use overspill_store::pool::{self, PACKED_BYTES_MAX, Pool, PoolCounters, Refused, SLOT_BYTES, Stored};
use overspill_swap::{Devices, SwapPager};
use overspill_vm::types::{DeviceId, PAGE_SHIFT, PAGE_SIZE, PageId};
use overspill_vm::{Compressibility, Vm};
use std::sync::Arc;

/// While the size is nothing, one page in so many is packed to see how pages compress. Of the first of each written cluster.
const SAMPLED: u32 = 4;
/// Threads that can unpack at the same time with an algorithm that needs memory for it.
const UNPACKERS_MAX: usize = 4;

/// The pool's arena.
pub struct Arena<K: Kernel> {
    at: *mut u8,
    len: usize,
    kernel: PhantomData<K>,
}

// SAFETY: it owns the mapping.
unsafe impl<K: Kernel> Send for Arena<K> {}

impl<K: Kernel> AsRef<[u8]> for Arena<K> {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the mapping that `Compressed::new` made, which lives as long as this and is reached through this only.
        // (`Machine::trim` has the kernel take pages away, but only pages whose bytes are in no object. The pool does not read
        // those.)
        unsafe { core::slice::from_raw_parts(self.at, self.len) }
    }
}

impl<K: Kernel> AsMut<[u8]> for Arena<K> {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, borrowed exclusively.
        unsafe { core::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

impl<K: Kernel> Drop for Arena<K> {
    fn drop(&mut self) {
        // SAFETY: the mapping of `Compressed::new`; nobody borrows it any more.
        unsafe { K::unmap(self.at, self.len) };
    }
}

/// A compressed memory device.
pub struct Compressed<K: Kernel> {
    /// Its budget is the process's part. (The core's budget is lower while it prepares for a fork.)
    pub pool: Mutex<BudgetedPool<Arena<K>>, K::Word>,
    /// The address of its memory.
    pub arena: usize,
    /// Pages that it can hold, at most.
    pub slots: u32,
    size_pages: u64,
    /// Its size follows what page-ins tell, from nothing to `size_pages`.
    automatic: bool,
    device: AtomicU16,
    written_back: AtomicU64,
    packer: Mutex<Packer, K::Word>,
    algorithm: Algorithm,
    /// Empty if unpacking needs no memory.
    unpackers: Box<[Mutex<Unpacker, K::Word>]>,
    /// Pages of the packer and unpackers. Charged while it has a size, or pages.
    pub buffer_pages: u32,
    /// (A) They are charged. Under the lock on the core.
    buffers_charged: AtomicBool,
    /// (A) Pages written to other devices while the size was nothing, which says when to try how one compresses.
    passed: AtomicU32,
}

impl<K: Kernel> core::fmt::Debug for Compressed<K> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Compressed({} pages of memory)", self.size_pages)
    }
}

/// The pool's contents in numbers, for users.
#[derive(Clone, Copy, Debug)]
pub struct Holding {
    /// The pool's own counters.
    pub pool: PoolCounters,
    /// Pages that went on to the next device since the start.
    pub written_back: u64,
    /// The most memory it may take, in bytes: its size, or what the budget leaves for it.
    pub size_bytes: u64,
    /// Memory that is charged for it, in bytes: resident pages and credit.
    pub memory_bytes: u64,
}

impl Holding {
    /// Bytes of pages stored per byte of memory that holds them, in thousandths; 0 if there are none.
    pub fn ratio_permille(&self) -> u64 {
        (self.pool.stored_pages * 1000).checked_div(self.pool.resident_pages).unwrap_or(0)
    }
    /// Memory of the pool that is not packed content, in bytes: heads, rounding, free blocks, credit.
    pub fn overhead_bytes(&self) -> u64 {
        self.memory_bytes.saturating_sub(self.pool.packed_bytes)
    }
}

impl<K: Kernel> Compressed<K> {
    /// Makes a device with an arena for `bytes` bytes, of which nothing is resident yet, for a budget of `memory_pages` pages. It
    /// holds at most `slots_max` pages. Allocates its packer and unpackers, and its tables, which take memory as they are used.
    ///
    /// # Errors
    /// ENOMEM.
    ///
    /// # Panics
    /// If the algorithm has no such level.
    pub fn new(bytes: u64, memory_pages: u32, slots_max: u32, algorithm: Algorithm) -> Result<Arc<Self>, Errno> {
        Self::with(bytes, false, memory_pages, slots_max, algorithm)
    }

    /// As [`Compressed::new`], but the size is nothing at first, and follows what page-ins tell
    /// ([`overspill_vm::Vm::judge_pool_size`]).
    ///
    /// # Errors
    /// ENOMEM.
    ///
    /// # Panics
    /// If the algorithm has no such level.
    pub fn automatic(memory_pages: u32, slots_max: u32, algorithm: Algorithm) -> Result<Arc<Self>, Errno> {
        Self::with(u64::from(memory_pages / 2) << PAGE_SHIFT, true, memory_pages, slots_max, algorithm)
    }

    fn with(bytes: u64, automatic: bool, memory_pages: u32, slots_max: u32, algorithm: Algorithm) -> Result<Arc<Self>, Errno> {
        let len = pool::arena_bytes(usize::try_from(bytes).ok().filter(|n| *n < 1 << 46).ok_or(errno::ENOMEM)?);
        let at = K::map_anonymous(len)?;
        let arena = Arena::<K> { at, len, kernel: PhantomData };
        let _ = K::advise(at as usize, len, Advice::NotDumped);
        let packer = Packer::new(algorithm);
        let unpackers: Box<[_]> = match algorithm {
            Algorithm::Words | Algorithm::Lz4 => Box::new([]),
            Algorithm::Zstd(_) => {
                let threads = K::cpus().clamp(1, UNPACKERS_MAX);
                (0..threads).map(|_| Mutex::ranked(Rank::Packer, Unpacker::new(algorithm))).collect()
            }
        };
        let working_bytes = packer.bytes() + unpackers.iter().map(|unpacker| unpacker.lock().bytes()).sum::<usize>();
        let size_pages = bytes >> PAGE_SHIFT;
        let slots = (size_pages * SLOTS_PER_PAGE).min(slots_max as u64) as u32;
        Ok(Arc::new(Compressed {
            pool: Mutex::ranked(
                Rank::Pool,
                BudgetedPool::new(Pool::over(slots, arena), if automatic { 0 } else { size_pages }, memory_pages),
            ),
            arena: at as usize,
            slots,
            size_pages,
            automatic,
            device: AtomicU16::new(u16::MAX),
            written_back: AtomicU64::new(0),
            packer: Mutex::ranked(Rank::Packer, packer),
            algorithm,
            unpackers,
            buffer_pages: working_bytes.div_ceil(PAGE_SIZE) as u32,
            buffers_charged: AtomicBool::new(false),
            passed: AtomicU32::new(0),
        }))
    }

    /// Adds it to the pager, and charges its buffers and its first credit. => the caller puts it into `Space::pool`
    ///
    /// # Errors
    /// As [`overspill_swap::Devices::add_memory_device`].
    pub fn enter(&self, vm: &mut Vm<SwapPager>, priority: i16) -> Result<DeviceId, overspill_swap::AddDeviceError> {
        let device = vm.devices_mut().add_memory_device(vec![0; self.slots as usize], priority, SLOT_BYTES as u32)?;
        self.device.store(device.0, Relaxed);
        self.set_budget(vm.limit());
        // At once, and above the budget if there is no frame: without any credit no page could be stored, and so no frame come
        // free. The charged pages become resident only as pages are stored, and those free more.
        self.balance(vm, u32::MAX);
        Ok(device)
    }

    /// Takes its charge off the budget. => the device is gone from the pager
    pub fn leave(&self, vm: &mut Vm<SwapPager>) {
        self.charge_buffers(vm, false);
        vm.uncharge(self.pool.lock().give_up());
        vm.pool_gone();
        let counters = vm.counters();
        for gauge in [
            &counters.pool_pages,
            &counters.pool_size_bytes,
            &counters.pool_memory_bytes,
            &counters.pool_packed_bytes,
            &counters.pool_same_pages,
        ] {
            gauge.set(0);
        }
    }

    /// Its device.
    pub fn device(&self) -> DeviceId {
        DeviceId(self.device.load(Relaxed))
    }

    /// What it holds.
    pub fn holding(&self) -> Holding {
        let pool = &self.pool.lock().pool;
        let counters = pool.counters();
        Holding {
            pool: counters,
            written_back: self.written_back.load(Relaxed),
            size_bytes: pool.limit() << PAGE_SHIFT,
            memory_bytes: (counters.resident_pages + pool.credit()) << PAGE_SHIFT,
        }
    }

    /// Takes credit for pages to come, as far as frames are free, and checks whether there is room again. To be called when frames
    /// have come free, before the lock on the core is given back.
    pub fn refill(&self, vm: &mut Vm<SwapPager>) {
        if vm.devices().device_use(self.device()).is_none() {
            return; // a swapoff has ended, and `leave` is about to come
        }
        self.empty_freed(vm);
        self.balance(vm, vm.available());
    }

    /// Frees the memory of slots that were given up, so that they can be given again.
    pub fn empty_freed(&self, vm: &mut Vm<SwapPager>) {
        let mut slots = [0; 64];
        loop {
            let n = vm.devices_mut().take_freed(self.device(), &mut slots);
            if n == 0 {
                return;
            }
            let pool = &mut self.pool.lock().pool;
            if K::mistake(Mistake::KeepsWhatIsFreed) {
                continue;
            }
            slots[..n].iter().for_each(|&at| _ = pool.remove(at));
        }
    }

    fn balance(&self, vm: &mut Vm<SwapPager>, available: u32) {
        let mut pool = self.pool.lock();
        if self.automatic
            && let Some(size) = vm.judge_pool_size(|| {
                let pages = pool.compressibility();
                Compressibility { overhead: pages.overhead + self.buffer_pages, ..pages }
            })
        {
            let gauges = vm.counters();
            gauges.pool_grown.add(u64::from(u64::from(size) > pool.size_pages()));
            gauges.pool_shrunk.add(u64::from(u64::from(size) < pool.size_pages()));
            let (read_ns, unpack_ns) = vm.page_in_times();
            gauges.pool_read_ns.set(read_ns);
            gauges.pool_unpack_ns.set(unpack_ns);
            pool.set_size(u64::from(size).min(self.size_pages));
        }
        let balance = pool.balance(available);
        let (counters, credit, limit) = (pool.pool.counters(), pool.pool.credit(), pool.pool.limit());
        drop(pool);
        vm.charge(balance.charge);
        vm.uncharge(balance.uncharge);
        self.charge_buffers(vm, limit > 0 || counters.stored_pages > 0);
        let device = self.device();
        if balance.has_room || limit == 0 {
            vm.devices_mut().set_full(device, limit == 0);
        }
        vm.devices_mut().set_drops_copies(device, balance.drops_copies);
        vm.devices_mut().set_room(device, balance.room);
        let gauges = vm.counters();
        gauges.pool_pages.set(counters.stored_pages);
        gauges.pool_size_bytes.set(limit << PAGE_SHIFT);
        gauges.pool_memory_bytes.set((counters.resident_pages + credit) << PAGE_SHIFT);
        gauges.pool_packed_bytes.set(counters.packed_bytes);
        gauges.pool_same_pages.set(counters.same_filled_pages);
    }

    /// Pages that are charged for it now.
    pub fn charged_pages(&self) -> u64 {
        let buffers = if self.buffers_charged.load(Relaxed) { self.buffer_pages } else { 0 };
        u64::from(buffers) + (self.holding().memory_bytes >> PAGE_SHIFT)
    }

    /// Sets the most pages of memory that it may take, up to the size that it was made for.
    pub fn set_size(&self, pages: u64) {
        self.pool.lock().set_size(pages.min(self.size_pages));
    }

    fn charge_buffers(&self, vm: &mut Vm<SwapPager>, charged: bool) {
        match (self.buffers_charged.swap(charged, Relaxed), charged) {
            (false, true) => vm.charge(self.buffer_pages),
            (true, false) => vm.uncharge(self.buffer_pages),
            _ => {}
        }
    }

    /// A page is about to be written to another device. While the size is nothing, one in four is packed to see how pages
    /// compress.
    pub fn sample(&self, page: &PageBytes) {
        if !self.automatic || self.pool.lock().size_pages() > 0 || !self.passed.fetch_add(1, Relaxed).is_multiple_of(SAMPLED) {
            return;
        }
        let mut packer = self.packer.lock();
        let packed = packer.pack(page);
        self.pool.lock().note_packed(packed);
    }

    /// Sets the process's part of the budget, in pages.
    pub fn set_budget(&self, pages: u32) {
        self.pool.lock().set_budget(pages);
    }

    /// Pages of memory that the pool cannot give up, even for a fork: all that are resident if no other device has room, else none.
    pub fn fixed_pages(&self, devices: &Devices) -> u32 {
        if devices.room_past_memory() > 0 { 0 } else { self.pool.lock().pool.counters().resident_pages as u32 }
    }

    /// Whether it has pages that another device could have.
    pub fn can_write_back(&self, devices: &Devices) -> bool {
        self.pool.lock().pool.counters().packed_pages() > 0 && devices.room_past_memory() > 0
    }

    /// The packer. => a fork waits for its holder
    pub fn packer(&self) -> MutexGuard<'_, Packer, K::Word> {
        self.packer.lock()
    }

    fn unpack(&self, bytes: &[u8], page: &mut PageBytes) -> Result<(), Damaged> {
        let Some(first) = self.unpackers.first() else { return Unpacker::new(self.algorithm).unpack(bytes, page) };
        let free = self.unpackers.iter().find_map(Mutex::try_lock);
        free.unwrap_or_else(|| first.lock()).unpack(bytes, page)
    }

    /// Stores a packed page in slot `at` of the device. Does not allocate.
    ///
    /// # Errors
    /// [`Refused`]; nothing is in the slot then.
    pub fn store(&self, at: u32, packed: Packed<'_>) -> Result<(), Refused> {
        let mut pool = self.pool.lock();
        pool.note_packed(packed);
        pool.pool.store(at, packed)
    }

    /// Unpacks the page in slot `at` of the device. If there is none, or its bytes are damaged, `page` is filled so that no check
    /// of its tag succeeds. Does not allocate.
    #[inline(never)] // its stack frame of 7.4 KiB must not be part of a fault's
    pub fn load(&self, at: u32, page: &mut PageBytes) {
        let mut packed = [0; PACKED_BYTES_MAX];
        let stored = self.pool.lock().pool.copy_out(at, &mut packed);
        let good = match stored {
            Some(Stored::Same(word)) => {
                pool::fill(word, page);
                true
            }
            Some(Stored::Bytes(len)) => self.unpack(&packed[..len], page).is_ok(),
            None => false,
        };
        if !good {
            page.fill(0); // a page of zeroes is never stored
        }
    }

    /// As [`BudgetedPool::wants_write_back`].
    pub fn wants_write_back(&self) -> bool {
        self.pool.lock().wants_write_back()
    }

    /// As [`BudgetedPool::coldest`].
    pub fn coldest(&self, most: usize, devices: &Devices, mut each: impl FnMut(PageId, u32)) {
        self.pool.lock().coldest(most, |at| devices.page_of(self.device(), at).into_iter().for_each(|page| each(page, at)));
    }

    /// Counts pages that have gone on.
    pub fn note_written_back(&self, pages: u64, vm: &Vm<SwapPager>) {
        self.written_back.fetch_add(pages, Relaxed);
        vm.counters().pool_written_back.add(pages);
    }
}

const _: () = assert!(PACKED_BYTES_MAX < PAGE_SIZE, "a page is worth storing");

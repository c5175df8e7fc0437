//! The machine: performs what the core decides, on Linux memory.
//!
//! ```text
//!   handler threads (messages)    faulting threads (SIGBUS)      page daemon        hooks, region calls
//!            |                            |                          |                     |
//!            +---------- serve -----------+                          |                     |
//!            |        map.read: decide (core lock), fill by COPY     |                     |
//!            v                                                       v                     v
//!      reads: buffer -> check -> COPY                     park by MOVE, hash,      map.write: ranges, events,
//!      (reader.rs)                                        write, drop (daemon.rs)  release, rename, adopt
//! ```
//!
//! Lock order: `map` (shared for whatever fills or takes pages, exclusive for reading events and changing ranges) -> `core`.
//!
//! Why events are read under the exclusive lock: the kernel refuses to fill pages (EAGAIN) from the moment an unmap, discard or
//! move begins until its event is *read*. If fills could run between the reading and the processing of an event, old content could
//! land in a range that is new. With the lock, a fill comes wholly before the reading (then the kernel guards it) or after the
//! processing.

use crate::compressed::Compressed;
use crate::errno;
use crate::files::{DEVICES_MAX, DeviceName, Files as _};
use crate::kernel::{Futex as _, Host as _, IoVec, Kernel, Limit, Mistake, Moved, Touch, Uffd as _};
use crate::load_control::LoadControl;
use crate::lock::{Mutex, MutexGuard, RwLock, Word as _};
use crate::packet::Packet;
use crate::park::{Park, ParkPlace, Parking};
use crate::ranges::{Flags, Kind, RangeMap};
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*};
use overspill_swap::SwapPager;
use overspill_vm::page::State;
use overspill_vm::pager::{IoResult, Location};
use overspill_vm::policy::Spec;
use overspill_vm::status::{Outcome, Status};
use overspill_vm::types::{DeviceId, FrameId, ObjectId, PAGE_SHIFT, PAGE_SIZE, PageId};
use overspill_vm::{Fault, Filled, PageIn, Vm};
use std::sync::Arc;

/// How a thread that touches a missing page gets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Delivery {
    /// Handler threads read messages; every system call works on every page; needs the full userfaultfd.
    Threads,
    /// The faulting thread serves itself in a SIGBUS handler; system calls on absent pages return EFAULT; needs no privileges.
    #[default]
    InThread,
}

/// What is changed by core calls.
pub struct Core {
    /// The core.
    pub vm: Vm<SwapPager>,
    /// Who owns which parking place.
    pub park: Park,
    /// Whose hard faults have to wait.
    pub load: LoadControl,
}

impl Core {
    /// The frame's parked original is a second copy from now on (its page is mapped again, or was given up). It is charged until it
    /// is dropped, by [`Machine::drop_places`] or at the end of the write that holds it.
    pub fn retire(&mut self, frame: FrameId) {
        self.vm.charge(1);
        self.park.retire(frame);
    }
}

/// What is changed only when address ranges, descriptors or files change.
pub struct Space<K: Kernel> {
    /// Who serves which address.
    pub ranges: RangeMap,
    /// Discards, and installations of guard pages, that may be under way.
    pub discards: crate::space::Discards,
    /// What is about to be unmapped, replaced or moved.
    pub remaps: crate::space::Remaps,
    /// Pages that the page daemon is taking by a copy.
    pub copying: crate::copy_out::Copying,
    /// Unmaps that are still to be reported.
    pub pending: crate::space::PendingUnmaps,
    /// The address of page 0 of each object.
    pub origins: Vec<usize>,
    /// The program's ranges are registered here.
    pub program: K::Uffd,
    /// The parking area is registered here.
    pub parking: K::Uffd,
    /// The swap files by device.
    pub files: [Option<K::Files>; DEVICES_MAX],
    /// The compressed device, which has no file.
    pub pool: Option<Arc<Compressed<K>>>,
    /// Their names.
    pub names: Box<[DeviceName; DEVICES_MAX]>,
    /// Ourselves, for discards of scattered ranges.
    pub process: K::Process,
}

impl<K: Kernel> Space<K> {
    /// Whether there is a device of that number.
    pub fn has_device(&self, device: usize) -> bool {
        self.files[device].is_some() || self.pool.as_ref().is_some_and(|pool| pool.device().0 as usize == device)
    }
    /// Whether what was in the range is still to be given up, or is being taken out of it by its address: nothing new is to be
    /// there yet.
    pub fn is_settling(&self, start: usize, end: usize) -> bool {
        let managed = self.ranges.overlap(start, end, Kind::Managed).is_some();
        managed || self.copying.overlaps(start, end) || self.remaps.overlaps(start, end)
    }
    /// Whether an unmapping or a move is under way, or was and has not been followed.
    pub fn is_changing(&self) -> bool {
        self.program.is_changing() || self.remaps.has_reports()
    }
    /// The file of a place on a device; none if the device is memory.
    pub fn fd(&self, location: Location) -> i32 {
        if location.is_memory {
            return -1;
        }
        self.files[location.device.0 as usize].as_ref().expect("a device has files").fd(location.file)
    }
    /// All that it takes to read.
    pub fn read_of(&self, op: PageIn) -> Read {
        Read { op, fd: self.fd(op.location) }
    }
    /// The address of a page.
    pub fn addr(&self, page: PageId) -> usize {
        Self::addr_of(&self.origins, page)
    }
    /// The same, if these are the addresses of page 0 of each object.
    pub fn addr_of(origins: &[usize], page: PageId) -> usize {
        origins[page.object().0 as usize] + ((page.index() as usize) << PAGE_SHIFT)
    }
}

/// How long a device that stalls on order stalls, in nanoseconds.
pub const STALL_NS: u64 = 5_000_000_000;

/// Faults that are to fail, for tests (`OVERSPILL_INJECT`).
#[derive(Debug, Default)]
pub struct Inject {
    /// Fail reads after this many, with EIO; 0: never.
    pub read_after: u64,
    /// Fail each first attempt of a read whose number is a multiple of this, with EIO; 0: none.
    pub read_every: u64,
    /// Fail reads that touch this page of a file, counted from 1, with EIO; 0: none.
    pub bad_page: u64,
    /// Fail writes after this many, with EIO; 0: never.
    pub write_after: u64,
    /// Only writes to this device, counted from 1; 0: to any.
    pub write_device: u64,
    /// Flip a bit in pages read after this many; 0: never.
    pub flip_after: u64,
    /// Hold the ends of writes back for [`STALL_NS`] once, after this many; 0: never.
    pub stall_after: u64,
    /// Panic at a read after this many; 0: never.
    pub panic_after: u64,
    /// When the stall began, on the monotonic clock.
    pub stalled_since: core::sync::atomic::AtomicU64,
    /// No more than so many pages per operation, and one at a time, in a swapoff; 0: as many as go.
    pub swapoff_pages: u64,
    /// So many were done.
    pub reads: core::sync::atomic::AtomicU64,
    /// So many were done.
    pub writes: core::sync::atomic::AtomicU64,
}

impl Inject {
    /// From `read=N,read_every=N,bad_page=N,write=N,write_device=N,flip=N,stall=N,panic=N,swapoff_pages=N`.
    ///
    /// # Panics
    /// If it is anything else: a test that injects nothing would pass.
    pub fn parse(text: &str) -> Inject {
        let mut inject = Inject::default();
        for part in text.split(',') {
            let (key, n) = part.split_once('=').unwrap_or((part, "1"));
            let n = n.parse().unwrap_or_else(|_| panic!("OVERSPILL_INJECT: {n:?} is no number"));
            match key {
                "read" => inject.read_after = n,
                "read_every" => inject.read_every = n,
                "bad_page" => inject.bad_page = n,
                "write" => inject.write_after = n,
                "write_device" => inject.write_device = n,
                "flip" => inject.flip_after = n,
                "stall" => inject.stall_after = n,
                "panic" => inject.panic_after = n,
                "swapoff_pages" => inject.swapoff_pages = n,
                _ => panic!("OVERSPILL_INJECT: there is no {key:?}"),
            }
        }
        inject
    }
    fn due(after: u64, count: &core::sync::atomic::AtomicU64) -> bool {
        after != 0 && count.fetch_add(1, Relaxed) >= after
    }
    /// The descriptor to read `bytes` bytes at `offset` of `fd` with, for the first time: `fd`, or none if this read is to fail.
    ///
    /// # Panics
    /// If that is on order.
    pub fn read(&self, fd: i32, offset: u64, bytes: usize) -> i32 {
        assert!(!Self::due(self.panic_after, &self.reads), "a panic on order");
        let once = self.read_every != 0 && (self.reads.load(Relaxed) + 1).is_multiple_of(self.read_every);
        let fd = self.read_again(fd, offset, bytes);
        if once { -1 } else { fd }
    }
    /// The same for a further attempt.
    pub fn read_again(&self, fd: i32, offset: u64, bytes: usize) -> i32 {
        let pages = (offset >> PAGE_SHIFT) + 1..=(offset + bytes as u64) >> PAGE_SHIFT;
        let counted = self.read_after != 0 || self.read_every != 0; // otherwise pages that come back damaged are
        let done = if counted { self.reads.fetch_add(1, Relaxed) } else { 0 };
        let due = self.read_after != 0 && done >= self.read_after;
        if due || self.bad_page != 0 && pages.contains(&self.bad_page) { -1 } else { fd }
    }
    /// Whether this write to `device` is to fail.
    fn write(&self, device: DeviceId) -> bool {
        let done = self.writes.fetch_add(1, Relaxed);
        let there = self.write_device == 0 || self.write_device == u64::from(device.0) + 1;
        self.write_after != 0 && done >= self.write_after && there
    }
    /// Whether the device is to look as if it were busy with something else.
    pub fn stalled(&self, now: impl FnOnce() -> u64) -> bool {
        if self.stall_after == 0 || self.writes.load(Relaxed) < self.stall_after {
            return false;
        }
        let now = now();
        match self.stalled_since.compare_exchange(0, now, Relaxed, Relaxed) {
            Ok(_) => true,
            Err(since) => now.saturating_sub(since) < STALL_NS,
        }
    }
    /// Whether this page is to come back damaged.
    pub fn flip(&self) -> bool {
        Self::due(self.flip_after, &self.reads)
    }
}

/// One pager of one process.
pub struct Machine<K: Kernel> {
    /// Ranges and descriptors. Outer lock.
    pub map: RwLock<Space<K>, K::Word>,
    /// Held by whoever adds or removes a device, outside of `map`; a fork holds it while it takes the files along. Nobody else
    /// waits for it: a swapoff's worker that did could not finish the I/O that the fork waits for.
    pub swapping: Mutex<(), K::Word>,
    /// The core. Inner lock.
    pub core: Mutex<Core, K::Word>,
    /// How faults come.
    pub delivery: Delivery,
    /// Whether pointers in pages that are read in order are followed: see [`crate::pointers`].
    pub follows_pointers: bool,
    /// How pages are stored.
    pub content: K::Content,
    /// Writes that may be in flight, and pages of each.
    pub writes: (usize, usize),
    /// There is a compressed device: a look before locks are taken.
    pub has_pool: AtomicBool,
    /// What `overspill run` and `stat` see.
    pub status: &'static Status,
    /// `overspill run` stands by and will print what is to be said.
    pub supervised: AtomicBool,
    /// Faults on order.
    pub inject: Inject,
    /// What else belongs to a machine on this kernel.
    pub host: K::Host,
    /// The same as [`Machine::bell`], without a family.
    pub daemon_bell: K::Word,
    /// 1: the daemon sleeps (or is about to).
    pub daemon_sleeps: K::Word,
    /// Bumped when frames became free or pages arrived, for threads that wait in the fault handler.
    pub arrivals: K::Word,
    /// How many wait for that.
    pub waiters: K::Word,
    /// A fork makes the process smaller: that nothing more can go is no reason to stop it.
    pub shrinking: AtomicBool,
    /// Nothing can be evicted: give out frames above the budget.
    pub starved: AtomicBool,
    /// Since when the page daemon can do nothing at all, in nanoseconds; 0: it can, or has nothing to do.
    pub stuck_since: AtomicU64,
    /// Other processes may have pages of this one: it has forked, or is a fork's child, or has asked for equal pages to be merged
    /// (KSM).
    pub shares_pages: AtomicBool,
    /// A fork is about to happen: nobody starts I/O. Who waits for whom then (no thread may wait for one above it, or for itself):
    ///
    /// | thread | waits for | which |
    /// | --- | --- | --- |
    /// | forks | page daemon, handlers, swapoff: their I/O and busy pages | need devices, and the two locks for moments |
    /// | page daemon | the device, for writes under way | touches no page of the program's (see [`Kernel::own_page`]) |
    /// | page daemon, while [`Machine::discards_own`] | a handler, that reads its event | they do, even during a freeze |
    /// | handlers | the device, for reads under way; then the end of the freeze | |
    /// | swapoff | the device; then the end of the freeze | does not wait for `swapping`, which the fork holds |
    /// | helper thread | an unmapping thread, to read its event itself | that thread waits for nothing but its event |
    /// | program's threads | handlers, for a page or an event | hold no lock of the pager's over it |
    /// | program's threads, before they unmap or move memory | page daemon, that copies pages out there | hold no lock over it |
    /// | forks, before the freeze | program's threads, that unmap or move memory | hold no lock over it; for a second at most |
    /// | program's threads, before they unmap or move memory | the end of a fork | hold no lock over it |
    pub frozen: K::Word,
    /// And nobody begins to unmap or move memory ([`Machine::await_remaps`]).
    pub forking: K::Word,
    /// Pages of buffers that a swapoff has charged to the budget. A forked child has no swapoff.
    pub swapoff_charge: AtomicU32,
    /// Devices that failed too often, by number: what is on them should go elsewhere ([`Machine::take_retired`]).
    pub retired: K::Word,
    /// The pager is shutting down (library).
    pub quit: AtomicBool,
    /// Readable once `quit` is set, or while there is a round to be followed, for threads that wait for I/O; -1 if there is none.
    pub quit_event: AtomicI32,
    /// A page of zeroes to fill from, [`ZEROES_PAGES`] long.
    pub zeroes: usize,
    /// The parking area's memory.
    pub parking: Parking<K>,
    /// The page daemon discards pages of the program's, and waits until somebody has read the event of that.
    pub discards_own: AtomicBool,
}

/// What a machine is made of.
pub struct Parts<K: Kernel> {
    /// The core. What the machine's own buffers take is charged already.
    pub vm: Vm<SwapPager>,
    /// [`Machine::delivery`].
    pub delivery: Delivery,
    /// [`Machine::follows_pointers`].
    pub follows_pointers: bool,
    /// Whether threads whose working sets do not fit together take turns.
    pub load_control: bool,
    /// [`Machine::content`].
    pub content: K::Content,
    /// [`Machine::writes`].
    pub writes: (usize, usize),
    /// [`Machine::inject`].
    pub inject: Inject,
    /// [`Machine::host`].
    pub host: K::Host,
    /// [`Machine::status`].
    pub status: &'static Status,
    /// [`Space::program`].
    pub program: K::Uffd,
    /// [`Space::parking`].
    pub parking: K::Uffd,
    /// [`Space::process`].
    pub process: K::Process,
    /// [`Space::files`].
    pub files: [Option<K::Files>; DEVICES_MAX],
    /// [`Space::names`].
    pub names: Box<[DeviceName; DEVICES_MAX]>,
    /// [`Space::pool`].
    pub pool: Option<Arc<Compressed<K>>>,
    /// Pages of the budget.
    pub memory_pages: u32,
    /// Ranges that there may be.
    pub ranges_max: usize,
    /// Memory objects that there may be.
    pub objects_max: u16,
}

/// Frames and parking places beyond the budget: what goes over it, and originals that are still to be dropped.
const PLACES_MORE: u32 = 8192;

impl<K: Kernel> Machine<K> {
    /// Sets one up. No thread is started.
    ///
    /// # Errors
    /// ENOMEM; the parking area cannot be registered.
    pub fn new(parts: Parts<K>) -> Result<Self, errno::Errno> {
        let frames = (parts.memory_pages + PLACES_MORE) as usize;
        let places = (parts.memory_pages + PLACES_MORE).next_multiple_of(64);
        let parking_area = Parking::new(places, &parts.parking)?;
        let zeroes = K::map_anonymous((ZEROES_PAGES as usize) << PAGE_SHIFT)?;
        for i in 0..ZEROES_PAGES as usize {
            // SAFETY: within the mapping; reading maps the kernel's zero page, so the source costs no memory.
            unsafe { core::ptr::read_volatile(zeroes.add(i << PAGE_SHIFT)) };
        }
        let core = Core { vm: parts.vm, park: Park::new(places, frames), load: LoadControl::new(parts.load_control) };
        let has_pool = AtomicBool::new(parts.pool.is_some());
        let space = Space {
            ranges: RangeMap::new(parts.ranges_max),
            discards: crate::space::Discards::new(),
            remaps: crate::space::Remaps::new(),
            copying: crate::copy_out::Copying::new(),
            pending: crate::space::PendingUnmaps::new(),
            origins: vec![0; parts.objects_max as usize],
            program: parts.program,
            parking: parts.parking,
            files: parts.files,
            pool: parts.pool,
            names: parts.names,
            process: parts.process,
        };
        Ok(Machine {
            map: RwLock::new(space),
            swapping: Mutex::new(()),
            core: Mutex::new(core),
            delivery: parts.delivery,
            follows_pointers: parts.follows_pointers,
            content: parts.content,
            writes: parts.writes,
            has_pool,
            status: parts.status,
            supervised: AtomicBool::new(false),
            inject: parts.inject,
            host: parts.host,
            daemon_bell: K::Word::ZERO,
            daemon_sleeps: K::Word::ZERO,
            arrivals: K::Word::ZERO,
            waiters: K::Word::ZERO,
            shrinking: AtomicBool::new(false),
            starved: AtomicBool::new(false),
            stuck_since: AtomicU64::new(0),
            shares_pages: AtomicBool::new(false),
            frozen: K::Word::ZERO,
            forking: K::Word::ZERO,
            swapoff_charge: AtomicU32::new(0),
            retired: K::Word::ZERO,
            quit: AtomicBool::new(false),
            quit_event: AtomicI32::new(-1),
            zeroes: zeroes as usize,
            parking: parking_area,
            discards_own: AtomicBool::new(false),
        })
    }
}

/// Length of the zero source, in pages.
pub const ZEROES_PAGES: u32 = 64;

/// A read to be made: all that it takes, so that no lock is needed to begin it. Its device stays, and its file open, until
/// [`Vm::page_in_arrived`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Which pages, and where they are.
    pub op: PageIn,
    /// The file; none for a device that is memory.
    pub fd: i32,
}

/// What serving a fault came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// The page is there (or its thread was told to look again).
    Done,
    /// It is there; and read this as well, since its reader will want it.
    DoneReadAhead(Read),
    /// Something else is under way with it; its end wakes whoever waits.
    Busy,
    /// Read this; its end wakes whoever waits.
    Read(Read),
    /// No frame is free.
    NoMemory,
    /// Another thread has the turn: not yet, see [`crate::load_control`].
    Held,
    /// It cannot be had: an error at the access.
    Lost,
    /// Not an address of the pager's.
    NotOurs,
}

/// Threads that wait for pages, to be woken when the map is no longer held. (Only a fork's child gets another descriptor for its
/// program, and no thread of the pager's goes there.)
#[derive(Clone, Copy, Debug)]
pub struct Waiters {
    program: i32,
    addr: usize,
    len: usize,
}

impl<K: Kernel> Machine<K> {
    /// Maps the parked `page` again, which the core has made busy. Returns whether waiting faults must be woken.
    pub(crate) fn restore(
        &self,
        map: &Space<K>,
        core: MutexGuard<'_, Core, K::Word>,
        addr: usize,
        page: PageId,
        frame: FrameId,
    ) -> bool {
        let from = self.parking.addr(core.park.place(frame));
        drop(core);
        // SAFETY: the page is busy, so its parked content stays where it is; it is what the program must find.
        let filled = !map.discards.covers(addr, K::now_ns) && unsafe { self.fill_from(map, addr, from as *const u8, 1) } == 1;
        let mut core = self.core.lock();
        let filled = filled || K::mistake(Mistake::DropsBeforeTheCopy);
        let wake = core.vm.restore_done(page, if filled { Filled::Mapped } else { Filled::No });
        if filled {
            core.retire(frame);
        }
        let batch = core.park.drops() >= DROPS_BATCH;
        drop(core);
        if batch {
            self.drop_places(map, false);
        }
        wake
    }

    /// Serves a touch of `addr`, all but I/O and waiting. For a recording, the lowest bit of `addr` says that it is a write.
    ///
    /// `tid`: whose touch it is, if it may be [`Served::Held`]; else 0.
    pub fn serve(&self, addr: usize, tid: u32) -> Served {
        let write = addr & 1 == 1;
        let addr = addr & !(PAGE_SIZE - 1);
        let map = self.map.read();
        if !map.remaps.is_empty() && self.leave_growth(&map, addr, tid) {
            return Served::Done; // its thread has been woken
        }
        let Some(range) = map.ranges.find(addr).copied() else { return Served::NotOurs };
        if range.kind == Kind::Native {
            return Served::NotOurs;
        }
        let page = range.page(addr);
        let mut core = self.core.lock();
        if self.host.record_is_full() {
            return Served::NoMemory; // to be tried again in a moment
        }
        let word = core.vm.page(page);
        if map.copying.overlaps(addr, addr + PAGE_SIZE) && !word.parking() {
            // It was given up while the page daemon copied it, and the daemon discards it by its address: what came there now would
            // go, too.
            return Served::Busy;
        }
        if word.state() == State::PagedOut && !word.busy() {
            let held = core.load.hard_fault(tid, K::now_ns, K::thread_cpu_ns);
            self.status.counters.load_turns.set(core.load.turns());
            if held {
                return Served::Held;
            }
        }
        let guarded = range.flags.has(Flags::GUARDED);
        let bounds =
            if guarded || map.copying.overlaps(range.start, range.end) { page.index()..page.index() + 1 } else { range.bounds() };
        let fault = core.vm.fault(page, bounds, self.starved.load(Relaxed));
        if self.host.records() {
            let record = |touch| self.host.record((addr >> PAGE_SHIFT) as u64, write, touch);
            match fault {
                Fault::ZeroFill { .. } => record(Touch::First),
                Fault::Restore { .. } => record(Touch::Soft),
                Fault::PageIn(_) => record(Touch::Hard),
                Fault::Mapped | Fault::Busy | Fault::NoMemory | Fault::Lost | Fault::TableFull => {}
            }
        }
        let wants_daemon = core.vm.wants_daemon();
        let waiters = self.waiters(&map, addr, PAGE_SIZE);
        let (served, waiters) = match fault {
            Fault::Busy => (Served::Busy, None),
            Fault::NoMemory => (Served::NoMemory, None),
            Fault::TableFull => {
                drop(core);
                self.stop_table_full()
            }
            Fault::PageIn(op) => (Served::Read(map.read_of(op.asked_for_by(write))), None),
            Fault::Lost => {
                drop(core);
                let _ = map.program.poison(addr, PAGE_SIZE);
                (Served::Lost, Some(waiters))
            }
            Fault::Mapped => {
                // The program may have discarded it (then it is filled), or another thread was faster. Under the lock: without it
                // the page daemon could park the page between the look and the filling, and the program would find zeroes in its
                // place.
                let filled = if guarded {
                    map.program.zero(addr, PAGE_SIZE)
                } else {
                    // SAFETY: a page of zeroes, never written; what is there already is left alone.
                    unsafe { map.program.copy(addr, self.zeroes as *const u8, PAGE_SIZE) }
                };
                self.status.counters.pages_vanished.add(u64::from(filled.error.is_none()));
                drop(core);
                map.program.let_write(addr, PAGE_SIZE); // if it was to be copied out, and was not
                (Served::Done, Some(waiters))
            }
            Fault::ZeroFill { first, count } => {
                drop(core);
                let addr = map.addr(first);
                let done = if guarded { self.fill_unguarded(&map, addr) } else { self.fill_zero(&map, addr, count) };
                let mut core = self.core.lock();
                for i in 0..count {
                    let filled = if i < done { Filled::Mapped } else { Filled::No };
                    core.vm.fill_done(first.offset(i as u64), filled);
                }
                drop(core);
                (Served::Done, Some(self.waiters(&map, addr, (count as usize) << PAGE_SHIFT)))
            }
            Fault::Restore { frame, ahead } => {
                self.restore(&map, core, addr, page, frame);
                (ahead.map_or(Served::Done, |op| Served::DoneReadAhead(map.read_of(op.asked_for_by(write)))), Some(waiters))
            }
        };
        drop(map);
        if wants_daemon {
            self.ring_daemon();
        }
        if let Some(waiters) = waiters {
            self.wake_last(waiters);
        }
        served
    }

    /// Fills a missing page with zeroes, but not if it is a guard page: a copy would take its place. Returns how many are there
    /// now: one or none.
    fn fill_unguarded(&self, map: &Space<K>, addr: usize) -> u32 {
        let error = map.program.zero(addr, PAGE_SIZE).error;
        (error.is_none() || error == Some(errno::EEXIST) && K::is_resident(addr)) as u32
    }

    /// A touch of a registered address that is in no managed range. Memory that has grown by a call that was not followed is such,
    /// and what another has left behind (MREMAP_DONTUNMAP); so is, for a moment, what is about to be managed, or has just been
    /// moved or unmapped, as long as the report of it is unread (then the touch comes again). What the pager knows nothing of is
    /// empty.
    pub fn serve_unmanaged(&self, addr: usize) {
        let addr = addr & !(PAGE_SIZE - 1);
        let mut map = self.map.write();
        // otherwise it is managed by now: its thread looks again
        if map.ranges.overlap(addr, addr + PAGE_SIZE, Kind::Managed).is_none() {
            if self.is_known(&map, addr) {
                self.stop_program(b"the program was stopped: internal error of the pager, please report it: a page that has content is in no range");
            }
            let filled = self.fill_zero(&map, addr, 1) == 1;
            map.program.let_write(addr, PAGE_SIZE);
            // Only what is registered can be filled: the message may be an old one, and something else be there by now. And what
            // grows by a call that is followed is managed when that has returned.
            if filled && map.remaps.is_empty() && map.ranges.first(addr, addr + PAGE_SIZE).is_none() {
                self.find_grown(&mut map, addr);
            }
        }
        self.wake(&map, addr, PAGE_SIZE);
    }

    /// Whether the page at `addr` has content, be it in a range or not: then zeroes may not take its place.
    pub fn is_known(&self, map: &Space<K>, addr: usize) -> bool {
        let core = self.core.lock();
        map.origins.iter().enumerate().filter(|(_, origin)| **origin <= addr).any(|(object, origin)| {
            let index = ((addr - origin) >> PAGE_SHIFT) as u64;
            let found = core.vm.next_present(PageId::new(ObjectId(object as u16), index), index + 1);
            found.map(|page| core.vm.page(page)).is_some_and(|word| word.busy() || word.state() != State::Untouched)
        })
    }

    /// Copies zeroes into `count` missing pages; returns how many are there now (arrived here or found).
    pub fn fill_zero(&self, map: &Space<K>, addr: usize, count: u32) -> u32 {
        let mut done = 0;
        while done < count {
            let n = (count - done).min(ZEROES_PAGES);
            // SAFETY: the source is `ZEROES_PAGES` pages of zeroes, never written; these pages are untouched, so zeroes are right.
            let m = unsafe { self.fill_from(map, addr + ((done as usize) << PAGE_SHIFT), self.zeroes as *const u8, n) };
            done += m;
            if m < n {
                break;
            }
        }
        done
    }

    /// Copies `count` pages from `src` into missing pages; a page that is there already is left alone. Returns how many from the
    /// first on are there now.
    ///
    /// # Safety
    /// `src` is readable for `count` pages and holds what the program must find.
    pub unsafe fn fill_from(&self, map: &Space<K>, addr: usize, src: *const u8, count: u32) -> u32 {
        let len = (count as usize) << PAGE_SHIFT;
        let mut done = 0;
        while done < len {
            // SAFETY: within the caller's source.
            let Moved { bytes, error, .. } = unsafe { map.program.copy(addr + done, src.add(done), len - done) };
            done += bytes;
            match error {
                None => {}
                Some(errno::EEXIST) => done += PAGE_SIZE,
                // EAGAIN: an event waits to be read, the page is faulted again after it. ENOENT, EFAULT, ESRCH: the mapping is
                // gone.
                Some(_) => break,
            }
        }
        (done >> PAGE_SHIFT) as u32
    }

    /// Tells threads that wait for pages of the range to look again.
    pub fn wake(&self, map: &Space<K>, addr: usize, len: usize) {
        self.wake_waiters(self.waiters(map, addr, len));
    }

    /// Threads that wait for pages of the range.
    pub fn waiters(&self, map: &Space<K>, addr: usize, len: usize) -> Waiters {
        Waiters { program: map.program.raw(), addr, len }
    }

    /// Tells them to look again. It is the last thing to be done for them: a handler that gives way to the thread that it wakes may
    /// not go on before that sleeps again. => the caller holds no lock of the pager's
    pub fn wake_last(&self, waiters: Waiters) {
        self.host.served();
        self.wake_waiters(waiters);
    }

    fn wake_waiters(&self, waiters: Waiters) {
        match self.delivery {
            Delivery::Threads => K::wake(waiters.program, waiters.addr, waiters.len),
            Delivery::InThread => self.arrived(),
        }
    }

    /// Something that threads in the fault handler may wait for has happened.
    pub fn arrived(&self) {
        self.arrivals.fetch_add(1, Release);
        if self.waiters.load(SeqCst) != 0 {
            self.arrivals.wake(i32::MAX as u32);
        }
    }

    /// Waits in the fault handler until something has arrived since `seen`, or a while has passed.
    pub fn await_arrival(&self, seen: u32) {
        self.waiters.fetch_add(1, SeqCst);
        self.arrivals.wait_for(seen, Limit::Rescue(2_000_000));
        self.waiters.fetch_sub(1, SeqCst);
    }

    /// Bumped to wake the page daemon, also by other processes of the family.
    pub fn bell(&self) -> &K::Word {
        self.host.bell().unwrap_or(&self.daemon_bell)
    }

    /// Wakes the page daemon if it sleeps.
    pub fn ring_daemon(&self) {
        if self.daemon_sleeps.swap(0, SeqCst) != 0 {
            self.ring_daemon_anyway();
        }
    }

    /// The same, and if it is about to sleep it does not.
    pub fn ring_daemon_anyway(&self) {
        self.bell().fetch_add(1, SeqCst);
        self.bell().wake_shared(1);
    }

    /// Drops what waits to be dropped, if that is a batch's worth (or `all`).
    pub fn drop_places(&self, map: &Space<K>, all: bool) {
        let mut batch = [ParkPlace::NONE; DROPS_BATCH];
        loop {
            let n = self.core.lock().park.drop_batch(&mut batch, all);
            if n == 0 {
                return;
            }
            let batch = &mut batch[..n];
            self.discard_places(map, batch);
            let mut core = self.core.lock();
            core.park.dropped(batch);
            core.vm.uncharge(n as u32);
            drop(core);
            self.arrived();
        }
    }

    /// Discards the content of parking places (which nobody owns or holds). Sorts them.
    pub fn discard_places(&self, map: &Space<K>, places: &mut [ParkPlace]) {
        places.sort_unstable();
        let mut iov = [IoVec { base: 0, len: 0 }; 64];
        let mut n = 0;
        for place in places.iter() {
            let at = self.parking.addr(*place);
            if n > 0 && iov[n - 1].base + iov[n - 1].len == at {
                iov[n - 1].len += PAGE_SIZE;
                continue;
            }
            if n == iov.len() {
                // SAFETY: nobody owns or holds these places.
                unsafe { K::discard_ranges(&map.process, &iov[..n]) };
                n = 0;
            }
            iov[n] = IoVec { base: at, len: PAGE_SIZE };
            n += 1;
        }
        // SAFETY: as above.
        unsafe { K::discard_ranges(&map.process, &iov[..n]) };
    }

    /// The file to write to, or none if this write is to fail.
    pub fn fd_to_write(&self, map: &Space<K>, location: Location) -> i32 {
        if self.inject.write(location.device) { -1 } else { map.fd(location) }
    }

    /// Changes the replacement policy ([`overspill_vm::Vm::set_policy`]). Allocates.
    pub fn set_policy(&self, spec: &Spec) {
        let new = self.core.lock().vm.make_policy(spec);
        let old = self.core.lock().vm.set_policy(new);
        let mut name = Packet::new();
        let _ = write!(name, "{spec}");
        self.status.policy.set(name.bytes());
        drop(old); // outside of the lock
    }

    /// The page that was at `location` is lost: the first is told of. => its device is still there
    #[cold]
    #[inline(never)] // what it takes of the stack is not to be part of who calls it
    pub fn note_loss(&self, map: &Space<K>, page: PageId, Location { device, offset, .. }: Location, why: IoResult) {
        if !self.status.loss.is_empty() {
            return;
        }
        let mut said = Packet::new();
        let _ = write!(said, "the page at {:#x} could not be read back from byte {offset} of the swap device ", map.addr(page));
        said.put(map.names[device.0 as usize].bytes());
        let _ = match why {
            IoResult::Io(e) => write!(said, ": error {e}"),
            _ => write!(said, ": its content is not what was written there"),
        };
        self.status.loss.set(said.bytes());
    }

    /// A device has failed too often.
    pub fn retire(&self, device: DeviceId) {
        self.retired.fetch_or(1 << device.0, Relaxed);
        self.retired.wake(i32::MAX as u32);
    }

    /// Nobody is to be told of it any more.
    pub fn forget_retired(&self, device: DeviceId) {
        self.retired.fetch_and(!(1 << device.0), Relaxed);
    }

    /// A device that has failed too often and that nobody has been told of, for whoever swaps it off.
    pub fn take_retired(&self) -> Option<DeviceId> {
        let device = self.retired.load(Relaxed).trailing_zeros() as usize;
        let device = (device < DEVICES_MAX).then_some(DeviceId(device as u16))?;
        self.forget_retired(device);
        Some(device)
    }

    /// Waits until there may be such a device, or the pager shuts down.
    pub fn await_retired(&self) {
        self.retired.wait_for(0, Limit::Tick(3_600_000_000_000));
    }

    /// Nobody waits for such devices any more.
    pub fn end_await_retired(&self) {
        self.retired.fetch_or(1 << 31, Relaxed);
        self.retired.wake(i32::MAX as u32);
    }

    /// There is no room to remember one page more.
    pub fn stop_table_full(&self) -> ! {
        self.stop_program(
            b"the program was stopped: it has touched more pages than Overspill's tables have room for (1 TiB where they lie together, 128 GiB in scattered pieces of 256 KiB, a page in each of 524,288 places; less under a limit of address space: raise it with ulimit -v)",
        )
    }

    /// As many ranges as there can be, and one more.
    pub fn stop_ranges_full(&self) -> ! {
        self.stop_program(
            b"the program was stopped: it has more mappings than Overspill has room for, which is twice what vm.max_map_count was when it began; if that was raised since, start it again",
        )
    }

    /// Stops the program: the message is left for `overspill run`, and written to standard error if nobody supervises.
    pub fn stop_program(&self, message: &[u8]) -> ! {
        self.status.message.set(message);
        self.status.outcome.store(Outcome::Stopped as u32, Release);
        K::stop(message, !self.supervised.load(Relaxed))
    }
}

/// Parked originals are dropped so many at a time, with one TLB flush.
pub const DROPS_BATCH: usize = 32;

impl<K: Kernel> Drop for Machine<K> {
    fn drop(&mut self) {
        // SAFETY: a mapping that set-up made for this machine; nobody else has it any more, so nobody uses it.
        unsafe { K::unmap(self.zeroes as *mut u8, (ZEROES_PAGES as usize) << PAGE_SHIFT) };
    }
}

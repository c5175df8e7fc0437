//! The machine: performs what the core decides.
//!
//! ```text
//!   handler threads (messages)    faulting threads (SIGBUS)      page daemon        hooks, region calls
//!            |                            |                          |                     |
//!            +---------- serve -----------+                          |                     |
//!            |        map.read: decide (core lock), fill by COPY     |                     |
//!            v                                                       v                     v
//!      reads: buffer -> check -> COPY                     park by MOVE, compare,   map.write: events, ranges,
//!      (reader.rs)                                        write, drop (daemon.rs)  remaps, native ranges
//! ```
//!
//! Lock order: `map` (shared for whatever fills or takes pages, exclusive for reading events and changing ranges) -> `core`.

mod config;
mod zeroes;

use crate::compressed::Compressed;
use crate::errno;
use crate::files::{DEVICES_MAX, DeviceName};
use crate::inject::Inject;
use crate::kernel::{Futex as _, Host as _, IoVec, Kernel, Limit, Mistake};
use crate::load_control::LoadControl;
use crate::lock::{Mutex, Rank, RwLock, Word as _};
use crate::packet::Packet;
use crate::park::{Park, ParkPlace, Parking};
use crate::ranges::RangeMap;
use crate::space::Space;
use crate::space::copying::Copying;
use crate::space::discards::Discards;
use crate::space::pending_unmaps::PendingUnmaps;
use crate::space::remaps::Remaps;
pub use config::{Config, Delivery};
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::*};
use overspill_swap::SwapPager;
use overspill_vm::Vm;
use overspill_vm::pager::{IoResult, Location};
use overspill_vm::policy::Spec;
use overspill_vm::status::{Outcome, Status};
use overspill_vm::types::{DeviceId, FrameId, PAGE_SIZE, PageId};
use std::sync::Arc;
pub use zeroes::ZEROES_PAGES;
use zeroes::Zeroes;

/// What is changed by core calls. Lock key: all of it by the lock around it, [`Machine::core`].
pub struct Core {
    /// The core.
    pub vm: Vm<SwapPager>,
    /// Who owns which parking place.
    pub park: Park,
    /// Whose hard faults have to wait.
    pub load: LoadControl,
    /// Pages of buffers that a swapoff has charged to the budget. A forked child has no swapoff.
    pub(crate) swapoff_charge: u32,
}

impl Core {
    /// The frame's parked original is a second copy from now on (its page is mapped again, or was given up). It is charged until it
    /// is dropped, by [`Machine::drop_places`] or at the end of the write that holds it.
    pub fn orphan(&mut self, frame: FrameId) {
        self.vm.charge(1);
        self.park.orphan(frame);
    }
}

/// One pager of one process.
///
/// Lock key: (L) a lock; (C) constant; (A) atomic, and by itself; (F) a word that threads sleep on, atomic; (D) atomic, changed by
/// the page daemon only; (K) atomic, changed by the forking thread only.
pub struct Machine<K: Kernel> {
    /// (C) What untouched pages are filled from.
    pub(crate) zeroes: Zeroes<K>,
    /// (L) Ranges and descriptors. Outer lock.
    pub map: RwLock<Space<K>, K::Word>,
    /// (L) Held by whoever adds or removes a device, outside of `map`; a fork holds it while it takes the files along. Nobody
    /// else waits for it: a swapoff's worker that did could not finish the I/O that the fork waits for.
    pub swapping: Mutex<(), K::Word>,
    /// (L) The core. Inner lock.
    pub core: Mutex<Core, K::Word>,
    /// (C) What was chosen.
    pub config: Config,
    /// (C) How pages are stored.
    pub content: K::Content,
    /// (A) There is a compressed device: a look before locks are taken.
    pub has_pool: AtomicBool,
    /// (C) What `overspill run` and `stat` see.
    pub status: &'static Status,
    /// (A) `overspill run` stands by and will print what is to be said.
    pub supervised: AtomicBool,
    /// (C) Faults on order.
    pub inject: Inject,
    /// (C) What else belongs to a machine on this kernel.
    pub host: K::Host,
    /// (F) The same as [`Machine::bell`], without a family.
    pub daemon_bell: K::Word,
    /// (F) 1: the daemon sleeps (or is about to).
    pub daemon_sleeps: K::Word,
    /// (F) Bumped when frames became free or pages arrived, for threads that wait in the fault handler.
    pub arrivals: K::Word,
    /// (F) How many wait for that.
    pub waiters: K::Word,
    /// (K) A fork makes the process smaller: that nothing more can go is no reason to stop it.
    pub shrinking: AtomicBool,
    /// (A) No frame is free and no page in memory can be written: give out frames above the budget.
    pub starved: AtomicBool,
    /// (D) Since when the page daemon can do nothing at all, in nanoseconds; 0: it can, or has nothing to do.
    pub stuck_since: AtomicU64,
    /// (A) Other processes may have pages of this one: it has forked, or is a fork's child, or has asked for equal pages to be
    /// merged (KSM).
    pub shares_pages: AtomicBool,
    /// (F) A fork is about to happen: nobody starts I/O. Who waits for whom then (no thread may wait for one above it, or for
    /// itself):
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
    /// | program's threads, before they move memory | others that move some | hold no lock over it |
    pub frozen: K::Word,
    /// (F) And nobody begins to unmap or move memory ([`Machine::await_remaps`]).
    pub forking: K::Word,
    /// (F) Nobody else begins to move memory ([`Machine::begin_remap`]).
    pub moving: K::Word,
    /// (F) Devices that failed too often, by number: what is on them should go elsewhere ([`Machine::take_failed_device`]).
    pub failed_devices: K::Word,
    /// (A) The pager is shutting down (library).
    pub quit: AtomicBool,
    /// (A) Readable once `quit` is set, or while there is a round to be followed, for threads that wait for I/O; -1 if there is
    /// none.
    pub quit_event: AtomicI32,
    /// (C) The parking area's memory.
    pub parking: Parking<K>,
    /// (D) The page daemon discards pages of the program's, and waits until somebody has read the event of that.
    pub discards_own: AtomicBool,
}

/// What a machine is made of.
pub struct Parts<K: Kernel> {
    /// The core. What the machine's own buffers take is charged already.
    pub vm: Vm<SwapPager>,
    /// [`Machine::config`].
    pub config: Config,
    /// [`Machine::content`].
    pub content: K::Content,
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
        let zeroes = Zeroes::new()?;
        let load = LoadControl::new(parts.config.load_control);
        let core = Core { vm: parts.vm, park: Park::new(places, frames), load, swapoff_charge: 0 };
        let has_pool = AtomicBool::new(parts.pool.is_some());
        let space = Space {
            ranges: RangeMap::new(parts.ranges_max),
            discards: Discards::new(),
            remaps: Remaps::new(),
            copying: Copying::new(),
            pending: PendingUnmaps::new(),
            origins: vec![0; parts.objects_max as usize],
            program: parts.program,
            parking: parts.parking,
            files: parts.files,
            pool: parts.pool,
            names: parts.names,
            process: parts.process,
        };
        let locks = &parts.status.locks;
        Ok(Machine {
            zeroes,
            map: RwLock::ranked(Rank::Map, space).timed(&locks.map_shared, &locks.map_exclusive),
            swapping: Mutex::ranked(Rank::Swapping, ()),
            core: Mutex::ranked(Rank::Core, core).timed(&locks.core),
            config: parts.config,
            content: parts.content,
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
            moving: K::Word::ZERO,
            failed_devices: K::Word::ZERO,
            quit: AtomicBool::new(false),
            quit_event: AtomicI32::new(-1),
            parking: parking_area,
            discards_own: AtomicBool::new(false),
        })
    }
}

impl<K: Kernel> Machine<K> {
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

    /// Whether faults of the whole process have to wait for a fork that is being made.
    pub fn is_frozen(&self) -> bool {
        self.frozen.load(Acquire) != 0
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
        if !K::mistake(Mistake::RingsNobody) {
            self.bell().wake_shared(1);
        }
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
            let early = K::mistake(Mistake::UnchargesBeforeTheDrop);
            if early {
                self.core.lock().vm.uncharge(n as u32);
            }
            self.discard_places(map, batch);
            let mut core = self.core.lock();
            core.park.dropped(batch);
            core.vm.uncharge(if early { 0 } else { n as u32 });
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
    pub fn device_failed(&self, device: DeviceId) {
        self.failed_devices.fetch_or(1 << device.0, Relaxed);
        self.failed_devices.wake(i32::MAX as u32);
    }

    /// Nobody is to be told of it any more.
    pub fn forget_failed_device(&self, device: DeviceId) {
        self.failed_devices.fetch_and(!(1 << device.0), Relaxed);
    }

    /// A device that has failed too often and that nobody has been told of, for whoever swaps it off.
    pub fn take_failed_device(&self) -> Option<DeviceId> {
        let device = self.failed_devices.load(Relaxed).trailing_zeros() as usize;
        let device = (device < DEVICES_MAX).then_some(DeviceId(device as u16))?;
        self.forget_failed_device(device);
        Some(device)
    }

    /// Waits until there may be such a device, or the pager shuts down.
    pub fn await_failed_device(&self) {
        self.failed_devices.wait_for(0, Limit::Tick(3_600_000_000_000));
    }

    /// Nobody waits for such devices any more.
    pub fn end_await_failed_device(&self) {
        self.failed_devices.fetch_or(1 << 31, Relaxed);
        self.failed_devices.wake(i32::MAX as u32);
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

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
//! Lock order: `map` -> `core`. `map` is shared while pages are filled or taken, and exclusive while events are read and ranges
//! changed.

pub mod arrivals;
mod config;
mod doorbell;
pub mod failed_devices;
pub mod freeze;
mod remap_gate;
pub mod shortage;
pub mod shutdown;
mod zeroes;

use crate::compressed::Compressed;
use crate::errno;
use crate::files::{DEVICES_MAX, DeviceName};
use crate::inject::Inject;
use crate::kernel::{IoVec, Kernel, Mistake, Uffd as _};
use crate::load_control::LoadControl;
use crate::lock::{Mutex, Rank, RwLock};
use crate::packet::Packet;
use crate::park::{Park, ParkPlace, Parking};
use crate::ranges::RangeMap;
use crate::space::Space;
use crate::space::backlog::Backlog;
use crate::space::copying::Copying;
use crate::space::discards::Discards;
use crate::space::pending_unmaps::PendingUnmaps;
use crate::space::remaps::Remaps;
use crate::unread::Unread;
use arrivals::Arrivals;
pub use config::{Config, Delivery};
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, Ordering::*};
use doorbell::Doorbell;
use failed_devices::FailedDevices;
use freeze::Freeze;
use overspill_swap::SwapPager;
use overspill_vm::Vm;
use overspill_vm::pager::{IoResult, Location};
use overspill_vm::policy::Spec;
use overspill_vm::status::{Outcome, Status};
use overspill_vm::types::{DeviceId, FrameId, ObjectId, PAGE_SHIFT, PAGE_SIZE, PageId};
use remap_gate::RemapGate;
use shortage::Shortage;
use shutdown::Shutdown;
use std::sync::Arc;
pub use zeroes::ZEROES_PAGES;
use zeroes::Zeroes;

/// The core and the state that changes with it. Lock key: all of it by the lock around it, [`Machine::core`].
pub struct Core {
    /// The core.
    pub vm: Vm<SwapPager>,
    /// The owner of each parking place.
    pub park: Park,
    /// Decides whose hard faults have to wait.
    pub load: LoadControl,
    /// Pages that could not be read.
    pub(crate) unread: Unread,
    /// Pages of the pager's own buffers that are charged to the budget. A forked child has none of them.
    pub(crate) buffers: u32,
}

impl Core {
    /// Charges pages of the pager's own buffers, which a forked child does not have.
    pub fn charge_buffers(&mut self, pages: u32) {
        self.vm.charge(pages);
        self.buffers += pages;
        self.show_buffers();
    }

    /// The inverse of [`Core::charge_buffers`].
    pub fn uncharge_buffers(&mut self, pages: u32) {
        self.vm.uncharge(pages);
        self.buffers -= pages;
        self.show_buffers();
    }

    fn show_buffers(&self) {
        self.vm.counters().buffer_bytes.set((self.buffers as u64) << PAGE_SHIFT);
    }

    /// Makes the frame's parked original a second copy (its page is mapped again, or was given up). It is charged until it is
    /// dropped, by [`Machine::drop_places`] or at the end of the write that holds it.
    pub fn orphan(&mut self, frame: FrameId) {
        self.vm.charge(1);
        self.park.orphan(frame);
    }
}

/// One pager of one process.
///
/// Lock key: (L) a lock; (C) constant; (A) atomic, and by itself; (D) atomic, changed by the page daemon only; (S) a struct with a
/// lock key of its own.
pub struct Machine<K: Kernel> {
    /// (C) Pages of zeroes, to fill untouched pages from.
    pub(crate) zeroes: Zeroes<K>,
    /// (L) Ranges and descriptors. Outer lock.
    pub map: RwLock<Space<K>, K::Word>,
    /// (L) Held while a device is added or removed, outside of `map`; a fork holds it while it takes the files along. Nobody else
    /// waits for it: a swapoff's worker that waited could not finish the I/O that the fork waits for.
    pub swapping: Mutex<(), K::Word>,
    /// (L) Held while a device gets space, during the file system's calls; outside of `map`.
    pub(crate) growth: Mutex<(), K::Word>,
    /// (L) The core. Inner lock.
    pub core: Mutex<Core, K::Word>,
    /// (C) The options that were chosen.
    pub config: Config,
    /// (C) How pages are stored.
    pub content: K::Content,
    /// (C) The status block that `overspill run` and `stat` read.
    pub status: &'static Status,
    /// (C) Errors injected for tests.
    pub inject: Inject,
    /// (C) What else belongs to a machine on this kernel: see [`crate::kernel::Host`].
    pub host: K::Host,
    /// (S) How the page daemon is woken: [`Machine::ring_daemon`].
    pub(crate) doorbell: Doorbell<K>,
    /// (S) The events that faulting threads wait for when they serve themselves.
    pub arrivals: Arrivals<K::Word>,
    /// (S) The freeze of a fork.
    pub freeze: Freeze<K::Word>,
    /// (S) Decides when a thread may begin to unmap or move memory.
    pub(crate) remap_gate: RemapGate<K::Word>,
    /// (S) Memory is short, and the page daemon cannot help.
    pub shortage: Shortage,
    /// (S) Devices that failed too often.
    pub failed_devices: FailedDevices<K::Word>,
    /// (S) Whether the pager's threads must end.
    pub shutdown: Shutdown,
    /// (C) The parking area's memory.
    pub parking: Parking<K>,
    /// (A) There is a compressed device. Read before locks are taken.
    pub(crate) has_pool: AtomicBool,
    /// (A) `overspill run` supervises the process and prints its message.
    supervised: AtomicBool,
    /// (A) Other processes may have pages of this one: [`Machine::may_share_pages`].
    pub(crate) shares_pages: AtomicBool,
    /// (D) The page daemon discards pages of the program's, and waits until their event has been read.
    pub(crate) discards_own: AtomicBool,
    /// (A) The kernel has refused a fill, because a call of the program's was to be reported first: [`Machine::let_fills`].
    pub(crate) refused_fill: AtomicBool,
}

/// The parts that a machine is made of.
pub struct Parts<K: Kernel> {
    /// The core. The machine's own buffers are charged already.
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
    /// The most ranges.
    pub ranges_max: usize,
    /// The most memory objects.
    pub objects_max: u16,
}

/// Frames and parking places beyond the budget: for pages above it, and for originals that are still to be dropped.
const PLACES_MORE: u32 = 8192;

impl<K: Kernel> Machine<K> {
    /// Sets one up. No thread is started.
    ///
    /// # Errors
    /// ENOMEM; the parking area cannot be registered.
    pub fn new(mut parts: Parts<K>) -> Result<Self, errno::Errno> {
        parts.vm.set_watches(parts.program.tells_references());
        let frames = (parts.memory_pages + PLACES_MORE) as usize;
        let places = (parts.memory_pages + PLACES_MORE).next_multiple_of(64);
        let parking_area = Parking::new(places, &parts.parking)?;
        let zeroes = Zeroes::new()?;
        let load = LoadControl::new(parts.config.load_control);
        let core = Core { vm: parts.vm, park: Park::new(places, frames), load, unread: Unread::new(), buffers: 0 };
        let has_pool = AtomicBool::new(parts.pool.is_some());
        let space = Space {
            ranges: RangeMap::new(parts.ranges_max),
            discards: Discards::new(),
            remaps: Remaps::new(),
            copying: Copying::new(),
            backlog: Backlog::new(),
            pending: PendingUnmaps::new(),
            origins: vec![0; parts.objects_max as usize],
            homes: (0..parts.objects_max).map(|_| None).collect(),
            program: parts.program,
            parking: parts.parking,
            files: parts.files,
            pool: parts.pool,
            names: parts.names,
            process: parts.process,
            mappings: K::Mappings::default(),
        };
        let locks = &parts.status.locks;
        Ok(Machine {
            zeroes,
            map: RwLock::ranked(Rank::Map, space).timed(&locks.map_shared, &locks.map_exclusive),
            swapping: Mutex::ranked(Rank::Swapping, ()),
            growth: Mutex::ranked(Rank::Growth, ()),
            core: Mutex::ranked(Rank::Core, core).timed(&locks.core),
            config: parts.config,
            content: parts.content,
            status: parts.status,
            inject: parts.inject,
            host: parts.host,
            doorbell: Doorbell::new(),
            arrivals: Arrivals::new(),
            freeze: Freeze::new(),
            remap_gate: RemapGate::new(),
            shortage: Shortage::new(),
            failed_devices: FailedDevices::new(),
            shutdown: Shutdown::new(),
            parking: parking_area,
            has_pool,
            supervised: AtomicBool::new(false),
            shares_pages: AtomicBool::new(false),
            discards_own: AtomicBool::new(false),
            refused_fill: AtomicBool::new(false),
        })
    }
}

impl<K: Kernel> Machine<K> {
    /// Wakes the page daemon if it sleeps.
    pub fn ring_daemon(&self) {
        self.doorbell.ring(&self.host);
    }

    /// Wakes the page daemon, also if it does not sleep yet but is about to.
    pub fn ring_daemon_anyway(&self) {
        self.doorbell.ring_anyway(&self.host);
    }

    /// Whether there is a compressed device. It may be gone by the time that the caller uses it.
    pub fn has_pool(&self) -> bool {
        self.has_pool.load(Relaxed)
    }

    /// From now on other processes may have pages of this one: it has forked, or is a fork's child, or has asked for equal pages to
    /// be merged (KSM).
    pub fn may_share_pages(&self) {
        self.shares_pages.store(true, Relaxed);
    }

    /// Whether `overspill run` supervises the process and prints its message.
    pub fn is_supervised(&self) -> bool {
        self.supervised.load(Relaxed)
    }

    /// Sets whether it does.
    pub fn set_supervised(&self, supervised: bool) {
        self.supervised.store(supervised, Relaxed);
    }

    /// Drops the copies that wait to be dropped, if they make a batch (or `all`).
    pub fn drop_places(&self, map: &Space<K>, all: bool) {
        while self.drop_some(map, all) {}
    }

    /// As [`Machine::drop_places`], with the map given up between batches.
    pub(crate) fn drop_in_turns(&self, all: bool) {
        while self.drop_some(&self.map.read(), all) {}
    }

    fn drop_some(&self, map: &Space<K>, all: bool) -> bool {
        let mut batch = [ParkPlace::NONE; DROPS_BATCH];
        let n = self.core.lock().park.drop_batch(&mut batch, all);
        if n == 0 {
            return false;
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
        self.arrivals.announce();
        true
    }

    /// Discards the content of parking places that nobody owns or holds. Sorts them.
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

    /// The descriptor to write to; -1 if this write is to fail.
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

    /// Gives an object a replacement policy of its own, or changes that ([`overspill_vm::Vm::set_policy_of`]). Allocates. Returns
    /// `false` if there can be no more.
    #[must_use]
    pub fn set_policy_of(&self, object: ObjectId, spec: &Spec) -> bool {
        let new = self.core.lock().vm.make_policy(spec);
        let (mut name, mut region) = (Packet::new(), Packet::new());
        let _ = write!(name, "{spec}");
        self.put_name(&self.map.read(), object, &mut region);
        let mut core = self.core.lock();
        let old = core.vm.set_policy_of(object, new);
        if let Some(row) = core.vm.own_policy(object).filter(|_| old.is_ok()).and_then(|number| self.status.policies.get(number)) {
            row.policy.set(name.bytes());
            row.region.set(region.bytes());
        }
        drop(core);
        old.is_ok() // what it holds is dropped outside of the lock
    }

    /// The object has the pager's policy again, if it had one of its own.
    pub fn end_policy_of(&self, object: ObjectId) {
        let mut core = self.core.lock();
        let number = core.vm.own_policy(object);
        let old = core.vm.end_policy_of(object);
        if let Some(row) = number.and_then(|number| self.status.policies.get(number)) {
            row.policy.set(b"");
            row.region.set(b"");
        }
        drop(core);
        drop(old); // outside of the lock
    }

    /// Writes how users know the object's region: by the name of its file, or by its size and place.
    pub fn put_name(&self, map: &Space<K>, object: ObjectId, to: &mut Packet) {
        if let Some(home) = map.home(object) {
            to.put(home.name.bytes());
        } else if let Some(range) = map.origins.get(object.0 as usize).and_then(|start| map.ranges.find(*start)) {
            let _ = write!(to, "{} KiB at {:#x}", (range.end - range.start) >> 10, range.start);
        }
    }

    /// Reports that the page at `location` is lost. Only the first loss is kept. => its device is still there
    #[cold]
    #[inline(never)] // its stack use must not be part of its callers'
    pub fn note_loss(&self, map: &Space<K>, page: PageId, Location { device, offset, .. }: Location, why: IoResult) {
        if !self.status.loss.is_empty() {
            return;
        }
        let mut said = Packet::new();
        let _ = write!(said, "the page at {:#x} could not be read back from byte {offset} of the ", map.addr(page));
        match map.home(page.object()).filter(|_| device == DeviceId::HOME) {
            Some(home) => said.put(b"file ").put(home.name.bytes()),
            None => said.put(b"swap device ").put(map.names[device.0 as usize].bytes()),
        };
        let _ = match why {
            IoResult::Io(e) => write!(said, ": error {e}"),
            IoResult::Beyond => write!(said, ": the file ends before it"),
            _ => write!(said, ": its content is not what was written there"),
        };
        self.status.loss.set(said.bytes());
    }

    /// Stops the program: there is no room to remember one page more.
    pub fn stop_table_full(&self) -> ! {
        self.stop_program(
            b"the program was stopped: it has touched more pages than Overspill's tables have room for (1 TiB where they lie together, 128 GiB in scattered pieces of 256 KiB, a page in each of 524,288 places; less under a limit of address space: raise it with ulimit -v)",
        )
    }

    /// Stops the program: there is no room for one range more.
    pub fn stop_ranges_full(&self) -> ! {
        self.stop_program(
            b"the program was stopped: it has more mappings than Overspill has room for, which is twice what vm.max_map_count was when it began; if that was raised since, start it again",
        )
    }

    /// Stops the program: the message is left for `overspill run`, and written to standard error if nobody supervises.
    pub fn stop_program(&self, message: &[u8]) -> ! {
        self.status.message.set(message);
        self.status.outcome.store(Outcome::Stopped as u32, Release);
        K::stop(message, !self.is_supervised())
    }
}

/// Parked originals that are dropped at a time, with one TLB flush.
pub const DROPS_BATCH: usize = 32;

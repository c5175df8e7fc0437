//! The page daemon: keeps frames free by parking, laundering and reclaiming in batches.
//!
//! ```text
//!   watch     take victims from the policy; have the kernel note which are used, if it can           map shared, one batch
//!   park      ask it, or take victims; MOVE runs of neighbouring pages out of sight                  map shared, one batch
//!   pass      take pages that a reader has passed; drop those that their file has, park the others  map shared, one batch
//!   launder   compare with tags; unchanged -> clean, zero -> dropped, else write in clusters        no lock meanwhile
//!             (encrypted: each write's pages are sealed into its buffer)
//!   reclaim   discard the parked content of clean pages, many with one TLB flush                    map shared, one batch
//!
//!   at rest   give swap space that stays free back to the file system (growth.rs)                   no lock in the system call
//! ```
//!
//! Pages for a compressed device are packed and stored at once. Pages that it refuses are written to the next device.
//!
//! Each step takes the locks anew and works on one batch, so a fault waits for at most one batch's ioctl.

mod copy_out;
mod evict;
mod launder;
mod out_of_memory;

use crate::buffers::{Buffers, bits};
use crate::compressed::Compressed;
use crate::errno::Errno;
use crate::growth::GiveBack;
use crate::kernel::{Content as _, Host as _, Io as _, IoVec, Kernel, Mappings as _};
use crate::machine::{Delivery, Machine};
use crate::park::ParkPlace;
use crate::reader::TOKEN_OTHER;
use crate::space::Space;
use crate::space::copying::COPIES_MAX;
use crate::waited::Waited;
use crate::write_back::WriteBack;
use launder::{Dirty, WRITES_MAX, Write};
pub use launder::{buffer_pages, writes};
use overspill_vm::types::{ObjectId, PageId};
use overspill_vm::{Laundry, Resident};

/// Pages per step.
pub const BATCH: usize = 128;
const _: () = assert!(BATCH <= COPIES_MAX);
/// Pages that are read at a time when pages are copied out. Each read may wait for the kernel's lock on the program's address
/// space, for which the program's threads may be competing.
const COPY_PAGES: usize = 32;
/// Blocks of compressed memory given back with one TLB flush.
const TRIM_BLOCKS: usize = 32;
/// How long it sleeps when nobody rings, in nanoseconds.
const SLEEP_NS: u64 = 500_000_000;
/// How long it sleeps if the process is to become smaller, and there is nothing that it could evict now, in nanoseconds.
const SHRINK_LOOK_NS: u64 = 1_000_000;

/// When it has worked for this long, it offers its CPU after each turn of that length, in nanoseconds. (The scheduler would take it
/// away only after milliseconds. A handler whose read had ended waited for that, and so did a thread whose discard kept all others
/// from being served.)
const LONG_NS: u64 = 2_000_000;
pub(crate) const TURN_NS: u64 = 50_000;

/// The page daemon's part in a budget that processes share.
pub trait Sharing<K: Kernel> {
    /// One look at the others. => no lock is held
    fn step(&mut self, machine: &Machine<K>);
    /// Whether the process is to become smaller.
    fn is_shrinking(&self) -> bool;
}

/// For a process that shares its budget with nobody.
impl<K: Kernel> Sharing<K> for () {
    fn step(&mut self, _: &Machine<K>) {}
    fn is_shrinking(&self) -> bool {
        false
    }
}

/// How many pages are neighbours, from the first on.
fn run_length(pages: &[Resident]) -> usize {
    let first = pages.first().map_or(0, |m| m.0.raw());
    pages.iter().enumerate().take_while(|(i, m)| m.0.raw() == first + *i as u64).count()
}

/// One page daemon.
pub struct Daemon<K: Kernel, S = ()> {
    io: K::Io,
    batch: Vec<Resident>,
    /// Pages of the batch that are dropped.
    drops: Vec<Resident>,
    laundry: Vec<Laundry>,
    places: Vec<ParkPlace>,
    dirty: Vec<Dirty>,
    /// Changed pages that go to their files.
    home_dirty: Vec<Dirty>,
    /// Pages of the batch that were EBUSY.
    busy: Vec<PageId>,
    /// Pages of the batch that cannot be moved because their memory is not writable.
    unwritable: Vec<PageId>,
    mappings: K::Mappings,
    /// Locked memory was in the way.
    locked_seen: bool,
    /// How many pages in a row could not be parked.
    fruitless: u32,
    writes: Vec<Write>,
    /// The first of them, which may be to swap. Those to files need no buffers, and may be any.
    swap_writes: usize,
    write_pages: usize,
    /// One for each write, if writes are encrypted; the first is charged all the time. The last is not charged: a scratch page, and
    /// the pages that are copied out.
    buffers: Buffers<K>,
    in_flight: usize,
    write_back: WriteBack<K>,
    /// Since when it has been stuck, if it is.
    stuck: Option<Waited>,
    /// When devices were last asked again whether they have space.
    asked_at: u64,
    freed_before: u64,
    /// Why a write failed; forgotten when a frame comes free.
    trouble: Option<Trouble>,
    /// Until when a swap device that fails is left alone.
    rests_until: u64,
    give_back: GiveBack,
    /// When it began to work, when it last offered its CPU, and whether the host knows that it works for long.
    since: u64,
    offered: u64,
    is_long: bool,
    sharing: S,
}

/// Why a write failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    /// A write to swap, or there is no room in swap.
    Swap(Errno),
    /// A write to the file that is this object's home.
    File(Errno, ObjectId),
}

/// The result of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Something was done; there may be more.
    Worked,
    /// Nothing is wanted.
    Idle,
    /// Something is wanted, but there is nothing to do except to wait for writes.
    Waiting,
    /// Something is wanted and nothing can be done.
    Stuck,
}

impl<K: Kernel> Daemon<K> {
    /// For a process that shares its budget with nobody. The daemon has I/O of its own.
    ///
    /// # Errors
    /// As [`Daemon::sharing`].
    pub fn new(machine: &Machine<K>, engine: K::Engine) -> Result<Self, Errno> {
        Self::sharing(machine, engine, ())
    }
}

impl<K: Kernel, S: Sharing<K>> Daemon<K, S> {
    /// As [`Daemon::new`], for a process that shares its budget as `sharing` says.
    ///
    /// # Errors
    /// As [`Kernel::io`]; ENOMEM.
    pub fn sharing(machine: &Machine<K>, engine: K::Engine, sharing: S) -> Result<Self, Errno> {
        let (count, write_pages) = machine.config.writes;
        let is_sealed = machine.content.is_sealed();
        let sealed = if is_sealed { count } else { 0 };
        let mut buffers = Buffers::new(core::iter::repeat_n(write_pages, sealed).chain([1 + COPY_PAGES]))?;
        if is_sealed {
            buffers.hold(&mut machine.core.lock(), 0, write_pages as u32); // so that a write can always begin
        }
        // in a descriptor table of the pager's own, if it has one
        let opened = || if machine.config.delivery == Delivery::Threads { K::Mappings::opened() } else { K::Mappings::default() };
        machine.map.write().mappings = opened();
        Ok(Daemon {
            io: K::io(engine, 32)?,
            batch: Vec::with_capacity(BATCH),
            drops: Vec::with_capacity(BATCH),
            laundry: Vec::with_capacity(BATCH),
            places: Vec::with_capacity(BATCH),
            dirty: Vec::with_capacity(BATCH),
            home_dirty: Vec::with_capacity(BATCH),
            busy: Vec::with_capacity(BATCH),
            unwritable: Vec::with_capacity(BATCH),
            mappings: opened(),
            locked_seen: false,
            fruitless: 0,
            writes: (0..WRITES_MAX).map(|_| Write::new()).collect(),
            swap_writes: count,
            write_pages,
            buffers,
            in_flight: 0,
            write_back: WriteBack::new(machine, TOKEN_OTHER + WRITES_MAX as u64)?,
            stuck: None,
            asked_at: 0,
            freed_before: 0,
            trouble: None,
            rests_until: 0,
            give_back: GiveBack::default(),
            since: K::now_ns(),
            offered: 0,
            is_long: false,
            sharing,
        })
    }

    /// Runs until the machine shuts down; sleeps while nothing is wanted. `each` is called before each step, also while a fork is
    /// being made.
    pub fn run(&mut self, machine: &Machine<K>, mut each: impl FnMut(&Machine<K>)) {
        while !machine.shutdown.has_begun() {
            each(machine);
            if machine.freeze.is_on() {
                self.settle(machine);
                machine.freeze.wait(10_000_000);
                continue;
            }
            let rings = machine.doorbell.count(&machine.host);
            let step = self.step(machine);
            self.watch_progress(machine);
            if step != Step::Stuck {
                machine.shortage.end();
            }
            match step {
                Step::Worked => self.give_way(machine),
                Step::Waiting => self.await_writes(machine),
                Step::Idle => {
                    self.fruitless = 0;
                    if self.in_flight > 0 {
                        self.await_writes(machine); // a ring does not end it
                        continue;
                    }
                    if self.sharing.is_shrinking() {
                        self.sharing.step(machine); // the process may have shrunk to its target
                        if self.sharing.is_shrinking() {
                            machine.doorbell.pause(&machine.host, SHRINK_LOOK_NS);
                        }
                        continue;
                    }
                    let sleep = self.before_sleep(machine).unwrap_or(SLEEP_NS);
                    self.rests(machine);
                    machine.doorbell.sleep(&machine.host, rings, sleep, || {
                        !machine.core.lock().vm.has_work() && !machine.shutdown.has_begun() && !machine.freeze.is_on()
                    });
                    self.since = K::now_ns();
                }
                Step::Stuck => self.stuck(machine),
            }
        }
        self.settle(machine);
        self.give_back_buffers(machine, true);
    }

    /// It is about to sleep.
    fn rests(&mut self, machine: &Machine<K>) {
        if core::mem::take(&mut self.is_long) {
            machine.host.daemon_works(false);
        }
    }

    fn await_writes(&mut self, machine: &Machine<K>) {
        self.rests(machine);
        self.io.wait(Some(1_000_000));
        self.since = K::now_ns();
        self.reap(machine);
    }

    /// Rarely needed work: refreshes counters that cost a walk, drops second copies that are fewer than a batch, gives back buffers
    /// and swap space. Returns how long to sleep if there is more of it, in nanoseconds.
    fn before_sleep(&mut self, machine: &Machine<K>) -> Option<u64> {
        machine.catch_up();
        {
            let mut core = machine.core.lock();
            core.vm.metadata_bytes();
            core.vm.devices_mut().retry(true);
        }
        machine.drop_places(&machine.map.read(), true);
        self.give_back_buffers(machine, false);
        let later = (self.buffers.any(1) || self.write_back.has_buffers()).then_some(K::UNUSED_NS);
        self.give_back.step(machine).into_iter().chain(later).min()
    }

    /// Gives back all buffers that no write uses, or those that were not used for a while.
    fn give_back_buffers(&mut self, machine: &Machine<K>, all: bool) {
        let busy = bits(self.writes[..self.swap_writes].iter().map(|write| write.busy));
        self.buffers.give_back(machine, busy | u64::from(!all), all);
        self.write_back.give_back(machine, all);
    }

    /// Waits for every write in flight.
    pub fn settle(&mut self, machine: &Machine<K>) {
        while self.in_flight > 0 {
            self.io.wait(Some(10_000_000));
            self.reap(machine);
        }
        let map = machine.map.read();
        machine.drop_places(&map, true);
    }

    /// One batch of the most wanted step.
    pub fn step(&mut self, machine: &Machine<K>) -> Step {
        self.step_of(machine, BATCH as u32)
    }

    /// As [`Daemon::step`], with at most `most` pages.
    pub fn step_of(&mut self, machine: &Machine<K>, most: u32) -> Step {
        match self.step_in_memory(machine, most) {
            // pages in frames cannot go: they are locked, or the budget has become smaller than compressed memory alone
            Step::Stuck if self.write_back(machine, true) => Step::Waiting,
            step => step,
        }
    }

    /// The same, except that what is in compressed memory only goes on if that is getting full.
    fn step_in_memory(&mut self, machine: &Machine<K>, most: u32) -> Step {
        self.reap(machine);
        machine.step_on();
        self.sharing.step(machine);
        self.give_back_buffers(machine, false);
        {
            let map = machine.map.read();
            machine.drop_places(&map, true);
            if let Some(pool) = &map.pool {
                pool.refill(&mut machine.core.lock().vm);
                machine.trim(&map, pool);
            }
        }
        self.write_back(machine, false);
        let (demand, room, available, listed) = {
            let core = machine.core.lock();
            core.vm.show_policies(machine.status);
            let vm = &core.vm;
            (vm.demand(), vm.room(), vm.available(), vm.listed() + vm.watched())
        };
        if demand.is_none() {
            return match (room > 0, self.in_flight > 0) {
                (true, _) => Step::Idle,
                (false, true) => Step::Waiting,
                // nothing free and nothing to ask for: everything is wired
                (false, false) => Step::Stuck,
            };
        }
        if demand.adopt {
            machine.adopt_piece(&mut machine.map.write(), 0, usize::MAX);
            return Step::Worked;
        }
        if demand.reclaim > 0 {
            self.reclaim(machine, demand.reclaim.min(most));
            return Step::Worked;
        }
        let can_launder = self.can_launder(machine, available);
        if demand.launder.min(can_launder) > 0 && self.launder(machine, demand.launder.min(most).min(can_launder)) {
            return Step::Worked;
        }
        if demand.pass > 0 {
            self.pass(machine, demand.pass.min(most));
            return Step::Worked;
        }
        let all_tried = self.fruitless > listed;
        if demand.watch > 0 {
            self.watch(machine, demand.watch.min(most));
            if !all_tried {
                return Step::Worked;
            }
        }
        if demand.park > 0 && (self.park(machine, demand.park.min(most)) || !all_tried) {
            return Step::Worked; // or pages that were not tried yet may go
        }
        if self.in_flight > 0 { Step::Waiting } else { Step::Stuck }
    }

    /// As [`WriteBack::issue`]. Returns whether a write was issued.
    fn write_back(&mut self, machine: &Machine<K>, urgent: bool) -> bool {
        if !machine.has_pool() || machine.freeze.is_on() {
            return false;
        }
        let issued = self.write_back.issue(machine, &mut self.io, urgent);
        self.in_flight += issued;
        issued > 0
    }

    fn reclaim(&mut self, machine: &Machine<K>, most: u32) {
        let map = machine.map.read();
        let mut core = machine.core.lock();
        core.vm.reclaim_batch(most, &mut self.batch);
        let orphans = core.park.reclaim(self.batch.iter().map(|m| m.1), &mut self.places);
        core.vm.charge(orphans);
        drop(core);
        machine.discard_places(&map, &mut self.places);
        let mut core = machine.core.lock();
        core.park.dropped(&self.places);
        core.vm.frames_dropped(self.batch.iter().map(|m| m.1));
        if let Some(pool) = &map.pool {
            pool.refill(&mut core.vm);
        }
        drop(core);
        drop(map);
        machine.arrivals.announce();
    }
}

impl<K: Kernel, S> Daemon<K, S> {
    /// Whether others should have its CPU for a moment.
    fn is_turn_over(&self) -> bool {
        let now = K::now_ns();
        now - self.since > LONG_NS && now - self.offered > TURN_NS
    }

    /// Offers its CPU, if its turn is over. => no lock is held
    fn give_way(&mut self, machine: &Machine<K>) {
        if self.is_turn_over() {
            self.is_long = true;
            machine.host.daemon_works(true); // each time: a handler may have begun to give way meanwhile
            K::yield_now();
            self.offered = K::now_ns();
        }
    }
}

impl<K: Kernel> Machine<K> {
    /// Gives free blocks back to the kernel if there are many, and takes their charge off the budget. => `map` is held: a fork does
    /// not come in between
    fn trim(&self, map: &Space<K>, device: &Compressed<K>) {
        let mut blocks = [0; TRIM_BLOCKS];
        let mut ranges = [IoVec { base: 0, len: 0 }; TRIM_BLOCKS];
        loop {
            let mut n = 0;
            {
                let mut pool = device.pool.lock();
                while n < TRIM_BLOCKS
                    && pool.wants_trim()
                    && let Some((block, range)) = pool.pool.trim_begin()
                {
                    blocks[n] = block;
                    ranges[n] = IoVec { base: device.arena + range.start, len: range.len() };
                    n += 1;
                }
            }
            if n == 0 {
                return;
            }
            // SAFETY: parts of our own arena that are neither free nor in use until `trim_end`: nobody reads or writes them.
            unsafe { K::discard_ranges(&map.process, &ranges[..n]) };
            let mut core = self.core.lock();
            let mut pool = device.pool.lock();
            let pages: u32 = blocks[..n].iter().map(|&block| pool.pool.trim_end(block)).sum();
            drop(pool);
            core.vm.uncharge(pages);
            device.refill(&mut core.vm);
            drop(core);
            self.arrivals.announce();
        }
    }
}

impl<K: Kernel, S> Drop for Daemon<K, S> {
    fn drop(&mut self) {
        // the kernel may still read the buffers, which are unmapped after this
        while self.in_flight > 0 {
            self.io.wait(None);
            while let Some(done) = self.io.completion() {
                self.in_flight -= usize::from(done.token >= TOKEN_OTHER);
            }
        }
    }
}

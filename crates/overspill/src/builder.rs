//! Sets a pager up and starts its threads.

use crate::devices;
use crate::error::{Error, os};
use crate::fault;
use crate::forks;
use crate::pager::{Owner, Pager, Regions};
use crate::reads::{self, Buffers, Queue};
use crate::shared::Shared;
use crate::turns::Turns;
use crate::write_back::WriteBack;
use overspill_linux::credentials::Follower;
use overspill_linux::daemon::Daemon;
use overspill_linux::device_spec::{self, DeviceSpec};
use overspill_linux::family::sharing::Sharing;
use overspill_linux::io::Engine;
use overspill_linux::lock::{self, Rank};
use overspill_linux::machine::Delivery;
use overspill_linux::reader;
use overspill_linux::setup::{self, Options, SetupError};
use overspill_linux::status_file::StatusFile;
use overspill_linux::sys::{self, Errno};
use overspill_linux::{handler, threads};
use overspill_vm::MEMORY_BYTES_MIN;
use overspill_vm::status::{Outcome, Status};
use overspill_vm::types::PAGE_SHIFT;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::atomic::Ordering::*;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

/// Options of a [`Pager`]; from [`Pager::builder`].
#[derive(Clone, Debug)]
pub struct Builder {
    memory: Option<u64>,
    swap: PathBuf,
    swap_limit: u64,
    more: Vec<DeviceSpec>,
    policy: String,
    delivery: Delivery,
    engine: Engine,
    encrypt: bool,
    load_control: bool,
    follow_pointers: bool,
    regions_max: u16,
    managed_max: u64,
    manual_daemon: bool,
    decisions_max: usize,
    ahead_pages_max: Option<u32>,
    write_back: Duration,
    changed_max: Option<u64>,
}

impl Builder {
    /// The budget in bytes: the most that all regions together, with buffers, have in memory. At least [`MEMORY_BYTES_MIN`]. More
    /// than the machine has counts as all that it has.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }
    /// Where pages go that do not fit: a directory, for a file without a name, or the name of a new file, which is removed at once.
    /// The default is [`std::env::temp_dir`].
    pub fn swap(mut self, place: impl Into<PathBuf>) -> Self {
        self.swap = place.into();
        self
    }
    /// The most swap space, in bytes. The default, 0, is all that the file system has, up to 256 GiB.
    pub fn swap_limit(mut self, bytes: u64) -> Self {
        self.swap_limit = bytes;
        self
    }
    /// Adds a swap device; may be called several times. Then [`Builder::swap`] and [`Builder::swap_limit`] have no effect.
    pub fn swap_device(mut self, device: DeviceSpec) -> Self {
        self.more.push(device);
        self
    }
    /// The replacement policy: one of [`POLICIES`](crate::POLICIES), with parameters if you like, such as `2q:kin=0.25`. The
    /// default is `use-once`.
    pub fn policy(mut self, spec: impl Into<String>) -> Self {
        self.policy = spec.into();
        self
    }
    /// How faults are delivered. The default is [`Delivery::InThread`].
    pub fn delivery(mut self, delivery: Delivery) -> Self {
        self.delivery = delivery;
        self
    }
    /// How I/O is issued. The default is io_uring where the kernel allows it.
    pub fn engine(mut self, engine: Engine) -> Self {
        self.engine = engine;
        self
    }
    /// Whether swap is encrypted, with a key that never leaves this process. The default is `true`. It costs about half a
    /// microsecond per page each way. Without it, pages are still checked when they come back.
    pub fn encrypt(mut self, on: bool) -> Self {
        self.encrypt = on;
        self
    }
    /// Whether threads take turns when they take each other's pages away so that none makes progress: all but one may read only one
    /// page every 5 ms, as long as that pays. Only with [`Delivery::Threads`]. The default is `true`.
    pub fn load_control(mut self, on: bool) -> Self {
        self.load_control = on;
        self
    }
    /// Whether the pager reads ahead the pages whose addresses it finds in pages that are read in order, such as an array of
    /// pointers. It stops while too few of these pages are used. The default is `true`.
    pub fn follow_pointers(mut self, on: bool) -> Self {
        self.follow_pointers = on;
        self
    }
    /// The most regions at a time. The default is 64.
    pub fn regions_max(mut self, regions: u16) -> Self {
        self.regions_max = regions.max(1);
        self
    }
    /// The most bytes of all regions together. The default is 128 GiB, but at most eight times the machine's memory, and four times
    /// a limit on address space. The pager's tables take 6 % of it as address space, and memory only as pages are used.
    pub fn managed_max(mut self, bytes: u64) -> Self {
        self.managed_max = bytes;
        self
    }
    /// Changed pages of read-write regions of files are written to the file after this time at the latest, and if there are more
    /// than `changed` bytes of them. The default is 30 s, and a quarter of the budget. 0 s means always; changes that must not be
    /// lost need [`FileRegion::flush`](crate::FileRegion::flush).
    ///
    /// For bytes written by [`FileRegion::write_at`](crate::FileRegion::write_at) the limit is kept: that call writes back itself.
    /// For memory that is written directly, the pager looks more often, the faster pages change. If they change faster than the
    /// device takes them, only the budget limits them.
    #[must_use]
    pub fn write_back(mut self, after: Duration, changed: u64) -> Self {
        (self.write_back, self.changed_max) = (after, Some(changed));
        self
    }
    /// For tests: starts no thread; after each fault the faulting thread does the page daemon's work at once.
    #[doc(hidden)]
    pub fn manual_daemon(mut self, on: bool) -> Self {
        self.manual_daemon = on;
        self
    }
    /// For tests: remember this many decisions.
    #[doc(hidden)]
    pub fn decisions_max(mut self, decisions: usize) -> Self {
        self.decisions_max = decisions;
        self
    }
    /// For tests: bound the windows of readahead and zero-ahead, in pages.
    #[doc(hidden)]
    pub fn ahead_pages_max(mut self, pages: u32) -> Self {
        self.ahead_pages_max = Some(pages);
        self
    }

    fn devices(&self) -> Vec<DeviceSpec> {
        let mut devices = self.more.clone();
        if devices.is_empty() {
            let mut device = DeviceSpec::file(&self.swap);
            device.size = (self.swap_limit != 0).then_some(self.swap_limit);
            devices.push(device);
        }
        device_spec::settle_priorities(&mut devices, core::iter::empty());
        devices
    }

    /// Sets the pager up and starts its threads. All memory that faults will ever need is allocated here.
    ///
    /// # Errors
    /// [`Error::NoBudget`], [`Error::BudgetTooSmall`], [`Error::Policy`], [`Error::Userfaultfd`], [`Error::Swap`],
    /// [`Error::Device`], [`Error::Engine`], [`Error::Key`], [`Error::Resources`], [`Error::Handler`], [`Error::HandlerReplaced`],
    /// [`Error::TooManyPagers`].
    pub fn build(self) -> Result<Pager, Error> {
        let memory = self.memory.ok_or(Error::NoBudget)?;
        if memory < MEMORY_BYTES_MIN {
            return Err(Error::BudgetTooSmall);
        }
        let memory = memory.min(machine_bytes().max(MEMORY_BYTES_MIN));
        let swap = self.devices();
        if let Some(double) = device_spec::twice(&swap) {
            return Err(Error::Swap { place: double.into(), source: os(libc::EBUSY) });
        }
        for device in &swap {
            devices::check(device)?;
        }
        device_spec::has_place(&swap).map_err(|why| Error::Device(format!("the swap device compressed {why}")))?;
        let policy = self.policy.parse().map_err(Error::Policy)?;
        let engine = if self.manual_daemon { Engine::Psync } else { self.engine };
        let engine = resolve(engine)?;
        let delivery = if self.manual_daemon { Delivery::InThread } else { self.delivery };
        let cluster_pages = setup::cluster_pages((memory >> PAGE_SHIFT).min(1 << 28) as u32);
        let cpus = if delivery == Delivery::Threads { allowed_cpus() } else { Vec::new() };
        let pages_max = (self.managed_max >> PAGE_SHIFT).clamp(1, 1 << 32);
        if !has_room_for_tables(pages_max, self.regions_max) {
            return Err(Error::Resources(os(libc::ENOMEM)));
        }

        let block = StatusFile::create().map_err(Error::Resources)?;
        block.status().init(std::process::id());
        // SAFETY: only the machine gets this reference. The block lives in `Shared` next to the machine and is dropped after it;
        // its mapping does not move. `Pager::counters` hands it out for no longer than the pager lives.
        let status: &'static Status = unsafe { &*std::ptr::from_ref(block.status()) };
        let options = Options {
            memory_bytes: memory,
            swap: &swap,
            policy,
            engine,
            delivery,
            encrypt: self.encrypt,
            load_control: self.load_control,
            follow_pointers: self.follow_pointers,
            whole_program: false,
            pages_max,
            objects_max: self.regions_max,
            ahead_pages_max: self.ahead_pages_max,
            decisions_max: self.decisions_max,
        };
        let machine = setup::machine(&options, status).map_err(|e| match e {
            SetupError::Swap(e, place) => Error::Swap { place: place.into(), source: os(e) },
            SetupError::Engine(e) => Error::Engine(os(e)),
            SetupError::Memory(e) => Error::Resources(os(e)),
            SetupError::Key(e) => Error::Key(os(e)),
            e => Error::Userfaultfd(e),
        })?;
        machine.content.keep_from_children();
        if !self.manual_daemon && delivery == Delivery::InThread {
            let mut core = machine.core.lock();
            core.charge_buffers(reader::buffer_pages(cluster_pages) as u32); // those of threads that serve themselves
            core.vm.set_under_way_max(reader::deep_pages(cluster_pages) as u32, 0);
            core.vm.set_drops();
        }
        let quit = reads::event().map_err(|e| Error::Resources(os(e)))?;
        machine.shutdown.set_event(quit.raw());
        let budget = memory >> PAGE_SHIFT;
        let regions = Regions {
            free: (0..self.regions_max).rev().collect(),
            pages_left: pages_max,
            wired_left: budget / 2,
            moments_left: budget / 8,
        };
        let resources = |e| Error::Resources(os(e));
        let manual = self
            .manual_daemon
            .then(|| Daemon::sharing(&machine, engine, Sharing::default()).map(|daemon| lock::Mutex::ranked(Rank::Daemon, daemon)))
            .transpose()
            .map_err(resources)?;
        let shared = Arc::new(Shared {
            machine,
            buffers: (delivery == Delivery::InThread)
                .then(|| Buffers::new(cluster_pages, engine))
                .transpose()
                .map_err(resources)?,
            queue: Queue::new().map_err(resources)?,
            cluster_pages,
            engine,
            manual,
            swapoffs: Turns::default(),
            quit,
            write_back: WriteBack::new(self.write_back, self.changed_max.unwrap_or(memory / 4) >> PAGE_SHIFT),
            _status: block,
        });
        forks::install().map_err(resources)?;
        fault::prepare(delivery == Delivery::InThread)?;
        // SAFETY: behind an Arc, which `Owner` holds until its drop has called `leave`.
        let place = unsafe { fault::enter(Arc::as_ptr(&shared)) }.ok_or(Error::TooManyPagers)?;
        let owner = Owner { shared, place, threads: Vec::new(), regions: Mutex::new(regions), moment_over: Condvar::new() };
        let owner = if self.manual_daemon { owner } else { owner.start(engine, cluster_pages, &cpus)? };
        status.outcome.store(Outcome::Running as u32, Release);
        Ok(Pager(Arc::new(owner)))
    }
}

impl Pager {
    /// A builder with the defaults. [`Builder::memory`] must be called.
    pub fn builder() -> Builder {
        Builder {
            memory: None,
            swap: std::env::temp_dir(),
            swap_limit: 0,
            more: Vec::new(),
            policy: overspill_vm::policy::DEFAULT.into(),
            delivery: Delivery::default(),
            engine: Engine::default(),
            encrypt: true,
            load_control: true,
            follow_pointers: true,
            regions_max: 64,
            managed_max: managed_max(),
            manual_daemon: false,
            decisions_max: 0,
            ahead_pages_max: None,
            write_back: Duration::from_secs(30),
            changed_max: None,
        }
    }
}

/// Ends the process when a pager's thread panics. The program would wait for that thread for ever, or go on with a pager whose
/// state nobody knows.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::abort();
        }
    }
}

type Ready = Sender<Result<(), Errno>>;

impl Owner {
    fn start(mut self, engine: Engine, cluster_pages: usize, cpus: &[usize]) -> Result<Self, Error> {
        let (ready, answers) = mpsc::channel();
        self.spawn("overspill-daemon", &ready, move |shared, up| {
            threads::daemon(&shared.machine, engine, &mut Follower::none(), up)
        })?;
        self.spawn("overspill-reader", &ready, move |shared, up| {
            reads::run(&shared.machine, &shared.queue, engine, cluster_pages, up)
        })?;
        self.spawn("overspill-empty", &ready, |shared, up| {
            up();
            devices::empty_failing(shared);
            Ok(())
        })?;
        self.spawn("overspill-flush", &ready, |shared, up| {
            up();
            shared.write_back.run();
            Ok(())
        })?;
        for &cpu in cpus {
            let cpu = (cpus.len() > 1).then_some(cpu);
            self.spawn("overspill-fault", &ready, move |shared, up| {
                handler::run(&shared.machine, engine, cluster_pages, cpu, &mut Follower::none(), up)
            })?;
        }
        drop(ready);
        for _ in 0..self.threads.len() {
            let answer = answers.recv().unwrap_or(Err(libc::EIO));
            answer.map_err(|e| Error::Resources(os(e)))?; // dropping self ends the threads that run
        }
        Ok(self)
    }

    fn spawn(
        &mut self,
        name: &str,
        ready: &Ready,
        run: impl FnOnce(&Shared, Box<dyn FnOnce()>) -> Result<(), Errno> + Send + 'static,
    ) -> Result<(), Error> {
        let (shared, ready) = (self.shared.clone(), ready.clone());
        let main = move || {
            let _abort = AbortOnPanic;
            let up = ready.clone();
            if let Err(e) = run(&shared, Box::new(move || _ = up.send(Ok(())))) {
                let _ = ready.send(Err(e));
            }
        };
        // These threads must not take the program's signals; they inherit the mask.
        let mask = sys::block_signals();
        let thread = thread::Builder::new().name(name.into()).spawn(main);
        sys::restore_signals(mask);
        self.threads.push(thread.map_err(Error::Resources)?);
        Ok(())
    }
}

/// [`Engine::resolve`] in a thread of its own: some time after a ring is gone, the kernel interrupts a wait of the thread that made
/// it.
fn resolve(engine: Engine) -> Result<Engine, Error> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, move || engine.resolve()).map_err(Error::Resources)?;
        thread.join().unwrap_or_else(|panic| resume_unwind(panic)).map_err(|e| Error::Engine(os(e)))
    })
}

/// Address space of the largest tables, in bytes: for each page where it is in swap and its entry of the page table, and for each
/// region its root. (See `overspill_swap::SwapPager` and `overspill_vm::page_table`.)
const PAGE_TABLES: [usize; 2] = [160, 64];
const ROOT_BYTES: usize = 512 << 10;
/// What the others take, with room to spare.
const OTHER_BYTES: usize = 64 << 20;

/// Whether there is address space for the tables. They are made by allocations that end the process if they fail, so the largest
/// are tried here, all at a time.
fn has_room_for_tables(pages_max: u64, regions_max: u16) -> bool {
    let regions = regions_max as usize;
    // swap has room for some pages more in each region
    let pages = pages_max as usize + 32 * regions;
    let mut tables = PAGE_TABLES.map(|bytes| (pages * bytes, Vec::<u8>::new())).to_vec();
    tables.extend([regions * ROOT_BYTES, OTHER_BYTES].map(|bytes| (bytes, Vec::new())));
    tables.iter_mut().all(|(bytes, table)| table.try_reserve_exact(*bytes).is_ok())
}

/// The default of [`Builder::managed_max`].
fn managed_max() -> u64 {
    let most = (128 << 30).min(8 * machine_bytes());
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes the structure.
    let asked = unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) };
    // tables take about 6 % of this; a quarter of the limit may go to them
    if asked != 0 || limit.rlim_cur == libc::RLIM_INFINITY { most } else { (limit.rlim_cur * 4).clamp(64 << 20, most) }
}

/// The machine's memory: the pager's tables grow with the budget, and no budget can be used beyond this.
fn machine_bytes() -> u64 {
    // SAFETY: only asks.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    u64::try_from(pages).map_or(u64::MAX, |pages| pages << PAGE_SHIFT)
}

fn allowed_cpus() -> Vec<usize> {
    let set = sys::allowed_cpus();
    let cpus = (0..set.len() * 64).filter(|c| set[c / 64] >> (c % 64) & 1 == 1).take(16);
    cpus.collect()
}

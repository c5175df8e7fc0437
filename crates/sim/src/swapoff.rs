//! Devices come and go while the program runs: a thread of the pager's, like the thread of the agent's control socket.

use crate::files::SimFiles;
use crate::kernel::Sim;
use crate::world::{World, say};
use overspill_machine::Machine;
use overspill_machine::compressed::Compressed;
use overspill_machine::devices::{self, Backing};
use overspill_machine::files::DEVICES_MAX;
use overspill_machine::swapoff::{BeginError, Failure, State, Unreadable, Worker};
use overspill_simkernel::rng::Rng;
use overspill_simkernel::sched::{self, Timeout};
use overspill_store::packing::Algorithm;
use overspill_swap::DeviceState;
use overspill_vm::SwapoffRefusal;
use overspill_vm::types::DeviceId;
use std::rc::Rc;

/// The longest time that a swapoff may take, in nanoseconds.
const ENDS_NS: u64 = 60_000_000_000;
/// How long the thread rests after a swapoff failed for lack of room, in nanoseconds: the program may have waited all the time.
const PAUSE_NS: u64 = 100_000_000;
/// Compressed memory's priority; other devices have lower ones.
const PRIORITY_MAX: i16 = 3;

/// Compressed memory is made for fewer pages than this.
const SIZE_MAX: usize = 256;

/// How devices come and go.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// The most pages of the program: devices with room for these have room for everything.
    pub program: usize,
    /// The least and the greatest length of devices, in pages.
    pub lengths: (usize, usize),
    /// Whether there is compressed memory among them.
    pub compressed: bool,
    /// The file system's space for growing files, in pages; 0: there are no such files.
    pub space: usize,
    /// Files are sparse instead of growing: a write finds out whether the file system is full.
    pub sparse: bool,
    /// How many of a thousand swapoffs begin although the pages on the device may not fit elsewhere.
    pub bold: usize,
    /// How many of a thousand swapoffs are cancelled after a few steps.
    pub cancelled: usize,
}

/// The thread.
pub struct Control<'a> {
    machine: &'a Machine<Sim>,
    world: Rc<World>,
    rng: Rng,
    habits: Habits,
    /// Threads of the program.
    threads: usize,
    names: usize,
}

impl<'a> Control<'a> {
    /// The control thread of a machine.
    pub fn new(machine: &'a Machine<Sim>, world: Rc<World>, seed: u64, habits: Habits, threads: usize) -> Self {
        Control { machine, world, rng: Rng::new(seed), habits, threads, names: 0 }
    }

    /// Runs until the machine shuts down.
    pub fn run(&mut self) {
        while !self.machine.shutdown.has_begun() {
            sched::Word::new(0).wait(0, Timeout::Tick(1_000 + self.rng.below(2_000_000) as u64));
            if self.world.rests.get() > 0 {
                continue;
            }
            let own = self.own();
            if self.world.happens(self.world.trouble.deaths) {
                let device = self.rng.pick(&own);
                if self.fits(device) {
                    self.say(format_args!("{device:?} dies"));
                    self.machine.map.read().files[device.0 as usize].iter().for_each(SimFiles::die);
                }
            }
            if let Some(device) = self.machine.failed_devices.take() {
                self.swapoff(device, Unreadable::Stay);
            } else if own.len() < 2 || own.len() < 4 && self.rng.below(2) == 0 {
                let (least, most) = self.habits.lengths;
                let pages = least + self.rng.below(most - least);
                let kind = if self.names == 0 { 0 } else { self.rng.below(4) };
                self.add(kind, pages);
            } else {
                let device = self.rng.pick(&own);
                let pool = self.machine.map.read().pool.clone().filter(|pool| pool.device() == device);
                match pool {
                    // it stays longer, so that it gets full
                    Some(pool) if self.rng.below(8) > 0 => self.resize(&pool),
                    _ => self.swapoff(device, Unreadable::Lost),
                }
            }
        }
    }

    /// Makes compressed memory larger or smaller, as the core would if page-ins told it to.
    fn resize(&mut self, pool: &Compressed<Sim>) {
        if self.fits(pool.device()) {
            let pages = self.rng.below(2) * self.rng.below(SIZE_MAX);
            self.say(format_args!("compressed memory may take {pages} pages"));
            pool.set_size(pages as u64);
        }
    }

    fn say(&self, what: std::fmt::Arguments<'_>) {
        say(format_args!("control"), what);
    }

    /// After a swapoff gave up: checks that memory has no room, if the program has been idle all the time. (If the page daemon has
    /// cancelled the swapoff, it may have freed memory at once.)
    fn check_reason(&self, device: DeviceId) {
        let core = self.machine.core.lock();
        let idle = self.world.rests.get() == self.threads && !self.machine.shutdown.has_begun();
        let left = core.vm.devices().device_use(device).map_or(0, |used| used.stored);
        let room = core.vm.available() > core.vm.free_low();
        let leaves = core.vm.devices().status(device).is_some_and(|status| status.state == DeviceState::Leaving);
        assert!(!idle || !leaves || !room, "{left} pages were left although there are {} free in memory", core.vm.available());
    }

    fn own(&self) -> Vec<DeviceId> {
        self.machine.core.lock().vm.devices().iter().collect()
    }

    /// The number of pages that surely fit on the other devices, whatever space the file system has and however well pages
    /// compress.
    fn elsewhere(&self, device: DeviceId) -> usize {
        let map = self.machine.map.read();
        let core = self.machine.core.lock();
        let devices = core.vm.devices();
        let sure =
            |other: &DeviceId| *other != device && map.files[other.0 as usize].as_ref().is_some_and(|f| f.is_block() && f.lives());
        let others = devices.iter().filter(sure).filter_map(|other| devices.status(other));
        others.filter(|status| status.state == DeviceState::On).map(|status| status.slots as usize).sum()
    }

    /// Whether the other devices have room for all of the program's pages.
    fn fits(&self, device: DeviceId) -> bool {
        self.elsewhere(device) >= self.habits.program
    }

    /// Adds a device. `kind` 0: compressed memory; 1 or 2: that many files that grow. If the habits do not allow that, a block
    /// device.
    fn add(&mut self, kind: usize, pages: usize) {
        self.names += 1;
        let name = self.names.to_string();
        let priority = self.rng.below(PRIORITY_MAX as usize) as i16;
        if kind == 0 && self.habits.compressed && !self.machine.has_pool() {
            let bytes = (1 + self.rng.below(SIZE_MAX / 16)) << 16;
            let backing = Backing::memory(self.machine, Some(bytes as u64), Algorithm::Lz4).expect("memory");
            let added = devices::add(self.machine, backing, b"compressed", PRIORITY_MAX, || ());
            self.say(format_args!("adds {} KiB of compressed memory: {added:?}", bytes >> 10));
            return assert!(added.is_ok(), "{added:?}");
        }
        let files = match kind {
            1 | 2 if self.habits.sparse => SimFiles::sparse(pages),
            1 | 2 if self.habits.space > 0 => SimFiles::growing(kind, pages),
            _ => SimFiles::block(pages),
        };
        let wait = || _ = sched::Word::new(0).wait(0, Timeout::Tick(1_000));
        let added = devices::add(self.machine, Backing::Files(files), name.as_bytes(), priority, wait);
        self.say(format_args!("adds {name} of {pages} pages, priority {priority}: {added:?}"));
        assert!(added.is_ok() || self.own().len() == DEVICES_MAX, "{added:?}");
    }

    fn swapoff(&mut self, device: DeviceId, unreadable: Unreadable) {
        let fits = self.fits(device);
        if !fits && self.rng.below(1000) >= self.habits.bold {
            return;
        }
        let mut worker = match Worker::new(self.machine, (), device, unreadable) {
            Ok(worker) => worker,
            // (another device may have answered ENOSPC meanwhile)
            Err(BeginError::Refused(SwapoffRefusal::NoRoom { .. })) if !fits || !self.fits(device) => return,
            Err(why) => panic!("{why}"),
        };
        self.world.swaps.set(true);
        let start = sched::now();
        let mut steps = if self.rng.below(1000) < self.habits.cancelled { self.rng.below(300) } else { usize::MAX };
        self.say(format_args!("swaps {device:?} off: {:?}, fits: {fits}", worker.progress()));
        if self.world.happens(self.world.trouble.outages) {
            let then = start + self.rng.below(9_000) as u64 * 1_000_000;
            self.machine.map.read().files[device.0 as usize].iter().for_each(|files| files.leave(then));
        }
        let state = loop {
            let last = steps == 0 || self.machine.shutdown.has_begun();
            steps = steps.saturating_sub(1);
            assert!(sched::now() - start < ENDS_NS, "a swapoff that does not end: {:?}", worker.progress());
            if self.world.trouble.stalls() {
                sched::progress(); // the device's time is passing
            }
            match worker.step(self.machine) {
                State::Busy if last => break State::Failed(Failure::Cancelled),
                State::Busy => {}
                state => break state,
            }
        };
        self.say(format_args!("swapoff of {device:?}: {state:?}, {:?}", worker.progress()));
        if state == State::Done {
            // A swapoff that ended while the control thread waited to add a device was reported as failed: the wait dropped the
            // answer, and the next step said that it had been cancelled.
            assert_eq!(worker.step(self.machine), State::Done, "it stays done");
        }
        let lost = worker.progress().lost_pages;
        if let State::Failed(Failure::NoRoom | Failure::Refused) = state {
            self.check_reason(device);
        }
        worker.end(self.machine);
        self.world.swaps.set(false);
        assert!(lost == 0 || self.world.lossy.get(), "{lost} pages are lost");
        match state {
            State::Done => assert!(!self.machine.map.read().has_device(device.0 as usize), "it is gone"),
            State::Failed(Failure::Cancelled) => {}
            State::Failed(_) if self.habits.sparse => {}
            // (if nothing fails, pages that are refused elsewhere go into memory, or there is no room)
            State::Failed(why) => assert!(!fits && why == Failure::NoRoom || self.world.trouble.fails(), "{why:?}: {why}"),
            State::Busy => unreachable!("the loop goes on"),
        }
        match state {
            State::Done if !fits => self.add(3, self.habits.program), // otherwise the program may not be able to go on
            State::Failed(Failure::NoRoom) => _ = sched::Word::new(0).wait(0, Timeout::Tick(PAUSE_NS)),
            _ => {}
        }
    }
}

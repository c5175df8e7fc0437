//! Adds, lists and removes swap devices of a running pager, as `overspill swapon`, `swaps` and `swapoff` do for programs.

use crate::error::{Error, os};
use crate::fault;
use crate::pager::Pager;
use crate::quiet::Quiet;
use crate::shared::Shared;
use crate::turns::LOOK;
use overspill_linux::control::{Device, Progress};
use overspill_linux::device_spec::{self, DeviceSpec, Medium};
use overspill_linux::devices::{self, Backing};
use overspill_linux::io::Io;
use overspill_linux::setup;
use overspill_linux::signature;
use overspill_linux::swap_file::SwapFiles;
use overspill_linux::swapoff::{BeginError, State, Unreadable, Worker};
use overspill_vm::types::DeviceId;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::thread;
use std::time::{Duration, Instant};

/// The interval at which the caller of a swapoff is told how far it is.
const TELL: Duration = Duration::from_millis(100);

/// For so long a swapoff goes on before it waits for its reads and lets signals through. A guess: long against a read, short for
/// whoever sent the signal. To wait after each step took a fifth of the speed.
const TURN: Duration = Duration::from_millis(10);

/// Checks a device before it is made or written to.
pub fn check(device: &DeviceSpec) -> Result<(), Error> {
    let checked = device.clone().checked();
    checked.map_err(|why| Error::Device(format!("the swap device {} {why}", device.name().display())))?;
    signature::refusal(device).map_or(Ok(()), |why| Err(Error::Device(why)))
}

/// A swapoff. If it is dropped before its end, it is cancelled.
struct Running<'a> {
    shared: &'a Shared,
    worker: Option<Worker>,
    /// The process that began it.
    process: u32,
}

impl<'a> Running<'a> {
    fn begin(shared: &'a Shared, device: DeviceId, unreadable: Unreadable) -> Result<Running<'a>, BeginError> {
        let _quiet = Quiet::new();
        let worker = Some(Worker::with(Io::lent(shared.engine), &shared.machine, device, unreadable)?);
        Ok(Running { shared, worker, process: std::process::id() })
    }

    /// Some steps. Leaves no page busy: as soon as signals are no longer blocked, code of the program's runs in this thread. That
    /// is a signal handler, or `goes_on`, which may wait for other threads, as Python's does for its lock. If any of them touched
    /// a page whose read only the next step would end, all waited for ever.
    fn step(&mut self) -> State {
        let worker = self.worker.as_mut().expect("only a drop ends it");
        let state = {
            let _quiet = Quiet::new();
            let begun = Instant::now();
            let state = loop {
                let state = worker.step(&self.shared.machine);
                if state != State::Busy || self.shared.manual.is_some() || begun.elapsed() >= TURN {
                    break state;
                }
            };
            worker.settle(&self.shared.machine);
            state
        };
        if self.shared.manual.is_some() {
            let _quiet = Quiet::new();
            fault::step_daemon(self.shared, false);
        }
        state
    }

    fn progress(&self) -> Progress {
        self.worker.as_ref().expect("only a drop ends it").progress()
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let _quiet = Quiet::new();
        let Some(worker) = self.worker.take() else { return };
        if std::process::id() == self.process {
            worker.end(&self.shared.machine);
        } else {
            std::mem::forget(worker); // forked by `goes_on`: its reads end in the parent, and nowhere else
        }
    }
}

/// Empties devices that have failed too often, until the pager shuts down. Pages that find no room stay, and those that cannot
/// be read: perhaps the device recovers.
pub fn empty_failing(shared: &Shared) {
    let machine = &shared.machine;
    let ends = || machine.shutdown.has_begun();
    while !ends() {
        machine.failed_devices.wait();
        let Some(_turn) = shared.swapoffs.begin_own() else {
            thread::sleep(LOOK);
            continue;
        };
        if let Some(device) = machine.failed_devices.take()
            && let Ok(mut running) = Running::begin(shared, device, Unreadable::Stay)
        {
            let mut state = State::Busy;
            while state == State::Busy && !ends() && !shared.swapoffs.is_asked() {
                state = running.step();
            }
            if state == State::Busy {
                machine.failed_devices.add(device); // its turn comes again
            }
        }
    }
}

impl Pager {
    /// Adds a swap device, while regions are in use. Without a priority it comes after all existing devices; compressed memory
    /// comes before them.
    ///
    /// ```
    /// # use overspill::{DeviceSpec, Pager};
    /// # fn main() -> Result<(), overspill::Error> {
    /// # let directory = std::env::temp_dir().join(format!("overspill-swap-on-{}", std::process::id()));
    /// # std::fs::create_dir_all(&directory).unwrap();
    /// let pager = Pager::builder().memory(8 << 20).build()?;
    /// pager.swap_on(DeviceSpec::file(&directory))?;
    /// assert_eq!(pager.swaps().len(), 2);
    /// pager.swap_off(std::env::temp_dir())?; // the builder's default
    /// assert_eq!(pager.swaps().len(), 1);
    /// # drop(pager);
    /// # std::fs::remove_dir(&directory).unwrap();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Swap`] if one of its files cannot be made or opened, [`Error::Device`] if the device is not possible or there is
    /// one of that name, [`Error::Resources`], [`Error::Forked`]. After an error nothing is changed, and nothing is left behind.
    pub fn swap_on(&self, mut device: DeviceSpec) -> Result<(), Error> {
        let machine = &self.0.here()?.machine;
        check(&device)?;
        let backing = match device.medium {
            Medium::File(_) | Medium::Block { .. } => {
                Backing::Files(SwapFiles::open(&device).map_err(|(e, place)| Error::Swap { place: place.into(), source: os(e) })?)
            }
            Medium::Compressed(algorithm) => {
                let _quiet = Quiet::new();
                Backing::memory(machine, device.size, algorithm).map_err(|e| Error::Resources(os(e)))?
            }
        };
        let _quiet = Quiet::new();
        let own: Vec<_> = devices::each(machine).filter(|d| d.state != "inherited").map(|d| d.priority).collect();
        device_spec::settle_priorities(core::slice::from_mut(&mut device), own.into_iter());
        let wait = || std::thread::sleep(Duration::from_millis(1));
        let added = devices::add(machine, backing, device.name().as_bytes(), device.priority.unwrap_or(0), wait);
        added.map(drop).map_err(|why| Error::Device(format!("{}: {why}", device.name().display())))
    }

    /// Removes a swap device and waits for the end. `name` is the path of its first file, as it was given, or `compressed`. Its
    /// pages go to other devices, or into memory within the budget. Regions stay in use meanwhile.
    ///
    /// # Errors
    /// [`Error::Device`]: there is no such device, its pages fit nowhere (with the figures), another swapoff is under way, or this
    /// one failed. After an error the device is in use as before.
    pub fn swap_off(&self, name: impl AsRef<OsStr>) -> Result<Progress, Error> {
        self.swap_off_while(name, |_| true)
    }

    /// As [`Pager::swap_off`], but calls `goes_on` ten times a second with the progress. It may use regions, and wait for threads
    /// that do. If it returns `false`, the swapoff ends with an error, and the device is in use as before, with the pages that are
    /// still on it.
    ///
    /// # Errors
    /// As [`Pager::swap_off`]. In a child that `goes_on` has forked: [`Error::Forked`].
    pub fn swap_off_while(&self, name: impl AsRef<OsStr>, mut goes_on: impl FnMut(&Progress) -> bool) -> Result<Progress, Error> {
        let shared = self.0.here()?;
        let (machine, name) = (&shared.machine, name.as_ref());
        let fail = |why: &dyn std::fmt::Display| Error::Device(format!("{}: {why}", name.display()));
        let turn = shared.swapoffs.begin_asked();
        let _turn = turn.ok_or_else(|| fail(&"another swapoff is under way; try again when it has ended"))?;
        let device = {
            let _quiet = Quiet::new();
            devices::find(machine, name.as_bytes())
        };
        let device = device.ok_or_else(|| fail(&"the pager has no such swap device; look at the list of its devices"))?;
        let mut running = Running::begin(shared, device, Unreadable::Lost).map_err(|why| fail(&why))?;
        let mut told = Instant::now();
        loop {
            match running.step() {
                State::Done => return Ok(running.progress()),
                State::Failed(why) => return Err(fail(&why)),
                State::Busy if told.elapsed() < TELL => {}
                State::Busy => {
                    let goes_on = goes_on(&running.progress());
                    self.0.here()?; // it may have forked
                    if !goes_on {
                        return Err(fail(&overspill_linux::swapoff::Failure::Cancelled));
                    }
                    told = Instant::now();
                }
            }
        }
    }

    /// The swap devices in the order in which they are used, with their figures.
    pub fn swaps(&self) -> Vec<Device> {
        let shared = self.0.must_be_here();
        let mut all: Vec<_> = Vec::with_capacity(setup::DEVICES_MAX);
        {
            let _quiet = Quiet::new();
            all.extend(devices::each(&shared.machine));
        }
        all.sort_by_key(|device| std::cmp::Reverse(device.priority));
        let device = |d: devices::Description| {
            let mut device = Device::default();
            (device.kind, device.state, device.name) = (d.kind.name().into(), d.state.into(), d.name.bytes().into());
            (device.priority, device.figures) = (d.priority, d.figures);
            device
        };
        all.into_iter().map(device).collect()
    }
}

//! The swap devices of a running machine: what each has done, and further ones.

use crate::compressed::Compressed;
use crate::control::{Figures, Kind, Packet};
use crate::device_spec::Algorithm;
use crate::machine::{Machine, Space};
use crate::setup::{DEVICES_MAX, device_slots};
use crate::swap_file::{Align, DeviceName, SwapFiles};
use crate::sys::Errno;
use core::fmt::{self, Write};
use overspill_swap::Devices;
use overspill_swap::{AddDeviceError, DeviceState};
use overspill_vm::types::{DeviceId, PAGE_SIZE};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// One device, and what it has done.
#[derive(Debug)]
pub struct Description {
    /// What it is made of.
    pub kind: Kind,
    /// As in [`crate::control::Device`].
    pub state: &'static str,
    /// Higher ones are used first.
    pub priority: i16,
    /// Its numbers.
    pub figures: Figures,
    /// What it is called.
    pub name: DeviceName,
}

/// All devices there are. Does not allocate; takes the locks for one device at a time.
pub fn each(machine: &Machine) -> impl Iterator<Item = Description> {
    (0..DEVICES_MAX as u16).filter_map(|number| describe(machine, DeviceId(number)))
}

fn describe(machine: &Machine, device: DeviceId) -> Option<Description> {
    let map = machine.map.read();
    let core = machine.core.lock();
    let devices = core.vm.devices();
    if !map.has_device(device.0 as usize) {
        return None;
    }
    let files = map.files[device.0 as usize].as_ref();
    let holding = map.pool.as_ref().filter(|_| files.is_none()).map(|pool| pool.holding());
    let status = devices.status(device)?;
    let stats = devices.stats(device)?;
    let bytes = |slots: u32| slots as u64 * PAGE_SIZE as u64;
    let inherited = status.state == DeviceState::Inherited;
    let mut figures = Figures {
        number: device.0 as u64,
        // whatever was asked for: a device has no more slots than that
        size_bytes: files.map_or(0, |f| if f.limit() == 0 { bytes(status.slots) } else { f.limit().min(bytes(status.slots)) }),
        files: files.map_or(0, SwapFiles::count) as u64,
        // of a parent's device, what this process can still read there
        used_bytes: bytes(if inherited { status.stored } else { status.used }),
        pages_in: stats.reads.pages,
        pages_out: stats.writes.pages,
        bytes_in: stats.reads.bytes,
        bytes_out: stats.writes.bytes,
        reads: stats.reads.ops,
        writes: stats.writes.ops,
        read_errors: stats.reads.errors,
        write_errors: stats.writes.errors,
        read_p50_ns: stats.reads.latency.percentile_ns(500),
        read_p99_ns: stats.reads.latency.percentile_ns(990),
        write_p50_ns: stats.writes.latency.percentile_ns(500),
        write_p99_ns: stats.writes.latency.percentile_ns(990),
        fragmented_permille: status.fragmented_permille as u64,
        extents: status.extents as u64,
        given_back_bytes: status.given_back * PAGE_SIZE as u64,
        aligned: files.is_some_and(|f| f.align() == Align::Extents) as u64,
        align_refused: files.is_some_and(|f| f.align() == Align::Refused) as u64,
        ..Figures::default()
    };
    if let Some(holding) = holding {
        figures.size_bytes = holding.size_bytes;
        figures.used_bytes = holding.memory_bytes;
        figures.fragmented_permille = 0; // of slots; the pool has no holes
        figures.stored_pages = holding.pool.stored_pages;
        figures.packed_bytes = holding.pool.packed_bytes;
        figures.same_filled_pages = holding.pool.same_filled_pages;
        figures.refused_pages = core.vm.counters().pool_refused.get();
        figures.written_back_pages = holding.written_back;
        figures.ratio_permille = holding.ratio_permille();
        figures.overhead_bytes = holding.overhead_bytes();
    }
    let kind = files.map_or(Kind::Compressed, SwapFiles::kind);
    let state = match status.state {
        DeviceState::On => "on",
        DeviceState::Full => "full",
        DeviceState::Inherited => "inherited",
        DeviceState::Leaving => "leaving",
        DeviceState::Failed => "failing",
    };
    let mut name = DeviceName::new();
    name.set(map.names[device.0 as usize].bytes());
    Some(Description { kind, state, priority: status.priority, figures, name })
}

/// Why a device could not be added. Displays as one sentence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddError {
    /// One of that name is there.
    There,
    /// The core refuses.
    Refused(AddDeviceError),
}

impl fmt::Display for AddError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AddError::There => f.write_str("this process has that swap device already"),
            AddError::Refused(why) => write!(f, "{why}"),
        }
    }
}

/// What a further device is made of.
#[derive(Debug)]
pub enum Backing {
    /// Files or block devices.
    Files(SwapFiles),
    /// Memory.
    Memory(Arc<Compressed>),
}

impl Backing {
    /// Compressed memory of `bytes` bytes.
    ///
    /// # Errors
    /// As mmap(2).
    pub fn memory(machine: &Machine, bytes: u64, algorithm: Algorithm) -> Result<Backing, Errno> {
        let (limit, slots_max) = {
            let core = machine.core.lock();
            (core.vm.limit(), core.vm.devices().slots_max())
        };
        Compressed::new(bytes, limit, slots_max, algorithm).map(Backing::Memory)
    }
}

/// Adds a device. What it is longer than a device can be is not used. Calls `wait` again and again while a fork is under way.
///
/// # Errors
/// [`AddError`]; nothing is changed then.
pub fn add(machine: &Machine, backing: Backing, name: &[u8], priority: i16, mut wait: impl FnMut()) -> Result<DeviceId, AddError> {
    let _swapping = loop {
        match machine.swapping.try_lock() {
            Some(guard) => break guard,
            None => wait(),
        }
    };
    let mut map = machine.map.write();
    let mut core = machine.core.lock();
    let devices = core.vm.devices_mut();
    let own = |i: &usize| map.has_device(*i) && !devices.is_inherited(DeviceId(*i as u16));
    if (0..DEVICES_MAX).filter(own).any(|i| map.names[i].bytes() == name) {
        return Err(AddError::There);
    }
    let device = match backing {
        Backing::Files(files) => {
            let device = add_files(devices, &files, priority).map_err(AddError::Refused)?;
            map.files[device.0 as usize] = Some(files);
            device
        }
        Backing::Memory(_) if map.pool.is_some() => return Err(AddError::There),
        Backing::Memory(pool) => {
            let device = pool.enter(&mut core.vm, priority).map_err(AddError::Refused)?;
            map.pool = Some(pool);
            machine.has_pool.store(true, Relaxed);
            device
        }
    };
    map.names[device.0 as usize].set(name);
    note_devices(machine, &map, core.vm.devices());
    drop(core);
    drop(map);
    machine.ring_daemon();
    Ok(device)
}

/// Adds the device that open files are: one that gets its slots as they grow, or a single block device, which has them all. What it
/// is longer than a device can be is not used. The files are to be kept under the device's number.
///
/// # Errors
/// [`AddDeviceError`]; nothing is changed then.
pub fn add_files(devices: &mut Devices, files: &SwapFiles, priority: i16) -> Result<DeviceId, AddDeviceError> {
    let slots = device_slots(files).min(devices.slots_max());
    if files.grows() { devices.add_mapped_device(slots, priority) } else { devices.add_device(slots, priority) }
}

/// Closes the files of a device that is gone. => `swapping` is held
pub fn remove(machine: &Machine, device: DeviceId) {
    let mut map = machine.map.write();
    let files = map.files[device.0 as usize].take();
    let pool = map.pool.take_if(|pool| pool.device() == device);
    {
        let mut core = machine.core.lock();
        if let Some(pool) = &pool {
            pool.leave(&mut core.vm);
            machine.has_pool.store(false, Relaxed);
        }
        note_devices(machine, &map, core.vm.devices());
        machine.status.counters.swap_used_bytes.set(core.vm.devices().used() * PAGE_SIZE as u64);
    }
    machine.forget_retired(device); // its number may be another's soon
    drop(map);
    drop((files, pool)); // the end of a long file takes its time, and needs no lock
    machine.arrived();
}

/// The device of that name, own ones first.
pub fn find(machine: &Machine, name: &[u8]) -> Option<DeviceId> {
    let map = machine.map.read();
    let core = machine.core.lock();
    let named = |i: &usize| map.has_device(*i) && map.names[*i].bytes() == name;
    let inherited = |i: &usize| core.vm.devices().is_inherited(DeviceId(*i as u16));
    (0..DEVICES_MAX).filter(named).min_by_key(inherited).map(|i| DeviceId(i as u16))
}

/// Tells the status block how much the devices can hold together, and what this process's own are called. Does not allocate.
fn note_devices(machine: &Machine, map: &Space, devices: &Devices) {
    machine.status.counters.swap_capacity_bytes.set(devices.capacity() * PAGE_SIZE as u64);
    let mut text = Packet::new();
    let own = |i: &usize| map.has_device(*i) && !devices.is_inherited(DeviceId(*i as u16));
    for i in (0..DEVICES_MAX).filter(own) {
        if !text.bytes().is_empty() {
            text.put(b", ");
        }
        text.put(map.names[i].bytes());
        let more = map.files[i].as_ref().map_or(0, |files| files.count() - 1);
        if more > 0 {
            let _ = write!(text, " + {more} more");
        }
    }
    machine.status.swap.set(if text.bytes().is_empty() { b"none" } else { text.bytes() });
}

//! Adding devices to a running machine, and the clean-up when a device is gone.

use crate::compressed::Compressed;
use crate::errno::Errno;
use crate::files::{DEVICES_MAX, Files};
use crate::kernel::Kernel;
use crate::machine::Machine;
use crate::packet::Packet;
use crate::space::Space;
use core::fmt::{self, Write};
use core::sync::atomic::Ordering::Relaxed;
use overspill_store::packing::Algorithm;
use overspill_swap::{AddDeviceError, Devices};
use overspill_vm::types::{DeviceId, PAGE_SIZE};
use std::sync::Arc;

/// Why a device could not be added. Displays as one message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddError {
    /// The process has a device of that name.
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

/// The medium of a further device.
pub enum Backing<K: Kernel> {
    /// Files or block devices.
    Files(K::Files),
    /// Memory.
    Memory(Arc<Compressed<K>>),
}

impl<K: Kernel> Backing<K> {
    /// Compressed memory of `bytes` bytes, or, without a number, of a size that follows what pays.
    ///
    /// # Errors
    /// As mmap(2).
    pub fn memory(machine: &Machine<K>, bytes: Option<u64>, algorithm: Algorithm) -> Result<Self, Errno> {
        let (memory_pages, slots_max) = {
            let core = machine.core.lock();
            (core.vm.budget_max(), core.vm.devices().slots_max())
        };
        let made = match bytes {
            Some(bytes) => Compressed::new(bytes, memory_pages, slots_max, algorithm),
            None => Compressed::automatic(memory_pages, slots_max, algorithm),
        };
        made.map(Backing::Memory)
    }
}

/// Adds a device. Space beyond the greatest length of a device is not used. Calls `wait` again and again while a fork is under way.
///
/// # Errors
/// [`AddError`]; nothing is changed then.
pub fn add<K: Kernel>(
    machine: &Machine<K>,
    backing: Backing<K>,
    name: &[u8],
    priority: i16,
    mut wait: impl FnMut(),
) -> Result<DeviceId, AddError> {
    let _swapping = loop {
        match machine.swapping.try_lock() {
            Some(guard) => break guard,
            None => wait(),
        }
    };
    let mut map = machine.map.write();
    let mut core = machine.core.lock();
    let devices = core.vm.devices_mut();
    if own_devices(&map, devices).any(|i| map.names[i].bytes() == name) {
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

/// Adds a device made of open files. Its slots come as the files grow; a single block device has all its slots at once. Space
/// beyond the greatest length of a device is not used. The caller keeps the files under the device's number.
///
/// # Errors
/// [`AddDeviceError`]; nothing is changed then.
pub fn add_files<F: Files>(devices: &mut Devices, files: &F, priority: i16) -> Result<DeviceId, AddDeviceError> {
    let slots = files.slots().min(devices.slots_max());
    if files.grows() { devices.add_mapped_device(slots, priority) } else { devices.add_device(slots, priority) }
}

/// Closes the files of a device that is gone. => `swapping` is held
pub fn remove<K: Kernel>(machine: &Machine<K>, device: DeviceId) {
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
    machine.failed_devices.forget(device); // another device may get its number soon
    drop(map);
    drop((files, pool)); // the end of a long file takes time, and needs no lock
    machine.arrivals.announce();
}

/// The device of that name, own ones first.
pub fn find<K: Kernel>(machine: &Machine<K>, name: &[u8]) -> Option<DeviceId> {
    let map = machine.map.read();
    let core = machine.core.lock();
    let named = |i: &usize| map.has_device(*i) && map.names[*i].bytes() == name;
    let inherited = |i: &usize| core.vm.devices().is_inherited(DeviceId(*i as u16));
    (0..DEVICES_MAX).filter(named).min_by_key(inherited).map(|i| DeviceId(i as u16))
}

/// The numbers of the process's own devices: those that it did not inherit.
fn own_devices<K: Kernel>(map: &Space<K>, devices: &Devices) -> impl Iterator<Item = usize> {
    (0..DEVICES_MAX).filter(|i| map.has_device(*i) && !devices.is_inherited(DeviceId(*i as u16)))
}

/// Writes to the status block how much the devices can hold together, and the names of this process's own. Does not allocate.
fn note_devices<K: Kernel>(machine: &Machine<K>, map: &Space<K>, devices: &Devices) {
    machine.status.counters.swap_capacity_bytes.set(devices.capacity() * PAGE_SIZE as u64);
    let mut text = Packet::new();
    for i in own_devices(map, devices) {
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

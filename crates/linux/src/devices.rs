//! Describes the swap devices of a running machine. ([`overspill_machine::devices`] adds and removes them.)

use crate::control::{Figures, Kind};
use crate::machine::Machine;
use crate::swap_file::{Align, DeviceName, SwapFiles};
use overspill_machine::files::{DEVICES_MAX, Files as _};
use overspill_swap::DeviceState;
use overspill_vm::types::{DeviceId, PAGE_SIZE};

pub use overspill_machine::devices::{AddError, add, add_files, find, remove};

/// [`overspill_machine::devices::Backing`].
pub type Backing = overspill_machine::devices::Backing<crate::kernel::Linux>;

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

/// All devices. Does not allocate; takes the locks for one device at a time.
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
        // the limit, but no more than the device has slots
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

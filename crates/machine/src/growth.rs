//! How swap files grow, and give space back. This module asks the file system for space; the extents of a device say where in the
//! file each slot lies (`overspill_swap`, `extent.rs`).
//!
//! ```text
//!   before slots are asked for:   wants_extent? ---> if blocks were given back: fallocate, refilled
//!                                              `---> else the next chunk: fallocate, FIEMAP if aligned, add_extent
//!
//!   while the page daemon rests:  punch_begin ---> punch a hole ---> punched
//!                                 (slots that stayed free since the last pass, at least [`PASS_NS`] ago, are held meanwhile)
//! ```
//!
//! The page daemon and a swapoff make room before they ask for slots ([`make_room`]), one thread at a time (the lock `growth`). The
//! file system takes milliseconds for a chunk, so it is asked without `map` and `core`, and faults are served meanwhile. A device
//! cannot be removed while it grows or while slots of it are held, so its descriptors stay open.
//!
//! Only the page daemon punches holes. It holds the slots in the allocator, so nothing is written there. A fork may happen during a
//! punch, and while a file grows: the child has no use for either.

use crate::errno::{self, Errno};
use crate::files::{CHUNK, Chunk, DEVICES_MAX, Files, Pieces};
use crate::kernel::{Kernel, Mistake};
use crate::machine::Machine;
use overspill_swap::BLOCK_SLOTS;
use overspill_swap::Punch;
use overspill_swap::extent::Extent;
use overspill_vm::pager::SlotRun;
use overspill_vm::types::{DeviceId, PAGE_SHIFT, Slot};

/// Slots that are given back or got back at a time: as many as a chunk has.
const RUN_SLOTS: u32 = (CHUNK >> PAGE_SHIFT) as u32;
/// Blocks looked at per step, for each device: 2 GiB of it, a few microseconds under the core's lock.
const LOOK_BLOCKS: u32 = 1024;
/// The shortest time between two passes over the devices, and so the time that slots stay free before they are given back, in
/// nanoseconds. Guessed: much longer than a burst of releases and writes, much shorter than anybody waits for disk space.
const PASS_NS: u64 = 1_000_000_000;
/// The shortest time between two holes, in nanoseconds: at most 640 MiB are given back in a second.
const HOLE_NS: u64 = 100_000_000;

/// Makes sure that the device to be written next has room, as far as there is space. => no lock is held; takes `growth` around the
/// file system's calls
///
/// # Errors
/// Why the last device that failed to grow did not.
pub fn make_room<K: Kernel>(machine: &Machine<K>) -> Result<(), Errno> {
    let mut result = Ok(());
    // each turn gives a device room, or marks it as having none
    for _ in 0..DEVICES_MAX {
        if machine.core.lock().vm.devices().wants_extent().is_none() {
            break;
        }
        let _growth = machine.growth.lock();
        // another thread may have got the space meanwhile
        let Some(device) = machine.core.lock().vm.devices().wants_extent() else { break };
        let grown = refill(machine, device).unwrap_or_else(|| grow(machine, device));
        if let Err(errno) = grown {
            machine.core.lock().vm.devices_mut().refuse_growth(device);
            result = Err(errno);
        }
    }
    result
}

/// As [`make_room`], but also for devices that could not grow before, which may be long ago. Returns whether there is more room
/// now. => no lock is held
///
/// # Errors
/// As [`make_room`].
pub fn try_again<K: Kernel>(machine: &Machine<K>) -> Result<bool, Errno> {
    let before = machine.core.lock().vm.devices().room();
    machine.core.lock().vm.devices_mut().retry(false);
    let result = make_room(machine);
    if machine.core.lock().vm.devices().room() > before { Ok(true) } else { result.map(|()| false) }
}

/// Gets blocks for slots whose blocks were given back. `None` if there are no such slots.
fn refill<K: Kernel>(machine: &Machine<K>, device: DeviceId) -> Option<Result<(), Errno>> {
    let mut result = None;
    for most in [RUN_SLOTS, BLOCK_SLOTS] {
        let run = machine.core.lock().vm.devices_mut().refill_begin(device, most)?;
        let got = each_piece(machine, run, |extent, piece| {
            let fd = with_files(machine, device, |files| files.fd(extent.file));
            K::Files::allocate(fd, extent.offset_of(piece.first), u64::from(piece.count) << PAGE_SHIFT)
        });
        if got.is_ok() {
            // the new blocks lie elsewhere on the disk
            let _ = each_piece(machine, run, |extent, piece| {
                let pieces =
                    with_files(machine, device, |files| files.pieces(extent.file, extent.offset_of(piece.first), piece.count));
                if pieces.lens().len() > 1 {
                    // without room for so many extents the old ones stay, as without alignment
                    let _ = machine.core.lock().vm.devices_mut().set_extents(piece, pieces.lens());
                }
                Ok(())
            });
        }
        machine.core.lock().vm.devices_mut().refilled(run, got.is_ok());
        result = Some(got);
        if got.is_ok() {
            break;
        }
    }
    result
}

/// Gets the next chunk. A device that is about to be removed gets none.
fn grow<K: Kernel>(machine: &Machine<K>, device: DeviceId) -> Result<(), Errno> {
    let Some(left) = machine.core.lock().vm.devices_mut().grow_begin(device) else { return Ok(()) };
    if K::mistake(Mistake::GrowsWhatMayGo) {
        machine.core.lock().vm.devices_mut().grow_end(device);
    }
    let grown = get_chunk(machine, device, u64::from(left) << PAGE_SHIFT).and_then(|chunk| add_chunk(machine, device, chunk));
    machine.core.lock().vm.devices_mut().grow_end(device);
    grown
}

/// Gets blocks for the device's next bytes, at most `bytes_max`.
fn get_chunk<K: Kernel>(machine: &Machine<K>, device: DeviceId, bytes_max: u64) -> Result<Chunk, Errno> {
    let mut result = Err(errno::ENOSPC);
    let mut nth = 0;
    while let Some(chunk) = with_files(machine, device, |files| files.chunk(bytes_max, nth)) {
        result = K::Files::allocate_chunk(&chunk).map(|()| chunk);
        if result.is_ok() {
            break;
        }
        nth += 1;
    }
    result
}

/// Makes the chunk part of its file and of the device.
fn add_chunk<K: Kernel>(machine: &Machine<K>, device: DeviceId, chunk: Chunk) -> Result<(), Errno> {
    let pages = (chunk.bytes >> PAGE_SHIFT) as u32;
    let pieces = with_files(machine, device, |files| {
        files.grown(&chunk);
        files.pieces(chunk.file, chunk.offset, pages)
    });
    let mut core = machine.core.lock();
    let devices = core.vm.devices_mut();
    let pieces = if devices.extents_left() < pieces.lens().len() as u32 { Pieces::one(pages) } else { pieces };
    let mut at = chunk.offset;
    for &count in pieces.lens() {
        // if there can be no more extents, the rest of the chunk stays unused
        devices.add_extent(device, chunk.file, at, count).map_err(|_| errno::ENOSPC)?;
        at += u64::from(count) << PAGE_SHIFT;
    }
    Ok(())
}

/// The device's files. => the device grows, or slots of it are held, so it stays
fn with_files<K: Kernel, R>(machine: &Machine<K>, device: DeviceId, with: impl FnOnce(&mut K::Files) -> R) -> R {
    with(machine.map.write().files[device.0 as usize].as_mut().expect("the device stays"))
}

/// Calls `with` for each extent that the run touches, with the slots of the run in it, until one call fails.
fn each_piece<K: Kernel>(
    machine: &Machine<K>,
    run: SlotRun,
    mut with: impl FnMut(Extent, SlotRun) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let (mut at, end) = (run.first.0, run.first.0 + run.count);
    while at < end {
        let extent = machine.core.lock().vm.devices().extent(Slot(at)).expect("a held slot is in an extent");
        let count = (extent.last().0 + 1).min(end) - at;
        with(extent, SlotRun { first: Slot(at), count })?;
        at += count;
    }
    Ok(())
}

/// Gives space back to the file system.
#[derive(Debug, Default)]
pub struct GiveBack {
    /// The time of the next look.
    next_ns: u64,
    /// The device to look at.
    device: u16,
}

impl GiveBack {
    /// Punches one hole, if there is one to punch and it is time. After a punch, returns in how many nanoseconds there may be more
    /// to do. => no lock is held; may take as long as the file system takes
    pub fn step<K: Kernel>(&mut self, machine: &Machine<K>) -> Option<u64> {
        let now = K::now_ns();
        if now < self.next_ns {
            return None;
        }
        while (self.device as usize) < DEVICES_MAX {
            let device = DeviceId(self.device);
            let punch = machine.core.lock().vm.devices_mut().punch_begin(device, LOOK_BLOCKS, RUN_SLOTS);
            match punch {
                Punch::Run(run) => {
                    self.give(machine, device, run);
                    self.next_ns = now + HOLE_NS;
                    return Some(HOLE_NS);
                }
                Punch::More => {}
                Punch::End => self.device += 1,
            }
        }
        self.device = 0;
        self.next_ns = now + PASS_NS;
        None
    }

    fn give<K: Kernel>(&self, machine: &Machine<K>, device: DeviceId, run: SlotRun) {
        // the device and its descriptors stay as long as slots of it are held
        let file = |extent: &Extent| match machine.map.read().files[device.0 as usize].as_ref() {
            Some(files) if files.are_files() => Ok(files.fd(extent.file)),
            _ => Err(errno::EOPNOTSUPP),
        };
        let given = each_piece(machine, run, |extent, piece| {
            K::Files::punch(file(&extent)?, extent.offset_of(piece.first), u64::from(piece.count) << PAGE_SHIFT)
        });
        machine.core.lock().vm.devices_mut().punched(run, given.is_ok());
        if given.is_ok() {
            machine.status.counters.swap_given_back_bytes.add(u64::from(run.count) << PAGE_SHIFT);
        }
    }
}

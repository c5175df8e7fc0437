//! Devices that failed too often: what is on them should go elsewhere, and somebody swaps them off.

use crate::files::DEVICES_MAX;
use crate::futex::{Futex, Limit};
use core::sync::atomic::Ordering::*;
use overspill_vm::types::DeviceId;

/// The bit that says that nobody waits for a device any more.
const ENDED: u32 = 1 << 31;
const _: () = assert!(DEVICES_MAX < 32);

/// Failed devices that nobody has been told of. Lock key: (F) a word that threads sleep on, atomic.
#[derive(Debug)]
pub struct FailedDevices<W> {
    /// (F) A bit for each device, by its number.
    bits: W,
}

impl<W: Futex> FailedDevices<W> {
    pub(super) const fn new() -> Self {
        FailedDevices { bits: W::ZERO }
    }
    /// A device has failed too often.
    pub(crate) fn add(&self, device: DeviceId) {
        self.bits.fetch_or(1 << device.0, Relaxed);
        self.bits.wake(i32::MAX as u32);
    }
    /// Nobody is to be told of it any more.
    pub(crate) fn forget(&self, device: DeviceId) {
        self.bits.fetch_and(!(1 << device.0), Relaxed);
    }
    /// One that nobody has been told of, for whoever swaps it off.
    pub fn take(&self) -> Option<DeviceId> {
        let device = self.bits.load(Relaxed).trailing_zeros() as usize;
        let device = (device < DEVICES_MAX).then_some(DeviceId(device as u16))?;
        self.forget(device);
        Some(device)
    }
    /// Waits until there may be one, or [`FailedDevices::end`].
    pub fn wait(&self) {
        self.bits.wait_for(0, Limit::Tick(3_600_000_000_000));
    }
    /// Nobody waits for one any more: the pager shuts down.
    pub fn end(&self) {
        self.bits.fetch_or(ENDED, Relaxed);
        self.bits.wake(i32::MAX as u32);
    }
    /// In a copy of the machine: as it is there.
    pub(crate) fn copy(&self, from: &Self) {
        self.bits.store(from.bits.load(Relaxed), Relaxed);
    }
    /// In a fork's child: they are its parent's.
    pub(crate) fn forked(&self) {
        self.bits.store(0, Relaxed);
    }
}

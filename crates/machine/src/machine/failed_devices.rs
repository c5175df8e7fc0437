//! Devices that failed too often. Their pages should go elsewhere, so a thread swaps them off.

use crate::files::DEVICES_MAX;
use crate::futex::{Futex, Limit};
use core::sync::atomic::Ordering::*;
use overspill_vm::types::DeviceId;

/// The bit that says that no thread waits for a device any more.
const ENDED: u32 = 1 << 31;
const _: () = assert!(DEVICES_MAX < 32);

/// Failed devices that have not been taken to be swapped off. Lock key: (F) a word that threads sleep on, atomic.
#[derive(Debug)]
pub struct FailedDevices<W> {
    /// (F) A bit for each device, by its number.
    bits: W,
}

impl<W: Futex> FailedDevices<W> {
    pub(super) const fn new() -> Self {
        FailedDevices { bits: W::ZERO }
    }
    /// Adds a device that has failed too often, or whose swapoff was put off.
    pub fn add(&self, device: DeviceId) {
        self.bits.fetch_or(1 << device.0, Relaxed);
        self.bits.wake(i32::MAX as u32);
    }
    /// Takes a device out.
    pub(crate) fn forget(&self, device: DeviceId) {
        self.bits.fetch_and(!(1 << device.0), Relaxed);
    }
    /// Takes one out, for the thread that swaps it off.
    pub fn take(&self) -> Option<DeviceId> {
        let device = self.bits.load(Relaxed).trailing_zeros() as usize;
        let device = (device < DEVICES_MAX).then_some(DeviceId(device as u16))?;
        self.forget(device);
        Some(device)
    }
    /// Waits until there may be one, or until [`FailedDevices::end`].
    pub fn wait(&self) {
        self.bits.wait_for(0, Limit::Tick(3_600_000_000_000));
    }
    /// Ends all waits: the pager shuts down.
    pub fn end(&self) {
        self.bits.fetch_or(ENDED, Relaxed);
        self.bits.wake(i32::MAX as u32);
    }
    /// In a copy of the machine: as in the original.
    pub(crate) fn copy(&self, from: &Self) {
        self.bits.store(from.bits.load(Relaxed), Relaxed);
    }
    /// In a fork's child: failed devices are the parent's matter.
    pub(crate) fn forked(&self) {
        self.bits.store(0, Relaxed);
    }
}

//! Faults that are to fail, for tests.

use core::sync::atomic::Ordering::*;
use overspill_vm::types::{DeviceId, PAGE_SHIFT};

/// How long an injected stall of a device lasts, in nanoseconds.
pub const STALL_NS: u64 = 5_000_000_000;

/// Faults that are to fail, for tests (`OVERSPILL_INJECT`).
#[derive(Debug, Default)]
pub struct Inject {
    /// Fail reads after this many, with EIO; 0: never.
    pub read_after: u64,
    /// Fail each first attempt of a read whose number is a multiple of this, with EIO; 0: none.
    pub read_every: u64,
    /// Fail reads that touch this page of a file, counted from 1, with EIO; 0: none.
    pub bad_page: u64,
    /// Fail writes after this many, with EIO; 0: never.
    pub write_after: u64,
    /// Only writes to this device, counted from 1; 0: to any.
    pub write_device: u64,
    /// Flip a bit in pages read after this many; 0: never.
    pub flip_after: u64,
    /// Hold the completions of writes back for [`STALL_NS`] once, after this many; 0: never.
    pub stall_after: u64,
    /// Panic at a read after this many; 0: never.
    pub panic_after: u64,
    /// When the stall began, on the monotonic clock.
    pub stalled_since: core::sync::atomic::AtomicU64,
    /// In a swapoff, at most this many pages per operation, and one operation at a time; 0: no limit.
    pub swapoff_pages: u64,
    /// Fail writes of changed pages to files after this many, with EIO; 0: never.
    pub home_write_after: u64,
    /// Fail no more than this many of them; 0: all.
    pub home_write_fails: u64,
    /// Fail the fdatasync of a file that comes after this many, with EIO; 0: never.
    pub sync_after: u64,
    /// Give up after so many milliseconds when memory is full of changed pages of files that cannot be written; 0: as always.
    pub file_grace_ms: u64,
    /// Such writes done.
    pub home_writes: core::sync::atomic::AtomicU64,
    /// Such calls done.
    pub syncs: core::sync::atomic::AtomicU64,
    /// Reads done.
    pub reads: core::sync::atomic::AtomicU64,
    /// Writes done.
    pub writes: core::sync::atomic::AtomicU64,
}

impl Inject {
    /// From `read=N,read_every=N,bad_page=N,write=N,write_device=N,flip=N,home_write=N,home_write_fails=N,sync=N,
    /// file_grace_ms=N,stall=N,panic=N,swapoff_pages=N`.
    ///
    /// # Panics
    /// On any other text: a test that injects nothing would pass.
    pub fn parse(text: &str) -> Inject {
        let mut inject = Inject::default();
        for part in text.split(',') {
            let (key, n) = part.split_once('=').unwrap_or((part, "1"));
            let n = n.parse().unwrap_or_else(|_| panic!("OVERSPILL_INJECT: {n:?} is no number"));
            match key {
                "read" => inject.read_after = n,
                "read_every" => inject.read_every = n,
                "bad_page" => inject.bad_page = n,
                "write" => inject.write_after = n,
                "write_device" => inject.write_device = n,
                "flip" => inject.flip_after = n,
                "home_write" => inject.home_write_after = n,
                "home_write_fails" => inject.home_write_fails = n,
                "sync" => inject.sync_after = n,
                "file_grace_ms" => inject.file_grace_ms = n,
                "stall" => inject.stall_after = n,
                "panic" => inject.panic_after = n,
                "swapoff_pages" => inject.swapoff_pages = n,
                _ => panic!("OVERSPILL_INJECT: there is no {key:?}"),
            }
        }
        inject
    }
    /// Whether this write to a file is to fail.
    pub fn write_home(&self) -> bool {
        if self.home_write_after == 0 {
            return false;
        }
        let done = self.home_writes.fetch_add(1, Relaxed);
        let last = if self.home_write_fails == 0 { u64::MAX } else { self.home_write_after + self.home_write_fails };
        (self.home_write_after..last).contains(&done)
    }
    /// Whether this fdatasync is to fail.
    pub fn sync(&self) -> bool {
        self.sync_after != 0 && self.syncs.fetch_add(1, Relaxed) == self.sync_after
    }
    fn due(after: u64, count: &core::sync::atomic::AtomicU64) -> bool {
        after != 0 && count.fetch_add(1, Relaxed) >= after
    }
    /// The descriptor for the first attempt to read `bytes` bytes at `offset` of `fd`: `fd`, or -1 if this read is to fail.
    ///
    /// # Panics
    /// If a panic is due.
    pub fn read(&self, fd: i32, offset: u64, bytes: usize) -> i32 {
        assert!(!Self::due(self.panic_after, &self.reads), "a panic on order");
        let once = self.read_every != 0 && (self.reads.load(Relaxed) + 1).is_multiple_of(self.read_every);
        let fd = self.read_again(fd, offset, bytes);
        if once { -1 } else { fd }
    }
    /// The same for a later attempt.
    pub fn read_again(&self, fd: i32, offset: u64, bytes: usize) -> i32 {
        let pages = (offset >> PAGE_SHIFT) + 1..=(offset + bytes as u64) >> PAGE_SHIFT;
        let counted = self.read_after != 0 || self.read_every != 0; // otherwise `flip` counts pages here
        let done = if counted { self.reads.fetch_add(1, Relaxed) } else { 0 };
        let due = self.read_after != 0 && done >= self.read_after;
        if due || self.bad_page != 0 && pages.contains(&self.bad_page) { -1 } else { fd }
    }
    /// Whether this write to `device` is to fail.
    pub(crate) fn write(&self, device: DeviceId) -> bool {
        let done = self.writes.fetch_add(1, Relaxed);
        let there = self.write_device == 0 || self.write_device == u64::from(device.0) + 1;
        self.write_after != 0 && done >= self.write_after && there
    }
    /// Whether the device stalls now, as if it were busy with something else.
    pub fn stalled(&self, now: impl FnOnce() -> u64) -> bool {
        if self.stall_after == 0 || self.writes.load(Relaxed) < self.stall_after {
            return false;
        }
        let now = now();
        match self.stalled_since.compare_exchange(0, now, Relaxed, Relaxed) {
            Ok(_) => true,
            Err(since) => now.saturating_sub(since) < STALL_NS,
        }
    }
    /// Whether this page is to come back damaged.
    pub fn flip(&self) -> bool {
        Self::due(self.flip_after, &self.reads)
    }
}

//! The state that a pager's threads and fault handlers share.

use crate::quiet::Quiet;
use crate::reads::{Buffers, Queue};
use crate::write_back::WriteBack;
use overspill_linux::daemon::Daemon;
use overspill_linux::home::{FLUSH_TRANSFERS, Flusher};
use overspill_linux::io::{Engine, Io};
use overspill_linux::machine::{Delivery, Machine};
use overspill_linux::status_file::StatusFile;
use overspill_linux::sys::{Errno, Fd};
use overspill_linux::{lock, reader};
use std::sync::{Mutex, PoisonError};

/// More flushes at a time make rings of their own.
const FLUSH_IO_KEPT: usize = 4;

/// The state that a pager's threads and fault handlers share.
pub struct Shared {
    pub machine: Machine,
    /// With in-thread delivery.
    pub buffers: Option<Buffers>,
    pub queue: Queue,
    /// The most pages of a read.
    pub cluster_pages: usize,
    /// Resolved.
    pub engine: Engine,
    pub manual: Option<lock::Mutex<Daemon>>,
    /// Held by a thread that removes a device.
    pub swapoff: Mutex<()>,
    pub quit: Fd,
    /// I/O of flushes that have ended, for the next ones.
    pub flush_io: Mutex<Vec<Io>>,
    /// Regions of files whose changed pages are written from time to time.
    pub write_back: WriteBack,
    /// Dropped after the machine, which has references into it.
    pub _status: StatusFile,
}

impl Shared {
    /// => in-thread delivery
    pub fn buffers(&self) -> &Buffers {
        self.buffers.as_ref().expect("in-thread delivery has buffers")
    }

    /// Calls `flush` with what it needs. Rings are kept for the next callers: some time after one is gone, the kernel interrupts a
    /// wait of the thread that made it.
    ///
    /// # Errors
    /// As io_uring_setup(2); ENOMEM.
    pub fn with_flusher<R>(&self, flush: impl FnOnce(&mut Flusher) -> R) -> Result<R, Errno> {
        let idle = || self.flush_io.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = idle().pop();
        let io = kept.map_or_else(|| Io::lent(self.engine, FLUSH_TRANSFERS), Ok)?;
        let mut flusher = Flusher::new(io)?;
        let result = flush(&mut flusher);
        let mut idle = idle();
        if idle.len() < FLUSH_IO_KEPT {
            idle.push(flusher.into_io());
        }
        Ok(result)
    }

    /// A file is open. From the first one on the reader thread reads further ahead.
    pub fn note_file(&self) {
        if self.manual.is_some() || self.machine.config.delivery != Delivery::InThread || !self.queue.note_files() {
            return;
        }
        let now = reader::file_pages(self.cluster_pages) as u32;
        let _quiet = Quiet::new();
        let mut core = self.machine.core.lock();
        // long reads only if as many frames can be kept free as are then under way: in the least budget they pushed others out
        let long = if now <= core.vm.limit() / 32 { reader::long_pages(self.cluster_pages) as u32 } else { 0 };
        core.vm.set_under_way_max(now, long);
    }
}

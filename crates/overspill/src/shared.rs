//! The state that a pager's threads and fault handlers share.

use crate::quiet::Quiet;
use crate::reads::{Buffers, Queue};
use crate::turns::Turns;
use crate::write_back::WriteBack;
use overspill_linux::daemon::Daemon;
use overspill_linux::home::Flusher;
use overspill_linux::io::{Engine, Io};
use overspill_linux::machine::{Delivery, Machine};
use overspill_linux::status_file::StatusFile;
use overspill_linux::sys::{Errno, Fd};
use overspill_linux::{lock, reader};

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
    /// Whose turn it is to remove a device.
    pub swapoffs: Turns,
    pub quit: Fd,
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

    /// What a flush needs.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn flusher(&self) -> Result<Flusher, Errno> {
        Flusher::new(Io::lent(self.engine))
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

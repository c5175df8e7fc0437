//! What a pager's threads and fault handlers have in common.

use crate::reads::{Buffers, Queue};
use overspill_linux::daemon::Daemon;
use overspill_linux::io::Engine;
use overspill_linux::lock;
use overspill_linux::machine::Machine;
use overspill_linux::status_file::StatusFile;
use overspill_linux::sys::Fd;
use std::sync::Mutex;

/// What the pager's threads and fault handlers use.
pub struct Shared {
    pub machine: Machine,
    /// Of in-thread delivery.
    pub buffers: Option<Buffers>,
    pub queue: Queue,
    /// The most pages of a read.
    pub cluster_pages: usize,
    /// Resolved.
    pub engine: Engine,
    pub manual: Option<lock::Mutex<Daemon>>,
    /// Held by whoever takes a device away.
    pub swapoff: Mutex<()>,
    pub quit: Fd,
    /// After the machine, which has references into it.
    pub _status: StatusFile,
}

impl Shared {
    /// => in-thread delivery
    pub fn buffers(&self) -> &Buffers {
        self.buffers.as_ref().expect("in-thread delivery has buffers")
    }
}

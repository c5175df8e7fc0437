//! Overspill on Linux: the kernel below `overspill-machine`, and the threads that run it.
//!
//! [`kernel`] implements the machine's trait `Kernel` by system calls (`sys`), userfaultfd (`uffd`), futexes (`lock`) and I/O
//! (`io`). `handler` and `threads` run the machine, and `control*` let other processes ask it. The modules at the end of this file
//! give the machine's types for this kernel. The unsafe code of the system lives here, in the machine, and in the agent.
//!
//! Code that a fault or the daemon can reach does not allocate, log, format, or take a lock of libc's. In the agent, the heap that
//! libc hands out is the memory that is paged.

pub mod area;
pub mod content;
pub mod control;
pub mod control_client;
pub mod control_server;
pub mod credentials;
pub mod descriptors;
pub mod device_spec;
pub mod devices;
pub mod family;
pub mod halt_poll;
pub mod handler;
pub mod io;
pub mod kernel;
pub mod lock;
pub mod mappings;
pub mod probe;
pub mod record;
mod ring;
pub mod same_cpu;
pub mod sanitizers;
pub mod setup;
pub mod signature;
pub mod size;
pub mod spinner;
pub mod status_file;
pub mod swap_file;
pub mod sys;
#[cfg(test)]
mod tests;
pub mod threads;
pub mod uffd;
pub mod wake_policy;

pub use overspill_machine::{growth, mremap, native, park, ranges};

/// The machine, on Linux.
pub mod machine {
    use crate::kernel::Linux;
    pub use overspill_machine::fork::Forked;
    pub use overspill_machine::inject::Inject;
    pub use overspill_machine::machine::{Config, Core, DROPS_BATCH, Delivery, ZEROES_PAGES};
    pub use overspill_machine::serve::{Served, Waiters};
    pub use overspill_machine::space::Read;

    /// [`overspill_machine::Machine`].
    pub type Machine = overspill_machine::Machine<Linux>;
    /// [`overspill_machine::space::Space`].
    pub type Space = overspill_machine::space::Space<Linux>;
    /// [`overspill_machine::fork::Frozen`].
    pub type Frozen<'a> = overspill_machine::fork::Frozen<'a, Linux>;
    /// [`overspill_machine::machine::Parts`].
    pub type Parts = overspill_machine::machine::Parts<Linux>;
}

/// The page daemon, on Linux.
pub mod daemon {
    pub use overspill_machine::daemon::{BATCH, Step, buffer_pages, writes};

    /// [`overspill_machine::daemon::Daemon`].
    pub type Daemon = overspill_machine::daemon::Daemon<crate::kernel::Linux, crate::family::sharing::Sharing>;
}

/// Files as the home of pages, on Linux.
pub mod home {
    pub use overspill_machine::flush::{FlushError, Flushed};
    pub use overspill_machine::home::HomeFile;

    /// [`overspill_machine::flush::Flusher`].
    pub type Flusher = overspill_machine::flush::Flusher<crate::kernel::Linux>;
}

/// Page-in, on Linux.
pub mod reader {
    pub use overspill_machine::reader::{
        After, CLUSTERS, READS_MAX, SINGLES, TOKEN_OTHER, arrived, buffer_pages, count_io, deep_pages, file_pages, long_pages,
        read_more,
    };

    /// [`overspill_machine::reader::Reader`].
    pub type Reader = overspill_machine::reader::Reader<crate::kernel::Linux>;
}

/// Compressed memory, on Linux.
pub mod compressed {
    pub use overspill_machine::compressed::Holding;

    /// [`overspill_machine::compressed::Compressed`].
    pub type Compressed = overspill_machine::compressed::Compressed<crate::kernel::Linux>;
}

/// swapoff, on Linux.
pub mod swapoff {
    pub use overspill_machine::swapoff::{BeginError, Failure, State, Unreadable};

    /// [`overspill_machine::swapoff::Worker`].
    pub type Worker = overspill_machine::swapoff::Worker<crate::kernel::Linux>;
}

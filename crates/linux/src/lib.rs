//! Overspill's machine on Linux: it performs on real memory what `overspill-vm` decides.
//!
//! The unsafe code of the system lives here (and in the agent): raw system calls (`sys`), userfaultfd (`uffd`), locks (`lock`),
//! I/O (`io`), and the machine that joins them (`machine`, `space`, `reader`, `daemon`).
//!
//! Code that a fault or the daemon can reach does not allocate, log, format, or take a lock of libc's: in the agent the heap that
//! libc hands out is the very memory that is paged.

pub mod area;
#[path = "../../machine/src/compressed.rs"]
pub mod compressed;
pub mod content;
pub mod control;
pub mod control_client;
pub mod control_server;
#[path = "../../machine/src/copy_out.rs"]
pub mod copy_out;
pub mod credentials;
#[path = "../../machine/src/daemon.rs"]
pub mod daemon;
pub mod descriptors;
pub mod device_spec;
pub mod devices;
pub mod duty;
pub mod family;
#[path = "../../machine/src/growth.rs"]
pub mod growth;
pub mod io;
#[path = "../../machine/src/load_control.rs"]
pub mod load_control;
#[path = "../../machine/src/lock.rs"]
pub mod lock;
#[path = "../../machine/src/machine.rs"]
pub mod machine;
pub mod mappings;
#[path = "../../machine/src/park.rs"]
pub mod park;
#[path = "../../machine/src/pointers.rs"]
pub mod pointers;
pub mod probe;
#[path = "../../machine/src/ranges.rs"]
pub mod ranges;
#[path = "../../machine/src/reader.rs"]
pub mod reader;
pub mod record;
mod ring;
pub mod sanitizers;
pub mod setup;
pub mod signature;
pub mod size;
#[path = "../../machine/src/space.rs"]
pub mod space;
pub mod status_file;
pub mod swap_file;
pub mod swapoff;
pub mod sys;
pub mod threads;
pub mod uffd;
#[path = "../../machine/src/write_back.rs"]
mod write_back;

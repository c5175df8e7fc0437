//! Overspill's machine on Linux: it performs on real memory what `overspill-vm` decides.
//!
//! The unsafe code of the system lives here (and in the agent): raw system calls (`sys`), userfaultfd (`uffd`), locks (`lock`),
//! I/O (`io`), and the machine that joins them (`machine`, `space`, `reader`, `daemon`).
//!
//! Code that a fault or the daemon can reach does not allocate, log, format, or take a lock of libc's: in the agent the heap that
//! libc hands out is the very memory that is paged.

pub mod area;
pub mod compressed;
pub mod content;
pub mod control;
pub mod control_client;
pub mod control_server;
pub mod copy_out;
pub mod credentials;
pub mod daemon;
pub mod descriptors;
pub mod device_spec;
pub mod devices;
pub mod duty;
pub mod family;
pub mod growth;
pub mod io;
pub mod load_control;
pub mod lock;
pub mod machine;
pub mod mappings;
pub mod park;
pub mod pointers;
pub mod probe;
pub mod ranges;
pub mod reader;
pub mod record;
mod ring;
pub mod sanitizers;
pub mod setup;
pub mod signature;
pub mod size;
pub mod space;
pub mod status_file;
pub mod swap_file;
pub mod swapoff;
pub mod sys;
pub mod threads;
pub mod uffd;
mod write_back;

//! Overspill's machine performs what `overspill-vm` decides. It also decides what depends on the kernel's answers: how a fault is
//! served, what an event means, which pages can be taken out and how, what a failed write leads to.
//!
//! It knows no kernel. The trait [`Kernel`] is its only way to the outside. `overspill-linux` implements it by system calls, and
//! `overspill-sim` by a model of Linux, on which the machine's threads run as actors whose order a seed chooses.
//!
//! Code that a fault or the page daemon can reach does not allocate, log or format.

pub mod advice;
mod buffers;
pub mod completion;
pub mod compressed;
pub mod daemon;
pub mod devices;
pub mod errno;
pub mod events;
pub mod files;
pub mod flush;
pub mod fork;
pub mod futex;
pub mod growth;
pub mod handler;
pub mod home;
pub mod inject;
pub mod kernel;
pub mod load_control;
pub mod lock;
pub mod machine;
pub mod mremap;
pub mod native;
pub mod packet;
pub mod park;
pub mod pointers;
pub mod ranges;
pub mod reader;
pub mod remaps;
pub mod serve;
pub mod space;
pub mod swapoff;
mod unread;
pub mod waited;
mod write_back;

pub use kernel::Kernel;
pub use machine::Machine;

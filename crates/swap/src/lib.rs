//! Overspill's swap pager: it knows where pages lie that have no frame.
//!
//! ```text
//!                 trait Pager (overspill-vm)
//!                          |
//!    swap_pager     SwapPager: where each page is, and what the devices know of it
//!                    /                                  \
//!    swap_block   object, page -> slot, tag        devices   all in one slot number space
//!                 (radix trie per object)             |      device: the state of its slots
//!                                                     |      blist, bitmap: which are free, owned, waiting
//!                                                     |      growth, extent: pieces of files; fork, fork_epochs: who may read what
//!                                                     |      memory: a device that is compressed memory; device_stats
//! ```
//!
//! The crate has metadata only: no system call, no I/O, no clock, no thread, no lock, no unsafe code, and **no allocation after
//! construction** (`tests/no_alloc.rs`). The tables have their full size from the start. They are created zeroed and used from the
//! low end, so the part that was never needed has no physical memory behind it.

#![cfg_attr(not(test), no_std)] // so that a clock, a thread or a file does not compile
#![forbid(unsafe_code)]

extern crate alloc;

mod bitmap;
pub mod blist;
mod device;
pub mod device_stats;
mod devices;
pub mod extent;
mod fork;
mod fork_epochs;
mod growth;
mod memory;
pub mod swap_block;
mod swap_pager;

pub use device::{BLOCK_SLOTS, DeviceState, DeviceStatus, GROW_SLOTS};
pub use device_stats::{DeviceStats, Io, Latency};
pub use devices::{AddDeviceError, Devices, ERRORS_MAX};
pub use extent::{Extent, ExtentMap};
pub use growth::{AddExtentError, Punch};
pub use overspill_vm::types::DeviceId;
pub use swap_pager::{Config, SwapPager};

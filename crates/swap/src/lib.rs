//! Where pages lie when they have no frame: Overspill's swap pager.
//!
//! ```text
//!                 trait Pager (overspill-vm)
//!                          |
//!    swap_pager     SwapPager: devices in one slot number space, forks, results of writes
//!                    /                                  \
//!    swap_block   object, page -> slot, hash       blist   which slots of a device are free
//!                 (radix trie per object)                  (radix bitmap per device)    bitmap
//!                                                  extent  slot -> file, offset
//!                                                          (search tree)                device_stats
//!                                                  fork_epochs
//!                                                          which children may read a slot
//! ```
//!
//! Metadata only. Invariants of absence: no system call, no I/O, no clock, no thread, no lock, no unsafe code, and **no allocation
//! after construction** (`tests/no_alloc.rs` proves it). The tables have their full size from the start, but they are created
//! zeroed and used from the low end, so the part that was never needed has no physical memory behind it.

#![cfg_attr(not(test), no_std)] // a clock, a thread or a file is an error when it is compiled
#![forbid(unsafe_code)]

extern crate alloc;

mod bitmap;
pub mod blist;
pub mod device_stats;
pub mod extent;
mod fork_epochs;
pub mod swap_block;
pub mod swap_pager;

pub use device_stats::{DeviceStats, Io, Latency};
pub use extent::{Extent, ExtentMap};
pub use overspill_vm::types::DeviceId;
pub use swap_pager::{AddDeviceError, AddExtentError, Config, DeviceState, DeviceStatus, Devices, Punch, SwapPager};

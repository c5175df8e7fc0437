//! The machine-independent core of Overspill.
//!
//! ```text
//!      fault                     page daemon                    unmap, discard, remap
//!        |                            |                                  |
//!        v                            v                                  v
//!   +---------------------------------------------------------------------------+
//!   |  Vm:  page table (state words) - frames - queues - policy - streams       |
//!   +---------------------------------------------------------------------------+
//!        |  actions: zero fill, restore, read these pages, park these,          |
//!        v           compare and write these, drop these                        v
//!     a machine (Linux memory or the simulator) performs them      trait Pager (slots)
//! ```
//!
//! The core decides, the machine acts: no system calls, no clock, no threads, no unsafe code, and no allocation after set-up.
//! It never waits. What cannot be done at once is answered with an action; while the action runs the page is *busy*, which stands
//! in for a lock, and the machine reports the outcome page by page.

#![cfg_attr(not(test), no_std)] // a clock, a thread or a file is an error when it is compiled
#![forbid(unsafe_code)]

extern crate alloc;

mod budget;
mod bursts;
mod config;
pub mod counters;
mod direction;
mod fault;
mod file_pages;
mod frames;
pub mod hold_times;
mod home;
mod inactive_share;
mod neighbours;
mod object;
pub mod page;
mod page_in;
mod page_out;
pub mod page_queue;
mod page_table;
pub mod pager;
mod pointers;
mod policies;
pub mod policy;
mod pool_size;
mod replacement;
pub mod status;
mod stream;
mod swapoff;
pub mod types;
mod vm;
mod write_back;

pub use config::{CLUSTER_PAGES_MAX, Config, ConfigError, MEMORY_BYTES_MIN};
pub use fault::Fault;
pub use frames::FRAMES_SLACK;
pub use home::{Access, Flush, FlushScan, Home};
pub use page_in::{Destination, Filled, Followed, PageIn};
pub use page_out::{Compared, Demand, Laundry, PageOut, Parked, Resident};
pub use page_table::OBJECT_PAGES_MAX;
pub use policies::{AtWork, POLICIES_MAX};
pub use pool_size::Compressibility;
pub use status::PolicyCounts;
pub use swapoff::{COUNTED_FRAMES, Copies, MoveRun, RunArrived, Swapoff, SwapoffRefusal, SwapoffStep};
pub use vm::{Decision, Vm};

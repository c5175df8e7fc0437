//! The library for C: what `include/overspill.h` declares. `install.sh` makes liboverspill.so and liboverspill.a of this crate.
//!
//! The header says what each function does; this crate has only the border. Every call that can fail goes through `border::call`,
//! which catches panics, and turns errors into a code and a message of the thread's. Calls on a pager or a region ask first whether
//! this process has the pager (`border::here`): a forked child must not take its locks.
//!
//! Handles are boxes whose addresses C has. C programs use regions through pointers, so no function here makes a slice of a region.
//!
//! # Safety
//!
//! All functions have one contract, that of the header: handles come from this library and are not freed yet, texts end with a
//! zero, addresses of results can be written, and nobody else uses the bytes that a call may change.

#![allow(clippy::missing_safety_doc)] // it is above

mod arena;
mod border;
mod counters;
mod file;
mod options;
mod pager;
mod region;

pub use arena::*;
pub use border::{overspill_code_name, overspill_error_errno, overspill_error_message, overspill_version};
pub use counters::*;
pub use file::*;
pub use options::*;
pub use pager::*;
pub use region::*;

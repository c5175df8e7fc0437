//! The form of a page's bytes on their way to a device and back.
//!
//! ```text
//!   page --> checksum ----------------------------------> device      without encryption
//!   page --> seal (encrypt, tag) ----> bounce buffer ---> device      with
//!   page --> pool (same-filled | packed) --coldest------> device      a compressed memory device in front of another
//! ```
//!
//! A [`Tag`](overspill_vm::types::Tag) proves that a page came back right: 20 bytes in memory that never go to a device.
//! [`checksum`] or [`seal`] makes and checks it.
//!
//! No system calls, no clock, no threads, and no allocation after set-up: the code may run in a process whose heap is paged, on
//! threads that libc does not know, and in a signal handler. The only unsafe code is the calls of zstd's C library (`zstd.rs`).

#![deny(unsafe_code)]

pub mod budgeted_pool;
pub mod checksum;
pub mod packing;
pub mod pool;
pub mod seal;
mod words;
#[allow(unsafe_code)]
pub mod zstd;

use overspill_vm::types::PAGE_SIZE;

/// A page's bytes.
pub type PageBytes = [u8; PAGE_SIZE];

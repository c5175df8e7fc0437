//! The common part of the measuring programs: one set of access patterns for every kind of memory.
//!
//! `access` runs [`patterns::run`] on plain anonymous memory, which the kernel or `overspill run` pages. `bench-region` runs the
//! same accesses on a `Region` of the library. Both take [`options::Options`] and print JSON lines.

pub mod options;
pub mod patterns;

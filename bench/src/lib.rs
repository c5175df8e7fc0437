//! What the measuring programs share: one set of access patterns for every kind of memory.
//!
//! `access` runs [`patterns::run`] on plain anonymous memory, to be paged by the kernel or by `overspill run`; `bench-region`
//! runs the very same accesses on a `Region` of the library. Both take [`options::Options`] and print JSON lines.

pub mod options;
pub mod patterns;

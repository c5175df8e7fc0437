//! Which policy, and how much memory? Overspill's replacement policies on recorded reference strings.
//!
//! ```text
//!   reference string  ──  replay   one policy at one size, page-exact: cold start, demand paging, every reference told
//!   (dense page ids)      curve    LRU at all sizes in one pass (stack distances)
//!                         opt      Belady's MIN
//!                         matrix   many of these over threads, with progress
//! ```
//!
//! The policies are the ones that run live ([`overspill_vm::policy`]), with every reference told and one eviction at a time. All
//! counts are integers, nothing is sampled.

#![forbid(unsafe_code)]

mod curve;
mod matrix;
mod opt;
mod replay;
mod string;

pub use curve::{Curve, lru_curve};
pub use matrix::{Job, Outcome, matrix};
pub use replay::{Counts, LabPolicy, replay};
pub use string::References;

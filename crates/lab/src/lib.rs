//! Which policy, and how much memory? Overspill's replacement policies on recorded reference strings.
//!
//! ```text
//!     reference string  ──  replay   one policy at one size, page-exact: cold start, demand paging, every reference
//!   (dense page ids)      curve    LRU at all sizes in one pass (stack distances)
//!                         opt      Belady's MIN
//!                                                 faults   a replay on the live machine: the core itself, fault by fault
//!                         matrix   many of these over threads, with progress
//! ```
//!
//! The policies are the same that run live ([`overspill_vm::policy`]). They hear of every reference, with one eviction at a time;
//! in `faults` they hear of faults only, as live. All counts are integers, and nothing is sampled.

#![forbid(unsafe_code)]

mod curve;
mod faults;
mod matrix;
mod opt;
mod replay;
mod string;

pub use curve::{Curve, lru_curve, lru_curve_with_progress};
pub use faults::{FAULTS_MEMORY_MIN, Layout, Live, LiveCounts, replay_faults, replay_faults_with_progress};
pub use matrix::{Job, Outcome, in_parallel, matrix};
pub use replay::{Counts, LabPolicy, STRETCH, replay, replay_with_progress};
pub use string::{References, number_by_appearance};

//! The machine's own code on the simulated kernel: its handler and its page daemon serve a program of a few threads, devices come
//! and go, children run machines of their own, and a seed chooses whose turn it is at each lock and each call.

#![allow(unsafe_code)]

mod disk;
mod forks;
mod program;
mod run;
mod swapoff;
mod world;

pub use overspill_machine::kernel::Mistake;
pub use overspill_simkernel::sched::{Failure, Report};
pub use program::Habits;
pub use run::{Scenario, USUAL, run};
pub use swapoff::Habits as Swaps;
pub use world::Trouble;

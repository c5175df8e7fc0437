//! The simulated machine: the very same core and swap metadata as on Linux, run from a seed.
//!
//! ```text
//!   Scenario { seed, .. } --> run --> Report                    or Failure { seed, step, what, log }
//!                              |
//!        program threads, page daemons, device, system calls, forks: one step at a time, in an order that the seed chooses
//!                              |                                          |
//!                              v                                          v
//!        overspill_vm::Vm (the core, unchanged)            check: one property per file
//!                              |
//!        Watched: SwapPager (the real one) or ModelPager (ordered maps)
//! ```
//!
//! A page's content is one word, a frame is an entry of a vector, the device is a map, time is the number of steps. So some
//! thousand accesses with all their faults take milliseconds, and whatever goes wrong goes wrong again with the same seed.
//!
//! [`replay`] is the other use: a recorded reference string, one thread, everything done at once; the Linux machine in stepped mode
//! must come to the same decisions.
//!
//! What it cannot do: it knows nothing of time, so it says nothing about speed; the interleaving is of whole calls of the core,
//! which the real machine makes under a lock.
//!
//! Models: TigerBeetle's VOPR (fault model at the head of the device, checkers in files of their own), NetBSD's pdsim (the kernel's
//! own policy code in a simulator); read, not copied.

#![deny(unsafe_code)]

mod check;
mod compressed;
mod daemons;
mod device;
mod events;
mod forks;
mod log;
pub mod machine;
mod model_pager;
mod pool;
mod process;
mod replay;
pub mod rng;
mod scenario;
mod store;
mod swaps;
mod threads;
mod transfers;
mod world;

pub use model_pager::ModelPager;
pub use replay::{ReplayConfig, ReplayCounts, replay, replay_counts};
pub use scenario::{Bug, Failure, Faults, PagerKind, Report, Scenario};

use overspill_swap::SwapPager;
use std::panic::{AssertUnwindSafe, catch_unwind};
use store::Store;
use world::World;

/// Runs a scenario over the real swap pager and over the model.
///
/// # Errors
/// The first property that did not hold.
pub fn run(scenario: &Scenario) -> Result<Report, Failure> {
    let mut report = run_with(scenario, PagerKind::Swap)?;
    report.add(&run_with(scenario, PagerKind::Model)?);
    Ok(report)
}

/// Runs a scenario over one of the pagers.
///
/// # Errors
/// The first property that did not hold.
pub fn run_with(scenario: &Scenario, pager: PagerKind) -> Result<Report, Failure> {
    match pager {
        PagerKind::Model => run_over(scenario, ModelPager::new(scenario.slots)),
        PagerKind::Swap => {
            let config = overspill_swap::Config {
                pages_max: 2 * scenario.pages as u64,
                slots_max: scenario.slots,
                devices_max: 12,
                extents_max: 500,
            };
            run_over(scenario, SwapPager::new(config))
        }
    }
}

fn run_over<S: Store>(scenario: &Scenario, store: S) -> Result<Report, Failure> {
    let mut world = World::new(scenario.clone(), store);
    // The world is only looked at afterwards, so it does not matter how a panic has left it.
    match catch_unwind(AssertUnwindSafe(|| world.run())) {
        Ok(()) => Ok(world.report),
        Err(panic) => {
            let what = match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
                (Some(text), _) => text.clone(),
                (None, Some(text)) => (*text).to_owned(),
                (None, None) => "a panic without words".to_owned(),
            };
            Err(Failure { seed: scenario.seed, step: world.now, what, log: world.log.text() })
        }
    }
}

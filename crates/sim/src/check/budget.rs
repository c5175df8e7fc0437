//! Property: the budget is a promise.
//!
//! `charge <= max(limit, what was charged when the limit was lowered, falling) + asked over + second copies held by writes`. In a
//! run without such extras that is the limit itself, so a cluster never takes more frames than there are.

use crate::process::Process;
use crate::store::Store;

/// Looks at the levels after each step.
pub fn check<S: Store>(process: &mut Process<S>) {
    let (charge, limit) = (process.vm.charge_total(), process.vm.limit() as u64);
    let (over, held) = (process.asked_over, process.held_copies);
    let ceiling = process.ceiling.max(limit);
    assert!(
        charge <= ceiling + over + held,
        "budget: {charge} pages are charged of {ceiling}, {over} above it by need, {held} held by writes"
    );
    if charge <= limit {
        process.asked_over = 0;
    }
    process.ceiling = limit.max(ceiling.min(charge));
}

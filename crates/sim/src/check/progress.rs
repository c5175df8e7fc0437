//! Property: decisions end. Every access is served after a bounded number of faults and steps, whatever else goes on.

use crate::process::Thread;
use crate::store::Store;
use crate::world::World;

/// Faults that one access may take. Each fault of the simulation is one chance in many that the daemon has freed a frame since.
pub const FAULTS_MAX: u32 = 20_000;
/// Steps without any access ended, while no process is about to fork.
const STEPS_MAX: u64 = 40_000;
/// Steps that one access may take.
const ACCESS_STEPS_MAX: u64 = 60_000;

/// Looks at the clock.
pub fn check<S: Store>(world: &World<S>) {
    if !world.now.is_multiple_of(512) {
        return;
    }
    assert!(world.now - world.progress < STEPS_MAX, "progress: no access has ended since step {}", world.progress);
    for process in world.procs.iter().filter(|p| p.alive) {
        for thread in &process.threads {
            if let Thread::Touch(a) | Thread::Waiting(a) = thread {
                let steps = world.now - a.since;
                assert!(
                    steps < ACCESS_STEPS_MAX,
                    "progress: process {}: page {} has been waited for since step {}: {thread:?}",
                    process.id,
                    a.at,
                    a.since
                );
            }
        }
    }
}

/// Nothing is under way any more: whoever waits now was not woken and never will be.
pub fn check_nobody_waits<S: Store>(world: &World<S>) {
    for process in world.procs.iter().filter(|p| p.alive) {
        for thread in &process.threads {
            assert!(!matches!(thread, Thread::Waiting(_)), "progress: process {}: a wake was lost: {thread:?}", process.id);
        }
    }
}

//! Many replays over threads.

use crate::curve::{Curve, lru_curve};
use crate::replay::{Counts, LabPolicy, replay};
use crate::string::References;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// A policy at a size.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Job {
    /// The policy.
    pub policy: LabPolicy,
    /// The size, in pages.
    pub memory: u32,
}

/// What came of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// What was counted.
    pub counts: Counts,
    /// How long it took. Of LRU at several sizes, which one pass counts: each its share.
    pub time: Duration,
}

/// Does all `jobs` on `threads` threads and returns what came of each, in their order. `progress` is called with the number of jobs
/// done so far, from whichever thread did one.
///
/// # Panics
/// If `threads` or a job's memory is zero.
pub fn matrix(string: &References<'_>, jobs: &[Job], threads: usize, progress: impl Fn(usize) + Sync) -> Vec<Outcome> {
    let lru: LabPolicy = "lru".parse().expect("it is in the table");
    let of_lru = jobs.iter().filter(|job| job.policy == lru).count();
    let curve: OnceLock<(Curve, Duration)> = OnceLock::new();
    let one = |job: &Job| {
        let start = Instant::now();
        if job.policy == lru && of_lru > LRU_JOBS_ONE_BY_ONE {
            let (curve, time) = curve.get_or_init(|| (lru_curve(string), start.elapsed()));
            return Outcome { counts: curve.counts(job.memory), time: *time / of_lru as u32 };
        }
        let counts = replay(&job.policy, string, job.memory);
        Outcome { counts, time: start.elapsed() }
    };
    in_parallel(jobs, threads, progress, one)
}

/// What `one` makes of each of `jobs`, in their order, on `threads` threads. `progress` as in [`matrix`].
///
/// # Panics
/// If `threads` is zero, or `one` panics.
pub fn in_parallel<J: Sync, T: Send>(
    jobs: &[J],
    threads: usize,
    progress: impl Fn(usize) + Sync,
    one: impl Fn(&J) -> T + Sync,
) -> Vec<T> {
    assert!(threads > 0, "no thread to work");
    let outcomes = Mutex::new(jobs.iter().map(|_| None).collect::<Vec<_>>());
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        while let Some((n, job)) = Some(next.fetch_add(1, Relaxed)).and_then(|n| Some((n, jobs.get(n)?))) {
            let outcome = one(job);
            outcomes.lock().expect("no job has panicked")[n] = Some(outcome);
            progress(done.fetch_add(1, Relaxed) + 1);
        }
    };
    std::thread::scope(|scope| {
        (1..threads.min(jobs.len())).for_each(|_| {
            scope.spawn(work);
        });
        work();
    });
    outcomes.into_inner().expect("no job has panicked").into_iter().map(|o: Option<T>| o.expect("each job was done")).collect()
}

/// So many sizes of LRU are replayed one by one; with more, one pass over the string with a tree is less work.
const LRU_JOBS_ONE_BY_ONE: usize = 8;

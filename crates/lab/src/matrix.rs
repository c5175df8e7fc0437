//! Many replays over threads.

use crate::curve::{Curve, lru_curve_with_progress};
use crate::replay::{Counts, LabPolicy, replay_with_progress};
use crate::string::References;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
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

/// The result of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The counts.
    pub counts: Counts,
    /// How long it took. If one pass counts LRU at several sizes, each gets its share.
    pub time: Duration,
}

/// Runs all `jobs` on `threads` threads and returns their results, in the order of the jobs. Any of the threads calls `progress`
/// with the number of references done so far, several times in a long replay; the last number is that of all jobs.
///
/// # Panics
/// If `threads` or a job's memory is zero.
pub fn matrix(string: &References<'_>, jobs: &[Job], threads: usize, progress: impl Fn(u64) + Sync) -> Vec<Outcome> {
    let lru: LabPolicy = "lru".parse().expect("it is in the table");
    let of_lru = jobs.iter().filter(|job| job.policy == lru).count();
    let curve: OnceLock<(Curve, Duration)> = OnceLock::new();
    let one = |job: &Job, done: &dyn Fn(u64)| {
        let start = Instant::now();
        if job.policy == lru && of_lru > LRU_JOBS_ONE_BY_ONE {
            let (curve, time) = curve.get_or_init(|| {
                // the thread that makes the pass does it for all sizes
                let curve = lru_curve_with_progress(string, &|references| done(references * of_lru as u64));
                (curve, start.elapsed())
            });
            return Outcome { counts: curve.counts(job.memory), time: *time / of_lru as u32 };
        }
        let counts = replay_with_progress(&job.policy, string, job.memory, done);
        Outcome { counts, time: start.elapsed() }
    };
    in_parallel(jobs, threads, progress, one)
}

/// Runs `one` for each of `jobs` on `threads` threads, and returns the results in the order of the jobs. `one` reports each amount
/// of work by calling the function that it gets; any of the threads calls `progress` with the sum so far.
///
/// # Panics
/// If `threads` is zero, or `one` panics.
pub fn in_parallel<J: Sync, T: Send>(
    jobs: &[J],
    threads: usize,
    progress: impl Fn(u64) + Sync,
    one: impl Fn(&J, &dyn Fn(u64)) -> T + Sync,
) -> Vec<T> {
    assert!(threads > 0, "no thread to work");
    let outcomes = Mutex::new(jobs.iter().map(|_| None).collect::<Vec<_>>());
    let (next, sum) = (AtomicUsize::new(0), AtomicU64::new(0));
    let done = |work| progress(sum.fetch_add(work, Relaxed) + work);
    let work = || {
        while let Some((n, job)) = Some(next.fetch_add(1, Relaxed)).and_then(|n| Some((n, jobs.get(n)?))) {
            let outcome = one(job, &done);
            outcomes.lock().expect("no job has panicked")[n] = Some(outcome);
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

/// Up to this many sizes of LRU are replayed one by one. For more, one pass over the string with a tree is less work.
const LRU_JOBS_ONE_BY_ONE: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::STRETCH;
    use crate::{FAULTS_MEMORY_MIN, Layout, Live, replay_faults_with_progress};

    /// Progress was reported once per job, so a single long job reported nothing until its end.
    #[test]
    fn a_single_job_tells_how_far_it_is() {
        let length = 2 * STRETCH + 100;
        let pages: Vec<u32> =
            (0..length as u32).map(|n| if n < 1000 { n } else { n.wrapping_mul(2_654_435_761) >> 8 & 511 }).collect();
        let string = References::new(&pages, 1000, None);
        let told = Mutex::new(Vec::new());
        let tell = |sum| told.lock().expect("nobody panics").push(sum);
        let steps = |jobs: u64| [STRETCH, 2 * STRETCH, length].map(|done| done as u64 * jobs);
        for policy in ["fifo", "lru-2", "opt", "lru"] {
            let policy: LabPolicy = policy.parse().expect("known");
            matrix(&string, &[Job { policy, memory: 100 }], 1, tell);
            assert_eq!(core::mem::take(&mut *told.lock().expect("nobody panics")), steps(1), "{policy}");
        }
        // nine sizes of LRU are one pass
        let policy: LabPolicy = "lru".parse().expect("known");
        let jobs: Vec<Job> = (1..=9).map(|n| Job { policy, memory: 100 * n }).collect();
        matrix(&string, &jobs, 1, tell);
        assert_eq!(core::mem::take(&mut *told.lock().expect("nobody panics")), steps(9));
        // on two threads the steps come in any order
        matrix(&string, &jobs[..2], 2, tell);
        let mut steps_of_two = core::mem::take(&mut *told.lock().expect("nobody panics"));
        steps_of_two.sort_unstable();
        assert_eq!((steps_of_two.len(), steps_of_two.last()), (6, Some(&(2 * length as u64))));

        let live = Live { memory: FAULTS_MEMORY_MIN, charged: 0, readahead: false, references: false };
        let spec = overspill_vm::policy::Spec::default();
        let layout = Layout::new(&(0..1000).collect::<Vec<u64>>());
        in_parallel(&[()], 1, tell, |_, done| replay_faults_with_progress(&spec, &string, &layout, &live, done));
        assert_eq!(told.into_inner().expect("nobody panics"), steps(1));
    }
}

//! The scheduler finds the consequences of a missing wake, in a toy of the pager. Programs take frames under a lock, ring for more,
//! and wait. A daemon waits for the bell, brings frames under the same lock, and wakes the waiting programs.

mod toy;

use overspill_simkernel::sched::{self, Actor, Failure, Report, Role, Timeout, Word};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use toy::Lock;

/// The lock has no holder.
const NOBODY: usize = usize::MAX - 1;

/// A mistake to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
    None,
    /// An unlock never wakes.
    UnlockWakesNobody,
    /// The bell is rung, but nobody is woken.
    BellWakesNobody,
    /// Frames come, but nobody is woken.
    FramesWakeNobody,
    /// Frames come, but only one of the waiting programs is woken.
    FramesWakeOne,
    /// The daemon reads the bell only after it has checked whether there is something to do.
    BellReadLate,
}

struct Toy {
    lock: Lock,
    bell: Word,
    /// Counts how often frames came.
    came: Word,
    free: AtomicU32,
    holder: AtomicUsize,
    mistake: Mistake,
}

impl Toy {
    /// Runs code under the lock, by one actor at a time.
    fn locked<T>(&self, who: usize, f: impl FnOnce() -> T) -> T {
        self.lock.lock();
        assert_eq!(self.holder.swap(who, SeqCst), NOBODY, "the lock is one's");
        sched::turn();
        let result = f();
        assert_eq!(self.holder.swap(NOBODY, SeqCst), who);
        self.lock.unlock(self.mistake != Mistake::UnlockWakesNobody);
        result
    }

    fn take_frame(&self) -> bool {
        let free = self.free.load(SeqCst);
        sched::turn();
        self.free.store(free.saturating_sub(1), SeqCst); // (the lock is held)
        free > 0
    }

    fn program(&self, who: usize) {
        for _ in 0..10 {
            loop {
                let came = self.came.load();
                if self.locked(who, || self.take_frame()) {
                    break;
                }
                self.bell.add(1);
                if self.mistake != Mistake::BellWakesNobody {
                    self.bell.wake(1);
                }
                self.came.wait(came, Timeout::Rescue(20_000_000));
            }
            sched::progress();
        }
    }

    fn daemon(&self) {
        loop {
            let early = self.bell.load();
            let short = self.locked(usize::MAX, || {
                let short = self.free.load(SeqCst) == 0;
                self.free.fetch_max(2, SeqCst);
                short
            });
            if short {
                self.came.add(1);
                match self.mistake {
                    Mistake::FramesWakeNobody => 0,
                    Mistake::FramesWakeOne => self.came.wake(1),
                    _ => self.came.wake(usize::MAX),
                };
            } else {
                let seen = if self.mistake == Mistake::BellReadLate { self.bell.load() } else { early };
                self.bell.wait(seen, Timeout::Rescue(200_000_000));
            }
        }
    }
}

fn toy(seed: u64, mistake: Mistake) -> Result<Report, Failure> {
    let toy = Arc::new(Toy {
        lock: Lock::default(),
        bell: Word::new(0),
        came: Word::new(0),
        free: AtomicU32::new(0),
        holder: AtomicUsize::new(NOBODY),
        mistake,
    });
    let of = |act: Box<dyn FnOnce() + Send>, name, role| Actor { name, role, act };
    let daemon = Arc::clone(&toy);
    let mut actors = vec![of(Box::new(move || daemon.daemon()), "daemon", Role::Service)];
    for (who, name) in ["first", "second", "third"].into_iter().enumerate() {
        let toy = Arc::clone(&toy);
        actors.push(of(Box::new(move || toy.program(who)), name, Role::Program));
    }
    sched::run(seed, actors)
}

#[test]
fn without_a_mistake_all_is_well() {
    let start = std::time::Instant::now();
    let mut turns = 0;
    const SEEDS: u64 = 500;
    for seed in 0..SEEDS {
        let report = toy(seed, Mistake::None).unwrap_or_else(|failure| panic!("seed {seed}: {failure:?}"));
        assert_eq!(report.rescues, 0);
        assert_eq!(toy(seed, Mistake::None), Ok(report), "the same seed is the same run");
        turns += 2 * report.turns;
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{:.0} runs a second, {:.0} turns a run", 2.0 * SEEDS as f64 / seconds, turns as f64 / 2.0 / SEEDS as f64);
}

#[test]
fn each_mistake_is_found() {
    use Mistake::*;
    for mistake in [UnlockWakesNobody, BellWakesNobody, FramesWakeNobody, FramesWakeOne, BellReadLate] {
        let found = (0..50).find_map(|seed| Some((seed, toy(seed, mistake).err()?)));
        let (seed, failure) = found.unwrap_or_else(|| panic!("{mistake:?} is not found"));
        println!("{mistake:?}: seed {seed}, {failure:?}");
        assert!(matches!(failure, Failure::LostWake(_) | Failure::Stuck(_)), "{mistake:?}: {failure:?}");
    }
}

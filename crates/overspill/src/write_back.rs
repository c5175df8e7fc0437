//! Write-back: one thread of the pager writes changed pages of read-write regions to their files from time to time.
//!
//! The kernel does not tell which pages have changed, so each page in memory is compared with what the file has. A pass over all
//! pages of a region comes at least once per interval. It comes earlier if the last pass has found so many changed pages that the
//! limit would be exceeded before. Passes take at most a fifth of the thread's time.
//!
//! Lock: the list, outside of all locks of the machine. A region is `busy` while a part of it is being flushed, without the lock.

use overspill_vm::types::ObjectId;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Pages that are flushed at a time, before anybody else may go on.
pub const FLUSH_STEP: u64 = 2048;

/// Writes the changed pages of a range of a region; returns how many those were.
pub type FlushPart = Arc<dyn Fn(Range<u64>) -> u64 + Send + Sync>;

/// A pass is followed by a pause of at least this, and of at least [`PAUSE`] times its own length.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE: u32 = 4;

/// The regions that are written back.
#[derive(Default)]
pub struct WriteBack {
    list: Mutex<List>,
    changed: Condvar,
    /// After this time a changed page is written.
    pub interval: Duration,
    /// So many changed pages there should be at most.
    pub pages_max: u64,
}

#[derive(Default)]
struct List {
    ended: bool,
    regions: Vec<Written>,
}

struct Written {
    object: ObjectId,
    pages: u64,
    flush: FlushPart,
    busy: bool,
    leaves: bool,
    last: Instant,
    due: Instant,
}

impl WriteBack {
    /// Nothing yet.
    pub fn new(interval: Duration, pages_max: u64) -> WriteBack {
        WriteBack { interval, pages_max: pages_max.max(1), ..WriteBack::default() }
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the region is written back.
    pub fn enter(&self, object: ObjectId, pages: u64, flush: FlushPart) {
        let last = Instant::now();
        let due = last + self.interval.min(Duration::from_secs(1)); // the first pass tells how much changes
        self.lock().regions.push(Written { object, pages, flush, busy: false, leaves: false, last, due });
        self.changed.notify_all();
    }

    /// No more. => when this returns, nothing is being written
    pub fn leave(&self, object: ObjectId) {
        let mut list = self.lock();
        while let Some(at) = list.regions.iter().position(|r| r.object == object) {
            if !list.regions[at].busy {
                list.regions.swap_remove(at);
                return;
            }
            list.regions[at].leaves = true;
            list = self.changed.wait(list).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the thread.
    pub fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    /// When the next pass is due, if the last one took from `begun` to `now`, began `since` after the one before, and has found so
    /// many changed pages.
    fn next(&self, begun: Instant, now: Instant, since: Duration, changed: u64) -> Instant {
        let until_full = since.as_secs_f64() * self.pages_max as f64 / changed.max(1) as f64;
        let pause = self.interval.min(Duration::try_from_secs_f64(until_full).unwrap_or(self.interval));
        (begun + pause).max(now + PAUSE_MIN.max((now - begun) * PAUSE))
    }

    /// The thread.
    pub fn run(&self) {
        let mut list = self.lock();
        while !list.ended {
            let Some(at) = (0..list.regions.len()).min_by_key(|at| list.regions[*at].due) else {
                list = self.changed.wait(list).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let begun = Instant::now();
            let region = &mut list.regions[at];
            if region.due > begun {
                let pause = region.due - begun;
                list = self.changed.wait_timeout(list, pause).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let (object, pages, flush, last) = (region.object, region.pages, region.flush.clone(), region.last);
            region.busy = true;
            drop(list);
            let (mut at, mut written, mut goes_on) = (0, 0, true);
            while at < pages && goes_on {
                written += flush(at..pages.min(at + FLUSH_STEP));
                at += FLUSH_STEP;
                let list = self.lock();
                goes_on = !list.ended && list.regions.iter().any(|r| r.object == object && !r.leaves);
            }
            drop(flush);
            list = self.lock();
            let now = Instant::now();
            if let Some(region) = list.regions.iter_mut().find(|r| r.object == object) {
                region.busy = false;
                region.last = begun;
                region.due = self.next(begun, now, begun - last, written);
            }
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_is_changed_the_sooner_is_the_next_pass() {
        let back = WriteBack::new(Duration::from_secs(30), 1000);
        let begun = Instant::now();
        let after = |took: u64, since: u64, changed| {
            let ms = Duration::from_millis;
            (back.next(begun, begun + ms(took), ms(since), changed) - begun).as_millis()
        };
        assert_eq!(after(10, 1000, 0), 30_000);
        assert_eq!(after(10, 30_000, 1000), 30_000, "as many as there may be, in one interval");
        assert_eq!(after(10, 30_000, 4000), 7500);
        assert_eq!(after(10, 1000, 500), 2000);
        assert_eq!(after(10, 1000, 1_000_000), 110, "not without a pause");
        assert_eq!(after(2000, 1000, 1_000_000), 10_000, "a fifth of its time");
    }
}

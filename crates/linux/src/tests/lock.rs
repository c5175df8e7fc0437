//! The locks, with threads and forks.

use crate::lock::{Mutex, Rank, RwLock};
use crate::status_file::Snapshot;
use crate::sys;
use overspill_vm::status::Status;
use std::sync::Arc;

/// A child inherited the count of a writer that waited in its parent, and no thread could take the lock for reading any more.
#[test]
fn a_forked_child_does_not_wait_for_its_parents_writers() {
    let lock = Arc::new(RwLock::ranked(Rank::Map, 0));
    let guard = lock.write();
    let waiting = std::thread::spawn({
        let lock = lock.clone();
        move || *lock.write() += 1
    });
    while lock.writers() < 2 {
        std::thread::yield_now();
    }
    // SAFETY: the child only looks at the lock, which none of its threads holds, and ends without running anything else.
    match unsafe { libc::fork() } {
        0 => {
            lock.forked();
            drop(guard);
            // SAFETY: ends the child.
            unsafe { libc::_exit(lock.try_read().is_none() as i32) }
        }
        child => {
            let mut status = 0;
            // SAFETY: writes the status.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "the child can read");
        }
    }
    drop(guard);
    waiting.join().expect("no panic");
    assert_eq!(*lock.read(), 1);
}

#[test]
fn a_lock_that_was_not_had_is_not_given_back() {
    let lock = Mutex::new(());
    let guard = lock.lock();
    assert!(lock.try_lock().is_none() && lock.try_lock().is_none());
    drop(guard);
    assert!(lock.try_lock().is_some());
}

#[test]
fn counts_come_out_right() {
    let m = Arc::new(Mutex::new(0u64));
    let rw = Arc::new(RwLock::ranked(Rank::Map, [0u64; 2]));
    let threads: Vec<_> = (0..4)
        .map(|t| {
            let (m, rw) = (m.clone(), rw.clone());
            std::thread::spawn(move || {
                for i in 0..20_000 {
                    match m.try_lock() {
                        Some(mut n) => *n += 1,
                        None => *m.lock() += 1,
                    }
                    if (i + t) % 8 == 0 {
                        let mut w = rw.write();
                        w[0] += 1;
                        w[1] += 1;
                    } else {
                        let r = rw.read();
                        assert_eq!(r[0], r[1]);
                    }
                }
            })
        })
        .collect();
    for t in threads {
        t.join().expect("no panic");
    }
    assert_eq!(*m.lock(), 80_000);
    assert_eq!(rw.read()[0], 10_000);
}

/// A hold of 20 ms shows as one of 20 ms, for the right lock and the line where it was taken. The reader works out the length of a
/// tick from two readings of both clocks.
#[test]
fn hold_times_are_told_in_nanoseconds() {
    let status: &'static Status = Box::leak(Box::default());
    let (ns, cycles) = sys::clocks();
    status.start(ns, cycles);
    let map = RwLock::ranked(Rank::Map, ()).timed(&status.locks.map_shared, &status.locks.map_exclusive);
    let core = Mutex::ranked(Rank::Core, ()).timed(&status.locks.core);
    let began = sys::now_ns();
    let line = line!() + 1;
    let readers = [map.read(), map.try_read().expect("nobody writes")];
    while sys::now_ns() < began + 20_000_000 {
        drop(core.lock());
    }
    drop(readers);
    let (took, ended) = (sys::now_ns() - began, sys::now_ns());
    drop(map.write());
    assert!(core.try_lock().is_some());
    let [shared, exclusive, core] = <[_; 3]>::try_from(Snapshot::of(status).locks).expect("three");
    let since = sys::now_ns() - ended;
    for ns in [shared.longest_ns, shared.quantiles_ns[0]] {
        assert!((19_900_000..=took + took / 100).contains(&ns), "{shared:?} in {took} ns");
    }
    assert_eq!((shared.count, shared.longest_at), (2, format!("{}:{line}", file!())));
    assert!(exclusive.count == 1 && exclusive.longest_ns <= since + since / 100, "{exclusive:?} in {since} ns");
    let [p50, p99, p999] = core.quantiles_ns;
    assert!(core.count > 1 && core.longest_ns < took && p50 <= p99 && p99 <= p999 && p999 <= core.longest_ns, "{core:?}");
}

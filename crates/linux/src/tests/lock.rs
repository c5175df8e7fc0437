//! The locks, with threads and forks.

use crate::lock::{Mutex, Rank, RwLock};
use std::sync::Arc;

/// A child once inherited the count of a writer that waited in its parent: nobody could read any more.
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
    // SAFETY: the child only looks at the lock, which no other thread of its has, and ends without running anything else.
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

//! Futex locks for the pager: no thread-local storage, no poisoning, no allocation, const.
//!
//! std's locks would do but for their poisoning, which asks thread-local storage whether the thread is panicking: pager threads of
//! the agent have none. `parking_lot` allocates when a thread first blocks.
//!
//! What is done with their words is in `protocol.rs`, where loom tries all orders of it.
//!
//! Lock order, outer to inner: [`Mutex`] `swapping` (never waited for but by a fork) -> [`RwLock`] `map` -> [`Mutex`] `core`. No
//! lock is held over device I/O, but `map` (exclusive) over the allocation of more blocks for a swap file, once per 64 MiB. `map`
//! is held (shared) over the userfaultfd calls that fill or take pages, which sleep only for the kernel's own memory locks.

#[path = "lock/protocol.rs"]
mod protocol;

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use protocol::{RawMutex, RawRwLock};

/// Mutual exclusion.
#[derive(Debug)]
pub struct Mutex<T> {
    raw: RawMutex,
    /// How often it was taken.
    #[cfg(test)]
    pub(crate) taken: core::sync::atomic::AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives out one reference at a time, so sending T suffices.
unsafe impl<T: Send> Sync for Mutex<T> {}
// SAFETY: as for T.
unsafe impl<T: Send> Send for Mutex<T> {}

impl<T> Mutex<T> {
    /// A free lock around `value`.
    pub const fn new(value: T) -> Self {
        Mutex {
            raw: RawMutex::new(),
            #[cfg(test)]
            taken: core::sync::atomic::AtomicU32::new(0),
            value: UnsafeCell::new(value),
        }
    }
    /// Takes the lock; waits for it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.raw.lock();
        #[cfg(test)]
        self.taken.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        MutexGuard(self)
    }
    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        // Only then: a guard that is made and dropped again would give somebody else's lock back.
        self.raw.try_lock().then(|| MutexGuard(self))
    }
    /// In the child of a fork, whose only thread does not hold the lock: whoever held it in the parent is not here.
    ///
    /// # Safety
    /// So it is, and the value is as good as one that nobody was changing.
    pub unsafe fn forked(&self) {
        self.raw.reset();
    }
}

/// Unlocks when dropped.
#[derive(Debug)]
pub struct MutexGuard<'a, T>(&'a Mutex<T>);

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard exists, so this thread holds the lock.
        unsafe { &*self.0.value.get() }
    }
}
impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed exclusively.
        unsafe { &mut *self.0.value.get() }
    }
}
impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.0.raw.unlock();
    }
}

/// Shared or exclusive. A waiting writer keeps new readers out, so that events are never starved by faults.
#[derive(Debug)]
pub struct RwLock<T> {
    raw: RawRwLock,
    /// How often it was taken.
    #[cfg(test)]
    pub(crate) taken: core::sync::atomic::AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: readers share T, one writer has it alone.
unsafe impl<T: Send + Sync> Sync for RwLock<T> {}
// SAFETY: as for T.
unsafe impl<T: Send> Send for RwLock<T> {}

impl<T> RwLock<T> {
    /// A free lock around `value`.
    pub const fn new(value: T) -> Self {
        RwLock {
            raw: RawRwLock::new(),
            #[cfg(test)]
            taken: core::sync::atomic::AtomicU32::new(0),
            value: UnsafeCell::new(value),
        }
    }
    /// In the child of a fork, whose only thread holds the lock exclusively: whoever waited for it in the parent is not here, and
    /// must not keep readers out.
    pub fn forked(&self) {
        self.raw.reset_waiters();
    }
    /// Whether somebody waits to have it exclusively, or has it.
    pub fn is_wanted(&self) -> bool {
        self.raw.writers() != 0
    }
    /// Takes the lock shared; waits for it.
    pub fn read(&self) -> ReadGuard<'_, T> {
        self.raw.read();
        #[cfg(test)]
        self.taken.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        ReadGuard(self)
    }
    /// Takes the lock exclusively; waits for it.
    pub fn write(&self) -> WriteGuard<'_, T> {
        self.raw.write();
        #[cfg(test)]
        self.taken.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        WriteGuard(self)
    }
}

/// Releases when dropped.
#[derive(Debug)]
pub struct ReadGuard<'a, T>(&'a RwLock<T>);
/// Releases when dropped.
#[derive(Debug)]
pub struct WriteGuard<'a, T>(&'a RwLock<T>);

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard exists, so no writer does.
        unsafe { &*self.0.value.get() }
    }
}
impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard exists, so this thread is the only holder.
        unsafe { &*self.0.value.get() }
    }
}
impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.0.value.get() }
    }
}
impl<T> Drop for ReadGuard<'_, T> {
    fn drop(&mut self) {
        self.0.raw.unlock_read();
    }
}
impl<T> Drop for WriteGuard<'_, T> {
    fn drop(&mut self) {
        self.0.raw.unlock_write();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// A child once inherited the count of a writer that waited in its parent: nobody could read any more.
    #[test]
    fn a_forked_child_does_not_wait_for_its_parents_writers() {
        let lock = Arc::new(RwLock::new(0));
        let guard = lock.write();
        let waiting = std::thread::spawn({
            let lock = lock.clone();
            move || *lock.write() += 1
        });
        while lock.raw.writers() < 2 {
            std::thread::yield_now();
        }
        // SAFETY: the child only looks at the lock, which no other thread of its has, and ends without running anything else.
        match unsafe { libc::fork() } {
            0 => {
                lock.forked();
                drop(guard);
                // SAFETY: ends the child.
                unsafe { libc::_exit(!lock.raw.try_read() as i32) }
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
        let rw = Arc::new(RwLock::new([0u64; 2]));
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
}

//! The two locks without the values that they guard: the operations on their words, and the order of these.
//!
//! The words are behind a trait. In the tests below loom provides them, and tries every order of steps and every value that a
//! weakly ordered machine may show. The real words are atomics on which the kernel lets threads sleep.

use crate::futex::{Futex, Word};
use core::sync::atomic::Ordering::*;

/// Mutual exclusion. Values: 0 free, 1 held, 2 held and waited for (Drepper, "Futexes are tricky", 2011, section 5).
#[derive(Debug)]
pub struct RawMutex<W> {
    state: W,
}

impl<W: Futex> RawMutex<W> {
    pub const fn new() -> Self {
        RawMutex { state: W::ZERO }
    }
}

impl<W: Word> RawMutex<W> {
    #[inline]
    pub fn lock(&self) {
        if !self.try_lock() {
            self.lock_slow();
        }
    }
    #[inline]
    pub fn try_lock(&self) -> bool {
        self.state.compare_exchange(0, 1, Acquire)
    }
    #[cold]
    fn lock_slow(&self) {
        if W::spin(|| self.state.load(Relaxed) == 0 && self.try_lock()) {
            return;
        }
        while self.state.swap(2, Acquire) != 0 {
            self.state.wait(2);
        }
    }
    #[inline]
    pub fn unlock(&self) {
        // Release pairs with the Acquire of the next holder.
        if self.state.swap(0, Release) == 2 {
            self.state.wake(1);
        }
    }
    pub fn word(&self) -> &W {
        &self.state
    }
    /// Copies the state of another lock.
    pub fn copy(&self, from: &Self) {
        self.state.store(from.state.load(Relaxed), Relaxed);
    }
    /// Nobody holds it or waits for it any more.
    pub fn reset(&self) {
        self.state.store(0, Relaxed);
    }
}

/// Shared or exclusive. A waiting writer keeps new readers out, so that events are never starved by faults.
///
/// `state`: number of readers, or `WRITER`. `writers`: how many wait or hold. `releases`: how often it was released, for sleepers.
#[derive(Debug)]
pub struct RawRwLock<W> {
    state: W,
    writers: W,
    releases: W,
    sleepers: W,
}

const WRITER: u32 = u32::MAX;

impl<W: Futex> RawRwLock<W> {
    pub const fn new() -> Self {
        RawRwLock { state: W::ZERO, writers: W::ZERO, releases: W::ZERO, sleepers: W::ZERO }
    }
}

impl<W: Word> RawRwLock<W> {
    pub fn read(&self) {
        if !self.try_read() {
            self.wait(|| self.try_read());
        }
    }
    pub fn try_read(&self) -> bool {
        loop {
            if self.writers.load(Relaxed) != 0 {
                return false;
            }
            let n = self.state.load(Relaxed);
            if n == WRITER {
                return false;
            }
            // If another reader came in between, try again rather than wait: that reader may be in a long call.
            if self.state.compare_exchange(n, n + 1, Acquire) {
                return true;
            }
        }
    }
    pub fn write(&self) {
        self.take_write(true);
    }
    /// As `write`, but sleeps at once if it has to wait.
    pub fn write_without_polling(&self) {
        self.take_write(false);
    }
    fn take_write(&self, polls: bool) {
        self.writers.fetch_add(1, Relaxed);
        let take = || self.state.compare_exchange(0, WRITER, Acquire);
        match (take(), polls) {
            (true, _) => {}
            (false, true) => self.wait(take),
            (false, false) => self.sleep(take),
        }
    }
    pub fn unlock_read(&self) {
        // Release pairs with the Acquire of the next writer.
        if self.state.fetch_sub(1, Release) == 1 {
            self.released();
        }
    }
    pub fn unlock_write(&self) {
        self.writers.fetch_sub(1, Relaxed);
        // Release pairs with the Acquire of the next holder.
        self.state.store(0, Release);
        self.released();
    }
    fn wait(&self, mut ready: impl FnMut() -> bool) {
        if !W::spin(&mut ready) {
            self.sleep(ready);
        }
    }
    fn sleep(&self, mut ready: impl FnMut() -> bool) {
        loop {
            self.sleepers.fetch_add(1, Relaxed);
            // This side counts the sleeper before it looks at `releases` and at the lock. `released` increments `releases` before
            // it looks at the sleepers. With the fences, at least one of the two sees the other, so no wake is lost.
            W::fence();
            // Acquire pairs with the Release in `released`: a thread that sees the new `releases` also sees the lock released, or
            // it would sleep on the new `releases`.
            let releases = self.releases.load(Acquire);
            let ready = ready();
            if !ready {
                self.releases.wait(releases);
            }
            self.sleepers.fetch_sub(1, Relaxed);
            if ready {
                return;
            }
        }
    }
    /// Whether threads sleep until the lock is free for them.
    pub fn has_sleepers(&self) -> bool {
        self.sleepers.load(Relaxed) != 0
    }
    fn released(&self) {
        self.releases.fetch_add(1, Release);
        W::fence();
        if self.sleepers.load(Relaxed) != 0 {
            self.releases.wake(i32::MAX as u32);
        }
    }
    pub fn word(&self) -> &W {
        &self.state
    }
    /// Copies the state of another lock.
    pub fn copy(&self, from: &Self) {
        for (to, from) in [
            (&self.state, &from.state),
            (&self.writers, &from.writers),
            (&self.releases, &from.releases),
            (&self.sleepers, &from.sleepers),
        ] {
            to.store(from.load(Relaxed), Relaxed);
        }
    }
    /// The caller holds it exclusively, and nobody waits any more.
    pub fn reset_waiters(&self) {
        assert_eq!(self.state.load(Relaxed), WRITER);
        self.writers.store(1, Relaxed);
        self.sleepers.store(0, Relaxed);
    }
    /// How many threads wait to have it exclusively, or have it.
    pub fn writers(&self) -> u32 {
        self.writers.load(Relaxed)
    }
}

/// Every order of steps of two or three threads, as loom finds them.
#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering;
    use loom::cell::UnsafeCell;
    use loom::sync::{Arc, Condvar, Mutex};

    /// A word of loom's with a queue like the kernel's: a sleeper compares under the queue's lock, as in the kernel.
    struct Modelled {
        word: loom::sync::atomic::AtomicU32,
        queue: Mutex<()>,
        woken: Condvar,
    }

    impl Modelled {
        fn new() -> Self {
            Modelled { word: loom::sync::atomic::AtomicU32::new(0), queue: Mutex::new(()), woken: Condvar::new() }
        }
    }

    impl Word for Modelled {
        fn spin(_: impl FnMut() -> bool) -> bool {
            false // loom tries all lengths of waiting anyway
        }
        fn load(&self, order: Ordering) -> u32 {
            self.word.load(order)
        }
        fn store(&self, value: u32, order: Ordering) {
            self.word.store(value, order);
        }
        fn swap(&self, value: u32, order: Ordering) -> u32 {
            self.word.swap(value, order)
        }
        fn fetch_add(&self, n: u32, order: Ordering) -> u32 {
            self.word.fetch_add(n, order)
        }
        fn fetch_sub(&self, n: u32, order: Ordering) -> u32 {
            self.word.fetch_sub(n, order)
        }
        fn compare_exchange(&self, from: u32, to: u32, order: Ordering) -> bool {
            self.word.compare_exchange(from, to, order, Relaxed).is_ok()
        }
        fn wait(&self, expected: u32) {
            let queue = self.queue.lock().expect("not poisoned");
            // a read-modify-write sees the latest value, as the kernel's read under its lock does
            if self.word.fetch_add(0, AcqRel) == expected {
                drop(self.woken.wait(queue).expect("not poisoned"));
            }
        }
        fn wake(&self, count: u32) {
            let _queue = self.queue.lock().expect("not poisoned");
            match count {
                1 => self.woken.notify_one(),
                _ => self.woken.notify_all(),
            }
        }
        fn fence() {
            loom::sync::atomic::fence(SeqCst);
        }
    }

    /// A value that loom watches: it panics if a writer is not alone.
    struct Guarded<L> {
        lock: L,
        value: UnsafeCell<u32>,
    }

    fn guarded<L>(lock: L) -> Arc<Guarded<L>> {
        Arc::new(Guarded { lock, value: UnsafeCell::new(0) })
    }

    impl<L> Guarded<L> {
        fn add(&self) {
            // SAFETY: the lock under test is held. If it does not exclude, loom reports that.
            self.value.with_mut(|v| unsafe { *v += 1 });
        }
        fn get(&self) -> u32 {
            // SAFETY: as above.
            self.value.with(|v| unsafe { *v })
        }
    }

    impl Guarded<RawRwLock<Modelled>> {
        fn write(&self) {
            self.lock.write();
            self.add();
            self.lock.unlock_write();
        }
        fn read(&self) {
            self.lock.read();
            self.get();
            self.lock.unlock_read();
        }
    }

    fn rw_lock() -> RawRwLock<Modelled> {
        RawRwLock { state: Modelled::new(), writers: Modelled::new(), releases: Modelled::new(), sleepers: Modelled::new() }
    }

    /// Up to `switches` switches away from a thread that could go on. That is enough for every lost wake known to the literature,
    /// and takes seconds instead of hours.
    fn model(switches: usize, f: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(switches);
        builder.check(f);
    }

    /// Loom reports if any order of steps lets a thread sleep for good.
    #[test]
    fn a_mutex_excludes_and_wakes() {
        model(3, || {
            let it = guarded(RawMutex { state: Modelled::new() });
            let threads = [(); 2].map(|()| {
                let it = it.clone();
                loom::thread::spawn(move || {
                    it.lock.lock();
                    it.add();
                    it.lock.unlock();
                })
            });
            if !it.lock.try_lock() {
                it.lock.lock();
            }
            it.add();
            it.lock.unlock();
            for thread in threads {
                thread.join().expect("no panic");
            }
            it.lock.lock();
            assert_eq!(it.get(), 3);
        });
    }

    #[test]
    fn writers_exclude_each_other_and_wake() {
        model(3, || {
            let it = guarded(rw_lock());
            let other = loom::thread::spawn({
                let it = it.clone();
                move || it.write()
            });
            it.write();
            other.join().expect("no panic");
            it.lock.read();
            assert_eq!(it.get(), 2);
        });
    }

    #[test]
    fn a_writer_and_two_readers() {
        model(2, || {
            let it = guarded(rw_lock());
            let writer = loom::thread::spawn({
                let it = it.clone();
                move || it.write()
            });
            let reader = loom::thread::spawn({
                let it = it.clone();
                move || it.read()
            });
            it.read();
            writer.join().expect("no panic");
            reader.join().expect("no panic");
            it.lock.read();
            assert_eq!(it.get(), 1);
        });
    }
}

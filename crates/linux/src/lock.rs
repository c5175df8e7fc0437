//! The pager's locks ([`overspill_machine::lock`]) on Linux: their words are futexes.

use crate::sys::{cycles, futex_wait, futex_wait_shared, futex_wake, futex_wake_shared, thread_pointer};
use core::ops::Deref;
use core::sync::atomic::{AtomicU32, Ordering, Ordering::*};
use overspill_machine::kernel::Limit;
use overspill_machine::lock::Word;

/// [`overspill_machine::lock::Mutex`].
pub type Mutex<T> = overspill_machine::lock::Mutex<T, Futex>;
/// [`overspill_machine::lock::MutexGuard`].
pub type MutexGuard<'a, T> = overspill_machine::lock::MutexGuard<'a, T, Futex>;
pub use overspill_machine::lock::Rank;
/// In a fork's child: forgets which locks the parent's other threads hold.
pub fn forked() {
    overspill_machine::lock::forked::<Futex>();
}
/// [`overspill_machine::lock::RwLock`].
pub type RwLock<T> = overspill_machine::lock::RwLock<T, Futex>;

/// A word that threads sleep on.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Futex(AtomicU32);

impl Futex {
    /// The same word.
    pub fn of(word: &AtomicU32) -> &Futex {
        // SAFETY: the one is the other (`repr(transparent)`).
        unsafe { &*(&raw const *word).cast::<Futex>() }
    }
}

impl Deref for Futex {
    type Target = AtomicU32;
    fn deref(&self) -> &AtomicU32 {
        &self.0
    }
}

/// How long a waiting thread polls before it sleeps, in ticks of the processor's clock: about 25 us. The map lock is held for one
/// UFFDIO_MOVE at a time, which takes 14 us if it has to interrupt another CPU. A sleeper runs again 35 to 45 us after it was woken
/// (virtual machines, measured November 2026). To poll for as long as sleeping would take costs at most twice the best.
const SPIN_CYCLES: u64 = 75_000;

impl Word for Futex {
    #[inline]
    fn thread() -> usize {
        thread_pointer()
    }
    #[inline]
    fn ticks() -> u64 {
        cycles()
    }
    fn spin(mut ready: impl FnMut() -> bool) -> bool {
        #[cfg(test)]
        tests::polls();
        let began = cycles();
        loop {
            if ready() {
                return true;
            }
            if cycles().wrapping_sub(began) > SPIN_CYCLES {
                return false;
            }
            core::hint::spin_loop();
        }
    }
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        self.0.load(order)
    }
    #[inline]
    fn store(&self, value: u32, order: Ordering) {
        self.0.store(value, order);
    }
    #[inline]
    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.0.swap(value, order)
    }
    #[inline]
    fn fetch_add(&self, n: u32, order: Ordering) -> u32 {
        self.0.fetch_add(n, order)
    }
    #[inline]
    fn fetch_sub(&self, n: u32, order: Ordering) -> u32 {
        self.0.fetch_sub(n, order)
    }
    #[inline]
    fn compare_exchange(&self, from: u32, to: u32, order: Ordering) -> bool {
        let done = self.0.compare_exchange(from, to, order, Relaxed).is_ok();
        #[cfg(test)]
        if done {
            TAKEN.with_borrow_mut(|taken| *taken.entry(self as *const Futex as usize).or_default() += 1);
        }
        done
    }
    fn wait(&self, expected: u32) {
        futex_wait(&self.0, expected, u64::MAX);
    }
    fn wake(&self, count: u32) {
        futex_wake(&self.0, count);
    }
    #[inline]
    fn fence() {
        core::sync::atomic::fence(SeqCst);
    }
}

impl overspill_machine::kernel::Futex for Futex {
    const ZERO: Futex = Futex(AtomicU32::new(0));
    fn fetch_or(&self, bits: u32, order: Ordering) -> u32 {
        self.0.fetch_or(bits, order)
    }
    fn fetch_and(&self, bits: u32, order: Ordering) -> u32 {
        self.0.fetch_and(bits, order)
    }
    fn wait_for(&self, expected: u32, limit: Limit) {
        futex_wait(&self.0, expected, limit.ns());
    }
    fn wait_shared(&self, expected: u32, limit: Limit) {
        futex_wait_shared(&self.0, expected, limit.ns());
    }
    fn wake_shared(&self, count: u32) {
        futex_wake_shared(&self.0, count);
    }
}

#[cfg(test)]
thread_local! {
    /// How often this thread has taken the lock of each word.
    static TAKEN: core::cell::RefCell<std::collections::BTreeMap<usize, u32>> = const { core::cell::RefCell::new(std::collections::BTreeMap::new()) };
}

/// How often this thread has taken the lock with this word.
#[cfg(test)]
pub fn times_taken(word: &Futex) -> u32 {
    TAKEN.with_borrow(|taken| taken.get(&(word as *const Futex as usize)).copied().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    std::thread_local! {
        static POLLED: Cell<Option<&'static AtomicBool>> = const { Cell::new(None) };
    }

    /// The calling thread begins to poll.
    pub(super) fn polls() {
        if let Some(polled) = POLLED.get() {
            polled.store(true, SeqCst);
        }
    }

    /// Whether a thread that takes a lock that is held polls for it, after at most so many milliseconds.
    fn polls_to(take: fn(&RwLock<()>), ms: u32) -> bool {
        let lock = RwLock::ranked(Rank::Leaf, ());
        let polled: &'static AtomicBool = Box::leak(Box::default());
        std::thread::scope(|scope| {
            let held = lock.write();
            scope.spawn(|| {
                POLLED.set(Some(polled));
                take(&lock);
            });
            (0..ms).take_while(|_| !polled.load(SeqCst)).for_each(|_| std::thread::sleep(Duration::from_millis(1)));
            drop(held);
        });
        polled.load(SeqCst)
    }

    /// A thread in munmap polled for the map for 25 us, while the handler that had woken it held the map and waited for that CPU.
    #[test]
    fn who_does_not_poll_leaves_the_cpu_to_the_holder() {
        assert!(polls_to(|lock| drop(lock.write()), 60_000));
        // a thread that does not poll shows nothing, so it gets some time
        assert!(!polls_to(|lock| drop(lock.write_without_polling()), 200));
    }
}

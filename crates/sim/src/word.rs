//! Words that actors wait on.

use overspill_machine::kernel::{Futex, Limit};
use overspill_machine::lock::Word;
use overspill_simkernel::sched::{self, Timeout};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// A word that actors wait on.
#[derive(Debug)]
pub struct SimWord(OnceLock<sched::Word>);

impl SimWord {
    fn word(&self) -> &sched::Word {
        self.0.get_or_init(|| sched::Word::new(0))
    }
    /// Changes it, and returns the old value.
    fn update(&self, change: impl Fn(u32) -> u32) -> u32 {
        loop {
            let old = self.word().load();
            if self.word().replace(old, change(old)) {
                return old;
            }
        }
    }
}

impl Word for SimWord {
    fn spin(_: impl FnMut() -> bool) -> bool {
        false
    }
    fn load(&self, _: Ordering) -> u32 {
        self.word().load()
    }
    fn store(&self, value: u32, _: Ordering) {
        self.word().store(value);
    }
    fn swap(&self, value: u32, _: Ordering) -> u32 {
        self.word().swap(value)
    }
    fn fetch_add(&self, n: u32, _: Ordering) -> u32 {
        self.word().add(n)
    }
    fn fetch_sub(&self, n: u32, _: Ordering) -> u32 {
        self.word().add(n.wrapping_neg())
    }
    fn compare_exchange(&self, from: u32, to: u32, _: Ordering) -> bool {
        self.word().replace(from, to)
    }
    fn wait(&self, expected: u32) {
        self.word().wait(expected, Timeout::Never);
    }
    fn wake(&self, count: u32) {
        self.word().wake(count as usize);
    }
    fn fence() {}
}

impl Futex for SimWord {
    const ZERO: SimWord = SimWord(OnceLock::new());
    fn fetch_or(&self, bits: u32, _: Ordering) -> u32 {
        self.update(|old| old | bits)
    }
    fn fetch_and(&self, bits: u32, _: Ordering) -> u32 {
        self.update(|old| old & bits)
    }
    fn wait_for(&self, expected: u32, limit: Limit) {
        let timeout = match limit {
            Limit::Tick(ns) => Timeout::Tick(ns),
            Limit::Rescue(ns) => Timeout::Rescue(ns),
        };
        self.word().wait(expected, timeout);
    }
    fn wait_shared(&self, expected: u32, limit: Limit) {
        self.wait_for(expected, limit);
    }
    fn wake_shared(&self, count: u32) {
        self.wake(count);
    }
}

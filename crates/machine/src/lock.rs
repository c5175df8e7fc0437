//! Futex locks for the pager: no thread-local storage, no poisoning, no allocation, const.
//!
//! The standard library's locks would do but for poisoning: it asks thread-local storage whether the thread is panicking, and pager
//! threads of the agent have no such storage. `parking_lot` allocates when a thread first blocks.
//!
//! The operations on the locks' words are in `protocol.rs`, where loom tries them in all orders.
//!
//! Lock order, outer to inner: [`Mutex`] `swapping` (only a fork waits for it) -> [`Mutex`] `growth` -> [`RwLock`] `map` ->
//! [`Mutex`] `core`. No lock is held during device I/O, except that `growth` is held while a swap file gets more blocks. `map` is
//! held shared during the userfaultfd calls that fill or take pages. These sleep only for the kernel's own memory locks.

mod protocol;
mod rank;

use crate::futex::Futex;
pub use crate::futex::Word;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::panic::Location;
use overspill_vm::hold_times::HoldTimes;
use protocol::{RawMutex, RawRwLock};
pub use rank::{Rank, forked};

/// A hold of a lock whose hold times are measured.
#[derive(Debug)]
struct Hold {
    times: &'static HoldTimes,
    since: u64,
    at: &'static Location<'static>,
}

impl Hold {
    /// Begins a hold, at the caller's place in the source.
    #[inline]
    #[track_caller]
    fn begin<W: Word>(times: Option<&'static HoldTimes>) -> Option<Self> {
        let at = Location::caller();
        times.map(|times| Hold { times, since: W::ticks(), at })
    }
    /// Ends it: the lock is free again. (The clocks of two processors may differ a little.)
    #[inline]
    fn end<W: Word>(hold: &Option<Self>) {
        if let Some(hold) = hold {
            hold.times.add(W::ticks().saturating_sub(hold.since), hold.at);
        }
    }
}

/// Mutual exclusion.
#[derive(Debug)]
pub struct Mutex<T, W: Word> {
    raw: RawMutex<W>,
    rank: Rank,
    times: Option<&'static HoldTimes>,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives out one reference at a time, so sending T suffices.
unsafe impl<T: Send, W: Futex> Sync for Mutex<T, W> {}
// SAFETY: as for T.
unsafe impl<T: Send, W: Futex> Send for Mutex<T, W> {}

impl<T, W: Futex> Mutex<T, W> {
    /// A free lock around `value`, under which no other lock is taken.
    pub const fn new(value: T) -> Self {
        Self::ranked(Rank::Leaf, value)
    }
    /// A free lock around `value`, of this rank in the order of locks.
    pub const fn ranked(rank: Rank, value: T) -> Self {
        Mutex { raw: RawMutex::new(), rank, times: None, value: UnsafeCell::new(value) }
    }
    /// The same lock, with its hold times measured.
    pub fn timed(self, times: &'static HoldTimes) -> Self {
        Mutex { times: Some(times), ..self }
    }
    #[inline]
    #[track_caller]
    fn guard(&self) -> MutexGuard<'_, T, W> {
        rank::taken::<W>(self.rank);
        MutexGuard { lock: self, hold: Hold::begin::<W>(self.times) }
    }
    /// The word that is set when it is taken.
    pub fn word(&self) -> &W {
        self.raw.word()
    }
    /// Takes the lock; waits for it.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T, W> {
        rank::check::<W>(self.rank);
        self.raw.lock();
        self.guard()
    }
    /// Takes the lock if it is free.
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T, W>> {
        // A guard only on success: if one is made and dropped without the lock, it releases another thread's lock.
        if self.raw.try_lock() { Some(self.guard()) } else { None }
    }
    /// In the child of a fork, whose only thread does not hold the lock: frees it, because no thread that held it in the parent
    /// exists here.
    ///
    /// # Safety
    /// The thread does not hold the lock, and no other thread was changing the value at the fork.
    pub unsafe fn forked(&self) {
        self.raw.reset();
    }
    /// Copies the state of another lock: held or not, waited for or not.
    pub(crate) fn copy_words(&self, from: &Self) {
        self.raw.copy(&from.raw);
    }
    /// A guard for a lock that the thread holds already.
    ///
    /// # Safety
    /// The calling thread holds the lock, and releases it only by this guard.
    #[track_caller]
    pub(crate) unsafe fn held(&self) -> MutexGuard<'_, T, W> {
        self.guard()
    }
}

/// Unlocks when dropped.
#[derive(Debug)]
pub struct MutexGuard<'a, T, W: Word> {
    lock: &'a Mutex<T, W>,
    hold: Option<Hold>,
}

impl<T, W: Word> Deref for MutexGuard<'_, T, W> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard exists, so this thread holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}
impl<T, W: Word> DerefMut for MutexGuard<'_, T, W> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}
impl<T, W: Word> Drop for MutexGuard<'_, T, W> {
    fn drop(&mut self) {
        rank::given::<W>(self.lock.rank);
        self.lock.raw.unlock();
        Hold::end::<W>(&self.hold);
    }
}

/// Shared or exclusive. A waiting writer keeps new readers out, so that events are never starved by faults.
#[derive(Debug)]
pub struct RwLock<T, W: Word> {
    raw: RawRwLock<W>,
    rank: Rank,
    shared: Option<&'static HoldTimes>,
    exclusive: Option<&'static HoldTimes>,
    value: UnsafeCell<T>,
}

// SAFETY: readers share T, one writer has it alone.
unsafe impl<T: Send + Sync, W: Futex> Sync for RwLock<T, W> {}
// SAFETY: as for T.
unsafe impl<T: Send, W: Futex> Send for RwLock<T, W> {}

impl<T, W: Futex> RwLock<T, W> {
    /// A free lock around `value`, of this rank in the order of locks.
    pub const fn ranked(rank: Rank, value: T) -> Self {
        RwLock { raw: RawRwLock::new(), rank, shared: None, exclusive: None, value: UnsafeCell::new(value) }
    }
    /// The same lock, with its hold times measured: each reader's, and each writer's.
    pub fn timed(self, shared: &'static HoldTimes, exclusive: &'static HoldTimes) -> Self {
        RwLock { shared: Some(shared), exclusive: Some(exclusive), ..self }
    }
    #[inline]
    #[track_caller]
    fn read_guard(&self) -> ReadGuard<'_, T, W> {
        rank::taken::<W>(self.rank);
        ReadGuard { lock: self, hold: Hold::begin::<W>(self.shared) }
    }
    #[inline]
    #[track_caller]
    fn write_guard(&self) -> WriteGuard<'_, T, W> {
        rank::taken::<W>(self.rank);
        WriteGuard { lock: self, hold: Hold::begin::<W>(self.exclusive) }
    }
    /// In the child of a fork, whose only thread holds the lock exclusively: the parent's threads that waited for it do not exist
    /// here, and must not keep readers out.
    pub fn forked(&self) {
        self.raw.reset_waiters();
        rank::forked::<W>();
    }
    /// Copies the state of another lock: held or not, waited for or not.
    pub(crate) fn copy_words(&self, from: &Self) {
        self.raw.copy(&from.raw);
    }
    /// An exclusive guard for a lock that the thread holds already.
    ///
    /// # Safety
    /// The calling thread holds the lock exclusively, and releases it only by this guard.
    #[track_caller]
    pub(crate) unsafe fn held(&self) -> WriteGuard<'_, T, W> {
        self.write_guard()
    }
    /// Whether a thread waits to have the lock exclusively, or has it.
    pub fn is_wanted(&self) -> bool {
        self.raw.writers() != 0
    }
    /// Whether threads sleep until they get the lock.
    pub(crate) fn is_slept_for(&self) -> bool {
        self.raw.has_sleepers()
    }
    /// The word that is set when it is taken.
    pub fn word(&self) -> &W {
        self.raw.word()
    }
    /// Takes the lock shared; waits for it.
    #[track_caller]
    pub fn read(&self) -> ReadGuard<'_, T, W> {
        rank::check::<W>(self.rank);
        self.raw.read();
        self.read_guard()
    }
    /// Takes the lock shared if no thread has it exclusively or waits for that.
    #[track_caller]
    pub fn try_read(&self) -> Option<ReadGuard<'_, T, W>> {
        if self.raw.try_read() { Some(self.read_guard()) } else { None }
    }
    /// How many threads wait to have it exclusively, or have it.
    pub fn writers(&self) -> u32 {
        self.raw.writers()
    }
    /// Takes the lock exclusively; waits for it.
    #[track_caller]
    pub fn write(&self) -> WriteGuard<'_, T, W> {
        rank::check::<W>(self.rank);
        self.raw.write();
        self.write_guard()
    }
    /// The same for a thread on whose CPU the holder runs: it does not poll for the lock, or the holder could not go on.
    #[track_caller]
    pub fn write_without_polling(&self) -> WriteGuard<'_, T, W> {
        rank::check::<W>(self.rank);
        self.raw.write_without_polling();
        self.write_guard()
    }
}

/// Releases when dropped.
#[derive(Debug)]
pub struct ReadGuard<'a, T, W: Word> {
    lock: &'a RwLock<T, W>,
    hold: Option<Hold>,
}
/// Releases when dropped.
#[derive(Debug)]
pub struct WriteGuard<'a, T, W: Word> {
    lock: &'a RwLock<T, W>,
    hold: Option<Hold>,
}

impl<T, W: Word> Deref for ReadGuard<'_, T, W> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard exists, so no writer does.
        unsafe { &*self.lock.value.get() }
    }
}
impl<T, W: Word> Deref for WriteGuard<'_, T, W> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard exists, so this thread is the only holder.
        unsafe { &*self.lock.value.get() }
    }
}
impl<T, W: Word> DerefMut for WriteGuard<'_, T, W> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.lock.value.get() }
    }
}
impl<T, W: Word> Drop for ReadGuard<'_, T, W> {
    fn drop(&mut self) {
        rank::given::<W>(self.lock.rank);
        self.lock.raw.unlock_read();
        Hold::end::<W>(&self.hold);
    }
}
impl<T, W: Word> Drop for WriteGuard<'_, T, W> {
    fn drop(&mut self) {
        rank::given::<W>(self.lock.rank);
        self.lock.raw.unlock_write();
        Hold::end::<W>(&self.hold);
    }
}

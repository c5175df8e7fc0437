//! The order of locks, checked wherever assertions are on: a thread that waits for a lock must hold none of the same rank or of an
//! inner one.
//!
//! A table by thread records the locks that each thread holds. It is not in thread-local storage, because the agent's threads have
//! none of their own. A lock that is only tried may be taken in any order.

use crate::futex::Word;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};

/// The place of a lock in the order, outer to inner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Rank {
    /// The page daemon of a pager that is stepped by hand.
    Daemon,
    /// The set of swap devices. Only a fork waits for it.
    Swapping,
    /// Getting space for devices.
    Growth,
    /// Ranges, descriptors, files.
    Map,
    /// The core.
    Core,
    /// A compressor's or an unpacker's memory.
    Packer,
    /// Compressed memory.
    Pool,
    /// The agent's heap.
    Heap,
    /// A lock under which no other is taken.
    Leaf,
}

/// About the number of threads that can hold locks at a time. They are in groups, and a search looks at one group.
const GROUPS: usize = 256;
const GROUP: usize = 8;

/// A thread, and a bit for each rank that it holds. A thread that finds no room in its group is not checked.
struct Holder {
    thread: AtomicUsize,
    held: AtomicU64,
}

static HOLDERS: [[Holder; GROUP]; GROUPS] =
    [const { [const { Holder { thread: AtomicUsize::new(0), held: AtomicU64::new(0) } }; GROUP] }; GROUPS];

fn group(thread: usize) -> &'static [Holder; GROUP] {
    &HOLDERS[(thread.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48) % GROUPS]
}

fn holder(thread: usize) -> Option<&'static Holder> {
    group(thread).iter().find(|holder| holder.thread.load(Relaxed) == thread)
}

/// The calling thread, if it is one to check.
#[inline(always)]
fn me<W: Word>() -> Option<usize> {
    cfg!(debug_assertions).then(W::thread).filter(|thread| *thread != 0)
}

/// The calling thread is about to wait for a lock.
#[inline]
#[cfg_attr(debug_assertions, track_caller)]
pub fn check<W: Word>(rank: Rank) {
    if let Some(holder) = me::<W>().and_then(holder) {
        let inner = holder.held.load(Relaxed) >> rank as u32;
        assert!(inner == 0, "a lock of rank {rank:?} is waited for under one of its rank or of an inner one: {inner:#b}");
    }
}

/// The calling thread has taken the lock.
#[inline]
pub fn taken<W: Word>(rank: Rank) {
    let Some(thread) = me::<W>() else { return };
    let free = |holder: &&Holder| holder.thread.compare_exchange(0, thread, Relaxed, Relaxed).is_ok();
    if let Some(holder) = holder(thread).or_else(|| group(thread).iter().find(free)) {
        holder.held.fetch_or(1 << rank as u32, Relaxed);
    }
}

/// The calling thread gives the lock back.
#[inline]
pub fn given<W: Word>(rank: Rank) {
    if let Some(holder) = me::<W>().and_then(holder)
        && holder.held.fetch_and(!(1 << rank as u32), Relaxed) & !(1 << rank as u32) == 0
    {
        holder.thread.store(0, Relaxed);
    }
}

/// In a fork's child: the parent's other threads do not exist here, and hold nothing. (A new thread may get the thread pointer of
/// one of them.)
pub fn forked<W: Word>() {
    for holder in HOLDERS.as_flattened().iter().filter(|holder| holder.thread.load(Relaxed) != W::thread()) {
        holder.held.store(0, Relaxed);
        holder.thread.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering;

    /// A word that takes every thread for the same one.
    struct Here;

    impl Word for Here {
        fn thread() -> usize {
            4096
        }
        fn spin(_: impl FnMut() -> bool) -> bool {
            unreachable!()
        }
        fn load(&self, _: Ordering) -> u32 {
            unreachable!()
        }
        fn store(&self, _: u32, _: Ordering) {}
        fn swap(&self, _: u32, _: Ordering) -> u32 {
            unreachable!()
        }
        fn fetch_add(&self, _: u32, _: Ordering) -> u32 {
            unreachable!()
        }
        fn fetch_sub(&self, _: u32, _: Ordering) -> u32 {
            unreachable!()
        }
        fn compare_exchange(&self, _: u32, _: u32, _: Ordering) -> bool {
            unreachable!()
        }
        fn wait(&self, _: u32) {}
        fn wake(&self, _: u32) {}
        fn fence() {}
    }

    #[test]
    fn a_lock_is_not_waited_for_under_an_inner_one() {
        let is_allowed = |rank| std::panic::catch_unwind(|| check::<Here>(rank)).is_ok();
        assert!(is_allowed(Rank::Map));
        taken::<Here>(Rank::Map);
        assert!(is_allowed(Rank::Core) && !is_allowed(Rank::Map) && !is_allowed(Rank::Swapping));
        taken::<Here>(Rank::Core);
        given::<Here>(Rank::Map); // the order of release does not matter
        assert!(is_allowed(Rank::Pool) && !is_allowed(Rank::Map) && !is_allowed(Rank::Core));
        given::<Here>(Rank::Core);
        assert!(is_allowed(Rank::Swapping));
        assert!(holder(Here::thread()).is_none(), "its place is free again");
    }
}

//! The pager's own buffers for I/O. They are charged to the budget while they are in memory, and most of the time few are.
//!
//! A program whose working set nearly fits pays for each page that the pager keeps to itself. So a buffer comes into memory when it
//! is first used, and goes when it was not used for a while. (All of them took 2 % of a budget of 73 MiB with two handlers, and
//! more with each further one. A hash in Perl had 18 % more hard faults.)

use crate::errno::Errno;
use crate::kernel::{Advice, IoVec, Kernel};
use crate::machine::{Core, Machine};
use core::marker::PhantomData;
use overspill_vm::types::PAGE_SHIFT;

/// The most buffers.
pub(crate) const BUFFERS_MAX: usize = u64::BITS as usize;

/// A bit for each buffer that is in use.
pub(crate) fn bits(in_use: impl Iterator<Item = bool>) -> u64 {
    in_use.enumerate().fold(0, |bits, (i, it)| bits | u64::from(it) << i)
}

/// Buffers of one thread, side by side in one mapping.
pub(crate) struct Buffers<K: Kernel> {
    at: usize,
    bytes: usize,
    each: Vec<Buffer>,
    /// A bit for each that was used since the last look, and when that was.
    used: u64,
    looked: u64,
    kernel: PhantomData<K>,
}

#[derive(Clone, Copy)]
struct Buffer {
    /// Where it begins, in bytes.
    start: usize,
    /// How many of its pages are in memory, and charged.
    held: u32,
}

impl<K: Kernel> Buffers<K> {
    /// Buffers of so many pages. Nothing of them is in memory. A fork's child finds them empty.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn new(pages: impl Iterator<Item = usize>) -> Result<Self, Errno> {
        let mut bytes = 0;
        let each: Vec<_> = pages
            .map(|pages| {
                let start = bytes;
                bytes += pages << PAGE_SHIFT;
                Buffer { start, held: 0 }
            })
            .collect();
        assert!(each.len() <= BUFFERS_MAX);
        let at = K::map_anonymous(bytes)? as usize;
        let _ = K::advise(at, bytes, Advice::WipeOnFork);
        Ok(Buffers { at, bytes, each, used: 0, looked: 0, kernel: PhantomData })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.each.len()
    }

    /// Where the buffer `i` begins.
    pub fn at(&self, i: usize) -> *mut u8 {
        (self.at + self.each[i].start) as *mut u8
    }

    /// How many pages of a buffer, from its first on, are charged. They may be used.
    pub fn held(&self, i: usize) -> u32 {
        self.each[i].held
    }

    /// The first pages of a buffer are about to be used: charges those that are not charged yet.
    pub fn hold(&mut self, core: &mut Core, i: usize, pages: u32) {
        self.note_used(1 << i);
        let held = &mut self.each[i].held;
        core.charge_buffers(pages.saturating_sub(*held));
        *held = pages.max(*held);
    }

    /// Notes that buffers are used that are charged already: a bit for each.
    pub fn note_used(&mut self, which: u64) {
        self.used |= which;
    }

    /// Whether any of those from `first` on is in memory.
    pub fn any(&self, first: usize) -> bool {
        self.each[first..].iter().any(|buffer| buffer.held > 0)
    }

    /// Gives back those that are not in `in_use` (a bit for each): all of them, or at long intervals those that were not used since
    /// the last time. => no lock is held
    pub fn give_back(&mut self, machine: &Machine<K>, in_use: u64, all: bool) {
        let now = K::now_ns();
        if !all && now - self.looked < K::UNUSED_NS {
            return;
        }
        self.looked = now;
        let used = core::mem::take(&mut self.used);
        let keep = if all { in_use } else { in_use | used };
        let mut ranges = [IoVec { base: 0, len: 0 }; BUFFERS_MAX];
        let (mut n, mut pages) = (0, 0);
        for (_, buffer) in self.each.iter_mut().enumerate().filter(|(i, _)| keep >> i & 1 == 0) {
            let held = core::mem::take(&mut buffer.held);
            if held > 0 {
                ranges[n] = IoVec { base: self.at + buffer.start, len: (held as usize) << PAGE_SHIFT };
                (n, pages) = (n + 1, pages + held);
            }
        }
        if n > 0 {
            let map = machine.map.read(); // a fork does not come in between
            // SAFETY: these buffers are the calling thread's, and it has listed in `in_use` those that I/O goes to or comes from.
            unsafe { K::discard_ranges(&map.process, &ranges[..n]) };
            machine.core.lock().uncharge_buffers(pages);
        }
    }
}

impl<K: Kernel> Drop for Buffers<K> {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made; the owner has waited for the I/O from and to it.
        unsafe { K::unmap(self.at as *mut u8, self.bytes) };
    }
}

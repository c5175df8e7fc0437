//! Calls of the program's that unmap, replace or move memory: they are announced before, and followed after.

use crate::events::UNMAPS_LOOK_NS;
use crate::kernel::{Kernel, Mistake, Uffd};
use crate::lock::Word as _;
use crate::machine::Machine;
use crate::ranges::{Kind, Range};
use crate::space::Space;
use core::sync::atomic::Ordering::*;
use overspill_vm::types::PAGE_SIZE;

/// How long a fork waits for calls of other threads that move memory, in nanoseconds.
pub const REMAPS_NS: u64 = 1_000_000_000;

/// What the program's calls that unmap, replace or move memory are about: from before the call until it has been followed the page
/// daemon takes nothing there.
///
/// It takes a page by its address, and in the moment between its choice and the move another page may have come there, which the
/// kernel reports only afterwards: mremap(MREMAP_FIXED) puts one mapping in the place of another. The daemon parked the page that
/// had come for the one that had gone, and gave it up with that: it read as zeroes. (The kernel refuses to *fill* pages meanwhile,
/// not to take them.)
#[derive(Clone, Debug)]
pub struct Remaps {
    pub(crate) calls: Vec<Remap>,
}

/// A call of a thread's that unmaps, replaces or moves memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remap {
    thread: u32,
    /// What it moves, and what it unmaps or replaces.
    ranges: [(usize, usize); 2],
    /// By so many bytes it may make a mapping longer.
    grows: usize,
    /// It was reported that this was unmapped, which the kernel may have refused after all.
    reported: Option<(usize, usize)>,
    /// It is several calls, which are to be one, and each of which is in the list itself.
    parts: bool,
    /// A fork has waited for its end in vain.
    overdue: bool,
}

/// More threads are hardly in such calls at a time; and who jumps out of one, from a signal handler, leaves it here until his next
/// one.
const REMAPS_MAX: usize = 4096;

impl Remaps {
    /// None.
    pub fn new() -> Self {
        Remaps { calls: Vec::with_capacity(REMAPS_MAX) }
    }
    /// A call begins.
    fn begin(&mut self, call: Remap) {
        // the thread is in no other one, but that which this may be a part of
        self.calls.retain(|other| other.thread != call.thread || other.parts && !call.parts);
        if self.calls.len() == REMAPS_MAX {
            self.calls.remove(0);
        }
        self.calls.push(call);
    }
    /// It has been followed. Returns what was reported to have been unmapped by it, and has not been followed yet.
    fn end(&mut self, thread: u32) -> Option<(usize, usize)> {
        let at = self.calls.iter().position(|call| call.thread == thread && !call.parts)?;
        self.calls.swap_remove(at).reported
    }
    /// Whether other threads than this one are in such calls, of which the ends are to be waited for.
    fn others(&self, thread: u32) -> bool {
        self.calls.iter().any(|call| call.thread != thread && !call.overdue)
    }
    /// The unmapping of a range was reported. Returns whether a call of just that is under way, which may have been refused after
    /// that: then its end will tell.
    pub(crate) fn put_aside(&mut self, start: usize, end: usize) -> bool {
        let call = self.calls.iter_mut().find(|call| call.ranges[1] == (start, end) && call.reported.is_none());
        call.map(|call| call.reported = Some((start, end))).is_some()
    }
    /// What of the range is in such a report.
    pub(crate) fn put_aside_of(&self, start: usize, end: usize) -> Option<(usize, usize)> {
        let reported = self.calls.iter().filter_map(|call| call.reported);
        reported.map(|r| (r.0.max(start), r.1.min(end))).find(|r| r.0 < r.1)
    }
    /// Whether a call is about something in the range.
    pub fn overlaps(&self, start: usize, end: usize) -> bool {
        self.calls.iter().flat_map(|call| &call.ranges).any(|r| r.0 < end && start < r.1)
    }
    /// Whether `thread` has begun a call by which `addr` may be what a mapping grows by. `known`: something else is known to be
    /// there, or was before.
    fn grows(&self, addr: usize, thread: u32, known: bool) -> bool {
        self.calls.iter().find(|call| call.thread == thread && call.grows > 0).is_some_and(|call| {
            let (_, end) = call.ranges[1];
            if end == 0 { !known } else { (end - call.grows..end).contains(&addr) }
        })
    }
    /// Whether an unmapping was put aside.
    pub fn has_reports(&self) -> bool {
        self.calls.iter().any(|call| call.reported.is_some())
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
    /// Whether what is at `addr` may be about to be something else.
    pub fn covers(&self, addr: usize) -> bool {
        self.calls.iter().flat_map(|call| &call.ranges).any(|&(start, end)| start <= addr && addr < end)
    }
}

impl Default for Remaps {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Kernel> Machine<K> {
    /// A thread's system call is about to move what is in the first range, and to unmap or replace what is in the second, and it is
    /// managed: [`Remaps`]. `grows`: by how many bytes it may make what it moves longer. Returns whether it is managed; then
    /// [`Machine::end_remap`] is due after the call. Or `None`: [`Machine::await_fork`] is due before it.
    pub fn begin_remap(&self, ranges: [(usize, usize); 2], grows: usize) -> Option<bool> {
        let any = |is: &dyn Fn(usize, usize) -> bool| ranges.iter().any(|&(start, end)| is(start, end));
        {
            let map = self.map.read();
            if !any(&|start, end| map.is_settling(start, end)) {
                return Some(false);
            }
        }
        if !self.announce(Remap { thread: K::thread_id(), ranges, grows, reported: None, parts: false, overdue: false }) {
            return None;
        }
        // the daemon holds the map from its choice until it has the pages, but not while it copies some out
        loop {
            let map = self.map.read();
            if !any(&|start, end| map.copying.overlaps(start, end)) {
                return Some(true);
            }
            drop(map);
            K::sleep_ns(UNMAPS_LOOK_NS);
        }
    }

    /// A thread's call is made of several, each with a [`Machine::begin_remap`] of its own: [`Machine::end_parts`] is due. Or
    /// `false`: [`Machine::await_fork`] is due before it.
    pub fn begin_parts(&self) -> bool {
        self.announce(Remap { thread: K::thread_id(), ranges: [(0, 0); 2], grows: 0, reported: None, parts: true, overdue: false })
    }

    /// They have been made.
    pub fn end_parts(&self) {
        let me = K::thread_id();
        self.map.write().remaps.calls.retain(|call| call.thread != me);
    }

    /// Returns `false` if a fork is about to happen, which is to be waited for without a hook stack: those who end their calls need
    /// one, and the fork waits for them.
    fn announce(&self, call: Remap) -> bool {
        let mut map = self.map.write();
        // who is in the middle of something may go on: a fork waits for him
        let may = self.forking.load(SeqCst) == 0 || map.remaps.calls.iter().any(|other| other.thread == call.thread);
        if may {
            map.remaps.begin(call);
        }
        may
    }

    /// Until no fork is about to happen.
    pub fn await_fork(&self) {
        self.forking.wait(1);
    }

    /// A fork is about to happen. From here until [`Machine::forked`] no call begins that moves memory or unmaps it, and none of
    /// another thread is under way when this returns.
    ///
    /// (A child was forked when memory had been moved, and the report of that was not read. Its pager knew what was paged out by
    /// the old addresses, where nothing was any more: it gave that up, and the child found zeroes at the new ones.)
    ///
    /// Who has jumped out of such a call, by a signal handler, is still in it as far as is known: for him, and for who is stopped
    /// in the middle, a fork waits once, and for a while.
    pub fn await_remaps(&self) {
        let (me, start) = (K::thread_id(), K::now_ns());
        self.forking.store(1, SeqCst);
        while self.map.read().remaps.others(me) {
            if K::now_ns() - start > REMAPS_NS {
                self.map.write().remaps.calls.iter_mut().filter(|call| call.thread != me).for_each(|call| call.overdue = true);
            }
            K::sleep_ns(UNMAPS_LOOK_NS / 2);
        }
    }

    /// The fork has been made.
    pub fn forked(&self) {
        self.forking.store(0, Relaxed);
        self.forking.wake(i32::MAX as u32);
    }

    /// The call has returned, so that its events have been read. `done`: it was not refused.
    ///
    /// Linux reports an unmapping before it knows that it can be made: it stops at a sealed mapping, or there is not memory enough
    /// for what is to be there instead. Who believed it lost what was paged out there.
    pub fn end_remap(&self, done: bool) {
        let mut map = self.map.write();
        if let Some((start, end)) = map.remaps.end(K::thread_id()) {
            self.follow_unmap(&mut map, start, end, !done && !K::mistake(Mistake::BelievesUnmaps));
            self.drop_places(&map, false);
        }
    }

    /// When mremap(2) moves a locked mapping and makes it longer, it brings in what is new before it reports the move, and until
    /// that has been read nobody can fill a page. So such a page, which `thread` misses in its call, is left to the kernel until
    /// the call has returned. Returns whether it is one.
    pub fn leave_growth(&self, map: &Space<K>, addr: usize, thread: u32) -> bool {
        let grows = map.remaps.grows(addr, thread, map.ranges.find(addr).is_some()) && map.program.is_changing();
        // SAFETY: it is new, so it has no content.
        grows && unsafe { map.program.unregister(addr, PAGE_SIZE) }.is_ok()
    }

    /// A managed range was moved or resized by a followed mremap: it is at `new` now. A move was reported as an event; growth is
    /// not.
    pub fn resized_range(&self, old_len: usize, new: usize, new_len: usize) {
        while self.read_messages(|addr, _| self.wake_any(addr)) {}
        if new_len <= old_len {
            return;
        }
        let (start, end) = (new + old_len, new + new_len);
        let grown = self.map.read().ranges.find(start - 1).copied();
        let Some(grown) = grown.filter(|r| r.kind == Kind::Managed) else { return };
        self.await_unmaps(start, end);
        let mut map = self.map.write();
        self.drop_native(&mut map, start, end);
        self.manage(&mut map, Range { start, end, ..grown });
    }

    /// A managed range was moved to `new` by a followed mremap and is still there, empty and registered (MREMAP_DONTUNMAP): nobody
    /// will report that it has gone.
    pub fn left_empty(&self, old: usize, new: usize, len: usize) {
        while self.read_messages(|addr, _| self.wake_any(addr)) {}
        let mut map = self.map.write();
        map.pending.cancel(old, old + len);
        let mut at = new;
        while let Some(r) = map.ranges.overlap(at, new + len, Kind::Managed) {
            let r = r.within(at, new + len);
            self.manage(&mut map, Range { start: r.start - new + old, end: r.end - new + old, ..r });
            at = r.end;
        }
    }
}

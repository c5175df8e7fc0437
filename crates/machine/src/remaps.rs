//! Calls of the program's that unmap, replace or move memory: they are announced before, and followed after.

use crate::events::UNMAPS_LOOK_NS;
use crate::kernel::{Kernel, Mistake, Uffd};
use crate::machine::Machine;
use crate::ranges::{Kind, Range};
use crate::space::Space;
use crate::space::remaps::Remap;
use overspill_vm::types::PAGE_SIZE;

/// How long a fork waits for calls of other threads that move memory, in nanoseconds.
pub const REMAPS_NS: u64 = 1_000_000_000;

/// How long a call that moves memory waits for another, in nanoseconds: longer than any takes. The other's thread has jumped out of
/// it.
const MOVES_NS: u64 = 10_000_000_000;

impl<K: Kernel> Machine<K> {
    /// A thread's system call is about to move what is in the first range, and to unmap or replace what is in the second, and it is
    /// managed: [`Remaps`](crate::space::remaps::Remaps). `grows`: by how many bytes it may make what it moves longer. Returns
    /// whether it is managed; then [`Machine::end_remap`] is due after the call. Or `None`: [`Machine::await_others`] is due before
    /// it.
    pub fn begin_remap(&self, ranges: [(usize, usize); 2], grows: usize) -> Option<bool> {
        let any = |is: &dyn Fn(usize, usize) -> bool| ranges.iter().any(|&(start, end)| is(start, end));
        {
            let map = self.map.read();
            if !any(&|start, end| map.is_settling(start, end)) {
                return Some(false);
            }
        }
        if !self.announce(Remap::new(K::thread_id(), ranges, grows, false, K::now_ns())) {
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
    /// `false`: [`Machine::await_others`] is due before it.
    pub fn begin_parts(&self) -> bool {
        self.announce(Remap::new(K::thread_id(), [(0, 0); 2], 0, true, K::now_ns()))
    }

    /// They have been made.
    pub fn end_parts(&self) {
        let me = K::thread_id();
        self.map.write().remaps.forget(me);
    }

    /// Returns `false` if a fork is about to happen, or another thread is moving memory. That is to be waited for without a hook
    /// stack: those who end their calls need one, and they are waited for.
    ///
    /// One call moves memory at a time. The kernel reports a move when others may already have been made: a mapping came to where
    /// another had just been, and its report was read first. What was known there was taken for gone, and what had come for what
    /// had gone: both were lost.
    fn announce(&self, call: Remap) -> bool {
        let mut map = self.map.write();
        // who is in the middle of something may go on: a fork waits for him
        let forks = self.remap_gate.forks() && !map.remaps.has(call.thread);
        let at_once = !call.moves() || K::mistake(Mistake::MovesAtOnce);
        let moves = !at_once && map.remaps.others_move(call.thread, K::now_ns(), MOVES_NS);
        let may = !forks && !moves;
        if moves || may && call.moves() {
            self.remap_gate.begin_move();
        }
        if may {
            map.remaps.begin(call);
        }
        may
    }

    /// Until no fork is about to happen, and nobody moves memory, as far as is known: then to begin is tried again.
    pub fn await_others(&self) {
        self.remap_gate.wait(MOVES_NS);
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
        self.remap_gate.begin_fork();
        while self.map.read().remaps.others(me) {
            if K::now_ns() - start > REMAPS_NS {
                self.map.write().remaps.give_up_others(me);
            }
            K::sleep_ns(UNMAPS_LOOK_NS / 2);
        }
    }

    /// The fork has been made.
    pub fn forked(&self) {
        self.remap_gate.end_fork();
    }

    /// The call has returned, so that its events have been read. `done`: it was not refused.
    ///
    /// Linux reports an unmapping before it knows that it can be made: it stops at a sealed mapping, or there is not memory enough
    /// for what is to be there instead. Who believed it lost what was paged out there.
    pub fn end_remap(&self, done: bool) {
        let mut map = self.map.write();
        let Some(call) = map.remaps.end(K::thread_id()) else { return };
        if call.moves() {
            self.remap_gate.end_move();
        }
        if let Some((start, end)) = call.reported {
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

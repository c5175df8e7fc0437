//! The program's calls that unmap, replace or move memory. They are announced before, and followed after.

use crate::events::UNMAPS_LOOK_NS;
use crate::kernel::{Host as _, Kernel, Mistake, Uffd};
use crate::lock::WriteGuard;
use crate::machine::Machine;
use crate::ranges::{Kind, Range};
use crate::space::Space;
use crate::space::remaps::Remap;
use crate::waited::Waited;
use overspill_vm::types::PAGE_SIZE;

/// How long a fork waits for calls of other threads that move memory, in nanoseconds.
pub const REMAPS_NS: u64 = 1_000_000_000;

/// How long a call that moves memory waits for another, in nanoseconds: longer than any takes. After that, the other thread must
/// have jumped out of its call.
const MOVES_NS: u64 = 10_000_000_000;

/// How often it looks meanwhile, in nanoseconds.
const MOVES_LOOK_NS: u64 = 50_000_000;

impl<K: Kernel> Machine<K> {
    /// Announces a thread's system call that moves the first range, and unmaps or replaces the second
    /// ([`Remaps`](crate::space::remaps::Remaps)). `grows`: by how many bytes it may make longer what it moves. Returns whether any
    /// of the memory is managed; then [`Machine::end_remap`] is due after the call. `None`: the call may not begin yet, and
    /// [`Machine::await_others`] is due first.
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
        // the daemon holds the map while it chooses and takes pages, but not while it copies pages out
        loop {
            let map = self.map.read();
            if !any(&|start, end| map.copying.overlaps(start, end)) {
                return Some(true);
            }
            drop(map);
            K::sleep_ns(UNMAPS_LOOK_NS);
        }
    }

    /// Begins a call that is made of several, each with a [`Machine::begin_remap`] of its own; then [`Machine::end_parts`] is due.
    /// `false`: the call may not begin yet, and [`Machine::await_others`] is due first.
    pub fn begin_parts(&self) -> bool {
        self.announce(Remap::new(K::thread_id(), [(0, 0); 2], 0, true, K::now_ns()))
    }

    /// All of the several calls have been made.
    pub fn end_parts(&self) {
        self.map.write().remaps.end_parts(K::thread_id());
    }

    /// Adds the call to the list. Returns `false` if a fork is about to happen, or if another thread is moving memory. A hook must
    /// not wait for that on a hook stack: the threads that it waits for need such a stack to end their calls.
    ///
    /// One call moves memory at a time, because the kernel reports a move only after it was made, and others may be made in
    /// between. Once a mapping was moved to where another had just been, and the second move was reported first. The pager gave up
    /// the pages that had left for those that had come, and lost both.
    fn announce(&self, call: Remap) -> bool {
        let mut map = self.map.write();
        while let Some(left) = map.remaps.take_left(&call) {
            self.follow_call(&mut map, left, false);
        }
        // a thread that is inside another call may go on, because a fork waits for that call
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

    /// Waits until, as far as is known, no fork is about to happen and nobody moves memory, or for a moment. Then the caller tries
    /// to begin again.
    pub fn await_others(&self) {
        let is_inside = self.map.read().remaps.has(K::thread_id());
        self.remap_gate.wait(MOVES_LOOK_NS, is_inside);
    }

    /// A fork is about to happen. From here until [`Machine::forked`] no call begins that moves or unmaps memory. When this
    /// returns, no other thread is in such a call.
    ///
    /// (Once a child was forked when memory had been moved and the report was still unread. The child's pager knew the paged-out
    /// pages by their old addresses, where nothing was any more. It gave the pages up, and the child found zeroes at the new
    /// addresses.)
    ///
    /// A thread that has jumped out of such a call, by a signal handler, still counts as inside. A fork waits for that thread, and
    /// for one that is stopped in the middle of a call, but only once and for a while. The time for which the whole process is
    /// stopped does not count.
    pub fn await_remaps(&self) {
        let (me, mut waited) = (K::thread_id(), Waited::new(K::now_ns()));
        self.remap_gate.begin_fork();
        while self.map.read().remaps.others(me) {
            if waited.look(K::now_ns()) > REMAPS_NS {
                self.map.write().remaps.give_up_others(me);
            }
            K::sleep_ns(UNMAPS_LOOK_NS / 2);
        }
    }

    /// The fork is over.
    pub fn forked(&self) {
        self.remap_gate.end_fork();
    }

    /// Takes the map exclusively after a call whose report was read. The handler has woken this thread as it read. On the same CPU
    /// it was put aside then, holding the map.
    #[track_caller]
    pub(crate) fn write_after_call(&self) -> WriteGuard<'_, Space<K>, K::Word> {
        if self.host.shares_cpu() { self.map.write_without_polling() } else { self.map.write() }
    }

    /// The call has returned, so its events have been read. `done`: it was not refused.
    ///
    /// Linux reports an unmapping before it knows whether it can be made: it stops at a sealed mapping, or there is not enough
    /// memory for the new mapping. A pager that believes such a report loses the pages that are paged out there.
    pub fn end_remap(&self, done: bool) {
        let mut map = self.write_after_call();
        let Some(call) = map.remaps.end(K::thread_id()) else { return };
        self.follow_call(&mut map, call, done);
        drop(map);
        self.catch_up();
        self.let_fills();
    }

    /// Follows a call that is not in the list any more. `done`: it was not refused.
    fn follow_call(&self, map: &mut Space<K>, call: Remap, done: bool) {
        if call.moves() {
            self.remap_gate.end_move();
        }
        if let Some((start, end)) = call.reported {
            self.follow_unmap(map, start, end, !done && !K::mistake(Mistake::BelievesUnmaps), Some(call.number));
        }
        map.pending.end_of(call.number);
    }

    /// Leaves a new page of a growing mapping to the kernel until the call has returned. When mremap(2) moves a locked mapping and
    /// makes it longer, it brings in the new pages before it reports the move. Nobody can fill a page until that report has been
    /// read. Nor does the pager where another thread has unmapped memory, until that call has ended. `thread` is the thread that
    /// misses the page in its call. Returns whether it was such a page.
    pub fn leave_growth(&self, map: &Space<K>, addr: usize, thread: u32) -> bool {
        let aside = map.is_aside(addr);
        let known = !aside && map.ranges.find(addr).is_some();
        let grows = map.remaps.grows(addr, thread, known) && (aside || map.program.is_changing());
        // SAFETY: it is new, so it has no content.
        grows && unsafe { map.program.unregister(addr, PAGE_SIZE) }.is_ok()
    }

    /// A managed range was moved or resized by a followed mremap, and is at `new` now. An event reports a move, but not growth.
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

    /// A managed range was moved to `new` by a followed mremap. The old mapping is still there, empty and registered
    /// (MREMAP_DONTUNMAP). No event will report that it has gone.
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

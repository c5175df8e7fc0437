//! Requests of the program's about its memory that no event reports: guard pages, pages that must stay in memory, pages that forked
//! children find empty; and the end of a discard.

use crate::kernel::{Kernel, Mistake, Uffd as _};
use crate::machine::Machine;
use crate::ranges::{Flags, Kind};
use crate::space::Space;
use crate::space::backlog::Work;
use overspill_vm::page::State;
use overspill_vm::types::{ObjectId, PAGE_SHIFT, PageId};

impl<K: Kernel> Machine<K> {
    /// The program is about to put guard pages here (MADV_GUARD_INSTALL, for which there is no event). That drops the content.
    /// Until [`Machine::guarded`] no page is brought in here and none is taken. Returns whether there may be guard pages already,
    /// or `None` if there is no room to remember the call.
    pub fn begin_guard(&self, start: usize, end: usize) -> Option<bool> {
        let mut map = self.map.write();
        let (mut at, mut before) = (start, false);
        while let Some(r) = map.ranges.first(at, end) {
            before |= r.flags.has(Flags::GUARDED);
            at = r.end;
        }
        if at > start {
            let now = K::now_ns();
            if !map.ranges.change(start, end, |flags| flags.with(Flags::GUARDED))
                || !map.discards.begin(K::thread_id(), start, end, now, Self::lives)
            {
                return None;
            }
            map.discards.report(start, end, now);
        }
        Some(before)
    }

    /// The call has returned. There are guard pages up to `until`: there the old content is forgotten. Behind it the call was
    /// refused. `before`: there may be guard pages from an earlier call.
    pub fn guarded(&self, start: usize, until: usize, end: usize, before: bool) {
        let mut map = self.map.write();
        self.add_work_within(&mut map, start, until, Work::GiveUp);
        if !before && until < end {
            self.forget_guards(&mut map, until, end);
        }
        map.discards.ended(K::thread_id(), start, end);
        drop(map);
        self.catch_up();
    }

    /// The guard pages have been taken away again.
    pub fn unguarded(&self, start: usize, end: usize) {
        self.forget_guards(&mut self.map.write(), start, end);
    }

    fn forget_guards(&self, map: &mut Space<K>, start: usize, end: usize) {
        // without room for the pieces the pages still count as guarded, which is slower and otherwise the same
        let _ = map.ranges.change(start, end, |flags| flags.without(Flags::GUARDED));
    }

    /// Pages that must never leave memory (a thread's descriptor), by address. They need not be managed yet. Those from one on that
    /// cannot be read are left alone.
    pub fn wire_addresses(&self, object: ObjectId, origin: usize, start: usize, end: usize) {
        self.wire_each(object, origin, start, end, K::touch);
    }

    /// `touch` brings in the page at an address. Returns `false` if it could not.
    fn wire_each(&self, object: ObjectId, origin: usize, start: usize, end: usize, touch: impl Fn(usize) -> bool) -> bool {
        let first = (start - origin) >> PAGE_SHIFT;
        let last = (end - 1 - origin) >> PAGE_SHIFT;
        for index in first..=last {
            let page = PageId::new(object, index as u64);
            loop {
                let mut core = self.core.lock();
                let word = core.vm.page(page);
                if matches!(word.state(), State::Inactive | State::Clean | State::PagedOut) || word.busy() {
                    drop(core);
                    if !touch(origin + (index << PAGE_SHIFT)) {
                        return false;
                    }
                    continue;
                }
                if !core.vm.wire(page, !K::mistake(Mistake::KeepsNothing)) {
                    drop(core);
                    self.stop_table_full();
                }
                break;
            }
        }
        true
    }

    /// Brings in the managed pages of a range, to stay. Returns `false` if a page cannot be read.
    pub fn keep_in(&self, start: usize, end: usize) -> bool {
        let mut at = start;
        self.catch_up(); // pages that are to be renamed look untouched where they are to be
        loop {
            let range = self.map.read().ranges.overlap(at, end, Kind::Managed);
            let Some(piece) = range.map(|range| range.within(at, end)) else { return true };
            if !self.wire_each(piece.object, piece.origin, piece.start, piece.end, K::touch) {
                return false;
            }
            at = piece.end;
        }
    }

    /// The program has said whether its forked children find the range empty; there are no events for that. Returns `false` if
    /// there is no room to remember it.
    #[must_use]
    pub fn wiped_on_fork(&self, start: usize, end: usize, wiped: bool) -> bool {
        let change = |flags: Flags| if wiped { flags.with(Flags::WIPE) } else { flags.without(Flags::WIPE) };
        self.map.write().ranges.change(start, end, change)
    }

    /// Leaves the managed pages of a range to the kernel; the pager forgets them. => [`Machine::keep_in`] has brought them in
    pub fn hand_over(&self, start: usize, end: usize) {
        let mut map = self.map.write();
        let mut at = start;
        while let Some(range) = map.ranges.overlap(at, end, Kind::Managed) {
            let piece = range.within(at, end);
            at = piece.end;
            // SAFETY: every page that has content is in memory, and stays there.
            if unsafe { map.program.unregister(piece.start, piece.end - piece.start) }.is_ok() {
                self.unmapped(&mut map, &mut self.core.lock(), piece.start, piece.end);
            }
        }
        drop(map);
        self.catch_up();
        self.drop_in_turns(true);
    }

    /// The calling thread is about to discard a range by a call that the kernel reports: [`Machine::discard_done`] must follow.
    pub fn begin_discard(&self, start: usize, end: usize) {
        if self.map.read().ranges.overlap(start, end, Kind::Managed).is_some() {
            self.map.write().discards.begin(K::thread_id(), start, end, K::now_ns(), Self::lives);
        }
    }

    fn lives(thread: u32) -> bool {
        K::thread_cpu_ns(thread).is_some()
    }

    /// The call has returned. If the kernel has told of it, mapped pages were left to the call; what is absent now is given up, so
    /// that it is not charged any more, and is filled like new memory.
    pub fn discard_done(&self, start: usize, end: usize) {
        let thread = K::thread_id();
        {
            // (under the lock: whoever has read the report may still be following it)
            let discards = &self.map.read().discards;
            if !discards.has(thread) && !discards.has_others(K::now_ns()) {
                return;
            }
        }
        let mut map = self.write_after_call();
        if !map.discards.ended(thread, start, end) {
            return;
        }
        self.add_work_within(&mut map, start, end, Work::GiveUpAbsent);
        drop(map);
        self.catch_up();
        self.let_fills();
    }
}

//! Events of the program's address space, all followed under the exclusive map lock.
//!
//! Why the exclusive lock: the kernel refuses to fill pages (EAGAIN) from the moment an unmap, discard or move begins until its
//! event is *read*. If a page could be filled between the reading and the processing of an event, old content could land in a range
//! that is new. With the lock, a fill comes wholly before the reading, when the kernel guards it, or after the processing.

use crate::kernel::{Event, Kernel, Mistake, Uffd};
use crate::machine::{Core, Machine};
use crate::ranges::{Flags, Kind, Range};
use crate::space::Space;
use overspill_vm::types::PAGE_SIZE;

/// Messages read at a time.
pub(crate) const MESSAGES: usize = 16;

/// The most ranges that an event can add, apart from those that [`Machine::manage`] makes.
const EVENT_PIECES: usize = 4;

/// How often [`Machine::await_unmaps`] looks while events are under way all the time, and how long it waits in between, in
/// nanoseconds: 50 ms in all.
const UNMAPS_LOOKS: u32 = 500;

pub(crate) const UNMAPS_LOOK_NS: u64 = 100_000;

impl<K: Kernel> Machine<K> {
    /// Reads waiting messages. Events are followed at once. The addresses of faults are given to `fault` after the lock is free.
    /// Returns whether there may be more messages.
    pub fn read_messages(&self, mut fault: impl FnMut(usize, u32)) -> bool {
        let mut messages = [<K::Uffd as Uffd>::Message::default(); MESSAGES];
        let mut map = self.map.write();
        let n = map.program.read(&mut messages);
        if n == 0 && !map.pending.is_empty() && !map.is_changing() {
            map.pending.clear();
        }
        for message in &messages[..n] {
            match (*message).into() {
                Event::Fault(..) | Event::Other => {}
                event => self.follow(&mut map, event),
            }
        }
        drop(map);
        for message in &messages[..n] {
            if let Event::Fault(addr, tid) = (*message).into() {
                fault(addr, tid);
            }
        }
        n == MESSAGES
    }

    /// An unmap, discard or move of managed memory that the kernel has reported.
    pub fn follow(&self, map: &mut Space<K>, event: Event) {
        self.status.counters.events.add(1);
        if !map.ranges.has_room(EVENT_PIECES) {
            self.stop_ranges_full();
        }
        match event {
            Event::Unmap(start, end) if map.remaps.put_aside(start, end) => {}
            Event::Unmap(start, end) => self.follow_unmap(map, start, end, false),
            Event::Remove(start, end) if map.copying.discarded(start, end) => {} // by the page daemon
            Event::Remove(start, end) => {
                let mut at = start;
                while let Some(r) = map.ranges.overlap(at, end, Kind::Managed) {
                    let piece = r.within(at, end);
                    self.give_up(piece, true);
                    at = piece.end;
                }
                map.discards.add(start, end, K::now_ns());
            }
            Event::Remap(from, to, len) => {
                // The old mapping there has gone, or the kernel would not have moved anything to that place.
                self.replaced(map, to, to + len, true);
                let mut at = from;
                while at < from + len {
                    let known = map.ranges.first(at, from + len).map(|r| r.within(at, from + len));
                    let until = known.map_or(from + len, |r| r.start);
                    if at < until {
                        // registered, or there would be no event, but not in the map: it is managed from now on
                        self.manage(map, Range { start: at - from + to, end: until - from + to, ..Range::of_program(Flags::NONE) });
                    }
                    let Some(r) = known else { break };
                    map.ranges.remove(r.start, r.end, |_| {});
                    let moved = Range { start: r.start - from + to, end: r.end - from + to, ..r };
                    if r.kind == Kind::Managed {
                        if !map.ranges.insert(moved) {
                            self.stop_ranges_full();
                        }
                        if !self.core.lock().vm.rename_range(r.page(r.start), moved.page(moved.start), r.pages()) {
                            self.stop_table_full();
                        }
                    } else {
                        Self::unreserve(&mut self.core.lock(), r.pages());
                        self.manage(map, moved);
                    }
                    at = r.end;
                }
                map.pending.add(from, from + len);
            }
            Event::Fault(..) | Event::Other => {}
        }
        self.drop_places(map, false);
    }

    /// An unmapping was reported. `refused`: the call was refused, so that perhaps nothing was unmapped.
    pub fn follow_unmap(&self, map: &mut Space<K>, start: usize, end: usize, refused: bool) {
        let mut at = start;
        while at < end {
            let (until, next) = if K::mistake(Mistake::FollowsLateUnmaps) { (end, end) } else { map.pending.settle(at, end) };
            while let Some(r) = map.ranges.first(at, until).map(|r| r.within(at, until)) {
                // A native range that is there came later: the event covers all addresses that the call was given.
                if r.kind == Kind::Managed && !refused {
                    Self::unmapped(map, &mut self.core.lock(), r.start, r.end);
                } else {
                    self.drop_holes(map, r.start, r.end);
                }
                at = r.end;
            }
            at = next;
        }
    }

    /// Gives up what is no longer mapped in the range, and nothing else. Another thread may have unmapped a part whose report is
    /// still to come.
    fn drop_holes(&self, map: &mut Space<K>, start: usize, end: usize) {
        if K::is_mapped(start, end) {
            return;
        }
        let mut at = start;
        let asked = K::each_mapping(|from, to| {
            if at < from && start < to && at < end {
                Self::unmapped(map, &mut self.core.lock(), at, from.min(end));
            }
            at = at.max(to);
        });
        if asked.is_ok() && at < end {
            Self::unmapped(map, &mut self.core.lock(), at, end);
        }
        if asked.is_err() {
            // no descriptor to be had
            for page in (start..end).step_by(PAGE_SIZE).filter(|page| !K::is_mapped(*page, page + PAGE_SIZE)) {
                Self::unmapped(map, &mut self.core.lock(), page, page + PAGE_SIZE);
            }
        }
    }

    /// The range is gone with its content.
    pub(crate) fn unmapped(map: &mut Space<K>, core: &mut Core, start: usize, end: usize) {
        map.ranges.remove(start, end, |gone| match gone.kind {
            Kind::Managed => Self::give_up_of(core, gone, false),
            Kind::Native => Self::native_gone(core, gone),
        });
    }

    /// The kernel has made a mapping here at an address of its own choice, so the ranges that the map has here have gone.
    /// `pending`: an event may still report that.
    fn replaced(&self, map: &mut Space<K>, start: usize, end: usize, pending: bool) {
        // (that call may cover much more, and may have been refused: only this part is known to have gone)
        let aside = map.remaps.put_aside_of(start, end);
        if let Some((start, end)) = aside {
            map.pending.add(start, end);
        }
        while let Some(old) = map.ranges.first(start, end) {
            let old = old.within(start, end);
            Self::unmapped(map, &mut self.core.lock(), old.start, old.end);
            let known = aside.is_some_and(|(start, end)| start <= old.start && old.end <= end);
            if pending && old.kind == Kind::Managed && !known {
                map.pending.add(old.start, old.end);
            }
        }
    }

    /// A region of the library's is gone, or its content is. With in-thread delivery no event reports that. The caller has the
    /// kernel drop the pages under the same lock. `unmapped`: the range itself is gone too.
    pub fn forget_range(&self, map: &mut Space<K>, start: usize, end: usize, unmapped: bool) {
        let mut at = start;
        while let Some(r) = map.ranges.overlap(at, end, Kind::Managed) {
            let piece = r.within(at, end);
            if unmapped {
                map.ranges.remove(piece.start, piece.end, |_| {});
            }
            self.give_up(piece, false);
            at = piece.end;
        }
        self.drop_places(map, true);
    }

    /// To be called before a new mapping is managed. If its addresses belonged to a managed range before, an event reports the end
    /// of that range. The event must be followed first, or it would be taken for the end of the new mapping. The kernel gives the
    /// addresses out before it sends the event, so the event may come only when the thread that unmapped has run again.
    ///
    /// If that thread is killed, the kernel withdraws the event. So this does not wait when no event is under way and all have been
    /// read, nor for long when other events come all the time.
    pub fn await_unmaps(&self, start: usize, end: usize) {
        let mut changing = true;
        let mut looks = 0;
        while looks < UNMAPS_LOOKS && changing {
            changing = self.map.read().program.is_changing();
            while self.read_messages(|addr, _| self.wake_any(addr)) {}
            let map = self.map.read();
            if !map.is_settling(start, end) {
                return;
            }
            let copying = map.copying.overlaps(start, end);
            drop(map);
            if copying {
                changing = true; // the page daemon will soon be done with this range
            } else {
                looks += 1;
            }
            if changing {
                K::sleep_ns(UNMAPS_LOOK_NS);
            }
        }
        let mut map = self.map.write();
        self.replaced(&mut map, start, end, changing);
        self.drop_places(&map, false);
    }

    /// Wakes the thread of a fault message that was read by a thread that does not serve faults. The faulting thread looks again,
    /// and a handler gets the next message.
    pub fn wake_any(&self, addr: usize) {
        let map = self.map.read();
        self.wake(&map, addr & !(PAGE_SIZE - 1), PAGE_SIZE);
    }

    /// Gives up the pages of a piece: their content is forgotten. `keep_mapped`: except for pages that are mapped.
    pub(crate) fn give_up(&self, piece: Range, keep_mapped: bool) {
        Self::give_up_of(&mut self.core.lock(), piece, keep_mapped);
    }

    pub(crate) fn give_up_of(core: &mut Core, piece: Range, keep_mapped: bool) {
        let (vm, park) = (&mut core.vm, &mut core.park);
        let mut parked = 0;
        let forget = |frame| {
            parked += 1;
            park.orphan(frame);
        };
        if keep_mapped {
            vm.discard_range(piece.page(piece.start), piece.pages(), forget);
        } else {
            vm.release_range(piece.page(piece.start), piece.pages(), forget);
        }
        vm.charge(parked);
    }
}

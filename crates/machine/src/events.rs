//! Events of the program's address space, all followed under the exclusive map lock.
//!
//! Why the exclusive lock: the kernel refuses to fill pages (EAGAIN) from the moment an unmap, discard or move begins until its
//! event is *read*. If a page could be filled between the reading and the processing of an event, old content could land in a range
//! that is new. With the lock, a fill comes wholly before the reading, when the kernel guards it, or after the processing.
//!
//! Ranges change at once. Their pages may be many, so they are given up and renamed in steps, and all locks are free in between
//! ([`Backlog`](crate::space::backlog::Backlog)).

use crate::daemon::TURN_NS;
use crate::kernel::{Event, Host as _, Kernel, Mistake, Uffd};
use crate::machine::{Core, Delivery, Machine};
use crate::ranges::{Flags, Kind, Range};
use crate::space::Space;
use crate::space::backlog::{Task, Work};
use core::sync::atomic::Ordering::Relaxed;
use overspill_vm::types::PAGE_SIZE;

/// Messages read at a time.
pub const MESSAGES: usize = 16;

/// The most ranges that an event can add, apart from those that [`Machine::manage`] makes.
const EVENT_PIECES: usize = 4;

/// How often [`Machine::await_unmaps`] looks while events are under way all the time, and how long it waits in between, in
/// nanoseconds: 50 ms in all.
const UNMAPS_LOOKS: u32 = 500;

pub(crate) const UNMAPS_LOOK_NS: u64 = 100_000;

/// How long a thread that takes the map again and again lets others go first, in nanoseconds: about what they take to wake.
const WAKE_NS: u64 = 20_000;

/// How many pages [`Work::GiveUpAbsent`] asks for at a time.
const ASKED_PAGES: usize = 64;

/// How often a hooked call looks whether a fill was made that the kernel had refused: for some 50 us.
const FILL_LOOKS: u32 = 128;

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
        let mut changed = false;
        for message in &messages[..n] {
            match (*message).into() {
                Event::Fault(..) | Event::Other => {}
                event => {
                    self.follow(&mut map, event);
                    changed = true;
                }
            }
        }
        changed = changed && !map.backlog.is_empty();
        if changed {
            self.step(&mut map); // mostly that is all
        }
        // The thread of a call that hooks know of does the rest when the call has returned. A handler must not: the thread whose
        // fault it has served may wait for its CPU.
        let rest = changed && map.remaps.is_empty() && !map.backlog.is_empty();
        drop(map);
        if changed {
            self.drop_in_turns(false);
        }
        if rest {
            self.ring_daemon_anyway();
        }
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
            Event::Unmap(start, end) => {
                // a call that moves several mappings replaces one after the other
                let call = map.remaps.around(start, end).filter(|call| map.pending.settled_of(*call, start, end).0 < end);
                self.follow_unmap(map, start, end, false, call);
            }
            Event::Remove(start, end) if map.copying.discarded(start, end) => {} // by the page daemon
            Event::Remove(start, end) => {
                self.add_work_within(map, start, end, Work::GiveUpUnmapped);
                map.discards.report(start, end, K::now_ns());
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
                        self.add_work(map, r, Work::Rename(moved.start));
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
    }

    /// An unmapping was reported. `refused`: the call was refused, so that perhaps nothing was unmapped. `call`: the number of the
    /// call, if it was announced.
    pub fn follow_unmap(&self, map: &mut Space<K>, start: usize, end: usize, refused: bool, call: Option<u64>) {
        let mut at = start;
        while at < end {
            let (until, next) = match call {
                _ if K::mistake(Mistake::FollowsLateUnmaps) => (end, end),
                Some(call) => map.pending.settled_of(call, at, end),
                None => map.pending.settle(at, end),
            };
            while let Some(r) = map.ranges.first(at, until).map(|r| r.within(at, until)) {
                // A native range that is there came later: the event covers all addresses that the call was given.
                if r.kind == Kind::Managed && !refused {
                    self.unmapped(map, &mut self.core.lock(), r.start, r.end);
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
                self.unmapped(map, &mut self.core.lock(), at, from.min(end));
            }
            at = at.max(to);
        });
        if asked.is_ok() && at < end {
            self.unmapped(map, &mut self.core.lock(), at, end);
        }
        if asked.is_err() {
            // no descriptor to be had
            for page in (start..end).step_by(PAGE_SIZE).filter(|page| !K::is_mapped(*page, page + PAGE_SIZE)) {
                self.unmapped(map, &mut self.core.lock(), page, page + PAGE_SIZE);
            }
        }
    }

    /// The range is gone with its content.
    pub(crate) fn unmapped(&self, map: &mut Space<K>, core: &mut Core, start: usize, end: usize) {
        let mut at = start;
        while let Some(gone) = map.ranges.first(at, end).map(|r| r.within(at, end)) {
            map.ranges.remove(gone.start, gone.end, |_| {});
            match gone.kind {
                Kind::Managed => self.add_work_with(map, core, gone, Work::GiveUp),
                Kind::Native => Self::native_gone(core, gone),
            }
            at = gone.end;
        }
    }

    /// The kernel has made a mapping here at an address of its own choice, so the ranges that the map has here have gone.
    /// `pending`: an event may still report that.
    fn replaced(&self, map: &mut Space<K>, start: usize, end: usize, pending: bool) {
        let Space { remaps, pending: unmaps, .. } = &mut *map;
        // (such a call may unmap much more, and may be refused: only this part is known to have gone)
        remaps.unmaps_of(start, end).for_each(|(call, start, end)| unmaps.add_of(call, start, end));
        while let Some(old) = map.ranges.first(start, end) {
            let old = old.within(start, end);
            self.unmapped(map, &mut self.core.lock(), old.start, old.end);
            let Space { remaps, pending: unmaps, .. } = &mut *map;
            let mut at = old.start;
            while pending && old.kind == Kind::Managed && at < old.end {
                let known = remaps.unmaps_of(at, old.end).map(|(_, start, end)| (start, end)).min().unwrap_or((old.end, old.end));
                if at < known.0 {
                    unmaps.add(at, known.0);
                }
                at = known.1;
            }
        }
    }

    /// Has `unmap` unmap a region of the library's, and gives its pages up, also if the kernel does not do it.
    ///
    /// Where an event reports it, it is announced: other memory may be at these addresses before the event has been read. (The page
    /// daemon took pages of that memory for the region's.) And the pages are given up before, because the kernel fills pages of any
    /// userfaultfd's memory: a read that arrived filled another pager's. => the caller holds no lock of the pager's
    pub fn unmap_region(&self, start: usize, end: usize, unmap: impl FnOnce()) {
        match self.config.delivery {
            Delivery::Threads if K::mistake(Mistake::UnmapsUnannounced) => unmap(),
            Delivery::Threads => {
                while self.begin_remap([(0, 0), (start, end)], 0).is_none() {
                    self.await_others();
                }
                self.unmapped(&mut self.map.write(), &mut self.core.lock(), start, end);
                unmap(); // holds no lock, because it lasts until a handler has read the event
                self.end_remap(true);
            }
            Delivery::InThread => {
                let mut map = self.map.write(); // no thread moves or fills its pages; reads that arrive are thrown away
                unmap();
                self.unmapped(&mut map, &mut self.core.lock(), start, end);
            }
        }
        self.forgotten();
    }

    /// The content of a region of the library's is gone. With in-thread delivery no event reports that. The caller has the kernel
    /// drop the pages under the same lock, and then calls [`Machine::forgotten`].
    pub fn forget_range(&self, map: &mut Space<K>, start: usize, end: usize) {
        self.add_work_within(map, start, end, Work::GiveUp);
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
            let (copying, behind) = (map.copying.overlaps(start, end), map.backlog.overlaps(start, end));
            drop(map);
            if behind {
                self.catch_up();
                changing = true; // looks again
                continue;
            }
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
        drop(map);
        self.catch_up();
    }

    /// Wakes the thread of a fault message that was read by a thread that does not serve faults. The faulting thread looks again,
    /// and a handler gets the next message.
    pub fn wake_any(&self, addr: usize) {
        let waiters = self.waiters(&self.map.read(), addr & !(PAGE_SIZE - 1), PAGE_SIZE);
        self.wake_waiters(waiters);
    }

    /// There is work on the pages of a managed range, to be done in steps.
    pub(crate) fn add_work(&self, map: &mut Space<K>, range: Range, work: Work) {
        self.add_work_with(map, &mut self.core.lock(), range, work);
    }

    /// There is such work on each managed range in `start..end`.
    pub(crate) fn add_work_within(&self, map: &mut Space<K>, start: usize, end: usize, work: Work) {
        let mut at = start;
        while let Some(r) = map.ranges.overlap(at, end, Kind::Managed) {
            let piece = r.within(at, end);
            self.add_work(map, piece, work);
            at = piece.end;
        }
    }

    fn add_work_with(&self, map: &mut Space<K>, core: &mut Core, range: Range, work: Work) {
        if map.backlog.is_full() {
            self.finish_with(map, core);
        }
        map.backlog.add(range, work);
    }

    /// Does all work that is left, in steps. Between two of them the locks are free, and other threads come first.
    ///
    /// A handler that gives way to this thread on its CPU gets next to nothing of it by a yield. So the thread sleeps now and then.
    pub fn catch_up(&self) {
        let mut since = K::now_ns();
        while self.step_on() {
            self.let_others();
            if self.host.shares_cpu() && K::now_ns() - since > TURN_NS {
                K::sleep_ns(WAKE_NS);
                since = K::now_ns();
            }
        }
    }

    /// The end of a [`Machine::forget_range`], when the map is free again.
    pub fn forgotten(&self) {
        self.catch_up();
        self.drop_in_turns(true);
    }

    /// Does a step of the work that is left, if there is any. Returns whether there was.
    pub(crate) fn step_on(&self) -> bool {
        if self.map.read().backlog.is_empty() {
            return false;
        }
        self.step(&mut self.map.write());
        self.drop_in_turns(false);
        true
    }

    /// Lets other threads go on: those that want this CPU, such as a handler that may run nowhere else, and those that sleep until
    /// they get the map. (They take longer to wake than a thread that runs to take it again.)
    pub(crate) fn let_others(&self) {
        K::yield_now();
        if self.map.is_slept_for() {
            K::sleep_ns(WAKE_NS);
        }
    }

    /// Waits for a moment if the kernel has refused a fill. A thread that discards or unmaps piece after piece leaves two or three
    /// microseconds between the end of a call and the beginning of the next. Faults met none of them for up to 50 ms. => a hooked
    /// call has returned; no lock is held
    pub(crate) fn let_fills(&self) {
        for _ in 0..FILL_LOOKS {
            if !self.refused_fill.load(Relaxed) {
                return;
            }
            K::yield_now();
        }
        self.refused_fill.store(false, Relaxed); // nobody has come: its thread may have been killed
    }

    /// Does a step of the oldest work: up to [`Kernel::STEP_PAGES`] pages.
    pub(crate) fn step(&self, map: &mut Space<K>) {
        self.step_with(map, &mut self.core.lock(), K::STEP_PAGES);
    }

    /// Does all work that is left, in steps, but with the map held.
    pub fn finish(&self, map: &mut Space<K>) {
        while !map.backlog.is_empty() {
            self.step(map);
        }
    }

    /// The same with the core held as well.
    pub(crate) fn finish_with(&self, map: &mut Space<K>, core: &mut Core) {
        while !map.backlog.is_empty() {
            self.step_with(map, core, u64::MAX);
        }
    }

    fn step_with(&self, map: &mut Space<K>, core: &mut Core, most: u64) {
        let Some(task) = map.backlog.first() else { return };
        let Task { range, work } = task;
        let done = match (work, task.to()) {
            (_, Some(to)) => core.vm.rename_some(range.page(range.start), to, range.pages(), most),
            (Work::GiveUpAbsent, None) => Some(Self::give_up_absent(core, range, most)),
            (_, None) => Some(Self::give_up(core, range, work, most)),
        };
        match done {
            Some(pages) => map.backlog.done(pages),
            None => self.stop_table_full(),
        }
    }

    /// Gives up pages of a piece: their content is forgotten. Looks at no more than `most` pages that are not untouched. Returns
    /// how many pages of the piece are done, from the first on.
    pub(crate) fn give_up(core: &mut Core, piece: Range, work: Work, most: u64) -> u64 {
        let (vm, park) = (&mut core.vm, &mut core.park);
        let mut parked = 0;
        let forget = |frame| {
            parked += 1;
            park.orphan(frame);
        };
        let keep_mapped = work == Work::GiveUpUnmapped;
        let done = vm.release_some(piece.page(piece.start), piece.pages(), keep_mapped, most, forget);
        vm.charge(parked);
        done
    }

    /// Gives up the pages of a piece that are mapped as far as is known, but are absent. As [`Machine::give_up`].
    ///
    /// An absent page is empty or not the program's any more: with the map held exclusively no page is on its way from or to the
    /// piece, except those that are busy, which stay.
    fn give_up_absent(core: &mut Core, piece: Range, most: u64) -> u64 {
        let (mut known, mut present) = (0..0, [false; ASKED_PAGES]);
        let is_absent = |page| {
            let addr = piece.addr(page);
            if !known.contains(&addr) {
                known = addr..piece.end.min(addr + ASKED_PAGES * PAGE_SIZE);
                present.fill(false);
                K::each_resident(known.start, known.end, |at| present[(at - addr) / PAGE_SIZE] = true);
            }
            !present[(addr - known.start) / PAGE_SIZE]
        };
        core.vm.release_absent(piece.page(piece.start), piece.pages(), most, is_absent)
    }
}

//! What happens to address ranges: new ones, events, adoption, wiring. All under the exclusive map lock.
//!
//! **Native until it matters.** A new range that fits the budget as a whole is left to the kernel and charged in full: while
//! everything fits, the program runs at the kernel's speed and the promise still holds. When frames get short, all native ranges
//! are adopted: registered, and their present pages taken over one by one.

use crate::errno::{self, Errno};
use crate::kernel::{Event, Host as _, Kernel, Mistake, Uffd};
use crate::lock::Word as _;
use crate::machine::{Core, Machine, Space};
use crate::ranges::{Flags, Kind, Range};
use core::sync::atomic::{AtomicU32, Ordering::*};
use overspill_vm::page::State;
use overspill_vm::types::{ObjectId, PAGE_SHIFT, PAGE_SIZE, PageId};

/// Messages are read so many at a time.
pub(crate) const MESSAGES: usize = 16;
/// An event makes so many ranges more, at most, but for those that [`Machine::manage`] makes.
const EVENT_PIECES: usize = 4;
/// How often [`Machine::await_unmaps`] looks while events are under way all the time, how long it waits in between, in nanoseconds:
/// 50 ms in all.
const UNMAPS_LOOKS: u32 = 500;
const UNMAPS_LOOK_NS: u64 = 100_000;
/// How long a fork waits for calls of other threads that move memory, in nanoseconds.
pub const REMAPS_NS: u64 = 1_000_000_000;

/// Ranges whose discard the kernel has announced and may not have done yet. Reading the announcement lets the discard go on, and
/// nothing tells of its end: a page parked in between would come back with content that the program has thrown away. So pages of
/// these ranges are not parked until the wrapped call has returned, or, if the call was not a wrapped one, for a while.
///
/// (Taking the mapped pages away instead, as long as the announcement is being read, is wrong: after MADV_FREE they stay mapped,
/// and the program may have written to them by then. It lost a page once in twelve runs of `tests/programs/calls.c`.)
#[derive(Debug)]
pub struct Discards {
    ranges: [(usize, usize, u64); DISCARDS_MAX],
    /// How many there are; looked at without the lock.
    pub count: AtomicU32,
}

/// Discards that may be under way at a time: one a thread.
const DISCARDS_MAX: usize = 256;
/// How long a discard that was not a wrapped call is taken to be under way, in nanoseconds.
const DISCARD_NS: u64 = 2_000_000_000;

impl Discards {
    /// None.
    pub fn new() -> Self {
        Discards { ranges: [(0, 0, 0); DISCARDS_MAX], count: AtomicU32::new(0) }
    }
    fn add(&mut self, start: usize, end: usize, now: u64) {
        // Where all are taken, one that is near is of both from now on: that keeps a little more in memory for a while.
        let grows = |r: &(usize, usize, u64)| if r.2 <= now { 0 } else { r.1.max(end) - r.0.min(start) - (r.1 - r.0) + 1 };
        if let Some(r) = self.ranges.iter_mut().min_by_key(|r| grows(r)) {
            let (first, last) = if r.2 <= now { (start, end) } else { (r.0.min(start), r.1.max(end)) };
            *r = (first, last, now + DISCARD_NS);
        }
        self.recount(now);
    }
    fn done(&mut self, start: usize, end: usize, now: u64) {
        // its own rather than what another thread discards within it
        let own = self.ranges.iter().position(|r| r.2 != 0 && (r.0, r.1) == (start, end));
        let within = || self.ranges.iter().position(|r| r.2 != 0 && r.0 >= start && r.1 <= end);
        if let Some(at) = own.or_else(within) {
            self.ranges[at] = (0, 0, 0);
        }
        self.recount(now);
    }
    fn recount(&mut self, now: u64) {
        let mut n = 0;
        for r in &mut self.ranges {
            if r.2 <= now {
                *r = (0, 0, 0);
            }
            n += (r.2 != 0) as u32;
        }
        self.count.store(n, Relaxed);
    }
    /// Whether the page at `addr` may be about to be discarded.
    pub fn covers(&self, addr: usize, now: impl FnOnce() -> u64) -> bool {
        self.count.load(Relaxed) != 0 && {
            let now = now();
            self.ranges.iter().any(|r| r.2 > now && r.0 <= addr && addr < r.1)
        }
    }
}

impl Default for Discards {
    fn default() -> Self {
        Self::new()
    }
}

/// Addresses that were given up and whose unmapping is still to be reported: when it is, it is not of what lives there by then.
///
/// The kernel gives addresses out again before it reports that they came free. A move is reported first, and only when that has
/// been read the unmapping of where it came from; meanwhile another thread's move may have come to that very place, and its report
/// was read. What followed took the new pages for those that had gone: they read as zeroes.
///
/// The kernel counts an unmapping as under way from before its act until its report has been read
/// ([`Uffd::is_changing`]): when none is under way, there is none that is still to be reported, and
/// [`Machine::read_messages`] forgets them all.
#[derive(Debug)]
pub struct PendingUnmaps {
    ranges: Vec<(usize, usize)>,
}

/// One for each thread that is just unmapping or moving, and those of the moment before.
const PENDING_MAX: usize = 1 << 16;

impl PendingUnmaps {
    /// None.
    pub fn new() -> Self {
        PendingUnmaps { ranges: Vec::with_capacity(PENDING_MAX) }
    }
    /// The unmapping of this range, or of more, has taken place as far as the pager is concerned.
    fn add(&mut self, start: usize, end: usize) {
        if self.ranges.len() == PENDING_MAX {
            self.ranges.swap_remove(0); // more than there are threads: its report is one of those that never come
        }
        self.ranges.push((start, end));
    }
    /// There will be no such report.
    pub fn cancel(&mut self, start: usize, end: usize) {
        self.ranges.retain(|r| *r != (start, end));
    }
    /// There will be none at all.
    pub fn clear(&mut self) {
        self.ranges.clear();
    }
    /// An unmapping of `at..end` was reported. Up to where it is news, and from where on again. => at < end
    fn settle(&mut self, at: usize, end: usize) -> (usize, usize) {
        let within = |r: &(usize, usize)| at <= r.0 && r.0 < r.1 && r.1 <= end;
        let first = (0..self.ranges.len()).filter(|i| within(&self.ranges[*i])).min_by_key(|i| self.ranges[*i].0);
        first.map_or((end, end), |i| self.ranges.swap_remove(i))
    }
}

impl Default for PendingUnmaps {
    fn default() -> Self {
        Self::new()
    }
}

/// What the program's calls that unmap, replace or move memory are about: from before the call until it has been followed the page
/// daemon takes nothing there.
///
/// It takes a page by its address, and in the moment between its choice and the move another page may have come there, which the
/// kernel reports only afterwards: mremap(MREMAP_FIXED) puts one mapping in the place of another. The daemon parked the page that
/// had come for the one that had gone, and gave it up with that: it read as zeroes. (The kernel refuses to *fill* pages meanwhile,
/// not to take them.)
#[derive(Debug)]
pub struct Remaps {
    calls: Vec<Remap>,
}

/// A call of a thread's that unmaps, replaces or moves memory.
#[derive(Clone, Copy, Debug)]
struct Remap {
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
    fn put_aside(&mut self, start: usize, end: usize) -> bool {
        let call = self.calls.iter_mut().find(|call| call.ranges[1] == (start, end) && call.reported.is_none());
        call.map(|call| call.reported = Some((start, end))).is_some()
    }
    /// What of the range is in such a report.
    fn put_aside_of(&self, start: usize, end: usize) -> Option<(usize, usize)> {
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

/// A part of a native range that is out of the map over a system call.
#[derive(Clone, Copy, Default, Debug)]
pub struct Piece {
    /// First address.
    pub start: usize,
    /// Address after the last.
    pub end: usize,
    /// As in the map.
    pub flags: Flags,
}

/// What a system call takes the place of, or moves: native ranges, of which no event tells. They are taken out of the map before
/// the call, because the kernel may give their addresses to another thread before it returns, and put back if the kernel refuses
/// it.
#[derive(Clone, Copy, Default, Debug)]
pub struct Pieces {
    list: [Piece; PIECES_MAX],
    count: usize,
}

/// Native ranges that lie side by side are one, so there are rarely more. The list is on the program's stack.
const PIECES_MAX: usize = 12;

impl Pieces {
    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = &Piece> {
        self.list[..self.count].iter()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// The most that [`Machine::keep_in`] brings in, in bytes.
const KEEP_IN_MAX: usize = 64 << 30;

impl<K: Kernel> Machine<K> {
    /// A wrapped discard has returned.
    pub fn discard_done(&self, start: usize, end: usize) {
        self.map.write().discards.done(start, end, K::now_ns());
    }

    /// Reads waiting messages. Events are followed at once; addresses of faults are given to `fault`, after the lock is free.
    /// Returns whether there may be more.
    pub fn read_messages(&self, mut fault: impl FnMut(usize, u32)) -> bool {
        let mut messages = [<K::Uffd as Uffd>::Message::default(); MESSAGES];
        let mut map = self.map.write();
        let n = map.program.read(&mut messages);
        if n == 0 && !map.pending.ranges.is_empty() && !map.is_changing() {
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
                    let piece = Range { start: r.start.max(at), end: r.end.min(end), ..r };
                    self.give_up(piece, true);
                    at = piece.end;
                }
                map.discards.add(start, end, K::now_ns());
            }
            Event::Remap(from, to, len) => {
                // Whatever was there has gone, or the kernel would not have moved anything to it.
                self.replaced(map, to, to + len, true);
                let mut at = from;
                while at < from + len {
                    let known = map.ranges.first(at, from + len).map(|r| r.within(at, from + len));
                    let until = known.map_or(from + len, |r| r.start);
                    if at < until {
                        // registered, or there would be no event: what is there is what is mapped
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

    /// An unmapping was reported. `refused`: but the call was refused, so that it may not have come to that.
    pub fn follow_unmap(&self, map: &mut Space<K>, start: usize, end: usize, refused: bool) {
        let mut at = start;
        while at < end {
            let (until, next) = if K::mistake(Mistake::FollowsLateUnmaps) { (end, end) } else { map.pending.settle(at, end) };
            while let Some(r) = map.ranges.first(at, until).map(|r| r.within(at, until)) {
                // A native one that is there has come since: the event is of all that the call was given.
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

    /// What is no longer mapped in the range is gone, and nothing else: another thread may have unmapped a part, which is still to
    /// be reported.
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
            // no descriptor is to be had
            for page in (start..end).step_by(PAGE_SIZE).filter(|page| !K::is_mapped(*page, page + PAGE_SIZE)) {
                Self::unmapped(map, &mut self.core.lock(), page, page + PAGE_SIZE);
            }
        }
    }

    /// The range is gone, and what was in it.
    fn unmapped(map: &mut Space<K>, core: &mut Core, start: usize, end: usize) {
        map.ranges.remove(start, end, |gone| match gone.kind {
            Kind::Managed => Self::give_up_of(core, gone, false),
            Kind::Native => Self::native_gone(core, gone),
        });
    }

    /// The kernel has made a mapping of its own choice here, so whatever the map knows here has gone. `pending`: it may still say
    /// so.
    fn replaced(&self, map: &mut Space<K>, start: usize, end: usize, pending: bool) {
        // (that may be of much more, and the call may have been refused: nothing but this is known to have gone)
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

    /// A region of the library's is gone, or its content is: no event tells of it with in-thread delivery. The caller has the
    /// kernel drop the pages under the same lock. `unmapped`: the range itself is gone too.
    pub fn forget_range(&self, map: &mut Space<K>, start: usize, end: usize, unmapped: bool) {
        let mut at = start;
        while let Some(r) = map.ranges.overlap(at, end, Kind::Managed) {
            let piece = Range { start: r.start.max(at), end: r.end.min(end), ..r };
            if unmapped {
                map.ranges.remove(piece.start, piece.end, |_| {});
            }
            self.give_up(piece, false);
            at = piece.end;
        }
        self.drop_places(map, true);
    }

    /// The program is about to put guard pages here (MADV_GUARD_INSTALL, for which there is no event), which drops what is there.
    /// Until [`Machine::guarded`] nothing is brought in here and nothing is taken. Returns whether there may be guard pages
    /// already, or `None` if there is no room to remember it.
    pub fn begin_guard(&self, start: usize, end: usize) -> Option<bool> {
        let mut map = self.map.write();
        let (mut at, mut before) = (start, false);
        while let Some(r) = map.ranges.first(at, end) {
            before |= r.flags.has(Flags::GUARDED);
            at = r.end;
        }
        if at > start {
            if !map.ranges.change(start, end, |flags| flags.with(Flags::GUARDED)) {
                return None;
            }
            map.discards.add(start, end, K::now_ns());
        }
        Some(before)
    }

    /// The call has returned: the guard pages are there. What was there before is forgotten.
    pub fn guarded(&self, start: usize, end: usize) {
        let mut map = self.map.write();
        let mut at = start;
        while let Some(r) = map.ranges.overlap(at, end, Kind::Managed) {
            let piece = r.within(at, end);
            self.give_up(piece, false);
            at = piece.end;
        }
        map.discards.done(start, end, K::now_ns());
        self.drop_places(&map, false);
    }

    /// The guard pages have been taken away again, or there are none: the call was refused.
    pub fn unguarded(&self, start: usize, end: usize) {
        let mut map = self.map.write();
        map.discards.done(start, end, K::now_ns());
        // without room for the pieces, they are taken for guarded, which is slower and otherwise the same
        let _ = map.ranges.change(start, end, |flags| flags.without(Flags::GUARDED));
    }

    /// The call was refused, where there may be guard pages since an earlier one.
    pub fn not_guarded(&self, start: usize, end: usize) {
        self.map.write().discards.done(start, end, K::now_ns());
    }

    /// In a fork's child: registers what it has of the managed ranges, and gives up what it has not: MADV_DONTFORK, or a range that
    /// another thread unmapped in the moment of the fork, of which nobody will hear here.
    ///
    /// # Errors
    /// Its mappings cannot be read or registered.
    pub fn inherit_ranges(&self, map: &mut Space<K>, core: &mut Core) -> Result<(), Errno> {
        map.remaps.calls.clear(); // of threads that are not here
        let (mut at, mut result) = (0, Ok(()));
        K::each_mapping(|start, end| {
            Self::unmapped(map, core, at, start);
            at = start;
            while let Some(r) = map.ranges.overlap(at, end, Kind::Managed) {
                let piece = Range { start: r.start.max(at), end: r.end.min(end), ..r };
                match map.program.register(piece.start, piece.end - piece.start) {
                    Ok(()) => {}
                    Err(errno::EINVAL) => Self::unmapped(map, core, piece.start, piece.end), // something else is there by now
                    Err(e) => result = Err(e),
                }
                at = piece.end;
            }
            at = end;
        })?;
        Self::unmapped(map, core, at, usize::MAX);
        map.pending.clear();
        result
    }

    /// In a fork's child: what is to be empty there is. The kernel has done it with what was mapped; the pager's share is what was
    /// not.
    pub fn wipe(&self, map: &Space<K>, core: &mut Core) {
        for r in map.ranges.iter().filter(|r| r.kind == Kind::Managed && r.flags.has(Flags::WIPE)) {
            Self::give_up_of(core, *r, false);
        }
    }

    /// The pages of a piece are given up: their content is forgotten. `keep_mapped`: but for those that are mapped.
    fn give_up(&self, piece: Range, keep_mapped: bool) {
        Self::give_up_of(&mut self.core.lock(), piece, keep_mapped);
    }

    fn give_up_of(core: &mut Core, piece: Range, keep_mapped: bool) {
        let (vm, park) = (&mut core.vm, &mut core.park);
        let mut parked = 0;
        let forget = |frame| {
            parked += 1;
            park.retire(frame);
        };
        if keep_mapped {
            vm.discard_range(piece.page(piece.start), piece.pages(), forget);
        } else {
            vm.release_range(piece.page(piece.start), piece.pages(), forget);
        }
        vm.charge(parked);
    }

    fn native_gone(core: &mut Core, piece: Range) {
        Self::unreserve(core, piece.pages());
        core.vm.unwire_range(piece.page(piece.start), piece.pages());
    }

    fn unreserve(core: &mut Core, pages: u64) {
        let left = core.vm.reserved().saturating_sub(pages);
        core.vm.set_reserved(left);
    }

    /// The program has a new anonymous private range: if it fits the budget whole it is left to the kernel, and nothing needs to be
    /// asked of it. Returns `false` if that is not so; then [`Machine::add_range`] is due.
    pub fn try_native(&self, piece: Piece) -> bool {
        let mut map = self.map.write();
        // over a range whose unmapping has yet to be read: the event must be followed first
        !map.is_settling(piece.start, piece.end) && !Self::joins_managed(&map, piece) && self.insert_native(&mut map, piece)
    }

    /// Whether the kernel would make one mapping of the piece and a managed neighbour. It does so when the piece is registered
    /// before it is touched, and not afterwards; and mremap(2), for one, wants what it is given to be one mapping.
    fn joins_managed(map: &Space<K>, piece: Piece) -> bool {
        let alike = |r: Option<&Range>| {
            r.is_some_and(|r| r.kind == Kind::Managed && r.flags.without(Flags::GUARDED) == piece.flags.without(Flags::GUARDED))
        };
        alike(map.ranges.find(piece.start.wrapping_sub(1))) || alike(map.ranges.find(piece.end))
    }

    fn insert_native(&self, map: &mut Space<K>, piece: Piece) -> bool {
        self.drop_native(map, piece.start, piece.end);
        let range = Range { start: piece.start, end: piece.end, kind: Kind::Native, ..Range::of_program(piece.flags) };
        let fits = {
            let core = self.core.lock();
            let margin = core.vm.free_high() as u64 * 2;
            core.vm.charge_total() + range.pages() + margin <= core.vm.limit() as u64
        };
        // what is left to the kernel cannot be recorded
        fits && !self.host.records() && self.reserve_native(map, range)
    }

    /// A native range is charged in full. Returns whether there was room for it in the map.
    pub fn reserve_native(&self, map: &mut Space<K>, range: Range) -> bool {
        let inserted = map.ranges.insert(range);
        if inserted {
            let mut core = self.core.lock();
            let total = core.vm.reserved() + range.pages();
            core.vm.set_reserved(total);
        }
        inserted
    }

    /// To be called before a new mapping is managed. What was at its addresses before is gone, and if that was managed an event
    /// tells of it, which must be followed first: it would be taken for the end of the new mapping. The kernel gives the addresses
    /// out before it sends the event, so that may take until the thread that unmapped has run again.
    ///
    /// If that thread is killed, the kernel withdraws the event. So nothing is waited for when no event is under way and all have
    /// been read, nor for long when others come all the time.
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
                changing = true; // the page daemon is about to be done with it
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

    /// The program has a new anonymous private range.
    pub fn add_range(&self, piece: Piece) {
        let Piece { start, end, flags } = piece;
        self.await_unmaps(start, end);
        let mut map = self.map.write();
        if !Self::joins_managed(&map, piece) {
            if map.ranges.overlap(start, end, Kind::Managed).is_none() && self.insert_native(&mut map, piece) {
                return;
            }
            self.adopt_native(&mut map);
        }
        self.drop_native(&mut map, start, end);
        self.manage(&mut map, Range { start, end, ..Range::of_program(flags) });
    }

    /// A fault message read by somebody who does not serve faults: its thread looks again, and a handler gets the next message.
    pub fn wake_any(&self, addr: usize) {
        let map = self.map.read();
        self.wake(&map, addr & !(PAGE_SIZE - 1), PAGE_SIZE);
    }

    /// Registers a range and takes over the pages that are there.
    pub fn manage(&self, map: &mut Space<K>, range: Range) {
        let range = Range { kind: Kind::Managed, ..range };
        if map.program.register(range.start, range.end - range.start).is_err() {
            return; // the kernel will not have it (a special mapping): it stays the kernel's
        }
        map.ranges.remove(range.start, range.end, |_| {}); // known already in part: pages that are known stay as they are
        if !map.ranges.insert(range) {
            self.stop_ranges_full();
        }
        let mut core = self.core.lock();
        let adopt = |start: usize, end: usize| {
            for addr in (start..end).step_by(PAGE_SIZE) {
                core.vm.adopt(range.page(addr));
            }
        };
        K::each_present(range.start, range.end, adopt);
    }

    /// Takes over every native range. The charge falls from their size to what is in memory.
    pub fn adopt_native(&self, map: &mut Space<K>) {
        while let Some(range) = map.ranges.overlap(0, usize::MAX, Kind::Native) {
            map.ranges.remove(range.start, range.end, |_| {});
            Self::unreserve(&mut self.core.lock(), range.pages());
            self.manage(map, range);
        }
        self.core.lock().vm.set_reserved(0);
    }

    /// Takes over the native ranges in `start..end`, and those that they join: what becomes of them is in events from here on.
    ///
    /// (Only what lies in `start..end` was taken over: the rest of a mapping that reaches beyond, or of one in which a part has
    /// guard pages, was left to the kernel. One mapping of the program's was two then, and mremap(2) of both said EFAULT.)
    pub fn adopt_native_of(&self, mut start: usize, mut end: usize) {
        let mut map = self.map.write();
        let reaches = |map: &Space<K>, addr: usize| map.ranges.find(addr).is_some_and(|r| r.kind == Kind::Native);
        while start > 0 && reaches(&map, start - 1) {
            start = map.ranges.find(start - 1).map_or(0, |r| r.start);
        }
        while reaches(&map, end) {
            end = map.ranges.find(end).map_or(end, |r| r.end);
        }
        while let Some(r) = map.ranges.overlap(start, end, Kind::Native) {
            map.ranges.remove(r.start, r.end, |_| {});
            Self::unreserve(&mut self.core.lock(), r.pages());
            self.manage(&mut map, r);
        }
    }

    /// Native ranges in `start..end` are gone (no event tells of them).
    pub fn drop_native(&self, map: &mut Space<K>, start: usize, end: usize) {
        let mut at = start;
        while let Some(r) = map.ranges.overlap(at, end, Kind::Native) {
            let piece = r.within(at, end);
            map.ranges.remove(piece.start, piece.end, |_| {});
            Self::native_gone(&mut self.core.lock(), piece);
            at = piece.end;
        }
    }

    /// A system call is about to unmap, replace or move the range: its native parts, of which no event will tell, are taken out of
    /// the map. `None` if they are too many, or there are managed parts as well: then [`Machine::adopt_native_of`] is due before
    /// the call. (The event will be of the whole range, and another thread's new range could lie where a native part was.)
    pub fn take_native(&self, start: usize, end: usize) -> Option<Pieces> {
        let mut pieces = Pieces::default();
        if self.map.read().ranges.overlap(start, end, Kind::Native).is_none() {
            return Some(pieces);
        }
        let mut map = self.map.write();
        if map.ranges.overlap(start, end, Kind::Managed).is_some() {
            return None;
        }
        let mut at = start;
        while let Some(r) = map.ranges.overlap(at, end, Kind::Native) {
            let r = r.within(at, end);
            *pieces.list.get_mut(pieces.count)? = Piece { start: r.start, end: r.end, flags: r.flags };
            pieces.count += 1;
            at = r.end;
        }
        for piece in pieces.iter() {
            map.ranges.remove(piece.start, piece.end, |_| {});
            Self::unreserve(&mut self.core.lock(), ((piece.end - piece.start) >> PAGE_SHIFT) as u64);
        }
        Some(pieces)
    }

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

    /// When mremap(2) moves a locked mapping and makes it longer, it brings in what is new before it reports the move, and until
    /// that has been read nobody can fill a page. So such a page, which `thread` misses in its call, is left to the kernel until
    /// the call has returned. Returns whether it is one.
    pub fn leave_growth(&self, map: &Space<K>, addr: usize, thread: u32) -> bool {
        let grows = map.remaps.grows(addr, thread, map.ranges.find(addr).is_some()) && map.program.is_changing();
        // SAFETY: it is new, so it has no content.
        grows && unsafe { map.program.unregister(addr, PAGE_SIZE) }.is_ok()
    }

    /// The call has returned, so that its events have been read. `done`: it was not refused.
    ///
    /// Linux reports an unmapping before it knows that it can be made: it stops at a sealed mapping, or there is not memory enough
    /// for what is to be there instead. Who believed it lost what was paged out there.
    pub fn end_remap(&self, done: bool) {
        let mut map = self.map.write();
        if let Some((start, end)) = map.remaps.end(K::thread_id()) {
            self.follow_unmap(&mut map, start, end, !done);
            self.drop_places(&map, false);
        }
    }

    /// The call has been made: what it took the place of, or moved, is wired no more.
    pub fn gone(&self, pieces: &Pieces) {
        let map = self.map.write();
        for &Piece { start, end, .. } in pieces.iter() {
            let mut at = start;
            while at < end {
                let since = map.ranges.first(at, end); // another thread's, by now
                let until = since.map_or(end, |r| r.start.max(at));
                if at < until {
                    let gone = Range { start: at, end: until, ..Range::of_program(Flags::NONE) };
                    self.core.lock().vm.unwire_range(gone.page(at), gone.pages());
                }
                at = since.map_or(end, |r| r.end);
            }
        }
    }

    /// The kernel has refused the call: this piece is still there, if its place was not taken before it came to that. Returns
    /// `false` if it is to be managed now; then [`Machine::add_range`] is due.
    #[must_use]
    pub fn put_back(&self, piece: &Piece) -> bool {
        let &Piece { start, end, flags } = piece;
        if !K::is_mapped(start, end) {
            return true;
        }
        let mut map = self.map.write();
        if map.ranges.first(start, end).is_some() {
            return true;
        }
        // what lies next to it, and is one mapping with it, may have been taken over during the call
        if Self::joins_managed(&map, *piece) {
            return false;
        }
        // Even if it no longer fits the budget: then the page daemon adopts it.
        self.reserve_native(&mut map, Range { start, end, kind: Kind::Native, ..Range::of_program(flags) });
        let short = self.core.lock().vm.wants_daemon();
        drop(map);
        if short {
            self.ring_daemon();
        }
        true
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

    /// Pages that must never leave memory (a thread's descriptor), by address. They need not be managed yet.
    pub fn wire_addresses(&self, object: ObjectId, origin: usize, start: usize, end: usize) {
        let touch = |addr: usize| {
            // SAFETY: the caller's memory, mapped readable; a read brings the page in through the ordinary fault path.
            unsafe { K::touch_directly(addr) };
            true
        };
        self.wire_each(object, origin, start, end, touch);
    }

    /// As [`Machine::wire_addresses`]: `touch` brings in the page at an address. Returns `false` if it could not.
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
                if !core.vm.wire(page, true) {
                    drop(core);
                    self.stop_table_full();
                }
                break;
            }
        }
        true
    }

    /// Brings in what is managed in a range, to stay. Returns `false` if that cannot be: it may not be read, or is too much.
    pub fn keep_in(&self, start: usize, end: usize) -> bool {
        let mut at = start;
        loop {
            let range = self.map.read().ranges.overlap(at, end, Kind::Managed);
            let Some(piece) = range.map(|range| range.within(at, end)) else { return true };
            let touch = |addr: usize| K::touch(addr);
            let fits = piece.end - piece.start <= KEEP_IN_MAX;
            if !fits || !self.wire_each(piece.object, piece.origin, piece.start, piece.end, touch) {
                return false;
            }
            at = piece.end;
        }
    }

    /// A registered address was touched that is in no range: memory that has grown by a call that was not followed. It is managed
    /// from now on, as far as its mapping goes. => nothing is known at the address
    pub fn find_grown(&self, map: &mut Space<K>, addr: usize) {
        let mut mapping = (addr, addr + PAGE_SIZE); // if it cannot be asked for
        let _ = K::each_mapping(|start, end| {
            if (start..end).contains(&addr) {
                mapping = (start, end);
            }
        });
        let mut grown = Range { start: mapping.0, end: mapping.1, ..Range::of_program(Flags::NONE) };
        for r in map.ranges.iter() {
            if r.end <= addr && r.end > mapping.0 {
                (grown.start, grown.flags) = (r.end, r.flags);
            } else if r.start > addr {
                grown.end = grown.end.min(r.start);
                break;
            }
        }
        self.manage(map, grown);
    }

    /// The program has said what its forked children are to find here, for which there are no events. Returns `false` if there is
    /// no room to remember it.
    #[must_use]
    pub fn wiped_on_fork(&self, start: usize, end: usize, wiped: bool) -> bool {
        let change = |flags: Flags| if wiped { flags.with(Flags::WIPE) } else { flags.without(Flags::WIPE) };
        self.map.write().ranges.change(start, end, change)
    }

    /// What is managed in a range is the kernel's from now on, and no longer known. => [`Machine::keep_in`] has brought it in
    pub fn hand_over(&self, start: usize, end: usize) {
        let mut map = self.map.write();
        let mut at = start;
        while let Some(range) = map.ranges.overlap(at, end, Kind::Managed) {
            let piece = range.within(at, end);
            at = piece.end;
            // SAFETY: all of it that has content is in memory, and stays there.
            if unsafe { map.program.unregister(piece.start, piece.end - piece.start) }.is_ok() {
                Self::unmapped(&mut map, &mut self.core.lock(), piece.start, piece.end);
            }
        }
        self.drop_places(&map, true);
    }

    /// Whether faults of the whole process have to wait for a fork that is being made.
    pub fn is_frozen(&self) -> bool {
        self.frozen.load(Acquire) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More discards were under way than there was room for, and the oldest was forgotten: pages of it that were parked before it
    /// had been carried out would have come back with what the program had thrown away.
    #[test]
    fn no_discard_is_forgotten() {
        let mut discards = Discards::new();
        let many = 3 * DISCARDS_MAX;
        let page = |i: usize| (i * 0x9E37 % many) * 2 * PAGE_SIZE;
        (0..many).for_each(|i| discards.add(page(i), page(i) + PAGE_SIZE, 0));
        assert!((0..many).all(|i| discards.covers(page(i), || 1)));
        let mut discards = Discards::new();
        discards.add(5 * PAGE_SIZE, 6 * PAGE_SIZE, 0);
        discards.add(0, 10 * PAGE_SIZE, 0);
        discards.done(0, 10 * PAGE_SIZE, 1);
        assert!(discards.covers(5 * PAGE_SIZE, || 1) && !discards.covers(PAGE_SIZE, || 1), "another thread's, within");
    }

    #[test]
    fn what_was_pending_is_not_news() {
        let mut pending = PendingUnmaps::new();
        let news = |pending: &mut PendingUnmaps, start, end| {
            let (mut at, mut found) = (start, Vec::new());
            while at < end {
                let (until, next) = pending.settle(at, end);
                found.extend((at < until).then_some((at, until)));
                at = next;
            }
            found
        };
        assert_eq!(news(&mut pending, 10, 20), [(10, 20)]);
        pending.add(30, 40);
        pending.add(10, 20);
        assert_eq!(news(&mut pending, 15, 20), [(15, 20)], "another one");
        assert_eq!(news(&mut pending, 5, 50), [(5, 10), (20, 30), (40, 50)]);
        assert_eq!(news(&mut pending, 5, 50), [(5, 50)], "once");
        pending.add(10, 20);
        assert_eq!(news(&mut pending, 10, 20), []);
        pending.add(10, 20);
        pending.cancel(10, 20);
        assert_eq!(news(&mut pending, 10, 20), [(10, 20)]);
    }
}

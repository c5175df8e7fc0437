//! What happens to address ranges: new ones, events, adoption, wiring. All under the exclusive map lock.
//!
//! **Native until it matters.** A new range that fits the budget as a whole is left to the kernel and charged in full: while
//! everything fits, the program runs at the kernel's speed and the promise still holds. When frames get short, all native ranges are
//! adopted: registered, and their present pages taken over one by one.

use crate::machine::{Core, Machine, Space};
use crate::ranges::{Kind, Range};
use crate::sys::{self, Errno, futex_wait, sys};
use crate::uffd::{Event, Message};
use core::sync::atomic::{AtomicU32, Ordering::*};
use overspill_vm::page::State;
use overspill_vm::types::{ObjectId, PAGE_SHIFT, PAGE_SIZE, PageId};

/// Messages are read so many at a time.
const MESSAGES: usize = 16;
/// How often [`Machine::await_unmaps`] looks, how long it waits in between, in nanoseconds: ten seconds in all.
const UNMAPS_PATIENCE: u32 = 100_000;
const UNMAPS_LOOK_NS: u64 = 100_000;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const PAGEMAP_SCAN: u64 = 3 << 30 | (size_of::<ScanArg>() as u64) << 16 | (b'f' as u64) << 8 | 16;
const PAGE_IS_PRESENT: u64 = 1 << 3;

/// Calls `f(start, end)` for each run of present pages in the range, in bytes; some of them twice if that is not to be had at once.
fn each_present(start: usize, end: usize, mut f: impl FnMut(usize, usize)) {
    // Without a descriptor to be had (RLIMIT_NOFILE is the program's), or where /proc is root's (PR_SET_DUMPABLE), each page is asked for.
    if scan_present(start, end, &mut f).is_err() {
        sys::each_resident(start, end, |at| f(at, at + PAGE_SIZE));
    }
}

fn scan_present(start: usize, end: usize, mut f: impl FnMut(usize, usize)) -> Result<(), i32> {
    // (of the thread: when the first thread has ended, the process's is empty)
    let pagemap = sys::open(b"/proc/thread-self/pagemap\0", libc::O_RDONLY | libc::O_CLOEXEC, 0)?;
    let mut regions = [PageRegion::default(); 64];
    let mut at = start;
    while at < end {
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            start: at as u64,
            end: end as u64,
            vec: regions.as_mut_ptr() as u64,
            vec_len: regions.len() as u64,
            category_mask: PAGE_IS_PRESENT,
            return_mask: PAGE_IS_PRESENT,
            ..ScanArg::default()
        };
        // SAFETY: the kernel reads and writes the structure and at most `vec_len` regions, both live.
        let n = unsafe { sys!(libc::SYS_ioctl, pagemap.raw(), PAGEMAP_SCAN, &mut arg as *mut _) }?;
        for r in &regions[..n] {
            f(r.start as usize, r.end as usize);
        }
        if arg.walk_end as usize <= at {
            break;
        }
        at = arg.walk_end as usize;
    }
    Ok(())
}

/// Ranges whose discard the kernel has announced and may not have done yet. Reading the announcement lets the discard go on, and
/// nothing tells of its end: a page parked in between would come back with content that the program has thrown away. So pages of
/// these ranges are not parked until the wrapped call has returned, or, if the call was not a wrapped one, for a while.
///
/// (Taking the mapped pages away instead, as long as the announcement is being read, is wrong: after MADV_FREE they stay mapped, and
/// the program may have written to them by then. It lost a page once in twelve runs of `tests/programs/calls.c`.)
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
    fn add(&mut self, start: usize, end: usize) {
        let now = sys::now_ns();
        let at = (0..DISCARDS_MAX).min_by_key(|i| self.ranges[*i].2).unwrap_or(0);
        self.ranges[at] = (start, end, now + DISCARD_NS);
        self.recount(now);
    }
    fn done(&mut self, start: usize, end: usize) {
        if let Some(r) = self.ranges.iter_mut().find(|r| r.2 != 0 && r.0 >= start && r.1 <= end) {
            *r = (0, 0, 0);
        }
        self.recount(sys::now_ns());
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
    pub fn covers(&self, addr: usize) -> bool {
        self.count.load(Relaxed) != 0 && {
            let now = sys::now_ns();
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
/// The kernel gives addresses out again before it reports that they came free. A move is reported first, and only when that has been read
/// the unmapping of where it came from; meanwhile another thread's move may have come to that very place, and its report was read. What
/// followed took the new pages for those that had gone: they read as zeroes.
#[derive(Debug)]
pub struct Owed {
    ranges: [(usize, usize); OWED_MAX],
    next: usize,
}

/// One for each thread that is just unmapping or moving.
const OWED_MAX: usize = 256;

impl Owed {
    /// None.
    pub fn new() -> Self {
        Owed { ranges: [(0, 0); OWED_MAX], next: 0 }
    }
    /// The unmapping of this range, or of more, has taken place as far as the pager is concerned.
    fn add(&mut self, start: usize, end: usize) {
        self.ranges[self.next] = (start, end); // the oldest goes if there are too many
        self.next = (self.next + 1) % OWED_MAX;
    }
    /// There will be no such report.
    pub fn cancel(&mut self, start: usize, end: usize) {
        self.ranges.iter_mut().filter(|r| **r == (start, end)).for_each(|r| *r = (0, 0));
    }
    /// An unmapping of `at..end` was reported. Up to where it is news, and from where on again. => at < end
    fn settle(&mut self, at: usize, end: usize) -> (usize, usize) {
        let within = self.ranges.iter_mut().filter(|r| at <= r.0 && r.0 < r.1 && r.1 <= end);
        within.min_by_key(|r| r.0).map_or((end, end), core::mem::take)
    }
}

impl Default for Owed {
    fn default() -> Self {
        Self::new()
    }
}

impl Machine {
    /// A wrapped discard has returned.
    pub fn discard_done(&self, start: usize, end: usize) {
        self.map.write().discards.done(start, end);
    }

    /// Reads waiting messages. Events are followed at once; addresses of faults are given to `fault`, after the lock is free.
    /// Returns whether there may be more.
    pub fn read_messages(&self, mut fault: impl FnMut(usize, u32)) -> bool {
        let mut messages = [Message::default(); MESSAGES];
        let mut map = self.map.write();
        let n = map.program.read(&mut messages);
        for message in &messages[..n] {
            match message.decode() {
                Event::Fault(..) | Event::Other => {}
                event => self.follow(&mut map, event),
            }
        }
        drop(map);
        for message in &messages[..n] {
            if let Event::Fault(addr, tid) = message.decode() {
                fault(addr, tid);
            }
        }
        n == MESSAGES
    }

    /// An unmap, discard or move of managed memory that the kernel has reported.
    fn follow(&self, map: &mut Space, event: Event) {
        self.status.counters.events.add(1);
        match event {
            Event::Unmap(start, end) => {
                let mut at = start;
                while at < end {
                    let (until, next) = map.owed.settle(at, end);
                    Self::unmapped(map, &mut self.core.lock(), at, until);
                    at = next;
                }
            }
            Event::Remove(start, end) if map.copying.discarded(start, end) => {} // by the page daemon
            Event::Remove(start, end) => {
                let mut at = start;
                while let Some(r) = map.ranges.overlap(at, end, Kind::Managed) {
                    let piece = Range { start: r.start.max(at), end: r.end.min(end), ..r };
                    self.give_up(piece, true);
                    at = piece.end;
                }
                map.discards.add(start, end);
            }
            Event::Remap(from, to, len) => {
                let Some(r) = map.ranges.find(from).copied() else { return };
                if r.kind != Kind::Managed {
                    return;
                }
                let moved = Range { start: to, end: to + len, ..r };
                while let Some(old) = map.ranges.overlap(to, to + len, Kind::Managed) {
                    // somebody unmapped it, and has yet to say so
                    let (start, end) = (old.start.max(to), old.end.min(to + len));
                    Self::unmapped(map, &mut self.core.lock(), start, end);
                    map.owed.add(start, end);
                }
                map.ranges.remove(from, from + len, |_| {});
                map.owed.add(from, from + len);
                let _ = map.ranges.insert(moved);
                if !self.core.lock().vm.rename_range(r.page(from), moved.page(to), (len >> PAGE_SHIFT) as u64) {
                    self.stop_table_full();
                }
                while let Some(w) = map.wiped.overlap(from, from + len, Kind::Managed) {
                    let piece = Range { start: w.start.max(from), end: w.end.min(from + len), ..w };
                    map.wiped.remove(piece.start, piece.end, |_| {});
                    let _ = map.wiped.insert(Range { start: piece.start - from + to, end: piece.end - from + to, ..w });
                }
            }
            Event::Fault(..) | Event::Other => {}
        }
        self.drop_places(map, false);
    }

    /// The range is gone, and what was in it.
    fn unmapped(map: &mut Space, core: &mut Core, start: usize, end: usize) {
        map.wiped.remove(start, end, |_| {});
        map.ranges.remove(start, end, |gone| match gone.kind {
            Kind::Managed => Self::give_up_of(core, gone, false),
            Kind::Native => Self::native_gone(core, gone),
        });
    }

    /// A region of the library's is gone, or its content is: no event tells of it with in-thread delivery. The caller has the kernel
    /// drop the pages under the same lock. `unmapped`: the range itself is gone too.
    pub fn forget_range(&self, map: &mut Space, start: usize, end: usize, unmapped: bool) {
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

    /// The program wants (or no longer wants) its forked children to find the range empty: MADV_WIPEONFORK, MADV_KEEPONFORK, for which
    /// there are no events. Returns `false` if there is no room to remember it.
    #[must_use]
    pub fn wipe_on_fork(&self, start: usize, end: usize, wipe: bool) -> bool {
        let mut map = self.map.write();
        map.wiped.remove(start, end, |_| {});
        !wipe || start >= end || map.wiped.insert(Range { start, end, kind: Kind::Managed, object: ObjectId(0), origin: 0 })
    }

    /// In a fork's child: registers what it has of the managed ranges, and gives up what it has not: MADV_DONTFORK, or a range that another thread
    /// unmapped in the moment of the fork, of which nobody will hear here.
    ///
    /// # Errors
    /// Its mappings cannot be read or registered.
    pub fn inherit_ranges(&self, map: &mut Space, core: &mut Core) -> Result<(), Errno> {
        let (mut at, mut result) = (0, Ok(()));
        sys::each_mapping(|start, end| {
            Self::unmapped(map, core, at, start);
            at = start;
            while let Some(r) = map.ranges.overlap(at, end, Kind::Managed) {
                let piece = Range { start: r.start.max(at), end: r.end.min(end), ..r };
                match map.program.register(piece.start, piece.end - piece.start) {
                    Ok(()) => {}
                    Err(libc::EINVAL) => Self::unmapped(map, core, piece.start, piece.end), // something else is there by now
                    Err(e) => result = Err(e),
                }
                at = piece.end;
            }
            at = end;
        })?;
        Self::unmapped(map, core, at, usize::MAX);
        map.owed = Owed::new();
        result
    }

    /// In a fork's child: what is to be empty there is. The kernel has done it with what was mapped; the pager's share is what was not.
    pub fn wipe(&self, map: &Space, core: &mut Core) {
        for w in map.wiped.iter() {
            let mut at = w.start;
            while let Some(r) = map.ranges.overlap(at, w.end, Kind::Managed) {
                let piece = Range { start: r.start.max(at), end: r.end.min(w.end), ..r };
                Self::give_up_of(core, piece, false);
                at = piece.end;
            }
        }
    }

    /// The pages of a piece are given up: their content is forgotten. `keep_mapped`: but for those that are mapped.
    fn give_up(&self, piece: Range, keep_mapped: bool) {
        Self::give_up_of(&mut self.core.lock(), piece, keep_mapped);
    }

    fn give_up_of(core: &mut Core, piece: Range, keep_mapped: bool) {
        let (vm, park, drops) = (&mut core.vm, &mut core.park, &mut core.drops);
        let mut parked = 0;
        let forget = |frame| {
            parked += 1;
            if let Some(place) = park.disown(frame) {
                drops.push(place);
            }
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
    pub fn try_native(&self, start: usize, end: usize) -> bool {
        let mut map = self.map.write();
        // over a range whose unmapping has yet to be read: the event must be followed first
        !map.is_settling(start, end) && self.insert_native(&mut map, start, end)
    }

    fn insert_native(&self, map: &mut Space, start: usize, end: usize) -> bool {
        self.drop_native(map, start, end);
        let pages = ((end - start) >> PAGE_SHIFT) as u64;
        let mut core = self.core.lock();
        let margin = core.vm.free_high() as u64 * 2;
        let fits = core.vm.charge_total() + pages + margin <= core.vm.limit() as u64;
        let range = Range { start, end, kind: Kind::Native, object: ObjectId(0), origin: 0 };
        // what is left to the kernel cannot be recorded
        if !fits || self.record.is_some() || !map.ranges.insert(range) {
            return false;
        }
        let total = core.vm.reserved() + pages;
        core.vm.set_reserved(total);
        true
    }

    /// To be called before a new mapping is managed. What was at its addresses before is gone, and if that was managed an event tells of it,
    /// which must be followed first: it would be taken for the end of the new mapping. The kernel gives the addresses out before it
    /// sends the event, so that may take until the thread that unmapped has run again.
    pub fn await_unmaps(&self, start: usize, end: usize) {
        for _ in 0..UNMAPS_PATIENCE {
            while self.read_messages(|addr, _| self.wake_any(addr)) {}
            if !self.map.read().is_settling(start, end) {
                return;
            }
            futex_wait(&AtomicU32::new(0), 0, UNMAPS_LOOK_NS);
        }
    }

    /// The program has a new anonymous private range.
    pub fn add_range(&self, start: usize, end: usize) {
        self.await_unmaps(start, end);
        let mut map = self.map.write();
        if map.ranges.overlap(start, end, Kind::Managed).is_none() && self.insert_native(&mut map, start, end) {
            return;
        }
        self.adopt_native(&mut map);
        self.manage(&mut map, Range { start, end, kind: Kind::Managed, object: ObjectId(0), origin: 0 });
    }

    /// A fault message read by somebody who does not serve faults: its thread looks again, and a handler gets the next message.
    pub(crate) fn wake_any(&self, addr: usize) {
        let map = self.map.read();
        self.wake(&map, addr & !(PAGE_SIZE - 1), PAGE_SIZE);
    }

    /// Registers a range and takes over the pages that are there.
    pub fn manage(&self, map: &mut Space, range: Range) {
        let range = Range { kind: Kind::Managed, ..range };
        map.ranges.remove(range.start, range.end, |_| {}); // known already in part: pages that are known stay as they are
        if map.program.register(range.start, range.end - range.start).is_err() || !map.ranges.insert(range) {
            return; // the kernel will not have it (a special mapping): it stays the kernel's
        }
        let mut core = self.core.lock();
        let adopt = |start: usize, end: usize| {
            for addr in (start..end).step_by(PAGE_SIZE) {
                core.vm.adopt(range.page(addr));
            }
        };
        each_present(range.start, range.end, adopt);
    }

    /// Takes over every native range. The charge falls from their size to what is in memory.
    pub fn adopt_native(&self, map: &mut Space) {
        while let Some(range) = map.ranges.overlap(0, usize::MAX, Kind::Native) {
            map.ranges.remove(range.start, range.end, |_| {});
            Self::unreserve(&mut self.core.lock(), range.pages());
            self.manage(map, range);
        }
        self.core.lock().vm.set_reserved(0);
    }

    /// Native ranges in `start..end` are gone (no event tells of them). Returns whether there were any.
    pub fn drop_native(&self, map: &mut Space, start: usize, end: usize) -> bool {
        map.wiped.remove(start, end, |_| {});
        let mut at = start;
        while let Some(r) = map.ranges.overlap(at, end, Kind::Native) {
            let piece = Range { start: r.start.max(at), end: r.end.min(end), ..r };
            map.ranges.remove(piece.start, piece.end, |_| {});
            Self::native_gone(&mut self.core.lock(), piece);
            at = piece.end;
        }
        at > start
    }

    /// A range was unmapped by a wrapped call: native parts have no event, managed parts do. Returns whether there were native ones.
    pub fn removed_range(&self, start: usize, end: usize) -> bool {
        if self.map.read().ranges.overlap(start, end, Kind::Native).is_none() {
            return false;
        }
        // the daemon may have adopted it in between: then there is an event
        self.drop_native(&mut self.map.write(), start, end)
    }

    /// A managed range was moved or resized by a followed mremap: it is at `new` now. A move was reported as an event; growth is not.
    pub fn resized_range(&self, old_len: usize, new: usize, new_len: usize) {
        while self.read_messages(|addr, _| self.wake_any(addr)) {}
        if new_len <= old_len {
            return;
        }
        self.await_unmaps(new + old_len, new + new_len);
        let mut map = self.map.write();
        if map.ranges.find(new).is_some_and(|r| r.kind == Kind::Managed) {
            let (start, end) = (new + old_len, new + new_len);
            self.drop_native(&mut map, start, end);
            let grown = Range { start, end, kind: Kind::Managed, object: ObjectId(0), origin: 0 };
            self.manage(&mut map, grown);
            if map.wiped.find(start - 1).is_some() {
                let _ = map.wiped.insert(grown); // it joins
            }
        }
    }

    /// Pages that must never leave memory (a thread's descriptor), by address. They need not be managed yet.
    pub fn wire_addresses(&self, object: ObjectId, origin: usize, start: usize, end: usize) {
        let first = (start - origin) >> PAGE_SHIFT;
        let last = (end - 1 - origin) >> PAGE_SHIFT;
        for index in first..=last {
            let page = PageId::new(object, index as u64);
            loop {
                let mut core = self.core.lock();
                let word = core.vm.page(page);
                if matches!(word.state(), State::Inactive | State::Clean | State::PagedOut) || word.busy() {
                    drop(core);
                    // SAFETY: the caller's memory, mapped readable; a read brings the page in through the ordinary fault path.
                    unsafe { core::ptr::read_volatile((origin + (index << PAGE_SHIFT)) as *const u8) };
                    continue;
                }
                core.vm.wire(page, true);
                break;
            }
        }
    }

    /// Whether faults of the whole process have to wait for a fork that is being made.
    pub fn is_frozen(&self) -> bool {
        self.frozen.load(Acquire) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_spec;
    use crate::machine::Delivery;
    use crate::setup::{self, Options};
    use overspill_vm::status::Status;

    #[test]
    fn what_was_owed_is_not_news() {
        let mut owed = Owed::new();
        let news = |owed: &mut Owed, start, end| {
            let (mut at, mut found) = (start, Vec::new());
            while at < end {
                let (until, next) = owed.settle(at, end);
                found.extend((at < until).then_some((at, until)));
                at = next;
            }
            found
        };
        assert_eq!(news(&mut owed, 10, 20), [(10, 20)]);
        owed.add(30, 40);
        owed.add(10, 20);
        assert_eq!(news(&mut owed, 15, 20), [(15, 20)], "another one");
        assert_eq!(news(&mut owed, 5, 50), [(5, 10), (20, 30), (40, 50)]);
        assert_eq!(news(&mut owed, 5, 50), [(5, 50)], "once");
        owed.add(10, 20);
        assert_eq!(news(&mut owed, 10, 20), []);
        owed.add(10, 20);
        owed.cancel(10, 20);
        assert_eq!(news(&mut owed, 10, 20), [(10, 20)]);
    }

    /// One thread moves its pages from A to B. Before the kernel reports that A is unmapped, another thread's pages have come there from C,
    /// which is reported before. The pager took the report that followed for the end of the second thread's pages: they read as zeroes.
    #[test]
    fn a_late_unmap_does_not_take_what_has_come_there_since() {
        let swap =
            [device_spec::parse(std::env::temp_dir().join(format!("late-{}", std::process::id())).as_os_str()).expect("a place")];
        let status: &'static Status = Box::leak(Box::default());
        let options = Options {
            memory_bytes: 8 << 20,
            swap: &swap,
            policy: "fifo".parse().expect("a policy"),
            engine: crate::io::Engine::Psync,
            delivery: Delivery::InThread,
            encrypt: false,
            load_control: false,
            follow_pointers: false,
            pages_max: 1 << 20,
            objects_max: 1,
            readers: 0,
            ahead_pages_max: None,
            decisions_max: 0,
        };
        let machine = match setup::machine(&options, status) {
            Ok(machine) => machine,
            Err(e) => {
                eprintln!("SKIPPED: {e}");
                assert!(std::env::var_os("CI").is_none(), "cannot be tested here");
                return;
            }
        };
        const LEN: usize = 4 * PAGE_SIZE;
        // addresses count from the mapping: one object, whose pages are numbered from there
        let base = sys::map_anonymous(3 * LEN).expect("48 KiB") as usize;
        let [a, b, c] = [0, 1, 2].map(|i| base + i * LEN);
        let range = |start| Range { start, end: start + LEN, kind: Kind::Managed, object: ObjectId(0), origin: base };
        let mut map = machine.map.write();
        for (start, byte) in [(a, 1u8), (c, 3)] {
            // SAFETY: our own mapping.
            unsafe { core::ptr::write_bytes(start as *mut u8, byte, LEN) };
            machine.manage(&mut map, range(start));
        }
        let there = |map: &Space, start: usize| {
            let managed = map.ranges.overlap(start, start + LEN, Kind::Managed).map(|r| r.pages());
            let core = machine.core.lock();
            let pages = (0..4).filter(|i| core.vm.page(range(start).page(start + i * PAGE_SIZE)).state() == State::Active).count();
            (managed, pages)
        };
        let gone = (None, 0);
        assert_eq!((there(&map, a).1, there(&map, b), there(&map, c).1), (4, gone, 4));
        machine.follow(&mut map, Event::Remap(a, b, LEN));
        machine.follow(&mut map, Event::Remap(c, a, LEN));
        machine.follow(&mut map, Event::Unmap(a, a + LEN));
        assert_eq!((there(&map, a).1, there(&map, b).1, there(&map, c)), (4, 4, gone), "what came to A is there");
        machine.follow(&mut map, Event::Unmap(c, c + LEN));
        // a plain unmap may be overtaken as well
        machine.follow(&mut map, Event::Remap(a, b, LEN));
        assert_eq!((there(&map, a), there(&map, b).1), (gone, 4));
        machine.follow(&mut map, Event::Unmap(b, b + LEN));
        machine.follow(&mut map, Event::Unmap(a, a + LEN));
        assert_eq!(there(&map, b).1, 4);
        machine.follow(&mut map, Event::Unmap(b, b + LEN));
        assert_eq!(there(&map, b), gone);
        machine.core.lock().vm.check(1);
        drop(map);
        // SAFETY: nobody uses it any more.
        unsafe { sys::unmap(base as *mut u8, 3 * LEN) };
    }
}

//! The page daemon: keeps frames free by parking, laundering and reclaiming in batches.
//!
//! ```text
//!   park      take victims from the policy; MOVE runs of neighbouring pages out of sight            map shared, one batch
//!   launder   hash parked pages; unchanged -> clean, zero -> dropped, else write in clusters        no lock while hashing, writing
//!             (encrypted: each write's pages are sealed into its buffer)
//!   reclaim   discard the parked content of clean pages, many with one TLB flush                    map shared, one batch
//!
//!   at rest   swap space that stays free goes back to the file system (growth.rs)                   no lock in the system call
//! ```
//!
//! What goes to a compressed device is packed and stored here and now; what that refuses is written to the next one.
//!
//! Each step takes the locks anew and works on one batch, so a fault never waits longer for the daemon than for one batch's ioctl.

use crate::copy_out::COPY_PAGES;
use crate::errno::{self, Errno};
use crate::growth::{self, GiveBack};
use crate::kernel::{
    Advice, Content as _, Done, Futex as _, Host, Io as _, IoVec, Kernel, Limit, Mappings as _, Mistake, Moved, Uffd, prot,
};
use crate::lock::{ReadGuard, Word as _};
use crate::machine::{Delivery, Machine, Space};
use crate::packet::Packet;
use crate::park::{Area, ParkPlace};
use crate::reader::{self, TOKEN_OTHER};
use crate::write_back::WriteBack;
use core::fmt::Write as _;
use core::sync::atomic::Ordering::*;
use overspill_store::pool::Refused;
use overspill_store::{PageBytes, checksum};
use overspill_swap::device_stats;
use overspill_vm::pager::IoResult;
use overspill_vm::types::{ContentHash, PAGE_SHIFT, PAGE_SIZE, PageId};
use overspill_vm::{Config, Laundry, Look, Member, PageOut, Parked};

/// Pages per step.
pub const BATCH: usize = 128;
/// Pages per write.
const WRITE_PAGES: usize = 64;
/// Writes in flight.
const WRITES_MAX: usize = 12;
/// The fewest. A batch is launched only while two are free.
const WRITES_MIN: usize = 4;
/// How long it sleeps when nobody rings, in nanoseconds.
const SLEEP_NS: u64 = 500_000_000;
/// How long both memory and swap may be full before the program is stopped, in nanoseconds.
const FULL_GRACE_NS: u64 = 3_000_000_000;

#[derive(Clone, Copy)]
struct Dirty {
    page: PageId,
    place: ParkPlace,
    hash: ContentHash,
    write: bool,
    /// The compressed device has had it: it was stored there or refused.
    packed: bool,
}

struct Write {
    pages: [Dirty; WRITE_PAGES],
    iov: [IoVec; WRITE_PAGES],
    count: usize,
    run: Option<PageOut>,
    /// When it was issued.
    since: u64,
    busy: bool,
}

/// How many writes may be in flight, of how many pages each, for a budget of `memory_pages` pages. Encrypted ones need buffers,
/// which are charged to it: a 128th of it or four clusters, at most 3 MiB.
pub fn writes(memory_pages: u32, sealed: bool) -> (usize, usize) {
    if !sealed {
        return (WRITES_MAX, WRITE_PAGES);
    }
    let pages = (Config::cluster_pages(memory_pages) as usize).min(WRITE_PAGES);
    ((memory_pages as usize / 128 / pages).clamp(WRITES_MIN, WRITES_MAX), pages)
}

/// Pages of buffers for that.
pub fn buffer_pages((count, pages): (usize, usize), sealed: bool) -> usize {
    if sealed { count * pages } else { 0 }
}

/// Moves pages out of the range at `src` to `dst` without copying. Stops at the first page that it cannot move: ENOENT absent,
/// EBUSY pinned, shared, or isolated for a moment (by advice, reclaim, migration), EINVAL the mapping does not allow it, EEXIST
/// `dst` was not empty. Returns whether the kernel said that nothing was done, and was wrong, too.
///
/// Linux 6.18 denies some moves that it has made: if a page's entry changes under its hands (the "accessed" bit will do, which the
/// processor sets and DAMON clears) it tries again, forgets that it did, and then finds `dst` taken by its own move: EEXIST.
/// (Mended by "userfaultfd: reset err to be 0 when move_pages_ptes succeeded", August 2026.) Whoever believes it loses the page. If
/// `src` has nothing in memory any more, what is at `dst` is the page.
///
/// # Safety
/// As [`Uffd::move_pages`].
pub unsafe fn take<K: Kernel>(parking: &K::Uffd, dst: usize, src: usize, len: usize) -> (Moved, bool) {
    // SAFETY: the caller's promise.
    let moved = unsafe { parking.move_pages(dst, src, len) };
    if moved.error == Some(errno::EEXIST) && !K::mistake(Mistake::BelievesDenials) && !K::is_resident(src) {
        return (Moved { bytes: PAGE_SIZE, error: None }, true);
    }
    (moved, false)
}

/// One page daemon.
pub struct Daemon<K: Kernel> {
    io: K::Io,
    pub(crate) batch: Vec<Member>,
    laundry: Vec<Laundry>,
    places: Vec<ParkPlace>,
    dirty: Vec<Dirty>,
    /// Pages of the batch that were EBUSY.
    busy: Vec<PageId>,
    /// Pages of the batch that cannot be moved since their memory is not writable.
    pub(crate) unwritable: Vec<PageId>,
    pub(crate) mappings: K::Mappings,
    /// Locked memory was in the way.
    pub(crate) locked_seen: bool,
    /// How many pages in a row could not be taken.
    fruitless: u32,
    writes: Vec<Write>,
    write_pages: usize,
    /// For each write its pages, if they are encrypted; a page to look at pages with; and those that are copied out.
    buffers: usize,
    buffers_len: usize,
    in_flight: usize,
    write_back: WriteBack<K>,
    stuck_since: u64,
    freed_before: u64,
    /// Why writing failed, the last time since a frame came free.
    trouble: Option<Errno>,
    give_back: GiveBack,
    sharing: <K::Host as Host<K>>::Sharing,
}

/// How storing pages in a compressed device has ended, and how many it took.
enum Packing {
    /// All that there were slots for were stored or refused.
    Done { stored: usize },
    /// It has no room.
    Full { stored: usize },
    /// The budget has no frame for it at the moment.
    NoCredit { stored: usize },
}

/// What a step came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Something was done; there may be more.
    Worked,
    /// Nothing is wanted.
    Idle,
    /// Something is wanted, but all that can be done is to wait for writes.
    Waiting,
    /// Something is wanted and nothing can be done.
    Stuck,
}

impl<K: Kernel> Daemon<K> {
    /// With I/O of its own.
    ///
    /// # Errors
    /// As [`Kernel::io`]; ENOMEM.
    pub fn new(machine: &Machine<K>, engine: K::Engine) -> Result<Self, Errno> {
        let (count, write_pages) = machine.writes;
        let buffers_len = (buffer_pages(machine.writes, machine.content.is_sealed()) + 1 + COPY_PAGES) << PAGE_SHIFT;
        let buffers = K::map_anonymous(buffers_len)? as usize;
        let _ = K::advise(buffers, buffers_len, Advice::WipeOnFork); // a fork's child makes its own
        let none =
            Dirty { page: PageId::from_raw(0), place: ParkPlace::NONE, hash: ContentHash::UNKNOWN, write: false, packed: false };
        let write = || Write {
            pages: [none; WRITE_PAGES],
            iov: [IoVec { base: 0, len: 0 }; WRITE_PAGES],
            count: 0,
            run: None,
            since: 0,
            busy: false,
        };
        Ok(Daemon {
            io: K::io(engine, 32)?,
            batch: Vec::with_capacity(BATCH),
            laundry: Vec::with_capacity(BATCH),
            places: Vec::with_capacity(BATCH),
            dirty: Vec::with_capacity(BATCH),
            busy: Vec::with_capacity(BATCH),
            unwritable: Vec::with_capacity(BATCH),
            mappings: if machine.delivery == Delivery::Threads { K::Mappings::opened() } else { K::Mappings::default() },
            locked_seen: false,
            fruitless: 0,
            writes: (0..count).map(|_| write()).collect(),
            write_pages,
            buffers,
            buffers_len,
            in_flight: 0,
            write_back: WriteBack::new(machine, TOKEN_OTHER + WRITES_MAX as u64)?,
            stuck_since: 0,
            freed_before: 0,
            trouble: None,
            give_back: GiveBack::default(),
            sharing: Default::default(),
        })
    }

    /// Runs until the machine quits: sleeps while nothing is wanted. `each` is called before each step, also while a fork is being
    /// made.
    pub fn run(&mut self, machine: &Machine<K>, mut each: impl FnMut(&Machine<K>)) {
        while !machine.quit.load(Acquire) {
            each(machine);
            if machine.is_frozen() {
                self.settle(machine);
                machine.frozen.wait_for(1, Limit::Tick(10_000_000));
                continue;
            }
            let bell = machine.bell().load(SeqCst);
            let step = self.step(machine);
            self.watch_progress(machine);
            if step != Step::Stuck {
                machine.stuck_since.store(0, Relaxed);
            }
            match step {
                Step::Worked => {}
                Step::Waiting => {
                    self.io.wait(Some(1_000_000));
                    self.reap(machine);
                }
                Step::Idle => {
                    self.fruitless = 0;
                    machine.starved.store(false, Relaxed);
                    if self.in_flight > 0 {
                        self.io.wait(Some(10_000_000));
                        self.reap(machine);
                        continue;
                    }
                    if K::Host::is_aiming(&self.sharing) {
                        continue; // it is there
                    }
                    let sleep = self.before_sleep(machine).unwrap_or(SLEEP_NS);
                    machine.daemon_sleeps.store(1, SeqCst);
                    // a ring between the look above and this store is seen as a changed bell, or finds daemon_sleeps set
                    if !machine.core.lock().vm.wants_daemon() && !machine.quit.load(Acquire) && !machine.is_frozen() {
                        machine.bell().wait_shared(bell, Limit::Tick(sleep));
                    }
                    machine.daemon_sleeps.store(0, SeqCst);
                }
                Step::Stuck => self.stuck(machine),
            }
        }
        self.settle(machine);
    }

    /// Rarely needed work: counters that cost a walk, second copies that never made a batch, space that the file system may have.
    /// Returns how long to sleep if there is more of it, in nanoseconds.
    fn before_sleep(&mut self, machine: &Machine<K>) -> Option<u64> {
        {
            let mut core = machine.core.lock();
            core.vm.metadata_bytes();
            core.vm.devices_mut().retry(true);
        }
        machine.drop_places(&machine.map.read(), true);
        self.give_back.step(machine)
    }

    /// Waits for every write in flight.
    pub fn settle(&mut self, machine: &Machine<K>) {
        while self.in_flight > 0 {
            self.io.wait(Some(10_000_000));
            self.reap(machine);
        }
        let map = machine.map.read();
        machine.drop_places(&map, true);
    }

    /// One batch of whatever is most wanted.
    pub fn step(&mut self, machine: &Machine<K>) -> Step {
        self.step_of(machine, BATCH as u32)
    }

    /// As [`Daemon::step`], with at most `most` pages.
    pub fn step_of(&mut self, machine: &Machine<K>, most: u32) -> Step {
        self.reap(machine);
        K::Host::share(&mut self.sharing, machine);
        {
            let map = machine.map.read();
            machine.drop_places(&map, true);
            if let Some(pool) = &map.pool {
                pool.refill(&mut machine.core.lock().vm);
                pool.trim(machine, &map);
            }
        }
        if machine.has_pool.load(Relaxed) && !machine.is_frozen() {
            self.in_flight += self.write_back.issue(machine, &mut self.io);
        }
        let (demand, native, available, listed) = {
            let core = machine.core.lock();
            core.vm.show_transitions(&machine.status.transitions);
            (core.vm.demand(), core.vm.reserved(), core.vm.available(), core.vm.listed())
        };
        if demand.is_none() {
            return match (available > 0, self.in_flight > 0) {
                (true, _) => Step::Idle,
                (false, true) => Step::Waiting,
                // nothing free and nothing to ask for: everything is wired
                (false, false) => Step::Stuck,
            };
        }
        if native > 0 {
            machine.adopt_native(&mut machine.map.write());
            return Step::Worked;
        }
        if demand.reclaim > 0 {
            self.reclaim(machine, demand.reclaim.min(most));
            return Step::Worked;
        }
        if demand.launder > 0
            && self.in_flight - self.write_back.in_flight() + 2 <= self.writes.len()
            && self.launder(machine, demand.launder.min(most))
        {
            return Step::Worked;
        }
        let all_tried = self.fruitless > listed;
        if demand.park > 0 && (self.park(machine, demand.park.min(most)) || !all_tried) {
            return Step::Worked; // or there are others that can be taken
        }
        if self.in_flight > 0 { Step::Waiting } else { Step::Stuck }
    }

    // ---- park ----

    /// Returns whether any page was parked.
    fn park(&mut self, machine: &Machine<K>, most: u32) -> bool {
        let map = machine.map.read();
        let mut core = machine.core.lock();
        core.vm.park_batch(most, &mut self.batch);
        drop(core);
        if self.batch.is_empty() {
            return false;
        }
        self.batch.sort_unstable();
        self.busy.clear();
        self.unwritable.clear();
        let tried = self.batch.len() as u32;
        let mut any = self.park_batch(machine, map);
        if !self.busy.is_empty() && self.may_be_shared(machine) {
            any |= self.unshare(machine);
        }
        if !self.unwritable.is_empty() {
            any |= self.copy_out(machine);
        }
        self.fruitless = if any { 0 } else { self.fruitless.saturating_add(tried) };
        any
    }

    /// Moves the batch out of sight. Pages that are busy are collected.
    ///
    /// Who reads messages needs the map exclusively, and so does every fault for a moment: it is given to whoever waits between the
    /// moves, each of which flushes TLBs. (Batches of scattered pages held it for 170 us each, an eighth of the time of a program
    /// that thrashed; one in eleven who read messages waited more than 20 us.)
    fn park_batch<'a>(&mut self, machine: &'a Machine<K>, mut map: ReadGuard<'a, Space<K>, K::Word>) -> bool {
        let mut any = false;
        let mut at = 0;
        if map.discards.count.load(Relaxed) != 0 || !map.remaps.is_empty() {
            self.weed_batch(machine, &map, at);
        }
        while at < self.batch.len() {
            let mut n = 1;
            while at + n < self.batch.len() && self.batch[at + n].0.raw() == self.batch[at].0.raw() + n as u64 {
                n += 1;
            }
            let Some((place, n)) = machine.core.lock().park.take(n as u32) else {
                let mut core = machine.core.lock();
                for &(page, _) in &self.batch[at..] {
                    if core.vm.park_done(page, Parked::Refused) {
                        machine.wake(&map, map.addr(page), PAGE_SIZE);
                    }
                }
                break;
            };
            any |= self.park_run(machine, &map, at, n as usize, place);
            at += n as usize;
            if at < self.batch.len() && machine.map.is_wanted() {
                drop(map);
                map = machine.map.read();
                self.weed_batch(machine, &map, at);
            }
        }
        any
    }

    /// Drops from `batch[at..]` what is not to be moved (any more): pages that may be about to be discarded, unmapped or moved, and
    /// those that were while the map was not held.
    pub(crate) fn weed_batch(&mut self, machine: &Machine<K>, map: &Space<K>, at: usize) {
        let mut core = machine.core.lock();
        let mut i = 0;
        self.batch.retain(|&(page, frame)| {
            i += 1;
            let gone = !core.vm.is_parking(page, frame);
            let addr = map.addr(page);
            let discarded = map.discards.covers(addr, K::now_ns) && !K::mistake(Mistake::TakesWhatIsDiscarded);
            let replaced = map.remaps.covers(addr) && !K::mistake(Mistake::TakesWhatIsReplaced);
            let keep = i <= at || !(gone || discarded || replaced);
            if !keep && (gone || core.vm.park_done(page, Parked::Refused)) {
                machine.wake(map, addr, PAGE_SIZE);
            }
            keep
        });
    }

    /// Moves `batch[at..at + n]`, neighbouring pages, to the places from `place` on.
    fn park_run(&mut self, machine: &Machine<K>, map: &Space<K>, at: usize, n: usize, place: ParkPlace) -> bool {
        let addr = map.addr(self.batch[at].0);
        let mut results = [Parked::Yes; BATCH];
        let mut areas = [Area::USUAL; BATCH];
        let mut occupied = [false; BATCH]; // places that were not empty
        let mut done = 0;
        // Up to where the pages' protection is known, and the area for it. A run of several mappings, or of another protection, is
        // refused.
        let (mut known, mut area) = (0, Area::USUAL);
        // Where the page went at which a move ended early, if it went, and in which area that is.
        let mut ended: Option<(usize, Area)> = None;
        while done < n {
            let until = if done < known { known } else { n };
            let to = machine.parking.addr(place.plus(done).in_area(area));
            let from = addr + (done << PAGE_SHIFT);
            // SAFETY: the pages are busy: from here on they are the pager's, and a touch brings them back. Free places are empty.
            let (moved, denied) = unsafe { take::<K>(&map.parking, to, from, (until - done) << PAGE_SHIFT) };
            let pages = moved.bytes >> PAGE_SHIFT;
            areas[done..done + pages].fill(area);
            done += pages;
            // A move that ends early does not say why: the next one does, unless the program has changed the mapping in between
            // (mprotect). So a denied move of that page is told by what is in its place, which was empty. (Found by a seed: a page
            // that had gone read as zeroes.)
            let early = ended.take().filter(|_| moved.error.is_some() && !K::mistake(Mistake::ForgetsDenialsWithin));
            if let Some((_, area)) = early.filter(|(to, _)| K::is_resident(*to) && !K::is_resident(from)) {
                machine.status.counters.moves_denied.add(1);
                areas[done] = area;
                done += 1;
                continue;
            }
            if denied {
                machine.status.counters.moves_denied.add(1);
            } else if pages > 0 && done < until {
                ended = Some((to + moved.bytes, area));
            } else if moved.error == Some(errno::EAGAIN) {
                ended = early;
            }
            match moved.error {
                None => {}
                Some(errno::EINVAL) if done >= known => {
                    let here = addr + (done << PAGE_SHIFT);
                    let mapping = self.mappings.at(here);
                    known = match mapping {
                        Ok(Some(mapping)) => n.min((mapping.end - addr) >> PAGE_SHIFT),
                        _ => done + 1, // it is not there any more, or that cannot be told
                    };
                    let to_area = match mapping {
                        Ok(Some(mapping)) => machine.parking.area(mapping.prot, &map.parking),
                        _ => Some(Area::USUAL),
                    };
                    if let Ok(Some(mapping)) = mapping
                        && mapping.prot & prot::WRITE == 0
                    {
                        let room = BATCH - self.unwritable.len();
                        self.unwritable.extend(self.batch[at + done..at + known].iter().take(room).map(|m| m.0));
                    }
                    area = to_area.unwrap_or(Area::USUAL);
                    if to_area.is_none() {
                        results[done..known].fill(Parked::Refused);
                        done = known;
                    }
                }
                // of a protection that moves: so it is locked
                Some(errno::EINVAL) => {
                    self.locked_seen = true;
                    results[done..known].fill(Parked::Refused);
                    done = known;
                }
                Some(e) => {
                    results[done] = match e {
                        // moved elsewhere, perhaps (mremap): what became of it is in an event that nobody has read yet
                        errno::ENOENT if map.program.is_changing() => Parked::Refused,
                        errno::ENOENT => Parked::Absent,
                        errno::EAGAIN => continue,
                        _ => Parked::Refused,
                    };
                    occupied[done] = e == errno::EEXIST;
                    if e == errno::EBUSY {
                        self.busy.push(self.batch[at + done].0);
                    }
                    done += 1;
                }
            }
            if done >= known {
                area = Area::USUAL;
            }
        }
        let mut any = false;
        let mut wake = false;
        let mut core = machine.core.lock();
        for (i, &result) in results[..n].iter().enumerate() {
            let (page, frame) = self.batch[at + i];
            let its = place.plus(i).in_area(areas[i]);
            match result {
                Parked::Yes => {
                    core.park.own(frame, its);
                    any = true;
                }
                Parked::Refused if occupied[i] => {} // whatever is there: it is never used again
                Parked::Refused | Parked::Absent => core.park.give(its),
            }
            any |= result == Parked::Absent;
            wake |= core.vm.park_done(page, result);
        }
        drop(core);
        if wake || machine.delivery == Delivery::InThread {
            machine.wake(map, addr, n << PAGE_SHIFT);
        }
        any
    }

    /// Whether another process can have pages that were EBUSY. Else they are in somebody's hands for a moment (direct I/O, advice,
    /// reclaim), or for long (registered buffers), and are simply tried again when their turn comes. When the program is about to
    /// be stopped for want of memory, sharing that nobody has told of (by raw system calls) is ruled out as well.
    fn may_be_shared(&self, machine: &Machine<K>) -> bool {
        machine.shares_pages.load(Relaxed) || self.stuck_since != 0 || K::merges_memory()
    }

    /// Pages that the kernel would not move, perhaps because another process has them too: a write fault gives us our own copy,
    /// which moves. It does not wait: whoever served a fault of ours could be waiting for us.
    fn unshare(&mut self, machine: &Machine<K>) -> bool {
        let map = machine.map.read();
        for &page in &self.busy {
            K::own_page(map.addr(page));
        }
        machine.status.counters.pages_unshared.add(self.busy.len() as u64);
        let mut core = machine.core.lock();
        core.vm.park_these(&self.busy, &mut self.batch);
        drop(core);
        self.batch.sort_unstable();
        self.busy.clear();
        self.park_batch(machine, map)
    }

    // ---- launder ----

    /// A page of the buffers to look at pages with.
    fn scratch(&self) -> usize {
        self.copy_buffer() - PAGE_SIZE
    }

    /// The last [`COPY_PAGES`] pages of the buffers, which are in memory if pages had to be copied out.
    pub(crate) fn copy_buffer(&self) -> usize {
        self.buffers + self.buffers_len - (COPY_PAGES << PAGE_SHIFT)
    }

    /// Returns whether anything was settled or issued.
    fn launder(&mut self, machine: &Machine<K>, most: u32) -> bool {
        let mut core = machine.core.lock();
        core.vm.launder_batch(most.min(self.write_pages as u32 * 2), &mut self.laundry);
        self.dirty.clear();
        for &Laundry { page, frame, stored, in_memory } in &self.laundry {
            let place = core.park.place(frame);
            if !core.park.hold(place) {
                // it moved to another address while it was being written, and that write has not ended: back on trial
                core.vm.launder_done(page, None, ContentHash::UNKNOWN, IoResult::NoSpace);
                continue;
            }
            let hash = stored.unwrap_or(ContentHash::UNKNOWN);
            self.dirty.push(Dirty { page, place, hash, write: false, packed: in_memory });
        }
        drop(core);
        if self.dirty.is_empty() {
            return false;
        }
        self.dirty.sort_unstable_by_key(|d| d.page); // neighbours are written side by side
        let mut zero = [false; BATCH];
        // SAFETY: the page of our buffers that no write uses.
        let scratch = unsafe { &mut *(self.scratch() as *mut PageBytes) };
        for (d, zero) in self.dirty.iter_mut().zip(&mut zero) {
            // SAFETY: the place is held: its content stays, and nobody writes parked pages.
            let bytes = unsafe { &*(machine.parking.addr(d.place) as *const PageBytes) };
            *zero = checksum::is_zero(bytes);
            if !*zero {
                let stored = (d.hash != ContentHash::UNKNOWN).then_some(d.hash);
                d.hash = match d.packed {
                    true => checksum::of(d.page, bytes), // a compressed device has it, not encrypted
                    false => machine.content.look(d.page, stored, bytes, scratch),
                };
            }
        }
        let (looked_at, mut writes) = (self.dirty.len(), 0);
        let map = machine.map.read();
        let mut core = machine.core.lock();
        for (d, zero) in self.dirty.iter_mut().zip(&zero) {
            match core.vm.launder_look(d.page, *zero, d.hash) {
                Look::Write => {
                    d.write = true;
                    d.packed = false;
                    writes += 1;
                    continue;
                }
                Look::Drop(frame) => {
                    core.retire(frame); // it is held until below
                    core.vm.frames_dropped(core::iter::once(frame));
                }
                Look::Settled => {}
            }
            core.park.written(d.place);
        }
        self.dirty.retain(|d| d.write);
        if let Some(pool) = &map.pool {
            pool.empty_freed(&mut core.vm); // what these pages had there makes room for what they get
        }
        drop(core);
        machine.drop_places(&map, true);
        drop(map);
        let settled = looked_at - writes; // dropped ones too
        let issued = self.write_dirty(machine);
        settled + issued > 0
    }

    /// Writes `dirty` in clusters of neighbouring slots; returns how many pages were issued. The rest goes back on trial.
    fn write_dirty(&mut self, machine: &Machine<K>) -> usize {
        let mut at = 0;
        let mut past_memory = false;
        while at < self.dirty.len() {
            if self.dirty[at].packed && !past_memory {
                past_memory = true; // only what was refused is left, see `pack`
            }
            let mut free = self.writes.iter().position(|w| !w.busy);
            if free.is_none() {
                self.reap(machine); // with plain I/O all have ended already
                free = self.writes.iter().position(|w| !w.busy);
            }
            let Some(slot) = free else { break };
            let want = (self.dirty.len() - at).min(self.write_pages) as u32;
            let room = growth::make_room(machine);
            let near = self.dirty[at].page;
            let run = {
                let mut core = machine.core.lock();
                let run = match past_memory {
                    false => core.vm.launder_slots(want, near),
                    true => core.vm.launder_slots_past_memory(want, near),
                };
                if let Some(run) = run.filter(|run| !run.location.is_memory) {
                    core.vm.launder_issued(run.count);
                }
                run
            };
            let Some(run) = run else {
                self.trouble = Some(room.err().unwrap_or(errno::ENOSPC));
                break;
            };
            if run.location.is_memory {
                match self.pack(machine, run, at) {
                    Packing::Done { stored } => at += stored,
                    Packing::Full { stored } => {
                        at += stored;
                        past_memory = true;
                    }
                    // what has been stored so far makes room for it
                    Packing::NoCredit { stored } if at + stored > 0 => {
                        at += stored;
                        break;
                    }
                    Packing::NoCredit { .. } => past_memory = true,
                }
                continue;
            }
            let n = run.count as usize;
            let w = &mut self.writes[slot];
            w.pages[..n].copy_from_slice(&self.dirty[at..at + n]);
            w.count = n;
            w.run = Some(run);
            w.since = K::now_ns();
            w.busy = true;
            let parked = |place: ParkPlace| machine.parking.addr(place);
            let mut vectors = 0;
            if machine.content.is_sealed() {
                let buffer = self.buffers + ((slot * self.write_pages) << PAGE_SHIFT);
                for (i, d) in w.pages[..n].iter_mut().enumerate() {
                    // SAFETY: the place is held: its content stays, and nobody writes parked pages. The buffer is this write's,
                    // which is not in flight.
                    let (plain, sealed) = unsafe {
                        (&*(parked(d.place) as *const PageBytes), &mut *((buffer + (i << PAGE_SHIFT)) as *mut PageBytes))
                    };
                    d.hash = machine.content.seal(d.page, plain, sealed);
                }
                w.iov[0] = IoVec { base: buffer, len: n << PAGE_SHIFT };
                vectors = 1;
            } else {
                for d in &w.pages[..n] {
                    let base = parked(d.place);
                    if vectors > 0 && w.iov[vectors - 1].base + w.iov[vectors - 1].len == base {
                        w.iov[vectors - 1].len += PAGE_SIZE;
                    } else {
                        w.iov[vectors] = IoVec { base, len: PAGE_SIZE };
                        vectors += 1;
                    }
                }
            }
            let fd = machine.fd_to_write(&machine.map.read(), run.location);
            self.in_flight += 1;
            // SAFETY: the vectors lie in `self.writes`, which never moves its elements; the places are held until the completion.
            unsafe { self.io.write(fd, &w.iov[..vectors], run.location.offset, TOKEN_OTHER + slot as u64) };
            at += n;
        }
        self.io.submit();
        let rest = self.dirty.len() - at;
        if rest > 0 {
            let mut core = machine.core.lock();
            for d in &self.dirty[at..] {
                core.vm.launder_done(d.page, None, d.hash, IoResult::NoSpace);
                core.park.written(d.place);
            }
        }
        at
    }

    /// Stores pages of `dirty`, from `at` on, in slots of the compressed device. Those that it has taken come to stand first; those
    /// that do not compress go to the end of `dirty`, marked, since they belong past memory.
    fn pack(&mut self, machine: &Machine<K>, run: PageOut, at: usize) -> Packing {
        let since = K::now_ns();
        let map = machine.map.read();
        let first = run.location.slot_at();
        let pool = map.pool.as_ref().expect("slots of it were given");
        let mut packer = pool.packer();
        // Of `dirty[at..]`: stored ones, then refused ones, then those that were not looked at.
        let (mut stored, mut refused, mut bytes) = (0, 0, 0);
        let mut end = None;
        while stored + refused < run.count as usize && !self.dirty[at + stored + refused].packed {
            let d = &mut self.dirty[at + stored + refused];
            // SAFETY: the place is held: its content stays, and nobody writes parked pages.
            let plain = unsafe { &*(machine.parking.addr(d.place) as *const PageBytes) };
            d.hash = checksum::of(d.page, plain);
            let packed = packer.pack(plain);
            let result = pool.store(first + stored as u32, packed);
            match result {
                Ok(()) => {
                    bytes += packed.bytes();
                    self.dirty.swap(at + stored, at + stored + refused);
                    stored += 1;
                }
                Err(Refused::Incompressible) => {
                    d.packed = true;
                    refused += 1;
                }
                Err(why) => {
                    end = Some(why);
                    break;
                }
            }
        }
        drop(packer);
        let mut core = machine.core.lock();
        core.vm.counters().pool_refused.add(refused as u64);
        if stored > 0 {
            core.vm.launder_issued(stored as u32);
            let ns = K::now_ns().saturating_sub(since);
            let io = device_stats::Io { write: true, pages: stored as u32, bytes, ns, ok: true };
            core.vm.devices_mut().io_ended(pool.device(), io);
        }
        for (i, d) in self.dirty[at..at + stored].iter().enumerate() {
            if !core.vm.launder_done(d.page, Some(run.slot(i as u32)), d.hash, IoResult::Ok) {
                self.trouble = Some(errno::ENOMEM);
            }
            core.park.written(d.place);
        }
        core.vm.free_slots(&run, stored as u32);
        if end == Some(Refused::Full) {
            core.vm.devices_mut().set_full(pool.device(), true);
        }
        pool.refill(&mut core.vm);
        drop(core);
        self.dirty[at + stored..].rotate_left(refused);
        match end {
            Some(Refused::Full) => Packing::Full { stored },
            Some(Refused::NoCredit) => Packing::NoCredit { stored },
            Some(Refused::Incompressible) | None => Packing::Done { stored },
        }
    }

    /// Takes completions.
    fn reap(&mut self, machine: &Machine<K>) {
        if machine.inject.stalled(K::now_ns) {
            return;
        }
        while let Some(done) = self.io.completion() {
            if self.write_back.is_its(done.token) {
                self.write_back.written(machine, done);
                self.in_flight -= 1;
            } else {
                self.written(machine, done);
            }
        }
    }

    fn written(&mut self, machine: &Machine<K>, done: Done) {
        let w = &mut self.writes[(done.token - TOKEN_OTHER) as usize];
        let whole = done.result.map_or(0, |n| n >> PAGE_SHIFT);
        let failed = match done.result {
            Err(errno::ENOSPC) => IoResult::NoSpace,
            Err(e) => IoResult::Io(e),
            Ok(_) => IoResult::Io(errno::EIO), // cut short: the pages behind the cut were not written
        };
        if whole < w.count {
            self.trouble = Some(done.result.err().unwrap_or(errno::EIO));
        }
        let run = w.run.expect("a write in flight");
        let mut core = machine.core.lock();
        reader::count_io(machine, &mut core, run.location.device, true, w.count as u32, w.since, done.result);
        for (i, d) in w.pages[..w.count].iter().enumerate() {
            let result = if i < whole { IoResult::Ok } else { failed };
            if !core.vm.launder_done(d.page, Some(run.slot(i as u32)), d.hash, result) {
                self.trouble = Some(errno::ENOMEM);
            }
            core.park.written(d.place);
        }
        drop(core);
        w.busy = false;
        self.in_flight -= 1;
    }

    // ---- reclaim ----

    fn reclaim(&mut self, machine: &Machine<K>, most: u32) {
        let map = machine.map.read();
        let mut core = machine.core.lock();
        core.vm.reclaim_batch(most, &mut self.batch);
        let orphans = core.park.reclaim(self.batch.iter().map(|m| m.1), &mut self.places);
        core.vm.charge(orphans);
        drop(core);
        machine.discard_places(&map, &mut self.places);
        let mut core = machine.core.lock();
        core.park.dropped(&self.places);
        core.vm.frames_dropped(self.batch.iter().map(|m| m.1));
        if let Some(pool) = &map.pool {
            pool.refill(&mut core.vm);
        }
        drop(core);
        drop(map);
        machine.arrived();
    }

    // ---- nothing can be done ----

    /// Something is wanted and nothing can be evicted. If every page is wired or refused, faults go over the budget, and that is
    /// counted; else swap is full or broken, and [`Daemon::watch_progress`] counts the time.
    fn stuck(&mut self, machine: &Machine<K>) {
        let nothing_to_write = {
            let (trial, laundry, _) = machine.core.lock().vm.queue_lengths();
            trial + laundry == 0
        };
        if nothing_to_write {
            machine.starved.store(true, Relaxed);
            machine.arrived();
        }
        if machine.stuck_since.load(Relaxed) == 0 {
            machine.stuck_since.store(K::now_ns(), Relaxed);
        }
        if core::mem::take(&mut self.locked_seen)
            && let Some(fixed) = K::fixed()
        {
            machine.status.counters.memory_locked_bytes.set(fixed.locked);
        }
        let bell = machine.bell().load(SeqCst);
        machine.bell().wait_shared(bell, Limit::Tick(2_000_000));
    }

    /// What is in memory cannot leave it.
    fn stop_for_fixed_pages(machine: &Machine<K>) -> ! {
        let fixed = K::fixed().unwrap_or_default();
        let mut said = Packet::new();
        let _ = write!(
            said,
            "memory is full of pages that cannot leave it ({} MiB locked by the program, {} MiB pinned by registered buffers or devices, \
             the rest held by the kernel or in memory of an unusual kind), so the program was stopped: give it more --memory",
            fixed.locked >> 20,
            fixed.pinned >> 20
        );
        machine.stop_program(said.bytes())
    }

    /// Memory is full, writes fail, and no frame has been freed for a while: swap is full or broken, and the program is stopped,
    /// but for a swapoff that is under way: then that ends. The same if there is no frame above the budget left either, and nothing
    /// that could be written. That pages can still be parked is no progress: soft faults of other threads undo it for ever.
    fn watch_progress(&mut self, machine: &Machine<K>) {
        let freed = machine.status.counters.pages_reclaimed.get() + machine.status.counters.released_pages.get();
        let (full, exhausted) = {
            let core = machine.core.lock();
            let (trial, laundry, _) = core.vm.queue_lengths();
            (core.vm.available() == 0 && trial + laundry > 0, !core.vm.has_frame() && trial + laundry == 0)
        };
        let moves = freed != self.freed_before || machine.shrinking.load(Relaxed);
        if !full || moves {
            self.freed_before = freed;
            self.trouble = None;
        }
        let held = exhausted && !moves;
        // a device that is only slow is waited for, as long as it takes
        if self.trouble.is_none() && !held {
            self.stuck_since = 0;
            return;
        }
        let now = K::now_ns();
        if self.stuck_since == 0 {
            self.stuck_since = now;
        } else if now - self.stuck_since > FULL_GRACE_NS {
            if machine.core.lock().vm.devices_mut().stay_all() {
                self.stuck_since = 0; // a swapoff took the room: better without it than without the program
                return;
            }
            let mut trouble = self.trouble;
            if trouble == Some(errno::ENOSPC) {
                match growth::try_again(machine) {
                    Ok(true) => {
                        self.stuck_since = 0; // somebody else has made room
                        return;
                    }
                    Ok(false) => {}
                    Err(errno) => trouble = Some(errno),
                }
            }
            machine.stop_program(match trouble {
                None => Self::stop_for_fixed_pages(machine),
                Some(errno::ENOSPC | errno::EDQUOT) => {
                    b"memory and swap are both full, so the program was stopped: give it more --memory, or a --swap place with more room"
                }
                Some(errno::ENOMEM) => {
                    b"memory is full and the pager has no room to remember where more pages are stored, so the program was stopped: give it more --memory, or the library a larger managed_max"
                }
                Some(errno::EFBIG) => {
                    b"memory is full and the swap file has reached the limit on the size of files, so the program was stopped: raise the limit (ulimit -f), or give it more --memory"
                }
                Some(_) => {
                    b"writing to the swap place failed and memory is full, so the program was stopped: see the system log for the device's errors, or use another --swap place"
                }
            });
        }
    }
}

impl<K: Kernel> Drop for Daemon<K> {
    fn drop(&mut self) {
        // the kernel may still read the buffers
        while self.in_flight > 0 {
            self.io.wait(None);
            while let Some(done) = self.io.completion() {
                self.in_flight -= usize::from(done.token >= TOKEN_OTHER);
            }
        }
        // SAFETY: the mapping that `new` made; no write from it is in flight.
        unsafe { K::unmap(self.buffers as *mut u8, self.buffers_len) };
    }
}

//! Page-in: buffers, reads in flight, and the pages that arrive.
//!
//! A [`Reader`] belongs to one thread. It reads a cluster into a private buffer, checks each page against its tag, and copies it
//! into the program (`UFFDIO_COPY`, which never flushes a TLB).

use crate::buffers::Buffers;
use crate::completion;
use crate::errno::{self, Errno};
use crate::kernel::{Content as _, Done, Host as _, Io as _, Kernel, Mistake, Uffd as _};
use crate::machine::{Core, Machine};
use crate::park::ParkPlace;
use crate::pointers::Pointed;
use crate::space::Read;
use core::sync::atomic::Ordering::Relaxed;
use overspill_store::{PageBytes, checksum};
use overspill_swap::device_stats;
use overspill_vm::pager::{IoResult, Location};
use overspill_vm::types::{DeviceId, FrameId, PAGE_SHIFT, PAGE_SIZE, PageId, Tag};
use overspill_vm::{CLUSTER_PAGES_MAX, Destination, Filled, Followed, PageIn};
use std::collections::VecDeque;

/// Single-page buffers, for random faults.
pub const SINGLES: usize = 16;
/// Cluster buffers.
pub const CLUSTERS: usize = 3;
/// Cluster buffers of a reader that reads far ahead: [`Reader::deep`].
const DEEP_CLUSTERS: usize = 9;
/// The same when there are files: [`Reader::deepen`].
const FILE_CLUSTERS: usize = CLUSTERS + 4 * LONG_CLUSTERS;
/// So many of those that lie side by side take one long read. (O_DIRECT, four reads at a time, takes 2.8 us per page for 128 KiB
/// each, and 1.8 us for 512 KiB.)
const LONG_CLUSTERS: usize = 4;
/// The most single-page buffers that are used for pages that nobody waits for.
const POINTED: usize = 12;
/// Pages that are mapped again in one go, some microseconds each. After that other faults are served.
const RESTORES: usize = 16;
/// Reads in flight.
pub const READS_MAX: usize = SINGLES + CLUSTERS;
/// The same of a reader that reads far ahead.
const FLIGHTS_MAX: usize = SINGLES + FILE_CLUSTERS;
const _: () = assert!(FLIGHTS_MAX <= u64::BITS as usize);
/// The most reads that wait for a buffer, without those that reads in flight ask for when they have ended.
const READS_WAIT_MAX: usize = 32;
/// Tokens below this are reads.
pub const TOKEN_OTHER: u64 = 1 << 32;

#[derive(Clone, Copy)]
struct InFlight {
    read: Read,
    buffer: *mut u8,
    /// When it was issued.
    since: u64,
}

/// One thread's page-in.
pub struct Reader<K: Kernel> {
    /// Its I/O.
    pub io: K::Io,
    /// [`SINGLES`] of a page, and the rest of a cluster each.
    buffers: Buffers<K>,
    cluster_pages: usize,
    flights: [Option<InFlight>; FLIGHTS_MAX],
    /// A bit for each buffer that is taken, by the read of that number or one before it.
    taken: u64,
    clusters: usize,
    in_flight: usize,
    pointed: Pointed,
    /// Reads that wait for a buffer, up to [`READS_WAIT_MAX`], and one for each that was in flight.
    next: VecDeque<Read>,
    /// [`After::refused`], of up to [`FLIGHTS_MAX`] reads.
    refused: Vec<usize>,
}

/// Pages of buffer that a reader takes, for clusters of `cluster_pages`.
pub const fn buffer_pages(cluster_pages: usize) -> usize {
    pages_of(CLUSTERS, cluster_pages)
}

const fn pages_of(clusters: usize, cluster_pages: usize) -> usize {
    SINGLES + clusters * cluster_pages
}

/// How many more of them a reader takes that reads far ahead.
pub const fn deep_pages(cluster_pages: usize) -> usize {
    (DEEP_CLUSTERS - CLUSTERS) * cluster_pages
}

/// The most pages of one read ahead of a file's reader.
pub const fn long_pages(cluster_pages: usize) -> usize {
    let pages = LONG_CLUSTERS * cluster_pages;
    if pages < CLUSTER_PAGES_MAX { pages } else { CLUSTER_PAGES_MAX }
}

/// As [`deep_pages`], when there are files. (Six windows under way keep the disk busy for half of the time, fifteen nearly always.)
pub const fn file_pages(cluster_pages: usize) -> usize {
    (FILE_CLUSTERS - CLUSTERS) * cluster_pages
}

/// The result of a read.
#[derive(Clone, Copy, Debug)]
pub struct After {
    /// The next read to make.
    pub next: Option<Read>,
    /// Pages that were lost.
    pub lost: u32,
    /// Pages that could not be read, and stay where they are.
    pub unread: u32,
    /// The address of the page that a thread waits for, if the kernel has refused to fill it. It is parked, and nobody was woken.
    refused: Option<usize>,
}

/// Checks, places and maps the pages read into `buffer`. The read was issued at `since` (CLOCK_MONOTONIC, in nanoseconds). If the
/// reader of these pages already waits, the next window is due. `issue` gets it before the pages are copied, so that the device
/// works meanwhile. `issue` must not wait, because locks are held. The read that `issue` gives back is returned.
///
/// # Safety
/// `buffer` has room for the cluster, page-aligned; the read into it has ended and nobody else uses it.
#[inline(never)] // its stack frame of some KiB must not be part of those from which further reads are started
pub unsafe fn arrived<K: Kernel>(
    machine: &Machine<K>,
    whole: &Read,
    buffer: *mut u8,
    since: u64,
    result: Result<usize, Errno>,
    issue: impl FnOnce(&mut Core, Read) -> Option<Read>,
) -> After {
    let Read { op, fd, home } = whole;
    let at = (*fd, op.location.offset);
    // SAFETY: the caller's buffer, and nobody else uses it.
    unsafe {
        let read = match home {
            Some(home) => completion::complete_at_home(machine, (at.0, at.1, *home), (op.count, op.touched()), buffer, result),
            None => completion::go_on(machine, at, op.count, buffer, result),
        };
        completed(machine, whole, buffer, since, read, issue)
    }
}

/// The same for a read that has been completed.
///
/// # Safety
/// As [`arrived`].
pub(crate) unsafe fn completed<K: Kernel>(
    machine: &Machine<K>,
    whole: &Read,
    buffer: *mut u8,
    since: u64,
    read: completion::Arrived,
    issue: impl FnOnce(&mut Core, Read) -> Option<Read>,
) -> After {
    let Read { op, home, .. } = whole;
    let mut stored = [Tag::UNKNOWN; CLUSTER_PAGES_MAX];
    let mut right = [false; CLUSTER_PAGES_MAX];
    if machine.inject.flip() {
        // SAFETY: the buffer is this thread's, at least a page long.
        unsafe { *buffer ^= 1 };
    }
    let arrived = || (0..op.count).filter(|i| read.good >> i & 1 == 1 && op.wants(*i));
    stored[0] = op.expected;
    if op.count > 1 && home.is_none() {
        let core = machine.core.lock();
        arrived().for_each(|i| stored[i as usize] = core.vm.expected(op, i));
    }
    for i in arrived() {
        // SAFETY: the buffer has `op.count` pages, aligned, and the read into it has ended.
        let bytes = unsafe { &mut *(buffer.add((i as usize) << PAGE_SHIFT) as *mut PageBytes) };
        if let Some(home) = home {
            right[i as usize] = true;
            if home.tags {
                stored[i as usize] = machine.content.fingerprint(op.page(i), bytes);
            }
            continue;
        }
        right[i as usize] = match op.location.is_memory {
            true => checksum::of(op.page(i), bytes) == stored[i as usize], // not encrypted
            false => machine.content.open(op.page(i), stored[i as usize], bytes) || K::mistake(Mistake::TrustsDevices),
        };
    }
    if op.is_common && right[0] {
        // SAFETY: the buffer has a page, aligned, and the read into it has ended.
        machine.host.store_common(common_key(op), unsafe { &*(buffer as *const PageBytes) });
    }
    // SAFETY: the caller's buffer.
    unsafe { place(machine, whole, buffer, Some(since), &Checked { read, stored, right }, issue) }
}

/// The key of a read that other processes may make as well, for [`Host::load_common`].
fn common_key(op: &PageIn) -> u128 {
    op.expected.unmasked(op.first) ^ u128::from(op.expected.number()) << 64
}

/// Pages that were read, before they are placed.
struct Checked {
    read: completion::Arrived,
    /// The tags that they were checked against.
    stored: [Tag; CLUSTER_PAGES_MAX],
    /// They are what was stored. Then they are plain.
    right: [bool; CLUSTER_PAGES_MAX],
}

/// The second part of [`arrived`]. `since`: when the device was asked, if it was.
///
/// # Safety
/// As [`arrived`].
unsafe fn place<K: Kernel>(
    machine: &Machine<K>,
    Read { op, home, .. }: &Read,
    buffer: *mut u8,
    since: Option<u64>,
    Checked { read, stored, right }: &Checked,
    issue: impl FnOnce(&mut Core, Read) -> Option<Read>,
) -> After {
    let arrived = || (0..op.count).filter(|i| read.good >> i & 1 == 1 && op.wants(*i));
    let mut places = [Destination::Discard; CLUSTER_PAGES_MAX];
    let map = machine.map.read();
    let addr_of = |i: u32| map.addr(op.page(i));
    // the range may have been cut since the read began; pages that were cut off are orphaned and not placed
    let range = map.ranges.find(addr_of(0)).or_else(|| map.ranges.find(addr_of(op.count - 1)));
    let bounds = range.map_or(0..0, |r| r.bounds());
    let mut core = machine.core.lock();
    // (if the page was given up meanwhile, its slot may have another's content, and nothing is wrong with the device)
    let wrong = || arrived().filter(|i| !right[*i as usize] && stored[*i as usize] != Tag::UNKNOWN);
    let damaged = home.is_none() && wrong().any(|i| core.vm.is_still_there(op, i, stored[i as usize]));
    if let Some(since) = since
        && home.is_none()
    {
        let ns = count_io(machine, &mut core, op.location.device, false, op.count, since, read.worth(damaged));
        if op.count == 1 && op.touched().is_some() && read.result.is_ok() {
            core.vm.page_in_took(op.location.is_memory, ns);
        }
    }
    let Core { vm, unread, .. } = &mut *core;
    if !unread.is_empty() {
        let now = K::now_ns();
        arrived().for_each(|i| unread.forget(op.page(i), now));
    }
    let keeps = read.result.is_err() && home.is_none() && !vm.gives_up(op);
    let is_failed = |i: &u32| keeps && matches!(read.of(*i), IoResult::Io(_));
    let mut is_read_again = |i: &u32| {
        vm.is_waited_for(op, *i)
            && unread.failed(op.page(*i), op.count == 1, K::now_ns())
            && !K::mistake(Mistake::LosesWhatIsNeeded)
    };
    let again = (0..op.count).filter(is_failed).filter(&mut is_read_again).fold(0, |all, i| all | 1u128 << i);
    let check = |i: u32, expected: Tag| match read.of(i) {
        IoResult::Ok if home.is_none() && (!right[i as usize] || stored[i as usize] != expected) => IoResult::Corrupt,
        IoResult::Io(_) if again >> i & 1 == 1 => IoResult::Again,
        outcome => outcome,
    };
    let next = vm.page_in_arrived(op, bounds, check, &mut places);
    let next = next.and_then(|next| issue(&mut core, map.read_of(next)));
    if home.is_some_and(|home| home.tags) {
        for i in arrived().filter(|i| matches!(places[*i as usize], Destination::Map | Destination::Park(_))) {
            core.vm.set_base_read(op, i, stored[i as usize]);
        }
    }
    // a page to be left parked needs a place; without one it is mapped
    let mut parking = [ParkPlace::NONE; CLUSTER_PAGES_MAX];
    for (i, place) in places[..op.count as usize].iter_mut().enumerate() {
        if let Destination::Park(_) = *place {
            match core.park.take(1) {
                Some((at, _)) => parking[i] = at,
                None => *place = Destination::Map,
            }
        }
    }
    if K::mistake(Mistake::ParksInOnePlace)
        && let Some(last) = places.iter().rposition(|place| matches!(place, Destination::Park(_)))
    {
        for i in 0..last {
            if matches!(places[i], Destination::Park(_)) {
                (places[i], parking[i]) = (places[last], parking[last]);
            }
        }
    }
    let lost = |i: &u32| places[*i as usize] == Destination::Lost;
    if let Some(first) = (0..op.count).find(lost) {
        machine.note_loss(&map, op.page(first), op.location_of(first), read.of(first));
    }
    drop(core);
    let lost = (0..op.count).filter(lost).count() as u32;
    let is_unread =
        |i: &u32| matches!(read.of(*i), IoResult::Io(_) | IoResult::Again) && places[*i as usize] == Destination::Discard;
    let unread = (0..op.count).filter(|i| op.wants(*i) && is_unread(i)).count() as u32;
    let touched = op.touched().map(addr_of);
    let (mut wake, mut refused_touch) = (false, false);
    let mut filled = [Filled::No; CLUSTER_PAGES_MAX];
    // SAFETY: the place is ours and absent; the buffer page holds content that was read and checked.
    let park = |at, content| match unsafe { map.parking.copy(machine.parking.addr(at), content, PAGE_SIZE) }.bytes {
        PAGE_SIZE => Filled::Parked,
        _ => Filled::No,
    };
    let mut i = 0;
    while i < op.count {
        let (addr, mut n) = (addr_of(i), 1);
        // SAFETY: within the caller's buffer.
        let content = unsafe { buffer.add((i as usize) << PAGE_SHIFT) };
        match places[i as usize] {
            Destination::Discard => wake = true,
            Destination::Lost => {
                if !map.is_behind(addr) {
                    let _ = map.program.poison(addr, PAGE_SIZE);
                }
                wake = true;
            }
            Destination::Park(_) => filled[i as usize] = park(parking[i as usize], content),
            Destination::Map => {
                while i + n < op.count && places[(i + n) as usize] == Destination::Map {
                    n += 1;
                }
                // SAFETY: these pages are busy and missing; the buffer holds content that was read and checked for them.
                let (done, error) = unsafe { machine.fill_back(&map, addr, content, n) };
                filled[i as usize..][..done as usize].fill(Filled::Mapped);
                // they would be read again, and again while the program discards piece after piece
                for k in (i + done..i + n).filter(|_| error == Some(errno::EAGAIN)) {
                    let Some((frame, at)) = machine.place_instead(op.page(k)) else { break };
                    // SAFETY: within the caller's buffer.
                    filled[k as usize] = park(at, unsafe { buffer.add((k as usize) << PAGE_SHIFT) });
                    (places[k as usize], parking[k as usize]) = (Destination::Park(frame), at);
                    refused_touch |= op.touched() == Some(k);
                }
            }
        }
        i += n;
    }
    if op.touched().is_none() {
        machine.refused_fill.store(false, Relaxed); // nobody waits for it
    }
    let mut core = machine.core.lock();
    for i in 0..op.count {
        let (place, filled, at) = (places[i as usize], filled[i as usize], parking[i as usize]);
        match place {
            Destination::Discard | Destination::Lost => continue,
            Destination::Park(frame) if filled == Filled::Parked => core.park.own(frame, at),
            Destination::Park(_) => core.park.give(at),
            Destination::Map => {}
        }
        wake |= core.vm.page_in_done(op.page(i), filled);
    }
    drop(core);
    let refused = touched.filter(|_| refused_touch && !wake);
    wake |= touched.is_some() && refused.is_none();
    if (wake || machine.config.delivery == crate::machine::Delivery::InThread) && !K::mistake(Mistake::ForgetsWhoWaits) {
        let waiters = machine.waiters(&map, addr_of(0), (op.count as usize) << PAGE_SHIFT);
        drop(map);
        machine.wake_last(waiters);
    }
    if home.is_some_and(|home| home.tags) {
        machine.arrivals.announce(); // a flush may wait for these pages
    }
    After { next, lost, unread, refused }
}

/// Gets a single page from other processes that have read it, if possible, and checks it.
///
/// # Safety
/// `buffer` has room for a page, page-aligned, and nobody else uses it.
#[inline(never)] // its stack frame of 4 KiB must not be part of those from which further reads are started
unsafe fn load_common<K: Kernel>(machine: &Machine<K>, op: &PageIn, buffer: *mut u8) -> bool {
    // SAFETY: the caller's buffer.
    let bytes = unsafe { &mut *(buffer as *mut PageBytes) };
    let is_right = |bytes: &PageBytes| machine.content.tag(op.first, Some(op.expected), bytes, &mut [0; PAGE_SIZE]) == op.expected;
    let found = machine.host.load_common(op.is_common.then(|| common_key(op)), bytes)
        && (is_right(bytes) || K::mistake(Mistake::TrustsItsFamily));
    machine.status.counters.family_cache_pages_in.add(u64::from(found));
    found
}

/// The next part of the window that `op` is a part of, to be read at the same time.
pub fn read_more<K: Kernel>(machine: &Machine<K>, op: &PageIn) -> Option<Read> {
    if !op.has_rest() {
        return None;
    }
    let map = machine.map.read();
    let range = map.ranges.find(map.addr(op.first))?;
    let more = machine.core.lock().vm.read_more(op, range.bounds());
    more.map(|op| map.read_of(op))
}

/// Counts an operation on `pages` pages of `device`, issued at `since`. Returns how long it took, in nanoseconds. => the device is
/// still there
pub fn count_io<K: Kernel>(
    machine: &Machine<K>,
    core: &mut Core,
    device: DeviceId,
    write: bool,
    pages: u32,
    since: u64,
    result: Result<usize, Errno>,
) -> u64 {
    let bytes = result.unwrap_or(0) as u64;
    let ns = K::now_ns().saturating_sub(since);
    let no_space = write && result == Err(errno::ENOSPC);
    let io = device_stats::Io {
        write,
        pages: if no_space { 0 } else { pages },
        bytes,
        ns,
        ok: no_space || bytes == (pages as u64) << PAGE_SHIFT,
    };
    if no_space {
        core.vm.devices_mut().set_full(device, true);
    }
    if core.vm.devices_mut().io_ended(device, io) {
        machine.failed_devices.add(device);
    }
    ns
}

/// How many faults wait for a read: one, or none if it is ahead of need.
fn waits(read: &Read) -> i32 {
    i32::from(read.op.touched().is_some())
}

impl<K: Kernel> Reader<K> {
    /// Makes a reader with I/O of its own.
    ///
    /// # Errors
    /// As [`Kernel::io`]; ENOMEM.
    pub fn new(engine: K::Engine, cluster_pages: usize) -> Result<Self, Errno> {
        Self::with_clusters(engine, cluster_pages, CLUSTERS, CLUSTERS)
    }

    /// As [`Reader::new`], with [`deep_pages`] more pages of buffer, for more windows of a stream at a time.
    ///
    /// # Errors
    /// As [`Reader::new`].
    pub fn deep(engine: K::Engine, cluster_pages: usize) -> Result<Self, Errno> {
        Self::with_clusters(engine, cluster_pages, DEEP_CLUSTERS, FILE_CLUSTERS)
    }

    /// From now on it has [`file_pages`] more pages of buffer than a new one.
    ///
    /// # Panics
    /// If it is not a deep one.
    pub fn deepen(&mut self) {
        assert_eq!(self.buffers.len(), SINGLES + FILE_CLUSTERS);
        self.clusters = FILE_CLUSTERS;
    }

    /// `clusters`: how many of its cluster buffers are used at first. `most`: how many it may use later.
    fn with_clusters(engine: K::Engine, cluster_pages: usize, clusters: usize, most: usize) -> Result<Self, Errno> {
        let buffers = Buffers::new((0..SINGLES + most).map(|i| if i < SINGLES { 1 } else { cluster_pages }))?;
        let flights = [None; FLIGHTS_MAX];
        let io = K::io(engine, 64)?;
        Ok(Reader {
            io,
            buffers,
            cluster_pages,
            flights,
            taken: 0,
            clusters,
            in_flight: 0,
            pointed: Pointed::default(),
            next: VecDeque::with_capacity(READS_WAIT_MAX + FLIGHTS_MAX),
            refused: Vec::with_capacity(FLIGHTS_MAX),
        })
    }

    /// Reads in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether so many more reads may be started.
    pub fn has_room(&self, reads: usize) -> bool {
        self.next.len() + reads <= READS_WAIT_MAX
    }

    /// Starts a read, and the reads of the rest of its window, as soon as there are buffers for them. Pages on a compressed device
    /// are read at once. => [`Reader::has_room`]
    pub fn start(&mut self, machine: &Machine<K>, read: Read) {
        machine.host.waits(waits(&read));
        self.queue(read);
        self.start_next(machine);
    }

    fn queue(&mut self, read: Read) {
        if read.op.count as usize > self.cluster_pages {
            self.deepen(); // there are files, but this thread may not have looked yet
        }
        self.next.push_back(read);
    }

    /// Starts the reads for which there are buffers. One that takes buffers of a cluster comes after all such before it.
    ///
    /// (The rest of a window goes by this queue, too. A recursion overran a handler's stack: a window of 64 scattered pages, each
    /// of which called for the next one.)
    fn start_next(&mut self, machine: &Machine<K>) {
        loop {
            let mut waits = false;
            let found = self.next.iter().enumerate().find_map(|(i, read)| {
                let is_single = read.op.count == 1;
                let flight = if waits && !is_single { None } else { self.free_buffer(read.op.count) };
                waits |= !is_single && flight.is_none();
                flight.map(|flight| (i, flight))
            });
            let Some((i, flight)) = found else { return };
            let read = self.next.remove(i).expect("found");
            if let Some(next) = self.start_one(machine, flight, read) {
                self.queue(next);
            }
        }
    }

    /// Returns the next read: what the pages that have just arrived ask for, or the next part of the window.
    fn start_one(&mut self, machine: &Machine<K>, flight: usize, read: Read) -> Option<Read> {
        let op = &read.op;
        if self.parts_of(flight, op.count).any(|(i, pages)| self.buffers.held(i) < pages) {
            self.hold(&mut machine.core.lock(), flight, op.count);
        }
        self.buffers.note_used(self.buffers_of(flight, op.count));
        if op.location.is_memory {
            let since = K::now_ns();
            let buffer = self.buffers.at(flight);
            machine.host.waits(-waits(&read));
            // SAFETY: a free flight's buffer, which nobody else hands out; it has room for the cluster.
            let after = unsafe {
                machine.load(op.location, op.count, op.wanted, buffer);
                arrived(machine, &read, buffer, since, Ok((op.count as usize) << PAGE_SHIFT), |_, next| Some(next))
            };
            return self.note_refused(machine, after).or_else(|| self.more(machine, op));
        }
        if op.count == 1 && read.home.is_none() {
            let buffer = self.buffers.at(flight);
            // SAFETY: as above.
            if unsafe { load_common(machine, op, buffer) } {
                let (mut stored, mut right) = ([Tag::UNKNOWN; CLUSTER_PAGES_MAX], [false; CLUSTER_PAGES_MAX]);
                (stored[0], right[0]) = (op.expected, true);
                let checked = Checked { read: completion::Arrived { good: 1, ..Default::default() }, stored, right };
                machine.host.waits(-waits(&read));
                // SAFETY: as above.
                let after = unsafe { place(machine, &read, buffer, None, &checked, |_, next| Some(next)) };
                return self.note_refused(machine, after).or_else(|| if op.is_sampled() { None } else { self.more(machine, op) });
            }
        }
        self.issue(machine, flight, read);
        self.more(machine, op)
    }

    /// The next read to make. Keeps the address of a page that is parked although a thread waits for it.
    fn note_refused(&mut self, machine: &Machine<K>, After { next, refused, .. }: After) -> Option<Read> {
        match refused {
            Some(addr) if self.refused.len() < FLIGHTS_MAX => self.refused.push(addr),
            Some(addr) => machine.wake_any(addr),
            None => {}
        }
        next
    }

    /// The address of a page that is parked, because the kernel has refused to fill it, and that a thread waits for.
    pub(crate) fn refused(&mut self) -> Option<usize> {
        self.refused.pop()
    }

    /// Whether there is such a page.
    pub(crate) fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// A bit for each buffer that a read of so many pages takes, which begins in that one.
    fn buffers_of(&self, flight: usize, pages: u32) -> u64 {
        let n = if flight < SINGLES { 1 } else { (pages as usize).div_ceil(self.cluster_pages) };
        ((1 << n) - 1) << flight
    }

    /// The buffers of a read that begins in `flight`, and how many pages of each it takes.
    fn parts_of(&self, flight: usize, pages: u32) -> impl Iterator<Item = (usize, u32)> + use<K> {
        let each = self.cluster_pages as u32;
        (0..pages.div_ceil(each)).map(move |i| (flight + i as usize, (pages - i * each).min(each)))
    }

    /// Charges the buffers of a read, if they are not charged.
    fn hold(&mut self, core: &mut Core, flight: usize, pages: u32) {
        self.parts_of(flight, pages).for_each(|(i, pages)| self.buffers.hold(core, i, pages));
    }

    /// Whether it has buffers in memory.
    pub fn has_buffers(&self) -> bool {
        self.buffers.any(0)
    }

    /// Gives back all buffers that no read uses, or those that were not used for a while. => no lock is held
    pub fn give_back(&mut self, machine: &Machine<K>, all: bool) {
        self.buffers.give_back(machine, self.taken, all);
    }

    fn free_buffer(&self, pages: u32) -> Option<usize> {
        let (first, end) = (SINGLES, SINGLES + self.clusters);
        let is_free = |i: &usize| self.buffers_of(*i, pages) & self.taken == 0;
        match pages as usize {
            1 => (0..SINGLES).find(is_free),
            n if n <= self.cluster_pages => (first..end).find(is_free),
            n => {
                assert!(n <= long_pages(self.cluster_pages), "a read of {n} pages");
                (first + CLUSTERS..end).step_by(n.div_ceil(self.cluster_pages).next_power_of_two()).find(is_free)
            }
        }
    }

    fn issue(&mut self, machine: &Machine<K>, flight: usize, read: Read) {
        let (offset, len) = (read.op.location.offset, (read.op.count as usize) << PAGE_SHIFT);
        let buffer = self.buffers.at(flight);
        self.flights[flight] = Some(InFlight { read, buffer, since: K::now_ns() });
        self.taken |= self.buffers_of(flight, read.op.count);
        self.in_flight += 1;
        let fd = machine.inject.read(read.fd, offset, len);
        // SAFETY: the buffer belongs to this flight until its completion.
        unsafe { self.io.read(fd, buffer, len, offset, flight as u64) };
    }

    /// The next part of the window that begins with `op`, unless many reads are in flight or wait for their turn.
    fn more(&self, machine: &Machine<K>, op: &PageIn) -> Option<Read> {
        (self.in_flight + self.next.len() < READS_MAX - CLUSTERS).then(|| read_more(machine, op)).flatten()
    }

    /// Brings in the pages that pages read in order point to, as many as may be in flight beside reads that a thread waits for.
    /// Returns whether there is more to be done at once.
    pub fn follow_pointers(&mut self, machine: &Machine<K>) -> bool {
        let (mut issued, mut restored) = (false, 0);
        while self.in_flight < POINTED
            && restored < RESTORES
            && let Some(page) = self.pointed.front()
        {
            let map = machine.map.read();
            let mut core = machine.core.lock();
            match core.vm.follow_pointer(page) {
                Followed::Nothing => {}
                Followed::NoMemory => break,
                Followed::Read(op) => {
                    let free = self.free_buffer(1).expect("fewer reads than buffers for one page");
                    self.buffers.hold(&mut core, free, 1);
                    self.issue(machine, free, map.read_of(op));
                    issued = true;
                }
                Followed::Restore(frame) => {
                    let addr = map.addr(page);
                    if machine.restore(&map, core, addr, page, frame).0 {
                        machine.wake(&map, addr, PAGE_SIZE);
                    }
                    restored += 1;
                }
            }
            self.pointed.pop();
        }
        if issued {
            self.io.submit();
        }
        restored == RESTORES
    }

    /// Finishes a read that has ended.
    pub fn finish(&mut self, machine: &Machine<K>, done: Done) {
        let at = done.token as usize;
        // At once: a simulated machine that panics below has its reader dropped, which waits for what is in flight.
        let flight = self.flights[at].take().expect("a read in flight");
        self.in_flight -= 1;
        machine.host.waits(-waits(&flight.read));
        let mut issued = None;
        let issue = |core: &mut Core, next: Read| match self.free_buffer(next.op.count) {
            // with plain I/O the read would happen here, under locks
            Some(free) if self.io.is_asynchronous() && !next.op.location.is_memory && self.next.is_empty() => {
                self.hold(core, free, next.op.count);
                self.issue(machine, free, next);
                self.io.submit();
                issued = Some(next.op);
                None
            }
            _ => Some(next),
        };
        // SAFETY: the flight's own buffer, which stays taken until below, and its read has ended.
        let after = unsafe { arrived(machine, &flight.read, flight.buffer, flight.since, done.result, issue) };
        let next = self.note_refused(machine, after);
        // with plain I/O reading the pages pointed to would keep everybody waiting
        let op = &flight.read.op;
        if machine.config.follows_pointers && op.is_read_in_order() && flight.read.home.is_none() && self.io.is_asynchronous() {
            for i in (0..op.count).filter(|i| op.wants(*i)) {
                // SAFETY: a page of the flight's own buffer, which stays taken until below, and the read into it has ended.
                let content = unsafe { &*(flight.buffer.add((i as usize) << PAGE_SHIFT) as *const PageBytes) };
                self.pointed.scan(machine, op.page(i), content);
            }
        }
        self.taken &= !self.buffers_of(at, op.count);
        if let Some(next) = next.or_else(|| issued.and_then(|op| self.more(machine, &op))) {
            self.queue(next);
        }
        self.start_next(machine);
    }
}

impl<K: Kernel> Drop for Reader<K> {
    fn drop(&mut self) {
        // the kernel may still write to the buffers
        while self.in_flight > 0 {
            self.io.wait(None);
            while let Some(done) = self.io.completion() {
                if done.token < TOKEN_OTHER && self.flights[done.token as usize].take().is_some() {
                    self.in_flight -= 1;
                }
            }
        }
    }
}

impl<K: Kernel> Machine<K> {
    /// The frame and a parking place for a page that has arrived and cannot be mapped now.
    fn place_instead(&self, page: PageId) -> Option<(FrameId, ParkPlace)> {
        let mut core = self.core.lock();
        let word = core.vm.page(page);
        if word.wired() { None } else { core.park.take(1).map(|(at, _)| (word.frame(), at)) }
    }

    /// Unpacks pages from the compressed device into `buffer`: those in `wanted` of the `count` pages from `from` on. A page that
    /// could not be unpacked fails its check later. Does not allocate.
    ///
    /// # Safety
    /// `buffer` has room for `count` pages, page-aligned, and nobody else uses it.
    pub unsafe fn load(&self, from: Location, count: u32, wanted: u128, buffer: *mut u8) {
        let at = from.slot_at();
        for i in (0..count).filter(|i| wanted >> i & 1 == 1) {
            let map = self.map.read(); // for each page anew: to unpack all takes long
            let pool = map.pool.as_ref().expect("a read of it is under way");
            // SAFETY: within the caller's buffer, aligned.
            let page = unsafe { &mut *(buffer.add((i as usize) << PAGE_SHIFT) as *mut PageBytes) };
            pool.load(at + i, page);
        }
    }
}

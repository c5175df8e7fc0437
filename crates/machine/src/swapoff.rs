//! swapoff: the I/O for what the core decides (`overspill_vm`, `swapoff.rs`).
//!
//! ```text
//!   a flight:   buffer of a run  --- read, one operation --->  check, look up again (core)
//!                                                                |  pages that are still wanted
//!                                      +-------------------------+
//!                                      v
//!               slots elsewhere  --- write, one operation --->  look up again (core)      again while pages are left
//!
//!   from a compressed device:   unpacked instead of read; sealed as it is written, if swap is encrypted
//!   to a compressed device, if no other has room:   opened, packed and stored
//!
//!   no room elsewhere:   the run is a page-in like any other, and its pages are left parked
//! ```
//!
//! The owner of a [`Worker`] calls [`Worker::step`] until it ends: the control socket's thread, or a caller of the library. A few
//! flights are under way at a time, so that one device reads while the other writes. No lock is held during I/O. Pages on their way
//! into memory are busy from one step to the next, unless the owner calls [`Worker::settle`]. While a fork waits, nothing new
//! begins. Pages that were read by then are dropped, not written; the next pass finds them again.
//!
//! Memory: the flights' buffers and tables, charged to the budget before they are touched. With
//! [`Inject::swapoff_pages`](crate::inject::Inject) a run has at most that many pages, and there is one flight. That is the
//! baseline for comparisons: page by page.

use crate::completion;
use crate::devices;
use crate::errno::{self, Errno};
use crate::figures;
use crate::growth;
use crate::kernel::{Advice, Content as _, Done, Io as _, IoVec, Kernel, Mistake};
use crate::machine::Machine;
use crate::reader;
use crate::space::Read;
use crate::unread;
use overspill_store::{PageBytes, checksum};
use overspill_vm::pager::{IoResult, Location};
use overspill_vm::types::{DeviceId, PAGE_SHIFT, PAGE_SIZE, PageId, Tag};
use overspill_vm::{CLUSTER_PAGES_MAX, Copies, MoveRun, PageIn, PageOut, RunArrived, Swapoff, SwapoffRefusal, SwapoffStep};

/// Runs under way at a time.
const FLIGHTS: usize = 4;
/// The most transfers of a swapoff at a time: a run's pages, and its table of tags.
pub const TRANSFERS_MAX: u32 = 2 * FLIGHTS as u32;
/// For so long after a hard fault only one run is under way, and a short one, in nanoseconds: the program's reads wait behind
/// those runs in the devices' queues.
const COURTESY_NS: u64 = 5_000_000;
/// The most pages of such a run, unless a read of one page takes as long as [`SEEK_NS`].
const COURTESY_PAGES: u32 = 8;
/// A device that takes so long for one page takes hardly longer for a long run, in nanoseconds: it seeks, or its operations are
/// rationed.
const SEEK_NS: u64 = 1_000_000;
/// How long a step waits if there is nothing else to do, in nanoseconds.
const WAIT_NS: u64 = 1_000_000;
/// Steps of the walk that find nothing, per [`Worker::step`].
const SCANS: u32 = 64;
/// Runs begun per [`Worker::step`].
const RUNS: u64 = 16;
/// How long troubles may go on while no page leaves the device, before the swapoff gives up, in nanoseconds. A device or a page
/// daemon that is only slow is waited for, as long as it takes.
const PATIENCE_NS: u64 = 10_000_000_000;
/// The most time that one report of trouble counts for, in nanoseconds. So it takes at least 20 reports to give up. If there is no
/// processor time for the swapoff, there is none for the page daemon either, which makes room. An idle page daemon tries a full
/// device every 500 ms.
const TOLD_NS: u64 = 500_000_000;
/// How long it waits after a read has failed, in nanoseconds: perhaps the device recovers.
const UNREAD_NS: u64 = 2_000_000;
/// How long the daemon may take to make room for the buffers, in nanoseconds.
const BUFFERS_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy)]
enum Flight {
    Free,
    /// Pages on their way into memory.
    PageIn {
        read: Read,
        since: u64,
    },
    /// A run that is being read.
    Read {
        run: MoveRun,
        fd: i32,
        since: u64,
    },
    /// Some pages of a run are being written; those in `left` are still to be written.
    Write {
        run: MoveRun,
        since: u64,
        left: u128,
        slots: PageOut,
        pages: u128,
    },
}

/// A flight's record of its pages. It lies after the buffers in their mapping, because a thread of the agent's has too short a
/// stack for it.
struct Table {
    /// The tag of each page at the end of the read, if the content that was read is right.
    right: [Option<Tag>; CLUSTER_PAGES_MAX],
    /// Bit `i`: page `i` of the buffer is not encrypted.
    plain: u128,
    /// The tag of each page as written.
    fresh: [Tag; CLUSTER_PAGES_MAX],
    scratch: PageBytes,
    iov: [IoVec; CLUSTER_PAGES_MAX],
}

/// Pages of a flight's table.
const TABLE_PAGES: u32 = size_of::<Table>().div_ceil(PAGE_SIZE) as u32;

/// The state of a swapoff.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// There is more to do.
    Busy,
    /// The device is gone, its file closed.
    Done,
    /// It was cancelled, or failed for this reason; the device is in use as before.
    Failed(Failure),
}

/// Why a swapoff ends without success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// A user interrupted it.
    Cancelled,
    /// Memory and the other devices have filled up meanwhile.
    NoRoom,
    /// Writes to the other devices kept failing, or the devices refused the pages.
    Refused,
    /// Some pages of the device could not be read.
    Unread,
}

/// What becomes of pages that cannot be read, when none could be read for ten seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unreadable {
    /// They are lost, since the device is wanted elsewhere.
    Lost,
    /// They stay, and so does the device: it was only to be spared.
    Stay,
}

impl core::fmt::Display for Failure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Failure::Cancelled => "the swapoff was interrupted; the device is in use as before",
            Failure::NoRoom => {
                "memory and the other swap devices have filled up meanwhile, so the device is in use as before: add a device first"
            }
            Failure::Refused => {
                "the other swap devices have taken no page for ten seconds, so the device is in use as before: see their errors in `overspill swaps`"
            }
            Failure::Unread => "the device could not be read for ten seconds, so it stays in use with the pages that are left on it",
        })
    }
}

figures! {
    /// How far a swapoff is.
    Progress {
        /// Pages that are still on the device.
        left_pages,
        /// Pages that went to other devices.
        moved_pages,
        /// Pages that came into memory.
        memory_pages,
        /// Pages that could not be read or were damaged: they are lost.
        lost_pages,
        /// Reads issued.
        reads,
        /// Writes issued.
        writes,
        /// Time since it began, in nanoseconds.
        nanoseconds,
    }
}

/// Leaves the devices to the program while it waits for them.
struct Courtesy {
    /// Hard faults when it last looked.
    faults: u64,
    /// Until when the program comes first.
    until: u64,
}

impl Courtesy {
    /// Whether the program comes first. `faults`: all hard faults until `now`.
    fn is_due(&mut self, faults: u64, now: u64) -> bool {
        if core::mem::replace(&mut self.faults, faults) != faults {
            self.until = now + COURTESY_NS;
        }
        now < self.until
    }

    /// How many of `ready` flights may be under way meanwhile, and the most pages of a run. `read_ns`: what reading one page takes,
    /// 0 if that is not known.
    fn limits(ready: usize, run_pages: u32, read_ns: u64) -> (usize, u32) {
        (ready.min(1), if read_ns < SEEK_NS { run_pages.min(COURTESY_PAGES) } else { run_pages })
    }
}

/// One swapoff.
pub struct Worker<K: Kernel> {
    io: K::Io,
    off: Swapoff,
    buffers: *mut u8,
    run_pages: u32,
    flights_max: usize,
    /// Flights whose buffers are charged.
    ready: usize,
    flights: [Flight; FLIGHTS],
    in_flight: usize,
    courtesy: Courtesy,
    progress: Progress,
    start: u64,
    /// The trouble of this step, if any, and the time of the last report of trouble.
    trouble: Option<Failure>,
    unreadable: Unreadable,
    /// A read of this step has failed, and when the first one did since the last that did not.
    unread: bool,
    unread_since: Option<u64>,
    told_at: u64,
    /// How long there has been trouble without a page leaving the device, in nanoseconds.
    waited_ns: u64,
    /// How it ended, once the core has no record of it any more.
    ended: Option<State>,
}

// SAFETY: the buffers are the worker's own mapping, and only the worker hands them out.
unsafe impl<K: Kernel> Send for Worker<K> where K::Io: Send {}

/// Why a swapoff cannot begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BeginError {
    /// The core refuses.
    Refused(SwapoffRefusal),
    /// No I/O or memory for it.
    Resources(Errno),
}

impl core::fmt::Display for BeginError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            BeginError::Refused(why) => write!(f, "{why}"),
            BeginError::Resources(e) => write!(f, "there is no memory or I/O for a swapoff (error {e})"),
        }
    }
}

impl<K: Kernel> Worker<K> {
    /// Begins to take everything off `device`.
    ///
    /// # Errors
    /// [`BeginError`]; nothing is changed then.
    pub fn new(machine: &Machine<K>, engine: K::Engine, device: DeviceId, unreadable: Unreadable) -> Result<Self, BeginError> {
        Self::with(K::io(engine, TRANSFERS_MAX).map_err(BeginError::Resources)?, machine, device, unreadable)
    }

    /// The same with this I/O. => it is for [`TRANSFERS_MAX`] transfers at a time, and has none under way
    ///
    /// # Errors
    /// As [`Worker::new`].
    pub fn with(io: K::Io, machine: &Machine<K>, device: DeviceId, unreadable: Unreadable) -> Result<Self, BeginError> {
        let (limit, free_low) = {
            let core = machine.core.lock();
            (core.vm.limit(), core.vm.free_low())
        };
        // A buffer is no larger than the number of frames that the page daemon keeps free, or the first one would have to wait.
        let kept = free_low.saturating_sub(TABLE_PAGES);
        let (run_pages, flights_max) = match machine.inject.swapoff_pages {
            0 => ((limit / 64).min(kept).clamp(1, CLUSTER_PAGES_MAX as u32), FLIGHTS),
            n => (n.min(CLUSTER_PAGES_MAX as u64) as u32, 1),
        };
        let pages = (run_pages + TABLE_PAGES) * flights_max as u32;
        let buffers = K::map_anonymous((pages as usize) << PAGE_SHIFT).map_err(BeginError::Resources)?;
        let _ = K::advise(buffers as usize, (pages as usize) << PAGE_SHIFT, Advice::WipeOnFork); // a forked child has no swapoff
        let mut copies = Copies::default();
        let begun = loop {
            let mut core = machine.core.lock();
            match core.vm.swapoff_begin(device, copies) {
                Err(SwapoffRefusal::NoRoom { .. }) if core.vm.count_copies(device, &mut copies) => drop(core),
                begun => break begun,
            }
            machine.let_others();
        };
        let unmap = || {
            // SAFETY: the mapping made above, which nobody has seen.
            unsafe { K::unmap(buffers, (pages as usize) << PAGE_SHIFT) };
        };
        let off = begun.map_err(|refusal| {
            unmap();
            BeginError::Refused(refusal)
        })?;
        let start = K::now_ns();
        let progress = Progress { left_pages: off.pages(), ..Progress::default() };
        Ok(Worker {
            io,
            off,
            buffers,
            run_pages,
            flights_max,
            ready: 0,
            flights: [Flight::Free; FLIGHTS],
            in_flight: 0,
            courtesy: Courtesy { faults: machine.status.counters.hard_faults.get(), until: 0 },
            progress,
            start,
            trouble: None,
            unreadable,
            unread: false,
            unread_since: None,
            told_at: start,
            waited_ns: 0,
            ended: None,
        })
    }

    /// Charges a further flight's buffer to the budget if there is room for it. For the first one, the page daemon is asked to make
    /// room. If it cannot in a while, the buffer is charged above the budget, because the swapoff will help it.
    fn make_ready(&mut self, machine: &Machine<K>) {
        let pages = self.run_pages + TABLE_PAGES;
        let mut core = machine.core.lock();
        let late = self.ready == 0 && K::now_ns() - self.start > BUFFERS_NS;
        if self.ready < self.flights_max && (core.vm.available() >= pages || late) {
            core.charge_buffers(pages);
            self.ready += 1;
        } else if self.ready == 0 {
            drop(core);
            machine.ring_daemon();
            K::sleep_ns(WAIT_NS);
        }
    }

    /// The device.
    pub fn device(&self) -> DeviceId {
        self.off.device()
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        Progress { nanoseconds: K::now_ns() - self.start, ..self.progress }
    }

    /// Does a bit of work; waits at most a millisecond if there is nothing to do but wait. After [`State::Done`] or
    /// [`State::Failed`] the worker must be ended by [`Worker::end`]. Until then, a further step answers the same if the core has
    /// ended the swapoff; otherwise it tries on.
    pub fn step(&mut self, machine: &Machine<K>) -> State {
        self.reap(machine);
        if let Some(end) = self.ended {
            return end; // the core would say that it was cancelled, and its device may have a successor with the same number
        }
        if K::mistake(Mistake::LosesWhatIsAway) {
            self.off.give_up_unreadable();
        }
        if core::mem::take(&mut self.unread) {
            self.pause(UNREAD_NS);
            return self.watch(machine);
        }
        if machine.freeze.is_on() {
            match self.in_flight {
                0 => machine.freeze.wait(WAIT_NS),
                _ => self.io.wait(Some(WAIT_NS)),
            }
            return State::Busy;
        }
        let courtesy = self.courtesy.is_due(machine.status.counters.hard_faults.get(), K::now_ns());
        if self.ready == 0 || !courtesy {
            self.make_ready(machine);
        }
        let (allowed, run_pages) = match courtesy {
            true => Courtesy::limits(self.ready, self.run_pages, machine.core.lock().vm.page_in_times().0),
            false => (self.ready, self.run_pages),
        };
        let (mut scans, begun) = (0, self.progress.reads);
        while self.in_flight < allowed
            && let Some(free) = self.flights[..self.ready].iter().position(|f| matches!(f, Flight::Free))
        {
            if self.progress.reads - begun >= RUNS {
                break; // runs from memory end as soon as they begin, and the caller has others to answer
            }
            let Some(_swapping) = machine.swapping.try_lock() else {
                self.pause(WAIT_NS); // a fork, or a device is being added
                break;
            };
            let map = machine.map.read();
            let step = {
                let mut core = machine.core.lock();
                if K::mistake(Mistake::OffersWhatIsRefused) {
                    self.off.forget_refusals();
                }
                core.vm.swapoff_next(&mut self.off, run_pages)
            };
            let fd = match step {
                SwapoffStep::Move(MoveRun { location, .. }) | SwapoffStep::PageIn(PageIn { location, .. }) => map.fd(location),
                _ => -1,
            };
            drop(map);
            match step {
                SwapoffStep::Move(run) => {
                    self.read(machine, free, (fd, run.location), run.count, |since| Flight::Read { run, fd, since });
                }
                SwapoffStep::PageIn(op) => {
                    let read = Read { op, fd, home: None };
                    self.read(machine, free, (fd, op.location), op.count, |since| Flight::PageIn { read, since });
                }
                SwapoffStep::Again if scans < SCANS => scans += 1,
                SwapoffStep::Again => break,
                SwapoffStep::Wait | SwapoffStep::NoRoom => {
                    if K::mistake(Mistake::ClosesBeforeReadsEnd) && self.progress.left_pages == 0 {
                        machine.map.write().files[self.device().0 as usize] = None;
                    }
                    if step == SwapoffStep::NoRoom {
                        self.trouble = Some(Failure::NoRoom);
                        machine.ring_daemon();
                    }
                    self.pause(WAIT_NS);
                    break;
                }
                SwapoffStep::Done => {
                    self.progress.left_pages = 0;
                    devices::remove(machine, self.device());
                    return self.end_as(State::Done);
                }
                // the page daemon cancelled it, or it would have had to stop the program
                SwapoffStep::Cancelled => return self.end_as(State::Failed(Failure::NoRoom)),
            }
        }
        if allowed > 0 && self.in_flight >= allowed {
            self.pause(WAIT_NS);
        }
        self.watch(machine)
    }

    /// Waits until this swapoff keeps no page busy: until its reads into memory have ended, and their pages are in place. An owner
    /// whose thread runs code of the program's between two steps calls it first. If that code touched such a page, or waited for a
    /// thread that does, the next step would never come. (Pages that are moved are not busy.)
    pub fn settle(&mut self, machine: &Machine<K>) {
        self.reap(machine);
        while self.flights.iter().any(|flight| matches!(flight, Flight::PageIn { .. })) {
            self.io.wait(None);
            self.reap(machine);
        }
    }

    fn pause(&mut self, ns: u64) {
        if self.in_flight > 0 { self.io.wait(Some(ns)) } else { K::sleep_ns(ns) }
    }

    fn end_as(&mut self, state: State) -> State {
        self.ended = Some(state);
        state
    }

    /// Gives up the swapoff if there has been trouble for long, and no page moved. Gives up pages that cannot be read if none could
    /// be for long, wherever they are on the device.
    fn watch(&mut self, machine: &Machine<K>) -> State {
        let left = {
            let core = machine.core.lock();
            core.vm.devices().device_use(self.device()).map_or(0, |u| u.stored)
        };
        if core::mem::replace(&mut self.progress.left_pages, left) != left {
            self.waited_ns = 0;
        }
        let now = K::now_ns();
        if self.unread_since.is_some_and(|since| now - since > unread::PATIENCE_NS) && self.off.unreadable_passes() > 0 {
            match self.unreadable {
                Unreadable::Stay => return State::Failed(Failure::Unread),
                Unreadable::Lost => self.off.give_up_unreadable(),
            }
            self.unread_since = None;
        }
        let waits = K::mistake(Mistake::GivesUpAsItWaits).then_some(Failure::Refused);
        let Some(trouble) = self.trouble.take().or(waits) else { return State::Busy };
        self.waited_ns += (now - core::mem::replace(&mut self.told_at, now)).min(TOLD_NS);
        if self.waited_ns > PATIENCE_NS { State::Failed(trouble) } else { State::Busy }
    }

    /// Ends it: cancels the rest, waits for I/O in flight, and gives the buffers back.
    pub fn end(mut self, machine: &Machine<K>) {
        if self.ended.is_none() {
            machine.core.lock().vm.swapoff_cancel(self.device());
        }
        while self.in_flight > 0 {
            self.io.wait(None);
            self.reap(machine);
        }
        let pages = (self.run_pages + TABLE_PAGES) * self.flights_max as u32;
        // SAFETY: the worker's own mapping; no I/O is in flight.
        unsafe { K::unmap(self.buffers, (pages as usize) << PAGE_SHIFT) };
        let charged = (self.run_pages + TABLE_PAGES) * self.ready as u32;
        machine.core.lock().uncharge_buffers(charged);
    }

    fn buffer(&self, flight: usize, page: u32) -> *mut u8 {
        let page = flight * self.run_pages as usize + page as usize;
        // SAFETY: within the mapping of `run_pages` pages per flight.
        unsafe { self.buffers.add(page << PAGE_SHIFT) }
    }

    fn table(&mut self, flight: usize) -> &mut Table {
        let page = self.flights_max * self.run_pages as usize + flight * TABLE_PAGES as usize;
        // SAFETY: the tables lie after the buffers in the worker's mapping, page-aligned and one next to the other. Zeroed bytes
        // are valid (no page is right). The worker is borrowed exclusively.
        unsafe { &mut *self.buffers.add(page << PAGE_SHIFT).cast() }
    }

    fn read(&mut self, machine: &Machine<K>, flight: usize, (fd, at): (i32, Location), count: u32, new: impl Fn(u64) -> Flight) {
        if at.is_memory {
            // SAFETY: the flight's own buffer, and the flight is free. Pages that are not wanted are passed over later.
            unsafe { machine.load(at, count, u128::MAX, self.buffer(flight, 0)) };
            self.flights[flight] = new(K::now_ns());
            self.in_flight += 1;
            self.progress.reads += 1;
            self.ended(machine, Done { token: flight as u64, result: Ok((count as usize) << PAGE_SHIFT) });
            return;
        }
        let fd = machine.inject.read(fd, at.offset, (count as usize) << PAGE_SHIFT);
        self.flights[flight] = new(K::now_ns());
        self.in_flight += 1;
        self.progress.reads += 1;
        // SAFETY: the flight's own buffer, until its completion.
        unsafe { self.io.read(fd, self.buffer(flight, 0), (count as usize) << PAGE_SHIFT, at.offset, flight as u64) };
        self.io.submit();
    }

    fn reap(&mut self, machine: &Machine<K>) {
        while let Some(done) = self.io.completion() {
            self.ended(machine, done);
        }
    }

    fn ended(&mut self, machine: &Machine<K>, done: Done) {
        self.in_flight -= 1;
        let at = done.token as usize;
        match core::mem::replace(&mut self.flights[at], Flight::Free) {
            Flight::Free => unreachable!("a completion without a flight"),
            Flight::PageIn { read, since } => {
                let op = &read.op;
                let (buffer, from) = (self.buffer(at, 0), (read.fd, op.location.offset));
                // SAFETY: the flight's own buffer, and its read has ended.
                let after = unsafe {
                    let arrived = completion::complete(machine, from, op.count, buffer, done.result);
                    reader::completed(machine, &read, buffer, since, arrived, |_, next| Some(next))
                };
                assert!(after.next.is_none(), "such a read belongs to no stream");
                let read = op.wanted.count_ones() - after.lost - after.unread;
                self.progress.memory_pages += u64::from(read);
                self.progress.lost_pages += u64::from(after.lost);
                self.note_read(read, after.unread);
            }
            Flight::Read { run, fd, since } => self.arrived(machine, at, (run, fd), since, done),
            Flight::Write { run, since, left, slots, pages } => {
                self.written(machine, at, &run, since, (slots, pages), done.result);
                self.write(machine, at, run, left);
            }
        }
    }

    fn arrived(&mut self, machine: &Machine<K>, flight: usize, (mut run, fd): (MoveRun, i32), since: u64, done: Done) {
        let buffer = self.buffer(flight, 0);
        // SAFETY: the flight's own buffer, and the read into it has ended.
        let arrived = unsafe { completion::complete(machine, (fd, run.location.offset), run.count, buffer, done.result) };
        if machine.inject.flip() {
            // SAFETY: as above, at least a page long.
            unsafe { *buffer ^= 1 };
        }
        let read = || (0..run.count).filter(|i| (run.wanted & arrived.good) >> i & 1 == 1);
        let memory = run.location.is_memory;
        self.table(flight).plain = if memory || !machine.content.is_sealed() { u128::MAX } else { 0 };
        let mut unseen = 0u128;
        {
            let core = machine.core.lock();
            for i in read() {
                let expected = core.vm.swapoff_expected(&run, i);
                unseen |= u128::from(expected.is_none()) << i;
                self.table(flight).right[i as usize] = expected;
            }
        }
        let mut damaged = false;
        for i in read() {
            // SAFETY: as above; the page lies within what was read.
            let bytes = unsafe { &*(self.buffer(flight, i) as *const PageBytes) };
            let Table { right, scratch, .. } = self.table(flight);
            right[i as usize] = right[i as usize].filter(|stored| {
                let is_right = if memory {
                    checksum::of(run.page(i), bytes) == *stored
                } else {
                    scratch.copy_from_slice(bytes); // the other device gets the bytes that were read, still sealed
                    machine.content.open(run.page(i), *stored, scratch)
                };
                damaged |= !is_right;
                is_right
            });
        }
        // Those that had just moved elsewhere (mremap) were not checked, and may be back by now. The next pass finds them.
        if !K::mistake(Mistake::TakesUnseenForDamaged) {
            run.wanted &= !unseen;
        }
        let right = &self.table(flight).right;
        let RunArrived { good, lost, unread } = {
            let map = machine.map.read();
            let mut core = machine.core.lock();
            reader::count_io(machine, &mut core, run.location.device, false, run.count, since, arrived.worth(damaged));
            let pages = core.vm.swapoff_arrived(&run, |i, expected| match arrived.of(i) {
                IoResult::Ok if right[i as usize] != Some(expected) => IoResult::Corrupt,
                outcome => outcome,
            });
            if pages.lost != 0 {
                let first = pages.lost.trailing_zeros();
                machine.note_loss(&map, run.page(first), run.location.plus(first), arrived.of(first));
            }
            pages
        };
        self.progress.lost_pages += u64::from(lost.count_ones());
        self.note_read(good.count_ones(), unread.count_ones());
        self.write(machine, flight, run, good);
    }

    /// So many pages were read, and so many could not be.
    fn note_read(&mut self, read: u32, unread: u32) {
        self.off.note_read(read, unread);
        if read > 0 {
            self.unread_since = None;
        }
        if unread > 0 {
            self.unread = true;
            self.unread_since.get_or_insert_with(K::now_ns);
        }
    }

    /// Writes pages of a run that was read, as many as there are consecutive slots for.
    fn write(&mut self, machine: &Machine<K>, flight: usize, run: MoveRun, mut left: u128) {
        let slots = loop {
            if left == 0 || machine.freeze.is_on() {
                break None;
            }
            let (want, near) = (left.count_ones(), run.page(left.trailing_zeros()));
            let _ = growth::make_room(machine); // without more room there are no slots, or fewer
            let mut core = machine.core.lock();
            // paged-out pages are cold: they go to a compressed device only if no other takes them
            let slots = core.vm.launder_slots_past_memory(want, near).or_else(|| core.vm.launder_slots(want, near));
            drop(core);
            match slots {
                Some(slots) if slots.location.is_memory => left = self.store(machine, flight, &run, left, slots),
                slots => break slots,
            }
        };
        let Some(slots) = slots else {
            if left != 0 && !machine.freeze.is_on() {
                self.trouble = Some(Failure::NoRoom);
            }
            machine.core.lock().vm.swapoff_moved(run);
            return;
        };
        let (mut rest, mut pages, mut vectors) = (left, 0u128, 0);
        for _ in 0..slots.count {
            let i = rest.trailing_zeros();
            (rest, pages) = (rest & !(1 << i), pages | 1 << i);
            self.seal(machine, flight, run.page(i), i);
            let base = self.buffer(flight, i) as usize;
            let iov = &mut self.table(flight).iov;
            if vectors > 0 && iov[vectors - 1].base + iov[vectors - 1].len == base {
                iov[vectors - 1].len += PAGE_SIZE;
            } else {
                iov[vectors] = IoVec { base, len: PAGE_SIZE };
                vectors += 1;
            }
        }
        machine.core.lock().vm.launder_issued(slots.count);
        let fd = machine.fd_to_write(&machine.map.read(), slots.location);
        self.flights[flight] = Flight::Write { run, since: K::now_ns(), left: rest, slots, pages };
        self.in_flight += 1;
        self.progress.writes += 1;
        let iov = &raw const self.table(flight).iov;
        // SAFETY: the vectors point into the flight's buffer. They are in its table, which does not change until the write has
        // completed: the kernel may take them as late as that, if it has no memory for the request at first.
        unsafe { self.io.write(fd, &(&*iov)[..vectors], slots.location.offset, flight as u64) };
        self.io.submit();
    }

    /// Makes page `i` of the flight's buffer ready for a device: seals it if swap is encrypted and it is not sealed yet.
    fn seal(&mut self, machine: &Machine<K>, flight: usize, page: PageId, i: u32) {
        // SAFETY: the flight's own buffer, on which no I/O is in flight.
        let bytes = unsafe { &mut *(self.buffer(flight, i) as *mut PageBytes) };
        let table = self.table(flight);
        table.fresh[i as usize] = table.right[i as usize].unwrap_or(Tag::UNKNOWN);
        if machine.content.is_sealed() && table.plain >> i & 1 == 1 {
            table.scratch.copy_from_slice(bytes);
            table.fresh[i as usize] = machine.content.seal(page, &table.scratch, bytes);
            table.plain &= !(1 << i);
        }
    }

    /// Stores pages of a run that was read in slots of the compressed device. Returns the pages that are still to be written. Pages
    /// that the device refused are not among them: they are not tried again.
    fn store(&mut self, machine: &Machine<K>, flight: usize, run: &MoveRun, left: u128, slots: PageOut) -> u128 {
        let first = slots.location.slot_at();
        let mut rest = left;
        self.progress.writes += 1;
        for k in 0..slots.count {
            let map = machine.map.read(); // for each page anew: to pack all takes long
            let i = rest.trailing_zeros();
            rest &= !(1 << i);
            let page = run.page(i);
            // SAFETY: the flight's own buffer, on which no I/O is in flight.
            let bytes = unsafe { &mut *(self.buffer(flight, i) as *mut PageBytes) };
            let table = self.table(flight);
            let old = table.right[i as usize].unwrap_or(Tag::UNKNOWN);
            // it passed its check when it was read, so it does now
            let opened = table.plain >> i & 1 == 1 || machine.content.open(page, old, bytes);
            table.plain |= 1 << i;
            let stored = match &map.pool {
                Some(pool) if opened => pool.store(first + k, pool.packer().pack(bytes)).is_ok(),
                _ => false,
            };
            let result = if stored { IoResult::Ok } else { IoResult::NoSpace };
            let mut core = machine.core.lock();
            let moved = core.vm.swapoff_written(run, i, slots.slot(k), (old, checksum::of(page, bytes)), result);
            core.unread.forget(page, K::now_ns());
            self.wrote(moved, result);
            if let Some(pool) = &map.pool {
                pool.refill(&mut core.vm);
            }
        }
        rest
    }

    fn written(
        &mut self,
        machine: &Machine<K>,
        flight: usize,
        run: &MoveRun,
        since: u64,
        (slots, pages): (PageOut, u128),
        result: Result<usize, Errno>,
    ) {
        let whole = result.map_or(0, |n| n >> PAGE_SHIFT) as u32;
        let failed = match result {
            Err(errno::ENOSPC) => IoResult::NoSpace,
            Err(e) => IoResult::Io(e),
            Ok(_) => IoResult::Io(errno::EIO),
        };
        let mut core = machine.core.lock();
        reader::count_io(machine, &mut core, slots.location.device, true, pages.count_ones(), since, result);
        let each = (0..CLUSTER_PAGES_MAX as u32).filter(|i| pages >> i & 1 == 1);
        for (k, i) in each.enumerate() {
            let result = if (k as u32) < whole || K::mistake(Mistake::BelievesFailedMoves) { IoResult::Ok } else { failed };
            let table = self.table(flight);
            let tags = (table.right[i as usize].unwrap_or(Tag::UNKNOWN), table.fresh[i as usize]);
            let moved = core.vm.swapoff_written(run, i, slots.slot(k as u32), tags, result);
            core.unread.forget(run.page(i), K::now_ns());
            self.wrote(moved, result);
        }
    }

    /// Counts a page that was written, or whose write failed.
    fn wrote(&mut self, moved: bool, result: IoResult) {
        self.progress.moved_pages += u64::from(moved);
        if result != IoResult::Ok {
            self.trouble = Some(Failure::Refused);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four runs of 64 pages at a time kept the disk busy: a thread that touched its memory had 4,000 faults during a swapoff of
    /// 512 MiB, and waited 2 ms for one in a hundred. With one run it had 15,000 to 24,000, and waited 0.5 ms. With a short one it
    /// waits 0.1 ms.
    #[test]
    fn a_swapoff_makes_way_for_the_faults_of_the_program() {
        let mut courtesy = Courtesy { faults: 7, until: 0 };
        assert!(!courtesy.is_due(7, 1000), "no fault since it began");
        assert!(courtesy.is_due(8, 2000));
        assert!(courtesy.is_due(8, 2000 + COURTESY_NS - 1));
        assert!(!courtesy.is_due(8, 2000 + COURTESY_NS), "the program has what it needs");
        assert_eq!(Courtesy::limits(4, 64, 50_000), (1, COURTESY_PAGES));
        assert_eq!(Courtesy::limits(4, 4, 50_000), (1, 4), "the buffers are no longer");
        assert_eq!(Courtesy::limits(4, 64, 5_000_000), (1, 64), "a disk that seeks takes as long for one page");
        assert_eq!(Courtesy::limits(0, 64, 50_000).0, 0, "no buffer is ready");
    }
}

//! A program with regions of files: what its threads have in common, the thread that writes changed pages back, and others who
//! have the files too. What one of its threads does is in `thread.rs`.
//!
//! Each thread has a few regions, one after the other of each file, and knows what each of their pages must hold. It reads, writes,
//! flushes, reads again, empties, closes. The write-back thread, and another thread of the program's, flush the same regions
//! meanwhile. (The regions are made and ended as the library does it: `crates/overspill/src/region.rs`, `file_region.rs`,
//! `file.rs`.)
//!
//! What must hold: see the head of `lib.rs`.

mod thread;

pub use thread::FileThread;

use crate::home::{File, FileTrouble, Homes};
use crate::in_thread::Queue;
use crate::kernel::Sim;
use crate::program::Going;
use crate::world::{World, say};
use overspill_machine::Machine;
use overspill_machine::flush::{FlushError, Flushed, Flusher};
use overspill_machine::kernel::Kernel as _;
use overspill_machine::machine::Delivery;
use overspill_simkernel::call::{Call, Outcome, READ_WRITE, SIGBUS};
use overspill_simkernel::pmap::PAGE;
use overspill_simkernel::rng::Rng;
use overspill_simkernel::sched::{self, Timeout};
use overspill_vm::Access;
use overspill_vm::page::State;
use overspill_vm::types::{ObjectId, PageId};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// The first address of a region.
const BASE: usize = 1 << 32;
/// The bytes of addresses that each region has.
const SPAN: usize = 1 << 24;
/// Pages that write-back flushes at a time.
const STEP: u64 = 16;
/// What a stranger writes to its memory.
const STRANGERS: u8 = 77;
/// How often a region that is to be closed is flushed before its changes are given up.
const TRIES: usize = 3;

/// How a program uses files.
#[derive(Clone, Copy, Debug)]
pub struct FileHabits {
    /// Threads that use files.
    pub threads: usize,
    /// Steps of each.
    pub steps: usize,
    /// Regions of each at a time.
    pub regions: usize,
    /// The most pages of a region.
    pub pages: usize,
    /// Weights: touch, sweep, flush, reload, punch, close, change of budget or policy.
    pub weights: [usize; 7],
    /// The most pages of a sweep.
    pub sweep: u64,
    /// A stranger takes the places of regions that are closed.
    pub stranger: bool,
    /// In so many of a thousand of their steps others make a file shorter or longer.
    pub lengths: usize,
    /// Regions have replacement policies of their own, which change.
    pub policies: bool,
    /// In so many of a thousand of their steps threads make a region longer. Then regions have room for that.
    pub grows: usize,
    /// In so many of a thousand of their steps others end the process, or stop the machine. Then another process goes on with what
    /// is left of the files.
    pub crashes: usize,
    /// How the files' device fails.
    pub trouble: FileTrouble,
}

/// What the program knows of a page.
#[derive(Clone, Debug)]
struct Page {
    /// What it holds, if the region may have something else there than what others read in the file: it was written, or the region
    /// is the only one who writes.
    holds: Option<u8>,
    /// The contents that the device may have: those since the last flush, oldest first.
    since: Vec<u8>,
    /// How many older ones there were.
    older: usize,
    /// [`Homes::cuts`] when it was known to be there; `None`: it lay beyond the end.
    cuts: Option<usize>,
    /// The version of the file's page that was seen last.
    seen: usize,
    /// It was not in memory when fdatasync failed: what the device has is not known until it is changed.
    unsure: bool,
    /// How often that has happened.
    failures: usize,
    /// A touch was an error: it stays one.
    lost: bool,
    /// The last of `since` is being written to memory.
    writing: bool,
}

/// A region.
struct Region {
    object: ObjectId,
    base: usize,
    fd: i32,
    access: Access,
    /// The page of the file that is page 0.
    first: u64,
    pages: RefCell<Vec<Page>>,
    /// How long it may become, in pages.
    capacity: u64,
    /// So many pages the file has on the device, in any case.
    synced: Cell<u64>,
    /// It is being written back.
    written_back: Cell<bool>,
    /// How many other threads of the program's flush it or read its pages.
    users: Cell<usize>,
    /// Its owner needs it for itself. The write-back thread goes on meanwhile.
    taken: Cell<bool>,
    /// Its owner gives pages up, from this one on.
    given_up: Cell<Option<u64>>,
    /// It is about to be closed: the write-back thread is to leave it alone, too.
    leaves: Cell<bool>,
    /// It has a policy of its own.
    own_policy: Cell<bool>,
}

impl Region {
    fn len(&self) -> u64 {
        self.pages.borrow().len() as u64
    }
    fn at(&self, index: u64) -> usize {
        self.base + index as usize * PAGE
    }
    fn id(&self, index: u64) -> PageId {
        PageId::new(self.object, index)
    }
    /// Another thread than its owner uses it.
    fn in_use<T>(&self, f: impl FnOnce() -> T) -> T {
        self.users.update(|n| n + 1);
        let result = f();
        self.users.update(|n| n - 1);
        result
    }
}

/// What the threads of a program have in common.
pub struct Files {
    machine: Arc<Machine<Sim>>,
    world: Rc<World>,
    /// Read-write regions.
    open: RefCell<Vec<Rc<Region>>>,
    /// Threads that use files and have not ended.
    threads: Cell<usize>,
    /// How often a region's pages were given up.
    given_up: sched::Word,
    /// The addresses of a region that is being unmapped, and how often there was one.
    leaving: Cell<Option<(usize, usize)>>,
    left: sched::Word,
    /// A stranger has memory at such addresses.
    is_strangers: Cell<bool>,
    /// Delivery is in-thread: readahead for the reader thread.
    queue: Queue,
    /// The process has ended, or (true) the machine has stopped.
    crashed: Cell<Option<bool>>,
}

/// A thread's means to flush.
type With = Flusher<Sim>;

/// What a thread flushes with.
fn flusher() -> With {
    let io = Sim::io((), Sim::FLUSH_PAGES as u32).expect("simulated I/O");
    Flusher::new(io).expect("memory")
}

thread_local! {
    static FILES: RefCell<Option<Rc<Files>>> = const { RefCell::new(None) };
}

/// What the threads of this thread's run have in common.
pub fn files() -> Rc<Files> {
    FILES.with_borrow(|files| Rc::clone(files.as_ref().expect("there are some")))
}

impl Files {
    /// Makes files for a program with these habits, or takes what is left of another's. They are this thread's until the next call.
    pub fn begin(machine: &Arc<Machine<Sim>>, world: &Rc<World>, habits: FileHabits, left: Vec<File>, seed: u64) {
        world.homes.begin(habits.threads * habits.regions, left, habits.crashes > 0, seed, habits.trouble);
        let (machine, world) = (Arc::clone(machine), Rc::clone(world));
        FILES.set(Some(Rc::new(Files {
            machine,
            world,
            open: RefCell::default(),
            threads: Cell::new(habits.threads),
            given_up: sched::Word::new(0),
            leaving: Cell::new(None),
            left: sched::Word::new(0),
            is_strangers: Cell::new(false),
            queue: Queue::default(),
            crashed: Cell::new(None),
        })));
    }

    /// What is left of the files if the run ended by a crash.
    ///
    /// # Panics
    /// If something is missing of what a flush had written.
    pub fn after_crash(&self, seed: u64) -> Option<Vec<File>> {
        let machine_stopped = self.crashed.get()?;
        self.homes().crash(seed, machine_stopped);
        for region in self.open.borrow().iter() {
            let (there, synced) = (self.homes().len(region.fd).div_ceil(PAGE as u64), region.synced.get());
            assert!(there >= synced, "{} has {there} pages after a crash, and had {synced} at a flush", region.fd);
            for (i, page) in region.pages.borrow().iter().enumerate() {
                let at = region.first + i as u64;
                let ends = self.homes().ends(region.fd, at);
                let right = page.unsure || ends.iter().all(|byte| page.since.contains(byte));
                assert!(right || at >= there, "page {i} of {:?} is {ends:?} after a crash: {page:?}", region.object);
            }
        }
        Some(self.homes().take())
    }

    /// Forgets them.
    pub fn end() {
        FILES.set(None);
    }

    fn homes(&self) -> &Homes {
        &self.world.homes
    }

    fn is_in_thread(&self) -> bool {
        self.machine.config.delivery == Delivery::InThread
    }

    /// The reader thread.
    pub fn reader(&self) {
        self.queue.reader(&self.machine);
    }

    /// A thread touches memory. If delivery is in-thread, it serves its fault itself, until the page is there or is lost.
    fn touch(&self, at: usize, call: Call) -> Outcome {
        loop {
            let outcome = self.world.call(call);
            let faults = outcome == Outcome::Signal(SIGBUS) && self.is_in_thread() && !self.world.is_poisoned(at);
            if !faults || !self.queue.serve(&self.machine, at) {
                return outcome;
            }
        }
    }

    fn wait(&self, seen: u32) {
        self.machine.ring_daemon();
        self.machine.arrivals.wait(seen);
    }

    fn wait_until(&self, mut is_so: impl FnMut() -> bool) {
        loop {
            let seen = self.machine.arrivals.count();
            if is_so() {
                return;
            }
            self.wait(seen);
        }
    }

    /// How often each page has come to lie beyond the end, for each page of the region.
    fn cuts(&self, region: &Region) -> Vec<Option<usize>> {
        (0..region.len()).map(|i| self.homes().cuts(region.fd, region.first + i)).collect()
    }

    /// Asserts that the device can have only what it may have.
    fn check_device(&self, region: &Region) {
        if region.access != Access::ReadWrite {
            return;
        }
        for (i, page) in region.pages.borrow().iter().enumerate() {
            let cuts = self.homes().cuts(region.fd, region.first + i as u64);
            if cuts.is_none() || cuts != page.cuts {
                continue;
            }
            for byte in self.homes().may_hold(region.fd, region.first + i as u64) {
                let (object, since) = (region.object, &page.since);
                assert!(since.contains(&byte), "the device may have {byte} of page {i} of {object:?}, and not one of {since:?}");
            }
        }
    }

    /// Which pages are in memory, and how often each was read from the file.
    fn in_memory(&self, region: &Region) -> Vec<Option<u32>> {
        let core = self.machine.core.lock();
        let there = |i| {
            let word = core.vm.page(region.id(i));
            matches!(word.state(), State::Active | State::Inactive | State::Clean)
        };
        (0..region.len()).map(|i| there(i).then(|| self.homes().reads(region.fd, region.first + i))).collect()
    }

    /// Writes changed pages of a range, and waits for the device if `sync`.
    fn flush(&self, with: &mut With, region: &Region, range: Range<u64>, sync: bool) -> Result<(), FlushError> {
        let machine = &*self.machine;
        if sync {
            machine.begin_sync(region.object, |seen| self.wait(seen));
        }
        // what each page holds at least, if the device is to have that afterwards
        let mark = |page: &Page| {
            let last = page.older + page.since.len() - 1 - page.writing as usize;
            (!page.unsure).then_some((last, page.failures))
        };
        let marks: Vec<Option<(usize, usize)>> = region.pages.borrow().iter().map(mark).collect();
        let cuts = self.cuts(region);
        let mut flushed = Flushed::default();
        with.flush(machine, region.object, range.clone(), &mut flushed, |seen| self.wait(seen));
        if !sync {
            return flushed.error.map_or(Ok(()), Err);
        }
        let before = self.in_memory(region);
        let synced = machine.sync_home(region.object, region.len());
        let after = self.in_memory(region);
        if synced.is_err() {
            for (page, (before, after)) in region.pages.borrow_mut().iter_mut().zip(before.iter().zip(after)) {
                if before.is_none() || *before != after {
                    page.unsure = true;
                    page.failures += 1;
                }
            }
        }
        flushed.synced(synced);
        let told = flushed.error.map_or(Ok(()), Err);
        self.say(format_args!("actor {} has flushed {range:?} of {}: {told:?}, fdatasync {synced:?}", sched::running(), region.fd));
        if told.is_ok() {
            region.synced.set(region.synced.get().max(region.first + marks.len() as u64));
            for i in range {
                let page = &mut region.pages.borrow_mut()[i as usize];
                let cut = self.homes().cuts(region.fd, region.first + i);
                // (what its owner may have written meanwhile may be there or not)
                if let Some((mark, failures)) = marks[i as usize]
                    && failures == page.failures
                    && cut.is_some()
                    && cut == cuts[i as usize]
                {
                    let older = mark.saturating_sub(page.older);
                    page.since.drain(..older);
                    page.older += older;
                }
            }
        }
        self.check_device(region);
        told
    }

    // ---- the write-back thread, and a thread that flushes ----

    /// The thread that writes changed pages back. Now and then it flushes as another thread of the program's would.
    pub fn write_back(&self, seed: u64) {
        let mut rng = Rng::new(seed);
        let mut with = flusher();
        while self.threads.get() > 0 {
            sched::Word::new(0).wait(0, Timeout::Tick(1_000 + rng.below(3_000_000) as u64));
            let as_program = rng.below(3) == 0;
            let is_free = |region: &&Rc<Region>| !(region.leaves.get() || as_program && region.taken.get());
            let free: Vec<_> = self.open.borrow().iter().filter(is_free).cloned().collect();
            if free.is_empty() {
                continue;
            }
            let region = Rc::clone(&free[rng.below(free.len())]);
            if as_program {
                let _ = region.in_use(|| self.flush(&mut with, &region, 0..region.len(), true));
            } else {
                region.written_back.set(true);
                let mut at = 0;
                while at < region.len() && !region.leaves.get() {
                    let end = region.len().min(at + STEP);
                    let _ = self.flush(&mut with, &region, at..end, false);
                    at = end;
                }
                region.written_back.set(false);
            }
        }
    }

    /// A thread of the program's that reads pages next to those that their owner gives up, so that these are read ahead.
    pub fn neighbour(&self, seed: u64) {
        let mut rng = Rng::new(seed);
        while self.threads.get() > 0 {
            let begun = self.given_up.load();
            let open = self.open.borrow().clone();
            for region in open {
                let Some(start) = region.given_up.get() else { continue };
                let index = start.saturating_sub(1 + rng.below(4) as u64);
                let there = index < start && self.homes().cuts(region.fd, region.first + index).is_some();
                let at = region.at(index);
                region.in_use(|| {
                    if there && self.touch(at, Call::Read { at }) == Outcome::Signal(SIGBUS) {
                        region.pages.borrow_mut()[index as usize].lost = true;
                    }
                });
            }
            self.given_up.wait(begun, Timeout::Tick(3_000_000));
        }
    }

    /// A region is about to be unmapped.
    fn leaves(&self, start: usize, end: usize) {
        self.leaving.set(Some((start, end)));
        self.left.add(1);
        self.left.wake(1);
    }

    /// A thread of the program's that has nothing to do with the pager. The kernel gives it the addresses of regions that have just
    /// been unmapped.
    pub fn stranger(&self) {
        while self.threads.get() > 0 {
            let left = self.left.load();
            while let Some((start, end)) = self.leaving.get() {
                let len = end - start;
                self.is_strangers.set(true);
                if self.world.call(Call::Map { at: start, len, prot: READ_WRITE, replace: false }) != Outcome::Ok(start) {
                    self.is_strangers.set(false);
                    sched::Word::new(0).wait(0, Timeout::Tick(1_000)); // the region is there still
                    continue;
                }
                let _going = Going::new(&self.world, len / PAGE); // its pages are not the pager's to charge
                for at in (start..end).step_by(PAGE) {
                    assert_eq!(self.world.call(Call::Write { at, byte: STRANGERS }), Outcome::Ok(0));
                }
                sched::Word::new(0).wait(0, Timeout::Tick(20_000));
                for at in (start..end).step_by(PAGE) {
                    assert_eq!(self.world.call(Call::Read { at }), Outcome::Ok(STRANGERS.into()), "a stranger's memory at {at:x}");
                }
                assert_eq!(self.world.call(Call::Unmap { at: start, len }), Outcome::Ok(0));
                self.is_strangers.set(false);
                self.leaving.set(None);
            }
            self.left.wait(left, Timeout::Tick(3_000_000));
        }
    }

    /// Others write to files that no read-write region has, and change the length of all.
    pub fn others(&self, habits: FileHabits, seed: u64) {
        let mut rng = Rng::new(seed);
        while self.threads.get() > 0 {
            sched::Word::new(0).wait(0, Timeout::Tick(1_000 + rng.below(2_000_000) as u64));
            if habits.crashes > 0 && rng.below(1000) < habits.crashes {
                let machine_stops = rng.below(2) == 0;
                self.say(format_args!("{} stops", if machine_stops { "the machine" } else { "the process" }));
                self.crashed.set(Some(machine_stops));
                sched::stop();
            }
            let (fd, _) = Homes::fds(rng.below(habits.threads * habits.regions));
            let pages = self.homes().len(fd).div_ceil(PAGE as u64);
            if rng.below(1000) < habits.lengths {
                let len = (rng.below(habits.pages + 8) * PAGE + rng.below(2) * rng.below(PAGE)) as u64;
                self.say(format_args!("others make {fd} {len} bytes long"));
                self.homes().set_len(fd, len);
            } else if self.homes().holder(fd) != Some(Access::ReadWrite) && pages > 0 {
                let (page, byte) = (rng.below(pages as usize) as u64, 2 * rng.below(128) as u8);
                self.homes().others_write(fd, page, byte);
            }
            self.check_devices();
        }
    }

    fn check_devices(&self) {
        let open: Vec<_> = self.open.borrow().clone();
        open.iter().for_each(|region| self.check_device(region));
    }

    fn say(&self, what: std::fmt::Arguments<'_>) {
        say(format_args!("files"), what);
    }
}

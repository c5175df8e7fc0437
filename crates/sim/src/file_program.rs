//! A program with regions of files: its threads, the thread that writes changed pages back, and others who have the files too.
//!
//! Each thread has a few regions, one after the other of each file, and knows what each of their pages must hold. It reads, writes,
//! flushes, reads again, empties, closes. The write-back thread, and another thread of the program's, flush the same regions
//! meanwhile. (The regions are made and ended as the library does it: `crates/overspill/src/region.rs`, `file_region.rs`,
//! `file.rs`.)
//!
//! What must hold: see the head of `lib.rs`.

use crate::home::{File, FileTrouble, Homes};
use crate::in_thread::Queue;
use crate::kernel::Sim;
use crate::program::{Going, LEAST_BUDGET};
use crate::world::{World, tell};
use overspill_machine::Machine;
use overspill_machine::files::DeviceName;
use overspill_machine::flush::{FlushError, Flushed, Flusher};
use overspill_machine::home::HomeFile;
use overspill_machine::machine::Delivery;
use overspill_machine::ranges::{Flags, Kind, Range as AddressRange};
use overspill_simkernel::call::{Advice, Call, Outcome, READ_WRITE, SIGBUS};
use overspill_simkernel::pmap::PAGE;
use overspill_simkernel::rng::Rng;
use overspill_simkernel::sched::{self, Timeout};
use overspill_vm::page::State;
use overspill_vm::types::{ObjectId, PageId, Tag};
use overspill_vm::{Access, Home, policy};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The first address of a region.
const BASE: usize = 1 << 32;
/// The bytes of addresses that each region has.
const SPAN: usize = 1 << 24;
/// Pages that write-back flushes at a time.
const STEP: u64 = 16;
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
    /// Threads that flush it.
    flushers: Cell<usize>,
    /// Its owner needs it for itself.
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
}

/// What the threads of a program have in common.
pub struct Files {
    machine: Arc<Machine<Sim>>,
    world: Rc<World>,
    /// Read-write regions.
    open: RefCell<Vec<Rc<Region>>>,
    /// Threads that use files and have not ended.
    threads: Cell<usize>,
    /// Delivery is in-thread: readahead for the reader thread.
    queue: Queue,
    /// The process has ended, or (true) the machine has stopped.
    crashed: Cell<Option<bool>>,
}

/// A thread's means to flush.
type With = Flusher<Sim>;

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
        if machine.core.lock().vm.take_home_lost(region.object) > 0 {
            flushed.error.get_or_insert(FlushError::Beyond);
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
        let told = match flushed.error {
            Some(error) => Err(error),
            None => synced.map_err(FlushError::Io),
        };
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
        let mut with = Flusher::new(()).expect("memory");
        while self.threads.get() > 0 {
            sched::Word::new(0).wait(0, Timeout::Tick(1_000 + rng.below(3_000_000) as u64));
            let free: Vec<_> = self.open.borrow().iter().filter(|region| !region.leaves.get()).cloned().collect();
            if free.is_empty() {
                continue;
            }
            let region = Rc::clone(&free[rng.below(free.len())]);
            region.flushers.update(|n| n + 1);
            if rng.below(3) == 0 {
                let _ = self.flush(&mut with, &region, 0..region.len(), true);
            } else {
                let mut at = 0;
                while at < region.len() && !region.leaves.get() {
                    let end = region.len().min(at + STEP);
                    let _ = self.flush(&mut with, &region, at..end, false);
                    at = end;
                }
            }
            region.flushers.update(|n| n - 1);
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
        if std::env::var_os("TELL").is_some() {
            println!("{:>9} files: {what}", sched::now());
        }
    }
}

/// A thread that uses files.
pub struct FileThread<'a> {
    files: &'a Files,
    rng: Rng,
    habits: FileHabits,
    name: usize,
    step: usize,
    regions: Vec<Option<Rc<Region>>>,
    /// The last byte that was written to each page of a file.
    written: BTreeMap<(i32, u64), u8>,
    with: With,
}

impl<'a> FileThread<'a> {
    /// Makes thread number `name`.
    pub fn new(files: &'a Files, seed: u64, habits: FileHabits, name: usize) -> Self {
        let regions = (0..habits.regions).map(|_| None).collect();
        let with = Flusher::new(()).expect("memory");
        FileThread { files, rng: Rng::new(seed), habits, name, step: 0, regions, written: BTreeMap::new(), with }
    }

    /// Runs all steps of the thread.
    pub fn run(&mut self) {
        for step in 0..self.habits.steps {
            self.step = step;
            let slot = self.rng.below(self.habits.regions);
            let Some(region) = self.regions[slot].clone() else {
                self.open(slot);
                continue;
            };
            if self.habits.grows > 0 && self.rng.below(1000) < self.habits.grows {
                self.grow(&region);
                continue;
            }
            match self.rng.weighted(&self.habits.weights) {
                0 => self.touch(&region),
                1 => self.sweep(&region),
                2 => self.flush(&region),
                3 => self.reload(&region),
                4 => self.punch(&region),
                5 => self.close(slot),
                _ => self.whim(&region),
            }
            sched::progress();
        }
        (0..self.habits.regions).for_each(|slot| self.close(slot));
        self.files.threads.update(|n| n - 1);
    }

    fn say(&self, what: std::fmt::Arguments<'_>) {
        if std::env::var_os("TELL").is_some() {
            println!("{:>9} file thread {} step {}: {what}", sched::now(), self.name, self.step);
        }
    }

    fn cuts(&self, region: &Region, i: u64) -> Option<usize> {
        self.files.homes().cuts(region.fd, region.first + i)
    }

    /// A range of a region, which is not empty.
    fn range(&mut self, region: &Region, most: u64) -> Range<u64> {
        let start = self.rng.below(region.len() as usize) as u64;
        start..region.len().min(start + 1 + self.rng.below(most as usize) as u64)
    }

    // ---- regions come and go ----

    fn open(&mut self, slot: usize) {
        let (machine, homes) = (&*self.files.machine, self.files.homes());
        let number = self.name * self.habits.regions + slot;
        let (fd, rest) = Homes::fds(number);
        let access =
            self.rng.pick(&[Access::ReadOnly, Access::ReadWrite, Access::ReadWrite, Access::ReadWrite, Access::CopyOnWrite]);
        let first = self.rng.below(4) as u64;
        let wanted = 1 + self.rng.below(self.habits.pages) as u64;
        let there = homes.len(fd).div_ceil(PAGE as u64).saturating_sub(first);
        if access != Access::ReadWrite && there == 0 {
            return;
        }
        let pages = if access == Access::ReadWrite { wanted } else { wanted.min(there) };
        homes.hold(fd, Some(access));
        let least = (first + pages) * PAGE as u64 - self.rng.below(2) as u64 * self.rng.below(PAGE) as u64;
        if access == Access::ReadWrite && homes.len(fd) < least {
            homes.set_len(fd, least);
        }
        let (base, object) = (BASE + number * SPAN, ObjectId(1 + number as u16));
        self.say(format_args!("opens {fd} from page {first} on, {pages} pages at {base:x}, {access:?}"));
        // (from here to the next turn nothing happens to the file)
        let known: Vec<Page> = (0..pages).map(|i| self.known(fd, first + i, access)).collect();
        let capacity = if self.habits.grows > 0 { pages + self.rng.below(self.habits.pages) as u64 } else { pages };
        let region = Rc::new(Region {
            object,
            base,
            fd,
            access,
            first,
            pages: RefCell::new(known),
            capacity,
            synced: Cell::new(0),
            flushers: Cell::new(0),
            leaves: Cell::new(false),
            own_policy: Cell::new(false),
        });
        let (len, home) = (capacity as usize * PAGE, self.home(&region));
        let mapped = self.files.world.call(Call::Map { at: base, len, prot: READ_WRITE, replace: false });
        assert_eq!(mapped, Outcome::Ok(base));
        machine.await_unmaps(base, base + len);
        let wanted = machine.core.lock().vm.tags_wanted();
        let tags = (access != Access::ReadOnly && wanted > 0).then(|| vec![Tag::UNKNOWN; wanted]);
        {
            let mut map = machine.map.write();
            map.origins[object.0 as usize] = base;
            let mut name = Box::new(DeviceName::new());
            name.set(b"a file");
            let file = HomeFile { access, fd, rest, direct: true, name, retry_at: AtomicU64::new(0) };
            map.homes[object.0 as usize] = Some(file);
            machine.core.lock().vm.set_home(object, home, tags);
            let range =
                AddressRange { start: base, end: base + len, kind: Kind::Managed, object, origin: base, flags: Flags::NONE };
            machine.manage(&mut map, range);
            assert!(map.ranges.find(base).is_some());
        }
        if access == Access::ReadWrite {
            self.files.open.borrow_mut().push(Rc::clone(&region));
        }
        if self.habits.policies && self.rng.below(2) == 0 {
            self.choose_policy(&region);
        }
        self.regions[slot] = Some(region);
    }

    /// What a program knows of a page of a file that it has opened.
    fn known(&self, fd: i32, page: u64, access: Access) -> Page {
        let homes = self.files.homes();
        let byte = homes.byte(fd, page);
        let mut since = homes.may_hold(fd, page);
        since.push(byte);
        Page {
            holds: (access == Access::ReadWrite).then_some(byte),
            since,
            older: 0,
            cuts: homes.cuts(fd, page),
            seen: homes.version(fd, page),
            unsure: homes.is_unsure(fd, page),
            failures: 0,
            lost: false,
            writing: false,
        }
    }

    /// Makes a region longer, and a read-write region's file if that is shorter.
    fn grow(&mut self, region: &Region) {
        let (files, before) = (self.files, region.len());
        let after = before + self.rng.below((region.capacity - before) as usize + 1) as u64;
        let ragged = self.rng.below(2) as u64 * self.rng.below(PAGE) as u64;
        let needed = (region.first + after) * PAGE as u64 - ragged;
        if after == before || region.access != Access::ReadWrite && files.homes().len(region.fd) < needed {
            return;
        }
        self.take(region);
        if files.homes().len(region.fd) < needed {
            files.homes().set_len(region.fd, needed);
        }
        self.say(format_args!("makes {} as long as {needed} bytes, {after} pages of it", region.fd));
        // the page with the old end was filled up with zeroes: if others have made the file longer, it has something else there
        let first = before - u64::from(region.access == Access::ReadOnly);
        self.give_up(region, &(first..after));
        region.pages.borrow_mut().truncate(first as usize);
        let known = (first..after).map(|i| self.known(region.fd, region.first + i, region.access));
        region.pages.borrow_mut().extend(known);
        let home = self.home(region);
        files.machine.core.lock().vm.set_home_pages(region.object, home.pages);
        region.leaves.set(false);
    }

    /// Gives the region a policy of its own, or another one, or the pager's again.
    fn choose_policy(&mut self, region: &Region) {
        if region.own_policy.get() && self.rng.below(4) == 0 {
            self.say(format_args!("has {} managed by the pager's policy again", region.fd));
            self.files.machine.end_policy_of(region.object);
            assert_eq!(self.files.machine.core.lock().vm.own_policy(region.object), None);
            region.own_policy.set(false);
            return;
        }
        let policy = self.rng.pick(policy::NAMES);
        self.say(format_args!("has {} managed by {policy} from now on", region.fd));
        assert!(self.files.machine.set_policy_of(region.object, &policy.parse().expect("its name")));
        region.own_policy.set(true);
        let number = self.files.machine.core.lock().vm.own_policy(region.object).expect("it has one");
        let (row, mut shown) = (&self.files.machine.status.policies[number], [0; 64]);
        row.policy.copy_to(&mut shown);
        assert!(shown.starts_with(policy.as_bytes()) && !row.region.is_empty(), "what the status block has of {policy}");
    }

    fn home(&self, region: &Region) -> Home {
        let offset = region.first * PAGE as u64;
        let len = self.files.homes().len(region.fd);
        Home { access: region.access, offset, pages: len.saturating_sub(offset).div_ceil(PAGE as u64) }
    }

    /// The thread has the region for itself, until it is left to others again.
    fn take(&self, region: &Region) {
        region.leaves.set(true);
        while region.flushers.get() > 0 {
            sched::Word::new(0).wait(0, Timeout::Tick(20_000));
        }
    }

    fn close(&mut self, slot: usize) {
        let Some(region) = self.regions[slot].take() else { return };
        let (files, machine) = (self.files, &*self.files.machine);
        self.take(&region);
        let mut written = false;
        if region.access == Access::ReadWrite {
            let with = &mut self.with;
            written = (0..TRIES).any(|_| files.flush(with, &region, 0..region.len(), false).is_ok());
            files.open.borrow_mut().retain(|other| other.object != region.object);
        }
        self.say(format_args!("closes {}, written: {written}", region.fd));
        let len = region.capacity as usize;
        {
            let _going = Going::new(&files.world, len);
            // (under the lock no thread moves or fills its pages)
            let mut map = files.is_in_thread().then(|| machine.map.write());
            assert_eq!(files.world.call(Call::Unmap { at: region.base, len: len * PAGE }), Outcome::Ok(0));
            files.world.forget_used(region.base, region.base + len * PAGE);
            if let Some(map) = &mut map {
                machine.forget_range(map, region.base, region.base + len * PAGE, true);
            }
            drop(map);
            if region.own_policy.get() {
                machine.end_policy_of(region.object);
            }
            machine.catch_up();
        }
        files.wait_until(|| machine.is_home_gone(region.object, region.capacity));
        {
            let mut map = machine.map.write();
            machine.core.lock().vm.clear_home(region.object);
            map.homes[region.object.0 as usize] = None;
        }
        files.check_device(&region);
        for (i, page) in region.pages.borrow().iter().enumerate() {
            let (cuts, byte) = (self.cuts(&region, i as u64), files.homes().byte(region.fd, region.first + i as u64));
            if let Some(holds) = page.holds.filter(|_| written && cuts.is_some() && cuts == page.cuts) {
                assert_eq!(byte, holds, "page {i} of {:?}, which was closed", region.object);
            }
        }
        files.homes().hold(region.fd, None);
    }

    // ---- touches ----

    /// Whether the region's page must be as the program left it.
    fn is_certain(&self, region: &Region, i: u64, page: &Page) -> bool {
        let cuts = self.cuts(region, i);
        page.holds.is_some() && (region.access == Access::CopyOnWrite || cuts.is_some() && cuts == page.cuts)
    }

    /// A touch was an error. It may be one only if the page cannot be read.
    fn touch_failed(&self, region: &Region, i: u64) {
        let page = &mut region.pages.borrow_mut()[i as usize];
        let cuts = self.cuts(region, i);
        let in_file = region.access != Access::CopyOnWrite || page.holds.is_none();
        let may = page.lost || in_file && (self.files.homes().is_lossy() || cuts.is_none() || cuts != page.cuts);
        assert!(may, "page {i} of {:?} ({:?}) is lost in step {} of file thread {}", region.object, page, self.step, self.name);
        page.lost = true;
    }

    fn read(&mut self, region: &Region, i: u64) {
        let at = region.at(i);
        tell(at, PAGE, || "program reads".to_string());
        let got = self.files.touch(at, Call::Read { at });
        tell(at, PAGE, || format!("program has read {got:?}"));
        let byte = match got {
            Outcome::Signal(SIGBUS) => return self.touch_failed(region, i),
            Outcome::Ok(byte) => byte as u8,
            other => panic!("a read of page {i} of {:?}: {other:?}", region.object),
        };
        let page = &mut region.pages.borrow_mut()[i as usize];
        let right = if self.is_certain(region, i, page) {
            page.holds == Some(byte)
        } else if page.holds.is_some() {
            byte == 0 || page.since.contains(&byte)
        } else {
            // what others have written there, and never something older than before
            let version = self.files.homes().version_of(region.fd, region.first + i, byte, page.seen);
            page.seen = version.unwrap_or(page.seen);
            version.is_some()
        };
        assert!(
            right,
            "page {i} of {:?} ({page:?}) reads {byte} in step {} of file thread {}",
            region.object, self.step, self.name
        );
    }

    fn write(&mut self, region: &Region, i: u64) {
        if region.access == Access::ReadOnly {
            return;
        }
        let (at, before) = (region.at(i), self.cuts(region, i));
        // Others write even bytes. No page gets the same twice: that would be no change to what its file had before.
        let (crashes, there) = (self.habits.crashes > 0, self.files.homes().byte(region.fd, region.first + i));
        let last = self.written.entry((region.fd, region.first + i)).or_insert(if crashes { there | 1 } else { 1 });
        *last = last.wrapping_add(2);
        let byte = *last;
        {
            let page = &mut region.pages.borrow_mut()[i as usize];
            page.since.push(byte); // write-back may write it before the call returns
            page.writing = true;
        }
        tell(at, PAGE, || format!("program writes {byte}"));
        let first = self.files.touch(at, Call::Write { at, byte });
        let last = at + PAGE - 1;
        let whole = match first {
            Outcome::Ok(_) if crashes => self.files.touch(last, Call::Write { at: last, byte }),
            outcome => outcome,
        };
        match whole {
            Outcome::Ok(_) => {}
            Outcome::Signal(SIGBUS) => {
                let mut pages = region.pages.borrow_mut();
                let page = &mut pages[i as usize];
                if whole == first {
                    page.since.pop();
                }
                page.writing = false;
                drop(pages);
                return self.touch_failed(region, i);
            }
            other => panic!("a write of page {i} of {:?}: {other:?}", region.object),
        }
        let after = self.cuts(region, i);
        let page = &mut region.pages.borrow_mut()[i as usize];
        (page.holds, page.writing) = (Some(byte), false);
        if page.cuts != after {
            // it lay beyond the end meanwhile: nobody knows what the device has
            let last = page.since.len() - 1;
            page.since.splice(last..last, self.files.homes().may_hold(region.fd, region.first + i));
        }
        page.cuts = after.filter(|_| before == after);
        page.unsure = false;
    }

    fn touch(&mut self, region: &Region) {
        let i = self.rng.below(region.len() as usize) as u64;
        if self.rng.below(2) == 0 { self.read(region, i) } else { self.write(region, i) }
    }

    fn sweep(&mut self, region: &Region) {
        let (range, writes) = (self.range(region, self.habits.sweep), self.rng.below(2) == 0);
        let step = self.rng.pick(&[1, 1, 2, 3]);
        self.say(format_args!("sweeps {range:?} of {} by {step} {}", region.fd, if writes { "writing" } else { "reading" }));
        for i in range.step_by(step) {
            if writes { self.write(region, i) } else { self.read(region, i) }
        }
    }

    // ---- the file ----

    fn flush(&mut self, region: &Region) {
        if region.access != Access::ReadWrite {
            return self.sweep(region);
        }
        let range = if self.rng.below(2) == 0 { 0..region.len() } else { self.range(region, 16) };
        let sync = self.rng.below(4) > 0;
        // changed just now, and beyond the end all the time
        let beyond = (range.start..range.end).find(|i| self.cuts(region, *i).is_none());
        if let Some(i) = beyond {
            self.write(region, i);
        }
        let beyond = beyond.filter(|i| !region.pages.borrow()[*i as usize].lost && self.cuts(region, *i).is_none());
        let told = self.files.flush(&mut self.with, region, range.clone(), sync);
        self.say(format_args!("flushes {range:?} of {}, sync {sync}: {told:?}", region.fd));
        let known = self.files.homes();
        if let Some(i) = beyond.filter(|i| known.cuts(region.fd, region.first + i).is_none() && sync && told.is_ok()) {
            panic!("page {i} of {:?} is changed and lies beyond the end, but a flush succeeds", region.object);
        }
    }

    /// Gives up the pages of a range. The thread has the region for itself.
    fn give_up(&mut self, region: &Region, range: &Range<u64>) {
        let machine = &*self.files.machine;
        let (start, end) = (region.at(range.start), region.at(range.end));
        let advise = Call::Advise { at: start, len: end - start, advice: Advice::DontNeed };
        let mut map = self.files.is_in_thread().then(|| machine.map.write());
        assert_eq!(self.files.world.call(advise), Outcome::Ok(0));
        self.files.world.forget_used(start, end);
        if map.is_none() {
            machine.discard_done(start, end);
        }
        machine.forget_range(map.get_or_insert_with(|| machine.map.write()), start, end, false);
        drop(map);
        machine.forgotten();
    }

    fn reload(&mut self, region: &Region) {
        let (files, range) = (self.files, self.range(region, 24));
        self.take(region);
        let told = match region.access {
            Access::ReadWrite => files.flush(&mut self.with, region, range.clone(), false),
            _ => Ok(()),
        };
        self.say(format_args!("reads {range:?} of {} again: {told:?}", region.fd));
        if told.is_ok() {
            let versions: Vec<usize> = range.clone().map(|i| files.homes().version(region.fd, region.first + i)).collect();
            self.give_up(region, &range);
            for (i, version) in range.zip(versions) {
                let (cuts, byte) = (self.cuts(region, i), files.homes().byte(region.fd, region.first + i));
                let page = &mut region.pages.borrow_mut()[i as usize];
                (page.lost, page.seen) = (false, version);
                match region.access {
                    Access::ReadWrite if cuts.is_some() && cuts == page.cuts => {
                        assert_eq!(page.holds, Some(byte), "page {i} of {:?} is to be read again", region.object);
                    }
                    Access::ReadWrite => {
                        page.holds = Some(byte);
                        page.since.extend(files.homes().may_hold(region.fd, region.first + i));
                        page.unsure |= files.homes().is_unsure(region.fd, region.first + i);
                        page.since.push(byte);
                    }
                    Access::ReadOnly | Access::CopyOnWrite => page.holds = None,
                }
                page.cuts = cuts;
            }
            let home = self.home(region);
            files.machine.core.lock().vm.set_home_pages(region.object, home.pages);
        }
        region.leaves.set(false);
    }

    fn punch(&mut self, region: &Region) {
        if region.access != Access::ReadWrite {
            return self.reload(region);
        }
        let (files, range) = (self.files, self.range(region, 8));
        self.take(region);
        self.give_up(region, &range);
        files.wait_until(|| !files.machine.core.lock().vm.is_writing(region.object, range.clone()));
        self.say(format_args!("empties {range:?} of {}", region.fd));
        let there = |i: &u64| files.homes().cuts(region.fd, region.first + i).is_some();
        let within = range.clone().take_while(there).count() as u64;
        files.homes().punch(region.fd, region.first + range.start..region.first + range.start + within);
        for i in range.clone() {
            let cuts = self.cuts(region, i);
            let page = &mut region.pages.borrow_mut()[i as usize];
            page.since.push(0);
            (page.holds, page.cuts, page.unsure) = (Some(0), cuts, false);
        }
        self.give_up(region, &range);
        range.for_each(|i| region.pages.borrow_mut()[i as usize].lost = false);
        region.leaves.set(false);
    }

    /// Changes the budget or a policy; then checks that everything adds up.
    fn whim(&mut self, region: &Region) {
        let machine = &*self.files.machine;
        let whim = self.rng.below(2 + self.habits.policies as usize);
        if whim == 2 {
            self.choose_policy(region);
        } else if whim == 0 {
            let pages = LEAST_BUDGET + self.rng.below(LEAST_BUDGET as usize) as u32;
            self.say(format_args!("has {pages} pages of memory from now on"));
            let map = machine.map.read();
            machine.core.lock().vm.set_limit(pages);
            map.pool.iter().for_each(|pool| pool.set_budget(pages));
            machine.ring_daemon_anyway();
        } else {
            let policy = self.rng.pick(policy::NAMES);
            self.say(format_args!("is managed by {policy} from now on"));
            machine.set_policy(&policy.parse().expect("its name"));
        }
        let core = machine.core.lock();
        core.vm.check(self.files.world.objects.get());
        core.vm.pager().check();
    }
}

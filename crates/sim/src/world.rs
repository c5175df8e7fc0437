//! One run's world: the simulated kernel, devices, planned failures, and the data that checks need. State that the machine, the
//! programs and the parts of the kernel share lies here, below them.

use crate::disk::Disk;
use crate::home::Homes;
use crate::trouble::Trouble;
use overspill_machine::kernel::Mistake;
use overspill_simkernel::call::{Call, Outcome};
use overspill_simkernel::kernel::Kernel as Simulated;
use overspill_simkernel::pmap::{PAGE, PageBytes};
use overspill_simkernel::rng::Rng;
use overspill_simkernel::sched::{self, Timeout, shared::Shared};
use overspill_simkernel::table::Entry;
use overspill_vm::status::Status;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt::Arguments;
use std::rc::Rc;

/// The userfaultfd of a process's program.
pub const fn program_of(process: usize) -> usize {
    2 * process
}
/// The userfaultfd of a process's parking area.
pub const fn park_of(process: usize) -> usize {
    2 * process + 1
}
/// The most pages that the page daemon copies out at a time.
pub const COPIED_OUT: usize = 32;
/// Pages that may be resident and uncharged for a moment in other cases. One is a page that is brought back, whose parked copy is
/// charged a step later. One more may come where memory is moved over other memory (one seed in thousands; which step that is has
/// not been traced).
pub const IN_PASSING: usize = 2;
/// The first address that programs map.
pub const BASE: usize = 1 << 28;
/// Addresses from here on are the pager's own.
pub const OWN: usize = 1 << 40;

/// One run's world.
pub struct World {
    /// Memory and threads.
    pub kernel: Shared,
    rng: RefCell<Rng>,
    /// How devices fail.
    pub trouble: Trouble,
    mistake: Option<Mistake>,
    /// The kernel tells references.
    pub tells_references: bool,
    /// Pages that the kernel has told to be in use, by address space and address, and that were not watched since.
    pub used: RefCell<BTreeSet<(usize, usize)>>,
    /// Pages that processes have left each other.
    pub common: RefCell<[Option<Box<PageBytes>>; 64]>,
    /// Reads that fail for good are expected.
    pub lossy: Cell<bool>,
    /// Pages that devices have harmed: this many may be lost.
    pub harmed: Cell<u64>,
    /// Files, their space, and their content.
    pub disk: Disk,
    /// Files that are homes of objects.
    pub homes: Homes,
    /// The machine's status, and the number of pages that may be resident twice for a moment: while they are copied out, or while
    /// one is brought back, whose parked copy is charged after that.
    pub charge: Cell<Option<(&'static Status, usize)>>,
    /// Pages that calls are about to unmap, move or replace. They may be no longer charged, or not yet.
    pub going: Cell<usize>,
    /// How many memory objects there are.
    pub objects: Cell<u16>,
    /// A device is being swapped off.
    pub swaps: Cell<bool>,
    /// How many threads rest. While any does, no other swapoff begins: it waits for the end of the present one.
    pub rests: Cell<usize>,
    control: usize,
    /// The process of each actor, which is the number of its address space.
    processes: Vec<usize>,
}

/// Whether the kernel of a run tells references: that of every second seed does, or as `REFERENCES` says (1 or 0).
fn references(seed: u64) -> bool {
    std::env::var("REFERENCES").map_or(seed % 2 == 1, |value| value == "1")
}

thread_local! {
    static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

/// The world of this thread's run.
pub fn world() -> Rc<World> {
    WORLD.with_borrow(|world| Rc::clone(world.as_ref().expect("there is one")))
}

impl World {
    /// Makes a world for actors of these processes. The control thread, if there is one, is the last actor of the first process.
    /// The world is this thread's until the next call.
    pub fn begin(seed: u64, processes: Vec<usize>, disturbed: bool, trouble: Trouble, mistake: Option<Mistake>) -> Rc<World> {
        let mut kernel = Simulated::default();
        for process in 0..=processes.iter().copied().max().expect("there is one") {
            assert_eq!(kernel.new_space(), process);
            let uffds = [kernel.new_uffd(process, true), kernel.new_uffd(process, false)];
            assert_eq!(uffds, [program_of(process), park_of(process)]);
        }
        processes.iter().enumerate().for_each(|(task, process)| assert_eq!(kernel.new_task(*process), task));
        kernel.disturbed = disturbed.then(|| Rng::new(seed ^ 0x5555));
        let world = Rc::new(World {
            kernel: Shared::new(kernel, processes.len()),
            rng: RefCell::new(Rng::new(!seed)),
            trouble,
            mistake,
            tells_references: references(seed),
            used: RefCell::default(),
            common: RefCell::new([const { None }; 64]),
            lossy: Cell::new(trouble.read_error + trouble.corrupt > 0),
            harmed: Cell::new(0),
            disk: Disk::default(),
            homes: Homes::default(),
            charge: Cell::new(None),
            going: Cell::new(0),
            objects: Cell::new(1),
            swaps: Cell::new(false),
            rests: Cell::new(0),
            control: processes.iter().filter(|process| **process == 0).count() - 1,
            processes,
        });
        WORLD.set(Some(Rc::clone(&world)));
        world
    }

    /// The pages of a range are watched again, or others are there now.
    pub fn forget_used(&self, start: usize, end: usize) {
        self.used.borrow_mut().retain(|(space, page)| *space != here() || !(start..end).contains(page));
    }

    /// Asserts that resident pages are charged. To be called when pages have come.
    pub fn check_charge(&self, kernel: &Simulated) {
        let Some((status, twice)) = self.charge.get() else { return };
        let counters = &status.counters;
        let charged = (counters.memory_used_bytes.get() - counters.buffer_bytes.get()) as usize / PAGE; // buffers are not simulated
        let there = |entry: &&Entry| matches!(entry, Entry::Page { .. } | Entry::Zero { .. });
        let resident = kernel.spaces[0].table.values().filter(there).count();
        assert!(resident <= charged + twice + self.going.get(), "{resident} pages are resident and {charged} charged");
    }

    /// A random number below `limit`.
    pub fn draw(&self, limit: usize) -> usize {
        self.rng.borrow_mut().below(limit)
    }

    /// Whether an event happens that has this probability, in thousandths.
    pub fn happens(&self, thousandths: usize) -> bool {
        thousandths > 0 && self.draw(1000) < thousandths
    }

    /// Whether to make this mistake.
    pub fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// Whether the control thread runs.
    pub fn is_control(&self) -> bool {
        sched::is_running() && sched::running() == self.control
    }

    /// Notes that a device has harmed this many pages.
    pub fn harm(&self, pages: usize) {
        self.harmed.set(self.harmed.get() + pages as u64);
    }

    /// Whether a touch of this page is an error, because its content is lost.
    pub fn is_poisoned(&self, at: usize) -> bool {
        self.kernel.enter(|kernel| matches!(kernel.spaces[here()].table.get(&(at / PAGE * PAGE)), Some(Entry::Poison)))
    }

    /// The calling thread makes a call.
    pub fn call(&self, call: Call) -> Outcome {
        self.kernel.call(sched::running(), call)
    }

    /// Lets the calling thread rest until no device is being swapped off, and for at least `ns` nanoseconds.
    pub fn rest(&self, ns: u64) {
        self.rests.set(self.rests.get() + 1);
        let start = sched::now();
        while self.swaps.get() || sched::now() < start + ns {
            sched::Word::new(0).wait(0, Timeout::Tick(10_000_000));
            sched::progress();
        }
        self.rests.set(self.rests.get() - 1);
    }
}

/// The process of the running actor.
pub fn here() -> usize {
    if sched::is_running() { world().processes[sched::running()] } else { 0 }
}

/// Prints what somebody does, if the environment variable `TELL` is set.
pub fn say(who: Arguments<'_>, what: Arguments<'_>) {
    if std::env::var_os("TELL").is_some() {
        println!("{:>9} {who}: {what}", sched::now());
    }
}

/// Prints what is done to the page whose address is in the environment variable `WATCH`, in hexadecimal.
pub fn tell(at: usize, len: usize, what: impl FnOnce() -> String) {
    thread_local! {
        static WATCHED: Option<usize> = std::env::var("WATCH").ok().and_then(|at| usize::from_str_radix(&at, 16).ok());
    }
    if WATCHED.with(|watched| watched.is_some_and(|page| (at..at + len).contains(&page))) {
        println!("{:>9} actor {}: {}", sched::now(), if sched::is_running() { sched::running() } else { 99 }, what());
    }
}

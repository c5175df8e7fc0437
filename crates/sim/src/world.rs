//! One run's world: the simulated kernel, devices, what is to go wrong, and what checks need to know. Whatever the machine, the
//! programs and the kernel's parts share lies here, below them.

use crate::disk::Disk;
use crate::trouble::Trouble;
use overspill_machine::kernel::Mistake;
use overspill_simkernel::call::{Call, Outcome};
use overspill_simkernel::kernel::Kernel as Simulated;
use overspill_simkernel::pmap::PAGE;
use overspill_simkernel::rng::Rng;
use overspill_simkernel::sched::{self, Timeout, shared::Shared};
use overspill_simkernel::table::Entry;
use overspill_vm::status::Status;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// A process's userfaultfd for its program.
pub const fn program_of(process: usize) -> usize {
    2 * process
}
/// The same for its parking area.
pub const fn park_of(process: usize) -> usize {
    2 * process + 1
}
/// Pages that the page daemon copies out at a time.
pub const COPIED_OUT: usize = 32;
/// Pages that may be there uncharged for a moment otherwise: one that is brought back, whose parked copy is charged a step later,
/// and one more where memory is moved over other memory (one seed in thousands; which step that is has not been traced).
pub const IN_PASSING: usize = 2;
/// From here on addresses are the pager's own.
pub const OWN: usize = 1 << 40;

/// One run's world.
pub struct World {
    /// Memory and threads.
    pub kernel: Shared,
    rng: RefCell<Rng>,
    /// How devices fail.
    pub trouble: Trouble,
    mistake: Option<Mistake>,
    /// Reads that failed for good are expected.
    pub lossy: Cell<bool>,
    /// Pages that devices have harmed: so many may be lost.
    pub harmed: Cell<u64>,
    /// Files, their space, and what is written there.
    pub disk: Disk,
    /// What the machine shows of itself, and pages that may be there twice for a moment: as they are copied out, or one that is
    /// brought back, whose parked copy is charged when it is there.
    pub charge: Cell<Option<(&'static Status, usize)>>,
    /// Pages that calls are about to unmap, move or replace: they may be charged no more, or not yet.
    pub going: Cell<usize>,
    /// A device is being swapped off.
    pub swaps: Cell<bool>,
    /// No other is to be: a program waits for the end of this one.
    pub rests: Cell<usize>,
    control: usize,
    /// Each actor's, which has the number of its address space.
    processes: Vec<usize>,
}

thread_local! {
    static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

/// This thread's.
pub fn world() -> Rc<World> {
    WORLD.with_borrow(|world| Rc::clone(world.as_ref().expect("there is one")))
}

impl World {
    /// A new one, of the actors of these processes: the control thread, if there is one, is the last of the first process's. It is
    /// this thread's until the next.
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
            lossy: Cell::new(trouble.read_error + trouble.corrupt > 0),
            harmed: Cell::new(0),
            disk: Disk::default(),
            charge: Cell::new(None),
            going: Cell::new(0),
            swaps: Cell::new(false),
            rests: Cell::new(0),
            control: processes.iter().filter(|process| **process == 0).count() - 1,
            processes,
        });
        WORLD.set(Some(Rc::clone(&world)));
        world
    }

    /// What is resident is charged: to be asked when pages have come.
    pub fn check_charge(&self, kernel: &Simulated) {
        let Some((status, twice)) = self.charge.get() else { return };
        let charged = status.counters.memory_used_bytes.get() as usize / PAGE;
        let there = |entry: &&Entry| matches!(entry, Entry::Page { .. } | Entry::Zero { .. });
        let resident = kernel.spaces[0].table.values().filter(there).count();
        assert!(resident <= charged + twice + self.going.get(), "{resident} pages are resident and {charged} charged");
    }

    /// A number below that.
    pub fn draw(&self, limit: usize) -> usize {
        self.rng.borrow_mut().below(limit)
    }

    /// Whether something happens that does so often.
    pub fn happens(&self, thousandths: usize) -> bool {
        thousandths > 0 && self.draw(1000) < thousandths
    }

    /// Whether this mistake is to be made.
    pub fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// Whether the control thread runs.
    pub fn is_control(&self) -> bool {
        sched::is_running() && sched::running() == self.control
    }

    /// A device does harm to so many pages.
    pub fn harm(&self, pages: usize) {
        self.harmed.set(self.harmed.get() + pages as u64);
    }

    /// The calling thread makes a call.
    pub fn call(&self, call: Call) -> Outcome {
        self.kernel.call(sched::running(), call)
    }

    /// A program does nothing until no device is being swapped off, and for so many nanoseconds at least.
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

/// The process that runs.
pub fn here() -> usize {
    if sched::is_running() { world().processes[sched::running()] } else { 0 }
}

/// Tells of what is done to the page whose address is in the environment, in hexadecimal (`WATCH`).
pub fn tell(at: usize, len: usize, what: impl FnOnce() -> String) {
    thread_local! {
        static WATCHED: Option<usize> = std::env::var("WATCH").ok().and_then(|at| usize::from_str_radix(&at, 16).ok());
    }
    if WATCHED.with(|watched| watched.is_some_and(|page| (at..at + len).contains(&page))) {
        println!("{:>9} actor {}: {}", sched::now(), if sched::is_running() { sched::running() } else { 99 }, what());
    }
}

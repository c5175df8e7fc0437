//! Forked children. Each has a machine of its own. The production code goes on in a copy of the machine, on a copy of the parent's
//! address space. The two share pages until one of them writes. The child's program knows the content of its own thread's pages at
//! the fork, and it looks at pages of other threads as well. Those must hold what was written there, or the machine reports them as
//! lost.
//!
//! There are entries for a few children at a time, each with actors that wait for a child.

use crate::files::SimFiles;
use crate::kernel::Sim;
use crate::process::{SLOTS, handler, parts, program_ended};
use crate::program::{Habits, Page, Thread};
use crate::uffd::SimUffd;
use crate::world::{World, here, park_of, program_of, world};
use overspill_machine::daemon::Daemon;
use overspill_machine::errno::{self, Errno};
use overspill_machine::files::DEVICES_MAX;
use overspill_machine::fork::{Forked, Frozen};
use overspill_machine::machine::{Core, Machine};
use overspill_machine::park::ParkPlace;
use overspill_simkernel::pmap::PAGE;
use overspill_simkernel::remap::Remap;
use overspill_simkernel::rng::Rng;
use overspill_simkernel::sched::{self, Actor, Role, Timeout, Word};
use overspill_simkernel::table::Entry;
use overspill_simkernel::uffd::Uffd;
use overspill_vm::status::Status;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// The actors of a child: its program's thread, its handler, its page daemon.
pub const ACTORS: usize = 3;

/// The entry of a process. The first entry is the first process's.
#[derive(Default)]
struct ProcessEntry {
    machine: RefCell<Option<Arc<Machine<Sim>>>>,
    /// The content of its memory as far as its program knows it.
    pages: RefCell<BTreeMap<usize, Page>>,
    /// The entry is in use: from before the fork until no process can read any of its stored pages.
    taken: Cell<bool>,
    /// Its program has ended.
    ended: Cell<bool>,
    parent: Cell<usize>,
    /// The number of the fork in its parent.
    fork: Cell<Option<u64>>,
    /// How many children of its own live.
    children: Cell<usize>,
    /// How often its program began, and how often its pager's threads began.
    begun: [Word; 2],
    /// How many of its pager's threads have ended.
    over: Word,
}

/// The entries of all processes.
pub struct Children {
    places: Vec<ProcessEntry>,
    /// Programs that have not ended.
    programs: Cell<usize>,
}

thread_local! {
    static CHILDREN: RefCell<Option<Rc<Children>>> = const { RefCell::new(None) };
}

/// The entries of this thread's run.
pub fn children() -> Rc<Children> {
    CHILDREN.with_borrow(|children| Rc::clone(children.as_ref().expect("there are places for some")))
}

impl Children {
    /// Makes entries for `most` children and the first process. They are this thread's until the next call.
    pub fn begin(most: usize, machine: &Arc<Machine<Sim>>) -> Rc<Children> {
        let places: Vec<_> = (0..=most).map(|_| ProcessEntry::default()).collect();
        places[0].taken.set(true);
        *places[0].machine.borrow_mut() = Some(Arc::clone(machine));
        let children = Rc::new(Children { places, programs: Cell::new(1) });
        CHILDREN.set(Some(Rc::clone(&children)));
        children
    }

    /// Drops all processes.
    pub fn end(&self) {
        self.places.iter().for_each(|place| drop(place.machine.take()));
    }

    /// Takes an entry for a child.
    fn take(&self) -> Option<usize> {
        let free = self.places.iter().position(|place| !place.taken.get())?;
        self.places[free].taken.set(true);
        Some(free)
    }

    /// Fills the entry of a new child.
    fn born(&self, child: usize, machine: Machine<Sim>, pages: BTreeMap<usize, Page>) {
        let place = &self.places[child];
        *place.machine.borrow_mut() = Some(Arc::new(machine));
        *place.pages.borrow_mut() = pages;
        place.ended.set(false);
        place.parent.set(here());
        place.fork.set(None);
        place.children.set(0);
        self.places[here()].children.update(|n| n + 1);
        self.programs.update(|n| n + 1);
    }

    /// Waits for the next process of an entry; `None` when there will be no more.
    fn next(&self, place: usize, threads: usize, seen: &mut u32) -> Option<Arc<Machine<Sim>>> {
        let place = &self.places[place];
        place.begun[threads].wait(*seen, Timeout::Never);
        *seen += 1;
        place.machine.borrow().clone()
    }

    /// Lets a process's program, or its pager's threads, begin.
    fn go(&self, place: usize, threads: usize) {
        self.places[place].begun[threads].add(1);
        self.places[place].begun[threads].wake(usize::MAX);
    }

    /// A process's program has ended. After the last one, tells all waiting actors that there will be no more.
    pub fn program_ended(&self) {
        self.programs.update(|n| n - 1);
        if self.programs.get() == 0 {
            for place in 1..self.places.len() {
                [0, 1].iter().for_each(|threads| self.go(place, *threads));
            }
        }
    }

    /// Called when a process has ended, and when its parent knows of it. Once both are so and its children have ended too, its
    /// parent is told.
    fn settle(&self, place: usize) {
        let it = &self.places[place];
        let Some(fork) = it.fork.get().filter(|_| it.ended.get() && it.children.get() == 0) else { return };
        it.fork.set(None);
        let parent = it.parent.get();
        let theirs = &self.places[parent];
        // after some time, and only if the parent lives
        sched::Word::new(0).wait(0, Timeout::Tick(1 + world().draw(2_000_000) as u64));
        let machine = theirs.machine.borrow().clone();
        machine.inspect(|machine| machine.child_gone(fork));
        theirs.children.update(|n| n - 1);
        it.taken.set(false);
        self.settle(parent);
    }
}

/// A program's thread forks, if there is an entry for a child.
pub fn fork(thread: &mut Thread<'_>) {
    let children = children();
    let Some(child) = children.take() else { return };
    let machine = thread.machine;
    let fails = thread.rng.below(8) == 0;
    thread.say(format_args!("forks child {child}{}", if fails { ", which fails" } else { "" }));
    let _swapping = machine.swapping.lock();
    let limit = machine.core.lock().vm.limit();
    let whole = limit * (1 + thread.rng.below(2) as u32);
    let (whole, saves) = (|_: &_| whole, whole == limit); // half of them save
    let same = |_: &_, core: &mut Core| core.vm.set_limit(limit);
    if machine.fits_twice(whole, same).is_err() {
        machine.shrink(whole, saves, same);
    }
    let pages = &thread.pages;
    let forked = machine.fork(|frozen| {
        if fails {
            return Err(errno::EAGAIN);
        }
        let copy = copy(&thread.world, child, machine, frozen);
        children.born(child, copy, pages.clone());
        children.go(child, 0);
        Ok(child)
    });
    match forked {
        Ok(Forked::Parent { fork, .. }) => {
            children.places[child].fork.set(Some(fork));
            children.settle(child);
        }
        Ok(Forked::Child(_)) => unreachable!("it goes on elsewhere"),
        Err(_) => children.places[child].taken.set(false),
    }
}

/// The kernel's part in a fork: copies the address space, and the machine in it.
fn copy(world: &World, child: usize, machine: &Machine<Sim>, frozen: &Frozen<Sim>) -> Machine<Sim> {
    let status: &'static Status = Box::leak(Box::default());
    world.kernel.enter(|kernel| {
        kernel.spaces[child] = kernel.spaces[here()].fork();
        world.used.borrow_mut().retain(|(space, _)| *space != child); // an earlier child's
        for (uffd, events) in [(program_of(child), true), (park_of(child), false)] {
            kernel.uffds[uffd] = Uffd { space: child, events, ..Uffd::default() };
        }
    });
    let mut files = [const { None }; DEVICES_MAX];
    files.iter_mut().zip(&frozen.map.files).for_each(|(copy, it)| *copy = it.as_ref().map(SimFiles::shared));
    let copy = frozen
        .copy(parts(
            frozen.core.vm.fork(&status.counters),
            status,
            files,
            child,
            machine.content,
            machine.config.follows_pointers,
            1,
        ))
        .expect("memory");
    // The parking area is real memory, and the child's is elsewhere.
    let [from, to] = [machine, &copy].map(|machine| machine.parking.addr(ParkPlace::NONE));
    world.kernel.enter(|kernel| {
        let space = &mut kernel.spaces[child];
        let area = space.find(from).expect("it is mapped").clone();
        let len = area.end - area.start;
        assert_eq!(space.remap(Remap { from, len, new_len: len, to: Some(to), keep: false }).result, Ok(to));
        for (at, entry) in space.table.range(to..to + len) {
            let Entry::Page { frame, .. } = entry else { continue };
            // SAFETY: a page of the child's parking area, which nobody uses yet.
            unsafe { core::ptr::copy_nonoverlapping(frame.bytes.as_ptr(), *at as *mut u8, PAGE) };
        }
    });
    copy
}

/// The child's program. First it does what the agent's thread does to set the pager up.
fn program(place: usize, machine: &Machine<Sim>, habits: Habits, seed: u64) {
    let children = children();
    {
        // SAFETY: the machine is a copy, and this is the thread that goes on.
        let mut frozen = unsafe { machine.resume() };
        let [program, parking] = [program_of(place), park_of(place)].map(SimUffd::new);
        frozen.inherit::<Errno>(program, parking, |_, theirs, needed| Ok(needed.then_some(theirs))).expect("it is mapped");
        let own = frozen.core.vm.devices_mut().add_device(SLOTS, 0).expect("there are few");
        frozen.map.files[own.0 as usize] = Some(SimFiles::block(SLOTS as usize));
        frozen.take_over().expect("it is mapped");
    }
    children.go(place, 1);
    let it = &children.places[place];
    let mut rng = Rng::new(seed);
    if rng.below(2) == 0 {
        // its parent goes on for long meanwhile
        Word::new(0).wait(0, Timeout::Tick(1 + rng.below(20_000_000) as u64));
    }
    let mut thread = Thread::new(machine, world(), rng.bits(), habits, 10 * place);
    thread.pages = it.pages.take();
    thread.run(fork);
    program_ended(machine, || {}, || it.over.load() < ACTORS as u32 - 1);
    it.over.store(0);
    {
        let core = machine.core.lock();
        core.vm.check(1);
        core.vm.pager().check();
        assert_eq!(core.vm.counters().buffer_bytes.get(), 0, "bytes of buffers, perhaps of the parent's");
    }
    it.ended.set(true);
    it.machine.take();
    children.program_ended();
    children.settle(place);
}

/// The actors of an entry, in the order of [`ACTORS`].
pub fn actors(place: usize, habits: Habits, seed: u64) -> [Actor; ACTORS] {
    const NAMES: [[&str; ACTORS]; 3] = [
        ["child 1", "handler of child 1", "daemon of child 1"],
        ["child 2", "handler of child 2", "daemon of child 2"],
        ["child 3", "handler of child 3", "daemon of child 3"],
    ];
    let habits = Habits { steps: habits.steps / 5, peeks: 400, ..habits };
    let runs = move || {
        let (mut rng, mut seen) = (Rng::new(seed), 0);
        while let Some(machine) = children().next(place, 0, &mut seen) {
            program(place, &machine, habits, rng.bits());
        }
    };
    let serves = move |serve: fn(&Machine<Sim>)| {
        let mut seen = 0;
        while let Some(machine) = children().next(place, 1, &mut seen) {
            serve(&machine);
            drop(machine);
            let over = &children().places[place].over;
            over.add(1);
            over.wake(usize::MAX);
        }
    };
    let [program, handles, pages_out] = NAMES[place - 1];
    [
        Actor { name: program, role: Role::Program, act: Box::new(runs) },
        Actor { name: handles, role: Role::Program, act: Box::new(move || serves(handler)) },
        Actor {
            name: pages_out,
            role: Role::Program,
            act: Box::new(move || serves(|machine| Daemon::new(machine, ()).expect("memory").run(machine, |_| {}))),
        },
    ]
}

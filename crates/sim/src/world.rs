//! The event loop: one seed, several processes, one device; any actor may run between two steps of any other.
//!
//! ```text
//!   step:  choose a process, choose an actor
//!     program thread   touch a page; take a fault one call further; begin a system call            (threads.rs)
//!     page daemon      one look, one drop, one park, one issue further                             (daemons.rs)
//!     device           one operation ends, in any order; its pages go to their places              (transfers.rs)
//!     compressed       packing; a write-back one stage further                                     (compressed.rs)
//!     system call      discard, unmap, remap one stage further                                     (events.rs)
//!     swaps            swapon, swapoff, one step of a swapoff                                      (swaps.rs)
//!     control          fork, end of a child, another budget                                        (forks.rs)
//! ```
//!
//! The rules that the Linux machine keeps by its lock on the address space are kept here by counting *sections*: no system call's
//! message is followed between a fault and the end of its fill, or between the arrival of a read and the mapping of its pages.
//! Reads and writes in flight are not sections, and neither is a batch that is being parked: anything may happen meanwhile.
//!
//! Checkers run after every step (cheap ones) or every few hundred (walks); see `check`.

use crate::check;
use crate::check::slots::SlotBook;
use crate::device::Device;
use crate::log::Log;
use crate::process::{Daemon, Process, Thread};
use crate::rng::Rng;
use crate::scenario::{Report, Scenario};
use crate::store::{Store, Watched};
use overspill_vm::counters::Counters;
use overspill_vm::{Config, Vm};
use std::cell::RefCell;
use std::rc::Rc;

/// Steps that an operation may take to come back from the device, at most: by the seed. The long one lets a page be mapped, changed
/// and parked again while it is still being written.
const LATENCY_STEPS: [u64; 4] = [5, 60, 250, 1500];

/// Everything.
pub struct World<S: Store> {
    /// What is run.
    pub sc: Scenario,
    /// Every choice.
    pub rng: Rng,
    /// Steps so far.
    pub now: u64,
    /// All processes, ended ones included.
    pub procs: Vec<Process<S>>,
    /// The store.
    pub device: Device,
    /// The slot account.
    pub book: Rc<RefCell<SlotBook>>,
    /// Files there are.
    pub files: u32,
    /// Contents written so far: each is new.
    pub contents: u64,
    /// The last events.
    pub log: Log,
    /// What was done.
    pub report: Report,
    /// How often the page daemons run, in thousandths of the steps: by the seed, from too slow to eager.
    pub daemon_permille: u64,
    /// Step at which an access last ended, for the progress checker.
    pub progress: u64,
}

impl<S: Store> World<S> {
    /// Sets up one process over `store`.
    pub fn new(mut sc: Scenario, store: S) -> Self {
        sc.pages &= !1; // two objects of one length
        let mut rng = Rng::new(sc.seed);
        let book = Rc::new(RefCell::new(SlotBook::new(sc.slot_book_silent)));
        let pager = Watched::new(store, book.clone(), sc.bug, rng.bits(), sc.faults.no_metadata);
        let least = (overspill_vm::MEMORY_BYTES_MIN >> overspill_vm::types::PAGE_SHIFT) as u32;
        let config = Config {
            objects_max: 2,
            object_pages: sc.pages as u64,
            policy: sc.policy,
            readahead_pages_max: sc.ahead_pages_max,
            zero_ahead_pages_max: sc.ahead_pages_max,
            ..Config::new(sc.memory_pages.max(least), sc.pages as u64 + 4096)
        };
        let mut vm = Vm::new(config, pager, counters()).expect("a good configuration");
        vm.set_limit(sc.memory_pages);
        let process = Process {
            id: 0,
            parent: None,
            alive: true,
            per_object: sc.pages / 2,
            mapped: vec![None; sc.pages],
            parked: vec![None; sc.memory_pages.max(least) as usize + 8192],
            expected: vec![0; sc.pages],
            may_be_lost: vec![false; sc.pages],
            wired: vec![false; sc.pages],
            threads: vec![Thread::Idle; sc.threads],
            daemons: vec![Daemon::Idle; sc.daemons],
            event: None,
            sections: 0,
            reads: Vec::new(),
            arriving: Vec::new(),
            writes: Vec::new(),
            swapoffs: Vec::new(),
            moves: Vec::new(),
            write_backs: Vec::new(),
            freezing: false,
            ending: false,
            fruitless: 0,
            ceiling: 0,
            asked_over: 0,
            held_copies: 0,
            vm,
        };
        let daemon_permille = [40, 80, 160, 300][rng.index(4)];
        let chosen = LATENCY_STEPS[rng.index(LATENCY_STEPS.len())];
        let device = Device::new(sc.faults, if sc.latency_steps > 0 { sc.latency_steps } else { chosen });
        let mut world = World {
            sc,
            rng,
            now: 0,
            procs: vec![process],
            device,
            book,
            files: 1,
            contents: 0,
            log: Log::default(),
            report: Report::default(),
            progress: 0,
            daemon_permille,
        };
        if world.sc.pool_pages > 0 {
            world.add_pool(0);
        }
        world
    }

    /// Notes an event.
    pub fn note(&mut self, p: usize, what: &'static str, at: usize, with: u64) {
        self.log.add(self.now, p as u32, what, at as u64, with);
    }

    /// The whole run.
    ///
    /// # Panics
    /// When a property does not hold.
    pub fn run(&mut self) {
        while self.now < self.sc.steps {
            self.step();
        }
        self.finish();
        for process in &self.procs {
            let c = process.vm.counters();
            self.report.soft_faults += c.soft_faults.get();
            self.report.hard_faults += c.hard_faults.get();
            self.report.busy_faults += c.busy_faults.get();
            self.report.page_outs += c.pages_out.get();
            self.report.reclaimed_clean += c.pages_reclaimed_clean.get();
            self.report.reclaimed_zero += c.pages_reclaimed_zero.get();
            self.report.readahead += c.readahead_pages.get();
            self.report.over_budget += c.over_budget.get();
            self.report.write_errors += c.write_errors.get();
        }
        self.report.steps = self.now;
    }

    fn step(&mut self) {
        self.now += 1;
        let alive: usize = self.procs.iter().filter(|p| p.alive).count();
        let nth = self.rng.index(alive);
        let p = (0..self.procs.len()).filter(|p| self.procs[*p].alive).nth(nth).expect("one is alive");
        match self.rng.below(1000 + self.daemon_permille) {
            0..600 => {
                let t = self.rng.index(self.procs[p].threads.len());
                self.thread_step(p, t);
            }
            600..900 => self.transfer_step(p),
            900..930 if self.sc.swaps > 0 => self.swap_step(p),
            900..930 => self.transfer_step(p),
            930..990 => self.event_step(p),
            990..1000 => self.control_step(p),
            _ => {
                let d = self.rng.index(self.procs[p].daemons.len());
                self.daemon_step(p, d);
            }
        }
        check::budget::check(&mut self.procs[p]);
        check::progress::check(self);
        if self.rng.chance(3) {
            self.check_all();
        }
    }

    /// Walks over everything.
    pub fn check_all(&mut self) {
        self.report.checks += 1;
        for process in self.procs.iter().filter(|p| p.alive) {
            process.vm.check(2);
            check::frames::check(process);
            check::contents::check(process, &self.device);
            check::pool::check(process);
        }
        if self.rng.chance(50) {
            self.procs.iter().filter(|p| p.alive).for_each(|p| p.vm.pager().inner.check());
        }
    }

    /// Lets everything under way end, gives all memory up, and looks for what is left over.
    fn finish(&mut self) {
        for p in 0..self.procs.len() {
            self.procs[p].freezing = true;
            self.procs[p].ending = false;
        }
        let end = self.now + 400_000;
        while !self.procs.iter().all(|p| !p.alive || (p.quiet() && p.swapoffs.is_empty())) {
            self.now += 1;
            assert!(self.now < end, "progress: what is under way does not end");
            for p in 0..self.procs.len() {
                if self.procs[p].alive {
                    (0..self.procs[p].threads.len()).for_each(|t| self.thread_step(p, t));
                    (0..self.procs[p].daemons.len()).for_each(|d| self.daemon_step(p, d));
                    self.transfer_step(p);
                    self.event_step(p);
                    self.swapoff_step(p);
                }
            }
        }
        self.check_all();
        check::progress::check_nobody_waits(self);
        for p in (0..self.procs.len()).rev() {
            if self.procs[p].alive {
                let all = self.procs[p].mapped.len();
                self.release(p, 0, self.procs[p].per_object.min(all));
                self.release(p, self.procs[p].per_object, all - self.procs[p].per_object);
                self.drop_pool(p);
                check::leaks::check_process(&self.procs[p]);
                if p > 0 {
                    self.exit(p);
                }
            }
        }
        check::leaks::check_store(&mut self.procs[0], &self.book.borrow());
    }
}

/// Counters live as long as the program; a simulated process's are leaked, 300 bytes each.
pub fn counters() -> &'static Counters {
    Box::leak(Box::default())
}

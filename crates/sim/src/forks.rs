//! Forks, ends of children, and changes of the budget and of the replacement policy.
//!
//! A fork waits until nothing is under way in the process, as the real machine does; then the whole core is copied. From there on
//! parent and child are independent and share only the store. A process is told when a child, and all of the child's own, have
//! ended.

use crate::process::{Daemon, Process, Thread};
use crate::store::Store;
use crate::world::{World, counters};
use overspill_vm::policy::{NAMES, Spec};
use overspill_vm::status::Transitions;

/// Processes there may be in one run, ended ones included: each is a whole core.
const PROCESSES_EVER_MAX: usize = 8;

impl<S: Store> World<S> {
    /// Now and then begins or completes something.
    pub fn control_step(&mut self, p: usize) {
        if self.procs[p].freezing {
            if self.procs[p].quiet() {
                assert_eq!(self.procs[p].vm.laundering(), 0, "nothing is written, but pages are marked as laundering");
                self.procs[p].freezing = false;
                if std::mem::take(&mut self.procs[p].ending) { self.exit(p) } else { self.fork(p) }
            }
            return;
        }
        if self.sc.limits && self.rng.chance(50) {
            let least = (self.sc.memory_pages / 2).max(140);
            let pages = least + self.rng.below((self.sc.memory_pages - least + 1) as u64) as u32;
            let process = &mut self.procs[p];
            process.ceiling = process.ceiling.max(process.vm.limit() as u64).max(process.vm.charge_total());
            process.vm.set_limit(pages);
            process.vm.devices_mut().pool.iter_mut().for_each(|pool| pool.kept.set_budget(pages));
            self.note(p, "limit", pages as usize, 0);
        }
        if self.sc.switches && self.rng.chance(500) {
            let name = NAMES[self.rng.index(NAMES.len())];
            let vm = &mut self.procs[p].vm;
            let policy = vm.make_policy(&Spec::named(name).expect("it is in the table"));
            vm.set_policy(policy);
            vm.check(2);
            self.report.switches += 1;
            self.note(p, name, 0, 0);
        }
        if self.sc.faults.no_space > 0 && self.rng.chance(300) {
            self.procs[p].vm.devices_mut().inner.set_full(None);
        }
        if self.rng.chance(self.sc.swaps) {
            self.change_swap(p);
        }
        if self.sc.processes_max > 1 && self.rng.chance(200) {
            let alive = self.procs.iter().filter(|p| p.alive).count();
            if p > 0 && self.rng.chance(300) {
                self.procs[p].ending = true;
                self.procs[p].freezing = true;
            } else if alive < self.sc.processes_max && self.procs.len() < PROCESSES_EVER_MAX {
                self.procs[p].freezing = true;
            }
        }
    }

    fn fork(&mut self, p: usize) {
        let id = self.procs.len() as u32;
        let file = self.files;
        self.files += 2; // one for its copy of compressed memory
        let parent = &mut self.procs[p];
        let fork = parent.vm.devices_mut().fork_parent();
        let mut vm = parent.vm.fork(counters());
        let transitions = Transitions::default();
        vm.show_transitions(&transitions);
        transitions.for_each(|name, count| assert_eq!(count, 0, "{name} of the parent's policy counts for the child"));
        vm.devices_mut().fork_child(id, [file, file + 1], self.sc.slots);
        let child = Process {
            id,
            parent: Some((p, fork)),
            alive: true,
            per_object: parent.per_object,
            mapped: parent.mapped.clone(),
            parked: parent.parked.clone(),
            expected: parent.expected.clone(),
            may_be_lost: parent.may_be_lost.clone(),
            wired: parent.wired.clone(),
            threads: vec![Thread::Idle; self.sc.threads],
            daemons: vec![Daemon::Idle; self.sc.daemons],
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
            ceiling: parent.ceiling,
            asked_over: parent.asked_over,
            held_copies: 0,
            vm,
        };
        self.procs.push(child);
        self.report.forks += 1;
        self.note(p, "forked", id as usize, 0);
        self.check_all();
    }

    /// Process `p` ends; whoever has waited for that is told.
    pub fn exit(&mut self, p: usize) {
        self.procs[p].alive = false;
        self.procs[p].vm.devices_mut().exit();
        self.procs[p].swapoffs.clear();
        self.close_files();
        self.note(p, "ended", p, 0);
        let mut child = p;
        while let Some((parent, fork)) = self.procs[child].parent
            && !self.is_any_alive(child)
        {
            if self.procs[parent].alive {
                self.procs[parent].vm.devices_mut().child_gone(fork);
            }
            child = parent;
        }
    }

    /// Whether the process or a descendant of it lives.
    fn is_any_alive(&self, ancestor: usize) -> bool {
        let line = |p: usize| std::iter::successors(Some(p), |&p| self.procs[p].parent.map(|(parent, _)| parent));
        (0..self.procs.len()).filter(|&p| self.procs[p].alive).any(|p| line(p).any(|p| p == ancestor))
    }
}

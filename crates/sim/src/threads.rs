//! Program threads and the fault handler that serves them.

use crate::check;
use crate::process::{Access, Change, Daemon, Event, Process, Thread};
use crate::rng::mix;
use crate::scenario::Bug;
use crate::store::Store;
use crate::world::World;
use overspill_vm::page::State;
use overspill_vm::{Fault, Filled, Followed};

impl<S: Store> World<S> {
    /// One step of thread `t` of process `p`.
    pub fn thread_step(&mut self, p: usize, t: usize) {
        match self.procs[p].threads[t] {
            Thread::Idle => self.begin(p, t),
            Thread::Touch(access) => self.touch(p, t, access),
            Thread::Waiting(_) | Thread::Event => {}
            Thread::Restoring(access, frame, ahead) => {
                let process = &mut self.procs[p];
                let refused = process.changing() || self.rng.chance(self.sc.refuse);
                let page = process.page(access.at);
                if refused && self.sc.bug == Bug::DropBeforeRefill {
                    process.parked[frame.at()] = Some(0);
                }
                let filled = if refused {
                    self.report.refused += 1;
                    Filled::No
                } else {
                    let value = process.unpark(frame).expect("frames: an inactive page has no parked content");
                    process.map(access.at, value);
                    process.charge_held_copy(page, frame);
                    Filled::Mapped
                };
                self.note(p, "restored", access.at, filled as u64);
                let process = &mut self.procs[p];
                process.sections -= 1;
                process.threads[t] = Thread::Touch(access);
                if process.vm.restore_done(page, filled) {
                    self.wake(p, access.at);
                }
                if let Some(op) = ahead {
                    self.start_read(p, op);
                }
            }
            Thread::Filling(access, first, count, done) => {
                let n = if self.rng.chance(500) { 1 } else { count - done };
                for i in done..done + n {
                    let process = &mut self.procs[p];
                    let at = process.at(first) + i as usize;
                    let filled = if process.mapped[at].is_some() {
                        Filled::Mapped // EEXIST
                    } else if process.changing() || self.rng.chance(self.sc.refuse) {
                        Filled::No
                    } else {
                        process.map(at, 0);
                        Filled::Mapped
                    };
                    self.note(p, "zero filled", at, filled as u64);
                    let process = &mut self.procs[p];
                    let page = process.page(at);
                    if process.vm.fill_done(page, filled) {
                        self.wake(p, at);
                    }
                }
                let process = &mut self.procs[p];
                process.threads[t] = if done + n == count {
                    process.sections -= 1;
                    Thread::Touch(access)
                } else {
                    Thread::Filling(access, first, count, done + n)
                };
            }
        }
    }

    /// Wakes the waiters of a page, unless that is the bug.
    pub fn wake(&mut self, p: usize, at: usize) {
        if self.sc.bug == Bug::LoseWake && self.rng.chance(200) {
            return;
        }
        self.procs[p].wake(at);
    }

    /// A page to be used next: uniform, from a hot set, or in order.
    fn pick(&mut self, p: usize, t: usize) -> usize {
        let pages = self.sc.pages as u64;
        match (p + t) % 4 {
            0 => self.rng.index(self.sc.pages),
            1 | 2 if self.rng.chance(800) => (t as u64 * 97 + self.rng.below(pages / 8)) as usize % self.sc.pages,
            3 if self.rng.chance(700) => ((self.now / 40 + t as u64 * 31) % pages) as usize,
            3 => self.just_parked(p).unwrap_or(0),
            _ => self.rng.index(self.sc.pages),
        }
    }

    /// A page that is inactive or being written: touching those again and again is what brings rare orders about.
    fn just_parked(&mut self, p: usize) -> Option<usize> {
        let process = &self.procs[p];
        let page = match self.rng.below(2) {
            0 if !process.writes.is_empty() => {
                let items = &process.writes[self.rng.index(process.writes.len())].items;
                items[self.rng.index(items.len())].page
            }
            _ => {
                let at = self.rng.index(self.sc.pages);
                let near = at..(at + 40).min(self.sc.pages);
                return near.into_iter().find(|at| process.vm.page(process.page(*at)).state() == State::Inactive);
            }
        };
        Some(process.at(page))
    }

    /// A range within one object; now and then one that begins where a daemon or the device is at work.
    fn pick_range(&mut self, p: usize) -> (usize, usize) {
        let per = self.procs[p].per_object;
        let long = if self.rng.chance(100) { 200 } else { 24 };
        let count = (1 + self.rng.index(long)).min(per / 3);
        let process = &self.procs[p];
        let busy = match self.rng.below(4) {
            0 => process.reads.last().map(|r| r.op.first),
            1 => process.daemons.iter().find_map(|d| match d {
                Daemon::Parking(batch, done) => Some(batch[*done].0),
                _ => None,
            }),
            _ => None,
        };
        match busy.map(|page| process.at(page)) {
            Some(at) => (at, count.min(per - at % per)),
            None => (self.rng.index(2) * per + self.rng.index(per - count + 1), count),
        }
    }

    fn begin(&mut self, p: usize, t: usize) {
        if self.procs[p].freezing {
            return;
        }
        if self.rng.chance(self.sc.events) && self.procs[p].event.is_none() {
            return self.begin_event(p, t);
        }
        if self.rng.chance(self.sc.wires) {
            return self.wire_some(p, t);
        }
        if self.rng.chance(20) {
            let (at, count) = self.pick_range(p);
            let process = &mut self.procs[p];
            if let Some(op) = process.vm.prefetch(process.page(at), count as u32, process.bounds(at)) {
                self.start_read(p, op);
            }
            return;
        }
        if self.rng.chance(40) {
            return self.follow_a_pointer(p, t);
        }
        let at = self.pick(p, t);
        let write = self.rng.chance(self.sc.writes).then(|| match self.rng.below(10) {
            0 => 0,
            1 => self.procs[p].expected[at],
            2 => at as u64 + 1, // a content that comes back
            _ => {
                self.contents += 1;
                self.contents << 16
            }
        });
        self.touch(p, t, Access { at, write, since: self.now, faults: 0, over: false });
    }

    fn begin_event(&mut self, p: usize, t: usize) {
        let (from, count) = self.pick_range(p);
        let process = &mut self.procs[p];
        let change = match self.rng.below(5) {
            0 => Change::Discard,
            1 => Change::Unmap,
            2 => {
                let (per, object) = (process.per_object, from / process.per_object);
                let reading = process.reads.last().map(|r| process.at(r.op.first));
                let to = match reading {
                    Some(at) if at / per == object && at % per + count <= per && self.rng.chance(500) => at,
                    _ => object * per + self.rng.index(per - count + 1),
                };
                if to < from + count && from < to + count {
                    return;
                }
                Change::Remap { to }
            }
            3 => return self.adopt_some(p, from, count),
            _ => return self.drop_some_unseen(p, from, count),
        };
        process.event = Some(Event { change, from, count, stage: 0, thread: t, changing: false });
        process.threads[t] = Thread::Event;
    }

    /// The kernel gave the program pages of its own accord, and the pager takes them over.
    fn adopt_some(&mut self, p: usize, from: usize, count: usize) {
        if self.procs[p].sections > 0 || self.procs[p].event.is_some() {
            return;
        }
        for at in from..from + count.min(8) {
            self.contents += 1;
            let value = self.contents << 16;
            let process = &mut self.procs[p];
            let page = process.page(at);
            let word = process.vm.page(page);
            if word.state() != State::Untouched || word.busy() || process.vm.available() == 0 {
                continue;
            }
            process.map(at, value);
            process.expected[at] = value;
            assert!(process.vm.adopt(page), "there is room for page {page:?}");
            self.report.adopted += 1;
            self.note(p, "adopted", at, value);
        }
    }

    /// The kernel drops resident pages and tells nobody; what is not resident stays.
    fn drop_some_unseen(&mut self, p: usize, from: usize, count: usize) {
        self.note(p, "dropped unseen", from, count as u64);
        let process = &mut self.procs[p];
        for at in (from..from + count).filter(|at| !process.wired[*at] && !process.in_event(*at)).collect::<Vec<_>>() {
            if process.mapped[at].take().is_some() {
                process.expected[at] = 0;
            }
        }
    }

    fn wire_some(&mut self, p: usize, t: usize) {
        let (from, count) = self.pick_range(p);
        let process = &mut self.procs[p];
        let many = process.wired.iter().filter(|w| **w).count() > self.sc.memory_pages as usize / 8;
        let wired = !many && self.rng.chance(500);
        for at in if wired { from..from + count.min(6) } else { from..from + count } {
            if process.in_event(at) {
                continue;
            }
            assert!(process.vm.wire(process.page(at), wired), "there is room for page {at}");
            process.wired[at] = wired;
        }
        self.note(p, if wired { "wire" } else { "unwire" }, from, count as u64);
        if wired {
            self.procs[p].threads[t] = Thread::Touch(Access { at: from, write: None, since: self.now, faults: 0, over: false });
        }
    }

    /// A page that was read points to another one: the machine brings that in as well.
    fn follow_a_pointer(&mut self, p: usize, t: usize) {
        let at = self.rng.index(self.sc.pages);
        let process = &mut self.procs[p];
        if process.in_event(at) {
            return;
        }
        match process.vm.follow_pointer(process.page(at)) {
            Followed::Nothing | Followed::NoMemory => {}
            Followed::Read(op) => self.start_read(p, op),
            Followed::Restore(frame) => {
                process.sections += 1;
                let access = Access { at, write: None, since: self.now, faults: 0, over: false };
                process.threads[t] = Thread::Restoring(access, frame, None);
            }
        }
    }

    fn touch(&mut self, p: usize, t: usize, mut access: Access) {
        let process = &mut self.procs[p];
        let at = access.at;
        if process.in_event(at) {
            // the program does not use what it is just taking away or moving
            process.threads[t] = Thread::Touch(access);
            return;
        }
        if let Some(value) = process.mapped[at] {
            check::reads::check(process, at, value);
            if let Some(new) = access.write {
                process.mapped[at] = Some(new);
                process.expected[at] = new;
            }
            process.threads[t] = Thread::Idle;
            self.report.accesses += 1;
            self.progress = self.now;
            if access.write.is_some() || access.faults > 0 {
                self.note(p, if access.write.is_some() { "written" } else { "read" }, at, self.procs[p].expected[at]);
            }
            return;
        }
        if process.freezing {
            process.threads[t] = Thread::Touch(access);
            return;
        }
        let over = access.over || self.sc.bug == Bug::Overcommit;
        let over = over && process.vm.available() == 0;
        let page = process.page(at);
        let fault = process.vm.fault(page, process.bounds(at), over);
        access.faults += 1;
        let process = &mut self.procs[p];
        match fault {
            Fault::Mapped => {
                if !process.changing() && process.mapped[at].is_none() {
                    process.map(at, 0);
                }
                process.threads[t] = Thread::Touch(access);
            }
            Fault::Busy => process.threads[t] = Thread::Waiting(access),
            Fault::Restore { frame, ahead } => {
                process.sections += 1;
                process.threads[t] = Thread::Restoring(access, frame, ahead);
            }
            Fault::ZeroFill { first, count } => {
                if over {
                    process.asked_over += 1;
                }
                process.sections += 1;
                process.threads[t] = Thread::Filling(access, first, count, 0);
            }
            Fault::PageIn(op) => {
                if over {
                    process.asked_over += 1;
                }
                process.threads[t] = Thread::Waiting(access);
                self.start_read(p, op);
            }
            Fault::NoMemory => {
                // The daemon works; when it finds nothing to do any more, the budget gives way.
                access.over |= process.stuck();
                assert!(!over, "progress: no frame above the budget either, page {at}");
                process.threads[t] = Thread::Touch(access);
            }
            Fault::TableFull => panic!("scenarios are made within the table"),
            Fault::Lost => {
                check::reads::check_lost(process, at);
                process.threads[t] = Thread::Idle;
                self.progress = self.now;
                self.report.lost_pages += 1;
            }
        }
        self.note(p, name(&fault), at, mix(0) & over as u64);
        if access.faults > check::progress::FAULTS_MAX {
            panic!("progress: page {at} was faulted {} times by one access", access.faults);
        }
    }
}

fn name(fault: &Fault) -> &'static str {
    match fault {
        Fault::Mapped => "fault mapped",
        Fault::Busy => "fault busy",
        Fault::Restore { .. } => "fault restore",
        Fault::ZeroFill { .. } => "fault zero fill",
        Fault::PageIn(_) => "fault page in",
        Fault::NoMemory => "fault no memory",
        Fault::Lost => "fault lost",
        Fault::TableFull => "fault table full",
    }
}

impl<S: Store> Process<S> {
    /// The program sees `value` at page `at` from now on.
    pub fn map(&mut self, at: usize, value: u64) {
        assert!(self.mapped[at].is_none(), "frames: page {at} is mapped already");
        self.mapped[at] = Some(value);
    }
}

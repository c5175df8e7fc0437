//! System calls that change the address space, cut into the stages at which others can get in between.
//!
//! | stage | discard | unmap | remap |
//! | --- | --- | --- | --- |
//! | 0: the kernel begins; from here it answers EAGAIN | - | pages go | pages at `to` go, mapped pages move |
//! | 1: the message is read and followed, in one go | resident pages, then the other copies | other copies | release `to`, rename |
//! | 2: the kernel goes on | what was filled since is dropped behind the pager's back | - | - |

use crate::process::{Access, Change, Thread};
use crate::scenario::Bug;
use crate::store::Store;
use crate::world::World;

impl<S: Store> World<S> {
    /// The system call of process `p`, if there is one, goes one stage further.
    pub fn event_step(&mut self, p: usize) {
        let process = &mut self.procs[p];
        let Some(event) = process.event.as_mut() else { return };
        let (from, count) = (event.from, event.count);
        match event.stage {
            0 => {
                event.stage = 1;
                event.changing = true;
                match event.change {
                    Change::Discard => {}
                    Change::Unmap => process.mapped[from..from + count].fill(None),
                    Change::Remap { to } => {
                        for i in 0..count {
                            process.mapped[to + i] = process.mapped[from + i].take();
                        }
                        self.note(p, "moves to", to, count as u64);
                    }
                }
                self.note(p, "event begins", from, count as u64);
            }
            1 => {
                if process.sections > 0 {
                    return;
                }
                event.stage = 2;
                event.changing = false;
                let change = event.change;
                match change {
                    Change::Discard => {
                        if self.sc.bug != Bug::KeepResident {
                            process.mapped[from..from + count].fill(None);
                        }
                        self.release(p, from, count);
                    }
                    Change::Unmap => self.release(p, from, count),
                    Change::Remap { to } => {
                        self.release(p, to, count);
                        self.rename(p, from, to, count);
                    }
                }
                self.note(p, "event followed", from, count as u64);
            }
            _ => {
                let event = process.event.take().expect("it is under way");
                process.threads[event.thread] = Thread::Idle;
                match event.change {
                    Change::Discard => {
                        if self.sc.bug != Bug::KeepResident {
                            process.mapped[from..from + count].fill(None);
                        }
                        self.report.discards += 1;
                    }
                    Change::Unmap => self.report.unmaps += 1,
                    Change::Remap { to } => {
                        // the program uses what it has moved
                        let at = to + self.rng.index(count);
                        let access = Access { at, write: None, since: self.now, faults: 0, over: false };
                        process.threads[event.thread] = Thread::Touch(access);
                        self.report.remaps += 1;
                    }
                }
                self.note(p, "event ends", from, count as u64);
            }
        }
    }

    /// Pages `from..from + count` are given up; what is resident is gone already.
    pub fn release(&mut self, p: usize, from: usize, count: usize) {
        let process = &mut self.procs[p];
        if count == 0 {
            return;
        }
        let first = process.page(from);
        let mut held = Vec::new();
        for at in from..from + count {
            let word = process.vm.page(process.page(at));
            if word.has_frame() {
                held.push((process.page(at), word.frame()));
            }
        }
        let parked = &mut process.parked;
        process.vm.release_range(first, count as u64, |frame| {
            parked[frame.at()].take().expect("frames: an inactive page has no parked content");
        });
        for (page, frame) in held {
            process.charge_held_copy(page, frame);
        }
        process.expected[from..from + count].fill(0);
        process.may_be_lost[from..from + count].fill(false);
        process.wired[from..from + count].fill(false);
    }

    fn rename(&mut self, p: usize, from: usize, to: usize, count: usize) {
        let process = &mut self.procs[p];
        assert!(process.vm.rename_range(process.page(from), process.page(to), count as u64), "there is room");
        for i in 0..count {
            process.expected[to + i] = std::mem::take(&mut process.expected[from + i]);
            process.may_be_lost[to + i] = std::mem::take(&mut process.may_be_lost[from + i]);
            process.wired[to + i] = std::mem::take(&mut process.wired[from + i]);
        }
    }
}

//! In-thread delivery: a thread serves its own faults, and gives readahead to the reader thread. (The library does the same:
//! `crates/overspill/src/fault.rs`, `reads.rs`. Its buffers, of which threads may have to wait for one, are not modelled.)

use crate::io;
use crate::kernel::Sim;
use crate::process::CLUSTER_PAGES;
use overspill_machine::Machine;
use overspill_machine::kernel::Kernel as _;
use overspill_machine::reader::{self, Reader};
use overspill_machine::serve::Served;
use overspill_machine::space::Read;
use overspill_simkernel::pmap::PAGE;
use overspill_simkernel::sched::{Timeout, Word};
use std::cell::RefCell;
use std::collections::VecDeque;

/// So few reads wait for the reader thread that the queue is full now and then.
const QUEUE: usize = 3;

/// Readahead on its way to the reader thread.
pub struct Queue {
    reads: RefCell<VecDeque<Read>>,
    pushed: Word,
}

impl Default for Queue {
    fn default() -> Self {
        Queue { reads: RefCell::default(), pushed: Word::new(0) }
    }
}

impl Queue {
    /// Gives `read` to the reader thread, or returns it if there is no room.
    fn push(&self, read: Read) -> Option<Read> {
        let mut reads = self.reads.borrow_mut();
        if reads.len() == QUEUE {
            return Some(read);
        }
        reads.push_back(read);
        drop(reads);
        self.pushed.add(1);
        self.pushed.wake(1);
        None
    }

    /// The reader thread. Ends when the machine shuts down and nothing is under way.
    pub fn reader(&self, machine: &Machine<Sim>) {
        let mut reader = Reader::deep((), CLUSTER_PAGES).expect("memory");
        reader.deepen();
        loop {
            let seen = self.pushed.load();
            let mut any = false;
            while reader.has_room(1)
                && let Some(read) = { self.reads.borrow_mut().pop_front() }
            {
                reader.start(machine, read);
                any = true;
            }
            while let Some(done) = overspill_machine::kernel::Io::completion(&mut reader.io) {
                reader.finish(machine, done);
                any = true;
            }
            if any || reader.follow_pointers(machine) {
                continue;
            }
            reader.give_back(machine, false);
            if machine.shutdown.has_begun() && reader.in_flight() == 0 {
                reader.give_back(machine, true);
                return;
            }
            self.pushed.wait(seen, Timeout::Tick(reader.io.next_in().unwrap_or(10_000_000)));
        }
    }

    /// Serves a touch of `addr`. Returns whether it can be repeated: the page is not lost.
    pub fn serve(&self, machine: &Machine<Sim>, addr: usize) -> bool {
        loop {
            let seen = machine.arrivals.count();
            match machine.serve(addr & !1, 0, true) {
                Served::Done | Served::Refused => return true,
                Served::Lost => return false,
                Served::Busy | Served::Held => {
                    machine.arrivals.wait(seen);
                    return true;
                }
                Served::Read(it) => {
                    let late = reader::read_more(machine, &it.op).and_then(|more| self.push(more));
                    let next = read_here(machine, &it, |next| self.push(next));
                    [late, next].into_iter().flatten().for_each(|read| self.hand_over(machine, read));
                    return true;
                }
                Served::DoneReadAhead(it, waiters) => {
                    machine.wake_last(waiters);
                    self.hand_over(machine, it);
                    return true;
                }
                Served::NoMemory => {
                    machine.ring_daemon();
                    machine.arrivals.wait(seen);
                }
                Served::NotOurs => panic!("a touch of {addr:x}, which is in no region"),
            }
        }
    }

    fn hand_over(&self, machine: &Machine<Sim>, read: Read) {
        let mut next = Some(read);
        while let Some(read) = next {
            next = match self.push(read) {
                Some(long) if long.op.count as usize > CLUSTER_PAGES => {
                    machine.arrivals.wait(machine.arrivals.count());
                    Some(long)
                }
                full => full.and_then(|read| read_here(machine, &read, |next| self.push(next))),
            };
        }
    }
}

/// Makes `read` in the calling thread.
fn read_here(machine: &Machine<Sim>, read: &Read, issue: impl FnOnce(Read) -> Option<Read>) -> Option<Read> {
    let Read { op, fd, .. } = read;
    let (since, len) = (Sim::now_ns(), op.count as usize * PAGE);
    let buffer = Sim::map_anonymous(len).expect("memory");
    // SAFETY: a fresh mapping of that length, this thread's alone until it is unmapped. The read into it ends before that.
    unsafe {
        let result = if op.location.is_memory {
            machine.load(op.location, op.count, op.wanted, buffer);
            Ok(len)
        } else {
            io::read_now(*fd, buffer, len, op.location.offset)
        };
        let next = reader::arrived(machine, read, buffer, since, result, |_, next| issue(next)).next;
        Sim::unmap(buffer, len);
        next
    }
}

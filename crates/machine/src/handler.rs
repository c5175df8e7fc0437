//! A handler's work: it serves the faults that messages report, and finishes the reads that they led to. The handler's thread
//! decides which thread polls, on which CPU, and how it waits.

use crate::errno::Errno;
use crate::events::MESSAGES;
use crate::kernel::{Done, Host as _, Io as _, Kernel};
use crate::machine::Machine;
use crate::reader::{Reader, TOKEN_OTHER};
use crate::serve::Served;

/// Faults that wait for a frame, for their thread's turn, or for a call to be reported, per handler. A handler with almost that
/// many reads no more messages until some are served. (It should be more than there are threads: the kernel gives reports of calls
/// only when all faults have been read. With 64, and 160 threads that discarded memory and touched it again, there was always a
/// fault to be read, and fills were refused for half a minute and more.)
const DEFERRED_MAX: usize = 1024;
/// With more of them no fault is held back for its thread's turn.
const HELD_MAX: usize = 32;
/// With more of them none is held back because its page could not be read.
const UNREAD_MAX: usize = DEFERRED_MAX / 2;
/// How soon a handler tries a waiting fault again, in nanoseconds: at first, and at most. The delay doubles each time. (A constant
/// 200 us cost minutes on a busy machine: docs/decisions/0018.)
const RETRY_NS: core::ops::RangeInclusive<u64> = 100_000..=3_200_000;

/// How many times in a row a handler tries a fault again whose fill the kernel has refused, before it sleeps: for some 100 us. The
/// kernel refuses fills until the thread whose report was read has run again. That thread may need this CPU.
const REFUSALS_MAX: u32 = 64;

/// The state of one handler thread.
pub struct Handler<K: Kernel> {
    /// Its reads.
    pub reader: Reader<K>,
    /// Faults to serve again: address and thread.
    deferred: [(usize, u32); DEFERRED_MAX],
    waiting: usize,
    patience: u64,
    follows: bool,
    /// The kernel has refused to fill a page since the waiting faults were last tried, and how many times in a row it had.
    refused: bool,
    refusals: u32,
}

impl<K: Kernel> Handler<K> {
    /// Makes a handler with I/O of its own.
    ///
    /// # Errors
    /// As [`Reader::new`].
    pub fn new(engine: K::Engine, cluster_pages: usize) -> Result<Self, Errno> {
        let reader = Reader::new(engine, cluster_pages)?;
        Ok(Handler {
            reader,
            deferred: [(0, 0); DEFERRED_MAX],
            waiting: 0,
            patience: *RETRY_NS.start(),
            follows: false,
            refused: false,
            refusals: 0,
        })
    }

    /// How many faults wait to be served again.
    pub fn waiting(&self) -> usize {
        self.waiting + usize::from(self.reader.has_refused())
    }

    /// Whether there is more to be done at once.
    pub fn follows(&self) -> bool {
        self.follows
    }

    /// Whether a fault is to be tried again as soon as messages have been read and the CPU has been offered to others.
    pub fn is_refused(&self) -> bool {
        self.refused && self.refusals < REFUSALS_MAX || self.reader.has_refused()
    }

    /// How soon waiting faults are to be served again, in nanoseconds; `None` if there are none.
    pub fn patience(&self) -> Option<u64> {
        (self.waiting > 0).then_some(self.patience)
    }

    /// Whether messages may be read.
    pub fn has_room(&self) -> bool {
        self.waiting + MESSAGES <= DEFERRED_MAX && self.reader.has_room(MESSAGES)
    }

    /// Finishes the reads that have ended. Completions of other kinds are given to `other`.
    pub fn reap(&mut self, machine: &Machine<K>, mut other: impl FnMut(Done)) {
        while let Some(done) = self.reader.io.completion() {
            match done.token {
                TOKEN_OTHER.. => other(done),
                _ => self.reader.finish(machine, done),
            }
        }
    }

    /// A fork is being made: begins nothing.
    pub fn pause(&mut self) {
        self.follows = false;
    }

    /// Tries once more to serve the waiting faults.
    pub fn retry(&mut self, machine: &Machine<K>) {
        self.refusals = if self.is_refused() { self.refusals + 1 } else { 0 };
        self.refused = false;
        while self.waiting < DEFERRED_MAX
            && let Some(addr) = self.reader.refused()
        {
            self.defer(machine, addr, 0);
        }
        let retry = core::mem::take(&mut self.waiting);
        machine.host.waits(-(retry as i32));
        for i in 0..retry {
            let (addr, tid) = self.deferred[i];
            // (what the kernel refuses for one, it refuses for all)
            match self.reader.has_room(1) && !self.refused {
                true => _ = self.serve(machine, addr, tid),
                false => self.defer(machine, addr, tid),
            }
        }
        let longer = self.waiting > 0 && self.waiting == retry && !self.refused;
        self.patience = if longer { (self.patience * 2).min(*RETRY_NS.end()) } else { *RETRY_NS.start() };
    }

    /// Reads messages and serves their faults. Calls `served` before each fault with its thread, and after it with the result as
    /// well. Returns whether there may be more messages. => [`Handler::has_room`]
    pub fn read_messages(&mut self, machine: &Machine<K>, mut served: impl FnMut(u32, Option<Served>)) -> bool {
        machine.read_messages(|addr, tid| {
            served(tid, None);
            let result = self.serve(machine, addr, tid);
            served(tid, Some(result));
        })
    }

    /// The work that is left when no more messages can be read.
    pub fn finish(&mut self, machine: &Machine<K>) {
        if !self.has_room() {
            // no messages were read, but the daemon may wait for an event, and the waiting faults for the daemon's frames
            machine.follow_own_discards();
        }
        self.follows = self.reader.follow_pointers(machine);
        self.reader.give_back(machine, false);
    }

    fn serve(&mut self, machine: &Machine<K>, addr: usize, tid: u32) -> Served {
        // with many faults held back there would be no room for messages of other threads
        let held = if self.waiting < HELD_MAX { tid } else { 0 };
        let served = machine.serve(addr, held, self.waiting < UNREAD_MAX);
        match served {
            Served::Done | Served::Busy | Served::Lost => {}
            Served::Held => self.defer(machine, addr, tid),
            Served::Refused => {
                self.refused = true;
                self.defer(machine, addr, tid);
            }
            Served::Read(read) => self.reader.start(machine, read),
            // a device reads while the thread goes on, which may take this CPU; memory would be unpacked here
            Served::DoneReadAhead(read, waiters) if self.reader.io.is_asynchronous() && !read.op.location.is_memory => {
                self.reader.start(machine, read);
                self.reader.io.submit();
                machine.wake_last(waiters);
            }
            Served::DoneReadAhead(read, waiters) => {
                machine.wake_last(waiters);
                self.reader.start(machine, read);
            }
            Served::NoMemory => {
                machine.status.counters.throttled_faults.add(1);
                machine.ring_daemon();
                self.defer(machine, addr, tid);
            }
            Served::NotOurs => machine.serve_unmanaged(addr),
        }
        served
    }

    fn defer(&mut self, machine: &Machine<K>, addr: usize, tid: u32) {
        self.deferred[self.waiting] = (addr, tid);
        self.waiting += 1;
        machine.host.waits(1);
    }
}

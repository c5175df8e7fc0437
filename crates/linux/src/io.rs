//! Issues I/O by io_uring, or by pread and pwritev where io_uring is refused. One [`Io`] belongs to one thread, or to one thread at
//! a time ([`Io::lent`]).
//!
//! Both engines have the same interface: issue, wait, then take completions ([`overspill_machine::kernel::Io`]). The plain engine
//! does the transfer when it is issued. Neither allocates after construction.

use crate::ring::{self, Entry, Ring};
use crate::sys::{self, Errno, sys};
use overspill_machine::kernel::{Done, IoVec};
use std::collections::VecDeque;

/// Which engine to use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Engine {
    /// io_uring if the kernel lets us, else psync.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// pread and pwritev.
    Psync,
}

impl Engine {
    /// From the name that `--engine` takes.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "auto" => Engine::Auto,
            "io_uring" => Engine::Uring,
            "psync" => Engine::Psync,
            _ => return None,
        })
    }
    /// Replaces `Auto` by what this machine offers.
    ///
    /// # Errors
    /// The errno of io_uring_setup if io_uring was asked for by name and is refused.
    pub fn resolve(self) -> Result<Engine, Errno> {
        if self == Engine::Psync {
            return Ok(Engine::Psync);
        }
        match (Ring::new(2, 0), self) {
            (Ok(_), _) => Ok(Engine::Uring),
            (Err(_), Engine::Auto) => Ok(Engine::Psync),
            (Err(e), _) => Err(e),
        }
    }
    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Auto => "auto",
            Engine::Uring => "io_uring",
            Engine::Psync => "psync",
        }
    }
}

/// The outcome of [`Io::spin`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spun {
    /// There is a completion.
    Found,
    /// There was none in that time.
    InVain,
    /// Other threads had the CPU meanwhile. There may be a completion.
    Preempted,
}

/// A thread that could not poll for this long did not have the CPU, in nanoseconds.
const PREEMPTED_NS: u64 = 200_000;

const WATCHES: usize = 4;
/// The completion of a watch's removal; not reported.
const TOKEN_REMOVED: u64 = u64::MAX;

enum Kind {
    Uring(Ring),
    Psync,
}

/// One thread's I/O.
pub struct Io {
    kind: Kind,
    watches: [Option<(i32, u64)>; WATCHES],
    done: VecDeque<Done>,
}

impl Io {
    /// For up to `depth` transfers at a time. => `engine` is resolved
    ///
    /// # Errors
    /// The errno of io_uring_setup.
    pub fn new(engine: Engine, depth: u32) -> Result<Io, Errno> {
        // only this thread reaps completions, when it asks for them, so the kernel need not interrupt it
        Io::with(engine, depth, ring::SINGLE_ISSUER | ring::DEFER_TASKRUN)
    }

    /// As [`Io::new`], but for one thread at a time: a thread that issues waits for the completion before another thread uses this.
    ///
    /// # Errors
    /// As [`Io::new`].
    pub fn lent(engine: Engine, depth: u32) -> Result<Io, Errno> {
        // the thread that issued gets its completions when it enters the kernel, so the kernel need not interrupt it
        Io::with(engine, depth, ring::COOP_TASKRUN)
    }

    fn with(engine: Engine, depth: u32, flags: u32) -> Result<Io, Errno> {
        let kind = match engine {
            Engine::Psync => Kind::Psync,
            _ => Kind::Uring(Ring::new((depth * 2).next_power_of_two(), flags)?),
        };
        Ok(Io { kind, watches: [None; WATCHES], done: VecDeque::with_capacity(depth as usize * 2 + WATCHES) })
    }

    /// Completes with `token` whenever `fd` becomes readable.
    pub fn watch(&mut self, fd: i32, token: u64) {
        let slot = self.watches.iter_mut().find(|w| w.is_none()).expect("few watches");
        *slot = Some((fd, token));
        self.arm(fd, token);
    }

    fn arm(&mut self, fd: i32, token: u64) {
        if let Kind::Uring(_) = self.kind {
            // SAFETY: a poll refers to no memory.
            unsafe { self.push(Entry::poll(fd, token)) };
        }
    }

    /// Ends a watch. One completion with `token` may still come.
    pub fn unwatch(&mut self, token: u64) {
        let Some(slot) = self.watches.iter_mut().find(|w| w.is_some_and(|(_, t)| t == token)) else { return };
        *slot = None;
        if let Kind::Uring(_) = self.kind {
            // SAFETY: it refers to no memory.
            unsafe { self.push(Entry::poll_remove(token, TOKEN_REMOVED)) };
        }
    }

    /// # Safety
    /// The memory and descriptors of the entry live until it has completed.
    unsafe fn push(&mut self, entry: Entry) {
        let Kind::Uring(ring) = &mut self.kind else { unreachable!("psync has no queue") };
        // SAFETY: the caller's promise.
        while !unsafe { ring.push(entry) } {
            ring.submit(); // the queue was full
        }
    }

    /// Issues, then polls for a completion for `ns` nanoseconds without sleeping. With plain I/O there is nothing to poll.
    /// `yields`: gives the CPU to any other thread that wants it.
    pub fn spin(&mut self, ns: u64, yields: bool) -> Spun {
        if !self.done.is_empty() {
            return Spun::Found;
        }
        let Kind::Uring(ring) = &mut self.kind else { return Spun::InVain };
        let start = sys::now_ns();
        let mut looked = start;
        loop {
            ring.look(); // the kernel puts completions into the ring when this thread asks (see `new`)
            let now = sys::now_ns();
            if now - looked > PREEMPTED_NS {
                return Spun::Preempted;
            }
            looked = now;
            if ring.has_completion() {
                return Spun::Found;
            }
            if yields {
                sys::yield_now();
            }
            if now - start > ns {
                return Spun::InVain;
            }
        }
    }
}

impl overspill_machine::kernel::Io for Io {
    fn is_asynchronous(&self) -> bool {
        matches!(self.kind, Kind::Uring(_))
    }

    unsafe fn read(&mut self, fd: i32, buf: *mut u8, len: usize, offset: u64, token: u64) {
        if let Kind::Psync = self.kind {
            // SAFETY: the caller's promise.
            let result = unsafe { sys::pread_full(fd, buf, len, offset) };
            self.done.push_back(Done { token, result });
            return;
        }
        // SAFETY: the caller's promise.
        unsafe { self.push(Entry::read(fd, buf, len, offset, token)) };
    }

    unsafe fn write(&mut self, fd: i32, iov: &[IoVec], offset: u64, token: u64) {
        if let Kind::Psync = self.kind {
            // SAFETY: the caller's promise.
            let result = unsafe { sys::pwritev(fd, iov, offset) };
            self.done.push_back(Done { token, result });
            return;
        }
        // SAFETY: the caller's promise.
        unsafe { self.push(Entry::writev(fd, iov.as_ptr(), iov.len(), offset, token)) };
    }

    fn submit(&mut self) {
        if let Kind::Uring(ring) = &mut self.kind {
            ring.submit();
        }
    }

    fn wait(&mut self, timeout_ns: Option<u64>) {
        if !self.done.is_empty() {
            self.submit();
            return;
        }
        match &mut self.kind {
            Kind::Uring(ring) => ring.wait(timeout_ns),
            Kind::Psync => {
                let mut fds = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; WATCHES];
                for (p, w) in fds.iter_mut().zip(&self.watches) {
                    p.fd = w.map_or(-1, |w| w.0);
                }
                let t = timeout_ns
                    .map(|ns| libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 });
                let tp = t.as_ref().map_or(core::ptr::null(), |t| t as *const _);
                // SAFETY: the array and the timeout live over the call.
                let _ = unsafe { sys!(libc::SYS_ppoll, fds.as_mut_ptr(), WATCHES, tp, 0, 8) };
                for (p, w) in fds.iter().zip(&self.watches) {
                    if let (true, Some((_, token))) = (p.revents != 0, w) {
                        self.done.push_back(Done { token: *token, result: Ok(0) });
                    }
                }
            }
        }
    }

    fn put_back(&mut self, done: Done) {
        self.done.push_back(done);
    }

    fn completion(&mut self) -> Option<Done> {
        if let Some(done) = self.done.pop_front() {
            return Some(done);
        }
        let Kind::Uring(ring) = &mut self.kind else { return None };
        let done = core::iter::from_fn(|| ring.completion()).find(|done| done.token != TOKEN_REMOVED)?;
        let (token, result) = (done.token, done.result);
        if let Some((fd, _)) = self.watches.iter().flatten().copied().find(|w| w.1 == token)
            && !done.more()
            && result != -libc::ECANCELED
        // a watch that was removed and wanted again has been armed anew
        {
            self.arm(fd, token);
        }
        Some(Done { token, result: if result < 0 { Err(-result) } else { Ok(result as usize) } })
    }
}

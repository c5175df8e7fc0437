//! Issues I/O by io_uring, or by pread and pwritev where io_uring is refused. One [`Io`] belongs to one thread, or to one thread at
//! a time ([`Io::lent`]).
//!
//! Both engines have the same interface: issue, wait, then take completions ([`overspill_machine::kernel::Io`]). The plain engine
//! does the transfer when it is issued. Neither allocates after construction.

use crate::ring::{self, Entry, Ring};
use crate::sys::{self, Errno};
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
    /// Replaces `Auto` by what this machine offers. Makes a ring, and drops it.
    ///
    /// => no thread of the program's: some milliseconds after a ring was dropped, the kernel wakes each thread that made it or
    /// issued by it, as a signal does, and what it waits in may end with EINTR (Linux 6.18, io_ring_exit_work in
    /// io_uring/io_uring.c). A thread that has ended is not on the ring's list.
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
/// With so many wakes pending, a poll may lose one.
pub const PENDING_MAX: u32 = 128;
/// The completion of a poll's removal, which is not reported: this token less the number of the watch.
const TOKEN_REMOVED: u64 = u64::MAX;

/// A descriptor whose readability is reported.
#[derive(Clone, Copy)]
struct Watch {
    fd: i32,
    token: u64,
    /// [`Io::watch`] was called for it, and [`Io::unwatch`] was not, since.
    wanted: bool,
    poll: Poll,
}

/// The state of a watch's poll in the kernel.
///
/// There must never be two: each message would complete both. A poll cannot be removed while it is about to complete; it goes on
/// then. That is known only when its removal has completed, so until then no other poll is made, also if one is wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Poll {
    None,
    Armed,
    /// Its removal has been issued.
    Removing,
}

enum Kind {
    Uring(Ring),
    Psync,
}

/// One thread's I/O.
pub struct Io {
    kind: Kind,
    watches: [Option<Watch>; WATCHES],
    done: VecDeque<Done>,
    lent: Option<Lent>,
}

/// The most transfers of [`Io::lent`] at a time.
pub const LENT_MAX: u32 = 64;

/// [`Io::lent`]
struct Lent {
    /// The process that made it.
    process: u32,
    /// Transfers whose completions have not been taken.
    under_way: u32,
}

impl Drop for Io {
    fn drop(&mut self) {
        if let (Some(Lent { process, under_way: 0 }), Kind::Uring(ring)) =
            (&self.lent, std::mem::replace(&mut self.kind, Kind::Psync))
        {
            idle::put(*process, ring);
        }
    }
}

impl Io {
    /// For up to `depth` transfers at a time. => `engine` is resolved
    ///
    /// # Errors
    /// The errno of io_uring_setup.
    pub fn new(engine: Engine, depth: u32) -> Result<Io, Errno> {
        // only this thread reaps completions, when it asks for them, so the kernel need not interrupt it
        let flags = ring::SINGLE_ISSUER | ring::DEFER_TASKRUN;
        let kind = match engine {
            Engine::Psync => Kind::Psync,
            _ => Kind::Uring(Ring::new((depth * 2).next_power_of_two(), flags)?),
        };
        Ok(Io::of(kind, depth))
    }

    /// For [`LENT_MAX`] transfers at a time, by threads of the program's, one at a time: a thread that issues waits for the
    /// completion before another thread uses this. Watches nothing. Its ring goes to the next one when it is dropped. If there can
    /// be no ring, it is plain I/O.
    pub fn lent(engine: Engine) -> Io {
        let process = std::process::id();
        let ring = if engine == Engine::Psync { None } else { idle::take(process) };
        let mut io = Io::of(ring.map_or(Kind::Psync, Kind::Uring), LENT_MAX);
        io.lent = Some(Lent { process, under_way: 0 });
        io
    }

    fn of(kind: Kind, depth: u32) -> Io {
        let done = VecDeque::with_capacity(depth as usize * 2 + WATCHES);
        Io { kind, watches: [None; WATCHES], done, lent: None }
    }

    /// Completes with `token` whenever `fd` becomes readable.
    pub fn watch(&mut self, fd: i32, token: u64) {
        let at = self.watch_of(token).or_else(|| self.watches.iter().position(Option::is_none)).expect("few watches");
        let poll = self.watches[at].map_or(Poll::None, |w| w.poll);
        self.watches[at] = Some(Watch { fd, token, wanted: true, poll });
        self.follow(at);
    }

    /// Ends a watch. Some completions with `token` may still come.
    pub fn unwatch(&mut self, token: u64) {
        let Some(at) = self.watch_of(token) else { return };
        self.watches[at].as_mut().expect("found").wanted = false;
        self.follow(at);
    }

    /// Whether the watch has a poll: until its removal has completed, each message wakes it.
    pub fn has_poll(&self, token: u64) -> bool {
        self.watch_of(token).is_some()
    }

    /// After a wait: if nothing has completed, completes the watches whose descriptors are readable all the same.
    ///
    /// A poll of io_uring's can lose a wake that comes while it works off [`PENDING_MAX`] others or more (Linux 6.18,
    /// io_poll_get_ownership_slowpath in io_uring/poll.c).
    pub fn check_watches(&mut self) {
        if let Kind::Uring(ring) = &self.kind
            && !ring.has_completion()
        {
            let watches = self.watches.iter().flatten().filter(|watch| watch.wanted && sys::is_readable(watch.fd));
            self.done.extend(watches.map(|watch| Done { token: watch.token, result: Ok(0) }));
        }
    }

    /// Makes a watch's poll, or removes it, as it is wanted. If neither is there any more, the watch is gone.
    fn follow(&mut self, at: usize) {
        let Some(watch) = self.watches[at].as_mut() else { return };
        let entry = match (watch.wanted, watch.poll) {
            (true, Poll::None) => {
                watch.poll = Poll::Armed;
                Entry::poll(watch.fd, watch.token)
            }
            (false, Poll::Armed) => {
                watch.poll = Poll::Removing;
                Entry::poll_remove(watch.token, TOKEN_REMOVED - at as u64)
            }
            (false, Poll::None) => {
                self.watches[at] = None;
                return;
            }
            (true, Poll::Armed) | (_, Poll::Removing) => return,
        };
        match self.kind {
            // SAFETY: polls and their removal refer to no memory.
            Kind::Uring(_) => unsafe { self.push(entry) },
            Kind::Psync => self.watches[at] = self.watches[at].filter(|w| w.wanted),
        }
    }

    /// The number of the watch with this token.
    fn watch_of(&self, token: u64) -> Option<usize> {
        self.watches.iter().position(|w| w.is_some_and(|w| w.token == token))
    }

    /// A poll's removal has completed.
    fn removed(&mut self, at: usize, result: i32) {
        let Some(watch) = self.watches[at].as_mut() else { return };
        watch.poll = if result == -libc::EALREADY { Poll::Armed } else { Poll::None };
        self.follow(at);
    }

    /// A poll has ended by itself.
    fn ended(&mut self, at: usize) {
        let Some(watch) = self.watches[at].as_mut() else { return };
        if watch.poll == Poll::Armed {
            watch.poll = Poll::None;
            self.follow(at);
        }
    }

    /// The next completion of the ring.
    fn next_of_ring(&mut self) -> Option<Done> {
        let (token, result) = loop {
            let Kind::Uring(ring) = &mut self.kind else { return None };
            let done = ring.completion()?;
            let removal = (TOKEN_REMOVED - done.token) as usize;
            if removal < WATCHES {
                self.removed(removal, done.result);
                continue;
            }
            // (The end of a poll that was removed is no news.)
            if !done.more()
                && done.result != -libc::ECANCELED
                && let Some(at) = self.watch_of(done.token)
            {
                self.ended(at);
            }
            break (done.token, done.result);
        };
        Some(Done { token, result: if result < 0 { Err(-result) } else { Ok(result as usize) } })
    }

    fn note_issued(&mut self) {
        if let Some(lent) = &mut self.lent {
            lent.under_way += 1;
        }
    }

    /// # Safety
    /// The memory and descriptors of the entry live until it has completed.
    unsafe fn push(&mut self, entry: Entry) {
        let Kind::Uring(ring) = &mut self.kind else { unreachable!("psync has no queue") };
        // SAFETY: the caller's promise.
        while !unsafe { ring.push(entry) } {
            enter(ring, &mut self.done, Ring::submit); // the queue was full
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
            // the kernel puts completions into the ring when this thread asks (see `new`)
            enter(ring, &mut self.done, Ring::look);
            let now = sys::now_ns();
            if now - looked > PREEMPTED_NS {
                return Spun::Preempted;
            }
            looked = now;
            if ring.has_completion() || !self.done.is_empty() {
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

/// Enters a ring. If that is refused, what it has not taken is transferred here: the program may have installed a seccomp filter,
/// or closed the ring's descriptor. (A thread that faulted then tried again for ever, with all signals blocked.)
fn enter(ring: &mut Ring, done: &mut VecDeque<Done>, how: impl FnOnce(&mut Ring) -> Result<(), Errno>) {
    if how(ring).is_err() {
        ring.transfer_unissued(|token, result| done.push_back(Done { token, result }));
    }
}

impl overspill_machine::kernel::Io for Io {
    fn is_asynchronous(&self) -> bool {
        matches!(self.kind, Kind::Uring(_))
    }

    unsafe fn read(&mut self, fd: i32, buf: *mut u8, len: usize, offset: u64, token: u64) {
        self.note_issued();
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
        self.note_issued();
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
            enter(ring, &mut self.done, Ring::submit);
        }
    }

    fn wait(&mut self, timeout_ns: Option<u64>) {
        if !self.done.is_empty() {
            self.submit();
            return;
        }
        match &mut self.kind {
            Kind::Uring(ring) => enter(ring, &mut self.done, |ring| ring.wait(timeout_ns)),
            Kind::Psync => {
                let mut fds = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; WATCHES];
                for (p, w) in fds.iter_mut().zip(&self.watches) {
                    p.fd = w.map_or(-1, |w| w.fd);
                }
                sys::poll(&mut fds, timeout_ns);
                for (p, w) in fds.iter().zip(&self.watches) {
                    if let (true, Some(watch)) = (p.revents != 0, w) {
                        self.done.push_back(Done { token: watch.token, result: Ok(0) });
                    }
                }
            }
        }
    }

    fn completion(&mut self) -> Option<Done> {
        let done = self.done.pop_front().or_else(|| self.next_of_ring())?;
        if let Some(lent) = &mut self.lent {
            lent.under_way -= 1;
        }
        if done.result == Err(libc::EFBIG) {
            sys::take_signal(libc::SIGXFSZ); // if it is blocked here, it would end the process later
        }
        Some(done)
    }
}

/// Rings of [`Io::lent`] that nobody uses now. They stay for the next owner: some milliseconds after a ring is gone, the kernel
/// interrupts what a thread waits in that made it or issued by it ([`Engine::resolve`]), and these are threads of the program's.
mod idle {
    use super::{LENT_MAX, Ring, ring};
    use crate::lock::Mutex;

    /// The most rings of a process, for some pagers and flushes at a time.
    const RINGS_MAX: usize = 64;
    static RINGS: Mutex<Rings> = Mutex::new(Rings::of(0));

    struct Rings {
        process: u32,
        /// Made, or being made.
        made: usize,
        idle: [Option<Ring>; RINGS_MAX],
    }

    impl Rings {
        const fn of(process: u32) -> Self {
            Rings { process, made: 0, idle: [const { None }; RINGS_MAX] }
        }
    }

    /// One of them, or a new one. `None` if none can be made, or if this thread may use none.
    ///
    /// A ring whose descriptor the program has closed, as a daemon does when no pager is there, is left alone: the number may be
    /// another file's by now. So are a parent's rings in its child.
    pub fn take(process: u32) -> Option<Ring> {
        let mut rings = RINGS.try_lock()?; // a child may find it locked, for ever
        if rings.process != process {
            core::mem::forget(core::mem::replace(&mut *rings, Rings::of(process)));
        }
        while let Some(place) = rings.idle.iter_mut().find(|place| place.is_some()) {
            let here = place.as_mut().map(Ring::is_here);
            match here {
                Some(Ok(true)) => return place.take(),
                Some(Err(libc::EPERM | libc::EACCES | libc::ENOSYS)) => return None, // by a seccomp filter
                _ => core::mem::forget(place.take()),
            }
            rings.made -= 1;
        }
        if rings.made == RINGS_MAX {
            return None;
        }
        rings.made += 1;
        drop(rings);
        // the thread that issued gets its completions when it enters the kernel, so the kernel need not interrupt it
        let made = Ring::new(2 * LENT_MAX, ring::COOP_TASKRUN).ok();
        if made.is_none() {
            RINGS.lock().made -= 1;
        }
        made
    }

    pub fn put(process: u32, ring: Ring) {
        if process != std::process::id() {
            return core::mem::forget(ring);
        }
        if let Some(place) = RINGS.lock().idle.iter_mut().find(|place| place.is_none()) {
            *place = Some(ring);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_machine::kernel::Io as _;
    use std::os::fd::AsRawFd as _;

    const TOKEN: u64 = 7;

    /// Two connected sockets, and an [`Io`] of each engine that there is.
    fn each_engine(test: impl Fn(&mut Io, [sys::Fd; 2])) {
        for engine in [Engine::Uring, Engine::Psync] {
            match Io::new(engine, 4) {
                Ok(mut io) => test(&mut io, crate::descriptors::socket_pair().expect("sockets")),
                Err(e) => {
                    println!("not run: io_uring is refused ({e})");
                    assert!(std::env::var_os("CI").is_none(), "CI must have io_uring");
                }
            }
        }
    }

    /// Counts the completions of the watch that come within some milliseconds.
    fn completions(io: &mut Io) -> usize {
        let mut count = 0;
        for _ in 0..4 {
            io.wait(Some(1_000_000));
            count += core::iter::from_fn(|| io.completion()).filter(|done| done.token == TOKEN && done.result.is_ok()).count();
        }
        count
    }

    fn send(socket: &sys::Fd) {
        assert_eq!(sys::write(socket.raw(), b"x"), Ok(1));
    }

    fn receive(socket: &sys::Fd) {
        assert_eq!(sys::read(socket.raw(), &mut [0; 8]), Ok(1));
    }

    /// A program forbade itself io_uring after its pager had been set up. The next thread that faulted entered its ring in vain,
    /// again and again.
    #[test]
    fn transfers_are_made_though_the_ring_may_not_be_entered() {
        let test = || {
            let mut io = Io::lent(Engine::Uring);
            if !io.is_asynchronous() {
                return;
            }
            let file = rustix::fs::memfd_create("transfers", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
            let stmt = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
            let enter = libc::SYS_io_uring_enter as u32;
            let mut filter =
                [stmt(0x20, 0), libc::sock_filter { jf: 1, ..stmt(0x15, enter) }, stmt(6, 0x5_0001), stmt(6, 0x7fff_0000)];
            let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
            // SAFETY: forbids this thread a call.
            unsafe {
                assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
                assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
            }
            let (from, mut to) = ([7u8; 64], [0u8; 64]);
            let iov = [IoVec { base: from.as_ptr() as usize, len: 64 }];
            // SAFETY: the buffers outlive the transfers.
            unsafe { io.write(file.as_raw_fd(), &iov, 4096, 1) };
            io.wait(None);
            let mut done = || io.completion().map(|done| (done.token, done.result));
            assert_eq!((done(), done()), (Some((1, Ok(64))), None));
            // SAFETY: as above.
            unsafe { io.read(file.as_raw_fd(), to.as_mut_ptr(), 64, 4096, 2) };
            assert!(io.spin(1000, true) == Spun::Found);
            assert_eq!(io.completion().map(|done| done.token), Some(2));
            assert_eq!(to, from);
        };
        std::thread::spawn(test).join().expect("all is transferred"); // the filter ends with the thread
    }

    /// A program whose pager has ended may close all descriptors and open files. Then it may make another, also in a child.
    #[test]
    fn the_programs_files_are_not_taken_for_rings() {
        const PART: &str = "OVERSPILL_TEST_RINGS";
        if std::env::var_os(PART).is_none() {
            let test = "io::tests::the_programs_files_are_not_taken_for_rings";
            let mut child = std::process::Command::new(std::env::current_exe().expect("its path"));
            let status = child.args([test, "--exact", "--nocapture"]).env(PART, "1").status().expect("it starts");
            assert!(status.success(), "its part of the test: {status}");
            return;
        }
        let reads = || {
            let (mut io, mut to) = (Io::lent(Engine::Uring), [1u8; 64]);
            let zero = sys::open(b"/dev/zero\0", libc::O_RDONLY | libc::O_CLOEXEC, 0).expect("/dev/zero");
            // SAFETY: the buffer outlives the read.
            unsafe { io.read(zero.raw(), to.as_mut_ptr(), 64, 0, 7) };
            io.wait(None);
            assert_eq!(io.completion().map(|done| (done.token, done.result)), Some((7, Ok(64))));
            (io.is_asynchronous(), to == [0; 64])
        };
        let first = reads();
        let end_and_open = |replaces: i32| {
            // SAFETY: no file of this process's is used any more but standard error. Numbers only.
            unsafe {
                assert_eq!(libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0), 0);
                for fd in 3..replaces {
                    assert_eq!(libc::open(c"/dev/null".as_ptr(), libc::O_RDWR), fd);
                }
            }
            assert_eq!(reads(), first);
            let null = sys::file_stat(sys::open(b"/dev/null\0", libc::O_RDWR | libc::O_CLOEXEC, 0).expect("/dev/null").raw());
            let null = null.expect("/dev/null").st_rdev;
            assert!((3..replaces).all(|fd| sys::file_stat(fd).is_ok_and(|file| file.st_rdev == null)), "they are the program's");
        };
        // SAFETY: the child only does what follows, and no other thread holds a lock that it needs.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let right = std::panic::catch_unwind(|| end_and_open(40));
            // SAFETY: ends the child.
            unsafe { libc::_exit(right.is_err().into()) };
        }
        let mut how = 0;
        // SAFETY: the kernel writes the word.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut how, 0) }, child);
        assert_eq!(how, 0, "the child");
        end_and_open(3);
        end_and_open(40);
    }

    /// A poll that is about to complete cannot be removed. So each watch that was wanted again soon added a poll, and each message
    /// completed all of them: with two threads that faulted now alternately and now one alone, a program had a thousand after half
    /// a minute, and a third of its speed.
    #[test]
    fn a_watch_that_is_wanted_again_has_one_poll() {
        each_engine(|io, [ours, theirs]| {
            io.watch(ours.raw(), TOKEN);
            assert_eq!(completions(io), 0);
            for _ in 0..10 {
                send(&theirs); // the poll is about to complete
                io.unwatch(TOKEN);
                io.watch(ours.raw(), TOKEN);
                assert!(completions(io) > 0, "the message is seen");
                receive(&ours);
                assert_eq!(completions(io), 0);
            }
            if io.is_asynchronous() {
                send(&theirs);
                assert_eq!(completions(io), 1);
            }
        });
    }

    /// A wake was lost, and a handler slept next to its message for ever.
    #[test]
    fn what_is_readable_is_seen_though_its_wake_was_lost() {
        each_engine(|io, [ours, theirs]| {
            io.watch(ours.raw(), TOKEN);
            assert_eq!(completions(io), 0);
            send(&theirs);
            if let Kind::Uring(ring) = &mut io.kind {
                ring.look().expect("allowed");
                while ring.completion().is_some() {} // lost
                assert_eq!(completions(io), 0);
            }
            io.check_watches();
            assert!(completions(io) > 0);
        });
    }

    #[test]
    fn a_watch_that_ended_is_silent_and_can_be_wanted_again() {
        each_engine(|io, [ours, theirs]| {
            for rests in [false, true] {
                io.watch(ours.raw(), TOKEN);
                if rests {
                    assert_eq!(completions(io), 0);
                }
                io.unwatch(TOKEN);
                completions(io);
                send(&theirs);
                assert_eq!(completions(io), 0);
                io.watch(ours.raw(), TOKEN); // what came meanwhile is seen
                assert!(completions(io) > 0);
                receive(&ours);
                io.unwatch(TOKEN);
                completions(io);
            }
        });
    }
}

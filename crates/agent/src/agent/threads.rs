//! The pager's threads. They are bare threads with a descriptor table of their own.

use super::Agent;
use super::fork::{ANCESTORS_MAX, Birth};
use core::ffi::c_void;
use core::fmt::Write;
use core::sync::atomic::{AtomicU32, Ordering::*};
use overspill_linux::control::Packet;
use overspill_linux::credentials::Follower;
use overspill_linux::descriptors::PACK_MAX;
use overspill_linux::device_spec::FILES_MAX;
use overspill_linux::setup::DEVICES_MAX;
use overspill_linux::swap_file::SwapFiles;
use overspill_linux::sys::{self, Errno, futex_wait, futex_wake};
use overspill_linux::wake_policy::STANDBY;
use overspill_linux::{control_server, handler, threads};
use overspill_machine::kernel::Uffd as _;

/// The most descriptors in the pager's table: two userfaultfds and the device that makes them, the devices' files, our own process,
/// the status block, an event, standard error, and the sockets to ancestors.
const DESCRIPTORS_MAX: usize = 3 + DEVICES_MAX * FILES_MAX + 4 + ANCESTORS_MAX;

const _: () = assert!(DESCRIPTORS_MAX <= PACK_MAX);

/// How old a descendant must be to get a control socket, in nanoseconds.
const SOCKET_AFTER_NS: u64 = 200_000_000;

pub(super) fn allowed_cpus() -> Vec<usize> {
    let mut cpus: Vec<usize> = sys::cpus_of(&sys::allowed_cpus()).take(16).collect();
    if cpus.is_empty() {
        cpus.push(0);
    }
    cpus
}

/// The CPUs of the handlers, and in place of one the standby handler's. With one CPU nobody could watch that.
fn handlers() -> Vec<usize> {
    let mut handlers = allowed_cpus();
    if handlers.len() > 1 {
        handlers.push(STANDBY);
    }
    handlers
}

/// The role of a bare thread.
#[derive(Clone, Copy)]
enum Role {
    /// The first thread. It takes the descriptors along, starts the other threads, and becomes the page daemon. In a forked child
    /// it first sets the pager up.
    Daemon(Option<&'static Birth>),
    Helper,
    Control,
    Handler(usize, bool),
}

struct Job {
    agent: &'static Agent,
    role: Role,
    follower: Follower,
}

extern "C" fn thread_main(arg: *mut c_void) -> ! {
    // SAFETY: a leaked job.
    let Job { agent, role, follower } = unsafe { &*(arg as *const Job) };
    let follower = &mut { *follower };
    let machine = agent.machine;
    let ready = || {
        agent.threads_ready.fetch_add(1, Release);
        futex_wake(&agent.threads_ready, 1);
    };
    let result = match role {
        Role::Daemon(birth) => {
            let mut failed = agent.family().claim().err();
            match birth {
                None => agent.keep_only_ours(),
                Some(birth) if birth.happen(agent) => {}
                // the process is about to end; its message goes through this thread's table
                Some(_) => loop {
                    futex_wait(&AtomicU32::new(0), 0, u64::MAX);
                },
            }
            let handlers = handlers();
            let one = handlers.len() > 1;
            failed = failed.or(agent.spawn(Role::Helper, true).err());
            failed = failed.or(agent.spawn(Role::Control, true).err());
            for cpu in handlers {
                failed = failed.or(agent.spawn(Role::Handler(cpu, one), true).err());
            }
            match failed {
                Some(e) => Err(e),
                None => threads::daemon(machine, agent.engine, follower, ready),
            }
        }
        Role::Helper => {
            ready();
            agent.help();
            Ok(())
        }
        Role::Control => {
            agent.control(follower);
            Ok(())
        }
        Role::Handler(cpu, pin) => handler::run(machine, agent.engine, agent.cluster_pages, pin.then_some(*cpu), follower, ready),
    };
    if let Err(e) = result {
        agent.threads_failed.store(e, Release);
        ready();
    }
    agent.threads.fetch_sub(1, Relaxed);
    follower.leave(&machine.host.following);
    threads::end()
}

impl Agent {
    fn spawn(&'static self, role: Role, share_files: bool) -> Result<u32, Errno> {
        let following = &self.machine.host.following;
        // the helper thread makes the others follow, and follows last
        let follower = if let Role::Helper = role { Follower::none() } else { following.enlist().ok_or(libc::EAGAIN)? };
        let job = Box::leak(Box::new(Job { agent: self, role, follower }));
        self.threads.fetch_add(1, Relaxed);
        // SAFETY: `thread_main` and all it calls use no thread-local storage; the job is leaked.
        let spawned = unsafe { threads::spawn_bare(thread_main, (job as *mut Job).cast(), share_files) };
        if spawned.is_err() {
            self.threads.fetch_sub(1, Relaxed);
            follower.leave(following);
        }
        spawned
    }

    /// Starts the pager's threads with a copy of the caller's descriptor table. Then closes the pager's descriptors in the
    /// caller's.
    pub(super) fn start_threads(&'static self) -> Result<(), Errno> {
        self.begin_threads(None)?;
        self.await_threads()?;
        sys::set_voice(sys::voice(), self.daemon_tid.load(Relaxed));
        let mut ours = [0i32; DESCRIPTORS_MAX];
        let n = self.descriptors(&mut ours);
        for fd in &ours[..n] {
            let _ = sys::close(*fd);
        }
        Ok(())
    }

    /// Starts the first of the pager's threads.
    pub(super) fn begin_threads(&'static self, birth: Option<&'static Birth>) -> Result<(), Errno> {
        self.threads_ready.store(0, Relaxed);
        self.threads_failed.store(0, Relaxed);
        self.threads.store(0, Relaxed); // (in a forked child these are its parent's)
        let tid = self.spawn(Role::Daemon(birth), false)?;
        self.daemon_tid.store(tid, Relaxed);
        Ok(())
    }

    /// Waits until all of them run.
    pub(super) fn await_threads(&self) -> Result<(), Errno> {
        let want = 2 + handlers().len() as u32;
        loop {
            let ready = self.threads_ready.load(Acquire);
            match self.threads_failed.load(Acquire) {
                0 if ready >= want => return Ok(()),
                0 => futex_wait(&self.threads_ready, ready, 1_000_000_000),
                e => return Err(e),
            }
        }
    }

    /// Lists the descriptors of the pager's table. Returns how many there are.
    pub(super) fn descriptors(&self, out: &mut [i32; DESCRIPTORS_MAX]) -> usize {
        let map = self.machine.map.read();
        let mut n = 0;
        let mut add = |fd: i32| {
            if fd >= 0 && n < out.len() {
                out[n] = fd;
                n += 1;
            }
        };
        add(map.program.raw());
        add(map.parking.raw());
        map.files.iter().flatten().flat_map(SwapFiles::iter).for_each(|f| add(f.raw()));
        map.process.iter().for_each(|f| add(f.raw()));
        add(self.status_fd.load(Relaxed));
        add(self.machine.shutdown.event());
        add(sys::voice());
        add(self.uffd_device.load(Relaxed));
        self.ancestors.iter().for_each(|f| add(f.load(Relaxed)));
        n
    }

    /// Closes the program's descriptors in the pager's fresh table: a pipe must end when the program closes it.
    fn keep_only_ours(&self) {
        let mut ours = [0i32; DESCRIPTORS_MAX];
        let n = self.descriptors(&mut ours);
        Self::keep_only(&mut ours[..n]);
    }

    pub(super) fn keep_only(ours: &mut [i32]) {
        ours.sort_unstable();
        let mut from = 0u32;
        for fd in ours.iter().map(|fd| *fd as u32).chain([u32::MAX]) {
            if fd > from {
                // SAFETY: this thread's table is its own; none of these are the pager's.
                let _ = unsafe {
                    sys::syscall6(libc::SYS_close_range, from as usize, fd as usize - (fd != u32::MAX) as usize, 0, 0, 0, 0)
                };
            }
            from = fd.wrapping_add(1);
        }
    }

    /// The control thread. If there can be no socket, commands cannot reach the process; the rest of its work goes on.
    pub(super) fn control(&self, follower: &mut Follower) {
        let first = self.machine.is_supervised();
        if !first {
            // Most forks and many programs end soon, and should leave no socket behind.
            follower.wait(&self.machine.host.following, SOCKET_AFTER_NS);
        }
        let mut file = Packet::new();
        let _ = write!(file, "{}", sys::getpid());
        if first && !self.control.name.is_empty() {
            let _ = write!(file, ".{}", self.control.name);
        }
        let _ = write!(file, ".sock");
        // before it follows: the program may be giving up the right to enter the directory
        let directory = Some(&self.control.directory).filter(|directory| !directory.is_empty());
        let listener = directory.and_then(|directory| control_server::listen(directory, file.bytes()).ok());
        follower.look(&self.machine.host.following);
        control_server::serve(self.machine, self.engine, listener.as_ref(), follower, || {
            sys::close_voice_with_program();
            self.end_with_program();
        });
    }

    /// If all threads of the program have ended without a hook to see it, ends the process as the first of them has ended. (A
    /// filter may have killed it, or it has called exit(2) before another thread ended. Linux would take the last thread's end,
    /// which nobody knows.)
    fn end_with_program(&self) {
        if let Some(how) = sys::end_of_first_thread()
            && self.is_only_thread()
        {
            sys::end_as(how);
        }
    }
}

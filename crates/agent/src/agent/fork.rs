//! The agent's part of a fork: the process, its threads and descriptors. The machine ([`overspill_machine::fork`]) freezes the
//! pager meanwhile, and makes the child's copy its own.
//!
//! The child opens userfaultfds of its own, registers the same ranges and starts its own threads. It reads pages that its parent
//! had paged out from the parent's file, until the child's end of a socket is closed; exec and every kind of death close it. Parent
//! and child share the budget (`family.rs`).
//!
//! The child gets its copies of the pager's descriptors over the same socket, from the helper thread to the child's first pager
//! thread. So the program's table, which may be full, has one more descriptor only for a moment. Nothing is opened anew, because
//! the program may have lost the right to do so. And a block device's claim, which belongs to the open file, is the child's, too.

use super::helper::{CHILDREN_MAX, IDLE, Request};
use super::{Agent, HelperState};
use crate::hooks::{Fork, rehearsal};
use core::cell::UnsafeCell;
use core::fmt::Write;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering::*};
use overspill_linux::content::KEYS_MAX;
use overspill_linux::control::Packet;
use overspill_linux::descriptors::{self, PACK_MAX};
use overspill_linux::device_spec::FILES_MAX;
use overspill_linux::devices;
use overspill_linux::family::ASK_NS;
use overspill_linux::family::shares::MemberId;
use overspill_linux::machine::{Core, Delivery, Forked, Frozen, Space};
use overspill_linux::setup::{self, DEVICES_MAX};
use overspill_linux::swap_file::SwapFiles;
use overspill_linux::swapoff::{State, Unreadable, Worker};
use overspill_linux::sys::{self, Errno, Fd, futex_wait, futex_wake};
use overspill_vm::status::{Outcome, Status};
use overspill_vm::types::{DeviceId, PAGE_SHIFT};

/// The most sockets to ancestors that a process keeps open: one for each that still runs.
pub(super) const ANCESTORS_MAX: usize = 64;

/// A child's pager gets room for this many descriptors while it starts: for inherited ones, and for the rings and timers of its
/// threads.
const DESCRIPTORS_AT_START: u64 = 512;

/// A fork that holds the lock on devices so long without a break may wait for this process.
const GIVES_WAY_NS: u64 = 100_000_000;

/// A child checks at this interval whether the thread that sets its pager up lives, in nanoseconds.
const BIRTH_LOOK_NS: u64 = 1_000_000_000;

/// Why a forked child has no pager.
enum NoPager {
    /// An error of the system.
    Os(Errno),
    /// Too many forks in a row.
    Generations,
    /// The same, with too many keys.
    Keys,
    /// No room for its device alongside those that it inherits.
    Devices,
}

impl From<Errno> for NoPager {
    fn from(errno: Errno) -> Self {
        NoPager::Os(errno)
    }
}

impl NoPager {
    /// Writes a message to standard error. Does not allocate.
    fn say(&self) {
        let mut line = Packet::new();
        let _ = match self {
            NoPager::Os(errno) => {
                let why = match *errno {
                    libc::ENOENT => "/proc or the swap directory is not there; a chroot needs /proc, too",
                    libc::EPERM | libc::EACCES => "its user may not use userfaultfd, or not write to the swap directory",
                    libc::EMFILE => "it may not open more files (ulimit -n)",
                    libc::ENOMEM => "there is no memory for it, or a limit (ulimit -v, -d) is too low",
                    _ => "no userfaultfd, swap space or memory for it",
                };
                write!(line, "the pager could not be set up in a forked child ({why}: error {errno}), so the child was ended")
            }
            NoPager::Generations => write!(
                line,
                "a child of {ANCESTORS_MAX} generations of forks without an exec forked once more while all of them ran, and more than \
                 {ANCESTORS_MAX} there cannot be, so the new child was ended: have one of them exec"
            ),
            NoPager::Keys => write!(
                line,
                "a forked child would have more than {KEYS_MAX} keys, as each generation of forks without an exec adds one, so it was \
                 ended: have one of the generations exec, or start with --no-encrypt"
            ),
            NoPager::Devices => write!(
                line,
                "a forked child would have more than {DEVICES_MAX} swap devices, as each generation of forks without an exec adds one, so \
                 it was ended: start with fewer --swap devices, or have one of the generations exec"
            ),
        };
        sys::complain(line.bytes());
    }
}

/// The files of each device.
type Files = [[Option<Fd>; FILES_MAX]; DEVICES_MAX];

/// The socket to each ancestor.
type Ancestors = [Option<Fd>; ANCESTORS_MAX];

/// The descriptors that a child gets from its parent.
struct Inherited {
    files: Files,
    ancestors: Ancestors,
    uffd_device: Option<Fd>,
    voice: Option<Fd>,
}

impl Inherited {
    /// Receives what [`Agent::send_descriptors`] has sent.
    fn receive(agent: &Agent, map: &Space, socket: &Fd) -> Result<Self, Errno> {
        let mut fds = [const { None }; PACK_MAX];
        let files = || map.files.iter().map(|files| files.iter().flat_map(SwapFiles::iter).count());
        let held = |fd: &AtomicI32| fd.load(Relaxed) >= 0;
        let others = agent.ancestors.iter().chain([&agent.uffd_device]).filter(|fd| held(fd)).count();
        descriptors::receive(socket, &mut fds[..files().sum::<usize>() + others + usize::from(sys::voice() >= 0)])?;
        let mut got = fds.into_iter();
        let mut next = || got.next().flatten();
        let mut share = Inherited {
            files: [const { [const { None }; FILES_MAX] }; DEVICES_MAX],
            ancestors: [const { None }; ANCESTORS_MAX],
            uffd_device: None,
            voice: None,
        };
        for (device, count) in share.files.iter_mut().zip(files()) {
            device[..count].iter_mut().for_each(|fd| *fd = next());
        }
        for (fd, _) in share.ancestors.iter_mut().zip(&agent.ancestors).filter(|(_, theirs)| held(theirs)) {
            *fd = next();
        }
        if held(&agent.uffd_device) {
            share.uffd_device = next();
        }
        share.voice = next();
        Ok(share)
    }
}

/// The start of a pager in a forked child. The thread that forked holds all locks and waits. The first pager thread, which has a
/// descriptor table of its own, does the work.
pub(super) struct Birth {
    frozen: *mut Frozen<'static>,
    /// The socket, in the program's table and in the copy of it; `None`: the child must connect to the helper thread by name.
    socket: Option<i32>,
    result: UnsafeCell<Result<(), NoPager>>,
}

// SAFETY: until the agent's `born` is set, only the new thread uses the pointer and the result; from then on only its starter does.
unsafe impl Sync for Birth {}

impl Birth {
    fn new(frozen: &mut Frozen<'static>, socket: Option<&Fd>) -> Self {
        Birth { frozen, socket: socket.map(Fd::raw), result: UnsafeCell::new(Ok(())) }
    }

    /// Sets the pager up, in the new thread. Returns whether there is a pager now. `self` must not be used afterwards.
    pub(super) fn happen(&self, agent: &Agent) -> bool {
        let socket = match self.socket {
            Some(socket) => {
                Agent::keep_only(&mut [socket]);
                Ok(Fd::new(socket as usize))
            }
            None => {
                Agent::keep_only(&mut []);
                // SAFETY: the parent's helper thread has written it before the fork.
                descriptors::connect(unsafe { &*agent.meeting.get() })
            }
        };
        // SAFETY: the starter owns it, and does not use it until this is done.
        let frozen = unsafe { &mut *self.frozen };
        let result = socket.map_err(NoPager::Os).and_then(|socket| agent.become_child(frozen, socket));
        let ok = result.is_ok();
        // SAFETY: as above.
        unsafe { *self.result.get() = result };
        agent.born.store(1, Release);
        futex_wake(&agent.born, 1);
        ok
    }

    /// Waits until the pager is set up or has failed.
    fn wait(&self, agent: &Agent) -> Result<(), NoPager> {
        while agent.born.load(Acquire) == 0 {
            futex_wait(&agent.born, 0, BIRTH_LOOK_NS);
            let is_born = || agent.born.load(Acquire) != 0;
            if !is_born() && !sys::shares_memory(agent.daemon_tid.load(Relaxed)) && !is_born() {
                return Err(NoPager::Os(libc::ESRCH)); // a seccomp filter of the program's has killed it
            }
        }
        // SAFETY: the other thread is done with it. Acquire above pairs with the Release in `happen`.
        core::mem::replace(unsafe { &mut *self.result.get() }, Ok(()))
    }
}

pub(super) fn copy<const N: usize>(text: &overspill_vm::status::Text<N>) -> [u8; 64] {
    let mut out = [0; 64];
    text.copy_to(&mut out);
    out
}

impl Agent {
    /// Shrinks this process before a fork, until twice its charge fits into its own part and that of the child, which gets what is
    /// free.
    pub(super) fn shrink(&self, child: MemberId) {
        let machine = self.machine;
        let family = self.family();
        let start = sys::now_ns();
        let whole = |core: &Core| family.gather(child, core);
        let halve = |map: &Space, core: &mut Core| family.halve(child, map, core);
        // first ask the family: what others do not use is there at once and costs nothing
        loop {
            let seen = machine.arrivals.count();
            let Err(charge) = machine.fits_twice(whole, halve) else { return };
            let view = family.view();
            if u64::from(view.mine) >= charge + u64::from(view.fair()) || view.idle_spare == 0 || sys::now_ns() - start > ASK_NS {
                break;
            }
            family.ask(&view);
            machine.arrivals.wait(seen);
        }
        // A child that was gone by the next fork did not use what it had in common with its parent: probably the next one neither.
        let saves = family.view().kin > 2 || machine.status.counters.forks.get() == 0;
        machine.shrink(whole, saves, halve);
    }

    /// If there are as many devices as possible, empties and removes the inherited device with the fewest pages. If that fails, the
    /// child reports it.
    pub(super) fn make_room(&self) {
        let least = {
            let core = self.machine.core.lock();
            let devices = core.vm.devices();
            let stored = |id: &DeviceId| devices.device_use(*id).map_or(0, |used| used.stored);
            if devices.iter().count() < DEVICES_MAX || self.child_device.is_none() {
                return;
            }
            devices.iter().filter(|id| devices.is_inherited(*id)).min_by_key(stored)
        };
        let worker = least.and_then(|id| Worker::new(self.machine, self.engine, id, Unreadable::Stay).ok());
        let Some(mut worker) = worker else { return };
        // A fork that holds the lock may need this thread for its next request, so this does not wait for it.
        let mut free = sys::now_ns();
        while worker.step(self.machine) == State::Busy && sys::now_ns() - free < GIVES_WAY_NS {
            if self.machine.swapping.try_lock().is_some() {
                free = sys::now_ns();
            }
        }
        worker.end(self.machine);
    }

    /// Sends the pager's descriptors that a child needs, in the order in which [`Inherited::receive`] takes them.
    pub(super) fn send_descriptors(&self, state: &mut HelperState, socket: i32, tid: u32) -> Result<(), Errno> {
        if state.children.len() == CHILDREN_MAX {
            return Err(libc::EAGAIN);
        }
        let socket = descriptors::with_room(|| sys::fd_of(tid, socket))?;
        self.send_through(&socket)?;
        state.pending = Some(socket);
        Ok(())
    }

    fn send_through(&self, socket: &Fd) -> Result<(), Errno> {
        let map = self.machine.map.read();
        let mut fds = [0; PACK_MAX];
        let files = map.files.iter().flatten().flat_map(SwapFiles::iter).map(|file| file.raw());
        let others = self.ancestors.iter().chain([&self.uffd_device]).map(|fd| fd.load(Relaxed)).filter(|fd| *fd >= 0);
        let mut n = 0;
        for fd in files.chain(others).chain([sys::voice()].into_iter().filter(|fd| *fd >= 0)) {
            fds[n] = fd;
            n += 1;
        }
        drop(map);
        let mut left = 1000;
        loop {
            match descriptors::send(socket, &fds[..n]) {
                // other processes of this user have too many descriptors in flight at this moment
                Err(libc::ETOOMANYREFS) if left > 0 => futex_wait(&AtomicU32::new(0), 0, 1_000_000),
                result => return result,
            }
            left -= 1;
        }
    }

    /// Makes a socket to which the child will connect by itself. For when the program's table is full and its limit cannot be
    /// raised, or a filter forbids `pidfd_getfd`.
    pub(super) fn listen(&self, state: &mut HelperState) -> Result<(), Errno> {
        let (listener, name) = descriptors::with_room(descriptors::listen)?;
        state.listener = Some(listener);
        // SAFETY: only the forking thread, which waits for this, and its child read it.
        unsafe { *self.meeting.get() = name };
        Ok(())
    }

    /// Waits until the child connects, and sends its descriptors. `None` if it has ended before.
    pub(super) fn meet(&self, state: &mut HelperState, pid: u32) -> Option<Fd> {
        let listener = state.listener.take()?;
        let child = descriptors::with_room(|| sys::pidfd_open(pid)).ok()?;
        loop {
            if let Some(socket) = descriptors::with_room(|| descriptors::accept_from(&listener, pid)).ok()? {
                return self.send_through(&socket).is_ok().then_some(socket);
            }
            if sys::is_readable(child.raw()) {
                return None;
            }
            futex_wait(&AtomicU32::new(0), 0, 1_000_000);
        }
    }

    /// Makes the program's fork.
    pub fn fork(&'static self, mut call: Fork) -> isize {
        let (made, suspends) = self.stacks.run(move || {
            let made = self.fork_here(&mut call);
            match made {
                Ok((0, _)) => call.tell_child(),
                Ok(_) => call.tell_parent(),
                Err(_) => {}
            }
            (made, call.suspends())
        });
        match made {
            Ok((pid, child)) => {
                if suspends && pid > 0 {
                    // without a hook stack, and signals come: those that end a program should
                    self.family().await_end(child);
                }
                pid as isize
            }
            Err(e) => -(e as isize),
        }
    }

    /// Returns the child's id (in the child 0), and which member of the family it is.
    fn fork_here(&'static self, call: &mut Fork) -> Result<(usize, MemberId), Errno> {
        let machine = self.machine;
        let _ = self.ask_here(Request::MakeRoom);
        // One fork at a time, and no device comes or goes from here on. Parent and child both release the lock when this function
        // ends.
        let _swapping = machine.swapping.lock();
        let family = self.family();
        let member = family.reserve().ok_or(libc::EAGAIN)?;
        let _ = self.ask_here(Request::Shrink { member });
        // The descriptors that the child needs wait in a socket, which the child inherits in this thread's table.
        let sent = descriptors::with_room(descriptors::socket_pair).and_then(|[ours, childs]| {
            self.ask_here(Request::Send { socket: ours.raw(), tid: sys::gettid() })?;
            Ok(Some(childs))
        });
        let sent = match sent {
            Err(libc::EMFILE | libc::EPERM | libc::EACCES | libc::ENOSYS) => self.ask_here(Request::Listen).map(|()| None),
            sent => sent,
        };
        let childs = match sent {
            Ok(childs) => childs,
            Err(e) => {
                let _ = self.ask_here(Request::NoChild { member });
                return Err(e);
            }
        };

        let forked = machine.fork(|frozen| {
            let excess = family.endow(member, &frozen.map, &frozen.core);
            // No other thread may hold this lock, because no other thread exists in the child.
            let arena = crate::ARENA.hold();
            // In the child this thread goes on alone, with a copy of everything and with all locks held.
            let r = call.make();
            drop(arena);
            if r == Ok(0) {
                family.forked(member, excess);
                self.alone(frozen);
            }
            family.apply(&frozen.map, &mut frozen.core);
            r
        });
        let made = match forked {
            Ok(Forked::Child(frozen)) => {
                self.await_birth(frozen, childs);
                family.tell_born();
                return Ok((0, member));
            }
            Ok(Forked::Parent { child, fork }) => Ok((child, fork)),
            Err(e) => Err(e),
        };
        if made.is_ok() && call.shares_files() {
            let _ = childs.map(Fd::into_raw); // the table is the child's, too: the child closes it once it has a copy elsewhere
        } else {
            drop(childs);
        }
        let _ =
            self.ask_here(made.map_or(Request::NoChild { member }, |(pid, fork)| Request::Child { pid: pid as u32, fork, member }));
        let (pid, _) = made?;
        family.await_birth(member);
        Ok((pid, member))
    }

    /// In the child: waits until it has a pager, or ends it.
    fn await_birth(&'static self, mut frozen: Frozen<'static>, socket: Option<Fd>) {
        let _room = descriptors::room_for(DESCRIPTORS_AT_START);
        let birth = Birth::new(&mut frozen, socket.as_ref());
        self.born.store(0, Relaxed);
        // SAFETY: the new thread is done with it when `wait` returns, and this function does not return before.
        let begun = self.begin_threads(Some(unsafe { &*core::ptr::from_ref(&birth) }));
        drop(socket); // the thread has its own
        let result = begun.map_err(NoPager::Os).and_then(|()| birth.wait(self));
        if result.is_ok() {
            drop(frozen);
        }
        if let Err(why) = result.and_then(|()| Ok(self.await_threads()?)) {
            why.say();
            sys::exit_group(125);
        }
    }

    /// In the child: resets everything that belongs to the parent's threads. Needs no descriptor.
    fn alone(&self, frozen: &mut Frozen) {
        let machine = self.machine;
        self.here.store(1, Relaxed);
        self.slot.store(0, Relaxed); // the thread that had it is not in the child
        machine.host.following.forked();
        machine.host.wake_policy.reset();
        if let Some(record) = &machine.host.record {
            record.stop();
            frozen.core.vm.set_mapped_max(u32::MAX);
        }
        self.stacks.only_mine();
        self.request_state.store(IDLE, Relaxed);
        // SAFETY: this is the process's only thread. The old descriptors are numbers in the table of the parent's pager, so they
        // are not closed here.
        let state = unsafe { &mut *self.helper.get() };
        state.children.drain(..).for_each(core::mem::forget);
        core::mem::forget((state.pending.take(), state.listener.take()));
        core::mem::forget(frozen.map.process.take());
    }

    /// In the child, in its first pager thread: replaces everything that belongs to the parent's process.
    fn become_child(&self, frozen: &mut Frozen, socket: Fd) -> Result<(), NoPager> {
        let machine = self.machine;
        let received = Inherited::receive(self, &frozen.map, &socket);
        let (voice, received) = received.map_or_else(|e| (None, Err(e)), |mut share| (share.voice.take(), Ok(share)));
        sys::set_voice(voice.map_or(-1, Fd::into_raw), sys::gettid());
        let mut share = received?;
        frozen.map.process = sys::pidfd_open(sys::getpid()).ok();
        self.family().complete(&frozen.map, &mut frozen.core);
        self.family().leave_cache()?; // the parent may have been about to
        let vm = &mut frozen.core.vm;
        self.own_status(vm.limit())?;
        vm.set_reserved(vm.reserved()); // so that the new status block shows the charges
        machine.shutdown.set_event(sys::event()?.into_raw());
        let device = share.uffd_device;
        let (program, parking) = setup::open_uffds(Delivery::Threads, device.as_ref())?;
        self.uffd_device.store(device.map_or(-1, Fd::into_raw), Relaxed);
        frozen.inherit(program, parking, |at, theirs, needed| {
            if needed {
                return theirs.reopened(core::mem::replace(&mut share.files[at], [const { None }; FILES_MAX])).map(Some);
            }
            theirs.forget();
            Ok(None)
        })?;
        for (slot, fd) in self.ancestors.iter().zip(share.ancestors) {
            let alive = fd.filter(|fd| !sys::is_readable(fd.raw())); // nobody waits at the other end of the others
            slot.store(alive.map_or(-1, Fd::into_raw), Relaxed);
        }
        let free = self.ancestors.iter().find(|fd| fd.load(Relaxed) < 0).ok_or(NoPager::Generations)?;
        free.store(socket.into_raw(), Relaxed);
        let Frozen { map, core, .. } = &mut *frozen;
        let devices = core.vm.devices_mut();
        let keys = machine.content.forked(devices.stored() > 0);
        keys.map_err(|e| if e == libc::EOVERFLOW { NoPager::Keys } else { NoPager::Os(e) })?;
        if let Some(spec) = &self.child_device {
            // behind its copy of the compressed device, if the parent's files were behind it
            let priority = if map.pool.is_some() { spec.priority.unwrap_or(0) } else { 0 };
            let files = SwapFiles::open(spec).map_err(|(e, _)| e)?;
            let device = devices::add_files(devices, &files, priority).map_err(|_| NoPager::Devices)?;
            map.files[device.0 as usize] = Some(files);
            map.names[device.0 as usize].set(spec.name().as_encoded_bytes());
        }
        frozen.take_over()?;
        self.let_collapse();
        Ok(())
    }

    /// A fork is near. From its birth until its memory is registered, khugepaged must not put huge pages into the child's: it fills
    /// what is missing with zeroes, and what is out is missing. So there are none for this process until [`Agent::let_collapse`],
    /// and none for its child. (A filter of the program's may forbid this call.)
    pub(super) fn forbid_collapse(&self) {
        let before = if rehearsal::is_confined() { -1 } else { sys::disabled_huge_pages() };
        let forbids = before >= 0 && sys::disable_huge_pages(sys::NO_HUGE_PAGES);
        self.huge_pages.store(if forbids { before } else { -1 }, Relaxed);
    }

    /// It is as before the fork.
    pub(super) fn let_collapse(&self) {
        let before = self.huge_pages.swap(-1, Relaxed);
        if before >= 0 {
            sys::disable_huge_pages(before);
        }
    }

    /// Makes a status block of its own, at the address of the parent's.
    fn own_status(&self, limit_pages: u32) -> Result<(), Errno> {
        let old = self.status;
        let (policy, engine, limit) = (copy(&old.policy), copy(&old.engine), limit_pages as u64 * 4096);
        let at = old as *const Status as usize;
        let len = size_of::<Status>().next_multiple_of(4096);
        // SAFETY: a memory file of our own replaces the shared block in this process; same length, same layout, zeroed.
        unsafe {
            let fd = Fd::new(sys::syscall6(
                libc::SYS_memfd_create,
                c"overspill-status".as_ptr() as usize,
                (libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) as usize,
                0,
                0,
                0,
                0,
            )?);
            sys::syscall6(libc::SYS_ftruncate, fd.raw() as usize, len, 0, 0, 0, 0)?;
            // readers refuse a file that may shrink: without the seals `overspill stat` would not work on descendants
            let seals = (libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL) as usize;
            sys::syscall6(libc::SYS_fcntl, fd.raw() as usize, libc::F_ADD_SEALS as usize, seals, 0, 0, 0)?;
            let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
            sys::syscall6(libc::SYS_mmap, at, len, prot, (libc::MAP_SHARED | libc::MAP_FIXED) as usize, fd.raw() as usize, 0)?;
            self.status_fd.store(fd.into_raw(), Relaxed);
        }
        self.status.init(sys::getpid());
        self.status.policy.set(&policy);
        self.status.engine.set(&engine);
        self.status.swap.set(self.child_device.as_ref().map_or(&b"compressed"[..], |d| d.name().as_encoded_bytes()));
        let (ns, cycles) = sys::clocks();
        self.status.start(ns, cycles);
        self.status.outcome.store(Outcome::Running as u32, Release);
        self.status.counters.memory_limit_bytes.set(limit);
        self.status.counters.family_budget_bytes.set(u64::from(self.family().total()) << PAGE_SHIFT);
        self.machine.set_supervised(false);
        Ok(())
    }
}

//! The program's threads: processes that share this one's memory, and their forks. They use only raw system calls.

use super::{outcome, touch};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering::*};
use overspill_linux::area;
use overspill_linux::sys::{self, Errno, Fd, syscall6};
use overspill_simkernel::call::{Advice, Call, Outcome, Progress};
use overspill_simkernel::lab::{BASE, PAGES, PARKING, PLACES, THREADS};
use overspill_simkernel::pmap::PAGE;

/// The most threads, including all forks.
const SLOTS: usize = 16;
/// Bytes of a thread's stack.
const STACK: usize = 64 << 10;

const IDLE: u32 = 0;
const POSTED: u32 = 1;

/// The place where a thread gets its calls.
struct Slot {
    state: AtomicU32,
    pid: AtomicU32,
    call: UnsafeCell<Call>,
    outcome: UnsafeCell<Outcome>,
}

/// The memory that all threads share, forks too.
struct Shared {
    slots: [Slot; SLOTS],
    /// How many slots are in use.
    count: AtomicU32,
    /// The program's userfaultfd.
    uffd: i32,
}

/// The threads.
pub struct Slots {
    shared: *mut Shared,
    stacks: usize,
    dead: Vec<usize>,
    held: Option<Held>,
}

/// The state of this thread before it took its processor for itself.
struct Held {
    cpus: [u64; 16],
}

/// A raw system call.
macro_rules! call {
    ($nr:expr $(, $arg:expr)*) => { call!(@ $nr; $($arg as usize,)*; 0, 0, 0, 0, 0, 0) };
    (@ $nr:expr; $a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr,; $($z:expr),*) => { syscall6($nr, $a, $b, $c, $d, $e, $f) };
    (@ $nr:expr; $a:expr, $b:expr, $c:expr, $d:expr, $e:expr,; $($z:expr),*) => { syscall6($nr, $a, $b, $c, $d, $e, 0) };
    (@ $nr:expr; $a:expr, $b:expr, $c:expr, $d:expr,; $($z:expr),*) => { syscall6($nr, $a, $b, $c, $d, 0, 0) };
    (@ $nr:expr; $a:expr, $b:expr, $c:expr,; $($z:expr),*) => { syscall6($nr, $a, $b, $c, 0, 0, 0) };
    (@ $nr:expr; $a:expr, $b:expr,; $($z:expr),*) => { syscall6($nr, $a, $b, 0, 0, 0, 0) };
    (@ $nr:expr; $a:expr,; $($z:expr),*) => { syscall6($nr, $a, 0, 0, 0, 0, 0) };
    (@ $nr:expr;; $($z:expr),*) => { syscall6($nr, 0, 0, 0, 0, 0, 0) };
}

impl Slots {
    /// Starts `threads` threads.
    pub fn new(uffd: i32, threads: usize) -> Self {
        let map = |len: usize, flags: i32| {
            // SAFETY: fresh memory.
            unsafe { call!(libc::SYS_mmap, 0, len, libc::PROT_READ | libc::PROT_WRITE, flags | libc::MAP_ANONYMOUS, -1isize, 0) }
                .expect("memory")
        };
        let shared = map(size_of::<Shared>(), libc::MAP_SHARED) as *mut Shared;
        let stacks = map(threads * STACK, libc::MAP_PRIVATE);
        // SAFETY: fresh zeroes, nobody else has the address; a call and an outcome are written before they are read.
        unsafe {
            (*shared).uffd = uffd;
            (*shared).count = AtomicU32::new(threads as u32);
        }
        let slots = Slots { shared, stacks, dead: Vec::new(), held: None };
        for thread in 0..threads {
            let top = (stacks + (thread + 1) * STACK) as *mut libc::c_void;
            let flags = libc::CLONE_VM | libc::CLONE_FILES | libc::SIGCHLD;
            // SAFETY: the stack is its own. Its code uses nothing of this thread's, whose thread-local storage it shares.
            let pid = unsafe { libc::clone(start, top, flags, (shared as usize | thread) as *mut libc::c_void) };
            assert!(pid > 0, "a process");
            slots.slot(thread).pid.store(pid as u32, Relaxed);
        }
        slots
    }

    fn slot(&self, thread: usize) -> &Slot {
        // SAFETY: mapped until `self` goes. Fields that are not atomic are touched only by the side that the state names.
        unsafe { &(*self.shared).slots[thread] }
    }

    /// How many threads there are.
    pub fn count(&self) -> usize {
        // SAFETY: as above.
        unsafe { (*self.shared).count.load(Acquire) as usize }
    }

    /// The process of a thread.
    pub fn pid(&self, thread: usize) -> u32 {
        self.slot(thread).pid.load(Acquire)
    }

    /// Has a thread make a call.
    pub fn post(&self, thread: usize, call: Call) {
        let slot = self.slot(thread);
        assert_eq!(slot.state.load(Acquire), IDLE, "it is in a call");
        // SAFETY: an idle thread does not touch its slot.
        unsafe { *slot.call.get() = call };
        slot.state.store(POSTED, Release);
        // SAFETY: wakes.
        let _ = unsafe { call!(libc::SYS_futex, slot.state.as_ptr(), libc::FUTEX_WAKE, 1) };
    }

    /// How a thread's last call has ended, unless it is in a call.
    pub fn ended(&self, thread: usize) -> Option<Progress> {
        let slot = self.slot(thread);
        if self.dead.contains(&thread) {
            return Some(Progress::Dead);
        }
        // SAFETY: an idle thread does not touch its slot.
        (slot.state.load(Acquire) == IDLE).then(|| Progress::Done(unsafe { *slot.outcome.get() }))
    }

    /// Kills a thread, and waits for its end.
    pub fn kill(&mut self, thread: usize) {
        let pid = self.pid(thread) as i32;
        // SAFETY: our own child, which nobody has waited for.
        unsafe {
            libc::kill(pid, libc::SIGKILL);
            assert_eq!(libc::waitpid(pid, core::ptr::null_mut(), libc::__WALL), pid);
        }
        self.dead.push(thread);
    }

    /// Kills all.
    pub fn kill_all(&mut self) {
        self.hold(false);
        (0..self.count()).filter(|thread| !self.dead.contains(thread)).collect::<Vec<_>>().iter().for_each(|t| self.kill(*t));
    }

    /// Whether the threads are held.
    pub fn are_held(&self) -> bool {
        self.held.is_some()
    }

    /// Holds the threads: puts them on this thread's processor, which this thread has for itself (SCHED_FIFO) until the hold ends.
    pub fn hold(&mut self, on: bool) {
        let set = |pid: u32, cpus: &[u64; 16]| {
            // SAFETY: the set is live.
            unsafe { call!(libc::SYS_sched_setaffinity, pid, 128, cpus.as_ptr()) }.expect("a processor of ours");
        };
        let schedule = |policy: i32, priority: i32| {
            // SAFETY: the parameter is live.
            unsafe { call!(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) }.expect("root may");
        };
        if on && self.held.is_none() {
            let cpus = sys::allowed_cpus();
            let first = cpus.iter().enumerate().find_map(|(i, word)| (*word != 0).then(|| i * 64 + word.trailing_zeros() as usize));
            let one = sys::only_cpu(first.expect("one at least"));
            self.held = Some(Held { cpus });
            set(0, &one);
            (0..self.count()).filter(|t| !self.dead.contains(t)).for_each(|t| set(self.pid(t), &one));
            schedule(libc::SCHED_FIFO, 1);
        } else if !on && let Some(held) = self.held.take() {
            schedule(libc::SCHED_OTHER, 0);
            set(0, &held.cpus);
            (0..self.count()).filter(|t| !self.dead.contains(t)).for_each(|t| set(self.pid(t), &held.cpus));
        }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: all threads that used them are dead.
        unsafe {
            area::unmap(self.shared.cast(), size_of::<Shared>());
            area::unmap(self.stacks as *mut u8, THREADS * STACK);
        }
    }
}

/// A thread's whole life. The argument is the address of [`Shared`] plus the thread's number.
extern "C" fn start(argument: *mut libc::c_void) -> i32 {
    let shared = (argument as usize & !(PAGE - 1)) as *const Shared;
    let mut number = argument as usize & (PAGE - 1);
    // SAFETY: mapped as long as any thread runs this; slots are used as their state says.
    unsafe {
        let _ = call!(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        loop {
            let slot = &(*shared).slots[number];
            while slot.state.load(Acquire) != POSTED {
                let _ = call!(libc::SYS_futex, slot.state.as_ptr(), libc::FUTEX_WAIT, IDLE, 0);
            }
            let asked = *slot.call.get();
            if asked == Call::Fork {
                let child = (*shared).count.fetch_add(1, AcqRel) as usize;
                (*shared).slots[child].state.store(IDLE, Relaxed);
                *(*shared).slots[child].outcome.get() = Outcome::Ok(0);
                let pid = call!(libc::SYS_clone, libc::CLONE_PARENT | libc::SIGCHLD, 0, 0, 0, 0).expect("a process");
                if pid == 0 {
                    let _ = call!(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    number = child;
                    continue;
                }
                (*shared).slots[child].pid.store(pid as u32, Release);
                *slot.outcome.get() = Outcome::Ok(child);
            } else {
                *slot.outcome.get() = perform(asked, (*shared).uffd);
            }
            slot.state.store(IDLE, Release);
        }
    }
}

fn prot_of(prot: u8) -> usize {
    prot as usize // the same bits
}

fn advice_of(advice: Advice) -> i32 {
    const GUARD_INSTALL: i32 = 102;
    const GUARD_REMOVE: i32 = 103;
    match advice {
        Advice::DontNeed => libc::MADV_DONTNEED,
        Advice::Free => libc::MADV_FREE,
        Advice::Cold => libc::MADV_COLD,
        Advice::DontFork => libc::MADV_DONTFORK,
        Advice::DoFork => libc::MADV_DOFORK,
        Advice::WipeOnFork => libc::MADV_WIPEONFORK,
        Advice::KeepOnFork => libc::MADV_KEEPONFORK,
        Advice::PopulateRead => libc::MADV_POPULATE_READ,
        Advice::PopulateWrite => libc::MADV_POPULATE_WRITE,
        Advice::GuardInstall => GUARD_INSTALL,
        Advice::GuardRemove => GUARD_REMOVE,
    }
}

/// The argument of UFFDIO_COPY, with the page.
#[repr(C)]
struct CopyIn {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    done: i64,
    page: [u8; PAGE],
}

/// Makes a call. All addresses are of the lab's own memory.
fn perform(asked: Call, uffd: i32) -> Outcome {
    const MSEAL: libc::c_long = 462;
    const UFFDIO_COPY: u64 = 0xc028_aa03;
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the lab's memory: nobody relies on its content, or on its being mapped.
    let result = unsafe {
        match asked {
            Call::Map { at, len, prot, replace } => {
                let fixed = if replace { libc::MAP_FIXED } else { libc::MAP_FIXED_NOREPLACE };
                call!(libc::SYS_mmap, at, len, prot_of(prot), anonymous | fixed, -1isize, 0)
            }
            Call::Unmap { at, len } => call!(libc::SYS_munmap, at, len),
            Call::Remap { from, len, new_len, to, keep } => {
                let fixed = if to.is_some() { libc::MREMAP_FIXED | libc::MREMAP_MAYMOVE } else { 0 };
                let flags = fixed | if keep { libc::MREMAP_DONTUNMAP } else { 0 };
                call!(libc::SYS_mremap, from, len, new_len, flags, to.unwrap_or(0))
            }
            Call::Protect { at, len, prot } => call!(libc::SYS_mprotect, at, len, prot_of(prot)),
            Call::Advise { at, len, advice } => call!(libc::SYS_madvise, at, len, advice_of(advice)),
            Call::Lock { at, len } => call!(libc::SYS_mlock, at, len),
            Call::Unlock { at, len } => call!(libc::SYS_munlock, at, len),
            Call::Seal { at, len } => call!(MSEAL, at, len, 0),
            Call::Read { at } => return touch::read(at),
            Call::Write { at, byte } => return touch::write(at, byte),
            Call::KernelRead { at } => return touch::read_in_kernel(at),
            Call::Fork => Err(libc::ENOSYS), // the thread's loop makes it
            Call::CopyIn { at, byte } => {
                let mut copy = CopyIn { dst: at as u64, src: 0, len: PAGE as u64, mode: 0, done: 0, page: [byte; PAGE] };
                copy.src = copy.page.as_ptr() as u64;
                let done = call!(libc::SYS_ioctl, uffd, UFFDIO_COPY, &raw mut copy);
                done.map(|_| copy.done as usize)
            }
        }
    };
    outcome(result)
}

/// Maps fresh memory where nothing is.
pub fn map_at(at: usize, len: usize) -> Result<(), Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: nothing is replaced.
    unsafe { call!(libc::SYS_mmap, at, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1isize, 0) }.map(drop)
}

/// Unmaps the lab's memory. => no thread is left that could wait for the messages of that; the descriptors may be closed already
pub fn unmap_all(start: usize, end: usize) {
    // SAFETY: the lab's memory, which nobody uses any more.
    let unmapped = unsafe { call!(libc::SYS_munmap, start, end - start) };
    assert!(matches!(unmapped, Ok(_) | Err(libc::EPERM)), "but for what is sealed");
}

/// Advice that changes nothing, and isolates pages for moments.
pub fn advise_cold() {
    for (at, pages) in [(BASE, PAGES), (PARKING, PLACES)] {
        // SAFETY: it changes no content.
        let _ = unsafe { sys::madvise(at, pages * PAGE, libc::MADV_COLD) };
    }
}

/// Pins a page, as a device would: as a buffer that is registered with an io_uring, until that is closed.
pub fn pin(at: usize) -> Result<Fd, Errno> {
    const REGISTER_BUFFERS: u32 = 0;
    let mut parameters = [0u8; 120];
    let buffer = sys::IoVec { base: at, len: PAGE };
    // SAFETY: the parameters and the list are live; the buffer is the lab's memory.
    unsafe {
        let ring = Fd::new(call!(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr())?);
        call!(libc::SYS_io_uring_register, ring.raw(), REGISTER_BUFFERS, &raw const buffer, 1)?;
        Ok(ring)
    }
}

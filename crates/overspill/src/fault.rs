//! In-thread delivery: a thread serves its own faults in the SIGBUS handler.
//!
//! ```text
//!   si_code          address            serve()           then
//!   ------------------------------------------------------------------------------------------------------
//!   BUS_MCEERR_AR    any                -                 previous handler (a page of ours is lost, or a real hardware error)
//!     BUS_ADRERR       in no region       NotOurs           previous handler
//!                    to be given up     NotOurs           do a step of that; return
//!                    in a region        Done              return: the access is repeated
//!                                       DoneReadAhead     to the reader thread; return
//!                                       Read              read, check, map; return
//!                                       Busy              wait for any arrival; return
//!                                       NoMemory          wait for the page daemon; serve again
//!                                       Lost              previous handler, told BUS_MCEERR_AR
//! ```
//!
//! The handler runs with all signals blocked, so it never interrupts code that holds one of its locks. It does not allocate,
//! format, or take a lock of libc's. It leaves errno alone: the system calls below it are raw.
//!
//! The table of pagers lies on a page of its own that is wiped in a forked child: a child that touches its parent's regions must
//! not fill its parent's memory through inherited descriptors. (The regions themselves are inaccessible there: `forks.rs`.)

use crate::PAGERS_MAX;
use crate::forks;
use crate::installed::{INSTALLED, PUT_AWAY_BY};
use crate::quiet::Quiet;
use crate::reads;
use crate::shared::Shared;
use overspill_linux::area;
use overspill_linux::daemon::Step;
use overspill_linux::machine::{Delivery, Read, Served};
use overspill_linux::reader;
use overspill_linux::sys::{self, futex_wait};
use overspill_vm::types::PAGE_SIZE;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};
use std::time::Duration;

/// `si_code` of an access to a page whose content is lost.
const BUS_MCEERR_AR: i32 = 4;

#[repr(C)]
struct Entry {
    pager: AtomicPtr<Shared>,
    /// The number of threads that look at `pager` or serve a fault with it.
    users: AtomicU32,
}

#[repr(C)]
struct Table {
    entries: [Entry; PAGERS_MAX],
}
const _: () = assert!(size_of::<Table>() <= PAGE_SIZE);

/// Null until the first pager is built; then a page that is never unmapped. All zeroes is an empty table.
static TABLE: AtomicPtr<Table> = AtomicPtr::new(ptr::null_mut());

/// What is done with a SIGBUS that is not the pager's business: null, or an action that is never freed. Set before the handler is
/// installed; a handler that runs meanwhile reads the old one or the new one.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

fn table() -> Option<&'static Table> {
    // SAFETY: null, or a mapping that lives for ever, is big enough and aligned, and in which zeroes (fresh, or wiped by a fork)
    // are valid.
    unsafe { TABLE.load(Acquire).as_ref() }
}

/// Makes the table. With `handler`, installs the handler unless it is installed already.
///
/// # Errors
/// [`crate::Error::Handler`], [`crate::Error::HandlerReplaced`], [`crate::Error::Resources`].
pub fn prepare(handler: bool) -> Result<(), crate::Error> {
    let mut place = new_place();
    while_there(wait, || {
        if table().is_none() {
            let os = |e| crate::Error::Resources(io::Error::from_raw_os_error(e));
            let page = area::map_anonymous(PAGE_SIZE).map_err(os)?;
            // SAFETY: our own fresh page; the advice is about children.
            unsafe { sys::madvise(page as usize, PAGE_SIZE, libc::MADV_WIPEONFORK) }.map_err(os)?;
            TABLE.store(page.cast(), Release);
        }
        if !handler {
            return Ok(());
        }
        if !INSTALLED.load(Relaxed) {
            install(&mut place)?;
            INSTALLED.store(true, Relaxed);
            return Ok(());
        }
        if is_ours(&current()?) { Ok(()) } else { Err(crate::Error::HandlerReplaced) }
    })
}

/// Calls `run` when no thread has put the handler away, and while none forks. Calls `wait` until that is so.
fn while_there<R>(mut wait: impl FnMut(), mut run: impl FnMut() -> R) -> R {
    loop {
        let done = forks::keep_off(|| (PUT_AWAY_BY.load(Relaxed) == 0).then(&mut run));
        match done {
            Some(done) => return done,
            None => wait(),
        }
    }
}

/// Lets another thread go on, which has put the handler away.
fn wait() {
    std::thread::sleep(Duration::from_micros(200)); // polling: how long it needs is the program's business
}

/// The process's action for SIGBUS.
fn current() -> Result<libc::sigaction, crate::Error> {
    let mut now = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: only writes the structure, which is valid if the call succeeds.
    unsafe {
        if libc::sigaction(libc::SIGBUS, ptr::null(), now.as_mut_ptr()) != 0 {
            return Err(crate::Error::Handler(io::Error::last_os_error()));
        }
        Ok(now.assume_init())
    }
}

fn is_ours(action: &libc::sigaction) -> bool {
    action.sa_sigaction == on_sigbus as *const () as usize
}

/// Room for [`PREVIOUS`]. A handler may be reading an old one, so it is never freed.
fn new_place() -> Option<Box<libc::sigaction>> {
    // SAFETY: an all-zero sigaction is valid.
    Some(Box::new(unsafe { MaybeUninit::zeroed().assume_init() }))
}

/// Installs the handler. What was there is the previous one from now on, and takes the place. => within [`forks::keep_off`]; does
/// not allocate
fn install(place: &mut Option<Box<libc::sigaction>>) -> Result<(), crate::Error> {
    let now = current()?;
    let mut place = place.take().expect("used once");
    *place = now;
    PREVIOUS.store(Box::into_raw(place), Release);
    // SAFETY: an all-zero sigaction is valid; the fields are set below.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = on_sigbus as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: a signal set is plain bits; all ones is every signal, libc's own included.
    unsafe { ptr::write_bytes(&raw mut action.sa_mask, 0xff, 1) };
    set(&action)
}

fn set(action: &libc::sigaction) -> Result<(), crate::Error> {
    // SAFETY: a live structure, with a handler that stays, or what was there before.
    let done = unsafe { libc::sigaction(libc::SIGBUS, action, ptr::null_mut()) };
    if done == 0 { Ok(()) } else { Err(crate::Error::Handler(io::Error::last_os_error())) }
}

/// Calls `change`, which may install or remove a handler for SIGBUS: it finds the handler below the pager's, and what it leaves is
/// below the pager's afterwards. For code that must install its handler after the first pager was built. It must not build a pager.
///
/// While `change` runs, the pager's handler is not there. So no thread may touch pages of a region with in-thread delivery that are
/// out: it would meet the handler below, which usually ends the process. If other code has replaced the pager's handler, nothing is
/// done but the call.
///
/// # Errors
/// [`crate::Error::Handler`].
pub fn with_handler_below<R>(change: impl FnOnce() -> R) -> Result<R, crate::Error> {
    with_handler_below_after(wait, change)
}

/// As [`with_handler_below`]. Calls `wait` again and again while another thread is in the middle of that.
///
/// # Errors
/// As [`with_handler_below`].
#[doc(hidden)]
pub fn with_handler_below_after<R>(wait: impl FnMut(), change: impl FnOnce() -> R) -> Result<R, crate::Error> {
    let (me, place) = (sys::gettid(), new_place());
    let put_away = || {
        if !INSTALLED.load(Relaxed) || !is_ours(&current()?) {
            return Ok(false);
        }
        // SAFETY: set when the handler was installed, and never freed.
        set(unsafe { &*PREVIOUS.load(Acquire) })?;
        PUT_AWAY_BY.store(me, Relaxed);
        Ok(true)
    };
    // (in a call within a call the handler is away already)
    if PUT_AWAY_BY.load(Relaxed) == me || !while_there(wait, put_away)? {
        return Ok(change());
    }
    let again = InstalledAgain(place);
    let result = change();
    again.now()?;
    Ok(result)
}

/// Installs the pager's handler when it is dropped: a panic of the caller's code must not leave the pager without one.
struct InstalledAgain(Option<Box<libc::sigaction>>);

impl InstalledAgain {
    fn now(mut self) -> Result<(), crate::Error> {
        let done = self.install();
        core::mem::forget(self);
        done
    }

    fn install(&mut self) -> Result<(), crate::Error> {
        forks::keep_off(|| {
            PUT_AWAY_BY.store(0, Relaxed);
            install(&mut self.0)
        })
    }
}

impl Drop for InstalledAgain {
    fn drop(&mut self) {
        let _ = self.install(); // (if it fails, the panic goes on all the same)
    }
}

/// Enters a pager into the table. Returns its place, or `None` if the table is full.
///
/// # Safety
/// `shared` must stay where it is until [`leave`] has returned.
pub unsafe fn enter(shared: *const Shared) -> Option<usize> {
    let entries = &table()?.entries;
    entries.iter().position(|e| e.pager.compare_exchange(ptr::null_mut(), shared.cast_mut(), SeqCst, SeqCst).is_ok())
}

/// Whether the pager is still at that place. It is not in a forked child.
pub fn is_here(place: usize, shared: *const Shared) -> bool {
    table().is_some_and(|t| ptr::eq(t.entries[place].pager.load(Acquire), shared))
}

/// Takes a pager out of the table, and waits until no handler uses it.
pub fn leave(place: usize) {
    let Some(table) = table() else { return };
    let entry = &table.entries[place];
    entry.pager.store(ptr::null_mut(), SeqCst);
    // SeqCst on both sides: a handler that counts itself after this load finds null; one that did so before is seen here.
    while entry.users.load(SeqCst) != 0 {
        futex_wait(&AtomicU32::new(0), 0, 50_000);
    }
}

/// How a fault ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The access can be repeated.
    Repeat,
    /// The page is lost.
    Lost,
    /// The address belongs to no region of this pager.
    NotOurs,
}

/// Serves a touch of `addr` in the calling thread. Does not allocate. => the caller has all signals blocked and holds no lock
pub fn serve(shared: &Shared, addr: usize) -> Ended {
    let machine = &shared.machine;
    loop {
        let seen = machine.arrivals.count(); // first: any arrival after this ends the waits below
        let served = machine.serve(addr & !1, 0, true); // without load control: the thread itself would have to sleep
        match served {
            Served::Done | Served::Refused => {}
            Served::NotOurs if machine.step_behind(addr) => {}
            Served::NotOurs => return Ended::NotOurs,
            Served::Lost => return Ended::Lost,
            Served::Busy | Served::Held => machine.arrivals.wait(seen),
            Served::Read(it) => read(shared, it),
            Served::DoneReadAhead(it, waiters) => {
                machine.wake_last(waiters);
                hand_over(shared, it);
            }
            Served::NoMemory => {
                machine.status.counters.throttled_faults.add(1);
                if shared.manual.is_none() {
                    machine.ring_daemon();
                    machine.arrivals.wait(seen);
                }
            }
        }
        if shared.manual.is_some() {
            step_daemon(shared, served == Served::NoMemory);
        }
        if served != Served::NoMemory {
            return Ended::Repeat;
        }
    }
}

/// Reads the touched page in this thread. The rest of its window and the next window go to the reader thread.
fn read(shared: &Shared, read: Read) {
    let machine = &shared.machine;
    let more = if shared.manual.is_none() { reader::read_more(machine, &read.op) } else { None };
    let late = more.and_then(|more| shared.queue.push(more));
    let next = reads::read_here(machine, shared.buffers(), &read, |next| queue_up(shared, next));
    for read in [late, next].into_iter().flatten() {
        hand_over(shared, read);
    }
}

/// Gives readahead to the reader thread, or does it in this thread if the queue is full (or tests have no reader thread). A read
/// that is too long for this thread's buffers waits for room: the reader thread waits for no faulting thread.
fn hand_over(shared: &Shared, read: Read) {
    let mut next = Some(read);
    while let Some(read) = next {
        next = match queue_up(shared, read) {
            Some(long) if long.op.count as usize > shared.cluster_pages => {
                shared.queue.push_patiently(long);
                None
            }
            full => full.and_then(|read| reads::read_here(&shared.machine, shared.buffers(), &read, |next| queue_up(shared, next))),
        };
    }
}

/// Gives `read` to the reader thread, or returns it.
fn queue_up(shared: &Shared, read: Read) -> Option<Read> {
    match shared.manual {
        Some(_) => Some(read),
        None => shared.queue.push(read),
    }
}

/// Pages per step, as in `overspill_sim::replay`.
const MANUAL_STEP: u32 = 64;

/// For tests: does the page daemon's work at once.
pub fn step_daemon(shared: &Shared, no_memory: bool) {
    let Some(daemon) = &shared.manual else { return };
    let machine = &shared.machine;
    machine.drop_places(&machine.map.read(), true);
    if machine.core.lock().vm.wants_daemon() {
        let mut daemon = daemon.lock();
        while daemon.step_of(machine, MANUAL_STEP) == Step::Worked {}
    }
    machine.shortage.set_starved(no_memory && machine.core.lock().vm.room() == 0);
}

/// For tests: waits for the writes of the page daemon.
pub fn settle_daemon(shared: &Shared) {
    if let Some(daemon) = &shared.manual {
        daemon.lock().settle(&shared.machine);
    }
}

extern "C" fn on_sigbus(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO a valid structure; SIGBUS by a fault has an address in it.
    let (code, addr) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    let mut lost = false;
    if code > 0 && code != BUS_MCEERR_AR {
        for entry in table().map_or(&[][..], |t| &t.entries) {
            if entry.pager.load(Relaxed).is_null() {
                continue;
            }
            entry.users.fetch_add(1, SeqCst);
            // SAFETY: null, or a pager that `leave` keeps alive while `users` counts this thread.
            let shared = unsafe { entry.pager.load(SeqCst).as_ref() };
            let ended = match shared {
                Some(s) if s.machine.config.delivery == Delivery::InThread => serve(s, addr),
                _ => Ended::NotOurs,
            };
            entry.users.fetch_sub(1, SeqCst);
            match ended {
                Ended::Repeat => return,
                Ended::Lost => {
                    lost = true;
                    break;
                }
                Ended::NotOurs => {}
            }
        }
    }
    let mut copy: libc::siginfo_t;
    let info = if lost {
        // SAFETY: a copy of a valid structure. A lost page is reported like one with broken hardware, because its content is gone,
        // too.
        copy = unsafe { *info };
        copy.si_code = BUS_MCEERR_AR;
        &raw mut copy
    } else {
        info
    };
    // SAFETY: the kernel's structures, or a copy.
    unsafe { chain(signal, info, context) };
}

/// Does what would have happened without the pager.
///
/// # Safety
/// As for a signal handler: `info` and `context` are what the kernel gave.
unsafe fn chain(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: set before this handler was installed, and never freed.
    let previous = unsafe { &*PREVIOUS.load(Acquire) };
    // SAFETY: as the caller says.
    let sent = unsafe { (*info).si_code } <= 0;
    match previous.sa_sigaction {
        libc::SIG_IGN if sent => {}
        libc::SIG_IGN | libc::SIG_DFL => {
            // The process must end. A fault is repeated when this returns, and meets the default action. A signal that was sent
            // must be sent again. SAFETY: the default action; the structures are live. tgkill touches no memory.
            unsafe {
                let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
                action.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &action, ptr::null_mut());
                if sent {
                    let _ =
                        sys::syscall6(libc::SYS_tgkill, sys::getpid() as usize, sys::gettid() as usize, signal as usize, 0, 0, 0);
                }
            }
        }
        handler => {
            // Set the mask that the handler would have been called with: it may leave by a jump. SAFETY: the kernel's context; the
            // head of a signal set is the kernel's 64-bit set.
            unsafe {
                let context = context.cast::<libc::ucontext_t>();
                let mut mask = (&raw const (*context).uc_sigmask).cast::<u64>().read();
                mask |= (&raw const previous.sa_mask).cast::<u64>().read();
                if previous.sa_flags & libc::SA_NODEFER == 0 {
                    mask |= 1 << (signal - 1);
                }
                sys::restore_signals(mask);
            }
            // SAFETY: a handler that the program installed for this signal, called according to its flags.
            unsafe {
                if previous.sa_flags & libc::SA_SIGINFO != 0 {
                    let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = std::mem::transmute(handler);
                    handler(signal, info, context);
                } else {
                    let handler: extern "C" fn(i32) = std::mem::transmute(handler);
                    handler(signal);
                }
            }
        }
    }
}

/// Brings the page at `addr` in, without a signal. Returns whether that was possible.
pub fn bring_in(shared: &Shared, addr: usize) -> bool {
    let _quiet = Quiet::new();
    serve(shared, addr) == Ended::Repeat
}

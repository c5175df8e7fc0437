//! Starts the program, passes signals on to it, and waits for its end. All of the command's unsafe code is here.
//!
//! ```text
//! signal sent to the supervisor by a process     -> sent on to the program
//! signal from the terminal (SI_KERNEL)           -> nothing: the program is in the same foreground group and has it already
//! signal from the program itself                 -> nothing: programs signal their parent to say "ready"
//! program stopped by job control (Ctrl-Z)        -> the supervisor stops too, so that the shell gets its prompt back
//! program ended                                  -> done; by a signal, or after SIGTERM or SIGINT: its descendants must end too
//! supervisor killed                              -> the kernel kills the program (PR_SET_PDEATHSIG)
//! ```
//!
//! The signals are blocked and fetched with sigtimedwait. So there is no handler, no race, and nothing that could interrupt a
//! system call. The program gets the mask and the dispositions with which the supervisor was started, also for SIGPIPE, SIGXFSZ
//! and SIGCHLD.
//!
//! The other commands use only [`on_interrupt`].
//!
//! Limit: a signal that a process sends to the whole process group reaches the program twice, once directly and once passed on. The
//! two cannot be distinguished. `timeout` has the same limit.

use overspill_linux::status_file::StatusFile;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How a program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// By itself, with this status.
    Exit(u8),
    /// By this signal.
    Signal(i32),
}

/// The program's end and how long it ran.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// How it ended.
    pub end: End,
    /// From its start to its end.
    pub wall: Duration,
    /// Whether a process has sent SIGTERM or SIGINT to the supervisor. The terminal's SIGINT does not count: many programs use
    /// Ctrl-C as a key, and all others end by it.
    pub asked: bool,
}

impl Ended {
    /// Whether the program's descendants must end, too: the program was killed, or the run was asked to end. If the program ended
    /// by itself, processes that it left in the background may stay.
    pub fn takes_descendants(&self) -> bool {
        self.asked || matches!(self.end, End::Signal(_))
    }
}

/// SIGPIPE's disposition when this process was started. Rust's runtime ignores the signal before `main`.
static SIGPIPE_AT_START: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
/// The same for SIGXFSZ, which is ignored here: then a write that `ulimit -f` forbids is an error (EFBIG) that can be reported.
static SIGXFSZ_AT_START: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);

extern "C" fn note_signals() {
    SIGPIPE_AT_START.store(disposition(libc::SIGPIPE), Relaxed);
    SIGXFSZ_AT_START.store(disposition(libc::SIGXFSZ), Relaxed);
    set_disposition(libc::SIGXFSZ, libc::SIG_IGN);
}

// SAFETY: `.init_array` holds pointers to functions that the loader calls once, on the only thread, before Rust's runtime
// starts; extern "C" functions without parameters may stand there (the arguments it passes are ignored by the C ABI). The
// function uses no std facility that needs the runtime: system call wrappers of libc and atomics.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE_SIGNALS: extern "C" fn() = note_signals;

/// A signal's disposition: SIG_DFL, SIG_IGN or a handler.
fn disposition(signal: libc::c_int) -> usize {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: with a null new action sigaction only writes the old one, to a place that is large enough; all-zero bytes are a
    // valid sigaction, so it is initialised even if the call fails (it cannot, for a valid signal).
    unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
        action.assume_init().sa_sigaction
    }
}

/// Sets SIG_DFL or SIG_IGN. Async-signal-safe.
fn set_disposition(signal: libc::c_int, disposition: libc::sighandler_t) {
    debug_assert!(disposition == libc::SIG_DFL || disposition == libc::SIG_IGN);
    // SAFETY: neither SIG_DFL nor SIG_IGN runs code of this process, and those are the only values that this module passes
    // (a process starts with no others, because exec resets handlers).
    unsafe { libc::signal(signal, disposition) };
}

/// A set of signals.
#[derive(Clone, Copy)]
struct Signals(libc::sigset_t);

impl Signals {
    /// All signals to wait for: SIGCHLD, and those that can be passed on. Not those that a fault of the supervisor itself raises,
    /// nor SIGTTIN and SIGTTOU, which its use of a terminal may raise, nor SIGPIPE and SIGXFSZ, which are ignored and which its own
    /// writes raise. (SIGABRT may be among them: abort(3) unblocks it first.)
    fn to_wait_for() -> Self {
        use libc::*;
        let few = [
            SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGTERM, SIGSTKFLT, SIGCHLD, SIGCONT, SIGTSTP, SIGURG, SIGVTALRM,
            SIGPROF, SIGWINCH, SIGIO, SIGPWR, SIGXCPU, SIGABRT,
        ];
        Self::of(few.into_iter().chain(SIGRTMIN()..=SIGRTMAX()))
    }

    /// These signals, which must be valid numbers.
    fn of(signals: impl IntoIterator<Item = libc::c_int>) -> Self {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: sigemptyset initialises the set that it is given, and sigaddset then adds to it; the numbers are valid signals.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in signals {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            Signals(set.assume_init())
        }
    }

    /// Blocks these signals in addition to those that are blocked already. Returns the mask from before.
    fn block(&self) -> io::Result<Self> {
        let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: both pointers are to sigset_t, the first initialised; the second is written.
        let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const self.0, before.as_mut_ptr()) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        // SAFETY: the call succeeded, so it has written the set (and zeroed bytes are a valid, empty set anyway).
        Ok(Signals(unsafe { before.assume_init() }))
    }

    /// Makes these the blocked signals. Async-signal-safe.
    fn set_as_mask(&self) -> io::Result<()> {
        // SAFETY: the first pointer is to an initialised sigset_t; null asks for no old mask.
        match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Waits for one of these signals, which are blocked.
    fn wait(&self) -> Received {
        loop {
            if let Some(received) = self.wait_at_most(Duration::MAX) {
                return received;
            }
        }
    }

    /// The same. `None`: that time is over, or a stop of this process has ended the wait.
    fn wait_at_most(&self, time: Duration) -> Option<Received> {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        let time = libc::timespec {
            tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: time.subsec_nanos().into(),
        };
        // SAFETY: the set and the time are initialised, and `info` has room for the siginfo_t that is written.
        let signal = unsafe { libc::sigtimedwait(&raw const self.0, info.as_mut_ptr(), &raw const time) };
        if signal < 0 {
            return None; // EAGAIN or EINTR; there is no other error for a valid set and time
        }
        // SAFETY: the call succeeded, so `info` is written; zeroed bytes were valid before. si_pid is read for every code, which is
        // in bounds of the union; it means something only for the codes that `sent` names.
        let (code, sender) = unsafe {
            let info = info.assume_init_ref();
            (info.si_code, info.si_pid())
        };
        let sent = matches!(code, libc::SI_USER | libc::SI_QUEUE | libc::SI_TKILL);
        Some(Received { signal, sender: sent.then_some(sender) })
    }
}

/// A signal that has arrived.
struct Received {
    signal: libc::c_int,
    /// The process that sent it; `None` if it came from the kernel.
    sender: Option<libc::pid_t>,
}

/// Starts `command` with the status block addressed to it, and stays with it to its end. Meanwhile it calls `chore` after each time
/// of `every`.
///
/// # Errors
/// The program cannot be started. Nothing runs then.
pub fn supervise(mut command: Command, block: &'static StatusFile, every: Duration, mut chore: impl FnMut()) -> io::Result<Ended> {
    let signals = Signals::to_wait_for();
    // If SIGCHLD were ignored, the kernel would reap the program and its status would be lost.
    let sigchld = disposition(libc::SIGCHLD);
    set_disposition(libc::SIGCHLD, libc::SIG_DFL);
    let mask = signals.block()?;
    let supervisor = rustix::process::getpid();

    let prepare = move || -> io::Result<()> {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        if rustix::process::getppid() != Some(supervisor) {
            // It died before the line above could take effect.
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        block.status().init(std::process::id());
        set_disposition(libc::SIGCHLD, sigchld);
        set_disposition(libc::SIGPIPE, SIGPIPE_AT_START.load(Relaxed));
        set_disposition(libc::SIGXFSZ, SIGXFSZ_AT_START.load(Relaxed));
        mask.set_as_mask()
    };
    // SAFETY: between fork and exec only async-signal-safe things may happen. `prepare` makes system calls (prctl, getppid,
    // getpid, sigaction, pthread_sigmask), stores to atomics in a shared mapping that lives for good, and builds errors from
    // numbers, which allocates nothing. It takes no lock.
    unsafe { command.pre_exec(prepare) };
    let start = Instant::now();
    let child = command.spawn()?;
    let pid = Pid::from_child(&child);
    let mut asked = false;
    let mut due = start + every;

    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            chore();
            due = Instant::now() + every;
            continue;
        }
        let Some(received) = signals.wait_at_most(left) else { continue };
        if received.signal != libc::SIGCHLD {
            let passed = pass_on(&received, pid);
            asked |= passed && matches!(received.signal, libc::SIGTERM | libc::SIGINT);
            continue;
        }
        // One SIGCHLD may stand for several changes. As process 1 of a container, or started by `exec` from a shell with jobs,
        // this process has other children too: they are reaped and forgotten.
        while let Some((who, status)) = changed() {
            if who != pid {
                continue;
            }
            if let Some(code) = status.exit_status() {
                return Ok(Ended { end: End::Exit(code as u8), wall: start.elapsed(), asked });
            }
            if let Some(signal) = status.terminating_signal() {
                return Ok(Ended { end: End::Signal(signal), wall: start.elapsed(), asked });
            }
            if let Some(signal) = status.stopping_signal() {
                stop_too(signal, pid);
            }
        }
    }
}

/// From here on, the first Ctrl-C or similar signal does not end this process, but calls `then` with the signal's number. A second
/// one ends the process.
///
/// # Errors
/// No thread can be started for it.
pub fn on_interrupt(then: impl FnOnce(i32) + Send + 'static) -> io::Result<()> {
    let signals = Signals::of([libc::SIGINT, libc::SIGTERM, libc::SIGHUP]);
    signals.block()?;
    std::thread::Builder::new().spawn(move || {
        then(signals.wait().signal);
        std::process::exit(128 + signals.wait().signal);
    })?;
    Ok(())
}

/// A child whose state has changed, whatever process group it is in.
fn changed() -> Option<(Pid, WaitStatus)> {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(state) => return state,
            Err(rustix::io::Errno::INTR) => {}
            // The program is not reaped yet and SIGCHLD is not ignored, so ECHILD is impossible.
            Err(error) => panic!("waitpid: {error}"),
        }
    }
}

/// Passes a signal on to the program, if it should be. Returns whether it was.
fn pass_on(received: &Received, program: Pid) -> bool {
    match received.sender {
        // The program is not reaped yet, so the id is still its own. If it has ended, the signal has no effect.
        Some(sender) if sender != program.as_raw_nonzero().get() => {
            // SAFETY: kill touches no memory.
            unsafe { libc::kill(program.as_raw_nonzero().get(), received.signal) };
            true
        }
        _ => false,
    }
}

/// Stops this process after job control has stopped the program, so that the shell sees the job stopped; the shell continues both.
/// Not after SIGSTOP, which was sent to the program alone: the sender will continue it alone.
fn stop_too(signal: i32, program: Pid) {
    let by_job_control = matches!(signal, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU);
    let together = rustix::process::getpgid(Some(program)).is_ok_and(|g| g == rustix::process::getpgrp());
    if by_job_control && together {
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
    }
}

//! Makes regions inaccessible in a forked child.
//!
//! The child must not find its parent's pages, because those that are out would read as zero. It must not find a hole either. The
//! kernel would give those addresses to its malloc, and inherited slices of a region would point into other memory, in safe code.
//! So regions are MADV_WIPEONFORK, and libc calls [`child`] in the child before `fork` returns there, which makes them
//! inaccessible. Slices from before the fork stay valid as addresses; a touch is a SIGSEGV.

use crate::installed;
use crate::quiet::Quiet;
use overspill_linux::lock::{self, Mutex, MutexGuard};
use overspill_linux::sys::{self, Errno};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::*};

type Regions = Vec<(usize, usize)>;

/// The regions of this process: start and length.
static REGIONS: Mutex<Regions> = Mutex::new(Vec::new());

/// Over a fork: the forking thread's lock on [`REGIONS`], and its signal mask. (A signal handler that forks would wait for the lock
/// for ever, so signals are blocked.)
struct Held(UnsafeCell<Option<(MutexGuard<'static, Regions>, u64)>>);
// SAFETY: touched only by the thread that holds REGIONS.
unsafe impl Sync for Held {}
static HELD: Held = Held(UnsafeCell::new(None));

/// Makes libc call this file's functions at forks. => before the first pager has a region
///
/// # Errors
/// ENOMEM.
pub fn install() -> Result<(), Errno> {
    static INSTALLED: OnceLock<Errno> = OnceLock::new();
    // SAFETY: three functions without arguments, which stay.
    match *INSTALLED.get_or_init(|| unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) }) {
        0 => Ok(()),
        e => Err(e),
    }
}

/// Runs `run` while no thread forks: no child finds its work half done, or its locks held.
pub fn keep_off<R>(run: impl FnOnce() -> R) -> R {
    let _quiet = Quiet::new();
    let _regions = REGIONS.lock();
    run()
}

/// Makes this region inaccessible in forked children.
pub fn keep_out(start: usize, len: usize) {
    let _quiet = Quiet::new();
    REGIONS.lock().push((start, len));
}

/// Forgets a region that is about to be unmapped.
pub fn forget(start: usize) {
    let _quiet = Quiet::new();
    REGIONS.lock().retain(|r| r.0 != start);
}

extern "C" fn prepare() {
    let mask = sys::block_signals();
    let regions = REGIONS.lock();
    installed::before_fork();
    // SAFETY: this thread holds the lock.
    unsafe { *HELD.0.get() = Some((regions, mask)) };
}

extern "C" fn parent() {
    // SAFETY: this thread holds the lock since `prepare`.
    if let Some((regions, mask)) = unsafe { (*HELD.0.get()).take() } {
        drop(regions);
        sys::restore_signals(mask);
    }
}

extern "C" fn child() {
    lock::forked();
    // SAFETY: as in `parent`: this is a copy of the thread that prepared.
    if let Some((regions, mask)) = unsafe { (*HELD.0.get()).take() } {
        installed::forked();
        for (start, len) in regions.iter() {
            // SAFETY: whole regions of the parent's. The child has wiped memory there, which its safe code must not be able to use.
            let done = unsafe { sys::syscall6(libc::SYS_mprotect, *start, *len, libc::PROT_NONE as usize, 0, 0, 0) };
            if done.is_err() {
                std::process::abort(); // a child that reads zeroes where its parent has something else is worse than none
            }
        }
        if EXPLAINS.load(Relaxed) && !regions.is_empty() {
            prepare_to_explain(&regions);
        }
        drop(regions);
        sys::restore_signals(mask);
    }
}

/// Whether a child says why it ends.
static EXPLAINS: AtomicBool = AtomicBool::new(false);

/// In a forked child: the parent's regions, and what is done with SIGSEGV otherwise. Never freed.
static EXPLAINED: AtomicPtr<(Regions, libc::sigaction)> = AtomicPtr::new(ptr::null_mut());

const EXPLANATION: &[u8] =
    b"overspill: this process was forked and touches memory of a pager that its parent made, which it does not \
have: start processes by another method (in Python: spawn or forkserver), or copy the data before the fork\n";

/// From now on, a forked child that touches a region of its parent's writes a message to standard error before it meets SIGSEGV.
/// For that it gets a handler for SIGSEGV, which goes on to the one before.
pub fn explain_forks() {
    EXPLAINS.store(true, Relaxed);
}

/// In the child: installs the handler for SIGSEGV.
fn prepare_to_explain(regions: &Regions) {
    let mut previous = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: only writes the structure, which is valid if the call succeeds. An all-zero action is valid, and its handler, set
    // here, stays.
    unsafe {
        if libc::sigaction(libc::SIGSEGV, ptr::null(), previous.as_mut_ptr()) != 0 {
            return;
        }
        // a child of a child has its parent's regions here, too, and the handler already
        let again = previous.assume_init_ref().sa_sigaction == on_sigsegv as *const () as usize;
        let previous = match EXPLAINED.load(Acquire).as_ref() {
            Some((_, first)) if again => *first,
            _ => previous.assume_init(),
        };
        EXPLAINED.store(Box::into_raw(Box::new((regions.clone(), previous))), Release);
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = on_sigsegv as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGSEGV, &action, ptr::null_mut());
    }
}

extern "C" fn on_sigsegv(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: set before the handler was installed, and never freed. The kernel gives a valid structure.
    unsafe {
        let Some((regions, previous)) = EXPLAINED.load(Acquire).as_ref() else { return };
        let addr = (*info).si_addr() as usize;
        if (*info).si_code > 0 && regions.iter().any(|(start, len)| addr.wrapping_sub(*start) < *len) {
            libc::write(libc::STDERR_FILENO, EXPLANATION.as_ptr().cast(), EXPLANATION.len());
        }
        // The access is repeated when this returns, and meets what was there before. A signal that was sent is sent again.
        libc::sigaction(libc::SIGSEGV, previous, ptr::null_mut());
        if (*info).si_code <= 0 {
            libc::raise(libc::SIGSEGV);
        }
    }
}

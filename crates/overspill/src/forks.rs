//! Makes regions inaccessible in a forked child.
//!
//! The child must not find its parent's pages, because those that are out would read as zero. It must not find a hole either. The
//! kernel would give those addresses to its malloc, and inherited slices of a region would point into other memory, in safe code.
//! So regions are MADV_WIPEONFORK, and libc calls [`child`] in the child before `fork` returns there, which makes them
//! inaccessible. Slices from before the fork stay valid as addresses; a touch is a SIGSEGV.

use crate::quiet::Quiet;
use overspill_linux::lock::{self, Mutex, MutexGuard};
use overspill_linux::sys::{self, Errno};
use std::cell::UnsafeCell;
use std::sync::OnceLock;

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
        for (start, len) in regions.iter() {
            // SAFETY: whole regions of the parent's. The child has wiped memory there, which its safe code must not be able to use.
            let done = unsafe { sys::syscall6(libc::SYS_mprotect, *start, *len, libc::PROT_NONE as usize, 0, 0, 0) };
            if done.is_err() {
                std::process::abort(); // a child that reads zeroes where its parent has something else is worse than none
            }
        }
        drop(regions);
        sys::restore_signals(mask);
    }
}

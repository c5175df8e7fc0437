//! What a forked child finds where its parent's regions are: nothing, for good.
//!
//! It must not find its parent's pages, of which those that are out read as zero. It must not find a hole either: its malloc would
//! be given those very addresses, and slices of a region that it has inherited would be slices of somebody else's memory, in safe
//! code. So regions are MADV_WIPEONFORK, and libc calls [`child`] in the child before `fork` returns there, which makes them
//! inaccessible. Slices that were made before the fork stay valid as addresses; to touch them is a SIGSEGV.

use crate::quiet::Quiet;
use overspill_linux::lock::{Mutex, MutexGuard};
use overspill_linux::sys;
use std::cell::UnsafeCell;
use std::sync::Once;

type Regions = Vec<(usize, usize)>;

/// The regions of this process: start and length.
static REGIONS: Mutex<Regions> = Mutex::new(Vec::new());

/// Over a fork, the forking thread's hold on [`REGIONS`], and its signals: a handler that forks would wait for it for ever.
struct Held(UnsafeCell<Option<(MutexGuard<'static, Regions>, u64)>>);
// SAFETY: touched only by whoever holds REGIONS.
unsafe impl Sync for Held {}
static HELD: Held = Held(UnsafeCell::new(None));

/// Forked children are to find nothing there.
pub fn keep_out(start: usize, len: usize) {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        // SAFETY: three functions without arguments, which stay. If there is no memory for them children find zeroes.
        unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    });
    let _quiet = Quiet::new();
    REGIONS.lock().push((start, len));
}

/// The region is about to be unmapped.
pub fn forget(start: usize) {
    let _quiet = Quiet::new();
    REGIONS.lock().retain(|r| r.0 != start);
}

extern "C" fn prepare() {
    let mask = sys::block_signals();
    let regions = REGIONS.lock();
    // SAFETY: the lock is ours.
    unsafe { *HELD.0.get() = Some((regions, mask)) };
}

extern "C" fn parent() {
    // SAFETY: the lock is ours since `prepare`.
    if let Some((regions, mask)) = unsafe { (*HELD.0.get()).take() } {
        drop(regions);
        sys::restore_signals(mask);
    }
}

extern "C" fn child() {
    // SAFETY: as in `parent`: this is a copy of the thread that prepared.
    if let Some((regions, mask)) = unsafe { (*HELD.0.get()).take() } {
        for (start, len) in regions.iter() {
            // SAFETY: whole regions of the parent's. What the child has there is wiped memory that its safe code must not be able
            // to use.
            let _ = unsafe { sys::syscall6(libc::SYS_mprotect, *start, *len, libc::PROT_NONE as usize, 0, 0, 0) };
        }
        drop(regions);
        sys::restore_signals(mask);
    }
}

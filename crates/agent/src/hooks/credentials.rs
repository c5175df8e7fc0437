//! Calls by which the program gives up rights. The pager's threads follow before the call returns (`overspill_linux::credentials`).

use super::raw;
use crate::agent::{self, Agent};
use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering::*};

/// Whether this is an option of prctl(2) by which a thread gives up rights.
pub fn is_less(option: usize) -> bool {
    let options = [libc::PR_SET_NO_NEW_PRIVS, libc::PR_CAPBSET_DROP, libc::PR_SET_SECUREBITS, libc::PR_CAP_AMBIENT];
    options.contains(&(option as i32))
}

/// setuid(2) and its like, capset(2), landlock_restrict_self(2), such a prctl(2).
pub fn give_up(agent: &'static Agent, nr: i32, a: [usize; 6]) -> isize {
    // SAFETY: the program's own call.
    let r = unsafe { raw(nr, &a) };
    if r == 0 {
        let confines = nr as libc::c_long == libc::SYS_landlock_restrict_self;
        agent.follow(confines.then_some(a[0] as i32));
    }
    r
}

/// libc's `__nptl_setxid`.
static REAL_SETXID: AtomicUsize = AtomicUsize::new(0);

/// To be called before the first call is patched.
pub fn set_real_setxid(at: usize) {
    REAL_SETXID.store(at, Release);
}

/// Called in place of `__nptl_setxid`. When the real one returns, all of libc's threads have made the call.
pub unsafe extern "C" fn on_setxid(command: *mut c_void) -> i32 {
    // SAFETY: libc's function, which its own code calls with this argument; only patched calls come here.
    let real = unsafe { core::mem::transmute::<usize, unsafe extern "C" fn(*mut c_void) -> i32>(REAL_SETXID.load(Acquire)) };
    // SAFETY: the caller's own call.
    let r = unsafe { real(command) };
    if let Some(agent) = agent::get().filter(|_| r == 0) {
        agent.follow(None);
    }
    r
}

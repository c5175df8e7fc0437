//! Clocks.

use super::sys;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// The processor time that a thread of this process has had, in nanoseconds; `None` if it has ended.
pub fn thread_cpu_ns(tid: u32) -> Option<u64> {
    const OF_A_THREAD: i32 = 6; // its own clock, as the scheduler counts (clock_getcpuclockid(3) makes the like for a process)
    clock_ns(!(tid as i32) << 3 | OF_A_THREAD)
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn now_ns() -> u64 {
    let read: Option<VdsoClock> = {
        let found = VDSO_CLOCK.load(Relaxed);
        // SAFETY: null, which is `None`, or a function of this type that `find_clock` has found, and that stays where it is.
        unsafe { core::mem::transmute(found) }
    };
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is writable.
    match read.map(|read| unsafe { read(libc::CLOCK_MONOTONIC, &raw mut t) }) {
        Some(0) => ns(t),
        _ => clock_ns(libc::CLOCK_MONOTONIC).unwrap_or(0),
    }
}

/// The kernel's own code for reading clocks, which it maps into every process (vdso(7)). It does not touch libc's state.
type VdsoClock = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> libc::c_int;
static VDSO_CLOCK: AtomicPtr<libc::c_void> = AtomicPtr::new(ptr::null_mut());

/// Looks for a way to read the clock without a system call, for [`now_ns`]: 20 to 25 ns instead of 420 (a virtual machine, November
/// 2026), some five times a fault. To be called in set-up, before anything is paged, because it asks libc. If there is no such way
/// (in a static program), nothing changes.
pub fn find_clock() {
    // SAFETY: names end with a zero. The library is loaded already, so no code is run, and it is never unloaded.
    let found = unsafe {
        let vdso = libc::dlopen(c"linux-vdso.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if vdso.is_null() { vdso } else { libc::dlsym(vdso, c"__vdso_clock_gettime".as_ptr()) }
    };
    VDSO_CLOCK.store(found, Relaxed);
}

pub(super) fn timespec(ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

fn ns(t: libc::timespec) -> u64 {
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// A clock in nanoseconds; `None` if there is none of that number.
fn clock_ns(clock: i32) -> Option<u64> {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is writable.
    unsafe { sys!(libc::SYS_clock_gettime, clock, &raw mut t) }.ok()?;
    Some(ns(t))
}

/// The processor's clock, in ticks of a steady rate (about 2 to 4 per nanosecond). CPUs may differ. Without a system call.
#[inline]
pub fn cycles() -> u64 {
    // SAFETY: every x86-64 has the instruction, and it changes nothing.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// CLOCK_MONOTONIC in nanoseconds, and [`cycles`], at the same moment: of some pairs of readings the one between which least time
/// has passed. (A thread that lost its CPU in between read them milliseconds apart, and all times that were worked out from the two
/// were wrong by as much.)
pub fn clocks() -> (u64, u64) {
    let pairs = core::array::from_fn::<_, 8, _>(|_| {
        let before = cycles();
        let ns = now_ns();
        (cycles().wrapping_sub(before), ns, before)
    });
    let (_, ns, cycles) = pairs.into_iter().min().expect("some");
    (ns, cycles)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_without_a_system_call_is_the_same() {
        find_clock();
        assert!(!VDSO_CLOCK.load(Relaxed).is_null());
        let call = || clock_ns(libc::CLOCK_MONOTONIC).expect("every kernel has it");
        for _ in 0..1000 {
            let (before, now, after) = (call(), now_ns(), call());
            assert!(before <= now && now <= after, "{before} {now} {after}");
        }
    }
}

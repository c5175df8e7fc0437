//! Helpers for the tests.
#![allow(dead_code)] // each test uses some of it

use overspill::{Builder, Delivery, Error, Pager};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

pub const PAGE: usize = overspill::PAGE_SIZE;
pub const MIB: usize = 1 << 20;
pub const BUDGET: u64 = 8 << 20;

/// A time limit that only a hang reaches, however busy the machine. For everything whose speed is not tested.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Looks until something is so.
pub fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A random number generator: splitmix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// A pager, or `None`, with a message, if this kernel or user cannot have one. Under CI that is a failure.
pub fn build(builder: Builder) -> Option<Pager> {
    match builder.build() {
        Ok(pager) => Some(pager),
        Err(e @ (Error::Userfaultfd(_) | Error::Engine(_))) => {
            assert!(std::env::var_os("CI").is_none(), "cannot be tested here: {e}");
            eprintln!("SKIPPED: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// Pagers of both deliveries with the smallest budget.
pub fn both() -> Vec<Pager> {
    [Delivery::InThread, Delivery::Threads]
        .into_iter()
        .filter_map(|delivery| build(Pager::builder().memory(BUDGET).delivery(delivery)))
        .collect()
}

/// Forks. Returns 0 in the child, and its id in the parent. The kernel may refuse a fork for want of memory or of process ids; that
/// says nothing about the pager, so it is tried again for a while.
///
/// # Safety
///
/// As of `libc::fork`: the child must not need a lock that another thread may hold.
pub unsafe fn fork() -> libc::pid_t {
    let until = Instant::now() + PATIENCE;
    loop {
        // SAFETY: as above.
        let child = unsafe { libc::fork() };
        if child >= 0 {
            return child;
        }
        let refused = std::io::Error::last_os_error();
        let passing = matches!(refused.raw_os_error(), Some(libc::EAGAIN | libc::ENOMEM));
        assert!(passing && Instant::now() < until, "fork: {refused}");
        eprintln!("fork: {refused}; trying again");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The status with which a child ends. A child that hangs is killed. (Not by an alarm: a thread that waits for the pager has all
/// signals blocked. With one, the parent waited for ever.)
pub fn status_of(child: libc::pid_t) -> libc::c_int {
    let until = Instant::now() + PATIENCE / 2;
    loop {
        let mut status = 0;
        // SAFETY: our child, which nobody else waits for; writes a number.
        match unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } {
            0 if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
            // SAFETY: our child, which was not waited for yet.
            0 => assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0),
            ended => {
                assert_eq!(ended, child);
                return status;
            }
        }
    }
}

/// Sets a flag at the end, also of a thread that panics: a scope would wait for ever for its other threads.
pub struct SetAtEnd<'a>(pub &'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Whether a child with this output could have what its case needs. If not, it has printed why; under CI that is a failure.
pub fn could_be_tested(name: &str, output: &std::process::Output) -> bool {
    let said = String::from_utf8_lossy(&output.stdout);
    let Some(why) = said.lines().find(|l| l.starts_with("CANNOT")) else { return true };
    assert!(std::env::var_os("CI").is_none(), "{name} cannot be tested here: {why}");
    eprintln!("SKIPPED {name}: {why}");
    false
}

/// Clusters above the budget in addition to those of faulting threads: originals that are still being written while their copy is
/// back in the program.
const WRITING: u64 = 4;

/// Asserts that the budget was kept: the peak was at most a cluster per faulting thread above it (and [`WRITING`]), and no frame
/// was given out above it because there were no victims.
pub fn assert_budget(pager: &Pager, threads: u64) {
    let c = pager.counters();
    let limit = c.memory_limit_bytes.get();
    let cluster = (limit / 64).clamp(PAGE as u64, 64 * PAGE as u64);
    let peak = c.memory_peak_bytes.get();
    eprintln!(
        "{:?}, {threads} threads: at most {} pages above the budget",
        pager.delivery(),
        peak.saturating_sub(limit) / PAGE as u64
    );
    assert!(peak <= limit + (threads + WRITING) * cluster, "peak {peak} of {limit}, {threads} threads");
    assert_eq!(c.over_budget.get(), 0);
    pager.check();
}

/// Waits 200 ms for a signal that does not come. Returns the error number.
pub fn wait_in_vain() -> Option<i32> {
    let time = libc::timespec { tv_sec: 0, tv_nsec: 200_000_000 };
    // SAFETY: a set of no signals, and a time, which live over the call.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigtimedwait(&none, std::ptr::null_mut(), &time);
    }
    std::io::Error::last_os_error().raw_os_error()
}

/// Forbids the calling thread io_uring, by a seccomp filter.
pub fn forbid_io_uring() {
    let statement = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    let setup = libc::SYS_io_uring_setup as u32; // io_uring_enter and io_uring_register are the next two
    let mut filter = [
        statement(0x20, 0), // the call's number
        libc::sock_filter { jt: 0, jf: 2, ..statement(0x35, setup) },
        libc::sock_filter { jt: 1, jf: 0, ..statement(0x25, setup + 2) },
        statement(6, 0x5_0000 | libc::EPERM as u32),
        statement(6, 0x7fff_0000),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: forbids this thread some calls.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
        assert_eq!(libc::syscall(libc::SYS_io_uring_setup, 1, 0), -1);
    }
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EPERM));
}

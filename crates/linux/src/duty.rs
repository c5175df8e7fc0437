//! Which handler reads messages: the one on the faulting thread's CPU, or all of them.
//!
//! The kernel wakes every thread that polls a userfaultfd for every fault, and a wake across CPUs costs more than serving the fault
//! (10 to 60 us on a virtual machine). So as long as only one thread of the program faults, only the handler on that thread's CPU
//! polls, and the others sleep; it is there as soon as the faulting thread sleeps, and the page is back in a cache of that CPU. Once
//! two threads fault by turns, all handlers poll, and each is likely to get what happened on its own CPU.
//!
//! Nothing but speed depends on it: whoever reads a message serves it, and at any time at least one handler polls.

use crate::sys::{self, Fd, futex_wait, futex_wake};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// All handlers poll.
const EVERYONE: u32 = u32::MAX;
/// So many faults in a row by one thread: it is alone. Guessed: a change of duty costs about as much as one wake too many.
const ALONE: u32 = 64;
/// Threads that take turns after fewer faults than this fault at the same time.
const TURNS: u32 = 32;
/// CPUs that this knows, as the affinity masks here.
const CPUS: usize = 1024;

/// See the module.
#[derive(Debug)]
pub struct Duty {
    /// The CPU whose handler polls alone, or [`EVERYONE`]. A futex.
    poller: AtomicU32,
    /// CPUs that have a handler.
    handlers: [AtomicU64; CPUS / 64],
    /// The thread that faulted last, and how many times in a row.
    last: AtomicU32,
    streak: AtomicU32,
}

impl Default for Duty {
    fn default() -> Self {
        Duty {
            poller: AtomicU32::new(EVERYONE),
            handlers: [const { AtomicU64::new(0) }; CPUS / 64],
            last: AtomicU32::new(0),
            streak: AtomicU32::new(0),
        }
    }
}

impl Duty {
    /// There is a handler on `cpu`.
    pub fn join(&self, cpu: usize) {
        if cpu < CPUS {
            self.handlers[cpu / 64].fetch_or(1 << (cpu % 64), Relaxed);
        }
    }

    /// As at the start: everyone polls, and no handler is known. For a fork's child.
    pub fn reset(&self) {
        self.handlers.iter().for_each(|h| h.store(0, Relaxed));
        self.streak.store(0, Relaxed);
        self.poller.store(EVERYONE, Relaxed);
    }

    /// Who polls, to be given to [`Duty::polls`] and [`Duty::wait`].
    pub fn poller(&self) -> u32 {
        self.poller.load(Acquire)
    }

    /// Whether the handler on `cpu` is one of them. A handler that is bound to no CPU always is.
    pub fn polls(poller: u32, cpu: Option<usize>) -> bool {
        poller == EVERYONE || cpu.is_none_or(|cpu| cpu as u32 == poller)
    }

    /// Waits until it is no longer as `seen`, at most a second.
    pub fn wait(&self, seen: u32) {
        futex_wait(&self.poller, seen, 1_000_000_000);
    }

    /// All handlers are to poll (and to look whether the machine quits).
    pub fn call_everyone(&self) {
        self.set(EVERYONE);
    }

    /// The handler on `cpu` has read a fault of the thread `tid` (0: not known).
    pub fn note(&self, tid: u32, cpu: Option<usize>) {
        let Some(cpu) = cpu else { return };
        let streak = if tid == self.last.load(Relaxed) {
            let streak = self.streak.load(Relaxed).saturating_add(1);
            self.streak.store(streak, Relaxed);
            streak
        } else {
            self.last.store(tid, Relaxed);
            if self.streak.swap(0, Relaxed) < TURNS && self.poller() != EVERYONE {
                self.set(EVERYONE);
            }
            0
        };
        if tid != 0 && streak > 0 && streak.is_multiple_of(ALONE) {
            let home = cpu_of(tid).filter(|c| self.has_handler(*c)).unwrap_or(cpu);
            if self.poller() != home as u32 {
                self.set(home as u32);
            }
        }
    }

    fn has_handler(&self, cpu: usize) -> bool {
        cpu < CPUS && self.handlers[cpu / 64].load(Relaxed) >> (cpu % 64) & 1 == 1
    }

    fn set(&self, poller: u32) {
        self.poller.store(poller, Release);
        futex_wake(&self.poller, i32::MAX as u32);
    }
}

/// The CPU that a thread of this process runs on or ran on last, as /proc says. 5 us.
fn cpu_of(tid: u32) -> Option<usize> {
    let mut path = *b"/proc/self/task/\0\0\0\0\0\0\0\0\0\0/stat\0";
    let digits = tid.checked_ilog10()? as usize + 1;
    let at = b"/proc/self/task/".len();
    let mut rest = tid;
    for place in path[at..at + digits].iter_mut().rev() {
        *place = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    path[at + digits..at + digits + 6].copy_from_slice(b"/stat\0");
    let file: Fd = sys::open(&path[..at + digits + 6], libc::O_RDONLY | libc::O_CLOEXEC, 0).ok()?;
    let mut text = [0u8; 512];
    let n = sys::read(file.raw(), &mut text).ok()?;
    processor(&text[..n])
}

/// Field 39 of a `stat` file, proc_pid_stat(5). The second, a name in parentheses, may contain anything.
fn processor(stat: &[u8]) -> Option<usize> {
    let after_name = stat.iter().rposition(|b| *b == b')')? + 2;
    let field = stat.get(after_name..)?.split(|b| *b == b' ').nth(39 - 3)?;
    core::str::from_utf8(field).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_has_one_handler_and_two_have_all() {
        let duty = Duty::default();
        duty.join(3);
        assert!(Duty::polls(duty.poller(), Some(3)) && Duty::polls(duty.poller(), Some(5)));
        let fault = |tid, times| (0..times).for_each(|_| duty.note(tid, Some(3)));
        // a thread that does not exist: whoever reads its faults keeps the duty
        fault(u32::MAX, ALONE + 1);
        assert!(Duty::polls(duty.poller(), Some(3)) && !Duty::polls(duty.poller(), Some(5)) && Duty::polls(duty.poller(), None));
        fault(u32::MAX - 1, 1); // a change of thread
        assert!(!Duty::polls(duty.poller(), Some(5)));
        fault(u32::MAX, 1); // by turns
        assert!(Duty::polls(duty.poller(), Some(5)));
        fault(0, 10 * ALONE); // a kernel that does not tell
        assert!(Duty::polls(duty.poller(), Some(5)));
    }

    #[test]
    fn the_cpu_of_a_thread() {
        let mut set = [0u64; 16];
        set.copy_from_slice(&sys::allowed_cpus()[..16]);
        let cpu = cpu_of(sys::getpid()).expect("the main thread has a stat file");
        assert!(cpu < CPUS && set[cpu / 64] >> (cpu % 64) & 1 == 1, "CPU {cpu}");
        assert_eq!(cpu_of(0), None);
    }

    #[test]
    fn a_name_may_contain_anything() {
        let rest: String = (3..=52).map(|n| format!(" {n}")).collect();
        assert_eq!(processor(format!("7 (a ) b (c)){rest}\n").as_bytes()), Some(39));
        assert_eq!(processor(b"7 (a) 3 4"), None);
        assert_eq!(processor(b"7 (a"), None);
        assert_eq!(processor(b")"), None);
    }
}

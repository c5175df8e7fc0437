//! Keeps idle CPUs of a virtual machine from halting while faults are served.
//!
//! A virtual CPU that has nothing to do halts, and the host lets others run. To wake it, the waker writes to the interrupt
//! controller, which leaves the virtual machine and takes 3 to 6 us, with a lock of the userfaultfd held. Linux can poll for a
//! while before it halts (the cpuidle driver `haltpoll`, by default for 200 us). A waker only sets a flag then. Some hosts turn
//! that off. So while a handler serves many faults, it asks for polling by the kernel's interface for such wishes: as long as
//! /dev/cpu_dma_latency is open and says 0, no CPU of the machine halts. The wish ends with the descriptor, also when the process
//! is killed.
//!
//! This takes root. It is done only where halting is what idle CPUs do, and where they are few, because they all poll.

use crate::sys::{self, Fd};

const DEVICE: &[u8] = b"/dev/cpu_dma_latency\0";
const DRIVER: &[u8] = b"/sys/devices/system/cpu/cpuidle/current_driver\0";
const ONLINE: &[u8] = b"/sys/devices/system/cpu/online\0";
/// The most CPUs of the machine. Guessed: with more, one program's faults are not worth that all others poll.
const CPUS_MAX: usize = 4;

/// How often a handler decides anew, in nanoseconds.
const DECIDE_NS: u64 = 50_000_000;
/// A handler that served at least so many faults in that time asks. (One each 500 us; the kernel's own polling ends 200 us after a
/// CPU was used last.)
const FAULTS: u32 = 100;
/// The longest that a handler may sleep while it asks, in nanoseconds, so that it notices the end of the faults.
pub const SLEEP_NS: u64 = DECIDE_NS;

/// A handler's wish that no idle CPU halts.
#[derive(Debug)]
pub struct HaltPoll {
    /// It may ask: nothing is known against it.
    may: bool,
    /// How to ask.
    ask: fn() -> Option<Fd>,
    asks: Option<Fd>,
    faults: u32,
    /// Since when they are counted (CLOCK_MONOTONIC, in nanoseconds).
    since: u64,
}

impl HaltPoll {
    /// Asks for nothing yet. `may`: the user allows it.
    pub fn new(may: bool) -> Self {
        HaltPoll { may, ask, asks: None, faults: 0, since: 0 }
    }

    /// Notes that a fault is served.
    pub fn note(&mut self) {
        self.faults += 1;
    }

    /// Whether it asks now.
    pub fn asks(&self) -> bool {
        self.asks.is_some()
    }

    /// Decides, now and then, whether to ask. Returns whether it has just begun to. `alone`: no other process shares the budget.
    /// (With three processes on two CPUs nothing is gained. They took 16.8 s instead of 15.6.)
    pub fn decide(&mut self, alone: bool, now_ns: impl FnOnce() -> u64) -> bool {
        if !self.may {
            return false;
        }
        let now = now_ns();
        if now < self.since + DECIDE_NS {
            return false;
        }
        let many = core::mem::take(&mut self.faults) >= FAULTS;
        self.since = now;
        if !(many && alone) {
            self.asks = None;
            return false;
        }
        if self.asks() {
            return false;
        }
        self.asks = (self.ask)();
        self.may = self.asks();
        self.may
    }

    /// Asks no longer, until it has served many faults again. For a handler that sleeps or gives up rights.
    pub fn stop(&mut self) {
        self.asks = None;
    }
}

/// Asks the kernel, on a machine whose idle CPUs halt, and are few.
fn ask() -> Option<Fd> {
    let (mut driver, mut online) = ([0; 32], [0; 256]);
    // other drivers save power, and their CPUs are woken without leaving a virtual machine
    let halts = sys::read_file(DRIVER, &mut driver).ok()?.starts_with(b"haltpoll");
    if !halts || count(sys::read_file(ONLINE, &mut online).ok()?)? > CPUS_MAX {
        return None;
    }
    let fd = sys::open(DEVICE, libc::O_WRONLY | libc::O_CLOEXEC, 0).ok()?;
    sys::write(fd.raw(), &0i32.to_ne_bytes()).ok().map(|_| fd)
}

/// How many CPUs a list of the kernel's has, as `0,2-5`.
fn count(list: &[u8]) -> Option<usize> {
    let number = |text: &str| text.trim_ascii().parse::<usize>().ok();
    let of = |part: &str| match part.split_once('-') {
        Some((first, last)) => (number(last)? + 1).checked_sub(number(first)?),
        None => number(part).map(|_| 1),
    };
    core::str::from_utf8(list).ok()?.split(',').map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_counted_from_the_kernels_list() {
        assert_eq!(count(b"0\n"), Some(1));
        assert_eq!(count(b"0-1\n"), Some(2));
        assert_eq!(count(b"0,2-5,64-127\n"), Some(69));
        for wrong in [&b""[..], b"\n", b"a-b", b"0,", b"5-2", b"\xff"] {
            assert_eq!(count(wrong), None, "{wrong:?}");
        }
    }

    /// It asks while there are many faults, and at no other time.
    #[test]
    fn a_handler_asks_while_it_serves_many_faults() {
        let mut handler = HaltPoll { ask: || sys::open(b"/dev/null\0", libc::O_WRONLY, 0).ok(), ..HaltPoll::new(true) };
        let mut now = 1_000_000_000;
        let mut window = |handler: &mut HaltPoll, faults, alone| {
            (0..faults).for_each(|_| handler.note());
            now += DECIDE_NS / 2;
            assert!(!handler.decide(alone, || now), "not before the time is over");
            now += DECIDE_NS / 2;
            (handler.decide(alone, || now), handler.asks())
        };
        handler.decide(true, || 1_000_000_000);
        assert_eq!(window(&mut handler, FAULTS - 1, true), (false, false));
        assert_eq!(window(&mut handler, FAULTS, true), (true, true));
        assert_eq!(window(&mut handler, FAULTS, true), (false, true));
        assert_eq!(window(&mut handler, 0, true), (false, false));
        assert_eq!(window(&mut handler, FAULTS, true), (true, true));
        assert_eq!(window(&mut handler, FAULTS, false), (false, false), "there are other processes");
        assert_eq!(window(&mut handler, FAULTS, true), (true, true));
        handler.stop();
        assert!(!handler.asks());
    }

    #[test]
    fn who_may_not_does_not_ask_again() {
        for may in [false, true] {
            let mut handler = HaltPoll { ask: || None, ..HaltPoll::new(may) };
            (0..2 * FAULTS).for_each(|_| handler.note());
            assert!(!handler.decide(true, || DECIDE_NS) && !handler.asks());
            assert!(!handler.decide(true, || panic!("the clock is not looked at any more")));
        }
    }
}

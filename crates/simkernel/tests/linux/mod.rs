//! A lab on the machine's own kernel.
//!
//! The program's memory is at a fixed address of this process, where nothing else ever comes. Its threads are processes of their
//! own that share this one's memory, so that each can be killed alone. They wait for calls in [`Slot`]s, which lie in memory that
//! forks share, and use nothing of libc's. `/proc/PID/wchan` says where a thread waits. There is one lab at a time.

mod touch;
mod worker;

use overspill_linux::sys::{self, Fd};
use overspill_linux::uffd::{self, Event, FEATURE_MOVE, FEATURE_POISON, FEATURES_EVENTS, Marks, Uffd};
use overspill_machine::kernel::Uffd as _;
use overspill_simkernel::call::{Call, Outcome, Progress};
use overspill_simkernel::errno::Errno;
use overspill_simkernel::lab::{BASE, Lab, PARKING, PLACES, Session, THREADS};
use overspill_simkernel::model_lab::ModelLab;
use overspill_simkernel::pmap::*;
use overspill_simkernel::rules::Rule;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use worker::Slots;

/// One lab at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// The longest time for anything to settle on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A lab on Linux.
pub struct LinuxLab {
    program: Uffd,
    park: Uffd,
    slots: Slots,
    pagemap: File,
    memory: File,
    ring: Option<Fd>,
    cold: Option<Cold>,
    _own: OwnMemory,
    _alone: MutexGuard<'static, ()>,
}

/// A thread that gives MADV_COLD advice all the time.
struct Cold {
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

impl LinuxLab {
    /// A fresh lab; `None` where the kernel lacks something that it needs.
    pub fn new() -> Option<Self> {
        let alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let program = Uffd::open(true, FEATURES_EVENTS | FEATURE_POISON | FEATURE_MOVE, None);
        let park = Uffd::open(true, FEATURE_POISON | FEATURE_MOVE, None);
        // SAFETY: touches no memory.
        let root = unsafe { libc::geteuid() } == 0;
        let (Ok(program), Ok(park), true) = (program, park, root) else {
            assert!(std::env::var_os("CI").is_none(), "cannot be tested here");
            eprintln!("SKIPPED: no userfaultfd with all that it takes (as root, Linux 6.8 or later)");
            return None;
        };
        touch::install();
        let slots = Slots::new(program.raw(), THREADS);
        worker::map_at(PARKING, PLACES * PAGE).expect("nothing is ever there");
        park.register(PARKING, PLACES * PAGE, Marks::None).expect("anonymous memory");
        let open = |path: &str| File::open(path).expect("/proc is there");
        let (pagemap, memory) = (open("/proc/self/pagemap"), open("/proc/self/mem"));
        Some(LinuxLab { program, park, slots, pagemap, memory, ring: None, cold: None, _own: OwnMemory, _alone: alone })
    }

    /// Waits until a thread has returned from its call or sleeps in the kernel for a fault or a message.
    fn settle_one(&self, thread: usize) -> Progress {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(progress) = self.slots.ended(thread) {
                return progress;
            }
            let wchan = std::fs::read_to_string(format!("/proc/{}/wchan", self.slots.pid(thread))).unwrap_or_default();
            if wchan.contains("userfault") {
                return Progress::Waits;
            }
            assert!(Instant::now() < until, "thread {thread} is in {wchan}");
            sys::yield_now();
        }
    }

    fn entry(&self, at: usize) -> u64 {
        let mut entry = [0; 8];
        self.pagemap.read_exact_at(&mut entry, (at / PAGE * 8) as u64).expect("every page has one");
        u64::from_le_bytes(entry)
    }
}

impl Drop for LinuxLab {
    fn drop(&mut self) {
        self.disturb(false);
        self.slots.kill_all();
    }
}

/// The lab's memory. It goes after the descriptors; otherwise its unmapping would wait for the message to be read.
struct OwnMemory;

impl Drop for OwnMemory {
    fn drop(&mut self) {
        worker::unmap_all(BASE, PARKING + PLACES * PAGE);
    }
}

fn place(place: ParkPlace) -> usize {
    PARKING + place.0 * PAGE
}

fn moved(moved: uffd::Moved) -> Moved {
    Moved { bytes: moved.bytes, error: moved.error }
}

impl Lab for LinuxLab {
    fn start(&mut self, thread: usize, call: Call) {
        self.slots.post(thread, call);
    }
    fn settle(&mut self) {
        for thread in 0..if self.slots.are_held() { 0 } else { self.slots.count() } {
            self.settle_one(thread);
        }
    }
    fn progress(&mut self, thread: usize) -> Progress {
        self.settle();
        self.settle_one(thread)
    }
    fn kill(&mut self, thread: usize) {
        self.slots.kill(thread);
    }
    fn hold(&mut self, on: bool) {
        self.slots.hold(on);
        self.settle();
    }
    fn pin(&mut self, at: Option<usize>) {
        self.ring = at.map(|at| worker::pin(at).expect("io_uring"));
    }
    fn disturb(&mut self, on: bool) {
        if let Some(cold) = self.cold.take() {
            cold.stop.store(true, std::sync::atomic::Ordering::Relaxed);
            cold.thread.join().expect("it only gives advice");
        }
        if on {
            let stop = std::sync::Arc::<std::sync::atomic::AtomicBool>::default();
            let seen = std::sync::Arc::clone(&stop);
            let thread = std::thread::spawn(move || {
                while !seen.load(std::sync::atomic::Ordering::Relaxed) {
                    worker::advise_cold();
                }
            });
            self.cold = Some(Cold { stop, thread });
        }
    }
    fn peek(&mut self, at: usize) -> u8 {
        let mut byte = [0];
        self.memory.read_exact_at(&mut byte, at as u64).expect("it is there");
        byte[0]
    }
}

impl Pmap for LinuxLab {
    fn copy_in(&mut self, at: usize, from: &[PageBytes]) -> Moved {
        // SAFETY: the source is live; the target is the lab's.
        moved(unsafe { self.program.copy(at, from.as_ptr().cast(), size_of_val(from)) })
    }
    fn zero_in(&mut self, at: usize, pages: usize) -> Moved {
        moved(self.program.zero(at, pages * PAGE))
    }
    fn restore(&mut self, at: usize, from: ParkPlace, pages: usize) -> Moved {
        // SAFETY: the caller has made sure that a page is parked there; the target is the lab's.
        moved(unsafe { self.program.copy(at, place(from) as *const u8, pages * PAGE) })
    }
    fn take(&mut self, at: usize, to: ParkPlace, pages: usize) -> Moved {
        // SAFETY: both are the lab's.
        moved(unsafe { self.park.move_pages(place(to), at, pages * PAGE) })
    }
    fn give_back(&mut self, at: usize, from: ParkPlace, pages: usize) -> Moved {
        // SAFETY: both are the lab's.
        moved(unsafe { self.program.move_pages(at, place(from), pages * PAGE) })
    }
    fn park_copy(&mut self, to: ParkPlace, from: &PageBytes) -> Moved {
        // SAFETY: the source is live; the target is the lab's.
        moved(unsafe { self.park.copy(place(to), from.as_ptr(), PAGE) })
    }
    fn parked(&mut self, at: ParkPlace) -> PageBytes {
        let mut bytes = [0; PAGE];
        self.memory.read_exact_at(&mut bytes, place(at) as u64).expect("it is there");
        bytes
    }
    fn drop_parked(&mut self, places: &[ParkPlace]) {
        // SAFETY: the lab's.
        places.iter().for_each(|at| unsafe { sys::madvise(place(*at), PAGE, libc::MADV_DONTNEED) }.expect("mapped"));
    }
    fn resident(&mut self, at: usize) -> bool {
        sys::is_resident(at)
    }
    fn changing(&mut self) -> bool {
        self.settle();
        self.program.is_changing()
    }
    fn unshare(&mut self, at: usize) -> bool {
        sys::own_page(at)
    }
    fn register(&mut self, at: usize, len: usize, protects: bool) -> Result<(), Errno> {
        self.program.register(at, len, if protects { Marks::Protected } else { Marks::None })
    }
    fn unregister(&mut self, at: usize, len: usize) -> Result<(), Errno> {
        // SAFETY: the lab's memory, which may read as anything.
        unsafe { self.program.unregister(at, len) }
    }
    fn poison(&mut self, at: usize, len: usize) -> Result<(), Errno> {
        self.program.poison(at, len)
    }
    fn protect(&mut self, at: usize, len: usize, on: bool) -> Result<(), Errno> {
        self.program.write_protect(at, len, on)
    }
    fn wake(&mut self, at: usize, len: usize) {
        uffd::wake(self.program.raw(), at, len);
    }
    fn messages(&mut self, most: usize) -> Vec<Message> {
        let mut raw = vec![uffd::Message::default(); most];
        let count = self.program.read(&mut raw);
        let decoded = raw[..count].iter().map(|message| match (*message).into() {
            Event::Fault(at, _) => Message::Fault { at: at & !1, write: at & 1 == 1 },
            Event::Remap(from, to, len) => Message::Remap { from, to, len },
            Event::Remove(start, end) => Message::Remove { start, end },
            Event::Unmap(start, end) => Message::Unmap { start, end },
            Event::Other => panic!("{message:?}"),
        });
        decoded.collect()
    }
    fn readable(&mut self) -> bool {
        self.settle();
        sys::is_readable(self.program.raw())
    }
    fn present(&mut self, at: usize) -> Present {
        let entry = self.entry(at);
        let bit = |n: u32| entry >> n & 1 == 1;
        match (bit(63), bit(62), bit(57), bit(58)) {
            (true, _, protected, _) => Present::Page { protected },
            (false, _, _, true) => Present::Guard,
            (false, _, true, false) => Present::Marker,
            (false, true, false, false) => Present::Poison,
            (false, false, false, false) => Present::Absent,
        }
    }
    fn mappings(&mut self, start: usize, end: usize) -> Vec<Mapping> {
        let mut list = Vec::new();
        let add = |from: usize, to: usize, prot: i32| {
            if from < end && start < to {
                list.push(Mapping { start: from.max(start), end: to.min(end), prot: prot as u8 });
            }
        };
        sys::each_mapping_with(add).expect("/proc is there");
        list
    }
}

/// A system call's result as an [`Outcome`].
fn outcome(result: Result<usize, Errno>) -> Outcome {
    result.map_or_else(Outcome::Err, Outcome::Ok)
}

#[allow(dead_code)] // for the tests that ask no rules
/// Asks a rule of the simulated kernel and of Linux. The results of every step must be the same.
pub fn compare(rule: Rule) {
    let mut model = ModelLab::new();
    let mut session = Session::new(&mut model);
    rule(&mut session);
    let expected = session.log;
    let Some(mut linux) = LinuxLab::new() else { return };
    let mut session = Session::new(&mut linux);
    // if Linux breaks a rule's own assertion before the comparison does, the steps up to there are still worth seeing
    let asked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| rule(&mut session)));
    let differs = session.log.iter().zip(&expected).position(|(a, b)| a != b);
    if let Some(line) = differs.or(asked.is_err().then_some(session.log.len())) {
        let upto = session.log[..line.min(session.log.len())].join("\n  ");
        let none = String::from("(nothing)");
        let (model, linux) = (expected.get(line).unwrap_or(&none), session.log.get(line).unwrap_or(&none));
        panic!("\n(numbers in hexadecimal) after\n  {upto}\nthe model:\n  {model}\nLinux:\n  {linux}");
    }
    assert_eq!(session.log.len(), expected.len());
}

//! What safe code may do to a pager, however odd: arguments that lie, values that are forgotten, panics, calls from within calls.
//! None of it may reach memory that is not the caller's, lose content, or stop the pager. (`children.rs` has forks.)

mod common;

use common::*;
use hashbrown::{DefaultHashBuilder, HashMap};
use overspill::{Arena, Error, Pager, Region, RegionOf, Wired, WiredMut};
use std::cell::Cell;
use std::ops::{Bound, RangeBounds};
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, mpsc};
use std::thread;

fn word(i: usize) -> u64 {
    (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn filled(pager: &Pager, bytes: usize) -> Region {
    let mut region = pager.region(bytes).expect("a region");
    region.as_mut_slice_of::<u64>().iter_mut().enumerate().for_each(|(i, at)| *at = word(i));
    region
}

fn compare(region: &Region) {
    region.as_slice_of::<u64>().iter().enumerate().for_each(|(i, at)| assert_eq!(*at, word(i), "word {i}"));
}

/// Runs `call`, which must panic with a message that has `text`.
fn panics(text: &str, call: impl FnOnce()) {
    let panic = catch_unwind(AssertUnwindSafe(call)).expect_err("a panic");
    let message = panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into()));
    assert!(message.as_ref().is_some_and(|message| message.contains(text)), "{message:?}");
}

#[test]
fn threads_may_share_and_pass_on_what_they_should() {
    fn both<T: Send + Sync>() {}
    both::<Pager>();
    both::<Region>();
    both::<RegionOf<u64>>();
    both::<Arena>();
    both::<Wired<'static>>();
    both::<WiredMut<'static>>();
    both::<Error>();
}

/// A range whose ends change each time that they are asked for.
struct Liar(Cell<usize>);

impl RangeBounds<usize> for Liar {
    fn start_bound(&self) -> Bound<&usize> {
        self.0.set(self.0.get() + 1);
        [Bound::Included(&5), Bound::Unbounded][self.0.get() % 2]
    }
    fn end_bound(&self) -> Bound<&usize> {
        self.0.set(self.0.get() + 1);
        [Bound::Included(&usize::MAX), Bound::Excluded(&5000)][self.0.get() % 2]
    }
}

#[test]
fn ranges_that_lie_or_overflow() {
    for pager in both() {
        let mut region = filled(&pager, 8 * PAGE);
        let after_all = (Bound::Excluded(usize::MAX), Bound::Unbounded);
        panics("range", || drop(region.wire(..=usize::MAX)));
        panics("range", || drop(region.wire(after_all)));
        panics("range", || drop(region.wire(8 * PAGE + 1..)));
        panics("range", || region.prefetch(after_all));
        panics("range", || drop(region.discard(..=usize::MAX)));
        panics("range", || region.unwire(after_all));
        for first in 0..4 {
            let got = catch_unwind(AssertUnwindSafe(|| region.wire(Liar(Cell::new(first))).map(|wired| wired.to_vec())));
            let same: Vec<u8> = (0..8 * PAGE / 8).flat_map(|i| word(i).to_ne_bytes()).collect();
            if let Ok(bytes) = got {
                let bytes = bytes.expect("wired");
                assert!(bytes == same[..5000] || bytes == same[5..5000], "{} bytes", bytes.len());
            }
        }
        compare(&region);
    }
}

/// Values that are forgotten leave pages wired or memory used, and no more.
#[test]
fn forgotten_values() {
    for pager in both() {
        let mut region = filled(&pager, 32 * MIB);
        std::mem::forget(region.wire(..MIB).expect("wired"));
        std::mem::forget(region.wire_mut(2 * MIB..3 * MIB).expect("wired"));
        assert!(matches!(region.discard(..), Err(Error::IsWired)));
        region.unwire(..); // only what was kept
        assert!(matches!(region.discard(..PAGE), Err(Error::IsWired)));
        compare(&region);
        drop(region); // unwires
        let region = filled(&pager, 32 * MIB);
        drop(region.wire(..BUDGET as usize / 2).expect("all can be wired again"));
        let arena = pager.arena(16 * MIB).expect("an arena");
        let mut map = HashMap::with_hasher_in(DefaultHashBuilder::default(), arena.clone());
        (0..10_000u64).for_each(|n| _ = map.insert(n, n));
        std::mem::forget(map); // and its clone of the arena
        drop(arena);
        compare(&region);
        std::mem::forget(region);
        std::mem::forget(pager.clone());
        drop(pager); // goes on: the region that was forgotten has it
    }
}

/// The regions of two handles may be exchanged: neither remembers anything of the other's.
#[test]
fn regions_that_are_swapped() {
    for pager in both() {
        let mut small = pager.region_of::<u8>(100).expect("a region");
        let mut large = pager.region_of::<[u128; 3]>(1000).expect("a region");
        large.fill([7; 3]);
        std::mem::swap(small.region_mut(), large.region_mut());
        assert_eq!((small.len(), large.len()), (48_000, 2));
        assert_eq!((small[47_984], large[1]), (7, [0; 3]));
        let old = std::mem::replace(large.region_mut(), filled(&pager, 16 * MIB));
        drop(old);
        compare(large.region());
    }
}

/// Arguments of set-up that no machine can fulfil are errors, or are bounded.
#[test]
fn absurd_options() {
    let extremes = [
        Pager::builder().memory(u64::MAX),
        Pager::builder().memory(BUDGET).managed_max(u64::MAX).regions_max(u16::MAX),
        Pager::builder().memory(BUDGET).managed_max(0).regions_max(0),
        Pager::builder().memory(BUDGET).swap_limit(u64::MAX),
        Pager::builder().memory(BUDGET).swap_limit(1),
        Pager::builder().memory(BUDGET).swap("\0"),
        Pager::builder().memory(BUDGET).policy("2q:kin=NaN"),
        Pager::builder().memory(BUDGET).policy("2q:kin=1e308,kout=-1"),
    ];
    for builder in extremes {
        let told = format!("{builder:?}");
        let built = catch_unwind(|| builder.build()).unwrap_or_else(|_| panic!("{told}"));
        let Ok(pager) = built else { continue };
        for bytes in [0, 1, 3 * MIB, 1 << 40, usize::MAX >> 1, usize::MAX - 1, usize::MAX] {
            if let Ok(mut region) = pager.region(bytes) {
                *region.last_mut().expect("a byte") = 1;
                assert_eq!(region[0], u8::from(bytes == 1), "{told}");
            }
            drop(pager.arena(bytes));
        }
        assert!(pager.region_of::<[u64; 1 << 20]>(usize::MAX).is_err());
        assert!(pager.region_of::<[u64; 0]>(usize::MAX).is_err());
        let arena = pager.arena(PAGE).ok();
        for (size, align) in [(0, 1), (1, 1 << 63), (usize::MAX, 1), (usize::MAX, 1 << 63), (1 << 62, 1 << 62), (PAGE, 2 * MIB)] {
            if let Some(Ok(block)) = arena.as_ref().map(|arena| arena.alloc(size, align)) {
                let at = block.cast::<u8>().as_ptr() as usize;
                assert!(block.len() >= size && block.len() <= PAGE && at.is_multiple_of(align));
            }
        }
    }
}

/// A value whose drop panics, now and then.
struct Mine<'a>(u64, &'a AtomicU64);

impl Drop for Mine<'_> {
    fn drop(&mut self) {
        self.1.fetch_add(1, Relaxed);
        if self.0 % 1000 == 999 && !thread::panicking() {
            panic!("mine {}", self.0);
        }
    }
}

#[test]
fn collections_whose_values_panic_when_dropped() {
    for pager in both() {
        let arena = pager.arena(64 * MIB).expect("an arena");
        let dropped = AtomicU64::new(0);
        let mut map = HashMap::with_hasher_in(DefaultHashBuilder::default(), arena.clone());
        for n in 0..5000u64 {
            map.insert(n, (Mine(n, &dropped), [n; 250])); // more than the budget
        }
        panics("mine", || map.retain(|n, _| n % 2 == 0));
        assert!(dropped.load(Relaxed) > 0 && map.values().all(|(mine, numbers)| numbers[249] == mine.0));
        panics("mine", || drop(map)); // the rest is dropped while the panic unwinds
        arena.check();
        let mut next = HashMap::with_hasher_in(DefaultHashBuilder::default(), arena.clone());
        next.insert(1, 1);
        drop(next);
        arena.check();
    }
}

/// Threads sleep in futex calls on memory that may be out. Whatever the kernel answers, locks of std's go on working.
#[test]
fn locks_and_condition_variables_in_an_arena() {
    for pager in both() {
        let arena = pager.arena(64 * MIB).expect("an arena");
        let mut cells = HashMap::with_hasher_in(DefaultHashBuilder::default(), arena.clone());
        for n in 0..5000 {
            cells.insert(n, (Mutex::new(0), Condvar::new(), [n; 500])); // 20 MB
        }
        let (threads, rounds) = (4, 2000);
        thread::scope(|scope| {
            for me in 0..threads {
                let cells = &cells;
                scope.spawn(move || {
                    for round in 0..rounds {
                        // all threads pass each cell in turn, so each waits for the one before
                        let (mutex, turn, content) = &cells[&(round % 40 * 125)];
                        let mut value = mutex.lock().expect("no panic");
                        while *value % threads != me {
                            value = turn.wait(value).expect("no panic");
                        }
                        *value += 1;
                        assert_eq!(content[7], round % 40 * 125);
                        drop(value);
                        turn.notify_all();
                        let _ = cells[&(round * 7 % 5000)].2[3]; // pages others out
                    }
                });
            }
        });
        let passed: u64 = cells.values().map(|cell| *cell.0.lock().expect("no panic")).sum();
        assert_eq!(passed, threads * rounds);
    }
}

/// The caller's closure runs without a lock of the pager's: it may use regions and the pager, and it may panic.
#[test]
fn calls_from_within_a_swapoff() {
    for pager in both() {
        let more = std::env::temp_dir().join(format!("overspill-sound-{}", std::process::id()));
        std::fs::create_dir_all(&more).expect("temp dir");
        pager.swap_on(overspill::DeviceSpec::file(&more)).expect("a device");
        let region = filled(&pager, 64 * MIB);
        let mut other = Some(filled(&pager, 16 * MIB));
        let calls = Cell::new(0);
        let result = pager.swap_off_while(std::env::temp_dir(), |_| {
            calls.set(calls.get() + 1);
            compare(&region);
            drop(region.wire(..PAGE).expect("wired"));
            assert!(pager.swap_off(&more).is_err(), "one at a time");
            pager.set_policy("2q").expect("a policy");
            if let Some(other) = other.take() {
                compare(&other);
            }
            drop(filled(&pager, MIB));
            true
        });
        println!("{:?}: {} calls from within, {result:?}", pager.delivery(), calls.get());
        let off = result.is_ok();
        assert!(off, "{result:?}");
        pager.swap_on(overspill::DeviceSpec::file(std::env::temp_dir())).expect("a device");
        let called = Cell::new(false);
        let ended = catch_unwind(AssertUnwindSafe(|| {
            pager.swap_off_while(&more, |_| {
                called.set(true);
                panic!("the caller's own")
            })
        }));
        assert_eq!(ended.is_err(), called.get());
        compare(&region);
        if called.get() {
            pager.swap_off(&more).expect("the swapoff that panicked is over");
        }
        pager.check();
        drop((region, pager));
        std::fs::remove_dir(&more).expect("nothing is in it");
    }
}

/// A file that panics when it is asked for its descriptor.
struct NoFile;

impl AsFd for NoFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        panic!("no file")
    }
}

#[test]
fn files_that_panic() {
    for pager in both() {
        let mut region = filled(&pager, MIB);
        panics("no file", || drop(region.read_at(NoFile, .., 0)));
        panics("no file", || drop(region.write_at(NoFile, .., 0)));
        drop(region.wire_mut(..).expect("nothing is wired"));
        let file = std::fs::File::open("/proc/self/exe").expect("this program");
        assert!(region.read_at(&file, .., u64::MAX).is_err() && region.write_at(&file, .., 0).is_err());
        compare(&region);
    }
}

/// Counters are for reading. A program that changes them harms what it is shown.
#[test]
fn counters_that_the_program_changes() {
    for pager in both() {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let c = pager.counters();
                while !stop.load(Relaxed) {
                    for counter in
                        [&c.released_pages, &c.memory_limit_bytes, &c.memory_used_bytes, &c.write_errors, &c.pages_reclaimed]
                    {
                        counter.set(u64::MAX);
                        counter.add(1);
                    }
                }
            });
            for _ in 0..20 {
                let mut region = filled(&pager, 16 * MIB);
                region.prefetch(..);
                compare(&region);
                region.discard(..8 * MIB).expect("nothing is wired");
            }
            stop.store(true, Relaxed);
        });
    }
}

/// A value of a thread's that uses a region when the thread ends.
struct AtEnd(mpsc::Sender<u64>, &'static Region);

impl Drop for AtEnd {
    fn drop(&mut self) {
        let sum = self.1.as_slice_of::<u64>().iter().fold(0u64, |sum, word| sum.wrapping_add(*word));
        let _ = self.0.send(sum);
    }
}

thread_local! {
    static AT_END: Cell<Option<AtEnd>> = const { Cell::new(None) };
}

#[test]
fn destructors_of_threads_touch_regions() {
    for pager in both() {
        let region: &'static Region = Box::leak(Box::new(filled(&pager, 16 * MIB)));
        let (send, sums) = mpsc::channel();
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let send = send.clone();
                thread::spawn(move || AT_END.set(Some(AtEnd(send, region))))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
        drop(send);
        let expected = (0..16 * MIB / 8).fold(0u64, |sum, i| sum.wrapping_add(word(i)));
        assert!(sums.iter().inspect(|sum| assert_eq!(*sum, expected)).count() == 4);
    }
}

/// Regions come and go, with reads for them under way, while other threads fault, and while the process starts programs.
#[test]
fn drops_and_programs_while_others_fault() {
    for pager in both() {
        let steady = filled(&pager, 16 * MIB);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    compare(&steady);
                }
            });
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    let status = std::process::Command::new("true").status();
                    assert!(status.is_ok_and(|status| status.success()));
                }
            });
            for round in 0..40 {
                let mut region = filled(&pager, 12 * MIB);
                region.prefetch(..);
                match round % 4 {
                    0 => drop(region),
                    1 => {
                        region.discard(MIB..9 * MIB).expect("nothing is wired");
                        assert!(region.as_slice_of::<u64>()[MIB / 8..9 * MIB / 8].iter().all(|word| *word == 0));
                    }
                    2 => {
                        panics("unwound", || {
                            let _region = region;
                            panic!("unwound with a region");
                        });
                    }
                    _ => compare(&region),
                }
            }
            stop.store(true, Relaxed);
        });
        pager.check();
    }
}

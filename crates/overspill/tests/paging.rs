//! Regions behave like memory: contents survive paging, whatever threads touch at what time.

mod common;

use common::*;
use overspill::{Advice, Delivery, Engine, Error, Pager, Region};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::thread;
use std::time::{Duration, Instant};

/// Random accesses against a model, in one thread.
fn against_model(region: &mut [u64], seed: u64, accesses: usize) {
    let mut rng = Rng(seed);
    let mut model = vec![0u64; region.len()];
    for _ in 0..accesses {
        let at = rng.below(region.len());
        match rng.below(3) {
            0 => assert_eq!(region[at], model[at], "word {at}"),
            1 => {
                let value = rng.next();
                region[at] = value;
                model[at] = value;
            }
            _ => {
                // a run, as a sequential reader
                let n = 4096.min(region.len() - at);
                assert!(region[at..at + n] == model[at..at + n], "words {at} and {n} on");
            }
        }
    }
    assert!(region == model.as_slice());
}

#[test]
fn contents_survive() {
    for pager in both() {
        for engine in [Engine::Uring, Engine::Psync] {
            let Some(pager) = build(Pager::builder().memory(BUDGET).delivery(pager.delivery()).engine(engine)) else { continue };
            let mut region = pager.region_of::<u64>(4 * MIB).expect("32 MiB");
            against_model(&mut region, 1, 5_000);
            let c = pager.counters();
            assert!(c.hard_faults.get() > 100 && c.pages_out.get() > 1000 && c.soft_faults.get() > 10, "{pager:?}");
            assert_budget(&pager, 1);
        }
    }
}

#[test]
fn several_threads_share_a_region() {
    for pager in both() {
        let mut region = pager.region_of::<u64>(4 * MIB).expect("32 MiB");
        thread::scope(|s| {
            for (t, part) in region.chunks_mut(MIB).enumerate() {
                s.spawn(move || against_model(part, t as u64, 1_500));
            }
        });
        assert_budget(&pager, 4);
    }
}

/// Several threads use the same pages at the same time: each counts in its own word of every page.
#[test]
fn several_threads_share_pages() {
    for pager in both() {
        let mut region = pager.region(24 * MIB).expect("24 MiB");
        let words = region.as_atomics();
        let pages = 24 * MIB / PAGE;
        thread::scope(|s| {
            for t in 0..4 {
                s.spawn(move || {
                    for round in 0..3 {
                        for page in 0..pages {
                            let before = words[page * 512 + t].fetch_add(1, Relaxed);
                            assert_eq!(before, round, "page {page}, thread {t}");
                        }
                    }
                });
            }
        });
        assert_budget(&pager, 4);
    }
}

#[test]
fn two_pagers_and_many_regions() {
    let pagers: Vec<Pager> = both().into_iter().chain(both()).collect();
    thread::scope(|s| {
        for (n, pager) in pagers.iter().enumerate() {
            s.spawn(move || {
                let mut regions: Vec<_> = (0..4).map(|_| pager.region_of::<u64>(MIB / 2).expect("4 MiB")).collect();
                for round in 0..4 {
                    for (i, region) in regions.iter_mut().enumerate() {
                        for (at, word) in region.iter_mut().enumerate().step_by(512) {
                            assert_eq!(*word, if round == 0 { 0 } else { (n * 10 + i + at) as u64 + round - 1 });
                            *word = (n * 10 + i + at) as u64 + round;
                        }
                    }
                }
            });
        }
    });
    pagers.iter().for_each(|pager| assert_budget(pager, 1));
}

/// Waits until charges and slots are back at `before`. The page daemon may still write pages whose region is gone. It also holds
/// slots while it gives their space back to the file system, which takes seconds on a busy disk.
fn comes_back_to(pager: &Pager, before: (u64, u64)) {
    wait_until(
        || pager.check() == before,
        || format!("frames or slots were not given back: {:?}, {before:?} before", pager.check()),
    );
}

/// Polls, with a limit. `so_far` says how things are when that is reached.
fn wait_until(is_so: impl Fn() -> bool, so_far: impl Fn() -> String) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{}", so_far());
        thread::sleep(Duration::from_millis(1));
    }
}

/// A region comes and goes while another is in use. Object numbers and address ranges are used again, and nothing is left behind.
#[test]
fn regions_go_while_others_are_used() {
    for pager in both() {
        let before = pager.check();
        let stop = AtomicBool::new(false);
        thread::scope(|s| {
            let _end = SetAtEnd(&stop);
            s.spawn(|| {
                let mut rounds = 0;
                while !stop.load(Relaxed) || rounds == 0 {
                    let mut region = pager.region_of::<u64>(2 * MIB).expect("16 MiB");
                    against_model(&mut region, rounds, 300);
                    rounds += 1;
                }
            });
            for round in 0..30u64 {
                let mut region = pager.region((1 + round as usize % 12) * MIB).expect("some MiB");
                for (i, page) in region.chunks_mut(PAGE).enumerate() {
                    assert!(page.iter().all(|b| *b == 0), "round {round}, page {i} is not new");
                    page[i % PAGE] = 1;
                }
                region.prefetch(..); // dropped with reads in flight
            }
        });
        assert_budget(&pager, 2);
        comes_back_to(&pager, before);
    }
}

/// The kernel gives the addresses of an unmapped range out again before it reports the unmapping to the pager. If another region
/// was there by then, the pager took the new region for gone, and the old region's pages showed up in the next.
#[test]
fn regions_come_and_go_in_several_threads() {
    for pager in both() {
        let before = pager.check();
        let (threads, rounds, words) = (4, 200, MIB / 8);
        thread::scope(|s| {
            for t in 0..threads {
                let pager = &pager;
                s.spawn(move || {
                    for round in 0..rounds {
                        let mut region = pager.region_of::<u64>(words).expect("1 MiB");
                        for (i, word) in region.iter_mut().enumerate().step_by(512) {
                            assert_eq!(*word, 0, "thread {t}, round {round}, word {i} is not new");
                            *word = round << 8 | t;
                        }
                        for (i, word) in region.iter().enumerate().step_by(512) {
                            assert_eq!(*word, round << 8 | t, "thread {t}, round {round}, word {i} of what it wrote");
                        }
                    }
                });
            }
        });
        let released = pager.counters().released_pages.get();
        assert_eq!(released, threads * rounds * (words / 512) as u64, "pages that the pager knew of when their region went");
        comes_back_to(&pager, before);
    }
}

/// A fault may be served late: its thread lost the CPU, another thread has brought the page in, and the page daemon is about to
/// take it away again. In that case the pager once put a page of zeroes in its place. This test sends such faults by hand.
#[test]
fn a_late_fault_does_not_empty_its_page() {
    let Some(pager) = build(Pager::builder().memory(BUDGET)) else { return };
    let mut region = pager.region(3 * BUDGET as usize / 2).expect("a region");
    let (start, pages) = (region.as_ptr() as usize, region.len() / PAGE);
    let words = region.as_atomics();
    let stop = AtomicBool::new(false);
    (0..pages).for_each(|page| words[page * 512].store(page as u64 + 1, Relaxed));
    thread::scope(|s| {
        for t in 0..2 {
            let stop = &stop;
            s.spawn(move || {
                let mut rng = Rng(t);
                while !stop.load(Relaxed) {
                    send_fault(start + rng.below(pages) * PAGE);
                }
            });
        }
        let right = |page: &usize| words[page * 512].load(Relaxed) == *page as u64 + 1;
        let wrong = (0..40).find_map(|_| (0..pages).find(|page| !right(page)));
        stop.store(true, Relaxed);
        assert_eq!(wrong, None, "a page is empty");
    });
}

/// Linux 6.18 denies some moves that it has made (`Uffd::take`): if the program uses a page at the moment when it is moved, after
/// something has cleared its "accessed" bit (here advice, elsewhere DAMON). The pager believed the kernel, and the next use found
/// zeroes.
#[test]
fn a_page_that_is_used_while_it_is_taken_keeps_its_content() {
    for pager in both() {
        pager.set_policy("fifo").expect("a policy"); // hot pages go as well
        let mut region = pager.region(3 * BUDGET as usize).expect("a region");
        let (start, len) = (region.as_ptr() as usize, region.len());
        let words = region.as_atomics();
        let (hot, pages) = (BUDGET as usize / 3 / PAGE, len / PAGE);
        (0..pages).for_each(|page| words[page * 512].store(page as u64 + 1, Relaxed));
        let stop = AtomicBool::new(false);
        let right = |page: &usize| words[page * 512].load(Relaxed) == *page as u64 + 1;
        let until = Instant::now() + Duration::from_secs(4);
        let wrong = thread::scope(|s| {
            s.spawn(|| {
                while !stop.load(Relaxed) {
                    // SAFETY: advice changes no content.
                    let done = unsafe { libc::madvise(start as *mut _, len, libc::MADV_COLD) };
                    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
                }
            });
            let mut others = (hot..pages).cycle();
            let mut wrong = None;
            while wrong.is_none() && Instant::now() < until {
                wrong = (0..hot).chain(others.by_ref().take(4)).find(|page| !right(page));
            }
            stop.store(true, Relaxed);
            wrong
        });
        eprintln!("{:?}: {} moves denied", pager.delivery(), pager.counters().moves_denied.get());
        assert_eq!(wrong, None, "a page is empty");
        assert_eq!(pager.counters().pages_vanished.get(), 0);
        pager.check();
    }
}

/// Sends the calling thread the signal that it would get for touching a missing page.
fn send_fault(addr: usize) {
    // SAFETY: all zeroes is a siginfo; the address of a fault is its first field behind the head, at 16. A signal to the thread
    // itself, which the pager's handler takes: it changes no content.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        (info.si_signo, info.si_code) = (libc::SIGBUS, libc::BUS_ADRERR);
        (&raw mut info).cast::<usize>().add(2).write(addr);
        let sent = libc::syscall(libc::SYS_rt_tgsigqueueinfo, libc::getpid(), libc::gettid(), libc::SIGBUS, &raw const info);
        assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
    }
}

fn fill(region: &mut Region) {
    for (i, word) in region.as_mut_slice_of::<u64>().iter_mut().enumerate() {
        *word = i as u64 + 1;
    }
}

#[test]
fn prefetch_brings_pages_in() {
    for pager in both() {
        let mut region = pager.region(24 * MIB).expect("24 MiB");
        let c = pager.counters();
        let start = Instant::now();
        // this is advice: if other programs keep the page daemon from freeing frames, few or no pages are read
        let (ops, read) = loop {
            fill(&mut region);
            let (ops, read) = (c.page_in_ops.get(), c.pages_in.get());
            region.prefetch(0..MIB);
            let (ops, read) = (c.page_in_ops.get() - ops, c.pages_in.get() - read);
            if read >= 100 || start.elapsed() > PATIENCE {
                break (ops, read);
            }
        };
        assert!(read >= 100 && ops <= read / 4, "{read} pages in {ops} reads");
        let hard = c.hard_faults.get();
        assert!(region.as_slice_of::<u64>()[..read as usize / 2 * 512].iter().enumerate().all(|(i, w)| *w == i as u64 + 1));
        let hard = c.hard_faults.get() - hard;
        assert!(hard <= read / 8, "{hard} hard faults on {read} pages that were read ahead");
        assert_budget(&pager, 2);
    }
}

#[test]
fn wired_pages_stay() {
    for pager in both() {
        let mut region = pager.region(32 * MIB).expect("32 MiB");
        fill(&mut region);
        let wired = region.wire(5 * PAGE + 7..MIB).expect("wired");
        let inner = region.wire(10 * PAGE..11 * PAGE).expect("wired twice");
        drop(wired);
        inner.keep();
        let wired = region.wire(MIB..2 * MIB).expect("wired");
        let sum: u64 = region.as_slice_of::<u64>().iter().step_by(512).sum(); // pushes everything else out
        assert!(sum > 0);
        // the kernel may now write to it and read from it without a fault
        let (faults, hard) = (pager.counters().soft_faults.get(), pager.counters().hard_faults.get());
        assert_eq!(wired[..8], (MIB as u64 / 8 + 1).to_ne_bytes());
        assert!(wired.chunks(8).enumerate().all(|(i, w)| w == ((MIB / 8 + i) as u64 + 1).to_ne_bytes()));
        assert_eq!(region[10 * PAGE..10 * PAGE + 8], (10 * 512u64 + 1).to_ne_bytes());
        assert_eq!((pager.counters().soft_faults.get(), pager.counters().hard_faults.get()), (faults, hard));
        let mut out = std::fs::File::create("/dev/null").expect("/dev/null");
        out.write_all(&wired).expect("a system call on wired memory");
        drop(wired);
        assert!(matches!(region.discard(9 * PAGE..12 * PAGE), Err(Error::IsWired)));
        region.unwire(..);
        region.discard(9 * PAGE..12 * PAGE).expect("nothing is wired");
        assert!(matches!(region.wire(..), Err(Error::WiredTooMuch { .. })));
        let all = region.wire(0..4 * MIB - 64 * PAGE).expect("all but half of the budget");
        drop(all);
        assert_budget(&pager, 1);
        drop(region);
        pager.check();
    }
}

/// A program that had wired half of the budget, as it may, could transfer nothing. Of many threads that did so at once, some were
/// refused.
#[test]
fn transfers_find_room_where_all_that_may_be_wired_is_wired() {
    for pager in both() {
        let mut region = pager.region(24 * MIB).expect("24 MiB");
        fill(&mut region);
        let wired = region.wire(..4 * MIB).expect("half of the budget");
        let null = std::fs::File::create("/dev/null").expect("/dev/null");
        thread::scope(|s| {
            for t in 1..=20 {
                let (region, null) = (&region, &null);
                s.spawn(move || assert_eq!(region.write_at(null, t * MIB..(t + 1) * MIB, 0).expect("room"), MIB));
            }
        });
        drop(wired);
        assert!(region.wire(..4 * MIB).is_ok(), "all may be wired again");
    }
}

/// What the program had locked stayed as it was when it was discarded.
#[test]
fn discarded_content_is_gone_though_it_is_locked() {
    for pager in both() {
        let mut region = pager.region(MIB).expect("1 MiB");
        region.fill(7);
        // SAFETY: locks pages of the region. It may fail for want of memory, and counts for discards all the same.
        unsafe { libc::mlock(region.as_ptr().cast(), MIB / 2) };
        region.discard(PAGE..).expect("nothing is wired");
        assert!(region[..PAGE].iter().all(|b| *b == 7) && region[PAGE..].iter().all(|b| *b == 0));
    }
}

#[test]
fn discarded_content_is_gone_and_the_rest_is_not() {
    for pager in both() {
        let mut region = pager.region(24 * MIB + 100).expect("24 MiB");
        let (first, last) = (3 * MIB + 10, 20 * MIB + 4000);
        region.iter_mut().for_each(|b| *b = 7);
        region.advise(first..last, Advice::DontNeed).expect("nothing is wired");
        region.advise(24 * MIB - 5.., Advice::DontNeed).expect("nothing is wired");
        region.advise(5..9, Advice::DontNeed).expect("nothing is wired");
        let used = || pager.counters().swap_used_bytes.get() + pager.counters().memory_used_bytes.get();
        // (slots count while their space is given back to the file system, as in `comes_back_to`)
        wait_until(|| used() < 12 << 20, || format!("{} bytes are still used", used()));
        region.advise(.., Advice::WillNeed).expect("it is only advice");
        for (i, b) in region.iter().enumerate() {
            let gone = (first..last).contains(&i) || i >= 24 * MIB - 5 || (5..9).contains(&i);
            assert_eq!(*b, if gone { 0 } else { 7 }, "byte {i}");
        }
        assert_budget(&pager, 1);
    }
}

#[test]
fn files_are_read_and_written() {
    let path = std::env::temp_dir().join(format!("overspill-file-{}", std::process::id()));
    let file = std::fs::OpenOptions::new().create_new(true).read(true).write(true).open(&path).expect("a file");
    std::fs::remove_file(&path).expect("its name");
    for pager in both() {
        let mut from = pager.region(24 * MIB).expect("24 MiB");
        fill(&mut from);
        assert_eq!(from.write_at(&file, 100..20 * MIB, 5).expect("written"), 20 * MIB - 100);
        let mut to = pager.region(24 * MIB).expect("24 MiB");
        assert_eq!(to.read_at(&file, 1000..24 * MIB, 5).expect("read"), 20 * MIB - 100); // to the end of the file
        assert!(to[1000..1000 + 20 * MIB - 100] == from[100..20 * MIB]);
        assert!(from.read_at(std::fs::File::open("/").expect("a directory"), .., 0).is_err());
        assert_budget(&pager, 1);
    }
}

/// With in-thread delivery the kernel cannot wait for a page; with handler threads it can.
#[test]
fn system_calls_on_pages_that_are_out() {
    for pager in both() {
        let mut region = pager.region(24 * MIB).expect("24 MiB");
        fill(&mut region);
        let mut pipe = [0; 2];
        // SAFETY: writes two numbers.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        // SAFETY: the range is the region's; the kernel reads from it or answers EFAULT.
        let n = unsafe { libc::write(pipe[1], region.as_ptr().cast(), PAGE) };
        let errno = std::io::Error::last_os_error().raw_os_error();
        match pager.delivery() {
            Delivery::InThread => assert_eq!((n, errno), (-1, Some(libc::EFAULT))),
            Delivery::Threads => assert_eq!(n, PAGE as isize),
        }
        for fd in pipe {
            // SAFETY: ours.
            unsafe { libc::close(fd) };
        }
    }
}

#[test]
fn errno_is_left_alone() {
    let Some(pager) = build(Pager::builder().memory(BUDGET)) else { return };
    let mut region = pager.region(24 * MIB).expect("24 MiB");
    fill(&mut region);
    for page in (0..24 * MIB / PAGE).rev() {
        // SAFETY: this thread's errno.
        unsafe { *libc::__errno_location() = 4711 };
        let value = region.as_slice_of::<u64>()[page * 512];
        // SAFETY: as above.
        assert_eq!(unsafe { *libc::__errno_location() }, 4711);
        assert_eq!(value, page as u64 * 512 + 1);
    }
    assert!(pager.counters().hard_faults.get() > 0);
}

/// The program's own signal handlers may touch regions, whatever the interrupted thread was doing in the pager.
#[test]
fn signal_handlers_may_touch_regions() {
    use std::sync::atomic::{AtomicPtr, AtomicUsize};
    static WORDS: AtomicPtr<u64> = AtomicPtr::new(std::ptr::null_mut());
    static TICKS: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn tick(_: i32) {
        let n = TICKS.fetch_add(1, Relaxed);
        let words = WORDS.load(Relaxed);
        let page = Rng(n as u64).below(24 * MIB / PAGE);
        // SAFETY: the region lives until the ticking has ended; these words are only read.
        assert_eq!(unsafe { words.add(page * 512).read_volatile() }, page as u64 * 512 + 1);
    }
    for pager in both() {
        let mut region = pager.region(24 * MIB).expect("24 MiB");
        fill(&mut region);
        WORDS.store(region.as_mut_slice_of::<u64>().as_mut_ptr(), Relaxed);
        // SAFETY: a handler that only reads atomics and memory of the region. It goes to this thread, by its id.
        unsafe { libc::signal(libc::SIGUSR1, tick as *const () as usize) };
        let stop = AtomicBool::new(false);
        // SAFETY: asks for the thread's id.
        let me = unsafe { libc::pthread_self() };
        thread::scope(|s| {
            s.spawn(|| {
                while !stop.load(Relaxed) {
                    let before = TICKS.load(Relaxed);
                    // SAFETY: this thread outlives the scope, in which it is.
                    unsafe { libc::pthread_kill(me, libc::SIGUSR1) };
                    while TICKS.load(Relaxed) == before && !stop.load(Relaxed) {
                        thread::yield_now();
                    }
                    // not a synchronisation: the thread must get somewhere between two ticks, or it would only tick
                    thread::sleep(std::time::Duration::from_millis(1));
                }
            });
            let mut other = pager.region(16 * MIB).expect("16 MiB");
            let mut round = 0;
            while round < 30 || TICKS.load(Relaxed) <= 10 {
                round += 1;
                other.prefetch(..);
                drop(other.wire(0..MIB).expect("wired"));
                other.discard(MIB..2 * MIB).expect("nothing is wired");
                other.iter_mut().step_by(PAGE * 3).for_each(|b| *b = round as u8);
            }
            stop.store(true, Relaxed);
        });
        assert!(TICKS.swap(0, Relaxed) > 10);
        assert_budget(&pager, 2);
    }
}

/// All policies one after the other, under threads that read and write.
#[test]
fn the_policy_changes_meanwhile() {
    let Some(pager) = build(Pager::builder().memory(BUDGET)) else { return };
    let mut region = pager.region(4 * BUDGET as usize).expect("a region");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for part in region.chunks_mut(2 * BUDGET as usize) {
            let stop = &stop;
            scope.spawn(move || {
                for round in 0u8.. {
                    for page in part.chunks_mut(PAGE) {
                        assert!(page[7] == round && page[8] == round, "round {round}");
                        (page[7], page[8]) = (round.wrapping_add(1), round.wrapping_add(1));
                    }
                    if stop.load(Relaxed) {
                        break;
                    }
                }
            });
        }
        for name in overspill::POLICIES.iter().cycle().take(60) {
            pager.set_policy(name).expect("a policy");
            assert_eq!(pager.policy(), *name);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        stop.store(true, Relaxed);
    });
    assert!(matches!(pager.set_policy("best"), Err(Error::Policy(_))));
    assert_eq!(pager.counters().policy_changes.get(), 60);
    assert_budget(&pager, 2);
}

#[test]
fn what_cannot_be_had_is_said() {
    let say = |e: Error| e.to_string();
    assert!(say(Pager::builder().build().expect_err("no budget")).contains("no memory budget"));
    assert!(say(Pager::builder().memory(1 << 20).build().expect_err("small")).contains("8 MiB"));
    assert!(say(Pager::builder().memory(BUDGET).policy("best").build().expect_err("policy")).contains("use-once"));
    let e = Pager::builder().memory(BUDGET).swap("/no/such/place").build().expect_err("swap");
    assert!(std::error::Error::source(&e).is_some() && say(e).contains("/no/such/place"));
    let Some(pager) = build(Pager::builder().memory(BUDGET).regions_max(2).managed_max(64 << 20)) else { return };
    assert!(matches!(pager.region(0), Err(Error::RegionSize { .. })));
    assert!(matches!(pager.region(65 << 20), Err(Error::RegionSize { .. })));
    let one = pager.region(32 << 20).expect("half");
    assert!(matches!(pager.region(33 << 20), Err(Error::RegionSize { .. })));
    let _two = pager.region(1).expect("a byte");
    assert!(matches!(pager.region(1), Err(Error::TooManyRegions)));
    drop(one);
    pager.region(33 << 20).expect("there is room again");
}

/// The tables for stored pages were made for dense pages, but a region of a few pages takes as much room in them as one of sixteen.
/// When they were full, pages were written again and again, and the program waited for ever.
#[test]
fn many_small_regions() {
    let Some(pager) = build(Pager::builder().memory(BUDGET).regions_max(8000).managed_max(128 << 20)) else { return };
    let mut regions: Vec<_> = (0..8000).map(|_| pager.region(3 * PAGE).expect("a region")).collect();
    for (i, region) in regions.iter_mut().enumerate() {
        region.as_mut_slice_of::<u64>().iter_mut().step_by(512).for_each(|word| *word = i as u64 + 1);
    }
    for (i, region) in regions.iter_mut().enumerate() {
        assert!(region.as_mut_slice_of::<u64>().iter().step_by(512).all(|word| *word == i as u64 + 1), "region {i}");
    }
    assert!(pager.counters().hard_faults.get() > 8000);
    pager.check();
}

/// The tables are small compared with what they manage.
#[test]
fn metadata_is_small() {
    let Some(pager) = build(Pager::builder().memory(16 << 20)) else { return };
    let mut region = pager.region(256 * MIB).expect("256 MiB");
    region.iter_mut().step_by(PAGE).enumerate().for_each(|(i, b)| *b = i as u8 | 1);
    let bytes = pager.metadata_bytes();
    assert!(bytes < 256 * MIB as u64 / 100, "{bytes} bytes of tables for 256 MiB");
    assert_budget(&pager, 1);
}

/// Tables for which there was no address space ended the process. (A very large machine has it.)
#[test]
fn too_large_tables_are_an_error() {
    let builder = || Pager::builder().memory(BUDGET);
    for builder in [builder().managed_max(700 << 30), builder().managed_max(1 << 44), builder().regions_max(u16::MAX)] {
        assert!(matches!(builder.build(), Ok(_) | Err(Error::Resources(_) | Error::Userfaultfd(_))));
    }
}

/// Buffers took 2 % of a small budget all the time, and more with each CPU, though one thread that faults needs a few pages of
/// them.
#[test]
fn buffers_are_charged_while_they_are_used() {
    for pager in both() {
        let mut region = pager.region_of::<u64>(4 * MIB).expect("32 MiB");
        let buffers = || pager.counters().buffer_bytes.get();
        // (On a busy machine they may have been given back by the end of the work.)
        let at_work = thread::scope(|scope| {
            let work = scope.spawn(|| against_model(&mut region, 1, 2_000));
            let looks = core::iter::from_fn(|| {
                thread::sleep(Duration::from_millis(1));
                (!work.is_finished()).then(buffers)
            });
            looks.max().unwrap_or(0)
        });
        // The buffer of one write stays. Threads that serve themselves keep theirs: 16 pages, and three clusters.
        let kept = (8 + if pager.delivery() == Delivery::InThread { 16 + 3 * 8 } else { 0 }) * PAGE as u64;
        let until = Instant::now() + PATIENCE;
        while buffers() != kept && Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
        thread::sleep(Duration::from_millis(500));
        assert!(at_work > kept && buffers() == kept, "{:?}: {at_work} bytes at work, {} later", pager.delivery(), buffers());
        assert_budget(&pager, 1);
    }
}

/// The builder tried io_uring in the program's thread. Some milliseconds after that ring was dropped, the kernel woke the thread,
/// and what it waited in failed with EINTR.
#[test]
fn a_new_pager_interrupts_no_wait() {
    let pagers = both();
    assert_eq!(wait_in_vain(), Some(libc::EAGAIN), "{pagers:?}");
}

/// So did the end of a pager, for threads that had made its rings or read by them, and the end of a swapoff.
#[test]
fn neither_a_swapoff_nor_the_end_of_a_pager_interrupts_a_wait() {
    for pager in both() {
        let mut region = pager.region_of::<u64>(2 * MIB).expect("16 MiB");
        region.iter_mut().enumerate().for_each(|(n, word)| *word = n as u64 >> 9);
        assert!(region.iter().enumerate().all(|(n, word)| *word == n as u64 >> 9));
        let memory = overspill::device_spec::parse("compressed:size=32M".as_ref()).expect("a device");
        pager.swap_on(memory).expect("compressed memory");
        pager.swap_off(std::env::temp_dir()).expect("its pages are in memory");
        assert_eq!(wait_in_vain(), Some(libc::EAGAIN), "{pager:?}");
        drop(region);
        let name = format!("{pager:?}");
        drop(pager);
        assert_eq!(wait_in_vain(), Some(libc::EAGAIN), "{name}");
    }
}

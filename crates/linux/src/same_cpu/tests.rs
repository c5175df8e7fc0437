//! Tests of the same-CPU handler and of the handler that watches it.

use super::candidate::MESSAGES;
use super::*;
use crate::sys::futex_wake;
use crate::wake_policy::{ALONE, STANDBY};

/// The scheduling policy of a thread, as the kernel has it.
fn scheduling_of(tid: u32) -> i32 {
    // SAFETY: touches no memory.
    unsafe { libc::sched_getscheduler(tid as i32) }
}

/// Runs `with` with the id of a thread that does `first` and then is busy, or sleeps.
fn with_a_thread(awake: bool, first: impl FnOnce() + Send, with: impl FnOnce(u32)) {
    let (tid, ended) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            first();
            tid.store(sys::gettid(), Release);
            while ended.load(Acquire) == 0 {
                if !awake {
                    futex_wait(&ended, 0, 1_000_000_000);
                }
            }
        });
        while tid.load(Acquire) == 0 || !awake && sys::wants_cpu(tid.load(Acquire)) {
            std::thread::yield_now();
        }
        // the thread must end even if an assertion fails, because the scope waits for it
        let held = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| with(tid.load(Acquire))));
        ended.store(1, Release);
        futex_wake(&ended, 1);
        held.unwrap_or_else(|what| std::panic::resume_unwind(what));
    });
}

/// Whether a handler may be the same-CPU handler here.
fn able(test: &str) -> bool {
    let able = sys::may_be_ordinary_again();
    if !able {
        println!("NOT RUN: {test}: needs CAP_SYS_NICE");
        assert!(std::env::var_os("CI").is_none());
    }
    able
}

/// A thread that gives way to others may get no CPU for a second, and threads that wait for it wait as long. So it must be
/// found and made an ordinary thread. (Here the thread runs and makes no progress: a test cannot take the CPU away for so
/// long.)
#[test]
fn a_handler_that_does_not_get_on_is_made_ordinary() {
    if !able("a_handler_that_does_not_get_on_is_made_ordinary") {
        return;
    }
    let (policy, anywhere) = (WakePolicy::default(), sys::allowed_cpus());
    (0..=ALONE).for_each(|_| policy.note(7, Some(0)));
    with_a_thread(
        true,
        || sys::give_way(0, true),
        |tid| {
            // `done` as far as faults go that have been read, and perhaps a message that it does not read
            let starve = |policy: &WakePolicy, done: bool, readable: bool| {
                let before = policy.poller();
                assert!(policy.begin(tid));
                let seen = policy.poller();
                assert!(seen != before && WakePolicy::polls(seen, Some(0)) && !WakePolicy::polls(seen, Some(1)));
                assert!(!policy.wait(before, || true), "whoever was about to wait looks again");
                sys::give_way(tid, true);
                assert_eq!(scheduling_of(tid), libc::SCHED_IDLE);
                if done {
                    policy.served();
                }
                policy.same_cpu.cpu.store(1, Relaxed);
                let has_work = !done || policy.same_cpu.waiting.load(Relaxed) > 0;
                assert_eq!(policy.wait(seen, || readable), readable || has_work);
                assert_eq!((scheduling_of(tid), policy.same_cpu.handler.load(Acquire)), (libc::SCHED_OTHER, 0));
                assert_eq!(sys::allowed_cpus(), anywhere, "who watched stays off that CPU no longer");
            };
            starve(&policy, true, true);
            assert!(!policy.begin(tid), "not at once again");
            // no message waits, but it is in the middle of something, and perhaps holds a lock
            policy.same_cpu.again.store(0, Relaxed);
            starve(&policy, false, false);
            let pause = policy.same_cpu.pause.load(Relaxed);
            assert!(PAUSE_NS.contains(&pause));
            // it did not even get the CPU to begin: it ends, and does not count as one that had to
            policy.same_cpu.again.store(0, Relaxed);
            assert!(policy.begin(tid) && !policy.wait(policy.poller(), || true));
            assert_eq!(policy.same_cpu.handler.load(Acquire), 0);
            // it has served one thread, which computes, and another waits for a read
            policy.same_cpu.again.store(0, Relaxed);
            policy.waits(1);
            starve(&policy, true, false);
            policy.waits(-1);
            let pause = policy.same_cpu.pause.load(Relaxed);
            // nothing to do at all: it ends, and there is no pause
            policy.same_cpu.again.store(0, Relaxed);
            starve(&policy, true, false);
            assert_eq!((policy.same_cpu.again.load(Relaxed), policy.same_cpu.pause.load(Relaxed)), (0, pause));
            // all handlers poll from now on, so none watches
            for everyone in
                [|policy: &WakePolicy| [8, 9].iter().for_each(|tid| policy.note(*tid, Some(0))), WakePolicy::call_everyone]
            {
                assert!(policy.begin(tid));
                sys::give_way(tid, true);
                everyone(&policy);
                assert!(WakePolicy::binds(policy.poller()));
                assert_eq!((scheduling_of(tid), policy.same_cpu.handler.load(Acquire)), (libc::SCHED_OTHER, 0));
                (0..=ALONE).for_each(|_| policy.note(7, Some(0)));
            }
        },
    );
    // a handler that waited more than two milliseconds for a device or a frame was mistaken for one that did not get the CPU
    with_a_thread(
        false,
        || sys::give_way(0, true),
        |tid| {
            assert!(policy.begin(tid));
            let looks = core::cell::Cell::new(0);
            let waits = || looks.replace(looks.get() + 1) < 10;
            policy.served();
            assert!(!policy.wait(policy.poller(), waits), "it sleeps while a message waits, and then there is none any more");
            assert_eq!((policy.same_cpu.again.load(Relaxed), looks.get() > 10), (0, true));
        },
    );
}

/// Handlers that may not return from SCHED_IDLE could not be same-CPU handlers: without root, and in servers that give it up,
/// each fault woke threads across CPUs. The standby handler is in their place. If it gets no CPU, the others take over.
#[test]
fn the_standby_handler_is_in_the_place_of_those_that_have_no_right() {
    let (policy, anywhere) = (WakePolicy::default(), sys::allowed_cpus());
    let polls = |cpu| WakePolicy::polls(policy.poller(), Some(cpu));
    let thread = sys::gettid();
    let mut ordinary = Candidate::here(&policy, false);
    ordinary.may = false;
    let messages = |ordinary: &mut Candidate| {
        for _ in 0..MESSAGES {
            policy.note(thread, Some(0));
            ordinary.note(thread);
        }
        let alone = polls(0) && !WakePolicy::binds(policy.poller());
        assert!(!ordinary.decide(&policy, alone, &anywhere) && !ordinary.is_on());
    };
    messages(&mut ordinary);
    messages(&mut ordinary);
    assert!(polls(0) && !polls(STANDBY), "there is none");
    std::thread::scope(|scope| {
        let standby = scope.spawn(|| {
            let mut standby = Candidate::here(&policy, true);
            messages(&mut ordinary);
            assert!(polls(STANDBY) && !polls(0) && !polls(1));
            assert!(standby.decide(&policy, true, &anywhere) && standby.is_on());
            assert_eq!(scheduling_of(0), libc::SCHED_IDLE);
            let cpu = sys::cpu_of(thread).expect("its CPU");
            assert_eq!(sys::allowed_cpus(), sys::only_cpu(cpu));
            (0..2 * ALONE).for_each(|_| policy.note(thread, Some(STANDBY)));
            assert!(polls(STANDBY), "one thread faults");
            policy.end(true);
            assert!(!polls(STANDBY) && polls(0) && polls(1));
            let others = sys::without_cpu(anywhere, cpu);
            let one = sys::count_cpus(&anywhere) == 1;
            assert!(one || sys::allowed_cpus() == others, "what it has in hand it finishes elsewhere");
            (0..2 * ALONE).for_each(|_| policy.note(thread, Some(STANDBY)));
            assert!(!polls(STANDBY), "by faults that it has read before");
            assert!(!standby.decide(&policy, false, &anywhere) && !standby.is_on());
            assert_eq!(sys::allowed_cpus(), anywhere);
            messages(&mut ordinary);
            messages(&mut ordinary);
            assert!(polls(0) && !polls(STANDBY), "not at once again");
            let again = policy.same_cpu.again.load(Relaxed) - sys::now_ns();
            assert!((1..=STANDBY_PAUSES).contains(&again.div_ceil(*PAUSE_NS.start())), "{again} ns");
            policy.same_cpu.again.store(0, Relaxed);
            policy.same_cpu.several.store(true, Relaxed);
            policy.daemon_works(true);
            messages(&mut ordinary);
            assert!(polls(0), "the page daemon would end it at once");
            policy.daemon_works(false);
            for end in [WakePolicy::call_everyone, WakePolicy::freezes, |policy: &WakePolicy| {
                policy.same_cpu.several.store(true, Relaxed);
                policy.daemon_works(true);
                policy.daemon_works(false);
            }] {
                messages(&mut ordinary);
                messages(&mut ordinary);
                assert!(polls(STANDBY));
                end(&policy);
                assert!(!polls(STANDBY) && polls(0) && policy.same_cpu.handler.load(Acquire) == 0);
            }
            // others have begun to poll before it did
            policy.same_cpu.handler.store(standby.handler, Release);
            assert!(!standby.decide(&policy, false, &anywhere) && policy.same_cpu.handler.load(Acquire) == 0);
        });
        standby.join().expect("it is right");
    });
}

/// A handler of several threads that began while the page daemon worked was not told, got no CPU, and was ended with a pause.
#[test]
fn the_page_daemon_gets_by_with_a_handler_of_several_threads() {
    if !able("the_page_daemon_gets_by_with_a_handler_of_several_threads") {
        return;
    }
    let policy = WakePolicy::default();
    let candidate = Candidate::here(&policy, false);
    (0..=ALONE).for_each(|_| policy.note(7, Some(0)));
    for several in [false, true] {
        policy.daemon_works(true);
        assert!(policy.begin(candidate.handler) && candidate.gives_way(&policy));
        policy.same_cpu.several.store(several, Relaxed);
        assert_eq!(scheduling_of(0), libc::SCHED_IDLE);
        let expected = if several { libc::SCHED_OTHER } else { libc::SCHED_IDLE };
        policy.daemon_works(true);
        assert_eq!(scheduling_of(0), expected);
        assert!(candidate.gives_way(&policy));
        assert_eq!(scheduling_of(0), expected, "not before the page daemon sleeps");
        policy.end(false);
        assert_eq!(scheduling_of(0), libc::SCHED_OTHER);
    }
}

/// The handler goes to the CPU of the thread whose faults it serves, and stays there until somebody ends it.
#[test]
fn it_is_on_the_programs_cpu_until_it_is_ended() {
    let anywhere = sys::allowed_cpus();
    let cpus: Vec<usize> = sys::cpus_of(&anywhere).collect();
    for cpu in [cpus[0], cpus[cpus.len() - 1]] {
        let policy = WakePolicy::default();
        let mut candidate = Candidate::here(&policy, false);
        let messages = |candidate: &mut Candidate, of: u32| {
            (0..MESSAGES).for_each(|_| {
                policy.note(of, Some(0));
                candidate.note(of);
            });
            candidate.decide(&policy, !WakePolicy::binds(policy.poller()), &anywhere) && candidate.is_on()
        };
        with_a_thread(
            false,
            || sys::set_affinity(&sys::only_cpu(cpu)),
            |tid| {
                assert_eq!(sys::cpu_of(tid), Some(cpu));
                messages(&mut candidate, tid);
                if candidate.may {
                    assert!(messages(&mut candidate, tid));
                    assert_eq!(sys::allowed_cpus(), sys::only_cpu(cpu));
                    assert_eq!(scheduling_of(0), libc::SCHED_IDLE);
                    policy.end(false);
                    sys::give_way(0, false); // as its watcher does
                    assert!(messages(&mut candidate, tid), "it begins anew before it has noticed its end");
                    assert_eq!(scheduling_of(0), libc::SCHED_IDLE);
                }
                policy.end(false);
                assert!(!candidate.decide(&policy, true, &anywhere) && !candidate.is_on());
                assert_eq!(sys::allowed_cpus(), anywhere);
                assert_eq!(scheduling_of(0), libc::SCHED_OTHER);
            },
        );
    }
}

#[test]
fn a_thread_is_there_if_it_runs_on_that_cpu() {
    let policy = WakePolicy::default();
    assert!(!policy.is_here(), "there is none");
    let anywhere = sys::allowed_cpus();
    let cpu = sys::cpus_of(&anywhere).next().expect("this thread runs somewhere");
    sys::set_affinity(&sys::only_cpu(cpu));
    for (of, here) in [(cpu, true), (cpu + 1, false)] {
        policy.same_cpu.cpu.store(of as u32 + 1, Relaxed);
        assert_eq!(policy.is_here(), here);
    }
    sys::set_affinity(&anywhere);
}

/// On another CPU, the page daemon spent 60 % of its time on interrupts for the program's CPU: a hash of strings in three
/// quarters of its memory took 13.6 s instead of 10.3. The watcher must not be where the handler may not get on.
#[test]
fn the_page_daemon_stays_on_that_cpu_and_the_watcher_off_it() {
    let anywhere = sys::allowed_cpus();
    let cpu = sys::cpus_of(&anywhere).next().expect("this thread runs somewhere");
    let others = sys::without_cpu(anywhere, cpu);
    let others = if sys::count_cpus(&anywhere) > 1 { others } else { anywhere };
    for (make, there) in [(Stays::on as fn() -> Stays, sys::only_cpu(cpu)), (Stays::off, others)] {
        let (policy, mut stays) = (WakePolicy::default(), make());
        stays.update(&policy);
        assert_eq!(sys::allowed_cpus(), anywhere);
        policy.same_cpu.cpu.store(cpu as u32 + 1, Relaxed);
        stays.update(&policy);
        assert_eq!(sys::allowed_cpus(), there);
        policy.end(false);
        stays.update(&policy);
        assert_eq!(sys::allowed_cpus(), anywhere);
        policy.same_cpu.cpu.store(cpu as u32 + 1, Relaxed);
        stays.update(&policy);
        drop(stays);
        assert_eq!(sys::allowed_cpus(), anywhere);
    }
}

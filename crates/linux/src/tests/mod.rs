//! Tests of the machine on Linux's own memory.

mod compressed;
mod copy_out;
mod lock;
mod reader;

use crate::area;
use crate::daemon::Daemon;
use crate::device_spec;
use crate::family::sharing::Sharing;
use crate::io::Engine;
use crate::machine::{Delivery, Machine, Space};
use crate::ranges::{Flags, Kind, Range};
use crate::setup::{self, Options};
use crate::sys;
use core::sync::atomic::Ordering::SeqCst;
use overspill_machine::daemon::Step;
use overspill_machine::kernel::Event;
use overspill_machine::remaps::REMAPS_NS;
use overspill_vm::page::State;
use overspill_vm::status::Status;
use overspill_vm::types::PAGE_SIZE;

pub const LEN: usize = 4 * PAGE_SIZE;

/// A machine, if this system allows one, and the address of three ranges of `LEN` bytes.
pub fn machine(name: &str) -> Option<(Machine, usize)> {
    machine_with(name, Delivery::InThread)
}

/// The same with faults delivered in this way.
pub fn machine_with(name: &str, delivery: Delivery) -> Option<(Machine, usize)> {
    let place = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    let swap = [device_spec::parse(place.as_os_str()).expect("a place")];
    let status: &'static Status = Box::leak(Box::default());
    let options = Options {
        memory_bytes: 8 << 20,
        swap: &swap,
        policy: "fifo".parse().expect("a policy"),
        engine: crate::io::Engine::Psync,
        delivery,
        encrypt: false,
        load_control: false,
        follow_pointers: false,
        whole_program: true,
        pages_max: 1 << 20,
        objects_max: 1,
        ahead_pages_max: None,
        decisions_max: 0,
    };
    let machine = setup::machine(&options, status).inspect_err(|e| eprintln!("SKIPPED: {e}")).ok();
    assert!(machine.is_some() || std::env::var_os("CI").is_none(), "cannot be tested here");
    Some((machine?, area::map_anonymous(3 * LEN).expect("48 KiB") as usize))
}

/// New memory at this address, unless there is something.
pub fn map_at(at: usize, len: usize) -> Option<*mut u8> {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: replaces nothing.
    let mapped = unsafe { libc::mmap(at as *mut _, len, prot, flags | libc::MAP_FIXED_NOREPLACE, -1, 0) };
    (mapped as usize == at).then_some(mapped.cast())
}

/// The length of the managed range there, in pages, and the number of its pages that are active.
fn there(machine: &Machine, map: &Space, range: Range) -> (Option<u64>, usize) {
    let managed = map.ranges.overlap(range.start, range.end, Kind::Managed).map(|r| r.pages());
    let core = machine.core.lock();
    let pages = (0..4).filter(|i| core.vm.page(range.page(range.start + i * PAGE_SIZE)).state() == State::Active);
    (managed, pages.count())
}

/// One thread moves its pages from A to B. Before the kernel reports that A is unmapped, another thread's pages move there from C,
/// and that move is reported first. The pager took the later report for an unmapping of the second thread's pages, which then read
/// as zeroes.
#[test]
fn a_late_unmap_does_not_take_what_has_come_there_since() {
    let Some((machine, base)) = machine("late") else { return };
    // addresses count from the mapping: one object, whose pages are numbered from there
    let [a, b, c] = [0, 1, 2].map(|i| base + i * LEN);
    let range = |start| Range { start, end: start + LEN, ..Range { origin: base, ..Range::of_program(Flags::NONE) } };
    let mut map = machine.map.write();
    map.origins[0] = base;
    for (start, byte) in [(a, 1u8), (c, 3)] {
        // SAFETY: our own mapping.
        unsafe { core::ptr::write_bytes(start as *mut u8, byte, LEN) };
        machine.manage(&mut map, range(start));
    }
    let there = |map: &mut Space, start: usize| {
        machine.finish(map); // what several reports have left, in their order
        there(&machine, map, range(start))
    };
    // A page of a range that had found no room in the map was filled with zeroes, whatever it held.
    let known = |map: &Space| [a, b, c].map(|at| machine.is_known(map, at));
    assert_eq!(known(&map), [true, false, true]);
    map.ranges.remove(a, a + LEN, |_| {});
    assert_eq!(known(&map), [true, false, true]);
    assert!(map.ranges.insert(range(a)));
    let gone = (None, 0);
    assert_eq!((there(&mut map, a).1, there(&mut map, b), there(&mut map, c).1), (4, gone, 4));
    machine.follow(&mut map, Event::Remap(a, b, LEN));
    machine.follow(&mut map, Event::Remap(c, a, LEN));
    machine.follow(&mut map, Event::Unmap(a, a + LEN));
    assert_eq!((there(&mut map, a).1, there(&mut map, b).1, there(&mut map, c)), (4, 4, gone), "what came to A is there");
    machine.follow(&mut map, Event::Unmap(c, c + LEN));
    // a plain unmap may be overtaken as well
    machine.follow(&mut map, Event::Remap(a, b, LEN));
    assert_eq!((there(&mut map, a), there(&mut map, b).1), (gone, 4));
    machine.follow(&mut map, Event::Unmap(b, b + LEN));
    machine.follow(&mut map, Event::Unmap(a, a + LEN));
    assert_eq!(there(&mut map, b).1, 4);
    machine.follow(&mut map, Event::Unmap(b, b + LEN));
    assert_eq!(there(&mut map, b), gone);
    machine.core.lock().vm.check(1);
    drop(map);
    // SAFETY: nobody uses it any more.
    unsafe { area::unmap(base as *mut u8, 3 * LEN) };
}

/// The kernel gives the addresses of an unmapped region out again before it reports the unmapping. Until the pager knew, its page
/// daemon took pages of the memory that lay there by then, an allocator's or another pager's, and these read as zeroes.
#[test]
fn what_comes_to_a_regions_place_is_not_taken_with_it() {
    const AT: usize = 1 << 36; // which the kernel gives to nobody else of this process
    let Some((machine, _)) = machine_with("place", Delivery::Threads) else { return };
    let region = map_at(AT, LEN).expect("nothing is there");
    // SAFETY: our own mapping.
    unsafe { region.write_bytes(1, LEN) };
    let mut map = machine.map.write();
    map.origins[0] = AT;
    machine.manage(&mut map, Range { start: AT, end: AT + LEN, origin: AT, ..Range::of_program(Flags::NONE) });
    drop(map);
    std::thread::scope(|s| {
        // SAFETY: our own mapping, which nobody uses any more.
        let ends = s.spawn(|| machine.unmap_region(AT, AT + LEN, || unsafe { area::unmap(AT as *mut u8, LEN) }));
        let place = core::iter::repeat_with(|| map_at(AT, LEN)).flatten().next().expect("soon");
        // SAFETY: our own mapping.
        unsafe { place.write_bytes(2, LEN) };
        let mut daemon = Daemon::sharing(&machine, Engine::Psync, Sharing::default()).expect("a daemon");
        let limit = machine.core.lock().vm.limit();
        machine.core.lock().vm.charge(limit); // it takes what it can
        (0..100).for_each(|_| _ = daemon.step(&machine));
        machine.core.lock().vm.uncharge(limit);
        assert!(!ends.is_finished(), "the report is unread");
        // SAFETY: our own mapping.
        let intact = unsafe { core::slice::from_raw_parts(place, LEN) }.iter().all(|byte| *byte == 2);
        while !ends.is_finished() {
            machine.read_messages(|_, _| {});
        }
        assert!(intact, "memory that is not the pager's");
        // SAFETY: nobody uses it any more.
        unsafe { area::unmap(place, LEN) };
    });
}

/// The kernel unmaps no part of a mapping if the process has as many mappings as it may have, nor what the program has sealed. A
/// region that stayed for that reason kept its pages, and the next one with its number read what they held.
#[test]
fn a_region_that_cannot_be_unmapped_is_given_up() {
    for delivery in [Delivery::InThread, Delivery::Threads] {
        let Some((machine, base)) = machine_with("stays", delivery) else { return };
        let range = Range { start: base, end: base + LEN, origin: base, ..Range::of_program(Flags::NONE) };
        machine.map.write().origins[0] = base;
        // SAFETY: our own mapping.
        unsafe { core::ptr::write_bytes(base as *mut u8, 1, LEN) };
        machine.manage(&mut machine.map.write(), range);
        assert_eq!(there(&machine, &machine.map.read(), range), (Some(4), 4));
        machine.unmap_region(base, base + LEN, || ());
        assert_eq!(there(&machine, &machine.map.read(), range), (None, 0));
        assert!(!machine.is_known(&machine.map.read(), base));
        drop(machine); // or else an event would have to be read
        // SAFETY: nobody uses it any more.
        unsafe { area::unmap(base as *mut u8, 3 * LEN) };
    }
}

/// The kernel refused a call after it had reported its unmapping, and another thread had unmapped a part of the range in between.
/// The pager gave up the whole range, and pages that were out in the rest of it read as zeroes.
#[test]
fn after_a_refused_call_only_what_is_not_mapped_is_given_up() {
    let Some((machine, base)) = machine("holes") else { return };
    let range = |start, end| Range { start, end, ..Range { origin: base, ..Range::of_program(Flags::NONE) } };
    let mut map = machine.map.write();
    map.origins[0] = base;
    // SAFETY: our own mapping.
    unsafe { core::ptr::write_bytes(base as *mut u8, 1, 3 * LEN) };
    machine.manage(&mut map, range(base, base + 3 * LEN));
    // SAFETY: nobody uses it any more.
    unsafe { area::unmap((base + LEN) as *mut u8, LEN) };
    machine.follow_unmap(&mut map, base, base + 3 * LEN, true, None);
    machine.finish(&mut map);
    let there = [0, 1, 2].map(|i| there(&machine, &map, range(base + i * LEN, base + (i + 1) * LEN)));
    assert_eq!(there, [(Some(4), 4), (None, 0), (Some(4), 4)]);
    drop(map);
    for at in [base, base + 2 * LEN] {
        // SAFETY: nobody uses it any more.
        unsafe { area::unmap(at as *mut u8, LEN) };
    }
}

/// The kernel put guard pages into a part of the range, and refused the rest. The whole range was kept as it was for two seconds:
/// threads that touched a page in the rest read it from the device again and again.
#[test]
fn guard_pages_that_are_refused_in_part_are_done() {
    let Some((machine, base)) = machine("guards-in-part") else { return };
    let range = Range { start: base, end: base + 3 * LEN, origin: base, ..Range::of_program(Flags::NONE) };
    {
        let mut map = machine.map.write();
        map.origins[0] = base;
        machine.manage(&mut map, range);
    }
    for before in [false, true] {
        assert_eq!(machine.begin_guard(base, base + 3 * LEN), Some(before));
        assert!(machine.map.read().discards.covers(base + 2 * LEN, sys::now_ns));
        machine.guarded(base, base + LEN, base + 3 * LEN, before);
        let map = machine.map.read();
        assert!(map.discards.is_empty(sys::now_ns));
        let guards = [0, 1, 2].map(|i| map.ranges.find(base + i * LEN).is_some_and(|range| range.flags.has(Flags::GUARDED)));
        assert_eq!(guards, [true, before, before]);
    }
    // SAFETY: nobody uses it any more.
    unsafe { area::unmap(base as *mut u8, 3 * LEN) };
}

/// The last pages of the budget are for soft faults. If the page daemon took them for room, it would sleep though nothing can be
/// evicted, and a first touch would wait for ever.
#[test]
fn room_for_soft_faults_alone_is_no_room() {
    let Some((machine, _)) = machine("room") else { return };
    let mut daemon = Daemon::sharing(&machine, Engine::Psync, Sharing::default()).expect("a daemon");
    assert_eq!(daemon.step_of(&machine, 64), Step::Idle);
    let mut core = machine.core.lock();
    let free = core.vm.available();
    core.vm.charge(free - 5);
    assert_eq!((core.vm.available(), core.vm.room()), (5, 0));
    drop(core);
    assert_eq!(daemon.step_of(&machine, 64), Step::Stuck);
}

/// A fork happened in the middle of another thread's mremap. The child's pager knew nothing at the new addresses, and the child
/// found zeroes.
#[test]
fn a_fork_waits_for_calls_that_move_memory() {
    let Some((machine, base)) = machine("forks") else { return };
    let range = Range { start: base, end: base + LEN, ..Range { origin: base, ..Range::of_program(Flags::NONE) } };
    machine.map.write().origins[0] = base;
    machine.manage(&mut machine.map.write(), range);
    let begin = || {
        while machine.begin_remap([(base, base + LEN), (0, 0)], 0).is_none() {
            machine.await_others();
        }
    };
    let flag = || std::sync::atomic::AtomicBool::new(false);
    let (ended, begun, machine) = (flag(), flag(), &machine);
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|s| {
        s.spawn(|| {
            assert!(machine.begin_parts());
            begin();
            tell.send(()).expect("heard");
            machine.end_remap(true);
            begin(); // goes on, although a fork is under way
            ended.store(true, SeqCst);
            machine.end_remap(true);
            machine.end_parts();
        });
        told.recv().expect("told");
        machine.await_remaps();
        assert!(ended.load(SeqCst), "the call and its parts have been made");
        // (a waiting call held a stack that ending calls need, and with more threads than stacks a fork took a second)
        let refused = s.spawn(|| (machine.begin_remap([(base, base + LEN), (0, 0)], 0), machine.begin_parts()));
        assert_eq!(refused.join().expect("it does not wait"), (None, false));
        let other = s.spawn(|| {
            begin();
            begun.store(true, SeqCst); // and never ends: its thread has jumped out
        });
        assert!(!begun.load(SeqCst), "who has not begun waits for the fork");
        machine.forked();
        other.join().expect("it begins then");
    });
    machine.await_remaps();
    machine.forked();
    let start = sys::now_ns();
    machine.await_remaps();
    machine.forked();
    assert!(sys::now_ns() - start < REMAPS_NS / 2, "it is waited for once");
    // SAFETY: nobody uses it any more.
    unsafe { area::unmap(base as *mut u8, 3 * LEN) };
}

/// A process that was stopped for a second while it forked (SIGSTOP) did not wait any longer for its threads that moved memory. The
/// child was forked when memory had been moved and the report was unread. It found zeroes in place of what was paged out.
#[test]
fn a_fork_does_not_wait_for_less_after_a_stop() {
    let stopped = "OVERSPILL_TEST_STOPPED";
    if std::env::var_os(stopped).is_some() {
        return fork_that_is_stopped();
    }
    let test = "tests::a_fork_does_not_wait_for_less_after_a_stop";
    let mut child = std::process::Command::new(std::env::current_exe().expect("its path"));
    let mut child = child.args([test, "--exact", "--nocapture"]).env(stopped, "1").spawn().expect("it starts");
    let pid = child.id() as i32;
    let is_stopped = || std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") T "));
    let ended = loop {
        if let Some(ended) = child.try_wait().expect("our child") {
            break ended; // the test cannot be run
        }
        if is_stopped() {
            std::thread::sleep(std::time::Duration::from_nanos(REMAPS_NS + REMAPS_NS / 2)); // it is stopped for so long
            // SAFETY: a child that has not been waited for.
            assert_eq!(unsafe { libc::kill(pid, libc::SIGCONT) }, 0);
            break child.wait().expect("our child");
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    };
    assert!(ended.success(), "its part of the test: {ended}");
}

fn fork_that_is_stopped() {
    let Some((machine, base)) = machine("stopped") else { return };
    let range = Range { start: base, end: base + LEN, ..Range { origin: base, ..Range::of_program(Flags::NONE) } };
    machine.map.write().origins[0] = base;
    machine.manage(&mut machine.map.write(), range);
    let (ended, machine) = (std::sync::atomic::AtomicBool::new(false), &machine);
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|s| {
        s.spawn(|| {
            assert_eq!(machine.begin_remap([(base, base + LEN), (0, 0)], 0), Some(true));
            tell.send(()).expect("heard");
            // until a fork is about to happen
            while s.spawn(|| machine.begin_parts().then(|| machine.end_parts())).join().expect("it ends").is_some() {}
            // SAFETY: stops this process, until its parent has it go on.
            assert_eq!(unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) }, 0);
            std::thread::sleep(std::time::Duration::from_millis(100)); // the call takes so long
            ended.store(true, SeqCst);
            machine.end_remap(true);
        });
        told.recv().expect("told");
        machine.await_remaps();
        assert!(ended.load(SeqCst), "the call was waited for");
        machine.forked();
    });
}

/// A managed range moved onto a native one. No event reports the end of a native range, so the map found two ranges at the same
/// place and stopped the program. And the kernel reports an unmap of the whole range of a call, also where another mapping is by
/// then.
#[test]
fn what_was_left_to_the_kernel_has_no_events() {
    let Some((machine, base)) = machine("native") else { return };
    let [a, b, c] = [0, 1, 2].map(|i| base + i * LEN);
    let range = |start| Range { start, end: start + LEN, ..Range { origin: base, ..Range::of_program(Flags::WIPE) } };
    let mut map = machine.map.write();
    // SAFETY: our own mapping.
    unsafe { core::ptr::write_bytes(base as *mut u8, 1, 2 * LEN) };
    machine.manage(&mut map, range(a));
    assert!(machine.reserve_native(&mut map, Range { kind: Kind::Native, ..range(b) }));
    assert_eq!(machine.core.lock().vm.reserved(), 4);
    machine.follow(&mut map, Event::Remap(a, b, LEN));
    machine.finish(&mut map);
    assert_eq!((there(&machine, &map, range(a)), there(&machine, &map, range(b))), ((None, 0), (Some(4), 4)));
    assert_eq!(map.ranges.find(b).map(|r| r.flags), Some(Flags::WIPE), "they move along");
    assert_eq!(machine.core.lock().vm.reserved(), 0);
    machine.follow(&mut map, Event::Unmap(a, a + LEN));
    // all three, and then C is mapped again
    assert!(machine.reserve_native(&mut map, Range { kind: Kind::Native, ..range(c) }));
    machine.follow(&mut map, Event::Unmap(a, c + LEN));
    assert_eq!(map.ranges.first(a, c + LEN).map(|r| (r.start, r.kind)), Some((c, Kind::Native)));
    assert_eq!(machine.core.lock().vm.reserved(), 4);
    // a new mapping over a known range proves that the range has gone
    machine.manage(&mut map, range(a));
    drop(map);
    machine.await_unmaps(a, a + LEN);
    let mut map = machine.map.write();
    assert_eq!(there(&machine, &map, range(a)), (None, 0));
    // memory that the map did not know moves, too
    machine.follow(&mut map, Event::Remap(a, b, LEN));
    assert!(map.ranges.find(b).is_some_and(|r| r.kind == Kind::Managed));
    machine.finish(&mut map);
    machine.core.lock().vm.check(1);
    drop(map);
    // SAFETY: nobody uses it any more.
    unsafe { area::unmap(base as *mut u8, 3 * LEN) };
}

//! Page-in.

use super::{LEN, machine, machine_with, map_at};
use crate::area;
use crate::daemon::Daemon;
use crate::family::sharing::Sharing;
use crate::io::Engine;
use crate::kernel::Linux;
use crate::lock::times_taken;
use crate::machine::{Delivery, Machine, Served};
use crate::ranges::{Flags, Range};
use crate::reader::{CLUSTERS, Reader};
use crate::sys;
use overspill_machine::handler::Handler;
use overspill_machine::kernel::{Io as _, Kernel as _, Uffd as _};
use overspill_vm::page::State;
use overspill_vm::types::PAGE_SIZE;

/// Serves a touch of a page that must be read, to the end. Returns how often `core` and `map` were taken.
fn hard_fault(machine: &Machine, reader: &mut Reader, addr: usize) -> (u32, u32) {
    let before = (times_taken(machine.core.word()), times_taken(machine.map.word()));
    let Served::Read(read) = machine.serve(addr, 0, false) else { panic!("it is in memory") };
    reader.start(machine, read);
    while reader.in_flight() > 0 {
        reader.io.wait(None);
        while let Some(done) = reader.io.completion() {
            reader.finish(machine, done);
        }
    }
    (times_taken(machine.core.word()) - before.0, times_taken(machine.map.word()) - before.1)
}

/// Manages the three ranges, fills all pages with sevens, and pages them out. Returns the range.
fn paged_out(machine: &Machine, base: usize) -> Range {
    let pages = 3 * LEN / PAGE_SIZE;
    let range = Range { start: base, end: base + 3 * LEN, origin: base, ..Range::of_program(Flags::NONE) };
    {
        let mut map = machine.map.write();
        map.origins[0] = base;
        machine.manage(&mut map, range);
    }
    for addr in (0..pages).map(|i| base + i * PAGE_SIZE) {
        machine.serve(addr, 0, false);
        // SAFETY: our own mapping, and the page is there.
        unsafe { core::ptr::write_bytes(addr as *mut u8, 7, PAGE_SIZE) };
    }
    let (mut daemon, limit) =
        (Daemon::sharing(machine, Engine::Psync, Sharing::default()).expect("a daemon"), machine.core.lock().vm.limit());
    machine.core.lock().vm.charge(limit);
    while !(0..pages).all(|i| machine.core.lock().vm.page(range.page(base + i * PAGE_SIZE)).state() == State::PagedOut) {
        daemon.step(machine);
    }
    machine.core.lock().vm.uncharge(limit);
    range
}

/// While a thread discards one piece of memory after the other, the kernel refuses nearly every fill. A page that had arrived was
/// thrown away then, and its thread was told to look again, so that the page was read again: up to nine times for one fault.
#[test]
fn a_page_that_arrives_while_a_call_is_under_way_is_read_once() {
    let Some((machine, base)) = machine_with("refused", Delivery::Threads) else { return };
    let range = paged_out(&machine, base);
    let mut handler = Handler::<Linux>::new(Engine::Psync, 8).expect("a handler");
    let discards = std::thread::spawn(move || {
        // SAFETY: our own mapping, whose last page nobody needs.
        unsafe { sys::syscall6(libc::SYS_madvise, base + 3 * LEN - PAGE_SIZE, PAGE_SIZE, libc::MADV_DONTNEED as usize, 0, 0, 0) }
    });
    while !machine.map.read().program.is_changing() {
        std::thread::yield_now();
    }
    let Served::Read(read) = machine.serve(base, 0, false) else { panic!("it is in memory") };
    handler.reader.start(&machine, read);
    handler.reap(&machine, |_| {});
    let state = || machine.core.lock().vm.page(range.page(base)).state();
    assert!(handler.is_refused() && state() == State::Inactive);
    handler.retry(&machine);
    assert!(handler.is_refused() && handler.waiting() == 1, "the call has not gone on");
    while !discards.is_finished() {
        handler.read_messages(&machine, |_, _| {});
        std::thread::yield_now();
    }
    handler.retry(&machine);
    assert_eq!((discards.join().ok(), state(), handler.waiting()), (Some(Ok(0)), State::Active, 0));
    // SAFETY: the page is there, and nobody writes it.
    assert_eq!(unsafe { *(base as *const [u8; PAGE_SIZE]) }, [7; PAGE_SIZE]);
    assert_eq!(machine.status.counters.pages_in.get(), 1);
}

/// The kernel fills pages of memory that is registered on any userfaultfd. A region ended while its page was being read, and
/// another pager's region came to its place before the report was followed: the page arrived there. So did zeroes for a fault that
/// was served late.
#[test]
fn what_is_late_does_not_come_to_another_pagers_memory() {
    const AT: usize = 1 << 37; // which the kernel gives to nobody else of this process
    let (Some((mut machine, _)), Some((other, _))) =
        (machine_with("late-read", Delivery::Threads), machine_with("others", Delivery::Threads))
    else {
        return;
    };
    machine.config.finds_grown = false; // it has regions
    map_at(AT, 3 * LEN).expect("nothing is there");
    paged_out(&machine, AT);
    let mut reader = Reader::new(Engine::Psync, 8).expect("a reader");
    let Served::Read(read) = machine.serve(AT, 0, false) else { panic!("it is in memory") };
    reader.start(&machine, read);
    let (tell, told) = std::sync::mpsc::channel();
    let (go, gone) = std::sync::mpsc::channel();
    std::thread::scope(|s| {
        let (machine, other) = (&machine, &other);
        let ends = s.spawn(move || {
            machine.unmap_region(AT, AT + 3 * LEN, || {
                // SAFETY: nobody uses it any more.
                unsafe { area::unmap(AT as *mut u8, 3 * LEN) };
                map_at(AT, 3 * LEN).expect("nothing is there");
                let mut map = other.map.write();
                map.origins[0] = AT;
                let range = Range { start: AT, end: AT + 3 * LEN, origin: AT, ..Range::of_program(Flags::NONE) };
                other.manage(&mut map, range);
                drop(map);
                tell.send(()).expect("heard");
                gone.recv().expect("told");
            });
        });
        while told.try_recv().is_err() {
            machine.read_messages(|_, _| {});
        }
        while let Some(done) = reader.io.completion() {
            reader.finish(machine, done);
        }
        machine.serve_unmanaged(AT + PAGE_SIZE);
        let filled = [0, 1].map(|page| Linux::is_resident(AT + page * PAGE_SIZE));
        go.send(()).expect("heard");
        ends.join().expect("no panic");
        assert_eq!(filled, [false; 2]);
    });
    drop((machine, other));
    // SAFETY: nobody uses it any more.
    unsafe { area::unmap(AT as *mut u8, 3 * LEN) };
}

/// In-thread, a thread that touches a page that is still to be given up does a step of that. It was taken for an error of the
/// program's, and ended it.
#[test]
fn who_touches_what_is_still_to_be_given_up_does_that_first() {
    let Some((machine, base)) = machine("behind") else { return };
    paged_out(&machine, base);
    machine.forget_range(&mut machine.map.write(), base, base + LEN);
    assert_eq!(machine.serve(base, 0, false), Served::NotOurs);
    assert!(machine.step_behind(base) && !machine.step_behind(base));
    assert_eq!(machine.serve(base, 0, false), Served::Done);
    // SAFETY: the page is there, and nobody writes it.
    assert_eq!(unsafe { *(base as *const [u8; PAGE_SIZE]) }, [0; PAGE_SIZE]);
    // SAFETY: nobody uses it any more.
    unsafe { area::unmap(base as *mut u8, 3 * LEN) };
}

/// A handler whose buffers were all in use finished other reads before it did anything else. And the buffer of a window that had
/// ended was taken by the next one, if its reader was there already: a window that waited for a buffer waited until no reader did.
#[test]
fn who_waits_for_a_buffer_comes_before_the_next_windows() {
    let Some((machine, base)) = machine("waits-for-a-buffer") else { return };
    let range = paged_out(&machine, base);
    let window = |first: usize| {
        let map = machine.map.read();
        let page = range.page(base + first * PAGE_SIZE);
        let op = machine.core.lock().vm.prefetch(page, 2, range.bounds());
        map.read_of(op.expect("two pages that are out"))
    };
    let out = || {
        let core = machine.core.lock();
        let is_out = |i: &usize| core.vm.page(range.page(base + i * PAGE_SIZE)).state() == State::PagedOut;
        (0..12).step_by(2).filter(is_out).collect::<Vec<_>>()
    };
    let mut reader = Reader::new(Engine::Psync, 2).expect("a reader");
    [0, 4, 6].into_iter().for_each(|first| reader.start(&machine, window(first)));
    assert_eq!(reader.in_flight(), CLUSTERS);
    assert!(matches!(machine.serve(base + PAGE_SIZE, 0, false), Served::Busy), "its reader waits");
    reader.start(&machine, window(8));
    assert_eq!((reader.in_flight(), out()), (CLUSTERS, vec![0, 2, 4, 6, 8, 10]), "who starts it does not wait");
    let mut order = Vec::new();
    while let Some(done) = reader.io.completion() {
        let before = out();
        reader.finish(&machine, done);
        order.extend(before.iter().filter(|i| !out().contains(i)));
    }
    assert_eq!((order, out()), (vec![0, 4, 6, 8, 2], vec![10]));
    // SAFETY: nobody uses it any more.
    unsafe { area::unmap(base as *mut u8, 3 * LEN) };
}

/// A fault that reads took `core` six times and `map` four times, because the machine asked the core for one fact after the other.
/// (Now it takes them three times and twice, and four times and twice for a window. The first use of a buffer takes `core` once
/// more.)
#[test]
fn a_hard_fault_takes_few_locks() {
    let Some((machine, base)) = machine("hard-fault") else { return };
    paged_out(&machine, base);
    let mut reader = Reader::new(Engine::Psync, 8).expect("a reader");
    let alone = hard_fault(&machine, &mut reader, base);
    let window = hard_fault(&machine, &mut reader, base + PAGE_SIZE);
    eprintln!("core and map: {alone:?} for a page alone, {window:?} for a window");
    // SAFETY: the page is there, and nobody writes it.
    assert_eq!(unsafe { *(base as *const [u8; PAGE_SIZE]) }, [7; PAGE_SIZE]);
    assert_eq!((alone, window), ((3 + 1, 2), (4 + 1, 2)));
    // SAFETY: nobody uses it any more.
    unsafe { area::unmap(base as *mut u8, 3 * LEN) };
}

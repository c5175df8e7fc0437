//! Page-in.

use super::{LEN, machine, machine_with};
use crate::area;
use crate::daemon::Daemon;
use crate::family::Sharing;
use crate::io::Engine;
use crate::kernel::Linux;
use crate::lock::times_taken;
use crate::machine::{Delivery, Machine, Served};
use crate::ranges::{Flags, Range};
use crate::reader::Reader;
use crate::sys;
use overspill_machine::handler::Handler;
use overspill_machine::kernel::{Io as _, Uffd as _};
use overspill_vm::page::State;
use overspill_vm::types::PAGE_SIZE;

/// Serves a touch of a page that must be read, to the end. Returns how often `core` and `map` were taken.
fn hard_fault(machine: &Machine, reader: &mut Reader, addr: usize) -> (u32, u32) {
    let before = (times_taken(machine.core.word()), times_taken(machine.map.word()));
    let Served::Read(read) = machine.serve(addr, 0) else { panic!("it is in memory") };
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
        machine.serve(addr, 0);
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
    let Served::Read(read) = machine.serve(base, 0) else { panic!("it is in memory") };
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

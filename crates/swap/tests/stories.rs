//! Bugs of the core that the simulation found, or that were found by reading the code because of it. Each test is the shortest
//! order of calls that shows the bug.
//!
//! If a fix is taken out, the simulation finds the bug again by itself; these tests explain it.

mod common;

use common::{Core, END, begin_read, page, state, touch};
use overspill_vm::page::State;
use overspill_vm::pager::{IoResult, Pager};
use overspill_vm::types::{FrameId, PageId, Slot, Tag};
use overspill_vm::{CLUSTER_PAGES_MAX, Compared, Destination, Fault, Filled, PageIn, Parked, Resident};

fn core(pages_max: u64) -> Core {
    common::core(pages_max, overspill_swap::Config { pages_max: 20_000, slots_max: 1000, devices_max: 1, extents_max: 0 })
}

/// Parks the next victim. Calls `outcome` while the page is busy.
fn park(vm: &mut Core, outcome: impl FnOnce(&mut Core, PageId) -> Parked) {
    let mut batch: Vec<Resident> = Vec::with_capacity(1);
    vm.park_batch(1, &mut batch);
    let parked = outcome(vm, batch[0].0);
    vm.park_done(batch[0].0, parked);
}

fn tag(page: PageId, content: u64) -> Tag {
    Tag::new(page, content.into(), 0)
}

/// Begins to write the oldest inactive page, which holds `content`.
fn begin_write(vm: &mut Core, content: u64) -> (PageId, Slot) {
    let mut batch = Vec::with_capacity(1);
    vm.launder_batch(1, &mut batch);
    let page = batch[0].page;
    assert_eq!(vm.launder_compared(page, false, tag(page, content)), Compared::Write);
    (page, vm.launder_slots(1, page).expect("there is room").first)
}

fn end_write(vm: &mut Core, (page, slot): (PageId, Slot), content: u64) {
    vm.launder_done(page, Some(slot), tag(page, content), IoResult::Ok);
}

/// Takes the frames of all clean pages.
fn reclaim(vm: &mut Core) {
    let mut batch: Vec<Resident> = Vec::with_capacity(64);
    vm.reclaim_batch(64, &mut batch);
    vm.frames_dropped(batch.iter().map(|m| m.1));
}

/// Pages a page with `content` out.
fn page_out(vm: &mut Core, index: u64, content: u64) {
    touch(vm, index);
    park(vm, |_, _| Parked::Yes);
    let write = begin_write(vm, content);
    end_write(vm, write, content);
    reclaim(vm);
    assert_eq!(state(vm, index), State::PagedOut);
}

/// Ends a read of one page with `content`. Returns where the page goes.
fn end_read(vm: &mut Core, op: &PageIn, content: u64) -> Destination {
    let mut places = [Destination::Discard; CLUSTER_PAGES_MAX];
    let compare = |i, expected| if tag(op.page(i), content) == expected { IoResult::Ok } else { IoResult::Corrupt };
    vm.page_in_arrived(op, 0..END, compare, &mut places);
    places[0]
}

/// A page was being written, was touched (a soft fault), changed, and parked again. The kernel refused its next soft fault, because
/// an event waited to be read, so the page stayed parked. The core put it back on the *laundry*, because a write of it was under
/// way. But that write had the older content. When it ended, the page counted as clean although its stored copy was outdated; its
/// frame was taken, and the change was lost.
#[test]
fn a_refused_restore_does_not_join_an_older_write() {
    let mut vm = core(1000);
    touch(&mut vm, 1);
    park(&mut vm, |_, _| Parked::Yes);
    let write = begin_write(&mut vm, 10);
    assert!(matches!(vm.fault(page(1), 0..END, false), Fault::Restore { .. }));
    vm.restore_done(page(1), Filled::Mapped);
    // ... the program writes 11 ...
    park(&mut vm, |_, _| Parked::Yes);
    assert!(matches!(vm.fault(page(1), 0..END, false), Fault::Restore { .. }));
    vm.restore_done(page(1), Filled::No);
    end_write(&mut vm, write, 10);
    assert_eq!(state(&vm, 1), State::Inactive, "what it holds has not been written");
    vm.check(1);
}

/// A page was unmapped while it was being read. It was busy and orphaned, so that the data would be thrown away when it arrived.
/// Before that, another page was moved to the address and inherited *busy* and *orphaned*. Faults on it waited, and when the read
/// arrived, the core threw away the page that had moved there, and its frame was lost.
#[test]
fn a_page_may_move_to_where_a_read_is_under_way() {
    let mut vm = core(1000);
    page_out(&mut vm, 1, 10);
    let op = begin_read(&mut vm, 1);
    touch(&mut vm, 2);
    vm.release_range(page(1), 1, |_: FrameId| panic!("it has no parked content"));
    assert!(vm.rename_range(page(2), page(1), 1));
    assert!(state(&vm, 1) == State::Active && !vm.page(page(1)).busy());
    assert_eq!(end_read(&mut vm, &op, 10), Destination::Discard);
    assert_eq!((state(&vm, 1), vm.used()), (State::Active, 1));
    vm.check(1);
}

/// The same, one step further: the page that has moved there is paged out and is being read itself. The core must not take the
/// older read for its own.
#[test]
fn two_reads_for_one_address_are_told_apart() {
    let mut vm = core(1000);
    page_out(&mut vm, 1, 10);
    page_out(&mut vm, 2, 20);
    let old = begin_read(&mut vm, 1);
    vm.release_range(page(1), 1, |_: FrameId| panic!("it has no parked content"));
    assert!(vm.rename_range(page(2), page(1), 1));
    let new = begin_read(&mut vm, 1);
    assert_eq!(end_read(&mut vm, &old, 10), Destination::Discard);
    assert_eq!(end_read(&mut vm, &new, 20), Destination::Map);
    vm.page_in_done(page(1), Filled::Mapped);
    vm.check(1);
}

/// A page was wired while it was being unmapped, and the kernel refused to unmap it. The core gave it back to the policy. But wired
/// pages must be on no list, and the next batch found it there.
#[test]
fn a_page_wired_while_it_is_being_parked() {
    let mut vm = core(1000);
    touch(&mut vm, 1);
    park(&mut vm, |vm, page| {
        assert!(vm.wire(page, true));
        Parked::Refused
    });
    vm.check(1);
    let mut batch: Vec<Resident> = Vec::with_capacity(8);
    vm.park_batch(8, &mut batch);
    assert!(batch.is_empty());
    // ... and if it turns out that the program had discarded it, it is wired still
    assert!(vm.wire(page(1), false));
    park(&mut vm, |vm, page| {
        assert!(vm.wire(page, true));
        Parked::Absent
    });
    assert!(vm.page(page(1)).wired() && state(&vm, 1) == State::Untouched);
    vm.check(1);
}

/// Between two moves the daemon gives way to threads that wait for the map lock, so pages of its batch may go meanwhile.
#[test]
fn pages_of_a_batch_are_released_and_moved() {
    let mut vm = core(1000);
    (1..=4).for_each(|i| touch(&mut vm, i));
    let mut batch: Vec<Resident> = Vec::with_capacity(4);
    vm.park_batch(4, &mut batch);
    assert!(batch.len() == 4 && !vm.is_quiescent(), "no fork may copy it");
    assert_eq!(vm.fault(page(1), 0..END, false), Fault::Busy, "somebody waits for a page");
    assert_eq!(vm.release_range(page(1), 1, |_| panic!("it is mapped")), 1);
    touch(&mut vm, 1); // so another page is there now
    assert!(vm.rename_range(page(2), page(102), 1));
    assert!(state(&vm, 102) == State::Active && !vm.page(page(102)).busy());
    assert!(vm.wire(page(3), true));
    assert!(vm.rename_range(page(3), page(103), 1));
    assert!(vm.page(page(103)).wired());
    vm.check(1);
    let still: Vec<Resident> = batch.into_iter().filter(|m| vm.is_parking(m.0, m.1)).collect();
    assert_eq!(still.iter().map(|m| m.0).collect::<Vec<_>>(), [page(4)]);
    vm.park_done(still[0].0, Parked::Yes);
    assert!(vm.is_quiescent());
    vm.check(1);
    let mut batch: Vec<Resident> = Vec::with_capacity(4);
    vm.park_batch(4, &mut batch);
    batch.sort();
    assert_eq!(batch.iter().map(|m| m.0).collect::<Vec<_>>(), [page(1), page(102)], "they are listed again, but for what is wired");
}

/// A page moves while it is being written, and must be written again before that write has ended: the machine makes it wait.
#[test]
fn a_page_that_moves_while_it_is_written_waits_for_the_write() {
    let mut vm = core(1000);
    touch(&mut vm, 1);
    let mut batch: Vec<Resident> = Vec::with_capacity(4);
    vm.park_batch(4, &mut batch);
    vm.park_done(page(1), Parked::Yes);
    let mut batch = Vec::with_capacity(4);
    vm.launder_batch(4, &mut batch);
    assert_eq!(vm.launder_compared(page(1), false, tag(page(1), 1)), Compared::Write);
    let slot = vm.launder_slots(1, page(1)).expect("a slot").first;
    assert!(vm.rename_range(page(1), page(2), 1));
    vm.launder_batch(4, &mut batch);
    assert_eq!(batch.iter().map(|m| m.page).collect::<Vec<_>>(), [page(2)]);
    vm.launder_done(page(2), None, Tag::UNKNOWN, IoResult::NoSpace);
    vm.launder_done(page(1), Some(slot), tag(page(1), 1), IoResult::Ok);
    assert!(state(&vm, 2) == State::Inactive && state(&vm, 1) == State::Untouched && vm.is_quiescent());
    vm.check(1);
    vm.launder_batch(4, &mut batch);
    assert_eq!(vm.launder_compared(page(2), false, tag(page(2), 2)), Compared::Write);
    let slot = vm.launder_slots(1, page(2)).expect("a slot").first;
    vm.launder_done(page(2), Some(slot), tag(page(2), 2), IoResult::Ok);
    assert!(state(&vm, 2) == State::Clean);
    vm.check(1);
}

/// Wiring moves along with a page that was never touched, and does not stay where another page moves to.
#[test]
fn wiring_moves_along() {
    let mut vm = core(1000);
    assert!(vm.wire(page(1), true));
    assert!(vm.rename_range(page(1), page(2), 1));
    assert!(vm.page(page(2)).wired() && !vm.page(page(1)).wired());
    touch(&mut vm, 3);
    assert!(vm.rename_range(page(3), page(2), 1));
    assert!(!vm.page(page(2)).wired() && state(&vm, 2) == State::Active);
    vm.check(1);
}

/// The daemon was asked to park pages although all were wired: `demand` never became nothing. And `nothing_to_evict` was true
/// although mapped pages could have been parked, so the budget was exceeded without need.
#[test]
fn demand_asks_only_for_what_there_is() {
    let mut vm = core(4000);
    (0..200).for_each(|i| touch(&mut vm, i));
    vm.set_limit(200);
    assert!(!vm.nothing_to_evict());
    assert!(vm.demand().park > 0);
    (0..200).for_each(|i| assert!(vm.wire(page(i), true)));
    assert!(vm.nothing_to_evict());
    assert!(vm.demand().is_none());
}

/// The page table was full when a page moved. If the page was mapped, the core went on without managing it; if it was not, the core
/// panicked, because its content could not have been found any more. Now the core reports the error and changes nothing, and the
/// caller stops the program with a message.
#[test]
fn a_page_moves_to_where_there_is_no_room() {
    let mut vm = core(1);
    page_out(&mut vm, 0, 7);
    touch(&mut vm, 1);
    touch(&mut vm, 600);
    for from in [0, 1] {
        assert!(!vm.rename_range(page(from), page(5000), 1));
    }
    assert_eq!([0, 1, 600, 5000].map(|i| state(&vm, i)), [State::PagedOut, State::Active, State::Active, State::Untouched]);
    assert_eq!((vm.used(), vm.pager().used()), (2, 1));
    assert!(vm.rename_range(page(0), page(601), 1), "where there is a leaf already");
    assert_eq!((state(&vm, 0), state(&vm, 601)), (State::Untouched, State::PagedOut));
    vm.check(1);
}

/// A changed page kept the slot of its older content until the new content had a slot. With all slots taken, it never got one.
#[test]
fn a_stale_copy_makes_room_for_the_new_one() {
    let mut vm = core(1000);
    for index in 0..1000 {
        page_out(&mut vm, index, 10 + index);
    }
    assert_eq!(vm.pager().used(), 1000);
    let op = begin_read(&mut vm, 7);
    assert_eq!(end_read(&mut vm, &op, 17), Destination::Map);
    vm.page_in_done(page(7), Filled::Mapped);
    park(&mut vm, |_, _| Parked::Yes);
    let write = begin_write(&mut vm, 99);
    end_write(&mut vm, write, 99);
    assert_eq!((state(&vm, 7), vm.pager().used()), (State::Clean, 1000));
    vm.check(1);
}

/// ... and pages that are mapped again held slots that others needed: memory and swap did not add up.
#[test]
fn copies_of_mapped_pages_make_room() {
    let mut vm = core(1000);
    for index in 0..1000 {
        page_out(&mut vm, index, 10 + index);
    }
    let op = begin_read(&mut vm, 7);
    assert_eq!(end_read(&mut vm, &op, 17), Destination::Map);
    vm.page_in_done(page(7), Filled::Mapped);
    assert!(vm.wire(page(7), true)); // so that the other one is the victim
    touch(&mut vm, 2000);
    park(&mut vm, |_, _| Parked::Yes);
    let write = begin_write(&mut vm, 99);
    end_write(&mut vm, write, 99);
    assert_eq!((state(&vm, 2000), state(&vm, 7), vm.pager().used()), (State::Clean, State::Active, 1000));
    vm.check(1);
}

/// A fault beyond the page table was reported as "no memory", and was tried again for ever.
#[test]
fn a_full_page_table_is_said() {
    let leaf_pages = 512;
    let mut vm = core(8 * leaf_pages);
    let mut touched = 0;
    let full = loop {
        match vm.fault(page(touched * leaf_pages), 0..END, false) {
            Fault::ZeroFill { count: 1, .. } => _ = vm.fill_done(page(touched * leaf_pages), Filled::Mapped),
            other => break other,
        }
        touched += 1;
    };
    assert_eq!(full, Fault::TableFull);
    assert!(touched >= 8);
    // what is released makes room again
    vm.release_range(page(0), leaf_pages, |_| {});
    touch(&mut vm, touched * leaf_pages);
}

/// A program with compressed memory was reported to be over its budget 7,823 times, and never was. Before a fork the process
/// shrinks to less than half of its budget, and every touch by other threads until then was counted.
#[test]
fn what_is_above_a_reclaim_target_is_not_over_budget() {
    let mut vm = core(4096);
    (0..100).for_each(|index| touch(&mut vm, index));
    vm.set_reclaim_target(80);
    assert_eq!((vm.limit(), vm.available()), (80, 0));
    assert_eq!(vm.fault(page(100), 0..END, false), Fault::NoMemory);
    assert_eq!(vm.fault(page(100), 0..END, true), Fault::ZeroFill { first: page(100), count: 1 });
    vm.fill_done(page(100), Filled::Mapped);
    assert_eq!((vm.counters().over_budget.get(), vm.counters().memory_limit_bytes.get()), (0, 2048 << 12));
    // but pages above the budget count
    vm.set_limit(90);
    assert_eq!(vm.fault(page(101), 0..END, true), Fault::ZeroFill { first: page(101), count: 1 });
    vm.fill_done(page(101), Filled::Mapped);
    assert_eq!(vm.counters().over_budget.get(), 1);
    // a reclaim target is over with the next limit
    vm.set_reclaim_target(10);
    vm.set_limit(2048);
    assert_eq!(vm.available(), 2048 - 102);
    vm.check(1);
}

/// Adopted pages were charged, but the charge did not show until something else was charged.
#[test]
fn what_is_adopted_shows() {
    let mut vm = core(1000);
    (0..3).for_each(|index| assert!(vm.adopt(page(index))));
    assert_eq!((vm.charge_total(), vm.counters().memory_used_bytes.get()), (3, 3 << 12));
}

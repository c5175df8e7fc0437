//! Rare orders of events during a swapoff, over the swap pager. Each test is the shortest order of calls.
//!
//! The simulation of the machine mixes all of them with everything else; these tests explain them.

mod common;

use common::{Core, END, begin_read, page, state, touch};
use overspill_swap::DeviceId;
use overspill_vm::page::State;
use overspill_vm::pager::{IoResult, Pager};
use overspill_vm::types::{Slot, Tag};
use overspill_vm::{
    CLUSTER_PAGES_MAX, COUNTED_FRAMES, Compared, Copies, Destination, Fault, Filled, MoveRun, PageIn, Parked, Resident, Swapoff,
    SwapoffRefusal, SwapoffStep,
};

/// The device that leaves.
const OLD: DeviceId = DeviceId(0);

fn core(slots: u32) -> Core {
    common::core(10_000, overspill_swap::Config { pages_max: 10_000, slots_max: slots, devices_max: 4, extents_max: 0 })
}

/// Begins a swapoff, with all copies counted.
fn begin(vm: &mut Core, device: DeviceId) -> Result<Swapoff, SwapoffRefusal> {
    let mut copies = Copies::default();
    while vm.count_copies(device, &mut copies) {}
    vm.swapoff_begin(device, copies)
}

fn stored(vm: &Core, device: DeviceId) -> u64 {
    vm.pager().device_use(device).expect("it is there").stored
}

/// Pages from 100 on take the frames that a swapoff may have.
fn fill_memory(vm: &mut Core) {
    for index in 100.. {
        if vm.available() <= vm.free_low() / 2 {
            break;
        }
        touch(vm, index);
    }
}

/// Parks a mapped page and begins to write it, when no other is inactive. Returns its slot.
fn begin_write(vm: &mut Core, index: u64, tag: Tag) -> Slot {
    vm.park_these(&[page(index)], &mut Vec::with_capacity(1));
    vm.park_done(page(index), Parked::Yes);
    let mut laundry = Vec::with_capacity(1);
    vm.launder_batch(1, &mut laundry);
    assert_eq!(laundry[0].page, page(index));
    assert_eq!(vm.launder_compared(page(index), false, tag), Compared::Write);
    vm.launder_slots(1, page(index)).expect("there is room").first
}

/// Brings pages to the clean queue, and on to the device (`reclaim`). A page's content is its index plus `version`.
fn put(vm: &mut Core, pages: std::ops::Range<u64>, version: u64, reclaim: bool) {
    let mut batch: Vec<Resident> = Vec::with_capacity(1);
    for index in pages {
        if state(vm, index) == State::Untouched {
            touch(vm, index);
        }
        let tag = Tag::of(index + version);
        let slot = begin_write(vm, index, tag);
        vm.launder_done(page(index), Some(slot), tag, IoResult::Ok);
        if reclaim {
            vm.reclaim_batch(1, &mut batch);
            vm.frames_dropped(batch.iter().map(|m| m.1));
        }
    }
}

fn end_read(vm: &mut Core, op: &PageIn, version: u64, filled: Filled) {
    let mut places = [Destination::Discard; CLUSTER_PAGES_MAX];
    let good = |i: u32, expected| if expected == Tag::of(op.page(i).index() + version) { IoResult::Ok } else { IoResult::Corrupt };
    vm.page_in_arrived(op, 0..END, good, &mut places);
    for i in 0..op.count {
        assert!(matches!(places[i as usize], Destination::Map | Destination::Park(_)), "{places:?}");
        vm.page_in_done(op.page(i), filled);
    }
}

fn next_move(vm: &mut Core, off: &mut Swapoff) -> MoveRun {
    match next(vm, off) {
        SwapoffStep::Move(run) => run,
        other => panic!("{other:?}"),
    }
}

fn arrived(vm: &mut Core, off: &mut Swapoff, run: &MoveRun, version: u64) -> u128 {
    let tag = |i| Tag::of(run.page(i).index() + version);
    let pages = vm.swapoff_arrived(run, |i, expected| if expected == tag(i) { IoResult::Ok } else { IoResult::Corrupt });
    off.note_read(pages.good.count_ones(), 0);
    pages.good
}

/// Writes the pages of a run to their new slots.
fn place(vm: &mut Core, run: MoveRun, good: u128, version: u64) -> u32 {
    let mut moved = 0;
    for i in (0..run.count).filter(|i| good >> i & 1 == 1) {
        let to = vm.launder_slots(1, run.page(i)).expect("there is room").first;
        let tag = Tag::of(run.page(i).index() + version);
        moved += vm.swapoff_written(&run, i, to, (tag, tag), IoResult::Ok) as u32;
    }
    vm.swapoff_moved(run);
    moved
}

/// The next step that has work for the machine.
fn next(vm: &mut Core, off: &mut Swapoff) -> SwapoffStep {
    (0..10).map(|_| vm.swapoff_next(off, 128)).find(|step| *step != SwapoffStep::Again).expect("it does not look for ever")
}

fn end(vm: &mut Core, off: &mut Swapoff) {
    assert_eq!(next(vm, off), SwapoffStep::Done);
    vm.check(1);
}

/// From device to device: one run, no frame, and the old device is gone.
#[test]
fn a_run_goes_to_another_device() {
    let mut vm = core(1000);
    put(&mut vm, 0..128, 0, true);
    let new = vm.devices_mut().add_device(500, 0).expect("there is an entry");
    let mut off = begin(&mut vm, OLD).expect("there is room");
    let used = vm.used();
    let run = next_move(&mut vm, &mut off);
    assert_eq!((run.first, run.count, run.wanted), (page(0), 128, u128::MAX));
    assert_eq!(next(&mut vm, &mut off), SwapoffStep::Wait, "all that is left is on its way");
    let good = arrived(&mut vm, &mut off, &run, 0);
    assert_eq!(place(&mut vm, run, good, 0), 128);
    assert_eq!((vm.used(), stored(&vm, new)), (used, 128));
    end(&mut vm, &mut off);
    assert_eq!(vm.pager().device_use(OLD), None);
    let op = begin_read(&mut vm, 77);
    end_read(&mut vm, &op, 0, Filled::Mapped);
}

/// A clean page is in memory and was stored on this device only, so it must be written again before its frame is taken.
#[test]
fn a_clean_page_is_written_again() {
    let mut vm = core(1000);
    put(&mut vm, 0..10, 0, false);
    assert_eq!(state(&vm, 3), State::Clean);
    assert!(matches!(vm.fault(page(4), 0..END, false), Fault::Restore { .. })); // clean and busy
    let mut off = begin(&mut vm, OLD).expect("all of it is in memory");
    end(&mut vm, &mut off);
    vm.restore_done(page(4), Filled::No);
    for index in 0..10 {
        assert_eq!(state(&vm, index), State::Inactive);
    }
    let mut batch: Vec<Resident> = Vec::with_capacity(100);
    vm.reclaim_batch(100, &mut batch);
    assert!(batch.is_empty());
    vm.check(1);
}

/// A fault reads a page while its run is moved. The page keeps its old slot until it has arrived, because the read is from that
/// slot. Then it gives the slot up. The swapoff waits for the read, even if the page is released meanwhile.
#[test]
fn a_page_that_is_faulted_in_meanwhile() {
    let mut vm = core(1000);
    put(&mut vm, 0..8, 0, true);
    vm.devices_mut().add_device(500, 0).expect("there is an entry");
    let mut off = begin(&mut vm, OLD).expect("there is room");
    let run = next_move(&mut vm, &mut off);
    let good = arrived(&mut vm, &mut off, &run, 0);
    let (read, released) = (begin_read(&mut vm, 2), begin_read(&mut vm, 5));
    vm.release_range(page(5), 1, |_| panic!("it has no parked content"));
    assert_eq!(place(&mut vm, run, good, 0), 6);
    assert_eq!(stored(&vm, OLD), 1);
    assert_eq!(next(&mut vm, &mut off), SwapoffStep::Wait);
    end_read(&mut vm, &read, 0, Filled::Mapped);
    assert_eq!((stored(&vm, OLD), state(&vm, 2)), (0, State::Active));
    assert_eq!(next(&mut vm, &mut off), SwapoffStep::Wait, "a read of what was released is under way");
    let mut places = [Destination::Map; CLUSTER_PAGES_MAX];
    vm.page_in_arrived(&released, 0..END, |_, _| panic!("nobody wants it"), &mut places);
    assert_eq!(places[0], Destination::Discard);
    end(&mut vm, &mut off);
}

/// Without another device the pages go into memory, parked and no longer stored; a read that could not be parked is tried again.
#[test]
fn pages_go_into_memory() {
    let mut vm = core(1000);
    put(&mut vm, 0..8, 0, true);
    let mut off = begin(&mut vm, OLD).expect("there is memory");
    for filled in [Filled::No, Filled::Parked] {
        let SwapoffStep::PageIn(op) = next(&mut vm, &mut off) else { panic!("it is to be read") };
        assert_eq!(op.count, 8);
        end_read(&mut vm, &op, 0, filled);
    }
    assert_eq!(next(&mut vm, &mut off), SwapoffStep::Done);
    assert_eq!(state(&vm, 7), State::Inactive);
    vm.check(1);
}

/// Another device has slots but refuses these pages, which is not a write error: compressed memory refuses pages that do not
/// compress. The walk offered them again and again, and the swapoff never ended although there was room in memory. (Found by a seed
/// of the simulation.)
#[test]
fn pages_that_are_refused_elsewhere_go_into_memory() {
    let mut vm = core(1000);
    put(&mut vm, 0..6, 0, true);
    vm.devices_mut().add_device(500, 0).expect("there is an entry");
    let mut off = begin(&mut vm, OLD).expect("there is room");
    let mut refused = 0;
    let op = loop {
        match next(&mut vm, &mut off) {
            SwapoffStep::Move(run) => {
                assert!(refused < 2, "the same again, for ever");
                assert_eq!(arrived(&mut vm, &mut off, &run, 0), 0b11_1111);
                for i in 0..run.count {
                    let to = vm.launder_slots(1, run.page(i)).expect("there is room").first;
                    let tag = Tag::of(run.page(i).index());
                    assert!(!vm.swapoff_written(&run, i, to, (tag, tag), IoResult::NoSpace));
                }
                vm.swapoff_moved(run);
                refused += 1;
            }
            SwapoffStep::PageIn(op) => break op,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((refused, op.count), (2, 6), "refused in the first pass and, since it had nothing to compare with, in the second");
    end_read(&mut vm, &op, 0, Filled::Parked);
    end(&mut vm, &mut off);
    assert_eq!(vm.counters().write_errors.get(), 0);
}

/// A swapoff was cancelled while a run was being read. The same page got its slot again with new content, and another swapoff
/// began. The data that the first one had read was compared with the new tag, and the page was taken for lost. (Found by thinking,
/// before each swapoff had a number.)
#[test]
fn a_run_of_a_cancelled_swapoff_is_void() {
    let mut vm = core(1);
    put(&mut vm, 0..1, 0, true);
    let new = vm.devices_mut().add_device(1, -1).expect("there is an entry");
    let mut off = begin(&mut vm, OLD).expect("there is room");
    let run = next_move(&mut vm, &mut off);
    vm.swapoff_cancel(OLD);
    assert_eq!(vm.swapoff_next(&mut off, 128), SwapoffStep::Cancelled);
    vm.release_range(page(0), 1, |_| panic!("it has no parked content"));
    put(&mut vm, 0..1, 100, true);
    assert_eq!(vm.pager().has_page(page(0), 0, 0).map(|has| has.slot), Some(Slot(0)), "the same slot");
    let mut again = begin(&mut vm, OLD).expect("there is room");
    assert_eq!(arrived(&mut vm, &mut off, &run, 0), 0);
    vm.swapoff_moved(run);
    assert_eq!((state(&vm, 0), vm.counters().corrupt_pages.get()), (State::PagedOut, 0));
    let run = next_move(&mut vm, &mut again);
    let good = arrived(&mut vm, &mut off, &run, 100);
    assert_eq!(place(&mut vm, run, good, 100), 1);
    end(&mut vm, &mut again);
    assert_eq!(stored(&vm, new), 1);
}

/// Pages that fit nowhere: a refusal with the figures, and nothing has changed.
#[test]
fn a_swapoff_is_refused_with_the_figures() {
    let mut vm = core(4000);
    assert_eq!(begin(&mut vm, DeviceId(3)), Err(SwapoffRefusal::NotThere));
    put(&mut vm, 0..2500, 0, true);
    vm.devices_mut().add_device(100, 0).expect("there is an entry");
    let refusal = begin(&mut vm, OLD).expect_err("it fits nowhere");
    let memory_pages = (vm.available() - vm.free_low() / 2) as u64;
    assert_eq!(refusal, SwapoffRefusal::NoRoom { pages: 2500, swap_pages: 100, memory_pages });
    assert!(refusal.to_string().contains("10 MiB are on this device, but only 0 MiB are free on other swap devices"), "{refusal}");
    assert_eq!(vm.pager().leaving(OLD), None);
    vm.release_range(page(0), 1000, |_| panic!("it has no parked content"));
    begin(&mut vm, OLD).expect("now it fits");
    assert_eq!(begin(&mut vm, OLD), Err(SwapoffRefusal::Leaving));
}

/// A swapoff that seemed not to fit looked at all frames at once, with the lock on the core, to find copies: with 16 GiB of memory
/// all faults waited for a good part of a second.
#[test]
fn copies_are_counted_by_a_thousand_frames() {
    let mut vm = core(4000);
    put(&mut vm, 0..1900, 0, false);
    assert!(matches!(vm.swapoff_begin(OLD, Copies::default()), Err(SwapoffRefusal::NoRoom { pages: 1900, .. })));
    let mut copies = Copies::default();
    assert!(vm.count_copies(OLD, &mut copies));
    let Err(SwapoffRefusal::NoRoom { pages, .. }) = vm.swapoff_begin(OLD, copies) else { panic!("not yet") };
    assert!(pages >= 1900 - u64::from(COUNTED_FRAMES), "{pages}");
    begin(&mut vm, OLD).expect("all of it is in memory");
}

/// The file system was full, and the page daemon tried the same writes again and again. A write was always under way, or a run was
/// being written back. So the swapoff was always told to wait, and never that there is no room, and its time limit of ten seconds
/// took minutes. (Found by seeds of the simulation.)
#[test]
fn writes_that_fail_are_not_waited_for() {
    let mut vm = core(4000);
    put(&mut vm, 0..4, 0, true);
    vm.devices_mut().add_device(2, 0).expect("there is an entry");
    let mut off = begin(&mut vm, OLD).expect("there is memory");
    fill_memory(&mut vm);
    let [first, _] = [100, 101].map(|index| begin_write(&mut vm, index, Tag::of(index)));
    assert_eq!(next(&mut vm, &mut off), SwapoffStep::Wait, "what is written makes room");
    vm.launder_done(page(100), Some(first), Tag::of(100), IoResult::NoSpace);
    assert_eq!(vm.launder_slots(1, page(100)).map(|run| run.first), Some(first), "it is tried again");
    assert_eq!(next(&mut vm, &mut off), SwapoffStep::NoRoom);
}

/// A run that was being written back from compressed memory was taken for one of the swapoff's own, which must end before the walk
/// goes on. On a full file system there always was one. (Found by a seed of the simulation.)
#[test]
fn a_write_back_is_not_waited_for() {
    let mut vm = core(1000);
    put(&mut vm, 0..4, 0, true);
    vm.devices_mut().add_device(8, 0).expect("there is an entry");
    let mut off = begin(&mut vm, OLD).expect("there is room");
    let written_back = vm.write_back_slots(1, page(0)).expect("there is room");
    let run = next_move(&mut vm, &mut off);
    arrived(&mut vm, &mut off, &run, 0);
    vm.swapoff_moved(run); // nothing of it could be written
    assert!(matches!(next(&mut vm, &mut off), SwapoffStep::Move(_) | SwapoffStep::PageIn(_)), "it looks again");
    assert!(!vm.is_quiescent(), "no fork may copy it");
    vm.free_slots(&written_back, 0);
    vm.write_back_end();
}

/// A full file system refuses what is to go on from compressed memory, again and again. No such write counted as failed, so the
/// swapoff waited for the next one: for minutes. (Seed 76399 of `a_full_file_system_ends_a_swapoff` in the simulation.)
#[test]
fn a_write_back_that_finds_no_space_is_not_waited_for() {
    let mut vm = core(4000);
    put(&mut vm, 0..4, 0, true);
    vm.devices_mut().add_device(2, 0).expect("there is an entry");
    let mut off = begin(&mut vm, OLD).expect("there is memory");
    fill_memory(&mut vm);
    let run = vm.write_back_slots(2, page(0)).expect("there is room");
    assert_eq!((run.count, next(&mut vm, &mut off)), (2, SwapoffStep::Wait), "what goes on makes room");
    let (tag, slot) = (Tag::of(0), run.slot(0));
    assert!(!vm.write_back_written(page(0), (Slot(0), tag), (slot, tag), IoResult::NoSpace));
    assert_eq!(vm.write_back_slots(1, page(0)).map(|run| run.first), Some(slot), "it is tried again");
    assert_eq!(next(&mut vm, &mut off), SwapoffStep::NoRoom);
}

/// One page could not be read, and its swapoff into memory looked for more to do meanwhile: each pass that had failed was followed
/// by one that had nothing to try, and only passes that fail in a row counted. It never gave up.
#[test]
fn passes_that_try_nothing_do_not_hide_those_that_fail() {
    let mut vm = core(4000);
    put(&mut vm, 0..1, 0, true);
    let mut off = begin(&mut vm, OLD).expect("there is memory");
    let fail = |vm: &mut Core, off: &mut Swapoff| {
        let SwapoffStep::PageIn(op) = next(vm, off) else { panic!("there is no other device") };
        assert_eq!(next(vm, off), SwapoffStep::Wait, "the only page is being read");
        let mut places = [Destination::Discard; CLUSTER_PAGES_MAX];
        vm.page_in_arrived(&op, 0..END, |_, _| IoResult::Io(5), &mut places);
        places[0]
    };
    for _ in 0..3 {
        assert_eq!((fail(&mut vm, &mut off), state(&vm, 0)), (Destination::Discard, State::PagedOut), "it stays");
        off.note_read(0, 1);
    }
    assert!(off.unreadable_passes() > 0);
    off.give_up_unreadable();
    assert_eq!((fail(&mut vm, &mut off), state(&vm, 0)), (Destination::Lost, State::Lost));
    end(&mut vm, &mut off);
}

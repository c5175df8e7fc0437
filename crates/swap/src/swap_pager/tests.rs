//! Tests of the swap pager: devices and their slots. Processes that share files are in `processes.rs`, and those that have a memory
//! device in `memory.rs`.

mod memory;
mod processes;

use super::*;
use crate::blist::RUN_MAX;
use crate::device::{DeviceState, GROW_SLOTS};
use crate::device_stats::Io;
use crate::devices::{AddDeviceError, ERRORS_MAX, WRITER_SHIFT};
use crate::extent::NoExtents;
use crate::growth::{AddExtentError, Punch};
use overspill_vm::types::ObjectId;

fn page(object: u16, index: PageIndex) -> PageId {
    PageId::new(ObjectId(object), index)
}

fn small(slots_max: u32) -> SwapPager {
    SwapPager::new(Config { pages_max: 4000, slots_max, devices_max: 4, extents_max: 200 })
}

/// Takes slots for no particular page.
fn alloc(pager: &mut SwapPager, want: u32) -> Option<SlotRun> {
    pager.alloc_run(want, page(0, 0))
}

fn store(pager: &mut SwapPager, first: PageId, count: u32) -> Slot {
    let run = pager.alloc_run(count, first).unwrap();
    assert_eq!(run.count, count);
    for k in 0..count {
        assert!(pager.assign(first.offset(k.into()), Slot(run.first.0 + k), Tag::of(k.into())));
    }
    run.first
}

fn memory(pager: &SwapPager, slot: Slot) -> bool {
    pager.devices.locate(slot).is_memory
}

/// Device and offset of a slot.
fn at(pager: &SwapPager, slot: Slot) -> (u16, u32) {
    let (device, at) = pager.devices.device_of(slot);
    (device.0, at)
}

#[test]
fn a_lower_priority_takes_over_and_runs_end_at_the_border() {
    let mut pager = small(128);
    let second = pager.devices.add_device(50, -1).unwrap();
    assert_eq!(pager.devices.capacity(), 178);
    store(&mut pager, page(0, 0), 90);
    store(&mut pager, page(0, 90), 38);
    let slot = store(&mut pager, page(0, 128), 50);
    assert_eq!(slot, Slot(128)); // contiguous as a number, but on another device
    assert_eq!(pager.devices.device_of(slot), (second, 0));
    assert_eq!(at(&pager, Slot(127)), (0, 127));
    assert_eq!(pager.has_page(page(0, 127), u32::MAX, u32::MAX).unwrap(), HasPage { slot: Slot(127), before: 127, after: 0 });
    assert_eq!(pager.has_page(page(0, 128), 200, 200).unwrap(), HasPage { slot, before: 0, after: 49 });
    assert_eq!(alloc(&mut pager, 1), None);
    pager.check();
}

#[test]
fn equal_priorities_take_turns() {
    let mut pager = small(1000);
    let fast = [pager.devices.add_device(1000, 5).unwrap(), pager.devices.add_device(300, 5).unwrap()];
    let mut order = Vec::new();
    for k in 0..40 {
        let slot = store(&mut pager, page(0, k * 50), 50);
        order.push(pager.devices.device_of(slot).0);
    }
    assert_eq!(order[..4], [fast[0], fast[1], fast[0], fast[1]]);
    assert_eq!(order.iter().filter(|&&d| d == fast[0]).count(), 20);
    assert_eq!(order.iter().filter(|&&d| d == fast[1]).count(), 6, "until the short one is full");
    assert_eq!(order[26..], [DeviceId(0); 14], "then the lower priority");
    pager.release_range(page(0, 0), 200);
    assert_eq!(pager.devices.iter().map(|d| d.0).collect::<Vec<_>>(), [1, 2, 0]);
    pager.check();
}

/// A nearly full device gives no short runs while a lower priority has room, but in the end all of it is used.
#[test]
fn crumbs_are_taken_last() {
    let mut pager = small(256);
    pager.devices.add_device(256, -1).unwrap();
    store(&mut pager, page(0, 0), 256);
    (0..256).step_by(2).for_each(|k| assert!(pager.release(page(0, k))));
    let slot = store(&mut pager, page(1, 0), 32);
    assert_eq!(at(&pager, slot), (1, 0));
    let mut given = 32 + 128;
    while let Some(run) = alloc(&mut pager, 32) {
        given += run.count;
    }
    assert_eq!((given, pager.used()), (512, 512));
    assert_eq!(pager.room(), 0);
}

/// Two writers that take turns: the pages of each lie in one run, not in stripes.
#[test]
fn writers_are_kept_apart() {
    let mut pager = small(1 << 16);
    let far = (0..64).map(|k| k << WRITER_SHIFT).find(|&k| writer_of(page(0, k)) != writer_of(page(0, 0))).unwrap();
    for k in 0..16 {
        store(&mut pager, page(0, k * 32), 32);
        store(&mut pager, page(0, far + k * 32), 32);
    }
    for first in [0, far] {
        assert_eq!(pager.has_page(page(0, first), 0, u32::MAX).unwrap().after, 511);
    }
}

#[test]
fn slots_of_memory_have_names_and_are_the_childs_own() {
    let mut pager = small(1000);
    let device = pager.devices.add_memory_device(vec![0; 100], 9, 18).unwrap();
    let there = |pager: &SwapPager| (0..100).filter_map(|at| pager.devices.page_of(device, at)).collect::<Vec<_>>();
    let freed = |pager: &mut SwapPager| {
        let mut out = [0; 3];
        let n = pager.devices.take_freed(device, &mut out);
        out[..n].to_vec()
    };
    let first = store(&mut pager, page(0, 0), 4);
    assert!(memory(&pager, first) && pager.devices.slot(device, 0) == first);
    assert_eq!(there(&pager), (0..4).map(|k| page(0, k)).collect::<Vec<_>>());
    assert!(pager.rename(page(0, 1), page(0, 70)));
    pager.release(page(0, 0));
    assert_eq!(there(&pager), [page(0, 70), page(0, 2), page(0, 3)]);
    assert_eq!((pager.used(), freed(&mut pager), freed(&mut pager)), (3, vec![0], vec![]));

    // past it, and when it is full
    let past = pager.alloc_run_past_memory(2, page(0, 9)).unwrap();
    let within = alloc(&mut pager, 1).unwrap();
    assert!(!memory(&pager, past.first) && memory(&pager, within.first));
    assert!(pager.assign(page(0, 2), past.first, Tag::of(2)));
    assert_eq!((there(&pager), freed(&mut pager)), (vec![page(0, 70), page(0, 3)], vec![2]), "it has moved on");
    pager.devices.set_full(device, true);
    let past = alloc(&mut pager, 1).unwrap();
    assert!(!memory(&pager, past.first));
    pager.devices.set_full(device, false);
    pager.devices.set_room(device, 7);
    assert_eq!(pager.room() - pager.devices.room_past_memory(), 7);
    assert!(!pager.is_unwelcome(page(0, 3)));
    pager.devices.set_drops_copies(device, true);
    assert!(pager.is_unwelcome(page(0, 3)) && !pager.is_unwelcome(page(0, 2)));

    // after a fork both sides write their copies, and slots that the parent gives up are free at once
    let mut pager = small(1000);
    pager.devices.add_memory_device(vec![0; 100], 9, 18).unwrap();
    store(&mut pager, page(0, 0), 4);
    let mut child = pager.clone();
    pager.devices.fork_parent();
    child.devices.inherit();
    assert!(pager.release(page(0, 1)) && pager.devices.deferred() == 0 && pager.used() == 3);
    assert!(!child.devices.is_inherited(device) && child.devices.is_inherited(DeviceId(0)));
    let slot = store(&mut child, page(0, 10), 2);
    assert_eq!((child.devices.device_of(slot).0, child.devices.stored()), (device, 6));
    assert_eq!((freed(&mut pager), freed(&mut child)), (vec![1], vec![]));
    let many = store(&mut child, page(0, 20), 70);
    child.release_range(page(0, 20), 70);
    let unused = alloc(&mut child, 1).unwrap().first;
    child.free_slot(unused);
    let mut again: Vec<u32> = core::iter::from_fn(|| Some(freed(&mut child)).filter(|f| !f.is_empty())).flatten().collect();
    again.sort_unstable();
    assert!(again.starts_with(&[6, 7, 8]) && again.len() == 71 && many == child.devices.slot(device, 6), "{again:?}");
    pager.check();
    child.check();
    child.release_range(page(0, 0), 100);
    child.remove(device);
    assert_eq!(child.devices.add_device(10, 0), Ok(device));
    assert!(!memory(&child, child.devices.slot(device, 0)));
}

/// All pages on `device`, by the walk.
fn walk(pager: &SwapPager, device: DeviceId) -> Vec<(PageId, Slot)> {
    let (mut found, mut from) = (Vec::new(), Some(page(0, 0)));
    while let Some(at) = from {
        let scan = pager.next_on(device, at);
        if let Some(run) = scan.run {
            found.extend((0..run.count).map(|k| (run.first.offset(k.into()), Slot(run.slot.0 + k))));
        }
        assert!(scan.next.is_none_or(|next| next > at));
        from = scan.next;
    }
    found
}

#[test]
fn a_leaving_device_gives_nothing_and_is_found_in_runs() {
    let mut pager = small(1000);
    let other = pager.devices.add_device(1000, 5).unwrap();
    for k in 0..10 {
        store(&mut pager, page(k % 3, u64::from(k) * 1000), 50);
    }
    pager.stay(other);
    let leave = pager.leave(other).unwrap();
    assert_eq!((pager.leave(other), pager.leaving(other)), (None, Some(leave)));
    let slot = store(&mut pager, page(9, 0), 100);
    assert_eq!(at(&pager, slot), (0, 0));
    assert_eq!(walk(&pager, other).len(), 500);
    assert_eq!(walk(&pager, DeviceId(0)), (0..100).map(|k| (page(9, k.into()), Slot(k))).collect::<Vec<_>>());
    assert!(pager.is_unwelcome(page(1, 1000)) && !pager.is_unwelcome(page(9, 0)));
    for (p, _) in walk(&pager, other) {
        let run = pager.alloc_run(1, p).unwrap();
        assert!(pager.assign(p, run.first, Tag::of(0)));
    }
    assert_eq!(pager.device_use(other), Some(DeviceUse::default()));
    pager.remove(other);
    assert_eq!(pager.device_use(other), None);
    pager.check();
}

#[test]
fn slot_numbers_do_not_run_out() {
    let mut pager = small(64);
    for k in 0..10_000 {
        let device = pager.devices.add_device(1 + k % 64, 1).unwrap();
        let slot = store(&mut pager, page(0, 7), 1);
        assert_eq!(pager.devices.device_of(slot), (device, 0));
        _ = pager.devices.fork_parent(); // a child that lives on, with the file open
        pager.leave(device).unwrap();
        assert!(pager.release(page(0, 7)));
        assert_eq!(pager.devices.deferred(), 1);
        pager.remove(device);
    }
    assert_eq!(pager.devices.add_device(0, 0), Err(AddDeviceError::Empty));
    assert_eq!(pager.devices.add_device(65, 0), Err(AddDeviceError::TooLong { slots_max: 64 }));
    (1..4).for_each(|_| assert!(pager.devices.add_device(1, 0).is_ok()));
    assert_eq!(pager.devices.add_device(1, 0), Err(AddDeviceError::TooMany { devices_max: 4 }));
    pager.check();
}

#[test]
fn errors_in_a_row_fail_a_device_but_not_the_last() {
    let mut pager = small(100);
    let second = pager.devices.add_device(100, 3).unwrap();
    let io = |ok| Io { write: true, pages: 1, bytes: 4096, ns: 1000, ok };
    for _ in 0..5 {
        (0..ERRORS_MAX - 1).for_each(|_| assert!(!pager.devices.io_ended(second, io(false))));
        assert!(!pager.devices.io_ended(second, io(true)));
    }
    let read = |ok| Io { write: false, ..io(ok) };
    (0..ERRORS_MAX - 1).for_each(|_| assert!(!pager.devices.io_ended(second, read(false))));
    (0..ERRORS_MAX - 1).for_each(|_| assert!(!pager.devices.io_ended(second, io(false))));
    assert!(!pager.devices.io_ended(second, read(true)), "it can still be read");
    assert!(pager.devices.io_ended(second, io(false)));
    assert_eq!(pager.devices.status(second).unwrap().state, DeviceState::Failed);
    let slot = store(&mut pager, page(0, 0), 1);
    assert_eq!(at(&pager, slot), (0, 0));
    (0..100).for_each(|_| assert!(!pager.devices.io_ended(DeviceId(0), io(false))));
    assert_eq!(pager.devices.status(DeviceId(0)).unwrap().state, DeviceState::On);
    assert_eq!(pager.devices.stats(DeviceId(0)).unwrap().writes.errors, 100);
}

/// A forked child inherited that a device had failed, but not the request to empty it: it never did.
#[test]
fn a_child_empties_a_failed_device_itself() {
    let mut pager = small(100);
    pager.devices.add_device(100, 3).unwrap();
    let io = Io { write: false, pages: 1, bytes: 4096, ns: 1000, ok: false };
    assert!((0..ERRORS_MAX).any(|_| pager.devices.io_ended(DeviceId(0), io)));
    let _ = pager.devices.fork_child(100).expect("room");
    assert!((0..ERRORS_MAX).any(|_| pager.devices.io_ended(DeviceId(0), io)));
}

/// Its swapoff ended without success, and when it went on failing, nothing was done any more.
#[test]
fn a_failed_device_that_was_not_emptied_is_told_again() {
    let mut pager = small(100);
    pager.devices.add_device(100, 3).unwrap();
    let io = Io { write: false, pages: 1, bytes: 4096, ns: 1000, ok: false };
    for _ in 0..3 {
        let told = (0..3 * ERRORS_MAX).filter(|_| pager.devices.io_ended(DeviceId(0), io)).count();
        assert_eq!(told, 1);
        assert!(pager.leave(DeviceId(0)).is_some());
        assert!(!pager.devices.io_ended(DeviceId(0), io));
        pager.stay(DeviceId(0));
        assert_eq!(pager.devices.status(DeviceId(0)).unwrap().state, DeviceState::Failed);
    }
}

/// Compressed memory in front of the only disk counted as a better device. So eight failed writes in a row took the disk away for
/// good, and once memory was full the program was stopped, though the disk was well again.
#[test]
fn memory_does_not_make_the_last_disk_fail() {
    let mut pager = small(100);
    pager.devices.add_memory_device(vec![0; 64], 3, 0).unwrap();
    let io = Io { write: true, pages: 1, bytes: 4096, ns: 1000, ok: false };
    (0..2 * ERRORS_MAX).for_each(|_| assert!(!pager.devices.io_ended(DeviceId(0), io)));
    let second = pager.devices.add_device(100, 0).unwrap();
    assert!(pager.devices.io_ended(DeviceId(0), io), "now there is a better one");
    assert_eq!(pager.devices.status(second).unwrap().state, DeviceState::On);
}

/// A full device counted as a better one. So eight failed writes in a row took the last device with room away for good, though it
/// was well again, and the program was stopped for want of swap.
#[test]
fn a_full_device_does_not_make_the_last_one_with_room_fail() {
    let mut pager = small(100);
    let second = pager.devices.add_device(100, -1).unwrap();
    let io = Io { write: true, pages: 1, bytes: 4096, ns: 1000, ok: false };
    store(&mut pager, page(0, 0), 100);
    (0..2 * ERRORS_MAX).for_each(|_| assert!(!pager.devices.io_ended(second, io)));
    let slot = store(&mut pager, page(1, 0), 1);
    assert_eq!(at(&pager, slot), (1, 0));
    // with room on the first one it fails, and is tried again when the first one is full again
    pager.release(page(0, 99));
    assert!(pager.devices.io_ended(second, io));
    pager.devices.retry(true);
    assert_eq!(pager.devices.status(second).unwrap().state, DeviceState::Failed);
    store(&mut pager, page(2, 0), 1);
    assert!(alloc(&mut pager, 1).is_none());
    pager.devices.retry(true);
    assert_eq!(pager.devices.status(second).unwrap().state, DeviceState::On);
    let slot = store(&mut pager, page(3, 0), 1);
    assert_eq!(at(&pager, slot), (1, 1));
}

#[test]
fn a_child_takes_an_inherited_device_off() {
    let mut pager = small(100);
    store(&mut pager, page(0, 0), 60);
    let leave = pager.leave(DeviceId(0));
    assert!(leave.is_some());
    let mut child = pager.clone();
    let own = child.devices.fork_child(100).unwrap();
    assert_eq!(child.leaving(DeviceId(0)), None, "a swapoff is not inherited");
    assert_eq!(child.device_use(DeviceId(0)).unwrap().stored, 60);
    child.leave(DeviceId(0)).unwrap();
    for k in 0..60 {
        let run = alloc(&mut child, 1).unwrap();
        assert_eq!(child.devices.device_of(run.first).0, own);
        assert!(child.assign(page(0, k), run.first, Tag::of(0)));
    }
    child.remove(DeviceId(0));
    child.check();
    assert_eq!(child.devices.add_device(100, 0), Ok(DeviceId(0)));
    child.check();
}

#[test]
fn a_device_grows_before_it_hands_out_less() {
    let mut pager = small(GROW_SLOTS * 2 + 5);
    for k in 0..GROW_SLOTS / 32 - 1 {
        assert_eq!(alloc(&mut pager, 32).unwrap(), SlotRun { first: Slot(k * 32), count: 32 });
    }
    assert!(pager.metadata_bytes() < 10_000);
    assert_eq!(alloc(&mut pager, 33).unwrap(), SlotRun { first: Slot(GROW_SLOTS - 32), count: 33 });
    assert_eq!(alloc(&mut pager, u32::MAX).unwrap(), SlotRun { first: Slot(GROW_SLOTS + 1), count: RUN_MAX });
    while pager.used() + u64::from(RUN_MAX) <= pager.devices.capacity() {
        assert_eq!(alloc(&mut pager, RUN_MAX).unwrap().count, RUN_MAX);
    }
    assert!(alloc(&mut pager, RUN_MAX).unwrap().count < RUN_MAX);
    assert_eq!(alloc(&mut pager, 1), None);
    assert_eq!(pager.used(), pager.devices.capacity());
}

/// A device whose writes failed with ENOSPC was tried again and again while another one was empty, until the program was stopped.
#[test]
fn a_device_without_space_is_asked_last() {
    let mut pager = SwapPager::without_device(Config { pages_max: 1000, slots_max: 100, devices_max: 2, extents_max: 0 });
    let (fast, slow) = (pager.devices.add_device(50, 1).expect("room"), pager.devices.add_device(50, 0).expect("room"));
    let device_of = |pager: &SwapPager, run: SlotRun| pager.devices.device_of(run.first).0;
    let run = alloc(&mut pager, 20).expect("room");
    assert_eq!(device_of(&pager, run), fast);
    pager.devices.set_full(fast, true);
    let run = alloc(&mut pager, 20).expect("room");
    assert_eq!(device_of(&pager, run), slow);
    pager.devices.retry(false);
    assert_eq!(alloc(&mut pager, 20).map(|run| device_of(&pager, run)), Some(slow));
    pager.devices.retry(true);
    assert_eq!(alloc(&mut pager, 20).map(|run| device_of(&pager, run)), Some(fast));
}

/// While memory was full, pages that a device had unchanged were written there again.
#[test]
fn memory_that_is_full_has_no_room() {
    let mut pager = small(100);
    assert!(!pager.memory_has_room());
    let memory = pager.devices.add_memory_device(vec![0; 100], 1, 0).expect("room");
    assert!(pager.memory_has_room());
    pager.devices.set_full(memory, true);
    assert!(!pager.memory_has_room());
    pager.devices.set_full(memory, false);
    assert!(pager.memory_has_room());
}

/// The last entry of the table may end at the greatest slot number, which is one too many for the swap blocks.
#[test]
fn the_last_slot_number_is_not_used() {
    let mut pager = SwapPager::without_device(Config { pages_max: 100, slots_max: 1 << 28, devices_max: 16, extents_max: 0 });
    let last = (0..16).map(|_| pager.devices.add_device(1 << 28, 0).expect("an entry")).last().expect("sixteen");
    assert_eq!(pager.devices.get(last).map(|d| d.slots), Some((1 << 28) - 1));
    assert_eq!(pager.devices.get(DeviceId(14)).map(|d| d.slots), Some(1 << 28));
}

#[test]
fn a_full_device_reuses_what_its_file_has() {
    let mut pager = small(10_000);
    store(&mut pager, page(0, 0), 64);
    let run = alloc(&mut pager, 32).unwrap(); // this write fails: ENOSPC
    for k in 0..32 {
        pager.free_slot(Slot(run.first.0 + k));
    }
    pager.devices.set_full(DeviceId(0), true);
    assert_eq!(alloc(&mut pager, 32), None);
    pager.release_range(page(0, 10), 20);
    pager.release_range(page(0, 60), 4);
    assert_eq!(alloc(&mut pager, 32), Some(SlotRun { first: Slot(10), count: 20 }));
    assert_eq!(alloc(&mut pager, 32), Some(SlotRun { first: Slot(60), count: 4 }));
    assert_eq!(alloc(&mut pager, 32), None);
    pager.devices.set_full(DeviceId(0), false);
    assert_eq!(alloc(&mut pager, 32).unwrap().count, 32);
    pager.check();
}

#[test]
fn a_slot_waits_for_a_child_that_may_read_it() {
    let mut pager = small(100);
    store(&mut pager, page(0, 0), 60);
    let child = pager.devices.fork_parent();
    store(&mut pager, page(0, 60), 40);
    assert_eq!(pager.release_range(page(0, 0), 100), 100);
    assert_eq!((pager.used(), pager.devices.deferred(), pager.devices.stored()), (60, 60, 0));
    assert_eq!(alloc(&mut pager, 100).unwrap(), SlotRun { first: Slot(60), count: 40 }); // got its pages after the fork
    assert_eq!(alloc(&mut pager, 1), None);
    pager.check();
    pager.devices.child_gone(child);
    assert_eq!((pager.used(), pager.devices.deferred()), (40, 0));
    assert_eq!(alloc(&mut pager, 100).unwrap().count, 60);
    pager.check();
}

/// The swap file of a server with one long-lived child and many short-lived ones grew without bound: all slots in use at any fork
/// waited until no child at all was left.
#[test]
fn swap_is_bounded_beside_a_child_that_lives_on() {
    let mut pager = small(300);
    store(&mut pager, page(0, 0), 100);
    let _lives_on = pager.devices.fork_parent();
    for round in 0..1000 {
        for at in (0..100).step_by(10) {
            store(&mut pager, page(0, at), 10); // written anew
        }
        assert!(pager.used() <= 200, "round {round}");
        let child = pager.devices.fork_parent();
        pager.release_range(page(0, round % 100), 1);
        pager.devices.child_gone(child);
        assert_eq!(pager.devices.deferred(), 100, "round {round}: what the first child may read");
    }
    pager.check();
}

#[test]
fn a_child_without_a_device_can_only_read() {
    let mut pager = SwapPager::new(Config { pages_max: 100, slots_max: 100, devices_max: 2, extents_max: 200 });
    store(&mut pager, page(0, 0), 10);
    assert_eq!(pager.devices.fork_child(100), Some(DeviceId(1)));
    let slot = store(&mut pager, page(0, 10), 10);
    assert_eq!(at(&pager, slot), (1, 0));
    assert!(pager.devices.is_inherited(DeviceId(0)) && !pager.devices.is_inherited(DeviceId(1)));
    assert_eq!(pager.devices.fork_child(100), None);
    assert_eq!(alloc(&mut pager, 1), None);
    assert_eq!((pager.used(), pager.devices.capacity(), pager.devices.stored()), (0, 0, 20));
    assert_eq!(pager.has_page(page(0, 5), 9, 9).unwrap(), HasPage { slot: Slot(5), before: 5, after: 4 });
    assert_eq!(pager.release_range(page(0, 0), 100), 20);
    pager.check();
}

#[test]
#[cfg(panic = "unwind")]
fn a_slot_never_gets_a_second_page() {
    let panics = |f: fn(&mut SwapPager)| {
        let mut pager = small(100);
        store(&mut pager, page(0, 0), 3);
        alloc(&mut pager, 1).unwrap(); // slot 3 is taken, 4 is free
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f(&mut pager))).is_err()
    };
    assert!(panics(|pager| _ = pager.assign(page(0, 9), Slot(2), Tag::of(0)))); // owned
    assert!(panics(|pager| _ = pager.assign(page(0, 9), Slot(4), Tag::of(0)))); // free
    assert!(panics(|pager| _ = pager.assign(page(0, 9), Slot(100), Tag::of(0)))); // on no device
    assert!(panics(|pager| pager.free_slot(Slot(2))));
    assert!(panics(|pager| pager.free_slot(Slot(4))));
    assert!(panics(|pager| {
        pager.devices.fork_child(10);
        _ = pager.assign(page(0, 9), Slot(3), Tag::of(0)); // taken, but the parent's
    }));
    assert!(!panics(|pager| assert!(pager.assign(page(0, 9), Slot(3), Tag::of(0)))));
}

/// Space for a swap file was got under the map lock, so that no device could go meanwhile; and while a busy file system took 58 ms
/// for it, no fault was served. It is got without a lock since: the device says that it grows.
#[test]
fn a_device_that_grows_does_not_go() {
    let mut pager = SwapPager::without_device(Config { pages_max: 9000, slots_max: 5000, devices_max: 2, extents_max: 200 });
    let device = pager.devices.add_mapped_device(5000, 0).unwrap();
    assert_eq!(pager.devices.grow_begin(device), Some(5000));
    let used = pager.device_use(device).unwrap();
    assert_eq!(used, DeviceUse { growing: true, ..DeviceUse::default() });
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pager.devices.grow_begin(device))).is_err());
    pager.devices.add_extent(device, 0, 0, 100).unwrap();
    pager.devices.grow_end(device);
    assert_eq!((pager.device_use(device), pager.devices.grow_begin(device)), (Some(DeviceUse::default()), Some(4900)));
    // a child has no part in what its parent's threads do
    pager.devices.fork_child(1000);
    assert_eq!(pager.device_use(device), Some(DeviceUse::default()));
    assert_eq!(pager.devices.grow_begin(device), None);
}

/// On a device of many small pieces no run crosses a border, all of it is used, and each slot is where its piece says.
#[test]
fn runs_end_where_extents_do() {
    let mut pager = SwapPager::without_device(Config { pages_max: 9000, slots_max: 5000, devices_max: 2, extents_max: 200 });
    let device = pager.devices.add_mapped_device(5000, 0).unwrap();
    assert_eq!(pager.devices.add_extent(DeviceId(1), 0, 0, 1), Err(AddExtentError::NotMapped));
    assert_eq!((alloc(&mut pager, 1), pager.devices.capacity(), pager.devices.wants_extent()), (None, 5000, Some(device)));
    let lens: Vec<u32> = (0..200).map(|k| 1 + k * 7 % 41).collect();
    for (k, &len) in lens.iter().enumerate() {
        pager.devices.add_extent(device, k as u16, 1 << 20, len).unwrap();
    }
    assert_eq!(pager.devices.add_extent(device, 0, 0, 1), Err(AddExtentError::TooMany { extents_max: 200 }));
    pager.devices.refuse_growth(device);
    assert_eq!(pager.devices.capacity(), u64::from(lens.iter().sum::<u32>()));
    assert_eq!(
        pager.devices.add_extent(device, 0, 0, 1000),
        Err(AddExtentError::TooLong { slots_left: 5000 - pager.devices.capacity() as u32 })
    );
    let mut at = 0;
    while let Some(run) = pager.alloc_run(24, page(0, at)) {
        let [first, last] = [run.first, Slot(run.first.0 + run.count - 1)].map(|slot| pager.devices.locate(slot));
        assert!(first.file == last.file && last.offset - first.offset == u64::from(run.count - 1) * 4096);
        assert!(last.offset < (1 << 20) + u64::from(lens[last.file as usize]) * 4096);
        for k in 0..run.count {
            assert!(pager.assign(page(0, at), Slot(run.first.0 + k), Tag::of(0)));
            at += 1;
        }
    }
    assert_eq!(at, pager.devices.capacity());
    for index in 0..at {
        let has = pager.has_page(page(0, index), u32::MAX, u32::MAX).unwrap();
        let piece = |slot: u32| pager.devices.locate(Slot(slot)).file;
        assert_eq!(piece(has.slot.0 - has.before), piece(has.slot.0 + has.after));
    }
    // Runs of a swapoff did cross borders: they read on beyond the end of one file, and a program lost its pages.
    let (mut found, mut from) = (0, page(0, 0));
    while let scan = pager.next_on(device, from)
        && let Some(run) = scan.run
    {
        assert_eq!(pager.devices.locate(run.slot).file, pager.devices.locate(Slot(run.slot.0 + run.count - 1)).file, "{run:?}");
        assert_eq!(run.first.index(), found, "none is left out");
        (found, from) = (found + u64::from(run.count), scan.next.unwrap());
    }
    assert_eq!(found, at);
    pager.check();
}

/// A device that grows by 16 blocks in pieces of 8.
fn growing(slots: u32) -> (SwapPager, DeviceId) {
    let mut pager = SwapPager::without_device(Config { pages_max: 99_000, slots_max: slots, devices_max: 2, extents_max: 200 });
    let device = pager.devices.add_mapped_device(slots, 0).unwrap();
    (0..16).for_each(|k| pager.devices.add_extent(device, 0, k << 21, BLOCK_SLOTS).unwrap());
    (pager, device)
}

/// A program that changed its pages at random had a swap file that became seven times as long as what was stored in it: until a run
/// of 512 slots is free by chance.
#[test]
fn random_changes_do_not_make_a_device_grow_for_ever() {
    const PAGES: u64 = 16_000;
    let config = Config { pages_max: 99_000, slots_max: 1 << 20, devices_max: 2, extents_max: 200 };
    let mut pager = SwapPager::without_device(config);
    let device = pager.devices.add_mapped_device(1 << 20, 0).unwrap();
    let mut seed = 1u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % PAGES
    };
    let mut lens = Vec::new();
    for cluster in 0..PAGES / 32 * 40 {
        while pager.devices.wants_extent().is_some() {
            let len = pager.devices.status(device).unwrap().len;
            pager.devices.add_extent(device, 0, u64::from(len) << 12, GROW_SLOTS).unwrap();
        }
        let first = cluster * 32;
        let pages: Vec<_> = (first..first + 32).map(|page| if page < PAGES { page } else { random() }).collect();
        let mut left = &pages[..];
        while !left.is_empty() {
            let run = alloc(&mut pager, left.len() as u32).unwrap();
            let (now, later) = left.split_at(run.count as usize);
            for (k, index) in now.iter().enumerate() {
                pager.release_range(page(0, *index), 1);
                assert!(pager.assign(page(0, *index), Slot(run.first.0 + k as u32), Tag::of(0)));
            }
            lens.push(now.len());
            left = later;
        }
    }
    let status = pager.devices.status(device).unwrap();
    assert!(status.len <= 4 * PAGES as u32 + GROW_SLOTS, "{} slots for {PAGES} pages", status.len);
    let late = &lens[lens.len() / 2..];
    let mean = late.iter().sum::<usize>() / late.len();
    assert!(mean >= 24, "runs of {mean} pages");
    pager.check();
}

/// Makes one pass. Returns the runs that can be given back: first slot, from the beginning of the device, and length.
fn pass(pager: &mut SwapPager, device: DeviceId, given: bool) -> Vec<(u32, u32)> {
    let mut runs = Vec::new();
    loop {
        match pager.devices.punch_begin(device, 3, 4 * BLOCK_SLOTS) {
            Punch::Run(run) => {
                assert_eq!(pager.device_use(device).unwrap().taken, u64::from(run.count));
                runs.push((pager.devices.device_of(run.first).1, run.count));
                pager.devices.punched(run, given);
            }
            Punch::More => {}
            Punch::End => return runs,
        }
    }
}

#[test]
fn what_stays_free_is_given_back_and_got_back_before_the_device_grows() {
    let (mut pager, device) = growing(1 << 15);
    let blocks = |n: u32| n * BLOCK_SLOTS;
    (0..16).for_each(|k| _ = store(&mut pager, page(0, k * 512), 512));
    assert_eq!(pager.devices.wants_extent(), Some(device));
    assert_eq!(pass(&mut pager, device, true), []);
    pager.release_range(page(0, 0), 9000);
    // only blocks that are still free at the next look, and a window for each writer stays
    assert_eq!((pass(&mut pager, device, true), pager.devices.wants_extent()), (vec![], None));
    let kept = store(&mut pager, page(1, 0), 1);
    assert_eq!(kept.0, 0);
    assert_eq!(pass(&mut pager, device, true), [(blocks(1), blocks(4)), (blocks(5), blocks(3))]);
    let status = pager.devices.status(device).unwrap();
    assert_eq!((status.absent, status.given_back, status.used, status.extents), (blocks(7), u64::from(blocks(7)), 1, 16));
    assert_eq!((pager.used(), pager.room(), pager.devices.capacity()), (1, (1 << 15) - 1, 1 << 15));
    pager.check();

    // absent slots are not handed out
    let mut at = 512;
    while pager.devices.wants_extent().is_none() {
        let run = pager.alloc_run(128, page(1, at)).unwrap();
        assert!((run.first.0 + run.count <= blocks(1)) || run.first.0 >= blocks(8), "{run:?}");
        (0..run.count).for_each(|k| assert!(pager.assign(page(1, at + u64::from(k)), Slot(run.first.0 + k), Tag::of(0))));
        at += u64::from(run.count);
    }
    // no child can read absent slots
    let child = pager.devices.fork_parent();
    let run = pager.devices.refill_begin(device, blocks(2)).unwrap();
    assert_eq!((run.first, run.count), (Slot(blocks(1)), blocks(2)));
    pager.devices.refilled(run, false);
    pager.check();
    let run = pager.devices.refill_begin(device, blocks(99)).unwrap();
    assert_eq!(run.count, blocks(7));
    pager.devices.refilled(run, true);
    assert_eq!((pager.devices.refill_begin(device, 1), pager.devices.wants_extent()), (None, None));
    for at in (0..3000).step_by(100) {
        let run = pager.alloc_run(100, page(3, at)).unwrap();
        (0..run.count).for_each(|k| assert!(pager.assign(page(3, at + u64::from(k)), Slot(run.first.0 + k), Tag::of(0))));
    }
    pager.release_range(page(3, 0), 3000);
    assert_eq!(pager.devices.deferred(), 0);
    pager.devices.child_gone(child);
    pager.check();
}

#[test]
fn a_file_system_that_takes_nothing_back_is_asked_once() {
    let (mut pager, device) = growing(1 << 15);
    assert_eq!(pass(&mut pager, device, false), []);
    assert_eq!(pass(&mut pager, device, false), [(0, 4 * BLOCK_SLOTS)]);
    assert_eq!(pass(&mut pager, device, false), []);
    pager.check();
}

#[test]
fn physical_extents_are_borders_after_a_refill_too() {
    let (mut pager, device) = growing(1 << 15);
    pass(&mut pager, device, true);
    assert_eq!(pass(&mut pager, device, true).len(), 2);
    let run = pager.devices.refill_begin(device, BLOCK_SLOTS).unwrap();
    assert_eq!(pager.devices.set_extents(run, &[2; 256]), Err(NoExtents));
    pager.devices.set_extents(run, &[12, 300, 200]).unwrap();
    pager.devices.refilled(run, true);
    let piece = |at: u32| pager.devices.extent(Slot(at)).map(|e| (e.first.0, e.count, e.offset));
    assert_eq!([11, 12, 511].map(piece), [Some((0, 12, 0)), Some((12, 300, 12 << 12)), Some((312, 200, 312 << 12))]);
    assert_eq!(piece(512), Some((512, 512, 1 << 21)));
    assert_eq!(pager.devices.status(device).unwrap().extents, 18);
    pager.check();
}

#[test]
fn a_device_of_extents_goes_and_its_extents_can_be_had_again() {
    let mut pager = SwapPager::new(Config { pages_max: 900, slots_max: 1000, devices_max: 3, extents_max: 200 });
    for round in 0..3 {
        let device = pager.devices.add_mapped_device(1000, 1).unwrap();
        (0..200).for_each(|k| pager.devices.add_extent(device, 0, k << 16, 1 + round).unwrap());
        let slot = store(&mut pager, page(0, 0), 1);
        assert_eq!(pager.devices.device_of(slot).0, device);
        pager.leave(device).unwrap();
        pager.release(page(0, 0));
        pager.remove(device);
        pager.check();
    }
}

//! No operation of the swap pager allocates after construction. Construction allocates zeroed memory, which the operating system
//! backs only as it is touched.

use overspill_swap::{Config, Punch, SwapPager};
use overspill_vm::pager::Pager;
use overspill_vm::types::{ObjectId, PageId, Slot, Tag};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::thread::LocalKey;

/// The system's allocator, with a count of calls that give or take memory.
struct Counting;

// Counted per thread, because the test runner's own thread may allocate at any time: four of its calls were once counted as the
// pager's.
thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
    /// Bytes asked for without asking for zeroes.
    static BYTES_DIRTY: Cell<u64> = const { Cell::new(0) };
}

fn count(count: &'static LocalKey<Cell<u64>>, n: usize) {
    count.set(count.get() + n as u64);
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract; counting touches no allocated
// memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(&CALLS, 1);
        count(&BYTES_DIRTY, layout.size());
        // SAFETY: the caller keeps `alloc`'s contract, which is the same.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(&CALLS, 1);
        // SAFETY: the caller keeps `alloc_zeroed`'s contract, which is the same.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(&CALLS, 1);
        count(&BYTES_DIRTY, size);
        // SAFETY: the caller keeps `realloc`'s contract, which is the same.
        unsafe { System.realloc(at, layout, size) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(&CALLS, 1);
        // SAFETY: the caller keeps `dealloc`'s contract, which is the same.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs `f` and expects no call of the allocator.
fn none<R>(what: &str, f: impl FnOnce() -> R) -> R {
    let before = CALLS.get();
    let result = f();
    assert_eq!(CALLS.get() - before, 0, "{what} allocates");
    result
}

fn page(object: u16, index: u64) -> PageId {
    PageId::new(ObjectId(object), index)
}

/// Stores `count` pages; `false` when the metadata or the slots are used up.
fn store(pager: &mut SwapPager, first: PageId, count: u32) -> bool {
    let mut done = 0;
    while done < count {
        let Some(run) = pager.alloc_run(count - done, first) else { return false };
        let mut remembered = true;
        for k in 0..run.count {
            let slot = Slot(run.first.0 + k);
            if remembered {
                remembered = pager.assign(first.offset((done + k).into()), slot, Tag::of(k.into()));
            } else {
                pager.free_slot(slot);
            }
        }
        if !remembered {
            return false;
        }
        done += run.count;
    }
    true
}

#[test]
fn nothing_allocates_after_construction() {
    let dirty = BYTES_DIRTY.get();
    let config = Config { pages_max: 200_000, slots_max: 100_000, devices_max: 16, extents_max: 1000 };
    let mut pager = SwapPager::new(config);
    let dirty = BYTES_DIRTY.get() - dirty;
    let mut mapped = SwapPager::without_device(config);
    assert!(dirty < 64 * 1024, "{dirty} bytes of tables are written when they are made");
    assert!(pager.metadata_bytes() < 4096);

    none("storing densely", || assert!(store(&mut pager, page(1, 0), 60_000)));
    none("looking up", || {
        for index in 0..70_000 {
            let has = pager.has_page(page(1, index), 64, 64);
            assert_eq!(has.is_some(), index < 60_000);
            assert_eq!(pager.tag(page(1, index)).is_some(), index < 60_000);
        }
    });
    none("storing again", || assert!(store(&mut pager, page(1, 10_000), 5_000)));
    none("renaming", || {
        for k in 0..1000 {
            assert!(pager.rename(page(1, k), page(2, (1 << 35) - 1 - k)));
            assert!(pager.rename(page(1, 20_000 + k), page(3, k * 50_000)));
        }
    });
    none("releasing", || {
        assert!(pager.release(page(1, 59_999)));
        assert_eq!(pager.release_range(page(1, 2_000), 100), 100);
        assert_eq!(pager.release_range(page(3, 0), u64::MAX), 1000);
        assert!(pager.next_stored(page(2, 0)).is_some());
    });
    none("swapping on a device", || pager.devices_mut().add_device(5_000, 0).unwrap());
    none("filling all slots", || {
        let mut at = 0;
        while store(&mut pager, page(7, at), 100) {
            at += 100;
        }
        assert_eq!(pager.used(), pager.devices().capacity());
        for k in (0..50_000).step_by(3) {
            pager.release(page(1, k));
        }
        assert!(store(&mut pager, page(9, 0), 1_000)); // in pieces of one slot
    });
    none("running out of metadata", || {
        pager.release_range(page(1, 0), u64::MAX);
        let mut stored = 0;
        while store(&mut pager, page(10, stored * 12_345), 1) {
            stored += 1;
        }
        assert!(stored > 1_000);
        pager.release_range(page(10, 0), u64::MAX);
    });
    none("forking", || {
        let child = pager.devices_mut().fork_parent();
        pager.release_range(page(7, 0), u64::MAX);
        assert!(pager.devices().deferred() > 0);
        for k in 0..300 {
            let another = pager.devices_mut().fork_parent(); // until epochs are numbered anew
            assert!(store(&mut pager, page(7, k), 1));
            pager.devices_mut().child_gone(another);
        }
        pager.release_range(page(7, 0), u64::MAX);
        pager.devices_mut().child_gone(child);
        assert_eq!(pager.devices().deferred(), 0);
        for generation in 0..14 {
            assert!(pager.devices_mut().fork_child(100_000).is_some(), "generation {generation}");
            assert!(store(&mut pager, page(20, generation * 1000), 1000));
        }
        assert!(pager.devices_mut().fork_child(100_000).is_none());
        assert_eq!(pager.release_range(page(20, 0), 500), 500);
    });
    none("growing and giving back", || {
        let pager = &mut mapped;
        let device = pager.devices_mut().add_mapped_device(100_000, 0).unwrap();
        while pager.devices().wants_extent().is_some() {
            for k in 0..10 {
                pager.devices_mut().add_extent(device, 0, k << 30, 1000).unwrap();
            }
        }
        let mut punched = 0;
        for _ in 0..3 {
            loop {
                match pager.devices_mut().punch_begin(device, 4, 1024) {
                    Punch::Run(run) => {
                        punched += run.count;
                        pager.devices_mut().punched(run, true);
                    }
                    Punch::More => {}
                    Punch::End => break,
                }
            }
        }
        assert!(punched > 1000);
        let run = pager.devices_mut().refill_begin(device, 512).unwrap();
        assert_eq!(pager.devices_mut().set_extents(run, &[100, 400, 12]), Ok(()));
        pager.devices_mut().refilled(run, true);
    });
    none("asking", || {
        (pager.used(), pager.metadata_bytes(), pager.devices().capacity(), pager.devices().stored(), pager.devices().iter().count())
    });
    pager.check();
}

//! Compressed memory.

use crate::compressed::Compressed;
use overspill_machine::devices::Backing;
use overspill_store::PageBytes;
use overspill_store::packing::{Algorithm, Packer};
use overspill_swap::SwapPager;
use overspill_vm::Vm;
use overspill_vm::types::PAGE_SIZE;

#[test]
fn memory_is_taken_as_it_is_used() {
    for algorithm in [Algorithm::Words, Algorithm::Lz4, Algorithm::ZSTD] {
        taken_as_it_is_used(algorithm);
    }
}

fn taken_as_it_is_used(algorithm: Algorithm) {
    let compressed = Compressed::new(8 << 20, 1 << 16, 1 << 20, algorithm).expect("memory");
    assert_eq!(compressed.slots, 8 * 2048);
    let expected = if algorithm == Algorithm::ZSTD { 40..150 } else { 4..8 };
    assert!(expected.contains(&compressed.buffer_pages), "{} pages", compressed.buffer_pages);
    compressed.pool.lock().pool.set_limit(2048);
    compressed.pool.lock().pool.add_credit(2048);
    let resident = || {
        let mut seen = vec![0u8; 2304];
        // SAFETY: the vector has a byte for each page of the arena.
        let asked = unsafe { libc::mincore(compressed.arena as *mut _, 9 << 20, seen.as_mut_ptr()) };
        assert_eq!(asked, 0);
        seen.iter().filter(|s| **s & 1 == 1).count() as u64
    };
    assert_eq!(resident(), 0);
    let mut packer = compressed.packer();
    let page = |n: u32| -> PageBytes { core::array::from_fn(|i| if i < 2000 { ((i as u32 * n) >> 3) as u8 } else { n as u8 }) };
    for n in 1..1000 {
        compressed.store(n, packer.pack(&page(n))).expect("room");
    }
    let counters = compressed.holding().pool;
    assert_eq!(resident(), counters.resident_pages);
    assert!(counters.resident_pages > 20 && counters.stored_pages == 999, "{counters:?}");
    let mut back = [1; PAGE_SIZE];
    for n in 1..1000 {
        compressed.load(n, &mut back);
        assert_eq!(back, page(n));
    }
    compressed.load(1000, &mut back);
    assert_eq!(back, [0; PAGE_SIZE], "there is none");
}

/// A compressed device was added while no frame was free, so it could not grow. Then the file was removed: no page could be stored
/// any more, no frame came free, and the swapoff gave up after three seconds.
#[test]
fn added_to_full_memory_it_can_still_take_pages() {
    let config = overspill_swap::Config { pages_max: 10_000, slots_max: 10_000, devices_max: 2, extents_max: 0 };
    let counters = Box::leak(Box::<overspill_vm::counters::Counters>::default());
    let mut vm = Vm::new(overspill_vm::Config::new(8192, 10_000), SwapPager::new(config), counters).expect("a good configuration");
    vm.charge(vm.available());
    let compressed = Compressed::new(8 << 20, 8192, 10_000, Algorithm::Lz4).expect("memory");
    compressed.enter(&mut vm, 0).expect("room for a device");
    let noise: PageBytes = core::array::from_fn(|i| if i < 3000 { ((i * i) >> 5) as u8 } else { 0 });
    compressed.store(0, Packer::new(Algorithm::Lz4).pack(&noise)).expect("there is credit");
}

/// Added while the process had a small part of its family's budget, it could never take more than half of that part.
#[test]
fn added_to_a_small_part_of_the_budget_it_can_grow_with_it() {
    let Some((machine, _)) = super::machine("compressed-part") else { return };
    let most = machine.core.lock().vm.budget_max();
    machine.core.lock().vm.set_limit(most / 4);
    let Ok(Backing::Memory(compressed)) = Backing::memory(&machine, None, Algorithm::Words) else { panic!("there is memory") };
    compressed.enter(&mut machine.core.lock().vm, 0).expect("room for a device");
    machine.core.lock().vm.set_limit(most);
    compressed.set_size(u64::from(most / 2));
    assert_eq!(compressed.pool.lock().size_pages(), u64::from(most / 2));
    compressed.leave(&mut machine.core.lock().vm);
}

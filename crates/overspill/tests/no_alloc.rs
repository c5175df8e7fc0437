//! A fault allocates nothing, nor do laundering, reclaim and page-in, with either engine and delivery.

mod common;

use common::*;
use overspill::{Delivery, Engine, Pager, device_spec};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::*};

struct Counting;
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: all calls go to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    // (left to the default, which writes the zeroes, the tables would take 12 GiB of memory)
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn main() {
    compressed();
    for delivery in [Delivery::InThread, Delivery::Threads] {
        for engine in [Engine::Uring, Engine::Psync] {
            let Some(pager) = build(Pager::builder().memory(BUDGET).delivery(delivery).engine(engine)) else { continue };
            let mut region = pager.region_of::<u64>(4 * MIB).expect("32 MiB");
            let mut rng = Rng(3);
            let mut before = 0;
            for round in 0..3u64 {
                if round == 1 {
                    // the pager's threads have long started, and everything has been paged out once
                    before = ALLOCATIONS.load(SeqCst);
                }
                for (i, word) in region.iter_mut().enumerate().step_by(512) {
                    assert_eq!(*word, if round == 0 { 0 } else { i as u64 + round });
                    *word = i as u64 + round + 1;
                }
            }
            for _ in 0..20_000 {
                let page = rng.below(4 * MIB / 512);
                assert_eq!(region[page * 512], page as u64 * 512 + 3);
            }
            let allocations = ALLOCATIONS.load(SeqCst) - before;
            let c = pager.counters();
            for (what, n) in [
                ("zero fills", c.zero_fills.get()),
                ("soft faults", c.soft_faults.get()),
                ("hard faults", c.hard_faults.get()),
                ("pages in", c.pages_in.get()),
                ("pages out", c.pages_out.get()),
                ("readahead", c.readahead_used.get()),
                ("reclaimed", c.pages_reclaimed.get()),
                ("clean", c.pages_reclaimed_clean.get()),
            ] {
                assert!(n > 50, "{what}: only {n}");
            }
            assert_eq!(allocations, 0, "{delivery:?}, {engine:?}");
            assert_budget(&pager, 1);
            println!("{delivery:?}, {engine:?}: {} hard faults, no allocation", c.hard_faults.get());
        }
    }
}

/// The same with compressed memory in front of a file: packing, unpacking, refusing, writing back, memory that comes and goes.
fn compressed() {
    for (delivery, algorithm) in [(Delivery::InThread, "words"), (Delivery::Threads, "zstd")] {
        let pool = device_spec::parse(format!("compressed:size=2M,algo={algorithm}").as_ref()).expect("a device");
        let builder = Pager::builder().memory(BUDGET).delivery(delivery).swap_device(pool);
        let Some(pager) = build(builder.swap_device(device_spec::DeviceSpec::file(std::env::temp_dir()))) else { continue };
        let mut region = pager.region_of::<u64>(4 * MIB).expect("32 MiB");
        let (mut rng, mut before) = (Rng(3), 0);
        for round in 0..4u64 {
            if round == 1 {
                before = ALLOCATIONS.load(SeqCst);
            }
            for (number, page) in region.chunks_mut(512).enumerate() {
                let noise = (number % 4 == 0) as u64 * u64::MAX;
                for (i, word) in page.iter_mut().enumerate() {
                    *word = (rng.next() & (noise | 0xfff)) + round + i as u64;
                }
            }
        }
        let allocations = ALLOCATIONS.load(SeqCst) - before;
        let c = pager.counters();
        let done = [&c.pool_refused, &c.pool_written_back, &c.pages_in].map(|n| n.get());
        assert!(done.iter().all(|n| *n > 50), "{done:?}");
        assert_eq!(allocations, 0, "{delivery:?}");
        println!("{delivery:?}, compressed by {algorithm}: {done:?}, no allocation");
    }
}

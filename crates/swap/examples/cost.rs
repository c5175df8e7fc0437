//! Measures the swap pager's operations, in nanoseconds each: `cargo run --release -p overspill-swap --example cost`.
//!
//! Sizes are those of a machine with 16 GiB of swap of which 8 GiB are in use. Every figure is the mean over many operations,
//! the best of five rounds.

use overspill_swap::blist::Blist;
use overspill_swap::{Config, SwapPager};
use overspill_vm::pager::Pager;
use overspill_vm::types::{ObjectId, PageId, Slot, Tag};
use std::hint::black_box;
use std::time::Instant;

const STORED: u64 = 2 << 20;
const SLOTS: u32 = 4 << 20;
const LOOKUPS: u64 = 1 << 20;
/// Where a program's heap may lie, in pages: the trie has its full height for an address space.
const BASE: u64 = 0x7f12_3456_7000 >> 12;

fn page(index: u64) -> PageId {
    PageId::new(ObjectId(0), BASE + index)
}

/// A pseudorandom permutation of 0..2^bits, so that a store in that order is scattered, without a table.
fn scatter(index: u64, bits: u32) -> u64 {
    index.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index.wrapping_mul(index) << 1) & ((1 << bits) - 1)
}

/// Nanoseconds per operation, the best of five rounds.
fn best(operations: u64, mut round: impl FnMut()) -> f64 {
    let time = |_| {
        let start = Instant::now();
        round();
        start.elapsed().as_nanos() as f64 / operations as f64
    };
    (0..5).map(time).fold(f64::INFINITY, f64::min)
}

fn store(pager: &mut SwapPager, cluster: u32, at: impl Fn(u64) -> u64) {
    let mut done = 0;
    while done < STORED {
        let run = pager.alloc_run(cluster, PageId::new(ObjectId(0), 0)).unwrap();
        for k in 0..run.count {
            assert!(pager.assign(page(at(done)), Slot(run.first.0 + k), Tag::of(done)));
            done += 1;
        }
    }
}

fn main() {
    let config = Config { pages_max: 16 << 20, slots_max: SLOTS, devices_max: 16, extents_max: 0 };
    let start = Instant::now();
    let mut pager = SwapPager::new(config);
    println!("construction                               {:8.1} us", start.elapsed().as_nanos() as f64 / 1000.0);

    let start = Instant::now();
    store(&mut pager, 32, |k| k);
    let ns = start.elapsed().as_nanos() as f64 / STORED as f64;
    println!("first store in clusters of 32, per page    {ns:8.1} ns (touches the tables)");
    println!("metadata                                   {:8.2} bytes per page", pager.metadata_bytes() as f64 / STORED as f64);

    for window in [0, 8, 32, 64] {
        let ns = best(LOOKUPS, || {
            for k in 0..LOOKUPS {
                black_box(pager.has_page(page(k % STORED), window, window));
            }
        });
        println!("has_page {window:2} + {window:2}, in order                 {ns:8.1} ns");
    }
    for window in [0, 32] {
        let ns = best(LOOKUPS, || {
            for k in 0..LOOKUPS {
                black_box(pager.has_page(page(scatter(k, 21)), window, window));
            }
        });
        println!("has_page {window:2} + {window:2}, anywhere                 {ns:8.1} ns");
    }
    let ns = best(LOOKUPS, || {
        for k in 0..LOOKUPS {
            black_box(pager.tag(page(scatter(k, 21))));
        }
    });
    println!("tag, anywhere                              {ns:8.1} ns");

    let ns = best(STORED, || store(&mut pager, 32, |k| k));
    println!("store again in clusters of 32, per page    {ns:8.1} ns (alloc_run / 32 + assign + free of the old slot)");
    let ns = best(STORED, || store(&mut pager, 32, |k| scatter(k, 21)));
    println!("the same, pages anywhere, per page         {ns:8.1} ns");

    let start = Instant::now();
    let child = pager.devices_mut().fork_parent();
    println!("fork_parent                                {:8.1} us", start.elapsed().as_nanos() as f64 / 1000.0);
    let start = Instant::now();
    let released = pager.release_range(page(0), STORED);
    println!("release_range, per page                    {:8.1} ns", start.elapsed().as_nanos() as f64 / released as f64);
    let start = Instant::now();
    pager.devices_mut().child_gone(child);
    println!("child_gone, per deferred slot              {:8.1} ns", start.elapsed().as_nanos() as f64 / released as f64);
    let ns = best(100_000, || {
        for _ in 0..100_000 {
            black_box(pager.release_range(page(0), 1 << 28));
        }
    });
    println!("release_range of an absent TiB             {ns:8.1} ns");

    // The slot allocator alone, on 2^26 slots (256 GiB).
    let slots = 1 << 26;
    for (name, every) in [("empty", 0), ("1/2 used, ragged", 2), ("99.9 % used, ragged", 1000)] {
        let mut list = Blist::new(slots);
        list.set_len(slots);
        if every > 0 {
            // Everything used, then runs of 1 to 16 free at irregular distances.
            while list.alloc_run(512, slots).is_some() {}
            let mut at = 0;
            while at < slots - 2000 {
                let run = if every == 2 { 1 + scatter(u64::from(at), 4) as u32 } else { 1 };
                list.free_run(at, run);
                at += run + (scatter(u64::from(at), 20) as u32 % (run * every)).max(1);
            }
        }
        for want in [1, 32] {
            let mut list = list.clone();
            let mut given = 0u64;
            let rounds = 60_000;
            let start = Instant::now();
            for _ in 0..rounds {
                given += u64::from(list.alloc_run(want, slots).unwrap().1);
            }
            let ns = start.elapsed().as_nanos() as f64 / rounds as f64;
            println!("alloc_run({want:2}), {name:20}        {ns:8.1} ns, {:4.1} slots given", given as f64 / rounds as f64);
        }
        if every > 0 {
            let mut at = 1;
            let mut freed = 0u64;
            let start = Instant::now();
            while freed < 200_000 && at < slots {
                if !list.is_free(at) {
                    list.free(at);
                    freed += 1;
                }
                at += 301;
            }
            println!("free(slot),    {name:20}        {:8.1} ns", start.elapsed().as_nanos() as f64 / freed as f64);
        }
    }
}

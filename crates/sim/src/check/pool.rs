//! Property: compressed memory holds exactly what is stored there, under its page's number, and all that it takes is charged.

use crate::process::Process;
use crate::store::Store;

/// Walks over the pool of a process.
pub fn check<S: Store>(process: &Process<S>) {
    let pool = process.vm.pager().pool.as_ref();
    let charged = pool.map_or(0, |pool| pool.charged());
    let frames = process.vm.used() as u64 + process.vm.reserved() + process.held_copies;
    assert_eq!(process.vm.charge_total(), frames + charged, "pool: charged, but {frames} for frames and {charged} for the pool");
    let Some(pool) = pool else { return };
    pool.kept.pool.check();
    let mut stored = 0;
    for at in 0..process.mapped.len() {
        let Some((file, slot)) = process.stored(at) else { continue };
        if file == pool.file {
            stored += 1;
            assert!(pool.kept.pool.contains(slot), "pool: page {at} is stored in slot {slot}, and nothing is there");
            let named = process.vm.pager().inner.page_of(pool.device, slot);
            assert!(named == Some(process.page(at)), "pool: slot {slot} is named {named:?} and holds page {at}");
        }
    }
    let counters = pool.kept.pool.counters();
    assert_eq!(counters.stored_pages, stored, "pool: it holds pages that are stored nowhere");
    assert!(counters.resident_pages <= pool.kept.size_pages(), "pool: larger than it may be: {counters:?}");
}

//! Sealed memory stays mapped as long as the process lives, so the rule about it has a process of its own.

mod linux;

use overspill_simkernel::rules::events;

#[test]
fn a_refused_unmap_of_sealed_memory_is_told() {
    linux::compare(events::a_refused_unmap_of_sealed_memory_is_told);
}

//! Property: when everything has been given up, nothing is left in use: no frame, no charge, no slot.

use crate::check::slots::SlotBook;
use crate::process::Process;
use crate::store::Store;
use overspill_vm::pager::Pager;

/// A process that has released all its pages.
pub fn check_process<S: Store>(process: &Process<S>) {
    process.vm.check(2);
    assert_eq!(process.vm.used(), 0, "leaks: frames are in use after everything was released");
    assert_eq!(process.vm.charge_total(), 0, "leaks: memory is charged after everything was released");
    assert_eq!(process.vm.laundering(), 0, "leaks: pages are laundered after everything was released");
    for object in 0..2 {
        let first = overspill_vm::types::PageId::new(overspill_vm::types::ObjectId(object), 0);
        let left = process.vm.next_present(first, overspill_vm::OBJECT_PAGES_MAX);
        assert!(left.is_none(), "leaks: {left:?} is {:?} after everything was released", left.map(|p| process.vm.page(p)));
    }
}

/// The store, when the first process has released everything and all others have ended.
pub fn check_store<S: Store>(process: &mut Process<S>, book: &SlotBook) {
    assert_eq!(process.vm.pager().used(), 0, "leaks: slots are in use after everything was released");
    assert_eq!(book.held(), 0, "leaks: slots are held after everything was released");
    process.vm.pager().inner.check();
}

//! Pages that are copied out.

use crate::area;
use crate::machine::Served;
use crate::ranges::{Flags, Range};
use crate::sys;
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};
use overspill_vm::types::PAGE_SIZE as P;

/// Until the page daemon's own discard is over, no content may come to a page that it has copied out, not even by readahead: the
/// discard would remove it. (Found by reading the code; no run has shown it.)
#[test]
fn nothing_comes_to_a_page_that_is_still_to_be_discarded() {
    let Some((machine, base)) = super::machine("refilled") else { return };
    let range = Range { start: base, end: base + 4 * P, origin: base, ..Range::of_program(Flags::NONE) };
    {
        let mut map = machine.map.write();
        map.origins[0] = base;
        machine.manage(&mut map, range);
        map.copying.begin([base + P].into_iter());
    }
    assert!(matches!(machine.serve(base + P, 0, false), Served::Busy));
    assert!(matches!(machine.serve(base, 0, false), Served::Done));
    assert!(!sys::is_resident(base + P), "nor did it come with its neighbour");
    machine.map.write().copying.end();
    assert!(matches!(machine.serve(base + P, 0, false), Served::Done) && sys::is_resident(base + P));
    // SAFETY: nobody uses it any more.
    unsafe { area::unmap(base as *mut u8, 3 * super::LEN) };
}

/// A page that is being copied out counts as busy, until a thread installs a guard over it. A fork did not wait for the page daemon
/// then. In the child, where nobody ends the copying, faults and calls there waited for ever. (Found by reading the code.)
#[test]
fn a_fork_waits_for_pages_that_are_copied_out() {
    let Some((machine, base)) = super::machine("copied") else { return };
    machine.map.write().copying.begin([base].into_iter());
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            let mut map = machine.map.write();
            ended.store(true, SeqCst);
            map.copying.end();
        });
        let forked = machine.fork(|_| if ended.load(SeqCst) { Err(libc::EAGAIN) } else { Err(libc::EBUSY) });
        assert_eq!(forked.err(), Some(libc::EAGAIN));
    });
}

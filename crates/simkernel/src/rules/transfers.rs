//! Filling pages: UFFDIO_COPY, ZEROPAGE, POISON, WRITEPROTECT.

use super::*;
use crate::call::{Advice, Progress::*, READ, SIGBUS, SIGSEGV};
use crate::errno::*;
use crate::lab::Answer;
use crate::pmap::{Message, Moved, Present};

/// A page that is there is left alone, and ends a copy.
pub fn a_copy_fills_what_is_missing(s: &mut Session) {
    managed(s, 0, 4);
    assert_eq!(s.transfer(Op::CopyIn(2, 1, 5)), Moved::done(PAGE));
    assert_eq!(s.transfer(Op::CopyIn(2, 1, 6)), Moved::refused(EEXIST));
    assert_eq!(s.transfer(Op::CopyIn(0, 4, 7)), Moved::done(2 * PAGE));
    assert_eq!(s.transfer(Op::ZeroIn(2, 2)), Moved::refused(EEXIST));
    assert_eq!(s.transfer(Op::ZeroIn(3, 1)), Moved::done(PAGE));
    assert_eq!(s.transfer(Op::CopyIn(3, 1, 6)), Moved::refused(EEXIST));
    assert_eq!([0, 1, 2, 3].map(|n| s.peek(n)), [7, 7, 5, 0]);
    assert_eq!(s.now(write(3, 9)), Outcome::Ok(0));
    s.note_state();
}

/// A copy replaces guards and other marks; a fill with zeroes does not. (Guards were overwritten when the pager filled pages at a
/// touch.)
pub fn a_copy_takes_the_place_of_marks(s: &mut Session) {
    managed(s, 0, 4);
    s.now(advise(0, 2, Advice::GuardInstall));
    assert_eq!(s.change(Op::Poison(2, 2)), Ok(()));
    assert_eq!([0, 2].map(|n| s.transfer(Op::ZeroIn(n, 1))), [Moved::refused(EEXIST); 2]);
    assert_eq!([0, 2].map(|n| s.transfer(Op::CopyIn(n, 1, 3))), [Moved::done(PAGE); 2]);
    assert_eq!([0, 2].map(|n| s.now(read(n))), [Outcome::Ok(3); 2]);
    assert_eq!([1, 3].map(|n| s.now(read(n))), [Outcome::Signal(SIGSEGV), Outcome::Signal(SIGBUS)]);
    s.note_state();
}

/// ENOENT where nothing is registered, and across a border between mappings. It does not matter on which userfaultfd the mapping is
/// registered.
pub fn a_copy_needs_a_mapping_that_is_registered(s: &mut Session) {
    map(s, 0, 4);
    assert_eq!(s.transfer(Op::CopyIn(0, 1, 1)), Moved::refused(ENOENT));
    assert_eq!(s.transfer(Op::CopyIn(8, 1, 1)), Moved::refused(ENOENT));
    s.change(Op::Register(0, 4, false)).expect("it is mapped");
    s.now(protect(2, 2, READ));
    assert_eq!(s.transfer(Op::CopyIn(0, 4, 1)), Moved::refused(ENOENT));
    assert_eq!(s.transfer(Op::CopyIn(3, 2, 1)), Moved::refused(ENOENT));
    assert_eq!(s.transfer(Op::CopyIn(2, 2, 1)), Moved::done(2 * PAGE));
    // the parking area is registered on the other one
    let other = crate::lab::PARKING;
    s.act(Op::Call(0, Call::CopyIn { at: other, byte: 4 }));
    s.note_state();
}

/// A page that was taken while it was writable comes back by a copy, whatever the program's protection is by then.
pub fn a_copy_goes_where_the_program_may_not(s: &mut Session) {
    filled(s, 0, 2);
    assert_eq!(s.transfer(Op::Take(0, 0, 2)), Moved::done(2 * PAGE));
    s.now(protect(0, 1, READ));
    s.now(protect(1, 1, 0));
    assert_eq!([0, 1].map(|n| s.transfer(Op::GiveBack(n, n, 1))), [Moved::refused(EINVAL); 2]);
    assert_eq!([0, 1].map(|n| s.transfer(Op::Restore(n, n, 1))), [Moved::done(PAGE); 2]);
    assert_eq!([0, 1].map(|n| s.now(read(n))), [Outcome::Ok(100), Outcome::Signal(SIGSEGV)]);
    s.note_state();
}

/// Between an event and its reading, the pager's map differs from the kernel's. The parking area's userfaultfd has no events and is
/// not held back: a page that is taken in that time is taken by its address.
pub fn nothing_is_transferred_while_an_event_is_unread(s: &mut Session) {
    filled(s, 0, 3);
    managed(s, 8, 2);
    assert_eq!(s.call(1, unmap(2, 1)), Waits);
    assert!(s.changing());
    let refused = Moved::refused(EAGAIN);
    assert_eq!(s.transfer(Op::CopyIn(8, 1, 1)), refused);
    assert_eq!(s.transfer(Op::CopyIn(0, 1, 1)), refused, "before all else");
    assert_eq!(s.transfer(Op::ZeroIn(8, 1)), refused);
    assert_eq!(s.change(Op::Poison(8, 1)), Err(EAGAIN));
    assert_eq!(s.change(Op::Protect(0, 1, true)), Err(EAGAIN));
    assert_eq!(s.transfer(Op::Take(0, 0, 1)), Moved::done(PAGE));
    assert_eq!(s.transfer(Op::GiveBack(0, 0, 1)), refused);
    assert_eq!(s.transfer(Op::ParkCopy(1, 1)), Moved::done(PAGE));
    assert_eq!(s.change(Op::Register(8, 2, true)), Ok(()));
    assert_eq!(s.message(), Some(Message::Unmap { start: page(2), end: page(3) }));
    assert_eq!(s.transfer(Op::GiveBack(0, 0, 1)), Moved::done(PAGE));
    s.note_state();
}

/// A page that was lost: SIGBUS at a touch, EFAULT in a call. A discard removes the mark.
pub fn poison_is_an_error(s: &mut Session) {
    filled(s, 0, 1);
    managed(s, 1, 3);
    assert_eq!(s.change(Op::Poison(0, 1)), Err(EEXIST));
    assert_eq!(s.call(1, write(1, 1)), Waits);
    s.message();
    assert_eq!(s.change(Op::Poison(1, 2)), Ok(()));
    assert_eq!(s.progress(1), Done(Outcome::Signal(SIGBUS)), "poison wakes");
    assert_eq!(s.now(read(2)), Outcome::Signal(SIGBUS));
    assert_eq!(s.now(Call::KernelRead { at: page(2) }), Outcome::Err(EFAULT));
    assert_eq!(s.change(Op::Poison(1, 1)), Err(EEXIST));
    assert_eq!(s.act(Op::Unshare(1)), Answer::Is(false));
    assert_eq!(s.call(1, advise(1, 1, Advice::DontNeed)), Waits);
    s.message();
    assert_eq!((s.present(1), s.present(2)), (Present::Absent, Present::Poison));
    s.note_state();
}

/// A thread that writes to a protected page waits; one that reads does not. ENOENT where the range is not registered for it.
pub fn a_protected_page_tells_of_writes(s: &mut Session) {
    filled(s, 0, 3);
    assert_eq!(s.change(Op::Protect(0, 1, true)), Err(ENOENT));
    s.change(Op::Register(0, 3, true)).expect("again");
    assert_eq!(s.change(Op::Protect(0, 2, true)), Ok(()));
    assert_eq!(s.now(read(0)), Outcome::Ok(100));
    assert_eq!(s.call(1, write(0, 1)), Waits);
    assert_eq!(s.message(), Some(Message::Fault { at: page(0), write: true }));
    s.now(protect(1, 1, READ));
    assert_eq!(s.now(write(1, 1)), Outcome::Signal(SIGSEGV), "the mapping's protection comes first");
    s.act(Op::Wake(0, 1));
    assert_eq!(s.progress(1), Waits, "it is protected still");
    s.message();
    assert_eq!(s.change(Op::Protect(0, 1, false)), Ok(()));
    assert_eq!(s.progress(1), Done(Outcome::Ok(0)));
    s.note_state();
}

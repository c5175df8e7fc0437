//! Threads that wait for pages, and what wakes them.

use super::*;
use crate::call::{Advice, Progress::*, SIGSEGV};
use crate::errno::*;
use crate::lab::Answer;
use crate::pmap::{Message, Moved};

/// Filling a page wakes nobody. A wake is by address, for all threads that wait there. A thread that finds no page waits again, and
/// its fault is reported again.
pub fn a_fault_waits_for_its_wake(s: &mut Session) {
    managed(s, 0, 4);
    assert_eq!(s.call(0, read(0)), Waits);
    assert_eq!(s.call(1, write(0, 9)), Waits);
    assert_eq!(s.call(2, read(2)), Waits);
    for (number, write) in [(0, false), (0, true), (2, false)] {
        assert_eq!(s.message(), Some(Message::Fault { at: page(number), write }));
    }
    assert_eq!(s.message(), None);
    assert_eq!(s.transfer(Op::CopyIn(0, 1, 3)), Moved::done(PAGE));
    assert_eq!(s.progress(0), Waits);
    s.act(Op::Wake(1, 3));
    assert_eq!([0, 1, 2].map(|t| s.progress(t)), [Waits; 3]);
    assert_eq!(s.message(), Some(Message::Fault { at: page(2), write: false }), "again");
    s.act(Op::Wake(0, 1));
    assert!(matches!(s.lab.progress(0), Done(Outcome::Ok(3 | 9))), "before or after the other's write");
    assert_eq!(s.progress(1), Done(Outcome::Ok(0)));
    s.transfer(Op::ZeroIn(2, 1));
    s.act(Op::Wake(2, 1));
    assert_eq!(s.progress(2), Done(Outcome::Ok(0)));
    s.note_state();
}

/// A move wakes the threads that wait at its target, as far as it came.
pub fn a_move_wakes(s: &mut Session) {
    managed(s, 0, 3);
    assert_eq!([0, 1].map(|n| s.transfer(Op::ParkCopy(n, 5))), [Moved::done(PAGE); 2]);
    assert_eq!(s.call(0, read(0)), Waits);
    assert_eq!(s.call(1, read(2)), Waits);
    assert_eq!(s.transfer(Op::GiveBack(0, 0, 3)), Moved::done(2 * PAGE));
    assert_eq!([0, 1].map(|t| s.progress(t)), [Done(Outcome::Ok(5)), Waits]);
    s.note_state();
}

/// If another thread fills the page and wakes before the message was read, the message is gone. (So poll(2) may report a message
/// that is not there any more.)
pub fn a_fault_that_is_woken_is_not_told(s: &mut Session) {
    managed(s, 0, 1);
    assert_eq!(s.call(0, read(0)), Waits);
    assert!(s.lab.readable());
    s.transfer(Op::CopyIn(0, 1, 3));
    assert!(s.lab.readable(), "still");
    s.act(Op::Wake(0, 1));
    assert_eq!(s.progress(0), Done(Outcome::Ok(3)));
    assert_eq!(s.message(), None);
    s.note_state();
}

/// A system call that meets a missing page waits as a touch does.
pub fn the_kernel_waits_for_pages_too(s: &mut Session) {
    managed(s, 0, 1);
    assert_eq!(s.call(1, Call::KernelRead { at: page(0) }), Waits);
    assert_eq!(s.message(), Some(Message::Fault { at: page(0), write: false }));
    s.transfer(Op::CopyIn(0, 1, 3));
    s.act(Op::Wake(0, 1));
    assert_eq!(s.progress(1), Done(Outcome::Ok(3)));
    s.note_state();
}

/// The page daemon un-shared pages by populating them. If the program has discarded the page meanwhile, that waits for a handler.
/// The handlers waited for a fork, and the fork for the daemon.
pub fn populating_waits(s: &mut Session) {
    filled(s, 0, 1);
    managed(s, 1, 2);
    assert_eq!(s.act(Op::Unshare(1)), Answer::Is(false));
    assert_eq!(s.call(1, advise(0, 2, Advice::PopulateWrite)), Waits);
    assert_eq!(s.message(), Some(Message::Fault { at: page(1), write: true }));
    s.transfer(Op::CopyIn(1, 1, 3));
    s.act(Op::Wake(1, 1));
    assert_eq!(s.progress(1), Done(Outcome::Ok(0)));
    assert_eq!(s.call(1, advise(2, 2, Advice::PopulateRead)), Waits);
    assert_eq!(s.message(), Some(Message::Fault { at: page(2), write: false }));
    s.transfer(Op::ZeroIn(2, 1));
    s.act(Op::Wake(2, 1));
    assert_eq!(s.progress(1), Done(Outcome::Err(ENOMEM)), "not all of it is mapped");
    s.note_state();
}

/// mlock brings all pages in, one after the other, and waits for each.
pub fn locking_waits(s: &mut Session) {
    managed(s, 0, 2);
    assert_eq!(s.call(1, Call::Lock { at: page(0), len: 2 * PAGE }), Waits);
    for n in [0, 1] {
        assert_eq!(s.message(), Some(Message::Fault { at: page(n), write: true }));
        s.transfer(Op::ZeroIn(n, 1));
        s.act(Op::Wake(n, 1));
        s.progress(1);
        // a page of zeroes does not suffice: the page must be writable
        s.note_state();
    }
    assert_eq!(s.progress(1), Done(Outcome::Ok(0)));
}

/// A read returns faults first, then events, each kind in the order in which it came.
pub fn faults_are_told_before_events(s: &mut Session) {
    managed(s, 0, 4);
    assert_eq!(s.call(0, unmap(0, 1)), Waits);
    assert_eq!(s.call(1, read(2)), Waits);
    assert_eq!(s.call(2, unmap(1, 1)), Waits);
    let fault = Message::Fault { at: page(2), write: false };
    let unmap = |n: usize| Message::Unmap { start: page(n), end: page(n + 1) };
    assert_eq!(s.act(Op::Read(8)), Answer::Messages(vec![fault, unmap(0), unmap(1)]));
    assert_eq!([0, 2].map(|t| s.progress(t)), [Done(Outcome::Ok(0)); 2]);
    assert_eq!(s.change(Op::Unregister(2, 1)), Ok(()));
    assert_eq!(s.progress(1), Done(Outcome::Ok(0)), "no longer registered: it reads zeroes");
    s.note_state();
}

/// Guard pages are errors at once: SIGSEGV at a touch, EFAULT in a call. Their installation is not reported, and drops the pages. A
/// discard leaves them.
pub fn guards_are_errors_without_a_message(s: &mut Session) {
    filled(s, 0, 2);
    assert_eq!(s.now(advise(0, 1, Advice::GuardInstall)), Outcome::Ok(0));
    assert_eq!(s.message(), None);
    assert_eq!(s.now(write(0, 1)), Outcome::Signal(SIGSEGV));
    assert_eq!(s.now(Call::KernelRead { at: page(0) }), Outcome::Err(EFAULT));
    assert_eq!(s.call(1, advise(0, 2, Advice::DontNeed)), Waits);
    s.message();
    assert_eq!(s.now(read(0)), Outcome::Signal(SIGSEGV));
    assert_eq!(s.now(advise(0, 1, Advice::GuardRemove)), Outcome::Ok(0));
    assert_eq!(s.call(1, read(0)), Waits);
    s.transfer(Op::ZeroIn(0, 1));
    s.act(Op::Wake(0, 1));
    assert_eq!(s.progress(1), Done(Outcome::Ok(0)));
    s.note_state();
}

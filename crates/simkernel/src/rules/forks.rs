//! What a fork's child inherits.

use super::*;
use crate::call::{Advice, Progress::*, SIGBUS, SIGSEGV};
use crate::lab::Session;
use crate::pmap::{Moved, Present};

fn fork(s: &mut Session) -> usize {
    match s.now(Call::Fork) {
        Outcome::Ok(child) => child,
        other => panic!("{other:?}"),
    }
}

/// The child's mappings are not registered: pages that the parent's pager holds silently read as zeroes. Pages that are present are
/// shared until either side writes. Nothing is reported.
pub fn a_child_is_not_registered(s: &mut Session) {
    filled(s, 0, 3);
    s.transfer(Op::Take(0, 0, 1));
    let child = fork(s);
    assert_eq!(s.message(), None);
    assert_eq!(s.call(child, read(0)), Done(Outcome::Ok(0)), "parked");
    assert_eq!(s.call(child, read(1)), Done(Outcome::Ok(101)));
    assert_eq!(s.call(child, write(1, 1)), Done(Outcome::Ok(0)));
    assert_eq!(s.call(child, read(1)), Done(Outcome::Ok(1)));
    assert_eq!(s.now(read(1)), Outcome::Ok(101));
    assert_eq!(s.now(write(2, 2)), Outcome::Ok(0));
    assert_eq!(s.call(child, read(2)), Done(Outcome::Ok(102)));
    assert_eq!(s.call(child, unmap(0, 2)), Done(Outcome::Ok(0)), "and nobody is told of what it does");
    assert_eq!(s.call(child, read(crate::lab::PAGES + 16)), Done(Outcome::Ok(100)), "what is parked it has too");
    assert_eq!(s.call(1, read(0)), Waits);
    s.note_state();
}

/// MADV_DONTFORK: not mapped. MADV_WIPEONFORK: empty. Both move along with the memory (the pager once forgot that), and end when
/// they are taken back.
pub fn a_child_lacks_what_it_was_told_to(s: &mut Session) {
    filled(s, 0, 6);
    assert_eq!(s.now(advise(0, 1, Advice::DontFork)), Outcome::Ok(0));
    assert_eq!(s.now(advise(1, 2, Advice::WipeOnFork)), Outcome::Ok(0));
    assert_eq!(s.now(advise(2, 1, Advice::KeepOnFork)), Outcome::Ok(0));
    s.call(1, remap(1, 1, Some(10), 1));
    s.message();
    s.message();
    let child = fork(s);
    assert_eq!(s.call(child, read(0)), Done(Outcome::Signal(SIGSEGV)));
    assert_eq!(s.call(child, read(10)), Done(Outcome::Ok(0)));
    assert_eq!(s.call(child, read(2)), Done(Outcome::Ok(102)));
    assert_eq!(s.transfer(Op::Take(0, 0, 1)), Moved::done(PAGE), "nobody shares it");
    assert_eq!(s.transfer(Op::Take(10, 1, 1)), Moved::done(PAGE), "nor this");
    s.note_state();
}

/// A userfaultfd acts on the memory of the process that made it, whoever uses it. A child's calls wrote into the memory of its
/// parent.
pub fn an_inherited_descriptor_acts_on_the_parent(s: &mut Session) {
    managed(s, 0, 2);
    let child = fork(s);
    assert_eq!(s.call(child, Call::CopyIn { at: page(0), byte: 7 }), Done(Outcome::Ok(PAGE)));
    assert_eq!(s.call(child, read(0)), Done(Outcome::Ok(0)));
    assert_eq!(s.now(read(0)), Outcome::Ok(7));
    s.note_state();
}

/// The child has poison and guards as well.
pub fn marks_are_inherited(s: &mut Session) {
    managed(s, 0, 3);
    s.change(Op::Poison(0, 1)).expect("it is empty");
    s.now(advise(1, 1, Advice::GuardInstall));
    let child = fork(s);
    assert_eq!(s.call(child, read(0)), Done(Outcome::Signal(SIGBUS)));
    assert_eq!(s.call(child, read(1)), Done(Outcome::Signal(SIGSEGV)));
    s.note_state();
}

/// A page that a device has pinned stays its parent's: the child gets a copy at once.
pub fn pages_are_not_shared_with_a_pin(s: &mut Session) {
    filled(s, 0, 2);
    s.lab.pin(Some(page(0)));
    let child = fork(s);
    assert_eq!(s.call(child, read(0)), Done(Outcome::Ok(100)));
    s.lab.pin(None);
    assert_eq!(s.present(0), Present::Page { protected: false });
    // (the kernel releases a pin in its own time, so only pages that were never pinned are asked for)
    assert_eq!(s.transfer(Op::Take(1, 1, 1)), Moved::refused(crate::errno::EBUSY));
    s.note_state();
}

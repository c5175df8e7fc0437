//! Taking pages out and putting them back: UFFDIO_MOVE.

use super::*;
use crate::call::{Advice, READ, READ_WRITE_EXEC};
use crate::errno::*;
use crate::lab::Answer;
use crate::pmap::{Moved, Present};

/// The pages before a hole are moved. The next call reports the hole.
pub fn a_move_stops_at_a_hole(s: &mut Session) {
    managed(s, 0, 5);
    assert_eq!([0, 3].map(|n| s.transfer(Op::CopyIn(n, 2, 1))), [Moved::done(2 * PAGE); 2]);
    assert_eq!(s.transfer(Op::Take(0, 0, 5)), Moved::done(2 * PAGE));
    assert_eq!(s.transfer(Op::Take(2, 2, 3)), Moved::refused(ENOENT));
    assert_eq!(s.transfer(Op::Take(3, 3, 2)), Moved::done(2 * PAGE));
    assert_eq!(s.transfer(Op::Take(3, 3, 2)), Moved::refused(EEXIST), "the place is not empty, which is looked at first");
    assert_eq!(s.transfer(Op::Take(3, 5, 2)), Moved::refused(ENOENT), "it has gone");
    s.note_state();
}

/// A border between mappings in the range: EINVAL, and nothing is moved.
pub fn a_move_stays_within_a_mapping(s: &mut Session) {
    filled(s, 0, 4);
    s.now(protect(2, 2, READ));
    assert_eq!(s.transfer(Op::Take(0, 0, 4)), Moved::refused(EINVAL));
    assert_eq!(s.transfer(Op::Take(0, 0, 2)), Moved::done(2 * PAGE));
    assert_eq!(s.transfer(Op::Take(40, 4, 1)), Moved::refused(ENOENT), "nothing is mapped there");
    assert_eq!(s.transfer(Op::Take(0, 40, 1)), Moved::refused(ENOENT), "nor there");
    s.note_state();
}

/// Source and target must have the same protection, and be writable. (Memory that was writable and executable could not be
/// evicted.)
pub fn a_move_wants_both_sides_alike(s: &mut Session) {
    filled(s, 0, 4);
    for (n, prot) in [(0, READ), (1, 0), (2, READ_WRITE_EXEC)] {
        s.now(protect(n, 1, prot));
        assert_eq!(s.transfer(Op::Take(n, n, 1)), Moved::refused(EINVAL));
    }
    assert_eq!(s.transfer(Op::Take(3, 3, 1)), Moved::done(PAGE));
    s.now(protect(2, 1, READ_WRITE));
    assert_eq!(s.transfer(Op::Take(2, 2, 1)), Moved::done(PAGE));
    s.note_state();
}

/// Only one side locked: EINVAL. (A fork waited for half a minute for pages that could not be evicted.)
pub fn a_move_refuses_locked_memory(s: &mut Session) {
    filled(s, 0, 2);
    assert_eq!(s.now(Call::Lock { at: page(0), len: PAGE }), Outcome::Ok(0));
    assert_eq!(s.transfer(Op::Take(0, 0, 1)), Moved::refused(EINVAL));
    assert_eq!(s.transfer(Op::Take(1, 1, 1)), Moved::done(PAGE));
    assert_eq!(s.now(Call::Unlock { at: page(0), len: PAGE }), Outcome::Ok(0));
    assert_eq!(s.transfer(Op::Take(0, 0, 1)), Moved::done(PAGE));
    s.note_state();
}

/// EBUSY on both sides of a fork until the page is written, even when the other side has ended. A write by the kernel that may not
/// wait makes the page its owner's alone, without waiting if it is missing.
pub fn a_move_refuses_what_a_fork_shares(s: &mut Session) {
    filled(s, 0, 4);
    s.transfer(Op::Take(3, 3, 1));
    let Outcome::Ok(child) = s.now(Call::Fork) else { panic!("a fork") };
    assert_eq!([0, 1].map(|n| s.transfer(Op::Take(n, n, 1))), [Moved::refused(EBUSY); 2]);
    assert_eq!(s.transfer(Op::GiveBack(3, 3, 1)), Moved::refused(EBUSY), "what is parked is shared as well");
    s.now(write(0, 1));
    assert_eq!(s.transfer(Op::Take(0, 0, 1)), Moved::done(PAGE));
    s.act(Op::Kill(child));
    assert_eq!(s.transfer(Op::Take(1, 1, 1)), Moved::refused(EBUSY));
    assert_eq!(s.act(Op::Unshare(1)), Answer::Is(true));
    assert_eq!(s.transfer(Op::Take(1, 1, 1)), Moved::done(PAGE));
    assert_eq!(s.act(Op::Unshare(1)), Answer::Is(false), "it is missing, and nobody waits");
    assert_eq!(s.now(advise(2, 1, Advice::PopulateWrite)), Outcome::Ok(0));
    assert_eq!(s.transfer(Op::Take(2, 2, 1)), Moved::done(PAGE));
    s.note_state();
}

/// EBUSY as long as a device has the page pinned.
pub fn a_move_refuses_what_is_pinned(s: &mut Session) {
    filled(s, 0, 3);
    s.lab.pin(Some(page(1)));
    assert_eq!(s.transfer(Op::Take(0, 0, 3)), Moved::done(PAGE));
    assert_eq!(s.transfer(Op::Take(1, 1, 2)), Moved::refused(EBUSY));
    assert_eq!(s.transfer(Op::Take(2, 2, 1)), Moved::done(PAGE));
    s.note_state();
}

/// A page or a mark at the target: EEXIST.
pub fn a_move_wants_an_empty_place(s: &mut Session) {
    filled(s, 0, 4);
    assert_eq!(s.transfer(Op::ParkCopy(1, 1)), Moved::done(PAGE));
    assert_eq!(s.transfer(Op::Take(0, 0, 3)), Moved::done(PAGE));
    assert_eq!(s.transfer(Op::Take(1, 1, 1)), Moved::refused(EEXIST));
    assert_eq!(s.transfer(Op::GiveBack(1, 0, 1)), Moved::refused(EEXIST));
    s.act(Op::DropParked(1));
    assert_eq!(s.transfer(Op::Take(1, 1, 2)), Moved::done(2 * PAGE));
    s.change(Op::Poison(1, 1)).expect("it is empty");
    s.now(advise(2, 1, Advice::GuardInstall));
    assert_eq!([1, 2].map(|n| s.transfer(Op::GiveBack(n, n, 1))), [Moved::refused(EEXIST); 2]);
    s.note_state();
}

/// A mark is not a page: EFAULT.
pub fn a_move_refuses_marks(s: &mut Session) {
    managed(s, 0, 2);
    s.change(Op::Poison(0, 1)).expect("it is empty");
    s.now(advise(1, 1, Advice::GuardInstall));
    assert_eq!([0, 1].map(|n| s.transfer(Op::Take(n, n, 1))), [Moved::refused(EFAULT); 2]);
    s.note_state();
}

/// The target must be registered on the very userfaultfd that is used; the source need not be registered at all.
pub fn a_move_wants_its_own_target(s: &mut Session) {
    map(s, 0, 2);
    s.now(write(0, 5));
    assert_eq!(s.transfer(Op::Take(0, 0, 1)), Moved::done(PAGE));
    assert_eq!(s.transfer(Op::GiveBack(0, 0, 1)), Moved::refused(EINVAL));
    s.change(Op::Register(0, 2, false)).expect("it is mapped");
    assert_eq!(s.transfer(Op::GiveBack(1, 0, 1)), Moved::done(PAGE));
    assert_eq!(s.peek(1), 5);
    s.note_state();
}

/// A protected page loses its protection when it is moved, out or back.
pub fn a_move_loses_write_protection(s: &mut Session) {
    filled(s, 0, 1);
    s.change(Op::Register(0, 1, true)).expect("again");
    s.change(Op::Protect(0, 1, true)).expect("it is there");
    assert_eq!(s.present(0), Present::Page { protected: true });
    assert_eq!(s.transfer(Op::Take(0, 0, 1)), Moved::done(PAGE));
    assert_eq!(s.transfer(Op::GiveBack(0, 0, 1)), Moved::done(PAGE));
    assert_eq!(s.present(0), Present::Page { protected: false });
    s.note_state();
}

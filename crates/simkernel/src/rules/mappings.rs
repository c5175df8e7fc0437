//! The borders of mappings.

use super::*;
use crate::call::{Progress::*, READ};
use crate::errno::*;
use crate::pmap::{Mapping, Message, Moved};

/// Growth in place, where there is room, sends no message. The new pages are registered, though no report has told the pager of
/// them.
pub fn growth_in_place_is_not_told(s: &mut Session) {
    filled(s, 0, 2);
    assert_eq!(s.now(remap(0, 2, None, 4)), Outcome::Ok(page(0)));
    assert_eq!(s.call(1, read(3)), Waits);
    assert_eq!(s.message(), Some(Message::Fault { at: page(3), write: false }));
    s.transfer(Op::ZeroIn(3, 1));
    s.act(Op::Wake(3, 1));
    assert_eq!(s.progress(1), Done(Outcome::Ok(0)));
    map(s, 5, 1);
    assert_eq!(s.now(remap(0, 4, None, 5)), Outcome::Ok(page(0)));
    assert_eq!(s.now(remap(0, 5, None, 6)), Outcome::Err(ENOMEM), "there is none");
    assert_eq!(s.now(remap(0, 2, None, 3)), Outcome::Err(ENOMEM), "nor within itself");
    s.note_state();
}

/// mprotect splits and joins mappings without a report. All parts stay registered.
pub fn protection_is_not_told(s: &mut Session) {
    filled(s, 0, 4);
    assert_eq!(s.now(protect(1, 2, READ)), Outcome::Ok(0));
    assert_eq!(s.lab.mappings(page(0), page(4)).len(), 3);
    assert_eq!(s.message(), None);
    assert_eq!(s.transfer(Op::Take(0, 0, 1)), Moved::done(PAGE));
    assert_eq!(s.transfer(Op::CopyIn(1, 1, 1)), Moved::refused(EEXIST));
    assert_eq!(s.now(protect(1, 2, READ_WRITE)), Outcome::Ok(0));
    assert_eq!(s.lab.mappings(page(0), page(4)), [Mapping { start: page(0), end: page(4), prot: READ_WRITE }]);
    s.note_state();
}

/// A new mapping next to a registered one is a mapping of its own. Once it is registered as well, the two are joined, unless both
/// were written before. Then they stay two for good, and calls that want one mapping fail on them.
pub fn neighbours_join_when_one_is_touched(s: &mut Session) {
    filled(s, 0, 2);
    map(s, 2, 2);
    map(s, 4, 2);
    assert_eq!(s.lab.mappings(page(0), page(6)).len(), 2, "two new ones are one");
    s.change(Op::Register(2, 2, false)).expect("it is mapped");
    assert_eq!(s.lab.mappings(page(0), page(4)), [Mapping { start: page(0), end: page(4), prot: READ_WRITE }]);
    s.now(write(4, 1));
    s.change(Op::Register(4, 2, false)).expect("it is mapped");
    s.note_state();
    assert_eq!(s.now(remap(0, 6, Some(10), 6)), Outcome::Err(EFAULT), "written apart");
    s.note_state();
}

/// Memory that is one mapping without a pager may be several with one, because the pager fills pages that are only read. Two
/// mappings that have pages are not joined by a mapping that comes between them, and a mapping with pages that becomes read-only
/// stays accountable. An mremap of all of it was EFAULT.
pub fn what_is_only_read_is_one_mapping(s: &mut Session) {
    for (first, with, parts) in [(0, false, 1), (20, true, 2)] {
        let read_in = |s: &mut Session, at: usize| {
            map(s, at, 2);
            if with {
                s.change(Op::Register(at, 2, false)).expect("it is mapped");
                assert_eq!(s.transfer(Op::ZeroIn(at, 1)), Moved::done(PAGE));
            }
            assert_eq!(s.now(read(at)), Outcome::Ok(0));
        };
        read_in(s, first);
        read_in(s, first + 4);
        read_in(s, first + 2);
        assert_eq!(s.lab.mappings(page(first), page(first + 6)).len(), parts, "what came between is one with its neighbours");
        map(s, first + 10, 4);
        assert_eq!(s.now(protect(first + 12, 2, READ)), Outcome::Ok(0));
        if with {
            s.change(Op::Register(first + 10, 4, false)).expect("it is mapped");
            assert_eq!(s.transfer(Op::ZeroIn(first + 10, 1)), Moved::done(PAGE));
        }
        assert_eq!(s.now(read(first + 10)), Outcome::Ok(0));
        assert_eq!(s.now(protect(first + 10, 2, READ)), Outcome::Ok(0));
        assert_eq!(s.lab.mappings(page(first + 10), page(first + 14)).len(), parts, "both may only be read");
        let grown = s.now(remap(first + 10, 4, None, 5));
        assert_eq!(grown, if with { Outcome::Err(EFAULT) } else { Outcome::Ok(page(first + 10)) });
        s.note_state();
    }
}

/// Several mappings are moved together only without a change of length, and only if none of them is registered. Otherwise it is
/// EFAULT, and mappings that have been moved before stay moved.
pub fn a_remap_of_several_is_refused(s: &mut Session) {
    filled(s, 0, 4);
    s.now(protect(2, 2, READ));
    assert_eq!(s.now(remap(0, 4, Some(8), 4)), Outcome::Err(EFAULT));
    assert_eq!(s.now(remap(0, 4, Some(8), 6)), Outcome::Err(EFAULT));
    assert_eq!(s.now(remap(0, 4, None, 6)), Outcome::Err(EFAULT));
    assert_eq!(s.message(), None);
    map(s, 20, 2);
    s.now(write(20, 5));
    map(s, 22, 2);
    s.now(protect(22, 2, READ));
    assert_eq!(s.now(remap(20, 4, Some(30), 4)), Outcome::Ok(page(30)), "not registered");
    assert_eq!(s.peek(30), 5);
    map(s, 20, 2);
    managed(s, 22, 2);
    assert_eq!(s.now(remap(20, 4, Some(36), 4)), Outcome::Err(EFAULT), "the second one is");
    s.note_state();
}

/// The pager followed calls that the kernel had refused, and paged memory was lost, after a wait of 19 s.
pub fn refused_calls_change_nothing(s: &mut Session) {
    filled(s, 0, 4);
    let before = crate::lab::state(s.lab);
    assert_eq!(s.now(Call::Unmap { at: page(0) + 8, len: PAGE }), Outcome::Err(EINVAL));
    assert_eq!(s.now(Call::Unmap { at: page(0), len: 0 }), Outcome::Err(EINVAL));
    assert_eq!(s.now(Call::Map { at: page(0) + 8, len: PAGE, prot: READ, replace: true }), Outcome::Err(EINVAL));
    assert_eq!(s.now(Call::Map { at: page(0), len: 0, prot: READ, replace: true }), Outcome::Err(EINVAL));
    assert_eq!(s.now(Call::Map { at: page(3), len: 2 * PAGE, prot: READ, replace: false }), Outcome::Err(EEXIST));
    assert_eq!(s.now(remap(0, 2, Some(1), 2)), Outcome::Err(EINVAL), "it overlaps");
    assert_eq!(s.now(remap(0, 2, Some(8), 0)), Outcome::Err(EINVAL));
    assert_eq!(s.now(remap(20, 2, Some(8), 2)), Outcome::Err(EFAULT));
    assert_eq!(s.now(remap(3, 2, Some(8), 3)), Outcome::Err(EFAULT));
    assert_eq!(s.now(advise(0, 2, crate::call::Advice::PopulateWrite)), Outcome::Ok(0));
    assert_eq!(s.message(), None);
    assert_eq!(crate::lab::state(s.lab), before);
}

/// A mapping that was moved with pages in it does not join its new neighbours, unless it comes back to its old ones.
pub fn a_move_keeps_its_page_numbers(s: &mut Session) {
    map(s, 0, 6);
    s.now(write(2, 1));
    assert_eq!(s.now(remap(2, 2, Some(10), 2)), Outcome::Ok(page(10)));
    map(s, 12, 1);
    s.note_state();
    assert_eq!(s.lab.mappings(page(10), page(13)).len(), 2);
    assert_eq!(s.now(remap(10, 2, Some(2), 2)), Outcome::Ok(page(2)));
    assert_eq!(s.lab.mappings(page(0), page(6)).len(), 1);
    // a mapping without pages counts as new
    map(s, 20, 2);
    assert_eq!(s.now(remap(20, 2, Some(13), 2)), Outcome::Ok(page(13)));
    assert_eq!(s.lab.mappings(page(12), page(15)).len(), 1);
    s.note_state();
}

//! The reports of changes to the address space, and their times.

use super::*;
use crate::call::{Advice, Progress::*, READ};
use crate::errno::*;
use crate::pmap::{Message, Moved, Present};

/// By the time that an unmapping is reported, a new mapping may be at its addresses. The report must not be applied to that.
pub fn an_unmap_is_told_after_the_act(s: &mut Session) {
    filled(s, 0, 2);
    assert_eq!(s.call(1, unmap(0, 1)), Waits);
    assert_eq!(s.present(0), Present::Absent);
    map(s, 0, 1);
    s.now(write(0, 9));
    assert_eq!(s.message(), Some(Message::Unmap { start: page(0), end: page(1) }));
    assert_eq!(s.progress(1), Done(Outcome::Ok(0)));
    assert_eq!(s.peek(0), 9);
    assert_eq!(s.message(), None);
    s.note_state();
}

/// Reading a message does not end the change that it reports. Pages can be filled again only when the calling thread has gone on.
/// (Here it cannot run for a while.) So EAGAIN may still follow after a read that found no more messages.
pub fn a_change_is_over_when_its_caller_goes_on(s: &mut Session) {
    filled(s, 0, 2);
    assert_eq!(s.call(1, unmap(0, 1)), Waits);
    s.lab.hold(true);
    assert_eq!(s.message(), Some(Message::Unmap { start: page(0), end: page(1) }));
    assert_eq!(s.message(), None);
    assert!(s.changing());
    assert_eq!(s.transfer(Op::CopyIn(1, 1, 1)), Moved::refused(EAGAIN));
    s.lab.hold(false);
    assert_eq!(s.progress(1), Done(Outcome::Ok(0)));
    assert!(!s.changing());
    s.note_state();
}

/// One message covers the whole range of the call, once per userfaultfd, whatever part of the range was registered.
pub fn an_unmap_is_told_as_the_call_had_it(s: &mut Session) {
    managed(s, 1, 1);
    map(s, 3, 1);
    managed(s, 5, 2);
    assert_eq!(s.call(1, unmap(0, 6)), Waits);
    assert_eq!(s.message(), Some(Message::Unmap { start: page(0), end: page(6) }));
    assert_eq!(s.progress(1), Done(Outcome::Ok(0)));
    assert_eq!(s.now(unmap(0, 3)), Outcome::Ok(0), "nothing is registered there");
    s.note_state();
}

/// First the move is reported. Only when that has been read is the end of the source range reported, and by then another mapping
/// may be there. No page can be filled meanwhile. The new range is registered, and the pages have come along.
pub fn a_move_is_told_then_the_end_of_its_origin(s: &mut Session) {
    filled(s, 0, 2);
    filled(s, 4, 2);
    assert_eq!(s.call(0, remap(0, 2, Some(8), 2)), Waits);
    assert_eq!(s.present(0), Present::Absent);
    assert_eq!(s.peek(8), 100);
    assert_eq!(s.call(1, remap(4, 2, Some(0), 2)), Waits);
    assert_eq!(s.message(), Some(Message::Remap { from: page(0), to: page(8), len: 2 * PAGE }));
    assert_eq!(s.progress(0), Waits);
    assert_eq!(s.message(), Some(Message::Remap { from: page(4), to: page(0), len: 2 * PAGE }), "first come");
    assert_eq!(s.message(), Some(Message::Unmap { start: page(0), end: page(2) }), "late: the other's pages are there");
    assert_eq!(s.peek(0), 104);
    assert_eq!(s.transfer(Op::CopyIn(8, 1, 1)), Moved::refused(EAGAIN));
    assert_eq!(s.message(), Some(Message::Unmap { start: page(4), end: page(6) }));
    assert_eq!([0, 1].map(|t| s.progress(t)), [Done(Outcome::Ok(page(8))), Done(Outcome::Ok(page(0)))]);
    assert_eq!(s.transfer(Op::CopyIn(8, 1, 1)), Moved::refused(EEXIST), "it is registered");
    s.note_state();
}

/// Three messages: the end of the old mapping at the target, the move, and the end of the source.
pub fn a_move_onto_memory_is_told_in_three(s: &mut Session) {
    filled(s, 0, 2);
    filled(s, 8, 4);
    assert_eq!(s.call(1, remap(0, 2, Some(9), 2)), Waits);
    assert_eq!(s.message(), Some(Message::Unmap { start: page(9), end: page(11) }));
    assert_eq!(s.message(), Some(Message::Remap { from: page(0), to: page(9), len: 2 * PAGE }));
    assert_eq!(s.message(), Some(Message::Unmap { start: page(0), end: page(2) }));
    assert_eq!(s.progress(1), Done(Outcome::Ok(page(9))));
    s.note_state();
}

/// The pages are still there while the message waits. Anything written to them by then is discarded when it has been read.
pub fn a_discard_is_told_before_the_act(s: &mut Session) {
    filled(s, 0, 4);
    s.now(protect(2, 1, READ));
    assert_eq!(s.call(1, advise(0, 3, Advice::DontNeed)), Waits);
    assert_eq!(s.peek(0), 100);
    s.now(write(0, 9));
    assert_eq!(s.transfer(Op::Take(1, 1, 1)), Moved::done(PAGE), "a page that is taken now is not discarded");
    assert!(s.changing());
    assert_eq!(s.message(), Some(Message::Remove { start: page(0), end: page(2) }), "of each mapping its part");
    assert_eq!(s.progress(1), Waits);
    assert_eq!((s.present(0), s.peek(2)), (Present::Absent, 102));
    assert_eq!(s.message(), Some(Message::Remove { start: page(2), end: page(3) }));
    assert_eq!(s.progress(1), Done(Outcome::Ok(0)));
    s.note_state();
}

/// If a mapping is split before the report of a discard has been read, the part after the split is reported a second time.
pub fn a_discard_of_what_is_split_is_told_again(s: &mut Session) {
    filled(s, 0, 4);
    assert_eq!(s.call(1, advise(0, 4, Advice::DontNeed)), Waits);
    s.now(protect(1, 1, READ));
    assert_eq!(s.message(), Some(Message::Remove { start: page(0), end: page(4) }));
    assert_eq!(s.progress(1), Waits);
    assert_eq!((s.present(0), s.peek(1), s.peek(3)), (Present::Absent, 101, 103));
    assert_eq!(s.message(), Some(Message::Remove { start: page(1), end: page(2) }));
    assert_eq!(s.message(), Some(Message::Remove { start: page(2), end: page(4) }));
    assert_eq!(s.progress(1), Done(Outcome::Ok(0)));
    s.note_state();
}

/// MADV_FREE is reported like a discard, but its pages stay until memory is short, and for good if they are written.
pub fn freed_pages_stay(s: &mut Session) {
    filled(s, 0, 2);
    assert_eq!(s.call(1, advise(0, 2, Advice::Free)), Waits);
    assert_eq!(s.message(), Some(Message::Remove { start: page(0), end: page(2) }));
    assert_eq!(s.progress(1), Done(Outcome::Ok(0)));
    assert_eq!(s.peek(0), 100);
    assert_eq!(s.transfer(Op::Take(0, 0, 1)), Moved::done(PAGE));
    s.note_state();
}

/// MREMAP_DONTUNMAP: the old range is empty and registered, and no unmapping is reported.
pub fn what_is_left_behind_stays_registered(s: &mut Session) {
    filled(s, 0, 2);
    let kept = Call::Remap { from: page(0), len: 2 * PAGE, new_len: 2 * PAGE, to: Some(page(8)), keep: true };
    assert_eq!(s.call(1, kept), Waits);
    assert_eq!(s.message(), Some(Message::Remap { from: page(0), to: page(8), len: 2 * PAGE }));
    assert_eq!(s.progress(1), Done(Outcome::Ok(page(8))));
    assert_eq!(s.call(1, read(0)), Waits);
    s.message();
    assert_eq!(s.transfer(Op::CopyIn(0, 1, 1)), Moved::done(PAGE));
    s.act(Op::Wake(0, 1));
    assert_eq!(s.progress(1), Done(Outcome::Ok(1)));
    s.note_state();
}

/// The mappings that a fixed mapping replaces are reported as unmapped, by the range of the call. The new mapping is not
/// registered.
pub fn a_fixed_mapping_replaces(s: &mut Session) {
    filled(s, 0, 2);
    let over = Call::Map { at: page(1), len: 2 * PAGE, prot: READ_WRITE, replace: true };
    assert_eq!(s.call(1, over), Waits);
    assert_eq!(s.message(), Some(Message::Unmap { start: page(1), end: page(3) }));
    assert_eq!(s.progress(1), Done(Outcome::Ok(page(1))));
    assert_eq!(s.now(read(1)), Outcome::Ok(0), "nobody is asked");
    s.note_state();
}

/// Shrinking in place, and as a part of a move.
pub fn shrinking_unmaps_the_tail(s: &mut Session) {
    filled(s, 0, 6);
    assert_eq!(s.call(1, remap(0, 6, None, 4)), Waits);
    assert_eq!(s.message(), Some(Message::Unmap { start: page(4), end: page(6) }));
    assert_eq!(s.progress(1), Done(Outcome::Ok(page(0))));
    assert_eq!(s.call(1, remap(0, 4, Some(8), 2)), Waits);
    assert_eq!(s.message(), Some(Message::Remap { from: page(0), to: page(8), len: 2 * PAGE }));
    assert_eq!(s.message(), Some(Message::Unmap { start: page(2), end: page(4) }));
    assert_eq!(s.message(), Some(Message::Unmap { start: page(0), end: page(2) }));
    assert_eq!(s.progress(1), Done(Outcome::Ok(page(8))));
    s.note_state();
}

/// A process that shared the memory is killed within munmap: the unmapping has been done, and nobody is told.
pub fn a_killed_caller_withdraws_its_event(s: &mut Session) {
    filled(s, 0, 2);
    assert_eq!(s.call(1, unmap(0, 1)), Waits);
    s.act(Op::Kill(1));
    assert_eq!(s.message(), None);
    assert!(!s.changing());
    assert_eq!(s.call(2, remap(1, 1, Some(8), 1)), Waits);
    assert_eq!(s.message(), Some(Message::Remap { from: page(1), to: page(8), len: PAGE }));
    s.act(Op::Kill(2));
    assert_eq!(s.message(), None);
    assert!(!s.changing());
    s.note_state();
}

/// The discard goes on to its end without a report.
pub fn a_killed_discard_is_carried_out(s: &mut Session) {
    filled(s, 0, 4);
    s.now(protect(2, 2, READ));
    assert_eq!(s.call(1, advise(0, 4, Advice::DontNeed)), Waits);
    s.act(Op::Kill(1));
    assert_eq!(s.message(), None);
    assert!(!s.changing());
    s.note_state();
}

/// A sealed mapping stops an unmapping before anything is unmapped. The part before it is reported as unmapped nevertheless.
pub fn a_refused_unmap_of_sealed_memory_is_told(s: &mut Session) {
    filled(s, 0, 4);
    map(s, 4, 2);
    assert_eq!(s.now(Call::Seal { at: page(4), len: 2 * PAGE }), Outcome::Ok(0));
    assert_eq!(s.call(1, unmap(2, 4)), Waits);
    assert_eq!(s.peek(2), 102);
    assert_eq!(s.message(), Some(Message::Unmap { start: page(2), end: page(6) }));
    assert_eq!(s.progress(1), Done(Outcome::Err(EPERM)));
    assert_eq!(s.peek(3), 103);
    assert_eq!(s.now(unmap(5, 2)), Outcome::Err(EPERM), "nothing before it: nobody is told");
    s.note_state();
}

/// A locked range that moves and grows waits for its new pages before the move is reported. A pager that does not know of the move
/// cannot serve those pages.
pub fn a_locked_mapping_is_populated_before_its_move_is_told(s: &mut Session) {
    filled(s, 0, 2);
    assert_eq!(s.now(Call::Lock { at: page(0), len: 2 * PAGE }), Outcome::Ok(0));
    assert_eq!(s.call(1, remap(0, 2, Some(8), 3)), Waits);
    assert_eq!(s.message(), Some(Message::Fault { at: page(10), write: true }));
    assert_eq!(s.transfer(Op::CopyIn(10, 1, 5)), Moved::refused(EAGAIN));
    s.act(Op::Kill(1));
    assert_eq!(s.message(), None);
    s.note_state();
}

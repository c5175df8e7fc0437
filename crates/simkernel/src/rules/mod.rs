//! The rules. Each is a question, asked in a [`Session`], and states the answer. Each step and its result are logged, so that two
//! kernels can be compared line by line.

pub mod events;
pub mod faults;
pub mod forks;
pub mod mappings;
pub mod moves;
pub mod races;
pub mod transfers;

use crate::call::{Call, Outcome, READ_WRITE};
use crate::lab::{Op, Session, page};
use crate::pmap::PAGE;

/// A question.
pub type Rule = fn(&mut Session);

/// Calls a macro with the paths of all rules whose answers are always the same.
#[macro_export]
macro_rules! each_rule {
    ($with:ident) => {
        $with! {
            transfers: a_copy_fills_what_is_missing, a_copy_takes_the_place_of_marks, a_copy_needs_a_mapping_that_is_registered,
                a_copy_goes_where_the_program_may_not, nothing_is_transferred_while_an_event_is_unread, poison_is_an_error,
                a_protected_page_tells_of_writes;
            moves: a_move_stops_at_a_hole, a_move_stays_within_a_mapping, a_move_wants_both_sides_alike, a_move_refuses_locked_memory,
                a_move_refuses_what_a_fork_shares, a_move_refuses_what_is_pinned, a_move_wants_an_empty_place, a_move_refuses_marks,
                a_move_wants_its_own_target, a_move_loses_write_protection;
            faults: a_fault_waits_for_its_wake, a_move_wakes, a_fault_that_is_woken_is_not_told, the_kernel_waits_for_pages_too, populating_waits,
                locking_waits, faults_are_told_before_events, guards_are_errors_without_a_message;
            events: an_unmap_is_told_after_the_act, a_change_is_over_when_its_caller_goes_on, an_unmap_is_told_as_the_call_had_it, a_move_is_told_then_the_end_of_its_origin,
                a_move_onto_memory_is_told_in_three, a_discard_is_told_before_the_act, a_discard_of_what_is_split_is_told_again,
                freed_pages_stay, what_is_left_behind_stays_registered, a_fixed_mapping_replaces, shrinking_unmaps_the_tail,
                a_killed_caller_withdraws_its_event, a_killed_discard_is_carried_out,
                a_locked_mapping_is_populated_before_its_move_is_told;
            mappings: growth_in_place_is_not_told, protection_is_not_told, neighbours_join_when_one_is_touched, what_is_only_read_is_one_mapping,
                a_remap_of_several_is_refused, refused_calls_change_nothing, a_move_keeps_its_page_numbers;
            forks: a_child_is_not_registered, a_child_lacks_what_it_was_told_to, an_inherited_descriptor_acts_on_the_parent,
                marks_are_inherited, pages_are_not_shared_with_a_pin;
        }
    };
}

/// Maps readable and writable memory.
fn map(s: &mut Session, number: usize, pages: usize) {
    let done = s.now(Call::Map { at: page(number), len: pages * PAGE, prot: READ_WRITE, replace: false });
    assert_eq!(done, Outcome::Ok(page(number)));
}

/// Maps and registers such memory.
fn managed(s: &mut Session, number: usize, pages: usize) {
    map(s, number, pages);
    assert_eq!(s.change(Op::Register(number, pages, false)), Ok(()));
}

/// Maps and registers memory, and fills each page with its number plus 100.
fn filled(s: &mut Session, number: usize, pages: usize) {
    managed(s, number, pages);
    for n in number..number + pages {
        assert_eq!(s.transfer(Op::CopyIn(n, 1, 100 + n as u8)).bytes, PAGE);
    }
}

/// munmap(2) of these pages.
fn unmap(number: usize, pages: usize) -> Call {
    Call::Unmap { at: page(number), len: pages * PAGE }
}

/// mremap(2) of these pages.
fn remap(number: usize, pages: usize, to: Option<usize>, new_pages: usize) -> Call {
    Call::Remap { from: page(number), len: pages * PAGE, new_len: new_pages * PAGE, to: to.map(page), keep: false }
}

/// mprotect(2) of these pages.
fn protect(number: usize, pages: usize, prot: u8) -> Call {
    Call::Protect { at: page(number), len: pages * PAGE, prot }
}

/// madvise(2) of these pages.
fn advise(number: usize, pages: usize, advice: crate::call::Advice) -> Call {
    Call::Advise { at: page(number), len: pages * PAGE, advice }
}

/// Reads a page's first byte.
fn read(number: usize) -> Call {
    Call::Read { at: page(number) }
}

/// Writes a page's first byte.
fn write(number: usize, byte: u8) -> Call {
    Call::Write { at: page(number), byte }
}

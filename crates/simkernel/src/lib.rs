//! A simulated kernel for Overspill's pager: address spaces, page tables, userfaultfd, as Linux 6.18 has them.
//!
//! It models only what the pager depends on: private anonymous memory, the calls that change it, what a userfaultfd does to it and
//! reports of it, and forks. Each claim of the model is a **rule**, and each rule is a test that asks Linux the same question
//! (`tests/rules.rs`): every step is made on both, and every answer is compared. A random comparison of call sequences
//! (`tests/random.rs`) looks for what nobody has thought of.
//!
//! ```text
//!   pmap, call      the pager's and the program's requests as plain types, without a kernel
//!   kernel          tasks that run or wait; a call is a list of steps
//!     space         an address space and its calls        vma    one mapping, and when two are joined
//!     remap         mremap(2)                             table  a page table
//!     fault         an access                             uffd   waiting tasks, unread messages
//!     transfer      UFFDIO_COPY, MOVE and the others
//!   lab, model_lab  a program, its pager, and a kernel below both       tests/linux   the same on Linux
//!   rules, random   the questions
//!   sched           actors that take turns by a seed, words that they wait on, virtual time; sched::shared: this kernel among them
//! ```
//!
//! # Rules
//!
//! The name is that of the function in [`rules`] and of the test. The right column names the defect of Overspill's that the rule
//! explains, if there was one.
//!
//! | rule | explains |
//! | --- | --- |
//! | [`a_copy_fills_what_is_missing`](rules::transfers::a_copy_fills_what_is_missing) | a fault that is served twice |
//! | [`a_copy_takes_the_place_of_marks`](rules::transfers::a_copy_takes_the_place_of_marks) | guards were overwritten |
//! | [`a_copy_needs_a_mapping_that_is_registered`](rules::transfers::a_copy_needs_a_mapping_that_is_registered) | |
//! | [`a_copy_goes_where_the_program_may_not`](rules::transfers::a_copy_goes_where_the_program_may_not) | why pages come back by a copy |
//! | [`nothing_is_transferred_while_an_event_is_unread`](rules::transfers::nothing_is_transferred_while_an_event_is_unread) | a page is taken by its address |
//! | [`poison_is_an_error`](rules::transfers::poison_is_an_error) | |
//! | [`a_protected_page_tells_of_writes`](rules::transfers::a_protected_page_tells_of_writes) | |
//! | [`a_move_stops_at_a_hole`](rules::moves::a_move_stops_at_a_hole) | |
//! | [`a_move_stays_within_a_mapping`](rules::moves::a_move_stays_within_a_mapping) | |
//! | [`a_move_wants_both_sides_alike`](rules::moves::a_move_wants_both_sides_alike) | writable and executable memory could not leave |
//! | [`a_move_refuses_locked_memory`](rules::moves::a_move_refuses_locked_memory) | a fork took half a minute |
//! | [`a_move_refuses_what_a_fork_shares`](rules::moves::a_move_refuses_what_a_fork_shares) | un-sharing against a fork |
//! | [`a_move_refuses_what_is_pinned`](rules::moves::a_move_refuses_what_is_pinned) | |
//! | [`a_move_wants_an_empty_place`](rules::moves::a_move_wants_an_empty_place) | |
//! | [`a_move_refuses_marks`](rules::moves::a_move_refuses_marks) | |
//! | [`a_move_wants_its_own_target`](rules::moves::a_move_wants_its_own_target) | |
//! | [`a_move_loses_write_protection`](rules::moves::a_move_loses_write_protection) | why dirty pages are told by their content |
//! | [`moves_under_advice`](rules::races::moves_under_advice) (`tests/races.rs`) | a denied move: a page read as zeroes |
//! | [`a_fault_waits_for_its_wake`](rules::faults::a_fault_waits_for_its_wake) | |
//! | [`a_move_wakes`](rules::faults::a_move_wakes) | |
//! | [`a_fault_that_is_woken_is_not_told`](rules::faults::a_fault_that_is_woken_is_not_told) | |
//! | [`the_kernel_waits_for_pages_too`](rules::faults::the_kernel_waits_for_pages_too) | |
//! | [`populating_waits`](rules::faults::populating_waits) | a fork, a discard and the page daemon waited for each other |
//! | [`locking_waits`](rules::faults::locking_waits) | |
//! | [`faults_are_told_before_events`](rules::faults::faults_are_told_before_events) | |
//! | [`guards_are_errors_without_a_message`](rules::faults::guards_are_errors_without_a_message) | content came back under guards |
//! | [`an_unmap_is_told_after_the_act`](rules::events::an_unmap_is_told_after_the_act) | a late unmap took a new mapping's pages |
//! | [`a_change_is_over_when_its_caller_goes_on`](rules::events::a_change_is_over_when_its_caller_goes_on) | |
//! | [`an_unmap_is_told_as_the_call_had_it`](rules::events::an_unmap_is_told_as_the_call_had_it) | an unmap took a native range that had come since |
//! | [`a_move_is_told_then_the_end_of_its_origin`](rules::events::a_move_is_told_then_the_end_of_its_origin) | a late unmap took what had moved there |
//! | [`a_move_onto_memory_is_told_in_three`](rules::events::a_move_onto_memory_is_told_in_three) | two ranges at one place |
//! | [`a_discard_is_told_before_the_act`](rules::events::a_discard_is_told_before_the_act) | content that was thrown away came back |
//! | [`a_discard_of_what_is_split_is_told_again`](rules::events::a_discard_of_what_is_split_is_told_again) | a page that was copied out read as zeroes |
//! | [`freed_pages_stay`](rules::events::freed_pages_stay) | a page that was written after MADV_FREE was lost |
//! | [`what_is_left_behind_stays_registered`](rules::events::what_is_left_behind_stays_registered) | faults that were nobody's |
//! | [`a_fixed_mapping_replaces`](rules::events::a_fixed_mapping_replaces) | |
//! | [`shrinking_unmaps_the_tail`](rules::events::shrinking_unmaps_the_tail) | |
//! | [`a_killed_caller_withdraws_its_event`](rules::events::a_killed_caller_withdraws_its_event) | stale pages, after a wait of 19 s |
//! | [`a_killed_discard_is_carried_out`](rules::events::a_killed_discard_is_carried_out) | |
//! | [`a_refused_unmap_of_sealed_memory_is_told`](rules::events::a_refused_unmap_of_sealed_memory_is_told) (`tests/sealed.rs`) | paged memory that such a call names is lost |
//! | [`a_locked_mapping_is_populated_before_its_move_is_told`](rules::events::a_locked_mapping_is_populated_before_its_move_is_told) | mremap of a locked range hung |
//! | [`growth_in_place_is_not_told`](rules::mappings::growth_in_place_is_not_told) | |
//! | [`protection_is_not_told`](rules::mappings::protection_is_not_told) | |
//! | [`neighbours_join_when_one_is_touched`](rules::mappings::neighbours_join_when_one_is_touched) | mremap refused over what Linux alone would have joined |
//! | [`what_is_only_read_is_one_mapping`](rules::mappings::what_is_only_read_is_one_mapping) | mremap refused what had only been read |
//! | [`a_remap_of_several_is_refused`](rules::mappings::a_remap_of_several_is_refused) | the same |
//! | [`refused_calls_change_nothing`](rules::mappings::refused_calls_change_nothing) | refused calls lost memory |
//! | [`a_move_keeps_its_page_numbers`](rules::mappings::a_move_keeps_its_page_numbers) | |
//! | [`a_child_is_not_registered`](rules::forks::a_child_is_not_registered) | a raw clone's child read zeroes |
//! | [`a_child_lacks_what_it_was_told_to`](rules::forks::a_child_lacks_what_it_was_told_to) | MADV_WIPEONFORK was forgotten after a move |
//! | [`an_inherited_descriptor_acts_on_the_parent`](rules::forks::an_inherited_descriptor_acts_on_the_parent) | a child's calls wrote into its parent |
//! | [`marks_are_inherited`](rules::forks::marks_are_inherited) | |
//! | [`pages_are_not_shared_with_a_pin`](rules::forks::pages_are_not_shared_with_a_pin) | |
//!
//! The last line of defence is `tests/pager.rs`. A toy pager runs on this kernel under the scheduler, and seeds find mistakes that
//! the real pager has made: a denied move is believed, a page is parked while it is being discarded, a copy is dropped before the
//! next one is in place.
//!
//! # What it does not model
//!
//! Files, shared memory, huge pages, the kernel's own swapping, KSM; UFFD_EVENT_FORK, WP_ASYNC, WP_UNPOPULATED, MINOR faults;
//! limits (address space, locked memory, number of mappings); where the kernel puts a mapping when it may choose.

#![forbid(unsafe_code)]

pub mod call;
pub mod errno;
pub mod fault;
pub mod kernel;
pub mod lab;
pub mod model_lab;
pub mod pmap;
pub mod random;
pub mod remap;
pub mod rng;
pub mod rules;
pub mod sched;
pub mod space;
pub mod table;
pub mod transfer;
pub mod uffd;
pub mod vma;

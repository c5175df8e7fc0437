//! Property: at any moment the one good copy of every page is where its state says, read or not.
//!
//! Mapped pages in the program's sight, inactive pages in their frame, paged-out pages on the store with their hash, others
//! nowhere. Stronger than waiting for a read: it finds a wrong copy when it becomes wrong.

use crate::device::{Device, hash};
use crate::process::Process;
use crate::store::Store;
use overspill_vm::page::State;
use overspill_vm::pager::Pager;

/// Walks over all pages of a process.
pub fn check<S: Store>(process: &Process<S>, device: &Device) {
    for at in 0..process.mapped.len() {
        if process.in_event(at) {
            continue;
        }
        let word = process.vm.page(process.page(at));
        let (mapped, expected) = (process.mapped[at], process.expected[at]);
        if !word.busy() {
            assert!(word.wired() == process.wired[at], "contents: page {at}: wired is {}: {word:?}", process.wired[at]);
        }
        if matches!(word.state(), State::Clean) && !word.busy() {
            let stored = process.vm.pager().content(process.page(at));
            assert_eq!(stored, Some(hash(process.page(at), expected)), "contents: page {at} is clean, but stored as another");
        }
        let held = match word.state() {
            _ if word.busy() && mapped.is_some() => mapped,
            State::Active if word.busy() => continue,   // on its way to a frame
            State::Active => Some(mapped.unwrap_or(0)), // dropped behind the pager's back: reads as zeroes
            State::Inactive | State::Clean if mapped.is_none() => process.parked[word.frame().at()],
            State::Untouched if mapped.is_none() => {
                assert!(process.stored(at).is_none(), "contents: page {at} is untouched, but stored: {word:?}");
                Some(0)
            }
            State::Lost if mapped.is_none() => {
                assert!(process.may_be_lost[at], "contents: page {at} is lost without a cause");
                continue;
            }
            State::PagedOut if mapped.is_none() => {
                let place = process.stored(at).unwrap_or_else(|| panic!("contents: page {at} is paged out to nowhere"));
                assert_eq!(
                    process.vm.pager().content(process.page(at)),
                    Some(hash(process.page(at), expected)),
                    "contents: page {at} is stored as another"
                );
                if device.is_damaged(place) { Some(expected) } else { process.held(place, device) }
            }
            _ => panic!("contents: page {at} is mapped: {word:?}"),
        };
        assert!(held == Some(expected), "contents: page {at} holds {held:x?}, not {expected:#x}: {word:?}");
    }
}

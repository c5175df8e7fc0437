//! Property: frames are conserved, and all memory that is held is accounted for.
//!
//! `used == frames of pages + frames about to be dropped`; every mapped page has a frame; parked contents are exactly those of
//! inactive pages, clean pages and frames about to be dropped.

use crate::process::{Daemon, Process};
use crate::store::Store;
use overspill_vm::page::State;

/// Walks over all pages and frames of a process.
pub fn check<S: Store>(process: &Process<S>) {
    let mut owner = vec![None; process.parked.len()];
    let (mut frames, mut evictable) = (0, 0);
    for at in 0..process.mapped.len() {
        let word = process.vm.page(process.page(at));
        if word.has_frame() {
            frames += 1;
            let held = word.busy() || (word.wired() && word.state() == State::Active);
            evictable += !held as usize;
            let other = owner[word.frame().at()].replace(at);
            assert!(other.is_none(), "frames: {:?} belongs to pages {other:?} and {at}", word.frame());
            let parked = process.parked[word.frame().at()].is_some();
            if !word.busy() {
                let ought = matches!(word.state(), State::Inactive | State::Clean);
                assert!(parked == ought, "frames: page {at}: parked is {parked}: {word:?}");
            }
        } else if !process.in_event(at) {
            assert!(process.mapped[at].is_none(), "frames: page {at} is mapped without a frame: {word:?}");
        }
    }
    assert!(evictable == 0 || !process.vm.nothing_to_evict(), "frames: {evictable} pages could be evicted, but the core says none");
    let dropping = process.frames_to_drop();
    assert_eq!(
        process.vm.used() as usize,
        frames + dropping,
        "frames: used, but {frames} frames of pages and {dropping} to be dropped"
    );
    for (frame, parked) in process.parked.iter().enumerate() {
        let about_to_go = process.daemons.iter().any(|d| matches!(d, Daemon::Dropping(f, _) if f.iter().any(|f| f.at() == frame)));
        assert!(parked.is_none() || owner[frame].is_some() || about_to_go, "frames: frame {frame} holds content of nobody");
    }
}

//! Page replacement policies: one trait, one file each; the same code live and simulated.
//!
//! Linux gives user space no referenced bit, so a policy is told of a reference when a page *on trial* is touched: the page daemon
//! asks for [`Policy::victims`], unmaps them and keeps them for a while; a touch in that time is a soft fault and reaches the policy
//! as [`Policy::referenced`]; a page whose trial ends untouched is evicted. A policy orders frames; it never sees memory.
//!
//! Adding a policy: one file here, one line in [`make`] and in [`NAMES`].

mod fifo;
mod use_once;

use crate::types::{FrameId, PageId};
pub use fifo::Fifo;
pub use use_once::UseOnce;

/// Why a page was given a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admit {
    /// The program touched it for the first time.
    FirstTouch,
    /// It was filled beside such a touch.
    ZeroAhead,
    /// The program touched it and it was read.
    HardFault,
    /// It was read beside such a touch.
    Readahead,
    /// It was there before the pager was.
    Adopted,
}

/// A replacement policy. No allocation after construction; each call O(1) amortised.
pub trait Policy: Send {
    /// The name that `--policy` takes.
    fn name(&self) -> &'static str;
    /// `page` is in memory in `frame` and mapped. => frame is on no list of the policy
    fn admit(&mut self, frame: FrameId, page: PageId, why: Admit);
    /// A page on trial was touched and is mapped again. => frame is on no list of the policy
    fn referenced(&mut self, frame: FrameId, page: PageId);
    /// Takes the next victims, the worst first, off the policy's lists. Returns how many; fewer than asked only if there are no more.
    fn victims(&mut self, out: &mut [FrameId]) -> usize;
    /// A victim could not be unmapped (pinned, locked): look elsewhere for a while. => frame is on no list of the policy
    fn refused(&mut self, frame: FrameId, page: PageId);
    /// The page was given up or wired. => frame is on a list of the policy
    fn remove(&mut self, frame: FrameId);
    /// The page on trial in `frame` was not touched; it has left memory. Ghosts are made here.
    fn evicted(&mut self, frame: FrameId, page: PageId);
    /// How long a trial is, in thousandths of the budget that may be on trial at a time. 0: the trial is no longer than a batch.
    fn trial_permille(&self) -> u32;
    /// A copy of it, lists and all, as a fork makes one. Allocates.
    fn clone_box(&self) -> Box<dyn Policy>;
}

/// The policies there are, as `--policy` takes them.
pub const NAMES: &[&str] = &["use-once", "fifo"];
/// The default.
pub const DEFAULT: &str = "use-once";

/// Makes the policy called `name` for `frames` frames; `None` if there is none of that name.
pub fn make(name: &str, frames: usize) -> Option<Box<dyn Policy>> {
    Some(match name {
        "fifo" => Box::new(Fifo::new(frames)),
        "use-once" => Box::new(UseOnce::new(frames)),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::ObjectId;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn page(n: u32) -> PageId {
        PageId::new(ObjectId(0), n as u64)
    }

    #[test]
    fn every_name_makes_its_policy() {
        for name in NAMES {
            assert_eq!(make(name, 8).expect("known").name(), *name);
        }
        assert!(make("best", 8).is_none());
        assert!(NAMES.contains(&DEFAULT));
    }

    proptest! {
        /// Whatever the order: no frame is lost, none is given twice.
        #[test]
        fn frames_are_conserved(which in 0..NAMES.len(), ops in proptest::collection::vec((0u8..5, 0u32..32), 0..400)) {
            let mut p = make(NAMES[which], 32).expect("known");
            let (mut listed, mut trial) = (BTreeSet::new(), BTreeSet::new());
            for (op, f) in ops {
                let frame = FrameId(f);
                match op {
                    0 if !listed.contains(&frame) && !trial.contains(&frame) => { p.admit(frame, page(f), Admit::FirstTouch); listed.insert(frame); }
                    1 if trial.remove(&frame) => { p.referenced(frame, page(f)); listed.insert(frame); }
                    2 if trial.remove(&frame) => p.evicted(frame, page(f)),
                    3 if listed.remove(&frame) => p.remove(frame),
                    4 => {
                        let mut out = [FrameId(0); 5];
                        let n = p.victims(&mut out);
                        prop_assert!(n == 5 || n == listed.len());
                        for v in &out[..n] {
                            prop_assert!(listed.remove(v));
                            prop_assert!(trial.insert(*v));
                        }
                    }
                    _ => {}
                }
            }
            let mut out = [FrameId(0); 64];
            let n = p.victims(&mut out);
            prop_assert_eq!(out[..n].iter().copied().collect::<BTreeSet<_>>(), listed);
        }
    }
}

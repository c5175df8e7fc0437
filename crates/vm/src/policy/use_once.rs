//! Use-once: a new page starts on the inactive queue and must be used again to earn its place.
//!
//! Source: Daniel Phillips, "[RFC] Early flush/use-once pages" and its thread, linux-kernel, July-August 2001: a page begins at age
//! zero on the inactive queue; the first reference after that moves it to the active queue and gives it its starting age. A scan
//! passes through the inactive queue and leaves the active one alone.
//!
//! Live, the queue position is what the age was: a page leaves the inactive queue's old end for its trial, a touch there makes it
//! active, and active pages go back to the inactive queue, oldest first, whenever the inactive queue falls below
//! [`INACTIVE_PERMILLE`] of the pages. Bad where a page's second use comes just after its trial has ended (loops a little larger than
//! memory), and where one *use* makes several references in quick succession: see `use-once-window`'s reason in the thread.

use super::{Admit, Policy};
use crate::page_queue::{Links, Queue};
use crate::types::{FrameId, PageId};

/// The inactive queue is refilled from the active one below this share of the listed pages. Guessed: a third, as 2.4 aimed at.
pub const INACTIVE_PERMILLE: u32 = 333;
/// Length of the trial queue in thousandths of the budget. A reference is seen only on trial, so the trial is this policy's memory of
/// what is used: with 60 a hot set of 40 % of memory beside a scan was evicted nearly whole (bench `hot-scan`). But each page of a
/// working set that stays pays a soft fault per trial: with 300 GNU sort at half of its memory took 62 s and 2.4 million soft faults,
/// with 120 it takes 57 s and 0.8 million, at 0.9 instead of 0.6 million hard ones (one run each).
pub const TRIAL_PERMILLE: u32 = 120;

/// See the module.
#[derive(Clone, Debug)]
pub struct UseOnce {
    links: Links,
    on_active: Vec<bool>,
    active: Queue,
    inactive: Queue,
}

impl UseOnce {
    /// For `frames` frames: 9 bytes each.
    pub fn new(frames: usize) -> Self {
        UseOnce { links: Links::new(frames), on_active: vec![false; frames], active: Queue::new(), inactive: Queue::new() }
    }

    fn put(&mut self, frame: FrameId, active: bool) {
        self.on_active[frame.at()] = active;
        let queue = if active { &mut self.active } else { &mut self.inactive };
        queue.push_back(&mut self.links, frame);
    }

    /// One active page goes back to the inactive queue. Returns whether there was one.
    fn deactivate(&mut self) -> bool {
        let Some(frame) = self.active.pop_front(&mut self.links) else { return false };
        self.put(frame, false);
        true
    }
}

impl Policy for UseOnce {
    fn name(&self) -> &'static str {
        "use-once"
    }
    fn admit(&mut self, frame: FrameId, _: PageId, _: Admit) {
        self.put(frame, false);
    }
    fn referenced(&mut self, frame: FrameId, _: PageId) {
        self.put(frame, true);
    }
    fn victims(&mut self, out: &mut [FrameId]) -> usize {
        let mut n = 0;
        while n < out.len() {
            let listed = self.active.len() + self.inactive.len();
            if self.inactive.len() < listed.div_ceil(1000) * INACTIVE_PERMILLE && !self.active.is_empty() {
                // two for one until the share is right again: amortised O(1), and no batch is spent on balancing alone
                self.deactivate();
                self.deactivate();
            }
            let Some(frame) = self.inactive.pop_front(&mut self.links) else {
                if self.deactivate() {
                    continue;
                }
                break;
            };
            out[n] = frame;
            n += 1;
        }
        n
    }
    fn refused(&mut self, frame: FrameId, _: PageId) {
        self.put(frame, true);
    }
    fn remove(&mut self, frame: FrameId) {
        let queue = if self.on_active[frame.at()] { &mut self.active } else { &mut self.inactive };
        queue.remove(&mut self.links, frame);
    }
    fn evicted(&mut self, _: FrameId, _: PageId) {}
    fn trial_permille(&self) -> u32 {
        TRIAL_PERMILLE
    }
    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::ObjectId;

    /// The thread's point: a scan must not push out what is used again.
    #[test]
    fn a_scan_passes_through() {
        let mut p = UseOnce::new(64);
        let page = |n: u32| PageId::new(ObjectId(0), n as u64);
        for f in 0..20 {
            p.admit(FrameId(f), page(f), Admit::FirstTouch);
        }
        let mut out = [FrameId(0); 10];
        assert_eq!(p.victims(&mut out), 10);
        for f in out {
            p.referenced(f, page(f.0)); // used again on trial
        }
        for f in 20..40 {
            p.admit(FrameId(f), page(f), Admit::HardFault); // the scan
        }
        let mut out = [FrameId(0); 20];
        assert_eq!(p.victims(&mut out), 20);
        assert!(out.iter().all(|f| f.0 >= 10), "a page that was used again went before the scan: {out:?}");
    }
}

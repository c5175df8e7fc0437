//! Use-once: a new page starts on the inactive queue and must be used again to earn its place.
//!
//! Source: Daniel Phillips, "[RFC] Early flush/use-once pages" and its thread, linux-kernel, July-August 2001. A page begins at age
//! zero on the inactive queue. The first reference after that gives it its starting age and clears "referenced". One more before it
//! has come to the old end of the queue, and it goes to the active ring. A scan passes through the inactive queue and leaves the
//! active ring alone. The lists are in `ages.rs`.
//!
//! Live, the place in the queue takes the role of the age. A page at the inactive queue's old end is parked, and a touch there
//! makes it active. Active pages go back to the inactive queue, oldest first, whenever that falls below its share of the pages.
//! References to mapped pages are not seen, so a page of a hot set may well be evicted. Its return is seen: a hard fault within
//! `refault` times the memory's number of evictions counts as a second use, and the page begins on the active ring. (After Weiner
//! 2014, the head of Linux's `mm/workingset.c`: with that much more memory it would have stayed.) With `refault=0` it begins again
//! at age zero, as in the patch. The default, once the memory, was chosen on bench `hot-scan`, where 0.5 to 2 differ little. A sort
//! and a Python program have under 1.6 % more faults with it, or some fewer. In the lab, which is told every reference, it has no
//! effect.
//!
//! The parked pages are a second queue behind this one, so the queue is shorter live (`queue`). A page that was touched again and
//! again while parked is spared the next rounds (`ages.rs`). With a queue of a tenth instead of a third, and pages spared, recorded
//! strings of a sort have 17 % fewer hard faults in half of its memory, of `hot-scan` 16 %, of a Python program and of SQLite 2 to
//! 5 % (replayed with `--see faults`, when twice as many were parked; 0.05 to 0.2 differ little).
//!
//! Bad where a page's second use comes just after it was parked and evicted (loops a little larger than memory), and where one
//! *use* makes several references in quick succession: a scan in small records looks like a working set. `use-once-window` is made
//! for that.

use super::ages::{Aged, INACTIVE, QUEUE, REFAULT, Rule, Start};
use super::{Arrival, Param};

/// See the module.
pub type UseOnce = Aged<UseOnceRule>;

/// See the module.
#[derive(Clone, Debug)]
pub struct UseOnceRule;

impl Rule for UseOnceRule {
    const NAME: &'static str = "use-once";
    const ABOUT: &'static str = "new pages start on the inactive queue and must be used again (Linux, July 2001)";
    const PARAMS: &'static [Param] = &[INACTIVE, QUEUE, REFAULT];
    const SPARES: bool = true;

    fn start(arrival: Arrival) -> Start {
        if arrival.why.is_ahead() { Start::Inactive } else { Start::InactiveUsedOnce }
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::{Admit, Spec, live};
    use crate::types::{FrameId, ObjectId, PageId};

    /// A hot page was evicted because its uses were not seen. It came back to the inactive queue at age zero, and was evicted
    /// again.
    #[test]
    fn a_page_that_is_soon_back_was_used_twice() {
        let page = |n: u32| PageId::new(ObjectId(0), n as u64);
        for (spec, distance, spared) in
            [("use-once", 63, true), ("use-once", 64, false), ("use-once:refault=2", 64, true), ("use-once:refault=0", 0, false)]
        {
            let mut p = live::make(&spec.parse().expect("known"), 64, 64);
            p.admit(FrameId(0), page(0), Admit::HardFault, Some(distance));
            (1..30).for_each(|f| p.admit(FrameId(f), page(f), Admit::HardFault, None));
            let mut out = [FrameId(0); 10];
            assert_eq!(p.victims(&mut out), 10);
            assert_eq!(!out.contains(&FrameId(0)), spared, "{spec}, {distance} evictions");
        }
    }

    /// A page that came back soon got two rounds of the ring, and one that was seen in use only one. The pages of a garbage
    /// collector come back in each of its rounds. They filled the ring, and half again as many others were touched while parked.
    #[test]
    fn a_page_that_is_soon_back_gets_one_round() {
        let mut p = live::make(&Spec::named("use-once").expect("it is there"), 64, 64);
        (0..64).for_each(|f| p.admit(FrameId(f), PageId::new(ObjectId(0), f as u64), Admit::HardFault, Some(0)));
        assert_eq!(p.victims(&mut [FrameId(0); 20]), 20);
        p.transitions(&mut |name, count| assert!(name != "active_to_active" || count == 0, "{count} had a second round"));
    }

    /// The thread's point: a scan must not push out pages that are used again.
    #[test]
    fn a_scan_passes_through() {
        let mut p = live::make(&Spec::named("use-once").expect("it is there"), 64, 64);
        let page = |n: u32| PageId::new(ObjectId(0), n as u64);
        for f in 0..20 {
            p.admit(FrameId(f), page(f), Admit::FirstTouch, None);
        }
        let mut out = [FrameId(0); 10];
        assert_eq!(p.victims(&mut out), 10);
        for f in out {
            p.referenced(f); // used again while parked
        }
        for f in 20..40 {
            p.admit(FrameId(f), page(f), Admit::HardFault, None); // the scan
        }
        let mut out = [FrameId(0); 20];
        assert_eq!(p.victims(&mut out), 20);
        assert!(out.iter().all(|f| f.0 >= 10), "a page that was used again went before the scan: {out:?}");
    }

    /// An index in memory was in use, but never inactive, when a file was read through: all of it was evicted once, because it had
    /// come first.
    #[test]
    fn a_long_run_pays_for_itself() {
        let page = |n: u32| PageId::new(ObjectId(0), n as u64);
        let mut p = live::make(&Spec::named("use-once").expect("it is there"), 64, 64);
        (0..30).for_each(|f| p.admit(FrameId(f), page(f), Admit::Readahead, None));
        p.run_begins();
        (30..60).for_each(|f| p.admit(FrameId(f), page(f), Admit::Passing, None));
        p.keep_passing(4);
        let mut out = [FrameId(0); 40];
        assert_eq!((p.passing(), p.passing_victims(&mut out)), (26, 26));
        assert!(out[..26].iter().map(|f| f.0).eq(30..56), "{out:?}");
        out[..26].iter().for_each(|f| p.evicted(*f, page(f.0)));
        // with no more of them coming, the last ones do not stay for ever
        let mut out = [FrameId(0); 18];
        assert_eq!(p.victims(&mut out), 18);
        assert_eq!(out.iter().filter(|f| f.0 >= 56).count(), 2, "{out:?}");
    }

    /// What was read in order, and is in memory when the next run begins, is like any other page then.
    #[test]
    fn runs_that_are_over_leave_ordinary_pages() {
        let page = |n: u32| PageId::new(ObjectId(0), n as u64);
        let mut p = live::make(&Spec::named("use-once").expect("it is there"), 64, 64);
        let run = |p: &mut dyn live::LivePolicy, frames: core::ops::Range<u32>| {
            p.run_begins();
            frames.for_each(|f| p.admit(FrameId(f), page(f), Admit::Passing, None));
        };
        run(&mut *p, 0..20);
        run(&mut *p, 20..40);
        let mut out = [FrameId(0); 64];
        assert_eq!(p.passing_victims(&mut out), 20);
        assert!(out[..20].iter().all(|f| f.0 >= 20), "{out:?}");
        assert_eq!((p.passing(), p.victims(&mut out)), (0, 20));
    }

    /// A page that was touched whenever it was parked was parked in every round of the ring. Each time cost a soft fault, only to
    /// learn what was known.
    #[test]
    fn what_is_touched_whenever_it_is_parked_is_parked_less_and_less_often() {
        let page = |n: u32| PageId::new(ObjectId(0), n as u64);
        let mut p = live::make(&Spec::named("use-once").expect("it is there"), 64, 64);
        (0..64).for_each(|f| p.admit(FrameId(f), page(f), Admit::FirstTouch, None));
        let mut parked = [0; 4];
        for round in 0..4096 {
            let mut out = [FrameId(0)];
            assert_eq!(p.victims(&mut out), 1);
            parked[round / 1024] += (out[0].0 < 32) as u32;
            if out[0].0 < 32 {
                p.referenced(out[0]); // half of the pages are used
            } else {
                p.evicted(out[0], page(out[0].0));
                p.admit(out[0], page(out[0].0), Admit::HardFault, None); // the others pass through
            }
        }
        assert!(parked[3] * 3 < parked[0], "{parked:?}");
    }

    /// Even if all pages have earned to be spared, a victim is found without going round and round.
    #[test]
    fn a_victim_is_found_among_the_spared() {
        let page = |n: u32| PageId::new(ObjectId(0), n as u64);
        let mut p = live::make(&Spec::named("use-once").expect("it is there"), 1000, 1000);
        (0..1000).for_each(|f| p.admit(FrameId(f), page(f), Admit::FirstTouch, None));
        let mut out = [FrameId(0)];
        for _ in 0..20_000 {
            assert_eq!(p.victims(&mut out), 1);
            p.referenced(out[0]);
        }
        let spared = |p: &dyn live::LivePolicy| {
            let mut n = 0;
            p.transitions(&mut |name, count| n += if name == "active_to_active" { count } else { 0 });
            n
        };
        let before = spared(&*p);
        assert_eq!(p.victims(&mut out), 1);
        assert!(spared(&*p) - before <= 64, "{}", spared(&*p) - before);
    }
}

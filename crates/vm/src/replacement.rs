//! The replacement policy, and what the core tells it.

use crate::frames::On;
use crate::page::{PageWord, State};
use crate::pager::Pager;
use crate::policy::{self, Admit, LivePolicy, Spec};
use crate::status::{TRANSITIONS_MAX, Transitions};
use crate::types::{FrameId, PageId};
use crate::vm::Vm;
use alloc::boxed::Box;

impl<P: Pager> Vm<P> {
    /// The policy and its parameters.
    pub fn policy(&self) -> Spec {
        self.policy.spec()
    }

    /// Copies the counts of transitions between the policy's queues to the status block. Costs a dozen stores.
    pub fn show_transitions(&self, to: &Transitions) {
        let counts = self.policy.transition_counts().iter().zip(&self.inherited);
        to.show(&self.policy.spec(), counts.map(|(count, before)| count - before));
    }

    /// In a fork's child: starts the counts of transitions at zero, because the past ones are the parent's.
    pub fn count_afresh(&mut self) {
        self.inherited = [0; TRANSITIONS_MAX];
        self.inherited.iter_mut().zip(self.policy.transition_counts()).for_each(|(before, count)| *before = *count);
    }

    /// Makes another, empty policy for this pager, for [`Vm::set_policy`]. Allocates.
    pub fn make_policy(&self, spec: &Spec) -> Box<dyn LivePolicy> {
        let mut policy = policy::live::make(spec, self.config.memory_pages, self.frames.count);
        policy.resize(self.limit);
        policy
    }

    /// Changes the policy. Returns the old one, to be dropped outside of the lock. Every page stays where it is. Mapped pages are
    /// handed over in the old policy's order, the worst first, those in frequent use as such. Inactive pages stay inactive. The old
    /// policy's ghosts are lost. Costs two passes over the frames. => made by [`Vm::make_policy`]
    pub fn set_policy(&mut self, mut new: Box<dyn LivePolicy>) -> Box<dyn LivePolicy> {
        let mut handed_over = 0;
        self.policy.worst_first(&mut |frame, hot| {
            new.inherit(frame, hot);
            handed_over += 1;
        });
        assert_eq!(handed_over, self.listed, "the policy {} has lost pages, or found some", self.policy.spec());
        for n in 0..self.frames.taken() {
            let frame = FrameId(n);
            let page = self.frames.page[frame.at()];
            let word = self.table.get(page);
            let inactive = match word.state() {
                State::Active => word.busy() || self.frames.on[n as usize] == On::Watched,
                State::Inactive | State::Clean => true,
                State::Untouched | State::PagedOut | State::Lost => false,
            };
            if inactive && word.frame() == frame {
                new.arrived_parked(frame, page);
            }
        }
        self.counters.policy_changes.add(1);
        self.inherited = [0; TRANSITIONS_MAX];
        core::mem::replace(&mut self.policy, new)
    }

    /// Ends the read into `frame`. Returns how many evictions ago its page was evicted, and counts that.
    pub(crate) fn refault_distance(&mut self, frame: FrameId) -> Option<u32> {
        let evicted_at = self.frames.end_read(frame);
        let distance = self.evictions_since(evicted_at)?;
        let counter = match distance as u64 * 2 / self.limit.max(1) as u64 {
            0 => &self.counters.refaults_within_half,
            1 => &self.counters.refaults_within_one,
            2 | 3 => &self.counters.refaults_within_two,
            _ => &self.counters.refaults_beyond,
        };
        counter.add(1);
        Some(distance)
    }

    /// How many evictions ago that one was; `None` if its number is not known.
    pub(crate) fn evictions_since(&self, evicted_at: u32) -> Option<u32> {
        (evicted_at != 0).then(|| self.evictions.wrapping_sub(evicted_at))
    }

    /// A page comes in, alone or along with others.
    pub(crate) fn note_page_in(&mut self, alone: bool, evicted_at: u32) {
        if let Some(distance) = self.evictions_since(evicted_at) {
            self.pool_size.page_in(alone, distance, self.limit);
        }
    }

    /// A page goes out: counts it if it was brought in and not used.
    pub(crate) fn note_unused(&mut self, word: PageWord) {
        if word.readahead() {
            self.counters.readahead_lost.add(1);
        }
        self.note_inactive(word, false);
    }

    /// An inactive page is used, or its frame is taken before any use.
    pub(crate) fn note_inactive(&mut self, word: PageWord, used: bool) {
        if word.sample() {
            self.note_sample(word, used);
        } else {
            self.neighbours.others.note(used);
        }
    }

    /// A sample was used, or goes out before any use.
    pub(crate) fn note_sample(&mut self, word: PageWord, used: bool) {
        let counters = self.counters;
        let (count, count_lost) = if word.readahead() {
            self.neighbours.samples.note(used);
            (&counters.neighbours_used, &counters.neighbours_lost)
        } else {
            self.pointers.note(used);
            (&counters.pointed_used, &counters.pointed_lost)
        };
        if used { count } else { count_lost }.add(1);
    }

    pub(crate) fn list(&mut self, frame: FrameId, page: PageId, why: Admit) {
        self.list_after(frame, page, why, None);
    }

    pub(crate) fn list_after(&mut self, frame: FrameId, page: PageId, why: Admit, distance: Option<u32>) {
        self.policy.admit(frame, page, why, distance);
        self.listed += 1;
    }

    /// A mapped page that is neither busy nor wired leaves the policy. It was listed, or watched.
    pub(crate) fn unlist_mapped(&mut self, frame: FrameId) {
        self.policy.remove(frame);
        self.unwatch_or_unlist(frame);
    }

    /// The page leaves the queue of watched pages, or else the policy has just taken it off its lists.
    pub(crate) fn unwatch_or_unlist(&mut self, frame: FrameId) {
        match self.frames.on[frame.at()] {
            On::Watched => self.dequeue(frame),
            _ => self.listed -= 1,
        }
    }

    /// A page that was taken from the policy stays mapped, or is mapped again. `tell` gives it back: [`LivePolicy::referenced`] or
    /// [`LivePolicy::refused`].
    pub(crate) fn list_again(&mut self, word: PageWord, tell: impl FnOnce(&mut dyn LivePolicy, FrameId)) {
        if word.wired() {
            // it was wired meanwhile: wired pages are on no list
            self.policy.remove(word.frame());
        } else {
            tell(&mut *self.policy, word.frame());
            self.listed += 1;
        }
    }

    /// Pages that the policy may give up: mapped, and neither busy nor wired nor watched.
    pub fn listed(&self) -> u32 {
        self.listed
    }
}

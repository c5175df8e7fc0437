//! The replacement policies, and what the core tells them.

use crate::frames::On;
use crate::page::{PageWord, State};
use crate::page_table::OBJECT_PAGES_MAX;
use crate::pager::Pager;
use crate::policies::{AtWork, Place};
use crate::policy::{self, Admit, LivePolicy, Spec};
use crate::status::{PolicyCounts, Status};
use crate::types::{FrameId, ObjectId, PageId};
use crate::vm::Vm;
use alloc::boxed::Box;

impl<P: Pager> Vm<P> {
    /// The pager's policy and its parameters.
    pub fn policy(&self) -> Spec {
        self.policies.at(0).policy.spec()
    }

    /// The same of an object: its own, or the pager's.
    pub fn policy_of(&self, object: ObjectId) -> Spec {
        self.policies.at(self.policies.number(object)).policy.spec()
    }

    /// The number of the object's policy, if it has one of its own.
    pub fn own_policy(&self, object: ObjectId) -> Option<usize> {
        Some(self.policies.number(object)).filter(|number| *number > 0)
    }

    /// Calls `each` with each policy, the object that has it for itself, and what became of its pages: first with the pager's,
    /// which all objects have that have no policy of their own.
    pub fn each_policy(&self, mut each: impl FnMut(Spec, Option<ObjectId>, PolicyCounts)) {
        let all = &self.policies;
        all.each(self.limit, |number, counts| each(all.at(number).policy.spec(), all.object(number), counts));
    }

    /// Copies to the status block: the counts of transitions between the queues of the pager's policy, and what became of the pages
    /// of each policy. Costs a dozen stores, and as many for each two policies of objects.
    pub fn show_policies(&self, to: &Status) {
        let first = self.policies.at(0);
        let counts = first.policy.transition_counts().iter().zip(&first.inherited);
        to.transitions.show(&first.policy.spec(), counts.map(|(count, before)| count - before));
        self.policies.each(self.limit, |number, counts| {
            if let Some(row) = to.policies.get(number) {
                row.show(&counts);
            }
        });
    }

    /// In a fork's child: starts the counts of transitions at zero, because the past ones are the parent's.
    pub fn count_afresh(&mut self) {
        self.policies.count_afresh();
    }

    /// Makes another, empty policy for this pager, for [`Vm::set_policy`] and [`Vm::set_policy_of`]. Allocates.
    pub fn make_policy(&self, spec: &Spec) -> Box<AtWork> {
        let mut policy = policy::live::make(spec, self.config.memory_pages, self.frames.count);
        policy.resize(self.limit);
        AtWork::new(policy)
    }

    /// Changes the pager's policy; policies of objects stay. Returns the old one, to be dropped outside of the lock. Each page
    /// stays where it is. Mapped pages are handed over in the old policy's order, the worst first, those in frequent use as such.
    /// Inactive pages stay inactive. The old policy's ghosts are lost. Costs two passes over the frames. => made by
    /// [`Vm::make_policy`]
    pub fn set_policy(&mut self, new: Box<AtWork>) -> Box<AtWork> {
        self.counters.policy_changes.add(1);
        self.replace_policy(0, new)
    }

    /// Gives an object a policy of its own, or changes that: as [`Vm::set_policy`], but for its pages alone. Returns the old one,
    /// if it had one.
    ///
    /// # Errors
    /// There are [`crate::POLICIES_MAX`] already. Gives `new` back.
    pub fn set_policy_of(&mut self, object: ObjectId, new: Box<AtWork>) -> Result<Option<Box<AtWork>>, Box<AtWork>> {
        let number = self.policies.number(object);
        if number > 0 {
            self.counters.policy_changes.add(1);
            return Ok(Some(self.replace_policy(number, new)));
        }
        let number = self.policies.add(object, new, self.limit)?;
        self.counters.policy_changes.add(1);
        if self.table.next_present(PageId::new(object, 0), OBJECT_PAGES_MAX).is_none() {
            return Ok(None);
        }
        self.hand_over_object(object, 0, number);
        Ok(None)
    }

    /// The object has the pager's policy again. Its pages are handed over as by [`Vm::set_policy`]. Returns its own, to be dropped
    /// outside of the lock.
    pub fn end_policy_of(&mut self, object: ObjectId) -> Option<Box<AtWork>> {
        let number = self.own_policy(object)?;
        if self.policies.at(number).pages > 0 {
            self.hand_over_object(object, number, 0);
        }
        self.policies.end(object, self.limit)
    }

    fn replace_policy(&mut self, number: usize, mut new: Box<AtWork>) -> Box<AtWork> {
        let mut old = self.policies.take(number);
        self.hand_over(&mut old, &mut new, |page| self.policies.number(page.object()) == number);
        assert_eq!((old.listed, old.pages), (0, 0), "the policy {} has lost pages, or found some", old.policy.spec());
        new.succeed(&old);
        self.policies.put(number, new);
        old
    }

    /// Hands the object's pages over, from the policy of one number to that of another.
    fn hand_over_object(&mut self, object: ObjectId, from: usize, to: usize) {
        let (mut old, mut new) = (self.policies.take(from), self.policies.take(to));
        self.hand_over(&mut old, &mut new, |page| page.object() == object);
        self.policies.put(from, old);
        self.policies.put(to, new);
    }

    fn hand_over(&self, from: &mut AtWork, to: &mut AtWork, moves: impl Fn(PageId) -> bool) {
        from.policy.worst_first(&mut |frame, hot| {
            if moves(self.frames.page[frame.at()]) {
                to.inherit(frame, hot);
            }
        });
        for n in 0..self.frames.taken() {
            let frame = FrameId(n);
            let page = self.frames.page[frame.at()];
            if !moves(page) {
                continue;
            }
            match self.place(frame, page) {
                Some(Place::Listed) => {
                    from.remove(frame);
                    from.listed -= 1;
                }
                Some(Place::Taken) => {
                    from.remove(frame);
                    to.arrived_parked(frame, page);
                }
                None => {}
            }
        }
    }

    /// Whether the page's policy knows it in this frame, and how.
    pub(crate) fn place(&self, frame: FrameId, page: PageId) -> Option<Place> {
        let word = self.table.get(page);
        let place = match word.state() {
            State::Active if word.busy() || self.frames.on[frame.at()] == On::Watched => Place::Taken,
            State::Active if word.wired() => return None,
            State::Active => Place::Listed,
            State::Inactive | State::Clean => Place::Taken,
            State::Untouched | State::PagedOut | State::Lost => return None,
        };
        (word.frame() == frame).then_some(place)
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
    pub(crate) fn note_page_in(&mut self, alone: bool, refused: bool, evicted_at: u32) {
        if let Some(distance) = self.evictions_since(evicted_at) {
            self.pool_size.page_in(alone, refused, distance, self.limit);
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
        let distance = distance.map(|distance| self.policies.refault(page, distance, !why.is_ahead(), self.limit));
        self.policies.of(page).admit(frame, page, why, distance);
        self.listed += 1;
    }

    /// A mapped page that is neither busy nor wired leaves its policy. It was listed, or watched.
    pub(crate) fn unlist_mapped(&mut self, frame: FrameId) {
        self.policies.of(self.frames.page[frame.at()]).remove(frame);
        self.unwatch_or_unlist(frame);
    }

    /// The page leaves the queue of watched pages, or else its policy has just taken it off its lists.
    pub(crate) fn unwatch_or_unlist(&mut self, frame: FrameId) {
        match self.frames.on[frame.at()] {
            On::Watched => self.dequeue(frame),
            _ => {
                self.policies.of(self.frames.page[frame.at()]).listed -= 1;
                self.listed -= 1;
            }
        }
    }

    /// A page that was taken from its policy stays mapped, or is mapped again. `tell` gives it back: [`LivePolicy::referenced`] or
    /// [`LivePolicy::refused`].
    pub(crate) fn list_again(&mut self, word: PageWord, tell: impl FnOnce(&mut dyn LivePolicy, FrameId)) {
        let at_work = self.policies.of(self.frames.page[word.frame().at()]);
        if word.wired() {
            // it was wired meanwhile: wired pages are on no list
            at_work.remove(word.frame());
        } else {
            tell(&mut *at_work.policy, word.frame());
            at_work.listed += 1;
            self.listed += 1;
        }
    }

    /// Pages that the policies may give up: mapped, and neither busy nor wired nor watched.
    pub fn listed(&self) -> u32 {
        self.listed
    }
}

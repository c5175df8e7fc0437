//! The policies at work: the pager's, and those of objects that have one of their own. All share one budget.
//!
//! A page belongs to the policy of its object. Each policy has a *share* of the pages that policies may give up. Victims come from
//! the policies that have the most pages for their share, until all of these are level (max-min fairness): a policy that wants less
//! than its share leaves the rest to the others. Shares begin equal and follow use: **a page that comes back brings the share of a
//! few frames along**, which the other policies give in turn. It comes back if a thread touches it while it is inactive, or has to
//! wait until it is read again although it would still be in memory if its policy had the whole budget. So shares move from those
//! whose pages are not missed to those whose pages are, until pages come back equally often everywhere (hill climbing on the
//! gradient of the hit rate, as Cidon et al., Cliffhanger, NSDI 2016, with the ghosts that we have). An eighth of an equal share is
//! left to each.
//!
//! Each policy is told the memory that it has (`resize`), and distances in evictions of its own: the core counts those of all, so
//! they are scaled by the policy's part of the latest evictions.
//!
//! While the pager's policy is the only one, none of this happens, and it has the whole budget.

use crate::policy::{Admit, LivePolicy};
use crate::status::{PolicyCounts, TRANSITIONS_MAX};
use crate::types::{FrameId, ObjectId, PageId};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// The most policies of a pager, its own included.
pub const POLICIES_MAX: usize = 255;

/// All shares together.
const WHOLE: u64 = 1 << 32;
/// A policy keeps this part of an equal share.
const LEAST_PART: u64 = 8;
/// A page that comes back brings the share of so many frames along: by one, a region in use of 60 % of the
/// budget, next to one that is read once, had to read a third to a half of its pages again until it had its place.
const BRINGS: u64 = 4;
/// How many other policies are asked for that, until one has as much to give.
const ASKED_MAX: usize = 8;
/// A policy is told how much memory it has when that has changed by this part.
const TOLD_PART: u32 = 16;
/// The least memory that a policy is told, in pages.
const TOLD_MIN: u32 = 8;

/// A policy at work, or ready for it: [`crate::Vm::make_policy`].
pub struct AtWork {
    pub(crate) policy: Box<dyn LivePolicy>,
    /// Pages on its lists: it may give them up.
    pub(crate) listed: u32,
    /// Pages that it knows: those, and the ones that are inactive or watched.
    pub(crate) pages: u32,
    /// Of [`WHOLE`].
    share: u64,
    /// The memory that it was told last, in pages.
    told: u32,
    /// Its part of [`Policies::lately`].
    lately: u32,
    /// What it had counted when this process began, if that was by a fork.
    pub(crate) inherited: [u64; TRANSITIONS_MAX],
    counts: PolicyCounts,
}

impl AtWork {
    pub(crate) fn new(policy: Box<dyn LivePolicy>) -> Box<Self> {
        let counts = PolicyCounts::default();
        Box::new(AtWork { policy, listed: 0, pages: 0, share: WHOLE, told: 0, lately: 0, inherited: [0; TRANSITIONS_MAX], counts })
    }
    fn copy(&self) -> Box<Self> {
        Box::new(AtWork { policy: self.policy.clone_box(), ..*self })
    }
    /// Takes the place of `old`, which the pages have left.
    pub(crate) fn succeed(&mut self, old: &AtWork) {
        (self.share, self.lately, self.counts) = (old.share, old.lately, old.counts);
    }
    pub(crate) fn admit(&mut self, frame: FrameId, page: PageId, why: Admit, distance: Option<u32>) {
        self.policy.admit(frame, page, why, distance);
        self.pages += 1;
        self.listed += 1;
        self.counts.refaults += u64::from(distance.is_some() && !why.is_ahead());
    }
    pub(crate) fn inherit(&mut self, frame: FrameId, hot: bool) {
        self.policy.inherit(frame, hot);
        self.pages += 1;
        self.listed += 1;
    }
    pub(crate) fn arrived_parked(&mut self, frame: FrameId, page: PageId) {
        self.policy.arrived_parked(frame, page);
        self.pages += 1;
    }
    /// The page was given up or wired. => it is inactive, or the caller unlists it
    pub(crate) fn remove(&mut self, frame: FrameId) {
        self.policy.remove(frame);
        self.pages -= 1;
    }
    fn resize(&mut self, memory: u32) {
        self.told = memory;
        self.policy.resize(memory);
    }
    fn took(&mut self, n: usize) -> usize {
        self.listed -= n as u32;
        self.counts.victims += n as u64;
        n
    }
    /// The memory that it has, of a budget.
    fn memory(&self, limit: u32) -> u32 {
        self.pages_of_share(limit).max(self.pages).min(limit).max(TOLD_MIN)
    }
    fn pages_of_share(&self, limit: u32) -> u32 {
        (self.share * limit as u64 / WHOLE) as u32
    }
}

/// How a policy knows a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// On one of its lists.
    Listed,
    /// Taken: inactive, watched, or on the way there or back.
    Taken,
}

/// See the module.
pub(crate) struct Policies {
    /// By number. The first is the pager's; the last is one, too.
    all: Vec<Option<Box<AtWork>>>,
    /// The number of each object's policy.
    number: Vec<u8>,
    /// The one that was asked last for a share.
    asked: usize,
    /// The latest evictions of all.
    lately: u32,
}

impl Policies {
    pub(crate) fn new(first: Box<AtWork>, objects: u16) -> Self {
        let mut all = Vec::with_capacity(POLICIES_MAX);
        all.push(Some(first));
        Policies { all, number: vec![0; objects as usize], asked: 0, lately: 0 }
    }
    pub(crate) fn copy(&self) -> Self {
        let mut all = Vec::with_capacity(POLICIES_MAX);
        all.extend(self.all.iter().map(|one| one.as_ref().map(|one| one.copy())));
        Policies { all, number: self.number.clone(), ..*self }
    }

    /// The number of an object's policy.
    #[inline]
    pub(crate) fn number(&self, object: ObjectId) -> usize {
        self.number.get(object.0 as usize).map_or(0, |number| *number as usize)
    }
    pub(crate) fn at(&self, number: usize) -> &AtWork {
        self.all[number].as_ref().expect("a policy at work")
    }
    pub(crate) fn at_mut(&mut self, number: usize) -> &mut AtWork {
        self.all[number].as_mut().expect("a policy at work")
    }
    /// The policy of the page's object.
    #[inline]
    pub(crate) fn of(&mut self, page: PageId) -> &mut AtWork {
        let number = self.number(page.object());
        self.at_mut(number)
    }
    pub(crate) fn iter(&self) -> impl Iterator<Item = &AtWork> + Clone {
        self.all.iter().flatten().map(|one| &**one)
    }
    fn iter_mut(&mut self) -> impl Iterator<Item = &mut AtWork> {
        self.all.iter_mut().flatten().map(|one| &mut **one)
    }
    fn are_several(&self) -> bool {
        self.all.len() > 1
    }

    /// Takes a policy out for a moment, to be put back.
    pub(crate) fn take(&mut self, number: usize) -> Box<AtWork> {
        self.all[number].take().expect("a policy at work")
    }
    pub(crate) fn put(&mut self, number: usize, one: Box<AtWork>) {
        self.all[number] = Some(one);
    }

    /// Adds a policy for the object, with an equal share. `Err`: there are [`POLICIES_MAX`], or no such object. => the object has
    /// the pager's
    pub(crate) fn add(&mut self, object: ObjectId, mut one: Box<AtWork>, limit: u32) -> Result<usize, Box<AtWork>> {
        let number = self.all.iter().position(Option::is_none).unwrap_or(self.all.len());
        let Some(of) = self.number.get_mut(object.0 as usize).filter(|_| number < POLICIES_MAX) else { return Err(one) };
        *of = number as u8;
        let others = self.iter().count() as u64;
        let mut left = WHOLE;
        for other in self.iter_mut() {
            other.share = other.share * others / (others + 1);
            left -= other.share;
        }
        one.share = left;
        match self.all.get_mut(number) {
            Some(place) => *place = Some(one),
            None => self.all.push(Some(one)),
        }
        self.resize(limit);
        Ok(number)
    }

    /// Ends the policy of the object, which has the pager's from now on. `None` if it has that already. => the policy has no page
    pub(crate) fn end(&mut self, object: ObjectId, limit: u32) -> Option<Box<AtWork>> {
        let number = self.number(object);
        if number == 0 {
            return None;
        }
        let one = self.take(number);
        assert_eq!(one.pages, 0, "the policy {} ends with pages", one.policy.spec());
        self.number[object.0 as usize] = 0;
        while self.all.last().is_some_and(Option::is_none) {
            self.all.pop();
        }
        let mut left = WHOLE;
        for other in self.iter_mut() {
            other.share = (other.share as u128 * WHOLE as u128 / (WHOLE - one.share) as u128) as u64;
            left -= other.share;
        }
        self.at_mut(0).share += left;
        self.lately -= one.lately;
        self.resize(limit);
        Some(one)
    }

    /// The budget is now `limit` pages.
    pub(crate) fn resize(&mut self, limit: u32) {
        if !self.are_several() {
            return self.at_mut(0).resize(limit);
        }
        self.iter_mut().for_each(|one| one.resize(one.memory(limit)));
    }

    /// Tells each policy how much memory it has, if that has changed much.
    fn tell_memory(&mut self, limit: u32) {
        for one in self.iter_mut() {
            let memory = one.memory(limit);
            if memory.abs_diff(one.told) > one.told / TOLD_PART {
                one.resize(memory);
            }
        }
    }

    /// Takes the next victims. Fewer than there is room for only if there are no more.
    pub(crate) fn victims(&mut self, out: &mut [FrameId], limit: u32) -> usize {
        if !self.are_several() {
            let one = self.at_mut(0);
            let n = one.policy.victims(out);
            return one.took(n);
        }
        self.tell_memory(limit);
        let level = Level::after(self.iter().map(|one| (one.listed, one.share)), out.len() as u32);
        let mut taken = 0;
        for one in self.iter_mut() {
            let n = (level.excess(one.listed, one.share) as usize).min(out.len() - taken);
            let n = one.policy.victims(&mut out[taken..taken + n]);
            taken += one.took(n);
        }
        taken
    }

    /// How many pages need not be parked before they are evicted.
    pub(crate) fn passing(&self) -> u32 {
        self.iter().map(|one| one.policy.passing()).sum()
    }

    /// Takes of those, from each policy in proportion.
    pub(crate) fn passing_victims(&mut self, out: &mut [FrameId]) -> usize {
        let (mut taken, mut left) = (0, self.passing() as usize);
        for one in self.iter_mut() {
            let passing = one.policy.passing() as usize;
            let n = ((out.len() - taken) * passing).div_ceil(left.max(1)).min(passing);
            left -= passing;
            let n = one.policy.passing_victims(&mut out[taken..taken + n]);
            taken += one.took(n);
        }
        taken
    }

    /// This many of `limit` pages belong to policies that learn from touches of inactive pages.
    pub(crate) fn learning(&self, limit: u32) -> u32 {
        let (mut learning, mut all) = (0, 0);
        for one in self.iter() {
            let weight = u64::from(one.pages) + 1;
            all += weight;
            learning += if one.policy.learns_inactive() { weight } else { 0 };
        }
        (limit as u64 * learning / all) as u32
    }

    /// The page in `frame` was taken, and was touched before it was evicted.
    pub(crate) fn rescued(&mut self, page: PageId, limit: u32) {
        let number = self.number(page.object());
        self.at_mut(number).counts.rescued += 1;
        self.came_back(number, limit);
    }

    /// A page comes in that was evicted so many evictions ago. `waits`: a thread waits for it. Returns how many of its policy's.
    pub(crate) fn refault(&mut self, page: PageId, distance: u32, waits: bool, limit: u32) -> u32 {
        if !self.are_several() {
            return distance;
        }
        let number = self.number(page.object());
        let one = self.at(number);
        let distance = (distance as u64 * one.lately as u64 / self.lately.max(1) as u64) as u32;
        if waits && distance.saturating_add(one.pages) <= limit {
            self.came_back(number, limit);
        }
        distance
    }

    /// A page has come back: another policy gives a share.
    fn came_back(&mut self, number: usize, limit: u32) {
        if !self.are_several() {
            return;
        }
        let (brings, least) = (BRINGS * WHOLE / limit.max(1) as u64, WHOLE / (LEAST_PART * self.all.len() as u64));
        for _ in 0..ASKED_MAX {
            self.asked = (self.asked + 1) % self.all.len();
            let asked = self.all[self.asked].as_mut().filter(|one| one.share >= least + brings);
            if let Some(other) = asked.filter(|_| self.asked != number) {
                other.share -= brings;
                self.at_mut(number).share += brings;
                return;
            }
        }
    }

    /// The inactive page in `frame` has left memory.
    pub(crate) fn evicted(&mut self, frame: FrameId, page: PageId, limit: u32) {
        let one = self.of(page);
        one.policy.evicted(frame, page);
        one.pages -= 1;
        one.lately += 1;
        one.counts.evicted += 1;
        self.lately += 1;
        if self.lately >= limit.max(2) {
            self.lately = 0;
            for one in self.all.iter_mut().flatten() {
                one.lately /= 2;
                self.lately += one.lately;
            }
        }
    }

    /// Calls `each` with the number of each policy, and what became of its pages; the pager's comes first.
    pub(crate) fn each(&self, limit: u32, mut each: impl FnMut(usize, PolicyCounts)) {
        let at_work = self.all.iter().enumerate().filter(|(_, one)| one.is_some());
        at_work.for_each(|(number, _)| each(number, self.counts(number, limit)));
    }

    /// The object that has this policy for itself.
    pub(crate) fn object(&self, number: usize) -> Option<ObjectId> {
        let of = self.number.iter().position(|of| usize::from(*of) == number);
        of.filter(|_| number > 0).map(|object| ObjectId(object as u16))
    }

    fn counts(&self, number: usize, limit: u32) -> PolicyCounts {
        let one = self.at(number);
        PolicyCounts { resident: one.pages.into(), share: one.pages_of_share(limit).into(), ..one.counts }
    }

    /// Asserts that each policy has so many pages: those listed, and those taken.
    pub(crate) fn check(&self, known: &[[u32; 2]; POLICIES_MAX]) {
        for (number, [listed, taken]) in known.iter().enumerate() {
            let has = self.all.get(number).and_then(Option::as_ref).map_or((0, 0), |one| (one.listed, one.pages));
            assert_eq!(has, (*listed, listed + taken), "listed and known by policy {number}");
        }
        assert_eq!(self.iter().map(|one| one.share).sum::<u64>(), WHOLE);
    }

    /// In a fork's child: starts the counts of transitions at zero, because the past ones are the parent's.
    pub(crate) fn count_afresh(&mut self) {
        for one in self.iter_mut() {
            one.inherited = [0; TRANSITIONS_MAX];
            one.inherited.iter_mut().zip(one.policy.transition_counts()).for_each(|(before, count)| *before = *count);
        }
    }

    /// Bytes of all tables for each frame, ghosts included.
    pub(crate) fn frame_bytes(&self) -> u64 {
        self.iter().map(|one| one.policy.frame_bytes()).sum()
    }
}

/// The pages that each policy keeps for its share: `pages` for `shares` of it. What it has above that are victims.
#[derive(Clone, Copy, Debug)]
struct Level {
    pages: u64,
    shares: u64,
}

impl Level {
    /// The level after `n` pages were taken from policies with these listed pages and shares, always one of those that are highest
    /// above it.
    fn after(each: impl Iterator<Item = (u32, u64)> + Clone, n: u32) -> Self {
        let sum = |each: &mut dyn Iterator<Item = (u32, u64)>| {
            each.fold((0, 0), |(pages, shares), (listed, share)| (pages + u64::from(listed), shares + share))
        };
        let (mut pages, mut shares) = sum(&mut each.clone());
        loop {
            let level = Level { pages: pages.saturating_sub(n.into()), shares };
            let above = sum(&mut each.clone().filter(|(listed, share)| level.is_below(*listed, *share)));
            if above == (pages, shares) || level.pages == 0 {
                return level;
            }
            (pages, shares) = above; // the others give nothing
        }
    }
    fn is_below(&self, listed: u32, share: u64) -> bool {
        listed as u128 * self.shares as u128 > share as u128 * self.pages as u128
    }
    /// How many of the listed pages lie above the level, rounded up.
    fn excess(&self, listed: u32, share: u64) -> u32 {
        let keep = share as u128 * self.pages as u128 / self.shares.max(1) as u128;
        listed.saturating_sub(keep.min(u32::MAX as u128) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{self, Spec};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const FRAMES: usize = 96;
    const OBJECTS: u16 = 6;
    const LIMIT: u32 = 64;

    fn make(name: &str) -> Box<AtWork> {
        AtWork::new(policy::live::make(&name.parse::<Spec>().expect("known"), LIMIT, FRAMES))
    }

    /// Takes one page after the other, each from the policy that has most for its share.
    fn one_by_one(has: &[(u32, u64)], n: u32) -> Vec<u32> {
        let mut left: Vec<u32> = has.iter().map(|(listed, _)| *listed).collect();
        for _ in 0..n {
            let most = (0..has.len()).max_by(|a, b| {
                let above = |i: usize, j: usize| left[i] as u128 * has[j].1 as u128;
                above(*a, *b).cmp(&above(*b, *a))
            });
            let most = most.expect("there are some");
            if left[most] == 0 {
                break;
            }
            left[most] -= 1;
        }
        has.iter().zip(left).map(|((listed, _), left)| listed - left).collect()
    }

    /// A page of the model: its frame's page, and whether it is listed.
    type Known = BTreeMap<u32, (PageId, bool)>;

    fn page(object: u16, n: u32) -> PageId {
        PageId::new(ObjectId(object), n as u64)
    }

    /// Each policy has the pages of its objects in the model, and no others.
    fn agrees(policies: &Policies, known: &Known) -> Result<(), TestCaseError> {
        let mut counts = [[0; 2]; POLICIES_MAX];
        for (page, listed) in known.values() {
            counts[policies.number(page.object())][usize::from(!listed)] += 1;
        }
        policies.check(&counts);
        let lately: u32 = policies.iter().map(|one| one.lately).sum();
        prop_assert_eq!(lately, policies.lately);
        for (number, one) in policies.all.iter().enumerate() {
            let Some(one) = one else { continue };
            let mut wrong = None;
            let mut listed = 0;
            one.policy.worst_first(&mut |frame, _| {
                listed += 1;
                let is_its = known.get(&frame.0).is_some_and(|(page, is)| *is && policies.number(page.object()) == number);
                wrong = wrong.or((!is_its).then_some(frame));
            });
            prop_assert_eq!((wrong, listed), (None, one.listed), "policy {}", number);
        }
        Ok(())
    }

    fn step(policies: &mut Policies, known: &mut Known, (op, frame, n): (u8, u32, u32)) -> Result<(), TestCaseError> {
        let object = (n % OBJECTS as u32) as u16;
        let at = page(object, n);
        let in_memory = known.values().any(|(page, _)| *page == at);
        let there = known.get(&frame).copied();
        let id = FrameId(frame);
        match (op, there) {
            (0..4, None) if !in_memory => {
                use Admit::*;
                let why = [FirstTouch, HardFault, Readahead, FileRead, Passing][n as usize % 5];
                let distance = why.is_refault().then(|| policies.refault(at, n, !why.is_ahead(), LIMIT));
                policies.of(at).admit(id, at, why, distance);
                known.insert(frame, (at, true));
            }
            (4, None) if !in_memory => {
                policies.of(at).arrived_parked(id, at);
                known.insert(frame, (at, false));
            }
            (5, Some((page, false))) => {
                policies.rescued(page, LIMIT);
                let one = policies.of(page);
                one.policy.referenced(id);
                one.listed += 1;
                known.insert(frame, (page, true));
            }
            (6 | 7, Some((page, false))) => {
                policies.evicted(id, page, LIMIT);
                known.remove(&frame);
            }
            (8, Some((page, listed))) => {
                let one = policies.of(page);
                one.remove(id);
                one.listed -= u32::from(listed);
                known.remove(&frame);
            }
            (9, _) => policies.resize(16 + n),
            (10 | 11, _) => {
                let mut out = [FrameId(0); 40];
                let room = 1 + n as usize % 40;
                let before: Vec<_> = policies.iter().map(|one| (one.listed, one.share)).collect();
                let (wanted, listed) = (room as u32, before.iter().map(|(listed, _)| listed).sum::<u32>());
                let got = if op == 10 {
                    policies.victims(&mut out[..room], LIMIT)
                } else {
                    let passing = policies.passing();
                    let got = policies.passing_victims(&mut out[..room]);
                    prop_assert_eq!(got as u32, passing.min(wanted));
                    got
                };
                if op == 10 {
                    prop_assert_eq!(got as u32, wanted.min(listed));
                    let gave = policies.iter().zip(&before).map(|(one, (listed, _))| listed - one.listed);
                    for (gave, wanted) in gave.zip(one_by_one(&before, wanted)) {
                        // the last of several that are level gives what is left
                        prop_assert!(gave.abs_diff(wanted) <= before.len() as u32, "{:?} of {:?}", gave, before);
                    }
                }
                for victim in &out[..got] {
                    let (page, listed) = known.get_mut(&victim.0).expect("a victim is known");
                    prop_assert!(core::mem::replace(listed, false), "{:?} was not listed", page);
                }
            }
            (12, _) if object > 0 && policies.number(ObjectId(object)) == 0 => {
                let theirs = known.values().any(|(page, _)| page.object().0 == object);
                if !theirs {
                    prop_assert!(
                        policies.add(ObjectId(object), make(policy::NAMES[n as usize % policy::NAMES.len()]), LIMIT).is_ok()
                    );
                }
            }
            (13, _) if !known.values().any(|(page, _)| page.object().0 == object) => {
                let had = policies.number(ObjectId(object)) > 0;
                prop_assert_eq!(policies.end(ObjectId(object), LIMIT).is_some(), had);
            }
            (14, _) => *policies = policies.copy(),
            _ => {}
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn who_has_most_for_its_share_gives(has in proptest::collection::vec((0u32..300, 1u64..50), 1..9), n in 1u32..256) {
            let level = Level::after(has.iter().copied(), n);
            let gives: Vec<u32> = has.iter().map(|(listed, share)| level.excess(*listed, *share)).collect();
            let all: u32 = has.iter().map(|(listed, _)| listed).sum();
            let sum: u32 = gives.iter().sum();
            prop_assert!(sum >= n.min(all) && sum <= n.min(all) + has.len() as u32, "{sum} of {n}");
            for (gives, model) in gives.iter().zip(one_by_one(&has, n)) {
                prop_assert!(gives.abs_diff(model) <= has.len() as u32, "{gives} or {model}: {has:?}");
            }
        }

        /// In any order of calls no page is lost or known twice, each victim comes from its policy, and the shares add up.
        #[test]
        fn pages_are_where_a_model_says(ops in proptest::collection::vec((0u8..15, 0..FRAMES as u32, 0u32..160), 0..800)) {
            let mut policies = Policies::new(make("use-once"), OBJECTS);
            let mut known = Known::new();
            for op in ops {
                step(&mut policies, &mut known, op)?;
            }
            agrees(&policies, &known)?;
        }
    }

    #[test]
    fn there_is_room_for_so_many() {
        let mut policies = Policies::new(make("fifo"), 300);
        for object in 1..POLICIES_MAX as u16 {
            assert_eq!(policies.add(ObjectId(object), make("fifo"), LIMIT).ok(), Some(object as usize));
        }
        assert!(policies.add(ObjectId(299), make("fifo"), LIMIT).is_err());
        assert_eq!(policies.number(ObjectId(299)), 0);
        assert!(policies.end(ObjectId(7), LIMIT).is_some() && policies.end(ObjectId(7), LIMIT).is_none());
        assert_eq!(policies.add(ObjectId(299), make("lru"), LIMIT).ok(), Some(7), "the place is used again");
        assert!(policies.add(ObjectId(300), make("fifo"), LIMIT).is_err(), "there is no such object");
        for object in 1..300 {
            policies.end(ObjectId(object), LIMIT);
        }
        let first = policies.at(0);
        assert_eq!((policies.all.len(), first.share, first.told), (1, WHOLE, LIMIT), "it has the whole budget again");
    }

    /// Memory goes to the policy whose pages come back, and on to another one whose pages come back more often.
    #[test]
    fn shares_follow_use() {
        const LIMIT: u32 = 1000;
        let share = |policies: &Policies, object| policies.counts(policies.number(ObjectId(object)), LIMIT).share;
        let mut policies = Policies::new(make("use-once"), 3);
        assert!(policies.add(ObjectId(1), make("lru"), LIMIT).is_ok() && policies.add(ObjectId(2), make("fifo"), LIMIT).is_ok());
        assert_eq!([0, 1, 2].map(|object| share(&policies, object)), [333; 3]);
        let least = LIMIT as u64 / 24;
        let have_least = |policies: &Policies, objects: [u16; 2]| {
            objects.iter().all(|object| (least..=least + BRINGS).contains(&share(policies, *object)))
        };
        (0..2000).for_each(|n| policies.rescued(page(1, n), LIMIT));
        assert!(have_least(&policies, [0, 2]) && share(&policies, 1) >= LIMIT as u64 - 2 * (least + BRINGS + 1));
        (0..2000).for_each(|n| policies.rescued(page([1, 2, 2][n as usize % 3], n), LIMIT));
        assert!(have_least(&policies, [0, 1]) && share(&policies, 2) >= LIMIT as u64 - 2 * (least + BRINGS + 1));
    }

    /// What would not be in memory even if its policy had the whole budget is no reason to give it more.
    #[test]
    fn what_comes_back_too_late_brings_nothing_along() {
        let mut policies = Policies::new(make("use-once"), 2);
        assert!(policies.add(ObjectId(1), make("lru"), LIMIT).is_ok());
        let share = |policies: &Policies| policies.counts(1, LIMIT).share;
        let before = share(&policies);
        let evict = |policies: &mut Policies, object| {
            policies.of(page(object, 0)).arrived_parked(FrameId(0), page(object, 0));
            policies.evicted(FrameId(0), page(object, 0), 1 << 20);
        };
        (0..LIMIT).for_each(|_| evict(&mut policies, 1));
        (0..LIMIT * 3).for_each(|_| evict(&mut policies, 0));
        assert_eq!(policies.refault(page(1, 0), 8 * LIMIT, true, LIMIT), 2 * LIMIT, "a fourth of the evictions were its own");
        assert_eq!(share(&policies), before);
        assert_eq!(policies.refault(page(1, 0), 2 * LIMIT, true, LIMIT), LIMIT / 2);
        assert_eq!(share(&policies), before + BRINGS);
        assert_eq!(policies.refault(page(1, 0), 2 * LIMIT, false, LIMIT), LIMIT / 2, "nobody waited for it");
        assert_eq!(share(&policies), before + BRINGS);
    }
}

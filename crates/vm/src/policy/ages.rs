//! The page lists of Linux 2.4, which four policies share: an active ring of pages with ages, and an inactive queue.
//!
//! ```text
//!                     aged down to zero                        old end, not touched
//!   active ring  ------------------------->  inactive queue  ------------------------> victim
//!      ^    |                                  |        ^
//!      +----+ touched: older by 3, else halved |        | use-once-window: the old end of a small window of new pages
//!      ^                                       |
//!      +---------------------------------------+ touched there (a dirty page that was not touched is written and goes round once)
//! ```
//!
//! Source: the use-once thread (linux-kernel, July 2001) and its patch against 2.4.5. Numbers of 2.4: a page starts with age 2. A
//! touch found by the scan adds 3, up to 64; a scan without one halves the age. The thread calls the inactive-dirty and
//! inactive-clean lists "a single, two-stage queue", so they are one queue here. The active ring is scanned when the inactive queue
//! is short, not by a timer. The number of scans of a page between two touches is bounded by the binary logarithm of its age, so a
//! victim costs O(1) amortised.
//!
//! Live, a touch is seen only while a page is parked. So an age tells no more than the place in the ring does, and a rule may do
//! without ages. A rule that *spares* has this instead: a page that is touched again and again while parked is spared its next
//! round of the ring, then two, four and eight rounds. Otherwise each round costs a move out of sight and a soft fault, only to
//! learn what is known already. At most [`SPARED_IN_A_ROW`] pages are spared before one is taken, so a victim costs O(1).

use super::{Admit, Args, Arrival, Ghosts, Node, Param, Policy, See, Setup, Values};
use crate::page_queue::{ListId, Lists};
use core::marker::PhantomData;

/// Age of a page that starts on the active ring, or comes to it (PAGE_AGE_START).
const AGE_START: u32 = 2;
/// The age that a touch adds (PAGE_AGE_ADV).
const AGE_ADVANCE: u32 = 3;
/// The highest age (PAGE_AGE_MAX).
const AGE_MAX: u32 = 64;

/// Where a new page starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// At the new end of the active ring, with the starting age.
    Active,
    /// At the new end of the inactive queue, with age zero: its first touch is its first use.
    Inactive,
    /// The same, but the touch that brought it in counts as its first use.
    InactiveUsedOnce,
    /// In the window of new pages.
    Window,
}

/// The differences between the four policies.
pub trait Rule: Clone + Send + 'static {
    /// See [`Policy`].
    const NAME: &'static str;
    /// See [`Policy`].
    const ABOUT: &'static str;
    /// See [`Policy`].
    const PARAMS: &'static [Param];
    /// Whether a touch of an active page puts it on the inactive queue (drop-behind).
    const TOUCH_DEACTIVATES: bool = false;
    /// Whether ages are kept live, too.
    const AGES_LIVE: bool = false;
    /// Whether, live, pages that were touched while parked are spared rounds of the ring.
    const SPARES: bool = false;
    /// The age of a page that comes from the inactive queue to the ring. Its mark comes along, so the next scan adds to the age.
    /// 2.4.5 left the age alone, which is zero there; the use-once patch adds "page->age = PAGE_AGE_START" in both places.
    const RESCUED_AGE: u32 = AGE_START;
    /// Where a new page starts.
    fn start(arrival: Arrival) -> Start;
}

/// The parameter that all four have.
pub const INACTIVE: Param = Param {
    key: "inactive",
    default: "0.333",
    values: Values::Number(0.01, 0.99),
    help: "share of the pages that the inactive queue is filled up to; a guess: a third, as 2.4 aimed at",
};

/// The parameter of rules that, live, count a quick return as a second use.
pub const REFAULT: Param = Param {
    key: "refault",
    default: "1",
    values: Values::Number(0.0, 100.0),
    help: "live: a page that comes back after fewer evictions than so many times the memory starts on the active ring; 0: none does",
};

/// The parameter of rules whose inactive queue is shorter live.
pub const QUEUE: Param = Param {
    key: "queue",
    default: "0.1",
    values: Values::Number(0.01, 0.99),
    help: "live: as `inactive`, without the parked pages, which is a second such queue behind it",
};

/// A policy over these lists.
#[derive(Clone, Debug)]
pub struct Aged<R> {
    /// The word: [`WHERE`], flags, age.
    lists: Lists<5, 3>,
    inactive_permille: u32,
    /// Share of memory for the window, and its length in pages.
    window: (f64, u32),
    /// A page's return counts as its second use within this many evictions: as a share of memory, and in pages.
    refault: (f64, u32),
    /// Whether pages have ages.
    ages: bool,
    /// Whether pages are spared rounds.
    spares: bool,
    /// Which of the two lists is of runs that go on.
    now: usize,
    /// So many pages of it are not taken, as long as there are others.
    passing_least: u32,
    /// Victims since one of these few was taken.
    others: u32,
    counts: [u64; 11],
    rule: PhantomData<R>,
}

const ACTIVE: ListId = 0;
const IDLE: ListId = 1;
const WINDOW: ListId = 2;
/// Pages of runs that go on, and of those that went on before.
const PASSING: [ListId; 2] = [3, 4];

/// Bits 0 to 2: zero, or the list plus one.
const WHERE: u32 = 7;
const USED: u32 = 8;
/// Age zero: the next touch is its first use.
const FRESH: u32 = 16;
const DIRTY: u32 = 32;
const AGE_SHIFT: u32 = 8;
/// Where pages are spared, the age counts down the rounds of the ring until the page is parked again. These bits hold the age at
/// the start. They stay while the page is parked.
const EARNED_SHIFT: u32 = 16;
const EARNED: u32 = 0xF << EARNED_SHIFT;
const EARNED_MAX: u32 = 8;
/// This many pages are spared in a row before one is taken in spite of its age.
const SPARED_IN_A_ROW: u32 = 32;

/// Of the least number of passing pages, one is taken after so many other victims: when no run goes on, they are not needed.
const PASSING_STAY: u32 = 8;

const NEW_TO_ACTIVE: usize = 0;
const NEW_TO_INACTIVE: usize = 1;
const NEW_TO_WINDOW: usize = 2;
const WINDOW_TO_INACTIVE: usize = 3;
const ACTIVE_TO_ACTIVE: usize = 4;
const ACTIVE_TO_INACTIVE: usize = 5;
const INACTIVE_TO_ACTIVE: usize = 6;
const INACTIVE_TO_INACTIVE: usize = 7;
const TO_PARKED: usize = 8;
const PARKED_TO_ACTIVE: usize = 9;
const NEW_TO_PASSING: usize = 10;

impl<R: Rule> Aged<R> {
    #[inline]
    fn put(&mut self, node: Node, list: ListId, flags_and_age: u32) {
        *self.lists.word_mut(node, 0) = (list as u32 + 1) | flags_and_age;
        self.lists.push_back(list, node);
    }
    fn listed(&self) -> u32 {
        (ACTIVE..=PASSING[1]).map(|list| self.lists.len(list)).sum()
    }
    /// Pages of runs that are over are ordinary ones: they come to the inactive queue by and by.
    fn put_passing(&mut self, node: Node) {
        self.counts[NEW_TO_PASSING] += 1;
        self.put(node, PASSING[self.now], 0);
        for _ in 0..2 {
            if let Some(node) = self.lists.pop_front(PASSING[1 - self.now]) {
                self.put(node, IDLE, 0);
            }
        }
    }
    fn take_passing(&mut self) -> Option<Node> {
        let front = |now: usize| self.lists.front(PASSING[now]);
        let node = front(self.now).or_else(|| front(1 - self.now))?;
        self.take(node);
        Some(node)
    }

    /// The age of a page that starts on the ring. Where pages are spared, that is one round, as after a first touch while parked.
    fn start_age(&self) -> u32 {
        if self.spares { 1 } else { AGE_START }
    }

    /// Moves one active page to the inactive queue. Returns whether there was one.
    #[inline]
    fn deactivate(&mut self) -> bool {
        let mut spared = 0;
        while let Some(node) = self.lists.pop_front(ACTIVE) {
            let word = self.lists.word(node, 0);
            let mut age = (word & !EARNED) >> AGE_SHIFT;
            if self.spares {
                age = if spared < SPARED_IN_A_ROW { age.saturating_sub(1) } else { 0 };
                spared += 1;
            } else if self.ages {
                age = if word & USED != 0 { (age + AGE_ADVANCE).min(AGE_MAX) } else { age / 2 };
            } else {
                age = 0;
            }
            if age == 0 {
                self.counts[ACTIVE_TO_INACTIVE] += 1;
                self.put(node, IDLE, word & (DIRTY | EARNED));
                return true;
            }
            self.counts[ACTIVE_TO_ACTIVE] += 1;
            self.put(node, ACTIVE, word & (DIRTY | EARNED) | age << AGE_SHIFT);
        }
        false
    }
    #[inline]
    fn shorten_window(&mut self, most: u32) -> bool {
        let long = self.lists.len(WINDOW) > most;
        if long && let Some(node) = self.lists.pop_front(WINDOW) {
            self.counts[WINDOW_TO_INACTIVE] += 1;
            let word = self.lists.word(node, 0);
            self.put(node, IDLE, word & DIRTY);
        }
        long
    }
}

impl<R: Rule> Policy for Aged<R> {
    const NAME: &'static str = R::NAME;
    const ABOUT: &'static str = R::ABOUT;
    const PARAMS: &'static [Param] = R::PARAMS;
    const TRANSITIONS: &'static [&'static str] = &[
        "new_to_active",
        "new_to_inactive",
        "new_to_window",
        "window_to_inactive",
        "active_to_active",
        "active_to_inactive",
        "inactive_to_active",
        "inactive_to_inactive",
        "inactive_to_parked",
        "parked_to_active",
        "new_to_passing",
    ];
    const NODE_BYTES: usize = 12;

    fn new(args: &Args, setup: &Setup) -> Self {
        let optional = |key| if R::PARAMS.iter().any(|param| param.key == key) { args.number(key) } else { 0.0 };
        let live = setup.see == See::Trials;
        let inactive = if live && R::SPARES { args.number("queue") } else { args.number("inactive") };
        let mut this = Aged {
            lists: Lists::new(setup.nodes as usize),
            inactive_permille: (inactive * 1000.0).round() as u32,
            window: (optional("window"), 0),
            refault: (if live { optional("refault") } else { 0.0 }, 0),
            ages: !live || R::AGES_LIVE,
            spares: live && R::SPARES,
            counts: [0; 11],
            now: 0,
            passing_least: 0,
            others: 0,
            rule: PhantomData,
        };
        this.resize(setup.memory);
        this
    }
    fn resize(&mut self, memory: u32) {
        self.window.1 = ((self.window.0 * memory as f64) as u32).max(1);
        self.refault.1 = (self.refault.0 * memory as f64) as u32;
    }
    #[inline]
    fn reference(&mut self, node: Node) -> bool {
        let word = self.lists.word_mut(node, 0);
        match *word & WHERE {
            0 => return false,
            1 if R::TOUCH_DEACTIVATES => {
                let flags = *word & DIRTY;
                self.counts[ACTIVE_TO_INACTIVE] += 1;
                self.lists.remove(ACTIVE, node);
                self.put(node, IDLE, flags);
            }
            1 => *word |= USED,
            2 if *word & FRESH != 0 => *word &= !FRESH,
            2 => *word |= USED,
            _ => {} // in the window: it is still the same use
        }
        true
    }
    #[inline]
    fn prefetch(&self, node: Node) {
        self.lists.prefetch(node);
    }
    #[inline]
    fn prefetch_beside(&self, node: Node) {
        self.lists.prefetch_beside(node);
    }
    #[inline]
    fn admit<G: Ghosts>(&mut self, _: &mut G, node: Node, arrival: Arrival) {
        if self.spares && arrival.why == Admit::Passing {
            return self.put_passing(node);
        }
        let back_soon = !arrival.why.is_ahead() && arrival.distance.is_some_and(|distance| distance < self.refault.1);
        match if back_soon { Start::Active } else { R::start(arrival) } {
            Start::Active => {
                self.counts[NEW_TO_ACTIVE] += 1;
                self.put(node, ACTIVE, self.start_age() << AGE_SHIFT);
            }
            Start::Inactive => {
                self.counts[NEW_TO_INACTIVE] += 1;
                self.put(node, IDLE, FRESH);
            }
            Start::InactiveUsedOnce => {
                self.counts[NEW_TO_INACTIVE] += 1;
                self.put(node, IDLE, 0);
            }
            Start::Window => {
                self.counts[NEW_TO_WINDOW] += 1;
                self.put(node, WINDOW, 0);
                self.shorten_window(self.window.1);
            }
        }
    }
    fn passing(&self) -> u32 {
        self.lists.len(PASSING[self.now]).saturating_sub(self.passing_least)
    }
    fn passing_victim(&mut self) -> Option<Node> {
        if self.passing() > 0 { self.take_passing() } else { None }
    }
    fn run_begins(&mut self) {
        if self.lists.is_empty(PASSING[1 - self.now]) {
            self.now = 1 - self.now;
        }
    }
    fn keep_passing(&mut self, least: u32) {
        self.passing_least = least;
    }
    #[inline]
    fn victim(&mut self) -> Option<Node> {
        if !self.lists.is_empty(PASSING[self.now]) {
            self.others += 1;
            if self.passing() > 0 || self.others > PASSING_STAY {
                self.others = 0;
                return self.take_passing();
            }
        }
        loop {
            if (self.lists.len(IDLE) as u64) * 1000 < self.listed() as u64 * self.inactive_permille as u64
                && !self.lists.is_empty(ACTIVE)
            {
                // two per victim until the share is right again: amortised O(1), and no batch only balances
                self.deactivate();
                self.deactivate();
            }
            let Some(node) = self.lists.front(IDLE) else {
                if self.shorten_window(0) || self.deactivate() {
                    continue;
                }
                return self.take_passing();
            };
            let word = self.lists.word(node, 0);
            if word & USED != 0 {
                // as in 2.4, the mark stays: the next scan of the ring finds it
                self.counts[INACTIVE_TO_ACTIVE] += 1;
                self.lists.remove(IDLE, node);
                self.put(node, ACTIVE, word & (DIRTY | USED) | R::RESCUED_AGE << AGE_SHIFT);
            } else if word & DIRTY != 0 {
                self.counts[INACTIVE_TO_INACTIVE] += 1;
                self.lists.remove(IDLE, node);
                self.put(node, IDLE, word & (FRESH | EARNED));
            } else {
                self.take(node);
                return Some(node);
            }
        }
    }
    #[inline]
    fn take(&mut self, node: Node) {
        self.counts[TO_PARKED] += 1;
        let earned = self.lists.word(node, 0) & EARNED;
        self.remove(node);
        *self.lists.word_mut(node, 0) = earned;
    }
    fn rescued(&mut self, node: Node) {
        self.counts[PARKED_TO_ACTIVE] += 1;
        let age = match (self.lists.word(node, 0) & EARNED) >> EARNED_SHIFT {
            0 => self.start_age(),
            earned => (earned * 2).min(EARNED_MAX),
        };
        let earned = if self.spares { age << EARNED_SHIFT } else { 0 };
        self.put(node, ACTIVE, age << AGE_SHIFT | earned);
    }
    #[inline]
    fn remove(&mut self, node: Node) {
        let word = core::mem::take(self.lists.word_mut(node, 0));
        if let Some(list) = (word & WHERE).checked_sub(1) {
            self.lists.remove(list as ListId, node);
        }
    }
    fn dirtied(&mut self, node: Node) {
        let word = self.lists.word_mut(node, 0);
        if *word & WHERE != 0 {
            *word |= DIRTY;
        }
    }
    fn worst_first(&self, each: &mut dyn FnMut(Node, bool)) {
        PASSING.iter().flat_map(|list| self.lists.iter(*list)).for_each(|node| each(node, false));
        self.lists.iter(IDLE).for_each(|node| each(node, false));
        self.lists.iter(WINDOW).for_each(|node| each(node, false));
        self.lists.iter(ACTIVE).for_each(|node| each(node, true));
    }
    fn inherit<G: Ghosts>(&mut self, _: &mut G, node: Node, hot: bool) {
        if hot {
            self.put(node, ACTIVE, self.start_age() << AGE_SHIFT);
        } else {
            self.put(node, IDLE, 0);
        }
    }
    fn transitions(&self) -> &[u64] {
        &self.counts
    }
}

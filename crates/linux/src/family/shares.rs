//! The shared memory that says which process of a family has which part of the budget, and the operations on it.
//!
//! The budget is cut into [`UNITS`] units, and each unit has one owner: a word with the *id* of a member, or 0. A member's limit is
//! the sum of its units. One compare-and-swap takes a unit, gives it back, or hands it on. So the sum of the limits never exceeds
//! the budget, no process can die or be stopped while it holds a lock, and no change is ever half done.
//!
//! **Members** have an entry each. Its word `life` says whether the member lives. The word is on the robust list
//! (get_robust_list(2)) of the member's page daemon, which ends when the process ends or execs, for whatever reason. Then the
//! kernel itself writes to it.
//!
//! ```text
//!   FREE or DIED --reserve--> RESERVED --> UNCLAIMED --claim--> a thread's id --the kernel--> DIED
//!                   by the parent, before it forks     by the child
//! ```
//!
//! A process that comes by exec has no parent here: it claims its entry as it reserves it. It and its forks are a *program*.
//!
//! An id is the number of an entry and its generation, which each reservation raises. When a member dies, its units are free at
//! that moment. Nothing needs to be cleaned up: a process that looks for a free unit finds a dead id in it. An entry that was
//! reserved and not claimed counts as long as its parent lives. After that, whoever takes one of its units ends it first. A child
//! that comes too late finds it gone, and gets another.
//!
//! The kernel frees a member's memory some milliseconds after it has marked the member, or later, if another process still uses
//! that memory (vfork). Until then the family may have more than the budget.
//!
//! Any member can overwrite this memory. That disturbs how the budget is shared, and nothing else: the code expects any value in
//! any word, and no member can get more than the whole budget.

use core::sync::atomic::{AtomicU32, Ordering::*};

/// Parts of the budget. (Fewer in tests, which do something between any two accesses.)
pub const UNITS: usize = if cfg!(test) { 64 } else { 2048 };
/// The most members at a time. (The last number is [`MemberId::CACHE`]'s.)
pub const MEMBERS_MAX: usize = (1 << 16) - 1;

/// Values of an entry's `life`.
const FREE: u32 = 0;
/// FUTEX_OWNER_DIED: linux/futex.h.
const DIED: u32 = 0x4000_0000;
const RESERVED: u32 = 0x1000_0000;
/// Together with the entry's generation. No thread's id is as large.
const UNCLAIMED: u32 = 0x2000_0000;

/// An atomic word; all accesses are in one order. In tests anything may happen before each.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Word(AtomicU32);

impl Word {
    pub(super) fn load(&self) -> u32 {
        #[cfg(test)]
        tests::meanwhile();
        self.0.load(SeqCst)
    }
    pub(super) fn store(&self, value: u32) {
        #[cfg(test)]
        tests::meanwhile();
        self.0.store(value, SeqCst);
    }
    fn replace(&self, from: u32, to: u32) -> bool {
        #[cfg(test)]
        tests::meanwhile();
        self.0.compare_exchange(from, to, SeqCst, SeqCst).is_ok()
    }
    /// For futex(2).
    pub(super) fn atomic(&self) -> &AtomicU32 {
        &self.0
    }
}

/// A member's entry.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Member {
    pub(super) life: Word,
    generation: Word,
    /// The id of the member that has reserved the entry.
    parent: Word,
    /// The id of the member that came by exec, and that this one came from by forks.
    program: Word,
    /// 1: the member is short of memory, and no unit is free.
    wants: Word,
    /// 1: another member is short of memory. This one should look which pages it does not need.
    pub(super) asked: Word,
    /// The member's part and its least need, in pages: from these, others estimate how much it could give.
    pages: Word,
    floor: Word,
    /// The member's page daemon sleeps on this word.
    pub(super) bell: Word,
    /// 1: the member's program runs. The member that has forked it sleeps on this word.
    pub(super) born: Word,
    /// 1: the member has no part in its program's cache any more.
    left: Word,
}

/// A member: the number of its entry and the entry's generation. 0: nobody.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemberId(pub u32);

impl MemberId {
    /// No member.
    pub const NOBODY: MemberId = MemberId(0);
    /// What all members have in common: see [`super::cache`]. It lives for ever, and has no entry.
    pub const CACHE: MemberId = MemberId(u32::MAX);
    fn new(index: usize, generation: u32) -> MemberId {
        MemberId(generation << 16 | index as u32)
    }
    fn index(self) -> usize {
        self.0 as usize & 0xFFFF
    }
    fn generation(self) -> u32 {
        self.0 >> 16
    }
}

/// Whose turn it is to have more than its part: see [`View::part`]. Times are in milliseconds, and begin anew after 49 days.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Turn {
    /// The member whose turn it is, or was last.
    holder: Word,
    /// When it ends, or has ended.
    end: Word,
    /// How long after that nobody has a turn.
    rest: Word,
}

/// How long a turn lasts, in milliseconds.
pub const TURN_MS: u32 = 2000;
/// How long nobody has a turn after one that was worth it, and after those that were not (it doubles each time), in milliseconds.
const REST_MS: u32 = 20;
const REST_IN_VAIN_MS: core::ops::RangeInclusive<u32> = 4000..=64_000;
/// How much later than others the last holder may have another turn, in milliseconds.
const AGAIN_MS: u32 = 100;

/// The state of the budget, as one member sees it. In pages, except for the numbers of members.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct View {
    /// The member itself.
    pub me: MemberId,
    /// The member whose turn it is.
    pub turn: MemberId,
    /// The whole budget, except for the cache's part.
    pub total: u32,
    /// Pages that no member has, and that the cache is not to get.
    pub free: u32,
    /// The member's part.
    pub mine: u32,
    /// The parts of the other members that do not want more.
    pub idle: u32,
    /// How much of `idle` these members could give.
    pub idle_spare: u32,
    /// Living members, including this one.
    pub members: u32,
    /// Those of its program, including this one.
    pub kin: u32,
    /// Other members of its program that have a part in the program's cache.
    pub sharers: u32,
    /// Other members that want more.
    pub wanting: u32,
}

impl View {
    /// An equal part of the whole, which each member can have.
    pub fn fair(&self) -> u32 {
        self.total / self.members.max(1)
    }
    /// The most for each member that wants more: an equal part of the budget without `idle`, and at least [`View::fair`].
    pub fn level(&self) -> u32 {
        (self.total.saturating_sub(self.idle) / (self.wanting + 1)).max(self.fair())
    }
    /// The most for a member that wants more: [`View::level`]. If that is too little for each, all do nothing but read. So by turns
    /// one has half of the others' parts as well, or a third of a single other's. (Jiang and Zhang 2005, "Token-ordered LRU", keep
    /// that one's pages.)
    pub fn part(&self, id: MemberId) -> u32 {
        let level = self.level();
        let given = level / if self.wanting > 1 { 2 } else { 3 };
        match self.turn {
            MemberId::NOBODY => level,
            turn if turn == id => level.saturating_add(given.saturating_mul(self.wanting)).min(self.total),
            _ => level - given,
        }
    }
}

/// The state of one member. In pages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standing {
    /// The pages that are charged to the member.
    pub charge: u32,
    /// The free pages that the member needs in order to work.
    pub spare: u32,
    /// The least that the member needs.
    pub floor: u32,
    /// Less of its part is free than should be.
    pub short: bool,
    /// It was short a moment ago, or it uses pages that it was about to give up.
    pub wants: bool,
    /// Others have asked.
    pub asked: bool,
}

/// What a member should do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plan {
    /// Nothing.
    Stay,
    /// Take this many pages that no member has.
    Take(u32),
    /// Ask the others, and make do with its own part meanwhile.
    Ask,
    /// Shrink towards this many pages, and then give back the rest.
    ShrinkTo(u32),
}

/// A limit shrinks by this fraction of it at a time. Smaller differences are left alone.
const STEP: u32 = 16;
/// And by no more pages than these, if they are in use: who asked should not wait until all of a large part is on the disk. (With
/// 4 GiB a sixteenth took more than half a second, which counted as a shrink in vain.)
const STEP_MAX: u32 = 2048;

/// The next step for a member in this state.
pub fn plan(view: &View, member: &Standing) -> Plan {
    let part = view.part(view.me);
    // if this much is free, it is enough for the members that asked
    let enough = view.total / 64;
    // what is given for another member's turn is for that one
    let others = view.turn != MemberId::NOBODY && view.turn != view.me;
    let kept = if others && view.mine >= part { enough } else { 0 };
    // (one that has just come may lack its least, although it uses less)
    if (member.short || view.mine < member.floor) && view.free > kept {
        return Plan::Take((view.mine / 4).max(enough).clamp(1, view.free - kept));
    }
    if member.asked && view.free < enough {
        let needed = (member.charge + 2 * member.spare).max(member.floor);
        let step = (view.mine / STEP).min(STEP_MAX).max(2 * (view.total / UNITS as u32));
        let lower = view.mine.saturating_sub(step);
        if member.wants {
            let least = part.max(member.floor);
            if view.mine > least + part / STEP {
                return Plan::ShrinkTo(lower.max(least));
            }
        } else if needed <= lower {
            return Plan::ShrinkTo(needed); // it does not use the rest
        } else if view.wanting > 0 && view.mine > member.floor {
            return Plan::ShrinkTo(lower.max(member.floor));
        }
    }
    // members that have more than their part are asked, too
    let below = view.wanting > 0 && view.mine + part / STEP < part.max(member.floor);
    if member.short && (view.idle_spare > 0 || below) { Plan::Ask } else { Plan::Stay }
}

/// The words of the shared memory, except for the members' entries.
#[derive(Debug)]
#[repr(C)]
pub struct Words {
    /// The whole budget, in pages; 0: nobody has set it yet.
    total: Word,
    /// The program whose cache has [`MemberId::CACHE`]'s part.
    cache_of: Word,
    /// The number of entries that were ever in use.
    used: Word,
    /// The part that the cache is to have, in pages.
    cached: Word,
    turn: Turn,
    units: [Word; UNITS],
}

/// The shared memory of a family.
#[derive(Clone, Copy, Debug)]
pub struct Shares<'a> {
    total: u32,
    words: &'a Words,
    members: &'a [Member],
}

impl<'a> Shares<'a> {
    /// For a budget of `total` pages. The memory must be zeroed, or used by `Shares` before. At most [`MEMBERS_MAX`] entries.
    pub fn new(total: u32, words: &'a Words, members: &'a [Member]) -> Self {
        assert!((1..=MEMBERS_MAX).contains(&members.len()));
        Shares { total, words, members }
    }

    /// As [`Shares::new`], for memory that other processes use as well. `None` if they have another budget.
    pub fn join(total: u32, words: &'a Words, members: &'a [Member]) -> Option<Self> {
        let agreed = words.total.replace(0, total) || words.total.load() == total;
        agreed.then(|| Shares::new(total, words, members))
    }

    /// The whole.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// The length of a unit, in pages. Units differ by one page at most, and their sum is the whole.
    fn unit(&self, i: usize) -> u32 {
        let end = |n: usize| self.total as u64 * n as u64 / UNITS as u64;
        (end(i + 1) - end(i)) as u32
    }

    /// The member's entry. (For an id that was never given out, some other entry.)
    pub(super) fn member(&self, id: MemberId) -> &'a Member {
        &self.members[id.index() % self.members.len()]
    }

    fn used(&self) -> &'a [Member] {
        &self.members[..(self.words.used.load() as usize).min(self.members.len())]
    }

    /// The value of its `life`, if the entry still has this generation.
    fn life(&self, id: MemberId) -> u32 {
        let Some(member) = self.members.get(id.index()).filter(|_| id != MemberId::NOBODY) else { return FREE };
        let life = member.life.load();
        // The generation afterwards: it never falls, so if it is this one still, `life` was this one's.
        if member.generation.load() == id.generation() { life } else { FREE }
    }

    /// Whether the member lives, or is about to.
    pub fn lives(&self, id: MemberId) -> bool {
        match self.life(id) {
            _ if id == MemberId::CACHE => true,
            FREE | DIED | RESERVED => false,
            life if life == UNCLAIMED | id.generation() => {
                let parent = MemberId(self.member(id).parent.load());
                parent == MemberId::NOBODY || !matches!(self.life(parent), FREE | DIED | RESERVED)
            }
            _ => true,
        }
    }

    /// Whether the member's units are free. If its entry was never claimed, it cannot be from then on.
    fn is_over(&self, id: MemberId) -> bool {
        match self.life(id) {
            _ if id == MemberId::CACHE => false,
            FREE | DIED | RESERVED => true,
            life if life == UNCLAIMED | id.generation() => self.end_unclaimed(id.index(), life),
            _ => false,
        }
    }

    /// Ends an entry that was never claimed, and never will be, because its parent does not live. Returns whether it did.
    fn end_unclaimed(&self, index: usize, life: u32) -> bool {
        !self.lives(MemberId::new(index, life & 0xFFFF)) && self.members[index].life.replace(life, DIED)
    }

    /// Reserves an entry for a child of `parent`, which has no units yet. `None` if there are too many.
    pub fn reserve(&self, parent: MemberId) -> Option<MemberId> {
        self.reserve_as(parent, self.program(parent), |id, _| UNCLAIMED | id.generation())
    }

    /// As [`Shares::reserve`], for a member of this program (nobody: of its own). `first` gives the first value of `life`, and
    /// may be the id of a thread that has the entry on its robust list.
    pub(super) fn reserve_as(
        &self,
        parent: MemberId,
        program: MemberId,
        first: impl FnOnce(MemberId, &'a Member) -> u32,
    ) -> Option<MemberId> {
        for (index, member) in self.members.iter().enumerate() {
            let life = member.life.load();
            let unclaimed = life & UNCLAIMED != 0 && life & DIED == 0;
            let life = if unclaimed && self.end_unclaimed(index, life) { DIED } else { life };
            if !matches!(life, FREE | DIED) || !member.life.replace(life, RESERVED) {
                continue;
            }
            // no other process changes it now
            let generation = ((member.generation.load() + 1) & 0xFFFF).max(1);
            let id = MemberId::new(index, generation);
            for (word, value) in [
                (&member.parent, parent.0),
                (&member.program, if program == MemberId::NOBODY { id.0 } else { program.0 }),
                (&member.wants, 0),
                (&member.asked, 0),
                (&member.pages, 0),
                (&member.floor, 0),
                (&member.born, 0),
                (&member.left, 0),
            ] {
                word.store(value);
            }
            member.generation.store(generation);
            member.life.store(first(id, member));
            let mut used = self.words.used.load();
            while used <= index as u32 && !self.words.used.replace(used, index as u32 + 1) {
                used = self.words.used.load();
            }
            return Some(id);
        }
        None
    }

    /// Claims the entry for a member whose thread `tid` has it on its robust list. Returns `false` if the entry was given up
    /// before.
    pub fn claim(&self, id: MemberId, tid: u32) -> bool {
        self.member(id).life.replace(UNCLAIMED | id.generation(), tid)
    }

    /// Frees the entry of a member that has ended or will never start.
    pub fn bury(&self, id: MemberId) {
        let life = self.life(id);
        if !matches!(life, FREE | DIED | RESERVED) {
            self.member(id).life.replace(life, DIED);
        }
    }

    /// The pages of the units whose owners `counts` accepts.
    fn sum(&self, mut counts: impl FnMut(MemberId) -> bool) -> u32 {
        let mut last = None; // neighbours often have one owner
        let mut pages = 0;
        for (i, word) in self.words.units.iter().enumerate() {
            let owner = MemberId(word.load());
            let counted = match last {
                Some((before, counted)) if before == owner => counted,
                _ => counts(owner),
            };
            last = Some((owner, counted));
            pages += if counted { self.unit(i) } else { 0 };
        }
        pages
    }

    /// The member's pages.
    pub fn pages(&self, id: MemberId) -> u32 {
        self.sum(|owner| owner == id)
    }

    /// The pages that no member has.
    pub fn free(&self) -> u32 {
        self.sum(|owner| !self.lives(owner))
    }

    /// Takes `pages` pages that no member has, rounded up to whole units, or all that there are. Returns how many.
    pub fn take(&self, id: MemberId, pages: u32) -> u32 {
        let mut taken = 0;
        for (i, word) in self.words.units.iter().enumerate() {
            if taken >= pages {
                break;
            }
            let owner = MemberId(word.load());
            if owner != id && self.is_over(owner) && word.replace(owner.0, id.0) {
                taken += self.unit(i);
            }
        }
        self.show(id);
        taken
    }

    /// Hands on up to `pages` pages of the member's own to another member, or to nobody, in whole units. Returns how many. The
    /// caller must not give pages that are charged.
    pub fn give(&self, id: MemberId, pages: u32, to: MemberId) -> u32 {
        let mut given = 0;
        for (i, word) in self.words.units.iter().enumerate().rev() {
            let len = self.unit(i);
            if given + len <= pages && word.load() == id.0 && word.replace(id.0, to.0) {
                given += len;
            }
        }
        self.show(id);
        if to != MemberId::NOBODY {
            self.show(to);
        }
        given
    }

    /// Publishes the member's pages, so that others can estimate what it could do without.
    fn show(&self, id: MemberId) {
        if id != MemberId::CACHE {
            self.member(id).pages.store(self.pages(id));
        }
    }

    /// The member's program. Nobody has none.
    pub fn program(&self, id: MemberId) -> MemberId {
        if id == MemberId::NOBODY { id } else { MemberId(self.member(id).program.load()) }
    }

    /// Whether a member of this program lives.
    fn runs(&self, program: MemberId) -> bool {
        let mut runs = false;
        self.for_each_other(MemberId::NOBODY, |_, id| runs |= self.program(id) == program);
        runs
    }

    /// Each program has a cache, and one at a time has [`MemberId::CACHE`]'s part: whether it is this one's.
    pub fn holds_cache(&self, program: MemberId) -> bool {
        self.words.cache_of.load() == program.0
    }

    /// Gives the cache's part to this program's if no other has it. Returns whether it has it.
    pub fn hold_cache(&self, program: MemberId) -> bool {
        let _ = self.take_cache_over(program) || self.words.cache_of.replace(MemberId::NOBODY.0, program.0);
        self.holds_cache(program)
    }

    /// Gives the cache's part back if its program runs no more. `program` is the caller's.
    pub fn reap_cache(&self, program: MemberId) {
        if self.take_cache_over(program) {
            self.leave_cache(program);
        }
    }

    /// Takes the cache's part from a program that runs no more. Its memory went with those who had it.
    fn take_cache_over(&self, program: MemberId) -> bool {
        let holder = MemberId(self.words.cache_of.load());
        let is_over = holder != MemberId::NOBODY && holder != program && !self.runs(holder);
        let taken = is_over && self.words.cache_of.replace(holder.0, program.0);
        if taken {
            self.empty_cache();
        }
        taken
    }

    /// The program has no cache any more.
    pub fn leave_cache(&self, program: MemberId) {
        self.empty_cache();
        self.words.cache_of.replace(program.0, MemberId::NOBODY.0);
    }

    fn empty_cache(&self) {
        self.set_cached(0);
        self.give(MemberId::CACHE, self.total, MemberId::NOBODY);
    }

    /// The part that the cache is to have, in pages.
    pub fn cached(&self) -> u32 {
        self.words.cached.load().min(self.total)
    }

    /// Sets it. The cache's units follow as others give theirs.
    pub fn set_cached(&self, pages: u32) {
        self.words.cached.store(pages);
    }

    /// Sets the least that the member needs, in pages.
    pub fn set_floor(&self, id: MemberId, pages: u32) {
        self.member(id).floor.store(pages);
    }

    /// Whether the member wants more.
    pub fn wants(&self, id: MemberId) -> bool {
        self.member(id).wants.load() != 0
    }

    /// Sets whether the member wants more.
    pub fn set_wants(&self, id: MemberId, wants: bool) {
        self.member(id).wants.store(wants.into());
    }

    /// Sets whether the member has left its program's cache.
    pub fn set_left(&self, id: MemberId, left: bool) {
        self.member(id).left.store(left.into());
    }

    /// Calls `each` for the other living members.
    fn for_each_other(&self, id: MemberId, mut each: impl FnMut(&'a Member, MemberId)) {
        for (index, member) in self.used().iter().enumerate() {
            let other = MemberId::new(index, member.generation.load());
            if other != id && self.lives(other) {
                each(member, other);
            }
        }
    }

    /// Gives the member a turn from `now` on, if it is nobody's and the rest after the last one is over. Returns whether it did.
    pub fn take_turn(&self, id: MemberId, now: u32) -> bool {
        let last = self.words.turn.holder.load();
        let rest = self.words.turn.rest.load().min(*REST_IN_VAIN_MS.end()) + if last == id.0 { AGAIN_MS } else { 0 };
        let rests = now.wrapping_sub(self.words.turn.end.load()) < rest;
        let is_free = !self.lives(MemberId(last)) || !rests && self.turn(now) == MemberId::NOBODY;
        let taken = is_free && self.words.turn.holder.replace(last, id.0);
        if taken {
            self.words.turn.end.store(now.wrapping_add(TURN_MS));
        }
        taken
    }

    /// The member's turn ends. After one in `vain` there is none for a while.
    pub fn end_turn(&self, id: MemberId, now: u32, vain: bool) {
        if self.words.turn.holder.load() == id.0 {
            let (least, most) = (*REST_IN_VAIN_MS.start(), *REST_IN_VAIN_MS.end());
            self.words.turn.rest.store(if vain {
                self.words.turn.rest.load().saturating_mul(2).clamp(least, most)
            } else {
                REST_MS
            });
            self.words.turn.end.store(now);
        }
    }

    /// Whose turn it is.
    fn turn(&self, now: u32) -> MemberId {
        let holder = MemberId(self.words.turn.holder.load());
        let lasts = (1..=TURN_MS).contains(&self.words.turn.end.load().wrapping_sub(now));
        if lasts && self.lives(holder) { holder } else { MemberId::NOBODY }
    }

    /// The state of the budget, as the member sees it. `now` is in milliseconds.
    pub fn view(&self, id: MemberId, now: u32) -> View {
        let (cached, has) = (self.cached(), self.pages(MemberId::CACHE));
        let mut view = View {
            me: id,
            turn: self.turn(now),
            total: self.total.saturating_sub(cached.max(has)),
            free: self.free().saturating_sub(cached.saturating_sub(has)),
            mine: self.pages(id),
            members: 1,
            kin: 1,
            ..View::default()
        };
        let program = self.program(id);
        self.for_each_other(id, |member, other| {
            let pages = member.pages.load();
            view.members += 1;
            let is_kin = self.program(other) == program;
            view.kin += u32::from(is_kin);
            view.sharers += u32::from(is_kin && member.left.load() == 0);
            if member.wants.load() == 0 {
                view.idle = view.idle.saturating_add(pages);
                view.idle_spare = view.idle_spare.saturating_add(pages.saturating_sub(member.floor.load()));
            } else {
                view.wanting += 1;
            }
        });
        view
    }

    /// Asks the other members that could do without something, or have more than their part, and one whose program's cache has
    /// pages. `ring` wakes their page daemons.
    pub fn ask(&self, id: MemberId, view: &View, mut ring: impl FnMut(&'a Member)) {
        let other = |holder: &MemberId| ![MemberId::NOBODY, self.program(id)].contains(holder);
        let mut cached = Some(MemberId(self.words.cache_of.load())).filter(|holder| other(holder) && self.cached() > 0);
        self.for_each_other(id, |member, other| {
            let part = view.part(other);
            let least = if member.wants.load() == 0 { member.floor.load() } else { part.saturating_add(part / STEP) };
            let has_cache = cached == Some(self.program(other));
            if (member.pages.load() > least || has_cache) && member.asked.load() == 0 {
                cached = cached.filter(|_| !has_cache);
                member.asked.store(1);
                ring(member);
            }
        });
    }
}

#[cfg(test)]
mod tests;

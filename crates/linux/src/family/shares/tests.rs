//! Tests of shares: processes that take each other's steps, or die, between any two accesses to the shared memory.

use super::*;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

thread_local! {
    static FAMILY: RefCell<Option<Rc<Model>>> = const { RefCell::new(None) };
    static LATER: RefCell<Option<Later>> = const { RefCell::new(None) };
}

/// What happens before the access of this number.
type Later = (u32, Box<dyn FnOnce()>);

/// Runs before each access to a word: other processes take steps, or the process that makes the access is killed.
pub(super) fn meanwhile() {
    if let Some((accesses, act)) = LATER.take() {
        match accesses {
            0 => act(),
            _ => LATER.set(Some((accesses - 1, act))),
        }
    }
    let model = FAMILY.with(|family| family.borrow().clone());
    if let Some(model) = model {
        model.meanwhile();
    }
}

fn shares(total: u32, members: usize) -> Shares<'static> {
    let zero = || Word(AtomicU32::new(0));
    let units = [const { Word(AtomicU32::new(0)) }; UNITS];
    let words = Words { total: zero(), cache_of: zero(), used: zero(), cached: zero(), turn: Turn::default(), units };
    let members = (0..members).map(|_| Member::default()).collect::<Vec<_>>().leak();
    Shares::new(total, Box::leak(Box::new(words)), members)
}

#[derive(Debug, Clone, Default)]
struct Process {
    id: u32,
    parent: Option<usize>,
    /// It has claimed its entry.
    there: bool,
    dead: bool,
    /// The pages charged to it, and the pages that it would like to use.
    charge: u32,
    appetite: u32,
    wants: bool,
    target: Option<u32>,
    /// It is in the middle of a step.
    at_work: bool,
    /// How many looks in a row it had less than an equal part and wanted more.
    starving: u32,
}

struct Killed;

/// Processes that take the steps of page daemons and forks in turn. Between any two accesses other processes take steps or die.
struct Model {
    shares: Shares<'static>,
    processes: RefCell<Vec<Process>>,
    random: Cell<u64>,
    /// The process that makes the present access, if it may be killed.
    now: Cell<Option<usize>>,
    depth: Cell<u32>,
    /// Something happens before one access in this many; 0: never. One in as many of these events is a death.
    rate: u64,
    deaths: u64,
    killed: Cell<u32>,
    forks: Cell<u32>,
    milliseconds: Cell<u32>,
}

const FLOOR: u32 = 20;

impl Model {
    fn new(total: u32, seed: u64, rate: u64, deaths: u64) -> Rc<Model> {
        let shares = shares(total, 24);
        let first = shares.reserve(MemberId::NOBODY).expect("all are free");
        assert_eq!(shares.take(first, total), total);
        let first = Process { id: first.0, ..Process::default() };
        let model = Rc::new(Model {
            shares,
            processes: RefCell::new(vec![first]),
            random: Cell::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            now: Cell::new(None),
            depth: Cell::new(0),
            rate,
            deaths,
            killed: Cell::new(0),
            forks: Cell::new(0),
            milliseconds: Cell::new(0),
        });
        FAMILY.with(|family| *family.borrow_mut() = Some(model.clone()));
        model
    }

    fn end(&self) {
        FAMILY.with(|family| *family.borrow_mut() = None);
    }

    fn below(&self, n: u64) -> u64 {
        let mut x = self.random.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.set(x);
        (x >> 20) % n
    }

    fn change<T>(&self, p: usize, f: impl FnOnce(&mut Process) -> T) -> T {
        f(&mut self.processes.borrow_mut()[p])
    }

    fn get(&self, p: usize) -> Process {
        self.processes.borrow()[p].clone()
    }

    fn alive(&self) -> Vec<usize> {
        let processes = self.processes.borrow();
        (0..processes.len()).filter(|&p| !processes[p].dead).collect()
    }

    fn meanwhile(&self) {
        if self.rate == 0 || self.depth.get() > 2 || self.below(self.rate) != 0 {
            return;
        }
        if let Some(p) = self.now.get()
            && self.deaths != 0
            && self.below(self.deaths) == 0
            && self.alive().len() > 1
        {
            self.kill(p);
            resume_unwind(Box::new(Killed));
        }
        let idle = self.alive().into_iter().filter(|&p| !self.get(p).at_work).collect::<Vec<_>>();
        if !idle.is_empty() {
            self.step(idle[self.below(idle.len() as u64) as usize]);
        }
    }

    /// Kills a process, as the kernel does.
    fn kill(&self, p: usize) {
        let process = self.change(p, |process| {
            process.dead = true;
            process.charge = 0;
            process.clone()
        });
        let life = &self.shares.member(MemberId(process.id)).life.0;
        let _ = life.compare_exchange(p as u32 + 1, DIED, SeqCst, SeqCst);
        self.killed.set(self.killed.get() + 1);
    }

    /// One step of a process.
    fn step(&self, p: usize) {
        let before = self.now.replace(Some(p));
        self.depth.set(self.depth.get() + 1);
        self.change(p, |process| process.at_work = true);
        let ended = catch_unwind(AssertUnwindSafe(|| if self.get(p).there { self.live(p) } else { self.arrive(p) }));
        self.change(p, |process| process.at_work = false);
        self.depth.set(self.depth.get() - 1);
        self.now.set(before);
        match ended {
            Err(why) if !why.is::<Killed>() => resume_unwind(why),
            _ => self.check(),
        }
    }

    fn arrive(&self, p: usize) {
        let id = MemberId(self.get(p).id);
        if self.shares.claim(id, p as u32 + 1) {
            self.change(p, |process| process.there = true);
            return;
        }
        // its parent is dead, and another process has taken its units
        let parent = self.get(p).parent.expect("the first one's entry is not given up");
        assert!(self.get(parent).dead);
        self.change(p, |process| process.charge = 0);
        if let Some(id) = self.shares.reserve(MemberId::NOBODY) {
            self.change(p, |process| process.id = id.0);
            assert!(self.shares.claim(id, p as u32 + 1), "nobody gives up what has no parent");
            self.change(p, |process| process.there = true);
        }
    }

    fn live(&self, p: usize) {
        if self.rate != 0 && self.below(60) == 0 && self.processes.borrow().len() < 400 {
            return self.fork(p);
        }
        if self.rate != 0 && self.below(20) == 0 {
            let appetite = if self.below(3) == 0 { 0 } else { self.below(u64::from(self.shares.total) * 2) as u32 };
            self.change(p, |process| process.appetite = appetite);
        }
        let id = MemberId(self.get(p).id);
        let mine = self.shares.pages(id);
        // the effect of faults and the page daemon between two looks
        self.change(p, |process| {
            let limit = process.target.unwrap_or(mine);
            process.charge = if process.charge > limit {
                process.charge - (process.charge - limit).min(128)
            } else if process.charge > process.appetite + 64 {
                process.charge // idle pages stay until another process asks
            } else {
                process.appetite.max(process.charge).min(limit)
            };
        });
        let process = self.get(p);
        if let Some(target) = process.target {
            if process.charge <= target {
                self.shares.give(id, mine.saturating_sub(target), MemberId::NOBODY);
                self.change(p, |process| process.target = None);
            }
            return;
        }
        let view = self.shares.view(id, self.milliseconds.get());
        let short = process.appetite > mine && mine - process.charge < 8;
        let asked = self.shares.member(id).asked.load() != 0;
        self.shares.member(id).asked.store(0);
        self.shares.set_floor(id, FLOOR);
        let wants = short || process.wants && process.appetite > mine;
        self.shares.set_wants(id, wants);
        self.change(p, |process| {
            process.wants = wants;
            let starves = short && view.turn == MemberId::NOBODY && u64::from(view.mine) * 8 < u64::from(view.fair()) * 7;
            process.starving = if starves { process.starving + 1 } else { 0 };
            assert!(process.starving < 500, "process {p} has {} of {}, for long", view.mine, view.fair());
        });
        match plan(&view, &Standing { charge: process.charge, spare: 8, floor: FLOOR, short, wants, asked }) {
            Plan::Stay => {}
            Plan::Take(pages) => _ = self.shares.take(id, pages),
            Plan::Ask => self.shares.ask(id, &view, |_| {}),
            Plan::ShrinkTo(pages) => self.change(p, |process| process.target = Some(pages)),
        }
    }

    fn fork(&self, p: usize) {
        let process = self.get(p);
        let Some(child) = self.shares.reserve(MemberId(process.id)) else { return };
        self.forks.set(self.forks.get() + 1);
        let taken = self.shares.take(child, process.charge);
        let pages = self.shares.pages(MemberId(process.id));
        // the page daemon evicts until twice the charge fits
        let charge = process.charge.min((pages + taken) / 2);
        self.change(p, |process| (process.charge, process.target) = (charge, None));
        let given = self.shares.give(MemberId(process.id), (pages - charge).min(charge.saturating_sub(taken)), child);
        let unit = self.shares.total.div_ceil(UNITS as u32);
        assert!(taken + given + unit > charge, "process {p} is charged for {charge}, and its child has {}", taken + given);
        let charge = charge.min(taken + given);
        let child = Process { id: child.0, parent: Some(p), charge, appetite: process.appetite, ..Process::default() };
        self.processes.borrow_mut().push(child);
    }

    /// The sum of all charges never exceeds the whole: each process has at least what it is charged, and no unit has two
    /// owners.
    fn check(&self) {
        let rate = self.depth.replace(9); // no events in here
        let processes = self.processes.borrow();
        let mut sum = 0;
        for (p, process) in processes.iter().enumerate().filter(|(_, process)| !process.dead) {
            let orphan = !process.there && process.parent.is_some_and(|parent| processes[parent].dead);
            let pages = self.shares.pages(MemberId(process.id));
            assert!(!process.there || self.shares.lives(MemberId(process.id)), "process {p} lives, and counts as dead");
            assert!(orphan || process.charge <= pages, "process {p} has {pages} pages and uses {}", process.charge);
            sum += if orphan { 0 } else { pages };
        }
        assert!(sum <= self.shares.total, "{sum} pages of {}", self.shares.total);
        self.depth.set(rate);
    }

    fn run(&self, steps: u32) {
        for _ in 0..steps {
            let alive = self.alive();
            self.step(alive[self.below(alive.len() as u64) as usize]);
        }
    }
}

/// In any order of steps, with processes killed at any point: no process loses memory that it is charged for, none starves, and
/// the last one gets the whole budget.
#[test]
fn members_come_and_go_at_any_step() {
    let (mut killed, mut forks) = (0, 0);
    for seed in 1..40 {
        let model = Model::new(1000 + seed as u32 * 37, seed, 150, 12);
        model.run(4000);
        while let [p, _, ..] = model.alive()[..] {
            model.kill(p);
        }
        let last = model.alive()[0];
        model.end();
        model.change(last, |process| process.parent = None);
        if !model.get(last).there {
            model.change(last, |process| process.parent = Some(0));
            model.arrive(last);
        }
        let id = MemberId(model.get(last).id);
        model.shares.take(id, u32::MAX);
        assert_eq!(model.shares.pages(id), model.shares.total, "seed {seed}");
        (killed, forks) = (killed + model.killed.get(), forks + model.forks.get());
    }
    assert!(killed > 1000 && forks > 1000, "{killed} killed, {forks} forks");
}

fn family(total: u32, n: usize) -> Rc<Model> {
    let model = Model::new(total, 7, 0, 0);
    model.step(0);
    for p in 1..n {
        model.fork(0);
        model.step(p);
    }
    model
}

fn pages(model: &Model) -> Vec<u32> {
    model.alive().into_iter().map(|p| model.shares.pages(MemberId(model.get(p).id))).collect()
}

/// A process that works alone gets nearly all, whichever process had it before. Several that work get equal parts.
#[test]
fn memory_goes_to_who_uses_it() {
    let model = family(4096, 9);
    for hungry in [&[3][..], &[5], &[0], &[1, 2], &[1, 2, 3, 4, 5, 6, 7, 8], &[8]] {
        for p in 0..9 {
            model.change(p, |process| process.appetite = if hungry.contains(&p) { 10_000 } else { 0 });
        }
        (0..3000).for_each(|i| {
            if !model.get(i % 9).dead {
                model.step(i % 9)
            }
        });
        let pages = pages(&model);
        let part = (4096 - (9 - hungry.len() as u32) * FLOOR) / hungry.len() as u32;
        let least = hungry.iter().map(|&p| pages[p]).min().expect("one at least");
        assert!(least + part / 8 + 2 * 64 >= part, "{hungry:?} have at least {least} of {part}: {pages:?}");
    }
    model.end();
}

/// Three children that sweep over what they have in common, more than an equal part holds, did nothing but read: for 30 s instead
/// of two.
#[test]
fn by_turns_one_has_more_than_its_part() {
    for (n, given) in [(3, 3), (4, 2)] {
        let model = family(4096, n);
        (0..n).for_each(|p| model.change(p, |process| process.appetite = if p == 0 { 0 } else { 10_000 }));
        let run = || {
            (0..2000).for_each(|i| model.step(i % n));
            let pages = pages(&model);
            let others = pages[2..].iter().copied().min().expect("one at least");
            (pages[1], others)
        };
        let level = (4096 - FLOOR) / (n as u32 - 1);
        let about = |pages: u32, part: u32| assert!(pages.abs_diff(part) <= part / 8 + 2 * 64, "{n}: {pages} of {part}");
        let (first, others) = run();
        about(first, level);
        about(others, level);
        let ids = [1, 2].map(|p| MemberId(model.get(p).id));
        assert!(model.shares.take_turn(ids[0], 0) && !model.shares.take_turn(ids[1], TURN_MS - 1));
        let (first, others) = run();
        about(first, level + (n as u32 - 2) * (level / given));
        about(others, level - level / given);
        model.milliseconds.set(TURN_MS);
        let (first, others) = run();
        about(first, level);
        about(others, level);
        model.end();
    }
}

/// Who asks for memory does not wait until a sixteenth of a large part has been written.
#[test]
fn a_large_part_shrinks_by_small_steps() {
    let shares = shares(65536, 3);
    let [me, other] = [(); 2].map(|()| shares.reserve(MemberId::NOBODY).expect("room"));
    assert!(shares.claim(other, 12) && shares.take(me, 65536) == 65536);
    shares.set_wants(other, true);
    let plan = plan(&shares.view(me, 0), &Standing { charge: 65000, spare: 8, floor: 20, asked: true, ..Standing::default() });
    assert_eq!(plan, Plan::ShrinkTo(65536 - STEP_MAX));
}

/// A process that would like to map more than its part asks for what others do not use. It does not make them page.
#[test]
fn without_want_only_what_is_not_used_is_given() {
    let shares = shares(2048, 3);
    let [me, other] = [(); 2].map(|()| shares.reserve(MemberId::NOBODY).expect("room"));
    assert!(shares.claim(other, 12) && shares.take(me, 2048) == 2048);
    let plan = |charge| plan(&shares.view(me, 0), &Standing { charge, spare: 8, floor: 20, asked: true, ..Standing::default() });
    assert_eq!((plan(1000), plan(2000)), (Plan::ShrinkTo(1016), Plan::Stay));
    shares.set_wants(other, true);
    assert_eq!((plan(1000), plan(2000)), (Plan::ShrinkTo(1016), Plan::ShrinkTo(2048 - 128)));
}

/// After turns in vain there is none for longer and longer. The last holder lets others have theirs first, and a dead one has none.
#[test]
fn turns_come_one_after_the_other() {
    let shares = shares(640, 3);
    let [a, b] = [(); 2].map(|()| shares.reserve(MemberId::NOBODY).expect("room"));
    assert!(shares.claim(a, 11) && shares.claim(b, 12));
    let mut now = u32::MAX - 3000; // the clock begins anew
    assert!(shares.take_turn(a, now) && shares.turn(now) == a && !shares.take_turn(b, now));
    shares.end_turn(b, now, false);
    assert_eq!(shares.turn(now + TURN_MS - 1), a, "it is not b's to end");
    for pause in [4000, 8000, 16_000, 32_000, 64_000, 64_000] {
        shares.end_turn(a, now, true);
        assert!(shares.turn(now) == MemberId::NOBODY && !shares.take_turn(b, now.wrapping_add(pause - 1)));
        now = now.wrapping_add(pause + AGAIN_MS);
        assert!(shares.take_turn(a, now));
    }
    // a turn of long ago, which nobody has ended
    for later in [TURN_MS, 1 << 30, 1 << 31, 3 << 30, u32::MAX - TURN_MS] {
        assert_eq!(shares.turn(now.wrapping_add(later)), MemberId::NOBODY);
    }
    shares.end_turn(a, now, false);
    now = now.wrapping_add(REST_MS);
    assert!(!shares.take_turn(a, now) && shares.take_turn(b, now));
    shares.bury(b);
    assert!(shares.turn(now) == MemberId::NOBODY && shares.take_turn(a, now));
    assert_eq!(shares.turn(now.wrapping_add(TURN_MS)), MemberId::NOBODY);
}

/// An entry that was reserved for a child counts as long as its parent lives. Then it is free for all, and the child notices.
#[test]
fn what_was_reserved_is_not_lost() {
    let shares = shares(640, 3);
    let first = shares.reserve(MemberId::NOBODY).expect("room");
    assert!(shares.claim(first, 11) && !shares.claim(first, 11));
    shares.take(first, 640);
    let child = shares.reserve(first).expect("room");
    assert_eq!((shares.give(first, 100, child), shares.pages(child), shares.free()), (100, 100, 0));
    shares.member(first).life.store(DIED);
    assert_eq!((shares.lives(first), shares.lives(child), shares.free()), (false, false, 640));
    let others = [(); 3].map(|()| shares.reserve(MemberId::NOBODY).expect("room"));
    assert_eq!(shares.reserve(MemberId::NOBODY), None);
    assert!(others.iter().all(|other| *other != child) && !shares.claim(child, 12) && shares.claim(others[1], 12));
    shares.bury(others[1]);
    shares.bury(others[2]);
    assert_eq!(others.map(|other| shares.lives(other)), [true, false, false]);
    let next = shares.reserve(others[0]).expect("room again");
    shares.bury(others[1]);
    assert!(shares.lives(next), "those were before it");
}

/// A parent saw to a child that had ended. Between two looks at the entry it became another member's. That one lived, and counted
/// as dead: others took its part of the budget.
#[test]
fn nobody_is_buried_for_another() {
    for accesses in 0..8 {
        let shares: &Shares = Box::leak(Box::new(shares(640, 2)));
        let first = shares.reserve(MemberId::NOBODY).expect("room");
        let child = shares.reserve(first).expect("room");
        assert!(shares.claim(first, 11) && shares.claim(child, 12));
        shares.member(child).life.store(DIED);
        let new = Rc::new(Cell::new(MemberId::NOBODY));
        let arrives = {
            let new = Rc::clone(&new);
            move || {
                new.set(shares.reserve(MemberId::NOBODY).expect("its entry is free"));
                assert!(shares.claim(new.get(), 13));
            }
        };
        LATER.set(Some((accesses, Box::new(arrives))));
        shares.bury(child);
        let later = LATER.take().is_some(); // there were fewer accesses
        assert!(later || shares.lives(new.get()), "after {accesses}");
    }
}

/// A child had its entry after another member had taken a part of its units, and took them for its own.
#[test]
fn who_has_lost_a_unit_has_lost_the_entry() {
    let shares = shares(640, 4);
    let first = shares.reserve(MemberId::NOBODY).expect("room");
    assert!(shares.claim(first, 11));
    shares.take(first, 320);
    let child = shares.reserve(first).expect("room");
    shares.give(first, 160, child);
    let other = shares.reserve(MemberId::NOBODY).expect("room");
    shares.member(first).life.store(DIED);
    assert_eq!((shares.take(other, 640), shares.claim(child, 12)), (640, false));
}

/// With any values in the shared memory, no more than the whole is given out, and nothing panics.
#[test]
fn anything_may_stand_there() {
    let mut x = 1u32;
    let mut random = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        x ^ x >> 15
    };
    for _ in 0..300 {
        let shares = shares(1000, 5);
        for word in shares
            .words
            .units
            .iter()
            .chain(shares.members.iter().flat_map(|m| [&m.life, &m.generation, &m.parent, &m.wants, &m.pages, &m.floor]))
        {
            word.store(random() >> (random() % 32));
        }
        let turns = &shares.words.turn;
        [&shares.words.used, &turns.holder, &turns.end, &turns.rest].iter().for_each(|word| word.store(random()));
        let Some(id) = shares.reserve(MemberId(random())) else { continue };
        let holder = MemberId(turns.holder.load());
        for turn in [id, holder] {
            turns.holder.store(turn.0);
            shares.take_turn(id, random());
            shares.end_turn(id, random(), random() % 2 == 0);
        }
        let view = shares.view(id, random());
        for wants in [false, true] {
            let standing = Standing { charge: 10, spare: 8, floor: 20, short: wants, wants, asked: true };
            if let Plan::Take(pages) | Plan::ShrinkTo(pages) = plan(&view, &standing) {
                assert!(pages <= 1000);
            }
        }
        shares.ask(id, &view, |_| {});
        assert!(shares.take(id, u32::MAX) <= 1000 && shares.pages(id) <= 1000 && shares.give(id, 500, MemberId(random())) <= 500);
    }
}

/// One program's cache at a time has a part of the budget. When all of its processes have ended, the next program's has it.
#[test]
fn a_cache_ends_with_its_program() {
    let shares = shares(640, 4);
    let [a, b] = [(); 2].map(|()| shares.reserve(MemberId::NOBODY).expect("room"));
    let child = shares.reserve(a).expect("room");
    assert!(shares.claim(a, 11) && shares.claim(b, 12) && shares.claim(child, 13));
    assert_eq!([a, b, child].map(|id| shares.program(id)), [a, b, a]);
    assert_eq!([a, b, child].map(|id| shares.view(id, 0).kin), [2, 1, 2]);
    assert!(shares.hold_cache(a) && !shares.hold_cache(b));
    shares.set_cached(100);
    shares.take(MemberId::CACHE, 100);
    shares.bury(a);
    assert!(!shares.hold_cache(b) && shares.holds_cache(a), "its child has it, too");
    shares.bury(child);
    assert!(shares.hold_cache(b) && (shares.cached(), shares.pages(MemberId::CACHE)) == (0, 0));
    shares.take(MemberId::CACHE, 100);
    shares.bury(b);
    let alone = shares.reserve(MemberId::NOBODY).expect("room");
    shares.reap_cache(alone);
    assert!(!shares.holds_cache(alone) && shares.take(alone, 640) == 640);
}

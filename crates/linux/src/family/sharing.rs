//! The page daemon's part in sharing a family's budget: takes what the process needs, asks for it, gives what it is asked for, and
//! takes turns.

use crate::family::shares::{self, MemberId, Plan, Standing, TURN_MS, View};
use crate::family::{Family, milliseconds};
use crate::kernel::Linux;
use crate::machine::Machine;
use crate::sys;
use core::sync::atomic::Ordering::*;

/// The interval at which a process that is short looks again, in nanoseconds: at first, and at most if it asks in vain.
const LOOK_NS: core::ops::RangeInclusive<u64> = 2_000_000..=128_000_000;
/// For this long, a process that was short counts as one that wants more, in nanoseconds.
const WANTS_NS: u64 = 500_000_000;
/// [`TURN_MS`] in nanoseconds.
const TURN_NS: u64 = TURN_MS as u64 * 1_000_000;
/// A process that has wanted more for so long, as others do, takes its turn, in nanoseconds.
const SQUEEZED_NS: u64 = 100_000_000;
/// A turn is worth it if the process's threads get so many thousandths of the processor time that they had before. (The others
/// have about three quarters of theirs meanwhile.)
const GETS_ON: u64 = 1500;
/// A process tries to shrink for the first of these times before it gives up, and then keeps its part for the second, in
/// nanoseconds.
const PATIENCE_NS: u64 = 500_000_000;
const LEFT_ALONE_NS: u64 = 5_000_000_000;

/// The page daemon's state about its process's part of the budget.
#[derive(Debug)]
pub struct Sharing {
    /// The CPUs that the process may use.
    cpus: u32,
    /// When to look next, and the pause before the look after that if the process asks in vain.
    look_at: u64,
    pause: u64,
    /// When the process was last short; 0: not lately.
    wanted: u64,
    target: Option<Target>,
    /// The process needs at least this many pages, until then.
    held: (u32, u64),
    /// When it began to want more, and the hard faults until then.
    since: (u64, u64),
    turn: Option<OwnTurn>,
}

/// This process's turn.
#[derive(Clone, Copy, Debug)]
struct OwnTurn {
    began: u64,
    /// Hard faults in a second before it, and the processor time that its threads got, in thousandths; `u64::MAX` if that is not
    /// known.
    before: (u64, u64),
    /// Hard faults until the middle of it, when others have given what they should.
    middle: Option<(u64, u64)>,
}

/// How many of `faults`, since `from`, there are in a second.
fn rate(from: (u64, u64), now: (u64, u64)) -> u64 {
    ((now.1 - from.1) as u128 * 1_000_000_000 / u128::from((now.0 - from.0).max(1))) as u64
}

/// A smaller part that the process works towards.
#[derive(Clone, Copy, Debug)]
struct Target {
    pages: u32,
    since: u64,
    /// Faults at that time.
    faults: u64,
    /// The process wants more, but has more than an equal part.
    yields: bool,
}

impl Default for Sharing {
    /// For the calling thread's process. => the thread may run on all CPUs that the process may use
    fn default() -> Self {
        let cpus = sys::count_cpus(&sys::allowed_cpus());
        Sharing { cpus, look_at: 0, pause: 0, wanted: 0, target: None, held: (0, 0), since: (0, 0), turn: None }
    }
}

impl Sharing {
    /// Takes this process's turn to have more than its part, and ends it. `now`: the time, and hard faults so far. `ran`: the
    /// processor time that its threads got lately.
    fn take_turns(&mut self, family: &Family, view: &View, short: bool, now: (u64, u64), ran: u64) {
        if self.wanted == 0 {
            self.since = now;
        }
        if let Some(turn) = &mut self.turn {
            let age = now.0 - turn.began;
            if age > TURN_NS / 2 {
                turn.middle = turn.middle.or(Some(now));
            }
            if view.turn == view.me && self.wanted != 0 {
                return;
            }
            // It was worth it if half of the faults are gone (the program may have slept over its end), or if its threads get on:
            // one that does little between its faults has as many of them in a second as before, however many it is spared.
            let (faults, had) = turn.before;
            let gets_on = had != u64::MAX && ran >= had.max(1) * GETS_ON / 1000;
            let vain = faults > 0 && !gets_on && turn.middle.is_some_and(|middle| rate(middle, now) > faults / 2);
            if age < TURN_NS + 2 * LOOK_NS.end() {
                family.shares.end_turn(view.me, milliseconds(now.0), vain);
            }
            (self.turn, self.since) = (None, now);
        } else if short
            && view.wanting > 0
            && now.0 - self.since.0 > SQUEEZED_NS
            && family.shares.take_turn(view.me, milliseconds(now.0))
        {
            self.turn = Some(OwnTurn { began: now.0, before: (rate(self.since, now), ran), middle: None });
        }
    }
}

impl overspill_machine::daemon::Sharing<Linux> for Sharing {
    fn is_shrinking(&self) -> bool {
        self.target.is_some()
    }

    fn step(&mut self, machine: &Machine) {
        let Some(family) = &machine.host.family else { return };
        let asked = family.entry().asked.load() != 0;
        if asked {
            family.shared.store(true, Relaxed); // there is another one, which has come by exec
        } else if !family.is_shared() {
            return;
        }
        let now = sys::now_ns();
        if !asked && self.target.is_none() && now < self.look_at {
            return;
        }
        self.look_at = now + LOOK_NS.start();
        let view = family.view();
        family.show(machine, &view);
        if view.members == 1 {
            self.target = None;
            family.entry().asked.store(0); // who asked has ended; the next one must ring
            Family::take_if_alone(machine);
            return;
        }
        family.tend_cache(&view);
        let holds_cache = family.shares.holds_cache(family.program());
        family.has_kin.store(view.kin > 1 || holds_cache, Relaxed);
        let view = family.view();
        let asked = family.entry().asked.load() != 0;
        let map = machine.map.read();
        let mut core = machine.core.lock();
        if family.forking.load(Relaxed) || machine.freeze.is_on() {
            self.target = None; // the fork sets the limit
            return;
        }
        // with a process per CPU that is short, others use the CPU while one waits for a read; packing would take it from them
        let crowded = view.wanting + u32::from(self.wanted != 0) > self.cpus;
        core.vm.shut_pool(crowded || holds_cache && family.shares.cached() > 0);
        let promised = core.vm.promised();
        let charge = u32::try_from(core.vm.charge_total()).unwrap_or(u32::MAX);
        let counters = core.vm.counters();
        let faults =
            counters.zero_fills.get() + counters.soft_faults.get() + counters.hard_faults.get() + counters.throttled_faults.get();
        // with less it is short, and would take back at once what it gives
        let needed = charge.saturating_add(core.vm.free_low());
        let short = promised < needed;
        let fixed = map.fixed_pages(&core);
        let held = if now < self.held.1 { self.held.0 } else { 0 };
        let floor = (family.least() + fixed).max(held);
        family.shares.set_floor(family.id(), floor);
        family.excess.fetch_min(fixed, Relaxed);
        self.take_turns(family, &view, short, (now, counters.hard_faults.get()), core.load.rate());
        if self.wanted == 0 && family.shares.wants(family.id()) {
            self.wanted = now; // for a fork
        }
        self.target = self.target.filter(|target| core.vm.limit() == target.pages); // else a fork has set another limit
        if let Some(target) = self.target {
            // faults show that it uses one page in eight of those that should go
            let used =
                faults.wrapping_sub(target.faults) > u64::from(promised.saturating_sub(target.pages) / 8).max(8) && !target.yields;
            let late = now - target.since > PATIENCE_NS;
            let reached = needed <= target.pages;
            if !(reached || used || late) {
                return;
            }
            self.target = None;
            let freed = promised.saturating_sub(needed.max(target.pages));
            if used && !reached {
                self.wanted = now;
                family.shares.set_wants(family.id(), true);
            } else if freed > 0 {
                family.shares.give(family.id(), freed, MemberId::NOBODY);
            } else {
                self.held = (needed.min(view.mine), now + LEFT_ALONE_NS);
            }
            family.apply(&map, &mut core);
            return;
        }
        if core.vm.limit() < promised {
            family.apply(&map, &mut core); // it was alone for a moment, and gave up its target
        }
        if asked {
            family.entry().asked.store(0); // (and not one that has come meanwhile)
        }
        if self.wanted != 0 && !short && now - self.wanted > WANTS_NS {
            self.wanted = 0;
            family.shares.set_wants(family.id(), false);
        }
        let standing = Standing { charge, spare: core.vm.free_high(), floor, short, wants: self.wanted != 0, asked };
        match shares::plan(&view, &standing) {
            Plan::Stay => {}
            Plan::Take(pages) => {
                if family.take(&map, &mut core, pages) {
                    self.pause = 0;
                    drop(core);
                    machine.arrivals.announce();
                    return;
                }
            }
            Plan::Ask => {
                self.wanted = now;
                let longer = if self.turn.is_some() { 0 } else { self.pause * 2 };
                self.pause = longer.clamp(*LOOK_NS.start(), *LOOK_NS.end());
                self.look_at = now + self.pause;
                drop(core);
                family.ask(&view);
                return;
            }
            Plan::ShrinkTo(pages) if needed <= pages => {
                family.shares.give(family.id(), promised.saturating_sub(pages), MemberId::NOBODY);
                family.apply(&map, &mut core);
            }
            Plan::ShrinkTo(pages) => {
                self.target = Some(Target { pages, since: now, faults, yields: standing.wants });
                map.set_targets(&mut core, pages, pages);
                return;
            }
        }
        if short && self.wanted == 0 {
            self.wanted = now;
            family.shares.set_wants(family.id(), true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::tests::charged;

    const MS: u64 = 1_000_000;

    /// A process that is charged for `charge` of its 1024 pages, half of the budget. Another one has the rest, and wants more.
    fn asked(name: &str, charge: u64) -> Option<Machine> {
        let (mut machine, family) = charged(name, charge, 1024)?;
        let other = family.shares.reserve(MemberId::NOBODY).expect("room");
        assert!(family.shares.claim(other, 12) && family.shares.take(other, 2048) == 1024);
        family.shares.set_wants(other, true);
        family.entry().asked.store(1);
        machine.host.family = Some(family);
        Some(machine)
    }

    /// A process gave all but what was charged to it. It was short then, and took what it had given back before the other one
    /// looked. A program that wanted the memory of one that waited got 900 MiB in 6.3 s instead of 1.5.
    #[test]
    fn who_gives_keeps_what_it_needs_to_work() {
        let Some(machine) = asked("reserve", 980) else { return };
        let shares = machine.host.family.as_ref().expect("it has one").shares;
        let (mut sharing, mut given) = (Sharing::default(), 0);
        for charge in (900..980).rev() {
            machine.core.lock().vm.set_reserved(charge); // its pages are evicted one by one
            overspill_machine::daemon::Sharing::step(&mut sharing, &machine);
            let vm = &machine.core.lock().vm;
            assert!(vm.charge_total() + u64::from(vm.free_low()) <= u64::from(vm.promised()), "{charge} of {}", vm.promised());
            assert!(shares.free() >= given, "it has taken back what it gave");
            given = shares.free();
        }
        assert!(given > 0);
    }

    /// A sixteenth of 4 GiB could not be written in the time that a process has for it. Then it gave nothing, and nothing for
    /// five seconds more.
    #[test]
    fn who_is_late_gives_what_it_has_freed() {
        let Some(machine) = asked("late", 930) else { return };
        machine.map.read().set_targets(&mut machine.core.lock(), 800, 800);
        let target = Some(Target { pages: 800, since: 0, faults: 0, yields: false });
        let mut sharing = Sharing { target, ..Sharing::default() };
        overspill_machine::daemon::Sharing::step(&mut sharing, &machine);
        let core = machine.core.lock();
        assert!(sharing.target.is_none() && sharing.held.1 == 0);
        assert!((930 + core.vm.free_low()..1024).contains(&core.vm.promised()), "{}", core.vm.promised());
        assert_eq!(core.vm.limit(), core.vm.promised());
    }

    /// A process that was asked by one that then ended took itself for asked for ever. The next one that asked did not ring. And in
    /// each step the page daemon looked at the whole family.
    #[test]
    fn nobody_is_asked_by_one_that_has_ended() {
        let Some((mut machine, family)) = charged("ended", 900, 1024) else { return };
        let other = family.shares.reserve(MemberId::NOBODY).expect("room");
        assert!(family.shares.claim(other, 12));
        family.entry().asked.store(1);
        family.shares.bury(other);
        machine.host.family = Some(family);
        overspill_machine::daemon::Sharing::step(&mut Sharing::default(), &machine);
        assert_eq!(machine.host.family.as_ref().expect("it has one").entry().asked.load(), 0);
    }

    /// A process that is short for a while takes its turn. If it has as many hard faults then, the turn was in vain, and there is
    /// none for a while.
    #[test]
    fn a_turn_is_worth_it_if_half_of_the_faults_are_gone() {
        for (faults_a_second, vain) in [(900, true), (400, false)] {
            let Some((_machine, family)) = charged("turns", 900, 1024) else { return };
            let other = family.shares.reserve(MemberId::NOBODY).expect("room");
            let mut sharing = Sharing { wanted: 1, since: (0, 0), ..Sharing::default() };
            let mut look = |ms: u64, faults: u64, wanting: u32| {
                let view = View { wanting, ..family.shares.view(family.id(), ms as u32) };
                sharing.take_turns(&family, &view, true, (ms * MS, faults), u64::MAX);
                sharing.turn.is_some()
            };
            assert!(!look(100, 100, 1) && !look(500, 500, 0) && look(1000, 1000, 1), "for a while, and not alone");
            assert!(look(2001, 3000, 1), "half of it is over");
            let end = 1000 + u64::from(TURN_MS);
            assert!(!look(end, 3000 + faults_a_second * (end - 2001) / 1000, 1));
            assert_eq!(family.shares.take_turn(other, end as u32 + 1000), !vain);
        }
    }

    /// A program that looks up this and that in a dict, and does nothing else, has as many faults in a second with nearly all of
    /// its pages as with half of them, and does six times as much. Its turns counted as in vain: three of them took 20 s instead
    /// of 5.
    #[test]
    fn a_turn_in_which_the_threads_get_on_is_worth_it() {
        for (before, after, vain) in [(60, 150, false), (60, 80, true), (u64::MAX, 150, true), (60, u64::MAX, false)] {
            let Some((_machine, family)) = charged("gets-on", 900, 1024) else { return };
            let other = family.shares.reserve(MemberId::NOBODY).expect("room");
            let mut sharing = Sharing { wanted: 1, since: (0, 0), ..Sharing::default() };
            let end = 1000 + u64::from(TURN_MS);
            for (ms, ran, has_turn) in [(1000, before, true), (2001, before, true), (end, after, false)] {
                let view = View { wanting: 1, ..family.shares.view(family.id(), ms as u32) };
                sharing.take_turns(&family, &view, true, (ms * MS, ms), ran);
                assert_eq!(sharing.turn.is_some(), has_turn);
            }
            assert_eq!(family.shares.take_turn(other, end as u32 + 1000), !vain, "{before}, {after}");
        }
    }
}

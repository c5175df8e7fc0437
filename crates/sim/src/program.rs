//! A program's thread. It maps, touches, protects, discards, moves and unmaps memory of its own, with the agent's hooks, and knows
//! the content of each of its pages.

use crate::kernel::Sim;
use crate::world::{BASE, OWN, World, here, say, tell, world};
use overspill_machine::Machine;
use overspill_machine::errno::Errno;
use overspill_machine::kernel::Kernel as _;
use overspill_machine::mremap::{Change, FIXED, Hook, LEAVES, MAY_MOVE, Mremap};
use overspill_machine::native::Piece;
use overspill_machine::ranges::{Flags, Kind};
use overspill_simkernel::call::{Advice, Call, Outcome, Progress, READ, READ_WRITE, SIGBUS};
use overspill_simkernel::errno::{EFAULT, ENOMEM, EPERM};
use overspill_simkernel::kernel::Kernel;
use overspill_simkernel::pmap::PAGE;
use overspill_simkernel::rng::Rng;
use overspill_simkernel::sched;
use overspill_simkernel::vma::ACCOUNT;
use overspill_vm::page::State;
use overspill_vm::policy;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Pages between the addresses of two threads, if each has its own.
const APART: usize = 128;
/// The smallest budget that a whim chooses, in pages.
pub const LEAST_BUDGET: u32 = 90;
/// The most pages that a thread keeps in memory at a time.
const KEPT_MAX: usize = 6;

/// The content that a page may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holds {
    This(u8),
    /// The page was freed (MADV_FREE): it holds this byte or zeroes.
    OrZeroes(u8),
}

#[derive(Clone, Copy, Debug)]
pub struct Page {
    holds: Holds,
    prot: u8,
    /// The page is sealed (mseal).
    sealed: bool,
}

impl Page {
    /// A newly mapped page.
    fn new(prot: u8) -> Self {
        Page { holds: Holds::This(0), prot, sealed: false }
    }
}

/// The actions of a scenario's programs, by weight.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// Steps of each thread.
    pub steps: usize,
    /// Addresses that all threads share, in pages; with `twins`, those of each thread.
    pub arena: usize,
    /// The most pages of a thread.
    pub pages: usize,
    /// Weights: touch, sweep, discard, free, protect, map, unmap, move, grow, flip.
    pub weights: [usize; 10],
    /// How long a thread rests in the middle and in the end, in nanoseconds.
    pub rest_ns: u64,
    /// In so many of a thousand steps the thread first forks.
    pub forks: usize,
    /// In so many it first seals pages, and tries to unmap them, which is refused.
    pub seals: usize,
    /// In so many it first looks at pages of other threads, if nobody else changes them.
    pub peeks: usize,
    /// In so many it first changes the budget or the policy, or has pages kept in memory.
    pub whims: usize,
    /// In so many the kernel first writes pages of the program's to its own swap.
    pub kernel_swap: usize,
    /// Each thread has addresses of its own, and makes its calls in an address space without a pager as well.
    pub twins: bool,
    /// How many times as long ranges it discards, unmaps and moves.
    pub large: usize,
    /// So many of a thousand moves are taken back within half a millisecond. If not 0, moves are of a page or two.
    pub returns: usize,
}

/// A thread's memory without a pager. All of the thread's calls are made there as well.
struct Twin(Kernel);

impl Twin {
    fn new() -> Self {
        let mut kernel = Kernel::default();
        let space = kernel.new_space();
        kernel.new_task(space);
        Twin(kernel)
    }

    fn call(&mut self, call: Call) -> Outcome {
        self.0.start(0, call);
        self.0.run(0);
        match self.0.progress(0) {
            Progress::Done(outcome) => outcome,
            other => panic!("{call:?} without a pager: {other:?}"),
        }
    }
}

/// A thread's hooks.
#[derive(Clone, Copy)]
struct Hooks<'a> {
    machine: &'a Machine<Sim>,
    /// The place that the kernel chooses for a move, if it is free.
    place: usize,
    /// The kernel moves even where it need not.
    moves: bool,
}

fn answer(outcome: Outcome) -> isize {
    match outcome {
        Outcome::Ok(value) => value as isize,
        Outcome::Err(e) => -(e as isize),
        Outcome::Signal(_) => unreachable!("it is no touch"),
    }
}

impl Hooks<'_> {
    /// mremap(2). `perform(call, chosen)` makes a call of the model's; `chosen`: the kernel has chosen the place.
    fn ask(self, call: Mremap, mut perform: impl FnMut(Call, bool) -> Outcome) -> isize {
        let Mremap { old, old_len, new_len, flags, new } = call;
        let keep = flags & LEAVES != 0;
        let remap = |to| Call::Remap { from: old, len: old_len, new_len, to, keep };
        if flags & FIXED != 0 {
            return answer(perform(remap(Some(new)), false));
        }
        let moves = keep || self.moves && flags & MAY_MOVE != 0;
        if !moves {
            let outcome = perform(remap(None), false);
            if outcome != Outcome::Err(ENOMEM) || flags & MAY_MOVE == 0 {
                return answer(outcome);
            }
        }
        answer(perform(remap(Some(self.place)), true))
    }

    /// Why the kernel refuses to move memory to a place of its choice: it moves only one mapping, and only to a free place.
    fn refusal(kernel: &Kernel, space: usize, call: Call) -> Option<Errno> {
        let Call::Remap { from, len, new_len, to: Some(to), .. } = call else { unreachable!("it is no move: {call:?}") };
        let space = &kernel.spaces[space];
        match space.find(from) {
            Some(vma) if from + len.min(new_len) <= vma.end => space.first_in(to, to + new_len).map(|_| ENOMEM),
            _ => Some(EFAULT),
        }
    }
}

impl Hook for Hooks<'_> {
    type Kernel = Sim;
    type Kind = (u8, u16);

    fn machine(&self) -> &Machine<Sim> {
        self.machine
    }
    fn run<R>(self, f: impl FnOnce(Self) -> R + 'static) -> R {
        f(self)
    }
    fn perform(self, change: Change) {
        self.machine.perform(change);
    }
    fn call(self, call: Mremap) -> isize {
        let world = world();
        self.ask(call, |call, chosen| {
            let mut refusal = None;
            let may = |kernel: &Kernel| {
                refusal = if chosen { Self::refusal(kernel, here(), call) } else { None };
                refusal.is_none()
            };
            let outcome = world.kernel.call_if(sched::running(), call, may);
            outcome.unwrap_or_else(|| Outcome::Err(refusal.expect("it was")))
        })
    }
    fn call_munmap(self, at: usize, len: usize) -> isize {
        answer(world().call(Call::Unmap { at, len }))
    }
    fn reserve(self, len: usize) -> isize {
        match world().call(Call::Map { at: self.place, len, prot: 0, replace: false }) {
            Outcome::Ok(at) => at as isize,
            _ => -(ENOMEM as isize),
        }
    }
    fn moves_several(self) -> bool {
        true
    }
    fn each_mapping(self, mut f: impl FnMut(usize, usize, Self::Kind)) -> Result<(), Errno> {
        let list = |kernel: &mut Kernel| kernel.spaces[here()].vmas.values().cloned().collect::<Vec<_>>();
        world().kernel.enter(list).iter().for_each(|vma| f(vma.start, vma.end, (vma.prot, vma.flags & !ACCOUNT)));
        Ok(())
    }
}

/// A thread of the program.
pub struct Thread<'a> {
    pub machine: &'a Machine<Sim>,
    pub world: Rc<World>,
    pub rng: Rng,
    habits: Habits,
    name: usize,
    step: usize,
    pub pages: BTreeMap<usize, Page>,
    /// Pages that may not leave memory.
    kept: BTreeSet<usize>,
    /// The first address that it maps.
    base: usize,
    twin: Option<Twin>,
}

/// Pages that a call unmaps, moves or replaces, from before it is announced until it has been followed.
pub struct Going(Rc<World>, usize);

impl Going {
    /// So many pages.
    pub fn new(world: &Rc<World>, pages: usize) -> Self {
        world.going.update(|n| n + pages);
        Going(Rc::clone(world), pages)
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        self.0.going.update(|n| n - self.1);
    }
}

impl<'a> Thread<'a> {
    /// Makes thread number `name`.
    pub fn new(machine: &'a Machine<Sim>, world: Rc<World>, seed: u64, habits: Habits, name: usize) -> Self {
        let (base, twin) =
            if habits.twins { (BASE + name * (habits.arena + APART) * PAGE, Some(Twin::new())) } else { (BASE, None) };
        let (rng, pages, kept) = (Rng::new(seed), BTreeMap::new(), BTreeSet::new());
        Thread { machine, world, rng, habits, name, step: 0, pages, kept, base, twin }
    }

    /// Runs all steps of the thread. `fork` makes a fork.
    pub fn run(&mut self, fork: impl Fn(&mut Self)) {
        for step in 0..self.habits.steps {
            if step == self.habits.steps / 2 {
                self.world.rest(self.habits.rest_ns);
            }
            self.step = step;
            if self.habits.forks > 0 && self.rng.below(1000) < self.habits.forks {
                fork(self);
            }
            if self.habits.peeks > 0 && self.rng.below(1000) < self.habits.peeks {
                self.peek();
            }
            if self.habits.seals > 0 && self.rng.below(1000) < self.habits.seals {
                self.seal();
            }
            if self.habits.whims > 0 && self.rng.below(1000) < self.habits.whims {
                self.whim();
            }
            if self.habits.kernel_swap > 0 && self.rng.below(1000) < self.habits.kernel_swap {
                self.go_to_kernel_swap();
            }
            match self.rng.weighted(&self.habits.weights) {
                0 => self.touch(),
                1 => self.sweep(),
                2 => self.discard(Advice::DontNeed),
                3 => self.discard(Advice::Free),
                4 => self.protect(),
                5 => self.map(),
                6 => self.unmap(),
                7 => self.remap(),
                8 => self.grow(),
                _ => self.flip(),
            }
            sched::progress();
        }
        self.world.rest(self.habits.rest_ns);
        let all: Vec<usize> = self.pages.keys().copied().collect();
        all.iter().for_each(|at| self.read(*at));
        self.pages.retain(|_, page| !page.sealed);
        while let Some((start, len)) = self.pages.keys().next().map(|at| (*at, self.run_from(*at))) {
            self.unmap_range(start, len.min(16));
        }
    }

    // ---- hooks ----

    /// The hooks. `place`: the place that the kernel chooses for a move.
    fn hooks(&self, place: usize) -> Hooks<'a> {
        Hooks { machine: self.machine, place, moves: self.twin.is_none() }
    }

    /// Makes a call that needs no hook.
    fn call(&mut self, call: Call) -> Outcome {
        let outcome = self.world.call(call);
        if let Some(twin) = &mut self.twin {
            let without = twin.call(call);
            // (with a pager, freed content may stay for longer)
            assert!(
                outcome == without || matches!(call, Call::Read { .. }),
                "{call:x?}: {outcome:x?}, and without a pager {without:x?}"
            );
        }
        outcome
    }

    /// mremap(2). Makes the call only if it succeeds without a pager; then it must succeed with one.
    fn mremap(&mut self, hooks: Hooks<'a>, call: Mremap) -> Option<isize> {
        let Some(twin) = &mut self.twin else { return Some(hooks.mremap(call)) };
        let without = hooks.ask(call, |call, chosen| match chosen.then(|| Hooks::refusal(&twin.0, 0, call)).flatten() {
            Some(e) => Outcome::Err(e),
            None => twin.call(call),
        });
        if without < 0 {
            return None;
        }
        let with = hooks.mremap(call);
        assert_eq!(with, without, "{call:x?} of thread {} in step {}, with a pager and without", self.name, self.step);
        Some(with)
    }

    // ---- actions ----

    pub fn say(&self, what: std::fmt::Arguments<'_>) {
        say(format_args!("thread {} step {}", self.name, self.step), what);
    }

    fn any(&mut self) -> Option<usize> {
        let all: Vec<usize> = self.pages.keys().copied().collect();
        (!all.is_empty()).then(|| self.rng.pick(&all))
    }

    /// Pages that are given up, or that move, need not stay in memory any more.
    fn forget_kept(&mut self, at: usize, len: usize) {
        self.kept.retain(|kept| !(at..at + len * PAGE).contains(kept));
    }

    /// How many of its pages lie in a row from `at` on.
    fn run_from(&self, at: usize) -> usize {
        (0..).take_while(|i| self.pages.contains_key(&(at + i * PAGE))).count()
    }

    /// A stretch of its pages, `most` at most.
    fn stretch(&mut self, most: usize) -> Option<(usize, usize)> {
        let at = self.any()?;
        let len = self.run_from(at).min(1 + self.rng.below(most));
        Some((at, len))
    }

    fn is_sealed(&self, at: usize, len: usize) -> bool {
        (0..len).any(|i| self.pages[&(at + i * PAGE)].sealed)
    }

    /// A stretch of its pages that calls may change.
    fn free_stretch(&mut self, most: usize) -> Option<(usize, usize)> {
        self.stretch(most).filter(|&(at, len)| !self.is_sealed(at, len))
    }

    /// Seals a few pages. The pages around them cannot be unmapped together with them.
    fn seal(&mut self) {
        let Some((at, len)) = self.stretch(4) else { return };
        self.say(format_args!("seals {at:x} +{len}"));
        assert_eq!(self.call(Call::Seal { at, len: len * PAGE }), Outcome::Ok(0));
        (0..len).for_each(|i| self.pages.get_mut(&(at + i * PAGE)).expect("its own").sealed = true);
        let before = (1..=self.rng.below(12)).take_while(|i| self.pages.contains_key(&(at - i * PAGE))).count();
        self.unmap_range(at - before * PAGE, before + len);
    }

    fn read(&mut self, at: usize) {
        if self.pages[&at].prot & READ == 0 {
            return;
        }
        tell(at, PAGE, || "program reads".to_string());
        let got = self.call(Call::Read { at });
        tell(at, PAGE, || format!("program has read {got:?}"));
        let page = self.pages.get_mut(&at).expect("its own");
        match (page.holds, got) {
            // it was lost, and the thread was told
            (_, Outcome::Signal(SIGBUS)) if self.world.lossy.get() => page.holds = Holds::OrZeroes(0),
            (Holds::This(byte), Outcome::Ok(got)) if got == byte as usize => {}
            (Holds::OrZeroes(byte), Outcome::Ok(got)) if got == byte as usize => {}
            (Holds::OrZeroes(_), Outcome::Ok(0)) => page.holds = Holds::This(0),
            (holds, got) => panic!("page {at:x} of thread {} in step {} must hold {holds:?}: {got:?}", self.name, self.step),
        }
    }

    /// Looks at a page whose content it does not know: another thread's at the fork.
    fn peek(&mut self) {
        let mapped = |kernel: &mut Kernel| {
            let readable = kernel.spaces[here()].vmas.range(BASE..OWN).filter(|(_, vma)| vma.prot & READ != 0);
            readable.map(|(_, vma)| (vma.start, vma.end)).collect::<Vec<_>>()
        };
        let mapped = self.world.kernel.enter(mapped);
        if mapped.is_empty() {
            return;
        }
        let (start, end) = self.rng.pick(&mapped);
        let at = start + self.rng.below((end - start) / PAGE) * PAGE;
        let got = self.world.call(Call::Read { at });
        tell(at, PAGE, || format!("child has seen {got:?}"));
        assert!(matches!(got, Outcome::Ok(_)), "page {at:x} of a child: {got:?}");
    }

    fn write(&mut self, at: usize) {
        if self.pages[&at].prot & 2 == 0 {
            return;
        }
        let byte = 1 + self.rng.below(255) as u8;
        tell(at, PAGE, || format!("program writes {byte}"));
        match self.call(Call::Write { at, byte }) {
            Outcome::Ok(_) => self.pages.get_mut(&at).expect("its own").holds = Holds::This(byte),
            Outcome::Signal(SIGBUS) if self.world.lossy.get() => {}
            other => panic!("a write of page {at:x} of thread {} in step {}: {other:?}", self.name, self.step),
        }
    }

    /// Changes the budget or the policy, or keeps a page in memory; then checks that everything adds up.
    fn whim(&mut self) {
        match self.rng.below(4) {
            0 => {
                let pages = LEAST_BUDGET + self.rng.below(LEAST_BUDGET as usize) as u32;
                self.say(format_args!("has {pages} pages of memory from now on"));
                let map = self.machine.map.read();
                map.set_limit(&mut self.machine.core.lock(), pages);
                self.machine.ring_daemon_anyway();
            }
            1 => {
                let policy = self.rng.pick(policy::NAMES);
                self.say(format_args!("is managed by {policy} from now on"));
                self.machine.set_policy(&policy.parse().expect("its name"));
            }
            2 => self.prepare_to_fork(),
            _ => self.keep(),
        }
        let resident = |at: &usize| Sim::is_resident(*at);
        assert!(self.kept.iter().all(resident), "a page has left that was to stay");
        let core = self.machine.core.lock();
        core.vm.check(self.world.objects.get());
        core.vm.pager().check();
    }

    /// As before a fork, after which both sides are to read what they have in common from the same slots. Compressed memory is
    /// copied at a fork, so nothing should be left there.
    fn prepare_to_fork(&mut self) {
        self.say(format_args!("is about to fork"));
        let (limit, began) = (self.machine.core.lock().vm.limit(), Sim::now_ns());
        self.machine.shrink(
            |_| limit,
            true,
            |map, core| {
                let packed = map.pool.as_ref().is_some_and(|pool| pool.can_write_back(core.vm.devices()));
                // unless it was in vain
                let gave_up = Sim::now_ns() - began > 500_000_000 || self.machine.shortage.stuck_since().is_some();
                assert!(!packed || gave_up || self.world.trouble.fails(), "pages are left in compressed memory");
                map.set_limit(core, limit);
            },
        );
    }

    /// The kernel takes pages of the program's out of memory.
    fn go_to_kernel_swap(&mut self) {
        let Some((at, len)) = self.stretch(48) else { return };
        self.say(format_args!("has {at:x} +{len} in the kernel's swap"));
        self.world.kernel.enter(|kernel| kernel.spaces[here()].swap_out(at, at + len * PAGE));
    }

    /// Has a page kept in memory.
    fn keep(&mut self) {
        let Some(at) = self.any() else { return };
        let managed = self.machine.map.read().ranges.overlap(at, at + PAGE, Kind::Managed).is_some();
        if managed && self.kept.len() < KEPT_MAX && self.machine.keep_in(at, at + PAGE) {
            self.say(format_args!("keeps {at:x}"));
            self.read(at);
            self.kept.extend(Sim::is_resident(at).then_some(at));
        }
    }

    fn touch(&mut self) {
        let Some(at) = self.any() else { return self.map() };
        if self.rng.below(2) == 0 { self.read(at) } else { self.write(at) }
    }

    /// Reads or writes many pages in order: all of them, or every second or third.
    fn sweep(&mut self) {
        let Some((at, len)) = self.stretch(48) else { return };
        let writes = self.rng.below(2) == 0;
        let step = self.rng.pick(&[1, 1, 2, 3]);
        self.say(format_args!("sweeps {at:x} +{len} by {step} {}", if writes { "writing" } else { "reading" }));
        for i in (0..len).step_by(step) {
            if writes { self.write(at + i * PAGE) } else { self.read(at + i * PAGE) }
        }
    }

    fn discard(&mut self, advice: Advice) {
        let Some((at, len)) = self.free_stretch(8 * self.habits.large) else { return };
        self.discard_range(at, len, advice);
        if self.rng.below(2) == 0 {
            let at = at + self.rng.below(len) * PAGE;
            self.write(at);
        }
    }

    fn discard_range(&mut self, at: usize, len: usize, advice: Advice) {
        self.forget_kept(at, len);
        self.say(format_args!("{advice:?} {at:x} +{len}"));
        tell(at, len * PAGE, || format!("program's {advice:?} {at:x} +{len}"));
        // (until the call returns, nobody can know the content)
        let call = |this: &mut Self| assert_eq!(this.call(Call::Advise { at, len: len * PAGE, advice }), Outcome::Ok(0));
        if (at / PAGE + len).is_multiple_of(4) {
            call(self); // by an instruction of its own
        } else {
            self.machine.begin_discard(at, at + len * PAGE);
            call(self);
            // what the page daemon was about to take stays charged until its next touch, or until the daemon tries it again
            let (_, busy) = self.absent_and_busy(at, len);
            self.machine.discard_done(at, at + len * PAGE);
            let (absent, _) = self.absent_and_busy(at, len);
            assert!(absent.is_subset(&busy), "discarded and still charged: {absent:x?}; only {busy:x?} were busy");
        }
        for i in 0..len {
            let page = self.pages.get_mut(&(at + i * PAGE)).expect("its own");
            page.holds = match (advice, page.holds) {
                (Advice::Free, Holds::This(byte) | Holds::OrZeroes(byte)) if byte != 0 => Holds::OrZeroes(byte),
                _ => Holds::This(0),
            };
        }
    }

    /// The active pages of the range that are absent, and those that are busy.
    fn absent_and_busy(&self, at: usize, len: usize) -> (BTreeSet<usize>, BTreeSet<usize>) {
        let map = self.machine.map.write();
        let core = self.machine.core.lock();
        let is_active = |addr: &usize| {
            let range = map.ranges.find(*addr).filter(|range| range.kind == Kind::Managed);
            range.map(|range| core.vm.page(range.page(*addr))).filter(|word| word.state() == State::Active && !word.wired())
        };
        let active = (at..at + len * PAGE).step_by(PAGE).filter_map(|addr| Some((addr, is_active(&addr)?)));
        let (busy, idle): (Vec<_>, Vec<_>) = active.partition(|(_, word)| word.busy());
        let addrs = |list: Vec<(usize, _)>| list.into_iter().map(|(addr, _)| addr);
        (addrs(idle).filter(|addr| !Sim::is_resident(*addr)).collect(), addrs(busy).collect())
    }

    fn protect(&mut self) {
        let Some((at, len)) = self.free_stretch(16) else { return };
        let prot = self.rng.pick(&[READ, READ_WRITE, READ_WRITE, 0]);
        self.protect_range(at, len, prot);
    }

    fn protect_range(&mut self, at: usize, len: usize, prot: u8) {
        self.say(format_args!("protects {at:x} +{len} {prot}"));
        tell(at, len * PAGE, || format!("program protects {at:x} +{len} {prot}"));
        assert_eq!(self.call(Call::Protect { at, len: len * PAGE, prot }), Outcome::Ok(0));
        (0..len).for_each(|i| self.pages.get_mut(&(at + i * PAGE)).expect("its own").prot = prot);
    }

    /// Makes memory writable, reads and writes it, and protects it again.
    fn flip(&mut self) {
        let Some((at, len)) = self.free_stretch(32) else { return self.map() };
        if self.rng.below(8) == 0 {
            self.discard_range(at, len, Advice::DontNeed);
        }
        self.protect_range(at, len, READ_WRITE);
        (0..len).for_each(|i| self.read(at + i * PAGE));
        if self.rng.below(8) == 0 {
            self.discard_range(at, len, Advice::Free);
        }
        (0..len).for_each(|i| self.write(at + i * PAGE));
        let prot = self.rng.pick(&[READ, READ, 0]);
        self.protect_range(at, len, prot);
    }

    fn place(&mut self) -> usize {
        self.base + self.rng.below(self.habits.arena) / 8 * 8 * PAGE
    }

    /// Maps memory at a free place, as if the kernel chose it.
    fn map(&mut self) {
        if self.pages.len() >= self.habits.pages {
            return self.unmap();
        }
        let len = 1 + self.rng.below(32);
        for _ in 0..8 {
            let at = self.place();
            let prot = READ_WRITE;
            if self.call(Call::Map { at, len: len * PAGE, prot, replace: false }) == Outcome::Ok(at) {
                self.say(format_args!("maps {at:x} +{len}"));
                self.hooks(0).new_range(Piece { start: at, end: at + len * PAGE, flags: Flags::NONE });
                (0..len).for_each(|i| _ = self.pages.insert(at + i * PAGE, Page::new(prot)));
                return;
            }
        }
    }

    fn unmap(&mut self) {
        if let Some((at, len)) = self.stretch(16 * self.habits.large) {
            self.unmap_range(at, len);
        }
    }

    fn unmap_range(&mut self, at: usize, len: usize) {
        self.forget_kept(at, len);
        self.say(format_args!("unmaps {at:x} +{len}"));
        let _going = Going::new(&self.world, len);
        let refused = self.is_sealed(at, len);
        if !refused {
            // from here on another thread may use the addresses
            (0..len).for_each(|i| _ = self.pages.remove(&(at + i * PAGE)));
        }
        let outcome = self.hooks(0).munmap(at, len * PAGE);
        assert_eq!(outcome, if refused { -(EPERM as isize) } else { 0 });
        if let Some(twin) = &mut self.twin {
            assert_eq!(answer(twin.call(Call::Unmap { at, len: len * PAGE })), outcome);
        }
    }

    /// Moves memory to a free place, or over pages of its own.
    fn remap(&mut self) {
        if self.twin.is_some() {
            return self.remap_any();
        }
        let most = if self.habits.returns > 0 { 2 } else { 16 * self.habits.large };
        let Some((from, len)) = self.free_stretch(most) else { return };
        let over = self.rng.below(3) == 0;
        let to = match self.stretch(1) {
            Some((at, _)) if over => at,
            _ => self.place(),
        };
        let overlaps = from < to + len * PAGE && to < from + len * PAGE;
        if over && (self.run_from(to) < len || self.is_sealed(to, len)) || overlaps {
            return;
        }
        let one =
            self.world.kernel.enter(|kernel| kernel.spaces[here()].find(from).is_some_and(|vma| from + len * PAGE <= vma.end));
        if !one {
            return;
        }
        let base = self.remap_to(from, len, to, MAY_MOVE | if over { FIXED } else { 0 });
        if self.habits.returns > 0 && self.rng.below(1000) < self.habits.returns {
            Sim::sleep_ns(self.rng.below(500_000) as u64);
            self.remap_to(base, len, from, MAY_MOVE);
        }
    }

    /// Moves memory to `to` or, if another thread has that by now, perhaps elsewhere. Returns where it is.
    fn remap_to(&mut self, from: usize, len: usize, to: usize, flags: usize) -> usize {
        let over = flags & FIXED != 0;
        let _going = Going::new(&self.world, 2 * len);
        self.forget_kept(from, len);
        self.forget_kept(to, len);
        // from here on another thread may use the old addresses
        let pages: Vec<Page> = (0..len).map(|i| self.pages.remove(&(from + i * PAGE)).expect("its own")).collect();
        let r = self.hooks(to).mremap(Mremap { old: from, old_len: len * PAGE, new_len: len * PAGE, flags, new: to });
        self.say(format_args!("moves {from:x} +{len} to {to:x}: {r:x}"));
        assert!(r > 0 || !over && r == -(ENOMEM as isize), "a move of {from:x} +{len} to {to:x}: {r}");
        let base = if r > 0 { r as usize } else { from };
        pages.iter().enumerate().for_each(|(i, page)| _ = self.pages.insert(base + i * PAGE, *page));
        base
    }

    /// Makes any mremap(2) that succeeds without a pager, also across gaps.
    fn remap_any(&mut self) {
        let Some(from) = self.any() else { return };
        let most = if self.rng.below(4) == 0 { 64 } else { self.run_from(from) };
        let len = 1 + self.rng.below(most.min(64));
        let (fixed, leaves) = (self.rng.below(2) == 0, self.rng.below(4) == 0);
        let new_len = if leaves || self.rng.below(2) == 0 { len } else { 1 + self.rng.below(len + 8) };
        let place = self.place();
        let to = match self.any() {
            Some(at) if self.rng.below(3) == 0 => at,
            _ => place,
        };
        let overlaps = fixed && from < to + new_len * PAGE && to < from + len * PAGE;
        if overlaps || self.pages.len() + new_len > self.habits.pages + len {
            return;
        }
        let flags = if self.rng.below(4) == 0 && !fixed && !leaves { 0 } else { MAY_MOVE };
        let flags = flags | if fixed { FIXED } else { 0 } | if leaves { LEAVES } else { 0 };
        let _going = Going::new(&self.world, len + new_len);
        let call = Mremap { old: from, old_len: len * PAGE, new_len: new_len * PAGE, flags, new: to };
        let r = self.mremap(self.hooks(place), call);
        self.say(format_args!("mremap {from:x} +{len} to {new_len} {flags:x} {to:x}: {r:x?}"));
        let Some(r) = r.map(|r| r as usize) else { return };
        self.forget_kept(from, len);
        self.forget_kept(r, new_len);
        let pages: Vec<Option<Page>> = (0..len).map(|i| self.pages.remove(&(from + i * PAGE))).collect();
        let grown = pages[len.min(new_len) - 1].map(|page| Page::new(page.prot));
        let there = pages.iter().copied().chain(std::iter::repeat(grown)).take(new_len).enumerate();
        self.pages.extend(there.filter_map(|(i, page)| Some((r + i * PAGE, page?))));
        if leaves {
            let left = pages.iter().enumerate().filter_map(|(i, page)| Some((from + i * PAGE, Page::new((*page)?.prot))));
            self.pages.extend(left);
        }
    }

    /// Grows memory in place.
    fn grow(&mut self) {
        let Some(at) = self.any() else { return };
        let len = self.run_from(at);
        let more = 1 + self.rng.below(8);
        if self.pages.len() + more > self.habits.pages {
            return;
        }
        let _going = Going::new(&self.world, len);
        let call = Mremap { old: at, old_len: len * PAGE, new_len: (len + more) * PAGE, flags: 0, new: 0 };
        let r = self.mremap(Hooks { moves: false, ..self.hooks(0) }, call);
        self.say(format_args!("grows {at:x} +{len} by {more}: {r:x?}"));
        if r == Some(at as isize) {
            let prot = self.pages[&(at + (len - 1) * PAGE)].prot;
            (len..len + more).for_each(|i| _ = self.pages.insert(at + i * PAGE, Page::new(prot)));
        }
    }
}

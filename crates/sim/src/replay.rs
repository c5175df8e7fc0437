//! A recorded reference string on the simulated machine: one thread, every action done at once, so that the decisions are a
//! function of string, configuration and core alone. The Linux machine in stepped mode must come to the same ones.
//!
//! The order, which both machines keep:
//!
//! 1. For each reference: if the page is not mapped, fault; perform the action; if it is still not mapped, fault again.
//! 2. Zero fill: all its pages are mapped, in order. Restore: the page is mapped, then `ahead`, if any, is read.
//! 3. A read ends at once: all pages to their places in order (mapped, or parked where the core says so), then the next window that
//!    the core has answered with, if any, is read in the same way.
//! 4. After each fault, if `wants_daemon()`: daemon steps until `demand().is_none()`, or until a step achieves nothing. A step is
//!    `reclaim_batch(min(reclaim, 64))`; else `launder_batch(min(launder, 64))`, looked at and written in the order of page ids,
//!    the writes ending at once in that order; else `park_batch(min(park, 64))`, all parked, reported in the order of page ids.
//!    `NoMemory` runs the same steps; if the fault then says so again, it is repeated above the budget.
//!
//! A write gives a page new content each time; a page only read keeps its content (zero, if it was never written).

use overspill_swap::SwapPager;
use overspill_vm::pager::IoResult;
use overspill_vm::policy::Spec;
use overspill_vm::types::{ContentHash, FrameId, ObjectId, PAGE_SHIFT, PageId, Slot};
use overspill_vm::{
    CLUSTER_PAGES_MAX, Config, Decision, Fault, Filled, Laundry, Look, MEMORY_BYTES_MIN, Member, PageIn, Parked, Place, Vm,
};
use std::collections::{HashMap, VecDeque};

/// The most pages of a daemon step.
const STEP_PAGES_MAX: u32 = 64;

/// What a read takes that nobody waits for, in references.
const READ_REFERENCES: u64 = 32;
/// What the daemon does beside a fault or such a read: it moves so many runs of neighbouring pages, or looks at four times, drops
/// eight times as many. With 12 to 16 six policies have within 8 % as many hard faults on one program as live, and within 19 % as
/// many soft ones (docs/LAB-FAULTS.md); with half of it a scan has to wait for frames.
const MOVES: i32 = 16;

/// How a string is replayed.
#[derive(Clone, Debug)]
pub struct ReplayConfig {
    /// The budget in pages; below the core's minimum it is set afterwards, as after a fork.
    pub memory_pages: u32,
    /// Pages are `0..pages` of one object, in one mapping.
    pub pages: u64,
    /// Replacement policy.
    pub policy: Spec,
    /// The most pages read by one fault; `None`: the core's default for `memory_pages`.
    pub readahead_pages_max: Option<u32>,
    /// The most pages filled by one first touch; `None`: the core's default for `memory_pages`.
    pub zero_ahead_pages_max: Option<u32>,
    /// Slots of the swap device.
    pub slots: u32,
    /// Pages of the budget that the machine keeps for its own buffers.
    pub charged_pages: u32,
    /// Reads that nobody waits for and the page daemon go on beside the program, as live: such a read ends some references later,
    /// or when its pages are touched; the rest of a window is read with it; and the daemon does a little at each fault and each
    /// such read. Else everything is done at once, and each read alone, as by a machine that is stepped by hand.
    pub beside: bool,
    /// The most decisions that are remembered.
    pub decisions_max: usize,
}

impl ReplayConfig {
    /// The defaults: swap for everything, all decisions of a string of some ten million references.
    pub fn new(memory_pages: u32, pages: u64) -> Self {
        ReplayConfig {
            memory_pages,
            pages,
            policy: Spec::default(),
            readahead_pages_max: None,
            zero_ahead_pages_max: None,
            slots: u32::try_from(pages).unwrap_or(u32::MAX).saturating_add(1024),
            charged_pages: 0,
            beside: false,
            decisions_max: 1 << 20,
        }
    }
}

/// Replays `references` (page, whether it is written) and returns what the core decided.
///
/// # Panics
/// If the configuration is no good, a page lies outside it, or a page reads wrong.
///
/// ```
/// use overspill_sim::{ReplayConfig, replay};
/// use overspill_vm::Decision;
///
/// let string: Vec<(u64, bool)> = (0..6000).map(|page| (page, true)).collect();
/// let decisions = replay(&string, &ReplayConfig::new(2048, 6000));
/// assert!(decisions.iter().any(|d| matches!(d, Decision::Write(_))));
/// ```
pub fn replay(references: &[(u64, bool)], config: &ReplayConfig) -> Vec<Decision> {
    run(references.iter().copied(), config).vm.decisions().to_vec()
}

/// What the core counted in a replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReplayCounts {
    /// Faults that were answered with fresh pages.
    pub first_touches: u64,
    /// Faults on inactive pages.
    pub soft_faults: u64,
    /// Faults that had to read.
    pub hard_faults: u64,
    /// Pages read from the device, those of readahead among them.
    pub pages_in: u64,
    /// Reads that brought them.
    pub page_in_ops: u64,
    /// Pages written to the device.
    pub pages_out: u64,
    /// Pages read ahead.
    pub readahead: u64,
    /// Those whose frames were taken before their first use. (A live pager sees a use only where it is a fault; here all are
    /// known.)
    pub readahead_lost: u64,
}

/// As [`replay`], for strings of any length: nothing is remembered of them but what the core counted.
///
/// # Panics
/// As [`replay`].
pub fn replay_counts(references: impl IntoIterator<Item = (u64, bool)>, config: &ReplayConfig) -> ReplayCounts {
    let machine = run(references, &ReplayConfig { decisions_max: 0, ..config.clone() });
    let counters = machine.vm.counters();
    ReplayCounts {
        first_touches: counters.zero_fills.get() - counters.zero_ahead_pages.get(),
        soft_faults: counters.soft_faults.get(),
        hard_faults: counters.hard_faults.get(),
        pages_in: counters.pages_in.get(),
        page_in_ops: counters.page_in_ops.get(),
        pages_out: counters.pages_out.get(),
        readahead: counters.readahead_pages.get(),
        readahead_lost: machine.lost_ahead,
    }
}

fn run(references: impl IntoIterator<Item = (u64, bool)>, config: &ReplayConfig) -> Stepped {
    let least = (MEMORY_BYTES_MIN >> PAGE_SHIFT) as u32;
    let mut core = Config {
        policy: config.policy,
        decisions_max: config.decisions_max,
        ..Config::new(config.memory_pages.max(least), config.pages)
    };
    core.readahead_pages_max = config.readahead_pages_max.unwrap_or(core.readahead_pages_max);
    core.zero_ahead_pages_max = config.zero_ahead_pages_max.unwrap_or(core.zero_ahead_pages_max);
    let pager =
        SwapPager::new(overspill_swap::Config { pages_max: config.pages, slots_max: config.slots, devices_max: 1, extents_max: 0 });
    let mut vm = Vm::new(core, pager, Box::leak(Box::default())).expect("a good configuration");
    vm.set_limit(config.memory_pages);
    vm.charge(config.charged_pages);
    let mut machine = Stepped {
        pages: config.pages,
        mapped: vec![None; config.pages as usize],
        expected: vec![0; config.pages as usize],
        parked: HashMap::new(),
        stored: HashMap::new(),
        batch: Vec::with_capacity(STEP_PAGES_MAX as usize),
        unused: vec![false; config.pages as usize],
        lost_ahead: 0,
        beside: config.beside,
        now: 0,
        under_way: VecDeque::new(),
        vm,
    };
    for (page, write) in references {
        machine.now += 1;
        machine.reference(page, write.then_some(machine.now));
    }
    while machine.arrive_next() {}
    machine
}

/// The hash that stands for a page's content: different contents never agree, nor do different pages.
fn hash(page: PageId, value: u64) -> ContentHash {
    ContentHash::new(page, value as u128, 0)
}

struct Stepped {
    pages: u64,
    vm: Vm<SwapPager>,
    mapped: Vec<Option<u64>>,
    expected: Vec<u64>,
    parked: HashMap<FrameId, u64>,
    stored: HashMap<Slot, u64>,
    batch: Vec<Member>,
    /// Read, and not referenced since.
    unused: Vec<bool>,
    /// See [`ReplayCounts::readahead_lost`].
    lost_ahead: u64,
    /// See [`ReplayConfig::beside`].
    beside: bool,
    /// References so far.
    now: u64,
    /// Reads that nobody waited for when they began, and when they end.
    under_way: VecDeque<(u64, PageIn)>,
}

impl Stepped {
    fn reference(&mut self, page: u64, write: Option<u64>) {
        while self.under_way.front().is_some_and(|(due, _)| *due <= self.now) {
            self.arrive_next();
        }
        let mut over_budget = false;
        while self.mapped[page as usize].is_none() {
            let again = self.fault(page, over_budget);
            if self.vm.wants_daemon() {
                self.run_daemon();
            }
            assert!(!(again && over_budget), "no frame for page {page}, not even above the budget");
            over_budget = again && self.vm.available() == 0;
        }
        self.unused[page as usize] = false;
        let found = self.mapped[page as usize].expect("it is mapped");
        assert_eq!(found, self.expected[page as usize], "page {page} reads wrong");
        if let Some(new) = write {
            self.mapped[page as usize] = Some(new);
            self.expected[page as usize] = new;
        }
    }

    /// Returns whether there was no memory.
    fn fault(&mut self, at: u64, over_budget: bool) -> bool {
        let page = PageId::new(ObjectId(0), at);
        match self.vm.fault(page, 0..self.pages, over_budget) {
            Fault::Mapped => self.map(page, 0),
            Fault::Restore { frame, ahead } => {
                let value = self.parked.remove(&frame).expect("it is parked");
                self.map(page, value);
                self.vm.restore_done(page, Filled::Mapped);
                self.read(ahead);
            }
            Fault::ZeroFill { first, count } => {
                for i in 0..count as u64 {
                    self.map(first.offset(i), 0);
                    self.vm.fill_done(first.offset(i), Filled::Mapped);
                }
            }
            Fault::PageIn(op) => self.read(Some(op)),
            Fault::NoMemory => return true,
            Fault::Busy => self.await_page(page),
            Fault::Lost | Fault::TableFull => unreachable!("nothing fails"),
        }
        false
    }

    fn map(&mut self, page: PageId, value: u64) {
        let old = self.mapped[page.index() as usize].replace(value);
        assert!(old.is_none(), "{page:?} is mapped already");
    }

    /// Begins to read `op`; what was touched arrives at once, since the program does nothing meanwhile.
    fn read(&mut self, op: Option<PageIn>) {
        let mut next = op;
        while let Some(op) = next {
            next = if self.beside {
                self.under_way.push_back((self.now + READ_REFERENCES, op));
                self.vm.read_more(&op, 0..self.pages)
            } else {
                self.arrive(&op)
            };
        }
        if let Some(at) = op.and_then(|op| Some(op.page(op.touched()?))) {
            self.await_page(at);
        }
    }

    fn await_page(&mut self, page: PageId) {
        while self.vm.page(page).busy() {
            assert!(self.arrive_next(), "nothing is under way with {page:?}");
        }
    }

    /// The oldest read ends. Returns `false` if none is under way.
    fn arrive_next(&mut self) -> bool {
        let Some((_, op)) = self.under_way.pop_front() else { return false };
        let next = self.arrive(&op);
        self.read(next);
        if op.touched().is_none() && self.vm.wants_daemon() {
            self.run_daemon();
        }
        true
    }

    /// What was read is there. => what is to be read next
    fn arrive(&mut self, op: &PageIn) -> Option<PageIn> {
        let mut places = [Place::Discard; CLUSTER_PAGES_MAX];
        let stored = &self.stored;
        let value = |i: u32| stored[&Slot(op.slot.0 + i)];
        let check = |i, expected| if hash(op.page(i), value(i)) == expected { IoResult::Ok } else { IoResult::Corrupt };
        let next = self.vm.page_in_arrived(op, 0..self.pages, check, &mut places);
        for i in 0..op.count {
            let (page, value) = (op.page(i), self.stored[&Slot(op.slot.0 + i)]);
            let filled = match places[i as usize] {
                Place::Map => {
                    self.map(page, value);
                    Filled::Mapped
                }
                Place::Park(frame) => {
                    self.parked.insert(frame, value);
                    Filled::Parked
                }
                Place::Discard if !op.wants(i) => continue,
                Place::Discard | Place::Lost => unreachable!("nothing is released, and nothing fails"),
            };
            self.unused[page.index() as usize] = true; // that which was touched is referenced next
            self.vm.page_in_done(page, filled);
        }
        next
    }

    /// All that there is to do; beside the program [`MOVES`].
    fn run_daemon(&mut self) {
        let mut moves = if self.beside { MOVES } else { i32::MAX };
        while moves > 0 {
            let demand = self.vm.demand();
            let worked = if demand.reclaim > 0 {
                let n = demand.reclaim.min(STEP_PAGES_MAX);
                moves -= n as i32 / 8;
                self.reclaim(n)
            } else if demand.launder > 0 {
                let n = demand.launder.min(STEP_PAGES_MAX);
                moves -= n as i32 / 4;
                self.launder(n)
            } else if demand.park > 0 {
                let worked = self.park(demand.park.min(STEP_PAGES_MAX).min(moves as u32));
                moves -= self.batch.chunk_by(|a, b| a.0.offset(1) == b.0).count() as i32;
                worked
            } else {
                return;
            };
            if !worked {
                return;
            }
        }
    }

    fn reclaim(&mut self, most: u32) -> bool {
        self.vm.reclaim_batch(most, &mut self.batch);
        for (page, frame) in &self.batch {
            self.parked.remove(frame).expect("it is parked");
            self.lost_ahead += u64::from(std::mem::take(&mut self.unused[page.index() as usize]));
        }
        self.vm.frames_dropped(self.batch.iter().map(|m| m.1));
        !self.batch.is_empty()
    }

    fn launder(&mut self, most: u32) -> bool {
        let mut batch = Vec::with_capacity(STEP_PAGES_MAX as usize);
        self.vm.launder_batch(most, &mut batch);
        batch.sort_unstable_by_key(|laundry| laundry.page);
        let mut worked = false;
        let mut writes = Vec::new();
        for Laundry { page, frame, .. } in batch {
            let value = self.parked[&frame];
            match self.vm.launder_look(page, value == 0, hash(page, value)) {
                Look::Drop(frame) => {
                    self.parked.remove(&frame);
                    self.vm.frames_dropped(std::iter::once(frame));
                    worked = true;
                }
                Look::Settled => worked = true,
                Look::Write => writes.push((page, value)),
            }
        }
        let mut at = 0;
        while at < writes.len() {
            let Some(run) = self.vm.launder_slots((writes.len() - at) as u32, writes[at].0) else { break };
            self.vm.launder_issued(run.count);
            for i in 0..run.count {
                let (slot, (page, value)) = (Slot(run.first.0 + i), writes[at]);
                self.stored.insert(slot, value);
                self.vm.launder_done(page, Some(slot), hash(page, value), IoResult::Ok);
                at += 1;
            }
            worked = true;
        }
        for &(page, value) in &writes[at..] {
            self.vm.launder_done(page, None, hash(page, value), IoResult::NoSpace);
        }
        worked
    }

    fn park(&mut self, most: u32) -> bool {
        self.vm.park_batch(most, &mut self.batch);
        self.batch.sort_unstable();
        for i in 0..self.batch.len() {
            let (page, frame) = self.batch[i];
            let value = self.mapped[page.index() as usize].take().expect("it is mapped");
            self.parked.insert(frame, value);
            self.vm.park_done(page, Parked::Yes);
        }
        !self.batch.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// The same string gives the same decisions, under every policy, and something of every kind.
    #[test]
    fn decisions_are_a_function_of_the_string() {
        let mut rng = Rng::new(1);
        let mut string: Vec<(u64, bool)> = (0..3000).map(|p| (p, p % 3 != 0)).collect();
        string.extend((0..10_000).map(|_| (rng.below(rng.clone().below(3000) + 1), rng.chance(300))));
        string.extend((0..3000).map(|p| (p, false)));
        for policy in overspill_vm::policy::NAMES {
            let config = ReplayConfig { policy: Spec::named(policy).expect("known"), ..ReplayConfig::new(600, 3000) };
            let decisions = replay(&string, &config);
            assert_eq!(decisions, replay(&string, &config));
            let kinds = [
                ("zero fill", decisions.iter().any(|d| matches!(d, Decision::ZeroFill(..)))),
                ("page in", decisions.iter().any(|d| matches!(d, Decision::PageIn(..)))),
                ("park", decisions.iter().any(|d| matches!(d, Decision::Park(_)))),
                ("restore", decisions.iter().any(|d| matches!(d, Decision::Restore(_)))),
                ("clean", decisions.iter().any(|d| matches!(d, Decision::Clean(_)))),
                ("drop zero", decisions.iter().any(|d| matches!(d, Decision::DropZero(_)))),
                ("write", decisions.iter().any(|d| matches!(d, Decision::Write(_)))),
                ("reclaim", decisions.iter().any(|d| matches!(d, Decision::Reclaim(_)))),
            ];
            for (name, seen) in kinds {
                // under fifo no more than a batch is inactive, so nothing is touched while inactive here
                assert!(seen || (policy, name) == (&"fifo", "restore"), "{policy}: no {name}");
            }
        }
    }

    /// Pages that are in memory and have changed need no slot. When a page was read, changed and parked, the slot of its old
    /// content was kept until the new content had another; with all slots taken there was no other, and the budget gave way
    /// although half of the slots held nothing that anyone could want.
    #[test]
    fn stale_copies_do_not_fill_the_device() {
        let string: Vec<(u64, bool)> = (0..4500).map(|n| (n % 900, true)).collect();
        let machine =
            run(string.iter().copied(), &ReplayConfig { slots: 460, readahead_pages_max: Some(1), ..ReplayConfig::new(600, 900) });
        assert_eq!(machine.vm.counters().over_budget.get(), 0);
    }

    /// Memory and swap add up: every page holds a content of its own, and they are nearly as many as frames and slots together.
    /// What is missing is the page daemon's reserve, [`Vm::free_high`], and the cluster that it has under way.
    #[test]
    fn memory_and_swap_add_up() {
        let (memory, slots) = (2048, 3000);
        let change = (memory / 64) * 2 + STEP_PAGES_MAX;
        let fits = u64::from(memory + slots - change);
        let mut rng = Rng::new(3);
        for (pages, enough) in [(fits, true), (fits + u64::from(2 * change), false)] {
            let mut string: Vec<(u64, bool)> = (0..pages).map(|page| (page, true)).collect();
            string.extend((0..30_000).map(|_| (rng.below(pages), rng.chance(500))));
            let machine = run(string.iter().copied(), &ReplayConfig { slots, ..ReplayConfig::new(memory, pages) });
            assert_eq!(machine.vm.counters().over_budget.get() == 0, enough, "{pages} pages");
        }
    }

    /// Swap that is too small: the budget gives way, and nothing is lost.
    #[test]
    fn a_full_device_ends() {
        let string: Vec<(u64, bool)> = (0..2000).map(|n| (n % 900, true)).collect();
        replay(&string, &ReplayConfig { slots: 100, ..ReplayConfig::new(600, 900) });
    }
}

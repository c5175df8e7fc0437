//! Replays a recorded reference string through the machine's own code: one thread, on a kernel without surprises ([`flat`]). So the
//! decisions depend only on the string, the configuration and the code. The Linux machine in stepped mode must make the same
//! decisions.
//!
//! 1. For each reference: while the page is not mapped, its fault is served.
//! 2. A read ends at once. Then the next window, if the core has answered with one, is read in the same way.
//! 3. After each fault, if `wants_daemon()`: the page daemon makes steps of at most [`STEP_PAGES_MAX`] pages until one achieves
//!    nothing. If the answer is `NoMemory` even then, the fault is served above the budget.
//!
//! With [`ReplayConfig::alongside`] reads take time, and the daemon does only a part of this.
//!
//! A write gives a page new content each time. A page that is only read keeps its content (zero, if it was never written).

mod flat;

use crate::kernel::Nothing;
use flat::{Flat, FlatFile, FlatUffd, Words};
use overspill_machine::daemon::{self, Daemon, Step};
use overspill_machine::files::DEVICES_MAX;
use overspill_machine::inject::Inject;
use overspill_machine::machine::{self, Delivery, Parts};
use overspill_machine::ranges::{self, Flags, Range};
use overspill_machine::serve::Served;
use overspill_machine::space::Read;
use overspill_machine::{Kernel as _, Machine, reader};
use overspill_store::PageBytes;
use overspill_swap::SwapPager;
use overspill_vm::page::State;
use overspill_vm::policy::Spec;
use overspill_vm::status::Status;
use overspill_vm::types::{ObjectId, PAGE_SHIFT, PAGE_SIZE, PageId};
use overspill_vm::{CLUSTER_PAGES_MAX, Config, Decision, Demand, MEMORY_BYTES_MIN, Vm};
use std::collections::VecDeque;

/// The most pages of a daemon step.
const STEP_PAGES_MAX: u32 = 64;

/// How long a read takes that nobody waits for, in references.
const READ_REFERENCES: u64 = 32;
/// The daemon's work alongside a fault or such a read: it moves this many runs of neighbouring pages, or compares four times as
/// many pages, or drops eight times as many. With 12 to 16, the hard faults of six policies on one program are within 8 % of the
/// live ones, and the soft faults within 19 % (docs/LAB-FAULTS.md). With half of that, a scan has to wait for frames.
const MOVES: i32 = 16;

/// The settings of a replay.
#[derive(Clone, Debug)]
pub struct ReplayConfig {
    /// The budget in pages. If it is below the core's minimum, it is set afterwards, as after a fork.
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
    /// Reads that nobody waits for, and the page daemon, go on alongside the program, as live. Such a read ends some references
    /// later, or when its pages are touched. The rest of a window is read with it. The daemon does a little at each fault and each
    /// such read. Without this everything is done at once, and each read alone, as by a machine that is stepped by hand.
    pub alongside: bool,
    /// The kernel tells references: pages are watched before they are parked.
    pub references: bool,
    /// The most decisions that are kept.
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
            alongside: false,
            references: false,
            decisions_max: 1 << 20,
        }
    }
}

/// Replays `references` (page, whether it is written) and returns the core's decisions.
///
/// # Panics
/// If the configuration is invalid, a page lies outside it, or a page reads wrong.
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
    run(references.iter().copied(), config).machine.core.lock().vm.decisions().to_vec()
}

/// The core's counts in a replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReplayCounts {
    /// Faults that were answered with fresh pages.
    pub first_touches: u64,
    /// Faults on inactive pages.
    pub soft_faults: u64,
    /// Pages that the kernel was asked to watch.
    pub watched: u64,
    /// Those that it told to have been used.
    pub references: u64,
    /// Pages taken out of the program's sight.
    pub parked: u64,
    /// Faults that had to read.
    pub hard_faults: u64,
    /// Pages read from the device, including readahead.
    pub pages_in: u64,
    /// Reads of those pages.
    pub page_in_ops: u64,
    /// Pages written to the device.
    pub pages_out: u64,
    /// Pages read ahead.
    pub readahead: u64,
    /// Pages read ahead whose frames were taken before their first use. (A live pager sees a use only if it is a fault; here every
    /// use is known.)
    pub readahead_lost: u64,
}

/// As [`replay`], for strings of any length: only the core's counts are kept.
///
/// # Panics
/// As [`replay`].
pub fn replay_counts(references: impl IntoIterator<Item = (u64, bool)>, config: &ReplayConfig) -> ReplayCounts {
    let replay = run(references, &ReplayConfig { decisions_max: 0, ..config.clone() });
    let counters = &replay.machine.status.counters;
    ReplayCounts {
        first_touches: counters.zero_fills.get() - counters.zero_ahead_pages.get(),
        soft_faults: counters.soft_faults.get(),
        watched: counters.pages_watched.get(),
        references: counters.references_seen.get(),
        parked: counters.pages_parked.get(),
        hard_faults: counters.hard_faults.get(),
        pages_in: counters.pages_in.get(),
        page_in_ops: counters.page_in_ops.get(),
        pages_out: counters.pages_out.get(),
        readahead: counters.readahead_pages.get(),
        readahead_lost: replay.lost_ahead(),
    }
}

fn run(references: impl IntoIterator<Item = (u64, bool)>, config: &ReplayConfig) -> Replay {
    let mut replay = Replay::new(config);
    for (page, write) in references {
        replay.now += 1;
        replay.reference(page, write.then_some(replay.now));
    }
    while replay.arrive_next() {}
    replay
}

/// A page of a buffer.
#[derive(Clone)]
#[repr(align(4096))]
struct Page(#[allow(dead_code)] PageBytes);

struct Replay {
    machine: Machine<Flat>,
    daemon: Daemon<Flat>,
    buffer: Vec<Page>,
    expected: Vec<u64>,
    /// Pages that were read, and not referenced since.
    unused: Vec<bool>,
    /// The part of [`ReplayCounts::readahead_lost`] that was read again.
    lost_ahead: u64,
    /// See [`ReplayConfig::alongside`].
    alongside: bool,
    /// References so far.
    now: u64,
    /// Reads that nobody waited for when they began, and the times when they end.
    under_way: VecDeque<(u64, Read)>,
}

impl Replay {
    fn new(config: &ReplayConfig) -> Self {
        flat::clear(config.references);
        let least = (MEMORY_BYTES_MIN >> PAGE_SHIFT) as u32;
        let mut core = Config {
            policy: config.policy,
            decisions_max: config.decisions_max,
            ..Config::new(config.memory_pages.max(least), config.pages)
        };
        core.readahead_pages_max = config.readahead_pages_max.unwrap_or(core.readahead_pages_max);
        core.zero_ahead_pages_max = config.zero_ahead_pages_max.unwrap_or(core.zero_ahead_pages_max);
        let swap = overspill_swap::Config { pages_max: config.pages, slots_max: config.slots, devices_max: 1, extents_max: 0 };
        let status: &'static Status = Box::leak(Box::default());
        let mut vm = Vm::new(core, SwapPager::new(swap), &status.counters).expect("a good configuration");
        vm.set_limit(config.memory_pages);
        vm.charge(config.charged_pages);
        let mut files = [const { None }; DEVICES_MAX];
        files[0] = Some(FlatFile(u64::from(config.slots) << PAGE_SHIFT));
        let parts = Parts {
            vm,
            config: machine::Config {
                delivery: Delivery::InThread,
                follows_pointers: false,
                finds_grown: false,
                load_control: false,
                writes: daemon::writes(config.memory_pages, false),
            },
            content: Words,
            inject: Inject::default(),
            host: Nothing,
            status,
            program: FlatUffd,
            parking: FlatUffd,
            process: (),
            files,
            names: Box::default(),
            pool: None,
            memory_pages: config.memory_pages,
            ranges_max: ranges::ranges_max(1, config.pages),
            objects_max: 1,
        };
        let machine = Machine::new(parts).expect("memory");
        let (start, end) = (flat::PROGRAM, flat::PROGRAM + ((config.pages as usize) << PAGE_SHIFT));
        let mut map = machine.map.write();
        map.origins[0] = start;
        machine.manage(&mut map, Range { start, end, origin: start, ..Range::of_program(Flags::NONE) });
        drop(map);
        Replay {
            daemon: Daemon::new(&machine, ()).expect("memory"),
            machine,
            buffer: vec![Page([0; PAGE_SIZE]); CLUSTER_PAGES_MAX],
            expected: vec![0; config.pages as usize],
            unused: vec![false; config.pages as usize],
            lost_ahead: 0,
            alongside: config.alongside,
            now: 0,
            under_way: VecDeque::new(),
        }
    }

    fn reference(&mut self, page: u64, write: Option<u64>) {
        while self.under_way.front().is_some_and(|(due, _)| *due <= self.now) {
            self.arrive_next();
        }
        let found = loop {
            match flat::touch(page, write) {
                Some(found) => break found,
                None => self.fault(page),
            }
        };
        self.unused[page as usize] = false;
        let expected = &mut self.expected[page as usize];
        assert_eq!(found, *expected, "page {page} reads wrong");
        *expected = write.unwrap_or(found);
    }

    fn fault(&mut self, at: u64) {
        let served = self.machine.serve(flat::PROGRAM + ((at as usize) << PAGE_SHIFT), 0, false);
        self.machine.drop_places(&self.machine.map.read(), true);
        match served {
            Served::Done | Served::NoMemory => {}
            Served::Read(read) | Served::DoneReadAhead(read, _) => self.read(Some(read)),
            Served::Busy => self.await_page(PageId::new(ObjectId(0), at)),
            Served::Held | Served::Lost | Served::NotOurs | Served::Refused => unreachable!("nothing fails"),
        }
        self.run_daemon();
        let starved = served == Served::NoMemory && self.machine.core.lock().vm.room() == 0;
        let was = self.machine.shortage.is_starved();
        self.machine.shortage.set_starved(starved);
        assert!(!(starved && was), "no frame for page {at}, not even above the budget");
    }

    /// Begins a read. A touched page arrives at once, because the program does nothing meanwhile.
    fn read(&mut self, first: Option<Read>) {
        let mut next = first;
        while let Some(read) = next {
            next = if self.alongside {
                self.under_way.push_back((self.now + READ_REFERENCES, read));
                reader::read_more(&self.machine, &read.op)
            } else {
                self.arrive(&read)
            };
        }
        if let Some(at) = first.and_then(|Read { op, .. }| Some(op.page(op.touched()?))) {
            self.await_page(at);
        }
    }

    fn await_page(&mut self, page: PageId) {
        while self.machine.core.lock().vm.page(page).busy() {
            assert!(self.arrive_next(), "nothing is under way with {page:?}");
        }
    }

    /// Ends the oldest read. Returns `false` if none is under way.
    fn arrive_next(&mut self) -> bool {
        let Some((_, read)) = self.under_way.pop_front() else { return false };
        let next = self.arrive(&read);
        self.read(next);
        if read.op.touched().is_none() {
            self.run_daemon();
        }
        true
    }

    /// The pages of a read have arrived. Returns the next read.
    fn arrive(&mut self, read: &Read) -> Option<Read> {
        let (op, buffer) = (&read.op, self.buffer.as_mut_ptr().cast());
        for i in (0..op.count).filter(|i| op.wants(*i)) {
            // the touched page is referenced next
            let unused = std::mem::replace(&mut self.unused[op.page(i).index() as usize], true);
            self.lost_ahead += u64::from(unused);
        }
        let len = (op.count as usize) << PAGE_SHIFT;
        // SAFETY: the buffer has room for every read, and is used by one at a time.
        unsafe {
            let done = Flat::read_now(read.fd, buffer, len, op.location.offset);
            reader::arrived(&self.machine, read, buffer, Flat::now_ns(), done, |_, next| Some(next)).next
        }
    }

    /// Lets the page daemon do all its work; alongside the program only [`MOVES`].
    fn run_daemon(&mut self) {
        let machine = &self.machine;
        if !machine.core.lock().vm.wants_daemon() {
            return;
        }
        let mut moves = if self.alongside { MOVES } else { i32::MAX };
        while moves > 0 {
            let demand = machine.core.lock().vm.demand();
            let parks = demand.reclaim + demand.launder == 0;
            let most = if parks { STEP_PAGES_MAX.min(moves as u32) } else { STEP_PAGES_MAX };
            if self.daemon.step_of(machine, most) != Step::Worked {
                return;
            }
            self.daemon.settle(machine);
            let runs = flat::take_runs();
            moves -= match demand {
                _ if parks => runs,
                Demand { reclaim: 0, launder, .. } => (launder.min(most) / 4) as i32,
                Demand { reclaim, .. } => (reclaim.min(most) / 8) as i32,
            };
            if parks && runs == 0 {
                return;
            }
        }
    }

    /// Pages that were read ahead and reclaimed before their first use.
    fn lost_ahead(&self) -> u64 {
        let core = self.machine.core.lock();
        let lost = |page| core.vm.page(PageId::new(ObjectId(0), page)).state() == State::PagedOut;
        let unused = self.unused.iter().zip(0..).filter(|(unused, page)| **unused && lost(*page));
        self.lost_ahead + unused.count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_simkernel::rng::Rng;

    /// The same string gives the same decisions under every policy, and decisions of every kind.
    #[test]
    fn decisions_are_a_function_of_the_string() {
        let mut rng = Rng::new(1);
        let mut string: Vec<(u64, bool)> = (0..3000).map(|p| (p, p % 3 != 0)).collect();
        string.extend((0..10_000).map(|_| (rng.below(rng.clone().below(3000) + 1) as u64, rng.below(10) < 3)));
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
                // under fifo no more than a batch is inactive, so no inactive page is touched here
                assert!(seen || (policy, name) == (&"fifo", "restore"), "{policy}: no {name}");
            }
        }
    }

    /// Pages that are in memory and have changed need no slot. When a page was read, changed and parked, it once kept the slot of
    /// its old content until its new content had another. With all slots taken there was no other, and faults went above the budget
    /// although half of the slots held nothing that anyone could want.
    #[test]
    fn stale_copies_do_not_fill_the_device() {
        let string: Vec<(u64, bool)> = (0..4500).map(|n| (n % 900, true)).collect();
        let replay =
            run(string.iter().copied(), &ReplayConfig { slots: 460, readahead_pages_max: Some(1), ..ReplayConfig::new(600, 900) });
        assert_eq!(replay.machine.status.counters.over_budget.get(), 0);
    }

    /// Memory and swap add up. Every page holds a content of its own, and there are nearly as many pages as frames and slots
    /// together. The difference is the page daemon's reserve, [`Vm::free_high`], and the cluster that it has under way.
    #[test]
    fn memory_and_swap_add_up() {
        let (memory, slots) = (2048, 3000);
        let change = (memory / 64) * 2 + STEP_PAGES_MAX;
        let fits = u64::from(memory + slots - change);
        let mut rng = Rng::new(3);
        for (pages, enough) in [(fits, true), (fits + u64::from(2 * change), false)] {
            let mut string: Vec<(u64, bool)> = (0..pages).map(|page| (page, true)).collect();
            string.extend((0..30_000).map(|_| (rng.below(pages as usize) as u64, rng.below(2) == 0)));
            let replay = run(string.iter().copied(), &ReplayConfig { slots, ..ReplayConfig::new(memory, pages) });
            assert_eq!(replay.machine.status.counters.over_budget.get() == 0, enough, "{pages} pages");
        }
    }

    /// Swap that is too small: faults go above the budget, and nothing is lost.
    #[test]
    fn a_full_device_ends() {
        let string: Vec<(u64, bool)> = (0..2000).map(|n| (n % 900, true)).collect();
        replay(&string, &ReplayConfig { slots: 100, ..ReplayConfig::new(600, 900) });
    }
}

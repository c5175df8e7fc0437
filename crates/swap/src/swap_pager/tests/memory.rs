//! A device that is memory: what it costs to empty slots, and processes that use one at random, compared with a model.

use super::*;
use crate::bitmap::LOOKS;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// The next slot to be emptied was looked for word by word, around the whole device. With a few freed slots at random places that
/// was most of its words, for each batch of the page daemon, under the core lock: 0.1 ms with a budget of 1 GiB, and 1 ms with 16.
#[test]
fn the_cost_of_emptying_does_not_grow_with_the_device() {
    const SLOTS: u32 = 1 << 22;
    let mut pager = small(SLOTS);
    let device = pager.devices.add_memory_device(vec![0; SLOTS as usize], 9, 0).expect("room");
    for _ in 0..SLOTS / RUN_MAX {
        let run = alloc(&mut pager, RUN_MAX).expect("room");
        assert!(run.count == RUN_MAX && memory(&pager, run.first));
    }
    let mut random = (0u32..).map(|k| k.wrapping_mul(0x9e37_79b9) % SLOTS); // an odd factor: no slot comes twice
    for count in [1, 2, 3, 64].repeat(50) {
        let mut given_up: Vec<u32> = random.by_ref().take(count).collect();
        given_up.iter().for_each(|&at| pager.free_slot(pager.devices.slot(device, at)));
        let (mut out, before) = ([0; 64], LOOKS.get());
        assert_eq!(pager.devices.take_freed(device, &mut out), count);
        let looks = LOOKS.get() - before;
        assert!(looks <= 2 * count as u64, "{looks} words for {count} slots");
        given_up.sort_unstable();
        out[..count].sort_unstable();
        assert_eq!(out[..count], given_up);
    }
    pager.check();
}

/// Slots of the memory device. Few, so that it is often full.
const SLOTS: u32 = 150;

/// The memory device; device 0 is a file.
const MEMORY: DeviceId = DeviceId(1);

/// A process of the model.
#[derive(Clone)]
struct Process {
    pager: SwapPager,
    /// The slot of each stored page.
    pages: BTreeMap<PageId, Slot>,
    /// Slots of memory that were given up and not emptied yet.
    freed: BTreeSet<u32>,
}

impl Process {
    fn new() -> Self {
        let mut pager = SwapPager::new(Config { pages_max: 1600, slots_max: 600, devices_max: 4, extents_max: 0 });
        assert_eq!(pager.devices.add_memory_device(vec![0; SLOTS as usize], 9, 0), Ok(MEMORY));
        Process { pager, pages: BTreeMap::new(), freed: BTreeSet::new() }
    }

    fn forget(&mut self, slot: Slot) {
        let (device, at) = self.pager.devices.device_of(slot);
        assert!(device != MEMORY || self.freed.insert(at));
    }

    /// Stores pages; one in three is refused if it `fails`.
    fn store(&mut self, first: PageId, count: u32, past: bool, fails: bool) {
        let run = match past {
            true => self.pager.alloc_run_past_memory(count, first),
            false => self.pager.alloc_run(count, first),
        };
        let Some(run) = run else { return };
        for k in 0..run.count {
            let (slot, page) = (Slot(run.first.0 + k), first.offset(k.into()));
            let (device, at) = self.pager.devices.device_of(slot);
            assert!(device != MEMORY || !past && !self.freed.contains(&at), "slot {at} was not emptied");
            assert!(self.pages.values().all(|other| *other != slot), "slot {at} was given twice");
            if fails && k % 3 == 1 {
                self.pager.free_slot(slot);
                self.forget(slot);
                continue;
            }
            assert!(self.pager.assign(page, slot, Tag::of(0)));
            if let Some(old) = self.pages.insert(page, slot) {
                self.forget(old);
            }
        }
    }

    fn release(&mut self, first: u64, count: u64) {
        let gone: Vec<PageId> = self.pages.range(page(0, first)..page(0, first + count)).map(|(&page, _)| page).collect();
        assert_eq!(self.pager.release_range(page(0, first), count), gone.len() as u64);
        for page in gone {
            let slot = self.pages.remove(&page).expect("it is there");
            self.forget(slot);
        }
    }

    /// Empties up to `most` slots.
    fn empty(&mut self, most: usize) {
        let mut out = vec![0; most];
        let taken = self.pager.devices.take_freed(MEMORY, &mut out);
        assert_eq!(taken, most.min(self.freed.len()));
        out[..taken].iter().for_each(|at| assert!(self.freed.remove(at), "slot {at} was not given up, or is emptied twice"));
    }

    /// Takes the memory off, whatever waits there, and adds it again.
    fn replace_memory(&mut self) {
        self.release(0, 1000);
        self.pager.remove(MEMORY);
        self.freed.clear();
        assert_eq!(self.pager.devices.add_memory_device(vec![0; SLOTS as usize], 9, 0), Ok(MEMORY));
    }

    fn check(&self) {
        self.pager.check();
        let names =
            (0..SLOTS).filter_map(|at| Some((self.pager.devices.page_of(MEMORY, at)?, self.pager.devices.slot(MEMORY, at))));
        let in_memory = self.pages.iter().filter(|(_, slot)| memory(&self.pager, **slot));
        assert_eq!(names.collect::<BTreeMap<_, _>>(), in_memory.map(|(&page, &slot)| (page, slot)).collect());
    }
}

#[derive(Clone, Debug)]
enum Op {
    Store { first: u64, count: u32, past: bool, fails: bool },
    Release { first: u64, count: u64 },
    Rename { from: u64, to: u64 },
    Empty(usize),
    ReplaceMemory,
    Fork,
}

fn op() -> impl Strategy<Value = Op> {
    let rarely = || prop::bool::weighted(0.2);
    prop_oneof![
        8 => (0..300u64, 1..64u32, rarely(), rarely())
            .prop_map(|(first, count, past, fails)| Op::Store { first, count, past, fails }),
        6 => (0..300u64, 1..40u64).prop_map(|(first, count)| Op::Release { first, count }),
        3 => (0..300u64, 0..300u64).prop_map(|(from, to)| Op::Rename { from, to }),
        6 => (0..70usize).prop_map(Op::Empty),
        1 => Just(Op::ReplaceMemory),
        1 => Just(Op::Fork),
    ]
}

proptest! {
    #[test]
    fn memory_gives_a_slot_again_when_it_is_emptied(ops in prop::collection::vec((any::<prop::sample::Index>(), op()), 1..80)) {
        let mut processes = vec![Process::new()];
        for (who, op) in ops {
            let who = who.index(processes.len());
            let process = &mut processes[who];
            match op {
                Op::Store { first, count, past, fails } => process.store(page(0, first), count, past, fails),
                Op::Release { first, count } => process.release(first, count),
                Op::Rename { from, to } => {
                    let [from, to] = [from, to].map(|index| page(0, index));
                    if !process.pages.contains_key(&to) {
                        prop_assert!(process.pager.rename(from, to));
                        if let Some(slot) = process.pages.remove(&from) { process.pages.insert(to, slot); }
                    }
                }
                Op::Empty(most) => process.empty(most),
                Op::ReplaceMemory => process.replace_memory(),
                Op::Fork => {
                    let mut child = process.clone();
                    process.pager.devices.fork_parent();
                    child.pager.devices.inherit();
                    processes.push(child);
                }
            }
            processes[who].check();
        }
        for mut process in processes {
            process.empty(SLOTS as usize);
            prop_assert!(process.freed.is_empty());
            process.check();
        }
    }
}

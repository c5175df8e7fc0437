//! Processes that store, release, rename, fork and end at random, compared with a model: what each page must contain, and which
//! slots of each file are in use.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// A process of the model: what each page must contain, and which file each device is.
#[derive(Clone)]
struct Process {
    pager: SwapPager,
    pages: BTreeMap<PageId, (Slot, u64)>,
    files: Vec<usize>,
    parent: Option<usize>,
    alive: bool,
    /// The parent's fork that made it.
    fork: u64,
    /// The model's account of the newest file, as offsets: slots in use, deferred slots, and the slots that each child of its own
    /// can read.
    used: BTreeSet<u32>,
    deferred: BTreeSet<u32>,
    readable: BTreeMap<u64, BTreeSet<u32>>,
    written_end: u32,
    full: bool,
}

impl Process {
    fn forget(&mut self, slot: Slot) {
        let (device, at) = self.pager.devices.device_of(slot);
        if device.0 as usize + 1 < self.files.len() {
            return; // inherited
        }
        if self.readable.values().any(|slots| slots.contains(&at)) {
            assert!(self.deferred.insert(at));
        } else {
            assert!(self.used.remove(&at));
        }
    }
}

/// Processes and the files that they share. If a read does not find what the page's owner wrote, a slot was overwritten.
struct World {
    processes: Vec<Process>,
    /// (file, offset) -> content
    disk: BTreeMap<(usize, u32), u64>,
    files: usize,
    contents: u64,
}

const SLOTS: u32 = 300;

impl World {
    fn new() -> Self {
        let pager = SwapPager::new(Config { pages_max: 1600, slots_max: SLOTS, devices_max: 4, extents_max: 200 });
        let process = Process {
            pager,
            pages: BTreeMap::new(),
            files: vec![0],
            parent: None,
            alive: true,
            fork: 0,
            used: BTreeSet::new(),
            deferred: BTreeSet::new(),
            readable: BTreeMap::new(),
            written_end: 0,
            full: false,
        };
        World { processes: vec![process], disk: BTreeMap::new(), files: 1, contents: 0 }
    }

    /// Stores pages as the core does: takes a run, writes it, assigns its slots, and takes the next run until all are stored.
    fn store(&mut self, who: usize, first: PageId, count: u32, fails: bool) {
        let process = &mut self.processes[who];
        let file = *process.files.last().unwrap();
        let mut done = 0;
        while done < count {
            let Some(run) = alloc(&mut process.pager, count - done) else {
                let end = if process.full { process.written_end } else { SLOTS };
                assert_eq!(process.used.range(..end).count() as u32, end, "there was room");
                return;
            };
            assert!(run.count >= 1 && run.count <= count - done);
            for k in 0..run.count {
                let slot = Slot(run.first.0 + k);
                let (device, at) = process.pager.devices.device_of(slot);
                assert_eq!(device.0 as usize + 1, process.files.len(), "only the newest device is written");
                assert!(process.used.insert(at), "slot given twice");
                assert!(!process.full || at < process.written_end);
                let page = first.offset((done + k).into());
                if fails && k % 3 == 1 {
                    process.pager.free_slot(slot);
                    process.forget(slot);
                    continue;
                }
                self.contents += 1;
                self.disk.insert((file, at), self.contents);
                process.written_end = process.written_end.max(at + 1);
                assert!(process.pager.assign(page, slot, Tag::new(page, self.contents.into(), 0)));
                if let Some((old, _)) = process.pages.insert(page, (slot, self.contents)) {
                    process.forget(old);
                }
            }
            done += run.count;
        }
    }

    fn fork(&mut self, who: usize) {
        let fork = self.processes[who].pager.devices.fork_parent();
        let mut child = self.processes[who].clone();
        let process = &mut self.processes[who];
        process.readable.insert(fork, process.used.difference(&process.deferred).copied().collect());
        match child.pager.devices.fork_child(SLOTS) {
            Some(device) => assert_eq!(device.0 as usize, child.files.len()),
            None => {
                assert_eq!(child.files.len(), 4);
                self.child_gone(who, fork); // as the machine does when a fork fails
                return;
            }
        }
        child.files.push(self.files);
        self.files += 1;
        (child.parent, child.fork) = (Some(who), fork);
        child.readable.clear();
        for set in [&mut child.used, &mut child.deferred] {
            set.clear();
        }
        child.written_end = 0;
        child.full = false;
        self.processes.push(child);
    }

    /// Whether `who` or a descendant of it lives.
    fn is_any_alive(&self, who: usize) -> bool {
        let parent = |p: usize| self.processes[p].parent;
        (0..self.processes.len())
            .filter(|&p| self.processes[p].alive)
            .any(|p| std::iter::successors(Some(p), |&p| parent(p)).any(|p| p == who))
    }

    fn child_gone(&mut self, who: usize, fork: u64) {
        let process = &mut self.processes[who];
        process.pager.devices.child_gone(fork);
        process.readable.remove(&fork).expect("it was forked");
        let Process { used, deferred, readable, .. } = process;
        deferred.retain(|at| {
            let waits = readable.values().any(|slots| slots.contains(at));
            assert!(waits || used.remove(at));
            waits
        });
    }

    fn exit(&mut self, who: usize) {
        if who == 0 {
            return;
        }
        self.processes[who].alive = false;
        let mut child = who;
        while let Some(parent) = self.processes[child].parent.filter(|_| !self.is_any_alive(child)) {
            if self.processes[parent].alive {
                self.child_gone(parent, self.processes[child].fork);
            }
            child = parent;
        }
    }

    /// Checks every page of every process, and the neighbours of one page in seven.
    fn check(&self, step: usize) {
        for process in self.processes.iter().filter(|p| p.alive) {
            assert_eq!(process.pager.used() as usize, process.used.len());
            assert_eq!(process.pager.devices.deferred() as usize, process.deferred.len());
            assert_eq!(process.pager.devices.stored() as usize, process.pages.len());
            for (k, (&page, &(slot, content))) in process.pages.iter().enumerate() {
                let (device, at) = process.pager.devices.device_of(slot);
                let file = process.files[device.0 as usize];
                assert_eq!(self.disk[&(file, at)], content, "{page:?} of a process was overwritten");
                assert_eq!(process.pager.tag(page), Some(Tag::new(page, content.into(), 0)));
                if k % 7 != step % 7 {
                    continue;
                }
                let follows = |k: u32| {
                    let next = process.pages.get(&page.offset(k.into()));
                    let next = next.filter(|n| n.0.0 == slot.0 + k);
                    next.is_some_and(|n| process.pager.devices.device_of(n.0).0 == device)
                };
                let after = (1..=40).take_while(|&k| follows(k)).count() as u32;
                let has = process.pager.has_page(page, 3, 40).unwrap();
                assert_eq!((has.slot, has.after), (slot, after));
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Store { object: u16, index: u64, count: u32, fails: bool },
    Release { object: u16, index: u64 },
    ReleaseRange { object: u16, index: u64, count: u64 },
    Rename { from: u64, to: u64, count: u64 },
    Fork,
    Exit,
    Full(bool),
}

fn op() -> impl Strategy<Value = Op> {
    let object = || 0..2u16;
    prop_oneof![
        8 => (object(), 0..400u64, 1..64u32, prop::bool::weighted(0.2))
            .prop_map(|(object, index, count, fails)| Op::Store { object, index, count, fails }),
        3 => (object(), 0..400u64).prop_map(|(object, index)| Op::Release { object, index }),
        4 => (object(), 0..400u64, 0..200u64)
            .prop_map(|(object, index, count)| Op::ReleaseRange { object, index, count }),
        1 => (0..400u64, 0..400u64, 1..50u64).prop_map(|(from, to, count)| Op::Rename { from, to, count }),
        2 => Just(Op::Fork),
        1 => Just(Op::Exit),
        1 => any::<bool>().prop_map(Op::Full),
    ]
}

proptest! {
    #[test]
    fn processes_read_what_they_wrote(ops in prop::collection::vec((any::<prop::sample::Index>(), op()), 1..80)) {
        let mut world = World::new();
        for (step, (who, op)) in ops.into_iter().enumerate() {
            let alive: Vec<usize> = (0..world.processes.len()).filter(|&p| world.processes[p].alive).collect();
            let who = *who.get(&alive);
            let process = &mut world.processes[who];
            match op {
                Op::Store { object, index, count, fails } => world.store(who, page(object, index), count, fails),
                Op::Release { object, index } => {
                    let value = process.pages.remove(&page(object, index));
                    prop_assert_eq!(process.pager.release(page(object, index)), value.is_some());
                    if let Some((slot, _)) = value { process.forget(slot) }
                }
                Op::ReleaseRange { object, index, count } => {
                    let gone: Vec<_> =
                        process.pages.range(page(object, index)..page(object, index + count)).map(|(&p, v)| (p, v.0)).collect();
                    prop_assert_eq!(process.pager.release_range(page(object, index), count) as usize, gone.len());
                    for (p, slot) in gone {
                        process.pages.remove(&p);
                        process.forget(slot);
                    }
                }
                Op::Rename { from, to, count } => {
                    for k in 0..count {
                        let (from, to) = (page(0, from + k), page(1, to + k));
                        if process.pages.contains_key(&to) { continue }
                        let value = process.pages.remove(&from);
                        prop_assert!(process.pager.rename(from, to));
                        if let Some(value) = value { process.pages.insert(to, value); }
                    }
                }
                Op::Fork => world.fork(who),
                Op::Exit => world.exit(who),
                Op::Full(full) => {
                    process.full = full;
                    process.pager.devices.set_full(DeviceId(process.files.len() as u16 - 1), full);
                }
            }
            world.check(step);
        }
        for process in world.processes {
            process.pager.check();
        }
    }
}

//! The simulated swap device: files of slots, operations in flight, and faults.
//!
//! **Fault model.** What must be survived, without any page lost or wrong:
//!
//! | fault | what is asked |
//! | --- | --- |
//! | operations end in any order, after any time | nothing changes |
//! | a slot holds garbage from the beginning of its write to the end (torn) | nobody reads it meanwhile |
//! | short reads and writes | the machine does the rest |
//! | a write fails (EIO), leaving garbage | the page stays in memory, the slot comes back, it is written again elsewhere |
//! | all writes to one of several devices fail from some moment on | it has failed, and its pages go elsewhere |
//! | a write finds no room (ENOSPC), or no slot is free, or no metadata | the page stays in memory; when nothing can be evicted any more, the budget gives way, counted |
//!
//! What cannot be survived, but must be noticed: the access gets an error (`Fault::Lost`), never wrong content:
//!
//! | fault | what is asked |
//! | --- | --- |
//! | a read fails (EIO) | exactly the pages concerned are lost |
//! | content comes back different: flipped on the way or on the device | the same |
//! | a write was acknowledged and never done: the place holds what it held before, perhaps an older version of the same page | the same |
//! | a write went to another place of the file: there lies another page's content, and here what was here before | the same |
//!
//! Not modelled: a device that never answers (the program waits, as with the kernel's swap), memory errors, a crash of the pager.
//!
//! Compressed memory is no device here but memory of the process, which does not fail; reads from it come by here to take their
//! time.
//!
//! Content is one word per page; zero is a page of zeroes.

use crate::pool::SimPool;
use crate::rng::{Rng, mix};
use crate::scenario::Faults;
use crate::store::Place;
use overspill_vm::PageIn;
use overspill_vm::pager::IoResult;
use overspill_vm::types::{ContentHash, FrameId, PageId, Slot};
use std::collections::{BTreeMap, BTreeSet};

/// A page of a write.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    /// Which page was looked at.
    pub page: PageId,
    /// Which frame it was in then.
    pub frame: FrameId,
    /// What is written.
    pub value: u64,
    /// What was found when it was looked at: the same, unless that is the bug.
    pub seen: u64,
    /// Where it goes.
    pub slot: Slot,
    /// The same on the store.
    pub place: Place,
    /// The page took its frame's content back meanwhile: the writer's copy is charged by itself.
    pub charged: bool,
    /// A compressed device has refused it.
    pub packed: bool,
}

/// A page of a read that has come in.
#[derive(Clone, Copy, Debug)]
pub struct Got {
    /// `Err`: errno.
    pub value: Result<u64, i32>,
    /// A fault was injected: losing the page is right.
    pub damaged: bool,
}

/// A read in flight.
#[derive(Clone, Debug)]
pub struct Read<Op = PageIn> {
    /// What the core asked for.
    pub op: Op,
    /// How many pages.
    pub count: u32,
    /// Where the first page lies.
    pub place: Place,
    /// The pages that are in.
    pub got: Vec<Got>,
    due: u64,
}

/// A write in flight.
#[derive(Clone, Debug)]
pub struct Write {
    /// What is left of it.
    pub items: Vec<Item>,
    /// What its places held before.
    before: BTreeMap<Place, u64>,
    due: u64,
}

/// The device and its files. Operations in flight are kept by the process that issued them.
#[derive(Clone, Debug)]
pub struct Device {
    content: BTreeMap<Place, u64>,
    damaged: BTreeSet<Place>,
    /// Files whose writes all fail.
    dead: BTreeSet<u32>,
    faults: Faults,
    latency: u64,
}

impl Device {
    /// An empty device whose operations take up to `latency` steps.
    pub fn new(faults: Faults, latency: u64) -> Self {
        Device { content: BTreeMap::new(), damaged: BTreeSet::new(), dead: BTreeSet::new(), faults, latency }
    }
    /// What a place holds (checkers).
    pub fn peek(&self, place: Place) -> Option<u64> {
        self.content.get(&place).copied()
    }
    /// Whether what it holds is not what was written, by an injected fault (checkers).
    pub fn is_damaged(&self, place: Place) -> bool {
        self.damaged.contains(&place)
    }

    /// From now on no write to `file` succeeds.
    pub fn kill(&mut self, file: u32) {
        self.dead.insert(file);
    }
    /// Only these files are open anywhere: the others are gone, with what they hold.
    pub fn keep_files(&mut self, open: &BTreeSet<u32>) {
        self.content.retain(|place, _| open.contains(&place.0));
        self.damaged.retain(|place| open.contains(&place.0));
    }

    /// Starts a read of `count` pages.
    pub fn read<Op>(&mut self, now: u64, op: Op, count: u32, place: Place, rng: &mut Rng) -> Read<Op> {
        Read { op, count, place, got: Vec::with_capacity(count as usize), due: now + rng.below(self.latency) }
    }

    /// Starts a write: from now on its places hold garbage.
    pub fn write(&mut self, now: u64, items: Vec<Item>, rng: &mut Rng) -> Write {
        let mut before = BTreeMap::new();
        for item in &items {
            before.extend(self.content.insert(item.place, mix(rng.bits()) | 1 << 63).map(|old| (item.place, old)));
            self.damaged.remove(&item.place);
        }
        Write { items, before, due: now + rng.below(self.latency) }
    }

    /// Goes on with a read. Returns whether it has ended. What is in `memory` comes from there, without fault; but what it came to
    /// may be old when it arrives.
    pub fn read_step<Op>(&mut self, now: u64, read: &mut Read<Op>, rng: &mut Rng, memory: Option<&SimPool>) -> bool {
        if read.due > now {
            return false;
        }
        let left = read.count as usize - read.got.len();
        if let Some(pool) = memory.filter(|pool| pool.file == read.place.0) {
            // what is not there any more is unpacked as zeroes
            let value = |at| Got { value: Ok(pool.peek(at).unwrap_or(0)), damaged: false };
            read.got.extend((0..left as u32).map(|i| value(read.place.1 + i)));
            return left == 0 || rng.chance(500);
        }
        let failed = rng.chance(self.faults.read_error);
        let part = if left > 1 && rng.chance(self.faults.short) { 1 + rng.index(left - 1) } else { left };
        for _ in 0..part {
            let place = (read.place.0, read.place.1 + read.got.len() as u32);
            let mut got = Got { value: self.content.get(&place).copied().ok_or(5), damaged: self.damaged.contains(&place) };
            if failed {
                got = Got { value: Err(5), damaged: true };
            } else if rng.chance(self.faults.corrupt)
                && let Ok(value) = &mut got.value
            {
                *value ^= 1 << rng.below(63);
                got.damaged = true;
                if rng.chance(500) {
                    self.content.insert(place, *value);
                    self.damaged.insert(place);
                }
            }
            read.got.push(got);
        }
        read.due = now + rng.below(self.latency);
        part == left
    }

    /// Goes on with a write. The items that have ended, each with its result; empty if none has.
    pub fn write_step(&mut self, now: u64, write: &mut Write, rng: &mut Rng) -> Vec<(Item, IoResult)> {
        if write.due > now {
            return Vec::new();
        }
        let left = write.items.len();
        let result = if rng.chance(self.faults.write_error) || self.dead.contains(&write.items[0].place.0) {
            IoResult::Io(5)
        } else if rng.chance(self.faults.no_space) {
            IoResult::NoSpace
        } else {
            IoResult::Ok
        };
        let part = if left > 1 && rng.chance(self.faults.short) { 1 + rng.index(left - 1) } else { left };
        let mut ended: Vec<_> = write.items.drain(..part).map(|item| (item, result)).collect();
        write.due = now + rng.below(self.latency);
        for (item, result) in &ended {
            if *result != IoResult::Ok {
                continue;
            }
            if !rng.chance(self.faults.corrupt) {
                self.content.insert(item.place, item.value);
                continue;
            }
            // acknowledged and never done, or done elsewhere
            self.damaged.insert(item.place);
            match write.before.get(&item.place) {
                Some(old) => self.content.insert(item.place, *old),
                None => self.content.remove(&item.place),
            };
            if rng.chance(500) {
                let other = (item.place.0, rng.below(u64::from(item.place.1) + 1) as u32);
                if let Some(value) = self.content.get_mut(&other) {
                    *value = item.value;
                    self.damaged.insert(other);
                }
            }
        }
        if ended.len() > 1 {
            let turn = rng.index(ended.len());
            ended.rotate_left(turn);
        }
        ended
    }
}

/// The hash that stands for a page's content: a bijection, so different contents never agree, nor do different pages.
pub fn hash(page: PageId, value: u64) -> ContentHash {
    ContentHash::new(page, mix(value) as u128, 0)
}

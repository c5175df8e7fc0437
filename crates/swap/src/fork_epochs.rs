//! Says which children of forks may still read a slot that its page has left.
//!
//! Forks divide a process's life into *epochs*. The child of a fork cannot read a slot that got its page after the fork, nor one
//! that its page left before. So for each slot the epoch in which it got its page is kept (its *birth*). A slot that waits also has
//! the epoch in which the page left (its *death*). It waits for the children of the forks in between, and for no others:
//!
//! ```text
//!   fork       1           2         3            4              (child 2 has ended)
//!   epoch   0  |     1     |    2    |     3      |     4
//!                   ^birth                     ^death             waits for child 3
//! ```
//!
//! Forks between which no page came or left share an epoch. Epochs are numbers of one byte. When they run out, epochs without
//! living children are dropped and the rest is numbered anew. If that is not enough, the oldest are joined in pairs (their slots
//! wait for both).
//!
//! Invariant: a slot waits if and only if `oldest_after(birth) <= death`.

/// Numbers of epochs; 0 is the time before all forks.
const EPOCHS: usize = 256;
/// The most epochs in use after a renumbering, so that the next one does not come soon.
const KEPT: usize = EPOCHS / 2;

/// The new numbers after a renumbering: of births and of deaths, by old number.
pub(crate) struct Renumbered {
    pub(crate) births: [u8; EPOCHS],
    pub(crate) deaths: [u8; EPOCHS],
}

/// The forks that began an epoch.
#[derive(Clone, Copy, Default)]
struct Forks {
    /// The serial number of the first of them.
    first: u64,
    /// The number of children that have not ended.
    alive: u32,
}

/// See the module. In place: nothing is allocated.
#[derive(Clone)]
pub(crate) struct Epochs {
    /// By epoch; those from 1 to `now` have begun.
    forks: [Forks; EPOCHS],
    now: u8,
    /// The serial number of the last fork.
    serial: u64,
    /// A page came or left since the last fork.
    changed: bool,
    /// By epoch: the first epoch after it that has living children.
    oldest_after: [Option<u8>; EPOCHS],
    /// The last epoch that has living children.
    newest: u8,
}

impl Epochs {
    pub(crate) const fn new() -> Self {
        Epochs {
            forks: [Forks { first: 0, alive: 0 }; EPOCHS],
            now: 0,
            serial: 0,
            changed: false,
            oldest_after: [None; EPOCHS],
            newest: 0,
        }
    }

    /// The birth of a slot that gets its page now.
    #[inline]
    pub(crate) fn birth(&mut self) -> u8 {
        self.changed = true;
        self.now
    }

    /// The death of a slot whose page leaves now, if the slot has to wait.
    #[inline]
    pub(crate) fn death(&mut self, birth: u8) -> Option<u8> {
        self.changed = true;
        (birth < self.newest).then_some(self.now)
    }

    /// Whether a slot still waits.
    #[inline]
    pub(crate) fn waits(&self, birth: u8, death: u8) -> bool {
        self.oldest_after[birth as usize].is_some_and(|oldest| oldest <= death)
    }

    /// Whether there is no number left for the next fork, so that [`Epochs::renumber`] must come first.
    pub(crate) fn is_full(&self) -> bool {
        self.begins() && self.now as usize == EPOCHS - 1
    }

    fn begins(&self) -> bool {
        self.now == 0 || self.changed
    }

    /// Counts a fork. Returns its serial number.
    pub(crate) fn fork(&mut self) -> u64 {
        self.serial += 1;
        if self.begins() {
            self.now += 1;
            self.changed = false;
            self.forks[self.now as usize] = Forks { first: self.serial, alive: 0 };
        }
        self.forks[self.now as usize].alive += 1;
        self.count();
        self.serial
    }

    /// To be called when the child of fork `serial` and its descendants have ended. Returns whether slots may have waited for that.
    pub(crate) fn child_gone(&mut self, serial: u64) -> bool {
        let begun = &mut self.forks[1..=self.now as usize];
        let epoch = begun.partition_point(|forks| forks.first <= serial);
        let forks = &mut begun[epoch.checked_sub(1).expect("there was such a fork")];
        forks.alive = forks.alive.checked_sub(1).expect("a child ends once");
        let last = forks.alive == 0;
        if last {
            self.count();
        }
        last
    }

    /// Forgets all forks, in a child.
    pub(crate) fn forked(&mut self) {
        *self = Epochs::new();
    }

    fn count(&mut self) {
        let mut oldest = None;
        self.newest = 0;
        for epoch in (0..EPOCHS).rev() {
            self.oldest_after[epoch] = oldest;
            if (1..=self.now as usize).contains(&epoch) && self.forks[epoch].alive > 0 {
                oldest = Some(epoch as u8);
                self.newest = self.newest.max(epoch as u8);
            }
        }
    }

    /// Drops epochs without living children, and joins pairs of the oldest if there are too many. The caller must change births and
    /// deaths to the returned numbers.
    pub(crate) fn renumber(&mut self) -> Renumbered {
        let (old, before) = (self.forks, self.now as usize);
        let alive = old[1..=before].iter().filter(|forks| forks.alive > 0).count();
        let pairs = alive.saturating_sub(KEPT);
        // New numbers of the `n`-th epoch with living children. A birth between the two of a pair counts as before the second, a
        // death as after the first.
        let birth = |n: usize| if n < 2 * pairs { n / 2 } else { n - pairs };
        let death = |n: usize| if n < 2 * pairs { n.div_ceil(2) } else { n - pairs };
        let mut told = Renumbered { births: [0; EPOCHS], deaths: [0; EPOCHS] };
        let mut n = 0;
        for (epoch, forks) in old.into_iter().enumerate() {
            if (1..=before).contains(&epoch) && forks.alive > 0 {
                n += 1;
                let new = &mut self.forks[death(n)];
                let second = n <= 2 * pairs && n % 2 == 0;
                *new = if second { Forks { alive: new.alive + forks.alive, ..*new } } else { forks };
            }
            (told.births[epoch], told.deaths[epoch]) = (birth(n) as u8, death(n) as u8);
        }
        self.now = death(n) as u8;
        self.changed = true;
        self.count();
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// Against a model with a set of living children per slot. With many children numbers run out and epochs are joined; with few
    /// children they are not. No slot is ever freed too early, and with few children no slot waits too long.
    #[test]
    fn a_slot_waits_for_the_children_that_can_read_it() {
        for most in [1, 3, 20, 600] {
            let mut epochs = Epochs::new();
            let mut random = 1u64;
            let mut below = |n: u64| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) % n
            };
            // slots with a page: birth, and the children that can read it; slots that wait: death, too
            let mut owned: BTreeMap<u32, (u8, BTreeSet<u64>)> = BTreeMap::new();
            let mut waiting: BTreeMap<u32, (u8, u8, BTreeSet<u64>)> = BTreeMap::new();
            let (mut children, mut slot, mut renumbered) = (Vec::new(), 0, 0);
            for _ in 0..12_000 {
                match below(8) {
                    0..=1 => {
                        owned.insert(slot, (epochs.birth(), BTreeSet::new()));
                        slot += 1;
                    }
                    2..=3 if !owned.is_empty() => {
                        let at = *owned.keys().nth(below(owned.len() as u64) as usize).expect("it is below");
                        let (birth, readers) = owned.remove(&at).expect("it is there");
                        match epochs.death(birth) {
                            Some(death) => _ = waiting.insert(at, (birth, death, readers)),
                            None => assert!(readers.is_empty(), "slot {at} is free, and {readers:?} read it"),
                        }
                    }
                    4..=5 if children.len() < most => {
                        if epochs.is_full() {
                            let to = epochs.renumber();
                            owned.values_mut().for_each(|(birth, _)| *birth = to.births[*birth as usize]);
                            let all = waiting.values_mut();
                            all.for_each(|(b, d, _)| (*b, *d) = (to.births[*b as usize], to.deaths[*d as usize]));
                            renumbered += 1;
                        }
                        let child = epochs.fork();
                        children.push(child);
                        owned.values_mut().for_each(|(_, readers)| _ = readers.insert(child));
                    }
                    6 if !children.is_empty() => {
                        let child = children.swap_remove(below(children.len() as u64) as usize);
                        owned.values_mut().for_each(|(_, readers)| _ = readers.remove(&child));
                        waiting.values_mut().for_each(|(_, _, readers)| _ = readers.remove(&child));
                        epochs.child_gone(child);
                    }
                    _ => {}
                }
                waiting.retain(|at, (birth, death, readers)| {
                    let waits = epochs.waits(*birth, *death);
                    assert!(waits || readers.is_empty(), "slot {at} is free, and {readers:?} read it");
                    assert!(!waits || !readers.is_empty() || most > KEPT, "slot {at} waits for nobody");
                    waits
                });
            }
            assert!(renumbered > 2, "{most}: numbers ran out {renumbered} times");
            children.into_iter().for_each(|child| _ = epochs.child_gone(child));
            assert!(waiting.values().all(|(birth, death, _)| !epochs.waits(*birth, *death)));
        }
    }

    #[test]
    fn forks_in_a_row_have_one_epoch() {
        let mut epochs = Epochs::new();
        let birth = epochs.birth();
        let children: Vec<u64> = (0..1000).map(|_| epochs.fork()).collect();
        assert_eq!(epochs.now, 1);
        let death = epochs.death(birth).expect("a thousand children can read it");
        let (last, others) = children.split_last().expect("a thousand");
        assert!(others.iter().all(|child| !epochs.child_gone(*child) && epochs.waits(birth, death)));
        assert!(epochs.child_gone(*last) && !epochs.waits(birth, death));
    }
}

//! Parking: moves the policy's victims out of the program's sight. Where the kernel tells references, they are watched first, and
//! those that are used stay.

use super::{BATCH, Daemon, run_length};
use crate::errno;
use crate::kernel::{Kernel, Mappings as _, Mistake, Uffd as _, forgotten, prot, take_pages};
use crate::lock::ReadGuard;
use crate::machine::{Delivery, Machine};
use crate::park::{Area, ParkPlace};
use crate::space::Space;
use core::sync::atomic::Ordering::*;
use overspill_vm::types::{PAGE_SHIFT, PAGE_SIZE, PageId};
use overspill_vm::{Access, Parked};

impl<K: Kernel, S> Daemon<K, S> {
    /// Has the kernel watch a batch. Pages that it cannot watch (their range is registered for write protection, or was not
    /// accessible when it was registered) are parked at once, so that their next touch is a soft fault.
    ///
    /// While a change is under way (EAGAIN), the pages of a run are not watched. They will be told to have been used.
    pub(super) fn watch(&mut self, machine: &Machine<K>, most: u32) {
        let map = machine.map.read();
        machine.core.lock().vm.watch_batch(most, &mut self.batch);
        self.batch.sort_unstable();
        self.busy.clear();
        let mut at = 0;
        while at < self.batch.len() {
            let n = self.run_from(at);
            match map.program.watch(map.addr(self.batch[at].0), n << PAGE_SHIFT) {
                Ok(()) | Err(errno::EAGAIN) => {}
                Err(_) => self.busy.extend(self.batch[at..at + n].iter().map(|m| m.0)),
            }
            at += n;
        }
        machine.core.lock().vm.park_these(&self.busy, &mut self.batch);
        self.batch.sort_unstable();
        self.park_chosen(machine, map);
    }

    /// Parks a batch. Returns whether any page was parked.
    pub(super) fn park(&mut self, machine: &Machine<K>, most: u32) -> bool {
        let map = machine.map.read();
        let mut core = machine.core.lock();
        // If as many pages as are watched were all used, the next ones go nevertheless: somebody may wait for a frame.
        let asks = core.vm.park_batch(most, &mut self.batch) && self.fruitless <= core.vm.watched();
        drop(core);
        self.batch.sort_unstable();
        if asks {
            self.keep_used(machine, &map);
        }
        self.park_chosen(machine, map)
    }

    /// Takes pages that a reader has passed. Those of read-only files are dropped where they are: the file has them, whatever the
    /// program does. The others are parked.
    pub(super) fn pass(&mut self, machine: &Machine<K>, most: u32) {
        let map = machine.map.read();
        machine.core.lock().vm.pass_batch(most, &mut self.batch);
        self.batch.sort_unstable();
        self.weed(machine, &map);
        let Self { batch, drops, .. } = self;
        drops.clear();
        let is_dropped = |page: PageId| {
            let stays = |access| access == Access::ReadOnly || K::mistake(Mistake::DropsWhatMayChange);
            map.home(page.object()).is_some_and(|home| stays(home.access))
        };
        drops.extend(batch.extract_if(.., |member| is_dropped(member.0)));
        let mut at = 0;
        while at < self.drops.len() {
            let n = run_length(&self.drops[at..]);
            self.drop_run(machine, &map, at, n);
            at += n;
        }
        self.park_chosen(machine, map);
    }

    /// Drops `drops[at..at + n]`, neighbouring pages. No event is raised, because delivery is in-thread.
    fn drop_run(&mut self, machine: &Machine<K>, map: &Space<K>, at: usize, n: usize) {
        let addr = map.addr(self.drops[at].0);
        // SAFETY: pages of a read-only region, which the file has. They are busy, so nobody fills them meanwhile; a touch waits,
        // and then has them read.
        let discarded = unsafe { K::discard_of_program(addr, n << PAGE_SHIFT) };
        let mut wake = machine.config.delivery == Delivery::InThread;
        let mut core = machine.core.lock();
        for (i, &(page, _)) in self.drops[at..at + n].iter().enumerate() {
            let stays = discarded.is_err() && K::is_resident(addr + (i << PAGE_SHIFT));
            wake |= core.vm.park_done(page, if stays { Parked::Refused } else { Parked::Dropped });
            self.fruitless = if stays { self.fruitless.saturating_add(1) } else { 0 };
        }
        drop(core);
        if wake {
            machine.wake(map, addr, n << PAGE_SHIFT);
        }
    }

    /// Drops from the batch the pages that were used while they were watched.
    fn keep_used(&mut self, machine: &Machine<K>, map: &Space<K>) {
        let mut used = [false; BATCH];
        let (mut at, mut told) = (0, Ok(()));
        while at < self.batch.len() {
            let n = self.run_from(at);
            let addr = map.addr(self.batch[at].0);
            let of = &mut used[at..at + n];
            told = told.and(self.mappings.references(addr, addr + (n << PAGE_SHIFT), |start, end| {
                of[(start - addr) >> PAGE_SHIFT..(end - addr) >> PAGE_SHIFT].fill(true);
            }));
            at += n;
        }
        let mut core = machine.core.lock();
        if told.is_err() {
            core.vm.set_watches(false); // the program has closed the way to the kernel: from now on soft faults tell
        }
        let (mut i, before) = (0, self.batch.len());
        self.batch.retain(|&(page, _)| {
            let keep = !used[i] || K::mistake(Mistake::ParksWhatIsUsed);
            i += 1;
            if !keep && core.vm.park_done(page, Parked::Used) {
                machine.wake(map, map.addr(page), PAGE_SIZE);
            }
            keep
        });
        self.fruitless = self.fruitless.saturating_add((before - self.batch.len()) as u32);
    }

    /// Parks the chosen batch. Returns whether any page was parked.
    fn park_chosen<'a>(&mut self, machine: &'a Machine<K>, map: ReadGuard<'a, Space<K>, K::Word>) -> bool {
        if self.batch.is_empty() {
            return false;
        }
        self.busy.clear();
        self.unwritable.clear();
        let tried = self.batch.len() as u32;
        let mut any = self.park_batch(machine, map);
        if !self.busy.is_empty() && self.may_be_shared(machine) {
            any |= self.unshare(machine);
        }
        if !self.unwritable.is_empty() {
            any |= self.copy_out(machine);
        }
        self.fruitless = if any { 0 } else { self.fruitless.saturating_add(tried) };
        any
    }

    /// Moves the batch out of sight, and collects the pages that are EBUSY.
    ///
    /// A handler needs the map lock exclusively to read messages, and each fault needs it for a moment. So between two moves, each
    /// of which flushes TLBs, the daemon gives the lock to whoever waits. (Batches of scattered pages held it for 170 us each, an
    /// eighth of the time of a program that thrashed; one in eleven who read messages waited more than 20 us.)
    fn park_batch<'a>(&mut self, machine: &'a Machine<K>, mut map: ReadGuard<'a, Space<K>, K::Word>) -> bool {
        let mut any = false;
        let mut at = 0;
        self.weed(machine, &map);
        while at < self.batch.len() {
            let n = self.run_from(at);
            let Some((place, n)) = machine.core.lock().park.take(n as u32) else {
                let mut core = machine.core.lock();
                for &(page, _) in &self.batch[at..] {
                    if core.vm.park_done(page, Parked::Refused) {
                        machine.wake(&map, map.addr(page), PAGE_SIZE);
                    }
                }
                break;
            };
            any |= self.park_run(machine, &map, at, n as usize, place);
            at += n as usize;
            if at < self.batch.len() && (machine.map.is_wanted() || self.is_turn_over()) {
                drop(map);
                self.give_way(machine);
                map = machine.map.read();
                self.weed_batch(machine, &map, at);
            }
        }
        any
    }

    /// Drops from the batch the pages that must not be moved, if there can be such.
    fn weed(&mut self, machine: &Machine<K>, map: &Space<K>) {
        if !map.discards.is_empty(K::now_ns) || !map.remaps.is_empty() || !map.backlog.is_empty() {
            self.weed_batch(machine, map, 0);
        }
    }

    /// Drops from `batch[at..]` the pages that must not be moved: pages that may be about to be discarded, unmapped or moved, and
    /// pages to which that happened while the map was not held.
    pub(super) fn weed_batch(&mut self, machine: &Machine<K>, map: &Space<K>, at: usize) {
        let mut core = machine.core.lock();
        let mut i = 0;
        self.batch.retain(|&(page, frame)| {
            i += 1;
            let gone = !core.vm.is_parking(page, frame);
            let addr = map.addr(page);
            let discarded = map.discards.covers(addr, K::now_ns) && !K::mistake(Mistake::TakesWhatIsDiscarded);
            let replaced = map.remaps.covers(addr) && !K::mistake(Mistake::TakesWhatIsReplaced);
            let keep = i <= at || !(gone || discarded || replaced || map.is_behind(addr));
            if !keep && (gone || core.vm.park_done(page, Parked::Refused)) {
                machine.wake(map, addr, PAGE_SIZE);
            }
            keep
        });
    }

    /// Moves `batch[at..at + n]`, neighbouring pages, to the places from `place` on.
    fn park_run(&mut self, machine: &Machine<K>, map: &Space<K>, at: usize, n: usize, place: ParkPlace) -> bool {
        let addr = map.addr(self.batch[at].0);
        let mut results = [Parked::Yes; BATCH];
        let mut areas = [Area::USUAL; BATCH];
        let mut occupied = [false; BATCH]; // places that were not empty
        let mut done = 0;
        // Up to which page the protection is known, and the area for it. The kernel refuses a move of several mappings, or of
        // another protection.
        let (mut known, mut area) = (0, Area::USUAL);
        // The place of the page at which a move ended early, in case the page was moved, the area of that place, and what was left
        // of the move, in bytes.
        let mut ended: Option<(usize, Area, usize)> = None;
        while done < n {
            let until = if done < known { known } else { n };
            let to = machine.parking.addr(place.plus(done).in_area(area));
            let from = addr + (done << PAGE_SHIFT);
            // SAFETY: the pages are busy: from here on they are the pager's, and a touch brings them back. Free places are empty.
            let (moved, denied) = unsafe { take_pages::<K>(&map.parking, to, from, (until - done) << PAGE_SHIFT) };
            let pages = moved.bytes >> PAGE_SHIFT;
            areas[done..done + pages].fill(area);
            done += pages;
            // A move that ends early does not say why. The next move, from the page where it ended, does, unless the program has
            // changed the mapping in between (mprotect). So whether that page was moved and the move denied is seen by its place,
            // which was empty before. (Found by a seed: a page that had been moved read as zeroes.)
            let early = ended.take().filter(|_| moved.error.is_some() && !K::mistake(Mistake::ForgetsDenialsWithin));
            let before = early.map_or(0, |(to, _, len)| forgotten::<K>(to, from, len) >> PAGE_SHIFT);
            if let Some((_, area, _)) = early.filter(|_| before > 0) {
                machine.status.counters.moves_denied.add(1);
                areas[done..done + before].fill(area);
                done += before;
                continue;
            }
            if denied {
                machine.status.counters.moves_denied.add(1);
            } else if pages > 0 && done < until {
                ended = Some((to + moved.bytes, area, (until - done) << PAGE_SHIFT));
            } else if moved.error == Some(errno::EAGAIN) {
                ended = early;
            }
            match moved.error {
                None => {}
                Some(errno::EINVAL) if done >= known => {
                    let here = addr + (done << PAGE_SHIFT);
                    let mapping = self.mappings.at(here);
                    known = match mapping {
                        Ok(Some(mapping)) => n.min((mapping.end - addr) >> PAGE_SHIFT),
                        _ => done + 1, // the mapping has gone, or cannot be looked up
                    };
                    let to_area = match mapping {
                        Ok(Some(mapping)) => machine.parking.area(mapping.prot, &map.parking),
                        _ => Some(Area::USUAL),
                    };
                    if let Ok(Some(mapping)) = mapping
                        && mapping.prot & prot::WRITE == 0
                    {
                        let room = BATCH - self.unwritable.len();
                        self.unwritable.extend(self.batch[at + done..at + known].iter().take(room).map(|m| m.0));
                    }
                    area = to_area.unwrap_or(Area::USUAL);
                    if to_area.is_none() {
                        results[done..known].fill(Parked::Refused);
                        done = known;
                    }
                }
                // memory of this protection can be moved, so it is locked
                Some(errno::EINVAL) => {
                    self.locked_seen = true;
                    results[done..known].fill(Parked::Refused);
                    done = known;
                }
                Some(e) => {
                    results[done] = match e {
                        // perhaps mremap has moved the page; then nobody has read the event yet
                        errno::ENOENT if map.program.is_changing() => Parked::Refused,
                        errno::ENOENT => Parked::Absent,
                        errno::EAGAIN => continue,
                        _ => Parked::Refused,
                    };
                    occupied[done] = e == errno::EEXIST;
                    if e == errno::EBUSY {
                        self.busy.push(self.batch[at + done].0);
                    }
                    done += 1;
                }
            }
            if done >= known {
                area = Area::USUAL;
            }
        }
        let mut any = false;
        let mut wake = false;
        let mut core = machine.core.lock();
        for (i, &result) in results[..n].iter().enumerate() {
            let (page, frame) = self.batch[at + i];
            let its = place.plus(i).in_area(areas[i]);
            match result {
                Parked::Yes => {
                    core.park.own(frame, its);
                    any = true;
                }
                Parked::Refused if occupied[i] => {} // it is not known what is there: the place is never used again
                Parked::Absent if K::mistake(Mistake::LosesPlaces) => {}
                Parked::Refused | Parked::Absent | Parked::Used | Parked::Dropped => core.park.give(its),
            }
            any |= result == Parked::Absent;
            wake |= core.vm.park_done(page, result);
        }
        drop(core);
        if wake || machine.config.delivery == Delivery::InThread {
            machine.wake(map, addr, n << PAGE_SHIFT);
        }
        any
    }

    /// Whether another process can have pages that were EBUSY. If not, something else holds them, for a moment (direct I/O, advice,
    /// reclaim) or for long (registered buffers), and they are tried again when their turn comes. Before the program is stopped for
    /// lack of memory, sharing by raw system calls, of which the pager was not told, is ruled out as well.
    fn may_be_shared(&self, machine: &Machine<K>) -> bool {
        machine.shares_pages.load(Relaxed) || self.stuck.is_some() || K::merges_memory()
    }

    /// Pages that the kernel would not move, perhaps because another process has them too. A write fault gives this process its own
    /// copy, which can be moved. The daemon does not wait for that fault: the thread that would serve it could be waiting for the
    /// daemon.
    fn unshare(&mut self, machine: &Machine<K>) -> bool {
        let mut map = machine.map.read();
        for &page in &self.busy {
            let at = map.addr(page);
            if K::mistake(Mistake::WaitsToUnshare) {
                drop(map);
                K::own_page(at);
                map = machine.map.read();
            } else {
                K::own_page(at);
            }
        }
        machine.status.counters.pages_unshared.add(self.busy.len() as u64);
        let mut core = machine.core.lock();
        core.vm.park_these(&self.busy, &mut self.batch);
        drop(core);
        self.batch.sort_unstable();
        self.busy.clear();
        self.park_batch(machine, map)
    }
}

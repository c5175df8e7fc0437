//! Forks. The forking thread stops the pager at a moment when no page is busy and no write is in flight, and takes both locks. The
//! kernel copies the pager's whole state with the process.
//!
//! ```text
//!   Machine::shrink      until the charge fits the budget twice
//!   Machine::fork        no call moves memory; handlers, page daemon and swapoff end what they have begun (machine/freeze.rs)
//!                        both locks; the child is counted, and slots that are in use are kept for it
//!                        the kernel copies the process
//!                            parent: all threads go on               child: one thread, with copies of everything, both locks held
//!                            child_gone, when it has ended           Frozen::inherit, take_over, and threads of its own
//! ```
//!
//! A child reads the pages that its parent had paged out from its parent's devices, and neither writes over them. The parent puts
//! the slots that were in use at the fork aside until the child and all its descendants have ended or called exec
//! (`overspill_swap`'s forks).
//!
//! A simulated kernel does not copy the pager's memory. There [`Frozen::copy`] does it, and [`Machine::resume`] goes on in the
//! copy.
//!
//! [`crate::machine::freeze`] lists which thread waits for which during a freeze.

use crate::errno::{self, Errno};
use crate::files::DEVICES_MAX;
use crate::kernel::{Host as _, Kernel, Mistake, Uffd as _};
use crate::lock::{MutexGuard, WriteGuard};
use crate::machine::{Core, Machine, Parts};
use crate::ranges::{Flags, Kind};
use crate::space::Space;
use crate::space::backlog::Work;
use core::sync::atomic::Ordering::*;
use overspill_vm::types::DeviceId;

/// How long a fork waits for the page daemon to make room, in nanoseconds.
const SHRINK_NS: u64 = 30_000_000_000;
/// The same limit if there are pages to write but the daemon cannot write.
const STUCK_NS: u64 = 300_000_000;
/// The same limit if there is only compressed memory, counted since the charge last fell.
const SHRINK_MEMORY_NS: u64 = 500_000_000;
/// How long it waits for what stays in memory to be saved, in nanoseconds.
const SAVE_NS: u64 = 1_000_000_000;
/// How often a freeze checks whether all threads stand still, in nanoseconds.
const FREEZE_LOOK_NS: u64 = 50_000;

/// A pager that stands still, in the parent of a fork or in its child: both locks are held. (The core's is released first.)
pub struct Frozen<'a, K: Kernel> {
    /// The core.
    pub core: MutexGuard<'a, Core, K::Word>,
    /// The map.
    pub map: WriteGuard<'a, Space<K>, K::Word>,
    machine: &'a Machine<K>,
}

/// The result of a fork.
pub enum Forked<'a, K: Kernel> {
    /// In the parent, which goes on.
    Parent {
        /// The child's id.
        child: usize,
        /// The fork's number, for [`Machine::child_gone`].
        fork: u64,
    },
    /// In the child.
    Child(Frozen<'a, K>),
}

impl<K: Kernel> Space<K> {
    /// Pages of compressed memory that have nowhere else to go. A fork cannot make them fewer.
    pub fn fixed_pages(&self, core: &Core) -> u32 {
        self.pool.as_ref().map_or(0, |pool| pool.fixed_pages(core.vm.devices()))
    }

    /// Sets the process's limit, which is compressed memory's budget as well.
    pub fn set_limit(&self, core: &mut Core, pages: u32) {
        core.vm.set_limit(pages);
        self.pool.iter().for_each(|pool| pool.set_budget(pages));
    }

    /// Sets targets for the page daemon: `pages` for the process, and `pool_budget` for compressed memory if its pages have
    /// somewhere to go.
    pub fn set_targets(&self, core: &mut Core, pages: u32, pool_budget: u32) {
        core.vm.set_reclaim_target(pages);
        if core.vm.devices().room_past_memory() > 0 {
            // pages above three quarters of it go on to the next device
            self.pool.iter().for_each(|pool| pool.set_budget(pool_budget));
        }
    }

    /// The part of each side of a fork if `whole` does not suffice for both: half. But compressed memory that has nowhere else to
    /// go counts in full on each side.
    pub fn half(&self, core: &Core, whole: u32) -> u32 {
        let fixed = self.fixed_pages(core).min(whole);
        fixed + (whole - fixed) / 2
    }
}

impl<K: Kernel> Machine<K> {
    /// Before a fork: if the charge fits twice into `whole` pages, which may take some for the child, calls `halve`, which sets the
    /// limit.
    ///
    /// # Errors
    /// It does not fit. The error is the charge, in pages.
    pub fn fits_twice(&self, whole: impl Fn(&Core) -> u32, halve: impl FnOnce(&Space<K>, &mut Core)) -> Result<(), u64> {
        let map = self.map.read();
        let mut core = self.core.lock();
        let charge = core.vm.charge_total();
        if charge > u64::from(map.half(&core, whole(&core))) {
            return Err(charge);
        }
        halve(&map, &mut core);
        Ok(())
    }

    /// Before a fork: has the page daemon evict until the charge fits twice into `whole` pages, or no more can be evicted. If it
    /// `saves`, the rest is saved: should both sides evict it later, neither has to write it, and they can read it together. Then
    /// calls `halve`, which sets the limit.
    pub fn shrink(&self, whole: impl Fn(&Core) -> u32, saves: bool, halve: impl FnOnce(&Space<K>, &mut Core)) {
        if self.core.lock().vm.reserved() > 0 {
            self.adopt_native(0, usize::MAX);
        }
        let start = K::now_ns();
        let (mut least, mut since, mut saving) = (u64::MAX, start, None);
        self.freeze.set_shrinking(true);
        self.shortage.set_starved(false); // forget an earlier shortage
        loop {
            {
                let map = self.map.read();
                let mut core = self.core.lock();
                let half = map.half(&core, whole(&core));
                let (charge, now) = (core.vm.charge_total(), K::now_ns());
                if charge < least {
                    (least, since) = (charge, now);
                }
                // a device may be slow, but memory is not
                let hopeless = map.pool.is_some() && core.vm.devices().room_past_memory() == 0 && now - since > SHRINK_MEMORY_NS;
                // the daemon frees more than the target asks for, so the target is below half
                let target = half.saturating_sub(core.vm.free_high());
                // compressed pages are not in a common slot
                map.set_targets(&mut core, target.max(half / 2), if saves { 0 } else { target });
                let fits = charge <= half as u64;
                if fits && saving.is_none() {
                    core.vm.save(saves);
                    saving = Some(now);
                }
                let packed = saves && map.pool.as_ref().is_some_and(|pool| pool.can_write_back(core.vm.devices()));
                let saved = fits && (core.vm.is_saved() && !packed || saving.is_some_and(|began| now - began > SAVE_NS));
                if saved || hopeless || now - start > SHRINK_NS || self.is_all_done(now) {
                    core.vm.save(false);
                    halve(&map, &mut core);
                    self.freeze.set_shrinking(false);
                    return;
                }
            }
            self.ring_daemon();
            self.arrivals.wait(self.arrivals.count());
        }
    }

    /// Whether waiting for the page daemon is of no use: it has tried everything, and nothing is in flight. The pages that are left
    /// stay (locked, pinned, wired), or swap is full or fails. A device that is only slow does not count.
    fn is_all_done(&self, now: u64) -> bool {
        let since = self.shortage.stuck_since();
        since.is_some_and(|since| self.shortage.is_starved() || now.saturating_sub(since) > STUCK_NS)
    }

    /// The program forks. `clone` has the kernel copy the process while the pager stands still. It returns the child's id in the
    /// parent, and 0 in the child. => `swapping` is held, so there is one fork at a time, and no device comes or goes
    ///
    /// # Errors
    /// Those of `clone`: there is no child.
    pub fn fork(&self, clone: impl FnOnce(&mut Frozen<K>) -> Result<usize, Errno>) -> Result<Forked<'_, K>, Errno> {
        let mut frozen = self.freeze();
        // Before there is a child, because the parent writes as soon as it goes on. The child counts as forked, too.
        let fork = frozen.core.vm.devices_mut().fork_parent();
        frozen.core.vm.counters().forks.add(1);
        self.may_share_pages();
        let child = clone(&mut frozen);
        if child == Ok(0) {
            frozen.alone();
            return Ok(Forked::Child(frozen));
        }
        if child.is_err() {
            let forks = &frozen.core.vm.counters().forks;
            forks.set(forks.get() - 1);
        }
        if child.is_err() || K::mistake(Mistake::ThawsEarly) {
            frozen.core.vm.devices_mut().child_gone(fork);
        }
        frozen.thaw();
        child.map(|child| Forked::Parent { child, fork })
    }

    /// Takes both locks at a moment when no call moves memory, no page is busy or being copied out, and no write is in flight.
    fn freeze(&self) -> Frozen<'_, K> {
        self.await_remaps();
        self.freeze.begin();
        self.host.freezes();
        loop {
            self.catch_up();
            let map = self.map.write();
            let core = self.core.lock();
            if map.backlog.is_empty() && map.copying.is_empty() && core.vm.is_quiescent() {
                return Frozen { core, map, machine: self };
            }
            drop(core);
            drop(map);
            self.ring_daemon();
            K::sleep_ns(FREEZE_LOOK_NS);
        }
    }

    /// The child of a fork and all its descendants have ended or called exec. Slots that they alone could read are free.
    pub fn child_gone(&self, fork: u64) {
        if K::mistake(Mistake::ThawsEarly) || K::mistake(Mistake::NeverThaws) {
            return;
        }
        let _map = self.map.read();
        self.core.lock().vm.devices_mut().child_gone(fork);
    }

    /// In the child, if the machine is a [`Frozen::copy`]: takes over the locks that are held.
    ///
    /// # Safety
    /// The machine is a copy, and nobody has resumed it before.
    pub unsafe fn resume(&self) -> Frozen<'_, K> {
        // SAFETY: the copy's locks are held just as the original's were, and this is the thread that goes on.
        let (core, map) = unsafe { (self.core.held(), self.map.held()) };
        let mut frozen = Frozen { core, map, machine: self };
        frozen.alone();
        frozen
    }
}

impl<K: Kernel> Frozen<'_, K> {
    /// A copy of the machine as it stands, with both locks held. The contents of `parts` are copies already, or made anew. The
    /// parking area is elsewhere, and the caller copies the parked pages there. Allocates: for simulated kernels.
    ///
    /// # Errors
    /// As [`Machine::new`].
    pub fn copy(&self, parts: Parts<K>) -> Result<Machine<K>, Errno> {
        let (copy, from) = (Machine::new(parts)?, self.machine);
        {
            let (mut map, mut core) = (copy.map.write(), copy.core.lock());
            assert!(self.map.ranges.iter().all(|range| map.ranges.insert(*range)));
            map.remaps = self.map.remaps.clone();
            map.pending = self.map.pending.clone();
            map.origins.clone_from(&self.map.origins);
            core.park = self.core.park.clone();
            core.buffers = self.core.buffers;
        }
        copy.map.copy_words(&from.map);
        copy.core.copy_words(&from.core);
        copy.growth.copy_words(&from.growth);
        copy.freeze.copy(&from.freeze);
        copy.remap_gate.copy(&from.remap_gate);
        copy.doorbell.copy(&from.doorbell);
        copy.arrivals.copy(&from.arrivals);
        copy.failed_devices.copy(&from.failed_devices);
        copy.shortage.copy(&from.shortage);
        copy.shares_pages.store(from.shares_pages.load(Relaxed), Relaxed);
        Ok(copy)
    }

    /// In the parent: all threads go on.
    fn thaw(self) {
        let Frozen { core, map, machine } = self;
        drop(core);
        drop(map);
        machine.freeze.end();
        machine.forked();
    }

    /// In the child: resets the state of the parent's threads. Threads that waited for the map do not exist here.
    fn alone(&mut self) {
        let machine = self.machine;
        if !K::mistake(Mistake::WaitsForItsParent) {
            machine.map.forked();
        }
        // SAFETY: this thread does not hold the lock, and the lock guards no value.
        unsafe { machine.growth.forked() };
        machine.freeze.forked();
        machine.remap_gate.forked();
        machine.doorbell.forked();
        machine.arrivals.forked();
        machine.shortage.end();
        machine.failed_devices.forked();
        let buffers = self.core.buffers;
        self.core.uncharge_buffers(buffers);
        self.core.vm.count_afresh();
        self.core.load.forked();
        self.core.unread.clear();
        self.map.discards.clear();
    }

    /// In the child: replaces the parent's userfaultfds by the child's own, and makes the parent's devices read-only. The old
    /// descriptors are not closed: their numbers belong to the parent. `files` turns a device's files into the child's own, or
    /// forgets them if nothing is stored on the device, which is then removed.
    ///
    /// # Errors
    /// The parking area cannot be registered; those of `files`.
    pub fn inherit<E: From<Errno>>(
        &mut self,
        program: K::Uffd,
        parking: K::Uffd,
        mut files: impl FnMut(usize, K::Files, bool) -> Result<Option<K::Files>, E>,
    ) -> Result<(), E> {
        self.core.vm.set_watches(program.tells_references());
        core::mem::forget(core::mem::replace(&mut self.map.program, program));
        core::mem::forget(core::mem::replace(&mut self.map.parking, parking));
        core::mem::forget(core::mem::take(&mut self.map.mappings)); // the page daemon opens the child's
        self.machine.parking.register(&self.map.parking)?;
        let devices = self.core.vm.devices_mut();
        devices.inherit();
        for at in 0..DEVICES_MAX {
            let Some(theirs) = self.map.files[at].take() else { continue };
            let id = DeviceId(at as u16);
            let stored = devices.device_use(id).is_none_or(|used| used.stored > 0);
            self.map.files[at] = files(at, theirs, stored)?;
            if !stored {
                devices.remove(id);
                self.map.names[at].set(b"");
            }
        }
        Ok(())
    }

    /// In the child, when it has its devices: makes the memory that came from the parent its own.
    ///
    /// # Errors
    /// A range cannot be registered.
    pub fn take_over(&mut self) -> Result<(), Errno> {
        if let Some(pool) = &self.map.pool {
            pool.set_budget(self.core.vm.limit());
            pool.refill(&mut self.core.vm);
        }
        self.machine.inherit_ranges(&mut self.map, &mut self.core)?;
        self.machine.wipe(&self.map, &mut self.core);
        Ok(())
    }
}

impl<K: Kernel> Machine<K> {
    /// In a fork's child: registers the managed ranges that are mapped here, and gives up the others. Those had MADV_DONTFORK, or
    /// another thread unmapped them at the moment of the fork, and no event will report it here.
    ///
    /// # Errors
    /// Its mappings cannot be read or registered.
    fn inherit_ranges(&self, map: &mut Space<K>, core: &mut Core) -> Result<(), Errno> {
        map.remaps.clear(); // they belong to threads that do not exist here
        let (mut at, mut result) = (0, Ok(()));
        K::each_mapping(|start, end| {
            self.unmapped(map, core, at, start);
            at = start;
            while let Some(r) = map.ranges.overlap(at, end, Kind::Managed) {
                let piece = r.within(at, end);
                match map.register(piece.start, piece.end) {
                    Ok(()) => {}
                    // something else is mapped there by now
                    Err(errno::EINVAL) => self.unmapped(map, core, piece.start, piece.end),
                    Err(e) => result = Err(e),
                }
                at = piece.end;
            }
            at = end;
        })?;
        self.unmapped(map, core, at, usize::MAX);
        self.finish_with(map, core);
        map.pending.clear();
        result
    }

    /// In a fork's child: empties the ranges that must be empty here. The kernel has emptied the pages that were mapped; the pager
    /// gives up the others.
    fn wipe(&self, map: &Space<K>, core: &mut Core) {
        for r in map.ranges.iter().filter(|r| r.kind == Kind::Managed && r.flags.has(Flags::WIPE)) {
            Self::give_up(core, *r, Work::GiveUp, u64::MAX);
        }
    }
}

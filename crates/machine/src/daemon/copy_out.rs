//! How the page daemon takes pages out of memory that is not writable: UFFDIO_MOVE refuses them, because it wants both sides to be
//! writable or neither.
//!
//! ```text
//!   protect   UFFDIO_WRITEPROTECT: should the program make the memory writable and write, its thread waits, as for a busy page
//!   copy      through /proc/self/mem, which reads whatever the protection and never waits for a page, into a parking place
//!   discard   MADV_DONTNEED, no lock held: the kernel raises an event as for the program's own discard, and waits until it is read
//!   settle    copied pages become parked; pages that the program gave up are dropped; the others may be written again
//! ```
//!
//! Counting tells the daemon's events from the program's own ([`Copying`](crate::space::copying::Copying)). Each page is discarded
//! by a call of its own, so the daemon causes exactly one event per page. A page that the program discarded as well, before or
//! after, reads as zeroes. That is right: the page was protected before it was copied, and its faults wait until all is settled, so
//! nothing can have been written since. (MADV_FREE keeps what is written afterwards.)
//!
//! A move refuses a pinned page, but a copy cannot know that a page is pinned. Writable memory is never copied out, so no read
//! *into* these pages can begin. I/O that reads *from* a pinned page keeps that page, which nobody changes. What remains is a read
//! into memory that began before the program made that memory read-only. If buffers are pinned for good (registered with io_uring,
//! given to a device), the kernel says so (VmPin), and nothing is copied out. But the data of a single direct read is lost if the
//! program makes its own buffer read-only during the read and the page is evicted before the read has ended.

use super::{BATCH, COPY_PAGES, Daemon, run_length};
use crate::errno;
use crate::kernel::{Kernel, Mappings as _, Mistake, Uffd as _, prot};
use crate::machine::{Delivery, Machine};
use crate::park::ParkPlace;
use crate::ranges::Kind;
use crate::space::Space;
use core::sync::atomic::Ordering::*;
use overspill_vm::Parked;
use overspill_vm::types::PAGE_SIZE;

/// Pages that may be copied at a time even if no frame is free.
const AT_ONCE: u32 = 16;
/// How often the daemon looks for a moment without unread events, and how long it waits in between, in nanoseconds.
const CALM_TRIES: u32 = 20;
const CALM_LOOK_NS: u64 = 50_000;

/// The state of one page of the batch.
#[derive(Clone, Copy)]
struct Taken {
    result: Parked,
    /// Where its copy is. The copy is charged to the budget.
    place: Option<ParkPlace>,
    /// A thread that writes to it waits.
    protected: bool,
}

impl<K: Kernel> Machine<K> {
    /// Reads messages if the page daemon waits for that, although no fault can be served now: the faulting threads are told to look
    /// again.
    pub fn follow_own_discards(&self) {
        if self.discards_own.load(SeqCst) {
            self.read_messages(|addr, _| self.wake_any(addr));
        }
    }

    /// Registers all managed ranges again, so that writes to protected pages are reported too; ranges that are registered later
    /// report them as well. All at once: registering a part would split a mapping, and the program could not mremap across the
    /// split any more.
    fn protect_ranges(map: &Space<K>) {
        if !map.program.protects() {
            map.program.set_protects();
            for range in map.ranges.iter().filter(|r| r.kind == Kind::Managed) {
                let _ = map.register(range.start, range.end);
            }
        }
    }
}

impl<K: Kernel, S> Daemon<K, S> {
    /// Takes the pages of `self.unwritable`, which cannot be moved. Returns whether any could be taken.
    pub(super) fn copy_out(&mut self, machine: &Machine<K>) -> bool {
        let possible = machine.config.delivery == Delivery::Threads && !machine.freeze.is_on();
        if !possible || K::fixed().is_none_or(|fixed| fixed.pinned > 0) {
            return false;
        }
        {
            let mut map = machine.map.write();
            Machine::protect_ranges(&map);
            let mut core = machine.core.lock();
            // for a moment there are two copies
            self.unwritable.truncate(core.vm.available().max(AT_ONCE) as usize);
            core.vm.park_these(&self.unwritable, &mut self.batch);
            drop(core);
            self.batch.sort_unstable();
            self.weed_batch(machine, &map, 0);
            let Space { copying, origins, .. } = &mut *map;
            copying.begin(self.batch.iter().map(|m| Space::<K>::addr_of(origins, m.0)));
        }
        let mut taken = [Taken { result: Parked::Refused, place: None, protected: false }; BATCH];
        let n = self.batch.len();
        {
            let map = machine.map.read();
            let mut at = 0;
            while at < n {
                let run = self.run_from(at);
                self.copy_run(machine, &map, at, &mut taken[at..at + run]);
                at += run;
            }
        }
        let mut at = 0;
        while at < n {
            let copied = |t: &Taken| t.result == Parked::Yes;
            let run = taken[at..at + self.run_from(at)].iter().take_while(|t| copied(t)).count();
            if run > 0 {
                let addr = machine.map.read().addr(self.batch[at].0);
                self.discard_run(machine, addr, &mut taken[at..at + run]);
            }
            at += run.max(1);
        }
        self.settle_copies(machine, &taken)
    }

    /// The last [`COPY_PAGES`] pages of the buffers. They take memory only once pages had to be copied out.
    pub(super) fn copy_buffer(&self) -> usize {
        self.scratch() + PAGE_SIZE
    }

    /// How many pages of the batch are neighbours, from `at` on.
    pub(super) fn run_from(&self, at: usize) -> usize {
        run_length(&self.batch[at..])
    }

    /// Protects and copies a run of the batch, from `at` on.
    fn copy_run(&mut self, machine: &Machine<K>, map: &Space<K>, at: usize, taken: &mut [Taken]) {
        let addr = map.addr(self.batch[at].0);
        if map.program.protect(addr, taken.len() * PAGE_SIZE).is_err() {
            if let Some(range) = map.ranges.find(addr) {
                let _ = map.register(range.start, range.end); // for the next time
            }
            return;
        }
        taken.iter_mut().for_each(|t| t.protected = true);
        let buffer = self.copy_buffer();
        let mut i = 0;
        while i < taken.len() {
            let page = addr + i * PAGE_SIZE;
            let ours = {
                let core = machine.core.lock();
                // not pages that were discarded before they were protected
                let is_ours = |i: &usize| {
                    let (id, frame) = self.batch[at + i];
                    !map.copying.is_touched(at + i) && core.vm.is_parking(id, frame)
                };
                (i..taken.len()).take(COPY_PAGES).take_while(is_ours).count()
            };
            if ours == 0 {
                i += 1;
                continue;
            }
            let Ok(Some(mapping)) = self.mappings.at(page) else { return };
            let ours = ours.min((mapping.end - page) / PAGE_SIZE);
            if mapping.prot & prot::WRITE != 0 {
                i += ours; // such a page may be pinned by now
                continue;
            }
            // SAFETY: the daemon's buffer for this, so many pages long.
            let bytes = unsafe { core::slice::from_raw_parts_mut(buffer as *mut u8, ours * PAGE_SIZE) };
            match self.mappings.read(page, bytes) {
                Ok(read) => {
                    Self::place_copies(machine, map, &bytes[..read], &mut taken[i..]);
                    i += read / PAGE_SIZE;
                }
                Err(errno::EIO) => {
                    if !map.program.is_changing() {
                        taken[i].result = Parked::Absent;
                    }
                    i += 1;
                }
                Err(_) => return,
            }
        }
    }

    /// Puts copied pages into parking places.
    fn place_copies(machine: &Machine<K>, map: &Space<K>, bytes: &[u8], taken: &mut [Taken]) {
        let (mut at, pages) = (0, bytes.len() / PAGE_SIZE);
        while at < pages {
            let Some((place, n)) = machine.core.lock().park.take((pages - at) as u32) else { return };
            let n = n as usize;
            let from = &bytes[at * PAGE_SIZE..(at + n) * PAGE_SIZE];
            // SAFETY: the places are ours and empty; the buffer holds the pages.
            let copied = unsafe { map.parking.copy(machine.parking.addr(place), from.as_ptr(), from.len()) }.bytes / PAGE_SIZE;
            let mut core = machine.core.lock();
            core.vm.charge(copied as u32);
            for i in 0..copied {
                taken[at + i].result = Parked::Yes;
                taken[at + i].place = Some(place.plus(i));
            }
            (copied..n).for_each(|i| core.park.give(place.plus(i)));
            at += n;
        }
    }

    /// Has the kernel drop a run that was copied. Holds no lock meanwhile, because another thread must read the event.
    fn discard_run(&mut self, machine: &Machine<K>, addr: usize, taken: &mut [Taken]) {
        let len = taken.len() * PAGE_SIZE;
        let calm = (0..CALM_TRIES).any(|_| {
            let mut map = machine.map.write();
            // while a report is unread, another mapping may be at the address by now
            let calm = !map.program.is_changing();
            map.copying.set_window(if calm { (addr, addr + len) } else { (0, 0) });
            drop(map);
            if !calm {
                K::sleep_ns(CALM_LOOK_NS);
            }
            calm
        });
        machine.discards_own.store(calm, SeqCst);
        // Each page by a call of its own, which raises one event. For a call on several pages the kernel may raise a second event,
        // if the program splits their mapping (mprotect) while the first waits to be read. Nothing tells the second from the
        // program's own.
        let step = if K::mistake(Mistake::DiscardsRunsAtOnce) { len } else { PAGE_SIZE };
        for at in (addr..addr + len).step_by(step) {
            // SAFETY: the page is busy and was copied, and nobody can have written to it since.
            let discarded = if calm { unsafe { K::discard_of_program(at, step) } } else { Err(errno::EAGAIN) };
            self.locked_seen |= discarded == Err(errno::EINVAL);
            let result = &mut taken[(at - addr) / PAGE_SIZE].result;
            match discarded {
                Err(_) if K::is_resident(at) => *result = Parked::Refused,
                // The program has discarded it, which was taken for this discard, and locked it since.
                Err(errno::EINVAL) => *result = Parked::Absent,
                _ => {}
            }
        }
        machine.discards_own.store(false, SeqCst);
    }

    fn settle_copies(&mut self, machine: &Machine<K>, taken: &[Taken; BATCH]) -> bool {
        let mut map = machine.map.write();
        let mut core = machine.core.lock();
        let mut parked = 0;
        let mut any = false;
        for (i, (&(page, frame), t)) in self.batch.iter().zip(taken).enumerate() {
            let gone = !core.vm.is_parking(page, frame);
            let result = match t.result {
                Parked::Yes if map.copying.is_given_up(i) => Parked::Absent,
                result => result,
            };
            match t.place {
                Some(place) if result == Parked::Yes && !gone => {
                    core.vm.uncharge(1); // its frame is charged
                    core.park.own(frame, place);
                    parked += 1;
                }
                Some(place) => core.park.abandon(place),
                None => {}
            }
            any |= result != Parked::Refused;
            let wake = gone || core.vm.park_done(page, result);
            let addr = map.addr(page);
            if t.protected && (gone || result == Parked::Refused) {
                map.program.let_write(addr, PAGE_SIZE);
            }
            if wake {
                machine.wake(&map, addr, PAGE_SIZE);
            }
        }
        map.copying.end();
        machine.status.counters.pages_copied_out.add(parked);
        any
    }
}

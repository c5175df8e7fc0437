//! Page-out: the page daemon's work, batch by batch, and the outcome for each page.

use crate::frames::{CLEAN, INACTIVE, LAUNDRY, On, WATCHED};
use crate::home::Access;
use crate::page::{PageWord, State};
use crate::pager::{IoResult, Location, Pager, SlotRun};
use crate::policies::Policies;
use crate::types::{FrameId, PAGE_SIZE, PageId, Slot, Tag};
use crate::vm::{Decision, Vm};
use alloc::vec::Vec;

/// When swap is full, this many frames at a time are searched for a stored copy to give up: a few microseconds.
const COPIES_SCAN_MAX: u32 = 1024;

/// The outcome for a page that was to be parked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parked {
    /// It is parked.
    Yes,
    /// The kernel holds the page (pinned, locked, not writable): it stays mapped.
    Refused,
    /// There was no page: the program had discarded it.
    Absent,
    /// It was not tried: the program had used the page while it was watched.
    Used,
    /// It was not parked: its content was dropped at once, because its file has it.
    Dropped,
}

/// What to do with a page whose parked content was compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compared {
    /// All zeroes: the page is untouched again; drop the parked copy, then [`Vm::frames_dropped`].
    Drop(FrameId),
    /// Nothing to do: unchanged since it was stored, or no longer parked.
    Settled,
    /// Write it to swap, then [`Vm::launder_done`].
    Write,
    /// Write it to the file that is its home, then [`Vm::home_written`].
    WriteHome,
}

/// A page and the frame it has.
pub type Resident = (PageId, FrameId);

/// A parked page to be compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Laundry {
    /// The page.
    pub page: PageId,
    /// The frame that it has.
    pub frame: FrameId,
    /// The tag of its stored copy, if it has one. If `at_home`: of what its file has, as far as that is known.
    pub stored: Option<Tag>,
    /// It is not in swap, and its home is a file. So its tag is a plain checksum.
    pub at_home: bool,
    /// Its object has a file, wherever the page is stored. So zeroes are content like any other.
    pub of_file: bool,
    /// The stored copy is on a device that is memory.
    pub in_memory: bool,
    /// A device that is not memory is the better place for it.
    pub passes_memory: bool,
}

/// Consecutive slots for pages that are to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageOut {
    /// The first slot.
    pub first: Slot,
    /// Where the bytes of the first slot are. Those of the others follow without a gap.
    pub location: Location,
    /// How many slots, at least 1.
    pub count: u32,
}

impl PageOut {
    /// Slot `i` of them.
    pub fn slot(&self, i: u32) -> Slot {
        Slot(self.first.0 + i)
    }
}

/// What the page daemon should do now, in pages. The default: nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Demand {
    /// Clean pages to be reclaimed.
    pub reclaim: u32,
    /// Parked pages to be compared and perhaps written.
    pub launder: u32,
    /// Mapped pages to be made inactive.
    pub park: u32,
    /// Mapped pages to be watched.
    pub watch: u32,
    /// Mapped pages that a reader has passed.
    pub pass: u32,
    /// Memory that is left to the kernel, before all else: its pages are not known, so none of them is among the others.
    pub adopt: bool,
}

impl Demand {
    /// Whether there is nothing to do.
    pub fn is_none(&self) -> bool {
        *self == Demand::default()
    }
}

impl<P: Pager> Vm<P> {
    /// What to do now. Looks only at a few counts, so it costs next to nothing.
    pub fn demand(&self) -> Demand {
        let demand = self.demand_of_pages();
        Demand { adopt: self.reserved > 0 && (self.wants_daemon() || !demand.is_none()), ..demand }
    }

    fn demand_of_pages(&self) -> Demand {
        let available = self.available();
        let inactive_target = self.inactive_share.of(self.policies.learning(self.limit));
        let short = if available < self.free_high() { self.free_high() - available } else { 0 };
        let over = (self.charge_total().saturating_sub(self.limit as u64)) as u32;
        let short = short + over;
        // a quarter at a time, so that the page daemon is not woken for each page
        let beyond = if self.listed > self.mapped_max { self.listed - (self.mapped_max - self.mapped_max / 4) } else { 0 };
        if short == 0 {
            return match self.to_save {
                // in large pieces, so that neighbours lie together on the device
                Some(park) => Demand { park, launder: if park == 0 { self.unsaved() } else { 0 }, ..Demand::default() },
                None => Demand { park: beyond, ..Demand::default() },
            };
        }
        let pass = if self.drops { self.policies.passing().min(short) } else { 0 };
        if pass > 0 {
            return Demand { pass, ..Demand::default() };
        }
        let watched = self.frames.queues.len(WATCHED);
        let reclaim = short.min(self.frames.queues.len(CLEAN));
        // Not those of a flush, most of which stay mapped.
        let laundering = self.laundering - self.flushing;
        let mut launder = (short - reclaim).saturating_sub(laundering).min(self.frames.queues.len(INACTIVE));
        if self.space_short && laundering > 0 {
            launder = 0;
        }
        let undecided = watched + self.frames.queues.len(INACTIVE) + laundering;
        let too_few = undecided < inactive_target && self.spare_frames() > 0 && self.listed > 0;
        if too_few {
            launder = 0; // first let pages be inactive for a while, or none of their touches would be seen
        }
        let after = self.frames.queues.len(INACTIVE) - launder + laundering;
        let more = inactive_target.max(short - reclaim).saturating_sub(watched + after).max(beyond).min(self.listed);
        if !self.watches() {
            return Demand { reclaim, launder, park: more.max(watched), ..Demand::default() };
        }
        // what is parked was watched before, so it can be laundered at once
        let park = if too_few { 0 } else { (short - reclaim).saturating_sub(after).min(watched) };
        Demand { reclaim, launder, park, watch: more, ..Demand::default() }
    }

    /// Inactive pages that may be laundered, while everything is being saved.
    fn unsaved(&self) -> u32 {
        if self.space_short && self.laundering > 0 { 0 } else { self.frames.queues.len(INACTIVE) }
    }

    /// The machine can drop pages of files without parking them.
    pub fn set_drops(&mut self) {
        self.drops = true;
    }

    /// Whether the daemon should be woken.
    pub fn wants_daemon(&self) -> bool {
        self.available() < self.free_low() || self.listed > self.mapped_max || self.to_save.is_some()
    }

    /// Whether the daemon should be woken, and there is something that it can do.
    pub fn has_work(&self) -> bool {
        self.wants_daemon() && !self.demand().is_none()
    }

    /// The kernel tells whether pages are used while they are watched (or not, from now on).
    pub fn set_watches(&mut self, watches: bool) {
        self.watches = watches;
    }

    /// Whether it does.
    pub fn watches(&self) -> bool {
        self.watches && self.mapped_max == u32::MAX // (a recording needs each reference as a fault)
    }

    /// Chooses pages to watch, by the policy's order, as many as `out` has room for. They stay mapped. The machine has the kernel
    /// watch them, and parks those that cannot be watched ([`Vm::park_these`]).
    pub fn watch_batch(&mut self, most: u32, out: &mut Vec<Resident>) {
        self.victims(most, out, |vm, page, frame| {
            vm.counters.pages_watched.add(1);
            vm.enqueue(frame, On::Watched);
            vm.decide(Decision::Watch(page));
        });
    }

    /// Chooses pages to park, as many as `out` has room for: those that have been watched longest, or if the kernel does not tell
    /// references, by the policy's order. They are busy until [`Vm::park_done`], or until they are released or moved
    /// ([`Vm::is_parking`]). Returns whether they were watched.
    pub fn park_batch(&mut self, most: u32, out: &mut Vec<Resident>) -> bool {
        if !self.watches() && self.frames.queues.is_empty(WATCHED) {
            self.victims(most, out, |vm, page, _| vm.begin_park(page));
            return false;
        }
        out.clear();
        self.counters.daemon_scans.add(1);
        while out.len() < (most as usize).min(out.capacity())
            && let Some(frame) = self.frames.queues.front(WATCHED).map(FrameId)
        {
            self.dequeue(frame);
            let page = self.frames.page[frame.at()];
            self.begin_park(page);
            out.push((page, frame));
        }
        true
    }

    /// As [`Vm::park_batch`], but pages that a reader has passed. Those of read-only files may be dropped instead
    /// ([`Parked::Dropped`]).
    pub fn pass_batch(&mut self, most: u32, out: &mut Vec<Resident>) {
        self.take_victims(|policies, out| policies.passing_victims(out), most, out, |vm, page, _| vm.begin_park(page));
    }

    fn victims(&mut self, most: u32, out: &mut Vec<Resident>, each: impl FnMut(&mut Self, PageId, FrameId)) {
        let limit = self.limit;
        self.take_victims(|policies, out| policies.victims(out, limit), most, out, each);
    }

    fn take_victims(
        &mut self,
        choose: impl FnOnce(&mut Policies, &mut [FrameId]) -> usize,
        most: u32,
        out: &mut Vec<Resident>,
        mut each: impl FnMut(&mut Self, PageId, FrameId),
    ) {
        out.clear();
        self.counters.daemon_scans.add(1);
        let mut victims = [FrameId(0); 256];
        let most = (most as usize).min(out.capacity()).min(victims.len());
        let n = choose(&mut self.policies, &mut victims[..most]);
        self.listed -= n as u32;
        self.to_save = self.to_save.map(|left| if n == 0 { 0 } else { left.saturating_sub(n as u32) });
        for &frame in &victims[..n] {
            let page = self.frames.page[frame.at()];
            let word = self.table.get(page);
            assert!(word.frame() == frame && word.state() == State::Active && !word.busy(), "victim {page:?}: {word:?}");
            each(self, page, frame);
            out.push((page, frame));
        }
    }

    fn begin_park(&mut self, page: PageId) {
        self.table.set(page, self.table.get(page).begin_park());
        self.parking += 1;
        self.decide(Decision::Park(page));
    }

    /// As [`Vm::park_batch`], but for these pages, if they are mapped, and listed or watched.
    pub fn park_these(&mut self, pages: &[PageId], out: &mut Vec<Resident>) {
        out.clear();
        for &page in pages.iter().take(out.capacity()) {
            let word = self.table.get(page);
            if word.state() == State::Active && !word.busy() && !word.wired() {
                let frame = word.frame();
                if self.frames.on[frame.at()] != On::Watched {
                    self.policies.of(page).policy.take(frame);
                }
                self.unwatch_or_unlist(frame);
                self.begin_park(page);
                out.push((page, frame));
            }
        }
    }

    /// Whether a page of a batch is still to be parked. A page that was released or moved meanwhile is not: it gets no
    /// [`Vm::park_done`], and the threads that wait for it must be woken.
    pub fn is_parking(&self, page: PageId, frame: FrameId) -> bool {
        let word = self.table.get(page);
        word.parking() && word.frame() == frame
    }

    /// Records the outcome. Returns whether waiting faults must be woken. => [`Vm::is_parking`]
    pub fn park_done(&mut self, page: PageId, parked: Parked) -> bool {
        let word = self.table.get(page);
        let frame = word.frame();
        self.parking -= 1;
        match parked {
            Parked::Yes => {
                self.table.set(page, word.parked());
                self.counters.pages_parked.add(1);
                self.enqueue(frame, On::Inactive);
            }
            Parked::Refused => {
                self.table.set(page, word.not_parked());
                self.counters.pages_unmovable.add(1);
                self.list_again(word, |policy, frame| policy.refused(frame));
            }
            Parked::Used => {
                self.table.set(page, word.not_parked().used());
                self.counters.references_seen.add(1);
                self.counters.readahead_used.add(word.readahead() as u64);
                if !word.readahead() {
                    self.policies.rescued(page, self.limit);
                }
                self.list_again(word, |policy, frame| policy.referenced(frame));
            }
            Parked::Dropped => {
                self.evicted(page, frame, word.dropped(self.next_eviction()));
                self.counters.pages_reclaimed_clean.add(1);
                self.counters.readahead_lost.add(word.readahead() as u64);
                self.give_frame(frame);
                self.note_usage();
            }
            Parked::Absent => {
                // dropped without the pager's knowledge: it reads as zeroes from now on
                self.counters.pages_vanished.add(1);
                self.policies.of(page).remove(frame);
                self.table.set(page, word.released().wire(word.wired()));
                self.pager.release(page);
                self.give_frame(frame);
                self.note_usage();
            }
        }
        word.wanted()
    }

    /// Chooses parked pages to compare, oldest first. Each must be answered with [`Vm::launder_compared`]. Returns how many pages
    /// beside those are clean without a look, because they are read-only.
    pub fn launder_batch(&mut self, most: u32, out: &mut Vec<Laundry>) -> u32 {
        out.clear();
        let most = (most as usize).min(out.capacity());
        let mut turns = self.frames.queues.len(INACTIVE);
        let mut settled = 0;
        while out.len() + settled < most && turns > 0 {
            turns -= 1;
            let Some(frame) = self.frames.queues.front(INACTIVE).map(FrameId) else { break };
            self.dequeue(frame);
            let page = self.frames.page[frame.at()];
            let word = self.table.get(page);
            if word.laundering() {
                self.enqueue(frame, On::Inactive); // restored and parked again before its write has ended
                continue;
            }
            let home = self.at_home(page);
            if home.is_some_and(|home| home.access == Access::ReadOnly) {
                self.table.set(page, word.begin_launder().laundered(true));
                self.enqueue(frame, On::Clean);
                self.counters.pages_reclaimed_clean.add(1);
                self.decide(Decision::Clean(page));
                settled += 1;
                continue;
            }
            self.table.set(page, word.begin_launder());
            self.laundering += 1;
            self.enqueue(frame, On::Laundry);
            let passes_memory = word.passes_memory() || self.to_save.is_some();
            if home.is_some() {
                let stored = Some(self.base_of(frame)).filter(|base| *base != Tag::UNKNOWN);
                out.push(Laundry { page, frame, stored, at_home: true, of_file: true, in_memory: false, passes_memory });
                continue;
            }
            let stored = self.pager.stored(page);
            let in_memory = stored.is_some_and(|(slot, _)| self.pager.locate(slot).is_memory);
            let (stored, of_file) = (stored.map(|(_, tag)| tag), self.home(page.object()).is_some());
            out.push(Laundry { page, frame, stored, at_home: false, of_file, in_memory, passes_memory });
        }
        settled as u32
    }

    /// The content of a page of the batch is all zeroes, or has this tag. => a page of a file has its tag in any case
    pub fn launder_compared(&mut self, page: PageId, zero: bool, tag: Tag) -> Compared {
        let word = self.table.get(page);
        let Some(frame) = self.in_laundry(word) else {
            self.launder_end(page, word, false);
            return Compared::Settled;
        };
        if let Some(home) = self.at_home(page) {
            if tag != Tag::UNKNOWN && tag == self.base_of(frame) {
                return self.settle_unchanged(page, word, frame);
            }
            self.policies.of(page).policy.dirtied(frame);
            self.decide(Decision::Write(page));
            return if home.access == Access::CopyOnWrite { Compared::Write } else { Compared::WriteHome };
        }
        if zero {
            assert!(self.home(page.object()).is_none(), "the file has other content there");
            self.dequeue(frame);
            self.launder_end(page, word, false);
            let word = self.table.get(page);
            let wired = word.wired();
            self.table.set(page, word.released().wire(wired));
            self.pager.release(page);
            self.policies.of(page).remove(frame); // no ghost is kept: its next touch will be a first one
            self.note_unused(word);
            self.counters.pages_reclaimed.add(1);
            self.counters.pages_reclaimed_zero.add(1);
            self.decide(Decision::DropZero(page));
            return Compared::Drop(frame);
        }
        if let Some((slot, stored)) = self.pager.stored(page) {
            self.pool_size.compared(stored != tag);
            // on a device it would stay for ever, however often it is used
            let may_move = || !word.passes_memory() && !self.pager.locate(slot).is_memory && self.pager.memory_has_room();
            if stored == tag && !(self.pool_size.takes() && may_move()) {
                return self.settle_unchanged(page, word, frame);
            }
        }
        self.policies.of(page).policy.dirtied(frame);
        // A stored copy holds older content. Its slot is freed at once, so that full swap has room for the new one.
        self.pager.release(page);
        self.decide(Decision::Write(page));
        Compared::Write
    }

    /// A page in the laundry is as it is stored.
    fn settle_unchanged(&mut self, page: PageId, word: PageWord, frame: FrameId) -> Compared {
        self.dequeue(frame);
        self.launder_end(page, word, true);
        self.enqueue(frame, On::Clean);
        self.counters.pages_reclaimed_clean.add(1);
        self.decide(Decision::Clean(page));
        Compared::Settled
    }

    /// The frame, if the page is still parked with the content that its laundering began with. (A page that was restored, changed
    /// and parked again before its write has ended is on the inactive queue, not on the laundry.)
    pub(crate) fn in_laundry(&self, word: PageWord) -> Option<FrameId> {
        let parked = !word.laundering_orphaned() && !word.busy() && word.state() == State::Inactive;
        (parked && self.frames.on[word.frame().at()] == On::Laundry).then(|| word.frame())
    }

    pub(crate) fn launder_end(&mut self, page: PageId, word: PageWord, stored: bool) {
        self.laundering -= 1;
        self.table.set(page, word.laundered(stored));
    }

    /// Slots for a cluster of up to `want` pages, the first of which is `near`.
    pub fn launder_slots(&mut self, want: u32, near: PageId) -> Option<PageOut> {
        self.slots_or_copies(want, |pager| pager.alloc_run(want, near))
    }

    /// As [`Vm::launder_slots`], on devices that are not memory: for pages that memory has refused.
    pub fn launder_slots_past_memory(&mut self, want: u32, near: PageId) -> Option<PageOut> {
        self.slots_or_copies(want, |pager| pager.alloc_run_past_memory(want, near))
    }

    fn slots_or_copies(&mut self, want: u32, alloc: impl Fn(&mut P) -> Option<SlotRun>) -> Option<PageOut> {
        let mut run = alloc(&mut self.pager);
        if run.is_none() && self.free_copies(want) {
            run = alloc(&mut self.pager);
        }
        self.space_short = run.is_none();
        run.map(|run| self.page_out(run))
    }

    pub(crate) fn page_out(&self, run: SlotRun) -> PageOut {
        PageOut { first: run.first, location: self.pager.locate(run.first), count: run.count }
    }

    /// Gives back the slots of `run` from the one at `from` on, because nothing is to be written there.
    pub fn free_slots(&mut self, run: &PageOut, from: u32) {
        (from..run.count).for_each(|i| self.pager.free_slot(run.slot(i)));
    }

    /// Swap is full: frees up to `want` slots of mapped pages, so that such pages do not take room in both memory and swap. (Such a
    /// copy only saves a write if the page has not changed by its next eviction.) Looks at [`COPIES_SCAN_MAX`] frames, and
    /// continues there next time.
    fn free_copies(&mut self, want: u32) -> bool {
        let mut freed = 0;
        for _ in 0..COPIES_SCAN_MAX.min(self.frames.taken()) {
            self.copies_at = if self.copies_at + 1 < self.frames.taken() { self.copies_at + 1 } else { 0 };
            let frame = FrameId(self.copies_at);
            let page = self.frames.page[frame.at()];
            let word = self.table.get(page);
            if word.state() != State::Active || word.busy() || word.frame() != frame {
                continue;
            }
            let before = self.pager.used();
            if self.pager.release(page) {
                if self.pager.used() == before {
                    break; // a fork's other side still needs the slot, so giving up this side's copy gains nothing
                }
                freed += 1;
                if freed == want {
                    break;
                }
            }
        }
        freed > 0
    }

    /// Counts a write that was issued.
    pub fn launder_issued(&mut self, pages: u32) {
        self.counters.page_out_ops.add(1);
        self.counters.pages_out.add(pages as u64);
    }

    /// A page that is being laundered does not compress.
    pub fn launder_refused(&mut self, page: PageId) {
        let word = self.table.get(page);
        if word.laundering() && !word.laundering_orphaned() {
            self.table.set(page, word.refuse(true));
        }
    }

    /// A page's write has ended, or (`slot` is `None`) there was no slot for it. Returns `false` if the page was written but the
    /// pager has no room to remember where: then it stays in memory.
    pub fn launder_done(&mut self, page: PageId, slot: Option<Slot>, tag: Tag, result: IoResult) -> bool {
        let word = self.table.get(page);
        let (mut stored, mut remembered) = (false, true);
        match (slot, result) {
            (Some(slot), IoResult::Ok) if !word.laundering_orphaned() => {
                stored = self.pager.assign(page, slot, tag);
                remembered = stored;
                self.show_swap_used();
                self.counters.swap_peak_bytes.raise(self.counters.swap_used_bytes.get());
            }
            (Some(slot), result) => {
                self.pager.free_slot(slot);
                self.show_swap_used();
                if !matches!(result, IoResult::Ok) {
                    self.counters.write_errors.add(1);
                }
            }
            (None, _) => {}
        }
        let parked = self.in_laundry(word);
        self.launder_end(page, word, stored && parked.is_some());
        // If the page was restored meanwhile, the slot holds an older, perhaps equal copy: the tag will tell.
        if let Some(frame) = parked {
            self.dequeue(frame);
            self.enqueue(frame, if stored { On::Clean } else { On::Inactive });
        }
        remembered
    }

    pub(crate) fn show_swap_used(&self) {
        self.counters.swap_used_bytes.set(self.pager.used() * PAGE_SIZE as u64);
    }

    /// Takes the frames of clean pages, oldest first. The machine drops their content, then calls [`Vm::frames_dropped`].
    pub fn reclaim_batch(&mut self, most: u32, out: &mut Vec<Resident>) {
        out.clear();
        let most = (most as usize).min(out.capacity());
        while out.len() < most {
            let Some(frame) = self.frames.queues.front(CLEAN).map(FrameId) else { break };
            self.dequeue(frame);
            let page = self.frames.page[frame.at()];
            let word = self.table.get(page);
            self.evicted(page, frame, word.reclaimed(self.next_eviction()));
            self.note_unused(word);
            out.push((page, frame));
        }
    }

    fn next_eviction(&self) -> u32 {
        self.evictions.wrapping_add(1).max(1)
    }

    /// A page leaves memory, for a place where it is stored: `word` says so.
    fn evicted(&mut self, page: PageId, frame: FrameId, word: PageWord) {
        let past_memory = word.passes_memory() || self.at_home(page).is_some();
        self.evictions = word.evicted_at();
        self.table.set(page, word);
        self.policies.evicted(frame, page, self.limit);
        self.pool_size.page_out(past_memory);
        self.counters.pages_reclaimed.add(1);
        self.decide(Decision::Reclaim(page));
    }

    /// The parked content of these frames is gone.
    pub fn frames_dropped(&mut self, frames: impl Iterator<Item = FrameId>) {
        for frame in frames {
            self.give_frame(frame);
        }
        self.note_usage();
    }

    /// Whether nothing can be evicted, however long one waits: no page is listed, watched, inactive, clean or being written.
    pub fn nothing_to_evict(&self) -> bool {
        self.listed == 0
            && self.frames.queues.is_empty(WATCHED)
            && self.frames.queues.is_empty(INACTIVE)
            && self.frames.queues.is_empty(LAUNDRY)
            && self.frames.queues.is_empty(CLEAN)
            && self.laundering == 0
    }

    /// Pages being laundered now.
    pub fn laundering(&self) -> u32 {
        self.laundering
    }
}

//! swapoff: takes every page off a device while programs use it.
//!
//! ```text
//!   swapoff_begin -> Swapoff                                  no new content goes to the device from here on
//!   loop swapoff_next:
//!      Move(run)    read it;            swapoff_arrived       which pages are good and still there
//!                   repeat: slots on another device (launder_slots), write; swapoff_written for each page
//!                   swapoff_moved
//!      PageIn(op)   as any page-in (no other device has room): its pages are left parked. Pages that cannot be parked now
//!                   (EAGAIN) are tried again; the machine lets its reader of events in between
//!      Again        nothing to do, but many pages were looked at: the lock may be dropped here
//!      Wait         I/O is under way for the rest: go on when a read or write has ended
//!      NoRoom       nothing is under way and nothing fits: let the page daemon work, or cancel
//!      Done         the device is gone; its file can be closed
//! ```
//!
//! The page's state decides. A resident page gives its slot up at once. (A clean one becomes inactive again, so that it is written
//! elsewhere before its frame is taken.) A paged-out page is moved, or read in. A page that is being read gives its slot up when it
//! arrives.
//!
//! **No page is held during I/O.** A page of a run is not busy. Meanwhile it may be released, renamed, or faulted in from the old
//! slot, whose content stays because a leaving device gives out no slots. So the page is looked up again after the read and again
//! after the write, by *page, slot and tag*: it is moved only if it is still stored in that slot with that tag. (The tag serves as
//! the generation: if it is the same, so is the content that was copied.) If the swapoff was cancelled meanwhile, the data that was
//! read is void, because the slots may have been given out again. For that, [`MoveRun`] has the number of its leave.
//!
//! **It ends.** The walk goes over all objects again and again, until nothing is stored on the device, and no read or write of it
//! is under way. After the first pass only those writes, failed moves, and pages that were renamed behind the walk are left. A pass
//! that finds nothing to do answers `Wait`; it waits for I/O, which ends. A whole pass may find pages and move none: the other
//! devices fail, or a compressed device has slots but refuses these pages (they do not compress, or it has no memory for them).
//! Then the next pass brings pages into memory. If memory is full too, the answer is `NoRoom`, and the machine gives up when it has
//! got that often enough without [`Pager::device_use`] getting less.
//!
//! **Fork.** The parent's slots that children may still read are frozen. To give them up only defers their end, and they do not
//! keep the device: the child has the file open itself, so the file lives as long as a process reads it. In the child the device is
//! an inherited one, and a swapoff of the child's own takes it off in the same way. A swapoff is not inherited.
//!
//! A page that cannot be read stays at first, and the next pass reads it again: perhaps the device recovers. When the machine has
//! waited long enough, it has such pages lost ([`Swapoff::give_up_unreadable`]) or cancels. A damaged page is lost at once.
//!
//! Source: FreeBSD `swap_pager_swapoff_object` and its review D13545 (runs instead of single pages); Linux `try_to_unuse` (page
//! by page, counts to zero); read, not copied. Device to device without memory in between is our own.

use crate::config::{CLUSTER_PAGES_MAX, HOLE_PAGES_MAX};
use crate::frames::On;
use crate::page::{PageWord, State};
use crate::page_in::PageIn;
use crate::pager::{IoResult, Location, Pager, StoredRun};
use crate::types::{DeviceId, FrameId, ObjectId, PageId, Slot, Tag};
use crate::vm::Vm;

/// A swapoff under way, with the place of its walk. The machine holds it, and may drop it after [`Vm::swapoff_cancel`] or `Done`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Swapoff {
    device: DeviceId,
    leave: u32,
    at: PageId,
    /// This pass has found something to do.
    found: bool,
    /// The last pass read pages and moved none: the other devices failed or refused them. This one brings pages into memory.
    to_memory: bool,
    /// Pages were read in this pass, and some could not be.
    read: bool,
    unread: bool,
    /// Passes in a row in which none could be read, and some not.
    unreadable_passes: u32,
    /// What cannot be read is lost.
    gives_up: bool,
    /// Pages stored on the device when this pass began.
    left: u64,
    pages: u64,
    /// Failed writes by the time of the last `NoRoom`.
    write_errors: u64,
}

impl Swapoff {
    /// The device.
    pub fn device(&self) -> DeviceId {
        self.device
    }
    /// Forgets that other devices have refused pages, so that these are offered again. (For tests: it may never end.)
    pub fn forget_refusals(&mut self) {
        self.to_memory = false;
    }
    /// From now on pages that cannot be read are lost, until one can be read. Otherwise they stay where they are: the device may
    /// recover.
    pub fn give_up_unreadable(&mut self) {
        self.gives_up = true;
    }
    /// Passes over the whole device, in a row and until now, in which some pages could not be read, and no page could.
    pub fn unreadable_passes(&self) -> u32 {
        self.unreadable_passes
    }
    /// To be called when pages have been read: so many were, and so many could not be.
    pub fn note_read(&mut self, read: u32, unread: u32) {
        self.unread |= unread > 0;
        if read > 0 {
            (self.read, self.unreadable_passes, self.gives_up) = (true, 0, false);
        }
    }
    /// Pages that were stored there at the beginning, in pages. [`Pager::device_use`] says how many are left.
    pub fn pages(&self) -> u64 {
        self.pages
    }
}

/// What [`Vm::count_copies`] has counted so far.
#[derive(Clone, Copy, Default, Debug)]
pub struct Copies {
    /// Frames looked at.
    frames: u32,
    /// Resident pages with a copy on the device.
    there: u64,
    /// Clean pages with a copy on another one.
    droppable: u64,
}

/// Frames that [`Vm::count_copies`] looks at.
pub const COUNTED_FRAMES: u32 = 1024;

/// Why a swapoff cannot begin, with the figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SwapoffRefusal {
    /// There is no such device.
    NotThere,
    /// It is being emptied already.
    Leaving,
    /// The pages on it fit nowhere else.
    NoRoom {
        /// Pages that are stored only there, in pages.
        pages: u64,
        /// Free slots on other devices, in pages.
        swap_pages: u64,
        /// Frames that are free or whose content is stored elsewhere, in pages.
        memory_pages: u64,
    },
}

impl core::fmt::Display for SwapoffRefusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            SwapoffRefusal::NotThere => write!(f, "there is no such swap device"),
            SwapoffRefusal::Leaving => write!(f, "a swapoff of this device is under way already"),
            SwapoffRefusal::NoRoom { pages, swap_pages, memory_pages } => write!(
                f,
                "{} MiB are on this device, but only {} MiB are free on other swap devices and {} MiB in memory: add a device first",
                (pages + 255) >> 8,
                swap_pages >> 8,
                memory_pages >> 8
            ),
        }
    }
}

impl core::error::Error for SwapoffRefusal {}

/// Pages to move to another device: contiguous in the object and on the device that leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MoveRun {
    /// The first page.
    pub first: PageId,
    /// Its slot; page `first + i` is in slot `slot + i`.
    pub slot: Slot,
    /// Where the bytes of that slot are. Those of the others follow without a gap.
    pub location: Location,
    /// In pages, 1 to [`CLUSTER_PAGES_MAX`].
    pub count: u32,
    /// Bit `i`: page `i` is to be moved. The others are only read along. Bit 0 and bit `count - 1` are set at first; the machine
    /// clears those of pages that it could not check.
    pub wanted: u128,
    leave: u32,
    gives_up: bool,
}

/// What became of the pages of a run that was read ([`Swapoff::note_read`]), a bit for each as in [`MoveRun::wanted`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RunArrived {
    /// To be written elsewhere.
    pub good: u128,
    /// Lost: they are damaged, or unreadable ones are given up.
    pub lost: u128,
    /// They could not be read, and stay where they are.
    pub unread: u128,
}

impl MoveRun {
    /// Page `i` of the run.
    #[inline]
    pub fn page(&self, i: u32) -> PageId {
        self.first.offset(i as u64)
    }
    /// The slot of page `i`.
    #[inline]
    pub fn slot_of(&self, i: u32) -> Slot {
        Slot(self.slot.0 + i)
    }
}

/// What to do next for a swapoff. See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SwapoffStep {
    /// Read this run, then [`Vm::swapoff_arrived`]. Several may be under way.
    Move(MoveRun),
    /// Read these pages as for a fault.
    PageIn(PageIn),
    /// Call again; the lock may be dropped in between.
    Again,
    /// I/O is under way for all that is left. Call again when a read or write has ended.
    Wait,
    /// Nothing under way would help, and there is neither a slot elsewhere nor a free frame. (Failing writes do not help, though
    /// they are tried again and again.)
    NoRoom,
    /// Nothing needs the device any more; it is gone, and its number may be given to another.
    Done,
    /// The swapoff was cancelled.
    Cancelled,
}

impl<P: Pager> Vm<P> {
    /// Begins to take all pages off `device`. `copies`: pages that are known to be in memory too, by [`Vm::count_copies`].
    ///
    /// # Errors
    /// [`SwapoffRefusal`]; nothing is changed then. Where there is no room, it may help to count copies.
    pub fn swapoff_begin(&mut self, device: DeviceId, copies: Copies) -> Result<Swapoff, SwapoffRefusal> {
        let stored = self.pager.device_use(device).ok_or(SwapoffRefusal::NotThere)?.stored;
        let leave = self.pager.leave(device).ok_or(SwapoffRefusal::Leaving)?;
        let pages = stored.saturating_sub(copies.there);
        let swap_pages = self.pager.room();
        let memory_pages = self.spare_frames() as u64 + copies.droppable;
        if pages > swap_pages + memory_pages {
            self.pager.stay(device);
            return Err(SwapoffRefusal::NoRoom { pages, swap_pages, memory_pages });
        }
        Ok(Swapoff {
            device,
            leave,
            at: PageId::new(ObjectId(0), 0),
            found: false,
            to_memory: false,
            read: false,
            unread: false,
            unreadable_passes: 0,
            gives_up: false,
            left: u64::MAX,
            pages: stored,
            write_errors: self.write_errors(),
        })
    }

    fn write_errors(&self) -> u64 {
        self.counters.write_errors.get()
    }

    /// Counts the resident pages with a copy on `device`, and the clean pages with a copy on another one, among the next
    /// [`COUNTED_FRAMES`] frames: a walk over all of them would hold the lock for long. Returns `false` if none are left.
    pub fn count_copies(&self, device: DeviceId, copies: &mut Copies) -> bool {
        let first = copies.frames;
        copies.frames = self.frames.taken().min(first + COUNTED_FRAMES).max(first);
        for n in first..copies.frames {
            let page = self.frames.page[n as usize];
            let word = self.table.get(page);
            let resident = matches!(word.state(), State::Active | State::Inactive | State::Clean);
            if !resident || word.frame() != FrameId(n) {
                continue;
            }
            if let Some((slot, _)) = self.pager.stored(page) {
                let there = self.pager.locate(slot).device == device;
                copies.there += there as u64;
                copies.droppable += (!there && word.state() == State::Clean) as u64;
            }
        }
        copies.frames > first
    }

    /// Cancels the swapoff of `device`: the pages that are still there stay, and the device is used as before.
    pub fn swapoff_cancel(&mut self, device: DeviceId) {
        self.pager.stay(device);
    }

    /// The next step, of at most `most` pages (the machine's buffer) and at most [`CLUSTER_PAGES_MAX`].
    pub fn swapoff_next(&mut self, off: &mut Swapoff, most: u32) -> SwapoffStep {
        if self.pager.leaving(off.device) != Some(off.leave) {
            return SwapoffStep::Cancelled;
        }
        let scan = self.pager.next_on(off.device, off.at);
        let most = most.clamp(1, CLUSTER_PAGES_MAX as u32);
        let movable = scan.run.and_then(|run| self.movable(off, &run, most).map(|part| (run, part)));
        let Some((run, (skip, count, wanted))) = movable else {
            // nothing here, or all pages have been dealt with or are being read
            return match scan.next {
                Some(next) => {
                    off.at = next;
                    SwapoffStep::Again
                }
                None => self.swapoff_pass(off),
            };
        };
        let (first, slot) = (run.first.offset(skip as u64), Slot(run.slot.0 + skip));
        if self.pager.room() > 0 && !off.to_memory {
            off.found = true;
            off.at = PageId::from_raw(first.raw() + count as u64);
            self.moving += 1;
            self.pager.read_begun(slot);
            let location = self.pager.locate(slot);
            return SwapoffStep::Move(MoveRun { first, slot, location, count, wanted, leave: off.leave, gives_up: off.gives_up });
        }
        match self.bring_in(first, slot, count, wanted) {
            Some(op) => {
                off.found = true;
                off.at = PageId::from_raw(first.raw() + op.count as u64);
                SwapoffStep::PageIn(PageIn { gives_up: off.gives_up, ..op })
            }
            // writes under way make room, unless they only repeat writes that have failed
            None if !self.is_quiescent() && self.write_errors() == off.write_errors => SwapoffStep::Wait,
            None => {
                off.write_errors = self.write_errors();
                off.to_memory = false; // perhaps the other devices have recovered
                SwapoffStep::NoRoom
            }
        }
    }

    /// The walk has come to the end of the last object.
    fn swapoff_pass(&mut self, off: &mut Swapoff) -> SwapoffStep {
        let used = self.pager.device_use(off.device).expect("it leaves, so it is there");
        if used == crate::pager::DeviceUse::default() {
            self.pager.remove(off.device);
            return SwapoffStep::Done;
        }
        if self.moving > 0 {
            return SwapoffStep::Wait; // otherwise the same pages would be moved twice
        }
        off.at = PageId::new(ObjectId(0), 0);
        off.to_memory = off.read && off.left == used.stored;
        off.unreadable_passes += u32::from(off.unread && !off.read); // (one that has tried nothing does not count)
        (off.read, off.unread) = (false, false);
        off.left = used.stored;
        if used.stored > 0 && core::mem::take(&mut off.found) { SwapoffStep::Again } else { SwapoffStep::Wait }
    }

    /// Has resident pages of the run give up their slots. Returns the others, up to `most` pages: where they begin in the run, how
    /// many pages they span, and a bit for each. `None` if there are none, or all are being read.
    fn movable(&mut self, off: &mut Swapoff, run: &StoredRun, most: u32) -> Option<(u32, u32, u128)> {
        let (mut first, mut count, mut wanted) = (0, 0, 0u128);
        for i in 0..run.count {
            if count > 0 && (i - first >= most || i - first - count >= HOLE_PAGES_MAX) {
                break;
            }
            let page = run.first.offset(i as u64);
            let word = self.table.get(page);
            if word.state() != State::PagedOut {
                self.release_slot(page, word);
                off.found = true;
            } else if !word.busy() {
                if count == 0 {
                    first = i;
                }
                count = i - first + 1;
                wanted |= 1 << (i - first);
            }
        }
        (count > 0).then_some((first, count, wanted))
    }

    /// Gives up the stored copy of a page that is in memory too.
    pub(crate) fn release_slot(&mut self, page: PageId, word: PageWord) {
        self.pager.release(page);
        if word.state() == State::Clean {
            self.table.set(page, word.unstored());
            if !word.busy() {
                self.dequeue(word.frame());
                self.enqueue(word.frame(), On::Inactive);
            }
        }
    }

    /// Begins to read pages of a run into frames, as many as leave the page daemon its reserve.
    fn bring_in(&mut self, first: PageId, slot: Slot, count: u32, wanted: u128) -> Option<PageIn> {
        let mut left = self.spare_frames();
        let (mut span, mut taken, mut wants) = (0, 0, 0u128);
        self.read = self.read.wrapping_add(1);
        for i in (0..count).filter(|i| wanted >> i & 1 == 1) {
            let page = first.offset(i as u64);
            if left == 0 {
                break;
            }
            let Some(frame) = self.take_frame_to_read(page, 0) else { break };
            left -= 1;
            self.table.set(page, self.table.get(page).begin_fill(frame, false));
            wants |= 1 << i;
            taken += 1;
            span = i + 1;
        }
        if taken == 0 {
            return None;
        }
        Some(PageIn { parks: true, ..self.begin_read(first, slot, span, wants) })
    }

    /// The tag of page `i` of a run, if it is still stored in its slot of the run.
    pub fn swapoff_expected(&self, run: &MoveRun, i: u32) -> Option<Tag> {
        self.pager.stored(run.page(i)).filter(|(slot, _)| *slot == run.slot_of(i)).map(|(_, tag)| tag)
    }

    /// A run has been read. `result(i, expected)` returns the outcome of each page that is still there, having compared its content
    /// with `expected`. The contents of pages that are not to be written elsewhere are not needed.
    ///
    /// Then [`Vm::launder_slots`] and [`Vm::swapoff_written`] until all are written or there are no slots, and
    /// [`Vm::swapoff_moved`].
    pub fn swapoff_arrived(&mut self, run: &MoveRun, mut result: impl FnMut(u32, Tag) -> IoResult) -> RunArrived {
        self.pager.read_ended(run.slot);
        if self.pager.leaving(run.location.device) != Some(run.leave) {
            return RunArrived::default();
        }
        let mut arrived = RunArrived::default();
        for i in (0..run.count).filter(|i| run.wanted >> i & 1 == 1) {
            let page = run.page(i);
            let Some((_, expected)) = self.pager.stored(page).filter(|(slot, _)| *slot == run.slot_of(i)) else { continue };
            let word = self.table.get(page);
            if word.state() != State::PagedOut {
                self.release_slot(page, word); // it came in meanwhile
                continue;
            }
            if word.busy() {
                continue; // it is coming in
            }
            match result(i, expected) {
                IoResult::Ok => arrived.good |= 1 << i,
                IoResult::Again => arrived.unread |= 1 << i,
                IoResult::Io(_) if !run.gives_up => arrived.unread |= 1 << i,
                outcome => {
                    if outcome == IoResult::Corrupt {
                        self.counters.corrupt_pages.add(1);
                    }
                    self.counters.read_errors.add(1);
                    self.table.set(page, word.lost());
                    self.pager.release(page);
                    arrived.lost |= 1 << i;
                }
            }
        }
        arrived
    }

    /// Page `i` of a run, which had the tag `old`, has been written to `to` with the tag `new` (the same, unless it was sealed or
    /// opened on the way), with this result. Returns whether it is stored there now.
    pub fn swapoff_written(&mut self, run: &MoveRun, i: u32, to: Slot, (old, new): (Tag, Tag), result: IoResult) -> bool {
        self.copied(run.page(i), (run.slot_of(i), old), (to, new), result)
    }

    /// All work on a run is done.
    pub fn swapoff_moved(&mut self, run: MoveRun) {
        _ = run;
        self.moving -= 1;
        self.show_swap_used();
    }

    /// `page`, which had the tag `old` in the slot `from`, has been written to `to` with the tag `new`, with this result. Nothing
    /// was held meanwhile, so the page is looked up again. Returns whether it is stored in `to` now; if not, `to` is freed.
    pub(crate) fn copied(&mut self, page: PageId, (from, old): (Slot, Tag), (to, new): (Slot, Tag), result: IoResult) -> bool {
        let word = self.table.get(page);
        // A page that is being read from its old slot keeps that slot until it has arrived.
        let read = word.busy() && word.state() == State::PagedOut;
        if result == IoResult::Ok && self.pager.stored(page) == Some((from, old)) && !read {
            return self.pager.assign(page, to, new);
        }
        // (a compressed device that takes no more has not failed)
        if !matches!(result, IoResult::Ok | IoResult::NoSpace) {
            self.counters.write_errors.add(1);
        }
        self.pager.free_slot(to);
        false
    }
}

//! Frames: the page that each holds, and the queue that it is on.

use crate::page_queue::{ListId, Lists};
use crate::pager::Pager;
use crate::types::{FrameId, PageId, Tag};
use crate::vm::Vm;
use alloc::vec::Vec;

/// Entries for frames above the budget: one cluster per faulting thread, and pages that are adopted all at once.
pub const FRAMES_SLACK: usize = 8192;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum On {
    Nothing = 0,
    Inactive,
    Laundry,
    Clean,
    /// Mapped and given up by the policy: the kernel notes whether it is used.
    Watched,
}

pub(crate) const INACTIVE: ListId = 0;
pub(crate) const LAUNDRY: ListId = 1;
pub(crate) const CLEAN: ListId = 2;
pub(crate) const WATCHED: ListId = 3;

impl On {
    const fn queue(self) -> Option<ListId> {
        match self {
            On::Nothing => None,
            On::Inactive => Some(INACTIVE),
            On::Laundry => Some(LAUNDRY),
            On::Clean => Some(CLEAN),
            On::Watched => Some(WATCHED),
        }
    }
}

pub(crate) struct Frames {
    /// How many there are.
    pub(crate) count: usize,
    /// Of each frame that was ever taken. They have room for all, and are not filled beforehand: that takes milliseconds, of each
    /// process that begins.
    pub(crate) page: Vec<PageId>,
    pub(crate) on: Vec<On>,
    /// The queues of frames. The idle words of a frame that is on no queue:
    /// - free: the next free frame plus one, 0
    /// - being read into: `READ`, `EVICTED`
    /// - else: 0, 0
    pub(crate) queues: Lists<4>,
    free: u32,
}

/// The read that the frame was taken for. It tells a page that is being read from one that has been released since, and perhaps
/// read again.
pub(crate) const READ: usize = 0;

/// The number of its page's eviction, by the count of evictions; 0: not known.
const EVICTED: usize = 1;

impl Clone for Frames {
    fn clone(&self) -> Self {
        let Frames { count, free, .. } = *self;
        let mut new = Frames { queues: self.queues.clone(), free, ..Frames::new(count) };
        new.page.extend_from_slice(&self.page);
        new.on.extend_from_slice(&self.on);
        new
    }
}

impl Frames {
    pub(crate) fn new(count: usize) -> Self {
        let (page, on) = (Vec::with_capacity(count), Vec::with_capacity(count));
        Frames { count, page, on, queues: Lists::new(count), free: 0 }
    }
    /// Those that were ever taken.
    pub(crate) fn taken(&self) -> u32 {
        self.page.len() as u32
    }
    fn has_one(&self) -> bool {
        self.free != 0 || self.page.len() < self.count
    }
    pub(crate) fn take(&mut self, page: PageId) -> Option<FrameId> {
        if !self.has_one() {
            return None;
        }
        let n = match self.free.checked_sub(1) {
            Some(n) => {
                self.free = core::mem::take(self.queues.idle_words(n))[0];
                self.page[n as usize] = page;
                n
            }
            None => {
                self.page.push(page);
                self.on.push(On::Nothing);
                self.taken() - 1
            }
        };
        Some(FrameId(n))
    }
    /// A read into the frame has ended. Returns the number of its page's eviction.
    pub(crate) fn end_read(&mut self, frame: FrameId) -> u32 {
        core::mem::take(self.queues.idle_words(frame.0))[EVICTED]
    }
    fn give(&mut self, frame: FrameId) {
        assert_eq!(self.on[frame.at()], On::Nothing);
        *self.queues.idle_words(frame.0) = [self.free, 0];
        self.free = frame.0 + 1;
    }
}

impl<P: Pager> Vm<P> {
    /// Whether there is an entry for one frame more, within the budget or above it.
    pub fn has_frame(&self) -> bool {
        self.frames.has_one()
    }

    /// The numbers of inactive pages, of those being laundered, and of clean ones.
    pub fn queue_lengths(&self) -> (u32, u32, u32) {
        (self.frames.queues.len(INACTIVE), self.frames.queues.len(LAUNDRY), self.frames.queues.len(CLEAN))
    }

    /// The number of pages that are watched.
    pub fn watched(&self) -> u32 {
        self.frames.queues.len(WATCHED)
    }

    /// Whether there are pages in memory that could be written. Those of a flush do not count: it may itself wait for a frame.
    pub fn has_writable(&self) -> bool {
        self.frames.queues.len(INACTIVE) + self.frames.queues.len(LAUNDRY) > self.flushing
    }

    pub(crate) fn take_frame(&mut self, page: PageId) -> Option<FrameId> {
        let frame = self.frames.take(page)?;
        self.used += 1;
        if let Some(base) = self.base.get_mut(frame.at()) {
            *base = Tag::UNKNOWN;
        }
        Some(frame)
    }

    /// Takes a frame for `page`, to be filled by the read number `self.read`. `evicted_at` is the number of the page's eviction; 0:
    /// does not count.
    pub(crate) fn take_frame_to_read(&mut self, page: PageId, evicted_at: u32) -> Option<FrameId> {
        let frame = self.take_frame(page)?;
        *self.frames.queues.idle_words(frame.0) = [self.read, evicted_at];
        Some(frame)
    }

    pub(crate) fn give_frame(&mut self, frame: FrameId) {
        self.frames.give(frame);
        self.used -= 1;
    }

    pub(crate) fn enqueue(&mut self, frame: FrameId, on: On) {
        assert_eq!(self.frames.on[frame.at()], On::Nothing);
        self.frames.on[frame.at()] = on;
        if let Some(queue) = on.queue() {
            self.frames.queues.push_back(queue, frame.0);
        }
    }

    pub(crate) fn dequeue(&mut self, frame: FrameId) {
        if let Some(queue) = core::mem::replace(&mut self.frames.on[frame.at()], On::Nothing).queue() {
            self.frames.queues.remove(queue, frame.0);
        }
    }

    /// How many frames may be taken for pages that nobody waits for. The rest is the page daemon's reserve.
    pub(crate) fn spare_frames(&self) -> u32 {
        self.available().saturating_sub(self.least_free() / 2)
    }

    /// How many frames a decision may take: up to `want`, but only the first if no frames are spare.
    pub(crate) fn frames_for(&self, want: u32, over_budget: bool) -> u32 {
        if self.room() == 0 {
            return if over_budget { 1 } else { 0 };
        }
        want.min(self.spare_frames()).max(1)
    }
}

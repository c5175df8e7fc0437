//! Files: the home of an object's pages, instead of zeroes. A second kind of pager behind the same core, as FreeBSD's vnode pager
//! stands beside its swap pager.
//!
//! ```text
//!                 read-only           read-write                        copy-on-write
//!   page-in       from the file       from the file                     from swap if it is stored there, else from the file
//!   unchanged     dropped             dropped                           dropped
//!   changed       -                   written to the file               written to swap, which is its place from then on
//!   released      read again          read again (its change is lost)   read again (its change is lost)
//! ```
//!
//! A page that is *at home* is Untouched (it was never read) or PagedOut, and has no slot. It is read like a page that is in swap:
//! in clusters, ahead of streams, busy meanwhile. What it is at home lies in the file, where others may change it. So what is read
//! is not compared with anything.
//!
//! **Changed** is what differs from what the file has. For each frame with a page that was read from a file or written there, the
//! core keeps the tag of that content ([`Vm::set_base`]); the page daemon and [`Vm::flush_batch`] compare. A page without such a
//! tag counts as changed. Pages of a read-only object are not looked at: nobody is to write there.
//!
//! **One write at a time.** A page is written home only while it has the laundering flag, as with swap. So an older content never
//! overtakes a newer one on its way to the file. A page that was released during its write is not read before that write has ended.

use crate::frames::On;
use crate::home::{Access, Flush, FlushScan, Home, Homes};
use crate::page::State;
use crate::page_in::PageIn;
use crate::pager::{IoResult, Location, Pager};
use crate::types::{DeviceId, FrameId, ObjectId, PAGE_SHIFT, PageId, PageIndex, Tag};
use crate::vm::Vm;
use alloc::vec::Vec;
use core::ops::Range;

impl<P: Pager> Vm<P> {
    /// From now on the object's pages are at home in a file. `tags`: [`Vm::tags_wanted`] of them, all unknown, unless the
    /// object is read-only. => it has no page
    pub fn set_home(&mut self, object: ObjectId, home: Home, tags: Option<Vec<Tag>>) {
        assert!(home.access == Access::ReadOnly || tags.is_some() || !self.base.is_empty());
        if self.base.is_empty() {
            self.base = tags.unwrap_or_default();
        }
        self.homes[object.0 as usize] = Some(Homes { home, reading: 0, writing: 0, lost: 0, forgotten: 0, syncing: false });
    }

    /// How many tags [`Vm::set_home`] takes: one for each frame, or none if there are some already.
    pub fn tags_wanted(&self) -> usize {
        if self.base.is_empty() { self.frames.count } else { 0 }
    }

    /// The object has no home any more. => it has no page, and [`Vm::is_home_idle`]
    pub fn clear_home(&mut self, object: ObjectId) {
        assert!(self.is_home_idle(object), "a file is forgotten while it is read or written");
        self.homes[object.0 as usize] = None;
    }

    /// The object's home, if it is a file.
    pub fn home(&self, object: ObjectId) -> Option<Home> {
        self.homes.get(object.0 as usize).copied().flatten().map(|homes| homes.home)
    }

    /// The file has so many pages now.
    pub fn set_home_pages(&mut self, object: ObjectId, pages: PageIndex) {
        if let Some(homes) = &mut self.homes[object.0 as usize] {
            homes.home.pages = pages;
        }
    }

    /// Whether no read and no write of the object's file is under way.
    pub fn is_home_idle(&self, object: ObjectId) -> bool {
        self.homes[object.0 as usize].is_none_or(|homes| homes.reading == 0 && homes.writing == 0)
    }

    /// Counts a read or a write of the file that begins (1) or ends (-1).
    pub(crate) fn home_reads(&mut self, object: ObjectId, change: i32) {
        let homes = self.homes[object.0 as usize].as_mut().expect("it is being read");
        homes.reading = homes.reading.checked_add_signed(change).expect("a read ended that had not begun");
    }

    /// A write to the file begins. It ends by [`Vm::home_written`], page by page, and then [`Vm::home_write_ended`].
    pub fn home_write_begins(&mut self, object: ObjectId, pages: u32) {
        self.homes[object.0 as usize].as_mut().expect("its pages are written").writing += 1;
        self.counters.file_write_ops.add(1);
        self.counters.file_pages_out.add(pages as u64);
    }

    /// All pages of a write have been reported.
    pub fn home_write_ended(&mut self, object: ObjectId) {
        self.homes[object.0 as usize].as_mut().expect("it was being written").writing -= 1;
    }

    /// The home of the page's content: it is not in swap. `None` if its home is no file.
    #[inline]
    pub(crate) fn at_home(&self, page: PageId) -> Option<Home> {
        let home = self.home(page.object())?;
        self.is_at(&home, page).then_some(home)
    }

    /// Whether a page of the object of that home is at home.
    #[inline]
    pub(crate) fn is_at(&self, home: &Home, page: PageId) -> bool {
        home.access != Access::CopyOnWrite || self.pager.tag(page).is_none()
    }

    /// Where a page lies in its file.
    pub fn home_location(home: &Home, page: PageId) -> Location {
        Location {
            device: DeviceId::HOME,
            file: page.object().0,
            is_memory: false,
            offset: home.offset + (page.index() << PAGE_SHIFT),
        }
    }

    /// Whether a page of the range is being written.
    pub fn is_writing(&mut self, object: ObjectId, range: Range<PageIndex>) -> bool {
        let (first, count) = (PageId::new(object, range.start), range.end - range.start);
        self.each_of_some(first, count, u64::MAX, |vm, page| !vm.table.get(page).laundering()).is_none()
    }

    /// The page was read from its file, or written there, with this tag. => it has a frame
    pub fn set_base(&mut self, page: PageId, tag: Tag) {
        let word = self.table.get(page);
        if word.has_frame()
            && let Some(base) = self.base.get_mut(word.frame().at())
        {
            *base = tag;
        }
    }

    /// As [`Vm::set_base`], for page `i` of a read. If tags were forgotten since it began, the page counts as changed: what was
    /// read may not have reached the device.
    pub fn set_base_read(&mut self, op: &PageIn, i: u32, tag: Tag) {
        if self.forgotten(op.first.object()) == op.forgotten {
            self.set_base(op.page(i), tag);
        }
    }

    pub(crate) fn forgotten(&self, object: ObjectId) -> u32 {
        self.homes[object.0 as usize].map_or(0, |homes| homes.forgotten)
    }

    pub(crate) fn base_of(&self, frame: FrameId) -> Tag {
        self.base.get(frame.at()).copied().unwrap_or(Tag::UNKNOWN)
    }

    /// Somebody will flush the object's file and wait for its device, and until [`Vm::sync_ends`] nobody else may. Returns `false`
    /// if somebody else does at present. => it has a home
    #[must_use]
    pub fn sync_begins(&mut self, object: ObjectId) -> bool {
        let homes = self.homes[object.0 as usize].as_mut().expect("its pages are flushed");
        !core::mem::replace(&mut homes.syncing, true)
    }

    /// See [`Vm::sync_begins`].
    pub fn sync_ends(&mut self, object: ObjectId) {
        self.homes[object.0 as usize].as_mut().expect("its pages are flushed").syncing = false;
    }

    /// These pages count as changed until they are written again: what was written may not have reached the device. So do pages
    /// whose write or read is under way: the file's device may have ended it already.
    pub fn forget_bases(&mut self, object: ObjectId, range: Range<PageIndex>) {
        if let Some(homes) = &mut self.homes[object.0 as usize] {
            homes.forgotten = homes.forgotten.wrapping_add(1);
        }
        let (first, count) = (PageId::new(object, range.start), range.end - range.start);
        self.each_of_some(first, count, u64::MAX, |vm, page| {
            vm.forget_base(page);
            true
        });
    }

    fn forget_base(&mut self, page: PageId) {
        let word = self.table.get(page);
        self.set_base(page, Tag::UNKNOWN);
        if word.laundering() {
            if let Some(frame) = self.in_laundry(word) {
                self.dequeue(frame);
                self.enqueue(frame, On::Inactive);
            }
            return self.table.set(page, word.orphan_write());
        }
        if word.state() == State::Clean {
            self.table.set(page, word.unstored());
            if !word.busy() {
                self.dequeue(word.frame());
                self.enqueue(word.frame(), On::Inactive);
            }
        }
    }

    /// A page's write to its file has ended, or was not begun (`Beyond`: the file ends before it). After a write that failed nobody
    /// knows what the file has, so the page counts as changed whatever its content.
    pub fn home_written(&mut self, page: PageId, tag: Tag, result: IoResult) {
        let word = self.table.get(page);
        let there = !word.laundering_orphaned();
        let mut stored = false;
        match result {
            IoResult::Ok => stored = there,
            IoResult::NoSpace | IoResult::Io(_) | IoResult::Corrupt => self.counters.file_write_errors.add(1),
            IoResult::Beyond | IoResult::Again => {}
        }
        let parked = self.in_laundry(word);
        self.set_base(page, if stored { tag } else { Tag::UNKNOWN });
        self.launder_end(page, word, stored && parked.is_some());
        if let Some(frame) = parked {
            self.dequeue(frame);
            self.enqueue(frame, if stored { On::Clean } else { On::Inactive });
        }
    }

    /// The file has become so short that a page that was to be written lies beyond its end. It is lost. Returns the frame whose
    /// parked content is to be dropped, then [`Vm::frames_dropped`]; `None` if the page is not parked any more.
    pub fn home_is_shorter(&mut self, page: PageId) -> Option<FrameId> {
        let word = self.table.get(page);
        let parked = self.in_laundry(word);
        self.set_base(page, Tag::UNKNOWN); // if it has been touched, it stays, and the file has nothing of it
        self.launder_end(page, word, false);
        let frame = parked?;
        self.dequeue(frame);
        self.table.set(page, self.table.get(page).given_up());
        self.policies.of(page).remove(frame);
        self.home_is_cut(page.object());
        Some(frame)
    }

    /// A page has changes that its file, which has become shorter, has no room for. They are lost.
    pub fn home_is_cut(&mut self, object: ObjectId) {
        self.counters.file_pages_lost.add(1);
        if let Some(homes) = &mut self.homes[object.0 as usize] {
            homes.lost += 1;
        }
    }

    /// A page is not written after all, because its file's writes fail at present. It stays changed.
    pub fn home_put_back(&mut self, page: PageId) {
        self.home_written(page, Tag::UNKNOWN, IoResult::Beyond);
    }

    /// How many changed pages were given up because the file had become too short, since the last call.
    pub fn take_home_lost(&mut self, object: ObjectId) -> u32 {
        self.homes[object.0 as usize].as_mut().map_or(0, |homes| core::mem::take(&mut homes.lost))
    }

    /// A page that counts as mapped was gone from the program's memory. => it was removed
    pub fn vanished(&mut self, page: PageId) {
        let word = self.table.get(page);
        assert!(word.state() == State::Active && !word.busy(), "vanished: {page:?} {word:?}");
        if !word.wired() {
            self.unlist_mapped(word.frame());
        }
        self.table.set(page, word.released().wire(word.wired()));
        self.give_frame(word.frame());
        self.note_usage();
    }

    /// Chooses pages of `at..end` that are in memory, to be compared, from `at` on, as many as `out` has room for. Each must be
    /// answered with [`Vm::flush_settled`] or [`Vm::flush_written`]. => the object is read-write
    pub fn flush_batch(&mut self, object: ObjectId, at: PageIndex, end: PageIndex, out: &mut Vec<Flush>) -> FlushScan {
        out.clear();
        let mut next = PageId::new(object, at);
        while let Some(page) = self.table.next_present(next, end) {
            let word = self.table.get(page);
            let resident = matches!(word.state(), State::Active | State::Inactive);
            // Also if its content was given up: it is on its way to the file. And also if it is being read: the program may have it
            // already and have changed it, before that is reported.
            if word.laundering() || word.busy() {
                return FlushScan { next: page.index(), waits: true };
            }
            if resident {
                if out.len() == out.capacity() {
                    return FlushScan { next: page.index(), waits: false };
                }
                self.table.set(page, word.begin_flush());
                self.laundering += 1;
                self.flushing += 1;
                let parked = (word.state() == State::Inactive).then(|| word.frame());
                out.push(Flush { page, parked, base: self.base_of(word.frame()) });
            }
            if page.index() + 1 >= end {
                break;
            }
            next = page.offset(1);
        }
        FlushScan { next: end, waits: false }
    }

    /// As [`Vm::home_written`], for a page of a flush.
    pub fn flush_written(&mut self, page: PageId, tag: Tag, result: IoResult) {
        self.flushing -= 1;
        self.home_written(page, tag, result);
    }

    /// A page of a flush is unchanged, or could not be copied.
    pub fn flush_settled(&mut self, page: PageId) {
        self.flushing -= 1;
        let word = self.table.get(page);
        self.launder_end(page, word, false);
    }
}

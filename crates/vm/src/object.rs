//! The program's actions on its pages: it gives them up, moves them, wires them, or has them before they are managed.

use crate::frames::On;
use crate::page::{PageWord, State};
use crate::pager::Pager;
use crate::policy::Admit;
use crate::types::{FrameId, PageId};
use crate::vm::{Decision, Vm};

impl<P: Pager> Vm<P> {
    /// Manages a page that is present already. Returns `false` if there is no room to remember it.
    pub fn adopt(&mut self, page: PageId) -> bool {
        let word = self.table.get(page);
        if word.busy() || word.state() != State::Untouched {
            return true;
        }
        if !self.has_frame() || !self.table.reserve(page) {
            return false;
        }
        let frame = self.take_frame(page).expect("there is one");
        self.table.set(page, word.begin_fill(frame, false).mapped());
        if !word.wired() {
            self.list(frame, page, Admit::Adopted);
        }
        self.counters.adopted_pages.add(1);
        self.note_usage();
        true
    }

    /// Wires the page, so that it never leaves memory once it is there, or ends that. Returns `false` if there is no room to
    /// remember it.
    pub fn wire(&mut self, page: PageId, wired: bool) -> bool {
        let word = self.table.get(page);
        if word.wired() != wired {
            if !self.table.reserve(page) {
                return false;
            }
            self.table.set(page, word.wire(wired));
            if word.state() == State::Active && !word.busy() {
                if wired {
                    self.unlist_mapped(word.frame());
                } else {
                    self.list(word.frame(), page, Admit::FirstTouch);
                }
            }
        }
        true
    }

    /// A range that was not managed is gone: new pages at its addresses are not wired.
    pub fn unwire_range(&mut self, first: PageId, count: u64) {
        let (mut at, end) = (first, first.index() + count);
        while let Some(page) = self.table.next_present(at, end) {
            self.wire(page, false);
            at = page.offset(1);
        }
    }

    /// Gives up the pages of `first..first + count`: their content is forgotten, here and on the device.
    ///
    /// `parked(frame)` is called for each frame with parked content before the frame is free again. Mapped pages need no call. =>
    /// no restore of these pages is under way (the machine excludes them). Reads may be: the data is thrown away when it arrives
    /// ([`Destination::Discard`](crate::Destination::Discard)). The pages may be in a batch to be parked: then they leave it
    /// ([`Vm::is_parking`]).
    pub fn release_range(&mut self, first: PageId, count: u64, parked: impl FnMut(FrameId)) -> u64 {
        let before = self.counters.released_pages.get();
        self.release_some(first, count, false, u64::MAX, parked);
        self.counters.released_pages.get().saturating_sub(before) // a program can change the counter
    }

    /// As [`Vm::release_range`], but looks at no more than `most` pages that are not untouched. Returns how many pages of the range
    /// are done, from the first on.
    ///
    /// `keep_mapped`: mapped pages stay as they are. The program is about to discard them itself, or may go on using them
    /// (MADV_FREE). A page that it does discard is found absent at its next fault, or when it is to be parked.
    pub fn release_some(
        &mut self,
        first: PageId,
        count: u64,
        keep_mapped: bool,
        most: u64,
        mut parked: impl FnMut(FrameId),
    ) -> u64 {
        let mut released = 0;
        let done = self.each_of_some(first, count, most, |vm, page| {
            let word = vm.table.get(page);
            // nothing to do for a page that stays: not even a write of its earlier content matters, because tags are compared
            if !(keep_mapped && word.state() == State::Active) {
                released += u64::from(vm.release_one(page, word, &mut parked));
            }
            true
        });
        let done = done.expect("no page is refused");
        self.pager.release_range(first, done);
        self.counters.released_pages.add(released);
        self.show_swap_used();
        self.note_usage();
        done
    }

    /// Gives up the mapped pages of the range that `is_absent`, which is asked in order: they are gone from the program's memory,
    /// and read as zeroes. Wired pages stay as they are. Looks at no more than `most` pages that are not untouched. Returns how
    /// many pages of the range are done, from the first on.
    pub fn release_absent(&mut self, first: PageId, count: u64, most: u64, mut is_absent: impl FnMut(PageId) -> bool) -> u64 {
        let mut released = 0;
        let done = self.each_of_some(first, count, most, |vm, page| {
            let word = vm.table.get(page);
            if word.state() == State::Active && !word.busy() && !word.wired() && is_absent(page) {
                vm.release_one(page, word, &mut |_| unreachable!("it is mapped"));
                vm.pager.release(page);
                released += 1;
            }
            true
        });
        self.counters.released_pages.add(released);
        self.show_swap_used();
        self.note_usage();
        done.expect("no page is refused")
    }

    /// Calls `act` with up to `most` pages of the range, those that are not untouched. Returns how many pages of the range are
    /// done, from the first on; `None` if `act` has refused one.
    pub(crate) fn each_of_some(
        &mut self,
        first: PageId,
        count: u64,
        most: u64,
        mut act: impl FnMut(&mut Self, PageId) -> bool,
    ) -> Option<u64> {
        let end = first.index() + count;
        let (mut at, mut left) = (first, most);
        while let Some(page) = self.table.next_present(at, end) {
            if left == 0 {
                return Some(page.index() - first.index());
            }
            if !act(self, page) {
                return None;
            }
            left -= 1;
            if page.index() + 1 >= end {
                break;
            }
            at = page.offset(1);
        }
        Some(count)
    }

    fn release_one(&mut self, page: PageId, word: PageWord, parked: &mut impl FnMut(FrameId)) -> bool {
        if word.has_frame() {
            let frame = word.frame();
            if word.parking() {
                self.parking -= 1; // the page daemon has it in a batch, and will find it gone
                self.policies.of(page).remove(frame);
            } else if word.busy() {
                assert!(matches!(word.state(), State::Untouched | State::PagedOut), "released under way: {page:?} {word:?}");
            } else if word.state() == State::Active {
                if !word.wired() {
                    self.unlist_mapped(frame);
                }
            } else {
                self.dequeue(frame);
                self.policies.of(page).remove(frame);
                parked(frame);
            }
            self.give_frame(frame);
        } else if word.state() == State::PagedOut {
            self.policies.of(page).policy.forget(page);
        }
        self.table.set(page, word.released());
        self.decide(Decision::Release(page));
        word.state() != State::Untouched || word.busy()
    }

    /// The pages of `from..from + count` are now found at `to` (mremap). `to` must be untouched. Returns `false` if there is no
    /// room to remember the new place of a page. Then its content cannot be found any more, so the program must not go on.
    #[must_use]
    pub fn rename_range(&mut self, from: PageId, to: PageId, count: u64) -> bool {
        self.rename_some(from, to, count, u64::MAX).is_some()
    }

    /// As [`Vm::rename_range`], but moves no more than `most` pages. Returns how many pages of the range are done, from the first
    /// on; `None` if there is no room.
    #[must_use]
    pub fn rename_some(&mut self, from: PageId, to: PageId, count: u64, most: u64) -> Option<u64> {
        self.each_of_some(from, count, most, |vm, page| vm.rename_one(page, to.offset(page.index() - from.index())))
    }

    fn rename_one(&mut self, page: PageId, new: PageId) -> bool {
        let mut word = self.table.get(page);
        let there = self.table.get(new);
        assert_eq!(page.object(), new.object(), "a page has the policy of its object");
        assert!(there.state() == State::Untouched && !there.busy(), "moved onto a page: {new:?} {there:?}");
        // An untouched page has nothing to be moved but its wired flag. A write of it that is under way stays.
        let is_nothing = word.state() == State::Untouched && !word.wired();
        if !is_nothing && !self.table.reserve(new) || word.state() != State::Untouched && !self.pager.rename(page, new) {
            return false;
        }
        if word.parking() {
            self.parking -= 1; // the page daemon has it in a batch by its old address: it stays mapped
            self.list_again(word, |policy, frame| policy.refused(frame));
            word = word.not_parked();
        }
        let mut moved = word;
        if word.busy() {
            // a read is under way; the content is still in the slot, and the data that arrives will be thrown away
            assert!(word.state() == State::PagedOut, "moved under way: {page:?} {word:?}");
            self.give_frame(word.frame());
            moved = word.not_filled();
        }
        if moved.state() == State::PagedOut {
            self.policies.of(page).policy.forget(page); // a policy knows an evicted page by its address
        }
        if moved.has_frame() {
            let frame = moved.frame();
            if self.frames.on[frame.at()] == On::Laundry {
                self.dequeue(frame);
                self.enqueue(frame, On::Inactive);
            }
            self.frames.page[frame.at()] = new;
        }
        // A write under way of either address stays with that address, orphaned. The wired flag moves along, even for an untouched
        // page.
        self.table.set(new, PageWord::from_raw(there.released().raw() | moved.renamed().raw()));
        self.table.set(page, word.released());
        true
    }
}

//! Faults: what a touch of a page is answered.

use crate::direction::Direction;
use crate::frames::On;
use crate::page::{PageWord, State};
use crate::page_in::{Filled, PageIn};
use crate::pager::Pager;
use crate::policy::Admit;
use crate::types::{FrameId, PageId, PageIndex};
use crate::vm::{Decision, Vm};
use core::ops::Range;

/// The answer to a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The core believes it is mapped. The machine must try to fill it with zeroes and take "it exists" for good: if the kernel
    /// has dropped the page behind the pager's back (it may, after a discard), this is what brings it back.
    Mapped,
    /// Something is under way; the page is woken when it ends.
    Busy,
    /// Map the parked page back. `ahead`: it was a readahead trigger, so read on.
    Restore {
        /// Its frame.
        frame: FrameId,
        /// The next window of the reader's stream.
        ahead: Option<PageIn>,
    },
    /// Map empty pages, `count` of them from `first` on, the faulted page among them. All are busy now.
    ZeroFill {
        /// The first of them.
        first: PageId,
        /// In pages, at least 1.
        count: u32,
    },
    /// Read these pages. All are busy now.
    PageIn(PageIn),
    /// No frame is free. Help the page daemon or wait for it, then fault again.
    NoMemory,
    /// The page could not be read back earlier.
    Lost,
    /// The page table has no room for it, and will have none before much is released.
    TableFull,
}

impl<P: Pager> Vm<P> {
    /// A touch of `page`, which lies in the managed range `bounds` (page indices of its object).
    ///
    /// `over_budget`: take a frame although none is free (nothing could be evicted; counted).
    pub fn fault(&mut self, page: PageId, bounds: Range<PageIndex>, over_budget: bool) -> Fault {
        debug_assert!(bounds.contains(&page.index()));
        let word = self.table.get(page);
        if word.busy() {
            self.table.set(page, word.want());
            self.counters.busy_faults.add(1);
            return Fault::Busy;
        }
        match word.state() {
            State::Active => {
                self.counters.spurious_faults.add(1);
                self.decide(Decision::Mapped(page));
                Fault::Mapped
            }
            // a write holds what is parked, so for a while there would be two copies
            State::Inactive if word.laundering() && self.room() == 0 && !over_budget => Fault::NoMemory,
            State::Inactive | State::Clean if self.charge_total() >= u64::from(self.promised) && !over_budget => Fault::NoMemory,
            State::Inactive | State::Clean => self.fault_soft(page, word, bounds),
            State::Untouched if self.home(page.object()).is_some() => self.fault_at_home(page, word, bounds, over_budget),
            State::Untouched => self.fault_first(page, bounds, over_budget),
            State::PagedOut => self.fault_hard(page, word, bounds, over_budget),
            State::Lost => Fault::Lost,
        }
    }

    /// Whether several threads of the program read pages now, as far as is known: then a soft fault costs more.
    pub fn set_several_read(&mut self, several: bool) {
        self.inactive_share.set_several(several);
    }

    /// From now on a first touch fills one page only: the program itself will serve faults of memory that nobody has touched.
    pub fn fill_alone(&mut self) {
        self.fills_alone = true;
    }

    fn fault_soft(&mut self, page: PageId, word: PageWord, bounds: Range<PageIndex>) -> Fault {
        let frame = word.frame();
        self.dequeue(frame);
        self.table.set(page, word.begin_restore());
        self.counters.soft_faults.add(1);
        if !word.awaited() {
            self.inactive_share.soft_fault(self.evictions, self.limit);
        }
        self.decide(Decision::Restore(page));
        if word.readahead() {
            self.counters.readahead_used.add(1);
            self.counters.readahead_rescued.add(!word.trigger() as u64);
        } else if !word.awaited() {
            self.policies.rescued(page, self.limit);
        }
        self.note_inactive(word, true);
        let ahead = if word.trigger() { self.reads.find(page).and_then(|s| self.read_on(s, page, bounds)) } else { None };
        self.charge(1); // for the program's copy; the window has left room for it
        Fault::Restore { frame, ahead }
    }

    fn fault_first(&mut self, page: PageId, bounds: Range<PageIndex>, over_budget: bool) -> Fault {
        if self.room() == 0 && !over_budget {
            return Fault::NoMemory;
        }
        let (stream, window) = self.zeroes.fault(page);
        let window = if self.fills_alone { 1 } else { window };
        let direction = stream.map_or(Direction::Up, |at| self.zeroes.direction(at));
        let most = self.frames_for(direction.clip(page, window, &bounds), over_budget);
        self.count_over_budget();
        let mut count = 0;
        while count < most {
            let p = direction.step(page, count);
            let word = self.table.get(p);
            if count > 0 && (word.busy() || word.state() != State::Untouched) {
                break;
            }
            if !self.has_frame() {
                break;
            }
            if !self.table.reserve(p) {
                if count == 0 {
                    return Fault::TableFull;
                }
                break;
            }
            let frame = self.take_frame(p).expect("there is one");
            self.table.set(p, word.begin_fill(frame, count > 0));
            count += 1;
        }
        if count == 0 {
            return Fault::NoMemory;
        }
        stream.map(|at| self.zeroes.advance(at, direction.step(page, count)));
        self.counters.zero_fills.add(count as u64);
        self.counters.zero_ahead_pages.add(count as u64 - 1);
        self.decide(Decision::ZeroFill(page, count));
        self.note_usage();
        Fault::ZeroFill { first: direction.lowest(page, count), count }
    }

    /// The first touch of a page of a file.
    fn fault_at_home(&mut self, page: PageId, word: PageWord, bounds: Range<PageIndex>, over_budget: bool) -> Fault {
        // it was released while it was being written, so there is no telling what would be read
        if word.laundering() {
            return Fault::NoMemory;
        }
        if !self.table.reserve(page) {
            return Fault::TableFull;
        }
        self.fault_hard(page, word.at_home(), bounds, over_budget)
    }

    fn fault_hard(&mut self, page: PageId, word: PageWord, bounds: Range<PageIndex>, over_budget: bool) -> Fault {
        if self.room() == 0 && !over_budget {
            return Fault::NoMemory;
        }
        let (stream, window) = self.reads.fault(page);
        self.count_over_budget();
        self.counters.hard_faults.add(1);
        let in_memory = self.is_in_memory(page);
        if let Some(distance) = self.evictions_since(word.evicted_at()) {
            self.inactive_share.hard_fault(distance, in_memory, self.evictions, self.limit);
        }
        let cluster = match stream {
            Some(_) => self.read_cluster(stream, page, window, bounds, true, over_budget),
            None => self.read_single(page, in_memory, bounds, over_budget),
        };
        match cluster {
            Some(cluster) => Fault::PageIn(cluster),
            None => Fault::NoMemory,
        }
    }

    /// A touch of a page whose last read has failed: it is read once more, by itself, and nothing is learned from it.
    /// => it is paged out, and not busy
    pub fn fault_again(&mut self, page: PageId, over_budget: bool) -> Fault {
        let bounds = page.index()..page.index() + 1;
        if self.room() == 0 && !over_budget {
            return Fault::NoMemory;
        }
        self.count_over_budget();
        self.read_cluster(None, page, 1, bounds, true, over_budget).map_or(Fault::NoMemory, Fault::PageIn)
    }

    /// A parked page is mapped again (`No`: it could not be, it stays parked). Returns whether waiting faults must be woken. If it
    /// is mapped, the caller charges the parked copy until that is dropped.
    pub fn restore_done(&mut self, page: PageId, filled: Filled) -> bool {
        self.uncharge(1);
        let word = self.table.get(page);
        let frame = word.frame();
        match filled {
            Filled::Mapped => {
                self.table.set(page, word.mapped());
                self.list_again(word, |policy, frame| match (word.awaited(), word.passing()) {
                    (false, _) => policy.referenced(frame),
                    (true, false) => policy.reached(frame, page, Admit::HardFault),
                    (true, true) => policy.reached(frame, page, Admit::Passing),
                });
            }
            Filled::Parked | Filled::No => {
                // Not back on the laundry: the write under way may be of what it held before it was last mapped.
                let on = if word.state() == State::Clean { On::Clean } else { On::Inactive };
                self.table.set(page, word.not_restored());
                self.enqueue(frame, on);
            }
        }
        word.wanted() || filled != Filled::Mapped
    }

    /// One page of a zero fill. Returns whether waiting faults must be woken.
    pub fn fill_done(&mut self, page: PageId, filled: Filled) -> bool {
        let word = self.table.get(page);
        let frame = word.frame();
        if filled == Filled::Mapped {
            self.table.set(page, word.mapped().used());
            if !word.wired() {
                self.list(frame, page, if word.readahead() { Admit::ZeroAhead } else { Admit::FirstTouch });
            }
        } else {
            self.table.set(page, word.not_filled());
            self.give_frame(frame);
            self.note_usage();
        }
        word.wanted() || filled != Filled::Mapped
    }
}

//! What is still to be done to the pages of ranges that are unmapped, discarded or moved.

use crate::ranges::Range;
use overspill_vm::types::{PAGE_SHIFT, PageId};
use std::collections::VecDeque;

/// What is to be done to the pages of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// They are given up.
    GiveUp,
    /// They are given up, except for those that are mapped: the program discards these itself.
    GiveUpUnmapped,
    /// Those that are mapped as far as is known, but are absent, are given up: the program has discarded them.
    GiveUpAbsent,
    /// They are found at this address from now on.
    Rename(usize),
}

/// Work on a range. Its first pages are done first, and leave it.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// What is left of the range, as it was when the work was found.
    pub range: Range,
    /// What is to be done.
    pub work: Work,
}

impl Task {
    /// The new address of the first page that is left, if the pages are renamed.
    fn target(&self) -> Option<usize> {
        match self.work {
            Work::GiveUp | Work::GiveUpUnmapped | Work::GiveUpAbsent => None,
            Work::Rename(to) => Some(to),
        }
    }
    /// The page that it becomes.
    pub(crate) fn to(&self) -> Option<PageId> {
        self.target().map(|start| Range { start, ..self.range }.page(start))
    }
    /// The ranges of addresses that the work concerns.
    fn ranges(&self) -> impl Iterator<Item = (usize, usize)> {
        let Range { start, end, .. } = self.range;
        [Some(start), self.target()].into_iter().flatten().map(move |at| (at, at + (end - start)))
    }
}

/// Work on pages that is done in steps, in the order in which it was found. Between steps all locks are free.
///
/// The map has the new state of the ranges already, and the core still has the old state of these pages. So until a page is done,
/// no page is filled or taken at the addresses that the work concerns: the pager refuses that as the kernel does while a report is
/// unread (EAGAIN). A thread that misses a page there does a step, and looks again. Nothing else is managed there before the work
/// is done.
#[derive(Debug)]
pub struct Backlog {
    tasks: VecDeque<Task>,
}

/// Tasks at a time. Then some are done at once.
const TASKS_MAX: usize = 1024;

impl Backlog {
    /// None.
    pub fn new() -> Self {
        Backlog { tasks: VecDeque::with_capacity(TASKS_MAX) }
    }
    /// Whether nothing is left to be done.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }
    pub(crate) fn is_full(&self) -> bool {
        self.tasks.len() == TASKS_MAX
    }
    /// => not full
    pub(crate) fn add(&mut self, range: Range, work: Work) {
        assert!(!self.is_full());
        self.tasks.push_back(Task { range, work });
    }
    /// The oldest task.
    pub(crate) fn first(&self) -> Option<Task> {
        self.tasks.front().copied()
    }
    /// The first pages of the oldest task are done.
    pub(crate) fn done(&mut self, pages: u64) {
        let task = self.tasks.front_mut().expect("a task was done");
        let bytes = (pages as usize) << PAGE_SHIFT;
        task.range.start += bytes;
        if let Work::Rename(to) = &mut task.work {
            *to += bytes;
        }
        if task.range.start >= task.range.end {
            self.tasks.pop_front();
        }
    }
    /// The first address in `start..end` that a task concerns.
    pub fn first_in(&self, start: usize, end: usize) -> Option<usize> {
        let within = |(from, until): (usize, usize)| (from < end && start < until).then_some(from.max(start));
        self.tasks.iter().flat_map(Task::ranges).filter_map(within).min()
    }
    /// Whether a task concerns a part of the range.
    pub fn overlaps(&self, start: usize, end: usize) -> bool {
        self.first_in(start, end).is_some()
    }
}

impl Default for Backlog {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranges::Flags;
    use overspill_vm::types::PAGE_SIZE as P;

    fn range(first: usize, last: usize) -> Range {
        Range { start: first * P, end: last * P, ..Range::of_program(Flags::NONE) }
    }

    #[test]
    fn what_is_done_leaves_and_the_rest_is_guarded() {
        let mut backlog = Backlog::new();
        backlog.add(range(10, 20), Work::Rename(50 * P));
        backlog.add(range(55, 60), Work::GiveUp);
        assert_eq!(backlog.first().and_then(|task| task.to()), Some(range(50, 51).page(50 * P)));
        backlog.done(4);
        let first_in = |backlog: &Backlog, from: usize, to: usize| backlog.first_in(from * P, to * P).map(|at| at / P);
        assert_eq!([first_in(&backlog, 0, 14), first_in(&backlog, 0, 100), first_in(&backlog, 51, 54)], [None, Some(14), None]);
        assert_eq!(first_in(&backlog, 52, 100), Some(54), "where the rest is to go");
        backlog.done(6);
        assert_eq!([first_in(&backlog, 0, 55), first_in(&backlog, 57, 100)], [None, Some(57)]);
        backlog.done(5);
        assert!(backlog.is_empty() && !backlog.overlaps(0, usize::MAX));
    }
}

//! Up or down: which way somebody reads.

use crate::types::{PageId, PageIndex};
use core::ops::Range;

/// Which way a run goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Towards higher addresses.
    Up,
    /// Towards lower ones.
    Down,
}

impl Direction {
    /// The page that is `pages` further on. Past an object's end it is none of it: to be compared only.
    #[inline]
    pub fn step(self, page: PageId, pages: u32) -> PageId {
        PageId::from_raw(match self {
            Direction::Up => page.raw().wrapping_add(pages as u64),
            Direction::Down => page.raw().wrapping_sub(pages as u64),
        })
    }
    /// The lowest of the `count` pages from `page` on.
    pub fn lowest(self, page: PageId, count: u32) -> PageId {
        match self {
            Direction::Up => page,
            Direction::Down => self.step(page, count - 1),
        }
    }
    /// The page before it.
    #[inline]
    pub(crate) fn back(self, page: PageId) -> PageId {
        match self {
            Direction::Up => Direction::Down.step(page, 1),
            Direction::Down => Direction::Up.step(page, 1),
        }
    }
    /// How far `to` is ahead of `from`, in pages; a great number if it lies behind.
    #[inline]
    pub(crate) fn ahead(self, from: PageId, to: PageId) -> u64 {
        match self {
            Direction::Up => to.raw().wrapping_sub(from.raw()),
            Direction::Down => from.raw().wrapping_sub(to.raw()),
        }
    }
    /// How many of `count` pages from `first` on lie within `bounds`.
    pub fn clip(self, first: PageId, count: u32, bounds: &Range<PageIndex>) -> u32 {
        let index = first.index();
        let room = match self {
            Direction::Up => bounds.end.saturating_sub(index),
            Direction::Down => (index + 1).saturating_sub(bounds.start),
        };
        room.min(count as u64) as u32
    }
}

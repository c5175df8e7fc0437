//! Streams: who reads pages in order, and how far ahead of it to go.
//!
//! A small table of recent runs, and a larger one of single faults. A fault that continues a run doubles its window; one next to a
//! recent fault is a new run, in the place of the least recently used one; any other is remembered as single. So random faults cost
//! no extra page and push no run out, and a scan is at full window after a few faults, even with some hundred random ones between
//! two of its own (an array of pointers that are followed). The tables, not the neighbours' residency, decide: with a quarter of
//! the pages in memory every second random fault has a resident neighbour.
//!
//! Two faults in order need not be a run: objects of two pages, used at random, look like one each time. So it is counted how many
//! of the first windows were read to their end. While fewer than a third are, a run has to show more of itself: its window doubles
//! from one page on, a fault behind.
//!
//! A run goes up or down (GNU sort keeps its lines from the end of its memory on, and merges them from there). The second fault
//! says which.

use crate::types::{PageId, PageIndex};
use alloc::boxed::Box;
use alloc::vec;
use core::ops::Range;

const STREAMS: usize = 32;
/// Single faults, each in a place that its page decides. With twice as many a run would be found with twice as many random faults
/// between its own, and twice as many random faults would lie next to another: here 1 % of them in 100,000 pages.
const SINGLES: usize = 512;
/// A run that has not gone on for so many faults is over. (Without this, random faults now and then fell just ahead of runs of long
/// ago, and each time a whole window was read for nothing: half of all pages read in bench `random`.)
const STALE_AFTER: u64 = 4096;
/// A fault so many pages ahead of where a run was expected still continues it, in pages.
const NEAR: u64 = 4;
/// A first window that is read to its end makes up for so many that are not, and their balance is at most so much. Guessed: such a
/// window costs the reading and the room of seven pages, and saves a scan two or three faults.
const FIRST_IS_WORTH: u32 = 2;
const TRUST_MAX: u32 = 64;

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
    fn back(self, page: PageId) -> PageId {
        match self {
            Direction::Up => Direction::Down.step(page, 1),
            Direction::Down => Direction::Up.step(page, 1),
        }
    }
    /// How far `to` is ahead of `from`, in pages; a great number if it lies behind.
    #[inline]
    fn ahead(self, from: PageId, to: PageId) -> u64 {
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

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// The first page that has not been asked for.
    next: PageId,
    direction: Direction,
    window: u32,
    /// How much of the window has not been asked for, in pages.
    rest: u32,
    stamp: u64,
}

/// A handle to a stream, good as long as the stream has not moved on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamRef {
    at: u8,
    next: PageId,
}

/// The table.
#[derive(Clone, Debug)]
pub struct Streams {
    table: [Stream; STREAMS],
    /// Pages of single faults.
    singles: Box<[PageId]>,
    stamp: u64,
    window_first: u32,
    window_max: u32,
    /// The balance of first windows. At zero a run's second fault asks for none.
    trust: u32,
}

impl Streams {
    /// A run's second fault asks for `window_first` pages, or for one while first windows do not pay; later ones for up to
    /// `window_max`.
    pub fn new(window_first: u32, window_max: u32) -> Self {
        let none = Stream { next: PageId::from_raw(u64::MAX), direction: Direction::Up, window: 1, rest: 0, stamp: 0 };
        let window_first = window_first.min(window_max);
        let nowhere = PageId::from_raw(1 << 63); // no object has so high a number
        let singles = vec![nowhere; SINGLES].into();
        Streams { table: [none; STREAMS], singles, stamp: 0, window_first, window_max, trust: TRUST_MAX / 2 }
    }

    /// The place of a page among the single faults.
    fn place(page: PageId) -> usize {
        (page.raw().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SINGLES.ilog2())) as usize
    }

    /// Which way a run goes whose second fault is at `page`.
    fn begins(&self, page: PageId) -> Option<Direction> {
        [Direction::Up, Direction::Down].into_iter().find(|direction| {
            let before = direction.back(page);
            self.singles[Self::place(before)] == before
        })
    }

    /// A new run, whose first page is `page`, in the place of the one that was used least recently.
    pub fn begin(&mut self, page: PageId, direction: Direction) -> usize {
        let oldest = (0..STREAMS).min_by_key(|i| self.table[*i].stamp).expect("there are some");
        self.table[oldest] = Stream { next: page, direction, window: 1, rest: 0, stamp: self.stamp };
        oldest
    }

    /// The reader has come to the end of `window`: the next one, and what to ask for of it, in pages.
    fn grow(&mut self, window: u32) -> (u32, u32) {
        let first = self.window_first;
        if window == 1 && self.trust > 0 {
            self.trust -= 1;
            return (first, first);
        }
        if window == first {
            self.trust = (self.trust + FIRST_IS_WORTH).min(TRUST_MAX);
        }
        let next = (window * 2).min(self.window_max);
        (next, if window < first { next / 2 } else { next })
    }

    /// A fault at `page`: which stream, and how many pages from `page` on it wants. The caller says with [`Streams::advance`] how
    /// many it takes. A single fault is of none, and wants one.
    pub fn fault(&mut self, page: PageId) -> (Option<usize>, u32) {
        self.stamp += 1;
        for i in 0..STREAMS {
            let s = &self.table[i];
            let ahead = s.direction.ahead(s.next, page);
            if ahead > NEAR.min(s.window as u64 / 2) || s.stamp + STALE_AFTER <= self.stamp {
                continue;
            }
            let (window, ask) = match ahead {
                0 => self.grow(s.window),
                _ if s.window < self.window_first => (s.window, 1),
                _ => {
                    // a small jump may be a reader that skips, or chance: it is followed, but more carefully
                    let window = (s.window / 4).max(self.window_first);
                    (window, window)
                }
            };
            self.table[i].stamp = self.stamp;
            self.table[i].window = window;
            return (Some(i), ask.max(1));
        }
        let Some(direction) = self.begins(page) else {
            self.singles[Self::place(page)] = page;
            return (None, 1);
        };
        let at = self.begin(page, direction);
        let (window, ask) = self.grow(1);
        self.table[at].window = window;
        (Some(at), ask.max(1))
    }

    /// Which way a stream goes.
    pub fn direction(&self, at: usize) -> Direction {
        self.table[at].direction
    }

    /// The stream has been given pages as far as (not including) `next`.
    pub fn advance(&mut self, at: usize, next: PageId) -> StreamRef {
        self.table[at].next = next;
        StreamRef { at: at as u8, next }
    }

    /// What is left of the window: stream, first page, pages. `None` if the stream has moved on.
    pub fn rest(&self, stream: StreamRef) -> Option<(usize, PageId, u32)> {
        let s = &self.table[stream.at as usize];
        (s.next == stream.next && s.rest > 0).then_some((stream.at as usize, s.next, s.rest))
    }

    /// So much of the window is left, in pages.
    pub fn set_rest(&mut self, at: usize, pages: u32) {
        self.table[at].rest = pages;
    }

    /// The reader has reached what was last given to it: where to go on and how far. `None` if the stream has moved on or is gone.
    pub fn follow(&mut self, stream: StreamRef) -> Option<(usize, PageId, u32)> {
        let at = stream.at as usize;
        if self.table[at].next != stream.next {
            return None;
        }
        self.stamp += 1;
        let (window, ask) = self.grow(self.table[at].window);
        let s = &mut self.table[at];
        s.stamp = self.stamp;
        s.window = window;
        Some((at, s.next, ask))
    }

    /// The stream whose last given pages include `page`, for a reader that has touched a marker there.
    pub fn find(&self, page: PageId) -> Option<StreamRef> {
        self.table.iter().enumerate().find_map(|(i, s)| {
            let behind = s.direction.ahead(page, s.next);
            (behind >= 1 && behind <= 2 * s.window as u64).then_some(StreamRef { at: i as u8, next: s.next })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::ObjectId;

    fn p(i: u64) -> PageId {
        PageId::new(ObjectId(0), i)
    }

    /// A fault that gets what it wants. => the window
    fn fault(s: &mut Streams, at: u64) -> u32 {
        let (stream, window) = s.fault(p(at));
        if let Some(stream) = stream {
            s.advance(stream, s.direction(stream).step(p(at), window));
        }
        window
    }

    #[test]
    fn a_run_doubles_and_random_faults_do_not() {
        let mut s = Streams::new(8, 64);
        let mut at = 1000;
        for expected in [1, 8, 16, 32, 64, 64] {
            assert_eq!(fault(&mut s, at), expected);
            at += expected as u64;
        }
        assert!((0..100).all(|k| fault(&mut s, k * 7919 + 50_000) == 1));
        assert_eq!(fault(&mut s, 0), 1); // nothing lies below it
    }

    /// A scan alongside random faults read page by page: a few dozen random faults between two of its own pushed it out of the
    /// table. Later it was only before it had shown itself that they did: an array of pointers, each of which leads to a fault, did
    /// not.
    #[test]
    fn a_scan_survives_random_faults() {
        let mut s = Streams::new(8, 64);
        let mut at = 1_000_000;
        for (round, expected) in [1, 8, 16, 32, 64].into_iter().enumerate() {
            assert_eq!(fault(&mut s, at), expected);
            at += expected as u64;
            for k in 0..100 {
                fault(&mut s, (k * 7919 + round as u64 * 104_729) % 900_000);
            }
        }
    }

    /// Objects of two pages, used at random: seven pages were read for nothing at every second fault (189,000 of 316,000 pages of a
    /// Python program, 1 % of them used).
    #[test]
    fn pairs_are_no_runs() {
        let mut s = Streams::new(8, 64);
        let pairs = |s: &mut Streams, n: u64| -> u32 {
            let first = |k: u64| k * 7919 % 1_000_000 * 2;
            (0..n).map(|k| fault(s, first(k)) + fault(s, first(k) + 1)).sum()
        };
        assert!(pairs(&mut s, 1000) < 2 * 1000 + 7 * 33);
        assert_eq!(pairs(&mut s, 1000), 2 * 1000);
        // a scan is found all the same, a little later, and scans among them bring the first windows back
        let scan = |s: &mut Streams, mut at: u64| -> Vec<u32> {
            let step = |_| {
                let window = fault(s, at);
                at += window as u64;
                window
            };
            (0..7).map(step).collect()
        };
        assert_eq!(scan(&mut s, 10_000_000), [1, 1, 2, 4, 16, 32, 64]);
        assert_eq!(scan(&mut s, 20_000_000), [1, 8, 16, 32, 64, 64, 64]);
    }

    #[test]
    fn a_run_may_go_down() {
        let mut s = Streams::new(8, 64);
        let mut at = 900;
        assert_eq!(s.fault(p(at)), (None, 1));
        for expected in [8, 16, 32, 64] {
            at -= 1;
            let (stream, window) = s.fault(p(at));
            let stream = stream.expect("a run");
            assert_eq!((s.direction(stream), window), (Direction::Down, expected));
            at -= window as u64 - 1;
            let given = s.advance(stream, p(at - 1));
            assert_eq!(s.find(p(at)), Some(given));
        }
        let bounds = 100..1000;
        assert_eq!(Direction::Down.clip(p(105), 8, &bounds), 6);
        assert_eq!(Direction::Down.clip(p(100), 8, &bounds), 1);
        assert_eq!(Direction::Up.clip(p(998), 8, &bounds), 2);
        // page 0 has none below it, and the end of the object before is not mistaken for one
        let first = |i| PageId::new(ObjectId(1), i);
        s.fault(first(1));
        let (stream, window) = s.fault(first(0));
        assert_eq!((window, s.direction(stream.expect("a run"))), (8, Direction::Down));
        let next = Direction::Down.step(first(0), Direction::Down.clip(first(0), window, &(0..10)));
        assert!(!(0..10).contains(&next.index()));
    }

    #[test]
    fn many_readers_at_once() {
        let mut s = Streams::new(8, 64);
        let mut at: Vec<u64> = (0..16).map(|i| i * 1_000_000).collect();
        for expected in [1, 8, 16, 32, 64] {
            for a in &mut at {
                assert_eq!(fault(&mut s, *a), expected);
                *a += expected as u64;
            }
        }
    }
}

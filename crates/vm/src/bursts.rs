//! Bursts: short runs at regular distances, and single pages at regular distances, which are bursts of one page.
//!
//! ```text
//!              a burst of 4                                              not read
//!   ....[====]............[====]............[====]............[====]............[====]....
//!       1st               2nd               3rd: read whole   4th: the same     5th: and from now on ahead
//!       |---- stride -----|
//! ```
//!
//! Columns of a matrix, tiles of an image, one field of large records. The stream learns the stride from where bursts begin, and
//! the length from below: a fault right behind a burst's end makes the next ones longer. So pages behind the end are read only
//! while it is looked for. What is too long is not seen by faults. Therefore the trigger of a window lies in the middle of its
//! first burst, and a reader that comes to the next window without having touched it halves the length and must prove itself anew.
//!
//! Invariants: `taken < known <= len <= |stride|`.

use crate::config::HOLE_PAGES_MAX;
use crate::direction::Direction;
use crate::types::PageId;

/// The greatest stride, in pages. Guessed: rows of 16 MiB. The smaller it is, the less often do random faults look like one.
pub(crate) const STRIDE_MAX: u64 = 4096;
/// After so many bursts where they were expected (three were needed to expect them) it is read ahead. Guessed: pages used at random
/// at regular places, as the heads of aligned chunks, are three in a row now and then.
const PROVEN: u32 = 2;
/// So many bursts in a row may be in memory already: the reader touches them unseen, and is known where he comes out. Guessed.
const AHEAD_MAX: i64 = 256;
/// Of a reader that was not seen for so many faults and windows of anybody's, nothing is read ahead: places that are touched again
/// and again, in any order, come to each trigger sooner or later. Guessed: random faults that may lie between a reader's.
pub(crate) const LATE: u64 = 128;
/// A page that far behind is still one of a window of this stream, in bursts: twice the longest window.
const BEHIND_MAX: i64 = 2 * SINGLES_MAX as i64;
/// The most bursts of one page in a window, each of which is a read: as many as a reader has in flight.
const SINGLES_MAX: u32 = 16;
/// The most bursts of more pages: a reader has room for three such reads, and one is awaited.
const BURSTS_MAX: u32 = 4;

/// Where a stream's pages lie that reads in bursts, and how sure that is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bursts {
    /// First page of the burst that is asked for next, and how much of it has been asked for, in pages.
    first: PageId,
    taken: u32,
    direction: Direction,
    /// From one burst's first page to the next one's, in pages; not 0.
    stride: i64,
    /// So many pages of a burst are known to be used.
    known: u32,
    /// So many are asked for: more than `known` while the end is looked for.
    len: u32,
    /// How often a burst began where it was expected.
    hits: u32,
    /// A trigger was left, and has not been touched.
    awaits: bool,
    /// Where the end is looked for: the page behind what was asked for last, and how much that was.
    end: PageId,
    end_step: u32,
    /// The longest read, and the longest window of a run, in pages.
    run_max: u32,
}

/// What a fault has to do with a stream of bursts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hit {
    /// It goes on: so many pages are wanted.
    Next(u32),
    /// A page of a burst that was asked for already, or right behind its end: so many pages are wanted.
    Back(u32),
    /// The bursts have grown together: it is a plain run.
    Plain,
    /// Nothing.
    No,
}

impl Bursts {
    /// A burst begins at `first`, `stride` pages from the one before it, of which `used` pages are known to have been used.
    pub(crate) fn new(first: PageId, direction: Direction, stride: i64, used: u32, run_max: u32) -> Self {
        let known = used.min(stride.unsigned_abs() as u32).max(1);
        let end = PageId::from_raw(u64::MAX);
        Bursts { first, taken: 0, direction, stride, known, len: known, hits: 0, awaits: false, end, end_step: 0, run_max }
    }

    /// Whether the bursts follow each other in the direction in which each is read.
    fn is_forward(&self) -> bool {
        (self.stride > 0) == (self.direction == Direction::Up)
    }
    fn stride_pages(&self) -> u32 {
        self.stride.unsigned_abs() as u32
    }
    /// Whether it is read ahead.
    pub(crate) fn is_proven(&self) -> bool {
        self.hits >= PROVEN
    }
    /// Whether each burst is a read of its own. Else a read goes over what is between them, if it brings some bursts.
    fn is_apart(&self) -> bool {
        let stride = self.stride_pages();
        !self.is_forward() || stride - self.len > HOLE_PAGES_MAX || self.run_max < BURSTS_MAX * stride
    }

    /// Where a page lies: in which burst, counted from the one that is asked for next, and how far behind its first page.
    fn place(&self, page: PageId) -> (i64, u32) {
        let far = page.raw().wrapping_sub(self.first.raw()) as i64;
        let far = if self.direction == Direction::Up { far } else { far.wrapping_neg() };
        let stride = self.stride_pages() as i64;
        let bursts = far.div_euclid(stride);
        (if self.is_forward() { bursts } else { -bursts }, far.rem_euclid(stride) as u32)
    }

    /// Whether `page` is one of a burst.
    pub(crate) fn has(&self, page: PageId) -> bool {
        self.place(page).1 < self.len
    }

    /// Whether `page` is one of those asked for last.
    pub(crate) fn gave(&self, page: PageId) -> bool {
        let (burst, at) = self.place(page);
        at < self.len && burst >= -BEHIND_MAX && (burst < 0 || burst == 0 && at < self.taken)
    }

    /// How many pages from `page` on one read may cover to bring `want` pages of bursts, or a part of them.
    pub(crate) fn reach(&self, page: PageId, want: u32) -> u32 {
        let (_, at) = self.place(page);
        if self.is_apart() {
            return want.min(self.len.saturating_sub(at)).clamp(1, self.run_max);
        }
        let last = at + want.max(1) - 1;
        (last / self.len * self.stride_pages() + last % self.len + 1 - at).min(self.run_max)
    }

    /// How many of the `count` pages from `page` on are of bursts.
    pub(crate) fn pages_in(&self, page: PageId, count: u32) -> u32 {
        (0..count).filter(|i| self.has(self.direction.step(page, *i))).count() as u32
    }

    /// The page after `page` on the reader's way: behind a burst's end the next one's first.
    pub(crate) fn after(&self, page: PageId) -> PageId {
        let (burst, at) = self.place(page);
        if at + 1 < self.len { self.direction.step(page, 1) } else { self.nth(burst + 1) }
    }

    /// First page of a burst, counted from the one that is asked for next.
    fn nth(&self, burst: i64) -> PageId {
        PageId::from_raw(self.first.raw().wrapping_add_signed(burst * self.stride))
    }

    /// The page that is asked for next.
    pub(crate) fn next(&self) -> PageId {
        self.direction.step(self.first, self.taken)
    }

    /// All `count` pages from `page` on have been asked for. Returns whether that was what is asked for next.
    pub(crate) fn advance(&mut self, page: PageId, count: u32) -> bool {
        let last = self.direction.step(page, count - 1);
        let (burst, at) = self.place(self.after(last));
        let (burst, at) = if at < self.known { (burst, at) } else { (burst + 1, 0) };
        let goes_on = burst > 0 || burst == 0 && at > self.taken;
        if goes_on {
            self.first = self.nth(burst);
            self.taken = at;
        }
        goes_on
    }

    /// The longest window, in pages of bursts.
    fn window_max(&self) -> u32 {
        let stride = self.stride_pages();
        if !self.is_apart() {
            (self.run_max / stride * self.len + (self.run_max % stride).min(self.len)).max(1)
        } else if self.len == 1 {
            self.run_max.min(SINGLES_MAX)
        } else {
            (self.run_max / self.len).clamp(1, BURSTS_MAX) * self.len.min(self.run_max)
        }
    }

    /// How many pages to ask for from the next one on.
    pub(crate) fn ask(&self, window: &mut u32) -> u32 {
        debug_assert!(self.taken < self.known && self.known <= self.len && self.len <= self.stride_pages(), "{self:?}");
        *window = (*window).max(self.len).min(self.window_max());
        match self.is_proven() {
            false => (self.len - self.taken).min(self.run_max),
            true if self.len >= *window => (self.len - self.taken).min(*window),
            true => *window / self.len * self.len - self.taken,
        }
    }

    /// A fault at `page`. `surely`: it counts only where it was expected, from a stream that has shown itself; a page that may as
    /// well be of a run is looked for among the runs before it is asked about again. `late`: the reader was last seen long ago.
    pub(crate) fn fault(&mut self, page: PageId, surely: bool, late: bool, window: &mut u32) -> Hit {
        let (burst, at) = self.place(page);
        if !(-BEHIND_MAX..=AHEAD_MAX).contains(&burst) {
            return Hit::No;
        }
        if burst > 0 || burst == 0 && at >= self.taken {
            let expected = burst == 0 && at == self.taken;
            let passes_over = at == 0 && self.hits + 1 >= PROVEN && !self.awaits && !late;
            if at >= self.known || !expected && !passes_over || surely && !(expected && (self.is_proven() || at > 0)) {
                return Hit::No;
            }
            if self.awaits {
                self.known = (self.known / 2).max(at + 1);
            }
            if self.awaits || late {
                self.hits = 0;
                *window = 1;
            } else if !expected {
                self.hits = PROVEN - 1;
                *window = 1;
            } else if at == 0 {
                self.hits += 1;
                *window *= if self.is_proven() { 2 } else { 1 };
            }
            self.first = self.nth(burst);
            self.taken = at;
            self.len = self.known;
            self.awaits = false;
            return Hit::Next(self.ask(window));
        }
        if late || self.known == 1 && !self.is_proven() {
            return Hit::No;
        }
        let is_end = at >= self.known && (page == self.end || at <= self.len);
        if is_end {
            let step = if page == self.end { self.end_step * 2 } else { 1 };
            if self.is_forward() && at + 1 >= self.stride_pages() {
                return Hit::Plain;
            }
            self.known = at + 1;
            self.end_step = step.min(self.stride_pages() - at).min(self.run_max);
            self.len = at + self.end_step;
            self.end = self.direction.step(page, self.end_step);
            self.awaits = false;
            return Hit::Back(self.end_step);
        }
        if at < self.known {
            self.awaits = false;
            return if self.known > 1 { Hit::Back(self.known - at) } else { Hit::No };
        }
        Hit::No
    }

    /// The reader has touched the trigger of the window that was asked for last: how many pages to ask for. `late`: long after.
    pub(crate) fn follow(&mut self, late: bool, window: &mut u32) -> Option<u32> {
        self.awaits = false;
        if late {
            self.hits = 0;
            *window = 1;
            return None;
        }
        self.hits += 1;
        self.len = self.known;
        *window *= 2;
        Some(self.ask(window))
    }

    /// Which of the pages from `page` on that are being read is to be the trigger, if one is to be.
    pub(crate) fn trigger(&self, page: PageId, count: u32) -> Option<u32> {
        let (burst, at) = self.place(page);
        let is_next = burst > 0 || burst == 0 && at >= self.taken;
        (is_next && self.is_proven()).then(|| self.len.saturating_sub(at).min(count) / 2)
    }

    /// A trigger was left in the window that was asked for last.
    pub(crate) fn await_trigger(&mut self) {
        self.awaits = true;
    }
}

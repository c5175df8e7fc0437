//! Streams: who reads pages in order, and how far ahead of it to go.
//!
//! A small table has recent runs, a larger one single faults. A fault that continues a run doubles the run's window. A fault next
//! to a recent single one begins a new run, in the place of the least recently used run. Any other fault is remembered as single.
//! So random faults cost no extra page and push no run out. A scan is at full window after a few faults, even with some hundred
//! random ones between two of its own (an array of pointers that are followed). The tables, not the neighbours' residency, decide:
//! with a quarter of the pages in memory every second random fault has a resident neighbour.
//!
//! Two faults in order need not be a run: objects of a few pages, used at random, look like one each time. So the table counts how
//! many first windows were read at least to their middle. While fewer than a third are, the window of a new run begins with one
//! page, one fault later, and doubles from there.
//!
//! A run goes up or down (GNU sort keeps its lines from the end of its memory on, and merges them from there). The second fault
//! says which.
//!
//! Short runs at regular distances, and single faults at regular distances, are streams of [bursts](crate::bursts). Of a run it is
//! remembered how far it begins from the run nearest to it. If another one begins as far from it in turn, that is the third of a
//! pattern. Single faults are compared with the latest few. Runs that lie closer together than a run is read ahead are not told
//! apart. The first of them is read on into the next one, with all that lies between.

use crate::bursts::{Bursts, Hit, LATE, STRIDE_MAX};
use crate::direction::Direction;
use crate::types::PageId;
use alloc::boxed::Box;
use alloc::vec;
use core::ops::Range;

const STREAMS: usize = 32;
/// Places for strides of single pages, apart from those of runs: of single faults there are many, and some lie at regular distances
/// by chance.
const STRIDES: usize = 8;
/// Single faults among which a stride is looked for. Guessed: enough that a reader is found with as many random faults between its
/// own.
const LATEST: usize = 16;
/// Single faults, each in a place that its page decides. With twice as many a run would be found with twice as many random faults
/// between its own, and twice as many random faults would lie next to another: here 1 % of them in 100,000 pages.
const SINGLES: usize = 512;
/// A run that has not gone on for so many faults is over. (Without this, random faults now and then fell just ahead of runs of long
/// ago, and each time a whole window was read for nothing: half of all pages read in bench `random`.)
const STALE_AFTER: u64 = 4096;
/// A fault so many pages ahead of where a run was expected still continues it, in pages.
const NEAR: u64 = 4;
/// A first window that is read to its middle makes up for so many that are not, and their balance is at most so much. Guessed: such
/// a window costs the reading and the room of seven pages, and saves a scan two or three faults.
const FIRST_IS_WORTH: u32 = 2;
const TRUST_MAX: u32 = 64;
/// No page's name: no object has so high a number, and no page lies near it. To be compared only.
const NOWHERE: PageId = PageId::from_raw(1 << 63);
/// No page's name either: no range reaches so far.
const NO_PAGE: PageId = PageId::from_raw(u64::MAX);

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// The first page that has not been asked for.
    next: PageId,
    direction: Direction,
    window: u32,
    /// How much of the window has not been asked for, in pages.
    rest: u32,
    stamp: u64,
    /// Its first page, and how many pages from there on are known to be used.
    first: PageId,
    used: u32,
    /// How far its first page is from that of the run next to it, in pages; 0 if there is none.
    distance: i64,
    /// The trigger of its last window was left, and has not been touched: it is over, or will go on.
    awaits: bool,
    /// How many pages were asked for so far.
    given: u32,
    /// How many windows beyond the one that its reader is in are kept under way.
    depth: u32,
    /// It does not read all pages in order, but these.
    bursts: Option<Bursts>,
}

impl Stream {
    fn new(first: PageId, direction: Direction, stamp: u64) -> Self {
        Stream {
            next: first,
            direction,
            window: 1,
            rest: 0,
            stamp,
            first,
            used: 1,
            distance: 0,
            awaits: false,
            given: 1,
            depth: 1,
            bursts: None,
        }
    }

    fn none() -> Self {
        Stream { next: NO_PAGE, ..Stream::new(NOWHERE, Direction::Up, 0) }
    }

    fn is_over(&self, now: u64) -> bool {
        self.stamp + STALE_AFTER <= now
    }

    /// Whether its reader was last seen long ago.
    fn is_late(&self, now: u64) -> bool {
        self.stamp + LATE < now
    }

    /// The reader is known to have come to `page`.
    fn reached(&mut self, page: PageId) {
        let used = self.direction.ahead(self.first, page).saturating_add(1);
        self.used = self.used.max(used.min(STRIDE_MAX) as u32);
    }

    /// Whether `page` is one of those given last, of a run.
    fn gave(&self, page: PageId) -> bool {
        (1..=(self.depth as u64 + 1) * self.window as u64).contains(&self.direction.ahead(page, self.next))
    }

    /// Whether one of the windows that are under way ends before `next`.
    fn gave_up_to(&self, next: PageId) -> bool {
        self.direction.ahead(next, self.next) <= self.depth as u64 * self.window as u64
    }

    /// Whether a burst that begins at `page` makes it a stream of bursts: it is as far from this run as this one from another, and
    /// this one ended before its last window did.
    fn expects(&self, page: PageId) -> bool {
        let expected = self.first.raw().wrapping_add_signed(self.distance);
        self.awaits && self.bursts.is_none() && expected == page.raw() && (self.used as u64) < self.distance.unsigned_abs()
    }
}

/// A handle to a stream, good as long as the stream has not moved on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamRef {
    at: u8,
    next: PageId,
}

impl StreamRef {
    /// The stream's place in the table.
    pub fn at(self) -> usize {
        self.at as usize
    }
}

/// The table.
#[derive(Clone, Debug)]
pub struct Streams {
    /// Runs, then strides of single pages.
    table: [Stream; STREAMS + STRIDES],
    /// Pages of single faults.
    singles: Box<[PageId]>,
    /// The latest of them, from `latest_at` on.
    latest: [PageId; LATEST],
    latest_at: usize,
    /// Whether bursts are looked for.
    finds_bursts: bool,
    stamp: u64,
    window_first: u32,
    window_max: u32,
    /// The balance of first windows. At zero a run's second fault asks for none.
    trust: u32,
    /// The most pages that are under way beyond the window that a reader is in.
    under_way_max: u32,
    /// The window of a reader of a file that waits although much is under way.
    window_long: u32,
    /// How many pages were under way for a reader that had to wait, and when.
    deep: (u32, u64),
}

impl Streams {
    /// A run's second fault asks for `window_first` pages, or for one while first windows do not pay; later ones for up to
    /// `window_max`.
    pub fn new(window_first: u32, window_max: u32) -> Self {
        let window_first = window_first.min(window_max);
        let singles = vec![NOWHERE; SINGLES].into();
        Streams {
            table: [Stream::none(); STREAMS + STRIDES],
            singles,
            latest: [NOWHERE; LATEST],
            latest_at: 0,
            finds_bursts: true,
            stamp: 0,
            window_first,
            window_max,
            trust: TRUST_MAX / 2,
            under_way_max: 0,
            window_long: window_max,
            deep: (0, 0),
        }
    }

    /// The same, but that only runs are looked for.
    pub fn without_bursts(self) -> Self {
        Streams { finds_bursts: false, ..self }
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
        self.place_new(0..STREAMS, Stream::new(page, direction, self.stamp))
    }

    fn place_new(&mut self, places: Range<usize>, stream: Stream) -> usize {
        let oldest = places.min_by_key(|i| self.table[*i].stamp).expect("there are some");
        self.table[oldest] = stream;
        oldest
    }

    /// A run begins at `first`: how far from the nearest other one that goes the same way, if any is near enough.
    fn distance(&self, first: PageId, direction: Direction) -> i64 {
        let from = |s: &Stream| first.raw().wrapping_sub(s.first.raw()) as i64;
        let alike = |s: &&Stream| s.direction == direction && !s.is_over(self.stamp) && s.bursts.is_none();
        // what begins within the first window of a run is read with it
        let apart = self.window_first as u64 + 2..=STRIDE_MAX;
        let near = self.table.iter().filter(alike).map(from).filter(|far| apart.contains(&far.unsigned_abs()));
        near.min_by_key(|far| far.unsigned_abs()).unwrap_or(0)
    }

    /// A single fault at `page`: how far from an earlier one that is as far from one earlier still.
    fn stride(&self, page: PageId) -> Option<i64> {
        let back = |n: usize| self.latest[(self.latest_at + LATEST - 1 - n) % LATEST];
        (0..LATEST - 1).find_map(|n| {
            let far = page.raw().wrapping_sub(back(n).raw()) as i64;
            let before = back(n).raw().wrapping_add_signed(far.wrapping_neg());
            let near = (2..=STRIDE_MAX).contains(&far.unsigned_abs());
            (near && (n + 1..LATEST).any(|m| back(m).raw() == before)).then_some(far)
        })
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
        let next = (window * 2).min(self.window_max.max(window));
        (next, if window < first { next / 2 } else { next })
    }

    /// A fault at `page`: which stream, and how many pages from `page` on it wants. The caller says with [`Streams::give`] how many
    /// it takes. A single fault is of none, and wants one.
    pub fn fault(&mut self, page: PageId) -> (Option<usize>, u32) {
        self.stamp += 1;
        if let Some((at, ask)) = self.fault_in_bursts(page, true) {
            return (Some(at), ask.max(1));
        }
        let ahead = |s: &Stream| match s.bursts {
            Some(_) => u64::MAX,
            None => s.direction.ahead(s.next, page),
        };
        let goes_on = |s: &Stream| ahead(s) <= NEAR.min(s.window as u64 / 2) && !s.is_over(self.stamp);
        let run = self.table.iter().position(goes_on);
        if run.is_none_or(|at| ahead(&self.table[at]) > 0)
            && let Some(at) = self.table.iter().position(|s| s.expects(page) && !s.is_over(self.stamp))
        {
            let s = &mut self.table[at];
            let bursts = Bursts::new(page, s.direction, s.distance, s.used, self.window_max);
            return (Some(at), self.set_bursts(at, bursts));
        }
        if let Some(at) = run {
            let (window, ask) = match ahead(&self.table[at]) {
                0 => self.grow(self.table[at].window),
                _ if self.table[at].window < self.window_first => (self.table[at].window, 1),
                _ => {
                    // a small jump may be a reader that skips, or chance: it is followed, but more carefully
                    let window = (self.table[at].window / 4).max(self.window_first);
                    self.table[at].depth = 1;
                    (window, window)
                }
            };
            let s = &mut self.table[at];
            s.stamp = self.stamp;
            s.window = window;
            s.awaits = false;
            s.reached(page);
            return (Some(at), ask.max(1));
        }
        if let Some(direction) = self.begins(page) {
            let first = direction.back(page);
            let distance = if self.finds_bursts { self.distance(first, direction) } else { 0 };
            let at = self.begin(page, direction);
            let (window, ask) = self.grow(1);
            let s = &mut self.table[at];
            (s.window, s.first, s.used, s.distance) = (window, first, 2, distance);
            return (Some(at), ask.max(1));
        }
        if let Some((at, ask)) = self.fault_in_bursts(page, false) {
            return (Some(at), ask.max(1));
        }
        let stride = if self.finds_bursts { self.stride(page) } else { None };
        self.singles[Self::place(page)] = page;
        self.latest[self.latest_at] = page;
        self.latest_at = (self.latest_at + 1) % LATEST;
        let Some(stride) = stride else { return (None, 1) };
        let direction = if stride > 0 { Direction::Up } else { Direction::Down };
        let at = self.place_new(STREAMS..STREAMS + STRIDES, Stream::new(page, direction, self.stamp));
        (Some(at), self.set_bursts(at, Bursts::new(page, direction, stride, 1, self.window_max)))
    }

    /// The same, if `page` is of a stream of bursts.
    fn fault_in_bursts(&mut self, page: PageId, surely: bool) -> Option<(usize, u32)> {
        for (at, s) in self.table.iter_mut().enumerate() {
            if s.is_over(self.stamp) {
                continue;
            }
            let late = s.is_late(self.stamp);
            let Some(bursts) = &mut s.bursts else { continue };
            match bursts.fault(page, surely, late, &mut s.window) {
                Hit::No => {}
                Hit::Back(ask) => return Some((at, ask)),
                Hit::Next(ask) => {
                    s.stamp = self.stamp;
                    s.next = page;
                    if ask == 1 && !bursts.is_proven() {
                        // a run may begin here as well
                        self.singles[Self::place(page)] = page;
                    }
                    return Some((at, ask));
                }
                Hit::Plain => {
                    *s = Stream { next: page, window: self.window_first, ..Stream::new(page, s.direction, self.stamp) };
                    return None;
                }
            }
        }
        None
    }

    /// A stream reads in bursts from now on. Returns how many pages it wants.
    fn set_bursts(&mut self, at: usize, bursts: Bursts) -> u32 {
        let s = &mut self.table[at];
        (s.stamp, s.next, s.window) = (self.stamp, bursts.next(), 1);
        s.bursts.insert(bursts).ask(&mut s.window)
    }

    /// The most pages of one read ahead of a stream.
    pub fn window_max(&self, at: usize) -> u32 {
        self.window_max.max(self.table[at].window)
    }

    /// The most pages of a read that a thread waits for.
    pub fn window_touched_max(&self) -> u32 {
        self.window_max
    }

    /// From now on so many pages, at most, are under way for a reader that waits for what is read ahead, and `long` of them at most
    /// are read at once if it reads a file.
    pub fn set_under_way_max(&mut self, pages: u32, long: u32) {
        (self.under_way_max, self.window_long) = (pages, long.max(self.window_max));
    }

    /// How many pages are under way for such readers, if there was one lately.
    pub fn under_way(&self) -> u32 {
        if self.deep.1 + STALE_AFTER <= self.stamp { 0 } else { self.deep.0 }
    }

    /// How many pages a stream was given so far, if it reads in order.
    pub fn given(&self, at: usize) -> u32 {
        let s = &self.table[at];
        if s.bursts.is_none() { s.given } else { 0 }
    }

    /// What the stream is given next was asked for by advice, to stay: that is no reader who comes once, nor one whose first window
    /// is to show whether it goes on.
    pub fn is_advised(&mut self, at: usize) {
        self.table[at].given = self.window_first;
    }

    /// How many pages are ahead of readers that were given `far` or more, and read what is `asked` for.
    pub fn ahead_of(&self, far: u32, asked: impl Fn(PageId) -> bool) -> u32 {
        let is_far = |s: &&Stream| s.bursts.is_none() && s.given >= far && !s.is_over(self.stamp);
        let runs = self.table.iter().filter(is_far).filter(|s| asked(s.first));
        runs.map(|s| (s.depth + 1) * s.window).sum()
    }

    /// Which way a stream goes.
    pub fn direction(&self, at: usize) -> Direction {
        self.table[at].direction
    }

    /// Whether a stream reads in bursts.
    pub fn is_in_bursts(&self, at: usize) -> bool {
        self.table[at].bursts.is_some()
    }

    /// How many pages from `page` on one read of a stream may cover for it to bring `want`, or a part of them.
    pub fn reach(&self, at: usize, page: PageId, want: u32) -> u32 {
        self.table[at].bursts.as_ref().map_or(want, |bursts| bursts.reach(page, want))
    }

    /// Whether a stream wants `page`, which it goes past.
    #[inline]
    pub fn wants(&self, at: usize, page: PageId) -> bool {
        self.table[at].bursts.as_ref().is_none_or(|bursts| bursts.has(page))
    }

    /// The page that a stream wants after `page`.
    pub fn after(&self, at: usize, page: PageId) -> PageId {
        let s = &self.table[at];
        s.bursts.as_ref().map_or(s.direction.step(page, 1), |bursts| bursts.after(page))
    }

    /// A stream is given the `count` pages from `page` on, of `want` that it wanted: what is left is [`Streams::rest`].
    pub fn give(&mut self, at: usize, page: PageId, count: u32, want: u32) -> StreamRef {
        let s = &mut self.table[at];
        s.given = s.given.saturating_add(count);
        let Some(bursts) = &mut s.bursts else {
            s.rest = want.saturating_sub(count);
            let next = s.direction.step(page, count);
            return self.advance(at, next);
        };
        s.rest = 0;
        if bursts.advance(page, count) {
            s.rest = want.saturating_sub(bursts.pages_in(page, count));
        }
        let next = bursts.next();
        if next.object() != page.object() {
            // the object ends before the next burst
            *s = Stream::none();
            return self.advance(at, NO_PAGE);
        }
        self.advance(at, next)
    }

    /// The stream has been given pages as far as (not including) `next`.
    pub fn advance(&mut self, at: usize, next: PageId) -> StreamRef {
        self.table[at].next = next;
        StreamRef { at: at as u8, next }
    }

    /// Which of the `count` pages from `page` on, all about to be read, is to be the trigger, if one of them is. The reader waits
    /// for the first of them if it is `touched`. In a run's first window it is the middle page: objects of a few pages end before
    /// that.
    pub fn trigger(&self, at: usize, page: PageId, count: u32, touched: bool) -> Option<u32> {
        let (s, first) = (&self.table[at], touched as u32);
        match &s.bursts {
            Some(bursts) => bursts.trigger(page, count).map(|n| n.max(first)),
            None if s.given < self.window_first => Some((count - 1).min(self.window_first / 2).max(first)),
            None => Some(first),
        }
    }

    /// `page`, which was read for `stream`, is left parked as a trigger.
    pub fn await_trigger(&mut self, stream: StreamRef, page: PageId) {
        let s = &mut self.table[stream.at()];
        match &mut s.bursts {
            Some(bursts) if bursts.gave(page) => bursts.await_trigger(),
            Some(_) => {}
            None => s.awaits |= s.gave(page),
        }
    }

    /// What is left of the window: stream, first page, pages. `None` if the stream has moved on.
    pub fn rest(&self, stream: StreamRef) -> Option<(usize, PageId, u32)> {
        let s = &self.table[stream.at()];
        (s.next == stream.next && s.rest > 0).then_some((stream.at(), s.next, s.rest))
    }

    /// The reader has reached what was last given to it, `page` of it: where to go on and how far. `None` if the stream has moved
    /// on or is gone.
    pub fn follow(&mut self, stream: StreamRef, page: PageId) -> Option<(usize, PageId, u32)> {
        let at = stream.at();
        let s = &self.table[at];
        let given = s.direction.ahead(page, s.next);
        if s.next != stream.next && (s.depth == 1 || given > s.depth as u64 * s.window as u64) {
            return None;
        }
        self.stamp += 1;
        let s = &mut self.table[at];
        let late = s.is_late(self.stamp);
        if let Some(bursts) = &mut s.bursts {
            let ask = bursts.follow(late, &mut s.window)?;
            s.stamp = self.stamp;
            return Some((at, s.next, ask));
        }
        let (window, ask) = self.grow(self.table[at].window);
        let s = &mut self.table[at];
        s.stamp = self.stamp;
        s.window = window;
        s.awaits = false;
        s.reached(page);
        if s.depth == 1 {
            return Some((at, s.next, ask));
        }
        let windows = if given < (s.depth * window) as u64 { 2 } else { 1 };
        self.deep = (s.depth * window, self.stamp);
        Some((at, s.next, windows * ask))
    }

    /// The reader of the stream waits for pages that were being read ahead of it. If its windows are as long as they may be, one
    /// more is kept under way from now on: while one is copied, the device works on the others. A reader of a file that waits
    /// nevertheless gets longer ones, because a device answers one long read sooner than several short ones.
    pub fn waited(&mut self, stream: StreamRef, of_file: bool) {
        let s = &mut self.table[stream.at()];
        if s.window < self.window_max || s.bursts.is_some() || !s.gave_up_to(stream.next) {
            return;
        }
        if of_file && s.window < self.window_long && s.depth * s.window >= 2 * self.window_long {
            (s.window, s.depth) = (self.window_long, 2);
        } else if (s.depth + 1) * s.window <= self.under_way_max {
            s.depth += 1;
        }
    }

    /// The stream whose last given pages include `page`, for a reader that has touched a marker there.
    pub fn find(&self, page: PageId) -> Option<StreamRef> {
        let in_bursts = self.table.iter().position(|s| s.bursts.as_ref().is_some_and(|bursts| bursts.gave(page)));
        let plain = || self.table.iter().position(|s| s.bursts.is_none() && s.gave(page));
        in_bursts.or_else(plain).map(|at| StreamRef { at: at as u8, next: self.table[at].next })
    }

    /// The reader waits for `page`, which was read for `stream`: the handle with which to go on. A window may be several reads, and
    /// the stream has moved on since the first of them.
    pub fn reached(&self, stream: StreamRef, page: PageId) -> StreamRef {
        let s = &self.table[stream.at()];
        let is_last = match &s.bursts {
            Some(bursts) => bursts.gave(page),
            None => s.depth == 1 && s.gave(page),
        };
        if is_last { StreamRef { at: stream.at, next: s.next } } else { stream }
    }
}

#[cfg(test)]
mod tests;

//! Page-in: which pages a read brings, and what becomes of each when it has arrived.

use crate::config::{CLUSTER_PAGES_MAX, HOLE_PAGES_MAX};
use crate::direction::Direction;
use crate::frames::{On, READ};
use crate::home::Home;
use crate::neighbours::GROUP_PAGES;
use crate::page::{PageWord, State};
use crate::pager::{HasPage, IoResult, Location, Pager};
use crate::pointers::Follow;
use crate::policy::Admit;
use crate::stream::StreamRef;
use crate::types::{FrameId, PageId, PageIndex, Slot, Tag};
use crate::vm::{Decision, Vm};
use core::ops::Range;

/// A page that did not compress is tried again after so many page-ins, on average.
const REFUSED_FOR: u32 = 8;

/// A run through a file is long if it is longer than this part of the budget. (PostgreSQL gives scans of a table of more than a
/// quarter of its buffers a few buffers of their own, for the same reason.)
const FAR_PART: u32 = 4;

/// What is read around a page that a thread waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Around {
    page: PageId,
    /// To see whether it is used.
    samples: bool,
}

/// A cluster to be read: pages contiguous in the object and on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageIn {
    /// The first page.
    pub first: PageId,
    /// Its slot; page `first + i` is in slot `slot + i`.
    pub slot: Slot,
    /// Where the bytes of that slot are. The others follow them in one piece.
    pub location: Location,
    /// What a read of one page must bring. (A longer one asks when it has arrived: [`Vm::expected`].)
    pub expected: Tag,
    /// It is one page, and other processes may read the same slot.
    pub is_common: bool,
    /// In pages, 1 to [`CLUSTER_PAGES_MAX`].
    pub count: u32,
    /// Bit `i`: page `i` is wanted. The others lie between, are in memory already, and are read only because one read over them is
    /// cheaper than two around them. Bit 0 and bit `count - 1` are set.
    pub wanted: u128,
    /// The page nearest to the reader was touched (else the whole cluster is readahead).
    pub(crate) touched: bool,
    /// Which way the reader goes.
    pub(crate) direction: Direction,
    /// The touch that asked for it was a write, as far as is known.
    pub(crate) written: bool,
    /// Which page of it, on the reader's way, may be left parked as the readahead trigger of its window.
    pub(crate) trigger: Option<u32>,
    /// Nobody asked for its pages (their device leaves, or one of them is a sample): they are left parked.
    pub(crate) parks: bool,
    /// As long as their device leaves, those that cannot be read are given up.
    pub(crate) gives_up: bool,
    /// It ended before its window did, so there may be [`Vm::read_more`].
    pub(crate) has_rest: bool,
    /// Tells it from all others in flight.
    pub(crate) read: u32,
    /// How often tags of the file's pages had been forgotten when it began.
    pub(crate) forgotten: u32,
    pub(crate) stream: Option<StreamRef>,
    /// It is of no stream; the rest of its window is what lies around this page.
    pub(crate) around: Option<Around>,
}

impl PageIn {
    /// A read of one page, for nobody in particular.
    fn new(first: PageId, slot: Slot, location: Location, read: u32) -> Self {
        PageIn {
            first,
            slot,
            location,
            expected: Tag::UNKNOWN,
            is_common: false,
            count: 1,
            wanted: 1,
            touched: false,
            direction: Direction::Up,
            written: false,
            trigger: None,
            parks: false,
            gives_up: false,
            has_rest: false,
            read,
            forgotten: 0,
            stream: None,
            around: None,
        }
    }
    /// Whether [`Vm::read_more`] may have an answer.
    pub fn has_rest(&self) -> bool {
        self.has_rest
    }
    /// Whether the rest of its window is only to be read to see whether it is used.
    pub fn is_sampled(&self) -> bool {
        self.around.is_some_and(|around| around.samples)
    }
    /// Page `i` of the cluster.
    #[inline]
    pub fn page(&self, i: u32) -> PageId {
        self.first.offset(i as u64)
    }
    /// Where the bytes of page `i` are.
    #[inline]
    pub fn location_of(&self, i: u32) -> Location {
        self.location.plus(i)
    }
    /// The same, asked for by a write (or a read).
    pub fn asked_for_by(self, write: bool) -> Self {
        PageIn { written: write, ..self }
    }
    /// Whether it is part of what somebody reads in order: what its pages point to may be wanted next. (Somebody who writes in
    /// order writes over whatever they point to.)
    pub fn is_read_in_order(&self) -> bool {
        self.stream.is_some() && !self.written
    }
    /// The `n`th page on the reader's way.
    #[inline]
    fn nth(&self, n: u32) -> u32 {
        match self.direction {
            Direction::Up => n,
            Direction::Down => self.count - 1 - n,
        }
    }
    /// Which page was touched, if any was.
    #[inline]
    pub fn touched(&self) -> Option<u32> {
        self.touched.then(|| self.nth(0))
    }
    /// Whether page `i` is wanted.
    #[inline]
    pub fn wants(&self, i: u32) -> bool {
        self.wanted >> i & 1 == 1
    }
}

/// What a pointer to a page leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Followed {
    /// Nothing: the page is where it should be, or pointers are not worth following.
    Nothing,
    /// No frame is free: to be tried again later, if ever.
    NoMemory,
    /// Read the page.
    Read(PageIn),
    /// Map the parked page again, then [`Vm::restore_done`].
    Restore(FrameId),
}

/// Where a page that has been read goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// Map it.
    Map,
    /// Leave it parked in this frame: its touch asks for the next readahead.
    Park(FrameId),
    /// It was released meanwhile, or is not wanted: throw it away. (Already accounted for; no `page_in_done`.)
    Discard,
    /// It could not be read: poison it. (Already accounted for; no `page_in_done`.)
    Lost,
}

/// What became of a page on its way into memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filled {
    /// It is mapped (or was found mapped).
    Mapped,
    /// It is parked, as asked.
    Parked,
    /// It was not possible now; the page is as before and will be faulted again.
    No,
}

impl<P: Pager> Vm<P> {
    /// Marks a cluster from `page` on as being read. `None` if the first page cannot be read (now).
    pub(crate) fn read_cluster(
        &mut self,
        stream: Option<usize>,
        page: PageId,
        window: u32,
        bounds: Range<PageIndex>,
        touched: bool,
        over_budget: bool,
    ) -> Option<PageIn> {
        let direction = stream.map_or(Direction::Up, |at| self.reads.direction(at));
        let reach = stream.map_or(window, |at| self.reads.reach(at, page, window));
        let most = stream.filter(|_| !touched).map_or(self.reads.window_touched_max(), |at| self.reads.window_max(at));
        let want = direction.clip(page, reach.min(most), &bounds).min(CLUSTER_PAGES_MAX as u32);
        let want = if touched { self.frames_for(want, over_budget) } else { want.min(self.spare_frames()) };
        let more = want.max(1) - 1;
        let home = self.at_home(page);
        let stored = match direction {
            _ if home.is_some() => HasPage { slot: Slot(0), before: more, after: more },
            Direction::Up => self.pager.has_page(page, 0, more)?,
            Direction::Down => self.pager.has_page(page, more, 0)?,
        };
        let most = want.min(stored.before.max(stored.after) + 1);
        let (mut count, mut taken, mut wanted) = (0, 0u32, 0u128);
        let alone = touched && window <= 1;
        let passing = home.is_some() && stream.is_some_and(|at| self.reads.given(at) >= self.far());
        self.read = self.read.wrapping_add(1);
        for i in 0..most {
            let p = direction.step(page, i);
            let mut word = self.table.get(p);
            let between = i > 0 && stream.is_some_and(|at| !self.reads.wants(at, p));
            if let Some(home) = &home {
                if i > 0 && (p.index() >= home.pages || !self.is_at(home, p)) {
                    break;
                }
                if word.state() == State::Untouched && !word.busy() && !word.laundering() && self.table.reserve(p) {
                    word = word.at_home();
                }
            }
            if between || word.busy() || word.state() != State::PagedOut {
                if i == 0 || i - count >= HOLE_PAGES_MAX {
                    break;
                }
                continue;
            }
            let Some(frame) = self.take_frame_to_read(p, word.evicted_at()) else { break };
            if home.is_none() {
                self.note_page_in(alone, word.refused(), word.evicted_at());
            }
            // what did not compress is tried again once in a while, because contents change
            let refused = word.refused() && !(alone && self.read.is_multiple_of(REFUSED_FOR));
            let word = word.begin_fill(frame, !(touched && i == 0)).coming_along(!alone).refuse(refused);
            self.table.set(p, if passing { word.as_passing() } else { word });
            wanted |= 1 << i;
            taken += 1;
            count = i + 1;
        }
        if taken == 0 {
            return None;
        }
        let trigger = stream.and_then(|at| self.reads.trigger(at, page, count, touched));
        let stream = stream.map(|at| self.give(at, page, count, window, home.is_some()));
        let has_rest = window > 1 && stream.is_some_and(|stream| self.reads.rest(stream).is_some());
        self.counters.readahead_pages.add((taken - touched as u32) as u64);
        self.decide(Decision::PageIn(page, count));
        let (slot, wanted) = match direction {
            Direction::Up => (stored.slot, wanted),
            Direction::Down => (Slot(stored.slot.0.saturating_sub(count - 1)), wanted.reverse_bits() >> (u128::BITS - count)),
        };
        let first = direction.lowest(page, count);
        let op = match &home {
            Some(home) => self.begin_home_read(home, first, count, wanted),
            None => self.begin_read(first, slot, count, wanted),
        };
        let stream = stream.filter(|_| window > 1);
        Some(PageIn { touched, direction, trigger, has_rest, stream, ..op })
    }

    /// As [`Streams::give`](crate::stream::Streams::give).
    fn give(&mut self, at: usize, page: PageId, count: u32, window: u32, at_home: bool) -> StreamRef {
        let (before, far) = (self.reads.given(at), self.far());
        let stream = self.reads.give(at, page, count, window);
        if at_home && self.reads.given(at) >= far {
            if before < far {
                self.policies.of(page).policy.run_begins();
            }
            let number = self.policies.number(page.object());
            let ahead = 2 * self.reads.ahead_of(far, |first| self.policies.number(first.object()) == number);
            self.policies.of(page).policy.keep_passing(ahead.min(self.limit / 8));
        }
        stream
    }

    /// Who reads a file in order as far as this is taken to read it once, in pages. The pages after that are passing ones.
    fn far(&self) -> u32 {
        self.limit / FAR_PART
    }

    /// The read of `wanted` of `count` pages, which have been given frames and the number `self.read`.
    pub(crate) fn begin_read(&mut self, first: PageId, slot: Slot, count: u32, wanted: u128) -> PageIn {
        self.reading += 1;
        self.pager.read_begun(slot);
        self.counters.page_in_ops.add(1);
        self.counters.pages_in.add(wanted.count_ones() as u64);
        self.note_usage();
        let location = self.pager.locate(slot);
        if location.is_memory {
            self.counters.pool_pages_in.add(wanted.count_ones() as u64);
        }
        let expected = if count == 1 { self.pager.tag(first) } else { None };
        let is_common = count == 1 && expected.is_some() && self.pager.is_common(slot);
        PageIn {
            expected: expected.unwrap_or(Tag::UNKNOWN),
            is_common,
            count,
            wanted,
            ..PageIn::new(first, slot, location, self.read)
        }
    }

    /// The same from the file that is the pages' home.
    fn begin_home_read(&mut self, home: &Home, first: PageId, count: u32, wanted: u128) -> PageIn {
        self.reading += 1;
        self.home_reads(first.object(), 1);
        self.counters.page_in_ops.add(1);
        self.counters.file_pages_in.add(wanted.count_ones() as u64);
        self.note_usage();
        let location = Self::home_location(home, first);
        PageIn { count, wanted, forgotten: self.forgotten(first.object()), ..PageIn::new(first, Slot(0), location, self.read) }
    }

    /// The reader of this stream has come to `page`, as far as was read for it: the next window, if its pages are out and frames
    /// are free.
    pub(crate) fn read_on(&mut self, stream: StreamRef, page: PageId, bounds: Range<PageIndex>) -> Option<PageIn> {
        let (at, next, window) = self.reads.follow(stream, page)?;
        self.read_next_away(at, next, window, bounds)
    }

    /// More of the window that `op` was part of: it ended where the device's contiguous run did, or a burst. To be issued along
    /// with `op`, so that a reader of pages that lie scattered on the device has many reads in flight.
    pub fn read_more(&mut self, op: &PageIn, bounds: Range<PageIndex>) -> Option<PageIn> {
        if let Some(around) = op.around {
            let first = GROUP_PAGES * (around.page.raw() / GROUP_PAGES);
            let next = if op.touched { first } else { op.first.raw() + u64::from(op.count) };
            return self.read_neighbours(around, next..first + GROUP_PAGES, bounds);
        }
        let (at, next, left) = self.reads.rest(op.stream?)?;
        let more = self.read_next_away(at, next, left, bounds)?;
        // one trigger a window is enough
        let trigger = more.trigger.filter(|_| op.touched && op.count == 1 || left >= self.reads.window_max(at));
        Some(PageIn { trigger, written: op.written, ..more })
    }

    /// A page that is read by itself, as far as is known: with its neighbours, while those are used, too. Not from compressed
    /// memory, which brings a single page nearly as fast as one of several.
    pub(crate) fn read_single(
        &mut self,
        page: PageId,
        in_memory: bool,
        bounds: Range<PageIndex>,
        over_budget: bool,
    ) -> Option<PageIn> {
        let reads = self.config.readahead_pages_max > 1 && !in_memory;
        let neighbours = if reads { self.neighbours.next() } else { Follow::No };
        let window = if neighbours == Follow::Yes { GROUP_PAGES - page.raw() % GROUP_PAGES } else { 1 };
        let op = self.read_cluster(None, page, window as u32, bounds, true, over_budget)?;
        self.counters.neighbour_pages.add(u64::from(op.wanted.count_ones()) - 1);
        let around = (neighbours != Follow::No).then_some(Around { page, samples: neighbours == Follow::Sample });
        Some(PageIn { around, has_rest: around.is_some(), ..op })
    }

    /// The first of these neighbours that are out.
    fn read_neighbours(&mut self, around: Around, pages: Range<u64>, bounds: Range<PageIndex>) -> Option<PageIn> {
        let is_out = |page: &PageId| bounds.contains(&page.index()) && self.is_out(*page) && !self.is_in_memory(*page);
        let first = pages.clone().map(PageId::from_raw).find(is_out)?;
        let op = self.read_cluster(None, first, (pages.end - first.raw()) as u32, bounds, false, false)?;
        self.counters.neighbour_pages.add(u64::from(op.wanted.count_ones()));
        if around.samples {
            for page in (0..op.count).filter(|i| op.wants(*i)).map(|i| op.page(i)) {
                self.table.set(page, self.table.get(page).as_sample());
            }
        }
        Some(PageIn { around: Some(around), has_rest: true, parks: around.samples, ..op })
    }

    /// Of the `left` pages that a stream wants from `next` on, the first that are out.
    fn read_next_away(&mut self, at: usize, mut next: PageId, mut left: u32, bounds: Range<PageIndex>) -> Option<PageIn> {
        while left > 0 && bounds.contains(&next.index()) {
            if self.is_out(next) {
                return self.read_cluster(Some(at), next, left, bounds, false, false);
            }
            next = self.reads.after(at, next);
            left -= 1;
        }
        None
    }

    /// The program says that it will want `page`: what to read now, if it is out.
    pub fn prefetch(&mut self, page: PageId, count: u32, bounds: Range<PageIndex>) -> Option<PageIn> {
        if !self.is_out(page) {
            return None;
        }
        let stream = match self.reads.fault(page) {
            (Some(at), _) if self.reads.direction(at) == Direction::Up && !self.reads.is_in_bursts(at) => at,
            _ => self.reads.begin(page, Direction::Up),
        };
        self.reads.is_advised(stream);
        self.read_cluster(Some(stream), page, count.max(2), bounds, false, false)
    }

    /// Whether `page` would have to be read.
    pub fn is_out(&self, page: PageId) -> bool {
        let word = self.table.get(page);
        let out = match word.state() {
            State::PagedOut => true,
            State::Untouched => !word.laundering() && self.home(page.object()).is_some(),
            _ => false,
        };
        out && !word.busy()
    }

    /// Whether the content of `page` is in compressed memory.
    pub(crate) fn is_in_memory(&self, page: PageId) -> bool {
        self.pager.stored(page).is_some_and(|(slot, _)| self.pager.locate(slot).is_memory)
    }

    /// Whether `page` is one to follow a pointer to: it is out, or inactive. Costs a look at the table.
    pub fn is_away(&self, page: PageId) -> bool {
        let word = self.table.get(page);
        !word.busy() && matches!(word.state(), State::PagedOut | State::Inactive | State::Clean)
    }

    /// A page that was read in order points to `page`, so it may be touched soon. What is in memory anyhow (compressed) is not
    /// brought in.
    pub fn follow_pointer(&mut self, page: PageId) -> Followed {
        let word = self.table.get(page);
        match word.state() {
            State::PagedOut if !word.busy() && self.spare_frames() == 0 => Followed::NoMemory,
            State::PagedOut if !word.busy() => self.read_pointed(page, word).map_or(Followed::Nothing, Followed::Read),
            // a sample is to show whether it is touched, a trigger when
            State::Inactive | State::Clean
                if !(word.busy() || word.sample() || word.trigger() || word.laundering())
                    && self.pointers.pay()
                    && self.room() > 0 =>
            {
                self.dequeue(word.frame());
                self.table.set(page, word.begin_restore());
                self.charge(1); // for the program's copy
                self.counters.pointed_restored.add(1);
                self.decide(Decision::Restore(page));
                Followed::Restore(word.frame())
            }
            _ => Followed::Nothing,
        }
    }

    /// It is no readahead to the policy: what it did not see used is not a hint here, but a pointer that is about to be followed.
    fn read_pointed(&mut self, page: PageId, word: PageWord) -> Option<PageIn> {
        let (slot, _) = self.pager.stored(page).filter(|(slot, _)| !self.pager.locate(*slot).is_memory)?;
        let parks = match self.pointers.next() {
            Follow::No => return None,
            Follow::Yes => false,
            Follow::Sample => true,
        };
        self.read = self.read.wrapping_add(1);
        let frame = self.take_frame_to_read(page, word.evicted_at())?;
        self.note_page_in(false, false, word.evicted_at());
        let word = word.begin_fill(frame, false).coming_along(true);
        self.table.set(page, if parks { word.as_sample() } else { word });
        self.counters.pointed_pages.add(1);
        self.decide(Decision::PageIn(page, 1));
        Some(PageIn { parks, ..self.begin_read(page, slot, 1, 1) })
    }

    /// What page `i` of a cluster must be, as things are. [`Tag::UNKNOWN`] if it is not stored any more; then it is not wanted any
    /// more either.
    pub fn expected(&self, op: &PageIn, i: u32) -> Tag {
        self.pager.tag(op.page(i)).unwrap_or(Tag::UNKNOWN)
    }

    /// Whether the page is still stored where this read has looked for it, with this tag.
    pub fn is_still_there(&self, op: &PageIn, i: u32, tag: Tag) -> bool {
        self.pager.stored(op.page(i)) == Some((Slot(op.slot.0 + i), tag))
    }

    /// Whether a page is still the one that was to be read by `op`.
    fn is_read_by(&mut self, op: &PageIn, word: PageWord) -> bool {
        word.busy() && word.state() == State::PagedOut && self.frames.queues.idle_words(word.frame().0)[READ] == op.read
    }

    /// Whether a thread waits for page `i` of a cluster that has been read.
    pub fn is_waited_for(&mut self, op: &PageIn, i: u32) -> bool {
        let word = self.table.get(op.page(i));
        self.is_read_by(op, word) && (op.touched() == Some(i) || word.wanted())
    }

    /// Whether pages of a cluster that cannot be read are given up.
    pub fn gives_up(&self, op: &PageIn) -> bool {
        op.gives_up && self.pager.leaving(op.location.device).is_some()
    }

    /// A page is not filled after all: it is as before.
    fn put_back(&mut self, page: PageId, word: PageWord) {
        self.table.set(page, word.not_filled());
        self.give_frame(word.frame());
    }

    /// A cluster has been read; `result(i, expected)` gives each page's outcome, having compared its tag with `expected`.
    /// `places[..count]` says where each goes. Returns the next window, if the reader already waits for this one.
    pub fn page_in_arrived(
        &mut self,
        op: &PageIn,
        bounds: Range<PageIndex>,
        mut result: impl FnMut(u32, Tag) -> IoResult,
        places: &mut [Destination; CLUSTER_PAGES_MAX],
    ) -> Option<PageIn> {
        self.reading -= 1;
        match op.location.is_home() {
            true => self.home_reads(op.first.object(), -1),
            false => self.pager.read_ended(op.slot),
        }
        let mut wanted = None;
        for i in (0..op.count).map(|n| op.nth(n)) {
            let page = op.page(i);
            let word = self.table.get(page);
            if !self.is_read_by(op, word) {
                places[i as usize] = Destination::Discard;
                continue;
            }
            let outcome = match self.pager.tag(page) {
                Some(expected) if !op.location.is_home() => result(i, expected),
                None if op.location.is_home() => result(i, Tag::UNKNOWN),
                _ => IoResult::Corrupt,
            };
            places[i as usize] = match outcome {
                IoResult::Ok if op.parks && !word.wanted() && !word.wired() => Destination::Park(word.frame()),
                IoResult::Ok => Destination::Map,
                // if nobody has touched it: by then the file may have grown, or the device be well
                IoResult::Beyond | IoResult::Io(_) | IoResult::Again
                    if outcome == IoResult::Again || !self.gives_up(op) && !self.is_waited_for(op, i) =>
                {
                    self.put_back(page, word);
                    Destination::Discard
                }
                _ => {
                    if outcome == IoResult::Corrupt {
                        self.counters.corrupt_pages.add(1);
                    }
                    self.counters.read_errors.add(1);
                    let frame = word.frame();
                    self.table.set(page, word.lost());
                    self.give_frame(frame);
                    Destination::Lost
                }
            };
            if word.wanted() {
                wanted = Some(page); // the furthest, in the end
            }
        }
        let stream = op.stream?;
        if let Some(page) = wanted {
            // the reader is already here: everything it waits for is mapped, and the next window is due at once
            if !op.touched {
                self.reads.waited(stream, op.location.is_home());
            }
            let stream = op.trigger.map_or(stream, |_| self.reads.reached(stream, page));
            return self.read_on(stream, page, bounds).map(|m| PageIn { written: op.written, ..m });
        }
        let trigger = op.trigger.and_then(|first| {
            (first..op.count)
                .map(|n| op.nth(n))
                .find(|i| places[*i as usize] == Destination::Map && !self.table.get(op.page(*i)).wired())
        });
        if let Some(at) = trigger {
            places[at as usize] = Destination::Park(self.table.get(op.page(at)).frame());
            self.reads.await_trigger(stream, op.page(at));
        }
        None
    }

    /// One page that was to be mapped or parked. Returns whether waiting faults must be woken.
    pub fn page_in_done(&mut self, page: PageId, filled: Filled) -> bool {
        let word = self.table.get(page);
        let frame = word.frame();
        match filled {
            Filled::Mapped => {
                if word.wanted() && word.sample() {
                    self.note_sample(word, true);
                }
                let used = if word.wanted() && word.readahead() {
                    self.counters.readahead_used.add(1);
                    true
                } else {
                    false
                };
                let why = match word.readahead() {
                    _ if word.passing() => Admit::Passing,
                    true => Admit::Readahead,
                    false if self.at_home(page).is_some() => Admit::FileRead,
                    false => Admit::HardFault,
                };
                self.table.set(page, if used { word.mapped().used() } else { word.mapped() });
                if self.pager.is_unwelcome(page) {
                    self.pager.release(page);
                }
                let distance = self.refault_distance(frame);
                if !word.wired() {
                    self.list_after(frame, page, why, distance);
                }
            }
            Filled::Parked => {
                if self.pager.is_unwelcome(page) {
                    self.pager.release(page);
                }
                self.table.set(page, if word.sample() { word.arrived_sample() } else { word.arrived_trigger() });
                self.frames.end_read(frame);
                self.policies.of(page).arrived_parked(frame, page);
                self.enqueue(frame, On::Inactive);
            }
            Filled::No => {
                self.put_back(page, word);
                self.note_usage();
            }
        }
        word.wanted() || filled == Filled::No
    }
}

//! The state of a page: one word, changed only by the named transitions below.
//!
//! ```text
//!                    begin_fill          mapped
//!   Untouched ----------------> busy ------------> Active <---------------------------+
//!                                                    |  begin_park                    |
//!                                                    v                                | begin_restore, mapped
//!                                                   busy --parked--> Inactive --------+  (a soft fault)
//!                                                                      |  begin_launder        |
//!                                                                      v                       |
//!                                                            Inactive + laundering             |
//!                                                                      |  laundered            |
//!                    begin_fill           mapped                       v                       |
//!   PagedOut ----------------> busy ------------> Active             Clean --------------------+
//!      ^                         |                                     |  ^
//!      |                         +-- arrived_trigger, _sample ---> Inactive     unstored: Clean -> Inactive, its slot was given up
//!      +------------------------------ reclaimed ----------------------+
//!
//!   Lost: its only copy could not be read back; a touch is an error for ever (until the range is released)
//! ```
//!
//! - **busy**: identity and content are held during an action of the machine; faults wait. If a page is released while it is being
//!   read, it is Untouched at once. The data is thrown away when it arrives (the core knows it by the number of the read).
//! - **laundering**: the content that was parked is being written. The page may be restored (and used) meanwhile, because the write
//!   has a copy of its own. It may not be laundered again before that write has ended.
//! - **wired**: the page never leaves memory once it is there.
//!
//! Layout: bits 0-2 state, 3-15 flags. Bits 32-63 are the frame, in states that own one and while busy. For a paged-out page they
//! are the number of its eviction (as Linux does in `mm/workingset.c`: so the refault distance costs no memory).

use crate::types::FrameId;

/// Where a page's content is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum State {
    /// Nowhere: reads as zeroes.
    Untouched = 0,
    /// Mapped; the program uses it unseen.
    Active = 1,
    /// Unmapped, in memory, not known to be stored.
    Inactive = 2,
    /// Unmapped, in memory, and stored: its frame may be taken at once.
    Clean = 3,
    /// Stored only.
    PagedOut = 4,
    /// Could not be read back.
    Lost = 5,
}

/// A page's state word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PageWord(u64);

const STATE: u64 = 7;
const BUSY: u64 = 1 << 3;
const LAUNDERING: u64 = 1 << 5;
const LAUNDERING_ORPHANED: u64 = 1 << 6;
const WIRED: u64 = 1 << 7;
const READAHEAD: u64 = 1 << 8;
const TRIGGER: u64 = 1 << 9;
const WANTED: u64 = 1 << 10;
const SAMPLE: u64 = 1 << 11;
const PASSING: u64 = 1 << 12;
const ALONG: u64 = 1 << 13;
const REFUSED: u64 = 1 << 14;
const AWAITED: u64 = 1 << 15;
const FRAME_SHIFT: u32 = 32;
const FLAGS_OF_PLACE: u64 = WIRED | LAUNDERING | LAUNDERING_ORPHANED | ALONG | REFUSED;

macro_rules! flag {
    ($get:ident, $bit:expr, $help:literal) => {
        #[doc = $help]
        #[inline]
        pub const fn $get(self) -> bool {
            self.0 & $bit != 0
        }
    };
}

impl PageWord {
    /// A page that was never touched. All bits are zero, so that a fresh table is a table of untouched pages.
    pub const UNTOUCHED: PageWord = PageWord(0);

    /// A word from the table.
    #[inline]
    pub const fn from_raw(raw: u64) -> Self {
        PageWord(raw)
    }
    /// The word for the table.
    #[inline]
    pub const fn raw(self) -> u64 {
        self.0
    }
    /// The state.
    #[inline]
    pub const fn state(self) -> State {
        match self.0 & STATE {
            0 => State::Untouched,
            1 => State::Active,
            2 => State::Inactive,
            3 => State::Clean,
            4 => State::PagedOut,
            5 => State::Lost,
            _ => unreachable!(),
        }
    }
    flag!(busy, BUSY, "Held over an action of the machine.");
    flag!(laundering, LAUNDERING, "A write of what was parked is under way.");
    flag!(
        laundering_orphaned,
        LAUNDERING_ORPHANED,
        "That write does not count: the page was released since, or its file's device has failed. Its slot is freed at the end."
    );
    flag!(wired, WIRED, "Never leaves memory.");
    flag!(readahead, READAHEAD, "Came in along with a fault and is not known to have been used.");
    flag!(trigger, TRIGGER, "Its first touch asks for the next readahead.");
    flag!(wanted, WANTED, "A fault waits for the busy page.");
    flag!(passing, PASSING, "Came in for a long run through a file. Kept until it is mapped.");
    flag!(along, ALONG, "Last came in along with others, in order or by a pointer.");
    flag!(refused, REFUSED, "Did not compress.");
    flag!(awaited, AWAITED, "Came in parked, and was not mapped since, so its first touch is no return.");
    flag!(
        sample,
        SAMPLE,
        "Came in because something points to it (or, if readahead, as a neighbour), and left parked to see whether it is used."
    );

    /// The frame, where the state owns one.
    #[inline]
    pub const fn frame(self) -> FrameId {
        FrameId((self.0 >> FRAME_SHIFT) as u32)
    }
    /// Whether a frame is charged to this page.
    #[inline]
    pub const fn has_frame(self) -> bool {
        matches!(self.state(), State::Active | State::Inactive | State::Clean) || self.busy()
    }
    #[inline]
    const fn with(self, state: State, flags: u64, frame: u32) -> Self {
        PageWord(state as u64 | flags | (frame as u64) << FRAME_SHIFT)
    }
    #[inline]
    const fn keep(self, flags: u64) -> u64 {
        self.0 & flags
    }
    /// Sets the wired flag. Only for a page that is Active or Untouched (which is wired when it arrives).
    pub const fn wire(self, wired: bool) -> Self {
        PageWord(if wired { self.0 | WIRED } else { self.0 & !WIRED })
    }
    /// Notes that a fault waits for the page. => busy
    #[inline]
    pub fn want(self) -> Self {
        assert!(self.busy());
        PageWord(self.0 | WANTED)
    }
    /// Notes that the page was used.
    #[inline]
    pub const fn used(self) -> Self {
        PageWord(self.0 & !(READAHEAD | TRIGGER))
    }

    /// Sets whether it comes in along with others. => it is coming in
    #[inline]
    pub fn coming_along(self, along: bool) -> Self {
        debug_assert!(self.busy());
        PageWord(if along { self.0 | ALONG } else { self.0 & !ALONG })
    }
    /// It comes in for a long run through a file. => it is coming in
    #[inline]
    pub fn as_passing(self) -> Self {
        debug_assert!(self.busy());
        PageWord(self.0 | PASSING)
    }
    /// Sets whether it did not compress.
    #[inline]
    pub const fn refuse(self, refused: bool) -> Self {
        PageWord(if refused { self.0 | REFUSED } else { self.0 & !REFUSED })
    }
    /// Whether a device that is not memory is the better place for it.
    #[inline]
    pub const fn passes_memory(self) -> bool {
        self.0 & (ALONG | REFUSED) != 0
    }
    /// Untouched or PagedOut: its home is a file, so it is to be read.
    #[inline]
    pub fn at_home(self) -> Self {
        assert!(!self.busy() && matches!(self.state(), State::Untouched | State::PagedOut), "at_home: {self:?}");
        PageWord(self.0 & !STATE | State::PagedOut as u64)
    }
    /// Untouched or PagedOut: a frame is taken and content is on its way.
    #[inline]
    pub fn begin_fill(self, frame: FrameId, readahead: bool) -> Self {
        assert!(!self.busy() && matches!(self.state(), State::Untouched | State::PagedOut), "begin_fill: {self:?}");
        self.with(self.state(), self.keep(FLAGS_OF_PLACE) | BUSY | if readahead { READAHEAD } else { 0 }, frame.0)
    }
    /// Busy: it is mapped now.
    #[inline]
    pub fn mapped(self) -> Self {
        assert!(self.busy(), "mapped: {self:?}");
        self.with(State::Active, self.keep(FLAGS_OF_PLACE | READAHEAD), self.frame().0)
    }
    /// Busy page-in: the page arrived and was left parked, so that its first touch is noticed. It becomes inactive like a page that
    /// was mapped, although it is stored: a clean page would be the first to be reclaimed.
    #[inline]
    pub fn arrived_trigger(self) -> Self {
        assert!(self.busy() && self.state() == State::PagedOut, "arrived_trigger: {self:?}");
        self.with(State::Inactive, self.keep(FLAGS_OF_PLACE | READAHEAD | PASSING) | TRIGGER | AWAITED, self.frame().0)
    }
    /// Busy page-in of a page that nobody has asked for. It will be left parked to see whether it is used.
    #[inline]
    pub fn as_sample(self) -> Self {
        assert!(self.busy() && self.state() == State::PagedOut, "as_sample: {self:?}");
        PageWord(self.0 | SAMPLE)
    }
    /// Busy page-in of a sample: the page arrived and was left parked.
    #[inline]
    pub fn arrived_sample(self) -> Self {
        assert!(self.busy() && self.sample() && self.state() == State::PagedOut, "arrived_sample: {self:?}");
        self.with(State::Inactive, self.keep(FLAGS_OF_PLACE | READAHEAD) | SAMPLE | AWAITED, self.frame().0)
    }
    /// Clean, busy or not: its stored copy is given up.
    #[inline]
    pub fn unstored(self) -> Self {
        assert!(self.state() == State::Clean, "unstored: {self:?}");
        PageWord(self.0 & !STATE | State::Inactive as u64)
    }
    /// Busy fill that did not happen: the page is as before, and the frame goes back.
    #[inline]
    pub fn not_filled(self) -> Self {
        assert!(self.busy(), "not_filled: {self:?}");
        self.with(self.state(), self.keep(FLAGS_OF_PLACE), 0)
    }
    /// Its only copy could not be read, neither for a fault (busy) nor to be stored elsewhere (not busy).
    #[inline]
    pub fn lost(self) -> Self {
        assert!(self.state() == State::PagedOut, "lost: {self:?}");
        self.with(State::Lost, self.keep(FLAGS_OF_PLACE), 0)
    }
    /// Inactive: the file that is its home has become too short for it.
    #[inline]
    pub fn given_up(self) -> Self {
        assert!(!self.busy() && !self.laundering() && self.state() == State::Inactive, "given_up: {self:?}");
        self.with(State::Lost, self.keep(FLAGS_OF_PLACE), 0)
    }
    /// Parked: the page is on its way back to the program.
    #[inline]
    pub fn begin_restore(self) -> Self {
        assert!(!self.busy() && matches!(self.state(), State::Inactive | State::Clean), "begin_restore: {self:?}");
        PageWord((self.0 | BUSY) & !(READAHEAD | TRIGGER | SAMPLE))
    }
    /// Restore that did not happen: the page is as before, but asks for nothing when it is touched again.
    #[inline]
    pub fn not_restored(self) -> Self {
        assert!(self.busy() && matches!(self.state(), State::Inactive | State::Clean), "not_restored: {self:?}");
        PageWord(self.0 & !(BUSY | WANTED))
    }
    /// Whether it is being unmapped.
    #[inline]
    pub const fn parking(self) -> bool {
        self.busy() && matches!(self.state(), State::Active)
    }
    /// Active: it is being unmapped.
    #[inline]
    pub fn begin_park(self) -> Self {
        assert!(!self.busy() && self.state() == State::Active && !self.wired(), "begin_park: {self:?}");
        PageWord(self.0 | BUSY)
    }
    /// The page is parked now.
    #[inline]
    pub fn parked(self) -> Self {
        assert!(self.parking(), "parked: {self:?}");
        self.with(State::Inactive, self.keep(FLAGS_OF_PLACE | READAHEAD), self.frame().0)
    }
    /// The page, whose file has what it holds, is gone from the program's memory: its frame is free.
    #[inline]
    pub fn dropped(self, evicted_at: u32) -> Self {
        assert!(self.parking(), "dropped: {self:?}");
        self.with(State::PagedOut, self.keep(FLAGS_OF_PLACE), evicted_at)
    }
    /// The page could not be parked: it is mapped as before.
    #[inline]
    pub fn not_parked(self) -> Self {
        assert!(self.parking(), "not_parked: {self:?}");
        PageWord(self.0 & !(BUSY | WANTED))
    }
    /// Inactive: its content is being compared and perhaps written.
    #[inline]
    pub fn begin_launder(self) -> Self {
        assert!(!self.busy() && !self.laundering() && self.state() == State::Inactive, "begin_launder: {self:?}");
        PageWord(self.0 | LAUNDERING)
    }
    /// Active or Inactive: its content is being compared with its file's, and perhaps written there.
    #[inline]
    pub fn begin_flush(self) -> Self {
        let here = matches!(self.state(), State::Active | State::Inactive);
        assert!(!self.busy() && !self.laundering() && here, "begin_flush: {self:?}");
        PageWord(self.0 | LAUNDERING)
    }
    /// The write under way is not to count.
    #[inline]
    pub fn orphan_write(self) -> Self {
        assert!(self.laundering(), "orphan_write: {self:?}");
        PageWord(self.0 | LAUNDERING_ORPHANED)
    }
    /// The write has ended. If the page is still parked and `stored`, it is clean.
    #[inline]
    pub fn laundered(self, stored: bool) -> Self {
        assert!(self.laundering(), "laundered: {self:?}");
        let w = PageWord(self.0 & !(LAUNDERING | LAUNDERING_ORPHANED));
        if stored && !self.laundering_orphaned() && !self.busy() && self.state() == State::Inactive {
            PageWord(w.0 & !STATE | State::Clean as u64)
        } else {
            w
        }
    }
    /// Clean: the frame is taken away, `evicted_at` is kept in its place.
    #[inline]
    pub fn reclaimed(self, evicted_at: u32) -> Self {
        assert!(!self.busy() && self.state() == State::Clean, "reclaimed: {self:?}");
        self.with(State::PagedOut, self.keep(FLAGS_OF_PLACE), evicted_at)
    }
    /// PagedOut: the number of its eviction, 0 if that is not known.
    #[inline]
    pub fn evicted_at(self) -> u32 {
        assert!(!self.has_frame() && self.state() == State::PagedOut, "evicted_at: {self:?}");
        (self.0 >> FRAME_SHIFT) as u32
    }
    /// The program gave the page up. A write under way is orphaned, and stays in the word until it has ended.
    #[inline]
    pub fn released(self) -> Self {
        self.with(State::Untouched, if self.laundering() { LAUNDERING | LAUNDERING_ORPHANED } else { 0 }, 0)
    }
    /// The state that moves along when the page changes its address (mremap): state and frame, but no action under way.
    #[inline]
    pub fn renamed(self) -> Self {
        assert!(!self.busy());
        self.with(self.state(), self.keep(WIRED | READAHEAD | ALONG | REFUSED), self.frame().0)
    }
}

impl core::fmt::Debug for PageWord {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?}", self.state())?;
        for (bit, name) in [
            (BUSY, "busy"),
            (LAUNDERING, "laundering"),
            (LAUNDERING_ORPHANED, "laundering-orphaned"),
            (WIRED, "wired"),
            (READAHEAD, "readahead"),
            (TRIGGER, "trigger"),
            (WANTED, "wanted"),
            (SAMPLE, "sample"),
            (PASSING, "passing"),
            (ALONG, "along"),
            (REFUSED, "refused"),
            (AWAITED, "awaited"),
        ] {
            if self.0 & bit != 0 {
                write!(f, "+{name}")?;
            }
        }
        if self.has_frame() { write!(f, " frame {}", self.frame().0) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    const F: FrameId = FrameId(77);

    #[test]
    fn a_life() {
        let w = PageWord::UNTOUCHED.begin_fill(F, false);
        assert!(w.busy() && w.has_frame() && w.frame() == F);
        let w = w.mapped();
        assert_eq!(w.state(), State::Active);
        let w = w.begin_park().parked();
        assert_eq!(w.state(), State::Inactive);
        let w = w.begin_launder().laundered(true);
        assert_eq!(w.state(), State::Clean);
        let w = w.reclaimed(9);
        assert_eq!(w.evicted_at(), 9);
        assert_eq!(w.state(), State::PagedOut);
        assert!(!w.has_frame());
        let w = w.begin_fill(F, true).arrived_trigger();
        assert!(w.readahead() && w.trigger() && w.state() == State::Inactive);
        let w = w.begin_restore().not_restored().begin_restore();
        assert!(!w.readahead() && !w.trigger() && w.awaited());
        let w = w.mapped();
        assert!(!w.awaited() && w.state() == State::Active);
        let w = w.begin_park().parked().begin_launder().laundered(true).reclaimed(10);
        let w = w.begin_fill(F, false).as_sample().arrived_sample();
        assert!(w.sample() && !w.trigger() && w.state() == State::Inactive);
        assert!(!w.begin_restore().sample());
        assert!(!w.begin_launder().laundered(true).reclaimed(11).sample());
        // read for a long run, left as a trigger, touched: then it is like any other page, and dropped without being parked
        let w = PageWord::UNTOUCHED.at_home().begin_fill(F, true).as_passing().arrived_trigger().begin_restore();
        assert!(w.passing() && !w.mapped().passing());
        let w = w.mapped().begin_park().dropped(12);
        assert_eq!((w.state(), w.evicted_at(), w.has_frame()), (State::PagedOut, 12, false));
    }

    #[test]
    fn rescued_while_being_written_is_not_clean() {
        let w = PageWord::UNTOUCHED.begin_fill(F, false).mapped().begin_park().parked().begin_launder();
        let w = w.begin_restore().mapped();
        assert!(w.laundering());
        assert_eq!(w.laundered(true).state(), State::Active);
        // ... and parked again before that write has ended: it is still not known to be stored
        let again = w.begin_park().parked();
        assert!(again.laundering());
        assert_eq!(again.laundered(false).state(), State::Inactive);
    }

    #[test]
    fn released_while_busy_is_untouched_at_once() {
        let w = PageWord::UNTOUCHED.begin_fill(F, false).want().released();
        assert!(!w.busy() && !w.has_frame());
        assert_eq!(w, PageWord::UNTOUCHED);
    }

    #[test]
    fn released_while_laundering_remembers_the_write() {
        let w = PageWord::UNTOUCHED.begin_fill(F, false).mapped().begin_park().parked().begin_launder().released();
        assert!(w.laundering() && w.laundering_orphaned() && w.state() == State::Untouched);
        // the page may be used anew meanwhile
        let w = w.begin_fill(F, false).mapped();
        assert_eq!(w.laundered(true), PageWord::UNTOUCHED.begin_fill(F, false).mapped());
    }
}

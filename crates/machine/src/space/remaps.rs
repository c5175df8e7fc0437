//! The program's calls that unmap, replace or move memory, while they are under way.

use crate::waited::Waited;

/// The ranges of the program's calls that unmap, replace or move memory. The page daemon takes no pages there from before the call
/// until it has been followed.
///
/// The daemon takes a page by its address. Between its choice and the move another page may come to that address, which the kernel
/// reports only afterwards: mremap(MREMAP_FIXED) replaces one mapping by another. The daemon then parked the new page in place of
/// the old one, and gave it up with that: it read as zeroes. (Meanwhile the kernel refuses to *fill* pages, but not to take them.)
#[derive(Clone, Debug)]
pub struct Remaps {
    calls: Vec<Remap>,
    /// How many there were.
    begun: u64,
}

/// A thread's call that unmaps, replaces or moves memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remap {
    /// No other has it, as soon as the call has begun.
    pub(crate) number: u64,
    pub(crate) thread: u32,
    ranges: [(usize, usize); 2],
    grows: usize,
    /// A reported unmapping that is still to be followed: the kernel may have refused it after the report.
    pub(crate) reported: Option<(usize, usize)>,
    parts: bool,
    /// When it began, in nanoseconds.
    since: u64,
    /// How long others have waited for it.
    waited: Waited,
    /// A wait for its end was given up.
    overdue: bool,
}

impl Remap {
    /// A call of this thread's. `ranges`: the range that it moves, and the range that it unmaps or replaces. `grows`: by how many
    /// bytes it may make a mapping longer. `parts`: it consists of several calls, each of which is in the list itself. `since`:
    /// now, in nanoseconds.
    pub(crate) fn new(thread: u32, ranges: [(usize, usize); 2], grows: usize, parts: bool, since: u64) -> Self {
        Remap { number: 0, thread, ranges, grows, reported: None, parts, since, waited: Waited::new(since), overdue: false }
    }
    /// Whether it may move something, rather than only unmap or replace.
    pub(crate) fn moves(&self) -> bool {
        self.ranges[0].0 < self.ranges[0].1
    }
}

/// Hardly more threads are in such calls at a time.
const REMAPS_MAX: usize = 4096;

/// A call that began so long before another of the same thread, in nanoseconds, was left by a jump out of a signal handler.
pub(super) const LEFT_NS: u64 = 1_000_000_000;

/// How long others must have waited for a call, in nanoseconds, before it counts as left: its time may have passed while the whole
/// process was stopped.
const WAITED_NS: u64 = 1_000_000_000;

impl Remaps {
    /// None.
    pub fn new() -> Self {
        Remaps { calls: Vec::with_capacity(REMAPS_MAX), begun: 0 }
    }
    /// A call begins. The thread may be in others: this one is a part of it, or a signal handler makes it.
    pub(crate) fn begin(&mut self, call: Remap) {
        if self.calls.len() == REMAPS_MAX {
            self.calls.remove(0);
        }
        self.begun += 1;
        self.calls.push(Remap { number: self.begun, ..call });
    }
    /// Removes and returns a call that the thread has left by a long jump, as far as can be told from the next one.
    pub(crate) fn take_left(&mut self, next: &Remap) -> Option<Remap> {
        let is_its = |call: &Remap| call.thread == next.thread && (!call.parts || next.parts);
        let is_left = |call: &Remap| is_its(call) && next.since.saturating_sub(call.since) > LEFT_NS;
        let at = self.calls.iter().position(is_left)?;
        Some(self.calls.remove(at))
    }
    /// The call has ended. Returns it: the thread's last one.
    pub(crate) fn end(&mut self, thread: u32) -> Option<Remap> {
        let at = self.calls.iter().rposition(|call| call.thread == thread && !call.parts)?;
        Some(self.calls.remove(at))
    }
    /// The call that consists of several has ended.
    pub(crate) fn end_parts(&mut self, thread: u32) {
        if let Some(at) = self.calls.iter().rposition(|call| call.thread == thread && call.parts) {
            self.calls.remove(at);
        }
    }
    /// Whether threads other than this one are in such calls, and their ends must be waited for.
    pub(crate) fn others(&self, thread: u32) -> bool {
        self.calls.iter().any(|call| call.thread != thread && !call.overdue)
    }
    /// Whether another thread than this one is moving memory: [`Machine::await_others`](crate::Machine::await_others). A thread
    /// that has been for longer than `patience` nanoseconds, and was waited for, no longer counts.
    pub(crate) fn others_move(&mut self, thread: u32, now: u64, patience: u64) -> bool {
        for call in self.calls.iter_mut().filter(|call| call.moves() && call.thread != thread) {
            let waited = call.waited.look(now);
            call.overdue |= now.saturating_sub(call.since) > patience && waited > WAITED_NS;
        }
        self.calls.iter().any(|call| call.moves() && call.thread != thread && !call.overdue)
    }
    /// The unmapping of a range was reported. If a call of just this range is under way, puts the report aside and returns `true`:
    /// the kernel may still refuse the call, and the call's end will tell.
    pub(crate) fn put_aside(&mut self, start: usize, end: usize) -> bool {
        let call = self.calls.iter_mut().find(|call| call.ranges[1] == (start, end) && call.reported.is_none());
        call.map(|call| call.reported = Some((start, end))).is_some()
    }
    /// What the calls under way unmap or replace of the range: the number of the call, and the part.
    pub(crate) fn unmaps_of(&self, start: usize, end: usize) -> impl Iterator<Item = (u64, usize, usize)> {
        let parts = self.calls.iter().map(move |call| (call.number, call.ranges[1].0.max(start), call.ranges[1].1.min(end)));
        parts.filter(|part| part.1 < part.2)
    }
    /// The number of a call that unmaps or replaces all of the range, and perhaps more.
    pub(crate) fn around(&self, start: usize, end: usize) -> Option<u64> {
        let call = self.calls.iter().find(|call| call.ranges[1].0 <= start && end <= call.ranges[1].1);
        call.map(|call| call.number)
    }
    /// The calls for which an unmapping of this page was put aside.
    pub(crate) fn asides(&self, addr: usize) -> impl Iterator<Item = u64> {
        let aside = move |call: &&Remap| call.reported.is_some_and(|(start, end)| (start..end).contains(&addr));
        self.calls.iter().filter(aside).map(|call| call.number)
    }
    /// Whether a call concerns a part of the range.
    pub fn overlaps(&self, start: usize, end: usize) -> bool {
        self.calls.iter().flat_map(|call| &call.ranges).any(|r| r.0 < end && start < r.1)
    }
    /// Whether `thread` has begun a call by which a mapping may grow to include `addr`. `known`: something else is known to be
    /// there, or was before.
    pub(crate) fn grows(&self, addr: usize, thread: u32, known: bool) -> bool {
        self.calls.iter().rfind(|call| call.thread == thread && call.grows > 0).is_some_and(|call| {
            let (_, end) = call.ranges[1];
            if end == 0 { !known } else { (end - call.grows..end).contains(&addr) }
        })
    }
    /// Whether an unmapping was put aside.
    pub fn has_reports(&self) -> bool {
        self.calls.iter().any(|call| call.reported.is_some())
    }
    /// Whether a call of this thread's is under way.
    pub(crate) fn has(&self, thread: u32) -> bool {
        self.calls.iter().any(|call| call.thread == thread)
    }
    /// Stops waiting for the ends of other threads' calls.
    pub(crate) fn give_up_others(&mut self, thread: u32) {
        self.calls.iter_mut().filter(|call| call.thread != thread).for_each(|call| call.overdue = true);
    }
    /// Removes all calls: their threads do not exist here.
    pub(crate) fn clear(&mut self) {
        self.calls.clear();
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
    /// Whether another page may be about to come to `addr`.
    pub fn covers(&self, addr: usize) -> bool {
        self.calls.iter().flat_map(|call| &call.ranges).any(|&(start, end)| start <= addr && addr < end)
    }
}

impl Default for Remaps {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: (usize, usize) = (0, 0);

    /// A process was stopped for ten seconds while a thread moved memory. Then the next thread did not wait for it, and two moved
    /// memory at a time ([`Machine::announce`](crate::Machine)).
    #[test]
    fn a_call_counts_as_left_only_after_others_have_waited_for_it() {
        let (patience, look, stopped) = (10_000_000_000, 50_000_000, 60_000_000_000);
        let mut remaps = Remaps::new();
        remaps.begin(Remap::new(7, [(1, 2), NOTHING], 0, false, 0));
        let looks = (0..).take_while(|i| remaps.others_move(8, stopped + i * look, patience)).count() as u64;
        assert!((WAITED_NS - 2 * look..=WAITED_NS + look).contains(&(looks * look)), "{looks}");
        assert!(!remaps.others_move(8, stopped + looks * look, patience), "once");
    }

    /// A signal came when a thread was in munmap, and its handler unmapped something else. The thread's own call was forgotten,
    /// with the report of its unmapping: its frames stayed charged for ever.
    #[test]
    fn a_call_of_a_signal_handler_leaves_the_outer_one_alone() {
        let mut remaps = Remaps::new();
        let call = |start, since| Remap::new(7, [NOTHING, (start, start + 1)], 0, false, since);
        remaps.begin(call(10, 0));
        assert!(remaps.put_aside(10, 11));
        remaps.begin(call(20, 5));
        assert!(remaps.put_aside(20, 21) && remaps.covers(10));
        let end = |remaps: &mut Remaps| remaps.end(7).and_then(|call| call.reported);
        assert_eq!([end(&mut remaps), end(&mut remaps), end(&mut remaps)], [Some((20, 21)), Some((10, 11)), None]);
        // the handler jumps out of it
        remaps.begin(call(10, 0));
        assert!(remaps.put_aside(10, 11));
        let mut left = |thread, now| {
            let next = Remap::new(thread, [NOTHING; 2], 0, false, now);
            remaps.take_left(&next).and_then(|call| call.reported)
        };
        assert_eq!([left(7, LEFT_NS), left(8, LEFT_NS + 1), left(7, LEFT_NS + 1)], [None, None, Some((10, 11))]);
        assert!(remaps.is_empty());
    }

    #[test]
    fn the_parts_of_a_call_end_before_it() {
        let mut remaps = Remaps::new();
        remaps.begin(Remap::new(7, [NOTHING; 2], 0, true, 0));
        remaps.begin(Remap::new(7, [NOTHING, (10, 11)], 0, false, 0));
        assert!(remaps.end(7).is_some() && remaps.end(7).is_none() && remaps.has(7));
        remaps.end_parts(7);
        assert!(remaps.is_empty());
    }
}

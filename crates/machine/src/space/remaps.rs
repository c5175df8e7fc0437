//! The program's calls that unmap, replace or move memory, while they are under way.

/// The ranges of the program's calls that unmap, replace or move memory. The page daemon takes no pages there from before the call
/// until it has been followed.
///
/// The daemon takes a page by its address. Between its choice and the move another page may come to that address, which the kernel
/// reports only afterwards: mremap(MREMAP_FIXED) replaces one mapping by another. The daemon then parked the new page in place of
/// the old one, and gave it up with that: it read as zeroes. (Meanwhile the kernel refuses to *fill* pages, but not to take them.)
#[derive(Clone, Debug)]
pub struct Remaps {
    calls: Vec<Remap>,
}

/// A thread's call that unmaps, replaces or moves memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remap {
    pub(crate) thread: u32,
    ranges: [(usize, usize); 2],
    grows: usize,
    /// A reported unmapping that is still to be followed: the kernel may have refused it after the report.
    pub(crate) reported: Option<(usize, usize)>,
    parts: bool,
    /// When it began, in nanoseconds.
    since: u64,
    /// A wait for its end was given up.
    overdue: bool,
}

impl Remap {
    /// A call of this thread's. `ranges`: the range that it moves, and the range that it unmaps or replaces. `grows`: by how many
    /// bytes it may make a mapping longer. `parts`: it consists of several calls, each of which is in the list itself. `since`:
    /// now, in nanoseconds.
    pub(crate) fn new(thread: u32, ranges: [(usize, usize); 2], grows: usize, parts: bool, since: u64) -> Self {
        Remap { thread, ranges, grows, reported: None, parts, since, overdue: false }
    }
    /// Whether it may move something, rather than only unmap or replace.
    pub(crate) fn moves(&self) -> bool {
        self.ranges[0].0 < self.ranges[0].1
    }
}

/// Hardly more threads are in such calls at a time. A thread that jumps out of its call, from a signal handler, leaves it here
/// until its next one.
const REMAPS_MAX: usize = 4096;

impl Remaps {
    /// None.
    pub fn new() -> Self {
        Remaps { calls: Vec::with_capacity(REMAPS_MAX) }
    }
    /// A call begins.
    pub(crate) fn begin(&mut self, call: Remap) {
        // the thread is in no other call, except one that this may be a part of
        self.calls.retain(|other| other.thread != call.thread || other.parts && !call.parts);
        if self.calls.len() == REMAPS_MAX {
            self.calls.remove(0);
        }
        self.calls.push(call);
    }
    /// The call has ended. Returns it.
    pub(crate) fn end(&mut self, thread: u32) -> Option<Remap> {
        let at = self.calls.iter().position(|call| call.thread == thread && !call.parts)?;
        Some(self.calls.swap_remove(at))
    }
    /// Whether threads other than this one are in such calls, and their ends must be waited for.
    pub(crate) fn others(&self, thread: u32) -> bool {
        self.calls.iter().any(|call| call.thread != thread && !call.overdue)
    }
    /// Whether another thread than this one is moving memory: [`Machine::await_others`](crate::Machine::await_others). A thread
    /// that has been for longer than `patience` nanoseconds no longer counts.
    pub(crate) fn others_move(&mut self, thread: u32, now: u64, patience: u64) -> bool {
        let late = |call: &&mut Remap| call.moves() && call.thread != thread && now.saturating_sub(call.since) > patience;
        self.calls.iter_mut().filter(late).for_each(|call| call.overdue = true);
        self.calls.iter().any(|call| call.moves() && call.thread != thread && !call.overdue)
    }
    /// The unmapping of a range was reported. If a call of just this range is under way, puts the report aside and returns `true`:
    /// the kernel may still refuse the call, and the call's end will tell.
    pub(crate) fn put_aside(&mut self, start: usize, end: usize) -> bool {
        let call = self.calls.iter_mut().find(|call| call.ranges[1] == (start, end) && call.reported.is_none());
        call.map(|call| call.reported = Some((start, end))).is_some()
    }
    /// The part of the range that is in such a report.
    pub(crate) fn put_aside_of(&self, start: usize, end: usize) -> Option<(usize, usize)> {
        let reported = self.calls.iter().filter_map(|call| call.reported);
        reported.map(|r| (r.0.max(start), r.1.min(end))).find(|r| r.0 < r.1)
    }
    /// Whether a call concerns a part of the range.
    pub fn overlaps(&self, start: usize, end: usize) -> bool {
        self.calls.iter().flat_map(|call| &call.ranges).any(|r| r.0 < end && start < r.1)
    }
    /// Whether `thread` has begun a call by which a mapping may grow to include `addr`. `known`: something else is known to be
    /// there, or was before.
    pub(crate) fn grows(&self, addr: usize, thread: u32, known: bool) -> bool {
        self.calls.iter().find(|call| call.thread == thread && call.grows > 0).is_some_and(|call| {
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
    /// Removes all calls of this thread, whatever was reported of them.
    pub(crate) fn forget(&mut self, thread: u32) {
        self.calls.retain(|call| call.thread != thread);
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

//! Calls of the program's that unmap, replace or move memory, and are under way.

/// What the program's calls that unmap, replace or move memory are about: from before the call until it has been followed the page
/// daemon takes nothing there.
///
/// It takes a page by its address, and in the moment between its choice and the move another page may have come there, which the
/// kernel reports only afterwards: mremap(MREMAP_FIXED) puts one mapping in the place of another. The daemon parked the page that
/// had come for the one that had gone, and gave it up with that: it read as zeroes. (The kernel refuses to *fill* pages meanwhile,
/// not to take them.)
#[derive(Clone, Debug)]
pub struct Remaps {
    calls: Vec<Remap>,
}

/// A call of a thread's that unmaps, replaces or moves memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remap {
    pub(crate) thread: u32,
    ranges: [(usize, usize); 2],
    grows: usize,
    /// It was reported that this was unmapped, which the kernel may have refused after all: it is still to be followed.
    pub(crate) reported: Option<(usize, usize)>,
    parts: bool,
    /// When it began, in nanoseconds.
    since: u64,
    /// Its end was waited for in vain.
    overdue: bool,
}

impl Remap {
    /// A call of this thread's. `ranges`: what it moves, and what it unmaps or replaces. `grows`: by so many bytes it may make a
    /// mapping longer. `parts`: it is several calls, which are to be one, and each of which is in the list itself. `since`: now, in
    /// nanoseconds.
    pub(crate) fn new(thread: u32, ranges: [(usize, usize); 2], grows: usize, parts: bool, since: u64) -> Self {
        Remap { thread, ranges, grows, reported: None, parts, since, overdue: false }
    }
    /// Whether it may move something, rather than only unmap or replace.
    pub(crate) fn moves(&self) -> bool {
        self.ranges[0].0 < self.ranges[0].1
    }
}

/// More threads are hardly in such calls at a time; and who jumps out of one, from a signal handler, leaves it here until his next
/// one.
const REMAPS_MAX: usize = 4096;

impl Remaps {
    /// None.
    pub fn new() -> Self {
        Remaps { calls: Vec::with_capacity(REMAPS_MAX) }
    }
    /// A call begins.
    pub(crate) fn begin(&mut self, call: Remap) {
        // the thread is in no other one, but that which this may be a part of
        self.calls.retain(|other| other.thread != call.thread || other.parts && !call.parts);
        if self.calls.len() == REMAPS_MAX {
            self.calls.remove(0);
        }
        self.calls.push(call);
    }
    /// It has been made. Returns the call.
    pub(crate) fn end(&mut self, thread: u32) -> Option<Remap> {
        let at = self.calls.iter().position(|call| call.thread == thread && !call.parts)?;
        Some(self.calls.swap_remove(at))
    }
    /// Whether other threads than this one are in such calls, of which the ends are to be waited for.
    pub(crate) fn others(&self, thread: u32) -> bool {
        self.calls.iter().any(|call| call.thread != thread && !call.overdue)
    }
    /// Whether another thread than this one is moving something: [`Machine::await_others`](crate::Machine::await_others). Who has
    /// been for longer than `patience` nanoseconds counts no more.
    pub(crate) fn others_move(&mut self, thread: u32, now: u64, patience: u64) -> bool {
        let late = |call: &&mut Remap| call.moves() && call.thread != thread && now.saturating_sub(call.since) > patience;
        self.calls.iter_mut().filter(late).for_each(|call| call.overdue = true);
        self.calls.iter().any(|call| call.moves() && call.thread != thread && !call.overdue)
    }
    /// The unmapping of a range was reported. Returns whether a call of just that is under way, which may have been refused after
    /// that: then its end will tell.
    pub(crate) fn put_aside(&mut self, start: usize, end: usize) -> bool {
        let call = self.calls.iter_mut().find(|call| call.ranges[1] == (start, end) && call.reported.is_none());
        call.map(|call| call.reported = Some((start, end))).is_some()
    }
    /// What of the range is in such a report.
    pub(crate) fn put_aside_of(&self, start: usize, end: usize) -> Option<(usize, usize)> {
        let reported = self.calls.iter().filter_map(|call| call.reported);
        reported.map(|r| (r.0.max(start), r.1.min(end))).find(|r| r.0 < r.1)
    }
    /// Whether a call is about something in the range.
    pub fn overlaps(&self, start: usize, end: usize) -> bool {
        self.calls.iter().flat_map(|call| &call.ranges).any(|r| r.0 < end && start < r.1)
    }
    /// Whether `thread` has begun a call by which `addr` may be what a mapping grows by. `known`: something else is known to be
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
    /// No call of this thread's is under way any more, whatever was reported of it.
    pub(crate) fn forget(&mut self, thread: u32) {
        self.calls.retain(|call| call.thread != thread);
    }
    /// The ends of other threads' calls are not waited for any more.
    pub(crate) fn give_up_others(&mut self, thread: u32) {
        self.calls.iter_mut().filter(|call| call.thread != thread).for_each(|call| call.overdue = true);
    }
    /// None is under way: their threads are not here.
    pub(crate) fn clear(&mut self) {
        self.calls.clear();
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
    /// Whether what is at `addr` may be about to be something else.
    pub fn covers(&self, addr: usize) -> bool {
        self.calls.iter().flat_map(|call| &call.ranges).any(|&(start, end)| start <= addr && addr < end)
    }
}

impl Default for Remaps {
    fn default() -> Self {
        Self::new()
    }
}

//! What a hook does when a thread of the program's unmaps, replaces or moves memory, and mremap(2) as a whole.

use crate::errno::{EFAULT, ENOMEM, Errno};
use crate::kernel::{Kernel, Mistake};
use crate::machine::Machine;
use crate::native::{Piece, Pieces};
use crate::ranges::Kind;
use overspill_vm::types::PAGE_SIZE;

/// MREMAP_MAYMOVE.
pub const MAY_MOVE: usize = 1;
/// MREMAP_FIXED.
pub const FIXED: usize = 2;
/// MREMAP_DONTUNMAP.
pub const LEAVES: usize = 4;
/// No range.
pub const NOTHING: (usize, usize) = (0, 0);
/// The end of a program's addresses, less a page: as TASK_SIZE.
pub const ADDRESSES_END: usize = (1 << 47) - 4096;

const REFUSED: isize = -(EFAULT as isize);

/// Rounds a length up to whole pages, as the kernel does.
pub fn up(n: usize) -> usize {
    n.wrapping_add(PAGE_SIZE - 1) & !(PAGE_SIZE - 1)
}

/// The arguments of mremap(2), as the program has given them.
#[derive(Clone, Copy, Debug)]
pub struct Mremap {
    /// Address.
    pub old: usize,
    /// Bytes.
    pub old_len: usize,
    /// Bytes afterwards.
    pub new_len: usize,
    /// [`MAY_MOVE`] and so on.
    pub flags: usize,
    /// The new address, with [`FIXED`].
    pub new: usize,
}

/// A change that needs the pager's descriptors.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// There is a new anonymous private range.
    Add(Piece),
    /// A mapping that is not the pager's took the place of whatever the map has here: start, end.
    NotOurs(usize, usize),
    /// The native ranges in here must be managed: start, end.
    Adopt(usize, usize),
    /// A managed range was moved or resized: bytes before, address, bytes.
    Resized(usize, usize, usize),
    /// A managed range was moved and is still there, empty: from, to, bytes.
    LeftEmpty(usize, usize, usize),
}

impl<K: Kernel> Machine<K> {
    /// Makes a change, for a hook.
    pub fn perform(&self, change: Change) {
        match change {
            Change::Add(piece) => self.add_range(piece),
            Change::NotOurs(start, end) => self.await_unmaps(start, end),
            Change::Adopt(start, end) => self.adopt_native_of(start, end),
            Change::Resized(old_len, new, new_len) => self.resized_range(old_len, new, new_len),
            Change::LeftEmpty(old, new, len) => self.left_empty(old, new, len),
        }
    }
}

/// A system call that is about to unmap, replace or move memory.
#[derive(Clone, Copy)]
pub struct Announced {
    /// Its native parts, for each of its two ranges.
    native: [Pieces; 2],
    managed: bool,
    /// The signal mask from before the call.
    mask: u64,
}

/// Neighbouring mappings that are alike: the start of each.
#[derive(Clone, Copy)]
struct Alike {
    starts: [usize; ALIKE_MAX],
    count: usize,
}

/// One call rarely covers more. The list is on the program's stack.
const ALIKE_MAX: usize = 32;

/// See [`Hook::whole_call`].
pub struct WholeCall<H: Hook> {
    hook: H,
    /// The signal mask from before.
    mask: u64,
}

impl<H: Hook> Drop for WholeCall<H> {
    fn drop(&mut self) {
        self.hook.run_held(|hook| hook.machine().end_parts());
        self.hook.let_signals(self.mask);
    }
}

impl Announced {
    /// Whether the pager has something to do after the call.
    fn follows(&self) -> bool {
        self.managed || self.native.iter().any(|pieces| !pieces.is_empty())
    }
}

/// A thread of the program's inside a hooked system call.
pub trait Hook: Copy {
    /// The kernel below the machine.
    type Kernel: Kernel;
    /// The properties that set a mapping apart from its neighbours, except how its pages were brought in.
    type Kind: Copy + PartialEq;

    /// The machine of the process.
    fn machine(&self) -> &Machine<Self::Kernel>;
    /// Runs `f` on a stack whose pages are never missing. `f` must capture nothing by reference: that would lie on the program's
    /// stack.
    fn run<R>(self, f: impl FnOnce(Self) -> R + 'static) -> R;
    /// The same. => after [`Hook::hold_signals`]
    fn run_held<R>(self, f: impl FnOnce(Self) -> R + 'static) -> R {
        self.run(f)
    }
    /// Blocks all signals, where there are any. Returns the mask for [`Hook::let_signals`].
    fn hold_signals(self) -> u64 {
        0
    }
    /// Ends that.
    fn let_signals(self, _mask: u64) {}
    /// Has [`Machine::perform`] called by a thread that has the pager's descriptors. => in [`Hook::run`]
    fn perform(self, change: Change);
    /// Raises the process's limit at the cost of others that share its budget, until it can have so many pages more without paging.
    /// Returns whether it can. May wait for some milliseconds. => in [`Hook::run`]
    fn obtain(self, _pages: u64) -> bool {
        false
    }
    /// The bare system call mremap(2). Returns an address, or a negative error.
    fn call(self, call: Mremap) -> isize;
    /// The bare system call munmap(2).
    fn call_munmap(self, at: usize, len: usize) -> isize;
    /// Maps `len` bytes at a free address, to be replaced.
    fn reserve(self, len: usize) -> isize;
    /// Whether the kernel moves several mappings by one mremap(2), as Linux 6.17 does.
    fn moves_several(self) -> bool;
    /// Calls `f(start, end, kind)` for each mapping, in the order of addresses.
    ///
    /// # Errors
    /// The mappings cannot be listed.
    fn each_mapping(self, f: impl FnMut(usize, usize, Self::Kind)) -> Result<(), Errno>;

    /// The program has a new anonymous private range.
    fn new_range(self, piece: Piece) {
        if piece.start >= piece.end || self.run(move |hook| hook.machine().try_native(piece)) {
            return;
        }
        let pages = ((piece.end - piece.start) / PAGE_SIZE) as u64;
        self.run(move |hook| {
            // (once anything is managed, the page daemon sees to more)
            let machine = hook.machine();
            if !(machine.is_all_native() && hook.obtain(pages) && machine.try_native(piece)) {
                hook.perform(Change::Add(piece));
            }
        });
    }

    /// The program has a new mapping that is not for the pager.
    fn not_ours(self, start: usize, end: usize) {
        if self.run(move |hook| hook.machine().map.read().ranges.first(start, end).is_some()) {
            self.run(move |hook| hook.perform(Change::NotOurs(start, end)));
        }
    }

    /// Announces a call that moves the first range, which grows by `grows` bytes, and unmaps or replaces the second:
    /// [`Machine::take_native`], [`Machine::begin_remap`]. If the pager has to follow the call, signals are blocked until
    /// [`Hook::end_remap`]: a handler that forked in between had a child that did not know of the call. Where memory had been
    /// replaced by a shared mapping, old content was written to that.
    fn begin_remap(self, ranges: [(usize, usize); 2], grows: usize) -> Announced {
        loop {
            let mask = self.hold_signals();
            let (announced, may) = self.run_held(move |hook| {
                let native = ranges.map(|(start, end)| {
                    hook.machine().take_native(start, end).unwrap_or_else(|| {
                        hook.perform(Change::Adopt(start, end));
                        Pieces::default()
                    })
                });
                let managed = hook.machine().begin_remap(ranges, grows);
                (Announced { native, managed: managed == Some(true), mask }, managed.is_some())
            });
            if !announced.follows() {
                self.let_signals(mask);
            }
            if may {
                return announced;
            }
            self.end_remap(announced, false); // the call may not begin yet
            self.machine().await_others();
        }
    }

    /// Ends an announced call. `done`: it was made; otherwise the kernel refused it, or it was not begun.
    fn end_remap(self, announced: Announced, done: bool) {
        if announced.follows() {
            self.run_held(move |hook| {
                if announced.managed {
                    hook.machine().end_remap(done);
                }
                for pieces in announced.native.iter().filter(|pieces| !pieces.is_empty()) {
                    if done {
                        hook.machine().gone(pieces);
                        continue;
                    }
                    pieces
                        .iter()
                        .filter(|piece| !hook.machine().put_back(piece))
                        .for_each(|piece| hook.perform(Change::Add(*piece)));
                }
            });
            self.let_signals(announced.mask);
        }
    }

    /// No fork happens until the result is dropped: not by another thread, which waits, nor by a signal handler of this one. For
    /// calls that count as one, and for those on memory of which no event tells.
    fn whole_call(self) -> WholeCall<Self> {
        loop {
            let mask = self.hold_signals();
            if self.run_held(|hook| hook.machine().begin_parts()) {
                return WholeCall { hook: self, mask };
            }
            self.let_signals(mask);
            self.machine().await_others();
        }
    }

    /// munmap(2).
    fn munmap(self, at: usize, len: usize) -> isize {
        let announced = self.begin_remap([NOTHING, (at, at.wrapping_add(up(len)))], 0);
        let r = self.call_munmap(at, len);
        self.end_remap(announced, r == 0);
        r
    }

    /// mremap(2).
    fn mremap(self, call: Mremap) -> isize {
        let Mremap { old, flags, .. } = call;
        let (old_len, new_len) = (up(call.old_len), up(call.new_len));
        let fixed = flags & FIXED != 0;
        let moves_all = fixed && old_len == new_len && old_len > 0 && Self::Kernel::is_mapped(old, old + PAGE_SIZE);
        let end = old.wrapping_add(old_len);
        // what it unmaps, or replaces
        let to = match fixed {
            true => (call.new, call.new.wrapping_add(new_len)),
            false if (1..old_len).contains(&new_len) => (old.wrapping_add(new_len), end),
            false => NOTHING,
        };
        let known = |hook: Self| hook.run(move |hook| hook.machine().map.read().ranges.covers(old, end));
        if moves_all && !known(self) && self.moves_several() {
            let apart = to.0 < to.1 && to.1 <= ADDRESSES_END && (end <= to.0 || to.1 <= old);
            let leaves = flags == FIXED | MAY_MOVE | LEAVES;
            if apart && leaves && mapping(self, old, end).is_some_and(|(_, until)| until < end) {
                // Before the kernel refuses, it may leave some mappings behind empty. They look just like mappings that it has not
                // moved.
                return move_each(self, call);
            }
            // At the target, pages that a gap is moved to stay. Only events tell which parts of the target have gone.
            if self.run(move |hook| hook.machine().map.read().ranges.overlap(to.0, to.1, Kind::Native).is_some()) {
                self.run(move |hook| hook.perform(Change::Adopt(to.0, to.1)));
            }
        }
        let announced = self.begin_remap([(old, end), to], new_len.saturating_sub(old_len));
        let r = self.call(call);
        self.end_remap(announced, r >= 0);
        if r == REFUSED && !Self::Kernel::mistake(Mistake::MovesOnlyOne) {
            return if moves_all && self.moves_several() { move_each(self, call) } else { move_alike(self, call) };
        }
        if r < 0 {
            return r;
        }
        if old_len == 0 {
            // another view of a shared mapping, of any size: nothing has grown, not even a range that ends where this one begins
            self.not_ours(r as usize, r as usize + new_len);
            return r;
        }
        let native = announced.native[0];
        let (new, left_empty) = (r as usize, flags & LEAVES != 0);
        if native.is_empty() {
            self.run(move |hook| hook.perform(Change::Resized(old_len, new, new_len)));
            if left_empty {
                self.run(move |hook| hook.perform(Change::LeftEmpty(old, new, old_len)));
            }
            return r;
        }
        for &Piece { start, end, flags } in native.iter() {
            let at = new + (start - old);
            // the added part is like the piece that it extends
            let until = if end == old + old_len { new + new_len } else { new + (end - old) };
            self.new_range(Piece { start: at, end: until.min(new + new_len), flags });
            if left_empty {
                self.new_range(Piece { start, end, flags });
            }
        }
        r
    }
}

/// The part of the first mapping in `start..end` that lies in there. `None` also if the mappings cannot be listed (RLIMIT_NOFILE).
fn mapping<H: Hook>(hook: H, start: usize, end: usize) -> Option<(usize, usize)> {
    hook.run(move |_| {
        let mut found = None;
        let asked = H::Kernel::each_mapping(|from, to| {
            if found.is_none() && from < end && start < to {
                found = Some((from.max(start), to.min(end)));
            }
        });
        found.filter(|_| asked.is_ok())
    })
}

/// The mappings that make up `start..end`, if all of it is managed and they are alike. Alike means equal in everything that Linux
/// compares before it joins two mappings, except how their pages were brought in.
fn alike<H: Hook>(hook: H, start: usize, end: usize) -> Option<Alike> {
    hook.run(move |hook| {
        {
            let map = hook.machine().map.read();
            if !map.ranges.covers(start, end) || map.ranges.overlap(start, end, Kind::Native).is_some() {
                return None;
            }
        }
        let (mut alike, mut fits, mut kind) = (Alike { starts: [0; ALIKE_MAX], count: 0 }, true, None);
        let mut at = start; // (there may be a hole of which no event was read yet)
        let asked = hook.each_mapping(|from, to, this| {
            if from >= end || to <= start {
                return;
            }
            fits &= from <= at && alike.count < ALIKE_MAX && kind.is_none_or(|kind| kind == this);
            if fits {
                alike.starts[alike.count] = at;
                alike.count += 1;
                (at, kind) = (to, Some(this));
            }
        });
        (asked.is_ok() && fits && at >= end).then_some(alike)
    })
}

/// Moves mappings one by one. Since Linux 6.17 one call moves several mappings, gaps and all, but not mappings that are registered
/// with a userfaultfd. At the first of those it says EFAULT, after it has moved the mappings before. So the rest is moved one by
/// one.
fn move_each<H: Hook>(hook: H, call: Mremap) -> isize {
    let (old, end) = (call.old, call.old + up(call.old_len));
    let (mut at, mut moved, _whole) = (old, false, hook.whole_call());
    while at < end {
        let Some((start, until)) = mapping(hook, at, end) else { break };
        if start == old && until == end {
            return REFUSED; // it is one mapping: the call was refused for another reason
        }
        let len = until - start;
        let r = hook.mremap(Mremap { old: start, old_len: len, new_len: len, new: call.new + (start - old), ..call });
        if r < 0 {
            return r;
        }
        (at, moved) = (until, true);
    }
    if moved { call.new as isize } else { REFUSED }
}

/// Moves neighbouring mappings that would be one without a pager. Linux joins two neighbours that are alike if at least one of them
/// has no pages yet, or if they were alike when they got their first pages. Under the pager they may have pages where without it
/// they have none: the pager fills pages that the program only reads. And a mapping is registered only after it was made, when it
/// may have pages already.
///
/// mremap(2) wants a single mapping, and says EFAULT otherwise. So alike mappings are moved one by one, as if they were one. The
/// last comes first, with the part that grows: if that is refused, nothing has changed yet.
fn move_alike<H: Hook>(hook: H, call: Mremap) -> isize {
    let Mremap { old, flags, .. } = call;
    let (old_len, new_len) = (up(call.old_len), up(call.new_len));
    let end = old + old_len.min(new_len);
    let Some(alike) = alike(hook, old, end).filter(|alike| alike.count > 1) else { return REFUSED };
    let starts = &alike.starts[..alike.count];
    let (fixed, left_empty) = (flags & FIXED != 0, flags & LEAVES != 0);
    let _whole = hook.whole_call();
    if !fixed && !left_empty {
        let last = starts[starts.len() - 1];
        let r = hook.mremap(Mremap { old: last, old_len: end - last, new_len: old + new_len - last, flags: 0, new: 0 });
        if r >= 0 {
            return old as isize;
        }
        if r != -(ENOMEM as isize) || flags & MAY_MOVE == 0 {
            return r;
        }
    }
    if end < old + old_len {
        let r = hook.munmap(end, old + old_len - end);
        if r < 0 {
            return r;
        }
    }
    let new = if fixed {
        call.new
    } else {
        match hook.reserve(new_len) {
            r @ ..0 => return r,
            r => r as usize,
        }
    };
    let mut until = end;
    for &start in starts.iter().rev() {
        let to_len = if until == end { old + new_len - start } else { until - start };
        let part = Mremap {
            old: start,
            old_len: until - start,
            new_len: to_len,
            flags: flags | FIXED | MAY_MOVE,
            new: new + (start - old),
        };
        let r = hook.mremap(part);
        if r < 0 && until < end {
            hook.machine().stop_program(b"the program was stopped: the system had no memory to move the second part of what an mremap moves, of which the first had been moved");
        }
        if r < 0 {
            if !fixed {
                hook.call_munmap(new, new_len); // our own reservation, still as it was made
            }
            return r;
        }
        until = start;
    }
    new as isize
}

//! The actions of a userfaultfd on memory: UFFDIO_COPY, ZEROPAGE, POISON, WRITEPROTECT, RWPROTECT, MOVE (Linux:
//! `mm/userfaultfd.c`).
//!
//! While a call that changes mappings is under way, all of them answer EAGAIN before they check anything else. A transfer of
//! several pages stops at the first page that fails. It reports the bytes that were done, or why the first page was refused.

use crate::errno::*;
use crate::kernel::Kernel;
use crate::pmap::{Moved, PAGE, PageBytes};
use crate::table::{Entry, Frame};

impl Kernel {
    /// The checks that all transfers make first.
    fn may_act(&self, uffd: usize, at: usize, len: usize) -> Result<(), Errno> {
        if self.uffds[uffd].changing > 0 {
            return Err(EAGAIN);
        }
        if len == 0 || !at.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) { Err(EINVAL) } else { Ok(()) }
    }

    /// Fills each page of a range. The range must lie within one mapping that is registered, on this or any other userfaultfd. A
    /// mapping that is not registered has been prepared for its first page before it is refused.
    fn fill(
        &mut self,
        uffd: usize,
        at: usize,
        len: usize,
        mut entry: impl FnMut(usize, Option<&Entry>) -> Result<Entry, Errno>,
    ) -> Moved {
        if let Err(e) = self.may_act(uffd, at, len) {
            return Moved::refused(e);
        }
        let space = &mut self.spaces[self.uffds[uffd].space];
        let Some(vma) = space.find(at).cloned() else { return Moved::refused(ENOENT) };
        space.prepare(vma.start);
        if vma.uffd.is_none() || at + len > vma.end {
            return Moved::refused(ENOENT);
        }
        for done in (0..len).step_by(PAGE) {
            match entry(done / PAGE, space.table.get(&(at + done))) {
                Ok(entry) => drop(space.table.insert(at + done, entry)),
                Err(e) if done == 0 => return Moved::refused(e),
                Err(_) => return Moved::done(done),
            }
        }
        Moved::done(len)
    }

    /// UFFDIO_COPY. It replaces marks of every kind.
    pub fn copy(&mut self, uffd: usize, at: usize, from: &[PageBytes]) -> Moved {
        self.fill(uffd, at, from.len() * PAGE, |i, old| match old {
            Some(Entry::Page { .. } | Entry::Zero { .. }) => Err(EEXIST),
            _ => Ok(Frame::entry(&from[i])),
        })
    }

    /// UFFDIO_ZEROPAGE.
    pub fn zero(&mut self, uffd: usize, at: usize, len: usize) -> Moved {
        self.fill(uffd, at, len, |_, old| if old.is_some() { Err(EEXIST) } else { Ok(Entry::Zero { protected: false }) })
    }

    /// UFFDIO_POISON. It wakes the tasks that wait for the pages that were done.
    pub fn poison(&mut self, uffd: usize, at: usize, len: usize) -> Moved {
        let moved = self.fill(uffd, at, len, |_, old| if old.is_some() { Err(EEXIST) } else { Ok(Entry::Poison) });
        if moved.bytes > 0 {
            self.wake(uffd, at, moved.bytes);
        }
        moved
    }

    /// UFFDIO_WRITEPROTECT of pages that are there. Ending the protection wakes the tasks that wait there. It goes through mappings
    /// in the order of addresses, up to the first one that is not registered for it.
    pub fn write_protect(&mut self, uffd: usize, at: usize, len: usize, on: bool) -> Result<(), Errno> {
        self.may_act(uffd, at, len)?;
        let space = &mut self.spaces[self.uffds[uffd].space];
        let end = at + len;
        space.first_in(at, end).ok_or(ENOENT)?;
        let mut next = at;
        while let Some(vma) = space.first_in(next, end).cloned() {
            if !vma.uffd.is_some_and(|r| r.protects) {
                return Err(ENOENT);
            }
            let (start, until) = (vma.start.max(at), vma.end.min(end));
            if on {
                for (_, entry) in space.table.range_mut(start..until) {
                    if let Entry::Page { protected, .. } | Entry::Zero { protected } = entry {
                        *protected = true;
                    }
                }
            } else {
                space.let_write(start, until);
            }
            next = until;
        }
        if !on {
            self.wake(uffd, at, len);
        }
        Ok(())
    }

    /// UFFDIO_RWPROTECT on a userfaultfd with UFFD_FEATURE_RWP_ASYNC: watches the pages that are there. All of the range's mappings
    /// must be registered for it.
    pub fn watch(&mut self, uffd: usize, at: usize, len: usize) -> Result<(), Errno> {
        self.may_act(uffd, at, len)?;
        let space = &mut self.spaces[self.uffds[uffd].space];
        let (mut next, end) = (at, at + len);
        space.first_in(next, end).ok_or(ENOENT)?;
        while let Some(vma) = space.first_in(next, end) {
            vma.uffd.filter(|r| r.watches).ok_or(ENOENT)?;
            next = vma.end;
        }
        for (_, entry) in space.table.range_mut(at..end) {
            if let Entry::Page { protected, .. } | Entry::Zero { protected } = entry {
                *protected = true;
            }
        }
        Ok(())
    }

    /// UFFDIO_MOVE. The target must be registered on this very userfaultfd. Each side must lie within one mapping. The two mappings
    /// must have the same protection, be writable, and be both locked or both not. The pages lose their write
    /// protection; at a target that can be watched, they are.
    pub fn move_pages(&mut self, uffd: usize, to: usize, from: usize, len: usize) -> Moved {
        if let Err(e) = self.may_act(uffd, to, len) {
            return Moved::refused(e);
        }
        let space = &mut self.spaces[self.uffds[uffd].space];
        let Some(target) = space.find(to).cloned() else { return Moved::refused(ENOENT) };
        space.prepare(target.start);
        let Some(source) = space.find(from).cloned() else { return Moved::refused(ENOENT) };
        let covers = to + len <= target.end && from + len <= source.end;
        let locked = crate::vma::LOCKED;
        let alike = source.prot == target.prot && source.is(locked) == target.is(locked) && source.writable();
        if !covers || !alike || target.uffd.is_none_or(|r| r.uffd != uffd) {
            return Moved::refused(EINVAL);
        }
        let mut moved = Moved::done(len);
        let mut disturbed = self.disturbed.take();
        let told = |done, error| if done == 0 { Moved::refused(error) } else { Moved::done(done) };
        let mut until = None; // where a try ends that is forgotten, and so not told
        for done in (0..len).step_by(PAGE) {
            if until == Some(done) {
                break;
            }
            let refused = match (space.table.get(&(to + done)), space.table.get(&(from + done))) {
                (Some(_), _) => Some(EEXIST),
                (None, None) => Some(ENOENT),
                (None, Some(Entry::Zero { .. })) => None,
                (None, Some(Entry::Page { frame, exclusive, .. })) => (!exclusive || frame.pins > 0).then_some(EBUSY),
                (None, Some(Entry::Poison | Entry::Guard | Entry::Marker)) => Some(EFAULT),
            };
            let chance = disturbed.as_mut().map_or(0, |rng| rng.below(32));
            let refused = refused.or((chance == 1).then_some(EBUSY)); // isolated for a moment
            if let Some(e) = refused {
                if until.is_none() {
                    moved = told(done, e);
                }
                break;
            }
            let mut entry = space.table.remove(&(from + done)).expect("looked at");
            if let Entry::Page { protected, .. } | Entry::Zero { protected } = &mut entry {
                *protected = target.uffd.is_some_and(|r| r.watches);
            }
            space.table.insert(to + done, entry);
            if chance == 2 && until.is_none() {
                // its entry changed meanwhile, so the kernel tries again, and moves it with some of those behind it. It forgets
                // that, and the next try finds it at the target (Linux 6.18: `move_pages_ptes`).
                moved = told(done, EEXIST);
                until = disturbed.as_mut().map(|rng| done + PAGE * (1 + rng.below(4)));
            }
        }
        self.disturbed = disturbed;
        self.wake(uffd, to, moved.bytes);
        moved
    }
}

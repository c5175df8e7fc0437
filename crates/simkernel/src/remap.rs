//! mremap(2), in the order in which Linux 6.18 checks, acts and reports (`check_prep_vma`, `mremap_to`, `move_vma`, `notify_uffd`).

use crate::errno::*;
use crate::pmap::{Message, PAGE};
use crate::space::{Notice, Space};
use crate::vma::*;

/// The arguments of a call, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Remap {
    /// Address.
    pub from: usize,
    /// Bytes.
    pub len: usize,
    /// Bytes afterwards.
    pub new_len: usize,
    /// The new address (MREMAP_FIXED).
    pub to: Option<usize>,
    /// The old range stays, empty (MREMAP_DONTUNMAP).
    pub keep: bool,
}

/// The result of the act, and what is left to do after it.
#[derive(Debug)]
pub struct Remapped {
    /// The call's answer.
    pub result: Result<usize, Errno>,
    /// A locked mapping has grown: this part is brought in before any message is sent.
    pub populate: Option<(usize, usize)>,
    /// The messages to send, in this order.
    pub notices: Vec<Notice>,
}

/// The notices of one call: for the old mapping at the target, for the move, and for the end of the source.
#[derive(Default)]
struct Notices {
    early: Vec<Notice>,
    moved: Vec<Notice>,
    late: Vec<Notice>,
}

impl Space {
    /// Performs a call.
    pub fn remap(&mut self, ask: Remap) -> Remapped {
        let mut notices = Notices::default();
        let mut populate = None;
        let result = self.try_remap(ask, &mut notices, &mut populate);
        let Notices { early, moved, late } = notices;
        Remapped { result, populate: populate.filter(|_| result.is_ok()), notices: [early, moved, late].concat() }
    }

    fn try_remap(&mut self, ask: Remap, told: &mut Notices, populate: &mut Option<(usize, usize)>) -> Result<usize, Errno> {
        let pages = |len: usize| len.next_multiple_of(PAGE);
        let ask = Remap { len: pages(ask.len), new_len: pages(ask.new_len), ..ask };
        let Remap { from, len, new_len, .. } = ask;
        if !from.is_multiple_of(PAGE) || new_len == 0 {
            return Err(EINVAL);
        }
        let Some(to) = ask.to else {
            self.find(from).ok_or(EFAULT)?;
            return self.in_place(ask, &mut told.late, populate);
        };
        let overlaps = from < to + new_len && to < from + len;
        if !to.is_multiple_of(PAGE) || overlaps || ask.keep && len != new_len {
            return Err(EINVAL);
        }
        if len != new_len {
            self.find(from).ok_or(EFAULT)?;
            return self.move_one(ask, to, told, populate);
        }
        self.move_all(ask, to, told)
    }

    /// Without a new address.
    fn in_place(&mut self, ask: Remap, late: &mut Vec<Notice>, populate: &mut Option<(usize, usize)>) -> Result<usize, Errno> {
        let Remap { from, len, new_len, .. } = ask;
        let vma = self.find(from).expect("looked up").clone();
        if vma.is(SEALED) {
            return Err(EPERM);
        }
        if new_len < len {
            return self.unmap(from + new_len, len - new_len, late).map(|_| from);
        }
        if new_len == len {
            return Ok(from);
        }
        if len == 0 {
            return Err(EINVAL);
        }
        let end = from + len;
        if end > vma.end {
            return Err(EFAULT);
        }
        if end < vma.end || self.first_in(end, from + new_len).is_some() {
            return Err(ENOMEM);
        }
        // It grows as if a new mapping like it were added there and joined with it. The new one is joined with the next mapping,
        // too, if that is alike.
        self.vmas.insert(end, Vma { start: end, end: from + new_len, first_page: vma.page_number(end), anon: None, ..vma.clone() });
        self.grow_into(vma.start, end);
        *populate = vma.is(LOCKED).then_some((end, from + new_len));
        Ok(from)
    }

    /// Joins the mapping that was added at `added` with the one at `start`, and with the next one if the kernel would join them.
    fn grow_into(&mut self, start: usize, added: usize) {
        let new = self.vmas.remove(&added).expect("added");
        let mut vma = self.vmas.remove(&start).expect("it grows");
        vma.end = new.end;
        let after =
            self.vmas.get(&vma.end).filter(|a| vma.joins(a) && (vma.anon.is_none_or(|a| !a.inherited) || a.anon == vma.anon));
        if let Some(after) = after.cloned() {
            self.vmas.remove(&after.start);
            (vma.end, vma.anon) = (after.end, vma.anon.or(after.anon));
        }
        self.vmas.insert(start, vma);
    }

    /// To a new address, with the same length. Moves several mappings if none of them is registered. Stops at the first that cannot
    /// be moved.
    fn move_all(&mut self, ask: Remap, to: usize, told: &mut Notices) -> Result<usize, Errno> {
        let (start, end) = (ask.from, ask.from + ask.len);
        let mut at = start;
        while let Some(vma) = self.first_in(at, end).cloned() {
            let first = at == start;
            if first && start < vma.start {
                return Err(EFAULT);
            }
            let (from, until) = (vma.start.max(at), vma.end.min(end));
            if vma.uffd.is_some() && (!first || vma.end < end) {
                return Err(EFAULT);
            }
            let len = until - from;
            self.move_one(Remap { from, len, new_len: len, ..ask }, to + (from - start), told, &mut None)?;
            at = until;
        }
        if at == start { Err(EFAULT) } else { Ok(to) }
    }

    /// To a new address, for a part of one mapping.
    fn move_one(
        &mut self,
        ask: Remap,
        to: usize,
        told: &mut Notices,
        populate: &mut Option<(usize, usize)>,
    ) -> Result<usize, Errno> {
        let Remap { from, new_len, keep, .. } = ask;
        let mut len = ask.len;
        let vma = self.find(from).expect("looked up").clone();
        if vma.is(SEALED) {
            return Err(EPERM);
        }
        if len == 0 {
            return Err(EINVAL);
        }
        // (the part that shrinking cuts off may be anything)
        if from + len.min(new_len) > vma.end {
            return Err(EFAULT);
        }
        self.unmap(to, new_len, &mut told.early)?;
        if new_len < len {
            self.unmap(from + new_len, len - new_len, &mut told.late)?;
            len = new_len;
        }
        let vma = self.find(from).expect("nobody has unmapped it").clone();
        // a mapping without pages counts as new at the target
        let first_page = if vma.anon.is_some() { vma.page_number(from) } else { to / PAGE };
        self.vmas.insert(to, Vma { start: to, end: to + new_len, first_page, ..vma.clone() });
        self.join(to);
        let moved: Vec<usize> = self.table.range(from..from + len).map(|(at, _)| *at).collect();
        for at in moved {
            let entry = self.table.remove(&at).expect("listed");
            self.table.insert(at - from + to, entry);
        }
        if let Some(r) = vma.uffd.filter(|r| r.events) {
            told.moved.push((r.uffd, Message::Remap { from, to, len }));
        } else if vma.uffd.is_some() {
            // on a userfaultfd without events, a mapping loses its registration when it moves
            self.unregister(to, new_len).expect("mapped");
        }
        if keep {
            // (a mapping without pages may have been joined with its own copy)
            let start = self.find(from).expect("it is still there").start;
            let old = self.vmas.get_mut(&start).expect("just found");
            old.flags &= !LOCKED;
            if (old.start, old.end) == (from, from + len) {
                old.anon = None;
            }
        } else {
            self.unmap(from, len, &mut told.late)?;
        }
        *populate = (vma.is(LOCKED) && new_len > len && ask.len < new_len).then_some((to + len, to + new_len));
        Ok(to)
    }
}

//! What happens at an access to memory.

use crate::call::{SIGBUS, SIGSEGV};
use crate::pmap::{PAGE, PageBytes};
use crate::space::Space;
use crate::table::{Entry, Frame};
use std::sync::Arc;

/// The answer to an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// It may be done now.
    Allowed,
    /// This userfaultfd gets a message, and the task waits.
    Waits(usize),
    /// A signal; within a call it is EFAULT instead.
    Signal(i32),
}

impl Space {
    /// Brings in the page at an address, or says why that is not possible (Linux: `handle_mm_fault`).
    pub fn fault(&mut self, at: usize, write: bool) -> Access {
        let page = at / PAGE * PAGE;
        let Some(vma) = self.find(at).cloned() else { return Access::Signal(SIGSEGV) };
        if vma.prot == 0 || write && !vma.writable() {
            return Access::Signal(SIGSEGV);
        }
        let protects = vma.uffd.filter(|r| r.protects);
        if let Some(Entry::Page { protected, .. } | Entry::Zero { protected }) = self.table.get_mut(&page)
            && vma.uffd.is_some_and(|r| r.watches)
        {
            *protected = false;
        }
        if let Some(Entry::Page { swapped, .. }) = self.table.get_mut(&page) {
            *swapped = false;
        }
        match self.table.get_mut(&page) {
            Some(Entry::Poison) => Access::Signal(SIGBUS),
            Some(Entry::Guard) => Access::Signal(SIGSEGV),
            None | Some(Entry::Marker) => {
                if write {
                    self.prepare(page);
                }
                if let Some(r) = vma.uffd {
                    return Access::Waits(r.uffd);
                }
                let entry = if write { Frame::entry(&[0; PAGE]) } else { Entry::Zero { protected: false } };
                self.table.insert(page, entry);
                Access::Allowed
            }
            Some(Entry::Page { .. } | Entry::Zero { .. }) if !write => Access::Allowed,
            Some(Entry::Page { protected: true, .. } | Entry::Zero { protected: true }) if protects.is_some() => {
                Access::Waits(protects.expect("just asked").uffd)
            }
            Some(Entry::Zero { .. }) => {
                self.prepare(page);
                self.table.insert(page, Frame::entry(&[0; PAGE]));
                Access::Allowed
            }
            Some(Entry::Page { frame, exclusive, .. }) => {
                if !*exclusive {
                    // copied if another address space has it too; otherwise this was its last owner, who gets it
                    Arc::make_mut(frame);
                    *exclusive = true;
                }
                Access::Allowed
            }
        }
    }

    /// The content at an address.
    ///
    /// # Panics
    /// If there is none.
    pub fn bytes(&self, at: usize) -> &PageBytes {
        match &self.table[&(at / PAGE * PAGE)] {
            Entry::Page { frame, .. } => &frame.bytes,
            Entry::Zero { .. } => &[0; PAGE],
            mark => panic!("{mark:?} at {at:x}"),
        }
    }

    /// The same, to be written.
    ///
    /// # Panics
    /// If [`Space::fault`] has not just allowed it.
    pub fn bytes_mut(&mut self, at: usize) -> &mut PageBytes {
        match self.table.get_mut(&(at / PAGE * PAGE)) {
            // (a device that has pinned it sees what is written)
            Some(Entry::Page { frame, exclusive: true, .. }) => &mut Arc::get_mut(frame).expect("it is exclusive").bytes,
            other => panic!("{other:?} at {at:x}"),
        }
    }
}

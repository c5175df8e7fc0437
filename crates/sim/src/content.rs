//! How pages are stored.

use crate::kernel::Sim;
use overspill_machine::kernel::{Content, Kernel};
use overspill_simkernel::pmap::PageBytes;
use overspill_simkernel::rng::Rng;
use overspill_store::checksum;
use overspill_vm::types::{PageId, Tag};

/// Pages are stored as they are, or sealed.
#[derive(Clone, Copy)]
pub struct Checked {
    /// Pages are sealed: the stored bytes differ from the page's.
    pub sealed: bool,
    /// How long it takes to check a page that was read, in nanoseconds.
    pub check_ns: u64,
}

impl Checked {
    /// Turns sealed bytes into plain ones, and plain into sealed.
    fn scramble(&self, page: PageId, tag: Tag, bytes: &mut PageBytes) {
        if self.sealed {
            let mut pad = Rng::new(tag.unmasked(page) as u64);
            bytes.as_chunks_mut().0.iter_mut().for_each(|word| *word = (u64::from_ne_bytes(*word) ^ pad.bits()).to_ne_bytes());
        }
    }
}

impl Content for Checked {
    fn is_sealed(&self) -> bool {
        self.sealed
    }
    fn tag(&self, page: PageId, _: Option<Tag>, bytes: &PageBytes, _: &mut PageBytes) -> Tag {
        checksum::of(page, bytes)
    }
    fn open(&self, page: PageId, stored: Tag, bytes: &mut PageBytes) -> bool {
        if self.check_ns > 0 {
            Sim::sleep_ns(self.check_ns);
        }
        self.scramble(page, stored, bytes);
        checksum::of(page, bytes) == stored
    }
    fn seal(&self, page: PageId, plain: &PageBytes, sealed: &mut PageBytes) -> Tag {
        *sealed = *plain;
        let tag = checksum::of(page, plain);
        self.scramble(page, tag, sealed);
        tag
    }
}

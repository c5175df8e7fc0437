//! Write-back: pages of a compressed device go on to the next device, the coldest first.
//!
//! ```text
//!   write_back_slots      a run of slots on devices that are not memory
//!   write_back_look       each page: is it still there, and worth moving; a resident page gives its slot up instead
//!   write_back_written    each page, when its write has ended: it is stored there now, or nothing has changed
//!   write_back_end        all work on the run is done; a fork may come
//! ```
//!
//! As in a swapoff, no page is held during I/O: it is looked up again when its write has ended, by page, slot and tag. A slot that
//! was given up and taken again meanwhile holds other content, with another tag. Or it holds the same content, and then the written
//! copy is right.

use crate::page::State;
use crate::page_out::PageOut;
use crate::pager::{IoResult, Pager};
use crate::types::{PageId, Slot, Tag};
use crate::vm::Vm;

impl<P: Pager> Vm<P> {
    /// Slots for up to `want` pages. Each must go to [`Vm::write_back_written`], or back by [`Vm::free_slots`]; then
    /// [`Vm::write_back_end`].
    pub fn write_back_slots(&mut self, want: u32, near: PageId) -> Option<PageOut> {
        let run = self.pager.alloc_run_past_memory(want, near)?;
        self.writing_back += 1;
        Some(self.page_out(run))
    }

    /// The tag of `page` if it is stored in `slot`, is in no frame, and nothing is under way with it. If it is in a frame too, it
    /// gives the slot up at once.
    pub fn write_back_look(&mut self, page: PageId, slot: Slot) -> Option<Tag> {
        let (_, tag) = self.pager.stored(page).filter(|(there, _)| *there == slot)?;
        let word = self.table.get(page);
        if word.state() != State::PagedOut {
            self.release_slot(page, word);
            return None;
        }
        if word.busy() { None } else { Some(tag) }
    }

    /// `page`, which had the tag `old` in the slot `from`, has been written to `to` with the tag `new`, with this result. Returns
    /// whether it is stored there now.
    pub fn write_back_written(&mut self, page: PageId, from: (Slot, Tag), to: (Slot, Tag), result: IoResult) -> bool {
        if result == IoResult::NoSpace {
            self.counters.write_errors.add(1); // as of any write to a device that is not memory
        }
        self.copied(page, from, to, result)
    }

    /// All work on a run is done.
    pub fn write_back_end(&mut self) {
        self.writing_back -= 1;
        self.show_swap_used();
    }
}

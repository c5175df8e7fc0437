//! A page table: an entry for the address of each page. An absent page has no entry.

use crate::pmap::PageBytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A page of memory.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Its content.
    pub bytes: Box<PageBytes>,
    /// How many devices and calls have it pinned.
    pub pins: u32,
}

impl Frame {
    /// An entry for a new page with this content, which nobody shares.
    pub fn entry(bytes: &PageBytes) -> Entry {
        Entry::Page {
            frame: Arc::new(Frame { bytes: Box::new(*bytes), pins: 0 }),
            exclusive: true,
            protected: false,
            swapped: false,
        }
    }
}

/// The entry for a page's address.
#[derive(Clone, Debug)]
pub enum Entry {
    /// A page.
    Page {
        /// Its frame.
        frame: Arc<Frame>,
        /// Only this address space has the page. A fork ends that on both sides, and only a write restores it. The end of the other
        /// side does not (Linux: `PageAnonExclusive`).
        exclusive: bool,
        /// Writes are messages. Where pages can be watched: it was not touched since it was watched.
        protected: bool,
        /// The page is in the kernel's own swap. An access brings it in, without a message.
        swapped: bool,
    },
    /// The shared page of zeroes, until it is written.
    Zero {
        /// The same.
        protected: bool,
    },
    /// An error: SIGBUS, EFAULT.
    Poison,
    /// An error: SIGSEGV, EFAULT.
    Guard,
    /// Absent, and protected against writes when it comes.
    Marker,
}

/// Entries by address.
pub type Table = BTreeMap<usize, Entry>;

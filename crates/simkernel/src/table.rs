//! A page table: what is at each page's address. What is absent has no entry.

use crate::pmap::PageBytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A page of memory.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Its content.
    pub bytes: Box<PageBytes>,
    /// So many devices and calls hold on to it.
    pub pins: u32,
}

impl Frame {
    /// One with this content, which nobody shares.
    pub fn entry(bytes: &PageBytes) -> Entry {
        Entry::Page { frame: Arc::new(Frame { bytes: Box::new(*bytes), pins: 0 }), exclusive: true, protected: false }
    }
}

/// What is at a page's address.
#[derive(Clone, Debug)]
pub enum Entry {
    /// A page.
    Page {
        /// Which.
        frame: Arc<Frame>,
        /// It is this address space's alone. A fork ends that on both sides, and only a write here makes it so again: the end of
        /// the other side does not (Linux: `PageAnonExclusive`).
        exclusive: bool,
        /// Writes are messages.
        protected: bool,
    },
    /// The page of zeroes that all share, until it is written.
    Zero {
        /// Writes are messages.
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

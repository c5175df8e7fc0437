//! What the core knows of a file that is the home of an object's pages; [`crate::file_pages`] has what becomes of the pages.

use crate::types::{FrameId, PageId, PageIndex, Tag};

/// What may be done with a file's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// They are read. A change in memory is lost.
    ReadOnly,
    /// Changes go to the file.
    ReadWrite,
    /// Changes go to swap, and are gone with the region.
    CopyOnWrite,
}

/// The file that is an object's home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Home {
    /// What may be done with its pages.
    pub access: Access,
    /// Where page 0 lies in the file, in bytes.
    pub offset: u64,
    /// How many pages of the object the file has, as far as is known. Nothing beyond is read ahead.
    pub pages: PageIndex,
}

/// A home, and what is under way there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Homes {
    pub(crate) home: Home,
    pub(crate) reading: u32,
    pub(crate) writing: u32,
    /// Changed pages that were given up because the file had become too short, since somebody asked.
    pub(crate) lost: u32,
    /// How often pages' tags were forgotten: what was read before may not be what the file has.
    pub(crate) forgotten: u32,
    /// Somebody flushes it and will wait for its device.
    pub(crate) syncing: bool,
}

/// A page that is to be compared and perhaps written by a flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flush {
    /// The page.
    pub page: PageId,
    /// The frame, if its content is parked; else the page is mapped.
    pub parked: Option<FrameId>,
    /// The tag of what the file has; [`Tag::UNKNOWN`] if the page counts as changed.
    pub base: Tag,
}

/// The answer to [`crate::Vm::flush_batch`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlushScan {
    /// The index where to go on. At the end of the range all pages were looked at.
    pub next: PageIndex,
    /// The page there is being written or moved: look again in a moment.
    pub waits: bool,
}

//! The files of swap devices as the machine sees them: how they are reached, named, and grow.

use crate::errno::Errno;
use core::fmt;
use overspill_vm::types::PAGE_SHIFT;

/// How many devices there can be, inherited ones included.
pub const DEVICES_MAX: usize = 16;
/// The longest name of a device, in bytes.
pub const NAME_MAX: usize = 1023;
/// A file grows by this many bytes at a time. A power of two that makes one physical extent on most file systems.
pub const CHUNK: u64 = 64 << 20;
/// Physical extents that are told apart in one stretch of a file.
pub const PIECES_MAX: usize = 64;

/// A device's name. Any bytes, stored in place, because a device that comes later must not allocate. It is too long for a hook's
/// stack, so it is written where it stays.
pub struct DeviceName {
    bytes: [u8; NAME_MAX],
    len: usize,
}

impl DeviceName {
    /// Empty.
    pub const fn new() -> Self {
        DeviceName { bytes: [0; NAME_MAX], len: 0 }
    }
    /// Sets the name to as much of `name` as there is room for.
    pub fn set(&mut self, name: &[u8]) {
        self.len = name.len().min(NAME_MAX);
        self.bytes[..self.len].copy_from_slice(&name[..self.len]);
    }
    /// The name.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Default for DeviceName {
    fn default() -> Self {
        DeviceName::new()
    }
}

impl fmt::Debug for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes().escape_ascii())
    }
}

/// The lengths of consecutive pieces of a file, in pages.
#[derive(Clone, Copy, Debug)]
pub struct Pieces {
    lens: [u32; PIECES_MAX],
    count: usize,
}

impl Pieces {
    /// One piece of `pages` pages.
    pub fn one(pages: u32) -> Self {
        let mut lens = [0; PIECES_MAX];
        lens[0] = pages;
        Pieces { lens, count: 1 }
    }
    /// The lengths.
    pub fn lens(&self) -> &[u32] {
        &self.lens[..self.count]
    }
    /// Ends the last piece `pages` pages after the beginning of the first, and begins another there. => the pieces are longer than
    /// that
    pub fn cut_at(&mut self, pages: u32) {
        let whole: u32 = self.lens().iter().sum();
        let last = self.lens[self.count - 1];
        let before = whole - last;
        if self.count < PIECES_MAX && before < pages && pages < whole {
            self.lens[self.count - 1] = pages - before;
            self.lens[self.count] = whole - pages;
            self.count += 1;
        }
    }
}

/// The length of a device without a limit, in slots: 256 GiB.
pub const SLOTS_UNLIMITED: u32 = 1 << 26;
/// The most slots that a device can have: 1 TiB. One slot number space has room for [`DEVICES_MAX`] of those.
const SLOTS_MAX: u64 = 1 << 28;

/// A stretch by which a file can grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Which file.
    pub file: u16,
    /// Its descriptor.
    pub fd: i32,
    /// Where it begins, in bytes.
    pub offset: u64,
    /// How long it is, in bytes, whole pages.
    pub bytes: u64,
    /// Its blocks are there already, as on a block device.
    pub is_there: bool,
}

/// The files of one device, by number.
pub trait Files: Send + Sync {
    /// How many there are.
    fn count(&self) -> usize;
    /// The most they may hold together, in bytes; 0: no limit.
    fn limit(&self) -> u64;
    /// Whether slots are added as the files grow. If not, slot `n` is page `n` of the one block device.
    fn grows(&self) -> bool;
    /// The device's length in slots.
    fn slots(&self) -> u32 {
        if self.limit() == 0 { SLOTS_UNLIMITED } else { (self.limit() >> PAGE_SHIFT).clamp(1, SLOTS_MAX) as u32 }
    }
    /// The descriptor of a file.
    fn fd(&self, file: u16) -> i32;
    /// Whether holes can be punched: they are files in a file system.
    fn are_files(&self) -> bool;
    /// The `nth` of the chunks that the device could get next, of `bytes_max` bytes at most. They come in this order: those of the
    /// file whose turn it is, then those of the others; in each file the usual length first, then shorter ones.
    /// [`Files::allocate_chunk`] gets the chunk. `None` if there are no more.
    fn chunk(&self, bytes_max: u64, nth: usize) -> Option<Chunk>;
    /// Takes note that the chunk has been got.
    fn grown(&mut self, chunk: &Chunk);
    /// Gets the blocks of a chunk.
    ///
    /// # Errors
    /// As fallocate(2).
    fn allocate_chunk(chunk: &Chunk) -> Result<(), Errno> {
        if chunk.is_there { Ok(()) } else { Self::allocate(chunk.fd, chunk.offset, chunk.bytes) }
    }
    /// The pieces in which `pages` pages from byte `offset` of a file on should be used.
    fn pieces(&mut self, file: u16, offset: u64, pages: u32) -> Pieces;
    /// Gets blocks for a part of a file.
    ///
    /// # Errors
    /// As fallocate(2).
    fn allocate(fd: i32, offset: u64, bytes: u64) -> Result<(), Errno>;
    /// Gives the blocks of a part of a file back.
    ///
    /// # Errors
    /// As fallocate(2).
    fn punch(fd: i32, offset: u64, bytes: u64) -> Result<(), Errno>;
}

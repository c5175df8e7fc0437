//! A recording of page references: a ring in shared memory, which the pager fills and `overspill trace record` empties.
//!
//! ```text
//! overspill trace record        pager in the program, under the core lock
//! Recording::create   --->      Recorder::open(OVERSPILL_RECORD)
//!   drain  <------------------    push
//! ```
//!
//! The ring is memory of another process, so that its content survives any end of the program. When it is full, faults wait until
//! there is room. Only one process is recorded: a forked child stops recording at its fork.

use crate::status_file::{self, Mapping, Shared};
pub use overspill_machine::kernel::Touch;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

/// The ring's room, in references: half a second of the fastest faults.
const ENTRIES: usize = 1 << 16;

#[derive(Debug)]
#[repr(C)]
struct Ring {
    /// The pager keeps at most this many pages mapped.
    mapped_pages_max: AtomicU32,
    /// The ring is not emptied any more.
    closed: AtomicU32,
    /// References put in, and taken out, so far.
    put: AtomicU64,
    taken: AtomicU64,
    /// Page number (52 bits at most), times 8, plus twice the [`Touch`], plus 1 for a write.
    entries: [AtomicU64; ENTRIES],
}

// SAFETY: all fields are atomics.
unsafe impl Shared for Ring {}

/// The end that `overspill trace record` has.
#[derive(Debug)]
pub struct Recording {
    ring: Mapping<Ring>,
    file: OwnedFd,
}

impl Recording {
    /// Makes an empty ring, for a pager that should keep at most `mapped_pages_max` pages mapped: touches of mapped pages are not
    /// seen.
    ///
    /// # Errors
    /// What the kernel says: no memory, or no descriptor left.
    pub fn create(mapped_pages_max: u32) -> io::Result<Self> {
        let (ring, file) = Mapping::<Ring>::create("overspill-record")?;
        ring.block().mapped_pages_max.store(mapped_pages_max, Relaxed);
        Ok(Recording { ring, file })
    }

    /// The path by which this process's children can open it.
    pub fn path(&self) -> PathBuf {
        status_file::path_of(&self.file)
    }

    /// Takes all references out: calls `each` with the page number, whether it was a write, and the number of the [`Touch`].
    /// Returns how many there were.
    ///
    /// # Errors
    /// The first error of `each`; the rest stays in the ring.
    pub fn drain<E>(&self, mut each: impl FnMut(u64, bool, u8) -> Result<(), E>) -> Result<u64, E> {
        let ring = self.ring.block();
        // Acquire: the entries before it are seen.
        let (put, mut at) = (ring.put.load(Acquire), ring.taken.load(Relaxed));
        let count = put - at;
        while at < put {
            let entry = ring.entries[at as usize % ENTRIES].load(Relaxed);
            at += 1;
            // Release: the entry has been read before it can be overwritten.
            ring.taken.store(at, Release);
            each(entry >> 3, entry & 1 == 1, (entry >> 1 & 3) as u8)?;
        }
        Ok(count)
    }

    /// Makes the pager stop recording, because the ring will not be emptied any more.
    pub fn close(&self) {
        self.ring.block().closed.store(1, Relaxed);
    }
}

/// The end that the pager has.
#[derive(Debug)]
pub struct Recorder {
    ring: Mapping<Ring>,
    stopped: AtomicBool,
}

impl Recorder {
    /// Opens the ring at `path`, as in `OVERSPILL_RECORD`. No descriptor is kept.
    ///
    /// # Errors
    /// The path cannot be opened, or what stands there is not a ring.
    pub fn open(path: &Path) -> io::Result<Self> {
        let (ring, _) = Mapping::open(path)?;
        Ok(Recorder { ring, stopped: AtomicBool::new(false) })
    }

    /// The pager should keep at most this many pages mapped.
    pub fn mapped_pages_max(&self) -> u32 {
        self.ring.block().mapped_pages_max.load(Relaxed)
    }

    fn is_on(&self) -> bool {
        !self.stopped.load(Relaxed) && self.ring.block().closed.load(Relaxed) == 0
    }

    /// Whether a reference must wait for room.
    pub fn is_full(&self) -> bool {
        let ring = self.ring.block();
        self.is_on() && ring.put.load(Relaxed) - ring.taken.load(Acquire) >= ENTRIES as u64
    }

    /// Records a reference. One thread at a time. => not [`Recorder::is_full`]
    pub fn push(&self, page: u64, write: bool, touch: Touch) {
        if self.is_on() {
            let ring = self.ring.block();
            let at = ring.put.load(Relaxed);
            ring.entries[at as usize % ENTRIES].store(page << 3 | (touch as u64) << 1 | u64::from(write), Relaxed);
            ring.put.store(at + 1, Release);
        }
    }

    /// Stops recording, in a forked child.
    pub fn stop(&self) {
        self.stopped.store(true, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All references come out, once and in order, over many turns of the ring. A full ring says so; a closed one is never full.
    #[test]
    fn nothing_is_lost() {
        let recording = Recording::create(77).unwrap();
        let recorder = Recorder::open(&recording.path()).unwrap();
        assert_eq!(recorder.mapped_pages_max(), 77);
        let count = 5 * ENTRIES as u64 + 3;
        let of = |n: u64| (n * 7919, n.is_multiple_of(3), [Touch::First, Touch::Soft, Touch::Hard][n as usize % 3]);
        let mut out = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..count {
                    while recorder.is_full() {
                        std::thread::yield_now();
                    }
                    let (page, write, touch) = of(n);
                    recorder.push(page, write, touch);
                }
            });
            while out < count {
                let check = |page, write, touch: u8| {
                    let expected = of(out);
                    assert_eq!((page, write, touch), (expected.0, expected.1, expected.2 as u8));
                    out += 1;
                    Ok::<(), ()>(())
                };
                recording.drain(check).unwrap();
            }
        });
        (0..ENTRIES).for_each(|_| recorder.push(1, false, Touch::Soft));
        assert!(recorder.is_full());
        recording.close();
        assert!(!recorder.is_full());
    }

    #[test]
    fn what_is_no_ring_is_refused() {
        let status = crate::status_file::StatusFile::create().unwrap();
        let why = Recorder::open(&status.path()).unwrap_err().to_string();
        assert!(why.contains("shorter"), "{why}");
        assert!(Recorder::open(Path::new("/proc/self/exe")).is_err());
    }
}

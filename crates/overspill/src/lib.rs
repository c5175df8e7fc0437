//! Memory regions that may be larger than their memory budget. Pages that do not fit lie in a swap file.
//!
//! ```
//! use overspill::Pager;
//!
//! # fn main() -> Result<(), overspill::Error> {
//! let pager = Pager::builder().memory(16 << 20).swap(std::env::temp_dir()).build()?;
//! let mut table = pager.region_of::<u64>(6 << 20)?; // 48 MiB, of which at most 16 are in memory
//! for (i, cell) in table.iter_mut().enumerate() {
//!     *cell = i as u64 * 3;
//! }
//! assert_eq!(table[5_000_000], 15_000_000);
//! assert!(pager.counters().memory_peak_bytes.get() <= 17 << 20);
//! # Ok(())
//! # }
//! ```
//!
//! A [`Pager`] has a budget, a swap file and a replacement policy. It pages [`Region`]s, which are plain memory (`Deref<Target =
//! [u8]>`).
//!
//! # How faults are delivered
//!
//! ```text
//!                   InThread (default)                           Threads
//!   privileges      none                                         root, CAP_SYS_PTRACE, sysctl or /dev/userfaultfd
//!   a fault costs   a signal in the thread that touches          a message to a handler thread, 2 to 10 times as long
//!   system calls    EFAULT on pages that are out                 work on every page
//! ```
//!
//! With [`Delivery::InThread`] the first pager installs a handler for SIGBUS, for good. It passes other SIGBUS signals on to the
//! handler that was there before. So install your own SIGBUS handler *before* the first pager. Do not block SIGBUS in threads that
//! use regions, and leave such threads 24 KiB of stack for the handler. (In a Rust program the handler before is Rust's own. When
//! it gets a SIGBUS that is not its business, such as one that was sent, it restores the default action. Then the next fault would
//! end the program.)
//!
//! # System calls on region memory
//!
//! With in-thread delivery the kernel cannot wait for a page, so `read(2)` into a region fails with EFAULT where pages are out.
//! Bring the pages in and keep them there: [`Region::read_at`] and [`Region::write_at`] do so for files, [`Region::wire`] and
//! [`Region::wire_mut`] for everything else:
//!
//! ```
//! use std::io::Read;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let pager = overspill::Pager::builder().memory(8 << 20).build()?;
//! # let mut input = std::fs::File::open("/dev/zero")?;
//! let mut region = pager.region(32 << 20)?;
//! let mut buffer = region.wire_mut(4096..3 * 4096)?; // in memory until `buffer` is dropped
//! input.read_exact(&mut buffer)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Collections
//!
//! An [`Arena`] allocates blocks of any size in a region. It is an allocator for collections that take one
//! ([`allocator_api2::alloc::Allocator`]), such as those of hashbrown.
//!
//! # What goes wrong, and how it shows
//!
//! - If a page cannot be read back, or comes back with another content, the access raises SIGBUS (`si_code` BUS_MCEERR_AR; with
//!   handler threads BUS_ADRERR, if the kernel was built without MEMORY_FAILURE). Wiring and file transfers fail with
//!   [`Error::Lost`] or EIO instead. The program never sees a wrong page.
//! - When memory and swap are both full for three seconds, the process is stopped with a message, because no page can be brought
//!   in.
//! - A forked child has neither the content of the regions (an access is a SIGSEGV) nor the pagers. Calls return [`Error::Forked`],
//!   or panic if they cannot return an error. The child may drop pagers and regions, and build a pager of its own.
//!
//! # Why safe code stays sound
//!
//! To the compiler a region is memory like any other. What happens behind its back must not show:
//!
//! - **Content.** Nobody writes to a page while a reference to it exists. A page leaves by UFFDIO_MOVE, in one step for all
//!   threads. It comes back after a comparison with its tag, or not at all: then the touch is a SIGBUS. What makes pages zero
//!   ([`Region::discard`]) takes `&mut`.
//! - **Addresses.** A region's range is unmapped in its drop, when nothing borrows it, and by nobody else. In a forked child it
//!   stays reserved and inaccessible, so that slices from before the fork point to nothing else.
//! - **Types.** Regions are slices of [`Pod`] types only, and those are unsafe to declare. Atomics need `&mut`.
//! - **Arguments.** A range or a file is asked once, and what it says is checked before it is used.
//! - **Leaks.** A guard that is forgotten leaves pages wired, a region or pager that is forgotten stays. Nothing depends on a drop.
//! - **Panics.** The caller's own unwind through guards and regions as usual; no closure of the caller's runs under a lock. A
//!   failed assertion of ours in a pager's thread, in the SIGBUS handler or under a pager's lock ends the process, because nobody
//!   knows whether the tables are true. One in an [`Arena`]'s tables makes all later calls on it panic.
//! - **Signals.** All signals are blocked under a pager's lock, and in the SIGBUS handler. So a signal handler may touch regions.
//! - **System calls.** One that meets a missing page fails with EFAULT; nothing is written past it. Locks of std's that lie in an
//!   arena go on working, because they look at their word again after every futex call.
//! - **Threads.** A pager's threads know its state by a count. The last handle waits for them, and for SIGBUS handlers at work.
//!
//! Not covered, as everywhere in Rust: files that stand for memory (`/proc/self/mem`), debuggers, children that are forked by raw
//! system calls, handlers for SIGBUS that replace the pager's without calling it, and madvise(2) or munmap(2) by the program on a
//! region. `tests/sound.rs` and `tests/children.rs` try what is said here; Miri runs the tests of the arena's tables.
//!
//! How fast all this is depends on your device: `examples/hash_table.rs` measures it.

mod arena;
mod builder;
mod devices;
mod error;
mod fault;
mod file;
mod file_region;
mod forks;
mod heap;
mod installed;
mod pager;
mod quiet;
mod reads;
mod region;
mod shared;
mod turns;
mod write_back;

pub use arena::Arena;
pub use builder::Builder;
pub use error::Error;
pub use fault::{with_handler_below, with_handler_below_after};
pub use file_region::{FileOptions, FileRegion, Held};
pub use forks::explain_forks;
pub use overspill_linux::control::{Device as SwapDevice, Figures as SwapFigures, Progress as SwapoffProgress};
pub use overspill_linux::device_spec::{self, DeviceSpec};
pub use overspill_linux::io::Engine;
pub use overspill_linux::machine::Delivery;
pub use overspill_linux::size;
pub use overspill_vm::MEMORY_BYTES_MIN;
pub use overspill_vm::counters::{Counter, Counters, Info as CounterInfo};
pub use overspill_vm::{Access, PolicyCounts};
#[doc(hidden)]
pub use overspill_vm::{Decision, types as vm_types};
pub use pager::{Pager, PolicyUse};
pub use region::{Advice, Pod, Region, RegionOf, Wired, WiredMut};

/// The most regions of a pager that have a policy of their own.
pub const REGION_POLICIES_MAX: usize = overspill_vm::POLICIES_MAX - 1;

/// Bytes in a page, the unit in which memory is moved, wired and advised.
pub const PAGE_SIZE: usize = overspill_vm::types::PAGE_SIZE;

/// The names that [`Builder::policy`] takes.
pub const POLICIES: &[&str] = overspill_vm::policy::NAMES;

/// What each counter counts, in the order of [`Counters`].
pub const COUNTERS: &[CounterInfo] = overspill_vm::counters::TABLE;

/// The most pagers in a process.
const PAGERS_MAX: usize = 64;

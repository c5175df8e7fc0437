//! The machine under simulation: the same code that runs on Linux, on a model of Linux.
//!
//! ```text
//!   Scenario, seed --> run --> Report or Failure
//!
//!   run.rs       the whole run
//!   forks.rs     children, each with a machine of its own
//!   file_program.rs   regions of files: threads that use them, write-back, and others who have the files too
//!   program.rs   a program's threads: they map, touch, protect, discard, move and unmap memory, and know the content of each of
//!                their pages
//!   swapoff.rs   devices come and go              process.rs   the parts of each process's machine, and its handler
//!   in_thread.rs   threads that serve their own faults, and their reader thread
//!   ------------------------------------------------------------------------------------------------------------------------
//!   overspill_machine, _vm, _swap, _store: handler, page daemon, readers, swapoff, forks, locks       as on Linux
//!   ------------------------------------------------------------------------------------------------------------------------
//!   kernel.rs    the kernel below (trait Kernel, by overspill-simkernel)
//!   uffd.rs      userfaultfds                     io.rs        transfers, which take time and fail
//!   home.rs      files that are homes of objects
//!   files.rs     swap files                       content.rs   how pages are stored                     word.rs   futexes
//!   world.rs     the state of a run
//!   trouble.rs   the fault model                  disk.rs      the file system
//! ```
//!
//! Each file uses those below it, and none above.
//!
//! A seed chooses the actor that goes on at each lock and each call, the actions of programs, and the failures. Time is virtual, so
//! some seconds take milliseconds. A failing run fails again with the same seed.
//!
//! **What must hold**, beyond what core, pager and locks assert themselves:
//!
//! | | |
//! | --- | --- |
//! | contents | each read finds what was last written there, or zeroes after a discard; an error only if a device harmed the page |
//! | flushes | after one that succeeds, the device has what was written to its range; after one that fails, the next one writes it |
//! | crashes | each half of a page in a file is what it was at the last flush, or has been since; a file is no shorter than at that flush |
//! | files | only read-write regions write to them; what others write is never seen older than before; what lies within the end stays |
//! | mremap | it has the same effect as in a second address space without a pager, where a thread makes the same calls |
//! | losses | no more pages are lost than devices have harmed |
//! | budget | resident pages are charged; faults go above the budget only if nothing can be evicted |
//! | wired pages | never leave memory |
//! | progress | some program makes progress every ten seconds, no wake is lost, each swapoff ends, and fails only for a reason |
//! | the end | no frame, parking place, slot or charge is left; nothing waits for children that have ended |
//! | being stopped | only if memory is full, and the scenario leaves no room |
//!
//! Deliberate mistakes ([`Mistake`]) show that violations are noticed: `tests/machine.rs`.
//!
//! **What devices do** ([`Trouble`]). Transfers end in any order. A device reads the memory at the beginning of a write, or in the
//! end. Reads and writes fail, are short, find no space, are late. Content comes back changed. A device dies. fdatasync
//! fails, and the device has some of what was written ([`FileTrouble`]). The process ends, or the machine stops, in the middle of
//! everything, and another process goes on with the files. Not modelled: a device that never answers.
//!
//! [`replay`] is the other use: a recorded reference string and one thread, on a kernel whose pages are words and where nothing
//! fails (`replay/flat.rs`). The Linux machine in stepped mode must make the same decisions.
//!
//! Models: TigerBeetle's VOPR (faults, and checks that are proved to find something), NetBSD's pdsim (the kernel's own policy code
//! in a simulator); read, not copied.

mod content;
mod disk;
mod file_program;
mod files;
mod forks;
mod home;
mod in_thread;
mod io;
mod kernel;
mod process;
mod program;
mod replay;
mod run;
mod swapoff;
mod trouble;
mod uffd;
mod word;
mod world;

pub use file_program::FileHabits;
pub use home::FileTrouble;
pub use overspill_machine::kernel::Mistake;
pub use overspill_simkernel::sched::{Failure, Report};
pub use program::Habits;
pub use replay::{ReplayConfig, ReplayCounts, replay, replay_counts};
pub use run::{Scenario, USUAL, run};
pub use swapoff::Habits as Swaps;
pub use trouble::Trouble;

//! The options that a machine is set up with.

/// How a thread that touches a missing page gets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Delivery {
    /// Handler threads read messages; every system call works on every page; needs the full userfaultfd.
    Threads,
    /// The faulting thread serves itself in a SIGBUS handler; system calls on absent pages return EFAULT; needs no privileges.
    #[default]
    InThread,
}

/// Options that do not change while the machine runs.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// How faults are delivered.
    pub delivery: Delivery,
    /// Whether pointers in pages that are read in order are followed: see [`crate::pointers`].
    pub follows_pointers: bool,
    /// Whether memory in no range may be a program's that has grown by a call that was not followed, so that a touch of it is to be
    /// served. Not so with regions: what is there may be another pager's.
    pub finds_grown: bool,
    /// Whether threads whose working sets do not fit together take turns.
    pub load_control: bool,
    /// Writes that may be in flight, and pages of each.
    pub writes: (usize, usize),
}

//! A userfaultfd: who waits on it for a page, and who for a message to be read.
//!
//! Faults are read before notices, each kind in the order in which it came. A fault that has been read stays until somebody wakes
//! its address; one that has not can be woken, too, and then is never read: that poll(2) said "readable" proves nothing.

use crate::pmap::Message;
use std::collections::VecDeque;

/// A task that waits for a page.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Which task.
    pub task: usize,
    /// What is told of it.
    pub message: Message,
}

/// A userfaultfd.
#[derive(Clone, Default, Debug)]
pub struct Uffd {
    /// The address space it acts on: that of who made it, whoever has a descriptor of it by now.
    pub space: usize,
    /// It reports moves, discards and unmaps.
    pub events: bool,
    /// So many calls have begun that change mappings, and have not gone on since their message was read (Linux: `mmap_changing`).
    pub changing: u32,
    /// Faults that nobody has read.
    pub pending: VecDeque<Fault>,
    /// Faults that were read.
    pub told: Vec<Fault>,
    /// Messages that their senders wait for.
    pub notices: VecDeque<(usize, Message)>,
}

impl Uffd {
    /// Whether poll(2) says that there is something to read.
    pub fn readable(&self) -> bool {
        !self.pending.is_empty() || !self.notices.is_empty()
    }

    /// The tasks that wait for a page of a range, which wait no more.
    pub fn woken(&mut self, at: usize, len: usize) -> Vec<usize> {
        let hit = |f: &Fault| matches!(f.message, Message::Fault { at: page, .. } if at <= page && page < at + len);
        let mut tasks: Vec<usize> = self.pending.iter().chain(&self.told).filter(|f| hit(f)).map(|f| f.task).collect();
        tasks.sort_unstable();
        self.pending.retain(|f| !hit(f));
        self.told.retain(|f| !hit(f));
        tasks
    }

    /// The task waits for nothing here any more: it was killed.
    pub fn forget(&mut self, task: usize) {
        self.pending.retain(|f| f.task != task);
        self.told.retain(|f| f.task != task);
        self.notices.retain(|(sender, _)| *sender != task);
    }
}

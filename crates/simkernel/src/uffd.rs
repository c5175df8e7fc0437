//! A userfaultfd: the tasks that wait for pages, and the tasks that wait for their messages to be read.
//!
//! Faults are read before notices, each kind in the order in which it came. A fault that has been read stays until its address is
//! woken. A fault that has not been read can be woken, too, and then is never read. So a "readable" from poll(2) proves nothing.

use crate::pmap::Message;
use std::collections::VecDeque;

/// A task that waits for a page.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The task.
    pub task: usize,
    /// Its message.
    pub message: Message,
}

/// A userfaultfd.
#[derive(Clone, Default, Debug)]
pub struct Uffd {
    /// The address space that it acts on: that of the process that made it, whoever has its descriptor by now.
    pub space: usize,
    /// It reports moves, discards and unmaps.
    pub events: bool,
    /// A touch of a missing page is a signal, and no message (UFFD_FEATURE_SIGBUS).
    pub signals: bool,
    /// Calls that have begun to change mappings, and have not gone on after their message was read (Linux: `mmap_changing`).
    pub changing: u32,
    /// Faults that nobody has read.
    pub pending: VecDeque<Fault>,
    /// Faults that have been read.
    pub told: Vec<Fault>,
    /// Messages that their senders wait for.
    pub notices: VecDeque<(usize, Message)>,
}

impl Uffd {
    /// Whether poll(2) says that there is something to read.
    pub fn readable(&self) -> bool {
        !self.pending.is_empty() || !self.notices.is_empty()
    }

    /// Removes the faults in a range. Returns the tasks that waited for its pages.
    pub fn woken(&mut self, at: usize, len: usize) -> Vec<usize> {
        let hit = |f: &Fault| matches!(f.message, Message::Fault { at: page, .. } if at <= page && page < at + len);
        let mut tasks: Vec<usize> = self.pending.iter().chain(&self.told).filter(|f| hit(f)).map(|f| f.task).collect();
        tasks.sort_unstable();
        self.pending.retain(|f| !hit(f));
        self.told.retain(|f| !hit(f));
        tasks
    }

    /// Forgets a task that was killed.
    pub fn forget(&mut self, task: usize) {
        self.pending.retain(|f| f.task != task);
        self.told.retain(|f| f.task != task);
        self.notices.retain(|(sender, _)| *sender != task);
    }
}

//! The last events of a run, kept in a ring and printed when it fails.

use std::collections::VecDeque;
use std::fmt::Write as _;

/// How many events are kept. Enough to see a page's last life, short enough to be read.
const EVENTS_MAX: usize = 400;

/// The ring.
#[derive(Debug, Default)]
pub struct Log(VecDeque<(u64, u32, Event)>);

/// What happened; numbers, so that nothing is formatted in a run that succeeds.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// A short verb.
    pub what: &'static str,
    /// Page (or first page), as the simulation numbers them.
    pub at: u64,
    /// A second number: a count, a frame, a slot, a content.
    pub with: u64,
}

impl Log {
    /// Remembers an event of process `process` at step `step`.
    pub fn add(&mut self, step: u64, process: u32, what: &'static str, at: u64, with: u64) {
        if self.0.len() == EVENTS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((step, process, Event { what, at, with }));
    }
    /// The events as text, oldest first, one per line.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for (step, process, e) in &self.0 {
            let _ = writeln!(out, "  {step:>8}  process {process}  {:<16} {:>6}  {:#x}", e.what, e.at, e.with);
        }
        out
    }
}

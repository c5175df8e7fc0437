//! First in, first out: the oldest page goes, used or not.
//!
//! The yardstick: no page is ever spared (Belady 1966, "A study of replacement algorithms for a virtual-storage computer"). Bad at
//! whatever has a working set, and the only policy here that can get worse with more memory (Belady's anomaly); good where nothing
//! is used twice, because it costs nothing. A touch on trial is served but changes nothing: the page keeps its place at the old end.

use super::{Admit, Policy};
use crate::page_queue::{Links, Queue};
use crate::types::{FrameId, PageId};

/// See the module.
#[derive(Clone, Debug)]
pub struct Fifo {
    links: Links,
    queue: Queue,
}

impl Fifo {
    /// For `frames` frames: 8 bytes each.
    pub fn new(frames: usize) -> Self {
        Fifo { links: Links::new(frames), queue: Queue::new() }
    }
}

impl Policy for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }
    fn admit(&mut self, frame: FrameId, _: PageId, _: Admit) {
        self.queue.push_back(&mut self.links, frame);
    }
    fn referenced(&mut self, frame: FrameId, _: PageId) {
        self.queue.push_front(&mut self.links, frame);
    }
    fn victims(&mut self, out: &mut [FrameId]) -> usize {
        let mut n = 0;
        while n < out.len() {
            let Some(frame) = self.queue.pop_front(&mut self.links) else { break };
            out[n] = frame;
            n += 1;
        }
        n
    }
    fn refused(&mut self, frame: FrameId, _: PageId) {
        self.queue.push_back(&mut self.links, frame);
    }
    fn remove(&mut self, frame: FrameId) {
        self.queue.remove(&mut self.links, frame);
    }
    fn evicted(&mut self, _: FrameId, _: PageId) {}
    fn trial_permille(&self) -> u32 {
        0
    }
    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

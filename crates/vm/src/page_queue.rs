//! Queues of frames: doubly linked lists over arrays, so that membership costs no allocation.
//!
//! A frame is on at most one list of a [`Links`] set at a time. The core has one set (trial queue, clean queue), a policy another.
//! Links are stored as `frame + 1`, zero meaning none, so that a fresh zeroed array is a set of frames on no list.

use crate::types::FrameId;

/// The links of all frames: `[previous, next]`, each as frame + 1.
#[derive(Clone, Debug)]
pub struct Links(Vec<[u32; 2]>);

impl Links {
    /// Links for `frames` frames, all on no list.
    pub fn new(frames: usize) -> Self {
        Links(vec![[0; 2]; frames])
    }
}

/// One list. Head is the oldest, tail the newest.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    head: u32,
    tail: u32,
    len: u32,
}

impl Queue {
    /// An empty list.
    pub const fn new() -> Self {
        Queue { head: 0, tail: 0, len: 0 }
    }
    /// How many frames are on it.
    pub const fn len(&self) -> u32 {
        self.len
    }
    /// Whether none is.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// The oldest.
    pub fn front(&self) -> Option<FrameId> {
        self.head.checked_sub(1).map(FrameId)
    }
    /// The one after `frame`, towards the newest.
    pub fn next(&self, links: &Links, frame: FrameId) -> Option<FrameId> {
        links.0[frame.at()][1].checked_sub(1).map(FrameId)
    }
    /// Adds the newest. => on no list of this set
    pub fn push_back(&mut self, links: &mut Links, frame: FrameId) {
        links.0[frame.at()] = [self.tail, 0];
        match self.tail.checked_sub(1) {
            Some(t) => links.0[t as usize][1] = frame.0 + 1,
            None => self.head = frame.0 + 1,
        }
        self.tail = frame.0 + 1;
        self.len += 1;
    }
    /// Adds the oldest. => on no list of this set
    pub fn push_front(&mut self, links: &mut Links, frame: FrameId) {
        links.0[frame.at()] = [0, self.head];
        match self.head.checked_sub(1) {
            Some(h) => links.0[h as usize][0] = frame.0 + 1,
            None => self.tail = frame.0 + 1,
        }
        self.head = frame.0 + 1;
        self.len += 1;
    }
    /// Takes `frame` out. => on this list
    pub fn remove(&mut self, links: &mut Links, frame: FrameId) {
        let [prev, next] = core::mem::take(&mut links.0[frame.at()]);
        match prev.checked_sub(1) {
            Some(p) => links.0[p as usize][1] = next,
            None => {
                assert_eq!(self.head, frame.0 + 1, "frame on another list");
                self.head = next;
            }
        }
        match next.checked_sub(1) {
            Some(n) => links.0[n as usize][0] = prev,
            None => {
                assert_eq!(self.tail, frame.0 + 1, "frame on another list");
                self.tail = prev;
            }
        }
        self.len -= 1;
    }
    /// Takes the oldest out.
    pub fn pop_front(&mut self, links: &mut Links) -> Option<FrameId> {
        let frame = self.front()?;
        self.remove(links, frame);
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn as_a_deque(ops in proptest::collection::vec((0u8..4, 0u32..16), 0..200)) {
            let mut links = Links::new(16);
            let mut q = Queue::new();
            let mut model: VecDeque<u32> = VecDeque::new();
            for (op, f) in ops {
                let on = model.contains(&f);
                match op {
                    0 if !on => { q.push_back(&mut links, FrameId(f)); model.push_back(f); }
                    1 if !on => { q.push_front(&mut links, FrameId(f)); model.push_front(f); }
                    2 if on => { q.remove(&mut links, FrameId(f)); model.retain(|x| *x != f); }
                    3 => prop_assert_eq!(q.pop_front(&mut links).map(|x| x.0), model.pop_front()),
                    _ => {}
                }
                prop_assert_eq!(q.len() as usize, model.len());
                let mut walk = vec![];
                let mut at = q.front();
                while let Some(x) = at { walk.push(x.0); at = q.next(&links, x); }
                prop_assert_eq!(walk, model.iter().copied().collect::<Vec<_>>());
            }
        }
    }
}

//! A lab on the simulated kernel.

use crate::call::{Call, Progress, READ_WRITE};
use crate::errno::Errno;
use crate::fault::Access;
use crate::kernel::Kernel;
use crate::lab::{Lab, PARKING, PLACES, THREADS};
use crate::pmap::*;
use crate::rng::Rng;
use crate::table::Entry;
use crate::vma::Registration;
use std::sync::Arc;

/// The program's userfaultfd.
const PROGRAM: usize = 0;
/// The parking area's userfaultfd.
const PARK: usize = 1;
/// The program's memory.
const SPACE: usize = 0;

/// A program and its pager on the simulated kernel.
#[derive(Debug)]
pub struct ModelLab {
    /// The kernel.
    pub kernel: Kernel,
    held: bool,
}

impl Default for ModelLab {
    fn default() -> Self {
        Self::new()
    }
}

impl ModelLab {
    /// A fresh lab.
    pub fn new() -> Self {
        let mut kernel = Kernel::default();
        let space = kernel.new_space();
        for _ in 0..THREADS {
            kernel.new_task(space);
        }
        assert_eq!([kernel.new_uffd(space, true), kernel.new_uffd(space, false)], [PROGRAM, PARK]);
        let memory = &mut kernel.spaces[space];
        memory.map(PARKING, PLACES * PAGE, READ_WRITE, false, &mut Vec::new()).expect("nothing is there");
        let with = Registration { uffd: PARK, events: false, protects: false, watches: false };
        memory.register(PARKING, PLACES * PAGE, with).expect("it is mapped");
        ModelLab { kernel, held: false }
    }
}

fn place(place: ParkPlace) -> usize {
    PARKING + place.0 * PAGE
}

impl Lab for ModelLab {
    fn start(&mut self, thread: usize, call: Call) {
        self.kernel.start(thread, call);
        self.kernel.run(thread);
    }
    fn settle(&mut self) {
        while !self.held {
            let Some(task) = self.kernel.runnable().next() else { break };
            self.kernel.run(task);
        }
    }
    fn progress(&mut self, thread: usize) -> Progress {
        self.settle();
        self.kernel.progress(thread)
    }
    fn kill(&mut self, thread: usize) {
        self.kernel.kill(thread);
    }
    fn hold(&mut self, on: bool) {
        self.held = on;
        self.settle();
    }
    fn pin(&mut self, at: Option<usize>) {
        let memory = &mut self.kernel.spaces[SPACE];
        let Some(at) = at else {
            for entry in memory.table.values_mut() {
                if let Entry::Page { frame, .. } = entry
                    && frame.pins > 0
                {
                    Arc::get_mut(frame).expect("a pinned page is not shared").pins = 0;
                }
            }
            return;
        };
        assert_eq!(memory.fault(at, true), Access::Allowed);
        if let Some(Entry::Page { frame, .. }) = memory.table.get_mut(&at) {
            Arc::get_mut(frame).expect("it is exclusive").pins += 1;
        }
    }
    fn disturb(&mut self, on: bool) {
        self.kernel.disturbed = on.then(|| Rng::new(1));
    }
    fn peek(&mut self, at: usize) -> u8 {
        self.kernel.spaces[SPACE].bytes(at)[0]
    }
}

impl Pmap for ModelLab {
    fn copy_in(&mut self, at: usize, from: &[PageBytes]) -> Moved {
        self.kernel.copy(PROGRAM, at, from)
    }
    fn zero_in(&mut self, at: usize, pages: usize) -> Moved {
        self.kernel.zero(PROGRAM, at, pages * PAGE)
    }
    fn restore(&mut self, at: usize, from: ParkPlace, pages: usize) -> Moved {
        let from: Vec<PageBytes> = (0..pages).map(|i| self.parked(ParkPlace(from.0 + i))).collect();
        self.kernel.copy(PROGRAM, at, &from)
    }
    fn take(&mut self, at: usize, to: ParkPlace, pages: usize) -> Moved {
        self.kernel.move_pages(PARK, place(to), at, pages * PAGE)
    }
    fn give_back(&mut self, at: usize, from: ParkPlace, pages: usize) -> Moved {
        self.kernel.move_pages(PROGRAM, at, place(from), pages * PAGE)
    }
    fn park_copy(&mut self, to: ParkPlace, from: &PageBytes) -> Moved {
        self.kernel.copy(PARK, place(to), &[*from])
    }
    fn parked(&mut self, at: ParkPlace) -> PageBytes {
        *self.kernel.spaces[SPACE].bytes(place(at))
    }
    fn drop_parked(&mut self, places: &[ParkPlace]) {
        let memory = &mut self.kernel.spaces[SPACE];
        places.iter().for_each(|at| drop(memory.table.remove(&place(*at))));
    }
    fn resident(&mut self, at: usize) -> bool {
        matches!(self.kernel.spaces[SPACE].table.get(&at), Some(Entry::Page { swapped: false, .. } | Entry::Zero { .. }))
    }
    fn changing(&mut self) -> bool {
        self.settle();
        self.kernel.uffds[PROGRAM].changing > 0
    }
    fn unshare(&mut self, at: usize) -> bool {
        let memory = &mut self.kernel.spaces[SPACE];
        memory.fault(at, true) == Access::Allowed
    }
    fn register(&mut self, at: usize, len: usize, protects: bool) -> Result<(), Errno> {
        self.kernel.spaces[SPACE].register(at, len, Registration { uffd: PROGRAM, events: true, protects, watches: false })
    }
    fn unregister(&mut self, at: usize, len: usize) -> Result<(), Errno> {
        let registered = self.kernel.spaces[SPACE].unregister(at, len)?;
        registered.iter().for_each(|(start, end)| self.kernel.wake(PROGRAM, *start, end - start));
        Ok(())
    }
    fn poison(&mut self, at: usize, len: usize) -> Result<(), Errno> {
        let moved = self.kernel.poison(PROGRAM, at, len);
        if moved.bytes == len { Ok(()) } else { Err(moved.error.unwrap_or(crate::errno::EAGAIN)) }
    }
    fn protect(&mut self, at: usize, len: usize, on: bool) -> Result<(), Errno> {
        self.kernel.write_protect(PROGRAM, at, len, on)
    }
    fn wake(&mut self, at: usize, len: usize) {
        self.kernel.wake(PROGRAM, at, len);
    }
    fn messages(&mut self, most: usize) -> Vec<Message> {
        (0..most).map_while(|_| self.kernel.read_message(PROGRAM)).collect()
    }
    fn readable(&mut self) -> bool {
        self.settle();
        self.kernel.uffds[PROGRAM].readable()
    }
    fn present(&mut self, at: usize) -> Present {
        match self.kernel.spaces[SPACE].table.get(&at) {
            None => Present::Absent,
            Some(Entry::Page { protected, .. } | Entry::Zero { protected }) => Present::Page { protected: *protected },
            Some(Entry::Poison) => Present::Poison,
            Some(Entry::Guard) => Present::Guard,
            Some(Entry::Marker) => Present::Marker,
        }
    }
    fn mappings(&mut self, start: usize, end: usize) -> Vec<Mapping> {
        let within = self.kernel.spaces[SPACE].vmas.values().filter(|vma| vma.start < end && start < vma.end);
        within.map(|vma| Mapping { start: vma.start.max(start), end: vma.end.min(end), prot: vma.prot }).collect()
    }
}

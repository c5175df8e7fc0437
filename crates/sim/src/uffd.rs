//! userfaultfds of the simulated kernel.
//!
//! The parking area is real memory. Parked pages are in the simulated kernel's page table as well, and each transfer keeps the two
//! alike.

use crate::world::{OWN, here, tell, world};
use overspill_machine::errno::{self, Errno};
use overspill_machine::kernel::{self, Event, Marks, Moved};
use overspill_simkernel::call;
use overspill_simkernel::kernel::Kernel as Simulated;
use overspill_simkernel::pmap::{Message, PAGE, PageBytes};
use overspill_simkernel::table::Entry;
use overspill_simkernel::uffd::Uffd;
use overspill_simkernel::vma::Registration;
use std::cell::Cell;

/// A message that was read.
#[derive(Clone, Copy, Debug)]
pub struct SimMessage(Event);

impl Default for SimMessage {
    fn default() -> Self {
        SimMessage(Event::Other)
    }
}

impl From<SimMessage> for Event {
    fn from(message: SimMessage) -> Event {
        message.0
    }
}

/// A userfaultfd, by its number.
pub struct SimUffd {
    number: usize,
    protects: Cell<bool>,
}

// SAFETY: all actors run on one thread.
unsafe impl Sync for SimUffd {}

impl SimUffd {
    /// The userfaultfd with this number.
    pub fn new(number: usize) -> Self {
        SimUffd { number, protects: Cell::new(false) }
    }
}

fn moved(moved: overspill_simkernel::pmap::Moved) -> Moved {
    Moved { bytes: moved.bytes, error: moved.error }
}

/// Copies pages of the parking area from the simulated kernel to real memory.
fn mirror(kernel: &Simulated, uffd: usize, at: usize, len: usize) {
    let space = &kernel.spaces[kernel.uffds[uffd].space];
    for page in (at..at + len).step_by(PAGE) {
        if let Some(Entry::Page { .. } | Entry::Zero { .. }) = space.table.get(&page) {
            let bytes = space.bytes(page);
            // SAFETY: a page of the parking area, which is a mapping of our own. Nobody reads it before this returns, or it holds
            // the same content already.
            unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), page as *mut u8, PAGE) };
        }
    }
}

impl kernel::Uffd for SimUffd {
    type Message = SimMessage;

    fn raw(&self) -> i32 {
        self.number as i32
    }
    fn register(&self, at: usize, len: usize, marks: Marks) -> Result<(), Errno> {
        world().kernel.enter(|kernel| {
            let Uffd { space, events, .. } = kernel.uffds[self.number];
            let space = &mut kernel.spaces[space];
            if at >= OWN && space.find(at).is_none() {
                space.map(at, len, call::READ_WRITE, false, &mut Vec::new())?; // the pager's own memory
            }
            let (protects, watches) = (marks == Marks::Protected, marks == Marks::Watched);
            space.register(at, len, Registration { uffd: self.number, events, protects, watches })
        })
    }
    unsafe fn unregister(&self, at: usize, len: usize) -> Result<(), Errno> {
        world().kernel.enter(|kernel| {
            let registered = kernel.spaces[here()].unregister(at, len)?;
            registered.iter().for_each(|(start, end)| kernel.wake(self.number, *start, end - start));
            Ok(())
        })
    }
    fn protects(&self) -> bool {
        self.protects.get()
    }
    fn tells_references(&self) -> bool {
        world().tells_references
    }
    fn watch(&self, at: usize, len: usize) -> Result<(), Errno> {
        let world = world();
        let result = world.kernel.enter(|kernel| kernel.watch(self.number, at, len));
        tell(at, len, || format!("watch {at:x} +{}: {result:?}", len / PAGE));
        world.forget_used(at, at + len);
        result
    }
    fn set_protects(&self) {
        self.protects.set(true);
    }
    fn protect(&self, at: usize, len: usize) -> Result<(), Errno> {
        let result = world().kernel.enter(|kernel| kernel.write_protect(self.number, at, len, true));
        tell(at, len, || format!("protect {at:x} +{}: {result:?}", len / PAGE));
        result
    }
    fn let_write(&self, at: usize, len: usize) {
        if self.protects.get() {
            let result = world().kernel.enter(|kernel| kernel.write_protect(self.number, at, len, false));
            tell(at, len, || format!("let write {at:x} +{}: {result:?}", len / PAGE));
        }
    }
    unsafe fn copy(&self, dst: usize, src: *const u8, len: usize) -> Moved {
        world().kernel.enter(|kernel| {
            // SAFETY: the caller's promise; the parking area and the pager's buffers are real memory.
            let from = unsafe { core::slice::from_raw_parts(src.cast::<PageBytes>(), len / PAGE) };
            let result = kernel.copy(self.number, dst, from);
            tell(dst, len, || {
                format!("copy to {dst:x} +{}: {result:?}, {:?}", len / PAGE, from.iter().map(|p| p[0]).collect::<Vec<_>>())
            });
            if dst >= OWN {
                mirror(kernel, self.number, dst, result.bytes);
            }
            world().check_charge(kernel);
            moved(result)
        })
    }
    fn zero(&self, at: usize, len: usize) -> Moved {
        let result = world().kernel.enter(|kernel| {
            let result = moved(kernel.zero(self.number, at, len));
            world().check_charge(kernel);
            result
        });
        tell(at, len, || format!("zero at {at:x}: {result:?}"));
        result
    }
    unsafe fn move_pages(&self, dst: usize, src: usize, len: usize) -> Moved {
        let world = world();
        for page in (src..src + len).step_by(PAGE) {
            assert!(!world.used.borrow().contains(&(here(), page)), "page {page:x} is taken, though it was told to be in use");
        }
        world.kernel.enter(|kernel| {
            let result = kernel.move_pages(self.number, dst, src, len);
            tell(src, len, || format!("take {src:x} +{} to {dst:x}: {result:?}", len / PAGE));
            mirror(kernel, self.number, dst, len);
            moved(result)
        })
    }
    fn is_changing(&self) -> bool {
        world().kernel.enter(|kernel| kernel.uffds[self.number].changing > 0)
    }
    fn poison(&self, at: usize, len: usize) -> Result<(), Errno> {
        let result = world().kernel.enter(|kernel| kernel.poison(self.number, at, len));
        if result.bytes == len { Ok(()) } else { Err(result.error.unwrap_or(errno::EAGAIN)) }
    }
    fn read(&self, out: &mut [SimMessage]) -> usize {
        world().kernel.enter(|kernel| {
            let mut count = 0;
            while count < out.len()
                && let Some(message) = kernel.read_message(self.number)
            {
                out[count] = SimMessage(match message {
                    Message::Fault { at, write } => {
                        let thread = kernel.uffds[self.number].told.last().expect("just read").task + 1;
                        Event::Fault(at | usize::from(write), thread as u32)
                    }
                    Message::Remap { from, to, len } => Event::Remap(from, to, len),
                    Message::Remove { start, end } => Event::Remove(start, end),
                    Message::Unmap { start, end } => Event::Unmap(start, end),
                });
                match out[count].0 {
                    Event::Remap(from, to, len) => [from, to].iter().for_each(|at| world().forget_used(*at, at + len)),
                    Event::Remove(start, end) | Event::Unmap(start, end) => world().forget_used(start, end),
                    Event::Fault(..) | Event::Other => {}
                }
                match out[count].0 {
                    Event::Fault(at, thread) => tell(at & !1, PAGE, || format!("fault {at:x} of thread {thread}")),
                    Event::Remap(from, to, len) => tell(from, len, || format!("{from:x} +{} has moved to {to:x}", len / PAGE)),
                    Event::Remove(start, end) => tell(start, end - start, || format!("discard of {start:x}..{end:x}")),
                    Event::Unmap(start, end) => tell(start, end - start, || format!("unmap of {start:x}..{end:x}")),
                    Event::Other => {}
                }
                count += 1;
            }
            count
        })
    }
}

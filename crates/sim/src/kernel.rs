//! The kernel below the machine: `overspill-simkernel` for memory and threads, and devices that take their time.
//!
//! Memory that the pager maps for itself is real: buffers, the source of zeroes, the parking area. Content that is discarded there
//! is overwritten, so that a later read finds rubbish.

use crate::content::Checked;
use crate::files::SimFiles;
use crate::home::Homes;
use crate::io::{self, SimIo};
use crate::uffd::SimUffd;
use crate::word::SimWord;
use crate::world::{BASE, OWN, here, tell, world};
use overspill_machine::errno::{self, Errno};
use overspill_machine::kernel::{Advice, Fixed, Host, IoVec, Kernel, Mapping, Mappings, Mistake};
use overspill_simkernel::call::{self, Call, Outcome};
use overspill_simkernel::fault::Access;
use overspill_simkernel::pmap::{PAGE, PageBytes};
use overspill_simkernel::sched::{self, Timeout};
use overspill_simkernel::table::Entry;
use overspill_simkernel::vma::{LOCKED, Vma};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// The byte that overwrites discarded content.
const RUBBISH: u8 = 0xDB;

/// The simulated kernel below the machine.
pub enum Sim {}

/// Looks up mappings.
#[derive(Default)]
pub struct SimMappings;

impl Mappings for SimMappings {
    fn opened() -> Self {
        SimMappings
    }
    fn at(&mut self, addr: usize) -> Result<Option<Mapping>, Errno> {
        let mapping = |vma: &Vma| Mapping { start: vma.start, end: vma.end, prot: vma.prot.into() };
        Ok(world().kernel.enter(|kernel| kernel.spaces[here()].find(addr).map(mapping)))
    }
    fn read(&mut self, addr: usize, out: &mut [u8]) -> Result<usize, Errno> {
        world().kernel.enter(|kernel| {
            let mut read = 0;
            for page in out.chunks_exact_mut(PAGE) {
                match kernel.spaces[here()].table.get(&(addr + read)) {
                    Some(Entry::Page { .. } | Entry::Zero { .. }) => page.copy_from_slice(kernel.spaces[here()].bytes(addr + read)),
                    _ => break,
                }
                read += PAGE;
            }
            if read == 0 { Err(errno::EIO) } else { Ok(read) }
        })
    }
    fn references(&mut self, start: usize, end: usize, mut f: impl FnMut(usize, usize)) -> Result<(), Errno> {
        let world = world();
        for at in world.kernel.enter(|kernel| kernel.spaces[here()].touched(start, end)) {
            tell(at, PAGE, || format!("{at:x} was used"));
            world.used.borrow_mut().insert((here(), at));
            f(at, at + PAGE);
        }
        Ok(())
    }
    fn first_populated(&self, start: usize, end: usize) -> usize {
        populated(start, end, true).first().copied().unwrap_or(end)
    }
    fn each_populated(&self, start: usize, end: usize, f: impl FnMut(usize)) {
        populated(start, end, !Sim::mistake(Mistake::OverlooksKernelSwap)).into_iter().for_each(f);
    }
}

/// The pages of a range that are in memory, and those in the kernel's swap if they count.
fn populated(start: usize, end: usize, swap_counts: bool) -> Vec<usize> {
    let there = |(at, entry): (&usize, &Entry)| match entry {
        Entry::Page { swapped, .. } => (swap_counts || !swapped).then_some(*at),
        Entry::Zero { .. } => Some(*at),
        Entry::Poison | Entry::Guard | Entry::Marker => None,
    };
    world().kernel.enter(|kernel| kernel.spaces[here()].table.range(start..end).filter_map(there).collect())
}

/// A host without a family, polling handlers, or a recording.
pub struct Nothing;

impl<K: Kernel> Host<K> for Nothing {}

/// As [`Nothing`], and processes leave each other pages. What they find is often wrong: there are few places, and none says which
/// page it has.
#[derive(Default)]
pub struct Family {
    /// Faults that wait for a read, or to be tried again.
    pub waiting: AtomicI32,
}

impl Host<Sim> for Family {
    fn waits(&self, more: i32) {
        let before = self.waiting.fetch_add(more, Relaxed);
        assert!(before + more >= 0, "more faults were served than waited");
    }
    fn load_common(&self, key: Option<u128>, page: &mut PageBytes) -> bool {
        let world = world();
        let common = world.common.borrow();
        let Some(found) = key.and_then(|key| common[key as usize % common.len()].as_ref()) else { return false };
        *page = **found;
        true
    }
    fn store_common(&self, key: u128, page: &PageBytes) {
        let world = world();
        let mut common = world.common.borrow_mut();
        let at = key as usize % common.len();
        common[at] = Some(Box::new(*page));
    }
}

/// The address that the allocator returned for each mapping.
static ALLOCATED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

/// Allocates one page more, and aligns by hand. The allocator would clear an aligned allocation itself, and a run has tens of
/// megabytes that nobody touches.
fn layout(len: usize) -> Layout {
    Layout::from_size_align(len + PAGE, 1).expect("a length")
}

impl Kernel for Sim {
    type Word = SimWord;
    type Uffd = SimUffd;
    type Io = SimIo;
    type Engine = ();
    type Files = SimFiles;
    type Content = Checked;
    type Mappings = SimMappings;
    type Process = ();
    type Host = Family;

    /// So few that most of a program's unmaps and moves take several steps.
    const STEP_PAGES: u64 = 4;
    /// In the middle of most arenas.
    const MAPPINGS_FROM: usize = BASE + 100 * PAGE;
    /// So few that most flushes take several batches.
    const FLUSH_PAGES: usize = 6;
    const UNUSED_NS: u64 = 1_000_000;

    fn now_ns() -> u64 {
        sched::now() + 1
    }
    fn thread_id() -> u32 {
        sched::running() as u32 + 1
    }
    fn thread_cpu_ns(_: u32) -> Option<u64> {
        Some(sched::now())
    }
    fn sleep_ns(ns: u64) {
        sched::Word::new(0).wait(0, Timeout::Tick(ns));
    }
    fn cpus() -> usize {
        2
    }
    fn stop(message: &[u8], _: bool) -> ! {
        panic!("{}", String::from_utf8_lossy(message))
    }
    fn map_anonymous(len: usize) -> Result<*mut u8, Errno> {
        // SAFETY: not zero bytes.
        let block = unsafe { alloc_zeroed(layout(len)) };
        let at = block.wrapping_add(block.align_offset(PAGE));
        assert!(at as usize >= OWN);
        ALLOCATED.lock().expect("whole").insert(at as usize, block as usize);
        Ok(at)
    }
    unsafe fn unmap(at: *mut u8, len: usize) {
        let block = ALLOCATED.lock().expect("whole").remove(&(at as usize)).expect("it is mapped");
        // SAFETY: the caller's promise.
        unsafe { dealloc(block as *mut u8, layout(len)) };
    }
    fn advise(_: usize, _: usize, _: Advice) -> Result<(), Errno> {
        Ok(())
    }
    fn make_executable(at: usize, len: usize) -> Result<(), Errno> {
        let prot = call::READ_WRITE_EXEC;
        world().kernel.enter(|kernel| kernel.spaces[here()].map(at, len, prot, false, &mut Vec::new())).map(drop)
    }
    unsafe fn discard_ranges((): &(), ranges: &[IoVec]) {
        world().kernel.enter(|kernel| {
            for range in ranges {
                for page in (range.base..range.base + range.len).step_by(PAGE) {
                    kernel.spaces[here()].table.remove(&page);
                }
                // SAFETY: the caller's promise: nobody needs the content.
                unsafe { core::ptr::write_bytes(range.base as *mut u8, RUBBISH, range.len) };
            }
        });
    }
    unsafe fn discard_of_program(at: usize, len: usize) -> Result<(), Errno> {
        tell(at, len, || format!("own discard of {at:x} +{} begins", len / PAGE));
        let outcome = world().call(Call::Advise { at, len, advice: call::Advice::DontNeed });
        tell(at, len, || format!("own discard of {at:x} +{}: {outcome:?}", len / PAGE));
        world().forget_used(at, at + len); // (no event says so if delivery is in-thread)
        match outcome {
            Outcome::Ok(_) => Ok(()),
            Outcome::Err(e) => Err(e),
            Outcome::Signal(_) => unreachable!("advice is no touch"),
        }
    }
    fn each_resident(start: usize, end: usize, f: impl FnMut(usize)) {
        populated(start, end, false).into_iter().for_each(f);
    }
    fn is_mapped(start: usize, end: usize) -> bool {
        world().kernel.enter(|kernel| {
            let mut at = start;
            while at < end {
                let Some(vma) = kernel.spaces[here()].find(at) else { return false };
                at = vma.end;
            }
            true
        })
    }
    fn each_mapping(mut f: impl FnMut(usize, usize)) -> Result<(), Errno> {
        let list: Vec<_> = world().kernel.enter(|kernel| kernel.spaces[here()].vmas.values().map(|v| (v.start, v.end)).collect());
        list.iter().for_each(|(start, end)| f(*start, *end));
        Ok(())
    }
    fn touch(at: usize) -> bool {
        matches!(world().call(Call::KernelRead { at }), Outcome::Ok(_))
    }
    fn own_page(at: usize) -> bool {
        if Self::mistake(Mistake::WaitsToUnshare) {
            return world().call(Call::Advise { at, len: PAGE, advice: call::Advice::PopulateWrite }) == Outcome::Ok(0);
        }
        world().kernel.enter(|kernel| match kernel.spaces[here()].table.get(&at) {
            Some(Entry::Page { .. }) => kernel.spaces[here()].fault(at, true) == Access::Allowed,
            _ => false,
        })
    }
    fn merges_memory() -> bool {
        false
    }
    fn fixed() -> Option<Fixed> {
        let locked = world().kernel.enter(|kernel| {
            let locked = kernel.spaces[here()].vmas.values().filter(|vma| vma.is(LOCKED));
            locked.map(|vma| vma.end - vma.start).sum::<usize>()
        });
        Some(Fixed { locked: locked as u64, pinned: 0 })
    }
    fn io((): (), _: u32) -> Result<SimIo, Errno> {
        Ok(SimIo::default())
    }
    unsafe fn read_now(fd: i32, buf: *mut u8, len: usize, offset: u64) -> Result<usize, Errno> {
        // SAFETY: the caller's promise.
        unsafe { io::read_now(fd, buf, len, offset) }
    }
    fn file_len(fd: i32) -> Result<u64, Errno> {
        sched::turn();
        assert!(Homes::has(fd), "no such file: {fd}");
        Ok(world().homes.len(fd))
    }
    fn sync(fd: i32) -> Result<(), Errno> {
        world().homes.sync(fd)
    }
    fn copy_of_program(at: usize, to: &mut [PageBytes]) -> usize {
        let world = world();
        // like a touch, it waits for a page that is missing; when it goes on, the page may be missing again
        let copy = |(i, to): (usize, &mut PageBytes)| {
            let at = at + i * PAGE;
            matches!(world.call(Call::KernelRead { at }), Outcome::Ok(_))
                && world.kernel.enter(|kernel| match kernel.spaces[here()].table.get(&at) {
                    Some(Entry::Page { .. } | Entry::Zero { .. }) => {
                        *to = *kernel.spaces[here()].bytes(at);
                        true
                    }
                    _ => false,
                })
        };
        to.iter_mut().enumerate().map(copy).take_while(|there| *there).count()
    }
    fn wake(uffd: i32, at: usize, len: usize) {
        world().kernel.enter(|kernel| kernel.wake(uffd as usize, at, len));
    }
    fn mistake(mistake: Mistake) -> bool {
        world().makes(mistake)
    }
}

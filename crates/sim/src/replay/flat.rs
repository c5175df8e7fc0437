//! The kernel below a replay: one thread, one range, one device, and nothing fails. The content of a page is a word, so it takes
//! eight bytes everywhere: in the program's memory, in the parking area, on the device. The program's memory and the parking area
//! are not real memory; their addresses are only names.

use crate::kernel::Nothing;
use crate::uffd::SimMessage;
use crate::word::SimWord;
use overspill_machine::errno::{self, Errno};
use overspill_machine::files::{Chunk, Files, Pieces};
use overspill_machine::kernel::{self, Advice, Done, Fixed, IoVec, Kernel, Mapping, Marks, Moved};
use overspill_store::PageBytes;
use overspill_vm::types::{PAGE_SHIFT, PAGE_SIZE, PageId, Tag};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem::{replace, take};
use std::ops::Deref;

/// The beginning of the program's memory, beyond all real addresses.
pub const PROGRAM: usize = 1 << 60;
/// The beginning of the parking area.
const PARKING: usize = 1 << 61;
/// In place of a content: no page is there.
const ABSENT: u64 = u64::MAX;

/// The contents of all pages.
#[derive(Default)]
struct Memory {
    program: Vec<u64>,
    parked: Vec<u64>,
    device: Vec<u64>,
    /// Runs of neighbouring pages that were moved, watched or asked about, and the end of the last one.
    runs: (i32, usize),
    /// The kernel tells references.
    tells_references: bool,
    /// Pages of the program that are watched and were not touched since.
    untouched: Vec<bool>,
}

thread_local! {
    static MEMORY: RefCell<Memory> = RefCell::default();
}

impl Memory {
    /// The page at a named address.
    fn page(&mut self, at: usize) -> &mut u64 {
        match at.checked_sub(PARKING) {
            Some(offset) => &mut self.parked[offset >> PAGE_SHIFT],
            None => &mut self.program[(at - PROGRAM) >> PAGE_SHIFT],
        }
    }
    /// The content of a parked page, or of a page in a buffer.
    ///
    /// # Safety
    /// There is one at that address, and a buffer is aligned.
    unsafe fn source(&self, at: usize) -> u64 {
        match at.checked_sub(PARKING) {
            Some(offset) => self.parked[offset >> PAGE_SHIFT],
            // SAFETY: the caller's promise.
            None => unsafe { *(at as *const u64) },
        }
    }
}

/// Clears this thread's memory. From now on the kernel tells references, or not.
pub fn clear(tells_references: bool) {
    MEMORY.set(Memory { tells_references, ..Memory::default() });
}

/// The program touches a page, and writes to it if asked. Returns the old content; `None` if the page is not there.
pub fn touch(page: u64, write: Option<u64>) -> Option<u64> {
    MEMORY.with_borrow_mut(|memory| {
        let content = &mut memory.program[page as usize];
        match *content {
            ABSENT => None,
            old => {
                memory.untouched[page as usize] = false;
                *content = write.unwrap_or(old);
                Some(old)
            }
        }
    })
}

/// How many runs of neighbouring pages were moved, watched or asked about since the last call.
pub fn take_runs() -> i32 {
    MEMORY.with_borrow_mut(|memory| take(&mut memory.runs).0)
}

/// For calls that are never made in a replay.
fn never() -> ! {
    unreachable!("one thread, one range, one device, and nothing fails")
}

/// The kernel.
pub enum Flat {}

/// A userfaultfd.
pub struct FlatUffd;

impl kernel::Uffd for FlatUffd {
    type Message = SimMessage;

    fn raw(&self) -> i32 {
        0
    }
    fn register(&self, at: usize, len: usize, _: Marks) -> Result<(), Errno> {
        MEMORY.with_borrow_mut(|memory| {
            let of = if at == PARKING { &mut memory.parked } else { &mut memory.program };
            *of = vec![ABSENT; len >> PAGE_SHIFT];
            if at != PARKING {
                memory.untouched = vec![false; len >> PAGE_SHIFT];
            }
        });
        Ok(())
    }
    fn tells_references(&self) -> bool {
        MEMORY.with_borrow(|memory| memory.tells_references)
    }
    fn watch(&self, at: usize, len: usize) -> Result<(), Errno> {
        MEMORY.with_borrow_mut(|memory| {
            memory.runs = (memory.runs.0 + 1, 0);
            memory.untouched[pages(at, len)].fill(true);
        });
        Ok(())
    }
    unsafe fn unregister(&self, _: usize, _: usize) -> Result<(), Errno> {
        never()
    }
    fn protects(&self) -> bool {
        false
    }
    fn set_protects(&self) {
        never()
    }
    fn protect(&self, _: usize, _: usize) -> Result<(), Errno> {
        never()
    }
    fn let_write(&self, _: usize, _: usize) {}
    unsafe fn copy(&self, dst: usize, src: *const u8, len: usize) -> Moved {
        MEMORY.with_borrow_mut(|memory| {
            for at in (0..len).step_by(PAGE_SIZE) {
                // SAFETY: the caller's promise; the pager's buffers are aligned to pages.
                let content = unsafe { memory.source(src as usize + at) };
                if replace(memory.page(dst + at), content) != ABSENT {
                    never()
                }
            }
        });
        Moved { bytes: len, error: None }
    }
    fn zero(&self, _: usize, _: usize) -> Moved {
        never()
    }
    unsafe fn move_pages(&self, dst: usize, src: usize, len: usize) -> Moved {
        MEMORY.with_borrow_mut(|memory| {
            let (runs, end) = memory.runs;
            memory.runs = (runs + i32::from(src != end), src + len);
            for at in (0..len).step_by(PAGE_SIZE) {
                let content = replace(memory.page(src + at), ABSENT);
                if content == ABSENT || replace(memory.page(dst + at), content) != ABSENT {
                    never()
                }
            }
        });
        Moved { bytes: len, error: None }
    }
    fn is_changing(&self) -> bool {
        false
    }
    fn poison(&self, _: usize, _: usize) -> Result<(), Errno> {
        never()
    }
    fn read(&self, _: &mut [SimMessage]) -> usize {
        never()
    }
}

/// The pages of a range of the program.
fn pages(at: usize, len: usize) -> std::ops::Range<usize> {
    let first = (at - PROGRAM) >> PAGE_SHIFT;
    first..first + (len >> PAGE_SHIFT)
}

/// Tells references.
#[derive(Default)]
pub struct FlatMappings;

impl kernel::Mappings for FlatMappings {
    fn opened() -> Self {
        FlatMappings
    }
    fn at(&mut self, _: usize) -> Result<Option<Mapping>, Errno> {
        never()
    }
    fn read(&mut self, _: usize, _: &mut [u8]) -> Result<usize, Errno> {
        never()
    }
    fn references(&mut self, start: usize, end: usize, mut f: impl FnMut(usize, usize)) -> Result<(), Errno> {
        MEMORY.with_borrow_mut(|memory| {
            memory.runs = (memory.runs.0 + 1, 0);
            for at in (start..end).step_by(PAGE_SIZE) {
                if !memory.untouched[pages(at, 0).start] {
                    f(at, at + PAGE_SIZE);
                }
            }
        });
        Ok(())
    }
    fn first_populated(&self, start: usize, _: usize) -> usize {
        start
    }
    fn each_populated(&self, start: usize, end: usize, f: impl FnMut(usize)) {
        Flat::each_resident(start, end, f);
    }
}

/// Transfers end as soon as they are issued.
pub struct FlatIo(VecDeque<Done>);

impl kernel::Io for FlatIo {
    fn is_asynchronous(&self) -> bool {
        false
    }
    unsafe fn read(&mut self, _: i32, _: *mut u8, _: usize, _: u64, _: u64) {
        never()
    }
    unsafe fn write(&mut self, _: i32, iov: &[IoVec], offset: u64, token: u64) {
        let pages = iov.iter().flat_map(|v| (v.base..v.base + v.len).step_by(PAGE_SIZE));
        let bytes = MEMORY.with_borrow_mut(|memory| {
            let mut slot = (offset >> PAGE_SHIFT) as usize;
            for at in pages {
                let content = *memory.page(at);
                memory.device.resize(memory.device.len().max(slot + 1), ABSENT);
                memory.device[slot] = content;
                slot += 1;
            }
            (slot << PAGE_SHIFT) - offset as usize
        });
        self.0.push_back(Done { token, result: Ok(bytes) });
    }
    fn submit(&mut self) {}
    fn wait(&mut self, _: Option<u64>) {}
    fn completion(&mut self) -> Option<Done> {
        self.0.pop_front()
    }
}

/// A block device of this many bytes.
pub struct FlatFile(pub u64);

impl Files for FlatFile {
    fn count(&self) -> usize {
        1
    }
    fn limit(&self) -> u64 {
        self.0
    }
    fn grows(&self) -> bool {
        false
    }
    fn fd(&self, _: u16) -> i32 {
        0
    }
    fn are_files(&self) -> bool {
        false
    }
    fn chunk(&self, _: u64, _: usize) -> Option<Chunk> {
        never()
    }
    fn grown(&mut self, _: &Chunk) {
        never()
    }
    fn pieces(&mut self, _: u16, _: u64, _: u32) -> Pieces {
        never()
    }
    fn allocate(_: i32, _: u64, _: u64) -> Result<(), Errno> {
        never()
    }
    fn punch(_: i32, _: u64, _: u64) -> Result<(), Errno> {
        never()
    }
}

/// The tag of a page's content: different contents and different pages always have different tags.
fn tag(page: PageId, bytes: &PageBytes) -> Tag {
    let content = u64::from_ne_bytes(*bytes.first_chunk().expect("a page"));
    Tag::new(page, content.into(), 0)
}

/// A content is a word: the first word of an otherwise empty page.
pub struct Words;

impl kernel::Content for Words {
    fn is_sealed(&self) -> bool {
        false
    }
    fn tag(&self, page: PageId, _: Option<Tag>, bytes: &PageBytes, _: &mut PageBytes) -> Tag {
        tag(page, bytes)
    }
    fn open(&self, page: PageId, stored: Tag, bytes: &mut PageBytes) -> bool {
        tag(page, bytes) == stored
    }
    fn seal(&self, _: PageId, _: &PageBytes, _: &mut PageBytes) -> Tag {
        never()
    }
}

fn layout(len: usize) -> Layout {
    Layout::from_size_align(len, PAGE_SIZE).expect("a length")
}

impl Kernel for Flat {
    type Word = SimWord;
    type Uffd = FlatUffd;
    type Io = FlatIo;
    type Engine = ();
    type Files = FlatFile;
    type Content = Words;
    type Mappings = FlatMappings;
    type Process = ();
    type Host = Nothing;

    fn now_ns() -> u64 {
        1
    }
    fn thread_id() -> u32 {
        1
    }
    fn thread_cpu_ns(_: u32) -> Option<u64> {
        None
    }
    fn sleep_ns(_: u64) {}
    fn cpus() -> usize {
        1
    }
    fn stop(message: &[u8], _: bool) -> ! {
        panic!("{}", String::from_utf8_lossy(message))
    }
    fn map_anonymous(len: usize) -> Result<*mut u8, Errno> {
        // SAFETY: not zero bytes.
        let at = unsafe { alloc_zeroed(layout(len)) };
        if at.is_null() { Err(errno::ENOMEM) } else { Ok(at) }
    }
    fn map_parking(_: usize) -> Result<*mut u8, Errno> {
        Ok(PARKING as *mut u8)
    }
    unsafe fn parked(at: usize) -> impl Deref<Target = PageBytes> {
        let mut bytes = Box::new([0; PAGE_SIZE]);
        let content = MEMORY.with_borrow_mut(|memory| *memory.page(at));
        *bytes.first_chunk_mut().expect("a page") = content.to_ne_bytes();
        bytes
    }
    unsafe fn unmap(at: *mut u8, len: usize) {
        if at as usize != PARKING {
            // SAFETY: the caller's promise.
            unsafe { dealloc(at, layout(len)) };
        }
    }
    fn advise(_: usize, _: usize, _: Advice) -> Result<(), Errno> {
        Ok(())
    }
    fn make_executable(_: usize, _: usize) -> Result<(), Errno> {
        never()
    }
    unsafe fn discard_ranges((): &(), ranges: &[IoVec]) {
        MEMORY.with_borrow_mut(|memory| {
            for range in ranges {
                let first = (range.base - PARKING) >> PAGE_SHIFT;
                memory.parked[first..first + (range.len >> PAGE_SHIFT)].fill(ABSENT);
            }
        });
    }
    unsafe fn discard_of_program(_: usize, _: usize) -> Result<(), Errno> {
        never()
    }
    fn each_resident(start: usize, end: usize, f: impl FnMut(usize)) {
        let is_there = |at: &usize| MEMORY.with_borrow_mut(|memory| *memory.page(*at) != ABSENT);
        (start..end).step_by(PAGE_SIZE).filter(is_there).for_each(f);
    }
    fn is_mapped(_: usize, _: usize) -> bool {
        never()
    }
    fn each_mapping(_: impl FnMut(usize, usize)) -> Result<(), Errno> {
        never()
    }
    fn touch(_: usize) -> bool {
        never()
    }
    fn own_page(_: usize) -> bool {
        never()
    }
    fn merges_memory() -> bool {
        false
    }
    fn fixed() -> Option<Fixed> {
        None
    }
    fn io((): (), _: u32) -> Result<FlatIo, Errno> {
        Ok(FlatIo(VecDeque::new()))
    }
    unsafe fn read_now(_: i32, buf: *mut u8, len: usize, offset: u64) -> Result<usize, Errno> {
        MEMORY.with_borrow(|memory| {
            for at in (0..len).step_by(PAGE_SIZE) {
                let content = memory.device[(offset as usize + at) >> PAGE_SHIFT];
                // SAFETY: the caller's promise; buffers are aligned to pages.
                unsafe { *buf.add(at).cast() = content };
            }
        });
        Ok(len)
    }
    fn wake(_: i32, _: usize, _: usize) {}
}

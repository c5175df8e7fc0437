//! The simulated kernel below the machine: `overspill-simkernel` for memory and threads, and devices that take their time.
//!
//! Memory that the pager maps for itself is real: buffers, the source of zeroes, the parking area. What is parked there is in the
//! simulated kernel's page table as well, and each transfer that touches it keeps the two alike; what is dropped is overwritten, so
//! that whoever reads it afterwards finds rubbish.

use crate::disk::{Disk, SimFiles};
use crate::forks::Children;
use overspill_machine::errno;
use overspill_machine::errno::Errno;
use overspill_machine::kernel::{self, Advice, Done, Event, Fixed, IoVec, Kernel, Limit, Mapping, Mistake, Moved, Touch};
use overspill_machine::lock::Word;
use overspill_simkernel::call::{self, Call, Outcome};
use overspill_simkernel::fault::Access;
use overspill_simkernel::kernel::Kernel as Simulated;
use overspill_simkernel::pmap::{Message, PAGE, PageBytes};
use overspill_simkernel::rng::Rng;
use overspill_simkernel::sched::{self, Timeout, shared::Shared};
use overspill_simkernel::table::Entry;
use overspill_simkernel::uffd::Uffd;
use overspill_simkernel::vma::{LOCKED, Registration};
use overspill_store::checksum;
use overspill_vm::status::Status;
use overspill_vm::types::{PageId, Tag};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, OnceLock};

/// A process's userfaultfd for its program.
pub const fn program_of(process: usize) -> usize {
    2 * process
}
/// The same for its parking area.
pub const fn park_of(process: usize) -> usize {
    2 * process + 1
}
/// What is found where something was dropped.
const RUBBISH: u8 = 0xDB;
/// Pages that the page daemon copies out at a time.
pub const COPIED_OUT: usize = 32;
/// Pages that may be there uncharged for a moment otherwise: one that is brought back, whose parked copy is charged a step later,
/// and one more where memory is moved over other memory (one seed in thousands; which step that is has not been traced).
pub const IN_PASSING: usize = 2;
/// From here on addresses are the pager's own.
pub const OWN: usize = 1 << 40;

/// What can go wrong with a device, in thousandths of the operations.
#[derive(Clone, Copy, Default, Debug)]
pub struct Trouble {
    /// Reads that fail.
    pub read_error: usize,
    /// Writes that fail.
    pub write_error: usize,
    /// Writes that find the device full.
    pub no_space: usize,
    /// Transfers that do only a part.
    pub short: usize,
    /// Transfers of the control thread's that take longer than anybody's patience.
    pub stall: usize,
    /// Writes of the control thread's that are refused.
    pub refused: usize,
    /// Pages that come back other than they were written: changed on their way or on the device, never written although that was
    /// said, or written somewhere else.
    pub corrupt: usize,
    /// Of the control thread's steps: a device dies. From then on no write to it succeeds.
    pub deaths: usize,
}

impl Trouble {
    /// Devices that are without.
    pub const NONE: Trouble =
        Trouble { read_error: 0, write_error: 0, no_space: 0, short: 0, stall: 0, refused: 0, corrupt: 0, deaths: 0 };
}

/// One run's world.
pub struct World {
    /// Memory and threads.
    pub kernel: Shared,
    rng: RefCell<Rng>,
    devices: RefCell<BTreeMap<(i32, u64), Box<PageBytes>>>,
    pub trouble: Trouble,
    mistake: Option<Mistake>,
    /// Reads that failed for good are expected.
    pub lossy: Cell<bool>,
    /// Pages that devices have harmed: so many may be lost.
    pub harmed: Cell<u64>,
    /// Files and their space.
    pub disk: Disk,
    /// What the machine shows of itself, and pages that may be there twice for a moment: as they are copied out, or one that is
    /// brought back, whose parked copy is charged when it is there.
    pub charge: Cell<Option<(&'static Status, usize)>>,
    /// Pages that calls are about to unmap, move or replace: they may be charged no more, or not yet.
    pub going: Cell<usize>,
    /// A device is being swapped off.
    pub swaps: Cell<bool>,
    /// No other is to be: a program waits for the end of this one.
    pub rests: Cell<usize>,
    control: usize,
    /// Each actor's, which has the number of its address space.
    processes: Vec<usize>,
    /// Where children run.
    pub children: Children,
}

thread_local! {
    static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

/// This thread's.
pub fn world() -> Rc<World> {
    WORLD.with_borrow(|world| Rc::clone(world.as_ref().expect("there is one")))
}

impl World {
    /// A new one, of the actors of these processes: the control thread, if there is one, is the last of the first process's. It is
    /// this thread's until the next.
    pub fn begin(seed: u64, processes: Vec<usize>, disturbed: bool, trouble: Trouble, mistake: Option<Mistake>) -> Rc<World> {
        let mut kernel = Simulated::default();
        for process in 0..=processes.iter().copied().max().expect("there is one") {
            assert_eq!(kernel.new_space(), process);
            let uffds = [kernel.new_uffd(process, true), kernel.new_uffd(process, false)];
            assert_eq!(uffds, [program_of(process), park_of(process)]);
        }
        processes.iter().enumerate().for_each(|(task, process)| assert_eq!(kernel.new_task(*process), task));
        kernel.disturbed = disturbed.then(|| Rng::new(seed ^ 0x5555));
        let world = Rc::new(World {
            kernel: Shared::new(kernel, processes.len()),
            rng: RefCell::new(Rng::new(!seed)),
            devices: RefCell::default(),
            trouble,
            mistake,
            lossy: Cell::new(trouble.read_error + trouble.corrupt > 0),
            harmed: Cell::new(0),
            disk: Disk::default(),
            charge: Cell::new(None),
            going: Cell::new(0),
            swaps: Cell::new(false),
            rests: Cell::new(0),
            control: processes.iter().filter(|process| **process == 0).count() - 1,
            children: Children::new(&processes),
            processes,
        });
        WORLD.set(Some(Rc::clone(&world)));
        world
    }

    /// Whether transfers fail.
    pub fn is_troubled(&self) -> bool {
        let Trouble { read_error, write_error, no_space, refused, corrupt, deaths, short: _, stall: _ } = self.trouble;
        read_error + write_error + no_space + refused + corrupt + deaths > 0
    }

    /// What is resident is charged: to be asked when pages have come.
    fn check_charge(&self, kernel: &Simulated) {
        let Some((status, twice)) = self.charge.get() else { return };
        let charged = status.counters.memory_used_bytes.get() as usize / PAGE;
        let there = |entry: &&Entry| matches!(entry, Entry::Page { .. } | Entry::Zero { .. });
        let resident = kernel.spaces[0].table.values().filter(there).count();
        assert!(resident <= charged + twice + self.going.get(), "{resident} pages are resident and {charged} charged");
    }

    /// Whether transfers take longer than anybody's patience.
    pub fn stalls(&self) -> bool {
        self.trouble.stall > 0
    }

    /// A number below that.
    pub fn draw(&self, limit: usize) -> usize {
        self.rng.borrow_mut().below(limit)
    }

    /// Whether something happens that does so often.
    pub fn happens(&self, thousandths: usize) -> bool {
        thousandths > 0 && self.draw(1000) < thousandths
    }

    /// A device does harm to so many pages.
    fn harm(&self, pages: usize) {
        self.harmed.set(self.harmed.get() + pages as u64);
    }

    /// Where a page is written that should go there: somewhere else now and then, or nowhere.
    fn place(&self, own: (i32, u64)) -> Option<(i32, u64)> {
        if !self.happens(self.trouble.corrupt) {
            return Some(own);
        }
        self.harm(2);
        let devices = self.devices.borrow();
        let other = self.draw(2 * devices.len() + 1);
        devices.keys().nth(other).copied()
    }

    /// What was written there is gone: rubbish is read.
    pub fn forget(&self, fd: i32, offset: u64, pages: usize) {
        let mut devices = self.devices.borrow_mut();
        (0..pages).for_each(|i| drop(devices.remove(&(fd, offset + (i * PAGE) as u64))));
    }

    /// The calling thread makes a call.
    pub fn call(&self, call: Call) -> Outcome {
        self.kernel.call(sched::running(), call)
    }

    /// A program does nothing until no device is being swapped off, and for so many nanoseconds at least.
    pub fn rest(&self, ns: u64) {
        self.rests.set(self.rests.get() + 1);
        let start = sched::now();
        while self.swaps.get() || sched::now() < start + ns {
            sched::Word::new(0).wait(0, Timeout::Tick(10_000_000));
            sched::progress();
        }
        self.rests.set(self.rests.get() - 1);
    }

    /// How long a transfer takes, in nanoseconds.
    fn latency(&self) -> u64 {
        if sched::is_running() && sched::running() == self.control && self.happens(self.trouble.stall) {
            return 12_000_000_000;
        }
        match self.draw(16) {
            0 => 1_000_000 + self.draw(5_000_000) as u64,
            1..4 => 1_000,
            _ => 5_000 + self.draw(100_000) as u64,
        }
    }
}

/// The process that runs.
pub fn here() -> usize {
    if sched::is_running() { world().processes[sched::running()] } else { 0 }
}

/// Tells of what is done to the page whose address is in the environment, in hexadecimal (`WATCH`).
pub fn tell(at: usize, len: usize, what: impl FnOnce() -> String) {
    thread_local! {
        static WATCHED: Option<usize> = std::env::var("WATCH").ok().and_then(|at| usize::from_str_radix(&at, 16).ok());
    }
    if WATCHED.with(|watched| watched.is_some_and(|page| (at..at + len).contains(&page))) {
        println!("{:>9} actor {}: {}", sched::now(), if sched::is_running() { sched::running() } else { 99 }, what());
    }
}

/// What a page of the parking area is in the simulated kernel it is in real memory, too.
fn mirror(kernel: &Simulated, uffd: usize, at: usize, len: usize) {
    let space = &kernel.spaces[kernel.uffds[uffd].space];
    for page in (at..at + len).step_by(PAGE) {
        if let Some(Entry::Page { .. } | Entry::Zero { .. }) = space.table.get(&page) {
            let bytes = space.bytes(page);
            // SAFETY: a page of the parking area, which is a mapping of our own; nobody reads it before this has returned, or it
            // holds the same already.
            unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), page as *mut u8, PAGE) };
        }
    }
}

/// Below the machine.
pub enum Sim {}

/// A word that actors wait on.
#[derive(Debug)]
pub struct SimWord(OnceLock<sched::Word>);

impl SimWord {
    fn word(&self) -> &sched::Word {
        self.0.get_or_init(|| sched::Word::new(0))
    }
    /// Changes it, and says what it was.
    fn update(&self, change: impl Fn(u32) -> u32) -> u32 {
        loop {
            let old = self.word().load();
            if self.word().replace(old, change(old)) {
                return old;
            }
        }
    }
}

impl Word for SimWord {
    fn spin(_: impl FnMut() -> bool) -> bool {
        false
    }
    fn load(&self, _: Ordering) -> u32 {
        self.word().load()
    }
    fn store(&self, value: u32, _: Ordering) {
        self.word().store(value);
    }
    fn swap(&self, value: u32, _: Ordering) -> u32 {
        self.word().swap(value)
    }
    fn fetch_add(&self, n: u32, _: Ordering) -> u32 {
        self.word().add(n)
    }
    fn fetch_sub(&self, n: u32, _: Ordering) -> u32 {
        self.word().add(n.wrapping_neg())
    }
    fn compare_exchange(&self, from: u32, to: u32, _: Ordering) -> bool {
        self.word().replace(from, to)
    }
    fn wait(&self, expected: u32) {
        self.word().wait(expected, Timeout::Never);
    }
    fn wake(&self, count: u32) {
        self.word().wake(count as usize);
    }
    fn fence() {}
}

impl kernel::Futex for SimWord {
    const ZERO: SimWord = SimWord(OnceLock::new());
    fn fetch_or(&self, bits: u32, _: Ordering) -> u32 {
        self.update(|old| old | bits)
    }
    fn fetch_and(&self, bits: u32, _: Ordering) -> u32 {
        self.update(|old| old & bits)
    }
    fn wait_for(&self, expected: u32, limit: Limit) {
        let timeout = match limit {
            Limit::Tick(ns) => Timeout::Tick(ns),
            Limit::Rescue(ns) => Timeout::Rescue(ns),
        };
        self.word().wait(expected, timeout);
    }
    fn wait_shared(&self, expected: u32, limit: Limit) {
        self.wait_for(expected, limit);
    }
    fn wake_shared(&self, count: u32) {
        self.wake(count);
    }
}

/// A message, as it is read.
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

// SAFETY: all actors are one thread's.
unsafe impl Sync for SimUffd {}

impl SimUffd {
    /// That of this number.
    pub fn new(number: usize) -> Self {
        SimUffd { number, protects: Cell::new(false) }
    }
}

fn moved(moved: overspill_simkernel::pmap::Moved) -> Moved {
    Moved { bytes: moved.bytes, error: moved.error }
}

impl kernel::Uffd for SimUffd {
    type Message = SimMessage;

    fn raw(&self) -> i32 {
        self.number as i32
    }
    fn register(&self, at: usize, len: usize) -> Result<(), Errno> {
        world().kernel.enter(|kernel| {
            let Uffd { space, events, .. } = kernel.uffds[self.number];
            let space = &mut kernel.spaces[space];
            if at >= OWN && space.find(at).is_none() {
                space.map(at, len, call::READ_WRITE, false, &mut Vec::new())?; // the pager's own memory
            }
            space.register(at, len, Registration { uffd: self.number, events, protects: self.protects.get() })
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
        world().kernel.enter(|kernel| {
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

enum Transfer {
    Read(*mut u8, usize),
    /// What is written: captured at the beginning, or vectors that are looked at in the end.
    Write(Result<Vec<u8>, Vec<IoVec>>),
}

struct Op {
    token: u64,
    fd: i32,
    offset: u64,
    transfer: Transfer,
    due: u64,
}

/// One actor's I/O.
pub struct SimIo {
    ops: Vec<Op>,
    done: VecDeque<Done>,
}

// SAFETY: all actors are one thread's.
unsafe impl Send for SimIo {}

fn gather(iov: &[IoVec]) -> Vec<u8> {
    let mut data = Vec::new();
    for v in iov {
        // SAFETY: what is written stays readable until the end of the write: the issuer's promise.
        data.extend_from_slice(unsafe { core::slice::from_raw_parts(v.base as *const u8, v.len) });
    }
    data
}

fn perform(fd: i32, offset: u64, transfer: &Transfer) -> Result<usize, Errno> {
    let world = world();
    if fd < 0 {
        return Err(errno::EIO);
    }
    assert!(fd < world.disk.files.get(), "no such file: {fd}");
    let part = |pages: usize| if pages > 1 && world.happens(world.trouble.short) { 1 + world.draw(pages - 1) } else { pages };
    match transfer {
        Transfer::Read(buffer, len) => {
            if world.happens(world.trouble.read_error) {
                world.harm(len / PAGE);
                return Err(errno::EIO);
            }
            let pages = part(len / PAGE);
            for i in 0..pages {
                let devices = world.devices.borrow();
                let page = devices.get(&(fd, offset + (i * PAGE) as u64));
                let mut bytes = page.map_or([0; PAGE], |page| **page);
                if world.happens(world.trouble.corrupt) {
                    bytes[world.draw(PAGE)] ^= 1 << world.draw(8);
                    world.harm(1);
                }
                // SAFETY: the buffer is the transfer's until it has ended: the issuer's promise.
                unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.add(i * PAGE), PAGE) };
            }
            Ok(pages * PAGE)
        }
        Transfer::Write(what) => {
            if world.happens(world.trouble.no_space) {
                return Err(errno::ENOSPC);
            }
            let refused = sched::is_running() && sched::running() == world.control && world.happens(world.trouble.refused);
            if refused || world.disk.is_dead(fd) || world.happens(world.trouble.write_error) {
                return Err(errno::EIO);
            }
            let data = match what {
                Ok(data) => data.clone(),
                Err(iov) => gather(iov),
            };
            let pages = part(data.len() / PAGE);
            for i in 0..pages {
                let is_new = !world.devices.borrow().contains_key(&(fd, offset + (i * PAGE) as u64));
                if is_new && !world.disk.take_page(fd) {
                    return if i == 0 { Err(errno::ENOSPC) } else { Ok(i * PAGE) };
                }
                let page = data[i * PAGE..(i + 1) * PAGE].try_into().expect("a page");
                let place = world.place((fd, offset + (i * PAGE) as u64));
                place.map(|place| world.devices.borrow_mut().insert(place, Box::new(page)));
            }
            Ok(pages * PAGE)
        }
    }
}

impl SimIo {
    fn issue(&mut self, token: u64, fd: i32, offset: u64, transfer: Transfer) {
        world().disk.check_open(fd);
        let due = sched::now() + world().latency();
        self.ops.push(Op { token, fd, offset, transfer, due });
        self.ops.sort_by_key(|op| op.due);
    }
    fn end_due(&mut self) {
        let now = if sched::is_running() { sched::now() } else { u64::MAX };
        while self.ops.first().is_some_and(|op| op.due <= now) {
            let op = self.ops.remove(0);
            let result = perform(op.fd, op.offset, &op.transfer);
            self.done.push_back(Done { token: op.token, result });
        }
    }
    /// When the next transfer ends, from now on.
    pub fn next_in(&self) -> Option<u64> {
        self.ops.first().map(|op| op.due.saturating_sub(sched::now()).max(1))
    }
}

impl kernel::Io for SimIo {
    fn is_asynchronous(&self) -> bool {
        true
    }
    unsafe fn read(&mut self, fd: i32, buf: *mut u8, len: usize, offset: u64, token: u64) {
        self.issue(token, fd, offset, Transfer::Read(buf, len));
    }
    unsafe fn write(&mut self, fd: i32, iov: &[IoVec], offset: u64, token: u64) {
        // a device takes what it writes at the beginning, or in the end
        let what = if world().draw(2) == 0 { Ok(gather(iov)) } else { Err(iov.to_vec()) };
        self.issue(token, fd, offset, Transfer::Write(what));
    }
    fn submit(&mut self) {
        sched::turn();
    }
    fn wait(&mut self, timeout_ns: Option<u64>) {
        self.end_due();
        if !self.done.is_empty() || !sched::is_running() {
            return;
        }
        let ns = self.next_in().unwrap_or(u64::MAX).min(timeout_ns.unwrap_or(u64::MAX));
        assert!(ns < u64::MAX, "a wait for nothing");
        let until = sched::now() + ns;
        while sched::now() < until {
            if ns > 5_000_000_000 {
                sched::progress(); // the device's time is nobody's fault
            }
            sched::Word::new(0).wait(0, Timeout::Tick((until - sched::now()).min(5_000_000_000)));
        }
        self.end_due();
    }
    fn completion(&mut self) -> Option<Done> {
        sched::turn();
        self.end_due();
        self.done.pop_front()
    }
    fn put_back(&mut self, done: Done) {
        self.done.push_back(done);
    }
}

/// Pages are stored as they are, or sealed.
pub struct Checked {
    /// They are sealed: what is stored is no page.
    pub sealed: bool,
}

impl Checked {
    /// Sealed becomes plain, and the inverse.
    fn scramble(&self, page: PageId, tag: Tag, bytes: &mut PageBytes) {
        if self.sealed {
            let mut pad = Rng::new(tag.unmasked(page) as u64);
            bytes.as_chunks_mut().0.iter_mut().for_each(|word| *word = (u64::from_ne_bytes(*word) ^ pad.bits()).to_ne_bytes());
        }
    }
}

impl kernel::Content for Checked {
    fn is_sealed(&self) -> bool {
        self.sealed
    }
    fn tag(&self, page: PageId, _: Option<Tag>, bytes: &PageBytes, _: &mut PageBytes) -> Tag {
        checksum::of(page, bytes)
    }
    fn open(&self, page: PageId, stored: Tag, bytes: &mut PageBytes) -> bool {
        self.scramble(page, stored, bytes);
        checksum::of(page, bytes) == stored
    }
    fn seal(&self, page: PageId, plain: &PageBytes, sealed: &mut PageBytes) -> Tag {
        *sealed = *plain;
        let tag = checksum::of(page, plain);
        self.scramble(page, tag, sealed);
        tag
    }
}

/// What is mapped.
#[derive(Default)]
pub struct SimMappings;

impl kernel::Mappings for SimMappings {
    fn opened() -> Self {
        SimMappings
    }
    fn at(&mut self, addr: usize) -> Result<Option<Mapping>, Errno> {
        let mapping = |vma: &overspill_simkernel::vma::Vma| Mapping { start: vma.start, end: vma.end, prot: vma.prot.into() };
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
}

/// Nothing else.
pub struct Nothing;

impl<K: Kernel> kernel::Host<K> for Nothing {
    fn bell(&self) -> Option<&K::Word> {
        None
    }
    fn served(&self) {}
    fn records(&self) -> bool {
        false
    }
    fn record_is_full(&self) -> bool {
        false
    }
    fn record(&self, _: u64, _: bool, _: Touch) {}
}

/// Where what is mapped was allocated, by address.
static ALLOCATED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

/// One page more: an allocation that is aligned to pages would be cleared by hand, and a run has tens of megabytes that nobody
/// touches.
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
    type Host = Nothing;

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
        // SAFETY: not of no bytes.
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
                // SAFETY: the caller's promise: nobody needs it.
                unsafe { core::ptr::write_bytes(range.base as *mut u8, RUBBISH, range.len) };
            }
        });
    }
    unsafe fn discard_of_program(at: usize, len: usize) -> Result<(), Errno> {
        tell(at, len, || format!("own discard of {at:x} +{} begins", len / PAGE));
        let outcome = world().call(Call::Advise { at, len, advice: call::Advice::DontNeed });
        tell(at, len, || format!("own discard of {at:x} +{}: {outcome:?}", len / PAGE));
        match outcome {
            Outcome::Ok(_) => Ok(()),
            Outcome::Err(e) => Err(e),
            Outcome::Signal(_) => unreachable!("advice is no touch"),
        }
    }
    fn is_resident(at: usize) -> bool {
        world().kernel.enter(|kernel| matches!(kernel.spaces[here()].table.get(&at), Some(Entry::Page { .. } | Entry::Zero { .. })))
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
    fn each_present(start: usize, end: usize, mut f: impl FnMut(usize, usize)) {
        let there = |(at, entry): (&usize, &Entry)| matches!(entry, Entry::Page { .. } | Entry::Zero { .. }).then_some(*at);
        let list: Vec<usize> =
            world().kernel.enter(|kernel| kernel.spaces[here()].table.range(start..end).filter_map(there).collect());
        list.iter().for_each(|at| f(*at, at + PAGE));
    }
    fn each_mapping(mut f: impl FnMut(usize, usize)) -> Result<(), Errno> {
        let list: Vec<_> = world().kernel.enter(|kernel| kernel.spaces[here()].vmas.values().map(|v| (v.start, v.end)).collect());
        list.iter().for_each(|(start, end)| f(*start, *end));
        Ok(())
    }
    fn touch(at: usize) -> bool {
        matches!(world().call(Call::KernelRead { at }), Outcome::Ok(_))
    }
    unsafe fn touch_directly(at: usize) {
        world().call(Call::Read { at });
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
        Ok(SimIo { ops: Vec::new(), done: VecDeque::new() })
    }
    unsafe fn read_now(fd: i32, buf: *mut u8, len: usize, offset: u64) -> Result<usize, Errno> {
        world().disk.check_open(fd);
        Self::sleep_ns(world().latency());
        perform(fd, offset, &Transfer::Read(buf, len))
    }
    fn wake(uffd: i32, at: usize, len: usize) {
        world().kernel.enter(|kernel| kernel.wake(uffd as usize, at, len));
    }
    fn mistake(mistake: Mistake) -> bool {
        world().mistake == Some(mistake)
    }
}

//! Reads that faulting threads do themselves, and reads that they give to the reader thread.
//!
//! [`Buffers`] are for a thread's own reads. They are made at set-up and charged to the budget. A thread that finds none free waits
//! for one. A thread that has a buffer waits only for the device, so the wait ends. A thread that reads a single page polls before
//! it sleeps: a fast device answers before a sleeper runs again, which on a virtual machine with a halted CPU is 20 to 30 us after
//! the interrupt.
//!
//! [`Queue`] holds readahead for the reader thread. It is bounded: when it is full, a thread does the read itself (or waits).

use overspill_linux::area;
use overspill_linux::io::{Engine, Io};
use overspill_linux::kernel::Linux;
use overspill_linux::lock::Mutex;
use overspill_linux::machine::{Delivery, Machine, Read};
use overspill_linux::reader::{self, CLUSTERS, Reader, SINGLES, TOKEN_OTHER};
use overspill_linux::spinner::{SPIN_NS, Spinner};
use overspill_linux::sys::{self, Errno, Fd, futex_wait, futex_wake};
use overspill_machine::kernel::{Io as _, Kernel as _};
use overspill_vm::types::{PAGE_SHIFT, PAGE_SIZE};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

/// The number of one-page buffers with a ring of their own. With more reads under way, threads sleep, and others get the CPU.
const POLLERS: usize = 4;

const SINGLES_MASK: u32 = (1 << SINGLES) - 1;
const CLUSTERS_MASK: u32 = ((1 << CLUSTERS) - 1) << SINGLES;

/// All buffers.
pub struct Buffers {
    start: usize,
    cluster_pages: usize,
    /// A bit for each free buffer. Waiters sleep on this word.
    free: AtomicU32,
    waiters: AtomicU32,
    /// The rings of the first buffers. Only the thread that has the buffer takes the lock.
    pollers: Vec<Mutex<Poller>>,
}

/// Reads a page, and polls for the completion for a while.
struct Poller {
    io: Io,
    spinner: Spinner,
}

impl Poller {
    /// # Safety
    /// The page at `buf` must be writable, and nothing else may use it meanwhile.
    unsafe fn read(&mut self, fd: i32, buf: *mut u8, offset: u64) -> Result<usize, Errno> {
        // SAFETY: the caller's promise; this returns only after the completion.
        unsafe { self.io.read(fd, buf, PAGE_SIZE, offset, 0) };
        if self.spinner.due() {
            let spun = self.io.spin(SPIN_NS, true);
            self.spinner.note(spun);
        }
        loop {
            if let Some(done) = self.io.completion() {
                return done.result;
            }
            self.io.wait(None);
        }
    }
}

impl Buffers {
    /// With [`reader::buffer_pages`] pages, all present.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn new(cluster_pages: usize, engine: Engine) -> Result<Buffers, Errno> {
        assert_eq!(reader::buffer_pages(cluster_pages), SINGLES + CLUSTERS * cluster_pages);
        let len = reader::buffer_pages(cluster_pages) << PAGE_SHIFT;
        let start = area::map_anonymous(len)?;
        // Present from the start, so that the kernel has no reason to fail a read. SAFETY: our own fresh mapping of that length.
        unsafe { start.write_bytes(0, len) };
        let free = AtomicU32::new(SINGLES_MASK | CLUSTERS_MASK);
        let mut buffers = Buffers { start: start as usize, cluster_pages, free, waiters: AtomicU32::new(0), pollers: Vec::new() };
        // on one CPU polling is of no use
        if engine == Engine::Uring && sys::count_cpus(&sys::allowed_cpus()) > 1 {
            for _ in 0..POLLERS {
                buffers.pollers.push(Mutex::new(Poller { io: Io::lent(engine), spinner: Spinner::default() }));
            }
        }
        Ok(buffers)
    }

    /// Takes a buffer for `pages` pages, for this thread alone until it is dropped. Waits until one is free; does not allocate.
    fn take(&self, pages: u32) -> Buffer<'_> {
        let mask = if pages == 1 { SINGLES_MASK } else { CLUSTERS_MASK };
        assert!(pages as usize <= self.cluster_pages.max(1));
        loop {
            let free = self.free.load(Relaxed);
            if free & mask == 0 {
                self.waiters.fetch_add(1, SeqCst);
                futex_wait(&self.free, free, 2_000_000);
                self.waiters.fetch_sub(1, SeqCst);
                continue;
            }
            let index = (free & mask).trailing_zeros();
            // Acquire pairs with the Release of the thread that had the buffer before.
            if self.free.compare_exchange_weak(free, free & !(1 << index), Acquire, Relaxed).is_ok() {
                let index = index as usize;
                let page = if index < SINGLES { index } else { SINGLES + (index - SINGLES) * self.cluster_pages };
                return Buffer { buffers: self, index, start: (self.start + (page << PAGE_SHIFT)) as *mut u8 };
            }
        }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made; each buffer borrows `self`, so none is left.
        unsafe { area::unmap(self.start as *mut u8, reader::buffer_pages(self.cluster_pages) << PAGE_SHIFT) };
    }
}

struct Buffer<'a> {
    buffers: &'a Buffers,
    index: usize,
    start: *mut u8,
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        self.buffers.free.fetch_or(1 << self.index, Release);
        if self.buffers.waiters.load(SeqCst) != 0 {
            futex_wake(&self.buffers.free, i32::MAX as u32);
        }
    }
}

/// Makes `read` in the calling thread. If a thread waits for it already, calls `issue` with the next window; what that returns is
/// returned. Does not allocate. => the caller holds no lock of the pager's
pub fn read_here(machine: &Machine, buffers: &Buffers, read: &Read, issue: impl FnOnce(Read) -> Option<Read>) -> Option<Read> {
    let Read { op, fd, .. } = read;
    let buffer = buffers.take(op.count);
    let since = sys::now_ns();
    let (offset, len) = (op.location.offset, op.count as usize * PAGE_SIZE);
    let result = if op.location.is_memory {
        // SAFETY: the buffer is this thread's until it is dropped, page-aligned, and long enough for a cluster of `count` pages.
        unsafe { machine.load(op.location, op.count, op.wanted, buffer.start) };
        Ok(len)
    } else {
        let fd = machine.inject.read(*fd, offset, len);
        let polled = match buffers.pollers.get(buffer.index) {
            // SAFETY: as above.
            Some(look) => unsafe { look.lock().read(fd, buffer.start, offset) },
            None => Ok(0),
        };
        match polled {
            Ok(PAGE_SIZE) => polled,
            // no ring, or the read was short or failed: read again, without polling SAFETY: as above.
            _ => unsafe { sys::pread_full(fd, buffer.start, len, offset) },
        }
    };
    // SAFETY: `take` gave this buffer to this thread alone, and the read into it has ended.
    unsafe { reader::arrived(machine, read, buffer.start, since, result, |_, next| issue(next)) }.next
}

/// The most reads that wait for the reader thread.
const QUEUE: usize = 64;

struct Ring {
    reads: [Option<Read>; QUEUE],
    first: usize,
    count: usize,
}

/// Readahead on its way to the reader thread.
pub struct Queue {
    ring: Mutex<Ring>,
    /// An event descriptor, so that the reader thread can wait for it and for the device at the same time.
    event: Fd,
    asleep: AtomicBool,
    /// There are files, so the reader thread has more buffers.
    files: AtomicBool,
    /// Bumped when there is room again. Threads that wait for room sleep on it.
    room: AtomicU32,
}

/// A new event descriptor that is not readable yet.
///
/// # Errors
/// EMFILE and the like.
pub fn event() -> Result<Fd, Errno> {
    // SAFETY: makes a descriptor and touches no memory; the descriptor is not used elsewhere.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 { Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EMFILE)) } else { Ok(Fd::new(fd as usize)) }
}

/// Makes an event descriptor readable.
pub fn ring(event: &Fd) {
    let _ = sys::write(event.raw(), &1u64.to_ne_bytes());
}

impl Queue {
    /// An empty one.
    ///
    /// # Errors
    /// EMFILE and the like.
    pub fn new() -> Result<Queue, Errno> {
        let ring = Ring { reads: [None; QUEUE], first: 0, count: 0 };
        Ok(Queue {
            ring: Mutex::new(ring),
            event: event()?,
            asleep: AtomicBool::new(false),
            files: AtomicBool::new(false),
            room: AtomicU32::new(0),
        })
    }

    /// Gives `read` to the reader thread, or returns it if there is no room. Does not wait, does not allocate.
    pub fn push(&self, read: Read) -> Option<Read> {
        let mut ring_ = self.ring.lock();
        if ring_.count == QUEUE {
            return Some(read);
        }
        let at = (ring_.first + ring_.count) % QUEUE;
        ring_.reads[at] = Some(read);
        ring_.count += 1;
        drop(ring_);
        if self.asleep.swap(false, SeqCst) {
            ring(&self.event);
        }
        None
    }

    fn pop(&self) -> Option<Read> {
        let mut ring_ = self.ring.lock();
        if ring_.count == 0 {
            return None;
        }
        let at = ring_.first;
        let read = ring_.reads[at].take();
        ring_.first = (at + 1) % QUEUE;
        ring_.count -= 1;
        let was_full = ring_.count + 1 == QUEUE;
        drop(ring_);
        if was_full {
            self.room.fetch_add(1, Release);
            futex_wake(&self.room, i32::MAX as u32);
        }
        read
    }

    /// Gives `read` to the reader thread; waits while there is no room. => the caller holds no lock
    pub fn push_patiently(&self, mut read: Read) {
        loop {
            let seen = self.room.load(Acquire);
            match self.push(read) {
                None => return,
                Some(back) => read = back,
            }
            futex_wait(&self.room, seen, 2_000_000);
        }
    }

    /// There are files from now on. Returns whether there were none before. => in-thread delivery
    pub fn note_files(&self) -> bool {
        !self.files.swap(true, AcqRel)
    }

    /// Makes the reader thread look at `quit`.
    pub fn wake(&self) {
        ring(&self.event);
    }
}

const TOKEN_QUEUE: u64 = TOKEN_OTHER;

/// The reader thread. Returns when the machine quits and nothing is in flight.
///
/// # Errors
/// If its I/O cannot be set up. Then `ready` was not called.
pub fn run(machine: &Machine, queue: &Queue, engine: Engine, cluster_pages: usize, ready: impl FnOnce()) -> Result<(), Errno> {
    let mut reader = match machine.config.delivery {
        Delivery::InThread => Reader::deep(engine, cluster_pages)?,
        Delivery::Threads => Reader::new(engine, cluster_pages)?,
    };
    reader.io.watch(queue.event.raw(), TOKEN_QUEUE);
    ready();
    while !machine.shutdown.has_begun() {
        let mut any = false;
        if queue.files.load(Acquire) {
            reader.deepen();
        }
        while reader.has_room(1)
            && let Some(read) = queue.pop()
        {
            reader.start(machine, read);
            any = true;
        }
        while let Some(done) = reader.io.completion() {
            any = true;
            if done.token == TOKEN_QUEUE {
                let _ = sys::read(queue.event.raw(), &mut [0; 8]);
            } else {
                reader.finish(machine, done);
            }
        }
        any |= reader.follow_pointers(machine);
        if any {
            continue;
        }
        reader.give_back(machine, false);
        let sleep = if reader.has_buffers() { Linux::UNUSED_NS } else { 1_000_000_000 };
        queue.asleep.store(true, SeqCst);
        // This sees all reads that were pushed before. A thread that pushes later finds `asleep` set, and wakes this thread.
        if queue.ring.lock().count == 0 || !reader.has_room(1) {
            reader.io.wait(Some(sleep));
        }
        queue.asleep.store(false, SeqCst);
    }
    Ok(())
}

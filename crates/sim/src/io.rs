//! Transfers: they take time, end in any order, and may fail.

use crate::disk::Place;
use crate::home::Homes;
use crate::world::{World, world};
use overspill_machine::errno::{self, Errno};
use overspill_machine::kernel::{Done, Io, IoVec};
use overspill_simkernel::pmap::PAGE;
use overspill_simkernel::sched::{self, Timeout};
use std::collections::VecDeque;

enum Transfer {
    Read(*mut u8, usize),
    /// The bytes to write: copied at the beginning, or vectors that are read in the end.
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
#[derive(Default)]
pub struct SimIo {
    ops: Vec<Op>,
    done: VecDeque<Done>,
}

// SAFETY: all actors run on one thread.
unsafe impl Send for SimIo {}

/// How long a transfer takes, in nanoseconds.
fn latency(world: &World) -> u64 {
    if world.is_control() && world.happens(world.trouble.stall) {
        return 12_000_000_000;
    }
    match world.draw(16) {
        0 => 1_000_000 + world.draw(5_000_000) as u64,
        1..4 => 1_000,
        _ => 5_000 + world.draw(100_000) as u64,
    }
}

/// The place where a page is really written: now and then another place than its own, or nowhere.
fn place(world: &World, own: Place) -> Option<Place> {
    if !world.happens(world.trouble.corrupt) {
        return Some(own);
    }
    world.harm(2);
    world.disk.written(world.draw(2 * world.disk.written_count() + 1))
}

/// Asserts that no transfer begins with a closed descriptor.
fn check_open(fd: i32) {
    if Homes::has(fd) { world().homes.check_open(fd) } else { world().disk.check_open(fd) }
}

fn gather(iov: &[IoVec]) -> Vec<u8> {
    let mut data = Vec::new();
    for v in iov {
        // SAFETY: the memory stays readable until the end of the write: the issuer's promise.
        data.extend_from_slice(unsafe { core::slice::from_raw_parts(v.base as *const u8, v.len) });
    }
    data
}

fn perform(fd: i32, offset: u64, transfer: &Transfer) -> Result<usize, Errno> {
    let world = world();
    if fd < 0 {
        return Err(errno::EIO);
    }
    if Homes::has(fd) {
        return match transfer {
            // SAFETY: the buffer is the transfer's until it has ended: the issuer's promise.
            Transfer::Read(buffer, len) => world.homes.read(fd, offset, unsafe { core::slice::from_raw_parts_mut(*buffer, *len) }),
            Transfer::Write(Ok(data)) => world.homes.write(fd, offset, data),
            Transfer::Write(Err(iov)) => world.homes.write(fd, offset, &gather(iov)),
        };
    }
    assert!(world.disk.has(fd), "no such file: {fd}");
    let part = |pages: usize| if pages > 1 && world.happens(world.trouble.short) { 1 + world.draw(pages - 1) } else { pages };
    match transfer {
        Transfer::Read(..) if world.disk.is_away(fd, sched::now()) => {
            sched::progress(); // that time passes is nobody's fault
            Err(errno::EIO)
        }
        Transfer::Read(buffer, len) => {
            if world.happens(world.trouble.read_error) {
                world.harm(len / PAGE);
                return Err(errno::EIO);
            }
            let pages = part(len / PAGE);
            for i in 0..pages {
                let mut bytes = world.disk.read((fd, offset + (i * PAGE) as u64));
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
            let refused = world.is_control() && world.happens(world.trouble.refused);
            if refused || world.disk.is_dead(fd) || world.happens(world.trouble.write_error) {
                return Err(errno::EIO);
            }
            let data = match what {
                Ok(data) => data.clone(),
                Err(iov) => gather(iov),
            };
            let pages = part(data.len() / PAGE);
            for i in 0..pages {
                let own = (fd, offset + (i * PAGE) as u64);
                if !world.disk.is_written(own) && !world.disk.take_page(fd) {
                    return if i == 0 { Err(errno::ENOSPC) } else { Ok(i * PAGE) };
                }
                let page = data[i * PAGE..(i + 1) * PAGE].try_into().expect("a page");
                if let Some(place) = place(&world, own) {
                    world.disk.write(place, page);
                }
            }
            Ok(pages * PAGE)
        }
    }
}

/// Reads and waits for the end.
///
/// # Safety
/// `buf..buf + len` is writable, and nobody else uses it meanwhile.
///
/// # Errors
/// As pread(2).
pub unsafe fn read_now(fd: i32, buf: *mut u8, len: usize, offset: u64) -> Result<usize, Errno> {
    check_open(fd);
    sched::Word::new(0).wait(0, Timeout::Tick(latency(&world())));
    perform(fd, offset, &Transfer::Read(buf, len))
}

impl SimIo {
    fn issue(&mut self, token: u64, fd: i32, offset: u64, transfer: Transfer) {
        check_open(fd);
        let due = sched::now() + latency(&world());
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
    /// How long until the next transfer ends, in nanoseconds.
    pub fn next_in(&self) -> Option<u64> {
        self.ops.first().map(|op| op.due.saturating_sub(sched::now()).max(1))
    }
}

impl Io for SimIo {
    fn is_asynchronous(&self) -> bool {
        true
    }
    unsafe fn read(&mut self, fd: i32, buf: *mut u8, len: usize, offset: u64, token: u64) {
        self.issue(token, fd, offset, Transfer::Read(buf, len));
    }
    unsafe fn write(&mut self, fd: i32, iov: &[IoVec], offset: u64, token: u64) {
        // a device may read the memory at the beginning of a write, or in the end
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
                sched::progress(); // time that the device takes is nobody's fault
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
}

//! The files of swap devices.

use crate::world::world;
use overspill_machine::errno::{self, Errno};
use overspill_machine::files::{Chunk, Files, Pieces};
use overspill_simkernel::pmap::PAGE;
use overspill_simkernel::sched::{self, Timeout};

/// The longest that the file system takes to get space, in nanoseconds.
const ALLOCATION_NS_MAX: usize = 20_000_000;

/// The files of a device.
pub struct SimFiles {
    fds: Vec<i32>,
    /// The length of each growing file, in pages.
    lens: Vec<usize>,
    limit: usize,
    grows: bool,
    turn: usize,
}

impl SimFiles {
    /// A device of `pages` pages that has all its space.
    pub fn block(pages: usize) -> Self {
        SimFiles { fds: vec![world().disk.open()], lens: vec![0], limit: pages, grows: false, turn: 0 }
    }
    /// The same files for a forked child.
    pub fn shared(&self) -> Self {
        self.fds.iter().for_each(|fd| world().disk.share(*fd));
        SimFiles { fds: self.fds.clone(), lens: vec![0; self.fds.len()], ..*self }
    }
    /// From now on every write fails.
    pub fn die(&self) {
        self.fds.iter().for_each(|fd| world().disk.kill(*fd));
    }
    /// Until `then` every read fails.
    pub fn leave(&self, then: u64) {
        self.fds.iter().for_each(|fd| world().disk.leave(*fd, then));
    }
    /// Whether writes may succeed.
    pub fn lives(&self) -> bool {
        !self.fds.iter().any(|fd| world().disk.is_dead(*fd))
    }
    /// Whether the device has space for all its pages.
    pub fn is_block(&self) -> bool {
        !self.grows && !self.fds.iter().any(|fd| world().disk.is_sparse(*fd))
    }
    /// A device that has space only where it has been written.
    pub fn sparse(pages: usize) -> Self {
        let files = SimFiles::block(pages);
        files.fds.iter().for_each(|fd| world().disk.make_sparse(*fd));
        files
    }
    /// A device of `count` files that can grow to `pages` pages together.
    pub fn growing(count: usize, pages: usize) -> Self {
        let fds = (0..count).map(|_| world().disk.open()).collect();
        SimFiles { fds, lens: vec![0; count], limit: pages, grows: true, turn: 0 }
    }
}

impl Drop for SimFiles {
    fn drop(&mut self) {
        self.fds.iter().for_each(|fd| world().disk.close(*fd));
        world().disk.space.update(|space| space + self.lens.iter().sum::<usize>());
    }
}

impl Files for SimFiles {
    fn count(&self) -> usize {
        self.fds.len()
    }
    fn limit(&self) -> u64 {
        (self.limit * PAGE) as u64
    }
    fn grows(&self) -> bool {
        self.grows
    }
    fn fd(&self, file: u16) -> i32 {
        self.fds[file as usize]
    }
    fn are_files(&self) -> bool {
        self.grows
    }
    fn chunk(&self, bytes_max: u64, nth: usize) -> Option<Chunk> {
        let world = world();
        let left = self.limit - self.lens.iter().sum::<usize>();
        let most = left.min(bytes_max as usize / PAGE).min(world.disk.space.get());
        let pages = most.min(1 + world.draw(64));
        let file = (self.turn + 1) % self.fds.len();
        let (offset, bytes) = ((self.lens[file] * PAGE) as u64, (pages * PAGE) as u64);
        (nth == 0 && pages > 0).then_some(Chunk { file: file as u16, fd: self.fds[file], offset, bytes, is_there: false })
    }
    fn grown(&mut self, chunk: &Chunk) {
        self.turn = chunk.file as usize;
        self.lens[self.turn] += chunk.bytes as usize / PAGE;
    }
    fn pieces(&mut self, _: u16, _: u64, pages: u32) -> Pieces {
        let mut pieces = Pieces::one(pages);
        if pages > 1 && world().draw(2) == 0 {
            pieces.cut_at(1 + world().draw(pages as usize - 1) as u32);
        }
        pieces
    }
    fn allocate(fd: i32, _: u64, bytes: u64) -> Result<(), Errno> {
        let world = world();
        world.disk.check_open(fd);
        // other actors go on meanwhile
        sched::Word::new(0).wait(0, Timeout::Tick(world.draw(ALLOCATION_NS_MAX) as u64));
        let left = world.disk.space.get().checked_sub(bytes as usize / PAGE).ok_or(errno::ENOSPC)?;
        world.disk.space.set(left);
        Ok(())
    }
    fn punch(fd: i32, offset: u64, bytes: u64) -> Result<(), Errno> {
        let world = world();
        world.disk.forget(fd, offset, bytes as usize / PAGE);
        world.disk.space.update(|space| space + bytes as usize / PAGE);
        Ok(())
    }
}

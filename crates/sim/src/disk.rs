//! Swap files, and the file system that they are in.

use crate::world::world;
use overspill_machine::errno::{self, Errno};
use overspill_machine::files::{Files, Pieces};
use overspill_simkernel::pmap::PAGE;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

/// Files by their descriptors.
#[derive(Default)]
pub struct Disk {
    /// The next descriptor.
    pub files: Cell<i32>,
    closed: RefCell<BTreeSet<i32>>,
    /// Further processes that have a descriptor.
    shared: RefCell<BTreeMap<i32, usize>>,
    /// Those that have space only where they have been written.
    sparse: RefCell<BTreeSet<i32>>,
    /// Those that take no more writes.
    dead: RefCell<BTreeSet<i32>>,
    /// Pages that the file system has left for files that grow.
    pub space: Cell<usize>,
}

impl Disk {
    fn open(&self) -> i32 {
        self.files.set(self.files.get() + 1);
        self.files.get() - 1
    }
    /// Space for one page more, of a file that has none there yet. Whether it was to be had, or is not needed.
    pub fn take_page(&self, fd: i32) -> bool {
        let left = self.space.get();
        let sparse = self.sparse.borrow().contains(&fd);
        self.space.set(left.saturating_sub(sparse.into()));
        !sparse || left > 0
    }
    /// Whether no write to it succeeds.
    pub fn is_dead(&self, fd: i32) -> bool {
        self.dead.borrow().contains(&fd)
    }
    /// Nobody begins a transfer with a descriptor that is closed. (One that has begun may go on.)
    pub fn check_open(&self, fd: i32) {
        assert!(!self.closed.borrow().contains(&fd), "a transfer with a descriptor that is closed");
    }
}

/// The files of a device.
pub struct SimFiles {
    fds: Vec<i32>,
    /// The length of each that grows, in pages.
    lens: Vec<usize>,
    limit: usize,
    grows: bool,
    turn: usize,
}

impl SimFiles {
    /// One of so many pages, whose space it has.
    pub fn block(pages: usize) -> Self {
        SimFiles { fds: vec![world().disk.open()], lens: vec![0], limit: pages, grows: false, turn: 0 }
    }
    /// The same, as a forked child has it.
    pub fn shared(&self) -> Self {
        self.fds.iter().for_each(|fd| *world().disk.shared.borrow_mut().entry(*fd).or_default() += 1);
        SimFiles { fds: self.fds.clone(), lens: vec![0; self.fds.len()], ..*self }
    }
    /// From now on no write succeeds.
    pub fn die(&self) {
        world().disk.dead.borrow_mut().extend(&self.fds);
    }
    /// Whether writes may succeed.
    pub fn lives(&self) -> bool {
        !self.fds.iter().any(|fd| world().disk.is_dead(*fd))
    }
    /// Whether it has space for all its pages.
    pub fn is_block(&self) -> bool {
        !self.grows && !self.fds.iter().any(|fd| world().disk.sparse.borrow().contains(fd))
    }
    /// One that has space only where it has been written.
    pub fn sparse(pages: usize) -> Self {
        let files = SimFiles::block(pages);
        world().disk.sparse.borrow_mut().extend(&files.fds);
        files
    }
    /// So many that have so many pages together, when they have grown.
    pub fn growing(count: usize, pages: usize) -> Self {
        let fds = (0..count).map(|_| world().disk.open()).collect();
        SimFiles { fds, lens: vec![0; count], limit: pages, grows: true, turn: 0 }
    }
}

impl Drop for SimFiles {
    fn drop(&mut self) {
        for fd in &self.fds {
            match world().disk.shared.borrow_mut().get_mut(fd) {
                Some(others) if *others > 0 => *others -= 1,
                _ => _ = world().disk.closed.borrow_mut().insert(*fd),
            }
        }
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
    fn grow(&mut self, bytes_max: u64) -> Result<(u16, u64, u64), Errno> {
        let world = world();
        let left = self.limit - self.lens.iter().sum::<usize>();
        let most = left.min(bytes_max as usize / PAGE).min(world.disk.space.get());
        let pages = most.min(1 + world.draw(64));
        if pages == 0 {
            return Err(errno::ENOSPC);
        }
        self.turn = (self.turn + 1) % self.fds.len();
        let len = &mut self.lens[self.turn];
        *len += pages;
        world.disk.space.update(|space| space - pages);
        Ok((self.turn as u16, ((*len - pages) * PAGE) as u64, (pages * PAGE) as u64))
    }
    fn pieces(&mut self, _: u16, _: u64, pages: u32) -> Pieces {
        let mut pieces = Pieces::one(pages);
        if pages > 1 && world().draw(2) == 0 {
            pieces.cut_at(1 + world().draw(pages as usize - 1) as u32);
        }
        pieces
    }
    fn allocate(_: i32, _: u64, bytes: u64) -> Result<(), Errno> {
        let world = world();
        let left = world.disk.space.get().checked_sub(bytes as usize / PAGE).ok_or(errno::ENOSPC)?;
        world.disk.space.set(left);
        Ok(())
    }
    fn punch(fd: i32, offset: u64, bytes: u64) -> Result<(), Errno> {
        let world = world();
        world.forget(fd, offset, bytes as usize / PAGE);
        world.disk.space.update(|space| space + bytes as usize / PAGE);
        Ok(())
    }
}

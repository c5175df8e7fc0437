//! The file system that swap files are in, and what is written there.

use overspill_simkernel::pmap::{PAGE, PageBytes};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

/// A page's place: a descriptor, and an offset in bytes.
pub type Place = (i32, u64);

/// Files by their descriptors.
#[derive(Default)]
pub struct Disk {
    /// The next descriptor.
    files: Cell<i32>,
    pages: RefCell<BTreeMap<Place, Box<PageBytes>>>,
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
    /// A new file's descriptor.
    pub fn open(&self) -> i32 {
        self.files.set(self.files.get() + 1);
        self.files.get() - 1
    }
    /// Whether there was such a file.
    pub fn has(&self, fd: i32) -> bool {
        fd < self.files.get()
    }
    /// A further process has it.
    pub fn share(&self, fd: i32) {
        *self.shared.borrow_mut().entry(fd).or_default() += 1;
    }
    /// A process has it no more.
    pub fn close(&self, fd: i32) {
        match self.shared.borrow_mut().get_mut(&fd) {
            Some(others) if *others > 0 => *others -= 1,
            _ => _ = self.closed.borrow_mut().insert(fd),
        }
    }
    /// It has space only where it has been written.
    pub fn make_sparse(&self, fd: i32) {
        self.sparse.borrow_mut().insert(fd);
    }
    /// Whether it has.
    pub fn is_sparse(&self, fd: i32) -> bool {
        self.sparse.borrow().contains(&fd)
    }
    /// From now on no write to it succeeds.
    pub fn kill(&self, fd: i32) {
        self.dead.borrow_mut().insert(fd);
    }
    /// What is written there: zeroes if nothing is.
    pub fn read(&self, place: Place) -> PageBytes {
        self.pages.borrow().get(&place).map_or([0; PAGE], |page| **page)
    }
    /// This is written there from now on.
    pub fn write(&self, place: Place, page: PageBytes) {
        self.pages.borrow_mut().insert(place, Box::new(page));
    }
    /// Whether something is.
    pub fn is_written(&self, place: Place) -> bool {
        self.pages.borrow().contains_key(&place)
    }
    /// How many places are written.
    pub fn written_count(&self) -> usize {
        self.pages.borrow().len()
    }
    /// One of them, if there are so many.
    pub fn written(&self, number: usize) -> Option<Place> {
        self.pages.borrow().keys().nth(number).copied()
    }
    /// What was written there is gone: zeroes are read.
    pub fn forget(&self, fd: i32, offset: u64, pages: usize) {
        let mut written = self.pages.borrow_mut();
        (0..pages).for_each(|i| drop(written.remove(&(fd, offset + (i * PAGE) as u64))));
    }
    /// Space for one page more, of a file that has none there yet. Whether it was to be had, or is not needed.
    pub fn take_page(&self, fd: i32) -> bool {
        let left = self.space.get();
        let sparse = self.is_sparse(fd);
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

//! The file system that swap files are in, and their content.

use overspill_simkernel::pmap::{PAGE, PageBytes};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

/// The place of a stored page: a descriptor, and an offset in bytes.
pub type Place = (i32, u64);

/// Files by their descriptors.
#[derive(Default)]
pub struct Disk {
    /// The next descriptor.
    files: Cell<i32>,
    pages: RefCell<BTreeMap<Place, Box<PageBytes>>>,
    closed: RefCell<BTreeSet<i32>>,
    /// For each file, how many other processes have a descriptor of it.
    shared: RefCell<BTreeMap<i32, usize>>,
    /// Sparse files: they have space only where they have been written.
    sparse: RefCell<BTreeSet<i32>>,
    /// Files on which every write fails.
    dead: RefCell<BTreeSet<i32>>,
    /// Files that cannot be read, and until when.
    away: RefCell<BTreeMap<i32, u64>>,
    /// Pages of free space that the file system has for files that grow.
    pub space: Cell<usize>,
}

impl Disk {
    /// Makes a file. Returns its descriptor.
    pub fn open(&self) -> i32 {
        self.files.set(self.files.get() + 1);
        self.files.get() - 1
    }
    /// Whether there was such a file.
    pub fn has(&self, fd: i32) -> bool {
        fd < self.files.get()
    }
    /// Another process gets the descriptor.
    pub fn share(&self, fd: i32) {
        *self.shared.borrow_mut().entry(fd).or_default() += 1;
    }
    /// A process closes the descriptor.
    pub fn close(&self, fd: i32) {
        match self.shared.borrow_mut().get_mut(&fd) {
            Some(others) if *others > 0 => *others -= 1,
            _ => _ = self.closed.borrow_mut().insert(fd),
        }
    }
    /// Makes the file sparse: it has space only where it has been written.
    pub fn make_sparse(&self, fd: i32) {
        self.sparse.borrow_mut().insert(fd);
    }
    /// Whether the file is sparse.
    pub fn is_sparse(&self, fd: i32) -> bool {
        self.sparse.borrow().contains(&fd)
    }
    /// From now on every write to the file fails.
    pub fn kill(&self, fd: i32) {
        self.dead.borrow_mut().insert(fd);
    }
    /// Until `then` every read of the file fails. That happens to a file once: a page is not waited for twice as long.
    pub fn leave(&self, fd: i32, then: u64) {
        self.away.borrow_mut().entry(fd).or_insert(then);
    }
    /// Whether it does.
    pub fn is_away(&self, fd: i32, now: u64) -> bool {
        self.away.borrow().get(&fd).is_some_and(|then| now < *then)
    }
    /// The page that is written there; zeroes if none is.
    pub fn read(&self, place: Place) -> PageBytes {
        self.pages.borrow().get(&place).map_or([0; PAGE], |page| **page)
    }
    /// Writes a page there.
    pub fn write(&self, place: Place, page: PageBytes) {
        self.pages.borrow_mut().insert(place, Box::new(page));
    }
    /// Whether a page is written there.
    pub fn is_written(&self, place: Place) -> bool {
        self.pages.borrow().contains_key(&place)
    }
    /// How many pages are written.
    pub fn written_count(&self) -> usize {
        self.pages.borrow().len()
    }
    /// The place of written page number `number`, if there are that many.
    pub fn written(&self, number: usize) -> Option<Place> {
        self.pages.borrow().keys().nth(number).copied()
    }
    /// Drops written pages: they read as zeroes.
    pub fn forget(&self, fd: i32, offset: u64, pages: usize) {
        let mut written = self.pages.borrow_mut();
        (0..pages).for_each(|i| drop(written.remove(&(fd, offset + (i * PAGE) as u64))));
    }
    /// Takes space for a page that is written for the first time, if the file is sparse. Returns `false` if there is none.
    pub fn take_page(&self, fd: i32) -> bool {
        let left = self.space.get();
        let sparse = self.is_sparse(fd);
        self.space.set(left.saturating_sub(sparse.into()));
        !sparse || left > 0
    }
    /// Whether every write to the file fails.
    pub fn is_dead(&self, fd: i32) -> bool {
        self.dead.borrow().contains(&fd)
    }
    /// Asserts that no transfer begins with a closed descriptor. (A transfer that has begun may go on.)
    pub fn check_open(&self, fd: i32) {
        assert!(!self.closed.borrow().contains(&fd), "a transfer with a descriptor that is closed");
    }
}

//! Memory of a pager, as Python sees it: the base of an array, and the pages of it that are wired.
//!
//! A region's bytes are only ever reached by pointer, here and in numpy. No reference to them is made, because other threads may
//! change them at any time, as with every buffer of Python's.

use crate::error;
use crate::pager::Pager;
use overspill::{Access, Delivery, Held, PAGE_SIZE, Wired};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Between two looks for signals, this much is wired.
const WIRE_BYTES: usize = 16 << 20;

/// A region of the library's.
enum Pageable {
    Memory(overspill::Region),
    File(overspill::FileRegion),
}

/// A region, and what must be known of it without asking a pager.
pub struct Memory {
    region: ManuallyDrop<Pageable>,
    start: usize,
    len: usize,
    in_thread: bool,
    /// The process that made it.
    process: u32,
    pager: Py<Pager>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: taken once, here.
        let region = unsafe { ManuallyDrop::take(&mut self.region) };
        // To unmap much memory takes time, and other threads of Python's may go on meanwhile.
        Python::attach(|py| py.detach(|| drop(region)));
    }
}

impl Memory {
    /// Whether system calls on its pages may fail, because pages that are out cannot be waited for in the kernel.
    pub fn needs_wires(&self) -> bool {
        self.in_thread && self.process == std::process::id()
    }

    fn here(&self) -> PyResult<()> {
        if self.process == std::process::id() { Ok(()) } else { Err(error::from(overspill::Error::Forked)) }
    }

    /// Where these addresses lie in it.
    pub fn offsets(&self, addresses: Range<usize>) -> PyResult<Range<usize>> {
        let range = addresses.start - self.start..addresses.end.saturating_sub(self.start);
        if range.start <= range.end && range.end <= self.len {
            Ok(range)
        } else {
            Err(PyValueError::new_err("the bytes of this array lie outside of the pager's memory"))
        }
    }
}

/// The memory of all arrays, by where it begins. Held only while Python's lock is, so that no forked child finds it held.
static ALL: Mutex<BTreeMap<usize, Weak<Memory>>> = Mutex::new(BTreeMap::new());

fn all() -> MutexGuard<'static, BTreeMap<usize, Weak<Memory>>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The memory that has the byte at this address.
pub fn memory_at(address: usize) -> Option<Arc<Memory>> {
    let memory = all().range(..=address).next_back()?.1.upgrade();
    memory.filter(|memory| address - memory.start < memory.len)
}

/// The memory that has the bytes at these addresses, and where they lie in it. In a forked child that is an error.
fn find(start: usize, end: usize) -> PyResult<(Arc<Memory>, Range<usize>)> {
    let memory = memory_at(start).ok_or_else(|| PyValueError::new_err("this array is not in the memory of a pager"))?;
    memory.here()?;
    let range = memory.offsets(start..end)?;
    Ok((memory, range))
}

/// Memory of a pager. It is the base of the array that uses it.
#[pyclass(frozen, module = "overspill._overspill", weakref)]
pub struct Region {
    memory: Arc<Memory>,
}

impl Region {
    /// Memory of that many bytes, all zero.
    pub fn new(owner: &Bound<'_, Pager>, pager: &overspill::Pager, bytes: usize, policy: Option<&str>) -> PyResult<Region> {
        let made = owner.py().detach(|| {
            let region = pager.region(bytes)?;
            policy.map_or(Ok(()), |policy| region.set_policy(policy))?;
            Ok(region)
        });
        let mut region = made.map_err(error::from)?;
        let start = region.as_mut_ptr() as usize;
        Ok(Region::over(owner, pager, Pageable::Memory(region), start, bytes))
    }

    /// A file's memory.
    pub fn of_file(owner: &Bound<'_, Pager>, pager: &overspill::Pager, region: overspill::FileRegion, bytes: usize) -> Region {
        let start = region.as_ptr() as usize;
        Region::over(owner, pager, Pageable::File(region), start, bytes)
    }

    fn over(owner: &Bound<'_, Pager>, pager: &overspill::Pager, region: Pageable, start: usize, len: usize) -> Region {
        let in_thread = pager.delivery() == Delivery::InThread;
        let (region, pager) = (ManuallyDrop::new(region), owner.clone().unbind());
        let memory = Arc::new(Memory { region, start, len, in_thread, process: std::process::id(), pager });
        all().insert(start, Arc::downgrade(&memory));
        Region { memory }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        all().remove(&self.memory.start); // before its addresses can belong to another region
    }
}

#[pymethods]
impl Region {
    fn __len__(&self) -> usize {
        self.memory.len
    }

    /// # Safety
    /// As for the slot: `view` is a structure to fill in.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let memory = &slf.get().memory;
        let len = isize::try_from(memory.len).map_err(|_| PyBufferError::new_err("too large"))?;
        let readonly = c_int::from(matches!(&*memory.region, Pageable::File(file) if file.access() == Access::ReadOnly));
        // SAFETY: as the caller says. The view holds a reference to this object, which keeps the memory.
        let done = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), memory.start as *mut _, len, readonly, flags) };
        if done == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// The pager whose memory has the byte at this address, if any.
#[pyfunction]
pub fn pager_of(py: Python<'_>, address: usize) -> Option<Py<Pager>> {
    memory_at(address).map(|memory| memory.pager.clone_ref(py))
}

/// Brings the pages of these addresses in and keeps them in memory until the wire is released.
#[pyfunction]
pub fn wire(py: Python<'_>, start: usize, end: usize) -> PyResult<Wire> {
    let (memory, range) = find(start, end)?;
    let pages = Pages::wire(py, &memory, range)?;
    Ok(Wire { pages: Mutex::new(Some(pages)) })
}

/// Begins to read the pages of these addresses.
#[pyfunction]
pub fn prefetch(py: Python<'_>, start: usize, end: usize) -> PyResult<()> {
    let (memory, range) = find(start, end)?;
    py.detach(|| match &*memory.region {
        Pageable::Memory(region) => region.prefetch(range),
        Pageable::File(file) => file.prefetch(range),
    });
    Ok(())
}

/// The policy of the array that has these addresses: its own, or else its pager's.
#[pyfunction]
pub fn policy_of(start: usize) -> PyResult<String> {
    let (memory, _) = find(start, start)?;
    Ok(match &*memory.region {
        Pageable::Memory(region) => region.policy(),
        Pageable::File(file) => file.policy(),
    })
}

/// Gives the array that has these addresses a policy of its own, or changes that. `None`: its pager's again.
#[pyfunction]
pub fn set_policy(py: Python<'_>, start: usize, policy: Option<&str>) -> PyResult<()> {
    let (memory, _) = find(start, start)?;
    let set = py.detach(|| match (&*memory.region, policy) {
        (Pageable::Memory(region), Some(policy)) => region.set_policy(policy),
        (Pageable::Memory(region), None) => region.reset_policy(),
        (Pageable::File(file), Some(policy)) => file.set_policy(policy),
        (Pageable::File(file), None) => file.reset_policy(),
    });
    set.map_err(error::from)
}

/// Makes the bytes at these addresses zero, which then take neither memory nor swap.
#[pyfunction]
pub fn discard(py: Python<'_>, start: usize, end: usize) -> PyResult<()> {
    let (memory, range) = find(start, end)?;
    let Pageable::Memory(region) = &*memory.region else {
        return Err(PyValueError::new_err("this array is a file's, whose content cannot be discarded: assign zeroes"));
    };
    // SAFETY: no reference to the bytes is ever made (see the head of this file). A program whose threads use the range meanwhile,
    // against what `overspill.discard` says, finds old bytes or zeroes there, as with any race for an array.
    py.detach(|| unsafe { region.discard_shared(range) }).map_err(error::from)
}

/// Writes what has changed at these addresses, which are a file's, to the file. Returns when the device has it.
#[pyfunction]
pub fn flush(py: Python<'_>, start: usize, end: usize) -> PyResult<()> {
    let (memory, range) = find(start, end)?;
    match &*memory.region {
        Pageable::Memory(_) => Err(PyValueError::new_err("this array is not a file's")),
        Pageable::File(file) => py.detach(|| file.flush(range)).map_err(error::from),
    }
}

/// Pages of one call to the library. They are unwired when this is dropped.
enum Piece {
    Memory { _wired: Wired<'static> },
    File { _held: Held<'static> },
}

impl Piece {
    /// # Safety
    /// The region must stay where it is until the piece is dropped.
    unsafe fn wire(region: &Pageable, range: Range<usize>) -> Result<Piece, overspill::Error> {
        // SAFETY: both only lengthen a lifetime, as far as the caller allows.
        unsafe {
            Ok(match region {
                Pageable::Memory(region) => {
                    Piece::Memory { _wired: std::mem::transmute::<Wired<'_>, Wired<'static>>(region.wire(range)?) }
                }
                Pageable::File(file) => Piece::File { _held: std::mem::transmute::<Held<'_>, Held<'static>>(file.hold(range)?) },
            })
        }
    }
}

/// Wired pages. They are unwired when this is dropped.
pub struct Pages {
    /// Before `memory`, which it borrows: fields are dropped in this order.
    wired: Vec<Piece>,
    _memory: Arc<Memory>,
}

impl Pages {
    /// Wires a range in pieces, and looks for signals between them.
    pub fn wire(py: Python<'_>, memory: &Arc<Memory>, range: Range<usize>) -> PyResult<Pages> {
        memory.here()?;
        let mut pages = Pages { wired: Vec::new(), _memory: memory.clone() };
        let mut at = range.start;
        while at < range.end {
            // pieces end where pages do, so that no page counts twice
            let end = ((at / PAGE_SIZE * PAGE_SIZE) + WIRE_BYTES).min(range.end);
            // SAFETY: the region is in the Arc next to the pieces, does not move, and is dropped after them.
            let wired = py.detach(|| unsafe { Piece::wire(&memory.region, at..end) }).map_err(error::from)?;
            pages.wired.push(wired);
            py.check_signals()?;
            at = end;
        }
        Ok(pages)
    }
}

/// Pages that stay in memory until this is released.
#[pyclass(frozen, module = "overspill._overspill")]
pub struct Wire {
    pages: Mutex<Option<Pages>>,
}

#[pymethods]
impl Wire {
    /// Lets the pages go out again. To release twice does nothing.
    fn release(&self) {
        drop(self.pages.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

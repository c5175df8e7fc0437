//! `_overspill.Pager`: a handle of a pager of the library's.

use crate::error;
use crate::region::Region;
use overspill::{Access, Delivery, DeviceSpec, FileOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// The most arrays of a pager. Each costs 300 bytes of tables at most while it is not used.
const REGIONS_MAX: u16 = 4096;

/// A pager: a memory budget, swap devices, and the threads that keep arrays within the budget.
#[pyclass(frozen, subclass, weakref, module = "overspill._overspill")]
pub struct Pager {
    /// `None` once it is closed. The lock is held only while Python's is.
    pager: Mutex<Option<overspill::Pager>>,
    delivery: Delivery,
    /// The process that made it.
    process: u32,
}

/// The names of deliveries in Python.
pub fn delivery_name(delivery: Delivery) -> &'static str {
    match delivery {
        Delivery::Threads => "threads",
        Delivery::InThread => "in-thread",
    }
}

fn device(text: &OsStr) -> PyResult<DeviceSpec> {
    let parsed = overspill::device_spec::parse(text);
    parsed.map_err(|why| PyValueError::new_err(format!("the swap device {text:?} {why}")))
}

impl Pager {
    /// The library's pager, unless this is a forked child or the pager is closed.
    pub fn here(&self) -> PyResult<overspill::Pager> {
        if self.process != std::process::id() {
            return Err(error::from(overspill::Error::Forked));
        }
        let pager = self.pager.lock().unwrap_or_else(PoisonError::into_inner);
        pager.clone().ok_or_else(|| error::raise("the pager is closed".into(), None))
    }
}

#[pymethods]
impl Pager {
    /// Makes a pager. `delivery` is `threads`, `in-thread` or `auto`: threads where that is allowed, else in-thread.
    /// `before_the_handler` is called before the handler for SIGBUS may be installed.
    #[new]
    #[pyo3(signature = (memory, swap, policy, delivery, encrypt, before_the_handler))]
    fn new(
        py: Python<'_>,
        memory: u64,
        swap: Vec<OsString>,
        policy: &str,
        delivery: &str,
        encrypt: bool,
        before_the_handler: &Bound<'_, PyAny>,
    ) -> PyResult<Pager> {
        let wanted = match delivery {
            "auto" => &[Delivery::Threads, Delivery::InThread][..],
            "threads" => &[Delivery::Threads],
            "in-thread" => &[Delivery::InThread],
            other => {
                return Err(PyValueError::new_err(format!("there is no delivery {other:?}; choose auto, threads or in-thread")));
            }
        };
        let mut builder = overspill::Pager::builder().memory(memory).policy(policy).encrypt(encrypt).regions_max(REGIONS_MAX);
        for text in &swap {
            builder = builder.swap_device(device(text)?);
        }
        for (at, &delivery) in wanted.iter().enumerate() {
            if delivery == Delivery::InThread {
                before_the_handler.call0()?;
            }
            let builder = builder.clone().delivery(delivery);
            match py.detach(|| builder.build()) {
                Ok(pager) => return Ok(Pager { pager: Mutex::new(Some(pager)), delivery, process: std::process::id() }),
                Err(overspill::Error::Userfaultfd(_)) if at + 1 < wanted.len() => {}
                Err(e) => return Err(error::from(e)),
            }
        }
        unreachable!("the last delivery returns")
    }

    #[getter]
    fn delivery(&self) -> &'static str {
        delivery_name(self.delivery)
    }

    #[getter]
    fn closed(&self) -> bool {
        self.pager.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Whether this is a forked child of the process that made it.
    #[getter]
    fn forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// Gives up this handle. The pager ends with its last array.
    fn close(&self, py: Python<'_>) {
        let pager = self.pager.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(pager));
    }

    #[getter]
    fn policy(&self) -> PyResult<String> {
        Ok(self.here()?.policy())
    }

    fn set_policy(&self, policy: &str) -> PyResult<()> {
        self.here()?.set_policy(policy).map_err(error::from)
    }

    /// All counters, by name.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let pager = self.here()?;
        let all = PyDict::new(py);
        let mut failed = None;
        pager.counters().for_each(|info, value| failed = failed.take().or(all.set_item(info.name, value).err()));
        failed.map_or(Ok(all), Err)
    }

    /// What each counter counts: name, unit, help.
    #[staticmethod]
    fn counters_help() -> Vec<(&'static str, &'static str, &'static str)> {
        overspill::COUNTERS.iter().map(|info| (info.name, info.unit, info.help)).collect()
    }

    fn first_loss(&self) -> PyResult<Option<String>> {
        Ok(self.here()?.first_loss())
    }

    fn metadata_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        let pager = self.here()?;
        Ok(py.detach(|| pager.metadata_bytes()))
    }

    fn swap_on(&self, py: Python<'_>, spec: OsString) -> PyResult<()> {
        let (pager, device) = (self.here()?, device(&spec)?);
        py.detach(|| pager.swap_on(device)).map_err(error::from)
    }

    /// Removes a device. `progress` is called ten times a second with the pages that were moved and those that are left. What it
    /// raises, or a signal handler of Python's, ends the swapoff: the device is then in use as before.
    fn swap_off(&self, py: Python<'_>, name: OsString, progress: Option<Py<PyAny>>) -> PyResult<(u64, u64)> {
        let pager = self.here()?;
        let mut raised = None;
        let done = py.detach(|| {
            pager.swap_off_while(&name, |so_far| {
                Python::attach(|py| {
                    let asked = py.check_signals().and_then(|()| match &progress {
                        Some(progress) => {
                            progress.call1(py, (so_far.moved_pages + so_far.memory_pages, so_far.left_pages)).map(drop)
                        }
                        None => Ok(()),
                    });
                    raised = asked.err();
                    raised.is_none()
                })
            })
        });
        match (raised, done) {
            (Some(raised), Err(_)) => Err(raised),
            (_, Ok(end)) => Ok((end.moved_pages + end.memory_pages, end.left_pages)),
            (None, Err(e)) => Err(error::from(e)),
        }
    }

    /// The devices in the order in which they are used.
    fn swaps<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let pager = self.here()?;
        let rows = pager.swaps().into_iter().map(|device| {
            let row = PyDict::new(py);
            row.set_item("name", OsStr::from_bytes(&device.name))?;
            row.set_item("kind", device.kind)?;
            row.set_item("state", device.state)?;
            row.set_item("priority", device.priority)?;
            for (name, value) in device.figures.each() {
                row.set_item(name, value)?;
            }
            Ok(row)
        });
        rows.collect()
    }

    /// The policies in use, and what became of their pages: first the pager's, then those that arrays have for themselves.
    fn policies<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let rows = self.here()?.policies().into_iter().map(|used| {
            let row = PyDict::new(py);
            row.set_item("policy", used.policy)?;
            row.set_item("region", used.region)?;
            used.counts.each().into_iter().try_for_each(|(name, pages)| row.set_item(name, pages))?;
            Ok(row)
        });
        rows.collect()
    }

    /// Memory of that many bytes, all zero.
    fn region(slf: &Bound<'_, Self>, bytes: usize, policy: Option<&str>) -> PyResult<Region> {
        let pager = slf.get().here()?;
        Region::new(slf, &pager, bytes, policy)
    }

    /// A part of a file as memory. The descriptor is copied; `path` is for messages. `mode` is as numpy.memmap's. `truncate`: the
    /// file becomes empty first.
    #[allow(clippy::too_many_arguments)] // Python's
    fn file_region(
        slf: &Bound<'_, Self>,
        fd: i32,
        path: PathBuf,
        mode: &str,
        offset: u64,
        bytes: usize,
        policy: Option<String>,
        truncate: bool,
    ) -> PyResult<Region> {
        let access = match mode {
            "r" => Access::ReadOnly,
            "r+" | "w+" => Access::ReadWrite,
            "c" => Access::CopyOnWrite,
            other => return Err(PyValueError::new_err(format!("there is no mode {other:?}"))),
        };
        let pager = slf.get().here()?;
        // SAFETY: the caller's descriptor, which is open while its file object lives, and so during this call.
        let file = File::from(unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()?);
        let mut options = FileOptions::new(access).offset(offset).len(bytes).truncate(truncate);
        if let Some(policy) = policy {
            options = options.policy(policy);
        }
        let opened = slf.py().detach(|| options.open_as(&pager, file, path)).map_err(error::from)?;
        Ok(Region::of_file(slf, &pager, opened, bytes))
    }
}

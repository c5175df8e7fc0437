//! Handlers of SIGBUS that Python programs install.

use crate::error;
use pyo3::prelude::*;
use std::time::Duration;

/// Calls `function`, which may install or remove a handler of SIGBUS, in such a way that it finds and leaves the handler below the
/// pager's. Returns what it returns.
#[pyfunction]
pub fn below(py: Python<'_>, function: Py<PyAny>) -> PyResult<Py<PyAny>> {
    // Python's lock is given up only to wait for another thread that is in here, and wants it. Without the pager's handler, to wait
    // for that lock would be to wait for threads that touch regions.
    let wait = || py.detach(|| std::thread::sleep(Duration::from_micros(200)));
    overspill::with_handler_below_after(wait, || function.call0(py)).map_err(error::from)?
}

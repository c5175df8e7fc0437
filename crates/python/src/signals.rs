//! Handlers of SIGBUS that Python programs install.

use crate::error;
use pyo3::prelude::*;

/// Calls `function`, which may install or remove a handler of SIGBUS, in such a way that it finds and leaves the handler below the
/// pager's. Returns what it returns.
#[pyfunction]
pub fn below(py: Python<'_>, function: Py<PyAny>) -> PyResult<Py<PyAny>> {
    // Python's lock is given up: another thread may be in here, and want it.
    py.detach(|| overspill::with_handler_below(|| Python::attach(|py| function.call0(py)))).map_err(error::from)?
}

//! Handlers of SIGBUS that Python programs install.

use crate::error;
use pyo3::prelude::*;

/// Calls `function`, which may install or remove a handler of SIGBUS, in such a way that it finds and leaves the handler below the
/// pager's. Returns what it returns.
#[pyfunction]
pub fn below<'py>(function: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    overspill::with_handler_below(|| function.call0()).map_err(error::from)?
}

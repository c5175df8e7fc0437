//! The exception for every error of the library's.

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// `overspill.Error`, a subclass of OSError.
pub fn class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    let made = CLASS.get_or_try_init(py, || {
        let doc = c"What went wrong, where, and what to try, in one sentence. `errno` is set where there is an error number.";
        PyErr::new_type(py, c"overspill.Error", Some(doc), Some(&py.get_type::<PyOSError>()), None)
    })?;
    Ok(made.bind(py))
}

/// The exception with that message.
pub fn raise(message: String, errno: Option<i32>) -> PyErr {
    Python::attach(|py| {
        let made = || {
            let error = class(py)?.call1((message,))?;
            if let Some(errno) = errno {
                error.setattr("errno", errno)?;
            }
            Ok(PyErr::from_value(error))
        };
        made().unwrap_or_else(|e: PyErr| e)
    })
}

/// The exception for an error of the library's.
pub fn from(e: overspill::Error) -> PyErr {
    use overspill::Error as E;
    let errno = match &e {
        E::Swap { source: e, .. }
        | E::File { source: e, .. }
        | E::Engine(e)
        | E::Key(e)
        | E::Resources(e)
        | E::Handler(e)
        | E::Map(e) => e.raw_os_error(),
        E::WiredTooMuch { .. } => Some(libc::ENOMEM),
        E::Lost => Some(libc::EIO),
        _ => None,
    };
    raise(message(&e), errno)
}

/// The library's messages, where they name what Python calls otherwise.
fn message(e: &overspill::Error) -> String {
    use overspill::Error as E;
    match e {
        E::Forked => {
            "this process was forked from the one that made the pager, and has neither the pager nor its arrays: use the start \
                      method spawn or forkserver, or make a pager after the fork"
                .into()
        }
        E::HandlerReplaced => {
            "the pager's handler for SIGBUS was replaced by native code: load that code before the first pager is \
                               made, or use delivery=\"threads\""
                .into()
        }
        E::TooManyRegions => {
            "the pager has as many arrays as it can have: delete some, or make one large array and use slices of it".into()
        }
        E::WiredTooMuch { bytes, available } => {
            format!(
                "{bytes} bytes cannot be wired: the budget allows {available} more; wire a slice at a time, or give the pager more memory"
            )
        }
        E::IsWired => "the range has pages that are wired: leave the `with` block of wire() first".into(),
        e => e.to_string(),
    }
}

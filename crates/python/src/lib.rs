//! The native part of the Python package `overspill`. `python/overspill` has the rest, and what people call.
//!
//! ```text
//!   python/overspill    arrays, helpers, the default pager, errors for people       no memory is owned there
//!   Pager, Region       handles of the library's; a region is the `base` of its array, so it lives as long as any view
//!   Wire                pages that stay in memory until it is released
//!   ArrayBase           numpy.ndarray whose buffer is wired while a system call may use it
//! ```
//!
//! Python's lock is released in every call that may wait for a device. No thread of the pager ever needs Python: a page is served
//! while any thread holds Python's lock.
//!
//! A forked child gets [`overspill::Error::Forked`] from every call. The library panics where it cannot return that error, so this
//! crate asks first (`pager::Pager::here`).
//!
//! What is left are panics that mean a defect. They end the interpreter in a release build, which has `panic = "abort"` as all of
//! this workspace has. To unwind into Python would leave the pager's locks and tables in the middle of a change, and the next touch
//! of any array would meet them.

mod array;
mod error;
mod pager;
mod region;
mod signals;
mod sizes;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
fn _overspill(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("Error", error::class(py)?)?;
    module.add_class::<pager::Pager>()?;
    module.add_class::<region::Region>()?;
    module.add_class::<region::Wire>()?;
    module.add("ArrayBase", array::class(py)?)?;
    module.add("PAGE_SIZE", overspill::PAGE_SIZE)?;
    module.add("MEMORY_MIN", overspill::MEMORY_BYTES_MIN)?;
    module.add("POLICIES", overspill::POLICIES.to_vec())?;
    module.add_function(wrap_pyfunction!(region::pager_of, module)?)?;
    module.add_function(wrap_pyfunction!(region::wire, module)?)?;
    module.add_function(wrap_pyfunction!(region::prefetch, module)?)?;
    module.add_function(wrap_pyfunction!(region::discard, module)?)?;
    module.add_function(wrap_pyfunction!(region::policy_of, module)?)?;
    module.add_function(wrap_pyfunction!(region::set_policy, module)?)?;
    module.add_function(wrap_pyfunction!(region::flush, module)?)?;
    module.add_function(wrap_pyfunction!(sizes::size_of_text, module)?)?;
    module.add_function(wrap_pyfunction!(signals::below, module)?)?;
    overspill::explain_forks();
    Ok(())
}

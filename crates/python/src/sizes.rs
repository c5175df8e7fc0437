//! Sizes as people write them.

use overspill::size;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The bytes of a size such as `4G` or `25%`, where a share is one of `total` bytes.
#[pyfunction(name = "size")]
pub fn size_of_text(text: &str, total: u64) -> PyResult<u64> {
    let size = size::parse(text).map_err(|why| PyValueError::new_err(format!("{text:?} {why}")))?;
    Ok(size.of(total))
}

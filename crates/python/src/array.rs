//! `ArrayBase`: numpy.ndarray whose buffer is wired while a system call may use it.
//!
//! With in-thread delivery the kernel cannot wait for a page that is out: `read(2)` into it fails with EFAULT, or reads less than
//! it should. So whoever asks an array for its bytes as system calls do gets them wired, until the buffer is released:
//!
//! ```text
//!   asks for                         who does so                                       gets
//!   PyBUF_SIMPLE, PyBUF_WRITABLE     f.write, f.readinto, sockets, hashlib             wired pages, or an error with the helper
//!   anything more (shape, format)    memoryview, numpy, Cython, pickle                  the array as it is
//! ```
//!
//! The second row is not wired because such views are kept, and are used by code that touches memory, which works anyway.

use crate::region::{self, Pages};
use crate::{error, region::Memory};
use pyo3::exceptions::{PyRuntimeError, PyUserWarning};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;
use std::ffi::{CString, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering::*};

type GetBuffer = unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::Py_buffer, c_int) -> c_int;

/// numpy.ndarray's own function.
static NUMPYS: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Makes the class.
pub fn class(py: Python<'_>) -> PyResult<Bound<'_, PyType>> {
    let ndarray = py.import("numpy")?.getattr("ndarray")?.cast_into::<PyType>()?;
    // SAFETY: a type, and the number of a slot.
    let numpys = unsafe { ffi::PyType_GetSlot(ndarray.as_type_ptr(), ffi::Py_bf_getbuffer) };
    if numpys.is_null() {
        return Err(PyRuntimeError::new_err("this numpy has no buffers"));
    }
    NUMPYS.store(numpys, Release);
    let mut slots = [
        ffi::PyType_Slot { slot: ffi::Py_bf_getbuffer, pfunc: get_buffer as *mut c_void },
        ffi::PyType_Slot { slot: ffi::Py_bf_releasebuffer, pfunc: release_buffer as *mut c_void },
        ffi::PyType_Slot { slot: 0, pfunc: ptr::null_mut() },
    ];
    let mut spec = ffi::PyType_Spec {
        name: c"overspill._overspill.ArrayBase".as_ptr(),
        basicsize: 0, // ndarray's
        itemsize: 0,
        flags: (ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_BASETYPE) as _,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: a specification whose functions have the types of their slots; the name is static. The call returns a new reference,
    // or null with an exception set.
    let class = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpecWithBases(&mut spec, ndarray.as_ptr()))? };
    Ok(class.cast_into::<PyType>()?)
}

unsafe extern "C" fn get_buffer(slf: *mut ffi::PyObject, view: *mut ffi::Py_buffer, flags: c_int) -> c_int {
    // SAFETY: stored by `class`, before there was an object of it; numpy's function has this type.
    let numpys: GetBuffer = unsafe { std::mem::transmute(NUMPYS.load(Acquire)) };
    // SAFETY: as the caller called this.
    let got = unsafe { numpys(slf, view, flags) };
    if got != 0 || (flags != ffi::PyBUF_SIMPLE && flags != ffi::PyBUF_WRITABLE) {
        return got;
    }
    // SAFETY: numpy has filled it in.
    let (start, len) = unsafe { ((*view).buf as usize, (*view).len as usize) };
    let Some(memory) = (if len > 0 { region::memory_at(start) } else { None }) else { return 0 };
    if !memory.needs_wires() {
        return 0;
    }
    // SAFETY: a slot is called with Python's lock held.
    let py = unsafe { Python::assume_attached() };
    match wire(py, &memory, start, len, flags) {
        Ok(pages) => {
            // SAFETY: numpy leaves this field to the exporter, and this class's release is called for the view.
            unsafe { (*view).internal = Box::into_raw(Box::new(pages)).cast() };
            0
        }
        Err(e) => {
            // SAFETY: a view that was filled in, and is released once; its `internal` is null.
            unsafe {
                (*view).internal = ptr::null_mut();
                ffi::PyBuffer_Release(view);
            }
            e.restore(py);
            -1
        }
    }
}

fn wire(py: Python<'_>, memory: &Arc<Memory>, start: usize, len: usize, flags: c_int) -> PyResult<Pages> {
    Pages::wire(py, memory, memory.offsets(start..start + len)?).map_err(|e| {
        let errno = e.value(py).getattr("errno").ok().and_then(|errno| errno.extract::<i32>().ok());
        if errno != Some(libc::ENOMEM) {
            return e;
        }
        let helper = if flags == ffi::PyBUF_WRITABLE { "overspill.readinto(file, array)" } else { "overspill.tofile(array, file)" };
        let text = format!(
            "a system call may need {len} bytes of this array at once, more than can be wired: use {helper}, which goes in pieces, or \
             a pager with delivery=\"threads\"; pass memoryview(array) to code that only computes"
        );
        if flags == ffi::PyBUF_WRITABLE {
            // Most callers put a TypeError of their own in the place of any error. So the message goes out as a warning, too.
            let warned = CString::new(text.clone()).map(|text| PyErr::warn(py, &py.get_type::<PyUserWarning>(), &text, 1));
            if let Ok(Err(raised)) = warned {
                return raised;
            }
        }
        error::raise(text, errno)
    })
}

unsafe extern "C" fn release_buffer(_: *mut ffi::PyObject, view: *mut ffi::Py_buffer) {
    // SAFETY: a view of this class's; `internal` is null, or what `get_buffer` put there, and a view is released once.
    let pages = unsafe { std::mem::replace(&mut (*view).internal, ptr::null_mut()) };
    if !pages.is_null() {
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(pages.cast::<Pages>()) });
    }
}

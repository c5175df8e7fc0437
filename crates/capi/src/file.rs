//! Regions of files.

use crate::border::{Failure, Outcome, bytes, call, free, give, hand_out, handle, here, place, policy, wired, within};
use overspill::{Access, FileOptions, FileRegion, Pager};
use std::ffi::{c_char, c_int, c_void};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock};

/// `OVERSPILL_REST`.
const REST: usize = usize::MAX;
/// `OVERSPILL_CREATE`.
const CREATE: c_int = 4;

/// `overspill_file`. What does not change, and the size, are outside of the lock: a forked child must not wait for it.
pub struct File {
    pager: Pager,
    data: *mut c_void,
    size: AtomicUsize,
    capacity: usize,
    direct: bool,
    /// Exclusive for calls that give pages up or change the size.
    region: RwLock<FileRegion>,
}

/// The options that C asks for.
fn options(access: c_int) -> Result<FileOptions, Failure> {
    let with = |access| Ok(FileOptions::new(access));
    match access {
        0 => with(Access::ReadOnly),
        1 => with(Access::ReadWrite),
        2 => with(Access::CopyOnWrite),
        n if n == 1 | CREATE => Ok(FileOptions::new(Access::ReadWrite).create(true)),
        n => Err(Failure::argument(format!("there is no access {n}"))),
    }
}

/// A whole file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_file_open(
    pager: *const Pager,
    path: *const c_char,
    access: c_int,
    file: *mut *mut File,
) -> c_int {
    // SAFETY: the header's contract.
    unsafe { overspill_file_open_part(pager, path, access, 0, REST, 0, file) }
}

/// A part of a file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_file_open_part(
    pager: *const Pager,
    path: *const c_char,
    access: c_int,
    offset: u64,
    length: usize,
    capacity: usize,
    file: *mut *mut File,
) -> c_int {
    call(|| {
        place(file)?;
        // SAFETY: the header's contract.
        let (pager, path) = unsafe { (here(handle(pager, "pager")?)?, bytes(path, "path")?) };
        let mut options = options(access)?.offset(offset).capacity(capacity);
        if length != REST {
            options = options.len(length);
        }
        let region = options.open(pager, Path::new(path))?;
        let new = File {
            pager: pager.clone(),
            data: region.as_ptr().cast_mut().cast(),
            size: region.len().into(),
            capacity: region.capacity(),
            direct: region.is_direct(),
            region: RwLock::new(region),
        };
        // SAFETY: the header's contract.
        unsafe { give(file, new) };
        Ok(())
    })
}

/// Ends it, and says whether all of it has reached the file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_file_close(file: *mut File) -> c_int {
    call(|| {
        // SAFETY: the header's contract.
        unsafe { handle(file, "file")? };
        // SAFETY: the header's contract: it is from `give`, and nobody uses it any more.
        let file = unsafe { Box::from_raw(file) };
        Ok(file.region.into_inner().unwrap_or_else(PoisonError::into_inner).close()?)
    })
}

/// Ends it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_file_free(file: *mut File) {
    // SAFETY: the header's contract.
    unsafe { free(file) };
}

/// Where it begins.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_file_data(file: *const File) -> *mut c_void {
    // SAFETY: the header's contract.
    unsafe { file.as_ref() }.map_or(std::ptr::null_mut(), |file| file.data)
}

/// Its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_file_size(file: *const File) -> usize {
    // SAFETY: the header's contract.
    unsafe { file.as_ref() }.map_or(0, |file| file.size.load(Relaxed))
}

/// How large it may become.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_file_capacity(file: *const File) -> usize {
    // SAFETY: the header's contract.
    unsafe { file.as_ref() }.map_or(0, |file| file.capacity)
}

/// Whether the kernel does not cache it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_file_is_direct(file: *const File) -> bool {
    // SAFETY: the header's contract.
    unsafe { file.as_ref() }.is_some_and(|file| file.direct)
}

/// The range, if it lies within the region.
fn range(region: &FileRegion, offset: usize, length: usize) -> Result<Range<usize>, Failure> {
    let length = if length == REST { region.len().saturating_sub(offset) } else { length };
    within(offset, length, region.len())
}

/// Makes a call about a range of a region of this process.
///
/// # Safety
/// The header's contract.
unsafe fn ranged(file: *const File, offset: usize, length: usize, run: impl FnOnce(&FileRegion, Range<usize>) -> Outcome) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let file = unsafe { handle(file, "file")? };
        here(&file.pager)?;
        let region = file.region.read().unwrap_or_else(PoisonError::into_inner);
        run(&region, range(&region, offset, length)?)
    })
}

/// The same, for calls that must be alone.
///
/// # Safety
/// The header's contract.
unsafe fn alone(file: *const File, run: impl FnOnce(&mut FileRegion) -> Outcome) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let file = unsafe { handle(file, "file")? };
        here(&file.pager)?;
        let mut region = file.region.write().unwrap_or_else(PoisonError::into_inner);
        run(&mut region)?;
        file.size.store(region.len(), Relaxed);
        Ok(())
    })
}

/// Gives it a policy of its own, or the pager's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_file_set_policy(file: *const File, name: *const c_char) -> c_int {
    let set = |region: &FileRegion, _| {
        // SAFETY: the header's contract.
        Ok(unsafe { policy(name)? }.map_or_else(|| region.reset_policy(), |policy| region.set_policy(&policy))?)
    };
    // SAFETY: the header's contract.
    unsafe { ranged(file, 0, 0, set) }
}

/// Its policy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_file_policy(file: *const File, to: *mut c_char, size: usize, length: *mut usize) -> c_int {
    // SAFETY: the header's contract.
    unsafe { ranged(file, 0, 0, |region, _| hand_out(&region.policy(), to, size, length)) }
}

/// Copies bytes out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_file_read_at(file: *const File, offset: usize, to: *mut c_void, length: usize) -> c_int {
    // SAFETY: the header's contract.
    unsafe { exact(file, offset, length, to, |region, range| Ok(region.read_at_shared(to.cast(), range.len(), range.start)?)) }
}

/// Copies bytes in.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_file_write_at(file: *const File, offset: usize, from: *const c_void, length: usize) -> c_int {
    // SAFETY: the header's contract: nobody else uses the range.
    unsafe { exact(file, offset, length, from, |region, range| Ok(region.write_at_shared(from.cast(), range.len(), range.start)?)) }
}

/// As [`ranged`], of as many bytes as C has at `buffer`.
///
/// # Safety
/// The header's contract.
unsafe fn exact(
    file: *const File,
    offset: usize,
    length: usize,
    buffer: *const c_void,
    run: impl FnOnce(&FileRegion, Range<usize>) -> Outcome,
) -> c_int {
    let run = |region: &FileRegion, range: Range<usize>| {
        if range.len() != length {
            return Err(Failure::argument("a copy has a length of its own"));
        }
        if range.is_empty() {
            return Ok(());
        }
        if buffer.is_null() {
            return Err(Failure::argument("the buffer is NULL"));
        }
        run(region, range)
    };
    // SAFETY: the caller's promise.
    unsafe { ranged(file, offset, length, run) }
}

/// Writes changes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_file_flush(file: *const File, offset: usize, length: usize) -> c_int {
    // SAFETY: the header's contract.
    unsafe { ranged(file, offset, length, |region, range| Ok(region.flush(range)?)) }
}

/// Makes it longer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_file_grow(file: *const File, bytes: usize) -> c_int {
    // SAFETY: the header's contract.
    unsafe { alone(file, |region| Ok(region.grow(bytes)?)) }
}

/// Reads it again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_file_reload(file: *const File, offset: usize, length: usize) -> c_int {
    // SAFETY: the header's contract.
    unsafe { alone(file, |region| Ok(region.reload(range(region, offset, length)?)?)) }
}

/// Gives its blocks back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_file_punch(file: *const File, offset: usize, length: usize) -> c_int {
    // SAFETY: the header's contract.
    unsafe { alone(file, |region| Ok(region.punch(range(region, offset, length)?)?)) }
}

/// Reads ahead.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_file_prefetch(file: *const File, offset: usize, length: usize) -> c_int {
    let prefetch = |region: &FileRegion, range| {
        region.prefetch(range);
        Ok(())
    };
    // SAFETY: the header's contract.
    unsafe { ranged(file, offset, length, prefetch) }
}

/// Wires pages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_file_wire(file: *const File, offset: usize, length: usize, wire: *mut u64) -> c_int {
    // SAFETY: the header's contract.
    let keep = |region: &FileRegion, range| unsafe { wired(wire, || Ok(region.hold(range)?.keep_as())) };
    // SAFETY: the header's contract.
    unsafe { ranged(file, offset, length, keep) }
}

/// Unwires them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_file_unwire(file: *const File, wire: u64) -> c_int {
    let unwire = |region: &FileRegion, _| if region.unwire_kept(wire) { Ok(()) } else { Err(Failure::not_wired(wire)) };
    // SAFETY: the header's contract.
    unsafe { ranged(file, 0, 0, unwire) }
}

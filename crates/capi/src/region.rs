//! Regions.

use crate::border::{Failure, Outcome, call, free, give, hand_out, handle, here, place, policy, wired, within};
use overspill::{Pager, Region};
use std::ffi::{c_char, c_int, c_void};
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// A new region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_region_new(pager: *const Pager, bytes: usize, region: *mut *mut Region) -> c_int {
    call(|| {
        place(region)?;
        // SAFETY: the header's contract.
        unsafe { give(region, here(handle(pager, "pager")?)?.region(bytes)?) };
        Ok(())
    })
}

/// Unmaps a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_region_free(region: *mut Region) {
    // SAFETY: the header's contract.
    unsafe { free(region) };
}

/// Where it begins.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_region_data(region: *const Region) -> *mut c_void {
    // SAFETY: the header's contract.
    unsafe { region.as_ref() }.map_or(std::ptr::null_mut(), |region| region.as_ptr().cast_mut().cast())
}

/// Its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_region_size(region: *const Region) -> usize {
    // SAFETY: the header's contract.
    unsafe { region.as_ref() }.map_or(0, Region::len)
}

/// Makes a call about a range of a region of this process.
///
/// # Safety
/// The header's contract.
unsafe fn ranged(region: *const Region, offset: usize, length: usize, run: impl FnOnce(&Region, Range<usize>) -> Outcome) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let region = unsafe { handle(region, "region")? };
        here(region.pager())?;
        run(region, within(offset, length, region.len())?)
    })
}

/// Gives it a policy of its own, or the pager's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_region_set_policy(region: *const Region, name: *const c_char) -> c_int {
    let set = |region: &Region, _| {
        // SAFETY: the header's contract.
        Ok(unsafe { policy(name)? }.map_or_else(|| region.reset_policy(), |policy| region.set_policy(&policy))?)
    };
    // SAFETY: the header's contract.
    unsafe { ranged(region, 0, 0, set) }
}

/// Its policy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_region_policy(region: *const Region, to: *mut c_char, size: usize, length: *mut usize) -> c_int {
    // SAFETY: the header's contract.
    unsafe { ranged(region, 0, 0, |region, _| hand_out(&region.policy(), to, size, length)) }
}

/// Reads ahead.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_region_prefetch(region: *const Region, offset: usize, length: usize) -> c_int {
    // SAFETY: the header's contract.
    unsafe { overspill_region_advise(region, offset, length, 0) }
}

/// Gives content up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_region_discard(region: *const Region, offset: usize, length: usize) -> c_int {
    // SAFETY: the header's contract.
    unsafe { overspill_region_advise(region, offset, length, 1) }
}

/// Both.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_region_advise(region: *const Region, offset: usize, length: usize, advice: c_int) -> c_int {
    let advise = |region: &Region, range: Range<usize>| match advice {
        0 => {
            region.prefetch(range);
            Ok(())
        }
        // SAFETY: the header says that nobody else uses the range.
        1 => unsafe { region.discard_shared(range) }.map_err(Failure::from),
        n => Err(Failure::argument(format!("there is no advice {n}"))),
    };
    // SAFETY: the header's contract.
    unsafe { ranged(region, offset, length, advise) }
}

/// Wires pages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_region_wire(region: *const Region, offset: usize, length: usize, wire: *mut u64) -> c_int {
    // SAFETY: the header's contract.
    let keep = |region: &Region, range| unsafe { wired(wire, || Ok(region.wire(range)?.keep_as())) };
    // SAFETY: the header's contract.
    unsafe { ranged(region, offset, length, keep) }
}

/// Unwires them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_region_unwire(region: *const Region, wire: u64) -> c_int {
    let unwire = |region: &Region, _| if region.unwire_kept(wire) { Ok(()) } else { Err(Failure::not_wired(wire)) };
    // SAFETY: the header's contract.
    unsafe { ranged(region, 0, 0, unwire) }
}

/// Transfers between a region and a file.
///
/// # Safety
/// The header's contract.
unsafe fn transfer(
    region: *const Region,
    offset: usize,
    length: usize,
    fd: c_int,
    done: *mut usize,
    run: impl FnOnce(&Region, BorrowedFd<'_>, Range<usize>) -> std::io::Result<usize>,
) -> c_int {
    let with_file = |region: &Region, range| {
        if fd < 0 {
            return Err(std::io::Error::from_raw_os_error(libc::EBADF).into());
        }
        // SAFETY: not -1; C has it open for the length of the call, else the kernel says so.
        let n = run(region, unsafe { BorrowedFd::borrow_raw(fd) }, range)?;
        if !done.is_null() {
            // SAFETY: the header's contract.
            unsafe { done.write(n) };
        }
        Ok(())
    };
    // SAFETY: the header's contract.
    unsafe { ranged(region, offset, length, with_file) }
}

/// From a file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_region_read_at(
    region: *const Region,
    offset: usize,
    length: usize,
    fd: c_int,
    at: u64,
    done: *mut usize,
) -> c_int {
    // SAFETY: the header's contract: nobody else uses the range.
    unsafe { transfer(region, offset, length, fd, done, |region, file, range| region.read_at_shared(file, range, at)) }
}

/// To a file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_region_write_at(
    region: *const Region,
    offset: usize,
    length: usize,
    fd: c_int,
    at: u64,
    done: *mut usize,
) -> c_int {
    // SAFETY: the header's contract.
    unsafe { transfer(region, offset, length, fd, done, |region, file, range| region.write_at(file, range, at)) }
}

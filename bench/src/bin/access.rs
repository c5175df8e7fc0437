//! The access patterns on plain anonymous memory, paged by the kernel or by `overspill run`.
//!
//! Huge pages are off, because neither pager moves them, and because the kernel's first touch could not be compared otherwise.

use overspill_bench::options::Options;
use overspill_bench::patterns;
use std::io;
use std::process::ExitCode;
use std::sync::atomic::AtomicU64;

fn main() -> ExitCode {
    let options = Options::from_args();
    let memory = match anonymous(options.size) {
        Ok(memory) => memory,
        Err(error) => {
            eprintln!("access: {} bytes cannot be mapped: {error}", options.size);
            return ExitCode::from(2);
        }
    };
    match patterns::run(&options, memory, |line| println!("{line}")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(wrong) => {
            eprintln!("access: {wrong}");
            ExitCode::from(3)
        }
    }
}

/// Maps `size` bytes of private memory, for the life of the process.
fn anonymous(size: usize) -> io::Result<&'static [AtomicU64]> {
    // SAFETY: a new private mapping at an address of the kernel's choice changes no memory that is in use.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the range is the mapping just made; the advice changes no contents.
    if unsafe { libc::madvise(start, size, libc::MADV_NOHUGEPAGE) } != 0 {
        // EINVAL: a kernel without huge pages, which is just as well.
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) {
            return Err(error);
        }
    }
    // SAFETY: the mapping is page-aligned, `size` bytes long, zeroed (a valid AtomicU64 everywhere), readable and writable, and
    // never unmapped; only this slice refers to it.
    Ok(unsafe { std::slice::from_raw_parts(start.cast(), size / size_of::<AtomicU64>()) })
}

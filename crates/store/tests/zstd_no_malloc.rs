//! zstd is C code that could call malloc, and in a paged process malloc's heap is paged. The functions below replace `malloc` and
//! its kin in this program, also for the C code, and count the calls.

use overspill_store::PageBytes;
use overspill_store::packing::{Algorithm, Packed, Packer, Unpacker};
use overspill_store::zstd::LEVELS;
use overspill_vm::types::PAGE_SIZE;
use std::cell::Cell;
use std::ffi::c_void;

// Counted per thread, because the test runner's own thread may allocate at any time. (A constant without a destructor: no malloc.)
thread_local!(static CALLS: Cell<u64> = const { Cell::new(0) });

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(old: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_free(old: *mut c_void);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    CALLS.set(CALLS.get() + 1);
    // SAFETY: the caller must keep the contract of libc's function.
    unsafe { __libc_malloc(size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    CALLS.set(CALLS.get() + 1);
    // SAFETY: as above.
    unsafe { __libc_calloc(count, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(old: *mut c_void, size: usize) -> *mut c_void {
    CALLS.set(CALLS.get() + 1);
    // SAFETY: as above.
    unsafe { __libc_realloc(old, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn free(old: *mut c_void) {
    CALLS.set(CALLS.get() + 1);
    // SAFETY: as above.
    unsafe { __libc_free(old) }
}

fn calls() -> u64 {
    CALLS.get()
}

/// In turns, pages that compress well, hardly, and not at all.
fn page(n: usize) -> PageBytes {
    let mut x = n as u64;
    std::array::from_fn(|i| {
        x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        if i < n % 8 * 585 { (x >> 56) as u8 } else { (i / 30) as u8 }
    })
}

#[test]
fn packing_and_unpacking_never_allocate() {
    // SAFETY: a context that is made and freed, to show that the library's own allocations are counted.
    let seen = unsafe {
        let before = calls();
        zstd_sys::ZSTD_freeCCtx(zstd_sys::ZSTD_createCCtx());
        calls() - before
    };
    assert!(seen >= 2, "calls of C code are counted");
    for level in LEVELS {
        let algorithm = Algorithm::Zstd(level);
        let (mut packer, mut unpacker) = (Packer::new(algorithm), Unpacker::new(algorithm));
        let (mut packed, mut damaged, mut right) = (0, 0, true);
        let before = calls();
        for n in 0..100 {
            let page = page(n);
            let Packed::Bytes(bytes) = packer.pack(&page) else { continue };
            packed += 1;
            let mut back = [0; PAGE_SIZE];
            right &= unpacker.unpack(bytes, &mut back).is_ok() && back == page;
            let mut bad = [0; PAGE_SIZE];
            bad[..bytes.len()].copy_from_slice(bytes);
            bad[n % bytes.len()] ^= 1 << (n % 8);
            damaged += unpacker.unpack(&bad[..bytes.len()], &mut back).is_err() as u64;
        }
        let during = calls() - before;
        assert_eq!(during, 0, "level {level}");
        assert!(right && packed > 50 && damaged > 0, "level {level}: {packed} packed, {damaged} found damaged");
    }
}

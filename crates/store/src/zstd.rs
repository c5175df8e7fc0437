//! Zstandard for pages, in memory that is allocated once.
//!
//! The C library usually takes memory from malloc, and in a paged process that heap is paged. *Static contexts* do not: they have a
//! workspace from the caller, and return an error where another context would allocate ("static cctx: no resize"). This module uses
//! the one-shot calls on such contexts. In zstd 1.5.7 only `ZSTD_resetCCtx_internal` could resize, and it refuses if `staticSize`
//! is set. The decoder has all of its tables in the context, and buffers only when it streams. The library as it is built here
//! (without threads) has no thread-local storage, no lock and no lazy initialisation: it asks `cpuid` when a context is made, and
//! keeps the answer there. `tests/zstd_no_malloc.rs` counts calls of malloc. Its trace hooks (`ZSTD_trace_compress_begin` and three
//! more) are weak symbols: they are called only if the program defines and exports functions of these names.
//!
//! This is the only unsafe code of the crate. From damaged bytes the decoder makes an error or wrong content, as the pool requires.
//! We rely on zstd's own fuzzing that it writes nowhere else, and the bytes come from our own memory.
//!
//! Source: Collet, Kucherawy 2021, RFC 8878. `zstd.h`, section "Static allocation".

use crate::PageBytes;
use core::ptr::NonNull;
use overspill_vm::types::PAGE_SIZE;
use zstd_sys::{
    ZSTD_CCtx, ZSTD_DCtx, ZSTD_compressCCtx, ZSTD_decompressDCtx, ZSTD_estimateCCtxSize_usingCParams, ZSTD_estimateDCtxSize,
    ZSTD_getCParams, ZSTD_initStaticCCtx, ZSTD_initStaticDCtx, ZSTD_isError,
};

/// The possible levels.
pub const LEVELS: core::ops::RangeInclusive<u8> = 1..=19;

/// A context's memory, aligned to eight bytes as the library asks for.
type Workspace = Box<[u64]>;

fn workspace(bytes: usize) -> Workspace {
    vec![0; bytes.div_ceil(size_of::<u64>())].into()
}

/// Packs pages.
pub struct Compressor {
    context: NonNull<ZSTD_CCtx>,
    level: u8,
    /// The memory of the context. Touched only through `context`.
    workspace: Workspace,
}

// SAFETY: the context lies in the workspace, which this owns. It points only there and to constants, and belongs to no thread.
unsafe impl Send for Compressor {}

impl Compressor {
    /// Allocates its workspace: 72 KiB at level 1, 88 KiB at level 3, more above.
    ///
    /// # Panics
    /// If the level is not one of [`LEVELS`].
    pub fn new(level: u8) -> Compressor {
        assert!(LEVELS.contains(&level), "zstd has no level {level}");
        // SAFETY: both functions only compute a number.
        let bytes = unsafe { ZSTD_estimateCCtxSize_usingCParams(ZSTD_getCParams(level.into(), PAGE_SIZE as u64, 0)) };
        let mut workspace = workspace(bytes);
        // SAFETY: the workspace is aligned to eight and long enough, and used by this context alone: both are in the same value.
        let context = unsafe { ZSTD_initStaticCCtx(workspace.as_mut_ptr().cast(), size_of_val(&*workspace)) };
        Compressor { context: NonNull::new(context).expect("it is aligned and large enough"), level, workspace }
    }

    /// Its memory, in bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.workspace)
    }

    /// Packs a page into `out`. Returns the length, or `None` if there is not enough room. Does not allocate.
    pub fn compress(&mut self, page: &PageBytes, out: &mut [u8]) -> Option<usize> {
        // SAFETY: the context that `new` made, borrowed exclusively; both buffers with their lengths, and they do not overlap.
        let n = unsafe {
            ZSTD_compressCCtx(
                self.context.as_ptr(),
                out.as_mut_ptr().cast(),
                out.len(),
                page.as_ptr().cast(),
                PAGE_SIZE,
                self.level.into(),
            )
        };
        length(n)
    }
}

/// Unpacks pages.
pub struct Decompressor {
    context: NonNull<ZSTD_DCtx>,
    /// Where the context lies. Never touched from here on but through `context`.
    workspace: Workspace,
}

// SAFETY: as for `Compressor`.
unsafe impl Send for Decompressor {}

impl Default for Decompressor {
    fn default() -> Self {
        Self::new()
    }
}

impl Decompressor {
    /// Allocates its workspace: 94 KiB.
    pub fn new() -> Decompressor {
        // SAFETY: returns a constant.
        let mut workspace = workspace(unsafe { ZSTD_estimateDCtxSize() });
        // SAFETY: as in `Compressor::new`.
        let context = unsafe { ZSTD_initStaticDCtx(workspace.as_mut_ptr().cast(), size_of_val(&*workspace)) };
        Decompressor { context: NonNull::new(context).expect("it is aligned and large enough"), workspace }
    }

    /// Its memory, in bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.workspace)
    }

    /// Unpacks bytes from [`Compressor::compress`]. Returns how many bytes of `page` were written, or `None` if the input is
    /// damaged. Does not allocate.
    pub fn decompress(&mut self, bytes: &[u8], page: &mut PageBytes) -> Option<usize> {
        // SAFETY: the context that `new` made, borrowed exclusively; both buffers with their lengths, and they do not overlap.
        let n = unsafe {
            ZSTD_decompressDCtx(self.context.as_ptr(), page.as_mut_ptr().cast(), PAGE_SIZE, bytes.as_ptr().cast(), bytes.len())
        };
        length(n)
    }
}

/// A length that the library returned, if it is not an error.
fn length(n: usize) -> Option<usize> {
    // SAFETY: a comparison.
    (unsafe { ZSTD_isError(n) } == 0).then_some(n)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    fn page(n: usize) -> PageBytes {
        let mut x = n as u64;
        core::array::from_fn(|i| {
            x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            if i < n % 8 * 585 { (x >> 56) as u8 } else { (i / 30) as u8 }
        })
    }

    /// The estimated workspace is enough at each level, again and again, whatever the pages were before.
    #[test]
    fn a_workspace_of_the_estimate_suffices_at_all_levels() {
        let mut decompressor = Decompressor::new();
        for level in LEVELS {
            let mut compressor = Compressor::new(level);
            for n in (0..40).chain([7, 0, 7]) {
                let mut out = [0; 4000];
                let Some(len) = compressor.compress(&page(n), &mut out) else {
                    assert_eq!(n % 8, 7, "level {level}, page {n}: only what is noise does not get smaller");
                    continue;
                };
                let mut back = [1; PAGE_SIZE];
                assert_eq!(decompressor.decompress(&out[..len], &mut back), Some(PAGE_SIZE));
                assert!(back == page(n), "level {level}, page {n}");
                assert_eq!(decompressor.decompress(&out[..len - 1], &mut back), None, "cut off");
                assert_eq!(compressor.compress(&page(n), &mut out[..len / 2]), None, "no room");
            }
        }
    }
}

//! Zstandard for pages, in memory that is allocated once.
//!
//! The C library takes memory from malloc, which in a paged process is the heap that is paged, but for its *static contexts*: those
//! have a workspace that the caller gives them, and answer an error where another context would allocate ("static cctx: no
//! resize"). What is used here is the one-shot calls on such contexts. Of these, in zstd 1.5.7: `ZSTD_resetCCtx_internal` alone
//! could resize, and refuses if `staticSize` is set; the decoder has all of its tables in the context, and buffers only when it
//! streams. The library as it is built here (without threads) has no thread-local storage, no lock and no lazy initialisation: what
//! the CPU offers is asked by `cpuid` when a context is made and kept in it. `tests/zstd_no_malloc.rs` counts calls of malloc. Its
//! trace hooks (`ZSTD_trace_compress_begin` and three more) are weak symbols: only a program that defines and exports functions of
//! these names would have them called here.
//!
//! The only unsafe code of the crate. What the decoder makes of damaged bytes is an error or wrong content, as the pool's head
//! demands; that it writes nowhere else is for zstd's own fuzzing to say, and the bytes are those of our own memory.
//!
//! Source: Collet, Kucherawy 2021, RFC 8878. `zstd.h`, section "Static allocation".

use crate::PageBytes;
use core::ptr::NonNull;
use overspill_vm::types::PAGE_SIZE;
use zstd_sys::{
    ZSTD_CCtx, ZSTD_DCtx, ZSTD_compressCCtx, ZSTD_decompressDCtx, ZSTD_estimateCCtxSize_usingCParams, ZSTD_estimateDCtxSize,
    ZSTD_getCParams, ZSTD_initStaticCCtx, ZSTD_initStaticDCtx, ZSTD_isError,
};

/// The levels there are.
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
    /// Where the context lies. Never touched from here on but through `context`.
    workspace: Workspace,
}

// SAFETY: the context lies in the workspace, which this owns, points nowhere else (but to constants), and is of no thread.
unsafe impl Send for Compressor {}

impl Compressor {
    /// Allocates its workspace: 72 KiB at level 1, 88 KiB at level 3, more above.
    ///
    /// # Panics
    /// If the level is not one of [`LEVELS`].
    pub fn new(level: u8) -> Compressor {
        assert!(LEVELS.contains(&level), "zstd has no level {level}");
        // SAFETY: two functions of their arguments.
        let bytes = unsafe { ZSTD_estimateCCtxSize_usingCParams(ZSTD_getCParams(level.into(), PAGE_SIZE as u64, 0)) };
        let mut workspace = workspace(bytes);
        // SAFETY: aligned to eight, so long, and nobody else's as long as the context lives: it is in the same value.
        let context = unsafe { ZSTD_initStaticCCtx(workspace.as_mut_ptr().cast(), size_of_val(&*workspace)) };
        Compressor { context: NonNull::new(context).expect("it is aligned and large enough"), level, workspace }
    }

    /// Its memory, in bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.workspace)
    }

    /// Packs a page into `out`; says how long that is, or nothing if there is not enough room. Does not allocate.
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
        // SAFETY: it answers a constant.
        let mut workspace = workspace(unsafe { ZSTD_estimateDCtxSize() });
        // SAFETY: as in `Compressor::new`.
        let context = unsafe { ZSTD_initStaticDCtx(workspace.as_mut_ptr().cast(), size_of_val(&*workspace)) };
        Decompressor { context: NonNull::new(context).expect("it is aligned and large enough"), workspace }
    }

    /// Its memory, in bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.workspace)
    }

    /// Unpacks what [`Compressor::compress`] made; says how many bytes of `page` that were, or nothing if the bytes are damaged.
    /// Does not allocate.
    pub fn decompress(&mut self, bytes: &[u8], page: &mut PageBytes) -> Option<usize> {
        // SAFETY: the context that `new` made, borrowed exclusively; both buffers with their lengths, and they do not overlap.
        let n = unsafe {
            ZSTD_decompressDCtx(self.context.as_ptr(), page.as_mut_ptr().cast(), PAGE_SIZE, bytes.as_ptr().cast(), bytes.len())
        };
        length(n)
    }
}

/// A length that the library answered, if it is no error.
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

    /// The estimate is what the library asks for, at each level, again and again, whatever the pages were before.
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

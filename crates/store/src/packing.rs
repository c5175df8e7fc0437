//! Packs and unpacks pages. This is apart from the pool, so that it needs no lock on the pool.
//!
//! LZ4 unpacks in about a microsecond; zstd takes several, and packs tighter. Nothing allocates after set-up. Damaged bytes give an
//! error or wrong content, and nothing worse. The caller has the page's checksum, which tells whether the content is right.
//!
//! Source: Ziv, Lempel 1977; Collet, LZ4.

use crate::PageBytes;
use crate::pool::PACKED_BYTES_MAX;
use crate::zstd::{Compressor, Decompressor};
use core::fmt;
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use overspill_vm::types::PAGE_SIZE;

/// Compressors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Algorithm {
    /// Fast both ways.
    #[default]
    Lz4,
    /// Tighter and slower, at this level, one of [`crate::zstd::LEVELS`].
    Zstd(u8),
}

impl Algorithm {
    /// zstd at its default level.
    pub const ZSTD: Algorithm = Algorithm::Zstd(1);
}

/// A packed page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packed<'a> {
    /// The page is this word, repeated.
    Same(u64),
    /// These bytes, at most [`PACKED_BYTES_MAX`].
    Bytes(&'a [u8]),
    /// It does not get small enough.
    Incompressible,
}

impl Packed<'_> {
    /// The length of the content to keep, in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Packed::Same(_) => 8,
            Packed::Bytes(bytes) => bytes.len() as u64,
            Packed::Incompressible => 0,
        }
    }
}

enum Pack {
    Lz4(Box<CompressTable>),
    Zstd(Compressor),
}

/// Packs pages. One per thread.
pub struct Packer {
    pack: Pack,
    out: Vec<u8>,
}

impl fmt::Debug for Packer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packer({} bytes)", self.bytes())
    }
}

impl Packer {
    /// Allocates all memory that it will need: 21 KiB for LZ4.
    ///
    /// # Panics
    /// If zstd has no such level.
    pub fn new(algorithm: Algorithm) -> Packer {
        match algorithm {
            Algorithm::Lz4 => {
                Packer { pack: Pack::Lz4(CompressTable::small().into()), out: vec![0; get_maximum_output_size(PAGE_SIZE)] }
            }
            Algorithm::Zstd(level) => Packer { pack: Pack::Zstd(Compressor::new(level)), out: vec![0; PACKED_BYTES_MAX] },
        }
    }

    /// Its memory, in bytes.
    pub fn bytes(&self) -> usize {
        self.out.len()
            + match &self.pack {
                Pack::Lz4(_) => size_of::<CompressTable>(),
                Pack::Zstd(compressor) => compressor.bytes(),
            }
    }

    /// Packs a page. Does not allocate.
    pub fn pack(&mut self, page: &PageBytes) -> Packed<'_> {
        let words = page.as_chunks::<8>().0;
        if words.iter().all(|w| *w == words[0]) {
            return Packed::Same(u64::from_ne_bytes(words[0]));
        }
        let len = match &mut self.pack {
            Pack::Lz4(table) => {
                let len = compress_into_with_table(page, &mut self.out, table).expect("room for the worst case");
                (len <= PACKED_BYTES_MAX).then_some(len)
            }
            Pack::Zstd(compressor) => compressor.compress(page, &mut self.out),
        };
        len.map_or(Packed::Incompressible, |len| Packed::Bytes(&self.out[..len]))
    }
}

/// Unpacks [`Packed::Bytes`] of the same algorithm. One per thread.
pub enum Unpacker {
    /// Needs no memory.
    Lz4,
    /// Has tables.
    Zstd(Decompressor),
}

impl Unpacker {
    /// Allocates all memory that it will need: nothing for LZ4, 94 KiB for zstd.
    pub fn new(algorithm: Algorithm) -> Unpacker {
        match algorithm {
            Algorithm::Lz4 => Unpacker::Lz4,
            Algorithm::Zstd(_) => Unpacker::Zstd(Decompressor::new()),
        }
    }

    /// Its memory, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Unpacker::Lz4 => 0,
            Unpacker::Zstd(decompressor) => decompressor.bytes(),
        }
    }

    /// Unpacks. Does not allocate.
    ///
    /// # Errors
    /// [`Damaged`] if these are not the bytes of a page. Then `page` may have any content.
    pub fn unpack(&mut self, bytes: &[u8], page: &mut PageBytes) -> Result<(), Damaged> {
        let len = match self {
            Unpacker::Lz4 => decompress_into(bytes, page).ok(),
            Unpacker::Zstd(decompressor) => decompressor.decompress(bytes, page),
        };
        if len == Some(PAGE_SIZE) { Ok(()) } else { Err(Damaged) }
    }
}

/// The bytes are not those of a packed page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Damaged;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// zstd is C code, which Miri does not run.
    const ALGORITHMS: &[Algorithm] =
        if cfg!(miri) { &[Algorithm::Lz4] } else { &[Algorithm::Lz4, Algorithm::ZSTD, Algorithm::Zstd(19)] };

    /// A page of which about `noise` bytes in 4096 do not compress.
    pub(crate) fn page(seed: u64, noise: usize) -> PageBytes {
        let mut x = seed | 1;
        core::array::from_fn(|i| {
            x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            if i < noise { (x >> 56) as u8 } else { seed as u8 }
        })
    }

    #[test]
    fn pages_are_packed_by_what_they_hold() {
        for &algorithm in ALGORITHMS {
            let mut packer = Packer::new(algorithm);
            assert_eq!(packer.pack(&[0xa5; PAGE_SIZE]), Packed::Same(0xa5a5_a5a5_a5a5_a5a5));
            assert_eq!(packer.pack(&page(3, PAGE_SIZE)), Packed::Incompressible);
            assert_eq!(packer.pack(&page(3, 3500)), Packed::Incompressible);
            let text = page(3, 1000);
            let Packed::Bytes(bytes) = packer.pack(&text) else { panic!("it compresses") };
            assert!((1000..1100).contains(&bytes.len()));
            let mut back = [0; PAGE_SIZE];
            Unpacker::new(algorithm).unpack(bytes, &mut back).unwrap();
            assert_eq!(back, text);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 256 }))]
        /// Any bytes give an error, or content that the page's checksum rejects; no panic.
        #[test]
        fn damage_is_an_error_or_does_not_pass_the_checksum(
            seed: u64, noise in 1..3000usize, at: prop::sample::Index, bit in 0..8u32, cut: Option<prop::sample::Index>, junk: Vec<u8>,
        ) {
            let id = overspill_vm::types::PageId::from_raw(seed >> 16);
            let good = page(seed, noise);
            let stored = crate::checksum::of(id, &good);
            for &algorithm in &ALGORITHMS[..ALGORITHMS.len().min(2)] {
                let (mut packer, mut unpacker) = (Packer::new(algorithm), Unpacker::new(algorithm));
                let Packed::Bytes(bytes) = packer.pack(&good) else { continue };
                let mut damaged = bytes.to_vec();
                match cut {
                    Some(cut) => damaged.truncate(cut.index(bytes.len())),
                    None => damaged[at.index(bytes.len())] ^= 1 << bit,
                }
                let mut back = [0; PAGE_SIZE];
                prop_assert!(unpacker.unpack(&damaged, &mut back).is_err() || back == good || crate::checksum::of(id, &back) != stored);
                let _ = unpacker.unpack(&junk, &mut back);
                // undamaged bytes still unpack correctly after that
                prop_assert!(unpacker.unpack(bytes, &mut back).is_ok() && back == good);
            }
        }
    }
}

//! Packs and unpacks pages. This is apart from the pool, so that it needs no lock on the pool.
//!
//! By default a page is packed word by word (`words.rs`), or by LZ4, where that lately made pages that begin alike clearly shorter:
//! text, and pages that repeat longer pieces. LZ4 takes 1.5 to 3 times as long as word by word, zstd several times as long again.
//! Nothing allocates after set-up. Damaged bytes give an error or wrong content, and nothing worse. The caller has the page's
//! checksum, which tells whether the content is right.
//!
//! Source: Ziv, Lempel 1977; Collet, LZ4; those of `words.rs`.

use crate::PageBytes;
use crate::pool::PACKED_BYTES_MAX;
use crate::words;
use crate::zstd::{self, Compressor, Decompressor};
use core::fmt;
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use overspill_vm::types::PAGE_SIZE;

/// Compressors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Algorithm {
    /// Word by word, or by LZ4 where that is shorter.
    #[default]
    Words,
    /// LZ4 alone.
    Lz4,
    /// Tighter and slower, at this level, one of [`crate::zstd::LEVELS`].
    Zstd(u8),
}

impl Algorithm {
    /// zstd at its default level.
    pub const ZSTD: Algorithm = Algorithm::Zstd(1);

    /// Reads a name as [`fmt::Display`] writes it, or `zstd`. `None` if there is no such compressor or level.
    pub fn parse(name: &str) -> Option<Algorithm> {
        match name {
            "words" => Some(Algorithm::Words),
            "lz4" => Some(Algorithm::Lz4),
            "zstd" => Some(Algorithm::ZSTD),
            _ => name.strip_prefix("zstd:")?.parse().ok().filter(|level| zstd::LEVELS.contains(level)).map(Algorithm::Zstd),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Algorithm::Words => f.write_str("words"),
            Algorithm::Lz4 => f.write_str("lz4"),
            Algorithm::Zstd(level) => write!(f, "zstd:{level}"),
        }
    }
}

/// Pages are packed by LZ4 instead where that lately made them shorter by so many thousandths: it takes longer.
const WORTH_PERMILLE: i16 = 60;
/// Both are tried for one page in so many, and more often at first.
const BOTH_TRIED: u8 = 32;
/// Pages whose first eighths differ by fewer bytes than this have their experience in common.
const STEP: usize = 16;
const EXPERIENCES: usize = words::FIRST_PAYLOAD_MAX / STEP + 1;
/// The first byte of a page that [`Algorithm::Words`] packed.
const BY_WORDS: u8 = 0;
const BY_LZ4: u8 = 1;

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
    Words(Box<Words>),
    Lz4(Lz4),
    Zstd(Compressor, Box<[u8; PACKED_BYTES_MAX]>),
}

/// Word by word, or by LZ4.
struct Words {
    out: [u8; 1 + words::BUFFER_BYTES],
    lz4: Lz4,
    /// By what the first eighth of a page takes word by word.
    experience: [Experience; EXPERIENCES],
}

/// How pages that begin alike were packed lately.
#[derive(Clone, Copy)]
struct Experience {
    /// The mean of what LZ4 saved, in thousandths of the length word by word. Negative: LZ4 was longer.
    saved_permille: i16,
    /// Pages since both were tried, and so many that they are tried again.
    pages: u8,
    interval: u8,
}

impl Experience {
    const NONE: Experience = Experience { saved_permille: 0, pages: 0, interval: 1 };

    /// Counts a page. Returns whether both are to be tried for it.
    fn count(&mut self) -> bool {
        self.pages += 1;
        let both = self.pages >= self.interval;
        if both {
            *self = Experience { pages: 0, interval: (2 * self.interval).min(BOTH_TRIED), ..*self };
        }
        both
    }

    fn tried(&mut self, by_words: usize, by_lz4: usize) {
        let saved = (by_words as isize - by_lz4 as isize) * 1000 / by_words as isize;
        self.saved_permille += (saved.max(-1000) as i16 - self.saved_permille) / 4;
    }
}

impl Words {
    fn new() -> Words {
        let out = [BY_WORDS; 1 + words::BUFFER_BYTES];
        Words { out, lz4: Lz4::new(), experience: [Experience::NONE; EXPERIENCES] }
    }

    fn pack(&mut self, page: &PageBytes) -> &[u8] {
        let (_, room) = self.out.split_first_chunk_mut::<1>().expect("it is longer");
        let packing = words::Packing::begin(page, room.try_into().expect("the rest"));
        let experience = &mut self.experience[packing.first_payload() / STEP];
        if experience.count() {
            let (by_words, by_lz4) = (packing.finish(), self.lz4.pack(page));
            experience.tried(by_words, by_lz4.len() - 1);
            if by_lz4.len() <= by_words { by_lz4 } else { &self.out[..=by_words] }
        } else if experience.saved_permille >= WORTH_PERMILLE {
            self.lz4.pack(page)
        } else {
            let by_words = packing.finish();
            &self.out[..=by_words]
        }
    }
}

/// LZ4's table, and room for the worst case behind a first byte.
struct Lz4 {
    table: Box<CompressTable>,
    out: Box<[u8]>,
}

impl Lz4 {
    fn new() -> Lz4 {
        Lz4 { table: CompressTable::small().into(), out: vec![BY_LZ4; 1 + get_maximum_output_size(PAGE_SIZE)].into() }
    }

    fn bytes(&self) -> usize {
        size_of::<CompressTable>() + self.out.len()
    }

    /// The packed page, behind the first byte.
    fn pack(&mut self, page: &PageBytes) -> &[u8] {
        let len = compress_into_with_table(page, &mut self.out[1..], &mut self.table).expect("room for the worst case");
        &self.out[..=len]
    }
}

/// Packs pages. One per thread.
pub struct Packer(Pack);

impl fmt::Debug for Packer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packer({} bytes)", self.bytes())
    }
}

impl Packer {
    /// Allocates all memory that it will need: 25 KiB at most, except for zstd.
    ///
    /// # Panics
    /// If zstd has no such level.
    pub fn new(algorithm: Algorithm) -> Packer {
        Packer(match algorithm {
            Algorithm::Words => Pack::Words(Words::new().into()),
            Algorithm::Lz4 => Pack::Lz4(Lz4::new()),
            Algorithm::Zstd(level) => Pack::Zstd(Compressor::new(level), [0; PACKED_BYTES_MAX].into()),
        })
    }

    /// Its memory, in bytes.
    pub fn bytes(&self) -> usize {
        match &self.0 {
            Pack::Words(words) => size_of::<Words>() + words.lz4.bytes(),
            Pack::Lz4(lz4) => lz4.bytes(),
            Pack::Zstd(compressor, out) => compressor.bytes() + size_of_val(&**out),
        }
    }

    /// Packs a page. Does not allocate.
    pub fn pack(&mut self, page: &PageBytes) -> Packed<'_> {
        let words = page.as_chunks::<8>().0;
        if words.iter().all(|w| *w == words[0]) {
            return Packed::Same(u64::from_ne_bytes(words[0]));
        }
        let bytes = match &mut self.0 {
            Pack::Words(words) => words.pack(page),
            Pack::Lz4(lz4) => &lz4.pack(page)[1..],
            Pack::Zstd(compressor, out) => match compressor.compress(page, &mut out[..]) {
                Some(len) => &out[..len],
                None => return Packed::Incompressible,
            },
        };
        if bytes.len() <= PACKED_BYTES_MAX { Packed::Bytes(bytes) } else { Packed::Incompressible }
    }
}

/// Unpacks [`Packed::Bytes`] of the same algorithm. One per thread.
pub enum Unpacker {
    /// Needs no memory.
    Words,
    /// Needs no memory.
    Lz4,
    /// Has tables.
    Zstd(Decompressor),
}

impl Unpacker {
    /// Allocates all memory that it will need: 94 KiB for zstd, nothing for others.
    pub fn new(algorithm: Algorithm) -> Unpacker {
        match algorithm {
            Algorithm::Words => Unpacker::Words,
            Algorithm::Lz4 => Unpacker::Lz4,
            Algorithm::Zstd(_) => Unpacker::Zstd(Decompressor::new()),
        }
    }

    /// Its memory, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Unpacker::Words | Unpacker::Lz4 => 0,
            Unpacker::Zstd(decompressor) => decompressor.bytes(),
        }
    }

    /// Unpacks. Does not allocate.
    ///
    /// # Errors
    /// [`Damaged`] if these are not the bytes of a page. Then `page` may have any content.
    pub fn unpack(&mut self, bytes: &[u8], page: &mut PageBytes) -> Result<(), Damaged> {
        let len = match (self, bytes) {
            (Unpacker::Words, [BY_WORDS, words @ ..]) => words::unpack(words, page).map(|()| PAGE_SIZE),
            (Unpacker::Words, [BY_LZ4, bytes @ ..]) | (Unpacker::Lz4, bytes) => decompress_into(bytes, page).ok(),
            (Unpacker::Words, _) => None,
            (Unpacker::Zstd(decompressor), bytes) => decompressor.decompress(bytes, page),
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
        if cfg!(miri) { &[Algorithm::Words] } else { &[Algorithm::Words, Algorithm::Lz4, Algorithm::ZSTD, Algorithm::Zstd(19)] };

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
            let tags = if algorithm == Algorithm::Words { 256 } else { 0 };
            assert!((1000..1100 + tags).contains(&bytes.len()));
            let mut back = [0; PAGE_SIZE];
            Unpacker::new(algorithm).unpack(bytes, &mut back).unwrap();
            assert_eq!(back, text);
        }
    }

    /// Text and nearly empty pages are shorter by LZ4, pointers word by word.
    #[test]
    fn the_shorter_one_is_kept() {
        let text: PageBytes = *include_bytes!("packing.rs").first_chunk().expect("a page of text");
        let mut sparse = [0; PAGE_SIZE];
        sparse[1234] = 5;
        let mut pointers = [0; PAGE_SIZE];
        for (i, word) in pointers.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *word = (0x7f12_3456_7000 + (i as u64 * i as u64 * 16) % 0x3000).to_le_bytes();
        }
        for (page, by) in [(text, BY_LZ4), (sparse, BY_LZ4), (pointers, BY_WORDS)] {
            let (mut packer, mut lz4) = (Packer::new(Algorithm::Words), Packer::new(Algorithm::Lz4));
            let Packed::Bytes(bytes) = packer.pack(&page) else { panic!("it compresses") };
            assert_eq!(bytes[0], by);
            let Packed::Bytes(by_lz4) = lz4.pack(&page) else { panic!("it compresses") };
            assert!(bytes.len() <= 1 + by_lz4.len(), "{} of {} bytes", bytes.len(), by_lz4.len());
            let mut back = [0; PAGE_SIZE];
            Unpacker::Words.unpack(bytes, &mut back).unwrap();
            assert!(back == page);
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
            for &algorithm in &ALGORITHMS[..ALGORITHMS.len().min(3)] {
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

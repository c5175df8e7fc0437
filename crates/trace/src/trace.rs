//! A trace that has been read.

use crate::PAGE_BYTES;
use crate::format::list::Format;
use crate::input::Packing;

/// What a reference was to the pager that recorded it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Nothing is known but that there was a reference.
    Reference = 0,
    /// The first touch of an untouched page.
    FirstTouch = 1,
    /// A soft fault: the page was inactive.
    SoftFault = 2,
    /// A hard fault: the page was read back.
    HardFault = 3,
}

impl Kind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Kind; 4] = [Kind::Reference, Kind::FirstTouch, Kind::SoftFault, Kind::HardFault];
}

/// A format, and how it was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Guess {
    /// The format.
    pub format: Format,
    /// In words: "as told", "by its name".
    pub why: &'static str,
}

/// One bit per reference.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Bits {
    words: Vec<u64>,
    len: usize,
}

impl Bits {
    /// Appends a bit.
    pub fn push(&mut self, bit: bool) {
        if self.len.is_multiple_of(64) {
            self.words.push(0);
        }
        self.words[self.len / 64] |= u64::from(bit) << (self.len % 64);
        self.len += 1;
    }

    /// The bit of reference `index`.
    ///
    /// # Panics
    /// If there are not that many references.
    pub fn get(&self, index: usize) -> bool {
        assert!(index < self.len);
        self.words[index / 64] >> (index % 64) & 1 != 0
    }

    /// The number of bits.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many are set.
    pub fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// The bits in words of 64, the first reference in the lowest bit of the first word. Bits beyond the last are zero.
    pub fn words(&self) -> &[u64] {
        &self.words
    }
}

/// A decoded reference string.
#[derive(Clone, Debug)]
pub struct Trace {
    /// One entry per reference: the page's dense id. Ids count up from 0 in order of first appearance.
    pub pages: Vec<u32>,
    /// Which references write.
    pub writes: Bits,
    /// The page number in the trace for each dense id; its length is the number of unique pages.
    pub numbers: Vec<u64>,
    /// What each reference was to the pager that recorded it, if the trace says so.
    pub kinds: Option<Vec<Kind>>,
    /// The names of the objects (files, disks), if the trace has several. Then a page number has the index in this list in the
    /// upper bits, and the page in the lower [`OBJECT_SHIFT`] bits.
    pub objects: Vec<String>,
    /// Bytes of a page, if the trace says so, was cut into pages of this size, or [`crate::Options`] say so.
    pub page_bytes: Option<u32>,
    /// References in the trace. More than in `pages` only if it was sampled.
    pub references_total: u64,
    /// Lines or records that were recognised as no references (marks, comments, other system calls).
    pub marks: u64,
    /// Calls that moved bytes of a file, but do not tell at which place. Their pages are missing from `pages`.
    pub unplaced: u64,
    /// The format, and how it was found.
    pub guess: Guess,
    /// How the file was packed.
    pub packing: Packing,
}

impl Trace {
    /// Number of unique pages.
    pub fn unique(&self) -> u32 {
        // The builder stops before there are more.
        self.numbers.len() as u32
    }

    /// Bytes of a page: [`PAGE_BYTES`] if nothing is known.
    pub fn page_bytes(&self) -> u32 {
        self.page_bytes.unwrap_or(PAGE_BYTES)
    }

    /// Whether its pages are known to be of files or disks, not of a program's memory. The compact format does not store this.
    pub fn is_of_files(&self) -> bool {
        matches!(self.guess.format, Format::Arc | Format::Vscsi | Format::Msr | Format::Strace)
    }

    /// Splits the string into `parts` by page: a hash of the page number assigns a page, with all its references, to a part. The
    /// hash is independent of the one for [`crate::Options::sample`].
    pub fn split(&self, parts: u32) -> Vec<Part> {
        const UNUSED: u32 = u32::MAX;
        let mut out: Vec<Part> = (0..parts).map(|_| Part::default()).collect();
        let part_of: Vec<u32> = self.numbers.iter().map(|number| (mix(mix(*number)) % u64::from(parts)) as u32).collect();
        let mut ids = vec![UNUSED; self.numbers.len()];
        for (index, &page) in self.pages.iter().enumerate() {
            let part = &mut out[part_of[page as usize] as usize];
            let id = &mut ids[page as usize];
            if *id == UNUSED {
                *id = part.unique;
                part.unique += 1;
            }
            part.pages.push(*id);
            part.writes.push(self.writes.get(index));
        }
        out
    }

    /// The format it was read as.
    pub fn format(&self) -> Format {
        self.guess.format
    }
}

/// The references to some of a trace's pages.
#[derive(Clone, Default, Debug)]
pub struct Part {
    /// Dense ids, as in [`Trace::pages`].
    pub pages: Vec<u32>,
    /// Number of unique pages.
    pub unique: u32,
    /// Which references write.
    pub writes: Bits,
}

/// Where the object's index starts in a page number of a trace with several objects.
pub const OBJECT_SHIFT: u32 = 36;

/// The finalizer of MurmurHash3 (Appleby 2011, public domain): every bit of the number affects every bit of the result.
pub(crate) fn mix(number: u64) -> u64 {
    let mut x = number;
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

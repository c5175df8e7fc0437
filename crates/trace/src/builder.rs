//! From page numbers to a [`Trace`].

use crate::PAGE_BYTES;
use crate::compact::Kind;
use crate::format::Format;
use crate::guess::Guess;
use crate::input::Packing;
use rustc_hash::FxHashMap;

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
    /// If there are not so many.
    pub fn get(&self, index: usize) -> bool {
        assert!(index < self.len);
        self.words[index / 64] >> (index % 64) & 1 != 0
    }

    /// How many there are.
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

    /// The bits in words of 64, the first reference in the lowest bit of the first word; what is beyond the last is zero.
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
    /// Dense id to the page number in the trace; its length is the number of unique pages.
    pub numbers: Vec<u64>,
    /// What each reference was to the pager that recorded it, where the trace says so.
    pub kinds: Option<Vec<Kind>>,
    /// Names of what page numbers are parts of (files, disks), where the trace has several: a page number is then the index in
    /// this list in the upper bits, and the page in the lower [`OBJECT_SHIFT`] bits.
    pub objects: Vec<String>,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// References in the trace; more than `pages` has only if it was sampled.
    pub references_total: u64,
    /// Lines or records that are no reference and were recognised as such (marks, comments, other system calls).
    pub marks: u64,
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

    /// Whether its pages are known to be of files or disks, not of a program's memory. The compact format does not keep that.
    pub fn is_of_files(&self) -> bool {
        matches!(self.guess.format, Format::Arc | Format::Vscsi | Format::Msr | Format::Strace)
    }

    /// The string cut into `parts` by page: a hash of the page number says which part a page, with all its references, belongs to.
    /// Independent of the hash that [`crate::Options::sample`] keeps pages by.
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

/// A request that covers more pages is taken for a broken trace: 4 GiB in pages of 4 KiB; no system call moves more.
const REQUEST_PAGES_MAX: u64 = 1 << 20;

/// Collects references.
pub(crate) struct Builder {
    ids: FxHashMap<u64, u32>,
    pages: Vec<u32>,
    writes: Bits,
    numbers: Vec<u64>,
    kinds: Option<Vec<Kind>>,
    objects: Vec<String>,
    object_ids: FxHashMap<Vec<u8>, u64>,
    page_bytes: Option<u32>,
    page_shift: u32,
    /// Pages whose hash is not above this stay; `None`: all.
    keep: Option<u64>,
    references_total: u64,
    pub marks: u64,
    too_many: bool,
}

impl Builder {
    pub fn new(page_bytes: Option<u32>, sample: Option<f64>) -> Self {
        let bytes = page_bytes.unwrap_or(PAGE_BYTES);
        assert!(bytes.is_power_of_two(), "a page of {bytes} bytes");
        let keep = sample.map(|rate| {
            assert!(rate > 0.0 && rate <= 1.0, "a sample of {rate}");
            // 2^64 as f64 saturates to u64::MAX: all pages.
            (rate * (u64::MAX as f64)) as u64
        });
        Builder {
            ids: FxHashMap::default(),
            pages: Vec::new(),
            writes: Bits::default(),
            numbers: Vec::new(),
            kinds: None,
            objects: Vec::new(),
            object_ids: FxHashMap::default(),
            page_bytes,
            page_shift: bytes.trailing_zeros(),
            keep,
            references_total: 0,
            marks: 0,
            too_many: false,
        }
    }

    /// A reference to a page by its number.
    pub fn page(&mut self, number: u64, write: bool) {
        self.references_total += 1;
        if let Some(keep) = self.keep
            && mix(number) > keep
        {
            return;
        }
        let next = self.numbers.len();
        let id = *self.ids.entry(number).or_insert_with(|| {
            self.numbers.push(number);
            next as u32
        });
        self.too_many |= next >= u32::MAX as usize;
        self.pages.push(id);
        self.writes.push(write);
    }

    /// A reference of known kind. A trace has kinds for all references or for none.
    pub fn event(&mut self, number: u64, write: bool, kind: Kind) {
        let before = self.pages.len();
        self.page(number, write);
        if self.pages.len() > before {
            self.kinds.get_or_insert_default().push(kind);
        }
    }

    /// References to `count` pages from `first` on.
    pub fn pages(&mut self, first: u64, count: u64, write: bool) -> Result<(), String> {
        let last = first.checked_add(count.saturating_sub(1)).ok_or("the page numbers exceed 64 bits")?;
        if count > REQUEST_PAGES_MAX {
            return Err(format!("one request of {count} pages; more than {REQUEST_PAGES_MAX} cannot be right"));
        }
        if count > 0 {
            (first..=last).for_each(|page| self.page(page, write));
        }
        Ok(())
    }

    /// References to the pages of `bytes` bytes (none if 0) from `address` on, of the object whose pages start at number `base`.
    pub fn bytes(&mut self, base: u64, address: u64, bytes: u64, write: bool) -> Result<(), String> {
        if bytes == 0 {
            self.marks += 1;
            return Ok(());
        }
        let end = address.checked_add(bytes - 1).ok_or("the addresses exceed 64 bits")?;
        let (first, last) = (address >> self.page_shift, end >> self.page_shift);
        if !self.objects.is_empty() && last >> OBJECT_SHIFT != 0 {
            return Err(format!("the offset {address} is beyond what a page number can hold"));
        }
        self.pages(base + first, last - first + 1, write)
    }

    /// The number of the first page of the object called `name`.
    pub fn object(&mut self, name: &[u8]) -> Result<u64, String> {
        if let Some(&base) = self.object_ids.get(name) {
            return Ok(base);
        }
        let index = self.objects.len() as u64;
        if index >> (64 - OBJECT_SHIFT) != 0 {
            return Err(format!("more than {index} files or disks"));
        }
        self.objects.push(String::from_utf8_lossy(name).into_owned());
        self.object_ids.insert(name.to_owned(), index << OBJECT_SHIFT);
        Ok(index << OBJECT_SHIFT)
    }

    /// The trace says how many bytes a page has.
    pub fn set_page_bytes(&mut self, bytes: u32) -> Result<(), String> {
        match self.page_bytes {
            Some(wanted) if wanted != bytes => {
                Err(format!("it was recorded with pages of {bytes} bytes, which cannot be changed to {wanted}"))
            }
            _ => {
                self.page_bytes = Some(bytes);
                Ok(())
            }
        }
    }

    /// References so far, with those that sampling left out.
    pub fn references_total(&self) -> u64 {
        self.references_total
    }

    /// Whether there was a reference.
    pub fn any(&self) -> bool {
        self.references_total > 0
    }

    /// What must hold after each line or record.
    pub fn check(&self) -> Result<(), String> {
        if self.too_many { Err(format!("more than {} unique pages", u32::MAX)) } else { Ok(()) }
    }

    /// `None` if there was no reference.
    pub fn finish(self, guess: Guess, packing: Packing) -> Option<Trace> {
        self.any().then(|| Trace {
            pages: self.pages,
            writes: self.writes,
            numbers: self.numbers,
            kinds: self.kinds,
            objects: self.objects,
            page_bytes: self.page_bytes.unwrap_or(PAGE_BYTES),
            references_total: self.references_total,
            marks: self.marks,
            guess,
            packing,
        })
    }
}

/// The finalizer of MurmurHash3 (Appleby 2011, public domain): every bit of the number bears on every bit of the result.
fn mix(number: u64) -> u64 {
    let mut x = number;
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

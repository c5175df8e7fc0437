//! Makes a [`Trace`] from page numbers.

use crate::PAGE_BYTES;
use crate::input::Packing;
use crate::trace::{Bits, Guess, Kind, OBJECT_SHIFT, Trace, mix};
use rustc_hash::FxHashMap;

/// The most bytes of a request, more than any system call moves. A longer one means a broken trace.
const REQUEST_BYTES_MAX: u64 = 4 << 30;
/// The most pages of a request that is given in pages: as many bytes in pages of 4 KiB.
const REQUEST_PAGES_MAX: u64 = 1 << 20;
/// The most pages of a mapping or of a request that is cut into pages: 64 GiB in pages of 4 KiB. A mapping may be as long as its
/// file, so this is not about what is right: it bounds the memory that one line of a trace takes, here to about 1 GiB.
const RANGE_PAGES_MAX: u64 = 1 << 24;

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
    /// Pages whose hash is at most this are kept; `None`: all.
    keep: Option<u64>,
    references_total: u64,
    pub marks: u64,
    /// See [`Trace::unplaced`].
    pub unplaced: u64,
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
            unplaced: 0,
            too_many: false,
        }
    }

    /// Adds a reference to a page by its number.
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

    /// Adds a reference of known kind. A trace has kinds for all references or for none.
    pub fn event(&mut self, number: u64, write: bool, kind: Kind) {
        let before = self.pages.len();
        self.page(number, write);
        if self.pages.len() > before {
            self.kinds.get_or_insert_default().push(kind);
        }
    }

    /// Adds references to `count` pages from `first` on.
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

    /// Adds references to the pages of a request of `bytes` bytes (none if 0) from `address` on, of the object whose pages start at
    /// number `base`.
    pub fn bytes(&mut self, base: u64, address: u64, bytes: u64, write: bool) -> Result<(), String> {
        if bytes > REQUEST_BYTES_MAX {
            return Err(format!("one request of {bytes} bytes; more than {REQUEST_BYTES_MAX} cannot be right"));
        }
        self.range(base, address, bytes, write)
    }

    /// Adds references to the pages of `bytes` bytes of a mapping, as [`Builder::bytes`] does for a request.
    pub fn range(&mut self, base: u64, address: u64, bytes: u64, write: bool) -> Result<(), String> {
        // The page numbers depend on it from here on.
        self.page_bytes = Some(1 << self.page_shift);
        if bytes == 0 {
            self.marks += 1;
            return Ok(());
        }
        let end = address.checked_add(bytes - 1).ok_or("the addresses exceed 64 bits")?;
        let (first, last) = (address >> self.page_shift, end >> self.page_shift);
        if !self.objects.is_empty() && last >> OBJECT_SHIFT != 0 {
            return Err(format!("the offset {address} is beyond what a page number can hold"));
        }
        let count = last - first + 1;
        if count > RANGE_PAGES_MAX {
            return Err(format!(
                "{bytes} bytes are {count} pages, and one line may have {RANGE_PAGES_MAX}; take a larger --page-size"
            ));
        }
        let from = base + first;
        (from..=from + (count - 1)).for_each(|page| self.page(page, write));
        Ok(())
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

    /// Sets how many bytes a page has, as the trace says.
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

    /// References so far, including those that sampling left out.
    pub fn references_total(&self) -> u64 {
        self.references_total
    }

    /// Whether there was a reference.
    pub fn any(&self) -> bool {
        self.references_total > 0
    }

    /// Checks what must hold after each line or record.
    pub fn check(&self) -> Result<(), String> {
        if self.too_many { Err(format!("more than {} unique pages", u32::MAX)) } else { Ok(()) }
    }

    /// The trace; `None` if there was no reference.
    pub fn finish(self, guess: Guess, packing: Packing) -> Option<Trace> {
        self.any().then_some(Trace {
            pages: self.pages,
            writes: self.writes,
            numbers: self.numbers,
            kinds: self.kinds,
            objects: self.objects,
            page_bytes: self.page_bytes,
            references_total: self.references_total,
            marks: self.marks,
            unplaced: self.unplaced,
            guess,
            packing,
        })
    }
}

//! Reference strings in memory.

use std::collections::HashMap;

/// A reference string: page ids, and which references write. Ids count up from 0 in order of first appearance, as made by
/// [`number_by_appearance`] and the readers of traces. So the id alone shows that a page is referenced for the first time.
#[derive(Clone, Copy, Debug)]
pub struct References<'a> {
    pages: &'a [u32],
    unique: u32,
    writes: Option<&'a [u64]>,
    of_files: bool,
}

/// Numbers the pages anew, by their first appearance. Returns how many there are.
///
/// ```
/// let mut pages = [70, 8, 70, 9];
/// assert_eq!(overspill_lab::number_by_appearance(&mut pages), 3);
/// assert_eq!(pages, [0, 1, 0, 2]);
/// ```
pub fn number_by_appearance(pages: &mut [u32]) -> u32 {
    let mut ids = HashMap::new();
    for page in pages {
        let next = ids.len() as u32;
        *page = *ids.entry(*page).or_insert(next);
    }
    ids.len() as u32
}

impl<'a> References<'a> {
    /// `pages` holds ids of `0..unique`, all of them; bit `i % 64` of word `i / 64` of `writes`, if given, says whether reference
    /// `i` writes.
    ///
    /// # Panics
    /// If the ids are not numbered in this way, `writes` is too short, or there are more than `u32::MAX - 1` references.
    pub fn new(pages: &'a [u32], unique: u32, writes: Option<&'a [u64]>) -> Self {
        let (mut seen, mut in_order) = (0, true);
        for &page in pages {
            in_order &= page <= seen;
            seen += (page == seen) as u32;
        }
        assert!(in_order && seen == unique, "the page ids are not 0..{unique} in order of first appearance");
        assert!(writes.is_none_or(|words| words.len() * 64 >= pages.len()), "there are fewer write bits than references");
        assert!(pages.len() < u32::MAX as usize, "a string of {} references is too long", pages.len());
        References { pages, unique, writes: writes.filter(|words| words.iter().any(|word| *word != 0)), of_files: false }
    }
    /// The same string; `yes`: its pages are of files or disks, not of a program's memory. Then a page is read also the first time
    /// ([`Admit::FileRead`](overspill_vm::policy::Admit::FileRead)).
    pub fn of_files(self, yes: bool) -> Self {
        References { of_files: yes, ..self }
    }
    /// Whether its pages are of files or disks.
    pub fn is_of_files(&self) -> bool {
        self.of_files
    }
    /// The pages, in order.
    pub fn pages(&self) -> &'a [u32] {
        self.pages
    }
    /// How many pages there are.
    pub fn unique(&self) -> u32 {
        self.unique
    }
    /// Whether any reference is known to write.
    pub fn has_writes(&self) -> bool {
        self.writes.is_some()
    }
    /// Whether reference `i` writes.
    #[inline]
    pub fn writes(&self, i: usize) -> bool {
        self.writes.is_some_and(|words| words[i / 64] >> (i % 64) & 1 == 1)
    }
}

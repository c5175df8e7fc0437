//! Reference strings in memory.

/// A reference string: dense page ids, and which references write.
#[derive(Clone, Copy, Debug)]
pub struct References<'a> {
    pages: &'a [u32],
    unique: u32,
    writes: Option<&'a [u64]>,
    of_files: bool,
}

impl<'a> References<'a> {
    /// `pages` holds ids of `0..unique`; bit `i % 64` of word `i / 64` of `writes`, if given, says whether reference `i` writes.
    ///
    /// # Panics
    /// If a page is not below `unique`, `writes` is too short, or there are more than `u32::MAX - 1` references.
    pub fn new(pages: &'a [u32], unique: u32, writes: Option<&'a [u64]>) -> Self {
        assert!(pages.iter().all(|page| *page < unique), "a page id is not below the number of pages, {unique}");
        assert!(writes.is_none_or(|words| words.len() * 64 >= pages.len()), "there are fewer write bits than references");
        assert!(pages.len() < u32::MAX as usize, "a string of {} references is too long", pages.len());
        References { pages, unique, writes: writes.filter(|words| words.iter().any(|word| *word != 0)), of_files: false }
    }
    /// The same string; `yes`: its pages are of files or disks, not of a program's memory. What is not in memory is read then, the first
    /// time too ([`Admit::FileRead`](overspill_vm::policy::Admit::FileRead)).
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

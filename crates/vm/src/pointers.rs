//! Measures whether following pointers pays.
//!
//! A page that is read in order may be an array of pointers to pages that will be used next. Then those pages can be read while the
//! reader is still on its way to them, many at a time, and the reader need not wait for one after the other. (Content-directed
//! prefetching: Cooksey, Jourdan and Grunwald, "A stateless, content-directed data prefetching mechanism", ASPLOS 2002, there for
//! cache lines.) But a program may also just copy its array. So every [`SAMPLE`]th page that a pointer leads to is left parked when
//! it has come in. Its touch says that the pointer was followed, its eviction that it was not. While too few samples are used, only
//! samples are read.

/// One page in this many is a sample.
const SAMPLE: u32 = 16;
/// Pointers are followed while at least one sample in this many is used. A page read along with others costs a third of a page that
/// a thread waits for (16 instead of 42 us: docs/decisions/0021), and takes the frame of another page.
const WORTH: u32 = 3;
/// The number of samples that count. At twice as many, both counts are halved. Guessed.
const MEMORY: u32 = 64;

/// What to do with a page that a pointer leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Follow {
    /// Nothing.
    No,
    /// Bring it in.
    Yes,
    /// Bring it in and see whether it is used.
    Sample,
}

/// The counts of samples.
#[derive(Clone, Debug, Default)]
pub struct Pointers {
    seen: u32,
    used: u32,
    lost: u32,
}

impl Pointers {
    /// Decides about the next page that a pointer leads to.
    pub fn next(&mut self) -> Follow {
        self.seen = self.seen.wrapping_add(1);
        match (self.seen.is_multiple_of(SAMPLE), self.pay()) {
            (true, _) => Follow::Sample,
            (false, true) => Follow::Yes,
            (false, false) => Follow::No,
        }
    }

    /// Whether pointers are followed. (While there are few samples, they are.)
    pub fn pay(&self) -> bool {
        self.lost < MEMORY / 8 || self.used * WORTH >= self.used + self.lost
    }

    /// A sample was used, or evicted before any use.
    pub fn note(&mut self, used: bool) {
        *if used { &mut self.used } else { &mut self.lost } += 1;
        if self.used + self.lost >= 2 * MEMORY {
            self.used /= 2;
            self.lost /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn followed(p: &mut Pointers, n: u32) -> u32 {
        (0..n).filter(|_| p.next() == Follow::Yes).count() as u32
    }

    #[test]
    fn an_array_that_is_only_copied_costs_samples_and_no_more() {
        let mut p = Pointers::default();
        assert_eq!(followed(&mut p, 160), 150);
        (0..10).for_each(|_| p.note(false));
        assert_eq!(followed(&mut p, 1600), 0);
        let samples = (0..1600).filter(|_| p.next() == Follow::Sample).count();
        assert_eq!(samples, 100);
    }

    /// Samples are always taken. So a program that begins to follow its pointers is noticed, and so is one that stops.
    #[test]
    fn opinions_change() {
        let mut p = Pointers::default();
        for _ in 0..3 {
            (0..200).for_each(|_| p.note(false));
            assert!(!p.pay());
            (0..200).for_each(|_| p.note(true));
            assert!(p.pay());
        }
        // it still pays if two of three are not followed, but not if five of six are not
        (0..300).for_each(|i| if i % 3 == 0 { p.note(true) } else { p.note(false) });
        assert!(p.pay());
        (0..300).for_each(|i| if i % 6 == 0 { p.note(true) } else { p.note(false) });
        assert!(!p.pay());
    }
}

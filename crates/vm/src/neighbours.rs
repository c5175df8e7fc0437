//! Measures whether it pays to read what lies around a single fault.
//!
//! In some programs pages that lie together are used together, in whatever order: then one read of a group saves several faults.
//! In a large hash each page is used by itself. So the neighbours of some single faults are read and left parked, as samples. Such
//! a sample's touch says that it was used, its eviction that it was not.
//!
//! That alone says little. Where memory is used at random, half of all inactive pages are touched before their frames are taken,
//! and so are half of the samples, whatever lies around them. A neighbour takes the frame of another page. So it must be used more
//! often than the pages that are inactive anyhow.

use crate::pointers::Follow;

/// Neighbours are what lies in the same aligned group of so many pages. With four pages a hash of strings in Ruby had twice as many
/// hard faults.
pub const GROUP_PAGES: u64 = 8;
/// While neighbours pay, those of one single fault in so many are samples.
const ONE_IN: u32 = 16;
/// The same while they do not pay: a tenth more pages are read.
const ONE_IN_WHILE_NOT: u32 = 64;
/// Neighbours must be used more often than other inactive pages, by so many thousandths. A neighbour mostly lies elsewhere on the
/// device. So it costs a read of its own and another page's way out, half of a fault that a thread waits for. A sample is out again
/// before some uses that would have come.
const WORTH_PERMILLE: u32 = 200;
/// So many samples are enough to judge by: of eight groups. Guessed.
const ENOUGH: u32 = 56;
/// The number of samples, and of other inactive pages, that count. At twice as many, both counts are halved. Guessed.
const MEMORY: u32 = 256;

/// How many inactive pages were used, and how many were not.
#[derive(Clone, Debug, Default)]
pub struct Share {
    used: u32,
    lost: u32,
}

impl Share {
    /// One of them was used, or its frame was taken before any use.
    pub fn note(&mut self, used: bool) {
        *if used { &mut self.used } else { &mut self.lost } += 1;
        if self.used + self.lost >= 2 * MEMORY {
            self.used /= 2;
            self.lost /= 2;
        }
    }

    fn permille(&self) -> u32 {
        1000 * self.used / (self.used + self.lost).max(1)
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Neighbours {
    seen: u32,
    /// Of the samples.
    pub samples: Share,
    /// Of other inactive pages.
    pub others: Share,
}

impl Neighbours {
    /// Decides about the neighbours of the next single fault.
    pub fn next(&mut self) -> Follow {
        self.seen = self.seen.wrapping_add(1);
        let pay = self.pay();
        match (self.seen.is_multiple_of(if pay { ONE_IN } else { ONE_IN_WHILE_NOT }), pay) {
            (true, _) => Follow::Sample,
            (false, true) => Follow::Yes,
            (false, false) => Follow::No,
        }
    }

    fn pay(&self) -> bool {
        let known = self.samples.used + self.samples.lost >= ENOUGH;
        known && self.samples.permille() >= self.others.permille() + WORTH_PERMILLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(n: &mut Neighbours, what: Follow) -> usize {
        (0..640).filter(|_| n.next() == what).count()
    }

    /// Samples and other pages of which so many in a hundred are used.
    fn used(n: &mut Neighbours, samples: u32, others: u32) {
        for i in 0..1000 {
            n.samples.note(i % 100 < samples);
            n.others.note(i % 100 < others);
        }
    }

    #[test]
    fn neighbours_have_to_show_that_they_are_used() {
        let mut n = Neighbours::default();
        assert_eq!((read(&mut n, Follow::Yes), read(&mut n, Follow::Sample)), (0, 10));
        used(&mut n, 60, 30);
        assert_eq!((read(&mut n, Follow::Yes), read(&mut n, Follow::Sample)), (600, 40));
        used(&mut n, 10, 30);
        assert_eq!(read(&mut n, Follow::Yes), 0);
    }

    /// A dict in Python, used at random: 40 of 100 samples were used, and 48 of 100 inactive pages. Reading the neighbours made it
    /// take 19 s instead of 13.
    #[test]
    fn pages_that_are_used_like_any_others_are_no_reason() {
        let mut n = Neighbours::default();
        used(&mut n, 40, 48);
        assert_eq!(read(&mut n, Follow::Yes), 0);
        used(&mut n, 50, 48);
        assert_eq!(read(&mut n, Follow::Yes), 0);
    }

    /// A sorted hash in PHP in half of its memory: 19 of 100 samples were used, and 7 of 100 inactive pages. Four neighbours were
    /// read for each hard fault that they saved, and the program took 47 s instead of 39.
    #[test]
    fn few_uses_do_not_pay_though_others_are_fewer_still() {
        let mut n = Neighbours::default();
        used(&mut n, 19, 7);
        assert_eq!(read(&mut n, Follow::Yes), 0);
    }
}

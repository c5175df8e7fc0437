//! Packs the words of a page, 512 of eight bytes, each by the best of three predictions.
//!
//! ```text
//!   tags      256 bytes: four bits for each word, the prediction and the length of the payload
//!   payloads  by word: what its prediction leaves open, 0 to 8 bytes
//!
//!   prediction   what is taken for the word                     payload
//!   zero         0                                              the word's low bytes
//!   successor    what followed the last word like the previous  low bytes of the exclusive or
//!   alike        the last word like this one                    its entry, and low bytes of the exclusive or
//! ```
//!
//! Two words are *alike* if they have the same entry in a table: a hash of all but the lowest 12 bits. So pointers into one page
//! are alike, and so are small numbers. Objects of one type repeat the same kinds of words in the same order, which the successors
//! tell.
//!
//! All words take the same steps, without branches that depend on the content. So a page takes about the same time whatever it
//! holds: 1.4 us, where LZ4 takes 2 to 4 us for heaps of programs (bench/RESULTS-compressed.md, "Word by word").
//!
//! Sources: Wilson, Kaplan, Smaragdakis, "The case for compressed caching in virtual memory systems", USENIX 1999, section 2
//! (words that match a recent one in part); Sazeides, Smith, "The predictability of data values", MICRO 1997 (what followed the
//! same context); Burtscher, Ratanaworabhan, "FPC: a high-speed compressor for double-precision floating-point data", 2009 (the
//! best of two predictions, exclusive or, whole bytes).

use crate::PageBytes;
use core::ops::Range;
use overspill_vm::types::PAGE_SIZE;

const WORDS: usize = PAGE_SIZE / 8;
const TAG_BYTES: usize = WORDS / 2;
/// Room for the worst case, and a word more.
pub(crate) const BUFFER_BYTES: usize = TAG_BYTES + PAGE_SIZE + 8;

/// Bytes of the exclusive or that a payload may have, by prediction. Chosen by the sizes of heaps of Perl, Python, PHP, Ruby and
/// Java.
const ZERO: [u8; 6] = [0, 1, 3, 5, 6, 8];
const SUCCESSOR: [u8; 6] = [0, 1, 2, 4, 5, 7];
const ALIKE: [u8; 4] = [0, 1, 2, 3];
/// The first tag of each prediction.
const FIRST_SUCCESSOR: u8 = ZERO.len() as u8;
const FIRST_ALIKE: u8 = FIRST_SUCCESSOR + SUCCESSOR.len() as u8;

/// The bytes of the payload by tag.
const PAYLOAD_BYTES: [u8; 16] = {
    let mut bytes = [0; 16];
    let mut tag = 0;
    while tag < 16 {
        bytes[tag] = if tag < FIRST_SUCCESSOR as usize {
            ZERO[tag]
        } else if tag < FIRST_ALIKE as usize {
            SUCCESSOR[tag - FIRST_SUCCESSOR as usize]
        } else {
            1 + ALIKE[tag - FIRST_ALIKE as usize]
        };
        tag += 1;
    }
    bytes
};

/// By the bytes that an exclusive or has: the shortest payload of a prediction that holds them, and its tag, as `payload * 16 +
/// tag`. So the least of several is the best.
type Choices = [u8; 9];
/// There is none.
const NONE: u8 = u8::MAX;

const fn choices(first: u8, lens: &[u8]) -> Choices {
    let mut choices = [NONE; 9];
    let mut bytes = 0;
    while bytes <= 8 {
        let mut at = lens.len();
        while at > 0 && lens[at - 1] >= bytes as u8 {
            at -= 1;
        }
        if at < lens.len() {
            let tag = first as usize + at;
            choices[bytes] = PAYLOAD_BYTES[tag] * 16 + tag as u8;
        }
        bytes += 1;
    }
    choices
}

const AS_ZERO: Choices = choices(0, &ZERO);
const AS_SUCCESSOR: Choices = choices(FIRST_SUCCESSOR, &SUCCESSOR);
const AS_ALIKE: Choices = choices(FIRST_ALIKE, &ALIKE);

/// What has been seen of a page so far.
struct Seen {
    /// The last word of each entry, and the word that followed it.
    words: [u64; 256],
    successors: [u64; 256],
    /// The entry of the previous word.
    previous: u8,
}

impl Seen {
    fn new() -> Seen {
        Seen { words: [0; 256], successors: [0; 256], previous: 0 }
    }

    fn entry(word: u64) -> u8 {
        ((word >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
    }

    fn add(&mut self, word: u64, entry: u8) {
        self.words[usize::from(entry)] = word;
        self.successors[usize::from(self.previous)] = word;
        self.previous = entry;
    }
}

fn bytes_of(word: u64) -> usize {
    (71 - word.leading_zeros() as usize) / 8
}

/// A page that is packed in two steps, so that after the first one it may be left.
pub(crate) struct Packing<'a> {
    page: &'a PageBytes,
    out: &'a mut [u8; BUFFER_BYTES],
    at: usize,
    seen: Seen,
}

/// Pairs of words, in all and in the first step.
const PAIRS: usize = WORDS / 2;
const FIRST: usize = PAIRS / 8;
/// The most that [`Packing::first_payload`] tells, in bytes.
pub(crate) const FIRST_PAYLOAD_MAX: usize = FIRST * 16;

impl<'a> Packing<'a> {
    /// Packs the first eighth of a page into the front of `out`.
    #[inline(always)]
    pub(crate) fn begin(page: &'a PageBytes, out: &'a mut [u8; BUFFER_BYTES]) -> Self {
        let mut packing = Packing { page, out, at: TAG_BYTES, seen: Seen::new() };
        packing.pack(0..FIRST);
        packing
    }

    /// What the first eighth takes without its tags, in bytes.
    pub(crate) fn first_payload(&self) -> usize {
        self.at - TAG_BYTES
    }

    /// Packs the rest. Returns the length in bytes, which may be more than a page.
    #[inline(always)]
    pub(crate) fn finish(mut self) -> usize {
        self.pack(FIRST..PAIRS);
        self.at
    }

    #[inline(always)]
    fn pack(&mut self, pairs: Range<usize>) {
        let Packing { page, out, seen, .. } = self;
        let mut at = self.at;
        for pair in pairs {
            let mut tags = 0;
            for half in 0..2 {
                let word = u64::from_le_bytes(page.as_chunks::<8>().0[2 * pair + half]);
                let entry = Seen::entry(word);
                let successor = word ^ seen.successors[usize::from(seen.previous)];
                let alike = word ^ seen.words[usize::from(entry)];
                seen.add(word, entry);
                let (mut best, mut payload) = (AS_ZERO[bytes_of(word)], word);
                for (choice, other) in
                    [(AS_SUCCESSOR[bytes_of(successor)], successor), (AS_ALIKE[bytes_of(alike)], alike << 8 | u64::from(entry))]
                {
                    payload = if choice < best { other } else { payload };
                    best = best.min(choice);
                }
                out[at..at + 8].copy_from_slice(&payload.to_le_bytes());
                at += usize::from(best / 16);
                tags |= (best % 16) << (4 * half);
            }
            out[pair] = tags;
        }
        self.at = at;
    }
}

/// Unpacks a page. `None` if the bytes are too few or too many; then `page` may have any content.
pub(crate) fn unpack(packed: &[u8], page: &mut PageBytes) -> Option<()> {
    let mut seen = Seen::new();
    let mut at = TAG_BYTES;
    for (index, word) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let tag = packed.get(index / 2)? >> (index % 2 * 4) & 15;
        let len = PAYLOAD_BYTES[usize::from(tag)];
        let payload = eight_bytes(packed, at)? & u64::MAX.checked_shr(64 - 8 * u32::from(len)).unwrap_or(0);
        at += usize::from(len);
        let value = if tag < FIRST_SUCCESSOR {
            payload
        } else if tag < FIRST_ALIKE {
            payload ^ seen.successors[usize::from(seen.previous)]
        } else {
            payload >> 8 ^ seen.words[(payload & 0xff) as usize]
        };
        seen.add(value, Seen::entry(value));
        *word = value.to_le_bytes();
    }
    (at == packed.len()).then_some(())
}

/// The eight bytes at `at`, with zeros after the end.
fn eight_bytes(packed: &[u8], at: usize) -> Option<u64> {
    let rest = packed.get(at..)?;
    Some(u64::from_le_bytes(rest.first_chunk().copied().unwrap_or_else(|| {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        last
    })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packed(page: &PageBytes) -> Vec<u8> {
        let mut out = [0xee; BUFFER_BYTES];
        let len = Packing::begin(page, &mut out).finish();
        out[..len].to_vec()
    }

    fn page_of(word: impl Fn(u64) -> u64) -> PageBytes {
        let mut page = [0; PAGE_SIZE];
        page.as_chunks_mut::<8>().0.iter_mut().zip(0..).for_each(|(bytes, index)| *bytes = word(index).to_le_bytes());
        page
    }

    /// Sixteen tags, each prediction with growing payloads that are long enough.
    #[test]
    fn each_length_has_the_shortest_payload() {
        for (choices, lens, head) in [(AS_ZERO, &ZERO[..], 0), (AS_SUCCESSOR, &SUCCESSOR, 0), (AS_ALIKE, &ALIKE, 1)] {
            for (bytes, &choice) in choices.iter().enumerate() {
                match lens.iter().find(|len| usize::from(**len) >= bytes) {
                    Some(want) => assert_eq!((choice / 16, PAYLOAD_BYTES[usize::from(choice % 16)]), (want + head, want + head)),
                    None => assert_eq!(choice, NONE),
                }
            }
        }
        assert_eq!(AS_ZERO[8] / 16, 8, "any word fits");
    }

    /// By hand: what a page of objects takes.
    #[test]
    fn objects_take_what_their_predictions_leave_open() {
        assert_eq!(packed(&[0; PAGE_SIZE]).len(), TAG_BYTES);
        // one object after the other: a type, a counter in its low byte, a pointer into one page
        let objects = page_of(|index| match index % 4 {
            0 => 0x0000_7f12_3456_7000,
            1 => 0x1_0000_0000_0000 + index / 4,
            2 => 0x0000_55aa_bbcc_d000 + index,
            _ => 0,
        });
        // the first object: 6 bytes, 7 or 8, and 6; each other one: nothing, 1, 2 at most, nothing
        let len = packed(&objects).len();
        assert!((TAG_BYTES + 2 * 127..=TAG_BYTES + 20 + 3 * 127).contains(&len), "{len}");
    }

    /// Words that nothing predicts take more room than they had.
    #[test]
    fn noise_is_longer_than_a_page() {
        let noise = page_of(|index| (index + 1).wrapping_mul(0x5851_f42d_4c95_7f2d).rotate_left(29) | 1 << 63);
        assert!(packed(&noise).len() > PAGE_SIZE);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 1024 }))]
        /// Pages of words of all lengths, some of which are repeated, exactly or nearly.
        #[test]
        fn a_page_comes_back(
            words in prop::collection::vec((any::<u64>(), 0..64u32, 0..4usize, 0..4096u64), 1..40), step in 1..40usize,
        ) {
            let page = page_of(|index| {
                let at = |index: usize| words[index % words.len()];
                let (word, shift, kind, near) = at(index as usize);
                match kind {
                    0 => word >> shift,
                    1 => at(index as usize / step).0 ^ near,
                    2 => at(step).0,
                    _ => 0,
                }
            });
            let packed = packed(&page);
            let mut back = [0x55; PAGE_SIZE];
            prop_assert_eq!(unpack(&packed, &mut back), Some(()));
            prop_assert!(back == page);
            // a byte more or fewer is no page
            prop_assert_eq!(unpack(&packed[..packed.len() - 1], &mut back), None);
            prop_assert_eq!(unpack(&[&packed[..], &[0]].concat(), &mut back), None);
        }

        #[test]
        fn any_bytes_are_a_page_or_damaged(junk in prop::collection::vec(any::<u8>(), 0..BUFFER_BYTES)) {
            let _ = unpack(&junk, &mut [0; PAGE_SIZE]);
        }
    }
}

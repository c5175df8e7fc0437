//! Encryption. An AEAD seals a page on its way out and opens it on its way in, under keys that exist only in this process.
//!
//! ```text
//!   page ----+                                                 +--> ciphertext, 4096 bytes: to the device
//!            +--> AEGIS-128L (key, nonce = number of the write) +
//!   key -----+                                                 +--> its tag, 16 bytes } remembered in memory:
//!                                 number, its low 4 bytes ----------------------------} a `Tag`
//! ```
//!
//! **Promises.** An attacker who reads the device, at any time and repeatedly, learns which slots were written when, and nothing
//! else. An attacker who writes to it can make a page unreadable, but cannot make another content pass: not a changed one, not that
//! of another page, not an older one of the same page (2^-128 per try, and a failed try loses the page). Attackers who can read
//! this process's memory are not in scope. The program's pages are there in the clear, and copies of the key pass through registers
//! and stacks of the threads that seal.
//!
//! **Numbers and nonces.** Each write takes the next number of a 64-bit counter, and the number is the nonce. There is no way to
//! seal without taking a number, so two writes never use one nonce with one key. A page whose write failed is sealed anew under a
//! new number. A *fork* copies key and counter. So the child adds a key of its own ([`Keys::add`]) before it writes anything, and
//! goes on counting from the parent's number. Each key serves the numbers from its first one up to that of the next key, so the
//! number alone tells which key opens a page. The child opens inherited pages with inherited keys, and never seals with these
//! again.
//!
//! To find out whether a page is unchanged, it is sealed once more under the *stored* number, and the tags are compared
//! ([`Keys::is_unchanged`]). Two contents may then have been encrypted with one nonce. But ciphertext and tag of the second never
//! leave the caller's scratch page, which lies next to the page itself. A hash of the content next to the tag would take 8 bytes
//! more per page and be as slow.
//!
//! **What is kept in memory.** Only the low half of the number, so that 20 bytes per page are enough. The high half is that of the
//! counter, unless more than 2^32 pages (16 TiB) were written since. Then candidates are tried, newest first, and the tag shows the
//! right one. The tag is whole: 16 bytes. It is masked with the page's identity (see [`Tag`]). Object and index are not
//! authenticated as associated data, because mremap renames pages and must not have to read them. The number of the write is
//! covered already, because it is the nonce.
//!
//! **Why AEGIS-128L.** Measured (bench/RESULTS-store.md): it costs about half of AES-128-GCM in ring, and a quarter of AES-128-GCM
//! in pure Rust. It is one of the winners of CAESAR, and an IRTF draft. The crate `aegis` has its authors' C code, which finds
//! AES-NI at run time and has a constant-time fallback. It calls no malloc, and takes no lock once a key was added. Of thread-local
//! storage it touches `errno` only, for lengths that are never passed here. aws-lc keeps its error queue in thread-local storage
//! that it allocates. The pure Rust version of AEGIS uses AES-NI only if that is chosen at compile time.
//!
//! Source: Wu, Preneel 2013, "AEGIS: a fast authenticated encryption algorithm"; draft-irtf-cfrg-aegis-aead. Read, not copied.

use crate::PageBytes;
use aegis::aegis128l::Aegis128L;
use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use overspill_vm::types::{PAGE_SIZE, PageId, Tag};

/// Bytes of a key.
pub const KEY_BYTES: usize = 16;
/// The most keys of one process: its own, and one for each ancestor that has sealed anything. As many as fit into a page.
pub const KEYS_MAX: usize = 170;
/// How many numbers share their high half.
const EPOCH: u64 = 1 << 32;

/// A process's keys. They fit into a page, so that the caller can put them into memory that is locked and not dumped.
///
/// All fields are atomic, because a wipe and a fork's child change them while threads share them. Nothing here waits.
pub struct Keys {
    /// The number of the next write.
    next: AtomicU64,
    count: AtomicU32,
    keys: [Key; KEYS_MAX],
}

struct Key {
    words: [AtomicU64; 2],
    /// The first number that the key serves.
    first: AtomicU64,
}

const _: () = assert!(size_of::<Keys>() <= PAGE_SIZE);

/// There are [`KEYS_MAX`] keys already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyKeys;

impl Default for Keys {
    fn default() -> Self {
        Self::new()
    }
}

impl Keys {
    /// None yet.
    pub const fn new() -> Keys {
        let keys = [const { Key { words: [const { AtomicU64::new(0) }; 2], first: AtomicU64::new(0) } }; KEYS_MAX];
        Keys { next: AtomicU64::new(0), count: AtomicU32::new(0), keys }
    }

    /// Makes `key` the key for sealing from now on: 16 random bytes from the kernel that are used for nothing else. If nothing was
    /// sealed with the last key, it is forgotten.
    ///
    /// => no other thread seals meanwhile (at the start, or in a fork's child while it is alone); does not allocate
    ///
    /// # Errors
    /// [`TooManyKeys`]; then nothing is changed.
    pub fn add(&self, key: &[u8; KEY_BYTES]) -> Result<(), TooManyKeys> {
        let count = self.count.load(Relaxed) as usize;
        let unused = |key: &Key| key.first.load(Relaxed) == self.next.load(Relaxed);
        let at = if self.keys[..count].last().is_some_and(unused) { count - 1 } else { count };
        let slot = self.keys.get(at).ok_or(TooManyKeys)?;
        let [low, high] = key.as_chunks::<8>().0 else { unreachable!("16 bytes") };
        slot.words[0].store(u64::from_le_bytes(*low), Relaxed);
        slot.words[1].store(u64::from_le_bytes(*high), Relaxed);
        slot.first.store(self.next.load(Relaxed), Relaxed);
        let _ = Aegis128L::<16>::new(key, &[0; 16]); // chooses the implementation for this CPU, once
        self.count.store(at as u32 + 1, Release); // pairs with the Acquire in `cipher`
        Ok(())
    }

    /// Encrypts `page` with the content `plain` into `sealed`, under a number of its own. Returns the tag that opens it again.
    ///
    /// => does not wait; does not allocate
    ///
    /// # Panics
    /// If there is no key.
    pub fn seal(&self, page: PageId, plain: &PageBytes, sealed: &mut PageBytes) -> Tag {
        let number = self.next.fetch_add(1, Relaxed);
        Tag::new(page, self.encrypt(number, plain, sealed), number as u32)
    }

    /// Decrypts `bytes` in place; they were read from where `page` is stored with `tag`. Returns whether they are what was sealed.
    /// If not, they are erased.
    ///
    /// => does not wait; does not allocate
    #[must_use]
    pub fn open(&self, page: PageId, tag: Tag, bytes: &mut PageBytes) -> bool {
        let expected = tag.unmasked(page).to_le_bytes();
        let mut candidates = self.candidates(tag);
        let Some(mut number) = candidates.next() else {
            bytes.fill(0); // no write has had such a number yet
            return false;
        };
        for older in candidates {
            let mut copy = *bytes; // a failure erases the copy
            if self.cipher(number).decrypt_in_place(&mut copy, &expected, &[]).is_ok() {
                *bytes = copy;
                return true;
            }
            number = older;
        }
        self.cipher(number).decrypt_in_place(bytes, &expected, &[]).is_ok()
    }

    /// Whether `page`, with the content `plain`, is what was sealed as `tag`. Overwrites `scratch`, which must not be kept.
    ///
    /// => does not wait; does not allocate
    #[must_use]
    pub fn is_unchanged(&self, page: PageId, tag: Tag, plain: &PageBytes, scratch: &mut PageBytes) -> bool {
        let expected = tag.unmasked(page);
        self.candidates(tag).any(|number| self.encrypt(number, plain, scratch) == expected)
    }

    /// A tag of `page` with the content `plain` that only holders of the newest key can compute; the same each time. Nothing is
    /// encrypted: the content is authenticated as associated data of an empty message, with a nonce that no write ever has. As
    /// with [`Keys::is_unchanged`], such tags must not leave this process, because they share their nonce.
    ///
    /// => does not wait; does not allocate
    ///
    /// # Panics
    /// If there is no key.
    pub fn fingerprint(&self, page: PageId, plain: &PageBytes) -> Tag {
        let tag = Aegis128L::<16>::new(&self.key_of(u64::MAX), &[0xff; 16]).encryptor(plain).finalize();
        Tag::new(page, u128::from_le_bytes(tag), 0)
    }

    /// Forgets all keys. Pages that they have sealed can never be opened again.
    pub fn wipe(&self) {
        self.count.store(0, SeqCst);
        for key in &self.keys {
            for word in &key.words {
                word.store(0, SeqCst);
            }
        }
        core::hint::black_box(self);
    }

    /// The possible numbers of a write, newest first, from the first key's on. There is more than one only after 2^32 writes.
    fn candidates(&self, tag: Tag) -> impl Iterator<Item = u64> + use<> {
        let (first, next) = (self.keys[0].first.load(Relaxed), self.next.load(Relaxed));
        let same_epoch = next & !(EPOCH - 1) | u64::from(tag.number());
        let newest = if same_epoch < next { Some(same_epoch) } else { same_epoch.checked_sub(EPOCH) };
        core::iter::successors(newest, |number| number.checked_sub(EPOCH)).take_while(move |number| *number >= first)
    }

    /// The cipher for one write.
    fn cipher(&self, number: u64) -> Aegis128L<16> {
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&number.to_le_bytes());
        Aegis128L::new(&self.key_of(number), &nonce)
    }

    fn key_of(&self, number: u64) -> [u8; KEY_BYTES] {
        let count = self.count.load(Acquire) as usize;
        let key = self.keys[..count].iter().rev().find(|key| key.first.load(Relaxed) <= number).expect("a key for the number");
        let mut bytes = [0; KEY_BYTES];
        let [low, high] = bytes.as_chunks_mut::<8>().0 else { unreachable!("16 bytes") };
        *low = key.words[0].load(Relaxed).to_le_bytes();
        *high = key.words[1].load(Relaxed).to_le_bytes();
        bytes
    }

    fn encrypt(&self, number: u64, plain: &PageBytes, sealed: &mut PageBytes) -> u128 {
        let mut encryptor = self.cipher(number).encryptor(&[]);
        encryptor.update(plain, sealed);
        u128::from_le_bytes(encryptor.finalize())
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.wipe();
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("count", &self.count).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overspill_vm::types::ObjectId;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn page(index: u64) -> PageId {
        PageId::new(ObjectId(1), index)
    }

    fn keys(fill: u8) -> Keys {
        let keys = Keys::new();
        keys.add(&[fill; KEY_BYTES]).unwrap();
        keys
    }

    fn pattern(seed: u8) -> PageBytes {
        core::array::from_fn(|i| (i as u8).wrapping_mul(31) ^ (i >> 4) as u8 ^ seed)
    }

    /// Copies keys and counter, as a fork does.
    fn copy_of(keys: &Keys) -> Keys {
        let copy = Keys::new();
        copy.next.store(keys.next.load(Relaxed), Relaxed);
        copy.count.store(keys.count.load(Relaxed), Relaxed);
        for (to, from) in copy.keys.iter().zip(&keys.keys) {
            to.first.store(from.first.load(Relaxed), Relaxed);
            to.words[0].store(from.words[0].load(Relaxed), Relaxed);
            to.words[1].store(from.words[1].load(Relaxed), Relaxed);
        }
        copy
    }

    /// What a file had, and what memory has: a change of any kind is seen, and no key but ours gives the same tags.
    #[test]
    fn a_fingerprint_tells_contents_pages_and_keys_apart() {
        let (ours, other) = (keys(1), keys(2));
        let mut bytes = pattern(3);
        let tag = ours.fingerprint(page(7), &bytes);
        assert_eq!(ours.fingerprint(page(7), &bytes), tag);
        assert_ne!(ours.fingerprint(page(8), &bytes), tag);
        assert_ne!(other.fingerprint(page(7), &bytes), tag);
        for bit in 0..PAGE_SIZE * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(ours.fingerprint(page(7), &bytes), tag, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let sealed = ours.seal(page(7), &pattern(3), &mut bytes);
        assert_ne!(sealed.unmasked(page(7)), tag.unmasked(page(7)), "no write has its nonce");
    }

    /// Flips each of the 32,768 bits on the device, and each of the 160 in memory.
    #[test]
    fn every_flipped_bit_is_detected() {
        let keys = keys(5);
        let plain = pattern(1);
        let mut sealed = [0; PAGE_SIZE];
        let tag = keys.seal(page(9), &plain, &mut sealed);
        for bit in 0..PAGE_SIZE * 8 {
            let mut bytes = sealed;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!keys.open(page(9), tag, &mut bytes), "bit {bit}");
            assert!(bytes.iter().all(|b| *b == 0), "nothing is left of a page that is not to be used");
        }
        for bit in 0..160 {
            let mut words = tag.to_words();
            words[bit / 32] ^= 1 << (bit % 32);
            assert!(!keys.open(page(9), Tag::from_words(words), &mut sealed.clone()), "bit {bit} of the record");
        }
        assert!(keys.open(page(9), tag, &mut sealed));
        assert_eq!(sealed, plain);
    }

    /// A slot has the perfectly sealed content of another page, or an older one: a lost or misplaced write.
    #[test]
    fn only_the_last_write_of_the_page_itself_opens() {
        let keys = keys(5);
        let (mut old, mut new, mut other) = ([0; PAGE_SIZE], [0; PAGE_SIZE], [0; PAGE_SIZE]);
        let was = keys.seal(page(1), &pattern(1), &mut old);
        let is = keys.seal(page(1), &pattern(1), &mut new);
        let others = keys.seal(page(2), &pattern(1), &mut other);
        assert!(old != new && new != other, "the same content is never the same ciphertext");
        assert!(!keys.open(page(1), is, &mut old.clone()));
        assert!(!keys.open(page(1), was, &mut new.clone()));
        assert!(!keys.open(page(1), is, &mut other.clone()));
        assert!(!keys.open(page(1), others, &mut other.clone()), "a record that belongs to another page");
        assert!(keys.open(page(3), others.renamed(page(2), page(3)), &mut other), "a page that has moved");
        assert_eq!(other, pattern(1));
        assert!(keys.open(page(1), is, &mut new));
    }

    #[test]
    fn no_16_bytes_of_the_page_are_left() {
        let keys = keys(5);
        let mut plain = pattern(7);
        plain[2048..].fill(0);
        let known: HashSet<&[u8]> = plain.windows(16).collect();
        for _ in 0..100 {
            let mut sealed = [0; PAGE_SIZE];
            keys.seal(page(1), &plain, &mut sealed);
            assert!(sealed.windows(16).all(|w| !known.contains(w)));
        }
    }

    #[test]
    fn unchanged_pages_are_known() {
        let keys = keys(5);
        let mut scratch = [0; PAGE_SIZE];
        let mut plain = pattern(3);
        let tag = keys.seal(page(1), &plain, &mut [0; PAGE_SIZE]);
        assert!(keys.is_unchanged(page(1), tag, &plain, &mut scratch));
        assert!(!keys.is_unchanged(page(2), tag, &plain, &mut scratch));
        for at in [0, 1, 63, 64, 2048, 4095] {
            plain[at] ^= 0x80;
            assert!(!keys.is_unchanged(page(1), tag, &plain, &mut scratch));
            plain[at] ^= 0x80;
        }
        assert!(keys.is_unchanged(page(1), tag, &plain, &mut scratch));
    }

    /// A child whose parent had sealed 2^32 pages and had none in swap any more looked for numbers from before its first key.
    #[test]
    fn no_key_has_numbers_from_before_it() {
        let keys = keys(1);
        keys.next.store(EPOCH + 5, Relaxed);
        keys.wipe();
        keys.add(&[2; KEY_BYTES]).unwrap();
        let (plain, other, mut sealed, mut scratch) = (pattern(3), pattern(4), [0; PAGE_SIZE], [0; PAGE_SIZE]);
        let tag = keys.seal(page(1), &plain, &mut sealed);
        assert!(keys.is_unchanged(page(1), tag, &plain, &mut scratch) && !keys.is_unchanged(page(1), tag, &other, &mut scratch));
        let mut damaged = sealed;
        damaged[7] ^= 1;
        assert!(!keys.open(page(1), tag, &mut damaged) && keys.open(page(1), tag, &mut sealed) && sealed == plain);
    }

    /// Parent and child go on from the same counter, one generation after the other, down to the greatest depth.
    #[test]
    fn forks_read_what_they_inherited_and_share_no_key_and_number() {
        let mut family = vec![keys(0)];
        let mut stored = vec![]; // by generation: pages that it could read at its fork
        let mut sealed_with = HashSet::new();
        for generation in 0..KEYS_MAX as u8 {
            let mine = family.last().unwrap();
            let mut readable: Vec<(PageId, Tag, PageBytes, u8)> = stored.last().cloned().unwrap_or_default();
            for n in 0..3 {
                // all living generations write: each must find numbers that were never used with its key
                for (g, keys) in family.iter().enumerate() {
                    let mut sealed = [0; PAGE_SIZE];
                    let tag = keys.seal(page(n), &pattern(generation), &mut sealed);
                    assert!(sealed_with.insert((g, tag.number())), "a nonce is used twice");
                    if g == generation as usize {
                        readable.push((page(n), tag, sealed, generation));
                    }
                }
            }
            for (page, tag, sealed, written_by) in &readable {
                let mut bytes = *sealed;
                assert!(mine.open(*page, *tag, &mut bytes), "generation {generation} reads what {written_by} wrote");
                assert_eq!(bytes, pattern(*written_by));
            }
            stored.push(readable);
            let child = copy_of(mine);
            let added = child.add(&[generation + 1; KEY_BYTES]);
            assert_eq!(added.is_ok(), (generation as usize) < KEYS_MAX - 1);
            family.push(child);
            if added.is_err() {
                break;
            }
        }
        let (_, tag, sealed, _) = &stored[2][8];
        assert!(!family[1].open(page(2), *tag, &mut sealed.clone()), "a parent has not its child's key");
    }

    #[test]
    fn forgotten_keys_are_gone() {
        let keys = keys(5);
        keys.wipe();
        assert!(keys.keys.iter().all(|k| k.words.iter().all(|w| w.load(Relaxed) == 0)));
        assert_eq!(format!("{keys:?}"), "Keys { count: 0, .. }");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Pages open however far the counter has gone since: by up to 64 TiB.
        #[test]
        fn pages_of_any_age_open(start in prop_oneof![Just(0), Just(EPOCH - 3), 0..4 * EPOCH], since in 0..4 * EPOCH, seed: u8) {
            let keys = keys(1);
            keys.next.store(start, Relaxed);
            let mut sealed = [0; PAGE_SIZE];
            let tag = keys.seal(page(1), &pattern(seed), &mut sealed);
            keys.next.fetch_add(since, Relaxed);
            prop_assert!(keys.is_unchanged(page(1), tag, &pattern(seed), &mut [0; PAGE_SIZE]));
            prop_assert!(!keys.is_unchanged(page(1), tag, &pattern(seed ^ 1), &mut [0; PAGE_SIZE]));
            let mut damaged = sealed;
            damaged[17] ^= 4;
            prop_assert!(!keys.open(page(1), tag, &mut damaged));
            prop_assert!(keys.open(page(1), tag, &mut sealed));
            prop_assert_eq!(sealed, pattern(seed));
        }
    }
}

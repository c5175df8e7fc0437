//! Sealed pages with any damage, also to their records in memory: only the page that was sealed is opened.
#![no_main]

use libfuzzer_sys::fuzz_target;
use overspill_store::PageBytes;
use overspill_store::seal::{KEY_BYTES, Keys};
use overspill_vm::types::{Tag, ObjectId, PAGE_SIZE, PageId};

/// The number of writes of the page, its index and the index as which it is opened, changes to the record, changes to bytes, and
/// the content.
type Input = (u8, u64, u64, [u8; 20], Vec<(u16, u8)>, Vec<u8>);

fuzz_target!(|input: Input| {
    let (writes, index, other, changes, damage, content) = input;
    let keys = Keys::new();
    keys.add(&[writes; KEY_BYTES]).expect("the first");
    let (mut plain, mut sealed): (PageBytes, PageBytes) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
    plain.iter_mut().zip(&content).for_each(|(to, from)| *to = *from);
    let page = |index: u64| PageId::new(ObjectId(1), index % PageId::INDEX_LIMIT);
    let mut remembered = keys.seal(page(index), &plain, &mut sealed);
    for _ in 0..writes {
        remembered = keys.seal(page(index), &plain, &mut sealed);
    }
    let mut words = remembered.to_words();
    for (word, bytes) in words.iter_mut().zip(changes.as_chunks::<4>().0) {
        *word ^= u32::from_ne_bytes(*bytes);
    }
    let (mut bytes, damaged) = (sealed, Tag::from_words(words));
    damage.iter().for_each(|(at, change)| bytes[*at as usize % PAGE_SIZE] ^= change);
    // a record is valid for another page if it is masked with that page's identity, as a rename does
    let record = |tag: Tag, at| (tag.unmasked(page(at)), tag.number());
    let whole = bytes == sealed && record(damaged, other) == record(remembered, index);
    assert_eq!(keys.open(page(other), damaged, &mut bytes), whole);
    assert!(bytes == if whole { plain } else { [0; PAGE_SIZE] }, "nothing is left of a page that is not to be used");
    let mut scratch = [0; PAGE_SIZE];
    assert!(keys.is_unchanged(page(index), remembered, &plain, &mut scratch));
});

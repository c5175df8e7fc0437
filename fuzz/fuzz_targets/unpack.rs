//! Any bytes that the pool's arena might have after damage: unpacking gives an error, or a page that packs and unpacks to itself.
#![no_main]

use libfuzzer_sys::fuzz_target;
use overspill_store::checksum;
use overspill_store::packing::{Algorithm, Packed, Packer, Unpacker};
use overspill_vm::types::{PAGE_SIZE, PageId};

fuzz_target!(|bytes: &[u8]| {
    [Algorithm::Words, Algorithm::Lz4, Algorithm::ZSTD].into_iter().for_each(|algorithm| of(algorithm, bytes));
});

fn of(algorithm: Algorithm, bytes: &[u8]) {
    let (mut packer, mut unpacker) = (Packer::new(algorithm), Unpacker::new(algorithm));
    let (mut page, mut again) = ([0; PAGE_SIZE], [1; PAGE_SIZE]);
    if unpacker.unpack(bytes, &mut page).is_err() {
        return;
    }
    let id = PageId::from_raw(7);
    let stored = checksum::of(id, &page);
    let Packed::Bytes(packed) = packer.pack(&page) else { return };
    let mut damaged = packed.to_vec();
    unpacker.unpack(&damaged, &mut again).expect("what was packed");
    assert!(again == page);
    if let Some(first) = bytes.first() {
        let at = usize::from(*first) % damaged.len();
        damaged[at] ^= 1 << (first % 8);
        assert!(unpacker.unpack(&damaged, &mut again).is_err() || again == page || checksum::of(id, &again) != stored);
    }
}

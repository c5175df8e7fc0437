//! The swap file shows nothing of the pages, unless encryption is off. Damage to it never reaches the program.

mod common;

use common::*;
use overspill::{Builder, Delivery, Error, Pager, Region};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A directory of this test's own.
fn place(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("overspill-sealed-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("temp dir");
    dir
}

/// The swap file, which has no name, of a pager of this process in `dir`.
fn swap_file(dir: &Path) -> File {
    assert_eq!(std::fs::read_dir(dir).expect("dir").count(), 0, "it has a name");
    let fds = std::fs::read_dir("/proc/self/fd").expect("descriptors").map(|e| e.expect("entry").path());
    let ours = |fd: &PathBuf| std::fs::read_link(fd).is_ok_and(|target| target.starts_with(dir));
    let fd = fds.into_iter().find(ours).expect("an open swap file");
    OpenOptions::new().read(true).write(true).open(fd).expect("it opens again")
}

const HALVES: [&[u8; 8]; 2] = [b"overspil", b"l secret"];

/// Each page: its number, then one text over and over.
fn fill(region: &mut Region) {
    let halves = HALVES.map(|h| u64::from_ne_bytes(*h));
    for (i, word) in region.as_mut_slice_of::<u64>().iter_mut().enumerate() {
        *word = if i % 512 == 0 { i as u64 / 512 + 1 } else { halves[i % 2] };
    }
}

/// Counts places in the file that have a half of the text. Any 16 bytes of the text have one of its halves in one piece.
fn halves_in(file: &File) -> usize {
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut &*file, &mut bytes).expect("the file is read");
    assert!(bytes.len() > 8 * MIB, "{} bytes of swap", bytes.len());
    bytes.windows(8).filter(|w| HALVES.iter().any(|half| w == half)).count()
}

fn builder(dir: &Path, delivery: Delivery) -> Builder {
    Pager::builder().memory(BUDGET).delivery(delivery).swap(dir)
}

#[test]
fn nothing_of_a_page_is_in_the_swap_file() {
    let dir = place("text");
    for (encrypt, delivery) in [(true, Delivery::InThread), (true, Delivery::Threads), (false, Delivery::InThread)] {
        let Some(pager) = build(builder(&dir, delivery).encrypt(encrypt)) else { continue };
        let mut region = pager.region(24 * MIB).expect("a region");
        fill(&mut region);
        let found = halves_in(&swap_file(&dir));
        eprintln!("{delivery:?}, encrypted: {encrypt}: {found} pieces of text in the swap file");
        assert_eq!(found == 0, encrypt);
        let words = region.as_slice_of::<u64>();
        assert!((0..24 * MIB / PAGE).all(|page| words[page * 512] == page as u64 + 1 && words[page * 512 + 511] == words[511]));
    }
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// A bit is flipped in every page of the swap file. Then every page is touched.
#[test]
fn a_flipped_bit_is_never_handed_out() {
    let dir = place("flip");
    let pages = 64 * MIB / PAGE;
    for (encrypt, delivery) in [(true, Delivery::InThread), (true, Delivery::Threads), (false, Delivery::InThread)] {
        let Some(pager) = build(builder(&dir, delivery).encrypt(encrypt)) else { continue };
        let mut region = pager.region(pages * PAGE).expect("a region");
        fill(&mut region);
        let file = swap_file(&dir);
        let mut rng = Rng(5);
        let mut flips = 0;
        for page in 0..file.metadata().expect("metadata").len() / PAGE as u64 {
            let mut byte = [0];
            let at = page * PAGE as u64 + rng.below(PAGE) as u64;
            file.read_exact_at(&mut byte, at).expect("read");
            byte[0] ^= 1 << rng.below(8);
            file.write_all_at(&byte, at).expect("write");
            flips += 1;
        }
        let (mut lost, mut right) = (0, 0);
        for page in 0..pages {
            match region.wire(page * PAGE..(page + 1) * PAGE) {
                Err(Error::Lost) => lost += 1,
                Err(e) => panic!("{e}"),
                Ok(_wired) => {
                    let words = &region.as_slice_of::<u64>()[page * 512..][..512];
                    assert!(words[0] == page as u64 + 1, "page {page} is another's");
                    assert!((1..512).all(|i| words[i] == u64::from_ne_bytes(*HALVES[i % 2])), "page {page} is damaged");
                    right += 1;
                }
            }
        }
        eprintln!("{delivery:?}, encrypted: {encrypt}: {flips} bits flipped, {lost} pages lost, {right} right");
        assert!(lost >= 10_000, "most pages were in the file");
        assert!(right as u64 <= BUDGET / PAGE as u64 + 1024, "those right were in memory, or written after the flip");
        assert_eq!(pager.counters().corrupt_pages.get(), lost);
    }
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

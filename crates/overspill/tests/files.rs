//! Regions of files: the same bytes in memory and in the file.

mod common;

use common::*;
use overspill::{Access, FileOptions};
use std::path::PathBuf;

/// A file that is removed at the end.
struct Temp(PathBuf);

impl Temp {
    fn new(name: &str, bytes: &[u8]) -> Temp {
        let path = std::env::temp_dir().join(format!("overspill-files-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).expect("a file");
        Temp(path)
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn random_bytes(len: usize) -> Vec<u8> {
    let mut rng = Rng(7);
    (0..len.div_ceil(8)).flat_map(|_| rng.next().to_ne_bytes()).take(len).collect()
}

/// A file of three times the budget, whose end lies within a page, is read as it is, in order and at random.
#[test]
fn a_file_is_read() {
    let bytes = random_bytes(3 * BUDGET as usize + 1234);
    let file = Temp::new("read", &bytes);
    for pager in both() {
        let region = pager.open_file(&file.0, Access::ReadOnly).expect("a region");
        assert_eq!(region.len(), bytes.len());
        // SAFETY: nobody changes the file.
        let slice = unsafe { region.as_slice() };
        assert!(slice == bytes, "in order");
        let mut rng = Rng(1);
        for _ in 0..3000 {
            let at = rng.below(bytes.len());
            assert_eq!(slice[at], bytes[at], "byte {at}");
        }
        let c = pager.counters();
        assert!(c.file_pages_in.get() > 6000 && c.pages_out.get() == 0 && c.file_pages_out.get() == 0, "{pager:?}");
        assert_budget(&pager, 1);
    }
}

/// What is written to a read-write region is in the file when it has been flushed, or when the region is gone.
#[test]
fn changes_reach_the_file() {
    for pager in both() {
        let mut bytes = random_bytes(3 * BUDGET as usize + 777);
        let file = Temp::new("write", &bytes);
        let mut region = pager.open_file(&file.0, Access::ReadWrite).expect("a region");
        let mut rng = Rng(2);
        for round in 0..4 {
            for _ in 0..1500 {
                let at = rng.below(bytes.len() - 100);
                let new = rng.next().to_ne_bytes();
                bytes[at..at + 8].copy_from_slice(&new);
                region.write_at(&new, at).expect("written");
            }
            if round < 3 {
                region.flush(..).expect("flushed");
                assert!(std::fs::read(&file.0).expect("the file") == bytes, "round {round}");
            }
        }
        let mut back = vec![0; bytes.len()];
        region.read_at(&mut back, 0).expect("read");
        assert!(back == bytes);
        drop(region);
        assert!(std::fs::read(&file.0).expect("the file") == bytes, "dropped");
        assert!(pager.counters().file_pages_out.get() > 0);
        assert_budget(&pager, 1);
    }
}

/// Changes of a copy-on-write region stay in the region, also past the budget.
#[test]
fn private_changes_stay_private() {
    for pager in both() {
        let bytes = random_bytes(3 * BUDGET as usize);
        let file = Temp::new("private", &bytes);
        let mut region = FileOptions::new(Access::CopyOnWrite).offset(100).open(&pager, &file.0).expect("a region");
        // SAFETY: nobody changes the file.
        let slice = unsafe { region.as_mut_slice() }.expect("it may be changed");
        let mut model = bytes[100..].to_vec();
        for at in (0..model.len()).step_by(5000) {
            (slice[at], model[at]) = (slice[at] ^ 1, model[at] ^ 1);
        }
        assert!(slice == model);
        region.reload(1 << 20..2 << 20).expect("read again");
        model[1 << 20..2 << 20].copy_from_slice(&bytes[(1 << 20) + 100..(2 << 20) + 100]);
        // SAFETY: as above.
        assert!(unsafe { region.as_slice() } == model);
        drop(region);
        assert!(std::fs::read(&file.0).expect("the file") == bytes);
        pager.check();
    }
}

//! Regions of files: the same bytes in memory and in the file.

mod common;

use common::*;
use overspill::{Access, Delivery, Error, FileOptions, FileRegion, Pager};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

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

/// Where memory to come is locked, a new region was full of zeroes, which hid the file. Later they were written to it.
#[test]
fn a_region_hides_no_file_where_memory_to_come_is_locked() {
    const PART: &str = "OVERSPILL_TEST_LOCKED";
    if std::env::var_os(PART).is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().expect("its path"));
        let child = child.args(["a_region_hides_no_file_where_memory_to_come_is_locked", "--exact", "--nocapture"]).env(PART, "1");
        let status = child.status().expect("it starts");
        assert!(status.success(), "its part of the test: {status}");
        return;
    }
    let bytes = random_bytes(64 * PAGE);
    for pager in both() {
        for access in [Access::ReadOnly, Access::CopyOnWrite, Access::ReadWrite] {
            let file = Temp::new("locked", &bytes);
            // SAFETY: about new mappings only.
            assert_eq!(unsafe { libc::mlockall(libc::MCL_FUTURE) }, 0, "{}", std::io::Error::last_os_error());
            let region = pager.open_file(&file.0, access);
            // SAFETY: no content changes.
            unsafe { libc::munlockall() };
            let (region, mut there) = (region.expect("a region"), vec![0; bytes.len()]);
            region.read_at(&mut there, 0).expect("no page is lost");
            assert!(there == bytes, "{access:?}");
            region.close().expect("all is written");
            assert!(std::fs::read(&file.0).expect("the file") == bytes, "{access:?}");
        }
    }
}

/// Whoever reads a file in order faster than the device gets long reads, if the budget has room for them.
#[test]
fn a_fast_reader_finds_what_is_there() {
    let budget = 4 * BUDGET;
    let bytes = random_bytes(3 * budget as usize + 99);
    let file = Temp::new("fast", &bytes);
    let Some(pager) = build(Pager::builder().memory(budget)) else { return };
    let region = pager.open_file(&file.0, Access::ReadOnly).expect("a region");
    for _ in 0..2 {
        // SAFETY: nobody changes the file.
        assert!(unsafe { region.as_slice() } == bytes);
    }
    let c = pager.counters();
    eprintln!("{} pages by {} reads", c.file_pages_in.get(), c.page_in_ops.get());
    assert_budget(&pager, 1);
}

/// An index that is in use stays in memory while another file is read through once. Almost all of its pages were evicted once. (By
/// fifo they still are, twice each. On a busy machine the page daemon comes late, and up to half of them are evicted.)
#[test]
fn a_scan_leaves_an_index_alone() {
    let (pages, scanned) = (BUDGET as usize / PAGE / 2, 4 * BUDGET as usize / PAGE);
    let index_file = Temp::new("index", &random_bytes(pages * PAGE));
    let file = Temp::new("scanned", &random_bytes(scanned * PAGE));
    for pager in both() {
        let index = pager.open_file(&index_file.0, Access::ReadOnly).expect("a region");
        let scan = pager.open_file(&file.0, Access::ReadOnly).expect("a region");
        let byte = |region: &FileRegion, page: usize| {
            // SAFETY: within the region; nobody changes the file.
            unsafe { region.as_ptr().add(page * PAGE).read_volatile() }
        };
        let of = |region: &FileRegion| (0..region.len() / PAGE).map(|page| byte(region, page)).collect::<Vec<u8>>();
        let expected = of(&index);
        let mut faults = 0; // of the index: how often the scan waits depends on the machine's load
        let mut rng = Rng(3);
        for page in 0..scanned {
            let (at, before) = (rng.below(pages), pager.counters().hard_faults.get());
            assert_eq!(byte(&index, at), expected[at]);
            faults += pager.counters().hard_faults.get() - before;
            byte(&scan, page);
        }
        assert!(faults < pages as u64, "{faults} hard faults, and the index has {pages} pages: {pager:?}");
        assert_budget(&pager, 2);
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

/// A region's copy of the whole file.
fn bytes_of(region: &FileRegion) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read_at(&mut bytes, 0).expect("read");
    bytes
}

/// Random operations, next to a `Vec<u8>` and what the file must have. Half of the rounds change more than the budget holds.
#[test]
fn a_region_is_like_a_vec() {
    for pager in both() {
        for seed in 0..6 {
            let mut rng = Rng(seed);
            let access = [Access::ReadWrite, Access::CopyOnWrite][seed as usize % 2];
            let first = 1 + rng.below(2 * BUDGET as usize);
            let offset = [0, 1, PAGE, 3 * PAGE + 77][rng.below(4)];
            let before = random_bytes(offset + first);
            let file = Temp::new(&format!("model-{seed}"), &before);
            let capacity = first + MIB;
            let options = FileOptions::new(access).offset(offset as u64).capacity(capacity);
            let mut region = options.open(&pager, &file.0).expect("a region");
            let mut model = before[offset..].to_vec();
            for step in 0..150 {
                let at = rng.below(model.len());
                let len = [1, 8, 100, PAGE, 70 * PAGE, MIB][rng.below(6)].min(model.len() - at);
                let writes = access == Access::ReadWrite;
                match rng.below(10) {
                    0..4 => {
                        let mut new: Vec<u8> = random_bytes(len);
                        new.iter_mut().for_each(|b| *b ^= step as u8);
                        region.write_at(&new, at).expect("written");
                        model[at..at + len].copy_from_slice(&new);
                    }
                    4 | 5 => {
                        let mut bytes = vec![0; len];
                        region.read_at(&mut bytes, at).expect("read");
                        assert!(bytes == model[at..at + len], "seed {seed}, step {step}: {len} bytes at {at}");
                    }
                    6 => {
                        // SAFETY: nobody else changes the file.
                        let slice = unsafe { region.as_mut_slice() }.expect("it may be changed");
                        for i in (at..at + len).step_by(1000) {
                            (slice[i], model[i]) = (step as u8, step as u8);
                        }
                    }
                    7 if writes => {
                        region.flush(at..at + len).expect("flushed");
                        let on_disk = std::fs::read(&file.0).expect("the file");
                        assert!(on_disk[offset + at..offset + at + len] == model[at..at + len], "seed {seed}, step {step}");
                    }
                    7 => {
                        region.reload(at..at + len).expect("read again");
                        // a copy-on-write region keeps what lies outside of the range
                        let on_disk = std::fs::read(&file.0).expect("the file");
                        model[at..at + len].copy_from_slice(&on_disk[offset + at..offset + at + len]);
                    }
                    8 if writes => {
                        region.punch(at..at + len).expect("emptied");
                        model[at..at + len].fill(0);
                    }
                    8 => region.prefetch(at..at + len),
                    _ if writes && model.len() < capacity => {
                        let len = (model.len() + rng.below(3 * PAGE)).min(capacity);
                        region.grow(len).expect("longer");
                        model.resize(len, 0);
                    }
                    _ => {
                        let len = len.min(100 * PAGE);
                        region.wire(at..at + len).expect("wired");
                        region.unwire(..);
                    }
                }
            }
            assert!(bytes_of(&region) == model, "seed {seed}");
            pager.check();
            drop(region);
            let after = std::fs::read(&file.0).expect("the file");
            match access {
                Access::ReadWrite => assert!(after[..offset] == before[..offset] && after[offset..] == model, "seed {seed}"),
                _ => assert!(after == before, "seed {seed}"),
            }
        }
        assert_budget(&pager, 1);
    }
}

/// A region's bytes may lie in another region of the same pager: copies between the two do not wait for themselves.
#[test]
fn copies_between_regions() {
    for pager in both() {
        let bytes = random_bytes(2 * BUDGET as usize);
        let file = Temp::new("between", &bytes);
        let mut region = pager.open_file(&file.0, Access::ReadWrite).expect("a region");
        let mut memory = pager.region(bytes.len()).expect("memory");
        region.read_at(&mut memory, 0).expect("read");
        for at in (0..bytes.len()).step_by(999) {
            region.read_at(&mut memory[at..][..1], at).expect("read");
        }
        assert!(memory[..] == bytes);
        memory.iter_mut().for_each(|b| *b ^= 0xff);
        region.write_at(&memory, 0).expect("written");
        region.flush(..).expect("flushed");
        assert!(std::fs::read(&file.0).expect("the file").iter().zip(&bytes).all(|(new, old)| *new == old ^ 0xff));
    }
}

/// What others write is seen after a reload, and what a read-write region has changed by then is written first.
#[test]
fn others_may_write() {
    for pager in both() {
        let bytes = random_bytes(MIB);
        let file = Temp::new("others", &bytes);
        let mut reader = pager.open_file(&file.0, Access::ReadOnly).expect("a region");
        assert!(bytes_of(&reader) == bytes);
        let theirs = OpenOptions::new().write(true).open(&file.0).expect("the file");
        theirs.write_all_at(b"something else", 5000).expect("written");
        reader.reload(4096..8192).expect("read again");
        assert_eq!(&bytes_of(&reader)[5000..5014], b"something else");
        drop(reader);
        let mut region = pager.open_file(&file.0, Access::ReadWrite).expect("a region");
        region.write_at(b"ours", 9000).expect("written");
        theirs.write_all_at(b"theirs", 20_000).expect("written");
        region.reload(..).expect("read again");
        let all = bytes_of(&region);
        assert_eq!((&all[9000..9004], &all[20_000..20_006]), (&b"ours"[..], &b"theirs"[..]));
        assert_eq!(&std::fs::read(&file.0).expect("the file")[9000..9004], b"ours");
    }
}

/// Pages of a file belong to one region, unless nobody writes.
#[test]
fn two_regions_of_a_file() {
    for pager in both() {
        let bytes = random_bytes(MIB);
        let file = Temp::new("two", &bytes);
        let part = |access, offset, len| FileOptions::new(access).offset(offset).len(len).open(&pager, &file.0);
        let one = part(Access::ReadOnly, 0, MIB).expect("a region");
        let two = part(Access::CopyOnWrite, 0, MIB).expect("a second one");
        assert!(bytes_of(&one) == bytes_of(&two));
        let refused = part(Access::ReadWrite, 8192, 100);
        assert!(matches!(&refused, Err(Error::FileShared { path }) if *path == file.0), "{refused:?}");
        drop((one, two));
        let one = part(Access::ReadWrite, 0, 8192).expect("a region");
        let two = part(Access::ReadWrite, 8192, 100).expect("other pages");
        assert!(matches!(part(Access::ReadOnly, 8191, 100), Err(Error::FileShared { .. })));
        let link = Temp(std::env::temp_dir().join(format!("overspill-files-{}-link", std::process::id())));
        std::fs::hard_link(&file.0, &link.0).expect("a link");
        assert!(matches!(pager.open_file(&link.0, Access::ReadOnly), Err(Error::FileShared { .. })), "another name of the file");
        drop((one, two));
        pager.open_file(&link.0, Access::ReadWrite).expect("nobody has it");
    }
}

/// Somebody makes the file shorter. Pages in memory stay until they are evicted. What lies beyond the end is an error, and changes
/// that are lost are told by a flush, once.
#[test]
fn a_file_becomes_shorter() {
    for pager in both() {
        let bytes = random_bytes(3 * BUDGET as usize);
        let file = Temp::new("shorter", &bytes);
        let mut region = pager.open_file(&file.0, Access::ReadWrite).expect("a region");
        let last = bytes.len() - 100;
        region.write_at(b"changed", last).expect("written");
        let short = MIB + 10;
        let theirs = OpenOptions::new().write(true).open(&file.0).expect("the file");
        theirs.set_len(short as u64).expect("shorter");
        let mut seven = [0; 7];
        region.read_at(&mut seven, last).expect("still in memory");
        assert_eq!(&seven, b"changed");
        let told = region.flush(..);
        assert!(matches!(told, Err(Error::FileEnds { len, .. }) if len == short as u64), "{told:?}");
        assert!(matches!(region.read_at(&mut seven, 2 * MIB), Err(Error::Lost)), "beyond the end");
        region.read_at(&mut seven, short - 5).expect("in the last page");
        assert_eq!(seven[5..], [0; 2], "filled up with zeroes");
        assert_eq!(seven[..5], bytes[short - 5..short]);
        // now the changed page is evicted
        let mut other = pager.region(2 * BUDGET as usize).expect("memory");
        other.fill(1);
        drop(other);
        assert_eq!(pager.counters().file_pages_lost.get(), 1);
        assert!(matches!(region.read_at(&mut seven, last), Err(Error::Lost)));
        assert!(matches!(region.flush(..), Err(Error::FileEnds { .. })), "it is told");
        region.flush(..).expect("once");
        assert_eq!(std::fs::metadata(&file.0).expect("the file").len(), short as u64, "no write has made it longer");
        // and longer again
        theirs.set_len(bytes.len() as u64).expect("longer");
        region.reload(MIB..bytes.len()).expect("tried again");
        region.read_at(&mut seven, last).expect("read");
        assert_eq!(seven, [0; 7]);
        pager.check();
    }
}

/// The file ends within a page, and the program changes that page behind the end. The first bytes of it were written, and all of it
/// counted as written: flush returned Ok, and the change was gone.
#[test]
fn changes_behind_the_end_are_told() {
    for pager in both() {
        for evicted in [false, true] {
            let file = Temp::new("cut", &random_bytes(2 * PAGE));
            let mut region = pager.open_file(&file.0, Access::ReadWrite).expect("a region");
            bytes_of(&region);
            let theirs = OpenOptions::new().write(true).open(&file.0).expect("the file");
            theirs.set_len(PAGE as u64 + 1904).expect("shorter");
            region.write_at(b"changed", PAGE + 1900).expect("in memory");
            if evicted {
                pager.region(2 * BUDGET as usize).expect("memory").fill(1);
            }
            let told = region.flush(..);
            assert!(matches!(told, Err(Error::FileEnds { .. })), "{told:?}");
            assert_eq!(std::fs::read(&file.0).expect("the file")[PAGE + 1900..], *b"chan", "there is room for these");
            theirs.set_len(2 * PAGE as u64).expect("longer again");
            region.flush(..).expect("there is room now");
            let written = std::fs::read(&file.0).expect("the file")[PAGE + 1900..][..7].to_vec();
            assert_eq!(written, if evicted { *b"chan\0\0\0" } else { *b"changed" });
        }
    }
}

/// A page in which the file ends was written as far as it goes. While it was written, the program touched it, so it stayed in
/// memory, with what the file has no room for. The first flush said so, and the next one that all was well.
#[test]
fn a_page_that_is_rescued_is_told_again() {
    for pager in both() {
        let mut rescued = 0;
        for _ in 0..200 {
            let file = Temp::new("rescued", &random_bytes(2 * PAGE));
            let mut region = pager.open_file(&file.0, Access::ReadWrite).expect("a region");
            bytes_of(&region);
            let theirs = OpenOptions::new().write(true).open(&file.0).expect("the file");
            theirs.set_len(PAGE as u64 + 1904).expect("shorter");
            region.write_at(b"changed", PAGE + 1900).expect("in memory");
            let before = pager.counters().file_pages_out.get();
            let mut others = pager.region(2 * BUDGET as usize).expect("memory");
            others.chunks_mut(PAGE).take_while(|_| pager.counters().file_pages_out.get() == before).for_each(|page| page[0] = 1);
            let mut seven = [0; 7];
            let is_written = pager.counters().file_pages_out.get() > before;
            if is_written && region.read_at(&mut seven, PAGE + 1900).is_ok() && seven == *b"changed" {
                rescued += 1;
                for _ in 0..2 {
                    assert!(matches!(region.flush(..), Err(Error::FileEnds { .. })), "the file has no room for all of it");
                }
            }
            if rescued == 3 {
                break;
            }
        }
        assert!(rescued > 0, "none was touched in time");
    }
}

/// A file that there is not is made, and becomes longer in steps. Nothing else is.
/// A drop loses the error of its last write; `close` returns it.
#[test]
fn a_close_says_what_was_not_written() {
    let temp = Temp::new("close", &random_bytes(16 * PAGE));
    let [pager, ..] = &both()[..] else { panic!("a pager") };
    let mut region = pager.open_file(&temp.0, Access::ReadWrite).expect("it is there");
    region.write_at(b"changed", 9 * PAGE).expect("room");
    region.close().expect("it is written");
    assert_eq!(&std::fs::read(&temp.0).expect("a file")[9 * PAGE..][..7], b"changed");
    let mut region = pager.open_file(&temp.0, Access::ReadWrite).expect("it is there");
    region.write_at(b"too far", 9 * PAGE).expect("room");
    std::fs::File::options().write(true).open(&temp.0).and_then(|file| file.set_len(PAGE as u64)).expect("shorter");
    assert!(matches!(region.close(), Err(Error::FileEnds { .. })));
    pager.open_file(&temp.0, Access::ReadOnly).expect("the region is gone").close().expect("nothing to write");
}

/// A file was made longer, or was left behind new and empty, by a call that was refused.
#[test]
fn what_is_refused_leaves_the_file() {
    for pager in both() {
        let file = Temp::new("refused", b"some");
        let open = |options: FileOptions| options.open(&pager, &file.0);
        let options = FileOptions::new(Access::ReadWrite).len(200 << 30);
        assert!(matches!(open(options.clone()), Err(Error::RegionSize { .. })));
        assert!(matches!(open(options.clone().len(5000).policy("none such")), Err(Error::Policy(_))));
        assert!(matches!(open(options.clone().offset(5).truncate(true)), Err(Error::RegionSize { .. })));
        assert!(matches!(open(FileOptions::new(Access::ReadOnly).len(1).truncate(true)), Err(Error::Access { .. })));
        let past = open(FileOptions::new(Access::ReadOnly).offset(4));
        assert!(matches!(past, Err(Error::FileEnds { len: 4, needed: Some(5), .. })), "{past:?}");
        assert_eq!(std::fs::read(&file.0).expect("the file"), b"some");
        // a region may have other pages of a file that would become empty, and a file may be open for reading only
        std::fs::write(&file.0, random_bytes(3 * PAGE)).expect("written");
        let later = open(FileOptions::new(Access::ReadOnly).offset(2 * PAGE as u64)).expect("a region");
        let shared = open(options.clone().len(2).truncate(true));
        assert!(matches!(shared, Err(Error::FileShared { .. })), "{shared:?}");
        assert_eq!(bytes_of(&later), random_bytes(3 * PAGE)[2 * PAGE..]);
        drop(later);
        let read_only = std::fs::File::open(&file.0).expect("the file");
        let opened = options.clone().len(4 * PAGE).open_as(&pager, read_only, &file.0);
        assert!(matches!(opened, Err(Error::Access { access: Access::ReadOnly, .. })), "{opened:?}");
        assert_eq!(std::fs::read(&file.0).expect("the file"), random_bytes(3 * PAGE));
        let emptied = open(options.clone().len(2).truncate(true)).expect("a region");
        assert_eq!(bytes_of(&emptied), [0, 0]);
        drop(emptied);
        std::fs::remove_file(&file.0).expect("removed");
        assert!(open(options.clone().create(true)).is_err() && open(FileOptions::new(Access::ReadWrite).create(true)).is_err());
        assert!(!file.0.exists());
    }
}

/// The first bytes of a copy-on-write region that begins within a page: to read them again was a panic.
#[test]
fn the_first_bytes_of_a_region_within_a_page_are_read_again() {
    for pager in both() {
        let bytes = random_bytes(3 * PAGE);
        let file = Temp::new("first", &bytes);
        let mut region = FileOptions::new(Access::CopyOnWrite).offset(100).open(&pager, &file.0).expect("a region");
        region.write_at(b"mine", 0).expect("written");
        region.write_at(b"kept", 60).expect("written");
        region.reload(0..50).expect("read again");
        let now = bytes_of(&region);
        assert_eq!((&now[..60], &now[60..64], &now[64..]), (&bytes[100..160], &b"kept"[..], &bytes[164..]));
    }
}

/// The file system gave no space back. The range read as what the file had, without the changes that had not been written yet.
#[test]
fn what_cannot_be_punched_is_empty_all_the_same() {
    for pager in both() {
        // SAFETY: the name is a string, and the descriptor is nobody else's.
        let file = unsafe { std::fs::File::from_raw_fd(libc::memfd_create(c"sealed".as_ptr(), libc::MFD_ALLOW_SEALING)) };
        file.write_all_at(&random_bytes(8 * PAGE), 0).expect("written");
        let same = file.try_clone().expect("the same file");
        let mut region = FileOptions::new(Access::ReadWrite).open_as(&pager, file, "sealed").expect("a region");
        region.write_at(&[1; PAGE], 2 * PAGE).expect("written");
        // SAFETY: touches no memory.
        assert_eq!(unsafe { libc::fcntl(same.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_WRITE) }, 0);
        assert!(matches!(region.punch(10..6 * PAGE), Err(Error::File { .. })));
        assert!(bytes_of(&region)[10..6 * PAGE].iter().all(|byte| *byte == 0));
    }
}

/// A page of private changes that was in swap and became all zeroes came back with its old content.
#[test]
fn private_changes_may_be_zeroes() {
    for pager in both() {
        let file = Temp::new("zeroes", &random_bytes(MIB));
        let mut region = pager.open_file(&file.0, Access::CopyOnWrite).expect("a region");
        for byte in [7, 0, 8, 0, 0] {
            let bytes = vec![byte; MIB];
            region.write_at(&bytes, 0).expect("written");
            let mut other = pager.region(2 * BUDGET as usize).expect("memory");
            other.fill(1);
            drop(other);
            assert!(bytes_of(&region) == bytes, "{byte}");
        }
    }
}

/// Bytes that others had appended in the page with the old end were shown as zeroes, and the next flush wrote those over them.
#[test]
fn what_others_append_is_seen_by_those_who_may_change_it() {
    for pager in both() {
        for access in [Access::ReadWrite, Access::CopyOnWrite] {
            let mut bytes = random_bytes(PAGE + 3000);
            let file = Temp::new("appended", &bytes[..PAGE + 100]);
            let mut region = FileOptions::new(access).capacity(MIB).open(&pager, &file.0).expect("a region");
            region.write_at(b"x", PAGE + 5).expect("written"); // the page is in memory
            OpenOptions::new().append(true).open(&file.0).expect("the file").write_all(&bytes[PAGE + 100..]).expect("written");
            region.grow(PAGE + 3000).expect("it is longer now");
            bytes[PAGE + 5] = b'x';
            assert_eq!(bytes_of(&region), bytes);
            if access == Access::ReadWrite {
                region.flush(..).expect("flushed");
                assert_eq!(std::fs::read(&file.0).expect("the file"), bytes);
            }
        }
    }
}

/// Others appended bytes, and the region grew over a part of them: over the rest, in the same page, zeroes were written.
#[test]
fn what_others_append_stays_behind_the_end_of_a_region() {
    for pager in both() {
        let bytes = random_bytes(PAGE + 3000);
        let file = Temp::new("behind", &bytes[..PAGE + 100]);
        let mut region = FileOptions::new(Access::ReadWrite).capacity(PAGE + 2000).open(&pager, &file.0).expect("a region");
        assert_eq!(bytes_of(&region), bytes[..PAGE + 100], "the page is in memory");
        OpenOptions::new().append(true).open(&file.0).expect("the file").write_all(&bytes[PAGE + 100..]).expect("written");
        for len in [PAGE + 100, PAGE + 200, PAGE + 2000] {
            region.grow(len).expect("it is longer now");
            assert_eq!(bytes_of(&region), bytes[..len]);
            region.flush(..).expect("flushed");
            assert!(std::fs::read(&file.0).expect("the file") == bytes, "after it has grown to {len}");
        }
    }
}

/// Others cut a file, and `grow` made it longer again, with zeroes. Pages in memory still counted as what the file had: a flush
/// left them out.
#[test]
fn a_region_that_grows_over_a_cut_writes_what_it_has() {
    for pager in both() {
        let bytes = random_bytes(4 * PAGE);
        let file = Temp::new("regrown", &bytes);
        let mut region = FileOptions::new(Access::ReadWrite).capacity(MIB).open(&pager, &file.0).expect("a region");
        assert_eq!(bytes_of(&region), bytes, "all of it is in memory");
        OpenOptions::new().write(true).open(&file.0).expect("the file").set_len(PAGE as u64 + 100).expect("shorter");
        region.grow(5 * PAGE).expect("longer");
        region.flush(..).expect("flushed");
        let there = std::fs::read(&file.0).expect("the file");
        assert!(there[..4 * PAGE] == bytes && there[4 * PAGE..] == [0; PAGE]);
    }
}

#[test]
fn a_file_is_made_and_grows() {
    for pager in both() {
        let file = Temp::new("made", b"");
        std::fs::remove_file(&file.0).expect("removed");
        let options = FileOptions::new(Access::ReadWrite).len(5000).capacity(10 * MIB);
        assert!(matches!(options.clone().open(&pager, &file.0), Err(Error::File { what: "opened", .. })));
        let mut region = options.create(true).open(&pager, &file.0).expect("a region");
        assert_eq!((region.len(), region.capacity()), (5000, 10 * MIB));
        assert_eq!(bytes_of(&region), [0; 5000]);
        region.write_at(b"end", 4997).expect("written");
        assert!(matches!(region.grow(4000), Err(Error::CannotGrow { .. })));
        assert!(matches!(region.grow(10 * MIB + 1), Err(Error::CannotGrow { .. })));
        region.grow(9 * MIB).expect("longer");
        region.write_at(b"far", 9 * MIB - 3).expect("written");
        region.flush(..).expect("flushed");
        let on_disk = std::fs::read(&file.0).expect("the file");
        assert_eq!((on_disk.len(), &on_disk[4997..5000], &on_disk[9 * MIB - 3..]), (9 * MIB, &b"end"[..], &b"far"[..]));
        region.punch(..).expect("emptied");
        assert!(bytes_of(&region).iter().all(|b| *b == 0));
        assert!(std::fs::read(&file.0).expect("the file").iter().all(|b| *b == 0));
        drop(region);
        // for others it must be as long as it is said to be
        let short = Temp::new("short", b"some");
        let mut reader = FileOptions::new(Access::ReadOnly).capacity(PAGE).open(&pager, &short.0).expect("a region");
        assert_eq!(bytes_of(&reader), b"some");
        std::fs::write(&short.0, b"some and more").expect("written");
        reader.grow(13).expect("it is longer now");
        assert_eq!(bytes_of(&reader), b"some and more");
        let reader = FileOptions::new(Access::ReadOnly).capacity(12 * MIB);
        assert!(matches!(reader.clone().len(10 * MIB).open(&pager, &file.0), Err(Error::FileEnds { .. })));
        let mut reader = reader.open(&pager, &file.0).expect("a region");
        assert!(matches!(reader.grow(10 * MIB), Err(Error::FileEnds { .. })));
        OpenOptions::new()
            .write(true)
            .open(&file.0)
            .expect("the file")
            .write_all_at(b"more", 10 * MIB as u64 - 4)
            .expect("written");
        reader.grow(10 * MIB).expect("it is longer now");
        let mut more = [0; 4];
        reader.read_at(&mut more, 10 * MIB - 4).expect("read");
        assert_eq!(&more, b"more");
        assert!(matches!(reader.write_at(b"x", 0), Err(Error::Access { .. })));
        assert!(matches!(reader.flush(..), Err(Error::Access { .. })));
        assert!(matches!(reader.as_mut_ptr(), Err(Error::Access { .. })));
        assert!(matches!(reader.punch(..), Err(Error::Access { .. })));
    }
    let pager = both().pop();
    if let Some(pager) = pager {
        assert!(matches!(pager.open_file("/dev/null", Access::ReadOnly), Err(Error::File { what: "paged", .. })));
        assert!(matches!(pager.open_file(std::env::temp_dir(), Access::ReadOnly), Err(Error::File { what: "paged", .. })));
    }
}

/// A file system in memory. It has no device to go past its cache to, and has O_DIRECT or not, depending on the kernel.
#[test]
fn a_file_in_memory() {
    for pager in both() {
        let path = PathBuf::from(format!("/dev/shm/overspill-files-{}", std::process::id()));
        let mut bytes = random_bytes(2 * BUDGET as usize + 5);
        if let Err(e) = std::fs::write(&path, &bytes) {
            assert!(std::env::var_os("CI").is_none(), "cannot be tested here: {e}");
            eprintln!("SKIPPED: {}: {e}", path.display());
            return;
        }
        let file = Temp(path);
        let mut region = pager.open_file(&file.0, Access::ReadWrite).expect("a region");
        eprintln!("past the cache: {}", region.is_direct());
        let mut rng = Rng(3);
        for _ in 0..2000 {
            let at = rng.below(bytes.len());
            bytes[at] ^= 1;
            region.write_at(&bytes[at..=at], at).expect("written");
        }
        region.flush(..).expect("flushed");
        assert!(std::fs::read(&file.0).expect("the file") == bytes && bytes_of(&region) == bytes);
        assert_budget(&pager, 1);
    }
}

/// Pages that are wired are not evicted, given up or read again; pages that were prefetched need no read.
#[test]
fn pages_are_wired_and_prefetched() {
    for pager in both() {
        let bytes = random_bytes(3 * BUDGET as usize);
        let file = Temp::new("wired", &bytes);
        let mut region = pager.open_file(&file.0, Access::ReadWrite).expect("a region");
        region.wire(MIB..2 * MIB).expect("wired");
        assert!(matches!(region.reload(..), Err(Error::IsWired)));
        assert!(matches!(region.punch(MIB..3 * MIB), Err(Error::IsWired)));
        assert!(bytes_of(&region) == bytes);
        let before = pager.counters().file_pages_in.get();
        // SAFETY: nobody changes the file.
        assert!(unsafe { region.as_slice() }[MIB..2 * MIB] == bytes[MIB..2 * MIB]);
        assert_eq!(pager.counters().file_pages_in.get(), before, "they were in memory");
        region.unwire(..);
        region.reload(..).expect("nothing is wired");
        region.prefetch(..MIB);
        let until = std::time::Instant::now() + PATIENCE;
        while pager.counters().file_pages_in.get() < before + 256 {
            assert!(std::time::Instant::now() < until, "nothing is read ahead");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let mut some = vec![0; MIB];
        region.read_at(&mut some, 0).expect("read");
        assert!(some == bytes[..MIB]);
    }
}

/// Locked pages were not given up when they were read again, but counted as if they had been. They kept their old content, and no
/// change to them reached the file any more.
#[test]
fn locked_pages_are_read_again() {
    for pager in both() {
        let file = Temp::new("locked", &[1; 64 * PAGE]);
        let mut region = pager.open_file(&file.0, Access::ReadWrite).expect("a region");
        let all = bytes_of(&region);
        // SAFETY: locks pages of the region, which need no handler, because they have been read.
        unsafe { libc::mlock(region.as_ptr().cast(), all.len()) };
        std::fs::write(&file.0, [2; 64 * PAGE]).expect("written");
        region.reload(..).expect("read again");
        assert!(bytes_of(&region).iter().all(|byte| *byte == 2));
        // SAFETY: nobody else uses the file.
        unsafe { region.as_mut_slice() }.expect("read-write").fill(3);
        region.close().expect("written");
        assert!(std::fs::read(&file.0).expect("the file").iter().all(|byte| *byte == 3));
    }
}

/// A flush tried to copy a page that the program had made unreadable, again and again for ever.
#[test]
fn what_the_program_may_not_read_is_written() {
    for pager in both() {
        let file = Temp::new("unreadable", &random_bytes(16 * PAGE));
        let mut region = pager.open_file(&file.0, Access::ReadWrite).expect("a region");
        region.write_at(&[5; 16 * PAGE], 0).expect("written");
        // SAFETY: pages of the region, which nobody touches until they are readable again.
        let protect = |region: &FileRegion, prot| unsafe { libc::mprotect(region.as_ptr() as *mut _, 4 * PAGE, prot) };
        assert_eq!(protect(&region, libc::PROT_NONE), 0);
        region.flush(..).expect("written");
        assert_eq!(protect(&region, libc::PROT_READ | libc::PROT_WRITE), 0);
        assert!(std::fs::read(&file.0).expect("the file").iter().all(|byte| *byte == 5));
    }
}

/// The caller's lock on a file (flock) was given up when the file was handed over for reading and writing.
#[test]
fn a_file_that_is_handed_over_stays_locked() {
    for pager in both() {
        for access in [Access::ReadOnly, Access::CopyOnWrite, Access::ReadWrite] {
            let path = Temp::new("flock", &[1; PAGE]);
            let open = || OpenOptions::new().read(true).write(true).open(&path.0).expect("the file");
            // SAFETY: touches no memory.
            let lock = |file: &std::fs::File| unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0;
            let file = open();
            assert!(lock(&file));
            let region = FileOptions::new(access).open_as(&pager, file, &path.0).expect("a region");
            assert!(!lock(&open()), "{access:?}");
            drop(region);
            assert!(lock(&open()), "{access:?}");
        }
    }
}

/// Each flush had a ring of its own. Some milliseconds after its end, what the thread waited in failed with EINTR.
#[test]
fn a_flush_interrupts_no_later_wait() {
    for pager in both() {
        let file = Temp::new("interrupts", &[0; 4 * PAGE]);
        let mut region = pager.open_file(&file.0, Access::ReadWrite).expect("a region");
        region.write_at(b"changed", 5000).expect("written");
        region.flush(..).expect("written");
        assert_eq!(wait_in_vain(), Some(libc::EAGAIN), "{pager:?}");
    }
}

/// Of the rings of flushes at the same time, some ended with their flush.
#[test]
fn many_flushes_at_a_time_interrupt_no_later_wait() {
    const THREADS: usize = 12;
    let pagers = both();
    for pager in &pagers {
        let all = Barrier::new(THREADS);
        thread::scope(|s| {
            for n in 0..THREADS {
                let all = &all;
                s.spawn(move || {
                    let file = Temp::new(&format!("many-{n}"), &[0; 64 * PAGE]);
                    let mut region = pager.open_file(&file.0, Access::ReadWrite).expect("a region");
                    region.write_at(&[1; 64 * PAGE], 0).expect("written");
                    all.wait();
                    region.flush(..).expect("written");
                    assert_eq!(wait_in_vain(), Some(libc::EAGAIN), "{pager:?}");
                });
            }
        });
    }
}

/// A program forbids a thread io_uring after the pager was built, as it may. The thread's first flush failed, because it could make
/// no ring.
#[test]
fn a_thread_that_may_make_no_ring_flushes() {
    for pager in both() {
        let file = Temp::new("no-ring", &[0; 64 * PAGE]);
        let mut region = pager.open_file(&file.0, Access::ReadWrite).expect("a region");
        let flushes = || {
            forbid_io_uring();
            region.write_at(&[1; 64 * PAGE], 0).expect("written");
            region.flush(..).expect("written");
        };
        thread::scope(|s| s.spawn(flushes).join().expect("flushed")); // the filter ends with the thread
        assert!(std::fs::read(&file.0).expect("the file").iter().all(|byte| *byte == 1));
    }
}

/// Without a flush, changes reach the file after a while, and at once if there are too many.
#[test]
fn changes_are_written_back() {
    for delivery in [Delivery::InThread, Delivery::Threads] {
        let second = std::time::Duration::from_secs(1);
        let build_with = |after, most| build(Pager::builder().memory(BUDGET).delivery(delivery).write_back(after, most));
        let bytes = random_bytes(4 * MIB);
        let file = Temp::new("back", &bytes);
        let Some(pager) = build_with(second / 10, BUDGET) else { return };
        let mut region = pager.open_file(&file.0, Access::ReadWrite).expect("a region");
        // SAFETY: nobody else changes the file.
        unsafe { region.as_mut_slice() }.expect("it may be changed")[12345] ^= 1;
        let until = std::time::Instant::now() + PATIENCE;
        while std::fs::read(&file.0).expect("the file")[12345] == bytes[12345] {
            assert!(std::time::Instant::now() < until, "nothing was written back");
            std::thread::sleep(second / 100);
        }
        assert_eq!(pager.counters().file_pages_out.get(), 1, "nothing else");
        drop(region);
        // the limit is kept by the calls that write
        let Some(pager) = build_with(3600 * second, MIB as u64) else { return };
        let mut region = pager.open_file(&file.0, Access::ReadWrite).expect("a region");
        for at in (0..4 * MIB).step_by(PAGE) {
            region.write_at(&[7; PAGE], at).expect("written");
        }
        let changed = std::fs::read(&file.0).expect("the file").chunks(PAGE).filter(|page| *page != [7; PAGE]).count();
        assert!(changed <= MIB / PAGE, "{changed} pages are not written");
    }
}

/// Pages are given up in the middle of their being written back. (Write-back waited for such a page, and the page for write-back,
/// until the program ended: one run in ten.)
#[test]
fn pages_are_given_up_while_they_are_written_back() {
    for delivery in [Delivery::InThread, Delivery::Threads] {
        let at_once = std::time::Duration::from_millis(1);
        let pager = build(Pager::builder().memory(BUDGET).delivery(delivery).write_back(at_once, 16 * PAGE as u64));
        let Some(pager) = pager else { return };
        let file = Temp::new("given-up", &[0; 2 * MIB]);
        let mut region = pager.open_file(&file.0, Access::ReadWrite).expect("a region");
        let mut rng = Rng(5);
        for round in 0..40 {
            for at in (0..2 * MIB).step_by(PAGE) {
                // SAFETY: nobody else changes the file.
                unsafe { region.as_mut_slice() }.expect("it may be changed")[at] = round;
            }
            for i in 0..64 {
                let at = rng.below(2 * MIB / PAGE) * PAGE;
                match i % 4 {
                    0 => region.reload(at..at + PAGE).expect("read again"),
                    _ => region.punch(at..at + PAGE).expect("emptied"),
                }
            }
        }
    }
}

/// One thread gives pages up while another reads pages next to them, so that they are read ahead. (A page that was read ahead in
/// the middle of that was mapped and counted as never touched: its changes were not written, and to wire it took for ever.)
#[test]
fn pages_are_given_up_while_others_read_next_to_them() {
    let pages = 4096;
    for pager in both() {
        let file = Temp::new("next-to", &vec![1; pages * PAGE]);
        let mut region = pager.open_file(&file.0, Access::ReadWrite).expect("a region");
        let start = region.as_mut_ptr().expect("it may be changed").expose_provenance();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    for page in (0..pages).step_by(2).take_while(|_| !done.load(Relaxed)) {
                        // SAFETY: within the region, and only this thread uses the page.
                        unsafe { std::ptr::with_exposed_provenance::<u8>(start + page * PAGE).read_volatile() };
                    }
                }
            });
            let mut rng = Rng(5);
            for round in 0..6000 {
                let page = rng.below(pages / 2) * 2 + 1;
                let (range, at) = (page * PAGE..(page + 1) * PAGE, start + page * PAGE);
                region.reload(range.clone()).expect("read again");
                // SAFETY: as above.
                unsafe { std::ptr::with_exposed_provenance_mut::<u8>(at).write_volatile(round as u8) };
                region.reload(range).expect("written, and read again");
                // SAFETY: as above.
                let found = unsafe { std::ptr::with_exposed_provenance::<u8>(at).read_volatile() };
                done.store(found != round as u8, Relaxed);
                assert_eq!(found, round as u8, "page {page} in round {round}");
            }
            done.store(true, Relaxed);
        });
    }
}

/// A page that the program discards past the pager has no change. (With in-thread delivery a flush looked at it again and again.)
#[test]
fn a_page_that_was_discarded_is_not_written() {
    for pager in both() {
        let file = Temp::new("discarded", &[1; 4 * PAGE]);
        let mut region = pager.open_file(&file.0, Access::ReadWrite).expect("a region");
        // SAFETY: nobody else changes the file.
        let bytes = unsafe { region.as_mut_slice() }.expect("it may be changed");
        (bytes[0], bytes[PAGE]) = (2, 3);
        // SAFETY: nobody needs the page's content.
        assert_eq!(unsafe { libc::madvise(bytes.as_mut_ptr().cast(), PAGE, libc::MADV_DONTNEED) }, 0);
        region.flush(..).expect("flushed");
        let on_disk = std::fs::read(&file.0).expect("the file");
        assert_eq!((on_disk[0], on_disk[PAGE]), (1, 3));
        // SAFETY: as above.
        assert_eq!(unsafe { region.as_slice() }[..2], [1, 1]);
    }
}

/// A pager's threads and a region's users do not get into each other's way: two threads copy from a region that others read.
#[test]
fn many_threads_read_a_file() {
    for pager in both() {
        let bytes = random_bytes(2 * BUDGET as usize);
        let file = Temp::new("threads", &bytes);
        let region = pager.open_file(&file.0, Access::ReadOnly).expect("a region");
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let (region, bytes) = (&region, &bytes);
                scope.spawn(move || {
                    let mut rng = Rng(seed);
                    for _ in 0..2000 {
                        let (at, mut some) = (rng.below(bytes.len() - 5000), vec![0; 1 + rng.below(5000)]);
                        region.read_at(&mut some, at).expect("read");
                        assert!(some == bytes[at..at + some.len()]);
                    }
                });
            }
        });
        assert_budget(&pager, 4);
    }
}

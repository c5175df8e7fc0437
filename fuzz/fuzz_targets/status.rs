//! The status block of another process may have any content: it is read without a panic, and no control character gets out.
#![no_main]

use libfuzzer_sys::fuzz_target;
use overspill_linux::status_file::{StatusFile, StatusView};
use rustix::fs::{MemfdFlags, SealFlags};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;

fuzz_target!(|bytes: &[u8]| {
    // a valid head most of the time, then any bytes
    let Some((&how, bytes)) = bytes.split_first() else { return };
    let mut block = Vec::new();
    if how != 0 {
        block.extend_from_slice(&overspill_vm::status::STATUS_MAGIC.to_ne_bytes());
        block.extend_from_slice(&(size_of::<overspill_vm::status::Status>() as u64).to_ne_bytes());
    }
    block.extend_from_slice(bytes);
    let mut file = File::from(rustix::fs::memfd_create("fuzz", MemfdFlags::ALLOW_SEALING).expect("a memory file"));
    file.write_all(&block).expect("memory");
    if how % 8 != 1 {
        file.set_len(size_of::<overspill_vm::status::Status>() as u64).expect("memory");
    }
    if how % 8 != 2 {
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).expect("a seal");
    }
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let written = StatusFile::open(Path::new(&path)).map(|file| file.status().is_valid());
    match StatusView::open(Path::new(&path)) {
        Ok(view) => {
            assert!(matches!(written, Ok(true)));
            let seen = view.snapshot();
            for text in [&seen.policy, &seen.engine, &seen.swap, &seen.message] {
                assert!(!text.contains(char::is_control), "{text:?}");
            }
        }
        Err(_) => assert!(!matches!(written, Ok(true))),
    }
});

//! `--swap`: no text causes a panic, and a valid text is written and read back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use overspill_linux::device_spec::{encode_list, parse, parse_list};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

fuzz_target!(|bytes: &[u8]| {
    let text = OsStr::from_bytes(bytes);
    if let Ok(device) = parse(text) {
        assert_eq!(parse(&device.encode()).as_ref(), Ok(&device));
    }
    if let Ok(devices) = parse_list(text) {
        assert_eq!(parse_list(&encode_list(&devices)), Ok(devices));
    }
});

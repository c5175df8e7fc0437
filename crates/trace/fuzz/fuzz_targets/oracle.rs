#![no_main]

mod common;

libfuzzer_sys::fuzz_target!(|content: &[u8]| common::check(content, Some(overspill_trace::Format::Oracle)));

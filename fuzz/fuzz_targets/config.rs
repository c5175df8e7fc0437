//! The configuration file: no text causes a panic, and every error is one line that begins with the place.
#![no_main]

#[path = "../../crates/cli/src/config.rs"]
#[allow(dead_code)]
mod config;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match config::parse(text) {
        Ok(config) => config.swap.iter().for_each(|device| _ = device.device()),
        Err(error) => assert!(error.starts_with("line ") && !error.contains('\n'), "{error:?}"),
    }
});

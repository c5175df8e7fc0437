//! `--policy`, and the control socket's `policy`: no text causes a panic, and a valid text is written and read back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use overspill_vm::policy::{Spec, SpecError};

fuzz_target!(|text: &str| {
    let spec: Result<Spec, SpecError> = text.parse();
    match spec {
        Ok(spec) => assert_eq!(spec.to_string().parse(), Ok(spec)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});

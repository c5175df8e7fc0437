//! Property: every read returns what was last written there, zero after the page was given up, an error only if the page was
//! damaged.

use crate::process::Process;
use crate::store::Store;

/// A thread sees `value` at page `at`.
pub fn check<S: Store>(process: &Process<S>, at: usize, value: u64) {
    let expected = process.expected[at];
    let word = process.vm.page(process.page(at));
    assert!(value == expected, "reads: page {at} reads as {value:#x}, not {expected:#x} ({word:?})");
}

/// A thread is told that page `at` is lost.
pub fn check_lost<S: Store>(process: &Process<S>, at: usize) {
    assert!(process.may_be_lost[at], "reads: page {at} is lost, but nothing has happened to it");
}

//! What every target does: decodes, and looks at the result.

use overspill_trace::{Error, Format, Options, Position, read_from};
use std::path::Path;

/// Decodes `content` as `format`, or guesses. Whatever the bytes are, there is a sound trace or an error with a place inside.
pub fn check(content: &[u8], format: Option<Format>) {
    let options = Options { format, ..Options::default() };
    match read_from(content, Path::new("trace"), content.len() as u64, &options, &mut |_| {}) {
        Ok(trace) => {
            assert!(!trace.pages.is_empty() && trace.writes.len() == trace.pages.len());
            assert!(trace.pages.iter().all(|&page| page < trace.unique()));
            assert!(trace.kinds.is_none_or(|kinds| kinds.len() == trace.pages.len()));
        }
        // Packed content is longer than its file, so its places may be too.
        Err(Error::Broken { position: Position::Line(line), .. }) => assert!(line > 0),
        Err(_) => {}
    }
}

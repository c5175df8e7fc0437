//! The common part of all targets: decodes, checks the result, and writes and reads it once more.

use overspill_trace::{Error, Format, Options, Position, Trace, read_from, write_compact, write_lines};
use std::path::Path;

/// Decodes `content` as `format`, or guesses. Any bytes must give a sound trace, which reads the same in the compact format and as
/// lines, or an error of one line with a place inside the content.
pub fn check(content: &[u8], format: Option<Format>) {
    match read(content, format, None) {
        Ok(trace) => {
            assert!(!trace.pages.is_empty() && trace.writes.len() == trace.pages.len());
            assert_eq!(trace.references_total, trace.pages.len() as u64);
            let mut next = 0;
            for &page in &trace.pages {
                assert!(page <= next, "the pages are not numbered by their first appearance");
                next += (page == next) as u32;
            }
            assert_eq!(next, trace.unique());
            assert!(trace.kinds.as_ref().is_none_or(|kinds| kinds.len() == trace.pages.len()));
            let compact = write_compact(&trace, Vec::new()).expect("memory takes all");
            let again = read(&compact, Some(Format::Overspill), None).expect("it was just written");
            same(&trace, &again);
            assert_eq!((&trace.kinds, trace.page_bytes), (&again.kinds, again.page_bytes));
            let lines = write_lines(&trace, Vec::new()).expect("memory takes all");
            same(&trace, &read(&lines, Some(Format::Lines), None).expect("they were just written"));
            if let Ok(sample) = read(content, format, Some(0.5)) {
                assert!(sample.references_total == trace.references_total && sample.pages.len() <= trace.pages.len());
            }
        }
        Err(error) => {
            assert!(!error.to_string().contains(['\n', '\r']), "{error}");
            // Packed content is longer than its file, so its places may be beyond the file's end.
            if let Error::Broken { position: Position::Line(line), .. } = error {
                assert!(line > 0);
            }
        }
    }
}

fn read(content: &[u8], format: Option<Format>, sample: Option<f64>) -> Result<Trace, Error> {
    let options = Options { format, sample, ..Options::default() };
    read_from(content, Path::new("trace"), content.len() as u64, &options, &mut |_| {})
}

fn same(one: &Trace, other: &Trace) {
    assert_eq!((&one.pages, &one.numbers, &one.writes), (&other.pages, &other.numbers, &other.writes));
}

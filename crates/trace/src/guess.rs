//! Guesses the format from name and content.

use crate::builder::Builder;
use crate::compact;
use crate::error::Error;
use crate::format::{self, list::Format};
use crate::input::Input;
use crate::trace::Guess;
use std::path::Path;

/// The length of the beginning that is examined.
const HEAD_BYTES: usize = 64 << 10;

/// Text formats, in the order of preference if several can read the content equally far: the most specific first. Content that two
/// of them can read means the same in both.
const TEXT: &[Format] =
    &[Format::Strace, Format::Lackey, Format::Msr, Format::Addr, Format::Pages, Format::Arc, Format::Lines, Format::Lirs];

/// Finds the format of `input`, from which nothing has been taken yet.
///
/// The name decides if the content allows it. Otherwise it is the format whose parser comes farthest, so that an error in a broken
/// trace names the line.
pub(crate) fn guess(input: &mut Input<'_>, name: &Path) -> Result<Guess, Error> {
    let head = input.head(HEAD_BYTES).map_err(|complaint| Error::broken(name, None, complaint))?;
    if head.is_empty() {
        return Err(Error::empty(name, None));
    }
    let by_name = by_name(name);
    let by_content = by_content(head, by_name);
    match (by_name, by_content) {
        (Some(format), Some(found)) if format == found => Ok(Guess { format, why: "by name and content" }),
        (_, Some(format)) => Ok(Guess { format, why: "by its content" }),
        (Some(format), None) => Ok(Guess { format, why: "by its name" }),
        (None, None) => {
            let message = match is_text(head) {
                true => "its first lines are of no format that is known",
                false => "its content is binary and says nothing about itself (as u32le and u32be do)",
            };
            Err(Error::UnknownFormat { path: name.to_owned(), message: message.into() })
        }
    }
}

/// The format that a word of the name stands for. The last such word counts, because suffixes say most.
fn by_name(name: &Path) -> Option<Format> {
    let name = name.file_name()?.to_str()?;
    name.rsplit(|letter: char| !letter.is_ascii_alphanumeric()).find_map(|word| match word {
        "lis" | "spc" => Some(Format::Arc),
        "oracleGeneral" => Some(Format::Oracle),
        _ => word.parse().ok(),
    })
}

/// The format that the content is, or may be: `named` if it can be that.
fn by_content(head: &[u8], named: Option<Format>) -> Option<Format> {
    if head.starts_with(compact::MAGIC) {
        return Some(Format::Overspill);
    }
    if is_text(head) {
        let read = |format| (lines_read(format, head), Some(format) == named);
        let lengths = TEXT.iter().map(|&format| (read(format), format));
        // Of equals the first: `max_by_key` would take the last.
        let best = lengths.reduce(|best, other| if other.0 > best.0 { other } else { best });
        return best.filter(|&((lines, _), _)| lines > 0).map(|(_, format)| format);
    }
    // Any bytes can be bare numbers, and some of them look like records of other formats. So the name alone decides.
    if matches!(named, Some(Format::U32le | Format::U32be)) {
        return None;
    }
    let records = [(Format::Vscsi, format::vscsi_plausible as fn(&[u8]) -> bool), (Format::Oracle, format::oracle_plausible)];
    let able = || records.into_iter().filter(|(_, plausible)| plausible(head)).map(|(format, _)| format);
    able().find(|&format| Some(format) == named).or_else(|| able().next())
}

/// Text has no control characters but tabs and line ends.
fn is_text(head: &[u8]) -> bool {
    head.iter().all(|&byte| byte >= b' ' && byte != 0x7f || matches!(byte, b'\t' | b'\n' | b'\r'))
}

/// How many of the head's lines a text format's parser takes before it refuses one. 0 if they have no reference.
fn lines_read(format: Format, head: &[u8]) -> usize {
    let Some(mut parser) = format::text_parser(format) else { return 0 };
    let mut builder = Builder::new(None, None);
    // The last line may be cut off by the head's end. If there is only one line, it counts.
    let whole = head.iter().rposition(|&byte| byte == b'\n').map_or(head, |end| &head[..end]);
    let lines = whole.split(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let taken = lines.take_while(|line| line.is_empty() || parser.line(line, &mut builder).is_ok()).count();
    if builder.any() { taken } else { 0 }
}

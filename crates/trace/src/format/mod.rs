//! The formats: one parser each. Adding one is a file, an entry in `formats!` and, if it can be recognised, a line in `guess`.

mod addr;
mod arc;
mod fields;
mod lackey;
mod lines;
mod lirs;
mod msr;
mod oracle;
mod pages;
mod raw;
mod strace;
mod vscsi;

use crate::builder::Builder;
use crate::compact;
use crate::error::Complaint;
use crate::input::Input;
use std::fmt;
use std::str::FromStr;

/// A parser of a text format. It keeps what one line says about later ones.
pub(crate) trait TextParser {
    /// Takes one line, without its end. The error is a sentence about that line.
    fn line(&mut self, line: &[u8], out: &mut Builder) -> Result<(), String>;

    /// There are no more lines.
    fn end(&mut self, _out: &mut Builder) -> Result<(), String> {
        Ok(())
    }
}

/// A parser of records of one length.
pub(crate) trait RecordParser {
    /// Bytes of a record.
    fn record_bytes(&self) -> usize;
    /// Takes one record. The error is a sentence about that record.
    fn record(&mut self, record: &[u8], out: &mut Builder) -> Result<(), String>;
}

macro_rules! formats {
    ($($(#[doc = $help:literal])* $variant:ident = $name:literal,)*) => {
        /// A trace format.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum Format { $($(#[doc = $help])* $variant,)* }

        impl Format {
            /// All formats.
            pub const ALL: &[Format] = &[$(Format::$variant),*];

            /// The name, as options take it.
            pub fn name(self) -> &'static str {
                match self { $(Format::$variant => $name,)* }
            }
        }
    };
}

formats! {
    /// One page number per line, decimal or hexadecimal with `0x`, then `r` or `w` if known.
    Lines = "lines",
    /// One decimal block number per line; `*` is a mark.
    Lirs = "lirs",
    /// Lines `start n 0 sequence`: n blocks from start on.
    Arc = "arc",
    /// Output of `valgrind --tool=lackey --trace-mem=yes`.
    Lackey = "lackey",
    /// Lines `s|l ADDRESS [gap]`: byte addresses.
    Addr = "addr",
    /// VMware's vscsi records, version 1 or 2.
    Vscsi = "vscsi",
    /// libCacheSim's oracleGeneral records.
    Oracle = "oracle",
    /// Page numbers of 4 bytes, little endian.
    U32le = "u32le",
    /// Page numbers of 4 bytes, big endian.
    U32be = "u32be",
    /// The CSV files of MSR Cambridge.
    Msr = "msr",
    /// `strace -f` of file reads and writes.
    Strace = "strace",
    /// Lines `r|w HEX`: page numbers.
    Pages = "pages",
    /// Overspill's own compact format.
    Overspill = "overspill",
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    /// The format of that name; else a sentence that lists the names.
    fn from_str(name: &str) -> Result<Self, String> {
        Format::ALL.iter().copied().find(|format| format.name() == name).ok_or_else(|| {
            let names: Vec<&str> = Format::ALL.iter().map(|format| format.name()).collect();
            format!("\"{name}\" is not a trace format; there are {}", names.join(", "))
        })
    }
}

/// The parser of a text format, `None` for a binary one.
pub(crate) fn text_parser(format: Format) -> Option<Box<dyn TextParser>> {
    Some(match format {
        Format::Lines => Box::new(lines::Lines),
        Format::Lirs => Box::new(lirs::Lirs),
        Format::Arc => Box::new(arc::Arc),
        Format::Lackey => Box::new(lackey::Lackey),
        Format::Addr => Box::new(addr::Addr),
        Format::Msr => Box::new(msr::Msr::default()),
        Format::Strace => Box::new(strace::Strace::default()),
        Format::Pages => Box::new(pages::Pages),
        Format::Vscsi | Format::Oracle | Format::U32le | Format::U32be | Format::Overspill => return None,
    })
}

/// Whether the content's beginning looks like a trace of libCacheSim's oracleGeneral.
pub(crate) fn oracle_plausible(head: &[u8]) -> bool {
    oracle::plausible(head)
}

/// Whether the content's beginning looks like a vscsi trace.
pub(crate) fn vscsi_plausible(head: &[u8]) -> bool {
    vscsi::Vscsi::of(head).plausible(head)
}

/// Decodes all of `input`.
pub(crate) fn read(format: Format, input: &mut Input<'_>, out: &mut Builder) -> Result<(), Complaint> {
    if let Some(mut parser) = text_parser(format) {
        return read_lines(&mut *parser, input, out);
    }
    match format {
        Format::Oracle => read_records(&mut oracle::Oracle, input, out),
        Format::U32le => read_records(&mut raw::U32 { from_bytes: u32::from_le_bytes }, input, out),
        Format::U32be => read_records(&mut raw::U32 { from_bytes: u32::from_be_bytes }, input, out),
        Format::Vscsi => {
            let mut parser = vscsi::Vscsi::of(input.head(vscsi::HEAD_BYTES)?);
            read_records(&mut parser, input, out)
        }
        _ => compact::read(input, out),
    }
}

fn read_lines(parser: &mut dyn TextParser, input: &mut Input<'_>, out: &mut Builder) -> Result<(), Complaint> {
    // Blank lines may stand at the end only.
    let mut blank = false;
    while let Some(line) = input.line()? {
        let result = match line {
            [] => Ok(()),
            _ if blank => Err("a blank line before this one; blank lines may only stand at the end".to_owned()),
            line => parser.line(line, out),
        };
        blank = line.is_empty();
        result.and_then(|()| out.check()).map_err(|message| input.complain_line(message))?;
    }
    parser.end(out).map_err(|message| input.complain_line(message))
}

fn read_records(parser: &mut dyn RecordParser, input: &mut Input<'_>, out: &mut Builder) -> Result<(), Complaint> {
    let bytes = parser.record_bytes();
    loop {
        let offset = input.offset();
        let Some(record) = input.record(bytes, "a record")? else { return Ok(()) };
        parser.record(record, out).and_then(|()| out.check()).map_err(|message| Complaint {
            position: crate::Position::Byte(offset),
            message,
            source: None,
        })?;
    }
}

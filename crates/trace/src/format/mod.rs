//! The formats, with one parser each. To add one, add a file, an entry in `list.rs` and, if it can be recognised, a line in
//! `guess`.

mod addr;
mod arc;
mod fields;
mod lackey;
mod lines;
mod lirs;
pub(crate) mod list;
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
use list::Format;

/// A parser of a text format. It may keep state from one line to the next.
pub(crate) trait TextParser {
    /// Takes one line, without its end. The error is a message about that line.
    fn line(&mut self, line: &[u8], out: &mut Builder) -> Result<(), String>;

    /// Called after the last line.
    fn end(&mut self, _out: &mut Builder) -> Result<(), String> {
        Ok(())
    }
}

/// A parser of records of one length.
pub(crate) trait RecordParser {
    /// Bytes of a record.
    fn record_bytes(&self) -> usize;
    /// Takes one record. The error is a message about that record.
    fn record(&mut self, record: &[u8], out: &mut Builder) -> Result<(), String>;
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
    // Blank lines are allowed at the end only.
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

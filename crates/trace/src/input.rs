//! The bytes of a trace: unpacks and buffers them, hands them out as lines or records without a copy, and knows the place for
//! complaints.

use crate::Progress;
use crate::error::{Complaint, Error, Position};
use crate::unpack;
use std::cell::Cell;
use std::fmt;
use std::io::{self, Read};
use std::path::Path;
use std::rc::Rc;

/// How a file is packed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packing {
    /// Not at all.
    Plain,
    /// RFC 1952.
    Gzip,
    /// RFC 8878.
    Zstd,
    /// The `.xz` container.
    Xz,
}

impl Packing {
    /// The packing that a file's name asks for, by its suffix.
    pub fn of_name(name: &Path) -> Packing {
        match name.extension().and_then(|suffix| suffix.to_str()) {
            Some("gz") => Packing::Gzip,
            Some("zst") => Packing::Zstd,
            Some("xz") => Packing::Xz,
            _ => Packing::Plain,
        }
    }
}

impl fmt::Display for Packing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Packing::Plain => "not packed",
            Packing::Gzip => "gzip",
            Packing::Zstd => "zstd",
            Packing::Xz => "xz",
        })
    }
}

/// The buffer's first length. It is large because progress is reported in these steps.
const BUFFER_BYTES: usize = 256 << 10;
/// The longest line or record. A file with a longer one is not a trace.
const LINE_BYTES_MAX: usize = 1 << 20;

/// The unpacked content.
pub(crate) struct Input<'a> {
    reader: Box<dyn Read + 'a>,
    packing: Packing,
    /// `buffer[start..end]` is what has been read and not yet handed out.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    at_end: bool,
    /// Place of `buffer[start]` in the unpacked content.
    offset: u64,
    /// Lines handed out.
    lines: u64,
    /// Bytes taken from the file.
    taken: Rc<Cell<u64>>,
    bytes_total: u64,
    progress: &'a mut dyn FnMut(Progress),
}

/// Counts what is read from the file itself.
struct Counted<R> {
    inner: R,
    taken: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.taken.set(self.taken.get() + n as u64);
        Ok(n)
    }
}

impl<'a> Input<'a> {
    pub fn new<R: Read + 'a>(
        source: R,
        name: &Path,
        bytes_total: u64,
        progress: &'a mut dyn FnMut(Progress),
    ) -> Result<Input<'a>, Error> {
        let taken = Rc::new(Cell::new(0));
        let source = Counted { inner: source, taken: taken.clone() };
        let (packing, reader) = unpack::unpacked(source).map_err(|error| Error::open(name, error))?;
        Ok(Input {
            reader,
            packing,
            buffer: vec![0; BUFFER_BYTES],
            start: 0,
            end: 0,
            at_end: false,
            offset: 0,
            lines: 0,
            taken,
            bytes_total,
            progress,
        })
    }

    pub fn packing(&self) -> Packing {
        self.packing
    }

    /// Reads once more. False at the end of the content.
    fn fill(&mut self) -> Result<bool, Complaint> {
        if self.at_end {
            return Ok(false);
        }
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.buffer.len() {
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
        let n = loop {
            match self.reader.read(&mut self.buffer[self.end..]) {
                Ok(n) => break n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.unreadable(error)),
            }
        };
        self.end += n;
        self.at_end = n == 0;
        (self.progress)(Progress { bytes: self.taken.get(), bytes_total: self.bytes_total });
        Ok(n > 0)
    }

    fn unreadable(&self, error: io::Error) -> Complaint {
        let message = match self.packing {
            Packing::Plain => format!("the file cannot be read further: {error}"),
            _ if unpack::is_something_else(&error) => format!("{error}; if it was appended, cut the file off there"),
            packing if error.kind() == io::ErrorKind::UnexpectedEof => {
                format!("the {packing} data end too early; the file is cut short, copy it again")
            }
            packing => format!("the {packing} data are damaged: {error}"),
        };
        Complaint { position: Position::Byte(self.offset + (self.end - self.start) as u64), message, source: Some(error) }
    }

    /// The first bytes, `wanted` of them if there are that many, without handing them out.
    pub fn head(&mut self, wanted: usize) -> Result<&[u8], Complaint> {
        while self.end - self.start < wanted && self.fill()? {}
        Ok(&self.buffer[self.start..self.end.min(self.start + wanted)])
    }

    /// Place of the next byte to be handed out.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    fn advance(&mut self, bytes: usize) {
        self.start += bytes;
        self.offset += bytes as u64;
    }

    /// The next line, without its end (LF or CR LF). The last need not have one. `None` at the end of the content.
    pub fn line(&mut self) -> Result<Option<&[u8]>, Complaint> {
        let mut searched = 0;
        let (length, end_bytes) = loop {
            let rest = &self.buffer[self.start..self.end];
            if let Some(at) = rest[searched..].iter().position(|&byte| byte == b'\n') {
                break (searched + at, 1);
            }
            searched = rest.len();
            if searched > LINE_BYTES_MAX {
                self.lines += 1;
                return Err(self.complain_line(format!("the line is longer than {LINE_BYTES_MAX} bytes; this is not a text trace")));
            }
            if !self.fill()? {
                if searched == 0 {
                    return Ok(None);
                }
                break (searched, 0);
            }
        };
        let from = self.start;
        self.advance(length + end_bytes);
        self.lines += 1;
        let line = &self.buffer[from..from + length];
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
    }

    /// The next `bytes` bytes; `None` at the end of the content.
    ///
    /// Content that ends in between is an error that names `what`.
    pub fn record(&mut self, bytes: usize, what: &str) -> Result<Option<&[u8]>, Complaint> {
        while self.end - self.start < bytes {
            if !self.fill()? {
                return match self.end - self.start {
                    0 => Ok(None),
                    got => Err(self.complain_byte(format!(
                        "the trace ends in the middle of {what}: {got} of {bytes} bytes; the file is cut short or of another format"
                    ))),
                };
            }
        }
        let from = self.start;
        self.advance(bytes);
        Ok(Some(&self.buffer[from..from + bytes]))
    }

    /// A complaint about the line that was handed out last.
    pub fn complain_line(&self, message: String) -> Complaint {
        Complaint { position: Position::Line(self.lines), message, source: None }
    }

    /// A complaint about the next byte.
    pub fn complain_byte(&self, message: String) -> Complaint {
        Complaint { position: Position::Byte(self.offset), message, source: None }
    }
}

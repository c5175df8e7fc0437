//! Writes traces, packed or not.

use crate::compact;
use crate::input::Packing;
use crate::trace::{Kind, Trace};
use std::io::{self, Write};

/// zstd's level. Higher ones take much longer and pack traces hardly better.
const ZSTD_LEVEL: i32 = 12;
/// The level that `xz` has without options.
const XZ_LEVEL: u32 = 6;

/// Packs what is written to it. It must be ended by [`Packer::finish`].
pub enum Packer<W: Write> {
    /// Passes everything on.
    Plain(W),
    /// Packs with gzip.
    Gzip(flate2::write::GzEncoder<W>),
    /// Packs with zstd.
    Zstd(zstd::Encoder<'static, W>),
    /// Packs with xz.
    Xz(liblzma::write::XzEncoder<W>),
}

impl<W: Write> Packer<W> {
    /// Begins to write to `out`.
    ///
    /// # Errors
    /// If there is not enough memory for zstd's tables.
    pub fn new(out: W, packing: Packing) -> io::Result<Self> {
        Ok(match packing {
            Packing::Plain => Packer::Plain(out),
            Packing::Gzip => Packer::Gzip(flate2::write::GzEncoder::new(out, flate2::Compression::default())),
            Packing::Zstd => {
                let mut encoder = zstd::Encoder::new(out, ZSTD_LEVEL)?;
                encoder.include_checksum(true)?;
                Packer::Zstd(encoder)
            }
            Packing::Xz => Packer::Xz(liblzma::write::XzEncoder::new(out, XZ_LEVEL)),
        })
    }

    fn inner(&mut self) -> &mut dyn Write {
        match self {
            Packer::Plain(out) => out,
            Packer::Gzip(out) => out,
            Packer::Zstd(out) => out,
            Packer::Xz(out) => out,
        }
    }

    /// Ends the packed data, and returns the output, flushed.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(self) -> io::Result<W> {
        let mut out = match self {
            Packer::Plain(out) => out,
            Packer::Gzip(out) => out.finish()?,
            Packer::Zstd(out) => out.finish()?,
            Packer::Xz(out) => out.finish()?,
        };
        out.flush()?;
        Ok(out)
    }
}

impl<W: Write> Write for Packer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.inner().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.inner().flush()
    }
}

/// Writes a trace in the compact format. Names of objects are not kept.
///
/// # Errors
/// Those of `out`.
pub fn write_compact<W: Write>(trace: &Trace, out: W) -> io::Result<W> {
    let mut writer = compact::Writer::new(out, trace.page_bytes.unwrap_or(0), trace.kinds.is_some())?;
    for (index, &page) in trace.pages.iter().enumerate() {
        let kind = trace.kinds.as_ref().map_or(Kind::Reference, |kinds| kinds[index]);
        writer.event(trace.numbers[page as usize], trace.writes.get(index), kind)?;
    }
    writer.finish()
}

/// Writes a trace as lines: decimal page numbers, with `r` or `w` if the trace has any writes.
///
/// # Errors
/// Those of `out`.
pub fn write_lines<W: Write>(trace: &Trace, mut out: W) -> io::Result<W> {
    let any_write = trace.writes.count() > 0;
    for (index, &page) in trace.pages.iter().enumerate() {
        let number = trace.numbers[page as usize];
        match (any_write, trace.writes.get(index)) {
            (false, _) => writeln!(out, "{number}")?,
            (true, false) => writeln!(out, "{number} r")?,
            (true, true) => writeln!(out, "{number} w")?,
        }
    }
    Ok(out)
}

//! Reference strings: which pages were touched, in order.
//!
//! [`read`] decodes a trace file into a [`Trace`]: dense page ids in order of first appearance, write bits, and the original page
//! numbers. It unpacks gzip, zstd and xz, and guesses the format from name and content unless it is forced. A broken trace is an
//! [`Error`] with the line (text formats) or the byte (binary formats), never a guess.
//!
//! ```text
//! file ── input (unpack, lines, records) ── format/* (one parser each) ── builder (dense ids, sampling) ── Trace
//!                        └── guess (head of the content)
//! ```
//!
//! | name | what a reference is |
//! | --- | --- |
//! | `lines` | a line: a page number, decimal or hexadecimal with `0x`, and `r` or `w` if it is known; `#` starts a comment |
//! | `lirs` | a line: a decimal block number; a line `*` is a mark |
//! | `arc` | each of the `n` blocks of a line `start n 0 sequence` (the `.lis` files of the ARC paper, and SPC) |
//! | `lackey` | each page of a line of `valgrind --tool=lackey --trace-mem=yes`; a modify is one write |
//! | `addr` | a line: `s` (store) or `l` (load), a byte address, instructions since the last |
//! | `vscsi` | a record of VMware's vscsi traces, version 1 or 2; the page is the logical block number |
//! | `oracle` | a record of libCacheSim's oracleGeneral; the page is the object |
//! | `u32le`, `u32be` | a page number of 4 bytes, little or big endian |
//! | `msr` | each page of a request of the MSR Cambridge CSV files |
//! | `strace` | each page of a file that a system call of an `strace -f` read, wrote or mapped |
//! | `pages` | a line `r HEX` or `w HEX`, a page number |
//! | `overspill` | an event of our own compact format ([`compact`]) |

#![forbid(unsafe_code)]

mod builder;
pub mod compact;
mod error;
mod format;
mod guess;
mod input;
mod output;
mod trace;
mod unpack;

pub use compact::Writer;
pub use error::{Error, Position};
pub use format::list::Format;
pub use input::Packing;
pub use output::{Packer, write_compact, write_lines};
pub use trace::{Bits, Guess, Kind, OBJECT_SHIFT, Part, Trace};

use builder::Builder;
use input::Input;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The default bytes of a page: a page of x86-64.
pub const PAGE_BYTES: u32 = 4096;

/// How to read a trace.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The format; `None` to guess it.
    pub format: Option<Format>,
    /// Bytes of a page, a power of two; `None` for the trace's own value, or [`PAGE_BYTES`]. Traces of byte addresses are cut into
    /// pages of this size; for traces of page numbers it is only noted.
    pub page_bytes: Option<u32>,
    /// Keep only this share of the pages, with all their references: above 0, at most 1. A hash of the page number decides which
    /// pages stay (SHARDS: Waldspurger, Park, Garthwaite, Ahmad, FAST 2015), so they are the same in every run.
    pub sample: Option<f64>,
}

/// How far the reading is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Bytes of the file that have been read, before unpacking.
    pub bytes: u64,
    /// Bytes of the file; 0 if unknown (a pipe).
    pub bytes_total: u64,
}

/// Reads the trace in the file `path`.
///
/// # Errors
/// [`Error`] says what is wrong, in which file, where, and what to try.
///
/// # Panics
/// If `options.page_bytes` is not a power of two, or `options.sample` is not above 0 and at most 1.
pub fn read(path: &Path, options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Trace, Error> {
    let file = File::open(path).map_err(|source| Error::open(path, source))?;
    let meta = file.metadata().map_err(|source| Error::open(path, source))?;
    if meta.is_dir() {
        return Err(Error::open(path, std::io::Error::from(std::io::ErrorKind::IsADirectory)));
    }
    read_from(file, path, meta.len(), options, progress)
}

/// Reads a trace from `source`. `name` is for guessing and for errors, `bytes_total` for the progress (0 if unknown).
///
/// # Errors
/// As [`read`].
///
/// # Panics
/// As [`read`].
pub fn read_from<R: Read>(
    source: R,
    name: &Path,
    bytes_total: u64,
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Trace, Error> {
    let mut input = Input::new(source, name, bytes_total, progress)?;
    let guess = match options.format {
        Some(format) => Guess { format, why: "as told" },
        None => guess::guess(&mut input, name)?,
    };
    let mut builder = Builder::new(options.page_bytes, options.sample);
    format::read(guess.format, &mut input, &mut builder).map_err(|complaint| Error::broken(name, guess.format, complaint))?;
    let packing = input.packing();
    builder.finish(guess, packing).ok_or_else(|| Error::empty(name, guess.format))
}

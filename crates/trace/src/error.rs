//! Errors in traces, and their messages.

use crate::format::list::Format;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A place in a trace, after unpacking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Position {
    /// A line, counted from 1.
    Line(u64),
    /// A byte, counted from 0.
    Byte(u64),
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Position::Line(n) => write!(f, "line {n}"),
            Position::Byte(n) => write!(f, "byte {n}"),
        }
    }
}

/// A parser's complaint about its input.
#[derive(Debug)]
pub(crate) struct Complaint {
    pub position: Position,
    pub message: String,
    pub source: Option<io::Error>,
}

/// Why a trace could not be read. `Display` is one message: the file, the place, what is wrong, what to try.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be opened or looked at.
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The content is not in the format, or cannot be read or unpacked.
    Broken {
        /// The file.
        path: PathBuf,
        /// The format as which it was read; `None` if that was not yet known.
        format: Option<Format>,
        /// The place, after unpacking.
        position: Position,
        /// What is wrong there.
        message: String,
        /// The error of the file system or the decompressor, if it was one.
        source: Option<io::Error>,
    },
    /// The trace has no reference at all.
    Empty {
        /// The file.
        path: PathBuf,
        /// The format as which it was read; `None` if that is unknown.
        format: Option<Format>,
    },
    /// Neither name nor content tells the format.
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// What the content looks like, or what it could be.
        message: String,
    },
}

impl Error {
    pub(crate) fn open(path: &Path, source: io::Error) -> Self {
        Error::Open { path: path.to_owned(), source }
    }
    pub(crate) fn broken(path: &Path, format: impl Into<Option<Format>>, complaint: Complaint) -> Self {
        let Complaint { position, message, source } = complaint;
        Error::Broken { path: path.to_owned(), format: format.into(), position, message, source }
    }
    pub(crate) fn empty(path: &Path, format: impl Into<Option<Format>>) -> Self {
        Error::Empty { path: path.to_owned(), format: format.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Open { path, source } => {
                let why = match source.kind() {
                    io::ErrorKind::NotFound => "there is no such file",
                    io::ErrorKind::PermissionDenied => "you may not read it; look at its permissions",
                    io::ErrorKind::IsADirectory => "it is a directory; name a file in it",
                    _ => return write!(f, "trace {}: {source}", path.display()),
                };
                write!(f, "trace {}: {why}", path.display())
            }
            Error::Broken { path, format, position, message, .. } => {
                write!(f, "trace {}, {position}", path.display())?;
                if let Some(format) = format {
                    write!(f, " (read as {format})")?;
                }
                write!(f, ": {message}")
            }
            Error::Empty { path, format: Some(format) } => {
                write!(f, "trace {}: it has no reference in it (read as {format})", path.display())
            }
            Error::Empty { path, format: None } => write!(f, "trace {}: the file is empty", path.display()),
            Error::UnknownFormat { path, message } => {
                write!(f, "trace {}: {message}; name its format with --trace-format", path.display())
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Open { source, .. } => Some(source),
            Error::Broken { source, .. } => source.as_ref().map(|source| source as _),
            _ => None,
        }
    }
}

//! Unpacks files, member by member.
//!
//! A file may have several packed members one after the other, as `cat a.gz b.gz` makes them. The libraries can unpack such files
//! by themselves. But if something else follows the last member, they report a member that is cut short or damaged. So this module
//! checks the end of each member: if the rest does not begin like a member, that is an error of its own, with its place.

use crate::input::Packing;
use std::fmt;
use std::io::{self, BufRead, Read};

/// Bytes that are read at once.
const BUFFER_BYTES: usize = 64 << 10;
/// The longest beginning by which a member is recognised.
const MAGIC_BYTES_MAX: usize = 6;

/// The unpacked content of `source`, and how that was packed.
pub(crate) fn unpacked<'a>(source: impl Read + 'a) -> io::Result<(Packing, Box<dyn Read + 'a>)> {
    let mut source = Packed { inner: source, buffer: vec![0; BUFFER_BYTES], start: 0, end: 0, offset: 0 };
    let head = source.head(MAGIC_BYTES_MAX)?;
    let packing = [Packing::Gzip, Packing::Zstd, Packing::Xz].into_iter().find(|packing| head.starts_with(magic_of(*packing)));
    Ok(match packing {
        None => (Packing::Plain, Box::new(source)),
        Some(packing) => (packing, Box::new(Members { packing, member: Some(Member::new(packing, source)?) })),
    })
}

/// The beginning of a first member. It includes the method of packing where a shorter one could also begin a trace.
fn magic_of(packing: Packing) -> &'static [u8] {
    match packing {
        Packing::Plain => b"",
        Packing::Gzip => b"\x1f\x8b\x08",
        Packing::Zstd => b"\x28\xb5\x2f\xfd",
        Packing::Xz => b"\xfd7zXZ\0",
    }
}

/// Whether `head` begins a further member, or would if there were more of it.
fn begins_member(packing: Packing, head: &[u8]) -> bool {
    let magic = magic_of(packing);
    let magic = &magic[..magic.len().min(head.len())];
    // zstd's skippable frames (RFC 8878, 3.1.2): 184D2A50 to 5F, little endian
    let skippable = packing == Packing::Zstd && head.len() >= 4 && head[0] & 0xf0 == 0x50 && head[1..4] == *b"\x2a\x4d\x18";
    head.starts_with(magic) || skippable
}

/// The rest of the file after the last member is not a member.
#[derive(Debug)]
struct SomethingElse {
    packing: Packing,
    /// Its place in the packed file.
    at: u64,
}

impl fmt::Display for SomethingElse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {0} data end at byte {1} of the file, and what follows is no {0} data", self.packing, self.at)
    }
}

impl std::error::Error for SomethingElse {}

/// Whether `error` reports such a rest.
pub(crate) fn is_something_else(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<SomethingElse>())
}

/// The file, buffered, so that the next bytes can be examined.
struct Packed<R> {
    inner: R,
    /// `buffer[start..end]` has been read and not yet taken.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Place of `buffer[start]` in the file.
    offset: u64,
}

impl<R: Read> Packed<R> {
    /// The next `bytes` bytes, fewer at the end of the file. Does not take them.
    fn head(&mut self, bytes: usize) -> io::Result<&[u8]> {
        if self.end - self.start < bytes {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        while self.end - self.start < bytes {
            match self.inner.read(&mut self.buffer[self.end..]) {
                Ok(0) => break,
                Ok(n) => self.end += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(&self.buffer[self.start..self.end.min(self.start + bytes)])
    }
}

impl<R: Read> BufRead for Packed<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.head(1)?;
        Ok(&self.buffer[self.start..self.end])
    }
    fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        self.offset += bytes as u64;
    }
}

impl<R: Read> Read for Packed<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let ready = self.fill_buf()?;
        let n = ready.len().min(buf.len());
        buf[..n].copy_from_slice(&ready[..n]);
        self.consume(n);
        Ok(n)
    }
}

/// One member, which takes its own bytes from the file.
enum Member<R: Read> {
    Gzip(flate2::bufread::GzDecoder<Packed<R>>),
    Zstd(zstd::Decoder<'static, Packed<R>>),
    Xz(liblzma::bufread::XzDecoder<Packed<R>>),
}

impl<R: Read> Member<R> {
    fn new(packing: Packing, source: Packed<R>) -> io::Result<Self> {
        Ok(match packing {
            Packing::Plain => unreachable!("what is not packed has no members"),
            Packing::Gzip => Member::Gzip(flate2::bufread::GzDecoder::new(source)),
            Packing::Zstd => Member::Zstd(zstd::Decoder::with_buffer(source)?.single_frame()),
            Packing::Xz => Member::Xz(liblzma::bufread::XzDecoder::new(source)),
        })
    }
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Member::Gzip(member) => member.read(buf),
            Member::Zstd(member) => member.read(buf),
            Member::Xz(member) => member.read(buf),
        }
    }
    /// The file, at the end of the member.
    fn into_source(self) -> Packed<R> {
        match self {
            Member::Gzip(member) => member.into_inner(),
            Member::Zstd(member) => member.finish(),
            Member::Xz(member) => member.into_inner(),
        }
    }
}

/// All members.
struct Members<R: Read> {
    packing: Packing,
    /// The member that is being read; `None` after the last.
    member: Option<Member<R>>,
}

impl<R: Read> Members<R> {
    /// The next member, if there is one.
    fn after(&self, mut source: Packed<R>) -> io::Result<Option<Member<R>>> {
        // The only padding that a format allows: xz files may end in groups of four zero bytes.
        while self.packing == Packing::Xz && source.head(4)? == [0; 4] {
            source.consume(4);
        }
        let head = source.head(MAGIC_BYTES_MAX)?;
        if head.is_empty() {
            return Ok(None);
        }
        if !begins_member(self.packing, head) {
            let other = SomethingElse { packing: self.packing, at: source.offset };
            return Err(io::Error::new(io::ErrorKind::InvalidData, other));
        }
        Member::new(self.packing, source).map(Some)
    }
}

impl<R: Read> Read for Members<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        while let Some(member) = &mut self.member {
            let n = member.read(buf)?;
            if n > 0 {
                return Ok(n);
            }
            let ended = self.member.take().expect("it was there");
            self.member = self.after(ended.into_source())?;
        }
        Ok(0)
    }
}

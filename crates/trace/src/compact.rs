//! Overspill's own trace format: small, streamed, checked.
//!
//! All numbers are little endian. A file is a header, blocks, and a trailer:
//!
//! ```text
//! header   0  8  magic "OVSTRACE"
//!          8  2  version: 1
//!         10  2  flags: bit 0: events have kinds; the others are 0
//!         12  4  bytes of a page, a power of two; 0 if not known
//! block    0  4  number of events, 1 to 65536
//!          4  4  number of bytes that follow
//!          8  .  the events
//! trailer  0  4  0: no further block
//!          4  4  0
//!          8  8  number of events in all
//!         16  8  XXH3-64 of everything before this field
//! ```
//!
//! An event is the difference to the page number of the event before (0 before the first; modulo 2^64), zig-zag coded (0, -1, 1, -2
//! ... as 0, 1, 2, 3 ...), above some low bits: bit 0 says "write"; with kinds, bits 1 and 2 hold the [`Kind`]. So the first byte
//! has 6 bits (4 with kinds) of the difference, and each further byte has 7, the lowest first. Bit 7 of a byte says that another
//! follows. To read a file that is cut short, or has any wrong bit, is an error.
//!
//! The format leaves to a general compressor what that can find, so files are usually packed with zstd (`.zst`).

use crate::builder::Builder;
use crate::error::Complaint;
use crate::input::Input;
use crate::trace::Kind;
use std::io::{self, Write};
use xxhash_rust::xxh3::Xxh3;

/// The first bytes of a file.
pub const MAGIC: &[u8; 8] = b"OVSTRACE";
const VERSION: u16 = 1;
const FLAG_KINDS: u16 = 1;
const HEADER_BYTES: usize = 16;
const BLOCK_EVENTS_MAX: u32 = 1 << 16;
/// One byte with 4 bits, ten with 7.
const EVENT_BYTES_MAX: usize = 11;

/// Writes a trace, block by block.
pub struct Writer<W: Write> {
    out: W,
    kinds: bool,
    previous: u64,
    block: Vec<u8>,
    block_events: u32,
    events: u64,
    hash: Xxh3,
}

impl<W: Write> Writer<W> {
    /// Begins a trace of pages of `page_bytes` bytes (0: unknown). With `kinds`, every event has a kind.
    ///
    /// # Errors
    /// Those of `out`.
    ///
    /// # Panics
    /// If `page_bytes` is neither 0 nor a power of two.
    pub fn new(out: W, page_bytes: u32, kinds: bool) -> io::Result<Self> {
        assert!(page_bytes == 0 || page_bytes.is_power_of_two(), "a page of {page_bytes} bytes");
        let mut writer = Writer { out, kinds, previous: 0, block: Vec::new(), block_events: 0, events: 0, hash: Xxh3::new() };
        let mut header = Vec::with_capacity(HEADER_BYTES);
        header.extend_from_slice(MAGIC);
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&if kinds { FLAG_KINDS } else { 0 }.to_le_bytes());
        header.extend_from_slice(&page_bytes.to_le_bytes());
        writer.put(&header)?;
        Ok(writer)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.out.write_all(bytes)
    }

    /// Appends an event. Without kinds, `kind` is not stored.
    ///
    /// # Errors
    /// Those of the output.
    pub fn event(&mut self, page: u64, write: bool, kind: Kind) -> io::Result<()> {
        let delta = page.wrapping_sub(self.previous) as i64;
        self.previous = page;
        let zigzag = ((delta << 1) ^ (delta >> 63)) as u64;
        let (low, low_bits) = if self.kinds { (u8::from(write) | (kind as u8) << 1, 3) } else { (u8::from(write), 1) };
        let mut rest = zigzag >> (7 - low_bits);
        let mut byte = low | ((zigzag as u8) << low_bits & 0x7f);
        while rest != 0 {
            self.block.push(byte | 0x80);
            byte = rest as u8 & 0x7f;
            rest >>= 7;
        }
        self.block.push(byte);
        self.block_events += 1;
        self.events += 1;
        if self.block_events == BLOCK_EVENTS_MAX { self.end_block() } else { Ok(()) }
    }

    fn end_block(&mut self) -> io::Result<()> {
        let block = std::mem::take(&mut self.block);
        self.put(&self.block_events.to_le_bytes())?;
        // At most 65536 events of 11 bytes.
        self.put(&(block.len() as u32).to_le_bytes())?;
        self.put(&block)?;
        self.block = block;
        self.block.clear();
        self.block_events = 0;
        Ok(())
    }

    /// Ends the trace and returns the output. A trace that is not ended is broken.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(mut self) -> io::Result<W> {
        if self.block_events > 0 {
            self.end_block()?;
        }
        self.put(&[0; 8])?;
        self.put(&self.events.to_le_bytes())?;
        let hash = self.hash.digest();
        self.out.write_all(&hash.to_le_bytes())?;
        self.out.flush()?;
        Ok(self.out)
    }
}

pub(crate) fn read(input: &mut Input<'_>, out: &mut Builder) -> Result<(), Complaint> {
    let mut hash = Xxh3::new();
    let Some(header) = input.record(HEADER_BYTES, "the header")? else { return Ok(()) };
    hash.update(header);
    let (magic, rest) = header.split_at(8);
    let (version, flags) = (u16::from_le_bytes([rest[0], rest[1]]), u16::from_le_bytes([rest[2], rest[3]]));
    let page_bytes = u32::from_le_bytes([rest[4], rest[5], rest[6], rest[7]]);
    let bad = |byte, message: String| Complaint { position: crate::Position::Byte(byte), message, source: None };
    if magic != MAGIC {
        return Err(bad(0, "it does not begin with OVSTRACE, as Overspill's own traces do".into()));
    }
    if version != VERSION {
        return Err(bad(8, format!("it has format version {version}; this program knows version {VERSION}")));
    }
    if flags & !FLAG_KINDS != 0 {
        return Err(bad(10, format!("it has unknown flags ({flags:#x})")));
    }
    if page_bytes != 0 && !page_bytes.is_power_of_two() {
        return Err(bad(12, format!("a page of {page_bytes} bytes is not a power of two")));
    }
    if page_bytes != 0 {
        out.set_page_bytes(page_bytes).map_err(|message| bad(12, message))?;
    }
    let kinds = flags & FLAG_KINDS != 0;
    let (mut previous, mut events) = (0u64, 0u64);
    loop {
        let at = input.offset();
        let Some(head) = input.record(8, "a block's head")? else {
            return Err(bad(at, "the trace has no end; the file is cut short or was not finished".into()));
        };
        hash.update(head);
        let block_events = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let block_bytes = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        if block_events == 0 && block_bytes == 0 {
            break;
        }
        let possible = block_events as usize..=block_events as usize * EVENT_BYTES_MAX;
        if block_events == 0 || block_events > BLOCK_EVENTS_MAX || !possible.contains(&block_bytes) {
            return Err(bad(at, format!("a block of {block_events} events in {block_bytes} bytes cannot be")));
        }
        let at = input.offset();
        let block =
            input.record(block_bytes, "a block")?.ok_or_else(|| bad(at, "the file is cut short after a block's head".into()))?;
        hash.update(block);
        let mut place = 0;
        for _ in 0..block_events {
            let (zigzag, low, used) = decode(&block[place..], if kinds { 3 } else { 1 })
                .ok_or_else(|| bad(at + place as u64, "an event is cut off or longer than 64 bits".into()))?;
            place += used;
            let delta = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
            previous = previous.wrapping_add(delta as u64);
            if kinds {
                out.event(previous, low & 1 != 0, Kind::ALL[usize::from(low >> 1)]);
            } else {
                out.page(previous, low & 1 != 0);
            }
        }
        if place != block_bytes {
            return Err(bad(at + place as u64, format!("{} bytes of a block are left over", block_bytes - place)));
        }
        events += u64::from(block_events);
        out.check().map_err(|message| bad(at, message))?;
    }
    let at = input.offset();
    let Some(trailer) = input.record(16, "the trailer")? else {
        return Err(bad(at, "the trailer is missing; the file is cut short".into()));
    };
    hash.update(&trailer[..8]);
    let number = |at: usize| u64::from_le_bytes(trailer[at..at + 8].try_into().expect("eight bytes"));
    if number(0) != events {
        return Err(bad(at, format!("the trailer speaks of {} events, but {events} were found", number(0))));
    }
    if number(8) != hash.digest() {
        return Err(bad(at + 8, "the checksum is wrong: the trace is damaged somewhere before".into()));
    }
    let at = input.offset();
    match input.head(1)? {
        [] => Ok(()),
        _ => Err(bad(at, "there is something after the end".into())),
    }
}

/// Zig-zag number, low bits, bytes used; `None` if the bytes end too early or the number exceeds 64 bits.
fn decode(bytes: &[u8], low_bits: u32) -> Option<(u64, u8, usize)> {
    let first = *bytes.first()?;
    let low = first & ((1 << low_bits) - 1);
    let mut value = u64::from((first & 0x7f) >> low_bits);
    let (mut shift, mut used, mut byte) = (7 - low_bits, 1, first);
    while byte & 0x80 != 0 {
        byte = *bytes.get(used)?;
        used += 1;
        let part = u64::from(byte & 0x7f);
        if shift >= 64 || part << shift >> shift != part {
            return None;
        }
        value |= part << shift;
        shift += 7;
    }
    Some((value, low, used))
}

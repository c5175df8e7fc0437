//! VMware's vscsi traces (as CloudPhysics published them, and libCacheSim reads them), little endian, in two versions:
//!
//! ```text
//! version 1, 32 bytes: serial u32, bytes u32, segments u32, command u16, version u16, block u64, time u64
//! version 2, 40 bytes: command u16, version u16, serial u32, bytes u32, segments u32, block u64, time u64, response time u64
//! ```
//!
//! The version is the upper byte of its field. There is one reference per record, as in libCacheSim: the page is the logical block
//! at which the request begins. SCSI's write commands are writes; every other command is a reference that does not write.

use super::RecordParser;
use super::fields::quote;
use crate::builder::Builder;

/// The bytes that are needed to tell the version: a record of either.
pub(crate) const HEAD_BYTES: usize = 40;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vscsi {
    One,
    Two,
}

impl Vscsi {
    /// The version of the first record. If it has neither, the first record will be refused as one of version 1.
    pub fn of(head: &[u8]) -> Vscsi {
        if head.get(3) == Some(&2) && head.get(15) != Some(&1) { Vscsi::Two } else { Vscsi::One }
    }

    fn command_at(self) -> usize {
        match self {
            Vscsi::One => 12,
            Vscsi::Two => 0,
        }
    }

    fn number(self) -> u8 {
        match self {
            Vscsi::One => 1,
            Vscsi::Two => 2,
        }
    }

    /// Whether all whole records of `head` have the version, and it has one.
    pub fn plausible(self, head: &[u8]) -> bool {
        let mut records = head.chunks_exact(self.record_bytes());
        records.len() > 0 && records.all(|record| record[self.command_at() + 3] == self.number())
    }
}

impl RecordParser for Vscsi {
    fn record_bytes(&self) -> usize {
        match self {
            Vscsi::One => 32,
            Vscsi::Two => 40,
        }
    }

    fn record(&mut self, record: &[u8], out: &mut Builder) -> Result<(), String> {
        let command = &record[self.command_at()..][..4];
        if command[3] != self.number() {
            return Err(format!("the record's version field is {}, not {}", quote(&command[2..]), self.number()));
        }
        let block = u64::from_le_bytes(record[16..24].try_into().expect("eight bytes"));
        // WRITE(6), WRITE(10), WRITE(12), WRITE(16), and the last three's "and verify".
        let write = matches!(u16::from_le_bytes([command[0], command[1]]), 0x0a | 0x2a | 0xaa | 0x8a | 0x2e | 0xae | 0x8e);
        out.page(block, write);
        Ok(())
    }
}

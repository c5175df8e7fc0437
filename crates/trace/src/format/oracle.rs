//! libCacheSim's oracleGeneral: packed records of 24 bytes, little endian: `clock_time: u32, object: u64, object_bytes: u32,
//! next_access: i64`. A page is an object of any size; nothing says which references write.

use super::RecordParser;
use crate::builder::Builder;

/// Bytes of a record.
pub(crate) const RECORD_BYTES: usize = 24;

pub(super) struct Oracle;

impl RecordParser for Oracle {
    fn record_bytes(&self) -> usize {
        RECORD_BYTES
    }
    fn record(&mut self, record: &[u8], out: &mut Builder) -> Result<(), String> {
        let (object, _) = fields(record);
        out.page(object, false);
        Ok(())
    }
}

/// Object and number of its next access.
fn fields(record: &[u8]) -> (u64, i64) {
    let eight = |at: usize| <[u8; 8]>::try_from(&record[at..at + 8]).expect("eight bytes");
    (u64::from_le_bytes(eight(4)), i64::from_le_bytes(eight(16)))
}

/// Whether `head` (the content's beginning) looks like such a trace: time does not go back, and each object's next access lies
/// ahead or is absent.
pub(crate) fn plausible(head: &[u8]) -> bool {
    let mut time = 0;
    let records = head.chunks_exact(RECORD_BYTES);
    records.len() > 0
        && records.enumerate().all(|(index, record)| {
            let now = u32::from_le_bytes([record[0], record[1], record[2], record[3]]);
            let (_, next) = fields(record);
            let forward = now >= time;
            time = now;
            forward && (next == -1 || next == i64::MAX || (next > index as i64 && next < 1 << 40))
        })
}

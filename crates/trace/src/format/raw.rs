//! Page numbers of four bytes each.

use super::RecordParser;
use crate::builder::Builder;

pub(super) struct U32 {
    pub from_bytes: fn([u8; 4]) -> u32,
}

impl RecordParser for U32 {
    fn record_bytes(&self) -> usize {
        4
    }
    fn record(&mut self, record: &[u8], out: &mut Builder) -> Result<(), String> {
        let bytes = record.try_into().expect("four bytes");
        out.page(u64::from((self.from_bytes)(bytes)), false);
        Ok(())
    }
}

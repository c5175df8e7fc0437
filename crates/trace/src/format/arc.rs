//! The `.lis` files of Megiddo and Modha (ARC, FAST 2003; also the SPC traces): lines `start n ignored sequence`, n references to
//! the blocks from `start` on.

use super::TextParser;
use super::fields::{decimal, quote, words};
use crate::builder::Builder;

pub(super) struct Arc;

impl TextParser for Arc {
    fn line(&mut self, line: &[u8], out: &mut Builder) -> Result<(), String> {
        let mut words = words(line);
        let mut field = |name: &str| {
            let word =
                words.next().ok_or_else(|| format!("the line has no {name}; four numbers are expected: start n 0 sequence"))?;
            decimal(word).ok_or_else(|| format!("{} is not a decimal number ({name})", quote(word)))
        };
        let (start, count) = (field("first block")?, field("number of blocks")?);
        field("third field")?;
        field("sequence number")?;
        if let Some(more) = words.next() {
            return Err(format!("{} is too much: four numbers are expected", quote(more)));
        }
        if count == 0 {
            return Err("a request of no blocks".into());
        }
        out.pages(start, count, false)
    }
}

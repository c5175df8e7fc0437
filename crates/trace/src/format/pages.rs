//! Lines `r HEX` and `w HEX`: page numbers in hexadecimal, without `0x`.

use super::TextParser;
use super::fields::{hex, quote};
use crate::builder::Builder;

pub(super) struct Pages;

impl TextParser for Pages {
    fn line(&mut self, line: &[u8], out: &mut Builder) -> Result<(), String> {
        let (write, rest) = match line {
            [b'r', b' ', rest @ ..] => (false, rest),
            [b'w', b' ', rest @ ..] => (true, rest),
            _ => return Err(format!("{} does not begin with r or w and a blank", quote(line))),
        };
        let number = hex(rest).ok_or_else(|| format!("{} is not a hexadecimal page number", quote(rest)))?;
        out.page(number, write);
        Ok(())
    }
}

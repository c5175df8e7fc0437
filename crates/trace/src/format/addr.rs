//! Byte addresses (UCSD CSE240A, also in Caffeine's simulator): lines `s|l ADDRESS gap`, a store or a load and the number of
//! instructions since the last. The gap may be missing; an address is hexadecimal with `0x`, else decimal. Each line is one
//! reference: the addresses are those of aligned data.

use super::TextParser;
use super::fields::{decimal, number, quote, words};
use crate::builder::Builder;

pub(super) struct Addr;

impl TextParser for Addr {
    fn line(&mut self, line: &[u8], out: &mut Builder) -> Result<(), String> {
        let mut words = words(line);
        let write = match words.next() {
            Some(b"s") => true,
            Some(b"l") => false,
            other => return Err(format!("{} is neither s (store) nor l (load)", quote(other.unwrap_or_default()))),
        };
        let address = words.next().ok_or("the line has no address")?;
        let address = number(address).ok_or_else(|| format!("{} is not an address (hexadecimal with 0x)", quote(address)))?;
        if let Some(gap) = words.next() {
            decimal(gap).ok_or_else(|| format!("{} is not a number of instructions", quote(gap)))?;
        }
        if let Some(more) = words.next() {
            return Err(format!("{} is too much: s or l, address, instructions since the last", quote(more)));
        }
        out.bytes(0, address, 1, write)
    }
}

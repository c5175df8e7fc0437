//! One page number per line: decimal, or hexadecimal with `0x`; then `r` or `w` if that is known. `#` starts a comment.

use super::TextParser;
use super::fields::{number, quote, words};
use crate::builder::Builder;

pub(super) struct Lines;

impl TextParser for Lines {
    fn line(&mut self, line: &[u8], out: &mut Builder) -> Result<(), String> {
        let content = line.split(|&byte| byte == b'#').next().unwrap_or_default();
        let mut words = words(content);
        let Some(page) = words.next() else {
            if content.len() == line.len() {
                return Err("the line is blank".into());
            }
            out.marks += 1;
            return Ok(());
        };
        if page == b"*" {
            return Err("\"*\" is a mark of LIRS traces; try --trace-format lirs".into());
        }
        let page = number(page).ok_or_else(|| format!("{} is not a page number (decimal, or hexadecimal with 0x)", quote(page)))?;
        let write = match words.next() {
            None | Some(b"r" | b"R") => false,
            Some(b"w" | b"W") => true,
            Some(other) => return Err(format!("{} after the page number is neither r nor w", quote(other))),
        };
        if let Some(more) = words.next() {
            return Err(format!("{} is too much: a line is a page number and r or w", quote(more)));
        }
        out.page(page, write);
        Ok(())
    }
}

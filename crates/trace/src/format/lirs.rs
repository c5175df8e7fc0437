//! The traces of S. Jiang and X. Zhang (LIRS, SIGMETRICS 2002): one decimal block number per line. A line `*` is a mark.

use super::TextParser;
use super::fields::{decimal, quote};
use crate::builder::Builder;

pub(super) struct Lirs;

impl TextParser for Lirs {
    fn line(&mut self, line: &[u8], out: &mut Builder) -> Result<(), String> {
        match line.trim_ascii() {
            b"*" => out.marks += 1,
            text => out
                .page(decimal(text).ok_or_else(|| format!("{} is neither a decimal block number nor \"*\"", quote(text)))?, false),
        }
        Ok(())
    }
}

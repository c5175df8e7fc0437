//! `valgrind --tool=lackey --trace-mem=yes`: lines `I  ADDRESS,SIZE` (instruction), ` L` (load), ` S` (store), ` M` (modify: one
//! write here), addresses in hexadecimal. Lines that begin with `==`, `--` or `**` are valgrind's messages.

use super::TextParser;
use super::fields::{decimal, hex, quote};
use crate::builder::Builder;

pub(super) struct Lackey;

impl TextParser for Lackey {
    fn line(&mut self, line: &[u8], out: &mut Builder) -> Result<(), String> {
        let (write, rest) = match line {
            [b'I', b' ', b' ', rest @ ..] | [b' ', b'L', b' ', rest @ ..] => (false, rest),
            [b' ', b'S' | b'M', b' ', rest @ ..] => (true, rest),
            [b'=', b'=', ..] | [b'-', b'-', ..] | [b'*', b'*', ..] => {
                out.marks += 1;
                return Ok(());
            }
            _ => {
                return Err(format!(
                    "{} is no line of lackey's; give valgrind --log-file if the program's output got in",
                    quote(line)
                ));
            }
        };
        let comma = rest.iter().position(|&byte| byte == b',').ok_or("there is no comma between address and size")?;
        let address = hex(&rest[..comma]).ok_or_else(|| format!("{} is not a hexadecimal address", quote(&rest[..comma])))?;
        let bytes = decimal(&rest[comma + 1..]).ok_or_else(|| format!("{} is not a size", quote(&rest[comma + 1..])))?;
        if bytes == 0 {
            return Err("a reference of no bytes".into());
        }
        out.bytes(0, address, bytes, write)
    }
}

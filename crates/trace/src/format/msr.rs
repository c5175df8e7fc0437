//! The CSV files of MSR Cambridge (Narayanan, Donnelly, Rowstron: Write Off-Loading, FAST 2008): lines
//! `timestamp,host,disk,Read|Write,offset,size,response`, offset and size in bytes. Each page of a request is one reference, pages
//! of different disks are different. A request of no bytes and a first line with the columns' names are marks.

use super::TextParser;
use super::fields::{decimal, quote};
use crate::builder::Builder;

#[derive(Default)]
pub(super) struct Msr {
    any_line: bool,
}

impl TextParser for Msr {
    fn line(&mut self, line: &[u8], out: &mut Builder) -> Result<(), String> {
        let first = !std::mem::replace(&mut self.any_line, true);
        let mut fields = [&b""[..]; 7];
        let mut count = 0;
        for field in line.split(|&byte| byte == b',') {
            *fields.get_mut(count).ok_or("there are more than seven fields")? = field.trim_ascii();
            count += 1;
        }
        if count < 7 {
            return Err(format!("there are {count} fields instead of seven: timestamp,host,disk,Read|Write,offset,size,response"));
        }
        if first && fields[0].eq_ignore_ascii_case(b"timestamp") {
            out.marks += 1;
            return Ok(());
        }
        let number = |index: usize, name: &str| {
            decimal(fields[index]).ok_or_else(|| format!("{} is not a decimal number ({name})", quote(fields[index])))
        };
        number(0, "timestamp")?;
        number(2, "disk")?;
        number(6, "response time")?;
        let write = match fields[3] {
            kind if kind.eq_ignore_ascii_case(b"read") => false,
            kind if kind.eq_ignore_ascii_case(b"write") => true,
            kind => return Err(format!("{} is neither Read nor Write", quote(kind))),
        };
        let (offset, bytes) = (number(4, "offset")?, number(5, "size")?);
        let disk = out.object(&[fields[1], b" disk ", fields[2]].concat())?;
        out.bytes(disk, offset, bytes, write)
    }
}

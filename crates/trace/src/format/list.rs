//! The list of formats.

use std::fmt;
use std::str::FromStr;

macro_rules! formats {
    ($($(#[doc = $help:literal])* $variant:ident = $name:literal,)*) => {
        /// A trace format.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum Format { $($(#[doc = $help])* $variant,)* }

        impl Format {
            /// All formats.
            pub const ALL: &[Format] = &[$(Format::$variant),*];

            /// The name, as options take it.
            pub fn name(self) -> &'static str {
                match self { $(Format::$variant => $name,)* }
            }
        }
    };
}

formats! {
    /// One page number per line, decimal or hexadecimal with `0x`, then `r` or `w` if known.
    Lines = "lines",
    /// One decimal block number per line; `*` is a mark.
    Lirs = "lirs",
    /// Lines `start n 0 sequence`: n blocks from start on.
    Arc = "arc",
    /// Output of `valgrind --tool=lackey --trace-mem=yes`.
    Lackey = "lackey",
    /// Lines `s|l ADDRESS [gap]`: byte addresses.
    Addr = "addr",
    /// VMware's vscsi records, version 1 or 2.
    Vscsi = "vscsi",
    /// libCacheSim's oracleGeneral records.
    Oracle = "oracle",
    /// Page numbers of 4 bytes, little endian.
    U32le = "u32le",
    /// Page numbers of 4 bytes, big endian.
    U32be = "u32be",
    /// The CSV files of MSR Cambridge.
    Msr = "msr",
    /// `strace -f` of file reads and writes.
    Strace = "strace",
    /// Lines `r|w HEX`: page numbers.
    Pages = "pages",
    /// Overspill's own compact format.
    Overspill = "overspill",
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    /// The format of that name; else a message that lists the names.
    fn from_str(name: &str) -> Result<Self, String> {
        Format::ALL.iter().copied().find(|format| format.name() == name).ok_or_else(|| {
            let names: Vec<&str> = Format::ALL.iter().map(|format| format.name()).collect();
            format!("\"{name}\" is not a trace format; there are {}", names.join(", "))
        })
    }
}

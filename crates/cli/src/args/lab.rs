//! The lab's commands: `overspill trace`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

pub const TRACE_HELP: &str = "\
Formats (--trace-format), each also packed with gzip, zstd or xz:
  lines      a page number per line, decimal or hexadecimal with 0x, then r or w if known; # comments
  lirs       a decimal block number per line; a line \"*\" is a mark
  arc        lines \"start n 0 sequence\": n blocks from start on (.lis, SPC)
  lackey     valgrind --tool=lackey --trace-mem=yes
  addr       lines \"s|l ADDRESS gap\": stores and loads, byte addresses
  vscsi      VMware's records, version 1 or 2; the page is the logical block number
  oracle     libCacheSim's oracleGeneral; the page is the object
  u32le      page numbers of 4 bytes, little endian
  u32be      page numbers of 4 bytes, big endian
  msr        the CSV files of MSR Cambridge
  strace     strace -f -y -o FILE PROGRAM: pages of the files it read, wrote and mapped
  pages      lines \"r HEX\" and \"w HEX\": page numbers
  overspill  our own compact format
Without --trace-format it is guessed from name and content, and told.

Exit status: 0; 1 if a trace cannot be read or a file not written; 125 if called wrongly.";

/// How to read traces.
#[derive(Args, Debug)]
pub struct TraceOptions {
    /// The format of the traces [default: guessed from name and content]
    #[arg(long, value_name = "NAME")]
    pub trace_format: Option<overspill_trace::Format>,

    /// Bytes of a page, a power of two [default: what the trace says, or 4096]
    ///
    /// Traces of byte addresses are cut into pages of this size. For those of page numbers it says what a page is, where sizes are
    /// given or shown in bytes.
    #[arg(long, value_name = "BYTES", value_parser = page_bytes)]
    pub page_size: Option<u32>,
}

/// Arguments of `overspill trace`.
#[derive(Args, Debug)]
pub struct TraceArgs {
    /// What to do with traces.
    #[command(subcommand)]
    pub command: TraceCommand,
}

/// The subcommands of `overspill trace`.
#[derive(Subcommand, Debug)]
pub enum TraceCommand {
    /// Tell what is in a trace: references, unique pages, writes
    #[command(after_long_help = TRACE_HELP)]
    Info(TraceInfoArgs),
    /// Write a trace in Overspill's compact format, or as lines
    #[command(after_long_help = TRACE_HELP)]
    Convert(TraceConvertArgs),
}

/// Arguments of `overspill trace info`.
#[derive(Args, Debug)]
pub struct TraceInfoArgs {
    /// The trace files
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    /// Print JSON, one object per line
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub options: TraceOptions,
}

/// Arguments of `overspill trace convert`.
#[derive(Args, Debug)]
pub struct TraceConvertArgs {
    /// The trace to read
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// The file to write; it must not exist
    ///
    /// NAME.txt and NAME.lines are written as lines, every other name in the compact format; .gz, .zst or .xz after that packs
    /// it.
    #[arg(value_name = "OUT")]
    pub out: PathBuf,

    /// The format to write: overspill or lines [default: by the name]
    #[arg(long, value_name = "NAME", value_parser = ["overspill", "lines"])]
    pub to: Option<String>,

    #[command(flatten)]
    pub options: TraceOptions,
}

fn page_bytes(text: &str) -> Result<u32, String> {
    match overspill_linux::size::parse(text) {
        Ok(overspill_linux::size::Size::Bytes(n)) if n.is_power_of_two() && (1..=1 << 30).contains(&n) => Ok(n as u32),
        _ => Err("write a power of two from 1 to 1G, in bytes or with a unit: 4096, 4K".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_sizes() {
        assert_eq!(page_bytes("4K"), Ok(4096));
        assert_eq!(page_bytes("512"), Ok(512));
        for text in ["0", "3000", "2G", "10%", "", "x"] {
            assert!(page_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_help_names_all_formats() {
        for format in overspill_trace::Format::ALL {
            assert!(TRACE_HELP.contains(&format!("\n  {format} ")), "{format}");
        }
    }
}

//! The lab's commands: `overspill sim`, `overspill trace` and `overspill advise`.

use crate::cost::CostModel;
use crate::sizes::Sizes;
use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

pub const TRACE_HELP: &str = "\
Formats (--trace-format), each also packed with gzip, zstd or xz:
  lines      a page number a line, decimal or hexadecimal with 0x, then r or w if known; # comments
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
Without --trace-format it is guessed from name and content, and told. Nothing in the content of
u32le and u32be tells them; the name must, as x.u32le.zst does.

Exit status: 0; 1 if a trace cannot be read or a file not written; 125 if called wrongly.";

pub const SIM_HELP: &str = "\
Memory:
  1000,2000,8000      pages
  64M,1G              bytes, cut into pages (--page-size)
  10%                 a share of the trace's unique pages
  LOW:HIGH:STEPS      STEPS sizes from LOW to HIGH, each larger than the one before by one factor

Counting:
  Cold start, demand paging, one page at a time, every reference counted. `faults` are the misses,
  the `cold_faults` (first references) among them; `pages_written` are evictions of pages that were
  written since they came in. All counts are exact, unless --sample is given.

  With --see faults the string goes through the live core instead, page daemon and all: the policy
  is told what it would be told live, the faults. `faults` are first touches and hard faults,
  `cold_faults` the first touches, `soft_faults` the touches of inactive pages; `pages_in` pages
  were read in `page_in_ops` reads. The pager's buffers are taken off the memory as `overspill run`
  does it on this machine. What is not known is when things happen: how long a read takes and how
  much the daemon does meanwhile is guessed. Beside live runs on an idle machine hard faults were
  predicted 1 to 5 per cent too low, of one program (GNU sort) 40; see docs/LAB-FAULTS.md.
  --see references is the same on a kernel that tells which pages are used.

Cost model:
  NAME[:KEY=VALUE,...], times in microseconds. NAME: ssd or disk.
    fault    each hard fault and first touch: telling us, and copying the page in   ssd 10   disk 10
    soft     each soft fault                                                        10       10
    latency  each read, beyond the transfer of its pages                            22       8000
    page     transfer of one page, in or out                                        2.8      27
    cluster  pages that one read brings in                                          1        1
    inactive share of the memory that is inactive, where a reference is soft        0.06     0.06
    cold     a first reference: read (of a file) or zero (of fresh memory)          read     read
    run      seconds that the program takes with everything in memory               0        0
  With --see faults soft faults, pages and reads are those counted, and first touches are fresh
  memory: cluster, inactive and cold are not used.
  docs/LAB.md has the formula and where the figures come from.

Examples:
  overspill sim --trace OLTP.lis.zst --policy lru --policy 2q:kin=0.25 --memory 1000,5000,15000
  overspill sim --trace a.lirs b.lirs --policy all --memory 1%:100%:8 --plot curves.svg
  overspill sim --trace cc.lackey.zst --policy lru s3-fifo opt --memory 2M:16M:4 --format json

`overspill help trace info` lists the trace formats.

Exit status: 0; 1 if a trace cannot be read or the picture not written; 125 if called wrongly.";

/// How results are printed.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// Aligned, for people
    Table,
    /// One object per line
    Json,
    /// Comma-separated, with a line of names first
    Csv,
}

/// Which references policies hear of.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum See {
    /// Every reference, as papers count
    All,
    /// First touches, soft faults and hard faults, as live
    Faults,
    /// The same, and references to watched pages, as on a kernel that tells them
    References,
}

/// On or off.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Switch {
    /// As live
    On,
    /// One page per fault
    Off,
}

/// Arguments of `overspill sim`.
#[derive(Args, Debug)]
pub struct SimArgs {
    /// A recorded reference string; may be given several times
    #[arg(short, long, value_name = "FILE", required = true, num_args = 1..)]
    pub trace: Vec<PathBuf>,

    /// A policy, NAME[:KEY=VALUE,...], or all; may be given several times
    #[arg(short, long, value_name = "SPEC", required = true, num_args = 1..)]
    pub policy: Vec<String>,

    /// Sizes of memory: pages, bytes with a unit, or a share: LIST or LOW:HIGH:STEPS
    #[arg(short, long, value_name = "LIST|LOW:HIGH:STEPS")]
    pub memory: Sizes,

    /// Which references policies hear of: all, or those that the live pager sees
    #[arg(long, value_enum, default_value = "all", value_name = "WHAT")]
    pub see: See,

    /// With --see faults: read ahead and fill ahead as `overspill run` does, or page by page
    #[arg(long, value_enum, default_value = "on", value_name = "SWITCH")]
    pub readahead: Switch,

    /// How to print the results
    #[arg(long, value_enum, default_value = "table")]
    pub format: Output,

    /// Draw the miss-ratio curves into FILE.svg or FILE.png
    ///
    /// An existing file is replaced.
    #[arg(long, value_name = "FILE", value_parser = picture)]
    pub plot: Option<PathBuf>,

    /// Predict run times, by NAME[:KEY=VALUE,...]; see "Cost model" below
    #[arg(long, value_name = "MODEL")]
    pub cost_model: Option<CostModel>,

    /// Replay only this share of the pages, above 0 and below 1, and estimate (SHARDS)
    ///
    /// Time and memory fall with the share. Each estimate has a margin in which the exact count lies with 95 % confidence. It comes
    /// from the differences between ten parts of the sample.
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub sample: Option<f64>,

    /// Let compressed memory have a share of each memory, at so many pages per page: 10%:2.5
    ///
    /// `faults` are then those with the rest of the memory, and `pool_hits` are those of them that compressed memory serves.
    #[arg(long, value_name = "SHARE:RATIO", conflicts_with_all = ["sample", "cost_model"])]
    pub compressed: Option<Tier>,

    #[command(flatten)]
    pub options: TraceOptions,
}

/// `--compressed`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tier {
    /// Of the memory, above 0 and below 1.
    pub share: f64,
    /// Pages that a page of it holds, above 1.
    pub ratio: f64,
}

impl FromStr for Tier {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| text.parse::<f64>().ok().filter(|n| n.is_finite());
        let (share, ratio) = text.split_once("%:").ok_or("is no SHARE:RATIO, such as 10%:2.5")?;
        let share =
            number(share).filter(|share| *share > 0.0 && *share < 100.0).ok_or("has a share that is not between 0% and 100%")?;
        let ratio = number(ratio).filter(|ratio| *ratio > 1.0).ok_or("has a ratio that is not above 1")?;
        Ok(Tier { share: share / 100.0, ratio })
    }
}

pub const ADVISE_HELP: &str = "\
How it is found:
  All policies are replayed at a dozen sizes from half a per cent of the trace's pages up to all of
  them. The policy advised has the fewest page-ins in proportion to opt's (which knows the future),
  on average over the sizes. The memory advised is the elbow of its curve: the size that lies
  furthest below the straight line from the smallest size to the largest, on a logarithmic scale;
  if two thirds or more of all that can be saved lie beyond it, that of the rest; and if no size
  lies below the line, as with a loop that fits all at once or not at all, the largest. A knee is a
  size before which a step brought at least twice as much as the step after it brings, or, of the
  largest, twice as much as steps do on average.

  What `overspill trace record` wrote is replayed as by `overspill sim --see faults`: through the
  live core, from 8 MiB (the least of `overspill run`) to where everything fits. opt cannot run
  there, so policies are compared by first touches and hard faults with the best at each size.
  `overspill help sim` explains cost models.

Exit status: 0; 1 if a trace cannot be read; 125 if called wrongly.";

/// Arguments of `overspill advise`.
#[derive(Args, Debug)]
pub struct AdviseArgs {
    /// A recorded reference string; may be given several times
    #[arg(short, long, value_name = "FILE", required = true, num_args = 1..)]
    pub trace: Vec<PathBuf>,

    /// The policies to choose from, NAME[:KEY=VALUE,...] [default: all]
    #[arg(short, long, value_name = "SPEC", num_args = 1..)]
    pub policy: Vec<String>,

    /// How times are predicted, NAME[:KEY=VALUE,...]
    #[arg(long, value_name = "MODEL", default_value = "ssd")]
    pub cost_model: CostModel,

    #[command(flatten)]
    pub options: TraceOptions,
}

/// How to read traces.
#[derive(Args, Debug)]
pub struct TraceOptions {
    /// The format of the traces [default: guessed from name and content]
    #[arg(long, value_name = "NAME")]
    pub trace_format: Option<overspill_trace::Format>,

    /// Bytes of a page, a power of two [default: what the trace says, or 4096]
    ///
    /// Traces of byte addresses are cut into pages of this size. For traces of page numbers it converts sizes that are given or
    /// shown in bytes.
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
    /// Run a program and record the page references that the pager sees
    #[command(
        override_usage = "overspill trace record --out FILE [OPTIONS] [--] PROGRAM [ARGS]...",
        after_long_help = RECORD_HELP
    )]
    Record(TraceRecordArgs),
    /// Show what is in a trace: references, unique pages, writes
    #[command(after_long_help = TRACE_HELP)]
    Info(TraceInfoArgs),
    /// Write a trace in Overspill's compact format, or as lines
    #[command(after_long_help = TRACE_HELP)]
    Convert(TraceConvertArgs),
}

pub const RECORD_HELP: &str = "\
What is recorded:
  The program runs unmodified under the pager, page by page (no readahead). Each first touch, soft
  fault and hard fault is a reference, with a write bit if the access that faulted was a write; a
  page that is read first and written later, without being unmapped in between, counts as read. The
  page number is the address divided by 4096. Pages that are mapped are not seen, so few are kept
  mapped: see --fine. Nothing is lost: when the writing falls behind, the program waits. Children
  that the program forks run on, paged, and are not recorded.

Examples:
  overspill trace record --out sort.ovt.zst -- sort huge.txt
  overspill trace record --out job.ovt.zst --memory 1G --fine 99 -- python3 job.py
  overspill sim --trace job.ovt.zst --see faults --policy all --memory 64M:1G:5

Exit status: the program's own, as for `overspill run`; 1 if the recording cannot be written; 125
if called wrongly.";

/// Arguments of `overspill trace record`.
#[derive(Args, Debug)]
pub struct TraceRecordArgs {
    /// The file to write; it must not exist
    ///
    /// NAME.txt and NAME.lines are written as lines, without the kinds of faults, every other name in the compact format; .gz, .zst
    /// or .xz after that packs it.
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,

    /// Memory the program may use, as for `overspill run`
    #[arg(short, long, value_name = "SIZE", default_value = "64M")]
    pub memory: String,

    /// Where pages go that do not fit, as for `overspill run` [default: $TMPDIR or /tmp]
    #[arg(short, long, value_name = "DIR|FILE[:SIZE]|DEVICE")]
    pub swap: Vec<OsString>,

    /// The policy that chooses the pages to unmap
    ///
    /// With lru the pages that were touched last stay mapped. With other policies some pages may stay mapped for long, and the
    /// references to those are not seen.
    #[arg(short, long, value_name = "NAME", default_value = "lru")]
    pub policy: String,

    /// The share of memory that is kept unmapped, from 1 to 99
    ///
    /// The rest of the memory has the pages that were used last; when these are used again, it is not seen. A finer recording is
    /// slower: each reference to an unmapped page costs about as much as a soft fault, some 10 microseconds.
    #[arg(long, value_name = "PERCENT", default_value_t = 90, value_parser = clap::value_parser!(u8).range(1..=99))]
    pub fine: u8,

    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, num_args = 1.., trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
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

fn picture(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match crate::plot::Kind::of_name(&path) {
        Some(_) => Ok(path),
        None => Err("the name must end in .svg or .png".into()),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate < 1.0 => Ok(rate),
        _ => Err("write a share above 0 and below 1, as in 0.01".into()),
    }
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
    fn rates_and_pictures() {
        assert_eq!(rate("0.01"), Ok(0.01));
        for text in ["0", "1", "-0.1", "NaN", "1%", ""] {
            assert!(rate(text).is_err(), "{text}");
        }
        assert!(picture("a.b.SVG").is_ok() && picture("x.png").is_ok());
        assert!(picture("svg").is_err() && picture("x.pdf").is_err());
    }

    #[test]
    fn the_help_names_all_formats() {
        for format in overspill_trace::Format::ALL {
            assert!(TRACE_HELP.contains(&format!("\n  {format} ")), "{format}");
        }
    }
}

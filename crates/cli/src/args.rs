//! What can be asked for. The doc comments and texts here are the help that users read.

use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

/// Virtual memory in user space: run a program that needs more memory than it may have.
///
/// Overspill gives a program a fixed amount of memory and keeps the rest of its data in a swap file of its own. It needs no swap
/// partition and no change to the program, and no root where userfaultfd is open to users: `overspill check` tells.
#[derive(Parser, Debug)]
#[command(name = "overspill", version, propagate_version = true, max_term_width = 100)]
#[command(after_long_help = "\
Examples:
  overspill check                                  can programs be paged on this machine?
  overspill run --memory 2G -- python3 job.py      at most 2 GiB of memory, the rest in swap
  overspill stat 4711                              look at a program that runs under Overspill

`overspill help COMMAND` tells more about a command.

Exit status: see `overspill help run`. The other commands give 0, or 1 if there is nothing to
show or something is missing, and 125 if they were called wrongly.")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a program within a memory budget; what does not fit goes to swap
    #[command(
        override_usage = "overspill run --memory SIZE [OPTIONS] [--] PROGRAM [ARGS]...",
        after_long_help = RUN_HELP
    )]
    Run(RunArgs),
    /// Show the counters of a program that runs under Overspill
    #[command(after_long_help = STAT_HELP)]
    Stat(StatArgs),
    /// Tell what this machine offers, and what to change so that programs can be paged
    ///
    /// Tries everything that `overspill run` needs, and undoes it at once. Exit status 0: programs can be paged here. 1: they
    /// cannot; the last line says what to change.
    Check(CheckArgs),
}

const RUN_HELP: &str = "\
Sizes:
  A number and a unit: 64M, 2G, 1.5G, 4096K, or plain bytes. Units are powers of 1024.
  A share: 25% of the lowest memory limit of this process's control groups (the container's limit),
  or of the machine's memory if there is none.

Examples:
  overspill run --memory 2G -- python3 job.py
      Two gibibytes of memory; the rest goes to $TMPDIR or /tmp.

  overspill run --memory 75% --swap /mnt/nvme:50G -- ./build-index big.csv
      In a container: three quarters of its limit, and never more than 50 GiB of swap.

  overspill run --memory 512M --stats -- sort -S 4G huge.txt
      Report at the end what the paging cost.

  overspill run --memory 1G --stats-file cost.json --policy fifo -- ./simulate
      Compare policies: the same run, another policy, two JSON files.

What cannot be paged:
  The agent is loaded by the dynamic loader (LD_PRELOAD). Programs that are statically linked, of
  another architecture, or that run with more rights than their caller (set-uid, set-gid, file
  capabilities) are refused, or, with --best-effort, run as they are.

Signals:
  Signals that another process sends to `overspill run` are passed on to the program; those from
  the terminal reach both anyway. If `overspill run` is killed, the program is killed too.

Exit status:
  the program's own   if it ended by itself
  128 + N             if signal N ended it
  125                 if Overspill failed, before the start or later (swap full, say)
  126                 if PROGRAM was found but cannot be executed
  127                 if PROGRAM was not found";

/// Arguments of `overspill run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// Memory the program may use: 64M, 2G, 25%. At least 8M
    ///
    /// The program's pages and the pager's buffers stay within it. The pager's own tables come on top: about one per cent of the
    /// data. See "Sizes" below.
    #[arg(short, long, value_name = "SIZE")]
    pub memory: String,

    /// Where the rest goes: a directory, or a file to be made, and its size limit [default: $TMPDIR or /tmp]
    ///
    /// DIR: an existing directory; the swap file in it has no name. FILE: a file that does not exist yet; it is removed as soon as
    /// it is open. Either way nothing is left behind, however the program ends. With :SIZE the swap never grows beyond SIZE;
    /// when it is full, the program is stopped with a message. Choose a disk: a tmpfs is memory.
    #[arg(short, long, value_name = "DIR|FILE[:SIZE]")]
    pub swap: Option<OsString>,

    /// How to choose the pages that go [default: use-once]
    ///
    /// An unknown name lists those there are.
    #[arg(short, long, value_name = "NAME")]
    pub policy: Option<String>,

    /// How to read and write swap: auto, io_uring or psync
    ///
    /// auto takes io_uring where it works, else psync (pread and pwrite).
    #[arg(short, long, value_name = "ENGINE", default_value = "auto")]
    pub engine: String,

    /// Do not encrypt what goes to swap
    ///
    /// By default it is encrypted (AEGIS-128L), with a key that is made for this run and never leaves the program's memory. That costs
    /// about half a microsecond per page each way. Pages are checked when they come back in either case.
    #[arg(long)]
    pub no_encrypt: bool,

    /// Print a short report to standard error at the end
    #[arg(long)]
    pub stats: bool,

    /// Write all counters to FILE as JSON at the end
    ///
    /// FILE is created or emptied before the program starts.
    #[arg(long, value_name = "FILE")]
    pub stats_file: Option<PathBuf>,

    /// If the program cannot be paged, warn and run it without paging
    ///
    /// Covers programs the agent cannot be loaded into, a missing agent, and a machine without userfaultfd. Mistakes in the
    /// other options are still errors.
    #[arg(long)]
    pub best_effort: bool,

    /// The program and its arguments
    #[arg(
        value_name = "PROGRAM",
        required = true,
        num_args = 1..,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub command: Vec<OsString>,
}

const STAT_HELP: &str = "\
Examples:
  overspill stat 4711                 once, for people
  overspill stat 4711 --all           every counter and what it means
  overspill stat 4711 --interval 1    one line per second, like vmstat, until the program ends
  overspill stat 4711 --json --interval 10 --count 6    six JSON objects, one per line

Exit status: 0; 1 if there is no such process, it is not under Overspill, or it is somebody else's.";

/// Arguments of `overspill stat`.
#[derive(Args, Debug)]
pub struct StatArgs {
    /// Process id of the program, or of the `overspill run` that started it
    pub pid: u32,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Print every counter with its unit and meaning
    #[arg(long, conflicts_with_all = ["json", "interval"])]
    pub all: bool,

    /// Print again every SECONDS (fractions allowed) until the program ends
    ///
    /// The lines show what happened since the line before; the first shows the totals.
    #[arg(short, long, value_name = "SECONDS", value_parser = seconds)]
    pub interval: Option<f64>,

    /// Stop after N times
    #[arg(short, long, value_name = "N", requires = "interval", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
}

/// Arguments of `overspill check`.
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// The swap place to look at, as for `overspill run` [default: $TMPDIR or /tmp]
    #[arg(short, long, value_name = "DIR|FILE[:SIZE]")]
    pub swap: Option<OsString>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(n) if (0.01..=86400.0).contains(&n) => Ok(n),
        _ => Err("write a number of seconds from 0.01 to 86400".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_are_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn options_after_the_program_are_the_programs() {
        for line in ["overspill run --memory 1G ls --memory 2G -- -l", "overspill run --memory 1G -- ls --memory 2G -- -l"] {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            let Command::Run(args) = cli.command else { panic!() };
            assert_eq!(args.memory, "1G");
            assert_eq!(args.command, ["ls", "--memory", "2G", "--", "-l"]);
        }
    }

    #[test]
    fn intervals() {
        assert_eq!(seconds("0.5"), Ok(0.5));
        for text in ["0", "-1", "NaN", "inf", "1s", ""] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}

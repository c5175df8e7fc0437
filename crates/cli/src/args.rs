//! The command line. The doc comments and texts here are the help that users read.

pub mod lab;

use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

/// Virtual memory in user space: run a program that needs more memory than it may have.
///
/// Overspill gives a program a fixed amount of memory and keeps the rest of its data in a swap file of its own. It needs no swap
/// partition and no change to the program, and no root where userfaultfd is open to users. `overspill check` says whether it is.
#[derive(Parser, Debug)]
#[command(name = "overspill", version, propagate_version = true, max_term_width = 100)]
#[command(after_long_help = "\
Examples:
  overspill check                                  can programs be paged on this machine?
  overspill run --memory 2G -- python3 job.py      at most 2 GiB of memory, the rest in swap
  overspill stat 4711                              look at a program that runs under Overspill
  overspill swaps nightly                          look at the swap devices of one that was named so
  overspill trace info accesses.lis.zst            what is in a recorded reference string?

`overspill help COMMAND` tells more about a command.

Exit status: see `overspill help run`, `help trace record` and `help swapoff`. The other commands
give 0, or 1 if there is nothing to show or something is missing, and 125 if they were called
wrongly.")]
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
    /// Show the swap devices of a program that runs under Overspill
    #[command(after_long_help = SWAPS_HELP)]
    Swaps(SwapsArgs),
    /// Give a running program more swap devices
    #[command(after_long_help = SWAPON_HELP)]
    Swapon(SwaponArgs),
    /// Change the replacement policy of a running program
    #[command(after_long_help = POLICY_HELP)]
    Policy(PolicyArgs),
    /// Empty a swap device of a running program, and take it away
    #[command(after_long_help = SWAPOFF_HELP)]
    Swapoff(SwapoffArgs),
    /// Say what this machine offers, and what to change so that programs can be paged
    ///
    /// Tries everything that `overspill run` needs, and undoes it at once. Exit status 0: programs can be paged here. 1: they
    /// cannot; the last line says what to change.
    Check(CheckArgs),
    /// For `overspill run` itself
    #[command(name = crate::keeper::COMMAND, hide = true)]
    Keep {
        /// The mark of the run to watch.
        mark: String,
        /// What shows that a process shares its budget.
        family: Option<String>,
    },
    /// Replay recorded reference strings under policies and sizes of memory: the lab
    ///
    /// The policies are those that `overspill run` uses, and opt, which knows the future.
    #[command(after_long_help = lab::SIM_HELP)]
    Sim(lab::SimArgs),
    /// Say in plain words which policy and how much memory a recorded program wants
    #[command(after_long_help = lab::ADVISE_HELP)]
    Advise(lab::AdviseArgs),
    /// Look at recorded reference strings, and convert them
    Trace(lab::TraceArgs),
}

const RUN_HELP: &str = "\
Sizes:
  A number and a unit: 64M, 2G, 1.5G, 4096K, or plain bytes. Units are powers of 1024.
  A share: 25% of the lowest memory limit of this process's control groups (the container's limit),
  or of the machine's memory if there is none.

Swap devices:
  file:PATH[,size=SIZE][,prio=N][,align=extents]  the same as PATH:SIZE, with a priority; and with
                                           no cluster across the border of two physical extents
  block:PATH[,size=SIZE][,prio=N][,force]  a block device; what is on it is lost
  compressed:[size=SIZE][,algo=ALGO][,prio=N]   memory that holds compressed pages: words (the
                                           default; or lz4 where that is shorter), lz4, zstd, or
                                           zstd:LEVEL from 1 to 19. It is part of
                                           --memory, of which it takes three quarters at the most,
                                           and without a size as much as pays (see --no-compress).
                                           Without a priority it comes before all others: what does
                                           not compress, and what is coldest, goes on to those.
  With path=PATH, up to seven times, a device is made of several files or several block devices:
  file:/ssd0,path=/ssd1,size=8G. They are filled by turns, hold SIZE together, and are called by
  the first.
  Pages go to the device of the highest priority (-32768 to 32767) that has room, in turn to those
  of equal priority. Other devices without one come after, in the order given. A backslash takes the
  character behind it as it is, a comma say. A block device that is in use is refused, and one that
  carries a file system too unless `force` stands there. It serves one process: children of the
  program use the other devices, or a file in $TMPDIR or /tmp. A child that is forked starts with
  one file, in the place of the first file device.
  No device holds more than 1 TiB, and 256 GiB if no size is given.

Configuration file:
  memory = \"2G\"          # keys are the long options: memory, policy, engine, name, stats,
  policy = \"use-once\"    # stats-file, best-effort, no-encrypt, no-load-control,
                         # no-halt-poll, no-follow-pointers, no-compress
  [[swap]]               # once for each device
  kind = \"file\"          # or \"block\", \"compressed\"; size, prio, align, force, algo as above
  path = \"/mnt/nvme\"    # or paths = [\"/ssd0\", \"/ssd1\"]
  size = \"50G\"

Examples:
  overspill run --memory 2G -- python3 job.py
      Two gibibytes of memory; the rest goes to $TMPDIR or /tmp.

  overspill run --memory 75% --swap /mnt/nvme:50G -- ./build-index big.csv
      In a container: three quarters of its limit, and never more than 50 GiB of swap.

  overspill run --memory 2G --swap file:/ssd,size=8G,prio=2 --swap file:/hdd,prio=1 -- ./simulate
      Eight gibibytes on the fast disk first, then the slow one.

  overspill run --memory 2G --swap compressed:size=1G --swap /hdd -- ./simulate
      Up to half of the memory holds compressed pages; the disk gets what is left over.

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
  the terminal reach both anyway. If `overspill run` is killed, the program and all its
  descendants are killed too; if the program is ended by a signal, or ends after a process sent
  TERM or INT to `overspill run`, its descendants are killed.

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
    #[arg(short, long, value_name = "SIZE", required_unless_present = "config")]
    pub memory: Option<String>,

    /// Where pages go that do not fit: a directory, a new file, or a device; may be given several times [default: $TMPDIR or /tmp]
    ///
    /// DIR: an existing directory; the swap file in it has no name. FILE: a file that does not exist yet; it is removed as soon as
    /// it is open. Either way nothing is left behind, however the program ends. With :SIZE the swap never grows beyond SIZE; when
    /// all swap is full, the program is stopped with a message. Choose a disk: a tmpfs is memory. See "Swap devices" below for more
    /// ways to write it.
    #[arg(short, long, value_name = "DIR|FILE[:SIZE]|DEVICE")]
    pub swap: Vec<OsString>,

    /// A name by which `overspill swaps`, `stat` and others find the program
    #[arg(short, long)]
    pub name: Option<String>,

    /// Take options from a TOML file; those on the command line win
    ///
    /// See "Configuration file" below. Unknown keys are errors.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// The replacement policy [default: use-once]
    ///
    /// An unknown name lists all policies.
    #[arg(short, long, value_name = "NAME")]
    pub policy: Option<String>,

    /// How to read and write swap: auto, io_uring or psync
    ///
    /// auto takes io_uring where it works, else psync (pread and pwrite).
    /// The default is auto.
    #[arg(short, long, value_name = "ENGINE")]
    pub engine: Option<String>,

    /// Do not encrypt swap
    ///
    /// By default swap is encrypted (AEGIS-128L), with a key that is made for this run and never leaves the program's memory. That
    /// costs about half a microsecond per page each way. Pages are checked when they come back in either case.
    #[arg(long)]
    pub no_encrypt: bool,

    /// Do not make threads that thrash take turns
    ///
    /// By default, if threads take each other's pages away so that none makes progress, they take turns: one brings its pages in
    /// and computes, the others may read a page every 5 ms. This stops where it does not pay. `--stats` shows how many turns there
    /// were.
    #[arg(long)]
    pub no_load_control: bool,

    /// Let idle CPUs halt while faults are served
    ///
    /// By default, in a virtual machine with at most 4 CPUs, idle CPUs poll while a program has more than some 2,000 faults a
    /// second, so that threads are woken sooner. That takes root. `--stats` shows how often it began.
    #[arg(long)]
    pub no_halt_poll: bool,

    /// Do not read ahead the pages that arrays of pointers point to
    ///
    /// By default, while a program reads pages in order, the pages whose addresses they hold are brought in as well, as long as
    /// enough of these are used. `--stats` shows how many pages that were, and how many of a sample were used.
    #[arg(long)]
    pub no_follow_pointers: bool,

    /// Do not keep compressed pages in memory
    ///
    /// By default, as far as page-ins take less time for it, a part of the memory holds compressed pages, in front of the swap
    /// devices. It starts at nothing. With a device `compressed:size=SIZE` the size is yours to choose. `--stats` shows what it
    /// came to.
    #[arg(long)]
    pub no_compress: bool,

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
    /// Covers programs into which the agent cannot be loaded, a missing agent, and a machine without userfaultfd. Mistakes in the
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
  overspill stat 4711 --interval 1 --all    the same, and what went between the policy's queues
  overspill stat 4711 --json --interval 10 --count 6    six JSON objects, one per line

Columns of --interval, since the line before but for the first two:
  memory, swap    bytes in use now
  first           first touches
  soft, hard      faults on pages that were parked, and that were out
  refault         pages that came back within one memory's worth of evictions
  in, out         pages read and written
  ahead           pages read ahead
  used, lost      pages read ahead that were then used; that went without use seen
  reclaimed       pages whose memory was given to others
  throttled       faults that waited for memory

Exit status: 0; 1 if there is no such process, it is not under Overspill, or it is somebody else's.";

const SWAPS_HELP: &str = "\
Columns:
  DEVICE      its path; of several, the first and how many more
  KIND        file, block or compressed
  PRIO        higher ones are used first
  SIZE USED   the most it can hold, and what it holds; of compressed memory the memory that it
              takes, at most three quarters of the budget
  IN OUT      pages read from it and written to it, with the number of reads and writes
  ERRORS      reads and writes that failed
  STATE       on; full; leaving (a swapoff is under way); failing (no longer written to after
              errors); inherited (the parent's, of a forked child, which only reads it)

With --json there are more figures, bytes_in and bytes_out among them.

Exit status: 0; 1 if there is no such process, it is not under Overspill, or it is somebody else's.";

const POLICY_HELP: &str = "\
The policy takes over with the pages as they are, in the old one's order: none is lost or read
again for it. What the old one remembered of pages that are out is forgotten.

Exit status: 0; 1 if the program cannot be asked; 125 if there is no such policy.";

/// Arguments of `overspill policy`.
#[derive(Args, Debug)]
pub struct PolicyArgs {
    /// Process id or name (see `overspill run --name`) of the program
    #[arg(value_name = "PID|NAME")]
    pub program: String,

    /// The policy, as for --policy of `overspill run`
    #[arg(value_name = "POLICY")]
    pub policy: String,
}

const SWAPON_HELP: &str = "\
Devices are written as for --swap of `overspill run`. Those without a priority come after all that
are there, compressed memory before them. The files are made by this command, with your rights, and
handed to the program. All of the devices are added, or none: if the program refuses one, those
before it are swapped off again.

Exit status: 0 if all were added; 1 if the program cannot be asked or refuses one, because it has
such a device, as many as it can have, or no room for so much memory; 125 if a device is written
wrongly or cannot be used.";

const SWAPOFF_HELP: &str = "\
What is on the device goes straight to other devices where they have room, else into memory within
the budget. If it fits nowhere the command refuses at once, with the figures. On a terminal it shows
how far it is. Ctrl-C interrupts it: the device goes on being used, with what is still on it.

Exit status: 0 when the device is empty and closed; 1 if it was refused or failed, and the device is
in use as before; 2 if it is closed, and pages on it that could not be read are lost; 128 + N if
signal N interrupted it.";

/// Arguments of `overspill swapon`.
#[derive(Args, Debug)]
pub struct SwaponArgs {
    /// Process id or name (see `overspill run --name`) of the program
    #[arg(value_name = "PID|NAME")]
    pub program: String,

    /// The devices
    #[arg(value_name = "DEVICE", required = true)]
    pub devices: Vec<OsString>,
}

/// Arguments of `overspill swapoff`.
#[derive(Args, Debug)]
pub struct SwapoffArgs {
    /// Process id or name (see `overspill run --name`) of the program
    #[arg(value_name = "PID|NAME")]
    pub program: String,

    /// The device, as `overspill swaps` names it, or a path to it
    #[arg(value_name = "DEVICE")]
    pub device: OsString,
}

/// Arguments of `overspill swaps`.
#[derive(Args, Debug)]
pub struct SwapsArgs {
    /// Process id or name (see `overspill run --name`) of the program
    #[arg(value_name = "PID|NAME")]
    pub program: String,

    /// Print JSON, one object per device and line
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `overspill stat`.
#[derive(Args, Debug)]
pub struct StatArgs {
    /// Process id of the program, or of the `overspill run` that started it, or its name (see `overspill run --name`)
    #[arg(value_name = "PID|NAME")]
    pub program: String,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Print every counter with its unit and meaning; with --interval, below each line the moves between the policy's queues
    #[arg(long, conflicts_with = "json")]
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
    #[arg(short, long, value_name = "DIR|FILE[:SIZE]|DEVICE")]
    pub swap: Option<OsString>,
}

/// Whether `command`, the end of the command line `line`, begins with a word that was meant as an option: clap takes an unknown
/// option for the program. After `--` a program may have any name.
pub fn is_mistyped(line: &[OsString], command: &[OsString]) -> bool {
    let before = line.len().checked_sub(command.len() + 1).and_then(|at| line.get(at));
    let dashed = command.first().is_some_and(|name| name.as_encoded_bytes().starts_with(b"-"));
    dashed && before.is_none_or(|before| before != "--")
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

    /// Help is wrapped at 100 columns. A longer line of a text that is laid out by hand would break in the middle.
    #[test]
    fn what_is_laid_out_by_hand_fits() {
        fn look_at(command: &clap::Command) {
            let texts = [command.get_after_long_help(), command.get_after_help()];
            let about = command.get_arguments().flat_map(|arg| [arg.get_help(), arg.get_long_help()]);
            for text in texts.into_iter().chain(about).flatten().map(ToString::to_string) {
                assert!(!text.contains("\\\""), "{}: {text}", command.get_name());
            }
            for text in texts.into_iter().flatten().map(ToString::to_string) {
                let long = text.lines().find(|line| line.chars().count() > 100);
                assert_eq!(long, None, "{}", command.get_name());
            }
            command.get_subcommands().for_each(look_at);
        }
        use clap::CommandFactory;
        look_at(&Cli::command());
    }

    #[test]
    fn options_after_the_program_are_the_programs() {
        for line in ["overspill run --memory 1G ls --memory 2G -- -l", "overspill run --memory 1G -- ls --memory 2G -- -l"] {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            let Command::Run(args) = cli.command else { panic!() };
            assert_eq!(args.memory.as_deref(), Some("1G"));
            assert_eq!(args.command, ["ls", "--memory", "2G", "--", "-l"]);
        }
    }

    #[test]
    fn options_that_there_are_not_are_not_programs() {
        for (text, mistyped) in [
            ("overspill run -m 64M --stat -- true", true),
            ("overspill run -m 64M -x true", true),
            ("overspill run -m 64M - true", true),
            ("overspill run -m 64M -- --stat -- true", false),
            ("overspill run -m 64M true --stat", false),
            ("overspill run -m 64M -- true --", false),
        ] {
            let line: Vec<OsString> = text.split(' ').map(OsString::from).collect();
            let Command::Run(args) = Cli::try_parse_from(&line).unwrap().command else { panic!() };
            assert_eq!(is_mistyped(&line, &args.command), mistyped, "{text}");
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

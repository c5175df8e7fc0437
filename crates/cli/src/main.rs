//! The command `overspill`.
//!
//! ```text
//! args        the command line, and the help texts
//! preflight   finds everything that can go wrong before the program starts: one message each
//! program     finds a program, and tells whether the agent can be loaded into it
//! cgroup      the memory that this process may have
//! run         puts the parts of `overspill run` together
//! supervise   starts the program, passes signals on, waits for its end (the only unsafe code here)
//! keeper      a second process, which kills the descendants when `overspill run` or its program is killed
//! report      counters for people and as JSON
//! config      the file of `overspill run --config`
//! stat        `overspill stat`: reads the status block of a running program
//! swaps       `overspill swaps` and `policy`: ask a running program over its control socket
//! swapon      `overspill swapon` and `swapoff`
//! check       `overspill check`: what this machine offers
//! sim         `overspill sim`: policies and sizes on recorded reference strings
//! advise      `overspill advise`: which policy, how much memory
//! cost        from counts to a predicted run time
//! sizes       sizes of memory for the lab
//! plot        miss-ratio curves as a picture
//! trace       `overspill trace`: what is in a trace, conversion; loads traces for the lab's other commands
//! progress    shows how far long work is
//! ```

#![deny(unsafe_code)]

mod advise;
mod args;
mod cgroup;
mod check;
mod config;
mod cost;
mod keeper;
mod plot;
mod preflight;
mod program;
mod progress;
mod report;
mod run;
mod sim;
mod sizes;
mod stat;
#[allow(unsafe_code)]
mod supervise;
mod swapon;
mod swaps;
mod trace;

use clap::Parser;
use std::fmt;
use std::process::ExitCode;

/// Overspill itself failed, as with `env` and `timeout`.
const FAILED: u8 = 125;
/// The program was found and cannot be started.
const NOT_EXECUTABLE: u8 = 126;
/// The program was not found.
const NOT_FOUND: u8 = 127;

/// Why the command ends without having done its work.
#[derive(Debug)]
struct Failure {
    /// Exit status.
    status: u8,
    /// One message: what happened, where, what to try. Without a full stop.
    message: String,
}

impl Failure {
    fn new(message: impl Into<String>) -> Self {
        Failure { status: FAILED, message: message.into() }
    }
    fn with_status(status: u8, message: impl Into<String>) -> Self {
        Failure { status, message: message.into() }
    }
}

/// Writes a line to standard error. If that is closed, nothing happens.
fn say(line: impl fmt::Display) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "overspill: {}", printable(&line.to_string()));
}

/// Writes to standard output. Returns `false` if the reader has closed the pipe, as `head` does: it has seen enough.
///
/// # Errors
/// Status 1.
fn print(text: &str) -> Result<bool, Failure> {
    use std::io::{ErrorKind, Write};
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::with_status(1, format!("standard output: {error}"))),
    }
}

/// `text` as one line without control characters for a terminal. It has names of files and devices that others may have chosen.
fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

fn main() -> ExitCode {
    let cli = match args::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { FAILED } else { 0 });
        }
    };
    let result = match cli.command {
        args::Command::Run(args) => run::run(&args),
        args::Command::Stat(args) => stat::stat(&args),
        args::Command::Swaps(args) => swaps::swaps(&args),
        args::Command::Policy(args) => swaps::policy(&args),
        args::Command::Swapon(args) => swapon::swapon(&args),
        args::Command::Swapoff(args) => swapon::swapoff(&args),
        args::Command::Check(args) => check::check(&args),
        args::Command::Keep { mark, family } => Ok(keeper::keep(&mark, family.as_deref())),
        args::Command::Advise(args) => advise::advise(&args),
        args::Command::Sim(args) => sim::sim(&args),
        args::Command::Trace(args) => trace::trace(&args),
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            say(&failure.message);
            ExitCode::from(failure.status)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn what_is_printed_is_one_harmless_line() {
        assert_eq!(printable("/a b\u{e4}"), "/a b\u{e4}");
        assert_eq!(printable("/a\n\x1b[2J\u{9b}1A\t"), "/a\\n\\u{1b}[2J\\u{9b}1A\\t");
    }
}

//! `overspill run`.

use crate::args::{self, RunArgs};
use crate::config::{self, Config};
use crate::keeper::Keeper;
use crate::supervise::{self, End, Ended};
use crate::{FAILED, Failure, NOT_EXECUTABLE, NOT_FOUND, preflight, report, say};
use overspill_linux::control_client::{self, ControlError};
use overspill_linux::device_spec;
use overspill_linux::family::FamilyFile;
use overspill_linux::record::Recording;
use overspill_linux::status_file::StatusFile;
use overspill_vm::status::Outcome;
use std::env;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering::Release;
use std::time::Duration;

/// How often the sockets of descendants that have ended are removed. A build with its thousands of compilers would leave as many,
/// in memory of the kernel's that nothing else frees.
const SOCKETS_CHECKED: Duration = Duration::from_secs(10);

/// Runs the program; returns the exit status.
pub fn run(args: &RunArgs) -> Result<u8, Failure> {
    run_with(args, None)
}

/// As [`run`]; the program's page references go to `recording`.
pub fn run_with(args: &RunArgs, recording: Option<&Recording>) -> Result<u8, Failure> {
    // Check the options first, then the program, then the machine: mistakes before circumstances.
    let line: Vec<_> = env::args_os().collect();
    if args::is_mistyped(&line, &args.command) {
        return Err(Failure::new(format!(
            "there is no option {}; --help lists those there are, and a program whose name begins with - goes after --",
            args.command[0].display()
        )));
    }
    let config = configuration(args)?;
    // for messages: where a wrong value comes from
    let origin = |option: &Option<String>, key: &str| match (option, &args.config) {
        (None, Some(path)) => format!("--config {}: {key}", path.display()),
        _ => format!("--{key}"),
    };
    let Some(memory) = args.memory.as_ref().or(config.memory.as_ref()) else {
        return Err(Failure::new(
            "no memory budget was given; write --memory SIZE, or `memory = \"SIZE\"` in the configuration file",
        ));
    };
    let memory_origin = origin(&args.memory, "memory");
    let memory = preflight::memory(&memory_origin, memory)?;
    let policy = preflight::policy(&origin(&args.policy, "policy"), args.policy.as_deref().or(config.policy.as_deref()))?;
    let engine = args.engine.as_deref().or(config.engine.as_deref()).unwrap_or("auto");
    let engine = preflight::engine(&origin(&args.engine, "engine"), engine)?;
    let program_name = preflight::program_name(&origin(&args.name, "name"), args.name.as_deref().or(config.name.as_deref()))?;
    let devices = match &args.swap[..] {
        [] => {
            let file = args.config.as_deref().unwrap_or(Path::new("")).display();
            let origin = |i, device: &config::Swap| format!("--config {file}: swap device {i}{}", device.label());
            (1..).zip(&config.swap).map(|(i, device)| (origin(i, device), device.device())).collect()
        }
        options => preflight::swap_options(options),
    };
    let mut swap = preflight::swap(&devices)?;
    if !(args.no_compress || config.no_compress) {
        swap.compress();
    }
    let (best_effort, stats) = (args.best_effort || config.best_effort, args.stats || config.stats);
    let (no_encrypt, no_load_control) = (args.no_encrypt || config.no_encrypt, args.no_load_control || config.no_load_control);
    let no_halt_poll = args.no_halt_poll || config.no_halt_poll;
    let no_follow_pointers = args.no_follow_pointers || config.no_follow_pointers;
    let stats_path = args.stats_file.as_ref().or(config.stats_file.as_ref());
    let name = args.command.first().expect("clap asks for at least one");
    let program = preflight::program(name)?;

    let pageable = match &program.unfit {
        Some(unfit) => Err(Failure::new(unfit)),
        None => preflight::agent().and_then(|agent| preflight::userfaultfd().map(|()| agent)),
    };
    let agent = match pageable {
        Ok(agent) => Some(agent),
        Err(why) if best_effort => {
            say(format_args!("warning: running without paging: {}", why.message));
            None
        }
        Err(why) if program.unfit.is_some() => {
            return Err(Failure::new(format!("{}; with --best-effort it runs without paging", why.message)));
        }
        Err(why) => return Err(why),
    };
    if agent.is_some() {
        let warnings = preflight::memory_warning(&memory_origin, memory).into_iter().chain(swap.warnings.iter().cloned());
        warnings.for_each(|line| say(format_args!("warning: {line}")));
    }

    let mut stats_file = match stats_path {
        None => None,
        Some(path) => Some(
            File::create(path)
                .map_err(|error| Failure::new(format!("--stats-file {}: cannot be written: {error}", path.display())))?,
        ),
    };
    let not_made =
        |what: &str, error| Failure::new(format!("the shared memory for {what} cannot be made: {}", what_to_try(&error)));
    let block: &'static StatusFile = Box::leak(Box::new(StatusFile::create().map_err(|error| not_made("the counters", error))?));
    let family = agent.as_ref().map(|_| FamilyFile::create().map_err(|error| not_made("the budget", error))).transpose()?;

    let sockets = control_directory();
    if let (Err(error), true) = (&sockets, agent.is_some()) {
        say(format_args!("warning: the program can be looked at, but not changed while it runs: {error}"));
    }

    let mut command = Command::new(&program.file);
    command.arg0(name).args(&args.command[1..]);
    if let (Some(agent), Some(family)) = (&agent, &family) {
        let preload = preflight::preload(agent, env::var_os("LD_PRELOAD").as_deref());
        command
            .env("LD_PRELOAD", preload)
            .env("OVERSPILL_MEMORY", memory.to_string())
            .env("OVERSPILL_SWAP", device_spec::encode_list(&swap.devices))
            .env("OVERSPILL_POLICY", policy)
            .env("OVERSPILL_ENGINE", engine)
            .env("OVERSPILL_ENCRYPT", if no_encrypt { "no" } else { "yes" })
            .env("OVERSPILL_LOAD_CONTROL", if no_load_control { "no" } else { "yes" })
            .env("OVERSPILL_HALT_POLL", if no_halt_poll { "no" } else { "yes" })
            .env("OVERSPILL_FOLLOW_POINTERS", if no_follow_pointers { "no" } else { "yes" })
            .env("OVERSPILL_STATUS", block.path())
            .env("OVERSPILL_FAMILY", family.path());
        // messages of a descendant's pager go to this command's standard error, and nowhere else
        match rustix::fs::fstat(std::io::stderr()) {
            Ok(stat) => command.env("OVERSPILL_STDERR", format!("{}:{}", stat.st_dev, stat.st_ino)),
            Err(_) => command.env_remove("OVERSPILL_STDERR"),
        };
        // A descendant with AddressSanitizer runs without paging. But it would end itself, because the agent is loaded before its
        // runtime, unless this option is set.
        let mut asan = env::var_os("ASAN_OPTIONS").filter(|options| !options.is_empty()).unwrap_or_default();
        if !asan.is_empty() {
            asan.push(":");
        }
        asan.push("verify_asan_link_order=0");
        command.env("ASAN_OPTIONS", asan);
        match recording {
            Some(recording) => command.env("OVERSPILL_RECORD", recording.path()),
            None => command.env_remove("OVERSPILL_RECORD"),
        };
        match &sockets {
            Ok(directory) => command.env("OVERSPILL_CONTROL", directory).env("OVERSPILL_NAME", program_name),
            Err(_) => command.env_remove("OVERSPILL_CONTROL").env_remove("OVERSPILL_NAME"),
        };
    }
    let keeper = Keeper::start(&mut command, family.as_ref())?;
    let remove_stale_sockets = || {
        if let Ok(directory) = &sockets {
            control_client::remove_stale(directory);
        }
    };
    let ended = supervise::supervise(command, block, SOCKETS_CHECKED, remove_stale_sockets);
    if ended.as_ref().is_ok_and(Ended::takes_descendants) {
        keeper.end_descendants();
    } else {
        keeper.dismiss();
    }
    let ended = ended.map_err(|error| {
        let status = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
        Failure::with_status(status, format!("{} cannot be started: {error}", program.file.display()))
    })?;
    remove_stale_sockets();
    // Release: a pager that reads this with Acquire sees everything that the run did before.
    block.status().supervisor_done.store(1, Release);

    let seen = block.snapshot();
    let (status, trouble) = verdict(ended.end, seen.outcome, &seen.message);
    if let Some(trouble) = trouble {
        say(trouble);
    } else if agent.is_some() && seen.outcome == Some(Outcome::NotStarted) && matches!(ended.end, End::Exit(_)) {
        // (a program that was killed early may have been about to start one)
        say(format_args!("warning: no pager came up in {}, so it ran without paging", program.file.display()));
    }
    if !seen.loss.is_empty() {
        say(format_args!("a page was lost: {}", seen.loss));
    }

    let run = report::Run {
        command: &args.command,
        end: ended.end,
        exit_status: status,
        wall: ended.wall,
        paged: agent.is_some() && seen.outcome != Some(Outcome::NotStarted),
        memory,
        policy,
        engine,
        swap: &swap.names(),
    };
    if stats {
        let _ = std::io::stderr().write_all(report::of_run(&run, &seen).as_bytes());
    }
    if let (Some(file), Some(path)) = (&mut stats_file, stats_path) {
        let json = report::json_of_run(&run, &seen);
        if let Err(error) = writeln!(file, "{json:#}").and_then(|()| file.flush()) {
            // The program's exit status is worth more than the counters, so it stays.
            say(format_args!("warning: --stats-file {}: {error}", path.display()));
        }
    }
    Ok(status)
}

/// The error; if it comes from a limit, with what to try.
fn what_to_try(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::FileTooLarge => "the limit on the size of files is too low; raise it (ulimit -f)".into(),
        _ => error.to_string(),
    }
}

/// The content of the configuration file, if there is one.
fn configuration(args: &RunArgs) -> Result<Config, Failure> {
    let Some(path) = &args.config else { return Ok(Config::default()) };
    config::read(path).map_err(|why| Failure::new(format!("--config {}: {why}", path.display())))
}

/// The directory of the control sockets. Makes it if necessary.
fn control_directory() -> Result<PathBuf, ControlError> {
    let path = control_client::make_directory()?;
    control_client::remove_stale(&path);
    Ok(path)
}

/// The exit status, and the message if Overspill itself failed, or its pager has ended before the program.
fn verdict(end: End, outcome: Option<Outcome>, message: &str) -> (u8, Option<String>) {
    let own = match end {
        End::Exit(status) => status,
        End::Signal(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
    };
    let or = |text: &str| Some(if message.is_empty() { text.to_owned() } else { message.to_owned() });
    match outcome {
        Some(Outcome::StartFailed) => (FAILED, or("the pager could not start, and does not say why")),
        Some(Outcome::Stopped) => (FAILED, or("the pager had to stop the program, and does not say why")),
        Some(Outcome::Left) => (own, Some(format!("warning: the program ran without paging from some time on: {message}"))),
        Some(Outcome::NotStarted | Outcome::Running) | None => (own, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_statuses() {
        let running = Some(Outcome::Running);
        assert_eq!(verdict(End::Exit(3), running, ""), (3, None));
        assert_eq!(verdict(End::Signal(15), running, ""), (143, None));
        assert_eq!(verdict(End::Signal(9), Some(Outcome::NotStarted), "x"), (137, None));
        let full = "swap is full";
        assert_eq!(verdict(End::Signal(9), Some(Outcome::Stopped), full), (125, Some(full.into())));
        assert_eq!(verdict(End::Exit(125), Some(Outcome::StartFailed), full), (125, Some(full.into())));
        assert!(verdict(End::Exit(0), Some(Outcome::Stopped), "").1.is_some());
        let (status, warning) = verdict(End::Exit(3), Some(Outcome::Left), "why");
        assert!(status == 3 && warning.is_some_and(|text| text.contains("why")));
    }
}

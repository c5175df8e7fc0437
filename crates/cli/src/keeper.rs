//! Kills the descendants of a program when `overspill run` or the program is killed.
//!
//! The kernel kills the program that `overspill run` started (PR_SET_PDEATHSIG), but not that program's children. An agent in them
//! could not do it either: a process in the middle of an exec has none. So a small second process, the keeper, waits at a pipe for
//! the end of `overspill run`. If `overspill run` announces its end, the keeper ends, too: processes in the background may go on.
//! If `overspill run` is killed, or closes the pipe because the program was killed or asked to end (TERM, INT), the keeper kills
//! all processes of this run. It goes on until there have been none for a while, because a process in the middle of an exec shows
//! nothing for a moment.
//!
//! A process is of this run if it began after the keeper, and has one of two marks:
//!
//! ```text
//! its environment has OVERSPILL_RUN=mark    also without a pager; a program that sets its title writes over its environment
//! it has mapped the run's family memory     all with a pager
//! ```
//!
//! The kernel tells both of threads that have not ended, and the first one may have. An older process never counts, whatever it
//! got from a process of the run. The keeper holds a descriptor of the process while it looks, so the process that it kills is the
//! one that it has seen, even if the id is used again.
//!
//! Limits: the keeper does not find a process without a pager that has no such environment: it was started with an empty one, or
//! has written over it. Nor does it find one that it may not look into (set-uid). It cannot help if it is killed as well.
//! `overspill run` waits for it only a few seconds: a process that the kernel does not let go (state D) ends later.

use crate::Failure;
use overspill_linux::family::FamilyFile;
use overspill_linux::sys;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The mark's name in the environment of the program and all its descendants.
const MARK: &str = "OVERSPILL_RUN";
/// The subcommand that makes `overspill` the keeper.
pub const COMMAND: &str = "keep";
/// The byte that `overspill run` sends before it ends by itself.
const DONE: u8 = b'.';
/// If no process has had the mark for this long, there are none left.
const QUIET: Duration = Duration::from_millis(300);
/// How long `overspill run` waits for the end of all descendants. Guessed: killed processes end in milliseconds, except for those
/// with much memory or a slow disk.
const PATIENCE: Duration = Duration::from_secs(5);

/// The keeper, as `overspill run` sees it.
pub struct Keeper(Child);

impl Keeper {
    /// Starts it, and marks `program`, which will be started next. All processes of the run that have a pager will map `family`.
    ///
    /// # Errors
    /// This executable cannot be started a second time.
    pub fn start(program: &mut Command, family: Option<&FamilyFile>) -> Result<Keeper, Failure> {
        // Process ids are used again, and descendants of an older run may live, so the mark includes the time.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mark = format!("{}.{}", std::process::id(), now.as_nanos());
        let process = Command::new("/proc/self/exe")
            .arg0("overspill")
            .args([COMMAND, &mark])
            .args(family.and_then(FamilyFile::in_maps))
            .env_clear() // no agent, and not the mark of a run around this one
            .current_dir("/")
            .process_group(0) // so that Ctrl-C does not reach it
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| Failure::new(format!("the process that cleans up after a kill cannot be started: {error}")))?;
        program.env(MARK, &mark);
        Ok(Keeper(process))
    }

    /// Makes the keeper end the program's descendants, and then itself. For when the program was killed or asked to end.
    pub fn end_descendants(mut self) {
        drop(self.0.stdin.take());
        let start = Instant::now();
        while matches!(self.0.try_wait(), Ok(None)) && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends the keeper, after a normal end of the run.
    pub fn dismiss(mut self) {
        if let Some(pipe) = &mut self.0.stdin {
            let _ = pipe.write_all(&[DONE]);
        }
        // it may have been reaped already, together with children that were not ours
        let _ = self.0.wait();
    }
}

/// The keeper itself. `family` is what [`FamilyFile::in_maps`] says.
pub fn keep(mark: &str, family: Option<&str>) -> u8 {
    let run = Run { entry: format!("{MARK}={mark}"), family, since: began_at(Path::new("/proc/self")).unwrap_or(u64::MAX) };
    let mut last = Vec::new();
    let _ = io::stdin().read_to_end(&mut last);
    if last != [DONE] {
        let mut quiet_since = Instant::now();
        while quiet_since.elapsed() < QUIET {
            if run.kill() {
                quiet_since = Instant::now();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    0
}

/// What shows that a process is of this run.
struct Run<'a> {
    /// The mark in its environment.
    entry: String,
    /// What its list of mappings says of the family's memory.
    family: Option<&'a str>,
    /// When the keeper began, before the program.
    since: u64,
}

impl Run<'_> {
    /// Kills all processes of the run. Returns whether there was one.
    fn kill(&self) -> bool {
        let Ok(processes) = fs::read_dir("/proc") else { return false };
        let mut found = false;
        for process in processes.flatten() {
            let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw) else {
                continue;
            };
            // first this, so that what is found next is said of this process or of a later one of the same id
            let Ok(held) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
            if self.has(&process.path()) {
                found = true;
                let _ = pidfd_send_signal(&held, Signal::KILL);
            }
        }
        found
    }

    /// Whether the process is of the run.
    fn has(&self, process: &Path) -> bool {
        if began_at(process).is_none_or(|time| time < self.since) {
            return false;
        }
        let Ok(threads) = fs::read_dir(process.join("task")) else { return false };
        // all that have not ended say the same
        let said = threads.flatten().find_map(|thread| {
            let maps = fs::read(thread.path().join("maps")).ok().filter(|maps| !maps.is_empty())?;
            Some((maps, fs::read(thread.path().join("environ")).unwrap_or_default()))
        });
        let Some((maps, environment)) = said else { return false };
        let is_family = |line: &str, family| line.splitn(4, ' ').nth(3).is_some_and(|rest| rest.starts_with(family));
        let is_paged = |family| String::from_utf8_lossy(&maps).lines().any(|line| is_family(line, family));
        environment.split(|b| *b == 0).any(|e| e == self.entry.as_bytes()) || self.family.is_some_and(is_paged)
    }
}

/// When a process began, in the kernel's ticks.
fn began_at(process: &Path) -> Option<u64> {
    let stat = fs::read(process.join("stat")).ok()?;
    str::from_utf8(sys::field_of_stat(&stat, 22)?).ok()?.parse().ok() // starttime
}

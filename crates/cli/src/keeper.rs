//! Kills the descendants of a program when `overspill run` or the program is killed.
//!
//! The kernel kills the program that `overspill run` started (PR_SET_PDEATHSIG), but not that program's children. An agent in them
//! could not do it either: a process in the middle of an exec has none. So a small second process, the keeper, waits at a pipe for
//! the end of `overspill run`. If `overspill run` announces its end, the keeper ends, too: processes in the background may go on.
//! If `overspill run` is killed, or closes the pipe because the program was killed or asked to end (TERM, INT), the keeper kills
//! all processes that have this run's mark in their environment. It goes on until there have been none for a while, because a
//! process in the middle of an exec shows no environment for a moment.
//!
//! Limits: the keeper does not find a process that was started with an empty environment (and so without Overspill), nor one whose
//! environment it may not read (set-uid). It cannot help if it is killed as well. `overspill run` waits for it only a few seconds:
//! a process that the kernel does not let go (state D) ends later.

use crate::Failure;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
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
    /// Starts it, and marks `program`, which will be started next.
    ///
    /// # Errors
    /// This executable cannot be started a second time.
    pub fn start(program: &mut Command) -> Result<Keeper, Failure> {
        // Process ids are used again, and descendants of an older run may live, so the mark includes the time.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mark = format!("{}.{}", std::process::id(), now.as_nanos());
        let process = Command::new("/proc/self/exe")
            .arg0("overspill")
            .args([COMMAND, &mark])
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

/// The keeper itself.
pub fn keep(mark: &str) -> u8 {
    let mut last = Vec::new();
    let _ = io::stdin().read_to_end(&mut last);
    if last != [DONE] {
        let entry = format!("{MARK}={mark}");
        let mut quiet_since = Instant::now();
        while quiet_since.elapsed() < QUIET {
            if kill_marked(entry.as_bytes()) {
                quiet_since = Instant::now();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    0
}

/// Kills all processes that have `entry` in their environment. Returns whether there was one.
fn kill_marked(entry: &[u8]) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else { return false };
    let mut found = false;
    for process in processes.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw) else { continue };
        let Ok(environment) = fs::read(process.path().join("environ")) else { continue };
        if environment.split(|b| *b == 0).any(|e| e == entry) {
            found = true;
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    found
}

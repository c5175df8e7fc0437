//! Runs the command as users do, without a real agent. Tests that would need one fail before it is loaded, run with `--best-effort`
//! and a missing agent, or have a few lines of C in its place, which also fix the interface between command and agent.

use crate::common::{copy, patiently};
use overspill_vm::status::STATUS_MAGIC;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const OVERSPILL: &str = env!("CARGO_BIN_EXE_overspill");

/// A directory of its own, removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("overspill-cli-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Dir(dir.canonicalize().unwrap())
    }
    fn file(&self, name: &str, mode: u32, content: &[u8]) -> PathBuf {
        let file = self.0.join(name);
        if mode & 0o111 == 0 {
            fs::write(&file, content).unwrap();
        } else {
            let text = self.0.join("to be run");
            fs::write(&text, content).unwrap();
            copy(&text, &file);
        }
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        file
    }
    /// Compiles a C program. `None`, with a message, where there is no compiler.
    fn compile(&self, name: &str, source: &str, options: &[&str]) -> Option<PathBuf> {
        let code = self.file(&format!("{name}.c"), 0o644, source.as_bytes());
        let out = self.0.join(name);
        let result = Command::new("cc").arg("-o").arg(&out).args(options).arg(&code).output();
        match result {
            Ok(result) if result.status.success() => Some(out),
            other => {
                eprintln!("cannot compile with {options:?} here: {other:?}");
                None
            }
        }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// `overspill` with a swap place that exists and an agent that does not.
fn overspill(arguments: &[&str]) -> Command {
    let mut command = Command::new(OVERSPILL);
    command.args(arguments).env("OVERSPILL_AGENT", "/nonexistent/agent.so").env_remove("TMPDIR");
    command
}

/// `overspill run` of a program without paging, to test the supervisor alone.
fn unpaged(program: &[&str]) -> Command {
    let mut command = overspill(&["run", "--best-effort", "--memory", "64M", "--"]);
    command.args(program);
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Asserts that the command failed before the program started, with this exit status and one line with all these words.
#[track_caller]
fn refused(command: &mut Command, status: i32, words: &[&str]) {
    let output = command.output().unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(status), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("overspill: "), "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} in {text}");
    }
    assert!(output.stdout.is_empty(), "the program must not have run");
}

#[test]
fn sizes_that_cannot_be_read() {
    for (size, word) in [
        ("lots", "is not a size"),
        ("12x", "unit"),
        ("-5M", "is not a size"),
        ("", "is empty"),
        ("1.5", "forget the unit"),
        ("0%", "above 0%"),
        ("200%", "up to 100%"),
        ("99999999P", "larger than any memory"),
    ] {
        refused(&mut overspill(&["run", &format!("--memory={size}"), "--", "true"]), 125, &["--memory", word]);
    }
}

#[test]
fn a_budget_below_the_minimum() {
    for size in ["0", "4096", "7M", "8388607"] {
        refused(&mut overspill(&["run", "--memory", size, "true"]), 125, &["minimum is 8M", size]);
    }
}

#[test]
fn wrong_usage_is_125() {
    for arguments in [&["run"][..], &["run", "--memory", "1G"], &["run", "true"], &["frob"], &[], &["stat"]] {
        let output = overspill(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{arguments:?}");
        let text = stderr(&output);
        assert!(text.contains("Usage") || text.starts_with("error: "), "{arguments:?}: {text}");
    }
}

/// An unknown option was taken for the program: status 127, "there is no such program".
#[test]
fn a_mistyped_option_is_wrong_usage() {
    refused(&mut overspill(&["run", "-m", "64M", "--stat", "--", "true"]), 125, &["no option --stat;", "--help"]);
    refused(&mut overspill(&["run", "-m", "64M", "--stat", "true"]), 125, &["no option --stat;"]);
    refused(&mut overspill(&["run", "-m", "64M", "--", "--stat", "true"]), 127, &["--stat: there is no such program"]);
}

#[test]
fn help_and_version() {
    let output = overspill(&["--version"]).output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), concat!("overspill ", env!("CARGO_PKG_VERSION")));
    let output = overspill(&["run", "--help"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for words in ["Exit status:", "Examples:", "--best-effort", "127"] {
        assert!(text.contains(words), "{words} in {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn swap_places_that_cannot_be_used() {
    let dir = Dir::new("swap");
    let run = |swap: &Path| {
        let mut command = overspill(&["run", "--memory", "64M", "--swap"]);
        command.arg(swap).args(["--", "true"]);
        command
    };
    let missing = dir.0.join("missing/");
    refused(&mut run(&missing.join("")), 125, &["does not exist", "create it"]);
    refused(&mut run(&missing.join("file")), 125, &["does not exist"]);
    let existing = dir.file("existing", 0o600, b"precious");
    refused(&mut run(&existing), 125, &["exists already", "overwrites nothing"]);
    assert_eq!(fs::read(&existing).unwrap(), b"precious");
    refused(&mut run(&existing.join("below")), 125, &["overspill: --swap"]);
    let link = dir.0.join("link");
    std::os::unix::fs::symlink("/nonexistent/x", &link).unwrap();
    refused(&mut run(&link), 125, &["symbolic link"]);
    refused(&mut run(&dir.0.join("new:5x")), 125, &["the size", "unit"]);
    refused(&mut run(&dir.0.join("new:10%")), 125, &["share"]);
    refused(&mut run(Path::new("")), 125, &["--swap is empty"]);
    // Linux lets nobody create files there.
    refused(&mut run(Path::new("/proc/self")), 125, &["--swap /proc/self"]);
    assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 2, "nothing is left behind");
}

#[test]
fn swap_devices_that_cannot_be_used() {
    let dir = Dir::new("devices");
    let here = dir.0.to_str().unwrap();
    let run = |devices: &[String]| {
        let mut command = overspill(&["run", "--memory", "64M"]);
        for device in devices {
            command.args(["--swap", device]);
        }
        command.args(["--", "true"]);
        command
    };
    for (device, words) in [
        ("compressed:", "needs a size"),
        ("zram:size=1G", "there are file, block, compressed"),
        ("file:/,sze=1G", "file devices have path, size, prio"),
        ("file:/,size=big", "not a size"),
        ("file:/,prio=first", "whole number"),
        ("block:/dev/null", "not a block device"),
        ("block:/dev/no-such-device", "name a block device"),
    ] {
        refused(&mut run(&[device.into()]), 125, &[&format!("--swap {device}"), words]);
    }
    refused(
        &mut run(&[here.into(), format!("file:{here}/../{},prio=3", dir.0.file_name().unwrap().display())]),
        125,
        &["named twice", here],
    );
    let config = dir.file("config.toml", 0o600, b"memory = \"64M\"\n[[swap]]\nkind = \"file\"\npth = \"/\"\n");
    let mut with_config = overspill(&["run", "--config"]);
    refused(with_config.arg(&config).args(["--", "true"]), 125, &["--config", "line 4", "pth"]);
    let config = dir.file("config.toml", 0o600, b"policy = \"fifo\"\n");
    let mut with_config = overspill(&["run", "--config"]);
    refused(with_config.arg(&config).args(["--", "true"]), 125, &["no memory budget", "--memory"]);
    let config = dir.file("config.toml", 0o600, b"memory = \"64M\"\n[[swap]]\nkind = \"file\"\npath = \"/nonexistent/x\"\n");
    let mut with_config = overspill(&["run", "--config"]);
    refused(with_config.arg(&config).args(["--", "true"]), 125, &["config.toml: swap device 1 (/nonexistent/x)", "does not exist"]);
    // a mistake in the file is not blamed on an option that was not given
    for (text, words) in [
        ("memory = \"lots\"", &["config.toml: memory \"lots\"", "not a size"][..]),
        ("memory = \"4K\"", &["config.toml: memory 4K", "minimum is 8M"]),
        ("memory = \"64M\"\nengine = \"steam\"", &["config.toml: engine", "steam", "there are auto"]),
        ("memory = \"64M\"\npolicy = \"steam\"", &["config.toml: policy: there is no replacement policy \"steam\""]),
        ("memory = \"64M\"\nname = \"a b\"", &["config.toml: name \"a b\""]),
        ("memory = \"64M\"\n[swap]\nkind = \"file\"", &["config.toml: line 2", "write [[swap]]"]),
    ] {
        let config = dir.file("config.toml", 0o600, text.as_bytes());
        let mut with_config = overspill(&["run", "--config"]);
        let output = with_config.arg(&config).args(["--", "true"]).output().unwrap();
        refused(&mut with_config, 125, words);
        assert!(!String::from_utf8_lossy(&output.stderr).contains(" --memory"), "{output:?}");
    }
    refused(&mut overspill(&["run", "--memory", "lots", "true"]), 125, &["--memory \"lots\" is not a size"]);
    refused(&mut overspill(&["run", "--config", "/dev/zero", "true"]), 125, &["--config /dev/zero: is longer than 1 MiB"]);
    refused(&mut run(&["/no\nsuch\x1b[2J/x".into()]), 125, &["/no\\nsuch\\u{1b}[2J"]);
    refused(
        overspill(&["run", "--config", "/nonexistent.toml", "true"]).arg("x"),
        125,
        &["--config /nonexistent.toml", "cannot be read"],
    );
}

#[test]
fn names_and_programs_that_are_not_there() {
    let dir = Dir::new("names");
    fs::set_permissions(&dir.0, fs::Permissions::from_mode(0o700)).unwrap();
    let command = |arguments: &[&str]| {
        let mut command = overspill(arguments);
        command.env("XDG_RUNTIME_DIR", &dir.0);
        command
    };
    for name in ["", "4711", "a b", "a/b"] {
        refused(&mut command(&["run", "--memory", "64M", "--name", name, "true"]), 125, &["--name"]);
    }
    for verb in ["swaps", "stat"] {
        refused(&mut command(&[verb, "nobody"]), 1, &["nobody", "--name"]);
        refused(&mut command(&[verb, &std::process::id().to_string()]), 1, &["does not run under Overspill"]);
        refused(&mut command(&[verb, "4294967295"]), 1, &["there is no process"]);
        refused(&mut command(&[verb, "99999999999"]), 1, &["there is no process"]);
    }
    // another user made the directory that would be ours, or left it open
    let sockets = dir.0.join("overspill");
    fs::create_dir(&sockets).unwrap();
    fs::set_permissions(&sockets, fs::Permissions::from_mode(0o777)).unwrap();
    refused(&mut command(&["swaps", "nobody"]), 1, &["can be entered by others", "XDG_RUNTIME_DIR"]);
    fs::set_permissions(&sockets, fs::Permissions::from_mode(0o700)).unwrap();
    if rustix::process::getuid().is_root() {
        std::os::unix::fs::chown(&sockets, Some(65534), Some(65534)).unwrap();
        refused(&mut command(&["swaps", "nobody"]), 1, &["belongs to another user", "XDG_RUNTIME_DIR"]);
        let mut run = command(&["run", "--memory", "64M", "--best-effort", "--name", "x", "echo", "ran"]);
        assert!(run.output().unwrap().status.success());
    }
}

#[test]
fn a_swap_directory_of_somebody_else() {
    let dir = Dir::new("readonly");
    fs::set_permissions(&dir.0, fs::Permissions::from_mode(0o555)).unwrap();
    let mut command = overspill(&["run", "--memory", "64M", "--", "true"]);
    command.env("TMPDIR", &dir.0);
    if rustix::process::getuid().is_root() {
        command.uid(65534).gid(65534);
        if command.output().is_err() {
            return eprintln!("skipped: the test's binary cannot be reached as another user");
        }
    }
    refused(&mut command, 125, &["you may not create files", "TMPDIR"]);
}

#[test]
fn names_that_are_not_known() {
    refused(&mut overspill(&["run", "--memory", "64M", "--policy", "best", "--", "true"]), 125, &["\"best\"", "use-once", "fifo"]);
    refused(
        &mut overspill(&["run", "--memory", "64M", "--engine", "steam", "--", "true"]),
        125,
        &["\"steam\"", "auto, io_uring, psync"],
    );
}

#[test]
fn a_missing_agent() {
    refused(
        &mut overspill(&["run", "--memory", "64M", "--", "true"]),
        125,
        &["agent library was not found", "/nonexistent/agent.so", "OVERSPILL_AGENT"],
    );
}

/// A file that is no library was preloaded: the program ran unpaged, or died of SIGBUS without a message.
#[test]
fn an_agent_that_cannot_be_loaded() {
    let dir = Dir::new("damaged");
    let whole = fs::read(Path::new(OVERSPILL).with_file_name("liboverspill_agent.so")).unwrap();
    for content in [&b"root:x:0:0"[..], &whole[..100_000]] {
        let agent = dir.file("agent.so", 0o644, content);
        let mut command = overspill(&["run", "--memory", "64M", "--", "true"]);
        refused(command.env("OVERSPILL_AGENT", &agent), 125, &["agent library", "is not a valid ELF file"]);
        let output = overspill(&["check"]).env("OVERSPILL_AGENT", &agent).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
    }
}

#[test]
fn programs_that_are_not_there() {
    let dir = Dir::new("programs");
    let run = |program: &Path| {
        let mut command = overspill(&["run", "--memory", "64M", "--"]);
        command.arg(program);
        command
    };
    refused(&mut run(Path::new("overspill-no-such-program")), 127, &["in the directories of PATH"]);
    refused(&mut run(&dir.0.join("nothing")), 127, &["no such program"]);
    refused(&mut run(&dir.file("text", 0o644, b"#!/bin/sh\n")), 126, &["may not be executed", "chmod +x"]);
    refused(&mut run(&dir.0), 126, &["is a directory"]);
    refused(&mut run(Path::new("/dev/null")), 126, &["is not a regular file"]);
    refused(&mut run(Path::new("")), 127, &["name of the program to run is empty"]);
    std::os::unix::fs::symlink("loop", dir.0.join("loop")).unwrap();
    refused(&mut run(&dir.0.join("loop")), 127, &["symbolic link"]);
    let script = dir.file("script", 0o755, b"#!/nonexistent/interpreter\n");
    refused(&mut run(&script), 127, &["/nonexistent/interpreter, which does not exist"]);
    refused(unpaged(&[]).arg(&script), 127, &["/nonexistent/interpreter, which does not exist"]);
    refused(&mut run(&dir.file("broken", 0o755, b"\x7fELF junk")), 126, &["not a valid ELF file"]);
}

/// A static program that prints `ran` and exits with 7. If it cannot be compiled, it is made by hand, and cannot run.
fn static_program(dir: &Dir) -> (PathBuf, bool) {
    let source = "#include <stdio.h>\nint main(void) { puts(\"ran\"); return 7; }\n";
    if let Some(program) = dir.compile("static", source, &["-static"]) {
        return (program, true);
    }
    let mut header = fs::read("/proc/self/exe").unwrap()[..64].to_vec();
    header[56..58].fill(0); // no program headers, so no PT_INTERP
    (dir.file("static", 0o755, &header), false)
}

#[test]
fn a_static_program_is_refused_and_best_effort_runs_it() {
    let dir = Dir::new("static");
    let (program, runs) = static_program(&dir);
    let script = dir.file("script", 0o755, format!("#!{}\n", program.display()).as_bytes());
    let run = |program: &Path| {
        let mut command = overspill(&["run", "--memory", "64M", "--"]);
        command.arg(program);
        command
    };
    refused(&mut run(&program), 125, &["statically linked", "--best-effort"]);
    refused(&mut run(&script), 125, &["statically linked", "which runs the script"]);
    if runs {
        let output = unpaged(&[]).arg(&program).output().unwrap();
        assert_eq!(output.status.code(), Some(7));
        assert_eq!(output.stdout, b"ran\n");
        let text = stderr(&output);
        assert!(text.contains("warning: running without paging") && text.lines().count() == 1, "{text}");
    }
}

#[test]
fn a_program_of_another_machine() {
    let dir = Dir::new("machine");
    let mut header = fs::read("/proc/self/exe").unwrap()[..64].to_vec();
    header[18] = 8;
    header[19] = 0;
    let mut run = overspill(&["run", "--memory", "64M", "--"]);
    refused(run.arg(dir.file("mips", 0o755, &header)), 125, &["another processor (MIPS)"]);
    header[4] = 1;
    let mut run = overspill(&["run", "--memory", "64M", "--"]);
    refused(run.arg(dir.file("short", 0o755, &header)), 125, &["32-bit program"]);
}

#[test]
fn the_exit_status_is_the_programs() {
    for status in [0, 1, 42, 125, 255] {
        let output = unpaged(&["sh", "-c", &format!("exit {status}")]).output().unwrap();
        assert_eq!(output.status.code(), Some(status));
    }
    for (name, number) in [("TERM", 15), ("KILL", 9), ("ABRT", 6), ("USR1", 10)] {
        let output = unpaged(&["sh", "-c", &format!("kill -{name} $$")]).output().unwrap();
        assert_eq!(output.status.code(), Some(128 + number), "{name}");
    }
}

/// The command waited for its own process group only, so it panicked when a program had put itself into another.
#[test]
fn a_program_may_leave_the_process_group() {
    let output = unpaged(&["setsid", "sh", "-c", "exit 7"]).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{output:?}");
}

#[test]
fn arguments_name_and_streams_are_the_programs() {
    let mut child = unpaged(&["sh", "-c", "cat; echo \"$0 $1\" >&2", "zero", "--memory"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"hello").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"hello");
    assert_eq!(stderr(&output).lines().last(), Some("zero --memory"));
}

/// The second field of a line of /proc/self/status, as the program started by `command` sees it.
fn status_line(command: &mut Command, name: &str) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.starts_with(name));
    line.unwrap_or_else(|| panic!("{name} in {text} {}", stderr(&output))).split_whitespace().nth(1).unwrap().to_owned()
}

#[test]
fn the_program_starts_with_the_signals_it_would_have_without_us() {
    // With `exec`, overspill and then the program start with the signals ignored that the shell has ignored.
    for ignore in ["", "trap '' PIPE HUP CHLD; "] {
        let script = |command: &str| {
            let mut shell = Command::new("sh");
            shell.arg("-c").arg(format!("{ignore}exec {command}")).env("OVERSPILL_AGENT", "/nonexistent");
            shell
        };
        for line in ["SigIgn:", "SigBlk:", "SigCgt:"] {
            let plain = status_line(&mut script("cat /proc/self/status"), line);
            let run = format!("{OVERSPILL} run --best-effort --memory 64M cat /proc/self/status");
            assert_eq!(status_line(&mut script(&run), line), plain, "{line} after {ignore:?}");
        }
    }
}

/// The supervisor died of SIGXFSZ without a message. The program itself must still get the signal.
#[test]
fn a_limit_on_the_size_of_files() {
    let limited = |limit: &str| {
        let run = unpaged(&["sh", "-c", "grep SigIgn /proc/$$/status"]);
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -f {limit}; exec \"$@\""), "sh"]).arg(run.get_program()).args(run.get_args());
        command.env("OVERSPILL_AGENT", "/nonexistent/agent.so");
        command
    };
    let output = limited("0").output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(stderr(&output).lines().last().is_some_and(|line| line.contains("size of files") && line.contains("ulimit -f")));
    let output = limited("unlimited").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let ignored = u64::from_str_radix(text.trim().trim_start_matches("SigIgn:").trim(), 16).unwrap();
    assert_eq!(ignored >> 24 & 1, 0, "the program has SIGXFSZ ignored: {text}");
}

#[test]
fn no_descriptor_is_left_open_in_the_program() {
    let list = ["sh", "-c", "ls -l /proc/$$/fd"];
    let output = unpaged(&list).output().unwrap();
    assert!(!String::from_utf8_lossy(&output.stdout).contains("memfd"), "{output:?}");
}

/// Starts a shell that says "ready" and then runs `script`. Returns the supervisor and the shell's further output.
fn ready(script: &str) -> (std::process::Child, BufReader<std::process::ChildStdout>) {
    let script = format!("{script}\necho ready; while :; do sleep 0.02; done");
    // In the background of a shell, tests have SIGINT and SIGQUIT ignored, and no shell can trap a signal that was ignored when it
    // started.
    let run = unpaged(&["sh", "-c", &script]);
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP,INT,QUIT").arg(run.get_program()).args(run.get_args());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    (child, out)
}

fn kill(pid: u32, signal: &str) {
    assert!(Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status().unwrap().success());
}

/// XCPU, by which batch systems announce the end of a job's time, and ABRT, which systemd's watchdog sends, ended the supervisor
/// and so the program, which never saw them.
#[test]
fn signals_are_passed_on() {
    for signal in ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "XCPU", "ABRT"] {
        let (mut child, mut out) = ready(&format!("trap 'echo got {signal}; exit 33' {signal}"));
        kill(child.id(), signal);
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, format!("got {signal}\n"));
        assert_eq!(child.wait().unwrap().code(), Some(33));
    }
    // A signal that the program does not catch ends the program, and the supervisor does not end before it.
    let (mut child, _out) = ready("");
    kill(child.id(), "TERM");
    let end = child.wait().unwrap();
    assert_eq!((end.code(), end.signal()), (Some(143), None));
}

#[test]
fn a_signal_from_the_program_to_its_parent_does_not_come_back() {
    let script = "trap 'exit 9' USR1; kill -USR1 $PPID; sleep 0.3; exit 4";
    assert_eq!(unpaged(&["sh", "-c", script]).output().unwrap().status.code(), Some(4));
}

#[test]
fn a_program_stopped_from_outside_may_go_on() {
    // SIGSTOP to the program alone does not stop the supervisor, which would then never see the end.
    let script = "(while sleep 0.1 && kill -CONT $$ 2> /dev/null; do :; done) & kill -STOP $$; exit 5";
    assert_eq!(unpaged(&["sh", "-c", script]).output().unwrap().status.code(), Some(5));
}

#[test]
fn other_children_are_not_taken_for_the_program() {
    // The shell's background job becomes overspill's child by `exec`, and ends before the program.
    let script = format!("(exit 3) & exec {OVERSPILL} run --best-effort --memory 64M sh -c 'sleep 0.2; exit 5'");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).env("OVERSPILL_AGENT", "/nonexistent");
    assert_eq!(shell.output().unwrap().status.code(), Some(5));
}

#[test]
fn the_program_does_not_outlive_a_killed_supervisor() {
    let (mut child, mut out) = ready("");
    kill(child.id(), "KILL");
    child.wait().unwrap();
    // The pipe ends when the shell, and the sleep that it waits for, have ended.
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
}

/// A signal that ended the program left its background jobs running.
#[test]
fn a_killed_program_leaves_nothing() {
    let script = |end: &str| format!("sleep 60 & echo $!; {end}");
    for (end, status, stays) in [("kill -TERM $$; wait", 143, false), ("kill -SEGV $$; wait", 139, false), ("exit 3", 3, true)] {
        let mut child = unpaged(&["sh", "-c", &script(end)]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(status));
        let job = line.trim();
        // a zombie counts as ended: there may be no process that reaps it
        let state = fs::read_to_string(format!("/proc/{job}/stat")).unwrap_or_default();
        let lives = state.rsplit(')').next().and_then(|s| s.trim().chars().next()).is_some_and(|state| state != 'Z');
        if lives {
            kill(job.parse().unwrap(), "KILL");
        }
        assert_eq!(lives, stays, "{end}: {state}");
    }
}

/// A program that catches the signal and ends in its own way was asked to end, too. A program that alone gets the signal was not.
#[test]
fn a_program_that_was_asked_to_end_leaves_nothing() {
    for signal in ["TERM", "INT"] {
        let (mut child, mut out) = ready(&format!("trap 'exit 33' {signal}\n(trap '' {signal}; exec sleep 60) &"));
        kill(child.id(), signal);
        assert_eq!(child.wait().unwrap().code(), Some(33));
        // the job had the pipe, too
        let start = std::time::Instant::now();
        out.read_to_string(&mut String::new()).unwrap();
        assert!(start.elapsed().as_secs() < 30, "a job is left after {signal}");
    }
}

#[test]
fn statistics_of_a_run_without_paging() {
    let dir = Dir::new("stats");
    let file = dir.0.join("stats.json");
    let mut command = overspill(&["run", "--best-effort", "--memory", "64M", "--stats", "--stats-file"]);
    let output = command.arg(&file).args(["sh", "-c", "exit 3"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(stderr(&output).contains("without paging"), "{}", stderr(&output));
    let json: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(json["exit_status"], 3);
    assert_eq!(json["paged"], false);
    assert_eq!(json["policy"], "use-once");
    for name in [
        "memory_limit_bytes",
        "memory_peak_bytes",
        "metadata_bytes",
        "zero_fills",
        "soft_faults",
        "hard_faults",
        "pages_in",
        "page_in_ops",
        "pages_out",
        "page_out_ops",
        "swap_used_bytes",
        "swap_peak_bytes",
        "readahead_pages",
        "readahead_used",
        "wall_seconds",
    ] {
        assert!(json[name].is_number(), "{name}");
    }
}

#[test]
fn a_statistics_file_that_cannot_be_written_is_told_before_the_program_runs() {
    let mut command = overspill(&["run", "--best-effort", "--memory", "64M", "--stats-file", "/nonexistent/x", "--"]);
    let output = command.args(["echo", "ran"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("--stats-file /nonexistent/x"), "{}", stderr(&output));
    assert!(output.stdout.is_empty());
}

#[test]
fn stat_of_what_is_not_paged() {
    refused(&mut overspill(&["stat", "4294967295"]), 1, &["no process 4294967295"]);
    let me = std::process::id().to_string();
    refused(&mut overspill(&["stat", &me]), 1, &["does not run under Overspill"]);
    if rustix::process::getuid().is_root() {
        let mut command = overspill(&["stat", "1"]);
        command.uid(65534).gid(65534);
        match command.output() {
            Ok(_) => refused(&mut command, 1, &["may not look into process 1", "root"]),
            Err(error) => eprintln!("skipped: {error}"),
        }
    }
}

#[test]
fn check_says_what_there_is() {
    let output = overspill(&["check"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for word in ["kernel", "userfaultfd", "io_uring", "memory", "swap place", "agent", "verdict"] {
        assert!(text.lines().any(|line| line.starts_with(word)), "{word} in {text}");
    }
    assert_eq!(output.status.code(), Some(1), "the agent is missing");
    assert!(text.contains("OVERSPILL_AGENT"));
}

/// An agent, as far as the command sees it. `MAGIC` and `ACT` are replaced.
const AGENT: &str = r#"
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
struct block {
    uint64_t magic, size; uint32_t pid, outcome, supervisor_done, reserved; uint64_t start_ns, start_ticks;
    char policy[64], engine[32], swap[256], message[512], loss[512]; uint64_t counters[64];
};
__attribute__((constructor)) static void start(void) {
    int fd = open(getenv("OVERSPILL_STATUS"), O_RDWR);
    if (fd < 0) abort();
    struct stat st;
    fstat(fd, &st);
    struct block *b = mmap(0, st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (b == MAP_FAILED || memcmp(&b->magic, "MAGIC", 8) || b->size != (uint64_t)st.st_size) abort();
    if (b->pid != (uint32_t)getpid()) return;
    if (strcmp(getenv("OVERSPILL_MEMORY"), "67108864") || !strstr(getenv("OVERSPILL_SWAP"), ",size=1073741824,prio=-1")) abort();
    if (strncmp(getenv("OVERSPILL_SWAP"), "file:/", 6) || !getenv("OVERSPILL_RUN")) abort();
    strcpy(b->policy, getenv("OVERSPILL_POLICY"));
    strcpy(b->engine, getenv("OVERSPILL_ENGINE"));
    b->counters[0] = 67108864;
    b->outcome = 1;
    ACT
}
"#;

/// `overspill run` with such an agent. `None`, with a message, where that is impossible.
fn with_agent(dir: &Dir, act: &str, options: &[&str]) -> Option<Command> {
    let magic = STATUS_MAGIC.to_le_bytes();
    let source = AGENT.replace("MAGIC", &String::from_utf8_lossy(&magic)).replace("ACT", act);
    let agent = dir.compile("agent.so", &source, &["-shared", "-fPIC"])?;
    let check = Command::new(OVERSPILL).arg("check").arg("--swap").arg(&dir.0).env("OVERSPILL_AGENT", &agent).output();
    if !check.as_ref().is_ok_and(|check| check.status.success()) {
        eprintln!("skipped, because programs cannot be paged here: {check:?}");
        return None;
    }
    let mut command = Command::new(OVERSPILL);
    command.args(["run", "--no-compress", "--memory", "64M", "--swap"]).arg(format!("{}:1G", dir.0.display())).args(options);
    command.arg("--").env("OVERSPILL_AGENT", agent);
    Some(command)
}

#[test]
fn the_agents_last_words_are_printed() {
    let dir = Dir::new("stopped");
    let act = "strcpy(b->message, \"swap is full\"); b->outcome = 3; kill(getpid(), SIGKILL);";
    if let Some(mut command) = with_agent(&dir, act, &[]) {
        refused(command.args(["echo", "ran"]), 125, &["overspill: swap is full"]);
    }
    let act = "strcpy(b->message, \"no userfaultfd\"); b->outcome = 2; _exit(125);";
    if let Some(mut command) = with_agent(&dir, act, &[]) {
        refused(command.args(["echo", "ran"]), 125, &["overspill: no userfaultfd"]);
    }
}

#[test]
fn a_pager_that_does_not_come_up_is_told() {
    let dir = Dir::new("silent");
    let Some(mut command) = with_agent(&dir, "b->outcome = 0;", &[]) else {
        return;
    };
    let output = command.args(["sh", "-c", "exit 6"]).output().unwrap();
    assert_eq!(output.status.code(), Some(6));
    assert!(stderr(&output).contains("warning: no pager came up"), "{}", stderr(&output));
    // but a program that died at its very start did not run without paging
    let Some(mut command) = with_agent(&dir, "b->outcome = 0; abort();", &[]) else {
        return;
    };
    let output = command.args(["echo", "ran"]).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(134), ""));
}

#[test]
fn stat_finds_a_running_program_and_its_supervisor() {
    let dir = Dir::new("stat");
    let Some(mut command) = with_agent(&dir, "", &["--stats"]) else {
        return;
    };
    let script = "echo $$; read line; exit 0";
    let mut child =
        command.args(["sh", "-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut pid = String::new();
    out.read_line(&mut pid).unwrap();
    let pid = pid.trim();
    for target in [pid, &child.id().to_string()] {
        let output = overspill(&["stat", target, "--json"]).output().unwrap();
        let json: serde_json::Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)));
        assert_eq!(json["pid"].to_string(), pid);
        assert_eq!(json["memory_limit_bytes"], 64 << 20);
        assert_eq!(json["outcome"], "running");
        let output = overspill(&["stat", target]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("running") && text.contains("limit 64.0 MiB"), "{text}");
    }
    let output = overspill(&["stat", pid, "--interval", "0.01", "--count", "3"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 4);
    let output = overspill(&["stat", pid, "--interval", "0.01", "--count", "3", "--json"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 3);
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(stderr(&output).contains("limit 64.0 MiB"), "{}", stderr(&output));
}

/// The end of the program was looked for by its number. If another process had got that number between two lines, `stat` went on
/// for ever, with the last counters of the program that had ended.
#[test]
fn stat_ends_with_its_program_whoever_gets_its_number() {
    let dir = Dir::new("number");
    let Some(command) = with_agent(&dir, "", &[]) else {
        return;
    };
    // Numbers can be chosen in a namespace of one's own. `stat` is stopped meanwhile, so that it cannot look in between.
    let script = r#"
        out=$1; shift
        mkfifo "$out.end"
        "$@" sh -c 'echo $$ > "$0.pid"; read line < "$0.end"' "$out" &
        run=$!
        until "$0" stat $run > "$out.once" 2>&1 && [ -s "$out.pid" ]; do sleep 0.02; done
        pid=$(cat "$out.pid")
        "$0" stat $pid --interval 0.3 > "$out" &
        stat=$!
        until [ -s "$out" ]; do sleep 0.02; done
        kill -STOP $stat
        echo > "$out.end"
        wait $run
        for try in 1 2 3 4 5 6 7 8 9; do
            echo $((pid - 1)) > /proc/sys/kernel/ns_last_pid
            sleep 1000 &
            [ $! = $pid ] && break
        done
        [ $! = $pid ] || exit 77
        kill -CONT $stat
        wait $stat
    "#;
    let mut namespace = patiently("unshare");
    namespace.args(["--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", script, OVERSPILL]).arg(dir.0.join("lines"));
    namespace.arg(command.get_program()).args(command.get_args());
    namespace.envs(command.get_envs().filter_map(|(name, value)| value.map(|value| (name, value))));
    let output = namespace.output().expect("unshare runs");
    if !dir.0.join("lines").exists() || output.status.code() == Some(77) {
        println!("not run: numbers of processes cannot be chosen here: {output:?}");
        assert!(std::env::var_os("CI").is_none(), "CI must let them be chosen");
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn swap_files_may_be_named_if_they_do_not_exist() {
    let dir = Dir::new("file");
    let Some(mut command) = with_agent(&dir, "", &[]) else {
        return;
    };
    let output = command.args(["true"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let named = dir.0.join("swap-file");
    let agent = dir.compile(
        "print.so",
        r#"#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void start(void) { puts(getenv("OVERSPILL_SWAP")); fflush(stdout); }"#,
        &["-shared", "-fPIC"],
    );
    let mut command = Command::new(OVERSPILL);
    command.current_dir(&dir.0).env("OVERSPILL_AGENT", agent.unwrap());
    let output = command.args(["run", "--memory", "64M", "--swap", "swap-file", "true"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), format!("compressed:;file:{},prio=-1", named.display()));
    assert!(fs::symlink_metadata(&named).is_err(), "the probe has gone");
}

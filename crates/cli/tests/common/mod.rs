//! Helpers for the tests of real programs: see `paged.rs`.

#![allow(dead_code)] // not each program of tests uses all of it

mod hangs;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// The command.
pub fn overspill() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_overspill"))
}

/// Whether the machine can run these tests; prints why not.
pub fn able() -> bool {
    static WHY_NOT: OnceLock<Option<String>> = OnceLock::new();
    let why_not = WHY_NOT.get_or_init(|| {
        let agent = overspill().with_file_name("liboverspill_agent.so");
        assert!(agent.exists(), "{} is missing: run `cargo build --workspace` first, as `make test` does", agent.display());
        let check = Command::new(overspill()).arg("check").output().expect("overspill check runs");
        let cc = Command::new("cc").arg("--version").output().is_ok_and(|o| o.status.success());
        let why = format!("cc {cc}, or this machine cannot page programs:\n{}", String::from_utf8_lossy(&check.stdout));
        (!check.status.success() || !cc).then_some(why)
    });
    let Some(why) = why_not else { return true };
    assert!(std::env::var_os("CI").is_none(), "CI must be able to page programs: {why}");
    println!("not run: {why}");
    false
}

/// A time limit that only a hang reaches, however busy the machine. For everything whose speed is not tested.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// `program`, killed after [`PATIENCE`]. Before that, what it waits for is printed.
pub fn patiently(program: impl AsRef<OsStr>) -> Command {
    hangs::watch();
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", &PATIENCE.as_secs().to_string()]).arg(program);
    command
}

/// A name from `name` that nothing else in these tests has.
pub fn unique(name: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{name}-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed))
}

/// A directory of this test's own.
pub fn place(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("overspill-paged-{}", unique(name)));
    std::fs::create_dir_all(&dir).expect("temp dir");
    dir
}

/// The program of this source in `tests/programs`, in `dir`. It is compiled once for all tests that need it.
pub fn build(dir: &Path, source: &str) -> PathBuf {
    static COMPILED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let name = source.trim_end_matches(".c");
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if compiled.insert(name.to_owned()) {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs").join(source);
        let own = built.with_extension(std::process::id().to_string()); // other tests may do the same at the same time
        let status = Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&own).arg(&source).status().expect("cc runs");
        assert!(status.success(), "{} builds", source.display());
        std::fs::rename(&own, &built).expect("a file takes the place of another");
    }
    drop(compiled);
    let out = dir.join(name);
    copy(&built, &out);
    out
}

/// Copies a program. Another process makes the copy: a program cannot be run while any process has it open for writing, and a child
/// that another test has just forked here would have it open.
pub fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg(from).arg(to).status().expect("cp runs");
    assert!(copied.success(), "{} can be copied", from.display());
}

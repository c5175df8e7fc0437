//! What the tests of real programs share: see `paged.rs`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The command.
pub fn overspill() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_overspill"))
}

/// Whether the machine can run these tests; prints why not.
pub fn able() -> bool {
    let agent = overspill().with_file_name("liboverspill_agent.so");
    assert!(agent.exists(), "{} is missing: run `cargo build --workspace` first, as `make test` does", agent.display());
    let check = Command::new(overspill()).arg("check").output().expect("overspill check runs");
    let cc = Command::new("cc").arg("--version").output().is_ok_and(|o| o.status.success());
    if check.status.success() && cc {
        return true;
    }
    let why = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(std::env::var_os("CI").is_none(), "CI must be able to page programs (cc: {cc}):\n{why}");
    println!("not run: cc {cc}, or this machine cannot page programs:\n{why}");
    false
}

/// A directory of this test's own.
pub fn place(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("overspill-paged-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("temp dir");
    dir
}

pub fn build(dir: &Path, source: &str) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs");
    let out = dir.join(source.trim_end_matches(".c"));
    let status = Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&out).arg(sources.join(source)).status().expect("cc runs");
    assert!(status.success(), "{source} builds");
    out
}

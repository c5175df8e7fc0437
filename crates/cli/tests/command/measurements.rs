//! What the scripts in `bench` leave behind when they are interrupted.

use crate::common::place;
use std::path::Path;
use std::process::Command;

/// A measurement with the kernel's swap, in which `mkswap`, `swapon` and `swapoff` are stand-ins. The argument is the signal.
const MEASUREMENT: &str = r#"
import os, signal, sys, time
from pathlib import Path

repository, place, number = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
sys.path[:0] = [str(repository / "bench"), str(repository / "scripts")]
import kernel_swap

kernel_swap.SWAPS = place / "swaps"
kernel_swap.KERNEL_SWAP_BYTES = 1 << 20
with kernel_swap.KernelSwap(place):
    assert kernel_swap.SWAPS.read_text()
    os.kill(os.getpid(), number)
    time.sleep(300)
"#;

/// Takes its time, in which another signal comes to the script and, as from a terminal, to itself.
const SWAPOFF: &str = r#"#!/usr/bin/env python3
import os, sys, time
from pathlib import Path

os.kill(os.getppid(), int(os.environ["NUMBER"]))
os.kill(os.getpid(), int(os.environ["NUMBER"]))
time.sleep(0.2)
(Path(sys.argv[0]).parent / "swaps").write_text("")
"#;

/// An impatient second Ctrl-C ended the swapoff, or came before it, and the machine had 3 GiB of swap more from then on. For two of
/// the scripts one SIGTERM was enough.
#[test]
fn an_interrupted_measurement_leaves_no_swap_of_the_kernels() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let dir = place("measurement");
        let stand_in = |name: &str, text: &str| {
            let path = dir.join(name);
            std::fs::write(&path, text).expect("written");
            assert!(Command::new("chmod").arg("+x").arg(path).status().expect("chmod runs").success());
        };
        stand_in("mkswap", "#!/bin/sh\n");
        stand_in("swapon", "#!/bin/sh\necho \"$1\" > \"${0%/*}/swaps\"\n");
        stand_in("swapoff", SWAPOFF);
        std::fs::write(dir.join("swaps"), "").expect("written");
        let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new("timeout");
        command.args(["60", "python3", "-B", "-c", MEASUREMENT]).args([&repository, &dir]).arg(signal.to_string());
        let output = command.env("PATH", path).env("NUMBER", signal.to_string()).output().expect("python3 runs");
        assert_eq!(std::fs::read_to_string(dir.join("swaps")).expect("read"), "", "signal {signal}: {output:?}");
        assert!(!dir.join("kernel.swap").exists(), "signal {signal}: {output:?}");
        assert_ne!(output.status.code(), Some(124), "signal {signal}: it hangs: {output:?}");
        std::fs::remove_dir_all(&dir).expect("cleanup");
    }
}

//! `overspill check`: what this machine offers.

use crate::args::CheckArgs;
use crate::cgroup;
use crate::{Failure, preflight};
use overspill_linux::size::human;
use overspill_linux::{probe, uffd};

/// Prints a few lines; exit status 0 if programs can be paged.
pub fn check(args: &CheckArgs) -> Result<u8, Failure> {
    let mut lines = Vec::new();
    let mut problems = Vec::new();
    let mut line = |name: &str, value: String| lines.push(format!("{name:<14} {value}"));

    let uname = rustix::system::uname();
    line("kernel", format!("Linux {} {}", probe::kernel_release(), uname.machine().to_string_lossy()));

    match probe::full_mode() {
        Ok(mode) => {
            let fork = if mode.features & uffd::FEATURE_EVENT_FORK != 0 { ", fork" } else { "" };
            line("userfaultfd", format!("full mode, {}; move; events remap, remove, unmap{fork}", mode.way));
            let told = mode.features & uffd::FEATURES_REFERENCES == uffd::FEATURES_REFERENCES;
            line("references", if told { "told by the kernel" } else { "not told by this kernel; soft faults tell them" }.into());
        }
        Err(refusal) => {
            let user = match probe::user_mode() {
                Ok(features) if features & uffd::FEATURE_MOVE != 0 => "user mode only, with move (enough for the library)",
                Ok(_) => "user mode only, without move",
                Err(_) => "no",
            };
            line("userfaultfd", user.into());
            problems.push(refusal.to_string());
        }
    }
    line(
        "io_uring",
        match probe::io_uring() {
            Ok(()) => "yes".into(),
            Err(error) => {
                format!("no ({error}); Overspill uses pread and pwrite instead, somewhat slower")
            }
        },
    );
    let total = cgroup::total_memory().map_or("unknown".into(), human);
    line(
        "memory",
        match cgroup::memory_limit() {
            Some(limit) => {
                format!("{total}, limited to {} by {}", human(limit.bytes), limit.file.display())
            }
            None => format!("{total}, no control-group limit"),
        },
    );
    match preflight::swap(&preflight::swap_options(args.swap.as_slice())) {
        Ok(swap) => {
            line("swap place", format!("{}, {} free", swap.names(), human(swap.free)));
            for warning in swap.warnings {
                line("", format!("warning: {warning}"));
            }
        }
        Err(failure) => {
            line("swap place", "no".into());
            problems.push(failure.message);
        }
    }
    match preflight::agent() {
        Ok(agent) => line("agent", agent.display().to_string()),
        Err(failure) => {
            line("agent", "not found".into());
            problems.push(failure.message);
        }
    }
    let ok = problems.is_empty();
    if ok {
        line("verdict", "programs can be paged here: overspill run --memory SIZE -- PROGRAM".into());
    } else {
        line("verdict", "programs cannot be paged here:".into());
        lines.extend(problems.into_iter().map(|problem| format!("  - {problem}")));
    }
    crate::print(&format!("{}\n", lines.join("\n")))?;
    Ok(if ok { 0 } else { 1 })
}

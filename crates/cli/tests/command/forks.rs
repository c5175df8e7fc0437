//! Forks of all kinds under `overspill run`.

use crate::common::{PATIENCE, able, build, overspill, patiently, place};
use crate::runs::{Run, finds_all_bytes_right, no_swap_file_left, run, swap_option};
use overspill_linux::control_client::has_ended;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A child that was made by `clone()` or `syscall()`, and not by libc's fork, found zeroes where its parent's pages were out. And
/// when the function that was given to `clone()` returned, the pager's threads kept the child alive for ever.
#[test]
fn children_of_clone_find_everything() {
    let Some(r) = finds_all_bytes_right("clones.c") else { return };
    assert!(r.stat("forks") == 7 && r.stat("pages_out") > 1000, "{}", r.stats);
}

/// Until a child's memory was registered, khugepaged could make a huge page of some of its pages, and fill with zeroes those that
/// were out. (Found by reading the code and the kernel's.)
#[test]
fn no_huge_page_comes_while_a_child_is_born() {
    finds_all_bytes_right("huge_pages.c");
}

/// Runs `family` with these arguments, at 16 MiB, with this option of the swap file.
fn family(name: &str, suffix: &str, args: &[&str]) -> Option<Run> {
    if !able() {
        return None;
    }
    let dir = place(name);
    let program = build(&dir, "family.c");
    let swap = swap_option(&dir, suffix);
    std::fs::set_permissions(dir.join("swap"), std::fs::Permissions::from_mode(0o1777)).expect("as /tmp");
    let r = run(&dir, &["--memory", "16M", "--swap", &swap], None, &program, args);
    assert_eq!(
        (String::from_utf8_lossy(&r.output.stdout).as_ref(), r.stderr().as_str()),
        ("all bytes right\n", ""),
        "{:?}",
        r.output
    );
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
    Some(r)
}

/// The pager of a daemon kept the standard error that its program had closed, for its messages. So whoever read the output of the
/// run waited for the daemon's end, for ever: `overspill run ... daemon 2>&1 | cat`.
#[test]
fn the_output_of_a_daemons_run_ends() {
    if !able() {
        return;
    }
    let dir = place("daemon");
    let program = build(&dir, "daemon.c");
    let mut command = patiently(overspill());
    command.args(["run", "-m", "16M", "--swap", &swap_option(&dir, ""), "--"]).arg(program);
    // reads its output to the end
    let output = command.output().expect("overspill runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let daemon: u32 = text.trim().parse().unwrap_or_else(|_| panic!("no process id: {output:?}"));
    assert!(!has_ended(daemon, Duration::ZERO), "the output has ended with the daemon, and not before: {output:?}");
    assert_eq!((output.status.code(), &*String::from_utf8_lossy(&output.stderr)), (Some(0), ""));
    let killed = Command::new("kill").args(["-KILL", &daemon.to_string()]).status().expect("kill runs");
    assert!(killed.success() && has_ended(daemon, PATIENCE));
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// A program had its standard error put aside for a while, as a shell does for a redirection, and the pager took it for closed.
/// Later it stopped the program, and said nothing of the reason.
#[test]
fn a_standard_error_that_is_put_aside_is_not_closed() {
    if !able() {
        return;
    }
    let dir = place("aside");
    let program = build(&dir, "aside.c");
    let mut command = patiently(overspill());
    command.args(["run", "-m", "16M", "--swap", &swap_option(&dir, ""), "--", "sh", "-c", "\"$0\"; exit $?"]).arg(program);
    let output = command.output().expect("overspill runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("memory is full of pages that cannot leave it"), "{output:?}");
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// A fork needed some free descriptors in the program's table. With a full table it failed with EMFILE, which forks never do
/// otherwise.
#[test]
fn a_full_descriptor_table_does_not_keep_a_program_from_forking() {
    family("family-full", "", &["full", "200"]);
    family("family-full", "", &["full", "40"]); // for users who may not raise the limit
}

/// Each descendant that lived longer than a moment left its socket behind until the end of the run: a build of 20,000 files as
/// many.
#[test]
fn sockets_of_ended_descendants_do_not_pile_up() {
    if !able() {
        return;
    }
    let dir = place("sockets");
    let script = "count() { set -- \"$1\"/overspill/*.sock; echo $#; }\n\
                  for i in 1 2 3 4 5 6; do sleep 0.5; done; count \"$0\"; sleep 12; count \"$0\"";
    let mut command = patiently(overspill());
    command.args(["run", "--memory", "16M", "--swap", &swap_option(&dir, ""), "--", "sh", "-c", script]).arg(&dir);
    let output = command.env("XDG_RUNTIME_DIR", &dir).output().expect("timeout runs");
    let counts: Vec<u32> = String::from_utf8_lossy(&output.stdout).lines().map(|n| n.parse().expect("a number")).collect();
    // the shell's, and that of the last sleep
    assert!(matches!(counts[..], [before, after] if before >= 7 && after <= 2), "{output:?}");
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// A daemon that had given up root could not fork any more: the swap files were opened anew in /proc, which belongs to root then,
/// and it could not get a userfaultfd.
#[test]
fn a_program_that_gave_root_up_forks() {
    family("family-user", "", &["user"]);
}

/// While any child lived, all slots in use at any fork waited, and swap grew without bound. This test writes 12 MiB 12 times next
/// to a child that stays, and 56 MiB of swap must be enough.
#[test]
fn swap_is_bounded_beside_a_child_that_stays() {
    family("family-rounds", ",size=56M", &["rounds", "12"]);
}

/// More than 256 children at a time: the ends of further children were not seen, and their slots and parts of the budget were never
/// freed.
#[test]
fn many_children_at_a_time() {
    family("family-children", "", &["children", "300"]);
}

/// In a process id namespace of its own, with the old /proc, a child's own fork failed: it looked for its threads by the wrong
/// numbers.
#[test]
fn the_first_process_of_a_namespace_forks() {
    family("family-namespace", "", &["namespace"]);
}

/// Forks by a vfork's child, in a signal handler, by several threads at a time, and with flags of clone.
#[test]
fn forks_of_many_kinds() {
    family("family-kinds", "", &["kinds"]);
}

/// Each generation of forks took a device, and after sixteen no fork was possible.
#[test]
fn generations_of_forks() {
    family("family-generations", "", &["generations", "18"]);
}

/// A process that shares the memory was killed while it unmapped. A lock of the pager's stayed held for ever, or its unmapping was
/// never reported: its parent waited for 19 s, and then found old content in a new mapping.
#[test]
fn a_process_that_shares_the_memory_may_be_killed() {
    finds_all_bytes_right("sharers.c");
}

/// The kernel counts the pager's threads as the program's, and a program of several threads may not enter a user namespace. So
/// `unshare -U`, and each sandbox that begins with one, failed with EINVAL.
#[test]
fn a_program_enters_a_user_namespace() {
    if !able() {
        return;
    }
    let dir = place("namespace");
    let alone = Command::new("unshare").args(["-U", "id", "-u"]).output().expect("unshare runs");
    let r = run(&dir, &["--memory", "16M", "--swap", &swap_option(&dir, "")], None, Path::new("unshare"), &["-U", "id", "-u"]);
    assert_eq!((r.output.status.code(), &r.output.stdout), (alone.status.code(), &alone.stdout), "{:?}", r.output);
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// A child that was made by a system call in the program's own code has no pager. When it forked through libc, it waited for a
/// helper thread that did not exist. Memory that had grown without libc was never paged. And a second mapping of shared memory that
/// mremap made behind paged memory was taken for growth of that, and paged. The child of a clone3 whose structure was longer than
/// the kernel knows, or whose arguments could not be read under the program's filter, had no pager either, and found zeroes.
#[test]
fn what_is_done_past_libc() {
    if !able() {
        return;
    }
    let dir = place("raw-forks");
    let program = build(&dir, "raw_forks.c");
    for case in ["unpaged", "dontfork", "viewed", "grown", "longer", "filtered"] {
        let r = run(&dir, &["--memory", "16M", "--swap", &swap_option(&dir, "")], None, &program, &[case]);
        assert_eq!(String::from_utf8_lossy(&r.output.stdout), "right\n", "{case}: {:?}", r.output);
        assert_eq!(r.stat("pages_out") > 1000, case != "unpaged", "{case}: {}", r.stats);
        no_swap_file_left(&dir);
    }
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

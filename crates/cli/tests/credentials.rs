//! Nobody gains a right by it: programs that give rights up under `overspill run`.

mod common;
#[path = "common/runs.rs"]
mod runs;

use common::{able, build, place};
use runs::{no_swap_file_left, run, swap_option};

/// Whether this can be tried: only root has something to give up.
fn root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("not run: only root can give up what these programs give up");
    }
    root && able()
}

/// A program left root behind for good, and the pager's threads stayed root: libc does not know of them. Who took the program over had only to
/// have one of them run its code. The same with capabilities, no_new_privs and Landlock. They follow now, before the program's call returns, and
/// page on.
#[test]
fn the_pagers_threads_give_up_what_the_program_gives_up() {
    if !root() {
        return;
    }
    let dir = place("gives-up");
    let program = build(&dir, "gives_up.c");
    let swap = swap_option(&dir, "");
    for (engine, cases) in [
        ("io_uring", &["setresuid", "threads", "setuid", "seteuid", "syscall", "capabilities", "keepcaps", "landlock"][..]),
        ("psync", &["setresuid", "threads", "seteuid"]),
    ] {
        for case in cases {
            let r = run(&dir, &["--memory", "16M", "--swap", &swap, "--engine", engine], None, &program, &[case, "/root"]);
            let out = String::from_utf8_lossy(&r.output.stdout);
            if out == "no Landlock here\n" {
                continue;
            }
            assert_eq!((r.output.status.code(), &*out), (Some(0), "right\n"), "{engine}, {case}: {:?}", r.output);
            assert!(r.stat("pages_in") > 1000, "{case}: {}", r.stats);
            no_swap_file_left(&dir);
        }
    }
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

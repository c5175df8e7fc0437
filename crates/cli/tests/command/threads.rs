//! Programs of many threads under `overspill run`, and how threads end.

use crate::common::{able, build, place};
use crate::runs::{Run, finds_all_bytes_right, no_swap_file_left, run, swap_option};

/// Runs a case of `threads.c` in so much memory, if the machine can. It finds all right.
fn right(memory: &str, case: &[&str]) -> Option<Run> {
    if !able() {
        return None;
    }
    let dir = place(&format!("threads-{}-{memory}", case[0]));
    let program = build(&dir, "threads.c");
    let r = run(&dir, &["--memory", memory, "--swap", &swap_option(&dir, "")], None, &program, case);
    assert_eq!(String::from_utf8_lossy(&r.output.stdout), "all right\n", "{case:?}, {memory}: {:?}", r.output);
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
    Some(r)
}

/// The agent tried io_uring in the program's first thread. Some milliseconds after the ring had been dropped, the kernel woke that
/// thread for the ring's end, so that its first epoll_wait or sigtimedwait failed with EINTR, and nothing had come.
#[test]
fn a_wait_is_not_interrupted() {
    if !able() {
        return;
    }
    let dir = place("waits");
    let program = build(&dir, "waits.c");
    for engine in ["auto", "io_uring", "psync"] {
        let options = ["--memory", "64M", "--engine", engine, "--swap", &swap_option(&dir, "")];
        let r = run(&dir, &options, None, &program, &[]);
        assert_eq!(String::from_utf8_lossy(&r.output.stdout), "nothing has come\n", "{engine}: {:?}", r.output);
    }
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// There are 64 stacks for hooks. Threads that found none free looked again and again, so the threads that had one did not get a
/// processor: 160 threads that map and unmap made no progress at all.
#[test]
fn more_threads_than_stacks() {
    for memory in ["16M", "256M"] {
        right(memory, &["many", "300"]);
    }
}

/// When a thread ends, the kernel clears a word and does not wait if its page is missing. Only pthread_create was followed. If the
/// page of a thread of thrd_create, or of a program's own clone, went out while it slept, its join waited for ever. And the page
/// above a thread's stack was brought in, too. If it was not accessible, the kernel ended the program.
#[test]
fn the_end_of_a_thread_is_seen() {
    for case in ["ends", "above"] {
        let Some(r) = right("16M", &[case]) else { return };
        assert!(r.stat("pages_out") > 1000, "{case}: {}", r.stats);
    }
}

/// The kernel placed the buffers, rings and stacks of a forked child's pager where its parent had just unmapped something. A touch
/// that must end the program found the pager's memory.
#[test]
fn what_was_unmapped_stays_unmapped() {
    if !able() {
        return;
    }
    let dir = place("holes");
    let program = build(&dir, "holes.c");
    for engine in ["io_uring", "psync"] {
        let options = ["--memory", "16M", "--engine", engine, "--swap", &swap_option(&dir, "")];
        let r = run(&dir, &options, None, &program, &[]);
        assert_eq!(String::from_utf8_lossy(&r.output.stdout), "nothing is there\n", "{engine}: {:?}", r.output);
        assert_eq!(r.stats["engine"], engine);
    }
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// A program that counted its threads found the pager's: Chromium's zygote ended. And a thread that ended by a raw exit counted the
/// other threads while it was on its own stack, which its parent unmapped.
#[test]
fn threads_are_counted_and_end_at_once() {
    if !able() {
        return;
    }
    let dir = place("raw-exit");
    let program = build(&dir, "raw_exit.c");
    let r = run(&dir, &["--memory", "16M", "--swap", &swap_option(&dir, "")], None, &program, &[]);
    assert_eq!(String::from_utf8_lossy(&r.output.stdout), "all right\n", "{:?}", r.output);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// The pager's threads kept a process alive for ever if its last thread ended where no hook saw it.
#[test]
fn a_process_ends_with_its_last_thread() {
    if !able() {
        return;
    }
    let dir = place("ends");
    let program = build(&dir, "ends.c");
    for (how, status) in [("first", 0), ("killed", 128 + 31 /* SIGSYS */)] {
        let r = run(&dir, &["--memory", "16M", "--swap", &swap_option(&dir, "")], None, &program, &[how]);
        assert_eq!(r.output.status.code(), Some(status), "{how}: {:?}", r.output);
    }
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// Only the thread that served the control socket looked for that. A process without a socket lived for ever: a worker that could
/// not enter the directory for sockets, for one.
#[test]
fn a_process_without_a_socket_ends_with_its_last_thread() {
    if !able() {
        return;
    }
    let dir = place("no-socket");
    let program = build(&dir, "ends.c");
    let program = program.to_str().expect("UTF-8");
    for sockets in ["OVERSPILL_CONTROL=/no/such/place", "--unset=OVERSPILL_CONTROL"] {
        for (how, status) in [("first", 0), ("killed", 128 + 31 /* SIGSYS */)] {
            let options = ["--memory", "16M", "--swap", &swap_option(&dir, "")];
            let r = run(&dir, &options, None, "/usr/bin/env".as_ref(), &[sockets, program, how]);
            assert_eq!(r.output.status.code(), Some(status), "{sockets}, {how}: {:?}", r.output);
        }
    }
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// The kernel gives its reports of discards only when no fault waits to be read, and refuses to fill pages until a report has been
/// read. A refused fault was given back to its thread, which faulted again: with more threads than the handlers could keep, there
/// was always one to be read. Three discards were reported in three seconds, and three million fills refused.
#[test]
fn many_threads_discard_at_once() {
    let Some(r) = right("16M", &["discards"]) else { return };
    assert!(r.stat("zero_fills") < 1_000_000, "{}", r.stats);
}

/// The kernel writes to a thread's `struct rseq` when the thread goes on after it was preempted. If its page had gone while the
/// thread held a lock of the pager's, the thread waited for its own page, and so did all others. (Found by reading the code: libc's
/// own lies in a page that stays, before glibc 2.41.)
#[test]
fn the_page_of_a_threads_rseq_stays() {
    finds_all_bytes_right("rseq.c");
}

/// Of more than 256 discards within two seconds that no hook knows of, ranges became one with the live pages between them. Such a
/// page was not brought in: a thread that read one had it read from the device a hundred thousand times, and stood still.
#[test]
fn a_thread_reads_beside_scattered_discards() {
    right("16M", &["scattered"]);
}

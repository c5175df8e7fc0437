//! Real programs under `overspill run`, with the agent: what they see, what the pager promises, and what happens when devices fail.
//!
//! The programs are C sources in `tests/programs`, built here with cc. Without userfaultfd in full mode or cc these tests say so
//! and pass; with CI set they fail.

use crate::common::{PATIENCE, able, build, copy, overspill, patiently, place};
use crate::runs::{Run, no_swap_file_left, run, swap_option};
use overspill_linux::control_client::has_ended;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Exit status of a program that died of SIGBUS.
const SIGBUS_STATUS: i32 = 128 + 7;

/// `overspill stat` of a program that waits, and of its forked child, which begins to count anew. Each takes the core lock at least
/// once per fault, and holds no lock for longer than it has lived.
#[test]
fn lock_holds_are_measured() {
    if !able() {
        return;
    }
    let dir = place("holds");
    let program = build(&dir, "holds.c");
    let mut command = Command::new(overspill());
    command.args(["run", "--memory", "8M", "--swap", &swap_option(&dir, ""), "--"]).arg(program).arg("8");
    let start = Instant::now();
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("overspill runs");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let pids = [(); 2].map(|()| lines.next().expect("two lines").expect("they can be read"));
    let stat = |pid: &str, how: &str| {
        let output = Command::new(overspill()).args(["stat", how, pid]).output().expect("overspill runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    for pid in &pids {
        let json: serde_json::Value = serde_json::from_str(&stat(pid, "--json")).expect("JSON");
        let lived = start.elapsed().as_nanos() as u64;
        let n = |value: &serde_json::Value| value.as_u64().unwrap_or_else(|| panic!("{json:#}"));
        let faults: u64 = ["zero_fills", "soft_faults", "hard_faults"].iter().map(|name| n(&json[name])).sum();
        for lock in ["map_shared", "map_exclusive", "core"] {
            let holds = &json["lock_holds"][lock];
            let at = ["p50_ns", "p99_ns", "p999_ns", "longest_ns"].map(|name| n(&holds[name]));
            assert!(at[0] > 0 && at.is_sorted() && at[3] < lived, "{json:#}");
            assert!(holds["longest_at"].as_str().is_some_and(|at| at.contains("src/") && at.contains(".rs:")), "{json:#}");
            assert!(stat(pid, "--all").lines().any(|line| line.starts_with(lock) && line.contains(" holds ")), "{lock}");
        }
        let core = n(&json["lock_holds"]["core"]["count"]);
        println!("{core} holds of the core lock, {faults} faults");
        assert!(faults > 1000 && (faults..100 * faults).contains(&core), "{core} holds, {faults} faults");
    }
    drop(child.stdin.take());
    assert!(child.wait().expect("it ends").success());
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

#[test]
fn threads_moves_discards_and_forks() {
    if !able() {
        return;
    }
    let dir = place("churn");
    let program = build(&dir, "churn.c");
    let swap = swap_option(&dir, "");
    for engine in ["io_uring", "psync"] {
        let r = run(&dir, &["--memory", "32M", "--swap", &swap, "--engine", engine], None, &program, &["24"]);
        assert_eq!(r.output.status.code(), Some(0), "{engine}: {:?}", r.output);
        assert_eq!(String::from_utf8_lossy(&r.output.stdout), "all bytes right\n");
        assert!(r.stat("hard_faults") > 1000 && r.stat("forks") == 3, "{}", r.stats);
        assert!(r.stat("memory_peak_bytes") <= (32 << 20) + (2 << 20), "the budget: {}", r.stats);
        assert_eq!(r.stats["engine"], engine);
        no_swap_file_left(&dir);
    }
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// One fork more than is possible was reported like any failure of the system.
#[test]
fn too_many_generations_of_forks_are_one_sentence() {
    if !able() {
        return;
    }
    let dir = place("generations");
    let program = build(&dir, "generations.c");
    let swap = swap_option(&dir, "");
    let memory = ["--memory", "16M", "--swap", &swap];
    let second = format!("{swap}/second");
    let r = run(&dir, &[&memory[..], &["--swap", &second]].concat(), None, &program, &["16"]);
    assert_eq!((r.output.status.code(), r.stderr().as_str()), (Some(0), ""), "{:?}", r.output);
    let r = run(&dir, &memory, None, &program, &["65"]);
    assert_eq!(String::from_utf8_lossy(&r.output.stdout), "64 generations\n");
    assert!(r.output.status.code() == Some(3) && r.stderr().contains("64 generations of forks without an exec"), "{:?}", r.output);
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// Sockets to ancestors that had ended counted, too: a service whose processes each fork their successor and end was stopped after
/// 64.
#[test]
fn generations_that_have_ended_do_not_count() {
    if !able() {
        return;
    }
    let dir = place("successors");
    let program = build(&dir, "generations.c");
    let r = run(&dir, &["--memory", "16M", "--swap", &swap_option(&dir, "")], None, &program, &["150", "successors"]);
    assert_eq!((r.output.stdout.as_slice(), r.stderr().as_str()), (&b"150 generations\n"[..], ""), "{:?}", r.output);
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// Two children at a time. The first ended while the second was being forked. The second was counted only when its fork was over,
/// so it seemed that no child could read the parent's slots: they were used again, and the second child died of SIGBUS. And a
/// parent that has no memory to share kept the slots that its children could read for ever, until swap was full.
#[test]
fn a_child_keeps_its_pages_when_its_sibling_ends() {
    if !able() {
        return;
    }
    let dir = place("siblings");
    let program = build(&dir, "siblings.c");
    for (memory, swap, args) in [("16M", "", ["48", "2"]), ("32M", "", ["48", "3"]), ("8M", "/file:100M", ["24", "8"])] {
        let swap = swap_option(&dir, swap);
        let r = run(&dir, &["--memory", memory, "--swap", &swap], None, &program, &args);
        assert_eq!(String::from_utf8_lossy(&r.output.stdout), "all bytes right\n", "{memory}: {:?}", r.output);
        no_swap_file_left(&dir);
    }
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// Four bugs. After ten seconds a child found its parent's bytes in a new mapping, where a range had been that it did not inherit.
/// A call that the kernel refuses ended the program, or left a range unpaged for ever. MAP_POPULATE brought in more than the
/// budget. When the first thread had ended, pages that were in memory already were not found, and stayed.
#[test]
fn corners_of_the_address_space() {
    if !able() {
        return;
    }
    let dir = place("corners");
    let program = build(&dir, "corners.c");
    let swap = swap_option(&dir, "");
    for (case, memory, peak) in [
        ("dontfork", "16M", "40"),
        ("refused", "16M", "40"),
        ("dontunmap", "16M", "40"),
        ("populate", "16M", "40"),
        ("headless", "64M", "100"),
        ("starters", "16M", "40"),
    ] {
        let r = run(&dir, &["--memory", memory, "--swap", &swap], None, &program, &[case, peak]);
        assert_eq!(String::from_utf8_lossy(&r.output.stdout), "right\n", "{case}: {:?}", r.output);
        assert_eq!(r.output.status.code(), Some(0), "{case}: {:?}", r.output);
        no_swap_file_left(&dir);
    }
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// Five bugs, each of which lost content or showed old content, when a thread had unmapped memory and its report was put aside, or
/// when the kernel refused a call after such a report.
#[test]
fn what_comes_to_an_unmapped_place_is_as_it_came() {
    if !able() {
        return;
    }
    let dir = place("unmaps");
    let program = build(&dir, "unmaps.c");
    let swap = swap_option(&dir, "");
    for case in ["halves", "start", "grown", "sealed", "fork"] {
        let r = run(&dir, &["--memory", "16M", "--swap", &swap], None, &program, &[case]);
        assert_eq!(String::from_utf8_lossy(&r.output.stdout), "right\n", "{case}: {:?}", r.output);
        no_swap_file_left(&dir);
    }
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

#[test]
fn address_space_calls_behave() {
    if !able() {
        return;
    }
    let dir = place("calls");
    let program = build(&dir, "calls.c");
    let swap = swap_option(&dir, "");
    let alone = Command::new(&program).output().expect("runs alone");
    assert_eq!(alone.status.code(), Some(0), "{alone:?}");
    for policy in ["use-once", "fifo"] {
        let r = run(&dir, &["--memory", "16M", "--swap", &swap, "--policy", policy], None, &program, &[]);
        assert_eq!(r.output.stdout, alone.stdout, "{policy}: {:?}", r.output);
        assert_eq!(r.output.status.code(), Some(0));
        assert!(r.stat("pages_out") > 1000, "{}", r.stats);
    }
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// Reads of one window called each other recursively, until a handler's stack overflowed and memory below it was overwritten.
#[test]
fn a_window_of_scattered_pages() {
    if !able() {
        return;
    }
    let dir = place("scattered");
    let program = build(&dir, "scattered.c");
    for engine in ["io_uring", "psync"] {
        // the smallest memory that has the longest windows
        let options = ["--memory", "128M", "--engine", engine, "--swap", &swap_option(&dir, "")];
        let r = run(&dir, &options, None, &program, &["160"]);
        assert_eq!(r.output.status.code(), Some(0), "{engine}: {:?}", r.output);
        assert!(r.stat("readahead_pages") > 10_000, "{}", r.stats);
    }
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// Working sets that fit one at a time. One thread at a time has the token, and the report says so, unless the threads end before.
/// `OVERSPILL_TOUCHES` is the number of touches of each thread, in thousands (30 without it; 400 in `make soak`).
#[test]
fn threads_that_thrash_get_on_one_by_one() {
    if !able() {
        return;
    }
    let dir = place("thrash");
    let program = build(&dir, "thrash.c");
    let swap = swap_option(&dir, "");
    let touches = std::env::var("OVERSPILL_TOUCHES").unwrap_or("30".into());
    for (options, engine) in [(&[][..], "io_uring"), (&[][..], "psync"), (&["--no-load-control"][..], "io_uring")] {
        let options = [&["--memory", "40M", "--swap", &swap, "--engine", engine], options].concat();
        let r = run(&dir, &options, None, &program, &["32", &touches]);
        assert_eq!(r.output.status.code(), Some(0), "{options:?}: {:?}", r.output);
        assert_eq!(String::from_utf8_lossy(&r.output.stdout), "all pages right\n");
        let (wall, tokens) = (r.stats["wall_seconds"].as_f64().expect("a time"), r.stat("load_tokens"));
        println!(
            "{options:?}: {wall:.1} s, {} hard faults, {} held, {tokens} tokens",
            r.stat("hard_faults"),
            r.stat("held_faults")
        );
        if options.contains(&"--no-load-control") {
            assert_eq!((tokens, r.stat("held_faults")), (0, 0));
        } else {
            // how long they thrash, and whether a token pays, depends on the machine
            let thrashed = wall > 20.0 && r.stat("hard_faults") as f64 > 2000.0 * wall;
            assert!(tokens > 0 || !thrashed, "{}", r.stats);
            assert!(tokens > 0 || r.stat("held_faults") == 0, "{}", r.stats);
        }
    }
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// A single thread whose faults come one by one has its handler on its own CPU, where the handler gives way to it. It makes
/// progress even when other programs take every CPU. So it is if the program gives up root, as servers do, and with that the right
/// to make its handler an ordinary thread again.
#[test]
fn a_thread_alone_has_its_handler_on_its_cpu() {
    if !able() {
        return;
    }
    let dir = place("alone");
    let program = build(&dir, "alone.c");
    let options = ["--memory", "24M", "--swap", &swap_option(&dir, "")];
    for args in [&["64", "3000"][..], &["64", "3000", "65534"]] {
        if args.len() > 2 && !rustix::process::geteuid().is_root() {
            continue;
        }
        let r = run(&dir, &options, None, &program, args);
        assert_eq!(r.output.status.code(), Some(0), "{:?}", r.output);
        assert_eq!(String::from_utf8_lossy(&r.output.stdout), "all pages right\n");
        let wall = r.stats["wall_seconds"].as_f64().expect("a time");
        println!("{wall:.1} s, {} times on its CPU, {} of them starved", r.stat("same_cpu_begun"), r.stat("same_cpu_starved"));
        // first touches do not depend on any device's speed. With one CPU there is no same-CPU handler, because there is no
        // watcher
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        if std::env::var_os("CI").is_some() && cpus > 1 {
            assert!(r.stat("same_cpu_begun") > 0, "{args:?}: {}", r.stats);
        }
        assert!(r.stat("same_cpu_starved") <= r.stat("same_cpu_begun"));
        no_swap_file_left(&dir);
    }
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// A program counts on where the one before it stopped that called exec in the same process. But what that one had in swap is gone
/// with it, and was reported as in use.
#[test]
fn what_was_in_swap_before_an_exec_is_not_in_use() {
    if !able() {
        return;
    }
    let dir = place("becomes");
    let program = build(&dir, "becomes.c");
    let r = run(&dir, &["--memory", "16M", "--swap", &swap_option(&dir, "")], None, &program, &["/bin/true"]);
    assert_eq!(r.output.status.code(), Some(0), "{:?}", r.output);
    assert!(r.stat("swap_peak_bytes") > 8 << 20 && r.stat("pages_out") > 2000, "{}", r.stats);
    let levels = ["swap_used_bytes", "pool_pages", "pool_memory_bytes", "pool_packed_bytes", "pool_same_pages"];
    assert_eq!(levels.map(|level| r.stat(level)), [0; 5], "{}", r.stats);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// Who watches the handler of a thread alone looks every millisecond while the handler gets nothing done. It did so for ever when
/// the program slept.
#[test]
fn the_pager_sleeps_when_its_program_sleeps() {
    if !able() {
        return;
    }
    let dir = place("asleep");
    let program = build(&dir, "pages.c");
    let mut command = Command::new(overspill());
    command
        .args(["run", "--memory", "16M", "--swap", &swap_option(&dir, ""), "--", "sh", "-c", "echo $$; exec $0 64"])
        .arg(program);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("overspill runs");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map(|line| line.expect("it can be read"));
    let pid = lines.next().expect("its process id");
    assert_eq!(lines.next().as_deref(), Some("fill"));
    // how often its threads, and those of its pager, have gone to sleep
    let sleeps = || -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it lives").map(|task| task.expect("a task").path());
        let status = tasks.filter_map(|task| std::fs::read_to_string(task.join("status")).ok());
        status.filter_map(|status| status.split_once("voluntary_ctxt_switches:\t")?.1.lines().next()?.parse::<u64>().ok()).sum()
    };
    let in_half_a_second = || {
        let before = sleeps();
        std::thread::sleep(Duration::from_millis(500));
        sleeps().saturating_sub(before) // a thread may have ended
    };
    let start = Instant::now();
    loop {
        let n = in_half_a_second();
        println!("{n} sleeps in half a second");
        if n < 100 {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{n} sleeps in half a second");
    }
    drop(child.stdin.take());
    assert!(child.wait().expect("it ends").success());
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// While a program has many faults, its pager asks that idle CPUs poll, where they would halt. It does so only if it may.
#[test]
fn idle_cpus_poll_while_there_are_many_faults() {
    if !able() {
        return;
    }
    let dir = place("halt-poll");
    let program = build(&dir, "alone.c");
    let driver = std::fs::read_to_string("/sys/devices/system/cpu/cpuidle/current_driver").unwrap_or_default();
    let may = std::fs::OpenOptions::new().write(true).open("/dev/cpu_dma_latency").is_ok();
    let halts = driver.trim() == "haltpoll";
    let few = std::thread::available_parallelism().map_or(1, |n| n.get()) <= 4;
    let swap = swap_option(&dir, "");
    for switch in [None, Some("--no-halt-poll")] {
        let options = ["--memory", "24M", "--swap", &swap].into_iter().chain(switch).collect::<Vec<_>>();
        let r = run(&dir, &options, None, &program, &["64", "3000"]);
        assert_eq!(r.output.status.code(), Some(0), "{:?}", r.output);
        println!("driver {:?}, may ask: {may}; {switch:?}: began {} times", driver.trim(), r.stat("halt_poll_begun"));
        if !may || !halts || switch.is_some() {
            assert_eq!(r.stat("halt_poll_begun"), 0, "{}", r.stats);
        } else if few && std::env::var_os("CI").is_some() {
            assert!(r.stat("halt_poll_begun") > 0, "{}", r.stats);
        }
    }
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

#[test]
fn full_swap_is_one_sentence() {
    if !able() {
        return;
    }
    let dir = place("full");
    let program = build(&dir, "churn.c");
    let r = run(&dir, &["--memory", "16M", "--swap", &swap_option(&dir, ":16M")], None, &program, &["32"]);
    assert_eq!(r.output.status.code(), Some(125), "{:?}", r.output);
    assert!(r.stderr().contains("memory and swap are both full"), "{}", r.stderr());
    assert!(!String::from_utf8_lossy(&r.output.stdout).contains("WRONG"));
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// A program was stopped (SIGSTOP) when memory and swap were full, and one of its threads was about to free some. The time of the
/// stop counted as time in which no frame came free. So the program was ended as soon as it went on.
#[test]
fn a_stop_is_not_part_of_the_grace_time() {
    if !able() {
        return;
    }
    let dir = place("grace");
    let program = build(&dir, "grace.c");
    let mut command = patiently(overspill());
    command.args(["run", "--memory", "16M", "--no-compress", "--swap", &swap_option(&dir, ":16M"), "--"]);
    let mut child =
        command.arg(program).args(["24", "12"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut pid = String::new();
    BufReader::new(child.stdout.as_mut().expect("a pipe")).read_line(&mut pid).expect("it can be read");
    let is_stopped = || std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).expect("it lives").contains(") T ");
    let start = Instant::now();
    while !is_stopped() {
        assert!(start.elapsed() < PATIENCE, "it does not stop");
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_secs(4)); // it is stopped for so long
    assert!(Command::new("kill").args(["-CONT", pid.trim()]).status().expect("kill runs").success());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"all bytes right\n"[..]), "{output:?}");
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// Valgrind ended a program whose pager made a thread. Now the program has no pager there, and the warning says so. (Valgrind loads
/// a library of this name.)
#[test]
fn under_valgrind_a_program_is_not_paged() {
    if !able() {
        return;
    }
    let dir = place("valgrind");
    let mut command = patiently(overspill());
    command.args(["run", "--memory", "16M", "--swap"]).arg(&dir).args(["--", "echo", "hi"]);
    let output = command.env("LD_PRELOAD", "/nowhere/vgpreload_core.so").output().expect("timeout runs");
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"hi\n"[..]), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("no pager came up"), "{output:?}");
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// A program with a libc that the agent does not know ended with status 125, also if it was not the first one. proot made any libc
/// look so.
#[test]
fn a_descendant_with_another_libc_runs_unpaged() {
    if !able() {
        return;
    }
    let dir = place("libc");
    let maps = std::fs::read_to_string("/proc/self/maps").expect("mappings");
    let libc = maps.lines().find_map(|line| line.find('/').map(|at| &line[at..]).filter(|path| path.ends_with("/libc.so.6")));
    let mut other = std::fs::read(libc.expect("this test has libc")).expect("it may be read");
    let clone3 = [&[0xB8][..], &(libc::SYS_clone3 as u32).to_le_bytes(), &[0x0F, 0x05]].concat();
    let at = other.windows(clone3.len()).position(|bytes| bytes == clone3).expect("a site");
    other[at + 2] = 0x7F; // no such call, so libc takes clone
    std::fs::write(dir.join("libc.so.6"), other).expect("written");
    let script = "echo a; LD_LIBRARY_PATH=$0 /bin/echo b";
    let mut command = patiently(overspill());
    command.args(["run", "--memory", "16M", "--swap"]).arg(&dir).args(["--", "sh", "-c", script]).arg(&dir);
    let output = command.output().expect("timeout runs");
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"a\nb\n"[..]), "{output:?}");
    let why = "(echo) runs without paging: this libc's clone3 is not recognised";
    assert!(String::from_utf8_lossy(&output.stderr).contains(why), "{output:?}");
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// A file that `ulimit -f` kept from growing was reported as full, although most of the disk was free.
#[test]
fn a_limit_on_the_size_of_files_is_one_sentence() {
    if !able() {
        return;
    }
    let dir = place("fsize");
    let program = build(&dir, "churn.c");
    let swap = swap_option(&dir, "");
    let output = limited("-f 20000", &["run", "--memory", "16M", "--swap", &swap, "--"], &program, &["32"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(stderr.contains("ulimit -f") && !stderr.contains("both full"), "{stderr}");
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// `overspill options program arguments` in a shell with a limit; killed when it hangs.
fn limited(limit: &str, options: &[&str], program: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit {limit}; exec timeout -s KILL 300 \"$@\""), "sh"]).arg(overspill()).args(options);
    command.arg(program).args(arguments).env_remove("OVERSPILL_INJECT").output().expect("sh runs")
}

/// A pager that could not get memory for its tables aborted with a backtrace, and the message was that no pager had come up. Later
/// it said the reason. But if the tables had taken the last of the address space and the message needed another page of stack, it
/// crashed: at `ulimit -v 50000` one time in three, because the stack begins at another place each time.
#[test]
fn limits_on_memory_are_one_sentence() {
    if !able() {
        return;
    }
    let dir = place("limits");
    let swap = swap_option(&dir, "");
    let mut refused = 0;
    let wide = [100_000, 200_000, 500_000, 4_000_000].map(|kib| format!("-v {kib}"));
    let data = [50_000, 100_000, 500_000, 4_000_000].map(|kib| format!("-d {kib}"));
    let least = (50_000..50_128).step_by(4).map(|kib| format!("-v {kib}"));
    for limit in least.chain(wide).chain(data) {
        let output = limited(&limit, &["run", "--memory", "64M", "--swap", &swap, "--"], Path::new("echo"), &["ran"]);
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let option = &limit[..2];
        match output.status.code() {
            Some(0) => assert_eq!((&*stdout, &*stderr), ("ran\n", ""), "{limit}"),
            Some(125) => {
                refused += 1;
                assert_eq!((&*stdout, stderr.lines().count()), ("", 1), "{limit}: {stderr}");
                assert!(stderr.contains(&format!("ulimit {option}")), "{limit}: {stderr}");
            }
            other => panic!("{limit}: {other:?}: {stderr}"),
        }
        println!("{limit}: {}{}", stdout, stderr);
    }
    assert!(refused >= 2, "the least limits are too low");
    // a recording of a program whose pager could not start had status 1, and it was said to have ended before
    let out = dir.join("none.ovt");
    let record = ["trace", "record", "--out", out.to_str().expect("a plain name"), "--memory", "64M", "--swap", &swap, "--"];
    let output = limited("-v 50000", &record, Path::new("echo"), &["ran"]);
    assert!(output.status.code() == Some(125) && !out.exists(), "{output:?}");
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// A panic in a pager thread ended in status 137 and silence: such a thread has no standard error to write to.
#[test]
fn a_bug_in_the_pager_is_one_sentence() {
    if !able() {
        return;
    }
    let dir = place("panic");
    let program = build(&dir, "churn.c");
    let r = run(&dir, &["--memory", "16M", "--swap", &swap_option(&dir, "")], Some("panic=50"), &program, &["32"]);
    assert_eq!(r.output.status.code(), Some(125), "{:?}", r.output);
    assert!(r.stderr().contains("internal error of the pager at crates/machine/src/inject.rs:"), "{}", r.stderr());
    assert!(r.stderr().contains("please report it: a panic on order"), "{}", r.stderr());
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// A disk that was busy with other work for seconds was taken for a full one, and the program was stopped.
#[test]
fn a_slow_device_is_not_a_full_one() {
    if !able() {
        return;
    }
    let dir = place("slow");
    let program = build(&dir, "churn.c");
    let r = run(&dir, &["--memory", "16M", "--swap", &swap_option(&dir, "")], Some("stall=10"), &program, &["24"]);
    assert_eq!(r.output.status.code(), Some(0), "{:?}", r.output);
    assert_eq!(String::from_utf8_lossy(&r.output.stdout), "all bytes right\n");
    assert!(r.stats["wall_seconds"].as_f64().expect("a number") > 5.0, "it did not stall: {}", r.stats);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// A page that moved to another address (mremap) while it was being written could be chosen for writing again before that write had
/// ended, and the pager panicked: "held twice". A page that had moved before it was unmapped was taken for discarded and forgotten:
/// it was never unmapped again, and in no count.
#[test]
fn pages_move_while_they_are_written() {
    if !able() {
        return;
    }
    let dir = place("moves");
    let program = build(&dir, "moves.c");
    let r = run(&dir, &["--memory", "16M", "--swap", &swap_option(&dir, "")], None, &program, &["24", "3"]);
    assert_eq!(r.output.status.code(), Some(0), "{:?}", r.output);
    let output = String::from_utf8_lossy(&r.output.stdout);
    let resident = output.strip_prefix("resident ").and_then(|rest| rest.strip_suffix("\nall bytes right\n")).expect("both lines");
    assert!(resident.parse::<u64>().expect("a number") <= 16 << 20 >> 12, "more than the budget: {resident} pages");
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

#[test]
fn failing_devices_never_give_a_wrong_byte() {
    if !able() {
        return;
    }
    let dir = place("faults");
    let program = build(&dir, "churn.c");
    let swap = swap_option(&dir, "");
    // the page to be damaged is to come from the file, not from compressed memory
    let memory = ["--memory", "16M", "--no-compress", "--swap", &swap];
    let read = run(&dir, &memory, Some("read=500"), &program, &["24"]);
    assert_eq!(read.output.status.code(), Some(SIGBUS_STATUS), "EIO on read: {:?}", read.output);
    assert!(read.stat("read_errors") > 0);
    let told = |r: &Run, why: &str| {
        let loss = format!("of the swap device {swap}: {why}");
        assert!(r.stderr().contains("a page was lost: the page at 0x") && r.stderr().contains(&loss), "{}", r.stderr());
        assert!(r.stats["first_loss"].as_str().expect("a text").contains(&loss), "{}", r.stats);
    };
    told(&read, "error "); // the injected error is an invalid descriptor in place of the device
    let flip = run(&dir, &memory, Some("flip=500"), &program, &["24"]);
    assert_eq!(flip.output.status.code(), Some(SIGBUS_STATUS), "a flipped bit: {:?}", flip.output);
    assert!(flip.stat("corrupt_pages") > 0);
    told(&flip, "its content is not what was written there");
    let write = run(&dir, &memory, Some("write=20"), &program, &["24"]);
    assert_eq!(write.output.status.code(), Some(125), "EIO on write: {:?}", write.output);
    assert!(write.stderr().contains("writing to the swap place failed"), "{}", write.stderr());
    for r in [read, flip, write] {
        assert!(!String::from_utf8_lossy(&r.output.stdout).contains("WRONG"), "{:?}", r.output);
    }
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// Memory that the program has made read-only stayed in memory. A program with much of it was stopped.
#[test]
fn read_only_memory_goes_like_any_other() {
    if !able() {
        return;
    }
    let dir = place("readonly");
    let program = build(&dir, "readonly.c");
    let swap = swap_option(&dir, "");
    for mib in ["12", "40"] {
        let r = run(&dir, &["--memory", "16M", "--swap", &swap], None, &program, &[mib]);
        assert_eq!(String::from_utf8_lossy(&r.output.stdout), "all bytes right\n", "{:?}", r.output);
    }
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// The run is killed at any moment, also while a descendant is in the middle of an exec and has no agent that could notice: such
/// descendants stayed. So did descendants of a program that was asked to end by TERM or INT.
#[test]
fn a_killed_supervisor_leaves_nothing() {
    if !able() {
        return;
    }
    let dir = place("kill");
    let mark = format!("overspill-paged-mark-{}", std::process::id());
    let script = format!("sh -c 'sleep 60; : {mark}' & wait");
    for signal in ["TERM", "INT", "KILL"] {
        let mut child = Command::new(overspill())
            .args(["run", "--memory", "16M", "--swap", &swap_option(&dir, ""), "--", "sh", "-c", &script])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("overspill runs");
        let alive = || {
            let out = Command::new("pgrep").args(["-f", &mark]).output().expect("pgrep runs");
            !out.stdout.is_empty()
        };
        let start = Instant::now();
        while !alive() && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
        }
        let killed = Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status().expect("kill runs");
        assert!(killed.success());
        child.wait().expect("ends");
        // all descendants have ended by now; if `overspill run` was killed, the keeper ends them
        let start = Instant::now();
        while alive() {
            let late = signal != "KILL" || start.elapsed() > PATIENCE;
            if late {
                let _ = Command::new("pkill").args(["-KILL", "-f", &mark]).status();
                panic!("processes are left after {signal}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        no_swap_file_left(&dir);
    }
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// A run within a run of another installation loaded two agents. The second did not recognise libc's functions, which the first had
/// patched, and blamed libc.
#[test]
fn a_run_within_a_run_of_another_installation() {
    if !able() {
        return;
    }
    let dir = place("nested");
    let other = dir.join("overspill");
    copy(&overspill(), &other);
    copy(&overspill().with_file_name("liboverspill_agent.so"), &dir.join("liboverspill_agent.so"));
    let inner = ["run", "--memory", "16M", "--swap", &swap_option(&dir, ""), "--", "echo", "both"];
    let r = run(&dir, &["--memory", "64M", "--swap", &swap_option(&dir, "")], None, &other, &inner);
    assert_eq!((r.output.status.code(), &r.output.stdout[..]), (Some(0), &b"both\n"[..]), "{:?}", r.output);
    assert_eq!(r.stderr(), "");
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// Descendants were looked for by their environment. Those that had set their title over it lived on after a kill of the run, for
/// ever, and so did those whose first thread had ended. Servers do the one or the other.
#[test]
fn a_killed_supervisor_leaves_no_hidden_descendants() {
    if !able() {
        return;
    }
    let dir = place("hidden");
    let program = build(&dir, "hidden.c");
    for signal in ["TERM", "KILL"] {
        let mut command = Command::new(overspill());
        command.args(["run", "--memory", "16M", "--swap", &swap_option(&dir, ""), "--"]).arg(&program);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("overspill runs");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let pids: Vec<String> = lines.take(2).map(|line| line.expect("a process id")).collect();
        assert_eq!(pids.len(), 2, "the children are hidden");
        let lives = |pid: &&String| !has_ended(pid.parse().expect("an id"), Duration::ZERO);
        let killed = Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status().expect("kill runs");
        assert!(killed.success());
        child.wait().expect("ends");
        // all descendants have ended by now; if `overspill run` was killed, the keeper ends them
        let start = Instant::now();
        loop {
            let left: Vec<_> = pids.iter().filter(lives).collect();
            if left.is_empty() {
                break;
            }
            if signal != "KILL" || start.elapsed() > PATIENCE {
                let _ = Command::new("kill").arg("-KILL").args(&left).status();
                panic!("of {pids:?}, {left:?} are left after {signal}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        no_swap_file_left(&dir);
    }
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// A recording has the pages that a program touches: every page once as a first touch, and hard faults after memory is full. The
/// program runs as usual, its exit status is passed on, and a forked child is not recorded.
#[test]
fn recordings_hold_what_the_program_touched() {
    if !able() {
        return;
    }
    let dir = place("record");
    let program = build(&dir, "touches.c");
    let trace = dir.join("touches.ovt.zst");
    let record = |options: &[&str], arguments: &[&str]| {
        let mut command = patiently(overspill());
        command.args(["trace", "record"]).args(options);
        command.arg("--swap").arg(swap_option(&dir, "")).arg("--").arg(&program).args(arguments).output().expect("timeout runs")
    };
    let out = trace.to_str().expect("a plain name");
    let recorded = |out: &str, memory: &str| {
        // (the page daemon, which unmaps what is above the limit, may come late)
        let output = record(&["--out", out, "--memory", memory, "--fine", "95"], &["1000"]);
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        let info = Command::new(overspill()).args(["trace", "info", "--json", out]).output().expect("overspill runs");
        serde_json::from_slice::<serde_json::Value>(&info.stdout).expect("JSON")
    };
    let info = recorded(out, "8M");
    let pages = |name: &str| info["kinds"][name].as_u64().expect("a number");
    // 4000 pages written in order, then read in order; those of the libraries are few
    assert!((4000..4400).contains(&pages("first_touch")), "{info}");
    assert!((3000..5000).contains(&pages("hard_fault")), "{info}");
    assert!(info["writes"].as_u64().expect("a number") >= 4000, "{info}");
    assert!(info["unique_pages"].as_u64().expect("a number") < 4400, "the child's pages are not in it: {info}");

    // With all of them in memory, each page is recorded again when it is read. The 800 pages that were mapped last used not to be:
    // pages that were touched again took their turn to be unmapped before them, for ever.
    let roomy = recorded(dir.join("roomy.ovt").to_str().expect("a plain name"), "64M");
    assert!(roomy["kinds"]["soft_fault"].as_u64().expect("a number") >= 3900, "{roomy}");

    // A name that asks for lines gets lines, as from `trace convert`; it used to get the compact format.
    let lines = dir.join("touches.txt");
    let output = record(&["--out", lines.to_str().expect("a plain name"), "--memory", "8M"], &[]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("touches.txt: format lines, "), "{output:?}");
    let text = std::fs::read_to_string(&lines).expect("a text");
    assert!(text.lines().count() >= 4000, "{} lines", text.lines().count());
    let good = |line: &str| line.split_once(' ').is_some_and(|(page, way)| page.parse::<u64>().is_ok() && matches!(way, "r" | "w"));
    assert!(text.lines().all(good), "{:?}", text.lines().find(|line| !good(line)));

    let again = record(&["--out", out], &[]);
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    assert!(String::from_utf8_lossy(&again.stderr).contains("exists already"), "{again:?}");
    let full = record(&["--out", "/dev/full/x"], &[]);
    assert_eq!(full.status.code(), Some(1), "{full:?}");
    std::fs::remove_dir_all(&dir).expect("the directory is removed");
}

/// `check` found a userfaultfd through its device, and `run` did not.
#[test]
fn a_filter_that_forbids_the_system_call_leaves_the_device() {
    if !able() {
        return;
    }
    let dir = place("filter");
    let filter = build(&dir, "without_uffd.c");
    let swap = swap_option(&dir, "");
    let device = std::fs::File::options().read(true).write(true).open("/dev/userfaultfd").is_ok();
    for errno in [libc::EPERM, libc::ENOSYS] {
        let filtered = || {
            let mut command = Command::new(&filter);
            command.arg(errno.to_string()).arg(overspill());
            command
        };
        let check = filtered().arg("check").output().expect("runs");
        let run =
            filtered().args(["run", "--memory", "16M", "--swap", &swap, "--", "sh", "-c", "(echo ran)"]).output().expect("runs");
        assert_eq!(check.status.success(), device, "{check:?}");
        assert_eq!(run.status.code(), Some(if device { 0 } else { 125 }), "{run:?}");
        assert_eq!(String::from_utf8_lossy(&run.stdout), if device { "ran\n" } else { "" });
        let stderr = String::from_utf8_lossy(&run.stderr);
        assert!(if device { stderr.is_empty() } else { stderr.contains("seccomp") }, "{stderr}");
    }
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// A core dump of a program had gigabytes of zeroes, and reading it took minutes: the kernel had merged the pager's reservation
/// with the guard of a thread's stack, and the whole counted as used memory.
#[test]
fn core_dumps_leave_the_pagers_tables_out() {
    if !able() {
        return;
    }
    let maps = mappings("dumps");
    let sizes = maps.lines().filter_map(|line| line.strip_prefix("Size:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let dumped = flags(&maps).map(|flags| !has(flags, "dd"));
    let all: u64 = sizes.clone().sum();
    let in_dump: u64 = sizes.zip(dumped).filter(|(_, dumped)| *dumped).map(|(size, _)| size).sum();
    assert!(all > 1 << 23 && in_dump < 64 << 10, "{in_dump} KiB of {all}: {maps}");
}

/// Where huge pages are on for all memory (`transparent_hugepage` says `always`), the first touch of a table took 2 MiB, and in
/// time sparse tables took as much memory as they are long.
#[test]
fn the_pagers_tables_have_no_huge_pages() {
    if !able() {
        return;
    }
    let maps = mappings("huge");
    let tables: Vec<&str> = flags(&maps).filter(|flags| has(flags, "wr") && has(flags, "dd") && !has(flags, "sh")).collect();
    assert!(tables.len() > 2 && tables.iter().all(|flags| has(flags, "nh")), "{maps}");
}

/// The flags of each mapping.
fn flags(smaps: &str) -> impl Iterator<Item = &str> {
    smaps.lines().filter_map(|line| line.strip_prefix("VmFlags:"))
}

fn has(flags: &str, flag: &str) -> bool {
    flags.split(' ').any(|f| f == flag)
}

/// /proc/self/smaps of a forked child, which has threads of its own, under `overspill run`.
fn mappings(name: &str) -> String {
    let dir = place(name);
    let show = "(while read -r line; do echo \"$line\"; done </proc/self/smaps); true";
    let r = run(&dir, &["--memory", "16M", "--swap", &swap_option(&dir, "")], None, Path::new("/bin/sh"), &["-c", show]);
    std::fs::remove_dir_all(&dir).expect("cleanup");
    String::from_utf8_lossy(&r.output.stdout).into_owned()
}

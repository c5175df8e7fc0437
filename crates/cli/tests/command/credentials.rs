//! Programs that give up rights under `overspill run`: no process gains a right.

use crate::common::{PATIENCE, able, build, copy, overspill, patiently, place};
use crate::runs::{no_swap_file_left, run, swap_option};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// Whether these tests can run: only root has rights to give up.
fn root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("not run: only root can give up what these programs give up");
    }
    root && able()
}

/// A program gave up root for good, and the pager's threads stayed root, because libc does not know of them. An attacker who took
/// the program over could have made one of them run code. The same held for capabilities, no_new_privs and Landlock. Now the
/// threads follow before the program's call returns, and page on.
#[test]
fn the_pagers_threads_give_up_what_the_program_gives_up() {
    if !root() {
        return;
    }
    let dir = place("gives-up");
    let program = build(&dir, "gives_up.c");
    let swap = swap_option(&dir, "");
    for (engine, cases) in [
        (
            "io_uring",
            &["setresuid", "threads", "setuid", "seteuid", "syscall", "capabilities", "keepcaps", "landlock", "seccomp", "tsync"][..],
        ),
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

/// A sandbox that gave up no right that the pager follows (a user namespace, a filter without no_new_privs) kept what its family
/// had read in memory, writable.
#[test]
fn a_child_that_confines_itself_shares_nothing() {
    if !root() {
        return;
    }
    let dir = place("leaves-cache");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/leaves_cache.py");
    for how in ["namespace", "filter"] {
        let options = ["--memory", "64M", "--swap", &swap_option(&dir, "")];
        let r = run(&dir, &options, None, Path::new("python3"), &[script.to_str().expect("a path"), how]);
        assert_eq!(String::from_utf8_lossy(&r.output.stdout), "True 0 False\n", "{how}: {:?}", r.output);
        no_swap_file_left(&dir);
    }
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// bubblewrap makes its child in a user namespace that does not map all of the child's ids. These read as 65534, which nobody can
/// set there: the pager's threads failed to, with EINVAL, as soon as the child gave up a right, and the child was stopped.
#[test]
fn a_child_whose_ids_are_not_mapped_gives_up_rights() {
    if !root() {
        return;
    }
    let dir = place("unmapped");
    let program = build(&dir, "gives_up.c");
    let r = run(&dir, &["--memory", "16M", "--swap", &swap_option(&dir, "")], None, &program, &["unmapped", "/root"]);
    let out = String::from_utf8_lossy(&r.output.stdout);
    assert_eq!((r.output.status.code(), &*out), (Some(0), "right\n"), "{:?}", r.output);
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// What a sandbox started under a filter that forbids memfd_create ended with status 125, because it had no place for its counters.
/// Like any program that is not the first and cannot be paged, it goes on without paging.
#[test]
fn a_program_that_may_make_no_memory_file_runs_unpaged() {
    if !able() {
        return;
    }
    let dir = place("no-memfd");
    let program = build(&dir, "gives_up.c");
    let r = run(&dir, &["--memory", "16M", "--swap", &swap_option(&dir, "")], None, &program, &["no-memfd", "/root"]);
    let out = String::from_utf8_lossy(&r.output.stdout);
    assert_eq!((r.output.status.code(), &*out), (Some(0), "another program\nright\n"), "{:?}", r.output);
    assert!(r.stderr().contains("runs without paging: no memory file could be made"), "{}", r.stderr());
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// A library that has functions of libc's names (tcmalloc an mmap, torsocks a syscall) was taken for libc, and the program refused.
/// The functions of libc that such a library calls are followed.
#[test]
fn a_library_with_functions_of_libcs_names() {
    if !root() {
        return;
    }
    let dir = place("own-calls");
    let program = build(&dir, "gives_up.c");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/own_calls.c");
    let library = dir.join("own_calls.so");
    let built = Command::new("cc").args(["-O1", "-shared", "-fPIC", "-o"]).arg(&library).arg(source).status().expect("cc runs");
    assert!(built.success());
    for case in ["syscall", "setuid"] {
        let words = [
            "-c",
            "LD_PRELOAD=\"$LD_PRELOAD:$0\" exec \"$@\"",
            library.to_str().expect("a path"),
            program.to_str().expect("a path"),
        ];
        let args = [&words[..], &[case, "/root"]].concat();
        let r = run(&dir, &["--memory", "16M", "--swap", &swap_option(&dir, "")], None, Path::new("/bin/sh"), &args);
        assert_eq!(String::from_utf8_lossy(&r.output.stdout), "right\n", "{case}: {:?}", r.output);
        assert!(r.stat("pages_in") > 1000, "{case}: {}", r.stats);
        no_swap_file_left(&dir);
    }
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// A sandbox allows no more open files, which limits poll(2), too. The pager's threads did not see any message, so the next fault
/// waited for ever; and with fewer than ten files its control thread did not sleep. Nor did it once somebody had asked it
/// something, whom it could not let in.
#[test]
fn a_program_that_may_open_no_files_is_paged() {
    if !able() {
        return;
    }
    let dir = place("no-files");
    let program = build(&dir, "gives_up.c");
    for engine in ["io_uring", "psync"] {
        let name = format!("no-files-{engine}-{}", std::process::id());
        let options = ["--memory", "16M", "--swap", &swap_option(&dir, ""), "--engine", engine, "--name", &name];
        let of = name.clone();
        let asks = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(1500));
            let mut asks = Command::new(overspill());
            asks.args(["swaps", &of]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("overspill runs")
        });
        let r = run(&dir, &options, None, &program, &["files"]);
        let mut asks = asks.join().expect("it runs");
        let _ = asks.kill();
        asks.wait().expect("it ran");
        assert_eq!(String::from_utf8_lossy(&r.output.stdout), "right\n", "{engine}: {:?}", r.output);
        assert!(r.stat("pages_in") > 1000, "{engine}: {}", r.stats);
        no_swap_file_left(&dir);
    }
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// A seccomp filter for all threads was put on the pager's as well, and killed them. A filter for the only thread left them out, so
/// the sandbox had a way out. Now threads that can work under the filter get it (above). Otherwise the pager ends if nothing is
/// paged yet, and later the program is stopped.
#[test]
fn a_filter_that_the_pager_cannot_live_under() {
    if !able() {
        return;
    }
    let dir = place("strict");
    let program = build(&dir, "gives_up.c");
    let swap = swap_option(&dir, "");
    let r = run(&dir, &["--memory", "64M", "--swap", &swap], None, &program, &["strict", "/root", "8"]);
    let out = String::from_utf8_lossy(&r.output.stdout);
    assert_eq!((r.output.status.code(), &*out), (Some(0), "1 threads\nright\n"), "{:?}", r.output);
    assert!(r.stderr().lines().eq([LEFT]), "{}", r.stderr());
    let r = run(&dir, &["--memory", "16M", "--swap", &swap], None, &program, &["strict", "/root"]);
    assert_eq!((r.output.status.code(), &r.output.stdout[..]), (Some(125), &b""[..]), "{:?}", r.output);
    assert!(r.stderr().contains("seccomp filter under which its pager's threads cannot live"), "{}", r.stderr());
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// The pager's last words when the program confines itself and nothing is paged.
const LEFT: &str = "overspill: warning: the program ran without paging from some time on: it put itself under a seccomp filter under which the \
                    pager cannot live";

/// libseccomp asks whether the kernel has seccomp(2) by a call that the kernel must refuse. It was taken for strict mode: the pager
/// ended without a word, or the program was stopped. The same held for filters that are not valid, and the pager also ended before
/// an unshare that the kernel refused.
#[test]
fn a_sandbox_that_the_kernel_refuses_changes_nothing() {
    if !able() {
        return;
    }
    let dir = place("refused");
    let program = build(&dir, "gives_up.c");
    for when in ["later", "first"] {
        for case in ["asks", "no-mode", "no-filter", "no-namespace"] {
            let r = run(&dir, &["--memory", "16M", "--swap", &swap_option(&dir, "")], None, &program, &[case, when]);
            assert_eq!((&*r.stderr(), &r.output.stdout[..]), ("", &b"right\n"[..]), "{case}: {:?}", r.output);
            assert!(r.stat("pages_in") > 1000, "{case}: {}", r.stats);
            no_swap_file_left(&dir);
        }
    }
    if root() {
        let r = run(&dir, &["--memory", "16M", "--swap", &swap_option(&dir, "")], None, &program, &["new-pids", "first"]);
        assert_eq!(String::from_utf8_lossy(&r.output.stdout), "right\n", "{:?}", r.output);
    }
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// A daemon gave up root and started another program. That program's pager could not get a userfaultfd any more and ended it with
/// status 125. Now it runs, without paging if necessary, and says so once.
#[test]
fn a_program_that_gave_root_up_starts_others() {
    if !root() {
        return;
    }
    let dir = place("exec");
    let program = build(&dir, "gives_up.c");
    let r = run(&dir, &["--memory", "16M", "--swap", &swap_option(&dir, "")], None, &program, &["exec"]);
    let out = String::from_utf8_lossy(&r.output.stdout);
    assert_eq!((r.output.status.code(), &*out), (Some(0), "another program\nright\n"), "{:?}", r.output);
    let stderr = r.stderr();
    assert!(stderr.is_empty() || stderr.lines().count() == 1 && stderr.contains("(echo) runs without paging: "), "{stderr}");
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// The pager's messages in a descendant went to descriptor 2, whatever that was by then: into the program's data. Now they go to
/// the standard error of `overspill run`, or nowhere.
#[test]
fn last_words_are_no_data() {
    if !root() {
        return;
    }
    let dir = place("last-words");
    let program = build(&dir, "last_words.c");
    let data = dir.join("data");
    let file = data.to_str().expect("a path");
    let options = ["--memory", "16M", "--swap", &swap_option(&dir, "")];
    let r = run(&dir, &options, Some("panic=50"), &program, &[file]);
    assert_eq!(std::fs::read(&data).expect("data"), b"data");
    assert_eq!(r.output.status.code(), Some(100 + 9), "the child was stopped: {:?}", r.output);
    assert!(r.stderr().contains("internal error of the pager"), "{}", r.stderr());
    // after exec only descriptor 2 is known, and messages must not go into a file
    let r = run(&dir, &options, None, &program, &[file, "exec", "/bin/true"]);
    assert_eq!(r.output.status.code(), Some(0), "{:?}", r.output);
    assert_eq!(std::fs::read(&data).expect("data"), b"data");
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// A program with AddressSanitizer ended itself, because its runtime was not loaded first. One with ThreadSanitizer crashed or was
/// refused with a wrong reason. Now they are refused with the reason before they start, and a paged program can start them.
#[test]
fn sanitizers_are_refused_and_left_alone() {
    if !able() {
        return;
    }
    let dir = place("sanitizers");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/sanitized.c");
    for (option, name) in [("address", "AddressSanitizer"), ("thread", "ThreadSanitizer"), ("undefined", "")] {
        let program = dir.join(option);
        let built =
            Command::new("cc").arg(format!("-fsanitize={option}")).arg("-o").arg(&program).arg(&source).output().expect("cc");
        if !built.status.success() || !Command::new(&program).output().is_ok_and(|alone| alone.status.success()) {
            println!("not run: cc has no {option} sanitizer that works here");
            continue;
        }
        let run = |options: &[&str], command: &[&str]| -> Output {
            let mut run = Command::new(overspill());
            run.args(["run", "-m", "16M"]).args(options).arg("--").args(command).output().expect("overspill runs")
        };
        let path = program.to_str().expect("a path");
        let alone = run(&[], &[path]);
        let stderr = String::from_utf8_lossy(&alone.stderr);
        if name.is_empty() {
            assert!(alone.status.success() && alone.stdout == b"right 1\n", "{option}: {alone:?}");
        } else {
            assert_eq!(alone.status.code(), Some(125), "{option}: {alone:?}");
            assert!(stderr.lines().count() == 1 && stderr.contains(name) && stderr.contains("--best-effort"), "{option}: {stderr}");
            let unpaged = run(&["--best-effort"], &[path]);
            assert!(unpaged.status.success() && unpaged.stdout == b"right 1\n", "{option}: {unpaged:?}");
        }
        let started = run(&[], &["sh", "-c", &format!("{path}; exit $?")]);
        assert!(started.status.success() && started.stdout == b"right 1\n" && started.stderr.is_empty(), "{option}: {started:?}");
    }
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// A paged program that waits for the end of its input, and its process id. It can be asked.
fn sleeper() -> (Child, String) {
    let mut sleeper = Command::new(overspill());
    sleeper
        .args(["run", "-m", "16M", "--policy", "use-once", "--", "sh", "-c", "echo $$; read end"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut sleeper = sleeper.spawn().expect("overspill runs");
    let mut pid = String::new();
    BufReader::new(sleeper.stdout.take().expect("a pipe")).read_line(&mut pid).expect("its process id");
    let pid = pid.trim().to_owned();
    let start = std::time::Instant::now();
    while !Command::new(overspill()).args(["swaps", &pid]).output().expect("overspill runs").status.success() {
        assert!(start.elapsed() < PATIENCE, "it has no control socket");
        std::thread::sleep(std::time::Duration::from_millis(20)); // polling, with a limit
    }
    (sleeper, pid)
}

/// Root asked its own program for something. But another user had made the directory for sockets first, and that user's process got
/// the request with descriptors of files and block devices. Now a process with another process id is told nothing, and a directory
/// of another user is ignored.
#[test]
fn an_impostor_is_told_nothing() {
    if !able() {
        return;
    }
    let dir = place("impostor");
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).expect("chmod");
    let sockets = dir.join("overspill");
    let make = |mode| std::fs::DirBuilder::new().mode(mode).create(&sockets).expect("a directory");
    let (mut sleeper, pid) = sleeper();
    let others_too = rustix::process::geteuid().is_root();
    for (mode, owner) in [(0o700, None), (0o755, Some(65534))] {
        if owner.is_some() && !others_too {
            println!("not run: only root can have a directory be somebody else's");
            continue;
        }
        make(mode);
        let path = sockets.join(format!("{pid}.sock"));
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None).expect("a socket");
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).expect("an address")).expect("bind");
        rustix::net::listen(&socket, 5).expect("listen");
        if let Some(owner) = owner {
            for path in [&dir, &sockets, &path] {
                std::os::unix::fs::chown(path, Some(owner), None).expect("chown");
            }
        }
        for verb in ["swaps", "swapon", "swapoff"] {
            let mut command = Command::new(overspill());
            command.args([verb, &pid]).env("XDG_RUNTIME_DIR", &dir).env_remove("TMPDIR");
            match verb {
                "swapon" => _ = command.arg(format!("file:{}", dir.display())),
                "swapoff" => _ = command.arg(&dir),
                _ => {}
            }
            let output = command.output().expect("overspill runs");
            assert!(output.status.success(), "{verb}: {output:?}"); // the process itself answers
            let mut packet = [0u8; 4096];
            while let Ok(asker) = rustix::net::accept(&socket) {
                let (_, n) = rustix::net::recv(&asker, &mut packet, RecvFlags::empty()).expect("the end");
                assert_eq!(n, 0, "{verb}: it was told {}", packet[..n].escape_ascii());
            }
        }
        std::fs::remove_dir_all(&sockets).expect("cleanup");
    }
    sleeper.kill().expect("kill");
    sleeper.wait().expect("wait");
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// An ordinary user's program started one that may be executed but not read. The agent is loaded into that, but may not patch libc
/// there. It ended the program with status 125, and the message blamed libc.
#[test]
fn a_program_that_may_not_be_read_runs_unpaged() {
    if !root() {
        return;
    }
    let dir = place("unreadable");
    let mode = |file: &Path, mode| std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).expect("chmod");
    mode(&dir, 0o755);
    let [command, hidden] = ["overspill", "hidden"].map(|name| dir.join(name)); // where another user can reach them
    copy(&overspill(), &command);
    let agent = "liboverspill_agent.so";
    copy(&overspill().with_file_name(agent), &dir.join(agent));
    copy("/bin/echo".as_ref(), &hidden);
    mode(&hidden, 0o711);
    let nobody = |script: &str| {
        let user = ["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=+sys_ptrace", "--ambient-caps=+sys_ptrace"];
        let mut run = patiently("setpriv"); // (the capability allows a userfaultfd, and opens no file)
        run.args(user).arg(&command).args(["run", "-m", "64M", "--", "sh", "-c", script]).arg(&hidden);
        let output = run.env_remove("XDG_RUNTIME_DIR").env_remove("TMPDIR").output().expect("timeout runs");
        (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let why = "(hidden) runs without paging: it may be executed but not read";
    for script in ["\"$0\" ran; true", "exec \"$0\" ran"] {
        let (said, warned) = nobody(script);
        assert_eq!(said, "ran\n", "{script}: {warned}");
        assert!(warned.contains(why), "{script}: {warned}");
        assert_eq!(warned.contains("the program ran without paging from some time on"), script.starts_with("exec"), "{warned}");
    }
    std::fs::remove_dir_all(&dir).expect("cleanup");
}

/// Root asked a program of another user, and the change was made to a program of root's: the process that was named held a status
/// block that named the other, and the commands believed it. Now they believe only that an `overspill run` has started its program.
#[test]
fn nobody_can_turn_a_request_onto_another_program() {
    if !able() {
        return;
    }
    let (mut victim, pid) = sleeper();
    let run = victim.id().to_string();
    let blocks: Vec<_> = std::fs::read_dir(format!("/proc/{run}/fd"))
        .expect("its descriptors")
        .map(|entry| entry.expect("a descriptor").path())
        .filter(|path| std::fs::read_link(path).is_ok_and(|link| link.to_string_lossy().contains("overspill-status")))
        .collect();
    // this process is the one that is named: it has a block that names the victim
    let block = std::fs::File::open(&blocks[0]).expect("the block");
    let here = std::process::id().to_string();
    let ask = |arguments: &[&str]| Command::new(overspill()).args(arguments).output().expect("overspill runs");
    let device = format!("file:{}", std::env::temp_dir().display());
    for request in [&["policy", &here, "fifo"][..], &["swaps", &here], &["swapon", &here, &device], &["swapoff", &here, "/tmp"]] {
        let refused = ask(request);
        let stderr = String::from_utf8_lossy(&refused.stderr);
        assert_eq!((refused.status.code(), stderr.lines().count()), (Some(1), 1), "{request:?}: {refused:?}");
        assert!(stderr.contains(&format!("process {here} has no control socket")), "{request:?}: {stderr}");
    }
    let has = |policy: &str| String::from_utf8_lossy(&ask(&["stat", &pid]).stdout).contains(policy);
    assert!(has("use-once") && !has("fifo"), "nobody has changed it");
    let changed = ask(&["policy", &run, "fifo"]); // what it is for
    assert!(changed.status.success() && has("fifo"), "{changed:?}");
    drop(block);
    victim.kill().expect("kill");
    victim.wait().expect("wait");
}

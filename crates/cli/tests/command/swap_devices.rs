//! Swap devices that come and go under real programs, with the agent: `swaps`, `swapon`, `swapoff`, and what they refuse.
//!
//! `OVERSPILL_SWAPOFFS` is the number of swapoffs in the long test, half of them with each engine (16 without it; 400 in `make
//! soak`).

use crate::common::{PATIENCE, able, build, copy, overspill, patiently, place, unique};
use crate::running::Running;
use std::fs;
use std::io::BufRead;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// Starts churn with `mib` MiB per thread. It runs until the test ends it.
fn churn(dir: &Path, test: &str, mib: &str, options: &[&str], environment: &[(&str, &str)]) -> Running {
    Running::start(dir, test, options, &build(dir, "churn.c"), &[mib], environment)
}

impl Running {
    fn device(&self, path: &Path) -> Option<serde_json::Value> {
        self.swaps().into_iter().find(|d| d["device"] == path.to_str().unwrap())
    }
}

fn directories<const N: usize>(dir: &Path) -> [PathBuf; N] {
    std::array::from_fn(|i| {
        let path = dir.join(format!("swap-{i}"));
        fs::create_dir_all(&path).expect("temp dir");
        path.canonicalize().expect("it is there")
    })
}

/// Asserts one line on standard error with these words, and this exit status.
#[track_caller]
fn refused(output: &Output, status: i32, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{output:?}");
    assert_eq!(text.lines().count(), 1, "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} in {text}");
    }
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

#[test]
fn devices_come_and_go_at_random_moments() {
    if !able() {
        return;
    }
    let wanted = std::env::var("OVERSPILL_SWAPOFFS").ok().and_then(|n| n.parse().ok()).unwrap_or(16u32);
    let dir = place("devices");
    for engine in ["io_uring", "psync"] {
        let places: [PathBuf; 3] = directories(&dir);
        let options = ["--memory", "48M", "--engine", engine, "--swap", places[0].to_str().unwrap()];
        let running = churn(&dir, &format!("random-{engine}"), "20", &options, &[]);
        let mut rng = Rng(u64::from(wanted) * 7 + options[3].len() as u64);
        let (mut offs, mut busy, mut moved) = (0, 0, 0u64);
        let start = Instant::now();
        // and until some had pages to move. That is a number and not a share: on a busy machine one in six has, so a share that is
        // missed at first would never be reached
        while offs < wanted.div_ceil(2) || moved < u64::from(wanted.div_ceil(8)) {
            assert!(start.elapsed() < PATIENCE + Duration::from_secs(10) * wanted, "{offs} swapoffs so far: {:?}", running.swaps());
            std::thread::sleep(Duration::from_millis(rng.below(150)));
            let at = &places[rng.below(3) as usize];
            let there = running.swaps();
            assert!(!there.is_empty(), "it cannot be asked any more");
            if there.iter().all(|d| d["device"] != at.to_str().unwrap()) {
                let priority = ["", ",prio=5", ",prio=-7"][rng.below(3) as usize];
                let output = running.ask("swapon", &[&format!("file:{}{priority}", at.display())]);
                assert!(output.status.success(), "{output:?}");
            } else if there.len() > 1 {
                // it is no mistake if the pages fit nowhere at the moment
                let output = running.ask("swapoff", &[at.to_str().unwrap()]);
                match output.status.code() {
                    Some(0) => {
                        offs += 1;
                        moved += !String::from_utf8_lossy(&output.stdout).contains(": 0 B in") as u64;
                    }
                    Some(1) => busy += 1,
                    _ => panic!("{output:?}"),
                }
            }
        }
        println!("{engine}: {offs} swapoffs, {moved} of them with pages, {busy} refused, {:.0?}", start.elapsed());
        running.end();
        for place in places {
            assert_eq!(fs::read_dir(place).expect("dir").count(), 0, "a swap file is left");
        }
    }
    fs::remove_dir_all(&dir).expect("cleanup");
}

#[test]
fn priorities_count_and_a_full_device_hands_on() {
    if !able() {
        return;
    }
    let dir = place("priorities");
    let places: [PathBuf; 2] = directories(&dir);
    let first = format!("file:{},size=8M,prio=9", places[1].display());
    let running =
        churn(&dir, "priorities", "16", &["--memory", "16M", "--swap", places[0].to_str().unwrap(), "--swap", &first], &[]);
    running.wait_until("a full first device", |r| r.device(&places[0]).is_some_and(|d| d["pages_out"].as_u64() > Some(1000)));
    let devices = running.swaps();
    assert_eq!(devices[0]["device"], places[1].to_str().unwrap(), "the highest priority comes first");
    assert_eq!((&devices[0]["priority"], &devices[1]["priority"]), (&9.into(), &(-1).into()));
    assert!(devices[0]["used_bytes"].as_u64() <= Some(8 * MIB));
    for device in &devices {
        assert!(device["write_errors"] == 0 && device["read_errors"] == 0 && device["state"] == "on", "{device}");
        assert!(device["writes"].as_u64() <= device["pages_out"].as_u64() && device["write_p50_ns"].as_u64() > Some(0));
        let whole = |pages: &str| device[pages].as_u64().map(|n| n * 4096);
        assert!(whole("pages_out") > Some(0) && device["bytes_out"].as_u64() == whole("pages_out"), "{device}");
        assert!(device["bytes_in"].as_u64() >= whole("pages_in"), "{device}");
    }
    let table = running.ask("swaps", &[]);
    assert_eq!(String::from_utf8_lossy(&table.stdout).lines().count(), 3, "{table:?}");
    running.end();
    fs::remove_dir_all(&dir).expect("cleanup");
}

#[test]
fn what_cannot_be_is_refused_and_nothing_changes() {
    if !able() {
        return;
    }
    let dir = place("refused");
    let places: [PathBuf; 2] = directories(&dir);
    let here = places[0].to_str().unwrap();
    let running = churn(&dir, "refused", "16", &["--memory", "16M", "--swap", here], &[]);
    running.wait_until("much in swap", |r| r.device(&places[0]).is_some_and(|d| d["used_bytes"].as_u64() > Some(20 * MIB)));
    refused(&running.ask("swapoff", &[here]), 1, &[here, "MiB are on this device", "MiB in memory", "add a device first"]);
    refused(&running.ask("swapon", &[here]), 1, &[here, "has that swap device already"]);
    refused(&running.ask("swapon", &[here, here]), 125, &[here, "named twice"]);
    refused(&running.ask("swapon", &["floppy:/dev/fd0"]), 125, &["floppy", "there are file, block, compressed"]);
    refused(&running.ask("swapon", &["/nonexistent/dir/file"]), 125, &["/nonexistent/dir", "does not exist"]);
    refused(&running.ask("swapoff", &[places[1].to_str().unwrap()]), 1, &["no such swap device", here]);
    assert_eq!(running.device(&places[0]).expect("it is still there")["state"], "on");

    // a second program of that name
    let mut second = Command::new(overspill());
    second.args(["run", "--memory", "16M", "--name", &running.name, "true"]);
    refused(&second.output().expect("overspill runs"), 125, &["--name", "runs already"]);
    running.end();
    fs::remove_dir_all(&dir).expect("cleanup");
}

/// When one of several devices was refused, those before it were added all the same.
#[test]
fn several_are_added_or_none() {
    if !able() {
        return;
    }
    let dir = place("several");
    let places: [PathBuf; 20] = directories(&dir);
    let texts: Vec<_> = places.iter().map(|p| p.to_str().unwrap()).collect();
    let running = churn(&dir, "several", "16", &["--memory", "16M", "--swap", texts[0]], &[]);
    running.wait_until("much in swap", |r| r.device(&places[0]).is_some_and(|d| d["used_bytes"].as_u64() > Some(10 * MIB)));
    let alone = || {
        let there = running.swaps();
        assert!(there.len() == 1 && there[0]["device"] == texts[0], "{there:?}");
        for place in &places[1..] {
            assert_eq!(fs::read_dir(place).expect("dir").count(), 0);
        }
    };
    // the address space is too short, which only the program knows. Because of the higher priority, pages come at once
    let first = format!("file:{},prio=9", texts[1]);
    refused(&running.ask("swapon", &[&first, texts[2], "compressed:size=1P"]), 1, &["compressed: ", "no address space"]);
    alone();
    refused(&running.ask("swapon", &texts[1..]), 1, &["has 1 of the 16 possible swap devices", "19 more", "swap one off first"]);
    alone();
    refused(&running.ask("swapon", &[texts[1], "/nonexistent/dir/file"]), 125, &["/nonexistent/dir", "does not exist"]);
    alone();
    // fewer than are possible: the program forks, and a child needs one more
    let output = running.ask("swapon", &texts[1..8]);
    assert!(output.status.success() && running.swaps().len() == 8, "{output:?}");
    running.end();
    fs::remove_dir_all(&dir).expect("cleanup");
}

/// The size that was asked for was shown as what a device can hold: 100 TiB, where there are 2^28 slots, and 900 GiB in 16 MiB of
/// memory. And `stat` always named the devices of the start.
#[test]
fn what_is_shown_is_what_is_there() {
    if !able() {
        return;
    }
    let dir = place("shown");
    let places: [PathBuf; 3] = directories(&dir);
    let texts = places.each_ref().map(|p| p.to_str().unwrap());
    let running = churn(&dir, "shown", "16", &["--memory", "16M", "--swap", &format!("file:{},size=100T", texts[0])], &[]);
    let name = || {
        let stat = running.ask("stat", &["--json"]);
        let stat: serde_json::Value = serde_json::from_slice(&stat.stdout).expect("JSON");
        stat["swap"].as_str().expect("a text").to_owned()
    };
    let size = |name: &str| {
        let there = running.swaps();
        let device = there.iter().find(|d| d["device"] == name).unwrap_or_else(|| panic!("no {name} in {there:?}"));
        device["size_bytes"].as_u64().expect("a number")
    };
    assert_eq!((size(texts[0]), name()), (1 << 40, texts[0].into()));
    for (device, shown, bytes) in [
        (format!("file:{},size=3T,path={}", texts[1], texts[2]), texts[1], 1 << 40),
        ("compressed:size=900G".into(), "compressed", 12 * MIB),
    ] {
        let output = running.ask("swapon", &[&device]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(size(shown), bytes, "{device}");
    }
    assert_eq!(name(), format!("{}, {} + 1 more, compressed", texts[0], texts[1]));
    assert!(running.ask("swapoff", &[texts[0]]).status.success());
    assert_eq!(name(), format!("{} + 1 more, compressed", texts[1]));
    // without a size there is a limit, too
    assert!(running.ask("swapon", &[texts[0]]).status.success() && size(texts[0]) == 256 << 30);

    // names that would write over the terminal
    let odd = dir.join("a\nb\x1b[2J");
    fs::create_dir(&odd).expect("temp dir");
    let odd = odd.canonicalize().expect("it is there");
    let odd = odd.to_str().expect("UTF-8");
    assert!(running.ask("swapon", &[odd]).status.success());
    refused(&running.ask("swapon", &[odd]), 1, &["a\\nb\\u{1b}[2J", "has that swap device already"]);
    let output = running.ask("swapoff", &[odd]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("a\\nb\\u{1b}[2J: ") && text.lines().count() == 1, "{output:?}");
    refused(&running.ask("swapoff", &[odd]), 1, &["a\\nb\\u{1b}[2J", "no such swap device"]);
    running.end();
    fs::remove_dir_all(&dir).expect("cleanup");
}

/// Several pages of one read are parked here. The reader had a place for one only, because nothing else had parked more.
#[test]
fn the_only_device_is_emptied_into_memory() {
    if !able() {
        return;
    }
    let dir = place("memory");
    let places: [PathBuf; 1] = directories(&dir);
    let here = places[0].to_str().unwrap();
    let program = build(&dir, "shrink.c");
    for engine in ["io_uring", "psync"] {
        let name = unique(&format!("memory-{engine}"));
        let child = Command::new(overspill())
            .args(["run", "--no-compress", "--name", &name, "--memory", "48M", "--engine", engine, "--swap", here, "--"])
            .arg(&program)
            .args(["160", "32"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("overspill runs");
        let mut running = Running { child, name, dir: dir.clone(), environment: Vec::new() };
        let mut out = std::io::BufReader::new(running.child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).expect("it says so");
        assert_eq!(line, "ready\n");
        assert!(running.device(&places[0]).is_some_and(|d| d["used_bytes"].as_u64() > Some(16 * MIB)), "{:?}", running.swaps());
        let output = running.ask("swapoff", &[here]);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains(" 0 B to other devices") && !text.contains(" 0 B into memory"), "{text}");
        assert!(running.swaps().is_empty());
        let stat = running.ask("stat", &["--json"]);
        let stat: serde_json::Value = serde_json::from_slice(&stat.stdout).expect("JSON");
        assert_eq!((&stat["swap_used_bytes"], &stat["swap_capacity_bytes"]), (&0.into(), &0.into()));
        assert!(stat["memory_peak_bytes"].as_u64() <= Some(50 * MIB), "{stat}");
        drop(running.child.stdin.take());
        line.clear();
        out.read_line(&mut line).expect("its result");
        assert_eq!(line, "all bytes right\n");
        assert!(running.child.wait().expect("it ends").success());
    }
    fs::remove_dir_all(&dir).expect("cleanup");
}

#[test]
fn an_interrupted_swapoff_leaves_a_working_device() {
    if !able() {
        return;
    }
    let dir = place("interrupted");
    let places: [PathBuf; 2] = directories(&dir);
    let here = places[0].to_str().unwrap();
    // page by page, so that there is time
    let environment = [("OVERSPILL_INJECT", "swapoff_pages=1")];
    let running = churn(&dir, "interrupted", "16", &["--memory", "24M", "--swap", here], &environment);
    assert!(running.ask("swapon", &[places[1].to_str().unwrap()]).status.success());
    for (signal, status) in [("INT", Some(130)), ("TERM", Some(143)), ("KILL", None)] {
        running.wait_until("much in swap", |r| r.device(&places[0]).is_some_and(|d| d["used_bytes"].as_u64() > Some(20 * MIB)));
        let off = Command::new(overspill())
            .args(["swapoff", &running.name, here])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("overspill runs");
        running.wait_until("a swapoff", |r| r.device(&places[0]).is_some_and(|d| d["state"] == "leaving"));
        refused(&running.ask("swapoff", &[places[1].to_str().unwrap()]), 1, &["another swapoff is under way"]);
        let killed = Command::new("kill").args([&format!("-{signal}"), &off.id().to_string()]).status().expect("kill runs");
        assert!(killed.success());
        let output = off.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), status, "{output:?}");
        if let Some(status) = status {
            refused(&output, status, &[here, "interrupted", "in use as before"]);
        }
        running.wait_until("a device as before", |r| r.device(&places[0]).is_some_and(|d| d["state"] == "on"));
    }
    running.end();
    fs::remove_dir_all(&dir).expect("cleanup");
}

#[test]
fn nobody_else_may_ask() {
    if !able() {
        return;
    }
    if !rustix::process::getuid().is_root() {
        return println!("not run: only root can be somebody else");
    }
    let dir = place("others");
    let places: [PathBuf; 1] = directories(&dir);
    // not the directory that other tests use at the same time
    let own = [("XDG_RUNTIME_DIR", dir.to_str().unwrap())];
    let running = churn(&dir, "others", "4", &["--memory", "16M", "--swap", places[0].to_str().unwrap()], &own);
    let pid = running.child.id().to_string();
    let command = dir.join("command");
    copy(&overspill(), &command); // others can reach it
    let ask = |arguments: &[&str]| {
        let mut command = Command::new(&command);
        command.args(arguments).uid(65534).gid(65534).env_remove("XDG_RUNTIME_DIR").env("TMPDIR", "/tmp");
        command.output().expect("overspill runs")
    };
    // an empty name matched any program without a name
    refused(&Command::new(&command).args(["stat", ""]).output().expect("overspill runs"), 1, &["no program of yours"]);
    refused(&ask(&["swaps", &pid]), 1, &["may not look into process"]);
    refused(&ask(&["stat", &pid]), 1, &["may not look into process"]);
    refused(&ask(&["swapoff", &pid, "/x"]), 1, &["may not look into process"]);
    refused(&ask(&["swaps", &running.name]), 1, &["no program of yours"]);

    // Even if the directory and the socket are opened to all, the process checks who asks.
    let sockets = dir.join("overspill");
    let modes = |file: &Path, mode| fs::set_permissions(file, fs::Permissions::from_mode(mode)).expect("chmod");
    let socket = fs::read_dir(&sockets).expect("dir").flatten().map(|e| e.path());
    let socket = socket.into_iter().find(|p| p.to_str().unwrap().ends_with(&format!(".{}.sock", running.name))).expect("a socket");
    assert_eq!(fs::metadata(&socket).expect("stat").permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(&sockets).expect("stat").permissions().mode() & 0o777, 0o700);
    modes(&socket, 0o666);
    modes(&sockets, 0o711);
    let script = format!(
        "import socket\ns = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\ns.connect({:?})\n\
         try: s.send(b'overspill/1 swaps')\nexcept OSError: pass\nprint(s.recv(4096).decode())",
        socket.to_str().unwrap()
    );
    let python = Command::new("python3").args(["-c", &script]).uid(65534).gid(65534).output();
    modes(&sockets, 0o700);
    match python {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(text.starts_with("error ") && text.contains("belongs to user 0"), "{text}");
        }
        other => println!("not run, without a python3 that others can use: {other:?}"),
    }
    running.end();
    assert!(fs::symlink_metadata(&socket).is_err(), "the socket is left");
    fs::remove_dir_all(&dir).expect("cleanup");
}

#[test]
fn requests_that_make_no_sense_are_answered() {
    if !able() {
        return;
    }
    let dir = place("nonsense");
    let places: [PathBuf; 1] = directories(&dir);
    let running = churn(&dir, "nonsense", "4", &["--memory", "16M", "--swap", places[0].to_str().unwrap()], &[]);
    let sockets = overspill_linux::control_client::make_directory().expect("it is there");
    let socket = fs::read_dir(&sockets).expect("dir").flatten().map(|e| e.path());
    let socket = socket.into_iter().find(|p| p.to_str().unwrap().ends_with(&format!(".{}.sock", running.name))).expect("a socket");
    let talk = |packet: &[u8]| {
        let address = rustix::net::SocketAddrUnix::new(&socket).expect("an address");
        let kind = rustix::net::SocketType::SEQPACKET;
        let s = rustix::net::socket(rustix::net::AddressFamily::UNIX, kind, None).expect("a socket");
        rustix::net::connect(&s, &address).expect("it listens");
        rustix::net::send(&s, packet, rustix::net::SendFlags::NOSIGNAL).expect("it takes packets");
        let mut answer = [0u8; 4096];
        let (_, n) = rustix::net::recv(&s, &mut answer, rustix::net::RecvFlags::empty()).expect("it answers");
        String::from_utf8_lossy(&answer[..n]).into_owned()
    };
    for (packet, word) in [
        (&b"overspill/9 swaps"[..], "speaks version 1"),
        (b"overspill/1 frobnicate", "does not know"),
        (b"overspill/1 swaps please", "malformed"),
        (b"overspill/1 swapon file 0 0 /x", "no descriptor came"),
        (b"overspill/1 swapoff /x", "no such swap device"),
        (b"overspill/1 cancel", "no swapoff of yours"),
        (b"overspill/1 policy best", "best"),
        (b"\0\0\0", "speaks version 1"),
        (&[b'x'; 3000], "longer than 2560 bytes"),
    ] {
        let answer = talk(packet);
        assert!(answer.starts_with("error ") && answer.contains(word), "{}: {answer}", packet.escape_ascii());
    }
    let mut rng = Rng(1);
    for _ in 0..300 {
        let mut packet = b"overspill/1 swapon file 1 2 /x".to_vec();
        for _ in 0..rng.below(6) {
            let at = rng.below(packet.len() as u64) as usize;
            packet[at] = rng.below(256) as u8;
        }
        assert!(talk(&packet).starts_with("error "), "{}", packet.escape_ascii());
    }
    assert_eq!(running.swaps().len(), 1);
    running.end();
    fs::remove_dir_all(&dir).expect("cleanup");
}

#[test]
fn the_policy_changes_while_the_program_runs() {
    if !able() {
        return;
    }
    let dir = place("policy");
    let places: [PathBuf; 1] = directories(&dir);
    let running = churn(&dir, "policy", "8", &["--memory", "16M", "--swap", places[0].to_str().unwrap()], &[]);
    running.wait_until("pages in swap", |r| r.device(&places[0]).is_some_and(|d| d["used_bytes"].as_u64() > Some(4 * MIB)));
    for round in 0..5 {
        for policy in ["fifo", "2q:kin=0.3", "lirs", "use-once", "s3-fifo", "arc"] {
            let output = running.ask("policy", &[policy]);
            assert!(output.status.success() && output.stderr.is_empty(), "{round}: {output:?}");
            let stat = running.ask("stat", &["--json"]);
            let stat: serde_json::Value = serde_json::from_slice(&stat.stdout).expect("JSON");
            let name = policy.split(':').next().unwrap();
            assert!(stat["policy"].as_str().unwrap().starts_with(name), "{stat}");
        }
    }
    refused(&running.ask("policy", &["best"]), 125, &["best", "fifo", "lirs"]);
    refused(&running.ask("policy", &["fifo:size=3"]), 125, &["size"]);
    running.end();
    fs::remove_dir_all(&dir).expect("cleanup");
}

/// A loop device over a new file; removed when dropped.
struct Loop(String);

impl Loop {
    fn new(file: &Path) -> Option<Loop> {
        Loop::over(file, 96 * MIB, &[])
    }

    fn over(file: &Path, bytes: u64, options: &[&str]) -> Option<Loop> {
        fs::File::create(file).and_then(|f| f.set_len(bytes)).expect("a file");
        let output = Command::new("losetup").args(["--find", "--show"]).args(options).arg(file).output().ok()?;
        output.status.success().then(|| Loop(String::from_utf8_lossy(&output.stdout).trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn block_devices_are_used_and_guarded() {
    if !able() {
        return;
    }
    let dir = place("block");
    let places: [PathBuf; 1] = directories(&dir);
    let Some(device) = Loop::new(&dir.join("disk")) else {
        return println!("not run: no loop device can be had here");
    };
    let spec = format!("block:{}", device.0);
    let run = |device: &str| {
        let mut command = Command::new(overspill());
        command.args(["run", "--memory", "16M", "--swap", device, "--", "true"]);
        command.output().expect("overspill runs")
    };
    {
        use std::os::unix::fs::FileExt;
        let disk = fs::File::options().write(true).open(&device.0).expect("the device");
        disk.write_all_at(&[0x53, 0xef], 0x438).expect("write");
        disk.sync_all().expect("sync");
    }
    refused(&run(&spec), 125, &[&device.0, "ext4", "force"]);
    let forced = format!("{spec},force");
    let output = run(&forced);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    // more than it has: as with files, that is reported
    let output = run(&format!("{forced},size=10G"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("10.0 GiB of swap are allowed and this block device has only 96.0 MiB"),
        "{text}"
    );
    if let Some(empty) = Loop::over(&dir.join("nothing"), 0, &[]) {
        refused(&run(&format!("block:{}", empty.0)), 125, &[&empty.0, "is empty", "name another"]);
    }
    if let Some(fixed) = Loop::over(&dir.join("fixed"), 2 * MIB, &["--read-only"]) {
        refused(&run(&format!("block:{}", fixed.0)), 125, &[&fixed.0, "is read-only", "name another"]);
    }
    // its forked children have a file in the default place
    let running = churn(&dir, "block", "16", &["--memory", "16M", "--swap", &forced], &[("TMPDIR", places[0].to_str().unwrap())]);
    refused(&run(&forced), 125, &[&device.0, "in use"]);
    let path = Path::new(&device.0);
    running.wait_until("pages on the device", |r| r.device(path).is_some_and(|d| d["used_bytes"].as_u64() > Some(10 * MIB)));
    assert_eq!(running.device(path).expect("a device")["kind"], "block");
    assert!(running.ask("swapon", &[places[0].to_str().unwrap()]).status.success());
    let output = running.ask("swapoff", &[&device.0]);
    assert!(output.status.success(), "{output:?}");
    assert!(running.device(path).is_none());
    // swap has written over what was there
    let output = running.ask("swapon", &[&spec]);
    assert!(output.status.success() && running.device(path).is_some_and(|d| d["state"] == "on"), "{output:?}");
    running.end();
    fs::remove_dir_all(&dir).expect("cleanup");
}

/// A program that went into the background lost the device. Its child had opened it anew, without the claim, so another run took it
/// and overwrote the child's pages.
#[test]
fn a_program_in_the_background_keeps_its_block_device() {
    if !able() {
        return;
    }
    let dir = place("background");
    let places: [PathBuf; 1] = directories(&dir);
    let Some(device) = Loop::new(&dir.join("disk")) else {
        return println!("not run: no loop device can be had here");
    };
    let program = build(&dir, "family.c");
    let fifos = ["go", "found"].map(|name| dir.join(name));
    assert!(Command::new("mkfifo").args(&fifos).status().expect("mkfifo runs").success());
    let run = |program: &Path, args: &[&Path]| {
        let mut command = Command::new(overspill());
        command.args(["run", "--memory", "16M", "--swap", &format!("block:{}", device.0), "--"]).arg(program).args(args);
        command.env("TMPDIR", &places[0]).stdin(Stdio::null());
        command
    };
    let [go, found] = &fifos;
    let parent = run(&program, &[Path::new("background"), go, found]).status().expect("overspill runs");
    assert!(parent.success(), "{parent}");
    refused(&run(Path::new("true"), &[]).output().expect("overspill runs"), 125, &[&device.0, "in use"]);
    let script = "echo x > \"$0\"; cat \"$1\"";
    let answer = patiently("sh").args(["-c", script]).args([go, found]).output().expect("timeout runs");
    assert_eq!(String::from_utf8_lossy(&answer.stdout), "right", "{answer:?}");
    drop(device);
    fs::remove_dir_all(&dir).expect("cleanup");
}

/// A program with a block device starts another, which cannot have the device. Then only compressed memory was left, which is
/// nothing without a device behind it, and the other program ran without paging.
#[test]
fn a_program_that_is_started_has_a_file_in_place_of_a_block_device() {
    let command = ["--", "sh", "-c", "\"$0\" 32 500; exit $?"];
    is_paged_on_a_block_device("started", "random_text.c", &command, "all bytes right\n");
}

/// Runs the program with 16 MiB and a block device. It says what it must, and the pager nothing. `args`: those before it.
fn is_paged_on_a_block_device(test: &str, program: &str, args: &[&str], says: &str) {
    if !able() {
        return;
    }
    let dir = place(test);
    let Some(device) = Loop::new(&dir.join("disk")) else {
        return println!("not run: no loop device can be had here");
    };
    let program = build(&dir, program);
    let mut command = patiently(overspill());
    command.args(["run", "--memory", "16M", "--swap", &format!("block:{}", device.0)]).args(args).arg(&program);
    let output = command.env("TMPDIR", &dir).output().expect("overspill runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), says, "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "it is paged");
    drop(device);
    fs::remove_dir_all(&dir).expect("cleanup");
}

/// A program forked and then called exec, as daemons do that start themselves again. Its child still had the block device, so the
/// new image had no swap, and ran without paging; the end of the run did not say so.
#[test]
fn a_program_that_execs_while_its_child_has_the_block_device_has_a_file() {
    let says = "the new image: right\nthe child: right\n";
    is_paged_on_a_block_device("exec-after-fork", "exec_after_fork.c", &["--no-compress", "--"], says);
}

/// The end of the run was silent about a program that went on without paging from an exec on.
#[test]
fn the_end_of_a_run_tells_of_an_image_without_paging() {
    if !able() {
        return;
    }
    let output =
        patiently(overspill()).args(["run", "--memory", "16M", "--", "env", "OVERSPILL_POLICY=none-such", "true"]).output();
    let output = output.expect("overspill runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{output:?}");
    for part in ["(true) runs without paging: OVERSPILL_POLICY", "ran without paging from some time on: OVERSPILL_POLICY"] {
        assert!(said.contains(part), "{said}");
    }
}

//! Swap files seen from outside, under real programs: how much disk they take, and what can be found in them.

use crate::common::{PATIENCE, able, build, overspill, patiently, place, unique};
use crate::runs::{no_swap_file_left, run, swap_option};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// pages.c under Overspill. Killed when dropped.
struct Pages {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    name: String,
    dir: PathBuf,
}

impl Pages {
    fn start(dir: &Path, test: &str, mib: u64, options: &[&str], inject: &str) -> Pages {
        let program = build(dir, "pages.c");
        let name = unique(test);
        let mut command = patiently(overspill());
        command.args(["run", "--no-compress", "--name", &name]).args(options);
        command.arg("--").arg(program).arg(mib.to_string()).env("OVERSPILL_INJECT", inject);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("overspill runs");
        let (stdin, stdout) = (child.stdin.take(), BufReader::new(child.stdout.take().expect("a pipe")));
        let mut pages = Pages { child, stdin, stdout, name, dir: dir.into() };
        pages.answer("fill");
        pages
    }

    fn answer(&mut self, expected: &str) {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("read");
        assert_eq!(line.trim(), expected);
    }

    fn ask(&mut self, command: &str) {
        writeln!(self.stdin.as_mut().expect("it runs"), "{command}").expect("it reads");
        self.answer(command);
    }

    fn json(&self, verb: &str) -> serde_json::Value {
        let output = Command::new(overspill()).args([verb, &self.name, "--json"]).output().expect("overspill runs");
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// The swap file. It has no name, and is open only in the descriptor table of the pager's threads.
    fn swap_file(&self) -> PathBuf {
        self.file_in("swap").expect("the pager has its swap file open")
    }

    /// The same in this directory, if there is one.
    fn file_in(&self, directory: &str) -> Option<PathBuf> {
        let pid = self.json("stat")["pid"].as_u64().expect("a process id");
        let dir = self.dir.join(directory).canonicalize().expect("it is there");
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten();
        let files = tasks.flat_map(|task| fs::read_dir(task.path().join("fd")).into_iter().flatten().flatten());
        let ours = |path: &PathBuf| fs::read_link(path).is_ok_and(|to| to.starts_with(&dir));
        files.map(|file| file.path()).find(ours)
    }

    fn end(mut self) {
        self.ask("check");
        drop(self.stdin.take());
        assert!(self.child.wait().expect("wait").success());
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn swap(dir: &Path) -> String {
    let swap = dir.join("swap");
    fs::create_dir_all(&swap).expect("temp dir");
    swap.to_str().expect("UTF-8").to_owned()
}

fn is_root() -> bool {
    let root = rustix::process::getuid().is_root();
    if !root {
        println!("not run: only root can look at the pager's files");
    }
    root
}

/// A program that needed much memory for a while does not keep the disk full: blocks without stored pages go back to the file
/// system, and the program can get them again.
#[test]
fn freed_memory_is_freed_on_disk() {
    gives_back("give-back", &[]);
}

#[test]
fn freed_memory_is_freed_on_disk_without_encryption() {
    gives_back("give-back-plain", &["--no-encrypt", "--engine", "psync"]);
}

/// Looks again and again until there is what is waited for, and returns it. `look` says otherwise what there is instead.
fn wait_for<T>(mut look: impl FnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    loop {
        match look() {
            Ok(found) => return found,
            Err(instead) => assert!(start.elapsed() < PATIENCE, "{instead}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until there are at most `most` bytes on disk.
fn await_fall(most: u64, on_disk: impl Fn() -> u64) {
    wait_for(|| match on_disk() {
        bytes if bytes <= most => Ok(()),
        bytes => Err(format!("{bytes} bytes stay on disk")),
    });
}

/// Waits until the pager says that it gave so many bytes back to the file system. A hole is on disk a moment before it is counted.
/// Returns the number of bytes.
fn await_given_back(pages: &Pages, least: u64) -> u64 {
    wait_for(|| match pages.json("stat")["swap_given_back_bytes"].as_u64().expect("a counter") {
        given if given >= least => Ok(given),
        given => Err(format!("only {given} bytes are given back: {}", pages.json("swaps"))),
    })
}

fn gives_back(name: &str, options: &[&str]) {
    if !able() || !is_root() {
        return;
    }
    let dir = place(name);
    let (swap, mut most) = (swap(&dir), 0);
    let mut pages = Pages::start(&dir, name, 110, &[&["--memory", "16M", "--swap", &swap], options].concat(), "");
    let file = pages.swap_file();
    let on_disk = || fs::metadata(&file).expect("it is open").blocks() * 512;
    for round in 0..2 {
        most = most.max(on_disk());
        assert!(most >= 85 * MIB, "{most} bytes on disk");
        pages.ask("free");
        await_fall(40 * MIB, on_disk); // a window for each of the eight writers stays, and so do stored pages
        let given = await_given_back(&pages, (round + 1) * 45 * MIB);
        let device = pages.json("swaps"); // read later, so it may be more
        assert!(device["given_back_bytes"].as_u64() >= Some(given), "{device}");
        pages.ask("check");
        pages.ask("fill");
        pages.ask("check");
    }
    assert!(on_disk() <= most + 64 * MIB, "what was given back is used again before the file grows");
    pages.end();
    assert_eq!(fs::read_dir(dir.join("swap")).expect("dir").count(), 0, "a swap file is left");
    fs::remove_dir_all(&dir).expect("cleanup");
}

/// The same when clusters should end where the physical extents do. If the file system does not say where those lie, it is used all
/// the same, and `swaps` says so.
#[test]
fn clusters_end_where_physical_extents_do() {
    if !able() || !is_root() {
        return;
    }
    let dir = place("aligned");
    let spec = format!("file:{},align=extents", swap(&dir));
    let mut pages = Pages::start(&dir, "aligned", 100, &["--memory", "16M", "--swap", &spec], "");
    let device = pages.json("swaps");
    let figure = |name: &str| device[name].as_u64().expect("a figure");
    assert_eq!(figure("aligned") + figure("align_refused"), 1, "{device}");
    let filefrag = Command::new("filefrag").arg(pages.swap_file()).output();
    match filefrag.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()) {
        // a hole, where blocks were given back already, is one more border for filefrag but none for clusters
        Ok(text) if figure("aligned") == 1 && pages.json("swaps")["given_back_bytes"] == 0 => {
            // "NAME: 3 extents found"; the borders of chunks are some more
            let found = text.rsplit(": ").next().and_then(|t| t.split(' ').next()).and_then(|n| n.parse::<u64>().ok());
            let found = found.unwrap_or_else(|| panic!("{text}"));
            assert!((found..found + 3).contains(&figure("extents")), "{found} physical extents: {device}");
        }
        other => println!("not compared with filefrag: {other:?}"),
    }
    pages.ask("check");
    pages.ask("free");
    await_given_back(&pages, 30 * MIB);
    pages.ask("fill");
    pages.end();
    fs::remove_dir_all(&dir).expect("cleanup");
}

/// Word `i` of pages.c.
fn word(i: u64) -> u64 {
    let x = i.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// How many of 100 pages have a piece of 16 bytes anywhere in the file.
fn found(file: &Path) -> usize {
    let mut bytes = Vec::new();
    File::open(file).and_then(|mut file| file.read_to_end(&mut bytes)).expect("root may read it");
    assert!(bytes.len() as u64 >= 16 * MIB);
    // of each page another piece; its first half finds candidates
    let pieces: std::collections::HashMap<u64, u64> =
        (0..100).map(|page| page * 512 + page * 5).map(|at| (word(at), word(at + 1))).collect();
    let mut seen = std::collections::HashSet::new();
    for at in 0..bytes.len() - 16 {
        let half = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        if pieces.get(&half(at)) == Some(&half(at + 8)) {
            seen.insert(half(at));
        }
    }
    seen.len()
}

/// An attacker who takes the disk, or reads it later, finds nothing of the program's memory.
#[test]
fn nothing_of_memory_is_found_in_the_file() {
    if !able() || !is_root() {
        return;
    }
    let dir = place("search");
    let swap = swap(&dir);
    let config = dir.join("config.toml");
    fs::write(&config, "no-encrypt = true\n").expect("write");
    let by_file = ["--config", config.to_str().expect("UTF-8")];
    for (option, plain) in [(&["--no-encrypt"][..], true), (&by_file, true), (&[], false)] {
        let options: Vec<_> = ["--memory", "16M", "--swap", &swap].into_iter().chain(option.iter().copied()).collect();
        let pages = Pages::start(&dir, "search", 40, &options, "");
        let found = found(&pages.swap_file());
        // unencrypted all of them are there, which shows that it is the right file and that the search works
        assert_eq!(found, if plain { 100 } else { 0 }, "pages found, {option:?}");
        pages.end();
    }
    fs::remove_dir_all(&dir).expect("cleanup");
}

const NAMES: [&str; 3] = ["swap", "b", "c"];

/// Three directories in `dir`, and a device of a file in each of them.
fn three_files(dir: &Path) -> ([String; 3], String) {
    let places = NAMES.map(|name| {
        fs::create_dir_all(dir.join(name)).expect("temp dir");
        dir.join(name).canonicalize().expect("it is there").to_str().expect("UTF-8").to_owned()
    });
    let spec = format!("file:{},path={},path={},size=1G", places[0], places[1], places[2]);
    (places, spec)
}

/// A device of three files: pages lie on all of them, go to another device and back, and holes are punched in each file.
#[test]
fn a_device_of_several_files() {
    several_files("several", "io_uring", |_, spec| ["--swap".into(), spec.into()]);
}

#[test]
fn a_device_of_several_files_by_a_configuration_file() {
    several_files("several-config", "psync", |dir, _| {
        let config = dir.join("config.toml");
        let places = NAMES.map(|name| dir.canonicalize().expect("it is there").join(name));
        fs::write(&config, format!("[[swap]]\nkind = \"file\"\npaths = {places:?}\nsize = \"1G\"\n")).expect("write");
        ["--config".into(), config.to_str().expect("UTF-8").into()]
    });
}

fn several_files(name: &str, engine: &str, options: fn(&Path, &str) -> [String; 2]) {
    if !able() || !is_root() {
        return;
    }
    let dir = place(name);
    let (places, spec) = three_files(&dir);
    let options = options(&dir, &spec);
    let options = ["--memory", "16M", "--engine", engine, &options[0], &options[1]];
    // more than two chunks, so that the third file has some pages, too
    let mut pages = Pages::start(&dir, name, 160, &options, "");
    let device = pages.json("swaps");
    let first = |name: &str| device[name].as_u64().expect("a figure");
    assert_eq!((&device["device"], first("files"), first("size_bytes")), (&places[0].as_str().into(), 3, 1 << 30), "{device}");
    let on_disk = |pages: &Pages| {
        let file = |name| pages.file_in(name).expect("the pager has all of them open");
        NAMES.map(|name| fs::metadata(file(name)).expect("it is open").blocks() * 512)
    };
    assert!(on_disk(&pages).iter().all(|bytes| *bytes >= 4 * MIB), "{:?}", on_disk(&pages));
    let full: u64 = on_disk(&pages).iter().sum();
    pages.ask("free");
    await_fall(full / 4, || on_disk(&pages).iter().sum());
    pages.ask("fill");

    let ask = |pages: &Pages, arguments: &[&str]| {
        let output = Command::new(overspill()).args([arguments[0], &pages.name]).args(&arguments[1..]).output();
        let output = output.expect("overspill runs");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(ask(&pages, &["swaps"]).contains("swap + 2 more"));
    // swapoff, and then to a device that comes over the socket
    let other = dir.join("other");
    fs::create_dir_all(&other).expect("temp dir");
    let other = other.to_str().expect("UTF-8");
    ask(&pages, &["swapon", other]);
    assert!(ask(&pages, &["swapoff", &spec]).contains(" reads of "));
    assert!(NAMES.iter().all(|name| pages.file_in(name).is_none()), "all of its files are closed");
    ask(&pages, &["swapon", &spec]);
    ask(&pages, &["swapoff", other]);
    assert_eq!(pages.json("swaps")["files"], 3);
    pages.end();
    for name in NAMES {
        assert_eq!(fs::read_dir(dir.join(name)).expect("dir").count(), 0, "a swap file is left");
    }
    fs::remove_dir_all(&dir).expect("cleanup");
}

/// The child reads all of its parent's files, and has three of its own.
#[test]
fn a_forked_child_reads_several_files() {
    if !able() || !is_root() {
        return;
    }
    let dir = place("several-forked");
    let (_, spec) = three_files(&dir);
    let mut pages = Pages::start(&dir, "several-forked", 160, &["--memory", "16M", "--swap", &spec], "");
    pages.ask("fork");
    pages.end();
    assert!(NAMES.iter().all(|name| fs::read_dir(dir.join(name)).expect("dir").count() == 0), "a swap file is left");
    fs::remove_dir_all(&dir).expect("cleanup");
}

/// If one of the files cannot be made, a message names it, and nothing is left.
#[test]
fn a_device_of_several_files_of_which_one_cannot_be_had() {
    if !able() {
        return;
    }
    let dir = place("several-refused");
    let (places, _) = three_files(&dir);
    for (spec, word) in [
        (format!("file:{},path={}/no/such", places[0], places[1]), "/b/no does not exist"),
        (format!("file:{},path={}", places[0], places[0]), "twice"),
        (format!("block:/dev/null,path={}", places[0]), "/dev/null: this is not a block device"),
    ] {
        let output = Command::new(overspill()).args(["run", "--memory", "16M", "--swap", &spec, "true"]).output();
        let output = output.expect("overspill runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), text.lines().count()), (Some(125), 1), "{text}");
        assert!(text.contains(word), "{word:?} in {text}");
    }
    assert_eq!(fs::read_dir(dir.join("swap")).expect("dir").count(), 0, "a swap file is left");
    fs::remove_dir_all(&dir).expect("cleanup");
}

/// A directory on a tmpfs, removed when dropped; `None` if this machine has none at /dev/shm.
struct Shared(PathBuf);

impl Shared {
    fn new(test: &str) -> Option<Shared> {
        let dir = Path::new("/dev/shm").join(unique(&format!("overspill-{test}")));
        fs::create_dir(&dir).ok()?;
        let shared = Shared(dir);
        let kind = Command::new("stat").args(["-f", "-c", "%T"]).arg(&shared.0).output().ok()?;
        (kind.stdout == b"tmpfs\n").then_some(shared)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// A file system that does not say where its extents lie (FIEMAP is refused) is used all the same, in one piece per chunk, and
/// `swaps` says so. There is one warning about the tmpfs.
#[test]
fn a_tmpfs_cannot_be_aligned_and_is_used() {
    if !able() {
        return;
    }
    let Some(shared) = Shared::new("align") else { return println!("not run: /dev/shm is no tmpfs") };
    let dir = place("tmpfs");
    let spec = format!("file:{},align=extents", shared.0.display());
    let mut pages = Pages::start(&dir, "tmpfs", 100, &["--memory", "16M", "--swap", &spec], "");
    let device = pages.json("swaps");
    assert_eq!((&device["aligned"], &device["align_refused"], &device["state"]), (&0.into(), &1.into(), &"on".into()), "{device}");
    let table = Command::new(overspill()).args(["swaps", &pages.name]).output().expect("overspill runs");
    assert!(String::from_utf8_lossy(&table.stdout).contains("on, cannot be aligned here"), "{table:?}");
    pages.ask("check");
    pages.end();
    fs::remove_dir_all(&dir).expect("cleanup");
}

/// A memory control group without kernel swap, removed when dropped; `None` if this user may not make one.
struct Group(PathBuf);

impl Group {
    fn new(test: &str, limit: u64) -> Option<Group> {
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let (root, files) = match v1.is_dir() {
            true => (v1, [("memory.limit_in_bytes", limit), ("memory.memsw.limit_in_bytes", limit)]),
            false => (Path::new("/sys/fs/cgroup"), [("memory.max", limit), ("memory.swap.max", 0)]),
        };
        let dir = root.join(unique(&format!("overspill-{test}")));
        fs::create_dir(&dir).ok()?;
        let group = Group(dir);
        fs::write(group.0.join(files[0].0), files[0].1.to_string()).ok()?;
        let _ = fs::write(group.0.join(files[1].0), files[1].1.to_string()); // a kernel without swap accounting has none
        Some(group)
    }
    fn processes(&self) -> String {
        fs::read_to_string(self.0.join("cgroup.procs")).expect("it is there")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let start = Instant::now();
        while fs::remove_dir(&self.0).is_err() && start.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Swap on a tmpfs is memory, so a write may need memory when there is none. The program ends all the same: with its result if
/// memory is just enough; by the kernel's out-of-memory killer if the control group has too little; with a message if the tmpfs
/// itself is too small. (docs/decisions/0026 says why it cannot deadlock.)
#[test]
fn a_tmpfs_with_memory_short_comes_to_an_end() {
    if !able() {
        return;
    }
    let (Some(shared), true) = (Shared::new("short"), is_root()) else { return println!("not run: no tmpfs, or not root") };
    let dir = place("tmpfs-short");
    let program = build(&dir, "pages.c");
    let run = |mib: &str, group: Option<&Group>, mount: &str, swap: &Path| {
        let join = group.map_or(String::new(), |group| format!("echo $$ > {}/cgroup.procs && ", group.0.display()));
        let script = format!("{join}{mount}exec \"$@\" </dev/null");
        let mut command = patiently("unshare");
        command.args(["-m", "sh", "-ec", &script, "sh"]).arg(overspill());
        command.args(["run", "--memory", "16M", "--swap"]).arg(swap).arg("--").arg(&program).arg(mib);
        let start = Instant::now();
        let output = command.output().expect("timeout runs");
        assert!(start.elapsed() < PATIENCE, "it does not end: {output:?}");
        output
    };
    let limit = |mib| Group::new("short", mib * MIB);
    let Some(group) = limit(16 + 48 + 192) else { return println!("not run: no control group can be had") };
    let output = run("64", Some(&group), "", &shared.0);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"fill\n"[..]), "{output:?}");
    drop(group);

    let group = limit(96).expect("there was one");
    let output = run("300", Some(&group), "", &shared.0);
    // the kernel killed the program or `overspill run`
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    let start = Instant::now();
    while !group.processes().is_empty() {
        assert!(start.elapsed() < PATIENCE, "left behind: {}", group.processes());
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(group);

    let own = dir.join("own");
    fs::create_dir(&own).expect("temp dir");
    let mount = format!("mount -t tmpfs -o size=24M overspill {} && ", own.display());
    let output = run("100", None, &mount, &own);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(text.contains("swap") && text.contains("full") && output.stdout.is_empty(), "{text}");

    // it was full for a while: the program was stopped although there was room again at the last attempt
    let (own, filler) = (own.display(), own.join("filler").display().to_string());
    let mount = format!(
        "mount -t tmpfs -o size=120M overspill {own} && head -c 100M /dev/zero > {filler} && {{ (sleep 1; rm {filler}) & }} && "
    );
    let output = run("100", None, &mount, &dir.join("own"));
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"fill\n"[..]), "{output:?}");
    fs::remove_dir_all(&dir).expect("cleanup");
}

/// Reads that fail once are tried again, also in a swapoff, and then page by page. (A run with one bad page lost all of its pages.)
#[test]
fn a_swapoff_loses_only_what_cannot_be_read() {
    if !able() {
        return;
    }
    let dir = place("bad-page");
    let (swap, other) = (swap(&dir), dir.join("other"));
    fs::create_dir_all(&other).expect("temp dir");
    for engine in ["io_uring", "psync"] {
        for (inject, lost) in [("read_every=2", 0), ("bad_page=1000", 1)] {
            let options = ["--memory", "16M", "--engine", engine, "--swap", &swap];
            let mut pages = Pages::start(&dir, "bad-page", 40, &options, inject);
            let ask = |verb: &str, place: &str| {
                let output = Command::new(overspill()).args([verb, &pages.name, place]).output().expect("overspill runs");
                let said = String::from_utf8_lossy(&output.stderr);
                let loses = verb == "swapoff" && lost > 0; // regression: the loss was not reported
                assert_eq!(output.status.code(), Some(if loses { 2 } else { 0 }), "{engine}, {inject}: {output:?}");
                assert_eq!(said.contains("4.00 KiB on it could not be read"), loses, "{engine}, {inject}: {said}");
            };
            ask("swapon", &format!("file:{},prio=-9", other.display()));
            ask("swapoff", &swap);
            let stat = pages.json("stat");
            assert_eq!((&stat["read_errors"], &stat["corrupt_pages"]), (&lost.into(), &0.into()), "{engine}, {inject}: {stat}");
            assert_eq!(stat["first_loss"].as_str().expect("a text").contains("from byte 4091904 of"), lost > 0, "{stat}");
            if lost == 0 {
                pages.end();
            } else {
                // the touch of the lost page is SIGBUS
                writeln!(pages.stdin.as_mut().expect("it runs"), "check").expect("it reads");
                assert_eq!(pages.child.wait().expect("wait").code(), Some(128 + 7));
            }
        }
    }
    fs::remove_dir_all(&dir).expect("cleanup");
}

/// A device that takes no more writes is emptied unasked while reads still succeed, and nothing is lost.
#[test]
fn a_failing_device_is_emptied() {
    if !able() {
        return;
    }
    let dir = place("failed-device");
    let (swap, other) = (swap(&dir), dir.join("other"));
    fs::create_dir_all(&other).expect("temp dir");
    for engine in ["io_uring", "psync"] {
        let (first, second) = (format!("file:{swap},prio=9"), format!("file:{},prio=1", other.display()));
        let options = ["--memory", "16M", "--engine", engine, "--swap", &first, "--swap", &second];
        let mut pages = Pages::start(&dir, "failed-device", 40, &options, "write=40,write_device=1");
        let swaps = |pages: &Pages| {
            let output = Command::new(overspill()).args(["swaps", &pages.name, "--json"]).output().expect("overspill runs");
            String::from_utf8(output.stdout).expect("UTF-8")
        };
        let until = Instant::now() + PATIENCE;
        while swaps(&pages).lines().count() > 1 {
            pages.ask("check");
            assert!(Instant::now() < until, "{engine}: {}", swaps(&pages));
        }
        let (stat, left) = (pages.json("stat"), swaps(&pages));
        assert!(stat["write_errors"].as_u64() > Some(0), "{engine}: {stat}");
        assert_eq!(stat["read_errors"], 0, "{engine}: {stat}");
        assert!(left.contains(other.to_str().expect("UTF-8")), "{engine}: {left}");
        pages.end();
    }
    fs::remove_dir_all(&dir).expect("cleanup");
}

/// While a device that could not be read was emptied unasked, a user could remove no other one: "another swapoff is under way".
#[test]
fn a_user_comes_before_a_failing_device() {
    if !able() {
        return;
    }
    let dir = place("user-first");
    let [first, second, third] = ["first", "second", "third"].map(|name| dir.join(name));
    for place in [&first, &second, &third] {
        fs::create_dir_all(place).expect("temp dir");
    }
    let swap = [(&first, 9), (&second, 1), (&third, 0)].map(|(place, prio)| format!("file:{},prio={prio}", place.display()));
    let options = ["--memory", "16M", "--swap", &swap[0], "--swap", &swap[1], "--swap", &swap[2]];
    let mut pages = Pages::start(&dir, "user-first", 40, &options, "read=1");
    writeln!(pages.stdin.as_mut().expect("it runs"), "check").expect("it reads");
    let ask = |verb: &str, words: &[&str]| {
        let output = Command::new(overspill()).args([verb, &pages.name]).args(words).output().expect("overspill runs");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let until = Instant::now() + PATIENCE;
    while !ask("swaps", &[]).1.contains("leaving") {
        assert!(Instant::now() < until, "no swapoff has begun: {:?}", ask("swaps", &[]));
    }
    assert_eq!(ask("swapoff", &[third.to_str().expect("UTF-8")]).0, Some(0));
    assert_eq!(pages.child.wait().expect("wait").code(), Some(128 + 7), "it has waited for its page");
    fs::remove_dir_all(&dir).expect("cleanup");
}

/// A page that comes back damaged counts as a failure of its device, like one that does not come back. A device that fails
/// repeatedly is emptied, and its good pages are saved.
#[test]
fn damaged_pages_count_against_their_device() {
    if !able() {
        return;
    }
    let dir = place("damaged");
    let (swap, other) = (swap(&dir), dir.join("other"));
    fs::create_dir_all(&other).expect("temp dir");
    let (first, second) = (format!("file:{swap},prio=9"), format!("file:{},prio=1", other.display()));
    let options = ["--memory", "16M", "--swap", &first, "--swap", &second];
    let mut pages = Pages::start(&dir, "damaged", 64, &options, "flip=200");
    // the touch of the first lost page ends the program, but readahead and this swapoff read many more
    let output = Command::new(overspill()).args(["swapoff", &pages.name, &swap]).output().expect("overspill runs");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("could not be read and are lost"), "{output:?}");
    assert!(pages.json("stat")["corrupt_pages"].as_u64() > Some(0));
    writeln!(pages.stdin.as_mut().expect("it runs"), "check").expect("it reads");
    assert_eq!(pages.child.wait().expect("wait").code(), Some(128 + 7));
    fs::remove_dir_all(&dir).expect("cleanup");
}

/// Commands did not work on forked children: their status block was not sealed, and readers require that.
#[test]
fn a_forked_child_has_devices_of_its_own() {
    if !able() {
        return;
    }
    let dir = place("forked");
    let (swap, other) = (swap(&dir), dir.join("other"));
    fs::create_dir_all(&other).expect("temp dir");
    let mut pages = Pages::start(&dir, "forked", 64, &["--memory", "16M", "--swap", &swap], "");
    let parent = pages.json("stat")["pid"].as_u64().expect("a process id");
    pages.ask("fork");
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).expect("it runs");
    let child = children.trim();
    let ask = |words: &[&str]| Command::new(overspill()).args(words).output().expect("overspill runs");
    let start = Instant::now();
    let swaps = loop {
        let output = ask(&["swaps", child, "--json"]);
        if output.status.success() {
            break String::from_utf8(output.stdout).expect("UTF-8");
        }
        assert!(start.elapsed() < PATIENCE, "{output:?}");
        std::thread::sleep(Duration::from_millis(50));
    };
    let states: Vec<_> =
        swaps.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).expect("JSON")["state"].clone()).collect();
    assert!(states.contains(&"inherited".into()) && states.contains(&"on".into()), "{swaps}");
    // inherited pages can also be moved off the parent's device, and the child's own device can go
    let other = other.to_str().expect("UTF-8");
    for words in [["swapon", child, other], ["swapoff", child, &swap], ["swapoff", child, &swap]] {
        let output = ask(&words);
        assert!(output.status.success(), "{words:?}: {output:?}");
    }
    pages.end();
    fs::remove_dir_all(&dir).expect("cleanup");
}

/// Each process makes a swap file of its own, and takes its name away at once. Two that started at the same moment and were given
/// one name collided, and one of them ran without paging.
#[test]
fn programs_that_start_at_once_share_a_name() {
    if !able() {
        return;
    }
    let dir = place("one-name");
    let file = swap_option(&dir, "/file");
    let starts = "for k in 1 2 3 4 5 6; do (for i in $(seq 30); do /bin/true; done) & done; wait";
    let options = ["--memory", "64M", "--no-compress", "--swap", &file];
    let r = run(&dir, &options, None, "/bin/sh".as_ref(), &["-c", starts]);
    assert_eq!((r.output.status.code(), r.stderr()), (Some(0), String::new()));
    no_swap_file_left(&dir);
    fs::remove_dir_all(&dir).expect("cleanup");
}

//! The lab's commands as users call them: results on strings that can be counted by hand, and mistakes that users can make.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const OVERSPILL: &str = env!("CARGO_BIN_EXE_overspill");

/// A directory of its own, removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("overspill-lab-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }
    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }
    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn overspill(arguments: &[&str]) -> Output {
    Command::new(OVERSPILL).args(arguments).output().unwrap()
}

fn texts(output: &Output) -> (String, String) {
    (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[track_caller]
fn succeeds(arguments: &[&str]) -> (String, String) {
    let output = overspill(arguments);
    let (stdout, stderr) = texts(&output);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    (stdout, stderr)
}

/// Asserts this exit status, nothing on standard output, and an error with all these words.
#[track_caller]
fn refused(arguments: &[&str], status: i32, words: &[&str]) {
    let output = overspill(arguments);
    let (stdout, stderr) = texts(&output);
    assert_eq!(output.status.code(), Some(status), "{stderr}");
    assert!(stdout.is_empty(), "{stdout}");
    let error = stderr.lines().filter(|line| !line.contains("guessed")).collect::<Vec<_>>().join("\n");
    for word in words {
        assert!(error.contains(word), "{word:?} in {error}");
    }
    // Our own errors are one line; usage errors come from the option parser, with a hint.
    assert!(status == 125 || (error.lines().count() == 1 && error.starts_with("overspill: ")), "{error}");
}

/// A loop over three pages, five times; the third page is written.
fn loop_of_three() -> String {
    "1 r\n2 r\n3 w\n".repeat(5)
}

fn json_lines(text: &str) -> Vec<serde_json::Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

#[test]
fn json_has_the_fields_of_the_reference_counts() {
    let dir = Dir::new("json");
    let trace = dir.file("loop.txt", loop_of_three());
    let (stdout, stderr) =
        succeeds(&["sim", "--trace", &trace, "--policy", "lru", "--policy", "opt", "--memory", "2,3", "--format", "json"]);
    assert!(stderr.contains("format lines, guessed by its content"), "{stderr}");
    let rows = json_lines(&stdout);
    assert_eq!(rows.len(), 4);
    // LRU always misses in a loop that is one page too large; MIN hits every second time, except in the first round. Of the five
    // times that page 3 is written, the last stays in memory.
    for (row, (policy, memory, faults, written)) in
        rows.iter().zip([("lru", 2, 15, Some(4)), ("lru", 3, 3, Some(0)), ("opt", 2, 9, None), ("opt", 3, 3, Some(0))])
    {
        assert_eq!(row["trace"], trace.as_str());
        assert_eq!((&row["policy"], &row["memory_pages"]), (&policy.into(), &memory.into()));
        assert_eq!((&row["references"], &row["unique_pages"], &row["cold_faults"]), (&15.into(), &3.into(), &3.into()));
        assert_eq!(row["faults"], faults, "{row}");
        if let Some(written) = written {
            assert_eq!(row["pages_written"], written, "{row}");
        }
        assert!(row["seconds"].as_f64().unwrap() >= 0.0);
    }
}

#[test]
fn csv_and_tables_say_the_same() {
    let dir = Dir::new("csv");
    let trace = dir.file("loop.txt", loop_of_three());
    let (csv, _) =
        succeeds(&["sim", "-t", &trace, &trace, "-p", "lru", "fifo", "-m", "2,3", "--format", "csv", "--trace-format", "lines"]);
    let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines[0][..6], ["trace", "policy", "memory_pages", "references", "unique_pages", "faults"]);
    assert_eq!(lines.len(), 1 + 2 * 4, "one line of names");
    assert!(lines.iter().all(|line| line.len() == lines[0].len()));
    assert_eq!(lines[1][1..7], ["lru", "2", "15", "3", "15", "3"]);
    let (table, stderr) = succeeds(&["sim", "-t", &trace, "-p", "lru", "-m", "2,3", "--trace-format", "lines"]);
    assert!(table.contains("15 100.00%") && table.contains("3 20.00%"), "{table}");
    assert!(stderr.is_empty(), "a format that was named is not told: {stderr}");
    // Many sizes go down the page.
    let (table, _) = succeeds(&["sim", "-t", &trace, "-p", "lru", "-m", "1,2,3,4,5,6,7,8"]);
    assert!(table.lines().any(|line| line.trim_start().starts_with("memory")), "{table}");
}

#[test]
fn all_policies_and_sizes_in_bytes() {
    let dir = Dir::new("all");
    let trace = dir.file("loop.txt", loop_of_three());
    let (stdout, _) = succeeds(&["sim", "-t", &trace, "-p", "all", "-m", "8K:12K:2", "--format", "json"]);
    let rows = json_lines(&stdout);
    assert!(rows.len() >= 2 * 8 && rows.iter().any(|row| row["policy"] == "opt"));
    assert!(rows.iter().all(|row| row["memory_pages"] == 2 || row["faults"] == 3), "{stdout}");
    let (stdout, _) = succeeds(&["sim", "-t", &trace, "-p", "lru", "-m", "8K", "--page-size", "8K", "--format", "json"]);
    assert_eq!(json_lines(&stdout)[0]["memory_pages"], 1);
}

#[test]
fn pictures() {
    let dir = Dir::new("plot");
    let trace = dir.file("loop.txt", loop_of_three());
    for (name, magic) in [("curves.svg", &b"<svg "[..]), ("curves.png", b"\x89PNG")] {
        let file = dir.path(name);
        succeeds(&["sim", "-t", &trace, "-p", "lru", "opt", "-m", "1:3:3", "--plot", &file]);
        assert!(fs::read(&file).unwrap().starts_with(magic), "{name}");
    }
    refused(&["sim", "-t", &trace, "-p", "lru", "-m", "1", "--plot", "x.pdf"], 125, &[".svg or .png"]);
    let output = overspill(&["sim", "-t", &trace, "-p", "lru", "-m", "1", "--plot", "/nonexistent/x.svg"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(texts(&output).1.contains("/nonexistent/x.svg cannot be written"), "{output:?}");
}

#[test]
fn predicted_times() {
    let dir = Dir::new("cost");
    let trace = dir.file("loop.txt", loop_of_three());
    let model = "ssd:fault=0,soft=0,latency=1000000,page=0,cluster=1,run=2";
    let (stdout, _) = succeeds(&["sim", "-t", &trace, "-p", "lru", "-m", "2,3", "--format", "json", "--cost-model", model]);
    let seconds: Vec<f64> = json_lines(&stdout).iter().map(|row| row["predicted_seconds"].as_f64().unwrap()).collect();
    assert_eq!(seconds, [17.0, 5.0], "15 and 3 reads of a second, and 2 s of its own");
    let (table, _) = succeeds(&["sim", "-t", &trace, "-p", "lru", "-m", "2,3", "--cost-model", model]);
    assert!(table.contains("predicted run time") && table.contains("17.000"), "{table}");
    refused(&["sim", "-t", &trace, "-p", "lru", "-m", "1", "--cost-model", "tape"], 125, &["only ssd and disk"]);
    refused(&["sim", "-t", &trace, "-p", "lru", "-m", "1", "--cost-model", "ssd:warp=9"], 125, &["no \"warp\"", "latency"]);
}

/// Pages 0 to 49999, small numbers much more often than large ones, from a generator with a fixed seed.
fn skewed() -> String {
    let mut state = 12345u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as f64 / f64::from(1u32 << 31)
    };
    (0..300_000).map(|_| format!("{}\n", (next().powi(3) * 50_000.0) as u64)).collect()
}

/// A loop over 100 pages, under LRU: memory of 80 misses always. With a quarter of it compressed at three to one, 60 and 60 pages
/// are held. So every page-in is served from compressed memory. At two to one it is the loop of a memory of 100: it just fits.
#[test]
fn compressed_memory_serves_what_both_would_hold() {
    let dir = Dir::new("tier");
    let pages: String = (0..1000).map(|n| format!("{}\n", n % 100)).collect();
    let trace = dir.file("loop.txt", pages);
    let counts = |tier: &str| {
        let tier = ["--compressed", tier];
        let line = [&["sim", "-t", &trace, "-p", "lru", "-m", "80", "--format", "json"][..], &tier].concat();
        let json = &json_lines(&succeeds(&line).0)[0];
        (json["faults"].as_u64().unwrap(), json["pool_hits"].as_u64().unwrap())
    };
    assert_eq!(counts("25%:3"), (1000, 900));
    assert_eq!(counts("25%:2"), (1000, 900));
    assert_eq!(counts("25%:1.9"), (1000, 0), "98 pages are not enough for a loop of 100");
    let (table, _) = succeeds(&["sim", "-t", &trace, "-p", "lru", "-m", "80", "--compressed", "25%:3"]);
    assert!(table.contains("served from compressed memory"), "{table}");
    let (csv, _) = succeeds(&["sim", "-t", &trace, "-p", "lru", "-m", "80", "--compressed", "25%:3", "--format", "csv"]);
    assert!(csv.lines().next().unwrap().ends_with(",seconds,pool_hits") && csv.trim_end().ends_with(",900"), "{csv}");
    for (tier, why) in [("25", "no SHARE:RATIO"), ("0%:2", "not between"), ("25%:1", "not above 1"), ("25%:x", "not above 1")] {
        refused(&["sim", "-t", &trace, "-p", "lru", "-m", "80", "--compressed", tier], 125, &["--compressed", why]);
    }
    let line = ["sim", "-t", &trace, "-p", "lru", "-m", "3000", "--see", "faults", "--compressed", "25%:2"];
    refused(&line, 125, &["--compressed"]);
}

#[test]
fn a_sample_is_within_its_margin() {
    let dir = Dir::new("sample");
    let trace = dir.file("skewed.txt", skewed());
    let faults = |more: &[&str]| {
        let arguments = [&["sim", "-t", &trace, "-p", "lru", "arc", "-m", "2000,5000,10000", "--format", "json"], more].concat();
        json_lines(&succeeds(&arguments).0)
    };
    let (exact, sampled) = (faults(&[]), faults(&["--sample", "0.1"]));
    for (exact, sampled) in exact.iter().zip(&sampled) {
        let (truth, estimate) = (exact["faults"].as_f64().unwrap(), sampled["faults"].as_f64().unwrap());
        let margin = sampled["faults_margin_95"].as_f64().unwrap();
        assert!((truth - estimate).abs() <= margin, "{exact} {sampled}");
        assert!(margin < 0.2 * truth, "a margin that says something: {sampled}");
        assert_eq!((&sampled["references"], &sampled["sample"]), (&exact["references"], &0.1.into()));
    }
    let (csv, _) = succeeds(&["sim", "-t", &trace, "-p", "lru", "-m", "5000", "--format", "csv", "--sample", "0.1"]);
    let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines[0][9..], ["sample", "faults_margin_95"], "as in JSON");
    assert_eq!((lines[1].len(), lines[1][9]), (11, "0.1"));
    refused(&["sim", "-t", &trace, "-p", "lru", "-m", "100", "--sample", "0.1"], 125, &["too small", "from 800 pages"]);
    let few = dir.file("few.txt", "1\n2\n3\n"); // of an empty sample it said "no faults", and was certain
    refused(&["sim", "-t", &few, "-p", "lru", "-m", "1000000", "--sample", "0.001"], 125, &["too few", "larger share"]);
    for rate in ["0", "1", "2", "x"] {
        refused(&["sim", "-t", &trace, "-p", "lru", "-m", "100", "--sample", rate], 125, &["above 0 and below 1"]);
    }
}

#[test]
fn policies_and_sizes_that_are_not_there() {
    let dir = Dir::new("names");
    let trace = dir.file("loop.txt", loop_of_three());
    let sim = |policy: &str, memory: &str, words: &[&str]| refused(&["sim", "-t", &trace, "-p", policy, "-m", memory], 125, words);
    sim("best", "2", &["--policy best", "no replacement policy \"best\"", "use-once", "cost, opt, or all"]);
    sim("lru:depth=3", "2", &["depth"]);
    sim("2q:kin=7", "2", &["kin"]);
    // A message said that there is no policy "opt", and after every mistake in a parameter that there is "all", too.
    sim("opt:x=1", "2", &["--policy opt:x=1: policy opt has no parameters, so \"x\" cannot be set"]);
    let (_, stderr) = texts(&overspill(&["sim", "-t", &trace, "-p", "2q:kin=7", "-m", "2"]));
    assert!(!stderr.contains("or all"), "{stderr}");
    sim("lru", "0", &["no pages"]);
    sim("lru", "many", &["--memory", "is not a size"]);
    sim("lru", "5:3:4", &["lower end comes first"]);
    sim("lru", "3:5", &["LOW:HIGH:STEPS"]);
    sim("lru", "1K", &["less than a page of 4096 bytes"]);
    refused(&["sim", "-t", &trace, "-m", "2"], 125, &["--policy"]);
    refused(&["sim", "-p", "lru", "-m", "2"], 125, &["--trace"]);
    refused(&["sim", "-t", &trace, "-p", "lru", "-m", "2", "--trace-format", "tape"], 125, &["not a trace format", "lackey"]);
    refused(&["sim", "-t", &trace, "-p", "lru", "-m", "2", "--page-size", "3000"], 125, &["power of two"]);
}

#[test]
fn traces_that_cannot_be_read() {
    let dir = Dir::new("broken");
    let sim = |file: &str, words: &[&str]| {
        refused(&["sim", "-t", file, "-p", "lru", "-m", "2"], 1, words);
        refused(&["advise", "-t", file], 1, words);
        refused(&["trace", "info", file], 1, words);
    };
    sim(&dir.path("missing"), &["missing", "there is no such file"]);
    sim(dir.0.to_str().unwrap(), &["is a directory"]);
    sim(&dir.file("empty", ""), &["the file is empty"]);
    sim(&dir.file("comment.lines", "# nothing\n"), &["comment.lines"]);
    sim(&dir.file("letter", "Dear Sir or Madam,\n"), &["no format that is known", "--trace-format"]);
    sim(&dir.file("wrong", "1\n2\nthree\n"), &["line 3 (read as lines)", "\"three\" is not a page number"]);
    sim(&dir.file("binary", [1, 0, 0, 0, 7, 0, 0, 0]), &["binary", "u32le", "--trace-format"]);
    let gzip: [u8; 12] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 1, 2];
    sim(&dir.file("cut.gz", gzip), &["gzip", "byte 0"]);
    let broken = dir.file("u32", [1, 0, 0, 0, 7]);
    refused(&["trace", "info", &broken, "--trace-format", "u32le"], 1, &["byte 4 (read as u32le)", "cut short"]);
}

#[test]
fn what_is_in_a_trace() {
    let dir = Dir::new("info");
    let trace = dir.file("loop.txt", loop_of_three());
    let (stdout, stderr) = succeeds(&["trace", "info", &trace]);
    for words in ["lines, not packed", "references        15", "3, 12.0 KiB", "writes            5 (33.3%)"] {
        assert!(stdout.contains(words), "{words:?} in {stdout}");
    }
    assert!(stderr.contains("guessed"), "{stderr}");
    let (stdout, _) = succeeds(&["trace", "info", "--json", &trace, &trace]);
    let about = json_lines(&stdout);
    assert_eq!(about.len(), 2);
    assert_eq!((&about[0]["references"], &about[0]["unique_pages"], &about[0]["writes"]), (&15.into(), &3.into(), &5.into()));
}

/// The names of files in a trace are whatever the recorded program opened, and were written to the terminal as they are. A trace
/// from elsewhere could so set the terminal's title, or hide a line.
#[test]
fn names_in_a_trace_reach_the_terminal_without_control_characters() {
    let dir = Dir::new("names");
    let path = r"/tmp/\33]0;title\7\nx";
    let trace =
        dir.file("a\x1b[31m.strace", format!("1 openat(AT_FDCWD, \"{path}\", O_RDONLY) = 3\n1 read(3, \"\", 4096) = 4096\n"));
    for arguments in
        [&["trace", "info", &trace][..], &["advise", "--trace", &trace], &["sim", "-p", "lru", "-m", "1", "-t", &trace]]
    {
        let (stdout, stderr) = succeeds(arguments);
        assert!(!(stdout + &stderr).contains(|c: char| c.is_control() && c != '\n'), "{arguments:?}");
    }
    let (stdout, _) = succeeds(&["trace", "info", &trace]);
    assert!(stdout.ends_with("/tmp/\\u{1b}]0;title\\u{7}\\nx\n"), "{stdout}");
}

#[test]
fn conversion_there_and_back() {
    let dir = Dir::new("convert");
    let trace = dir.file("loop.txt", loop_of_three());
    let mut last = trace.clone();
    for name in ["a.ovt", "b.ovt.zst", "c.lines.gz", "d.ovt.xz", "e.txt"] {
        let next = dir.path(name);
        succeeds(&["trace", "convert", &last, &next]);
        last = next;
    }
    assert_eq!(fs::read_to_string(&last).unwrap(), loop_of_three());
    let forced = dir.path("forced.dat");
    succeeds(&["trace", "convert", "--to", "lines", &trace, &forced]);
    assert_eq!(fs::read_to_string(&forced).unwrap(), loop_of_three());

    refused(&["trace", "convert", &trace, &last], 1, &["exists already", "overwrites nothing"]);
    assert_eq!(fs::read_to_string(&last).unwrap(), loop_of_three());
    refused(&["trace", "convert", &trace, "/nonexistent/x.ovt"], 1, &["/nonexistent/x.ovt cannot be written"]);
    refused(&["trace", "convert", "--to", "arc", &trace, "x"], 125, &["overspill", "lines"]);
    let broken = dir.file("broken", "1\nx\n");
    let never = dir.path("never.ovt");
    refused(&["trace", "convert", &broken, &never], 1, &["line 2"]);
    assert!(!Path::new(&never).exists(), "nothing half done is left behind");
}

#[test]
fn advice() {
    let dir = Dir::new("advise");
    // 1000 pages again and again, among pages that are used once: at 1000 pages and a few the page-ins fall away.
    let text: String = (0..200_000u64).map(|n| format!("{}\n", if n % 4 == 0 { 10_000 + n } else { n * 7 % 1000 })).collect();
    let trace = dir.file("scan.txt", text);
    let (stdout, _) = succeeds(&["advise", "--trace", &trace, "--policy", "lru", "fifo"]);
    for words in ["Policy: lru", "Memory: ", "One step less", "page-ins more", "Knees of the curve", "<- advised", "opt"] {
        assert!(stdout.contains(words), "{words:?} in {stdout}");
    }
    refused(&["advise", "--trace", &trace, "--policy", "opt"], 125, &["knows the future"]);
    refused(&["advise", "--trace", &trace, "--policy", "best"], 125, &["no replacement policy"]);
}

/// Under lru a loop fits as a whole or not at all. The advice was that half a per cent of it was enough memory, and that the curve
/// had no knee, because only steps with another after them counted.
#[test]
fn a_loop_is_advised_to_fit() {
    let dir = Dir::new("advise-loop");
    let trace = dir.file("loop.txt", (0..1011u32).map(|page| format!("{page}\n")).collect::<String>().repeat(100));
    let (stdout, _) = succeeds(&["advise", "--trace", &trace, "--policy", "lru"]);
    for words in [
        "Memory: 3.95 MiB (1011 pages)",
        "Knees of the curve: 3.95 MiB (1011 pages).",
        "costs 100089 page-ins more",
        "saves nothing",
    ] {
        assert!(stdout.contains(words), "{words:?} in {stdout}");
    }
    let (stdout, _) = succeeds(&["advise", "--trace", &trace]);
    assert!(stdout.contains("Memory: 3.95 MiB (1011 pages)"), "{stdout}");
}

/// A trace that the pager recorded is replayed as the pager would see it. No memory below the least of `overspill run` is advised,
/// and first touches, which are filled with zeroes, are not called reads.
#[test]
fn advice_on_a_recorded_program() {
    let dir = Dir::new("advise-recorded");
    let record = |name: &str, pages: u64| {
        let mut trace = overspill_trace::Writer::new(Vec::new(), 4096, true).unwrap();
        for n in 0..20_000 {
            let kind = if n < pages { overspill_trace::Kind::FirstTouch } else { overspill_trace::Kind::HardFault };
            trace.event(0x5000 + n % pages, true, kind).unwrap();
        }
        dir.file(name, trace.finish().unwrap())
    };
    let (small, large) = (record("small.ovt", 500), record("large.ovt", 5000));
    let (stdout, _) = succeeds(&["advise", "--trace", &small]);
    for words in ["500 first touches", "Memory: 8.00 MiB (2048 pages)", "0 hard faults", "the least that `overspill run` takes"] {
        assert!(stdout.contains(words), "{words:?} in {stdout}");
    }
    let (stdout, _) = succeeds(&["advise", "--trace", &large, "--policy", "lru", "2q", "--cost-model", "ssd:latency=1000000"]);
    for words in ["the best policy of each size", "2048 ", "first touches", "hard faults", "<- advised"] {
        assert!(stdout.contains(words), "{words:?} in {stdout}");
    }
    assert!(!stdout.contains("are read") && !stdout.contains("opt"), "{stdout}");
    // The figures are those of `sim --see faults` at the same size, times included.
    let sim = ["sim", "--trace", &large, "--policy", "lru", "--see", "faults", "--memory", "2048", "--format", "json"];
    let (json, _) = succeeds(&[&sim[..], &["--cost-model", "ssd:latency=1000000"]].concat());
    let row = json_lines(&json).remove(0);
    let (stdout, _) = succeeds(&["advise", "--trace", &large, "--policy", "lru", "--cost-model", "ssd:latency=1000000"]);
    let line = stdout.lines().find(|line| line.split_whitespace().nth(2) == Some("2048")).expect("a line of 2048 pages");
    let hard = row["faults"].as_u64().unwrap() - row["cold_faults"].as_u64().unwrap();
    let expected = [hard.to_string(), row["cold_faults"].to_string(), row["soft_faults"].to_string()];
    assert_eq!(line.split_whitespace().skip(3).take(3).collect::<Vec<_>>(), expected, "{row}");
    let seconds = format!("{:.2}", row["predicted_seconds"].as_f64().unwrap());
    assert_eq!(line.split_whitespace().nth(6), Some(&*seconds), "{row}");
}

/// First touches are not read, and pages of readahead are transferred: the core counts both.
#[test]
fn predicted_times_of_the_live_core() {
    let dir = Dir::new("cost-live");
    let trace = dir.file("large.txt", (0..4000).map(|page| format!("{page} w\n")).collect::<String>().repeat(2));
    let row = |trace: &str, model: &str| {
        let sim = ["sim", "-t", trace, "-p", "fifo", "-m", "3000", "--see", "faults", "--format", "json", "--cost-model", model];
        json_lines(&succeeds(&sim).0).remove(0)
    };
    for (key, count) in [("latency", "page_in_ops"), ("fault", "faults"), ("soft", "soft_faults")] {
        let free = "fault=0,soft=0,latency=0,page=0";
        let row = row(&trace, &format!("ssd:{free},{key}=1000000"));
        assert_eq!(row["predicted_seconds"].as_f64(), row[count].as_u64().map(|count| count as f64), "{key}: {row}");
    }
    let row = row(&trace, "ssd:fault=0,soft=0,latency=0,page=1000000");
    let moved = row["pages_in"].as_u64().unwrap() + row["pages_written"].as_u64().unwrap();
    assert_eq!(row["predicted_seconds"], moved as f64, "{row}");
    assert!(row["pages_in"].as_u64() > row["page_in_ops"].as_u64(), "windows of many pages: {row}");
}

/// The figures of the use-once thread, as far as docs/LAB.md says that they are met.
#[test]
fn a_build_beside_a_grep() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/traces/build_grep.ovt.zst");
    let (stdout, _) =
        succeeds(&["sim", "-t", trace, "-p", "aging", "use-once", "fifo", "-m", "1000,1500,4000", "--format", "json"]);
    let rows = json_lines(&stdout);
    assert!(rows.iter().all(|row| row["references"] == 1_161_310 && row["unique_pages"] == 177_082));
    let faults: Vec<f64> = rows.iter().map(|row| row["faults"].as_f64().unwrap()).collect();
    for size in 0..3 {
        let (aging, use_once, fifo) = (faults[size], faults[3 + size], faults[6 + size]);
        assert!(use_once <= 0.87 * aging, "at least 13 % fewer page reads: {faults:?}");
        assert!(fifo >= 1.25 * use_once, "much worse: {faults:?}");
    }
    assert!(faults[8] >= 1.55 * faults[5], "the source's 60 %, at 4000 pages: {faults:?}");
}

#[test]
fn a_reader_that_closes_the_pipe() {
    let dir = Dir::new("pipe");
    let trace = dir.file("loop.txt", loop_of_three());
    for command in [&["trace", "info", &trace][..], &["sim", "-t", &trace, "-p", "lru", "-m", "2"], &["advise", "-t", &trace]] {
        let mut child = Command::new(OVERSPILL).args(command).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        drop(child.stdout.take());
        assert_eq!(child.wait().unwrap().code(), Some(0), "{command:?}");
    }
}

/// Hours of work were lost, with status 0 and no message, when the disk under the output was full.
#[test]
fn output_that_cannot_be_written_is_an_error() {
    let dir = Dir::new("full");
    let trace = dir.file("loop.txt", loop_of_three());
    for command in
        [&["trace", "info", &trace][..], &["sim", "-t", &trace, "-p", "lru", "-m", "2"], &["advise", "-t", &trace], &["check"]]
    {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = Command::new(OVERSPILL).args(command).stdout(full).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.contains("standard output: No space left"), "{command:?}: {output:?}");
    }
}

#[test]
fn help_fits_the_terminal() {
    for command in [&["sim"][..], &["trace"], &["trace", "record"], &["trace", "info"], &["trace", "convert"], &["advise"]] {
        let (stdout, _) = succeeds(&[command, &["--help"]].concat());
        assert!(stdout.lines().all(|line| line.chars().count() <= 100), "{stdout}");
    }
}

/// The live pager sees a first touch of each page of a small program, and nothing of pages that stay mapped.
#[test]
fn see_faults_counts_what_the_live_pager_sees() {
    let dir = Dir::new("faults");
    let string = |pages: u32| (0..pages).map(|page| format!("{page} w\n")).collect::<String>().repeat(2);
    let small = dir.file("small.txt", string(1000));
    let large = dir.file("large.txt", string(4000));
    let sim = |trace: &str, more: &[&str]| {
        let arguments = ["sim", "--trace", trace, "--policy", "fifo", "--memory", "3000", "--format", "json"];
        json_lines(&succeeds(&[&arguments, more].concat()).0).remove(0)
    };
    let fits = sim(&small, &["--see", "faults", "--readahead", "off"]);
    assert_eq!((&fits["faults"], &fits["cold_faults"], &fits["soft_faults"]), (&1000.into(), &1000.into(), &0.into()));
    let not = sim(&large, &["--see", "faults", "--readahead", "off"]);
    assert_eq!(not["cold_faults"], 4000);
    assert_eq!(not["faults"].as_u64().unwrap() + not["soft_faults"].as_u64().unwrap(), 8000, "a loop that is too large: {not}");
    assert!(not["pages_written"].as_u64().unwrap() > 4000, "{not}");
    let ahead = sim(&large, &["--see", "faults"]);
    assert!(ahead["faults"].as_u64() < Some(2000), "windows of many pages: {ahead}");
    let all = sim(&large, &["--see", "all"]);
    assert_eq!((&all["faults"], &all["cold_faults"]), (&8000.into(), &4000.into()));
    assert!(all.get("soft_faults").is_none(), "{all}");
}

#[test]
fn see_faults_refuses_what_the_core_cannot_do() {
    let dir = Dir::new("faults-refused");
    let trace = dir.file("loop.txt", loop_of_three());
    let sim = ["sim", "--trace", &trace, "--see", "faults", "--memory"];
    refused(&[&sim[..], &["2000", "--policy", "lru"]].concat(), 125, &["2000 pages", "at least 2048"]);
    refused(&[&sim[..], &["3000", "--policy", "lru", "opt"]].concat(), 125, &["opt", "--see all"]);
    refused(&[&sim[..], &["3000", "--policy", "lru", "--sample", "0.5"]].concat(), 125, &["--sample"]);
    let (stdout, stderr) = succeeds(&[&sim[..], &["3000", "--policy", "all", "--format", "json"]].concat());
    assert_eq!(json_lines(&stdout).len(), overspill_vm::policy::NAMES.len());
    assert!(stderr.contains("opt is left out of all"), "{stderr}");
    let (_, stderr) = succeeds(&[&sim[..], &["3000", "--policy", "lru"]].concat());
    assert!(!stderr.contains("left out"), "{stderr}");
}

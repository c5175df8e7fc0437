//! `overspill trace`: shows what is in a trace, and converts traces. Also loads traces for the lab's other commands.

use crate::args::RunArgs;
use crate::args::lab::{TraceArgs, TraceCommand, TraceConvertArgs, TraceInfoArgs, TraceOptions, TraceRecordArgs};
use crate::progress::Meter;
use crate::{Failure, preflight, printable, run, say};
use overspill_linux::record::Recording;
use overspill_linux::size::human;
use overspill_linux::sys;
use overspill_trace::{Kind, OBJECT_SHIFT, Options, Packer, Packing, Trace, Writer, write_compact, write_lines};
use overspill_vm::types::PAGE_SIZE;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::thread;
use std::time::Duration;

/// Objects that `trace info` lists: those with the most references.
const OBJECTS_SHOWN: usize = 10;

/// A trace that cannot be read or written.
const NOT_DONE: u8 = 1;

/// Runs the subcommand; exit status 0.
pub fn trace(args: &TraceArgs) -> Result<u8, Failure> {
    match &args.command {
        TraceCommand::Record(args) => record(args),
        TraceCommand::Info(args) => info(args),
        TraceCommand::Convert(args) => convert(args),
    }
}

/// Reads a trace, with progress. If the format was guessed, names it on standard error.
pub fn load(file: &Path, options: &TraceOptions, sample: Option<f64>) -> Result<Trace, Failure> {
    let mut meter = Meter::new(format!("reading {}", file.display()));
    let options = Options { format: options.trace_format, page_bytes: options.page_size, sample };
    let trace = overspill_trace::read(file, &options, &mut |progress| meter.show(progress.bytes, progress.bytes_total))
        .map_err(|error| Failure::with_status(NOT_DONE, error.to_string()))?;
    drop(meter);
    if options.format.is_none() {
        say(format_args!("{}: format {}, guessed {}", file.display(), trace.format(), trace.guess.why));
    }
    if trace.unplaced > 0 {
        say(format_args!(
            "{}: {} calls are not counted, since they append to files whose length the trace does not tell; trace fstat, statx and \
             lseek, too",
            file.display(),
            trace.unplaced
        ));
    }
    Ok(trace)
}

fn info(args: &TraceInfoArgs) -> Result<u8, Failure> {
    for (index, file) in args.files.iter().enumerate() {
        let trace = load(file, &args.options, None)?;
        let about = About::of(&trace);
        let text = match args.json {
            true => about.json(file, &trace).to_string(),
            false if index == 0 => about.text(file, &trace),
            false => format!("\n{}", about.text(file, &trace)),
        };
        if !crate::print(&format!("{text}\n"))? {
            break;
        }
    }
    Ok(0)
}

/// The counts of `trace info`.
struct About {
    writes: u64,
    pages_once: u64,
    pages_written: u64,
    kinds: Option<[u64; 4]>,
    /// References and unique pages per object, most references first.
    objects: Vec<(String, u64, u64)>,
}

impl About {
    fn of(trace: &Trace) -> About {
        let mut uses = vec![0u64; trace.numbers.len()];
        let mut written = vec![false; trace.numbers.len()];
        for (index, &page) in trace.pages.iter().enumerate() {
            uses[page as usize] += 1;
            written[page as usize] |= trace.writes.get(index);
        }
        let kinds =
            trace.kinds.as_ref().map(|kinds| Kind::ALL.map(|kind| kinds.iter().filter(|&&other| other == kind).count() as u64));
        let mut objects: Vec<(String, u64, u64)> = trace.objects.iter().map(|name| (name.clone(), 0, 0)).collect();
        if !objects.is_empty() {
            for (&number, &uses) in trace.numbers.iter().zip(&uses) {
                let object = &mut objects[(number >> OBJECT_SHIFT) as usize];
                object.1 += uses;
                object.2 += 1;
            }
        }
        objects.sort_by_key(|object| std::cmp::Reverse(object.1));
        About {
            writes: trace.writes.count(),
            pages_once: uses.iter().filter(|&&uses| uses == 1).count() as u64,
            pages_written: written.iter().filter(|&&written| written).count() as u64,
            kinds,
            objects,
        }
    }

    fn text(&self, file: &Path, trace: &Trace) -> String {
        let mut lines = vec![printable(&file.display().to_string())];
        let mut line = |name: &str, value: String| lines.push(format!("  {name:<18}{value}"));
        let share = |part: u64, whole: u64| format!("{part} ({:.1}%)", part as f64 / whole as f64 * 100.0);
        let (references, unique) = (trace.references_total, u64::from(trace.unique()));
        line("format", format!("{}, {}", trace.format(), trace.packing));
        line("references", references.to_string());
        line("writes", share(self.writes, references));
        line(
            "unique pages",
            format!("{unique}, {} in pages of {}", human(unique * u64::from(trace.page_bytes())), human(trace.page_bytes().into())),
        );
        line("pages used once", share(self.pages_once, unique));
        line("pages written", share(self.pages_written, unique));
        line("marks", format!("{} lines or records that are no reference", trace.marks));
        if trace.unplaced > 0 {
            line("not counted", format!("{} calls at an unknown place in their file", trace.unplaced));
        }
        if let Some([other, first, soft, hard]) = self.kinds {
            line("kinds", format!("{first} first touches, {soft} soft faults, {hard} hard faults, {other} other references"));
        }
        if !self.objects.is_empty() {
            line("objects", format!("{}; the most used (references, unique pages):", self.objects.len()));
            for (name, references, pages) in self.objects.iter().take(OBJECTS_SHOWN) {
                line("", format!("{references:>10} {pages:>8}  {}", printable(name)));
            }
        }
        lines.join("\n")
    }

    fn json(&self, file: &Path, trace: &Trace) -> serde_json::Value {
        let mut json = serde_json::json!({
            "trace": file.display().to_string(),
            "format": trace.format().name(),
            "guessed": trace.guess.why,
            "packing": trace.packing.to_string(),
            "references": trace.references_total,
            "writes": self.writes,
            "unique_pages": trace.unique(),
            "pages_used_once": self.pages_once,
            "pages_written": self.pages_written,
            "page_bytes": trace.page_bytes(),
            "marks": trace.marks,
            "unplaced": trace.unplaced,
            "objects": self.objects.len(),
        });
        if let Some([other, first, soft, hard]) = self.kinds {
            json["kinds"] = serde_json::json!({"reference": other, "first_touch": first, "soft_fault": soft, "hard_fault": hard});
        }
        json
    }
}

fn convert(args: &TraceConvertArgs) -> Result<u8, Failure> {
    let as_lines = match args.to.as_deref() {
        Some(name) => name == "lines",
        None => named_lines(&args.out),
    };
    let not_done = |error| unwritable(&args.out, &error);
    // Before the reading, which may take long. No file is left behind if it fails.
    let file = create(&args.out)?;
    let result = load(&args.file, &args.options, None).and_then(|trace| {
        let write = || {
            let out = Packer::new(BufWriter::new(file), Packing::of_name(&args.out))?;
            let out = if as_lines { write_lines(&trace, out) } else { write_compact(&trace, out) };
            out.and_then(Packer::finish)
        };
        write().map_err(not_done)?;
        let bytes = fs::metadata(&args.out).map_or(0, |meta| meta.len());
        let what = if as_lines { "lines" } else { "overspill" };
        say(format_args!("{}: format {what}, {} references, {}", args.out.display(), trace.pages.len(), human(bytes)));
        Ok(0)
    });
    if result.is_err() {
        let _ = fs::remove_file(&args.out);
    }
    result
}

fn create(out: &Path) -> Result<File, Failure> {
    OpenOptions::new().write(true).create_new(true).open(out).map_err(|error| unwritable(out, &error))
}

fn unwritable(out: &Path, error: &io::Error) -> Failure {
    let message = match error.kind() {
        io::ErrorKind::AlreadyExists => {
            format!("{} exists already, and Overspill overwrites nothing; name another file", out.display())
        }
        _ => format!("{} cannot be written: {error}", out.display()),
    };
    Failure::with_status(NOT_DONE, message)
}

/// The fewest mapped pages. With fewer, an instruction that needs several pages at once might never have them all.
const MAPPED_PAGES_MIN: u64 = 64;
/// The interval at which the ring is checked while it is empty.
const LOOK: Duration = Duration::from_millis(2);

/// Runs a program and writes the references that its pager sees.
fn record(args: &TraceRecordArgs) -> Result<u8, Failure> {
    let memory_pages = preflight::memory("--memory", &args.memory)? / PAGE_SIZE as u64;
    let mapped = (memory_pages * u64::from(100 - args.fine) / 100).max(MAPPED_PAGES_MIN);
    let recording = Recording::create(u32::try_from(mapped).unwrap_or(u32::MAX))
        .map_err(|error| Failure::new(format!("the shared memory for the recording cannot be made: {error}")))?;
    let run = RunArgs {
        memory: Some(args.memory.clone()),
        swap: args.swap.clone(),
        name: None,
        config: None,
        policy: Some(args.policy.clone()),
        engine: None,
        no_encrypt: false,
        no_load_control: false,
        no_halt_poll: false,
        no_follow_pointers: false,
        no_compress: true,
        stats: false,
        stats_file: None,
        best_effort: false,
        command: args.command.clone(),
    };
    let file = create(&args.out)?;
    let ended = AtomicBool::new(false);
    let (status, written) = thread::scope(|scope| {
        // The thread that waits for the program must get the signals.
        let mask = sys::block_signals();
        let writer = scope.spawn(|| {
            let written = write_recording(&recording, file, &args.out, &ended);
            if let Err(error) = &written {
                recording.close();
                say(format_args!("the recording ends here, the program goes on: {error}"));
            }
            written
        });
        sys::restore_signals(mask);
        let status = run::run_with(&run, Some(&recording));
        ended.store(true, Release);
        (status, writer.join().expect("the writer does not panic"))
    });
    let result = match (status, written) {
        (Err(failure), _) => Err(failure),
        (Ok(_), Err(error)) => Err(unwritable(&args.out, &error)),
        (Ok(status), Ok(0)) if status != 0 => {
            say(format_args!("nothing was recorded"));
            let _ = fs::remove_file(&args.out);
            Ok(status)
        }
        (Ok(_), Ok(0)) => {
            let program = Path::new(&args.command[0]).display();
            Err(Failure::with_status(NOT_DONE, format!("nothing was recorded: {program} ended before its pager saw a page")))
        }
        (Ok(status), Ok(references)) => {
            let bytes = fs::metadata(&args.out).map_or(0, |meta| meta.len());
            let what = if named_lines(&args.out) { "lines" } else { "overspill" };
            say(format_args!("{}: format {what}, {references} references, {}", args.out.display(), human(bytes)));
            Ok(status)
        }
    };
    if result.is_err() {
        let _ = fs::remove_file(&args.out);
    }
    result
}

/// Writes until the program has ended and the ring is empty; returns the number of references.
fn write_recording(recording: &Recording, file: File, out: &Path, ended: &AtomicBool) -> io::Result<u64> {
    let packer = Packer::new(BufWriter::new(file), Packing::of_name(out))?;
    let mut writer = match named_lines(out) {
        true => Recorder::Lines(packer),
        false => Recorder::Compact(Box::new(Writer::new(packer, PAGE_SIZE as u32, true)?)),
    };
    let mut references = 0;
    loop {
        // Read this before the ring, so that the program's last references are not missed.
        let last = ended.load(Acquire);
        let count = recording.drain(|page, write, touch| writer.event(page, write, Kind::ALL[usize::from(touch)]))?;
        references += count;
        match (count, last) {
            (0, true) => break,
            (0, false) => thread::sleep(LOOK),
            _ => {}
        }
    }
    writer.finish()?;
    Ok(references)
}

/// The format in which a recording is written.
enum Recorder {
    /// A page and `r` or `w`; the kinds of faults are lost, as in a conversion.
    Lines(Packer<BufWriter<File>>),
    Compact(Box<Writer<Packer<BufWriter<File>>>>),
}

impl Recorder {
    fn event(&mut self, page: u64, write: bool, kind: Kind) -> io::Result<()> {
        match self {
            Recorder::Lines(out) => writeln!(out, "{page} {}", if write { 'w' } else { 'r' }),
            Recorder::Compact(writer) => writer.event(page, write, kind),
        }
    }
    fn finish(self) -> io::Result<()> {
        let packer = match self {
            Recorder::Lines(out) => out,
            Recorder::Compact(writer) => writer.finish()?,
        };
        packer.finish().map(drop)
    }
}

/// Whether a name asks for lines.
fn named_lines(out: &Path) -> bool {
    let inner = if Packing::of_name(out) == Packing::Plain { out } else { Path::new(out.file_stem().unwrap_or_default()) };
    matches!(inner.extension().and_then(OsStr::to_str), Some("txt" | "lines"))
}

//! `overspill trace`: what is in a trace, and conversion; and the loading of traces for the lab's other commands.

use crate::args::lab::{TraceArgs, TraceCommand, TraceConvertArgs, TraceInfoArgs, TraceOptions};
use crate::progress::Meter;
use crate::{Failure, say};
use overspill_linux::size::human;
use overspill_trace::{Kind, OBJECT_SHIFT, Options, Packer, Packing, Trace, write_compact, write_lines};
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Objects that `trace info` lists: those with the most references.
const OBJECTS_SHOWN: usize = 10;

/// A trace that cannot be read or written.
const NOT_DONE: u8 = 1;

/// Runs the subcommand; exit status 0.
pub fn trace(args: &TraceArgs) -> Result<u8, Failure> {
    match &args.command {
        TraceCommand::Info(args) => info(args),
        TraceCommand::Convert(args) => convert(args),
    }
}

/// Reads a trace, with progress, and tells the format on standard error if it was guessed.
pub fn load(file: &Path, options: &TraceOptions, sample: Option<f64>) -> Result<Trace, Failure> {
    let mut meter = Meter::new(format!("reading {}", file.display()));
    let options = Options { format: options.trace_format, page_bytes: options.page_size, sample };
    let trace = overspill_trace::read(file, &options, &mut |progress| meter.show(progress.bytes, progress.bytes_total))
        .map_err(|error| Failure::with_status(NOT_DONE, error.to_string()))?;
    drop(meter);
    if options.format.is_none() {
        say(format_args!("{}: format {}, guessed {}", file.display(), trace.format(), trace.guess.why));
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
        if writeln!(io::stdout(), "{text}").is_err() {
            break; // a closed pipe is the reader's business
        }
    }
    Ok(0)
}

/// What `trace info` counts.
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
        let mut lines = vec![file.display().to_string()];
        let mut line = |name: &str, value: String| lines.push(format!("  {name:<18}{value}"));
        let share = |part: u64, whole: u64| format!("{part} ({:.1}%)", part as f64 / whole as f64 * 100.0);
        let (references, unique) = (trace.references_total, u64::from(trace.unique()));
        line("format", format!("{}, {}", trace.format(), trace.packing));
        line("references", references.to_string());
        line("writes", share(self.writes, references));
        line(
            "unique pages",
            format!("{unique}, {} in pages of {}", human(unique * u64::from(trace.page_bytes)), human(trace.page_bytes.into())),
        );
        line("pages used once", share(self.pages_once, unique));
        line("pages written", share(self.pages_written, unique));
        line("marks", format!("{} lines or records that are no reference", trace.marks));
        if let Some([other, first, soft, hard]) = self.kinds {
            line("kinds", format!("{first} first touches, {soft} soft faults, {hard} hard faults, {other} other references"));
        }
        if !self.objects.is_empty() {
            line("objects", format!("{}; the most used (references, unique pages):", self.objects.len()));
            for (name, references, pages) in self.objects.iter().take(OBJECTS_SHOWN) {
                line("", format!("{references:>10} {pages:>8}  {name}"));
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
            "page_bytes": trace.page_bytes,
            "marks": trace.marks,
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
    let not_done = |error: io::Error| {
        let message = match error.kind() {
            io::ErrorKind::AlreadyExists => {
                format!("{} exists already, and Overspill overwrites nothing; name another file", args.out.display())
            }
            _ => format!("{} cannot be written: {error}", args.out.display()),
        };
        Failure::with_status(NOT_DONE, message)
    };
    // Before the reading, which may take long. No file is left behind if it fails.
    let file = OpenOptions::new().write(true).create_new(true).open(&args.out).map_err(not_done)?;
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

/// Whether a name asks for lines.
fn named_lines(out: &Path) -> bool {
    let inner = if Packing::of_name(out) == Packing::Plain { out } else { Path::new(out.file_stem().unwrap_or_default()) };
    matches!(inner.extension().and_then(OsStr::to_str), Some("txt" | "lines"))
}
